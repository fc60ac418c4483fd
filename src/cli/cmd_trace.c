/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain trace export: a run for trace viewers. */
#include "cli/session.h"
#include "base/file.h"
#include "base/mem.h"
#include "report/trace_export.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static const struct dt_cli_option options[] = {
    {"format", 'f', DT_OPT_STRING, "FORMAT",
     "chrome (JSON, the default) or perfetto (protobuf, smaller and faster to open)"},
    {"output", 'o', DT_OPT_STRING, "FILE",
     "output file (default trace.json or trace.pftrace; - = stdout)"},
    {"per-lane", 0, DT_OPT_STRING, "DIR",
     "write one file per lane instead, lane-N.json or lane-N.pftrace"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "the runs file (default $DISTTRAIN_RUNS or ./disttrain-runs.db)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static enum dt_status write_one(const struct dt_run_ref *run, int lane, bool perfetto,
                                const char *path, struct dt_error *err)
{
    char *text;
    size_t size;
    enum dt_status st;

    if (perfetto) {
        DT_TRY(dt_trace_perfetto(run, lane, err, &text, &size));
    } else {
        DT_TRY(dt_trace_chrome(run, lane, err, &text));
        size = strlen(text);
    }
    st = dt_file_write(path, text, size, err);
    dt_free(text);
    return st;
}

static enum dt_status format_of(struct dt_cli *cli, bool *perfetto, struct dt_error *err)
{
    const char *name = dt_cli_string(cli, "format", "chrome");

    *perfetto = strcmp(name, "perfetto") == 0;
    if (*perfetto || strcmp(name, "chrome") == 0)
        return DT_OK;
    return dt_error_set(err, DT_ERR_USAGE, "--format: '%s' is not chrome or perfetto", name);
}

/* One file: a lane's, or all of them. */
static enum dt_status write_whole(struct dt_cli *cli, const struct dt_run_ref *run, bool perfetto,
                                  struct dt_json *j, struct dt_error *err)
{
    const char *path = dt_cli_string(cli, "output", perfetto ? "trace.pftrace" : "trace.json");

    DT_TRY(dt_cli_one_stdout(cli, path, err));
    DT_TRY(write_one(run, -1, perfetto, path, err));
    dt_json_string(j, path);
    return DT_OK;
}

static enum dt_status write_lanes(const struct dt_run_ref *run, bool perfetto, const char *dir,
                                  struct dt_json *j, struct dt_error *err)
{
    int n;

    DT_TRY(dt_trace_lanes(run, err, &n));
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot make the folder: %s",
                           strerror(errno));
    for (int k = 0; k < n; k++) {
        char path[4096];

        snprintf(path, sizeof(path), "%s/lane-%d.%s", dir, k, perfetto ? "pftrace" : "json");
        DT_TRY(write_one(run, k, perfetto, path, err));
        dt_json_string(j, path);
    }
    return DT_OK;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    const char *dir = dt_cli_string(cli, "per-lane", NULL);
    struct dt_run_ref run;
    struct dt_json j;
    enum dt_status st;
    bool perfetto;
    int action;

    DT_TRY(dt_cli_action(cli, err, &action));
    DT_TRY(format_of(cli, &perfetto, err));
    DT_TRY(dt_run_find(cli->args[1], dt_cli_runs_file(cli), err, &run));
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "format", perfetto ? "perfetto" : "chrome");
    dt_json_key(&j, "files");
    dt_json_begin_array(&j);
    st =
        dir ? write_lanes(&run, perfetto, dir, &j, err) : write_whole(cli, &run, perfetto, &j, err);
    dt_json_end_array(&j);
    dt_json_end_object(&j);
    if (st == DT_OK && cli->json)
        return dt_cli_json_emit(&j, err);
    dt_json_discard(&j);
    return st;
}

static const char *const names[] = {"export", NULL};

const struct dt_cli_command dt_cmd_trace = {
    .name = "trace",
    .args = "export RUN",
    .summary = "write a run as a trace for Perfetto and Chrome",
    .options = options,
    .min_args = 2,
    .max_args = 2,
    .run = command,
    .actions = names,
};
