/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention and rotary positions. */
#include "kernel_util.h"
#include "ref_kernels.h"

enum { PLACES = 6 };

struct attn_case {
    struct dt_kernel_attention a;
    double *q, *k, *v, *o, *lse;
    const double *d_o;
    int64_t size_o;
};

static double attn_loss(void *ctx)
{
    struct attn_case *c = ctx;
    double s = 0;

    memset(c->o, 0, sizeof(double) * (size_t)c->size_o);
    ref_attention(&c->a, c->q, c->k, c->v, c->o, c->lse);
    for (int64_t i = 0; i < c->size_o; i++)
        s += c->o[i] * c->d_o[i];
    return s;
}

/* Only heads' columns: the gaps between them belong to others and must stay. */
static void keep_columns(double *v, int64_t rows, int64_t stride, int64_t width)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = width; i < stride; i++)
            v[r * stride + i] = 0;
}

/* What our kernels keep to; the graph that cuDNN gets also rounds the probabilities, once they are divided by their sum. */
static double output_tol(const struct kt *k)
{
    return kt_tol(k->t) + (k->dev[0]->info.library[0] ? 0x1p-9 : 0);
}

static void check(struct kt *k, const struct dt_kernel_attention *shape, int64_t pad)
{
    struct attn_case c = {.a = *shape};
    struct dt_kernel_attention *a = &c.a;
    int64_t wq = (int64_t)a->heads * a->head_dim, wk = (int64_t)a->kv_heads * a->head_dim;

    a->dtype = k->t;
    a->rows_q = a->cu_q[a->n_seq];
    a->rows_k = a->cu_k[a->n_seq];
    for (int64_t s = 0; s < a->n_seq; s++) {
        if (a->cu_q[s + 1] - a->cu_q[s] > a->max_q)
            a->max_q = a->cu_q[s + 1] - a->cu_q[s];
        if (a->cu_k[s + 1] - a->cu_k[s] > a->max_k)
            a->max_k = a->cu_k[s + 1] - a->cu_k[s];
    }
    a->stride_q = wq + pad;
    a->stride_k = wk + pad;
    a->stride_v = wk + 2 * pad;
    a->stride_o = wq + 3 * pad;
    a->scale = 1.0f / sqrtf((float)a->head_dim);
    int64_t nq = a->rows_q * a->stride_q, nk = a->rows_k * a->stride_k;
    int64_t nv = a->rows_k * a->stride_v, no = a->rows_q * a->stride_o;
    struct buf q = buf_new(k, nq, k->t, 1.385, 0), key = buf_new(k, nk, k->t, 1.2, 0.1);
    struct buf v = buf_new(k, nv, k->t, 1.1, 0.3), o = buf_new(k, no, k->t, 0, 0);
    struct buf d_o = buf_new(k, no, k->t, 1, 0),
               lse = buf_new(k, a->heads * a->rows_q, DT_F32, 1, 0);
    struct buf dq = buf_new(k, nq, k->t, 0, 0), dk = buf_new(k, nk, k->t, 0, 0);
    struct buf dv = buf_new(k, nv, k->t, 0, 0);
    double *want = calloc((size_t)no + 1, sizeof(double)),
           *l = calloc((size_t)lse.n + 1, sizeof(double));

    struct dt_kernel_attention on_device = *a;
    size_t cu = (size_t)(a->n_seq + 1) * sizeof(*a->cu_q);

    on_device.cu_q = kt_give(k, a->cu_q, cu);
    on_device.cu_k = a->cu_k == a->cu_q ? on_device.cu_q : kt_give(k, a->cu_k, cu);
    keep_columns(d_o.v, a->rows_q, a->stride_o, wq);
    for (int th = 0; th < 2; th++) {
        buf_reset(&o), buf_reset(&dq), buf_reset(&dk), buf_reset(&dv), buf_reset(&d_o);
        k->k->attention_fwd(k->q[th], &on_device, q.p, key.p, v.p, o.p, lse.p);
        k->k->attention_bwd(k->q[th], &on_device, q.p, key.p, v.p, o.p, lse.p, d_o.p, dq.p, dk.p,
                            dv.p);
        kt_same(k, th, &o), kt_same(k, th, &lse);
        kt_same(k, th, &dq), kt_same(k, th, &dk), kt_same(k, th, &dv);
    }
    ref_attention(a, q.v, key.v, v.v, want, l);
    kt_all_near(k, "attention", &o, want, output_tol(k));
    kt_all_near(k, "log-sum-exp", &lse, l, 1e-5);
    c.q = q.v, c.k = key.v, c.v = v.v, c.o = want, c.lse = l, c.d_o = d_o.v, c.size_o = no;
    /* bf16: o is rounded before rowsum(do o), which is what dq and dk subtract */
    double tol = k->t == DT_BF16 ? 0x1p-6 : 5e-5;
    kt_gradient(k, "dq", &dq, NULL, c.q, attn_loss, &c, ref_slope, PLACES, tol);
    kt_gradient(k, "dk", &dk, NULL, c.k, attn_loss, &c, ref_slope, PLACES, tol);
    kt_gradient(k, "dv", &dv, NULL, c.v, attn_loss, &c, ref_slope, PLACES, tol);
    free(want), free(l);
    buf_free(&q), buf_free(&key), buf_free(&v), buf_free(&o), buf_free(&d_o), buf_free(&lse);
    buf_free(&dq), buf_free(&dk), buf_free(&dv);
}

START_TEST(test_attention)
{
    static const int32_t one[] = {0, 1}, two[] = {0, 70, 201}, many[] = {0, 3, 3, 50, 51, 120};
    static const int32_t kv[] = {0, 9, 20, 20, 97, 99}, big[] = {0, 450}, q2[] = {0, 5, 30};
    static const int32_t k2[] = {0, 77, 154}, kfew[] = {0, 3, 33};
    struct kt k;

    if (_i >= 2 && getenv("DT_TEST_SLOW")) /* valgrind: one instruction set will do */
        return;
    if (_i >= KT_CASES && _i % 2 == 0) /* these differ in bf16 only */
        return;
    kt_open(&k, _i);
    for (int causal = 0; causal < 2; causal++) {
        bool b = causal;

        check(&k,
              &(struct dt_kernel_attention){.causal = b,
                                            .heads = 1,
                                            .kv_heads = 1,
                                            .head_dim = 1,
                                            .n_seq = 1,
                                            .cu_q = one,
                                            .cu_k = one},
              0);
        check(&k,
              &(struct dt_kernel_attention){.causal = b,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .head_dim = 20,
                                            .n_seq = 2,
                                            .cu_q = two,
                                            .cu_k = two},
              5);
        check(&k,
              &(struct dt_kernel_attention){.causal = b,
                                            .heads = 3,
                                            .kv_heads = 3,
                                            .head_dim = 16,
                                            .n_seq = 5,
                                            .cu_q = many,
                                            .cu_k = many},
              0);
        /* more queries than keys, none at all, a sequence without queries */
        check(&k,
              &(struct dt_kernel_attention){.causal = b,
                                            .heads = 3,
                                            .kv_heads = 1,
                                            .head_dim = 24,
                                            .n_seq = 5,
                                            .cu_q = many,
                                            .cu_k = kv},
              3);
        /* the same with rows that tensor cores can take */
        check(&k,
              &(struct dt_kernel_attention){.causal = b,
                                            .heads = 3,
                                            .kv_heads = 1,
                                            .head_dim = 24,
                                            .n_seq = 5,
                                            .cu_q = many,
                                            .cu_k = kv},
              8);
        check(&k,
              &(struct dt_kernel_attention){.causal = b,
                                            .heads = 2,
                                            .kv_heads = 2,
                                            .head_dim = 40,
                                            .n_seq = 2,
                                            .cu_q = q2,
                                            .cu_k = k2},
              0);
        check(&k,
              &(struct dt_kernel_attention){.causal = b,
                                            .heads = 2,
                                            .kv_heads = 2,
                                            .head_dim = 9,
                                            .n_seq = 2,
                                            .cu_q = q2,
                                            .cu_k = kfew},
              0);
        if (_i < 2 || _i >= KT_CASES) /* more than one slab of queries */
            check(&k,
                  &(struct dt_kernel_attention){.causal = b,
                                                .heads = 1,
                                                .kv_heads = 1,
                                                .head_dim = 64,
                                                .n_seq = 1,
                                                .cu_q = big,
                                                .cu_k = big},
                  0);
    }
    kt_close(&k);
}
END_TEST

/* Keys in parts, as they come round a ring: first those of others before a sequence's own rows, then these, which are
 * causal, then others again.  Some sequences have none in a part, and some rows none at first. */
enum { P_SEQS = 5, P_HEADS = 4, P_KV = 2, P_PARTS = 3 };
/* Heads, and gaps between rows, as tensor cores do not and do take them. */
static const struct {
    int dim, pad;
} p_widths[] = {{20, 3}, {64, 8}};
static int p_dim, p_pad;
static const int32_t p_cu[P_PARTS][P_SEQS + 1] = {
    {0, 7, 7, 40, 40, 41}, {0, 3, 12, 50, 51, 120}, {0, 0, 33, 34, 34, 110}};

static struct dt_kernel_attention part_of(struct kt *k, int part)
{
    const int32_t *cu = p_cu[1];
    struct dt_kernel_attention a = {.dtype = k->t,
                                    .causal = part == 1,
                                    .heads = P_HEADS,
                                    .kv_heads = P_KV,
                                    .head_dim = p_dim,
                                    .n_seq = P_SEQS,
                                    .cu_q = kt_give(k, cu, sizeof(p_cu[1])),
                                    .cu_k = kt_give(k, p_cu[part], sizeof(p_cu[part])),
                                    .rows_q = cu[P_SEQS],
                                    .rows_k = p_cu[part][P_SEQS],
                                    .max_q = 69,
                                    .max_k = 76,
                                    .stride_q = P_HEADS * p_dim,
                                    .stride_k = P_KV * p_dim,
                                    .stride_v = P_KV * p_dim,
                                    .stride_o = P_HEADS * p_dim + p_pad,
                                    .scale = 0.3f};

    return a;
}

/* All parts' rows of x by sequence, own ones last: what the reference sees at once. */
static void line_up(const struct buf x[P_PARTS], int32_t cu[P_SEQS + 1], double *out)
{
    static const int order[P_PARTS] = {0, 2, 1};
    int32_t rows = 0;

    for (int s = 0; s < P_SEQS; s++) {
        cu[s] = rows;
        for (int o = 0; o < P_PARTS; o++) {
            const int32_t *at = &p_cu[order[o]][s];

            memcpy(out + rows * P_KV * p_dim, x[order[o]].v + at[0] * P_KV * p_dim,
                   sizeof(double) * (size_t)((at[1] - at[0]) * P_KV * p_dim));
            rows += at[1] - at[0];
        }
    }
    cu[P_SEQS] = rows;
}

/* What came of the parts, all of a sequence's rows side by side like the keys that `line_up` made. */
static struct buf lined_up(struct buf x[P_PARTS], int64_t n)
{
    struct buf all = {.n = n, .got = calloc((size_t)n, sizeof(double))};
    int32_t cu[P_SEQS + 1];
    struct buf got[P_PARTS];

    for (int i = 0; i < P_PARTS; i++)
        got[i] = (struct buf){.v = x[i].got};
    line_up(got, cu, all.got);
    return all;
}

/* The gradients of what all parts together give: each part's come of the whole's output and sums. */
static void back_in_parts(struct kt *k, const struct dt_kernel_attention *whole, struct buf *q,
                          struct buf key[P_PARTS], struct buf v[P_PARTS], const struct buf *o,
                          const struct buf *lse, struct attn_case *c)
{
    int64_t no = whole->rows_q * whole->stride_o, all = whole->cu_k[P_SEQS] * whole->stride_k;
    double tol = k->t == DT_BF16 ? 0x1p-6 : 5e-5; /* as above */
    struct buf o_t = buf_new(k, no, k->t, 0, 0), d_o = buf_new(k, no, k->t, 1, 0);
    struct buf dk[P_PARTS], dv[P_PARTS], dq = buf_new(k, q->n, k->t, 0, 0);
    struct buf sum = {.n = q->n, .got = calloc((size_t)q->n, sizeof(double))}, turned[2];

    keep_columns(d_o.v, whole->rows_q, whole->stride_o, P_HEADS * p_dim);
    buf_reset(&d_o);
    k->k->cast(k->q[0], no, DT_F32, o->p, k->t, o_t.p);
    for (int i = 0; i < P_PARTS; i++) {
        struct dt_kernel_attention now = part_of(k, i);

        dk[i] = buf_new(k, key[i].n, k->t, 0, 0);
        dv[i] = buf_new(k, v[i].n, k->t, 0, 0);
        for (int th = 0; th < 2; th++) {
            buf_reset(&dq), buf_reset(&dk[i]), buf_reset(&dv[i]);
            k->k->attention_bwd(k->q[th], &now, q->p, key[i].p, v[i].p, o_t.p, lse->p, d_o.p, dq.p,
                                dk[i].p, dv[i].p);
            kt_same(k, th, &dq), kt_same(k, th, &dk[i]), kt_same(k, th, &dv[i]);
        }
        for (int64_t j = 0; j < q->n; j++)
            sum.got[j] += dq.got[j];
    }
    c->d_o = d_o.v;
    c->size_o = no;
    turned[0] = lined_up(dk, all);
    turned[1] = lined_up(dv, all);
    kt_gradient(k, "dq of parts", &sum, NULL, c->q, attn_loss, c, ref_slope, 4 * PLACES, 2 * tol);
    kt_gradient(k, "dk of parts", &turned[0], NULL, c->k, attn_loss, c, ref_slope, 4 * PLACES, tol);
    kt_gradient(k, "dv of parts", &turned[1], NULL, c->v, attn_loss, c, ref_slope, 4 * PLACES, tol);
    free(sum.got), free(turned[0].got), free(turned[1].got);
    for (int i = 0; i < P_PARTS; i++)
        buf_free(&dk[i]), buf_free(&dv[i]);
    buf_free(&o_t), buf_free(&d_o), buf_free(&dq);
}

static void check_parts(struct kt *k)
{
    struct dt_kernel_attention a = part_of(k, 1);
    int64_t no = a.rows_q * a.stride_o, all = 0;
    struct buf q = buf_new(k, a.rows_q * a.stride_q, k->t, 1.385, 0), key[P_PARTS], v[P_PARTS];
    struct buf part = buf_new(k, no, k->t, 0, 0),
               part_lse = buf_new(k, P_HEADS * a.rows_q, DT_F32, 0, 0);
    struct buf o = buf_new(k, no, DT_F32, 0, 0), lse = buf_new(k, P_HEADS * a.rows_q, DT_F32, 0, 0);

    for (int i = 0; i < P_PARTS; i++) {
        key[i] = buf_new(k, p_cu[i][P_SEQS] * a.stride_k, k->t, 1.2, 0.1);
        v[i] = buf_new(k, p_cu[i][P_SEQS] * a.stride_v, k->t, 1.1, 0.3);
        all += p_cu[i][P_SEQS];
    }
    for (int64_t i = 0; i < lse.n; i++)
        lse.v[i] = -INFINITY; /* nothing came so far */
    for (int th = 0; th < 2; th++) {
        buf_reset(&o), buf_reset(&lse), buf_reset(&part);
        for (int i = 0; i < P_PARTS; i++) {
            struct dt_kernel_attention now = part_of(k, i);

            k->k->attention_fwd(k->q[th], &now, q.p, key[i].p, v[i].p, part.p, part_lse.p);
            k->k->attention_join(k->q[th], &now, part.p, part_lse.p, o.p, lse.p);
        }
        kt_same(k, th, &o), kt_same(k, th, &lse);
    }
    double *keys = calloc((size_t)(all * a.stride_k), sizeof(double));
    double *values = calloc((size_t)(all * a.stride_v), sizeof(double));
    double *want = calloc((size_t)no, sizeof(double)), *l = calloc((size_t)lse.n, sizeof(double));
    int32_t cu[P_SEQS + 1];

    line_up(key, cu, keys), line_up(v, cu, values);
    a.cu_q = p_cu[1], a.cu_k = cu, a.max_k = all;
    ref_attention(&a, q.v, keys, values, want, l);
    kt_all_near(k, "attention in parts", &o, want, output_tol(k));
    kt_all_near(k, "log-sum-exp of parts", &lse, l, 1e-5);
    struct attn_case c = {.a = a, .q = q.v, .k = keys, .v = values, .o = want, .lse = l};

    back_in_parts(k, &a, &q, key, v, &o, &lse, &c);
    free(keys), free(values), free(want), free(l);
    for (int i = 0; i < P_PARTS; i++)
        buf_free(&key[i]), buf_free(&v[i]);
    buf_free(&q), buf_free(&part), buf_free(&part_lse), buf_free(&o), buf_free(&lse);
}

START_TEST(test_parts)
{
    for (int i = 0; i < 2; i++) {
        struct kt k;

        p_dim = p_widths[i].dim;
        p_pad = p_widths[i].pad;
        kt_open(&k, _i);
        check_parts(&k);
        kt_close(&k);
    }
}
END_TEST

/* Scores of hundreds: no overflow, and one key takes all. */
START_TEST(test_large_scores)
{
    static const int32_t cu[] = {0, 130};
    struct dt_kernel_attention a = {.heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 8,
                                    .n_seq = 1,
                                    .cu_q = cu,
                                    .cu_k = cu,
                                    .rows_q = 130,
                                    .rows_k = 130,
                                    .max_q = 130,
                                    .max_k = 130,
                                    .stride_q = 8,
                                    .stride_k = 8,
                                    .stride_v = 8,
                                    .stride_o = 8,
                                    .scale = 40};
    struct kt k;

    kt_open(&k, _i);
    a.dtype = k.t;
    struct buf q = buf_new(&k, 130 * 8, k.t, 2, 0), o = buf_new(&k, 130 * 8, k.t, 0, 0);
    struct buf lse = buf_new(&k, 130, DT_F32, 0, 0);
    double *want = calloc(130 * 8, sizeof(double)), *l = calloc(130, sizeof(double));
    struct dt_kernel_attention on_device = a;

    on_device.cu_q = on_device.cu_k = kt_give(&k, cu, sizeof(cu));
    for (int th = 0; th < 2; th++) {
        k.k->attention_fwd(k.q[th], &on_device, q.p, q.p, q.p, o.p, lse.p);
        kt_same(&k, th, &o);
        kt_same(&k, th, &lse);
    }
    ref_attention(&a, q.v, q.v, q.v, want, l);
    kt_all_near(&k, "attention", &o, want, k.t == DT_BF16 ? kt_tol(k.t) : 2e-3);
    kt_all_near(&k, "log-sum-exp", &lse, l, 1e-5);
    free(want), free(l);
    buf_free(&q), buf_free(&o), buf_free(&lse);
    kt_close(&k);
}
END_TEST

/* What a row of a query (q) or of a key has in head 0 is NaN. */
static void check_nan(struct kt *k, int head_dim, bool causal, int64_t query, int64_t key)
{
    enum { ROWS = 70, HEADS = 2 };
    const int32_t cu[2] = {0, ROWS};
    const int32_t *on_device = kt_give(k, cu, sizeof(cu));
    int64_t width = HEADS * head_dim, n = ROWS * width;
    struct buf q = buf_new(k, n, k->t, 1, 0), keys = buf_new(k, n, k->t, 1, 0);
    struct buf v = buf_new(k, n, k->t, 1, 0), o = buf_new(k, n, k->t, 0, 0);
    struct buf d_o = buf_new(k, n, k->t, 1, 0), lse = buf_new(k, HEADS * ROWS, DT_F32, 1, 0);
    struct buf dq = buf_new(k, n, k->t, 0, 0), dk = buf_new(k, n, k->t, 0, 0);
    struct buf dv = buf_new(k, n, k->t, 0, 0);
    struct dt_kernel_attention a = {k->t,      causal,    HEADS, HEADS, head_dim, 1,
                                    on_device, on_device, ROWS,  ROWS,  ROWS,     ROWS,
                                    width,     width,     width, width, 0.2f};

    for (int i = 0; i < head_dim; i++) {
        if (query >= 0)
            q.v[query * width + i] = NAN;
        if (key >= 0)
            keys.v[key * width + i] = NAN;
    }
    buf_reset(&q), buf_reset(&keys);
    k->k->attention_fwd(k->q[0], &a, q.p, keys.p, v.p, o.p, lse.p);
    k->k->attention_bwd(k->q[0], &a, q.p, keys.p, v.p, o.p, lse.p, d_o.p, dq.p, dk.p, dv.p);
    buf_to_host(&o, 0), buf_to_host(&lse, 0), buf_to_host(&dq, 0);
    for (int64_t r = 0; r < ROWS; r++)
        for (int h = 0; h < HEADS; h++) {
            bool want = h == 0 && (r == query || (key >= 0 && (!causal || r >= key)));
            int64_t at = r * width + h * head_dim;

            ck_assert_msg(isnan(buf_get(&lse, h * ROWS + r)) == want, "lse of row %d, head %d: %g",
                          (int)r, h, buf_get(&lse, h * ROWS + r));
            for (int i = 0; i < head_dim; i++) /* 0 times a NaN is one, too: dq of others may be */
                ck_assert_msg(isnan(buf_get(&o, at + i)) == want &&
                                  (!want || isnan(buf_get(&dq, at + i))),
                              "row %d, head %d: %g, its gradient %g", (int)r, h,
                              buf_get(&o, at + i), buf_get(&dq, at + i));
        }
    buf_free(&q), buf_free(&keys), buf_free(&v), buf_free(&o), buf_free(&d_o), buf_free(&lse);
    buf_free(&dq), buf_free(&dk), buf_free(&dv);
}

/* A NaN shows in every row that sees it; a masked one, or a row of other heads, is as if there were none. */
START_TEST(test_nan_stays)
{
    struct kt k;

    if (_i >= KT_CASES && _i % 2 == 0)
        return;
    kt_open(&k, _i);
    for (int causal = 0; causal < 2; causal++)
        for (int dim = 64; dim <= 200; dim += 136) { /* on tensor cores, and plain */
            check_nan(&k, dim, causal, 0, -1);
            check_nan(&k, dim, causal, 66, -1);
            check_nan(&k, dim, causal, -1, 0);
            check_nan(&k, dim, causal, -1, 66);
        }
    kt_close(&k);
}
END_TEST

START_TEST(test_rope)
{
    enum { ROWS = 37, HEADS = 3, HEAD_DIM = 20, DIM = 14, STRIDE = 71, POS = 50 };
    struct kt k;

    kt_open(&k, _i);
    struct buf x = buf_new(&k, ROWS * STRIDE, k.t, 1.7, 0);
    struct buf table = buf_new(&k, POS * DIM, DT_F32, 1, 0);
    double *want = calloc(ROWS * STRIDE, sizeof(double));
    int32_t pos[ROWS];

    for (int p = 0; p < POS; p++) /* a rotation: cos^2 + sin^2 = 1 */
        for (int i = 0; i < DIM / 2; i++) {
            double angle = table.v[p * DIM + i];

            table.v[p * DIM + i] = cos(angle);
            table.v[p * DIM + DIM / 2 + i] = sin(angle);
        }
    buf_reset(&table);
    for (int r = 0; r < ROWS; r++)
        pos[r] = (int32_t)dt_rng_below(&k.rng, POS);
    const int32_t *places = kt_give(&k, pos, sizeof(pos));

    for (int inverse = 0; inverse < 2; inverse++) {
        for (int th = 0; th < 2; th++) {
            buf_reset(&x);
            k.k->rope(k.q[th], k.t, ROWS, HEADS, HEAD_DIM, DIM, STRIDE, places, table.p, inverse,
                      x.p);
            kt_same(&k, th, &x);
        }
        memcpy(want, x.v, sizeof(double) * ROWS * STRIDE);
        ref_rope(ROWS, HEADS, HEAD_DIM, DIM, STRIDE, pos, table.h, inverse, want);
        kt_all_near(&k, "rope", &x, want, kt_tol(k.t));
    }
    /* forward and inverse undo each other */
    buf_reset(&x);
    k.k->rope(k.q[0], k.t, ROWS, HEADS, HEAD_DIM, DIM, STRIDE, places, table.p, false, x.p);
    k.k->rope(k.q[0], k.t, ROWS, HEADS, HEAD_DIM, DIM, STRIDE, places, table.p, true, x.p);
    kt_same(&k, 0, &x);
    kt_all_near(&k, "rope and back", &x, x.v, 2 * kt_tol(k.t));
    free(want);
    buf_free(&x), buf_free(&table);
    kt_close(&k);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels: attention");
    TCase *t = dt_test_case(s, "attention", 900);

    tcase_add_loop_test(t, test_attention, 0, KT_ALL_CASES);
    tcase_add_loop_test(t, test_parts, 0, KT_ALL_CASES);
    tcase_add_loop_test(t, test_large_scores, 0, KT_ALL_CASES);
    tcase_add_loop_test(t, test_nan_stays, 0, KT_ALL_CASES);
    tcase_add_loop_test(t, test_rope, 0, KT_CASES);
    return dt_test_run(s);
}
