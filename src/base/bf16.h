/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * bfloat16: the upper half of a float.  No branches, so that loops over these become vector code. */
#ifndef DT_BASE_BF16_H
#define DT_BASE_BF16_H

#include <stdint.h>
#include <string.h>

static inline float dt_bf16_to_f32(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Ties to even.  A NaN stays one, made quiet: its upper half alone may be infinity's. */
static inline uint16_t dt_bf16_from_f32(float f)
{
    uint32_t u, near, nan;

    memcpy(&u, &f, sizeof(u));
    near = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
    nan = u >> 16 | 0x40u;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : near);
}

#endif
