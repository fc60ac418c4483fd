/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/profile/profile_csv.h"

#include "base/mem.h"
#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Cuts one line into cells; returns their number or -1 when there are too many. */
static int cut(char *line, char **cell)
{
    int n = 0;

    for (;;) {
        char *comma = strchr(line, ',');
        if (n == DT_CSV_MAX_COLS)
            return -1;
        while (*line == ' ' || *line == '\t')
            line++;
        cell[n++] = line;
        if (comma)
            *comma = '\0';
        for (char *end = line + strlen(line); end > line && (end[-1] == ' ' || end[-1] == '\t');)
            *--end = '\0';
        if (!comma)
            return n;
        line = comma + 1;
    }
}

/* The next line that is neither empty nor a comment, or NULL. */
static char *next_line(struct dt_profile_csv *c)
{
    while (*c->next) {
        char *line = c->next, *end = strchr(line, '\n');
        c->line++;
        if (end) {
            c->next = end + 1;
            *end = '\0';
        } else {
            end = line + strlen(line);
            c->next = end;
        }
        if (end > line && end[-1] == '\r')
            end[-1] = '\0';
        if (*line && *line != '#')
            return line;
    }
    return NULL;
}

enum dt_status dt_profile_csv_open(struct dt_profile_csv *c, const char *name, const char *text,
                                   size_t len, struct dt_error *err)
{
    struct dt_profile_csv csv = {.name = name};
    char *line;

    if (memchr(text, 0, len))
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0, "not a CSV file: it holds a zero byte");
    csv.text = dt_malloc(len + 1);
    if (!csv.text)
        return dt_error_nomem(err, "a CSV file");
    memcpy(csv.text, text, len);
    csv.text[len] = '\0';
    csv.next = csv.text;
    line = next_line(&csv);
    if (!line || (csv.n_cols = cut(line, csv.head)) < 0) {
        int at = csv.line;
        dt_free(csv.text);
        return dt_error_at(err, DT_ERR_INPUT, name, at, 0,
                           line ? "more than %d columns" : "empty CSV file%.0d", DT_CSV_MAX_COLS);
    }
    *c = csv;
    return DT_OK;
}

void dt_profile_csv_close(struct dt_profile_csv *c)
{
    dt_free(c->text);
    memset(c, 0, sizeof *c);
}

enum dt_status dt_profile_csv_next(struct dt_profile_csv *c, struct dt_error *err, bool *more)
{
    char *line = next_line(c);
    int n;

    *more = line != NULL;
    if (!line)
        return DT_OK;
    n = cut(line, c->cell);
    if (n != c->n_cols)
        return dt_error_at(err, DT_ERR_INPUT, c->name, c->line, 0,
                           "the row has %s%d cells, the header has %d", n < 0 ? "more than " : "",
                           n < 0 ? DT_CSV_MAX_COLS : n, c->n_cols);
    return DT_OK;
}

enum dt_status dt_profile_csv_column(const struct dt_profile_csv *c, const char *column,
                                     struct dt_error *err, int *out)
{
    char list[512] = "";

    for (int i = 0; i < c->n_cols; i++) {
        size_t used = strlen(list);
        if (strcmp(c->head[i], column) == 0) {
            *out = i;
            return DT_OK;
        }
        snprintf(list + used, sizeof list - used, "%s%s", i ? "," : "", c->head[i]);
    }
    return dt_error_at(err, DT_ERR_INPUT, c->name, 1, 0, "no column '%s'; the header is %s", column,
                       list);
}

static enum dt_status bad_cell(const struct dt_profile_csv *c, int col, const char *what,
                               struct dt_error *err)
{
    return dt_error_at(err, DT_ERR_INPUT, c->name, c->line, col + 1,
                       "column '%s': '%.60s' is not %s", c->head[col], c->cell[col], what);
}

enum dt_status dt_profile_csv_int(const struct dt_profile_csv *c, int col, int64_t min, int64_t max,
                                  struct dt_error *err, int64_t *out)
{
    double v;

    /* Tables written from data frames have 128.0 for 128. */
    if (!dt_number_double(c->cell[col], &v) || v != floor(v) || fabs(v) > 9e15)
        return bad_cell(c, col, "a whole number", err);
    if (v < (double)min || v > (double)max)
        return bad_cell(c, col, "in range", err);
    *out = (int64_t)v;
    return DT_OK;
}

enum dt_status dt_profile_csv_double(const struct dt_profile_csv *c, int col, double min,
                                     double max, struct dt_error *err, double *out)
{
    double v;

    if (!dt_number_double(c->cell[col], &v))
        return bad_cell(c, col, "a number", err);
    if (v < min || v > max)
        return bad_cell(c, col, "in range", err);
    *out = v;
    return DT_OK;
}
