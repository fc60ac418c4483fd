/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The executor, the inside.  Shared by execute*.c only. */
#ifndef DT_EXEC_EXECUTE_IMPL_H
#define DT_EXEC_EXECUTE_IMPL_H

#include "core/mem.h"
#include "exec/execute.h"
#include "kernels/kernels.h"

struct dt_buffer { /* device memory that grows */
    void *p;
    size_t cap;
};

/* What a stage hands on: outputs of a forward, or gradients of its inputs.  `users`: the stage
 * while it writes, then every SEND of it that has not been used up. */
struct dt_message {
    struct dt_buffer data;
    uint32_t mb;
    bool grad;
    int users;
    struct dt_message *next;
};
/* A microbatch in a virtual stage, from its first input to the end of its last compute op. */
struct dt_slot_mb {
    uint32_t mb;
    bool used, empty; /* empty: nothing to compute */
    struct dt_batch *batch;
    struct dt_buffer saved, in_own, dout_own;
    const void *in, *dout;
    struct dt_message *in_from, *dout_from; /* whose data `in`, `dout` are */
    struct dt_message *out, *din;           /* while they are written */
    struct dt_slot_mb *next;                /* all slots of the virtual stage */
};

struct dt_exec_vstage {
    int module, replica, v, first, last;
    struct dt_stage *stage;
    struct dt_optimizer opt;
    struct dt_batch_limits max;
    struct dt_slot_mb *slots;
    struct dt_message *messages;
    int in_use, in_use_max;
    bool *finished; /* per block of the stage: gradients are complete */
};

/* Rows that cross an edge between modules: per sample, and where they lie on both sides. */
struct dt_exec_edge {
    int src, dst; /* modules; src -1 = no such edge */
    int64_t *rows, *src_at, *dst_at;
    uint32_t *src_mb, *dst_mb; /* microbatch over all replicas */
};
enum { DT_EDGE_IN, DT_EDGE_COND, DT_EDGES };

struct dt_exec {
    struct dt_exec_options o;
    const struct dt_device *dev;
    const struct dt_kernels *k;
    struct dt_queue *q;
    struct dt_exec_vstage *vs[DT_MAX_MODULES]; /* [replica * n_v + v] */
    int n_v[DT_MAX_MODULES], pp[DT_MAX_MODULES], dp[DT_MAX_MODULES];
    struct dt_exec_edge edge[DT_EDGES];
    int64_t edge_cap;
    double *sq;         /* device */
    float *norm, *coef; /* device */
    float host_norm;
    /* this iteration */
    const struct dt_program *p;
    const struct dt_exec_input *in;
    struct dt_error *err;
    double text_scale, image_scale;
    bool has_norm;
    float *nll, *sse;         /* host memory of the device: per row, per image to draw */
    int64_t *row_at, *img_at; /* per sample: its first row and image there */
    size_t cap_nll, cap_sse, cap_samples, cap_images;
    int64_t *image_values; /* per image to draw: values in it */
    const struct dt_sequence **mb_seqs;
    size_t cap_mb_seqs;
    uint32_t *order, n_order;
    unsigned char *placed;
    struct dt_event **begin, **end; /* per op */
    size_t cap_order, cap_placed, cap_events, cap_ends, n_events;
};

static inline struct dt_exec_vstage *dt_exec_vs(const struct dt_exec *x, int module, int replica,
                                                int v)
{
    return &x->vs[module][replica * x->n_v[module] + v];
}
static inline struct dt_exec_vstage *dt_exec_op_vs(const struct dt_exec *x, const struct dt_op *op)
{
    return dt_exec_vs(x, op->module, op->replica, op->chunk * x->pp[op->module] + op->stage);
}
static inline uint32_t dt_exec_global_mb(const struct dt_exec *x, const struct dt_op *op)
{
    return x->p->assignment->m[op->module].mb_first[op->replica] + op->mb;
}

/* execute_lane.c */
enum dt_status dt_exec_build(struct dt_exec *x, struct dt_error *err);
void dt_exec_drop(struct dt_exec *x);
/* Makes room for the microbatches of this iteration. */
enum dt_status dt_exec_reserve(struct dt_exec *x, struct dt_error *err);
enum dt_status dt_exec_room(struct dt_exec *x, struct dt_buffer *b, size_t bytes,
                            struct dt_error *err);
/* The slot of a microbatch; made and filled when it is not there. */
enum dt_status dt_exec_slot(struct dt_exec *x, struct dt_exec_vstage *vs, uint32_t mb,
                            struct dt_error *err, struct dt_slot_mb **out);
void dt_exec_slot_done(struct dt_exec_vstage *vs, struct dt_slot_mb *s);
/* A message to write, of one user; one that was sent, or NULL; one user less (NULL is ignored). */
enum dt_status dt_exec_message(struct dt_exec *x, struct dt_exec_vstage *vs, uint32_t mb, bool grad,
                               size_t bytes, struct dt_error *err, struct dt_message **out);
struct dt_message *dt_exec_sent(const struct dt_exec_vstage *vs, uint32_t mb, bool grad);
void dt_exec_release(struct dt_message *m);

/* execute_order.c: x->order of this program. */
enum dt_status dt_exec_make_order(struct dt_exec *x, struct dt_error *err);

/* execute_move.c */
enum dt_status dt_exec_edges(struct dt_exec *x, struct dt_error *err);
enum dt_status dt_exec_recv(struct dt_exec *x, const struct dt_op *op, struct dt_error *err);
void dt_exec_sync(struct dt_exec *x, const struct dt_group *g);
/* Gradients of blocks [first, last) are complete: those that nothing wrote become zero, once. */
void dt_exec_finish_grads(struct dt_exec *x, struct dt_exec_vstage *vs, int first, int last);

/* execute_loss.c */
enum dt_status dt_exec_loss_begin(struct dt_exec *x, struct dt_error *err);
void dt_exec_loss_take(struct dt_exec *x, const struct dt_op *op, const struct dt_slot_mb *s);
void dt_exec_loss_end(struct dt_exec *x, struct dt_exec_result *out);

#endif
