/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Eager forwards: how far ahead memory lets stages be, what programs make of it, and how plan files say it. */
#include "random_plan.h"

static struct sched_fixture s;

static void largest(struct dt_work *work)
{
    memset(work, 0, DT_MAX_MODULES * sizeof(*work));
    for (int m = 0; m < s.a->n_modules; m++)
        for (uint32_t b = 0; b < s.a->m[m].mb_first[s.a->m[m].n_replicas]; b++)
            if (s.a->m[m].work[b].tokens > work[m].tokens)
                work[m] = s.a->m[m].work[b];
}

static void chain(int pp, int n)
{
    sf_init(&s);
    sf_chain(&s, 6);
    sf_plan(&s, n, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, pp, 1, 1);
    sf_layout(&s, 1, 1, pp, 1, 1);
    sf_layout(&s, 2, 1, 1, 1, 1);
    s.plan.policy.warmup = DT_WARMUP_EAGER;
    sf_samples(&s, n, 2, 1, false, 5);
    sf_assign(&s);
}

static double most_of(const struct dt_work *work)
{
    struct dt_error err;
    double most;

    dt_assert_ok(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, work, &most, &err), err);
    return most;
}

/* All stages fit, and no stage could hold one more without being ahead of the one in front of it or too large, itself or
 * the one behind it; as tried one by one, by the check of a whole plan. */
START_TEST(takes_what_memory_has)
{
    int bound = 0, free_of = 0;

    for (int pp = 1; pp <= 3; pp++)
        for (int room = 0; room < 40; room++) {
            struct dt_work work[DT_MAX_MODULES];
            struct dt_error err;

            chain(pp, 24);
            s.f.cluster.mem_bytes = 1e15;
            largest(work);
            s.f.cluster.mem_bytes = most_of(work) * (1 + 0.004 * room);
            dt_memory_ahead(&s.plan, &s.f.model, &s.f.cluster, work);
            dt_assert_ok(dt_plan_check_warmup(&s.plan, &s.f.model, &err), err);
            most_of(work);
            for (int m = 0; m < 3; m++)
                for (int k = 0; k < s.plan.modules[m].layout.pp; k++) {
                    uint16_t *ahead = &s.plan.modules[m].ahead[k];

                    free_of += *ahead > 0;
                    if (*ahead >= 24)
                        continue;
                    ++*ahead;
                    if (dt_plan_check_warmup(&s.plan, &s.f.model, &err) == DT_OK &&
                        dt_memory_in_flight(&s.plan, &s.f.model, m, k, 24) < 24) {
                        struct dt_plan whole = s.plan;
                        bool later = false;

                        /* stages behind may have taken the room that its messages would need */
                        for (int o = m; o < 3; o++)
                            for (int j = o == m ? k + 1 : 0; j < whole.modules[o].layout.pp; j++) {
                                later |= whole.modules[o].ahead[j] > 0;
                                s.plan.modules[o].ahead[j] = 0;
                            }
                        ck_assert_int_eq(
                            dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, work, NULL, &err),
                            DT_ERR_INFEASIBLE);
                        s.plan = whole;
                        bound++;
                    }
                    --*ahead;
                }
            sf_free(&s);
        }
    ck_assert_int_gt(bound, 20);
    ck_assert_int_gt(free_of, 20);
}
END_TEST

/* With room for everything a stage runs all of its forwards first, if it has to wait that long. */
START_TEST(holds_all_where_there_is_room)
{
    struct dt_work work[DT_MAX_MODULES];

    chain(2, 8);
    s.f.cluster.mem_bytes = 1e15;
    largest(work);
    dt_memory_ahead(&s.plan, &s.f.model, &s.f.cluster, work);
    for (int m = 0; m < 3; m++)
        ck_assert_int_eq(dt_memory_in_flight(&s.plan, &s.f.model, m, 0, 8), 8);
    sf_compile(&s);
    sf_free(&s);
}
END_TEST

/* Every operation takes its microbatch's tokens, a backward twice as long. */
static int64_t makespan(void)
{
    int64_t *ns = calloc((size_t)s.p->n_ops + 1, sizeof(*ns)), span;

    ck_assert_ptr_nonnull(ns);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];
        const struct dt_assignment_module *a = &s.a->m[op->module];

        if (op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD) /* others may have no mb */
            ns[i] = a->work[a->mb_first[op->replica] + op->mb].tokens *
                    (op->kind == DT_OP_BACKWARD ? 2 : 1) / op->parts;
    }
    span = sf_makespan(&s, ns);
    free(ns);
    return span;
}

/* A first stage that may hold more is held up less by a slow microbatch behind it. */
START_TEST(uneven_microbatches_gain)
{
    int64_t ns[2];

    for (int eager = 0; eager < 2; eager++) {
        chain(3, 24);
        for (int64_t i = 0; i < 24; i++) /* every fourth sample has eight times the text */
            s.text[i] = s.seq[i] = i % 4 == 1 ? SF_SEQ : SF_SEQ / 8;
        sf_free_program(&s);
        s.plan.policy.warmup = eager ? DT_WARMUP_EAGER : DT_WARMUP_1F1B;
        for (int m = 0; m < 3 && eager; m++)
            for (int k = 0; k < s.plan.modules[m].layout.pp; k++)
                s.plan.modules[m].ahead[k] = 4;
        sf_assign(&s);
        sf_compile(&s);
        ns[eager] = makespan();
        sf_free(&s);
    }
    ck_assert_int_lt(ns[1], ns[0]);
}
END_TEST

/* What does not say how far is compiled for the batch at hand: the program has a plan of its own, which fits, and a batch of
 * larger microbatches goes less far ahead. */
START_TEST(every_batch_has_its_own)
{
    int ahead[2];

    for (int large = 0; large < 2; large++) {
        struct dt_work work[DT_MAX_MODULES];
        struct dt_error err;

        chain(2, 24);
        s.f.cluster.mem_bytes = 1e15;
        largest(work);
        s.f.cluster.mem_bytes = most_of(work) * 1.1;
        for (uint64_t i = 0; i < s.item_first[24]; i++)
            s.items[i].w = s.items[i].h = large ? 192 : 128;
        sf_free_program(&s);
        sf_compile(&s);
        ck_assert_ptr_ne(s.p->plan, &s.plan);
        ck_assert(!dt_plan_is_ahead(&s.plan) && dt_plan_is_ahead(s.p->plan));
        ahead[large] = s.p->plan->modules[0].ahead[0];
        largest(work);
        dt_assert_ok(dt_memory_check(s.p->plan, &s.f.model, &s.f.cluster, work, NULL, &err), err);
        sf_free(&s);
    }
    ck_assert_int_gt(ahead[0], ahead[1]);
}
END_TEST

/* ---- plan files ---- */

START_TEST(files_say_it)
{
    struct dt_plan back;
    struct dt_error err;
    char *text, *again;

    chain(2, 8);
    s.plan.modules[0].ahead[0] = 5;
    s.plan.modules[0].ahead[1] = 3;
    dt_assert_ok(dt_plan_to_json(&s.plan, &err, &text), err);
    dt_assert_has(text, "\"warmup\": \"eager\"");
    dt_assert_ok(dt_plan_parse("x", text, strlen(text), &err, &back), err);
    ck_assert_int_eq(back.policy.warmup, DT_WARMUP_EAGER);
    ck_assert(back.modules[0].ahead[0] == 5 && back.modules[0].ahead[1] == 3);
    ck_assert_int_eq(back.modules[1].ahead[0], 0);
    dt_assert_ok(dt_plan_to_json(&back, &err, &again), err);
    ck_assert_str_eq(text, again);
    dt_free(text);
    dt_free(again);
    sf_free(&s);
}
END_TEST

static void refused(const char *why)
{
    struct dt_error err;

    ck_assert_int_eq(dt_plan_check_warmup(&s.plan, &s.f.model, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, why);
}

START_TEST(what_does_not_go_together)
{
    chain(2, 8);
    s.plan.modules[0].ahead[1] = 1;
    refused("encoder: stage 1 is ahead by 1");
    s.plan.modules[0].ahead[1] = 0;
    s.plan.modules[1].ahead[0] = 2;
    refused("llm: stage 0 is ahead by 2");
    s.plan.modules[0].ahead[0] = s.plan.modules[0].ahead[1] = 2;
    s.plan.policy.warmup = DT_WARMUP_1F1B;
    refused("train.warmup: eager");
    s.plan.policy.warmup = DT_WARMUP_EAGER;
    s.plan.policy.schedule = DT_SCHED_GPIPE;
    refused("not with gpipe");
    s.plan.policy.schedule = DT_SCHED_ZB_H1;
    s.plan.modules[0].window = 2;
    refused("whole windows");
    s.plan.modules[0].window = 0;
    s.plan.modules[2].with = 2;
    refused("GPUs of its own");
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("warmup");
    TCase *tc = dt_test_case(suite, "warmup", 60);
    tcase_add_test(tc, takes_what_memory_has);
    tcase_add_test(tc, holds_all_where_there_is_room);
    tcase_add_test(tc, uneven_microbatches_gain);
    tcase_add_test(tc, every_batch_has_its_own);
    tcase_add_test(tc, files_say_it);
    tcase_add_test(tc, what_does_not_go_together);
    return dt_test_run(suite);
}
