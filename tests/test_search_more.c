/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * More memory, more GPUs, more bandwidth or a wider space do not make the chosen plan slower, by timeline, in small random
 * worlds, and none of the chosen plan's nearest neighbours is faster than it.  A descent on timelines ends where no neighbour is
 * better, which need not be the best plan of all; so the former holds nearly always and nearly, and the test says how
 * nearly. */
#include "small_world.h"

enum { WORLDS = 24 };
#define NEARLY 0.005 /* plans within 0.1 % count as equal */
#define WORST 0.12
#define SHARE 0.03 /* of all comparisons may be off by more than NEARLY */

struct count {
    int asked, slower;
};

static double best_s(struct world *w, const struct dt_cluster *c)
{
    struct dt_cluster kept = w->fx.cluster;
    struct dt_search_result r;
    struct dt_error err;
    double s = HUGE_VAL;

    w->fx.cluster = *c;
    dt_cost_free(w->cost);
    dt_assert_ok(dt_cost_new(&w->fx.model, &w->fx.cluster, &w->fx.profile,
                             &(struct dt_cost_options){.allow_analytical = true}, &err, &w->cost),
                 err);
    w->in.cost = w->cost;
    if (dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w->in, &err, &r) == DT_OK) {
        s = r.plans[0].predicted.timeline_s;
        ck_assert_int_eq(r.stats.untimed, 0); /* the budget is enough for so small a world */
        ck_assert_double_gt(r.stats.floor_s, 0);
        ck_assert_double_le(r.stats.floor_s, s * 1.01);
        dt_search_result_free(&r);
    }
    w->fx.cluster = kept;
    return s;
}

static void open_space(struct world *w)
{
    w->in.opt.schedules = 1U << DT_SCHED_1F1B | 1U << DT_SCHED_INTERLEAVED | 1U << DT_SCHED_ZB_H1;
    w->in.opt.max_vpp = 0;
    w->in.opt.max_microbatch = 4;
    for (int m = 0; m < w->in.model->n_modules; m++)
        w->in.opt.recompute[m] = 7;
}

static void no_slower(struct count *n, int world, const char *what, double before, double after)
{
    n->asked++;
    if (isinf(before) || after <= before * (1 + NEARLY))
        return;
    n->slower++;
    ck_assert_msg(after <= before * (1 + WORST),
                  "seed %" PRIu64 " world %d: %s, and the plan takes %g s instead of %g s", seed,
                  world, what, after, before);
}

static void compare(struct count *n, int i)
{
    static const int64_t batches[] = {6, 8, 12};
    struct dt_cluster c;
    struct world w;
    double s;

    dt_rng_init(&rng, seed, 300 + (uint64_t)i);
    build_world(&w, i % 2, i / 2 % 2, batches[i % 3]);
    w.in.opt.gpus = 6 + below(5);
    w.in.opt.rank = true;
    set_memory(&w, uniform(0.4, 1.2));
    if (i % 3 == 0)
        open_space(&w);
    s = best_s(&w, &w.fx.cluster);
    c = w.fx.cluster;
    c.mem_bytes *= 1.5;
    no_slower(n, i, "more memory", s, best_s(&w, &c));
    c = w.fx.cluster;
    c.nic_bytes_per_s *= 2;
    no_slower(n, i, "more bandwidth between nodes", s, best_s(&w, &c));
    w.in.opt.gpus += 2;
    no_slower(n, i, "two more GPUs", s, best_s(&w, &w.fx.cluster));
    w.in.opt.gpus -= 2;
    open_space(&w);
    no_slower(n, i, "a wider space", s, best_s(&w, &w.fx.cluster));
    free_world(&w);
}

START_TEST(more_is_no_slower)
{
    struct count n = {0, 0};

    for (int i = 0; i < WORLDS; i++)
        compare(&n, i);
    ck_assert_int_eq(n.asked, 4 * WORLDS);
    ck_assert_msg(n.slower <= SHARE * n.asked,
                  "seed %" PRIu64 ": more is slower in %d of %d comparisons", seed, n.slower,
                  n.asked);
}
END_TEST

/* The timeline of a plan as a job would state it; infinite where it does not fit, or not the microbatches that the search
 * allows for. */
static double stated_s(const struct world *w, const struct dt_plan *p)
{
    struct dt_work work[DT_MAX_MODULES];
    struct dt_search_input in = w->in;
    struct dt_search_result r;
    struct dt_error err;
    double s;

    in.manual = p;
    if (dt_orch_find_plans(DT_STRATEGY_MANUAL, &in, &err, &r) != DT_OK)
        return HUGE_VAL;
    dt_search_largest_work(&in, &r.plans[0], work);
    if (dt_memory_check(&r.plans[0], in.model, in.cluster, work, NULL, NULL) != DT_OK) {
        dt_search_result_free(&r);
        return HUGE_VAL;
    }
    s = r.plans[0].predicted.timeline_s;
    dt_search_result_free(&r);
    return s;
}

/* With another recomputation, with other replicas of what is around the LLM. */
START_TEST(no_neighbour_is_faster)
{
    struct dt_search_result r;
    struct dt_error err;
    struct world w;

    dt_rng_init(&rng, seed, 500 + (uint64_t)_i);
    build_world(&w, 1, _i % 2, 8);
    w.in.opt.gpus = 6 + below(5);
    w.in.opt.rank = true;
    set_memory(&w, uniform(0.5, 1.2));
    open_space(&w);
    if (dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r) == DT_OK) {
        double s = r.plans[0].predicted.timeline_s * (1 - NEARLY);

        for (int m = 0; m < w.in.model->n_modules; m++)
            for (int k = 0; k < 3; k++) {
                struct dt_plan p = r.plans[0];
                double other;

                dt_plan_unpin(&p);
                p.modules[m].recompute = (enum dt_block_recompute)k;
                other = stated_s(&w, &p);
                ck_assert_msg(other >= s,
                              "seed %" PRIu64 ": %s with recompute %s takes %g s, the plan %g s",
                              seed, p.module_names[m], dt_block_recompute_names[k], other, s);
                p = r.plans[0];
                dt_plan_unpin(&p);
                p.modules[m].layout.dp += k - 1;
                other = m == w.in.model->llm || p.modules[m].layout.dp < 1 ||
                                dt_plan_gpus(&p) > w.in.opt.gpus
                            ? HUGE_VAL
                            : stated_s(&w, &p);
                ck_assert_msg(other >= s,
                              "seed %" PRIu64 ": %s with dp %d takes %g s, the plan %g s", seed,
                              p.module_names[m], p.modules[m].layout.dp, other, s);
            }
        dt_search_result_free(&r);
    }
    free_world(&w);
}
END_TEST

/* Leaves that byte all over the stack that the next call takes. */
static __attribute__((noinline)) void scribble(int byte)
{
    volatile unsigned char stack[1 << 18];

    for (size_t i = 0; i < sizeof stack; i++)
        stack[i] = (unsigned char)byte;
}

static bool same_plan(const struct dt_plan *p, const struct dt_plan *q)
{
    bool same =
        p->policy.schedule == q->policy.schedule && p->policy.microbatch == q->policy.microbatch;

    for (int m = 0; m < p->n_modules && same; m++) {
        const struct dt_plan_module *a = &p->modules[m], *b = &q->modules[m];

        same = !memcmp(&a->layout, &b->layout, sizeof a->layout) && a->with == b->with &&
               a->recompute == b->recompute && a->zero == b->zero && a->window == b->window &&
               a->zero_group == b->zero_group;
    }
    return same;
}

/* A search gives the same plans, each once, whatever it finds in memory and whatever the cost model was asked before. */
START_TEST(plans_depend_on_nothing_else)
{
    static const int garbage[] = {0, 0xff, 0x5a};
    struct dt_search_result r[3];
    struct dt_error err;
    struct world w;

    dt_rng_init(&rng, seed, 700 + (uint64_t)_i);
    build_world(&w, 1, _i % 2, 32);
    w.fx.cluster.nodes = 6;
    w.in.opt.gpus = 24 + below(24);
    w.in.opt.rank = true;
    w.in.opt.guests = _i % 3 ? ~0u : 0;
    w.in.opt.k = 64;
    open_space(&w);
    for (int k = 0; k < 3; k++) {
        scribble(garbage[k]);
        dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r[k]), err);
        ck_assert_int_eq(r[k].n, r[0].n);
        for (int i = 0; i < r[k].n; i++) {
            ck_assert_msg(same_plan(&r[k].plans[i], &r[0].plans[i]) &&
                              r[k].plans[i].predicted.timeline_s ==
                                  r[0].plans[i].predicted.timeline_s,
                          "seed %" PRIu64 ": plan %d differs from one search to the next", seed, i);
            for (int j = 0; j < i; j++)
                ck_assert_msg(!same_plan(&r[k].plans[i], &r[k].plans[j]),
                              "seed %" PRIu64 ": plans %d and %d are the same", seed, j, i);
        }
    }
    for (int k = 0; k < 3; k++)
        dt_search_result_free(&r[k]);
    free_world(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("search_more");
    TCase *c = dt_test_case(s, "all", 120);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_test(c, more_is_no_slower);
    tcase_add_loop_test(c, no_neighbour_is_faster, 0, 24);
    tcase_add_loop_test(c, plans_depend_on_nothing_else, 0, 40);
    return dt_test_run(s);
}
