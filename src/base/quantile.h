/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Quantiles, linear between order statistics (definition 7 of Hyndman and Fan 1996). */
#ifndef DT_BASE_QUANTILE_H
#define DT_BASE_QUANTILE_H

#include <stddef.h>

/* Ascending; none is a NaN. */
void dt_sort_numbers(double *v, size_t n);
/* Sorts v.  The one in the middle, or the mean of the two; 0 of none. */
double dt_median(double *v, size_t n);
/* Of n > 0 numbers, ascending; the next stands `stride` bytes further. */
double dt_quantile(const double *first, size_t stride, size_t n, double q);

#endif
