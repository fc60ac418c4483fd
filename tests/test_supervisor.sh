#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# Three ranks, to one of which something happens: the job ends, soon, not well, and says once why.
. "$srcdir/tests/mpirun.sh"
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
fails=0
MPI_LIMIT_S=40
DISTTRAIN_HEARTBEAT_S=2
DISTTRAIN_OP_TIMEOUT_S=4
export DISTTRAIN_HEARTBEAT_S DISTTRAIN_OP_TIMEOUT_S

# case NAME STATUS PATTERN MESSAGES ARGUMENT...: 3 ranks end with STATUS (or "bad": any but 0 and
# timeout's), as many messages of ours, the pattern in one of them
case_is() {
    name=$1 want=$2 pattern=$3 messages=$4
    shift 4
    begin=$(date +%s)
    mpi_run 3 ./tests/supervisor_ranks "$@" >"$dir/out" 2>&1
    got=$?
    took=$(($(date +%s) - begin))
    said=$(grep -c '^job: ' "$dir/out")
    case $want in
    bad) test "$got" -ne 0 && test "$got" -ne 124 ;;
    *) test "$got" -eq "$want" ;;
    esac && test "$said" -eq "$messages" && grep -q "$pattern" "$dir/out" && test "$took" -le 15 || {
        echo "FAIL $name: status $got, $said messages, $took s:"
        cat "$dir/out"
        fails=$((fails + 1))
        return
    }
    echo "ok   $name: $(grep '^job: ' "$dir/out")"
}

case_is 'nothing happens' 0 '^3 ranks ended; clocks within' 0 end
case_is 'another job on rank 2' 2 'job: rank 0 on .* has 0123456789abcdef; rank 2 on .* has fedcba9876543210' 1 facts 2
at='module llm, op backward, microbatch 7'
for r in 0 2; do
    case_is "rank $r is killed" bad "^job: rank $r on .* has died; it was last seen in $at" 1 kill $r
    case_is "rank $r stops" 5 "^job: rank $r on .* silent for .* last seen in $at" 1 stop $r
done
case_is 'rank 1 exits' bad "^job: rank 1 on .* has died; it was last seen in $at" 1 exit 1
case_is 'rank 1 hangs' 5 "^job: rank 1 on .* not ended an op for 4 s.* $at" 1 hang 1
for r in 0 1; do
    case_is "rank $r hangs, the others wait as long as that may last" 5 \
        "^job: rank $r on .* not ended an op for 4 s.* $at" 1 late $r
    case_is "rank $r hangs between ops" 5 \
        "^job: rank $r on .* not begun an op for 4 s.*last seen after ${at#in }" 1 idle $r
done
case_is 'rank 1 says itself what is wrong' 5 '^job: rank 1 found an error' 1 error 1

test "$fails" -eq 0 || { echo "$fails checks failed"; exit 1; }
