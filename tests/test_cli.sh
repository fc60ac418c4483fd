#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The command line as a user meets it: help, messages, exit codes, outputs, the runs file.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL: $1"; sed 's/^/    /' "$tmp/out" "$tmp/err" 2>/dev/null | head -20; }
# expect CODE TEXT COMMAND...: exit code CODE, and TEXT (a basic regular expression; "" = any) on stdout or stderr.
expect() {
    code=$1 text=$2; shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    if [ $got -ne "$code" ]; then bad "'$*' exits $got, not $code"; return; fi
    if [ -n "$text" ] && ! cat "$tmp/out" "$tmp/err" | grep -q -- "$text"; then bad "'$*' does not say '$text'"; return; fi
    ok
}
job() { cat >"$tmp/$1"; }

# --- every option of --help is in the man page and in the completion ---
"$DISTTRAIN" completion >"$tmp/completion" || bad "completion"
commands=$("$DISTTRAIN" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ -n "$commands" ] || bad "no commands in --help"
for c in $commands; do
    page="$srcdir/man/disttrain-$c.1"
    [ -f "$page" ] || { bad "no man page for $c"; continue; }
    grep -q "Cm $c" "$srcdir/man/disttrain.1" || bad "$c is not in disttrain.1"
    for o in $("$DISTTRAIN" "$c" --help | sed -n 's/^  .*--\([a-z-]*\).*/\1/p' | sort -u); do
        grep -q "Fl -$o" "$page" || bad "option --$o of $c is not in its man page"
        grep "^ *$c)" "$tmp/completion" | grep -q -- "--$o" || bad "option --$o of $c is not in the completion"
        ok
    done
done
if command -v bash >/dev/null; then expect 0 "" bash -n "$tmp/completion"; fi

# --- usage errors: one message, a suggestion, exit 2 ---
expect 2 "usage: disttrain" "$DISTTRAIN"
expect 2 "did you mean 'simulate'" "$DISTTRAIN" simulat
expect 2 "did you mean --explain" "$DISTTRAIN" plan --explian gpt-tiny
expect 2 "needs a value" "$DISTTRAIN" plan gpt-tiny --top
expect 2 "takes no value" "$DISTTRAIN" plan --explain=1 gpt-tiny
expect 2 "whole number" "$DISTTRAIN" plan --top=x mllm-nano-local
expect 2 "usage: disttrain simulate" "$DISTTRAIN" simulate
expect 2 "unknown option -z" "$DISTTRAIN" simulate -z
for c in data db list runs; do # usage names all actions
    expect 2 "its actions are" "$DISTTRAIN" $c xyzzy
    actions=$(sed 's/.*its actions are //; s/,//g' "$tmp/err")
    expect 0 "usage: disttrain $c " "$DISTTRAIN" $c --help
    [ -n "$actions" ] || bad "no actions of $c"
    for a in $actions; do
        head -n 1 "$tmp/out" | grep -qE "(\] |\| )$a( |\$)" && ok || bad "the usage of $c does not name $a"
    done
done
expect 0 "usage: .* JOB .KEY=VALUE.... | fit PROFILE | import FILE" "$DISTTRAIN" profile --help
expect 2 "not a part" "$DISTTRAIN" reproduce --only z
expect 0 "commands:" "$DISTTRAIN" --help
expect 0 "--explain" "$DISTTRAIN" help plan
expect 0 "^disttrain [0-9]" "$DISTTRAIN" --version

# --- bad jobs: file:line:col ---
expect 2 "no-such-job" "$DISTTRAIN" simulate no-such-job
job typo.yaml <<'J'
model: mllm-nano
cluster: local
samples: {preset: laion-8k}
trian: {global_batch: 8}
J
expect 2 "typo.yaml:4:1: .*did you mean.*train" "$DISTTRAIN" plan "$tmp/typo.yaml"
job type.yaml <<'J'
model: mllm-nano
cluster: local
train: {global_batch: many}
samples: text
J
expect 2 "type.yaml:3:" "$DISTTRAIN" plan "$tmp/type.yaml"
job syntax.yaml <<'J'
model: [mllm-nano
cluster: local
J
expect 2 "syntax.yaml:" "$DISTTRAIN" plan "$tmp/syntax.yaml"
expect 2 "command line" "$DISTTRAIN" plan mllm-nano-local train.global_batch=-3
expect 2 "" "$DISTTRAIN" plan mllm-nano-local not-an-assignment

# a plan that does not go with the batch is refused where it stands
expect 2 "gpt3-175b-1024.yaml:[0-9]*:[0-9]*: .*not a multiple of dp 5" "$DISTTRAIN" plan gpt3-175b-1024 plan.llm.dp=5

# --- where a plan says that a module is, it is ---
job places.yaml <<'J'
model: mllm-9b
cluster: a100
samples: {preset: laion-8k}
profile: a100
train: {global_batch: 8, microbatch: 1, seq_len: 8192}
search: {strategy: manual, allow_analytical: true}
plan:
  encoder: {tp: 1}
  llm: {tp: 8}
  generator: {tp: 1}
J
expect 0 "" "$DISTTRAIN" simulate --no-runs --print-program --lane -1 --json "$tmp/places.yaml"
near=$(grep -o '"module":"[a-z]*","replica":0,"stage":0,"first_gpu":[0-9]*' "$tmp/out" | sed 's/"//g; s/,replica.*first_gpu//' | tr '\n' ' ')
[ "$near" = "module:encoder:8 module:llm:0 module:generator:9 " ] && ok || bad "unstated places: $near"
expect 0 "" "$DISTTRAIN" simulate --no-runs --print-program --lane -1 --json "$tmp/places.yaml" \
    plan.encoder.first_gpu=0 plan.llm.first_gpu=16
far=$(grep -o '"module":"[a-z]*","replica":0,"stage":0,"first_gpu":[0-9]*' "$tmp/out" | sed 's/"//g; s/,replica.*first_gpu//' | tr '\n' ' ')
[ "$far" = "module:encoder:0 module:llm:16 module:generator:1 " ] && ok || bad "stated places: $far"
expect 0 '"first_gpu": 16' "$DISTTRAIN" plan -o - "$tmp/places.yaml" plan.llm.first_gpu=16
cp "$tmp/out" "$tmp/placed.json"
expect 0 '"first_gpu": 16' "$DISTTRAIN" plan -p "$tmp/placed.json" -o - "$tmp/places.yaml"
expect 2 "places.yaml:8:3: .*modules encoder (GPUs 7 to 7) and llm (GPUs 0 to 7) share GPUs" \
    "$DISTTRAIN" simulate --no-runs "$tmp/places.yaml" plan.encoder.first_gpu=7 plan.llm.first_gpu=0
expect 2 "places.yaml:8:3: .*first_gpu 12 is not a multiple of 8" \
    "$DISTTRAIN" plan "$tmp/places.yaml" plan.llm.first_gpu=12
expect 2 "outside cluster" "$DISTTRAIN" plan "$tmp/places.yaml" plan.llm.first_gpu=65536

# shards that are not there: the place that names them
expect 2 "command line:1:[0-9]*: .*none.tar: cannot open" "$DISTTRAIN" train mllm-nano-train "run.data=$tmp/none.tar"

# --- a whole small run ---
expect 0 "timeline \[s\]" "$DISTTRAIN" plan mllm-nano-local
expect 0 "sets the steady interval" "$DISTTRAIN" plan --explain mllm-nano-local
expect 0 "" "$DISTTRAIN" plan -o "$tmp/plan.json" mllm-nano-local
expect 0 '"candidates"' "$DISTTRAIN" plan --json mllm-nano-local
expect 0 "MFU" "$DISTTRAIN" simulate --no-runs mllm-nano-local
[ -s "$tmp/err" ] && bad "stderr is not silent in a pipe"
expect 0 "" "$DISTTRAIN" simulate --no-runs --json mllm-nano-local
for k in iteration_s iteration_s_p10 iteration_s_p90 mfu hfu tokens_per_s samples_per_s gpus gpus_used \
    bubble_fraction exposed_comm_s modules name tp cp ep pp vpp dp utilisation memory_bytes_max provenance \
    measured interpolated extrapolated computed assumed ops wall_s; do
    if grep -q "\"$k\":" "$tmp/out"; then ok; else bad "simulate --json lacks $k"; fi
done
expect 0 "stands out .*/[0-9]*\.[0-9]* takes 1\.[34][0-9]* times as long" "$DISTTRAIN" simulate --no-runs mllm-9b-96 \
    "simulate.slow_gpu={fraction: 0.02, factor: 1.4}"
expect 0 '"took_s": ' "$DISTTRAIN" simulate --no-runs --json mllm-9b-96 "simulate.slow_gpu={fraction: 0.02, factor: 1.4}"
expect 0 "critical \[s\].*rests on" "$DISTTRAIN" simulate --no-runs --explain mllm-nano-local
[ "$(sed -n '/^contribution/,/^the rest/p' "$tmp/out" | wc -l)" -eq 22 ] || bad "--explain does not list twenty"
expect 0 "" "$DISTTRAIN" simulate --no-runs --explain --json mllm-nano-local
for k in samples_s_p10 samples_s_p90 explain contributions what critical_s critical_s_p10 critical_s_p90 \
    critical_share gpu_share family rests_on source families sigma; do
    if grep -q "\"$k\":" "$tmp/out"; then ok; else bad "simulate --explain --json lacks $k"; fi
done
expect 0 " F" "$DISTTRAIN" simulate --no-runs --print-program mllm-nano-local
expect 2 "not a whole number" "$DISTTRAIN" simulate --no-runs --print-program --lane 99999 mllm-nano-local

# --- accuracy: sources apart, constants, hold-out ---
expect 0 "accuracy: megatron/published n=4" "$DISTTRAIN" accuracy
expect 0 "accuracy: megatron/recalled n=4" "$DISTTRAIN" accuracy
if grep -q "accuracy: megatron n=" "$tmp/out"; then bad "recalled rows are counted with published ones"; else ok; fi
expect 0 "" "$DISTTRAIN" accuracy --json --sensitivity --every 4
for k in tables sources source all sensitivity constant mape_less mape_more time_less time_more; do
    if grep -q "\"$k\":" "$tmp/out"; then ok; else bad "accuracy --json lacks $k"; fi
done
# an H800 is an H100 with other links, and predicted as simulate predicts it; as many sources as there are
echo 'layers,hidden,ffn,heads,vocab,seq,gpus,gpu_type,tp,micro_batch,global_batch,measured_iter_s,source' >"$tmp/devices.csv"
for k in 0 1 2 3 4 5 6 7 8 9; do
    echo "32,4096,11008,32,32000,4096,8,H$((k % 2 ? 1 : 8))00,8,1,32,2,s$k"
done >>"$tmp/devices.csv"
cat >"$tmp/h800.yaml" <<'J'
model: {kind: llm, name: llm, layers: 32, hidden: 4096, ffn: 11008, heads: 32, vocab: 32000, gated: true, sequence_parallel: true}
cluster: {preset: h800, nodes: 1}
samples: {preset: text}
profile: h100
train: {global_batch: 32, microbatch: 1, seq_len: 4096, recompute: none, zero: 1, overlap: {grad: true, param: true}, stepccl: false, dispatch: 12 us}
search: {strategy: manual}
plan: {llm: {tp: 8, dp: 1}}
J
expect 0 "note: kernels of H800-SXM5-80GB are those of H100-SXM5-80GB, the same chip" "$DISTTRAIN" accuracy --rows -t "$tmp/devices.csv"
if [ "$(grep -c "^note:" "$tmp/out")" = 1 ]; then ok; else bad "the note of the H800 does not stand there once"; fi
if [ "$(grep -c "^accuracy: devices/s" "$tmp/out")" = 10 ]; then ok; else bad "not all ten sources"; fi
expect 0 '"profile_notes":' "$DISTTRAIN" accuracy -t "$tmp/devices.csv" --json
times=$(sed -n 's/^ *"predicted_s": \([^,]*\),.*/\1/p' "$tmp/out" | uniq | tr '\n' ' ')
expect 0 "" "$DISTTRAIN" simulate --no-runs --json "$tmp/h800.yaml"
# shellcheck disable=SC2086 # one after the other
set -- $times
if [ $# -eq 10 ] && [ "$1" = "$(sed -n 's/^  "iteration_s": \(.*\),/\1/p' "$tmp/out")" ] &&
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(b < 0.8 * a) }'; then ok; else bad "H800 is not as simulate says, or no slower than H100: $times"; fi
printf 'op,phase,dtype,d0,d1,d2,d3,d4,d5,n,median_ns,p10_ns,p90_ns\ngemm,fwd,bf16,64,64,64,0,0,0,1,5000,5000,5000\n' >"$tmp/g.csv"
expect 0 "" "$DISTTRAIN" db import generic "$tmp/g.csv" -o "$tmp/g.db" --device OneOff --source test
expect 2 "no rows of a device that can be fitted" "$DISTTRAIN" accuracy --holdout "$tmp/g.db"
rm -f "$tmp/g.db"
expect 0 "" "$DISTTRAIN" db import generic "$tmp/g.csv" -o "$tmp/g.db" --device A100-SXM4-80GB --source test
expect 2 "the fit of A100-SXM4-80GB needs" "$DISTTRAIN" accuracy --holdout "$tmp/g.db"

# --- a written plan gives the same run; the same run gives the same bytes ---
strip() { sed '/"wall_s"/d; /ops simulated in/d'; }
"$DISTTRAIN" simulate --no-runs --json mllm-nano-local | strip >"$tmp/a"
"$DISTTRAIN" simulate --no-runs --json -p "$tmp/plan.json" mllm-nano-local | strip >"$tmp/b"
"$DISTTRAIN" simulate --no-runs --json mllm-nano-local | strip >"$tmp/c"
if cmp -s "$tmp/a" "$tmp/c"; then ok; else bad "two runs with one seed differ"; fi
if [ "$(grep iteration_s\" "$tmp/a")" = "$(grep iteration_s\" "$tmp/b")" ]; then ok; else bad "plan.json gives another run"; fi

# --- a Hugging Face import says what it took for granted ---
cat >"$tmp/hf.yaml" <<J
model: {name: imported, modules: {llm: {hf: $srcdir/tests/data/hf/gpt2.json}}}
cluster: a100
samples: {preset: text}
profile: a100
train: {global_batch: 16, microbatch: 1, seq_len: 1024}
search: {gpus: 8}
J
expect 0 "assumed:" "$DISTTRAIN" plan "$tmp/hf.yaml"

# --- the runs file ---
expect 0 "" "$DISTTRAIN" simulate --runs "$tmp/runs.db" mllm-nano-local
expect 0 "" "$DISTTRAIN" simulate --runs "$tmp/runs.db" --timeline none mllm-nano-local
expect 2 "auto, all or none" "$DISTTRAIN" simulate --runs "$tmp/runs.db" --timeline some mllm-nano-local
if command -v sqlite3 >/dev/null; then
    [ "$(sqlite3 "$tmp/runs.db" 'SELECT count(*) FROM run')" = 2 ] && ok || bad "runs file does not hold two runs"
    [ "$(sqlite3 "$tmp/runs.db" 'SELECT count(*) > 0 AND count(*) = (SELECT n_ops FROM run WHERE id=1) FROM op WHERE run=1')" = 1 ] &&
        ok || bad "op rows of run 1"
    [ "$(sqlite3 "$tmp/runs.db" 'SELECT count(*) FROM op WHERE run=2')" = 0 ] && ok || bad "op rows of run 2"
fi
echo "not a database, but long enough to be looked at: $(seq 1 200)" >"$tmp/foreign.db"
expect 0 "foreign.db" "$DISTTRAIN" simulate --runs "$tmp/foreign.db" mllm-nano-local
cp "$tmp/plan.json" "$tmp/broken.json"
printf 'x' | dd of="$tmp/broken.json" bs=1 seek=40 conv=notrunc 2>/dev/null
expect 2 "broken.json" "$DISTTRAIN" simulate --no-runs -p "$tmp/broken.json" mllm-nano-local
if [ -w /dev/full ]; then
    "$DISTTRAIN" plan --json mllm-nano-local >/dev/full 2>"$tmp/err"
    if [ $? -eq 1 ]; then ok; else bad "a full disk looks like success"; fi
fi

# --- the picture: one bar for each compute op of replica 0, rows named, a legend, closed tags ---
expect 0 "" "$DISTTRAIN" simulate --no-runs --svg "$tmp/t.svg" mllm-nano-local
if head -c 4 "$tmp/t.svg" | grep -q '<svg' && tail -n 1 "$tmp/t.svg" | grep -q '</svg>'; then ok; else bad "not an SVG"; fi
for what in '>encoder<' '>llm<' '>generator<' '>2 processes<' '>optimizer step<' 'mllm-nano on local' '>0.2 s<'; do
    if grep -q "$what" "$tmp/t.svg"; then ok; else bad "the picture lacks '$what'"; fi
done
drawn=$(grep -c '<title>forward' "$tmp/t.svg")
listed=$("$DISTTRAIN" simulate --no-runs --print-program --lane -1 mllm-nano-local | grep -c '/0\.[0-9]* #[0-9]* F ')
if [ "$drawn" -gt 0 ] && [ "$drawn" = "$listed" ]; then ok; else bad "$drawn forwards drawn, $listed in the program"; fi
expect 1 "cannot create" "$DISTTRAIN" simulate --no-runs --svg "$tmp/no/such/dir.svg" mllm-nano-local
# a guest is drawn on its host's row, and only what is drawn is explained
expect 0 "" "$DISTTRAIN" simulate --no-runs --svg "$tmp/t.svg" mllm-72b-1296 train.schedule=1f1b
for what in 'of 1,280 GPUs, replica 0 of [0-9]*, with encoder<' '<title>recv' '(encoder)</title>' '>30 s<'; do
    if grep -q "$what" "$tmp/t.svg"; then ok; else bad "the picture lacks '$what'"; fi
done
for what in '>weight gradient<' '>encoder<'; do
    if grep -q "$what" "$tmp/t.svg"; then bad "the picture has '$what'"; else ok; fi
done
# in characters: as wide as asked for, colours never in a file
COLUMNS=70 "$DISTTRAIN" simulate --no-runs --timeline-text mllm-nano-local >"$tmp/out"
if grep -q '^generator │.*0.*│$' "$tmp/out" && grep -q 'forward   █ backward' "$tmp/out"; then ok; else bad "no picture in characters"; fi
if grep -q "$(printf '\033')" "$tmp/out"; then bad "colour in a file"; else ok; fi
wide=$(grep '│$' "$tmp/out" | sed 's/[^│]*│\(.*\)│/\1/; s/▒/x/g; s/█/x/g' | awk '{ print length($0) }' | sort -u)
if [ "$wide" = 58 ]; then ok; else bad "bars of $wide columns, not 58"; fi
expect 2 "excludes --json" "$DISTTRAIN" simulate --no-runs --timeline-text --json mllm-nano-local

# --- nothing fits ---
expect 3 "no plan fits" "$DISTTRAIN" plan mllm-72b-96 search.gpus=8

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
