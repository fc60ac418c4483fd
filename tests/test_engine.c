/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The event engine: order of events, the timing rules, equality with the topological evaluation,
 * noise. */
#include "base/mem.h"
#include "base/rng.h"
#include "sim/engine.h"
#include "sim/queue.h"

#include "synth.h"
#include "test_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 64, PROGRAMS = 300 };

/* A node of 8 with 4 NICs; figures chosen for arithmetic, not for any real machine. */
static struct dt_cluster cluster(int nodes)
{
    struct dt_cluster c = {.nodes = nodes,
                           .gpus_per_node = 8,
                           .nvlink_bytes_per_s = 160e9,
                           .nics_per_node = 4,
                           .nic_bytes_per_s = 25e9,
                           .nic_efficiency = 1,
                           .fabric_oversubscription = 1};
    return c;
}

static struct dt_network *network(int nodes)
{
    struct dt_cluster c = cluster(nodes);
    struct dt_network *n = NULL;

    ck_assert_int_eq(dt_network_new(&c, NULL, &n), DT_OK);
    return n;
}

static struct dt_engine *engine(void)
{
    struct dt_engine *e = NULL;

    ck_assert_int_eq(dt_engine_new(NULL, &e), DT_OK);
    return e;
}

static void run(struct dt_engine *e, const struct synth *s, struct dt_network *net,
                const struct dt_sim_noise *noise, struct dt_timeline *t)
{
    struct dt_error err = {0};

    ck_assert_msg(dt_engine_run(e, &s->p, &s->dur, net, noise, &err, t) == DT_OK, "%s",
                  err.message);
}

/* ---- the queue ---- */

static int by_fields(const void *a, const void *b)
{
    const struct dt_sim_event *x = a, *y = b;

    if (x->time_ns != y->time_ns)
        return x->time_ns < y->time_ns ? -1 : 1;
    if (dt_sim_event_priority(*x) != dt_sim_event_priority(*y))
        return dt_sim_event_priority(*x) < dt_sim_event_priority(*y) ? -1 : 1;
    return (dt_sim_event_sequence(*x) > dt_sim_event_sequence(*y)) -
           (dt_sim_event_sequence(*x) < dt_sim_event_sequence(*y));
}

START_TEST(events_have_a_total_order)
{
    static const int64_t times[3] = {0, 7, INT64_MAX};
    struct dt_sim_event all[27];
    int n = 0;

    for (int t = 0; t < 3; t++)
        for (int p = 0; p < 3; p++)
            for (uint32_t s = 0; s < 3; s++)
                all[n++] = dt_sim_event_make(times[t], (enum dt_sim_event_priority)p,
                                             s == 2 ? UINT32_MAX - 1 : s);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            ck_assert_int_eq(dt_sim_event_before(all[i], all[j]), by_fields(&all[i], &all[j]) < 0);
            ck_assert_int_eq(dt_sim_event_before(all[i], all[j]), i < j);
        }
}
END_TEST

START_TEST(queue_takes_in_order_with_ties)
{
    enum { N = 2000 };
    static struct dt_sim_event storage[N], want[N];
    struct dt_rng r;
    struct dt_sim_queue q;

    dt_rng_init(&r, synth_seed(11), 1);
    dt_sim_queue_init(&q, storage);
    for (uint32_t i = 0; i < N; i++) { /* few times, so that most events tie */
        want[i] = dt_sim_event_make((int64_t)dt_rng_below(&r, 20),
                                    (enum dt_sim_event_priority)dt_rng_below(&r, 3), i);
        dt_sim_queue_put(&q, want[i]);
    }
    qsort(want, N, sizeof *want, by_fields);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(
            by_fields(&(struct dt_sim_event){dt_sim_queue_first(&q).time_ns, storage[0].order},
                      &want[i]),
            0);
        struct dt_sim_event e = dt_sim_queue_take(&q);
        ck_assert_int_eq(by_fields(&e, &want[i]), 0);
    }
    ck_assert(dt_sim_queue_empty(&q));
}
END_TEST

/* Takes and puts mixed, as the loop does: what comes out never goes back in time. */
START_TEST(queue_is_monotone_under_mixed_use)
{
    enum { N = 64 };
    struct dt_sim_event storage[N], last = {0, 0};
    struct dt_rng r;
    struct dt_sim_queue q;
    uint32_t seq = 0, in = 0;

    dt_rng_init(&r, synth_seed(12), 1);
    dt_sim_queue_init(&q, storage);
    for (int i = 0; i < 100000; i++) {
        bool put = in == 0 || (in < N && dt_rng_below(&r, 2) == 0);
        if (put) {
            dt_sim_queue_put(&q, dt_sim_event_make(last.time_ns + (int64_t)dt_rng_below(&r, 5),
                                                   DT_EVENT_OP_END, ++seq));
            in++;
        } else {
            struct dt_sim_event e = dt_sim_queue_take(&q);
            ck_assert_int_ge(e.time_ns, last.time_ns);
            last = e;
            in--;
        }
        ck_assert_int_eq(dt_sim_queue_empty(&q), in == 0);
    }
}
END_TEST

/* ---- timing rules ---- */

static void expect(const struct synth *s, const struct dt_timeline *t, const int64_t *begin,
                   const int64_t *end, uint64_t seed)
{
    int64_t makespan = 0;

    for (uint32_t i = 0; i < s->p.n_ops; i++) {
        ck_assert_msg(t->begin_ns[i] == begin[i] && t->end_ns[i] == end[i],
                      "DT_TEST_SEED=%llu op %u (%s): [%lld, %lld], expected [%lld, %lld]",
                      (unsigned long long)seed, i, dt_op_kind_names[s->p.ops[i].kind],
                      (long long)t->begin_ns[i], (long long)t->end_ns[i], (long long)begin[i],
                      (long long)end[i]);
        makespan = end[i] > makespan ? end[i] : makespan;
    }
    ck_assert_int_eq(t->makespan_ns, makespan);
}

START_TEST(equals_the_rules_and_the_topological_evaluation)
{
    struct dt_engine *e = engine();
    struct dt_timeline t = {0}, eval = {0};
    uint64_t base = synth_seed(21);

    for (uint64_t k = 0; k < PROGRAMS; k++) {
        struct synth s;
        struct dt_timeline_topo topo = {0};
        struct dt_error err = {0};
        synth_random(base + k, GPUS, &s);
        if (k % 2)
            synth_release(base + k, &s);
        int64_t *ref = dt_calloc(2 * (size_t)s.p.n_ops, sizeof *ref);
        synth_reference(&s, ref, ref + s.p.n_ops);
        run(e, &s, NULL, NULL, &t);
        expect(&s, &t, ref, ref + s.p.n_ops, base + k);
        ck_assert_int_eq(dt_timeline_once(&s.p, s.dur.ns, &err, &eval), DT_OK);
        expect(&s, &eval, ref, ref + s.p.n_ops, base + k);
        ck_assert_msg(dt_timeline_topo_build(&s.p, &err, &topo) == DT_OK, "%s", err.message);
        ck_assert_int_eq(dt_timeline_eval(&s.p, &topo, s.dur.ns, &err, &eval), DT_OK);
        expect(&s, &eval, ref, ref + s.p.n_ops, base + k);
        run(e, &s, NULL, NULL, &t); /* again, on the cached arrays */
        expect(&s, &t, ref, ref + s.p.n_ops, base + k);
        dt_timeline_topo_free(&topo);
        dt_free(ref);
        synth_free(&s);
    }
    dt_timeline_free(&t);
    dt_timeline_free(&eval);
    dt_engine_free(e);
}
END_TEST

START_TEST(uniform_1f1b_meets_its_closed_form)
{
    static const int shape[5][2] = {{1, 1}, {1, 7}, {4, 3}, {4, 8}, {12, 64}};
    struct dt_engine *e = engine();
    struct dt_timeline t = {0};

    for (int i = 0; i < 5; i++) {
        struct synth_pipeline c = {.stages = shape[i][0],
                                   .replicas = 3,
                                   .microbatches = shape[i][1],
                                   .lane_gpus = 1,
                                   .fwd_ns = 1234567,
                                   .bwd_ns = 2467139};
        struct synth s;
        int64_t last = 0;
        synth_1f1b(&c, &s);
        run(e, &s, NULL, NULL, &t);
        for (uint32_t k = 0; k < s.p.n_ops; k++)
            if (s.p.ops[k].kind == DT_OP_BACKWARD && t.end_ns[k] > last)
                last = t.end_ns[k];
        /* (n + p - 1)(F + B) */
        ck_assert_int_eq(last, (c.microbatches + c.stages - 1) * (c.fwd_ns + c.bwd_ns));
        ck_assert_int_eq(t.makespan_ns, last + 20000 + 1000000); /* then norm and step */
        synth_free(&s);
    }
    dt_timeline_free(&t);
    dt_engine_free(e);
}
END_TEST

/* ---- with the network ---- */

static struct synth_pipeline wide_pipeline(void)
{
    /* Lanes are whole nodes; a transfer asks for 40 % of the node's NICs, and two meet at most. */
    struct synth_pipeline c = {.stages = 4,
                               .replicas = 2,
                               .microbatches = 9,
                               .lane_gpus = 8,
                               .fwd_ns = 3001001,
                               .bwd_ns = 6002003,
                               .alpha_ns = 20011,
                               .transfer_ns = 1677722,
                               .bytes = 67108864,
                               .sync_ns = 90001001,
                               .sync_bytes = 1 << 30,
                               .spread = 0.3,
                               .seed = 5};
    return c;
}

START_TEST(no_competition_changes_nothing)
{
    struct dt_engine *e = engine();
    struct dt_network *net = network(8);
    struct synth_pipeline c = wide_pipeline();
    struct dt_timeline t = {0};
    struct synth s;
    uint64_t solves, flows;

    synth_1f1b(&c, &s);
    int64_t *ref = dt_calloc(2 * (size_t)s.p.n_ops, sizeof *ref);
    synth_reference(&s, ref, ref + s.p.n_ops);
    run(e, &s, net, NULL, &t);
    expect(&s, &t, ref, ref + s.p.n_ops, c.seed);
    dt_network_stats(net, &solves, &flows);
    ck_assert_int_eq(solves, 0); /* nobody was held back: nothing to recompute */
    dt_free(ref);
    synth_free(&s);
    dt_timeline_free(&t);
    dt_network_free(net);
    dt_engine_free(e);
}
END_TEST

START_TEST(two_senders_on_one_nic_take_turns_fairly)
{
    /* Two stages of 1 GPU x 8 replicas: all of node 0 sends to node 1 at once.  Each flow alone has
     * the rate of one NIC (25 GB/s); eight of them ask for 200 of the node's 100 GB/s, so each
     * takes twice as long. */
    struct synth_pipeline c = {.stages = 2,
                               .replicas = 8,
                               .microbatches = 1,
                               .lane_gpus = 1,
                               .fwd_ns = 1000,
                               .bwd_ns = 2000,
                               .alpha_ns = 500,
                               .transfer_ns = 40000,
                               .bytes = 1000000};
    struct dt_engine *e = engine();
    struct dt_network *net = network(2);
    struct dt_timeline t = {0};
    struct synth s;
    int sends = 0;

    synth_1f1b(&c, &s);
    run(e, &s, net, NULL, &t);
    for (uint32_t i = 0; i < s.p.n_ops; i++) {
        if (s.p.ops[i].kind != DT_OP_SEND)
            continue;
        ck_assert_int_eq(t.end_ns[i] - t.begin_ns[i], 500 + 80000);
        ck_assert_int_eq(t.end_ns[s.p.ops[i].peer], t.end_ns[i]);
        sends++;
    }
    ck_assert_int_eq(sends, 16);
    synth_free(&s);
    dt_timeline_free(&t);
    dt_network_free(net);
    dt_engine_free(e);
}
END_TEST

/* A sync between nodes shares NICs with a transfer: both slow down, each by what the other took. */
START_TEST(collectives_load_nics)
{
    struct synth_pipeline c = {.stages = 2,
                               .replicas = 2,
                               .microbatches = 1,
                               .lane_gpus = 8,
                               .fwd_ns = 1000,
                               .bwd_ns = 2000,
                               .transfer_ns = 1000000,
                               .bytes = 100000000,
                               .sync_ns = 2000000,
                               .sync_bytes = 50000000};
    struct dt_engine *e = engine();
    struct dt_network *net = network(4);
    struct dt_timeline t = {0};
    struct synth s;

    /* Ring over two lanes of 8: half of 50 MB x 8 GPUs = 200 MB through each NIC in 2 ms = all of
     * 100 GB/s.  The sync of the last stage starts when its backward ends, together with the
     * gradient SEND (100 MB, 1 ms alone). */
    synth_1f1b(&c, &s);
    run(e, &s, net, NULL, &t);
    for (uint32_t i = 0; i < s.p.n_ops; i++) {
        const struct dt_op *o = &s.p.ops[i];
        if (o->kind == DT_OP_SEND && (o->flags & DT_OPF_GRAD))
            ck_assert_int_eq(t.end_ns[i] - t.begin_ns[i], 2000000);
        if (o->kind == DT_OP_GRAD_SYNC && o->stage == 1)
            ck_assert_int_eq(t.end_ns[i] - t.begin_ns[i], 3000000);
        if (o->kind == DT_OP_GRAD_SYNC && o->stage == 0)
            ck_assert_int_eq(t.end_ns[i] - t.begin_ns[i], 2000000);
    }
    synth_free(&s);
    dt_timeline_free(&t);
    dt_network_free(net);
    dt_engine_free(e);
}
END_TEST

static void check_rules_under_contention(const struct synth *s, const struct dt_timeline *t,
                                         const int64_t *ref, uint64_t seed)
{
    for (uint32_t i = 0; i < s->p.n_ops; i++) {
        const struct dt_op *o = &s->p.ops[i];
        bool ok = t->begin_ns[i] >= ref[i] && t->end_ns[i] >= ref[s->p.n_ops + i];
        for (int k = 0; k < 3; k++)
            ok = ok && (o->dep[k] == DT_NONE || t->end_ns[o->dep[k]] <= t->begin_ns[i]);
        if (o->kind == DT_OP_RECV)
            ok = ok && t->begin_ns[i] >= t->begin_ns[o->peer] && t->end_ns[i] >= t->end_ns[o->peer];
        else
            ok = ok && t->end_ns[i] - t->begin_ns[i] >= s->dur.ns[i];
        ck_assert_msg(ok, "DT_TEST_SEED=%llu op %u (%s)", (unsigned long long)seed, i,
                      dt_op_kind_names[o->kind]);
    }
}

START_TEST(contention_only_delays)
{
    struct dt_engine *e = engine();
    struct dt_network *net = network(GPUS / 8);
    struct dt_timeline t = {0}, again = {0};
    uint64_t base = synth_seed(31), delayed = 0;

    for (uint64_t k = 0; k < PROGRAMS; k++) {
        struct synth s;
        synth_random(base + k, GPUS, &s);
        int64_t *ref = dt_calloc(2 * (size_t)s.p.n_ops, sizeof *ref);
        synth_reference(&s, ref, ref + s.p.n_ops);
        run(e, &s, net, NULL, &t);
        check_rules_under_contention(&s, &t, ref, base + k);
        for (uint32_t i = 0; i < s.p.n_ops; i++)
            delayed += t.end_ns[i] > ref[s.p.n_ops + i];
        run(e, &s, net, NULL, &again);
        ck_assert_mem_eq(t.begin_ns, again.begin_ns, s.p.n_ops * sizeof *t.begin_ns);
        ck_assert_mem_eq(t.end_ns, again.end_ns, s.p.n_ops * sizeof *t.end_ns);
        dt_free(ref);
        synth_free(&s);
    }
    ck_assert_int_gt(delayed, 100); /* the programs do contend */
    dt_timeline_free(&t);
    dt_timeline_free(&again);
    dt_network_free(net);
    dt_engine_free(e);
}
END_TEST

/* Parts run by themselves between collectives: what comes out is the same, to the nanosecond. */
START_TEST(windows_change_nothing)
{
    struct dt_engine *e = engine();
    struct dt_timeline whole = {0}, parts = {0};
    uint64_t base = synth_seed(35), windows = 0, delayed = 0;

    for (uint64_t k = 0; k < 60; k++) {
        struct dt_network *net;
        struct dt_rng r;
        struct synth s;
        dt_rng_init(&r, base + k, 1);
        struct synth_pipeline c = {.stages = 2 + (int)dt_rng_below(&r, 3),
                                   .replicas = 8 << dt_rng_below(&r, 3),
                                   .microbatches = 4 + (int)dt_rng_below(&r, 12),
                                   .lane_gpus = 1 << dt_rng_below(&r, 4),
                                   .fwd_ns = 1000000,
                                   .bwd_ns = 2000000,
                                   .alpha_ns = 5000,
                                   .transfer_ns = 800000,
                                   .sync_ns = 3000000,
                                   .bytes = 20000000,
                                   .sync_bytes = 100000000,
                                   .spread = dt_rng_below(&r, 2) ? 0.4 : 0, /* 0: many ties */
                                   .seed = base + k};
        struct dt_sim_noise noise = {.seed = base, .jitter = k % 3 == 0 ? 0.1 : 0};
        synth_1f1b(&c, &s);
        net = network(c.stages * c.replicas * c.lane_gpus / 8 + 1);
        dt_engine_set_windows(e, false);
        run(e, &s, net, &noise, &whole);
        ck_assert_uint_eq(dt_engine_windows(e), 0);
        dt_engine_set_windows(e, true);
        run(e, &s, net, &noise, &parts);
        windows += dt_engine_windows(e);
        for (uint32_t i = 0; i < s.p.n_ops; i++) {
            ck_assert_msg(whole.begin_ns[i] == parts.begin_ns[i] &&
                              whole.end_ns[i] == parts.end_ns[i],
                          "DT_TEST_SEED=%llu program %llu op %u (%s)", (unsigned long long)base,
                          (unsigned long long)k, i, dt_op_kind_names[s.p.ops[i].kind]);
            delayed +=
                s.p.ops[i].kind == DT_OP_SEND && parts.end_ns[i] - parts.begin_ns[i] > s.dur.ns[i];
        }
        dt_network_free(net);
        synth_free(&s);
    }
    ck_assert_uint_ge(windows, 40);
    ck_assert_uint_gt(delayed, 1000);
    dt_timeline_free(&whole);
    dt_timeline_free(&parts);
    dt_engine_free(e);
}
END_TEST

/* Nodes that share a fabric with too little room are not apart. */
START_TEST(a_narrow_fabric_has_no_windows)
{
    struct synth_pipeline c = {.stages = 2,
                               .replicas = 16,
                               .microbatches = 4,
                               .lane_gpus = 2,
                               .fwd_ns = 1000,
                               .bwd_ns = 2000,
                               .alpha_ns = 5,
                               .transfer_ns = 800,
                               .sync_ns = 300,
                               .bytes = 20000,
                               .sync_bytes = 100};
    struct dt_cluster narrow = cluster(8);
    struct dt_engine *e = engine();
    struct dt_network *wide_net = network(8), *narrow_net;
    struct dt_timeline t = {0};
    struct synth s;

    narrow.fabric_oversubscription = 2;
    ck_assert_int_eq(dt_network_new(&narrow, NULL, &narrow_net), DT_OK);
    synth_1f1b(&c, &s);
    run(e, &s, wide_net, NULL, &t);
    ck_assert_uint_eq(dt_engine_windows(e), 1);
    run(e, &s, narrow_net, NULL, &t);
    ck_assert_uint_eq(dt_engine_windows(e), 0);
    synth_free(&s);
    dt_timeline_free(&t);
    dt_network_free(wide_net);
    dt_network_free(narrow_net);
    dt_engine_free(e);
}
END_TEST

/* ---- noise ---- */

START_TEST(noise_repeats_by_seed)
{
    struct dt_engine *e = engine();
    struct dt_network *net = network(8);
    struct synth_pipeline c = wide_pipeline();
    struct dt_sim_noise noise = {.seed = 9, .iteration = 3, .jitter = 0.05}, other = noise;
    struct dt_timeline t[4] = {{0}};
    struct synth s;

    synth_1f1b(&c, &s);
    size_t size = s.p.n_ops * sizeof(int64_t);
    run(e, &s, net, &noise, &t[0]);
    run(e, &s, net, NULL, &t[1]); /* another run in between must not matter */
    dt_engine_free(e);
    e = engine();
    run(e, &s, net, &noise, &t[2]);
    ck_assert_mem_eq(t[0].begin_ns, t[2].begin_ns, size);
    ck_assert_mem_eq(t[0].end_ns, t[2].end_ns, size);
    other.seed = 10;
    run(e, &s, net, &other, &t[3]);
    ck_assert_mem_ne(t[0].end_ns, t[3].end_ns, size);
    other = noise;
    other.iteration = 4;
    run(e, &s, net, &other, &t[3]);
    ck_assert_mem_ne(t[0].end_ns, t[3].end_ns, size);
    other.jitter = 0;
    run(e, &s, net, &other, &t[3]);
    ck_assert_mem_eq(t[1].end_ns, t[3].end_ns, size);
    for (int i = 0; i < 4; i++)
        dt_timeline_free(&t[i]);
    synth_free(&s);
    dt_network_free(net);
    dt_engine_free(e);
}
END_TEST

START_TEST(noise_touches_compute_only)
{
    struct dt_engine *e = engine();
    struct synth_pipeline c = wide_pipeline();
    double slow[8] = {1, 1, 1, 1.25, 1, 1, 1, 1};
    struct dt_sim_noise noise = {.n_lanes = 8, .slowdown = slow};
    struct dt_timeline t = {0};
    struct synth s;

    synth_1f1b(&c, &s);
    run(e, &s, NULL, &noise, &t);
    for (uint32_t i = 0; i < s.p.n_ops; i++) {
        const struct dt_op *o = &s.p.ops[i];
        if (o->kind == DT_OP_RECV)
            continue;
        bool slower = o->lane == 3 && dt_op_resource(o->kind) == DT_RES_COMPUTE;
        ck_assert_int_eq(t.end_ns[i] - t.begin_ns[i],
                         slower ? llround((double)s.dur.ns[i] * 1.25) : s.dur.ns[i]);
    }
    dt_timeline_free(&t);
    synth_free(&s);
    dt_engine_free(e);
}
END_TEST

/* ---- programs that are wrong, memory that is short ---- */

static void expect_internal(struct dt_engine *e, const struct synth *s, const char *text)
{
    struct dt_timeline t = {0};
    struct dt_error err = {0};

    ck_assert_int_eq(dt_engine_run(e, &s->p, &s->dur, NULL, NULL, &err, &t), DT_ERR_INTERNAL);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    dt_timeline_free(&t);
}

static uint32_t find(const struct synth *s, enum dt_op_kind kind)
{
    for (uint32_t i = 0; i < s->p.n_ops; i++)
        if (s->p.ops[i].kind == kind)
            return i;
    ck_abort_msg("no such op");
}

START_TEST(wrong_programs_are_refused)
{
    struct dt_engine *e = engine();
    struct synth_pipeline c = wide_pipeline();
    struct synth s;
    struct dt_timeline t = {0};
    struct dt_network *net = network(8);

    synth_1f1b(&c, &s);
    uint32_t fwd = find(&s, DT_OP_FORWARD), recv = find(&s, DT_OP_RECV),
             sync = find(&s, DT_OP_GRAD_SYNC);
    struct dt_op saved = s.p.ops[fwd];
    /* the first waits for the last */
    s.p.ops[fwd].dep[2] = s.p.lanes[0].first + s.p.lanes[0].n - 1;
    expect_internal(e, &s, "deadlock");
    s.p.ops[fwd].dep[2] = s.p.n_ops;
    expect_internal(e, &s, "does not exist");
    s.p.ops[fwd] = saved;
    saved = s.p.ops[recv];
    s.p.ops[recv].peer = fwd; /* no SEND */
    expect_internal(e, &s, "does not exist");
    s.p.ops[recv] = saved;
    saved = s.p.ops[sync];
    s.p.ops[sync].peer = s.p.n_groups;
    expect_internal(e, &s, "does not exist");
    s.p.ops[sync].peer = s.p.n_groups - 1;
    expect_internal(e, &s, "wrong member list");
    s.p.ops[sync] = saved;
    int64_t ns = s.dur.ns[fwd];
    s.dur.ns[fwd] = -1;
    expect_internal(e, &s, "negative duration");
    s.dur.ns[fwd] = ns;
    struct dt_durations plain = {.ns = s.dur.ns};
    ck_assert_int_eq(dt_engine_run(e, &s.p, &plain, net, NULL, NULL, &t), DT_ERR_INTERNAL);
    run(e, &s, net, NULL, &t); /* and after all that the program still runs */
    dt_timeline_free(&t);
    synth_free(&s);
    dt_network_free(net);
    dt_engine_free(e);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct synth_pipeline c = wide_pipeline();
    struct synth s;

    synth_1f1b(&c, &s);
    for (uint64_t k = 1;; k++) {
        struct dt_cluster cl = cluster(8);
        struct dt_engine *e = NULL;
        struct dt_network *net = NULL;
        struct dt_timeline t = {0};
        dt_mem_fail_at(k);
        enum dt_status st = dt_engine_new(NULL, &e);
        if (st == DT_OK)
            st = dt_network_new(&cl, NULL, &net);
        if (st == DT_OK)
            st = dt_engine_run(e, &s.p, &s.dur, net, NULL, NULL, &t);
        bool reached = dt_mem_count() >= k;
        dt_mem_fail_at(0);
        dt_timeline_free(&t);
        dt_network_free(net);
        dt_engine_free(e);
        ck_assert_int_eq(st, reached ? DT_ERR_NOMEM : DT_OK);
        if (!reached)
            break;
        ck_assert_int_lt(k, 1000);
    }
    synth_free(&s);
}
END_TEST

START_TEST(a_warm_run_does_not_allocate)
{
    struct dt_engine *e = engine();
    struct dt_network *net = network(8);
    struct dt_timeline t = {0};
    struct synth_pipeline c = wide_pipeline();
    struct synth s;

    synth_1f1b(&c, &s);
    run(e, &s, net, NULL, &t);
    dt_mem_fail_at(0);
    run(e, &s, net, NULL, &t);
    run(e, &s, NULL, NULL, &t);
    ck_assert_int_eq(dt_mem_count(), 0);
    ck_assert_int_ge(dt_engine_events(e), 2 * 72);
    dt_timeline_free(&t);
    synth_free(&s);
    dt_network_free(net);
    dt_engine_free(e);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine");
    TCase *tc = dt_test_case(suite, "queue", 0);
    tcase_add_test(tc, events_have_a_total_order);
    tcase_add_test(tc, queue_takes_in_order_with_ties);
    tcase_add_test(tc, queue_is_monotone_under_mixed_use);
    tc = dt_test_case(suite, "rules", 60);
    tcase_add_test(tc, equals_the_rules_and_the_topological_evaluation);
    tcase_add_test(tc, uniform_1f1b_meets_its_closed_form);
    tc = dt_test_case(suite, "network", 60);
    tcase_add_test(tc, no_competition_changes_nothing);
    tcase_add_test(tc, two_senders_on_one_nic_take_turns_fairly);
    tcase_add_test(tc, collectives_load_nics);
    tcase_add_test(tc, contention_only_delays);
    tcase_add_test(tc, windows_change_nothing);
    tcase_add_test(tc, a_narrow_fabric_has_no_windows);
    tc = dt_test_case(suite, "noise", 0);
    tcase_add_test(tc, noise_repeats_by_seed);
    tcase_add_test(tc, noise_touches_compute_only);
    tc = dt_test_case(suite, "faults", 60);
    tcase_add_test(tc, wrong_programs_are_refused);
    tcase_add_test(tc, every_allocation_may_fail);
    tcase_add_test(tc, a_warm_run_does_not_allocate);
    return dt_test_run(suite);
}
