/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Sums of several parts, always in their order, so that a result depends neither on how a vector was cut
 * nor on who arrived first. */
#ifndef DT_BASE_REDUCE_H
#define DT_BASE_REDUCE_H

#include <stddef.h>

/* BF16 sums are formed in fp32 and rounded once. */
enum dt_reduce_type {
    DT_REDUCE_F32,
    DT_REDUCE_F64,
    DT_REDUCE_BF16,
    DT_REDUCE_U64_MAX,
    DT_REDUCE_F32_MAX /* a NaN stays one */
};

/* Bytes of an element. */
size_t dt_reduce_bytes(enum dt_reduce_type type);
/* x[n] becomes the sum (maximum) of `members` parts in their order; part `me` is x itself, part k lies at
 * others[k] (others[me] is not read). */
void dt_reduce_parts(enum dt_reduce_type type, void *x, const void *const *others, int members,
                     int me, size_t n);

#endif
