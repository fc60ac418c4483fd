/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * From candidates to plans: ranking by the program's timeline on real samples. */
#include "base/mem.h"
#include "base/number.h"
#include "core/orchestrate/orchestrate_internal.h"
#include "core/schedule/assign_choose.h"
#include "core/schedule/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Plans this close are equally fast; the one with fewer GPUs is better. */
#define TIE 1e-3
/* A plan that the bound puts this far behind the best timeline is left out.  The bound is of mean
 * samples; a test holds it to at most 0.3 % above the timeline on real ones, in random small worlds. */
#define CERTAIN 1.01
/* Before any timeline says what it is to the formula, it is taken to be the same: with this weight, where a timeline of a plan
 * alike in all that counts here has 1.  As the formula is mostly too short, kinds of plans that none was timed of come early. */
#define PRIOR 0.5
/* Of one that takes so much more, the turns of guests need not be the best. */
#define ROUGH 0.015
/* So many chunks more differ as much as a pipe of twice the depth. */
#define CHUNKS_ALIKE 4
/* A program that takes all of the budget is put behind those that promise to be up to so much slower: an early one would
 * leave nothing to the others. */
#define COST 0.5

/* ---- the timeline of a plan ---- */

/* With eager forwards, of what these microbatches let stages hold. */
static enum dt_status check_assigned(const struct dt_search_input *in, const struct dt_plan *p,
                                     const struct dt_assignment *a, struct dt_error *err,
                                     double *mem_bytes_max)
{
    struct dt_work work[DT_MAX_MODULES];
    struct dt_plan *ahead;
    enum dt_status st;

    for (int m = 0; m < a->n_modules; m++)
        work[m] = dt_assignment_charged(p, a, m);
    DT_TRY(dt_sched_ahead(p, in->model, in->cluster, a, err, &ahead));
    st = dt_memory_check(ahead ? ahead : p, in->model, in->cluster, work, mem_bytes_max, err);
    dt_free(ahead);
    return st;
}

enum dt_status dt_orch_check_whole(const struct dt_search_input *in, const struct dt_plan *p,
                                   int64_t first_sample, struct dt_error *err)
{
    struct dt_assignment *a;
    double bytes;
    enum dt_status st;

    DT_TRY(dt_assign(p, in->model, in->cost, in->samples, first_sample, err, &a));
    st = check_assigned(in, p, a, err, &bytes);
    dt_assign_free(a);
    return st;
}

/* 0: none. */
static int64_t limit_ns(double limit_s)
{
    return limit_s * 1e9 < (double)DT_TIME_MAX_NS ? (int64_t)ceil(limit_s * 1e9) : 0;
}

enum dt_status dt_orch_run_timeline_s(const struct dt_search_input *in, const struct dt_plan *p,
                                      const struct dt_plan *run, enum dt_orch_look look,
                                      double limit_s, double rough_s, int64_t first_sample,
                                      struct dt_error *err, double *seconds, double *mem_bytes_max)
{
    struct dt_orch_timeline line = {0};
    struct dt_assignment *a;
    int64_t ns = 0, first_ns = 0;
    bool exact = true;
    enum dt_status st;

    if (dt_orch_timed_find(in, p, run, look, limit_ns(rough_s), first_sample, seconds,
                           mem_bytes_max))
        return DT_OK;
    DT_TRY(dt_assign(run, in->model, in->cost, in->samples, first_sample, err, &a));
    st = check_assigned(in, p, a, err, &line.mem_bytes_max);
    if (st == DT_OK && look == DT_ORCH_EXACT)
        st = dt_sched_makespan(run, in->model, in->cluster, a, in->cost, err, &ns);
    else if (st == DT_OK)
        st = dt_sched_glance(run, in->model, in->cluster, a, in->cost, limit_ns(limit_s),
                             limit_ns(rough_s), err, &ns, &first_ns, &exact);
    if (st == DT_OK) {
        line.seconds = *seconds = ns == INT64_MAX ? HUGE_VAL : 1e-9 * (double)ns;
        line.first_ns = first_ns;
        line.rough = limit_ns(rough_s) > 0 && first_ns > limit_ns(rough_s);
        *mem_bytes_max = line.mem_bytes_max;
    }
    if (st == DT_OK && ns != INT64_MAX && first_ns != INT64_MAX) { /* else one was given up */
        dt_orch_timed_add(in, p, run, look, first_sample, &line);
        line.first_ns = 0;
        if (look == DT_ORCH_GLANCE && exact)
            dt_orch_timed_add(in, p, run, DT_ORCH_EXACT, first_sample, &line);
    }
    dt_assign_free(a);
    return st;
}

enum dt_status dt_orch_plan_timeline_s(const struct dt_search_input *in, const struct dt_plan *p,
                                       int64_t first_sample, struct dt_error *err, double *seconds,
                                       double *mem_bytes_max)
{
    double bytes;

    DT_TRY(dt_orch_run_timeline_s(in, p, p, DT_ORCH_EXACT, HUGE_VAL, HUGE_VAL, first_sample, err,
                                  seconds, &bytes));
    if (mem_bytes_max)
        *mem_bytes_max = bytes;
    return DT_OK;
}

enum dt_status dt_orch_batch_timeline_s(const struct dt_search_input *in, const struct dt_plan *p,
                                        int64_t first_sample, struct dt_error *err, double *seconds,
                                        double *mem_bytes_max)
{
    struct dt_assignment *a;
    struct dt_assign_choice how;
    enum dt_status st;

    DT_TRY(dt_assign_choose(p, in->model, in->cluster, in->cost, in->samples, first_sample, err, &a,
                            &how));
    st = check_assigned(in, p, a, err, mem_bytes_max);
    dt_assign_free(a);
    if (st == DT_OK && how.ns[how.way] == INT64_MAX) /* timed in no way: this says why */
        return dt_orch_run_timeline_s(in, p, p, DT_ORCH_EXACT, HUGE_VAL, HUGE_VAL, first_sample,
                                      err, seconds, mem_bytes_max);
    *seconds = 1e-9 * (double)how.ns[how.way];
    return st;
}

/* ---- ranking ---- */

enum dt_status dt_orch_check_expected(struct dt_orch_table *t, struct dt_plan *p,
                                      struct dt_error *err)
{
    const struct dt_search_input *in = t->in;
    struct dt_work work[DT_MAX_MODULES];
    double bytes = 0;

    for (int m = 0; m < p->n_modules; m++)
        dt_orch_expected_work(&t->work[m], p, in->model->llm, m, t->sigmas, &work[m]);
    DT_TRY(dt_memory_check_again(t->acts, p, in->model, in->cluster, work, &bytes, err));
    p->predicted.mem_bytes_max = bytes;
    return DT_OK;
}

/* Ops of the program that ranking_timeline() times, and whether it is a share of the plan's, which goes to *part. */
static double look_at(const struct dt_orch_table *t, const struct dt_plan *p, double samples,
                      struct dt_plan *part, bool *share)
{
    const int llm = t->in->model->llm;
    double all = dt_orch_plan_ops(p, llm), ops = dt_orch_effort_of(t->in)->rank_ops;

    if (samples > 0)
        ops = fmin(ops, all * samples / (double)p->policy.global_batch);
    *share = dt_orch_plan_share(p, llm, ops, part);
    return *share ? dt_orch_plan_ops(part, llm) : all;
}

double dt_orch_look_ops(const struct dt_orch_table *t, const struct dt_plan *p, double samples)
{
    struct dt_plan part;
    bool share;

    return look_at(t, p, samples, &part, &share);
}

/* Broker groups meet only in the gradient sync, so a long program is ranked by some of them, at first sight by no more than
 * take so many samples (0: a closer look).  Memory must hold what they were given and what is to be expected of the others.
 * What takes longer than limit_s may be given up.  *closer: more would be seen of a longer one. */
static enum dt_status ranking_timeline(struct dt_orch_table *t, struct dt_plan *p, double samples,
                                       double limit_s, double rough_s, struct dt_error *err,
                                       bool *closer)
{
    const struct dt_search_input *in = t->in;
    struct dt_plan_prediction *q = &p->predicted;
    struct dt_plan part;
    double expected, ops;
    bool share;

    ops = look_at(t, p, samples, &part, &share);
    t->simulated++;
    t->ops += (int64_t)ops;
    *closer = share && samples > 0 && dt_orch_look_ops(t, p, 0) > ops;
    if (!share)
        return dt_orch_run_timeline_s(in, p, p, DT_ORCH_GLANCE, limit_s, rough_s, 0, err,
                                      &q->timeline_s, &q->mem_bytes_max);
    DT_TRY(dt_orch_check_expected(t, p, err));
    expected = q->mem_bytes_max;
    dt_orch_slowest_groups(t, p, &part);
    DT_TRY(dt_orch_place_share(p, in->cluster, err, &part));
    DT_TRY(dt_orch_run_timeline_s(in, p, &part, DT_ORCH_GLANCE, limit_s, rough_s, 0, err,
                                  &q->timeline_s, &q->mem_bytes_max));
    q->mem_bytes_max = fmax(q->mem_bytes_max, expected);
    return DT_OK;
}

static void predict_formula(struct dt_orch_table *t, struct dt_plan *p)
{
    double bound = p->predicted.lower_bound_s;

    dt_orch_formula_stats(t->in, p, t->work, &p->predicted);
    p->predicted.lower_bound_s = bound;
}

enum dt_status dt_orch_time_plan(struct dt_orch_table *t, struct dt_plan *p, double samples,
                                 double limit_s, double rough_s, struct dt_error *err, bool *closer)
{
    predict_formula(t, p);
    return ranking_timeline(t, p, samples, limit_s, rough_s, err, closer);
}

/* Does even the smallest share of the plan have more ops than this effort times? */
static bool is_long(const struct dt_search_input *in, const struct dt_plan *p)
{
    double most = dt_orch_effort_of(in)->most_ops;
    struct dt_plan part;

    if (most <= 0)
        return false;
    return dt_orch_plan_ops(dt_orch_plan_share(p, in->model->llm, most, &part) ? &part : p,
                            in->model->llm) > most;
}

/* Predictions of one plan, with a timeline unless it takes more than `limit` seconds for certain, or the budget is
 * spent.  DT_ERR_INFEASIBLE if its memory does not fit after all. */
static enum dt_status predict(struct dt_orch_table *t, struct dt_plan *p, bool first, double limit,
                              struct dt_error *err, bool *closer)
{
    const struct dt_search_input *in = t->in;

    if (!in->opt.rank || dt_orch_plan_least_s(t, p) > limit * CERTAIN)
        return dt_orch_check_expected(t, p, err);
    if ((t->ops < dt_orch_budget(in) && !is_long(in, p)) || isinf(limit))
        return ranking_timeline(t, p, first ? dt_orch_effort_of(in)->first_samples : 0, HUGE_VAL,
                                limit * (1 + ROUGH), err, closer);
    t->untimed++;
    return dt_orch_check_expected(t, p, err);
}

static double seconds_of(const struct dt_plan *p)
{
    return p->predicted.timeline_s > 0 ? p->predicted.timeline_s : p->predicted.staged_s;
}

static int by_seconds(const void *pa, const void *pb)
{
    const struct dt_plan *a = *(const struct dt_plan *const *)pa;
    const struct dt_plan *b = *(const struct dt_plan *const *)pb;
    bool timed_a = a->predicted.timeline_s > 0, timed_b = b->predicted.timeline_s > 0;
    double x = seconds_of(a), y = seconds_of(b);

    if (timed_a != timed_b)
        return timed_a ? -1 : 1;
    return x < y ? -1 : x > y ? 1 : dt_plan_gpus(a) - dt_plan_gpus(b);
}

/* Shortest first; then the leanest of those within TIE of the shortest comes to the front. */
enum dt_status dt_orch_sort(struct dt_plan *plans, int n, struct dt_error *err)
{
    const struct dt_plan **order = dt_malloc((size_t)n * sizeof(*order)), *front;
    struct dt_plan *sorted = dt_malloc((size_t)n * sizeof(*sorted));
    int lean = 0;

    if (!order || !sorted) {
        dt_free(order);
        dt_free(sorted);
        return dt_error_nomem(err, "plans");
    }
    for (int i = 0; i < n; i++)
        order[i] = &plans[i];
    qsort(order, (size_t)n, sizeof(*order), by_seconds);
    for (int i = 1; i < n && order[i]->predicted.timeline_s > 0 &&
                    seconds_of(order[i]) <= seconds_of(order[0]) * (1 + TIE);
         i++)
        if (dt_plan_gpus(order[i]) < dt_plan_gpus(order[lean]))
            lean = i;
    front = order[lean];
    memmove(order + 1, order, (size_t)lean * sizeof(*order));
    order[0] = front;
    for (int i = 0; i < n; i++)
        sorted[i] = *order[i];
    memcpy(plans, sorted, (size_t)n * sizeof(*plans));
    dt_free(order);
    dt_free(sorted);
    return DT_OK;
}

enum state { NEW, SEEN, CLOSER /* seen, and worth a second look */ };

struct candidate { /* what decides when a plan's turn comes: plans are far larger */
    /* What timelines of others were to the formula, weighted by how much they are alike: the formula leaves out transfers,
     * which chunks multiply, and counts warm-up that the timeline hides. */
    double ratios, weights;
    double staged_s, cost; /* cost: its program's share of the budget */
    float log_tp, log_pp;
    float
        log_others; /* of the others' depths: what they send between stages may be far more than the LLM's */
    uint8_t schedule, zero, vpp, state;
};

/* How much the ratio of one says of that of the other. */
static double likeness(const struct candidate *a, const struct candidate *b)
{
    double d = fabs((double)(a->log_tp - b->log_tp)) + fabs((double)(a->log_pp - b->log_pp)) +
               fabs((double)(a->log_others - b->log_others)) +
               fabs((double)a->vpp - (double)b->vpp) / CHUNKS_ALIKE;

    return a->schedule == b->schedule && a->zero == b->zero ? 1 / (1 + d * d) : 0;
}

/* What there is to learn from a plan's timeline. */
static void learn(const struct dt_plan *p, const struct candidate *of, struct candidate *c, int n)
{
    double ratio = p->predicted.timeline_s / p->predicted.staged_s;

    if (p->predicted.timeline_s <= 0 || p->predicted.staged_s <= 0)
        return;
    for (int i = 0; i < n; i++) {
        double w = likeness(of, &c[i]);

        c[i].ratios += w * ratio;
        c[i].weights += w;
    }
}

/* What the plan's timeline is expected to take, and more for what it costs to find out. */
static double promise(const struct candidate *c)
{
    return c->staged_s * (c->ratios + PRIOR) / (c->weights + PRIOR) * (1 + COST * c->cost);
}

/* The plan to be timed next: the most promising one of those that are new. */
static int next_plan(const struct candidate *c, int n)
{
    double least = HUGE_VAL;
    int best = 0;

    for (int i = 0; i < n; i++)
        if (c[i].state == NEW && promise(&c[i]) < least) {
            least = promise(&c[i]);
            best = i;
        }
    return best;
}

/* What the plan is to be expected to have in the memory of hosts, where that is bounded. */
static struct dt_memory_host on_hosts(struct dt_orch_table *t, const struct dt_plan *p)
{
    struct dt_work work[DT_MAX_MODULES];
    struct dt_memory_host h = {0};

    if (t->in->cluster->host_mem_bytes <= 0)
        return h;
    for (int m = 0; m < p->n_modules; m++)
        dt_orch_expected_work(&t->work[m], p, t->in->model->llm, m, t->sigmas, &work[m]);
    dt_memory_host(p, t->in->model, t->in->cluster, work, NULL, &h);
    return h;
}

bool dt_orch_hosts_may_hold(struct dt_orch_table *t, const struct dt_plan *p)
{
    const struct dt_cluster *c = t->in->cluster;

    return on_hosts(t, p).all_bytes <= c->host_mem_bytes * c->nodes;
}

double dt_orch_hosts_floor_bytes(const struct dt_orch_table *t)
{
    const struct dt_model *model = t->in->model;
    double params = 0;

    if (dt_cluster_is_cpu(t->in->cluster))
        return 0;
    for (int m = 0; m < model->n_modules; m++)
        for (int b = 0; b < model->modules[m].n_blocks; b++) {
            const struct dt_block *block = &model->modules[m].blocks[b];

            if (t->space.of[m].on_host[0] && block->n_experts == 0 &&
                dt_plan_trained(&t->scratch, model, m, b))
                params += (double)dt_block_params(block);
        }
    return 12 * params;
}

bool dt_orch_hosts_hold_none(struct dt_orch_table *t)
{
    const struct dt_cluster *c = t->in->cluster;
    double bytes = c->host_mem_bytes > 0 ? dt_orch_hosts_floor_bytes(t) : 0;

    if (bytes <= c->host_mem_bytes * c->nodes)
        return false;
    t->rejects.hosts_floor_bytes = bytes / c->nodes;
    return true;
}

void dt_orch_note_unfit(struct dt_orch_table *t, const struct dt_plan *p)
{
    struct dt_memory_host h = on_hosts(t, p);

    if (h.node_bytes <= t->in->cluster->host_mem_bytes) {
        t->rejects.assigned++;
        return;
    }
    if (t->rejects.hosts++ == 0 || h.node_bytes < t->rejects.hosts_least_bytes)
        t->rejects.hosts_least_bytes = h.node_bytes;
}

/* Times plan i, or puts it aside; *limit falls with the best timeline. */
static enum dt_status look(struct dt_orch_table *t, struct dt_plan *p, bool first, double *limit,
                           struct candidate *c, struct dt_error *err)
{
    bool closer = false;
    enum dt_status st = predict(t, p, first, *limit, err, &closer);

    c->state = closer ? CLOSER : SEEN;
    if (st == DT_ERR_INFEASIBLE) {
        dt_orch_note_unfit(t, p);
        p->n_modules = 0; /* marks it */
        return DT_OK;
    }
    DT_TRY(st);
    if (p->predicted.timeline_s > 0)
        *limit = fmin(*limit, p->predicted.timeline_s);
    return DT_OK;
}

/* All plans at first sight, the most promising first. */
static enum dt_status first_look(struct dt_orch_table *t, struct dt_plan *plans, int n,
                                 struct candidate *c, struct dt_error *err)
{
    const double budget = (double)dt_orch_budget(t->in);
    double limit = HUGE_VAL;

    for (int i = 0; i < n; i++) {
        const struct dt_plan_module *llm = &plans[i].modules[t->in->model->llm];

        c[i] = (struct candidate){
            .staged_s = plans[i].predicted.staged_s,
            .cost =
                dt_orch_look_ops(t, &plans[i], dt_orch_effort_of(t->in)->first_samples) / budget,
            .log_tp = log2f((float)(llm->layout.tp * llm->layout.cp)),
            .log_pp = log2f((float)llm->layout.pp),
            .schedule = (uint8_t)plans[i].policy.schedule,
            .zero = (uint8_t)llm->zero,
            .vpp = (uint8_t)llm->layout.vpp};
        for (int m = 0; m < plans[i].n_modules; m++)
            if (m != t->in->model->llm)
                c[i].log_others += log2f((float)plans[i].modules[m].layout.pp);
    }
    for (int k = 0; k < n; k++) {
        int i = next_plan(c, n);

        DT_TRY(look(t, &plans[i], true, &limit, &c[i], err));
        if (plans[i].n_modules > 0)
            learn(&plans[i], &c[i], c, n);
    }
    return DT_OK;
}

/* Those that may be the best once more, by more of their replicas: the best first, until it has been, and nothing that
 * came close is left. */
static enum dt_status second_look(struct dt_orch_table *t, struct dt_plan *plans, int n,
                                  struct candidate *c, struct dt_error *err)
{
    const struct dt_orch_effort *e = dt_orch_effort_of(t->in);

    for (;;) {
        double best = HUGE_VAL, least = HUGE_VAL, limit = HUGE_VAL;
        int next = -1;

        for (int i = 0; i < n; i++) {
            double s = plans[i].predicted.timeline_s;

            if (plans[i].n_modules == 0 || s <= 0)
                continue;
            best = fmin(best, s);
            if (c[i].state == CLOSER && s < least) {
                least = s;
                next = i;
            }
        }
        if (next < 0 ||
            least > best * (1 + (dt_plan_shares(&plans[next]) ? e->again_guests : e->again)))
            return DT_OK;
        DT_TRY(look(t, &plans[next], false, &limit, &c[next], err));
    }
}

static enum dt_status rank(struct dt_orch_table *t, struct dt_plan *plans, int n, bool sort,
                           struct candidate *c, struct dt_error *err)
{
    double limit;

    if (sort) {
        DT_TRY(first_look(t, plans, n, c, err));
        return second_look(t, plans, n, c, err);
    }
    for (int i = 0; i < n; i++) {
        limit = HUGE_VAL;
        DT_TRY(look(t, &plans[i], false, &limit, &c[i], err));
    }
    return DT_OK;
}

enum dt_status dt_orch_rank(struct dt_orch_table *t, struct dt_plan *plans, int *n, bool sort,
                            struct dt_error *err)
{
    struct candidate *c = dt_calloc((size_t)*n + 1, sizeof(*c));
    enum dt_status st;
    int kept = 0;

    if (!c)
        return dt_error_nomem(err, "plans");
    for (int i = 0; i < *n; i++)
        predict_formula(t, &plans[i]);
    st = rank(t, plans, *n, sort, c, err);
    dt_free(c);
    DT_TRY(st);
    for (int i = 0; i < *n; i++)
        if (plans[i].n_modules > 0)
            plans[kept++] = plans[i];
    *n = kept;
    return sort && t->in->opt.rank && kept > 1 ? dt_orch_sort(plans, kept, err) : DT_OK;
}
