/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hand-made profiles, clusters and models for tests and benchmarks of cost and memory.  The times
 * are of a made-up device: smooth functions above its roofline, so that expectations can be
 * computed. */
#ifndef DT_TESTS_COST_FIXTURE_H
#define DT_TESTS_COST_FIXTURE_H

#include "core/cost/cost.h"
#include "core/model/plan.h"
#include "plan_modes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct fixture {
    struct dt_cluster cluster;
    struct dt_profile profile;
    struct dt_model model;
    int64_t cap;
};

static inline void fx_row(struct fixture *f, int family, int phase, int kind, const int64_t *d,
                          int n, double ns)
{
    struct dt_profile *p = &f->profile;
    struct dt_profile_row *r;

    if (p->n_rows == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 256;
        p->rows = realloc(p->rows, (size_t)f->cap * sizeof(*p->rows));
        if (!p->rows)
            abort();
    }
    r = &p->rows[p->n_rows++];
    memset(r, 0, sizeof(*r));
    r->family = family;
    r->phase = phase;
    r->kind = kind;
    r->n = 1;
    memcpy(r->d, d, (size_t)n * sizeof(*d));
    r->median_ns = r->p10_ns = r->p90_ns = ns;
}

static inline int fx_cmp(const void *pa, const void *pb)
{
    const struct dt_profile_row *a = pa, *b = pb;

    if (a->family != b->family)
        return a->family - b->family;
    if (a->phase != b->phase)
        return a->phase - b->phase;
    for (int i = 0; i < 6; i++) {
        if (a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    }
    return 0;
}

/* Sorts the rows and fills the index: call after the last fx_row. */
static inline void fx_index(struct fixture *f)
{
    struct dt_profile *p = &f->profile;
    int64_t at = 0;

    if (p->n_rows)
        qsort(p->rows, (size_t)p->n_rows, sizeof(*p->rows), fx_cmp);
    for (int family = 0; family < DT_KOP_FAMILY_N; family++) {
        for (int phase = 0; phase <= DT_PHASE_N; phase++) {
            p->first[family][phase] = at;
            while (phase < DT_PHASE_N && at < p->n_rows && p->rows[at].family == family &&
                   p->rows[at].phase == phase)
                at++;
        }
    }
}

static inline void fx_init(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->cluster = (struct dt_cluster){.name = "made-up",
                                     .device = "made-up",
                                     .nodes = 8,
                                     .gpus_per_node = 8,
                                     .peak_flops = 312e12,
                                     .mem_bytes = 80e9,
                                     .mem_reserve_bytes = 3.5e9,
                                     .hbm_bytes_per_s = 2.039e12,
                                     .nvlink_bytes_per_s = 160e9,
                                     .nvlink_latency_s = 3.1e-6,
                                     .nics_per_node = 4,
                                     .nic_bytes_per_s = 25e9,
                                     .nic_efficiency = 0.94,
                                     .nic_latency_s = 17e-6,
                                     .fabric_oversubscription = 1};
    strcpy(f->profile.device, "made-up");
    strcpy(f->profile.dtype, "bf16");
}

static inline void fx_free(struct fixture *f)
{
    free(f->profile.rows);
    dt_arena_free(&f->model.arena);
}

/* ns of the made-up device: a launch, then 79 % of peak or 83 % of HBM, overlapped */
static inline double fx_gemm_ns(double m, double n, double k)
{
    double flops = 2 * m * n * k, bytes = 2 * (m * n + n * k + m * k);

    return 3137 + hypot(flops / 312e12 / 0.79 * 1e9, bytes / 2.039e12 / 0.83 * 1e9);
}
static inline double fx_stream_ns(double bytes)
{
    return 2713 + bytes / 2.039e12 / 0.83 * 1e9;
}
/* bus bandwidth 148 GB/s after 19 us */
static inline double fx_coll_ns(int family, double gpus, double bytes)
{
    double factor = (family == DT_KOP_ALL_REDUCE ? 2 : 1) * (gpus - 1) / gpus;

    return 3e3 * gpus + bytes * factor / 148e9 * 1e9;
}

static inline void fx_attention(struct fixture *f, int family)
{
    for (int64_t b = 1; b <= 64; b *= 4) {
        for (int64_t s = 128; s <= 16384; s *= 2) {
            for (int64_t h = 2; h <= 64; h *= 2) {
                for (int64_t kv = 1; kv <= h; kv *= 2) {
                    int64_t d[5] = {b, s, h, kv, 128};
                    double flops =
                        (family == DT_KOP_ATTN_CAUSAL ? 2.0 : 4.0) * b * h * 128.0 * s * s;
                    double ns = 9171 + flops / 312e12 / 0.47 * 1e9 +
                                4.0 * b * s * 128 * (h + kv) / 2.039e12 / 0.83 * 1e9;

                    if (b * s > 65536)
                        continue; /* as in real tables: the corner that does not fit is absent */
                    fx_row(f, family, DT_PHASE_FWD, DT_ROW_MEASURED, d, 5, ns);
                    d[4] = 80;
                    fx_row(f, family, DT_PHASE_FWD, DT_ROW_MEASURED, d, 5, ns * 0.7);
                }
            }
        }
    }
}

static inline void fx_collectives(struct fixture *f)
{
    for (int family = DT_KOP_ALL_REDUCE; family <= DT_KOP_ALL_TO_ALL; family++) {
        for (int64_t g = 2; g <= 8; g *= 2) {
            for (int64_t bytes = 1024; bytes <= 1 << 29; bytes *= 4) {
                int64_t d[3] = {g, g, bytes};

                fx_row(f, family, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3,
                       fx_coll_ns(family, (double)g, (double)bytes));
            }
        }
    }
    for (int64_t where = 1; where <= 2; where++) {
        for (int64_t bytes = 2048; bytes <= 1 << 28; bytes *= 4) {
            int64_t d[2] = {where, bytes};

            fx_row(f, DT_KOP_SEND_RECV, DT_PHASE_FWD, DT_ROW_MEASURED, d, 2,
                   where == 2 ? 7913 + bytes / 151e9 * 1e9 : 23871 + bytes / 7.8e9 * 1e9);
        }
    }
}

static inline void fx_pointwise(struct fixture *f)
{
    static const int families[] = {DT_KOP_NORM, DT_KOP_ACT, DT_KOP_ADD, DT_KOP_ROPE, DT_KOP_EMBED};

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        for (int64_t t = 16; t <= 1 << 16; t *= 2) {
            for (int64_t w = 1024; w <= 1 << 16; w *= 4) {
                int64_t d[3] = {t, w, 0};
                double tw = (double)t * (double)w;
                int fam = families[i];

                fx_row(f, fam, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3,
                       fx_stream_ns((fam == DT_KOP_ADD ? 6 : 4) * tw));
                if (fam == DT_KOP_ACT) {
                    d[2] = 1;
                    fx_row(f, fam, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3, fx_stream_ns(6 * tw));
                }
            }
        }
    }
}

/* Every family a transformer needs; kernels with `backward` measured apart when asked for. */
static inline void fx_profile(struct fixture *f, bool backward)
{
    for (int64_t m = 16; m <= 1 << 16; m *= 2) {
        for (int64_t n = 256; n <= 1 << 16; n *= 4) {
            for (int64_t k = 256; k <= 1 << 16; k *= 4) {
                int64_t d[3] = {m, n, k};
                double ns = fx_gemm_ns((double)m, (double)n, (double)k);

                fx_row(f, DT_KOP_GEMM, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3, ns);
                if (backward) {
                    fx_row(f, DT_KOP_GEMM, DT_PHASE_DGRAD, DT_ROW_MEASURED, d, 3, ns * 1.031);
                    fx_row(f, DT_KOP_GEMM, DT_PHASE_WGRAD, DT_ROW_MEASURED, d, 3, ns * 1.087);
                }
            }
        }
    }
    fx_attention(f, DT_KOP_ATTN_CAUSAL);
    fx_attention(f, DT_KOP_ATTN_FULL);
    fx_pointwise(f);
    fx_collectives(f);
    fx_index(f);
}

static inline struct dt_module *fx_module(struct fixture *f, const char *name,
                                          enum dt_module_role role, int blocks)
{
    struct dt_module *m = &f->model.modules[f->model.n_modules++];

    memset(m, 0, sizeof(*m));
    strcpy(m->name, name);
    m->role = role;
    m->n_blocks = blocks;
    m->blocks = DT_ARENA_NEW(&f->model.arena, struct dt_block, blocks);
    if (!m->blocks)
        abort();
    return m;
}

static inline struct dt_block fx_layer(int hidden, int ffn, int heads, int kv, bool causal)
{
    struct dt_block b;

    memset(&b, 0, sizeof(b));
    b.kind = DT_BLOCK_TRANSFORMER;
    b.hidden = hidden;
    b.ffn = ffn;
    b.heads = heads;
    b.kv_heads = kv;
    b.head_dim = hidden / heads;
    b.causal = causal;
    b.gated = causal;
    b.layernorm = !causal;
    return b;
}

/* Embedding, `layers` layers, head. */
static inline int fx_llm(struct fixture *f, int layers, int hidden, int ffn, int heads, int kv,
                         int vocab)
{
    struct dt_module *m = fx_module(f, "llm", DT_ROLE_LLM, layers + 2);

    m->blocks[0].kind = DT_BLOCK_EMBEDDING;
    m->blocks[layers + 1].kind = DT_BLOCK_LM_HEAD;
    m->blocks[0].hidden = m->blocks[layers + 1].hidden = hidden;
    m->blocks[0].vocab = m->blocks[layers + 1].vocab = vocab;
    for (int i = 1; i <= layers; i++)
        m->blocks[i] = fx_layer(hidden, ffn, heads, kv, true);
    m->out_width = hidden;
    f->model.llm = f->model.n_modules - 1;
    return f->model.llm;
}

/* `layers` bidirectional layers and a projector to the LLM. */
static inline int fx_vit(struct fixture *f, int layers, int hidden, int ffn, int heads, int out)
{
    struct dt_module *m = fx_module(f, "vit", DT_ROLE_ENCODER, layers + 1);

    m->modality = DT_MODALITY_IMAGE;
    for (int i = 0; i < layers; i++)
        m->blocks[i] = fx_layer(hidden, ffn, heads, heads, false);
    m->blocks[layers].kind = DT_BLOCK_PROJECTOR;
    m->blocks[layers].in_dim = hidden;
    m->blocks[layers].out_dim = out;
    m->out_width = out;
    return f->model.n_modules - 1;
}

static inline struct dt_block_shard fx_shard(int tp)
{
    return (struct dt_block_shard){.tp = tp, .cp = 1, .ep = 1, .ip = 1, .seqpar = tp > 1};
}

static inline struct dt_work fx_text(int64_t n, int64_t seq)
{
    return (struct dt_work){n, n * seq, n * seq * seq, seq};
}

#endif
