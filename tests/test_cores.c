/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Lanes that share cores: equal to the topological evaluation where cores are enough for compute
 * and messages, to the closed forms of processor sharing where all are shared; work is conserved.
 */
#include "base/rng.h"
#include "sim/cores.h"

#include "synth.h"
#include "test_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 64, PROGRAMS = 300, LANES_MAX = 9, MANY = 1 << 20 };

START_TEST(a_core_each_changes_nothing)
{
    uint64_t seed = synth_seed(2385);

    for (int k = 0; k < PROGRAMS; k++) {
        struct dt_timeline got = {0}, want = {0};
        struct dt_timeline_topo topo = {0};
        struct dt_error err;
        struct synth s;

        synth_random(seed + (uint64_t)k, GPUS, &s);
        if (k % 2)
            synth_release(seed + (uint64_t)k, &s);
        dt_assert_ok(dt_timeline_topo_build(&s.p, &err, &topo), err);
        dt_assert_ok(dt_timeline_eval(&s.p, &topo, s.dur.ns, &err, &want), err);
        dt_assert_ok(dt_sim_cores_run(&s.p, &s.dur, GPUS, MANY, 0, &err, &got), err);
        ck_assert_msg(got.makespan_ns == want.makespan_ns, "seed %llu: %lld ns, should be %lld",
                      (unsigned long long)seed + (unsigned long long)k, (long long)got.makespan_ns,
                      (long long)want.makespan_ns);
        for (uint32_t i = 0; i < s.p.n_ops; i++)
            ck_assert_msg(got.begin_ns[i] == want.begin_ns[i] && got.end_ns[i] == want.end_ns[i],
                          "seed %llu, op %u (%s): %lld to %lld, should be %lld to %lld",
                          (unsigned long long)seed + (unsigned long long)k, i,
                          dt_op_kind_names[s.p.ops[i].kind], (long long)got.begin_ns[i],
                          (long long)got.end_ns[i], (long long)want.begin_ns[i],
                          (long long)want.end_ns[i]);
        dt_timeline_topo_free(&topo);
        dt_timeline_free(&got);
        dt_timeline_free(&want);
        synth_free(&s);
    }
}
END_TEST

/* Lanes of one forward each. */
struct lonely {
    struct dt_program p;
    struct dt_lane lane[LANES_MAX];
    struct dt_op op[LANES_MAX];
};

static void lonely_lanes(struct lonely *l, int n)
{
    memset(l, 0, sizeof(*l));
    for (int i = 0; i < n; i++) {
        l->lane[i] =
            (struct dt_lane){.first = (uint32_t)i, .n = 1, .gpus = 1, .first_gpu = (uint32_t)i};
        l->op[i] = (struct dt_op){.kind = DT_OP_FORWARD,
                                  .parts = 1,
                                  .lane = (uint32_t)i,
                                  .peer = DT_NONE,
                                  .dep = {DT_NONE, DT_NONE, DT_NONE}};
    }
    l->p.n_lanes = n;
    l->p.n_ops = (uint32_t)n;
    l->p.lanes = l->lane;
    l->p.ops = l->op;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* n ops that begin together on c cores, shortest first: after the k-th has ended the others have
 * done as much, and go on at min(1, c / (n - k - 1)). */
START_TEST(ops_that_begin_together_end_by_the_closed_form)
{
    uint64_t seed = synth_seed(77);

    for (int k = 0; k < 200; k++) {
        struct dt_timeline t = {0};
        int64_t ns[LANES_MAX];
        struct dt_error err;
        struct lonely l;
        struct dt_rng r;
        double now = 0, done = 0;
        int n, cores;

        dt_rng_init(&r, seed, (uint64_t)k);
        n = 1 + (int)dt_rng_below(&r, LANES_MAX);
        cores = 1 + (int)dt_rng_below(&r, LANES_MAX);
        for (int i = 0; i < n; i++)
            ns[i] = (int64_t)dt_rng_below(&r, 1000000);
        qsort(ns, (size_t)n, sizeof(*ns), by_size);
        lonely_lanes(&l, n);
        dt_assert_ok(
            dt_sim_cores_run(&l.p, &(struct dt_durations){.ns = ns}, LANES_MAX, cores, 0, &err, &t),
            err);
        for (int i = 0; i < n; i++) {
            double rate = n - i > cores ? (double)cores / (n - i) : 1;

            now += ((double)ns[i] - done) / rate;
            done = (double)ns[i];
            ck_assert_int_eq(t.begin_ns[i], 0);
            ck_assert_double_eq_tol((double)t.end_ns[i], now, 1 + 1e-9 * now);
        }
        dt_timeline_free(&t);
    }
}
END_TEST

/* n lanes of one op of t on n cores, each with b <= t beside it: at half the speed until b is done,
 * so all end at t + b; with two cores each, at t; with b > t, at 2 t.  All on one core: n times that. */
START_TEST(batches_are_made_beside_compute)
{
    uint64_t seed = synth_seed(5);

    for (int k = 0; k < 200; k++) {
        struct dt_timeline t = {0};
        int64_t ns[LANES_MAX], b, most;
        struct dt_error err;
        struct lonely l;
        struct dt_rng r;
        int n;

        dt_rng_init(&r, seed, (uint64_t)k);
        n = 1 + (int)dt_rng_below(&r, LANES_MAX);
        most = 1000 + (int64_t)dt_rng_below(&r, 1000000);
        b = (int64_t)dt_rng_below(&r, 2 * (uint64_t)most);
        for (int i = 0; i < n; i++)
            ns[i] = most;
        lonely_lanes(&l, n);
        dt_assert_ok(
            dt_sim_cores_run(&l.p, &(struct dt_durations){.ns = ns}, LANES_MAX, n, b, &err, &t),
            err);
        ck_assert_double_eq_tol((double)t.makespan_ns, (double)(b <= most ? most + b : 2 * most),
                                2);
        dt_assert_ok(
            dt_sim_cores_run(&l.p, &(struct dt_durations){.ns = ns}, LANES_MAX, 2 * n, b, &err, &t),
            err);
        ck_assert_int_eq(t.makespan_ns, most);
        ns[0] = 0; /* a rank without anything to do keeps its core all the same */
        dt_assert_ok(
            dt_sim_cores_run(&l.p, &(struct dt_durations){.ns = ns}, LANES_MAX, n, b, &err, &t),
            err);
        if (n > 1)
            ck_assert_double_eq_tol((double)t.makespan_ns,
                                    (double)(b <= most ? most + b : 2 * most), 2);
        ns[0] = most; /* one core for all ranks */
        dt_assert_ok(
            dt_sim_cores_run(&l.p, &(struct dt_durations){.ns = ns}, LANES_MAX, 1, b, &err, &t),
            err);
        ck_assert_double_eq_tol((double)t.makespan_ns,
                                n * (double)(b <= most ? most + b : 2 * most), 2 + n);
        for (int i = 1; i < n; i++) /* colocated: one rank, one batch */
            l.lane[i].first_gpu = 0;
        for (int i = 0; i < n; i++)
            ns[i] = most;
        dt_assert_ok(
            dt_sim_cores_run(&l.p, &(struct dt_durations){.ns = ns}, LANES_MAX, n + 1, b, &err, &t),
            err);
        ck_assert_int_eq(t.makespan_ns, most);
        dt_timeline_free(&t);
    }
}
END_TEST

/* Rank 0 sends at once and then computes for t, rank 1 computes for t; both ends of the message have their core work
 * for m, the receiver's after the latency a.  With a core each both are held up by m, with two each by nothing; so are
 * they where the message is to another host. */
START_TEST(both_ends_carry_a_message)
{
    enum { T = 1000000, A = 100000, M = 200000 };
    int64_t ns[] = {A + M, T, 0, T}, core[] = {M, 0, 0, 0};
    struct dt_durations d = {.ns = ns, .core_ns = core};
    struct dt_timeline t = {0};
    struct dt_error err;
    struct lonely l;

    lonely_lanes(&l, 2);
    l.p.n_ops = 4;
    for (int i = 2; i < 4; i++)
        l.op[i] = l.op[0];
    l.lane[0].n = l.lane[1].n = 2;
    l.lane[1].first = 2;
    l.op[0].kind = DT_OP_SEND;
    l.op[0].peer = 2;
    l.op[2].kind = DT_OP_RECV;
    l.op[2].peer = 0;
    l.op[2].lane = l.op[3].lane = 1;
    l.op[1].lane = 0;
    dt_assert_ok(dt_sim_cores_run(&l.p, &d, 2, 2, 0, &err, &t), err);
    ck_assert_int_eq(t.end_ns[1], T + M);
    ck_assert_int_eq(t.end_ns[2], A + 2 * M);
    ck_assert_int_eq(t.end_ns[3], T + M);
    dt_assert_ok(dt_sim_cores_run(&l.p, &d, 2, 4, 0, &err, &t), err);
    ck_assert_int_eq(t.end_ns[1], T);
    ck_assert_int_eq(t.end_ns[2], A + M);
    ck_assert_int_eq(t.end_ns[3], T);
    dt_assert_ok(dt_sim_cores_run(&l.p, &d, 1, 1, 0, &err, &t), err);
    ck_assert_int_eq(t.end_ns[1], T);
    ck_assert_int_eq(t.end_ns[2], A + M);
    ck_assert_int_eq(t.end_ns[3], T);
    dt_timeline_free(&t);
}
END_TEST

/* What compute ops and messages have a core do, collectives as their slowest member. */
static double needs_core(const struct synth *s, uint32_t i)
{
    const struct dt_op *op = &s->p.ops[i];
    int64_t ns = s->dur.ns[i];

    if (op->kind == DT_OP_RECV || op->kind == DT_OP_FETCH)
        return 0;
    if (op->kind == DT_OP_SEND)
        return (double)(ns - s->dur.alpha_ns[i]); /* the sender's may go on after the end */
    if (dt_op_resource((enum dt_op_kind)op->kind) == DT_RES_COLL)
        for (uint32_t k = 0; k < s->p.groups[op->peer].n; k++) {
            int64_t one = s->dur.ns[s->p.group_ops[s->p.groups[op->peer].first + k]];

            ns = one > ns ? one : ns;
        }
    return (double)ns;
}

/* Never faster than with cores enough, never more work than the cores can do, and one core does
 * everything one after the other at best. */
START_TEST(work_is_conserved)
{
    uint64_t seed = synth_seed(5);

    for (int k = 0; k < PROGRAMS; k++) {
        struct dt_timeline one = {0}, two = {0}, all = {0};
        double work = 0;
        struct dt_error err;
        struct synth s;

        synth_random(seed + (uint64_t)k, GPUS, &s);
        dt_assert_ok(dt_sim_cores_run(&s.p, &s.dur, GPUS, 1, 0, &err, &one), err);
        dt_assert_ok(dt_sim_cores_run(&s.p, &s.dur, GPUS, 2, 0, &err, &two), err);
        dt_assert_ok(dt_sim_cores_run(&s.p, &s.dur, GPUS, MANY, 0, &err, &all), err);
        for (uint32_t i = 0; i < s.p.n_ops; i++) {
            work += needs_core(&s, i);
            if (s.p.ops[i].kind != DT_OP_RECV) /* which also waits while it lasts */
                ck_assert_int_ge(one.end_ns[i] - one.begin_ns[i] + 2,
                                 all.end_ns[i] - all.begin_ns[i]);
            for (int d = 0; d < 3; d++)
                if (s.p.ops[i].dep[d] != DT_NONE &&
                    dt_op_resource((enum dt_op_kind)s.p.ops[i].kind) == DT_RES_COMPUTE)
                    ck_assert_int_ge(two.begin_ns[i], two.end_ns[s.p.ops[i].dep[d]]);
        }
        ck_assert_double_ge((double)one.makespan_ns + 2, work);
        ck_assert_double_ge(2 * (double)two.makespan_ns + 4, work);
        ck_assert_int_ge(one.makespan_ns + 2, all.makespan_ns);
        dt_timeline_free(&one);
        dt_timeline_free(&two);
        dt_timeline_free(&all);
        synth_free(&s);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cores");
    TCase *c = dt_test_case(s, "cores", 0);

    tcase_add_test(c, a_core_each_changes_nothing);
    tcase_add_test(c, ops_that_begin_together_end_by_the_closed_form);
    tcase_add_test(c, batches_are_made_beside_compute);
    tcase_add_test(c, both_ends_carry_a_message);
    tcase_add_test(c, work_is_conserved);
    return dt_test_run(s);
}
