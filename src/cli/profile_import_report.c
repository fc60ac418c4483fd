/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What disttrain profile import found, file by file, and what no rule maps. */
#include "cli/profile_import.h"
#include "cli/session.h"
#include "cli/table.h"

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

static void print_files(const struct dt_cli_import_run *run, FILE *f)
{
    static const char *const heads[] = {"file",          "kind",        "kernels",
                                        "time [ms]",     "mapped [ms]", "ignored [ms]",
                                        "unmapped [ms]", "observations"};
    struct dt_cli_table t;
    char name[80];

    dt_cli_table_init(&t, 8, heads);
    for (int i = 0; i < run->n_files; i++) {
        const struct dt_import_kernels_sums *s = &run->file[i].sums;

        dt_cli_table_cell(&t, "%s", plain(run->file[i].path, name, sizeof(name)));
        dt_cli_table_cell(&t, "%s", dt_cli_import_kind_names[run->file[i].kind]);
        dt_cli_table_cell(&t, "%lld", (long long)s->kernels);
        dt_cli_table_cell(&t, "%.3f", s->ns * 1e-6);
        dt_cli_table_cell(&t, "%.3f", s->mapped_ns * 1e-6);
        dt_cli_table_cell(&t, "%.3f", s->ignored_ns * 1e-6);
        dt_cli_table_cell(&t, "%.3f", s->unmapped_ns * 1e-6);
        dt_cli_table_cell(&t, "%lld", (long long)s->observations);
    }
    dt_cli_table_print(&t, f);
}

static void print_unmapped(const struct dt_cli_import_run *run, FILE *f)
{
    static const char *const heads[] = {"time [ms]", "share [%]", "kernels", "kernel"};
    const struct dt_import_kernels_sums *s = &run->sums;
    struct dt_cli_table t;
    char name[120];

    fprintf(f, "\nunmapped: %lld of %lld kernels, %.3f of %.3f ms (%.1f %%)%s\n",
            (long long)s->unmapped, (long long)s->kernels, s->unmapped_ns * 1e-6, s->ns * 1e-6,
            100 * share(s->unmapped_ns, s->ns), s->unmapped ? "; most of it:" : "");
    if (s->unmapped == 0)
        return;
    dt_cli_table_init(&t, 4, heads);
    for (int i = 0; i < run->n_top; i++) {
        dt_cli_table_cell(&t, "%.3f", run->top[i].ns * 1e-6);
        dt_cli_table_cell(&t, "%.1f", 100 * share(run->top[i].ns, s->ns));
        dt_cli_table_cell(&t, "%lld", (long long)run->top[i].kernels);
        dt_cli_table_cell(&t, "%s", plain(run->top[i].name, name, sizeof(name)));
    }
    dt_cli_table_print(&t, f);
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
        fprintf(f, "%lld mapped kernels are taken for --dtype: the trace does not say theirs\n",
                (long long)s->assumed_dtype);
}

void dt_cli_import_print(const struct dt_cli_import_run *run, FILE *f)
{
    char name[120];

    print_files(run, f);
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

static void json_sums(struct dt_json *j, const struct dt_import_kernels_sums *s)
{
    dt_json_kv_int(j, "kernels", s->kernels);
    dt_json_kv_int(j, "unmapped", s->unmapped);
    dt_json_kv_double(j, "kernel_s", s->ns * 1e-9);
    dt_json_kv_double(j, "mapped_s", s->mapped_ns * 1e-9);
    dt_json_kv_double(j, "ignored_s", s->ignored_ns * 1e-9);
    dt_json_kv_double(j, "unmapped_s", s->unmapped_ns * 1e-9);
    dt_json_kv_int(j, "observations", s->observations);
    dt_json_kv_int(j, "mixed_dtype", s->mixed_dtype);
    dt_json_kv_int(j, "unknown_math", s->unknown_math);
    dt_json_kv_int(j, "denied_dtype", s->denied_dtype);
    dt_json_kv_int(j, "assumed_dtype", s->assumed_dtype);
}

enum dt_status dt_cli_import_print_json(const struct dt_cli_import_run *run, struct dt_error *err)
{
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "output", run->output);
    dt_json_kv_bool(&j, "written", run->written);
    dt_json_kv_string(&j, "device", run->device);
    dt_json_kv_string(&j, "rules", run->rules ? run->rules_name : NULL);
    dt_json_kv_int(&j, "rows", (int64_t)run->rows);
    json_sums(&j, &run->sums);
    dt_json_kv_double(&j, "unmapped_share", share(run->sums.unmapped_ns, run->sums.ns));
    dt_json_key(&j, "files");
    dt_json_begin_array(&j);
    for (int i = 0; i < run->n_files; i++) {
        dt_json_begin_object(&j);
        dt_json_kv_string(&j, "file", run->file[i].path);
        dt_json_kv_string(&j, "kind", dt_cli_import_kind_names[run->file[i].kind]);
        dt_json_kv_bool(&j, "ranges_by_time", run->file[i].by_time);
        dt_json_kv_int(&j, "lines_left_out", run->file[i].lines_left_out);
        json_sums(&j, &run->file[i].sums);
        dt_json_end_object(&j);
    }
    dt_json_end_array(&j);
    dt_json_key(&j, "top_unmapped");
    dt_json_begin_array(&j);
    for (int i = 0; i < run->n_top; i++) {
        dt_json_begin_object(&j);
        dt_json_kv_string(&j, "kernel", run->top[i].name);
        dt_json_kv_int(&j, "kernels", run->top[i].kernels);
        dt_json_kv_double(&j, "kernel_s", run->top[i].ns * 1e-9);
        dt_json_kv_double(&j, "share", share(run->top[i].ns, run->sums.ns));
        dt_json_end_object(&j);
    }
    dt_json_end_array(&j);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}
