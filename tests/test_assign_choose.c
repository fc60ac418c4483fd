/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The way of ordering that a batch gets, against every way compiled whole and timed op by op, on random plans and batches;
 * budgets; memory. */
#include "core/schedule/assign_choose.h"
#include "base/mem.h"
#include "core/schedule/timeline.h"
#include "sched_fixture.h"
#include "random_plan.h"

#include <inttypes.h>

enum { ROUNDS = 160 };

/* By name, as the choice has them. */
static const struct {
    const char *name;
    bool intra, inter, entrain;
} ways[] = {{"both", true, true, false},
            {"entrain", false, false, true},
            {"inter", false, true, false},
            {"intra", true, false, false},
            {"none", false, false, false}};
enum { WAYS = sizeof ways / sizeof ways[0] };

static struct dt_cost *cost_of(struct sched_fixture *s)
{
    const struct dt_cost_options o = {.allow_analytical = true};
    struct dt_cost *c;

    dt_assert_ok(dt_cost_new(&s->f.model, &s->f.cluster, &s->f.profile, &o, &s->err, &c), s->err);
    return c;
}

/* Its plan; false where it has none. */
static bool state(const struct sched_fixture *s, int way, struct dt_plan *p)
{
    *p = s->plan;
    p->policy.batch_reorder = false;
    p->policy.intra_reorder = ways[way].intra;
    p->policy.inter_reorder = ways[way].inter;
    p->policy.assignment = ways[way].entrain ? DT_ASSIGNMENT_ENTRAIN : DT_ASSIGNMENT_SLOTS;
    return !ways[way].entrain || dt_plan_check_entrain(p, &s->f.model, NULL) == DT_OK;
}

/* The end of the last op of its program; INT64_MAX where it has none. */
static int64_t timed(struct sched_fixture *s, struct dt_cost *c, int way)
{
    struct dt_timeline t = {0};
    struct dt_durations d;
    struct dt_assignment *a;
    struct dt_program *program;
    struct dt_plan p;
    int64_t last = 0;

    if (!state(s, way, &p))
        return INT64_MAX;
    dt_assert_ok(dt_assign(&p, &s->f.model, c, &s->samples, 0, &s->err, &a), s->err);
    dt_assert_ok(dt_sched_compile(&p, &s->f.model, &s->f.cluster, a, c, &s->err, &program), s->err);
    dt_assert_ok(dt_durations_compute(program, &s->f.model, &s->f.cluster, c, false, &s->err, &d),
                 s->err);
    dt_assert_ok(dt_timeline_once(program, d.ns, &s->err, &t), s->err);
    for (uint32_t i = 0; i < t.n_ops; i++)
        last = t.end_ns[i] > last ? t.end_ns[i] : last;
    dt_timeline_free(&t);
    dt_durations_free(&d);
    dt_program_free(program);
    dt_assign_free(a);
    return last;
}

static void same_assignment(const struct dt_assignment *a, const struct dt_assignment *b)
{
    for (int m = 0; m < a->n_modules; m++) {
        const struct dt_assignment_module *x = &a->m[m], *y = &b->m[m];
        uint32_t n = x->mb_first[x->n_replicas];

        ck_assert_int_eq(x->n_replicas, y->n_replicas);
        ck_assert_uint_eq(n, y->mb_first[y->n_replicas]);
        for (uint32_t i = 0; i < n; i++) {
            ck_assert_uint_eq(x->mb[i].n, y->mb[i].n);
            for (uint32_t k = 0; k < x->mb[i].n; k++)
                ck_assert_int_eq(x->samples[x->mb[i].first + k], y->samples[y->mb[i].first + k]);
        }
    }
}

/* The program of the chosen assignment is a program of the plan itself, which is what executes it. */
static void check_program(struct sched_fixture *s, struct dt_cost *c, const struct dt_assignment *a)
{
    struct dt_program *p;

    dt_assert_ok(dt_sched_compile(&s->plan, &s->f.model, &s->f.cluster, a, c, &s->err, &p), s->err);
    dt_assert_ok(dt_program_check(p, &s->f.model, &s->err), s->err);
    dt_program_free(p);
}

static void open_world(struct sched_fixture *s, int round)
{
    sf_random(s, dt_test_seed(), round, round % 2);
    s->plan.policy.assignment = DT_ASSIGNMENT_SLOTS;
    s->plan.policy.intra_reorder = s->plan.policy.inter_reorder = true;
    s->plan.policy.batch_reorder = true;
    s->plan.policy.reorder_budget_s = 3600;
    dt_assert_ok(dt_plan_place(&s->plan, &s->f.cluster, &s->err), s->err);
    dt_assert_ok(dt_plan_validate(&s->plan, &s->f.model, &s->f.cluster, &s->err), s->err);
}

START_TEST(the_fastest_of_all_ways)
{
    static struct sched_fixture s;
    int won[WAYS] = {0}, several = 0;

    ck_assert_int_eq(WAYS, DT_WAY_N);
    for (int k = 0; k < WAYS; k++)
        ck_assert_str_eq(ways[k].name, dt_assign_way_names[k]);
    for (int round = 0; round < ROUNDS; round++) {
        struct dt_assignment *a, *b;
        struct dt_assign_choice got;
        struct dt_plan p;
        struct dt_cost *c;
        int64_t ns[WAYS];
        int best = 0;

        open_world(&s, round);
        c = cost_of(&s);
        for (int k = 0; k < WAYS; k++) {
            ns[k] = timed(&s, c, k);
            best = ns[k] < ns[best] ? k : best;
        }
        dt_assert_ok(
            dt_assign_choose(&s.plan, &s.f.model, &s.f.cluster, c, &s.samples, 0, &s.err, &a, &got),
            s.err);
        ck_assert(got.by_batch);
        for (int k = 0; k < WAYS; k++)
            ck_assert_msg(got.ns[k] == ns[k],
                          "seed %" PRIu64 " round %d, %s: %" PRId64 " ns, by its program %" PRId64
                          " ns",
                          dt_test_seed(), round, ways[k].name, got.ns[k], ns[k]);
        ck_assert_int_eq(got.way, best);
        ck_assert(state(&s, best, &p));
        dt_assert_ok(dt_assign(&p, &s.f.model, c, &s.samples, 0, &s.err, &b), s.err);
        same_assignment(a, b);
        check_program(&s, c, a);
        won[best]++;
        several += ns[WAYS - 1] != ns[best];
        dt_assign_free(a);
        dt_assign_free(b);
        dt_cost_free(c);
        sf_free(&s);
    }
    ck_assert_int_gt(several, ROUNDS / 4); /* else there is nothing to choose */
    ck_assert_int_gt(won[DT_WAY_BOTH], 0);
    ck_assert_int_gt(won[DT_WAY_ENTRAIN] + won[DT_WAY_INTER] + won[DT_WAY_INTRA] + won[DT_WAY_NONE],
                     ROUNDS / 20);
}
END_TEST

/* A budget for less than one program still has one way; more budget never has a longer timeline. */
START_TEST(budgets_take_ways_by_name)
{
    static struct sched_fixture s;
    int fewer = 0;

    for (int round = 0; round < ROUNDS / 4; round++) {
        int64_t before = INT64_MAX;
        struct dt_cost *c;
        int tried_before = 0;

        open_world(&s, round);
        c = cost_of(&s);
        for (double budget = 1e-6; budget < 1; budget *= 2) {
            struct dt_assignment *a;
            struct dt_assign_choice got;
            int tried = 0;

            s.plan.policy.reorder_budget_s = budget;
            dt_assert_ok(dt_assign_choose(&s.plan, &s.f.model, &s.f.cluster, c, &s.samples, 0,
                                          &s.err, &a, &got),
                         s.err);
            for (int k = 0; k < WAYS; k++)
                tried += got.ns[k] < INT64_MAX;
            ck_assert_int_lt(got.ns[0], INT64_MAX);
            ck_assert_int_ge(tried, tried_before);
            ck_assert_int_le(got.ns[got.way], before);
            fewer += tried == 1;
            tried_before = tried;
            before = got.ns[got.way];
            dt_assign_free(a);
        }
        dt_cost_free(c);
        sf_free(&s);
    }
    ck_assert_int_gt(fewer, ROUNDS / 4);
}
END_TEST

/* Without it the plan's own way, untimed; memory that holds no way leaves the stated one to whoever checks it. */
START_TEST(other_plans_keep_their_way)
{
    static struct sched_fixture s;
    struct dt_assignment *a, *b;
    struct dt_assign_choice got;
    struct dt_cost *c;

    open_world(&s, 1);
    c = cost_of(&s);
    for (int k = 0; k < WAYS; k++) {
        struct dt_plan p;

        if (!state(&s, k, &p))
            continue;
        dt_assert_ok(
            dt_assign_choose(&p, &s.f.model, &s.f.cluster, c, &s.samples, 0, &s.err, &a, &got),
            s.err);
        ck_assert(!got.by_batch);
        ck_assert_int_eq(got.way, k);
        ck_assert_int_eq(got.ns[k], INT64_MAX);
        dt_assert_ok(dt_assign(&p, &s.f.model, c, &s.samples, 0, &s.err, &b), s.err);
        same_assignment(a, b);
        dt_assign_free(a);
        dt_assign_free(b);
    }
    s.f.cluster.mem_bytes = s.f.cluster.mem_reserve_bytes + 1;
    dt_assert_ok(
        dt_assign_choose(&s.plan, &s.f.model, &s.f.cluster, c, &s.samples, 0, &s.err, &a, &got),
        s.err);
    ck_assert_int_eq(got.way, DT_WAY_BOTH);
    for (int k = 0; k < WAYS; k++)
        ck_assert_int_eq(got.ns[k], INT64_MAX);
    dt_assign_free(a);
    dt_cost_free(c);
    sf_free(&s);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    static struct sched_fixture s;
    struct dt_cost *c;
    int failed = 0;

    open_world(&s, 1);
    c = cost_of(&s);
    for (uint64_t k = 1;; k++) {
        struct dt_assignment *a = NULL;
        enum dt_status st;
        bool reached;

        dt_mem_fail_at(k);
        st =
            dt_assign_choose(&s.plan, &s.f.model, &s.f.cluster, c, &s.samples, 0, &s.err, &a, NULL);
        reached = dt_mem_count() >= k;
        dt_mem_fail_at(0);
        if (st == DT_OK)
            dt_assign_free(a);
        if (!reached)
            break;
        failed += st == DT_ERR_NOMEM;
        ck_assert(st == DT_OK || st == DT_ERR_NOMEM);
    }
    ck_assert_int_gt(failed, 10);
    dt_cost_free(c);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("assign_choose");
    TCase *tc = dt_test_case(suite, "choice", 120);

    tcase_add_test(tc, the_fastest_of_all_ways);
    tcase_add_test(tc, budgets_take_ways_by_name);
    tcase_add_test(tc, other_plans_keep_their_way);
    tcase_add_test(tc, every_allocation_may_fail);
    return dt_test_run(suite);
}
