/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading numbers from text, in every locale: '.' is the decimal point, no digit grouping, no hex,
 * no "inf" or "nan".  And what is needed of numbers everywhere. */
#ifndef DT_BASE_NUMBER_H
#define DT_BASE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the longest number at s: [+-] digits [. digits] [e [+-] digits].  Returns the characters
 * used, 0 (and *out untouched) if there is no number.  Overflow gives an infinity. */
size_t dt_number_scan(const char *s, double *out);

/* The whole text must be a finite number; false (and *out untouched) if not. */
bool dt_number_double(const char *s, double *out);

/* The whole text must be a decimal integer in range. */
bool dt_number_int(const char *s, int64_t *out);

/* The whole text is a number above 0, with or without a suffix: K (thousand), M (million), B or G (10^9), T (10^12) or
 * Q (10^15), such as "1T", "2.5M", "500B", "1e12"; false (and *out untouched) if not. */
bool dt_number_count(const char *s, double *out);

/* Times are whole nanoseconds below this, 104 days: doubles hold them exactly, and a thousand of
 * them can be added up. */
#define DT_TIME_MAX_NS (INT64_C(1) << 53)
/* The nearest whole number; false (and *out untouched) where it is no time: negative, too long or
 * no number. */
bool dt_number_ns(double ns, int64_t *out);

/* The greatest common divisor of numbers that are not negative; of 0 and a number, that number. */
static inline int dt_number_gcd(int a, int b)
{
    while (b) {
        int t = a % b;
        a = b;
        b = t;
    }
    return a;
}

#endif
