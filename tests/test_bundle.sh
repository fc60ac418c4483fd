#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# The bundle runs from a folder of another name with nothing of this one in its environment, and gpu-check goes through its
# steps: what has never run first, at most as long as its budget, on where it stopped.
builddir=$PWD
. "${srcdir:=.}/tests/shell.sh"
command -v ldd >/dev/null && command -v objdump >/dev/null || { echo "SKIP: no ldd or objdump"; exit 77; }
unset DISTTRAIN_TRACES DISTTRAIN_MODULES

sh "$srcdir/tools/bundle" "$builddir" "$srcdir" first >out 2>&1
check "a bundle: $(cat out)" '[ -x first/run ] && grep -q "for glibc 2\.[0-9]* or newer" out'
expect 1 "is there already" sh "$srcdir/tools/bundle" "$builddir" "$srcdir" first
mv first second
alone="env -i PATH=/usr/bin:/bin HOME=$tmp"
expect 0 "^disttrain [0-9]" $alone second/run --version
expect 0 "4 GPUs\|plan" $alone second/run plan mllm-nano-train
check "nothing of NVIDIA's" '[ -z "$(find second -name "libcu*" -o -name "libnv*" -o -name "libnccl*")" ]'
for f in second/bin/disttrain second/tests/*; do
    LD_LIBRARY_PATH=$PWD/second/lib ldd $f | sed -n 's/.* => \([^ ]*\).*/\1/p' |
        grep -v "^$PWD/second/lib/\|/lib\(c\|m\|dl\|rt\|pthread\|resolv\|util\)\.so" >outside
    check "$f takes from the system: $(cat outside)" '[ ! -s outside ]'
done

# --- gpu-check ---
expect 77 "there is no card: cuda: " $alone second/run gpu-check --out never
check "and nothing is written" '[ ! -e never ]'
expect 2 "usage" $alone second/run gpu-check --budget soon
cat >steps <<'END'
# name, seconds, command
slow 1 echo begun; sleep 1000
good 1 echo fine
bad 1 echo no; exit 3
late 60 touch here
END
gpu_check() { $alone DISTTRAIN_MODULES="$builddir/tests/modules/RIGHT" second/run gpu-check --steps "$tmp/steps" --out done "$@" >out 2>&1; rc=$?; }
gpu_check --budget 8
check "slow was stopped: $(cat done/slow.state)" 'grep -q "^stopped [0-9]* s" done/slow.state && grep -q begun done/slow.log'
check "the rest is left: $rc" '[ $rc -eq 0 ] && [ ! -e done/good.log ] && grep -q "^late  *left" done/table'
sed 's/sleep 1000/sleep 0/' steps >faster && mv faster steps
gpu_check --budget 600
check "what had never run came first" '[ "$(sed -n "s/^gpu-check: \([a-z]*\) (.*/\1/p" out | paste -sd" " -)" = "good bad late slow" ]'
check "good: $(cat done/good.state)" 'grep -q "^done [0-9]* s, exit status 0" done/good.state && [ "$(cat done/good.log)" = fine ]'
check "bad: $(cat done/bad.state)" 'grep -q "^failed [0-9]* s, exit status 3" done/bad.state && [ $rc -eq 1 ]'
check "slow went on: $(cat done/slow.state)" 'grep -q "^done" done/slow.state && [ -f done/here ]'
gpu_check --budget 600
check "nothing is done twice, and a failure stays one: $rc" '! grep -q "^gpu-check: " out && [ $rc -eq 1 ]'
gpu_check --budget 600 --again
check "all of it again" '[ "$(grep -c "^gpu-check: " out)" -eq 4 ]'
totals
