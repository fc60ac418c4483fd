#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Predicted against measured: iteration times of whole runs, with bounds that a change of the model may not exceed;
# share of the runs inside the 80 % interval; hold-out errors of kernels; sensitivity of the constants.
# The tables are not shipped: TABLES names their folder (default ../shared/data beside the source); skipped
# (77) where it is absent, after the shipped figures were checked.
# ACCURACY_EVERY=N takes every N-th row of the large table and nothing of kernels (make check: 6; make accuracy: 1).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}" "${ACCURACY_EVERY:=6}"
: "${TABLES:=$srcdir/../shared/data}"
failed=0
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

# bound TABLE MAPE% MAX% [OPTION...]: every line of the table within its bounds
bound() {
    table=$1 mape=$2 max=$3; shift 3
    if ! out=$("$DISTTRAIN" accuracy --table "$table" "$@"); then failed=1; return; fi
    printf '%s\n\n' "$out"
    printf '%s\n' "$out" | awk -v mape="$mape" -v max="$max" '
        /^accuracy: / {
            n++
            for (i = 3; i <= NF; i++) { split($i, kv, "="); v[kv[1]] = kv[2] + 0 }
            if (v["mape"] > mape || v["max"] > max) { print "FAIL: bounds are mape " mape "%, max " max "%"; bad = 1; exit }
        }
        END { if (!n) { print "FAIL: no accuracy line"; bad = 1 }; exit bad }' || failed=1
}

bound "$srcdir/traces/measured/megatron.csv" 4 5
single=$TABLES/vtrain/measured_iteration_single_dev.csv
multi=$TABLES/vtrain/measured_iteration_multi_dev.csv
megatron=$TABLES/megatron/seqsel_table5_a100_dev.csv
if [ ! -f "$single" ]; then
    echo "skipped: no measured tables in $TABLES (set TABLES=DIRECTORY)"
    [ $failed -eq 0 ] && exit 77
    exit 1
fi
bound "$single" 6 36 --every "$ACCURACY_EVERY"
bound "$multi" 5.5 20
bound "$megatron" 2.5 5

# all rows together: the 80 % interval holds 70 to 90 % of them
"$DISTTRAIN" accuracy --every "$ACCURACY_EVERY" --table "$single" --table "$multi" --table "$megatron" |
    grep '^accuracy: all' | tee "$tmp/all"
awk '{ for (i = 1; i <= NF; i++) if (split($i, kv, "=") == 2 && kv[1] == "cover80") c = kv[2] + 0 }
    END { if (c < 70 || c > 90) { print "FAIL: the 80 % interval should hold 70 to 90 % of the rows"; exit 1 } }' \
    "$tmp/all" || failed=1
[ "$ACCURACY_EVERY" -eq 1 ] || exit $failed

echo
if [ -d "$TABLES/aiconfigurator" ] && [ -d "$TABLES/simumax" ]; then
    if ONLY=import sh "$srcdir/traces/profiles/build.sh" "$DISTTRAIN" "$TABLES" "$tmp" >"$tmp/log" 2>&1 &&
        "$DISTTRAIN" accuracy --holdout "$tmp/measured.db" >"$tmp/holdout"; then
        cat "$tmp/holdout"
        if grep MISSED "$tmp/holdout" >/dev/null; then
            echo "FAIL: a hold-out error is above its target"
            failed=1
        fi
    else
        cat "$tmp/log"
        failed=1
    fi
else
    echo "skipped: no kernel tables in $TABLES"
fi
"$DISTTRAIN" accuracy --every 3 --sensitivity --table "$single" --table "$multi" --table "$megatron" |
    sed -n '/^sensitivity/,$p'
exit $failed
