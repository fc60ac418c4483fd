/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Expert parallelism in programs and memory: what travels, among how many, how long, and what a rank holds, against
 * sums written down here. */
#include "core/cost/memory.h"
#include "core/schedule/program_partners.h"
#include "core/schedule/timeline.h"
#include "random_plan.h"
#include "test_util.h"

#include "base/rng.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>

enum { HIDDEN = 1024, FFN = 2816, VOCAB = 4099, EXPERTS = 8, DP = 8, TP = 2 };
/* of one layer, on a rank: its share of attention and two norms, and the whole router; all experts */
#define DENSE ((4.0 * HIDDEN * HIDDEN + 2.0 * HIDDEN) / TP + (double)HIDDEN * EXPERTS)
#define ROUTED (3.0 * HIDDEN * FFN * EXPERTS)

/* An LLM of a table, four layers with experts and a head, in two stages. */
static void world_at(struct sched_fixture *s, int ep, int cp, int zero, int first_gpu)
{
    sf_init(s);
    fx_index(&s->f);
    sf_llm(s, 4);
    sf_plan(s, 64, 1, DT_SCHED_1F1B);
    sf_layout(s, 0, TP, 2, 1, DP / cp);
    s->plan.modules[0].layout.cp = cp;
    sf_experts(s, 0, EXPERTS, ep, 1);
    ck_assert_int_eq(s->plan.modules[0].layout.ep, ep);
    s->plan.modules[0].zero = zero;
    s->plan.modules[0].layout.first_gpu = first_gpu;
    s->plan.modules[0].pinned = true;
    sf_samples(s, 64, 0, 0, false, 3);
    sf_compile(s);
}

static void world(struct sched_fixture *s, int ep, int cp, int zero)
{
    world_at(s, ep, cp, zero, 0);
}

/* Parameters on a GPU of the first stage that others hold too. */
static double shared(int ep)
{
    return VOCAB * (double)HIDDEN / TP + 2 * DENSE + (ep < DP ? 2 * ROUTED / (TP * ep) : 0);
}

START_TEST(what_travels)
{
    for (int ep = 1; ep <= DP; ep *= 2)
        for (int cp = 1; cp <= 2; cp++) {
            struct sched_fixture s;
            double grads = 0, params = 0, experts = 0;

            world(&s, ep, cp, 1);
            for (uint32_t i = s.p->lanes[0].first; i < s.p->lanes[0].first + s.p->lanes[0].n; i++) {
                const struct dt_op *op = &s.p->ops[i];

                if (op->kind == DT_OP_GRAD_SYNC) {
                    grads += (double)op->bytes;
                    experts += (double)s.p->groups[op->peer].expert_bytes;
                    ck_assert_uint_eq(s.p->groups[op->peer].n, (unsigned)(DP / cp));
                }
                params += op->kind == DT_OP_PARAM_GATHER ? (double)op->bytes : 0;
            }
            /* a byte or two of rounding in each of up to three buckets */
            ck_assert_double_eq_tol(grads, 4 * shared(ep), 12);
            ck_assert_double_eq_tol(params, 2 * shared(ep), 6);
            ck_assert_double_eq_tol(experts, ep > 1 && ep < DP ? 4 * 2 * ROUTED / (TP * ep) : 0,
                                    12);
            sf_free(&s);
        }
}
END_TEST

/* A sync takes as long as that of the dense parameters among all, and that of the experts among those that hold the
 * same: GPUs of a node are tp * ep apart. */
START_TEST(how_long)
{
    static const int eps[] = {2, 4, 8};

    for (int i = 0; i < 3; i++) {
        int ep = eps[i], apart = TP * ep, per_node = apart < 8 ? 8 / apart : 1;
        struct dt_cost_options opt = {.allow_analytical = true};
        struct sched_fixture s;
        struct dt_durations d;
        struct dt_cost *cost;

        world(&s, ep, 1, 1);
        dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost),
                     s.err);
        dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                     s.err);
        for (uint32_t k = 0; k < s.p->n_ops; k++) {
            const struct dt_op *op = &s.p->ops[k];
            struct dt_cost_time all, some;
            uint64_t experts;

            if (op->kind != DT_OP_GRAD_SYNC)
                continue;
            experts = s.p->groups[op->peer].expert_bytes;
            dt_cost_collective(cost, DT_KOP_REDUCE_SCATTER, DP, 8 / TP, TP,
                               (double)(op->bytes - experts), &all);
            dt_cost_collective(cost, DT_KOP_REDUCE_SCATTER, DP / ep, per_node,
                               apart < 8 ? apart : 8, (double)experts, &some);
            ck_assert_double_eq_tol((double)d.ns[k], all.ns + some.ns, 1);
            ck_assert(ep == DP ? some.ns <= 0 : experts == 0 || some.ns > 0);
        }
        dt_durations_free(&d);
        dt_cost_free(cost);
        sf_free(&s);
    }
}
END_TEST

/* The same of modules that begin in the middle of a node, with nodes of four ranks: at half of one, 2 + 4 + 2 of a stage's
 * dense parameters meet, and expert groups of 4 are half here and half there. */
START_TEST(how_long_in_the_middle_of_a_node)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    static const struct {
        int ep;
        struct dt_cost_members dense, experts, exchange;
    } cases[] = {
        {2, {8, 4, 2, 2}, {4, 2, 1, 4}, {2, 4, 0, 2}},
        {4, {8, 4, 2, 2}, {2, 1, 0, 8}, {4, 4, 2, 2}},
        {8, {8, 4, 2, 2}, {1, 1, 0, 8}, {8, 4, 2, 2}},
    };

    for (int i = 0; i < 3; i++) {
        double forward[2], more = 0;
        struct dt_cost *cost;

        for (int where = 0; where < 2; where++) {
            struct dt_block_shard shard = {TP, 1, cases[i].ep, 1, 0, true, false, 0};
            struct dt_work w = {1, SF_SEQ, (int64_t)SF_SEQ * SF_SEQ, SF_SEQ};
            struct dt_kop kop[DT_MAX_KOPS];
            struct sched_fixture s;
            struct dt_durations d;
            int n;

            world_at(&s, cases[i].ep, 1, 1, 4 * where);
            dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost),
                         s.err);
            dt_assert_ok(
                dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                s.err);
            for (uint32_t k = 0; k < s.p->n_ops; k++) {
                const struct dt_op *op = &s.p->ops[k];
                struct dt_cost_time all, some;

                if (op->kind == DT_OP_FORWARD && op->stage == 1 && op->parts == 1)
                    forward[where] = (double)d.ns[k];
                if (op->kind != DT_OP_GRAD_SYNC || !where)
                    continue;
                dt_cost_collective_of(cost, DT_KOP_REDUCE_SCATTER, &cases[i].dense,
                                      (double)(op->bytes - s.p->groups[op->peer].expert_bytes),
                                      &all);
                dt_cost_collective_of(cost, DT_KOP_REDUCE_SCATTER, &cases[i].experts,
                                      (double)s.p->groups[op->peer].expert_bytes, &some);
                ck_assert_double_eq_tol((double)d.ns[k], all.ns + some.ns, 1);
            }
            n = dt_block_kops(&s.f.model.modules[0].blocks[3], &shard, &w, kop);
            for (int k = 0; where && k < n;
                 k++) { /* of two layers, what goes to experts and comes back */
                struct dt_cost_members there = cases[i].exchange;
                struct dt_cost_time here, apart;

                if (kop[k].family != DT_KOP_ALL_TO_ALL)
                    continue;
                dt_cost_collective_of(cost, DT_KOP_ALL_TO_ALL, &there, (double)kop[k].d[2], &apart);
                there.ahead = 0;
                dt_cost_collective_of(cost, DT_KOP_ALL_TO_ALL, &there, (double)kop[k].d[2], &here);
                more += 2 * (apart.ns - here.ns);
            }
            dt_durations_free(&d);
            dt_cost_free(cost);
            sf_free(&s);
        }
        ck_assert_double_eq_tol(forward[1] - forward[0], more, 2);
        ck_assert_int_eq(more > 0, cases[i].ep == 4); /* of 8, four are in a node either way */
    }
}
END_TEST

/* Rank by rank: how a group that deals experts lies where it lies worst. */
START_TEST(the_worst_of_expert_groups)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 31);
    for (int round = 0; round < 2000; round++) {
        const int node = 8, tp = 1 << dt_rng_below(&r, 5), ep = 2 + (int)dt_rng_below(&r, 15);
        struct dt_plan p = {.n_modules = 1};
        struct dt_plan_layout *l = &p.modules[0].layout;
        struct dt_block_shard shard;
        int groups = 1 + (int)dt_rng_below(&r, 6), stage, worst = INT_MAX, room, first, found;

        *l = (struct dt_plan_layout){tp, 1, ep, 3, 1, ep * groups, 1, 0};
        l->first_gpu = (tp < node ? tp : node) * (int)dt_rng_below(&r, 20);
        stage = (int)dt_rng_below(&r, 3);
        for (int g = 0; g < groups; g++) {
            int here = 0, last = -1, least = INT_MAX, nodes = 0;

            for (int k = 0; k < ep; k++) {
                int at = (l->first_gpu + ((stage * groups + g) * ep + k) * tp) / node;

                if (at != last) {
                    least = here > 0 && here < least ? here : least;
                    here = 0;
                    nodes++;
                }
                here++;
                last = at;
            }
            least = here < least ? here : least;
            if (nodes > 1 && least < worst)
                worst = least;
        }
        shard = dt_plan_stage_shard(&p, 0, stage, node);
        room = tp < node ? node / tp : 1;
        first = room - shard.ahead;
        found = (shard.ahead + ep - 1) % room + 1;
        found = ep <= first ? INT_MAX : first < found ? first : found;
        ck_assert_msg(found == worst, "seed %" PRIu64 ", round %d: %d, not %d ranks in a node",
                      dt_test_seed(), round, found, worst);
    }
}
END_TEST

/* A rank holds the ep-th part of the experts, and whatever ep is, the same part of the optimizer's states. */
START_TEST(what_a_rank_holds)
{
    struct dt_work w = {1, SF_SEQ, (int64_t)SF_SEQ * SF_SEQ, SF_SEQ};

    for (int zero = 0; zero <= 3; zero++)
        for (int ep = 1; ep <= DP; ep *= 2) {
            struct sched_fixture s;
            struct dt_memory mem;
            double dense = VOCAB * (double)HIDDEN / TP + 2 * DENSE, experts = 2 * ROUTED / TP;

            world(&s, ep, 1, zero);
            dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 0, 0, &w, 8, &mem);
            if (zero < 3)
                ck_assert_double_eq_tol(mem.params, 2 * (dense + experts / ep), 1);
            else /* the same shares, whatever ep is, beside what is gathered or not yet reduced */
                ck_assert_double_eq_tol(mem.params + mem.grads - mem.whole,
                                        (2 + 4) * (dense + experts) / DP, 1);
            if (zero < 2)
                ck_assert_double_eq_tol(mem.grads, 4 * (dense + experts / ep), 1);
            ck_assert_double_eq_tol(mem.optimizer,
                                    12 * (zero ? (dense + experts) / DP : dense + experts / ep), 1);
            sf_free(&s);
        }
}
END_TEST

/* The check of programs knows how much of a group is the experts'. */
START_TEST(wrong_shares_are_found)
{
    struct sched_fixture s;

    world(&s, 4, 1, 1);
    for (uint32_t g = 0; g < s.p->n_groups; g++) {
        uint64_t right = s.p->groups[g].expert_bytes;
        const uint64_t wrong[] = {0, right + 4, right / 2};

        if (right == 0)
            continue;
        for (size_t k = 0; k < sizeof(wrong) / sizeof(wrong[0]); k++) {
            s.p->groups[g].expert_bytes = wrong[k];
            ck_assert_int_eq(dt_program_check(s.p, &s.f.model, &s.err), DT_ERR_INTERNAL);
        }
        s.p->groups[g].expert_bytes = right;
        dt_assert_ok(dt_program_check(s.p, &s.f.model, &s.err), s.err);
    }
    s.plan.modules[0].layout.ep = 2; /* of another degree every op is wrong */
    ck_assert_int_eq(dt_program_check(s.p, &s.f.model, &s.err), DT_ERR_INTERNAL);
    sf_free(&s);
}
END_TEST

/* Which replicas an expert group links, group by group: ep neighbours among the dp x cp ranks of a stage. */
static void find_linked(int dp, int cp, int ep, int *least)
{
    bool again = true;

    for (int r = 0; r < dp; r++)
        least[r] = r;
    while (again) {
        again = false;
        for (int i = 0; i < dp * cp; i++)
            for (int k = i / ep * ep; k < i / ep * ep + ep; k++)
                if (least[k / cp] < least[i / cp]) {
                    least[i / cp] = least[k / cp];
                    again = true;
                }
    }
}

/* Ops of linked lanes, whose members exchange rows, run together: also where a group has cp members of several replicas,
 * or a lane has members of two groups. */
START_TEST(lanes_that_groups_link_run_together)
{
    static const struct {
        int dp, cp, ep, experts;
    } cases[] = {{4, 1, 1, 8}, {4, 1, 2, 8}, {4, 1, 4, 8}, {4, 2, 1, 8}, {4, 2, 2, 8},
                 {4, 2, 4, 8}, {4, 2, 8, 8}, {2, 4, 2, 8}, {2, 4, 8, 8}, {3, 2, 2, 6},
                 {4, 2, 4, 4}, {3, 2, 3, 6}, {3, 4, 6, 6}, {6, 4, 6, 6}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int dp = cases[i].dp, least[8], seen = 0;
        struct dt_program_partners g;
        struct dt_arena arena = {0};
        struct sched_fixture s;

        sf_init(&s);
        fx_index(&s.f);
        sf_llm(&s, 4);
        sf_plan(&s, 12 * dp, 1, DT_SCHED_1F1B);
        sf_layout(&s, 0, 1, 2, 1, dp);
        s.plan.modules[0].layout.cp = cases[i].cp;
        sf_experts(&s, 0, cases[i].experts, cases[i].ep, 1);
        ck_assert_int_eq(s.plan.modules[0].layout.ep, cases[i].ep);
        sf_samples(&s, 12 * dp, 0, 0, false, 3);
        sf_compile(&s);
        find_linked(dp, cases[i].cp, cases[i].ep, least);
        dt_assert_ok(dt_program_partners_find(s.p, &arena, &s.err, &g), s.err);
        for (uint32_t k = 0; k < s.p->n_ops; k++) {
            const struct dt_op *op = &s.p->ops[k];
            int n = dt_program_partners_n(s.p, &g, k), linked = 0;

            if (op->kind != DT_OP_FORWARD && op->kind != DT_OP_BACKWARD) {
                ck_assert_int_eq(n, 1);
                continue;
            }
            for (int r = 0; r < dp; r++)
                linked += least[r] == least[op->replica];
            ck_assert_int_eq(n, linked);
            for (int j = 0; j < n; j++) {
                uint32_t with = dt_program_partner(s.p, &g, k, j);

                ck_assert_uint_ne(with, DT_NONE);
                ck_assert_int_eq(s.p->ops[with].stage, op->stage);
                ck_assert_int_eq(s.p->ops[with].mb, op->mb);
                ck_assert_int_eq(least[s.p->ops[with].replica], least[op->replica]);
                seen++;
            }
        }
        ck_assert_int_gt(seen, 0);
        dt_arena_free(&arena);
        sf_free(&s);
    }
}
END_TEST

/* The busiest rank takes the stated factor longer over its experts, and nothing else does. */
START_TEST(crowded_ranks_take_longer)
{
    struct dt_cost_options opt = {.allow_analytical = true};
    double fwd[2][2];

    for (int ep = 1; ep <= 2; ep++)
        for (int crowd = 0; crowd < 2; crowd++) {
            struct sched_fixture s;
            struct dt_cost *cost;
            struct dt_durations d;

            world(&s, ep, 1, 1);
            for (int b = 1; b <= 4; b++)
                s.f.model.modules[0].blocks[b].imbalance = crowd ? 1.5 : 1;
            dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost),
                         s.err);
            dt_assert_ok(
                dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                s.err);
            for (uint32_t i = 0; i < s.p->n_ops; i++)
                if (s.p->ops[i].kind == DT_OP_FORWARD && s.p->ops[i].parts == 1)
                    fwd[ep - 1][crowd] = (double)d.ns[i];
            dt_durations_free(&d);
            dt_cost_free(cost);
            sf_free(&s);
        }
    ck_assert_double_eq(fwd[0][0], fwd[0][1]); /* all experts are here */
    ck_assert_double_gt(fwd[1][1], 1.05 * fwd[1][0]);
    ck_assert_double_lt(fwd[1][1], 1.5 * fwd[1][0]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ep");
    TCase *c = dt_test_case(suite, "ep", 30);

    tcase_add_test(c, what_travels);
    tcase_add_test(c, how_long);
    tcase_add_test(c, how_long_in_the_middle_of_a_node);
    tcase_add_test(c, the_worst_of_expert_groups);
    tcase_add_test(c, what_a_rank_holds);
    tcase_add_test(c, wrong_shares_are_found);
    tcase_add_test(c, lanes_that_groups_link_run_together);
    tcase_add_test(c, crowded_ranks_take_longer);
    return dt_test_run(suite);
}
