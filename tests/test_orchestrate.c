/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Orchestration: the formula, ranking, baselines, refusals.  (The search itself: test_search.c; the convex problem:
 * test_convex.c.) */
#include "core/schedule/assign.h"
#include "core/schedule/timeline.h"
#include "small_world.h"

/* ---- the formula against 1F1B ---- */

START_TEST(formula_and_1f1b)
{
    for (int t = 0; t < 300; t++) {
        enum { P = 7, N = 23 };
        double f[P * N], b[P * N], warm = 0, longest = 0, formula, real;
        int p = 1 + below(P), n = p + below(N - P), slow = below(p), order[N];
        int kind = t % 3; /* uniform, last stage slowest, any stage slowest */
        struct dt_assign_chain c = {p, n, f, b};

        if (kind == 1)
            slow = p - 1;
        for (int s = 0; s < p; s++) {
            double fwd = kind == 0 ? 1.37 : s == slow ? 2.385 : uniform(0.3, 2.385);

            for (int k = 0; k < n; k++) {
                f[s * n + k] = fwd;
                b[s * n + k] = 2 * fwd;
            }
            warm += 3 * fwd;
            longest = fmax(longest, 3 * fwd);
        }
        for (int k = 0; k < n; k++)
            order[k] = k;
        formula = warm + (n - 1) * longest;
        real = dt_assign_chain_makespan(&c, order);
        if (kind < 2)
            ck_assert_double_eq_tol(real / formula, 1, 1e-12);
        ck_assert_msg(real <= formula * (1 + 1e-12) && real >= 0.7 * formula,
                      "seed %" PRIu64 " case %d: %g of %g", seed, t, real, formula);
    }
}
END_TEST

START_TEST(ranking_by_timeline)
{
    struct dt_search_result r, formula;
    struct dt_orch_binding binding;
    struct dt_error err;
    struct world w;

    build_world(&w, 1, 1, 12);
    w.in.opt.gpus = 16;
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &formula), err);
    w.in.opt.rank = true;
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), err);
    for (int i = 0; i < r.n; i++) {
        double s = 0, bytes = 0;

        dt_assert_ok(dt_orch_plan_timeline_s(&w.in, &r.plans[i], 0, &err, &s, &bytes), err);
        ck_assert_double_le(r.plans[0].predicted.timeline_s, 1.001 * s);
        if (r.plans[i].predicted.timeline_s == 0) { /* its bound was enough */
            ck_assert_int_gt(i, 0);
            continue;
        }
        if (r.plans[i].predicted.timeline_s <= 0.9999 * r.plans[0].predicted.timeline_s)
            ck_assert_int_gt(dt_plan_gpus(&r.plans[i]), dt_plan_gpus(&r.plans[0]));
        ck_assert_double_eq(s, r.plans[i].predicted.timeline_s);
        ck_assert_double_eq(bytes, r.plans[i].predicted.mem_bytes_max);
    }
    dt_assert_ok(dt_orch_plan_binding(&w.in, &r.plans[0], &err, &binding), err);
    for (int m = 0; m < 3; m++) {
        ck_assert_double_le(binding.interval_s[m], binding.interval_s[binding.module]);
        ck_assert_double_le(binding.ideal_s[m], binding.interval_s[m] * (1 + 1e-12));
    }
    dt_assert_has(binding.why, r.plans[0].module_names[binding.module]);
    dt_assert_has(binding.why, "GPUs");
    dt_search_result_free(&formula);
    dt_search_result_free(&r);
    free_world(&w);
}
END_TEST

static const struct dt_orch_keep keep = {8, 8, 0, DT_ORCH_PER_KEY};

/* No timeline undercuts the bound by which plans are left out of the ranking. */
START_TEST(bound_of_timelines)
{
    int asked = 0;

    for (int round = 0; round < 6; round++) {
        struct dt_search_stats stats = {0};
        struct dt_orch_cand c[8];
        struct dt_error err;
        struct dt_orch_table *t;
        struct world w;
        int n;

        build_world(&w, 1, 1, 12);
        w.in.opt.gpus = 16;
        dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
        dt_assert_ok(dt_orch_search(t, NULL, &keep, &err, c, &n, &stats), err);
        for (int i = 0; i < n; i++) {
            double s, least;
            struct dt_plan p;

            dt_assert_ok(dt_orch_cand_plan(t, &c[i], DT_STRATEGY_DISTTRAIN, &err, &p), err);
            for (int m = 0; m < p.n_modules && i % 2; m++)
                p.modules[m].zero = below(DT_ZERO_MAX + 1);
            if (dt_orch_plan_timeline_s(&w.in, &p, 0, &err, &s, NULL) != DT_OK)
                continue;
            least = dt_orch_plan_least_s(t, &p);
            ck_assert_msg(least > 0.1 * s && least <= 1.003 * s,
                          "seed %" PRIu64 " round %d plan %d: bound %g, timeline %g", seed, round,
                          i, least, s);
            asked++;
        }
        dt_orch_table_free(t);
        free_world(&w);
    }
    ck_assert_int_gt(asked, 10);
}
END_TEST

/* Seconds of a module's syncs and gathers on its busiest lane, by the durations of a program's ops. */
static double program_collectives_s(const struct dt_program *prog, const struct dt_durations *dur,
                                    int m)
{
    double most = 0;

    for (int l = 0; l < prog->n_lanes; l++) {
        double sum = 0;

        for (uint32_t i = prog->lanes[l].first; i < prog->lanes[l].first + prog->lanes[l].n; i++)
            if (prog->ops[i].kind == DT_OP_GRAD_SYNC || prog->ops[i].kind == DT_OP_PARAM_GATHER)
                sum += prog->ops[i].flags & DT_OPF_TIED ? 0 : 1e-9 * (double)dur->ns[i];
        if (prog->lanes[l].module == m)
            most = fmax(most, sum);
    }
    return most;
}

/* All stages of a module lie in one node, or fill nodes from the first on: where the formula takes them to lie. */
static bool lies_best(const struct world *w, const struct dt_plan *p, int m)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    int node = w->in.cluster->gpus_per_node, room = l->tp < node ? node / l->tp : 1;
    int ranks = l->dp * l->cp * l->ip;
    bool best = true;

    for (int stage = 0; stage < l->pp; stage++) {
        int ahead = dt_plan_ranks_ahead(p, m, stage, node);

        best &= ahead + ranks <= room || (ahead == 0 && ranks % room == 0);
    }
    return best;
}

/* What the formula says that a module exchanges is what its program does, or less where its stages could lie better, and no
 * plan is faster by it than these collectives one after the other, but for the first slot. */
static void check_exchange(const struct world *w, const struct dt_plan *p,
                           const struct dt_program *prog, const struct dt_durations *dur)
{
    double slots = (double)dt_plan_slots(p, w->in.model->llm);
    struct dt_plan_prediction q;

    dt_orch_formula(&w->in, p, &q);
    for (int m = 0; m < p->n_modules; m++) {
        double each = dt_orch_plan_exchange_s(&w->in, p, m), all;

        if (p->modules[m].zero < 2) {
            ck_assert_double_eq(each, 0);
            continue;
        }
        all = program_collectives_s(prog, dur, m);
        ck_assert_msg(each * slots <= all + 1e-6 * all + 1e-6 &&
                          (!lies_best(w, p, m) || each * slots >= all - 1e-6 * all - 1e-6),
                      "seed %" PRIu64 " module %d: %g s in %g slots, the program's take %g s", seed,
                      m, each, slots, all);
        ck_assert_double_ge(q.staged_s, each * (slots - 1) * (1 - 1e-6));
    }
}

/* What ranking asks for is what the program gives, with guests, collectives of each microbatch and list schedules, and no
 * lane's collectives take longer than that. */
static void check_makespan(const struct world *w, const struct dt_plan *p, int *guests, int *each)
{
    const struct dt_search_input *in = &w->in;
    struct dt_timeline_topo topo = {0};
    struct dt_timeline line = {0};
    struct dt_assignment *a;
    struct dt_durations dur;
    struct dt_program *prog;
    struct dt_error err;
    int64_t ns = 0;

    dt_assert_ok(dt_assign(p, in->model, in->cost, in->samples, 0, &err, &a), err);
    if (dt_sched_compile(p, in->model, in->cluster, a, in->cost, &err, &prog) != DT_OK) {
        ck_assert_int_ne(dt_sched_makespan(p, in->model, in->cluster, a, in->cost, &err, &ns),
                         DT_OK);
        dt_assign_free(a);
        return;
    }
    dt_assert_ok(dt_durations_compute(prog, in->model, in->cluster, in->cost, false, &err, &dur),
                 err);
    dt_assert_ok(dt_timeline_topo_build(prog, &err, &topo), err);
    dt_assert_ok(dt_timeline_eval(prog, &topo, dur.ns, &err, &line), err);
    dt_assert_ok(dt_sched_makespan(p, in->model, in->cluster, a, in->cost, &err, &ns), err);
    ck_assert_int_eq(ns, line.makespan_ns);
    for (int m = 0; m < p->n_modules; m++) {
        double least = p->modules[m].layout.dp <= dt_plan_slot_samples(p, in->model->llm)
                           ? dt_sched_collectives_s(p, in->model, in->cluster, in->cost, m,
                                                    dt_plan_slots(p, in->model->llm))
                           : 0;

        ck_assert_double_le(least, 1e-9 * (double)ns * (1 + 1e-6) + 1e-6);
        *each += least > 0;
    }
    *guests += dt_plan_shares(p);
    check_exchange(w, p, prog, &dur);
    dt_timeline_free(&line);
    dt_timeline_topo_free(&topo);
    dt_durations_free(&dur);
    dt_program_free(prog);
    dt_assign_free(a);
}

START_TEST(makespans_are_those_of_programs)
{
    int guests = 0, each = 0;

    for (int round = 0; round < 8; round++) {
        struct dt_search_result r;
        struct dt_error err;
        struct world w;

        printf("seed %" PRIu64 " round %d\n", seed, round);
        build_world(&w, 1, 1, 12);
        w.in.opt.gpus = 16;
        w.in.opt.k = 40;
        w.in.opt.guests = round % 2 ? ~0u : 0;
        w.in.opt.rank = round % 2;
        w.in.opt.schedules =
            1U << DT_SCHED_1F1B | 1U << DT_SCHED_INTERLEAVED | 1U << DT_SCHED_ZB_H1;
        if (dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r) == DT_OK) {
            for (int i = 0; i < r.n; i++) {
                for (int m = 0; m < r.plans[i].n_modules; m++)
                    r.plans[i].modules[m].zero = below(DT_ZERO_MAX + 1);
                check_makespan(&w, &r.plans[i], &guests, &each);
            }
            dt_search_result_free(&r);
        }
        free_world(&w);
    }
    ck_assert_int_gt(guests, 3);
    ck_assert_int_gt(each, 10);
}
END_TEST

/* At quick effort there is a plan wherever there is one, it is as right as any other, and seldom much slower. */
START_TEST(quick_plans)
{
    enum { ROUNDS = 24 };
    double sum = 0, worst = 0;
    int n = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct dt_search_result normal, quick;
        struct dt_assignment *a;
        struct dt_program *prog;
        double s[2] = {0, 0};
        struct dt_error err;
        enum dt_status st;
        struct world w;

        build_world(&w, 1, 1, 12);
        w.in.opt.gpus = 8 << round % 3;
        w.in.opt.rank = true;
        w.in.opt.guests = round % 4 ? ~0u : 0;
        w.in.opt.max_microbatch = 4;
        w.in.opt.schedules =
            1U << DT_SCHED_1F1B | 1U << DT_SCHED_INTERLEAVED | 1U << DT_SCHED_ZB_H1;
        for (int m = 0; m < w.in.model->n_modules; m++) {
            w.in.opt.recompute[m] = (1U << DT_ORCH_RECOMPUTE_N) - 1;
            w.in.opt.zero[m] = (2U << DT_ZERO_MAX) - 1;
        }
        st = dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &normal);
        w.in.opt.effort = DT_EFFORT_QUICK;
        ck_assert_msg(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &quick) == st,
                      "seed %" PRIu64 " round %d: %s", seed, round, err.message);
        if (st == DT_OK) {
            const struct dt_plan *p = &quick.plans[0];

            dt_assert_ok(dt_plan_validate(p, w.in.model, w.in.cluster, &err), err);
            dt_assert_ok(dt_assign(p, w.in.model, w.in.cost, w.in.samples, 0, &err, &a), err);
            dt_assert_ok(dt_sched_compile(p, w.in.model, w.in.cluster, a, w.in.cost, &err, &prog),
                         err);
            dt_assert_ok(dt_program_check(prog, w.in.model, &err), err);
            dt_assert_ok(dt_orch_plan_timeline_s(&w.in, p, 0, &err, &s[1], NULL), err);
            dt_assert_ok(dt_orch_plan_timeline_s(&w.in, &normal.plans[0], 0, &err, &s[0], NULL),
                         err);
            printf("seed %" PRIu64 " round %d: %g s, normal %g s (%+.1f %%)\n", seed, round, s[1],
                   s[0], 100 * (s[1] / s[0] - 1));
            sum += s[1] / s[0];
            worst = fmax(worst, s[1] / s[0]);
            n++;
            dt_program_free(prog);
            dt_assign_free(a);
            dt_search_result_free(&normal);
            dt_search_result_free(&quick);
        }
        free_world(&w);
    }
    ck_assert_int_gt(n, ROUNDS / 3);
    ck_assert_msg(sum / n < 1.06 && worst < 1.5, "mean %g, worst %g", sum / n, worst);
}
END_TEST

/* A long program is ranked by some of its broker groups, which keep their shape. */
START_TEST(share_of_replicas)
{
    static const int dp[][3] = {{64, 64, 64}, {16, 48, 48}, {320, 960, 320}, {7, 5, 3}, {6, 9, 12}};
    struct dt_plan p, q;

    for (size_t i = 0; i < sizeof(dp) / sizeof(dp[0]); i++) {
        int64_t slots;

        memset(&p, 0, sizeof(p));
        p.n_modules = 3;
        for (int m = 0; m < 3; m++)
            p.modules[m].layout = (struct dt_plan_layout){1, 1, 1, 1 + m, 1, dp[i][m], 1, 0};
        p.policy.microbatch = 2;
        p.policy.global_batch = 2LL * dp[i][1] * 20;
        slots = dt_plan_slots(&p, 1);
        ck_assert(!dt_orch_plan_share(&p, 1, 1e9, &q));
        if (i == 3) { /* one group: nothing to leave out */
            ck_assert(!dt_orch_plan_share(&p, 1, 1, &q));
            continue;
        }
        ck_assert(dt_orch_plan_share(&p, 1, 1, &q)); /* a single group, however long */
        ck_assert_int_eq(dt_plan_slots(&q, 1), slots);
        for (int m = 0; m < 3; m++) {
            ck_assert_int_eq(q.modules[m].layout.dp * dp[i][0], q.modules[0].layout.dp * dp[i][m]);
            ck_assert_int_eq(q.modules[m].layout.pp, 1 + m);
        }
        ck_assert_int_eq(q.policy.global_batch * dp[i][1],
                         p.policy.global_batch * q.modules[1].layout.dp);
        ck_assert(!dt_orch_plan_share(&q, 1, 1, &p) || q.modules[0].layout.dp < dp[i][0]);
    }
}
END_TEST

/* Nanoseconds of the first step of a module of the plan's program. */
static int64_t step_ns(const struct world *w, const struct dt_plan *p, int module)
{
    const struct dt_search_input *in = &w->in;
    struct dt_assignment *a;
    struct dt_durations dur;
    struct dt_program *prog;
    struct dt_error err;
    int64_t ns = -1;

    dt_assert_ok(dt_assign(p, in->model, in->cost, in->samples, 0, &err, &a), err);
    dt_assert_ok(dt_sched_compile(p, in->model, in->cluster, a, in->cost, &err, &prog), err);
    dt_assert_ok(dt_durations_compute(prog, in->model, in->cluster, in->cost, false, &err, &dur),
                 err);
    for (uint32_t i = 0; i < prog->n_ops && ns < 0; i++)
        if (prog->ops[i].kind == DT_OP_STEP && prog->ops[i].module == module)
            ns = dur.ns[i];
    dt_durations_free(&dur);
    dt_program_free(prog);
    dt_assign_free(a);
    return ns;
}

/* Some replicas stand for all of them, which share out the optimizer's states: on the host each steps what it does in the whole plan,
 * a 16th of the parameters. */
START_TEST(a_share_steps_what_the_plan_does)
{
    struct dt_plan p, q;
    struct dt_error err;
    struct world w;
    int llm;

    build_world(&w, 1, 0, 32);
    llm = w.in.model->llm;
    w.fx.cluster.nodes = 4;
    dt_search_plan_init(&w.in, &p);
    for (int m = 0; m < p.n_modules; m++) {
        p.modules[m].layout.dp = 16;
        p.modules[m].offload = DT_OFFLOAD_OPTIMIZER;
        p.modules[m].split[1] = (uint16_t)w.in.model->modules[m].n_blocks;
    }
    w.fx.cluster.host_bytes_per_s = 2e10;
    w.fx.cluster.host_mem_bytes_per_s = 1e11;
    dt_assert_ok(dt_plan_place(&p, w.in.cluster, &err), err);
    ck_assert(dt_orch_plan_share(&p, llm, 1, &q));
    ck_assert_int_eq(q.modules[llm].layout.dp, 1);
    dt_plan_unpin(&q);
    dt_assert_ok(dt_plan_place(&q, w.in.cluster, &err), err);
    for (int m = 0; m < p.n_modules; m++) {
        int64_t whole = step_ns(&w, &p, m), share = step_ns(&w, &q, m);

        printf("%s: %" PRId64 " and %" PRId64 " ns\n", w.in.model->modules[m].name, whole, share);
        ck_assert_int_gt(whole, 0);
        ck_assert_int_eq(whole, share);
    }
    free_world(&w);
}
END_TEST

static double on_hosts(const struct world *w, int zero)
{
    struct dt_work work[DT_MAX_MODULES];
    struct dt_memory_host host;
    struct dt_error err;
    struct dt_plan p;

    dt_search_plan_init(&w->in, &p);
    for (int m = 0; m < p.n_modules; m++) {
        p.modules[m].layout.dp = 8;
        p.modules[m].zero = zero;
        p.modules[m].split[1] = (uint16_t)w->in.model->modules[m].n_blocks;
    }
    dt_assert_ok(dt_plan_place(&p, w->in.cluster, &err), err);
    dt_search_largest_work(&w->in, &p, work);
    dt_assert_ok(dt_memory_host(&p, w->in.model, w->in.cluster, work, &err, &host), err);
    return host.all_bytes;
}

/* No plan has less on its hosts than is refused before any is looked at, and one that shares all of it has just that. */
START_TEST(floor_of_hosts)
{
    for (unsigned offloads = 1; offloads < 8; offloads++)
        for (unsigned frozen = 0; frozen < 8; frozen++) {
            struct dt_orch_table *t;
            struct dt_error err;
            struct world w;
            double floor;

            build_world(&w, 1, 0, 32);
            w.fx.cluster.nodes = 4;
            w.fx.cluster.host_bytes_per_s = 2e10;
            for (int m = 0; m < w.in.model->n_modules; m++) {
                w.in.offload[m] = offloads >> m & 1 ? DT_OFFLOAD_OPTIMIZER : DT_OFFLOAD_NONE;
                w.in.frozen[m] = frozen >> m & 1;
            }
            dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
            floor = dt_orch_hosts_floor_bytes(t);
            for (int zero = 0; zero <= DT_ZERO_MAX; zero++)
                ck_assert_double_le(floor, on_hosts(&w, zero) * (1 + 1e-6));
            ck_assert_double_ge(floor, on_hosts(&w, 1) * (1 - 1e-3));
            ck_assert_double_le(8 * floor, on_hosts(&w, 0) * (1 + 1e-6));
            w.fx.cluster.host_mem_bytes = floor / 4 + 1;
            ck_assert(!dt_orch_hosts_hold_none(t));
            w.fx.cluster.host_mem_bytes = floor / 4 - 1;
            ck_assert(floor <= 4 || dt_orch_hosts_hold_none(t));
            dt_orch_table_free(t);
            free_world(&w);
        }
}
END_TEST

START_TEST(lean_variant)
{
    struct dt_search_stats stats = {0};
    struct dt_orch_cand c[8], lean;
    struct dt_error err;
    struct dt_orch_table *t;
    struct world w;
    int n;

    build_world(&w, 1, 1, 12);
    w.in.opt.gpus = 16;
    dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
    dt_assert_ok(dt_orch_search(t, NULL, &keep, &err, c, &n, &stats), err);
    for (int i = 0; i < n; i++)
        for (double slack = 1; slack < 4; slack *= 1.5) {
            dt_assert_ok(dt_orch_search_lean(t, &c[i], c[i].total_s * slack, &err, &lean), err);
            ck_assert_int_le(lean.gpus, c[i].gpus);
            ck_assert_double_le(lean.total_s, c[i].total_s * slack * (1 + 1e-9));
            ck_assert_mem_eq(&lean.of[1], &c[i].of[1], sizeof(lean.of[1]));
            if (slack > 3)
                ck_assert_int_lt(lean.gpus, 16);
        }
    dt_orch_table_free(t);
    free_world(&w);
}
END_TEST

/* All modules on a lane each, apart. */
static void one_stage(const struct world *w, struct dt_plan *p)
{
    int first = 0;

    dt_search_plan_init(&w->in, p);
    for (int m = 0; m < p->n_modules; m++) {
        p->modules[m].layout = (struct dt_plan_layout){1, 1, 1, 1, 1, 1, 1, first};
        p->modules[m].split[1] = (uint16_t)w->in.model->modules[m].n_blocks;
        first += 8;
    }
}

static void bind_plan(const struct world *w, const struct dt_plan *p, struct dt_orch_binding *out)
{
    struct dt_error err;

    dt_assert_ok(dt_orch_plan_binding(&w->in, p, &err, out), err);
}

START_TEST(sample_time)
{
    struct dt_orch_binding b, frozen;
    struct dt_orch_table *t;
    struct dt_error err;
    struct dt_plan p;
    struct world w;

    build_world(&w, 1, 0, 6);
    dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
    one_stage(&w, &p);
    for (int tpi = 2; tpi >= 0; tpi--) {
        for (int m = 0; m < 2; m++)
            p.modules[m].layout.tp = 1 << tpi;
        bind_plan(&w, &p, &b);
        for (int m = 0; m < 2; m++)
            ck_assert_double_eq_tol(b.sample_s[m],
                                    dt_orch_times_of(t, m, tpi, 0, 0, false)->sample_s, 1e-15);
    }
    dt_orch_table_free(t);
    w.in.frozen[0] = p.modules[0].frozen = true; /* nothing upstream: forwards, and the projector */
    bind_plan(&w, &p, &frozen);
    ck_assert_double_lt(frozen.sample_s[0], 0.5 * b.sample_s[0]);
    ck_assert_double_gt(frozen.sample_s[0], 0.25 * b.sample_s[0]);
    free_world(&w);
}
END_TEST

/* The time of a sample is that of the plan at hand: with one replica and one sample a slot its stage takes as long,
 * whatever cp and recomputation. */
START_TEST(sample_time_of_the_plan)
{
    struct dt_orch_binding b[3];
    struct dt_plan p;
    struct world w;
    int llm;

    build_world(&w, 1, 1, 6);
    llm = w.in.model->llm;
    one_stage(&w, &p);
    p.policy.microbatch = 1;
    bind_plan(&w, &p, &b[0]);
    p.modules[llm].layout.cp = 2;
    bind_plan(&w, &p, &b[1]);
    p.modules[llm].layout.cp = 1;
    p.modules[llm].recompute = DT_RECOMPUTE_FULL;
    bind_plan(&w, &p, &b[2]);
    for (int k = 0; k < 3; k++)
        for (int m = 0; m < 3; m++)
            ck_assert_double_eq_tol(b[k].sample_s[m] / b[k].interval_s[m], 1, 1e-12);
    ck_assert_double_lt(b[1].sample_s[llm], 0.8 * b[0].sample_s[llm]);
    ck_assert_double_gt(b[2].sample_s[llm], 1.2 * b[0].sample_s[llm]);
    free_world(&w);
}
END_TEST

/* What binds an LLM of two replicas on two GPUs with guests on the first, on the second, on both: the sums by hand of
 * what the modules take apart. */
START_TEST(guests_bind_where_they_lie)
{
    static const int first[][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
    struct dt_orch_binding apart, b;
    struct dt_plan p;
    struct world w;
    double s[3];

    build_world(&w, 1, 1, 6);
    one_stage(&w, &p);
    p.policy.microbatch = 1;
    p.modules[w.in.model->llm].layout.dp = 2; /* a slot has two samples, one for each */
    bind_plan(&w, &p, &apart);
    for (int m = 0; m < 3; m++)
        s[m] = apart.sample_s[m] * (m == w.in.model->llm ? 1 : 2);
    for (int k = 0; k < 4; k++) {
        double gpu[2] = {s[1], s[1]};

        ck_assert_int_eq(w.in.model->llm, 1);
        p.modules[1].layout.first_gpu = 0;
        for (int g = 0; g < 2; g++) {
            p.modules[2 * g].with = 2;
            p.modules[2 * g].layout.first_gpu = first[k][g];
            gpu[first[k][g]] += s[2 * g];
        }
        bind_plan(&w, &p, &b);
        ck_assert_int_eq(b.module, 1);
        ck_assert_double_eq_tol(b.interval_s[1] / fmax(gpu[0], gpu[1]), 1, 1e-12);
        ck_assert_double_eq_tol(b.ideal_s[1] / ((gpu[0] + gpu[1]) / 2), 1, 1e-12);
        ck_assert_double_eq_tol(b.interval_s[0] / s[0], 1, 1e-12);
        ck_assert_double_eq_tol(b.interval_s[2] / s[2], 1, 1e-12);
        dt_assert_has(b.why, "(stage 0 of 1 and guests, ");
    }
    free_world(&w);
}
END_TEST

/* A guest on the GPU of the first of two stages binds with that stage or not at all. */
START_TEST(guests_bind_with_the_stage_beside_them)
{
    for (int round = 0; round < 8; round++) {
        struct dt_orch_binding alone, b;
        struct dt_plan p;
        struct world w;
        char text[96];
        double stage[2];

        build_world(&w, 1, 0, 6);
        w.in.frozen[0] = round % 2;
        one_stage(&w, &p);
        p.policy.microbatch = 1;
        p.modules[1].layout.pp = 2;
        p.modules[1].split[1] = (uint16_t)(round % 4 < 2 ? 1 : 3);
        p.modules[1].split[2] = (uint16_t)w.in.model->modules[1].n_blocks;
        bind_plan(&w, &p, &alone);
        stage[alone.stage_of[1]] = alone.interval_s[1];
        stage[1 - alone.stage_of[1]] = alone.sample_s[1] - alone.interval_s[1];
        stage[0] += alone.interval_s[0];
        p.modules[0].with = 2;
        p.modules[0].layout.first_gpu = p.modules[1].layout.first_gpu;
        bind_plan(&w, &p, &b);
        ck_assert_double_eq_tol(b.interval_s[1] / fmax(stage[0], stage[1]), 1, 1e-12);
        ck_assert_double_eq_tol(b.ideal_s[1] / ((stage[0] + stage[1]) / 2), 1, 1e-12);
        snprintf(text, sizeof text, "(stage %d of 2%s, %.1f %% above the ideal)",
                 stage[0] < stage[1], stage[0] < stage[1] ? "" : " and guests",
                 100 * (fmax(stage[0], stage[1]) / ((stage[0] + stage[1]) / 2) - 1));
        dt_assert_has(b.why, text);
        free_world(&w);
    }
}
END_TEST

/* ---- baselines ---- */

START_TEST(megatron)
{
    struct dt_search_result r;
    struct dt_error err;
    struct world w;

    build_world(&w, 1, 1, 12);
    w.in.policy.intra_reorder = w.in.policy.inter_reorder = true;
    w.in.opt.rank = true;
    w.in.opt.megatron_pp = DT_MEGATRON_PUBLISHED;
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r), err);
    ck_assert_int_eq(r.n, 1); /* no published size: the shallowest that fits */
    ck_assert(!r.plans[0].policy.intra_reorder && !r.plans[0].policy.inter_reorder);
    ck_assert(r.plans[0].policy.overlap_grad && r.plans[0].policy.overlap_param);
    for (int m = 0; m < 3; m++) {
        const struct dt_plan_layout *l = &r.plans[0].modules[m].layout;

        ck_assert_int_eq(l->pp, 1);
        ck_assert_int_eq(l->dp, 1);         /* 16 GPUs hold one replica of 3 stages of 4 */
        ck_assert_int_eq(l->tp * l->ip, 4); /* 4 key/value heads */
        ck_assert_int_eq(l->tp, m == 1 ? 4 : 1);
    }
    ck_assert_double_gt(r.plans[0].predicted.timeline_s, 0);
    dt_search_result_free(&r);
    w.in.opt.gpus = 11;
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "gpus:");
    free_world(&w);
}
END_TEST

START_TEST(megatron_deals_the_middle_evenly)
{
    struct dt_search_result r;
    struct dt_error err;
    struct world w;

    build_world(&w, 0, 0, 12);
    free_world(&w);
    memset(&w.fx.model, 0, sizeof(w.fx.model));
    build_world(&w, 0, 0, 12);
    w.in.opt.tp_mask = 1;
    for (int pp = 1; pp <= 6; pp++) {
        int layers = w.in.model->modules[0].n_blocks - 2;

        w.in.opt.megatron_pp = pp;
        if (pp <= layers + 2) { /* the embedding and the loss may stand alone */
            dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r), err);
            const uint16_t *split = r.plans[0].modules[0].split;

            ck_assert_int_eq(r.plans[0].modules[0].layout.pp, pp);
            for (int s = 2; s + 1 < pp; s++) /* all between the first and the last */
                ck_assert_int_eq(split[s + 1] - split[s], split[2] - split[1]);
            ck_assert_int_eq(split[pp], layers + 2);
            dt_search_result_free(&r);
        } else {
            ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r),
                             DT_ERR_INPUT);
        }
    }
    free_world(&w);
}
END_TEST

START_TEST(distmm)
{
    struct dt_search_result r, free_search;
    struct dt_error err;
    struct world w;
    double flops[3], sum = 0;

    build_world(&w, 1, 1, 12);
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &free_search), err);
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTMM, &w.in, &err, &r), err);
    for (int m = 0; m < 3; m++) {
        struct dt_work work;

        dt_search_mean_work(&w.in, m, &work);
        flops[m] = 3 * dt_module_flops(&w.fx.model.modules[m], &work);
        sum += flops[m];
    }
    for (int i = 0; i < r.n; i++)
        for (int m = 0; m < 3; m++)
            ck_assert_int_le(dt_plan_layout_gpus(&r.plans[i].modules[m].layout),
                             fmax(1, floor(16 * flops[m] / sum)));
    ck_assert_int_eq(r.plans[0].strategy, DT_STRATEGY_DISTMM);
    ck_assert_double_ge(r.plans[0].predicted.staged_s,
                        free_search.plans[0].predicted.staged_s * (1 - 1e-12));
    dt_search_result_free(&free_search);
    dt_search_result_free(&r);
    free_world(&w);
}
END_TEST

START_TEST(manual_plans)
{
    struct dt_search_result r;
    struct dt_error err;
    struct dt_plan p;
    struct world w;

    build_world(&w, 1, 0, 12);
    w.in.opt.rank = true;
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_MANUAL, &w.in, &err, &r), DT_ERR_INPUT);
    dt_plan_init(&p, w.in.model, &w.in.policy);
    p.modules[1].layout.dp = 4;
    p.modules[0].layout.dp = 6; /* more replicas than samples of a slot */
    w.in.manual = &p;
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_MANUAL, &w.in, &err, &r), err);
    ck_assert_int_eq(r.n, 1);
    ck_assert_double_gt(r.plans[0].predicted.timeline_s, 0);
    ck_assert_double_gt(r.plans[0].predicted.total_s, 0);
    ck_assert_int_eq(r.plans[0].modules[1].layout.first_gpu, 6);
    dt_search_result_free(&r);
    w.fx.cluster.mem_bytes = 1e6;
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_MANUAL, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "GiB");
    p.modules[1].layout.dp = 5;
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_MANUAL, &w.in, &err, &r), DT_ERR_INPUT);
    free_world(&w);
}
END_TEST

/* What memory asks for and no more; on CPUs nothing above the optimizer's states is sharded. */
START_TEST(sharding_where_memory_is_short)
{
    struct dt_search_result r;
    struct dt_error err;
    struct world w;
    double all;
    int most = 0;

    build_world(&w, 1, 0, 16);
    w.in.opt.gpus = 16;
    w.in.opt.tp_mask = 1;
    w.in.opt.k = 4;
    for (int m = 0; m < 2; m++) {
        w.in.opt.zero[m] = 0xf;
        w.in.opt.recompute[m] = 1U << DT_RECOMPUTE_FULL;
    }
    w.fx.cluster.mem_bytes = 64e9;
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), err);
    ck_assert(r.plans[0].modules[0].zero < 2 && r.plans[0].modules[1].zero < 2);
    all = r.plans[0].predicted.mem_bytes_max;
    dt_search_result_free(&r);
    /* less and less, until nothing fits */
    for (double mem = all; dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r) == DT_OK;
         mem *= 0.9) {
        for (int i = 0; i < r.n; i++)
            for (int m = 0; m < 2; m++)
                most = r.plans[i].modules[m].zero > most ? r.plans[i].modules[m].zero : most;
        dt_search_result_free(&r);
        w.fx.cluster.mem_bytes = mem;
    }
    ck_assert_int_gt(most, 1);
    w.fx.cluster.mem_bytes = 64e9;
    /* ZeRO 3 goes with none of the plans that split the backward: they are left out, or it is said */
    w.in.opt.zero[1] = 1 << 3;
    w.in.opt.schedules = 1 << DT_SCHED_1F1B | 1 << DT_SCHED_ZB_H1;
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), err);
    for (int i = 0; i < r.n; i++)
        ck_assert(r.plans[i].modules[1].zero == 3 && r.plans[i].policy.schedule == DT_SCHED_1F1B);
    dt_search_result_free(&r);
    w.in.opt.schedules = 1 << DT_SCHED_ZB_H1;
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "schedule zb-h1 splits the backward; use zero 2");
    w.in.opt.zero[1] = 0xf;
    w.in.opt.schedules = 0;
    w.fx.cluster.cores_per_node = 8;
    for (double mem = all; dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r) == DT_OK;
         mem *= 0.9) {
        for (int i = 0; i < r.n; i++)
            ck_assert(r.plans[i].modules[0].zero < 2 && r.plans[i].modules[1].zero < 2);
        dt_search_result_free(&r);
        w.fx.cluster.mem_bytes = mem;
    }
    free_world(&w);
}
END_TEST

/* Modules that take turns on the same GPUs work one after the other there, as guests do. */
START_TEST(turns_add_up)
{
    struct dt_plan_prediction in_turn, as_guests;
    struct dt_orch_binding a, b;
    struct dt_error err;
    struct dt_plan p;
    struct world w;

    build_world(&w, 1, 1, 12);
    dt_search_plan_init(&w.in, &p);
    for (int m = 0; m < p.n_modules; m++) {
        p.modules[m].layout.dp = 2;
        p.modules[m].split[1] = (uint16_t)w.in.model->modules[m].n_blocks;
    }
    p.colocated = true;
    dt_assert_ok(dt_plan_place(&p, w.in.cluster, &err), err);
    dt_orch_formula(&w.in, &p, &in_turn);
    dt_assert_ok(dt_orch_plan_binding(&w.in, &p, &err, &a), err);
    p.colocated = false;
    for (int m = 0; m < p.n_modules; m++)
        p.modules[m].with = m == w.in.model->llm ? 0 : (uint8_t)(w.in.model->llm + 1);
    dt_assert_ok(dt_plan_place(&p, w.in.cluster, &err), err);
    dt_orch_formula(&w.in, &p, &as_guests);
    dt_assert_ok(dt_orch_plan_binding(&w.in, &p, &err, &b), err);
    ck_assert_double_eq(in_turn.total_s, as_guests.total_s);
    ck_assert_double_eq(in_turn.staged_s, as_guests.staged_s);
    ck_assert_int_eq(a.module, w.in.model->llm);
    ck_assert_int_eq(b.module, w.in.model->llm);
    ck_assert_double_eq(a.interval_s[a.module], b.interval_s[b.module]);
    ck_assert_double_eq_tol(a.ideal_s[a.module], b.ideal_s[b.module], 1e-12);
    ck_assert(a.with_guests[a.module]);
    free_world(&w);
}
END_TEST

/* ---- refusals ---- */

START_TEST(infeasible_says_why)
{
    struct dt_search_result r;
    struct dt_error err;
    struct world w;
    double bytes;

    build_world(&w, 1, 1, 12);
    bytes = set_memory(&w, 0.02);
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "need more than 16 GPUs");
    set_memory(&w, 0.1);
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "no plan fits model small on 16 GPUs");
    dt_assert_has(err.message, "closest over by");
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "memory:");
    w.fx.cluster.mem_bytes = 10 * bytes;
    w.in.opt.gpus = 2; /* fewer GPUs than modules */
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "need more than 2 GPUs");
    w.in.opt.guests = ~0U; /* they lie with the LLM, if they fit together */
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), err);
    ck_assert_int_le(dt_plan_gpus(&r.plans[0]), 2);
    dt_search_result_free(&r);
    w.in.opt.uniform = true; /* whose space has no guests */
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), err);
    ck_assert_int_le(dt_plan_gpus(&r.plans[0]), 2);
    dt_search_result_free(&r);
    w.in.opt.uniform = false;
    set_memory(&w, 0.02);
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "no plan fits model small on 2 GPUs");
    dt_assert_has(err.message, "GiB");
    w.in.opt.guests = 0;
    w.fx.cluster.mem_bytes = 10 * bytes;
    w.in.opt.gpus = 0;
    w.in.opt.tp_mask = 8; /* TP 8: 4 key/value heads */
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "attention heads");
    free_world(&w);
}
END_TEST

START_TEST(bad_input)
{
    struct dt_search_result r;
    struct dt_error err;
    struct world w;

    build_world(&w, 1, 1, 12);
    w.in.policy.microbatch = 5;
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INPUT);
    w.in.policy.microbatch = 1;
    w.in.opt.gpus = 17;
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "has 16");
    w.in.opt.gpus = 0;
    w.in.policy.stepccl = true; /* the cost was made without */
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INTERNAL);
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r), err);
    dt_search_result_free(&r);
    free_world(&w);
}
END_TEST

START_TEST(without_memory)
{
    enum dt_status st = DT_ERR_NOMEM;
    struct dt_search_result r;
    struct dt_error err;
    struct world w;

    build_world(&w, 1, 1, 6);
    for (uint64_t k = 1; st != DT_OK; k++) {
        ck_assert_uint_lt(k, 5000);
        dt_mem_fail_at(k);
        st = dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r);
        dt_mem_fail_at(0);
        ck_assert_msg(st == DT_OK || st == DT_ERR_NOMEM, "allocation %" PRIu64 ": %s", k,
                      err.message);
    }
    dt_search_result_free(&r);
    free_world(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("orchestrate");
    TCase *c = dt_test_case(s, "all", 120);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_test(c, formula_and_1f1b);
    tcase_add_test(c, ranking_by_timeline);
    tcase_add_test(c, bound_of_timelines);
    tcase_add_test(c, makespans_are_those_of_programs);
    tcase_add_test(c, quick_plans);
    tcase_add_test(c, share_of_replicas);
    tcase_add_test(c, a_share_steps_what_the_plan_does);
    tcase_add_test(c, floor_of_hosts);
    tcase_add_test(c, lean_variant);
    tcase_add_test(c, sample_time);
    tcase_add_test(c, sample_time_of_the_plan);
    tcase_add_test(c, guests_bind_where_they_lie);
    tcase_add_test(c, guests_bind_with_the_stage_beside_them);
    tcase_add_test(c, turns_add_up);
    tcase_add_test(c, megatron);
    tcase_add_test(c, megatron_deals_the_middle_evenly);
    tcase_add_test(c, distmm);
    tcase_add_test(c, manual_plans);
    tcase_add_test(c, sharding_where_memory_is_short);
    tcase_add_test(c, infeasible_says_why);
    tcase_add_test(c, bad_input);
    tcase_add_test(c, without_memory);
    return dt_test_run(s);
}
