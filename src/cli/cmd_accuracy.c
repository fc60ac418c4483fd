/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain accuracy: measured training runs, predicted as jobs, and the errors; hold-out errors of
 * kernels; what each constant does. */
#include "cli/accuracy.h"
#include "cli/facts.h"
#include "cli/rows.h"
#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { WORST = 5 };

static const struct dt_cli_option options[] = {
    {"table", 't', DT_OPT_LIST, "FILE.csv", "a table of measured runs (may be repeated)"},
    {"rows", 'r', DT_OPT_FLAG, NULL, "print every row, not only the worst five of a table"},
    {"every", 0, DT_OPT_INT, "N", "only every N-th row of a table"},
    {"holdout", 0, DT_OPT_STRING, "FILE",
     "hold-out errors per kernel family of these measured rows (db import)"},
    {"sensitivity", 0, DT_OPT_FLAG, NULL,
     "what 10 % less and more of each constant does to the tables"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static void add_row(struct dt_cli_rows *o, const struct dt_cli_acc_run *r, int i)
{
    const struct dt_accuracy_row *a = &r->rows[i];
    const char *source = r->table.rows[i].source;
    bool measured = a->measured_s > 0;

    dt_cli_row(o);
    dt_cli_row_int(o, "line", NULL, r->table.rows[i].line);
    dt_cli_row_text(o, "row", NULL, r->table.rows[i].label);
    dt_cli_row_text(o, source[0] ? "source" : NULL, NULL, source);
    dt_cli_row_cell(o, "row", source[0] ? "%s (%s)" : "%s", r->table.rows[i].label, source);
    dt_cli_row_number(o, measured ? "measured_s" : NULL, "measured [s]", "%.4f", 1,
                      measured ? a->measured_s : NAN);
    dt_cli_row_number(o, "predicted_s", "predicted [s]", "%.4f", 1, a->predicted_s);
    dt_cli_row_number(o, "p10_s", "p10 [s]", "%.4f", 1, a->p10_s);
    dt_cli_row_number(o, "p90_s", "p90 [s]", "%.4f", 1, a->p90_s);
    dt_cli_row_number(o, NULL, "error [%]", "%+.1f", 100, measured ? dt_cli_acc_error(a) : NAN);
}

static void print_rows(const struct dt_cli_acc_run *r, bool all)
{
    int n = all || r->table.n < WORST ? r->table.n : WORST;
    struct dt_cli_rows o;

    dt_cli_rows_table(&o);
    for (int k = 0; k < n; k++)
        add_row(&o, r, all ? k : r->order[k]);
    dt_cli_rows_end(&o, stdout);
}

/* Members of the object that is open, or (NULL) the end of a line. */
static void errors(struct dt_json *j, const struct dt_accuracy *a)
{
    const struct dt_cli_facts f = {.json = j};

    dt_cli_fact_int(&f, "n", "", " n=%lld", a->n);
    dt_cli_fact_number(&f, "mape", "", " mape=%.2f%%", 100, a->mape);
    dt_cli_fact_number(&f, "median", "", " median=%.2f%%", 100, a->median);
    dt_cli_fact_number(&f, "p90", "", " p90=%.2f%%", 100, a->p90);
    dt_cli_fact_number(&f, "max", "", " max=%.2f%%", 100, a->max);
    dt_cli_fact_number(&f, "bias", "", " bias=%+.2f%%", 100, a->bias);
    dt_cli_fact_number(&f, "cover80", "", " cover80=%.1f%%\n", 100, a->cover80);
}

static void print_line(const char *name, const char *source, const struct dt_accuracy *a)
{
    printf("accuracy: %s%s%s", name, source[0] ? "/" : "", source);
    errors(NULL, a);
}

struct source { /* rows that rest on one word */
    const char *name;
    struct dt_accuracy a;
};

/* Those of all rows, in order of appearance; none when the table names no source. */
static int find_sources(const struct dt_cli_acc_run *r, struct source *out)
{
    bool named = false;
    int n = 0;

    for (int i = 0; i < r->table.n; i++) {
        int k = 0;

        named |= r->table.rows[i].source[0] != '\0';
        while (k < n && strcmp(out[k].name, r->table.rows[i].source) != 0)
            k++;
        if (k == n)
            out[n++].name = r->table.rows[i].source;
    }
    return named ? n : 0;
}

/* Errors per source, for dt_free(). */
static enum dt_status by_source(const struct dt_cli_acc_run *r, struct dt_error *err,
                                struct source **sources, int *n)
{
    struct dt_accuracy_row *rows = dt_calloc((size_t)r->table.n, sizeof *rows);
    struct source *out = dt_calloc((size_t)r->table.n, sizeof *out);
    enum dt_status st = rows && out ? DT_OK : dt_error_nomem(err, "rows of a source");

    *n = st == DT_OK ? find_sources(r, out) : 0;
    for (int k = 0; k < *n && st == DT_OK; k++) {
        int found = 0;

        for (int i = 0; i < r->table.n; i++)
            if (strcmp(r->table.rows[i].source, out[k].name) == 0)
                rows[found++] = r->rows[i];
        st = dt_accuracy_summary(rows, found, err, &out[k].a);
    }
    dt_free(rows);
    if (st == DT_OK)
        *sources = out;
    else
        dt_free(out);
    return st;
}

static enum dt_status print_run(const struct dt_cli_acc_run *r, bool all, struct dt_error *err)
{
    struct source *s;
    int n;

    DT_TRY(by_source(r, err, &s, &n));
    if (n == 0)
        print_line(r->table.name, "", &r->a);
    for (int k = 0; k < n; k++)
        print_line(r->table.name, s[k].name[0] ? s[k].name : "unnamed", &s[k].a);
    dt_free(s);
    printf("assumed: %s\n", r->table.assumed);
    for (int i = 0; i < r->n_notes; i++)
        printf("note: %s\n", r->note[i]);
    if (r->table.peers)
        printf("peers: %s\n", r->table.peers);
    print_rows(r, all);
    printf("\n");
    return DT_OK;
}

static void json_rows(struct dt_json *j, const struct dt_cli_acc_run *r)
{
    struct dt_cli_rows o;

    dt_cli_rows_json(&o, j, "rows");
    for (int i = 0; i < r->table.n; i++)
        add_row(&o, r, i);
    dt_cli_rows_end(&o, NULL);
}

static enum dt_status json_run(struct dt_json *j, const struct dt_cli_acc_run *r,
                               struct dt_error *err)
{
    struct source *s;
    int n;

    DT_TRY(by_source(r, err, &s, &n));
    dt_json_begin_object(j);
    dt_json_kv_string(j, "table", r->table.name);
    dt_json_kv_string(j, "assumed", r->table.assumed);
    if (r->table.peers)
        dt_json_kv_string(j, "peers", r->table.peers);
    if (r->n_notes > 0) {
        dt_json_key(j, "profile_notes");
        dt_json_begin_array(j);
        for (int i = 0; i < r->n_notes; i++)
            dt_json_string(j, r->note[i]);
        dt_json_end_array(j);
    }
    errors(j, &r->a);
    dt_json_key(j, "sources");
    dt_json_begin_array(j);
    for (int k = 0; k < n; k++) {
        dt_json_begin_object(j);
        dt_json_kv_string(j, "source", s[k].name);
        errors(j, &s[k].a);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
    dt_free(s);
    json_rows(j, r);
    dt_json_end_object(j);
    return DT_OK;
}

/* Several tables together, whatever their sources. */
struct all {
    struct dt_accuracy_row *rows;
    int n;
};

static enum dt_status append(struct all *all, const struct dt_cli_acc_run *r, struct dt_error *err)
{
    struct dt_accuracy_row *more =
        dt_realloc(all->rows, (size_t)(all->n + r->table.n) * sizeof *more);

    if (!more)
        return dt_error_nomem(err, "rows of all tables");
    memcpy(more + all->n, r->rows, (size_t)r->table.n * sizeof *more);
    all->rows = more;
    all->n += r->table.n;
    return DT_OK;
}

static enum dt_status run_all(struct dt_cli *cli, const char *const *paths, int n, int every,
                              struct dt_cli_acc_profiles *p, struct dt_json *j, struct all *all,
                              struct dt_error *err)
{
    dt_json_key(j, "tables");
    dt_json_begin_array(j);
    for (int i = 0; i < n; i++) {
        struct dt_cli_acc_run r = {.rows = NULL};
        enum dt_status st = dt_cli_acc_run_table(paths[i], every, NULL, p, err, &r);

        if (st == DT_OK)
            st = append(all, &r, err);
        if (st == DT_OK)
            st = cli->json ? json_run(j, &r, err) : print_run(&r, dt_cli_flag(cli, "rows"), err);
        dt_cli_acc_run_free(&r);
        DT_TRY(st);
    }
    dt_json_end_array(j);
    return DT_OK;
}

static enum dt_status tables(struct dt_cli *cli, const char *const *paths, int n,
                             struct dt_cli_acc_profiles *p, struct dt_json *j, struct dt_error *err)
{
    struct all all = {.n = 0};
    struct dt_accuracy a;
    int64_t every;
    enum dt_status st;

    DT_TRY(dt_cli_int(cli, "every", 1, 1 << 20, 1, &every, err));
    st = run_all(cli, paths, n, (int)every, p, j, &all, err);
    if (st == DT_OK)
        st = dt_accuracy_summary(all.rows, all.n, err, &a);
    if (st == DT_OK && cli->json) {
        dt_json_key(j, "all");
        dt_json_begin_object(j);
        errors(j, &a);
        dt_json_end_object(j);
    } else if (st == DT_OK && n > 1) {
        print_line("all tables together", "", &a);
        printf("\n");
    }
    dt_free(all.rows);
    if (st == DT_OK && dt_cli_flag(cli, "sensitivity"))
        st = dt_cli_acc_sensitivity(paths, n, (int)every, p, cli->json ? j : NULL, err);
    return st;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    const char *paths[DT_CLI_MAX_ARGS], *holdout = dt_cli_string(cli, "holdout", NULL);
    struct dt_cli_acc_profiles p = {.n = 0};
    enum dt_status st = DT_OK;
    char shipped[4096];
    struct dt_json j;
    int n = 0;

    for (int i = 0; i < cli->n_list; i++)
        paths[n++] = cli->list[i];
    if (n == 0 && !holdout) { /* the published figures that come with the program */
        DT_TRY(dt_file_find("measured", "megatron", ".csv", err, shipped, sizeof shipped));
        paths[n++] = shipped;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    if (holdout)
        st = dt_cli_acc_holdout(holdout, cli->json ? &j : NULL, err);
    if (st == DT_OK && n > 0)
        st = tables(cli, paths, n, &p, &j, err);
    dt_cli_acc_profiles_free(&p);
    dt_json_end_object(&j);
    if (st == DT_OK && cli->json)
        return dt_cli_json_emit(&j, err);
    dt_json_discard(&j);
    return st;
}

const struct dt_cli_command dt_cmd_accuracy = {
    .name = "accuracy",
    .args = "",
    .summary = "predict measured training runs and print the errors",
    .options = options,
    .min_args = 0,
    .max_args = 0,
    .run = command,
};
