#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The manual pages: they format without a warning, name their subcommand, and document every exit status.
# Environment: DISTTRAIN (the program), srcdir (the source directory); man with groff, mandoc: used where they are.
set -u
. "${srcdir:-.}/tests/shell.sh"

for page in "$srcdir"/man/*.[15]; do
    name=$(basename "$page")
    if command -v man >/dev/null && command -v groff >/dev/null; then
        man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>err >out
        check "$name: man warns" '[ ! -s err ] && [ -s out ]'
    fi
    if command -v mandoc >/dev/null; then
        mandoc -T lint -W warning "$page" >err 2>&1
        check "$name: mandoc warns" '[ ! -s err ]'
    fi
    case $name in
    disttrain-*.1)
        command=${name#disttrain-} command=${command%.1}
        sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/p' "$page" >out
        check "$name: the synopsis names the subcommand" \
            'awk -v c="$command" "/^\.Nm/ { if ((getline x) <= 0 || x != \".Cm \" c) bad = 1; n++ } END { exit bad || !n }" out'
        ;;
    esac
done

# every status that the program may exit with is in --help and in disttrain(1)
sed -n 's/^ *X([A-Z_]*, \([0-9]*\),.*/\1/p' "$srcdir/src/base/status.h" | sort -un >statuses
check "statuses are found" '[ "$(wc -l <statuses)" -ge 8 ]'
"$DISTTRAIN" --help | sed -n '/^exit codes:/,$p' >help
for code in $(cat statuses); do
    check "exit status $code is in disttrain(1)" 'sed -n "/^\.Sh EXIT STATUS/,/^\.El/p" "$srcdir/man/disttrain.1" | grep -q "^\.It $code$"'
    check "exit status $code is in --help" 'grep -q "\(^\|[ :]\)$code [a-z]" help'
done
totals
