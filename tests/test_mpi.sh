#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# The transport suite over MPI: 2 and 4 ranks, shared memory and TCP, long messages in pieces.
. "$srcdir/tests/mpirun.sh"
fails=0

check() { # WHAT COMMAND...
    what=$1
    shift
    if "$@"; then
        echo "ok   $what"
    else
        echo "FAIL $what"
        fails=$((fails + 1))
    fi
}

run() { mpi_run "$@" ./tests/test_transport; }
check '2 ranks' run 2
check '4 ranks, ten times as long' run 4 -x SUITE_ROUNDS=30
check '3 ranks over TCP' run 3 --mca btl self,tcp
check '2 ranks, messages in pieces of 10,000 bytes' run 2 -x SUITE_PIECE_BYTES=10000

test "$fails" -eq 0 || { echo "$fails checks failed"; exit 1; }
