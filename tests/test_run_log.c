/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is read beside runs: measured values by name and unit, and the log of a training. */
#include "report/measured.h"
#include "report/run_about.h"
#include "report/runs.h"
#include "report/runs_edit.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct dt_error err;
static struct dt_run_summary s;

static enum dt_status csv(const char *lines)
{
    char text[1024];

    memset(&err, 0, sizeof(err));
    snprintf(text, sizeof(text), "name,value,unit\n%s", lines);
    return dt_run_measured_parse("m.csv", text, strlen(text), &err, &s);
}

static double found(const char *name)
{
    double v = -1;

    ck_assert_msg(dt_run_summary_find(&s, name, &v), "%s", name);
    return v;
}

START_TEST(values_have_units)
{
    dt_assert_ok(csv("# a remark\n\n iteration_s , 500 , ms \nmfu,50,%\nbubble_share,0.25,\n"
                     "memory_bytes_max,2,GiB\npeak_flops,300,TFLOP/s\nllm.forward_gpu_s,2,GPU h\n"
                     "tokens_per_s,1e6,tokens/s\nencoder.model_flops,3,PFLOP\r\n"),
                 err);
    ck_assert_double_eq(found("iteration_s"), 0.5);
    ck_assert_double_eq(found("mfu"), 0.5);
    ck_assert_double_eq(found("bubble_share"), 0.25);
    ck_assert_double_eq(found("memory_bytes_max"), 2147483648.0);
    ck_assert_double_eq(found("llm.forward_gpu_s"), 7200);
    ck_assert_double_eq(found("tokens_per_s"), 1e6);
    ck_assert_double_eq(found("encoder.model_flops"), 3e15);
    ck_assert_double_eq(found("model_flops_per_s_per_gpu"), 150e12); /* of MFU and peak */
    ck_assert(isnan(found("samples_per_s")));
    ck_assert_int_eq(s.n_modules, 2);
}
END_TEST

START_TEST(what_is_wrong_is_said_where)
{
    static const struct {
        const char *lines, *message;
        int line, col;
    } bad[] = {
        {"iteration_s,x,s\n", "number of 0 or more is expected, found x", 2, 13},
        {"iteration_s,-1,s\n", "number of 0 or more", 2, 13},
        {"iteration_s,1,\n", "the unit of iteration_s is one of s, ms, us, ns, min, h; found ''", 2,
         15},
        {"iteration_s,1,s\n#\niteration_s,2,s\n", "stated twice", 4, 1},
        {"llm.forward_gpu_s,1,GPU s\nllm.forward_gpu_s,1,GPU s\n", "stated twice", 3, 1},
        {"job,a,\njob,b,\n", "stated twice", 3, 1},
        {"llm.forward_s,1,GPU s\n", "did you mean 'llm.forward_gpu_s'", 2, 1},
        {"mfu_own_peak,1,%\n", "unknown metric", 2, 1},
        {"iteration_s,1,s,more\n", "three fields", 2, 16},
        {"iteration_s,1e308,h\n", "too large", 2, 13},
        {"\x01,1,s\n", "control character", 2, 1},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(csv(bad[i].lines), DT_ERR_INPUT);
        dt_assert_has(err.message, bad[i].message);
        ck_assert_msg(err.line == bad[i].line && err.col == bad[i].col, "%s: %d:%d", bad[i].lines,
                      err.line, err.col);
    }
    ck_assert_int_eq(dt_run_measured_parse("m.csv", "iteration_s,1,s\n", 16, &err, &s),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "the first line");
    ck_assert_int_eq(dt_run_measured_parse("m.csv", "", 0, &err, &s), DT_ERR_INPUT);
}
END_TEST

static const char log_text[] =
    "{\"step\": 1, \"step_s\": 9, \"loss\": 4}\n"
    "{\"step\": 2, \"step_s\": 0.1, \"loss\": 3, \"extra\": {\"a\": [1, \"]}\\\"\", null]}}\n"
    "\n"
    "{\"step\": 3, \"step_s\": 0.2, \"loss\": null}\n"
    "{\"step\": 4, \"event\": \"spike\", \"action\": \"rollback\", \"to_step\": 2}\n"
    "{\"step\": 3, \"step_s\": 0.3, \"loss\": 2.5}\n"
    "{\"step\": 4, \"step_s\": 0.5, \"loss\": 2}\n"
    "{\"step\": 5, \"step_s\"";

START_TEST(a_log_is_read_back)
{
    struct dt_run_log log;

    dt_assert_ok(dt_run_log_parse("l", log_text, strlen(log_text), &err, &log), err);
    ck_assert_int_eq(log.n, 5);
    ck_assert_int_eq(log.n_events, 1);
    ck_assert_str_eq(log.event[0].action, "rollback");
    ck_assert(isnan(log.step[2].v[DT_RUN_LOG_loss]));
    dt_run_log_settle(&log);
    ck_assert_int_eq(log.n, 4); /* 3 was done again */
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(log.step[i].step, i + 1);
    ck_assert_double_eq(log.step[2].v[DT_RUN_LOG_loss], 2.5);
    dt_assert_ok(dt_run_measured_log(&log, "l", &err, &s), err);
    ck_assert_double_eq(found("iteration_s"), 0.3); /* of 0.1, 0.3, 0.5; not the first */
    ck_assert_double_eq_tol(found("iteration_s_p90"), 0.46, 1e-12);
    dt_run_log_free(&log);
}
END_TEST

/* b begins while a goes on, a is resumed, and an older version wrote the first line. */
static const char runs_text[] = "{\"step\": 10, \"loss\": 9}\n"
                                "{\"run_id\": \"a\", \"step\": 20, \"loss\": 8}\n"
                                "{\"run_id\": \"b\", \"step\": 15, \"loss\": 70}\n"
                                "{\"run_id\": \"a\", \"step\": 30, \"loss\": 7}\n"
                                "{\"run_id\": \"a\", \"step\": 30, \"loss\": 6}\n"
                                "{\"run_id\": \"b\", \"step\": 30, \"loss\": 60}\n"
                                "{\"run_id\": \"a\", \"step\": 40, \"event\": \"spike\"}\n";

START_TEST(runs_of_a_log_are_told_apart)
{
    static const struct {
        const char *id;
        int64_t left_out;
        int n;
        double loss[4];
    } cases[] = {{"a", 2, 3, {9, 8, 6}},
                 {"b", 3, 3, {9, 70, 60}},
                 {NULL, 3, 3, {9, 70, 60}}, /* the last that logged a step */
                 {"", 5, 1, {9}},
                 {"c", 5, 1, {9}}};
    struct dt_run_log log;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        dt_assert_ok(dt_run_log_parse("l", runs_text, strlen(runs_text), &err, &log), err);
        ck_assert_int_eq(log.n, 6);
        ck_assert_int_eq(dt_run_log_select(&log, cases[i].id), cases[i].left_out);
        dt_run_log_settle(&log);
        ck_assert_int_eq(log.n, cases[i].n);
        for (int k = 0; k < cases[i].n; k++)
            ck_assert_double_eq(log.step[k].v[DT_RUN_LOG_loss], cases[i].loss[k]);
        dt_run_log_free(&log);
    }
}
END_TEST

START_TEST(what_is_no_log_is_refused)
{
    static const char *const bad[] = {
        "{\"step\": 1}x\n",           "{\"step\": }\n",   "{\"loss\": 1}\n",     "[1]\n",
        "{\"step\": -1}\n",           "{\"step\": 1,}\n", "{\"step\": 1e400}\n", "text\n",
        "{\"a\": [1}, \"step\": 1}\n"};
    struct dt_run_log log;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memset(&err, 0, sizeof(err));
        ck_assert_msg(dt_run_log_parse("l", bad[i], strlen(bad[i]), &err, &log) == DT_ERR_INPUT,
                      "%s", bad[i]);
        ck_assert_int_eq(err.line, 1);
    }
    ck_assert_int_eq(dt_run_log_parse("l", "\n", 1, &err, &log), DT_ERR_INPUT);
    dt_assert_has(err.message, "no step");
}
END_TEST

/* A number that a run once had is not given again, whoever of them went. */
START_TEST(numbers_are_not_given_again)
{
    static const struct dt_run_record run = {.kind = DT_RUN_SIMULATED,
                                             .job_name = "a.yaml",
                                             .started = "2026-01-01T00:00:00Z",
                                             .version = "0",
                                             .host = "north",
                                             .overrides = "a=1\nb=2"};
    struct dt_runs_removed removed;
    struct dt_runs_list list;
    char path[64];
    int64_t id, gone[] = {2, 3};

    snprintf(path, sizeof(path), "test_run_log.%ld.db", (long)getpid());
    for (int i = 1; i <= 3; i++) {
        dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
        ck_assert_int_eq(id, i);
    }
    dt_assert_ok(dt_runs_tag(path, "three", 3, &err), err);
    ck_assert_int_eq(dt_runs_remove(path, gone, 2, false, &err, &removed), DT_ERR_INPUT);
    dt_assert_ok(dt_runs_remove(path, gone, 2, true, &err, &removed), err);
    ck_assert_int_eq(removed.n, 2);
    dt_runs_removed_free(&removed);
    dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
    ck_assert_int_eq(id, 4);
    dt_assert_ok(dt_runs_list(path, &err, &list), err);
    ck_assert_int_eq(list.n, 2);
    ck_assert_str_eq(list.run[1].host, "north");
    ck_assert_str_eq(list.run[1].overrides, "a=1 b=2");
    ck_assert_str_eq(list.run[1].tags, "");
    dt_runs_list_free(&list);
    unlink(path);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("run_log");
    TCase *c = dt_test_case(u, "run_log", 0);

    tcase_add_test(c, values_have_units);
    tcase_add_test(c, what_is_wrong_is_said_where);
    tcase_add_test(c, a_log_is_read_back);
    tcase_add_test(c, runs_of_a_log_are_told_apart);
    tcase_add_test(c, what_is_no_log_is_refused);
    tcase_add_test(c, numbers_are_not_given_again);
    return dt_test_run(u);
}
