/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parameters of guests in the host's memory between phases (plan.MODULE.offload: parameters): programs and what their check
 * finds, how long iterations take by closed forms, memory by hand, and what is refused. */
#include "base/json.h"
#include "core/cost/memory.h"
#include "core/schedule/timeline.h"
#include "random_plan.h"
#include "sim/engine.h"

#include <math.h>
#include <stdio.h>

static struct sched_fixture s;

enum { FWD = 12, BWD = 24 };

/* An encoder with the LLM, both of pp stages on the same GPUs; in phases, or with one window over all slots. */
static void build(int pp, int dp, int n, enum dt_pipe_schedule schedule, bool window)
{
    sf_init(&s);
    s.f.cluster.host_bytes_per_s = 25e9;
    s.f.cluster.host_mem_bytes_per_s = 200e9;
    sf_encoder(&s, "encoder", 6);
    sf_llm(&s, 6);
    sf_edge(&s, 0, 1);
    sf_plan(&s, (int64_t)n * dp, 1, schedule);
    sf_layout(&s, 0, 1, window ? 1 : pp, 1, window ? dp * pp : dp);
    sf_layout(&s, 1, 1, pp, 1, dp);
    s.plan.modules[0].with = 2;
    s.plan.modules[0].phases = !window;
    s.plan.modules[0].window = window ? DT_PLAN_WINDOW_ALL : 0;
    s.plan.modules[0].offload = DT_OFFLOAD_PARAMETERS;
    sf_samples(&s, (int64_t)n * dp, 2, 0, false, 3);
}

static uint32_t find(int module, int stage, enum dt_op_kind kind)
{
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].module == module && s.p->ops[i].stage == stage && s.p->ops[i].kind == kind)
            return i;
    ck_abort_msg("no such op");
    return 0;
}

/* ---- programs ---- */

/* Each of them is compiled and checked (sf_compile); each lane of the guest has one of both ops. */
START_TEST(programs_are_right)
{
    static const enum dt_pipe_schedule schedules[] = {DT_SCHED_1F1B, DT_SCHED_GPIPE, DT_SCHED_ZB_H1,
                                                      DT_SCHED_INTERLEAVED};
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 1);
    for (int t = 0; t < 96; t++) {
        int pp = 1 + t % 4, dp = 1 + sf_below(&r, 2), n = 1 + sf_below(&r, 9);
        bool window = sf_below(&r, 2);
        enum dt_pipe_schedule schedule = schedules[sf_below(&r, window ? 4 : 3)];

        if (schedule == DT_SCHED_INTERLEAVED && (pp == 1 || pp * 2 > 6))
            schedule = DT_SCHED_1F1B;
        build(pp, dp, n, schedule, window);
        if (schedule == DT_SCHED_INTERLEAVED)
            sf_layout(&s, 1, 1, pp, 2, dp);
        s.plan.modules[0].frozen = sf_below(&r, 3) == 0;
        s.plan.modules[0].zero = sf_below(&r, 2);
        s.plan.modules[0].offload = sf_below(&r, 2) ? DT_OFFLOAD_ALL : DT_OFFLOAD_PARAMETERS;
        s.plan.policy.overlap_param = sf_below(&r, 2);
        sf_compile(&s);
        ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_OFFLOAD),
                          (unsigned)(s.plan.modules[0].layout.pp * s.plan.modules[0].layout.dp));
        ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_RELOAD), sf_count(s.p, 0, DT_OP_OFFLOAD));
        ck_assert_uint_eq(sf_count(s.p, 1, DT_OP_OFFLOAD) + sf_count(s.p, 1, DT_OP_RELOAD), 0);
        sf_free(&s);
    }
}
END_TEST

static void found(const char *what)
{
    ck_assert_int_eq(dt_program_check(s.p, &s.f.model, &s.err), DT_ERR_INTERNAL);
    ck_assert_msg(strstr(s.err.message, what) != NULL, "%s", s.err.message);
}

/* What op i waits for of that kind and module, if it is no chain's, is forgotten. */
static void forget(uint32_t i, int module, enum dt_op_kind kind)
{
    struct dt_op *op = &s.p->ops[i];
    int n = 0;

    for (uint32_t k = 1; k < 3u + op->more_n; k++) {
        uint32_t *d = k < 3 ? &op->dep[k] : &s.p->deps[op->more_first + k - 3];

        if (*d == DT_NONE || s.p->ops[*d].module != module || s.p->ops[*d].kind != kind)
            continue;
        *d = DT_NONE;
        n++;
    }
    ck_assert_int_gt(n, 0);
}

START_TEST(check_finds_what_is_wrong)
{
    for (int way = 0; way < 7; way++) {
        build(3, 1, 8, DT_SCHED_1F1B, false);
        sf_compile(&s);
        switch (way) {
        case 0: /* backward 0 of the encoder's last stage, which does not wait for the parameters */
            forget(find(0, 2, DT_OP_BACKWARD), 0, DT_OP_RELOAD);
            found("brings its parameters back");
            break;
        case 1:
            forget(find(0, 1, DT_OP_RELOAD), 1, DT_OP_BACKWARD);
            found("takes memory that llm/0.1 still has");
            break;
        case 2: /* 3 in flight at most: the second forward of the first stage has to wait */
            for (uint32_t i = 0; i < s.p->n_ops; i++)
                if (s.p->ops[i].module == 1 && s.p->ops[i].stage == 0 &&
                    s.p->ops[i].kind == DT_OP_FORWARD && s.p->ops[i].mb == 1)
                    forget(i, 0, DT_OP_OFFLOAD);
            found("which have not left yet");
            break;
        case 3:
            s.p->ops[find(0, 0, DT_OP_OFFLOAD)].bytes += 2;
            found("parameters take");
            break;
        case 4: /* a program of a plan that leaves them where they are */
            s.plan.modules[0].offload = DT_OFFLOAD_OPTIMIZER;
            found("stay where they are");
            break;
        case 5:
            s.plan.modules[0].offload = DT_OFFLOAD_NONE;
            sf_free_program(&s);
            sf_compile(&s);
            s.plan.modules[0].offload = DT_OFFLOAD_ALL;
            found("lacks a way to the host");
            break;
        case 6: /* the forward of another stage: nobody would tell of it */
            s.p->ops[find(0, 0, DT_OP_RELOAD)].dep[2] = find(1, 1, DT_OP_FORWARD);
            found("of another lane");
            break;
        }
        sf_free(&s);
    }
}
END_TEST

/* ---- time ---- */

/* Of a program whose forwards take FWD, backwards BWD, and copies so much. */
static int64_t span_of(int64_t there, int64_t back)
{
    int64_t f[DT_MAX_VSTAGES], b[DT_MAX_VSTAGES], *ns, span;

    for (int v = 0; v < DT_MAX_VSTAGES; v++) {
        f[v] = FWD;
        b[v] = BWD;
    }
    ns = sf_durations(s.p, f, b);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].kind == DT_OP_OFFLOAD || s.p->ops[i].kind == DT_OP_RELOAD)
            ns[i] = s.p->ops[i].kind == DT_OP_OFFLOAD ? there : back;
    span = sf_makespan(&s, ns);
    free(ns);
    return span;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* One GPU: the LLM holds one microbatch, so that nothing hides the way back, and the encoder's n forwards hide the way there. */
START_TEST(on_one_gpu)
{
    for (int n = 1; n <= 6; n++) {
        build(1, 1, n, DT_SCHED_1F1B, false);
        sf_compile(&s);
        for (int64_t copy = 0; copy < 200; copy += 7)
            ck_assert_int_eq(span_of(copy, copy / 2),
                             most(n * FWD, copy) + n * (FWD + BWD) + copy / 2 + n * BWD);
        sf_free(&s);
    }
}
END_TEST

/* Stage k has floor((p - k) / 2) microbatches left when the way back begins, which end as the last stage hands them on, every
 * forward and backward; k backwards later the first stage has ended, and the gradients of all items are there. */
static int64_t hides(int pp)
{
    int64_t least = INT64_MAX;

    for (int k = 0; k < pp; k++) {
        int64_t ns = (pp - k) / 2 * (FWD + BWD) + k * BWD;

        least = ns < least ? ns : least;
    }
    return least;
}

/* A pipeline of p stages, and an encoder with a window on each GPU: the way back is hidden by the drain, and what is longer comes
 * on top; the way there is hidden by the encoder's forward and h = floor(p / 2) of the LLM's. */
START_TEST(hidden_behind_fill_and_drain)
{
    for (int pp = 1; pp <= 6; pp++) {
        int64_t without, h = pp / 2;

        build(pp, 1, 12, DT_SCHED_1F1B, true);
        s.plan.modules[0].offload = DT_OFFLOAD_NONE;
        sf_compile(&s);
        without = span_of(0, 0);
        sf_free_program(&s);
        s.plan.modules[0].offload = DT_OFFLOAD_PARAMETERS;
        sf_compile(&s);
        for (int64_t back = 0; back <= 2 * hides(pp) + 9; back += 3)
            ck_assert_int_eq(span_of((1 + h) * FWD, back), without + most(0, back - hides(pp)));
        ck_assert_int_gt(span_of((1 + h) * FWD + 5000, 0), 5000 + 12 * BWD);
        sf_free(&s);
    }
}
END_TEST

/* ---- the link of a GPU ---- */

/* Two encoders in phases, the LLM, all of pp stages on the same GPUs. */
static void build_two(int pp, int n)
{
    sf_init(&s);
    s.f.cluster.host_bytes_per_s = 25e9;
    s.f.cluster.host_mem_bytes_per_s = 200e9;
    sf_encoder(&s, "first", 6);
    sf_encoder(&s, "second", 6);
    sf_llm(&s, 6);
    sf_edge(&s, 0, 2);
    sf_edge(&s, 1, 2);
    sf_plan(&s, n, 1, DT_SCHED_1F1B);
    for (int m = 0; m < 3; m++)
        sf_layout(&s, m, 1, pp, 1, 1);
    for (int m = 0; m < 2; m++) {
        s.plan.modules[m].with = 3;
        s.plan.modules[m].phases = true;
        s.plan.modules[m].offload = DT_OFFLOAD_PARAMETERS;
    }
    sf_samples(&s, n, 2, 0, false, 3);
}

struct link_times {
    int64_t there[2], back[2], step; /* of the encoders' first stages; steps of all modules */
};

static int64_t *times_of_two(const struct link_times *t)
{
    int64_t f[DT_MAX_VSTAGES], b[DT_MAX_VSTAGES], *ns;

    for (int v = 0; v < DT_MAX_VSTAGES; v++) {
        f[v] = FWD;
        b[v] = BWD;
    }
    ns = sf_durations(s.p, f, b);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];

        if (op->kind == DT_OP_OFFLOAD && op->stage == 0)
            ns[i] = t->there[op->module];
        if (op->kind == DT_OP_RELOAD && op->stage == 0)
            ns[i] = t->back[op->module];
        if (op->kind == DT_OP_STEP)
            ns[i] = t->step;
    }
    return ns;
}

/* By the timeline and by the event engine, which have to agree on every op. */
static struct dt_timeline line_of_two(const struct link_times *times)
{
    struct dt_timeline t = {0}, engine = {0};
    struct dt_durations d = {.ns = times_of_two(times)};
    struct dt_engine *e;

    dt_assert_ok(dt_timeline_once(s.p, d.ns, &s.err, &t), s.err);
    dt_assert_ok(dt_engine_new(&s.err, &e), s.err);
    dt_assert_ok(dt_engine_run(e, s.p, &d, NULL, NULL, &s.err, &engine), s.err);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        ck_assert(t.begin_ns[i] == engine.begin_ns[i] && t.end_ns[i] == engine.end_ns[i]);
    dt_timeline_free(&engine);
    dt_engine_free(e);
    free(d.ns);
    return t;
}

/* One GPU.  Both copies to the host come before the LLM's first forward, one behind the other; after its last backward one
 * encoder's parameters come back, then the other's, beside the first backward of the first; backwards take turns, slot by slot. */
START_TEST(two_guests_share_the_link)
{
    for (int n = 1; n <= 4; n++) {
        build_two(1, n);
        sf_compile(&s);
        for (int64_t there = 0; there < 200; there += 23)
            for (int64_t back = 0; back < 400; back += 29) {
                struct link_times x = {{there, there / 2}, {back, back}, 0};
                struct dt_timeline t = line_of_two(&x);

                ck_assert_int_eq(t.makespan_ns, most(2 * n * FWD, there + there / 2) +
                                                    n * (FWD + BWD) + back + most(BWD, back) +
                                                    (2 * n - 1) * BWD);
                dt_timeline_free(&t);
            }
        sf_free(&s);
    }
}
END_TEST

/* Of a frozen encoder's first stage nothing waits for the way back: it comes last, and a step on the host behind it. */
START_TEST(what_nobody_waits_for_comes_last)
{
    for (int steps = 0; steps < 2; steps++) {
        struct link_times x = {{5, 7}, {9000, 11}, 1000};
        uint32_t first, second, step;
        struct dt_timeline t;

        build_two(2, 4);
        s.plan.modules[0].frozen = true;
        s.plan.modules[2].offload = steps ? DT_OFFLOAD_OPTIMIZER : DT_OFFLOAD_NONE;
        sf_compile(&s);
        first = find(0, 0, DT_OP_RELOAD);
        second = find(1, 0, DT_OP_RELOAD);
        step = find(2, 0, DT_OP_STEP);
        t = line_of_two(&x);
        ck_assert_int_eq(t.begin_ns[first], t.end_ns[second]);
        if (steps)
            ck_assert_int_eq(t.begin_ns[step], t.end_ns[first]);
        else
            ck_assert_int_lt(t.begin_ns[step], t.end_ns[first] - 5000);
        dt_timeline_free(&t);
        sf_free(&s);
    }
}
END_TEST

/* Two encoders of random layouts on the GPUs of an LLM, in phases or with one window. */
static void random_two(struct dt_rng *r)
{
    int pp = 1 + sf_below(r, 3), tp = 1 + sf_below(r, 2), dp = 1 + sf_below(r, 2);
    int gpus = pp * tp * dp;

    build_two(1, dp * (1 + sf_below(r, 5)));
    sf_layout(&s, 2, tp, pp, 1, dp);
    for (int m = 0; m < 2; m++) {
        struct dt_plan_module *p = &s.plan.modules[m];
        int wide = 1 + sf_below(r, tp), stages = 1 + sf_below(r, gpus / wide < 3 ? gpus / wide : 3);

        p->phases = sf_below(r, 2);
        p->window = p->phases ? 0 : DT_PLAN_WINDOW_ALL;
        stages = p->phases ? stages : 1;
        sf_layout(&s, m, wide, stages, 1,
                  p->phases ? dp : dp * (1 + sf_below(r, gpus / wide / dp)));
        while (p->layout.tp * p->layout.pp * p->layout.dp > gpus)
            sf_layout(&s, m, wide, p->layout.pp - 1, 1, dp);
        p->frozen = sf_below(r, 2);
        p->offload = sf_below(r, 2) ? DT_OFFLOAD_ALL : DT_OFFLOAD_PARAMETERS;
    }
    s.plan.modules[2].offload = sf_below(r, 2) ? DT_OFFLOAD_OPTIMIZER : DT_OFFLOAD_NONE;
}

/* Of all that copies one way on a GPU no two overlap, however long they are. */
static bool copies(const struct dt_op *op, enum dt_op_kind way)
{
    return op->kind == way ||
           (op->kind == DT_OP_STEP && dt_plan_offloads_optimizer(&s.plan.modules[op->module]));
}

static int check_one_way(const struct dt_timeline *t, enum dt_op_kind way, uint64_t seed, int round)
{
    int met = 0;

    for (uint32_t a = 0; a < s.p->n_ops; a++)
        for (uint32_t b = 0; b < a && copies(&s.p->ops[a], way); b++) {
            const struct dt_lane *x = &s.p->lanes[s.p->ops[a].lane],
                                 *y = &s.p->lanes[s.p->ops[b].lane];

            if (!copies(&s.p->ops[b], way) || x == y || x->first_gpu >= y->first_gpu + y->gpus ||
                y->first_gpu >= x->first_gpu + x->gpus)
                continue;
            met++;
            ck_assert_msg(t->end_ns[a] <= t->begin_ns[b] || t->end_ns[b] <= t->begin_ns[a],
                          "seed %llu, round %d: ops %u and %u have a GPU's link at once",
                          (unsigned long long)seed, round, b, a);
        }
    return met;
}

START_TEST(a_gpu_has_one_link)
{
    uint64_t seed = dt_test_seed();
    int met = 0;

    for (int round = 0; round < 300; round++) {
        struct dt_timeline t = {0};
        struct dt_rng r;
        int64_t *ns;

        dt_rng_init(&r, seed, 7300 + (uint64_t)round);
        random_two(&r);
        sf_compile(&s);
        ns = calloc(s.p->n_ops + 1, sizeof(*ns));
        ck_assert_ptr_nonnull(ns);
        for (uint32_t i = 0; i < s.p->n_ops; i++)
            ns[i] = s.p->ops[i].kind == DT_OP_RECV ? 0 : sf_below(&r, 1000);
        dt_assert_ok(dt_timeline_once(s.p, ns, &s.err, &t), s.err);
        met += check_one_way(&t, DT_OP_OFFLOAD, seed, round) +
               check_one_way(&t, DT_OP_RELOAD, seed, round);
        dt_timeline_free(&t);
        free(ns);
        sf_free(&s);
    }
    printf("seed %llu: %d pairs of copies on one GPU\n", (unsigned long long)seed, met);
    ck_assert_int_gt(met, 300);
}
END_TEST

/* An op that waits for nobody with the link before it: it is found. */
START_TEST(check_finds_two_on_a_link)
{
    static const struct {
        int module, before;
        enum dt_op_kind kind, waits_for;
    } ways[] = {{1, 0, DT_OP_OFFLOAD, DT_OP_OFFLOAD},
                {1, 0, DT_OP_RELOAD, DT_OP_RELOAD},
                {2, 0, DT_OP_STEP, DT_OP_RELOAD},
                {2, 1, DT_OP_STEP, DT_OP_RELOAD}};

    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        build_two(2, 4);
        s.plan.modules[0].frozen = s.plan.modules[1].frozen = ways[i].kind == DT_OP_STEP;
        s.plan.modules[2].offload = DT_OFFLOAD_OPTIMIZER;
        sf_compile(&s);
        forget(find(ways[i].module, 0, ways[i].kind), ways[i].before, ways[i].waits_for);
        if (i == 2) /* it still waits for the second one's, which waits for this one */
            dt_assert_ok(dt_program_check(s.p, &s.f.model, &s.err), s.err);
        else
            found("host link at the same time");
        sf_free(&s);
    }
}
END_TEST

/* Bytes over the cluster's bandwidth, or over the share of the host's memory bandwidth of those GPUs of the node that copy. */
START_TEST(copies_share_what_the_hosts_memory_carries)
{
    struct dt_cost_options o = {.allow_analytical = true};

    for (int copying = 1; copying <= 4; copying++)
        for (int memory = 10; memory <= 90; memory += 20) {
            struct dt_durations d;
            struct dt_cost *cost;
            uint32_t back;
            double rate;

            build(1, copying, 4, DT_SCHED_1F1B, false);
            s.f.cluster.host_mem_bytes_per_s = 1e9 * memory;
            sf_compile(&s);
            back = find(0, 0, DT_OP_RELOAD);
            dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &o, &s.err, &cost),
                         s.err);
            dt_assert_ok(
                dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                s.err);
            rate = fmin(25, (double)memory / copying);
            ck_assert_double_le(fabs((double)d.ns[back] - (double)s.p->ops[back].bytes / rate), 1);
            dt_durations_free(&d);
            dt_cost_free(cost);
            sf_free(&s);
        }
}
END_TEST

/* Bytes over the cluster's bandwidth. */
START_TEST(copies_take_bytes_over_bandwidth)
{
    struct dt_cost_options o = {.allow_analytical = true};
    struct dt_durations d;
    struct dt_cost *cost;
    double params = 0, trained = 0;

    build(1, 1, 4, DT_SCHED_1F1B, false);
    s.plan.modules[0].frozen = true; /* but for the projector */
    sf_compile(&s);
    for (int b = 0; b < s.f.model.modules[0].n_blocks; b++) {
        params += (double)dt_block_params(&s.f.model.modules[0].blocks[b]);
        if (s.f.model.modules[0].blocks[b].kind == DT_BLOCK_PROJECTOR)
            trained += (double)dt_block_params(&s.f.model.modules[0].blocks[b]);
    }
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &o, &s.err, &cost), s.err);
    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                 s.err);
    ck_assert_uint_eq(s.p->ops[find(0, 0, DT_OP_OFFLOAD)].bytes, (uint64_t)(2 * trained));
    ck_assert_uint_eq(s.p->ops[find(0, 0, DT_OP_RELOAD)].bytes, (uint64_t)(2 * params));
    ck_assert_double_le(fabs((double)d.ns[find(0, 0, DT_OP_OFFLOAD)] - 2e9 * trained / 25e9), 1);
    ck_assert_double_le(fabs((double)d.ns[find(0, 0, DT_OP_RELOAD)] - 2e9 * params / 25e9), 1);
    dt_durations_free(&d);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

/* ---- memory ---- */

/* 2 bytes of each parameter leave for the host; of its GPU either they are there, or more than half of what the LLM holds. */
START_TEST(memory_by_hand)
{
    const struct dt_work w[2] = {{2, 2 * SF_SEQ, 2 * SF_SEQ * SF_SEQ, SF_SEQ},
                                 {1, SF_SEQ, SF_SEQ * SF_SEQ, SF_SEQ}};

    for (int pp = 1; pp <= 6; pp++) {
        struct dt_memory enc, llm, was, one;
        double params = 0, sum = 0, got;
        struct dt_plan without;

        build(pp, 1, 12, DT_SCHED_1F1B, false);
        dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
        for (int stage = 0; stage < pp; stage++) {
            without = s.plan;
            without.modules[0].offload = DT_OFFLOAD_NONE;
            dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 0, stage, &w[0], 12, &enc);
            dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 1, stage, &w[1], 12, &llm);
            dt_memory_stage(&without, &s.f.model, &s.f.cluster, 0, stage, &w[0], 12, &was);
            dt_memory_stage(&without, &s.f.model, &s.f.cluster, 1, stage, &w[1], 1, &one);
            params = 0;
            for (int b = s.plan.modules[0].split[stage]; b < s.plan.modules[0].split[stage + 1];
                 b++)
                params += (double)dt_block_params(&s.f.model.modules[0].blocks[b]);
            ck_assert_double_le(fabs(enc.away - 2 * params), 1e-6 * params);
            ck_assert(enc.host == enc.away && enc.host == enc.away_host && enc.total == was.total &&
                      was.away == 0);
            /* pp - stage microbatches, of which floor half beside the parameters; each takes what a second one adds */
            dt_memory_stage(&without, &s.f.model, &s.f.cluster, 1, stage, &w[1], 12, &was);
            if (pp - stage > 1)
                ck_assert_double_le(fabs(llm.beside - (pp - stage - (pp - stage) / 2) *
                                                          (was.activations - one.activations) /
                                                          (pp - stage - 1)),
                                    1e-6 * llm.total);
            ck_assert_double_gt(llm.beside, 0);
            sum = fmax(sum, enc.total + llm.total - llm.reserve - fmin(enc.away, llm.beside));
        }
        dt_assert_ok(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, &got, &s.err), s.err);
        ck_assert_msg(fabs(got / sum - 1) < 1e-9, "pp %d: %g, not %g", pp, got, sum);
        s.f.cluster.mem_bytes = got;
        dt_assert_ok(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, &got, &s.err), s.err);
        ck_assert_int_eq(dt_memory_check(&without, &s.f.model, &s.f.cluster, w, &got, &s.err),
                         DT_ERR_INFEASIBLE);
        sf_free(&s);
    }
}
END_TEST

/* ---- what goes together ---- */

static void refused(const char *why)
{
    ck_assert_int_eq(dt_plan_check_offload(&s.plan, &s.f.model, 0, &s.f.cluster, &s.err),
                     DT_ERR_INPUT);
    ck_assert_msg(strstr(s.err.message, why) != NULL, "%s", s.err.message);
}

START_TEST(what_is_refused)
{
    struct dt_plan_module *m = &s.plan.modules[0];
    struct dt_plan fine;

    build(2, 2, 4, DT_SCHED_1F1B, false);
    fine = s.plan;
    dt_assert_ok(dt_plan_check_offload(&s.plan, &s.f.model, 0, &s.f.cluster, &s.err), s.err);
    m->zero = 3;
    refused("use zero 2 or less");
    s.plan = fine;
    m->with = 0;
    refused("(with: llm)");
    s.plan = fine;
    m->phases = false;
    refused("window: all, or phases: true");
    m->window = 2;
    refused("window: all, or phases: true");
    m->window = 4; /* of four slots: that is all */
    dt_assert_ok(dt_plan_check_offload(&s.plan, &s.f.model, 0, &s.f.cluster, &s.err), s.err);
    s.plan = fine;
    m->layout.vpp = 2;
    refused("vpp 1");
    s.plan = fine;
    s.f.cluster.host_bytes_per_s = 0;
    refused("cluster.host_bandwidth");
    s.f.cluster.host_bytes_per_s = 1e9;
    s.plan.modules[1].offload = DT_OFFLOAD_ALL;
    ck_assert_int_eq(dt_plan_check_offload(&s.plan, &s.f.model, 1, &s.f.cluster, &s.err),
                     DT_ERR_INPUT);
    dt_assert_has(s.err.message, "an encoder's");
    sf_free(&s);
}
END_TEST

START_TEST(files_say_it)
{
    struct dt_plan back;
    char *text;

    build(2, 1, 4, DT_SCHED_1F1B, false);
    dt_assert_ok(dt_plan_to_json(&s.plan, &s.err, &text), s.err);
    dt_assert_has(text, "\"offload\": \"parameters\"");
    dt_assert_ok(dt_plan_parse("x", text, strlen(text), &s.err, &back), s.err);
    ck_assert_int_eq(back.modules[0].offload, DT_OFFLOAD_PARAMETERS);
    dt_free(text);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offload_params");
    TCase *tc = dt_test_case(suite, "offload_params", 60);

    tcase_add_test(tc, programs_are_right);
    tcase_add_test(tc, check_finds_what_is_wrong);
    tcase_add_test(tc, on_one_gpu);
    tcase_add_test(tc, hidden_behind_fill_and_drain);
    tcase_add_test(tc, two_guests_share_the_link);
    tcase_add_test(tc, what_nobody_waits_for_comes_last);
    tcase_add_test(tc, a_gpu_has_one_link);
    tcase_add_test(tc, check_finds_two_on_a_link);
    tcase_add_test(tc, copies_share_what_the_hosts_memory_carries);
    tcase_add_test(tc, copies_take_bytes_over_bandwidth);
    tcase_add_test(tc, memory_by_hand);
    tcase_add_test(tc, what_is_refused);
    tcase_add_test(tc, files_say_it);
    return dt_test_run(suite);
}
