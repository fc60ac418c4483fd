#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# What doc/dependencies.md promises about licences: every dependency has one; GSL, which is others' GPL
# without our permission for NVIDIA's libraries, stays out of kernels and out of what they link with.
: "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
build=${DISTTRAIN%/*}

# ---- every row of the package table names a licence ----
sed -n '/<!-- packages: begin -->/,/<!-- packages: end -->/s/^| `//p' "$srcdir/doc/dependencies.md" >rows
while IFS='|' read -r name kind licence why; do
    name=${name%%\`*}
    check "$name has a licence and a reason" '[ -n "$(echo "$licence" | tr -d " ")" ] && [ -n "$(echo "$why" | tr -d " ")" ]'
done <rows
check "the table was read" '[ "$(wc -l <rows)" -gt 15 ]'

# ---- sources: no GSL above the kernels' contract ----
check "src/kernels and src/exec include no GSL header" \
    '! grep -rn "include *<gsl" "$srcdir/src/kernels" "$srcdir/src/exec"'

# ---- objects: everything that the kernels pull in, to the end ----
command -v nm >/dev/null || { totals; exit; }
nm -A "$build"/libdt*.a 2>/dev/null >symbols
awk '
    # FILE:MEMBER.o:[ADDRESS] TYPE NAME, or FILE:MEMBER.o:         U NAME
    NF < 2 { next }
    { split($1, at, ":"); member = at[1] ":" at[2]; type = $(NF - 1); name = $NF }
    type == "U" { needs[member] = needs[member] " " name; next }
    type ~ /^[TDBRVW]$/ && !(name in home) { home[name] = member }
    member ~ /libdtkernels/ && !(member in seen) { seen[member] = 1; todo[n++] = member }
    END {
        for (i = 0; i < n; i++) {
            k = split(needs[todo[i]], names, " ")
            for (j = 1; j <= k; j++) {
                if (names[j] ~ /^gsl_/) print todo[i] " needs " names[j]
                m = home[names[j]]
                if (m != "" && !(m in seen)) { seen[m] = 1; todo[n++] = m }
            }
        }
        print n " objects" >"closure"
    }' symbols >gsl
check "no object that kernels need calls GSL: $(head -n 3 gsl)" '[ ! -s gsl ]'
check "the kernels and their needs were found ($(cat closure))" '[ "$(cut -d" " -f1 closure)" -gt 20 ]'
totals
