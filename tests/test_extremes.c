/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Jobs at the ends of what their keys take: each numeric key in turn, and random ones together, at
 * its least, its most and at powers of ten between.  A job is refused with words, or its report is
 * one: shares within 0..100 %, times that are times. */
#include "base/doc.h"
#include "base/rng.h"
#include "report/sanity.h"
#include "sim/simulate.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

struct key {
    const char *name;
    double least, most;
    bool whole;
};
/* With the limits that the readers state; a little beyond them is tried, too. */
static const struct key keys[] = {
    {"cluster.peak_flops", 1e6, 1e18, false},
    {"cluster.hbm_bandwidth", 1e6, 1e16, false},
    {"cluster.nvlink_bandwidth", 1e3, 1e16, false},
    {"cluster.nvlink_latency", 1e-12, 1, false},
    {"cluster.nic_bandwidth", 1e3, 1e16, false},
    {"cluster.nic_latency", 1e-12, 1, false},
    {"cluster.nic_efficiency", 0.01, 1, false},
    {"cluster.oversubscription", 1, 1000, false},
    {"cluster.memory", 1e6, 1e15, false},
    {"cluster.gpus_per_node", 1, 1024, true},
    {"cluster.nodes", 1, 1 << 20, true},
    {"train.global_batch", 1, 64, true}, /* more takes its time, not more digits */
    {"train.microbatch", 1, 4096, true},
    {"train.seq_len", 1, 1 << 20, true},
    {"train.dispatch", 1e-12, 1e-2, false},
    {"simulate.jitter", 1e-6, 1, false},
    {"simulate.slow_gpu.fraction", 1e-6, 1, false},
    {"simulate.slow_gpu.factor", 1, 100, false},
    {"simulate.seed", 1, 9e18, true},
    {"model.modules.llm.layers", 1, 1024, true},
    {"model.modules.llm.hidden", 1, 1 << 17, true},
    {"model.modules.llm.ffn", 1, 1 << 20, true},
    {"model.modules.llm.heads", 1, 1 << 12, true},
    {"model.modules.llm.head_dim", 1, 1 << 12, true},
    {"model.modules.llm.vocab", 1, 1 << 24, true},
    {"model.modules.encoder.layers", 1, 1024, true},
    {"model.modules.encoder.hidden", 1, 1 << 17, true},
    {"model.modules.encoder.patch", 1, 1 << 10, true},
    {"model.modules.encoder.resize", 1, 1 << 15, true},
    {"model.modules.generator.resize", 1, 1 << 15, true},
    {"model.modules.generator.latent_scale", 1, 1 << 10, true},
    {"plan.llm.dp", 1, 4096, true},
    {"plan.llm.tp", 1, 64, true},
};
enum { KEYS = sizeof keys / sizeof *keys };

static char base[] =
    "model:\n  modules:\n"
    "    encoder: {kind: encoder, layers: 2, hidden: 64, ffn: 128, heads: 4, patch: 16}\n"
    "    llm: {kind: llm, layers: 4, hidden: 128, ffn: 256, heads: 4, vocab: 1000}\n"
    "    generator: {kind: unet, channels: [32, 64], head_dim: 16, res_blocks: 1, context_dim: 32, "
    "context_len: 4,\n"
    "      resize: 64}\n"
    "cluster: {preset: local, gpus_per_node: 8, memory: 1e15}\n"
    "samples: {distribution: {text_tokens: {kind: constant, value: 16, max: 64}, image_side: "
    "{kind: constant,\n"
    "  value: 32}}, max_side: 64}\n"
    "train: {global_batch: 8, microbatch: 1, seq_len: 256}\n"
    "search: {allow_analytical: true, strategy: manual}\n"
    "plan: {encoder: {}, llm: {pp: 2, dp: 2}, generator: {}}\n"
    "simulate: {slow_gpu: {fraction: 0.2}}\n";

static char path[64];
static int refused, simulated;

static void begin(void)
{
    FILE *f;

    snprintf(path, sizeof path, "test_extremes.%ld.yaml", (long)getpid());
    f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(base, f);
    fclose(f);
    refused = simulated = 0;
}

static void share(const char *what, double v, const char *job)
{
    ck_assert_msg(v >= -1e-6 && v <= 1 + 1e-6, "%s: %s %g", job, what, v);
}

static void time_s(const char *what, double v, const char *job)
{
    ck_assert_msg(v >= 0 && v < 1e7 + 1, "%s: %s %g", job, what, v);
}

static void check(const struct dt_sim_result *r, const char *job)
{
    share("MFU", r->report.mfu, job); /* no block is measured as a whole here */
    share("HFU", r->report.hfu, job);
    share("bubbles", r->report.bubble_fraction, job);
    share("goodput", r->goodput, job);
    time_s("iteration", r->report.iteration_s, job);
    time_s("exposed communication", r->report.exposed_comm_s, job);
    ck_assert_msg(isfinite(r->report.iteration_s_p10) && isfinite(r->report.iteration_s_p90) &&
                      isfinite(r->report.tokens_per_s),
                  "%s: infinite", job);
    for (uint32_t i = 0; i < r->program->n_ops; i++)
        ck_assert_msg(r->timeline.begin_ns[i] >= 0 &&
                          r->timeline.end_ns[i] >= r->timeline.begin_ns[i],
                      "%s: op %u from %" PRId64 " to %" PRId64, job, i, r->timeline.begin_ns[i],
                      r->timeline.end_ns[i]);
}

static enum dt_status simulate(struct dt_job *job, struct dt_error *err, const char *text)
{
    struct dt_search_result found = {0};
    struct dt_search_input in = {.model = job->model,
                                 .cluster = &job->cluster,
                                 .samples = job->samples,
                                 .policy = job->policy,
                                 .opt = job->search,
                                 .manual = &job->plan};
    struct dt_sim_result r;
    enum dt_status st;

    memcpy(in.frozen, job->frozen, sizeof in.frozen);
    st = dt_cost_new(job->model, &job->cluster, job->profile, &job->cost_opt, err, &in.cost);
    if (st != DT_OK)
        return st;
    st = dt_orch_find_plans(job->strategy, &in, err, &found);
    if (st == DT_OK)
        st = dt_sim_run(job, &found.plans[0], in.cost, NULL, NULL, err, &r);
    if (st == DT_OK) {
        check(&r, text);
        dt_sim_result_free(&r);
    }
    dt_search_result_free(&found);
    dt_cost_free(in.cost);
    return st;
}

static void one(const char *const *overrides, int n, const char *text)
{
    struct dt_error err = {0};
    struct dt_job *job;
    enum dt_status st = dt_job_read(path, overrides, n, &err, &job);

    if (st == DT_OK) {
        st = simulate(job, &err, text);
        dt_job_free(job);
    }
    ck_assert_msg(st == DT_OK || err.message[0], "%s: refused without a word", text);
    ck_assert_msg(st == DT_OK || st == DT_ERR_INPUT || st == DT_ERR_RANGE ||
                      st == DT_ERR_INFEASIBLE || st == DT_ERR_MISSING_PROFILE,
                  "%s: %s: %s", text, dt_status_text(st), err.message);
    refused += st != DT_OK;
    simulated += st == DT_OK;
}

static void value(const struct key *k, double v, char *out, size_t size)
{
    if (k->whole)
        snprintf(out, size, "%s=%.0f", k->name, floor(v + 0.5));
    else
        snprintf(out, size, "%s=%.6g", k->name, v);
}

/* From a tenth of the least to ten times the most. */
START_TEST(each_key_through_its_powers_of_ten)
{
    char text[128];
    const char *over[] = {text};

    begin();
    for (int i = 0; i < KEYS; i++)
        for (double v = keys[i].least / 10; v <= keys[i].most * 10; v *= 10) {
            value(&keys[i], v, text, sizeof text);
            one(over, 1, text);
        }
    ck_assert_int_gt(refused, KEYS);
    ck_assert_int_gt(simulated, 2 * KEYS);
    unlink(path);
}
END_TEST

START_TEST(random_jobs_at_extremes)
{
    uint64_t seed = dt_test_seed();
    const char *more = getenv("DT_TEST_JOBS");
    int jobs = more && *more ? atoi(more) : 250;
    struct dt_rng rng;

    begin();
    dt_rng_init(&rng, seed, 11);
    for (int k = 0; k < jobs; k++) {
        char text[5][96], all[512] = "";
        const char *over[5];
        int n = 2 + (int)dt_rng_below(&rng, 4);

        for (int i = 0; i < n; i++) {
            const struct key *key = &keys[dt_rng_below(&rng, KEYS)];
            double u = dt_rng_uniform(&rng);

            u = u < 0.3 ? 0 : u > 0.7 ? 1 : u; /* the ends, or between them by powers */
            value(key, key->least * pow(key->most / key->least, u), text[i], sizeof text[i]);
            over[i] = text[i];
            snprintf(all + strlen(all), sizeof all - strlen(all), " %s", text[i]);
        }
        one(over, n, all);
    }
    ck_assert_int_gt(simulated, jobs / 20);
    ck_assert_int_gt(refused, jobs / 20);
    unlink(path);
}
END_TEST

static enum dt_status with(const char *const *overrides, int n, struct dt_error *err)
{
    struct dt_job *job;
    enum dt_status st = dt_job_read(path, overrides, n, err, &job);

    if (st == DT_OK) {
        st = dt_report_suspect(job, simulate(job, err, "named"), err);
        dt_job_free(job);
    }
    return st;
}

/* The key that makes nonsense is named, with its place. */
START_TEST(who_makes_nonsense_is_named)
{
    static const char *const slow[] = {"cluster.peak_flops=1e6", "train.seq_len=1048576",
                                       "model.modules.llm.hidden=131072"};
    static const char *const count[] = {"samples.count=1000000000"};
    static const char *const batch[] = {"train.global_batch=16777216"};
    struct dt_error err = {0};

    begin();
    ck_assert_int_eq(with(slow, 3, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "peak_flops is 1e+06 FLOP/s");
    dt_assert_has(err.message, "seq_len is 1.049e+06 tokens");
    dt_assert_has(err.message, "104 days");
    ck_assert_str_eq(err.file, "command line");
    ck_assert_int_gt(err.line, 0);
    ck_assert_int_eq(with(count, 1, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "count: expected an integer from 1 to 1048576");
    ck_assert_int_gt(err.line, 0);
    ck_assert_int_eq(with(batch, 1, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "global_batch: expected an integer from 1 to 262144");
    ck_assert_int_gt(err.line, 0);
    unlink(path);
}
END_TEST

/* The gate itself, by reports that no simulation should give. */
START_TEST(reports_that_cannot_be_are_refused)
{
    struct dt_cluster c = {.peak_flops = 1e12, .device = "X"};
    static struct dt_plan p;
    struct dt_report good = {.iteration_s = 1,
                             .iteration_s_p10 = 1,
                             .iteration_s_p90 = 1,
                             .mfu = 0.5,
                             .hfu = 0.6,
                             .tokens_per_s = 1,
                             .samples_per_s = 1,
                             .model_flops = {5e11}};
    struct dt_report r = good;
    struct dt_error err;

    p.n_modules = 1;
    p.modules[0].layout =
        (struct dt_plan_layout){.tp = 1, .cp = 1, .ep = 1, .ip = 1, .pp = 1, .vpp = 1, .dp = 1};
    snprintf(p.module_names[0], sizeof p.module_names[0], "llm");
    r.timeline.utilisation[0] = good.timeline.utilisation[0] = 0.1;
    dt_assert_ok(dt_report_check(&r, &p, &c, &err), err);
    r.mfu = 8.55;
    ck_assert_int_eq(dt_report_check(&r, &p, &c, &err), DT_ERR_RANGE);
    dt_assert_has(err.message, "MFU 855 %");
    dt_assert_has(err.message, "llm comes to 500 %");
    c.cores_per_node = 4; /* a CPU's peak is assumed */
    dt_assert_ok(dt_report_check(&r, &p, &c, &err), err);
    r.mfu = 132054;
    ck_assert_int_eq(dt_report_check(&r, &p, &c, &err), DT_ERR_RANGE);
    c.cores_per_node = 0;
    r = good;
    r.bubble_fraction = 1.2;
    ck_assert_int_eq(dt_report_check(&r, &p, &c, &err), DT_ERR_RANGE);
    r = good;
    r.iteration_s = -1;
    ck_assert_int_eq(dt_report_check(&r, &p, &c, &err), DT_ERR_RANGE);
    r = good;
    r.tokens_per_s = INFINITY;
    ck_assert_int_eq(dt_report_check(&r, &p, &c, &err), DT_ERR_RANGE);
    r = good;
    r.iteration_s_p90 = NAN;
    ck_assert_int_eq(dt_report_check(&r, &p, &c, &err), DT_ERR_RANGE);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("extremes");
    TCase *c = dt_test_case(u, "extremes", 600);

    printf("seed %" PRIu64 "\n", dt_test_seed());
    tcase_add_test(c, each_key_through_its_powers_of_ten);
    tcase_add_test(c, random_jobs_at_extremes);
    tcase_add_test(c, who_makes_nonsense_is_named);
    tcase_add_test(c, reports_that_cannot_be_are_refused);
    return dt_test_run(u);
}
