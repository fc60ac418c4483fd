/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Goodput under failures: Monte Carlo of train / checkpoint / fail / restart.
 *
 *   work tau | write d | work tau | write d | work ..x failure | restart R | work tau (again) | ...
 *
 * A failure may strike during work, a write or a restart; it costs everything since the last
 * completed write. Failures of the machine are exponential with rate gpus/MTBF, so the time to the
 * next one has no memory and a whole stretch of undisturbed segments is skipped in one step: the
 * cost is O(failures), not O(segments). */
#include "sim/noise.h"

#include "base/rng.h"

#include <math.h>

enum { RUNS = 128 }; /* independent trajectories averaged; each has a random stream of its own */
#define STREAM_FAILURES ((uint64_t)3 << 56)
/* A machine that hardly advances between failures would never finish: a run is cut off after this
 * many, and the work done by then is what counts. */
enum { FAILURES_MAX = 1000000 };

struct run {
    double useful, wall, lost;
    double failures;
};

/* Restart until it is not interrupted; returns the time left to the next failure. */
static double restart(struct run *r, struct dt_rng *rng, double mean_s, double restart_s)
{
    for (;;) {
        double left = -mean_s * log(dt_rng_uniform(rng));
        if (left >= restart_s || r->failures >= FAILURES_MAX) {
            r->wall += restart_s;
            r->lost += restart_s;
            return left > restart_s ? left - restart_s : 0;
        }
        r->wall += left;
        r->lost += left;
        r->failures++;
    }
}

static void trajectory(struct run *r, struct dt_rng *rng, double mean_s, double interval_s,
                       double write_s, double restart_s, double horizon_s)
{
    double left = mean_s > 0 ? -mean_s * log(dt_rng_uniform(rng)) : INFINITY;
    double segment = interval_s + write_s;

    for (;;) {
        /* Whole segments that end before both the failure and the last stretch of work. */
        double todo = ceil((horizon_s - r->useful) / interval_s) - 1;
        double fit = left < INFINITY ? floor(left / segment) : todo;
        double k = fit < todo ? fit : todo;
        if (k > 0) {
            r->useful += k * interval_s;
            r->wall += k * segment;
            left -= k * segment;
        }
        double tail = horizon_s - r->useful;
        if (tail <= interval_s && left >= tail) { /* the end needs no checkpoint */
            r->useful += tail;
            r->wall += tail;
            return;
        }
        if (left >= segment)
            continue; /* k was rounded down by one part in 2^53 */
        r->wall += left;
        r->lost += left;
        r->failures++;
        if (r->failures >= FAILURES_MAX)
            return;
        left = restart(r, rng, mean_s, restart_s);
    }
}

void dt_sim_goodput_simulate(uint64_t seed, int gpus, double mtbf_gpu_hours, double interval_s,
                             double write_s, double restart_s, double horizon_s,
                             struct dt_sim_goodput *out)
{
    double mean_s = mtbf_gpu_hours > 0 && gpus > 0 ? mtbf_gpu_hours * 3600.0 / gpus : 0;
    struct run sum = {0};

    if (!(interval_s > 0) || interval_s > horizon_s)
        interval_s = horizon_s; /* no checkpoint before the end */
    for (int i = 0; i < RUNS && horizon_s > 0; i++) {
        struct dt_rng rng;
        struct run r = {0};
        dt_rng_init(&rng, seed, STREAM_FAILURES | (uint32_t)i);
        trajectory(&r, &rng, mean_s, interval_s, write_s, restart_s, horizon_s);
        sum.useful += r.useful;
        sum.wall += r.wall;
        sum.lost += r.lost;
        sum.failures += r.failures;
    }
    out->goodput = sum.wall > 0 ? sum.useful / sum.wall : 1;
    out->expected_wall_s = sum.wall / RUNS;
    out->failures_per_day = sum.wall > 0 ? sum.failures / sum.wall * 86400.0 : 0;
    out->lost_s_per_failure = sum.failures > 0 ? sum.lost / sum.failures : 0;
}
