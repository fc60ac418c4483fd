#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Ranks that a launcher starts without MPI (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT): the transport suite, who does not
# come, and a training that comes to what one rank comes to.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
builddir=$PWD
. "${srcdir:=.}/tests/small_job.sh"
ulimit -c 0
port=$((20000 + $$ % 12000)) # below those that the system gives out

# start N COMMAND...: its ranks in the background; $pids, and what rank K says in said.K
start() {
    n=$1 pids=
    shift
    port=$((port + 2)) k=0
    while [ $k -lt "$n" ]; do
        RANK=$k WORLD_SIZE=${size:-$n} MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -k 5 200 "$@" >said.$k 2>&1 </dev/null &
        pids="$pids $!"
        k=$((k + 1))
    done
}
# ended: waits for all; $codes
ended() {
    codes=
    for p in $pids; do
        wait "$p"
        codes="$codes $?"
    done
}
# ranks N COMMAND...: all of it; another port where somebody has that one
ranks() {
    for try in 1 2 3; do
        start "$@"
        ended
        grep -q 'cannot listen' said.0 || break
    done
}

ranks 2 env SUITE_ROUNDS=3 "$builddir/tests/test_transport"
check "the suite among 2: $codes $(tail -1 said.0)" '[ "$codes" = " 0 0" ] && grep -q "checks over tcp, 2 ranks, 2 of them" said.0'
ranks 4 env SUITE_ROUNDS=2 "$builddir/tests/test_transport"
check "the suite among 4: $codes $(tail -1 said.0)" '[ "$codes" = " 0 0 0 0" ]'

# --- training: what one rank comes to ---
loss() { tail -1 "$1/metrics.jsonl" | sed 's/.*"loss": *\([0-9.]*\).*/\1/'; }
"$DISTTRAIN" train --no-runs --ranks 1 job.yaml run.steps=6 run.log_dir=alone >out 2>&1
check "one rank: $(tail -1 out)" '[ -n "$(loss alone)" ]'
ranks 2 "$DISTTRAIN" train --no-runs job.yaml run.steps=6 run.log_dir=two
check "two ranks: $codes $(cat said.1 | tail -1)" '[ "$codes" = " 0 0" ]'
check "the same loss: $(loss alone) and $(loss two)" 'awk "BEGIN { d = $(loss alone) - $(loss two); exit !(d < 1e-3 && d > -1e-3) }"'

# --- who does not come, and who goes ---
size=3 DISTTRAIN_OP_TIMEOUT_S=2
export DISTTRAIN_OP_TIMEOUT_S
ranks 2 "$DISTTRAIN" train --no-runs job.yaml run.steps=6
check "a rank is missing: $codes $(cat said.0)" 'grep -q "rank 0 waited 2 s for rank 2 of 3 at 127.0.0.1:$port" said.0 && [ "${codes#*0}" = "$codes" ]'
unset size DISTTRAIN_OP_TIMEOUT_S
RANK=1 WORLD_SIZE=2 MASTER_ADDR=nowhere.invalid DISTTRAIN_OP_TIMEOUT_S=1 "$DISTTRAIN" train --no-runs job.yaml >out 2>&1
check "no such address: $(cat out)" 'grep -q "rank 1 waited 1 s for rank 0 of 2 at nowhere.invalid:29500: " out'

rm -rf log
start 2 "$DISTTRAIN" train --no-runs job.yaml run.steps=100000 run.log_dir=log
n=0
steps() { cat log/metrics.jsonl 2>/dev/null | grep -c .; }
while [ "$(steps)" -lt 3 ] && [ $n -lt 1200 ]; do sleep 0.05; n=$((n + 1)); done
second=$(cat /proc/"${pids##* }"/task/*/children 2>/dev/null)
kill -KILL ${second:-${pids##* }}
ended
first=${codes# } first=${first%% *}
check "a rank is killed: $codes $(tail -2 said.0)" 'grep -q "rank 1 " said.0 && [ "$first" -ge 3 ] && [ "$first" -lt 124 ]'
totals
