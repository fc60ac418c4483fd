/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention over sequences of one length as cuDNN's graphs: products, a softmax of pointwise operations and sums, which
 * the library recognizes and runs as one kernel that never stores scores.  Dimensions are sequences, heads, rows,
 * elements. */
#include "kernels/cuda/dnn_graph.h"

typedef struct dt_cuda_dnn_value value;

/* Rows of heads in a matrix whose rows are `stride` apart. */
static value rows(struct dt_cuda_dnn_graph *g, int64_t uid, int64_t n, int64_t heads, int64_t l,
                  int64_t dim, int64_t stride)
{
    struct dt_cuda_dnn_tensor t = {
        uid, DT_DNN_BF16, {n, heads, l, dim}, {l * stride, dim, stride, 1}};

    return dt_cuda_dnn_tensor(g, &t);
}

/* The same, a row a column. */
static value columns(struct dt_cuda_dnn_graph *g, int64_t uid, int64_t n, int64_t heads, int64_t l,
                     int64_t dim, int64_t stride)
{
    struct dt_cuda_dnn_tensor t = {
        uid, DT_DNN_BF16, {n, heads, dim, l}, {l * stride, dim, 1, stride}};

    return dt_cuda_dnn_tensor(g, &t);
}

/* The logarithms of the sums lie [head][row of all sequences]. */
static value sums(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s)
{
    struct dt_cuda_dnn_tensor t = {
        DT_DNN_UID_LSE, DT_DNN_FLOAT, {s->n, s->heads, s->lq, 1}, {s->lq, s->n * s->lq, 1, 1}};

    return dt_cuda_dnn_tensor(g, &t);
}

static value number(struct dt_cuda_dnn_graph *g, int64_t uid)
{
    struct dt_cuda_dnn_tensor t = {uid, DT_DNN_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true};

    return dt_cuda_dnn_tensor(g, &t);
}

static value between(struct dt_cuda_dnn_graph *g, const value *like, int type)
{
    return dt_cuda_dnn_between(g, type, like->dim[0], like->dim[1], like->dim[2], like->dim[3]);
}

/* One for every row of x. */
static value row_between(struct dt_cuda_dnn_graph *g, const value *x)
{
    return dt_cuda_dnn_between(g, DT_DNN_FLOAT, x->dim[0], x->dim[1], x->dim[2], 1);
}

static value of_two(struct dt_cuda_dnn_graph *g, int mode, const value *a, const value *b)
{
    value y = between(g, a, DT_DNN_FLOAT);

    dt_cuda_dnn_pointwise(g, mode, DT_DNN_FLOAT, a, b, NULL, &y, 0);
    return y;
}

static value of_one(struct dt_cuda_dnn_graph *g, int mode, const value *a)
{
    value y = between(g, a, DT_DNN_FLOAT);

    dt_cuda_dnn_pointwise(g, mode, DT_DNN_FLOAT, a, NULL, NULL, &y, 0);
    return y;
}

static value scores(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s, const value *q,
                    const value *kt, const value *scale)
{
    value x = dt_cuda_dnn_between(g, DT_DNN_FLOAT, s->n, s->heads, s->lq, s->lk);

    dt_cuda_dnn_matmul(g, q, kt, &x);
    return of_two(g, DT_DNN_MUL, &x, scale);
}

/* Scores of keys that come after their query do not count. */
static value only_past(struct dt_cuda_dnn_graph *g, const value *x)
{
    value row = between(g, x, DT_DNN_INT32), column = between(g, x, DT_DNN_INT32);
    value sees = between(g, x, DT_DNN_BOOL), y = between(g, x, DT_DNN_FLOAT);
    value nothing = number(g, DT_DNN_UID_NOTHING);

    dt_cuda_dnn_pointwise(g, DT_DNN_GEN_INDEX, DT_DNN_INT32, x, NULL, NULL, &row, 2);
    dt_cuda_dnn_pointwise(g, DT_DNN_GEN_INDEX, DT_DNN_INT32, x, NULL, NULL, &column, 3);
    dt_cuda_dnn_pointwise(g, DT_DNN_CMP_GE, DT_DNN_BOOL, &row, &column, NULL, &sees, 0);
    dt_cuda_dnn_pointwise(g, DT_DNN_SELECT, DT_DNN_FLOAT, x, &nothing, &sees, &y, 0);
    return y;
}

static void forward(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s)
{
    value q = rows(g, DT_DNN_UID_Q, s->n, s->heads, s->lq, s->head_dim, s->stride_q);
    value kt = columns(g, DT_DNN_UID_K, s->n, s->kv_heads, s->lk, s->head_dim, s->stride_k);
    value v = rows(g, DT_DNN_UID_V, s->n, s->kv_heads, s->lk, s->head_dim, s->stride_v);
    value o = rows(g, DT_DNN_UID_O, s->n, s->heads, s->lq, s->head_dim, s->stride_o);
    value scale = number(g, DT_DNN_UID_SCALE), lse = sums(g, s);
    value x = scores(g, s, &q, &kt, &scale), max, sum, e, log, p;

    if (s->causal)
        x = only_past(g, &x);
    max = row_between(g, &x);
    dt_cuda_dnn_reduce(g, DT_DNN_REDUCE_MAX, &x, &max);
    x = of_two(g, DT_DNN_SUB, &x, &max);
    e = of_one(g, DT_DNN_EXP, &x);
    sum = row_between(g, &e);
    dt_cuda_dnn_reduce(g, DT_DNN_REDUCE_ADD, &e, &sum);
    log = of_one(g, DT_DNN_LOG, &sum);
    dt_cuda_dnn_pointwise(g, DT_DNN_ADD, DT_DNN_FLOAT, &max, &log, NULL, &lse, 0);
    p = between(g, &e, DT_DNN_BF16);
    dt_cuda_dnn_pointwise(g, DT_DNN_DIV, DT_DNN_FLOAT, &e, &sum, NULL, &p, 0);
    dt_cuda_dnn_matmul(g, &p, &v, &o);
}

/* x with its last two dimensions the other way round, in bf16. */
static value turned(struct dt_cuda_dnn_graph *g, const value *x)
{
    int64_t rows_n = x->dim[2], columns_n = x->dim[3], each = rows_n * columns_n;
    struct dt_cuda_dnn_tensor t = {g->next_virtual++,
                                   DT_DNN_BF16,
                                   {x->dim[0], x->dim[1], columns_n, rows_n},
                                   {x->dim[1] * each, each, 1, columns_n},
                                   true,
                                   false};
    value y = dt_cuda_dnn_tensor(g, &t);

    dt_cuda_dnn_reshape(g, x, &y);
    return y;
}

/* to (+)= a b; heads that share a kv head are summed. */
static void gradient(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s, const value *a,
                     const value *b, const value *to)
{
    value all;

    if (s->heads == s->kv_heads) {
        dt_cuda_dnn_matmul(g, a, b, to);
        return;
    }
    all = dt_cuda_dnn_between(g, DT_DNN_BF16, s->n, s->heads, s->lk, s->head_dim);
    dt_cuda_dnn_matmul(g, a, b, &all);
    dt_cuda_dnn_reduce(g, DT_DNN_REDUCE_ADD, &all, to);
}

/* The sums of o d_o, in workspace: engines take no others. */
static value deltas(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s, const value *o,
                    const value *d_o)
{
    struct dt_cuda_dnn_tensor t = {DT_DNN_UID_DELTA,
                                   DT_DNN_FLOAT,
                                   {s->n, s->heads, s->lq, 1},
                                   {s->heads * s->lq, s->lq, 1, 1}};
    value product = of_two(g, DT_DNN_MUL, d_o, o), sum = row_between(g, &product);
    value one = number(g, DT_DNN_UID_ONE), delta = dt_cuda_dnn_tensor(g, &t);

    dt_cuda_dnn_reduce(g, DT_DNN_REDUCE_ADD, &product, &sum);
    dt_cuda_dnn_pointwise(g, DT_DNN_MUL, DT_DNN_FLOAT, &sum, &one, NULL, &delta, 0);
    return delta;
}

/* Keys as rows again. */
static value keys(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s, const value *kt)
{
    struct dt_cuda_dnn_tensor t = {g->next_virtual++,
                                   DT_DNN_BF16,
                                   {s->n, s->kv_heads, s->lk, s->head_dim},
                                   {s->lk * s->stride_k, s->head_dim, s->stride_k, 1},
                                   true,
                                   false};
    value k = dt_cuda_dnn_tensor(g, &t);

    dt_cuda_dnn_reshape(g, kt, &k);
    return k;
}

/* Blocks of keys add to dq, in workspace and in whatever order they come: without it engines would keep the whole
 * matrix of the scores' gradients. */
static value sums_of_dq(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s)
{
    int64_t head = s->lq * s->head_dim;
    struct dt_cuda_dnn_tensor t = {DT_DNN_UID_DQ_SUM,
                                   DT_DNN_FLOAT,
                                   {s->n, s->heads, s->lq, s->head_dim},
                                   {s->heads * head, head, s->head_dim, 1}};

    return dt_cuda_dnn_tensor(g, &t);
}

static void backward(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s)
{
    value q = rows(g, DT_DNN_UID_Q, s->n, s->heads, s->lq, s->head_dim, s->stride_q);
    value kt = columns(g, DT_DNN_UID_K, s->n, s->kv_heads, s->lk, s->head_dim, s->stride_k);
    value vt = columns(g, DT_DNN_UID_V, s->n, s->kv_heads, s->lk, s->head_dim, s->stride_v);
    value o = rows(g, DT_DNN_UID_O, s->n, s->heads, s->lq, s->head_dim, s->stride_o);
    value d_o = rows(g, DT_DNN_UID_DO, s->n, s->heads, s->lq, s->head_dim, s->stride_o);
    value dq = rows(g, DT_DNN_UID_DQ, s->n, s->heads, s->lq, s->head_dim, s->stride_q);
    value dk = rows(g, DT_DNN_UID_DK, s->n, s->kv_heads, s->lk, s->head_dim, s->stride_k);
    value dv = rows(g, DT_DNN_UID_DV, s->n, s->kv_heads, s->lk, s->head_dim, s->stride_v);
    value scale = number(g, DT_DNN_UID_SCALE), lse = sums(g, s), delta = deltas(g, s, &o, &d_o);
    value dq_sum = sums_of_dq(g, s), x = scores(g, s, &q, &kt, &scale), e, et, dp, ds, dst, k;

    x = of_two(g, DT_DNN_SUB, &x, &lse);
    if (s->causal)
        x = only_past(g, &x);
    e = of_one(g, DT_DNN_EXP, &x);
    et = turned(g, &e);
    gradient(g, s, &et, &d_o, &dv);
    dp = dt_cuda_dnn_between(g, DT_DNN_FLOAT, s->n, s->heads, s->lq, s->lk);
    dt_cuda_dnn_matmul(g, &d_o, &vt, &dp);
    dp = of_two(g, DT_DNN_SUB, &dp, &delta);
    ds = of_two(g, DT_DNN_MUL, &dp, &e);
    ds = of_two(g, DT_DNN_MUL, &ds, &scale);
    dst = turned(g, &ds);
    gradient(g, s, &dst, &q, &dk);
    k = keys(g, s, &kt);
    dt_cuda_dnn_matmul(g, &ds, &k, &dq_sum);
    dt_cuda_dnn_pointwise(g, DT_DNN_IDENTITY, DT_DNN_FLOAT, &dq_sum, NULL, NULL, &dq, 0);
}

/* NVIDIA's own frontend does without 9.10.0 and 9.10.1 ("known bugs", cudnn-frontend, sdpa_support_surface.h).  The backward makes
 * NaN of finite numbers
 * - up to 9.15.0, where keys do not fill blocks of 128 (issue 160; the frontend masks the rest of the block with lengths of
 *   sequences in memory of the card, which our graph does not have);
 * - on compute capability 9.x where half of the last block is filled, the logarithm of a row's sum is below -88.7 and no causal
 *   mask hides the other half (pull request 628: 9.30 does it still);
 * - of a single query whose logarithm is as low (issue 1072), for which planning has crashed, too (issue 1071). */
bool dt_cuda_dnn_attention_fails(const struct dt_cuda_dnn_shape *s, size_t version, int capability)
{
    enum { BLOCK = 128, FILLS_BLOCKS = 91501 };
    int64_t rest = s->lk % BLOCK;

    if (version == 91000 || version == 91001)
        return true;
    if (s->what == DT_DNN_ATTENTION_FWD)
        return false;
    return s->lq == 1 || (rest > 0 && version < FILLS_BLOCKS) ||
           (rest == BLOCK / 2 && !s->causal && capability / 10 == 9);
}

void dt_cuda_dnn_attention_ops(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s)
{
    if (s->what == DT_DNN_ATTENTION_FWD)
        forward(g, s);
    else
        backward(g, s);
}
