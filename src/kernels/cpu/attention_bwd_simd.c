/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention, backward (Dao 2023): scores are rebuilt block by block from q, k and the log-sum-exp.
 *
 *   task = (sequence, key/value head)             its query heads one after another, so that dk and
 *                                                 dv add up in order
 *     D = rowsum(do * o)
 *     for each block of keys
 *       for each ROWS queries                     p   = exp(s - lse)
 *                                                 dv += pᵀ do
 *                                                 ds  = p (do vᵀ - D) scale
 *                                                 dq += ds k
 *                                                 dk += dsᵀ q
 */
#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/tile.h"

enum { ROWS = 96, KEYS = 64 };

struct attn {
    struct dt_kernel_attention a;
    const void *q, *k, *v, *o, *d_o;
    const float *lse;
    void *dq, *dk, *dv;
    int64_t room;
    float *scratch;
    int64_t scratch_each;
};

struct work {
    float *q, *d_o, *dq; /* max_q x room: a head's queries, scaled; upstream gradient; result */
    float *dk, *dv;      /* max_k x room */
    float *k, *kt, *vt;  /* a block of keys */
    float *p, *ds;       /* ROWS x KEYS */
    float *dot;          /* max_q: D */
};

static int64_t carve(const struct attn *a, int thread, struct work *w)
{
    int64_t mq = a->a.max_q, mk = a->a.max_k, room = a->room;
    float *p;

    if (!w)
        return 3 * mq * room + 2 * mk * room + 3 * KEYS * room + 2 * ROWS * KEYS + mq + 64;
    p = a->scratch + thread * a->scratch_each;
    w->q = p, p += mq * room;
    w->d_o = p, p += mq * room;
    w->dq = p, p += mq * room;
    w->dk = p, p += mk * room;
    w->dv = p, p += mk * room;
    w->k = p, p += KEYS * room;
    w->kt = p, p += KEYS * room;
    w->vt = p, p += KEYS * room;
    w->p = p, p += ROWS * KEYS;
    w->ds = p, p += ROWS * KEYS;
    w->dot = p;
    return 0;
}

struct span { /* of one sequence */
    int64_t first_q, lq, first_k, lk;
};

static void block_pair(const struct attn *a, const struct work *w, const struct span *s,
                       const float *lse, int64_t r, int64_t n, int64_t k0, int64_t nk)
{
    int64_t d = a->a.head_dim, room = a->room, keys = dt_vec_round(nk), shift = s->lk - s->lq;

    dt_cpu_small_product(n, keys, d, w->q + r * room, room, 1, w->kt, KEYS, w->p, KEYS, false);
    dt_cpu_small_product(n, keys, d, w->d_o + r * room, room, 1, w->vt, KEYS, w->ds, KEYS, false);
    for (int64_t i = 0; i < n; i++) {
        float *p = w->p + i * KEYS, *ds = w->ds + i * KEYS, l = lse[r + i], dot = w->dot[r + i];
        int64_t seen = a->a.causal ? dt_cpu_min64(nk, r + i + shift + 1 - k0) : nk;

        if (l == -INFINITY || seen < 0)
            seen = 0;
        DT_SIMD_LOOP
        for (int64_t j = 0; j < seen; j++) {
            p[j] = dt_exp(p[j] - l);
            ds[j] = p[j] * (ds[j] - dot);
        }
        for (int64_t j = seen; j < nk; j++)
            p[j] = ds[j] = 0;
    }
    dt_cpu_small_product(nk, room, n, w->p, 1, KEYS, w->d_o + r * room, room, w->dv + k0 * room,
                         room, true);
    dt_cpu_small_product(n, room, nk, w->ds, KEYS, 1, w->k, room, w->dq + r * room, room, true);
    dt_cpu_small_product(nk, room, n, w->ds, 1, KEYS, w->q + r * room, room, w->dk + k0 * room,
                         room, true);
}

/* One query head of the sequence.  q carries the scale: s = q kᵀ and dk += dsᵀ q are right as they
 * are, dq wants it once more. */
DT_INLINE void head_pass(const struct attn *a, const struct work *w, const struct span *s,
                         int64_t head, int64_t kv, enum dt_dtype t)
{
    const struct dt_kernel_attention *p = &a->a;
    int64_t d = p->head_dim, room = a->room, shift = s->lk - s->lq;
    const float *lse = a->lse + head * p->rows_q + s->first_q;
    const void *o = dt_at(a->o, s->first_q * p->stride_o + head * d, t);

    dt_load_rows(dt_at(a->q, s->first_q * p->stride_q + head * d, t), p->stride_q, s->lq, d, room,
                 p->scale, w->q, t);
    dt_load_rows(dt_at(a->d_o, s->first_q * p->stride_o + head * d, t), p->stride_o, s->lq, d, room,
                 1.0f, w->d_o, t);
    for (int64_t r = 0; r < s->lq; r++) {
        const float *g = w->d_o + r * room;
        const void *orow = dt_at(o, r * p->stride_o, t);

        DT_SUM(w->dot[r], 0, d, g[i] * dt_ld(orow, i, t));
    }
    memset(w->dq, 0, sizeof(float) * (size_t)(s->lq * room));
    for (int64_t k0 = 0; k0 < s->lk; k0 += KEYS) {
        int64_t nk = dt_cpu_min64(KEYS, s->lk - k0), from = 0;
        const void *k = dt_at(a->k, (s->first_k + k0) * p->stride_k + kv * d, t);
        const void *v = dt_at(a->v, (s->first_k + k0) * p->stride_v + kv * d, t);

        if (p->causal)
            from = dt_cpu_min64(s->lq, dt_cpu_max64(0, k0 - shift));
        dt_load_rows(k, p->stride_k, nk, d, room, 1.0f, w->k, t);
        dt_load_transposed(k, p->stride_k, nk, d, KEYS, w->kt, t);
        dt_load_transposed(v, p->stride_v, nk, d, KEYS, w->vt, t);
        for (int64_t r = from; r < s->lq; r += ROWS)
            block_pair(a, w, s, lse, r, dt_cpu_min64(ROWS, s->lq - r), k0, nk);
    }
    for (int64_t i = 0; i < s->lq * room; i++)
        w->dq[i] *= p->scale;
    dt_store_rows(w->dq, room, s->lq, d, dt_at_w(a->dq, s->first_q * p->stride_q + head * d, t),
                  p->stride_q, t);
}

DT_INLINE void sequence(const struct attn *a, const struct work *w, int64_t seq, int64_t kv,
                        enum dt_dtype t)
{
    const struct dt_kernel_attention *p = &a->a;
    struct span s = {p->cu_q[seq], p->cu_q[seq + 1] - p->cu_q[seq], p->cu_k[seq],
                     p->cu_k[seq + 1] - p->cu_k[seq]};
    int64_t group = p->heads / p->kv_heads, d = p->head_dim;
    size_t bytes = sizeof(float) * (size_t)(s.lk * a->room);

    assert(s.lq <= p->max_q && s.lk <= p->max_k);
    memset(w->dk, 0, bytes);
    memset(w->dv, 0, bytes);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        head_pass(a, w, &s, h, kv, t);
    dt_store_rows(w->dk, a->room, s.lk, d, dt_at_w(a->dk, s.first_k * p->stride_k + kv * d, t),
                  p->stride_k, t);
    dt_store_rows(w->dv, a->room, s.lk, d, dt_at_w(a->dv, s.first_k * p->stride_v + kv * d, t),
                  p->stride_v, t);
}

static void task(void *arg, int64_t block, int thread)
{
    const struct attn *a = arg;
    int64_t kv = block % a->a.kv_heads, seq = block / a->a.kv_heads;
    struct work w;

    carve(a, thread, &w);
    DT_BY_TYPE(a->a.dtype, sequence, a, &w, seq, kv);
}

static void attention_bwd(struct dt_device_queue *q, const struct dt_kernel_attention *p,
                          const void *query, const void *key, const void *value, const void *o,
                          const float *lse, const void *d_o, void *dq, void *dk, void *dv)
{
    struct attn a = {.a = *p,
                     .q = query,
                     .k = key,
                     .v = value,
                     .o = o,
                     .d_o = d_o,
                     .lse = lse,
                     .dq = dq,
                     .dk = dk,
                     .dv = dv,
                     .room = dt_vec_round(p->head_dim)};

    assert(p->heads > 0 && p->kv_heads > 0 && p->heads % p->kv_heads == 0 && p->head_dim > 0);
    if (q->status != DT_OK || p->n_seq == 0)
        return;
    if (p->dtype == DT_BF16 && dt_cpu_of(q)->bf16) {
        DT_SIMD(dt_cpu_attention_bf16_bwd)
        (q, dt_cpu_of(q)->bf16, p, query, key, value, o, lse, d_o, dq, dk, dv);
        return;
    }
    a.scratch_each = dt_vec_round(carve(&a, 0, NULL));
    a.scratch =
        dt_cpu_scratch(q, DT_SCRATCH_KERNEL, sizeof(float) * (size_t)(a.scratch_each * q->threads));
    if (a.scratch)
        dt_cpu_for(q, p->n_seq * p->kv_heads, task, &a);
}

void DT_SIMD(dt_cpu_attention_bwd)(struct dt_kernels *k)
{
    k->attention_bwd = attention_bwd;
}
