/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The schedule compiler: closed forms of makespans, boundaries of any shape, freezing, in-flight
 * bounds. */
#include "sched_fixture.h"

#include <math.h>
#include <stdio.h>

static struct sched_fixture s; /* large: not on the stack */

static int64_t uniform_span(int64_t f, int64_t b, int stages)
{
    int64_t fs[DT_MAX_VSTAGES], bs[DT_MAX_VSTAGES], *ns, span;

    for (int v = 0; v < stages; v++) {
        fs[v] = f;
        bs[v] = b;
    }
    ns = sf_durations(s.p, fs, bs);
    span = sf_makespan(&s, ns);
    free(ns);
    return span;
}

/* ---- closed forms ---- */

START_TEST(uniform_1f1b_and_gpipe_take_n_plus_p_less_1_turns)
{
    static const int p[] = {1, 2, 3, 4, 7, 12}, n[] = {1, 2, 5, 8, 31};
    enum dt_pipe_schedule kind = _i ? DT_SCHED_GPIPE : DT_SCHED_1F1B;

    for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++)
        for (size_t k = 0; k < sizeof(n) / sizeof(n[0]); k++) {
            sf_llm_only(&s, p[i], 1, 2, n[k], kind);
            ck_assert_int_eq(uniform_span(2385, 4771, p[i]),
                             (int64_t)(n[k] + p[i] - 1) * (2385 + 4771));
            sf_free(&s);
        }
}
END_TEST

START_TEST(interleaving_divides_the_bubble)
{
    for (int p = 2; p <= 6; p++)
        for (int v = 1; v <= 4; v++)
            for (int groups = 1; groups <= 4; groups += 3) {
                int n = p * groups;

                sf_llm_only(&s, p, v, 1, n, v > 1 ? DT_SCHED_INTERLEAVED : DT_SCHED_1F1B);
                ck_assert_int_eq(uniform_span(12000 / v, 24000 / v, p * v),
                                 n * 36000 + (p - 1) * 36000 / v);
                sf_free(&s);
            }
}
END_TEST

/* FACTS [D]: the one-microbatch formula against real 1F1B when the first stage takes twice as long.
 */
START_TEST(formula_over_estimates_a_first_stage_bottleneck)
{
    static const struct {
        int p, n;
        double ratio;
    } fact[] = {{4, 8, 0.895}, {8, 32, 0.934}, {12, 64, 0.947}};
    int64_t f[12], b[12];

    for (int c = 0; c < 3; c++)
        for (int last = 0; last < 2; last++) {
            int p = fact[c].p, n = fact[c].n, slow = last ? p - 1 : 0;
            double formula = 3e6 * (p - 1 + 2.0 * n);
            int64_t *ns;

            for (int v = 0; v < p; v++) {
                f[v] = 1000000 * (1 + (v == slow));
                b[v] = 2 * f[v];
            }
            sf_llm_only(&s, p, 1, 1, n, DT_SCHED_1F1B);
            ns = sf_durations(s.p, f, b);
            ck_assert_double_eq_tol((double)sf_makespan(&s, ns) / formula, last ? 1 : fact[c].ratio,
                                    last ? 1e-12 : 5e-4);
            free(ns);
            sf_free(&s);
        }
}
END_TEST

/* FACTS [D]: over 2,000 random cases 0.811 to 1.000 of the formula. */
START_TEST(formula_bounds_random_pipelines)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    double least = 1, most = 0;

    dt_rng_init(&r, seed, 11);
    for (int c = 0; c < 400; c++) {
        int p = 2 + (int)dt_rng_below(&r, 7), n = p + (int)dt_rng_below(&r, 24);
        int64_t f[8], b[8], slow = 0, sum = 0, *ns;
        double ratio;

        for (int v = 0; v < p; v++) {
            f[v] = 1000 + (int64_t)dt_rng_below(&r, 2000);
            b[v] = 2 * f[v];
            sum += 3 * f[v];
            slow = 3 * f[v] > slow ? 3 * f[v] : slow;
        }
        sf_llm_only(&s, p, 1, 1, n, DT_SCHED_1F1B);
        ns = sf_durations(s.p, f, b);
        ratio = (double)sf_makespan(&s, ns) / (double)(sum + (n - 1) * slow);
        least = fmin(least, ratio);
        most = fmax(most, ratio);
        free(ns);
        sf_free(&s);
    }
    ck_assert_msg(most <= 1 + 1e-12 && least >= 0.80, "seed %" PRIu64 ": %g to %g", seed, least,
                  most);
}
END_TEST

/* ---- the graph ---- */

START_TEST(warm_up_reaches_to_the_end_of_the_graph)
{
    uint32_t forwards = 0;

    sf_init(&s);
    sf_chain(&s, 6);
    sf_plan(&s, 24, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 2, 1, 1);
    sf_layout(&s, 1, 1, 3, 1, 1);
    sf_layout(&s, 2, 1, 2, 1, 1);
    sf_samples(&s, 24, 2, 2, false, 3);
    sf_compile(&s);
    /* Lane 0 is the first encoder stage: six stages follow, so seven forwards precede a backward.
     */
    for (uint32_t i = 0; s.p->ops[i].kind != DT_OP_BACKWARD; i++)
        forwards += s.p->ops[i].kind == DT_OP_FORWARD && s.p->ops[i].part == 0;
    ck_assert_uint_eq(forwards, 7);
    ck_assert_uint_eq(s.p->lanes[0].in_flight_max, 7);
    sf_free(&s);
}
END_TEST

/* 6 -> 4 -> 3 replicas, both directions of division. */
START_TEST(any_pair_of_replica_counts_meets)
{
    static const int dp[][3] = {{6, 4, 3}, {3, 4, 6}, {1, 4, 2}, {4, 4, 4}, {5, 4, 7}, {2, 6, 4}};
    const int *d = dp[_i];
    uint64_t sent = 0, wanted = 0;

    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 48 * 2, 2, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 1, 1, d[0]);
    sf_layout(&s, 1, 2, 2, 1, d[1]);
    sf_layout(&s, 2, 1, 1, 1, d[2]);
    sf_samples(&s, 96, 3, 2, false, 5);
    sf_compile(&s);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].kind == DT_OP_SEND && s.p->ops[i].flags == DT_OPF_BOUNDARY &&
            s.p->ops[i].module == 0)
            sent += s.p->ops[i].bytes;
    for (int i = 0; i < 96; i++) {
        struct dt_work w;

        dt_sample_work(&s.samples, i, &s.f.model.modules[0], &w);
        wanted += 2 * 1024 * (uint64_t)w.tokens;
    }
    ck_assert_uint_eq(sent, wanted); /* every token of every sample once, nothing else */
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_SEND), sf_count(s.p, 0, DT_OP_RECV));
    sf_free(&s);
}
END_TEST

static int root(int *parent, int x)
{
    while (parent[x] != x)
        x = parent[x];
    return x;
}

/* In sample order the lanes of one boundary fall into gcd(DP_u, DP_d) groups: the brokers. */
START_TEST(brokers_are_gcd_groups)
{
    static const int dp[][3] = {{6, 4, 2}, {4, 6, 2}, {3, 6, 3}, {6, 3, 3}, {5, 4, 1}, {4, 4, 4}};
    int parent[32], groups = 0;

    sf_init(&s);
    sf_encoder(&s, "encoder", 4);
    sf_llm(&s, 4);
    sf_edge(&s, 0, 1);
    sf_plan(&s, 12 * dp[_i][1] * 5, 12, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 1, 1, dp[_i][0]);
    sf_layout(&s, 1, 1, 1, 1, dp[_i][1]);
    sf_samples(&s, 12 * dp[_i][1] * 5, 1, 0, false, 5);
    sf_compile(&s);
    for (int i = 0; i < s.p->n_lanes; i++)
        parent[i] = i;
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].kind == DT_OP_SEND)
            parent[root(parent, (int)s.p->ops[i].lane)] =
                root(parent, (int)s.p->ops[s.p->ops[i].peer].lane);
    for (int i = 0; i < s.p->n_lanes; i++)
        groups += parent[i] == i;
    ck_assert_int_eq(groups, dp[_i][2]);
    sf_free(&s);
}
END_TEST

START_TEST(replicas_beyond_a_slot_take_a_list_schedule)
{
    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 26, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 2, 1, 5); /* five encoder replicas, two samples a slot */
    sf_layout(&s, 1, 1, 2, 1, 2);
    sf_layout(&s, 2, 1, 1, 1, 3);
    sf_samples(&s, 26, 2, 1, false, 6);
    sf_compile(&s);
    ck_assert_uint_eq(s.a->m[0].mb_first[1], 6);
    ck_assert_uint_eq(s.a->m[0].mb_first[5], 26);
    sf_free(&s);
}
END_TEST

START_TEST(text_only_microbatches_send_nothing)
{
    uint32_t with_images = 0, targets = 0;

    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 30, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 2, 1, 1);
    sf_layout(&s, 1, 1, 2, 1, 1);
    sf_layout(&s, 2, 1, 1, 1, 1);
    sf_samples(&s, 30, 2, 1, true, 7);
    sf_compile(&s);
    for (int i = 0; i < 30; i++) {
        struct dt_work w;

        dt_sample_work(&s.samples, i, &s.f.model.modules[0], &w);
        with_images += w.tokens > 0;
        dt_sample_work(&s.samples, i, &s.f.model.modules[2], &w);
        targets += w.n > 0;
    }
    ck_assert_uint_lt(with_images, 30);
    /* Encoder: between its stages and to the LLM, forward; gradients from stage 1 to stage 0. */
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_SEND), 3 * with_images);
    ck_assert_uint_eq(sf_count(s.p, 2, DT_OP_SEND), targets); /* gradients to the LLM */
    ck_assert_uint_eq(sf_count(s.p, 2, DT_OP_RECV), targets);
    sf_free(&s);
}
END_TEST

/* Several encoders of different depth, two generators. */
START_TEST(branches_join_and_part)
{
    sf_init(&s);
    sf_encoder(&s, "image", 6);
    sf_encoder(&s, "video", 3);
    sf_llm(&s, 6);
    sf_generator(&s, "picture", 5);
    sf_generator(&s, "film", 3);
    sf_edge(&s, 0, 2);
    sf_edge(&s, 1, 2);
    sf_edge(&s, 2, 3);
    sf_edge(&s, 2, 4);
    sf_plan(&s, 64, 2, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 4, 1, 2);
    sf_layout(&s, 1, 2, 1, 1, 4);
    sf_layout(&s, 2, 2, 3, 1, 4);
    sf_layout(&s, 3, 1, 3, 1, 1);
    sf_layout(&s, 4, 1, 1, 1, 6);
    sf_samples(&s, 64, 2, 2, true, 8);
    sf_compile(&s);
    ck_assert_uint_eq(s.p->lanes[0].in_flight_max, 8); /* of 8 microbatches: 3 + 3 + 3 + 1 or all */
    sf_free(&s);
}
END_TEST

/* ---- freezing ---- */

struct frozen_case {
    bool encoder, llm, generator;
    uint32_t b[3]; /* stages of each module that run backwards */
};

START_TEST(frozen_modules_run_only_needed_backwards)
{
    /* Two stages each; the projectors (end of the encoder, start of the generator) are always
     * trained. */
    static const struct frozen_case cases[] = {{false, false, false, {2, 2, 2}},
                                               {true, false, false, {1, 2, 2}},
                                               {false, true, false, {2, 2, 2}},
                                               {true, true, true, {1, 2, 2}}};
    const struct frozen_case *c = &cases[_i];
    const bool frozen[3] = {c->encoder, c->llm, c->generator};

    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 20, 1, DT_SCHED_1F1B);
    for (int m = 0; m < 3; m++) {
        sf_layout(&s, m, 1, 2, 1, 1);
        s.plan.modules[m].frozen = frozen[m];
    }
    sf_samples(&s, 20, 2, 1, false, 9);
    sf_compile(&s);
    for (int m = 0; m < 3; m++) {
        ck_assert_uint_eq(sf_count(s.p, m, DT_OP_FORWARD), 40);
        ck_assert_uint_eq(sf_count(s.p, m, DT_OP_BACKWARD), 20 * c->b[m]);
    }
    ck_assert_uint_eq(sf_count(s.p, 1, DT_OP_STEP), frozen[1] ? 0 : 2);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_STEP), frozen[0] ? 1 : 2);
    sf_free(&s);
}
END_TEST

/* An LLM frozen as a whole has no backward, no sync, no step; its lanes wait until what they sent
 * is consumed, and the next lane is charged for what may wait. */
START_TEST(forward_only_lanes_stay_within_their_bound)
{
    sf_init(&s);
    sf_llm(&s, 6);
    sf_plan(&s, 12, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 3, 1, 1);
    s.plan.modules[0].frozen = true;
    sf_samples(&s, 12, 0, 0, false, 10);
    sf_compile(&s);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_BACKWARD), 0);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_STEP) + sf_count(s.p, 0, DT_OP_GRAD_NORM), 0);
    for (uint32_t i = 0; i < s.p->lanes[0].n; i++) {
        const struct dt_op *op = &s.p->ops[i];

        if (op->kind == DT_OP_FORWARD && op->mb >= 3)
            ck_assert(op->dep[2] != DT_NONE && s.p->ops[op->dep[2]].kind == DT_OP_FORWARD &&
                      s.p->ops[op->dep[2]].mb == op->mb - 3 && s.p->ops[op->dep[2]].stage == 1);
    }
    ck_assert_int_eq(dt_memory_queue(&s.plan, &s.f.model, 0, 1, 12), 3);
    ck_assert_int_eq(dt_memory_queue(&s.plan, &s.f.model, 0, 2, 12), 2);
    sf_free(&s);
}
END_TEST

/* A frozen encoder in front of a slow LLM: at no time are more tensors unread than were charged
 * for. */
START_TEST(a_frozen_encoder_waits_for_its_reader)
{
    int64_t f[3] = {100, 5000, 100};
    struct dt_timeline_topo topo = {0};
    struct dt_timeline t = {0};
    int64_t *ns;
    int most = 0, charged;

    sf_init(&s);
    sf_chain(&s, 4);
    s.f.model.modules[0].n_blocks--; /* no projector: nothing of it is trained */
    sf_plan(&s, 80, 1, DT_SCHED_1F1B);
    for (int m = 0; m < 3; m++)
        sf_layout(&s, m, 1, m == 1 ? 3 : 1, 1, _i == 0 || m == 1 ? 2 : 1);
    s.plan.modules[0].frozen = true;
    sf_samples(&s, 80, 2, 1, _i == 2, 31);
    sf_compile(&s);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_BACKWARD), 0);
    ns = sf_durations(s.p, f, f);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].kind == DT_OP_FORWARD || s.p->ops[i].kind == DT_OP_BACKWARD)
            ns[i] = f[s.p->ops[i].module];
    dt_assert_ok(dt_timeline_topo_build(s.p, &s.err, &topo), s.err);
    dt_assert_ok(dt_timeline_eval(s.p, &topo, ns, &s.err, &t), s.err);
    /* messages into the first lane of the LLM: sent, and not read before the next one is */
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];
        int unread = 0;

        if (op->kind != DT_OP_RECV || op->flags != DT_OPF_BOUNDARY || op->module != 1 ||
            op->replica != 0)
            continue;
        for (uint32_t j = 0; j < s.p->n_ops; j++) {
            const struct dt_op *in = &s.p->ops[j];

            if (in->kind != DT_OP_RECV || in->lane != op->lane || in->flags != op->flags ||
                t.begin_ns[in->peer] > t.begin_ns[op->peer])
                continue;
            for (uint32_t k = s.p->lanes[op->lane].first; k < s.p->n_ops; k++)
                if (s.p->ops[k].kind == DT_OP_FORWARD && s.p->ops[k].lane == op->lane &&
                    s.p->ops[k].mb == in->mb && s.p->ops[k].part + 1 == s.p->ops[k].parts) {
                    unread += t.end_ns[k] > t.begin_ns[op->peer];
                    break;
                }
        }
        most = unread > most ? unread : most;
    }
    charged = dt_memory_queue(&s.plan, &s.f.model, 1, 0, 40);
    ck_assert_int_eq(charged, 5); /* the encoder's bound: four stages follow it */
    ck_assert_int_le(most, charged);
    ck_assert_int_gt(most, 2); /* it does run ahead */
    free(ns);
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&t);
    sf_free(&s);
}
END_TEST

/* Without credits the check must not pass: a lane's dependence on its reader is cut. */
START_TEST(the_check_asks_for_credits)
{
    uint32_t cut = 0;

    sf_init(&s);
    sf_llm(&s, 6);
    sf_plan(&s, 12, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 3, 1, 1);
    s.plan.modules[0].frozen = true;
    sf_samples(&s, 12, 0, 0, false, 10);
    sf_compile(&s);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].kind == DT_OP_FORWARD && s.p->ops[i].mb == 7 && s.p->ops[i].stage == 1) {
            s.p->ops[i].dep[2] = DT_NONE;
            cut++;
        }
    ck_assert_uint_eq(cut, 1);
    ck_assert_int_eq(dt_program_check(s.p, &s.f.model, &s.err), DT_ERR_INTERNAL);
    dt_assert_has(s.err.message, "does not wait until what was sent 2 forwards before is consumed");
    sf_free(&s);
}
END_TEST

/* ---- interleaved ---- */

/* Forwards whose backward has not run yet, at most, on each lane of the compiled program. */
static void most_in_flight(int pp, int *most)
{
    int held[6] = {0};

    memset(most, 0, (size_t)pp * sizeof(*most));
    for (uint32_t i = 0; i < s.p->n_ops; i++) { /* a lane's ops are in its order */
        const struct dt_op *op = &s.p->ops[i];

        held[op->lane] += (op->kind == DT_OP_FORWARD) - (op->kind == DT_OP_BACKWARD);
        if (held[op->lane] > most[op->lane])
            most[op->lane] = held[op->lane];
    }
}

/* A last group of fewer than pp microbatches: never slower than the whole group would be, nor than 1F1B without
 * chunks, and no lane holds more than it would then. */
START_TEST(interleaving_takes_a_shorter_last_group)
{
    for (int pp = 2; pp <= 6; pp++)
        for (int vpp = 2; vpp <= 4; vpp++)
            for (int n = 1; n < 5 * pp; n++) {
                const int all = (n + pp - 1) / pp * pp;
                int held[6], whole_held[6];
                int64_t span, whole, plain;

                sf_llm_only(&s, pp, vpp, 1, n, DT_SCHED_INTERLEAVED);
                span = uniform_span(12000 / vpp, 24000 / vpp, pp * vpp);
                most_in_flight(pp, held);
                sf_free(&s);
                sf_llm_only(&s, pp, vpp, 1, all, DT_SCHED_INTERLEAVED);
                whole = uniform_span(12000 / vpp, 24000 / vpp, pp * vpp);
                most_in_flight(pp, whole_held);
                sf_free(&s);
                sf_llm_only(&s, pp, 1, 1, n, DT_SCHED_1F1B);
                plain = uniform_span(12000, 24000, pp);
                sf_free(&s);
                ck_assert_msg(span <= whole,
                              "pp %d vpp %d: %d microbatches take %lld, %d take %lld", pp, vpp, n,
                              (long long)span, all, (long long)whole);
                ck_assert_msg(n % pp != 0 || span < plain,
                              "pp %d vpp %d n %d: interleaving gains nothing", pp, vpp, n);
                for (int l = 0; l < pp; l++)
                    ck_assert_int_le(held[l], whole_held[l]);
            }
}
END_TEST

/* Forward f (and backward 2f) of a stage of each module of a chain; an LLM chunk takes f / vpp. */
static int64_t chain_span(int pp, int vpp, int n, int dp, const int64_t *f)
{
    int64_t *ns, span;

    sf_init(&s);
    sf_chain(&s, pp * vpp);
    sf_plan(&s, (int64_t)n * 2, 1, vpp > 1 ? DT_SCHED_INTERLEAVED : DT_SCHED_1F1B);
    s.plan.policy.overlap_grad = s.plan.policy.overlap_param = false;
    sf_layout(&s, 0, 1, 1, 1, dp);
    sf_layout(&s, 1, 1, pp, vpp, 2);
    sf_layout(&s, 2, 1, 1, 1, dp);
    sf_samples(&s, (int64_t)n * 2, 2, 1, false, 41);
    sf_compile(&s);
    ns = calloc((size_t)s.p->n_ops + 1, sizeof(*ns));
    ck_assert_ptr_nonnull(ns);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];

        ns[i] = op->kind == DT_OP_FORWARD    ? f[op->module]
                : op->kind == DT_OP_BACKWARD ? 2 * f[op->module]
                                             : 0;
        ns[i] /= op->module == 1 ? vpp : 1;
    }
    span = sf_makespan(&s, ns);
    free(ns);
    sf_free(&s);
    return span;
}

/* An encoder and a generator that keep up leave the LLM its bubble divided by vpp ... */
START_TEST(neighbours_leave_the_divided_bubble)
{
    static const int64_t f[3] = {4000, 12000, 4000};

    for (int pp = 3; pp <= 6; pp++)
        for (int vpp = 1; vpp <= 4; vpp += vpp)
            for (int dp = 1; dp <= 2; dp++) {
                int n = 8 * pp;
                int64_t span = chain_span(pp, vpp, n, dp, f);
                int64_t idle = span - 3 * (n * f[1] + f[0] + f[2]);

                /* up to one chunk of slack for the round trip through the generator */
                ck_assert_msg(idle <= (3 * (pp - 1) + 2) * f[1] / vpp,
                              "pp %d vpp %d dp %d: idle %lld", pp, vpp, dp, (long long)idle);
            }
}
END_TEST

/* A last group of fewer than pp microbatches: chunks still gain, as it does not pass them all alone, there or back; where it
 * is one microbatch beside modules that keep up, an eighth. */
START_TEST(chunks_pay_with_a_shorter_last_group)
{
    static const int64_t f[3] = {12000, 12000, 12000};

    for (int pp = 2; pp <= 5; pp++)
        for (int vpp = 2; vpp <= 8; vpp += 2)
            for (int n = pp + 1; n <= 3 * pp; n++)
                for (int dp = 4; dp <= 8 && dp <= 2 * n; dp++) {
                    int64_t plain = chain_span(pp, 1, n, dp, f);
                    int64_t span = chain_span(pp, vpp, n, dp, f);

                    ck_assert_msg(span < plain, "pp %d n %d dp %d: %lld with vpp %d, %lld without",
                                  pp, n, dp, (long long)span, vpp, (long long)plain);
                    ck_assert_msg(n != pp + 1 || dp != 6 || span * 8 < plain * 7,
                                  "pp %d n %d: %lld with vpp %d, %lld without", pp, n,
                                  (long long)span, vpp, (long long)plain);
                }
}
END_TEST

/* ... and modules of equal length run one microbatch per turn, after one has passed through all. */
START_TEST(balanced_modules_run_at_full_rate)
{
    static const int64_t f[3] = {12000, 12000, 12000};

    for (int pp = 2; pp <= 8; pp += 2)
        for (int vpp = 1; vpp <= 4; vpp += vpp) {
            int n = 8 * pp;
            int64_t bound = 3 * f[1] * (n - 1 + pp + 2), span = chain_span(pp, vpp, n, 2, f);

            ck_assert_msg(span <= bound * 11 / 10, "pp %d vpp %d: %lld, bound %lld", pp, vpp,
                          (long long)span, (long long)bound);
        }
}
END_TEST

/* Encoder and generator around an interleaved LLM; pp 2 makes sends and receives of a pair cross.
 */
START_TEST(modules_around_an_interleaved_one)
{
    for (int pp = 2; pp <= 4; pp++)
        for (int vpp = 2; vpp <= 3; vpp++) {
            sf_init(&s);
            sf_chain(&s, pp * vpp < 4 ? 4 : pp * vpp);
            sf_plan(&s, 12 * 2 * 2, 1, DT_SCHED_INTERLEAVED);
            sf_layout(&s, 0, 1, 2, 1, 1);
            sf_layout(&s, 1, 1, pp, vpp, 2);
            sf_layout(&s, 2, 1, 3, 1, 2);
            sf_samples(&s, 48, 2, 1, true, 13);
            sf_compile(&s);
            sf_free(&s);
        }
}
END_TEST

/* ---- collectives ---- */

START_TEST(tied_embeddings_meet_across_stages)
{
    uint32_t tied = 0;

    sf_init(&s);
    sf_llm(&s, 6);
    s.f.model.modules[0].blocks[7].tied = true;
    sf_plan(&s, 24, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 2, 3, 1, 4);
    sf_samples(&s, 24, 0, 0, false, 14);
    sf_compile(&s);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].flags & DT_OPF_TIED) {
            const struct dt_group *g = &s.p->groups[s.p->ops[i].peer];

            ck_assert_uint_eq(g->n, 2);
            ck_assert_uint_eq(s.p->ops[i].bytes, 4 * 4099 * 1024 / 2);
            tied++;
        }
    ck_assert_uint_eq(tied, 8);
    sf_free(&s);
}
END_TEST

START_TEST(overlap_and_zero_decide_the_collectives)
{
    for (int bits = 0; bits < 8; bits++) {
        uint32_t parts, gathers;

        sf_init(&s);
        sf_llm(&s, 14);
        sf_plan(&s, 12, 1, DT_SCHED_1F1B);
        s.plan.policy.overlap_grad = bits & 1;
        s.plan.policy.overlap_param = bits & 2;
        s.plan.modules[0].zero = bits >> 2;
        sf_layout(&s, 0, 1, 2, 1, 3);
        sf_samples(&s, 12, 0, 0, false, 15);
        sf_compile(&s);
        parts = bits & 1 ? 4 : 1;
        gathers = !(bits & 4) ? 0 : bits & 2 ? 4 : 1;
        ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_GRAD_SYNC), 6 * parts);
        ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_PARAM_GATHER), 6 * gathers);
        ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_BACKWARD), 6 * (4 + parts - 1));
        ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_FORWARD), 6 * (4 + (gathers == 4 ? 3 : 0)));
        sf_free(&s);
    }
}
END_TEST

static uint64_t bytes_of(enum dt_op_kind kind)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < s.p->n_ops; i++)
        sum += s.p->ops[i].kind == kind ? s.p->ops[i].bytes : 0;
    return sum;
}

/* fp32 training sends twice the bytes of bf16, but gradients over replicas: these are fp32 anyway.
 */
START_TEST(fp32_training_sends_four_bytes)
{
    static const enum dt_op_kind kinds[] = {DT_OP_SEND, DT_OP_RECV, DT_OP_PARAM_GATHER,
                                            DT_OP_GRAD_SYNC};
    uint64_t bytes[4][2];

    for (int fp32 = 0; fp32 < 2; fp32++) {
        sf_init(&s);
        sf_chain(&s, 4);
        sf_plan(&s, 12, 1, DT_SCHED_1F1B);
        s.plan.policy.fp32 = fp32;
        for (int m = 0; m < 3; m++)
            sf_layout(&s, m, 1, 2, 1, m + 1);
        sf_samples(&s, 12, 2, 0, true, 16);
        sf_compile(&s);
        for (int k = 0; k < 4; k++)
            bytes[k][fp32] = bytes_of(kinds[k]);
        sf_free(&s);
    }
    for (int k = 0; k < 4; k++) {
        ck_assert_uint_gt(bytes[k][0], 0);
        ck_assert_uint_eq(bytes[k][1], (k < 3 ? 2 : 1) * bytes[k][0]);
    }
}
END_TEST

int main(void)
{
    Suite *u = suite_create("schedule");
    TCase *c = dt_test_case(u, "schedule", 120);

    tcase_add_loop_test(c, uniform_1f1b_and_gpipe_take_n_plus_p_less_1_turns, 0, 2);
    tcase_add_test(c, interleaving_divides_the_bubble);
    tcase_add_test(c, formula_over_estimates_a_first_stage_bottleneck);
    tcase_add_test(c, formula_bounds_random_pipelines);
    tcase_add_test(c, warm_up_reaches_to_the_end_of_the_graph);
    tcase_add_loop_test(c, any_pair_of_replica_counts_meets, 0, 6);
    tcase_add_loop_test(c, brokers_are_gcd_groups, 0, 6);
    tcase_add_test(c, replicas_beyond_a_slot_take_a_list_schedule);
    tcase_add_test(c, text_only_microbatches_send_nothing);
    tcase_add_test(c, branches_join_and_part);
    tcase_add_loop_test(c, frozen_modules_run_only_needed_backwards, 0, 4);
    tcase_add_test(c, forward_only_lanes_stay_within_their_bound);
    tcase_add_loop_test(c, a_frozen_encoder_waits_for_its_reader, 0, 3);
    tcase_add_test(c, the_check_asks_for_credits);
    tcase_add_test(c, interleaving_takes_a_shorter_last_group);
    tcase_add_test(c, neighbours_leave_the_divided_bubble);
    tcase_add_test(c, chunks_pay_with_a_shorter_last_group);
    tcase_add_test(c, balanced_modules_run_at_full_rate);
    tcase_add_test(c, modules_around_an_interleaved_one);
    tcase_add_test(c, tied_embeddings_meet_across_stages);
    tcase_add_test(c, overlap_and_zero_decide_the_collectives);
    tcase_add_test(c, fp32_training_sends_four_bytes);
    return dt_test_run(u);
}
