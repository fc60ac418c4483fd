#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain data: pack, scan, tokens, and the CSV in the planner's hands.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/shell.sh"
skipped=0

# --- usage ---
expect 2 "pack, index, scan, tokens" "$DISTTRAIN" data frob
expect 2 "needs -o PREFIX" "$DISTTRAIN" data pack .
expect 2 "folders, or --idx" "$DISTTRAIN" data pack -o x
expect 2 "data scan needs shards" "$DISTTRAIN" data scan
expect 2 "none.tar: cannot open" "$DISTTRAIN" data scan none.tar
expect 2 "skip or fail" "$DISTTRAIN" data pack . -o x --on-bad ignore
expect 2 "crop or stretch needs --side" "$DISTTRAIN" data scan none.tar --fit crop
expect 2 "train or test" "$DISTTRAIN" data pack -o x --fashion-mnist all
expect 2 "dataset-fashion-mnist" "$DISTTRAIN" data pack -o x --fashion-mnist train --dir "$tmp"
expect 2 "needs --labels" "$DISTTRAIN" data pack -o x --idx images

# --- IDX: three pictures of 5 x 6, labels 1 0 2 ---
printf '\000\000\010\003\000\000\000\003\000\000\000\005\000\000\000\006' >images
awk 'BEGIN { for (i = 0; i < 90; i++) printf "%c", 65 + i % 50 }' >>images
printf '\000\000\010\001\000\000\000\003\001\000\002' >labels
expect 0 "x-\*.tar: 3 samples in 2 shards" "$DISTTRAIN" data pack -o x --idx images --labels labels \
    --label-names cat,dog,emu --shard-samples 2
check "the first caption" '[ "$(tar xOf x-000000.tar 00000000.txt)" = "a photo of a dark dog, compact" ]'
check "the first label" '[ "$(tar xOf x-000000.tar 00000000.cls)" = 1 ]'
check "members" '[ "$(tar tf x-000001.tar | tr "\n" " ")" = "00000002.png 00000002.txt 00000002.cls " ]'
gzip -k images labels
expect 0 "" "$DISTTRAIN" data pack -o y --idx images.gz --labels labels.gz --label-names cat,dog,emu --shard-samples 2
check "gzip makes no difference" 'cmp -s x-000000.tar y-000000.tar && cmp -s x-000001.tar y-000001.tar'
expect 0 "1 captions that are not" "$DISTTRAIN" data pack -o z --idx images --labels labels --label-names cat,dog
expect 2 "label 2" "$DISTTRAIN" data pack --replace -o z --idx images --labels labels --label-names cat,dog --on-bad fail
expect 0 '"samples": 2' "$DISTTRAIN" data pack --replace -o z --json --limit 2 --idx images --labels labels --label-names cat,dog,emu
head -c 60 images >short
expect 2 "truncated" "$DISTTRAIN" data pack -o z --idx short --labels labels --label-names cat,dog,emu

# --- folders ---
mkdir -p in/sub
tar xf x-000000.tar -C in
mv in/00000001.png in/sub/b.png && mv in/00000001.txt in/sub/b.txt
cp in/00000000.png in/lonely.png
head -c 50 in/00000000.png >in/cut.png && echo cut >in/cut.txt
expect 0 "f-\*.tar: 2 samples in 1 shard" "$DISTTRAIN" data pack -o f in
check "reports the missing caption" 'grep -q "without a caption.*lonely.png" out'
check "reports the corrupt image" 'grep -q "truncated, corrupt.*cut.png" out'
expect 2 "in/" "$DISTTRAIN" data pack -o g in --on-bad fail
check "no half shard is left" '[ -z "$(ls g-* 2>/dev/null)" ]'

# --- under a prefix that has shards ---
three="--idx images --labels labels --label-names cat,dog,emu"
expect 0 "3 samples in 3 shards" "$DISTTRAIN" data pack -o old $three --shard-samples 1
cp old-000000.tar old-000000.was
cp old-000000.tar old-1-000000.tar && cp old-000000.tar old-00000.tar
expect 2 "old-00000[012].tar: there are shards of this prefix, .*(--replace)" "$DISTTRAIN" data pack -o old $three
check "they are as they were" 'cmp -s old-000000.tar old-000000.was && [ "$(ls old-00000?.tar | wc -l)" = 3 ]'
expect 2 "in/" "$DISTTRAIN" data pack --replace -o old in --shard-samples 1 --on-bad fail
expect 2 "label 2" "$DISTTRAIN" data pack --replace -o old --idx images --labels labels --label-names cat,dog --shard-samples 1 --on-bad fail
check "a pack that fails midway changes nothing" 'cmp -s old-000000.tar old-000000.was && [ "$(ls old-00000?.tar* | wc -l)" = 3 ]'
expect 0 "3 samples in 2 shards" "$DISTTRAIN" data pack --replace -o "$tmp/old" $three --shard-samples 2
check "what there are no new ones for is gone" '[ "$(echo old-*.tar)" = "old-00000.tar old-000000.tar old-000001.tar old-1-000000.tar" ] && cmp -s old-000001.tar x-000001.tar'
rm -f old-000001.tar && mkdir old-000001.tar
expect 2 "old-000001.tar: this is a folder" "$DISTTRAIN" data pack --replace -o old $three --shard-samples 1
rm -rf old-*

# --- names that are equal, or become so ---
mkdir -p cats dogs alike
for dir in cats dogs; do cp in/00000000.png $dir/img.png; printf "$dir" >$dir/img.txt; done
expect 0 "2 samples in 1 shard" "$DISTTRAIN" data pack -o names cats dogs/
check "of several folders" '[ "$(tar tf names-000000.tar | tr "\n" " ")" = "1/img.png 1/img.txt 2/img.png 2/img.txt " ] && [ "$(tar xOf names-000000.tar 2/img.txt)" = dogs ]'
check "none is bad" '[ "$(wc -l <out)" = 1 ]'
for name in a.b a.b2 a_b a_b_3; do cp in/00000000.png alike/$name.png; printf "$name" >alike/$name.txt; done
cp alike/a_b.png alike/a_b.webp
expect 0 "4 samples in 1 shard" "$DISTTRAIN" data pack -o alike alike
check "of one" '[ "$(tar tf alike-000000.tar | grep txt | tr "\n" " ")" = "a_b.txt a_b2.txt a_b_2.txt a_b_3.txt " ] && [ "$(tar xOf alike-000000.tar a_b_2.txt)" = a_b ]'
check "of one that has the same caption" 'grep -q "1 samples damaged.*alike/a_b.webp: another file has this name but for its extension" out'
printf 'file_name,text\na.b.png,1\na_b.png,2\na_b.webp,3\n' >alike.csv
expect 0 "3 samples in 1 shard" "$DISTTRAIN" data pack --replace -o alike --captions alike.csv alike
check "each has the caption that is listed for it" '[ "$(for k in a_b a_b_2 a_b_3; do tar xOf alike-000000.tar $k.txt; done)" = 123 ]'

# --- captions in one file ---
mkdir -p pics/sub
cp in/00000000.png pics/a.b.png; cp in/00000000.png pics/sub/c.png; cp in/00000000.png pics/none.png
printf 'id,file_name,text\n1,a.b.png,"a ""red"" cat, sitting"\n2,sub/c.png,two dogs\n3,gone.png,nothing\n4,none.png, \n' >c.csv
expect 0 "c-\*.tar: 2 samples in 1 shard" "$DISTTRAIN" data pack -o c --captions c.csv pics
check "an image that is not there" 'grep -q "1 samples without an image or a sound, for instance c.csv:4:3: gone.png is in none of the folders" out'
check "a caption that is empty" 'grep -q "1 empty captions, for instance c.csv:5:3: the caption of none.png is empty" out'
check "the captions" '[ "$(tar xOf c-000000.tar a_b.txt)" = "a \"red\" cat, sitting" ] && [ "$(tar xOf c-000000.tar sub/c.txt)" = "two dogs" ]'
check "nothing else is packed" '[ "$(tar tf c-000000.tar | tr "\n" " ")" = "a_b.png a_b.txt sub/c.png sub/c.txt " ]'
printf '{"img": "a.b.png", "cap": "a cat"}\n{"img": "none.png", "cap": "n"}\n' >c.jsonl
expect 0 '"no_caption": 1' "$DISTTRAIN" data pack --json -o d --captions c.jsonl --name-key img --caption-key cap pics
check "an image without a caption is named" 'grep -q "pics/sub/c.png: c.jsonl has no caption for it" out'
check "JSON lines" '[ "$(tar xOf d-000000.tar a_b.txt)" = "a cat" ]'
expect 2 "the caption of none.png is empty" "$DISTTRAIN" data pack --replace -o d --captions c.csv --on-bad fail pics
expect 2 "c.jsonl:1:1: no text \"file_name\" in this line (--name-key" "$DISTTRAIN" data pack -o d --captions c.jsonl pics
expect 2 "c.csv:1:1: no column \"caption\"; the first line names id, file_name, text" "$DISTTRAIN" data pack -o d --captions c.csv --caption-key caption pics
expect 2 "caption-key needs --captions" "$DISTTRAIN" data pack -o d --caption-key x pics
expect 2 "captions is for folders" "$DISTTRAIN" data pack -o d --captions c.csv --idx images --labels labels --label-names a,b,c
expect 0 "" "$DISTTRAIN" data pack --replace -o d --captions c.csv --limit 1 pics
check "what the limit leaves out is not missing" '! grep -q "without an image" out'

# --- videos ---
mkdir -p vids/walk/no.1 vids/run
for i in 2 0 1 10; do cp in/00000000.png "vids/walk/no.1/frame$i.png"; done
for i in 1 2 3; do cp in/00000000.png "vids/run/x-$i.png"; done
printf 'walking' >vids/walk/no.1.txt
printf 'running' >vids/run.txt
expect 0 "v-\*.tar: 2 samples in 1 shard" "$DISTTRAIN" data pack --videos -o v vids
check "frames in the order of their numbers" '[ "$(tar tf v-000000.tar | tr "\n" " ")" = "run.000001.png run.000002.png run.000003.png run.txt walk/no_1.000000.png walk/no_1.000001.png walk/no_1.000002.png walk/no_1.000010.png walk/no_1.txt " ]'
expect 0 "" "$DISTTRAIN" data pack --videos -o w --frame-stride 2 --frames-max 1 vids
check "fewer of them" '[ "$(tar tf w-000000.tar | tr "\n" " ")" = "run.000001.png run.txt walk/no_1.000000.png walk/no_1.txt " ]'
printf 'file_name,text\nrun,they run\n' >v.csv
expect 0 "vids/walk/no.1: v.csv has no caption for it" "$DISTTRAIN" data pack --replace --videos -o w --captions v.csv vids
check "the caption of a folder" '[ "$(tar xOf w-000000.tar run.txt)" = "they run" ]'
cp in/00000000.png vids/run/y-3.png
cp in/00000000.png vids/stray.png
expect 0 "1 sample in 1 shard" "$DISTTRAIN" data pack --replace --videos -o w vids
check "two frames of a number" 'grep -q "2 samples damaged.*vids/run/[xy]-3.png: a second frame of this number" out'
expect 2 "frames-max needs --videos" "$DISTTRAIN" data pack --frames-max 3 -o w vids
rm vids/run/y-3.png vids/stray.png
expect 0 "" "$DISTTRAIN" data scan --unpacked --generate 0.9 --no-shuffle --seq-len 64 --frames-max 2 v-000000.tar -o s.csv
check "frames are images to read" '[ "$(sed "/^#/d" s.csv | sed 1d | tr "\n" " ")" = "0,9,6x5;6x5,,11 1,9,6x5;6x5,,11 " ]'

# --- scan ---
expect 0 "sample,text_tokens,images,gen_images,seq_tokens" "$DISTTRAIN" data scan --seq-len 64 'x-{000000..000001}.tar'
expect 0 "rows from 3 of 3 samples" "$DISTTRAIN" data scan --seq-len 64 -o s.csv --on-bad skip --generate 0 x-000000.tar x-000001.tar
expect 0 "" "$DISTTRAIN" data scan --unpacked --generate 0 --no-shuffle --seq-len 64 x-000000.tar x-000001.tar -o s.csv
check "a row per sample" '[ "$(sed "/^#/d" s.csv | tr "\n" " ")" = "sample,text_tokens,images,gen_images,seq_tokens 0,32,6x5,,33 1,32,6x5,,33 2,32,6x5,,33 " ]'
for threads in 0 1 3; do
    "$DISTTRAIN" data scan --seq-len 80 --seed 7 --threads $threads x-000000.tar x-000001.tar f-000000.tar >s$threads.csv
done
check "threads make no difference" 'cmp -s s0.csv s1.csv && cmp -s s0.csv s3.csv'
expect 0 '"damaged_shards": 0' "$DISTTRAIN" data scan --json --seq-len 64 -o s.csv x-000000.tar
head -c 3000 x-000000.tar >cut.tar
expect 0 "shards truncated or damaged" "$DISTTRAIN" data scan --seq-len 64 -o s.csv cut.tar x-000001.tar
expect 2 "cut.tar: damaged" "$DISTTRAIN" data scan --seq-len 64 -o s.csv cut.tar x-000001.tar --on-bad fail
printf 'no tar at all\n' >text.tar
expect 2 "no samples in the shard: text.tar: not a tar archive" "$DISTTRAIN" data scan text.tar
: >empty.tar
expect 2 "no samples in the shard: empty.tar: not a tar archive" "$DISTTRAIN" data scan empty.tar
expect 2 "no samples in any of the shards: text.tar: not a tar" "$DISTTRAIN" data scan text.tar empty.tar
mkdir -p hidden && tar cf nothing.tar hidden
expect 2 "nothing.tar: this tar archive holds no samples" "$DISTTRAIN" data scan nothing.tar
gzip -k x-000000.tar
expect 2 "decompress it first" "$DISTTRAIN" data scan x-000000.tar.gz

# --- kept indexes ---
check "few samples leave no index behind" '[ ! -e .disttrain-index ]'
expect 0 "3 samples in 2 shards: 0 found in an index, 2 passed over, 2 indexes written" "$DISTTRAIN" data index x-000000.tar x-000001.tar
check "an index for each" '[ "$(ls .disttrain-index | tr "\n" " ")" = "x-000000.tar.index x-000001.tar.index " ]'
expect 0 '"found": 2,' "$DISTTRAIN" data index --json x-000000.tar x-000001.tar
expect 0 "" "$DISTTRAIN" data scan --seq-len 64 x-000000.tar x-000001.tar -o with.csv
expect 0 "" "$DISTTRAIN" data scan --index none --seq-len 64 x-000000.tar x-000001.tar -o without.csv
expect 0 "" "$DISTTRAIN" data scan --index kept-by-scan --seq-len 64 x-000000.tar x-000001.tar -o s.csv
check "a folder that is named is used for few samples, too" '[ "$(ls kept-by-scan | wc -l)" -eq 2 ] && cmp -s s.csv without.csv'
check "an index makes no difference" 'cmp -s with.csv without.csv'
cp x-000000.tar m.tar && cp .disttrain-index/x-000000.tar.index .disttrain-index/m.tar.index
expect 0 "1 index was damaged, or of a shard that has changed" "$DISTTRAIN" data index m.tar
cp f-000000.tar m.tar
expect 0 "2 samples in 1 shard: 0 found in an index, 1 passed over, 1 index written" "$DISTTRAIN" data index m.tar
expect 0 "in $tmp/kept/here" "$DISTTRAIN" data index --index "$tmp/kept/here" m.tar
expect 1 "x-000000.tar/kept: cannot make this folder" "$DISTTRAIN" data index --index x-000000.tar/kept m.tar
expect 2 "would do nothing" "$DISTTRAIN" data index --index none m.tar
expect 2 "data index needs shards" "$DISTTRAIN" data index
expect 0 "0 indexes written" "$DISTTRAIN" data index cut.tar
rm -rf m.tar .disttrain-index
# what came with the data is not followed
mkdir .disttrain-index && echo precious >precious && ln -s ../precious .disttrain-index/x-000000.tar.index
mkfifo .disttrain-index/x-000001.tar.index
XDG_CACHE_HOME=$tmp/cache; export XDG_CACHE_HOME
limit_s=20 expect 0 "" "$DISTTRAIN" data scan --seq-len 64 x-000000.tar x-000001.tar -o s.csv
check "a link in the folder of indexes is left alone" '[ "$(cat precious)" = precious ] && [ -L .disttrain-index/x-000000.tar.index ]'
check "and so is a pipe" '[ -p .disttrain-index/x-000001.tar.index ]'
rm -rf .disttrain-index && mkdir elsewhere && ln -s elsewhere .disttrain-index
expect 0 "" "$DISTTRAIN" data index x-000000.tar
check "and a folder that is a link" '[ -z "$(ls elsewhere)" ]'
rm -rf .disttrain-index elsewhere cache; unset XDG_CACHE_HOME
# files that would be one sample
mkdir twins && cp "$(find . -name '*.png' | head -n 1)" twins/x.png 2>/dev/null && cp twins/x.png twins/x.webp && echo two >twins/x.txt
if [ -e twins/x.png ]; then
    expect 0 "another file has this name but for its extension" "$DISTTRAIN" data pack -o twin twins
    expect 0 "from 1 of 1 sample" "$DISTTRAIN" data scan --seq-len 8192 twin-000000.tar -o s.csv
fi
expect 2 "audio-max is of sounds" "$DISTTRAIN" data scan --audio-max 5 x-000000.tar

# --- the planner reads what the scan wrote ---
expect 0 "" "$DISTTRAIN" data scan --seq-len 512 x-000000.tar x-000001.tar -o p.csv
expect 0 "timeline" "$DISTTRAIN" plan mllm-nano-local samples="{csv: $tmp/p.csv}"

# --- scanned for a job whose encoder makes a token of 2 x 2 patches of 14 pixels ---
mkdir big && for i in 0 1 2 3 4 5 6 7 8 9; do
    w=$((70 + 8 * i))
    { printf '\000\000\010\003\000\000\000\001\000\000\000\160\000\000\000'; printf "\\$(printf %03o $w)"; head -c $((112 * w)) /dev/zero; } >images
    printf '\000\000\010\001\000\000\000\001\000' >labels
    "$DISTTRAIN" data pack --replace -o one --idx images --labels labels --label-names cat >out 2>err && tar xf one-000000.tar -C big
    mv big/00000000.png big/$i.png; rm big/00000000.*; printf 'picture number %d' $i >big/$i.txt
done
expect 0 "10 samples" "$DISTTRAIN" data pack -o big big
cat >big.yaml <<'END'
model:
  modules:
    encoder: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 14, merge: 2, positions: 257}
    llm: {kind: llm, layers: 1, hidden: 16, ffn: 32, heads: 2, vocab: 264}
cluster: local
samples: {csv: big.csv}
train: {global_batch: 2, microbatch: 1, seq_len: 128, recompute: none}
search: {strategy: manual, allow_analytical: true}
plan: {colocated: true}
run: {data: big-000000.tar, steps: 1, shuffle: false, threads: 1, precision: fp32}
END
expect 0 "rows from 10 of 10 samples" "$DISTTRAIN" data scan --job big.yaml -o big.csv big-000000.tar
# documents of 18 tokens and those of the image fill sequences until one does not fit
awk 'function end() { print text "," list >"packed"; print used >"filled"; used = text = 0; list = "" }
    BEGIN { for (i = 0; i < 10; i++) {
        w = 70 + 8 * i; n = 18 + 4 * int((w + 27) / 28)
        if (used + n > 128) end()
        used += n; text += 18; list = list (list == "" ? "" : ";") w "x112"
    } end() }'
check "rows are filled with as many tokens as the model makes" 'sed "1,2d" big.csv | cut -d, -f2,3 | cmp -s - packed'
check "the patch is stated" 'head -n 1 big.csv | grep -q "rows of 128 tokens from 10 documents, seed [0-9]*, patch 28$"'
expect 0 "" "$DISTTRAIN" train --no-runs big.yaml run.log_dir=log
check "as training fills the two of a step" '[ "$(awk "NR <= 2 { n += \$1 } END { print n }" filled)" -gt 200 ] &&
    grep -q "\"tokens\":$(awk "NR <= 2 { n += \$1 } END { print n }" filled)," log/metrics.jsonl'
expect 0 "" "$DISTTRAIN" simulate --no-runs big.yaml
expect 0 '"patch": 28' "$DISTTRAIN" data scan --json --no-shuffle --seq-len 128 --generate 0 --patch 28 -o same.csv big-000000.tar
sed 1d big.csv >big.rows
check "stated one by one it is the same" 'sed 1d same.csv | cmp -s - big.rows'
expect 0 "" "$DISTTRAIN" data scan --job big.yaml --patch 16 -o big.csv big-000000.tar
expect 2 "big.csv:1:1: .*a token for 16 x 16 pixels of an image, and the model's encoder makes one of 28 x 28; .*scan --patch 28" \
    "$DISTTRAIN" simulate --no-runs big.yaml
sed -i '1s/, patch 16//' big.csv # as before the patch was stated
expect 2 "a token for 16 x 16 pixels" "$DISTTRAIN" simulate --no-runs big.yaml
expect 2 "no multiple of 12" "$DISTTRAIN" data scan --mel-bins 128 --patch 12 -o s.csv big-000000.tar

# --- tokens ---
printf 'Hello world\nindivisible' >text
expect 0 "" "$DISTTRAIN" data tokens -t "$srcdir/tests/data/tokenizer/gpt2-subset.json" text
check "published ids" '[ "$(tr "\n" ";" <out)" = "15496 995;521 452 12843;" ]'
printf 'a\nb\000c' >text
expect 0 "" "$DISTTRAIN" data tokens -0 text
check "NUL-separated" '[ "$(tr "\n" ";" <out)" = "97 10 98;99;" ]'
expect 2 "model" "$DISTTRAIN" data tokens -t "$tmp/p.csv" text

# --- the real data set, where it is installed ---
if [ -e /usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz ]; then
    expect 0 "t-\*.tar: 200 samples in 1 shard" "$DISTTRAIN" data pack --fashion-mnist test --limit 200 -o t
    check "the first picture is an ankle boot" 'tar xOf t-000000.tar 00000000.txt | grep -q "^a photo of a [a-z]* ankle boot, [a-z]*$"'
    mkdir t && tar xf t-000000.tar -C t
    for f in t/*.txt; do cat "$f"; echo; done >captions
    check "all captions follow the rule" '[ "$(wc -l <captions)" = 200 ] && ! grep -Ev \
        "^a photo of a (dark|grey|light) (top|trouser|pullover|dress|coat|sandal|shirt|sneaker|bag|ankle boot), (wide|tall|compact)$" captions'
else
    skipped=$((skipped + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
