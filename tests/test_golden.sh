#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Whole runs against committed outputs, byte for byte.  tests/golden/NAME.cmd holds the arguments, one command line a
# file; NAME.out what it prints, without what differs from run to run (wall times).
#   test_golden.sh --update   writes the outputs anew (read the diff before committing it)
# "@RUNS@" stands for a runs file with two runs, of which what differs from host to host is set alike (needs sqlite3).
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
# Goldens speak of the shipped presets, whatever is installed.
DISTTRAIN_TRACES=$srcdir/traces; export DISTTRAIN_TRACES
passed=0 failed=0
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

folder=$(echo "$srcdir" | sed 's/[.*[\\^$]/\\&/g')
strip() {
    sed -e '/"wall_s"/d' -e '/ops simulated in/d' -e 's/layouts costed in .*/layouts costed/' -e "s,$folder/,,g" \
        -e "s,$tmp/,,g" -e '/"\(file\|size\)_bytes"/d' -e 's/[0-9.]* KiB/- KiB/' # sizes: with the lengths of paths
}

make_runs() {
    "$DISTTRAIN" simulate --runs "$tmp/runs.db" mllm-nano-local >/dev/null &&
        "$DISTTRAIN" simulate --runs "$tmp/runs.db" mllm-nano-local train.global_batch=16 -s megatron-lm >/dev/null &&
        "$DISTTRAIN" runs tag --runs "$tmp/runs.db" 2 twice &&
        sqlite3 "$tmp/runs.db" "UPDATE run SET version = '1', started = '2026-01-0' || id || 'T12:00:00Z';
            UPDATE origin SET host = 'a-host'; VACUUM" # pages without content: with the lengths of paths, too
}
runs=$tmp/runs.db
if ! command -v sqlite3 >/dev/null; then
    runs=
elif ! make_runs >"$tmp/out" 2>&1; then
    failed=1
    echo "FAIL: no runs"
    cat "$tmp/out"
fi

for cmd in "$srcdir"/tests/golden/*.cmd; do
    name=$(basename "$cmd" .cmd)
    if grep -q @RUNS@ "$cmd" && [ -z "$runs" ]; then
        echo "no sqlite3: $name is not checked"
        continue
    fi
    # shellcheck disable=SC2046 # the arguments are words
    "$DISTTRAIN" $(sed "s,@RUNS@,$runs," "$cmd") 2>&1 </dev/null | strip >"$tmp/out"
    if [ "${1:-}" = --update ]; then
        cmp -s "$tmp/out" "$srcdir/tests/golden/$name.out" || cp "$tmp/out" "$srcdir/tests/golden/$name.out"
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
