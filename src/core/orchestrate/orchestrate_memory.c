/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The planner's memory questions: asked of the memory model once per distinct situation and
 * remembered. */
#include "base/hash.h"
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void dt_orch_largest_work(const struct dt_orch_work_stats *s, double samples, double sigmas,
                          struct dt_work *out)
{
    double k = fmax(1, samples), tokens, ratio;

    memset(out, 0, sizeof(*out));
    if (s->tokens <= 0)
        return;
    tokens = fmin(k * s->tokens_max, k * s->tokens + sigmas * s->tokens_sd * sqrt(k));
    ratio = tokens / s->tokens; /* in mean samples */
    out->tokens = llround(tokens);
    out->tokens_sq = llround(fmin(k * s->tokens_sq_max, ratio * s->tokens_sq));
    out->n = llround(ceil(fmin(k * s->n_max, ratio * s->n)));
    out->tokens_max = s->longest;
}

void dt_search_largest_work(const struct dt_search_input *in, const struct dt_plan *p,
                            struct dt_work *work)
{
    int64_t slot = dt_plan_slot_samples(p, in->model->llm);

    for (int m = 0; m < in->model->n_modules; m++) {
        struct dt_orch_work_stats s;

        dt_orch_work_stats(in, m, &s);
        dt_orch_largest_work(&s, (double)dt_orch_samples_per_replica(slot, p->modules[m].layout.dp),
                             3, &work[m]);
    }
}

/* Bytes per parameter that no split avoids: bf16 weights; where trained, fp32 gradients and the
 * fp32 master copy and two Adam moments, those over dp under ZeRO-1.  On CPUs the master copy is
 * the weights. */
void dt_orch_table_static_bytes(struct dt_orch_table *t, int m)
{
    const struct dt_model *model = t->in->model;
    bool cpu = dt_cluster_is_cpu(t->in->cluster);

    for (int b = 0; b < model->modules[m].n_blocks; b++) {
        double params = (double)dt_block_params(&model->modules[m].blocks[b]);

        if (model->modules[m].blocks[b].n_experts > 0)
            continue; /* experts may lie elsewhere (ep) */
        t->static_bytes[m] += params * (cpu ? 4 : 2);
        if (dt_plan_trained(&t->scratch, model, m, b)) {
            t->static_bytes[m] += params * 4;
            t->optimizer_bytes[m] += params * (cpu ? 8 : 12);
        }
    }
}

double dt_orch_table_min_gpus(const struct dt_orch_table *t, int m, int tpi, int dp)
{
    const struct dt_cluster *c = t->in->cluster;
    double bytes = t->static_bytes[m] + t->optimizer_bytes[m] / (t->in->policy.zero ? dp : 1);
    double lanes = bytes / (c->mem_bytes - c->mem_reserve_bytes);

    return fmax(1 << tpi, lanes) * (m == t->in->model->llm ? dp : 1);
}

/* ---- the cache ---- */

static struct dt_orch_mem_entry *entry_of(struct dt_orch_mem_entry *table, size_t cap, uint64_t key,
                                          uint32_t dp_lm)
{
    size_t i = (size_t)dt_hash_spread(key + ((uint64_t)dp_lm << 40)) & (cap - 1);

    while (table[i].key && (table[i].key != key || table[i].dp_lm != dp_lm))
        i = (i + 1) & (cap - 1);
    return &table[i];
}

static bool grow(struct dt_orch_table *t)
{
    size_t cap = t->mem_cap ? 2 * t->mem_cap : 4096;
    struct dt_orch_mem_entry *bigger = dt_calloc(cap, sizeof(*bigger));

    if (!bigger)
        return false;
    for (size_t i = 0; i < t->mem_cap; i++)
        if (t->mem[i].key)
            *entry_of(bigger, cap, t->mem[i].key, t->mem[i].dp_lm) = t->mem[i];
    dt_free(t->mem);
    t->mem = bigger;
    t->mem_cap = cap;
    return true;
}

void dt_orch_note_reject(struct dt_orch_table *t, const struct dt_plan *p, int m, int stage,
                         const struct dt_memory *mem)
{
    struct dt_orch_rejects *r = &t->rejects;
    const struct dt_plan_layout *l = &p->modules[m].layout;
    double over = mem->total - dt_memory_limit(t->in->cluster);
    const double gib = 1024.0 * 1024 * 1024;

    if (r->memory++ > 0 && over >= r->memory_least_over_bytes)
        return;
    r->memory_least_over_bytes = over;
    snprintf(r->memory_least, sizeof(r->memory_least),
             "%s tp %d pp %d dp %d stage %d needs %.1f GiB, %.1f of them activations of %d "
             "microbatches",
             p->module_names[m], l->tp, l->pp, l->dp, stage, mem->total / gib,
             mem->activations / gib, mem->in_flight);
}

/* First stage that does not fit decides; stage 0 holds the most microbatches, so it is asked first.
 */
static double stages_over(struct dt_orch_table *t, int m, int64_t slots, int64_t slot_samples)
{
    const struct dt_plan_layout *l = &t->scratch.modules[m].layout;
    double limit = dt_memory_limit(t->in->cluster), worst = -HUGE_VAL;
    struct dt_work work;

    dt_orch_largest_work(&t->work[m], (double)dt_orch_samples_per_replica(slot_samples, l->dp),
                         t->sigmas, &work);
    for (int s = 0; s < l->pp; s++) {
        struct dt_memory mem;

        dt_memory_stage(&t->scratch, t->in->model, t->in->cluster, m, s, &work, slots, &mem);
        worst = fmax(worst, mem.total - limit);
        if (worst > 0) {
            dt_orch_note_reject(t, &t->scratch, m, s, &mem);
            break;
        }
    }
    return worst;
}

/* Lay the scratch plan out as the question says. */
static bool set_scratch(struct dt_orch_table *t, int m, int tpi, int pp, int dp, int dp_lm,
                        int pp_lm, int vpp_lm, int gen_pp)
{
    const struct dt_model *model = t->in->model;
    struct dt_plan_module *mp = &t->scratch.modules[m];
    int vpp = m == model->llm ? vpp_lm : 1;
    const struct dt_orch_stage_entry *e = dt_orch_table_stage(t, m, tpi, pp, vpp);

    if (!e)
        return false;
    for (int i = 0; i < model->n_modules; i++)
        if (model->modules[i].role == DT_ROLE_GENERATOR)
            t->scratch.modules[i].layout.pp = gen_pp;
    t->scratch.modules[model->llm].layout.pp = pp_lm;
    t->scratch.modules[model->llm].layout.vpp = vpp_lm;
    t->scratch.modules[model->llm].layout.dp = dp_lm;
    mp->layout.tp = 1 << tpi;
    mp->layout.pp = pp;
    mp->layout.vpp = vpp;
    mp->layout.dp = dp;
    memcpy(mp->split, e->split, (size_t)(pp * vpp + 1) * sizeof(*mp->split));
    return true;
}

bool dt_orch_table_fits(struct dt_orch_table *t, int m, int tpi, int pp, int dp, int dp_lm,
                        int pp_lm, int vpp_lm, int gen_pp)
{
    const struct dt_plan_policy *y = &t->in->policy;
    int64_t slot_samples = (int64_t)dp_lm * y->microbatch;
    int role = t->in->model->modules[m].role;
    struct dt_orch_mem_entry *e;
    uint64_t key;

    /* What lies upstream of a module does not change what it holds. */
    if (role == DT_ROLE_GENERATOR)
        pp_lm = vpp_lm = gen_pp = 1;
    /* 3 + 3 + 5 + 9 + 9 + 9 + 24 bits and the mark of a used entry: every field fits exactly. */
    key = (uint64_t)m | (uint64_t)tpi << 3 | (uint64_t)vpp_lm << 6 | (uint64_t)pp << 11 |
          (uint64_t)pp_lm << 20 | (uint64_t)gen_pp << 29 | (uint64_t)dp << 38 | UINT64_C(1) << 63;
    if ((t->mem_n + 1) * 2 > t->mem_cap && !grow(t)) {
        t->nomem = true;
        return false;
    }
    e = entry_of(t->mem, t->mem_cap, key, (uint32_t)dp_lm);
    if (e->key)
        return e->over_bytes <= 0;
    if (!set_scratch(t, m, tpi, pp, dp, dp_lm, pp_lm, vpp_lm, gen_pp))
        return false;
    e->over_bytes = (float)stages_over(t, m, y->global_batch / slot_samples, slot_samples);
    e->key = key;
    e->dp_lm = (uint32_t)dp_lm;
    t->mem_n++;
    return e->over_bytes <= 0;
}

void dt_orch_table_forget(struct dt_orch_table *t)
{
    dt_free(t->mem);
    t->mem = NULL;
    t->mem_cap = t->mem_n = 0;
}
