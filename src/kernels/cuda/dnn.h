/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Convolutions and attention by cuDNN, where it is installed and has a plan for them.  Each function returns false
 * where it has done nothing, so that our own kernels do it. */
#ifndef DT_KERNELS_CUDA_DNN_H
#define DT_KERNELS_CUDA_DNN_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/dnn_api.h"

struct dt_cuda_dnn_shape; /* dnn_graph.h */

/* Which shapes are worth a plan.  A plan takes up to seconds of the host, and gains micro- to milliseconds of the card each
 * time it runs; so it is for shapes that have come for the DT_KERNEL_SETTLES-th time (kernels.h), and until the library has been
 * asked, in `settle` (kernels/device.h), our kernels do it.  Where every microbatch has lengths of its own, and a shape comes as often as there are layers,
 * nobody waits for plans.  Counts are kept in sets of WAYS, by hash: where a set is full and a new shape comes, all its
 * counts go down by one, so that what comes often outlives what comes once. */
struct dt_cuda_dnn_uses {
    enum { SETS = 256, WAYS = 4 };
    unsigned often; /* as often as this; 1: at once */
    struct {
        uint64_t hash;
        unsigned n; /* 0: nobody's */
    } seen[SETS][WAYS];
};
/* Counts one more.  Is a plan worth it from now on?  Then it is forgotten. */
bool dt_cuda_dnn_use(struct dt_cuda_dnn_uses *u, const struct dt_cuda_dnn_shape *s);

/* Loaded once; NULL with `err` filled where it is not there (lt.cu). */
const struct dt_cuda_dnn *dt_cuda_dnn_load(struct dt_error *err);

/* NULL where it cannot be used; `err` says why.  at_once: what is worth a plan gets it there and then. */
struct dt_cuda_dnn_plans *dt_cuda_dnn_plans_new(unsigned often, bool at_once, struct dt_error *err);
/* Asks for the plans that are worth it, and loads their kernels. */
void dt_cuda_dnn_settle(struct dt_cuda *c);
void dt_cuda_dnn_plans_free(struct dt_cuda_dnn_plans *p);
/* As the library says it: 91900 is 9.19.0. */
size_t dt_cuda_dnn_version(const struct dt_cuda_dnn_plans *p);
/* How often graphs of each kind (enum dt_cuda_dnn_what) have run in this process.  The module exports it: on a card nothing
 * else tells a test that the library, and not our own kernels, made what it compares. */
extern "C" void dt_cuda_dnn_ran(unsigned out[5]);
/* How many plans this process has asked for, and how many nanoseconds of the host that took; exported, too. */
extern "C" unsigned dt_cuda_dnn_planned(uint64_t *ns);

bool dt_cuda_dnn_conv_fwd(struct dt_device_queue *q, const struct dt_kernel_conv *c, const void *x,
                          const void *w, const float *bias, const void *residual, void *y);
bool dt_cuda_dnn_conv_bwd_input(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                                const void *dy, const void *w, void *dx, bool add);
/* Where the gradient lies, [out][place][in], in DT_SCRATCH_OUTER; NULL: nothing has been done. */
const float *dt_cuda_dnn_conv_bwd_weight(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                                         const void *x, const void *dy);
bool dt_cuda_dnn_attention_fwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                               const void *query, const void *key, const void *value, void *o,
                               float *lse);
bool dt_cuda_dnn_attention_bwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                               const void *query, const void *key, const void *value, const void *o,
                               const float *lse, const void *d_o, void *dq, void *dk, void *dv);

#endif
