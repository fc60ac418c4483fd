/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Numbers that are none: NaN and infinity among the values of a tensor. */
#ifndef DT_BASE_FINITE_H
#define DT_BASE_FINITE_H

#include <stddef.h>
#include <stdint.h>

struct dt_nonfinite {
    uint64_t nan, inf;
};
/* Adds those of v[n] to *sum.  One pass; it costs a second look only at stretches that have some. */
void dt_nonfinite_count(const float *v, size_t n, struct dt_nonfinite *sum);
static inline uint64_t dt_nonfinite_all(const struct dt_nonfinite *x)
{
    return x->nan + x->inf;
}
/* "3 of 512 values are not finite (2 NaN, 1 infinite)" */
const char *dt_nonfinite_text(const struct dt_nonfinite *x, uint64_t n, char *buf, size_t size);

#endif
