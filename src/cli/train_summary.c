/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/train_summary.h"

#include "cli/facts.h"
#include "cli/session.h"
#include "cli/table.h"
#include "base/mem.h"
#include "base/text.h"
#include "exec/program/placement.h"
#include "exec/train/train_experts.h"

#include <math.h>
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

/* Without producers the rest is about nothing. */
static void preprocess_json(const struct dt_train_summary *s, struct dt_json *j)
{
    const struct dt_prefetch_report *l = &s->loading;
    double n = l->batches > 0 ? (double)l->batches : 1;

    dt_json_begin_object(j);
    dt_json_kv_string(j, "mode", l->producers > 0 ? "disaggregated" : "colocated");
    dt_json_kv_int(j, "producers", l->producers);
    dt_json_kv_double(j, "exposed_s", l->exposed_s);
    dt_json_kv_double(j, "bytes_per_step", (double)l->feed.bytes / n);
    dt_json_kv_int(j, "documents", l->feed.sizes);
    dt_json_kv_int(j, "fetched", l->feed.payloads);
    dt_json_kv_int(j, "moved", l->feed.moved);
    dt_json_kv_int(j, "failures", l->feed.failures);
    dt_json_key(j, "decoded");
    dt_json_begin_array(j);
    for (int r = 0; s->decoded && r < s->ranks; r++)
        dt_json_int(j, (int64_t)s->decoded[r]);
    dt_json_end_array(j);
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
        if (s->memory[r].allocated_host_bytes > 0)
            printf("%-16s %10s   of its host, offloaded (predicted %s)\n", "",
                   dt_cli_format_bytes((double)s->memory[r].allocated_host_bytes, a, sizeof a),
                   dt_cli_format_bytes((double)s->memory[r].predicted_host_bytes, b, sizeof b));
    }
}

/* ---- facts: in JSON losses come before trouble, as text after it ---- */

static void losses(const struct dt_cli_facts *f, const struct dt_train_summary *s)
{
    const struct dt_train_step *last = &s->last;

    dt_cli_fact_number(f, "loss", NULL, NULL, 1, last->r.loss);
    dt_cli_fact_number(f, "loss_text", last->r.targets > 0 ? "text loss" : NULL,
                       "%10.4f nats per token\n", 1, last->r.loss_text);
    dt_cli_fact_number(f, "loss_image", last->r.images > 0 ? "image loss" : NULL,
                       "%10.4f mean squared error of the noise\n", 1, last->r.loss_image);
    dt_cli_fact_number(f, "best_loss", NULL, NULL, 1, s->best_loss);
    dt_cli_fact_number(f, "grad_norm", NULL, NULL, 1, last->r.grad_norm);
}

static void trouble(const struct dt_cli_facts *f, const struct dt_train_trouble *c)
{
    dt_cli_fact_int(f, "nonfinite_steps", c->nonfinite > 0 ? "not finite" : NULL,
                    c->nonfinite == 1 ? "%10lld   loss or gradient norm\n"
                                      : "%10lld   losses or gradient norms\n",
                    c->nonfinite);
    dt_cli_fact_int(f, "spikes", c->spikes > 0 ? "loss spikes" : NULL, "%10lld\n", c->spikes);
    dt_cli_fact_int(f, "skipped_steps", c->skipped > 0 ? "skipped" : NULL,
                    c->skipped == 1 ? "%10lld   step\n" : "%10lld   steps\n", c->skipped);
    dt_cli_fact_int(f, "rollbacks", c->rollbacks > 0 ? "rolled back" : NULL,
                    c->rollbacks == 1 ? "%10lld   time\n" : "%10lld   times\n", c->rollbacks);
}

static void speed(const struct dt_cli_facts *f, const struct dt_train_summary *s)
{
    char a[32];

    dt_cli_fact_number(f, "iteration_s", "iteration", "", 1, s->mean_step_s);
    dt_cli_fact_note(f, "%10s   (", dt_cli_format_seconds(s->mean_step_s, a, sizeof a));
    dt_cli_fact_number(f, "tokens_per_s", "", "%.0f tokens/s", 1, s->last.tokens_per_s);
    dt_cli_fact_number(f, "samples_per_s", "", ", %.1f samples/s at the end)\n", 1,
                       s->last.samples_per_s);
    dt_cli_fact_number(f, "mfu", "MFU", isnan(s->mfu) ? "         -  " : "%10.1f %%", 100, s->mfu);
    dt_cli_fact_number(f, "gemm_peak_flops", "",
                       "   of the %.1f GFLOP/s of a matrix product measured here\n", 1e-9,
                       s->gemm_peak_flops);
    dt_cli_fact_number(f, "share_outside_compute", "outside compute",
                       s->ranks > 1 ? "%10.1f %%   of the iterations of rank 0\n"
                                    : "%10.1f %%   of the iterations\n",
                       100, s->share_outside);
    dt_cli_fact_number(f, "share_waited", s->ranks > 1 ? "waiting" : NULL,
                       "%10.1f %%   of the iterations, for other ranks\n", 100, s->share_waited);
}

/* ---- experts ---- */

static void print_experts(const struct dt_train_summary *s)
{
    if (s->expert_forwards == 0)
        return;
    printf("experts          %10.2f times the mean rows at the busiest",
           s->busiest[DT_LOAD_EXPERT]);
    if (s->balance > 0)
        printf(" (balance %.3f; even: 1)", s->balance);
    printf("\n");
    for (int i = DT_LOAD_EP2; i < DT_LOAD_N; i++)
        if (s->busiest[i] > 0)
            printf("  %-14s %10.2f times at the busiest rank; to simulate it, set the LLM's "
                   "expert_imbalance: %.2f\n",
                   i == DT_LOAD_EP2   ? "with ep 2"
                   : i == DT_LOAD_EP4 ? "with ep 4"
                                      : "with ep 8",
                   s->busiest[i], s->busiest[i]);
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
    struct dt_json j;
    const struct dt_cli_facts facts = {.json = &j};

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
    losses(&facts, s);
    trouble(&facts, &s->trouble);
    speed(&facts, s);
    dt_json_key(&j, "experts");
    if (s->expert_forwards > 0)
        dt_train_experts_json(&j, s->balance, s->busiest);
    else
        dt_json_null(&j);
    dt_json_key(&j, "loading");
    loading_json(&s->loading, &j);
    if (s->mix) {
        dt_json_key(&j, "mix");
        dt_json_begin_object(&j);
        dt_json_kv_int(&j, "step", s->mix_step);
        dt_orch_mix_json(s->mix, &j);
        dt_json_end_object(&j);
    }
    dt_json_key(&j, "preprocess");
    preprocess_json(s, &j);
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
        if (s->memory[r].allocated_host_bytes > 0) {
            dt_json_kv_int(&j, "allocated_host_bytes", s->memory[r].allocated_host_bytes);
            dt_json_kv_int(&j, "predicted_host_bytes", s->memory[r].predicted_host_bytes);
        }
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
    const struct dt_cli_facts facts = {.width = 16};
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
    trouble(&facts, &s->trouble);
    losses(&facts, s);
    speed(&facts, s);
    print_experts(s);
    print_loading(&s->loading);
    print_memory(s, setup->job->model, f);
    dt_cli_print_outliers("last step", s->program, setup->job->model, &f->o, f->rank, f->host);
    if (dt_data_bad_total(&s->data) > 0)
        printf("bad data         %10lld sample%s skipped\n", (long long)dt_data_bad_total(&s->data),
               dt_plural(dt_data_bad_total(&s->data)));
    if (s->data.clips_cut > 0)
        printf(
            "long sounds      %10lld cut to what the encoder hears (run.audio_max_s, positions)\n",
            (long long)s->data.clips_cut);
    if (s->checkpoint[0])
        printf("checkpoint       %s\n", s->checkpoint);
}
