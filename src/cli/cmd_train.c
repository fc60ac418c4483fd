/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain train: execute the job's program on this machine. */
#include "config.h"

#include "cli/launch.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/session.h"
#include "cli/train_summary.h"
#include "cli/trained.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "report/runs.h"
#include "base/clock.h"
#include "exec/program/placement.h"
#include "exec/train/train.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct dt_cli_option options[] = {
    {"from-scratch", 0, DT_OPT_FLAG, NULL,
     "start a new run; checkpoints of earlier ones are moved aside"},
    {"run-id", 0, DT_OPT_STRING, "ID",
     "resume from the newest checkpoint of this run only, or start this run"},
    {"changed-data", 0, DT_OPT_FLAG, NULL,
     "resume even if the data is not what the checkpoint was trained on"},
    {"reference", 0, DT_OPT_INT, "N",
     "time a reference kernel before and after every Nth step, as the machine's speed may change"},
    {"orders", 0, DT_OPT_STRING, "W,B,R",
     "train on each batch in every order of samples in turn: W batches, then B batches R times"},
    {"init-from", 0, DT_OPT_STRING, "PATH",
     "start with these weights: safetensors, a folder of them, or a checkpoint"},
    {"init-partial", 0, DT_OPT_FLAG, NULL,
     "with --init-from: accept weights that lack all of a module, or a part of a layer"},
    {"ranks", 0, DT_OPT_INT, "N", "start N ranks under mpirun"},
    {"max-restarts", 0, DT_OPT_INT, "N",
     "with --ranks: if the job fails, resume from its last checkpoint, at most N times"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "keep the run in this SQLite file (default $DISTTRAIN_RUNS or ./disttrain-runs.db)"},
    {"no-runs", 0, DT_OPT_FLAG, NULL, "do not store the run"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static volatile sig_atomic_t stop;

/* The first signal asks for an orderly end, the second one takes its usual course. */
static void on_signal(int sig)
{
    stop = 1;
    signal(sig, SIG_DFL);
}

/* On a stack of its own: oneDNN's products for AVX2 have the stack pointer in a buffer of the heap while they run, and what a
 * handler puts below it would overwrite another's memory. */
static void catch_signals(void)
{
    static char stack[1 << 16];
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK}, before;

    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof(stack)}, NULL);
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL); /* what launchers pass on */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* no nohup */
        sigaction(SIGHUP, &a, NULL);
}

/* One line, redrawn; nothing unless stderr is a terminal. */
static void on_step(void *ctx, const struct dt_train_step *s)
{
    bool *drawn = ctx;
    char image[32] = "", text[32] = "", mfu[32] = "", eta[32];

    if (!s->r.applied)
        snprintf(text, sizeof text, "  skipped");
    else if (s->r.targets > 0)
        snprintf(text, sizeof text, "  text %.4f", s->r.loss_text);
    if (s->r.applied && s->r.images > 0)
        snprintf(image, sizeof image, "  image %.4f", s->r.loss_image);
    if (!isnan(s->mfu))
        snprintf(mfu, sizeof mfu, "  MFU %.1f %%", 100 * s->mfu);
    dt_cli_progress_line("step %lld/%lld%s%s%s  ETA %s%s  %.0f tokens/s  %.1f samples/s",
                         (long long)s->step, (long long)s->steps, stop ? "  stopping" : "", text,
                         image, dt_text_duration(s->eta_s, eta, sizeof eta), mfu, s->tokens_per_s,
                         s->samples_per_s);
    *drawn = isatty(STDERR_FILENO);
}

/* A line that stays, above the one that is redrawn. */
static void on_warning(void *ctx, const char *line)
{
    bool *drawn = ctx;

    fprintf(stderr, "%sdisttrain: warning: %s\n", *drawn ? "\r\033[K" : "", line);
    fflush(stderr);
    *drawn = false;
}

static void on_event(void *ctx, const struct dt_train_event *e)
{
    char text[2048];

    dt_train_trouble_text(e, text, sizeof text);
    on_warning(ctx, text);
}

/* ---- results ---- */

static enum dt_status keep_run(const struct dt_cli *cli, const struct dt_setup *setup,
                               const struct dt_train_summary *s,
                               const struct dt_cli_train_findings *f, const char *started,
                               const char *report, struct dt_error *err)
{
    struct dt_run_facts facts;
    char source[256], host[256], *job = NULL, *overrides = NULL;
    int64_t id;
    enum dt_status st;

    if (dt_cli_flag(cli, "no-runs") || dt_cli_string(cli, "orders", NULL) || !s->program)
        return DT_OK;
    DT_TRY(dt_doc_to_json(setup->job->doc, err, &job));
    st = dt_cli_overrides_text(cli->args + 1, cli->n_args - 1, NULL, err, &overrides);
    if (st != DT_OK) {
        dt_free(job);
        return st;
    }
    snprintf(source, sizeof(source), "%s, step %lld",
             setup->job->run.data.n > 0 ? setup->job->run.data.path[0] : "-",
             (long long)s->last_step);
    dt_run_facts_of(setup->job->model, &setup->plan, source, s->samples_digest,
                    s->gemm_peak_flops / s->ranks, &facts);
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
                                .lane_rank = f->rank,
                                .rank_host = f->host,
                                .memory_of = setup->device->info.packs ? "cpu" : "gpu",
                                .lane_memory = f->memory,
                                .data = s->beside,
                                .n_data = s->n_beside,
                                .facts = &facts,
                                .model_flops = s->model_flops,
                                .host = dt_cli_host(host, sizeof host),
                                .overrides = overrides,
                                .ops = true};
    st = dt_runs_add(dt_cli_runs_file(cli), &run, err, &id);
    dt_free(overrides);
    dt_free(job);
    return st;
}

/* ---- running ---- */

/* Without strategy manual a job is trained as one without a plan. */
static void warn_of_plan(const struct dt_job *job, bool *drawn)
{
    struct dt_node n = dt_map_get(dt_doc_root(job->doc), "plan");
    char line[128];

    if (job->has_plan || !dt_node_present(n) || dt_node_is_null(n))
        return;
    snprintf(line, sizeof line,
             "plan: not used with strategy %s; search.strategy: manual makes it count",
             dt_plan_strategy_names[job->strategy]);
    on_warning(drawn, line);
}

static enum dt_status train(const struct dt_cli *cli, const struct dt_setup *setup,
                            const struct dt_train_turns *turns, const struct dt_cli_ranks *ranks,
                            struct dt_error *err)
{
    bool drawn = false, first = !ranks->transport || ranks->transport->rank == 0;
    const struct dt_warn warn = {on_warning, &drawn};
    struct dt_train_options o = {.setup = setup,
                                 .transport = ranks->transport,
                                 .supervisor = ranks->supervisor,
                                 .from_scratch = dt_cli_flag(cli, "from-scratch"),
                                 .changed_data = dt_cli_flag(cli, "changed-data"),
                                 .turns = turns,
                                 .run_id = dt_cli_string(cli, "run-id", NULL),
                                 .warn = &warn,
                                 .stop = &stop,
                                 .on_step = on_step,
                                 .on_event = on_event,
                                 .ctx = &drawn};
    struct dt_train_summary s;
    struct dt_cli_train_findings f = {0};
    struct dt_error not_kept = {0};
    char started[32], *report = NULL;
    enum dt_status st;

    dt_clock_utc(started, sizeof started);
    DT_TRY(dt_cli_int(cli, "reference", 1, INT64_MAX, 0, &o.reference_every, err));
    if (first)
        warn_of_plan(setup->job, &drawn);
    catch_signals();
    st = dt_train(&o, err, &s);
    if (drawn)
        fputc('\n', stderr);
    DT_TRY(st);
    if (first)
        st = dt_cli_train_findings(&s, ranks->supervisor, err, &f);
    if (st == DT_OK && first)
        st = dt_cli_train_json(setup, &s, &f, err, &report);
    if (st == DT_OK && first && cli->json)
        printf("%s\n", report);
    else if (st == DT_OK && first)
        dt_cli_train_print(setup, &s, &f);
    if (st == DT_OK && first && keep_run(cli, setup, &s, &f, started, report, &not_kept) != DT_OK)
        dt_cli_warn_not_kept(&not_kept);
    dt_cli_train_findings_free(&f);
    dt_free(report);
    dt_train_summary_free(&s);
    return st;
}

/* What the job names, as this rank sees it. */
static enum dt_status agree_on_data(const struct dt_setup *setup, struct dt_supervisor *supervisor,
                                    struct dt_error *err)
{
    char data[40], model[40];
    struct dt_supervisor_fact facts[] = {{"data", data}, {"model and tokenizer", model}};

    DT_TRY(dt_setup_data_digest(setup, err, data, sizeof data));
    dt_ckpt_job_digest(&setup->identity, model, sizeof model);
    return dt_supervisor_agree(supervisor, facts, 2, err);
}

/* "W,B,R". */
static enum dt_status read_turns(const char *text, struct dt_train_turns *t, struct dt_error *err)
{
    enum { MOST = 10000 };
    int64_t *to[] = {&t->warm_up, &t->batches, &t->rounds};
    const char *at = text;

    for (int k = 0; k < 3; k++) {
        char *end;
        long v = strtol(at, &end, 10);

        if (*at < '0' || *at > '9' || v < (k > 0) || v > MOST || *end != (k < 2 ? ',' : '\0'))
            return dt_error_set(err, DT_ERR_USAGE,
                                "--orders: '%s' is not W,B,R: batches of warm-up (0 to %d), "
                                "batches and rounds (1 to %d)",
                                text, MOST, MOST);
        *to[k] = v;
        at = end + 1;
    }
    return DT_OK;
}

/* As many steps as they take. */
static enum dt_status take_turns(const struct dt_cli *cli, struct dt_job *job,
                                 const struct dt_setup *setup, struct dt_train_turns *t,
                                 struct dt_error *err)
{
    DT_TRY(read_turns(dt_cli_string(cli, "orders", NULL), t, err));
    dt_train_turns_ways(t, job->model, &setup->plan);
    job->run.steps = dt_train_turns_steps(t);
    return DT_OK;
}

static enum dt_status with_job(const struct dt_cli *cli, struct dt_job *job,
                               const struct dt_cli_ranks *ranks, struct dt_error *err)
{
    const bool in_turn = dt_cli_string(cli, "orders", NULL);
    struct dt_train_turns turns = {0};
    struct dt_device *device;
    struct dt_setup setup;
    enum dt_status st;

    DT_TRY(dt_cli_need_run(job, "what to train on", err));
    DT_TRY(dt_cli_open_device(job, ranks, err, &device));
    st = dt_setup_open(job, device, true, err, &setup);
    if (st == DT_OK) {
        if (ranks->supervisor)
            st = agree_on_data(&setup, ranks->supervisor, err);
        if (st == DT_OK && in_turn)
            st = take_turns(cli, job, &setup, &turns, err);
        if (st == DT_OK)
            st = train(cli, &setup, in_turn ? &turns : NULL, ranks, err);
        dt_setup_close(&setup);
    }
    device->close(device);
    return st;
}

/* ---- ranks ---- */

struct task {
    const struct dt_cli *cli;
    struct dt_job *job;
};

static enum dt_status on_ranks(void *ctx, const struct dt_cli_ranks *r, struct dt_error *err)
{
    const struct task *t = ctx;

    return with_job(t->cli, t->job, r, err);
}

/* What all restarts go on with: the run of the checkpoint that the first start goes on from, else a
 * new one. */
static enum dt_status choose_run(const struct dt_cli *cli, const struct dt_job *job,
                                 struct dt_error *err, char id[DT_RUN_ID_SIZE])
{
    char path[1200];
    bool found;

    dt_ckpt_run_id_new(id);
    if (dt_cli_flag(cli, "from-scratch"))
        return DT_OK;
    return dt_ckpt_find_run(job->run.checkpoint_dir, NULL, NULL, err, &found, path, sizeof path,
                            id);
}

/* As many ranks as the plan has GPUs at most: said before they are started. */
static enum dt_status check_ranks(const struct dt_job *job, int ranks, struct dt_error *err)
{
    struct dt_placement placement;
    struct dt_plan plan;

    if (!job->run.stated) /* said by whoever trains */
        return DT_OK;
    DT_TRY(dt_setup_plan(job, err, &plan));
    DT_TRY(dt_placement_init(&placement, &plan, ranks, err));
    dt_placement_free(&placement);
    return DT_OK;
}

static enum dt_status launch(const struct task *t, int64_t ranks, int64_t restarts,
                             struct dt_error *err)
{
    char id[DT_RUN_ID_SIZE];
    struct dt_launch l = {
        .argv = t->cli->argv, .ranks = (int)ranks, .max_restarts = restarts, .orderly = true};
    int status = 0;

    DT_TRY(check_ranks(t->job, (int)ranks, err));
    if (restarts > 0 && !t->job->run.checkpoint_dir[0])
        return dt_error_set(err, DT_ERR_USAGE,
                            "--max-restarts resumes from checkpoints: the job needs "
                            "run.checkpoint, such as {dir: DIR, interval: 100}");
    if (restarts > 0 && !dt_cli_string(t->cli, "run-id", NULL)) {
        DT_TRY(choose_run(t->cli, t->job, err, id));
        l.run_id = id;
    }
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

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    const char *path = cli->args[0], *weights = dt_cli_string(cli, "init-from", NULL);
    const char *run_id = dt_cli_string(cli, "run-id", NULL);
    const char *orders = dt_cli_string(cli, "orders", NULL);
    const char *overrides[DT_CLI_MAX_ARGS + 2];
    char found[4096], text[4096];
    int64_t ranks, restarts, every;
    int n = 0;
    struct dt_cli_ranks alone = {0};
    struct task task = {.cli = cli};
    struct dt_train_turns turns;
    struct dt_job *job;
    enum dt_status st;
    bool launched;

    dt_cli_limit_spin(cli);
    DT_TRY(dt_cli_int(cli, "ranks", 1, 1 << 20, 0, &ranks, err));
    DT_TRY(dt_cli_int(cli, "reference", 1, INT64_MAX, 0, &every, err)); /* before ranks start */
    DT_TRY(dt_cli_int(cli, "max-restarts", 0, 1 << 20, 0, &restarts, err));
    if (orders) /* before ranks start */
        DT_TRY(read_turns(orders, &turns, err));
    if (orders && !dt_cli_flag(cli, "from-scratch"))
        return dt_error_set(err, DT_ERR_USAGE, "--orders goes with --from-scratch");
    if (!dt_cli_flag(cli, "no-runs"))
        DT_TRY(dt_file_check(dt_cli_runs_file(cli), err));
    DT_TRY(dt_cli_ranks_begin(path, ranks, err, &launched));
    if (run_id && !dt_ckpt_run_id_valid(run_id))
        return dt_error_set(err, DT_ERR_USAGE,
                            "--run-id: '%s' is not 1 to 64 letters, digits, '.', '_' or '-'",
                            run_id);
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
    if (dt_cli_flag(cli, "init-partial")) {
        overrides[n++] = "run.init_partial=true";
    }
    DT_TRY(dt_job_read(path, overrides, n, err, &job));
    task.job = job;
    st = dt_cli_job_folders(job, err);
    if (st == DT_OK && launched)
        st = dt_cli_on_ranks(job, ranks, on_ranks, &task, err);
    else if (st == DT_OK && ranks > 1)
        st = launch(&task, ranks, restarts, err);
    else if (st == DT_OK)
        st = with_job(cli, job, &alone, err);
    dt_job_free(job);
    return st;
}

const struct dt_cli_command dt_cmd_train = {
    .name = "train",
    .args = "JOB [KEY=VALUE...]",
    .summary = "execute the job: train its model on this machine",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
