/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention of bf16, backward: the walk of attention_bwd_simd.c.  Blocks of scores are made
 * transposed, keys down and queries across, so that they come out as the left operands that dk and
 * dv take; dq grows transposed and takes them in pairs.
 *
 *   D = rowsum(do * o)
 *   for each block of keys, for each ROWS queries
 *       sᵀ = k qᵀ           p = exp(s - lse)         dv += bf16(p)ᵀ do
 *       dpᵀ = v doᵀ         ds = p (dp - D)          dk += bf16(ds)ᵀ q      dqᵀ += kᵀ bf16(ds)ᵀ */
#include "kernels/cpu/attention_bf16.h"

enum { ROWS = 64, KEYS = 64 };

struct attn {
    struct dt_kernel_attention a;
    const struct dt_cpu_bf16_ops *ops;
    const uint16_t *q, *k, *v, *o, *d_o;
    const float *lse;
    uint16_t *dq, *dk, *dv;
    int64_t room; /* head_dim in whole tiles */
    int64_t rooms_q, rooms_k;
    char *scratch;
    int64_t each; /* bytes of a thread's share */
};

struct work {
    float *dq;            /* per ROWS queries room x ROWS: transposed */
    float *dk, *dv;       /* rooms_k x room */
    float *s, *dp;        /* KEYS x ROWS */
    float *dot, *lse;     /* rooms_q: D, and the log-sum-exp, +inf where p is 0 */
    uint16_t *qt, *dot_t; /* per ROWS queries room x ROWS: qᵀ, doᵀ in pairs */
    uint16_t *q, *d_o;    /* rooms_q x room in pairs */
    uint16_t *k, *v;      /* KEYS x room, rows */
    uint16_t *kt;         /* room x KEYS, rows */
    uint16_t *p, *ds;     /* KEYS x ROWS */
    uint32_t *ds_2;       /* the same in pairs */
};

static int64_t carve(const struct attn *a, int thread, struct work *w)
{
    int64_t q = a->rooms_q * a->room, k = a->rooms_k * a->room, block = KEYS * ROWS;
    float *f;
    uint16_t *h;

    if (!w)
        return 4 * (q + 2 * k + 2 * block + 2 * a->rooms_q) +
               2 * (4 * q + 3 * KEYS * a->room + 3 * block);
    f = (float *)(void *)(a->scratch + thread * a->each);
    w->dq = f, f += q;
    w->dk = f, f += k;
    w->dv = f, f += k;
    w->s = f, f += block;
    w->dp = f, f += block;
    w->dot = f, f += a->rooms_q;
    w->lse = f, f += a->rooms_q;
    w->ds_2 = (uint32_t *)(void *)f, f += block / 2;
    h = (uint16_t *)f;
    w->qt = h, h += q;
    w->dot_t = h, h += q;
    w->q = h, h += q;
    w->d_o = h, h += q;
    w->k = h, h += KEYS * a->room;
    w->v = h, h += KEYS * a->room;
    w->kt = h, h += KEYS * a->room;
    w->p = h, h += block;
    w->ds = h;
    return 0;
}

struct span { /* of one sequence */
    int64_t first_q, lq, first_k, lk;
};

/* `rows` queries: ROWS, or at the end as many as whole tiles hold. */
static void block_pair(const struct attn *a, const struct work *w, const struct span *s, int64_t r,
                       int64_t k0, int64_t nk)
{
    int64_t room = a->room, keys = dt_up_to(nk, DT_BF16_K), shift = s->lk - s->lq;
    int64_t rows = dt_up_to(dt_cpu_min64(ROWS, s->lq - r), DT_BF16_K), at = r * room;
    dt_cpu_bf16_product_fn *product = a->ops->product;

    product(keys, rows, room, w->k, room, w->qt + at, ROWS, w->s, rows, false);
    product(keys, rows, room, w->v, room, w->dot_t + at, ROWS, w->dp, rows, false);
    for (int64_t j = 0; j < keys; j += 2) {
        int64_t from[2];

        for (int h = 0; h < 2; h++) {
            from[h] = a->a.causal ? k0 + j + h - shift - r : 0;
            if (j + h >= nk)
                from[h] = rows;
        }
        a->ops->gradients(rows, w->s + j * rows, w->dp + j * rows, w->lse + r, w->dot + r,
                          a->a.scale, from, w->p + j * rows, w->ds + j * rows,
                          w->ds_2 + j / 2 * rows);
    }
    product(keys, room, rows, w->p, rows, w->d_o + at, room, w->dv + k0 * room, room, true);
    product(keys, room, rows, w->ds, rows, w->q + at, room, w->dk + k0 * room, room, true);
    product(room, rows, keys, w->kt, KEYS, (const uint16_t *)w->ds_2, rows, w->dq + at, ROWS, true);
}

/* The head's queries, upstream gradients and what goes with each row. */
static void load_head(const struct attn *a, const struct work *w, const struct span *s,
                      int64_t head, int64_t rooms)
{
    const struct dt_kernel_attention *p = &a->a;
    int64_t d = p->head_dim, room = a->room;
    const uint16_t *q = a->q + s->first_q * p->stride_q + head * d;
    const uint16_t *g = a->d_o + s->first_q * p->stride_o + head * d;
    const uint16_t *o = a->o + s->first_q * p->stride_o + head * d;
    const float *lse = a->lse + head * p->rows_q + s->first_q;

    for (int64_t r = 0; r < s->lq; r += ROWS) {
        int64_t n = dt_cpu_min64(ROWS, s->lq - r);

        a->ops->turn_pairs(q + r * p->stride_q, p->stride_q, n, d, ROWS, room, w->qt + r * room);
        a->ops->turn_pairs(g + r * p->stride_o, p->stride_o, n, d, ROWS, room, w->dot_t + r * room);
    }
    dt_bf16_pairs(q, p->stride_q, s->lq, d, rooms, room, w->q);
    dt_bf16_pairs(g, p->stride_o, s->lq, d, rooms, room, w->d_o);
    for (int64_t r = 0; r < rooms; r++) {
        w->dot[r] = 0;
        w->lse[r] = r < s->lq && lse[r] != -INFINITY ? lse[r] : INFINITY;
        if (r < s->lq)
            DT_SUM(w->dot[r], 0, d,
                   dt_bf16_to_f32(g[r * p->stride_o + i]) * dt_bf16_to_f32(o[r * p->stride_o + i]));
    }
}

static void head_pass(const struct attn *a, const struct work *w, const struct span *s,
                      int64_t head, int64_t kv)
{
    const struct dt_kernel_attention *p = &a->a;
    int64_t d = p->head_dim, room = a->room, shift = s->lk - s->lq, rooms = dt_up_to(s->lq, ROWS);
    uint16_t *dq = a->dq + s->first_q * p->stride_q + head * d;

    load_head(a, w, s, head, rooms);
    memset(w->dq, 0, sizeof(float) * (size_t)(room * rooms));
    for (int64_t k0 = 0; k0 < s->lk; k0 += KEYS) {
        int64_t nk = dt_cpu_min64(KEYS, s->lk - k0), from = 0;
        const uint16_t *k = a->k + (s->first_k + k0) * p->stride_k + kv * d;
        const uint16_t *v = a->v + (s->first_k + k0) * p->stride_v + kv * d;

        if (p->causal)
            from = dt_cpu_max64(0, k0 - shift) / ROWS * ROWS;
        dt_bf16_rows(k, p->stride_k, nk, d, KEYS, room, w->k);
        dt_bf16_rows(v, p->stride_v, nk, d, KEYS, room, w->v);
        a->ops->turn(k, p->stride_k, nk, d, KEYS, room, w->kt);
        for (int64_t r = from; r < s->lq; r += ROWS)
            block_pair(a, w, s, r, k0, nk);
    }
    for (int64_t r = 0; r < s->lq; r += ROWS)
        a->ops->store_turned(w->dq + r * room, ROWS, dt_cpu_min64(ROWS, s->lq - r), d, p->scale,
                             dq + r * p->stride_q, p->stride_q);
}

static void store(const float *from, int64_t room, int64_t rows, int64_t width, float f,
                  uint16_t *to, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++) {
        DT_SIMD_LOOP
        for (int64_t i = 0; i < width; i++)
            to[r * stride + i] = dt_bf16_from_f32(f * from[r * room + i]);
    }
}

static void task(void *arg, int64_t block, int thread)
{
    const struct attn *a = arg;
    const struct dt_kernel_attention *p = &a->a;
    int64_t kv = block % p->kv_heads, seq = block / p->kv_heads;
    struct span s = {p->cu_q[seq], p->cu_q[seq + 1] - p->cu_q[seq], p->cu_k[seq],
                     p->cu_k[seq + 1] - p->cu_k[seq]};
    int64_t group = p->heads / p->kv_heads, d = p->head_dim;
    size_t bytes = sizeof(float) * (size_t)(dt_up_to(s.lk, KEYS) * a->room);
    struct work w;

    assert(s.lq <= p->max_q && s.lk <= p->max_k);
    carve(a, thread, &w);
    a->ops->begin();
    memset(w.dk, 0, bytes);
    memset(w.dv, 0, bytes);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        head_pass(a, &w, &s, h, kv);
    store(w.dk, a->room, s.lk, d, p->scale, a->dk + s.first_k * p->stride_k + kv * d, p->stride_k);
    store(w.dv, a->room, s.lk, d, 1.0f, a->dv + s.first_k * p->stride_v + kv * d, p->stride_v);
    a->ops->end();
}

void DT_SIMD(dt_cpu_attention_bf16_bwd)(struct dt_device_queue *q,
                                        const struct dt_cpu_bf16_ops *ops,
                                        const struct dt_kernel_attention *p, const void *query,
                                        const void *key, const void *value, const void *o,
                                        const float *lse, const void *d_o, void *dq, void *dk,
                                        void *dv)
{
    struct attn a = {.a = *p,
                     .ops = ops,
                     .q = query,
                     .k = key,
                     .v = value,
                     .o = o,
                     .d_o = d_o,
                     .lse = lse,
                     .dq = dq,
                     .dk = dk,
                     .dv = dv,
                     .room = dt_up_to(p->head_dim, DT_BF16_K),
                     .rooms_q = dt_up_to(p->max_q, ROWS),
                     .rooms_k = dt_up_to(p->max_k, KEYS)};

    a.each = dt_up_to(carve(&a, 0, NULL), 64);
    a.scratch = dt_cpu_scratch(q, DT_SCRATCH_KERNEL, (size_t)(a.each * q->threads));
    if (a.scratch)
        dt_cpu_for(q, p->n_seq * p->kv_heads, task, &a);
}
