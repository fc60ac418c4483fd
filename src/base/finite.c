/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/finite.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Values looked at together: a number that compilers make vector code for. */
enum { STRETCH = 1024 };

static uint32_t bits(const float *v)
{
    uint32_t u;

    memcpy(&u, v, sizeof(u));
    return u & 0x7FFFFFFFu;
}

static void count(const float *v, size_t n, struct dt_nonfinite *sum)
{
    for (size_t i = 0; i < n; i++) {
        sum->nan += bits(v + i) > 0x7F800000u;
        sum->inf += bits(v + i) == 0x7F800000u;
    }
}

void dt_nonfinite_count(const float *v, size_t n, struct dt_nonfinite *sum)
{
    size_t i;

    for (i = 0; i + STRETCH <= n; i += STRETCH) {
        uint32_t bad = 0;

        for (size_t k = 0; k < STRETCH; k++)
            bad += bits(v + i + k) >= 0x7F800000u;
        if (bad > 0)
            count(v + i, STRETCH, sum);
    }
    count(v + i, n - i, sum);
}

const char *dt_nonfinite_text(const struct dt_nonfinite *x, uint64_t n, char *buf, size_t size)
{
    uint64_t bad = dt_nonfinite_all(x);

    snprintf(buf, size,
             "%" PRIu64 " of %" PRIu64 " value%s %s not finite (%" PRIu64 " NaN, %" PRIu64
             " infinite)",
             bad, n, n == 1 ? "" : "s", bad == 1 ? "is" : "are", x->nan, x->inf);
    return buf;
}
