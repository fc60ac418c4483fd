/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain profile import: what profilers and benchmarks wrote, as rows of a profile. */
#include "cli/profile_import.h"

#include "cli/profile.h"
#include "base/file.h"
#include "base/mem.h"
#include "fit/profile_import.h"
#include "fit/profile_nccl_text.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 256 << 10, /* that a file's kind is told by: NCCL's messages may come first */
    JSON_LIMIT_BYTES = 512 << 20, /* it is held in memory */
    TEXT_LIMIT_BYTES = 256 << 20, /* tables, as in disttrain db import */
};

const char *const dt_cli_import_kind_names[] = {"nsys", "kineto", "nccl-tests", "csv"};

/* ---- which kind of file ---- */

/* The first character of the first line that is neither empty nor a comment; *comma: it has one. */
static char first_of_data(const char *s, bool *comma)
{
    while (*s) {
        size_t n = strcspn(s, "\n");
        const char *p = s + strspn(s, " \t\r");

        if (p < s + n && *p != '#') {
            *comma = memchr(p, ',', (size_t)(s + n - p)) != NULL;
            return *p;
        }
        s += n + (s[n] == '\n');
    }
    return '\0';
}

/* Behind a command line, a launcher's notes or NCCL's messages there is the head of a run, or the
 * line above the times. */
static bool is_nccl(const char *head)
{
    return strstr(head, "# nThread ") || strstr(head, "# Using devices") ||
           strstr(head, "out-of-place") || strstr(head, " algbw ");
}

/* A launcher's tag ("[1,0]<stdout>:") begins as a list does. */
static bool is_json(const char *head)
{
    const char *p = head + strspn(head, " \t\r\n");

    if (*p != '[')
        return *p == '{';
    p += 1 + strspn(p + 1, " \t\r\n");
    return *p == '{' || !is_nccl(head);
}

static int kind_of_text(const char *head)
{
    bool comma = false;
    char c = first_of_data(head, &comma);

    if (is_json(head))
        return DT_IMPORT_KINETO;
    if (is_nccl(head))
        return DT_IMPORT_NCCL;
    if (comma)
        return DT_IMPORT_CSV;
    return c >= '0' && c <= '9' ? DT_IMPORT_NCCL : -1;
}

static enum dt_status kind_of(const char *path, struct dt_error *err, int *kind)
{
    int fd, failed;
    char *head;
    size_t n;
    FILE *f;

    DT_TRY(dt_file_open(path, false, err, &fd)); /* read twice, so no stream */
    f = fdopen(fd, "rb");
    head = f ? dt_malloc(HEAD_BYTES + 1) : NULL;
    if (!head) {
        if (f)
            fclose(f);
        else
            close(fd);
        return dt_error_nomem(err, "the head of a file");
    }
    n = fread(head, 1, HEAD_BYTES, f);
    failed = ferror(f) ? errno : 0;
    fclose(f);
    head[n] = '\0';
    if (n >= 16 && memcmp(head, "SQLite format 3", 16) == 0)
        *kind = DT_IMPORT_NSYS;
    else if (n >= 2 && memcmp(head, "\x1f\x8b", 2) == 0)
        *kind = -2;
    else
        *kind = kind_of_text(head);
    dt_free(head);
    if (failed)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "cannot read: %s", strerror(failed));
    if (*kind == -2)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "compressed: gunzip it first");
    if (*kind < 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "neither an Nsight Systems export (SQLite), nor a Kineto trace (JSON), "
                           "nor what nccl-tests prints, nor the generic CSV of doc/formats.md");
    return DT_OK;
}

/* ---- reading ---- */

static enum dt_status read_trace(struct dt_cli_import_run *run, struct dt_cli_import_file *f,
                                 struct dt_error *err)
{
    struct dt_import_trace t = {0};
    enum dt_status st;

    if (f->kind == DT_IMPORT_NSYS) {
        st = dt_import_trace_read_nsys(f->path, err, &t);
    } else {
        char *text;
        size_t len;

        DT_TRY(dt_file_read(f->path, JSON_LIMIT_BYTES, err, &text, &len));
        st = dt_import_trace_parse_kineto(f->path, text, len, err, &t);
        dt_free(text);
    }
    if (st != DT_OK)
        return st;
    memcpy(f->device, t.device, sizeof(f->device));
    memcpy(f->other, t.other, sizeof(f->other));
    f->by_time = t.by_time;
    st = dt_import_kernels_trace(run->kernels, &t, run->rules, run->source[f->kind], err, &f->sums);
    dt_import_trace_free(&t);
    return st;
}

/* Each line has two times, in and out of place; rows of several files are taken together. */
static enum dt_status read_nccl(struct dt_cli_import_run *run, struct dt_cli_import_file *f,
                                struct dt_error *err)
{
    struct dt_profile_source any = {.name = "nccl-tests"};
    struct dt_profile_table t = {0};
    int device, dtype, source;
    struct dt_import_nccl_counts n = {0};
    size_t len;
    enum dt_status st;
    char *text;

    DT_TRY(dt_file_read(f->path, TEXT_LIMIT_BYTES, err, &text, &len));
    st = dt_profile_table_device(&t, "any", err, &device);
    if (st == DT_OK)
        st = dt_profile_table_dtype(&t, "any", err, &dtype);
    if (st == DT_OK)
        st = dt_profile_table_source(&t, &any, err, &source);
    if (st == DT_OK)
        st = dt_import_nccl_text(f->path, text, len, &t, device, dtype, source, err, &n);
    for (size_t i = 0; i < n.rows && st == DT_OK; i++) {
        struct dt_profile_row row = t.rows[i].r;

        row.source = run->source[f->kind];
        st = dt_import_kernels_observe(run->kernels, &row, row.p10_ns, err);
        if (st == DT_OK)
            st = dt_import_kernels_observe(run->kernels, &row, row.p90_ns, err);
        f->sums.observations += 2;
    }
    f->lines_left_out = (int64_t)n.left_out;
    dt_free(text);
    dt_profile_table_free(&t);
    return st;
}

static enum dt_status read_csv(struct dt_cli_import_run *run, struct dt_cli_import_file *f,
                               struct dt_error *err)
{
    struct dt_import_options o = {.device = run->device};
    struct dt_import_result r;
    enum dt_status st;
    char *text;
    size_t len;

    o.source = run->table.sources[run->source[DT_IMPORT_CSV]];
    DT_TRY(dt_file_read(f->path, TEXT_LIMIT_BYTES, err, &text, &len));
    st = dt_import_profile("generic", f->path, text, len, &o, err, &run->table, &r);
    dt_free(text);
    if (st == DT_OK) {
        f->sums.observations = (int64_t)r.measurements;
        run->rows += r.rows;
    }
    return st;
}

/* All files of a kind are one source, so that their times of an op make one row. */
static enum dt_status add_source(struct dt_cli_import_run *run, int kind, struct dt_error *err)
{
    struct dt_profile_source s = {.licence = "not stated", .date = "not recorded"};
    size_t used = 0;
    int left = 0;

    for (int i = 0; i < run->n_files; i++) {
        const char *slash = strrchr(run->file[i].path, '/');
        const char *base = slash ? slash + 1 : run->file[i].path;

        if (run->file[i].kind != kind)
            continue;
        if (left == 0 && used + strlen(base) + 32 < sizeof(s.origin))
            used += (size_t)snprintf(s.origin + used, sizeof(s.origin) - used, "%s%s",
                                     used ? ", " : "", base);
        else
            left++;
    }
    if (used == 0 && left == 0)
        return DT_OK;
    if (left)
        snprintf(s.origin + used, sizeof(s.origin) - used, "%s%d file%s of long names or more",
                 used ? " and " : "", left, left == 1 ? "" : "s");
    snprintf(s.name, sizeof(s.name), "profile import: %s", dt_cli_import_kind_names[kind]);
    if (kind == DT_IMPORT_NSYS || kind == DT_IMPORT_KINETO)
        snprintf(s.note, sizeof(s.note), "sums of kernel times; rules: %.200s", run->rules_name);
    return dt_profile_table_source(&run->table, &s, err, &run->source[kind]);
}

/* Without --device the traces say what they ran on, and must agree. */
static enum dt_status find_device(struct dt_cli_import_run *run, struct dt_error *err)
{
    const struct dt_cli_import_file *said = NULL;

    if (run->device)
        return DT_OK;
    for (int i = 0; i < run->n_files; i++) {
        const struct dt_cli_import_file *f = &run->file[i];

        if (!f->device[0])
            continue;
        if (f->other[0])
            return dt_error_set(err, DT_ERR_USAGE,
                                "%.200s: its kernels ran on %s and on %s, or it does not say on "
                                "which: trace one of them, or use --device NAME",
                                f->path, f->device, f->other);
        if (said && strcmp(said->device, f->device) != 0)
            return dt_error_set(err, DT_ERR_USAGE,
                                "%.200s was taken on %s, %.200s on %s: import them one by one, or "
                                "use --device NAME",
                                said->path, said->device, f->path, f->device);
        said = f;
    }
    if (!said)
        return dt_error_set(
            err, DT_ERR_USAGE,
            "%.200s does not name its GPU: use --device NAME, as in --device A100-SXM4-80GB",
            run->file[0].path);
    run->device = said->device;
    return DT_OK;
}

static enum dt_status read_files(struct dt_cli_import_run *run, struct dt_error *err)
{
    for (int kind = 0; kind < DT_IMPORT_KINDS; kind++)
        DT_TRY(add_source(run, kind, err));
    for (int i = 0; i < run->n_files; i++) {
        struct dt_cli_import_file *f = &run->file[i];

        if (f->kind == DT_IMPORT_NSYS || f->kind == DT_IMPORT_KINETO)
            DT_TRY(read_trace(run, f, err));
        else if (f->kind == DT_IMPORT_NCCL)
            DT_TRY(read_nccl(run, f, err));
    }
    DT_TRY(find_device(run, err));
    for (int i = 0; i < run->n_files; i++)
        if (run->file[i].kind == DT_IMPORT_CSV)
            DT_TRY(read_csv(run, &run->file[i], err));
    return DT_OK;
}

/* ---- the command ---- */

static enum dt_status finish(struct dt_cli_import_run *run, struct dt_error *err)
{
    size_t rows = 0;
    int device;

    DT_TRY(dt_profile_table_device(&run->table, run->device, err, &device));
    DT_TRY(dt_import_kernels_finish(run->kernels, device, err, &run->table, &rows));
    run->rows += rows;
    run->n_top = dt_import_kernels_top(run->kernels, run->top);
    for (int i = 0; i < run->n_files; i++) {
        const struct dt_import_kernels_sums *s = &run->file[i].sums;

        run->sums.kernels += s->kernels;
        run->sums.mapped += s->mapped;
        run->sums.ignored += s->ignored;
        run->sums.unmapped += s->unmapped;
        run->sums.ns += s->ns;
        run->sums.mapped_ns += s->mapped_ns;
        run->sums.ignored_ns += s->ignored_ns;
        run->sums.unmapped_ns += s->unmapped_ns;
        run->sums.observations += s->observations;
        run->sums.assumed_dtype += s->assumed_dtype;
        run->sums.mixed_dtype += s->mixed_dtype;
        run->sums.unknown_math += s->unknown_math;
        run->sums.denied_dtype += s->denied_dtype;
    }
    return DT_OK;
}

/* Says what was found, then writes it, unless --strict or the lack of rows forbids. */
static enum dt_status write_and_report(struct dt_cli_import_run *run, bool json, bool strict,
                                       struct dt_error *err)
{
    bool write = run->rows > 0 && !(strict && run->sums.unmapped > 0);

    if (write)
        DT_TRY(dt_profile_table_write(&run->table, run->output, err));
    run->written = write;
    if (json)
        DT_TRY(dt_cli_import_print_json(run, err));
    else
        dt_cli_import_print(run, strcmp(run->output, "-") == 0 ? stderr : stdout);
    if (run->rows == 0)
        return dt_error_at(err, DT_ERR_INPUT, run->file[0].path, 0, 0,
                           "rules %s map no kernel %sto an op: nothing written", run->rules_name,
                           run->n_files > 1 ? "of this file or the others " : "");
    if (!write)
        return dt_error_set(err, DT_ERR_TOLERANCE,
                            "%lld of %lld kernels are not mapped: nothing written (--strict)",
                            (long long)run->sums.unmapped, (long long)run->sums.kernels);
    return DT_OK;
}

static enum dt_status import(struct dt_cli_import_run *run, struct dt_cli *cli,
                             struct dt_error *err)
{
    const char *rules = dt_cli_string(cli, "rules", "default");
    bool traces = false;
    char path[4096];

    run->rules_name = strrchr(rules, '/') ? strrchr(rules, '/') + 1 : rules;
    for (int i = 1; i < cli->n_args; i++) {
        struct dt_cli_import_file *f = &run->file[run->n_files++];

        f->path = cli->args[i];
        DT_TRY(kind_of(f->path, err, &f->kind));
        traces |= f->kind == DT_IMPORT_NSYS || f->kind == DT_IMPORT_KINETO;
    }
    if (traces || dt_cli_string(cli, "rules", NULL)) {
        DT_TRY(dt_file_find("rules", rules, ".yaml", err, path, sizeof(path)));
        DT_TRY(dt_import_rules_read(path, err, &run->rules));
    }
    DT_TRY(dt_import_kernels_new(dt_cli_string(cli, "dtype", "bf16"), err, &run->kernels));
    if (strcmp(run->output, "-") != 0 && access(run->output, F_OK) == 0)
        DT_TRY(dt_profile_table_read(run->output, err, &run->table));
    DT_TRY(read_files(run, err));
    DT_TRY(finish(run, err));
    return write_and_report(run, cli->json, dt_cli_flag(cli, "strict"), err);
}

enum dt_status dt_cmd_profile_import(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_cli_import_run run = {.output = dt_cli_string(cli, "output", NULL),
                                    .device = dt_cli_string(cli, "device", NULL)};
    enum dt_status st;

    if (!run.output || cli->n_args < 2)
        return dt_error_set(err, DT_ERR_USAGE,
                            "disttrain profile import [--rules FILE] [--device NAME] [--strict] "
                            "-o OUT.db FILE...");
    DT_TRY(dt_cli_one_stdout(cli, run.output, err));
    run.file = dt_calloc((size_t)cli->n_args, sizeof(*run.file));
    if (!run.file)
        return dt_error_nomem(err, "files");
    st = import(&run, cli, err);
    dt_import_kernels_free(run.kernels);
    dt_import_rules_free(run.rules);
    dt_profile_table_free(&run.table);
    dt_free(run.file);
    return st;
}
