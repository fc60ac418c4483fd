/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Text that grows: pictures and other output made piece by piece.  The first failure sticks, so
 * only the end is checked. */
#ifndef DT_BASE_TEXT_H
#define DT_BASE_TEXT_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_text { /* zero-initialised is valid */
    char *s;
    size_t len, cap;
    bool failed;
};
/* printf-like; a piece has at most 511 bytes. */
void dt_text_add(struct dt_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* *out is the text, for the caller to dt_free; `t` is empty again.  DT_ERR_NOMEM if a piece was
 * lost. */
enum dt_status dt_text_finish(struct dt_text *t, struct dt_error *err, char **out);

/* "41 s", "54 min 22 s", "3 h 7 min" or "5 d 2 h" into buf; "?" if it is no time.  Returns buf. */
char *dt_text_duration(double s, char *buf, size_t size);
/* Bytes of s that go into this many columns of a terminal: all of it, or its fields (two spaces
 * apart) that go in whole, or what goes in of the first. */
size_t dt_text_fit(const char *s, int columns);
/* "s" unless n is 1: printf("%d sample%s", n, dt_plural(n)). */
static inline const char *dt_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
