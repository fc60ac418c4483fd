#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The program carries the protections that configure said it would (HARDENING): read from the binary,
# since a flag that a later one undoes still stands on the command line.
: "${srcdir:=.}"
. "$srcdir/tests/shell.sh"

[ -n "${HARDENING:-}" ] || { echo "configured with --disable-hardening"; exit 77; }
command -v readelf >/dev/null || { echo "no readelf"; exit 77; }
readelf -hW "$DISTTRAIN" >header && readelf -lW "$DISTTRAIN" >segments &&
    readelf -dW "$DISTTRAIN" >dynamic && readelf -sW "$DISTTRAIN" >symbols || exit 99

for what in $HARDENING; do
    case $what in
    pie) check "a position-independent executable" "grep -q 'Type: *DYN' header && grep -q PIE dynamic" ;;
    relro) check "relocations are read-only once made" "grep -q GNU_RELRO segments" ;;
    now) check "relocations are made at the start" "grep -Eq 'BIND_NOW|FLAGS_1.*NOW' dynamic" ;;
    noexecstack) check "the stack is not executable" "grep GNU_STACK segments | grep -q 'RW ' && ! grep GNU_STACK segments | grep -q 'RWE'" ;;
    canary) check "stack protector" "grep -q __stack_chk_fail symbols" ;;
    fortify) check "checked string functions" "grep -q '__[a-z]*printf_chk' symbols" ;;
    cfi)
        # the linker keeps the mark only if all it links has it, the system's start files too: objects say
        # what the compiler did
        lib=${DISTTRAIN%/*}/libdtcore.a
        members=$(ar t "$lib" | wc -l)
        marked=$(readelf -nW "$lib" 2>/dev/null | grep -Ec 'IBT|BTI')
        check "$marked of $members objects of $lib are marked for control-flow protection" \
            "[ $members -gt 0 ] && [ $marked -eq $members ]"
        ;;
    clash) ;; # leaves no mark
    *) bad "HARDENING names $what, which this test does not know" ;;
    esac
done
check "no segment is both written and executed" "! grep -E '^ +LOAD' segments | grep -q 'RWE'"
totals
