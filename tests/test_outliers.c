/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Stragglers and slow ops: what was made slow is found, and nothing else is. */
#include "base/mem.h"
#include "core/model/model.h"
#include "report/outliers.h"
#include "base/rng.h"

#include "synth.h"
#include "test_util.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 60, STAGES = 3, REPLICAS = 4, MICROBATCHES = 12 };

struct made {
    struct synth s;
    struct dt_timeline_topo topo;
    struct dt_timeline t;
};

static void make(struct made *x, double spread, uint64_t seed)
{
    const struct synth_pipeline c = {.stages = STAGES,
                                     .replicas = REPLICAS,
                                     .microbatches = MICROBATCHES,
                                     .lane_gpus = 1,
                                     .fwd_ns = 1000000,
                                     .bwd_ns = 2000000,
                                     .alpha_ns = 1000,
                                     .transfer_ns = 10000,
                                     .sync_ns = 100000,
                                     .bytes = 1 << 20,
                                     .sync_bytes = 1 << 20,
                                     .spread = spread,
                                     .seed = seed};
    struct dt_error err;

    memset(x, 0, sizeof(*x));
    synth_1f1b(&c, &x->s);
    dt_assert_ok(dt_timeline_topo_build(&x->s.p, &err, &x->topo), err);
}

static void find(struct made *x, struct dt_outliers *o)
{
    struct dt_error err;

    dt_assert_ok(dt_timeline_eval(&x->s.p, &x->topo, x->s.dur.ns, &err, &x->t), err);
    dt_assert_ok(dt_outliers_find(&x->s.p, &x->t, &err, o), err);
}

static void drop(struct made *x)
{
    dt_timeline_topo_free(&x->topo);
    dt_timeline_free(&x->t);
    synth_free(&x->s);
}

static bool passes(const struct dt_op *op)
{
    return op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD;
}

START_TEST(even_runs_have_none)
{
    struct dt_outliers o;
    struct made x;

    for (uint64_t k = 0; k < ROUNDS; k++) {
        make(&x, k % 2 ? 0.1 : 0, synth_seed(31) + k);
        find(&x, &o);
        ck_assert_msg(o.n_lanes == 0 && o.n_ops == 0, "seed %llu + %llu: %d lanes, %d ops",
                      (unsigned long long)synth_seed(31), (unsigned long long)k, o.n_lanes,
                      o.n_ops);
        drop(&x);
    }
}
END_TEST

START_TEST(a_slow_lane_is_found)
{
    uint64_t seed = synth_seed(77);
    struct dt_outliers o;
    struct made x;

    for (uint64_t k = 0; k < ROUNDS; k++) {
        uint32_t slow;

        make(&x, 0.1, seed + k);
        slow = (uint32_t)((seed + 7 * k) % (uint64_t)x.s.p.n_lanes);
        for (uint32_t i = 0; i < x.s.p.n_ops; i++)
            if (x.s.p.ops[i].lane == slow && passes(&x.s.p.ops[i]))
                x.s.dur.ns[i] = x.s.dur.ns[i] * 14 / 10;
        find(&x, &o);
        ck_assert_msg(o.n_lanes == 1 && o.lane[0].lane == slow && o.n_ops == 0,
                      "seed %llu + %llu: %d lanes, %d ops", (unsigned long long)seed,
                      (unsigned long long)k, o.n_lanes, o.n_ops);
        ck_assert_uint_eq(o.lane[0].op, DT_NONE);
        ck_assert_double_eq_tol(o.lane[0].ns / o.lane[0].usual, 1.4, 0.15);
        drop(&x);
    }
}
END_TEST

START_TEST(slow_ops_are_found)
{
    uint64_t seed = synth_seed(5);
    struct dt_outliers o;
    struct made x;

    for (uint64_t k = 0; k < ROUNDS; k++) {
        uint32_t slow = (uint32_t)((seed + 11 * k) % 97);

        make(&x, 0.1, seed + k);
        while (!passes(&x.s.p.ops[slow]))
            slow++;
        x.s.dur.ns[slow] *= 3;
        find(&x, &o);
        ck_assert_msg(o.n_ops == 1 && o.op[0].op == slow && o.n_lanes == 0,
                      "seed %llu + %llu: %d lanes, %d ops", (unsigned long long)seed,
                      (unsigned long long)k, o.n_lanes, o.n_ops);
        ck_assert_uint_eq(o.op[0].lane, x.s.p.ops[slow].lane);
        drop(&x);
    }
}
END_TEST

/* No more than a few, the costliest first. */
START_TEST(the_costliest_come_first)
{
    struct dt_module module = {.name = "llm"};
    struct dt_model model = {.n_modules = 1};
    struct dt_outliers o;
    struct made x;
    char text[256];
    int made = 0;

    make(&x, 0, 1);
    for (uint32_t i = 0; i < x.s.p.n_ops && made < DT_OUTLIERS_MAX + 2; i += 17)
        if (x.s.p.ops[i].kind == DT_OP_FORWARD)
            x.s.dur.ns[i] = x.s.dur.ns[i] * (16 + made++) / 10;
    ck_assert_int_eq(made, DT_OUTLIERS_MAX + 2);
    find(&x, &o);
    ck_assert_int_eq(o.n_ops, DT_OUTLIERS_MAX);
    for (int i = 0; i < o.n_ops; i++)
        ck_assert_double_eq_tol(o.op[i].ns / o.op[i].usual, 1.6 + 0.1 * (made - 1 - i), 1e-6);
    model.modules[0] = module;
    dt_outlier_text(&x.s.p, &model, &o.op[0], "rank 3", text, sizeof(text));
    dt_assert_has(text, "rank 3: llm/");
    dt_assert_has(text, "forward of microbatch");
    drop(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("outliers");
    TCase *c = dt_test_case(s, "outliers", 0);

    tcase_add_test(c, even_runs_have_none);
    tcase_add_test(c, a_slow_lane_is_found);
    tcase_add_test(c, slow_ops_are_found);
    tcase_add_test(c, the_costliest_come_first);
    return dt_test_run(s);
}
