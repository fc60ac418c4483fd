/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Between pieces.c (which cuts products and hands them to the library) and products.c (which knows
 * the kernels' contracts). */
#ifndef DT_KERNELS_CPU_PRODUCTS_H
#define DT_KERNELS_CPU_PRODUCTS_H

#include "kernels/cpu/cpu.h"

/* Forward: out = conv(a, w) + bias (NULL), added to what is there if `add`.  Backward: a is dy, out
 * is dx; neither bias nor add. */
void dt_cpu_conv(struct dt_device_queue *q, const struct dt_kernel_conv *c, bool backward,
                 const void *a, const struct dt_device_weight *w, const float *bias, bool add,
                 void *out);
/* Primitives that the queue holds: shapes of pieces that it has met. */
int dt_cpu_primitives(const struct dt_device_queue *q);

#endif
