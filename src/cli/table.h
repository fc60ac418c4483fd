/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Printing for people: aligned tables, times and sizes with their units. */
#ifndef DT_CLI_TABLE_H
#define DT_CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A table is filled cell by cell and printed once.  Column heads carry the unit: "iteration [s]".
 * Cells that look like numbers are right-aligned.  Out of memory makes it print what it has. */
struct dt_cli_table {
    int cols, cells, cap;
    char **text; /* [cells], row-major; the first `cols` are the heads */
    bool failed;
};
void dt_cli_table_init(struct dt_cli_table *t, int cols, const char *const *heads);
void dt_cli_table_cell(struct dt_cli_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void dt_cli_table_print(struct dt_cli_table *t, FILE *f); /* and frees */
void dt_cli_table_free(struct dt_cli_table *t);

/* "12.3 s", "45.6 ms", "7.8 us" / "1.23 GiB" into buf; returns buf. */
char *dt_cli_format_seconds(double s, char *buf, size_t size);
char *dt_cli_format_bytes(double bytes, char *buf, size_t size);

#endif
