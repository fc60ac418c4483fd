/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/trace_export.h"

#include "core/mem.h"
#include "core/program.h"
#include "core/text.h"

#include <sqlite3.h>
#include <string.h>

struct trace {
    sqlite3 *db;
    const struct dt_run_ref *run;
    int lane, n_lanes;
    struct dt_text text;
    int64_t *arrow; /* [n_lanes][n_lanes][2]: messages so far from a to b, sent and received */
    bool executed, first;
};

static enum dt_status failed(const struct trace *t, struct dt_error *err)
{
    return dt_error_at(err, DT_ERR_DB, t->run->file, 0, 0, "runs file: %s",
                       t->db ? sqlite3_errmsg(t->db) : "out of memory");
}

static enum dt_status number(const struct trace *t, const char *sql, struct dt_error *err,
                             int64_t *out)
{
    sqlite3_stmt *s = NULL;
    enum dt_status st = DT_OK;

    if (sqlite3_prepare_v2(t->db, sql, -1, &s, NULL) != SQLITE_OK)
        return failed(t, err);
    sqlite3_bind_int64(s, 1, t->run->id);
    if (sqlite3_step(s) == SQLITE_ROW)
        *out = sqlite3_column_int64(s, 0);
    else
        st = failed(t, err);
    sqlite3_finalize(s);
    return st;
}

static enum dt_status open_run(struct trace *t, struct dt_error *err)
{
    int64_t runs = 0, ops = 0, lanes = 0, executed = 0;

    if (sqlite3_open_v2(t->run->file, &t->db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
        return failed(t, err);
    DT_TRY(number(t, "SELECT count(*) FROM run WHERE id = ?", err, &runs));
    DT_TRY(number(t, "SELECT count(*) FROM op WHERE run = ?", err, &ops));
    DT_TRY(number(t, "SELECT count(*) FROM lane WHERE run = ?", err, &lanes));
    DT_TRY(
        number(t, "SELECT count(*) FROM run WHERE id = ? AND kind = 'executed'", err, &executed));
    if (runs == 0)
        return dt_error_at(err, DT_ERR_INPUT, t->run->file, 0, 0, "has no run %lld",
                           (long long)t->run->id);
    if (ops == 0)
        return dt_error_at(err, DT_ERR_INPUT, t->run->file, 0, 0,
                           "run %lld has kept no ops; simulate again with --timeline all",
                           (long long)t->run->id);
    t->n_lanes = (int)lanes;
    t->executed = executed > 0;
    return DT_OK;
}

static void begin_event(struct trace *t)
{
    dt_text_add(&t->text, t->first ? "\n" : ",\n");
    t->first = false;
}

static const char *const threads[DT_RES_N] = {"compute", "send", "receive", "collective"};

static enum dt_status name_lanes(struct trace *t, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;

    if (sqlite3_prepare_v2(
            t->db, "SELECT lane, module, replica, stage FROM lane WHERE run = ? ORDER BY lane", -1,
            &s, NULL) != SQLITE_OK)
        return failed(t, err);
    sqlite3_bind_int64(s, 1, t->run->id);
    while (sqlite3_step(s) == SQLITE_ROW) {
        int lane = sqlite3_column_int(s, 0);

        if (t->lane >= 0 && lane != t->lane)
            continue;
        begin_event(t);
        dt_text_add(&t->text,
                    "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": "
                    "\"%.60s/%d.%d\"}}",
                    lane, (const char *)sqlite3_column_text(s, 1), sqlite3_column_int(s, 2),
                    sqlite3_column_int(s, 3));
        for (int r = 0; r < DT_RES_N; r++) {
            begin_event(t);
            dt_text_add(&t->text,
                        "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, "
                        "\"args\": {\"name\": \"%s\"}}",
                        lane, r, threads[r]);
        }
    }
    sqlite3_finalize(s);
    return DT_OK;
}

static int kind_of(const char *name)
{
    for (int k = 0; k < DT_OP_KIND_N; k++)
        if (strcmp(dt_op_kind_names[k], name) == 0)
            return k;
    return DT_OP_FETCH;
}

/* Messages between two lanes meet in their order on both sides (dt_program_check). */
static void arrow(struct trace *t, int kind, int lane, int peer, double us)
{
    bool send = kind == DT_OP_SEND;
    int from = send ? lane : peer, to = send ? peer : lane;
    size_t pair = (size_t)from * (size_t)t->n_lanes + (size_t)to;
    int64_t nth = t->arrow[2 * pair + (send ? 0 : 1)]++;

    if (t->lane >= 0)
        return;
    begin_event(t);
    dt_text_add(&t->text,
                "{\"ph\": \"%s\", \"cat\": \"message\", \"name\": \"message\", \"id\": "
                "\"%d-%d-%lld\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f%s}",
                send ? "s" : "f", from, to, (long long)nth, lane,
                (int)dt_op_resource((enum dt_op_kind)kind), us, send ? "" : ", \"bp\": \"e\"");
}

static void add_op(struct trace *t, sqlite3_stmt *s)
{
    const char *name = (const char *)sqlite3_column_text(s, 1);
    int lane = sqlite3_column_int(s, 0), kind = kind_of(name);
    double begin_us = 1e-3 * sqlite3_column_double(s, 6),
           end_us = 1e-3 * sqlite3_column_double(s, 7);
    bool mb = sqlite3_column_type(s, 4) != SQLITE_NULL;

    if (t->lane < 0 || t->lane == lane) {
        begin_event(t);
        dt_text_add(&t->text, "{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s",
                    threads[dt_op_resource((enum dt_op_kind)kind)], name);
        if (mb)
            dt_text_add(&t->text, " %d", sqlite3_column_int(s, 4));
        dt_text_add(&t->text,
                    "\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"args\": "
                    "{\"chunk\": %d, \"part\": %d, \"bytes\": %lld}}",
                    lane, (int)dt_op_resource((enum dt_op_kind)kind), begin_us, end_us - begin_us,
                    sqlite3_column_int(s, 2), sqlite3_column_int(s, 3),
                    (long long)sqlite3_column_int64(s, 5));
    }
    if (sqlite3_column_type(s, 8) != SQLITE_NULL)
        arrow(t, kind, lane, sqlite3_column_int(s, 8), kind == DT_OP_SEND ? begin_us : end_us);
}

static enum dt_status add_ops(struct trace *t, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;
    int rc;

    t->arrow = dt_calloc(2 * (size_t)t->n_lanes * (size_t)t->n_lanes + 1, sizeof(*t->arrow));
    if (!t->arrow)
        return dt_error_nomem(err, "messages");
    if (sqlite3_prepare_v2(t->db,
                           "SELECT lane, kind, chunk, part, microbatch, bytes, begin_ns, end_ns, "
                           "peer_lane FROM op WHERE run = ? ORDER BY op",
                           -1, &s, NULL) != SQLITE_OK)
        return failed(t, err);
    sqlite3_bind_int64(s, 1, t->run->id);
    while ((rc = sqlite3_step(s)) == SQLITE_ROW)
        add_op(t, s);
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? DT_OK : failed(t, err);
}

static enum dt_status write_all(struct trace *t, struct dt_error *err, char **out)
{
    DT_TRY(open_run(t, err));
    dt_text_add(&t->text,
                "{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"distributedInfo\": "
                "{\"backend\": \"%s\", \"rank\": %d, \"world_size\": %d},\n\"traceEvents\": [",
                t->executed ? "mpi" : "simulated", t->lane >= 0 ? t->lane : 0, t->n_lanes);
    t->first = true;
    DT_TRY(name_lanes(t, err));
    DT_TRY(add_ops(t, err));
    dt_text_add(&t->text, "\n]}\n");
    return dt_text_finish(&t->text, err, out);
}

enum dt_status dt_trace_chrome(const struct dt_run_ref *run, int lane, struct dt_error *err,
                               char **out)
{
    struct trace t = {.run = run, .lane = lane};
    enum dt_status st = write_all(&t, err, out);

    sqlite3_close(t.db);
    dt_free(t.arrow);
    dt_free(t.text.s);
    return st;
}

enum dt_status dt_trace_lanes(const struct dt_run_ref *run, struct dt_error *err, int *n)
{
    struct trace t = {.run = run};
    enum dt_status st = open_run(&t, err);

    sqlite3_close(t.db);
    if (st == DT_OK)
        *n = t.n_lanes;
    return st;
}
