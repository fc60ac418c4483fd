/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A graph of operations as cuDNN's descriptors say it, and a plan for it.  Needs no card, and nothing of CUDA. */
#ifndef DT_KERNELS_CUDA_DNN_GRAPH_H
#define DT_KERNELS_CUDA_DNN_GRAPH_H

#include "kernels/cuda/dnn_api.h"

extern "C" {
#include "kernels/kernels.h"
}

/* Tensors whose memory the caller names when a plan is run. */
enum {
    DT_DNN_UID_X = 1,
    DT_DNN_UID_W,
    DT_DNN_UID_Y,
    DT_DNN_UID_BIAS,
    DT_DNN_UID_RESIDUAL,
    DT_DNN_UID_Q,
    DT_DNN_UID_K,
    DT_DNN_UID_V,
    DT_DNN_UID_O,
    DT_DNN_UID_LSE,
    DT_DNN_UID_DO,
    DT_DNN_UID_DQ,
    DT_DNN_UID_DK,
    DT_DNN_UID_DV,
    DT_DNN_UID_SCALE,   /* of the host: the scale of scores */
    DT_DNN_UID_NOTHING, /* of the host: what a score is that does not count */
    DT_DNN_UID_ONE,     /* of the host: 1 */
    DT_DNN_UID_DELTA,   /* workspace: the sums of o d_o */
    DT_DNN_UID_DQ_SUM,  /* workspace: dq in fp32 */
    DT_DNN_UID_FIRST_VIRTUAL = 100
};

enum { DT_DNN_DESCRIPTORS = 160, DT_DNN_OPS = 32, DT_DNN_PLACES = 16 };

struct dt_cuda_dnn_tensor {
    int64_t uid;
    int type;
    int64_t dim[4], stride[4];
    bool is_virtual, by_value;
};
struct dt_cuda_dnn_graph {
    const struct dt_cuda_dnn *fn;
    int status; /* of the first call that failed; none is made after it */
    int64_t next_virtual;
    int n, n_ops;
    void *made[DT_DNN_DESCRIPTORS], *ops[DT_DNN_OPS];
    int n_places;
    struct {
        int64_t uid;
        bool by_value;
    } place[DT_DNN_PLACES]; /* tensors that lie in memory which the caller names */
};
/* A tensor of a graph, and what the operations after it need to know of it. */
struct dt_cuda_dnn_value {
    void *d;
    int64_t dim[4];
};

/* What kernels.h asks for, as graphs.  fp32 tensors of the filter's gradient lie [out][place][in]. */
enum dt_cuda_dnn_what {
    DT_DNN_CONV_FWD,
    DT_DNN_CONV_DATA,
    DT_DNN_CONV_FILTER,
    DT_DNN_ATTENTION_FWD,
    DT_DNN_ATTENTION_BWD,
    DT_DNN_WHAT_N
};
struct dt_cuda_dnn_shape { /* compared as bytes */
    int32_t what;
    int32_t bias, residual; /* of a convolution's forward: are there any? */
    int32_t c_in, c_out, kernel, stride, pad;
    int64_t n, h, w; /* images; n: sequences, all of lq queries and lk keys */
    int32_t heads, kv_heads, head_dim, causal;
    int64_t lq, lk, stride_q, stride_k, stride_v, stride_o;
};

void dt_cuda_dnn_graph_begin(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn *fn);
/* Destroys all descriptors, plans included. */
void dt_cuda_dnn_graph_end(struct dt_cuda_dnn_graph *g);
/* A descriptor of g's; NULL where g has failed. */
void *dt_cuda_dnn_new(struct dt_cuda_dnn_graph *g, enum dt_cuda_dnn_kind kind);
void dt_cuda_dnn_set(struct dt_cuda_dnn_graph *g, void *d, int name, int type, int64_t n,
                     const void *p);
void dt_cuda_dnn_finalize(struct dt_cuda_dnn_graph *g, void *d);

struct dt_cuda_dnn_value dt_cuda_dnn_tensor(struct dt_cuda_dnn_graph *g,
                                            const struct dt_cuda_dnn_tensor *t);
/* One that lives between operations only, its rows dense. */
struct dt_cuda_dnn_value dt_cuda_dnn_between(struct dt_cuda_dnn_graph *g, int type, int64_t a,
                                             int64_t b, int64_t c, int64_t d);
/* y = mode(x, b) where t says so; operands that the mode does not have are NULL. */
void dt_cuda_dnn_pointwise(struct dt_cuda_dnn_graph *g, int mode, int type,
                           const struct dt_cuda_dnn_value *x, const struct dt_cuda_dnn_value *b,
                           const struct dt_cuda_dnn_value *t, const struct dt_cuda_dnn_value *y,
                           int64_t axis);
void dt_cuda_dnn_matmul(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_value *a,
                        const struct dt_cuda_dnn_value *b, const struct dt_cuda_dnn_value *c);
void dt_cuda_dnn_reduce(struct dt_cuda_dnn_graph *g, int op, const struct dt_cuda_dnn_value *x,
                        const struct dt_cuda_dnn_value *y);
void dt_cuda_dnn_reshape(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_value *x,
                         const struct dt_cuda_dnn_value *y);

/* Finalizes an operation and makes it the graph's next one. */
void dt_cuda_dnn_add_op(struct dt_cuda_dnn_graph *g, void *op);

/* The operations of a shape (dnn_conv.cu, dnn_attention.cu). */
void dt_cuda_dnn_conv_ops(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s);
void dt_cuda_dnn_attention_ops(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s);
/* Is the library known to do that shape of attention wrong?  `version` as it says it itself, capability 90 of an H100. */
bool dt_cuda_dnn_attention_fails(const struct dt_cuda_dnn_shape *s, size_t version, int capability);

/* For whom: a handle, or the properties of a card that is not here (a finalized descriptor). */
struct dt_cuda_dnn_card {
    void *handle, *properties;
};
/* The library's favourite among the plans of g whose engines do not say that they add in another order in every run (those
 * of attention's backward may all the same) and that want at most `room` bytes of workspace; NULL: there is none.  *tried: configurations that it has named. */
void *dt_cuda_dnn_plan(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_card *card,
                       int64_t room, int64_t *workspace, int *tried);

#endif
