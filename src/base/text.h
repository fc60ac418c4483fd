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

/* "s" unless n is 1: printf("%d sample%s", n, dt_plural(n)). */
static inline const char *dt_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
