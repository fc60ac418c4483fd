/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shared by the import driver and its table families; nobody else includes it. */
#ifndef DT_FIT_PROFILE_IMPORT_PRIV_H
#define DT_FIT_PROFILE_IMPORT_PRIV_H

#include "core/profile/profile_csv.h"
#include "fit/profile_import.h"

enum { DT_IMPORT_MAX_COLS = 16, DT_IMPORT_MAX_FAMILIES = 31 };

struct dt_import_shape { /* a transformer layer whose ops a table times */
    const char *name;
    int64_t hidden, ffn, heads, kv_heads, head_dim;
};
extern const struct dt_import_shape dt_import_shapes[]; /* ended by a NULL name */

struct dt_import {
    struct dt_profile_csv csv;
    int col[DT_IMPORT_MAX_COLS]; /* of importer->needed */
    const struct dt_import_shape *shape;
    struct dt_error *err;
    struct dt_profile_table *t; /* rows of this table, ungrouped */
    struct dt_profile_table_row proto;
    size_t skipped;
};

struct dt_import_format {
    const char *name, *dtype, *summary;
    const char *needed[DT_IMPORT_MAX_COLS]; /* columns, NULL-terminated */
    enum dt_status (*row)(struct dt_import *im);
    bool wants_shape; /* --shape names the layer that was timed */
    bool has_stats;   /* rows carry their own n, p10, p90 */
};
extern const struct dt_import_format dt_import_formats[]; /* ended by a NULL name */

#endif
