/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The topological evaluation against the timing rules written down plainly, and what summaries say.
 */
#include "sched_fixture.h"
#include "synth.h"

#include <stdio.h>

static struct sched_fixture s;

/* ---- order and evaluation ---- */

static void compare(const struct synth *x, uint64_t seed, int round)
{
    struct dt_timeline_topo topo = {0};
    struct dt_timeline t = {0};
    struct dt_error err;
    uint32_t n = x->p.n_ops;
    int64_t *begin = calloc(n + 1, sizeof(*begin)), *end = calloc(n + 1, sizeof(*end)), last = 0;
    unsigned char *seen = calloc(n + 1, 1);

    ck_assert(begin && end && seen);
    dt_assert_ok(dt_timeline_topo_build(&x->p, &err, &topo), err);
    ck_assert_uint_eq(topo.n, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct dt_op *op = &x->p.ops[topo.order[i]];

        for (int k = 0; k < 3; k++)
            ck_assert(op->dep[k] == DT_NONE || seen[op->dep[k]]);
        ck_assert(!seen[topo.order[i]]);
        seen[topo.order[i]] = 1;
    }
    dt_assert_ok(dt_timeline_eval(&x->p, &topo, x->dur.ns, &err, &t), err);
    synth_reference(x, begin, end);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_msg(begin[i] == t.begin_ns[i] && end[i] == t.end_ns[i],
                      "seed %" PRIu64 " round %d op %u kind %d: %" PRId64 "..%" PRId64
                      ", by the rules %" PRId64 "..%" PRId64,
                      seed, round, i, x->p.ops[i].kind, t.begin_ns[i], t.end_ns[i], begin[i],
                      end[i]);
        last = end[i] > last ? end[i] : last;
    }
    ck_assert_int_eq(t.makespan_ns, last);
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&t);
    free(begin);
    free(end);
    free(seen);
}

START_TEST(evaluation_follows_the_rules)
{
    uint64_t seed = dt_test_seed();

    for (int round = 0; round < 200; round++) {
        struct synth x;

        synth_random(seed + (uint64_t)round, 64, &x);
        compare(&x, seed, round);
        synth_free(&x);
    }
}
END_TEST

START_TEST(storage_is_reused)
{
    struct dt_timeline t = {0};
    struct dt_error err;
    int64_t *kept;

    dt_assert_ok(dt_timeline_reserve(&t, 1000, &err), err);
    kept = t.begin_ns;
    dt_assert_ok(dt_timeline_reserve(&t, 10, &err), err);
    ck_assert_ptr_eq(kept, t.begin_ns);
    ck_assert_uint_eq(t.n_ops, 10);
    dt_assert_ok(dt_timeline_reserve(&t, 1000, &err), err);
    ck_assert_ptr_eq(kept, t.begin_ns);
    dt_mem_fail_at(2);
    ck_assert_int_eq(dt_timeline_reserve(&t, 2000, &err), DT_ERR_NOMEM);
    dt_mem_fail_at(0);
    ck_assert_ptr_eq(kept, t.begin_ns); /* untouched */
    dt_timeline_free(&t);
    ck_assert_ptr_null(t.end_ns);
}
END_TEST

START_TEST(circles_and_loose_ends_are_errors)
{
    struct dt_timeline_topo topo = {0};
    uint32_t was;

    sf_llm_only(&s, 2, 1, 2, 4, DT_SCHED_1F1B);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].kind == DT_OP_FORWARD) {
            was = s.p->ops[i].dep[2];
            s.p->ops[i].dep[2] = s.p->lanes[s.p->ops[i].lane].first + s.p->lanes[0].n - 1;
            ck_assert_int_eq(dt_timeline_topo_build(s.p, &s.err, &topo), DT_ERR_INTERNAL);
            dt_assert_has(s.err.message, "in a circle");
            s.p->ops[i].dep[2] = s.p->n_ops;
            ck_assert_int_eq(dt_timeline_topo_build(s.p, &s.err, &topo), DT_ERR_INTERNAL);
            s.p->ops[i].dep[2] = was;
            break;
        }
    dt_assert_ok(dt_timeline_topo_build(s.p, &s.err, &topo), s.err);
    dt_timeline_topo_free(&topo);
    sf_free(&s);
}
END_TEST

/* ---- summaries ---- */

static void evaluate(const int64_t *ns, struct dt_timeline *t)
{
    struct dt_timeline_topo topo = {0};

    dt_assert_ok(dt_timeline_topo_build(s.p, &s.err, &topo), s.err);
    dt_assert_ok(dt_timeline_eval(s.p, &topo, ns, &s.err, t), s.err);
    dt_timeline_topo_free(&topo);
}

START_TEST(bubble_of_a_uniform_pipeline)
{
    int64_t f[4] = {2385, 2385, 2385, 2385}, b[4] = {4770, 4770, 4770, 4770}, *ns;
    struct dt_timeline_summary sum;
    struct dt_timeline t = {0};

    sf_llm_only(&s, 4, 1, 2, 9, DT_SCHED_1F1B);
    ns = sf_durations(s.p, f, b);
    evaluate(ns, &t);
    dt_assert_ok(dt_timeline_summarise(s.p, &t, &s.err, &sum), s.err);
    ck_assert_double_eq_tol(sum.bubble_fraction, 3.0 / 12, 1e-12);
    ck_assert_double_eq_tol(sum.utilisation[0], 9.0 / 12, 1e-12);
    ck_assert_double_eq_tol(sum.iteration_s, 12 * 7155e-9, 1e-15);
    ck_assert_double_eq(sum.exposed_comm_s, 0);
    ck_assert_double_eq(sum.sync_s + sum.gather_s + sum.step_s, 0);
    free(ns);
    dt_timeline_free(&t);
    sf_free(&s);
}
END_TEST

/* Two stages, one microbatch: the second waits one transfer, the first two stages' work and two
 * transfers. */
START_TEST(waits_have_names)
{
    int64_t f[2] = {1000, 1700}, b[2] = {2300, 3100}, *ns;
    struct dt_lane_summary lane[2];
    struct dt_timeline_summary sum;
    struct dt_timeline t = {0};

    sf_llm_only(&s, 2, 1, 1, 1, DT_SCHED_1F1B);
    ns = sf_durations(s.p, f, b);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        if (s.p->ops[i].kind == DT_OP_SEND)
            ns[i] = 450;
        if (s.p->ops[i].kind == DT_OP_GRAD_NORM)
            ns[i] = 70;
        if (s.p->ops[i].kind == DT_OP_STEP)
            ns[i] = 130;
    }
    evaluate(ns, &t);
    ck_assert_int_eq(t.makespan_ns, 1000 + 450 + 1700 + 3100 + 450 + 2300 + 70 + 130);
    for (int l = 0; l < 2; l++)
        dt_timeline_lane(s.p, &t, dt_timeline_computed_ns(s.p, &t), l, &lane[l]);
    ck_assert_int_eq(lane[0].busy_ns, 1000 + 2300 + 130);
    /* Behind the forward: 450 of the message there are the other stage's wait, 450 back are exposed
     * here. */
    ck_assert_int_eq(lane[0].comm_wait_ns, 450 + 70);
    ck_assert_int_eq(lane[0].dep_wait_ns, 450 + 1700 + 3100);
    ck_assert_int_eq(lane[1].busy_ns, 1700 + 3100 + 130);
    ck_assert_int_eq(lane[1].first_ns, 1450);
    ck_assert_int_eq(lane[1].dep_wait_ns, 1000 + 450 + 2300);
    ck_assert_int_eq(lane[1].comm_wait_ns, 450 + 70);
    dt_assert_ok(dt_timeline_summarise(s.p, &t, &s.err, &sum), s.err);
    ck_assert_double_eq_tol(sum.exposed_comm_s, 520e-9, 1e-15);
    ck_assert_double_eq_tol(sum.step_s, 130e-9, 1e-15);
    ck_assert_double_eq_tol(sum.sync_s, 70e-9, 1e-15);
    free(ns);
    dt_timeline_free(&t);
    sf_free(&s);
}
END_TEST

/* Two replicas; the first has less to do:
 *
 *   time        0      10      16        26   27    30
 *   replica 0   |  B   |       [  sync   |norm]STEP |
 *   replica 1   |      B       [  sync   |norm]STEP |
 *
 * Until 16 replica 0 waits for the other's gradients; sync and norm are exposed on both. */
START_TEST(steps_wait_for_syncs)
{
    enum { B, SYNC, NORM, STEP, PER_LANE };
    static const int64_t ends[2] = {10, 16};
    struct dt_lane lanes[2];
    struct dt_op ops[2 * PER_LANE];
    int64_t begin[2 * PER_LANE], end[2 * PER_LANE];
    struct dt_program p = {.n_lanes = 2, .n_ops = 2 * PER_LANE, .lanes = lanes, .ops = ops};
    struct dt_timeline t = {
        .n_ops = 2 * PER_LANE, .begin_ns = begin, .end_ns = end, .makespan_ns = 30};
    struct dt_lane_summary x;
    struct dt_timeline_summary sum;
    struct dt_plan plan = {.n_modules = 0};
    struct dt_error err;

    for (uint32_t r = 0; r < 2; r++) {
        uint32_t at = r * PER_LANE;
        const struct dt_op of[PER_LANE] = {
            [B] = {.kind = DT_OP_BACKWARD, .dep = {DT_NONE, DT_NONE, DT_NONE}},
            [SYNC] = {.kind = DT_OP_GRAD_SYNC, .dep = {DT_NONE, at + B, DT_NONE}},
            [NORM] = {.kind = DT_OP_GRAD_NORM, .dep = {at + SYNC, DT_NONE, DT_NONE}},
            [STEP] = {.kind = DT_OP_STEP, .dep = {at + B, at + NORM, DT_NONE}},
        };
        const int64_t from[PER_LANE] = {0, 16, 26, 27}, to[PER_LANE] = {ends[r], 26, 27, 30};

        lanes[r] = (struct dt_lane){.first = at, .n = PER_LANE, .replica = (uint16_t)r, .gpus = 1};
        for (uint32_t i = 0; i < PER_LANE; i++) {
            ops[at + i] = of[i];
            ops[at + i].lane = r;
            begin[at + i] = from[i];
            end[at + i] = to[i];
        }
    }
    ck_assert_int_eq(dt_timeline_computed_ns(&p, &t), 16);
    for (int r = 0; r < 2; r++) {
        dt_timeline_lane(&p, &t, dt_timeline_computed_ns(&p, &t), r, &x);
        ck_assert_int_eq(x.comm_wait_ns, 11);
        ck_assert_int_eq(x.dep_wait_ns, 16 - ends[r]);
    }
    dt_assert_ok(dt_timeline_summarise(&p, &t, &err, &sum), err);
    ck_assert_double_eq_tol(sum.exposed_comm_s, 11e-9, 1e-18);
    ck_assert_double_eq_tol(sum.sync_s, 11e-9, 1e-18);
    ck_assert_double_eq_tol(sum.bubble_fraction, 1 - (10 + 16 + 2 * 3) / 60.0, 1e-12);

    /* steps of an offloaded optimizer are the host's; where devices are CPUs host and device are one */
    plan.n_modules = 1;
    plan.modules[0].layout =
        (struct dt_plan_layout){.tp = 1, .pp = 1, .vpp = 1, .dp = 2, .cp = 1, .ep = 1, .ip = 1};
    plan.modules[0].offload = DT_OFFLOAD_OPTIMIZER;
    p.plan = &plan;
    dt_assert_ok(dt_timeline_summarise(&p, &t, &err, &sum), err);
    ck_assert_double_eq_tol(sum.bubble_fraction, 1 - (10 + 16 + 2 * 3) / 60.0, 1e-12);
    p.steps_on_hosts = true;
    dt_assert_ok(dt_timeline_summarise(&p, &t, &err, &sum), err);
    ck_assert_double_eq_tol(sum.bubble_fraction, 1 - (10 + 16) / 60.0, 1e-12);
    ck_assert_double_eq_tol(sum.utilisation[0], (10 + 16) / 60.0, 1e-12);
    ck_assert_double_eq_tol(sum.exposed_comm_s, 11e-9, 1e-18);
    dt_timeline_lane(&p, &t, 16, 0, &x);
    ck_assert_int_eq(x.host_ns, 3);
}
END_TEST

/* A host on four GPUs and its guest on the first two:
 *
 *   time            0    10        22   30   40
 *   host, GPU 0-3   | F  |   [sync      ]STEP|
 *   guest, GPU 0-1       |    F     |
 *
 * The sync is exposed from 22 on where the guest computes meanwhile, else from 10 on. */
START_TEST(a_guest_hides_what_its_host_waits_for)
{
    enum { HOST_F, SYNC, STEP, GUEST_F, N };
    struct dt_lane lanes[] = {{.first = 0, .n = 3, .module = 0, .gpus = 4},
                              {.first = 3, .n = 1, .module = 1, .gpus = 2}};
    struct dt_op ops[] = {
        [HOST_F] = {.kind = DT_OP_FORWARD, .dep = {DT_NONE, DT_NONE, DT_NONE}},
        [SYNC] = {.kind = DT_OP_GRAD_SYNC, .dep = {DT_NONE, HOST_F, DT_NONE}},
        [STEP] = {.kind = DT_OP_STEP, .dep = {HOST_F, SYNC, DT_NONE}},
        [GUEST_F] = {.kind = DT_OP_FORWARD,
                     .module = 1,
                     .lane = 1,
                     .dep = {DT_NONE, HOST_F, DT_NONE}},
    };
    int64_t begin[N] = {0, 10, 30, 10}, end[N] = {10, 30, 40, 22};
    struct dt_plan plan = {.n_modules = 2};
    struct dt_program p = {.n_lanes = 2, .n_ops = N, .lanes = lanes, .ops = ops, .plan = &plan};
    struct dt_timeline t = {.n_ops = N, .begin_ns = begin, .end_ns = end, .makespan_ns = 40};
    struct dt_timeline_summary sum;
    struct dt_error err;

    for (int m = 0; m < 2; m++)
        plan.modules[m].layout = (struct dt_plan_layout){
            .tp = m ? 2 : 4, .pp = 1, .vpp = 1, .dp = 1, .cp = 1, .ep = 1, .ip = 1};
    plan.modules[1].with = 1;
    dt_assert_ok(dt_timeline_summarise(&p, &t, &err, &sum), err);
    ck_assert_double_eq_tol(sum.exposed_comm_s, 1e-9 * (2 * 8 + 2 * 20) / 4, 1e-18);
    ck_assert_double_eq_tol(sum.bubble_fraction, 1 - (4 * 20 + 2 * 12) / (4 * 40.0), 1e-12);
    plan.modules[1].with = 0; /* on GPUs of its own, which wait for their input */
    lanes[1].first_gpu = 4;
    dt_assert_ok(dt_timeline_summarise(&p, &t, &err, &sum), err);
    ck_assert_double_eq_tol(sum.exposed_comm_s, 1e-9 * (4 * 20) / 6, 1e-18);
}
END_TEST

/* Busy and waiting add up to the end of the lane, whatever the graph. */
START_TEST(waits_add_up)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;

    dt_rng_init(&r, seed, 41);
    for (int round = 0; round < 30; round++) {
        struct dt_timeline_summary sum;
        struct dt_timeline t = {0};
        int64_t *ns;

        sf_init(&s);
        sf_chain(&s, 5);
        sf_plan(&s, 36, 1, round % 2 ? DT_SCHED_1F1B : DT_SCHED_GPIPE);
        sf_layout(&s, 0, 1, 1 + (int)dt_rng_below(&r, 3), 1, 1 + (int)dt_rng_below(&r, 3));
        sf_layout(&s, 1, 2, 1 + (int)dt_rng_below(&r, 4), 1, 3);
        sf_layout(&s, 2, 1, 1 + (int)dt_rng_below(&r, 2), 1, 1 + (int)dt_rng_below(&r, 3));
        sf_samples(&s, 36, 2, 1, true, dt_rng_u64(&r));
        sf_compile(&s);
        ns = calloc(s.p->n_ops, sizeof(*ns));
        ck_assert_ptr_nonnull(ns);
        for (uint32_t i = 0; i < s.p->n_ops; i++)
            if (s.p->ops[i].kind != DT_OP_RECV)
                ns[i] = (int64_t)dt_rng_below(&r, 3000);
        evaluate(ns, &t);
        for (int l = 0; l < s.p->n_lanes; l++) {
            struct dt_lane_summary x;

            dt_timeline_lane(s.p, &t, dt_timeline_computed_ns(s.p, &t), l, &x);
            ck_assert_msg(x.comm_wait_ns >= 0 && x.dep_wait_ns >= 0 &&
                              x.busy_ns + x.comm_wait_ns + x.dep_wait_ns == x.last_ns,
                          "seed %" PRIu64 " round %d lane %d", seed, round, l);
        }
        dt_assert_ok(dt_timeline_summarise(s.p, &t, &s.err, &sum), s.err);
        ck_assert(sum.bubble_fraction > 0 && sum.bubble_fraction < 1);
        ck_assert(sum.exposed_comm_s >= 0 && sum.exposed_comm_s < sum.iteration_s);
        free(ns);
        dt_timeline_free(&t);
        sf_free(&s);
    }
}
END_TEST

int main(void)
{
    Suite *u = suite_create("timeline");
    TCase *c = dt_test_case(u, "timeline", 120);

    tcase_add_test(c, evaluation_follows_the_rules);
    tcase_add_test(c, storage_is_reused);
    tcase_add_test(c, circles_and_loose_ends_are_errors);
    tcase_add_test(c, bubble_of_a_uniform_pipeline);
    tcase_add_test(c, waits_have_names);
    tcase_add_test(c, steps_wait_for_syncs);
    tcase_add_test(c, a_guest_hides_what_its_host_waits_for);
    tcase_add_test(c, waits_add_up);
    return dt_test_run(u);
}
