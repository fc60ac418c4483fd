/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention, forward (Dao et al. 2022): blocks of keys pass by a slab of queries whose running
 * maximum, sum and output are rescaled as larger scores appear.  Scores exist for ROWS x KEYS at a
 * time.
 *
 *   task = (sequence, head, slab of queries)      the slab's q and o stay in the second-level cache
 *     for each block of keys                      kᵀ and v of the block in fp32, loaded once a slab
 *       for each ROWS queries                     s = q kᵀ; p = exp(s - max); o = o * rescale + p v
 */
#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/tile.h"

enum { SLAB = 384, ROWS = 48, KEYS = 64 };

struct attn {
    struct dt_kernel_attention a;
    const void *q, *k, *v;
    void *o;
    float *lse;
    int64_t slabs; /* of the longest sequence */
    int64_t room;  /* head_dim in whole vectors */
    float *scratch;
    int64_t scratch_each;
};

struct work { /* a thread's share of the workspace */
    float *q, *o, *max, *sum, *kt, *v, *s;
};

static int64_t carve(const struct attn *a, int thread, struct work *w)
{
    float *p = a->scratch ? a->scratch + thread * a->scratch_each : NULL, *begin = p;

    if (!p)
        return (int64_t)SLAB * (2 * a->room + 2) + KEYS * 2 * a->room + (int64_t)ROWS * KEYS + 64;
    w->q = p, p += SLAB * a->room;
    w->o = p, p += SLAB * a->room;
    w->kt = p, p += KEYS * a->room;
    w->v = p, p += KEYS * a->room;
    w->s = p, p += ROWS * KEYS;
    w->max = p, p += SLAB;
    w->sum = p, p += SLAB;
    return p - begin;
}

/* Scores of one query to its probabilities; the row's state moves on and its output is rescaled. */
DT_INLINE void softmax_row(float *s, int64_t n, float *max, float *sum, float *o, int64_t room)
{
    float m, l, f;

    DT_MAXIMUM(m, 0, n, s[i]);
    m = dt_max(*max, m);
    if (m == -INFINITY) { /* sees nothing so far, or NaN, which no maximum shows */
        for (int64_t j = 0; j < n; j++) {
            s[j] = s[j] == -INFINITY ? 0 : s[j];
            *sum += s[j];
        }
        return;
    }
    DT_SIMD_LOOP
    for (int64_t j = 0; j < n; j++)
        s[j] = dt_exp(s[j] - m);
    DT_SUM(l, 0, n, s[i]);
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
    int64_t d = a->a.head_dim, room = a->room, keys = dt_vec_round(nk), skip = 0;

    if (a->a.causal && k0 - shift > q0) /* queries before the first key of the block */
        skip = dt_cpu_min64(nq, k0 - shift - q0);
    for (int64_t r = skip; r < nq; r += ROWS) {
        int64_t n = dt_cpu_min64(ROWS, nq - r);

        dt_cpu_small_product(n, keys, d, w->q + r * room, room, 1, w->kt, KEYS, w->s, KEYS, false);
        for (int64_t i = 0; i < n; i++) {
            float *s = w->s + i * KEYS;
            int64_t seen = a->a.causal ? dt_cpu_min64(nk, q0 + r + i + shift + 1 - k0) : nk;

            for (int64_t j = seen; j < nk; j++)
                s[j] = -INFINITY;
            softmax_row(s, nk, &w->max[r + i], &w->sum[r + i], w->o + (r + i) * room, room);
        }
        dt_cpu_small_product(n, room, nk, w->s, KEYS, 1, w->v, room, w->o + r * room, room, true);
    }
}

DT_INLINE void slab(const struct attn *a, const struct work *w, int64_t seq, int64_t head,
                    int64_t q0, enum dt_dtype t)
{
    const struct dt_kernel_attention *p = &a->a;
    int64_t first_q = p->cu_q[seq], lq = p->cu_q[seq + 1] - first_q;
    int64_t first_k = p->cu_k[seq], lk = p->cu_k[seq + 1] - first_k;
    int64_t nq = dt_cpu_min64(SLAB, lq - q0), d = p->head_dim, room = a->room, shift = lk - lq;
    int64_t kv = head / (p->heads / p->kv_heads), end = lk;
    const void *k = dt_at(a->k, first_k * p->stride_k + kv * d, t);
    const void *v = dt_at(a->v, first_k * p->stride_v + kv * d, t);

    if (nq <= 0)
        return;
    if (p->causal)
        end = dt_cpu_max64(0, dt_cpu_min64(lk, q0 + nq + shift));
    dt_load_rows(dt_at(a->q, (first_q + q0) * p->stride_q + head * d, t), p->stride_q, nq, d, room,
                 p->scale, w->q, t);
    memset(w->o, 0, sizeof(float) * (size_t)(nq * room));
    for (int64_t i = 0; i < nq; i++) {
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
    }
    for (int64_t k0 = 0; k0 < end; k0 += KEYS) {
        int64_t nk = dt_cpu_min64(KEYS, end - k0);

        dt_load_transposed(dt_at(k, k0 * p->stride_k, t), p->stride_k, nk, d, KEYS, w->kt, t);
        dt_load_rows(dt_at(v, k0 * p->stride_v, t), p->stride_v, nk, d, room, 1.0f, w->v, t);
        key_block(a, w, q0, nq, k0, nk, shift);
    }
    for (int64_t i = 0; i < nq; i++) {
        float inv = w->sum[i] == 0 ? 0 : 1.0f / w->sum[i];

        for (int64_t c = 0; c < d; c++)
            w->o[i * room + c] *= inv;
        a->lse[head * p->rows_q + first_q + q0 + i] =
            w->sum[i] == 0 ? -INFINITY : w->max[i] + logf(w->sum[i]);
    }
    dt_store_rows(w->o, room, nq, d, dt_at_w(a->o, (first_q + q0) * p->stride_o + head * d, t),
                  p->stride_o, t);
}

static void task(void *arg, int64_t block, int thread)
{
    const struct attn *a = arg;
    int64_t s = block % a->slabs, head = block / a->slabs % a->a.heads;
    int64_t seq = block / a->slabs / a->a.heads;
    struct work w;

    carve(a, thread, &w);
    DT_BY_TYPE(a->a.dtype, slab, a, &w, seq, head, s * SLAB);
}

static void attention_fwd(struct dt_device_queue *q, const struct dt_kernel_attention *p,
                          const void *query, const void *key, const void *value, void *o,
                          float *lse)
{
    struct attn a = {.a = *p, .q = query, .k = key, .v = value, .o = o, .lse = lse};

    assert(p->heads > 0 && p->kv_heads > 0 && p->heads % p->kv_heads == 0 && p->head_dim > 0);
    if (q->status != DT_OK || p->n_seq == 0 || p->rows_q == 0)
        return;
    if (p->dtype == DT_BF16 && dt_cpu_of(q)->bf16) {
        DT_SIMD(dt_cpu_attention_bf16_fwd)
        (q, dt_cpu_of(q)->bf16, p, query, key, value, o, lse);
        return;
    }
    a.slabs = dt_cpu_max64(1, dt_cpu_blocks(p->max_q, SLAB));
    a.room = dt_vec_round(p->head_dim);
    a.scratch_each = dt_vec_round(carve(&a, 0, NULL));
    a.scratch =
        dt_cpu_scratch(q, DT_SCRATCH_KERNEL, sizeof(float) * (size_t)(a.scratch_each * q->threads));
    if (a.scratch)
        dt_cpu_for(q, p->n_seq * p->heads * a.slabs, task, &a);
}

/* ---- keys in parts ---- */

struct rows {
    enum dt_dtype t;
    struct dt_kernel_attention a;
    int64_t n, per;
    const void *part;
    const float *part_lse;
    float *o, *lse;
};

/* Weights of what there is and of the part: their shares of the sum of exp(score). */
DT_INLINE void join(const struct rows *a, int64_t begin, int64_t end, enum dt_dtype t)
{
    int64_t d = a->a.head_dim;

    for (int64_t r = begin; r < end; r++)
        for (int64_t h = 0; h < a->a.heads; h++) {
            int64_t at = h * a->a.rows_q + r, from = r * a->a.stride_o + h * d;
            float max = dt_max(a->lse[at], a->part_lse[at]), old, new, sum;

            if (a->part_lse[at] == -INFINITY) /* the row sees none of its keys */
                continue;
            old = expf(a->lse[at] - max);
            new = expf(a->part_lse[at] - max);
            sum = old + new;
            old /= sum;
            new /= sum;
            DT_SIMD_LOOP
            for (int64_t i = from; i < from + d; i++)
                a->o[i] = old * a->o[i] + new *dt_ld(a->part, i, t);
            a->lse[at] = max + logf(sum);
        }
}
DT_ROWS_BLOCK_FN(join_block, join)

static void attention_join(struct dt_device_queue *q, const struct dt_kernel_attention *p,
                           const void *part, const float *part_lse, float *o, float *lse)
{
    struct rows a = {.t = p->dtype,
                     .a = *p,
                     .n = p->rows_q,
                     .per = dt_cpu_block_rows((int64_t)p->heads * p->head_dim),
                     .part = part,
                     .part_lse = part_lse,
                     .o = o,
                     .lse = lse};

    if (q->status == DT_OK)
        dt_cpu_for(q, dt_cpu_blocks(a.n, a.per), join_block, &a);
}

void DT_SIMD(dt_cpu_attention)(struct dt_kernels *k)
{
    k->attention_fwd = attention_fwd;
    k->attention_join = attention_join;
}
