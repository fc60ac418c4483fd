/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Sweeps in the runs file: what is written is read again, to the last bit; another sweep is another one; damaged files
 * are refused; the front against its definition. */
#include "base/mem.h"
#include "base/rng.h"
#include "report/sweep.h"

#include "test_util.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

static const char *const file = "test_sweep.db";

static struct dt_sweep_result result(int i)
{
    struct dt_sweep_result r = {.feasible = 1, .gpus = 8 * (i + 1), .gpus_used = 8 * i + 7};
    struct dt_rng rng;

    dt_rng_init(&rng, dt_test_seed(), (uint64_t)i);
#define X(name) r.name = dt_rng_uniform(&rng) * 1e12;
    DT_SWEEP_NUMBERS(X)
    DT_SWEEP_LATER(X)
#undef X
    snprintf(r.effort, sizeof r.effort, "quick");
    snprintf(r.plan, sizeof r.plan, "llm tp8 pp%d dp1 = %d", i + 1, 8 * i + 8);
    if (i % 3 == 2) {
        memset(&r, 0, sizeof r);
        r.status = DT_ERR_INFEASIBLE;
        snprintf(r.reason, sizeof r.reason, "no plan fits: \"%d\", it's too much", i);
    }
    return r;
}

static struct dt_sweep *must_open(const char *identity, struct dt_sweep_point **points, int *n)
{
    struct dt_sweep_about about = {.identity = identity,
                                   .job_name = "job.yaml",
                                   .job_json = "{}",
                                   .keys = "[\"cluster.nodes\"]",
                                   .started = "2026-01-01T00:00:00Z",
                                   .version = "1"};
    struct dt_error err = {0};
    struct dt_sweep *s = NULL;

    dt_assert_ok(dt_sweep_open(file, &about, &err, &s, points, n), err);
    return s;
}

static void set_text(int i, char *buf, size_t size)
{
    snprintf(buf, size, "[\"cluster.nodes=%03d\"]", i);
}

enum { N = 20 };

static void write_some(const char *identity, int from, int to)
{
    struct dt_sweep_point *points;
    struct dt_error err = {0};
    struct dt_sweep *s;
    char set[64];
    int n;

    s = must_open(identity, &points, &n);
    dt_sweep_points_free(points, n);
    for (int i = from; i < to; i++) {
        struct dt_sweep_result r = result(i);

        set_text(i, set, sizeof set);
        dt_assert_ok(dt_sweep_add(s, set, &r, &err), err);
    }
    dt_sweep_close(s);
}

START_TEST(results_come_back_to_the_last_bit)
{
    struct dt_sweep_data d;
    struct dt_error err = {0};
    struct dt_sweep_point *points;
    struct dt_sweep *s;
    char set[64];
    int n;

    unlink(file);
    write_some("one", 0, 7);
    write_some("two", 0, 3);
    write_some("one", 5, N); /* two of them once more */
    dt_assert_ok(dt_sweep_read(file, 1, &err, &d), err);
    ck_assert_int_eq(d.n, N);
    ck_assert_str_eq(d.keys, "[\"cluster.nodes\"]");
    for (int i = 0; i < N; i++) {
        struct dt_sweep_result r = result(i);

        set_text(i, set, sizeof set);
        ck_assert_str_eq(d.points[i].set, set);
        ck_assert_mem_eq(&d.points[i].r, &r, sizeof r);
    }
    dt_sweep_data_free(&d);
    dt_assert_ok(dt_sweep_read(file, 0, &err, &d), err); /* the latest */
    ck_assert_int_eq(d.id, 2);
    ck_assert_int_eq(d.n, 3);
    dt_sweep_data_free(&d);
    s = must_open("one", &points, &n);
    ck_assert_int_eq(n, N);
    ck_assert_int_eq(dt_sweep_id(s), 1);
    dt_sweep_points_free(points, n);
    dt_sweep_close(s);
    ck_assert_int_eq(dt_sweep_read(file, 9, &err, &d), DT_ERR_INPUT);
    unlink(file);
}
END_TEST

/* A file of before has no means of batches: its points have the iteration's, new ones their own. */
START_TEST(older_files_lack_columns)
{
    static const char *const older[] = {"iteration_s_mean", "iteration_s_mean_p10",
                                        "iteration_s_mean_p90"};
    char sql[128];
    sqlite3 *db;

    unlink(file);
    write_some("one", 0, 2);
    ck_assert_int_eq(sqlite3_open(file, &db), SQLITE_OK);
    for (size_t i = 0; i < sizeof older / sizeof older[0]; i++) {
        snprintf(sql, sizeof sql, "ALTER TABLE sweep_point DROP COLUMN %s", older[i]);
        ck_assert_int_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    }
    sqlite3_close(db);
    for (int written = 0; written < 2; written++) {
        struct dt_error err = {0};
        struct dt_sweep_data d;

        if (written)
            write_some("one", 3, 5);
        dt_assert_ok(dt_sweep_read(file, 1, &err, &d), err);
        ck_assert_int_eq(d.n, written ? 4 : 2);
        for (int i = 0; i < d.n; i++) {
            struct dt_sweep_result r = result(i < 2 ? i : i + 1);

            if (i < 2) {
                r.iteration_s_mean = r.iteration_s;
                r.iteration_s_mean_p10 = r.iteration_s_p10;
                r.iteration_s_mean_p90 = r.iteration_s_p90;
            }
            ck_assert_mem_eq(&d.points[i].r, &r, sizeof r);
        }
        dt_sweep_data_free(&d);
    }
    unlink(file);
}
END_TEST

START_TEST(damaged_files_are_refused)
{
    static const char *const damage[] = {
        "UPDATE sweep_point SET mfu = 'x'",
        "UPDATE sweep_point SET mfu = -1",
        "UPDATE sweep_point SET mfu = 9e999",
        "UPDATE sweep_point SET gpus = 1.5",
        "UPDATE sweep_point SET gpus = -1",
        "UPDATE sweep_point SET gpus = 1 << 40",
        "UPDATE sweep_point SET gpus = 0",
        "UPDATE sweep_point SET feasible = 2",
        "UPDATE sweep_point SET feasible = 0",
        "UPDATE sweep_point SET iteration_s = 0",
        "UPDATE sweep_point SET plan = printf('%600c', 'x')",
        "UPDATE sweep_point SET plan = x'00'",
        "UPDATE sweep_point SET effort = 'a' || char(0) || 'b'",
        "UPDATE sweep_point SET point = x'01' WHERE point LIKE '%000%'",
        "UPDATE sweep SET keys = x'01'",
        "ALTER TABLE sweep_point DROP COLUMN goodput",
        "DROP TABLE sweep_point; CREATE VIEW sweep_point AS SELECT * FROM sweep",
        "DROP TABLE sweep_point",
    };

    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        struct dt_sweep_data d;
        struct dt_error err = {0};
        sqlite3 *db;

        unlink(file);
        write_some("one", 0, 2);
        ck_assert_int_eq(sqlite3_open(file, &db), SQLITE_OK);
        ck_assert_msg(sqlite3_exec(db, damage[i], NULL, NULL, NULL) == SQLITE_OK, "%s: %s",
                      damage[i], sqlite3_errmsg(db));
        sqlite3_close(db);
        ck_assert_msg(dt_sweep_read(file, 1, &err, &d) != DT_OK, "%s", damage[i]);
        ck_assert_msg(err.message[0] && err.file[0], "%s", damage[i]);
    }
    unlink(file);
}
END_TEST

START_TEST(fronts_are_by_the_definition)
{
    enum { POINTS = 60, GOALS = 3 };
    double goal[POINTS * GOALS];
    bool front[POINTS];
    struct dt_rng rng;

    dt_rng_init(&rng, dt_test_seed(), 1);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < POINTS * GOALS; i++) /* many ties, a few that are not known */
            goal[i] = dt_rng_below(&rng, 40) ? (double)dt_rng_below(&rng, 12) : NAN;
        dt_sweep_front(goal, POINTS, GOALS, front);
        for (int i = 0; i < POINTS; i++) {
            bool on = true;

            for (int g = 0; g < GOALS; g++)
                on = on && !isnan(goal[i * GOALS + g]);
            for (int k = 0; k < POINTS; k++) {
                int as_good = 0, better = 0;

                for (int g = 0; g < GOALS; g++) {
                    as_good += goal[k * GOALS + g] <= goal[i * GOALS + g];
                    better += goal[k * GOALS + g] < goal[i * GOALS + g];
                }
                on = on && !(as_good == GOALS && better > 0);
            }
            ck_assert_int_eq(front[i], on);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sweep");
    TCase *c = dt_test_case(s, "sweep", 60);

    tcase_add_test(c, results_come_back_to_the_last_bit);
    tcase_add_test(c, older_files_lack_columns);
    tcase_add_test(c, damaged_files_are_refused);
    tcase_add_test(c, fronts_are_by_the_definition);
    return dt_test_run(s);
}
