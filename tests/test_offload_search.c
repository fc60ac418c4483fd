/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is offloaded, as a dimension of the search: beside an enumeration of all plans of small worlds in which memory binds, never
 * slower for being open, and kept to where it is stated. */
#include "brute_plans.h"
#include "core/schedule/schedule.h"

#include <stdlib.h>

enum { WORLDS = 48, BATCH = 8, OPEN = (1 << DT_OFFLOAD_N) - 1 };

static struct world w; /* large: not on the stack */

static void build(int encoders, int gpus, double memory)
{
    build_world(&w, encoders, 0, BATCH);
    w.fx.cluster.host_bytes_per_s = uniform(10e9, 50e9);
    w.fx.cluster.host_mem_bytes_per_s = uniform(100e9, 400e9);
    w.in.opt.gpus = gpus;
    w.in.opt.rank = true;
    set_memory(&w, memory);
}

/* An encoder with many parameters and few activations, and an LLM with many of these. */
static void widen_encoder(void)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    struct dt_module *vit = &w.fx.model.modules[0];
    struct dt_error err;

    for (int b = 0; b < vit->n_blocks; b++)
        if (vit->blocks[b].kind == DT_BLOCK_TRANSFORMER)
            vit->blocks[b].ffn *= 8;
    dt_cost_free(w.cost);
    dt_assert_ok(dt_cost_new(&w.fx.model, &w.fx.cluster, &w.fx.profile, &opt, &err, &w.cost), err);
    w.in.cost = w.cost;
    w.in.recompute[w.in.model->llm] = DT_RECOMPUTE_NONE;
}

static void open_offload(struct dt_search_input *in, unsigned set)
{
    for (int m = 0; m < in->model->n_modules; m++)
        in->opt.offload[m] = set;
}

static bool offloads(const struct dt_plan *p)
{
    for (int m = 0; m < p->n_modules; m++)
        if (p->modules[m].offload != DT_OFFLOAD_NONE)
            return true;
    return false;
}

static void tell(const char *what, double s, const struct dt_plan *p)
{
    printf("  %s %.6f:", what, s);
    for (int m = 0; m < p->n_modules && s < HUGE_VAL; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;

        printf(" tp %d pp %d dp %d window %d offload %s split", l->tp, l->pp, l->dp,
               p->modules[m].window, dt_plan_offload_names[p->modules[m].offload]);
        for (int v = 0; v <= l->pp; v++)
            printf(" %d", p->modules[m].split[v]);
        printf(";");
    }
    printf("\n");
}

/* Seconds of the best plan; HUGE_VAL: none.  All plans are within what is open or stated, fit, and none takes less than is said. */
static double find(const struct dt_search_input *in, enum dt_plan_strategy strategy,
                   struct dt_plan *best)
{
    struct dt_search_result r;
    struct dt_error err;
    double s;
    enum dt_status st = dt_orch_find_plans(strategy, in, &err, &r);

    if (st != DT_OK) {
        ck_assert_msg(st == DT_ERR_INFEASIBLE, "%s", err.message);
        return HUGE_VAL;
    }
    for (int i = 0; i < r.n; i++) {
        struct dt_plan p = r.plans[i];

        for (int m = 0; m < p.n_modules; m++) {
            unsigned set = in->opt.offload[m] ? in->opt.offload[m] : 1U << in->offload[m];

            ck_assert(set >> p.modules[m].offload & 1);
        }
        if (p.predicted.timeline_s > 0)
            ck_assert(timeline_of(in, &p) <= p.predicted.timeline_s * (1 + 1e-9));
    }
    s = timeline_of(in, &r.plans[0]);
    *best = r.plans[0];
    dt_search_result_free(&r);
    return s;
}

/* One encoder in windows of any length; all that may be offloaded, of both. */
static void colocated(struct brute *b)
{
    const struct dt_plan_layout *l = &b->p.modules[b->llm].layout;
    int gpus = l->tp * l->pp * l->dp;

    b->p.modules[0].with = (uint8_t)(b->llm + 1);
    for (int tp = 1; tp <= 8 && tp <= gpus; tp *= 2)
        for (int window = 1; window <= BATCH / l->dp && gpus % tp == 0; window++)
            for (int k = 0; k < 2 * DT_OFFLOAD_N; k++) {
                b->p.modules[0].layout = (struct dt_plan_layout){tp, 1, 1, 1, 1, gpus / tp, 1, 0};
                b->p.modules[0].window = window == BATCH / l->dp ? DT_PLAN_WINDOW_ALL : window;
                b->p.modules[0].offload = (enum dt_plan_offload)(k / 2);
                b->p.modules[b->llm].offload = k % 2 ? DT_OFFLOAD_OPTIMIZER : DT_OFFLOAD_NONE;
                if ((b->in->opt.offload[0] >> b->p.modules[0].offload & 1) &&
                    (b->in->opt.offload[b->llm] >> b->p.modules[b->llm].offload & 1))
                    time_it(b);
            }
}

/* So many worlds of at most so many GPUs; of each what the search finds and what is best. */
struct tally {
    int fits, equal, offloaded, only;
};

static struct tally beside_enumeration(int worlds, int gpus_most, bool wide, unsigned open)
{
    struct tally n = {0};

    for (int round = 0; round < worlds; round++) {
        int gpus = wide ? gpus_most : 1 + below(gpus_most);
        struct dt_search_input none;
        struct dt_orch_table *t;
        struct dt_error err;
        struct dt_plan p, q;
        double found, without, best, memory;

        build(1, gpus, 1);
        if (wide)
            widen_encoder();
        memory = wide ? uniform(0.5, 1) : uniform(0.3, 1.5);
        set_memory(&w, memory);
        none = w.in;
        open_offload(&w.in, open);
        dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
        best = enumerate(&w.in, t, gpus, colocated);
        dt_orch_table_free(t);
        found = find(&w.in, DT_STRATEGY_COLOCATED, &p);
        without = find(&none, DT_STRATEGY_COLOCATED, &q);
        printf("round %d, %d GPUs, memory %.2f: without %.6f\n", round, gpus, memory, without);
        tell("enumerated", best, &all.best_plan);
        tell("found", found, &p);
        fflush(stdout);
        ck_assert(isinf(best) || found <= best * 1.05);
        ck_assert(isinf(without) || found <= without * (1 + 1e-9));
        n.fits += isfinite(best);
        n.equal += isfinite(best) && found <= best * 1.005;
        n.offloaded += isfinite(found) && offloads(&p);
        n.only += isfinite(found) && isinf(without);
        free_world(&w);
    }
    printf("%d of %d equal, %d offload, %d fit only so\n", n.equal, n.fits, n.offloaded, n.only);
    ck_assert_int_ge(n.fits, worlds / 2);
    ck_assert_int_ge(n.equal * 20, n.fits * 19);
    return n;
}

START_TEST(colocated_equals_enumeration)
{
    struct tally n;

    setup_seed();
    n = beside_enumeration(WORLDS, 3, false, OPEN);
    ck_assert_int_ge(n.offloaded, WORLDS / 4);
    ck_assert_int_ge(n.only, WORLDS / 8);
}
END_TEST

/* Parameters alone, of encoders that have many: they decide in one of twelve such worlds, so those of a fixed seed are looked at, too. */
START_TEST(parameters_equal_enumeration)
{
    enum { FIXED = 1, LEAVE = 1U << DT_OFFLOAD_NONE | 1U << DT_OFFLOAD_PARAMETERS };
    struct tally n = {0};

    setup_seed();
    beside_enumeration(WORLDS / 4, 4, true, LEAVE);
    dt_rng_init(&rng, FIXED, 7);
    for (int i = 0; i < 8 && n.offloaded == 0;
         i++) /* which worlds they are is the compiler's, too */
        n = beside_enumeration(WORLDS / 4, 4, true, LEAVE);
    ck_assert_int_ge(n.offloaded, 1);
}
END_TEST

/* Of every strategy: what is open makes nothing slower, and something fit that did not; what is stated is kept (find). */
START_TEST(open_is_none_slower)
{
    static const enum dt_plan_strategy strategies[] = {
        DT_STRATEGY_DISTTRAIN,    DT_STRATEGY_BEST,      DT_STRATEGY_HOMOGENEOUS,
        DT_STRATEGY_NONCOLOCATED, DT_STRATEGY_COLOCATED, DT_STRATEGY_MEGATRON};
    int only = 0, kept = 0;

    setup_seed();
    for (int round = 0; round < WORLDS; round++) {
        struct dt_search_input open, all_of_it;
        enum dt_plan_strategy s = strategies[round % 6];
        struct dt_plan p;
        double with, without, stated;

        build(1, 2 + below(4), uniform(0.3, 1));
        w.in.opt.guests = 1;
        open = all_of_it = w.in;
        open_offload(&open, OPEN);
        for (int m = 0; m < w.in.model->n_modules; m++)
            all_of_it.offload[m] = DT_OFFLOAD_OPTIMIZER;
        without = find(&w.in, s, &p);
        stated = find(&all_of_it, s, &p);
        with = find(&open, s, &p);
        printf("round %d, %s: without %.6f, stated %.6f, open %.6f\n", round,
               dt_plan_strategy_names[s], without, stated, with);
        fflush(stdout);
        ck_assert(isinf(without) || with <= without * (1 + 1e-9));
        ck_assert(isinf(stated) || with <= stated * 1.03);
        only += isinf(without) && isfinite(with);
        kept += isfinite(stated);
        free_world(&w);
    }
    ck_assert_int_ge(only, 2);
    ck_assert_int_ge(kept, WORLDS / 2);
}
END_TEST

/* Parameters that are stated to leave do so in every plan of a strategy with phases, and are no plan of another. */
START_TEST(stated_parameters_leave)
{
    struct dt_search_result r;
    struct dt_error err;
    struct dt_plan p;

    setup_seed();
    build(1, 4, 3);
    w.in.offload[0] = DT_OFFLOAD_PARAMETERS;
    ck_assert(find(&w.in, DT_STRATEGY_COLOCATED, &p) < HUGE_VAL);
    ck_assert_int_eq(p.modules[0].window, DT_PLAN_WINDOW_ALL);
    ck_assert(find(&w.in, DT_STRATEGY_DIP, &p) < HUGE_VAL);
    ck_assert(p.modules[0].phases);
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "has no phases");
    ck_assert(find(&w.in, DT_STRATEGY_BEST, &p) < HUGE_VAL);
    ck_assert_int_eq(p.strategy, DT_STRATEGY_COLOCATED);
    free_world(&w);
}
END_TEST

/* The formula has the step on the host: that of the slowest GPU's STEPs, as the timeline's last ops take it. */
START_TEST(the_formula_has_the_step)
{
    struct dt_plan p;
    struct dt_plan_prediction here, there;
    double step, longest = 0;
    struct dt_cost_time t;

    setup_seed();
    build(0, 1, 9);
    dt_search_plan_init(&w.in, &p);
    p.modules[0].split[1] = (uint16_t)w.in.model->modules[0].n_blocks;
    dt_orch_formula(&w.in, &p, &here);
    p.modules[0].offload = DT_OFFLOAD_OPTIMIZER;
    dt_orch_formula(&w.in, &p, &there);
    for (int b = 0; b < w.in.model->modules[0].n_blocks; b++)
        longest += (double)dt_block_params(&w.in.model->modules[0].blocks[b]);
    dt_cost_optimizer_host(w.cost, longest, 1, 4, 2, &t);
    step = dt_sched_host_step_s(&p, w.in.model, w.in.cluster, w.cost);
    ck_assert_double_eq_tol(step, t.ns / 1e9, 1e-12);
    ck_assert_double_eq_tol(there.staged_s - here.staged_s, step, 1e-12);
    ck_assert(there.total_s <= here.total_s && there.total_s >= here.total_s);
    free_world(&w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offload_search");
    TCase *tc = dt_test_case(suite, "search", 300);

    tcase_add_test(tc, colocated_equals_enumeration);
    tcase_add_test(tc, parameters_equal_enumeration);
    tcase_add_test(tc, open_is_none_slower);
    tcase_add_test(tc, stated_parameters_leave);
    tcase_add_test(tc, the_formula_has_the_step);
    return dt_test_run(suite);
}
