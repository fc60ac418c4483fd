/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside names*.c: declaring weights and naming them. */
#ifndef DT_EXEC_MODULES_NAMES_H
#define DT_EXEC_MODULES_NAMES_H

#include "exec/modules/impl.h"

/* Where in diffusers' hierarchy a U-Net block stands. */
struct dt_nn_unet_place {
    enum { DT_UNET_BEFORE, DT_UNET_DOWN, DT_UNET_MID, DT_UNET_UP } part;
    int block;             /* down_blocks.N or up_blocks.N */
    int resnet, attention; /* number of this (or the last) one in its block */
    char prefix[48];       /* "down_blocks.1.resnets.0." and so on */
};

struct dt_nn_namer {
    struct dt_stage *s;
    struct dt_nn_node *n;
    struct dt_error *err;
    char prefix[96];
    int layer;
    bool gpt2, tied;
    struct dt_nn_unet_place unet;
};

/* Deals of one part: u grains of `s`. */
#define DT_BY_OUT(u, s) (&(struct dt_nn_deal){DT_DEAL_OUT, 1, {u}, s})
#define DT_BY_IN(u, s) (&(struct dt_nn_deal){DT_DEAL_IN, 1, {u}, s})

/* deal: how tensor parallelism deals the matrix; NULL = not at all.  Sizes are the whole's. */
enum dt_status dt_nn_name_matrix(struct dt_nn_namer *m, int role, int64_t out, int64_t in,
                                 const struct dt_nn_deal *deal, double std, const char *name);
enum dt_status dt_nn_name_vector(struct dt_nn_namer *m, int role, int64_t n,
                                 const struct dt_nn_deal *deal, bool ones, const char *name);
/* Roles `role` and, with a bias, role + 1. */
enum dt_status dt_nn_name_norm(struct dt_nn_namer *m, int role, int64_t n,
                               const struct dt_nn_deal *deal, bool layernorm, const char *name);
enum dt_status dt_nn_name_linear(struct dt_nn_namer *m, int role, int64_t out, int64_t in,
                                 const struct dt_nn_deal *deal, bool bias, double std,
                                 const char *name);
/* The bias of a matrix: dealt with its outputs; where inputs are dealt every member has its whole
 * gradient. */
enum dt_status dt_nn_name_bias(struct dt_nn_namer *m, int role, int64_t n,
                               const struct dt_nn_deal *deal, const char *name);
/* n matrices that one product takes together, dealt by outputs in grains of `grain` rows. */
enum dt_status dt_nn_name_packed(struct dt_nn_namer *m, int role, int bias_role, int n,
                                 const int64_t *outs, int64_t in, int64_t grain, double std,
                                 const char *const *names);
/* Deviation of PyTorch's default: uniform within 1/sqrt(fan in) has 1/sqrt(3 fan in). */
double dt_nn_fan_in_std(int64_t fan_in);

/* initializer_range of Llama, GPT-2 and ViT; of what writes into the residual stream, that divided
 * by sqrt(2 layers). */
#define DT_INIT_STD 0.02
double dt_nn_residual_std(const struct dt_nn_namer *m);
/* Norms of q and k, where there are. */
enum dt_status dt_nn_name_head_norms(struct dt_nn_namer *m, const char *q, const char *k);

/* names_vision.c */
enum dt_status dt_nn_name_tower_layer(struct dt_nn_namer *m);

void dt_nn_unet_place(struct dt_nn_unet_place *p, const struct dt_module *m, int block);

/* Of the block in m->n, a function for each kind of DT_BLOCK_KINDS (core/model/model.h). */
typedef enum dt_status dt_nn_names_fn(struct dt_nn_namer *m);
#define DECLARE(id, name, kind) dt_nn_names_fn dt_nn_names_##kind;
DT_BLOCK_KINDS(DECLARE)
#undef DECLARE

#endif
