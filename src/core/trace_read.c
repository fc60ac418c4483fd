/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/trace_read.h"

#include "core/file.h"
#include "core/mem.h"

#include <sqlite3.h>
#include <string.h>

const char *const dt_trace_threads[DT_RES_N] = {"compute", "send", "receive", "collective"};

struct reader {
    sqlite3 *db;
    const struct dt_run_ref *run;
    const struct dt_trace_sink *sink;
    struct dt_trace_run info;
    int64_t *messages; /* [n_lanes][n_lanes][2]: so far from a to b, sent and received */
};

static enum dt_status failed(const struct reader *t, struct dt_error *err)
{
    return dt_error_at(err, DT_ERR_DB, t->run->file, 0, 0, "runs file: %s",
                       t->db ? sqlite3_errmsg(t->db) : "out of memory");
}

static enum dt_status number(const struct reader *t, const char *sql, struct dt_error *err,
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

static enum dt_status open_run(struct reader *t, struct dt_error *err)
{
    int64_t runs = 0, ops = 0, lanes = 0, executed = 0;

    DT_TRY(dt_file_check(t->run->file, err));
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
    t->info.n_lanes = (int)lanes;
    t->info.executed = executed > 0;
    return DT_OK;
}

static enum dt_status read_lanes(struct reader *t, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;
    int rc;

    if (sqlite3_prepare_v2(
            t->db, "SELECT lane, module, replica, stage FROM lane WHERE run = ? ORDER BY lane", -1,
            &s, NULL) != SQLITE_OK)
        return failed(t, err);
    sqlite3_bind_int64(s, 1, t->run->id);
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

static enum dt_status damaged(const struct reader *t, int lane, struct dt_error *err)
{
    return dt_error_at(err, DT_ERR_INPUT, t->run->file, 0, 0,
                       "run %lld has an op of lane %d, of %d lanes", (long long)t->run->id, lane,
                       t->info.n_lanes);
}

static enum dt_status read_op(struct reader *t, sqlite3_stmt *s, struct dt_error *err)
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

    if (op.lane < 0 || op.lane >= t->info.n_lanes)
        return damaged(t, op.lane, err);
    if (message && (peer < 0 || peer >= t->info.n_lanes))
        return damaged(t, peer, err);
    op.kind = kind_of(op.name);
    if (message)
        number_message(t, peer, &op);
    t->sink->op(t->sink->ctx, &op);
    return DT_OK;
}

static enum dt_status read_ops(struct reader *t, struct dt_error *err)
{
    size_t n = (size_t)t->info.n_lanes;
    sqlite3_stmt *s = NULL;
    enum dt_status st = DT_OK;
    int rc = SQLITE_DONE;

    t->messages = dt_calloc(2 * n * n + 1, sizeof(*t->messages));
    if (!t->messages)
        return dt_error_nomem(err, "messages");
    if (sqlite3_prepare_v2(t->db,
                           "SELECT lane, kind, chunk, part, microbatch, bytes, begin_ns, end_ns, "
                           "peer_lane FROM op WHERE run = ? ORDER BY op",
                           -1, &s, NULL) != SQLITE_OK)
        return failed(t, err);
    sqlite3_bind_int64(s, 1, t->run->id);
    while (st == DT_OK && (rc = sqlite3_step(s)) == SQLITE_ROW)
        st = read_op(t, s, err);
    sqlite3_finalize(s);
    return st != DT_OK || rc == SQLITE_DONE ? st : failed(t, err);
}

/* Runs files of before have no such table, nor have simulated runs such rows. */
static enum dt_status read_data(struct reader *t, struct dt_error *err)
{
    sqlite3_stmt *s = NULL;
    int64_t tables = 0;
    int rc;

    DT_TRY(number(t,
                  "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('data', "
                  "'place')",
                  err, &tables));
    if (tables < 2)
        return DT_OK;
    if (sqlite3_prepare_v2(t->db,
                           "SELECT work, rank, batch, begin_ns, end_ns, (SELECT min(lane) FROM "
                           "place p WHERE p.run = d.run AND p.rank = d.rank) FROM data d WHERE "
                           "run = ? AND rank >= 0 AND begin_ns <= end_ns AND end_ns >= 0 ORDER BY "
                           "rank, begin_ns, end_ns",
                           -1, &s, NULL) != SQLITE_OK)
        return failed(t, err);
    sqlite3_bind_int64(s, 1, t->run->id);
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

    sqlite3_close(t.db);
    dt_free(t.messages);
    if (st == DT_OK && out)
        *out = t.info;
    return st;
}
