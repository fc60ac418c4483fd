#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# doc/planning.md: every command is run, in the order of the page and in one folder, and prints what stands there.
#   test_planning.sh --update   writes outputs and chart anew (read the diff before committing it)
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
page=$srcdir/doc/planning.md
mkdir bin && ln -s "$DISTTRAIN" bin/disttrain
PATH=$tmp/bin:$PATH; export PATH

# console blocks: cmd.N, the command (lines that end in \ go on), and out.N, what the page says that it prints
awk '
    /^```console$/ { on = 1; next }
    /^```$/ { on = 0; more = 0; next }
    !on { next }
    /^\$ / { n++; printf "" >("said." n); print substr($0, 3) >("cmd." n); more = /\\$/; next }
    more { print >("cmd." n); more = /\\$/; next }
    { print >("said." n) }
    END { print n + 0 >"count" }' "$page"
n=$(cat count)
check "the page has commands" '[ "$n" -ge 7 ]'

i=1
while [ "$i" -le "$n" ]; do
    case $(cat cmd.$i) in
    "disttrain serve "*) # any port that is free, and a token that nobody knows
        timeout -s INT 20 sh -c "exec $(cat cmd.$i) --port 0" >out 2>err &
        while kill -0 $! 2>/dev/null && [ ! -s out ]; do sleep 0.2; done
        kill -INT $! 2>/dev/null
        wait $!
        sed 's,127.0.0.1:[0-9]*/[0-9a-f]\{32\}/,127.0.0.1:8642/TOKEN/,' out >did.$i
        ;;
    *) sh cmd.$i >did.$i 2>err || bad "fails: $(cat cmd.$i)" ;;
    esac
    [ "${1:-}" = --update ] || cmp -s said.$i did.$i && ok || { diff said.$i did.$i >out; bad "prints something else: $(cat cmd.$i)"; }
    i=$((i + 1))
done

if [ "${1:-}" = --update ]; then
    awk '
        /^```console$/ { on = 1; print; next }
        /^```$/ { if (on) flush(); on = 0; more = 0; print; next }
        !on { print; next }
        /^\$ / { flush(); n++; pending = n; print; more = /\\$/; next }
        more { print; more = /\\$/ }
        function flush(  line) { while (pending && (getline line <("did." pending)) > 0) print line; pending = 0 }' \
        "$page" >new && cp new "$page"
    cp days.svg "$srcdir/doc/planning-days.svg"
    exit 0
fi
# lines and marks, wherever titles put them
for f in days.svg "$srcdir/doc/planning-days.svg"; do grep -o '<circle[^>]*>\|<path[^>]*>' "$f" >"marks.${f##*/}"; done
check "the chart of the page is the one that is drawn" '[ "$(wc -l <marks.days.svg)" -gt 10 ] && cmp -s marks.days.svg marks.planning-days.svg'
check "the report is a page" 'grep -q "</html>" report.html'
totals
