/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/rng.h"

/* Philox4x32 multipliers and Weyl constants: Salmon, Moraes, Dror, Shaw, "Parallel random numbers:
 * as easy as 1, 2, 3", SC'11, section 3.3 and table 2. */
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define PHILOX_ROUNDS 10

void dt_rng_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Words of a counter: the low half counts blocks, the high half is the stream, so that streams of
 * one seed never overlap. */
static void counter_set(uint32_t ctr[4], uint64_t stream, uint64_t block)
{
    ctr[0] = (uint32_t)block;
    ctr[1] = (uint32_t)(block >> 32);
    ctr[2] = (uint32_t)stream;
    ctr[3] = (uint32_t)(stream >> 32);
}

void dt_rng_init(struct dt_rng *r, uint64_t seed, uint64_t stream)
{
    r->key[0] = (uint32_t)seed;
    r->key[1] = (uint32_t)(seed >> 32);
    counter_set(r->ctr, stream, 0);
    r->left = 0;
    for (int i = 0; i < 4; i++)
        r->out[i] = 0;
}

uint32_t dt_rng_u32(struct dt_rng *r)
{
    if (r->left == 0) {
        dt_rng_philox4x32(r->ctr, r->key, r->out);
        if (++r->ctr[0] == 0)
            r->ctr[1]++;
        r->left = 4;
    }
    return r->out[4 - r->left--];
}

uint64_t dt_rng_u64(struct dt_rng *r)
{
    uint64_t low = dt_rng_u32(r);

    return low | (uint64_t)dt_rng_u32(r) << 32;
}

/* The middle of one of 2^52 equal cells: 52 bits and the half fit a double exactly, so rounding
 * can reach neither 0 nor 1. */
static double open_unit(uint64_t bits)
{
    return ((double)(bits >> 12) + 0.5) * 0x1p-52;
}

double dt_rng_uniform(struct dt_rng *r)
{
    return open_unit(dt_rng_u64(r));
}

/* Reject the 2^64 mod n lowest values; what is left is a multiple of n. */
uint64_t dt_rng_below(struct dt_rng *r, uint64_t n)
{
    uint64_t x, floor;

    if (n <= 1)
        return 0;
    floor = -n % n;
    do {
        x = dt_rng_u64(r);
    } while (x < floor);
    return x % n;
}

double dt_rng_normal(struct dt_rng *r)
{
    return dt_normal_quantile(dt_rng_uniform(r));
}

/* Block 2^63 + index: away from the blocks that a dt_rng of the same seed and stream draws. */
double dt_rng_normal_at(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t ctr[4], out[4];

    counter_set(ctr, stream, index ^ (UINT64_C(1) << 63));
    dt_rng_philox4x32(ctr, key, out);
    return dt_normal_quantile(open_unit((uint64_t)out[1] << 32 | out[0]));
}
