/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hold-out errors of the kernels' fit, and the sensitivity of the tables to each constant. */
#include "cli/accuracy.h"
#include "cli/facts.h"
#include "cli/rows.h"
#include "fit/profile_fit.h"

#include <math.h>
#include <string.h>

/* ---- hold-out ---- */

struct target { /* what a family's held-out mean error should stay under */
    const char *prefix;
    double most;
};
static const struct target targets[] = {
    {"gemm fwd (5 folds", 0.06},
    {"attn ", 0.08},
    {"collectives on", 0.08},
    {"send_recv", 0.10},
};

static double target_of(const char *what)
{
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++)
        if (strncmp(what, targets[i].prefix, strlen(targets[i].prefix)) == 0)
            return targets[i].most;
    return 0;
}

/* An object each, or (NULL) a line. */
static void scores(struct dt_json *j, const char *device, const struct dt_fit_report *r)
{
    const struct dt_cli_facts f = {.json = j};

    for (int i = 0; i < r->n; i++) {
        const struct dt_fit_local_score *s = &r->score[i].s;
        double most = target_of(r->score[i].what);

        if (j)
            dt_json_begin_object(j);
        dt_cli_fact_text(&f, "device", "", "holdout: %s", device);
        dt_cli_fact_text(&f, "what", "", " %s", r->score[i].what);
        dt_cli_fact_int(&f, "points", "", " n=%lld", (int64_t)s->n);
        dt_cli_fact_number(&f, "mape", "", " mean=%.1f%%", 100, s->mean);
        dt_cli_fact_number(&f, "median", "", " median=%.1f%%", 100, s->median);
        dt_cli_fact_number(&f, "p90", "", " p90=%.1f%%", 100, s->p90);
        if (most > 0) {
            dt_cli_fact_number(&f, "target", "", " target=%.0f%%", 100, most);
            dt_cli_fact_bool(&f, "met", s->mean <= most);
            dt_cli_fact_note(&f, " %s", s->mean <= most ? "met" : "MISSED");
        }
        dt_cli_fact_note(&f, "\n");
        if (j)
            dt_json_end_object(j);
    }
}

static bool measured(const struct dt_profile_table *t, const char *device)
{
    for (int i = 0; i < t->n_devices; i++)
        if (strcmp(t->devices[i], device) == 0)
            return true;
    return false;
}

/* A device without measurements of its own (the A800, fitted on the A100's) is left out. */
enum dt_status dt_cli_acc_holdout(const char *path, struct dt_json *j, struct dt_error *err)
{
    struct dt_profile_table in = {0};
    enum dt_status st = dt_profile_table_read(path, err, &in);
    int fitted = 0;

    if (j) {
        dt_json_key(j, "holdout");
        dt_json_begin_array(j);
    }
    for (int d = 0; st == DT_OK && dt_fit_device(d); d++) {
        struct dt_profile_table out = {0};
        struct dt_fit_report report;

        if (!measured(&in, dt_fit_device(d)))
            continue;
        st = dt_fit_profile(&in, dt_fit_device(d), err, &out, &report);
        dt_profile_table_free(&out);
        if (st != DT_OK)
            break;
        fitted++;
        scores(j, dt_fit_device(d), &report);
    }
    if (j)
        dt_json_end_array(j);
    else if (st == DT_OK)
        printf("\n");
    dt_profile_table_free(&in);
    if (st == DT_OK && fitted == 0)
        st = dt_error_set(err, DT_ERR_INPUT, "%s: no rows of a device that can be fitted (%s, %s)",
                          path, dt_fit_device(0), dt_fit_device(2));
    return st;
}

/* ---- sensitivity ---- */

#define STEP 0.1

struct effect {        /* over the rows of all tables */
    double mape, time; /* mean error; mean of log predicted */
};

static enum dt_status effect_of(const char *const *paths, int n, int every,
                                const struct dt_cli_acc_variant *v, struct dt_cli_acc_profiles *p,
                                struct dt_error *err, struct effect *out)
{
    struct effect e = {0};
    int rows = 0;

    for (int i = 0; i < n; i++) {
        struct dt_cli_acc_run r = {.rows = NULL};
        enum dt_status st = dt_cli_acc_run_table(paths[i], every, v, p, err, &r);

        for (int k = 0; st == DT_OK && k < r.table.n; k++, rows++) {
            e.mape += fabs(dt_cli_acc_error(&r.rows[k]));
            e.time += log(r.rows[k].predicted_s);
        }
        dt_cli_acc_run_free(&r);
        DT_TRY(st);
    }
    out->mape = rows > 0 ? e.mape / rows : 0;
    out->time = rows > 0 ? e.time / rows : 0;
    return DT_OK;
}

struct line {
    const struct dt_cost_constant *c;
    double value;
    struct effect less, more;
};

static void lines(struct dt_cli_rows *r, const struct line *l, int n, const struct effect *base)
{
    for (int i = 0; i < n; i++) {
        dt_cli_row(r);
        dt_cli_row_text(r, "constant", "constant", l[i].c->name);
        dt_cli_row_number(r, "value", "value", "%.6g", 1, l[i].value);
        dt_cli_row_text(r, "unit", "unit", l[i].c->unit);
        dt_cli_row_text(r, "source", "source", l[i].c->source);
        dt_cli_row_text(r, "meaning", "meaning", l[i].c->meaning);
        dt_cli_row_number(r, "mape", NULL, NULL, 1, base->mape);
        dt_cli_row_number(r, "mape_less", "MAPE -10 % [%]", "%.2f", 100, l[i].less.mape);
        dt_cli_row_number(r, "mape_more", "MAPE +10 % [%]", "%.2f", 100, l[i].more.mape);
        dt_cli_row_number(r, "time_less", "time -10 % [%]", "%+.2f", 100,
                          exp(l[i].less.time - base->time) - 1);
        dt_cli_row_number(r, "time_more", "time +10 % [%]", "%+.2f", 100,
                          exp(l[i].more.time - base->time) - 1);
    }
}

static void print_lines(const struct line *l, int n, const struct effect *base)
{
    static const int order[] = {0, 1, 2, 5, 6, 7, 8, 3, 4}; /* long texts last */
    struct dt_cli_rows r;

    printf("sensitivity: mean error of all rows %.2f %% as shipped; with 10 %% less and more of "
           "each constant, and how the predicted time moves\n",
           100 * base->mape);
    dt_cli_rows_table(&r);
    r.order = order;
    lines(&r, l, n, base);
    dt_cli_rows_end(&r, stdout);
}

static void json_lines(struct dt_json *j, const struct line *l, int n, const struct effect *base)
{
    struct dt_cli_rows r;

    dt_cli_rows_json(&r, j, "sensitivity");
    lines(&r, l, n, base);
    dt_cli_rows_end(&r, NULL);
}

enum dt_status dt_cli_acc_sensitivity(const char *const *paths, int n, int every,
                                      struct dt_cli_acc_profiles *p, struct dt_json *j,
                                      struct dt_error *err)
{
    static const struct dt_cost_constant host = {"dispatch", "us", "fitted, even rows; flash 12",
                                                 "host time per forward kernel, unfused rows"};
    struct line l[DT_COST_CONSTANTS + 1];
    struct effect base;

    DT_TRY(effect_of(paths, n, every, NULL, p, err, &base));
    for (int i = 0; i <= DT_COST_CONSTANTS; i++) {
        struct dt_cost_tuning less = dt_cost_tuning_default, more = less;
        struct dt_cli_acc_variant a = {.tuning = &less}, b = {.tuning = &more};

        if (i < DT_COST_CONSTANTS) {
            l[i].c = &dt_cost_constants[i];
            l[i].value = *dt_cost_tuning_at(&less, i);
            *dt_cost_tuning_at(&less, i) *= 1 - STEP;
            *dt_cost_tuning_at(&more, i) *= 1 + STEP;
        } else {
            l[i].c = &host;
            l[i].value = DT_DISPATCH_UNFUSED_US;
            a.dispatch = 1 - STEP;
            b.dispatch = 1 + STEP;
        }
        DT_TRY(effect_of(paths, n, every, &a, p, err, &l[i].less));
        DT_TRY(effect_of(paths, n, every, &b, p, err, &l[i].more));
    }
    if (j)
        json_lines(j, l, DT_COST_CONSTANTS + 1, &base);
    else
        print_lines(l, DT_COST_CONSTANTS + 1, &base);
    return DT_OK;
}
