/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Jitter, slow GPUs, failures: all from an explicit seed, one random stream per entity. */
#ifndef DT_SIM_NOISE_H
#define DT_SIM_NOISE_H

#include "core/job/job.h"

struct dt_sim_noise {
    uint64_t seed;
    uint64_t iteration;
    double jitter; /* sigma of log-normal multiplicative jitter of compute ops, mean 1 */
    int n_lanes;
    const double *slowdown; /* [n_lanes] factor >= 1 per lane, or NULL */
};
/* Duration of op `index` on `lane` under noise; rounds to ns. */
int64_t dt_sim_noise_apply(const struct dt_sim_noise *n, uint32_t lane, uint32_t index, int64_t ns);
/* Draw slow lanes: each lane slow with probability fraction (stream per lane). */
void dt_sim_noise_slow_lanes(uint64_t seed, double fraction, double factor, int n_lanes,
                             double *out);

struct dt_sim_goodput {
    double goodput; /* useful time / wall time */
    double failures_per_day, lost_s_per_failure, expected_wall_s;
};
/* Monte Carlo (seeded) of training for `horizon_s` of useful work with exponential failures of `gpus` GPUs,
 * MTBF per GPU in hours, checkpoint every interval_s costing write_s, restart_s after each failure. */
void dt_sim_goodput_simulate(uint64_t seed, int gpus, double mtbf_gpu_hours, double interval_s,
                             double write_s, double restart_s, double horizon_s,
                             struct dt_sim_goodput *out);

#endif
