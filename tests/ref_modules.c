/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "ref_impl.h"

#include "base/hash.h"
#include "base/rng.h"
#include "exec/modules/module.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

const double *ref_must(struct ref_module *r, const char *prefix, const char *name)
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

double *ref_named(struct ref_module *r, const char *prefix, const char *name, int rows, int in,
                  int out, const double *x)
{
    char text[160];

    snprintf(text, sizeof(text), "%s.weight", name);
    return linear(r, rows, in, out, x, ref_must(r, prefix, text),
                  ref_get(r, "%s%s.bias", prefix, name), false);
}

double *ref_layer_norm(struct ref_module *r, const char *prefix, const char *name, int rows,
                       int width, double eps, const double *x)
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

double ref_gelu(double x)
{
    return x / 2 * (1 + erf(x / sqrt(2.0)));
}
static double gelu_tanh(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double ref_silu(double x)
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
    static double (*const named_acts[])(double) = {NULL,       ref_gelu, gelu_tanh,
                                                   quick_gelu, ref_silu, relu};
    const struct dt_module_arithmetic *a = &r->m->arith;
    const struct dt_block *b = r->m->blocks;

    while (b < r->m->blocks + r->m->n_blocks - 1 && b->kind != DT_BLOCK_TRANSFORMER)
        b++;
    r->norm_eps = a->norm_eps > 0 ? a->norm_eps : r->m->role == DT_ROLE_ENCODER ? 1e-12 : 1e-5;
    r->act = a->activation ? named_acts[a->activation]
             : b->gated    ? ref_silu
             : r->gpt2     ? gelu_tanh
                           : ref_gelu;
}

double *ref_map(struct ref_module *r, int n, const double *x, double (*f)(double))
{
    double *y = NEW(r, n);

    for (int i = 0; i < n; i++)
        y[i] = f(x[i]);
    return y;
}

double *ref_plus(struct ref_module *r, int n, const double *a, const double *b)
{
    double *y = NEW(r, n);

    for (int i = 0; i < n; i++)
        y[i] = a[i] + b[i];
    return y;
}

/* Rows of q see rows of k that belong to the same number; causal: not later ones. */
double *ref_attend(struct ref_module *r, int nq, int nk, const int *of_q, const int *of_k,
                   int heads, int kv_heads, int dim, bool causal, double scale, const double *q,
                   const double *k, const double *v)
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
    double *u = ref_named(r, p, w[1], rows, b->hidden, width, x), *g;

    if (!b->gated) {
        u = ref_map(r, rows * width, u, r->act);
        return ref_named(r, p, w[2], rows, width, b->hidden, u);
    }
    g = ref_map(r, rows * width, ref_named(r, p, w[0], rows, b->hidden, width, x), r->act);
    for (int i = 0; i < rows * width; i++)
        u[i] *= g[i];
    return ref_named(r, p, w[2], rows, width, b->hidden, u);
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
    logits = ref_named(r, p, at, rows, b->hidden, n, x);
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
        logits = ref_named(r, p, at, rows, b->hidden, 1, x);
        for (int i = 0; i < rows * b->hidden; i++)
            x_shared[i] /= 1 + exp(-logits[i / b->hidden]);
    }
    return ref_plus(r, rows * b->hidden, y, x_shared);
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
    double *t = ref_layer_norm(r, p, n->norm1, rows, h, r->norm_eps, x), *u, *g, *qs, *ks, *vs;
    const int *seen = b->window > 0 ? r->window : doc;

    if (n->q) {
        qs = ref_named(r, p, n->q, rows, h, q, t);
        ks = ref_named(r, p, n->k, rows, h, kv, t);
        vs = ref_named(r, p, n->v, rows, h, kv, t);
    } else {
        u = ref_named(r, p, "attn.qkv", rows, h, 3 * q, t);
        qs = columns(r, rows, 3 * q, 0, q, u);
        ks = columns(r, rows, 3 * q, q, q, u);
        vs = columns(r, rows, 3 * q, 2 * q, q, u);
    }
    if (b->qk_norm) {
        qs =
            ref_layer_norm(r, p, "self_attn.q_norm", rows * b->heads, b->head_dim, r->norm_eps, qs);
        ks = ref_layer_norm(r, p, "self_attn.k_norm", rows * b->kv_heads, b->head_dim, r->norm_eps,
                            ks);
    }
    if (b->grid_rope) {
        rotate_cells(rows, b->heads, b->head_dim, &r->m->arith.rope, r->cell, qs);
        rotate_cells(rows, b->heads, b->head_dim, &r->m->arith.rope, r->cell, ks);
    }
    if (b->causal && b->max_pos == 0) {
        rotate(rows, b->heads, b->head_dim, &r->m->arith.rope, pos, qs);
        rotate(rows, b->kv_heads, b->head_dim, &r->m->arith.rope, pos, ks);
    }
    t = ref_attend(r, rows, rows, seen, seen, b->heads, b->kv_heads, b->head_dim, b->causal,
                   score_scale(r, b), qs, ks, vs);
    t = ref_plus(r, rows * h, x, drop(r, b, 0, rows, doc, ref_named(r, p, n->o, rows, q, h, t)));
    u = ref_layer_norm(r, p, n->norm2, rows, h, r->norm_eps, t);
    if (b->n_experts > 0)
        return ref_plus(r, rows * h, t, drop(r, b, 1, rows, doc, experts(r, b, p, rows, u)));
    if (b->gated) {
        g = ref_map(r, rows * b->ffn, ref_named(r, p, n->gate, rows, h, b->ffn, u), r->act);
        u = ref_named(r, p, n->up, rows, h, b->ffn, u);
        for (int i = 0; i < rows * b->ffn; i++)
            u[i] *= g[i];
    } else {
        u = ref_map(r, rows * b->ffn, ref_named(r, p, n->up, rows, h, b->ffn, u), r->act);
    }
    return ref_plus(r, rows * h, t,
                    drop(r, b, 1, rows, doc, ref_named(r, p, n->down, rows, b->ffn, h, u)));
}

static double *gpt2_layer(struct ref_module *r, const struct dt_block *b, const char *p, int rows,
                          const int *doc, const double *x)
{
    int h = b->hidden;
    double *t = ref_layer_norm(r, p, "ln_1", rows, h, r->norm_eps, x), *qkv, *part[3];

    qkv = linear(r, rows, h, 3 * h, t, ref_must(r, p, "attn.c_attn.weight"),
                 ref_must(r, p, "attn.c_attn.bias"), true);
    for (int j = 0; j < 3; j++) {
        part[j] = NEW(r, (size_t)rows * (size_t)h);
        for (int i = 0; i < rows; i++)
            memcpy(part[j] + i * h, qkv + i * 3 * h + j * h, (size_t)h * sizeof(double));
    }
    t = ref_attend(r, rows, rows, doc, doc, b->heads, b->heads, b->head_dim, true,
                   score_scale(r, b), part[0], part[1], part[2]);
    t = linear(r, rows, h, h, t, ref_must(r, p, "attn.c_proj.weight"),
               ref_must(r, p, "attn.c_proj.bias"), true);
    x = ref_plus(r, rows * h, x, drop(r, b, 0, rows, doc, t));
    t = ref_layer_norm(r, p, "ln_2", rows, h, r->norm_eps, x);
    t = linear(r, rows, h, b->ffn, t, ref_must(r, p, "mlp.c_fc.weight"),
               ref_must(r, p, "mlp.c_fc.bias"), true);
    t = ref_map(r, rows * b->ffn, t, r->act);
    t = linear(r, rows, b->ffn, h, t, ref_must(r, p, "mlp.c_proj.weight"),
               ref_must(r, p, "mlp.c_proj.bias"), true);
    return ref_plus(r, rows * h, x, drop(r, b, 1, rows, doc, t));
}

/* ---- language model ---- */

static double *embed(struct ref_module *r, const struct ref_llm_in *in, const struct dt_block *b,
                     const int *pos)
{
    const double *e =
        ref_must(r, "", r->gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    double *x = NEW(r, (size_t)in->rows * (size_t)b->hidden);
    int h = b->hidden;

    for (int i = 0; i < in->rows; i++)
        if (in->ids[i] >= 0)
            memcpy(x + i * h, e + in->ids[i] * h, (size_t)h * sizeof(double));
    for (int i = 0; i < in->n_in; i++)
        memcpy(x + in->in_row[i] * h, in->features + i * h, (size_t)h * sizeof(double));
    if (b->max_pos > 0) {
        e = ref_must(r, "", r->gpt2 ? "transformer.wpe.weight" : "model.embed_positions.weight");
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
    x = ref_layer_norm(r, "", r->gpt2 ? "transformer.ln_f" : "model.norm", in->rows, h, r->norm_eps,
                       x);
    for (int i = 0; cond && i < in->n_cond; i++)
        memcpy(cond + i * h, x + in->cond_row[i] * h, (size_t)h * sizeof(double));
    w = !head->tied
            ? ref_must(r, "", "lm_head.weight")
            : ref_must(r, "", r->gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
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
double *ref_project(struct ref_module *r, const struct dt_block *b, const char *prefix, int rows,
                    const double *x)
{
    bool merger = strstr(prefix, "merger") != NULL;
    double *h;

    if (b->in_norm != DT_NORM_NONE)
        x = ref_layer_norm(r, prefix, b->in_norm == DT_NORM_LAYERNORM ? "layer_norm" : "norm", rows,
                           b->in_dim, r->norm_eps, x);
    if (b->mid_dim == 0)
        return ref_named(r, prefix, "linear", rows, b->in_dim, b->out_dim, x);
    h = ref_named(r, prefix, merger ? "0" : "linear_1", rows, b->in_dim, b->mid_dim, x);
    h = ref_map(r, rows * b->mid_dim, h, ref_gelu);
    return ref_named(r, prefix, merger ? "2" : "linear_2", rows, b->mid_dim, b->out_dim, h);
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
    double *x = ref_named(r, t->top, t->patch, rows, width, h, in->pixels);
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
            x = ref_layer_norm(r, t->top, i == 1 ? t->norm_before : t->norm_behind, rows, h,
                               r->norm_eps, x);
        } else { /* merged patches stand side by side */
            x = squares(r, rows, b->merge > 1 ? b->merge * b->merge : 1, h, in->square, x);
            if (b->pool)
                x = means(r, rows, b->merge * b->merge, h, x);
            rows = b->pool ? rows / (b->merge * b->merge) : rows * h / b->in_dim;
            x = ref_project(r, b, t->projector, rows, x);
            h = b->out_dim;
        }
    }
    memcpy(out, x, (size_t)(rows * h) * sizeof(double));
    dt_arena_free(&r->arena);
}
