/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Encoders in phases (DIP's schedule): order on every GPU, what is held, closed forms, and what does not go with them. */
#include "random_plan.h"

static struct sched_fixture s;

/* An encoder and an LLM, both of pp stages on the same GPUs. */
static void build(int pp, int dp, int n, enum dt_pipe_schedule schedule)
{
    sf_init(&s);
    sf_encoder(&s, "encoder", 6);
    sf_llm(&s, 6);
    sf_edge(&s, 0, 1);
    sf_plan(&s, (int64_t)n * dp, 1, schedule);
    sf_layout(&s, 0, 1, pp, 1, dp);
    sf_layout(&s, 1, 1, pp, 1, dp);
    s.plan.modules[0].with = 2;
    s.plan.modules[0].phases = true;
    sf_samples(&s, (int64_t)n * dp, 2, 0, false, 3);
}

/* Ends of the phases of every GPU by a timeline in which every operation takes a time of its own. */
START_TEST(three_phases_on_every_gpu)
{
    static const enum dt_pipe_schedule schedules[] = {DT_SCHED_1F1B, DT_SCHED_GPIPE,
                                                      DT_SCHED_ZB_H1};
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 1);
    for (int t = 0; t < 24; t++) {
        int pp = 1 + t % 4, n = 1 + (int)dt_rng_below(&r, 9);
        struct dt_timeline_topo topo = {0};
        struct dt_timeline tl = {0};
        int64_t forwards[8] = {0}, begin[8], end[8] = {0}, backwards[8], *ns;

        build(pp, 1 + t % 2, n, schedules[t % 3]);
        sf_compile(&s);
        ns = calloc(s.p->n_ops + 1, sizeof(*ns));
        ck_assert_ptr_nonnull(ns);
        for (uint32_t i = 0; i < s.p->n_ops; i++)
            ns[i] = dt_op_resource(s.p->ops[i].kind) == DT_RES_COMPUTE
                        ? 1 + (int64_t)dt_rng_below(&r, 100)
                        : 0;
        dt_assert_ok(dt_timeline_topo_build(s.p, &s.err, &topo), s.err);
        dt_assert_ok(dt_timeline_eval(s.p, &topo, ns, &s.err, &tl), s.err);
        for (int g = 0; g < 8; g++)
            begin[g] = backwards[g] = INT64_MAX;
        for (uint32_t i = 0; i < s.p->n_ops; i++) {
            const struct dt_op *op = &s.p->ops[i];
            uint32_t g = s.p->lanes[op->lane].first_gpu;
            bool forward = op->kind == DT_OP_FORWARD;

            ck_assert_uint_lt(g, 8);
            if (op->kind != DT_OP_BACKWARD && op->kind != DT_OP_WEIGHT_GRAD && !forward)
                continue;
            if (op->module == 0 && forward && tl.end_ns[i] > forwards[g])
                forwards[g] = tl.end_ns[i];
            if (op->module == 0 && !forward && tl.begin_ns[i] < backwards[g])
                backwards[g] = tl.begin_ns[i];
            if (op->module == 1 && tl.begin_ns[i] < begin[g])
                begin[g] = tl.begin_ns[i];
            if (op->module == 1 && tl.end_ns[i] > end[g])
                end[g] = tl.end_ns[i];
        }
        for (int g = 0; g < dt_plan_gpus(&s.plan); g++) {
            ck_assert_int_gt(forwards[g], 0);
            ck_assert_int_le(forwards[g], begin[g]);
            ck_assert_int_le(end[g], backwards[g]);
            ck_assert_int_lt(backwards[g], INT64_MAX);
        }
        dt_timeline_topo_free(&topo);
        dt_timeline_free(&tl);
        free(ns);
        sf_free(&s);
    }
}
END_TEST

/* Every microbatch is held, whatever the stage, and the LLM's first stage has room for all that wait for it. */
START_TEST(holds_every_microbatch)
{
    build(3, 1, 12, DT_SCHED_1F1B);
    sf_compile(&s);
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(dt_memory_in_flight(&s.plan, &s.f.model, 0, k, 12), 12);
        ck_assert_int_eq(dt_memory_in_flight(&s.plan, &s.f.model, 1, k, 12), 3 - k);
    }
    ck_assert_int_eq(dt_memory_queue(&s.plan, &s.f.model, 1, 0, 12), 12 - 3);
    sf_free(&s);
}
END_TEST

/* Equal stages, forward f and backward 2 f of both: the encoder fills and drains its pipeline at the front and at the back,
 * (n + pp - 1) f until its last stage is through and as long as a backward's; in between the LLM's 1F1B, whose first stage
 * begins when its GPU has forwarded n, and whose last gradient is back when it ends.  So much of the fill of one overlaps with
 * the other as the first GPU is through earlier than the last. */
START_TEST(takes_what_three_pipelines_take)
{
    for (int pp = 1; pp <= 4; pp++)
        for (int n = pp; n <= 12; n += 3) {
            int64_t f[DT_MAX_VSTAGES], b[DT_MAX_VSTAGES], *ns, span;

            for (int v = 0; v < DT_MAX_VSTAGES; v++) {
                f[v] = 12;
                b[v] = 24;
            }
            build(pp, 1, n, DT_SCHED_1F1B);
            sf_compile(&s);
            ns = sf_durations(s.p, f, b);
            span = sf_makespan(&s, ns);
            /* no GPU does more than its own 2 n (f + b); none of the three parts is shorter than its own pipeline */
            ck_assert_int_ge(span, 2 * n * 36);
            ck_assert_int_ge(span, (n + pp - 1) * 36 + n * 36);
            ck_assert_int_le(span, (n + pp - 1) * 12 + (n + pp - 1) * 36 + (n + pp - 1) * 24);
            if (pp == 1)
                ck_assert_int_eq(span, 2 * n * 36);
            free(ns);
            sf_free(&s);
        }
}
END_TEST

/* A turn in which a backward of the encoder comes before the LLM's last work is not taken for right. */
/* The LLM's replicas exchange rows of experts, so what one of them begins, the other does, too: also where the encoder's
 * phases on the other's GPU are not as far. */
START_TEST(phases_beside_an_expert_group)
{
    for (int t = 0; t < 24; t++) {
        enum dt_pipe_schedule schedule = t / 2 % 2 ? DT_SCHED_GPIPE : DT_SCHED_1F1B;

        build(1 + t % 3, 2, 2 + t % 7, schedule);
        sf_experts(&s, 1, 4, 2, 1);
        ck_assert_int_eq(s.plan.modules[1].layout.ep, 2);
        sf_layout(&s, 0, 1, 1, 1, 1 + t % 2);
        sf_compile(&s); /* and checks it */
        sf_free(&s);
    }
}
END_TEST

START_TEST(check_finds_other_phases)
{
    build(1, 1, 4, DT_SCHED_1F1B);
    sf_compile(&s);
    s.plan.modules[0].phases = false; /* the program of another plan: in one GPU's order of slots */
    sf_free_program(&s);
    sf_compile(&s);
    s.plan.modules[0].phases = true;
    ck_assert_int_eq(dt_program_check(s.p, &s.f.model, &s.err), DT_ERR_INTERNAL);
    for (int l = 0; l < s.p->n_lanes; l++) /* not for what lanes hold */
        s.p->lanes[l].in_flight_max = (uint32_t)dt_memory_in_flight(
            &s.plan, &s.f.model, s.p->lanes[l].module, s.p->lanes[l].stage, 4);
    ck_assert_int_eq(dt_program_check(s.p, &s.f.model, &s.err), DT_ERR_INTERNAL);
    dt_assert_has(s.err.message, "later phase");
    sf_free(&s);
}
END_TEST

static void refused(const char *why)
{
    struct dt_error err;

    ck_assert_int_eq(dt_plan_check_phases(&s.plan, &s.f.model, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, why);
}

START_TEST(what_does_not_go_together)
{
    build(2, 1, 4, DT_SCHED_1F1B);
    dt_assert_ok(dt_plan_check_phases(&s.plan, &s.f.model, &s.err), s.err);
    s.plan.modules[0].window = 2;
    refused("leave out one of the two");
    s.plan.modules[0].window = 0;
    s.plan.modules[0].with = 0;
    refused("with: llm");
    s.plan.modules[0].with = 2;
    s.plan.modules[1].phases = true;
    refused("are for encoders");
    s.plan.modules[1].phases = false;
    s.plan.modules[1].layout.vpp = 2;
    refused("vpp 1");
    sf_free(&s);
}
END_TEST

START_TEST(files_say_it)
{
    struct dt_plan back;
    struct dt_error err;
    char *text;

    build(2, 1, 4, DT_SCHED_1F1B);
    dt_assert_ok(dt_plan_to_json(&s.plan, &err, &text), err);
    dt_assert_has(text, "\"phases\": true");
    dt_assert_ok(dt_plan_parse("x", text, strlen(text), &err, &back), err);
    ck_assert(back.modules[0].phases && !back.modules[1].phases);
    dt_free(text);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("phases");
    TCase *tc = dt_test_case(suite, "phases", 60);
    tcase_add_test(tc, three_phases_on_every_gpu);
    tcase_add_test(tc, holds_every_microbatch);
    tcase_add_test(tc, takes_what_three_pipelines_take);
    tcase_add_test(tc, check_finds_other_phases);
    tcase_add_test(tc, phases_beside_an_expert_group);
    tcase_add_test(tc, what_does_not_go_together);
    tcase_add_test(tc, files_say_it);
    return dt_test_run(suite);
}
