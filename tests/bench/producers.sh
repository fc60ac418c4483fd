#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# What training waits for data, and what producers send it, in 20 steps of mllm-nano-train on Fashion-MNIST: the data
# loaded beside training, by two producers, and by two of which one gets a tenth of a core's time; and what each makes.  The first step, before
# which nothing can be made ahead, is not counted.
: "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
if ! "$DISTTRAIN" data pack --fashion-mnist test -o f >/dev/null 2>&1 ||
    "$DISTTRAIN" preprocess --keygen keys 2>&1 | grep -q 'without ZeroMQ'; then
    echo '# no Fashion-MNIST or no ZeroMQ: producers not measured'
    exit 0
fi
steps=20
job="mllm-nano-train run.steps=$steps"
pids=
trap 'kill $pids 2>/dev/null; rm -rf "$tmp"' EXIT
producer() { # N
    "$DISTTRAIN" preprocess --listen 127.0.0.1:0 --insecure mllm-nano-train run.data=f-000000.tar >"p$1" 2>/dev/null &
    pids="$pids $!"
    tries=0
    while [ ! -s "p$1" ] && [ $tries -lt 400 ]; do sleep 0.05; tries=$((tries + 1)); done
}
# a process that runs for 10 of every 100 ms
slow() {
    while kill -STOP "$1" 2>/dev/null; do
        sleep 0.09; kill -CONT "$1" 2>/dev/null || break; sleep 0.01
    done
}
member() { sed -n "s/^.*\"$1\": \([-0-9.e+]*\).*/\1/p" out | tail -n 1; }
measure() { # NAME DATA
    "$DISTTRAIN" train --no-runs --json $job "run.data=$2" "run.checkpoint.dir=ck-$1" "run.log_dir=log-$1" >out 2>err </dev/null || { cat err >&2; return; }
    sed -n '/"preprocess"/,/}/p' out >it && mv it out
    echo "bench: data_exposed_$1 $(awk "BEGIN { print 1e3 * $(member exposed_s) / ($steps - 1) }") ms/step"
    echo "bench: data_bytes_$1 $(member bytes_per_step) bytes/step"
}
measure own f-000000.tar
producer 1; producer 2
measure two_producers "\"$(cat p1),$(cat p2)\""
slow "${pids##* }" & slower=$!
measure one_slow "\"$(cat p1),$(cat p2)\""
kill $slower 2>/dev/null
kill -CONT "${pids##* }" 2>/dev/null
kill -INT $pids # they sum up what they have served
wait $pids 2>/dev/null
pids=
for i in 1 2; do
    sed -n 's/^making .* \([0-9.]*\) ms a document.*/\1/p' p$i |
        awk -v i=$i '{ print "bench: producer" i "_documents " 1000 / $1 " documents/s of a core" }'
done
exit 0
