/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain train: execute the job's program on this machine. */
#include "config.h"

#include "cli/launch.h"
#include "cli/ranks.h"
#include "cli/session.h"
#include "cli/table.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/outliers.h"
#include "core/runs.h"
#include "exec/clock.h"
#include "exec/placement.h"
#include "exec/train.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct dt_option dt_train_options_table[] = {
    {"from-scratch", 0, DT_OPT_FLAG, NULL, "begin anew although there is a checkpoint"},
    {"init-from", 0, DT_OPT_STRING, "PATH",
     "begin with these weights: safetensors, a folder of them, or a checkpoint"},
    {"ranks", 0, DT_OPT_INT, "N", "start N ranks under mpirun"},
    {"max-restarts", 0, DT_OPT_INT, "N",
     "with --ranks: when the job fails, go on from its last checkpoint, at most N times"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "keep the run in this SQLite file (default $DISTTRAIN_RUNS or ./disttrain-runs.db)"},
    {"no-runs", 0, DT_OPT_FLAG, NULL, "keep nothing there"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static volatile sig_atomic_t stop;

/* The first signal asks for an orderly end, the second one takes its usual course. */
static void on_signal(int sig)
{
    stop = 1;
    signal(sig, SIG_DFL);
}

static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL); /* what launchers pass on */
    signal(SIGXFSZ, SIG_IGN);     /* a file that may not grow is an error of writing it */
}

/* One line, redrawn; nothing unless stderr is a terminal. */
static void on_step(void *ctx, const struct dt_train_step *s)
{
    bool *drawn = ctx;
    char image[32] = "", text[32] = "", eta[32];

    if (!isatty(STDERR_FILENO))
        return;
    if (s->r.targets > 0)
        snprintf(text, sizeof text, "  text %.4f", s->r.loss_text);
    if (s->r.images > 0)
        snprintf(image, sizeof image, "  image %.4f", s->r.loss_image);
    fprintf(stderr,
            "\r\033[Kstep %lld/%lld%s%s  %.0f tokens/s  %.1f samples/s  MFU %.1f %%  ETA %s%s",
            (long long)s->step, (long long)s->steps, text, image, s->tokens_per_s, s->samples_per_s,
            100 * s->mfu, dt_format_seconds(s->eta_s, eta, sizeof eta), stop ? "  stopping" : "");
    fflush(stderr);
    *drawn = true;
}

/* ---- results ---- */

/* What stands out in the last iteration, and whose lanes are whose. */
struct findings {
    struct dt_outliers o;
    int *rank; /* [n_lanes], of a lane's first member */
};

static enum dt_status find_outliers(const struct dt_train_summary *s, struct dt_error *err,
                                    struct findings *f)
{
    struct dt_placement place;

    *f = (struct findings){0};
    if (!s->program)
        return DT_OK;
    DT_TRY(dt_outliers_find(s->program, &s->timeline, err, &f->o));
    f->rank = dt_malloc((size_t)s->program->n_lanes * sizeof(*f->rank));
    if (!f->rank)
        return dt_error_nomem(err, "lanes");
    DT_TRY(dt_placement_init(&place, s->program->plan, s->ranks, err));
    for (int i = 0; i < s->program->n_lanes; i++) {
        const struct dt_lane *l = &s->program->lanes[i];

        f->rank[i] = dt_placement_rank(&place, l->module, l->replica, l->stage, 0);
    }
    dt_placement_free(&place);
    return DT_OK;
}

static void loading_json(const struct dt_ahead_report *l, struct dt_json *j)
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
static void print_loading(const struct dt_ahead_report *l)
{
    double n = (double)l->batches;
    char a[32], b[32], c[32];

    if (l->batches == 0)
        return;
    dt_format_seconds((l->load_s + l->order_s) / n, a, sizeof a);
    dt_format_seconds(l->order_s / n, b, sizeof b);
    dt_format_seconds(l->batches > 1 ? l->exposed_s / (n - 1) : 0, c, sizeof c);
    printf("data and order   %10s   per batch (order %s), beside the steps; exposed %s\n", a, b, c);
}

static enum dt_status summary_json(const struct dt_setup *setup, const struct dt_train_summary *s,
                                   const struct findings *f, struct dt_error *err, char **out)
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
    dt_json_kv_bool(&j, "stopped", s->stopped);
    dt_json_kv_double(&j, "loss", last->r.loss);
    dt_json_kv_double(&j, "loss_text", last->r.loss_text);
    dt_json_kv_double(&j, "loss_image", last->r.loss_image);
    dt_json_kv_double(&j, "best_loss", s->best_loss);
    dt_json_kv_double(&j, "grad_norm", last->r.grad_norm);
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
        dt_json_kv_int(&j, "allocated_bytes", s->memory[r].allocated_bytes);
        dt_json_kv_int(&j, "predicted_bytes", s->memory[r].predicted_bytes);
        dt_json_end_object(&j);
    }
    dt_json_end_array(&j);
    dt_json_key(&j, "stand_out");
    dt_json_outliers(&j, s->program, setup->job->model, &f->o, f->rank);
    dt_json_kv_double(&j, "train_s", s->train_s);
    dt_json_kv_int(&j, "tokens", s->tokens);
    dt_json_kv_int(&j, "samples", s->samples);
    dt_json_kv_string(&j, "precision", setup->dtype == DT_BF16 ? "bf16" : "fp32");
    dt_json_kv_string(&j, "device", setup->device->info.name);
    dt_json_kv_string(&j, "isa", setup->device->info.isa);
    dt_json_kv_int(&j, "threads", setup->device->info.threads);
    dt_json_kv_bool(&j, "colocated", setup->plan.colocated);
    dt_json_kv_string(&j, "checkpoint", s->checkpoint[0] ? s->checkpoint : NULL);
    dt_json_key(&j, "data");
    dt_json_begin_object(&j);
    dt_data_report_json(&s->data, &j);
    dt_json_end_object(&j);
    dt_json_end_object(&j);
    return dt_json_finish(&j, err, out);
}

static void print_summary(const struct dt_setup *setup, const struct dt_train_summary *s,
                          const struct findings *f)
{
    const struct dt_train_step *last = &s->last;
    char a[32], b[32], name[32];

    snprintf(a, sizeof a, s->ranks > 1 ? "%d ranks of " : "", s->ranks);
    printf("%s on %s (%s, %s%d thread%s, %s), %lld samples of %d tokens per step\n",
           setup->plan.model, setup->device->info.name, setup->device->info.isa, a,
           setup->device->info.threads, setup->device->info.threads == 1 ? "" : "s",
           setup->dtype == DT_BF16 ? "bf16" : "fp32", (long long)setup->plan.policy.global_batch,
           setup->plan.policy.seq_len);
    if (s->init.loaded > 0)
        printf("weights read       %lld tensors (%lld not there, %lld of the file unused)\n",
               (long long)s->init.loaded, (long long)s->init.missing,
               (long long)s->init.unexpected);
    printf("steps            %10lld to %lld of %lld%s%s\n", (long long)s->first_step + 1,
           (long long)s->last_step, (long long)setup->job->run.steps, s->resumed ? ", resumed" : "",
           s->stopped ? ", stopped on request" : "");
    if (last->r.targets > 0)
        printf("text loss        %10.4f nats per token\n", last->r.loss_text);
    if (last->r.images > 0)
        printf("image loss       %10.4f mean squared error of the noise\n", last->r.loss_image);
    printf("iteration        %10s   (%.0f tokens/s, %.1f samples/s at the end)\n",
           dt_format_seconds(s->mean_step_s, a, sizeof a), last->tokens_per_s, last->samples_per_s);
    printf("MFU              %10.1f %%   of the %.1f GFLOP/s that a product reaches here\n",
           100 * s->mfu, s->gemm_peak_flops * 1e-9);
    printf("outside compute  %10.1f %%   of the iterations%s\n", 100 * s->share_outside,
           s->ranks > 1 ? " of rank 0" : "");
    if (s->ranks > 1)
        printf("waiting          %10.1f %%   of the iterations, for other ranks\n",
               100 * s->share_waited);
    print_loading(&s->loading);
    for (int r = 0; s->memory && r < s->ranks; r++) {
        snprintf(name, sizeof name, s->ranks > 1 ? "memory of rank %d" : "memory", r);
        printf("%-16s %10s   at most (predicted %s)\n", name,
               dt_format_bytes((double)s->memory[r].allocated_bytes, a, sizeof a),
               dt_format_bytes((double)s->memory[r].predicted_bytes, b, sizeof b));
    }
    dt_print_outliers("last step", s->program, setup->job->model, &f->o, f->rank);
    if (dt_data_bad_total(&s->data) > 0)
        printf("bad data         %10lld samples passed over\n",
               (long long)dt_data_bad_total(&s->data));
    if (s->checkpoint[0])
        printf("checkpoint       %s\n", s->checkpoint);
}

/* Names of the ranks' hosts; NULL = not known. */
static enum dt_status host_names(const struct dt_ranks *ranks, int n, struct dt_error *err,
                                 const char ***out)
{
    const char **host = NULL;

    if (ranks->world) {
        host = dt_malloc((size_t)n * sizeof(*host));
        if (!host)
            return dt_error_nomem(err, "hosts");
        for (int r = 0; r < n; r++)
            host[r] = dt_world_rank(ranks->world, r)->host;
    }
    *out = host;
    return DT_OK;
}

static enum dt_status keep_run(const struct dt_cli *cli, const struct dt_setup *setup,
                               const struct dt_ranks *ranks, const struct dt_train_summary *s,
                               const int *lane_rank, const char *started, const char *report,
                               struct dt_error *err)
{
    const char *file = dt_cli_string(cli, "runs", getenv("DISTTRAIN_RUNS"));
    const char **host = NULL;
    char *job = NULL;
    int64_t id;
    enum dt_status st;

    if (dt_cli_flag(cli, "no-runs") || !s->program)
        return DT_OK;
    DT_TRY(dt_doc_to_json(setup->job->doc, err, &job));
    struct dt_run_record run = {.kind = DT_RUN_EXECUTED,
                                .job_name = setup->job->name,
                                .job_json = job,
                                .started = started,
                                .version = PACKAGE_VERSION,
                                .report_json = report,
                                .seed = setup->job->run.seed,
                                .plan = &setup->plan,
                                .model = setup->job->model,
                                .program = s->program,
                                .timeline = &s->timeline,
                                .lane_rank = lane_rank,
                                .ops = true};
    st = host_names(ranks, s->ranks, err, &host);
    if (st == DT_OK) {
        run.rank_host = host;
        st = dt_runs_add(file && *file ? file : "disttrain-runs.db", &run, err, &id);
        dt_free(host);
    }
    dt_free(job);
    return st;
}

/* ---- running ---- */

static enum dt_status train(const struct dt_cli *cli, const struct dt_setup *setup,
                            const struct dt_ranks *ranks, struct dt_error *err)
{
    bool drawn = false, first = !ranks->transport || ranks->transport->rank == 0;
    struct dt_train_options o = {.setup = setup,
                                 .transport = ranks->transport,
                                 .world = ranks->world,
                                 .from_scratch = dt_cli_flag(cli, "from-scratch"),
                                 .stop = &stop,
                                 .on_step = on_step,
                                 .ctx = &drawn};
    struct dt_train_summary s;
    struct findings f = {0};
    char started[32], *report = NULL;
    enum dt_status st;

    dt_clock_utc(started, sizeof started);
    catch_signals();
    st = dt_train(&o, err, &s);
    if (drawn)
        fputc('\n', stderr);
    DT_TRY(st);
    if (first)
        st = find_outliers(&s, err, &f);
    if (st == DT_OK && first)
        st = summary_json(setup, &s, &f, err, &report);
    if (st == DT_OK && first)
        st = keep_run(cli, setup, ranks, &s, f.rank, started, report, err);
    if (st == DT_OK && first && cli->json)
        printf("%s\n", report);
    else if (st == DT_OK && first)
        print_summary(setup, &s, &f);
    dt_free(f.rank);
    dt_free(report);
    dt_train_summary_free(&s);
    return st;
}

/* What the job names, as this rank sees it. */
static enum dt_status agree_on_data(const struct dt_setup *setup, struct dt_world *world,
                                    struct dt_error *err)
{
    char data[40], model[40];
    struct dt_world_fact facts[] = {{"data", data}, {"model and tokenizer", model}};

    DT_TRY(dt_setup_data_digest(setup, err, data, sizeof data));
    dt_setup_digest(setup, model, sizeof model);
    return dt_world_agree(world, facts, 2, err);
}

static enum dt_status with_job(const struct dt_cli *cli, const struct dt_job *job,
                               const struct dt_ranks *ranks, struct dt_error *err)
{
    struct dt_device_options opt;
    struct dt_device *device;
    struct dt_setup setup;
    enum dt_status st;

    if (!job->run.stated)
        return dt_error_at(err, DT_ERR_INPUT, job->name, 0, 0,
                           "the job has no run: map, which says what to train on; see "
                           "disttrain-job(5)");
    dt_setup_device(job, &opt);
    opt.threads = opt.threads > 0 ? opt.threads : ranks->cores;
    DT_TRY(dt_device_open_cpu(&opt, err, &device));
    st = dt_setup_open(job, device, true, err, &setup);
    if (st == DT_OK) {
        if (ranks->world)
            st = agree_on_data(&setup, ranks->world, err);
        if (st == DT_OK)
            st = train(cli, &setup, ranks, err);
        dt_setup_close(&setup);
    }
    device->close(device);
    return st;
}

/* ---- ranks ---- */

struct task {
    const struct dt_cli *cli;
    const struct dt_job *job;
};

static enum dt_status on_ranks(void *ctx, const struct dt_ranks *r, struct dt_error *err)
{
    const struct task *t = ctx;

    return with_job(t->cli, t->job, r, err);
}

static enum dt_status launch(const struct dt_job *job, int64_t ranks, int64_t restarts,
                             struct dt_error *err)
{
    struct dt_launch l = {.ranks = (int)ranks, .max_restarts = restarts, .stop = &stop};
    int status = 0;

    if (restarts > 0 && !job->run.checkpoint_dir[0])
        return dt_error_set(err, DT_ERR_USAGE,
                            "--max-restarts goes on from checkpoints: the job needs "
                            "run.checkpoint, such as {dir: DIR, interval: 100}");
    catch_signals();
    DT_TRY(dt_launch(&l, err, &status));
    if (status != 0)
        exit(status); /* the job has said why */
    return DT_OK;
}

/* --init-from as an override, quoted: a path may hold what YAML gives a meaning. */
static enum dt_status init_from(const char *path, struct dt_error *err, char out[4096])
{
    size_t n = (size_t)snprintf(out, 4096, "run.init_from=\"");

    for (; *path; path++) {
        if (n + 4 > 4096 || (unsigned char)*path < 0x20)
            return dt_error_set(err, DT_ERR_USAGE, "--init-from: not a path that a job can name");
        if (*path == '"' || *path == '\\')
            out[n++] = '\\';
        out[n++] = *path;
    }
    out[n++] = '"';
    out[n] = '\0';
    return DT_OK;
}

enum dt_status dt_cmd_train(struct dt_cli *cli, struct dt_error *err)
{
    const char *path = cli->args[0], *weights = dt_cli_string(cli, "init-from", NULL);
    const char *overrides[DT_CLI_MAX_ARGS + 1];
    char found[4096], text[4096];
    int64_t ranks, restarts;
    int n = 0;
    struct dt_ranks alone = {0};
    struct task task = {.cli = cli};
    struct dt_job *job;
    enum dt_status st;
    bool launched;

    dt_calm_threads();
    DT_TRY(dt_cli_int(cli, "ranks", 1, 1 << 20, 0, &ranks, err));
    DT_TRY(dt_cli_int(cli, "max-restarts", 0, 1 << 20, 0, &restarts, err));
    launched = dt_transport_mpi_launched(NULL);
    if (restarts > 0 && (ranks == 0 || launched))
        return dt_error_set(err, DT_ERR_USAGE, "--max-restarts needs --ranks N without mpirun");
    if (strcmp(path, "-") != 0) {
        DT_TRY(dt_file_find("jobs", path, ".yaml", err, found, sizeof found));
        path = found;
    }
    for (int i = 1; i < cli->n_args; i++)
        overrides[n++] = cli->args[i];
    if (weights) {
        DT_TRY(init_from(weights, err, text));
        overrides[n++] = text;
    }
    DT_TRY(dt_job_read(path, overrides, n, err, &job));
    task.job = job;
    if (launched)
        st = dt_on_ranks(job, ranks, on_ranks, &task, err);
    else if (ranks > 1)
        st = launch(job, ranks, restarts, err);
    else
        st = with_job(cli, job, &alone, err);
    dt_job_free(job);
    return st;
}
