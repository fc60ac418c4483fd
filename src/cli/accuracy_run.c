/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows of measured tables, predicted as jobs.
 *
 * Each row goes the way of `simulate`: job, manual plan, assignment, program, durations, event
 * engine, interval. */
#include "cli/accuracy.h"
#include "cli/progress.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

void dt_cli_acc_profiles_free(struct dt_cli_acc_profiles *p)
{
    for (int i = 0; i < p->n; i++)
        dt_profile_free(p->profile[i]);
}

static enum dt_status profile_of(struct dt_cli_acc_profiles *p, const char *name,
                                 const char *device, struct dt_error *err, struct dt_profile **out)
{
    for (int i = 0; i < p->n; i++)
        if (strcmp(p->name[i], name) == 0 && strcmp(p->device[i], device) == 0) {
            *out = p->profile[i];
            return DT_OK;
        }
    if (p->n == DT_ACC_PROFILES)
        return dt_error_set(err, DT_ERR_INPUT, "more than %d profiles", DT_ACC_PROFILES);
    DT_TRY(dt_profile_load(name, device, "bf16", err, &p->profile[p->n]));
    p->name[p->n] = name;
    snprintf(p->device[p->n], sizeof p->device[0], "%s", device);
    *out = p->profile[p->n++];
    return DT_OK;
}

enum { NOTE_SIZE = 512 };

static enum dt_status predict(struct dt_job *job, const struct dt_cli_acc_variant *v,
                              struct dt_error *err, struct dt_accuracy_row *out,
                              char note[NOTE_SIZE])
{
    struct dt_plan plan = job->plan;
    struct dt_sim_result res;
    struct dt_cost *cost;
    enum dt_status st;

    if (v) {
        job->cost_opt.tuning = v->tuning;
        job->cost_opt.dispatch_ns *= v->dispatch > 0 ? v->dispatch : 1;
    }
    DT_TRY(dt_plan_place(&plan, &job->cluster, err));
    DT_TRY(dt_plan_validate(&plan, job->model, &job->cluster, err));
    DT_TRY(dt_cost_new(job->model, &job->cluster, job->profile, &job->cost_opt, err, &cost));
    dt_cost_note(cost, note, NOTE_SIZE);
    st = dt_sim_run(job, &plan, cost, NULL, NULL, err, &res);
    if (st == DT_OK) {
        out->predicted_s = res.report.iteration_s;
        out->p10_s = res.report.iteration_s_p10;
        out->p90_s = res.report.iteration_s_p90;
        dt_sim_result_free(&res);
    }
    dt_cost_free(cost);
    return st;
}

static enum dt_status predict_row(const struct dt_accuracy_measured_row *r,
                                  const struct dt_cli_acc_variant *v, struct dt_cli_acc_profiles *p,
                                  struct dt_error *err, struct dt_accuracy_row *out,
                                  char note[NOTE_SIZE])
{
    char text[DT_MEASURED_JOB_MAX], name[96];
    const char *profile;
    struct dt_job *job;
    enum dt_status st;

    DT_TRY(dt_accuracy_measured_job(r, err, text, sizeof text, &profile));
    snprintf(name, sizeof name, "row at line %d (%s)", r->line, r->label);
    DT_TRY(dt_job_parse(name, text, strlen(text), NULL, 0, true, err, &job));
    st = profile_of(p, profile, job->cluster.device, err, &job->profile);
    if (st == DT_OK)
        st = dt_samples_read(dt_map_get(dt_doc_root(job->doc), "samples"), r->seq, r->global_batch,
                             1, NULL, err, &job->samples);
    out->measured_s = r->measured_s;
    if (st == DT_OK)
        st = predict(job, v, err, out, note);
    job->profile = NULL; /* borrowed */
    dt_job_free(job);
    return st;
}

void dt_cli_acc_run_free(struct dt_cli_acc_run *r)
{
    dt_accuracy_measured_free(&r->table);
    dt_free(r->rows);
    dt_free(r->order);
    for (int i = 0; i < r->n_notes; i++)
        dt_free(r->note[i]);
    dt_free(r->note);
}

static enum dt_status add_note(struct dt_cli_acc_run *r, const char *note, struct dt_error *err)
{
    void *grown = r->note;
    int k = 0;

    while (k < r->n_notes && strcmp(r->note[k], note) != 0)
        k++;
    if (k < r->n_notes || !note[0])
        return DT_OK;
    if (dt_grow(&grown, &r->notes_cap, (size_t)k + 1, sizeof *r->note) != 0)
        return dt_error_nomem(err, "notes of a table");
    r->note = grown;
    r->note[k] = dt_strdup(note);
    if (!r->note[k])
        return dt_error_nomem(err, "notes of a table");
    r->n_notes++;
    return DT_OK;
}

static void sort_worst(struct dt_cli_acc_run *r)
{
    for (int i = 0; i < r->table.n; i++) {
        int j = i;

        for (; j > 0 && fabs(dt_cli_acc_error(&r->rows[r->order[j - 1]])) <
                            fabs(dt_cli_acc_error(&r->rows[i]));
             j--)
            r->order[j] = r->order[j - 1];
        r->order[j] = i;
    }
}

enum dt_status dt_cli_acc_run_table(const char *path, int every, const struct dt_cli_acc_variant *v,
                                    struct dt_cli_acc_profiles *p, struct dt_error *err,
                                    struct dt_cli_acc_run *r)
{
    int n = 0;

    DT_TRY(dt_accuracy_measured_read(path, err, &r->table));
    for (int i = 0; i < r->table.n; i += every)
        r->table.rows[n++] = r->table.rows[i];
    r->table.n = n;
    r->rows = dt_calloc((size_t)n, sizeof *r->rows);
    r->order = dt_calloc((size_t)n, sizeof *r->order);
    if (!r->rows || !r->order)
        return dt_error_nomem(err, "rows of a table");
    for (int i = 0; i < n; i++) {
        char note[NOTE_SIZE] = "";
        enum dt_status st = predict_row(&r->table.rows[i], v, p, err, &r->rows[i], note);

        if (st == DT_OK)
            st = add_note(r, note, err);
        dt_cli_progress(r->table.name, i + 1, n);
        if (st != DT_OK) {
            dt_cli_progress_end();
            return st;
        }
    }
    dt_cli_progress_end();
    sort_worst(r);
    return dt_accuracy_summary(r->rows, n, err, &r->a);
}
