#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# What orders of samples gain, predicted and measured (doc/loop.md, "Gains predicted and measured"): a job of large and small
# pictures, made here from a fixed seed, whose encoder and LLM have a rank each.  Minutes, on a machine without other work.
#
#   sh tests/bench/loop_orders.sh [OPTION|KEY=VALUE...]      of disttrain loop, such as --json or --anyway
#
# Environment: DISTTRAIN (the program), srcdir; KEEP=DIR makes data and job there and leaves them.
: "${srcdir:=.}"
case ${KEEP:-/} in /*) ;; *) KEEP=$PWD/$KEEP ;; esac
. "$srcdir/tests/shell.sh"
command -v mpirun >/dev/null || { echo '# no mpirun: orders of samples not measured'; exit 0; }
if [ -n "${KEEP:-}" ]; then mkdir -p "$KEEP" && cd "$KEEP" || exit 99; fi

# noise SIDE COUNT SEED: pictures of that side as an IDX file, their labels as another: ten kinds in turn
noise() {
    awk -v side="$1" -v n="$2" -v seed="$3" '
        function number(v) { printf "%c%c%c%c", 0, 0, int(v / 256), v % 256 }
        BEGIN {
            printf "%c%c%c%c", 0, 0, 8, 3
            number(n); number(side); number(side)
            for (i = n * side * side; i > 0; i--) {
                seed = (seed * 16807) % 2147483647 # Park and Miller 1988
                printf "%c", 1 + seed % 255
            }
        }' >"images-$1"
    awk -v n="$2" '
        BEGIN {
            printf "%c%c%c%c%c%c%c%c", 0, 0, 8, 1, 0, 0, int(n / 256), n % 256
            for (i = 0; i < n; i++) printf "%c", i % 10
        }' >"labels-$1"
}
# half of the labels are words, half of them sentences: the LLM has much or little to do beside a picture of any size
long=$(printf 'very %.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28)
names=a,b,c,d,e,${long}f,${long}g,${long}h,${long}i,${long}j
for side in 32 64 128; do
    noise $side 240 $((side + 1))
    "$DISTTRAIN" data pack --idx images-$side --labels labels-$side --label-names "$names" -o noise-$side >/dev/null || exit 1
    rm -f images-$side labels-$side
done
cat >job.yaml <<'END'
model:
  modules:
    encoder: {kind: encoder, layers: 6, hidden: 224, ffn: 896, heads: 7, patch: 8, channels: 1, positions: 257}
    llm: {kind: llm, layers: 3, hidden: 192, ffn: 768, heads: 6, vocab: 264}
cluster: local
samples: text
train: {global_batch: 32, microbatch: 2, seq_len: 448, recompute: none}
search: {strategy: manual, allow_analytical: true}
plan: {encoder: {}, llm: {}}
run: {data: [noise-32-000000.tar, noise-64-000000.tar, noise-128-000000.tar], packed: false, threads: 1}
END
"$DISTTRAIN" loop --orders job.yaml --steps 8 --warm-up 12 "$@" >table
status=$?
cat table
# 4: a gain was predicted otherwise; 7: the machine was too busy
[ $status -ne 7 ] || { echo '# machine too busy: orders of samples not measured'; exit 0; }
sed -n 's/^predicted and measured gains are \([0-9.]*\) points apart at most, known within \([0-9.]*\)$/\1 \2/p' table | while read -r apart within; do
    echo "bench: loop_orders_gains_apart $apart points ratio $(awk "BEGIN { printf \"%.2f\", $apart / 3 }") of target_3"
    echo "bench: loop_orders_gains_known_within $within points"
done
exit $status
