/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Taking turns: profiles before and after what is measured, layouts one after the other, strategies in rounds. */
#include "cli/loop.h"
#include "cli/progress.h"
#include "base/mem.h"
#include "base/quantile.h"

#include <math.h>
#include <string.h>

struct profiling {
    int threads;
};

static enum dt_status profile_once(struct dt_loop *l, void *arg, struct dt_error *err,
                                   struct dt_drift *out)
{
    return dt_loop_profile(l, ((struct profiling *)arg)->threads, err, out);
}

static enum dt_status measure_once(struct dt_loop *l, void *arg, struct dt_error *err,
                                   struct dt_drift *out)
{
    return dt_loop_measure(l, arg, err, out);
}

/* Blocks and messages, once for each number of threads that some rank has. */
enum dt_status dt_loop_profile_all(struct dt_loop *l, struct dt_error *err)
{
    bool have[LOOP_THREADS_MAX + 1] = {false};

    for (int i = 0; i < l->n; i++) {
        struct profiling p = {l->layout[i].threads};

        if (have[p.threads])
            continue;
        if (!l->orders) /* which say so themselves */
            dt_cli_progress("measuring blocks", i, l->n);
        DT_TRY(
            dt_loop_watched(l, "blocks", profile_once, &p, err, &l->profile[l->passes][p.threads]));
        have[p.threads] = true;
    }
    l->passes++;
    return DT_OK;
}

/* So often the later of two profiles of some number of threads that disagree at one speed of the reference kernel is measured again: the time of the
 * earlier one is gone. */
enum { PROFILES_AGAIN = 2 };

static enum dt_status profile_again(struct dt_loop *l, int threads, struct dt_error *err)
{
    struct profiling p = {threads};
    enum dt_status st;

    l->again++;
    l->passes--;
    st = dt_loop_watched(l, "blocks", profile_once, &p, err, &l->profile[l->passes][threads]);
    l->passes++;
    return st;
}

/* From the profiles before and after it. */
static enum dt_status predict_one(struct dt_loop *l, struct dt_loop_layout *x,
                                  struct dt_drift here[2], struct dt_error *err)
{
    for (int k = 0; k < 2; k++) {
        here[k] = l->profile[l->passes - 2 + k][x->threads];
        DT_TRY(dt_loop_predict(l, x, l->passes - 2 + k, err, &x->simulated_s[k]));
    }
    x->predicted_s = dt_drift_between(x->simulated_s, here, &x->drift);
    return DT_OK;
}

static enum dt_status check_predicted(const struct dt_loop *l, const struct dt_loop_layout *x,
                                      const struct dt_drift here[2], struct dt_error *err)
{
    if (!dt_drift_agree(x->simulated_s, here, &x->drift))
        return dt_error_set(
            err, DT_ERR_BUSY,
            "machine too busy: with what was measured before and after '%s' its iteration is "
            "predicted as %.1f and %.1f ms, at one speed of the machine (at most %.0f %% "
            "apart); measure when other work has ended, or --anyway",
            x->name, 1e3 * dt_drift_move(x->simulated_s[0], &here[0], &x->drift),
            1e3 * dt_drift_move(x->simulated_s[1], &here[1], &x->drift),
            100 * (DT_DRIFT_PAIR_MAX - 1));
    if (!l->card && x->ranks == 1 && !dt_drift_holds(x->predicted_s, x->measured_s))
        return dt_error_set(
            err, DT_ERR_BUSY,
            "machine too busy, or costs of one rank are wrong: '%s' waits for nobody, is predicted "
            "as %.1f ms and took %.1f (at most %.0f %% apart), and so much is in what is "
            "predicted of all others; measure again, and if this stays, look at it with --anyway",
            x->name, 1e3 * x->predicted_s, 1e3 * x->measured_s, 100 * (DT_DRIFT_PAIR_MAX - 1));
    return DT_OK;
}

/* Of layouts [first, last), measured between two profiles. */
static enum dt_status predict(struct dt_loop *l, int first, int last, struct dt_error *err)
{
    int again[LOOP_THREADS_MAX + 1] = {0};

    for (int i = first; i < last; i++) {
        struct dt_loop_layout *x = &l->layout[i];
        struct dt_drift here[2];

        DT_TRY(predict_one(l, x, here, err));
        if (again[x->threads] < PROFILES_AGAIN &&
            !dt_drift_agree(x->simulated_s, here, &x->drift)) {
            again[x->threads]++;
            DT_TRY(profile_again(l, x->threads, err));
            i = first - 1; /* those before it rest on that profile, too */
        } else if (!l->anyway) {
            DT_TRY(check_predicted(l, x, here, err));
        }
    }
    return DT_OK;
}

static enum dt_status room_for_steps(struct dt_loop *l, int rounds, struct dt_error *err)
{
    l->kept = dt_calloc((size_t)l->steps, sizeof *l->kept);
    if (!l->kept)
        return dt_error_nomem(err, "steps");
    for (int k = 0; k < l->n; k++) {
        l->layout[k].step_s = dt_calloc((size_t)(rounds * l->steps), sizeof(double));
        if (!l->layout[k].step_s)
            return dt_error_nomem(err, "steps");
    }
    return DT_OK;
}

enum dt_status dt_loop_run_layouts(struct dt_loop *l, struct dt_error *err)
{
    int groups = l->n < LOOP_GROUPS ? l->n : LOOP_GROUPS;

    DT_TRY(room_for_steps(l, 1, err));
    DT_TRY(dt_loop_profile_all(l, err));
    for (int g = 0; g < groups; g++) {
        int first = l->n * g / groups, last = l->n * (g + 1) / groups;

        for (int i = first; i < last; i++) {
            struct dt_loop_layout *x = &l->layout[i];

            dt_cli_progress(x->name, i + 1, l->n);
            DT_TRY(dt_loop_watched(l, x->name, measure_once, x, err, &x->drift));
        }
        DT_TRY(dt_loop_profile_all(l, err));
        DT_TRY(predict(l, first, last, err));
    }
    dt_cli_progress_end();
    return DT_OK;
}

/* ---- strategies ---- */

/* All of them train on the same steps: each step's time is the median of its rounds, in reference kernels, and the rounds go
 * back and forth. */
enum { ROUNDS = 3 };

static enum dt_status round_of_all(struct dt_loop *l, int round, struct dt_error *err)
{
    for (int i = 0; i < l->n; i++) {
        int k = round % 2 ? l->n - 1 - i : i;
        struct dt_loop_layout *x = &l->layout[k];

        dt_cli_progress(x->name, round * l->n + i + 1, ROUNDS * l->n);
        l->round = round;
        DT_TRY(dt_loop_watched(l, x->name, measure_once, x, err, &x->drift));
    }
    return DT_OK;
}

/* Of its rounds, those in which the machine kept its speed; 0 if there is none. */
static double median_of_rounds(const struct dt_loop *l, const struct dt_loop_layout *x,
                               int64_t step)
{
    double v[ROUNDS];
    size_t n = 0;

    for (int r = 0; r < ROUNDS; r++)
        if (x->step_s[r * l->steps + step] > 0)
            v[n++] = x->step_s[r * l->steps + step];
    return n > 0 ? dt_median(v, n) : 0;
}

/* Mean steps, of those that all of them have, all at the speed of the first one's last round. */
static enum dt_status combine(struct dt_loop *l, struct dt_error *err)
{
    double reference_s = l->layout[0].drift.reference_s, common_s = l->card ? 1 : reference_s;
    int64_t n = 0;

    for (int64_t i = 0; i < l->steps; i++) {
        l->kept[i] = true;
        for (int k = 0; k < l->n; k++)
            l->kept[i] = l->kept[i] && median_of_rounds(l, &l->layout[k], i) > 0;
        n += l->kept[i];
    }
    if (2 * n < l->steps) /* never with --anyway */
        return dt_error_set(err, DT_ERR_BUSY,
                            "machine too busy: it kept its speed with every strategy in %lld of "
                            "%lld steps only; measure when other work has ended, or --anyway",
                            (long long)n, (long long)l->steps);
    l->steps_kept = n;
    for (int k = 0; k < l->n; k++) {
        struct dt_loop_layout *x = &l->layout[k];

        x->measured_s = 0;
        for (int64_t i = 0; i < l->steps; i++)
            if (l->kept[i])
                x->measured_s += common_s * median_of_rounds(l, x, i) / (double)n;
        x->drift.reference_s = reference_s;
        x->drift.at_s = (l->profile[0][x->threads].at_s + l->profile[1][x->threads].at_s) / 2;
    }
    return DT_OK;
}

enum dt_status dt_loop_run_in_turn(struct dt_loop *l, struct dt_error *err)
{
    DT_TRY(dt_loop_profile_all(l, err));
    DT_TRY(dt_loop_plan_strategies(l, err)); /* which a profile is needed for */
    DT_TRY(room_for_steps(l, ROUNDS, err));
    for (int r = 0; r < ROUNDS; r++)
        DT_TRY(round_of_all(l, r, err));
    DT_TRY(dt_loop_profile_all(l, err));
    DT_TRY(combine(l, err));
    DT_TRY(predict(l, 0, l->n, err));
    dt_cli_progress_end();
    return DT_OK;
}

/* Differences below are ties: what a prediction of a gain, and a mean of a dozen steps, is right within (doc/loop.md). */
#define TIE 0.03

bool dt_loop_tie(double ratio, double uncertainty)
{
    return fabs(log(ratio)) <= uncertainty;
}

void dt_loop_compare(const struct dt_loop *l, int a, int b, struct dt_loop_pair *out)
{
    const struct dt_loop_layout *x = &l->layout[a], *y = &l->layout[b];
    double sum = 0, square = 0, n = (double)l->steps_kept;

    *out = (struct dt_loop_pair){x->predicted_s / y->predicted_s, x->measured_s / y->measured_s,
                                 TIE, false};
    for (int64_t i = 0; i < l->steps; i++)
        if (l->kept[i]) {
            double r = log(median_of_rounds(l, x, i) / median_of_rounds(l, y, i));

            sum += r;
            square += r * r;
        }
    if (n > 1) /* two standard errors of the mean of n steps */
        out->uncertainty = fmax(TIE, 2 * sqrt(fmax(0, square - sum * sum / n) / ((n - 1) * n)));
    out->agree = dt_loop_tie(out->predicted, out->uncertainty) ||
                 dt_loop_tie(out->measured, out->uncertainty) ||
                 (out->predicted < 1) == (out->measured < 1);
}
