/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain accuracy: measured training runs, predicted as jobs, and the errors.
 *
 * Each row goes the way of `simulate`: job, manual plan, assignment, program, durations, event
 * engine, interval. */
#include "cli/session.h"
#include "cli/table.h"
#include "core/accuracy.h"
#include "core/file.h"
#include "core/mem.h"

#include <math.h>
#include <string.h>

enum { WORST = 5, PROFILES = 8 };

const struct dt_option dt_accuracy_options[] = {
    {"table", 't', DT_OPT_LIST, "FILE.csv", "a table of measured runs (may be repeated)"},
    {"rows", 'r', DT_OPT_FLAG, NULL, "print every row, not only the worst five of a table"},
    {"every", 0, DT_OPT_INT, "N", "only every N-th row of a table"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

struct profiles { /* read once, shared by all rows */
    int n;
    const char *name[PROFILES];
    char device[PROFILES][DT_NAME_MAX];
    struct dt_profile *profile[PROFILES];
};

static void profiles_free(struct profiles *p)
{
    for (int i = 0; i < p->n; i++)
        dt_profile_free(p->profile[i]);
}

static enum dt_status profile_of(struct profiles *p, const char *name, const char *device,
                                 struct dt_error *err, struct dt_profile **out)
{
    for (int i = 0; i < p->n; i++)
        if (strcmp(p->name[i], name) == 0 && strcmp(p->device[i], device) == 0) {
            *out = p->profile[i];
            return DT_OK;
        }
    if (p->n == PROFILES)
        return dt_error_set(err, DT_ERR_INPUT, "more than %d profiles", PROFILES);
    DT_TRY(dt_profile_load(name, device, "bf16", err, &p->profile[p->n]));
    p->name[p->n] = name;
    snprintf(p->device[p->n], sizeof p->device[0], "%s", device);
    *out = p->profile[p->n++];
    return DT_OK;
}

static enum dt_status predict(struct dt_job *job, struct dt_error *err, struct dt_accuracy_row *out)
{
    struct dt_plan plan = job->plan;
    struct dt_sim_result res;
    struct dt_cost *cost;
    enum dt_status st;

    DT_TRY(dt_plan_place(&plan, &job->cluster, err));
    DT_TRY(dt_plan_validate(&plan, job->model, &job->cluster, err));
    DT_TRY(dt_cost_new(job->model, &job->cluster, job->profile, &job->cost_opt, err, &cost));
    st = dt_simulate(job, &plan, cost, NULL, NULL, err, &res);
    if (st == DT_OK) {
        out->predicted_s = res.report.iteration_s;
        out->p10_s = res.report.iteration_s_p10;
        out->p90_s = res.report.iteration_s_p90;
        dt_sim_result_free(&res);
    }
    dt_cost_free(cost);
    return st;
}

static enum dt_status predict_row(const struct dt_measured_row *r, struct profiles *p,
                                  struct dt_error *err, struct dt_accuracy_row *out)
{
    char text[DT_MEASURED_JOB_MAX], name[96];
    const char *profile;
    struct dt_job *job;
    enum dt_status st;

    DT_TRY(dt_measured_job(r, err, text, sizeof text, &profile));
    snprintf(name, sizeof name, "row at line %d (%s)", r->line, r->label);
    DT_TRY(dt_job_parse(name, text, strlen(text), NULL, 0, true, err, &job));
    st = profile_of(p, profile, job->cluster.device, err, &job->profile);
    if (st == DT_OK)
        st = dt_samples_read(dt_map_get(dt_doc_root(job->doc), "samples"), r->seq, r->global_batch,
                             1, err, &job->samples);
    out->measured_s = r->measured_s;
    if (st == DT_OK)
        st = predict(job, err, out);
    job->profile = NULL; /* borrowed */
    dt_job_free(job);
    return st;
}

struct run {
    struct dt_measured_table table;
    struct dt_accuracy_row *rows;
    int *order; /* worst first */
    struct dt_accuracy a;
};

static void run_free(struct run *r)
{
    dt_measured_free(&r->table);
    dt_free(r->rows);
    dt_free(r->order);
}

static double error_of(const struct dt_accuracy_row *r)
{
    return r->measured_s > 0 ? r->predicted_s / r->measured_s - 1 : 0;
}

static void sort_worst(struct run *r)
{
    for (int i = 0; i < r->table.n; i++) {
        int j = i;

        for (; j > 0 && fabs(error_of(&r->rows[r->order[j - 1]])) < fabs(error_of(&r->rows[i]));
             j--)
            r->order[j] = r->order[j - 1];
        r->order[j] = i;
    }
}

static enum dt_status run_table(const char *path, int every, struct profiles *p,
                                struct dt_error *err, struct run *r)
{
    int n = 0;

    DT_TRY(dt_measured_read(path, err, &r->table));
    for (int i = 0; i < r->table.n; i += every)
        r->table.rows[n++] = r->table.rows[i];
    r->table.n = n;
    r->rows = dt_calloc((size_t)n, sizeof *r->rows);
    r->order = dt_calloc((size_t)n, sizeof *r->order);
    if (!r->rows || !r->order)
        return dt_error_nomem(err, "rows of a table");
    for (int i = 0; i < n; i++) {
        enum dt_status st = predict_row(&r->table.rows[i], p, err, &r->rows[i]);

        dt_progress(r->table.name, i + 1, n);
        if (st != DT_OK) {
            dt_progress_end();
            return st;
        }
    }
    dt_progress_end();
    sort_worst(r);
    return dt_accuracy_summary(r->rows, n, err, &r->a);
}

static void print_rows(const struct run *r, bool all)
{
    static const char *const heads[] = {"row",     "measured [s]", "predicted [s]",
                                        "p10 [s]", "p90 [s]",      "error [%]"};
    int n = all || r->table.n < WORST ? r->table.n : WORST;
    struct dt_table t;

    dt_table_init(&t, 6, heads);
    for (int k = 0; k < n; k++) {
        int i = all ? k : r->order[k];
        const struct dt_accuracy_row *a = &r->rows[i];

        dt_table_cell(&t, "%s", r->table.rows[i].label);
        if (a->measured_s > 0)
            dt_table_cell(&t, "%.4f", a->measured_s);
        else
            dt_table_cell(&t, "-");
        dt_table_cell(&t, "%.4f", a->predicted_s);
        dt_table_cell(&t, "%.4f", a->p10_s);
        dt_table_cell(&t, "%.4f", a->p90_s);
        if (a->measured_s > 0)
            dt_table_cell(&t, "%+.1f", 100 * error_of(a));
        else
            dt_table_cell(&t, "-");
    }
    dt_table_print(&t, stdout);
}

static void print_run(const struct run *r, bool all)
{
    const struct dt_accuracy *a = &r->a;

    printf("accuracy: %s n=%d mape=%.2f%% median=%.2f%% p90=%.2f%% max=%.2f%% bias=%+.2f%% "
           "cover80=%.1f%%\n",
           r->table.name, a->n, 100 * a->mape, 100 * a->median, 100 * a->p90, 100 * a->max,
           100 * a->bias, 100 * a->cover80);
    printf("assumed: %s\n", r->table.assumed);
    print_rows(r, all);
    printf("\n");
}

static void json_run(struct dt_json *j, const struct run *r)
{
    const struct dt_accuracy *a = &r->a;

    dt_json_begin_object(j);
    dt_json_kv_string(j, "table", r->table.name);
    dt_json_kv_string(j, "assumed", r->table.assumed);
    dt_json_kv_int(j, "n", a->n);
    dt_json_kv_double(j, "mape", a->mape);
    dt_json_kv_double(j, "median", a->median);
    dt_json_kv_double(j, "p90", a->p90);
    dt_json_kv_double(j, "max", a->max);
    dt_json_kv_double(j, "bias", a->bias);
    dt_json_kv_double(j, "cover80", a->cover80);
    dt_json_key(j, "rows");
    dt_json_begin_array(j);
    for (int i = 0; i < r->table.n; i++) {
        dt_json_begin_object(j);
        dt_json_kv_int(j, "line", r->table.rows[i].line);
        dt_json_kv_string(j, "row", r->table.rows[i].label);
        if (r->rows[i].measured_s > 0)
            dt_json_kv_double(j, "measured_s", r->rows[i].measured_s);
        dt_json_kv_double(j, "predicted_s", r->rows[i].predicted_s);
        dt_json_kv_double(j, "p10_s", r->rows[i].p10_s);
        dt_json_kv_double(j, "p90_s", r->rows[i].p90_s);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
    dt_json_end_object(j);
}

static enum dt_status run_all(struct dt_cli *cli, const char *const *paths, int n,
                              struct profiles *p, struct dt_json *j, struct dt_error *err)
{
    int64_t every;

    DT_TRY(dt_cli_int(cli, "every", 1, 1 << 20, 1, &every, err));
    for (int i = 0; i < n; i++) {
        struct run r = {.rows = NULL};
        enum dt_status st = run_table(paths[i], (int)every, p, err, &r);

        if (st == DT_OK && cli->json)
            json_run(j, &r);
        else if (st == DT_OK)
            print_run(&r, dt_cli_flag(cli, "rows"));
        run_free(&r);
        DT_TRY(st);
    }
    return DT_OK;
}

enum dt_status dt_cmd_accuracy(struct dt_cli *cli, struct dt_error *err)
{
    struct profiles p = {.n = 0};
    const char *paths[DT_CLI_MAX_ARGS];
    char shipped[4096];
    int n = 0;
    struct dt_json j;
    enum dt_status st;

    for (int i = 0; i < cli->n_list; i++)
        paths[n++] = cli->list[i];
    if (n == 0) { /* the published figures that come with the program */
        DT_TRY(dt_file_find("measured", "megatron", ".csv", err, shipped, sizeof shipped));
        paths[n++] = shipped;
    }
    dt_json_init(&j, true);
    if (cli->json) {
        dt_json_begin_object(&j);
        dt_json_key(&j, "tables");
        dt_json_begin_array(&j);
    }
    st = run_all(cli, paths, n, &p, &j, err);
    profiles_free(&p);
    if (cli->json) {
        dt_json_end_array(&j);
        dt_json_end_object(&j);
        if (st == DT_OK)
            return dt_json_emit(&j, err);
    }
    dt_json_discard(&j);
    return st;
}
