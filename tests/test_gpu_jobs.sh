#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# What gpu-check trains and times on a card: its jobs and their data, small, on the module of cards that is built for a CPU.
builddir=$PWD module=$PWD/tests/modules/CPU
[ -f "$module/disttrain-cuda.so" ] || { echo "SKIP: there is no C++20 compiler for $module/disttrain-cuda.so"; exit 77; }
limit_s=300
. "${srcdir:=.}/tests/shell.sh"

DISTTRAIN_MODULES=$module GPU_CHECK_TESTS=$builddir/tests GPU_CHECK_SMALL=yes OMP_NUM_THREADS=1
export DISTTRAIN_MODULES GPU_CHECK_TESTS GPU_CHECK_SMALL OMP_NUM_THREADS
# every step is of a program, a job or a tool that is there
sh "$srcdir/tools/gpu-check" --list >steps
check "there are steps" '[ "$(wc -l <steps)" -ge 20 ]'
sed -n 's/.*\$GPU_CHECK_JOBS\/\([a-z_.-]*\).*/\1/p' steps | sort -u >named
while read -r f; do check "$f is there" '[ -f "$srcdir/tools/gpu-jobs/$f" ]'; done <named
for f in $(sed -n 's/.*\$GPU_CHECK_TESTS\/\([a-z_]*\).*/\1/p' steps | sort -u); do
    check "$f goes into the bundle" 'grep -q "[ /]$f[ ;]" "$srcdir/tools/bundle" && grep -q "tests/\(bench/\)*$f\( \|$\)" "$srcdir/tools/local.mk"'
done
check "they fit into 20 minutes" '[ "$(awk "{ s += \$2 } END { print s }" steps)" -le 1200 ]'

# data, training of each job, and a profile; DT_CHECK_FULL=1: and loops
if [ "${DT_CHECK_FULL:-0}" != 0 ]; then some='^\(data\|llama\|vit\|unet\|mllm\|loop-[a-z]*\|profile\) '; else some='^\(data\|llama\|vit\|unet\|mllm\) '; fi
grep "$some" steps >few
sh "$srcdir/tools/gpu-check" --steps few --out done --budget 280 >out 2>&1
rc=$?
[ $rc = 0 ] || { cat out; tail -5 done/*.log; }
check "jobs and data: $rc" '[ $rc = 0 ] && [ "$(cat done/*.state | grep -c "^done")" = "$(wc -l <few)" ]'
for job in llama vit unet mllm; do
    check "$job has trained" '[ "$(grep -c "\"loss" done/$job-log/*.jsonl)" -ge 1 ] && grep -q "^MFU\|^iteration" done/$job.log'
done

# times of kernels: as many lines as calls, although nothing runs here
CUCPU_DRY=1 CUCPU_MEMORY_MIB=130000 "$builddir/tests/bench/roofline" --time 1 >out 2>&1
rc=$?
check "kernels are timed" '[ $rc = 0 ] && [ "$(grep -c "^kernel .* us, .* GB/s (.* of a copy" out)" -ge 30 ]'
check "each of them ten times" '[ "$(grep -c "^launch.*rope_kernel" out)" = 10 ]'

python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$srcdir/tools/gpu-jobs/torch_steps.py" >out 2>&1
check "what times PyTorch is Python" '[ $? = 0 ]'
if python3 -c 'import torch' 2>/dev/null; then
    expect 0 "torch unet: .* ms a step" python3 "$srcdir/tools/gpu-jobs/torch_steps.py" --small
fi
totals
