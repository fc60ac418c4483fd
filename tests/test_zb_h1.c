/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * ZB-H1 as a program: the paper's closed form, 1F1B's bounds, graphs of modules. */
#include "random_plan.h"

#include "core/schedule/timeline.h"

#include <stdio.h>

static struct sched_fixture s; /* large: not on the stack */

static int64_t span_of(int64_t f, int64_t b, int64_t w)
{
    int64_t fs[DT_MAX_VSTAGES], bs[DT_MAX_VSTAGES], ws[DT_MAX_VSTAGES], *ns, span;

    for (int v = 0; v < DT_MAX_VSTAGES; v++) {
        fs[v] = f;
        bs[v] = b;
        ws[v] = w;
    }
    ns = sf_split_durations(s.p, fs, bs, ws);
    span = sf_makespan(&s, ns);
    free(ns);
    return span;
}

/* Qi et al. 2024, section 2: (p - 1)(F + B - W) is idle where 1F1B has (p - 1)(F + B + W). */
START_TEST(the_bubble_is_the_papers)
{
    static const int64_t t[][3] = {{1000, 1000, 1000}, {1000, 1100, 900}, {700, 1900, 300}};

    for (int p = 1; p <= 8; p++)
        for (int n = p; n <= 3 * p + 1; n += p / 2 + 1)
            for (int k = 0; k < 3; k++) {
                int64_t f = t[k][0], b = t[k][1], w = t[k][2], zb;

                sf_llm_only(&s, p, 1, 2, n, DT_SCHED_ZB_H1);
                zb = span_of(f, b, w);
                ck_assert_int_eq(zb, n * (f + b + w) + (p - 1) * (f + b - w));
                sf_free(&s);
                sf_llm_only(&s, p, 1, 2, n, DT_SCHED_1F1B);
                ck_assert_int_eq(span_of(f, b + w, 0), (n + p - 1) * (f + b + w));
                sf_free(&s);
            }
}
END_TEST

/* Whatever the times and however few microbatches there are, it is never behind 1F1B. */
START_TEST(it_is_never_slower_on_equal_stages)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;

    dt_rng_init(&r, seed, 51);
    for (int c = 0; c < 200; c++) {
        int p = 1 + sf_below(&r, 6), n = 1 + sf_below(&r, 12);
        int64_t f = 1 + sf_below(&r, 1000), b = 1 + sf_below(&r, 1000), w = sf_below(&r, 1000), zb;

        sf_llm_only(&s, p, 1, 1, n, DT_SCHED_ZB_H1);
        zb = span_of(f, b, w);
        sf_free(&s);
        sf_llm_only(&s, p, 1, 1, n, DT_SCHED_1F1B);
        ck_assert_msg(zb <= span_of(f, b + w, 0), "seed %" PRIu64 " case %d: p %d n %d %d %d %d",
                      seed, c, p, n, (int)f, (int)b, (int)w);
        sf_free(&s);
    }
}
END_TEST

/* Between F and B as many as in 1F1B, between F and W as many as 1F1B's first stage holds. */
START_TEST(it_holds_what_1f1b_holds)
{
    for (int p = 1; p <= 6; p++)
        for (int n = 1; n <= 9; n++) {
            sf_llm_only(&s, p, 1, 1, n, DT_SCHED_ZB_H1);
            for (int l = 0; l < s.p->n_lanes; l++) {
                int to_b = 0, to_w = 0, most_b = 0, most_w = 0;

                for (uint32_t i = 0; i < s.p->lanes[l].n; i++) {
                    const struct dt_op *o = &s.p->ops[s.p->lanes[l].first + i];

                    to_b +=
                        (o->part == 0) * ((o->kind == DT_OP_FORWARD) - (o->kind == DT_OP_BACKWARD));
                    to_w += (o->part == 0) *
                            ((o->kind == DT_OP_FORWARD) - (o->kind == DT_OP_WEIGHT_GRAD));
                    most_b = to_b > most_b ? to_b : most_b;
                    most_w = to_w > most_w ? to_w : most_w;
                }
                ck_assert_int_eq(most_b, p - l < n ? p - l : n);
                ck_assert_int_eq(most_w, p < n ? p : n);
            }
            sf_free(&s);
        }
}
END_TEST

/* The picture in core/pipeline/zb_h1.c: F, B and W of one turn each. */
START_TEST(the_order_is_the_one_drawn)
{
    static const char *const lanes[4] = {"F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 B3 W3 B4 W4 B5 W5 ",
                                         "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 B4 W3 B5 W4 W5 ",
                                         "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 B5 W3 W4 W5 ",
                                         "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 W3 W4 W5 "};

    sf_llm_only(&s, 4, 1, 1, 6, DT_SCHED_ZB_H1);
    for (int l = 0; l < 4; l++) {
        char text[256] = "";
        size_t n = 0;

        for (uint32_t i = 0; i < s.p->lanes[l].n; i++) {
            const struct dt_op *o = &s.p->ops[s.p->lanes[l].first + i];

            if (o->mb != DT_NONE && dt_op_resource(o->kind) == DT_RES_COMPUTE && o->part == 0)
                n += (size_t)snprintf(text + n, sizeof(text) - n, "%c%u ", "FBW"[o->kind], o -> mb);
        }
        ck_assert_str_eq(text, lanes[l]);
    }
    sf_free(&s);
}
END_TEST

/* A stage that trains nothing has no weight gradients; one behind it puts off fewer. */
START_TEST(frozen_modules_split_nothing)
{
    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 12, 1, DT_SCHED_ZB_H1);
    sf_layout(&s, 0, 1, 2, 1, 1);
    sf_layout(&s, 1, 1, 2, 1, 1);
    sf_layout(&s, 2, 1, 2, 1, 1);
    s.plan.modules[1].frozen = true;
    sf_samples(&s, 12, 2, 2, false, 3);
    sf_compile(&s);
    ck_assert_uint_gt(sf_count(s.p, 0, DT_OP_WEIGHT_GRAD), 0);
    ck_assert_uint_eq(sf_count(s.p, 1, DT_OP_WEIGHT_GRAD), 0);
    ck_assert_uint_gt(sf_count(s.p, 1, DT_OP_BACKWARD), 0);
    ck_assert_int_eq(dt_memory_deferred(&s.plan, &s.f.model, 0, 1, 12), 2);
    ck_assert_int_eq(dt_memory_deferred(&s.plan, &s.f.model, 1, 1, 12), 0);
    ck_assert_int_eq(dt_memory_deferred(&s.plan, &s.f.model, 2, 1, 12), 6);
    sf_free(&s);
    sf_init(&s); /* the encoder below the projector's stage runs no backward */
    sf_chain(&s, 4);
    sf_plan(&s, 12, 1, DT_SCHED_ZB_H1);
    sf_layout(&s, 0, 1, 2, 1, 1);
    sf_layout(&s, 1, 1, 2, 1, 1);
    sf_layout(&s, 2, 1, 2, 1, 1);
    s.plan.modules[0].frozen = true;
    sf_samples(&s, 12, 2, 2, false, 3);
    sf_compile(&s);
    ck_assert_int_eq(dt_memory_deferred(&s.plan, &s.f.model, 1, 1, 12),
                     2 + (int)(sf_count(s.p, 0, DT_OP_BACKWARD) > 0));
    sf_free(&s);
}
END_TEST

/* Any graph, replica counts, freezing and sharing of GPUs that 1F1B can do. */
START_TEST(random_graphs_compile)
{
    uint64_t seed = dt_test_seed();
    int split = 0;

    for (int round = 0; round < 300; round++) {
        sf_random(&s, seed, round, round % 2);
        if (s.plan.policy.schedule != DT_SCHED_1F1B) {
            sf_free(&s);
            continue;
        }
        s.plan.policy.schedule = DT_SCHED_ZB_H1;
        sf_zero_allowed(&s);
        sf_assign(&s);
        ck_assert_msg(
            dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, NULL, &s.err, &s.p) == DT_OK,
            "seed %" PRIu64 " round %d: %s", seed, round, s.err.message);
        ck_assert_msg(dt_program_check(s.p, &s.f.model, &s.err) == DT_OK,
                      "seed %" PRIu64 " round %d: %s", seed, round, s.err.message);
        for (uint32_t i = 0; i < s.p->n_ops; i++)
            split += s.p->ops[i].kind == DT_OP_WEIGHT_GRAD;
        sf_free(&s);
    }
    ck_assert_int_gt(split, 1000);
}
END_TEST

/* What is recomputed is recomputed for the gradients of the input and once more for those of the weights; the LM head's
 * come together. */
START_TEST(recomputation_counts_twice)
{
    double model[DT_MAX_MODULES], once, twice, none, head;
    struct dt_work w = {0};

    sf_init(&s);
    sf_llm(&s, 4);
    sf_plan(&s, 4, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 2, 1, 1);
    sf_samples(&s, 4, 0, 0, false, 1);
    sf_compile(&s);
    for (int i = 0; i < 4; i++)
        dt_work_add(&w, &s.a->m[0].work[i]);
    dt_report_flops(&s.plan, &s.f.model, s.a, model, &none);
    s.plan.modules[0].recompute = DT_RECOMPUTE_FULL;
    dt_report_flops(&s.plan, &s.f.model, s.a, model, &once);
    s.plan.policy.schedule = DT_SCHED_ZB_H1;
    dt_report_flops(&s.plan, &s.f.model, s.a, model, &twice);
    head = dt_block_flops(&s.f.model.modules[0].blocks[s.f.model.modules[0].n_blocks - 1], &w);
    ck_assert_double_gt(head, 0);
    ck_assert_double_gt(once, none);
    ck_assert_double_eq_tol(twice - once, once - none - head, 1e-9 * once);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("zb_h1");
    TCase *c = dt_test_case(u, "zb_h1", 120);

    tcase_add_test(c, the_bubble_is_the_papers);
    tcase_add_test(c, it_is_never_slower_on_equal_stages);
    tcase_add_test(c, it_holds_what_1f1b_holds);
    tcase_add_test(c, the_order_is_the_one_drawn);
    tcase_add_test(c, frozen_modules_split_nothing);
    tcase_add_test(c, random_graphs_compile);
    tcase_add_test(c, recomputation_counts_twice);
    return dt_test_run(u);
}
