#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# The commands with which README.md and disttrain-train(1) train the shipped jobs: run in the order of the page and in
# one folder, each trains (one step of short sequences, on grey pictures).
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
. "$srcdir/tests/mpirun.sh"
pictures 28 034 grey

# trains PAGE N: it has N such commands or more
trains() {
    grep -o 'disttrain train .*mllm-nano.*' "$srcdir/$1" | sed 's/ &&.*//; s/  #.*//' >lines
    check "$1 has commands that train" '[ "$(wc -l <lines)" -ge '"$2"' ]'
    rm -rf folder && mkdir folder
    while read -r line; do
        eval "set -- ${line#disttrain train}"
        expect 0 "steps  *1 to" env -C folder "$DISTTRAIN" train "$@" run.steps=1 run.data=../grey-000000.tar run.threads=1 \
            train.seq_len=128
    done <lines
}
trains README.md 4
trains man/disttrain-train.1 2
totals
