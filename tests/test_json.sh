#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# --json of the commands that print something else by default: one JSON value on stdout with the documented
# members, or one message that says why there is none.
set -u
. "${srcdir:-.}/tests/shell.sh"

# json MEMBERS COMMAND...: exits 0, and stdout is one JSON value with these members
json() {
    members=$1; shift
    expect 0 "" "$@"
    if command -v python3 >/dev/null; then
        check "'$*': stdout is not JSON" 'python3 -c "import json; json.load(open(\"out\"))"'
    fi
    for k in $members; do
        check "'$*' lacks the member $k" "grep -q '\"$k\":' out"
    done
}

# --- a script is no result ---
expect 2 "'disttrain completion' has no --json: it prints a script" "$DISTTRAIN" completion --json
check "a refused --json prints nothing" '[ ! -s out ]'
expect 0 "" "$DISTTRAIN" completion --help
check "completion --help offers no --json" '! grep -q -- --json out'
expect 0 "" "$DISTTRAIN" completion
check "nor does the completion of completion" 'grep "^ *completion)" out | grep -q -- --help && ! grep "^ *completion)" out | grep -q -- --json'

# --- db import, export ---
head='op,phase,dtype,d0,d1,d2,d3,d4,d5,n,median_ns,p10_ns,p90_ns'
printf '%s\ngemm,fwd,bf16,64,64,64,0,0,0,1,5000,5000,5000\n' "$head" >g.csv
json "output rows lines lines_skipped rows_in_all" \
    "$DISTTRAIN" db import generic g.csv -o g.db --device D --source test --json
check "db import --json counts" "grep -q '\"rows_in_all\": 1' out"
json "output rows" "$DISTTRAIN" db export g.db -o g.sql --json
check "db export --json counts" "grep -q '\"rows\": 1' out && [ -s g.sql ]"
expect 2 "both want stdout" "$DISTTRAIN" db export g.db -o - --json
expect 0 "g.sql: 1 row$" "$DISTTRAIN" db export g.db -o g.sql
expect 0 "1 row from 1 line (0 lines skipped), 1 row in all" \
    "$DISTTRAIN" db import generic g.csv -o h.db --device D --source test

# --- data tokens ---
printf 'ab\n\nc' >texts
json "tokenizer texts" "$DISTTRAIN" data tokens texts --json
check "data tokens --json has an array per text" "grep -q '\"texts\":\[\[97,98\],\[\],\[99\]\]' out"

# --- simulate --print-program ---
json "job model lanes groups lane module replica stage first_gpu gpus ops op microbatch deps peer bytes" \
    "$DISTTRAIN" simulate --no-runs --print-program --json mllm-nano-local
check "it lists one lane by default" '[ "$(grep -o "\"lane\":" out | wc -l)" -eq 1 ]'
"$DISTTRAIN" simulate --no-runs --print-program mllm-nano-local >text
check "it lists the ops that the text lists" \
    '[ "$(grep -o "\"op\":" out | wc -l)" -eq "$(wc -l <text)" ] && [ "$(wc -l <text)" -gt 4 ]'
if command -v python3 >/dev/null; then # dependencies lead to ops that are there
    json "" "$DISTTRAIN" simulate --no-runs --print-program --lane -1 --json mllm-nano-local
    cat >refs.py <<'END'
import json
p = json.load(open("out"))
sizes = [len(l["ops"]) for l in p["lanes"]]
refs = [r for l in p["lanes"] for o in l["ops"] for r in o["deps"] + [o["peer"]] if r]
assert len(refs) > len(sizes) and all(at < sizes[lane] for lane, at in refs)
assert all(o["group"] < len(p["groups"]) for l in p["lanes"] for o in l["ops"] if o["group"] is not None)
END
    check "every reference is to an op of the program" 'python3 refs.py'
fi

# --- plan --explain ---
json "plans search" "$DISTTRAIN" plan --json mllm-nano-local
check "plan --json explains nothing unasked" '! grep -q "\"explain\":" out'
json "explain binding_module why modules sample_s ideal_s interval_s slowest_stage gap gpus memory_limit_bytes \
    memory stage blocks params_bytes grads_bytes optimizer_bytes activations_bytes in_flight other_bytes total_bytes" \
    "$DISTTRAIN" plan --json --explain mllm-nano-local
expect 0 "gap of this plan" "$DISTTRAIN" plan --explain llama-70b-96 search.effort=quick
told=$(sed -n 's/.*gap of this plan \([-0-9.]*\) %.*/\1/p' out)
expect 0 '"gap"' "$DISTTRAIN" plan --json --explain llama-70b-96 search.effort=quick
check "the gap is that of the text, $told %: of the best plan's formula to its bound" "
    awk -F'[:,]' '/\"formula_s\"/ && !f { f = \$2 } /\"lower_bound_s\"/ && !b { b = \$2 } /\"gap\"/ { g = \$2 }
        END { d = 100 * g - $told; e = f / b - 1 - g; exit !(d * d < 1e-4 && e * e < 1e-12) }' out"
json "explain gap" "$DISTTRAIN" plan --json --explain mllm-nano-local
check "of a plan without guests it says nothing of bubbles" '! grep -q "\"bubbles\":" out'
json "bubbles by_rule_s placed_s guest_ops moved chain_s work_s unbounded_s idle name" \
    "$DISTTRAIN" plan --json --explain mllm-9b-96 cluster.nodes=2 train.global_batch=16 train.zero=1 search.strategy=manual \
    "plan={encoder: {dp: 8, with: llm}, llm: {tp: 4, pp: 2, dp: 2}, generator: {dp: 8, with: llm}}"
cat >bubbles.py <<'END'
import json
d = json.load(open("out"))
b, plan = d["explain"]["bubbles"], d["plans"][0]
assert abs(b["placed_s"] - plan["timeline_s"]) < 1e-6, (b, plan)
assert b["placed_s"] <= b["by_rule_s"] and b["unbounded_s"] <= b["placed_s"], b
assert max(b["chain_s"], b["work_s"]) <= b["placed_s"] + 1e-9, b
assert b["moved"] <= b["guest_ops"] and (b["moved"] > 0) == (b["placed_s"] < b["by_rule_s"]), b
END
if python3 -c "" 2>/dev/null; then
    check "bubbles are those of the plan" 'python3 bubbles.py'
fi
expect 2 "both want stdout" "$DISTTRAIN" plan --json -o - mllm-nano-local
expect 2 "both want stdout" "$DISTTRAIN" plan --explain -o - mllm-nano-local

# --- trace export ---
expect 0 "" "$DISTTRAIN" simulate --runs runs.db mllm-nano-local
json "format files" "$DISTTRAIN" trace export 1 --runs runs.db --json
check "trace export --json names the file" 'grep -q trace.json out && [ -s trace.json ]'
json "format files" "$DISTTRAIN" trace export 1 --runs runs.db --per-lane lanes --json
check "and each lane's" '[ "$(grep -c lanes/lane- out)" -eq "$(ls lanes | wc -l)" ]'
expect 2 "both want stdout" "$DISTTRAIN" trace export 1 --runs runs.db -o - --json
totals
