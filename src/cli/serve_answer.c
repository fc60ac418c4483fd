/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Answers of disttrain serve, in a worker: the same planning and simulation as that of the commands. */
#include "config.h"

#include "cli/serve.h"

#include "base/doc.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cli/page.h"
#include "core/cost/memory.h"

#include <string.h>

enum { N_QUICK = 2 };

/* What the point's visitor makes while plan and program are at hand. */
struct extra {
    enum dt_serve_path path;
    const char *picture; /* the id of a timeline that is wanted */
    char *text;
    double capacity_bytes;
};

/* What disttrain report would read from the runs file. */
static enum dt_status describe(const struct dt_session *s, const struct dt_sim_result *r,
                               struct dt_error *err, struct dt_report_page_run *out)
{
    dt_report_page_init(out);
    snprintf(out->job, sizeof(out->job), "%s", s->job->name);
    snprintf(out->version, sizeof(out->version), "%s", PACKAGE_VERSION);
    snprintf(out->name, sizeof(out->name), "simulation");
    dt_clock_utc(out->started, sizeof(out->started));
    out->cpu = dt_cluster_is_cpu(&s->job->cluster);
    out->plan = s->search.plans[0];
    out->has_plan = true;
    DT_TRY(dt_doc_to_json(s->job->doc, err, &out->job_json));
    DT_TRY(dt_session_report_json(s, r, false, 0, err, &out->report_json));
    DT_TRY(dt_report_page_parse(out->report_json, err, out));
    DT_TRY(dt_run_view_of(r->program, s->job->model, &r->timeline, err, &out->view));
    dt_report_page_spend(out);
    return dt_cli_page_fill(out, s, r, true, err);
}

static enum dt_status report_page(const struct dt_session *s, const struct dt_sim_result *r,
                                  struct dt_error *err, char **text)
{
    struct dt_report_page_run *run = dt_calloc(1, sizeof(*run));
    char made[128];
    enum dt_status st;

    if (!run)
        return dt_error_nomem(err, "a report");
    st = describe(s, r, err, run);
    snprintf(made, sizeof(made), "Page made by DistTrain %s at %s", PACKAGE_VERSION, run->started);
    if (st == DT_OK)
        st = dt_report_page(run, 1, &(struct dt_report_page_options){.made = made}, err, text);
    dt_report_page_free(run);
    dt_free(run);
    return st;
}

static enum dt_status visit(void *ctx, const struct dt_session *s, const struct dt_sim_result *r,
                            struct dt_error *err)
{
    const struct dt_cluster *c = &s->job->cluster;
    struct extra *x = ctx;

    x->capacity_bytes = dt_memory_limit(c);
    if (x->path == DT_SERVE_PLAN)
        return dt_plan_to_json(&s->search.plans[0], err, &x->text);
    if (x->path == DT_SERVE_REPORT)
        return report_page(s, r, err, &x->text);
    if (x->picture)
        return dt_cli_timeline_svg(s, r, x->picture, err, &x->text);
    return DT_OK;
}

static enum dt_status answer_json(const struct dt_point *p, const struct extra *x,
                                  struct dt_error *err, char **text)
{
    char why[sizeof(p->error.message) + sizeof(p->error.file) + 64];
    struct dt_json j;

    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_json_kv_bool(&j, "feasible", p->feasible);
    if (p->feasible) {
        dt_json_kv_double(&j, "capacity_bytes", x->capacity_bytes);
        dt_json_key(&j, "result");
        dt_json_raw(&j, p->report);
        if (x->picture)
            dt_json_kv_string(&j, "timeline", x->text);
    } else {
        dt_error_format(&p->error, why, sizeof(why));
        dt_json_kv_string(&j, "kind", dt_status_text(p->error.status));
        dt_json_kv_string(&j, "reason", why);
    }
    dt_json_end_object(&j);
    return dt_json_finish(&j, err, text);
}

static enum dt_status take(char **from, char **text)
{
    *text = *from;
    *from = NULL;
    return DT_OK;
}

/* A page shows what does not fit; a file of it there is none. */
static enum dt_status refusal(const struct dt_point *p, struct dt_error *err)
{
    *err = p->error;
    return p->error.status;
}

static enum dt_status text_of(const struct dt_serve_question *q, struct dt_point *p,
                              struct extra *x, struct dt_error *err, char **text)
{
    if (q->path == DT_SERVE_ANSWER)
        return answer_json(p, x, err, text);
    if (!p->feasible)
        return refusal(p, err);
    return take(q->path == DT_SERVE_RESULT ? &p->report : &x->text, text);
}

enum dt_status dt_cli_serve_answer(void *ctx, const struct dt_serve_question *q,
                                   struct dt_error *err, char **text)
{
    /* transfers as if each had its link alone: within a per cent, in half the time */
    static const char *const quick[] = {"search.effort=quick", "simulate.contention=false"};
    const struct dt_cli_served *d = ctx;
    const char *keys[DT_CLI_MAX_ARGS + DT_CLI_MAX_OPTIONS + DT_SERVE_KEYS_MAX + N_QUICK];
    struct extra x = {.path = q->path};
    struct dt_point p;
    int n = 0;

    if (q->path == DT_SERVE_ANSWER && q->effort == DT_SERVE_NORMAL)
        x.picture = q->side == 0 ? "a" : "b";
    if (q->effort == DT_SERVE_QUICK) /* what the user states comes later, and wins */
        for (int i = 0; i < N_QUICK; i++)
            keys[n++] = quick[i];
    for (int i = 0; i < d->n_overrides; i++)
        keys[n++] = d->overrides[i];
    for (int i = 0; i < q->n_keys; i++)
        keys[n++] = q->keys[i];
    struct dt_point_request request = {.overrides = keys,
                                       .n_overrides = n,
                                       .report =
                                           q->path == DT_SERVE_ANSWER || q->path == DT_SERVE_RESULT,
                                       .visit = visit,
                                       .ctx = &x};
    enum dt_status st = dt_point_eval(d->points, &request, err, &p);

    if (st == DT_OK) {
        st = text_of(q, &p, &x, err, text);
        dt_point_free(&p);
    }
    dt_free(x.text);
    return st;
}
