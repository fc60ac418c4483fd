/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/facts.h"

#include <stdarg.h>
#include <stdio.h>

static void begin(const struct dt_cli_facts *f, const char *label)
{
    if (label[0])
        printf("%-*s ", f->width, label);
}

void dt_cli_fact_number(const struct dt_cli_facts *f, const char *key, const char *label,
                        const char *format, double scale, double v)
{
    if (f->json && key)
        dt_json_kv_double(f->json, key, v);
    if (f->json || !label)
        return;
    begin(f, label);
    printf(format, scale * v);
}

void dt_cli_fact_int(const struct dt_cli_facts *f, const char *key, const char *label,
                     const char *format, int64_t v)
{
    if (f->json && key)
        dt_json_kv_int(f->json, key, v);
    if (f->json || !label)
        return;
    begin(f, label);
    printf(format, (long long)v);
}

void dt_cli_fact_text(const struct dt_cli_facts *f, const char *key, const char *label,
                      const char *format, const char *v)
{
    if (f->json && key)
        dt_json_kv_string(f->json, key, v);
    if (f->json || !label)
        return;
    begin(f, label);
    printf(format, v);
}

void dt_cli_fact_bool(const struct dt_cli_facts *f, const char *key, bool v)
{
    if (f->json)
        dt_json_kv_bool(f->json, key, v);
}

void dt_cli_fact_note(const struct dt_cli_facts *f, const char *format, ...)
{
    va_list ap;

    if (f->json)
        return;
    va_start(ap, format);
    vprintf(format, ap);
    va_end(ap);
}
