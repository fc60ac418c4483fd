/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows of a result, described once: a table for people, an array of objects in JSON and comma-separated values are all
 * made of one list of fields.
 *
 *     static void line(struct dt_cli_rows *r, const struct dt_compare_line *l)
 *     {
 *         dt_cli_row(r);
 *         dt_cli_row_text(r, "name", "what", l->name);
 *         dt_cli_row_number(r, "a_s", "a [ms]", "%.3f", 1e3, l->a_s);
 *     }
 *
 *     dt_cli_rows_table(&r);                    or    dt_cli_rows_json(&r, &j, "lines");
 *     for (...)
 *         line(&r, ...);
 *     dt_cli_rows_end(&r, stdout);
 *
 * A field has the key of its member, or NULL where programs do not get it, and the head of its column
 * with the unit, or NULL where people do not; every row has the same columns. */
#ifndef DT_CLI_ROWS_H
#define DT_CLI_ROWS_H

#include "base/json.h"
#include "base/text.h"
#include "cli/table.h"

enum { DT_CLI_COLUMNS_MAX = 32 };

struct dt_cli_rows {
    struct dt_json *json; /* NULL = a table */
    struct dt_text
        *csv; /* or comma-separated values (RFC 4180): the keys, then a line for each row */
    struct dt_text keys;
    int fields; /* of the row so far */
    struct dt_cli_table cells;
    char heads[DT_CLI_COLUMNS_MAX][64];
    int rows, cols;
    const int *order; /* of the columns, where it is not that of the fields; [cols] */
};

void dt_cli_rows_table(struct dt_cli_rows *r);
/* Into `out`, which has the rows from dt_cli_rows_end() on. */
void dt_cli_rows_csv(struct dt_cli_rows *r, struct dt_text *out);
/* The member `key` of the object that is open; NULL: the array is the value that is due. */
void dt_cli_rows_json(struct dt_cli_rows *r, struct dt_json *j, const char *key);
/* A table without rows has its heads only: the fields of a row that came last are taken back. */
void dt_cli_rows_none(struct dt_cli_rows *r);
void dt_cli_rows_end(struct dt_cli_rows *r, FILE *f);

/* ---- fields ---- */

/* The next row begins. */
void dt_cli_row(struct dt_cli_rows *r);
void dt_cli_row_text(struct dt_cli_rows *r, const char *key, const char *head, const char *v);
void dt_cli_row_int(struct dt_cli_rows *r, const char *key, const char *head, int64_t v);
/* The cell is scale * v in that format, or "-" of what is not finite. */
void dt_cli_row_number(struct dt_cli_rows *r, const char *key, const char *head, const char *format,
                       double scale, double v);
void dt_cli_row_bool(struct dt_cli_rows *r, const char *key, bool v);
/* For people only. */
void dt_cli_row_cell(struct dt_cli_rows *r, const char *head, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
