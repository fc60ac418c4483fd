#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain profile import: kinds told apart, rows and unmapped time, and nothing written when it fails.
# Environment: DISTTRAIN (the program), srcdir (the source directory).  The traces are made by
# tests/test_profile_import --make (tests/kernel_traces.h says what is in them).
set -u
. "${srcdir:=.}/tests/shell.sh"
maker=${DISTTRAIN%/*}/tests/test_profile_import
[ -x "$maker" ] || { echo "skipped: $maker is not built"; exit 77; }
refused() { # TEXT ARGUMENT...: exit 2, one line of message, nothing written
    text=$1; shift
    rm -f no.db
    expect 2 "$text" "$DISTTRAIN" profile import -o no.db "$@"
    check "one message for $*" '[ "$(wc -l <err)" -eq 1 ]'
    check "nothing written for $*" '[ ! -e no.db ] && [ ! -e no.db.tmp ]'
}

"$maker" --make . || { echo "FAIL: cannot make the traces"; exit 1; }
cat >nccl.txt <<'END'
# nThread 1 nGpus 4 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20
#   all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    42.00   24.97   37.45      0
     2097152        524288     float     sum      -1    60.00   34.95   52.43      0    60.00   34.95   52.43      0
END
cat >table.csv <<'END'
op,phase,dtype,d0,d1,d2,d3,d4,d5,n,median_ns,p10_ns,p90_ns
gemm,fwd,bf16,4096,4096,4096,0,0,0,50,575120.5,571000,590000
END

# --- each kind ---
expect 0 "a.sql: 2 rows of A100-SXM4-80GB from 10 observations, 2 rows in all" \
    "$DISTTRAIN" profile import -o a.sql a100.sqlite
check "unmapped time is reported" 'grep -q "unmapped: 5 of 25 kernels, 0.150 of 1.045 ms (14.4 %)" out'
check "with its kernels" 'grep -q "0.150 *14.4 *5 *void mystery_kernel" out'
check "the row" 'grep -q "512,256,128,0,0,0,5,122000.*,120400.*,123600" a.sql'
check "its source" 'grep -q "profile import: nsys.*a100.sqlite.*rules: default" a.sql'
cp a.sql before.sql
expect 0 "2 rows in all" "$DISTTRAIN" profile import -o a.sql a100.sqlite
check "importing twice changes nothing" 'cmp -s a.sql before.sql'
expect 0 "h.db: 2 rows of H100 80GB HBM3" "$DISTTRAIN" profile import -o h.db h100.json
check "integers are counted" 'grep -q "5 of them are of operators on integers" out'
check "so is what --dtype says" 'grep -q "5 mapped kernels have the type of --dtype" out'
expect 0 "attn_causal" "$DISTTRAIN" db show h.db
expect 0 "2 rows of card from 4 observations" "$DISTTRAIN" profile import -o n.sql --device card nccl.txt
cp n.sql n3.sql
cat >tagged.log <<'END'
[1,0]<stdout>:+ mpirun --tag-output -np 4 -H hosta:2,hostb:2 ./build/all_reduce_perf -b 1M -e 2M -f 2 -K 0
[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
[1,0]<stdout>:#  Rank  0 Group  0 Pid     11 on      hosta device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
[1,0]<stdout>:#  Rank  1 Group  0 Pid     12 on      hosta device  1 [0000:0f:00] NVIDIA A100-SXM4-80GB
[1,0]<stdout>:#  Rank  2 Group  0 Pid     13 on      hostb device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
[1,0]<stdout>:#  Rank  3 Group  0 Pid     14 on      hostb device  1 [0000:0f:00] NVIDIA A100-SXM4-80GB
[1,0]<stdout>:hosta:11:11 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>
[1,2]<stdout>:hostb:13:31 [0] NCCL INFO comm 0x55 rank 2 nranks 4 cudaDev 0 busId 7000 - Init COMPLETE
[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%
[1,0]<stdout>:     1048576        262144     float     sum      -1    80.00   13.11   19.66       0    78.10    85.20    85.20     2.10    82.00   12.79   19.18       0    79.90    88.00    88.00     2.40
[1,0]<stdout>:     2097152        524288     float     sum      -1   120.00   17.48   26.21       0   118.10   125.20   125.20     2.10   120.00   17.48   26.21       0   119.90   128.00   128.00     2.40
[1,0]<stdout>:# Out of bounds values : 0 OK
END
expect 0 "2 rows of card from 4 observations" "$DISTTRAIN" profile import -o n3.sql --device card tagged.log
check "lines of others are counted" 'grep -q "tagged.log: lines left out that nccl-tests did not print: 3" out'
check "two GPUs a node" 'grep -q "4,2,1048576,0,0,0,2,81000,80200,81800" n3.sql'
check "collectives" 'grep -q "4,4,1048576,0,0,0,2,41000,40200,41800" n.sql'
expect 0 "1 rows of card" "$DISTTRAIN" profile import -o c.sql --device card table.csv
check "csv" 'grep -q "4096,4096,4096,0,0,0,50,575120.5,571000,590000" c.sql'
expect 0 "7 rows of all from 35 observations, 7 rows in all" "$DISTTRAIN" profile import -o all.sql --device all \
    a100.sqlite h100.json unnamed.sqlite nccl.txt table.csv
expect 0 "" "$DISTTRAIN" db show all.sql --json --op gemm
check "two exports make one row" 'grep -q "\[512,256,128,0,0,0,10,122000" out'
expect 0 "INSERT" "$DISTTRAIN" profile import -o - a100.sqlite
check "the report goes beside it" 'grep -q "unmapped: 5 of 25" err'

# --- --limit counts the rows, however they are shown ---
expect 0 "and 3 more rows" "$DISTTRAIN" db show n3.sql --op all_reduce --limit 1
expect 0 '"left_out":3' "$DISTTRAIN" db show n3.sql --op all_reduce --limit 1 --json
check "one row" '[ "$(grep -o "\[4,4,[0-9]*,0,0,0," out | wc -l)" -eq 1 ]'
expect 0 '"left_out":0' "$DISTTRAIN" db show n3.sql --op all_reduce --json
check "all rows" '[ "$(grep -o "\[4,[0-9]*,[0-9]*,0,0,0," out | wc -l)" -eq 4 ]'

# --- JSON ---
expect 0 "" "$DISTTRAIN" profile import --json -o j.db a100.sqlite
for k in output written device rules rows kernels unmapped kernel_s mapped_s ignored_s unmapped_s observations \
    mixed_dtype unknown_math denied_dtype assumed_dtype unmapped_share files file kind ranges_by_time top_unmapped kernel share; do
    check "--json has $k" "grep -q '\"$k\":' out"
done
check "written" 'grep -q "\"written\": true" out'

# --- strict ---
expect 4 "5 of 25 kernels are not mapped: nothing written" "$DISTTRAIN" profile import --strict -o s.db a100.sqlite
check "still reported" 'grep -q mystery out && [ ! -e s.db ]'
cat >own.yaml <<'END'
rules:
  - {kernel: mystery, op: adamw, dims: [1000]}
  - {kernel: memcpy, ignore: true}
  - {nvtx: "^disttrain gemm fwd ([0-9]+) ([0-9]+) ([0-9]+)", op: gemm, phase: wgrad, dtype: fp16, dims: [$1, $2, $3]}
  - {nvtx: attn_causal, op: attn_causal, dims: [2, 64, 4, 4, 32]}
END
expect 0 "unmapped: 0 of 25" "$DISTTRAIN" profile import --strict --rules own.yaml -o s.sql a100.sqlite
check "own rules" 'grep -q "fp16.*gemm.*wgrad" s.sql && grep -q adamw s.sql'

# --- pictures of a device whose name holds what pages and paths do not ---
{ echo op,phase,dtype,d0,d1,d2,d3,d4,d5,n,median_ns,p10_ns,p90_ns
  for m in 1 2 4 8; do echo "adamw,fwd,any,${m}000000,0,0,0,0,0,5,${m}0000,${m}0000,${m}0000"; done; } >sizes.csv
expect 0 "" "$DISTTRAIN" profile import -o odd.sql --device 'x/../../outside/A<b>&100' sizes.csv
mkdir -p pictures/001-x outside
expect 0 "" "$DISTTRAIN" profile fit odd.sql --svg pictures
check "it stays in its folder" '[ -z "$(ls outside)" ] && [ "$(find . -name "*adamw-fwd.svg")" = "./pictures/001-x_.._.._outside_A<b>&100-adamw-fwd.svg" ]'
check "its name is text" 'grep -q "on x/../../outside/A&lt;b&gt;&amp;100: t0 " pictures/*.svg'
if command -v python3 >/dev/null; then
    check "it is XML" 'python3 -c "import glob, xml.dom.minidom; xml.dom.minidom.parse(glob.glob(\"pictures/*.svg\")[0])"'
fi

# --- nothing written ---
head -c 20000 a100.sqlite >cut.sqlite
head -c 16384 a100.sqlite >cut4.sqlite
head -c 9000 h100.json >cut.json
head -c 420 nccl.txt >cut.txt
printf '\037\213\010\000' >t.json.gz
: >empty
echo "hello world" >words
refused "truncated or damaged" cut.sqlite
refused "cut4.sqlite" --device x cut4.sqlite
refused "cut.json:[0-9]*:[0-9]*:" cut.json
refused "cut.txt:5:" --device x cut.txt
refused "gunzip it first" t.json.gz
sed 's/time   algbw/cputime algbw/' nccl.txt >cpu.txt
refused "cpu.txt:3: cputime is how long the calls took" --device x cpu.txt
sed 's/nGpus 4/nGpus 8/' nccl.txt >eight.txt
refused "eight.txt:4: busbw / algbw is that of another operation or number of GPUs" --device x eight.txt
refused "neither an Nsight" empty
refused "neither an Nsight" words
refused "no table CUPTI_ACTIVITY_KIND_KERNEL" j.db
refused "cannot open" none.json
refused "not a regular file" .
refused "does not name its GPU: use --device" unnamed.sqlite
refused "one by one, or use --device" a100.sqlite h100.json
# a trace of a machine with two kinds of GPUs is of the one that kernels ran on, if it is one
two() { # DEVICE DEVICE: members of args of two kernels
    echo '{"deviceProperties": [{"id": 0, "name": "NVIDIA T400 4GB"}, {"id": 1, "name": "NVIDIA A100-SXM4-80GB"}, {"id": 2, "name": "NVIDIA A100-SXM4-80GB"}],'
    echo ' "traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "disttrain gemm fwd 4096 4096 4096", "pid": 1, "tid": 1, "ts": 100, "dur": 50}'
    for device; do
        echo ', {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 110, "dur": 5, "args": {"correlation": '"7$device"'}}'
        echo ', {"ph": "X", "cat": "kernel", "name": "gemm_bf16", "pid": 1, "tid": 7, "ts": 200, "dur": 575, "args": {'"${device:+\"device\": $device, }"'"correlation": '"7$device"'}}'
    done
    echo ']}'
}
two 1 1 >one.json; two 1 2 >alike.json; two 0 1 >mixed.json; two 1 "" >unsaid.json
for f in one alike; do
    expect 0 "" "$DISTTRAIN" profile import -o $f.sql $f.json
    check "$f: of the device that ran it" 'grep -q "A100-SXM4-80GB" $f.sql && ! grep -q T400 $f.sql'
done
refused "mixed.json: its kernels ran on T400 4GB and on A100-SXM4-80GB" mixed.json
refused "unsaid.json: its kernels ran on .* or it does not say on which" unsaid.json
expect 0 "" "$DISTTRAIN" profile import --device x -o x.sql mixed.json
if command -v sqlite3 >/dev/null; then
    cp a100.sqlite one.sqlite
    sqlite3 one.sqlite "DROP TABLE TARGET_INFO_GPU; CREATE TABLE TARGET_INFO_GPU(id INTEGER, name TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA T400 4GB'), (1, 'NVIDIA A100-SXM4-80GB');
        ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN deviceId INTEGER DEFAULT 1"
    cp one.sqlite mixed.sqlite; cp one.sqlite seen.sqlite; cp one.sqlite gone.sqlite
    sqlite3 mixed.sqlite "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 0 WHERE rowid = 3"
    # of two processes each sees one GPU, as its number 0; the kernels are all of the first
    sqlite3 seen.sqlite "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 0;
        CREATE TABLE TARGET_INFO_CUDA_DEVICE(gpuId INTEGER, cudaId INTEGER, pid INTEGER);
        INSERT INTO TARGET_INFO_CUDA_DEVICE SELECT DISTINCT 1, 0, globalPid >> 24 FROM CUPTI_ACTIVITY_KIND_KERNEL;
        INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 999)"
    sqlite3 gone.sqlite "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 5"
    for f in one seen; do
        expect 0 "" "$DISTTRAIN" profile import -o $f-nsys.sql $f.sqlite
        check "$f: of the GPU that ran it" 'grep -q "A100-SXM4-80GB" $f-nsys.sql && ! grep -q T400 $f-nsys.sql'
    done
    refused "mixed.sqlite: its kernels ran on .*T400 4GB.*: trace one" mixed.sqlite
    refused "gone.sqlite: its kernels ran on T400 4GB and on A100-SXM4-80GB" gone.sqlite
fi
echo "  - {kernel: '(', op: gemm, dims: [1, 2, 3]}" >>own.yaml
refused "own.yaml:6:14: kernel: not a POSIX" --rules own.yaml a100.sqlite
refused "nor a rule preset (presets: default)" --rules nowhere a100.sqlite
printf 'rules: [{kernel: "^zzz$", op: adamw, dims: [1]}]\n' >none.yaml
rm -f no.db
expect 2 "a100.sqlite: rules none.yaml map no kernel to an op: nothing written" \
    "$DISTTRAIN" profile import --rules none.yaml -o no.db a100.sqlite
check "all of it is reported" 'grep -q "unmapped: 25 of 25" out && [ ! -e no.db ]'
cp a.sql before.sql
expect 2 "cut.json" "$DISTTRAIN" profile import -o a.sql --device x a100.sqlite cut.json
check "the old profile is as it was" 'cmp -s a.sql before.sql'
expect 2 "import.*-o OUT" "$DISTTRAIN" profile import a100.sqlite
expect 2 "both want stdout" "$DISTTRAIN" profile import --json -o - a100.sqlite
totals
