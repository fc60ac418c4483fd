#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# doc/strategies.md and doc/samples.md: their commands print what stands there, and the timelines that are shown are those
# that they draw; commands with the largest job only with DT_CHECK_FULL=1.
#   test_pages.sh --update   writes outputs and timelines anew (read the diff before committing it)
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
. "$srcdir/tests/console.sh"
console "$srcdir/doc/samples.md" 1 "${1:-}"
rm -f cmd.* said.* did.*
console "$srcdir/doc/strategies.md" 5 "${1:-}" mllm-72b-1296

for s in megatron-lm noncolocated homogeneous colocated disttrain; do
    shown=$srcdir/doc/strategies/$s.svg
    if [ "${1:-}" = --update ]; then
        cp "$s.svg" "$shown"
        continue
    fi
    grep -o '<rect[^>]*>' "$s.svg" >marks.now
    grep -o '<rect[^>]*>' "$shown" >marks.shown
    check "the timeline of $s is the one that is drawn" '[ "$(wc -l <marks.now)" -gt 10 ] && cmp -s marks.now marks.shown'
done
[ "${1:-}" = --update ] || totals
