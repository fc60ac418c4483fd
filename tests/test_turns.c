/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Orders of samples in turns: which step is of which batch, round and order. */
#include "exec/train/turns.h"
#include "test_util.h"

enum { WARM_UP = 3, BATCHES = 10, ROUNDS = 4 };

static struct dt_train_turns turns(int n)
{
    struct dt_train_turns t = {.n = n, .warm_up = WARM_UP, .batches = BATCHES, .rounds = ROUNDS};

    return t;
}

/* Every batch of the warm-up once in every order, then every other batch once in every order of every round, each batch's orders
 * one behind the other. */
START_TEST(each_has_its_turn)
{
    for (int n = 1; n <= DT_WAY_N; n++) {
        struct dt_train_turns t = turns(n);
        int64_t steps = dt_train_turns_steps(&t);
        struct dt_train_turn a;

        ck_assert_int_eq(steps, n * (WARM_UP + BATCHES * ROUNDS));
        for (int64_t s = 0; s < steps; s += n) {
            int64_t batch = s / n < WARM_UP ? s / n : WARM_UP + (s / n - WARM_UP) % BATCHES,
                    round = s / n < WARM_UP ? -1 : (s / n - WARM_UP) / BATCHES;
            int seen = 0;

            for (int k = 0; k < n; k++) {
                dt_train_turn(&t, s + k, &a);
                ck_assert_int_eq(a.batch, batch);
                ck_assert_int_eq(a.round, round);
                seen |= 1 << a.order;
            }
            ck_assert_int_eq(seen, (1 << n) - 1);
        }
        dt_train_turn(&t, steps, &a); /* made ahead, for nobody */
        ck_assert_int_eq(a.batch, WARM_UP);
    }
}
END_TEST

/* Where a machine gets slower at a steady pace, no order takes longer than another in any pair of rounds. */
START_TEST(a_steady_drift_is_nobodys)
{
    for (int n = 2; n <= DT_WAY_N; n++) {
        struct dt_train_turns t = turns(n);
        int64_t sum[DT_WAY_N] = {0};

        for (int64_t s = n * WARM_UP; s < n * (WARM_UP + 2 * BATCHES); s++) {
            struct dt_train_turn a;

            dt_train_turn(&t, s, &a);
            sum[a.order] += s;
        }
        for (int k = 1; k < n; k++)
            ck_assert_int_eq(sum[k], sum[0]);
    }
}
END_TEST

/* Each order comes first as often as every other. */
START_TEST(places_change)
{
    struct dt_train_turns t = turns(5);
    int first[5] = {0};

    for (int64_t s = 5 * WARM_UP; s < dt_train_turns_steps(&t); s += 5) {
        struct dt_train_turn a;

        dt_train_turn(&t, s, &a);
        first[a.order]++;
    }
    for (int k = 0; k < 5; k++)
        ck_assert_int_eq(first[k], BATCHES * ROUNDS / 5);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("turns");
    TCase *c = dt_test_case(u, "turns", 60);

    tcase_add_test(c, each_has_its_turn);
    tcase_add_test(c, a_steady_drift_is_nobodys);
    tcase_add_test(c, places_change);
    return dt_test_run(u);
}
