/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What ZeRO 2 and 3 exchange at every microbatch, for the formula: on a lane these collectives follow each other, as its
 * computations do, so a slot takes the longer of the two.  Answers are remembered, as a search asks again for every
 * recomputation and every layout around. */
#include "core/orchestrate/orchestrate_internal.h"
#include "core/schedule/schedule.h"

enum { EXCHANGE_LEAST = 256 }; /* entries that the table begins with */

/* Of module m of a plan whose LLM takes `slots` slots of `slot` samples. */
static double exchange_s(const struct dt_search_input *in, const struct dt_plan *p, int m,
                         int64_t slot, int64_t slots)
{
    int64_t dp = p->modules[m].layout.dp, n = slots;

    if (dp > slot) /* not every replica has a microbatch in every slot */
        n = (slots * slot + dp - 1) / dp;
    return dt_sched_collectives_s(p, in->model, in->cluster, in->cost, m, n) / (double)slots;
}

double dt_orch_plan_exchange_s(const struct dt_search_input *in, const struct dt_plan *p, int m)
{
    if (p->modules[m].zero < 2)
        return 0;
    return exchange_s(in, p, m, dt_plan_slot_samples(p, in->model->llm),
                      dt_plan_slots(p, in->model->llm));
}

double dt_orch_choice_exchange_s(struct dt_orch_table *t, int m, const struct dt_orch_choice *c,
                                 int pipe, int microbatch, int dp_lm)
{
    /* the first is never 0; recomputation and microbatch decide the split, and the slots */
    const uint64_t key[2] = {UINT64_C(1) << 63 | (uint64_t)m << 56 | (uint64_t)c->lane << 48 |
                                 (uint64_t)c->recompute << 44 | (uint64_t)c->zero << 40 |
                                 (uint64_t)pipe << 32 | (uint64_t)microbatch << 24 |
                                 (uint64_t)(uint16_t)c->pp,
                             (uint64_t)(uint32_t)c->dp << 32 | (uint32_t)dp_lm};
    int64_t slot = (int64_t)dp_lm * t->space.microbatch[microbatch];
    struct dt_plan_module was;
    struct dt_orch_exchange *e;
    bool isnew;

    if (t->space.of[m].zero[c->zero] < 2)
        return 0;
    e = dt_hash_table_of(&t->exchange, sizeof(*e), EXCHANGE_LEAST, key, &isnew);
    if (!e) {
        t->nomem = true;
        return 0;
    }
    if (!isnew)
        return e->seconds;
    was = t->scratch.modules[m]; /* others ask about the plan as it is */
    if (!dt_orch_table_set(t, m, c, microbatch, &t->space.pipe[pipe])) {
        t->scratch.modules[m] = was;
        t->nomem = true;
        return 0;
    }
    e->seconds = exchange_s(t->in, &t->scratch, m, slot, t->in->policy.global_batch / slot);
    t->scratch.modules[m] = was;
    return e->seconds;
}
