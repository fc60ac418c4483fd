#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# disttrain loop --strategies: plans are searched on what was measured here, trained in turn and compared pair by pair.  What
# follows from the numbers is worked out again; which strategy is the fastest is no test's matter on a machine that does other
# things too (--anyway).
# Environment: DISTTRAIN (the program), srcdir (the source directory).
set -u
. "${srcdir:=.}/tests/loop_job.sh"
[ "$(nproc)" -ge 2 ] || { echo 'one core: skipped'; exit 77; }

sed 's/microbatch: 2/microbatch: 1/' job.yaml >three.yaml
sed '/^    generator:/,/^      context_dim:/d' three.yaml >two.yaml
expect 2 "not both" "$DISTTRAIN" loop --strategies --orders two.yaml
expect 2 "two ranks or more" "$DISTTRAIN" loop --anyway --strategies two.yaml --ranks 1

# compared FILE: 0 if its pairs follow from its layouts, with the exit status $status
compared() {
    awk -v status="$status" '
        function word(s) { sub(/^[^:]*: "?/, "", s); sub(/"?,?$/, "", s); return s }
        function near(a, b) { return a - b < 1e-6 * b && b - a < 1e-6 * b }
        function alike(x) { return log(x) <= u && -log(x) <= u }
        /"first"/ { n++; first[n] = word($0) }
        /"second"/ { second[n] = word($0) }
        /"predicted"/ { p[n] = word($0) }
        /"measured"/ { m[n] = word($0) }
        /"uncertainty"/ { un[n] = word($0) }
        /"agree"/ { agree[n] = word($0) == "true" }
        /"same_order"/ { same = word($0) == "true" }
        /"layout"/ { now = word($0) }
        /"predicted_s"/ { ps[now] = word($0) }
        /"measured_s"/ { ms[now] = word($0) }
        END {
            all = 1
            for (i = 1; i <= n; i++) {
                u = un[i]
                ok = alike(p[i]) || alike(m[i]) || (p[i] < 1) == (m[i] < 1)
                if (u < 0.03 || ok != agree[i]) exit 1
                if (!near(ps[first[i]] / ps[second[i]], p[i])) exit 1
                if (!near(ms[first[i]] / ms[second[i]], m[i])) exit 1
                all = all && ok
            }
            exit !(n > 0 && same == all && status == (all ? 0 : 4))
        }' "$1"
}

# 0, or 4 where the order is another one
strategies() {
    "$DISTTRAIN" loop --anyway --strategies "$@" --steps 3 --warm-up 1 --seconds 0 --json >out 2>err
    status=$?
    check "compared ($status)" '[ $status -eq 0 ] || { [ $status -eq 4 ] && grep -q "was predicted to take" err; }'
    check "what follows from the numbers" 'compared out'
}
strategies two.yaml
check "three strategies, each with every other" '[ "$(grep -c "\"layout\": " out)" -eq 3 ] && [ "$(grep -c "\"first\": " out)" -eq 3 ]'
check "none without a plan" 'grep -q "\"no_plan\": \[\]" out'
plan() { grep -A 20 "\"layout\": \"$1\"" out | grep -m 1 '"plan"'; }
check "homogeneous and colocated plans share ranks" 'plan homogeneous | grep -q "encoder with llm" &&
    plan colocated | grep -q "encoder with llm.* window"'
check "a noncolocated one does not" '[ -n "$(plan noncolocated)" ] && ! plan noncolocated | grep -q "with llm"'
# three modules have no ranks of their own among two
strategies three.yaml --ranks 2
check "no noncolocated plan, and why" 'grep -A 1 "\"strategy\": \"noncolocated\"" out | grep -q "\"reason\": \"...*\"" &&
    [ "$(grep -c "\"first\": " out)" -eq 1 ]'
totals
