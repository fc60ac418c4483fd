/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/runs.h"

#include "base/mem.h"
#include "report/runs_open.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

/* op rows are keyed by the op key (DESIGN section 4a), so that `compare` joins runs on it. */
static const char schema[] =
    "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);"
    "CREATE TABLE IF NOT EXISTS run(id INTEGER PRIMARY KEY, kind TEXT NOT NULL, job_name TEXT NOT "
    "NULL,"
    " job TEXT, plan TEXT, report TEXT, started TEXT NOT NULL, version TEXT NOT NULL, seed INTEGER "
    "NOT NULL,"
    " program_digest TEXT, n_ops INTEGER, makespan_ns INTEGER);"
    "CREATE TABLE IF NOT EXISTS lane(run INTEGER NOT NULL REFERENCES run(id), lane INTEGER NOT "
    "NULL,"
    " module TEXT NOT NULL, replica INTEGER NOT NULL, stage INTEGER NOT NULL, first_gpu INTEGER "
    "NOT NULL,"
    " gpus INTEGER NOT NULL, n_ops INTEGER NOT NULL, busy_ns INTEGER NOT NULL, PRIMARY KEY(run, "
    "lane))"
    " WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS place(run INTEGER NOT NULL REFERENCES run(id), lane INTEGER NOT "
    "NULL,"
    " rank INTEGER NOT NULL, host TEXT, PRIMARY KEY(run, lane)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS memory(run INTEGER NOT NULL REFERENCES run(id), lane INTEGER NOT "
    "NULL,"
    " model TEXT NOT NULL, predicted_bytes INTEGER NOT NULL, allocated_bytes INTEGER, PRIMARY "
    "KEY(run, lane))"
    " WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS data(run INTEGER NOT NULL REFERENCES run(id), rank INTEGER NOT "
    "NULL,"
    " batch INTEGER NOT NULL, work TEXT NOT NULL, begin_ns INTEGER NOT NULL, end_ns INTEGER NOT "
    "NULL,"
    " PRIMARY KEY(run, rank, batch, work)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS fact(run INTEGER NOT NULL REFERENCES run(id), name TEXT NOT NULL,"
    " value TEXT NOT NULL, PRIMARY KEY(run, name)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS work(run INTEGER NOT NULL REFERENCES run(id), module TEXT NOT NULL,"
    " model_flops REAL NOT NULL, PRIMARY KEY(run, module)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS origin(run INTEGER PRIMARY KEY REFERENCES run(id), host TEXT,"
    " overrides TEXT);"
    "CREATE TABLE IF NOT EXISTS tag(name TEXT PRIMARY KEY, run INTEGER NOT NULL REFERENCES run(id))"
    " WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS op(run INTEGER NOT NULL REFERENCES run(id), op INTEGER NOT NULL,"
    " lane INTEGER NOT NULL, kind TEXT NOT NULL, chunk INTEGER NOT NULL, part INTEGER NOT NULL,"
    " microbatch INTEGER, peer_lane INTEGER, bytes INTEGER NOT NULL, begin_ns INTEGER NOT NULL,"
    " end_ns INTEGER NOT NULL, PRIMARY KEY(run, op)) WITHOUT ROWID;";

static enum dt_status prepare(const struct dt_runs_db *r, const char *sql, struct dt_error *err,
                              sqlite3_stmt **out)
{
    return sqlite3_prepare_v2(r->db, sql, -1, out, NULL) == SQLITE_OK ? DT_OK
                                                                      : dt_runs_error(r, err);
}

static enum dt_status exec(const struct dt_runs_db *r, const char *sql, struct dt_error *err)
{
    return sqlite3_exec(r->db, sql, NULL, NULL, NULL) == SQLITE_OK ? DT_OK : dt_runs_error(r, err);
}

enum dt_status dt_runs_make_tables(const struct dt_runs_db *r, struct dt_error *err)
{
    char sql[160];
    bool empty;

    DT_TRY(dt_runs_identify(r, "main", r->path, err, &empty));
    DT_TRY(exec(r, schema, err));
    snprintf(sql, sizeof sql,
             "PRAGMA application_id = %d;"
             "INSERT OR IGNORE INTO meta(key, value) VALUES('disttrain_runs_schema', '%d')",
             DT_RUNS_APPLICATION_ID, DT_RUNS_SCHEMA);
    return exec(r, sql, err);
}

/* One more than any that the file ever had: the number of a run that was removed is not given again. */
static enum dt_status next_number(const struct dt_runs_db *d, struct dt_error *err, int64_t *id)
{
    static const char sql[] = "SELECT max(coalesce((SELECT max(id) FROM run), 0), coalesce((SELECT "
                              "CAST(value AS INTEGER) "
                              "FROM meta WHERE key = 'last_run'), 0)) + 1";
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;

    DT_TRY(prepare(d, sql, err, &s));
    if (sqlite3_step(s) == SQLITE_ROW)
        *id = sqlite3_column_int64(s, 0);
    else
        st = dt_runs_error(d, err);
    sqlite3_finalize(s);
    return st;
}

static enum dt_status add_run(const struct dt_runs_db *d, const struct dt_run_record *r,
                              struct dt_error *err, int64_t *id)
{
    char digest[24], *plan = NULL;
    sqlite3_stmt *s;
    DT_TRY(next_number(d, err, id));
    if (r->plan)
        DT_TRY(dt_plan_to_json(r->plan, err, &plan));
    enum dt_status st =
        prepare(d,
                "INSERT INTO run(kind,job_name,job,plan,report,started,version,seed,program_digest,"
                "n_ops,makespan_ns,id) VALUES(?,?,?,?,?,?,?,?,?,?,?,?)",
                err, &s);
    if (st != DT_OK) {
        dt_free(plan);
        return st;
    }
    snprintf(digest, sizeof digest, "%016llx",
             r->program ? (unsigned long long)dt_program_digest(r->program) : 0ull);
    sqlite3_bind_text(s, 1, r->kind == DT_RUN_SIMULATED ? "simulated" : "executed", -1,
                      SQLITE_STATIC);
    sqlite3_bind_text(s, 2, r->job_name, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, r->job_json, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 4, plan, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 5, r->report_json, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 6, r->started, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 7, r->version, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 8, (sqlite3_int64)r->seed);
    sqlite3_bind_text(s, 9, digest, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 10, r->program ? r->program->n_ops : 0);
    sqlite3_bind_int64(s, 11, r->timeline ? r->timeline->makespan_ns : 0);
    sqlite3_bind_int64(s, 12, *id);
    if (sqlite3_step(s) != SQLITE_DONE)
        st = dt_runs_error(d, err);
    sqlite3_finalize(s);
    dt_free(plan);
    return st;
}

static int64_t lane_busy_ns(const struct dt_run_record *r, const struct dt_lane *l)
{
    int64_t busy = 0;
    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (dt_op_resource((enum dt_op_kind)r->program->ops[i].kind) == DT_RES_COMPUTE)
            busy += r->timeline->end_ns[i] - r->timeline->begin_ns[i];
    return busy;
}

static enum dt_status add_lanes(const struct dt_runs_db *d, const struct dt_run_record *r,
                                int64_t id, struct dt_error *err)
{
    sqlite3_stmt *s;
    DT_TRY(prepare(d,
                   "INSERT INTO lane(run,lane,module,replica,stage,first_gpu,gpus,n_ops,busy_ns) "
                   "VALUES(?,?,?,?,?,?,?,?,?)",
                   err, &s));
    enum dt_status st = DT_OK;
    for (int k = 0; k < r->program->n_lanes && st == DT_OK; k++) {
        const struct dt_lane *l = &r->program->lanes[k];
        sqlite3_bind_int64(s, 1, id);
        sqlite3_bind_int(s, 2, k);
        sqlite3_bind_text(s, 3, r->model->modules[l->module].name, -1, SQLITE_STATIC);
        sqlite3_bind_int(s, 4, l->replica);
        sqlite3_bind_int(s, 5, l->stage);
        sqlite3_bind_int64(s, 6, l->first_gpu);
        sqlite3_bind_int(s, 7, l->gpus);
        sqlite3_bind_int64(s, 8, l->n);
        sqlite3_bind_int64(s, 9, lane_busy_ns(r, l));
        if (sqlite3_step(s) != SQLITE_DONE)
            st = dt_runs_error(d, err);
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    return st;
}

/* Where lanes were executed. */
static enum dt_status add_places(const struct dt_runs_db *d, const struct dt_run_record *r,
                                 int64_t id, struct dt_error *err)
{
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;

    DT_TRY(prepare(d, "INSERT INTO place(run,lane,rank,host) VALUES(?,?,?,?)", err, &s));
    for (int k = 0; k < r->program->n_lanes && st == DT_OK; k++) {
        sqlite3_bind_int64(s, 1, id);
        sqlite3_bind_int(s, 2, k);
        sqlite3_bind_int(s, 3, r->lane_rank[k]);
        sqlite3_bind_text(s, 4, r->rank_host ? r->rank_host[r->lane_rank[k]] : NULL, -1,
                          SQLITE_STATIC);
        if (sqlite3_step(s) != SQLITE_DONE)
            st = dt_runs_error(d, err);
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    return st;
}

/* What lanes take. */
static enum dt_status add_memory(const struct dt_runs_db *d, const struct dt_run_record *r,
                                 int64_t id, struct dt_error *err)
{
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;

    DT_TRY(prepare(
        d, "INSERT INTO memory(run,lane,model,predicted_bytes,allocated_bytes) VALUES(?,?,?,?,?)",
        err, &s));
    for (int k = 0; k < r->program->n_lanes && st == DT_OK; k++) {
        sqlite3_bind_int64(s, 1, id);
        sqlite3_bind_int(s, 2, k);
        sqlite3_bind_text(s, 3, r->memory_of, -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 4, r->lane_memory[k].predicted_bytes);
        if (r->lane_memory[k].allocated_bytes < 0)
            sqlite3_bind_null(s, 5);
        else
            sqlite3_bind_int64(s, 5, r->lane_memory[k].allocated_bytes);
        if (sqlite3_step(s) != SQLITE_DONE)
            st = dt_runs_error(d, err);
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    return st;
}

/* What ranks did beside the iteration. */
static enum dt_status add_data(const struct dt_runs_db *d, const struct dt_run_record *r,
                               int64_t id, struct dt_error *err)
{
    static const char *const names[DT_DATA_WORK_N] = {"load", "order"};
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;

    DT_TRY(prepare(d, "INSERT INTO data(run,rank,batch,work,begin_ns,end_ns) VALUES(?,?,?,?,?,?)",
                   err, &s));
    for (int64_t k = 0; k < r->n_data && st == DT_OK; k++) {
        sqlite3_bind_int64(s, 1, id);
        sqlite3_bind_int(s, 2, r->data[k].rank);
        sqlite3_bind_int64(s, 3, r->data[k].batch);
        sqlite3_bind_text(s, 4, names[r->data[k].work], -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 5, r->data[k].begin_ns);
        sqlite3_bind_int64(s, 6, r->data[k].end_ns);
        if (sqlite3_step(s) != SQLITE_DONE)
            st = dt_runs_error(d, err);
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    return st;
}

/* What the run was of. */
static enum dt_status add_facts(const struct dt_runs_db *d, const struct dt_run_facts *f,
                                int64_t id, struct dt_error *err)
{
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;

    DT_TRY(prepare(d, "INSERT INTO fact(run,name,value) VALUES(?,?,?)", err, &s));
    for (int k = 0; k < f->n && st == DT_OK; k++) {
        sqlite3_bind_int64(s, 1, id);
        sqlite3_bind_text(s, 2, f->fact[k].name, -1, SQLITE_STATIC);
        sqlite3_bind_text(s, 3, f->fact[k].value, -1, SQLITE_STATIC);
        if (sqlite3_step(s) != SQLITE_DONE)
            st = dt_runs_error(d, err);
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    return st;
}

/* How much it had to do. */
static enum dt_status add_work(const struct dt_runs_db *d, const struct dt_run_record *r,
                               int64_t id, struct dt_error *err)
{
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;

    DT_TRY(prepare(d, "INSERT INTO work(run,module,model_flops) VALUES(?,?,?)", err, &s));
    for (int k = 0; k < r->model->n_modules && st == DT_OK; k++) {
        sqlite3_bind_int64(s, 1, id);
        sqlite3_bind_text(s, 2, r->model->modules[k].name, -1, SQLITE_STATIC);
        sqlite3_bind_double(s, 3, r->model_flops[k]);
        if (sqlite3_step(s) != SQLITE_DONE)
            st = dt_runs_error(d, err);
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    return st;
}

/* Where it comes from. */
static enum dt_status add_origin(const struct dt_runs_db *d, const struct dt_run_record *r,
                                 int64_t id, struct dt_error *err)
{
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;

    DT_TRY(prepare(d, "INSERT INTO origin(run,host,overrides) VALUES(?,?,?)", err, &s));
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_text(s, 2, r->host, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, r->overrides, -1, SQLITE_STATIC);
    if (sqlite3_step(s) != SQLITE_DONE)
        st = dt_runs_error(d, err);
    sqlite3_finalize(s);
    return st;
}

static void bind_op(sqlite3_stmt *s, const struct dt_run_record *r, int64_t id, uint32_t i)
{
    const struct dt_op *o = &r->program->ops[i];
    bool transfer = o->kind == DT_OP_SEND || o->kind == DT_OP_RECV;
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_int64(s, 2, i);
    sqlite3_bind_int64(s, 3, o->lane);
    sqlite3_bind_text(s, 4, dt_op_kind_names[o->kind], -1, SQLITE_STATIC);
    sqlite3_bind_int(s, 5, o->chunk);
    sqlite3_bind_int(s, 6, o->part);
    if (o->mb == DT_NONE)
        sqlite3_bind_null(s, 7);
    else
        sqlite3_bind_int64(s, 7, o->mb);
    if (transfer)
        sqlite3_bind_int64(s, 8, r->program->ops[o->peer].lane);
    else
        sqlite3_bind_null(s, 8);
    sqlite3_bind_int64(s, 9, (sqlite3_int64)o->bytes);
    sqlite3_bind_int64(s, 10, r->timeline->begin_ns[i]);
    sqlite3_bind_int64(s, 11, r->timeline->end_ns[i]);
}

static enum dt_status add_ops(const struct dt_runs_db *d, const struct dt_run_record *r, int64_t id,
                              struct dt_error *err)
{
    sqlite3_stmt *s;
    DT_TRY(prepare(
        d,
        "INSERT INTO op(run,op,lane,kind,chunk,part,microbatch,peer_lane,bytes,begin_ns,end_ns) "
        "VALUES(?,?,?,?,?,?,?,?,?,?,?)",
        err, &s));
    enum dt_status st = DT_OK;
    for (uint32_t i = 0; i < r->program->n_ops && st == DT_OK; i++) {
        bind_op(s, r, id, i);
        if (sqlite3_step(s) != SQLITE_DONE)
            st = dt_runs_error(d, err);
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    return st;
}

static enum dt_status add_all(const struct dt_runs_db *d, const struct dt_run_record *r,
                              struct dt_error *err, int64_t *id)
{
    DT_TRY(dt_runs_make_tables(d, err));
    DT_TRY(add_run(d, r, err, id));
    if (r->program && r->timeline && r->model)
        DT_TRY(add_lanes(d, r, *id, err));
    if (r->program && r->lane_rank)
        DT_TRY(add_places(d, r, *id, err));
    if (r->program && r->lane_memory)
        DT_TRY(add_memory(d, r, *id, err));
    if (r->n_data > 0)
        DT_TRY(add_data(d, r, *id, err));
    if (r->facts)
        DT_TRY(add_facts(d, r->facts, *id, err));
    if (r->model && r->model_flops)
        DT_TRY(add_work(d, r, *id, err));
    if (r->host || r->overrides)
        DT_TRY(add_origin(d, r, *id, err));
    if (r->program && r->timeline && r->ops)
        DT_TRY(add_ops(d, r, *id, err));
    return exec(d, "COMMIT", err);
}

enum dt_status dt_runs_add(const char *path, const struct dt_run_record *run, struct dt_error *err,
                           int64_t *run_id)
{
    struct dt_runs_db d;
    int64_t id = 0;
    enum dt_status st;

    DT_TRY(dt_runs_open_write(&d, path, err));
    st = add_all(&d, run, err, &id);
    if (st != DT_OK)
        sqlite3_exec(d.db, "ROLLBACK", NULL, NULL, NULL);
    dt_runs_close(&d);
    if (st == DT_OK)
        *run_id = id;
    return st;
}
