/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Blocks that the profile has as a whole (op "block"): measured where they run, so nothing is
 * summed up from kernels. */
#include "core/model/block_key.h"
#include "core/model/block_ops.h"
#include "core/cost/cost_internal.h"

#include <math.h>
#include <string.h>

struct whole { /* where the rows of a block are */
    int64_t key;
    int64_t at; /* the work's place among them: equivalent tokens, or tokens as in older profiles */
};

static struct dt_cost_surface *surface(struct dt_cost *c, enum dt_kop_phase phase,
                                       const struct whole *w)
{
    int64_t d[6] = {w->at, w->key};
    struct dt_cost_surface *s = dt_cost_surface(c, DT_KOP_BLOCK, phase, d);

    return s && s->slow_exact ? s : NULL;
}

/* The surface of the block's forward, if it was measured as a whole. */
static struct dt_cost_surface *whole(struct dt_cost *c, const struct dt_block *b,
                                     const struct dt_block_shard *shard, const struct dt_work *work,
                                     struct whole *w)
{
    struct dt_cost_surface *s;

    if (dt_cost_groups(c, DT_KOP_BLOCK, DT_PHASE_FWD)->n_groups == 0)
        return NULL;
    *w = (struct whole){dt_block_work_key(b, shard), llround(dt_block_equivalent_tokens(b, work))};
    s = surface(c, DT_PHASE_FWD, w);
    if (s)
        return s;
    *w = (struct whole){dt_block_key(b, shard), work->tokens};
    return surface(c, DT_PHASE_FWD, w);
}

static void whole_time(struct dt_cost *c, struct dt_cost_surface *s, int64_t tokens,
                       struct dt_cost_time *out)
{
    enum dt_cost_prov prov;
    bool below;
    double ns;

    *out = (struct dt_cost_time){0};
    if (!s || tokens <= 0)
        return;
    ns = (double)tokens / exp(dt_cost_surface_eval(s, dt_cost_log_dim(tokens), 0, &prov, &below));
    dt_cost_time_set(out, below && ns < s->min_ns ? s->min_ns : ns, prov);
    dt_cost_scale(c, DT_KOP_BLOCK, out);
}

bool dt_cost_block_measured(struct dt_cost *c, const struct dt_block *b,
                            const struct dt_block_shard *s)
{
    const struct dt_work one = {1, 1, 1, 1};
    struct whole w;

    return whole(c, b, s, &one, &w) != NULL;
}

/* The rows of a member of context or image parallelism: its share of the causal triangle is that of so many rows in
 * documents of the same lengths. */
static int64_t share_of(const struct dt_block *b, const struct dt_block_shard *shard,
                        const struct dt_work *work, int64_t at)
{
    struct dt_block_share w;

    dt_block_share_init(&w, b, shard, work);
    return work->tokens > 0 ? (int64_t)ceil(w.tokens * (double)at / (double)work->tokens) : 0;
}

/* What members gather and sum beside that, which was not measured with the block. */
static void add_collectives(struct dt_cost *c, int module, int class_,
                            const struct dt_block_shard *shard, const struct dt_work *work,
                            struct dt_cost_block_times *out)
{
    struct dt_cost_block_times t;
    struct dt_cost_block_kernels b;

    memset(&t, 0, sizeof(t));
    dt_cost_block_kernels(c, module, class_, shard, work, &b);
    for (int i = 0; i < b.n; i++)
        if (dt_cost_is_collective((int)b.k[i].family))
            dt_cost_kernel_add(&b, i, &t);
    dt_cost_time_add(&out->fwd, &t.fwd, 1);
    dt_cost_time_add(&out->dgrad, &t.dgrad, 1);
    dt_cost_time_add(&out->wgrad, &t.wgrad, 1);
    if (shard->recompute == DT_RECOMPUTE_FULL)
        dt_cost_time_add(&out->recompute, &t.fwd, 1);
}

/* Times of a block that was measured where it runs: collectives of tensor parallelism and what its backward
 * computes again are inside.  Rows say nothing of experts dealt over ranks, nor of tensor and context parallelism
 * together. */
bool dt_cost_whole_block(struct dt_cost *c, int module, int class_,
                         const struct dt_block_shard *shard, const struct dt_work *work,
                         struct dt_cost_block_times *out)
{
    const struct dt_block *b = &c->model->modules[module].blocks[class_];
    struct whole w;
    struct dt_cost_surface *s = whole(c, b, shard, work, &w);

    if (!s || (shard->ep > 1 && b->n_experts > 0) || (shard->cp > 1 && shard->tp > 1))
        return false;
    w.at = share_of(b, shard, work, w.at);
    whole_time(c, s, w.at, &out->fwd);
    whole_time(c, surface(c, DT_PHASE_DGRAD, &w), w.at, &out->dgrad);
    whole_time(c, surface(c, DT_PHASE_WGRAD, &w), w.at, &out->wgrad);
    if (shard->cp > 1)
        add_collectives(c, module, class_, shard, work, out);
    return true;
}
