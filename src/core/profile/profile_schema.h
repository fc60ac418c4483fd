/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The profile file: its SQLite schema, and the table of rows of all devices that import, fit, show
 * and export work on (struct dt_profile of profile.h is the view of one device that the cost model
 * uses). */
#ifndef DT_CORE_PROFILE_PROFILE_SCHEMA_H
#define DT_CORE_PROFILE_PROFILE_SCHEMA_H

#include "core/profile/profile.h"
#include <stdbool.h>
#include <stddef.h>

/* One more phase than the cost model knows: input and weight gradients measured as one number.  The
 * fit reads such rows; dt_profile_load leaves them out. */
enum { DT_PHASE_BWD = DT_PHASE_N, DT_PTABLE_PHASE_N };
extern const char *const dt_profile_table_phase_names[DT_PTABLE_PHASE_N + 1];

/* CREATE TABLE statements of schema version DT_PROFILE_SCHEMA. */
extern const char dt_profile_schema_sql[];

enum {
    DT_PTABLE_MAX_NAMES = 32, /* devices, and dtypes, in one file */
    DT_PTABLE_MAX_SOURCES = 1024,
    DT_PTABLE_MAX_ROWS = 4000000,
};

struct dt_profile_table_row {
    struct dt_profile_row r; /* r.phase may be DT_PHASE_BWD */
    int device, dtype;       /* indices into the names below */
};
/* Order by what a row is about (device, dtype, op, phase, kind, source, dims), not by its times. */
int dt_profile_table_compare_key(const struct dt_profile_table_row *a,
                                 const struct dt_profile_table_row *b);
struct dt_profile_table {
    int n_devices, n_dtypes, n_sources;
    char devices[DT_PTABLE_MAX_NAMES][DT_NAME_MAX];
    char dtypes[DT_PTABLE_MAX_NAMES][16];
    struct dt_profile_source *sources;
    struct dt_profile_table_row *rows;
    size_t n_rows, cap_rows, cap_sources;
};

/* A zeroed struct is an empty table. */
void dt_profile_table_free(struct dt_profile_table *t);
/* Find or add; the index goes to *out. */
enum dt_status dt_profile_table_device(struct dt_profile_table *t, const char *name,
                                       struct dt_error *err, int *out);
enum dt_status dt_profile_table_dtype(struct dt_profile_table *t, const char *name,
                                      struct dt_error *err, int *out);
/* Two sources are the same when name, origin and note agree; `id` is given out by the table. */
enum dt_status dt_profile_table_source(struct dt_profile_table *t,
                                       const struct dt_profile_source *s, struct dt_error *err,
                                       int *out);
/* Checks the row (finite positive times in order, dims >= 0, indices) and appends it. */
enum dt_status dt_profile_table_add(struct dt_profile_table *t,
                                    const struct dt_profile_table_row *row, struct dt_error *err);
/* Order: device name, dtype, family, phase, kind, source, dims.  Rows equal in all of these are
 * merged: n adds up and the statistics are those of the larger n (the first on a tie). */
void dt_profile_table_sort(struct dt_profile_table *t);
int dt_profile_table_find_device(const struct dt_profile_table *t,
                                 const char *name); /* -1 if absent */

/* Read .sql text or an SQLite database, told apart by the first bytes.  Both are untrusted: only
 * the statements of the schema run, under limits. */
enum dt_status dt_profile_table_read(const char *path, struct dt_error *err,
                                     struct dt_profile_table *out);
enum dt_status dt_profile_table_parse_sql(const char *name, const char *text, struct dt_error *err,
                                          struct dt_profile_table *out);

/* Deterministic SQL text (sorts the table first); caller dt_free()s. */
enum dt_status dt_profile_table_to_sql(struct dt_profile_table *t, struct dt_error *err,
                                       char **text, size_t *len);
/* Writes PATH all or nothing; ".sql" (or "-") = text, anything else = SQLite database. */
enum dt_status dt_profile_table_write(struct dt_profile_table *t, const char *path,
                                      struct dt_error *err);

#endif
