#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# doc/reproduction.md: the tables of single runs (one change at a time; where the GPUs' time goes) hold what `simulate`
# prints.  The first row of each; with DT_CHECK_FULL=1 all rows.
#   test_reproduction_runs.sh --update   writes all rows anew (read the diff before committing it)
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
page=$srcdir/doc/reproduction.md
published='train.schedule=1f1b train.microbatch=1 train.recompute=selective train.zero=1 search.placement=own'

# changed CELL: the row of a change, whose keys stand in backquotes; behind "searched:" in the job's own space
changed() {
    keys=$(echo "$1" | sed 's/^[^`]*`\{0,1\}//; s/`.*//')
    case $1 in searched:*) ;; *) keys="$published $keys" ;; esac
    # shellcheck disable=SC2086 # keys are words
    "$DISTTRAIN" simulate mllm-72b-1296 $keys 2>err >out </dev/null || return
    awk -v cell="$1" '
        $1 == "llm" { layout = $0; sub(/^llm +/, "", layout); sub(/ = .*/, "", layout) }
        $1 == "iteration" { s = $2 }
        $1 == "MFU" && !mfu { mfu = $2 }
        END { printf "| %s | %.2f | %.1f | %s |\n", cell, s, mfu, layout }' out
}

# shares CELL: the row of "9B 512²": points of the used GPUs' time, and the MFU of a batch four times as large
shares() {
    size=$(echo "${1%% *}" | tr B b) side=$(echo "${1#* }" | tr -dc 0-9)
    job="mllm-$size-1296 search.placement=own samples.max_side=$side model.generator.resize=$side"
    # shellcheck disable=SC2086 # keys are words
    "$DISTTRAIN" simulate --json $job train.global_batch=7680 2>err >out </dev/null || return
    large=$(field mfu)
    # shellcheck disable=SC2086
    "$DISTTRAIN" simulate --json $job 2>err >out </dev/null || return
    used=$(field gpus_used) s=$(field iteration_s)
    tr -d '",' <out | awk -v cell="$1" -v used="$used" -v s="$s" -v large="$large" '
        $1 == "mfu:" { mfu = 100 * $2 }
        $1 == "name:" { name = $2 == "llm" ? "llm" : "others" }
        $1 == "gpus:" { gpus = $2 }
        $1 == "tp:" && name == "llm" { tp = $2 }
        $1 == "utilisation:" { busy = gpus * $2; idle[name] += 100 * (gpus - busy) / used }
        $1 == "model_flops:" { below[name] += 100 * (busy - $2 / (312e12 * s)) / used } # of an A800 at peak
        END { printf "| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |\n", cell, tp, mfu, idle["llm"],
            idle["others"], below["llm"], below["others"], 100 * large }'
}

# rows HEAD: the first cells of the table whose first line begins so
rows() { awk -F ' *[|] *' -v head="$1" 'index($0, head) == 1 { on = 1; next } !/^[|]/ { on = 0 } on && !/^[|]-/ { print $2 }' "$page"; }

# compare HEAD FUNCTION
compare() {
    rows "$1" >cells
    check "the table '$1' has rows" '[ "$(wc -l <cells)" -ge 6 ]'
    [ "${update:-}" ] || all_of_it || sed -i 2,\$d cells
    while read -r cell; do
        now=$("$2" "$cell")
        if [ "${update:-}" ]; then
            [ "$now" ] && awk -v cell="| $cell |" -v now="$now" 'index($0, cell) == 1 { $0 = now } { print }' "$page" >new && cp new "$page"
        else
            check "doc/reproduction.md says: $(grep -F "| $cell |" "$page")
      simulate:                 $now" '[ -n "$now" ] && grep -qxF -- "$now" "$page"'
        fi
    done <cells
}
[ "${1:-}" != --update ] || update=yes
compare '| keys | iteration' changed
compare '| images | LLM at TP' shares
totals
