#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# simulate.preprocess: what it prints where, what it refuses and where, and that mode none is as if it were not there.
. "${srcdir:=.}/tests/shell.sh"
sim() { expect 0 "" "$DISTTRAIN" simulate --no-runs "$@" search.effort=quick; }
searched() { expect 0 "" "$DISTTRAIN" simulate --no-runs "$@"; }
value() { sed -n "s/^.*\"$1\": \([-0-9.e+]*\).*/\1/p" out | head -1; }
holds() { check "$1" "awk 'BEGIN { exit !($2) }'"; }
p=simulate.preprocess

# ---- none is nothing ----
sim --json mllm-9b-96; sed '/wall_s/d' out >without
sim --json mllm-9b-96 $p.mode=none; sed '/wall_s/d' out >none
check "mode none changes nothing" 'cmp -s without none && [ -s none ]'
check "and has no member" '! grep -q preprocess none'

# ---- cores that are too few are waited for, by name ----
slow="$p={mode: colocated, cores_per_node: 1, prefetch: 0}"
big="samples.distribution.image_side={kind: uniform, min: 1000, max: 1024}"
searched --json mllm-9b-96 "$slow"
colocated=$(value exposed_s)
fed=$(value fed_s) all=$(value iteration_s)
holds "$colocated s are exposed" "$colocated > 0 && $colocated < $all"
holds "the iteration is longer by them" "$all - $fed - $colocated < 1e-6 && $all - $fed - $colocated > -1e-6"
searched --explain mllm-9b-96 "$slow"
check "the report says so" 'grep -q "^waits for data .* s   longer than with all data there (colocated)" out'
check "with what rates" 'grep -q "^preprocessing .* of a core (assumed rates)" out'
check "and explains it" 'grep -q "waiting for data" out && grep -q simulate.preprocess out'
sim --svg line.svg mllm-9b-96 "$slow"
check "the picture has it" 'grep -qi "data" line.svg'
expect 0 "" "$DISTTRAIN" simulate --runs runs.db mllm-9b-96 "$slow"
expect 0 "" "$DISTTRAIN" trace export --runs runs.db -o trace.json 1
expect 0 "" "$DISTTRAIN" report --runs runs.db -o page.html 1
check "and the page" 'grep -q "waiting for input data" page.html'
check "the trace has it" 'grep -q fetch trace.json'

sim --json mllm-9b-96 "$p={mode: colocated, cores_per_node: 1, prefetch: 64}"
check "iterations have begun to repeat, with as much made ahead as may be" 'grep -q "\"settled\": true" out'

# ---- enough CPU nodes are not ----
sim --json mllm-9b-96 "$p={mode: disaggregated, cpu_nodes: 2, cores_per_cpu_node: 64, rpc_latency: 20 us}"
holds "with CPU nodes less is exposed" "$(value exposed_s) < $colocated / 10"
nodes=$(value cpu_nodes_needed)
holds "nodes are seconds of a core over cores and the iteration" \
    "$nodes * 64 * $(value fed_s) / $(value core_s) > 0.999999 && $nodes * 64 * $(value fed_s) / $(value core_s) < 1.000001"
holds "what they send has a size" "$(value bytes) > 1e6"
expect 0 "nodes of 64 cores keep 96 GPUs fed, if the links do$" "$DISTTRAIN" plan mllm-9b-96 \
    "$p={mode: disaggregated, cpu_nodes: 2, cores_per_cpu_node: 64}"
expect 0 '"cores_needed": [0-9]' "$DISTTRAIN" plan --json mllm-9b-96 "$p={mode: colocated, cores_per_node: 8}"


# ---- colocated cores work for their own node alone: the one that fetches the most sets how many each must have ----
resized() { # CORES
    sim --json mllm-15b-1296 model.encoder.resize=224 'train.frozen=[encoder]' search.placement=own search.effort=quick \
        "samples={distribution: {image_side: {kind: constant, value: 1024}, aspect_sigma: 0, text_tokens: {kind: constant, value: 315, max: 315}, min_side: 1024, max_side: 1024, generate: 0}}" \
        "$p={mode: colocated, cores_per_node: $1}"
}
resized 24
each=$(value cores_per_node_needed) waits=$(value exposed_s) fed=$(value fed_s)
holds "$each cores of a node for $fed s: 24 take longer in proportion" \
    "$waits > 0.1 && $fed * ($each / 24 - 1) / $waits > 0.95 && $fed * ($each / 24 - 1) / $waits < 1.05"
holds "as many on each node that fetches" "$(value cores_needed) / $(value nodes_fetching) / $each > 0.999999 && $(value cores_needed) / $(value nodes_fetching) / $each < 1.000001"
cores=$(awk "BEGIN { print int($each) + 1 }")
resized "$cores"
holds "$cores are enough" "$(value exposed_s) < 0.01 * $fed"
sim mllm-9b-96 "$p={mode: colocated, cores_per_node: 8, prefetch: 0}"
check "without prefetch none are" 'grep -q "keep 96 GPUs fed, if batches are made ahead (prefetch is 0)$" out'

# ---- a link that is too slow is named, whatever the cores: it takes as long as the iteration then ----
thin="$p={mode: disaggregated, cpu_nodes: 2, cores_per_cpu_node: 64, rpc_bandwidth: 10 Mb/s}"
sim --json mllm-9b-96 "$thin"
holds "the busiest link sets the iteration" \
    "$(value link_s) / $(value iteration_s) > 0.99 && $(value link_s) / $(value iteration_s) < 1.01"
sim mllm-9b-96 "$thin"
check "and is named" 'grep -q "^busiest link .* s   for what one node gets of a batch: GPUs wait for it.*rpc_bandwidth" out'

# ---- measured rates ----
pack_two_tones
write_small_job "steps: 1"
expect 0 "Mpixel/s a core" "$DISTTRAIN" profile --data job.yaml -o cpu.sql
expect 0 "" "$DISTTRAIN" profile --data --json --samples 7 job.yaml -o cpu.db
check "as many samples as asked for" 'grep -q "\"images\": 7," out && grep -q "\"captions\": 7," out'
expect 0 "cpu_prep" "$DISTTRAIN" db show cpu.sql
check "three rows, of what was timed" "[ $(grep -c '^([0-9]*,[123],1000000,0,0,0,0,40,[0-9.e+]*,' cpu.sql) = 3 ]"
expect 2 "no run: map" "$DISTTRAIN" profile --data mllm-nano-local
expect 2 "names producers" "$DISTTRAIN" profile --data job.yaml run.data=tcp://127.0.0.1:9
two="$p={mode: colocated, cores_per_node: 8"
sim --json mllm-9b-96 "$two}"
assumed=$(value core_s)
# half the assumed rates, so twice the work
sed -e 's/^(\([0-9]*\),1,1000000,0,0,0,0,40,.*\([,;]\)$/(\1,1,210000,0,0,0,0,1,2e6,2e6,2e6)\2/' \
    -e 's/^(\([0-9]*\),2,1000000,0,0,0,0,40,.*\([,;]\)$/(\1,2,400000,0,0,0,0,1,2e6,2e6,2e6)\2/' \
    -e 's/^(\([0-9]*\),3,1000000,0,0,0,0,40,.*\([,;]\)$/(\1,3,54000,0,0,0,0,1,2e6,2e6,2e6)\2/' cpu.sql >half.sql
sim --json mllm-9b-96 "$two, profile: $PWD/half.sql}"
holds "the profile's rates are used" "$(value core_s) / $assumed > 1.9999 && $(value core_s) / $assumed < 2.0001"
check "and are said to be measured" 'grep -q "\"measured\": true" out'
# a node that falls behind a little in each iteration, and so much ahead that it takes hundreds to show
rated() { # NANOSECONDS: of a million units
    sed -e "s/^(\\([0-9]*\\),\\([123]\\),1000000,0,0,0,0,40,.*\\([,;]\\)$/(\\1,\\2,1000000,0,0,0,0,1,$1,$1,$1)\\3/" cpu.sql >slow.sql
}
rated 40000000
sim --json mllm-9b-96 "$p={profile: $PWD/slow.sql, mode: colocated, cores_per_node: 1}"
rated "$(awk -v need="$(value cores_per_node_needed)" 'BEGIN { printf "%d", 1.03 * 40000000 / need }')"
behind="profile: $PWD/slow.sql, mode: colocated, cores_per_node: 1"
sim --json mllm-9b-96 "$p={$behind, prefetch: 64}"
check "what has not come to repeat is said" 'grep -q "\"settled\": false" out'
far=$(value exposed_s)
sim mllm-9b-96 "$p={$behind, prefetch: 64}"
check "in the report, too" 'grep -q "^ *iterations had not begun to repeat yet: they may still change" out'
sim --json mllm-9b-96 "$p={$behind, prefetch: 2}"
check "with little made ahead it has" 'grep -q "\"settled\": true" out'
holds "and the time is the same" "$far > 0.1 && $far - $(value exposed_s) < 1e-6 && $far - $(value exposed_s) > -1e-6"
grep -v '^([0-9]*,1,1000000' cpu.sql | sed "s/'points','3'/'points','2'/" >lacks.sql
expect 2 "no row of cpu_prep 1 (decode)" "$DISTTRAIN" simulate --no-runs mllm-9b-96 "$two, profile: $PWD/lacks.sql}"

# ---- sound: ten-second clips at 90 s a second; a profile must have its rate where a model hears ----
sim --json mllm-audio-64 "$two}"
holds "clips cost time" "$(value core_s) > 64 * 10 * 10 / 90"
expect 2 "no row of cpu_prep 4 (sound)" "$DISTTRAIN" simulate --no-runs mllm-audio-64 "$two, profile: $PWD/half.sql}"
expect 0 "" "$DISTTRAIN" data pack --tones 8 -o tones-train
if "$DISTTRAIN" data scan --mel-bins 128 -o s.csv tones-train-000000.tar 2>&1 | grep -q "without libsndfile"; then
    echo "no libsndfile: nothing is measured"
else
    expect 0 "8 sounds" "$DISTTRAIN" profile --data mllm-nano-audio -o sound.sql
    expect 0 '"sound_s_per_s": [1-9]' "$DISTTRAIN" profile --data --json mllm-nano-audio -o sound.sql
    check "a row of sound" "[ $(grep -c '^([0-9]*,4,1000000,0,0,0,0,8,[0-9.e+]*,' sound.sql) = 1 ]"
fi

# ---- refused, at its place ----
cat >wrong.sh <<'END'
sed "s/^simulate:.*/simulate: {preprocess: {$1}}/" job.yaml >wrong.yaml
END
"$DISTTRAIN" keys >/dev/null
cp "$srcdir/traces/jobs/mllm-9b-96.yaml" job.yaml
grep -q '^simulate:' job.yaml || echo 'simulate: {}' >>job.yaml
line=$(grep -n '^simulate:' job.yaml | cut -d: -f1)
refused() { # KEYS COLUMN TEXT
    sh wrong.sh "$1"
    expect 2 "wrong.yaml:$line:$2: .*$3" "$DISTTRAIN" simulate --no-runs wrong.yaml
}
refused "mode: colocatde" 31 'unknown value "colocatde"; did you mean "colocated"'
refused "mode: colocated" 24 "mode colocated needs cores_per_node"
refused "mode: disaggregated, cpu_nodes: 2" 24 "mode disaggregated needs cores_per_cpu_node"
refused "mode: colocated, cores_per_node: 0" 58 "cores_per_node"
refused "mode: colocated, cores_per_node: 2, cpu_nodes: 4" 72 "cpu_nodes counts with mode: disaggregated; the mode is colocated"
refused "reads: slot" 32 "reads counts with mode: colocated"
refused "prefetch: 4" 35 "prefetch counts with mode: colocated or disaggregated; the mode is none"
refused "profile: absent.sql, mode: none" 34 "absent.sql"
refused "mode: none, prefetch: 4" 47 "prefetch counts with mode"
refused "rpc_bandwidth: 1 GB" 40 "rpc_bandwidth"
refused "mode: colocated, cores_per_node: 2, prefetch: 65" 71 "prefetch"
refused "cores: 2" 25 'unknown key "cores"'
refused "profile: absent.sql" 34 "absent.sql"
totals
