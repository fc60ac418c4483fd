/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Points: the same numbers as jobs that are opened one by one, whatever came before; refused ones say why; what is kept
 * between them is let go again. */
#include "base/mem.h"
#include "cli/point.h"

#include "test_util.h"

#include <unistd.h>

static struct dt_points *must_open(const char *job)
{
    struct dt_error err = {0};
    struct dt_points *p = NULL;

    dt_assert_ok(dt_points_open(job, NULL, &err, &p), err);
    return p;
}

static struct dt_point must_eval(struct dt_points *p, const char *const *keys, int n, bool report)
{
    struct dt_point_request q = {.overrides = keys, .n_overrides = n, .report = report};
    struct dt_error err = {0};
    struct dt_point out;

    dt_assert_ok(dt_point_eval(p, &q, &err, &out), err);
    return out;
}

/* Without its last member, which is a measured time. */
static void cut_wall(char *report)
{
    char *wall = strstr(report, "\"wall_s\"");

    ck_assert_ptr_nonnull(wall);
    *wall = '\0';
}

/* The oracle: a session of its own. */
static char *alone(const char *job, const char *const *keys, int n)
{
    struct dt_error err = {0};
    struct dt_sim_result r;
    struct dt_session s;
    char *report;

    dt_assert_ok(dt_session_open(job, NULL, keys, n, &err, &s), err);
    dt_assert_ok(dt_session_plan(&s, &err), err);
    dt_assert_ok(dt_session_simulate(&s, "", &err, &r), err);
    dt_assert_ok(dt_session_report_json(&s, &r, false, 0, &err, &report), err);
    dt_sim_result_free(&r);
    dt_session_close(&s);
    cut_wall(report);
    return report;
}

static const char *const points[][2] = {
    {"train.global_batch=32", "cluster.nodes=12"},
    {"train.global_batch=48", "cluster.nodes=12"},
    {"train.global_batch=48", "cluster.nvlink_bandwidth=80 GB/s"},
    {"train.global_batch=32", "cluster.nodes=9"},
    {"train.seq_len=4096", "simulate.seed=7"},
    {"samples.max_side=256", "train.microbatch=2"},
    {"model.llm.layers=20", "train.frozen=[llm]"},
    {"profile=a100", "train.stepccl=false"},
    {"train.global_batch=32", "cluster.nodes=12"},
    {"cluster=a100", "cluster.nodes=6"},
    /* of samples that were drawn before: fewer, more, another number of them stated, once as many as would be drawn */
    {"train.global_batch=8", "simulate.iterations=3"},
    {"train.global_batch=96", "simulate.iterations=5"},
    {"train.global_batch=32", "samples.count=40"},
    {"train.global_batch=32", "samples.count=64"},
    {"train.global_batch=16", "cluster.nodes=12"},
};
enum { POINTS = sizeof points / sizeof points[0] };

static void assert_equal_figures(const struct dt_point *a, const struct dt_point *b)
{
    ck_assert_msg(a->feasible && b->feasible, "%s", a->error.message);
    ck_assert_int_eq(a->gpus, b->gpus);
    ck_assert_int_eq(a->gpus_used, b->gpus_used);
    ck_assert(a->iteration_s == b->iteration_s && a->iteration_s_p10 == b->iteration_s_p10 &&
              a->iteration_s_p90 == b->iteration_s_p90);
    ck_assert(a->mfu == b->mfu && a->mfu_cluster == b->mfu_cluster);
    ck_assert(a->tokens_per_s == b->tokens_per_s && a->samples_per_s == b->samples_per_s);
    ck_assert(a->bubble_fraction == b->bubble_fraction && a->exposed_comm_s == b->exposed_comm_s);
    ck_assert(a->goodput == b->goodput && a->mem_bytes_max == b->mem_bytes_max);
    ck_assert_str_eq(a->plan_text, b->plan_text);
}

/* One plan under whatever else its time depends on, and does not depend on: what a point before has had simulated is
 * taken for no other. */
START_TEST(equal_plans_are_simulated_once)
{
    static const char *const other[][2] = {
        {"cluster.nodes=12", "simulate.seed=1"},
        {"cluster.nodes=13", "simulate.seed=1"}, /* another share of the cluster */
        {"cluster.nodes=40", "cluster.price_per_gpu_hour=2"},
        {"cluster.nodes=40", "cluster.oversubscription=4"}, /* of which this is the capacity */
        {"cluster.nodes=13", "cluster.oversubscription=4"},
        {"cluster.nodes=13", "cluster.nic_bandwidth=10 GB/s"},
        {"cluster.nodes=13", "cluster.mtbf_gpu_hours=20000"},
        {"simulate.jitter=0.1", "simulate.seed=2"},
        {"simulate.jitter=0.1", "simulate.seed=3"},
        {"simulate.failures.enabled=true", "cluster.mtbf_gpu_hours=20000"},
        {"simulate.failures.enabled=true", "cluster.mtbf_gpu_hours=30000"},
        {"simulate.contention=false", "simulate.iterations=3"},
        {"samples.seed=5", "cluster.nodes=12"},
        {"samples.seed=6", "cluster.nodes=12"},
        {"model.generator.resize=256", "cluster.nodes=12"},
        {"train.global_batch=96", "cluster.nodes=13"},
        {"cluster.nodes=12", "simulate.seed=1"},
    };
    struct dt_points *p = must_open("mllm-9b-96");
    struct dt_point base = must_eval(p, NULL, 0, false);
    struct dt_error err = {0};

    dt_assert_ok(dt_points_keep_plan(p, &base.plan, &err), err);
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        struct dt_points *fresh = must_open("mllm-9b-96");
        struct dt_point alone, known, again;
        uint64_t simulated, looked_up;

        dt_assert_ok(dt_points_keep_plan(fresh, &base.plan, &err), err);
        alone = must_eval(fresh, other[i], 2, false);
        known = must_eval(p, other[i], 2, false);
        assert_equal_figures(&known, &alone);
        dt_mem_fail_at(0);
        again = must_eval(fresh, other[i], 2, true);
        simulated = dt_mem_count();
        dt_point_free(&again);
        dt_mem_fail_at(0);
        again = must_eval(p, other[i], 2, false);
        looked_up = dt_mem_count();
        assert_equal_figures(&again, &alone);
        ck_assert_msg(2 * looked_up < simulated, "%s %s: %d and %d allocations", other[i][0],
                      other[i][1], (int)looked_up, (int)simulated);
        dt_point_free(&again);
        dt_point_free(&known);
        dt_point_free(&alone);
        dt_points_close(fresh);
    }
    dt_point_free(&base);
    dt_points_close(p);
}
END_TEST

/* Searches find the same, whatever timelines those before them have run; and run those no more. */
START_TEST(searches_share_timelines)
{
    static const char *const near[][2] = {
        {"search.effort=quick", "cluster.nodes=12"},
        {"search.effort=quick", "cluster.nodes=13"},
        {"search.effort=quick", "cluster.nic_latency=50 us"},
        {"search.effort=quick", "cluster.memory=64 GiB"},
        {"search.effort=quick", "train.zero=0"},
        {"search.effort=quick", "train.overlap.grad=false"},
        {"search.effort=quick", "train.schedule=gpipe"},
        {"search.effort=quick", "train.frozen=[llm]"},
        {"search.effort=quick", "train.stepccl=false"},
        {"search.effort=quick", "profile=a100"},
        {"search.effort=quick", "samples.seed=9"},
        {"search.effort=quick", "model.llm.layers=16"},
        {"search.effort=quick", "cluster.nodes=12"},
    };
    struct dt_points *p = must_open("mllm-9b-96");
    uint64_t first = 0, again;

    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++) {
        struct dt_points *fresh = must_open("mllm-9b-96");
        struct dt_point alone = must_eval(fresh, near[i], 2, false), at;

        dt_mem_fail_at(0);
        at = must_eval(p, near[i], 2, true);
        again = dt_mem_count();
        first = i == 0 ? again : first;
        assert_equal_figures(&at, &alone);
        ck_assert(at.plan.predicted.timeline_s == alone.plan.predicted.timeline_s);
        ck_assert(at.plan.predicted.mem_bytes_max == alone.plan.predicted.mem_bytes_max);
        dt_point_free(&at);
        dt_point_free(&alone);
        dt_points_close(fresh);
    }
    ck_assert_msg(again < first / 2, "%d allocations, and %d of the first search", (int)again,
                  (int)first);
    dt_points_close(p);
}
END_TEST

START_TEST(a_point_is_what_simulate_says)
{
    struct dt_points *p = must_open("mllm-9b-96");

    for (int i = 0; i < POINTS; i++) {
        struct dt_point at = must_eval(p, points[i], 2, true);
        char *expected = alone("mllm-9b-96", points[i], 2);

        ck_assert_msg(at.feasible, "%s: %s", points[i][0], at.error.message);
        cut_wall(at.report);
        ck_assert_str_eq(at.report, expected);
        ck_assert(at.iteration_s_p10 < at.iteration_s && at.iteration_s < at.iteration_s_p90);
        ck_assert_double_eq_tol(at.tokens / at.iteration_s / at.tokens_per_s, 1, 1e-9);
        dt_free(expected);
        dt_point_free(&at);
    }
    dt_points_close(p);
}
END_TEST

START_TEST(refused_points_say_why)
{
    static const struct {
        const char *key, *why;
        enum dt_status status;
    } refused[] = {
        {"cluster.nodes=1", "", DT_ERR_INFEASIBLE},
        {"cluster.nodes=0", "nodes", DT_ERR_INPUT},
        {"train.global_bach=8", "did you mean", DT_ERR_INPUT},
        {"profile=nosuch", "nosuch", DT_ERR_INPUT},
        {"cluster=nosuch", "nosuch", DT_ERR_INPUT},
    };
    static const char *const good[] = {"cluster.nodes=12"};
    struct dt_points *p = must_open("mllm-72b-96");

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct dt_point at = must_eval(p, &refused[i].key, 1, true);

        ck_assert_msg(!at.feasible, "%s", refused[i].key);
        ck_assert_int_eq(at.error.status, refused[i].status);
        ck_assert_ptr_nonnull(strstr(at.error.message, refused[i].why));
        ck_assert(at.error.message[0] && !at.report);
        dt_point_free(&at);
    }
    struct dt_point at = must_eval(p, good, 1, false);
    ck_assert(at.feasible && at.gpus == 96);
    dt_point_free(&at);
    dt_points_close(p);
}
END_TEST

START_TEST(a_kept_plan_is_the_plan_file)
{
    static const char *const other[] = {"train.global_batch=96"};
    const char *path = "test_point_plan.json";
    struct dt_points *p = must_open("mllm-9b-96"), *beside;
    struct dt_point base = must_eval(p, NULL, 0, false), kept, file;
    struct dt_error err = {0};
    char *text;
    FILE *f;

    dt_assert_ok(dt_points_keep_plan(p, &base.plan, &err), err);
    kept = must_eval(p, other, 1, false);
    dt_assert_ok(dt_plan_to_json(&base.plan, &err, &text), err);
    f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
    dt_assert_ok(dt_points_open("mllm-9b-96", path, &err, &beside), err);
    unlink(path);
    file = must_eval(beside, other, 1, false);
    ck_assert_msg(kept.feasible, "%s", kept.error.message);
    ck_assert(kept.iteration_s == file.iteration_s && kept.mfu == file.mfu);
    ck_assert_str_eq(kept.plan_text, base.plan_text);
    dt_point_free(&file);
    dt_point_free(&kept);
    dt_point_free(&base);
    dt_points_close(beside);
    dt_points_close(p);
    dt_free(text);
}
END_TEST

static enum dt_status refuse(void *ctx, const struct dt_session *s, const struct dt_sim_result *r,
                             struct dt_error *err)
{
    ck_assert(s->search.n > 0 && r->program->n_ops > 0);
    ++*(int *)ctx;
    return dt_error_set(err, DT_ERR_IO, "no paper");
}

START_TEST(visitors_see_it_all_and_may_fail)
{
    struct dt_points *p = must_open("mllm-9b-96");
    int visits = 0;
    struct dt_point_request q = {.visit = refuse, .ctx = &visits};
    struct dt_error err = {0};
    struct dt_point at;

    ck_assert_int_eq(dt_point_eval(p, &q, &err, &at), DT_ERR_IO);
    ck_assert_str_eq(err.message, "no paper");
    ck_assert_int_eq(visits, 1);
    dt_points_close(p);
}
END_TEST

/* Whichever allocation fails: an error, nothing lost (under a sanitizer), and the next point is as ever. */
START_TEST(memory_may_run_out_anywhere)
{
    static const char *const keys[] = {"search.rank=false", "cluster.nodes=3"};
    struct dt_points *p = must_open("mllm-9b-96");
    /* with a report, as figures alone are known from the time before */
    struct dt_point_request q = {.overrides = keys, .n_overrides = 2, .report = true};
    struct dt_point good = must_eval(p, keys, 2, true), at;
    uint64_t n;

    dt_mem_fail_at(0);
    dt_point_free(&good);
    good = must_eval(p, keys, 2, true);
    n = dt_mem_count();
    for (uint64_t k = 1; k <= n; k += 1 + n / 40) {
        struct dt_error err = {0};

        dt_mem_fail_at(k);
        if (dt_point_eval(p, &q, &err, &at) == DT_OK)
            dt_point_free(&at); /* done without what it did not get */
        dt_mem_fail_at(0);
    }
    at = must_eval(p, keys, 2, true);
    ck_assert(at.feasible && at.iteration_s == good.iteration_s);
    dt_point_free(&at);
    dt_point_free(&good);
    dt_points_close(p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("point");
    TCase *c = dt_test_case(s, "point", 600);

    tcase_add_test(c, a_point_is_what_simulate_says);
    tcase_add_test(c, equal_plans_are_simulated_once);
    tcase_add_test(c, searches_share_timelines);
    tcase_add_test(c, refused_points_say_why);
    tcase_add_test(c, a_kept_plan_is_the_plan_file);
    tcase_add_test(c, visitors_see_it_all_and_may_fail);
    tcase_add_test(c, memory_may_run_out_anywhere);
    return dt_test_run(s);
}
