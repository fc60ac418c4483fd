/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Convolutions as cuDNN's graphs.  Its dimensions are always images, channels, rows, columns, and filters out, in,
 * rows, columns; strides say that channels lie side by side, in images and in filters.  What comes of a
 * convolution is fp32 until it is stored. */
#include "kernels/cuda/dnn_graph.h"

static struct dt_cuda_dnn_value images(struct dt_cuda_dnn_graph *g, int64_t uid, int type,
                                       int64_t n, int64_t c, int64_t h, int64_t w)
{
    struct dt_cuda_dnn_tensor t = {
        uid, type, {n, c, h, w}, {h * w * c, 1, w * c, c}, uid >= DT_DNN_UID_FIRST_VIRTUAL, false};

    return dt_cuda_dnn_tensor(g, &t);
}

static struct dt_cuda_dnn_value images_between(struct dt_cuda_dnn_graph *g,
                                               const struct dt_cuda_dnn_value *like)
{
    return images(g, g->next_virtual++, DT_DNN_FLOAT, like->dim[0], like->dim[1], like->dim[2],
                  like->dim[3]);
}

static void *convolution(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s)
{
    void *d = dt_cuda_dnn_new(g, DT_DNN_CONVOLUTION);
    int type = DT_DNN_FLOAT, mode = DT_DNN_CROSS_CORRELATION;
    int64_t two = 2, one[2] = {1, 1}, stride[2] = {s->stride, s->stride}, pad[2] = {s->pad, s->pad};

    dt_cuda_dnn_set(g, d, DT_DNN_CONVOLUTION_COMP_TYPE, DT_DNN_T_DATA_TYPE, 1, &type);
    dt_cuda_dnn_set(g, d, DT_DNN_CONVOLUTION_CONV_MODE, DT_DNN_T_CONVOLUTION_MODE, 1, &mode);
    dt_cuda_dnn_set(g, d, DT_DNN_CONVOLUTION_SPATIAL_DIMS, DT_DNN_T_INT64, 1, &two);
    dt_cuda_dnn_set(g, d, DT_DNN_CONVOLUTION_DILATIONS, DT_DNN_T_INT64, 2, one);
    dt_cuda_dnn_set(g, d, DT_DNN_CONVOLUTION_FILTER_STRIDES, DT_DNN_T_INT64, 2, stride);
    dt_cuda_dnn_set(g, d, DT_DNN_CONVOLUTION_PRE_PADDINGS, DT_DNN_T_INT64, 2, pad);
    dt_cuda_dnn_set(g, d, DT_DNN_CONVOLUTION_POST_PADDINGS, DT_DNN_T_INT64, 2, pad);
    dt_cuda_dnn_finalize(g, d);
    return d;
}

/* The three operations have the same attributes, six in a row. */
static void convolve(struct dt_cuda_dnn_graph *g, enum dt_cuda_dnn_kind kind, int first,
                     const struct dt_cuda_dnn_shape *s, const struct dt_cuda_dnn_value *filter,
                     const struct dt_cuda_dnn_value *in, const struct dt_cuda_dnn_value *out)
{
    void *how = convolution(g, s), *op = dt_cuda_dnn_new(g, kind);
    float one = 1, zero = 0;

    dt_cuda_dnn_set(g, op, first, DT_DNN_T_FLOAT, 1, &one);
    dt_cuda_dnn_set(g, op, first + 1, DT_DNN_T_FLOAT, 1, &zero);
    dt_cuda_dnn_set(g, op, first + 2, DT_DNN_T_DESCRIPTOR, 1, &how);
    dt_cuda_dnn_set(g, op, first + 3, DT_DNN_T_DESCRIPTOR, 1, &filter->d);
    dt_cuda_dnn_set(g, op, first + 4, DT_DNN_T_DESCRIPTOR, 1, &in->d);
    dt_cuda_dnn_set(g, op, first + 5, DT_DNN_T_DESCRIPTOR, 1, &out->d);
    dt_cuda_dnn_add_op(g, op);
}

/* conv, then + bias, then + residual, whichever there are; the last one stores. */
static void forward(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s,
                    const struct dt_cuda_dnn_value *x, const struct dt_cuda_dnn_value *w,
                    const struct dt_cuda_dnn_value *y)
{
    struct dt_cuda_dnn_tensor row = {
        DT_DNN_UID_BIAS, DT_DNN_FLOAT, {1, s->c_out, 1, 1}, {s->c_out, 1, s->c_out, s->c_out}};
    struct dt_cuda_dnn_value now = s->bias || s->residual ? images_between(g, y) : *y, b, next;

    convolve(g, DT_DNN_OPERATION_CONVOLUTION_FORWARD, DT_DNN_FORWARD_ALPHA, s, w, x, &now);
    if (s->bias) {
        b = dt_cuda_dnn_tensor(g, &row);
        next = s->residual ? images_between(g, y) : *y;
        dt_cuda_dnn_pointwise(g, DT_DNN_ADD, DT_DNN_FLOAT, &now, &b, NULL, &next, 0);
        now = next;
    }
    if (s->residual) {
        b = images(g, DT_DNN_UID_RESIDUAL, DT_DNN_BF16, y->dim[0], y->dim[1], y->dim[2], y->dim[3]);
        dt_cuda_dnn_pointwise(g, DT_DNN_ADD, DT_DNN_FLOAT, &now, &b, NULL, y, 0);
    }
}

void dt_cuda_dnn_conv_ops(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_shape *s)
{
    int64_t oh = (s->h + 2 * s->pad - s->kernel) / s->stride + 1;
    int64_t ow = (s->w + 2 * s->pad - s->kernel) / s->stride + 1;
    bool filter = s->what == DT_DNN_CONV_FILTER;
    struct dt_cuda_dnn_value x = images(g, DT_DNN_UID_X, DT_DNN_BF16, s->n, s->c_in, s->h, s->w);
    struct dt_cuda_dnn_value y = images(g, DT_DNN_UID_Y, DT_DNN_BF16, s->n, s->c_out, oh, ow);
    struct dt_cuda_dnn_value w = images(g, DT_DNN_UID_W, filter ? DT_DNN_FLOAT : DT_DNN_BF16,
                                        s->c_out, s->c_in, s->kernel, s->kernel);

    if (s->what == DT_DNN_CONV_FWD) {
        forward(g, s, &x, &w, &y);
    } else if (filter) { /* engines store fp32 sums by an operation of its own only */
        struct dt_cuda_dnn_value sum = images_between(g, &w);

        convolve(g, DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER, DT_DNN_FILTER_ALPHA, s, &sum, &x,
                 &y);
        dt_cuda_dnn_pointwise(g, DT_DNN_IDENTITY, DT_DNN_FLOAT, &sum, NULL, NULL, &w, 0);
    } else {
        convolve(g, DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA, DT_DNN_DATA_ALPHA, s, &w, &x, &y);
    }
}
