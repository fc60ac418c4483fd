#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Predicted against measured iteration times, with bounds that a change of the model may not exceed.
# The tables are not shipped: TABLES names their folder (default ../shared/data beside the source); skipped
# (77) where it is absent, after the shipped figures were checked.
# ACCURACY_EVERY=N takes every N-th row of the large table (make check: 6, make accuracy: 1).
set -u
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}" "${ACCURACY_EVERY:=6}"
: "${TABLES:=$srcdir/../shared/data}"
failed=0

# bound TABLE MAPE% MAX% [OPTION...]: the line, the worst rows, and both within their bounds
bound() {
    table=$1 mape=$2 max=$3; shift 3
    if ! out=$("$DISTTRAIN" accuracy --table "$table" "$@"); then failed=1; return; fi
    printf '%s\n\n' "$out"
    printf '%s\n' "$out" | awk -v mape="$mape" -v max="$max" '
        /^accuracy: / {
            n = 1
            for (i = 3; i <= NF; i++) { split($i, kv, "="); v[kv[1]] = kv[2] + 0 }
            if (v["mape"] > mape || v["max"] > max) { print "FAIL: bounds are mape " mape "%, max " max "%"; exit 1 }
        }
        END { if (!n) { print "FAIL: no accuracy line"; exit 1 } }' || failed=1
}

bound "$srcdir/traces/measured/megatron.csv" 4 8
single=$TABLES/vtrain/measured_iteration_single_dev.csv
if [ ! -f "$single" ]; then
    echo "skipped: no measured tables in $TABLES (set TABLES=DIRECTORY)"
    [ $failed -eq 0 ] && exit 77
    exit 1
fi
bound "$single" 8 40 --every "$ACCURACY_EVERY"
bound "$TABLES/vtrain/measured_iteration_multi_dev.csv" 6 20
bound "$TABLES/megatron/seqsel_table5_a100_dev.csv" 2.5 5
exit $failed
