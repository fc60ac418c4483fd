/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Jobs: defaults, overrides, what each wrong value is told, shipped jobs, plans inside jobs. */
#include "base/file.h"
#include "core/job/job.h"
#include "base/mem.h"
#include "test_util.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#define BASE                                                                                       \
    "model: mllm-9b\n"                                                                             \
    "cluster: a800-96\n"                                                                           \
    "samples: laion-8k\n"                                                                          \
    "profile: a800\n"                                                                              \
    "train: {global_batch: 128, seq_len: 8192}\n"

static enum dt_status parse(const char *text, const char *override, struct dt_error *err,
                            struct dt_job **out)
{
    return dt_job_parse("job.yaml", text, strlen(text), &override, override ? 1 : 0, true, err,
                        out);
}

static struct dt_job *must_parse(const char *text, const char *override)
{
    struct dt_error err = {0};
    struct dt_job *j = NULL;

    dt_assert_ok(parse(text, override, &err, &j), err);
    return j;
}

START_TEST(defaults_are_as_documented)
{
    struct dt_job *j = must_parse(BASE, NULL);

    ck_assert_int_eq(j->policy.global_batch, 128);
    ck_assert_int_eq(j->policy.microbatch, 1);
    ck_assert_int_eq(j->policy.schedule, DT_SCHED_1F1B);
    for (int m = 0; m < j->model->n_modules; m++) {
        ck_assert_int_eq(j->recompute[m], DT_RECOMPUTE_SELECTIVE);
        ck_assert_int_eq(j->zero[m], 1);
    }
    ck_assert(j->policy.intra_reorder && j->policy.inter_reorder && j->policy.stepccl);
    ck_assert(j->policy.overlap_grad && j->policy.overlap_param);
    ck_assert_int_eq(j->strategy, DT_STRATEGY_DISTTRAIN);
    ck_assert_int_eq(j->search.k, 8);
    ck_assert_uint_eq(j->search.tp_mask, 0xf);
    ck_assert_int_eq(j->search.gpus, 0);
    ck_assert_int_eq(j->search.max_vpp, 0);
    ck_assert(j->search.rank && !j->cost_opt.allow_analytical && j->cost_opt.stepccl);
    ck_assert_int_eq(j->sim.iterations, 1);
    ck_assert(j->sim.contention && !j->sim.failures && !j->has_plan);
    ck_assert_double_eq(j->sim.checkpoint_interval_s, 1800);
    ck_assert_double_eq(j->sim.restart_s, 600);
    ck_assert_uint_eq(j->sim.seed, 1);
    dt_job_free(j);
}
END_TEST

/* Who says how failures are met wants them, unless they are switched off in so many words. */
START_TEST(failures_that_are_described_are_simulated)
{
    static const struct {
        const char *text;
        bool failures;
    } cases[] = {{BASE "simulate: {failures: {restart: 20 min}}\n", true},
                 {BASE "simulate: {failures: {restart: 20 min, enabled: false}}\n", false},
                 {BASE "simulate: {failures: {}}\n", false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_job *j = must_parse(cases[i].text, NULL);

        ck_assert_int_eq(j->sim.failures, cases[i].failures);
        dt_job_free(j);
    }
}
END_TEST

START_TEST(every_key_is_read)
{
    struct dt_job *j = must_parse(
        "model: mllm-9b\ncluster: a800-96\nsamples: text\nprofile: a800\n"
        "train: {global_batch: 96, microbatch: 2, seq_len: 4096, precision: bf16, frozen: "
        "[encoder, llm],\n"
        "  recompute: full, zero: 0, schedule: interleaved, reorder: {intra: false, inter: "
        "false},\n"
        "  overlap: {grad: false, param: false}, stepccl: false}\n"
        "search: {strategy: distmm, gpus: 48, top_k: 3, tp: [2, 8], max_vpp: 2, rank: false, "
        "uniform: true,\n"
        "  megatron_pp: 2, allow_analytical: true}\n"
        "simulate: {iterations: 7, contention: false, jitter: 0.035, slow_gpu: {fraction: 0.01, "
        "factor: 1.25},\n"
        "  failures: {enabled: true, checkpoint_interval: 20 min, checkpoint_write: 45 s, restart: "
        "5 min},\n"
        "  seed: 99}\n",
        NULL);

    ck_assert_int_eq(j->policy.global_batch, 96);
    ck_assert_int_eq(j->policy.microbatch, 2);
    ck_assert_int_eq(j->policy.seq_len, 4096);
    ck_assert(j->frozen[0] && j->frozen[1] && !j->frozen[2]);
    for (int m = 0; m < j->model->n_modules; m++) {
        ck_assert_int_eq(j->recompute[m], DT_RECOMPUTE_FULL);
        ck_assert_int_eq(j->zero[m], 0);
    }
    ck_assert_int_eq(j->policy.schedule, DT_SCHED_INTERLEAVED);
    ck_assert(!j->policy.intra_reorder && !j->policy.inter_reorder && !j->policy.stepccl);
    ck_assert(!j->policy.overlap_grad && !j->policy.overlap_param && !j->cost_opt.stepccl);
    ck_assert_int_eq(j->strategy, DT_STRATEGY_DISTMM);
    ck_assert_int_eq(j->search.gpus, 48);
    ck_assert_int_eq(j->search.k, 3);
    ck_assert_uint_eq(j->search.tp_mask, 2 | 8);
    ck_assert_int_eq(j->search.max_vpp, 2);
    ck_assert_int_eq(j->search.megatron_pp, 2);
    ck_assert(!j->search.rank && j->search.uniform && j->cost_opt.allow_analytical);
    ck_assert_int_eq(j->sim.iterations, 7);
    ck_assert(!j->sim.contention && j->sim.failures);
    ck_assert_double_eq(j->sim.jitter, 0.035);
    ck_assert_double_eq(j->sim.slow_gpu_fraction, 0.01);
    ck_assert_double_eq(j->sim.slow_gpu_factor, 1.25);
    ck_assert_double_eq(j->sim.checkpoint_interval_s, 1200);
    ck_assert_double_eq(j->sim.checkpoint_write_s, 45);
    ck_assert_double_eq(j->sim.restart_s, 300);
    ck_assert_uint_eq(j->sim.seed, 99);
    dt_job_free(j);
}
END_TEST

/* What training computes in decides how long its messages are. */
/* One word states both ways of reordering. */
START_TEST(reordering_in_words)
{
    static const char *const words[] = {"none", "inter", "intra", "both", "auto", "batch"};

    for (int w = 0; w < 6; w++) {
        char text[256];
        struct dt_job *j;

        snprintf(text, sizeof(text),
                 "model: mllm-9b\ncluster: a800-96\nsamples: text\nprofile: a800\n"
                 "train: {global_batch: 96, seq_len: 4096, reorder: %s}\n",
                 words[w]);
        j = must_parse(text, NULL);
        ck_assert_int_eq(j->policy.inter_reorder, w == 1 || w > 2);
        ck_assert_int_eq(j->policy.intra_reorder, w >= 2);
        ck_assert_int_eq(j->search.free_inter, w == 4);
        ck_assert_int_eq(j->search.free_intra, w == 4);
        ck_assert_int_eq(j->policy.batch_reorder, w == 5);
        ck_assert_double_eq(j->policy.reorder_budget_s, 0.5);
        dt_job_free(j);
    }
}
END_TEST

START_TEST(precision_of_the_run_is_a_policy)
{
    static const char *const over[] = {"run.precision=auto", "run.precision=bf16",
                                       "run.precision=fp32"};

    for (int i = 0; i < 3; i++) {
        struct dt_job *j = must_parse(BASE "run: {data: x.tar, steps: 1}\n", over[i]);

        ck_assert_int_eq(j->policy.fp32, i == 2);
        ck_assert_int_eq(j->cost_opt.fp32, i == 2);
        ck_assert_int_eq(dt_plan_policy_elem_bytes(&j->policy), i == 2 ? 4 : 2);
        dt_job_free(j);
    }
}
END_TEST

/* Profiles and the memory of GPUs are of bf16: what trains in fp32 there is not planned nor simulated. */
START_TEST(gpus_are_predicted_in_bf16)
{
    static const struct {
        const char *precision, *cluster;
        enum dt_status st;
    } of[] = {{"run.precision=auto", "cluster=a800", DT_OK},
              {"run.precision=bf16", "cluster=a800", DT_OK},
              {"run.precision=fp32", "cluster=local", DT_OK},
              {"run.precision=fp32", "cluster=a800", DT_ERR_INPUT}};

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        struct dt_error err = {0};
        const char *over[] = {of[i].precision, of[i].cluster};
        struct dt_job *j = NULL;

        dt_assert_ok(dt_job_parse("job.yaml", BASE, strlen(BASE), over, 2, true, &err, &j), err);
        ck_assert_int_eq(dt_job_check_predicted(j, &err), of[i].st);
        if (of[i].st != DT_OK) {
            dt_assert_has(err.message, "precision: fp32 on GPUs is for training");
            ck_assert_str_eq(err.file, "command line");
            ck_assert_int_eq(err.col, 15);
        }
        dt_job_free(j);
    }
}
END_TEST

static void must_fail(const char *text, const char *override, const char *says)
{
    struct dt_error err = {0};
    struct dt_job *j = NULL;

    ck_assert_int_eq(parse(text, override, &err, &j), DT_ERR_INPUT);
    ck_assert_ptr_null(j);
    dt_assert_has(err.message, says);
}

/* Entrain's assignment goes with plans that are stated, and with no other order. */
START_TEST(assignment_and_what_goes_with_it)
{
    static const struct {
        const char *train, *search, *says;
    } bad[] = {
        {"assignment: entrain", "", "strategy disttrain does not keep to"},
        {"assignment: entrain, reorder: both", ", search: {strategy: manual}", "order of its own"},
        {"assignment: entrain, reorder: {intra: false}", ", search: {strategy: manual}",
         "leave this out"},
        {"assignment: entrian", "", "entrain"},
    };
    static const char plan[] = "plan: {encoder: {dp: 2}, llm: {dp: 2}, generator: {dp: 2}}";
    char text[512];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text),
                 "{model: mllm-9b, cluster: a800-96, samples: laion-8k, profile: a800,\n"
                 "train: {global_batch: 96, seq_len: 4096, %s},\n%s%s}\n",
                 bad[i].train, plan, bad[i].search);
        must_fail(text, NULL, bad[i].says);
    }
    for (int none = 0; none < 2; none++) {
        struct dt_job *j;

        snprintf(text, sizeof(text),
                 "{model: mllm-9b, cluster: a800-96, samples: laion-8k, profile: a800,\n"
                 "train: {global_batch: 96, seq_len: 4096, assignment: entrain%s},\n%s,\n"
                 "search: {strategy: manual}}\n",
                 none ? ", reorder: none" : "", plan);
        j = must_parse(text, NULL);
        ck_assert_int_eq(j->plan.policy.assignment, DT_ASSIGNMENT_ENTRAIN);
        ck_assert(!j->policy.intra_reorder && !j->policy.inter_reorder && !j->search.free_intra);
        dt_job_free(j);
    }
}
END_TEST

START_TEST(what_becomes_of_a_bad_step)
{
    static const struct {
        const char *over;
        int nonfinite, nonfinite_most, spike, spike_most, window;
        double deviations;
    } good[] = {
        {"run.seed=2", DT_GUARD_SKIP, 3, DT_GUARD_WARN, 3, 64, 10},
        {"run.nonfinite=stop", DT_GUARD_STOP, 3, DT_GUARD_WARN, 3, 64, 10},
        {"run.nonfinite={skip: 7}", DT_GUARD_SKIP, 7, DT_GUARD_WARN, 3, 64, 10},
        {"run.nonfinite=rollback", DT_GUARD_ROLLBACK, 3, DT_GUARD_WARN, 3, 64, 10},
        {"run.nonfinite={rollback: 1}", DT_GUARD_ROLLBACK, 1, DT_GUARD_WARN, 3, 64, 10},
        {"run.spike=off", DT_GUARD_SKIP, 3, DT_GUARD_OFF, 3, 64, 10},
        {"run.spike={action: skip, most: 2, deviations: 6.5, window: 32}", DT_GUARD_SKIP, 3,
         DT_GUARD_SKIP, 2, 32, 6.5},
    };
    static const struct {
        const char *over, *says;
    } bad[] = {
        {"run.nonfinite=ignore", "stop"},
        {"run.nonfinite={stop: 1}", "unknown key"},
        {"run.nonfinite={skip: 0}", "skip"},
        {"run.nonfinite={skip: 1, rollback: 1}", "expected {skip: N} or {rollback: N}"},
        {"run.nonfinite={}", "expected {skip: N} or {rollback: N}"},
        {"run.spike=often", "spike"},
        {"run.spike={window: 15}", "window"},
        {"run.spike={window: 1025}", "window"},
        {"run.spike={threshold: 3}", "unknown key"},
    };

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct dt_job *j = must_parse(
            BASE "run: {data: x.tar, steps: 1, checkpoint: {dir: there}}\n", good[i].over);

        ck_assert_int_eq(j->run.guard.nonfinite, good[i].nonfinite);
        ck_assert_int_eq(j->run.guard.nonfinite_most, good[i].nonfinite_most);
        ck_assert_int_eq(j->run.guard.spike, good[i].spike);
        ck_assert_int_eq(j->run.guard.spike_most, good[i].spike_most);
        ck_assert_int_eq(j->run.guard.window, good[i].window);
        ck_assert_double_eq(j->run.guard.deviations, good[i].deviations);
        dt_job_free(j);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        must_fail(BASE "run: {data: x.tar, steps: 1}\n", bad[i].over, bad[i].says);
    must_fail(BASE "run: {data: x.tar, steps: 1}\n", "run.nonfinite=rollback",
              "needs run.checkpoint");
    must_fail(BASE "run: {data: x.tar, steps: 1}\n", "run.spike=rollback", "needs run.checkpoint");
}
END_TEST

/* Parameters are gathered as what trains on the cluster does it: our executor on CPUs, else Megatron.
 */
START_TEST(clusters_of_cpus_gather_vectors_exactly)
{
    static const struct {
        const char *over;
        bool exact;
    } cases[] = {{"simulate.seed=1", false},
                 {"cluster=a800-1296", false},
                 {"cluster=local", true},
                 {"cluster={preset: local, device: CPU-EPYC}", true},
                 {"cluster={preset: local, device: mine}", false},
                 {"cluster={preset: local, device: mine, cores_per_node: 4}", true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dt_job *j = must_parse(BASE, cases[i].over);

        ck_assert_msg(j->policy.exact_vectors == cases[i].exact, "%s", cases[i].over);
        dt_job_free(j);
    }
}
END_TEST

/* ---- overrides ---- */

START_TEST(overrides_reach_into_presets)
{
    const char *const o[] = {"model.generator.resize=1024", "cluster.nodes=3",
                             "train.global_batch=960",      "samples.max_side=1024",
                             "search.strategy=megatron-lm", "train.frozen=[llm]"};
    struct dt_error err = {0};
    struct dt_job *j = NULL;
    struct dt_node samples;

    dt_assert_ok(dt_job_parse("job.yaml", BASE, strlen(BASE), o, 6, true, &err, &j), err);
    ck_assert_str_eq(j->model->name, "mllm-9b");
    ck_assert_int_eq(j->model->modules[2].resize, 1024);
    ck_assert_int_eq(dt_cluster_gpus(&j->cluster), 24);
    ck_assert_int_eq(j->policy.global_batch, 960);
    ck_assert_int_eq(j->strategy, DT_STRATEGY_MEGATRON);
    ck_assert(j->frozen[1] && !j->frozen[0]);
    samples = dt_map_get(dt_doc_root(j->doc), "samples");
    ck_assert_str_eq(dt_node_text(dt_map_get(samples, "preset")), "laion-8k");
    ck_assert_str_eq(dt_node_text(dt_map_get(samples, "max_side")), "1024");
    /* a baseline has neither reordering nor StepCCL, and the cost agrees with the policy */
    ck_assert(!j->policy.intra_reorder && !j->policy.stepccl && !j->cost_opt.stepccl);
    dt_job_free(j);
}
END_TEST

static const struct {
    const char *text, *override, *file;
    int line, col;
    const char *message;
} bad[] = {
    {"[]\n", NULL, "job.yaml", 1, 1, "a job is a map"},
    {"model: mllm-9b\n", NULL, "job.yaml", 1, 1, "\"cluster\" is missing"},
    {"modle: mllm-9b\n", NULL, "job.yaml", 1, 1, "did you mean \"model\""},
    {"model: mllm-9\ncluster: a800-96\nsamples: text\n", NULL, "job.yaml", 1, 8,
     "did you mean \"mllm-9b\""},
    {BASE "serch: {}\n", NULL, "job.yaml", 6, 1, "did you mean \"search\""},
    {BASE "search: {strategi: x}\n", NULL, "job.yaml", 6, 10, "did you mean \"strategy\""},
    {BASE "search: {strategy: megatron}\n", NULL, "job.yaml", 6, 20,
     "did you mean \"megatron-lm\""},
    {BASE "search: {gpus: 97}\n", NULL, "job.yaml", 6, 16, "from 1 to 96"},
    {BASE "search: {tp: [1, 3]}\n", NULL, "job.yaml", 6, 18, "powers of two up to the 8"},
    {BASE "search: {tp: [12]}\n", NULL, "job.yaml", 6, 15, "powers of two up to the 8"},
    {BASE "search: {tp: []}\n", NULL, "job.yaml", 6, 14, "expected a list"},
    {BASE "search: {strategy: manual}\n", NULL, "job.yaml", 6, 20, "needs \"plan\""},
    {BASE "simulate: {jitter: 5 %}\n", NULL, "job.yaml", 6, 20, "a number from 0 to 1"},
    {BASE "simulate: {batch_s: 1 ms}\n", NULL, "job.yaml", 6, 21, "has no cores_per_node"},
    {BASE "simulate: {slow_gpu: {factor: 0.9}}\n", NULL, "job.yaml", 6, 31, "from 1 to 100"},
    {BASE "simulate: {slow_gpu: {factor: 1.5}}\n", NULL, "job.yaml", 6, 31,
     "factor counts only with fraction, which is not stated; add fraction: 0.01"},
    {BASE "simulate: {failures: {restart: 5 GB}}\n", NULL, "job.yaml", 6, 32, "not a unit of s"},
    {BASE, "train.global_batch=0", "command line", 1, 20,
     "global_batch: expected an integer from 1"},
    {BASE, "train.global_batch=many", "command line", 1, 20, "global_batch: expected an integer"},
    {BASE, "train.microbatch=3", "job.yaml", 5, 23, "not a multiple of microbatch 3; use 129"},
    {BASE, "train.precision=fp8", "command line", 1, 17, "one of bf16"},
    {BASE, "train.grads=fp8", "command line", 1, 13, "one of fp32"},
    {BASE, "train.zero=4", "command line", 1, 12, "from 0 to 3"},
    {BASE, "train.zero={encoder: 1, llm: 7}", "command line", 1, 30,
     "llm: expected an integer from 0 to 3"},
    {BASE, "train.recompute={encoders: full}", "command line", 1, 18, "did you mean \"encoder\""},
    {BASE, "train.recompute={encoder: ful}", "command line", 1, 27, "did you mean \"full\""},
    {BASE, "train.recompute=sometimes", "command line", 1, 17,
     "one of auto, none, selective, full"},
    {BASE, "train.schedule=1f1", "command line", 1, 16, "did you mean \"1f1b\""},
    {BASE, "train.frozen=[encoders]", "command line", 1, 15, "did you mean \"encoder\""},
    {BASE, "train.frozen=encoder", "command line", 1, 14, "a list of module names"},
    {BASE, "train.reorder={intro: true}", "command line", 1, 16, "did you mean \"intra\""},
    {BASE, "model.generatr.resize=512", "command line", 1, 1, "did you mean \"generator\""},
    {BASE, "cluster.nodes=none", "command line", 1, 15, "nodes: expected an integer"},
    {BASE, "profile=null", "command line", 1, 9, "allow_analytical"},
    {BASE, "plan={encoder: {tp: 1}}", "command line", 1, 6, "llm"},
    {BASE, "plan={encoder: {with: lm}, llm: {}, generator: {}}", "command line", 1, 23,
     "with: the plan has no module 'lm'"},
    {BASE, "plan={encoder: {}, llm: {with: llm}, generator: {}}", "command line", 1, 32,
     "module llm would lie with itself"},
    {BASE, "plan={encoder: {with: llm}, llm: {with: encoder}, generator: {}}", "command line", 1,
     41, "module llm would lie with itself"},
    {BASE, "plan={colocated: true, encoder: {with: llm}}", "command line", 1, 40,
     "with cannot be combined with colocated: true"},
    {"model: gpt3-175b\ncluster: a100\nsamples: text\nprofile: a100\ntrain: {global_batch: 8, "
     "seq_len: 8192}\n",
     NULL, "job.yaml", 5, 35, "2048 learned positions"},
    {"model: mlm-9b\ncluster: a800-96\nsamples: text\n", "model.generator.resize=512", "job.yaml",
     1, 8, "did you mean \"mllm-9b\""},
    {"model: mllm-9b\ncluster: local\nsamples: text\ntrain: {global_batch: 8, seq_len: 64}\n"
     "search: {allow_analytical: true}\nsimulate: {failures: {enabled: true}}\n",
     NULL, "job.yaml", 6, 22, "mtbf_gpu_hours"},
};

START_TEST(bad_jobs_are_explained)
{
    struct dt_error err = {0};
    struct dt_job *j = NULL;
    enum dt_status st = parse(bad[_i].text, bad[_i].override, &err, &j);

    ck_assert_ptr_null(j);
    ck_assert_int_eq(dt_status_exit_code(st), 2);
    ck_assert_int_eq(err.status, st);
    dt_assert_has(err.message, bad[_i].message);
    ck_assert_str_eq(err.file, bad[_i].file);
    ck_assert_int_eq(err.line, bad[_i].line);
    ck_assert_int_eq(err.col, bad[_i].col);
}
END_TEST

/* ---- plans ---- */

START_TEST(manual_plan_takes_the_jobs_policies)
{
    struct dt_job *j =
        must_parse(BASE "search: {strategy: manual}\n"
                        "plan: {encoder: {tp: 1, dp: 4}, llm: {tp: 8, pp: 2, dp: 4},\n"
                        "  generator: {tp: 2, dp: 2}}\n",
                   "train.frozen=[generator]");

    ck_assert(j->has_plan);
    ck_assert_int_eq(j->plan.modules[1].layout.pp, 2);
    ck_assert_int_eq(j->plan.modules[1].layout.dp, 4);
    ck_assert_int_eq(j->plan.modules[2].layout.tp, 2);
    ck_assert(j->plan.modules[2].frozen && !j->plan.modules[1].frozen);
    ck_assert_int_eq(j->plan.policy.global_batch, 128);
    ck_assert_str_eq(j->plan.cluster, "a800-96");
    dt_job_free(j);
}
END_TEST

static void write_text(const char *dir, const char *name, const char *text, char *path, size_t size)
{
    struct dt_error err = {0};

    snprintf(path, size, "%s/%s", dir, name);
    dt_assert_ok(dt_file_write(path, text, strlen(text), &err), err);
}

/* One for all, or each its own; who is not named has the default. */
START_TEST(modules_of_their_own_kind)
{
    struct dt_job *j = must_parse(BASE, "train={global_batch: 128, seq_len: 8192, zero: {llm: 0}, "
                                        "recompute: {encoder: full, generator: none}}");

    ck_assert_int_eq(j->recompute[0], DT_RECOMPUTE_FULL);
    ck_assert_int_eq(j->recompute[1], DT_RECOMPUTE_SELECTIVE);
    ck_assert_int_eq(j->recompute[2], DT_RECOMPUTE_NONE);
    ck_assert(j->zero[0] == 1 && j->zero[1] == 0 && j->zero[2] == 1);
    dt_job_free(j);
}
END_TEST

/* A plan file beside the job, named relative to it; stated train keys go before the file's
 * policies. */
START_TEST(plan_file_beside_the_job)
{
    char dir[] = "/tmp/disttrain-job-XXXXXX", plan[256], csv[256], job[256], *json = NULL;
    struct dt_job *j = must_parse(
        BASE "search: {strategy: manual}\n"
             "plan: {encoder: {tp: 1, dp: 4}, llm: {tp: 8, pp: 2, dp: 4, recompute: none},\n"
             "  generator: {tp: 2, dp: 2, frozen: true}}\n",
        "train.recompute=full");
    struct dt_error err = {0};

    ck_assert_ptr_nonnull(mkdtemp(dir));
    dt_assert_ok(dt_plan_to_json(&j->plan, &err, &json), err);
    dt_job_free(j);
    write_text(dir, "plan.json", json, plan, sizeof(plan));
    dt_free(json);
    write_text(
        dir, "s.csv",
        "sample,text_tokens,images,audio_s,gen_images\n0,100,512x512,,512x512\n1,200,256x256,,\n",
        csv, sizeof(csv));
    write_text(dir, "job.yaml",
               "model: mllm-9b\ncluster: a800-96\nsamples: s.csv\nplan: plan.json\n"
               "train: {zero: 0}\nsearch: {strategy: manual, allow_analytical: true}\n",
               job, sizeof(job));
    j = NULL;
    dt_assert_ok(dt_job_read(job, NULL, 0, &err, &j), err);
    ck_assert_int_eq(j->policy.global_batch, 128);
    for (int m = 0; m < j->model->n_modules; m++) {
        ck_assert_int_eq(j->recompute[m], m == 1 ? DT_RECOMPUTE_NONE : DT_RECOMPUTE_FULL);
        ck_assert_int_eq(j->plan.modules[m].recompute, j->recompute[m]);
        ck_assert_int_eq(j->zero[m], 0);
        ck_assert_int_eq(j->plan.modules[m].zero, 0);
    }
    ck_assert(j->frozen[2] && !j->frozen[1]);
    ck_assert_int_eq(j->plan.modules[1].layout.tp, 8);
    ck_assert_int_eq(j->samples->n, 2);
    ck_assert_str_eq(j->profile->device, "A800-SXM4-80GB");
    ck_assert_int_eq(j->profile->n_rows, 0);
    dt_job_free(j);

    j = NULL; /* the same plan for another model is refused where it is named */
    write_text(dir, "job.yaml",
               "model: llama-7b\ncluster: a800-96\nsamples: s.csv\nplan: plan.json\n"
               "search: {strategy: manual, allow_analytical: true}\n",
               job, sizeof(job));
    ck_assert_int_eq(dt_job_read(job, NULL, 0, &err, &j), DT_ERR_INPUT);
    dt_assert_has(err.message, "modules are not those");
    ck_assert_int_eq(err.line, 4);
    unlink(plan);
    ck_assert_int_eq(dt_job_read(job, NULL, 0, &err, &j), DT_ERR_INPUT);
    dt_assert_has(err.message, "no file \"plan.json\"");
    ck_assert_int_eq(err.line, 4);
    unlink(csv);
    unlink(job);
    rmdir(dir);
}
END_TEST

START_TEST(missing_files_are_named)
{
    static const char *const text = "model: mllm-9b\ncluster: a800-96\nsamples: none.csv\ntrain: "
                                    "{global_batch: 2, seq_len: 512}\n"
                                    "search: {allow_analytical: true}\n";
    struct dt_error err = {0};
    struct dt_job *j = NULL;

    ck_assert_int_eq(dt_job_parse("job.yaml", text, strlen(text), NULL, 0, false, &err, &j),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "no file \"none.csv\"");
    ck_assert_int_eq(err.line, 3);
    ck_assert_int_eq(dt_job_read("/nowhere/job.yaml", NULL, 0, &err, &j), DT_ERR_INPUT);
    ck_assert_str_eq(err.file, "/nowhere/job.yaml");
    ck_assert_ptr_null(j);
}
END_TEST

/* ---- shipped jobs ---- */

START_TEST(shipped_jobs_are_valid)
{
    char dir[4096], path[8192];
    struct dt_error err = {0};
    struct dirent *e;
    int seen = 0;
    DIR *d;

    dt_assert_ok(dt_file_find("jobs", "mllm-72b-1296", ".yaml", &err, dir, sizeof(dir)), err);
    *strrchr(dir, '/') = '\0';
    ck_assert_ptr_nonnull(d = opendir(dir));
    while ((e = readdir(d))) {
        char *text = NULL;
        struct dt_job *j = NULL;
        size_t len;

        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        dt_assert_ok(dt_file_read(path, 1 << 20, &err, &text, &len), err);
        dt_assert_ok(dt_job_parse(path, text, len, NULL, 0, true, &err, &j), err);
        ck_assert_int_gt(j->policy.global_batch, 0);
        dt_free(text);
        dt_job_free(j);
        seen++;
    }
    closedir(d);
    ck_assert_int_ge(seen, 11);
}
END_TEST

static const struct {
    const char *job;
    int gpus;
    int64_t batch;
} published[] = {{"mllm-9b-1296", 1296, 1920},  {"mllm-15b-1296", 1296, 1920},
                 {"mllm-72b-1296", 1296, 1920}, {"mllm-9b-96", 96, 128},
                 {"mllm-15b-96", 96, 64},       {"mllm-72b-96", 96, 40},
                 {"gpt3-175b-1024", 1024, 1536}};

START_TEST(published_settings)
{
    char path[4096], *text = NULL;
    struct dt_error err = {0};
    struct dt_job *j = NULL;
    size_t len;

    dt_assert_ok(dt_file_find("jobs", published[_i].job, ".yaml", &err, path, sizeof(path)), err);
    dt_assert_ok(dt_file_read(path, 1 << 20, &err, &text, &len), err);
    dt_assert_ok(dt_job_parse(path, text, len, NULL, 0, true, &err, &j), err);
    ck_assert_int_eq(dt_cluster_gpus(&j->cluster), published[_i].gpus);
    ck_assert_int_eq(j->policy.global_batch, published[_i].batch);
    ck_assert_int_eq(j->policy.microbatch, 1);
    if (j->has_plan) {
        ck_assert_int_eq(dt_plan_gpus(&j->plan), 1024);
        dt_assert_ok(dt_plan_place(&j->plan, &j->cluster, &err), err);
        dt_assert_ok(dt_plan_validate(&j->plan, j->model, &j->cluster, &err), err);
    }
    dt_free(text);
    dt_job_free(j);
}
END_TEST

START_TEST(the_local_job_loads_whole)
{
    char path[4096];
    struct dt_error err = {0};
    struct dt_job *j = NULL;

    dt_assert_ok(dt_file_find("jobs", "mllm-nano-local", ".yaml", &err, path, sizeof(path)), err);
    dt_assert_ok(dt_job_read(path, NULL, 0, &err, &j), err);
    ck_assert_int_ge(j->samples->n, j->policy.global_batch);
    ck_assert_str_eq(j->profile->device, "cpu");
    dt_job_free(j);
}
END_TEST

START_TEST(job_survives_failing_allocations)
{
    static const char *const text =
        "model: mllm-nano\ncluster: local\nsamples: text\ntrain: {global_batch: 4, seq_len: 128}\n"
        "search: {strategy: manual, allow_analytical: true}\n"
        "plan: {encoder: {tp: 1}, llm: {tp: 2}, generator: {tp: 1}}\n";
    const char *override = "model.generator.resize=32";
    struct dt_error err = {0};
    struct dt_job *j = NULL;
    uint64_t total;

    dt_mem_fail_at(0);
    dt_assert_ok(dt_job_parse("job.yaml", text, strlen(text), &override, 1, false, &err, &j), err);
    total = dt_mem_count();
    dt_job_free(j);
    for (uint64_t k = 1; k <= total; k++) {
        j = NULL;
        dt_mem_fail_at(k);
        if (dt_job_parse("job.yaml", text, strlen(text), &override, 1, false, &err, &j) == DT_OK)
            dt_job_free(j); /* an allocation that may fail harmlessly */
        else
            ck_assert_int_eq(err.status, DT_ERR_NOMEM);
    }
    dt_mem_fail_at(0);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

int main(void)
{
    Suite *s = suite_create("job");
    TCase *t = dt_test_case(s, "job", 60);

    tcase_add_test(t, defaults_are_as_documented);
    tcase_add_test(t, failures_that_are_described_are_simulated);
    tcase_add_test(t, every_key_is_read);
    tcase_add_test(t, reordering_in_words);
    tcase_add_test(t, assignment_and_what_goes_with_it);
    tcase_add_test(t, assignment_and_what_goes_with_it);
    tcase_add_test(t, precision_of_the_run_is_a_policy);
    tcase_add_test(t, gpus_are_predicted_in_bf16);
    tcase_add_test(t, what_becomes_of_a_bad_step);
    tcase_add_test(t, clusters_of_cpus_gather_vectors_exactly);
    tcase_add_test(t, overrides_reach_into_presets);
    tcase_add_loop_test(t, bad_jobs_are_explained, 0, COUNT(bad));
    tcase_add_test(t, manual_plan_takes_the_jobs_policies);
    tcase_add_test(t, modules_of_their_own_kind);
    tcase_add_test(t, plan_file_beside_the_job);
    tcase_add_test(t, missing_files_are_named);
    tcase_add_test(t, shipped_jobs_are_valid);
    tcase_add_loop_test(t, published_settings, 0, COUNT(published));
    tcase_add_test(t, the_local_job_loads_whole);
    tcase_add_test(t, job_survives_failing_allocations);
    return dt_test_run(s);
}
