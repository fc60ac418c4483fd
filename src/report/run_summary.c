/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/run_summary.h"

#include "base/mem.h"
#include "base/number.h"
#include "report/runs_open.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW(name, unit, help) {#name, unit, help},
const struct dt_run_metric_row dt_run_metric_rows[] = {DT_RUN_METRICS(ROW){NULL, NULL, NULL}};
const struct dt_run_metric_row dt_run_module_metric_rows[] = {
    DT_RUN_MODULE_METRICS(ROW){NULL, NULL, NULL}};
#undef ROW

struct lane {
    int module;
    int64_t first_gpu, gpus, busy_ns;
};
struct reader {
    const struct dt_runs_db *db;
    const char *schema, *path;
    int64_t id;
    struct dt_error *err;
    struct dt_run_summary *out;
    struct lane *lane;
    int n_lanes;
    size_t cap;
};

static enum dt_status failed(const struct reader *r)
{
    struct dt_runs_db named = *r->db;

    named.path = r->path;
    return dt_runs_error(&named, r->err);
}

/* `format` has the schema as %1$s; ?1 is the run. */
static enum dt_status prepare(const struct reader *r, const char *format, sqlite3_stmt **out)
{
    char sql[2048];

    snprintf(sql, sizeof(sql), format, r->schema);
    if (sqlite3_prepare_v2(r->db->db, sql, -1, out, NULL) != SQLITE_OK)
        return failed(r);
    sqlite3_bind_int64(*out, 1, r->id);
    return DT_OK;
}

/* After the last row. */
static enum dt_status done(const struct reader *r, sqlite3_stmt *s, int rc, enum dt_status st)
{
    if (st == DT_OK && rc != SQLITE_DONE)
        st = failed(r);
    sqlite3_finalize(s);
    return st;
}

/* The column's number; NAN where it holds none. */
static double value(sqlite3_stmt *s, int column)
{
    int type = sqlite3_column_type(s, column);
    double v = sqlite3_column_double(s, column);

    return (type == SQLITE_INTEGER || type == SQLITE_FLOAT) && isfinite(v) ? v : NAN;
}

void dt_run_summary_init(struct dt_run_summary *s)
{
    memset(s, 0, sizeof(*s));
    s->about.mfu = NAN;
    for (int k = 0; k < DT_RUN_METRICS_N; k++)
        s->v[k] = NAN;
}

/* The module of this name, made where there is none; NULL where there are too many. */
static struct dt_run_module *module(struct dt_run_summary *s, const char *name)
{
    struct dt_run_module *m;

    for (int i = 0; i < s->n_modules; i++)
        if (strcmp(s->module[i].name, name) == 0)
            return &s->module[i];
    if (s->n_modules == DT_MAX_MODULES)
        return NULL;
    m = &s->module[s->n_modules++];
    memset(m, 0, sizeof(*m));
    snprintf(m->name, sizeof(m->name), "%s", name);
    for (int k = 0; k < DT_RUN_MODULE_METRICS_N; k++)
        m->v[k] = NAN;
    return m;
}

static struct dt_run_module *module_at(const struct reader *r, sqlite3_stmt *s, int column)
{
    char name[DT_NAME_MAX];

    dt_run_about_copy(s, column, name, sizeof(name));
    return name[0] ? module(r->out, name) : NULL;
}

static enum dt_status too_many(const struct reader *r)
{
    return dt_error_at(r->err, DT_ERR_INPUT, r->path, 0, 0,
                       "runs file: damaged: run %lld has more than %d modules", (long long)r->id,
                       DT_MAX_MODULES);
}

/* ---- lanes ---- */

static enum dt_status read_lanes(struct reader *r)
{
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;
    int rc;

    DT_TRY(prepare(r,
                   "SELECT module, replica, stage, first_gpu, gpus, busy_ns FROM %s.lane "
                   "WHERE run = ?1 ORDER BY lane",
                   &s));
    while (st == DT_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_module *m = module_at(r, s, 0);
        int replica = sqlite3_column_int(s, 1), stage = sqlite3_column_int(s, 2);

        if (!m)
            st = too_many(r);
        else if (dt_grow((void **)&r->lane, &r->cap, (size_t)r->n_lanes + 1, sizeof(*r->lane)))
            st = dt_error_nomem(r->err, "lanes");
        if (st != DT_OK)
            break;
        m->dp = replica >= m->dp ? replica + 1 : m->dp;
        m->pp = stage >= m->pp ? stage + 1 : m->pp;
        r->lane[r->n_lanes++] =
            (struct lane){(int)(m - r->out->module), sqlite3_column_int64(s, 3),
                          sqlite3_column_int64(s, 4), sqlite3_column_int64(s, 5)};
    }
    return done(r, s, rc, st);
}

static int by_gpu(const void *a, const void *b)
{
    const struct lane *x = a, *y = b;

    return x->first_gpu < y->first_gpu ? -1 : x->first_gpu > y->first_gpu;
}

/* Lanes may share GPUs: of each, what no lane before it has.  `of` -1: of all modules. */
static void occupy(const struct reader *r, int of, double *gpus, double *busy_s)
{
    int64_t seen = 0, n = 0;

    *busy_s = 0;
    for (int i = 0; i < r->n_lanes; i++) {
        const struct lane *l = &r->lane[i];
        int64_t from = l->first_gpu > seen ? l->first_gpu : seen, past = l->first_gpu + l->gpus;

        if (of >= 0 && l->module != of)
            continue;
        n += past > from ? past - from : 0;
        seen = past > seen ? past : seen;
        *busy_s += 1e-9 * (double)l->busy_ns * (double)l->gpus;
    }
    *gpus = (double)n;
}

static void use_lanes(struct reader *r)
{
    struct dt_run_summary *o = r->out;
    double gpus, busy, iteration = o->about.makespan_s;

    if (r->n_lanes == 0)
        return;
    qsort(r->lane, (size_t)r->n_lanes, sizeof(*r->lane), by_gpu);
    occupy(r, -1, &gpus, &busy);
    o->v[DT_RUN_gpus_used] = gpus;
    if (iteration > 0)
        o->v[DT_RUN_bubble_share] = 1 - busy / (gpus * iteration);
    for (int i = 0; i < o->n_modules; i++) {
        occupy(r, i, &gpus, &busy);
        o->module[i].v[DT_RUN_OF_gpus] = gpus;
        if (iteration > 0 && gpus > 0)
            o->module[i].v[DT_RUN_OF_busy_share] = busy / (gpus * iteration);
    }
}

/* ---- ops ---- */

static void add_time(struct dt_run_module *m, enum dt_op_kind kind, double gpu_s)
{
    int k;

    switch (kind) {
    case DT_OP_FORWARD:
        k = DT_RUN_OF_forward_gpu_s;
        break;
    case DT_OP_BACKWARD:
    case DT_OP_WEIGHT_GRAD:
        k = DT_RUN_OF_backward_gpu_s;
        break;
    case DT_OP_STEP:
        k = DT_RUN_OF_step_gpu_s;
        break;
    case DT_OP_SEND:
    case DT_OP_GRAD_SYNC:
    case DT_OP_GRAD_NORM:
    case DT_OP_PARAM_GATHER:
        k = DT_RUN_OF_comm_gpu_s;
        break;
    case DT_OP_RECV: /* the same time again */
    case DT_OP_FETCH:
    case DT_OP_OFFLOAD: /* no GPU's: a copy engine's */
    case DT_OP_RELOAD:
    case DT_OP_KIND_N:
        return;
    }
    m->v[k] = (isnan(m->v[k]) ? 0 : m->v[k]) + gpu_s;
}

static enum dt_status read_ops(struct reader *r)
{
    sqlite3_stmt *s;
    int rc;

    DT_TRY(prepare(r,
                   "SELECT l.module, o.kind, count(*), sum((o.end_ns - o.begin_ns) * 1e-9 * l.gpus)"
                   " FROM %1$s.op o JOIN %1$s.lane l ON l.run = o.run AND l.lane = o.lane "
                   "WHERE o.run = ?1 GROUP BY l.module, o.kind",
                   &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_module *m = module_at(r, s, 0);
        const char *kind = (const char *)sqlite3_column_text(s, 1);

        for (int k = 0; m && kind && k < DT_OP_KIND_N; k++)
            if (strcmp(kind, dt_op_kind_names[k]) == 0) {
                m->n_ops[k] = sqlite3_column_int64(s, 2);
                r->out->kept_ops += m->n_ops[k];
                add_time(m, (enum dt_op_kind)k, sqlite3_column_double(s, 3));
            }
    }
    return done(r, s, rc, DT_OK);
}

/* ---- what the plan and the report say ---- */

/* A run without a report, or with one that is no JSON, has lanes all the same. */
#define EACH(column, path)                                                                         \
    " FROM (SELECT CASE WHEN json_valid(" column ") THEN " column                                  \
    " END doc FROM %s.run WHERE id = ?1) r, json_each(r.doc, '$." path "')"
#define OF(key) "json_extract(value, '$." key "')"

/* "with llm: tp4 pp1 dp320 cp2": as people write it, 1 left out but for tp, pp, dp. */
static void layout_text(sqlite3_stmt *s, char *buf, size_t size)
{
    static const char *const names[] = {"tp", "pp", "dp", "cp", "ep", "ip", "vpp"};
    char with[DT_NAME_MAX];
    size_t n = 0;

    dt_run_about_copy(s, 1, with, sizeof(with));
    if (with[0])
        n = (size_t)snprintf(buf, size, "with %s: ", with);
    for (int k = 0; k < 7 && n < size; k++)
        if (k < 3 || sqlite3_column_int(s, 2 + k) > 1)
            n += (size_t)snprintf(buf + n, size - n, "%s%s%d", k ? " " : "", names[k],
                                  sqlite3_column_int(s, 2 + k));
}

static enum dt_status read_plan(struct reader *r)
{
    sqlite3_stmt *s;
    int rc;

    DT_TRY(prepare(r,
                   "SELECT " OF("name") ", " OF("with") ", " OF("tp") ", " OF("pp") ", " OF(
                       "dp") ", " OF("cp") ", " OF("ep") ", " OF("ip") ", " OF("vpp")
                       EACH("plan", "modules"),
                   &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_module *m = module_at(r, s, 0);

        if (m)
            layout_text(s, m->layout, sizeof(m->layout));
    }
    return done(r, s, rc, DT_OK);
}

/* The work: of its table, or else of the report. */
static enum dt_status read_work(struct reader *r)
{
    sqlite3_stmt *s;
    int rc;

    DT_TRY(prepare(r, "SELECT " OF("name") ", " OF("model_flops") EACH("report", "modules"), &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_module *m = module_at(r, s, 0);

        if (m)
            m->v[DT_RUN_OF_model_flops] = value(s, 1);
    }
    DT_TRY(done(r, s, rc, DT_OK));
    if (!dt_runs_has_table(r->db, r->schema, "work"))
        return DT_OK;
    DT_TRY(prepare(r, "SELECT module, model_flops FROM %s.work WHERE run = ?1", &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_module *m = module_at(r, s, 0);

        if (m)
            m->v[DT_RUN_OF_model_flops] = value(s, 1);
    }
    return done(r, s, rc, DT_OK);
}

static enum dt_status read_memory(struct reader *r)
{
    double *most = &r->out->v[DT_RUN_memory_bytes_max];
    sqlite3_stmt *s;
    int rc;

    if (!dt_runs_has_table(r->db, r->schema, "memory"))
        return DT_OK;
    DT_TRY(prepare(r,
                   "SELECT l.module, m.model, max(coalesce(m.allocated_bytes, m.predicted_bytes)) "
                   "FROM %1$s.memory m JOIN %1$s.lane l ON l.run = m.run AND l.lane = m.lane "
                   "WHERE m.run = ?1 GROUP BY l.module, m.model",
                   &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_module *m = module_at(r, s, 0);
        double bytes = value(s, 2);

        dt_run_about_copy(s, 1, r->out->memory_of, sizeof(r->out->memory_of));
        if (m)
            m->v[DT_RUN_OF_memory_bytes_max] = bytes;
        if (isnan(*most) || bytes > *most)
            *most = bytes;
    }
    return done(r, s, rc, DT_OK);
}

/* The report knows the whole of a GPU or of a process. */
static enum dt_status read_report(struct reader *r)
{
    static const char *const member[][2] = {
        {"$.mfu", "mfu"},
        {"$.iteration_s_p10", "iteration_s_p10"},
        {"$.iteration_s_p90", "iteration_s_p90"},
        {"$.tokens_per_s", "tokens_per_s"},
        {"$.samples_per_s", "samples_per_s"},
        {"$.goodput", "goodput"},
        {"$.memory_max_bytes", "memory_bytes_max"},
    };
    char sql[256];
    sqlite3_stmt *s;
    double v;

    for (size_t k = 0; k < sizeof(member) / sizeof(member[0]); k++) {
        snprintf(sql, sizeof(sql),
                 "SELECT CASE WHEN json_valid(report) THEN json_extract(report, '%s') END FROM "
                 "%%s.run WHERE id = ?1",
                 member[k][0]);
        DT_TRY(prepare(r, sql, &s));
        v = sqlite3_step(s) == SQLITE_ROW ? value(s, 0) : NAN;
        sqlite3_finalize(s);
        for (int i = 0; !isnan(v) && i < DT_RUN_METRICS_N; i++)
            if (strcmp(dt_run_metric_rows[i].name, member[k][1]) == 0)
                r->out->v[i] = v;
    }
    DT_TRY(prepare(r,
                   "SELECT CASE WHEN json_valid(report) THEN json_extract(report, "
                   "'$.exposed_comm_s') / json_extract(report, '$.iteration_s') END FROM %s.run "
                   "WHERE id = ?1",
                   &s));
    r->out->v[DT_RUN_exposed_comm_share] = sqlite3_step(s) == SQLITE_ROW ? value(s, 0) : NAN;
    sqlite3_finalize(s);
    return DT_OK;
}

/* Lanes and their memory are those of the first iteration, whose timeline is stored; a simulation of several reports the median
 * one and the most memory of all.  Lanes of a process share its scratch, and are compared without. */
static enum dt_status read_simulated(struct reader *r)
{
    sqlite3_stmt *s;
    double v;
    int rc;

    DT_TRY(prepare(r,
                   "SELECT CASE WHEN json_valid(report) THEN json_extract(report, "
                   "'$.bubble_fraction') END FROM %s.run WHERE id = ?1",
                   &s));
    v = sqlite3_step(s) == SQLITE_ROW ? value(s, 0) : NAN;
    sqlite3_finalize(s);
    if (!isnan(v))
        r->out->v[DT_RUN_bubble_share] = v;
    DT_TRY(prepare(r,
                   "SELECT " OF("name") ", " OF("utilisation") ", " OF("memory_bytes_max")
                       EACH("report", "modules"),
                   &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_module *m = module_at(r, s, 0);
        double busy = value(s, 1), bytes = value(s, 2);

        if (m && !isnan(busy))
            m->v[DT_RUN_OF_busy_share] = busy;
        if (m && !isnan(bytes) && strcmp(r->out->memory_of, "gpu") == 0)
            m->v[DT_RUN_OF_memory_bytes_max] = bytes;
    }
    return done(r, s, rc, DT_OK);
}

static enum dt_status read_facts(struct reader *r)
{
    sqlite3_stmt *s;
    int rc;

    if (!dt_runs_has_table(r->db, r->schema, "fact"))
        return DT_OK;
    DT_TRY(prepare(r, "SELECT name, value FROM %s.fact WHERE run = ?1 ORDER BY name", &s));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct dt_run_fact fact;

        dt_run_about_copy(s, 0, fact.name, sizeof(fact.name));
        dt_run_about_copy(s, 1, fact.value, sizeof(fact.value));
        dt_run_facts_add(&r->out->facts, fact.name, fact.value);
    }
    return done(r, s, rc, DT_OK);
}

/* Of an executed run all is that of the stored step; a simulation's report has both of its median iteration. */
static void use_peak(struct dt_run_summary *o)
{
    const char *text = dt_run_facts_find(&o->facts, "peak_flops");
    bool simulated = strcmp(o->about.kind, "simulated") == 0;
    double *rate = &o->v[DT_RUN_model_flops_per_s_per_gpu], v = 0, flops = 0;

    o->peak_flops = text && dt_number_double(text, &v) && v > 0 ? v : 0;
    if (!simulated)
        o->v[DT_RUN_mfu] = o->about.mfu;
    o->v[DT_RUN_mfu_own_peak] = o->v[DT_RUN_mfu];
    for (int i = 0; i < o->n_modules; i++)
        flops += o->module[i].v[DT_RUN_OF_model_flops];
    if (o->peak_flops > 0 && !isnan(o->v[DT_RUN_mfu]) && (simulated || isnan(flops)))
        *rate = o->v[DT_RUN_mfu] * o->peak_flops;
    else if (o->n_modules > 0 && o->v[DT_RUN_gpus_used] > 0 && o->about.makespan_s > 0)
        *rate = flops / o->about.makespan_s / o->v[DT_RUN_gpus_used];
}

/* ---- all of it ---- */

static enum dt_status read_all(struct reader *r)
{
    struct dt_run_summary *o = r->out;

    DT_TRY(dt_run_about_read(r->db, r->schema, r->path, r->id, r->err, &o->about));
    snprintf(o->file, sizeof(o->file), "%s", r->path);
    if (o->about.iteration_s > 0)
        o->v[DT_RUN_iteration_s] = o->about.iteration_s;
    DT_TRY(read_plan(r)); /* its modules are in the order of the model */
    DT_TRY(read_lanes(r));
    use_lanes(r);
    DT_TRY(read_ops(r));
    DT_TRY(read_work(r));
    DT_TRY(read_memory(r));
    DT_TRY(read_report(r));
    if (strcmp(o->about.kind, "simulated") == 0)
        DT_TRY(read_simulated(r));
    DT_TRY(read_facts(r));
    use_peak(o);
    return DT_OK;
}

enum dt_status dt_run_summary_of(const struct dt_runs_db *db, const char *schema, const char *path,
                                 int64_t id, struct dt_error *err, struct dt_run_summary *out)
{
    struct reader r = {.db = db, .schema = schema, .path = path, .id = id, .err = err, .out = out};
    enum dt_status st;

    dt_run_summary_init(out);
    st = read_all(&r);
    dt_free(r.lane);
    return st;
}

enum dt_status dt_run_summary_read(const struct dt_run_ref *run, struct dt_error *err,
                                   struct dt_run_summary *out)
{
    struct dt_runs_db db;
    enum dt_status st;

    DT_TRY(dt_runs_open(&db, run->file, err));
    st = dt_runs_check(&db, "main", run->file, run->id, err, NULL, NULL);
    if (st == DT_OK)
        st = dt_run_summary_of(&db, "main", run->file, run->id, err, out);
    dt_runs_close(&db);
    return st;
}

static enum dt_status read_documents(struct reader *r, struct dt_run_documents *out)
{
    char **const text[] = {&out->job, &out->plan, &out->report};
    enum dt_status st = DT_OK;
    sqlite3_stmt *s;

    DT_TRY(prepare(r,
                   "SELECT CASE WHEN json_valid(job) THEN job END, CASE WHEN json_valid(plan) THEN "
                   "plan END, CASE WHEN json_valid(report) THEN report END FROM %s.run WHERE id = "
                   "?1",
                   &s));
    if (sqlite3_step(s) != SQLITE_ROW)
        st = failed(r);
    for (int k = 0; k < 3 && st == DT_OK; k++) {
        const char *c = (const char *)sqlite3_column_text(s, k);

        *text[k] = c ? dt_strdup(c) : NULL;
        if (c && !*text[k])
            st = dt_error_nomem(r->err, "a run");
    }
    sqlite3_finalize(s);
    return st;
}

enum dt_status dt_run_documents_read(const struct dt_run_ref *run, struct dt_error *err,
                                     struct dt_run_documents *out)
{
    struct dt_run_documents d = {0};
    struct dt_runs_db db;
    struct reader r = {.db = &db, .schema = "main", .path = run->file, .id = run->id, .err = err};
    enum dt_status st;

    DT_TRY(dt_runs_open(&db, run->file, err));
    st = dt_runs_check(&db, "main", run->file, run->id, err, NULL, NULL);
    if (st == DT_OK)
        st = read_documents(&r, &d);
    dt_runs_close(&db);
    if (st == DT_OK)
        *out = d;
    else
        dt_run_documents_free(&d);
    return st;
}

void dt_run_documents_free(struct dt_run_documents *d)
{
    dt_free(d->job);
    dt_free(d->plan);
    dt_free(d->report);
    memset(d, 0, sizeof(*d));
}

const struct dt_run_module *dt_run_summary_module(const struct dt_run_summary *s, const char *name)
{
    for (int i = 0; i < s->n_modules; i++)
        if (strcmp(s->module[i].name, name) == 0)
            return &s->module[i];
    return NULL;
}

bool dt_run_summary_find(const struct dt_run_summary *s, const char *name, double *out)
{
    const char *dot = strrchr(name, '.');
    char of[DT_NAME_MAX];

    for (int k = 0; !dot && k < DT_RUN_METRICS_N; k++)
        if (strcmp(dt_run_metric_rows[k].name, name) == 0) {
            *out = s->v[k];
            return true;
        }
    if (!dot || (size_t)(dot - name) >= sizeof(of))
        return false;
    snprintf(of, sizeof(of), "%.*s", (int)(dot - name), name);
    for (int k = 0; k < DT_RUN_MODULE_METRICS_N; k++)
        if (strcmp(dt_run_module_metric_rows[k].name, dot + 1) == 0) {
            const struct dt_run_module *m = dt_run_summary_module(s, of);

            *out = m ? m->v[k] : NAN;
            return m != NULL;
        }
    return false;
}

void dt_run_summary_set_peak(struct dt_run_summary *s, double peak_flops)
{
    if (s->peak_flops > 0 && peak_flops > 0)
        s->v[DT_RUN_mfu] = s->v[DT_RUN_mfu_own_peak] * s->peak_flops / peak_flops;
}
