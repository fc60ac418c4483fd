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
    struct dt_kernel_attention a;
    const struct dt_cpu_bf16_ops *ops;
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
        return 4 * (SLAB * room + ROWS * KEYS + (DT_BF16_WIDTH + 1) * SLAB) +
               2 * (SLAB * room + 2 * KEYS * room + ROWS * KEYS);
    f = (float *)(void *)(a->scratch + thread * a->each);
    w->o = f, f += SLAB * room;
    w->s = f, f += ROWS * KEYS;
    w->max = f, f += SLAB;
    w->sum = f, f += DT_BF16_WIDTH * SLAB;
    h = (uint16_t *)f;
    w->q = h, h += SLAB * room;
    w->kt = h, h += KEYS * room;
    w->v = h, h += KEYS * room;
    w->p = h;
    return 0;
}

/* One block of keys against the slab.  `shift` = lk - lq: causal query i sees keys j <= i + shift.
 */
static void key_block(const struct attn *a, const struct work *w, int64_t q0, int64_t nq,
                      int64_t k0, int64_t nk, int64_t shift)
{
    int64_t room = a->room, keys = dt_up_to(nk, DT_BF16_K), skip = 0;

    if (a->a.causal && k0 - shift > q0) /* queries before the first key of the block */
        skip = dt_cpu_min64(nq, k0 - shift - q0) / ROWS * ROWS;
    for (int64_t r = skip; r < nq; r += ROWS) {
        int64_t n = dt_cpu_min64(ROWS, nq - r), rows = dt_up_to(n, DT_BF16_MN);

        a->ops->product(rows, keys, room, w->q + r * room, room, w->kt, KEYS, w->s, KEYS, false);
        for (int64_t i = 0; i < n; i++) {
            int64_t seen = a->a.causal ? dt_cpu_min64(nk, q0 + r + i + shift + 1 - k0) : nk;

            a->ops->probabilities(w->s + i * KEYS, keys, dt_cpu_max64(0, seen), a->a.scale,
                                  &w->max[r + i], w->sum + (r + i) * DT_BF16_WIDTH,
                                  w->o + (r + i) * room, room, w->p + i * KEYS);
        }
        memset(w->p + n * KEYS, 0, sizeof(*w->p) * (size_t)((rows - n) * KEYS));
        a->ops->product(rows, room, keys, w->p, KEYS, w->v, room, w->o + r * room, room, true);
    }
}

static void store(const struct attn *a, const struct work *w, int64_t nq, uint16_t *o, float *lse)
{
    for (int64_t i = 0; i < nq; i++) {
        float sum, inv;
        const float *from = w->o + i * a->room;
        uint16_t *to = o + i * a->a.stride_o;

        for (int l = 1; l < DT_BF16_WIDTH; l++)
            w->sum[i * DT_BF16_WIDTH] += w->sum[i * DT_BF16_WIDTH + l];
        sum = w->sum[i * DT_BF16_WIDTH];
        inv = sum == 0 ? 0 : 1.0f / sum;
        DT_SIMD_LOOP
        for (int64_t c = 0; c < a->a.head_dim; c++)
            to[c] = dt_bf16_from_f32(inv * from[c]);
        lse[i] = sum == 0 ? -INFINITY : w->max[i] + logf(sum);
    }
}

static void slab(const struct attn *a, const struct work *w, int64_t seq, int64_t head, int64_t q0)
{
    const struct dt_kernel_attention *p = &a->a;
    int64_t first_q = p->cu_q[seq], lq = p->cu_q[seq + 1] - first_q;
    int64_t first_k = p->cu_k[seq], lk = p->cu_k[seq + 1] - first_k;
    int64_t nq = dt_cpu_min64(SLAB, lq - q0), d = p->head_dim, room = a->room, shift = lk - lq;
    int64_t kv = head / (p->heads / p->kv_heads), end = lk;
    const uint16_t *k = a->k + first_k * p->stride_k + kv * d;
    const uint16_t *v = a->v + first_k * p->stride_v + kv * d;

    if (nq <= 0)
        return;
    if (p->causal)
        end = dt_cpu_max64(0, dt_cpu_min64(lk, q0 + nq + shift));
    dt_bf16_rows(a->q + (first_q + q0) * p->stride_q + head * d, p->stride_q, nq, d,
                 dt_up_to(nq, DT_BF16_MN), room, w->q);
    memset(w->o, 0, sizeof(float) * (size_t)(dt_up_to(nq, DT_BF16_MN) * room));
    memset(w->sum, 0, sizeof(float) * (size_t)(nq * DT_BF16_WIDTH));
    for (int64_t i = 0; i < nq; i++)
        w->max[i] = -INFINITY;
    for (int64_t k0 = 0; k0 < end; k0 += KEYS) {
        int64_t nk = dt_cpu_min64(KEYS, end - k0);

        a->ops->turn_pairs(k + k0 * p->stride_k, p->stride_k, nk, d, KEYS, room, w->kt);
        dt_bf16_pairs(v + k0 * p->stride_v, p->stride_v, nk, d, dt_up_to(nk, DT_BF16_K), room,
                      w->v);
        nk = dt_cpu_min64(KEYS, end - k0 - KEYS);
        dt_bf16_soon(k + (k0 + KEYS) * p->stride_k, p->stride_k, nk, d);
        dt_bf16_soon(v + (k0 + KEYS) * p->stride_v, p->stride_v, nk, d);
        nk = dt_cpu_min64(KEYS, end - k0);
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
    a->ops->begin();
    slab(a, &w, block / a->slabs / a->a.heads, head, s * SLAB);
    a->ops->end();
}

void DT_SIMD(dt_cpu_attention_bf16_fwd)(struct dt_device_queue *q,
                                        const struct dt_cpu_bf16_ops *ops,
                                        const struct dt_kernel_attention *p, const void *query,
                                        const void *key, const void *value, void *o, float *lse)
{
    struct attn a = {.a = *p,
                     .ops = ops,
                     .q = query,
                     .k = key,
                     .v = value,
                     .o = o,
                     .lse = lse,
                     .slabs = dt_cpu_max64(1, dt_cpu_blocks(p->max_q, SLAB)),
                     .room = dt_up_to(p->head_dim, DT_BF16_K)};

    a.each = dt_up_to(carve(&a, 0, NULL), 64);
    a.scratch = dt_cpu_scratch(q, DT_SCRATCH_KERNEL, (size_t)(a.each * q->threads));
    if (a.scratch)
        dt_cpu_for(q, p->n_seq * p->heads * a.slabs, task, &a);
}
