/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A view of a run that the runs file holds. */
#include "report/run_view.h"

#include "base/mem.h"
#include "report/runs_open.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

static enum dt_status prepare(const struct dt_runs_db *r, const char *sql, int64_t run,
                              struct dt_error *err, sqlite3_stmt **out)
{
    if (sqlite3_prepare_v2(r->db, sql, -1, out, NULL) != SQLITE_OK)
        return dt_runs_error(r, err);
    sqlite3_bind_int64(*out, 1, run);
    return DT_OK;
}

/* Modules are numbered as their lanes come. */
static int module_of(struct dt_run_view *v, const char *name)
{
    for (int m = 0; m < v->n_modules; m++)
        if (strcmp(v->module[m].name, name) == 0)
            return m;
    if (v->n_modules == DT_MAX_MODULES || strlen(name) >= sizeof v->module[0].name)
        return -1;
    snprintf(v->module[v->n_modules].name, sizeof v->module[0].name, "%s", name);
    return v->n_modules++;
}

static enum dt_status read_lanes(const struct dt_runs_db *r, int64_t run, struct dt_error *err,
                                 struct dt_run_view *v)
{
    sqlite3_stmt *s = NULL;
    int rc, k = 0, module = 0;

    DT_TRY(prepare(r,
                   "SELECT module, replica, stage, first_gpu, gpus FROM lane WHERE run = ? "
                   "ORDER BY lane",
                   run, err, &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW && k < v->n_lanes && module >= 0) {
        module = module_of(v, (const char *)sqlite3_column_text(s, 0));
        v->lane[k++] = (struct dt_run_view_lane){.module = module,
                                                 .replica = sqlite3_column_int(s, 1),
                                                 .stage = sqlite3_column_int(s, 2),
                                                 .first_gpu = sqlite3_column_int64(s, 3),
                                                 .gpus = sqlite3_column_int(s, 4)};
    }
    sqlite3_finalize(s);
    if (module < 0)
        return dt_error_at(err, DT_ERR_INPUT, r->path, 0, 0,
                           "runs file: run %lld has more than %d modules, or one of a long name",
                           (long long)run, DT_MAX_MODULES);
    return rc == SQLITE_DONE ? DT_OK : dt_runs_error(r, err);
}

/* Modules that the plan lays on another's GPUs.  A run without a plan, or with one that is no JSON, has lanes all the same. */
static enum dt_status read_guests(const struct dt_runs_db *r, int64_t run, struct dt_error *err,
                                  struct dt_run_view *v)
{
    sqlite3_stmt *s = NULL;
    int rc;

    DT_TRY(prepare(r,
                   "SELECT json_extract(value, '$.name') FROM (SELECT CASE WHEN json_valid(plan) "
                   "THEN plan END doc FROM run WHERE id = ?) p, json_each(p.doc, '$.modules') "
                   "WHERE json_extract(value, '$.with') IS NOT NULL",
                   run, err, &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(s, 0);

        for (int m = 0; name && m < v->n_modules; m++)
            v->module[m].guest |= strcmp(v->module[m].name, name) == 0;
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? DT_OK : dt_runs_error(r, err);
}

static enum dt_op_kind kind_of(const char *name)
{
    for (int k = 0; k < DT_OP_KIND_N; k++)
        if (strcmp(dt_op_kind_names[k], name) == 0)
            return (enum dt_op_kind)k;
    return DT_OP_FETCH;
}

/* Lane by lane, so that the ops of each follow one another whatever the file's order is. */
static enum dt_status read_ops(const struct dt_runs_db *r, int64_t run, struct dt_error *err,
                               struct dt_run_view *v)
{
    sqlite3_stmt *s = NULL;
    uint32_t i = 0;
    int rc;

    DT_TRY(prepare(r,
                   "SELECT lane, kind, chunk, part, microbatch, peer_lane, bytes, begin_ns, end_ns "
                   "FROM op WHERE run = ? ORDER BY lane, op",
                   run, err, &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW && i < v->n_ops) {
        struct dt_run_view_lane *l = &v->lane[sqlite3_column_int(s, 0)];

        if (l->n++ == 0)
            l->first = i;
        v->op[i++] = (struct dt_run_view_op){
            .kind = (uint8_t)kind_of((const char *)sqlite3_column_text(s, 1)),
            .chunk = (uint8_t)sqlite3_column_int(s, 2),
            .part = (uint8_t)sqlite3_column_int(s, 3),
            .mb = sqlite3_column_type(s, 4) == SQLITE_NULL ? -1 : sqlite3_column_int(s, 4),
            .peer = sqlite3_column_type(s, 5) == SQLITE_NULL ? -1 : sqlite3_column_int(s, 5),
            .bytes = sqlite3_column_int64(s, 6),
            .begin_ns = sqlite3_column_int64(s, 7),
            .end_ns = sqlite3_column_int64(s, 8)};
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? DT_OK : dt_runs_error(r, err);
}

static enum dt_status read_makespan(const struct dt_runs_db *r, int64_t run, struct dt_error *err,
                                    struct dt_run_view *v)
{
    sqlite3_stmt *s = NULL;
    int rc;

    DT_TRY(prepare(r, "SELECT makespan_ns FROM run WHERE id = ?", run, err, &s));
    rc = sqlite3_step(s);
    v->makespan_ns = rc == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    sqlite3_finalize(s);
    return rc == SQLITE_ROW ? DT_OK : dt_runs_error(r, err);
}

static enum dt_status read_all(struct dt_runs_db *r, const struct dt_run_ref *run,
                               struct dt_error *err, struct dt_run_view *v)
{
    int64_t lanes = 0, ops = 0;

    DT_TRY(dt_runs_check(r, "main", run->file, run->id, err, &lanes, &ops));
    v->n_lanes = (int)lanes;
    v->n_ops = (uint32_t)ops;
    v->lane = dt_calloc((size_t)lanes + 1, sizeof *v->lane);
    v->op = dt_calloc((size_t)ops + 1, sizeof *v->op);
    if (!v->lane || !v->op)
        return dt_error_nomem(err, "a picture of the run");
    DT_TRY(read_lanes(r, run->id, err, v));
    DT_TRY(read_guests(r, run->id, err, v));
    DT_TRY(read_ops(r, run->id, err, v));
    DT_TRY(read_makespan(r, run->id, err, v));
    return dt_run_view_seat(v, err);
}

enum dt_status dt_run_view_read(const struct dt_run_ref *run, struct dt_error *err,
                                struct dt_run_view *out)
{
    struct dt_run_view v = {0};
    struct dt_runs_db r;
    enum dt_status st;

    DT_TRY(dt_runs_open(&r, run->file, err));
    st = read_all(&r, run, err, &v);
    dt_runs_close(&r);
    if (st == DT_OK)
        *out = v;
    else
        dt_run_view_free(&v);
    return st;
}
