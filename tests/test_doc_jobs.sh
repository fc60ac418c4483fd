#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Each yaml block of README.md and doc/ that is a whole job can be planned; README.md names every page of doc/.
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
for page in "$srcdir"/README.md "$srcdir"/doc/*.md; do
    awk -v page="$(basename "$page" .md)" '
        /^```yaml$/ { on = 1; n++; next }
        /^```$/ { on = 0; next }
        on { print >(page "." n ".yaml") }' "$page"
done
jobs=$(grep -l '^model:' -- *.yaml)
check "there are jobs" '[ "$(echo "$jobs" | wc -l)" -ge 2 ]'
for job in $jobs; do expect 0 "" "$DISTTRAIN" plan "$job" search.effort=quick; done
for page in "$srcdir"/doc/*.md; do
    check "README.md names ${page##*/}" 'grep -q "doc/${page##*/}" "$srcdir/README.md"'
done
totals
