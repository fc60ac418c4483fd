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
