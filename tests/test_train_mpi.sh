#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain train under mpirun: ranks train as one process does, checkpoints go from layout to
# layout, signals and wrong numbers of ranks.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
limit_s=120
. "${srcdir:=.}/tests/shell.sh"
. "$srcdir/tests/mpirun.sh"

pack_two_tones

cat >job.yaml <<'END'
model:
  modules:
    encoder: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 4, channels: 1, positions: 4}
    llm: {kind: llm, layers: 2, hidden: 16, ffn: 32, heads: 2, vocab: 264}
    generator: {kind: unet, channels: [8, 8], head_dim: 8, res_blocks: 1, in_channels: 1, out_channels: 1,
      context_dim: 8, context_len: 2, latent_scale: 1, resize: 8}
cluster: local
samples: text
train: {global_batch: 4, microbatch: 1, seq_len: 64}
search: {allow_analytical: true, strategy: manual}
plan: {encoder: {}, llm: {pp: 2}, generator: {}}
run: {data: two-000000.tar, steps: 4, precision: fp32, threads: 1, log_dir: log, checkpoint: {dir: one}}
END
colocated='plan={colocated: true, encoder: {dp: 2}, llm: {dp: 2}, generator: {dp: 2}}'

# --- the same training, whoever does it ---
expect 0 "" "$DISTTRAIN" train --no-runs --json job.yaml
loss=$(field loss)
expect 0 "" "$MPIRUN" -np 2 "$DISTTRAIN" train --no-runs --json job.yaml run.checkpoint.dir=two
check "two ranks, same loss" '[ "$(field loss)" = "$loss" ] && [ "$(field ranks)" = 2 ]'
# checksums of all tensors: files are cut by ranks
sums() { grep -o '^ *"[a-z].*\..*": "[0-9a-f]\{8\}"' "$1/manifest.json" | sort; }
sums one/step-00000004 >sums.one; sums two/step-00000004 >sums.two
check "and the same parameters and moments" '[ $(wc -l <sums.one) -gt 60 ] && cmp -s sums.one sums.two'
check "each rank has written its own" '[ -f two/step-00000004/model-00002-of-00002.safetensors ]'
expect 0 "" "$DISTTRAIN" train --ranks 4 --json job.yaml run.checkpoint.dir=four
check "four ranks, same loss" '[ "$(field loss)" = "$loss" ] && [ "$(field ranks)" = 4 ]'
check "the run is kept" '[ -s disttrain-runs.db ]'
# (on a busy machine a batch may be there before the last step begins: five tries)
loaded_beside() {
    for r in 0 1; do
        pid=$(sed -n "s/.*process_name\", \"pid\": \([0-9]*\), .*\"rank $r\".*/\1/p" trace.json)
        grep -q "\"load batch [34]\", \"pid\": ${pid:-none}," trace.json || return 1
    done
}
beside=1
for try in 1 2 3 4 5; do
    rm -rf beside beside.db
    expect 0 "" "$DISTTRAIN" train --ranks 2 --runs beside.db job.yaml run.steps=2 run.checkpoint.dir=beside \
        "$colocated" train.global_batch=64 model.modules.llm.hidden=128 model.modules.llm.ffn=512
    expect 0 "" "$DISTTRAIN" trace export last --runs beside.db
    loaded_beside && beside=0 && break
done
check "what each rank loaded beside the last step" '[ $beside -eq 0 ]'
expect 0 "" "$DISTTRAIN" train --ranks 2 --runs fast.db --json job.yaml run.checkpoint.dir=dp run.log_dir=fast "$colocated"
check "rates of both ranks are tokens and FLOPs per second" "speed_holds fast fast.db"
check "replicas, about the same loss" \
    'awk -v a="$(field loss)" -v b="$loss" "BEGIN { exit !(a - b < 1e-3 * b && b - a < 1e-3 * b) }"'

expect 0 "" "$DISTTRAIN" train --ranks 4 --no-runs --json job.yaml run.checkpoint.dir=tp \
    'plan={encoder: {}, llm: {tp: 2}, generator: {}}'
check "tensor-parallel members, about the same loss" \
    'awk -v a="$(field loss)" -v b="$loss" "BEGIN { exit !(a - b < 1e-3 * b && b - a < 1e-3 * b) }"'
whole=$(field loss)
expect 0 "" "$DISTTRAIN" train --ranks 4 --no-runs --json job.yaml run.checkpoint.dir=tp-chunks train.stepccl_chunks=3 \
    'plan={encoder: {}, llm: {tp: 2}, generator: {}}'
(for d in tp tp-chunks; do sums "$(ls -d $d/step-* | tail -1)" >sums-$d; done)
if has_bf16; then
    check "the same in chunks, all tensors to the bit" '[ -s sums-tp ] && cmp -s sums-tp sums-tp-chunks'
else
    check "the same in chunks, about the same loss" \
        'awk -v a="$(field loss)" -v b="$whole" "BEGIN { exit !(a - b < 1e-5 * b && b - a < 1e-5 * b) }"'
fi

# --- memory: what a rank allocates is what the model predicts, within 10 % (modules large enough for
# what no model counts, single numbers and rounding up to 64 bytes, not to matter) ---
wide='model.modules.encoder={kind: encoder, layers: 2, hidden: 128, ffn: 384, heads: 4, patch: 4, channels: 1, positions: 4}'
llm='model.modules.llm={kind: llm, layers: 4, hidden: 192, ffn: 512, heads: 4, vocab: 264}'
unet='model.modules.generator={kind: unet, channels: [32, 64], head_dim: 16, res_blocks: 1, in_channels: 1,
    out_channels: 1, context_dim: 64, context_len: 8, latent_scale: 1, resize: 16}'
near() { # N RANKS MOST: as many ranks are told, each is within 10 %, or MOST times above
    sed -n "/\"${2:-memory}\": \[/,/\]/p" out | awk -v n="$1" -v most="${3:-1.1}" '/"allocated_bytes"/ { a = $2 + 0 }
        /"predicted_bytes"/ { k++; p = $2 + 0; if (a < 1e6 || p < 0.9 * a || p > most * a) { print p, a; bad = 1 } }
        END { exit bad || k != n }'
}
for precision in fp32 auto; do
    set -- train --no-runs --json job.yaml run.steps=2 train.microbatch=2 run.precision=$precision \
        "$wide" "$llm" "$unet"
    expect 0 "" "$DISTTRAIN" "$@" run.checkpoint.dir=$precision-1 \
        'plan={colocated: true}'
    check "memory of one rank, $precision" 'near 1'
    check "memory of its lanes, $precision" 'near 3 lanes'
    expect 0 "" "$DISTTRAIN" "$@" --ranks 2 run.checkpoint.dir=$precision-2 "$colocated"
    check "memory of two replicas, $precision" 'near 2'
    check "memory of their lanes, $precision" 'near 6 lanes'
    expect 0 "" "$DISTTRAIN" "$@" --ranks 4 run.checkpoint.dir=$precision-4
    check "memory of four stages, $precision" 'near 4'
    check "memory of their lanes, $precision" 'near 4 lanes'
    expect 0 "" "$DISTTRAIN" "$@" --ranks 4 run.checkpoint.dir=$precision-frozen \
        'train.frozen=[encoder,generator]'
    check "memory of frozen modules, $precision" 'near 4 && near 4 lanes'
    expect 0 "" "$DISTTRAIN" "$@" --ranks 2 run.checkpoint.dir=$precision-frozen-2 "$colocated" \
        'train.frozen=[encoder,generator]'
    check "memory of frozen modules with replicas, $precision" 'near 2 && near 6 lanes'
    expect 0 "" "$DISTTRAIN" "$@" --ranks 4 run.checkpoint.dir=$precision-tp \
        'plan={encoder: {}, llm: {tp: 2}, generator: {}}'
    check "memory of tensor-parallel members, $precision" 'near 4'
    check "memory of their lanes, $precision" 'near 3 lanes'
    # weight gradients that wait: of both microbatches, then of up to four of six, which differ in size
    expect 0 "" "$DISTTRAIN" "$@" --ranks 4 run.checkpoint.dir=$precision-zb train.schedule=zb-h1
    check "memory where weight gradients wait, $precision" 'near 4 && near 4 lanes'
    expect 0 "" "$DISTTRAIN" "$@" --ranks 4 run.checkpoint.dir=$precision-1f1b6 train.global_batch=12
    expect 0 "" "$DISTTRAIN" "$@" --ranks 4 run.checkpoint.dir=$precision-zb6 train.global_batch=12 train.schedule=zb-h1
    check "memory enough for six, $precision" 'near 4 memory 1.4 && near 4 lanes 1.4'
    sums $precision-1f1b6/step-00000002 >sums.1f1b; sums $precision-zb6/step-00000002 >sums.zb
    check "and the same parameters and moments, $precision" '[ $(wc -l <sums.zb) -gt 60 ] && cmp -s sums.zb sums.1f1b'
done

# --- replicas that share a rank: ZeRO's pieces are of ranks ---
set -- "$@" run.precision=fp32
expect 0 "" "$DISTTRAIN" "$@" train.microbatch=1 run.checkpoint.dir=shared "$colocated"
check "memory of two replicas on one rank" 'near 1 && near 6 lanes'

# --- whose lanes are whose, and where: a rank whose products go without AVX is slower than the other ---
where() { sed -n "/\"$1\": \[/,/^  \]/p" out | grep -c "\"$2\""; }
# (other work on the machine may slow down the fast one as much: three tries)
slow_rank() {
    set -- "$@" run.checkpoint.dir=slow run.steps=4 train.microbatch=1 train.global_batch=16 "$colocated"
    for try in 1 2 3; do
        rm -rf slow
        "$MPIRUN" -np 1 "$DISTTRAIN" "$@" : -np 1 env DNNL_MAX_CPU_ISA=SSE41 "$DISTTRAIN" "$@" \
            >out 2>err </dev/null || return 1
        ! grep -q '"isa": "AVX' out || [ "$(where stand_out host)" -gt 0 ] && return
    done
    return 1
}
slow_rank "$@"; slow=$?
check "a slow rank stands out" '[ $slow -eq 0 ]'
check "lanes have ranks and hosts" '[ "$(where lanes rank)" = 6 ] && [ "$(where lanes host)" = 6 ]'
check "what stands out has, too" '[ "$(where stand_out rank)" = "$(where stand_out host)" ]'

# --- on from one layout's checkpoint on another ---
expect 0 '"resumed": true' "$DISTTRAIN" train --no-runs --json job.yaml run.steps=6 run.checkpoint.dir=tp
loss=$(field loss)
rm -rf dp/step-00000006; printf 'step-00000004\n' >dp/latest
expect 0 '"resumed": true' "$DISTTRAIN" train --ranks 2 --no-runs --json job.yaml run.steps=6 \
    run.checkpoint.dir=dp "$colocated"
check "it goes on alike" \
    'awk -v a="$(field loss)" -v b="$loss" "BEGIN { exit !(a - b < 1e-3 * b && b - a < 1e-3 * b) }"'

# --- what is refused ---
expect 2 "5 ranks for a plan of 4 GPUs" "$DISTTRAIN" train --ranks 5 --no-runs job.yaml
check "by one message" '[ $(grep -c "5 ranks for a plan" err) -eq 1 ]'
expect 2 "tp 2 members" "$DISTTRAIN" train --ranks 2 --no-runs job.yaml 'plan={encoder: {}, llm: {tp: 2}, generator: {}}'
expect 2 "run.checkpoint" "$DISTTRAIN" train --ranks 2 --max-restarts 1 job.yaml 'run={data: two-000000.tar, steps: 1}'
expect 2 "needs --ranks" "$DISTTRAIN" train --max-restarts 1 job.yaml

# --- a signal stops all ranks after the same step ---
rm -rf log
"$DISTTRAIN" train --ranks 2 --no-runs --json job.yaml run.steps=1000000 run.checkpoint.dir=stop >out 2>err &
pid=$!
n=0
while [ $n -lt 300 ] && [ "$(cat log/metrics.jsonl 2>/dev/null | grep -c .)" -lt 12 ]; do sleep 0.1; n=$((n + 1)); done
kill -TERM $pid
wait $pid
check "a stopped job exits with 0" "[ $? -eq 0 ]"
check "it says so" 'grep -q "\"stopped\": true" out'
check "it saved where it stopped" '[ -d "stop/step-$(printf %08d "$(field last_step)")" ]'

# --- a rank that is killed: the job says so and goes on from its last checkpoint ---
rm -rf log
"$DISTTRAIN" train --ranks 2 --max-restarts 2 --no-runs --json job.yaml run.steps=300 \
    'run.checkpoint={dir: again, interval: 10}' >out 2>err &
pid=$!
n=0
while [ $n -lt 300 ] && [ "$(cat log/metrics.jsonl 2>/dev/null | grep -c .)" -lt 30 ]; do sleep 0.05; n=$((n + 1)); done
parent() { sed 's/.*) [A-Z] \([0-9]*\) .*/\1/' "/proc/$1/stat" 2>/dev/null; }
victim=$(for p in /proc/[0-9]*; do
    p=${p#/proc/} up=$(parent "${p#/proc/}")
    [ -n "$up" ] && [ "$(parent "$up")" = "$pid" ] && grep -q disttrain "/proc/$p/cmdline" && echo "$p"
done 2>/dev/null | sort -n | tail -1)
kill -9 "$victim"
wait $pid
check "a restarted job exits with 0" "[ $? -eq 0 ]"
check "it says who died" 'grep -q "rank 1 on .*process $victim.* has died" err'
check "it was restarted once" '[ $(grep -c "restart [0-9] of 2" err) -eq 1 ]'
check "it went on" 'grep -q "\"resumed\": true" out && [ "$(field last_step)" = 300 ]'

# --- how often: at most as often as asked, and never what would be refused again ---
# restarts STATUS STARTS ARGUMENT...: of a launcher that always ends with this status; what is none of ours
# (137: mpirun saw a rank killed) becomes 5
restarts() {
    want=$1 starts=$2; shift 2
    printf '#!/bin/sh\necho "$* gds $PMIX_MCA_gds" >>starts\nexit %d\n' "$want" >launcher
    chmod +x launcher; rm -f starts
    [ "$want" -le 6 ] || want=5
    expect "$want" "" env DISTTRAIN_MPIRUN=./launcher "$DISTTRAIN" train --ranks 2 "$@" --no-runs job.yaml \
        run.checkpoint.dir=again
    check "status $want, $*: $starts starts" '[ $(grep -c "^-np 2 " starts) -eq $starts ]'
}
restarts 5 3 --max-restarts 2
restarts 137 3 --max-restarts=2 --from-scratch
check "all of one run" '[ $(sed "s/.*--run-id=\\([0-9a-f]*\\) .*/\\1/" starts | sort -u | wc -l) -eq 1 ] &&
    grep -q -- "train --run-id=[0-9a-f]\\{32\\} " starts'
restarts 5 1
restarts 2 1 --max-restarts 2

# --- what the launcher is given, unless the user has set it ---
PMIX_MCA_gds=mine; restarts 5 1
check "what is set stays" 'grep -q " gds mine$" starts'
unset PMIX_MCA_gds; restarts 5 1
check "a store without locks" 'grep -q " gds hash$" starts'

totals
