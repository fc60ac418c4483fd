/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the runs file and a report's JSON say of a run. */
#include "report/page.h"

#include "base/doc.h"

#include <math.h>
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
    r->memory_max_bytes = number(root, "memory_max_bytes");
    string(root, "memory_unfit", r->memory_unfit, sizeof r->memory_unfit);
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

void dt_report_page_spend(struct dt_report_page_run *r)
{
    struct dt_error why = {0};

    r->has_spent = dt_report_breakdown_of(&r->view, &why, &r->spent) == DT_OK;
    if (!r->has_spent)
        snprintf(r->no_spent, sizeof r->no_spent, "%.250s", why.message);
}

static void take_summary(struct dt_report_page_run *r)
{
    const struct dt_run_about *a = &r->summary.about;

    snprintf(r->job, sizeof r->job, "%s", a->job_file);
    snprintf(r->started, sizeof r->started, "%s", a->started);
    snprintf(r->version, sizeof r->version, "%s", a->version);
    snprintf(r->cluster, sizeof r->cluster, "%s", a->cluster);
    snprintf(r->strategy, sizeof r->strategy, "%s", a->strategy);
    r->executed = strcmp(a->kind, "executed") == 0;
    r->cpu = strcmp(r->summary.memory_of, "cpu") == 0;
}

static enum dt_status take_documents(struct dt_run_documents *d, struct dt_error *err,
                                     struct dt_report_page_run *r)
{
    r->job_json = d->job;
    r->report_json = d->report;
    d->job = d->report = NULL;
    if (r->report_json)
        DT_TRY(dt_report_page_parse(r->report_json, err, r));
    if (!d->plan)
        return DT_OK;
    DT_TRY(dt_plan_parse("the run's plan", d->plan, strlen(d->plan), err, &r->plan));
    r->has_plan = true;
    snprintf(r->model, sizeof r->model, "%s", r->plan.model);
    snprintf(r->cluster, sizeof r->cluster, "%s", r->plan.cluster);
    snprintf(r->strategy, sizeof r->strategy, "%s", dt_plan_strategy_names[r->plan.strategy]);
    return DT_OK;
}

static enum dt_status fill(const struct dt_run_ref *ref, struct dt_error *err,
                           struct dt_report_page_run *r)
{
    struct dt_run_documents d = {0};
    enum dt_status st;

    DT_TRY(dt_run_summary_read(ref, err, &r->summary));
    take_summary(r);
    DT_TRY(dt_run_documents_read(ref, err, &d));
    st = take_documents(&d, err, r);
    dt_run_documents_free(&d);
    if (st == DT_OK)
        st = dt_run_view_read(ref, err, &r->view);
    if (st == DT_OK && r->has_plan && !r->cpu)
        dt_run_view_offload(&r->view, &r->plan);
    if (st == DT_OK)
        dt_report_page_spend(r);
    return st;
}

void dt_report_page_init(struct dt_report_page_run *r)
{
    memset(r, 0, sizeof *r);
    r->worked.again_s = NAN;
    for (int k = 0; k < DT_NUMBER_N; k++)
        r->number[k] = NAN;
    for (int k = 0; k < 4; k++)
        r->reorder_s[k] = NAN;
    dt_run_summary_init(&r->summary);
}

enum dt_status dt_report_page_read(const struct dt_run_ref *ref, struct dt_error *err,
                                   struct dt_report_page_run *out)
{
    enum dt_status st;

    dt_report_page_init(out);
    out->id = ref->id;
    snprintf(out->name, sizeof out->name, "run %lld", (long long)ref->id);
    st = fill(ref, err, out);
    if (st != DT_OK)
        dt_report_page_free(out);
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
