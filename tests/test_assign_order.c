/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * LPT, and the order of microbatches on a chain of stages. */
#include "core/schedule/assign.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

enum { ROUNDS = 300 };

/* ---- LPT ---- */

/* Least possible largest load, by trying everything (bins are alike: item i opens at most one new).
 */
static double best_load(const double *cost, int n, int k, int i, int open, double *load)
{
    double best = INFINITY;
    if (i == n) {
        double worst = 0;
        for (int b = 0; b < k; b++)
            worst = fmax(worst, load[b]);
        return worst;
    }
    for (int b = 0; b < k && b <= open; b++) {
        load[b] += cost[i];
        best = fmin(best, best_load(cost, n, k, i + 1, b == open ? open + 1 : open, load));
        load[b] -= cost[i];
    }
    return best;
}

START_TEST(lpt_keeps_grahams_bound)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    dt_rng_init(&r, seed, 1);
    double worst = 0;
    for (int t = 0; t < ROUNDS; t++) {
        int k = 2 + (int)dt_rng_below(&r, 3), n = k + (int)dt_rng_below(&r, 7), bin[16];
        double cost[16], load[4] = {0}, check[4] = {0}, got = -1;
        for (int i = 0; i < n; i++)
            cost[i] = t % 2 ? 0.7 + dt_rng_uniform(&r) : exp(1.3 * dt_rng_normal(&r));
        double opt = best_load(cost, n, k, 0, 0, load);
        ck_assert_int_eq(dt_assign_lpt(cost, n, k, false, bin, &got), DT_OK);
        double top = 0;
        for (int i = 0; i < n; i++) {
            ck_assert(bin[i] >= 0 && bin[i] < k);
            check[bin[i]] += cost[i];
        }
        for (int b = 0; b < k; b++)
            top = fmax(top, check[b]);
        ck_assert_double_eq_tol(top, got, 1e-9 * top);
        ck_assert_msg(got <= (4.0 / 3 - 1.0 / (3 * k)) * opt * (1 + 1e-12),
                      "seed %" PRIu64 " round %d: %g over %g", seed, t, got, opt);
        ck_assert_double_ge(got, opt * (1 - 1e-12));
        worst = fmax(worst, got / opt);
    }
    ck_assert_double_gt(worst, 1.01); /* the bound was put to the test */
}
END_TEST

/* The classical worst case: 2k+1 items 2k-1, 2k-1, 2k-2, ..., k, k, k. */
START_TEST(lpt_bound_is_tight)
{
    enum { K = 5 };
    double cost[2 * K + 1], got;
    int bin[2 * K + 1], n = 0;
    for (int v = 2 * K - 1; v >= K; v--)
        for (int twice = 0; twice < 2 && n < 2 * K; twice++)
            cost[n++] = v;
    cost[n++] = K;
    ck_assert_int_eq(dt_assign_lpt(cost, n, K, false, bin, &got), DT_OK);
    ck_assert_double_eq_tol(got, 4 * K - 1, 1e-12);
}
END_TEST

START_TEST(lpt_equal_cardinality)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    dt_rng_init(&r, seed, 2);
    for (int t = 0; t < ROUNDS; t++) {
        int k = 1 + (int)dt_rng_below(&r, 24), n = (int)dt_rng_below(&r, 200), bin[200];
        int count[24] = {0}, least = n, most = 0;
        double cost[200], got, sum = 0;
        for (int i = 0; i < n; i++)
            sum += cost[i] = exp(0.8 * dt_rng_normal(&r));
        ck_assert_int_eq(dt_assign_lpt(cost, n, k, true, bin, &got), DT_OK);
        for (int i = 0; i < n; i++)
            count[bin[i]]++;
        for (int b = 0; b < k; b++) {
            least = count[b] < least ? count[b] : least;
            most = count[b] > most ? count[b] : most;
        }
        ck_assert_int_le(most, (n + k - 1) / k);
        if (n % k == 0)
            ck_assert_int_eq(least, most);
        ck_assert_double_ge(got, sum / k * (1 - 1e-12));
    }
}
END_TEST

START_TEST(lpt_ties_go_to_the_lowest_bin)
{
    const double cost[] = {2, 2, 2, 2, 0, 0};
    static const int equal[] = {0, 1, 2, 0, 1, 2}, any[] = {0, 1, 2, 0, 1, 1};
    int bin[6];
    double got;
    ck_assert_int_eq(dt_assign_lpt(cost, 6, 3, true, bin, &got), DT_OK);
    ck_assert_mem_eq(bin, equal, sizeof(bin));
    ck_assert_int_eq(dt_assign_lpt(cost, 6, 3, false, bin, &got), DT_OK);
    ck_assert_mem_eq(bin, any, sizeof(bin));
    ck_assert_double_eq(got, 4);
    ck_assert_int_eq(dt_assign_lpt(cost, 6, 0, false, bin, &got), DT_ERR_INTERNAL);
}
END_TEST

/* ---- the chain ---- */

/* 1F1B written plainly: lists of operations per stage, run until all are done. */
static double plain_1f1b(const struct dt_assign_chain *c, const int *order)
{
    int p = c->p, n = c->n;
    double *fe = calloc((size_t)(p * n), sizeof(*fe)), *be = calloc((size_t)(p * n), sizeof(*be));
    double *now = calloc((size_t)p, sizeof(*now)), last = 0;
    int *nf = calloc((size_t)p, sizeof(*nf)), *nb = calloc((size_t)p, sizeof(*nb));
    for (int left = 2 * p * n; left > 0;) {
        int before = left;
        for (int s = 0; s < p; s++) {
            int warm = p - 1 - s < n ? p - 1 - s : n;
            bool forward = nf[s] < warm || (nf[s] < n && nf[s] - warm == nb[s]);
            int q = forward ? nf[s] : nb[s];
            if (q >= n)
                continue;
            double ready = 0;
            if (forward && s > 0) {
                if (nf[s - 1] <= q)
                    continue;
                ready = fe[(s - 1) * n + q];
            } else if (!forward && s < p - 1) {
                if (nb[s + 1] <= q)
                    continue;
                ready = be[(s + 1) * n + q];
            }
            now[s] = fmax(now[s], ready) + (forward ? c->fwd : c->bwd)[s * n + order[q]];
            (forward ? fe : be)[s * n + q] = now[s];
            (forward ? nf : nb)[s]++;
            last = fmax(last, now[s]);
            left--;
        }
        ck_assert_int_lt(left, before);
    }
    free(fe);
    free(be);
    free(now);
    free(nf);
    free(nb);
    return last;
}

struct random_chain {
    double fwd[16 * 80], bwd[16 * 80];
    struct dt_assign_chain c;
};

/* Encoder first, generator last, the LLM's stages alike; backward = 2 x forward. */
static void make_chain(struct random_chain *x, struct dt_rng *r, int p, int n, double spread)
{
    double enc = 0.4 + 1.2 * dt_rng_uniform(r), gen = 0.4 + 1.2 * dt_rng_uniform(r);
    for (int i = 0; i < n; i++) {
        double e = enc * exp(spread * dt_rng_normal(r)), g = gen * exp(spread * dt_rng_normal(r));
        for (int s = 0; s < p; s++) {
            x->fwd[s * n + i] = s == 0 ? e : s == p - 1 ? g : 1.037;
            x->bwd[s * n + i] = 2 * x->fwd[s * n + i];
        }
    }
    x->c = (struct dt_assign_chain){p, n, x->fwd, x->bwd};
}

START_TEST(chain_equals_the_plain_schedule)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    dt_rng_init(&r, seed, 3);
    for (int t = 0; t < ROUNDS; t++) {
        static struct random_chain x;
        int p = 1 + (int)dt_rng_below(&r, 9), n = 1 + (int)dt_rng_below(&r, 40), order[40];
        for (int k = 0; k < p * n; k++) {
            x.fwd[k] = exp(dt_rng_normal(&r));
            x.bwd[k] = dt_rng_below(&r, 5) ? exp(dt_rng_normal(&r)) : 0;
        }
        for (int i = 0; i < n; i++)
            order[i] = i;
        for (int i = n - 1; i > 0; i--) {
            int k = (int)dt_rng_below(&r, (uint64_t)i + 1), o = order[i];
            order[i] = order[k];
            order[k] = o;
        }
        x.c = (struct dt_assign_chain){p, n, x.fwd, x.bwd};
        double want = plain_1f1b(&x.c, order), got = dt_assign_chain_makespan(&x.c, order);
        ck_assert_msg(fabs(got - want) <= 1e-12 * want,
                      "seed %" PRIu64 " round %d p %d n %d: %g %g", seed, t, p, n, got, want);
    }
}
END_TEST

START_TEST(chain_of_uniform_stages_is_closed_form)
{
    static struct random_chain x;
    int order[80];
    for (int i = 0; i < 80; i++)
        order[i] = i;
    for (int p = 1; p <= 16; p++)
        for (int n = p; n <= 80; n += 13) {
            for (int k = 0; k < p * n; k++) {
                x.fwd[k] = 2.385;
                x.bwd[k] = 4.117;
            }
            x.c = (struct dt_assign_chain){p, n, x.fwd, x.bwd};
            double want = (n + p - 1) * (2.385 + 4.117);
            ck_assert_double_eq_tol(dt_assign_chain_makespan(&x.c, order), want, 1e-12 * want);
        }
}
END_TEST

/* Real 1F1B over the one-microbatch formula T_warmup + T_steady, first stage `factor` times the
 * rest, backward = 2 x forward, no communication. */
static double over_formula(int p, int n, int slow, double factor)
{
    static struct random_chain x;
    int order[80];
    double warm = 0;
    ck_assert(p * n <= 16 * 80 && n <= 80);
    for (int s = 0; s < p; s++) {
        double f = s == slow ? factor : 1;
        warm += 3 * f;
        for (int i = 0; i < n; i++) {
            x.fwd[s * n + i] = f;
            x.bwd[s * n + i] = 2 * f;
        }
    }
    for (int i = 0; i < n; i++)
        order[i] = i;
    x.c = (struct dt_assign_chain){p, n, x.fwd, x.bwd};
    return dt_assign_chain_makespan(&x.c, order) / (warm + 3 * factor * (n - 1));
}

/* Derived ratios, known to three digits; a first stage twice as slow as the others gives them. */
START_TEST(formula_overestimates_as_derived)
{
    ck_assert_double_eq_tol(over_formula(4, 8, 0, 2), 0.895, 0.0006);
    ck_assert_double_eq_tol(over_formula(8, 32, 0, 2), 0.934, 0.0006);
    ck_assert_double_eq_tol(over_formula(12, 64, 0, 2), 0.947, 0.0006);
    ck_assert_double_eq_tol(over_formula(8, 32, 7, 2), 1, 1e-12); /* last-stage bottleneck: exact */
    ck_assert_double_eq_tol(over_formula(8, 32, 0, 1), 1, 1e-12); /* uniform: exact */
}
END_TEST

START_TEST(order_is_never_worse)
{
    static const int shapes[][2] = {{1, 7}, {2, 2}, {4, 3}, {4, 8}, {6, 32}, {12, 32}, {12, 80}};
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    dt_rng_init(&r, seed, 4);
    double all = 0;
    int count = 0;
    for (size_t k = 0; k < sizeof(shapes) / sizeof(*shapes); k++) {
        int p = shapes[k][0], n = shapes[k][1];
        double gain = 0, most = 0;
        for (int t = 0; t < ROUNDS; t++) {
            static struct random_chain x;
            int order[80], given[80], seen[80] = {0};
            double before = 0, after = 0;
            make_chain(&x, &r, p, n, 0.5);
            ck_assert_int_eq(dt_assign_inter_order(&x.c, order, &before, &after), DT_OK);
            for (int i = 0; i < n; i++) {
                given[i] = i;
                ck_assert(order[i] >= 0 && order[i] < n && !seen[order[i]]++);
            }
            ck_assert_double_eq(before, dt_assign_chain_makespan(&x.c, given));
            ck_assert_double_eq_tol(after, dt_assign_chain_makespan(&x.c, order), 1e-12 * after);
            ck_assert_msg(after <= before, "seed %" PRIu64 " p %d n %d round %d", seed, p, n, t);
            gain += before / after;
            most = fmax(most, before / after);
        }
        printf("inter order: p %d n %d: mean gain %.4f, largest %.4f over %d chains\n", p, n,
               gain / ROUNDS, most, ROUNDS);
        if (p > 1 && n > p) {
            all += gain / ROUNDS;
            count++;
        }
    }
    ck_assert_double_gt(all / count, 1.01);
}
END_TEST

/* The smallest microbatch opens, the p-1 next smallest close, when the algorithm's order wins. */
START_TEST(order_puts_the_smallest_at_the_ends)
{
    enum { P = 4, N = 12 };
    static struct random_chain x;
    int order[N], rank[N];
    double before, after;
    static const double e[N] = {2.9, 0.7, 1.9, 2.3, 0.5, 1.1, 2.7, 0.9, 1.7, 2.1, 1.3, 0.6};
    for (int i = 0; i < N; i++) {
        rank[i] = 0;
        for (int k = 0; k < N; k++)
            rank[i] += e[k] < e[i];
        for (int s = 0; s < P; s++) {
            x.fwd[s * N + i] = s == 0 ? e[i] : 1.5;
            x.bwd[s * N + i] = 2 * x.fwd[s * N + i];
        }
    }
    x.c = (struct dt_assign_chain){P, N, x.fwd, x.bwd};
    ck_assert_int_eq(dt_assign_inter_order(&x.c, order, &before, &after), DT_OK);
    ck_assert_double_lt(after, before);
    ck_assert_int_eq(rank[order[0]], 0);
    for (int q = N - P + 1; q < N; q++)
        ck_assert_int_eq(rank[order[q]], N - q);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("assign_order");
    TCase *c = dt_test_case(s, "order", 60);

    tcase_add_test(c, lpt_keeps_grahams_bound);
    tcase_add_test(c, lpt_bound_is_tight);
    tcase_add_test(c, lpt_equal_cardinality);
    tcase_add_test(c, lpt_ties_go_to_the_lowest_bin);
    tcase_add_test(c, chain_equals_the_plain_schedule);
    tcase_add_test(c, chain_of_uniform_stages_is_closed_form);
    tcase_add_test(c, formula_overestimates_as_derived);
    tcase_add_test(c, order_is_never_worse);
    tcase_add_test(c, order_puts_the_smallest_at_the_ends);
    return dt_test_run(s);
}
