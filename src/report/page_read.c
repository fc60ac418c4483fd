/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the runs file and a report's JSON say of a run. */
#include "report/page.h"

#include "base/doc.h"
#include "report/runs_open.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

const char *const dt_report_number_keys[DT_NUMBER_N] = {
#define KEY(id, key) key,
    DT_REPORT_NUMBERS(KEY)
#undef KEY
};

/* ---- JSON: what is absent, null or of another type is not told ---- */

static double number(struct dt_node map, const char *key)
{
    struct dt_node n = dt_map_get(map, key);
    double v = NAN;

    if (dt_node_is_scalar(n) && !dt_node_is_null(n) &&
        dt_get_double(map, key, -1e300, 1e300, &v, NULL) != DT_OK)
        v = NAN;
    return v;
}

static void string(struct dt_node map, const char *key, char *buf, size_t size)
{
    const char *s = dt_node_text(dt_map_get(map, key));

    if (s && !dt_node_is_null(dt_map_get(map, key)))
        snprintf(buf, size, "%s", s);
}

static void modules(struct dt_node root, struct dt_report_page_run *r)
{
    struct dt_node list = dt_map_get(root, "modules");

    for (size_t i = 0;
         dt_node_is_seq(list) && i < dt_seq_size(list) && r->n_modules < DT_MAX_MODULES; i++) {
        struct dt_node m = dt_seq_at(list, i);
        struct dt_report_module *out = &r->module[r->n_modules];

        if (!dt_node_is_map(m))
            continue;
        string(m, "name", out->name, sizeof out->name);
        out->utilisation = number(m, "utilisation");
        out->memory_bytes = number(m, "memory_bytes_max");
        out->model_flops = number(m, "model_flops");
        r->n_modules++;
    }
}

static void parse(struct dt_node root, struct dt_report_page_run *r)
{
    static const char *const ways[] = {"none_s", "inter_s", "intra_s", "both_s"};
    struct dt_node reorder = dt_map_get(root, "reorder"), prov = dt_map_get(root, "provenance");

    for (int k = 0; k < DT_NUMBER_N; k++)
        r->number[k] = number(root, dt_report_number_keys[k]);
    for (int k = 0; k < 4; k++)
        r->reorder_s[k] = dt_node_is_map(reorder) ? number(reorder, ways[k]) : NAN;
    for (int k = 0; k < DT_PROV_N && dt_node_is_map(prov); k++) {
        double v = number(prov, dt_cost_prov_names[k]);

        r->provenance[k] = v >= 0 && v <= 1 ? v : 0;
    }
    string(root, "model", r->model, sizeof r->model);
    string(root, "cluster", r->cluster, sizeof r->cluster);
    string(root, "strategy", r->strategy, sizeof r->strategy);
    string(root, "assumed", r->assumed, sizeof r->assumed);
    string(root, "profile_note", r->profile_note, sizeof r->profile_note);
    string(root, "plan_changes", r->plan_changes, sizeof r->plan_changes);
    string(root, "device", r->device, sizeof r->device);
    modules(root, r);
}

enum dt_status dt_report_page_parse(const char *json, struct dt_error *err,
                                    struct dt_report_page_run *out)
{
    struct dt_doc *doc;

    DT_TRY(dt_doc_parse("the run's report", json, strlen(json), err, &doc));
    parse(dt_doc_root(doc), out);
    dt_doc_free(doc);
    return DT_OK;
}

/* ---- the runs file ---- */

static enum dt_status copy_text(sqlite3_stmt *s, int column, struct dt_error *err, char **out)
{
    const char *text = (const char *)sqlite3_column_text(s, column);

    *out = NULL;
    if (sqlite3_column_type(s, column) != SQLITE_TEXT || !text || !*text)
        return DT_OK;
    *out = dt_strdup(text);
    return *out ? DT_OK : dt_error_nomem(err, "a run");
}

static void short_text(sqlite3_stmt *s, int column, char *buf, size_t size)
{
    const char *text = (const char *)sqlite3_column_text(s, column);

    snprintf(buf, size, "%s", text ? text : "");
}

static enum dt_status take_row(sqlite3_stmt *s, struct dt_error *err, struct dt_report_page_run *r,
                               char **plan)
{
    r->executed = strcmp((const char *)sqlite3_column_text(s, 0), "executed") == 0;
    short_text(s, 1, r->job, sizeof r->job);
    short_text(s, 5, r->started, sizeof r->started);
    short_text(s, 6, r->version, sizeof r->version);
    r->cpu = sqlite3_column_int(s, 7) != 0;
    DT_TRY(copy_text(s, 2, err, &r->job_json));
    DT_TRY(copy_text(s, 4, err, &r->report_json));
    return copy_text(s, 3, err, plan);
}

static enum dt_status read_row(const struct dt_runs_db *db, int64_t id, struct dt_error *err,
                               struct dt_report_page_run *r, char **plan)
{
    static const char sql[] = "SELECT kind, job_name, job, plan, report, started, version, 0 FROM "
                              "run WHERE id = ?";
    static const char with_memory[] =
        "SELECT kind, job_name, job, plan, report, started, version, (SELECT count(*) FROM memory "
        "m "
        "WHERE m.run = run.id AND m.model = 'cpu') FROM run WHERE id = ?";
    sqlite3_stmt *s = NULL;
    enum dt_status st;

    if (sqlite3_prepare_v2(db->db, dt_runs_has_table(db, "main", "memory") ? with_memory : sql, -1,
                           &s, NULL) != SQLITE_OK)
        return dt_runs_error(db, err);
    sqlite3_bind_int64(s, 1, id);
    st = sqlite3_step(s) == SQLITE_ROW ? take_row(s, err, r, plan) : dt_runs_error(db, err);
    sqlite3_finalize(s);
    return st;
}

static enum dt_status read_run(const struct dt_run_ref *ref, struct dt_error *err,
                               struct dt_report_page_run *r, char **plan)
{
    struct dt_runs_db db;
    enum dt_status st;

    DT_TRY(dt_runs_open(&db, ref->file, err));
    st = dt_runs_check(&db, "main", ref->file, ref->id, err, NULL, NULL);
    if (st == DT_OK)
        st = read_row(&db, ref->id, err, r, plan);
    dt_runs_close(&db);
    return st;
}

void dt_report_page_spend(struct dt_report_page_run *r)
{
    struct dt_error why = {0};

    r->has_spent = dt_report_breakdown_of(&r->view, &why, &r->spent) == DT_OK;
    if (!r->has_spent)
        snprintf(r->no_spent, sizeof r->no_spent, "%.250s", why.message);
}

static enum dt_status fill(const struct dt_run_ref *ref, struct dt_error *err,
                           struct dt_report_page_run *r, char **plan)
{
    DT_TRY(read_run(ref, err, r, plan));
    if (r->report_json)
        DT_TRY(dt_report_page_parse(r->report_json, err, r));
    if (*plan) {
        DT_TRY(dt_plan_parse("the run's plan", *plan, strlen(*plan), err, &r->plan));
        r->has_plan = true;
        snprintf(r->model, sizeof r->model, "%s", r->plan.model);
        snprintf(r->cluster, sizeof r->cluster, "%s", r->plan.cluster);
        snprintf(r->strategy, sizeof r->strategy, "%s", dt_plan_strategy_names[r->plan.strategy]);
    }
    DT_TRY(dt_run_view_read(ref, err, &r->view));
    dt_report_page_spend(r);
    return DT_OK;
}

enum dt_status dt_report_page_read(const struct dt_run_ref *ref, struct dt_error *err,
                                   struct dt_report_page_run *out)
{
    struct dt_report_page_run r = {.id = ref->id, .worked.again_s = NAN};
    char *plan = NULL;
    enum dt_status st;

    for (int k = 0; k < DT_NUMBER_N; k++)
        r.number[k] = NAN;
    for (int k = 0; k < 4; k++)
        r.reorder_s[k] = NAN;
    snprintf(r.name, sizeof r.name, "run %lld", (long long)ref->id);
    st = fill(ref, err, &r, &plan);
    dt_free(plan);
    if (st == DT_OK)
        *out = r;
    else
        dt_report_page_free(&r);
    return st;
}

void dt_report_page_free(struct dt_report_page_run *r)
{
    dt_free(r->job_json);
    dt_free(r->report_json);
    dt_run_view_free(&r->view);
    dt_report_breakdown_free(&r->spent);
    dt_arena_free(&r->arena);
    memset(r, 0, sizeof *r);
}
