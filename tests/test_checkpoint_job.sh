#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# What of a job a checkpoint holds to: another model, noise or tokenizer is neither gone on with nor evaluated, whatever
# the shapes of tensors say, and the message says what differs; the same said otherwise is the same.
set -u
. "${srcdir:=.}/tests/small_job.sh"
write_small_job 'steps: 2'
train() { # CODE TEXT STEPS [KEY=VALUE...]
    code=$1 text=$2 steps=$3; shift 3
    expect $code "$text" "$DISTTRAIN" train --no-runs job.yaml run.checkpoint.dir=c "run.steps=$steps" "$@"
}
evaluate() { # CODE TEXT [KEY=VALUE...]
    code=$1 text=$2; shift 2
    expect $code "$text" "$DISTTRAIN" eval job.yaml --data two-000000.tar --samples 2 --checkpoint c "$@"
}
llm=model.modules.llm gen=model.modules.generator enc=model.modules.encoder
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.checkpoint.dir=c
rm -rf c0; cp -r c c0

# --- what no tensor's shape tells ---
while read -r key there here; do
    train 2 "another job: .*$there there and $here in the job.*--from-scratch" 4 "$key"
    case $key in $enc*|$gen*) ;; *) evaluate 2 "another job: .*$there there and $here in the job" "$key" ;; esac
done <<END
$llm.heads=4 llm.transformer.heads.is.2 4
$enc.heads=4 encoder.transformer.heads.is.2 4
$gen.head_dim=4 generator.spatial-transformer.heads.is.1 2
$gen.context_len=4 context_len.is.2 4
$llm.activation=relu llm.activation.is.silu relu
$llm.norm_eps=0.1 llm.norm_eps.is.1e-05 0.1
run.noise=linear noise.is.cosine linear
run.noise_steps=10 noise_steps.is.1000 10
END
expect 2 "llm.transformer.heads" "$DISTTRAIN" sample job.yaml --checkpoint c --text "dark" -o s.png $llm.heads=4
expect 2 "llm.transformer.heads is 2" "$DISTTRAIN" train --ranks 2 --no-runs job.yaml run.checkpoint.dir=c run.steps=4 $llm.heads=4
# an encoder without learned positions, with none or with rotary ones; with six digits both thetas would be 1e+06
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml run.checkpoint.dir=d run.steps=1 $enc.positions=0 $llm.rope='{theta: 1000000}'
expect 2 "encoder.*grid_rotary is not stated there and 1 in.*theta is 1000000 there and 1000001 in" "$DISTTRAIN" train --no-runs \
    job.yaml run.checkpoint.dir=d $enc.positions=0 $enc.grid_rotary=true $llm.rope='{theta: 1000001}'

# --- what training alone goes by ---
for key in run.seed=3 train.seq_len=32 train.global_batch=8 train.frozen='[llm]'; do
    train 2 "another job: " 4 "$key"
done
evaluate 0 "" run.seed=3 train.seq_len=32 train.global_batch=8
check "nothing of this changed the checkpoint" 'diff -r c0/step-00000002 c/step-00000002 && [ "$(ls -d c/step-*)" = c/step-00000002 ]'

# --- what is told: another precision, attention that is only planned ---
if has_bf16; then
    rm -rf c; cp -r c0 c
    train 0 "warning: c/step-00000002 was trained in fp32; this goes on in bf16" 3 run.precision=bf16
    train 0 "warning: c/step-00000003 was trained in bf16; this goes on in fp32" 4
    train 0 "resumed" 5
    check "the same precision needs no word" '[ ! -s err ]'
    rm -rf c; cp -r c0 c
fi
expect 0 "warning: module llm: attention: unfused is for simulations" "$DISTTRAIN" train --no-runs job.yaml run.steps=1 $llm.attention=unfused

# --- a habit that is stated is the same ---
train 0 "resumed" 3 $llm.activation=silu $llm.norm_eps=1e-5
evaluate 0 "" $llm.activation=silu $llm.kv_heads=2

# --- tokenizers: by what is in them ---
t=$srcdir/tests/data/tokenizer/gpt2-subset.json
cp "$t" t.json
tokens() { # CODE TEXT TOKENIZER
    expect "$1" "$2" "$DISTTRAIN" train --no-runs job.yaml $llm.vocab=50257 run.checkpoint.dir=t "run.steps=$((n += 1))" "run.tokenizer=$3"
}
n=0; tokens 0 "" t.json
mkdir sub; { cat "$t"; echo; } >sub/other.json
for name in ./t.json "$PWD/t.json" sub/other.json; do tokens 0 "resumed" "$name"; done
sed 's/"Ġ t","Ġ a"/"Ġ a","Ġ t"/' "$t" >t.json # other merges
check "the merges are others" '! cmp -s t.json "$t"'
tokens 2 "tokenizer is [0-9a-f]\{16\} there and [0-9a-f]\{16\} in the job" t.json
expect 2 "tokenizer is" "$DISTTRAIN" eval job.yaml --data two-000000.tar --samples 2 $llm.vocab=50257 --checkpoint t run.tokenizer=t.json
# special ids are named where earlier versions took "<s>" and "</s>" of the text for them
check "special ids that were always these are not named" '! grep -q special_tokens t/step-*/job.json'
expect 0 "" "$DISTTRAIN" train --no-runs job.yaml $llm.vocab=50259 run.checkpoint.dir=q run.steps=1 run.tokenizer="$srcdir/tests/data/tokenizer/qwen2-style.json"
check "those that were others are" 'grep -q "\"special_tokens\": \"bos 50256 eos 50256 pad 50256 image 50256\"" q/step-*/job.json'

# --- checkpoints from before there was job.json: by the digest of then ---
before() { # DIGEST
    rm -rf c; cp -r c0 c; step=c/step-00000002
    rm $step/job.json
    sed -i "s/\"job_digest\": \"[^\"]*\"/\"job_digest\": \"$1\"/" $step/state.json
    crc=$(gzip -c <$step/state.json | tail -c 8 | od -An -tu1 -N4 | awk '{ printf "%02x%02x%02x%02x", $4, $3, $2, $1 }')
    bytes=$(wc -c <$step/state.json)
    awk -v crc="$crc" -v bytes="$bytes" '
        /^    \{/ { entry = $0; next } # of the list of files
        entry != "" { entry = entry "\n" $0 }
        /^    \}/ {
            if (entry ~ /state\.json/) { sub(/"bytes": [0-9]*/, "\"bytes\": " bytes, entry); sub(/crc32": "[0-9a-f]*/, "crc32\": \"" crc, entry) }
            if (entry !~ /job\.json/) { sub(/,$/, "", entry); list = list (list == "" ? "" : ",\n") entry }
            entry = ""; next
        }
        entry == "" { if (list != "") print list; list = ""; print }' c0/step-00000002/manifest.json >$step/manifest.json
}
before bc781b8e-89 # as a build of before wrote it
train 0 "resumed" 3
before bc781b8e-89
train 2 "another model, batch, sequence length, seed or tokenizer" 3 $llm.norm_eps=0.1
evaluate 0 ""
before 00000000-89
train 2 "another model, batch, sequence length, seed or tokenizer" 3
totals
