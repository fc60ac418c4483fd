#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Every kind of file that the program reads, valid but for a change or three, given to the command that reads
# it: no crash, no hang, a documented exit status, one message with the file's name, nothing left behind
# (tests/mutate.c has the whole list).
# Environment: DISTTRAIN (the program), srcdir (the source directory), DT_MUTATIONS (how many mutants; 112 if not
# given), DT_TEST_SEED (other mutants), DT_MUTANT (one of them alone).
set -u
. "${srcdir:=.}/tests/shell.sh"
build=${DISTTRAIN%/*}
[ -x "$build/tests/mutate" ] && [ -x "$build/tests/test_profile_import" ] ||
    { echo "skipped: $build/tests/mutate is not built"; exit 77; }
corpus=$srcdir/tests/fuzz/corpus
unset DISTTRAIN_TEST

# --- seeds: what the program wrote itself, or what its fuzz targets begin with ---
pack_two_tones
write_small_job 'steps: 2, checkpoint: {dir: saved, interval: 1}'
cp "$srcdir/traces/clusters/local.yaml" cluster.yaml
cp "$srcdir/traces/samples/interleaved-8k.yaml" samples.yaml
sed -n '/^  modules:/,/resize: 8/p' job.yaml | sed 's/^  //' >model.yaml
sed '/^  modules:/,/resize: 8/d; s/^model:/model: m.yaml/' job.yaml >job-model.yaml
cat >job-hf.yaml <<'END'
model: {modules: {llm: {hf: m.json}}}
cluster: a100
samples: text
train: {global_batch: 8, microbatch: 1, seq_len: 128}
search: {allow_analytical: true, strategy: manual}
plan: {llm: {dp: 8}}
END
sed '/^    generator:/,/resize: 8/d; s/^    llm:.*/&\n    generator: {hf: m.json}/' job.yaml >job-unet.yaml
cp "$srcdir/traces/rules/default.yaml" rules.yaml
cp "$srcdir/tests/data/tokenizer/gpt2-subset.json" tokenizer.json
cp "$srcdir/tests/data/hf/llama-2-7b.json" .
sed 's/320/32/; s/640/32/; s/1280/64/; s/^ *\(5\|10\|20\)\(,*\)$/4\2/; s/1024/16/; s/: 4,/: 1,/' \
    "$srcdir/tests/data/hf/sd-2-1-unet.json" >unet.json
cp "$corpus/csv/profile.sql" p.sql
cp "$corpus/nccl/tagged.txt" "$corpus/kineto/first.json" "$corpus/image/base.jpg" "$corpus/image/rgb.png" \
    "$corpus/image/lossy.webp" "$corpus/tar/pax.tar" .
printf 'op,phase,dtype,d0,d1,d2,d3,d4,d5,n,median_ns,p10_ns,p90_ns\ngemm,fwd,bf16,4096,4096,4096,0,0,0,50,5,4,6\n' >table.csv
printf 'a red cat\nzwei Wörter\n\n日本語 🙂 e\314\201\n' >texts
printf 'sample,text_tokens,images,gen_images\n0,37,8x8;8x8,8x8\n1,5,,8x8\n2,5,8x8,\n' >samples.csv
expect 0 "" "$build/tests/test_profile_import" --make .
expect 0 "" "$DISTTRAIN" profile import --device card -o p.db table.csv
expect 0 "" "$DISTTRAIN" plan -o plan.json job.yaml
expect 0 "" "$DISTTRAIN" simulate --runs runs.db job.yaml
expect 0 "" "$DISTTRAIN" train --runs runs.db job.yaml
cp "$srcdir/tests/fuzz/corpus/measured/all.csv" measured.csv
head -n 3 "$srcdir/tests/fuzz/corpus/measured/log.jsonl" >log.jsonl
mkdir pictures
for i in 1 2 3; do cp "$corpus/image/rgb.png" pictures/$i.png; done
printf 'file_name,text\n1.png,a cat\n2.png,"two ""big"" dogs, and\nmore"\n3.png,none\n' >captions.csv
printf '{"file_name": "1.png", "text": "a cat"}\n{"file_name": "2.png", "text": "a \\"dog\\""}\n' >captions.jsonl
sleep 2.2 # old enough for its times to tell: the index is the same whenever it is made
expect 0 "1 index written" "$DISTTRAIN" data index two-000000.tar
[ $failed -eq 0 ] || { totals; exit 1; }
last=$(cat saved/latest); tensors=$(ls "saved/$last" | grep safetensors | head -1)

# sounds: of a model that hears, whose weights are as they were drawn
wav= flac=
cp "$corpus/audio/mono.wav" "$corpus/audio/mono.flac" .
expect 0 "" "$DISTTRAIN" data pack --tones 4 -o heard
if ! "$DISTTRAIN" data scan --mel-bins 128 -o s.csv heard-000000.tar 2>&1 | grep -q "without libsndfile"; then
    hears='encoder: {kind: encoder, modality: audio, mel_bins: 16, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 16, channels: 1}'
    sed "/^    generator:/,/resize: 8/d; s/^    encoder:.*/    $hears/; s/, generator: {}//; s/dir: saved/dir: heard/
        s/two-000000/heard-000000/; s/steps: 2/steps: 1/" job.yaml >hear.yaml
    expect 0 "" "$DISTTRAIN" train --no-runs hear.yaml
    wav="wav mono.wav m.wav j $DISTTRAIN sample --json --audio m.wav hear.yaml"
    flac="flac mono.flac m.flac j $DISTTRAIN sample --json --audio m.flac hear.yaml"
fi

cat >readers <<END
# NAME SEED INTO FLAGS COMMAND...
job job.yaml m.yaml lj $DISTTRAIN plan --json m.yaml
model model.yaml m.yaml jn $DISTTRAIN plan --json job-model.yaml
cluster cluster.yaml m.yaml j $DISTTRAIN plan --json job.yaml cluster=./m.yaml
samples samples.yaml m.yaml lj $DISTTRAIN simulate --no-runs --json job.yaml samples=./m.yaml train.seq_len=8192 model.modules.encoder.patch=16
samples-csv samples.csv m.csv lj $DISTTRAIN simulate --no-runs --json job.yaml samples=./m.csv train.seq_len=128
plan plan.json m.json j $DISTTRAIN simulate --no-runs --json --plan m.json job.yaml
hf llama-2-7b.json m.json j $DISTTRAIN plan --json job-hf.yaml
hf-unet unet.json m.json j $DISTTRAIN plan --json job-unet.yaml
profile-sql p.sql m.sql j $DISTTRAIN db show --json --op gemm m.sql
profile-db p.db m.db j1 $DISTTRAIN db show --json --op gemm m.db
csv table.csv m.csv - $DISTTRAIN profile import --device x -o new.sql m.csv
db-rows table.csv m.csv - $DISTTRAIN db import generic m.csv --device x --source y -o new.sql
rules rules.yaml m.yaml lj $DISTTRAIN profile import --json --rules m.yaml --device x -o new.sql h100.json
kineto h100.json m.json j $DISTTRAIN profile import --json --device x -o new.sql m.json
kineto-2021 first.json m.json j $DISTTRAIN profile import --json --device x -o new.sql m.json
nsys a100.sqlite m.sqlite j $DISTTRAIN profile import --json --device x -o new.sql m.sqlite
nccl tagged.txt m.txt j $DISTTRAIN profile import --json --device x -o new.sql m.txt
runs runs.db m.db j1 $DISTTRAIN compare --json --anyway --runs m.db 1 2
runs-list runs.db m.db j1 $DISTTRAIN runs list --json --runs m.db
runs-show runs.db m.db j1 $DISTTRAIN runs show --json --runs m.db 2
measured measured.csv m.csv lj $DISTTRAIN compare --json --anyway --runs runs.db 1 m.csv
log log.jsonl m.jsonl j $DISTTRAIN runs plot --json m.jsonl
runs-trace runs.db m.db 1 $DISTTRAIN trace export --runs m.db -o t.json 2
tokenizer tokenizer.json m.json - $DISTTRAIN data tokens --tokenizer m.json texts
texts texts m.txt - $DISTTRAIN data tokens --tokenizer tokenizer.json m.txt
tar two-000000.tar m.tar j $DISTTRAIN data scan --json -o s.csv --seq-len 64 m.tar
tar-fail two-000000.tar m.tar j $DISTTRAIN data scan --json -o s.csv --seq-len 64 --on-bad fail m.tar
tar-pax pax.tar m.tar j $DISTTRAIN data scan --json -o s.csv --seq-len 64 --text-only m.tar
shard-index .disttrain-index/two-000000.tar.index .disttrain-index/two-000000.tar.index jr $DISTTRAIN data scan --json -o s.csv --seq-len 64 two-000000.tar
captions captions.csv m.csv - $DISTTRAIN data pack --replace --captions m.csv -o new pictures
captions-jsonl captions.jsonl m.jsonl - $DISTTRAIN data pack --replace --captions m.jsonl -o new pictures
idx images m.idx - $DISTTRAIN data pack --replace --idx m.idx --labels labels --label-names dark,light -o new
idx-labels labels m.idx - $DISTTRAIN data pack --replace --idx images --labels m.idx --label-names dark,light -o new
jpeg base.jpg m.jpg j $DISTTRAIN sample --json --image m.jpg job.yaml
png rgb.png m.png j $DISTTRAIN sample --json --image m.png job.yaml
webp lossy.webp m.webp j $DISTTRAIN sample --json --image m.webp job.yaml
$wav
$flac
manifest saved/$last/manifest.json saved/$last/manifest.json jd $DISTTRAIN sample --json --image rgb.png job.yaml
safetensors saved/$last/$tensors saved/$last/$tensors jd $DISTTRAIN sample --json --image rgb.png job.yaml
latest saved/latest saved/latest jd $DISTTRAIN sample --json --image rgb.png job.yaml
END
# --- what mutants found: quotes of files are plain text on one line, and the file that is wrong is named ---
printf 'op,phase,dt\377\033[2J\342\200\256ype\n' >odd.csv
expect 2 "odd.csv:1: .*the header is op,phase,dt??\[2J?ype" "$DISTTRAIN" db import generic odd.csv --device x --source y -o no.db
{ cat p.sql; printf "'[\n\n[[%0400d" 0; } >odd.sql
expect 2 "odd.sql:" "$DISTTRAIN" db show odd.sql
check "one short line of SQL" '[ "$(wc -l <err)" -eq 1 ] && [ "$(wc -c <err)" -lt 300 ]'
sed '/hbm_bandwidth/d' cluster.yaml >odd.yaml
expect 2 'cluster ./odd.yaml: key "hbm_bandwidth" is missing' "$DISTTRAIN" plan job.yaml cluster=./odd.yaml
printf 'modules: {e: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 4, channels: 1, positions: 4}}\n' >odd.yaml
expect 2 "model ./odd.yaml: has no LLM" "$DISTTRAIN" plan job.yaml model=./odd.yaml
rm -f odd.*
[ $failed -eq 0 ] || { totals; exit 1; }

"$build/tests/mutate" readers "${DT_MUTATIONS:-112}"
