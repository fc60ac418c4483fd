/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "fit/gain.h"

#include "base/mem.h"
#include "base/quantile.h"

#include <math.h>

/* Student's t, 97.5 %, by degrees of freedom from 1; more have less than the last. */
static double student(int freedom)
{
    static const double t[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                               2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                               2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                               2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
    int most = sizeof(t) / sizeof(*t);

    return freedom < 1 ? INFINITY : t[(freedom < most ? freedom : most) - 1];
}

/* Of a gain whose logarithm has this standard error. */
static double half_width(double gain, double error, int freedom)
{
    return freedom < 1 ? INFINITY : gain * expm1(student(freedom) * error);
}

enum { BETAS = 10 };                             /* beta is a multiple of a tenth */
static const double BOUND = 2.5, SIGMA = 1.4826; /* SIGMA: over the median absolute value */
/* Rounds that are left out change the bounds, too, and by that the jackknife sees a little too little: without this factor
 * a true gain lies within 94.5 % of what is said, not 95 % (tests/test_gain.c). */
static const double UNSEEN = 1.1;

struct work {
    const struct dt_fit_turns *t;
    double beta;
    int without;   /* this round; -1: with all */
    double *left;  /* [steps][orders][rounds]: beside what all orders of the step have */
    double *level; /* [steps] */
    double *size;  /* [steps * orders * rounds], of what is left beside its median */
    double *some;  /* [max(rounds, orders)] */
    double *total; /* [orders], of all steps */
};

static double logarithm(const struct work *w, int r, int i, int k)
{
    const struct dt_fit_turns *t = w->t;
    int at = (r * t->steps + i) * t->orders + k;
    double y = log(t->time_s[at]);

    return t->reference_s ? y - w->beta * log(t->reference_s[at]) : y;
}

static double *left_of(const struct work *w, int i, int k)
{
    return w->left + (i * w->t->orders + k) * w->t->rounds;
}

static double median_of(const struct work *w, const double *v, int n)
{
    for (int i = 0; i < n; i++)
        w->some[i] = v[i];
    return dt_median(w->some, (size_t)n);
}

/* Takes from each order what all orders of the same step and round have in common; returns how many rounds there are. */
static int take_out_speed(const struct work *w)
{
    const struct dt_fit_turns *t = w->t;
    int n = 0;

    for (int i = 0; i < t->steps; i++) {
        n = 0;
        for (int r = 0; r < t->rounds; r++) {
            double common;

            if (r == w->without)
                continue;
            for (int k = 0; k < t->orders; k++)
                w->some[k] = left_of(w, i, k)[n] = logarithm(w, r, i, k);
            common = dt_median(w->some, (size_t)t->orders);
            for (int k = 0; k < t->orders; k++)
                left_of(w, i, k)[n] -= common;
            w->size[n++] = common;
        }
        w->level[i] = median_of(w, w->size, n);
    }
    return n;
}

/* The noise, as the mean absolute value of what is left beside medians: beta is chosen by it. */
static double noise(const struct work *w)
{
    const struct dt_fit_turns *t = w->t;
    int n = take_out_speed(w);
    double sum = 0;

    for (int i = 0; i < t->steps; i++)
        for (int k = 0; k < t->orders; k++) {
            const double *v = left_of(w, i, k);
            double middle = median_of(w, v, n);

            for (int r = 0; r < n; r++)
                sum += fabs(v[r] - middle);
        }
    return sum;
}

static double bounded(double v, double most)
{
    return fmin(fmax(v, -most), most);
}

static double mean_of_bounded(const double *v, int n, double middle, double most)
{
    double more = 0;

    for (int r = 0; r < n; r++)
        more += bounded(v[r] - middle, most) / n;
    return middle + more;
}

/* What all steps take in each order, at one speed. */
static void add_up(const struct work *w)
{
    const struct dt_fit_turns *t = w->t;
    int n = take_out_speed(w), m = 0;
    double most;

    for (int i = 0; i < t->steps; i++)
        for (int k = 0; k < t->orders; k++) {
            const double *v = left_of(w, i, k);
            double middle = median_of(w, v, n);

            for (int r = 0; r < n; r++)
                w->size[m++] = fabs(v[r] - middle);
        }
    most = BOUND * SIGMA * dt_median(w->size, (size_t)m);
    for (int k = 0; k < t->orders; k++) {
        w->total[k] = 0;
        for (int i = 0; i < t->steps; i++) {
            const double *v = left_of(w, i, k);

            w->total[k] += exp(w->level[i] + mean_of_bounded(v, n, median_of(w, v, n), most));
        }
    }
}

static double log_gain(const struct work *w, int k)
{
    return log(w->total[0] / w->total[k]);
}

static void choose_beta(struct work *w)
{
    double least = INFINITY, best = 0;

    for (int b = 0; b <= BETAS && w->t->reference_s; b++) {
        double s;

        w->beta = (double)b / BETAS;
        s = noise(w);
        if (s < least) {
            least = s;
            best = w->beta;
        }
    }
    w->beta = best;
}

/* sum[k], square[k]: of the logarithms of gains, each without one of the rounds, less those with all. */
static void leave_out(struct work *w, const struct dt_fit_gain *all, double *sum, double *square)
{
    for (w->without = 0; w->without < w->t->rounds; w->without++) {
        add_up(w);
        for (int k = 0; k < w->t->orders; k++) {
            double g = log_gain(w, k) - log(all[k].gain);

            sum[k] += g;
            square[k] += g * g;
        }
    }
    w->without = -1;
}

enum dt_status dt_fit_gains(const struct dt_fit_turns *t, struct dt_error *err,
                            struct dt_fit_gain *out)
{
    int R = t->rounds, cells = R * t->steps * t->orders;
    double *room = dt_calloc((size_t)(2 * cells + t->steps + R + 4 * t->orders), sizeof(*room));
    struct work w = {.t = t, .without = -1, .left = room};
    double *sum, *square;

    if (!room)
        return dt_error_nomem(err, "gains");
    w.size = w.left + cells;
    w.level = w.size + cells;
    w.total = w.level + t->steps;
    sum = w.total + t->orders;
    square = sum + t->orders;
    w.some = square + t->orders; /* [R + orders] */
    choose_beta(&w);
    add_up(&w);
    for (int k = 0; k < t->orders; k++)
        out[k].gain = exp(log_gain(&w, k));
    if (R > 1)
        leave_out(&w, out, sum, square);
    for (int k = 0; k < t->orders; k++) {
        double error = UNSEEN * sqrt(fmax(0, square[k] - sum[k] * sum[k] / R) * (R - 1) / R);

        out[k].within = k == 0 ? 0 : half_width(out[k].gain, error, R - 1);
    }
    dt_free(room);
    return DT_OK;
}

void dt_fit_gain_mean(const double *gain, int n, struct dt_fit_gain *out)
{
    double mean = 0, square = 0;

    for (int i = 0; i < n; i++)
        mean += log(gain[i]) / n;
    for (int i = 0; i < n; i++)
        square += (log(gain[i]) - mean) * (log(gain[i]) - mean);
    out->gain = exp(mean);
    out->within = half_width(out->gain, n > 1 ? sqrt(square / (n - 1) / n) : 0, n - 1);
}

struct dt_fit_apart dt_fit_gain_apart(const struct dt_fit_gain *predicted,
                                      const struct dt_fit_gain *measured)
{
    return (struct dt_fit_apart){predicted->gain - measured->gain,
                                 hypot(predicted->within, measured->within)};
}

bool dt_fit_gain_missed(const struct dt_fit_apart *a)
{
    return fabs(a->apart) > DT_FIT_GAIN_TARGET + a->within;
}
