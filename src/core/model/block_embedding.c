/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Token tables, with learned positions if there are. */
#include "core/model/block_ops.h"

static void params(const struct dt_block *b, struct dt_block_param_counts *p)
{
    p->matrices = (int64_t)b->vocab * b->hidden;
    p->vectors = (int64_t)b->max_pos * b->hidden;
}

/* Positions; the table is dealt by its rows. */
static void whole(const struct dt_block *b, struct dt_block_param_counts *p)
{
    p->vectors += (int64_t)b->max_pos * b->hidden;
}

/* Beside sequence parallelism every rank has the gradient of all rows, and takes it for the rows of its own share. */
void dt_block_embedding_sum(const struct dt_block *b, struct dt_kop_list *o)
{
    if (o->w.seqpar)
        dt_kop_emit_tp_leave(o, o->w.tokens, b->hidden);
    else
        dt_kop_emit_all_reduce(o, DT_ELEM_BYTES * o->w.tokens * b->hidden, 1, 0);
}

/* Vocabulary-parallel table: every rank looks up its own rows, the partial sums are combined. */
static void fused(const struct dt_block *b, struct dt_kop_list *o)
{
    dt_kop_emit_pointwise(o, DT_KOP_EMBED, o->w.tokens, b->hidden, 0, 2, true, 1);
    dt_block_embedding_sum(b, o);
    if (b->max_pos > 0)
        dt_kop_emit_pointwise(o, DT_KOP_ADD, o->w.norm_tokens, b->hidden, 0, 3, true, 1);
}

static void kernels(const struct dt_block *b, struct dt_kop_list *o)
{
    if (b->unfused)
        dt_block_unfused_embedding(b, o);
    else
        fused(b, o);
}

/* Token numbers and positions, int32. */
static double kept(const struct dt_block *b, const struct dt_block_share *w, bool keep_cheap,
                   double e)
{
    (void)b;
    (void)keep_cheap;
    (void)e;
    return 8 * w->tokens;
}

const struct dt_block_row dt_block_embedding = {
    .by_items = dt_block_never,
    .params = params,
    .whole = whole,
    .kernels = kernels,
    .kept = kept,
    .input = NULL,
    .cpu_flow = dt_block_cpu_stream,
    .cpu_temporaries = dt_block_cpu_none,
    .cpu_packed = dt_block_cpu_none,
    .cpu_scratch = dt_block_cpu_none,
};
