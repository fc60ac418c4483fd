/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Noise schedules and the DDIM sampler.
 *
 *   x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps,   abar_t = prod_{s <= t} (1 - beta_s)
 *
 * linear: beta from 1e-4 to 0.02 (Ho et al. 2020); scaled-linear: the square of a line from
 * sqrt(0.00085) to sqrt(0.012) (Stable Diffusion's released configuration); both end points are of
 * 1,000 steps and are scaled by 1000/steps, so that a shorter chain ends as noisy.  cosine:
 * abar_t = f(t+1)/f(0), f(t) = cos^2((t/T + 0.008)/1.008 pi/2), beta <= 0.999 (Nichol & Dhariwal
 * 2021).  Figures as published. */
#include "base/hash.h"
#include "base/rng.h"
#include "exec/modules/impl.h"

#include <math.h>

const char *const dt_diffusion_schedule_names[] = {"linear", "scaled-linear", "cosine", NULL};

static double cosine(double t, double steps)
{
    double c = cos((t / steps + 0.008) / 1.008 * M_PI / 2);

    return c * c;
}

static double beta_at(enum dt_diffusion_schedule s, int t, int steps)
{
    double at = steps > 1 ? (double)t / (steps - 1) : 0, scale = 1000.0 / steps, root, beta;

    switch (s) {
    case DT_NOISE_LINEAR:
        beta = scale * (1e-4 + at * (0.02 - 1e-4));
        break;
    case DT_NOISE_SCALED_LINEAR:
        root = sqrt(0.00085) + at * (sqrt(0.012) - sqrt(0.00085));
        beta = scale * root * root;
        break;
    case DT_NOISE_COSINE:
    case DT_NOISE_N:
        beta = 1 - cosine(t + 1, steps) / cosine(t, steps);
    }
    return beta < 0.999 ? beta : 0.999;
}

enum dt_status dt_diffusion_init(struct dt_diffusion *d, enum dt_diffusion_schedule s, int steps,
                                 struct dt_error *err)
{
    double product = 1, *a;

    if (steps < 1 || (int)s < 0 || s >= DT_NOISE_N)
        return dt_error_set(err, DT_ERR_INPUT, "a noise schedule needs at least 1 step");
    a = dt_calloc((size_t)steps, sizeof(*a));
    if (!a)
        return dt_error_nomem(err, "a noise schedule");
    for (int t = 0; t < steps; t++)
        a[t] = product *= 1 - beta_at(s, t, steps);
    *d = (struct dt_diffusion){s, steps, a};
    return DT_OK;
}

void dt_diffusion_free(struct dt_diffusion *d)
{
    dt_free(d->alpha_bar);
    d->alpha_bar = NULL;
}

void dt_batch_diffuse(struct dt_batch *b, const struct dt_diffusion *d, uint64_t seed,
                      uint64_t draw)
{
    for (int64_t i = 0; i < b->n_seq; i++) {
        uint64_t stream = b->host.stream[i] ^ (draw + 1) * DT_HASH_GOLDEN;
        struct dt_rng r;
        int t;

        dt_rng_init(&r, seed, stream);
        t = (int)dt_rng_below(&r, (uint64_t)d->steps);
        b->host.t[i] = (float)t;
        b->host.alpha[i] = (float)sqrt(d->alpha_bar[t]);
        b->host.sigma[i] = (float)sqrt(1 - d->alpha_bar[t]);
    }
}

void dt_diffusion_ddim_step(const struct dt_diffusion *d, int t, int to, double clip, double eta,
                            int64_t n, const float *eps, const float *fresh, float *x)
{
    double a = d->alpha_bar[t], b = to < 0 ? 1 : d->alpha_bar[to];
    /* equation 16 of the paper */
    double s = fresh && a < b ? eta * sqrt((1 - b) / (1 - a)) * sqrt(1 - a / b) : 0;

    for (int64_t i = 0; i < n; i++) {
        double e = (double)eps[i], x0 = ((double)x[i] - sqrt(1 - a) * e) / sqrt(a);

        if (clip > 0 && fabs(x0) > clip) {
            x0 = x0 > 0 ? clip : -clip;
            e = ((double)x[i] - sqrt(a) * x0) / sqrt(1 - a);
        }
        x[i] = (float)(sqrt(b) * x0 + sqrt(1 - b - s * s) * e + (s > 0 ? s * (double)fresh[i] : 0));
    }
}
