/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The makespan that is found without a program is that of the program's timeline, to the nanosecond. */
#include "random_plan.h"

#include "core/schedule/schedule_direct.h"
#include "core/schedule/timeline.h"

#include <inttypes.h>
#include <stdio.h>

static struct sched_fixture s; /* large: not on the stack */

static struct dt_cost *new_cost(void)
{
    const struct dt_cost_options rough = {.allow_analytical = true};
    struct dt_cost *cost;

    fx_profile(&s.f, false);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &rough, &s.err, &cost), s.err);
    return cost;
}

/* By the program that was compiled. */
static int64_t timeline_ns(struct dt_cost *cost)
{
    struct dt_timeline_topo topo = {0};
    struct dt_timeline line = {0};
    struct dt_durations d;
    int64_t ns;

    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                 s.err);
    dt_assert_ok(dt_timeline_topo_build(s.p, &s.err, &topo), s.err);
    dt_assert_ok(dt_timeline_eval(s.p, &topo, d.ns, &s.err, &line), s.err);
    ns = line.makespan_ns;
    dt_durations_free(&d);
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&line);
    return ns;
}

enum { DIRECT, EACH, CHUNKS, UNALIGNED, SPLIT, TIED, KINDS };

static int64_t glance(struct dt_cost *cost, int64_t limit_ns, bool *exact)
{
    int64_t ns = -1, first_ns;

    dt_assert_ok(dt_sched_glance(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, limit_ns, 0, &s.err,
                                 &ns, &first_ns, exact),
                 s.err);
    ck_assert(first_ns == 0 || first_ns >= ns);
    return ns;
}

/* Beyond rough_ns it is the first rule's, else as without. */
static void rough_glances(struct dt_cost *cost, int64_t all_ns)
{
    int64_t ns = -1, first_ns = 0;
    bool exact;

    dt_assert_ok(dt_sched_glance(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, 0, 1, &s.err, &ns,
                                 &first_ns, &exact),
                 s.err);
    ck_assert(first_ns > 0 ? ns == first_ns && !exact : ns == all_ns);
    dt_assert_ok(dt_sched_glance(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, 0, ns, &s.err, &ns,
                                 &first_ns, &exact),
                 s.err);
    ck_assert_int_eq(ns, all_ns);
}

/* A glance tells no less than the makespan, and that where it says so; whether it does. */
static bool glance_is_exact(struct dt_cost *cost, int64_t makespan_ns)
{
    bool exact = false;
    int64_t ns = glance(cost, 0, &exact);

    ck_assert_int_ge(ns, makespan_ns);
    ck_assert(!exact || ns == makespan_ns);
    rough_glances(cost, ns);
    return exact;
}

/* With a limit it says the same, or is given up where that is longer; whether it was. */
static bool glance_gives_up(struct dt_cost *cost, double limit)
{
    bool exact;
    int64_t all = glance(cost, 0, &exact), limit_ns = 1 + (int64_t)(limit * (double)all);
    int64_t ns = glance(cost, limit_ns, &exact);

    ck_assert(ns == all || (ns == INT64_MAX && all > limit_ns));
    return ns != all;
}

/* Is the makespan found without a program?  Then counts what it was that was found. */
static bool is_direct(struct dt_cost *cost, int *seen)
{
    struct dt_sched x;
    bool known = false;
    int64_t ns = -1;

    dt_assert_ok(dt_sched_init(&x, &s.plan, &s.f.model, &s.f.cluster, s.a, &s.err), s.err);
    x.cost = cost;
    dt_assert_ok(dt_sched_orders(&x, &s.err), s.err);
    dt_assert_ok(dt_sched_direct(&x, &s.err, &known, &ns), s.err);
    ck_assert_int_eq(known, ns >= 0);
    if (known) {
        bool each = false, chunks = false, split = false;

        for (int m = 0; m < x.n_modules; m++)
            for (int v = 0; v < x.m[m].n_v; v++) {
                each |= x.m[m].v[v].b_each;
                chunks |= x.m[m].vpp > 1;
                split |= x.m[m].v[v].split;
            }
        seen[DIRECT]++;
        seen[EACH] += each;
        seen[CHUNKS] += chunks;
        seen[UNALIGNED] += !x.aligned;
        seen[SPLIT] += split;
        seen[TIED] += x.tied_group != DT_NONE;
    }
    dt_sched_fini(&x);
    return known;
}

START_TEST(makespans_without_programs)
{
    enum { ROUNDS = 600 };
    uint64_t seed = dt_test_seed();
    int seen[KINDS] = {0}, others = 0, unsure = 0, guests = 0, given_up = 0;

    printf("seed %" PRIu64 "\n", seed);
    for (int round = 0; round < ROUNDS; round++) {
        struct dt_cost *cost;
        int64_t ns = -1;

        sf_random(&s, seed, round, round % 2);
        if (round % 3) /* most plans share no GPUs */
            for (int m = 0; m < s.plan.n_modules; m++) {
                s.plan.modules[m].with = 0;
                s.plan.modules[m].phases = false;
                s.plan.modules[m].offload = DT_OFFLOAD_NONE;
            }
        if (round % 3)
            s.plan.colocated = false;
        cost = new_cost();
        sf_assign(&s);
        if (dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &s.p) == DT_OK) {
            dt_assert_ok(
                dt_sched_makespan(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &ns),
                s.err);
            ck_assert_msg(ns == timeline_ns(cost),
                          "seed %" PRIu64 " round %d: %" PRId64 " ns, by the program %" PRId64
                          " ns",
                          seed, round, ns, timeline_ns(cost));
            others += !is_direct(cost, seen);
            unsure += !glance_is_exact(cost, ns);
            ck_assert(!glance_gives_up(cost, 1));
            guests += dt_plan_shares(&s.plan) && !s.plan.colocated;
            given_up += glance_gives_up(cost, 0.95);
            sf_free_program(&s);
        } else {
            ck_assert_int_ne(
                dt_sched_makespan(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &ns),
                DT_OK);
            dt_assign_free(s.a);
            s.a = NULL;
        }
        dt_cost_free(cost);
        sf_free(&s);
    }
    printf(
        "without a program %d (each microbatch %d, chunks %d, not aligned %d, split %d, tied %d), "
        "with one %d; %d glances that might not be right; of %d plans with guests %d are given "
        "up\n",
        seen[DIRECT], seen[EACH], seen[CHUNKS], seen[UNALIGNED], seen[SPLIT], seen[TIED], others,
        unsure, guests, given_up);
    ck_assert_int_ge(given_up, guests / 2);
    ck_assert_int_gt(others, ROUNDS / 20);
    ck_assert_int_gt(seen[DIRECT], ROUNDS / 5);
    for (int k = EACH; k < KINDS; k++)
        ck_assert_int_gt(seen[k], 3);
}
END_TEST

/* Ranks of expert parallelism take their turns together, but on the timeline they need not wait for each other. */
START_TEST(makespans_of_experts_beside_guests)
{
    enum { FROM = 1000, ROUNDS = 1500 };
    uint64_t seed = dt_test_seed();
    int seen = 0;

    for (int round = FROM; round < FROM + ROUNDS; round++) {
        bool experts = false;

        sf_random(&s, seed, round, round % 2);
        for (int m = 0; m < s.plan.n_modules; m++)
            experts |= s.plan.modules[m].layout.ep > 1;
        if (experts && dt_plan_shares(&s.plan) && !s.plan.colocated) {
            struct dt_cost *cost = new_cost();
            int64_t ns = -1;

            sf_assign(&s);
            if (dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &s.p) ==
                DT_OK) {
                dt_assert_ok(
                    dt_sched_makespan(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &ns),
                    s.err);
                ck_assert_msg(ns == timeline_ns(cost),
                              "seed %" PRIu64 " round %d: %" PRId64 " ns, by the program %" PRId64
                              " ns",
                              seed, round, ns, timeline_ns(cost));
                glance_is_exact(cost, ns);
                seen++;
                sf_free_program(&s);
            } else {
                dt_assign_free(s.a);
                s.a = NULL;
            }
            dt_cost_free(cost);
        }
        sf_free(&s);
    }
    printf("experts beside guests: %d\n", seen);
    ck_assert_int_gt(seen, ROUNDS / 100);
}
END_TEST

/* The k-th allocation fails, 0: none does.  How many there were goes to *n. */
static enum dt_status try_without(uint64_t k, uint64_t *n, int64_t *ns, bool *cost_fails)
{
    struct dt_cost *cost;
    enum dt_status st;

    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 8, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 1, 1, 2);
    sf_layout(&s, 1, 1, 2, 1, 2);
    sf_layout(&s, 2, 1, 1, 1, 2);
    s.plan.modules[1].zero = 2;
    sf_samples(&s, 8, 1, 1, false, 3);
    cost = new_cost();
    sf_assign(&s);
    dt_mem_fail_at(k);
    st = dt_sched_makespan(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, ns);
    *n = dt_mem_count();
    dt_mem_fail_at(0);
    *cost_fails = dt_cost_status(cost, NULL) != DT_OK;
    dt_assign_free(s.a);
    s.a = NULL;
    dt_cost_free(cost);
    sf_free(&s);
    return st;
}

/* Without memory nothing is found, or it is right, or the cost model says that it lacks a table. */
START_TEST(makespans_without_memory)
{
    uint64_t n, tried;
    int64_t right = -1;
    int failed = 0;
    bool cost_fails;

    ck_assert_int_eq(try_without(0, &n, &right, &cost_fails), DT_OK);
    for (uint64_t k = 1; k <= n; k++) {
        int64_t ns = -1;
        enum dt_status st = try_without(k, &tried, &ns, &cost_fails);

        ck_assert(st == DT_OK || st == DT_ERR_NOMEM);
        ck_assert_int_eq(ns >= 0, st == DT_OK);
        ck_assert(st != DT_OK || ns == right || cost_fails);
        failed += st != DT_OK;
    }
    ck_assert_int_gt(failed, 5);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("makespan");
    TCase *c = dt_test_case(u, "makespan", 120);

    tcase_add_test(c, makespans_without_programs);
    tcase_add_test(c, makespans_of_experts_beside_guests);
    tcase_add_test(c, makespans_without_memory);
    return dt_test_run(u);
}
