/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parts of a stage, the critical path, contributions, and intervals. */
#include "report/explain.h"
#include "core/job/job.h"
#include "base/rng.h"
#include "sim/simulate.h"

#include "test_util.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_linalg.h>
#include <math.h>
#include <stdio.h>

static const char GPT[] =
    "model: {kind: llm, name: llm, layers: 10, hidden: 3072, ffn: 12288, heads: 24, vocab: 51200, "
    "positions: 2048, gated: false, bias: true, norm: layernorm, tied: true, attention: unfused, "
    "sequence_parallel: false}\n"
    "cluster: {preset: a100, nodes: 4}\nsamples: {preset: text}\nprofile: a100\n"
    "search: {strategy: manual}\nplan: {llm: {tp: 4, pp: 4, dp: 2}}\n";
static const char MLLM[] = "model: mllm-9b\ncluster: {preset: a800-1296, nodes: 12}\n"
                           "samples: laion-8k\nprofile: a800\nsearch: {strategy: manual}\n"
                           "plan: {encoder: {dp: 4}, llm: {tp: 4, pp: 2, dp: 8}, "
                           "generator: {dp: 2}}\n";

struct setup {
    struct dt_job *job;
    struct dt_cost *cost;
    struct dt_error err;
};

static void open_job(struct setup *s, const char *head, const char *train, const char *simulate)
{
    char text[4096];

    memset(s, 0, sizeof *s);
    snprintf(text, sizeof text, "%strain: %s\nsimulate: %s\n", head, train, simulate);
    dt_assert_ok(dt_job_parse("t.yaml", text, strlen(text), NULL, 0, false, &s->err, &s->job),
                 s->err);
    dt_assert_ok(dt_plan_place(&s->job->plan, &s->job->cluster, &s->err), s->err);
    dt_assert_ok(dt_cost_new(s->job->model, &s->job->cluster, s->job->profile, &s->job->cost_opt,
                             &s->err, &s->cost),
                 s->err);
}

static void close_job(struct setup *s)
{
    dt_cost_free(s->cost);
    dt_job_free(s->job);
}

static struct dt_sim_result simulate(struct setup *s)
{
    struct dt_sim_result r;

    dt_assert_ok(dt_sim_run(s->job, &s->job->plan, s->cost, NULL, NULL, &s->err, &r), s->err);
    return r;
}

/* ---- parts ---- */

struct sums {
    double fwd, back, host;
};

static void sum_part(void *ctx, const struct dt_kop *k, enum dt_cost_direction dir,
                     const struct dt_cost_time *t)
{
    struct sums *s = ctx;
    double prov = 0;

    for (int i = 0; i < DT_PROV_N; i++)
        prov += t->prov[i];
    ck_assert_double_eq_tol(prov / t->ns, 1, 1e-9);
    *(dir == DT_DIR_FWD ? &s->fwd : &s->back) += t->ns;
    s->host += k ? 0 : t->ns;
}

static const char *const trains[] = {
    "{global_batch: 16, microbatch: 2, seq_len: 2048, precision: fp16, recompute: none, zero: 0}",
    "{global_batch: 16, microbatch: 1, seq_len: 2048, precision: fp16, recompute: full, zero: 0, "
    "dispatch: \"115 us\"}",
    "{global_batch: 16, microbatch: 2, seq_len: 2048, precision: bf16, recompute: selective, "
    "zero: 1, dispatch: \"60 us\"}",
};

/* What is dealt to kernels and host is the stage's time, for any stage, work and frozen blocks. */
START_TEST(parts_sum_to_the_stage)
{
    struct setup s;
    struct dt_rng rng;
    double hosts = 0;

    dt_rng_init(&rng, dt_test_seed(), (uint64_t)_i);
    open_job(&s, GPT, trains[_i], "{seed: 1}");
    for (int k = 0; k < 200; k++) {
        int blocks = s.job->model->modules[0].n_blocks;
        int first = (int)(dt_rng_uniform(&rng) * blocks);
        int n = 1 + (int)(dt_rng_uniform(&rng) * (blocks - first));
        int64_t seqs = 1 + (int64_t)(dt_rng_uniform(&rng) * 7);
        struct dt_work w = {seqs, seqs * 2048, seqs * 2048 * 2048, 2048};
        struct dt_block_shard shard = {
            .tp = 1 << (int)(dt_rng_uniform(&rng) * 4), .cp = 1, .ep = 1, .ip = 1};
        bool upstream = dt_rng_uniform(&rng) < 0.5;
        unsigned char trainable[64];
        struct dt_cost_stage whole;
        struct sums sum = {0};
        double back;

        for (int b = 0; b < blocks; b++)
            trainable[b] = dt_rng_uniform(&rng) < 0.7;
        dt_cost_stage(s.cost, 0, first, n, &shard, &w, trainable, upstream, &whole);
        dt_cost_stage_parts(s.cost, 0, first, n, &shard, &w, trainable, upstream, sum_part, &sum);
        back = whole.dgrad.ns + whole.wgrad.ns;
        ck_assert_msg(fabs(sum.fwd - whole.fwd.ns) <= 1e-9 * whole.fwd.ns,
                      "forward %.9g, parts %.9g, seed %" PRIu64, whole.fwd.ns, sum.fwd,
                      dt_test_seed());
        ck_assert_msg(fabs(sum.back - back) <= 1e-9 * back + 1e-6,
                      "backward %.9g, parts %.9g, seed %" PRIu64, back, sum.back, dt_test_seed());
        hosts += sum.host;
    }
    ck_assert((hosts > 0) == (_i > 0));
    close_job(&s);
}
END_TEST

/* The row nearest to a kernel, with the spread that it states; none where no family has rows. */
START_TEST(origin_is_the_nearest_row)
{
    struct dt_kop gemm = {.family = DT_KOP_GEMM},
                  none = {.family = DT_KOP_CONV2D, .d = {64, 64, 64, 3, 1}};
    const struct dt_profile_row *row;
    struct dt_cost_origin o;
    struct setup s;
    struct dt_rng rng;

    dt_rng_init(&rng, dt_test_seed(), 99);
    open_job(&s, GPT, trains[0], "{seed: 1}");
    int64_t first = s.job->profile->first[DT_KOP_GEMM][0];
    int64_t n = s.job->profile->first[DT_KOP_GEMM][1] - first;
    ck_assert_int_gt(n, 0);
    for (int k = 0; k < 50; k++) {
        row = &s.job->profile->rows[first + (int64_t)(dt_rng_uniform(&rng) * (double)n)];
        memcpy(gemm.d, row->d, sizeof gemm.d);
        dt_cost_origin(s.cost, &gemm, DT_PHASE_FWD, &o);
        ck_assert_str_eq(o.source, s.job->profile->sources[row->source].name);
        ck_assert_int_eq(o.kind, row->kind);
        ck_assert_double_eq_tol(o.sigma, log(row->p90_ns / row->p10_ns) / (2 * 1.2815516), 1e-4);
    }
    for (int ranks = 8; ranks <= 16; ranks += 8) { /* neighbours on nodes of 8, and twice as many */
        const struct dt_kop all = {.family = DT_KOP_ALL_REDUCE, .d = {ranks, ranks, 1 << 20, 1}};

        dt_cost_origin(s.cost, &all, DT_PHASE_FWD, &o);
        ck_assert_int_eq(strcmp(o.source, "link arithmetic") == 0, ranks > 8);
        ck_assert_int_eq(o.kind<0, ranks> 8);
    }
    memset(s.job->profile->first[DT_KOP_CONV2D], 0, sizeof s.job->profile->first[DT_KOP_CONV2D]);
    dt_cost_origin(s.cost, &none, DT_PHASE_FWD, &o);
    ck_assert_int_eq(o.kind, -1);
    ck_assert(o.sigma == 0);
    close_job(&s);
}
END_TEST

/* ---- contributions ---- */

static double critical_sum(const struct dt_explanation *e)
{
    double sum = 0, share = 0;

    for (int i = 0; i < e->n; i++) {
        sum += e->at[i].critical_ns;
        ck_assert_double_ge(e->at[i].critical_ns, 0);
        ck_assert_double_gt(e->at[i].sigma, 0);
        ck_assert(e->at[i].source[0]);
        ck_assert(i == 0 || e->at[i].critical_ns <= e->at[i - 1].critical_ns);
    }
    for (int f = 0; f < DT_ERRF_N; f++)
        share += e->share[f];
    ck_assert_double_eq_tol(share, sum / e->makespan_ns, 1e-9);
    return sum;
}

START_TEST(contributions_sum_to_the_iteration)
{
    static const char *const sims[] = {
        "{iterations: 1, contention: false, seed: 1}", "{iterations: 1, contention: true, seed: 1}",
        "{iterations: 1, jitter: 0.05, slow_gpu: {fraction: 0.2, factor: 1.3}, seed: 3}"};
    struct setup s;

    open_job(&s, _i % 2 ? MLLM : GPT, _i % 2 ? "{global_batch: 32, seq_len: 8192}" : trains[2],
             sims[_i / 2]);
    struct dt_sim_result r = simulate(&s);
    ck_assert_double_eq_tol(critical_sum(&r.explanation) / (double)r.timeline.makespan_ns, 1, 1e-9);
    ck_assert_double_le(r.report.iteration_s_p10, r.report.iteration_s);
    ck_assert_double_ge(r.report.iteration_s_p90, r.report.iteration_s);
    dt_sim_result_free(&r);
    close_job(&s);
}
END_TEST

/* The critical path's share of a family is what the iteration moves by when the family does. */
START_TEST(shares_are_derivatives)
{
    static const enum dt_report_error_family families[] = {DT_ERRF_GEMM, DT_ERRF_MEMORY_BOUND,
                                                           DT_ERRF_COLLECTIVE, DT_ERRF_HOST};
    const double step = 1e-4;
    struct setup s;

    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        double before, share;

        open_job(&s, GPT, trains[1], "{contention: false, seed: 1}");
        struct dt_sim_result r = simulate(&s);
        before = r.report.iteration_s;
        share = r.explanation.share[families[i]];
        dt_sim_result_free(&r);
        dt_cost_free(s.cost);
        for (int f = 0; f < DT_KOP_FAMILY_N; f++)
            s.job->cost_opt.scale[f] = dt_report_error_family_of(f) == families[i] ? 1 + step : 1;
        if (families[i] == DT_ERRF_HOST)
            s.job->cost_opt.dispatch_ns *= 1 + step;
        dt_assert_ok(dt_cost_new(s.job->model, &s.job->cluster, s.job->profile, &s.job->cost_opt,
                                 &s.err, &s.cost),
                     s.err);
        r = simulate(&s);
        ck_assert_double_eq_tol((r.report.iteration_s / before - 1) / step, share, 0.01);
        ck_assert_double_gt(share, 0.01);
        dt_sim_result_free(&r);
        close_job(&s);
    }
}
END_TEST

START_TEST(path_of_one_stage_is_its_ops)
{
    struct setup s;

    open_job(&s, MLLM, "{global_batch: 32, seq_len: 8192}", "{seed: 1}");
    struct dt_sim_result r = simulate(&s);
    char text[96];
    bool gemm = false;

    for (int i = 0; i < r.explanation.n; i++) {
        dt_explain_contribution_text(&r.explanation.at[i], text, sizeof text);
        gemm |= strncmp(text, "gemm ", 5) == 0;
        ck_assert_int_lt(r.explanation.at[i].module, s.job->model->n_modules);
    }
    ck_assert(gemm);
    dt_sim_result_free(&r);
    close_job(&s);
}
END_TEST

/* ---- intervals ---- */

static double width(const double *share, const double *sigma, uint64_t seed)
{
    double t = 3.7, p10, p90;
    struct dt_error err = {0};

    dt_assert_ok(dt_report_error_interval(&t, 1, share, sigma, seed, 40000, &err, &p10, &p90), err);
    ck_assert_double_lt(p10, t);
    ck_assert_double_gt(p90, t);
    return log(p90 / p10);
}

/* One family alone: the quantiles of a log-normal; two: the root of the sum of squares and twice
 * their correlated product. */
START_TEST(interval_of_families)
{
    const double z = 2 * 1.2815516;
    double sigma[DT_ERRF_N], one[DT_ERRF_N] = {[DT_ERRF_GEMM] = 1}, two[DT_ERRF_N] = {0}, a, b, rho;

    for (int f = 0; f < DT_ERRF_N; f++)
        sigma[f] = 0.03 + 0.01 * f;
    ck_assert_double_eq_tol(width(one, sigma, 11) / (z * sigma[0]), 1, 0.05);
    two[DT_ERRF_GEMM] = 0.5;
    two[DT_ERRF_ATTENTION] = 0.4;
    a = 0.5 * sigma[DT_ERRF_GEMM];
    b = 0.4 * sigma[DT_ERRF_ATTENTION];
    rho = dt_report_error_correlation[DT_ERRF_GEMM][DT_ERRF_ATTENTION];
    ck_assert_double_gt(rho, 0);
    ck_assert_double_eq_tol(width(two, sigma, 12) / (z * sqrt(a * a + b * b + 2 * rho * a * b)), 1,
                            0.05);
    ck_assert(width(two, sigma, 12) == width(two, sigma, 12));
    ck_assert(width(two, sigma, 12) != width(two, sigma, 13));
}
END_TEST

/* Certain times of unequal batches: the percentiles of the batches. */
START_TEST(interval_of_batches)
{
    double t[5] = {1, 2, 3, 4, 5}, none[DT_ERRF_N] = {0}, p10, p90;
    struct dt_error err = {0};

    dt_assert_ok(dt_report_error_interval(t, 5, none, none, 7, 4000, &err, &p10, &p90), err);
    ck_assert(p10 == 1 && p90 == 5);
}
END_TEST

START_TEST(correlation_is_one)
{
    gsl_matrix *m = gsl_matrix_alloc(DT_ERRF_N, DT_ERRF_N);
    gsl_error_handler_t *was = gsl_set_error_handler_off();

    for (size_t i = 0; i < DT_ERRF_N; i++) {
        ck_assert(dt_report_error_correlation[i][i] == 1);
        for (size_t j = 0; j < DT_ERRF_N; j++) {
            ck_assert(dt_report_error_correlation[i][j] == dt_report_error_correlation[j][i]);
            gsl_matrix_set(m, i, j, dt_report_error_correlation[i][j]);
        }
    }
    ck_assert_int_eq(gsl_linalg_cholesky_decomp1(m), 0);
    gsl_set_error_handler(was);
    gsl_matrix_free(m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("explain");
    TCase *t = dt_test_case(s, "explain", 60);

    tcase_add_loop_test(t, parts_sum_to_the_stage, 0, 3);
    tcase_add_test(t, origin_is_the_nearest_row);
    tcase_add_loop_test(t, contributions_sum_to_the_iteration, 0, 6);
    tcase_add_test(t, shares_are_derivatives);
    tcase_add_test(t, path_of_one_stage_is_its_ops);
    tcase_add_test(t, interval_of_families);
    tcase_add_test(t, interval_of_batches);
    tcase_add_test(t, correlation_is_one);
    return dt_test_run(s);
}
