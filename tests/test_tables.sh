#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
# Schedules, strategies, job keys and commands are rows of tables.  Every row is in the page, in --help, in the
# completion and in JSON; every name in the page is a row; an unknown name is told which there are.
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
. "$srcdir/tests/shell.sh"
job=$srcdir/man/disttrain-job.5
"$DISTTRAIN" keys --json >"$tmp/json" || bad "keys --json"
"$DISTTRAIN" completion >"$tmp/completion" || bad "completion"

# KEY TYPE WORD,WORD per line
awk -F'"' '
    $2 == "key" { key = $4; words = ""; in_words = 0 }
    $2 == "type" { type = $4 }
    $2 == "words" { in_words = 1; next }
    in_words && $2 != "" && $2 != "default" { words = words (words == "" ? "" : ",") $2 }
    $2 == "default" { in_words = 0 }
    $2 == "meaning" { print key, type, words == "" ? "-" : words }' "$tmp/json" >"$tmp/rows"
check "keys --json has rows" '[ "$(wc -l <"$tmp/rows")" -gt 90 ]'

# ---- page to rows, rows to page: sections of disttrain-job(5) and the map that each is about ----
# (a list under .Ss is about the maps of that name)
awk '
    BEGIN {
        d = "samples.distribution."
        of["Distributions"] = d
        of["Numbers of a distribution"] = d "text_tokens. " d "image_side. " d "audio_s."
        of["Layout of a module"] = "plan.MODULE."
        all = "model.LLM. model.ENCODER. model.UNET."
        of["Module maps"] = all
        of["A map in place of the path of hf"] = "model.LLM.hf. model.ENCODER.hf. model.UNET.hf."
        of["Transformers"] = "model.LLM. model.ENCODER."
        of["LLMs"] = "model.LLM."
        of["Rotary positions"] = "model.LLM.rope."
        of["Encoders"] = "model.ENCODER."
        of["U-Nets"] = "model.UNET."
        of["Encoders and U-Nets"] = "model.ENCODER. model.UNET."
        of["Rows of size_ccdf"] = d "size_ccdf.ROW."
    }
    $1 == ".Sh" { map = $2; maps = map == "SAMPLES" ? "samples." : map == "PLAN" ? "plan." : map == "MODELS" ? "model." : ""; next }
    $1 == ".Ss" { sub(/^.Ss /, ""); maps = of[$0]; next }
    maps != "" {
        n = split(maps, prefixes, " ")
        for (p = 1; p <= n && $1 == ".It" && $2 == "Cm"; p++)
            for (i = 3; i <= NF; i++) if ($i ~ /^[a-z_0-9]+$/) print prefixes[p] $i
        next
    }
    map !~ /^(KEYS|TRAIN|SEARCH|SIMULATE|RUN|CLUSTERS)$/ { next }
    { prefix = map == "KEYS" ? "" : map == "CLUSTERS" ? "cluster." : tolower(map) "." }
    $1 == ".It" && $2 == "Cm" {
        top = $3
        for (i = 3; i <= NF; i++) if ($i ~ /^[a-z_0-9]+$/) print prefix $i
    }
    $1 == ".Brq" || ($1 == ".Ic" && top != "") {
        for (i = 2; i <= NF; i++) if ($i ~ /^[a-z_0-9]+$/ && $(i - 1) != "Ar" && $i != "share" && $i != "times") print prefix top "." $i
    }' "$job" | sort -u >"$tmp/page"
cut -d' ' -f1 "$tmp/rows" | sed '/\.[A-Z]*$/d' | sort -u >"$tmp/keys"
comm -23 "$tmp/keys" "$tmp/page" >"$tmp/out"
cat "$tmp/out"
check "every key is in disttrain-job(5)" '[ -s "$tmp/keys" ] && [ ! -s "$tmp/out" ]'
comm -13 "$tmp/keys" "$tmp/page" >"$tmp/out"
cat "$tmp/out"
check "every key of disttrain-job(5) is a row" '[ -s "$tmp/page" ] && [ ! -s "$tmp/out" ]'

# ---- columns of a CSV of samples ----
echo xyzzy >"$tmp/x.csv"
expect 2 "unknown column 'xyzzy'; columns are " "$DISTTRAIN" plan mllm-nano-train samples="$tmp/x.csv"
sed -n 's/.*columns are //p' err | tr -s ', ' '\n' | sort >"$tmp/columns"
sed -n '/^\.Ss CSV files/,/^\.S[hs] [^C]/s/^\.It Cm //p' "$job" | sort >"$tmp/page"
check "the columns of a CSV are those of disttrain-job(5)" '[ "$(wc -l <"$tmp/columns")" -ge 7 ] && cmp -s "$tmp/columns" "$tmp/page"'

# ---- each row where people look for it; each wrong value is told the words ----
while read -r key type words; do
    "$DISTTRAIN" keys "$key" >"$tmp/out" 2>"$tmp/err" || bad "keys $key"
    case $key in
    *[A-Z]*) grep -qE "[ ']$key(=|\.)" "$tmp/completion" && bad "$key is in the completion" || ok ;;
    *) grep -qE "[ ']$key(=|\.)" "$tmp/completion" && ok || bad "$key is not in the completion" ;;
    esac
    [ "$words" = - ] && continue
    list=$(echo "$words" | sed 's/,/ /g')
    for w in $list; do
        grep -qE "(Cm|Ql|,|:) ?$w( |$)" "$job" && ok || bad "$key=$w is not in disttrain-job(5)"
    done
    pattern=$(echo "$key" | sed 's/[A-Z][A-Z]*/*/g')
    grep -qF " $pattern) words='$list'" "$tmp/completion" && ok || bad "the words of $key are not in the completion"
    [ "$type" = word ] || continue
    case $key in
    samples.*) set_it="samples={$(echo "${key#*.}" | sed 's/\./: {/g'): xyzzy$(echo "$key" | tr -dc . | tr . '}')" ;;
    plan.MODULE.*) set_it="plan={colocated: true, llm: {${key##*.}: xyzzy}}" ;;
    *) set_it=$(echo "$key=xyzzy" | sed 's/LLM/llm/; s/ENCODER/encoder/; s/UNET/generator/') ;;
    esac
    expect 2 "${key##*.}: expected one of $(echo "$words" | sed 's/,/, /g'), found \"xyzzy\"" \
        "$DISTTRAIN" plan mllm-nano-train "$set_it"
done <"$tmp/rows"
for map in train search simulate run cluster samples train.reorder run.checkpoint; do
    expect 2 "unknown key \"xyzzyxyzzy\" in [a-z]*; its keys are [a-z]" "$DISTTRAIN" plan mllm-nano-train "$map={xyzzyxyzzy: 1}"
done
expect 2 'unknown key "xyzzy" in llm; its keys are tp, ' \
    "$DISTTRAIN" plan mllm-nano-train search.strategy=manual "plan={encoder: {}, llm: {xyzzy: 1}, generator: {}}"
expect 2 'unknown key "xyzzy" in an LLM module; its keys are name, kind, ' "$DISTTRAIN" plan mllm-nano-train model.llm.xyzzy=1
expect 0 '^model.UNET.res_blocks  *integer, 1 to 16  *2 ' "$DISTTRAIN" keys model.generator.res_blocks
expect 0 '^plan.MODULE.tp  *integer, 1 to ' "$DISTTRAIN" keys plan.llm.tp
expect 0 '^plan.MODULE.tp  ' "$DISTTRAIN" keys plan.llm
expect 2 'unknown key "plan.llm.tpp"; did you mean "plan.llm.tp"' "$DISTTRAIN" keys plan.llm.tpp
expect 2 'unknown key "clustre.nodes"; did you mean "cluster.nodes"' "$DISTTRAIN" keys clustre.nodes
expect 2 'unknown key "cluster.gpu_memory"; did you mean "cluster.memory"' "$DISTTRAIN" keys cluster.gpu_memory
expect 2 'unknown key "train.global_batch_size"; did you mean "train.global_batch"' "$DISTTRAIN" keys train.global_batch_size
expect 2 'unknown key "nodes"; did you mean "cluster.nodes"' "$DISTTRAIN" keys nodes
expect 2 'unknown key "model.llm.rope.thata"; did you mean "model.llm.rope.theta"' "$DISTTRAIN" keys model.llm.rope.thata
expect 2 'unknown key "seed" (see' "$DISTTRAIN" keys seed # of the samples or of the simulation
expect 2 'unknown key "train.shedule"; did you mean "train.schedule"' "$DISTTRAIN" keys train.shedule

# ---- every schedule and every strategy does something, and says its name ----
for s in $(sed -n 's/^train.schedule own //p' "$tmp/rows" | tr , ' '); do
    [ "$s" = auto ] || expect 0 "\"schedule\": \"$s\"" "$DISTTRAIN" plan -o - mllm-nano-local "train.schedule=$s"
    "$DISTTRAIN" keys train.schedule | grep -q "^  $s  *[a-z0-9]" && ok || bad "schedule $s has no line of its own"
done
for s in $(sed -n 's/^search.strategy word //p' "$tmp/rows" | tr , ' '); do
    "$DISTTRAIN" keys search.strategy | grep -q "^  $s  *[A-Za-z0-9]" && ok || bad "strategy $s has no line of its own"
    for c in plan simulate; do
        "$DISTTRAIN" $c --help | grep -- --strategy | grep -qE "[ ]$s(,|\)| )" && ok || bad "$c --help lacks strategy $s"
        grep -qE "'$c --strategy' .*[ ']$s[ ']" "$tmp/completion" && ok || bad "$c --strategy $s is not completed"
    done
    [ "$s" = manual ] || expect 0 "strategy $s" "$DISTTRAIN" plan --strategy "$s" mllm-9b-96
done

# ---- the completion at work ----
if command -v bash >/dev/null; then
    complete_to() { # WORD... CURRENT: what bash would offer
        bash -c '. "$1"; shift; COMP_WORDS=(disttrain "$@"); COMP_CWORD=$#; _disttrain; printf "%s\n" "${COMPREPLY[@]}"' \
            bash "$tmp/completion" "$@" 2>/dev/null
    }
    check "a key is completed" '[ "$(complete_to plan job.yaml train.sch)" = train.schedule= ]'
    check "a word of a key is completed" '[ "$(complete_to plan job.yaml train.schedule = gp)" = gpipe ]'
    check "all words of a key are offered" '[ "$(complete_to plan job.yaml train.schedule = | tr "\n" ,)" = \
        "$(sed -n "s/^train.schedule own //p" "$tmp/rows")," ]'
    check "a word of an option is completed" '[ "$(complete_to simulate --strategy mega)" = megatron-lm ]'
    check "also after =" '[ "$(complete_to simulate --strategy = man)" = manual ]'
    check "a word is completed behind a name that the job chooses" \
        '[ "$(complete_to plan job.yaml model.brain.norm = lay)" = layernorm ]'
    check "a key of samples is completed" \
        '[ "$(complete_to plan job.yaml samples.distribution.aspect)" = samples.distribution.aspect_sigma= ]'
    check "a truth value is completed" '[ "$(complete_to train job.yaml run.packed = f)" = false ]'
    check "a command is completed" '[ "$(complete_to simu)" = simulate ]'
    check "commands without a job get no keys" '[ -z "$(complete_to compare train.sch)" ]'
fi
totals
