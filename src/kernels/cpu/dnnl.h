/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Between dnnl.c, the only file that includes oneDNN's header, and pieces.c, which cuts products.
 */
#ifndef DT_KERNELS_CPU_DNNL_H
#define DT_KERNELS_CPU_DNNL_H

#include "kernels/cpu/products.h"

struct dt_cpu_primitive; /* a product or a convolution of one shape, ready to run; the queue's */
struct dnnl_memory;

/* Operands of a primitive. */
enum { DT_ARG_A, DT_ARG_B, DT_ARG_C, DT_ARG_BIAS, DT_ARG_SCRATCH, DT_ARG_N };
/* How a master is looked at: the source layout of a packing. */
enum dt_cpu_view { DT_VIEW_FORWARD, DT_VIEW_BACKWARD, DT_VIEW_FILTER };

/* Before a call that looks up so many primitives: with endless new shapes, starts over. */
void dt_dnnl_room(struct dt_device_queue *q, int primitives);
/* The primitive, made if new, to run on `threads`; NULL if the queue failed.  `weight`: b is one,
 * in a layout of the primitive's choice. */
struct dt_cpu_primitive *dt_dnnl_product(struct dt_device_queue *q,
                                         const struct dt_cpu_product_args *p, bool weight,
                                         int threads);
struct dt_cpu_conv_build {
    const struct dt_kernel_conv *c;
    bool backward, bias, add;
};
struct dt_cpu_primitive *dt_dnnl_conv(struct dt_device_queue *q, const struct dt_cpu_conv_build *cb,
                                      int64_t images, int threads);
size_t dt_dnnl_scratch_bytes(const struct dt_cpu_primitive *e); /* of one thread */
/* Its own threads divide no sum. */
bool dt_dnnl_only_outputs(const struct dt_cpu_primitive *e);
/* The weight in the layout that the primitive wants, as new as its master; NULL if the queue
 * failed. */
struct dnnl_memory *dt_dnnl_packed(struct dt_device_queue *q, const struct dt_device_weight *w,
                                   enum dt_cpu_view view, const struct dt_cpu_primitive *e);
/* Threads of the primitives that this thread makes and runs from now on. */
void dt_dnnl_threads(int n);
/* Runs a primitive on a thread's memory objects: `ptr` in DT_ARG_ order, `packed` the weight if b
 * is one, `scratch` room for its scratch bytes.  0, or what dt_dnnl_fail takes. */
int dt_dnnl_run(struct dt_device_queue *q, const struct dt_cpu_primitive *e, int thread,
                void *const ptr[DT_ARG_N], struct dnnl_memory *packed, void *scratch);
/* Fails the queue; always false. */
bool dt_dnnl_fail(struct dt_device_queue *q, int status, const char *what);

#endif
