/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The whole page, of one run or of several. */
#include "report/page.h"

#include "report/html.h"

#include <math.h>
#include <stdio.h>

static void worked_note(struct dt_text *t, const struct dt_report_page_run *r)
{
    const struct dt_report_worked_out *w = &r->worked;
    double kept = 1e-9 * (double)r->view.makespan_ns;
    char again[48], time[48];

    if (w->why_not) {
        dt_html_raw(t, "<p class=\"note\">Memory, stragglers, next-best plans, sensitivity and "
                       "contributions are "
                       "not on this page: ");
        dt_html_escape(t, w->why_not);
        dt_html_raw(t, "</p>\n");
        return;
    }
    if (!isfinite(w->again_s))
        return;
    dt_html_raw(t, "<p class=\"note\">");
    dt_report_page_seconds(w->again_s, again, sizeof again);
    dt_report_page_seconds(kept, time, sizeof time);
    if (r->executed)
        dt_html_text(t,
                     "What follows is predicted, from the job and plan that the run keeps. "
                     "Simulated, an iteration takes "
                     "%s; the last one took %s (%+.1f %%).",
                     again, time, 100 * (w->again_s / kept - 1));
    else if (fabs(w->again_s / kept - 1) < 1e-6)
        dt_html_raw(t, "What follows was worked out when this page was made, from the job and plan "
                       "that the run keeps; "
                       "simulated anew, they give the same iteration.");
    else
        dt_html_text(t,
                     "What follows was worked out when this page was made, from the job and plan "
                     "that the run keeps. "
                     "Simulated anew, the first iteration takes %s, not %s (%+.2f %%): profiles, "
                     "presets or this program "
                     "have changed since.",
                     again, time, 100 * (w->again_s / kept - 1));
    dt_html_raw(t, "</p>\n");
}

static enum dt_status sections(struct dt_text *t, const struct dt_report_page_run *r,
                               int64_t span_ns, int number, struct dt_error *err)
{
    static const char *const names[] = {"provenance", "timeline", "spent",
                                        "memory",     "order",    "inputs"};
    char id[6][32];

    for (int k = 0; k < 6; k++)
        snprintf(id[k], sizeof id[k], "r%d-%s", number, names[k]);
    dt_report_page_numbers(t, r);
    DT_TRY(dt_report_page_provenance(t, r, id[0], err));
    dt_report_page_modules(t, r);
    DT_TRY(dt_report_page_timeline(t, r, span_ns, id[1], err));
    DT_TRY(dt_report_page_spent(t, r, id[2], err));
    worked_note(t, r);
    DT_TRY(dt_report_page_memory(t, r, id[3], err));
    DT_TRY(dt_report_page_order(t, r, id[4], err));
    dt_report_page_next(t, r);
    DT_TRY(dt_report_page_inputs(t, r, id[5], err));
    dt_report_page_parts(t, r);
    dt_report_page_assumptions(t, r);
    return DT_OK;
}

static void foot(struct dt_text *t, const struct dt_report_page_run *runs, int n, const char *made)
{
    dt_html_raw(t, "<h2>This page</h2>\n<ul class=\"note\">\n");
    for (int i = 0; i < n; i++) {
        dt_html_raw(t, "<li>");
        dt_html_text(t, "%s: %s, %s, by version %s, started %s", runs[i].name, runs[i].job,
                     runs[i].executed ? "executed" : "simulated", runs[i].version, runs[i].started);
        dt_html_raw(t, "</li>\n");
    }
    if (made) {
        dt_html_raw(t, "<li>");
        dt_html_escape(t, made);
        dt_html_raw(t, "</li>\n");
    }
    dt_html_raw(t, "<li>MFU counts causal attention once (half) and no recomputation; HFU counts "
                   "what the hardware "
                   "runs. 80 % intervals span the 10th to the 90th percentile.</li>\n</ul>\n");
}

static enum dt_status side_by_side(struct dt_text *t, const struct dt_report_page_run *runs, int n,
                                   const char *title, struct dt_error *err)
{
    int64_t span_ns = 0;

    dt_html_raw(t, "<h1>");
    dt_html_escape(t, title);
    dt_html_raw(t, "</h1>\n");
    DT_TRY(dt_report_page_compare(t, runs, n, err));
    DT_TRY(dt_report_page_compare_spent(t, runs, n, err));
    for (int i = 0; i < n; i++)
        span_ns = runs[i].view.makespan_ns > span_ns ? runs[i].view.makespan_ns : span_ns;
    for (int i = 0; i < n; i++) {
        dt_html_raw(t, "<section>\n");
        dt_report_page_answer(t, &runs[i], runs[i].name);
        DT_TRY(sections(t, &runs[i], span_ns, i, err));
        dt_html_raw(t, "</section>\n");
    }
    return DT_OK;
}

static enum dt_status write_page(struct dt_text *t, const struct dt_report_page_run *runs, int n,
                                 const struct dt_report_page_options *opt, struct dt_error *err)
{
    char title[512];

    if (n == 1)
        snprintf(title, sizeof title, "%s on %s: %s", runs[0].model, runs[0].cluster, runs[0].name);
    else
        snprintf(title, sizeof title, "%d runs side by side", n);
    DT_TRY(dt_html_page_begin(t, opt->title ? opt->title : title, err));
    if (n == 1) {
        dt_report_page_answer(t, &runs[0], opt->title);
        DT_TRY(sections(t, &runs[0], 0, 0, err));
    } else {
        DT_TRY(side_by_side(t, runs, n, opt->title ? opt->title : title, err));
    }
    foot(t, runs, n, opt->made);
    dt_html_page_end(t);
    return DT_OK;
}

enum dt_status dt_report_page(const struct dt_report_page_run *runs, int n,
                              const struct dt_report_page_options *opt, struct dt_error *err,
                              char **out)
{
    struct dt_text t = {0};
    enum dt_status st = write_page(&t, runs, n, opt, err);

    if (st != DT_OK) {
        dt_free(t.s);
        return st;
    }
    return dt_text_finish(&t, err, out);
}
