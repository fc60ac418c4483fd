/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/measured.h"

#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/quantile.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { LIMIT_BYTES = 1 << 20, FIELD_SIZE = 160, FIELDS = 3 };

/* ---- units ---- */

/* By what a metric's values are in; "" is the unit of a value without one. */
static const struct {
    const char *of, *name;
    double scale;
} units[] = {
    {"s", "s", 1},
    {"s", "ms", 1e-3},
    {"s", "us", 1e-6},
    {"s", "ns", 1e-9},
    {"s", "min", 60},
    {"s", "h", 3600},
    {"GPU s", "GPU s", 1},
    {"GPU s", "GPU ms", 1e-3},
    {"GPU s", "GPU h", 3600},
    {"share", "", 1},
    {"share", "%", 0.01},
    {"1/s", "", 1},
    {"1/s", "1/s", 1},
    {"1/s", "tokens/s", 1},
    {"1/s", "samples/s", 1},
    {"GPUs", "", 1},
    {"GPUs", "GPUs", 1},
    {"flop/s", "FLOP/s", 1},
    {"flop/s", "GFLOP/s", 1e9},
    {"flop/s", "TFLOP/s", 1e12},
    {"flop/s", "PFLOP/s", 1e15},
    {"flop", "FLOP", 1},
    {"flop", "GFLOP", 1e9},
    {"flop", "TFLOP", 1e12},
    {"flop", "PFLOP", 1e15},
    {"flop", "EFLOP", 1e18},
    {"bytes", "B", 1},
    {"bytes", "kB", 1e3},
    {"bytes", "MB", 1e6},
    {"bytes", "GB", 1e9},
    {"bytes", "KiB", 1024},
    {"bytes", "MiB", 1048576},
    {"bytes", "GiB", 1073741824},
};
enum { UNITS_N = sizeof(units) / sizeof(units[0]) };

/* ---- lines ---- */

struct reader {
    const char *name;
    int line, col[FIELDS];
    char field[FIELDS][FIELD_SIZE];
    struct dt_error *err;
    struct dt_run_summary *out;
    bool stated[DT_RUN_METRICS_N];
};

static enum dt_status bad(const struct reader *r, int field, const char *what, const char *more)
{
    return dt_error_at(r->err, DT_ERR_INPUT, r->name, r->line, r->col[field], "%s%s", what, more);
}

/* Blanks around it do not count. */
static enum dt_status split(struct reader *r, const char *p, const char *end)
{
    const char *begin = p;

    for (int k = 0; k < FIELDS; k++) {
        const char *stop = memchr(p, ',', (size_t)(end - p)), *last;

        stop = stop ? stop : end;
        while (p < stop && isspace((unsigned char)*p))
            p++;
        for (last = stop; last > p && isspace((unsigned char)last[-1]);)
            last--;
        r->col[k] = (int)(p - begin) + 1;
        if (last - p >= FIELD_SIZE)
            return bad(r, k, "a field is longer than 159 bytes", "");
        for (const char *c = p; c < last; c++)
            if ((unsigned char)*c < 0x20 || *c == 0x7f)
                return bad(r, k, "a field holds a control character", "");
        snprintf(r->field[k], FIELD_SIZE, "%.*s", (int)(last - p), p);
        p = stop < end ? stop + 1 : end;
        if (k == FIELDS - 1 && stop < end) {
            r->col[k] = (int)(stop - begin) + 1;
            return bad(r, k, "a line has three fields: name, value, unit", "");
        }
    }
    return DT_OK;
}

static enum dt_status number(struct reader *r, const char *unit, double *out)
{
    char list[256] = "";
    size_t n = 0;
    double v;

    if (!dt_number_double(r->field[1], &v) || !(v >= 0))
        return bad(r, 1, "a number of 0 or more is expected, found ", r->field[1]);
    for (int i = 0; i < UNITS_N; i++) {
        if (strcmp(units[i].of, unit) != 0)
            continue;
        if (strcmp(units[i].name, r->field[2]) == 0) {
            *out = v * units[i].scale;
            return isfinite(*out) ? DT_OK : bad(r, 1, "the value is too large", "");
        }
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", n ? ", " : "",
                              units[i].name[0] ? units[i].name : "none");
    }
    return dt_error_at(r->err, DT_ERR_INPUT, r->name, r->line, r->col[2],
                       "the unit of %s is one of %s; found '%s'", r->field[0], list, r->field[2]);
}

/* What the values are of: a name, or a fact that a run records, too. */
static bool about(struct reader *r, bool *twice)
{
    static const char *const facts[] = {"global_batch", "microbatch", "seq_len", "precision", NULL};
    struct dt_run_about *a = &r->out->about;
    char *text[] = {a->job, a->host, a->started};
    static const char *const names[] = {"job", "host", "started"};
    const size_t size[] = {sizeof(a->job), sizeof(a->host), sizeof(a->started)};

    for (int i = 0; i < 3; i++)
        if (strcmp(r->field[0], names[i]) == 0) {
            *twice = text[i][0] != '\0';
            snprintf(text[i], size[i], "%s", r->field[1]);
            return true;
        }
    for (int i = 0; facts[i]; i++)
        if (strcmp(r->field[0], facts[i]) == 0) {
            *twice = dt_run_facts_find(&r->out->facts, facts[i]) != NULL;
            dt_run_facts_add(&r->out->facts, facts[i], r->field[1]);
            return true;
        }
    return false;
}

static enum dt_status unknown(const struct reader *r)
{
    const char *words[DT_RUN_METRICS_N + DT_RUN_MODULE_METRICS_N + 1], *near;
    const char *dot = strrchr(r->field[0], '.');
    int n = 0;

    for (int k = 0; !dot && k < DT_RUN_METRICS_N; k++)
        words[n++] = dt_run_metric_rows[k].name;
    for (int k = 0; dot && k < DT_RUN_MODULE_METRICS_N; k++)
        words[n++] = dt_run_module_metric_rows[k].name;
    words[n] = NULL;
    near = dt_suggest(dot ? dot + 1 : r->field[0], words);
    return dt_error_at(r->err, DT_ERR_INPUT, r->name, r->line, r->col[0],
                       "unknown metric '%s'%s%.*s%s%s", r->field[0],
                       near ? "; did you mean '" : " (disttrain-compare(1) lists them)",
                       near && dot ? (int)(dot + 1 - r->field[0]) : 0, r->field[0],
                       near ? near : "", near ? "'?" : "");
}

/* "llm.forward_gpu_s": the module is made where it is named first. */
static enum dt_status module_value(struct reader *r, const char *dot)
{
    size_t n = (size_t)(dot - r->field[0]);
    struct dt_run_module *m = NULL;
    int k = 0;

    while (k < DT_RUN_MODULE_METRICS_N && strcmp(dt_run_module_metric_rows[k].name, dot + 1) != 0)
        k++;
    if (k == DT_RUN_MODULE_METRICS_N || n == 0 || n >= sizeof(m->name))
        return unknown(r);
    for (int i = 0; i < r->out->n_modules; i++)
        if (strlen(r->out->module[i].name) == n &&
            strncmp(r->out->module[i].name, r->field[0], n) == 0)
            m = &r->out->module[i];
    if (!m && r->out->n_modules == DT_MAX_MODULES)
        return bad(r, 0, "more modules than a model can have", "");
    if (!m) {
        m = &r->out->module[r->out->n_modules++];
        memset(m, 0, sizeof(*m));
        snprintf(m->name, sizeof(m->name), "%.*s", (int)n, r->field[0]);
        for (int i = 0; i < DT_RUN_MODULE_METRICS_N; i++)
            m->v[i] = NAN;
    }
    if (!isnan(m->v[k]))
        return bad(r, 0, "is stated twice: ", r->field[0]);
    return number(r, dt_run_module_metric_rows[k].unit, &m->v[k]);
}

static enum dt_status value(struct reader *r)
{
    const char *dot = strrchr(r->field[0], '.');
    bool twice = false;

    if (about(r, &twice))
        return twice ? bad(r, 0, "is stated twice: ", r->field[0]) : DT_OK;
    if (strcmp(r->field[0], "peak_flops") == 0)
        return r->out->peak_flops > 0 ? bad(r, 0, "is stated twice: ", r->field[0])
                                      : number(r, "flop/s", &r->out->peak_flops);
    if (dot)
        return module_value(r, dot);
    for (int k = 0; k < DT_RUN_METRICS_N; k++)
        if (k != DT_RUN_mfu_own_peak && strcmp(dt_run_metric_rows[k].name, r->field[0]) == 0) {
            if (!isnan(r->out->v[k]))
                return bad(r, 0, "is stated twice: ", r->field[0]);
            return number(r, dt_run_metric_rows[k].unit, &r->out->v[k]);
        }
    return unknown(r);
}

static enum dt_status heading(struct reader *r)
{
    return strcmp(r->field[0], "name") == 0 && strcmp(r->field[1], "value") == 0 &&
                   strcmp(r->field[2], "unit") == 0
               ? DT_OK
               : bad(r, 0, "the first line of measured values is 'name,value,unit'", "");
}

static enum dt_status parse(struct reader *r, const char *text, size_t len)
{
    const char *p = text, *end = text + len;
    bool head = false;

    if (len >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0)
        p += 3;
    for (r->line = 1; p < end; r->line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p)), *c = p;

        stop = stop ? stop : end;
        while (c < stop && isspace((unsigned char)*c))
            c++;
        if (c < stop && *c != '#') {
            DT_TRY(split(r, p, stop));
            DT_TRY(head ? value(r) : heading(r));
            head = true;
        }
        p = stop < end ? stop + 1 : end;
    }
    r->line = r->line > 1 ? r->line - 1 : 1;
    return head ? DT_OK : heading(r);
}

/* What the stated values imply. */
static void complete(struct dt_run_summary *o)
{
    double *mfu = &o->v[DT_RUN_mfu], *flops = &o->v[DT_RUN_model_flops_per_s_per_gpu];

    if (isnan(*mfu) && !isnan(*flops) && o->peak_flops > 0)
        *mfu = *flops / o->peak_flops;
    if (isnan(*flops) && !isnan(*mfu) && o->peak_flops > 0)
        *flops = *mfu * o->peak_flops;
    o->v[DT_RUN_mfu_own_peak] = *mfu;
    o->about.mfu = *mfu;
    o->about.makespan_s = isnan(o->v[DT_RUN_iteration_s]) ? 0 : o->v[DT_RUN_iteration_s];
}

static void name_it(const char *name, struct dt_run_summary *o)
{
    const char *slash = strrchr(name, '/');

    o->measured = true;
    snprintf(o->file, sizeof(o->file), "%s", name);
    snprintf(o->about.kind, sizeof(o->about.kind), "measured");
    if (!o->about.job[0])
        snprintf(o->about.job, sizeof(o->about.job), "%s", slash ? slash + 1 : name);
}

enum dt_status dt_run_measured_parse(const char *name, const char *text, size_t len,
                                     struct dt_error *err, struct dt_run_summary *out)
{
    struct dt_run_summary s;
    struct reader r = {.name = name, .col = {1, 1, 1}, .err = err, .out = &s};

    dt_run_summary_init(&s);
    DT_TRY(parse(&r, text, len));
    complete(&s);
    name_it(name, &s);
    *out = s;
    return DT_OK;
}

/* ---- a training's log ---- */

static double quantile(const struct dt_run_log *log, int value, double q, double *scratch)
{
    size_t n = 0;

    for (int64_t i = log->n > 1; i < log->n; i++)
        if (!isnan(log->step[i].v[value]))
            scratch[n++] = log->step[i].v[value];
    dt_sort_numbers(scratch, n);
    return n > 0 ? dt_quantile(scratch, sizeof(*scratch), n, q) : NAN;
}

enum dt_status dt_run_measured_log(const struct dt_run_log *log, const char *name,
                                   struct dt_error *err, struct dt_run_summary *out)
{
    double *scratch = dt_malloc((size_t)log->n * sizeof(*scratch));

    if (!scratch)
        return dt_error_nomem(err, "steps of a log");
    dt_run_summary_init(out);
    out->v[DT_RUN_iteration_s] = quantile(log, DT_RUN_LOG_step_s, 0.5, scratch);
    out->v[DT_RUN_iteration_s_p10] = quantile(log, DT_RUN_LOG_step_s, 0.1, scratch);
    out->v[DT_RUN_iteration_s_p90] = quantile(log, DT_RUN_LOG_step_s, 0.9, scratch);
    out->v[DT_RUN_mfu] = quantile(log, DT_RUN_LOG_mfu, 0.5, scratch);
    out->v[DT_RUN_tokens_per_s] = quantile(log, DT_RUN_LOG_tokens_per_s, 0.5, scratch);
    out->v[DT_RUN_samples_per_s] = quantile(log, DT_RUN_LOG_samples_per_s, 0.5, scratch);
    dt_free(scratch);
    complete(out);
    name_it(name, out);
    return DT_OK;
}

/* ---- files ---- */

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);

    return n > k && strcmp(name + n - k, end) == 0;
}

bool dt_run_measured_is(const char *name)
{
    char inside[4096];
    struct stat sb;

    if (ends_in(name, ".csv") || ends_in(name, ".jsonl"))
        return true;
    return stat(name, &sb) == 0 && S_ISDIR(sb.st_mode) &&
           snprintf(inside, sizeof(inside), "%s/metrics.jsonl", name) < (int)sizeof(inside) &&
           stat(inside, &sb) == 0;
}

enum dt_status dt_run_measured_read(const char *path, struct dt_error *err,
                                    struct dt_run_summary *out)
{
    struct dt_run_log log;
    enum dt_status st;
    size_t len;
    char *text;

    if (!ends_in(path, ".csv")) {
        DT_TRY(dt_run_log_read(path, err, &log));
        dt_run_log_select(&log, NULL);
        dt_run_log_settle(&log);
        st = dt_run_measured_log(&log, path, err, out);
        dt_run_log_free(&log);
        return st;
    }
    DT_TRY(dt_file_read(path, LIMIT_BYTES, err, &text, &len));
    st = dt_run_measured_parse(path, text, len, err, out);
    dt_free(text);
    return st;
}
