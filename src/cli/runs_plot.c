/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain runs plot: what trainings logged, as curves over their steps, in characters or as a picture. */
#include "cli/runs.h"

#include "cli/session.h"
#include "cli/terminal.h"
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "report/chart.h"
#include "report/measured.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

struct curve {
    char name[128];
    double *x, *y;
    int n;
    int64_t redone; /* steps that a rollback or a restart did again */
    int64_t skipped;
    int64_t others; /* steps of other runs in the log */
};
enum { CURVES_MAX = 8 };
struct plot {
    struct curve curve[CURVES_MAX];
    int n;
    int value; /* index of dt_run_log_names */
};

/* ---- where the log is ---- */

/* "run_id" of what training reported, which its lines in the log name; "" = older runs do not say. */
static enum dt_status id_of_run(const char *file, const char *report, struct dt_error *err,
                                char *id, size_t size)
{
    struct dt_doc *doc = NULL;
    enum dt_status st;

    id[0] = '\0';
    if (!report)
        return DT_OK;
    DT_TRY(dt_doc_parse(file, report, strlen(report), err, &doc));
    st = dt_get_string(dt_doc_root(doc), "run_id", id, size, err);
    dt_doc_free(doc);
    return st;
}

/* run.log_dir of the run's job: in the folder of the job's file if it is there, like what training writes; else in the
 * working directory. */
static enum dt_status log_of_run(const struct dt_run_ref *ref, struct dt_error *err, char *out,
                                 size_t size, char *id, size_t id_size)
{
    struct dt_run_documents d;
    struct dt_run_summary *s;
    struct dt_doc *doc = NULL;
    char dir[1024] = "";
    const char *slash;
    enum dt_status st;
    int n;

    s = dt_calloc(1, sizeof(*s));
    if (!s)
        return dt_error_nomem(err, "a run");
    memset(&d, 0, sizeof(d));
    st = dt_run_summary_read(ref, err, s);
    if (st == DT_OK)
        st = dt_run_documents_read(ref, err, &d);
    if (st == DT_OK && d.job)
        st = dt_doc_parse(ref->file, d.job, strlen(d.job), err, &doc);
    if (st == DT_OK && doc)
        st = dt_get_string(dt_map_get(dt_doc_root(doc), "run"), "log_dir", dir, sizeof(dir), err);
    if (st == DT_OK)
        st = id_of_run(ref->file, d.report, err, id, id_size);
    if (st == DT_OK && strcmp(s->about.kind, "simulated") == 0)
        st = dt_error_at(err, DT_ERR_INPUT, ref->file, 0, 0,
                         "run %lld has no log: it was simulated; give a run that was trained, or a "
                         "metrics.jsonl",
                         (long long)ref->id);
    if (st == DT_OK && !dir[0])
        st = dt_error_at(err, DT_ERR_INPUT, ref->file, 0, 0,
                         "run %lld has no log: its job states no run.log_dir; give a metrics.jsonl",
                         (long long)ref->id);
    if (st == DT_OK) {
        slash = strrchr(s->about.job_file, '/');
        n = dir[0] == '/' || !slash
                ? (int)size
                : snprintf(out, size, "%.*s/%s", (int)(slash - s->about.job_file),
                           s->about.job_file, dir);
        if (n >= (int)size || access(out, F_OK) != 0)
            n = snprintf(out, size, "%s", dir);
        if (n >= (int)size)
            st = dt_error_set(err, DT_ERR_INPUT, "file name too long: %s", dir);
    }
    dt_doc_free(doc);
    dt_run_documents_free(&d);
    dt_free(s);
    return st;
}

/* ---- curves ---- */

/* Of the run of that id; NULL: of the last one in the log. */
static enum dt_status take(struct dt_run_log *log, const char *path, const char *id, int value,
                           struct curve *c, struct dt_error *err)
{
    int64_t all;

    c->others = dt_run_log_select(log, id);
    if (log->n == 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "has no step of %s; when a run begins from scratch, the log before it "
                           "goes to before-N there",
                           c->name);
    all = log->n;
    dt_run_log_settle(log);
    c->redone = all - log->n;
    c->x = dt_malloc((size_t)log->n * sizeof(*c->x));
    c->y = dt_malloc((size_t)log->n * sizeof(*c->y));
    if (!c->x || !c->y || log->n > INT32_MAX)
        return dt_error_nomem(err, "a curve");
    for (int64_t i = 0; i < log->n; i++) {
        if (isnan(log->step[i].v[value])) {
            c->skipped++;
            continue;
        }
        c->x[c->n] = (double)log->step[i].step;
        c->y[c->n++] = log->step[i].v[value];
    }
    return c->n > 0 ? DT_OK
                    : dt_error_set(err, DT_ERR_INPUT, "%s: no step has a %s", c->name,
                                   dt_run_log_names[value]);
}

static enum dt_status add(const struct dt_cli *cli, const char *arg, struct plot *p,
                          struct dt_error *err)
{
    struct curve *c = &p->curve[p->n++];
    struct dt_run_log log;
    struct dt_run_ref ref;
    enum dt_status st;
    char path[2304], id[128], *of = NULL;

    snprintf(path, sizeof(path), "%s", arg);
    snprintf(c->name, sizeof(c->name), "%s", arg);
    if (!dt_run_measured_is(arg)) {
        DT_TRY(dt_run_find(arg, dt_cli_runs_file(cli), err, &ref));
        DT_TRY(log_of_run(&ref, err, path, sizeof(path), id, sizeof(id)));
        of = id;
        snprintf(c->name, sizeof(c->name), "run %lld", (long long)ref.id);
    }
    DT_TRY(dt_run_log_read(path, err, &log));
    st = take(&log, path, of, p->value, c, err);
    dt_run_log_free(&log);
    return st;
}

/* ---- drawing ---- */

static enum dt_status draw(const struct dt_cli *cli, const struct plot *p, struct dt_error *err)
{
    const char *svg = dt_cli_string(cli, "svg", NULL), *name = dt_run_log_names[p->value];
    struct dt_chart_series series[CURVES_MAX] = {0};
    struct dt_chart_terminal terminal = dt_cli_terminal();
    struct dt_chart chart = {.title = name,
                             .x = {.label = "step"},
                             .y = {.label = name, .log = dt_cli_flag(cli, "log")},
                             .series = series,
                             .n_series = p->n};
    enum dt_status st;
    char *text;

    for (int i = 0; i < p->n; i++)
        series[i] = (struct dt_chart_series){.name = p->curve[i].name,
                                             .mark = DT_CHART_LINE,
                                             .colour = DT_CHART_AUTO,
                                             .n = p->curve[i].n,
                                             .x = p->curve[i].x,
                                             .y = p->curve[i].y};
    if (svg) {
        DT_TRY(dt_chart_svg(&chart, DT_CHART_FILE, NULL, err, &text));
        st = dt_file_write(svg, text, strlen(text), err);
        dt_free(text);
        return st;
    }
    DT_TRY(dt_chart_text(&chart, &terminal, err, &text));
    fputs(text, stdout);
    dt_free(text);
    for (int i = 0; i < p->n; i++) {
        const struct curve *c = &p->curve[i];

        printf("%s: %d step%s, %s %g at step %.0f, %g at step %.0f", c->name, c->n, dt_plural(c->n),
               name, c->y[0], c->x[0], c->y[c->n - 1], c->x[c->n - 1]);
        if (c->skipped > 0)
            printf("; %lld without a number", (long long)c->skipped);
        if (c->redone > 0)
            printf("; %lld done again after a restart or rollback", (long long)c->redone);
        if (c->others > 0)
            printf("; %lld of other runs left out", (long long)c->others);
        printf("\n");
    }
    return DT_OK;
}

static enum dt_status emit_json(const struct plot *p, struct dt_error *err)
{
    struct dt_json j;

    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "value", dt_run_log_names[p->value]);
    dt_json_key(&j, "curves");
    dt_json_begin_array(&j);
    for (int i = 0; i < p->n; i++) {
        const struct curve *c = &p->curve[i];

        dt_json_begin_object(&j);
        dt_json_kv_string(&j, "name", c->name);
        dt_json_key(&j, "steps");
        dt_json_begin_array(&j);
        for (int k = 0; k < c->n; k++)
            dt_json_int(&j, (int64_t)c->x[k]);
        dt_json_end_array(&j);
        dt_json_key(&j, "values");
        dt_json_begin_array(&j);
        for (int k = 0; k < c->n; k++)
            dt_json_double(&j, c->y[k]);
        dt_json_end_array(&j);
        dt_json_kv_int(&j, "steps_without_number", c->skipped);
        dt_json_kv_int(&j, "steps_redone", c->redone);
        dt_json_kv_int(&j, "steps_of_other_runs", c->others);
        dt_json_end_object(&j);
    }
    dt_json_end_array(&j);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status which_value(const struct dt_cli *cli, struct dt_error *err, int *out)
{
    const char *name = dt_cli_string(cli, "value", "loss"), *near;

    for (int k = 0; k < DT_RUN_LOG_N; k++)
        if (strcmp(name, dt_run_log_names[k]) == 0) {
            *out = k;
            return DT_OK;
        }
    near = dt_suggest(name, dt_run_log_names);
    return dt_error_set(err, DT_ERR_USAGE, "--value: a log has no '%s'%s%s%s", name,
                        near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

enum dt_status dt_cli_runs_plot(const struct dt_cli *cli, struct dt_error *err)
{
    const char *svg = dt_cli_string(cli, "svg", NULL);
    struct plot *p;
    enum dt_status st = DT_OK;

    if (cli->n_args < 2 || cli->n_args - 1 > CURVES_MAX)
        return dt_error_set(err, DT_ERR_USAGE,
                            "usage: disttrain runs plot [OPTION...] RUN|LOG..., at most %d of them",
                            CURVES_MAX);
    if (svg)
        DT_TRY(dt_cli_one_stdout(cli, svg, err));
    p = dt_calloc(1, sizeof(*p));
    if (!p)
        return dt_error_nomem(err, "curves");
    st = which_value(cli, err, &p->value);
    for (int i = 1; i < cli->n_args && st == DT_OK; i++)
        st = add(cli, cli->args[i], p, err);
    if (st == DT_OK && cli->json)
        st = emit_json(p, err);
    if (st == DT_OK && (svg || !cli->json))
        st = draw(cli, p, err);
    for (int i = 0; i < p->n; i++) {
        dt_free(p->curve[i].x);
        dt_free(p->curve[i].y);
    }
    dt_free(p);
    return st;
}
