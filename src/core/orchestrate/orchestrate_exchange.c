/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What ZeRO 2 and 3 exchange at every microbatch, for the formula: on a lane these collectives follow each other, as its
 * computations do, so a slot takes the longer of the two.  Answers are remembered, as a search asks again for every
 * recomputation and every layout around. */
#include "base/hash.h"
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"
#include "core/schedule/schedule.h"

#include <math.h>
#include <string.h>

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

static struct dt_orch_exchange *entry_of(struct dt_orch_exchange *table, size_t cap,
                                         const uint64_t key[2])
{
    size_t i = (size_t)dt_hash_spread(dt_hash_word(key[0], key[1])) & (cap - 1);

    while (table[i].key[0] && (table[i].key[0] != key[0] || table[i].key[1] != key[1]))
        i = (i + 1) & (cap - 1);
    return &table[i];
}

static bool grow(struct dt_orch_table *t)
{
    size_t cap = t->exchange_cap ? 2 * t->exchange_cap : 256;
    struct dt_orch_exchange *bigger = dt_calloc(cap, sizeof(*bigger));

    if (!bigger)
        return false;
    for (size_t i = 0; i < t->exchange_cap; i++)
        if (t->exchange[i].key[0])
            *entry_of(bigger, cap, t->exchange[i].key) = t->exchange[i];
    dt_free(t->exchange);
    t->exchange = bigger;
    t->exchange_cap = cap;
    return true;
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

    if (t->space.of[m].zero[c->zero] < 2)
        return 0;
    if ((t->exchange_n + 1) * 2 > t->exchange_cap && !grow(t)) {
        t->nomem = true;
        return 0;
    }
    e = entry_of(t->exchange, t->exchange_cap, key);
    if (e->key[0])
        return e->seconds;
    was = t->scratch.modules[m]; /* others ask about the plan as it is */
    if (!dt_orch_table_set(t, m, c, microbatch, &t->space.pipe[pipe])) {
        t->scratch.modules[m] = was;
        t->nomem = true;
        return 0;
    }
    memcpy(e->key, key, sizeof(e->key));
    t->exchange_n++;
    e->seconds = exchange_s(t->in, &t->scratch, m, slot, t->in->policy.global_batch / slot);
    t->scratch.modules[m] = was;
    return e->seconds;
}
