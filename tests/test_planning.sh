#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# doc/planning.md: every command is run, in the order of the page and in one folder, and prints what stands there.
#   test_planning.sh --update   writes outputs and chart anew (read the diff before committing it)
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
. "$srcdir/tests/console.sh"
console "$srcdir/doc/planning.md" 7 "${1:-}"

if [ "${1:-}" = --update ]; then
    cp days.svg "$srcdir/doc/planning-days.svg"
    exit 0
fi
# lines and marks, wherever titles put them
for f in days.svg "$srcdir/doc/planning-days.svg"; do grep -o '<circle[^>]*>\|<path[^>]*>' "$f" >"marks.${f##*/}"; done
check "the chart of the page is the one that is drawn" '[ "$(wc -l <marks.days.svg)" -gt 10 ] && cmp -s marks.days.svg marks.planning-days.svg'
check "the report is a page" 'grep -q "</html>" report.html'
totals
