/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The timeline of a simulation as a picture: a file, or characters on the terminal. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "report/timeline_draw.h"

#include <string.h>

static void words(const struct dt_session *s, const struct dt_sim_result *r, char title[512],
                  char subtitle[256], struct dt_report_timeline_text *out)
{
    const struct dt_plan *p = &s->search.plans[0];
    bool cpu = dt_cluster_is_cpu(&s->job->cluster);
    const char *unit = cpu ? "process" : "GPU", *units = cpu ? "processes" : "GPUs";

    snprintf(title, 512, "%s on %s, %s: %.3f s per iteration (80 %% interval %.3f to %.3f s)",
             p->model, p->cluster, dt_plan_strategy_names[p->strategy], r->report.iteration_s,
             r->report.iteration_s_p10, r->report.iteration_s_p90);
    snprintf(
        subtitle, 256,
        "simulated, %s on %d %s; the first iteration, one replica of each module, which stands "
        "for the others",
        dt_pipe_schedule_names[p->policy.schedule], r->report.gpus_used,
        r->report.gpus_used == 1 ? unit : units);
    *out = (struct dt_report_timeline_text){title, subtitle, unit, 0};
}

enum dt_status dt_cli_timeline_svg(const struct dt_session *s, const struct dt_sim_result *r,
                                   const char *id, struct dt_error *err, char **out)
{
    enum dt_chart_form form = id ? DT_CHART_FRAGMENT : DT_CHART_FILE;
    struct dt_report_timeline_text w;
    struct dt_run_view v;
    char title[512], subtitle[256];
    enum dt_status st;

    words(s, r, title, subtitle, &w);
    DT_TRY(dt_run_view_of(r->program, s->job->model, &r->timeline, err, &v));
    st = dt_report_timeline_svg(&v, &w, form, id, err, out);
    dt_run_view_free(&v);
    return st;
}

enum dt_status dt_cli_timeline_write(const char *path, const struct dt_session *s,
                                     const struct dt_sim_result *r, struct dt_error *err)
{
    enum dt_status st;
    char *text;

    DT_TRY(dt_cli_timeline_svg(s, r, NULL, err, &text));
    st = dt_file_write(path, text, strlen(text), err);
    dt_free(text);
    return st;
}

enum dt_status dt_cli_timeline_print(const struct dt_session *s, const struct dt_sim_result *r,
                                     struct dt_error *err)
{
    const struct dt_chart_terminal term = dt_cli_terminal();
    struct dt_report_timeline_text w;
    struct dt_run_view v;
    char title[512], subtitle[256], *text;
    enum dt_status st;

    words(s, r, title, subtitle, &w);
    DT_TRY(dt_run_view_of(r->program, s->job->model, &r->timeline, err, &v));
    st = dt_report_timeline_text(&v, &w, &term, err, &text);
    dt_run_view_free(&v);
    if (st != DT_OK)
        return st;
    printf("\n%s", text);
    dt_free(text);
    return DT_OK;
}
