/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/trace_read.h"

#include "base/mem.h"
#include "report/runs_open.h"

#include <sqlite3.h>
#include <string.h>

const char *const dt_trace_threads[DT_RES_N] = {"compute", "send", "receive", "collective",
                                                "host link"};

struct reader {
    struct dt_runs_db file;
    const struct dt_run_ref *run;
    const struct dt_trace_sink *sink;
    struct dt_trace_run info;
    int64_t *messages; /* [n_lanes][n_lanes][2]: so far from a to b, sent and received */
};

static enum dt_status failed(const struct reader *t, struct dt_error *err)
{
    return dt_runs_error(&t->file, err);
}

static enum dt_status prepare(const struct reader *t, const char *sql, struct dt_error *err,
                              sqlite3_stmt **out)
{
    if (sqlite3_prepare_v2(t->file.db, sql, -1, out, NULL) != SQLITE_OK)
        return failed(t, err);
    sqlite3_bind_int64(*out, 1, t->run->id);
    return DT_OK;
}

static enum dt_status is_executed(const struct reader *t, struct dt_error *err, bool *out)
{
    sqlite3_stmt *s = NULL;
    int rc;

    DT_TRY(prepare(t, "SELECT kind = 'executed' FROM run WHERE id = ?", err, &s));
    rc = sqlite3_step(s);
    *out = rc == SQLITE_ROW && sqlite3_column_int(s, 0) != 0;
    sqlite3_finalize(s);
    return rc == SQLITE_ROW ? DT_OK : failed(t, err);
}

/* After this every value of the run is what the schema says. */
static enum dt_status open_run(struct reader *t, struct dt_error *err)
{
    int64_t ops = 0, lanes = 0;

    DT_TRY(dt_runs_open(&t->file, t->run->file, err));
    DT_TRY(dt_runs_check(&t->file, "main", t->run->file, t->run->id, err, &lanes, &ops));
    if (ops == 0)
        return dt_error_at(err, DT_ERR_INPUT, t->run->file, 0, 0,
                           "run %lld has kept no ops; simulate again with --timeline all",
                           (long long)t->run->id);
    t->info.n_lanes = (int)lanes;
    return is_executed(t, err, &t->info.executed);
}

static enum dt_status read_lanes(struct reader *t, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;
    int rc;

    DT_TRY(prepare(t, "SELECT lane, module, replica, stage FROM lane WHERE run = ? ORDER BY lane",
                   err, &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW)
        t->sink->lane(t->sink->ctx, sqlite3_column_int(s, 0),
                      (const char *)sqlite3_column_text(s, 1), sqlite3_column_int(s, 2),
                      sqlite3_column_int(s, 3));
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? DT_OK : failed(t, err);
}

static enum dt_op_kind kind_of(const char *name)
{
    for (int k = 0; k < DT_OP_KIND_N; k++)
        if (strcmp(dt_op_kind_names[k], name) == 0)
            return (enum dt_op_kind)k;
    return DT_OP_FETCH;
}

/* Messages between two lanes meet in their order on both sides (dt_program_check). */
static void number_message(struct reader *t, int peer, struct dt_trace_op *op)
{
    bool send = op->kind == DT_OP_SEND;
    size_t pair;

    op->from = send ? op->lane : peer;
    op->to = send ? peer : op->lane;
    pair = (size_t)op->from * (size_t)t->info.n_lanes + (size_t)op->to;
    op->nth = t->messages[2 * pair + (send ? 0 : 1)]++;
}

static void read_op(struct reader *t, sqlite3_stmt *s)
{
    bool mb = sqlite3_column_type(s, 4) != SQLITE_NULL;
    bool message = sqlite3_column_type(s, 8) != SQLITE_NULL;
    int peer = sqlite3_column_int(s, 8);
    struct dt_trace_op op = {.name = (const char *)sqlite3_column_text(s, 1),
                             .lane = sqlite3_column_int(s, 0),
                             .chunk = sqlite3_column_int(s, 2),
                             .part = sqlite3_column_int(s, 3),
                             .mb = mb ? sqlite3_column_int(s, 4) : -1,
                             .bytes = sqlite3_column_int64(s, 5),
                             .begin_ns = sqlite3_column_int64(s, 6),
                             .end_ns = sqlite3_column_int64(s, 7),
                             .from = -1,
                             .to = -1};

    op.kind = kind_of(op.name);
    if (message)
        number_message(t, peer, &op);
    t->sink->op(t->sink->ctx, &op);
}

static enum dt_status read_ops(struct reader *t, struct dt_error *err)
{
    size_t n = (size_t)t->info.n_lanes;
    sqlite3_stmt *s = NULL;
    int rc;

    t->messages = dt_calloc(2 * n * n + 1, sizeof(*t->messages));
    if (!t->messages)
        return dt_error_nomem(err, "messages");
    DT_TRY(prepare(t,
                   "SELECT lane, kind, chunk, part, microbatch, bytes, begin_ns, end_ns, peer_lane "
                   "FROM op WHERE run = ? ORDER BY op",
                   err, &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW)
        read_op(t, s);
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? DT_OK : failed(t, err);
}

/* Runs files of before have no such table, nor have simulated runs such rows. */
static enum dt_status read_data(struct reader *t, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;
    int rc;

    if (!dt_runs_has_table(&t->file, "main", "data") ||
        !dt_runs_has_table(&t->file, "main", "place"))
        return DT_OK;
    DT_TRY(prepare(t,
                   "SELECT work, rank, batch, begin_ns, end_ns, (SELECT min(lane) FROM place p "
                   "WHERE p.run = d.run AND p.rank = d.rank) FROM data d WHERE run = ? AND "
                   "begin_ns <= end_ns AND end_ns >= 0 ORDER BY rank, begin_ns, end_ns",
                   err, &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        bool hosts = sqlite3_column_type(s, 5) != SQLITE_NULL;
        struct dt_trace_data d = {.work = (const char *)sqlite3_column_text(s, 0),
                                  .rank = sqlite3_column_int(s, 1),
                                  .batch = sqlite3_column_int64(s, 2),
                                  .begin_ns = sqlite3_column_int64(s, 3),
                                  .end_ns = sqlite3_column_int64(s, 4),
                                  .lane = hosts ? sqlite3_column_int(s, 5) : -1};

        d.shown_ns = d.begin_ns > 0 ? d.begin_ns : 0;
        t->sink->data(t->sink->ctx, &d);
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? DT_OK : failed(t, err);
}

static enum dt_status read_all(struct reader *t, struct dt_error *err)
{
    DT_TRY(open_run(t, err));
    if (!t->sink)
        return DT_OK;
    DT_TRY(t->sink->begin(t->sink->ctx, &t->info, err));
    DT_TRY(read_lanes(t, err));
    DT_TRY(read_ops(t, err));
    return read_data(t, err);
}

enum dt_status dt_trace_read(const struct dt_run_ref *run, const struct dt_trace_sink *sink,
                             struct dt_error *err, struct dt_trace_run *out)
{
    struct reader t = {.run = run, .sink = sink};
    enum dt_status st = read_all(&t, err);

    dt_runs_close(&t.file);
    dt_free(t.messages);
    if (st == DT_OK && out)
        *out = t.info;
    return st;
}
