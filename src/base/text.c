/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/text.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void dt_text_add(struct dt_text *t, const char *fmt, ...)
{
    char piece[512];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(piece, sizeof(piece), fmt, ap);
    va_end(ap);
    if (t->failed || n < 0 || (size_t)n >= sizeof(piece) ||
        dt_grow((void **)&t->s, &t->cap, t->len + (size_t)n + 1, 1) != 0) {
        t->failed = true;
        return;
    }
    memcpy(t->s + t->len, piece, (size_t)n + 1);
    t->len += (size_t)n;
}

enum dt_status dt_text_finish(struct dt_text *t, struct dt_error *err, char **out)
{
    struct dt_text done = *t;

    memset(t, 0, sizeof(*t));
    if (done.failed || !done.s) {
        dt_free(done.s);
        return dt_error_nomem(err, "a text");
    }
    *out = done.s;
    return DT_OK;
}
