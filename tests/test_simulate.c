/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Noise, goodput, and the simulate driver on a compiled plan. */
#include "base/mem.h"
#include "core/schedule/schedule.h"
#include "report/sanity.h"
#include "sim/engine.h"
#include "sim/simulate.h"

#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- noise ---- */

START_TEST(jitter_has_mean_one_and_its_spread)
{
    enum { N = 40000 };
    struct dt_sim_noise n = {.seed = dt_test_seed(), .iteration = 5, .jitter = 0.08};
    double sum = 0, logs = 0, logs2 = 0;

    for (uint32_t i = 0; i < N; i++) {
        double f = (double)dt_sim_noise_apply(&n, i % 37, i, 1000000000) * 1e-9;
        sum += f;
        logs += log(f);
        logs2 += log(f) * log(f);
    }
    double mean = logs / N, sd = sqrt(logs2 / N - mean * mean);
    /* four standard errors */
    ck_assert_double_eq_tol(sum / N, 1, 4 * 0.08 / sqrt(N));
    ck_assert_double_eq_tol(mean, -0.08 * 0.08 / 2, 4 * 0.08 / sqrt(N));
    ck_assert_double_eq_tol(sd, 0.08, 4 * 0.08 / sqrt(2.0 * N));
}
END_TEST

START_TEST(jitter_is_a_function_of_its_place)
{
    struct dt_sim_noise n = {.seed = 3, .iteration = 1, .jitter = 0.1}, later = n, other = n;
    int same_lane = 0, same_iteration = 0, same_seed = 0;

    later.iteration = 2;
    other.seed = 4;
    for (uint32_t i = 0; i < 1000; i++) {
        int64_t x = dt_sim_noise_apply(&n, 7, i, 123456789);
        ck_assert_int_eq(x, dt_sim_noise_apply(&n, 7, i, 123456789));
        same_lane += x == dt_sim_noise_apply(&n, 8, i, 123456789);
        same_iteration += x == dt_sim_noise_apply(&later, 7, i, 123456789);
        same_seed += x == dt_sim_noise_apply(&other, 7, i, 123456789);
    }
    ck_assert_int_le(same_lane + same_iteration + same_seed, 3);
    n.jitter = 0;
    ck_assert_int_eq(dt_sim_noise_apply(&n, 7, 0, 123456789), 123456789);
}
END_TEST

START_TEST(slow_lanes_are_as_many_as_asked_and_stay)
{
    static double a[5000], b[10000];
    int slow = 0;

    dt_sim_noise_slow_lanes(dt_test_seed(), 0.03, 1.17, 5000, a);
    dt_sim_noise_slow_lanes(dt_test_seed(), 0.03, 1.17, 10000, b);
    ck_assert_mem_eq(a, b, sizeof a); /* more lanes do not change the first */
    for (int i = 0; i < 10000; i++) {
        ck_assert(b[i] == 1 || b[i] == 1.17);
        slow += b[i] > 1;
    }
    ck_assert_double_eq_tol(slow, 300, 4 * sqrt(300 * 0.97));
}
END_TEST

/* ---- goodput ---- */

enum { GPUS = 1296 };
#define DAY 86400.0

static struct dt_sim_goodput goodput(double mtbf_s, double interval, double write, double restart)
{
    struct dt_sim_goodput g;

    dt_sim_goodput_simulate(dt_test_seed(), GPUS, mtbf_s * GPUS / 3600, interval, write, restart,
                            30 * DAY, &g);
    return g;
}

/* Daly (2006): expected wall time M e^{R/M} (e^{(tau+d)/M} - 1) T/tau with failures striking at any
 * time. */
START_TEST(goodput_meets_the_closed_form)
{
    static const double m_s[3] = {3600, 7200, 40000};

    for (int i = 0; i < 3; i++) {
        double m = m_s[i], tau = 1800, d = 61, r = 307;
        struct dt_sim_goodput g = goodput(m, tau, d, r);
        double wall = m * exp(r / m) * (exp((tau + d) / m) - 1) * 30 * DAY / tau;
        ck_assert_double_eq_tol(g.expected_wall_s / wall, 1, 0.01);
        ck_assert_double_eq_tol(g.goodput, 30 * DAY / wall, 0.01);
        ck_assert_double_eq_tol(g.failures_per_day, DAY / m, 0.03 * DAY / m);
    }
}
END_TEST

/* Young (1974), first order: lost share = d/tau + (tau/2 + R)/M. */
START_TEST(goodput_meets_the_first_order)
{
    double m = 400000, tau = 3000, d = 20, r = 200;
    struct dt_sim_goodput g = goodput(m, tau, d, r);

    ck_assert_double_eq_tol(1 - g.goodput, d / tau + (tau / 2 + r) / m, 0.0015);
    ck_assert_double_eq_tol(g.lost_s_per_failure, (tau + d) / 2 + r, 0.1 * tau);
}
END_TEST

START_TEST(the_best_interval_is_youngs)
{
    double m = 20000, d = 100, best = sqrt(2 * d * m);

    ck_assert_double_gt(goodput(m, best, d, 100).goodput, goodput(m, best / 3, d, 100).goodput);
    ck_assert_double_gt(goodput(m, best, d, 100).goodput, goodput(m, best * 3, d, 100).goodput);
}
END_TEST

START_TEST(goodput_at_the_edges)
{
    /* no failures: 2592 segments, the last needs no write */
    struct dt_sim_goodput g = goodput(0, 1000, 10, 100);

    ck_assert_double_eq_tol(g.expected_wall_s, 30 * DAY + 2591 * 10.0, 1e-3);
    ck_assert_double_eq(g.failures_per_day, 0);
    g = goodput(0, 1e12, 10, 100);
    ck_assert_double_eq(g.goodput, 1);
    g = goodput(30, 3600, 60, 300); /* hopeless: a failure every half minute */
    ck_assert_double_lt(g.goodput, 0.01);
    struct dt_sim_goodput again = goodput(30, 3600, 60, 300);
    ck_assert_mem_eq(&g, &again, sizeof g);
}
END_TEST

/* ---- the driver ---- */

#define JOB                                                                                        \
    "model: mllm-9b\n"                                                                             \
    "cluster: {preset: a800-96, mtbf_gpu_hours: 5000}\n"                                           \
    "samples: {preset: laion-8k, max_side: 512, seed: 1}\n"                                        \
    "profile: a800\n"                                                                              \
    "train: {global_batch: 64, microbatch: 1, seq_len: 8192}\n"                                    \
    "search: {strategy: manual}\n"                                                                 \
    "plan:\n"                                                                                      \
    "  encoder: {tp: 1, pp: 1, dp: 8}\n"                                                           \
    "  llm: {tp: 2, pp: 2, dp: 16}\n"                                                              \
    "  generator: {tp: 1, pp: 1, dp: 16}\n"

struct setup {
    struct dt_job *job;
    struct dt_cost *cost;
    struct dt_error err;
};

static void open_setup_with(struct setup *s, const char *simulate, const char *const *overrides,
                            int n)
{
    char text[2048];

    memset(s, 0, sizeof *s);
    snprintf(text, sizeof text, "%ssimulate: %s\n", JOB, simulate);
    dt_assert_ok(
        dt_job_parse("test.yaml", text, strlen(text), overrides, n, false, &s->err, &s->job),
        s->err);
    dt_assert_ok(dt_plan_place(&s->job->plan, &s->job->cluster, &s->err), s->err);
    dt_assert_ok(dt_cost_new(s->job->model, &s->job->cluster, s->job->profile, &s->job->cost_opt,
                             &s->err, &s->cost),
                 s->err);
}

static void open_setup(struct setup *s, const char *simulate)
{
    open_setup_with(s, simulate, NULL, 0);
}

static void close_setup(struct setup *s)
{
    dt_cost_free(s->cost);
    dt_job_free(s->job);
}

static void count_progress(void *ctx, int done, int total)
{
    int *last = ctx;

    ck_assert_int_eq(done, *last + 1);
    ck_assert_int_ge(total, done);
    *last = done;
}

static struct dt_sim_result simulate(struct setup *s)
{
    struct dt_sim_result r;
    int last = 0;

    dt_assert_ok(dt_sim_run(s->job, &s->job->plan, s->cost, count_progress, &last, &s->err, &r),
                 s->err);
    ck_assert_int_eq(last, s->job->sim.iterations);
    return r;
}

START_TEST(one_quiet_iteration)
{
    struct setup s;

    open_setup(&s, "{iterations: 1, seed: 1}");
    struct dt_sim_result r = simulate(&s);
    ck_assert_int_eq(r.iterations, 1);
    ck_assert_double_gt(r.report.iteration_s, 0);
    ck_assert_double_eq(r.report.iteration_s, r.iteration_s[0]);
    ck_assert_double_eq(r.report.samples_s_p10, r.report.iteration_s);
    ck_assert_double_eq(r.report.samples_s_p90, r.report.iteration_s);
    ck_assert_double_lt(r.report.iteration_s_p10,
                        r.report.iteration_s); /* kernels' times are uncertain */
    ck_assert_double_gt(r.report.iteration_s_p90, r.report.iteration_s);
    ck_assert_double_eq_tol((double)r.timeline.makespan_ns * 1e-9, r.iteration_s[0], 1e-12);
    ck_assert_double_eq(r.goodput, 1);
    ck_assert_uint_gt(r.events, 0);
    dt_assert_ok(dt_program_check(r.program, s.job->model, &s.err), s.err);
    dt_sim_result_free(&r);
    close_setup(&s);
}
END_TEST

/* A compiled program, with all that compilation puts in: parts, boundaries, tied embeddings. */
START_TEST(without_contention_equals_the_topological_evaluation)
{
    struct dt_timeline_topo topo = {0};
    struct dt_timeline eval = {0};
    struct dt_engine *engine;
    struct setup s;
    int delayed = 0;

    open_setup(&s, "{iterations: 1, contention: false, seed: 1}");
    struct dt_sim_result r = simulate(&s);
    dt_assert_ok(dt_timeline_topo_build(r.program, &s.err, &topo), s.err);
    dt_assert_ok(dt_timeline_eval(r.program, &topo, r.durations.ns, &s.err, &eval), s.err);
    ck_assert_int_eq(eval.makespan_ns, r.timeline.makespan_ns);
    ck_assert_mem_eq(eval.begin_ns, r.timeline.begin_ns, r.program->n_ops * sizeof(int64_t));
    ck_assert_mem_eq(eval.end_ns, r.timeline.end_ns, r.program->n_ops * sizeof(int64_t));
    dt_assert_ok(dt_engine_new(&s.err, &engine), s.err);
    dt_assert_ok(dt_engine_run(engine, r.program, &r.durations, NULL, NULL, &s.err, &eval), s.err);
    ck_assert_uint_eq(dt_engine_events(engine), r.events);
    ck_assert_int_eq(eval.makespan_ns, r.timeline.makespan_ns);
    ck_assert_mem_eq(eval.begin_ns, r.timeline.begin_ns, r.program->n_ops * sizeof(int64_t));
    ck_assert_mem_eq(eval.end_ns, r.timeline.end_ns, r.program->n_ops * sizeof(int64_t));
    dt_engine_free(engine);

    struct setup c;
    open_setup(&c, "{iterations: 1, contention: true, seed: 1}");
    struct dt_sim_result shared = simulate(&c);
    ck_assert_uint_eq(dt_program_digest(shared.program), dt_program_digest(r.program));
    for (uint32_t i = 0; i < r.program->n_ops; i++) {
        ck_assert_int_ge(shared.timeline.end_ns[i], r.timeline.end_ns[i]);
        delayed += shared.timeline.end_ns[i] > r.timeline.end_ns[i];
    }
    ck_assert_int_gt(delayed, 0);
    dt_sim_result_free(&shared);
    close_setup(&c);
    dt_timeline_free(&eval);
    dt_timeline_topo_free(&topo);
    dt_sim_result_free(&r);
    close_setup(&s);
}
END_TEST

START_TEST(iterations_differ_and_the_median_is_reported)
{
    struct setup s;
    double times[5];
    int below = 0, above = 0, equal = 0;

    open_setup(&s, "{iterations: 5, seed: 1}");
    struct dt_sim_result r = simulate(&s);
    for (int i = 0; i < 5; i++) {
        times[i] = r.iteration_s[i];
        below += times[i] < r.report.iteration_s - 1e-12;
        above += times[i] > r.report.iteration_s + 1e-12;
        equal += fabs(times[i] - r.report.iteration_s) <= 1e-12;
    }
    ck_assert_int_eq(below, 2);
    ck_assert_int_eq(above, 2);
    ck_assert_int_eq(equal, 1);
    ck_assert_double_lt(r.report.samples_s_p10, r.report.iteration_s);
    ck_assert_double_gt(r.report.samples_s_p90, r.report.iteration_s);
    ck_assert_double_lt(r.report.iteration_s_p10, r.report.samples_s_p10);
    ck_assert_double_gt(r.report.iteration_s_p90, r.report.samples_s_p90);
    ck_assert_int_eq(r.assignment->first_sample, 0);
    ck_assert_double_eq_tol((double)r.timeline.makespan_ns * 1e-9, times[0], 1e-12);
    dt_sim_result_free(&r);
    close_setup(&s);
}
END_TEST

/* What iterations of a whole training take: the mean of batches, however many are simulated and drawn, as sure as the
 * times of kernels and links alone make it. */
START_TEST(a_training_takes_the_mean_of_its_batches)
{
    static const char *const text[] = {"{iterations: 7, contention: false, seed: 1}",
                                       "{iterations: 5, contention: false, seed: 1}",
                                       "{iterations: 1, contention: false, seed: 1}",
                                       "{iterations: 1, contention: false, jitter: 1e-7, seed: 1}"};
    const char *const more[] = {"samples.count=448"}; /* than one iteration's */
    double mean[4];

    for (int k = 0; k < 4; k++) {
        struct setup s;
        double sum = 0, p10, p90;

        open_setup_with(&s, text[k], more, 1);
        struct dt_sim_result r = simulate(&s);
        const struct dt_report *rep = &r.report;

        mean[k] = rep->iteration_s_mean;
        for (int i = 0; i < r.iterations; i++)
            sum += r.iteration_s[i];
        if (k < 2)
            ck_assert_double_eq_tol(mean[k], sum / r.iterations, 1e-9);
        ck_assert_double_eq(rep->tokens_mean, 64 * 8192);
        dt_assert_ok(dt_report_error_interval(&mean[k], 1, r.explanation.share, r.explanation.sigma,
                                              1, DT_SIM_DRAWS, &s.err, &p10, &p90),
                     s.err);
        ck_assert_double_eq(rep->iteration_s_mean_p10, p10);
        ck_assert_double_eq(rep->iteration_s_mean_p90, p90);
        dt_sim_result_free(&r);
        close_setup(&s);
    }
    ck_assert_double_eq_tol(mean[2], mean[1], 1e-8);
    ck_assert_double_eq_tol(mean[3], mean[1], 1e-4 * mean[1]);
    ck_assert_double_gt(fabs(mean[0] / mean[1] - 1), 1e-6);
}
END_TEST

START_TEST(same_seed_same_bytes)
{
    static const char *const text[3] = {
        "{iterations: 2, jitter: 0.03, slow_gpu: {fraction: 0.1, factor: 1.2}, seed: 11}",
        "{iterations: 2, jitter: 0.03, slow_gpu: {fraction: 0.1, factor: 1.2}, seed: 11}",
        "{iterations: 2, jitter: 0.03, slow_gpu: {fraction: 0.1, factor: 1.2}, seed: 12}"};
    struct dt_sim_result r[3];

    for (int i = 0; i < 3; i++) {
        struct setup s;
        open_setup(&s, text[i]);
        r[i] = simulate(&s);
        r[i].program->plan = NULL; /* gone with the job; nothing below reads it */
        close_setup(&s);
    }
    size_t size = r[0].timeline.n_ops * sizeof(int64_t);
    ck_assert_mem_eq(r[0].timeline.begin_ns, r[1].timeline.begin_ns, size);
    ck_assert_mem_eq(r[0].timeline.end_ns, r[1].timeline.end_ns, size);
    ck_assert_mem_eq(r[0].iteration_s, r[1].iteration_s, 2 * sizeof(double));
    ck_assert_double_eq(r[0].report.iteration_s, r[1].report.iteration_s);
    ck_assert_double_eq(r[0].report.iteration_s_p10, r[1].report.iteration_s_p10);
    ck_assert_double_eq(r[0].report.iteration_s_p90, r[1].report.iteration_s_p90);
    ck_assert_double_eq(r[0].report.mfu, r[1].report.mfu);
    ck_assert_mem_ne(r[0].timeline.end_ns, r[2].timeline.end_ns, size);
    for (int i = 0; i < 3; i++)
        dt_sim_result_free(&r[i]);
}
END_TEST

START_TEST(noise_only_slows_this_job_and_widens_it)
{
    struct setup s;

    open_setup(&s, "{iterations: 1, seed: 1}");
    struct dt_sim_result quiet = simulate(&s);
    close_setup(&s);
    open_setup(&s, "{iterations: 1, jitter: 0.05, seed: 1}");
    struct dt_sim_result noisy = simulate(&s);
    close_setup(&s);
    /* Synchronised replicas wait for the slowest: mean-1 jitter raises the maximum. */
    ck_assert_double_gt(noisy.report.iteration_s, quiet.report.iteration_s);
    ck_assert_double_lt(noisy.report.samples_s_p10, noisy.report.samples_s_p90);
    ck_assert_double_le(noisy.report.samples_s_p10, noisy.report.iteration_s);
    ck_assert_double_ge(noisy.report.samples_s_p90, noisy.report.iteration_s);
    dt_sim_result_free(&quiet);
    dt_sim_result_free(&noisy);
}
END_TEST

/* Batch k of the job alone, as if it were the first. */
static struct dt_report alone(int k)
{
    struct dt_samples batch, *all;
    struct dt_sim_result r;
    struct dt_report report;
    struct setup s;

    open_setup(&s, "{iterations: 4, contention: false, seed: 1}");
    all = s.job->samples;
    batch = *all;
    batch.n = s.job->plan.policy.global_batch;
    batch.text_tokens += k * batch.n;
    batch.seq_tokens += k * batch.n;
    batch.item_first += k * batch.n;
    s.job->samples = &batch;
    s.job->sim.iterations = 1;
    r = simulate(&s);
    s.job->samples = all;
    report = r.report;
    dt_sim_result_free(&r);
    close_setup(&s);
    return report;
}

/* Batches differ in their largest microbatches: memory is that of the fullest GPU in any of them, and what does not fit is told. */
START_TEST(memory_is_the_most_of_all_iterations)
{
    struct dt_report one[4];
    struct dt_sim_result r;
    struct setup s;
    int fullest = 0, leanest = 0, unfit = 0, first = 0;

    for (int k = 0; k < 4; k++) {
        one[k] = alone(k);
        ck_assert_int_eq(one[k].memory_iteration, 1);
        ck_assert_int_eq(one[k].unfit, 0);
        fullest = one[k].memory.fullest > one[fullest].memory.fullest ? k : fullest;
        leanest = one[k].memory.fullest < one[leanest].memory.fullest ? k : leanest;
    }
    open_setup(&s, "{iterations: 4, contention: false, seed: 1}");
    r = simulate(&s);
    for (int m = 0; m < s.job->plan.n_modules; m++) {
        double most = 0;

        for (int k = 0; k < 4; k++)
            most = fmax(most, one[k].memory.of_module[m]);
        ck_assert_double_eq(r.report.memory.of_module[m], most);
    }
    ck_assert_double_eq(r.report.memory.fullest, one[fullest].memory.fullest);
    ck_assert_int_eq(r.report.memory_iteration, fullest + 1);
    ck_assert_int_eq(r.report.unfit, 0);
    dt_assert_ok(dt_report_check_memory(&r.report, &s.job->cluster, &s.err), s.err);
    dt_sim_result_free(&r);

    /* GPUs that hold one of the batches and no larger one */
    s.job->cluster.mem_bytes = one[leanest].memory.fullest;
    for (int k = 3; k >= 0; k--)
        if (one[k].memory.fullest > one[leanest].memory.fullest) {
            unfit++;
            first = k + 1;
        }
    ck_assert_int_gt(unfit, 0);
    r = simulate(&s);
    ck_assert_int_eq(r.report.unfit, unfit);
    ck_assert_int_eq(r.report.unfit_first, first);
    ck_assert_int_eq(dt_report_check_memory(&r.report, &s.job->cluster, &s.err), DT_ERR_INFEASIBLE);
    dt_assert_has(s.err.message, "more than it has");
    dt_sim_result_free(&r);
    close_setup(&s);
}
END_TEST

START_TEST(failures_give_goodput_or_an_explanation)
{
    struct dt_sim_goodput g;
    struct dt_sim_result r;
    struct setup s;

    open_setup(&s, "{failures: {enabled: true, checkpoint_interval: 20 min}, seed: 4}");
    r = simulate(&s);
    dt_sim_goodput_simulate(4, dt_plan_gpus(&s.job->plan), 5000, 1200,
                            s.job->sim.checkpoint_write_s, s.job->sim.restart_s, 30 * DAY, &g);
    ck_assert_double_eq(r.goodput, g.goodput);
    ck_assert_double_lt(r.goodput, 1);
    dt_sim_result_free(&r);
    s.job->cluster.mtbf_gpu_hours = 0;
    ck_assert_int_eq(dt_sim_run(s.job, &s.job->plan, s.cost, NULL, NULL, &s.err, &r), DT_ERR_INPUT);
    dt_assert_has(s.err.message, "mtbf_gpu_hours");
    close_setup(&s);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct dt_sim_result r;
    struct setup s;
    uint64_t total, k = 1;

    open_setup(&s, "{iterations: 2, slow_gpu: {fraction: 0.1}, seed: 1}");
    dt_mem_fail_at(0);
    r = simulate(&s); /* also fills the cost model's memo, so that the count below is stable */
    dt_sim_result_free(&r);
    dt_mem_fail_at(0);
    r = simulate(&s);
    dt_sim_result_free(&r);
    total = dt_mem_count();
    for (uint64_t step = 1 + total / 400; k <= total; k += step) {
        dt_mem_fail_at(k);
        enum dt_status st = dt_sim_run(s.job, &s.job->plan, s.cost, NULL, NULL, &s.err, &r);
        dt_mem_fail_at(0);
        ck_assert_msg(st == DT_ERR_NOMEM, "allocation %" PRIu64 " of %" PRIu64, k, total);
    }
    close_setup(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate");
    TCase *tc = dt_test_case(suite, "noise", 0);
    tcase_add_test(tc, jitter_has_mean_one_and_its_spread);
    tcase_add_test(tc, jitter_is_a_function_of_its_place);
    tcase_add_test(tc, slow_lanes_are_as_many_as_asked_and_stay);
    tc = dt_test_case(suite, "goodput", 60);
    tcase_add_test(tc, goodput_meets_the_closed_form);
    tcase_add_test(tc, goodput_meets_the_first_order);
    tcase_add_test(tc, the_best_interval_is_youngs);
    tcase_add_test(tc, goodput_at_the_edges);
    tc = dt_test_case(suite, "driver", 120);
    tcase_add_test(tc, one_quiet_iteration);
    tcase_add_test(tc, without_contention_equals_the_topological_evaluation);
    tcase_add_test(tc, iterations_differ_and_the_median_is_reported);
    tcase_add_test(tc, a_training_takes_the_mean_of_its_batches);
    tcase_add_test(tc, same_seed_same_bytes);
    tcase_add_test(tc, noise_only_slows_this_job_and_widens_it);
    tcase_add_test(tc, memory_is_the_most_of_all_iterations);
    tcase_add_test(tc, failures_give_goodput_or_an_explanation);
    tcase_add_test(tc, every_allocation_may_fail);
    return dt_test_run(suite);
}
