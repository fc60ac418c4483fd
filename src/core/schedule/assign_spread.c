/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The spread of microbatches' loads before and after Entrain's assignment. */
#include "core/schedule/assign_spread.h"

#include <math.h>

/* Forward and backward of every sample of the batch in module m on one of its lanes, ns. */
static enum dt_status sample_costs(const struct dt_plan *p, const struct dt_model *model, int m,
                                   struct dt_cost *cost, const struct dt_samples *s, int64_t first,
                                   struct dt_arena *arena, double **out)
{
    size_t n = (size_t)p->policy.global_batch;
    struct dt_work *work = DT_ARENA_NEW(arena, struct dt_work, n);
    struct dt_cost_stage_ns *t = DT_ARENA_NEW(arena, struct dt_cost_stage_ns, n);
    unsigned char *trained = DT_ARENA_NEW(arena, unsigned char, model->modules[m].n_blocks + 1);
    struct dt_block_shard shard = dt_plan_shard(&p->modules[m]);

    *out = DT_ARENA_NEW(arena, double, n);
    if (!work || !t || !trained || !*out)
        return DT_ERR_NOMEM;
    for (size_t i = 0; i < n; i++)
        dt_sample_work(s, first + (int64_t)i, &model->modules[m], &work[i]);
    dt_plan_trainable(p, model, m, trained);
    if (!dt_cost_stages_ns(cost, m, 0, model->modules[m].n_blocks, &shard, work, n, trained,
                           dt_plan_upstream_trained(p, model, m, 0), t))
        return DT_ERR_NOMEM;
    for (size_t i = 0; i < n; i++)
        (*out)[i] = t[i].fwd + t[i].bwd;
    return DT_OK;
}

static double load_of(const struct dt_assignment *a, int m, uint32_t b, const double *cost)
{
    const struct dt_microbatch *mb = &a->m[m].mb[b];
    double sum = 0;

    for (uint32_t k = 0; k < mb->n; k++)
        sum += cost[a->m[m].samples[mb->first + k] - a->first_sample];
    return sum;
}

struct sums { /* of microbatches' loads */
    double n, sum, squares, most;
};

static double mean_of(const struct sums *x)
{
    return x->n > 0 ? x->sum / x->n : 0;
}

static double variance_of(const struct sums *x)
{
    return x->n > 0 ? fmax(0, x->squares / x->n - mean_of(x) * mean_of(x)) : 0;
}

static void add_load(struct sums *x, double load)
{
    x->n++;
    x->sum += load;
    x->squares += load * load;
    x->most = fmax(x->most, load);
}

/* Of the cost of one module over the microbatches of another, what a position defers with the rest of it. */
static struct dt_assign_spread spread(const struct dt_assignment *a, int by, const double *cost)
{
    const struct dt_assignment_module *am = &a->m[by];
    uint32_t end = am->mb_first[am->n_replicas];
    struct sums all = {0};
    double variances = 0, relative = 0, mean;

    for (int r = 0; r < am->n_replicas; r++) {
        struct sums own = {0};

        for (uint32_t b = am->mb_first[r]; b < am->mb_first[r + 1]; b++) {
            double load;

            if (dt_assignment_deferred(am, 0, end, b))
                continue;
            load = load_of(a, by, b, cost);
            if (dt_assignment_deferred(am, 0, end, b + 1))
                load += load_of(a, by, b + 1, cost);
            add_load(&own, load);
            add_load(&all, load);
        }
        mean = mean_of(&own);
        variances += own.n * variance_of(&own);
        relative += mean > 0 ? own.n * variance_of(&own) / (mean * mean) : 0;
    }
    mean = mean_of(&all);
    if (mean <= 0)
        return (struct dt_assign_spread){.max_over_mean = 1};
    return (struct dt_assign_spread){.std_s = sqrt(variance_of(&all)) * 1e-9,
                                     .cv = sqrt(variance_of(&all)) / mean,
                                     .max_over_mean = all.most / mean,
                                     .within_std_s = sqrt(variances / all.n) * 1e-9,
                                     .within_cv = sqrt(relative / all.n)};
}

static void count(const struct dt_assignment *a, int encoder, struct dt_assign_spreads *out)
{
    const struct dt_assignment_module *am = &a->m[encoder];
    uint32_t all = am->mb_first[am->n_replicas];

    out->samples = a->n_samples;
    out->slots = a->n_slots;
    out->fewest = a->n_slots;
    for (uint32_t b = 0; b < all; b++)
        out->deferred += dt_assignment_deferred(am, 0, all, b) ? am->mb[b].n : 0;
    for (int r = 0; r < am->n_replicas; r++) {
        int64_t k = dt_assignment_positions(am, r);

        out->fewest = k < out->fewest ? k : out->fewest;
        out->most = k > out->most ? k : out->most;
    }
}

static enum dt_status fill(const struct dt_plan *p, const struct dt_model *m, struct dt_cost *cost,
                           const struct dt_samples *s, const struct dt_assignment *given,
                           const struct dt_assignment *run, struct dt_arena *arena,
                           struct dt_assign_spreads *out)
{
    int encoder = 0;

    while (encoder < m->n_modules - 1 && !dt_plan_feeds_llm(m, encoder))
        encoder++;
    *out = (struct dt_assign_spreads){0};
    count(run, encoder, out);
    for (int i = 0; i < m->n_modules; i++) {
        double *c;

        DT_TRY(sample_costs(p, m, i, cost, s, given->first_sample, arena, &c));
        out->of[i][DT_ASSIGN_SPREAD_GIVEN] = spread(given, i, c);
        out->of[i][DT_ASSIGN_SPREAD_BALANCED] = spread(run, encoder, c);
        out->of[i][DT_ASSIGN_SPREAD_RUN] = spread(run, i, c);
    }
    return DT_OK;
}

enum dt_status dt_assign_spread(const struct dt_plan *p, const struct dt_model *m,
                                struct dt_cost *cost, const struct dt_samples *s,
                                int64_t first_sample, struct dt_error *err,
                                struct dt_assign_spreads *out)
{
    struct dt_plan plain = *p;
    struct dt_assignment *given, *run;
    struct dt_arena arena = {0};
    enum dt_status st;

    plain.policy.assignment = DT_ASSIGNMENT_SLOTS;
    plain.policy.intra_reorder = plain.policy.inter_reorder = false;
    DT_TRY(dt_assign(&plain, m, cost, s, first_sample, err, &given));
    st = dt_assign(p, m, cost, s, first_sample, err, &run);
    if (st == DT_OK) {
        st = fill(p, m, cost, s, given, run, &arena, out);
        if (st != DT_OK)
            dt_error_nomem(err, "spread of microbatches");
        dt_assign_free(run);
    }
    dt_assign_free(given);
    dt_arena_free(&arena);
    return st;
}
