/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Jitter and slow lanes.  Draws are a function of (seed, entity, index), never of the order in
 * which they are asked for. */
#include "sim/noise.h"

#include "base/number.h"
#include "base/rng.h"

#include <math.h>

/* Streams of different purposes never meet: the purpose sits in the top byte. */
#define STREAM_JITTER ((uint64_t)1 << 56)
#define STREAM_SLOW ((uint64_t)2 << 56)

int64_t dt_sim_noise_apply(const struct dt_sim_noise *n, uint32_t lane, uint32_t index, int64_t ns)
{
    double t = (double)ns;

    if (n->slowdown && (int)lane < n->n_lanes)
        t *= n->slowdown[lane];
    if (n->jitter > 0) {
        /* 32 bits of lane and 24 bits of iteration; the index counts the lane's own ops. */
        uint64_t stream = STREAM_JITTER | (n->iteration & 0xffffff) << 32 | lane;
        double z = dt_rng_normal_at(n->seed, stream, index);
        /* E[exp(s z)] = exp(s^2/2) for a standard normal z: subtracting it makes the mean 1. */
        t *= exp(n->jitter * z - 0.5 * n->jitter * n->jitter);
    }
    return t < (double)DT_TIME_MAX_NS ? (int64_t)llround(t) : DT_TIME_MAX_NS; /* the end of time */
}

void dt_sim_noise_slow_lanes(uint64_t seed, double fraction, double factor, int n_lanes,
                             double *out)
{
    for (int i = 0; i < n_lanes; i++) {
        struct dt_rng r;
        dt_rng_init(&r, seed, STREAM_SLOW | (uint32_t)i);
        out[i] = dt_rng_uniform(&r) < fraction ? factor : 1.0;
    }
}
