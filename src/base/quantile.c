/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/quantile.h"

#include <stdlib.h>
#include <string.h>

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void dt_sort_numbers(double *v, size_t n)
{
    if (n > 1)
        qsort(v, n, sizeof(*v), by_size);
}

double dt_median(double *v, size_t n)
{
    dt_sort_numbers(v, n);
    return n == 0 ? 0 : n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double number_at(const double *first, size_t stride, size_t i)
{
    double v;

    memcpy(&v, (const char *)first + i * stride, sizeof(v));
    return v;
}

double dt_quantile(const double *first, size_t stride, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t lo = (size_t)at;
    double a = number_at(first, stride, lo);
    double b = number_at(first, stride, lo + 1 < n ? lo + 1 : lo);

    return at > (double)lo ? a + (at - (double)lo) * (b - a) : a;
}
