/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/table.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

void dt_cli_table_init(struct dt_cli_table *t, int cols, const char *const *heads)
{
    memset(t, 0, sizeof *t);
    t->cols = cols;
    for (int i = 0; i < cols; i++)
        dt_cli_table_cell(t, "%s", heads[i]);
}

void dt_cli_table_cell(struct dt_cli_table *t, const char *fmt, ...)
{
    char buf[512];
    va_list ap;
    size_t cap = (size_t)t->cap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    if (dt_grow((void **)&t->text, &cap, (size_t)t->cells + 1, sizeof *t->text) != 0) {
        t->failed = true;
        return;
    }
    t->cap = (int)cap;
    char *copy = dt_strdup(buf);
    if (!copy)
        t->failed = true;
    else
        t->text[t->cells++] = copy;
}

/* Display width: UTF-8 continuation bytes take no column. */
static int width_of(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static bool is_number(const char *s)
{
    return (*s >= '0' && *s <= '9') ||
           ((*s == '-' || *s == '+' || *s == '~') && s[1] >= '0' && s[1] <= '9');
}

void dt_cli_table_print(struct dt_cli_table *t, FILE *f)
{
    int rows = t->cols ? t->cells / t->cols : 0;
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < t->cols; c++) {
            int w = 0;
            bool numeric = rows > 1 && is_number(t->text[t->cols + c]);
            for (int k = 0; k < rows; k++) {
                int x = width_of(t->text[k * t->cols + c]);
                w = x > w ? x : w;
            }
            const char *s = t->text[r * t->cols + c];
            int pad = w - width_of(s);
            fprintf(f, "%s%*s%s", c ? "  " : "", numeric ? pad : 0, "", s);
            if (!numeric && c + 1 < t->cols)
                fprintf(f, "%*s", pad, "");
        }
        fputc('\n', f);
    }
    if (t->failed)
        fprintf(f, "(table cut short: out of memory)\n");
    dt_cli_table_free(t);
}

void dt_cli_table_free(struct dt_cli_table *t)
{
    for (int i = 0; i < t->cells; i++)
        dt_free(t->text[i]);
    dt_free(t->text);
    memset(t, 0, sizeof *t);
}

char *dt_cli_format_seconds(double s, char *buf, size_t size)
{
    double a = fabs(s);
    if (a >= 1 || a == 0)
        snprintf(buf, size, "%.3f s", s);
    else if (a >= 1e-3)
        snprintf(buf, size, "%.2f ms", s * 1e3);
    else
        snprintf(buf, size, "%.2f us", s * 1e6);
    return buf;
}

char *dt_cli_format_bytes(double bytes, char *buf, size_t size)
{
    const char *unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (fabs(bytes) >= 1024 && u < 4) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, size, u ? "%.2f %s" : "%.0f %s", bytes, unit[u]);
    return buf;
}
