#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Estimates of the kernels of cards (make roofline): every call is launched at the sizes of real models, without being
# computed, and the page can be made without nvcc's words on registers, and with them.
builddir=$PWD module=$PWD/tests/modules/CPU/disttrain-cuda.so
[ -f "$module" ] || { echo "SKIP: there is no C++20 compiler for $module"; exit 77; }
command -v python3 >/dev/null && command -v nm >/dev/null || { echo "SKIP: there is no python3 or no nm"; exit 77; }
. "${srcdir:=.}/tests/shell.sh"

page() { python3 "$srcdir/tests/bench/roofline.py" "$builddir/tests/bench/roofline" "$module" "$@" >page.md 2>err; }
page
rc=$?
cat err
check "the page is made" '[ $rc = 0 ]'
rows=$(grep -c '^| [a-z].* [0-9]*: ' page.md)
check "all calls are there, on both cards" '[ "$rows" -ge 60 ] && [ $((rows % 2)) = 0 ] && [ "$(grep -c "^## " page.md)" = 2 ]'
check "every call is launched" '! grep -q "| 0: " page.md'
# bound / estimate
awk -F"|" '/^\| [a-z]/ && $2 !~ /call/ { split($8, p, " "); if (p[1] > 100 || p[1] < 2) print }' page.md >out
cat out
check "no estimate is below its bound" '[ ! -s out ]'
check "a norm of rows is one launch, of a block for two of them" 'grep -q "^| rmsnorm_fwd .* 1: forward_kernel 4096 x 256" page.md'

# what ptxas says of a kernel stands beside its launches
for symbol in $(nm "$module" | awk '$3 ~ /adamw_kernel/ && $2 ~ /[tTwW]/ { print $3 }'); do
    cat <<END
ptxas info    : Compiling entry function '$symbol' for 'sm_90'
    0 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 2048 bytes smem
END
done >ptxas.txt
page ptxas.txt
rc=$?
check "registers, shared memory and spills are told" \
    '[ $rc = 0 ] && grep -q "^| adamw .*64 registers, 2 KiB, \*\*12 B spilled\*\*, 4 on a processor (50 %)" page.md'
grep "^| adamw" page.md
totals
