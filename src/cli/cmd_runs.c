/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain runs: what the runs file holds, and what of it stays. */
#include "cli/compare.h"
#include "cli/rows.h"
#include "cli/runs.h"
#include "cli/session.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/text.h"
#include "report/run_about.h"
#include "report/runs_edit.h"

#include <math.h>
#include <string.h>

static const struct dt_cli_option options[] = {
    {"runs", 0, DT_OPT_STRING, "FILE",
     "the runs file (default $DISTTRAIN_RUNS or ./disttrain-runs.db)"},
    {"last", 'n', DT_OPT_INT, "N", "list: only the newest N runs"},
    {"keep", 'k', DT_OPT_INT, "N", "prune: all but the newest N runs"},
    {"older", 0, DT_OPT_STRING, "AGE", "prune: runs started longer ago, such as 30d, 12h or 90min"},
    {"size", 0, DT_OPT_STRING, "BYTES",
     "prune: the oldest runs, until the rest takes no more, such as 500MB"},
    {"ops", 0, DT_OPT_FLAG, NULL, "prune: only the ops go, the runs stay"},
    {"dry-run", 0, DT_OPT_FLAG, NULL, "prune: say what would go"},
    {"force", 0, DT_OPT_FLAG, NULL, "rm: also runs with a tag"},
    {"delete", 'd', DT_OPT_FLAG, NULL, "tag: remove the tag"},
    {"value", 'v', DT_OPT_STRING, "NAME",
     "plot: what to draw: loss (default), loss_text, loss_image, grad_norm, lr, mfu, ..."},
    {"log", 0, DT_OPT_FLAG, NULL, "plot: a logarithmic axis of values"},
    {"svg", 0, DT_OPT_STRING, "FILE", "plot: draw a picture instead (- = stdout)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static enum dt_status arguments(const struct dt_cli *cli, int min, int max, const char *usage,
                                struct dt_error *err)
{
    int n = cli->n_args - 1;

    return n >= min && (max < 0 || n <= max)
               ? DT_OK
               : dt_error_set(err, DT_ERR_USAGE, "usage: disttrain runs %s [OPTION...]%s%s",
                              cli->args[0], *usage ? " " : "", usage);
}

/* A run of the file of --runs: only there is anything changed. */
static enum dt_status find_here(const struct dt_cli *cli, const char *text, struct dt_error *err,
                                int64_t *id)
{
    const char *file = dt_cli_runs_file(cli);
    struct dt_run_ref ref;

    DT_TRY(dt_run_find(text, file, err, &ref));
    if (strcmp(ref.file, file) != 0)
        return dt_error_set(err, DT_ERR_USAGE, "runs %s changes one file: name it with --runs %s",
                            cli->args[0], ref.file);
    *id = ref.id;
    return DT_OK;
}

/* ---- list ---- */

static void list_row(struct dt_cli_rows *o, const struct dt_run_about *a)
{
    char size[32];

    dt_cli_row(o);
    dt_cli_row_int(o, "run", "run", a->id);
    dt_cli_row_text(o, "tags", NULL, a->tags[0] ? a->tags : NULL);
    dt_cli_row_cell(o, "tags", "%s", a->tags[0] ? a->tags : "-");
    dt_cli_row_text(o, "kind", "kind", a->kind);
    dt_cli_row_text(o, "job", NULL, a->job_file);
    dt_cli_row_cell(o, "job", "%s", a->job);
    dt_cli_row_text(o, "strategy", "strategy", a->strategy[0] ? a->strategy : o->json ? NULL : "-");
    dt_cli_row_number(o, "iteration_s", "iteration [s]", "%.3f", 1,
                      a->iteration_s > 0 ? a->iteration_s : NAN);
    dt_cli_row_number(o, "mfu", "MFU [%]", "%.2f", 100, a->mfu);
    dt_cli_row_int(o, "ops", NULL, a->n_ops);
    dt_cli_row_bool(o, "ops_kept", a->ops);
    dt_cli_row_cell(o, "ops", a->ops ? "%lld" : "none of %lld", (long long)a->n_ops);
    dt_cli_row_int(o, "size_bytes", NULL, a->bytes);
    dt_cli_row_cell(o, "size", "%s", dt_cli_format_bytes((double)a->bytes, size, sizeof(size)));
    dt_cli_row_text(o, "host", "host", a->host[0] ? a->host : o->json ? NULL : "-");
    dt_cli_row_text(o, "started", "started", a->started);
    dt_cli_row_text(o, "version", NULL, a->version);
    dt_cli_row_text(o, "overrides", "overrides", a->overrides[0] ? a->overrides : NULL);
}

static void print_size(const char *file, int n, int64_t bytes, int64_t unused)
{
    char size[32], rest[32];

    printf("%s: %d run%s, %s", file, n, dt_plural(n),
           dt_cli_format_bytes((double)bytes, size, sizeof(size)));
    if (unused > 0)
        printf(", of them %s without content",
               dt_cli_format_bytes((double)unused, rest, sizeof(rest)));
    printf("\n");
}

static enum dt_status list(const struct dt_cli *cli, struct dt_error *err)
{
    const char *file = dt_cli_runs_file(cli);
    struct dt_runs_list l;
    struct dt_cli_rows o;
    struct dt_json j;
    int64_t last;
    int from;

    DT_TRY(arguments(cli, 0, 0, "", err));
    DT_TRY(dt_cli_int(cli, "last", 1, INT32_MAX, INT32_MAX, &last, err));
    DT_TRY(dt_runs_list(file, err, &l));
    from = last < l.n ? l.n - (int)last : 0;
    if (cli->json) {
        dt_json_init(&j, true);
        dt_json_begin_object(&j);
        dt_json_kv_string(&j, "file", file);
        dt_json_kv_int(&j, "file_bytes", l.file_bytes);
        dt_json_kv_int(&j, "free_bytes", l.free_bytes);
        dt_cli_rows_json(&o, &j, "runs");
    } else {
        dt_cli_rows_table(&o);
    }
    for (int i = from; i < l.n; i++)
        list_row(&o, &l.run[i]);
    dt_cli_rows_end(&o, stdout);
    if (!cli->json) {
        print_size(file, l.n, l.file_bytes, l.free_bytes);
    } else {
        dt_json_end_object(&j);
    }
    dt_runs_list_free(&l);
    return cli->json ? dt_cli_json_emit(&j, err) : DT_OK;
}

/* ---- show ---- */

/* Facts are kept as text, so that runs with other facts can be told apart; the peak is a number of FLOP/s. */
static void show_fact(const char *name, const char *value)
{
    double flops;

    if (strcmp(name, "peak_flops") == 0 && dt_number_double(value, &flops))
        printf("%-14s %.4g %s\n", name, flops * (flops < 1e12 ? 1e-9 : 1e-12),
               flops < 1e12 ? "GFLOP/s" : "TFLOP/s");
    else
        printf("%-14s %s\n", name, value);
}

static void show_facts(const struct dt_run_summary *s)
{
    const struct dt_run_about *a = &s->about;
    char text[1400], size[32];

    printf("run %lld: %s\n\n", (long long)a->id, dt_run_about_text(a, text, sizeof(text)));
    printf("%-14s %s\n", "job file", a->job_file);
    if (a->tags[0])
        printf("%-14s %s\n", "tags", a->tags);
    if (a->cluster[0])
        printf("%-14s %s\n", "cluster", a->cluster);
    if (a->overrides[0])
        printf("%-14s %s\n", "overrides", a->overrides);
    for (int i = 0; i < s->facts.n; i++)
        show_fact(s->facts.fact[i].name, s->facts.fact[i].value);
    printf("%-14s %s\n", "version", a->version);
    printf("%-14s %lld, %s\n", "ops", (long long)a->n_ops, a->ops ? "kept" : "not kept");
    printf("%-14s %s\n", "size", dt_cli_format_bytes((double)a->bytes, size, sizeof(size)));
}

static enum dt_status show(const struct dt_cli *cli, struct dt_error *err)
{
    struct dt_cli_compared *c;
    struct dt_run_ref ref;
    enum dt_status st;

    DT_TRY(arguments(cli, 1, 1, "RUN", err));
    DT_TRY(dt_run_find(cli->args[1], dt_cli_runs_file(cli), err, &ref));
    c = dt_calloc(1, sizeof(*c));
    if (!c || !(c->run = dt_calloc(1, sizeof(*c->run)))) {
        dt_free(c);
        return dt_error_nomem(err, "a run");
    }
    c->n = 1;
    st = dt_run_summary_read(&ref, err, &c->run[0]);
    if (st == DT_OK && cli->json)
        st = dt_cli_runs_show_json(c, &ref, err);
    else if (st == DT_OK) {
        show_facts(&c->run[0]);
        dt_cli_compared_print_values(c);
    }
    dt_free(c->run);
    dt_free(c);
    return st;
}

/* ---- rm, prune, tag ---- */

static enum dt_status print_removed(const struct dt_cli *cli, struct dt_runs_removed *r, bool ops,
                                    bool dry_run, struct dt_error *err)
{
    char before[32], after[32];
    enum dt_status st = DT_OK;
    struct dt_json j;

    if (cli->json) {
        dt_json_init(&j, true);
        dt_json_begin_object(&j);
        dt_json_key(&j, ops ? "ops_removed" : "removed");
        dt_json_begin_array(&j);
        for (int i = 0; i < r->n; i++)
            dt_json_int(&j, r->id[i]);
        dt_json_end_array(&j);
        dt_json_kv_bool(&j, "dry_run", dry_run);
        dt_json_kv_int(&j, "bytes_before", r->bytes_before);
        dt_json_kv_int(&j, "bytes_after", r->bytes_after);
        dt_json_end_object(&j);
        st = dt_cli_json_emit(&j, err);
    } else {
        printf("%s", dry_run ? "would remove " : "removed ");
        for (int i = 0; i < r->n; i++)
            printf("%s%lld", i ? ", " : r->n == 1 ? "run " : "runs ", (long long)r->id[i]);
        printf("%s%s; %s of content %s %s\n", r->n ? "" : "no run",
               ops && r->n ? ": only their ops" : "",
               dt_cli_format_bytes((double)r->bytes_before, before, sizeof(before)),
               dry_run ? "would become" : "became",
               dt_cli_format_bytes((double)r->bytes_after, after, sizeof(after)));
    }
    if (r->not_given_back[0]) {
        fflush(stdout);
        fprintf(stderr, "disttrain: warning: the file keeps its size until the next removal: %s\n",
                r->not_given_back);
    }
    dt_runs_removed_free(r);
    return st;
}

static enum dt_status rm(const struct dt_cli *cli, struct dt_error *err)
{
    int64_t *id = dt_malloc((size_t)cli->n_args * sizeof(*id));
    struct dt_runs_removed r;
    enum dt_status st = id ? arguments(cli, 1, -1, "RUN...", err) : dt_error_nomem(err, "runs");
    int n = 0;

    for (int i = 1; i < cli->n_args && st == DT_OK; i++) {
        bool again = false;

        st = find_here(cli, cli->args[i], err, &id[n]);
        for (int k = 0; k < n; k++)
            again |= id[k] == id[n];
        n += !again;
    }
    if (st == DT_OK)
        st = dt_runs_remove(dt_cli_runs_file(cli), id, n, dt_cli_flag(cli, "force"), err, &r);
    if (st == DT_OK)
        st = print_removed(cli, &r, false, false, err);
    dt_free(id);
    return st;
}

/* "30d", "500MB": a number and a unit. */
static enum dt_status with_unit(const struct dt_cli *cli, const char *option,
                                const char *const *units, const double *scale, const char *example,
                                struct dt_error *err, double *out)
{
    const char *text = dt_cli_string(cli, option, NULL);
    double v = 0;
    size_t n;

    *out = -1;
    if (!text)
        return DT_OK;
    n = dt_number_scan(text, &v);
    while (n > 0 && text[n] == ' ')
        n++;
    for (int i = 0; n > 0 && v >= 0 && units[i]; i++)
        if (strcmp(text + n, units[i]) == 0 && v * scale[i] < 9e18) {
            *out = v * scale[i];
            return DT_OK;
        }
    return dt_error_set(err, DT_ERR_USAGE, "--%s: '%s' is not a number with a unit, such as %s",
                        option, text, example);
}

static enum dt_status prune(const struct dt_cli *cli, struct dt_error *err)
{
    static const char *const ages[] = {"d", "h", "min", "s", "w", NULL};
    static const double seconds[] = {86400, 3600, 60, 1, 604800};
    static const char *const sizes[] = {"B",   "kB",  "MB",  "GB",  "TB",
                                        "KiB", "MiB", "GiB", "TiB", NULL};
    static const double bytes[] = {1,    1e3,     1e6,        1e9,          1e12,
                                   1024, 1048576, 1073741824, 1099511627776};
    struct dt_runs_limits l = {.ops = dt_cli_flag(cli, "ops"),
                               .dry_run = dt_cli_flag(cli, "dry-run")};
    struct dt_runs_removed r;
    char before[32];
    double age, size;

    DT_TRY(arguments(cli, 0, 0, "", err));
    DT_TRY(dt_cli_int(cli, "keep", 0, INT32_MAX, -1, &l.keep, err));
    DT_TRY(with_unit(cli, "older", ages, seconds, "30d, 12h or 90min", err, &age));
    DT_TRY(with_unit(cli, "size", sizes, bytes, "500MB or 2GiB", err, &size));
    if (l.keep < 0 && age < 0 && size < 0)
        return dt_error_set(err, DT_ERR_USAGE,
                            "runs prune needs to know what goes: --keep N, --older AGE or --size "
                            "BYTES");
    if (age >= 0) {
        dt_clock_utc_ago(age, before, sizeof(before));
        if (!before[0])
            return dt_error_set(err, DT_ERR_USAGE, "--older: there was no calendar so long ago");
        l.before = before;
    }
    l.bytes = size >= 0 ? (int64_t)size : -1;
    DT_TRY(dt_runs_prune(dt_cli_runs_file(cli), &l, err, &r));
    return print_removed(cli, &r, l.ops, l.dry_run, err);
}

static enum dt_status tag(const struct dt_cli *cli, struct dt_error *err)
{
    const char *file = dt_cli_runs_file(cli), *name = cli->args[cli->n_args - 1];
    struct dt_json j;
    int64_t id = 0;

    if (dt_cli_flag(cli, "delete")) {
        DT_TRY(arguments(cli, 1, 1, "--delete TAG", err));
        DT_TRY(dt_runs_untag(file, name, err));
    } else {
        DT_TRY(arguments(cli, 2, 2, "RUN TAG", err));
        DT_TRY(find_here(cli, cli->args[1], err, &id));
        DT_TRY(dt_runs_tag(file, name, id, err));
    }
    if (!cli->json) {
        if (id)
            printf("run %lld is tagged %s\n", (long long)id, name);
        else
            printf("tag %s is removed\n", name);
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "tag", name);
    dt_json_key(&j, "run");
    if (id)
        dt_json_int(&j, id);
    else
        dt_json_null(&j);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

/* ---- which ---- */

static const char *const names[] = {"list", "show", "rm", "prune", "tag", "plot", NULL};

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    static enum dt_status (*const action[])(const struct dt_cli *, struct dt_error *) = {
        list, show, rm, prune, tag, dt_cli_runs_plot};
    int k;

    DT_TRY(dt_cli_action(cli, err, &k));
    return action[k](cli, err);
}

const struct dt_cli_command dt_cmd_runs = {
    .name = "runs",
    .args = "list | show RUN | rm RUN... | prune | tag RUN TAG | plot RUN...",
    .summary = "what the runs file holds: list, show, remove, prune, tag; loss curves",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
    .actions = names,
};
