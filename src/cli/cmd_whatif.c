/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain whatif: sweeps and targets (cli/whatif.h). */
#include "cli/whatif.h"

#include "base/file.h"
#include "comm/cores.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const struct dt_cli_option options[] = {
    {"vary", 0, DT_OPT_LIST, "KEY=V1,V2,...",
     "values or ranges (A..B+STEP, A..B*FACTOR) of a key of the job; several: their grid"},
    {"gpus", 0, DT_OPT_STRING, "N,...", "the same as --vary cluster.gpus=N,..."},
    {"sample", 0, DT_OPT_INT, "N", "N points of a Latin hypercube over A..B instead of the grid"},
    {"seed", 0, DT_OPT_INT, "N", "seed of --sample (default 1)"},
    {"keep-plan", 0, DT_OPT_FLAG, NULL, "plan once, as the job stands, and keep that plan"},
    {"plan", 'p', DT_OPT_STRING, "FILE", "evaluate this plan.json instead of searching"},
    {"tokens", 0, DT_OPT_STRING, "N", "tokens to train on, such as 1T or 500B"},
    {"days", 0, DT_OPT_DOUBLE, "D", "time to train in: finds the least GPUs that will do"},
    {"budget", 0, DT_OPT_STRING, "N",
     "money to spend, such as 2M; needs cluster.price_per_gpu_hour"},
    {"confidence", 0, DT_OPT_DOUBLE, "PERCENT",
     "interval whose upper end must meet the target (default 80)"},
    {"jobs", 'j', DT_OPT_INT, "N", "processes (default: one for each core)"},
    {"csv", 0, DT_OPT_STRING, "FILE", "write the points as comma-separated values ('-' = stdout)"},
    {"svg", 0, DT_OPT_STRING, "FILE", "draw them"},
    {"again", 0, DT_OPT_FLAG, NULL, "re-evaluate points already in the runs file"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "keep results in this SQLite file, and go on with what is there (default $DISTTRAIN_RUNS or "
     "./disttrain-runs.db)"},
    {"no-runs", 0, DT_OPT_FLAG, NULL, "keep nothing"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static enum dt_status write_file(struct dt_whatif *w, const char *option,
                                 enum dt_status (*make)(const struct dt_whatif *, struct dt_error *,
                                                        char **),
                                 struct dt_error *err)
{
    const char *path = dt_cli_string(w->cli, option, NULL);
    char *text;

    if (!path)
        return DT_OK;
    DT_TRY(make(w, err, &text));
    enum dt_status st = dt_file_write(path, text, strlen(text), err);
    dt_free(text);
    return st;
}

static enum dt_status show(struct dt_whatif *w, struct dt_error *err)
{
    const char *csv = dt_cli_string(w->cli, "csv", "");

    dt_whatif_sort(w);
    DT_TRY(write_file(w, "csv", dt_whatif_csv, err));
    DT_TRY(write_file(w, "svg", dt_whatif_svg, err));
    return strcmp(csv, "-") == 0 ? DT_OK : dt_whatif_print(w, err);
}

/* What was found stays; the rest is for the next time.  Ends by the signal that came, as whoever sent it expects. */
static void interrupted(const struct dt_whatif *w)
{
    int sig = dt_whatif_signal();

    if (w->sweep)
        fprintf(stderr,
                "disttrain: interrupted; %d result%s in sweep %lld of %s: the same command goes on "
                "from there\n",
                w->evaluated + w->from_file, w->evaluated + w->from_file == 1 ? " is" : "s are",
                (long long)w->sweep_id, dt_cli_runs_file(w->cli));
    else
        fprintf(stderr, "disttrain: interrupted\n");
    fflush(NULL);
    signal(sig, SIG_DFL);
    raise(sig);
}

static int cores(void)
{
    struct dt_cores here;
    int n = dt_cores_here(&here);

    return n > 0 ? n : 1;
}

static enum dt_status open_engine(struct dt_whatif *w, const struct dt_whatif_base *b,
                                  struct dt_transport *t, struct dt_error *err)
{
    int jobs = w->jobs > 0 ? w->jobs : cores();

    if (t)
        return dt_whatif_engine_ranks(b, t, err, &w->engine);
    if (jobs == 1 || w->launched) /* a rank alone: MPI does not like processes of its own */
        return dt_whatif_engine_here(b, err, &w->engine);
    return dt_whatif_engine_processes(b, jobs, err, &w->engine);
}

static enum dt_status work(struct dt_whatif *w, struct dt_transport *t, struct dt_error *err)
{
    struct dt_whatif_base base;
    enum dt_status st;

    DT_TRY(dt_whatif_open_job(w, err));
    base = (struct dt_whatif_base){w->points, w->overrides, w->n_overrides, w->goal.any};
    if (t && t->rank > 0)
        return dt_whatif_rank_works(&base, t, err);
    dt_whatif_watch_signals();
    st = open_engine(w, &base, t, err); /* processes begin before the runs file is open */
    if (st == DT_OK)
        st = dt_whatif_open_sweep(w, err);
    if (st == DT_OK)
        st = dt_whatif_points(w, err);
    if (w->engine)
        w->engine->close(w->engine);
    w->engine = NULL;
    if (dt_whatif_signal())
        interrupted(w);
    return st == DT_OK ? show(w, err) : st;
}

static enum dt_status on_ranks(void *ctx, const struct dt_cli_ranks *r, struct dt_error *err)
{
    return work(ctx, r->transport, err);
}

static enum dt_status launched_by_mpi(struct dt_whatif *w, struct dt_error *err)
{
    char found[4096];
    struct dt_job *job;
    enum dt_status st;

    w->launched = true;
    if (w->jobs > 0)
        return dt_error_set(err, DT_ERR_USAGE,
                            "-j is for this machine alone; under mpirun each rank evaluates one "
                            "point at a time");
    if (dt_file_is_stream(w->path))
        return dt_error_set(err, DT_ERR_USAGE,
                            "%s: ranks need the job in a file, since every rank reads it", w->path);
    DT_TRY(dt_file_find("jobs", w->path, ".yaml", err, found, sizeof found));
    DT_TRY(dt_job_read(found, w->cli->args + 1, w->cli->n_args - 1, err, &job));
    st = dt_cli_on_ranks(job, 0, on_ranks, w, err);
    dt_job_free(job);
    return st;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_whatif *w = dt_calloc(1, sizeof *w);
    bool launched;
    enum dt_status st;

    if (!w)
        return dt_error_nomem(err, "whatif");
    st = dt_whatif_setup(w, cli, err);
    if (st == DT_OK)
        st = dt_cli_one_stdout(cli, dt_cli_string(cli, "csv", ""), err);
    if (st == DT_OK && !dt_cli_flag(cli, "no-runs"))
        st = dt_file_check(dt_cli_runs_file(cli), err);
    if (st == DT_OK)
        st = dt_cli_ranks_begin(w->path, 0, err, &launched);
    if (st == DT_OK)
        st = launched ? launched_by_mpi(w, err) : work(w, NULL, err);
    dt_whatif_close(w);
    dt_free(w);
    return st;
}

const struct dt_cli_command dt_cmd_whatif = {
    .name = "whatif",
    .args = "JOB [KEY=VALUE...]",
    .summary = "plan and simulate a job at many points; find the cluster that meets a target",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
