/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Runs files that somebody else made, or broke: readers refuse them in words, writers leave them as
 * they are, and a writer that was killed in the middle of a commit blocks nobody. */
#include "report/compare.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "report/runs.h"
#include "report/trace_export.h"
#include "synth.h"
#include "test_util.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[40];
static char path[64], path2[64], journal[80];
static struct dt_error err;

/* A run with ops and with all that runs files keep. */
static void add_run(const char *file)
{
    static const struct synth_pipeline pipeline = {.stages = 3,
                                                   .replicas = 2,
                                                   .microbatches = 4,
                                                   .lane_gpus = 1,
                                                   .fwd_ns = 1000,
                                                   .bwd_ns = 2000,
                                                   .alpha_ns = 10,
                                                   .transfer_ns = 100,
                                                   .sync_ns = 500,
                                                   .bytes = 64,
                                                   .sync_bytes = 640};
    static const struct dt_run_data beside[] = {{0, 3, DT_DATA_LOAD, -5, 20}};
    static struct dt_model model;
    static int rank[64];
    static const char *const hosts[] = {"north"};
    static struct dt_run_memory memory[64];
    struct dt_timeline_topo topo = {0};
    struct dt_timeline timeline = {0};
    struct synth x;
    int64_t id;

    synth_1f1b(&pipeline, &x);
    ck_assert_int_le(x.p.n_lanes, 64);
    dt_assert_ok(dt_timeline_topo_build(&x.p, &err, &topo), err);
    dt_assert_ok(dt_timeline_eval(&x.p, &topo, x.dur.ns, &err, &timeline), err);
    model.n_modules = 1;
    snprintf(model.modules[0].name, sizeof(model.modules[0].name), "llm");
    struct dt_run_record run = {.kind = DT_RUN_EXECUTED,
                                .job_name = "job",
                                .started = "2026-01-01T00:00:00Z",
                                .version = "0",
                                .report_json = "{\"mfu\": 0.5}",
                                .model = &model,
                                .program = &x.p,
                                .timeline = &timeline,
                                .lane_rank = rank,
                                .rank_host = hosts,
                                .memory_of = "cpu",
                                .lane_memory = memory,
                                .data = beside,
                                .n_data = 1,
                                .ops = true};
    dt_assert_ok(dt_runs_add(file, &run, &err, &id), err);
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&timeline);
    synth_free(&x);
}

static void begin(void)
{
    snprintf(folder, sizeof(folder), "/tmp/test_runs_hostile.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chmod(folder, 0755), 0);
    snprintf(path, sizeof(path), "%s/a.db", folder);
    snprintf(path2, sizeof(path2), "%s/b.db", folder);
    snprintf(journal, sizeof(journal), "%s/a.db-journal", folder);
    add_run(path);
}

static void end(void)
{
    unlink(path);
    unlink(path2);
    unlink(journal);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing else was left there */
}

static void sql(const char *file, const char *text)
{
    sqlite3 *db;

    ck_assert_int_eq(sqlite3_open(file, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK, "%s: %s", text,
                  sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void copy(const char *from, const char *to)
{
    char *text;
    size_t n;

    dt_assert_ok(dt_file_read(from, 1 << 24, &err, &text, &n), err);
    unlink(to);
    dt_assert_ok(dt_file_write(to, text, n, &err), err);
    dt_free(text);
}

/* Every reader reads run 1 of the file; the first that fails says why.  a is sound. */
static enum dt_status read_run(const char *a, const char *file)
{
    struct dt_run_ref r = {.id = 1}, sound = {.id = 1}, last;
    struct dt_compare c;
    enum dt_status st, first = DT_OK;
    size_t size;
    char *text;

    snprintf(r.file, sizeof(r.file), "%s", file);
    snprintf(sound.file, sizeof(sound.file), "%s", a);
    memset(&err, 0, sizeof(err));
    st = dt_trace_chrome(&r, -1, &err, &text);
    if (st == DT_OK)
        dt_free(text);
    first = st;
    st = dt_trace_perfetto(&r, 0, first ? NULL : &err, &text, &size);
    if (st == DT_OK)
        dt_free(text);
    first = first ? first : st;
    for (int k = 0; k < 2; k++) { /* as the first and as the second */
        st = dt_compare_runs(k ? &sound : &r, k ? &r : &sound, first ? NULL : &err, &c);
        if (st == DT_OK)
            dt_compare_free(&c);
        first = first ? first : st;
    }
    st = dt_run_find("last", file, first ? NULL : &err, &last);
    return first ? first : st;
}

/* Tables without constraints, as no writer of ours makes them. */
#define LOOSE(t)                                                                                   \
    "ALTER TABLE " t " RENAME TO old; CREATE TABLE " t " AS SELECT * FROM old; DROP TABLE old;"

START_TEST(damaged_rows_are_refused)
{
    static const struct {
        const char *sql, *says;
    } cases[] = {
        {LOOSE("op") "UPDATE op SET kind = NULL WHERE op = 3", "row 3 of table op: kind is NULL"},
        {LOOSE("op") "UPDATE op SET kind = 7 WHERE op = 3", "kind is no kind of op"},
        {LOOSE("op") "UPDATE op SET kind = 'dance' WHERE op = 3", "kind is no kind of op"},
        {LOOSE("op") "UPDATE op SET kind = x'666f7277617264' WHERE op = 3", "kind is no text"},
        {LOOSE("op") "UPDATE op SET kind = printf('%.*c', 100000, 'x')", "bytes long, not 1 to 31"},
        {LOOSE("op") "UPDATE op SET lane = NULL WHERE op = 0", "lane is NULL"},
        {LOOSE("op") "UPDATE op SET lane = 99 WHERE op = 0", "lane is the number of no lane"},
        {LOOSE("op") "UPDATE op SET lane = -1 WHERE op = 0", "lane is -1, not 0 to"},
        {LOOSE("op") "UPDATE op SET lane = 4294967296 WHERE op = 0", "lane is 4294967296"},
        {LOOSE("op") "UPDATE op SET peer_lane = 6", "peer_lane is the number of no lane"},
        {LOOSE("op") "UPDATE op SET begin_ns = 'soon'", "begin_ns is not a whole number"},
        {LOOSE("op") "UPDATE op SET begin_ns = 1.5", "begin_ns is not a whole number"},
        {LOOSE("op") "UPDATE op SET begin_ns = -9223372036854775808", "begin_ns is -922"},
        {LOOSE("op") "UPDATE op SET end_ns = 9223372036854775807", "end_ns is 9223372036854775807"},
        {LOOSE("op") "UPDATE op SET end_ns = begin_ns - 1 WHERE begin_ns > 0",
         "end_ns is before its begin_ns"},
        {LOOSE("op") "INSERT INTO op SELECT * FROM op WHERE op = 1", "does not count from 0"},
        {LOOSE("op") "DELETE FROM op WHERE op = 1", "does not count from 0"},
        {"DELETE FROM op WHERE op = (SELECT max(op) FROM op)", "has kept"},
        {LOOSE("lane") "UPDATE lane SET module = NULL", "table lane: module is NULL"},
        {LOOSE("lane") "UPDATE lane SET module = CAST(x'6c006c' AS TEXT)", "holds a zero byte"},
        {LOOSE("lane") "INSERT INTO lane SELECT * FROM lane", "does not count from 0"},
        {LOOSE("lane") "DELETE FROM lane", "lane is the number of no lane"},
        {LOOSE("lane") "UPDATE lane SET gpus = 0", "gpus is 0"},
        {LOOSE("lane") "UPDATE lane SET first_gpu = 2147483647", "first_gpu is too large"},
        {LOOSE("run") "UPDATE run SET kind = NULL", "table run: kind is NULL"},
        {LOOSE("run") "UPDATE run SET makespan_ns = 'long'", "makespan_ns is not a whole number"},
        {LOOSE("run") "UPDATE run SET report = x'00'", "report is no text"},
        {LOOSE("run") "INSERT INTO run SELECT * FROM run", "duplicate rows"},
        {LOOSE("place") "INSERT INTO place SELECT * FROM place", "duplicate rows"},
        {LOOSE("place") "UPDATE place SET rank = 2147483647", "rank is 2147483647"},
        {LOOSE("memory") "UPDATE memory SET model = NULL", "model is NULL"},
        {LOOSE("memory") "UPDATE memory SET predicted_bytes = -1", "predicted_bytes is -1"},
        {LOOSE("data") "UPDATE data SET work = NULL", "work is NULL"},
        {LOOSE("data") "UPDATE data SET begin_ns = -9223372036854775807", "begin_ns is -92"},
        {"ALTER TABLE op RENAME TO real; CREATE VIEW op AS SELECT * FROM real",
         "op is no table but a view"},
        {"ALTER TABLE op RENAME TO real; CREATE VIEW op AS WITH RECURSIVE n(i) AS (SELECT 0 UNION "
         "ALL SELECT i + 1 FROM n) SELECT 1 run, i op, 0 lane, 'forward' kind, 0 chunk, 0 part, 0 "
         "microbatch, NULL peer_lane, 0 bytes, 0 begin_ns, 0 end_ns FROM n",
         "op is no table but a view"},
        {"ALTER TABLE data RENAME TO real; CREATE VIEW data AS SELECT * FROM real",
         "data is no table but a view"},
        {"DROP TABLE op", "op is no table in it"},
        {"DROP TABLE op; CREATE TABLE op(run, op, lane)", "table op has no column kind"},
        {"DROP TABLE op; CREATE TABLE op(run, op, lane, kind AS (hex(zeroblob(1000000000))), "
         "chunk, "
         "part, microbatch, peer_lane, bytes, begin_ns, end_ns)",
         "table op has no column kind"},
        {"UPDATE meta SET value = '2'", "has schema 2"},
        {"DELETE FROM meta", "database of another program"},
        {"DROP TABLE meta", "database of another program"},
        {"PRAGMA user_version = 4", "database of another program"},
        {"PRAGMA application_id = 1196444487", "database of another program"},
    };

    begin();
    ck_assert_int_eq(read_run(path, path), DT_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        enum dt_status st;

        copy(path, path2);
        sql(path2, cases[i].sql);
        st = read_run(path, path2);
        ck_assert_msg(st == DT_ERR_INPUT, "%s: %d %s", cases[i].sql, st, err.message);
        ck_assert_msg(strstr(err.message, cases[i].says) && strcmp(err.file, path2) == 0,
                      "%s: \"%s\" (%s)", cases[i].sql, err.message, err.file);
    }
    end();
}
END_TEST

/* Names that mean something to JSON, triggers, columns and tables of a later program. */
START_TEST(strange_but_sound_files_are_read)
{
    struct dt_run_ref r = {.id = 1};
    struct dt_compare c;
    char *text;

    begin();
    sql(path, "UPDATE lane SET module = 'a\"b\\c' || char(10, 27) || CAST(x'ff' AS TEXT);"
              "UPDATE run SET job_name = 'j' || char(27) || '[2J' || char(7);"
              "UPDATE run SET report = '{\"mfu\": \"fast\", \"tokens_per_s\": 1e999}';"
              "ALTER TABLE op ADD COLUMN later TEXT; ALTER TABLE run ADD COLUMN later TEXT;"
              "CREATE TABLE later(x); CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM op; "
              "END");
    ck_assert_int_eq(read_run(path, path), DT_OK);
    snprintf(r.file, sizeof(r.file), "%s", path);
    dt_assert_ok(dt_trace_chrome(&r, -1, &err, &text), err);
    dt_assert_has(text, "\"a\\\"b\\\\c\\n\\u001b\xEF\xBF\xBD/0.0\"");
    dt_free(text);
    dt_assert_ok(dt_compare_runs(&r, &r, &err, &c), err);
    ck_assert_str_eq(c.a.about.job, "j?[2J?");
    ck_assert(isnan(c.a.v[DT_RUN_mfu]));
    ck_assert(isnan(c.a.v[DT_RUN_tokens_per_s]));
    dt_compare_free(&c);
    add_run(path); /* and written to: the trigger does not fire */
    r.id = 2;
    dt_assert_ok(dt_trace_chrome(&r, -1, &err, &text), err);
    dt_free(text);
    ck_assert_int_eq(read_run(path, path), DT_OK);
    end();
}
END_TEST

/* Bytes changed, zeroed or cut at random: an error or a run, never a crash. */
START_TEST(random_damage_is_survived)
{
    struct dt_rng rng;
    uint64_t seed = dt_test_seed();
    int refused = 0;
    size_t n;
    char *text;

    begin();
    dt_rng_init(&rng, seed, 7);
    dt_assert_ok(dt_file_read(path, 1 << 24, &err, &text, &n), err);
    for (int i = 0; i < 300; i++) {
        char *bad = dt_malloc(n);
        size_t len = n;
        int changes = 1 + (int)dt_rng_below(&rng, 8);

        memcpy(bad, text, n);
        for (int k = 0; k < changes; k++) {
            size_t at = dt_rng_below(&rng, i % 3 ? n : 200);
            size_t some = 1 + dt_rng_below(&rng, i % 5 ? 4 : 600);

            for (size_t b = at; b < at + some && b < n; b++)
                bad[b] = i % 2 ? (char)dt_rng_below(&rng, 256) : 0;
        }
        if (i % 7 == 0)
            len = dt_rng_below(&rng, n);
        unlink(path2);
        dt_assert_ok(dt_file_write(path2, bad, len, &err), err);
        dt_free(bad);
        memset(&err, 0, sizeof(err));
        enum dt_status st = read_run(path, path2);
        ck_assert_msg(st == DT_OK || err.message[0], "seed %" PRIu64 " case %d", seed, i);
        refused += st != DT_OK;
    }
    ck_assert_int_gt(refused, 100);
    dt_free(text);
    end();
}
END_TEST

/* ---- writing ---- */

static void assert_untouched(const char *what, const char *says)
{
    static const struct dt_run_record empty = {.job_name = "", .started = "", .version = ""};
    char *before, *after;
    size_t n, m;
    int64_t id = 77;

    dt_assert_ok(dt_file_read(path2, 1 << 24, &err, &before, &n), err);
    ck_assert_msg(dt_runs_add(path2, &empty, &err, &id) != DT_OK, "%s: written to", what);
    ck_assert_msg(strstr(err.message, says) != NULL, "%s: %s", what, err.message);
    ck_assert_int_eq(id, 77);
    dt_assert_ok(dt_file_read(path2, 1 << 24, &err, &after, &m), err);
    ck_assert_msg(n == m && memcmp(before, after, n) == 0, "%s: changed", what);
    dt_free(before);
    dt_free(after);
    unlink(path2);
}

START_TEST(databases_of_others_are_not_written_to)
{
    begin();
    sql(path2, "CREATE TABLE bookmarks(url)");
    assert_untouched("a database", "another program");
    sql(path2, "CREATE TABLE meta(key, value)");
    assert_untouched("a table meta", "another program");
    sql(path2, "CREATE TABLE meta(key, value); INSERT INTO meta VALUES('schema_version', '1')");
    assert_untouched("a profile", "another program");
    sql(path2, "PRAGMA application_id = 252006673; CREATE TABLE t(x)"); /* Fossil */
    assert_untouched("an application's", "application_id 0x0f055111");
    sql(path2, "PRAGMA user_version = 3");
    assert_untouched("no tables yet", "another program");
    copy(path, path2);
    sql(path2, "UPDATE meta SET value = '2'");
    assert_untouched("a later version", "schema 2");
    copy(path, path2);
    sql(path2, "ALTER TABLE op RENAME TO o; CREATE VIEW op AS SELECT * FROM o");
    assert_untouched("a view", "a view");
    dt_assert_ok(dt_file_write(path2, "run 1: fast\n", 12, &err), err);
    assert_untouched("a text", "not an SQLite database");
    end();
}
END_TEST

START_TEST(what_cannot_be_opened_is_named)
{
    struct dt_run_ref r;
    char name[64];

    begin();
    snprintf(name, sizeof(name), "%s/none.db", folder);
    ck_assert_int_eq(dt_run_find("last", name, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "No such file or directory");
    ck_assert_int_ne(access(name, F_OK), 0);
    ck_assert_int_eq(dt_run_find("last", folder, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "this is a directory");
    ck_assert_int_eq(dt_run_find("last", "/dev/null", &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "this is a device");
    ck_assert_int_eq(mkfifo(path2, 0600), 0); /* would wait for ever for its other end */
    ck_assert_int_eq(dt_run_find("last", path2, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "this is a pipe");
    unlink(path2);
    dt_assert_ok(dt_file_write(path2, "", 0, &err), err);
    ck_assert_int_eq(dt_run_find("last", path2, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "empty");
    add_run(path2); /* an empty file is nobody's */
    ck_assert_int_eq(read_run(path, path2), DT_OK);
    end();
}
END_TEST

/* ---- several at once ---- */

enum { WRITERS = 4, RUNS_EACH = 5 };

START_TEST(writers_wait_for_each_other)
{
    struct dt_run_ref last;
    int status;

    begin();
    for (int k = 0; k < WRITERS; k++)
        if (fork() == 0) {
            for (int i = 0; i < RUNS_EACH; i++)
                add_run(path);
            _exit(0);
        }
    for (int k = 0; k < WRITERS; k++) {
        ck_assert_int_gt(wait(&status), 0);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    dt_assert_ok(dt_run_find("last", path, &err, &last), err);
    ck_assert_int_eq(last.id, 1 + WRITERS * RUNS_EACH);
    ck_assert_int_eq(read_run(path, path), DT_OK);
    end();
}
END_TEST

/* A writer that is killed when it has written some of its pages over those of the file. */
static void kill_a_writer(void)
{
    int told[2], status;
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe(told), 0);
    pid = fork();
    if (pid == 0) {
        sqlite3 *db;

        /* pages leave the small cache before the commit, so the journal is hot */
        if (sqlite3_open(path, &db) != SQLITE_OK ||
            sqlite3_exec(db,
                         "PRAGMA cache_size = 10; BEGIN; UPDATE op SET begin_ns = end_ns, kind = "
                         "'half'; WITH RECURSIVE n(i) AS (SELECT 1000000 UNION ALL SELECT i + 1 "
                         "FROM n LIMIT 20000) INSERT INTO op SELECT 1, i, 0, 'forward', 0, 0, 0, "
                         "NULL, 0, 0, 0 FROM n",
                         NULL, NULL, NULL) != SQLITE_OK)
            _exit(1);
        if (write(told[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    close(told[1]);
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    close(told[0]);
    ck_assert_int_eq(access(journal, F_OK), 0);
}

/* As somebody who may only read: in a process of its own, without root's rights. */
static void read_unprivileged(void)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            _exit(77);
        ck_assert_msg(open(path, O_RDWR | O_CLOEXEC) < 0, "the file can be written");
        ck_assert_msg(read_run(path, path) == DT_OK, "%s", err.message);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}

static void mode(const char *file, mode_t m)
{
    ck_assert_int_eq(chmod(file, m), 0);
}

START_TEST(a_killed_writer_blocks_no_reader)
{
    char temporary[60];

    begin();
    snprintf(temporary, sizeof(temporary), "%s/copies", folder);
    ck_assert_int_eq(mkdir(temporary, 0777), 0);
    mode(temporary, 0777);
    setenv("TMPDIR", temporary, 1);
    kill_a_writer();
    mode(path, 0444);
    mode(journal, 0444);
    mode(folder, 0555);
    read_unprivileged();
    mode(folder, 0755);
    ck_assert_int_eq(rmdir(temporary), 0);      /* the copy is gone */
    ck_assert_int_eq(access(journal, F_OK), 0); /* who may not write has not */
    mode(path, 0644);
    mode(journal, 0644);
    ck_assert_int_eq(read_run(path, path), DT_OK); /* who may has undone it */
    ck_assert_int_ne(access(journal, F_OK), 0);
    kill_a_writer();
    add_run(path); /* so does a writer */
    ck_assert_int_eq(read_run(path, path), DT_OK);
    end();
}
END_TEST

/* A journal that names another file would have SQLite delete that one. */
START_TEST(a_journal_over_several_databases_is_refused)
{
    static const unsigned char tail[] = {'b',  0,    0, 0,    1,    0,    0,    0,   98,
                                         0xd9, 0xd5, 5, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    FILE *f;

    begin();
    kill_a_writer();
    f = fopen(journal, "ab");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(tail, 1, sizeof(tail), f), sizeof(tail));
    fclose(f);
    ck_assert_int_eq(read_run(path, path), DT_ERR_INPUT);
    dt_assert_has(err.message, "several databases");
    end();
}
END_TEST

int main(void)
{
    Suite *u = suite_create("runs_hostile");
    TCase *c = dt_test_case(u, "runs_hostile", 300);

    tcase_add_test(c, damaged_rows_are_refused);
    tcase_add_test(c, strange_but_sound_files_are_read);
    tcase_add_test(c, random_damage_is_survived);
    tcase_add_test(c, databases_of_others_are_not_written_to);
    tcase_add_test(c, what_cannot_be_opened_is_named);
    tcase_add_test(c, writers_wait_for_each_other);
    tcase_add_test(c, a_killed_writer_blocks_no_reader);
    tcase_add_test(c, a_journal_over_several_databases_is_refused);
    return dt_test_run(u);
}
