/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What crosses a stage boundary inside a module: the tensors that blocks after it need from before
 * it. */
#ifndef DT_CORE_MODEL_BOUNDARY_H
#define DT_CORE_MODEL_BOUNDARY_H

#include "core/model/model.h"

enum dt_boundary_tensor_kind {
    DT_TENSOR_MAIN,    /* output of the last block before the boundary on the activations' path */
    DT_TENSOR_SKIP,    /* U-Net: pushed before the boundary, popped after it; oldest first */
    DT_TENSOR_CONTEXT, /* conditioning states of each item */
    DT_TENSOR_TIME     /* time embedding of each item */
};
struct dt_boundary_tensor {
    enum dt_boundary_tensor_kind kind;
    int block;     /* whose output it is; -1 = the states that the module takes in */
    int level;     /* per-token tensors: tokens / 4^level of them */
    int64_t width; /* elements per such token, or per item */
    bool per_item;
};
enum { DT_BOUNDARY_MAX = 288, DT_LEVEL_MAX = 16 };

/* Tensors behind the first `end` blocks (0 < end < n_blocks), in the order in which they are packed
 * into one message; returns their number.  A skip that is also the main tensor is listed once, as
 * the main one. */
int dt_boundary_tensors(const struct dt_module *m, int end,
                        struct dt_boundary_tensor out[DT_BOUNDARY_MAX]);

/* The same, summed: bytes per token of each level and per item, `elem_bytes` an element.  Gradients
 * have the same size. */
struct dt_boundary {
    int n_levels;
    uint64_t token_bytes[DT_LEVEL_MAX];
    uint64_t item_bytes;
};
void dt_block_boundary(const struct dt_module *m, int end, int elem_bytes, struct dt_boundary *out);
/* Works them all out for a model whose blocks do not change any more: the search asks millions of times, and a U-Net
 * has to be walked for an answer. */
enum dt_status dt_model_wires(struct dt_model *m, struct dt_error *err);
static inline uint64_t dt_boundary_bytes(const struct dt_boundary *b, int64_t tokens, int64_t items)
{
    uint64_t sum = (uint64_t)items * b->item_bytes;

    for (int l = 0; l < b->n_levels; l++)
        sum += ((uint64_t)tokens >> 2 * l) * b->token_bytes[l];
    return sum;
}
/* Bytes of the message for a microbatch, in bf16. */
uint64_t dt_block_boundary_bytes(const struct dt_module *m, int end, const struct dt_work *w);

#endif
