/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The head of a page: the answer, the numbers, what they rest on; several runs side by side. */
#include "report/page.h"

#include "report/compare.h"
#include "report/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* How a number reads: scaled, with its unit; whether more of it is better. */
static const struct {
    const char *label, *unit;
    double scale;
    int decimals;
    int better; /* 1 more, -1 less, 0 neither */
} shown[DT_NUMBER_N] = {
    [DT_NUMBER_ITERATION] = {"iteration", "s", 1, 3, -1},
    [DT_NUMBER_P10] = {"80 % interval, lower end", "s", 1, 3, -1},
    [DT_NUMBER_P90] = {"80 % interval, upper end", "s", 1, 3, -1},
    [DT_NUMBER_TOKENS] = {"throughput", "tokens/s", 1, 0, 1},
    [DT_NUMBER_SAMPLES] = {"samples", "samples/s", 1, 1, 1},
    [DT_NUMBER_MFU] = {"MFU", "%", 100, 2, 1},
    [DT_NUMBER_HFU] = {"HFU", "%", 100, 2, 1},
    [DT_NUMBER_MFU_CLUSTER] = {"MFU of all GPUs", "%", 100, 2, 1},
    [DT_NUMBER_GPUS_USED] = {"GPUs used", "", 1, 0, 0},
    [DT_NUMBER_GPUS] = {"GPUs in the cluster", "", 1, 0, 0},
    [DT_NUMBER_BUBBLES] = {"time without compute", "%", 100, 2, -1},
    [DT_NUMBER_EXPOSED] = {"exposed communication", "s", 1, 3, -1},
    [DT_NUMBER_GOODPUT] = {"goodput", "%", 100, 2, 1},
    [DT_NUMBER_ITERATIONS] = {"iterations simulated", "", 1, 0, 0},
    [DT_NUMBER_RANKS] = {"processes", "", 1, 0, 0},
    [DT_NUMBER_STEPS] = {"steps trained", "", 1, 0, 0},
};

char *dt_report_page_seconds(double s, char *buf, size_t size)
{
    bool ms = fabs(s) < 0.5;

    snprintf(buf, size, "%.3f %s", ms ? s * 1e3 : s, ms ? "ms" : "s");
    return buf;
}

/* "1,296", "30.989 s", "56.66 %" */
static void as_text(enum dt_report_number k, double v, char *buf, size_t size)
{
    double x = v * shown[k].scale;

    if (strcmp(shown[k].unit, "s") == 0) {
        dt_report_page_seconds(x, buf, size);
        return;
    }
    if (shown[k].decimals == 0 && fabs(x) < 1e15) {
        char digits[32];
        size_t n = 0;
        int len = snprintf(digits, sizeof digits, "%.0f", x);

        for (int i = 0; i < len && n + 2 < size; i++) {
            if (i > 0 && digits[i - 1] != '-' && (len - i) % 3 == 0)
                buf[n++] = ',';
            buf[n++] = digits[i];
        }
        buf[n] = '\0';
    } else {
        snprintf(buf, size, "%.*f", shown[k].decimals, x);
    }
    if (shown[k].unit[0])
        snprintf(buf + strlen(buf), size - strlen(buf), " %s", shown[k].unit);
}

static bool told(const struct dt_report_page_run *r, enum dt_report_number k)
{
    return isfinite(r->number[k]);
}

/* The number as text that programs can read back. */
static void data(struct dt_text *t, const struct dt_report_page_run *r, enum dt_report_number k)
{
    char text[64];

    as_text(k, r->number[k], text, sizeof text);
    dt_text_add(t, "<data value=\"%.17g\" data-key=\"%s\" data-run=\"%lld\">", r->number[k],
                dt_report_number_keys[k], (long long)r->id);
    dt_html_escape(t, text);
    dt_html_raw(t, "</data>");
}

static const char *units(const struct dt_report_page_run *r)
{
    return r->cpu ? "processes" : "GPUs";
}

static bool has_interval(const struct dt_report_page_run *r)
{
    return told(r, DT_NUMBER_P10) && told(r, DT_NUMBER_P90) &&
           r->number[DT_NUMBER_P90] > r->number[DT_NUMBER_P10];
}

static int64_t gpus_of(const struct dt_report_page_run *r)
{
    return told(r, DT_NUMBER_GPUS_USED) ? (int64_t)r->number[DT_NUMBER_GPUS_USED] : r->view.gpus;
}

/* "mllm-72b-1296" of "/srv/jobs/mllm-72b-1296.yaml". */
static void job_name(const struct dt_report_page_run *r, char *buf, size_t size)
{
    const char *slash = strrchr(r->job, '/'), *name = slash ? slash + 1 : r->job;
    const char *dot = strrchr(name, '.');

    snprintf(buf, size, "%.*s", (int)(dot && dot > name ? (size_t)(dot - name) : strlen(name)),
             name);
}

void dt_report_page_answer(struct dt_text *t, const struct dt_report_page_run *r,
                           const char *question)
{
    char job[256], gpus[64];

    job_name(r, job, sizeof job);
    as_text(DT_NUMBER_GPUS_USED, (double)gpus_of(r), gpus, sizeof gpus);
    dt_html_raw(t, "<h1>");
    if (question)
        dt_html_escape(t, question);
    else
        dt_html_text(t,
                     r->executed ? "How long did an iteration of %s take on %s %s of %s?"
                                 : "How long does an iteration of %s take on %s %s of %s?",
                     r->model[0] ? r->model : job, gpus, units(r),
                     r->cluster[0] ? r->cluster : "the cluster");
    dt_html_raw(t, "</h1>\n<p class=\"answer\">");
    if (told(r, DT_NUMBER_ITERATION)) {
        dt_html_raw(t, "<strong>");
        data(t, r, DT_NUMBER_ITERATION);
        dt_html_raw(t, "</strong> per iteration");
    }
    if (has_interval(r)) {
        dt_html_raw(t, " (80 % interval ");
        data(t, r, DT_NUMBER_P10);
        dt_html_raw(t, " to ");
        data(t, r, DT_NUMBER_P90);
        dt_html_raw(t, ")");
    }
    if (told(r, DT_NUMBER_TOKENS)) {
        dt_html_raw(t, ": ");
        data(t, r, DT_NUMBER_TOKENS);
    }
    if (told(r, DT_NUMBER_MFU)) {
        dt_html_raw(t, " at an MFU of ");
        data(t, r, DT_NUMBER_MFU);
    }
    dt_html_raw(t, r->executed ? ", <strong>measured</strong> in a run of job "
                               : ", <strong>predicted</strong> by simulation of job ");
    dt_html_text(t, "%s, strategy %s.", job, r->strategy[0] ? r->strategy : "not known");
    dt_html_raw(t, "</p>\n");
}

static void tile(struct dt_text *t, const struct dt_report_page_run *r, enum dt_report_number k,
                 const char *sub)
{
    if (!told(r, k))
        return;
    dt_html_raw(t, "<div><dt>");
    dt_html_escape(t, k == DT_NUMBER_GPUS_USED && r->cpu ? "processes used" : shown[k].label);
    dt_html_raw(t, "</dt><dd>");
    data(t, r, k);
    dt_html_raw(t, "</dd><dd class=\"sub\">");
    dt_html_escape(t, sub);
    dt_html_raw(t, "</dd></div>\n");
}

/* The fullest GPU against what it has. */
static void memory_tile(struct dt_text *t, const struct dt_report_page_run *r)
{
    const struct dt_report_worked_out *w = &r->worked;
    double unit = r->cpu ? 1048576 : 1073741824, most = 0;
    double measured = r->summary.v[DT_RUN_memory_bytes_max];

    for (int m = 0; m < r->n_modules; m++)
        most = r->module[m].memory_bytes > most ? r->module[m].memory_bytes : most;
    most = r->memory_max_bytes > most ? r->memory_max_bytes : most; /* with all that share it */
    if (r->executed && measured > 0) {
        dt_html_raw(t, "<div><dt>");
        dt_html_text(t, "memory of the fullest %s", r->cpu ? "process" : "GPU");
        dt_html_raw(t, "</dt><dd>");
        dt_html_text(t, "%.1f %s", measured / unit, r->cpu ? "MiB" : "GiB");
        dt_html_raw(t, "</dd><dd class=\"sub\">measured</dd></div>\n");
        return;
    }
    if (!(most > 0))
        return;
    dt_html_raw(t, "<div><dt>");
    dt_html_text(t, "memory of the fullest %s", r->cpu ? "process" : "GPU");
    dt_html_raw(t, "</dt><dd>");
    dt_html_text(t, "%.1f %s", most / unit, r->cpu ? "MiB" : "GiB");
    dt_html_raw(t, "</dd><dd class=\"sub\">");
    if (r->memory_unfit[0])
        dt_html_text(t, "does not fit: %s", r->memory_unfit);
    else if (w->memory_limit_bytes > 0)
        dt_html_text(t, "predicted; %.1f %s may be used", w->memory_limit_bytes / unit,
                     r->cpu ? "MiB" : "GiB");
    else
        dt_html_raw(t, "predicted");
    dt_html_raw(t, "</dd></div>\n");
}

static void interval_text(const struct dt_report_page_run *r, char *buf, size_t size)
{
    char low[48], high[48];

    as_text(DT_NUMBER_P10, r->number[DT_NUMBER_P10], low, sizeof low);
    as_text(DT_NUMBER_P90, r->number[DT_NUMBER_P90], high, sizeof high);
    snprintf(buf, size, "80 %% interval %s to %s", low, high);
}

void dt_report_page_numbers(struct dt_text *t, const struct dt_report_page_run *r)
{
    char sub[160], other[64];

    dt_html_raw(t, "<dl class=\"tiles\">\n");
    if (has_interval(r))
        interval_text(r, sub, sizeof sub);
    else
        snprintf(sub, sizeof sub, r->executed ? "measured: mean of the run's steps" : "predicted");
    tile(t, r, DT_NUMBER_ITERATION, sub);
    if (told(r, DT_NUMBER_SAMPLES)) {
        as_text(DT_NUMBER_SAMPLES, r->number[DT_NUMBER_SAMPLES], other, sizeof other);
        snprintf(sub, sizeof sub, "%s", other);
    } else {
        sub[0] = '\0';
    }
    tile(t, r, DT_NUMBER_TOKENS, sub);
    if (told(r, DT_NUMBER_HFU))
        snprintf(sub, sizeof sub, "HFU %.2f %%", 100 * r->number[DT_NUMBER_HFU]);
    else
        snprintf(sub, sizeof sub, "model FLOPs per peak FLOPs");
    tile(t, r, DT_NUMBER_MFU, sub);
    if (told(r, DT_NUMBER_GPUS)) {
        as_text(DT_NUMBER_GPUS, r->number[DT_NUMBER_GPUS], other, sizeof other);
        snprintf(sub, sizeof sub, "of %s in the cluster", other);
        tile(t, r, DT_NUMBER_GPUS_USED, sub);
    }
    tile(t, r, DT_NUMBER_RANKS, "that took part");
    tile(t, r, DT_NUMBER_BUBBLES, "of the used GPUs' time: bubbles and exposed communication");
    if (told(r, DT_NUMBER_GOODPUT) && r->number[DT_NUMBER_GOODPUT] < 1)
        tile(t, r, DT_NUMBER_GOODPUT, "of wall time trains; failures and checkpoints included");
    memory_tile(t, r);
    dt_html_raw(t, "</dl>\n");
}

/* ---- what the time rests on ---- */

enum dt_status dt_report_page_provenance(struct dt_text *t, const struct dt_report_page_run *r,
                                         const char *id, struct dt_error *err)
{
    static const enum dt_chart_colour colours[DT_PROV_N] = {
        DT_CHART_GREEN, DT_CHART_SKY, DT_CHART_ORANGE, DT_CHART_BLUE, DT_CHART_RED};
    static const char *const one[] = {"predicted time"};
    struct dt_chart_series s[DT_PROV_N];
    double percent[DT_PROV_N], sum = 0;
    char names[DT_PROV_N][48], *svg;
    int n = 0;
    struct dt_chart c = {.title = "What the predicted time rests on",
                         .y = {.unit = "% of the predicted time", .to = 100},
                         .series = s,
                         .categories = one,
                         .n_categories = 1,
                         .stacked = true,
                         .horizontal = true,
                         .width = 900};

    for (int k = 0; k < DT_PROV_N; k++) {
        sum += percent[k] = 100 * r->provenance[k];
        if (percent[k] < 0.05)
            continue;
        snprintf(names[k], sizeof names[k], "%s %.1f %%", dt_cost_prov_names[k], percent[k]);
        s[n++] = (struct dt_chart_series){
            .name = names[k], .colour = colours[k], .n = 1, .y = &percent[k]};
    }
    c.n_series = n;
    if (sum < 50)
        return DT_OK;
    DT_TRY(dt_chart_svg(&c, DT_CHART_FRAGMENT, id, err, &svg));
    dt_html_raw(t, "<figure><div class=\"scroll\">");
    dt_html_raw(t, svg);
    dt_html_raw(
        t, "</div><figcaption>What the predicted time rests on. Measured: a measured row of the "
           "profile. "
           "Interpolated: between rows measured on this device. Extrapolated: outside of them. "
           "Computed: arithmetic on other rows, or a roofline. Assumed: a stated assumption."
           "</figcaption></figure>\n");
    dt_free(svg);
    return DT_OK;
}

static void layout_text(const struct dt_plan *p, int m, char *buf, size_t size)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    int n = snprintf(buf, size, "tp %d, pp %d, dp %d", l->tp, l->pp, l->dp);

    if (l->cp > 1 && n > 0 && (size_t)n < size)
        n += snprintf(buf + n, size - (size_t)n, ", cp %d", l->cp);
    if (l->ep > 1 && n > 0 && (size_t)n < size)
        n += snprintf(buf + n, size - (size_t)n, ", ep %d", l->ep);
    if (l->ip > 1 && n > 0 && (size_t)n < size)
        n += snprintf(buf + n, size - (size_t)n, ", ip %d", l->ip);
    if (l->vpp > 1 && n > 0 && (size_t)n < size)
        snprintf(buf + n, size - (size_t)n, ", vpp %d", l->vpp);
}

static void zero_cell(struct dt_html_table *b, const struct dt_plan_module *p)
{
    const char *where = dt_plan_offloads_optimizer(p) ? ", on the host" : "";

    if (p->zero_group > 0)
        dt_html_cell(b, "%d in groups of %d%s", p->zero, p->zero_group, where);
    else
        dt_html_cell(b, "%d%s", p->zero, where);
}

static const struct dt_report_module *module_named(const struct dt_report_page_run *r,
                                                   const char *name)
{
    for (int i = 0; i < r->n_modules; i++)
        if (strcmp(r->module[i].name, name) == 0)
            return &r->module[i];
    return NULL;
}

void dt_report_page_modules(struct dt_text *t, const struct dt_report_page_run *r)
{
    const struct dt_html_column columns[] = {{"module", false},
                                             {"layout", false},
                                             {r->cpu ? "processes" : "GPUs", true},
                                             {"lies on", false},
                                             {"recompute", false},
                                             {"ZeRO", true},
                                             {"model FLOPs [PFLOP]", true},
                                             {"busy [%]", true},
                                             {r->cpu ? "memory [MiB]" : "memory [GiB]", true}};
    double unit = r->cpu ? 1048576 : 1073741824;
    char layout[128], samples[32], tokens[32];
    struct dt_html_table b;

    if (!r->has_plan)
        return;
    as_text(DT_NUMBER_GPUS, (double)r->plan.policy.global_batch, samples, sizeof samples);
    as_text(DT_NUMBER_GPUS, r->plan.policy.seq_len, tokens, sizeof tokens);
    dt_html_raw(t, "<h3>The plan</h3>\n<p>");
    dt_html_text(t, "%lld samples of %d tokens per iteration in microbatches of %d, schedule %s.",
                 (long long)r->plan.policy.global_batch, r->plan.policy.seq_len,
                 r->plan.policy.microbatch, dt_pipe_schedule_names[r->plan.policy.schedule]);
    dt_html_raw(t, "</p>\n");
    dt_html_table_begin(
        &b, t, "Layout of each module: tensor (tp), pipeline (pp) and data (dp) parallelism",
        columns, 9);
    for (int m = 0; m < r->plan.n_modules; m++) {
        const struct dt_plan_module *p = &r->plan.modules[m];
        const struct dt_report_module *x = module_named(r, r->plan.module_names[m]);

        layout_text(&r->plan, m, layout, sizeof layout);
        dt_html_cell(&b, "%s%s", r->plan.module_names[m], p->frozen ? " (frozen)" : "");
        dt_html_cell(&b, "%s", layout);
        dt_html_cell(&b, "%d", dt_plan_layout_gpus(&p->layout));
        if (p->with)
            dt_html_cell(&b, "those of %s", r->plan.module_names[p->with - 1]);
        else
            dt_html_cell(&b, "its own");
        dt_html_cell(&b, "%s", dt_block_recompute_names[p->recompute]);
        zero_cell(&b, p);
        if (x && isfinite(x->utilisation)) {
            dt_html_cell(&b, "%.3f", x->model_flops * 1e-15);
            dt_html_cell(&b, "%.1f", 100 * x->utilisation);
            dt_html_cell(&b, "%.2f", x->memory_bytes / unit);
        } else {
            for (int k = 0; k < 3; k++)
                dt_html_cell(&b, "–");
        }
    }
    dt_html_table_end(&b);
}

/* ---- side by side ---- */

static void difference(char *buf, size_t size, const struct dt_report_page_run *first,
                       const struct dt_report_page_run *r, enum dt_report_number k)
{
    double a = first->number[k], b = r->number[k];

    as_text(k, b, buf, size);
    if (r != first && isfinite(a) && a != 0)
        snprintf(buf + strlen(buf), size - strlen(buf), " (%+.1f %%)", 100 * (b - a) / fabs(a));
}

static void compare_row(struct dt_html_table *b, const struct dt_report_page_run *runs, int n,
                        enum dt_report_number k)
{
    char text[96];
    bool any = false;

    for (int i = 0; i < n; i++)
        any |= told(&runs[i], k);
    if (!any)
        return;
    dt_html_cell(b, "%s",
                 k == DT_NUMBER_GPUS_USED && runs[0].cpu ? "processes of the plan"
                 : k == DT_NUMBER_GPUS && runs[0].cpu    ? "processes that the cluster has room for"
                                                         : shown[k].label);
    for (int i = 0; i < n; i++)
        if (told(&runs[i], k)) {
            difference(text, sizeof text, &runs[0], &runs[i], k);
            dt_html_cell_number(b, dt_report_number_keys[k], runs[i].number[k], text);
        } else {
            dt_html_cell(b, "–");
        }
}

static void words_row(struct dt_html_table *b, const struct dt_report_page_run *runs, int n,
                      const char *head, size_t offset)
{
    bool any = false;

    for (int i = 0; i < n; i++)
        any |= *((const char *)&runs[i] + offset) != '\0';
    if (!any)
        return;
    dt_html_cell(b, "%s", head);
    for (int i = 0; i < n; i++)
        dt_html_cell(b, "%s", (const char *)&runs[i] + offset);
}

static void compare_table(struct dt_text *t, const struct dt_report_page_run *runs, int n)
{
    struct dt_html_column columns[DT_REPORT_PAGE_RUNS_MAX + 1] = {{"", false}};
    struct dt_html_table b;

    for (int i = 0; i < n; i++)
        columns[i + 1] = (struct dt_html_column){runs[i].name, true};
    dt_html_table_begin(&b, t, "Runs side by side; in brackets the difference to the first",
                        columns, n + 1);
    dt_html_cell(&b, "is");
    for (int i = 0; i < n; i++)
        dt_html_cell(&b, runs[i].executed ? "measured" : "predicted");
    words_row(&b, runs, n, "job", offsetof(struct dt_report_page_run, job));
    words_row(&b, runs, n, "model", offsetof(struct dt_report_page_run, model));
    words_row(&b, runs, n, "cluster", offsetof(struct dt_report_page_run, cluster));
    words_row(&b, runs, n, "strategy", offsetof(struct dt_report_page_run, strategy));
    words_row(&b, runs, n, "overrides",
              offsetof(struct dt_report_page_run, summary.about.overrides));
    words_row(&b, runs, n, "on", offsetof(struct dt_report_page_run, summary.about.host));
    words_row(&b, runs, n, "started", offsetof(struct dt_report_page_run, started));
    for (int k = 0; k < DT_NUMBER_N; k++)
        compare_row(&b, runs, n, (enum dt_report_number)k);
    dt_html_table_end(&b);
}

static enum dt_status compare_iterations(struct dt_text *t, const struct dt_report_page_run *runs,
                                         int n, struct dt_error *err)
{
    double y[DT_REPORT_PAGE_RUNS_MAX], low[DT_REPORT_PAGE_RUNS_MAX], high[DT_REPORT_PAGE_RUNS_MAX];
    const char *names[DT_REPORT_PAGE_RUNS_MAX];
    char *svg;

    for (int i = 0; i < n; i++) {
        bool interval = has_interval(&runs[i]);

        names[i] = runs[i].name;
        y[i] = runs[i].number[DT_NUMBER_ITERATION];
        low[i] = interval ? runs[i].number[DT_NUMBER_P10] : NAN;
        high[i] = interval ? runs[i].number[DT_NUMBER_P90] : NAN;
    }
    const struct dt_chart_series s = {
        .colour = DT_CHART_BLUE, .n = n, .y = y, .low = low, .high = high};
    const struct dt_chart c = {.title = "Iteration time of each run",
                               .y = {.label = "iteration", .unit = "s"},
                               .series = &s,
                               .n_series = 1,
                               .categories = names,
                               .n_categories = n,
                               .horizontal = true};

    DT_TRY(dt_chart_svg(&c, DT_CHART_FRAGMENT, "compare-iteration", err, &svg));
    dt_html_raw(t, "<figure><div class=\"scroll\">");
    dt_html_raw(t, svg);
    dt_html_raw(t, "</div><figcaption>Iteration time; whiskers: 80 % intervals of "
                   "predictions.</figcaption></figure>\n");
    dt_free(svg);
    return DT_OK;
}

/* Times of other work are no comparison, and MFUs of other peaks none of efficiency. */
static void work_note(struct dt_text *t, const struct dt_report_page_run *a,
                      const struct dt_report_page_run *b)
{
    struct dt_run_difference differ[DT_RUN_FACTS_MAX];
    int n = dt_run_facts_differ(&a->summary.facts, &b->summary.facts, differ);
    double x = a->summary.peak_flops, y = b->summary.peak_flops;

    dt_html_raw(t, "<li>");
    switch (dt_compare_work(&a->summary, &b->summary)) {
    case DT_COMPARE_SAME:
        dt_html_text(t, "%s had the same work to do as %s.", b->name, a->name);
        break;
    case DT_COMPARE_OTHER:
        dt_html_text(t, "%s had other work to do than %s: their times are not of the same thing.",
                     b->name, a->name);
        break;
    case DT_COMPARE_UNKNOWN:
        dt_html_text(t, "Whether %s had the same work to do as %s is not known.", b->name, a->name);
        break;
    }
    for (int i = 0; i < n; i++)
        dt_html_text(t, "%s %s: %s instead of %s", i ? ";" : " They differ in", differ[i].name,
                     differ[i].b, differ[i].a);
    dt_html_raw(t, n > 0 ? "." : "");
    if (x > 0 && y > 0 && fabs(y / x - 1) > 1e-3)
        dt_html_text(t, " Each MFU is of its own peak: %.4g and %.4g TFLOP/s of a device.",
                     x * 1e-12, y * 1e-12);
    dt_html_raw(t, "</li>\n");
}

enum dt_status dt_report_page_compare(struct dt_text *t, const struct dt_report_page_run *runs,
                                      int n, struct dt_error *err)
{
    dt_html_raw(t, "<h2>Side by side</h2>\n");
    dt_html_raw(t, "<ul class=\"note\">\n");
    for (int i = 1; i < n; i++)
        work_note(t, &runs[0], &runs[i]);
    dt_html_raw(t, "</ul>\n");
    compare_table(t, runs, n);
    return compare_iterations(t, runs, n, err);
}
