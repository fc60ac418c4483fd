/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain compare: runs and measured values side by side, all against the first. */
#include "cli/compare.h"
#include "cli/session.h"
#include "base/mem.h"
#include "report/measured.h"

#include <math.h>
#include <string.h>

static const struct dt_cli_option options[] = {
    {"tolerance", 't', DT_OPT_LIST, "NAME=PERCENT",
     "fail (exit status 4) when a line differs by more, such as iteration_s=5%"},
    {"junit", 0, DT_OPT_STRING, "FILE", "write how each tolerance came out as JUnit XML"},
    {"anyway", 0, DT_OPT_FLAG, NULL, "also compare predictions and measurements of different jobs"},
    {"top", 0, DT_OPT_INT, "N", "lines to print of two runs op by op (default 20; 0 = all)"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "the runs file, for runs named without one (default $DISTTRAIN_RUNS or ./disttrain-runs.db)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

/* ---- one job? ---- */

void dt_cli_compared_differences(const struct dt_cli_compared *c, int k, char *buf, size_t size)
{
    struct dt_run_difference d[DT_RUN_FACTS_MAX];
    int differ = dt_run_facts_differ(&c->run[0].facts, &c->run[k].facts, d);
    size_t n = 0;

    buf[0] = '\0';
    for (int i = 0; i < differ && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%s (a: %s; %c: %s)", i ? ", " : "", d[i].name,
                              d[i].a, 'a' + k, d[i].b);
}

static bool is_measurement(const struct dt_run_summary *s)
{
    return s->measured || strcmp(s->about.kind, "simulated") != 0;
}

/* Two simulations may be of two jobs: that is what planners compare.  A prediction of one job is no prediction of
 * another's measurement, and a tolerance is about one job. */
static enum dt_status one_job(const struct dt_cli *cli, const struct dt_cli_compared *c,
                              struct dt_error *err)
{
    char text[3000];

    for (int k = 1; k < c->n; k++) {
        bool strict = cli->n_list > 0 || is_measurement(&c->run[0]) != is_measurement(&c->run[k]);

        dt_cli_compared_differences(c, k, text, sizeof(text));
        if (!strict || (!text[0] && c->work[k] != DT_COMPARE_OTHER))
            continue;
        return dt_error_set(err, DT_ERR_INPUT,
                            "not the same job: %s; --anyway compares them nevertheless, but "
                            "neither is a prediction of the other",
                            text[0] ? text : "the model FLOPs of their modules differ");
    }
    return DT_OK;
}

/* ---- reading ---- */

/* A cluster's data sheet and a product measured here are not the same 100 %: each MFU becomes a share of the peak of the
 * first run that was executed or measured, or else of the first. */
static void one_peak(struct dt_cli_compared *c)
{
    for (int pass = 0; pass < 2 && c->peak_flops == 0; pass++)
        for (int k = 0; k < c->n && c->peak_flops == 0; k++)
            if (c->run[k].peak_flops > 0 && (pass == 1 || is_measurement(&c->run[k]))) {
                c->peak_flops = c->run[k].peak_flops;
                c->peak_of = k;
            }
    for (int k = 0; k < c->n; k++)
        dt_run_summary_set_peak(&c->run[k], c->peak_flops);
}

/* Memory is that of a GPU in simulated runs, of a process in executed ones. */
static void one_memory(struct dt_cli_compared *c)
{
    const char *of = c->run[0].memory_of;

    for (int k = 1; k < c->n; k++) {
        struct dt_run_summary *s = &c->run[k];

        if (s->memory_of[0] == '\0' || of[0] == '\0' || strcmp(s->memory_of, of) == 0)
            continue;
        s->v[DT_RUN_memory_bytes_max] = NAN;
        for (int i = 0; i < s->n_modules; i++)
            s->module[i].v[DT_RUN_OF_memory_bytes_max] = NAN;
    }
}

static enum dt_status read_run(const struct dt_cli *cli, struct dt_cli_compared *c, int k,
                               struct dt_run_ref *first, struct dt_error *err)
{
    const char *name = cli->args[k], *file = dt_cli_runs_file(cli);
    struct dt_run_ref ref;

    if (dt_run_measured_is(name))
        return dt_run_measured_read(name, err, &c->run[k]);
    DT_TRY(dt_run_find(name, file, err, &ref));
    if (k == 0) {
        *first = ref;
        return dt_run_summary_read(&ref, err, &c->run[0]);
    }
    if (c->run[0].measured)
        return dt_run_summary_read(&ref, err, &c->run[k]);
    DT_TRY(dt_compare_runs(first, &ref, err, &c->pair[k]));
    c->paired[k] = true;
    c->run[k] = c->pair[k].b;
    dt_cli_compared_sort(&c->pair[k]);
    return DT_OK;
}

static enum dt_status read_all(const struct dt_cli *cli, struct dt_cli_compared *c,
                               struct dt_error *err)
{
    struct dt_run_ref first;

    c->run = dt_calloc((size_t)cli->n_args, sizeof(*c->run));
    if (!c->run)
        return dt_error_nomem(err, "runs");
    for (c->n = 0; c->n < cli->n_args; c->n++)
        DT_TRY(read_run(cli, c, c->n, &first, err));
    for (int k = 0; k < c->n; k++)
        c->work[k] = dt_compare_work(&c->run[0], &c->run[k]);
    one_peak(c);
    one_memory(c);
    return DT_OK;
}

static enum dt_status compare(const struct dt_cli *cli, struct dt_cli_compared *c, int top,
                              struct dt_error *err)
{
    DT_TRY(read_all(cli, c, err));
    if (!dt_cli_flag(cli, "anyway"))
        DT_TRY(one_job(cli, c, err));
    DT_TRY(dt_cli_compared_check_names(cli, c, err));
    if (cli->json)
        DT_TRY(dt_cli_compared_json(c, err));
    else
        dt_cli_compared_print(c, top);
    return dt_cli_compared_check(cli, c, dt_cli_string(cli, "junit", NULL), err);
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    const char *junit = dt_cli_string(cli, "junit", NULL);
    struct dt_cli_compared *c;
    enum dt_status st;
    int64_t top;

    DT_TRY(dt_cli_int(cli, "top", 0, 1 << 20, 20, &top, err));
    DT_TRY(dt_cli_compared_check_names(cli, NULL, err));
    if (junit && cli->n_list == 0)
        return dt_error_set(err, DT_ERR_USAGE,
                            "--junit tells how tolerances came out: it needs --tolerance");
    if (junit)
        DT_TRY(dt_cli_one_stdout(cli, junit, err));
    c = dt_calloc(1, sizeof(*c));
    if (!c)
        return dt_error_nomem(err, "runs");
    st = compare(cli, c, (int)top, err);
    if (st != DT_OK && st != DT_ERR_TOLERANCE && junit)
        dt_cli_compared_junit_error(junit, err, NULL); /* no file of before stays */
    for (int k = 0; k < DT_CLI_COMPARE_MAX; k++)
        if (c->paired[k])
            dt_compare_free(&c->pair[k]);
    dt_free(c->run);
    dt_free(c);
    return st;
}

const struct dt_cli_command dt_cmd_compare = {
    .name = "compare",
    .args = "RUN RUN...",
    .summary = "runs and measured values side by side, all against the first",
    .options = options,
    .min_args = 2,
    .max_args = DT_CLI_COMPARE_MAX,
    .run = command,
};
