/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tables behind unicode.c, sorted for binary search. */
#ifndef DT_EXEC_DATA_UNICODE_TABLE_H
#define DT_EXEC_DATA_UNICODE_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct dt_unicode_range {
    uint32_t first, last;
};
struct dt_unicode_class { /* canonical combining class, where it is not 0 */
    uint32_t first, last, ccc;
};
struct dt_unicode_pair { /* c = a b; b = 0: c = a */
    uint32_t c, a, b;
};

extern const struct dt_unicode_range dt_unicode_letters[], dt_unicode_numbers[];
extern const struct dt_unicode_class dt_unicode_classes[];
extern const struct dt_unicode_pair dt_unicode_decompositions[]; /* by c; without Hangul */
extern const struct dt_unicode_pair dt_unicode_compositions[];   /* by (a, b); without Hangul */
extern const size_t dt_unicode_letters_n, dt_unicode_numbers_n, dt_unicode_classes_n,
    dt_unicode_decompositions_n, dt_unicode_compositions_n;

#endif
