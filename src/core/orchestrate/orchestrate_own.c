/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The layout of one module on GPUs of its own beside an LLM that is chosen: the one through which a slot passes fastest. */
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>

struct own { /* layouts of a module, as they come */
    struct dt_orch_table *t;
    struct dt_orch_cand *c; /* with the LLM; the module's choice goes here */
    int m, left, gpus, gen_pp;
    int behind;      /* of an encoder: microbatches under way behind it */
    double interval; /* of the LLM: being faster is worth nothing */
    double best;     /* the least score yet */
};

static bool fits(const struct own *o, const struct dt_orch_choice *of)
{
    const struct dt_orch_choice *llm = &o->c->of[o->t->in->model->llm];
    bool generator = o->t->in->model->modules[o->m].role == DT_ROLE_GENERATOR;
    struct dt_orch_question q = {.m = o->m,
                                 .of = *of,
                                 .pipe = o->c->pipe,
                                 .microbatch = o->c->microbatch,
                                 .dp_lm = llm->dp,
                                 .pp_lm = llm->pp,
                                 .gen_pp = generator ? of->pp : o->gen_pp,
                                 .behind = generator ? 0 : o->behind};

    return dt_orch_table_fits(o->t, &q);
}

/* One lane and depth: the replicas with the least time of a slot, the fewest of them; where a slot outlasts the LLM's, it
 * is the interval that counts.  False: deeper ones take longer, too. */
static bool try_depth(struct own *o, int lane, int recompute, int pp)
{
    const struct dt_orch_space *s = &o->t->space;
    int64_t slot = (int64_t)o->c->of[o->t->in->model->llm].dp * s->microbatch[o->c->microbatch];
    int gpus = pp * dt_orch_lane_gpus(&s->of[o->m].lane[lane]);
    struct dt_orch_times *x =
        dt_orch_times_of(o->t, o->m, lane, recompute, 0, s->pipe[o->c->pipe].split);
    const struct dt_orch_stage_entry *e;
    int64_t most = o->left / gpus < slot ? o->left / gpus : slot;
    int64_t k = most > 0 ? (slot + most - 1) / most : slot + 1;

    if (!x || (double)k * x->sample_s > o->best)
        return false;
    e = dt_orch_stage_of(o->t, o->m, x, pp, 1);
    for (; e && k <= slot; k++) {
        struct dt_orch_choice of = {(uint8_t)lane, (uint8_t)recompute, 0, (int16_t)pp,
                                    (int)((slot + k - 1) / k)};
        double pass = (double)k * x->sample_s, late = (double)k * e->max_s - o->interval;
        double score =
            pass + (late > 0 ? late * (double)(o->t->in->policy.global_batch / slot) : 0);

        if (score > o->best || (score == o->best && of.dp * gpus >= o->gpus))
            return true; /* fewer replicas take longer */
        if (!fits(o, &of)) {
            /* nor do fewer replicas, which hold no less each; but for one alone, which exchanges nothing */
            k = of.dp > 1 && k < slot ? slot - 1 : k;
            continue;
        }
        o->best = score;
        o->gpus = of.dp * gpus;
        o->c->of[o->m] = of;
    }
    return true;
}

int dt_orch_choose_own(struct dt_orch_table *t, struct dt_orch_cand *c, int m, int left,
                       double interval, int gen_pp)
{
    const struct dt_orch_modes *modes = &t->space.of[m];
    const struct dt_orch_choice *llm = &c->of[t->in->model->llm];
    const struct dt_orch_question q = {.m = m,
                                       .pipe = c->pipe,
                                       .microbatch = c->microbatch,
                                       .dp_lm = llm->dp,
                                       .pp_lm = llm->pp,
                                       .gen_pp = gen_pp};
    struct own o = {.t = t,
                    .c = c,
                    .m = m,
                    .left = left,
                    .gen_pp = gen_pp,
                    .behind = dt_orch_behind(t, &q),
                    .interval = interval,
                    .best = HUGE_VAL};
    int blocks = t->in->model->modules[m].n_blocks;

    for (int l = 0; l < modes->n_lanes; l++)
        for (int r = 0; r < modes->n_recompute; r++)
            for (int pp = 1; pp <= blocks && pp * dt_orch_lane_gpus(&modes->lane[l]) <= left; pp++)
                if (!try_depth(&o, l, r, pp))
                    break;
    return o.gpus;
}
