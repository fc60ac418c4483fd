/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention of bf16, forward: the walk of attention_simd.c with products of bf16.
 *
 *   task = (sequence, head, slab of queries)
 *     for each block of keys                      kᵀ and v in pairs, made once a slab
 *       for each ROWS queries                     s = q kᵀ; p = bf16(exp(s - max)); o = o f + p v
 */
#include "kernels/cpu/attention_bf16.h"

enum { SLAB = 384, ROWS = 48, KEYS = 64 };

struct attn {
    struct dt_attention a;
    dt_bf16_product_fn *product;
    const uint16_t *q, *k, *v;
    uint16_t *o;
    float *lse;
    int64_t slabs; /* of the longest sequence */
    int64_t room;  /* head_dim in whole tiles */
    char *scratch;
    int64_t each; /* bytes of a thread's share */
};

struct work { /* a thread's share of the workspace */
    float *o, *s, *max, *sum;
    uint16_t *q, *kt, *v, *p;
};

static int64_t carve(const struct attn *a, int thread, struct work *w)
{
    int64_t room = a->room;
    float *f;
    uint16_t *h;

    if (!w)
        return 4 * (SLAB * room + ROWS * KEYS + 2 * SLAB) +
               2 * (SLAB * room + 2 * KEYS * room + ROWS * KEYS);
    f = (float *)(void *)(a->scratch + thread * a->each);
    w->o = f, f += SLAB * room;
    w->s = f, f += ROWS * KEYS;
    w->max = f, f += SLAB;
    w->sum = f, f += SLAB;
    h = (uint16_t *)f;
    w->q = h, h += SLAB * room;
    w->kt = h, h += KEYS * room;
    w->v = h, h += KEYS * room;
    w->p = h;
    return 0;
}

/* Scores of one query to its probabilities, zeros behind the `seen` keys. */
DT_INLINE void softmax_row(float *s, uint16_t *p, int64_t seen, float scale, float *max, float *sum,
                           float *o, int64_t room)
{
    float m, l, f;

    memset(p, 0, sizeof(*p) * KEYS);
    if (seen <= 0)
        return;
    DT_MAXIMUM(m, 0, seen, scale * s[i]);
    m = dt_max(*max, m);
    if (m == -INFINITY)
        return;
    DT_SIMD_LOOP
    for (int64_t j = 0; j < seen; j++)
        s[j] = dt_exp(scale * s[j] - m);
    DT_SUM(l, 0, seen, s[i]);
    DT_SIMD_LOOP
    for (int64_t j = 0; j < seen; j++)
        p[j] = dt_to_bf16(s[j]);
    if (m == *max) {
        *sum += l;
        return;
    }
    f = *max == -INFINITY ? 0.0f : dt_exp(*max - m);
    *sum = *sum * f + l;
    *max = m;
    DT_SIMD_LOOP
    for (int64_t i = 0; i < room; i++)
        o[i] *= f;
}

/* One block of keys against the slab.  `shift` = lk - lq: causal query i sees keys j <= i + shift.
 */
static void key_block(const struct attn *a, const struct work *w, int64_t q0, int64_t nq,
                      int64_t k0, int64_t nk, int64_t shift)
{
    int64_t room = a->room, keys = dt_up_to(nk, DT_BF16_K), skip = 0;

    if (a->a.causal && k0 - shift > q0) /* queries before the first key of the block */
        skip = dt_min64(nq, k0 - shift - q0) / ROWS * ROWS;
    for (int64_t r = skip; r < nq; r += ROWS) {
        int64_t n = dt_min64(ROWS, nq - r), rows = dt_up_to(n, DT_BF16_MN);

        a->product(rows, keys, room, w->q + r * room, room, w->kt, KEYS, w->s, KEYS, false);
        for (int64_t i = 0; i < n; i++) {
            int64_t seen = a->a.causal ? dt_min64(nk, q0 + r + i + shift + 1 - k0) : nk;

            softmax_row(w->s + i * KEYS, w->p + i * KEYS, seen, a->a.scale, &w->max[r + i],
                        &w->sum[r + i], w->o + (r + i) * room, room);
        }
        memset(w->p + n * KEYS, 0, sizeof(*w->p) * (size_t)((rows - n) * KEYS));
        a->product(rows, room, keys, w->p, KEYS, w->v, room, w->o + r * room, room, true);
    }
}

static void store(const struct attn *a, const struct work *w, int64_t nq, uint16_t *o, float *lse)
{
    for (int64_t i = 0; i < nq; i++) {
        float inv = w->sum[i] > 0 ? 1.0f / w->sum[i] : 0;
        const float *from = w->o + i * a->room;
        uint16_t *to = o + i * a->a.stride_o;

        DT_SIMD_LOOP
        for (int64_t c = 0; c < a->a.head_dim; c++)
            to[c] = dt_to_bf16(inv * from[c]);
        lse[i] = w->sum[i] > 0 ? w->max[i] + logf(w->sum[i]) : -INFINITY;
    }
}

static void slab(const struct attn *a, const struct work *w, int64_t seq, int64_t head, int64_t q0)
{
    const struct dt_attention *p = &a->a;
    int64_t first_q = p->cu_q[seq], lq = p->cu_q[seq + 1] - first_q;
    int64_t first_k = p->cu_k[seq], lk = p->cu_k[seq + 1] - first_k;
    int64_t nq = dt_min64(SLAB, lq - q0), d = p->head_dim, room = a->room, shift = lk - lq;
    int64_t kv = head / (p->heads / p->kv_heads), end = lk;
    const uint16_t *k = a->k + first_k * p->stride_k + kv * d;
    const uint16_t *v = a->v + first_k * p->stride_v + kv * d;

    if (nq <= 0)
        return;
    if (p->causal)
        end = dt_max64(0, dt_min64(lk, q0 + nq + shift));
    dt_bf16_rows(a->q + (first_q + q0) * p->stride_q + head * d, p->stride_q, nq, d,
                 dt_up_to(nq, DT_BF16_MN), room, w->q);
    memset(w->o, 0, sizeof(float) * (size_t)(dt_up_to(nq, DT_BF16_MN) * room));
    for (int64_t i = 0; i < nq; i++) {
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
    }
    for (int64_t k0 = 0; k0 < end; k0 += KEYS) {
        int64_t nk = dt_min64(KEYS, end - k0);

        dt_bf16_transposed_pairs(k + k0 * p->stride_k, p->stride_k, nk, d, KEYS, room, w->kt);
        dt_bf16_pairs(v + k0 * p->stride_v, p->stride_v, nk, d, dt_up_to(nk, DT_BF16_K), room,
                      w->v);
        key_block(a, w, q0, nq, k0, nk, shift);
    }
    store(a, w, nq, a->o + (first_q + q0) * p->stride_o + head * d,
          a->lse + head * p->rows_q + first_q + q0);
}

static void task(void *arg, int64_t block, int thread)
{
    const struct attn *a = arg;
    int64_t s = block % a->slabs, head = block / a->slabs % a->a.heads;
    struct work w;

    carve(a, thread, &w);
    slab(a, &w, block / a->slabs / a->a.heads, head, s * SLAB);
}

void DT_SIMD(dt_cpu_attention_bf16_fwd)(struct dt_queue *q, dt_bf16_product_fn *product,
                                        const struct dt_attention *p, const void *query,
                                        const void *key, const void *value, void *o, float *lse)
{
    struct attn a = {.a = *p,
                     .product = product,
                     .q = query,
                     .k = key,
                     .v = value,
                     .o = o,
                     .lse = lse,
                     .slabs = dt_max64(1, dt_blocks(p->max_q, SLAB)),
                     .room = dt_up_to(p->head_dim, DT_BF16_K)};

    a.each = dt_up_to(carve(&a, 0, NULL), 64);
    a.scratch = dt_cpu_scratch(q, DT_SCRATCH_KERNEL, (size_t)(a.each * q->threads));
    if (a.scratch)
        dt_cpu_for(q, p->n_seq * p->heads * a.slabs, task, &a);
}
