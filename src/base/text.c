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

char *dt_text_duration(double s, char *buf, size_t size)
{
    static const struct {
        int64_t seconds;
        const char *large, *small;
        int64_t rest; /* seconds of the small unit */
    } units[] = {{86400, "d", "h", 3600}, {3600, "h", "min", 60}, {60, "min", "s", 1}};
    int64_t n;

    if (!(s >= 0 && s < 1e15)) {
        snprintf(buf, size, "?");
        return buf;
    }
    n = (int64_t)(s + 0.5);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (n >= units[i].seconds) {
            snprintf(buf, size, "%lld %s %lld %s", (long long)(n / units[i].seconds),
                     units[i].large, (long long)(n % units[i].seconds / units[i].rest),
                     units[i].small);
            return buf;
        }
    snprintf(buf, size, "%lld s", (long long)n);
    return buf;
}

size_t dt_text_fit(const char *s, int columns)
{
    size_t at = 0, field = 0; /* field: where the last one that went in whole ends */
    int n = 0;

    for (; s[at]; at++) {
        if (((unsigned char)s[at] & 0xc0) == 0x80) /* the rest of a character */
            continue;
        if (s[at] == ' ' && s[at + 1] == ' ')
            field = at;
        if (n++ == columns)
            return field ? field : at;
    }
    return at;
}
