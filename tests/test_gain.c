/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Gains from times taken in turns: a synthetic machine whose speed drifts and flips, whose steps are interrupted now and
 * then, and whose reference kernel follows it more or less; the true gains are known. */
#include "fit/gain.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

enum { ROUNDS_MAX = 16, STEPS = 8, ORDERS = 5, PARTS = 10 };

struct machine {
    const char *name;
    double flip;                   /* speeds are 1 and this */
    double hold;                   /* steps that it keeps one of them, on average */
    double drift;                  /* of the logarithm of its speed, over all */
    double noise, reference_noise; /* of a step, of the kernel: standard deviations of logarithms */
    double outliers;               /* share of steps that take a third longer on average */
    double follows; /* exponent with which a step's time follows the speed that the kernel has */
    int worse;      /* order that takes all outliers; -1: any */
};

static const struct machine machines[] = {
    {"quiet", 1, 1e9, 0, 0.01, 0.02, 0, 1, -1},
    {"drifting", 1, 1e9, 0.6, 0.02, 0.02, 0, 1, -1},
    {"flipping within steps", 1.4, 1, 0, 0.02, 0.02, 0, 1, -1},
    {"flipping within seconds", 1.4, 4, 0.3, 0.02, 0.02, 0.02, 1, -1},
    {"flipping within rounds", 1.4, 30, 0.3, 0.02, 0.02, 0.02, 1, -1},
    {"interrupted", 1.4, 10, 0, 0.02, 0.02, 0.1, 1, -1},
    {"interrupted in one order", 1, 1e9, 0, 0.02, 0.02, 0.02, 1, 2},
    {"following by half", 1.4, 6, 0.2, 0.02, 0.03, 0.02, 0.5, -1},
    {"noisy", 1.4, 2, 0.3, 0.06, 0.04, 0.1, 0.8, -1},
};
enum { MACHINES = sizeof(machines) / sizeof(*machines) };

struct world {
    struct dt_rng rng;
    double time_s[ROUNDS_MAX][STEPS][ORDERS], reference_s[ROUNDS_MAX][STEPS][ORDERS];
    double gain[ORDERS]; /* the true ones */
    double speed;
    int64_t at, all; /* parts of steps */
};

/* The speed of the next part of a step. */
static double next_speed(struct world *w, const struct machine *m)
{
    if (dt_rng_uniform(&w->rng) < 1 - exp(-1 / (PARTS * m->hold)))
        w->speed = w->speed > 1 ? 1 : m->flip;
    return w->speed * exp(m->drift * (double)w->at++ / (double)w->all);
}

static void measure(struct world *w, const struct machine *m, double true_s, bool may_be_outlier,
                    double *time_s, double *reference_s)
{
    double sum = 0, first = 0, last = 0;

    for (int p = 0; p < PARTS; p++) {
        last = next_speed(w, m);
        first = p == 0 ? last : first;
        sum += pow(last, m->follows) / PARTS;
    }
    *time_s = true_s * sum * exp(m->noise * dt_rng_normal(&w->rng));
    if (may_be_outlier && dt_rng_uniform(&w->rng) < m->outliers)
        *time_s *= 1 - log(dt_rng_uniform(&w->rng)) / 3;
    *reference_s = 1e-3 * sqrt(first * last) * exp(m->reference_noise * dt_rng_normal(&w->rng));
}

static void make(struct world *w, const struct machine *m, int rounds, uint64_t stream)
{
    double true_s[STEPS][ORDERS], sum[ORDERS] = {0}, gain[ORDERS];

    dt_rng_init(&w->rng, dt_test_seed(), stream);
    for (int k = 0; k < ORDERS; k++)
        gain[k] = k ? 0.15 * dt_rng_uniform(&w->rng) : 0;
    for (int i = 0; i < STEPS; i++) {
        double size = 0.15 * dt_rng_normal(&w->rng);

        for (int k = 0; k < ORDERS; k++)
            sum[k] += true_s[i][k] = exp(size - gain[k] + 0.02 * dt_rng_normal(&w->rng));
    }
    for (int k = 0; k < ORDERS; k++)
        w->gain[k] = sum[0] / sum[k];
    w->speed = 1;
    w->at = 0;
    w->all = (int64_t)rounds * STEPS * ORDERS * PARTS;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < STEPS; i++)
            for (int p = 0; p < ORDERS; p++) { /* as exec/train/turns.h has it */
                int k = ((r % 2 ? ORDERS - 1 - p : p) + i) % ORDERS;

                measure(w, m, true_s[i][k], m->worse < 0 || m->worse == k, &w->time_s[r][i][k],
                        &w->reference_s[r][i][k]);
            }
}

static void gains_of(const struct world *w, int rounds, bool with_reference,
                     struct dt_fit_gain *out)
{
    struct dt_fit_turns t = {rounds, STEPS, ORDERS, w->time_s[0][0],
                             with_reference ? w->reference_s[0][0] : NULL};
    struct dt_error err;

    dt_assert_ok(dt_fit_gains(&t, &err, out), err);
}

struct score {
    int n, right;
    double within, square; /* sums: of half-widths, of errors squared */
};

static void judge(const struct machine *m, int rounds, int draws, bool with_reference,
                  struct score *s)
{
    static struct world w;

    for (int d = 0; d < draws; d++) {
        struct dt_fit_gain g[ORDERS];

        make(&w, m, rounds, (uint64_t)(d + 1000 * (m - machines)));
        gains_of(&w, rounds, with_reference, g);
        ck_assert(g[0].gain == 1 && g[0].within == 0);
        for (int k = 1; k < ORDERS; k++) {
            double e = g[k].gain - w.gain[k];

            s->n++;
            s->right += fabs(e) <= g[k].within;
            s->within += g[k].within;
            s->square += e * e;
        }
    }
}

/* The true gain lies within what is said as often as is said. */
START_TEST(true_gains_are_found)
{
    struct score all = {0};

    printf("seed %" PRIu64 "\n", dt_test_seed());
    for (int rounds = 8; rounds <= ROUNDS_MAX; rounds += 4)
        for (int i = 0; i < MACHINES; i++) {
            struct score s = {0};

            judge(&machines[i], rounds, 80, true, &s);
            printf("%2d rounds, %-24s right %.3f, within %.2f points, error %.2f\n", rounds,
                   machines[i].name, (double)s.right / s.n, 100 * s.within / s.n,
                   100 * sqrt(s.square / s.n));
            all.n += s.n;
            all.right += s.right;
            ck_assert_msg(s.right >= 0.9 * s.n, "%s: %d of %d", machines[i].name, s.right, s.n);
        }
    ck_assert_msg(all.right >= 0.95 * all.n, "%d of %d", all.right, all.n);
}
END_TEST

/* How many of 100 draws are refused, as loop --orders does it, and how many gains are let through and beyond the target. */
static void judge_refusals(const struct machine *m, int *refused, int *wrong)
{
    static struct world w;

    *refused = *wrong = 0;
    for (int d = 0; d < 100; d++) {
        struct dt_fit_gain g[ORDERS];
        double most = 0;

        make(&w, m, 8, (uint64_t)d + 100000);
        gains_of(&w, 8, true, g);
        for (int k = 1; k < ORDERS; k++)
            most = fmax(most, g[k].within);
        *refused += most > DT_FIT_GAIN_TARGET;
        for (int k = 1; k < ORDERS && most <= DT_FIT_GAIN_TARGET; k++)
            *wrong += fabs(g[k].gain - w.gain[k]) > DT_FIT_GAIN_TARGET;
    }
}

START_TEST(what_is_not_known_is_refused)
{
    static const struct machine wild = {"wild", 2.2, 0.7, 0.5, 0.12, 0.1, 0.3, 0.6, -1};
    int refused, wrong;

    judge_refusals(&wild, &refused, &wrong);
    ck_assert_msg(refused >= 95, "%d of 100 refused", refused);
    for (int i = 0; i < MACHINES; i++) {
        judge_refusals(&machines[i], &refused, &wrong);
        ck_assert_msg(wrong <= 0.05 * 100 * (ORDERS - 1), "%s: %d wrong", machines[i].name, wrong);
    }
    judge_refusals(&machines[0], &refused, &wrong);
    ck_assert_msg(refused == 0 && wrong == 0, "quiet: %d refused, %d wrong", refused, wrong);
}
END_TEST

#define ck_near(a, b) ck_assert_msg(fabs((a) - (b)) < 1e-9, "%.15g, not %.15g", a, b)

/* Whatever the speed does, if all orders of a step have it, or the kernel has it exactly, nothing of it is left. */
START_TEST(a_speed_that_is_known_does_not_count)
{
    static const struct machine exact = {"exact", 1, 1e9, 0, 0, 0, 0, 1, -1};
    static struct world w;
    struct dt_fit_gain g[ORDERS];

    make(&w, &exact, 8, 7);
    for (int r = 0; r < 8; r++)
        for (int i = 0; i < STEPS; i++) {
            double f = exp(0.3 * dt_rng_normal(&w.rng));

            for (int k = 0; k < ORDERS; k++)
                w.time_s[r][i][k] *= f;
        }
    gains_of(&w, 8, false, g);
    for (int k = 0; k < ORDERS; k++) {
        /* the levels of steps, which weigh them, are medians of rounds */
        ck_assert_msg(fabs(g[k].gain - w.gain[k]) < 0.01, "%g, not %g", g[k].gain, w.gain[k]);
    }
    make(&w, &exact, 8, 8);
    for (int r = 0; r < 8; r++)
        for (int i = 0; i < STEPS; i++)
            for (int k = 0; k < ORDERS; k++) {
                double f = exp(dt_rng_normal(&w.rng));

                w.time_s[r][i][k] *= f;
                w.reference_s[r][i][k] *= f;
            }
    gains_of(&w, 8, true, g);
    for (int k = 0; k < ORDERS; k++) {
        ck_near(g[k].gain, w.gain[k]);
        ck_near(g[k].within, 0.);
    }
}
END_TEST

/* A step that takes ten times as long would shift a mean of 8 rounds of 8 steps by 14 %. */
START_TEST(one_step_that_hangs_counts_for_little)
{
    static const struct machine quiet = {"quiet", 1, 1e9, 0, 0.01, 0.01, 0, 1, -1};
    static struct world w;
    struct dt_fit_gain before[ORDERS], after[ORDERS];

    make(&w, &quiet, 8, 9);
    gains_of(&w, 8, true, before);
    w.time_s[3][4][2] *= 10;
    gains_of(&w, 8, true, after);
    for (int k = 1; k < ORDERS; k++)
        ck_assert_msg(fabs(after[k].gain - before[k].gain) < 0.004, "%g, then %g", before[k].gain,
                      after[k].gain);
}
END_TEST

START_TEST(one_round_says_nothing_of_noise)
{
    static const struct machine quiet = {"quiet", 1, 1e9, 0, 0.01, 0.01, 0, 1, -1};
    static struct world w;
    struct dt_fit_gain g[ORDERS];

    make(&w, &quiet, 1, 10);
    gains_of(&w, 1, true, g);
    ck_assert(g[0].within == 0 && isinf(g[1].within));
    ck_assert(fabs(g[1].gain - w.gain[1]) < 0.05);
}
END_TEST

/* Student's factor, from normal numbers alone: the mean of n lies within what is said in 95 of 100 draws. */
START_TEST(means_of_few_values)
{
    enum { DRAWS = 4000 };
    struct dt_fit_gain g;
    struct dt_rng rng;

    dt_fit_gain_mean((const double[]){1.25}, 1, &g);
    ck_assert(g.gain == 1.25 && isinf(g.within));
    dt_rng_init(&rng, dt_test_seed(), 1);
    for (int n = 2; n <= 6; n++) {
        int right = 0;

        for (int d = 0; d < DRAWS; d++) {
            double v[6];

            for (int i = 0; i < n; i++)
                v[i] = 1.1 * exp(0.01 * dt_rng_normal(&rng));
            dt_fit_gain_mean(v, n, &g);
            right += fabs(g.gain - 1.1) <= g.within;
        }
        ck_assert_msg(right > 0.935 * DRAWS && right < 0.965 * DRAWS, "%d values: %d of %d", n,
                      right, DRAWS);
    }
}
END_TEST

START_TEST(what_misses_the_target)
{
    struct dt_fit_gain p = {1.12, 0.003}, m = {1.16, 0.004};
    struct dt_fit_apart d = dt_fit_gain_apart(&p, &m);

    ck_near(d.apart, -0.04);
    ck_near(d.within, 0.005);
    ck_assert(dt_fit_gain_missed(&d)); /* 4 points, target 3, known within 0.5 */
    m.gain = 1.154;
    d = dt_fit_gain_apart(&p, &m);
    ck_assert(!dt_fit_gain_missed(&d)); /* may be within it */
    m.gain = 1.12;
    d = dt_fit_gain_apart(&p, &m);
    ck_assert(!dt_fit_gain_missed(&d));
}
END_TEST

int main(void)
{
    Suite *u = suite_create("gain");
    TCase *c = dt_test_case(u, "gain", 60);

    tcase_add_test(c, true_gains_are_found);
    tcase_add_test(c, what_is_not_known_is_refused);
    tcase_add_test(c, a_speed_that_is_known_does_not_count);
    tcase_add_test(c, one_step_that_hangs_counts_for_little);
    tcase_add_test(c, one_round_says_nothing_of_noise);
    tcase_add_test(c, means_of_few_values);
    tcase_add_test(c, what_misses_the_target);
    return dt_test_run(u);
}
