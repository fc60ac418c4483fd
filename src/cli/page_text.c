/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Texts that a page is filled with. */
#include "cli/page.h"

#include <stdarg.h>
#include <stdio.h>

const char *dt_cli_page_keep(struct dt_report_page_run *r, const char *s)
{
    const char *copy = dt_arena_strdup(&r->arena, s);

    r->no_memory |= !copy;
    return copy ? copy : "";
}

const char *dt_cli_page_print(struct dt_report_page_run *r, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return dt_cli_page_keep(r, text);
}
