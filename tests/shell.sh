# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
#
# For shell tests: makes DISTTRAIN, srcdir and DISTTRAIN_TRACES absolute, goes to a folder of its own (removed at
# the end), counts what holds.  Source it, test, end with `totals`.
LC_ALL=C; export LC_ALL
: "${DISTTRAIN:=./disttrain}" "${srcdir:=.}"
case $DISTTRAIN in /*) ;; *) DISTTRAIN=$PWD/$DISTTRAIN ;; esac
srcdir=$(cd "$srcdir" && pwd)
DISTTRAIN_TRACES=$srcdir/traces; export DISTTRAIN DISTTRAIN_TRACES
unset DISTTRAIN_RUNS
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
cd "$tmp" || exit 99
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL: $1"; sed 's/^/    /' out err 2>/dev/null | head -30; }
check() { if eval "$2"; then ok; else bad "$1"; fi; } # WHAT CONDITION
# expect CODE TEXT COMMAND...: it exits so and says that; what it says is in out and err
expect() {
    code=$1 text=$2; shift 2
    timeout -k 5 "${limit_s:-300}" "$@" >out 2>err </dev/null
    got=$?
    if [ $got -ne "$code" ]; then bad "'$*' exits $got, not $code"; return; fi
    if [ -n "$text" ] && ! cat out err | grep -q -- "$text"; then bad "'$*' does not say '$text'"; return; fi
    ok
}
# fits COMMAND...: does it find a plan?  What it says is in out.  Exit status 3 is that nothing fits; any other is a failure.
fits() {
    timeout -k 5 "${limit_s:-300}" "$@" >out 2>err </dev/null
    got=$?
    [ $got -eq 0 ] || [ $got -eq 3 ] || bad "'$*' exits $got"
    return $got
}
# field NAME [FILE]: the first such member of the JSON in FILE (out); a text without its quotes
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "${2:-out}" | head -n 1; }
# speed_holds LOG DB: `out` is what `train --json` said of a run from its first step on that wrote LOG/metrics.jsonl and is DB's
# last.  Rates times seconds are what was computed: of every line the tokens, of the last one the FLOPs that the run's three
# modules have, and of all lines together those of the summary.
speed_holds() {
    flops=$("$DISTTRAIN" runs show --json last --runs "$2" | grep -A 3 '"name": "[a-z]*\.model_flops"' |
        awk '$1 ~ /^[0-9]/ { n++; sum += $1 } END { print (n == 3 ? sum : 0) }')
    awk -v flops="$flops" -v peak="$(field gemm_peak_flops)" -v mfu="$(field mfu)" -v mean="$(field iteration_s)" \
        -v tokens="$(field tokens)" -v steps="$(field steps)" '
        function of(name) { return match($0, "\"" name "\":[0-9.e+-]+") ? substr($0, RSTART + length(name) + 3) + 0 : 0 }
        function is(a, b) { return b > 0 && a / b < 1 + 1e-6 && a / b > 1 - 1e-6 }
        { last = of("mfu") * peak * of("step_s"); done += last; all += of("tokens") }
        !is(of("tokens_per_s") * (of("step_s") + of("data_s")), of("tokens")) { bad++ }
        END { exit bad || NR != steps || !is(all, tokens) || !is(last, flops) || !is(mfu * peak * mean * steps, done) }
        ' "$1/metrics.jsonl"
}
# Does the CPU multiply in bf16?  Only with AVX-512, whose products also give a row the same bits whatever others there are.
has_bf16() { "$DISTTRAIN" devices --json | grep -m 1 '"bf16":' | grep -q true; }
totals() { echo "$passed passed, $failed failed"; [ $failed -eq 0 ] && [ $passed -gt 0 ]; }

# two-000000.tar: 40 pictures of 8 x 8, dark ones of label 0 and light ones of label 1 in turn
pack_two_tones() {
    { printf '\000\000\010\003\000\000\000\050\000\000\000\010\000\000\000\010'
      for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
          printf '%064d' 0 | tr 0 '\050'
          printf '%064d' 0 | tr 0 '\310'
      done; } >images
    { printf '\000\000\010\001\000\000\000\050'
      for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do printf '\000\001'; done; } >labels
    expect 0 "40 samples" "$DISTTRAIN" data pack --idx images --labels labels \
        --label-names dark,light -o two --replace
}

# pictures SIDE OCTAL NAME: NAME-000000.tar, 240 grey pictures of that side
pictures() {
    picture=$(printf '%0*d' $(($1 * $1)) 0)
    { printf '\000\000\010\003\000\000\000\360\000\000\000\'"$2"'\000\000\000\'"$2"
      i=0; while [ $i -lt 240 ]; do printf '%s' "$picture"; i=$((i + 1)); done; } >images
    { printf '\000\000\010\001\000\000\000\360'; printf '%0240d' 0 | tr 0 '\000'; } >labels
    expect 0 "240 samples" "$DISTTRAIN" data pack --idx images --labels labels --label-names grey -o "$3" --replace
}
# write_small_job RUN: job.yaml, a model of a few thousand parameters that trains on those pictures; RUN: keys of
# its run: map, beside those that it needs
write_small_job() {
    cat >job.yaml <<END
model:
  modules:
    encoder: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 4, channels: 1, positions: 4}
    llm: {kind: llm, layers: 2, hidden: 16, ffn: 32, heads: 2, vocab: 264}
    generator: {kind: unet, channels: [8, 8], head_dim: 8, res_blocks: 1, in_channels: 1, out_channels: 1,
      context_dim: 8, context_len: 2, latent_scale: 1, resize: 8}
cluster: local
samples: text
train: {global_batch: 4, microbatch: 1, seq_len: 64}
search: {allow_analytical: true, strategy: manual}
plan: {encoder: {}, llm: {dp: 2}, generator: {}}
run: {data: two-000000.tar, precision: fp32, threads: 1, decay: constant, warmup_steps: 1, $1}
END
}
# all_of_it: is this make check-full, which does not look at the time?
all_of_it() { [ "${DT_CHECK_FULL:-0}" != 0 ]; }
# write_quick_job: the same with two layers in its encoder, of a run whose steps take milliseconds
write_quick_job() {
    cat >job.yaml <<'END'
model:
  modules:
    encoder: {kind: encoder, layers: 2, hidden: 16, ffn: 32, heads: 2, patch: 4, channels: 1, positions: 4}
    llm: {kind: llm, layers: 2, hidden: 16, ffn: 32, heads: 2, vocab: 264}
    generator: {kind: unet, channels: [8, 8], head_dim: 8, res_blocks: 1, in_channels: 1, out_channels: 1,
      context_dim: 8, context_len: 2, latent_scale: 1, resize: 8}
cluster: local
samples: text
train: {global_batch: 4, microbatch: 2, seq_len: 64, recompute: none}
search: {strategy: manual, allow_analytical: true}
plan: {colocated: true}
run: {data: two-000000.tar, steps: 4, threads: 1}
END
}
