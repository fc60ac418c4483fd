/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What disttrain profile import found, file by file, and what no rule maps. */
#include "cli/profile_import.h"
#include "cli/session.h"
#include "cli/rows.h"

/* Names come from files: nothing in them reaches the terminal but printable ASCII. */
static const char *plain(const char *name, char *buf, size_t size)
{
    size_t n = 0;

    for (; name[n] && n < size - 1; n++)
        buf[n] = name[n] >= ' ' && name[n] < 127 ? name[n] : '?';
    buf[n] = '\0';
    return buf;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* For people the five that matter, for programs all: of a file, or of all files. */
static void add_sums(struct dt_cli_rows *r, const struct dt_import_kernels_sums *s)
{
    dt_cli_row_int(r, "kernels", "kernels", s->kernels);
    dt_cli_row_int(r, "unmapped", NULL, s->unmapped);
    dt_cli_row_number(r, "kernel_s", NULL, NULL, 1, s->ns * 1e-9);
    dt_cli_row_number(r, "mapped_s", NULL, NULL, 1, s->mapped_ns * 1e-9);
    dt_cli_row_number(r, "ignored_s", NULL, NULL, 1, s->ignored_ns * 1e-9);
    dt_cli_row_number(r, "unmapped_s", NULL, NULL, 1, s->unmapped_ns * 1e-9);
    dt_cli_row_number(r, NULL, "time [ms]", "%.3f", 1e-6, s->ns);
    dt_cli_row_number(r, NULL, "mapped [ms]", "%.3f", 1e-6, s->mapped_ns);
    dt_cli_row_number(r, NULL, "ignored [ms]", "%.3f", 1e-6, s->ignored_ns);
    dt_cli_row_number(r, NULL, "unmapped [ms]", "%.3f", 1e-6, s->unmapped_ns);
    dt_cli_row_int(r, "observations", "observations", s->observations);
    dt_cli_row_int(r, "mixed_dtype", NULL, s->mixed_dtype);
    dt_cli_row_int(r, "unknown_math", NULL, s->unknown_math);
    dt_cli_row_int(r, "denied_dtype", NULL, s->denied_dtype);
    dt_cli_row_int(r, "assumed_dtype", NULL, s->assumed_dtype);
}

static void files(struct dt_cli_rows *r, const struct dt_cli_import_run *run)
{
    char name[80];

    for (int i = 0; i < run->n_files; i++) {
        dt_cli_row(r);
        dt_cli_row_text(r, "file", NULL, run->file[i].path);
        dt_cli_row_text(r, NULL, "file", plain(run->file[i].path, name, sizeof(name)));
        dt_cli_row_text(r, "kind", "kind", dt_cli_import_kind_names[run->file[i].kind]);
        dt_cli_row_bool(r, "ranges_by_time", run->file[i].by_time);
        dt_cli_row_int(r, "lines_left_out", NULL, run->file[i].lines_left_out);
        add_sums(r, &run->file[i].sums);
    }
}

static void top_unmapped(struct dt_cli_rows *r, const struct dt_cli_import_run *run)
{
    char name[120];

    for (int i = 0; i < run->n_top; i++) {
        dt_cli_row(r);
        dt_cli_row_text(r, "kernel", NULL, run->top[i].name);
        dt_cli_row_number(r, NULL, "time [ms]", "%.3f", 1e-6, run->top[i].ns);
        dt_cli_row_number(r, NULL, "share [%]", "%.1f", 100, share(run->top[i].ns, run->sums.ns));
        dt_cli_row_int(r, "kernels", "kernels", run->top[i].kernels);
        dt_cli_row_text(r, NULL, "kernel", plain(run->top[i].name, name, sizeof(name)));
        dt_cli_row_number(r, "kernel_s", NULL, NULL, 1, run->top[i].ns * 1e-9);
        dt_cli_row_number(r, "share", NULL, NULL, 1, share(run->top[i].ns, run->sums.ns));
    }
}

static void print_unmapped(const struct dt_cli_import_run *run, FILE *f)
{
    const struct dt_import_kernels_sums *s = &run->sums;
    struct dt_cli_rows r;

    fprintf(f, "\nunmapped: %lld of %lld kernels, %.3f of %.3f ms (%.1f %%)%s\n",
            (long long)s->unmapped, (long long)s->kernels, s->unmapped_ns * 1e-6, s->ns * 1e-6,
            100 * share(s->unmapped_ns, s->ns), s->unmapped ? "; most of it:" : "");
    if (s->unmapped == 0)
        return;
    dt_cli_rows_table(&r);
    top_unmapped(&r, run);
    dt_cli_rows_end(&r, f);
}

/* Kernels that a rule knows, but not of what element type. */
static void print_dtypes(const struct dt_cli_import_run *run, FILE *f)
{
    const struct dt_import_kernels_sums *s = &run->sums;

    if (s->mixed_dtype)
        fprintf(f,
                "%lld of them are of operators on integers, on several element types or on one "
                "that no profile has\n",
                (long long)s->mixed_dtype);
    if (s->unknown_math)
        fprintf(f,
                "%lld of them are of products in fp32 or TF32: their names do not say which (a "
                "rule with dtype: does)\n",
                (long long)s->unknown_math);
    if (s->denied_dtype)
        fprintf(f,
                "%lld of them are of products whose element type the trace does not say, and "
                "their names deny --dtype\n",
                (long long)s->denied_dtype);
    if (s->assumed_dtype)
        fprintf(f,
                "%lld mapped kernels have the type of --dtype: the trace does not state theirs\n",
                (long long)s->assumed_dtype);
}

void dt_cli_import_print(const struct dt_cli_import_run *run, FILE *f)
{
    struct dt_cli_rows r;
    char name[120];

    dt_cli_rows_table(&r);
    files(&r, run);
    dt_cli_rows_end(&r, f);
    for (int i = 0; i < run->n_files; i++)
        if (run->file[i].lines_left_out)
            fprintf(f, "%s: lines left out that nccl-tests did not print: %lld\n",
                    plain(run->file[i].path, name, sizeof(name)),
                    (long long)run->file[i].lines_left_out);
    for (int i = 0; i < run->n_files; i++)
        if (run->file[i].by_time)
            fprintf(f,
                    "%s holds no launches (CUPTI_ACTIVITY_KIND_RUNTIME): its kernels are in the "
                    "NVTX ranges open when they ran\n",
                    plain(run->file[i].path, name, sizeof(name)));
    if (run->sums.kernels > 0) {
        print_unmapped(run, f);
        print_dtypes(run, f);
    }
    if (run->written)
        fprintf(f, "\n%s: %zu rows of %s from %lld observations, %zu rows in all\n", run->output,
                run->rows, run->device, (long long)run->sums.observations, run->table.n_rows);
}

enum dt_status dt_cli_import_print_json(const struct dt_cli_import_run *run, struct dt_error *err)
{
    struct dt_cli_rows r;
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "output", run->output);
    dt_json_kv_bool(&j, "written", run->written);
    dt_json_kv_string(&j, "device", run->device);
    dt_json_kv_string(&j, "rules", run->rules ? run->rules_name : NULL);
    dt_json_kv_int(&j, "rows", (int64_t)run->rows);
    r = (struct dt_cli_rows){.json = &j}; /* members of the object that is open */
    add_sums(&r, &run->sums);
    dt_json_kv_double(&j, "unmapped_share", share(run->sums.unmapped_ns, run->sums.ns));
    dt_cli_rows_json(&r, &j, "files");
    files(&r, run);
    dt_cli_rows_end(&r, NULL);
    dt_cli_rows_json(&r, &j, "top_unmapped");
    top_unmapped(&r, run);
    dt_cli_rows_end(&r, NULL);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}
