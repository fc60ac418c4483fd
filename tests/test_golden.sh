#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Whole runs against committed outputs, byte for byte.  tests/golden/NAME.cmd holds the arguments, one command line a
# file; NAME.out what it prints, without what differs from run to run (wall times).
#   test_golden.sh --update   writes the outputs anew (read the diff before committing it)
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
# Goldens speak of the shipped presets, whatever is installed.
DISTTRAIN_TRACES=$srcdir/traces; export DISTTRAIN_TRACES
passed=0 failed=0
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

strip() { sed -e '/"wall_s"/d' -e '/ops simulated in/d' -e 's/layouts costed in .*/layouts costed/' -e "s,$srcdir/,,g"; }

for cmd in "$srcdir"/tests/golden/*.cmd; do
    name=$(basename "$cmd" .cmd)
    # shellcheck disable=SC2046 # the arguments are words
    "$DISTTRAIN" $(cat "$cmd") 2>&1 </dev/null | strip >"$tmp/out"
    if [ "${1:-}" = --update ]; then
        cp "$tmp/out" "$srcdir/tests/golden/$name.out"
    elif cmp -s "$tmp/out" "$srcdir/tests/golden/$name.out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $name ($(cat "$cmd"))"
        diff "$srcdir/tests/golden/$name.out" "$tmp/out" | head -20
    fi
done
[ "${1:-}" = --update ] && exit 0
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
