#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The rows that doc/reproduction.md quotes are those that `disttrain reproduce` prints; of searches the layouts that
# they cost, not the time that this machine took.  --update writes the new ones into the page.
# Environment: DT_REPRODUCED (a file that holds what reproduce has just printed; else it is run), DISTTRAIN (the program), srcdir (the source directory).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
DISTTRAIN_TRACES=$(cd "$srcdir" && pwd)/traces; export DISTTRAIN_TRACES
page=$srcdir/doc/reproduction.md
out=$(mktemp) || exit 99
trap 'rm -f "$out" "$out.new"' EXIT
if [ -s "${DT_REPRODUCED-}" ]; then
    cat "$DT_REPRODUCED" >"$out"
else
    "$DISTTRAIN" reproduce >"$out" 2>/dev/null || { echo 'FAIL: reproduce'; exit 1; }
fi
# A line of a table is known by its first columns, which two or more blanks end.
awk -v update="${1:-}" '
    function key(s) { sub(/  .*/, "", s); return s }
    function plain(s) { gsub(/ +/, " ", s); sub(/ $/, "", s); return s }
    function untimed(s, f) { split(s, f, /  +/); sub(/;.*/, "", f[7]); return sprintf("%-23s %-5s %-10s %8s  %s", f[1], f[2], f[3], f[4], f[7]) }
    FNR == NR && /^search time, / { now[key($0)] = untimed($0); next }
    FNR == NR { if (/^(M(LLM|IMO)[- ]|Entrain )/) now[key($0)] = $0; next }
    /^```/ { inside = !inside }
    inside && /^(M(LLM|IMO)[- ]|Entrain |search time, )/ {
        n++
        if (!(key($0) in now)) { bad++; print "FAIL: reproduce has no line: " key($0) >"/dev/stderr" }
        else if (plain($0) != plain(now[key($0)])) {
            bad++
            print "FAIL: the page says  " plain($0) "\n      reproduce says " plain(now[key($0)]) >"/dev/stderr"
            if (update) { $0 = now[key($0)]; sub(/ +$/, "") }
        }
    }
    update { print }
    END { if (!update) print n - bad " passed, " bad + 0 " failed"; exit bad > 0 || n < 150 }' \
    "$out" "$page" >"$out.new"
rc=$?
if [ "${1:-}" = --update ]; then cp "$out.new" "$page"; exit; fi
cat "$out.new"
exit $rc
