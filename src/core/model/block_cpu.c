/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What blocks of several kinds take on a CPU: temporaries and scratch follow the executor's blocks (exec/modules) and
 * kernels (kernels/cpu). */
#include "core/model/block_ops.h"

#include <math.h>

/* derived: the limits of kernels/cpu/products.c */
#define SLAB_BYTES 8388608.0
enum { SLAB_ROWS = 256 };

double dt_block_cpu_none(const struct dt_block *b, const struct dt_block_cpu *c)
{
    (void)b;
    (void)c;
    return 0;
}

double dt_block_cpu_all(const struct dt_block *b, const struct dt_block_cpu *c)
{
    (void)b;
    return c->params;
}

double dt_block_cpu_stream(const struct dt_block *b, const struct dt_block_cpu *c)
{
    return c->e * c->own * b->hidden;
}

double dt_block_cpu_filter(const struct dt_block *b, const struct dt_block_cpu *c, double channels)
{
    double rows, width = (double)b->kernel * b->kernel * channels;

    if (b->kernel < 2)
        return 0;
    rows = fmax(SLAB_ROWS, floor(SLAB_BYTES / (c->e * width) / SLAB_ROWS) * SLAB_ROWS);
    rows = fmin(rows, c->rows * (b->upsample ? 4 : b->stride > 1 ? 0.25 : 1));
    return 4.0 * b->c_out * width + c->e * rows * width;
}
