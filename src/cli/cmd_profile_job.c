/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain profile JOB: measure this machine for the blocks and messages of a job. */
#include "cli/launch.h"
#include "cli/profile.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "exec/train/profiler.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct profiling {
    const struct dt_cli *cli;
    const struct dt_cli_ranks *ranks;
    struct dt_setup setup;
    struct dt_sequence **seqs;
    int64_t n, repeats, largest;
    double reference_s;
    double seconds;
    const char *device, *output;
};

static void on_progress(void *ctx, const struct dt_profiler_progress *p)
{
    (void)ctx;
    dt_cli_progress_line("microbatches of %d sequence%s (%d of %d)", p->sequences,
                         dt_plural(p->sequences), p->done + 1, p->all);
}

/* The first sequences of the job's data, in the order in which training takes them. */
static enum dt_status read_sequences(struct profiling *s, struct dt_error *err)
{
    struct dt_loader *l;
    enum dt_status st;

    s->seqs = dt_calloc((size_t)s->n, sizeof(*s->seqs));
    if (!s->seqs)
        return dt_error_nomem(err, "sequences");
    DT_TRY(dt_loader_open(&s->setup.loader, err, &l));
    st = DT_OK;
    for (int64_t i = 0; i < s->n && st == DT_OK; i++) {
        st = dt_loader_next(l, err, &s->seqs[i]);
        if (st == DT_OK && !s->seqs[i])
            st =
                dt_error_set(err, DT_ERR_INPUT, "the data ends after %lld sequences", (long long)i);
    }
    dt_loader_close(l);
    return st;
}

static enum dt_status print_json(const struct profiling *s, const struct dt_profile_table *t,
                                 struct dt_error *err)
{
    struct dt_json j;
    char *text;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "output", s->output);
    dt_json_kv_string(&j, "device", s->device);
    dt_json_kv_string(&j, "origin", t->sources[t->n_sources - 1].origin);
    dt_json_kv_string(&j, "note", t->sources[t->n_sources - 1].note);
    dt_json_kv_int(&j, "rows", (int64_t)t->n_rows);
    dt_json_kv_double(&j, "reference_s", s->reference_s);
    dt_json_end_object(&j);
    DT_TRY(dt_json_finish(&j, err, &text));
    puts(text);
    dt_free(text);
    return DT_OK;
}

/* A profile that is there already is added to; rows measured anew take the place of old ones. */
static enum dt_status measure(struct profiling *s, struct dt_error *err)
{
    bool first = !s->ranks->transport || s->ranks->transport->rank == 0;
    struct dt_profiler_options o = {.setup = &s->setup,
                                    .n_seqs = (int)s->n,
                                    .sequences_max = (int)s->largest,
                                    .repeats = (int)s->repeats,
                                    .seconds = s->seconds,
                                    .reference_s = s->reference_s,
                                    .transport = s->ranks->transport,
                                    .device = s->device,
                                    .progress = first ? on_progress : NULL,
                                    .ctx = s};
    struct dt_profile_table t = {0};
    enum dt_status st;

    DT_TRY(read_sequences(s, err));
    o.seqs = (const struct dt_sequence *const *)s->seqs;
    st = dt_profiler_blocks(&o, err, &t, &s->reference_s);
    dt_cli_progress_end();
    if (st == DT_OK && first)
        st = dt_profile_table_write(&t, s->output, err);
    if (st == DT_OK && first && s->cli->json)
        st = print_json(s, &t, err);
    else if (st == DT_OK && first && strcmp(s->output, "-") != 0)
        printf("%s: %zu rows of device %s\n%s\n%s\n", s->output, t.n_rows, s->device,
               t.sources[t.n_sources - 1].origin, t.sources[t.n_sources - 1].note);
    dt_profile_table_free(&t);
    return st;
}

static enum dt_status read_options(struct profiling *s, const struct dt_job *job,
                                   struct dt_error *err)
{
    const struct dt_cli *cli = s->cli;

    s->output = dt_cli_string(cli, "output", "local.sql");
    s->device = dt_cli_string(cli, "device", job->cluster.device);
    DT_TRY(dt_cli_one_stdout(cli, s->output, err));
    s->n = s->setup.plan.policy.global_batch;
    DT_TRY(dt_cli_int(cli, "sequences", 1, s->n, s->n, &s->largest, err));
    DT_TRY(dt_cli_int(cli, "repeats", 1, 400, 15, &s->repeats, err));
    DT_TRY(dt_cli_double(cli, "reference", 1e-6, 1, 0, &s->reference_s, err));
    return dt_cli_double(cli, "seconds", 0, 3600, 1, &s->seconds, err);
}

static enum dt_status with_job(const struct dt_cli *cli, const struct dt_job *job,
                               const struct dt_cli_ranks *ranks, struct dt_error *err)
{
    struct profiling s = {.cli = cli, .ranks = ranks};
    struct dt_device *device;
    enum dt_status st;

    DT_TRY(dt_cli_need_run(job, "what data to measure with", err));
    DT_TRY(dt_cli_open_device(job, ranks, err, &device));
    st = dt_setup_open(job, device, true, err, &s.setup);
    if (st == DT_OK) {
        st = read_options(&s, job, err);
        if (st == DT_OK)
            st = measure(&s, err);
        for (int64_t i = 0; s.seqs && i < s.n; i++)
            dt_sequence_free(s.seqs[i]);
        dt_free(s.seqs);
        dt_setup_close(&s.setup);
    }
    device->close(device);
    return st;
}

struct task {
    const struct dt_cli *cli;
    const struct dt_job *job;
};

static enum dt_status on_ranks(void *ctx, const struct dt_cli_ranks *r, struct dt_error *err)
{
    const struct task *t = ctx;

    return with_job(t->cli, t->job, r, err);
}

static enum dt_status launch(const struct dt_cli *cli, int64_t ranks, struct dt_error *err)
{
    struct dt_launch l = {.argv = cli->argv, .ranks = (int)ranks};
    int status = 0;

    DT_TRY(dt_launch(&l, err, &status));
    if (status != 0)
        exit(status); /* the ranks have said why */
    return DT_OK;
}

enum dt_status dt_cmd_profile_job(struct dt_cli *cli, struct dt_error *err)
{
    const char *path = cli->args[0];
    struct dt_cli_ranks alone = {0};
    struct task task = {.cli = cli};
    char found[4096];
    int64_t ranks;
    struct dt_job *job;
    enum dt_status st;
    bool launched;

    dt_cli_limit_spin(cli);
    DT_TRY(dt_cli_int(cli, "ranks", 1, 1 << 20, 0, &ranks, err));
    DT_TRY(dt_cli_ranks_begin(path, ranks, err, &launched));
    if (strcmp(path, "-") != 0) {
        DT_TRY(dt_file_find("jobs", path, ".yaml", err, found, sizeof(found)));
        path = found;
    }
    DT_TRY(dt_job_read(path, cli->args + 1, cli->n_args - 1, err, &job));
    task.job = job;
    if (launched)
        st = dt_cli_on_ranks(job, ranks, on_ranks, &task, err);
    else if (ranks > 1)
        st = launch(cli, ranks, err);
    else
        st = with_job(cli, job, &alone, err);
    dt_job_free(job);
    return st;
}
