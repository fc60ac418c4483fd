#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain report: pages are well-formed, need nothing from outside, and say what the runs file says.
. "${srcdir:-.}/tests/shell.sh"
. "$srcdir/tests/small_job.sh"

# value KEY FILE: what a page says of KEY, as it was before rounding
value() { grep -o "<data value=\"[^\"]*\" data-key=\"$1\"" "$2" | head -n 1 | sed 's/<data value="\([^"]*\)".*/\1/'; }
# member KEY FILE: of the JSON of a report
member() { sed -n "s/^ *\"$1\": \([^,]*\),*$/\1/p" "$2" | head -n 1; }
same() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d * d <= 1e-18 * b * b) }'; }
well_formed() {
    if command -v xmllint >/dev/null; then
        check "$1 is well-formed" "xmllint --noout --nonet $1 2>out"
    else
        echo "no xmllint: whether $1 is well-formed is not checked"
    fi
}

expect 0 "" "$DISTTRAIN" simulate --json mllm-nano-local
cp out nano.json
expect 0 "wrote nano.html" "$DISTTRAIN" report last -o nano.html
well_formed nano.html
for key in iteration_s iteration_s_p10 iteration_s_p90 tokens_per_s mfu gpus_used bubble_fraction; do
    check "$key is that of the JSON" "same '$(value $key nano.html)' '$(member $key nano.json)'"
done

# kinds of time are the whole, and what does not compute is what the JSON calls so
grep -o '<data value="[^"]*" data-key="spent-[0-9]*"' nano.html | sed 's/<data value="\([^"]*\)" data-key="spent-\([0-9]*\)"/\2 \1/' >spent
check "kinds of time sum to 1" "awk '{ s += \$2 } END { exit !(s > 0.999999 && s < 1.000001) }' spent"
compute=$(awk '$1 < 4 { s += $2 } END { printf "%.12f", 1 - s }' spent)
check "the rest of computation is the JSON's bubbles" \
    "awk 'BEGIN { d = $compute - $(member bubble_fraction nano.json); exit !(d * d < 1e-12) }'"

# a slower kernel makes a slower iteration, and nothing is far off in the first order
more=$(grep '<th scope="row">time of matrix products</th>' nano.html | grep -o 'data value="[^"]*" data-key="input-[0-9]*-more"' | sed 's/data value="\([^"]*\)".*/\1/')
check "longer products take longer" "awk 'BEGIN { x = \"$more\"; exit !(x != \"\" && x > 0.01 && x < 0.101) }'"

# a sensitivity is what simulating the same plan with the other value gives, contention of links and all
expect 0 "" "$DISTTRAIN" plan mllm-15b-96 -o 15b.plan.json
expect 0 "" "$DISTTRAIN" simulate --runs 15b.db --json mllm-15b-96 -p 15b.plan.json cluster.nic_latency=30us
expect 0 "" "$DISTTRAIN" report --runs 15b.db last -o 15b.html
nic=$(grep '<th scope="row">bandwidth of a NIC</th>' 15b.html | grep -o 'data value="[^"]*" data-key="input-[0-9]*-less"' | sed 's/data value="\([^"]*\)".*/\1/')
expect 0 "" "$DISTTRAIN" simulate --no-runs --json mllm-15b-96 -p 15b.plan.json cluster.nic_latency=30us 'cluster.nic_bandwidth=22.5 GB/s'
check "a slower NIC as simulated" "awk -v a='$(value iteration_s 15b.html)' -v b='$(member iteration_s out)' 'BEGIN { d = a * (1 + $nic) / b - 1; exit !(d * d < 1e-16) }'"
check "and that is not nothing" "awk 'BEGIN { exit !($nic > 0.0001) }'"

# Entrain's assignment stands beside samples as they come, which no assignment reorders
entrain="$DISTTRAIN simulate mllm-3b-entrain-64 search.strategy=manual simulate.contention=false"
layouts='plan={encoder: {tp: 2, dp: 16}, llm: {tp: 2, dp: 16}}'
expect 0 "" $entrain "$layouts" --no-runs --json train.assignment=slots train.reorder=none
given=$(member iteration_s out)
expect 0 "" $entrain "$layouts" --runs entrain.db --json train.assignment=entrain
gain=$(awk "BEGIN { printf \"%+.2f\", 100 * ($(member iteration_s out) / $given - 1) }")
expect 0 "" "$DISTTRAIN" report --runs entrain.db last -o entrain.html
check "what Entrain's assignment gains: $gain %" 'grep -qF "($gain %; predicted)" entrain.html && [ "${gain%.*}" -lt -10 ]'
check "it has a name" 'grep -q "Reordering of samples: Entrain.*s assignment" entrain.html'

# guests lie on some replicas only, those of each module on another one
expect 0 "" "$DISTTRAIN" simulate --runs guests.db --json mllm-9b-96 cluster.nodes=4 train.global_batch=32 train.microbatch=1 \
    train.recompute=selective train.zero=1 train.schedule=1f1b train.reorder=none search.strategy=manual \
    'plan={llm: {tp: 8, dp: 4}, encoder: {dp: 8, with: llm, first_gpu: 8}, generator: {dp: 8, with: llm, first_gpu: 16}}'
full=$(awk "BEGIN { printf \"%.1f\", $(member memory_max_bytes out) / 1073741824 }")
expect 0 "" "$DISTTRAIN" report --runs guests.db last -o guests.html
check "the fullest GPU has its guests: $full GiB" 'grep -q "fullest GPU</dt><dd>$full GiB<" guests.html'
rows=$(sed 's/<[^>]*>/|/g' guests.html | grep -c '^.*|llm replica [12]|.*|[0-9.]*|')
check "rows of both replicas with guests, in memory, too" '[ "$rows" -ge 2 ]'
check "bars of both modules" 'grep -q "(encoder)</title>" guests.html && grep -q "(generator)</title>" guests.html'

# a guest that is cut as its host is: one name for the GPUs of both wherever they are named, the host first, from the runs file, too
expect 0 "" "$DISTTRAIN" simulate --runs alike.db mllm-nano-local search.strategy=manual \
    'plan={encoder: {with: llm, pp: 2}, llm: {pp: 2}, generator: {with: llm}}'
expect 0 "" "$DISTTRAIN" report --runs alike.db last -o alike.html
for stage in 0 1; do
    check "time of stage $stage" 'grep -q "<th scope=\"col\" class=\"n\">llm + encoder stage $stage \[%\]" alike.html'
    check "memory of stage $stage" 'grep -q "<th scope=\"row\">llm + encoder stage $stage<" alike.html'
done
check "no other names" '! grep -q "scope=[^>]*>\(encoder + \|encoder stage\|llm stage\)" alike.html'

# optimizer steps of the host are no computation of GPUs, on the page and in the JSON
offload="$DISTTRAIN simulate --runs offload.db --json mllm-9b-96 cluster.nodes=4 cluster.host_memory=500GB search.strategy=manual"
offload="$offload train.global_batch=32 train.microbatch=1 train.recompute=selective train.zero=1 train.schedule=1f1b"
layouts='plan={llm: {tp: 4, pp: 2, dp: 4}, encoder: {dp: 4}, generator: {dp: 4}}'
expect 0 "" $offload "$layouts" cluster.nodes=5
none=$(member bubble_fraction out)
expect 0 "" $offload "$layouts" cluster.nodes=5 train.offload=optimizer
bubbles=$(member bubble_fraction out)
expect 0 "" "$DISTTRAIN" report --runs offload.db last -o offload.html --kept-only
compute=$(for k in 0 1 2 3; do value spent-$k offload.html; done | awk '{ s += $1 } END { print s }')
check "GPUs are idle while hosts step: $bubbles, not $none" "awk 'BEGIN { exit !($bubbles > $none + 0.02) }'"
check "the page says so" "awk 'BEGIN { d = 1 - $compute - $bubbles; exit !(d * d < 1e-9) }'"
check "it has a kind of its own" 'grep -q "optimizer steps of hosts, and" offload.html'

# other plans stand beside the run as they are simulated, not as the search estimates them
expect 0 "" "$DISTTRAIN" plan --json mllm-9b-96 search.budget=500
check "the search has left some untimed" 'grep -q "\"timeline_s\": 0,*$" out'
expect 0 "" "$DISTTRAIN" simulate --runs 9b.db mllm-9b-96 search.budget=500
expect 0 "" "$DISTTRAIN" report --runs 9b.db last -o 9b.html
cat >rows.awk <<'EOF'
function keys(list, what,  n, i, part, a, out) { # "encoder full, llm none" or "none" -> train.WHAT=...
    n = split(list, part, ", ")
    if (n == 1) return what "=" list
    for (i = 1; i <= n; i++) { split(part[i], a, " "); out = out (i > 1 ? ", " : "") a[1] ": " a[2] }
    return what "={" out "}"
}
{
    n = split($2, module, "; ")
    for (i = 1; i <= n; i++) {
        k = split(module[i], word, " ")
        out = ""
        for (w = 2; word[w] != "="; w++) {
            if (word[w] !~ /[0-9]$/) { # "with llm:", "window all": a key and its value
                value = word[w + 1]
                sub(":", "", value)
                out = out word[w++] ": " value ", "
                continue
            }
            match(word[w], /[0-9]+$/)
            out = out substr(word[w], 1, RSTART - 1) ": " substr(word[w], RSTART) ", "
        }
        sub(/, $/, "", out)
        plan = plan (i > 1 ? ", " : "") word[1] ": {" out "}"
    }
    match($3, /recompute .*, ZeRO /)
    recompute = substr($3, RSTART + 10, RLENGTH - 17)
    zero = substr($3, RSTART + RLENGTH)
    sub(/, reorder .*/, "", zero)
    split($3, mode, ", microbatch ")
    sub(/,.*/, "", mode[2])
    print "plan={" plan "}"; print "train.schedule=" mode[1]; print "train.microbatch=" mode[2]
    print keys(recompute, "train.recompute"); print keys(zero, "train.zero")
    print "train.reorder={intra: " ($3 ~ /reorder intra/ ? "true" : "false") ", inter: " ($3 ~ /inter$/ ? "true" : "false") "}"
}
EOF
sed -n '/Next-best/,/<\/table>/p' 9b.html | tr -d '\n' | sed 's/<tr/\n<tr/g' | grep 'data-key="next-' >raw
sed 's/<\/t[hd]>/|/g; s/<[^>]*>//g' raw >rows
check "several plans" '[ "$(grep -c . rows)" -ge 5 ]'
n=0
while read -r line; do
    n=$((n + 1))
    shown=$(sed -n ${n}p raw | grep -o 'data value="[^"]*" data-key="next' | sed 's/data value="\([^"]*\)".*/\1/')
    echo "$line" | awk -F'|' -f rows.awk >keys
    set --; while read -r k; do set -- "$@" "$k"; done <keys
    # blocks may be split a little otherwise, and then need more memory; the estimate of the untimed one is off by a quarter
    set -- "$@" cluster.memory="200 GB"
    expect 0 "" "$DISTTRAIN" simulate --no-runs --json mllm-9b-96 search.strategy=manual "$@"
    check "plan $n takes $shown s: $(member iteration_s out)" \
        "awk -v a='$shown' -v b='$(member iteration_s out)' 'BEGIN { exit !(a > 0.99 * b && a < 1.01 * b) }'"
    # its samples are reordered as is best for it
    expect 0 "" "$DISTTRAIN" simulate --no-runs --json mllm-9b-96 search.strategy=manual "$@" train.reorder=auto
    check "plan $n takes $shown s, at its best $(member iteration_s out)" \
        "awk -v a='$shown' -v b='$(member iteration_s out)' 'BEGIN { exit !(a < 1.01 * b) }'"
done <rows

# sources of a cluster's numbers are what its file says of each
source_of() { grep "<th scope=\"row\">$1</th>" "$2" | sed 's/<[^>]*>/|/g'; }
check "a source of two lines" 'source_of "link inside a node, of a device and direction" 15b.html |
    grep -q "160 GB/s.*8 NVLink3 links.*per link and direction on SM80 (NCCL src/graph tables, published) (clusters/a800-1296.yaml:16)"'
check "of the line above" 'source_of "of it usable" 15b.html | grep -q "94 %.*23.5 of 25 GB/s that SimAI uses.*(clusters/a800-1296.yaml:"'
check "a comment is about all keys behind it" 'source_of "bandwidth of a device.*memory" 15b.html | grep -q "A800 datasheet figures"'
check "memory is what CUDA reports" 'source_of "memory of a device" 15b.html | grep -q "what CUDA reports"'
check "what the job states" 'source_of "latency between nodes" 15b.html | grep -q "30 us.*stated by the job"'

# nothing from outside; the policy would not let it
check "no other file is named" '! grep -oE "(src|href)=|url\(|@import|https?://[^\" ]*" nano.html | grep -v "^http://www.w3.org/"'
check "the page's policy lets nothing in" "grep -q \"default-src 'none'\" nano.html"
for what in 'One iteration' 'Where the time goes' Memory Stragglers 'Next-best plans' Sensitivity 'Largest contributions' \
    'Assumptions and their sources' 'What the predicted time rests on' 'they give the same iteration'; do
    check "the page has '$what'" "grep -q '$what' nano.html"
done
ids=$(grep -o ' id="[^"]*"' nano.html | sort | uniq -d)
check "no id is there twice" '[ -z "$ids" ]'

# what comes from outside is text
expect 0 "" "$DISTTRAIN" report last -o evil.html --kept-only --title '</title><script>alert(1)</script>&"'
well_formed evil.html
check "a title cannot be a script" '[ "$(grep -c "<script" evil.html)" = 1 ] && grep -q "&lt;script&gt;alert" evil.html'
check "what was not worked out is said" 'grep -q "not on this page: the page shows what the run keeps" evil.html'

# 1,296 GPUs: within bounds
expect 0 "" "$DISTTRAIN" simulate --timeline all --json mllm-72b-1296
cp out 72b.json
expect 0 "" "$DISTTRAIN" report 2 -o 72b.html --kept-only
well_formed 72b.html
check "less than 3 MB" '[ "$(wc -c <72b.html)" -lt 3000000 ]'
check "the iteration is that of the JSON" "same '$(value iteration_s 72b.html)' '$(member iteration_s 72b.json)'"
check "rows say what they stand for" 'grep -q "[0-9]* of 1,280 GPUs, replica 0 of [0-9]" 72b.html'

# several runs
expect 0 "" "$DISTTRAIN" simulate -s megatron-lm mllm-nano-local
expect 0 "" "$DISTTRAIN" report 1 3 -o two.html --kept-only
well_formed two.html
check "the runs stand side by side" 'grep -q "<h2>Side by side</h2>" two.html && grep -q "run 3</th>" two.html'
ids=$(grep -o ' id="[^"]*"' two.html | sort | uniq -d)
check "no id is there twice, of two runs" '[ -z "$ids" ]'
check "it is said whether the work is the same" 'grep -q "run 3 had the same work to do as run 1" two.html'
check "two timelines, one scale" '[ "$(grep -o "data-end-ns=\"[0-9]*\"" two.html | sort | uniq -c | awk "{ print \$1 }")" = 2 ]'

# a run without ops has no timeline; a job whose files are gone has no predictions, and the page says why
expect 0 "" "$DISTTRAIN" simulate --timeline none mllm-nano-local
expect 0 "" "$DISTTRAIN" report last -o none.html
well_formed none.html
check "no ops, no timeline" 'grep -q "The run has kept no ops" none.html && ! grep -q "dt-time\" x=" none.html'
sed 's/^ *samples:.*/samples: mine.csv/' "$srcdir/traces/jobs/mllm-nano-local.yaml" >gone.yaml
printf 'text_tokens\n512\n512\n512\n512\n512\n512\n512\n512\n' >mine.csv
if "$DISTTRAIN" simulate gone.yaml >out 2>err; then
    mv mine.csv away.csv
    expect 0 "" "$DISTTRAIN" report last -o gone.html
    check "what is gone is named" 'grep -q "not on this page: .*mine.csv" gone.html'
    well_formed gone.html
else
    bad "a job with samples of its own does not simulate"
fi

# an executed run: measured, and predictions said to be such
pack_two_tones
write_small_job "steps: 2"
expect 0 "" "$DISTTRAIN" train job.yaml
expect 0 "" "$DISTTRAIN" report last -o train.html
well_formed train.html
check "measured is called measured" 'grep -q "<strong>measured</strong>" train.html && grep -q "The last iteration of the run, measured" train.html'
check "the rest is called predicted" 'grep -q "What follows is predicted" train.html || grep -q "not on this page" train.html'
check "who executed the lanes is said" 'grep -q "1 process executed the lanes of 4 in turn" train.html'
check "processes are no GPUs" '! grep -q "GPUs used" train.html'

expect 0 "" "$DISTTRAIN" simulate job.yaml
expect 0 "" "$DISTTRAIN" report last-1 last -o both.html --kept-only
well_formed both.html
check "other samples are other work" 'grep -q "had other work to do" both.html'

# a sweep: charts over GPUs, a table with the reasons of what does not fit
expect 0 "" "$DISTTRAIN" whatif mllm-72b-96 --vary search.gpus=8,96,192 --vary cluster.nodes=12,24
expect 0 "" "$DISTTRAIN" report --sweep 0 -o sweep.html
well_formed sweep.html
check "all points are there" '[ "$(grep -c "<tr><th scope=\"row\">" sweep.html)" = 6 ]'
check "what does not fit says why" 'grep "search.gpus=8" sweep.html | grep -q "no plan fits"'
check "it has charts with a front" 'grep -q "id=\"sweep-mfu-t\"" sweep.html && grep -q "dt-ring" sweep.html'
check "no price, no money" '! grep -q -i money sweep.html'
# with a price: what 10^9 tokens cost, from the numbers of the points
expect 0 "" "$DISTTRAIN" whatif mllm-9b-96 --gpus 32,64,96 cluster.price_per_gpu_hour=2 --csv priced.csv
expect 0 "" "$DISTTRAIN" report --sweep 0 -o priced.html
well_formed priced.html
check "a chart of money" 'grep -q "id=\"sweep-money-t\"" priced.html'
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i; next }
    { printf "%.2f\n", 1e9 / ($c["tokens_per_s"] * $c["goodput"]) / 3600 * $c["gpus"] * 2 }' priced.csv >costs
sed -n 's/.*data-key="money">\([0-9.]*\)<.*/\1/p' priced.html >shown
check "money is that of all GPUs: $(tr '\n' ' ' <shown)" '[ "$(grep -c . shown)" = 3 ] && cmp -s costs shown'
expect 2 "not of both" "$DISTTRAIN" report --sweep 0 last
expect 2 "needs a run" "$DISTTRAIN" report

expect 2 "no run" "$DISTTRAIN" report 99
expect 1 "cannot create" "$DISTTRAIN" report 1 --kept-only -o no/such/page.html
expect 0 "<!DOCTYPE html>" "$DISTTRAIN" report 1 --kept-only -o -
totals
