/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Guests' work in the bubbles of their hosts: never slower than the turns that a rule of choice gives, never beyond what memory
 * was charged for, and how near it comes to the best turns, which a search of all of them finds in tiny programs. */
#include "random_plan.h"

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

struct timed { /* a program and when its ops are */
    struct dt_program *p;
    struct dt_durations d;
    struct dt_timeline t;
    struct dt_sched_bubbles x;
};

static enum dt_status compile(struct dt_cost *cost, bool rules_alone, struct timed *out)
{
    struct dt_timeline_topo topo = {0};

    memset(out, 0, sizeof(*out));
    DT_TRY(dt_sched_compile_turns(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, rules_alone, &s.err,
                                  &out->x, &out->p));
    dt_assert_ok(dt_program_check(out->p, &s.f.model, &s.err), s.err);
    dt_assert_ok(
        dt_durations_compute(out->p, &s.f.model, &s.f.cluster, cost, false, &s.err, &out->d),
        s.err);
    dt_assert_ok(dt_timeline_topo_build(out->p, &s.err, &topo), s.err);
    dt_assert_ok(dt_timeline_eval(out->p, &topo, out->d.ns, &s.err, &out->t), s.err);
    dt_timeline_topo_free(&topo);
    return DT_OK;
}

static void timed_free(struct timed *x)
{
    dt_durations_free(&x->d);
    dt_timeline_free(&x->t);
    dt_program_free(x->p);
}

static bool is_compute(const struct dt_op *op)
{
    return dt_op_resource(op->kind) == DT_RES_COMPUTE;
}

/* The most microbatches that a lane of one chunk holds between forward and backward, if it has both, by the timeline. */
static int most_held(const struct timed *x, const struct dt_lane *l)
{
    int n[2] = {0, 0}, held = 0, most = 0;

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &x->p->ops[i];
        bool forward = op->kind == DT_OP_FORWARD;

        if ((!forward && op->kind != DT_OP_BACKWARD) || op->part + 1 != op->parts)
            continue;
        ck_assert_int_ge(x->t.end_ns[i], x->t.begin_ns[i]);
        n[forward]++;
        held += forward ? 1 : -1;
        most = held > most ? held : most;
    }
    return n[0] > 0 ? most : 0;
}

/* ---- never slower ---- */

static void check_turns(const struct timed *rules, const struct timed *all, struct dt_cost *cost)
{
    int64_t ns = -1;

    ck_assert_int_le(all->t.makespan_ns, rules->t.makespan_ns);
    ck_assert_int_le(all->x.chain_ns, all->t.makespan_ns);
    ck_assert_int_le(all->x.work_ns, all->t.makespan_ns);
    ck_assert_int_le(all->x.free_ns, all->x.ns);
    ck_assert_uint_le(all->x.moved, all->x.guest_ops);
    ck_assert_uint_eq(rules->x.moved, 0);
    for (int l = 0; l < all->p->n_lanes; l++)
        if (s.plan.modules[all->p->lanes[l].module].layout.vpp == 1)
            ck_assert_int_le(most_held(all, &all->p->lanes[l]),
                             (int)all->p->lanes[l].in_flight_max);
    dt_assert_ok(dt_sched_makespan(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &ns),
                 s.err);
    ck_assert_int_eq(ns, all->t.makespan_ns);
    if (s.plan.modules[s.f.model.llm].layout.ep > 1)
        return; /* lanes of expert groups also wait for each other in the run, which the timeline does not know */
    ck_assert_int_eq(all->x.ns, all->t.makespan_ns);
    ck_assert_int_eq(rules->x.rules_ns, rules->t.makespan_ns);
}

START_TEST(never_slower_and_never_beyond_memory)
{
    enum { ROUNDS = 400 };
    uint64_t seed = dt_test_seed();
    int guests = 0, shorter = 0;
    double gained = 0;

    printf("seed %" PRIu64 "\n", seed);
    for (int round = 0; round < ROUNDS; round++) {
        struct timed rules, all;
        struct dt_cost *cost;

        sf_random(&s, seed, round, round % 4 != 0);
        cost = new_cost();
        sf_assign(&s);
        if (!dt_plan_shares(&s.plan) || s.plan.colocated || compile(cost, true, &rules) != DT_OK) {
            dt_cost_free(cost);
            sf_free(&s);
            continue;
        }
        dt_assert_ok(compile(cost, false, &all), s.err);
        printf("round %d\n", round);
        check_turns(&rules, &all, cost);
        guests++;
        shorter += all.t.makespan_ns < rules.t.makespan_ns;
        gained += 1 - (double)all.t.makespan_ns / (double)rules.t.makespan_ns;
        timed_free(&rules);
        timed_free(&all);
        dt_cost_free(cost);
        sf_free(&s);
    }
    printf("%d programs with guests: %d are shorter, on the mean of all by %.3f %%\n", guests,
           shorter, 100 * gained / guests);
    ck_assert_int_gt(guests, 40);
    ck_assert_int_gt(shorter, 5);
}
END_TEST

/* What the busiest GPU has to do: no turns are shorter. */
static int64_t most_work(const struct timed *x)
{
    uint32_t n = (uint32_t)s.f.cluster.nodes * (uint32_t)s.f.cluster.gpus_per_node;
    int64_t *work = calloc(n, sizeof(*work)), most = 0;

    ck_assert_ptr_nonnull(work);
    for (uint32_t i = 0; i < x->p->n_ops; i++) {
        const struct dt_lane *l = &x->p->lanes[x->p->ops[i].lane];

        for (uint32_t k = 0; is_compute(&x->p->ops[i]) && k < l->gpus; k++)
            work[l->first_gpu + k] += x->d.ns[i];
    }
    for (uint32_t k = 0; k < n; k++)
        most = work[k] > most ? work[k] : most;
    free(work);
    return most;
}

/* Where a GPU's work leaves the second rule nothing, it is not tried, however soon a run counts as long: then nothing depends on
 * that.  Whether it is so. */
static bool bounds_decide(const struct timed *x, struct dt_cost *cost)
{
    int64_t ns = -1, first_ns = -1, work = most_work(x);
    bool exact;

    if (s.plan.colocated || s.plan.modules[s.f.model.llm].layout.ep > 1)
        return false; /* one rule; ranks that begin together */
    dt_assert_ok(dt_sched_glance(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, 0, 1, &s.err, &ns,
                                 &first_ns, &exact),
                 s.err);
    ck_assert(first_ns == 0 || first_ns > work + work / 50);
    return first_ns == 0 && ns <= work + work / 50;
}

/* The same where a second rule is only tried if bounds leave something open for it. */
START_TEST(long_programs)
{
    enum { ROUNDS = 250, TIMES = 24, LONG = 4096 };
    uint64_t seed = dt_test_seed();
    int near = 0, open = 0, decided = 0;

    printf("seed %" PRIu64 "\n", seed);
    for (int round = 0; round < ROUNDS; round++) {
        struct timed rules, all;
        struct dt_cost *cost;
        int64_t batch;

        sf_random(&s, seed, 4000 + round, false);
        batch = s.plan.policy.global_batch * TIMES;
        s.plan.policy.global_batch = batch;
        if (!dt_plan_shares(&s.plan) || s.plan.policy.assignment == DT_ASSIGNMENT_ENTRAIN ||
            batch > SF_SAMPLES_MAX ||
            dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err) != DT_OK) {
            sf_free(&s);
            continue;
        }
        sf_samples(&s, batch, 2, 2, true, seed + (uint64_t)round);
        cost = new_cost();
        sf_assign(&s);
        if (compile(cost, true, &rules) == DT_OK) {
            int64_t least = rules.x.chain_ns > rules.x.work_ns ? rules.x.chain_ns : rules.x.work_ns;

            dt_assert_ok(compile(cost, false, &all), s.err);
            printf("round %d: %u ops\n", round, all.p->n_ops);
            check_turns(&rules, &all, cost);
            near += all.p->n_ops > LONG && rules.x.rules_ns <= least + least / 50;
            decided += all.p->n_ops > LONG && bounds_decide(&rules, cost);
            open += all.p->n_ops > LONG && rules.x.rules_ns > least + least / 50;
            timed_free(&rules);
            timed_free(&all);
        }
        dt_cost_free(cost);
        sf_free(&s);
    }
    printf("%d long programs near their bounds, %d further off\n", near, open);
    ck_assert_int_gt(near, 0);
    ck_assert_int_gt(decided, 0);
    ck_assert_int_gt(open, 0);
}
END_TEST

/* ---- the best turns of tiny programs ---- */

enum { OPS_MAX = 512, LANES_MAX = 16, NODES_MAX = 400000 };

/* Places compute ops of lanes with one GPU each one after the other, in all ways in which no op could begin sooner without
 * another one beginning later (active schedules, Giffler and Thompson 1960: the best one is among them). */
static struct oracle {
    const struct dt_program *p;
    const int64_t *ns;
    int64_t end[OPS_MAX], behind[OPS_MAX];
    bool known[OPS_MAX];
    uint32_t next[LANES_MAX], trail[OPS_MAX], n_trail; /* per lane: its next compute op */
    int64_t gpu_free[LANES_MAX];
    int64_t best;
    int nodes;
} o;

/* Turns of the program are none of the oracle's: its own lanes' ops and communication are. */
static bool waits(uint32_t i, uint32_t d)
{
    const struct dt_op *a = &o.p->ops[i], *b = &o.p->ops[d];

    return !(is_compute(a) && is_compute(b) && a->lane != b->lane);
}

static uint32_t deps(uint32_t i, uint32_t *d)
{
    const struct dt_op *op = &o.p->ops[i];
    uint32_t n = 0;

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE && waits(i, op->dep[k]))
            d[n++] = op->dep[k];
    for (uint32_t k = 0; k < op->more_n; k++)
        if (waits(i, o.p->deps[op->more_first + k]))
            d[n++] = o.p->deps[op->more_first + k];
    if (op->kind == DT_OP_RECV)
        d[n++] = op->peer;
    return n;
}

static bool in_group(uint32_t i)
{
    return dt_op_resource(o.p->ops[i].kind) == DT_RES_COLL && o.p->ops[i].peer != DT_NONE;
}

/* When all that op i waits for has ended, members of its group included; negative: not known. */
static int64_t ready_ns(uint32_t i)
{
    const struct dt_group *g = in_group(i) ? &o.p->groups[o.p->ops[i].peer] : NULL;
    uint32_t d[64];
    int64_t at = 0;

    for (uint32_t k = 0; k < (g ? g->n : 1); k++) {
        uint32_t n = deps(g ? o.p->group_ops[g->first + k] : i, d);

        for (uint32_t j = 0; j < n; j++) {
            if (!o.known[d[j]])
                return -1;
            at = o.end[d[j]] > at ? o.end[d[j]] : at;
        }
    }
    return at;
}

static void settle(uint32_t i, int64_t end)
{
    o.known[i] = true;
    o.end[i] = end;
    o.trail[o.n_trail++] = i;
}

/* All communication that what is placed lets end. */
static void spread(void)
{
    bool more = true;

    while (more) {
        more = false;
        for (uint32_t i = 0; i < o.p->n_ops; i++)
            if (!o.known[i] && !is_compute(&o.p->ops[i]) && ready_ns(i) >= 0) {
                settle(i, ready_ns(i) + o.ns[i]);
                more = true;
            }
    }
}

static uint32_t next_compute(const struct dt_lane *l, uint32_t from)
{
    while (from < l->first + l->n && !is_compute(&o.p->ops[from]))
        from++;
    return from < l->first + l->n ? from : DT_NONE;
}

static void find_behind(void)
{
    bool more = true;

    memcpy(o.behind, o.ns, o.p->n_ops * sizeof(o.behind[0]));
    while (more) { /* until nothing grows */
        more = false;
        for (uint32_t i = o.p->n_ops; i-- > 0;) {
            uint32_t d[64], n = deps(i, d);

            for (uint32_t k = 0; k < n; k++)
                if (o.behind[d[k]] < o.ns[d[k]] + o.behind[i]) {
                    o.behind[d[k]] = o.ns[d[k]] + o.behind[i];
                    more = true;
                }
        }
    }
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void explore(void)
{
    int64_t begin[LANES_MAX], first_end = INT64_MAX;
    uint32_t marked = o.n_trail, gpu = DT_NONE;
    bool left = false;

    if (++o.nodes > NODES_MAX)
        return;
    spread();
    for (int l = 0; l < o.p->n_lanes; l++) {
        int64_t at = o.next[l] == DT_NONE ? -1 : ready_ns(o.next[l]);

        left |= o.next[l] != DT_NONE;
        begin[l] = at < 0 ? -1 : most(at, o.gpu_free[o.p->lanes[l].first_gpu]);
        if (at >= 0 && begin[l] + o.behind[o.next[l]] >= o.best)
            goto back;
        if (at >= 0 && begin[l] + o.ns[o.next[l]] < first_end) {
            first_end = begin[l] + o.ns[o.next[l]];
            gpu = o.p->lanes[l].first_gpu;
        }
    }
    if (!left) {
        int64_t last = 0;

        for (uint32_t i = 0; i < o.p->n_ops; i++)
            last = most(last, o.end[i]);
        o.best = last < o.best ? last : o.best;
    }
    for (int l = 0; left && l < o.p->n_lanes; l++) {
        const struct dt_lane *lane = &o.p->lanes[l];
        uint32_t i = o.next[l], mark = o.n_trail;
        int64_t was = o.gpu_free[lane->first_gpu];

        if (begin[l] < 0 || lane->first_gpu != gpu ||
            (begin[l] >= first_end && begin[l] + o.ns[i] != first_end))
            continue;
        settle(i, begin[l] + o.ns[i]);
        o.gpu_free[gpu] = o.end[i];
        o.next[l] = next_compute(lane, i + 1);
        explore();
        o.next[l] = i;
        o.gpu_free[gpu] = was;
        while (o.n_trail > mark)
            o.known[o.trail[--o.n_trail]] = false;
    }
back:
    while (o.n_trail > marked)
        o.known[o.trail[--o.n_trail]] = false;
}

/* The makespan in the best turns, if they are `known_ns` at most; negative: not found out. */
static int64_t best_ns(const struct timed *x, int64_t known_ns)
{
    memset(&o, 0, sizeof(o));
    o.p = x->p;
    o.ns = x->d.ns;
    o.best = known_ns + 1;
    ck_assert_uint_le(x->p->n_ops, OPS_MAX);
    ck_assert_int_le(x->p->n_lanes, LANES_MAX);
    find_behind();
    for (int l = 0; l < x->p->n_lanes; l++) {
        ck_assert_uint_eq(x->p->lanes[l].gpus, 1);
        ck_assert_uint_lt(x->p->lanes[l].first_gpu, LANES_MAX);
        o.next[l] = next_compute(&x->p->lanes[l], x->p->lanes[l].first);
    }
    explore();
    return o.nodes > NODES_MAX ? -1 : o.best;
}

/* An LLM of two or three stages and an encoder on its GPUs, up to eight forwards and backwards of which. */
static void build_tiny(struct dt_rng *r)
{
    int pp = 2 + sf_below(r, 2), dp = 1 + sf_below(r, pp), n = 2 + sf_below(r, 3);

    sf_init(&s);
    sf_encoder(&s, "encoder", 1 + sf_below(r, 10));
    sf_llm(&s, pp + sf_below(r, 8));
    sf_edge(&s, 0, 1);
    sf_plan(&s, n, 1, DT_SCHED_1F1B);
    s.plan.policy.overlap_grad = s.plan.policy.overlap_param = false;
    sf_layout(&s, 0, 1, 1, 1, dp);
    sf_layout(&s, 1, 1, pp, 1, 1);
    s.plan.modules[0].with = 2;
    sf_samples(&s, n, 1 + sf_below(r, 4), 0, sf_below(r, 2), dt_rng_u64(r));
}

START_TEST(near_the_best_turns)
{
    enum { ROUNDS = 150 };
    uint64_t seed = dt_test_seed();
    int cases = 0, best = 0, rule_best = 0;
    double behind = 0, worst = 0, rules_behind = 0, rules_worst = 0;
    struct dt_rng r;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&r, seed, 31);
    for (int round = 0; round < ROUNDS; round++) {
        struct timed rules, all;
        struct dt_cost *cost;
        int64_t ns;

        build_tiny(&r);
        cost = new_cost();
        sf_assign(&s);
        dt_assert_ok(compile(cost, true, &rules), s.err);
        dt_assert_ok(compile(cost, false, &all), s.err);
        ns = best_ns(&all, all.t.makespan_ns);
        if (ns >= 0) {
            double over = (double)all.t.makespan_ns / (double)ns - 1;
            double by_rules = (double)rules.t.makespan_ns / (double)ns - 1;

            ck_assert_int_le(ns, all.t.makespan_ns);
            ck_assert_int_le(all.x.chain_ns, ns);
            ck_assert_int_le(all.x.work_ns, ns);
            cases++;
            best += over <= 0;
            rule_best += by_rules <= 0;
            behind += over;
            rules_behind += by_rules;
            worst = fmax(worst, over);
            rules_worst = fmax(rules_worst, by_rules);
        }
        timed_free(&rules);
        timed_free(&all);
        dt_cost_free(cost);
        sf_free(&s);
    }
    printf("%d programs: in the best turns %d (by rules %d), behind them by %.3f %% on the mean "
           "(%.3f), at most %.2f %% (%.2f)\n",
           cases, best, rule_best, 100 * behind / cases, 100 * rules_behind / cases, 100 * worst,
           100 * rules_worst);
    ck_assert_int_gt(cases, ROUNDS / 2);
    ck_assert_int_gt(best, rule_best);
    ck_assert_double_lt(behind / cases, 0.5 * rules_behind / cases);
}
END_TEST

/* ---- in closed form ---- */

static int64_t last_backward_ns(const struct timed *x, int module)
{
    int64_t last = 0;

    for (uint32_t i = 0; i < x->p->n_ops; i++)
        if (x->p->ops[i].module == module && x->p->ops[i].kind == DT_OP_BACKWARD)
            last = most(last, x->t.end_ns[i]);
    return last;
}

static int64_t first_begin_ns(const struct timed *x, int module)
{
    int64_t first = INT64_MAX;

    for (uint32_t i = 0; i < x->p->n_ops; i++)
        if (x->p->ops[i].module == module && x->p->ops[i].kind == DT_OP_FORWARD)
            first = first < x->t.begin_ns[i] ? first : x->t.begin_ns[i];
    return first;
}

/* With as many microbatches as stages, each encoded on GPUs of its own by an encoder whose forwards fit into the bubbles in which
 * the pipeline fills, and its backwards into those in which it drains, the LLM takes as long as alone, from the first encoder's
 * end on. */
START_TEST(an_encoder_in_the_warm_up)
{
    for (int pp = 2; pp <= 6; pp++) {
        struct timed alone, with;
        struct dt_cost *cost;
        int64_t alone_ns;

        sf_init(&s);
        sf_llm(&s, 4 * pp);
        sf_plan(&s, pp, 1, DT_SCHED_1F1B);
        sf_layout(&s, 0, 1, pp, 1, 1);
        sf_samples(&s, pp, 1, 0, false, 7);
        cost = new_cost();
        sf_assign(&s);
        dt_assert_ok(compile(cost, false, &alone), s.err);
        alone_ns = last_backward_ns(&alone, 0) - first_begin_ns(&alone, 0);
        timed_free(&alone);
        dt_cost_free(cost);
        sf_free(&s);

        sf_init(&s);
        sf_encoder(&s, "encoder", 1);
        sf_llm(&s, 4 * pp);
        sf_edge(&s, 0, 1);
        sf_plan(&s, pp, 1, DT_SCHED_1F1B);
        sf_layout(&s, 0, 1, 1, 1, pp);
        sf_layout(&s, 1, 1, pp, 1, 1);
        s.plan.modules[0].with = 2;
        sf_samples(&s, pp, 1, 0, false, 7);
        cost = new_cost();
        sf_assign(&s);
        dt_assert_ok(compile(cost, false, &with), s.err);
        ck_assert_int_eq(last_backward_ns(&with, 1) - first_begin_ns(&with, 1), alone_ns);
        timed_free(&with);
        dt_cost_free(cost);
        sf_free(&s);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bubbles");
    TCase *tc = dt_test_case(suite, "bubbles", 120);

    tcase_add_test(tc, never_slower_and_never_beyond_memory);
    tcase_add_test(tc, long_programs);
    tcase_add_test(tc, near_the_best_turns);
    tcase_add_test(tc, an_encoder_in_the_warm_up);
    return dt_test_run(suite);
}
