/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * For tests of trace imports: rules, and what an import found. */
#ifndef DT_TESTS_IMPORT_FIXTURE_H
#define DT_TESTS_IMPORT_FIXTURE_H

#include "kernel_traces.h"
#include "test_util.h"

#include "fit/kernel_import.h"

#include <stdio.h>

static struct dt_error err;

static inline struct dt_import_rules *rules_of(const char *text)
{
    struct dt_import_rules *r = NULL;

    dt_assert_ok(dt_import_rules_parse("rules.yaml", text, strlen(text), &err, &r), err);
    return r;
}

static inline struct dt_import_rules *shipped_rules(void)
{
    const char *srcdir = getenv("srcdir");
    struct dt_import_rules *r = NULL;
    char path[4096];

    snprintf(path, sizeof(path), "%s/traces/rules/default.yaml", srcdir ? srcdir : ".");
    dt_assert_ok(dt_import_rules_read(path, &err, &r), err);
    return r;
}

/* What an import of traces found. */
struct found {
    struct dt_profile_table t;
    struct dt_import_kernels *k;
    struct dt_import_kernels_sums sums;
    int device, source;
    size_t rows;
};

static inline void open_found(struct found *f)
{
    const struct dt_profile_source s = {.name = "test"};

    memset(f, 0, sizeof(*f));
    dt_assert_ok(dt_profile_table_device(&f->t, "card", &err, &f->device), err);
    dt_assert_ok(dt_profile_table_source(&f->t, &s, &err, &f->source), err);
    dt_assert_ok(dt_import_kernels_new("bf16", &err, &f->k), err);
}

static inline void close_found(struct found *f)
{
    dt_import_kernels_free(f->k);
    dt_profile_table_free(&f->t);
}

static inline void import(struct found *f, struct dt_import_trace *t,
                          const struct dt_import_rules *r)
{
    dt_assert_ok(dt_import_kernels_trace(f->k, t, r, f->source, &err, &f->sums), err);
    dt_import_trace_free(t);
}

static inline void finish(struct found *f)
{
    dt_assert_ok(dt_import_kernels_finish(f->k, f->device, &err, &f->t, &f->rows), err);
    dt_profile_table_sort(&f->t);
}

static inline const struct dt_profile_table_row *row_of(const struct found *f, int family,
                                                        int phase, int64_t d0)
{
    for (size_t i = 0; i < f->t.n_rows; i++)
        if (f->t.rows[i].r.family == family && f->t.rows[i].r.phase == phase &&
            f->t.rows[i].r.d[0] == d0)
            return &f->t.rows[i];
    ck_abort_msg("no row of %s %d", dt_kop_family_names[family], (int)d0);
    return NULL;
}

/* Of 0..4 above `base` us, linear between order statistics: 10 % is 0.4, 90 % is 3.6. */
static inline void check_row(const struct found *f, int family, int64_t d0, double base_us, int n)
{
    const struct dt_profile_table_row *r = row_of(f, family, DT_PHASE_FWD, d0);

    ck_assert_int_eq(r->r.n, n);
    ck_assert_double_eq_tol(r->r.median_ns, (base_us + 2) * 1000, 0.5);
    if (n == KT_STEPS) {
        ck_assert_double_eq_tol(r->r.p10_ns, (base_us + 0.4) * 1000, 0.5);
        ck_assert_double_eq_tol(r->r.p90_ns, (base_us + 3.6) * 1000, 0.5);
    }
    ck_assert_int_eq(r->r.kind, DT_ROW_MEASURED);
}

static const struct kt_kineto today;

static inline char *kineto_text(const char *device, const struct kt_kineto *how, size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);

    ck_assert(f != NULL);
    kt_write_kineto(f, device, how);
    fclose(f);
    return text;
}

#endif
