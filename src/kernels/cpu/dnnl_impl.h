/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside dnnl.c and dnnl_weight.c, the only files that know oneDNN. */
#ifndef DT_KERNELS_CPU_DNNL_IMPL_H
#define DT_KERNELS_CPU_DNNL_IMPL_H

#include "kernels/cpu/products.h"

#include <oneapi/dnnl/dnnl.h>

/* How a master is looked at: the source layout of a packing. */
enum dt_view { DT_VIEW_FORWARD, DT_VIEW_BACKWARD, DT_VIEW_FILTER };

dnnl_engine_t dt_dnnl_engine(const struct dt_queue *q);
dnnl_stream_t dt_dnnl_stream(const struct dt_queue *q);
/* Threads of the primitives that this thread makes and runs from now on. */
void dt_dnnl_threads(int n);
/* Fails the queue; always false. */
bool dt_dnnl_fail(struct dt_queue *q, dnnl_status_t st, const char *what);
/* The weight in the wanted layout, as new as its master; NULL if the queue failed. */
dnnl_memory_t dt_dnnl_packed(struct dt_queue *q, const struct dt_weight *w, enum dt_view view,
                             const dnnl_memory_desc_t *want);

#endif
