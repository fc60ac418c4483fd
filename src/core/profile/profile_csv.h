/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The CSV of measured tables: a header line, then rows of plain cells.  No quoting: no table that
 * we import has it.  Lines end in LF or CRLF; empty lines are skipped; '#' starts a comment line.
 */
#ifndef DT_CORE_PROFILE_PROFILE_CSV_H
#define DT_CORE_PROFILE_PROFILE_CSV_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DT_CSV_MAX_COLS = 48 };

struct dt_profile_csv {
    const char *name; /* of the file, for messages */
    char *text;       /* own copy, cut into cells in place */
    char *next;
    int line, n_cols;
    char *head[DT_CSV_MAX_COLS], *cell[DT_CSV_MAX_COLS];
};

/* Reads the header.  Rejects zero bytes and more than DT_CSV_MAX_COLS columns. */
enum dt_status dt_profile_csv_open(struct dt_profile_csv *c, const char *name, const char *text,
                                   size_t len, struct dt_error *err);
void dt_profile_csv_close(struct dt_profile_csv *c);
/* The next row into cell[]; *more false at the end.  The row must have as many cells as the header.
 */
enum dt_status dt_profile_csv_next(struct dt_profile_csv *c, struct dt_error *err, bool *more);
/* Column index by header name; a missing one is an error that lists what the header has. */
enum dt_status dt_profile_csv_column(const struct dt_profile_csv *c, const char *column,
                                     struct dt_error *err, int *out);
enum dt_status dt_profile_csv_int(const struct dt_profile_csv *c, int col, int64_t min, int64_t max,
                                  struct dt_error *err, int64_t *out);
enum dt_status dt_profile_csv_double(const struct dt_profile_csv *c, int col, double min,
                                     double max, struct dt_error *err, double *out);

#endif
