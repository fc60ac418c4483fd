/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Taking turns: profiles before and after what is measured, layouts one after the other, orders of samples in rounds. */
#include "cli/loop.h"
#include "cli/progress.h"
#include "base/mem.h"
#include "base/quantile.h"

#include <string.h>

struct profiling {
    int threads;
};

static enum dt_status profile_once(struct dt_loop *l, void *arg, struct dt_error *err)
{
    return dt_loop_profile(l, ((struct profiling *)arg)->threads, err);
}

static enum dt_status measure_once(struct dt_loop *l, void *arg, struct dt_error *err)
{
    return dt_loop_measure(l, arg, err);
}

/* Blocks and messages, once for each number of threads that some rank has. */
static enum dt_status profile_all(struct dt_loop *l, struct dt_error *err)
{
    bool have[LOOP_THREADS_MAX + 1] = {false};

    for (int i = 0; i < l->n; i++) {
        struct profiling p = {l->layout[i].threads};

        if (have[p.threads])
            continue;
        dt_cli_progress("measuring blocks", i, l->n);
        DT_TRY(
            dt_loop_watched(l, "blocks", profile_once, &p, err, &l->profile[l->passes][p.threads]));
        have[p.threads] = true;
    }
    l->passes++;
    return DT_OK;
}

/* Of layouts [first, last), measured between two profiles. */
static enum dt_status predict(struct dt_loop *l, int first, int last, struct dt_error *err)
{
    for (int i = first; i < last; i++) {
        struct dt_loop_layout *x = &l->layout[i];
        struct dt_drift here[2];

        for (int k = 0; k < 2; k++) {
            here[k] = l->profile[l->passes - 2 + k][x->threads];
            DT_TRY(dt_loop_predict(l, x, l->passes - 2 + k, err, &x->simulated_s[k]));
        }
        x->predicted_s = dt_drift_between(x->simulated_s, here, &x->drift);
        if (!l->anyway && !dt_drift_agree(x->simulated_s, here, &x->drift))
            return dt_error_set(
                err, DT_ERR_BUSY,
                "machine too busy: with what was measured before and after '%s' its iteration is "
                "predicted as %.1f and %.1f ms, at one speed of the machine (at most %.0f %% "
                "apart); measure when other work has ended, or --anyway",
                x->name, 1e3 * dt_drift_move(x->simulated_s[0], &here[0], &x->drift),
                1e3 * dt_drift_move(x->simulated_s[1], &here[1], &x->drift),
                100 * (DT_DRIFT_PAIR_MAX - 1));
    }
    return DT_OK;
}

enum dt_status dt_loop_run_layouts(struct dt_loop *l, struct dt_error *err)
{
    int groups = l->n < LOOP_GROUPS ? l->n : LOOP_GROUPS;

    DT_TRY(profile_all(l, err));
    for (int g = 0; g < groups; g++) {
        int first = l->n * g / groups, last = l->n * (g + 1) / groups;

        for (int i = first; i < last; i++) {
            struct dt_loop_layout *x = &l->layout[i];

            dt_cli_progress(x->name, i + 1, l->n);
            DT_TRY(dt_loop_watched(l, x->name, measure_once, x, err, &x->drift));
        }
        DT_TRY(profile_all(l, err));
        DT_TRY(predict(l, first, last, err));
    }
    dt_cli_progress_end();
    return DT_OK;
}

/* ---- orders of samples ---- */

/* Gains of orders are small against what a machine's speed does within minutes, but all orders train on the same steps:
 * each step's time is the median of its rounds, brought to one speed, and the rounds go back and forth. */
enum { ROUNDS = 3 };

static enum dt_status round_of_orders(struct dt_loop *l, int round, double *reference_s,
                                      struct dt_error *err)
{
    for (int i = 0; i < l->n; i++) {
        int k = round % 2 ? l->n - 1 - i : i;
        struct dt_loop_layout *x = &l->layout[k];

        dt_cli_progress(x->name, round * l->n + i + 1, ROUNDS * l->n);
        l->round = round;
        DT_TRY(dt_loop_watched(l, x->name, measure_once, x, err, &x->drift));
        reference_s[k] = dt_drift_reference(&x->drift);
    }
    return DT_OK;
}

/* The mean step. */
static double combined(const struct dt_loop *l, const struct dt_loop_layout *x,
                       const double *reference_s, double common_s)
{
    double sum = 0;

    for (int64_t i = 0; i < l->steps; i++) {
        double v[ROUNDS];

        for (int r = 0; r < ROUNDS; r++) {
            double here = reference_s[r * l->n];

            v[r] = x->step_s[r * l->steps + i] * (here > 0 && common_s > 0 ? common_s / here : 1);
        }
        sum += dt_median(v, ROUNDS);
    }
    return sum / (double)l->steps;
}

static enum dt_status combine(struct dt_loop *l, const double *reference_s, struct dt_error *err)
{
    size_t n = (size_t)(ROUNDS * l->n);
    double *sorted = dt_malloc(n * sizeof *sorted), common_s;

    if (!sorted)
        return dt_error_nomem(err, "reference times");
    memcpy(sorted, reference_s, n * sizeof *sorted);
    common_s = dt_median(sorted, n);
    dt_free(sorted);
    for (int k = 0; k < l->n; k++) {
        struct dt_loop_layout *x = &l->layout[k];

        x->measured_s = combined(l, x, reference_s + k, common_s);
        x->drift.before_s = x->drift.after_s = common_s;
        x->drift.at_s = (l->profile[0][x->threads].at_s + l->profile[1][x->threads].at_s) / 2;
    }
    return DT_OK;
}

enum dt_status dt_loop_run_orders(struct dt_loop *l, struct dt_error *err)
{
    double *reference_s = dt_calloc((size_t)(ROUNDS * l->n), sizeof *reference_s);
    enum dt_status st = reference_s ? DT_OK : dt_error_nomem(err, "reference times");

    for (int k = 0; k < l->n && st == DT_OK; k++) {
        l->layout[k].step_s = dt_calloc((size_t)(ROUNDS * l->steps), sizeof(double));
        if (!l->layout[k].step_s)
            st = dt_error_nomem(err, "steps");
    }
    if (st == DT_OK)
        st = profile_all(l, err);
    for (int r = 0; r < ROUNDS && st == DT_OK; r++)
        st = round_of_orders(l, r, reference_s + r * l->n, err);
    if (st == DT_OK)
        st = profile_all(l, err);
    if (st == DT_OK)
        st = combine(l, reference_s, err);
    if (st == DT_OK)
        st = predict(l, 0, l->n, err);
    dt_cli_progress_end();
    dt_free(reference_s);
    return st;
}

double dt_loop_gain_predicted(const struct dt_loop *l, int k)
{
    return l->layout[0].predicted_s / l->layout[k].predicted_s;
}

double dt_loop_gain_measured(const struct dt_loop *l, int k)
{
    return l->layout[0].measured_s / l->layout[k].measured_s;
}
