/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The sections of a page that show what was worked out from the job when the page was made: predictions, also where the
 * run was executed. */
#include "report/page.h"

#include "report/html.h"

#include <math.h>
#include <stdio.h>

static void figure(struct dt_text *t, const char *svg, const char *caption)
{
    dt_html_raw(t, "<figure><div class=\"scroll\">");
    dt_html_raw(t, svg);
    dt_html_raw(t, "</div><figcaption>");
    dt_html_escape(t, caption);
    dt_html_raw(t, "</figcaption></figure>\n");
}

static enum dt_status chart(struct dt_text *t, const struct dt_chart *c, const char *id,
                            const char *caption, struct dt_error *err)
{
    char *svg;

    DT_TRY(dt_chart_svg(c, DT_CHART_FRAGMENT, id, err, &svg));
    figure(t, svg, caption);
    dt_free(svg);
    return DT_OK;
}

/* Columns of doubles and names for a chart of n bars. */
struct bars {
    const char **name;
    double *y; /* [series][n] */
};

static enum dt_status bars_new(struct bars *b, int n, int series, struct dt_error *err)
{
    b->name = dt_calloc((size_t)n, sizeof *b->name);
    b->y = dt_calloc((size_t)n * (size_t)series, sizeof *b->y);
    if (b->name && b->y)
        return DT_OK;
    dt_free(b->name);
    dt_free(b->y);
    return dt_error_nomem(err, "a chart");
}

static void bars_free(struct bars *b)
{
    dt_free(b->name);
    dt_free(b->y);
}

/* ---- memory ---- */

enum { PARTS = 6 };
static const struct {
    const char *name;
    enum dt_chart_colour colour;
} parts[PARTS] = {{"parameters", DT_CHART_BLUE},       {"gradients", DT_CHART_SKY},
                  {"optimizer", DT_CHART_ORANGE},      {"activations", DT_CHART_GREEN},
                  {"buffers, reserve", DT_CHART_GREY}, {"guests", DT_CHART_PURPLE}};

static double part(const struct dt_report_stage *s, int k)
{
    const double of[PARTS] = {s->params,      s->grads, s->optimizer,
                              s->activations, s->other, s->guests};

    return of[k];
}

static bool any(const struct dt_report_worked_out *w, int k)
{
    for (int i = 0; i < w->n_stage; i++)
        if (part(&w->stage[i], k) > 0)
            return true;
    return false;
}

static void memory_table(struct dt_text *t, const struct dt_report_page_run *r)
{
    const struct dt_report_worked_out *w = &r->worked;
    double unit = r->cpu ? 1048576 : 1073741824;
    struct dt_html_column columns[PARTS + 3] = {{"stage", false}};
    char heads[PARTS + 2][48];
    struct dt_html_table b;

    for (int k = 0; k < PARTS + 2; k++) {
        snprintf(heads[k], sizeof heads[k], k <= PARTS ? "%s [%s]" : "of what may be used [%%]",
                 k < PARTS ? parts[k].name : "total", r->cpu ? "MiB" : "GiB");
        columns[k + 1] = (struct dt_html_column){heads[k], true};
    }
    dt_html_table_begin(
        &b, t, r->cpu ? "Memory of a process of each stage" : "Memory of a GPU of each stage",
        columns, PARTS + 3);
    for (int i = 0; i < w->n_stage; i++) {
        double total = 0;

        dt_html_cell(&b, "%s", w->stage[i].name);
        for (int k = 0; k < PARTS; k++) {
            total += part(&w->stage[i], k);
            dt_html_cell(&b, "%.2f", part(&w->stage[i], k) / unit);
        }
        dt_html_cell(&b, "%.2f", total / unit);
        dt_html_cell(&b, "%.1f", 100 * total / w->memory_limit_bytes);
    }
    dt_html_table_end(&b);
}

enum dt_status dt_report_page_memory(struct dt_text *t, const struct dt_report_page_run *r,
                                     const char *id, struct dt_error *err)
{
    const struct dt_report_worked_out *w = &r->worked;
    double unit = r->cpu ? 1048576 : 1073741824;
    struct dt_chart_series s[PARTS];
    char limit[64];
    int n = 0;
    struct bars b;
    enum dt_status st;

    if (w->n_stage == 0)
        return DT_OK;
    DT_TRY(bars_new(&b, w->n_stage, PARTS, err));
    for (int i = 0; i < w->n_stage; i++) {
        b.name[i] = w->stage[i].name;
        for (int k = 0; k < PARTS; k++)
            b.y[k * w->n_stage + i] = part(&w->stage[i], k) / unit;
    }
    for (int k = 0; k < PARTS; k++)
        if (any(w, k))
            s[n++] = (struct dt_chart_series){.name = parts[k].name,
                                              .colour = parts[k].colour,
                                              .n = w->n_stage,
                                              .y = &b.y[k * w->n_stage]};
    snprintf(limit, sizeof limit, "may be used: %.1f %s", w->memory_limit_bytes / unit,
             r->cpu ? "MiB" : "GiB");
    const struct dt_chart_rule rule = {limit, w->memory_limit_bytes / unit, false};
    const struct dt_chart c = {.title = "Memory of each stage against what may be used",
                               .y = {.label = "memory", .unit = r->cpu ? "MiB" : "GiB"},
                               .series = s,
                               .n_series = n,
                               .rules = &rule,
                               .n_rules = 1,
                               .categories = b.name,
                               .n_categories = w->n_stage,
                               .stacked = true,
                               .horizontal = true,
                               .width = 1080};

    dt_html_raw(t, "<h2>Memory</h2>\n");
    st = chart(
        t, &c, id,
        r->cpu
            ? "Predicted memory of a process of each stage, with the largest microbatch of its "
              "module."
            : "Predicted memory of a GPU of each stage, with the largest microbatch of its module; "
              "guests: stages of other modules on the same GPU.",
        err);
    bars_free(&b);
    if (st == DT_OK)
        memory_table(t, r);
    return st;
}

/* ---- stragglers ---- */

static enum dt_status ways(struct dt_text *t, const struct dt_report_page_run *r, const char *id,
                           struct dt_error *err)
{
    static const char *const names[] = {"as they come", "between microbatches", "between replicas",
                                        "both"};
    const char *name[4];
    double y[4];
    int n = 0;

    for (int k = 0; k < 4; k++)
        if (isfinite(r->reorder_s[k])) {
            name[n] = names[k];
            y[n++] = r->reorder_s[k];
        }
    if (n < 2)
        return DT_OK;
    const struct dt_chart_series s = {.n = n, .y = y};
    const struct dt_chart c = {.title = "Iteration by way of reordering samples",
                               .y = {.label = "mean iteration", .unit = "s"},
                               .series = &s,
                               .n_series = 1,
                               .categories = name,
                               .n_categories = n,
                               .horizontal = true};

    return chart(
        t, &c, id,
        "Mean iteration over a few global batches by the way in which samples are reordered, "
        "as it was when the plan chose.",
        err);
}

enum dt_status dt_report_page_order(struct dt_text *t, const struct dt_report_page_run *r,
                                    const char *id, struct dt_error *err)
{
    static const struct dt_html_column columns[] = {
        {"module", false},
        {"slowest replica, as samples come [% over the mean]", true},
        {"reordered [% over the mean]", true},
        {"slowest microbatch, as samples come [% over the mean]", true},
        {"reordered [% over the mean]", true},
    };
    const struct dt_report_worked_out *w = &r->worked;
    char before[48], after[48];
    struct dt_html_table b;

    if (w->n_order == 0)
        return DT_OK;
    dt_html_raw(t, "<h2>Stragglers</h2>\n<p>");
    dt_html_text(t,
                 "Samples differ in size, so replicas and microbatches do too, and the slowest is "
                 "waited for. Reordering of "
                 "samples: %s. The first global batch takes %s as its samples come and %s as they "
                 "are reordered "
                 "(%+.2f %%; predicted).",
                 w->order_name, dt_report_page_seconds(w->order_before_s, before, sizeof before),
                 dt_report_page_seconds(w->order_after_s, after, sizeof after),
                 100 * (w->order_after_s / w->order_before_s - 1));
    dt_html_raw(t, "</p>\n");
    DT_TRY(ways(t, r, id, err));
    dt_html_table_begin(&b, t, "How uneven the work of a module's first stage is, before and after",
                        columns, 5);
    for (int i = 0; i < w->n_order; i++) {
        const struct dt_report_order *o = &w->order[i];

        dt_html_cell(&b, "%s", o->module);
        dt_html_cell(&b, "%.2f", 100 * (o->replica_before - 1));
        dt_html_cell(&b, "%.2f", 100 * (o->replica_after - 1));
        dt_html_cell(&b, "%.2f", 100 * (o->microbatch_before - 1));
        dt_html_cell(&b, "%.2f", 100 * (o->microbatch_after - 1));
    }
    dt_html_table_end(&b);
    return DT_OK;
}

/* ---- other plans ---- */

void dt_report_page_next(struct dt_text *t, const struct dt_report_page_run *r)
{
    const struct dt_html_column columns[] = {{"plan", false},
                                             {"layouts", false},
                                             {"schedule and modes", false},
                                             {"iteration [s]", true},
                                             {"to the best [%]", true},
                                             {r->cpu ? "processes" : "GPUs", true},
                                             {r->cpu ? "memory [MiB]" : "memory [GiB]", true}};
    const struct dt_report_worked_out *w = &r->worked;
    struct dt_html_table b;
    char text[32], key[32];

    if (w->n_next == 0 && !w->why_no_next)
        return;
    dt_html_raw(t, "<h2>Next-best plans</h2>\n");
    if (w->n_next == 0) {
        dt_html_raw(t, "<p class=\"note\">");
        dt_html_escape(t, w->why_no_next);
        dt_html_raw(t, "</p>\n");
        return;
    }
    dt_html_table_begin(
        &b, t,
        "What the search finds for this job today, each simulated as the job is: the first global "
        "batch, contention of links included",
        columns, 7);
    for (int i = 0; i < w->n_next; i++) {
        const struct dt_report_next *p = &w->next[i];

        dt_html_cell(&b, "%d%s", i + 1, p->same ? " (this run)" : "");
        dt_html_cell(&b, "%s", p->text);
        dt_html_cell(&b, "%s", p->policy);
        snprintf(text, sizeof text, "%.3f", p->iteration_s);
        snprintf(key, sizeof key, "next-%d-s", i + 1);
        dt_html_cell_number(&b, key, p->iteration_s, text);
        dt_html_cell(&b, "%+.2f", 100 * (p->iteration_s / w->next[0].iteration_s - 1));
        dt_html_cell(&b, "%d", p->gpus);
        dt_html_cell(&b, "%.2f", p->memory_bytes / (r->cpu ? 1048576 : 1073741824));
    }
    dt_html_table_end(&b);
}

/* ---- sensitivity ---- */

static void inputs_table(struct dt_text *t, const struct dt_report_worked_out *w)
{
    static const struct dt_html_column columns[] = {{"input", false},
                                                    {"is", false},
                                                    {"10 % less of it: iteration [%]", true},
                                                    {"10 % more of it: iteration [%]", true}};
    struct dt_html_table b;
    char text[32], key[32];

    dt_html_table_begin(&b, t, "Change of the iteration with 10 % less and more of each input",
                        columns, 4);
    for (int i = 0; i < w->n_input; i++) {
        dt_html_cell(&b, "%s", w->input[i].name);
        dt_html_cell(&b, "%s", w->input[i].value);
        for (int k = 0; k < 2; k++) {
            double v = k ? w->input[i].more : w->input[i].less;

            snprintf(text, sizeof text, "%+.2f", 100 * v);
            snprintf(key, sizeof key, "input-%d-%s", i, k ? "more" : "less");
            dt_html_cell_number(&b, key, v, text);
        }
    }
    dt_html_table_end(&b);
}

enum dt_status dt_report_page_inputs(struct dt_text *t, const struct dt_report_page_run *r,
                                     const char *id, struct dt_error *err)
{
    const struct dt_report_worked_out *w = &r->worked;
    struct bars b;
    enum dt_status st;
    int n = 0;

    if (w->n_input == 0)
        return DT_OK;
    DT_TRY(bars_new(&b, w->n_input, 2, err));
    for (int i = 0; i < w->n_input; i++) /* what changes nothing is in the table only */
        if (fabs(w->input[i].less) >= 0.0005 || fabs(w->input[i].more) >= 0.0005) {
            b.name[n] = w->input[i].name;
            b.y[n] = 100 * w->input[i].less;
            b.y[w->n_input + n++] = 100 * w->input[i].more;
        }
    const struct dt_chart_series s[] = {
        {.name = "10 % less of it", .colour = DT_CHART_ORANGE, .n = n, .y = b.y},
        {.name = "10 % more of it", .colour = DT_CHART_BLUE, .n = n, .y = b.y + w->n_input}};
    const struct dt_chart c = {.title = "Sensitivity of the iteration to its inputs",
                               .y = {.label = "change of the iteration", .unit = "%"},
                               .series = s,
                               .n_series = 2,
                               .categories = b.name,
                               .n_categories = n,
                               .horizontal = true,
                               .width = 900};

    dt_html_raw(t, "<h2>Sensitivity</h2>\n");
    st = chart(
        t, &c, id,
        "Each input alone, the plan kept: a longer time of kernels, a faster link. Simulated on "
        "the first global batch, whose samples are assigned anew, as are the turns of modules "
        "that share GPUs: small differences may be theirs.",
        err);
    bars_free(&b);
    if (st == DT_OK)
        inputs_table(t, w);
    return st;
}

/* ---- what the time consists of and rests on ---- */

void dt_report_page_parts(struct dt_text *t, const struct dt_report_page_run *r)
{
    static const struct dt_html_column columns[] = {
        {"contribution", false},     {"module", false},   {"direction", false}, {"time [s]", true},
        {"80 % interval [s]", true}, {"share [%]", true}, {"rests on", false},  {"source", false}};
    const struct dt_report_worked_out *w = &r->worked;
    struct dt_html_table b;

    if (w->n_part == 0)
        return;
    dt_html_raw(t, "<h2>Largest contributions</h2>\n");
    dt_html_table_begin(
        &b, t, "The critical path of the first iteration, by kernel, with what each time rests on",
        columns, 8);
    for (int i = 0; i < w->n_part; i++) {
        const struct dt_report_part *p = &w->part[i];

        dt_html_cell(&b, "%s", p->what);
        dt_html_cell(&b, "%s", p->module);
        dt_html_cell(&b, "%s", p->direction);
        dt_html_cell(&b, "%.3f", p->s);
        dt_html_cell(&b, "%.3f to %.3f", p->p10_s, p->p90_s);
        dt_html_cell(&b, "%.1f", 100 * p->share);
        dt_html_cell(&b, "%s", p->rests_on);
        dt_html_cell(&b, "%s", p->source);
    }
    dt_html_table_end(&b);
}

void dt_report_page_assumptions(struct dt_text *t, const struct dt_report_page_run *r)
{
    static const struct dt_html_column columns[] = {
        {"what", false}, {"value", false}, {"source", false}};
    const struct dt_report_worked_out *w = &r->worked;
    struct dt_html_table b;

    if (w->n_assumption == 0 && !r->profile_note[0] && !r->assumed[0] && !r->plan_changes[0])
        return;
    dt_html_raw(t, "<h2>Assumptions and their sources</h2>\n");
    if (r->profile_note[0] || r->plan_changes[0] || r->assumed[0]) {
        dt_html_raw(t, "<ul>\n");
        for (int k = 0; k < 3; k++) {
            const char *note = k == 0 ? r->profile_note : k == 1 ? r->plan_changes : r->assumed;

            if (!note[0])
                continue;
            dt_html_raw(t, "<li>");
            dt_html_escape(t, k == 0   ? "Profile: "
                              : k == 1 ? "The job overrules its plan file: "
                                       : "Taken for granted of the model: ");
            dt_html_escape(t, note);
            dt_html_raw(t, "</li>\n");
        }
        dt_html_raw(t, "</ul>\n");
    }
    if (w->n_assumption == 0)
        return;
    dt_html_table_begin(&b, t, "What the prediction takes as given", columns, 3);
    for (int i = 0; i < w->n_assumption; i++) {
        dt_html_cell(&b, "%s", w->assumption[i].what);
        dt_html_cell(&b, "%s", w->assumption[i].value);
        dt_html_cell(&b, "%s", w->assumption[i].source);
    }
    dt_html_table_end(&b);
}
