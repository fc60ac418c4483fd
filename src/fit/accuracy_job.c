/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A measured row as the text of a job. */
#include "fit/accuracy.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct gpu {
    const char *prefix, *cluster, *profile;
};
static const struct gpu gpus[] = {
    {"A100", "a100", "a100"},
    {"A800", "a800-1296", "a800"},
    {"H100", "h100", "h100"},
    {"H800", "h800", "h100"},
};

struct text {
    char *at;
    size_t left;
    bool full;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(t->at, t->left, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= t->left) {
        t->full = true;
        return;
    }
    t->at += n;
    t->left -= (size_t)n;
}

static void put_model(struct text *t, const struct dt_accuracy_measured_row *r)
{
    bool gpt = r->ffn == 4 * r->hidden && r->kv_groups == r->heads;

    put(t,
        "model: {kind: llm, name: llm, layers: %d, hidden: %d, ffn: %d, heads: %d, kv_heads: %d, "
        "vocab: %d, ",
        r->layers, r->hidden, r->ffn, r->heads, r->kv_groups, r->vocab);
    if (gpt) /* GPT-2 and -3: LayerNorm, GELU, biases, learned positions, shared embedding */
        put(t, "positions: %d, gated: false, bias: true, norm: layernorm, tied: true, ", r->seq);
    else /* Llama: RMSNorm, SwiGLU, rotary positions */
        put(t, "gated: true, ");
    put(t, "attention: %s, sequence_parallel: %s}\n", r->unfused ? "unfused" : "flash",
        r->seqpar ? "true" : "false");
}

/* Megatron-LM gives every virtual stage the same number of layers; the embedding goes with the
 * first, the head with the last.  What does not divide goes to the front, one layer each. */
static void put_split(struct text *t, const struct dt_accuracy_measured_row *r)
{
    int v = r->pp * r->vpp, at = 1;

    put(t, "split: [0");
    for (int i = 0; i < v; i++) {
        at += r->layers / v + (i < r->layers % v);
        put(t, ", %d", i == v - 1 ? r->layers + 2 : at);
    }
    put(t, "]");
}

static void put_train(struct text *t, const struct dt_accuracy_measured_row *r)
{
    put(t,
        "train: {global_batch: %lld, microbatch: %d, seq_len: %d, precision: %s, recompute: %s, "
        "zero: %d, schedule: %s, overlap: {grad: %s, param: %s}, "
        "reorder: {intra: false, inter: false}, stepccl: false, dispatch: \"%d us\"}\n",
        (long long)r->global_batch, r->micro_batch, r->seq, r->fp16 ? "fp16" : "bf16",
        dt_block_recompute_names[r->recompute], r->distributed ? 1 : 0,
        r->vpp > 1 ? "interleaved" : "1f1b", r->distributed ? "true" : "false",
        r->distributed ? "true" : "false",
        r->unfused ? DT_DISPATCH_UNFUSED_US : DT_DISPATCH_FUSED_US);
}

enum dt_status dt_accuracy_measured_job(const struct dt_accuracy_measured_row *r,
                                        struct dt_error *err, char *text, size_t size,
                                        const char **profile)
{
    struct text t = {.at = text, .left = size};
    const struct gpu *g = NULL;

    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (strncasecmp(r->gpu_type, gpus[i].prefix, strlen(gpus[i].prefix)) == 0)
            g = &gpus[i];
    if (!g)
        return dt_error_set(err, DT_ERR_INPUT,
                            "line %d: gpu_type \"%s\"; there are A100, A800, H100 and H800",
                            r->line, r->gpu_type);
    if (r->layers < r->pp * r->vpp)
        return dt_error_set(err, DT_ERR_INPUT, "line %d: %d layers on %d virtual stages", r->line,
                            r->layers, r->pp * r->vpp);
    put_model(&t, r);
    put(&t, "cluster: {preset: %s, nodes: %d", g->cluster, (r->gpus + 7) / 8);
    if (r->nics > 0)
        put(&t, ", nics_per_node: %d", r->nics);
    put(&t, "}\nsamples: {preset: text}\nprofile: %s\n", g->profile);
    put_train(&t, r);
    put(&t, "search: {strategy: manual}\nplan: {llm: {tp: %d, cp: %d, pp: %d, vpp: %d, dp: %d, ",
        r->tp, r->cp, r->pp, r->vpp, r->dp);
    put_split(&t, r);
    put(&t, "}}\n");
    if (t.full)
        return dt_error_set(err, DT_ERR_INPUT, "line %d: too many stages for one job", r->line);
    *profile = g->profile;
    return DT_OK;
}
