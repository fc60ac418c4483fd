/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which rank stands for which GPU. */
#include "exec/program/placement.h"
#include "test_util.h"

#include <string.h>

static struct dt_error err;

/* Two modules: tp/pp/dp of each; placed one after the other, the wider one first. */
static struct dt_plan plan_of(bool colocated, const int a[3], const int b[3])
{
    struct dt_plan p = {.n_modules = 2, .colocated = colocated};
    struct dt_cluster c = {.nodes = 4, .gpus_per_node = 8};

    strcpy(p.module_names[0], "encoder");
    strcpy(p.module_names[1], "llm");
    p.modules[0].layout = (struct dt_plan_layout){a[0], 1, 1, a[1], 1, a[2], 1, 0};
    p.modules[1].layout = (struct dt_plan_layout){b[0], 1, 1, b[1], 1, b[2], 1, 0};
    dt_assert_ok(dt_plan_place(&p, &c, &err), err);
    return p;
}

START_TEST(one_rank_per_gpu)
{
    struct dt_plan p = plan_of(false, (int[]){1, 1, 3}, (int[]){2, 2, 1});
    struct dt_placement x;

    dt_assert_ok(dt_placement_init(&x, &p, 7, &err), err);
    ck_assert_int_eq(x.n_gpus, 7);
    ck_assert_int_eq(dt_placement_rank(&x, 1, 0, 0, 0), 0); /* the wider module lies first */
    ck_assert_int_eq(dt_placement_rank(&x, 1, 0, 0, 1), 1);
    ck_assert_int_eq(dt_placement_rank(&x, 1, 0, 1, 0), 2);
    ck_assert_int_eq(dt_placement_rank(&x, 1, 0, 1, 1), 3);
    for (int r = 0; r < 3; r++)
        ck_assert_int_eq(dt_placement_rank(&x, 0, r, 0, 0), 4 + r);
    ck_assert_int_eq(dt_placement_member(&x, 1, 0, 1, 3), 1);
    ck_assert_int_eq(dt_placement_member(&x, 1, 0, 1, 4), -1);
    dt_placement_free(&x);
}
END_TEST

/* An encoder of half a node is not in front of expert groups that fill nodes, but where its lanes are wider. */
START_TEST(experts_begin_with_a_node)
{
    for (int tp = 1; tp <= 2; tp++) {
        struct dt_plan p = plan_of(false, (int[]){tp, 1, 4 / tp}, (int[]){1, 2, 8});
        struct dt_cluster c = {.nodes = 4, .gpus_per_node = 8};

        ck_assert_int_eq(p.modules[0].layout.first_gpu, 0);
        ck_assert_int_eq(p.modules[1].layout.first_gpu, 4);
        p.modules[1].layout.ep = 8;
        dt_assert_ok(dt_plan_place(&p, &c, &err), err);
        ck_assert_int_eq(p.modules[0].layout.first_gpu, tp > 1 ? 0 : 16);
        ck_assert_int_eq(p.modules[1].layout.first_gpu, tp > 1 ? 4 : 0);
    }
}
END_TEST

START_TEST(neighbours_share_a_rank)
{
    struct dt_plan p = plan_of(false, (int[]){1, 1, 3}, (int[]){1, 2, 1});
    struct dt_placement x;
    int last = 0, seen = 0;

    dt_assert_ok(dt_placement_init(&x, &p, 2, &err), err);
    for (int g = 0; g < x.n_gpus; g++) {
        int r = dt_placement_gpu_rank(&x, x.gpu[g]);

        ck_assert(r == last || r == last + 1);
        seen |= 1 << r;
        last = r;
    }
    ck_assert_int_eq(seen, 3);
    dt_placement_free(&x);
}
END_TEST

START_TEST(colocated_modules_share_ranks)
{
    struct dt_plan p = plan_of(true, (int[]){1, 1, 4}, (int[]){2, 2, 1});
    struct dt_placement x;

    dt_assert_ok(dt_placement_init(&x, &p, 4, &err), err);
    ck_assert_int_eq(x.n_gpus, 4);
    for (int r = 0; r < 4; r++) {
        ck_assert_int_eq(dt_placement_rank(&x, 0, r, 0, 0), r);
        ck_assert_int_eq(dt_placement_member(&x, 1, 0, r / 2, r), r % 2);
    }
    dt_placement_free(&x);
}
END_TEST

/* GPUs that no module uses (lanes begin at multiples of their width) count for nothing. */
START_TEST(gaps_are_closed)
{
    struct dt_plan p = plan_of(false, (int[]){1, 1, 1}, (int[]){1, 1, 1});
    struct dt_placement x;

    p.modules[1].layout.first_gpu = 12;
    dt_assert_ok(dt_placement_init(&x, &p, 2, &err), err);
    ck_assert_int_eq(dt_placement_rank(&x, 0, 0, 0, 0) + dt_placement_rank(&x, 1, 0, 0, 0), 1);
    dt_placement_free(&x);
}
END_TEST

START_TEST(wrong_numbers_are_explained)
{
    struct dt_plan p = plan_of(false, (int[]){1, 1, 1}, (int[]){2, 1, 1});
    struct dt_placement x;

    ck_assert_int_eq(dt_placement_init(&x, &p, 4, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "4 ranks for a plan of 3 GPUs");
    ck_assert_int_eq(dt_placement_init(&x, &p, 1, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "tp 2");
    dt_assert_has(err.message, "start 3 ranks, not 1");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("placement");
    TCase *t = dt_test_case(s, "placement", 0);

    tcase_add_test(t, one_rank_per_gpu);
    tcase_add_test(t, experts_begin_with_a_node);
    tcase_add_test(t, neighbours_share_a_rank);
    tcase_add_test(t, colocated_modules_share_ranks);
    tcase_add_test(t, gaps_are_closed);
    tcase_add_test(t, wrong_numbers_are_explained);
    return dt_test_run(s);
}
