/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Orchestration: the formula of a plan, and the strategies behind one door. */
#include "core/orchestrate/orchestrate.h"
#include "base/mem.h"
#include "base/text.h"
#include "core/orchestrate/orchestrate_internal.h"
#include "core/schedule/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PLANNER(id, name, planner, help) &planner,
static const struct dt_orch_planner *const planners[DT_STRATEGY_N] = {DT_STRATEGIES(PLANNER)};

void dt_orch_policy(enum dt_plan_strategy strategy, struct dt_plan_policy *policy)
{
    if (planners[strategy]->policy)
        planners[strategy]->policy(policy);
}

void dt_search_plan_init(const struct dt_search_input *in, struct dt_plan *p)
{
    dt_plan_init(p, in->model, &in->policy);
    for (int m = 0; m < p->n_modules; m++) {
        p->modules[m].frozen = in->frozen[m];
        p->modules[m].offload = in->offload[m];
        p->modules[m].recompute = in->recompute[m];
        p->modules[m].zero = in->zero[m];
    }
}

/* ---- the formula ---- */

struct module_times {
    double sample_s; /* C_m on a lane of this layout */
    double later_s;  /* of it, what a split backward puts off */
    double stage_s[DT_MAX_VSTAGES];
    double slowest_s;
};

static void module_times(const struct dt_search_input *in, const struct dt_plan *p, int m,
                         const struct dt_orch_work_stats *stats, struct module_times *out)
{
    const struct dt_plan_module *mp = &p->modules[m];
    const struct dt_plan_layout *l = &mp->layout;
    const struct dt_block_shard shard = dt_plan_shard(mp);
    struct dt_orch_block_timer timer;

    memset(out, 0, sizeof(*out));
    dt_orch_block_timer_init(&timer, in, p, m, &shard, stats);
    for (int v = 0; v < l->pp * l->vpp; v++)
        for (int b = mp->split[v]; b < mp->split[v + 1]; b++) {
            double later, s = dt_orch_block_timer_s(&timer, b, &later);

            out->sample_s += s;
            out->later_s += later;
            out->stage_s[v % l->pp] += s;
        }
    for (int s = 0; s < l->pp; s++)
        out->slowest_s = fmax(out->slowest_s, out->stage_s[s]);
}

/* Samples per slot of the fullest replica; a module with more replicas than samples of a slot sees
 * one sample every dp/slot slots. */
static double replica_share(int64_t slot, int dp, bool whole)
{
    if (whole && dp <= slot)
        return (double)dt_orch_samples_per_replica(slot, dp);
    return (double)slot / dp;
}

void dt_orch_formula(const struct dt_search_input *in, const struct dt_plan *p,
                     struct dt_plan_prediction *out)
{
    struct dt_orch_work_stats stats[DT_MAX_MODULES];

    for (int m = 0; m < p->n_modules; m++)
        dt_orch_work_stats(in, m, &stats[m]);
    dt_orch_formula_stats(in, p, stats, out);
}

/* Does module m work on GPUs of this host: itself, a guest, or one of those that take turns on all of them? */
static bool works_on(const struct dt_plan *p, int host, int m)
{
    return m == host || p->colocated || dt_plan_host(p, m) == host;
}

/* On how many of them: guests lie among the host's GPUs, and modules that take turns begin with the same one. */
static int gpus_on(const struct dt_plan *p, int host, int m)
{
    int of_host = dt_plan_layout_gpus(&p->modules[host].layout);
    int own = dt_plan_layout_gpus(&p->modules[m].layout);

    return own < of_host ? own : of_host;
}

void dt_orch_formula_stats(const struct dt_search_input *in, const struct dt_plan *p,
                           const struct dt_orch_work_stats *stats, struct dt_plan_prediction *out)
{
    const int llm = in->model->llm;
    int64_t slot = dt_plan_slot_samples(p, llm), slots = dt_plan_slots(p, llm);
    double interval = 0, staged_lm = 0, staged = 0, staged_warm = 0, pass = 0;
    double interval_lm = 0, guests = 0,
           staged_guests = 0; /* per slot, of guests on the LLM's GPUs */
    double exchange_lm = 0; /* per slot, of the LLM or a guest: their lanes exchange side by side */

    memset(out, 0, sizeof(*out));
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;
        bool guest = m != llm && works_on(p, llm, m);
        struct module_times t;
        double mean, staged_m, exchange = dt_orch_plan_exchange_s(in, p, m);

        module_times(in, p, m, &stats[m], &t);
        if (m == llm || guest)
            exchange_lm = fmax(exchange_lm, exchange);
        mean = replica_share(slot, l->dp, false) * t.sample_s / l->pp;
        if (m == llm) {
            double c = p->policy.microbatch * t.sample_s, later = p->policy.microbatch * t.later_s;
            double w = dt_orch_llm_warmup_s(c, later, slots, l->pp, l->vpp);

            out->warmup_s += w;
            staged_warm += w;
            pass = dt_orch_llm_pass_s(c, later, w);
            staged_lm = p->policy.microbatch * t.slowest_s;
            interval_lm = mean;
            continue;
        }
        out->warmup_s += replica_share(slot, l->dp, false) * t.sample_s;
        staged_warm += (double)dt_orch_samples_per_replica(slot, l->dp) * t.sample_s;
        staged_m = replica_share(slot, l->dp, true) * t.slowest_s;
        if (guest) {
            guests += mean * gpus_on(p, llm, m) / dt_plan_layout_gpus(&p->modules[llm].layout);
            staged_guests += staged_m;
        } else {
            interval = fmax(interval, mean);
            staged = fmax(staged, fmax(staged_m, exchange));
        }
    }
    interval = fmax(interval, interval_lm + guests);
    out->steady_s = (double)(slots - 1) * interval;
    out->total_s = out->warmup_s + out->steady_s;
    out->staged_s = dt_orch_staged_s(staged_warm, (double)(slots - 1),
                                     fmax(staged_lm + staged_guests, exchange_lm), staged, pass) +
                    dt_sched_host_step_s(p, in->model, in->cluster, in->cost);
}

/* ---- what binds a plan ---- */

/* The module's stage on a GPU; -1: none. */
static int stage_on(const struct dt_plan_layout *l, int gpu)
{
    int at = gpu - l->first_gpu;

    return at >= 0 && at < dt_plan_layout_gpus(l) ? at / (dt_plan_layout_lane_gpus(l) * l->dp) : -1;
}

struct turns {
    const struct dt_plan *p;
    struct module_times t[DT_MAX_MODULES];
    int64_t slot; /* samples */
};

/* What a slot takes a GPU, which its host's stage and the guests that lie there use in turn. */
static double turns_s(const struct turns *x, int host, int gpu, bool *guests)
{
    double sum = 0;

    *guests = false;
    for (int m = 0; m < x->p->n_modules; m++) {
        const struct dt_plan_layout *l = &x->p->modules[m].layout;
        int stage = works_on(x->p, host, m) ? stage_on(l, gpu) : -1;

        if (stage < 0)
            continue;
        sum += replica_share(x->slot, l->dp, true) * x->t[m].stage_s[stage];
        *guests |= m != host;
    }
    return sum;
}

/* The busiest GPU of a host: what a GPU does changes only where a stage of the host or of a guest begins. */
static void busiest(const struct turns *x, int host, struct dt_orch_binding *b)
{
    for (int m = 0; m < x->p->n_modules; m++) {
        const struct dt_plan_layout *l = &x->p->modules[m].layout;

        for (int s = 0; s < l->pp && works_on(x->p, host, m); s++) {
            int gpu = l->first_gpu + s * l->dp * dt_plan_layout_lane_gpus(l);
            int stage = stage_on(&x->p->modules[host].layout, gpu);
            bool guests;
            double sum = turns_s(x, host, gpu, &guests);

            if (stage < 0 || sum <= b->interval_s[host])
                continue;
            b->interval_s[host] = sum;
            b->stage_of[host] = stage;
            b->with_guests[host] = guests;
        }
    }
}

/* The mean GPU of a host, with samples in equal parts. */
static double mean_s(const struct turns *x, int host)
{
    double sum = 0;

    for (int m = 0; m < x->p->n_modules; m++) {
        const struct dt_plan_layout *l = &x->p->modules[m].layout;

        if (works_on(x->p, host, m))
            sum += replica_share(x->slot, l->dp, false) * x->t[m].sample_s / l->pp *
                   gpus_on(x->p, host, m);
    }
    return sum / dt_plan_layout_gpus(&x->p->modules[host].layout);
}

static void binding_text(const struct dt_search_input *in, const struct dt_plan *p,
                         struct dt_orch_binding *b)
{
    const struct dt_plan_layout *l = &p->modules[b->module].layout;
    const char *name = p->module_names[b->module];
    double interval = b->interval_s[b->module], ideal = b->ideal_s[b->module];
    int free_gpus =
        (in->opt.gpus > 0 ? in->opt.gpus : dt_cluster_gpus(in->cluster)) - dt_plan_gpus(p);
    int64_t slot = dt_plan_slot_samples(p, in->model->llm);
    int64_t k = dt_orch_samples_per_replica(slot, l->dp), more = 0;
    int n;

    n = snprintf(b->why, sizeof(b->why),
                 "%s bounds the steady interval with %.4f s per slot of %lld sample%s (stage %d of "
                 "%d%s, %.1f %% above the ideal); ",
                 name, interval, (long long)slot, dt_plural(slot), b->stage, l->pp,
                 b->with_guests[b->module] ? " and guests" : "",
                 ideal > 0 ? 100 * (interval / ideal - 1) : 0);
    if (n < 0 || (size_t)n >= sizeof(b->why))
        return;
    if (b->module != in->model->llm && k > 1) {
        more = ((slot + k - 2) / (k - 1) - l->dp) * (int64_t)dt_plan_layout_lane_gpus(l) * l->pp;
        snprintf(b->why + n, sizeof(b->why) - (size_t)n,
                 "one sample less per replica (%lld now) takes %lld more GPUs, %d are unused",
                 (long long)k, (long long)more, free_gpus);
    } else {
        snprintf(b->why + n, sizeof(b->why) - (size_t)n,
                 "one more stage takes %d more GPUs, %d are unused",
                 dt_plan_layout_lane_gpus(l) * l->dp, free_gpus);
    }
}

enum dt_status dt_orch_plan_binding(const struct dt_search_input *in, const struct dt_plan *p,
                                    struct dt_error *err, struct dt_orch_binding *out)
{
    struct turns x = {.p = p, .slot = dt_plan_slot_samples(p, in->model->llm)};
    struct dt_orch_binding b = {.module = in->model->llm}; /* of those that take turns, too */

    if (p->n_modules != in->model->n_modules)
        return dt_error_set(err, DT_ERR_INPUT, "plan has %d modules, model %s has %d", p->n_modules,
                            in->model->name, in->model->n_modules);
    for (int m = 0; m < p->n_modules; m++) {
        struct dt_orch_work_stats stats;

        dt_orch_work_stats(in, m, &stats);
        module_times(in, p, m, &stats, &x.t[m]);
        b.sample_s[m] = x.t[m].sample_s;
    }
    for (int m = 0; m < p->n_modules; m++) {
        busiest(&x, m, &b);
        b.ideal_s[m] = mean_s(&x, m);
    }
    for (int m = 0; m < p->n_modules; m++)
        b.module = b.interval_s[m] > b.interval_s[b.module] ? m : b.module;
    b.stage = b.stage_of[b.module];
    binding_text(in, p, &b);
    *out = b;
    return DT_OK;
}

/* ---- strategies ---- */

static enum dt_status check_input(const struct dt_search_input *in, struct dt_error *err)
{
    const struct dt_plan_policy *y = &in->policy;

    if (y->global_batch < 1 || y->microbatch < 1 || y->global_batch % y->microbatch != 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "global batch %lld is not a multiple of the microbatch %d",
                            (long long)y->global_batch, y->microbatch);
    if (in->samples->n < 1)
        return dt_error_set(err, DT_ERR_INPUT, "the sample set is empty");
    if (in->opt.gpus > dt_cluster_gpus(in->cluster))
        return dt_error_set(err, DT_ERR_INPUT, "asked for %d GPUs, cluster %s has %d", in->opt.gpus,
                            in->cluster->name, dt_cluster_gpus(in->cluster));
    return DT_OK;
}

/* A ranking looks at the first order of chunks and of guests that comes near, and at some of many replicas; what is said of the
 * best plan is what its program takes.  Memory that does not hold all of its microbatches leaves it as it is. */
static enum dt_status time_best(const struct dt_search_input *in, struct dt_plan *p,
                                struct dt_error *err)
{
    double seconds, bytes;
    struct dt_error why;
    enum dt_status st;

    if (!in->opt.rank || in->opt.effort == DT_EFFORT_QUICK || in->near ||
        p->predicted.timeline_s <= 0)
        return DT_OK;
    st = (p->policy.batch_reorder ? dt_orch_batch_timeline_s
                                  : dt_orch_plan_timeline_s)(in, p, 0, &why, &seconds, &bytes);
    if (st == DT_OK) {
        p->predicted.timeline_s = seconds;
        p->predicted.mem_bytes_max = bytes;
    }
    return st == DT_OK || st == DT_ERR_INFEASIBLE ? DT_OK : dt_error_pass(err, &why);
}

enum dt_status dt_orch_find(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                            struct dt_error *err, struct dt_search_result *out)
{
    struct dt_search_input own = *in;
    struct dt_search_result r;
    struct dt_orch_table *t;
    enum dt_status st;

    dt_orch_policy(strategy, &own.policy);
    DT_TRY(dt_orch_table_new(&own, err, &t));
    memset(&r, 0, sizeof(r));
    st = planners[strategy]->plan(t, err, &r);
    if (st == DT_OK)
        st = dt_orch_reorder_best(t, &r, err);
    if (st == DT_OK)
        st = dt_orch_choose_shares_again(t, err, &r);
    if (st == DT_OK && r.reorder.batches == 0) /* else that has timed it */
        st = time_best(&own, &r.plans[0], err);
    if (st != DT_OK)
        dt_search_result_free(&r);
    if (st == DT_OK) {
        r.stats.simulated = t->simulated;
        r.stats.ops = t->ops;
        r.stats.untimed = t->untimed;
        dt_orch_rejects_text(t, r.stats.infeasible, sizeof(r.stats.infeasible));
        *out = r;
    }
    dt_orch_table_free(t);
    return st;
}

enum dt_status dt_orch_find_plans(enum dt_plan_strategy strategy, const struct dt_search_input *in,
                                  struct dt_error *err, struct dt_search_result *out)
{
    DT_TRY(check_input(in, err));
    return dt_orch_find_offloading(strategy, in, err, out);
}

void dt_search_result_free(struct dt_search_result *r)
{
    if (!r)
        return;
    dt_free(r->plans);
    dt_free(r->timed);
    r->plans = r->timed = NULL;
    r->n = r->n_timed = 0;
}
