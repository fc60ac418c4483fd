/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Blocks that the profile has as a whole (op "block"): measured where they run, so nothing is
 * summed up from kernels. */
#include "core/model/block_key.h"
#include "core/cost/cost_internal.h"

/* The surface of the block itself, if it was measured as a whole. */
static struct dt_cost_surface *whole(struct dt_cost *c, const struct dt_block *b,
                                     const struct dt_block_shard *shard, enum dt_kop_phase phase,
                                     int64_t tokens)
{
    int64_t d[6] = {tokens, 0};
    struct dt_cost_surface *s;

    if (dt_cost_groups(c, DT_KOP_BLOCK, phase)->n_groups == 0)
        return NULL;
    d[1] = dt_block_key(b, shard);
    s = dt_cost_surface(c, DT_KOP_BLOCK, phase, d);
    return s && s->slow_exact ? s : NULL;
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
    return whole(c, b, s, DT_PHASE_FWD, 1) != NULL;
}

/* Times of a block that was measured where it runs: collectives of its own and what its backward
 * computes again are inside. */
bool dt_cost_whole_block(struct dt_cost *c, const struct dt_block *b,
                         const struct dt_block_shard *shard, const struct dt_work *work,
                         struct dt_cost_block_times *out)
{
    struct dt_cost_surface *s = whole(c, b, shard, DT_PHASE_FWD, work->tokens);

    if (!s)
        return false;
    whole_time(c, s, work->tokens, &out->fwd);
    whole_time(c, whole(c, b, shard, DT_PHASE_DGRAD, work->tokens), work->tokens, &out->dgrad);
    whole_time(c, whole(c, b, shard, DT_PHASE_WGRAD, work->tokens), work->tokens, &out->wgrad);
    return true;
}
