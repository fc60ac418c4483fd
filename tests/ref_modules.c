/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "ref_modules.h"

#include "base/hash.h"
#include "base/rng.h"
#include "exec/modules/module.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEW(r, n) DT_ARENA_NEW(&(r)->arena, double, n)

const double *ref_get(struct ref_module *r, const char *fmt, ...)
{
    char name[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    for (int i = 0; i < r->n_tensors; i++) { /* names are asked for in their order, mostly */
        int at = (r->last_used + i) % r->n_tensors;

        if (strcmp(r->tensors[at].name, name) == 0) {
            r->last_used = at;
            return r->tensors[at].v;
        }
    }
    return NULL;
}

static const double *must(struct ref_module *r, const char *prefix, const char *name)
{
    const double *v = ref_get(r, "%s%s", prefix, name);

    if (!v) {
        fprintf(stderr, "no tensor %s%s\n", prefix, name);
        abort();
    }
    return v;
}

/* ---- pieces ---- */

/* y = x Wᵀ + b, W [out][in]; transposed: W [in][out] */
static double *linear(struct ref_module *r, int rows, int in, int out, const double *x,
                      const double *w, const double *b, bool transposed)
{
    double *y = NEW(r, (size_t)rows * (size_t)out);

    for (int i = 0; i < rows; i++)
        for (int o = 0; o < out; o++) {
            double s = b ? b[o] : 0;

            for (int k = 0; k < in; k++)
                s += x[i * in + k] * (transposed ? w[k * out + o] : w[o * in + k]);
            y[i * out + o] = s;
        }
    return y;
}

static double *named(struct ref_module *r, const char *prefix, const char *name, int rows, int in,
                     int out, const double *x)
{
    char text[160];

    snprintf(text, sizeof(text), "%s.weight", name);
    return linear(r, rows, in, out, x, must(r, prefix, text), ref_get(r, "%s%s.bias", prefix, name),
                  false);
}

static double *norm(struct ref_module *r, const char *prefix, const char *name, int rows, int width,
                    double eps, const double *x)
{
    const double *g = ref_get(r, "%s%s.weight", prefix, name),
                 *b = ref_get(r, "%s%s.bias", prefix, name);
    double *y = NEW(r, (size_t)rows * (size_t)width);

    for (int i = 0; i < rows; i++) {
        double mean = 0, var = 0;

        for (int k = 0; b && k < width; k++)
            mean += x[i * width + k] / width;
        for (int k = 0; k < width; k++)
            var += (x[i * width + k] - mean) * (x[i * width + k] - mean) / width;
        for (int k = 0; k < width; k++)
            y[i * width + k] = (x[i * width + k] - mean) / sqrt(var + eps) * g[k] + (b ? b[k] : 0);
    }
    return y;
}

static double gelu(double x)
{
    return x / 2 * (1 + erf(x / sqrt(2.0)));
}
static double gelu_tanh(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double quick_gelu(double x)
{
    return x / (1 + exp(-1.702 * x));
}
static double relu(double x)
{
    return x > 0 ? x : 0;
}

void ref_arithmetic(struct ref_module *r)
{
    static double (*const named_acts[])(double) = {NULL, gelu, gelu_tanh, quick_gelu, silu, relu};
    const struct dt_module_arithmetic *a = &r->m->arith;
    const struct dt_block *b = r->m->blocks;

    while (b < r->m->blocks + r->m->n_blocks - 1 && b->kind != DT_BLOCK_TRANSFORMER)
        b++;
    r->norm_eps = a->norm_eps > 0 ? a->norm_eps : r->m->role == DT_ROLE_ENCODER ? 1e-12 : 1e-5;
    r->act = a->activation ? named_acts[a->activation]
             : b->gated    ? silu
             : r->gpt2     ? gelu_tanh
                           : gelu;
}

static double *map(struct ref_module *r, int n, const double *x, double (*f)(double))
{
    double *y = NEW(r, n);

    for (int i = 0; i < n; i++)
        y[i] = f(x[i]);
    return y;
}

static double *plus(struct ref_module *r, int n, const double *a, const double *b)
{
    double *y = NEW(r, n);

    for (int i = 0; i < n; i++)
        y[i] = a[i] + b[i];
    return y;
}

/* Rows of q see rows of k that belong to the same number; causal: not later ones. */
static double *attention(struct ref_module *r, int nq, int nk, const int *of_q, const int *of_k,
                         int heads, int kv_heads, int dim, bool causal, double scale,
                         const double *q, const double *k, const double *v)
{
    double *o = NEW(r, (size_t)nq * (size_t)(heads * dim)), *p = NEW(r, nk);

    for (int i = 0; i < nq; i++)
        for (int h = 0; h < heads; h++) {
            int g = h / (heads / kv_heads);
            double sum = 0, most = -1e300;

            for (int pass = 0; pass < 2; pass++)
                for (int j = 0; j < nk; j++) {
                    double s = 0;

                    if (of_q[i] != of_k[j] || (causal && j > i))
                        continue;
                    if (pass == 1) {
                        p[j] = exp(p[j] - most);
                        sum += p[j];
                        continue;
                    }
                    for (int d = 0; d < dim; d++)
                        s += q[(i * heads + h) * dim + d] * k[(j * kv_heads + g) * dim + d];
                    p[j] = s * scale;
                    most = p[j] > most ? p[j] : most;
                }
            for (int j = 0; j < nk; j++) {
                if (of_q[i] != of_k[j] || (causal && j > i))
                    continue;
                for (int d = 0; d < dim; d++)
                    o[(i * heads + h) * dim + d] += p[j] / sum * v[(j * kv_heads + g) * dim + d];
            }
        }
    return o;
}

/* Inverse frequency of pair d, as transformers' modeling_rope_utils.py has it. */
static double inv_freq(const struct dt_rope *r, int d, int dim)
{
    const double pi = acos(-1.0);
    double inv = 1 / pow(r->theta > 0 ? r->theta : 10000, 2.0 * d / dim), length, smooth;

    if (r->scaling == DT_ROPE_LINEAR)
        return inv / r->factor;
    if (r->scaling != DT_ROPE_LLAMA3)
        return inv;
    length = 2 * pi / inv;
    if (length < r->original / r->high_freq)
        return inv;
    if (length > r->original / r->low_freq)
        return inv / r->factor;
    smooth = (r->original / length - r->low_freq) / (r->high_freq - r->low_freq);
    return (1 - smooth) * inv / r->factor + smooth * inv;
}

static void rotate(int rows, int heads, int dim, const struct dt_rope *r, const int *pos, double *x)
{
    for (int i = 0; i < rows; i++)
        for (int h = 0; h < heads; h++)
            for (int d = 0; d < dim / 2; d++) {
                double a = pos[i] * inv_freq(r, d, dim);
                double *u = &x[(i * heads + h) * dim + d], *v = u + dim / 2;
                double s = *u * cos(a) - *v * sin(a), t = *v * cos(a) + *u * sin(a);

                *u = s;
                *v = t;
            }
}

/* Qwen2-VL's: as of half a head by the row, and of the other half by the column. */
static void rotate_cells(int rows, int heads, int dim, const struct dt_rope *r,
                         const int (*cell)[2], double *x)
{
    for (int i = 0; i < rows; i++)
        for (int h = 0; h < heads; h++)
            for (int d = 0; d < dim / 2; d++) {
                int across = d >= dim / 4;
                double a = cell[i][across] * inv_freq(r, d - across * dim / 4, dim / 2);
                double *u = &x[(i * heads + h) * dim + d], *v = u + dim / 2;
                double s = *u * cos(a) - *v * sin(a), t = *v * cos(a) + *u * sin(a);

                *u = s;
                *v = t;
            }
}

/* ---- transformer layers ---- */

/* In place: element k of a document's row p is number p * width + k of its mask. */
static double *drop(struct ref_module *r, const struct dt_block *b, int which, int rows,
                    const int *doc, double *x)
{
    double p = (double)(float)r->dropout;
    char name[160];
    uint64_t key, stream = r->first_stream;
    int row = 0;

    if (p <= 0)
        return x;
    snprintf(name, sizeof(name), "%s/dropout/%d/%d", r->m->name, (int)(b - r->m->blocks), which);
    key = r->seed ^ dt_hash_text(DT_HASH_START, name);
    for (int i = 0; i < rows; i++) {
        bool same = i > 0 && doc[i] == doc[i - 1];

        row = same ? row + 1 : 0;
        stream += i > 0 && !same;
        for (int k = 0; k < b->hidden; k++) {
            uint64_t at = (uint64_t)row * (uint64_t)b->hidden + (uint64_t)k;
            const uint32_t ctr[4] = {(uint32_t)(at / 4), (uint32_t)(at / 4 >> 32), (uint32_t)stream,
                                     (uint32_t)(stream >> 32)};
            const uint32_t k2[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
            uint32_t word[4];

            dt_rng_philox4x32(ctr, k2, word);
            x[i * b->hidden + k] *= word[at % 4] < (uint32_t)ldexp(p, 32) ? 0 : 1 / (1 - p);
        }
    }
    return x;
}

struct names {
    const char *norm1, *q, *k, *v, *o, *norm2, *up, *gate, *down;
};
static const struct names llama_names = {
    "input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.up_proj",      "mlp.gate_proj",    "mlp.down_proj"};
static const struct names vit_names = {"layernorm_before",
                                       "attention.attention.query",
                                       "attention.attention.key",
                                       "attention.attention.value",
                                       "attention.output.dense",
                                       "layernorm_after",
                                       "intermediate.dense",
                                       NULL,
                                       "output.dense"};

static const struct names clip_names = {"layer_norm1",
                                        "self_attn.q_proj",
                                        "self_attn.k_proj",
                                        "self_attn.v_proj",
                                        "self_attn.out_proj",
                                        "layer_norm2",
                                        "mlp.fc1",
                                        NULL,
                                        "mlp.fc2"};

/* q, k and v of one tensor */
static const struct names qwen_vl_names = {"norm1", NULL,      NULL, NULL,     "attn.proj",
                                           "norm2", "mlp.fc1", NULL, "mlp.fc2"};
static const struct names qwen25_vl_names = {
    "norm1",         NULL,           NULL, NULL, "attn.proj", "norm2", "mlp.up_proj",
    "mlp.gate_proj", "mlp.down_proj"};

/* GPT2Config: scale_attn_weights, scale_attn_by_inverse_layer_idx */
static double score_scale(const struct ref_module *r, const struct dt_block *b)
{
    double scale = r->m->arith.attention_scale > 0 ? r->m->arith.attention_scale
                                                   : 1 / sqrt((double)b->head_dim);
    int layer = 0;

    for (const struct dt_block *p = r->m->blocks; p <= b; p++)
        layer += p->kind == DT_BLOCK_TRANSFORMER;
    return r->m->arith.scale_by_layer ? scale / layer : scale;
}

/* ---- experts ---- */

static double *gated(struct ref_module *r, const struct dt_block *b, const char *p,
                     const char *const w[3], int width, int rows, const double *x)
{
    double *u = named(r, p, w[1], rows, b->hidden, width, x), *g;

    if (!b->gated) {
        u = map(r, rows * width, u, r->act);
        return named(r, p, w[2], rows, width, b->hidden, u);
    }
    g = map(r, rows * width, named(r, p, w[0], rows, b->hidden, width, x), r->act);
    for (int i = 0; i < rows * width; i++)
        u[i] *= g[i];
    return named(r, p, w[2], rows, width, b->hidden, u);
}

/* Numbers of the k largest, by looking for the largest k times; returns their sum. */
static double largest(const double *p, int n, int k, int *out)
{
    double sum = 0;

    for (int j = 0; j < k; j++) {
        out[j] = -1;
        for (int e = 0; e < n; e++) {
            bool taken = false;

            for (int i = 0; i < j; i++)
                taken |= out[i] == e;
            if (!taken && (out[j] < 0 || p[e] > p[out[j]]))
                out[j] = e;
        }
        sum += p[out[j]];
    }
    return sum;
}

/* Switch Transformers, eq. 4: experts * sum of (share of choices) * (mean p), times the rows. */
static void add_uneven(struct ref_module *r, int rows, int n, int k, const double *p,
                       const int *choices)
{
    for (int e = 0; e < n; e++) {
        double share = 0, mean = 0;

        for (int i = 0; i < rows; i++)
            mean += p[i * n + e] / rows;
        for (int i = 0; i < rows * k; i++)
            share += choices[i] == e ? 1.0 / (rows * k) : 0;
        r->uneven += n * share * mean * rows;
    }
}

/* Every row by itself, through every expert that it chose. */
static double *experts(struct ref_module *r, const struct dt_block *b, const char *p, int rows,
                       const double *x)
{
    static const char *const qwen[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const mixtral[] = {"w1", "w3", "w2"};
    const char *mlp = r->m->mixtral_names ? "block_sparse_moe" : "mlp";
    int n = b->n_experts, k = b->top_k, *choice = DT_ARENA_NEW(&r->arena, int, rows *k);
    double *y = NEW(r, (size_t)rows * (size_t)b->hidden), *q, *logits, *x_shared;
    char at[96];

    snprintf(at, sizeof(at), "%s.gate", mlp);
    logits = named(r, p, at, rows, b->hidden, n, x);
    q = NEW(r, (size_t)rows * (size_t)n);
    for (int i = 0; i < rows; i++) {
        double sum = 0, of;

        for (int e = 0; e < n; e++)
            sum += q[i * n + e] = exp(logits[i * n + e]);
        for (int e = 0; e < n; e++)
            q[i * n + e] /= sum;
        of = largest(q + i * n, n, k, choice + i * k);
        for (int j = 0; j < k; j++) {
            double *out, w = q[i * n + choice[i * k + j]] / (r->m->arith.top_k_raw ? 1 : of);

            snprintf(at, sizeof(at), "%s%s.experts.%d.", p, mlp, choice[i * k + j]);
            out =
                gated(r, b, at, r->m->mixtral_names ? mixtral : qwen, b->ffn, 1, x + i * b->hidden);
            for (int h = 0; h < b->hidden; h++)
                y[i * b->hidden + h] += w * out[h];
        }
    }
    add_uneven(r, rows, n, k, q, choice);
    if (b->shared_ffn == 0)
        return y;
    snprintf(at, sizeof(at), "%s%s.shared_expert%s.", p, mlp, b->shared_gate ? "" : "s");
    x_shared = gated(r, b, at, qwen, b->shared_ffn, rows, x);
    if (b->shared_gate) {
        snprintf(at, sizeof(at), "%s.shared_expert_gate", mlp);
        logits = named(r, p, at, rows, b->hidden, 1, x);
        for (int i = 0; i < rows * b->hidden; i++)
            x_shared[i] /= 1 + exp(-logits[i / b->hidden]);
    }
    return plus(r, rows * b->hidden, y, x_shared);
}

/* n columns of rows `width` wide. */
static double *columns(struct ref_module *r, int rows, int width, int first, int n, const double *x)
{
    double *y = NEW(r, (size_t)rows * (size_t)n);

    for (int i = 0; i < rows; i++)
        memcpy(y + i * n, x + i * width + first, (size_t)n * sizeof(double));
    return y;
}

static double *llama_or_vit(struct ref_module *r, const struct dt_block *b, const char *p,
                            const struct names *n, int rows, const int *doc, const int *pos,
                            const double *x)
{
    int h = b->hidden, q = b->heads * b->head_dim, kv = b->kv_heads * b->head_dim;
    double *t = norm(r, p, n->norm1, rows, h, r->norm_eps, x), *u, *g, *qs, *ks, *vs;
    const int *seen = b->window > 0 ? r->window : doc;

    if (n->q) {
        qs = named(r, p, n->q, rows, h, q, t);
        ks = named(r, p, n->k, rows, h, kv, t);
        vs = named(r, p, n->v, rows, h, kv, t);
    } else {
        u = named(r, p, "attn.qkv", rows, h, 3 * q, t);
        qs = columns(r, rows, 3 * q, 0, q, u);
        ks = columns(r, rows, 3 * q, q, q, u);
        vs = columns(r, rows, 3 * q, 2 * q, q, u);
    }
    if (b->qk_norm) {
        qs = norm(r, p, "self_attn.q_norm", rows * b->heads, b->head_dim, r->norm_eps, qs);
        ks = norm(r, p, "self_attn.k_norm", rows * b->kv_heads, b->head_dim, r->norm_eps, ks);
    }
    if (b->grid_rope) {
        rotate_cells(rows, b->heads, b->head_dim, &r->m->arith.rope, r->cell, qs);
        rotate_cells(rows, b->heads, b->head_dim, &r->m->arith.rope, r->cell, ks);
    }
    if (b->causal && b->max_pos == 0) {
        rotate(rows, b->heads, b->head_dim, &r->m->arith.rope, pos, qs);
        rotate(rows, b->kv_heads, b->head_dim, &r->m->arith.rope, pos, ks);
    }
    t = attention(r, rows, rows, seen, seen, b->heads, b->kv_heads, b->head_dim, b->causal,
                  score_scale(r, b), qs, ks, vs);
    t = plus(r, rows * h, x, drop(r, b, 0, rows, doc, named(r, p, n->o, rows, q, h, t)));
    u = norm(r, p, n->norm2, rows, h, r->norm_eps, t);
    if (b->n_experts > 0)
        return plus(r, rows * h, t, drop(r, b, 1, rows, doc, experts(r, b, p, rows, u)));
    if (b->gated) {
        g = map(r, rows * b->ffn, named(r, p, n->gate, rows, h, b->ffn, u), r->act);
        u = named(r, p, n->up, rows, h, b->ffn, u);
        for (int i = 0; i < rows * b->ffn; i++)
            u[i] *= g[i];
    } else {
        u = map(r, rows * b->ffn, named(r, p, n->up, rows, h, b->ffn, u), r->act);
    }
    return plus(r, rows * h, t, drop(r, b, 1, rows, doc, named(r, p, n->down, rows, b->ffn, h, u)));
}

static double *gpt2_layer(struct ref_module *r, const struct dt_block *b, const char *p, int rows,
                          const int *doc, const double *x)
{
    int h = b->hidden;
    double *t = norm(r, p, "ln_1", rows, h, r->norm_eps, x), *qkv, *part[3];

    qkv = linear(r, rows, h, 3 * h, t, must(r, p, "attn.c_attn.weight"),
                 must(r, p, "attn.c_attn.bias"), true);
    for (int j = 0; j < 3; j++) {
        part[j] = NEW(r, (size_t)rows * (size_t)h);
        for (int i = 0; i < rows; i++)
            memcpy(part[j] + i * h, qkv + i * 3 * h + j * h, (size_t)h * sizeof(double));
    }
    t = attention(r, rows, rows, doc, doc, b->heads, b->heads, b->head_dim, true, score_scale(r, b),
                  part[0], part[1], part[2]);
    t = linear(r, rows, h, h, t, must(r, p, "attn.c_proj.weight"), must(r, p, "attn.c_proj.bias"),
               true);
    x = plus(r, rows * h, x, drop(r, b, 0, rows, doc, t));
    t = norm(r, p, "ln_2", rows, h, r->norm_eps, x);
    t = linear(r, rows, h, b->ffn, t, must(r, p, "mlp.c_fc.weight"), must(r, p, "mlp.c_fc.bias"),
               true);
    t = map(r, rows * b->ffn, t, r->act);
    t = linear(r, rows, b->ffn, h, t, must(r, p, "mlp.c_proj.weight"),
               must(r, p, "mlp.c_proj.bias"), true);
    return plus(r, rows * h, x, drop(r, b, 1, rows, doc, t));
}

/* ---- language model ---- */

static double *embed(struct ref_module *r, const struct ref_llm_in *in, const struct dt_block *b,
                     const int *pos)
{
    const double *e = must(r, "", r->gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    double *x = NEW(r, (size_t)in->rows * (size_t)b->hidden);
    int h = b->hidden;

    for (int i = 0; i < in->rows; i++)
        if (in->ids[i] >= 0)
            memcpy(x + i * h, e + in->ids[i] * h, (size_t)h * sizeof(double));
    for (int i = 0; i < in->n_in; i++)
        memcpy(x + in->in_row[i] * h, in->features + i * h, (size_t)h * sizeof(double));
    if (b->max_pos > 0) {
        e = must(r, "", r->gpt2 ? "transformer.wpe.weight" : "model.embed_positions.weight");
        for (int i = 0; i < in->rows; i++)
            for (int k = 0; k < h; k++)
                x[i * h + k] += e[pos[i] * h + k];
    }
    return x;
}

static double nll(int vocab, const double *logits, int target, int *best)
{
    double sum = 0, most = logits[0];

    *best = 0;
    for (int v = 1; v < vocab; v++)
        if (logits[v] > most) {
            most = logits[v];
            *best = v;
        }
    for (int v = 0; v < vocab; v++)
        sum += exp(logits[v] - most);
    return target < 0 ? 0 : log(sum) + most - logits[target];
}

double ref_llm(struct ref_module *r, const struct ref_llm_in *in, double *cond, int *best)
{
    const struct dt_module *m = r->m;
    const struct dt_block *head = &m->blocks[m->n_blocks - 1];
    int h = head->hidden, *pos = DT_ARENA_NEW(&r->arena, int, in->rows), top;
    double *x, *logits, loss = 0;
    const double *w;
    char prefix[64];

    r->uneven = 0;
    for (int i = 0; i < in->rows; i++)
        pos[i] = i > 0 && in->doc[i] == in->doc[i - 1] ? pos[i - 1] + 1 : 0;
    x = embed(r, in, &m->blocks[0], pos);
    for (int l = 1; l < m->n_blocks - 1; l++) {
        snprintf(prefix, sizeof(prefix), r->gpt2 ? "transformer.h.%d." : "model.layers.%d.", l - 1);
        x = r->gpt2
                ? gpt2_layer(r, &m->blocks[l], prefix, in->rows, in->doc, x)
                : llama_or_vit(r, &m->blocks[l], prefix, &llama_names, in->rows, in->doc, pos, x);
    }
    x = norm(r, "", r->gpt2 ? "transformer.ln_f" : "model.norm", in->rows, h, r->norm_eps, x);
    for (int i = 0; cond && i < in->n_cond; i++)
        memcpy(cond + i * h, x + in->cond_row[i] * h, (size_t)h * sizeof(double));
    w = !head->tied ? must(r, "", "lm_head.weight")
                    : must(r, "", r->gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    logits = linear(r, in->rows, h, head->vocab, x, w, NULL, false);
    for (int i = 0; i < in->rows; i++) {
        loss += in->scale * nll(head->vocab, logits + i * head->vocab, in->target[i], &top);
        if (best)
            best[i] = top;
    }
    dt_arena_free(&r->arena);
    return loss + r->balance_scale * r->uneven;
}

/* ---- projector and encoder ---- */

/* rows: as wide as the projector takes them; Qwen2-VL's merger has other names. */
static double *project(struct ref_module *r, const struct dt_block *b, const char *prefix, int rows,
                       const double *x)
{
    bool merger = strstr(prefix, "merger") != NULL;
    double *h;

    if (b->in_norm != DT_NORM_NONE)
        x = norm(r, prefix, b->in_norm == DT_NORM_LAYERNORM ? "layer_norm" : "norm", rows,
                 b->in_dim, r->norm_eps, x);
    if (b->mid_dim == 0)
        return named(r, prefix, "linear", rows, b->in_dim, b->out_dim, x);
    h = named(r, prefix, merger ? "0" : "linear_1", rows, b->in_dim, b->mid_dim, x);
    h = map(r, rows * b->mid_dim, h, gelu);
    return named(r, prefix, merger ? "2" : "linear_2", rows, b->mid_dim, b->out_dim, h);
}

/* Of n rows each, in another order: square i is the order[i]-th. */
static double *squares(struct ref_module *r, int rows, int n, int width, const int *order,
                       const double *x)
{
    double *y = NEW(r, (size_t)rows * (size_t)width);

    for (int i = 0; i < rows / n; i++)
        memcpy(y + i * n * width, x + order[i] * n * width, (size_t)(n * width) * sizeof(*y));
    return y;
}

/* Of every n rows that follow each other. */
static double *means(struct ref_module *r, int rows, int n, int width, const double *x)
{
    double *y = NEW(r, (size_t)(rows / n) * (size_t)width);

    for (int i = 0; i < rows / n * width; i++)
        y[i] = 0;
    for (int i = 0; i < rows * width; i++)
        y[i / width / n * width + i % width] += x[i] / n;
    return y;
}

/* What the tensors of each kind of tower are called. */
static const struct tower {
    const char *top, *patch, *position, *layer, *norm_before, *norm_behind, *projector;
    const struct names *names;
} towers[DT_TOWER_N] = {
    {"", "embeddings.patch_embeddings.projection", "embeddings.position_embeddings",
     "encoder.layer.", "pre_layrnorm", "layernorm", "multi_modal_projector.", &vit_names},
    {"vision_model.", "embeddings.patch_embedding", "embeddings.position_embedding.weight",
     "encoder.layers.", "pre_layrnorm", "post_layernorm", "multi_modal_projector.", &clip_names},
    {"visual.", "patch_embed.proj", "none", "blocks.", "none", "merger.ln_q", "visual.merger.mlp.",
     &qwen_vl_names},
};

void ref_encoder(struct ref_module *r, const struct ref_encoder_in *in, double *out)
{
    const struct dt_module *m = r->m;
    const struct dt_block *p = &m->blocks[0];
    const struct tower *t = &towers[m->tower_names];
    int width = p->patch * p->patch * p->channels, h = p->hidden, layer = 0, rows = in->rows;
    double *x = named(r, t->top, t->patch, rows, width, h, in->pixels);
    const double *pos = ref_get(r, "%s%s", t->top, t->position);
    char prefix[64];

    r->cell = in->cell;
    r->window = in->window;
    for (int i = 0; pos && i < rows * h; i++)
        x[i] += pos[in->pos[i / h] * h + i % h];
    for (int i = 1; i < m->n_blocks; i++) {
        const struct dt_block *b = &m->blocks[i];

        if (b->kind == DT_BLOCK_TRANSFORMER) {
            snprintf(prefix, sizeof(prefix), "%s%s%d.", t->top, t->layer, layer++);
            x = llama_or_vit(r, b, prefix,
                             b->gated && t->names == &qwen_vl_names ? &qwen25_vl_names : t->names,
                             rows, in->image, NULL, x);
        } else if (b->kind == DT_BLOCK_NORM) {
            x = norm(r, t->top, i == 1 ? t->norm_before : t->norm_behind, rows, h, r->norm_eps, x);
        } else { /* merged patches stand side by side */
            x = squares(r, rows, b->merge > 1 ? b->merge * b->merge : 1, h, in->square, x);
            if (b->pool)
                x = means(r, rows, b->merge * b->merge, h, x);
            rows = b->pool ? rows / (b->merge * b->merge) : rows * h / b->in_dim;
            x = project(r, b, t->projector, rows, x);
            h = b->out_dim;
        }
    }
    memcpy(out, x, (size_t)(rows * h) * sizeof(double));
    dt_arena_free(&r->arena);
}

/* ---- U-Net, one image at a time ---- */

struct act { /* NHWC of one image */
    int h, w, c;
    double *v;
};

static struct act conv(struct ref_module *r, const char *prefix, const char *name, struct act x,
                       int out, int kernel, int stride)
{
    char text[96];
    struct act y = {(x.h + 2 * (kernel / 2) - kernel) / stride + 1,
                    (x.w + 2 * (kernel / 2) - kernel) / stride + 1, out, NULL};
    const double *w, *b;

    snprintf(text, sizeof(text), "%s.weight", name);
    w = must(r, prefix, text);
    snprintf(text, sizeof(text), "%s.bias", name);
    b = must(r, prefix, text);
    y.v = NEW(r, (size_t)(y.h * y.w) * (size_t)out);
    for (int i = 0; i < y.h; i++)
        for (int j = 0; j < y.w; j++)
            for (int o = 0; o < out; o++) {
                double s = b[o];

                for (int ky = 0; ky < kernel; ky++)
                    for (int kx = 0; kx < kernel; kx++) {
                        int sy = i * stride + ky - kernel / 2, sx = j * stride + kx - kernel / 2;

                        if (sy < 0 || sy >= x.h || sx < 0 || sx >= x.w)
                            continue;
                        for (int c = 0; c < x.c; c++)
                            s += x.v[(sy * x.w + sx) * x.c + c] *
                                 w[((o * x.c + c) * kernel + ky) * kernel + kx];
                    }
                y.v[(i * y.w + j) * out + o] = s;
            }
    return y;
}

static struct act group_norm(struct ref_module *r, const struct dt_block *block, const char *prefix,
                             const char *name, struct act x, double eps, bool with_silu)
{
    const double *g = ref_get(r, "%s%s.weight", prefix, name),
                 *b = ref_get(r, "%s%s.bias", prefix, name);
    int groups = dt_block_groups(block, x.c), each = x.c / groups, px = x.h * x.w;
    struct act y = x;

    y.v = NEW(r, (size_t)px * (size_t)x.c);
    for (int k = 0; k < groups; k++) {
        double mean = 0, var = 0, n = (double)each * px;

        for (int i = 0; i < px; i++)
            for (int c = k * each; c < (k + 1) * each; c++)
                mean += x.v[i * x.c + c] / n;
        for (int i = 0; i < px; i++)
            for (int c = k * each; c < (k + 1) * each; c++)
                var += (x.v[i * x.c + c] - mean) * (x.v[i * x.c + c] - mean) / n;
        for (int i = 0; i < px; i++)
            for (int c = k * each; c < (k + 1) * each; c++) {
                double t = (x.v[i * x.c + c] - mean) / sqrt(var + eps) * g[c] + b[c];

                y.v[i * x.c + c] = with_silu ? silu(t) : t;
            }
    }
    return y;
}

static struct act res_block(struct ref_module *r, const struct dt_block *b, const char *p,
                            struct act x, const double *time)
{
    struct act h =
        conv(r, p, "conv1", group_norm(r, b, p, "norm1", x, r->norm_eps, true), b->c_out, 3, 1);
    double *e =
        named(r, p, "time_emb_proj", 1, b->time_dim, b->c_out, map(r, b->time_dim, time, silu));

    for (int i = 0; i < h.h * h.w * h.c; i++)
        h.v[i] += e[i % h.c];
    h = conv(r, p, "conv2", group_norm(r, b, p, "norm2", h, r->norm_eps, true), b->c_out, 3, 1);
    if (b->c_in != b->c_out)
        x = conv(r, p, "conv_shortcut", x, b->c_out, 1, 1);
    h.v = plus(r, h.h * h.w * h.c, h.v, x.v);
    return h;
}

static double *basic_block(struct ref_module *r, const struct dt_block *b, const char *p, int rows,
                           double *x, const double *states)
{
    int c = b->hidden, w = b->heads * b->head_dim, f = b->ffn;
    int len = states ? b->context_len : rows, cw = states ? b->context_dim : c;
    int *zero = DT_ARENA_NEW(&r->arena, int, rows + len);
    double *n = norm(r, p, "norm1", rows, c, 1e-5, x), *q, *k, *v, *h;
    const double *s = states;

    q = named(r, p, "attn1.to_q", rows, c, w, n);
    k = named(r, p, "attn1.to_k", rows, c, w, n);
    v = named(r, p, "attn1.to_v", rows, c, w, n);
    h = attention(r, rows, rows, zero, zero, b->heads, b->heads, b->head_dim, false,
                  1 / sqrt(b->head_dim), q, k, v);
    x = plus(r, rows * c, x, named(r, p, "attn1.to_out.0", rows, w, c, h));
    n = norm(r, p, "norm2", rows, c, 1e-5, x);
    s = s ? s : n;
    q = named(r, p, "attn2.to_q", rows, c, w, n);
    k = named(r, p, "attn2.to_k", len, cw, w, s);
    v = named(r, p, "attn2.to_v", len, cw, w, s);
    h = attention(r, rows, len, zero, zero, b->heads, b->heads, b->head_dim, false,
                  1 / sqrt(b->head_dim), q, k, v);
    x = plus(r, rows * c, x, named(r, p, "attn2.to_out.0", rows, w, c, h));
    n = norm(r, p, "norm3", rows, c, 1e-5, x);
    h = named(r, p, "ff.net.0.proj", rows, c, 2 * f, n);
    n = NEW(r, (size_t)rows * (size_t)f);
    for (int i = 0; i < rows * f; i++)
        n[i] = h[i / f * 2 * f + i % f] * gelu(h[i / f * 2 * f + f + i % f]);
    return plus(r, rows * c, x, named(r, p, "ff.net.2", rows, f, c, n));
}

static struct act spatial(struct ref_module *r, const struct dt_block *b, const char *p,
                          struct act x, const double *states)
{
    int rows = x.h * x.w;
    struct act y = group_norm(r, b, p, "norm", x, 1e-6, false);
    char q[128];

    y.v = named(r, p, "proj_in", rows, x.c, x.c, y.v);
    for (int i = 0; i < b->depth; i++) {
        snprintf(q, sizeof(q), "%stransformer_blocks.%d.", p, i);
        y.v = basic_block(r, b, q, rows, y.v, b->context_len > 0 ? states : NULL);
    }
    y.v = plus(r, rows * x.c, named(r, p, "proj_out", rows, x.c, x.c, y.v), x.v);
    return y;
}

static struct act join(struct ref_module *r, struct act a, struct act b)
{
    struct act y = {a.h, a.w, a.c + b.c, NULL};

    y.v = NEW(r, (size_t)(a.h * a.w) * (size_t)y.c);
    for (int i = 0; i < a.h * a.w; i++) {
        memcpy(y.v + i * y.c, a.v + i * a.c, (size_t)a.c * sizeof(double));
        memcpy(y.v + i * y.c + a.c, b.v + i * b.c, (size_t)b.c * sizeof(double));
    }
    return y;
}

static struct act twice(struct ref_module *r, struct act x)
{
    struct act y = {2 * x.h, 2 * x.w, x.c, NULL};

    y.v = NEW(r, (size_t)(y.h * y.w) * (size_t)y.c);
    for (int i = 0; i < y.h; i++)
        for (int j = 0; j < y.w; j++)
            memcpy(y.v + (i * y.w + j) * y.c, x.v + (i / 2 * x.w + j / 2) * x.c,
                   (size_t)x.c * sizeof(double));
    return y;
}

/* diffusers' forward, driven by the shape of its configuration rather than by our list of blocks:
 * levels, ResBlocks per level and attention flags are read off the tensors that exist. */
struct unet {
    struct ref_module *r;
    const struct dt_block *block; /* the next one in the list, for widths only */
    const double *time, *states;
};

static const struct dt_block *next(struct unet *u, enum dt_block_kind k)
{
    while (u->block->kind != k)
        u->block++;
    return u->block++;
}

static struct act pair(struct unet *u, const char *where, int i, struct act x)
{
    char p[96];

    snprintf(p, sizeof(p), "%sresnets.%d.", where, i);
    x = res_block(u->r, next(u, DT_BLOCK_RESNET), p, x, u->time);
    if (!ref_get(u->r, "%sattentions.%d.norm.weight", where, i))
        return x;
    snprintf(p, sizeof(p), "%sattentions.%d.", where, i);
    return spatial(u->r, next(u, DT_BLOCK_SPATIAL_TRANSFORMER), p, x, u->states);
}

static struct act unet(struct unet *u, struct act x, int out_channels)
{
    const struct dt_block *last = &u->r->m->blocks[u->r->m->n_blocks - 1];
    struct act skip[64];
    char where[64], p[96];
    int n = 0, c0 = u->block->c_out;

    x = conv(u->r, "", "conv_in", x, c0, 3, 1);
    skip[n++] = x;
    for (int l = 0; snprintf(where, sizeof(where), "down_blocks.%d.", l),
             ref_get(u->r, "%sresnets.0.conv1.weight", where);
         l++) {
        for (int i = 0; ref_get(u->r, "%sresnets.%d.conv1.weight", where, i); i++)
            skip[n++] = x = pair(u, where, i, x);
        if (ref_get(u->r, "%sdownsamplers.0.conv.weight", where))
            skip[n++] = x = conv(u->r, where, "downsamplers.0.conv", x, x.c, 3, 2);
    }
    x = pair(u, "mid_block.", 0, x);
    snprintf(p, sizeof(p), "mid_block.resnets.1.");
    x = res_block(u->r, next(u, DT_BLOCK_RESNET), p, x, u->time);
    for (int l = 0; snprintf(where, sizeof(where), "up_blocks.%d.", l),
             ref_get(u->r, "%sresnets.0.conv1.weight", where);
         l++) {
        for (int i = 0; ref_get(u->r, "%sresnets.%d.conv1.weight", where, i); i++)
            x = pair(u, where, i, join(u->r, x, skip[--n]));
        if (ref_get(u->r, "%supsamplers.0.conv.weight", where))
            x = conv(u->r, where, "upsamplers.0.conv", twice(u->r, x), x.c, 3, 1);
    }
    x = group_norm(u->r, last, "", "conv_norm_out", x, u->r->norm_eps, true);
    return conv(u->r, "", "conv_out", x, out_channels, 3, 1);
}

static double *time_embedding(struct ref_module *r, const struct dt_block *b, double t)
{
    double *sin_cos = NEW(r, b->hidden);
    int half = b->hidden / 2;

    for (int i = 0; i < half; i++) {
        double a = t * exp(-log(10000.0) * i / (half - r->m->arith.freq_shift));
        bool sine_first = r->m->arith.sine_first;

        sin_cos[i] = sine_first ? sin(a) : cos(a);
        sin_cos[half + i] = sine_first ? cos(a) : sin(a);
    }
    return named(r, "time_embedding.", "linear_2", 1, b->time_dim, b->time_dim,
                 map(r, b->time_dim,
                     named(r, "time_embedding.", "linear_1", 1, b->hidden, b->time_dim, sin_cos),
                     silu));
}

double ref_unet(struct ref_module *r, const struct ref_unet_in *in, double *pred)
{
    const struct dt_module *m = r->m;
    const struct dt_block *proj = m->blocks[0].kind == DT_BLOCK_PROJECTOR ? &m->blocks[0] : NULL;
    const struct dt_block *time = proj ? &m->blocks[1] : &m->blocks[0], *first = time + 1;
    int ctx = 0, width = 0, at = 0, out = m->blocks[m->n_blocks - 1].c_out;
    double loss = 0;

    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].kind == DT_BLOCK_SPATIAL_TRANSFORMER) {
            ctx = m->blocks[i].context_len;
            width = proj ? proj->in_dim : m->blocks[i].context_dim;
        }
    for (int i = 0; i < in->n; i++) {
        int h = in->hw[i][0], w = in->hw[i][1], n = h * w * first->c_in;
        struct unet u = {r, first, time_embedding(r, time, in->t[i]), in->states + i * ctx * width};
        struct act x = {h, w, first->c_in, NEW(r, n)};
        double sse = 0;

        if (proj)
            u.states = project(r, proj, "context_projector.", ctx, u.states);
        for (int k = 0; k < n; k++)
            x.v[k] = in->alpha[i] * in->x0[at + k] + in->sigma[i] * in->noise[at + k];
        x = unet(&u, x, out);
        for (int k = 0; k < n; k++) {
            double e = x.v[k] - in->noise[at + k];

            sse += e * e;
            if (pred)
                pred[at + k] = x.v[k];
        }
        loss += in->scale * sse / n;
        at += n;
    }
    dt_arena_free(&r->arena);
    return loss;
}
