/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Orders of samples instead of layouts.  What they gain is small against what a machine's speed does within minutes, so they
 * take turns step by step in one training (exec/train/turns.h), profiles are measured before and after each training, and
 * that goes on until the gains are known, the measured ones by the scatter of rounds and the predicted ones by that of
 * profiles (fit/gain.h). */
#include "cli/loop.h"
#include "cli/progress.h"
#include "base/mem.h"
#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum dt_status dt_loop_orders(struct dt_loop *l, const struct dt_model *m,
                              const struct dt_plan *plan, struct dt_error *err)
{
    static const char *const names[DT_WAY_N] = {[DT_WAY_NONE] = "as they come",
                                                [DT_WAY_INTRA] = "intra",
                                                [DT_WAY_INTER] = "inter",
                                                [DT_WAY_BOTH] = "intra and inter",
                                                [DT_WAY_ENTRAIN] = "entrain"};
    struct dt_train_turns *t = &l->turns.how;
    int ranks = dt_plan_gpus(plan);

    dt_train_turns_ways(t, m, plan);
    t->warm_up = l->warm_up;
    t->batches = l->steps;
    t->rounds = LOOP_ROUNDS;
    if (dt_grow((void **)&l->layout, &l->cap, (size_t)t->n, sizeof(*l->layout)))
        return dt_error_nomem(err, "orders");
    for (l->n = 0; l->n < t->n; l->n++) {
        struct dt_loop_layout *x = &l->layout[l->n];
        const struct dt_plan_policy *y = &t->plan[l->n].policy;

        memset(x, 0, sizeof(*x));
        x->ranks = ranks;
        x->threads = dt_loop_threads_each(l, ranks);
        snprintf(x->name, sizeof(x->name), "%s", names[t->way[l->n]]);
        snprintf(x->over, sizeof(x->over), "train.assignment=%s",
                 dt_plan_assignment_names[y->assignment]);
        if (y->assignment == DT_ASSIGNMENT_ENTRAIN) /* which has an order of its own */
            snprintf(x->also, sizeof(x->also), "train.reorder=none");
        else
            snprintf(x->also, sizeof(x->also), "train.reorder={intra: %s, inter: %s}",
                     y->intra_reorder ? "true" : "false", y->inter_reorder ? "true" : "false");
    }
    return DT_OK;
}

/* ---- measuring ---- */

static enum dt_status room_for_training(struct dt_loop *l, struct dt_error *err)
{
    struct dt_loop_turns *t = &l->turns;
    size_t cells = (size_t)LOOP_TRAININGS_MAX * LOOP_ROUNDS * (size_t)(l->steps * l->n);

    t->time_s = dt_calloc(cells, sizeof(*t->time_s));
    t->reference_s = dt_calloc(cells, sizeof(*t->reference_s));
    t->rank_s = dt_calloc(cells * (size_t)l->layout[0].ranks, sizeof(*t->rank_s));
    return t->time_s && t->reference_s && t->rank_s ? DT_OK : dt_error_nomem(err, "rounds");
}

void dt_loop_free_orders(struct dt_loop *l)
{
    dt_free(l->turns.time_s);
    dt_free(l->turns.reference_s);
    dt_free(l->turns.rank_s);
}

static const char *behind(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    return at ? at + strlen(key) : "";
}

static double number(const char *line, const char *key)
{
    return strtod(behind(line, key), NULL);
}

/* The line of metrics.jsonl of one step, at its place among those of all rounds. */
static enum dt_status read_step(struct dt_loop *l, const char *line, int64_t step,
                                struct dt_error *err)
{
    struct dt_loop_turns *t = &l->turns;
    const char *order = behind(line, "\"order\":\""), *name,
               *rank = behind(line, "\"reference_ranks_s\":[");
    struct dt_train_turn turn;
    int64_t at;

    dt_train_turn(&t->how, step, &turn);
    if (turn.round < 0)
        return DT_OK;
    at = ((t->trainings * LOOP_ROUNDS + turn.round) * l->steps + turn.batch - l->warm_up) * l->n +
         turn.order;
    t->time_s[at] = number(line, "\"step_s\":");
    t->reference_s[at] = l->card ? 1
                                 : sqrt(number(line, "\"reference_before_s\":") *
                                        number(line, "\"reference_after_s\":"));
    t->steady[t->trainings] += l->card || strstr(line, "\"reference_steady\":true");
    for (int r = 0; r < l->layout[0].ranks && !l->card; r++) {
        char *end;

        t->rank_s[at * l->layout[0].ranks + r] = strtod(rank, &end);
        rank = end + (*end == ',');
    }
    name = dt_assign_way_names[t->how.way[turn.order]];
    if (strncmp(order, name, strlen(name)) != 0 || order[strlen(name)] != '"' ||
        !(t->time_s[at] > 0 && t->reference_s[at] > 0))
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "step %lld of the training is not what it was to be",
                            (long long)step + 1);
    return DT_OK;
}

static enum dt_status read_training(struct dt_loop *l, char *text, struct dt_error *err)
{
    int64_t n = 0, all = dt_train_turns_steps(&l->turns.how);

    for (char *p = text, *end; p && *p && n < all; p = end) {
        end = strchr(p, '\n');
        if (end)
            *end++ = '\0';
        if (strstr(p, "\"step_s\":"))
            DT_TRY(read_step(l, p, n++, err));
    }
    return n == all ? DT_OK
                    : dt_error_set(err, DT_ERR_IO, "training left %lld steps of %lld", (long long)n,
                                   (long long)all);
}

/* However often the speed flips: whether gains are known in spite of that is for fit/gain.h to say. */
static enum dt_status train_once(struct dt_loop *l, void *arg, struct dt_error *err,
                                 struct dt_drift *out)
{
    char *text;
    enum dt_status st;

    (void)arg;
    DT_TRY(dt_loop_measure_turns(l, err, &text));
    l->turns.steady[l->turns.trainings] = 0; /* again, perhaps */
    st = read_training(l, text, err);
    dt_free(text);
    out->steady = 1;
    out->reference_s = 0;
    return st;
}

/* ---- gains ---- */

/* The median of n values, the next `stride` further; of their ratios to those of `by` unless it is NULL. */
static double middle(const double *of, const double *by, int64_t stride, int64_t n, double *some)
{
    for (int64_t i = 0; i < n; i++)
        some[i] = by ? of[i * stride] / by[i * stride] : of[i * stride];
    return dt_median(some, (size_t)n);
}

static int64_t rounds_of(const struct dt_loop *l)
{
    return (int64_t)l->turns.trainings * LOOP_ROUNDS;
}

/* The mean step of the first order at the speed that the machine had most, from which the others' follow by their gains. */
static void take_times(struct dt_loop *l, double *some)
{
    const struct dt_loop_turns *t = &l->turns;
    int64_t rounds = rounds_of(l), all = rounds * l->steps * l->n, steady = 0;
    double common_s = middle(t->reference_s, NULL, 1, all, some), sum = 0;

    for (int k = 0; k < t->trainings; k++)
        steady += t->steady[k];
    for (int64_t i = 0; i < l->steps; i++)
        sum +=
            middle(t->time_s + i * l->n, t->reference_s + i * l->n, l->steps * l->n, rounds, some);
    for (int k = 0; k < l->n; k++) {
        struct dt_loop_layout *x = &l->layout[k];

        x->measured_s = common_s * sum / (double)l->steps / x->gain_measured.gain;
        x->drift.reference_s = l->card ? 0 : common_s;
        x->drift.steady = (double)steady / (double)all;
        x->drift.foreign = l->foreign_max;
    }
}

static void compare_ranks(struct dt_loop *l, double *some)
{
    int64_t steps = rounds_of(l) * l->steps * l->n;
    int ranks = l->layout[0].ranks;
    double least = INFINITY, most = 0;

    for (int r = 0; r < ranks && !l->card; r++) {
        double m = middle(l->turns.rank_s + r, l->turns.rank_s, ranks, steps, some);

        least = fmin(least, m);
        most = fmax(most, m);
    }
    l->turns.apart = l->card ? 0 : most / least - 1;
}

static enum dt_status measured(struct dt_loop *l, struct dt_error *err)
{
    const struct dt_fit_turns t = {.rounds = (int)rounds_of(l),
                                   .steps = (int)l->steps,
                                   .orders = l->n,
                                   .time_s = l->turns.time_s,
                                   .reference_s = l->turns.reference_s};
    struct dt_fit_gain gain[DT_WAY_N];
    double *some = dt_calloc((size_t)(rounds_of(l) * l->steps * l->n), sizeof(*some));
    enum dt_status st;

    if (!some)
        return dt_error_nomem(err, "rounds");
    st = dt_fit_gains(&t, err, gain);
    for (int k = 0; k < l->n && st == DT_OK; k++)
        l->layout[k].gain_measured = gain[k];
    if (st == DT_OK) {
        take_times(l, some);
        compare_ranks(l, some);
    }
    dt_free(some);
    return st;
}

/* With the profile that came last, all orders; a gain is known by how the profiles' gains differ. */
static enum dt_status simulate(struct dt_loop *l, struct dt_error *err)
{
    int pass = l->passes - 1;

    for (int k = 0; k < l->n; k++) {
        struct dt_loop_layout *x = &l->layout[k];
        double gain[LOOP_PASSES_MAX];

        DT_TRY(dt_loop_predict(l, x, pass, err, &x->simulated_s[pass]));
        for (int p = 0; p < l->passes; p++)
            gain[p] = l->layout[0].simulated_s[p] / x->simulated_s[p];
        dt_fit_gain_mean(gain, l->passes, &x->gain_predicted);
    }
    return DT_OK;
}

/* The mean of the first order at the speed of the measured one, from which the others' follow by their gains, as the
 * measured ones do: what stands beside a gain divides to it. */
static void predicted_times(struct dt_loop *l)
{
    const struct dt_loop_layout *first = &l->layout[0];
    double mean_s = 0;

    for (int p = 0; p < l->passes; p++)
        mean_s +=
            dt_drift_move(first->simulated_s[p], &l->profile[p][first->threads], &first->drift) /
            l->passes;
    for (int k = 0; k < l->n; k++)
        l->layout[k].predicted_s = mean_s / l->layout[k].gain_predicted.gain;
}

/* Within what the least known of all gains is known. */
static double measured_within(const struct dt_loop *l)
{
    double most = 0;

    for (int k = 1; k < l->n; k++)
        most = fmax(most, l->layout[k].gain_measured.within);
    return most;
}

static double predicted_within(const struct dt_loop *l)
{
    double most = 0;

    for (int k = 1; k < l->n; k++)
        most = fmax(most, l->layout[k].gain_predicted.within);
    return most;
}

static struct dt_fit_apart apart(const struct dt_loop *l, int k)
{
    return dt_fit_gain_apart(&l->layout[k].gain_predicted, &l->layout[k].gain_measured);
}

/* The order whose predicted and measured gains are farthest from being known, and the one whose are farthest apart. */
static void worst(const struct dt_loop *l, int *known, int *far)
{
    *known = *far = l->n > 1;
    for (int k = 2; k < l->n; k++) {
        if (apart(l, k).within > apart(l, *known).within)
            *known = k;
        if (fabs(apart(l, k).apart) > fabs(apart(l, *far).apart))
            *far = k;
    }
}

static enum dt_status check_known(const struct dt_loop *l, struct dt_error *err)
{
    int k, far;

    if (l->anyway)
        return DT_OK;
    worst(l, &k, &far);
    if (apart(l, k).within > DT_FIT_GAIN_TARGET)
        return dt_error_set(
            err, DT_ERR_BUSY,
            "machine too busy: after %lld rounds and %d profiles the gain of '%s' is known within "
            "%.1f "
            "points measured and %.1f predicted, which says nothing about %.0f points; "
            "measure when other work has ended, or --anyway",
            (long long)rounds_of(l), l->passes, l->layout[k].name,
            100 * l->layout[k].gain_measured.within, 100 * l->layout[k].gain_predicted.within,
            100 * DT_FIT_GAIN_TARGET);
    if (l->turns.apart > LOOP_RANKS_APART_MAX)
        return dt_error_set(
            err, DT_ERR_BUSY,
            "machine too busy: the cores of one rank are %.1f %% slower than those of "
            "another (at most %.0f %%), and predictions take them for alike; measure "
            "when other work has ended, or --anyway",
            100 * l->turns.apart, 100 * LOOP_RANKS_APART_MAX);
    return DT_OK;
}

/* ---- all of it ---- */

static void progress(const struct dt_loop *l, const char *what)
{
    if (l->turns.trainings == 0)
        dt_cli_progress_line("%s", what);
    else
        dt_cli_progress_line(
            "%s  %lld rounds  gains known within %.1f points measured, %.1f predicted", what,
            (long long)rounds_of(l), 100 * measured_within(l), 100 * predicted_within(l));
}

static enum dt_status train(struct dt_loop *l, struct dt_error *err)
{
    struct dt_drift drift;

    progress(l, "training in turns");
    DT_TRY(dt_loop_watched(l, "orders of samples", train_once, NULL, err, &drift));
    l->turns.trainings++;
    return measured(l, err);
}

static enum dt_status profile(struct dt_loop *l, struct dt_error *err)
{
    progress(l, "measuring blocks");
    DT_TRY(dt_loop_profile_all(l, err));
    return simulate(l, err);
}

/* Profiles before and after each training, more trainings until the measured gains are known and more profiles until the
 * predicted ones are. */
static enum dt_status measure(struct dt_loop *l, struct dt_error *err)
{
    const struct dt_loop_turns *t = &l->turns;

    DT_TRY(profile(l, err));
    while (t->trainings < LOOP_TRAININGS_MIN || (t->trainings < LOOP_TRAININGS_MAX && !l->anyway &&
                                                 measured_within(l) > DT_FIT_GAIN_AIM)) {
        DT_TRY(train(l, err));
        DT_TRY(profile(l, err));
    }
    while (l->passes < LOOP_PASSES_MAX && !l->anyway && predicted_within(l) > DT_FIT_GAIN_AIM)
        DT_TRY(profile(l, err));
    return DT_OK;
}

/* With --runs, once more each by itself: its last step is what is kept. */
static enum dt_status keep_runs(struct dt_loop *l, struct dt_error *err)
{
    for (int k = 0; k < l->n && l->runs; k++) {
        struct dt_loop_layout *x = &l->layout[k];
        struct dt_loop_layout own = *x;
        struct dt_drift drift;
        enum dt_status st;

        dt_cli_progress(x->name, k + 1, l->n);
        x->step_s = dt_calloc((size_t)l->steps, sizeof(double));
        if (!x->step_s)
            return dt_error_nomem(err, "steps");
        st = dt_loop_measure(l, x, err, &drift);
        dt_free(x->step_s);
        *x = own;
        DT_TRY(st);
    }
    return DT_OK;
}

enum dt_status dt_loop_run_orders(struct dt_loop *l, struct dt_error *err)
{
    DT_TRY(room_for_training(l, err));
    DT_TRY(measure(l, err));
    predicted_times(l);
    DT_TRY(check_known(l, err));
    DT_TRY(keep_runs(l, err));
    dt_cli_progress_end();
    return DT_OK;
}

/* ---- results ---- */

static void cell_of_gain(struct dt_cli_rows *r, const char *head, const struct dt_fit_gain *g,
                         int k)
{
    if (k == 0)
        dt_cli_row_cell(r, head, "-");
    else
        dt_cli_row_cell(r, head, "%.3f ± %.3f", g->gain, g->within);
}

void dt_loop_row_order(struct dt_cli_rows *r, const struct dt_loop *l, int k)
{
    const struct dt_loop_layout *x = &l->layout[k];
    struct dt_fit_apart d = apart(l, k);

    dt_cli_row_number(r, "gain_predicted", NULL, NULL, 1, x->gain_predicted.gain);
    dt_cli_row_number(r, "gain_predicted_within", NULL, NULL, 1, x->gain_predicted.within);
    dt_cli_row_number(r, "gain_measured", NULL, NULL, 1, x->gain_measured.gain);
    dt_cli_row_number(r, "gain_measured_within", NULL, NULL, 1, x->gain_measured.within);
    dt_cli_row_number(r, "gain_apart", NULL, NULL, 1, d.apart);
    dt_cli_row_number(r, "gain_apart_within", NULL, NULL, 1, d.within);
    cell_of_gain(r, "gain predicted", &x->gain_predicted, k);
    cell_of_gain(r, "gain measured", &x->gain_measured, k);
    if (k == 0)
        dt_cli_row_cell(r, "apart [points]", "-");
    else
        dt_cli_row_cell(r, "apart [points]", "%+.1f ± %.1f", 100 * d.apart, 100 * d.within);
}

void dt_loop_print_orders(const struct dt_loop *l)
{
    int known, far;

    printf("%lld rounds in %d trainings: each step in all orders, one right after the other\n",
           (long long)rounds_of(l), l->turns.trainings);
    if (l->layout[0].ranks > 1 && !l->card)
        printf("the cores of one rank were %.1f %% slower than those of another\n",
               100 * l->turns.apart);
    if (l->n < 2)
        return;
    printf("times of '%s' are %s; the others' follow from its by their gains\n", l->layout[0].name,
           l->card ? "as they were"
                   : "brought to one speed in proportion to the reference kernel's");
    worst(l, &known, &far);
    printf("predicted and measured gains are %.1f points apart at most, known within %.1f\n",
           100 * fabs(apart(l, far).apart), 100 * apart(l, known).within);
    if (apart(l, known).within > DT_FIT_GAIN_TARGET) /* --anyway */
        printf("the machine was too busy to say whether they are within %.0f points\n",
               100 * DT_FIT_GAIN_TARGET);
}

void dt_loop_json_orders(const struct dt_loop *l, struct dt_json *j)
{
    dt_json_kv_int(j, "rounds", rounds_of(l));
    dt_json_kv_int(j, "trainings", l->turns.trainings);
    dt_json_kv_double(j, "ranks_apart", l->turns.apart);
}

enum dt_status dt_loop_check_orders(const struct dt_loop *l, struct dt_error *err)
{
    for (int k = 1; k < l->n; k++) {
        const struct dt_loop_layout *x = &l->layout[k];
        struct dt_fit_apart d = apart(l, k);

        if (dt_fit_gain_missed(&d))
            return dt_error_set(err, DT_ERR_TOLERANCE,
                                "the gain of '%s' is predicted %.1f points too %s: %.3f, measured "
                                "%.3f; more than %.0f points, and known within %.1f",
                                x->name, 100 * fabs(d.apart), d.apart < 0 ? "low" : "high",
                                x->gain_predicted.gain, x->gain_measured.gain,
                                100 * DT_FIT_GAIN_TARGET, 100 * d.within);
    }
    return DT_OK;
}
