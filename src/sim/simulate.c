/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The simulate driver.
 *
 *   for each iteration: assign its global batch -> compile -> durations -> event engine
 *                                                                          (once per noise draw)
 *
 * The plan stays fixed; the program does not, because what crosses module boundaries depends on the
 * samples.  Only makespans, and what memory the fullest GPU needs, are kept of most iterations: draws
 * are functions of their numbers, so the median one is simply run again for the report. */
#include "sim/simulate.h"

#include "base/mem.h"
#include "base/quantile.h"
#include "report/sanity.h"
#include "sim/cores.h"
#include "sim/engine.h"
#include "sim/feed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Iterations, but for the rest of a pass, and two passes; and two for each batch that may be made ahead. */
enum { WARM_UP_MAX = 128 };
enum { DRAWS_MIN = 16 }; /* with jitter, percentiles stand on at least this many timelines */
/* Goodput is averaged over a month of useful work (assumed: long against any checkpoint interval).
 */
#define GOODPUT_HORIZON_S (30 * 86400.0)

struct sim {
    const struct dt_job *job;
    const struct dt_plan *plan;
    struct dt_cost *cost;
    struct dt_engine *engine;
    struct dt_network *network; /* NULL = no contention */
    struct dt_timeline timeline;
    double *slow; /* [n_slow] per lane, NULL = none */
    int n_slow;
    struct dt_sim_feed *feed; /* NULL = all input is there from the begin */
    int iterations, draws;
    enum dt_assign_way *way;                  /* [iterations] */
    struct timed *times;                      /* [iterations * draws] */
    struct dt_report_memory memory;           /* the most of those that ran */
    int memory_iteration, unfit_first, unfit; /* as in struct dt_report */
    uint64_t events;
    double tokens;                     /* sum over iterations */
    double fed_ns, exposed_ns, core_s; /* the same, where input is preprocessed */
    bool settled;                      /* the stream of input has, before the first one */
};
struct timed {
    double makespan_ns; /* a whole number, exact below 2^53 ns, 104 days */
    int run;            /* iteration * draws + draw */
};
struct batch { /* one iteration, ready to run */
    struct dt_assignment *assignment;
    struct dt_program *program;
    struct dt_durations durations;
    struct dt_sched_supplied supplied; /* where input is preprocessed */
};

static bool has_mode(const struct sim *s, enum dt_sched_supply_mode mode)
{
    return s->job->sim.preprocess.mode == mode;
}

/* Do ranks share cores with each other, or with what makes their batches? */
static bool on_cores(const struct sim *s)
{
    const struct dt_cluster *c = &s->job->cluster;

    return dt_sim_cores_shared(s->plan, c) ||
           (c->cores_per_node > 0 &&
            (s->job->sim.batch_s > 0 || has_mode(s, DT_SCHED_SUPPLY_COLOCATED)));
}

static void batch_close(struct batch *b)
{
    dt_durations_free(&b->durations);
    if (b->program) {
        dt_program_free(b->program);
        b->program = NULL;
    }
    dt_assign_free(b->assignment);
    b->assignment = NULL;
}

static enum dt_status batch_open(const struct sim *s, int iteration, struct dt_error *err,
                                 struct batch *b)
{
    const struct dt_job *j = s->job;
    int64_t first = iteration * s->plan->policy.global_batch;
    struct dt_assign_choice how;

    memset(b, 0, sizeof *b);
    enum dt_status st = dt_assign_choose(s->plan, j->model, &j->cluster, s->cost, j->samples, first,
                                         err, &b->assignment, &how);
    if (st == DT_OK)
        s->way[iteration] = how.way;
    if (st == DT_OK)
        st = dt_sched_compile(s->plan, j->model, &j->cluster, b->assignment, s->cost, err,
                              &b->program);
    if (st == DT_OK)
        st = dt_durations_compute(b->program, j->model, &j->cluster, s->cost,
                                  s->network != NULL || on_cores(s), err, &b->durations);
    if (st != DT_OK)
        batch_close(b);
    return st;
}

/* The same lanes are slow throughout a run. */
static enum dt_status pick_slow_lanes(struct sim *s, int n_lanes, struct dt_error *err)
{
    const struct dt_job_simulate_options *o = &s->job->sim;

    if (s->slow || !(o->slow_gpu_fraction > 0) || o->slow_gpu_factor == 1)
        return DT_OK;
    s->slow = dt_malloc((size_t)n_lanes * sizeof *s->slow);
    if (!s->slow)
        return dt_error_nomem(err, "slow lanes");
    s->n_slow = n_lanes;
    dt_sim_noise_slow_lanes(o->seed, o->slow_gpu_fraction, o->slow_gpu_factor, n_lanes, s->slow);
    return DT_OK;
}

/* Nothing disturbs the durations.  The engine would find the same times, and take longer: it is made for many runs. */
static bool is_quiet(const struct sim *s)
{
    return !s->network && !s->slow && !(s->job->sim.jitter > 0) && !on_cores(s);
}

/* Of a core, that each rank's next batch takes beside it: what colocated cores make, over the ranks. */
static int64_t beside_ns(const struct sim *s, const struct batch *b)
{
    double made_s =
        has_mode(s, DT_SCHED_SUPPLY_COLOCATED) ? b->supplied.core_s / dt_plan_gpus(s->plan) : 0;

    return llround(1e9 * (s->job->sim.batch_s + made_s));
}

static enum dt_status run(struct sim *s, const struct batch *b, int number, struct dt_timeline *t,
                          struct dt_error *err)
{
    struct dt_sim_noise noise = {
        .seed = s->job->sim.seed, .iteration = (uint64_t)number, .jitter = s->job->sim.jitter};

    DT_TRY(pick_slow_lanes(s, b->program->n_lanes, err));
    if (is_quiet(s)) {
        s->events += b->program->n_ops;
        return dt_timeline_once(b->program, b->durations.ns, err, t);
    }
    noise.n_lanes = s->n_slow;
    noise.slowdown = s->slow;
    if (on_cores(s))
        return dt_sim_cores_run(b->program, &b->durations, s->job->cluster.gpus_per_node,
                                s->job->cluster.cores_per_node, beside_ns(s, b), err, t);
    DT_TRY(dt_engine_run(s->engine, b->program, &b->durations, s->network, &noise, err, t));
    s->events += dt_engine_events(s->engine);
    return DT_OK;
}

static enum dt_status sim_open(struct sim *s, struct dt_error *err)
{
    const struct dt_job_simulate_options *o = &s->job->sim;

    s->iterations = o->iterations > 0 ? o->iterations : 1;
    s->draws = o->jitter > 0 ? (DRAWS_MIN + s->iterations - 1) / s->iterations : 1;
    s->times = dt_calloc((size_t)s->iterations * (size_t)s->draws, sizeof *s->times);
    s->way = dt_calloc((size_t)s->iterations, sizeof *s->way);
    if (!s->times || !s->way)
        return dt_error_nomem(err, "iteration times");
    DT_TRY(dt_engine_new(err, &s->engine));
    dt_engine_set_memory(s->engine, s->iterations * s->draws > 1);
    DT_TRY(dt_sim_feed_open(s->job, s->iterations, err, &s->feed));
    return o->contention ? dt_network_new(&s->job->cluster, err, &s->network) : DT_OK;
}

static void sim_close(struct sim *s)
{
    dt_engine_free(s->engine);
    dt_sim_feed_close(s->feed);
    dt_network_free(s->network);
    dt_timeline_free(&s->timeline);
    dt_free(s->slow);
    dt_free(s->times);
    dt_free(s->way);
}

/* ---- input ---- */

/* The iteration's batch comes next in the stream of those that are made. */
static enum dt_status feed(struct sim *s, struct dt_error *err, struct batch *b)
{
    return s->feed ? dt_sim_feed_next(s->feed, b->program, &b->durations, err, &b->supplied)
                   : DT_OK;
}

/* Runs the iteration only to know how long it keeps the stream. */
static enum dt_status flow(struct sim *s, struct batch *b, int iteration, struct dt_error *err)
{
    DT_TRY(feed(s, err, b));
    DT_TRY(run(s, b, iteration * s->draws, &s->timeline, err));
    dt_sim_feed_ran(s->feed, s->timeline.makespan_ns);
    return DT_OK;
}

/* All iterations over and over until it is certain that they repeat: training has been going on for a while before those that
 * are reported. */
static enum dt_status warm_up(struct sim *s, struct batch *first, struct dt_error *err)
{
    uint64_t events = s->events;
    int most = WARM_UP_MAX + 2 * s->job->sim.preprocess.prefetch, done = 0;

    if (!s->feed)
        return DT_OK;
    do {
        DT_TRY(flow(s, first, 0, err));
        for (int i = 1; i < s->iterations; i++) {
            struct batch b;
            enum dt_status st;

            DT_TRY(batch_open(s, i, err, &b));
            st = flow(s, &b, i, err);
            batch_close(&b);
            DT_TRY(st);
        }
        DT_TRY(dt_sim_feed_settled(s->feed, err, &s->settled));
        done += s->iterations;
    } while (!s->settled && (done < most || done == s->iterations));
    s->events = events;
    return DT_OK;
}

/* How much sooner an iteration would end if all its input were there; the stream goes on. */
static enum dt_status run_fed(struct sim *s, const struct batch *b, int number, int64_t with_ns,
                              struct dt_error *err)
{
    struct dt_program p = *b->program;
    struct batch without = *b;
    uint64_t events = s->events;

    p.release_ns = NULL;
    without.program = &p;
    DT_TRY(run(s, &without, number, &s->timeline, err));
    s->events = events; /* it is no iteration of its own */
    s->fed_ns += (double)s->timeline.makespan_ns;
    s->exposed_ns += (double)(with_ns - s->timeline.makespan_ns);
    s->core_s += b->supplied.core_s;
    dt_sim_feed_ran(s->feed, with_ns);
    return dt_sim_feed_keep(s->feed, number / s->draws, b->program, &b->supplied, err);
}

/* A GPU needs room for whichever iteration has the largest microbatches; plans are checked with the first batch only. */
static enum dt_status note_memory(struct sim *s, const struct batch *b, int iteration,
                                  struct dt_error *err)
{
    const struct dt_job *j = s->job;
    struct dt_report_memory m;

    DT_TRY(dt_report_memory_of(b->program, j->model, &j->cluster, err, &m));
    if (s->memory_iteration == 0 || m.fullest > s->memory.fullest)
        s->memory_iteration = iteration + 1;
    dt_report_memory_most(&s->memory, &m);
    if (!dt_report_memory_fits(&m, &j->cluster) && s->unfit++ == 0)
        s->unfit_first = iteration + 1;
    return DT_OK;
}

/* All draws of one iteration; draw 0 of iteration 0 leaves its timeline in *first. */
static enum dt_status run_iteration(struct sim *s, const struct batch *b, int iteration,
                                    struct dt_timeline *first, struct dt_error *err)
{
    DT_TRY(note_memory(s, b, iteration, err));
    s->tokens += dt_report_tokens(s->job->model, b->assignment);
    for (int d = 0; d < s->draws; d++) {
        int number = iteration * s->draws + d;
        struct dt_timeline *t = number == 0 ? first : &s->timeline;
        DT_TRY(run(s, b, number, t, err));
        s->times[number] = (struct timed){(double)t->makespan_ns, number};
        if (d == 0 && s->feed)
            DT_TRY(run_fed(s, b, number, t->makespan_ns, err));
    }
    return DT_OK;
}

static enum dt_status run_others(struct sim *s, dt_sim_progress_fn *progress, void *ctx,
                                 struct dt_error *err)
{
    for (int i = 1; i < s->iterations; i++) {
        struct batch b;
        DT_TRY(batch_open(s, i, err, &b));
        enum dt_status st = feed(s, err, &b);
        if (st == DT_OK)
            st = run_iteration(s, &b, i, NULL, err);
        batch_close(&b);
        DT_TRY(st);
        if (progress)
            progress(ctx, i + 1, s->iterations);
    }
    return DT_OK;
}

static int by_time(const void *a, const void *b)
{
    const struct timed *x = a, *y = b;

    if (x->makespan_ns != y->makespan_ns)
        return x->makespan_ns < y->makespan_ns ? -1 : 1;
    return (x->run > y->run) - (x->run < y->run);
}

static enum dt_status fill_report(struct sim *s, const struct batch *b, const struct dt_timeline *t,
                                  struct dt_error *err, struct dt_report *out)
{
    return dt_report_fill(b->program, s->job->model, &s->job->cluster, &b->durations, t, err, out);
}

/* The report of the median timeline (the lower one of an even number), run again unless it is at
 * hand; its memory is the most of all iterations. */
static enum dt_status report_median(struct sim *s, const struct batch *first,
                                    const struct dt_timeline *first_timeline, struct dt_error *err,
                                    struct dt_report *out)
{
    int n = s->iterations * s->draws;

    qsort(s->times, (size_t)n, sizeof *s->times, by_time);
    int number = s->times[(n - 1) / 2].run, iteration = number / s->draws;
    if (number == 0) {
        DT_TRY(fill_report(s, first, first_timeline, err, out));
    } else {
        struct batch b = *first;
        if (iteration > 0)
            DT_TRY(batch_open(s, iteration, err, &b));
        enum dt_status st =
            s->feed ? dt_sim_feed_again(s->feed, iteration, b.program, err, &b.supplied) : DT_OK;
        if (st == DT_OK)
            st = run(s, &b, number, &s->timeline, err);
        if (st == DT_OK)
            st = fill_report(s, &b, &s->timeline, err, out);
        if (iteration > 0)
            batch_close(&b);
        DT_TRY(st);
    }
    out->memory = s->memory;
    out->memory_iteration = s->memory_iteration;
    out->unfit_first = s->unfit_first;
    out->unfit = s->unfit;
    out->samples_s_p10 =
        1e-9 * dt_quantile(&s->times->makespan_ns, sizeof(*s->times), (size_t)n, 0.1);
    out->samples_s_p90 =
        1e-9 * dt_quantile(&s->times->makespan_ns, sizeof(*s->times), (size_t)n, 0.9);
    return DT_OK;
}

/* ---- interval ---- */

enum { SAMPLED_OPS_MAX = 1 << 18 }; /* beyond, one batch stands for all: its replicas are many */

/* Global batches that are known of. */
struct batches {
    double *time_s; /* [n] timelines: all draws of those simulated, one of each further one */
    int n, further;
    double tokens; /* of all batches */
};

/* Of a further global batch, without contention. */
static enum dt_status quiet_ns(struct sim *s, int iteration, struct dt_error *err, int64_t *ns,
                               double *tokens)
{
    const struct dt_job *j = s->job;
    int64_t first = iteration * s->plan->policy.global_batch;
    struct dt_assignment *a;

    DT_TRY(dt_assign_choose(s->plan, j->model, &j->cluster, s->cost, j->samples, first, err, &a,
                            NULL));
    enum dt_status st = dt_sched_makespan(s->plan, j->model, &j->cluster, a, s->cost, err, ns);
    *tokens = dt_report_tokens(j->model, a);
    dt_assign_free(a);
    return st;
}

/* Times of further batches, as the first one's timeline in proportion to the evaluation without
 * contention; none when the next batch takes as long, as batches of equal samples do. */
static enum dt_status further_batches(struct sim *s, const struct batch *first,
                                      const struct dt_timeline *t, struct batches *known,
                                      struct dt_error *err)
{
    double first_s = (double)t->makespan_ns * 1e-9, tokens;
    int64_t base = t->makespan_ns, ns;

    struct dt_program fed = *first->program;

    fed.release_ns = NULL;
    if (!is_quiet(s) || first->program->release_ns)
        DT_TRY(dt_timeline_makespan(&fed, NULL, first->durations.ns, err, &base));
    for (int i = s->iterations; i < DT_SIM_BATCHES; i++) {
        DT_TRY(quiet_ns(s, i, err, &ns, &tokens));
        if (ns == base)
            break;
        known->time_s[known->n++] = first_s * (double)ns / (double)base;
        known->further++;
        known->tokens += tokens;
    }
    return DT_OK;
}

/* Of the many iterations of a whole training: each takes its own batch's time, so that their sum is as far off as the
 * times of kernels and links are, and no further.  Batches count alike, however many draws there are of one. */
static enum dt_status mean_interval(const struct sim *s, const struct batches *known,
                                    const struct dt_explanation *e, struct dt_error *err,
                                    struct dt_report *r)
{
    int batches = s->iterations + known->further, simulated = known->n - known->further;
    double sum_s = 0;

    for (int i = 0; i < known->n; i++)
        sum_s += i < simulated ? known->time_s[i] / s->draws : known->time_s[i];
    r->iteration_s_mean = sum_s / batches;
    r->tokens_mean = known->tokens / batches;
    return dt_report_error_interval(&r->iteration_s_mean, 1, e->share, e->sigma, s->job->sim.seed,
                                    DT_SIM_DRAWS, err, &r->iteration_s_mean_p10,
                                    &r->iteration_s_mean_p90);
}

static enum dt_status interval(struct sim *s, const struct batch *first,
                               const struct dt_timeline *t, struct dt_error *err,
                               struct dt_sim_result *r)
{
    struct batches known = {.n = s->iterations * s->draws, .tokens = s->tokens};
    const struct dt_explanation *e = &r->explanation;

    DT_TRY(dt_explain(first->program, s->job->model, s->cost, t, err, &r->explanation));
    known.time_s = dt_malloc(((size_t)known.n + DT_SIM_BATCHES) * sizeof *known.time_s);
    if (!known.time_s)
        return dt_error_nomem(err, "iteration times");
    for (int i = 0; i < known.n; i++)
        known.time_s[i] = s->times[i].makespan_ns * 1e-9;
    enum dt_status st = DT_OK;
    if (first->program->n_ops <= SAMPLED_OPS_MAX)
        st = further_batches(s, first, t, &known, err);
    if (st == DT_OK)
        st = dt_report_error_interval(known.time_s, known.n, e->share, e->sigma, s->job->sim.seed,
                                      DT_SIM_DRAWS, err, &r->report.iteration_s_p10,
                                      &r->report.iteration_s_p90);
    if (st == DT_OK)
        st = mean_interval(s, &known, e, err, &r->report);
    dt_free(known.time_s);
    return st;
}

static enum dt_status goodput(const struct dt_job *job, const struct dt_plan *plan,
                              struct dt_error *err, double *out)
{
    const struct dt_job_simulate_options *o = &job->sim;
    struct dt_sim_goodput g;

    *out = 1;
    if (!o->failures)
        return DT_OK;
    if (!(job->cluster.mtbf_gpu_hours > 0))
        return dt_error_set(
            err, DT_ERR_INPUT,
            "simulate.failures needs the cluster's mtbf_gpu_hours, which cluster '%s' "
            "does not state",
            job->cluster.name);
    dt_sim_goodput_simulate(o->seed, dt_plan_gpus(plan), job->cluster.mtbf_gpu_hours,
                            o->checkpoint_interval_s, o->checkpoint_write_s, o->restart_s,
                            GOODPUT_HORIZON_S, &g);
    *out = g.goodput;
    return DT_OK;
}

static enum dt_status simulate(struct sim *s, dt_sim_progress_fn *progress, void *ctx,
                               struct dt_error *err, struct dt_sim_result *r)
{
    struct batch first;

    DT_TRY(goodput(s->job, s->plan, err, &r->goodput));
    DT_TRY(sim_open(s, err));
    DT_TRY(batch_open(s, 0, err, &first));
    r->assignment = first.assignment; /* *r owns the first iteration from here */
    r->program = first.program;
    r->durations = first.durations;
    DT_TRY(warm_up(s, &first, err));
    DT_TRY(feed(s, err, &first));
    DT_TRY(run_iteration(s, &first, 0, &r->timeline, err));
    if (progress)
        progress(ctx, 1, s->iterations);
    DT_TRY(run_others(s, progress, ctx, err));
    r->iteration_s = dt_calloc((size_t)s->iterations, sizeof *r->iteration_s);
    if (!r->iteration_s)
        return dt_error_nomem(err, "iteration times");
    for (int i = 0; i < s->iterations; i++)
        r->iteration_s[i] = s->times[i * s->draws].makespan_ns * 1e-9;
    r->iterations = s->iterations;
    DT_TRY(report_median(s, &first, &r->timeline, err, &r->report));
    r->data = (struct dt_sim_data){.made = first.supplied,
                                   .exposed_s = 1e-9 * s->exposed_ns / s->iterations,
                                   .fed_s = 1e-9 * s->fed_ns / s->iterations,
                                   .core_s = s->core_s / s->iterations,
                                   .settled = s->settled};
    DT_TRY(interval(s, &first, &r->timeline, err, r));
    DT_TRY(dt_report_check(&r->report, s->plan, &s->job->cluster, err));
    if (!(r->goodput >= 0 && r->goodput <= 1))
        return dt_error_set(err, DT_ERR_RANGE,
                            "the simulation gives no sensible result: goodput %.4g", r->goodput);
    r->events = s->events;
    r->way = s->way;
    s->way = NULL;
    return DT_OK;
}

enum dt_status dt_sim_run(const struct dt_job *job, const struct dt_plan *plan,
                          struct dt_cost *cost, dt_sim_progress_fn *progress, void *ctx,
                          struct dt_error *err, struct dt_sim_result *out)
{
    struct sim s = {.job = job, .plan = plan, .cost = cost};
    struct dt_sim_result r;

    memset(&r, 0, sizeof r);
    enum dt_status st = simulate(&s, progress, ctx, err, &r);
    sim_close(&s);
    if (st == DT_OK)
        *out = r;
    else
        dt_sim_result_free(&r);
    return dt_report_suspect(job, st, err);
}

enum dt_status dt_sim_first_s(const struct dt_job *job, const struct dt_plan *plan,
                              struct dt_cost *cost, struct dt_error *err, double *seconds)
{
    struct sim s = {.job = job, .plan = plan, .cost = cost};
    struct batch first;
    enum dt_status st = sim_open(&s, err);

    if (st == DT_OK)
        st = batch_open(&s, 0, err, &first);
    if (st == DT_OK) {
        st = warm_up(&s, &first, err);
        if (st == DT_OK)
            st = feed(&s, err, &first);
        if (st == DT_OK)
            st = run(&s, &first, 0, &s.timeline, err);
        batch_close(&first);
    }
    if (st == DT_OK)
        *seconds = 1e-9 * (double)s.timeline.makespan_ns;
    sim_close(&s);
    return st;
}

void dt_sim_result_free(struct dt_sim_result *r)
{
    struct batch b = {
        .assignment = r->assignment, .program = r->program, .durations = r->durations};

    batch_close(&b);
    dt_timeline_free(&r->timeline);
    dt_explanation_free(&r->explanation);
    dt_free(r->iteration_s);
    dt_free(r->way);
    memset(r, 0, sizeof *r);
}
