/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain db: import published tables, fit profiles from them, show and export. */
#include "cli/session.h"
#include "cli/rows.h"
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "fit/profile_fit.h"
#include "fit/profile_import.h"

#include <string.h>
#include <unistd.h>

enum { CSV_LIMIT_BYTES = 256 << 20 };

static const struct dt_cli_option options[] = {
    {"output", 'o', DT_OPT_STRING, "FILE",
     "where to write: .db = SQLite, .sql = SQL text, - = stdout (text)"},
    {"device", 'd', DT_OPT_STRING, "NAME", "device of the imported rows, of the fit, or to show"},
    {"dtype", 0, DT_OPT_STRING, "TYPE",
     "element type of the imported rows or to show (bf16, fp32, tf32, any)"},
    {"shape", 0, DT_OPT_STRING, "MODEL", "import vidur-layer: llama-3-8b or llama-2-7b"},
    {"source", 0, DT_OPT_STRING, "NAME", "import: name of the source"},
    {"origin", 0, DT_OPT_STRING, "URL",
     "import: where the table is from, with its commit or version"},
    {"licence", 0, DT_OPT_STRING, "ID", "import: licence of the table"},
    {"date", 0, DT_OPT_STRING, "DATE", "import: date of the table"},
    {"note", 0, DT_OPT_STRING, "TEXT", "import: a remark kept with the source"},
    {"op", 0, DT_OPT_STRING, "OP",
     "show: only rows of this op (gemm, attn_causal, all_reduce, ...)"},
    {"limit", 0, DT_OPT_INT, "N",
     "show: at most N rows of --op (default 40, all with --json; 0 = all)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static enum dt_status need_output(const struct dt_cli *cli, const char *action,
                                  struct dt_error *err, const char **out)
{
    *out = dt_cli_string(cli, "output", NULL);
    if (!*out)
        return dt_error_set(err, DT_ERR_USAGE, "db %s needs -o FILE", action);
    return dt_cli_one_stdout(cli, *out, err);
}

static enum dt_status copy_option(const struct dt_cli *cli, const char *option,
                                  const char *fallback, char *buf, size_t size,
                                  struct dt_error *err)
{
    const char *s = dt_cli_string(cli, option, fallback);

    if (strlen(s) >= size)
        return dt_error_set(err, DT_ERR_USAGE, "--%s is longer than %zu characters", option,
                            size - 1);
    memcpy(buf, s, strlen(s) + 1);
    return DT_OK;
}

static enum dt_status import_options(const struct dt_cli *cli, struct dt_error *err,
                                     struct dt_import_options *o)
{
    struct dt_profile_source *s = &o->source;

    o->device = dt_cli_string(cli, "device", NULL);
    o->dtype = dt_cli_string(cli, "dtype", NULL);
    o->shape = dt_cli_string(cli, "shape", NULL);
    if (!o->device)
        return dt_error_set(err, DT_ERR_USAGE,
                            "db import needs --device NAME, as in --device A100-SXM4-80GB");
    if (!dt_cli_string(cli, "source", NULL))
        return dt_error_set(err, DT_ERR_USAGE,
                            "db import needs --source NAME: every row names its source");
    DT_TRY(copy_option(cli, "source", "", s->name, sizeof s->name, err));
    DT_TRY(copy_option(cli, "origin", "not stated", s->origin, sizeof s->origin, err));
    DT_TRY(copy_option(cli, "licence", "not stated", s->licence, sizeof s->licence, err));
    DT_TRY(copy_option(cli, "date", "not recorded", s->date, sizeof s->date, err));
    return copy_option(cli, "note", "", s->note, sizeof s->note, err);
}

static enum dt_status import_family_help(struct dt_error *err)
{
    char list[2048] = "db import FAMILY FILE... -o OUT --device NAME --source NAME; families:";
    const char *name, *summary;

    for (int i = 0; (name = dt_import_format_name(i, &summary)); i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "\n  %-18s %s", name, summary);
    }
    return dt_error_set(err, DT_ERR_USAGE, "%s", list);
}

static enum dt_status import_file(const char *family, const char *path,
                                  const struct dt_import_options *o, struct dt_error *err,
                                  struct dt_profile_table *t, struct dt_import_result *sum)
{
    struct dt_import_result r;
    enum dt_status status;
    char *text;
    size_t len;

    DT_TRY(dt_file_read(path, CSV_LIMIT_BYTES, err, &text, &len));
    status = dt_import_profile(family, path, text, len, o, err, t, &r);
    dt_free(text);
    if (status != DT_OK)
        return status;
    sum->rows += r.rows;
    sum->measurements += r.measurements;
    sum->skipped += r.skipped;
    return DT_OK;
}

static enum dt_status print_imported(const struct dt_cli *cli, const char *out,
                                     const struct dt_import_result *r, size_t rows_in_all,
                                     struct dt_error *err)
{
    struct dt_json j;

    if (!cli->json) {
        printf("%s: %zu row%s from %zu line%s (%zu line%s skipped), %zu row%s in all\n", out,
               r->rows, dt_plural((int64_t)r->rows), r->measurements,
               dt_plural((int64_t)r->measurements), r->skipped, dt_plural((int64_t)r->skipped),
               rows_in_all, dt_plural((int64_t)rows_in_all));
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "output", out);
    dt_json_kv_int(&j, "rows", (int64_t)r->rows);
    dt_json_kv_int(&j, "lines", (int64_t)r->measurements);
    dt_json_kv_int(&j, "lines_skipped", (int64_t)r->skipped);
    dt_json_kv_int(&j, "rows_in_all", (int64_t)rows_in_all);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

/* An output that exists is added to. */
static enum dt_status db_import(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_import_result sum = {0, 0, 0};
    struct dt_import_options o = {0};
    struct dt_profile_table t = {0};
    const char *out;
    enum dt_status status = DT_OK;

    if (cli->n_args < 3)
        return import_family_help(err);
    DT_TRY(need_output(cli, "import", err, &out));
    DT_TRY(import_options(cli, err, &o));
    if (strcmp(out, "-") != 0 && access(out, F_OK) == 0)
        DT_TRY(dt_profile_table_read(out, err, &t));
    for (int i = 2; i < cli->n_args && status == DT_OK; i++)
        status = import_file(cli->args[1], cli->args[i], &o, err, &t, &sum);
    if (status == DT_OK)
        status = dt_profile_table_write(&t, out, err);
    if (status == DT_OK && strcmp(out, "-") != 0)
        status = print_imported(cli, out, &sum, t.n_rows, err);
    dt_profile_table_free(&t);
    return status;
}

static void add_score(struct dt_cli_rows *o, const char *what, const struct dt_fit_local_score *s)
{
    dt_cli_row(o);
    dt_cli_row_text(o, "what", "relative error of the fit", what);
    dt_cli_row_int(o, "points", "points", (int64_t)s->n);
    dt_cli_row_number(o, "mape", "mean [%]", "%.1f", 100, s->mean);
    dt_cli_row_number(o, "median", "median [%]", "%.1f", 100, s->median);
    dt_cli_row_number(o, "p90", "p90 [%]", "%.1f", 100, s->p90);
}

static void scores(struct dt_cli_rows *o, const struct dt_fit_report *r)
{
    for (int i = 0; i < r->n; i++)
        add_score(o, r->score[i].what, &r->score[i].s);
    if (r->n == 0 && !o->json) {
        add_score(o, NULL, &(struct dt_fit_local_score){0});
        dt_cli_rows_none(o);
    }
}

static enum dt_status print_scores_json(const struct dt_fit_report *r, const char *device,
                                        size_t rows, struct dt_error *err)
{
    struct dt_cli_rows o;
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "device", device);
    dt_json_kv_int(&j, "rows", (int64_t)rows);
    dt_cli_rows_json(&o, &j, "scores");
    scores(&o, r);
    dt_cli_rows_end(&o, NULL);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static void print_scores(const struct dt_fit_report *r)
{
    struct dt_cli_rows o;

    dt_cli_rows_table(&o);
    scores(&o, r);
    dt_cli_rows_end(&o, stdout);
}

static enum dt_status db_fit(struct dt_cli *cli, struct dt_error *err)
{
    const char *out, *device = dt_cli_string(cli, "device", NULL);
    struct dt_profile_table in = {0}, t = {0};
    struct dt_fit_report report;
    enum dt_status status;

    if (cli->n_args != 2 || !device)
        return dt_error_set(err, DT_ERR_USAGE, "db fit MEASURED --device %s|%s|%s -o OUT",
                            dt_fit_device(0), dt_fit_device(1), dt_fit_device(2));
    DT_TRY(need_output(cli, "fit", err, &out));
    DT_TRY(dt_profile_table_read(cli->args[1], err, &in));
    status = dt_fit_profile(&in, device, err, &t, &report);
    dt_profile_table_free(&in);
    if (status == DT_OK)
        status = dt_profile_table_write(&t, out, err);
    if (status == DT_OK && strcmp(out, "-") != 0) {
        if (cli->json) {
            status = print_scores_json(&report, device, t.n_rows, err);
        } else {
            print_scores(&report);
            printf("%s: %zu row%s for %s\n", out, t.n_rows, dt_plural((int64_t)t.n_rows), device);
        }
    }
    dt_profile_table_free(&t);
    return status;
}

/* ---- show ---- */

static bool wanted(const struct dt_profile_table *t, const struct dt_profile_table_row *r,
                   const char *device, const char *dtype, int op)
{
    return (!device || strcmp(t->devices[r->device], device) == 0) &&
           (!dtype || strcmp(t->dtypes[r->dtype], dtype) == 0) && (op < 0 || r->r.family == op);
}

static bool same_series(const struct dt_profile_table_row *a, const struct dt_profile_table_row *b)
{
    return a->device == b->device && a->dtype == b->dtype && a->r.family == b->r.family &&
           a->r.phase == b->r.phase && a->r.kind == b->r.kind && a->r.source == b->r.source;
}

/* NULL: names of columns alone. */
static void add_series(struct dt_cli_rows *o, const struct dt_profile_table *t,
                       const struct dt_profile_table_row *r, int64_t points)
{
    const struct dt_profile_source *s = r ? &t->sources[r->r.source] : NULL;

    dt_cli_row(o);
    dt_cli_row_text(o, "device", "device", r ? t->devices[r->device] : NULL);
    dt_cli_row_text(o, "dtype", "dtype", r ? t->dtypes[r->dtype] : NULL);
    dt_cli_row_text(o, "op", "op", r ? dt_kop_family_names[r->r.family] : NULL);
    dt_cli_row_text(o, "phase", "phase", r ? dt_profile_table_phase_names[r->r.phase] : NULL);
    dt_cli_row_text(o, "kind", "kind", r ? dt_profile_row_kind_names[r->r.kind] : NULL);
    dt_cli_row_cell(o, "points", "%lld", (long long)points);
    dt_cli_row_text(o, "source", "source", s ? s->name : NULL);
    dt_cli_row_text(o, "origin", NULL, s ? s->origin : NULL);
    dt_cli_row_text(o, "licence", NULL, s ? s->licence : NULL);
    dt_cli_row_text(o, "date", NULL, s ? s->date : NULL);
    dt_cli_row_text(o, "note", NULL, s ? s->note : NULL);
    dt_cli_row_int(o, "points", NULL, points);
}

/* The rows [from, to) of a series, as many as *limit allows; *limit: what is left of it. */
static void json_rows(struct dt_json *j, const struct dt_profile_table *t, size_t from, size_t to,
                      int64_t *limit, int64_t *left_out)
{
    dt_json_key(j, "rows");
    dt_json_begin_array(j);
    for (size_t p = from; p < to; p++) {
        if (*limit == 0) {
            *left_out += (int64_t)(to - p);
            break;
        }
        --*limit;
        dt_json_begin_array(j);
        for (int d = 0; d < 6; d++)
            dt_json_int(j, t->rows[p].r.d[d]);
        dt_json_int(j, t->rows[p].r.n);
        dt_json_double(j, t->rows[p].r.median_ns);
        dt_json_double(j, t->rows[p].r.p10_ns);
        dt_json_double(j, t->rows[p].r.p90_ns);
        dt_json_end_array(j);
    }
    dt_json_end_array(j);
}

/* limit: of rows in all, 0 = none */
static enum dt_status show_json(const struct dt_profile_table *t, const char *device,
                                const char *dtype, int op, int64_t limit, struct dt_error *err)
{
    int64_t left = limit ? limit : INT64_MAX, left_out = 0;
    struct dt_cli_rows o;
    struct dt_json j;

    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_json_kv_int(&j, "schema_version", DT_PROFILE_SCHEMA);
    dt_cli_rows_json(&o, &j, "series");
    for (size_t i = 0, k; i < t->n_rows; i = k) {
        const struct dt_profile_table_row *r = &t->rows[i];
        for (k = i + 1; k < t->n_rows && same_series(r, &t->rows[k]); k++)
            ;
        if (!wanted(t, r, device, dtype, op))
            continue;
        add_series(&o, t, r, (int64_t)(k - i));
        if (op >= 0)
            json_rows(&j, t, i, k, &left, &left_out);
    }
    dt_cli_rows_end(&o, NULL);
    if (op >= 0)
        dt_json_kv_int(&j, "left_out", left_out);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static void show_series(const struct dt_profile_table *t, const char *device, const char *dtype)
{
    struct dt_cli_rows o;

    dt_cli_rows_table(&o);
    for (size_t i = 0, k; i < t->n_rows; i = k) {
        const struct dt_profile_table_row *r = &t->rows[i];
        for (k = i + 1; k < t->n_rows && same_series(r, &t->rows[k]); k++)
            ;
        if (!wanted(t, r, device, dtype, -1))
            continue;
        add_series(&o, t, r, (int64_t)(k - i));
    }
    if (o.rows == 0) {
        add_series(&o, t, NULL, 0);
        dt_cli_rows_none(&o);
    }
    dt_cli_rows_end(&o, stdout);
    printf("\nSources:\n");
    for (int i = 0; i < t->n_sources; i++)
        printf("  %s\n    from %s (%s, %s)\n%s%s%s", t->sources[i].name, t->sources[i].origin,
               t->sources[i].licence, t->sources[i].date, t->sources[i].note[0] ? "    " : "",
               t->sources[i].note, t->sources[i].note[0] ? "\n" : "");
}

static void show_rows(const struct dt_profile_table *t, const char *device, const char *dtype,
                      int op, int64_t limit)
{
    static const char *const heads[] = {"phase", "kind",        "d0",       "d1",
                                        "d2",    "d3",          "d4",       "d5",
                                        "n",     "median [us]", "p10 [us]", "p90 [us]"};
    struct dt_cli_table table;
    int64_t shown = 0, left = 0;

    dt_cli_table_init(&table, 12, heads);
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct dt_profile_row *r = &t->rows[i].r;
        if (!wanted(t, &t->rows[i], device, dtype, op))
            continue;
        if (limit && shown == limit) {
            left++;
            continue;
        }
        shown++;
        dt_cli_table_cell(&table, "%s", dt_profile_table_phase_names[r->phase]);
        dt_cli_table_cell(&table, "%s", dt_profile_row_kind_names[r->kind]);
        for (int d = 0; d < 6; d++)
            dt_cli_table_cell(&table, "%lld", (long long)r->d[d]);
        dt_cli_table_cell(&table, "%lld", (long long)r->n);
        dt_cli_table_cell(&table, "%.3f", r->median_ns / 1e3);
        dt_cli_table_cell(&table, "%.3f", r->p10_ns / 1e3);
        dt_cli_table_cell(&table, "%.3f", r->p90_ns / 1e3);
    }
    dt_cli_table_print(&table, stdout);
    if (left)
        printf("... and %lld more row%s (--limit 0 shows all)\n", (long long)left, dt_plural(left));
}

static enum dt_status find_op(const char *name, struct dt_error *err, int *op)
{
    const char *names[DT_KOP_FAMILY_N + 1], *near;

    *op = -1;
    if (!name)
        return DT_OK;
    for (int f = 0; f < DT_KOP_FAMILY_N; f++) {
        names[f] = dt_kop_family_names[f];
        if (strcmp(names[f], name) == 0)
            *op = f;
    }
    names[DT_KOP_FAMILY_N] = NULL;
    if (*op >= 0)
        return DT_OK;
    near = dt_suggest(name, names);
    return dt_error_set(err, DT_ERR_USAGE, "unknown op '%.60s'%s%s%s", name,
                        near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static enum dt_status db_show(struct dt_cli *cli, struct dt_error *err)
{
    const char *device = dt_cli_string(cli, "device", NULL),
               *dtype = dt_cli_string(cli, "dtype", NULL);
    struct dt_profile_table t = {0};
    enum dt_status status = DT_OK;
    char path[1024];
    int64_t limit;
    int op;

    if (cli->n_args != 2)
        return dt_error_set(err, DT_ERR_USAGE,
                            "db show PROFILE [--op OP] [--device NAME] [--json]");
    DT_TRY(find_op(dt_cli_string(cli, "op", NULL), err, &op));
    DT_TRY(dt_cli_int(cli, "limit", 0, INT64_C(1) << 40, cli->json ? 0 : 40, &limit, err));
    DT_TRY(dt_file_find("profiles", cli->args[1], ".sql", err, path, sizeof path));
    DT_TRY(dt_profile_table_read(path, err, &t));
    dt_profile_table_sort(&t);
    if (cli->json)
        status = show_json(&t, device, dtype, op, limit, err);
    else if (op >= 0)
        show_rows(&t, device, dtype, op, limit);
    else
        show_series(&t, device, dtype);
    dt_profile_table_free(&t);
    return status;
}

static enum dt_status print_exported(const struct dt_cli *cli, const char *out, size_t rows,
                                     struct dt_error *err)
{
    struct dt_json j;

    if (!cli->json) {
        printf("%s: %zu row%s\n", out, rows, dt_plural((int64_t)rows));
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "output", out);
    dt_json_kv_int(&j, "rows", (int64_t)rows);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status db_export(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_profile_table t = {0};
    enum dt_status status;
    const char *out;
    char path[1024];

    if (cli->n_args != 2)
        return dt_error_set(err, DT_ERR_USAGE, "db export PROFILE -o FILE.sql");
    DT_TRY(need_output(cli, "export", err, &out));
    DT_TRY(dt_file_find("profiles", cli->args[1], ".sql", err, path, sizeof path));
    DT_TRY(dt_profile_table_read(path, err, &t));
    status = dt_profile_table_write(&t, out, err);
    if (status == DT_OK && strcmp(out, "-") != 0)
        status = print_exported(cli, out, t.n_rows, err);
    dt_profile_table_free(&t);
    return status;
}

static const char *const names[] = {"import", "fit", "show", "export", NULL};

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    static enum dt_status (*const action[])(struct dt_cli *, struct dt_error *) = {
        db_import, db_fit, db_show, db_export};
    int k;

    DT_TRY(dt_cli_action(cli, err, &k));
    return action[k](cli, err);
}

const struct dt_cli_command dt_cmd_db = {
    .name = "db",
    .args = "import FAMILY FILE... | fit MEASURED | show PROFILE | export PROFILE",
    .summary = "import, fit, show and export kernel profiles",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
    .actions = names,
};
