/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/rows.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void dt_cli_rows_table(struct dt_cli_rows *r)
{
    memset(r, 0, sizeof(*r));
}

void dt_cli_rows_json(struct dt_cli_rows *r, struct dt_json *j, const char *key)
{
    memset(r, 0, sizeof(*r));
    r->json = j;
    if (key)
        dt_json_key(j, key);
    dt_json_begin_array(j);
}

void dt_cli_rows_csv(struct dt_cli_rows *r, struct dt_text *out)
{
    memset(r, 0, sizeof(*r));
    r->csv = out;
}

/* With its quotes, if it needs some. */
static void csv_text(struct dt_text *t, const char *v)
{
    if (!strpbrk(v, ",\"\r\n") && *v != ' ') {
        for (size_t i = 0, n = strlen(v); i < n; i += 256) /* dt_text_add takes pieces */
            dt_text_add(t, "%.256s", v + i);
        return;
    }
    dt_text_add(t, "\"");
    for (; *v; v++)
        dt_text_add(t, *v == '"' ? "\"\"" : "%c", *v);
    dt_text_add(t, "\"");
}

static void csv_field(struct dt_cli_rows *r, const char *key, const char *v)
{
    const char *comma = r->fields > 0 ? "," : "";

    if (r->rows == 1) {
        dt_text_add(&r->keys, "%s", comma);
        csv_text(&r->keys, key);
    }
    dt_text_add(r->csv, "%s", comma);
    csv_text(r->csv, v);
    r->fields++;
}

static void csv_end(struct dt_cli_rows *r)
{
    struct dt_text body = *r->csv;

    *r->csv = r->keys;
    dt_text_add(r->csv, "\n");
    for (size_t i = 0; body.s && i < body.len; i += 256)
        dt_text_add(r->csv, "%.256s", body.s + i);
    dt_text_add(r->csv, r->rows > 0 ? "\n" : "");
    r->csv->failed |= body.failed;
    dt_free(body.s);
}

void dt_cli_row(struct dt_cli_rows *r)
{
    if (r->csv && r->rows > 0)
        dt_text_add(r->csv, "\n");
    r->fields = 0;
    if (r->json && r->rows > 0)
        dt_json_end_object(r->json);
    if (r->json)
        dt_json_begin_object(r->json);
    r->rows++;
}

void dt_cli_rows_none(struct dt_cli_rows *r)
{
    r->rows = 0;
}

void dt_cli_rows_end(struct dt_cli_rows *r, FILE *f)
{
    const char *heads[DT_CLI_COLUMNS_MAX];
    struct dt_cli_table t;

    if (r->json) {
        if (r->rows > 0)
            dt_json_end_object(r->json);
        dt_json_end_array(r->json);
        return;
    }
    if (r->csv) {
        csv_end(r);
        return;
    }
    for (int c = 0; c < r->cols; c++)
        heads[c] = r->heads[r->order ? r->order[c] : c];
    dt_cli_table_init(&t, r->cols, heads);
    for (int k = 0; k < r->rows * r->cols; k++) {
        int c = k % r->cols, at = k - c + (r->order ? r->order[c] : c);

        if (at < r->cells.cells)
            dt_cli_table_cell(&t, "%s", r->cells.text[at]);
    }
    t.failed |= r->cells.failed;
    dt_cli_table_print(&t, f);
    dt_cli_table_free(&r->cells);
}

/* ---- fields ---- */

static void cell(struct dt_cli_rows *r, const char *head, const char *text)
{
    if (r->rows == 1 && r->cols < DT_CLI_COLUMNS_MAX)
        snprintf(r->heads[r->cols++], sizeof(r->heads[0]), "%s", head);
    dt_cli_table_cell(&r->cells, "%s", text);
}

void dt_cli_row_text(struct dt_cli_rows *r, const char *key, const char *head, const char *v)
{
    if (r->json && key)
        dt_json_kv_string(r->json, key, v);
    if (r->csv && key)
        csv_field(r, key, v ? v : "");
    if (!r->json && !r->csv && head)
        cell(r, head, v ? v : "");
}

void dt_cli_row_int(struct dt_cli_rows *r, const char *key, const char *head, int64_t v)
{
    char text[32];

    if (r->json && key)
        dt_json_kv_int(r->json, key, v);
    snprintf(text, sizeof(text), "%lld", (long long)v);
    if (r->csv && key)
        csv_field(r, key, text);
    if (!r->json && !r->csv && head)
        dt_cli_row_cell(r, head, "%lld", (long long)v);
}

void dt_cli_row_number(struct dt_cli_rows *r, const char *key, const char *head, const char *format,
                       double scale, double v)
{
    char text[64];

    if (r->json && key)
        dt_json_kv_double(r->json, key, v);
    if (r->csv && key) {
        snprintf(text, sizeof(text), isfinite(v) ? "%.9g" : "", v);
        csv_field(r, key, text);
    }
    if (r->json || r->csv || !head)
        return;
    snprintf(text, sizeof(text), isfinite(v) ? format : "-", scale * v);
    cell(r, head, text);
}

void dt_cli_row_bool(struct dt_cli_rows *r, const char *key, bool v)
{
    if (r->json)
        dt_json_kv_bool(r->json, key, v);
    if (r->csv)
        csv_field(r, key, v ? "true" : "false");
}

void dt_cli_row_cell(struct dt_cli_rows *r, const char *head, const char *format, ...)
{
    char text[512];
    va_list ap;

    if (r->json || r->csv)
        return;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    cell(r, head, text);
}
