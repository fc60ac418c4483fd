/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/trained.h"

#include "cli/ranks.h"
#include "base/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum dt_status beside_job(const char *job, char *folder, size_t size, struct dt_error *err)
{
    const char *slash = strrchr(job, '/');
    char path[4096];
    struct stat sb;

    if (!folder[0] || folder[0] == '/' || !slash || dt_file_is_stream(job) ||
        snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - job), job, folder) >=
            (int)sizeof(path) ||
        stat(path, &sb) != 0 || !S_ISDIR(sb.st_mode))
        return DT_OK;
    if (strlen(path) >= size)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "file name too long");
    memcpy(folder, path, strlen(path) + 1);
    return DT_OK;
}

enum dt_status dt_cli_job_folders(struct dt_job *job, struct dt_error *err)
{
    const char *file = dt_doc_name(job->doc);
    struct dt_job_run_options *r = &job->run;

    DT_TRY(beside_job(file, r->checkpoint_dir, sizeof(r->checkpoint_dir), err));
    return beside_job(file, r->log_dir, sizeof(r->log_dir), err);
}

static enum dt_status read_job(const struct dt_cli *cli, struct dt_error *err, struct dt_job **out)
{
    const char *path = cli->args[0];
    char found[4096];
    enum dt_status st;

    if (strcmp(path, "-") != 0) {
        DT_TRY(dt_file_find("jobs", path, ".yaml", err, found, sizeof(found)));
        path = found;
    }
    DT_TRY(dt_job_read(path, cli->args + 1, cli->n_args - 1, err, out));
    st = dt_cli_need_run(*out, "what it was trained with", err);
    if (st == DT_OK)
        st = dt_cli_job_folders(*out, err);
    if (st != DT_OK)
        dt_job_free(*out);
    return st;
}

static void on_warning(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "disttrain: warning: %s\n", line);
}

static bool is_gone(const char *checkpoint)
{
    char path[1300];

    snprintf(path, sizeof(path), "%s/manifest.json", checkpoint);
    return access(path, F_OK) != 0;
}

/* A training that goes on meanwhile removes what is too old; then its newest is read instead. */
static enum dt_status load_newest(const char *path, struct dt_error *err, struct dt_cli_trained *t)
{
    const struct dt_warn warn = {.say = on_warning};
    enum dt_status st = DT_OK;
    bool found;

    for (int tries = 0; tries < 10; tries++) {
        DT_TRY(dt_ckpt_find_run(path, NULL, &warn, err, &found, t->checkpoint,
                                sizeof(t->checkpoint), NULL));
        if (!found)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                               "there is no checkpoint; \"disttrain train\" writes them");
        st = dt_setup_check_checkpoint(&t->setup, t->checkpoint, false, err);
        if (st == DT_OK)
            st = dt_infer_load(t->infer, t->checkpoint, err, &t->state);
        if (st == DT_OK || !is_gone(t->checkpoint))
            break;
    }
    return st;
}

static enum dt_status load(const struct dt_cli *cli, int batch, struct dt_error *err,
                           struct dt_cli_trained *t)
{
    const char *path = dt_cli_string(cli, "checkpoint", t->job->run.checkpoint_dir);
    struct dt_infer_options o = {.device = t->device,
                                 .model = t->job->model,
                                 .tokenizer = t->setup.tokenizer,
                                 .diffusion = t->setup.generator >= 0 ? &t->setup.diffusion : NULL,
                                 .dtype = t->setup.dtype,
                                 .batch = batch};

    if (!*path)
        return dt_error_at(err, DT_ERR_INPUT, t->job->name, 0, 0,
                           "the job names no run.checkpoint.dir; use --checkpoint DIR");
    DT_TRY(dt_infer_new(&o, err, &t->infer));
    return load_newest(path, err, t);
}

enum dt_status dt_cli_trained_open(const struct dt_cli *cli, int batch, struct dt_error *err,
                                   struct dt_cli_trained *out)
{
    struct dt_cli_trained *t = out; /* in place: the model points into the setup */
    enum dt_status st;

    memset(t, 0, sizeof(*t));
    DT_TRY(read_job(cli, err, &t->job));
    st = dt_cli_open_device(t->job, NULL, err, &t->device);
    if (st == DT_OK)
        st = dt_setup_open(t->job, t->device, false, err, &t->setup);
    t->has_setup = st == DT_OK;
    if (st == DT_OK)
        st = load(cli, batch, err, t);
    if (st != DT_OK) {
        dt_cli_trained_close(t);
        memset(t, 0, sizeof(*t));
    }
    return st;
}

void dt_cli_trained_close(struct dt_cli_trained *t)
{
    dt_infer_free(t->infer);
    if (t->has_setup)
        dt_setup_close(&t->setup);
    if (t->device)
        t->device->close(t->device);
    dt_job_free(t->job);
}
