/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The runs file: what is added is there, what is refused changes nothing, and doc/formats.md has
 * its tables and columns.  (Ops, lanes, places and data come back in test_trace_perfetto.c.) */
#include "base/file.h"
#include "base/mem.h"
#include "report/runs.h"
#include "test_util.h"

#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

static struct dt_error err;
static char path[64];
static sqlite3 *db;

static const struct dt_run_record empty = {.kind = DT_RUN_SIMULATED,
                                           .job_name = "a.yaml",
                                           .started = "2026-01-01T00:00:00Z",
                                           .version = "0",
                                           .seed = 5};

static void begin(void)
{
    snprintf(path, sizeof(path), "test_runs.%ld.db", (long)getpid());
    unlink(path);
}

static void open_db(void)
{
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
}

static void close_db(void)
{
    sqlite3_close(db);
}

static void sql(const char *text)
{
    ck_assert_msg(sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
}

/* The first column of every row, each behind a separator. */
static void ask(const char *text, const char *separator, char *out, size_t size)
{
    sqlite3_stmt *s = NULL;
    size_t n = 0;

    out[0] = '\0';
    ck_assert_msg(sqlite3_prepare_v2(db, text, -1, &s, NULL) == SQLITE_OK, "%s",
                  sqlite3_errmsg(db));
    while (sqlite3_step(s) == SQLITE_ROW && n < size)
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? separator : "",
                              (const char *)sqlite3_column_text(s, 0));
    ck_assert_uint_lt(n, size);
    sqlite3_finalize(s);
}

START_TEST(runs_are_numbered)
{
    struct dt_run_record run = empty;
    char text[256];
    int64_t id;

    begin();
    dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
    ck_assert_int_eq(id, 1);
    run.kind = DT_RUN_EXECUTED;
    run.job_json = "{}";
    dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
    ck_assert_int_eq(id, 2);
    open_db();
    ask("SELECT kind || ' ' || job_name || ' ' || coalesce(job, 'NULL') || ' ' || seed || ' ' || "
        "started FROM run ORDER BY id",
        "; ", text, sizeof(text));
    ck_assert_str_eq(text, "simulated a.yaml NULL 5 2026-01-01T00:00:00Z; "
                           "executed a.yaml {} 5 2026-01-01T00:00:00Z");
    close_db();
    unlink(path);
}
END_TEST

/* A row that cannot be there (two for one batch) takes the whole run with it. */
START_TEST(a_run_is_there_whole_or_not_at_all)
{
    static const struct dt_run_data twice[] = {{0, 3, DT_DATA_LOAD, 1, 2},
                                               {0, 3, DT_DATA_LOAD, 5, 6}};
    struct dt_run_record run = empty;
    char text[64];
    int64_t id = 77;

    begin();
    dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
    run.data = twice;
    run.n_data = 2;
    id = 77;
    ck_assert_int_eq(dt_runs_add(path, &run, &err, &id), DT_ERR_DB);
    ck_assert_int_eq(id, 77);
    open_db();
    ask("SELECT count(*) FROM run UNION ALL SELECT count(*) FROM data", " ", text, sizeof(text));
    ck_assert_str_eq(text, "1 0");
    close_db();
    run.n_data = 1;
    dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
    ck_assert_int_eq(id, 2);
    unlink(path);
}
END_TEST

START_TEST(other_versions_are_refused)
{
    char text[64];
    int64_t id = 77;

    begin();
    dt_assert_ok(dt_runs_add(path, &empty, &err, &id), err);
    open_db();
    sql("UPDATE meta SET value = '2'");
    close_db();
    id = 77;
    ck_assert_int_eq(dt_runs_add(path, &empty, &err, &id), DT_ERR_INPUT);
    dt_assert_has(err.message, "has schema 2");
    ck_assert_int_eq(id, 77);
    open_db();
    ask("SELECT count(*) FROM run", "", text, sizeof(text));
    ck_assert_str_eq(text, "1");
    close_db();
    unlink(path);
}
END_TEST

/* Files of before get the tables that they lack. */
START_TEST(older_files_are_added_to)
{
    static const struct dt_run_data d = {1, 3, DT_DATA_ORDER, 1, 2};
    struct dt_run_record run = empty;
    char text[64];
    int64_t id;

    begin();
    dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
    open_db();
    sql("DROP TABLE data; DROP TABLE memory; DROP TABLE place; PRAGMA application_id = 0");
    close_db();
    run.data = &d;
    run.n_data = 1;
    dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
    open_db();
    ask("SELECT run || rank || batch || work || begin_ns || end_ns FROM data", "; ", text,
        sizeof(text));
    ck_assert_str_eq(text, "213order12");
    close_db();
    unlink(path);
}
END_TEST

/* Every table, with its columns in their order, is a line of the document. */
START_TEST(the_document_has_every_table_and_column)
{
    const char *srcdir = getenv("srcdir");
    char file[4096], tables[256], line[512], question[128];
    char *doc, *part, *save = NULL;
    size_t len;
    int64_t id;

    snprintf(file, sizeof(file), "%s/doc/formats.md", srcdir && *srcdir ? srcdir : ".");
    dt_assert_ok(dt_file_read(file, 1 << 20, &err, &doc, &len), err);
    part = strstr(doc, "## Runs\n");
    ck_assert_ptr_nonnull(part);
    begin();
    dt_assert_ok(dt_runs_add(path, &empty, &err, &id), err);
    open_db();
    ask("SELECT name FROM sqlite_master WHERE type = 'table'", " ", tables, sizeof(tables));
    dt_assert_has(tables, "run");
    for (char *t = strtok_r(tables, " ", &save); t; t = strtok_r(NULL, " ", &save)) {
        int n = snprintf(line, sizeof(line), "\n%s(", t);

        snprintf(question, sizeof(question), "SELECT name FROM pragma_table_info('%s')", t);
        ask(question, ", ", line + n, sizeof(line) - (size_t)n - 1);
        strcat(line, ")");
        ck_assert_msg(strstr(part, line) != NULL, "doc/formats.md has no line%s", line);
    }
    close_db();
    unlink(path);
    dt_free(doc);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("runs");
    TCase *c = dt_test_case(u, "runs", 60);

    tcase_add_test(c, runs_are_numbered);
    tcase_add_test(c, a_run_is_there_whole_or_not_at_all);
    tcase_add_test(c, other_versions_are_refused);
    tcase_add_test(c, older_files_are_added_to);
    tcase_add_test(c, the_document_has_every_table_and_column);
    return dt_test_run(u);
}
