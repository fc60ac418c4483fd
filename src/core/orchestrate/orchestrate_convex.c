/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The convex inner problem of DistTrain's orchestration (SIGCOMM'25 section 4): TP degrees and
 * DP_lm fixed, GPU counts x_m real.
 *
 *   minimise    M*C_lm + sum_{m != lm} K_m/x_m + (n-1) * max_m K_m/x_m
 *   subject to  sum x_m <= N,  x_m >= min_m
 *   where       K_m = DP_lm * M * TP_m * C_m,  n = BS / (DP_lm * M)
 *
 * For a fixed steady interval t every module needs x_m >= K_m/t; the GPUs left over only shorten
 * the warm-up, so the LLM takes none of them and the others share them by water filling, x_m
 * proportional to sqrt(K_m), which is the closed form of the inner minimum.  What remains is one
 * convex function of t: Brent's method (GSL). */
#include "core/orchestrate/orchestrate.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <assert.h>
#include <gsl/gsl_errno.h>
#include <gsl/gsl_min.h>
#include <math.h>

/* Brent's method ends behind so many steps none of which has made the minimum less by that share of it. */
enum { STILL = 8 };
#define LEAST 1e-13

struct convex {
    int n_modules, llm;
    double k[DT_MAX_MODULES], root[DT_MAX_MODULES]; /* K_m, and its square root */
    double lo[DT_MAX_MODULES];                      /* lower bounds of x_m */
    double n_total, steps, base;
    double x[DT_MAX_MODULES]; /* the inner solution of the last evaluation */
};

/* Deal `gpus` to the modules other than the LLM so that sum K_m/x_m is least, x_m >= floor[m].
 * Modules whose share sqrt(K_m)*mu is below their floor are fixed there; fixing one lowers mu, so
 * at most n rounds.  Returns sum K_m/x_m. */
static double water_fill(struct convex *c, const double *floor_x, double gpus)
{
    bool fixed[DT_MAX_MODULES] = {false};
    double warm = 0, mu = 0;
    bool again = true;

    while (again) {
        double left = gpus, roots = 0;

        again = false;
        for (int m = 0; m < c->n_modules; m++) {
            if (m == c->llm)
                continue;
            if (fixed[m])
                left -= floor_x[m];
            else
                roots += c->root[m];
        }
        mu = roots > 0 ? left / roots : 0;
        for (int m = 0; m < c->n_modules; m++)
            if (m != c->llm && !fixed[m] && c->root[m] * mu < floor_x[m])
                fixed[m] = again = true;
    }
    for (int m = 0; m < c->n_modules; m++) {
        if (m == c->llm)
            continue;
        c->x[m] = fixed[m] ? floor_x[m] : c->root[m] * mu;
        if (c->k[m] > 0)
            warm += c->k[m] / c->x[m];
    }
    return warm;
}

/* Least warm-up of the encoders and generators for steady interval t. */
static double warmup_at(struct convex *c, double t)
{
    double floor_x[DT_MAX_MODULES] = {0}, left = c->n_total;

    for (int m = 0; m < c->n_modules; m++)
        floor_x[m] = fmax(c->lo[m], c->k[m] / t);
    c->x[c->llm] = floor_x[c->llm];
    left -= floor_x[c->llm];
    for (int m = 0; m < c->n_modules; m++)
        if (m != c->llm)
            floor_x[m] = fmin(floor_x[m], left); /* only rounding at t_min */
    return water_fill(c, floor_x, left);
}

static double objective(double t, void *ctx)
{
    struct convex *c = ctx;

    return c->base + c->steps * t + warmup_at(c, t);
}

/* Least t at which the modules fit: sum max(lo_m, K_m/t) = N.  Exact: modules held by their lower
 * bound leave the sum one by one, which only raises t. */
static double least_interval(const struct convex *c)
{
    bool held[DT_MAX_MODULES] = {false};
    double t = 0;
    bool again = true;

    while (again) {
        double gpus = c->n_total, k = 0;

        again = false;
        for (int m = 0; m < c->n_modules; m++) {
            if (held[m])
                gpus -= c->lo[m];
            else
                k += c->k[m];
        }
        t = k / gpus;
        for (int m = 0; m < c->n_modules; m++)
            if (!held[m] && c->k[m] < c->lo[m] * t)
                held[m] = again = true;
    }
    return t;
}

/* Brent between lo and hi; the state lives on the stack, so nothing can fail.  Near the minimum the interval shrinks from one side
 * alone, so what tells the end is that the minimum has not become less for some steps. */
static double brent(struct convex *c, double lo, double mid, double hi, double f_lo, double f_mid,
                    double f_hi)
{
    double state[64];
    gsl_function f = {objective, c};
    gsl_min_fminimizer s = {.type = gsl_min_fminimizer_brent, .state = state};

    assert(gsl_min_fminimizer_brent->size <= sizeof(state));
    gsl_min_fminimizer_set_with_values(&s, &f, mid, f_mid, lo, f_lo, hi, f_hi);
    for (int i = 0, still = 0; i < 100 && still < STILL; i++) {
        double before = s.f_minimum;

        if (gsl_min_fminimizer_iterate(&s) != GSL_SUCCESS)
            break;
        still = s.f_minimum < before * (1 - LEAST) ? 0 : still + 1;
    }
    return s.x_minimum;
}

/* The minimiser of a convex function on [lo, hi]: shrink until an interior point lies below both
 * ends, which is what Brent asks for, or until the minimum is known to be at an end. */
static double minimise(struct convex *c, double lo, double hi)
{
    double f_lo = objective(lo, c), f_hi = objective(hi, c);

    while (hi - lo > 1e-12 * hi) {
        double mid = lo + 0.381966011250105 * (hi - lo), f_mid = objective(mid, c);

        if (f_mid < f_lo && f_mid < f_hi)
            return brent(c, lo, mid, hi, f_lo, f_mid, f_hi);
        if (f_lo <= f_mid) {
            hi = mid;
            f_hi = f_mid;
        } else {
            lo = mid;
            f_lo = f_mid;
        }
    }
    return f_lo <= f_hi ? lo : hi;
}

double dt_orch_convex_solve_k(int n_modules, int llm, const double *k, double steps, double n_total,
                              const double *min_x, double base_s, double *x)
{
    struct convex p = {
        .n_modules = n_modules, .llm = llm, .n_total = n_total, .base = base_s, .steps = steps};
    double t, t_min, warm_far, need = 0, value;

    for (int m = 0; m < n_modules; m++) {
        p.k[m] = k[m];
        p.root[m] = sqrt(k[m]);
        p.lo[m] = min_x ? min_x[m] : 0;
        need += p.lo[m];
    }
    if (need > n_total)
        return HUGE_VAL;
    t_min = least_interval(&p);
    if (!isfinite(t_min))
        return HUGE_VAL;
    warm_far = warmup_at(&p, HUGE_VAL);
    if (p.steps <= 0) { /* one slot: no steady phase, the interval costs nothing */
        value = p.base + warm_far;
    } else {
        /* Beyond this the steady phase grows by more than the whole warm-up can shrink. */
        double t_max = t_min + (warmup_at(&p, t_min) - warm_far) / p.steps;

        t = minimise(&p, t_min, t_max);
        value = objective(t, &p);
    }
    if (x)
        for (int m = 0; m < n_modules; m++)
            x[m] = p.x[m];
    return value;
}

double dt_orch_convex_solve(int n_modules, int llm, const double *c, const int *tp, int dp_llm,
                            int microbatch, int64_t global_batch, double n_total,
                            const double *min_x, double *x)
{
    const double slot = (double)dp_llm * microbatch;
    double k[DT_MAX_MODULES];

    for (int m = 0; m < n_modules; m++)
        k[m] = slot * tp[m] * c[m];
    return dt_orch_convex_solve_k(n_modules, llm, k, (double)global_batch / slot - 1, n_total,
                                  min_x, microbatch * c[llm], x);
}
