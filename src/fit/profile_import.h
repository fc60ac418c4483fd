/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Importers: published tables of measured times -> measured rows.  One row per distinct shape;
 * repeated measurements of a shape become its median, p10, p90 and n. */
#ifndef DT_FIT_PROFILE_IMPORT_H
#define DT_FIT_PROFILE_IMPORT_H

#include "core/profile/profile_schema.h"

struct dt_import_options {
    const char *device; /* "A100-SXM4-80GB" */
    const char *dtype;  /* NULL = the family's own ("bf16", "fp32", "tf32", "any") */
    const char *shape;  /* vidur-layer: "llama-3-8b" or "llama-2-7b" */
    struct dt_profile_source source;
};
struct dt_import_result {
    size_t rows, measurements;
    size_t skipped; /* table rows of ops or shapes that a profile has no name for */
};

/* i-th family's name and one-line description; NULL past the end. */
const char *dt_import_format_name(int i, const char **summary);

/* Adds the rows of one table to `t`.  A row already there with the same key (device, dtype, op,
 * phase, dims, source) is replaced, so importing a file twice changes nothing.  On failure `t`
 * keeps its rows. */
enum dt_status dt_import_profile(const char *family, const char *name, const char *text, size_t len,
                                 const struct dt_import_options *opt, struct dt_error *err,
                                 struct dt_profile_table *t, struct dt_import_result *result);

/* For who makes rows in a table of their own first: `add` takes the names of `t`, whose indices its
 * rows use (and t's count of sources: set it to 0 before dt_profile_table_free); then its rows replace those
 * of `t` with the same key, and the rest is added.  `add` may have brought dtypes of its own.  On
 * failure `t` keeps its rows. */
void dt_import_share_names(struct dt_profile_table *add, const struct dt_profile_table *t);
enum dt_status dt_import_merge(struct dt_profile_table *t, struct dt_profile_table *add,
                               struct dt_error *err);

#endif
