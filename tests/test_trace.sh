#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain trace export: JSON that our own reader takes, an event per op, arrows in pairs.
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
case $DISTTRAIN in /*) ;; *) DISTTRAIN=$PWD/$DISTTRAIN ;; esac
DISTTRAIN_TRACES=$(cd "$srcdir" && pwd)/traces; export DISTTRAIN_TRACES
unset DISTTRAIN_RUNS
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 99
passed=0 failed=0
check() { if eval "$2"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL: $1"; fi; }

"$DISTTRAIN" simulate --json mllm-nano-local >report || exit 1
ops=$(sed -n 's/^ *"ops": \([0-9]*\),*$/\1/p' report)
check "exports" '"$DISTTRAIN" trace export last'
check "an event per op ($ops)" '[ "$(grep -c "\"ph\": \"X\"" trace.json)" = "$ops" ]'
check "arrows in pairs" '[ "$(grep -c "\"ph\": \"s\"" trace.json)" -gt 0 ] &&
    [ "$(grep -c "\"ph\": \"s\"" trace.json)" = "$(grep -c "\"ph\": \"f\"" trace.json)" ] &&
    grep "\"ph\": \"s\"" trace.json | sed "s/.*\"id\": \"\([^\"]*\)\".*/\1/" | sort >sent &&
    grep "\"ph\": \"f\"" trace.json | sed "s/.*\"id\": \"\([^\"]*\)\".*/\1/" | sort | cmp -s sent - &&
    [ -z "$(uniq -d sent)" ]'
check "distributedInfo" 'grep -q "\"backend\": \"simulated\", \"rank\": 0, \"world_size\": 3" trace.json'
check "to stdout" '"$DISTTRAIN" trace export 1 -o - | cmp -s - trace.json'
check "per lane" '"$DISTTRAIN" trace export 1 --per-lane lanes && [ "$(cat lanes/lane-*.json | grep -c "\"ph\": \"X\"")" = "$ops" ] &&
    grep -q "\"rank\": 2, \"world_size\": 3" lanes/lane-2.json'
# the job reader refuses it as a job, but only after it has read it as JSON
check "well-formed" '"$DISTTRAIN" simulate trace.json 2>err; grep -q "schemaVersion" err'
for p in "${PYTHON:-python3}"; do
    command -v "$p" >/dev/null && check "JSON for Python" '"$p" -m json.tool trace.json >/dev/null'
done
check "perfetto" '"$DISTTRAIN" trace export 1 --format perfetto && [ -s trace.pftrace ] &&
    "$DISTTRAIN" trace export 1 -f perfetto -o - | cmp -s - trace.pftrace && [ $(wc -c <trace.pftrace) -lt $(wc -c <trace.json) ]'
check "perfetto per lane" '"$DISTTRAIN" trace export 1 -f perfetto --per-lane lanes && [ -s lanes/lane-2.pftrace ]'
check "no such format" '! "$DISTTRAIN" trace export 1 -f svg 2>err && grep -q "not chrome or perfetto" err'
check "no such run" '! "$DISTTRAIN" trace export 5 2>err && grep -q "has no run 5" err'
check "no ops" '"$DISTTRAIN" simulate --timeline none mllm-nano-local >/dev/null && ! "$DISTTRAIN" trace export last 2>err && grep -q "kept no ops" err'
check "no such action" '! "$DISTTRAIN" trace import 1 2>err && grep -q "no action .import." err'
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
