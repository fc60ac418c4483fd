/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Workspaces of our kernels on a card (kernels/cuda): the one that its library's products ask for, then the larger of
 * what blocks use beside it: logits of a chunk of rows and their gradient, or the patches of a convolution and the sum
 * of its filter's gradient, and partial sums.  cuDNN's backward of attention has workspace of its own; whether cuDNN is
 * installed is not known here.  The main queue is the only one with products. */
#include "core/cost/memory_impl.h"
#include "core/model/block_ops.h"

#include <math.h>

/* derived: the limits of products.h, loss.cu and conv.cu of kernels/cuda */
#define PRODUCT_BYTES 33554432.0
#define LOGITS_BYTES 536870912.0
#define PATCH_BYTES 134217728.0
/* assumed: for an element of dq, 4 for its sum in fp32, and what cuDNN 9.19's plans for sm_80 want beside it: 4 for a sum of
 * its own, 4 for dk and dv of every head (tests/cuda_cpu/cudnn_plans prints it) */
#define LIBRARY_BYTES 12.0
enum {
    LOGITS_ROWS = 1024,
    LOGITS_MULTIPLE = 16,
    VOCAB_MULTIPLE = 64,
    SUM_ROWS = 256,
    GROUP_ROWS = 64
};

static double up_to(double x, double multiple)
{
    return ceil(x / multiple) * multiple;
}

static double logits(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double each = (c->e < 4 ? 4 + c->e : 4) * up_to(ceil(b->vocab / c->tp), VOCAB_MULTIPLE);
    double rows = floor(LOGITS_BYTES / each / LOGITS_MULTIPLE) * LOGITS_MULTIPLE, even;

    rows = fmax(LOGITS_MULTIPLE, fmin(LOGITS_ROWS, rows));
    even = ceil(c->tokens / fmax(1, ceil(c->tokens / rows))); /* chunks of equal length */
    return fmin(c->tokens, up_to(even, LOGITS_MULTIPLE)) * each;
}

/* As many images at a time as PATCH_BYTES have room for. */
static double patches(const struct dt_block *b, const struct dt_block_cpu *c, double channels,
                      bool trained)
{
    double width = (double)b->kernel * b->kernel * channels, images = fmax(1, c->items);
    double pixels = c->rows / images * (b->upsample ? 4 : b->stride > 1 ? 0.25 : 1);
    double one = fmax(1, c->e * pixels * width);

    if (b->kernel < 2)
        return 0;
    return one * fmax(1, fmin(images, floor(PATCH_BYTES / one))) +
           (trained ? 4.0 * b->c_out * width : 0);
}

static double widest(const struct dt_block *b, const struct dt_block_cpu *c)
{
    double inner = fmax(b->ffn, 3.0 * b->hidden) / c->tp;

    return fmax(fmax(inner, b->hidden), 2.0 * fmax(b->c_in, b->c_out));
}

double dt_memory_card_scratch(const struct dt_memory_lane *s, int i, bool trained)
{
    const struct dt_block *b = &s->mod->blocks[i];
    struct dt_block_cpu c = dt_memory_block(s, i);
    double chunks = c.rows / (b->c_in > 0 ? GROUP_ROWS : SUM_ROWS) + c.items;
    double sums = 4 * chunks * widest(b, &c);
    double deltas = trained ? 4 * c.tokens * b->heads / c.tp : 0;
    double outer = 0;

    if (b->kind == DT_BLOCK_LM_HEAD)
        outer = logits(b, &c);
    else if (b->kind == DT_BLOCK_CONV)
        outer = patches(b, &c, b->c_in, trained);
    else if (b->kind == DT_BLOCK_RESNET)
        outer = patches(b, &c, fmax(b->c_in, b->c_out), trained);
    else if (trained && c.e < 4) /* cuDNN's attention, whether it is installed or not */
        outer = LIBRARY_BYTES * c.tokens * b->heads * b->head_dim / c.tp;
    return PRODUCT_BYTES + outer + fmax(sums, deltas);
}
