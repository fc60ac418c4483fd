#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The completions of bash, zsh and fish at work, as far as the shells are installed; disttrain list and show.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
mkdir bin; ln -s "$DISTTRAIN" bin/disttrain; PATH=$PWD/bin:$PATH; export PATH

# ---- list ----
for kind in models clusters jobs samples profiles; do
    expect 0 "" "$DISTTRAIN" list $kind
    check "$kind: no warning" '[ ! -s err ]'
    cp out table
    expect 0 "" "$DISTTRAIN" list $kind --names
    case $kind in profiles) ext=sql ;; *) ext=yaml ;; esac
    check "$kind: all of them" '[ "$(ls "$srcdir/traces/$kind" | sed -n "s/\.$ext\$//p" | LC_ALL=C sort)" = "$(cat out)" ] && [ -s out ]'
    check "$kind: a line of facts each" '[ "$(sed 1d table | awk "{print \$1}")" = "$(cat out)" ]'
    expect 0 "" "$DISTTRAIN" list $kind --json
    check "$kind: in JSON" '[ "$(grep -c "^      \"name\"" out)" = "$(sed 1d table | wc -l)" ] && grep -q "^  \"$kind\": \[" out'
done
expect 0 "^mllm-72b  *model  *70.561  *encoder .*, llm .*, generator " "$DISTTRAIN" list models
expect 0 "^a800-1296  *A800-SXM4-80GB  *1296  *162 of 8  *312  *79.33 " "$DISTTRAIN" list clusters
expect 2 "list has no action 'model'; did you mean 'models'" "$DISTTRAIN" list model
mkdir -p mine/clusters; cp "$srcdir/traces/clusters/a100.yaml" mine/clusters/ours.yaml; echo 'nodes: [' >mine/clusters/broken.yaml
expect 0 "^ours " env DISTTRAIN_TRACES="$PWD/mine" "$DISTTRAIN" list clusters
check "a broken one is named and hides none" 'grep -q "warning: broken is left out: .*broken.yaml:" err && grep -q "^a800-96 " out'

# ---- show ----
cat >job.yaml <<'END'
model: mllm-nano
cluster: {preset: local, gpus_per_node: 8}
samples: text
train:
  global_batch: 16
  seq_len: 512
  recompute: full
search: {allow_analytical: true}
END
from() { sed -n "s,^$1  *$2  *,,p" out; } # KEY VALUE: the rest of its row
expect 0 "" "$DISTTRAIN" show job.yaml train.seq_len=256 model.llm.layers=3
check "the job" '[ "$(from train.global_batch 16)" = "job           job.yaml:5" ]'
check "the command line" 'from train.seq_len 256 | grep -q "^command line" && from model.llm.layers 3 | grep -q "^command line"'
check "a name that became part of a map is the job's" '[ "$(from model.preset mllm-nano)" = "job           job.yaml:1" ]'
check "a preset" '[ "$(from cluster.nodes 1)" = "preset        clusters/local.yaml:$(grep -n "^nodes:" "$srcdir/traces/clusters/local.yaml" | cut -d: -f1)" ]'
check "over it" 'from cluster.gpus_per_node 8 | grep -q "^job  *job.yaml:2" && [ "$(grep -c "^cluster.gpus_per_node " out)" = 1 ]'
check "a preset inside a preset" 'from model.llm.hidden "[0-9]*" | grep -q "^preset  *models/mllm-nano.yaml:"'
check "a default" 'from train.stepccl true | grep -q "^default" && from search.strategy disttrain | grep -q "^default"'
check "the search" 'from train.reorder.inter "[a-z]*" | grep -q "^search" && from plan.llm "tp.* = [0-9]*" | grep -q "^search"'
check "what is stated is not searched for" 'from train.recompute full | grep -q "^job"'
check "no warning" '[ ! -s err ]'
layout=$(sed -n 's/^plan.llm  *\(.*\)  *search *$/\1/p' out | sed 's/ *$//')
expect 0 "" "$DISTTRAIN" plan job.yaml train.seq_len=256 model.llm.layers=3
check "the plan that the search finds" 'grep -q "llm  *$layout\|$layout" out'
expect 0 '"from": "command line"' "$DISTTRAIN" show --json job.yaml train.seq_len=256
check "lines in JSON" 'grep -A3 "\"key\": \"train.global_batch\"" out | tr -d "\n" | grep -q "\"from\": \"job\",  *\"file\": \"job.yaml\",*" &&
    grep -A4 "\"key\": \"train.global_batch\"" out | grep -q "\"line\": 5"'
expect 0 "" "$DISTTRAIN" show --no-search job.yaml
check "open" 'from train.reorder.inter open | grep -q "^search" && ! grep -q "^plan\." out'
expect 0 "warning: what the search decides is open: " "$DISTTRAIN" show job.yaml "cluster.memory=200 MB" model.llm.layers=64 model.llm.hidden=2048
expect 0 "" "$DISTTRAIN" plan -o plan.json job.yaml
expect 0 "^plan.llm  .*plan file  *plan.json" "$DISTTRAIN" show --plan plan.json job.yaml
expect 2 "unknown key" "$DISTTRAIN" show job.yaml train.sequence=3
# what a change derives anew is shown as it is built, and what it leaves as it is stated
echo '{kind: llm, layers: 2, hidden: 64, ffn: 128, heads: 4, kv_heads: 2, head_dim: 32, vocab: 264}' >grouped.yaml
echo '{kind: llm, layers: 2, hidden: 64, ffn: 128, heads: 4, kv_heads: 4, head_dim: 16, vocab: 264}' >plain.yaml
echo '{kind: unet, channels: [32, 64], time_dim: 96, head_dim: 16, context_len: 8, context_dim: 64}' >stated.yaml
echo '{kind: unet, channels: [32, 64], time_dim: 128, head_dim: 16, context_len: 8, context_dim: 64}' >followed.yaml
shown() { # LLM GENERATOR
    printf '%s\n' "model: {modules: {llm: {preset: $1.yaml, heads: 8}, generator: {preset: $2.yaml, channels: [64, 64]}}}" \
        "cluster: local" "samples: text" "train: {global_batch: 2, seq_len: 64}" "search: {allow_analytical: true}" >changed.yaml
    expect 0 "" "$DISTTRAIN" show --no-search changed.yaml
}
shown grouped stated
check "grouped heads stay" 'from model.llm.kv_heads 2 | grep -q "^preset" && from model.llm.head_dim 32 | grep -q "^preset"'
check "a width that was stated stays" 'from model.generator.time_dim 96 | grep -q "^preset"'
shown plain followed
check "as many as heads" 'from model.llm.kv_heads 8 | grep -q "^derived" && from model.llm.head_dim 8 | grep -q "^derived"'
check "four times the channels" 'from model.generator.time_dim 256 | grep -q "^derived"'

# ---- bash ----
expect 2 "completion has no action 'tcsh'; its actions are bash, zsh, fish" "$DISTTRAIN" completion tcsh
"$DISTTRAIN" completion bash >bash.sh; "$DISTTRAIN" completion zsh >_disttrain; "$DISTTRAIN" completion fish >fish.fish
check "bash without a name" '"$DISTTRAIN" completion | cmp -s - bash.sh'
if command -v bash >/dev/null; then
    in_bash() {
        bash -c '. ./bash.sh; COMP_WORDS=(disttrain "$@"); COMP_CWORD=$#; _disttrain; printf "%s\n" "${COMPREPLY[@]}"' bash "$@" 2>/dev/null
    }
    check "bash: a job" '[ "$(in_bash plan mllm-72b-12)" = mllm-72b-1296 ]'
    check "bash: a cluster" '[ "$(in_bash plan job.yaml cluster = a800-1)" = a800-1296 ]'
    check "bash: a preset of a map" '[ "$(in_bash plan job.yaml samples.preset = laion)" = laion-8k ]'
    check "bash: a module" '[ "$(in_bash plan job.yaml model.llm.preset = llama-13)" = llama-13b ]'
    check "bash: actions" '[ "$(in_bash runs "" | tr "\n" " ")" = "list show rm prune tag plot " ] && [ "$(in_bash list pro)" = profiles ]'
fi

# ---- zsh: by a terminal of its own, as it completes for people ----
if command -v zsh >/dev/null; then
    check "zsh: it parses" 'zsh -n _disttrain'
    cat >in.zsh <<'END'
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "cd $PWD; PS1=; fpath=(\$PWD \$fpath); autoload -U compinit; compinit -u -d \$PWD/dump; print -r -- rea''dy"
zpty -r -m z line '*ready*'
zpty -n -w z "disttrain $1"$'\t'
sleep $2
zpty -n -w z $'\C-a'"print -r -- 'GOT:"$'\C-e'":END'"$'\n'
zpty -r -m z line $'*\nGOT:*:END*'
zpty -d z
print -r -- "$line"
END
    # TEXT EXPECTED: what a tab makes of it; a machine at work gets more time
    in_zsh() {
        for wait in 0.3 3; do
            completed=$(timeout 60 zsh -f in.zsh "$1" $wait 2>/dev/null | tr -d '\r' |
                sed -n 's/^GOT:disttrain \(.*\):END.*/\1/p' | tail -n 1)
            [ "$completed" != "$2" ] || return 0
        done
        echo "$completed"; return 1
    }
    check "zsh: a command" 'in_zsh simu simulate'
    check "zsh: a job" 'in_zsh "plan mllm-72b-12" "plan mllm-72b-1296"'
    check "zsh: a strategy" 'in_zsh "simulate --strategy mega" "simulate --strategy megatron-lm"'
    check "zsh: a key" 'in_zsh "plan j train.sch" "plan j train.schedule="'
    check "zsh: a word" 'in_zsh "plan j train.schedule=gp" "plan j train.schedule=gpipe"'
    check "zsh: a preset" 'in_zsh "plan j cluster=a800-1" "plan j cluster=a800-1296"'
    check "zsh: an action" 'in_zsh "runs pru" "runs prune"'
    check "zsh: an option" 'in_zsh "compare --jun" "compare --junit"'
else
    echo "no zsh: its completion is not tested"
fi

# ---- fish ----
if command -v fish >/dev/null; then
    in_fish() { HOME=$tmp fish --no-config -c 'source fish.fish; complete -C "$argv[1]"' "disttrain $1" 2>/dev/null | cut -f 1; }
    check "fish: it parses" 'HOME=$tmp fish --no-config -n fish.fish'
    check "fish: a command" '[ "$(in_fish simu)" = simulate ]'
    check "fish: a job" 'in_fish "plan mllm-72b-12" | grep -qx mllm-72b-1296'
    check "fish: a strategy" '[ "$(in_fish "simulate --strategy mega")" = megatron-lm ]'
    check "fish: a key" 'in_fish "plan j train.sch" | grep -qx train.schedule='
    check "fish: a word" 'in_fish "plan j train.schedule=gp" | grep -qx train.schedule=gpipe'
    check "fish: a preset" 'in_fish "plan j cluster=a800-1" | grep -qx cluster=a800-1296'
    check "fish: an action" '[ "$(in_fish "runs pru")" = prune ]'
    check "fish: an option" 'in_fish "compare --jun" | grep -qx -- --junit'
else
    echo "no fish: its completion is not tested"
fi
totals
