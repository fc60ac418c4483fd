/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain report: runs of the runs file as one page. */
#include "config.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/page.h"

#include <string.h>

static const struct dt_cli_option options[] = {
    {"output", 'o', DT_OPT_STRING, "FILE",
     "the page (default report.html; \"-\": standard output)"},
    {"title", 't', DT_OPT_STRING, "TEXT", "the question that the page answers"},
    {"sweep", 0, DT_OPT_INT, "ID", "the page of a sweep of whatif instead of runs; 0: the latest"},
    {"kept-only", 0, DT_OPT_FLAG, NULL, "show what the runs keep; work nothing out anew"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "the runs file (default $DISTTRAIN_RUNS or ./disttrain-runs.db)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static enum dt_status read_runs(const struct dt_cli *cli, struct dt_report_page_run *runs, int *n,
                                struct dt_error *err)
{
    for (int i = 0; i < cli->n_args; i++) {
        struct dt_run_ref ref;

        DT_TRY(dt_run_find(cli->args[i], dt_cli_runs_file(cli), err, &ref));
        DT_TRY(dt_report_page_read(&ref, err, &runs[i]));
        ++*n;
        if (!dt_cli_flag(cli, "kept-only"))
            DT_TRY(dt_cli_page_work_out(&runs[i], err));
        else
            runs[i].worked.why_not = "the page shows what the run keeps (--kept-only).";
    }
    return DT_OK;
}

static void describe(const struct dt_cli *cli, char made[128], struct dt_report_page_options *opt)
{
    char now[32];

    dt_clock_utc(now, sizeof now);
    snprintf(made, 128, "Page made by DistTrain %s at %s", PACKAGE_VERSION, now);
    *opt =
        (struct dt_report_page_options){.title = dt_cli_string(cli, "title", NULL), .made = made};
}

/* Writes the page and frees it. */
static enum dt_status emit(const struct dt_cli *cli, char *text, struct dt_error *err)
{
    const char *file = dt_cli_string(cli, "output", "report.html");
    enum dt_status st = dt_file_write(file, text, strlen(text), err);

    if (st == DT_OK && strcmp(file, "-") != 0)
        printf("wrote %s (%.0f kB)\n", file, (double)strlen(text) / 1000);
    dt_free(text);
    return st;
}

static enum dt_status report_runs(const struct dt_cli *cli, struct dt_error *err)
{
    struct dt_report_page_run *runs = dt_calloc((size_t)cli->n_args, sizeof *runs);
    struct dt_report_page_options opt;
    char made[128], *text;
    enum dt_status st;
    int n = 0;

    if (!runs)
        return dt_error_nomem(err, "runs");
    describe(cli, made, &opt);
    st = read_runs(cli, runs, &n, err);
    if (st == DT_OK)
        st = dt_report_page(runs, n, &opt, err, &text);
    for (int i = 0; i < n; i++)
        dt_report_page_free(&runs[i]);
    dt_free(runs);
    return st == DT_OK ? emit(cli, text, err) : st;
}

static enum dt_status report_sweep(const struct dt_cli *cli, struct dt_error *err)
{
    struct dt_report_page_options opt;
    struct dt_sweep_data d;
    char made[128], *text;
    enum dt_status st;
    int64_t id;

    DT_TRY(dt_cli_int(cli, "sweep", 0, INT64_MAX, 0, &id, err));
    describe(cli, made, &opt);
    DT_TRY(dt_sweep_read(dt_cli_runs_file(cli), id, err, &d));
    st = dt_report_sweep_page(&d, &opt, err, &text);
    dt_sweep_data_free(&d);
    return st == DT_OK ? emit(cli, text, err) : st;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    bool sweep = dt_cli_string(cli, "sweep", NULL) != NULL;

    if (sweep == (cli->n_args > 0))
        return dt_error_set(err, DT_ERR_USAGE,
                            sweep ? "a page is of runs or of a sweep, not of both"
                                  : "report needs a run, such as last, or --sweep 0");
    return sweep ? report_sweep(cli, err) : report_runs(cli, err);
}

const struct dt_cli_command dt_cmd_report = {
    .name = "report",
    .args = "[RUN...]",
    .summary = "write a page (HTML) about runs: numbers, timeline, where the time goes",
    .options = options,
    .min_args = 0,
    .max_args = DT_REPORT_PAGE_RUNS_MAX,
    .run = command,
    .no_json = "it writes a page; simulate --json and train --json print the numbers",
};
