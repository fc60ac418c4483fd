/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What experts.c and experts_move.c share. */
#ifndef DT_EXEC_MODULES_EXPERTS_H
#define DT_EXEC_MODULES_EXPERTS_H

#include "exec/modules/impl.h"

/* Of a stage, for the pass under way; sized for the block with the most experts. */
struct dt_nn_routing {
    int32_t *count;  /* host memory of the device: [member][expert of the block], choices */
    double *balance; /* the same */
    int64_t *rows;   /* of every expert here: what it takes */
    bool well;       /* the counts have come */
    struct dt_device_event *counted;
    struct dt_kernel_copy_part *parts;
    size_t *send, *recv; /* bytes, by member */
    struct dt_stage_load load;
};

/* Sizes of a block in a batch. */
struct dt_nn_experts {
    int64_t rows, own;  /* of the microbatch; of these, a tensor-parallel member's own */
    int64_t choices;    /* of rows */
    int64_t room;       /* most rows that experts here may take */
    int n, here, first; /* experts: all, here, the first here */
    int top_k;
    int64_t hidden, ffn, up, shared; /* widths of this member */
    bool gate;                       /* of the shared experts */
};
struct dt_nn_experts dt_nn_experts_of(const struct dt_nn_call *c);

/* Where own choices go, in work areas; see kernels.h. */
struct dt_nn_order {
    int32_t *expert, *place, *choice, *row, *count;
    float *weight, *sorted; /* by choice, and in the order of experts */
    float *taken;           /* weights of the rows that experts here take */
    char *sent, *came; /* expert group: own choices in order; what experts here take, by member */
};

/* ---- the expert group (experts_move.c) ---- */

/* `each` bytes of every own choice, in order, to where experts here take them, by expert; and back.  came: room for
 * what comes, by member. */
void dt_nn_experts_send(struct dt_nn_call *c, const struct dt_nn_experts *d, const char *sorted,
                        char *taken, char *came, size_t each);
void dt_nn_experts_return(struct dt_nn_call *c, const struct dt_nn_experts *d, const char *taken,
                          char *sorted, char *came, size_t each);

#endif
