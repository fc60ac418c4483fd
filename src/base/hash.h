/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hashes of 64 bits.  Those that files or other programs keep (keys of blocks, digests of runs,
 * fingerprints of data, streams of random numbers) may never change; none of them resists anybody who
 * wants a collision. */
#ifndef DT_BASE_HASH_H
#define DT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- FNV-1a (Fowler, Noll, Vo): of bytes, in their order ---- */

#define DT_HASH_START UINT64_C(0xcbf29ce484222325) /* of nothing at all */
#define DT_HASH_PRIME UINT64_C(0x100000001b3)

static inline uint64_t dt_hash_bytes(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * DT_HASH_PRIME;
    return h;
}

static inline uint64_t dt_hash_text(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * DT_HASH_PRIME;
    return h;
}

/* The eight bytes of v, the lowest first on every machine. */
static inline uint64_t dt_hash_number(uint64_t h, uint64_t v)
{
    for (int i = 0; i < 64; i += 8)
        h = (h ^ (v >> i & 255)) * DT_HASH_PRIME;
    return h;
}

/* ---- a word at a time: for tables ---- */

#define DT_HASH_GOLDEN                                                                             \
    UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio: odd, spreads low bits upward */

static inline uint64_t dt_hash_word(uint64_t h, uint64_t w)
{
    h = (h ^ w) * DT_HASH_GOLDEN;
    return h ^ h >> 32;
}

/* ---- finalisers: every bit of the result depends on every bit of x, and no two x share a result ---- */

/* splitmix64's (Steele, Lea, Flood 2014). */
static inline uint64_t dt_hash_spread(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* MurmurHash3's (Appleby, public domain). */
static inline uint64_t dt_hash_finish(uint64_t h)
{
    h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
    h = (h ^ h >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 33;
}

/* ---- a digest of large arrays ---- */

/* Four lanes of multiply-xorshift, so that the loop is not bound by the latency of one
 * multiplication. */
static inline uint64_t dt_hash_digest(uint64_t seed, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    uint64_t h[4] = {seed + 1, seed + 2, seed + 3, seed + 4}, w;
    size_t i = 0;

    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++) {
            memcpy(&w, b + i + 8 * k, 8);
            h[k] = (h[k] ^ w) * UINT64_C(0xff51afd7ed558ccd);
            h[k] ^= h[k] >> 32;
        }
    h[0] = dt_hash_bytes(h[0], b + i, n - i);
    h[2] += 7 * dt_hash_finish(h[3] ^ n);
    h[1] += 5 * dt_hash_finish(h[2]);
    return dt_hash_finish(h[0] + 3 * dt_hash_finish(h[1]));
}

/* ---- CRC-32C (Castagnoli; RFC 3720, appendix B.4): what a file or a wire has damaged ---- */

/* crc: 0 to begin with, else of the bytes before. */
uint32_t dt_hash_crc32c(uint32_t crc, const void *bytes, size_t n);

#endif
