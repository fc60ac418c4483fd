/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Random numbers: Philox4x32-10 (Salmon et al., SC'11), counter based.
 *
 * One discipline: an explicit seed, and a separate stream per entity, so that results do not depend
 * on the order in which entities draw.  Distributions go through inverse CDFs. */
#ifndef DT_BASE_RNG_H
#define DT_BASE_RNG_H

#include <stdint.h>

struct dt_rng {
    uint32_t key[2];
    uint32_t ctr[4];
    uint32_t out[4];
    int left; /* unused words of out[] */
};

/* One Philox4x32-10 block; the primitive, pinned by test vectors from the Random123 distribution.
 */
void dt_rng_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

void dt_rng_init(struct dt_rng *r, uint64_t seed, uint64_t stream);
uint32_t dt_rng_u32(struct dt_rng *r);
uint64_t dt_rng_u64(struct dt_rng *r);
double dt_rng_uniform(struct dt_rng *r);             /* in (0,1), never 0 or 1 */
uint64_t dt_rng_below(struct dt_rng *r, uint64_t n); /* in [0,n), unbiased */
double dt_rng_normal(struct dt_rng *r);              /* standard normal */
/* x such that a standard normal number is below x with probability p in (0,1) (normal.c) */
double dt_normal_quantile(double p);
/* Stateless standard normal for (seed, stream, index): for jitter per op without state. */
double dt_rng_normal_at(uint64_t seed, uint64_t stream, uint64_t index);

#endif
