/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * More memory, more GPUs, more bandwidth or a wider space do not make the chosen plan slower, by timeline, in small random
 * worlds.  The search keeps what a formula says is fast, and among layouts that the formula tells apart the worse one may
 * have the shorter timeline; so this holds nearly always and nearly, and the test says how nearly. */
#include "small_world.h"

enum { WORLDS = 24 };
#define NEARLY 0.01 /* plans within 0.1 % count as equal */
#define WORST 0.15
#define SHARE 0.05 /* of all comparisons may be off by more than NEARLY */

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

int main(void)
{
    Suite *s = suite_create("search_more");
    TCase *c = dt_test_case(s, "all", 120);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_test(c, more_is_no_slower);
    return dt_test_run(s);
}
