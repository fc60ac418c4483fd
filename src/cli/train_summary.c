/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/train_summary.h"

#include "cli/session.h"
#include "cli/table.h"
#include "base/mem.h"
#include "base/text.h"
#include "exec/program/placement.h"

#include <stdio.h>
#include <string.h>

/* ---- findings ---- */

static enum dt_status host_names(const struct dt_supervisor *supervisor, int n,
                                 struct dt_error *err, const char ***out)
{
    const char **host = NULL;

    if (supervisor) {
        host = dt_malloc((size_t)n * sizeof(*host));
        if (!host)
            return dt_error_nomem(err, "hosts");
        for (int r = 0; r < n; r++)
            host[r] = dt_supervisor_rank(supervisor, r)->host;
    }
    *out = host;
    return DT_OK;
}

static enum dt_status find(const struct dt_train_summary *s, const struct dt_supervisor *supervisor,
                           struct dt_error *err, struct dt_cli_train_findings *f)
{
    size_t n = (size_t)s->program->n_lanes;

    DT_TRY(dt_outliers_find(s->program, &s->timeline, err, &f->o));
    DT_TRY(host_names(supervisor, s->ranks, err, &f->host));
    f->rank = dt_malloc(n * sizeof(*f->rank));
    f->memory = dt_malloc(n * sizeof(*f->memory));
    if (!f->rank || !f->memory)
        return dt_error_nomem(err, "lanes");
    for (size_t i = 0; i < n; i++) {
        f->rank[i] = s->lanes[i].rank;
        f->memory[i] =
            (struct dt_run_memory){s->lanes[i].predicted_bytes, s->lanes[i].allocated_bytes};
    }
    return DT_OK;
}

enum dt_status dt_cli_train_findings(const struct dt_train_summary *s,
                                     const struct dt_supervisor *supervisor, struct dt_error *err,
                                     struct dt_cli_train_findings *out)
{
    struct dt_cli_train_findings f = {0};
    enum dt_status st = s->program ? find(s, supervisor, err, &f) : DT_OK;

    if (st == DT_OK)
        *out = f;
    else
        dt_cli_train_findings_free(&f);
    return st;
}

void dt_cli_train_findings_free(struct dt_cli_train_findings *f)
{
    dt_free(f->rank);
    dt_free(f->host);
    dt_free(f->memory);
    memset(f, 0, sizeof(*f));
}

/* ---- parts ---- */

static void loading_json(const struct dt_prefetch_report *l, struct dt_json *j)
{
    dt_json_begin_object(j);
    dt_json_kv_int(j, "batches", l->batches);
    dt_json_kv_int(j, "waits", l->waits);
    dt_json_kv_double(j, "total_s", l->load_s + l->order_s);
    dt_json_kv_double(j, "load_s", l->load_s);
    dt_json_kv_double(j, "order_s", l->order_s);
    dt_json_kv_double(j, "exposed_s", l->exposed_s);
    dt_json_kv_double(j, "first_s", l->first_s);
    dt_json_end_object(j);
}

/* Means per batch; nothing runs beside the first. */
static void print_loading(const struct dt_prefetch_report *l)
{
    double n = (double)l->batches;
    char a[32], b[32], c[32];

    if (l->batches == 0)
        return;
    dt_cli_format_seconds((l->load_s + l->order_s) / n, a, sizeof a);
    dt_cli_format_seconds(l->order_s / n, b, sizeof b);
    dt_cli_format_seconds(l->batches > 1 ? l->exposed_s / (n - 1) : 0, c, sizeof c);
    printf("data and order   %10s   per batch (order %s), during the steps; exposed %s\n", a, b, c);
}

static void lanes_json(const struct dt_train_summary *s, const struct dt_model *m,
                       const struct dt_cli_train_findings *f, struct dt_json *j)
{
    dt_json_begin_array(j);
    for (int i = 0; s->program && i < s->program->n_lanes; i++) {
        const struct dt_lane *l = &s->program->lanes[i];

        dt_json_begin_object(j);
        dt_json_kv_string(j, "module", m->modules[l->module].name);
        dt_json_kv_int(j, "replica", l->replica);
        dt_json_kv_int(j, "stage", l->stage);
        dt_json_kv_int(j, "rank", f->rank[i]);
        if (f->host)
            dt_json_kv_string(j, "host", f->host[f->rank[i]]);
        dt_json_kv_int(j, "allocated_bytes", s->lanes[i].allocated_bytes);
        dt_json_kv_int(j, "predicted_bytes", s->lanes[i].predicted_bytes);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
}

/* Lanes whose first member is on the rank, a few of them by name. */
static void lanes_of(const struct dt_train_summary *s, const struct dt_model *m,
                     const struct dt_cli_train_findings *f, int rank, char *buf, size_t size)
{
    enum { NAMED = 4 };
    size_t at = 0;
    int n = 0;

    buf[0] = '\0';
    for (int i = 0; i < s->program->n_lanes; i++) {
        const struct dt_lane *l = &s->program->lanes[i];

        if (f->rank[i] == rank && n++ < NAMED && at < size)
            at += (size_t)snprintf(buf + at, size - at, " %s/%u.%u", m->modules[l->module].name,
                                   l->replica, l->stage);
    }
    if (n > NAMED && at < size)
        snprintf(buf + at, size - at, " and %d more", n - NAMED);
}

/* Of each rank, with its host and lanes. */
static void print_memory(const struct dt_train_summary *s, const struct dt_model *m,
                         const struct dt_cli_train_findings *f)
{
    char a[32], b[32], name[32], lanes[400];

    for (int r = 0; s->memory && r < s->ranks; r++) {
        snprintf(name, sizeof name, s->ranks > 1 ? "memory of rank %d" : "memory", r);
        lanes_of(s, m, f, r, lanes, sizeof lanes);
        printf("%-16s %10s   at most (predicted %s)%s%s%s%s\n", name,
               dt_cli_format_bytes((double)s->memory[r].allocated_bytes, a, sizeof a),
               dt_cli_format_bytes((double)s->memory[r].predicted_bytes, b, sizeof b),
               f->host ? " on " : "", f->host ? f->host[r] : "", lanes[0] ? ":" : "", lanes);
    }
}

static void print_trouble(const struct dt_train_trouble *c)
{
    if (c->nonfinite > 0)
        printf("not finite       %10lld   loss%s or gradient norm%s\n", (long long)c->nonfinite,
               c->nonfinite == 1 ? "" : "es", dt_plural(c->nonfinite));
    if (c->spikes > 0)
        printf("loss spikes      %10lld\n", (long long)c->spikes);
    if (c->skipped > 0)
        printf("skipped          %10lld   step%s\n", (long long)c->skipped, dt_plural(c->skipped));
    if (c->rollbacks > 0)
        printf("rolled back      %10lld   time%s\n", (long long)c->rollbacks,
               dt_plural(c->rollbacks));
}

/* ---- weights to begin with ---- */

static void print_init(const struct dt_ckpt_init_report *r)
{
    if (r->loaded == 0)
        return;
    printf("weights read       %lld tensor%s (%lld missing, %lld of the file unused)\n",
           (long long)r->loaded, dt_plural(r->loaded), (long long)r->missing,
           (long long)r->unexpected);
    for (int k = 0; k < r->n_modules; k++)
        printf("  %-16s %lld of %lld%s%s%s\n", r->modules[k].name, (long long)r->modules[k].found,
               (long long)r->modules[k].asked, r->modules[k].missing ? "; missing: " : "",
               r->modules[k].expected, r->modules[k].missing > 3 ? ", ..." : "");
    if (r->unexpected > 0)
        printf("  %-16s %s\n", "unused", r->unexpected_names);
}

static void init_json(const struct dt_ckpt_init_report *r, struct dt_json *j)
{
    if (r->loaded == 0) {
        dt_json_null(j);
        return;
    }
    dt_json_begin_object(j);
    dt_json_kv_int(j, "found", r->loaded);
    dt_json_kv_int(j, "missing", r->missing);
    dt_json_kv_int(j, "unused", r->unexpected);
    dt_json_key(j, "modules");
    dt_json_begin_array(j);
    for (int k = 0; k < r->n_modules; k++) {
        dt_json_begin_object(j);
        dt_json_kv_string(j, "module", r->modules[k].name);
        dt_json_kv_int(j, "asked", r->modules[k].asked);
        dt_json_kv_int(j, "found", r->modules[k].found);
        dt_json_kv_int(j, "missing", r->modules[k].missing);
        dt_json_kv_int(j, "unused", r->modules[k].unused);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
    dt_json_end_object(j);
}

/* ---- nothing to do ---- */

/* The checkpoint already had all steps. */
static bool finished_before(const struct dt_setup *setup, const struct dt_train_summary *s)
{
    return s->last_step == s->first_step && s->last_step >= setup->job->run.steps;
}

static void print_finished(const struct dt_setup *setup, const struct dt_train_summary *s)
{
    printf("nothing to do      the run was finished before: its checkpoint is of step %lld, and "
           "run.steps is %lld\n",
           (long long)s->last_step, (long long)setup->job->run.steps);
    printf("  to train on      set run.steps above %lld\n", (long long)s->last_step);
    printf("  for a new run    --from-scratch, or another run.checkpoint.dir\n");
    if (s->checkpoint[0])
        printf("checkpoint         %s\n", s->checkpoint);
}

/* ---- all of it ---- */

enum dt_status dt_cli_train_json(const struct dt_setup *setup, const struct dt_train_summary *s,
                                 const struct dt_cli_train_findings *f, struct dt_error *err,
                                 char **out)
{
    const struct dt_train_step *last = &s->last;
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "model", setup->plan.model);
    dt_json_kv_int(&j, "first_step", s->first_step);
    dt_json_kv_int(&j, "last_step", s->last_step);
    dt_json_kv_int(&j, "steps", setup->job->run.steps);
    dt_json_kv_bool(&j, "resumed", s->resumed);
    dt_json_kv_string(&j, "run_id", s->run_id);
    dt_json_kv_bool(&j, "stopped", s->stopped);
    dt_json_kv_bool(&j, "finished_before", finished_before(setup, s));
    dt_json_kv_double(&j, "loss", last->r.loss);
    dt_json_kv_double(&j, "loss_text", last->r.loss_text);
    dt_json_kv_double(&j, "loss_image", last->r.loss_image);
    dt_json_kv_double(&j, "best_loss", s->best_loss);
    dt_json_kv_double(&j, "grad_norm", last->r.grad_norm);
    dt_json_kv_int(&j, "nonfinite_steps", s->trouble.nonfinite);
    dt_json_kv_int(&j, "spikes", s->trouble.spikes);
    dt_json_kv_int(&j, "skipped_steps", s->trouble.skipped);
    dt_json_kv_int(&j, "rollbacks", s->trouble.rollbacks);
    dt_json_kv_double(&j, "iteration_s", s->mean_step_s);
    dt_json_kv_double(&j, "tokens_per_s", last->tokens_per_s);
    dt_json_kv_double(&j, "samples_per_s", last->samples_per_s);
    dt_json_kv_double(&j, "mfu", s->mfu);
    dt_json_kv_double(&j, "gemm_peak_flops", s->gemm_peak_flops);
    dt_json_kv_double(&j, "share_outside_compute", s->share_outside);
    dt_json_kv_double(&j, "share_waited", s->share_waited);
    dt_json_key(&j, "loading");
    loading_json(&s->loading, &j);
    dt_json_kv_int(&j, "ranks", s->ranks);
    dt_json_kv_int(&j, "memory_max_bytes", s->memory_max_bytes);
    dt_json_key(&j, "memory");
    dt_json_begin_array(&j);
    for (int r = 0; s->memory && r < s->ranks; r++) {
        dt_json_begin_object(&j);
        dt_json_kv_int(&j, "rank", r);
        if (f->host)
            dt_json_kv_string(&j, "host", f->host[r]);
        dt_json_kv_int(&j, "allocated_bytes", s->memory[r].allocated_bytes);
        dt_json_kv_int(&j, "predicted_bytes", s->memory[r].predicted_bytes);
        dt_json_end_object(&j);
    }
    dt_json_end_array(&j);
    dt_json_key(&j, "lanes");
    lanes_json(s, setup->job->model, f, &j);
    dt_json_key(&j, "stand_out");
    dt_cli_json_outliers(&j, s->program, setup->job->model, &f->o, f->rank, f->host);
    dt_json_kv_double(&j, "train_s", s->train_s);
    dt_json_kv_int(&j, "tokens", s->tokens);
    dt_json_kv_int(&j, "samples", s->samples);
    dt_json_kv_string(&j, "precision", setup->dtype == DT_BF16 ? "bf16" : "fp32");
    dt_json_kv_string(&j, "device", setup->device->info.name);
    dt_json_kv_string(&j, "isa", setup->device->info.isa);
    dt_json_kv_int(&j, "threads", setup->device->info.threads);
    dt_json_kv_bool(&j, "colocated", setup->plan.colocated);
    dt_json_kv_string(&j, "checkpoint", s->checkpoint[0] ? s->checkpoint : NULL);
    dt_json_key(&j, "init");
    init_json(&s->init, &j);
    dt_json_key(&j, "data");
    dt_json_begin_object(&j);
    dt_data_report_json(&s->data, &j);
    dt_json_end_object(&j);
    dt_json_end_object(&j);
    return dt_json_finish(&j, err, out);
}

void dt_cli_train_print(const struct dt_setup *setup, const struct dt_train_summary *s,
                        const struct dt_cli_train_findings *f)
{
    const struct dt_train_step *last = &s->last;
    char a[32];

    snprintf(a, sizeof a, s->ranks > 1 ? "%d ranks of " : "", s->ranks);
    printf("%s on %s (%s, %s%d thread%s, %s), %lld sample%s of %d tokens per step\n",
           setup->plan.model, setup->device->info.name, setup->device->info.isa, a,
           setup->device->info.threads, dt_plural(setup->device->info.threads),
           setup->dtype == DT_BF16 ? "bf16" : "fp32", (long long)setup->plan.policy.global_batch,
           dt_plural(setup->plan.policy.global_batch), setup->plan.policy.seq_len);
    if (finished_before(setup, s)) {
        print_finished(setup, s);
        return;
    }
    print_init(&s->init);
    if (s->last_step > s->first_step)
        printf("steps            %10lld to %lld of %lld%s%s\n", (long long)s->first_step + 1,
               (long long)s->last_step, (long long)setup->job->run.steps,
               s->resumed ? ", resumed" : "", s->stopped ? ", stopped on request" : "");
    else
        printf("steps            %10s   stopped on request after step %lld of %lld\n", "none",
               (long long)s->last_step, (long long)setup->job->run.steps);
    print_trouble(&s->trouble);
    if (last->r.targets > 0)
        printf("text loss        %10.4f nats per token\n", last->r.loss_text);
    if (last->r.images > 0)
        printf("image loss       %10.4f mean squared error of the noise\n", last->r.loss_image);
    printf("iteration        %10s   (%.0f tokens/s, %.1f samples/s at the end)\n",
           dt_cli_format_seconds(s->mean_step_s, a, sizeof a), last->tokens_per_s,
           last->samples_per_s);
    printf("MFU              %10.1f %%   of the %.1f GFLOP/s of a matrix product measured here\n",
           100 * s->mfu, s->gemm_peak_flops * 1e-9);
    printf("outside compute  %10.1f %%   of the iterations%s\n", 100 * s->share_outside,
           s->ranks > 1 ? " of rank 0" : "");
    if (s->ranks > 1)
        printf("waiting          %10.1f %%   of the iterations, for other ranks\n",
               100 * s->share_waited);
    print_loading(&s->loading);
    print_memory(s, setup->job->model, f);
    dt_cli_print_outliers("last step", s->program, setup->job->model, &f->o, f->rank, f->host);
    if (dt_data_bad_total(&s->data) > 0)
        printf("bad data         %10lld sample%s skipped\n", (long long)dt_data_bad_total(&s->data),
               dt_plural(dt_data_bad_total(&s->data)));
    if (s->checkpoint[0])
        printf("checkpoint       %s\n", s->checkpoint);
}
