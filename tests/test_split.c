/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Splits that give time for memory, against all splits of small pipelines: where one fits it is found, and none that fits has a
 * faster slowest part. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_hosted_impl.h"
#include "small_world.h"

#include <limits.h>
#include <math.h>

enum { ROUNDS = 150, ENCODER = 0 };

/* Seconds of a sample in the slowest part of the LLM. */
static double slowest_s(const struct world *w, const struct dt_plan *p)
{
    const struct dt_plan_module *mp = &p->modules[w->in.model->llm];
    const struct dt_block_shard shard = dt_plan_shard(mp);
    struct dt_orch_work_stats stats;
    struct dt_orch_block_timer timer;
    double most = 0;

    dt_orch_work_stats(&w->in, w->in.model->llm, &stats);
    dt_orch_block_timer_init(&timer, &w->in, p, w->in.model->llm, &shard, &stats);
    for (int v = 0; v < mp->layout.pp * mp->layout.vpp; v++) {
        double sum = 0;

        for (int b = mp->split[v]; b < mp->split[v + 1]; b++)
            sum += dt_orch_block_timer_s(&timer, b, NULL);
        most = fmax(most, sum);
    }
    return most;
}

/* Parts from `v` on begin at block `from`: the fastest slowest part of all splits that fit; HUGE_VAL: none does. */
static double least_of_all(struct world *w, struct dt_orch_table *t, struct dt_plan *p, int v,
                           int from)
{
    struct dt_plan_module *mp = &p->modules[w->in.model->llm];
    int parts = mp->layout.pp * mp->layout.vpp, blocks = mp->split[parts];
    double least = HUGE_VAL;

    if (v == parts)
        return dt_orch_check_expected(t, p, NULL) == DT_OK ? slowest_s(w, p) : HUGE_VAL;
    for (int b = v + 1 == parts ? blocks : from + 1; b <= blocks - (parts - v - 1); b++) {
        mp->split[v + 1] = (uint16_t)b;
        least = fmin(least, least_of_all(w, t, p, v + 1, b));
    }
    return least;
}

struct tried {
    struct world w;
    struct dt_orch_table *t;
    struct dt_orch_cand c;
    struct dt_plan p; /* with the split whose slowest part is fastest */
};

static void random_plan(struct tried *x, int round)
{
    struct dt_error err;
    int llm, parts;

    build_world(&x->w, round % 3 == 2, 0, 24);
    llm = x->w.in.model->llm;
    x->w.in.opt.schedules = 1U << (round % 5 == 4 ? DT_SCHED_INTERLEAVED : DT_SCHED_1F1B);
    x->w.in.opt.max_vpp = 2;
    for (int m = 0; m < x->w.in.model->n_modules; m++)
        x->w.in.opt.recompute[m] = 7;
    memset(&x->c, 0, sizeof(x->c));
    x->c.of[llm] = (struct dt_orch_choice){.recompute = (uint8_t)below(3),
                                           .pp = (int16_t)(2 + below(round % 5 == 4 ? 1 : 3)),
                                           .dp = 1 << below(2)};
    if (llm > ENCODER)
        x->c.of[ENCODER] = (struct dt_orch_choice){.pp = 1, .dp = 1 + below(2)};
    parts = x->c.of[llm].pp * (round % 5 == 4 ? 2 : 1);
    deepen(&x->w, 3 * parts - 2 + below(4));
    dt_assert_ok(dt_orch_table_new(&x->w.in, &err, &x->t), err);
    for (int i = 0; i < x->t->space.n_pipes; i++)
        if (x->t->space.pipe[i].vpp == (round % 5 == 4 ? 2 : 1))
            x->c.pipe = (uint8_t)i;
    dt_assert_ok(dt_orch_cand_layouts(x->t, &x->c, DT_STRATEGY_DISTTRAIN, &err, &x->p), err);
    if (llm > ENCODER)
        x->p.modules[ENCODER].with = (uint8_t)(llm + 1);
    dt_assert_ok(dt_plan_place(&x->p, x->w.in.cluster, &err), err);
    dt_assert_ok(dt_plan_validate(&x->p, x->w.in.model, x->w.in.cluster, &err), err);
    ck_assert_int_eq(x->p.modules[llm].layout.pp * x->p.modules[llm].layout.vpp, parts);
}

/* With chunks each is taken to be as long as the one that is asked about, which is more than has to fit. */
START_TEST(of_all_splits_the_fastest_that_fits)
{
    int found[2] = {0}, none = 0, missed = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct tried x;
        struct dt_plan shaped, all;
        double least, bytes;
        bool fits, chunks;

        random_plan(&x, round);
        chunks = x.t->space.pipe[x.c.pipe].vpp > 1;
        ck_assert_int_eq(dt_orch_check_expected(x.t, &x.p, NULL), DT_OK);
        bytes = x.p.predicted.mem_bytes_max;
        /* it fits as it is: nothing is to be changed */
        shaped = x.p;
        ck_assert(!dt_orch_split_to_fit(x.t, &x.c, &shaped));
        ck_assert_mem_eq(shaped.modules, x.p.modules, sizeof(x.p.modules));
        x.w.fx.cluster.mem_bytes = bytes * uniform(0.75, 0.999);
        all = x.p;
        least = least_of_all(&x.w, x.t, &all, 0, 0);
        fits = dt_orch_split_to_fit(x.t, &x.c, &shaped);
        ck_assert_msg(fits == isfinite(least) || (chunks && !fits),
                      "seed %" PRIu64 " round %d: %s, but %s fits", seed, round,
                      fits ? "found" : "not found", isfinite(least) ? "one" : "none");
        found[chunks] += fits;
        missed += chunks && !fits && isfinite(least);
        none += isinf(least);
        if (fits) {
            ck_assert_int_eq(dt_orch_check_expected(x.t, &shaped, NULL), DT_OK);
            ck_assert_msg(slowest_s(&x.w, &shaped) <= least * (chunks ? 1.5 : 1 + 1e-6),
                          "seed %" PRIu64 " round %d: a slowest part of %g s, %g s fits", seed,
                          round, slowest_s(&x.w, &shaped), least);
        }
        dt_orch_table_free(x.t);
        free_world(&x.w);
    }
    printf("%d found, %d with chunks, where %d were missed, and %d times there is none\n", found[0],
           found[1], missed, none);
    ck_assert_int_gt(found[0], ROUNDS / 10);
    ck_assert_int_gt(none, ROUNDS / 10);
}
END_TEST

/* The least memory per GPU with which some depth and number of replicas of the LLM fits with even stages, and whether one
 * fits as the cluster is with any. */
static bool some_fits(struct world *w, struct dt_orch_table *t, double *even_bytes)
{
    int llm = w->in.model->llm, blocks = w->in.model->modules[llm].n_blocks;
    bool any = false;

    *even_bytes = HUGE_VAL;
    for (int pp = 1; pp <= blocks; pp++)
        for (int dp = 1; dp * pp <= w->in.opt.gpus; dp++) {
            struct dt_orch_cand c;
            struct dt_plan p;

            if (w->in.policy.global_batch % dp != 0)
                continue;
            memset(&c, 0, sizeof(c));
            c.of[llm] = (struct dt_orch_choice){.pp = (int16_t)pp, .dp = dp};
            ck_assert_int_eq(dt_orch_cand_plan(t, &c, DT_STRATEGY_DISTTRAIN, NULL, &p), DT_OK);
            if (dt_orch_check_expected(t, &p, NULL) == DT_OK) {
                *even_bytes = fmin(*even_bytes, p.predicted.mem_bytes_max);
                any = true;
            } else if (pp > 1 && blocks >= 3 * pp) {
                any |= isfinite(least_of_all(w, t, &p, 0, 0));
            }
        }
    return any;
}

/* Where no plan with even stages fits, one with uneven stages is found if there is one. */
START_TEST(found_where_nothing_else_fits)
{
    int found = 0, none = 0;

    for (int round = 0; round < ROUNDS / 3; round++) {
        struct dt_search_result r;
        struct dt_orch_table *t;
        struct dt_error err;
        struct world w;
        enum dt_status st;
        double bytes;
        bool any;

        build_world(&w, 0, 0, 24);
        w.in.opt.gpus = 2 + below(3);
        deepen(&w, 3 * w.in.opt.gpus - 2 + below(4));
        w.in.opt.tp_mask = 1;
        w.in.opt.rank = true;
        dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
        ck_assert(some_fits(&w, t, &bytes));
        w.fx.cluster.mem_bytes = bytes * uniform(0.85, 0.999);
        any = some_fits(&w, t, &bytes);
        ck_assert(isinf(bytes));
        st = dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r);
        ck_assert_msg((st == DT_OK) == any, "seed %" PRIu64 " round %d: %s, but %s fits", seed,
                      round, st == DT_OK ? "found" : err.message, any ? "one" : "none");
        found += any;
        none += !any;
        if (st == DT_OK) {
            ck_assert_double_le(r.plans[0].predicted.mem_bytes_max, w.fx.cluster.mem_bytes);
            ck_assert_double_gt(r.plans[0].predicted.timeline_s, 0);
            dt_search_result_free(&r);
        } else {
            ck_assert_int_eq(st, DT_ERR_INFEASIBLE);
        }
        dt_orch_table_free(t);
        free_world(&w);
    }
    printf("%d found, %d times there is none\n", found, none);
    ck_assert_int_gt(found, ROUNDS / 30);
}
END_TEST

/* Hosted strategies on a few GPUs look through the splits of an LLM of several chunks in rounds that are less and less even, without
 * the assumption that chunks of a stage are as long: none is missed, and the slowest part is the fastest. */
START_TEST(chunks_of_a_hosts_llm)
{
    int found = 0, uneven = 0, none = 0;

    for (int round = 4; round < ROUNDS; round += 2) {
        struct tried x;
        struct dt_plan shaped, all;
        double even, least, bytes;
        struct dt_orch_times *times;
        struct dt_orch_hosting *w = dt_calloc(1, sizeof(*w));
        int llm;
        bool fits;

        random_plan(&x, 4 + 5 * (round % 6)); /* two chunks, with an encoder or without */
        llm = x.w.in.model->llm;
        ck_assert_int_eq(x.p.modules[llm].layout.vpp, 2);
        ck_assert_int_eq(dt_orch_check_expected(x.t, &x.p, NULL), DT_OK);
        bytes = x.p.predicted.mem_bytes_max;
        even = slowest_s(&x.w, &x.p);
        x.w.fx.cluster.mem_bytes = bytes * uniform(0.85, 0.999);
        all = shaped = x.p;
        least = least_of_all(&x.w, x.t, &all, 0, 0);
        times = dt_orch_times_of(x.t, llm, 0, x.c.of[llm].recompute, x.c.microbatch, false);
        ck_assert(times && times->block_s);
        w->t = x.t;
        w->llm = llm;
        w->splits = w->steps = INT_MAX;
        fits = dt_orch_hosted_chunks(w, times, &shaped);
        dt_free(w);
        ck_assert_msg(fits == isfinite(least), "seed %" PRIu64 " round %d: %s, but %s fits", seed,
                      round, fits ? "found" : "not found", isfinite(least) ? "one" : "none");
        none += !fits;
        if (fits) {
            found++;
            uneven += least > 1.1 * even;
            ck_assert_int_eq(dt_orch_check_expected(x.t, &shaped, NULL), DT_OK);
            ck_assert_msg(slowest_s(&x.w, &shaped) <= least * (1 + 1e-6),
                          "seed %" PRIu64 " round %d: a slowest part of %g s, %g s fits", seed,
                          round, slowest_s(&x.w, &shaped), least);
        }
        dt_orch_table_free(x.t);
        free_world(&x.w);
    }
    printf("%d found, %d of them far from even, %d times there is none\n", found, uneven, none);
    ck_assert_int_gt(uneven, 3);
    ck_assert_int_gt(none, 3);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("split");
    TCase *c = dt_test_case(u, "split", 240);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_test(c, of_all_splits_the_fastest_that_fits);
    tcase_add_test(c, found_where_nothing_else_fits);
    tcase_add_test(c, chunks_of_a_hosts_llm);
    return dt_test_run(u);
}
