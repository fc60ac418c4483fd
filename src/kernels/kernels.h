/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The kernels: each one's contract, once, for every device.
 *
 * Conventions
 *
 *  - Tensors are row-major and dense unless a stride is given; images are NHWC.  Strides and sizes
 *    count elements.  All pointers are device memory.
 *  - "T" is the activation type of the call (struct field or argument `dtype`: fp32 or bf16).
 *    Parameters of norms, biases, statistics, losses and all gradients of parameters are fp32,
 *    whatever T is.  Arithmetic is fp32 (sums over more than 2^10 terms in blocks or in double); a
 *    T result is rounded once, at its store, to nearest even.
 *  - Outputs may not overlap inputs unless "in place" says which.  An optional pointer is marked
 *    (NULL).
 *  - `add` true: the result is added to what is there; false: it overwrites (no zeroing needed
 *    before).
 *  - Forward kernels leave exactly what the backward takes; nothing else is kept.
 *  - Zero rows or items are allowed everywhere and do nothing (add = false still zeroes gradients).
 *  - Results do not depend on the number of threads or on other queues: reductions run over fixed
 *    blocks in a fixed tree.  Kernels with atomics in their natural form (embedding) are ordered
 *    instead.
 *  - Wrong arguments (not data) are programming errors and assert; data outside its range is handled
 *    as stated.  Failures stick to the queue (kernels/device.h). */
#ifndef DT_KERNELS_KERNELS_H
#define DT_KERNELS_KERNELS_H

#include "base/reduce.h"
#include "kernels/device.h"

/* A device that takes its time to find the best way for a shape does so when a kernel has been asked for it for this many
 * times and the device is then told to settle, and is slower until then.  Who measures does both first. */
enum { DT_KERNEL_SETTLES = 64 };

enum dt_kernel_act {
    DT_ACT_GELU_TANH,
    DT_ACT_GELU_ERF,
    DT_ACT_QUICK_GELU,
    DT_ACT_SILU,
    DT_ACT_SIGMOID,
    DT_ACT_RELU,
    DT_ACT_N
};

/* Row i of a norm starts at (i / inner) * stride + (i % inner) * width, so that heads inside a
 * packed q|k|v matrix can be normed in place of it.  stride 0 and inner 0 mean dense rows.  x, y,
 * dy and dx share the layout. */
struct dt_kernel_norm {
    enum dt_dtype dtype;
    int64_t rows, width;
    int64_t inner, stride;
    float eps;
};

/* Items of a tensor's rows, one after another and of any sizes: images, documents.  Item i has the rows
 * cu[i] .. cu[i+1], cu[0] = 0. */
struct dt_kernel_items {
    int64_t n;
    const int32_t *cu; /* n + 1 */
    int64_t rows;      /* cu[n] */
};

/* Items that are images: number i is hw[2i] >> halved rows of hw[2i+1] >> halved pixels. */
struct dt_kernel_images {
    struct dt_kernel_items items;
    const int32_t *hw;
    int halved;
};

/* x: pixels x channels; statistics per (item, group of channels) */
struct dt_kernel_groupnorm {
    enum dt_dtype dtype;
    struct dt_kernel_items items;
    int channels, groups; /* groups divides channels */
    float eps;
    bool silu; /* y = silu(norm(x)) in one pass */
};

/* Sequences packed one after another; sequence s owns query rows cu_q[s] .. cu_q[s+1] and key rows
 * cu_k[s] .. cu_k[s+1] and sees nothing else.  A causal query row i of lq sees key rows
 * j <= i + lk - lq.  A query that sees no key gets o = 0, lse = -inf and contributes no gradient. */
struct dt_kernel_attention {
    enum dt_dtype dtype;
    bool causal;
    int heads, kv_heads,
        head_dim; /* kv_heads divides heads; head h reads kv head h / (heads/kv_heads) */
    int64_t n_seq;
    const int32_t *cu_q, *cu_k; /* n_seq + 1 each; the same pointer for self-attention */
    int64_t rows_q, rows_k;     /* cu_q[n_seq], cu_k[n_seq] */
    int64_t max_q, max_k;       /* bounds of the longest sequence */
    int64_t stride_q, stride_k, stride_v,
        stride_o; /* between rows; a head's row is head_dim dense */
    float scale;  /* of q·k, usually head_dim^-1/2 */
};

struct dt_kernel_conv { /* NHWC; square filter, same padding on both sides */
    enum dt_dtype dtype;
    int64_t n, h, w; /* input */
    int c_in, c_out, kernel, stride, pad;
};
static inline int64_t dt_kernel_conv_out(int64_t in, const struct dt_kernel_conv *c)
{
    return (in + 2 * c->pad - c->kernel) / c->stride + 1;
}

/* Head and loss: logits = x wᵀ for `rows` rows, cross-entropy against target[r] (< 0: row ignored).
 */
struct dt_kernel_xent {
    enum dt_dtype dtype;
    int64_t rows;
    const struct dt_device_weight *w; /* vocab x width */
    float scale; /* gradients are of scale * sum of the rows' losses; usually 1 / (targets in the
                    batch) */
    const struct dt_kernel_xent_parts *parts; /* NULL: w has the whole vocabulary */
};

/* The vocabulary dealt to several members: w has its rows first .. first + (rows of w).  Per chunk
 * of rows the members meet three times: largest logits, sums, best tokens; every member ends with
 * the whole vocabulary's nll and best, its own part of dw, and a dx that is one summand of the
 * whole. */
struct dt_kernel_xent_parts {
    int64_t vocab, first;
    int64_t most; /* rows of the largest part: chunks are cut for it, so at all members alike */
    void (*max)(struct dt_device_queue *q, void *arg, int64_t n,
                float *x); /* over members, in place */
    void (*sum)(struct dt_device_queue *q, void *arg, int64_t n, double *x);
    void *arg;
};

/* A mixture of experts: which experts a row goes to.  p = softmax of its logits (kernel softmax), of which the top_k
 * largest are chosen, the lower number of equals.  Choice j of row r is number r * top_k + j. */
struct dt_kernel_route {
    int64_t rows;
    int experts, top_k; /* 1 <= top_k <= experts, at most DT_KERNEL_TOP_K_MAX */
    bool normed; /* the weights of a row's choices are divided by their sum; else they are its p */
};
enum { DT_KERNEL_TOP_K_MAX = 64 };

/* Kernels that work on many tensors in one launch take a table of them.  It is host memory and is read at
 * the call; parts do not overlap, and may be empty. */
struct dt_kernel_span {
    int64_t n;
    float *x;
};

struct dt_kernel_copy_part {
    int64_t n; /* bytes */
    const void *from;
    void *to;
};

struct dt_kernel_adamw {
    float lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* 1-based, for bias correction */
};
struct dt_kernel_adamw_part {
    int64_t n;
    float *p;
    const float *g;
    float *m, *v;
    void *copy; /* bf16 (NULL): p as it is now, rounded, in the same pass */
    bool decay; /* weight_decay pulls on it */
};

struct dt_kernels {
    /* ---- products ---------------------------------------------------------------------------- */
    /* y[m,out] = x[m,in] wᵀ + bias (NULL) + residual (NULL; T [m,out], may be y itself).  T of w.
     */
    void (*linear_fwd)(struct dt_device_queue *q, int64_t m, const void *x,
                       const struct dt_device_weight *w, const float *bias, const void *residual,
                       void *y);
    /* dx[m,in] (+)= dy[m,out] w */
    void (*linear_bwd_input)(struct dt_device_queue *q, int64_t m, const void *dy,
                             const struct dt_device_weight *w, void *dx, bool add);
    /* dw[out,in] (+)= dyᵀ x;  dbias[out] (+)= column sums of dy (NULL).  dw NULL: bias only. */
    void (*linear_bwd_weight)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t m,
                              int64_t out, int64_t in, const void *x, const void *dy, float *dw,
                              float *dbias, bool add);
    /* A product and the activation behind it, which a device may take in one pass:
     * h[m,out] = x[m,in] wᵀ + bias (NULL);  y[m,out] = act(h), of h as it is kept or before it was rounded */
    void (*linear_act_fwd)(struct dt_device_queue *q, int64_t m, const void *x,
                           const struct dt_device_weight *w, const float *bias,
                           enum dt_kernel_act act, void *h, void *y);
    /* dh[m,in] = (dy[m,out] w) act'(h[m,in]), of the product before or after it was rounded */
    void (*linear_act_bwd)(struct dt_device_queue *q, int64_t m, const void *dy,
                           const struct dt_device_weight *w, enum dt_kernel_act act, const void *h,
                           void *dh);
    /* y[n,oh,ow,c_out] = conv(x[n,h,w,c_in], w) + bias (NULL) + residual (NULL; may be y) */
    void (*conv_fwd)(struct dt_device_queue *q, const struct dt_kernel_conv *c, const void *x,
                     const struct dt_device_weight *w, const float *bias, const void *residual,
                     void *y);
    void (*conv_bwd_input)(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                           const void *dy, const struct dt_device_weight *w, void *dx, bool add);
    /* dw in [c_out][c_in][k][k] order */
    void (*conv_bwd_weight)(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                            const void *x, const void *dy, float *dw, float *dbias, bool add);

    /* ---- norms -------------------------------------------------------------------------------
     * Backward: dx (+)= when add_dx; dgamma, dbeta (+)= when add_w.  dx NULL or dgamma NULL: not
     * wanted.  dx may be dy (in place, add_dx false).  Forward: y may be x only if no backward
     * follows. */
    void (*rmsnorm_fwd)(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                        const float *gamma, void *y, float *rstd /* rows */);
    void (*rmsnorm_bwd)(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                        const float *gamma, const float *rstd, const void *dy, void *dx,
                        bool add_dx, float *dgamma, bool add_w);
    void (*layernorm_fwd)(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                          const float *gamma, const float *beta, void *y, float *mean, float *rstd);
    void (*layernorm_bwd)(struct dt_device_queue *q, const struct dt_kernel_norm *n, const void *x,
                          const float *gamma, const float *mean, const float *rstd, const void *dy,
                          void *dx, bool add_dx, float *dgamma, float *dbeta, bool add_w);
    void (*groupnorm_fwd)(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, void *y,
                          float *mean /* items*groups */, float *rstd);
    /* beta is read when g->silu */
    void (*groupnorm_bwd)(struct dt_device_queue *q, const struct dt_kernel_groupnorm *g,
                          const void *x, const float *gamma, const float *beta, const float *mean,
                          const float *rstd, const void *dy, void *dx, bool add_dx, float *dgamma,
                          float *dbeta, bool add_w);

    /* ---- attention and positions --------------------------------------------------------------
     * lse: fp32 [heads][rows_q], natural log of the sum of exp(scale q·k).  The score matrix is
     * never in memory.  dq, dk, dv have the strides of q, k, v and are overwritten; o and do share
     * stride_o. */
    void (*attention_fwd)(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                          const void *query, const void *key, const void *value, void *o,
                          float *lse);
    void (*attention_bwd)(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                          const void *query, const void *key, const void *value, const void *o,
                          const float *lse, const void *d_o, void *dq, void *dk, void *dv);
    /* Keys that come in parts: o and lse of those that came so far become those of these and one part more, whose are
     * part and part_lse.  o: fp32; o and part have the rows and stride_o of a's output. */
    void (*attention_join)(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                           const void *part, const float *part_lse, float *o, float *lse);
    /* In place.  Pairs (i, i + dim/2) of every head (Hugging Face's rotate_half) turn by the angle
     * of table[pos[row]]: dim/2 cosines, then dim/2 sines.  inverse = the backward.  A head's
     * elements from `dim` on stay.  heads at x + row*stride + h*head_dim. */
    void (*rope)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int heads,
                 int head_dim, int dim, int64_t stride, const int32_t *pos, const float *table,
                 bool inverse, void *x);

    /* ---- activations ---------------------------------------------------------------------------
     */
    void (*act_fwd)(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, void *y); /* y may be x if no backward follows */
    void (*act_bwd)(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, const void *dy, void *dx); /* dx may be dy or x */
    /* h[rows, 2*width] = [gate | up] (gate_last: [up | gate], as in GEGLU of diffusers);
     * y[rows,width] = act(gate) * up */
    void (*glu_fwd)(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, void *y);
    void (*glu_bwd)(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, const void *dy,
                    void *dh); /* dh may be h */

    /* ---- tables and rows ------------------------------------------------------------------------
     */
    /* y[r] (+)= table[id[r]] (fp32 master, vocab x width).  id outside [0, vocab): a zero row. */
    void (*embedding_fwd)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, int64_t vocab, const int32_t *id, const float *table,
                          void *y, bool add);
    /* dtable[id[r]] += dy[r], for every table row in an order that follows from `id` alone.  Always adds. */
    void (*embedding_bwd)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, int64_t vocab, const int32_t *id, const void *dy,
                          float *dtable);
    /* out[i] = id[i] - first where that lies in [0, count), else -1 */
    void (*ids_part)(struct dt_device_queue *q, int64_t n, const int32_t *id, int64_t first,
                     int64_t count, int32_t *out);
    /* dst[dst_row[i]] (+)= src[src_row[i]]; NULL = i.  dst rows are distinct. */
    void (*rows_copy)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t width,
                      const void *src, const int32_t *src_row, void *dst, const int32_t *dst_row,
                      bool add);
    /* The bytes of all parts.  Nothing is written that another part reads or writes. */
    void (*copy)(struct dt_device_queue *q, int parts, const struct dt_kernel_copy_part *part);
    /* A rows x width rectangle between strided matrices: joins and splits channels. */
    void (*copy2d)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                   const void *src, int64_t src_stride, void *dst, int64_t dst_stride, bool add);

    /* ---- mixtures of experts ------------------------------------------------------------------ */
    /* prob: [rows][experts].  Of each choice, largest first: its expert and its weight (NULL). */
    void (*route_choose)(struct dt_device_queue *q, const struct dt_kernel_route *r,
                         const float *prob, int32_t *expert, float *weight);
    /* Choices by expert, and of one expert in their order: count[e] of expert e (all of `experts`); choice i is the
     * place[i]-th of all, choice[place[i]] = i, row[place[i]] its row. */
    void (*route_sort)(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const int32_t *expert, int32_t *count, int32_t *place, int32_t *choice,
                       int32_t *row);
    /* How evenly the rows of each item are spread (Fedus et al. 2022, eq. 4 to 6): load[i][e] = experts * (the item's
     * choices of e) / (all its choices), 1 where all have as many, 0 of an item without rows. */
    void (*route_load)(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const struct dt_kernel_items *items, const int32_t *expert, float *load);
    /* sum[i] = load[i] . the sum of p over the item's rows, which is the number of these where p is even. */
    void (*route_even)(struct dt_device_queue *q, const struct dt_kernel_route *r,
                       const struct dt_kernel_items *items, const float *prob, const float *load,
                       float *sum);
    /* Gradient of the logits from that of the weights, and `balance` times that of the sum over items of sum[i], where
     * load counts as a constant; load NULL: without it.  dlogit: T, overwritten. */
    void (*route_bwd)(struct dt_device_queue *q, enum dt_dtype dtype,
                      const struct dt_kernel_route *r, const float *prob, const int32_t *expert,
                      const float *dweight, const struct dt_kernel_items *items, const float *load,
                      float balance, void *dlogit);
    /* y[r] = w[r] x[r]; y may be x */
    void (*rows_weigh)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                       const float *w, const void *x, void *y);
    /* dw[r] = dy[r] . x[r];  dx[r] = w[r] dy[r], which may be dy */
    void (*rows_weigh_bwd)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                           int64_t width, const float *w, const void *x, const void *dy, void *dx,
                           float *dw);
    /* y[r] += w[r] b, a bias that is weighed; and what that adds to the gradient of w: dw[r] += dy[r] . b */
    void (*rows_bias)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                      const float *w, const float *b, void *y);
    void (*rows_bias_bwd)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows,
                          int64_t width, const float *b, const void *dy, float *dw);
    /* y[r] (+)= the sum over j < k of x[place[r * k + j]], in the order of j; place NULL: of k rows that lie together */
    void (*rows_join)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int k,
                      int64_t width, const void *x, const int32_t *place, void *y, bool add);

    /* ---- losses
     * ---------------------------------------------------------------------------------- Logits
     * exist only for a chunk of rows at a time.  nll[r] = -log p(target[r]), 0 if ignored; best[r]
     * (NULL) = index of the largest logit (the lowest one of equals).  dx (NULL) overwritten; dw
     * (NULL) (+)=.  dx and dw NULL: forward only.  A target >= vocab is an error of the queue. */
    void (*xent)(struct dt_device_queue *q, const struct dt_kernel_xent *c, const void *x,
                 const int32_t *target, float *nll, int32_t *best, void *dx, float *dw,
                 bool add_dw);
    /* sse[i] = sum over the item of (pred - target)^2; dpred (NULL; may be pred) is the gradient of scale times
     * the item's mean of squares: 2 scale / (values of the item) (pred - target) */
    void (*mse)(struct dt_device_queue *q, enum dt_dtype dtype, const struct dt_kernel_items *items,
                int64_t width, const void *pred, const void *target, float scale, float *sse,
                void *dpred);

    /* ---- optimizer ------------------------------------------------------------------------------
     */
    /* Decoupled weight decay (Loshchilov & Hutter 2019).  The gradient is g * *coef (NULL = 1). */
    void (*adamw)(struct dt_device_queue *q, const struct dt_kernel_adamw *h, int parts,
                  const struct dt_kernel_adamw_part *part, const float *coef);
    /* *out (+)= sum of squares of all parts / sum of x.  Of a part or of x: fixed blocks of 2^14 elements,
     * double, pairwise tree.  Parts are added in their order. */
    void (*sum_sq)(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part,
                   double *out, bool add);
    void (*sum)(struct dt_device_queue *q, int64_t n, const float *x, double *out, bool add);
    /* x = 0 in all parts */
    void (*zero)(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part);
    /* *norm (NULL) = sqrt(*sq); *coef = min(1, max_norm / (norm + 1e-6)), 1 if max_norm <= 0; a
     * norm that is not finite gives coef 0 (AdamW then sees g = 0 even where g is not finite). */
    void (*clip_coef)(struct dt_device_queue *q, const double *sq, float max_norm, float *norm,
                      float *coef);

    /* ---- images
     * ---------------------------------------------------------------------------------- */
    /* Nearest neighbour.  The sizes are those of the small images: x and dx; y and dy have four times their rows. */
    void (*upsample2_fwd)(struct dt_device_queue *q, enum dt_dtype dtype,
                          const struct dt_kernel_images *small, int64_t c, const void *x, void *y);
    void (*upsample2_bwd)(struct dt_device_queue *q, enum dt_dtype dtype,
                          const struct dt_kernel_images *small, int64_t c, const void *dy,
                          void *dx);
    void (*avgpool2_fwd)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t h,
                         int64_t w, int64_t c, const void *x,
                         void *y /* n,h/2,w/2,c; h and w even */);
    void (*avgpool2_bwd)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t h,
                         int64_t w, int64_t c, const void *dy, void *dx /* n,h,w,c */);
    /* Sinusoids (Vaswani et al. 2017; diffusers' Timesteps): freq_i = period^(-i/(dim/2 - shift)),
     * y[n,dim] = [sin | cos] of t*freq, or [cos | sin] with cos_first.  dim even. */
    void (*timestep)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, int64_t dim,
                     const float *t, float period, float shift, bool cos_first, void *y);

    /* ---- element-wise
     * ----------------------------------------------------------------------------- */
    void (*cast)(struct dt_device_queue *q, int64_t n, enum dt_dtype from, const void *x,
                 enum dt_dtype to, void *y);
    void (*add)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, const void *a,
                const void *b, void *y); /* y may be a or b */
    void (*scale)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, float f, const void *x,
                  void *y); /* y may be x */
    /* y[r,:] = a[i] x[r,:] + b[i] z[r,:] in the rows of item i (forward diffusion); y may be x or z */
    void (*mix)(struct dt_device_queue *q, enum dt_dtype dtype, const struct dt_kernel_items *items,
                int64_t width, const float *a, const void *x, const float *b, const void *z,
                void *y);
    /* y[r,:] = x[r,:] + e[i,:] in the rows of item i;  y may be x */
    void (*item_add)(struct dt_device_queue *q, enum dt_dtype dtype,
                     const struct dt_kernel_items *items, int64_t width, const void *x,
                     const void *e, void *y);
    /* its backward: de[i,:] (+)= sum over the rows of item i of dy[r,:] */
    void (*item_sum)(struct dt_device_queue *q, enum dt_dtype dtype,
                     const struct dt_kernel_items *items, int64_t width, const void *dy, void *de,
                     bool add);
    /* db[:] (+)= sum over rows of dy[r,:] */
    void (*bias_bwd)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                     const void *dy, float *db, bool add);
    /* p = softmax(temperature^-1 x) by rows, fp32 out; for sampling */
    void (*softmax)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t rows, int64_t width,
                    float inv_temperature, const void *x, float *p);

    /* ---- sums of ranks
     * ------------------------------------------------------------------------- */
    /* dt_reduce_parts (base/reduce.h): x and what others[] point to are device memory, others[] itself is host
     * memory and is read at the call. */
    void (*reduce)(struct dt_device_queue *q, enum dt_reduce_type type, int64_t n, int members,
                   int me, void *x, const void *const *others);

    /* ---- random
     * ---------------------------------------------------------------------------------- Element i
     * uses counter first + i of (seed, stream): independent of layout and threads. */
    /* y[i] = scale * dt_rng_normal_at(seed, stream, first + i) (base/rng.h) */
    void (*normal)(struct dt_device_queue *q, enum dt_dtype dtype, int64_t n, uint64_t seed,
                   uint64_t stream, uint64_t first, float scale, void *y);
    /* The same for many items: in the rows of item i, element e of the item has counter e of (seed, stream[i]). */
    void (*item_normal)(struct dt_device_queue *q, enum dt_dtype dtype,
                        const struct dt_kernel_items *items, int64_t width, uint64_t seed,
                        const uint64_t *stream, float scale, void *y);
    /* y = keep ? x / (1 - p) : 0, in `rows` rows of the items from row `first` on, with which x and y begin.
     * Element e of item i is dropped when word e%4 of Philox block e/4 of (seed, stream[i]) is below p 2^32.
     * begin (NULL = zeros): an item is a part of something longer and begins at that row of it, from which its
     * elements are counted.  The backward is the same call on dy.  y may be x. */
    void (*dropout)(struct dt_device_queue *q, enum dt_dtype dtype,
                    const struct dt_kernel_items *items, int64_t width, uint64_t seed,
                    const uint64_t *stream, const int32_t *begin, int64_t first, int64_t rows,
                    float p, const void *x, void *y);
};

#endif
