#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Devices by name: modules that are right, of another version, broken or without a device; every command that
# computes opens what the job names.
modules=$PWD/tests/modules
. "${srcdir:=.}/tests/small_job.sh"

with() { DISTTRAIN_MODULES=$1; export DISTTRAIN_MODULES; shift; "$@"; unset DISTTRAIN_MODULES; }
none=$tmp/none
mkdir none broken plain
echo 'no ELF file' >broken/disttrain-cuda.so
cp /bin/true plain/disttrain-cuda.so

# --- the list ---
with "$none" expect 0 "cuda: there is no disttrain-cuda.so in .*DISTTRAIN_MODULES" "$DISTTRAIN" devices
check "the CPU is listed" 'grep -q "^cpu  *cpu " out'
with "$none" expect 0 '"device": "cpu"' "$DISTTRAIN" devices --json
check "what is not there says why" 'tr -d "\n" <out | grep -q "\"device\": \"cuda\",  *\"usable\": false.*\"memory_bytes\": null.*\"why_not\": \"cuda: there is no"'
with "$modules/RIGHT" expect 0 "^cuda:1  *Fake GPU 1  *sm_00  *bf16  *80.0" "$DISTTRAIN" devices
check "nothing is missing then" '! grep -q "not usable" out'
with "$none:$modules/RIGHT:$modules/OLD" expect 0 '"device": "cuda:0"' "$DISTTRAIN" devices --json
check "the file is named" 'grep -q "\"module\": \"$modules/RIGHT/disttrain-cuda.so\"" out'
FAKE_MODULE_DEVICES=0; export FAKE_MODULE_DEVICES
with "$modules/RIGHT" expect 0 "not usable: cuda: the driver is too old" "$DISTTRAIN" devices
unset FAKE_MODULE_DEVICES
with "$modules/OLD" expect 0 "not usable: cuda: .*OLD.* was built for another version of the device table than" "$DISTTRAIN" devices
with "$modules/OTHER" expect 0 "not usable: cuda: .* is the module of other devices" "$DISTTRAIN" devices
with "$tmp/broken" expect 0 "not usable: cuda: .*broken/disttrain-cuda.so cannot be loaded: " "$DISTTRAIN" devices
with "$tmp/plain" expect 0 "not usable: cuda: .*plain/disttrain-cuda.so cannot be loaded: \|lacks dt_device_module" "$DISTTRAIN" devices

# --- the key ---
expect 2 'device: expected auto, cpu, cuda or cuda:N' "$DISTTRAIN" train --no-runs job.yaml run.steps=1 run.device=gpu
expect 2 'device: expected auto' "$DISTTRAIN" train --no-runs job.yaml run.steps=1 run.device=cpu:0
for bad in cuda: cuda:x cuda:1x cuda:-1 'cuda: 1'; do
    expect 2 "has no number of a device behind ':'" "$DISTTRAIN" train --no-runs job.yaml run.steps=1 "run.device=\"$bad\""
done

# --- every command that computes ---
with "$none" expect 2 "cuda: there is no disttrain-cuda.so" "$DISTTRAIN" train --no-runs job.yaml run.steps=1 run.device=cuda
with "$none" expect 0 '"device": "cpu"' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=1 run.checkpoint.dir=kept
with "$modules/RIGHT" expect 0 '"device": "cpu"' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=1 run.device=cpu
asked="the fake module was asked for device"
set -- run.threads=1 run.checkpoint.dir=kept
with "$modules/RIGHT" expect 2 "$asked 1" "$DISTTRAIN" train --no-runs job.yaml run.steps=1 run.device=cuda:1 "$@"
with "$modules/RIGHT" expect 2 "$asked 0" "$DISTTRAIN" train --no-runs job.yaml run.steps=1 "$@"
with "$modules/RIGHT" expect 2 "cuda:2: this host has 2, counted from 0" "$DISTTRAIN" train --no-runs job.yaml run.device=cuda:2 "$@"
with "$modules/RIGHT" expect 2 "$asked 1" "$DISTTRAIN" profile job.yaml -o p.sql run.device=cuda:1 "$@"
with "$modules/RIGHT" expect 2 "$asked 1" "$DISTTRAIN" loop job.yaml run.device=cuda:1 "$@"
with "$modules/RIGHT" expect 2 "$asked 0" "$DISTTRAIN" eval job.yaml "$@"
with "$modules/RIGHT" expect 2 "$asked 1" "$DISTTRAIN" sample job.yaml -t dark run.device=cuda:1 "$@"
# "auto" is not the CPU where a module is there that cannot be used; it is where the module has no device
with "$modules/OLD" expect 2 "another version of the device table" "$DISTTRAIN" train --no-runs job.yaml run.steps=1
with "$tmp/broken" expect 2 "cannot be loaded" "$DISTTRAIN" train --no-runs job.yaml run.steps=1
FAKE_MODULE_DEVICES=0; export FAKE_MODULE_DEVICES
with "$modules/RIGHT" expect 0 '"device": "cpu"' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=1
with "$modules/RIGHT" expect 2 "the driver is too old" "$DISTTRAIN" train --no-runs job.yaml run.steps=1 run.device=cuda
unset FAKE_MODULE_DEVICES
# ranks of a host take turns
FAKE_MODULE_ASKED=$tmp/asked; export FAKE_MODULE_ASKED
with "$modules/RIGHT" expect 2 "$asked [01]" "$MPIRUN" -np 2 "$DISTTRAIN" train --no-runs job.yaml run.steps=1 "$@"
check "each rank asked for its own" '[ -e asked.0 ] && [ -e asked.1 ]'

# --- cuDNN: the module of cards, built for a CPU ---
if [ -f "$modules/CPU/disttrain-cuda.so" ]; then
    CUCPU_DNN=yes; export CUCPU_DNN
    with "$modules/CPU" expect 0 "cuDNN 9.19.0" "$DISTTRAIN" devices
    with "$modules/CPU" expect 0 '"library": "cuDNN 9.19.0"' "$DISTTRAIN" devices --json
    DISTTRAIN_CUDNN=no; export DISTTRAIN_CUDNN
    with "$modules/CPU" expect 0 '"isa": "sm_' "$DISTTRAIN" devices --json
    check "it is not asked for" '! cat out err | grep -q cuDNN'
    unset CUCPU_DNN DISTTRAIN_CUDNN
    says="our own kernels do convolutions and attention"
    set -- run.threads=1 run.checkpoint.dir=card run.steps=1 run.device=cuda
    with "$modules/CPU" expect 0 "warning: cuda: there is no cuDNN .*; $says" "$DISTTRAIN" train --no-runs job.yaml "$@"
    check "and once" '[ "$(cat out err | grep -c "$says")" = 1 ]'
    with "$modules/CPU" expect 0 "" "$DISTTRAIN" train --no-runs job.yaml "$@" run.deterministic=true run.checkpoint.dir=other
    check "what is not wanted is not missed" '! cat out err | grep -q "$says"'
fi
totals
