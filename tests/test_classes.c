/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The strategies homogeneous, colocated, noncolocated and best: what their plans look like, and how fast they are beside an
 * enumeration of all plans of the class in small random worlds. */
#include "brute_plans.h"

#include <stdlib.h>

enum { WORLDS = 10, BATCH = 8 };

static const enum dt_plan_strategy classes[] = {DT_STRATEGY_HOMOGENEOUS, DT_STRATEGY_COLOCATED,
                                                DT_STRATEGY_NONCOLOCATED};

/* ---- what a class is ---- */

static void assert_homogeneous(const struct dt_plan *p, int llm)
{
    const struct dt_plan_layout *l = &p->modules[llm].layout;
    int stage = l->dp * l->tp * l->cp;

    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *x = &p->modules[m].layout;

        if (m == llm)
            continue;
        ck_assert(x->tp == l->tp && x->ip * x->cp == l->cp && x->dp == l->dp && x->pp == 1);
        ck_assert_int_eq(p->modules[m].with, llm + 1);
        ck_assert_int_eq(p->modules[m].window, 0);
        ck_assert_int_eq(x->first_gpu - l->first_gpu, m < llm ? 0 : (l->pp - 1) * stage);
    }
}

static void assert_colocated(const struct dt_plan *p, int llm)
{
    const struct dt_plan_layout *l = &p->modules[llm].layout;

    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *x = &p->modules[m].layout;

        if (m == llm)
            continue;
        ck_assert_int_eq(p->modules[m].with, llm + 1);
        if (m > llm)
            continue;
        ck_assert_int_eq(x->tp * x->dp, l->tp * l->cp * l->pp * l->dp);
        ck_assert(x->pp == 1 && p->modules[m].window != 0);
    }
}

static void assert_class(const struct dt_plan *p, int llm)
{
    if (p->strategy == DT_STRATEGY_HOMOGENEOUS)
        assert_homogeneous(p, llm);
    else if (p->strategy == DT_STRATEGY_COLOCATED)
        assert_colocated(p, llm);
    else
        for (int m = 0; m < p->n_modules; m++)
            ck_assert_int_eq(p->modules[m].with, 0);
}

/* ---- search and enumeration ---- */

/* Seconds of the best plan; all plans are of the class, and take what is said of them. */
static double search(enum dt_plan_strategy strategy, const struct dt_search_input *in)
{
    struct dt_search_result r;
    struct dt_error err;
    double best;

    if (dt_orch_find_plans(strategy, in, &err, &r) != DT_OK)
        return HUGE_VAL;
    best = timeline_of(in, &r.plans[0]);
    for (int i = 0; i < r.n; i++) {
        if (strategy != DT_STRATEGY_BEST)
            ck_assert_int_eq(r.plans[i].strategy, strategy);
        assert_class(&r.plans[i], in->model->llm);
        if (r.plans[i].predicted.timeline_s > 0 && !in->opt.free_intra) {
            double s = timeline_of(in, &r.plans[i]), said = r.plans[i].predicted.timeline_s;

            /* of one behind the best the turns of guests need not be the best */
            ck_assert(i == 0 ? fabs(said - s) < 1e-9 : said > s - 1e-9);
        }
    }
    if (strategy == DT_STRATEGY_BEST) {
        int fit = 0;

        ck_assert_int_eq(r.n_classes, 3);
        for (int i = 0; i < r.n_classes; i++) {
            ck_assert(r.classes[i].why[0]);
            fit += r.classes[i].fits;
        }
        ck_assert_int_eq(fit, r.n);
    }
    dt_search_result_free(&r);
    return best;
}

static void homogeneous(struct brute *b)
{
    const struct dt_plan_layout *l = &b->p.modules[b->llm].layout;

    for (int m = 0; m < b->p.n_modules; m++) {
        if (m == b->llm)
            continue;
        b->p.modules[m].layout = (struct dt_plan_layout){l->tp, 1, 1, 1, 1, l->dp, 1, 0};
        b->p.modules[m].with = (uint8_t)(b->llm + 1);
        b->p.modules[m].pinned = m > b->llm;
        if (m > b->llm)
            b->p.modules[m].layout.first_gpu = (l->pp - 1) * l->dp * l->tp;
    }
    time_it(b);
}

/* One encoder: every width, windows of any length. */
static void colocated(struct brute *b)
{
    const struct dt_plan_layout *l = &b->p.modules[b->llm].layout;
    int gpus = l->tp * l->pp * l->dp;

    b->p.modules[0].with = (uint8_t)(b->llm + 1);
    for (int tp = 1; tp <= 8 && tp <= gpus; tp *= 2)
        for (int window = 1; window <= BATCH / l->dp && gpus % tp == 0; window++) {
            b->p.modules[0].layout = (struct dt_plan_layout){tp, 1, 1, 1, 1, gpus / tp, 1, 0};
            b->p.modules[0].window = window;
            time_it(b);
        }
}

/* Most are as fast as the best of all; those that are not have ended in a split of the LLM, or a window, that no single step
 * makes faster. */
START_TEST(classes_equal_enumeration)
{
    static struct world w;
    int equal = 0, of = 0;

    setup_seed();
    for (int round = 0; round < WORLDS; round++) {
        bool coloc = round % 2;
        int gpus = 1 + below(8);
        double found, best;

        build_world(&w, 1, coloc ? 0 : below(2), BATCH);
        w.in.opt.gpus = gpus;
        w.in.opt.rank = true;
        set_memory(&w, uniform(2, 8));
        found = search(coloc ? DT_STRATEGY_COLOCATED : DT_STRATEGY_HOMOGENEOUS, &w.in);
        best = enumerate(&w.in, NULL, gpus, coloc ? colocated : homogeneous);
        printf("round %d, %s, %d GPUs: %.6f, enumerated %.6f\n", round,
               coloc ? "colocated" : "homogeneous", gpus, found, best);
        fflush(stdout);
        ck_assert(isinf(best) || found <= best * 1.2);
        equal += isinf(best) || found <= best * 1.005;
        of++;
        free_world(&w);
    }
    printf("%d of %d equal\n", equal, of);
    ck_assert_int_ge(equal * 10, of * 8);
}
END_TEST

/* Where memory binds on very few GPUs stages have to differ, and nothing is missed. */
START_TEST(homogeneous_in_tiny_worlds)
{
    static struct world w;
    int fits = 0;

    setup_seed();
    for (int round = 0; round < 2 * WORLDS; round++) {
        int gpus = 1 + below(4);
        double found, best;

        build_world(&w, 1, below(2), BATCH);
        w.in.opt.gpus = gpus;
        w.in.opt.rank = true;
        set_memory(&w, uniform(0.4, 2.2));
        found = search(DT_STRATEGY_HOMOGENEOUS, &w.in);
        best = enumerate(&w.in, NULL, gpus, homogeneous);
        printf("round %d, %d GPUs: %.6f, enumerated %.6f\n", round, gpus, found, best);
        fflush(stdout);
        ck_assert(isinf(best) || found <= best * 1.05);
        fits += isfinite(best);
        free_world(&w);
    }
    ck_assert_int_ge(fits, WORLDS);
}
END_TEST

static void tell(const char *what, double s, const struct dt_plan *p)
{
    printf("  %s %.6f:", what, s);
    for (int m = 0; m < p->n_modules && s < HUGE_VAL; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;

        printf(" tp %d pp %d dp %d vpp %d window %d split", l->tp, l->pp, l->dp, l->vpp,
               p->modules[m].window);
        for (int v = 0; v <= l->pp * l->vpp; v++)
            printf(" %d", p->modules[m].split[v]);
        printf(";");
    }
    printf("\n");
}

/* Seconds of the best plan; HUGE_VAL: none. */
static double find(const struct dt_search_input *in, enum dt_plan_strategy strategy)
{
    struct dt_search_result r;
    struct dt_error err;
    double s;

    if (dt_orch_find_plans(strategy, in, &err, &r) != DT_OK)
        return HUGE_VAL;
    s = timeline_of(in, &r.plans[0]);
    tell("found", s, &r.plans[0]);
    dt_search_result_free(&r);
    return s;
}

/* The same for encoders in windows, whose length memory binds, too: of the plans that memory holds with what is to be expected, and
 * most of those that it holds with what this batch assigns. */
START_TEST(colocated_in_tiny_worlds)
{
    static struct world w;
    int fits = 0, equal = 0, assigned = 0;

    setup_seed();
    for (int round = 0; round < 3 * WORLDS; round++) {
        int gpus = 2 + below(3);
        struct dt_orch_table *t;
        struct dt_error err;
        double found, best, any;

        build_world(&w, 1, 0, BATCH);
        w.in.opt.gpus = gpus;
        w.in.opt.rank = true;
        set_memory(&w, uniform(0.4, 2.2));
        dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
        any = enumerate(&w.in, NULL, gpus, colocated);
        best = enumerate(&w.in, t, gpus, colocated);
        dt_orch_table_free(t);
        printf("round %d, %d GPUs: %.6f fits what is assigned\n", round, gpus, any);
        tell("enumerated", best, &all.best_plan);
        found = find(&w.in, DT_STRATEGY_COLOCATED);
        ck_assert(isinf(best) || found <= best * 1.05);
        equal += isfinite(best) && found <= best * 1.005;
        assigned += isfinite(any) && found <= any * 1.005;
        fits += isfinite(best);
        free_world(&w);
    }
    printf("%d of %d equal, %d with what is assigned alone\n", equal, fits, assigned);
    ck_assert_int_ge(fits, WORLDS);
    ck_assert_int_ge(equal * 20, fits * 19);
    ck_assert_int_ge(assigned * 10, fits * 4);
}
END_TEST

/* A deeper LLM has hundreds of splits: the one with the fastest slowest stage that memory holds is among the best plans, and where
 * there is a plan one is found. */
START_TEST(deep_llms_on_few_gpus)
{
    static struct world w;
    int equal = 0, fits = 0;

    setup_seed();
    for (int round = 0; round < WORLDS; round++) {
        struct dt_orch_table *t;
        struct dt_error err;
        double found, best;

        build_world(&w, 1, 0, 4);
        deepen(&w, 12 + below(3));
        w.in.opt.gpus = 5;
        w.in.opt.tp_mask = 1;
        w.in.opt.rank = true;
        set_memory(&w, uniform(0.5, 0.8));
        dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
        best = enumerate(&w.in, t, 5, homogeneous);
        dt_orch_table_free(t);
        printf("round %d\n", round);
        tell("enumerated", best, &all.best_plan);
        found = find(&w.in, DT_STRATEGY_HOMOGENEOUS);
        ck_assert(isinf(best) || found <= best * 1.1);
        equal += isfinite(best) && found <= best * 1.005;
        fits += isfinite(best);
        free_world(&w);
    }
    printf("%d of %d equal\n", equal, fits);
    ck_assert_int_ge(fits, WORLDS / 3);
    ck_assert_int_ge(equal * 10, fits * 9);
}
END_TEST

/* One generator: every width, as many replicas as fit, which take samples or share images. */
static void colocated_drawn(struct brute *b)
{
    const struct dt_plan_layout *l = &b->p.modules[b->llm].layout;
    int gpus = l->tp * l->pp * l->dp;

    b->p.modules[1].with = (uint8_t)(b->llm + 1);
    for (int tp = 1; tp <= 8 && tp <= gpus; tp *= 2)
        for (int dp = 1; dp <= gpus / tp; dp++)
            for (int window = 0; window < 2; window++) {
                if (gpus % tp != 0)
                    continue;
                b->p.modules[1].layout = (struct dt_plan_layout){tp, 1, 1, 1, 1, dp, 1, 0};
                b->p.modules[1].window = window;
                time_it(b);
            }
}

/* A batch of few samples on more GPUs: who draws is to be chosen, and where images are shared that is what is found. */
START_TEST(generators_share_images_where_it_is_faster)
{
    static struct world w;
    int equal = 0, shared = 0;

    setup_seed();
    for (int round = 0; round < WORLDS; round++) {
        struct dt_search_result r;
        struct dt_error err;
        double best;

        build_world(&w, 0, 1, 2);
        w.in.opt.gpus = 8;
        w.in.opt.rank = true;
        best = enumerate(&w.in, NULL, 8, colocated_drawn);
        dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_COLOCATED, &w.in, &err, &r), err);
        printf("round %d: %.6f, enumerated %.6f; generator dp %d window %d\n", round,
               timeline_of(&w.in, &r.plans[0]), best, r.plans[0].modules[1].layout.dp,
               r.plans[0].modules[1].window);
        fflush(stdout);
        ck_assert(timeline_of(&w.in, &r.plans[0]) <= best * 1.2);
        equal += timeline_of(&w.in, &r.plans[0]) <=
                 best * 1.03; /* not every number of replicas is tried */
        shared += dt_plan_window(&r.plans[0], 0, 1) == 1;
        dt_search_result_free(&r);
        free_world(&w);
    }
    printf("%d of %d equal, %d share\n", equal, WORLDS, shared);
    ck_assert_int_ge(equal * 10, WORLDS * 8);
    ck_assert_int_gt(shared, 0);
}
END_TEST

/* Where a module's replicas are on many nodes, the search finds how many of them shard together: around its layouts no groups of
 * the encoder and the LLM are much faster, and some are faster than all ranks. */
START_TEST(groups_that_shard_are_found)
{
    static struct world w;
    int equal = 0, grouped = 0;

    setup_seed();
    for (int round = 0; round < WORLDS / 2; round++) {
        struct dt_search_result r;
        struct dt_error err;
        double found, best = HUGE_VAL, whole;
        struct dt_plan p;
        int e, l;

        build_world(&w, 1, 0, 64);
        w.fx.cluster.nodes = 16;
        w.in.opt.gpus = 128;
        w.in.opt.rank = true;
        w.in.opt.tp_mask = 1;
        dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_COLOCATED, &w.in, &err, &r), err);
        p = r.plans[0];
        found = timeline_of(&w.in, &p);
        e = p.modules[0].layout.dp;
        l = p.modules[1].layout.dp;
        for (int of_e = 1; of_e <= e; of_e++)
            for (int of_l = 1; of_l <= l; of_l++) {
                if (e % of_e != 0 || l % of_l != 0)
                    continue;
                p.modules[0].zero_group = of_e < e ? of_e : 0;
                p.modules[1].zero_group = of_l < l ? of_l : 0;
                best = fmin(best, timeline_of(&w.in, &p));
            }
        p.modules[0].zero_group = p.modules[1].zero_group = 0;
        whole = timeline_of(&w.in, &p);
        printf("round %d: %.6f in groups of %d and %d, %.6f of all %d and %d, enumerated %.6f\n",
               round, found, r.plans[0].modules[0].zero_group, r.plans[0].modules[1].zero_group,
               whole, e, l, best);
        fflush(stdout);
        ck_assert(found <= whole && found <= best * 1.03);
        equal += found <= best * 1.005;
        grouped += found < whole;
        dt_search_result_free(&r);
        free_world(&w);
    }
    printf("%d of %d equal, %d in groups\n", equal, WORLDS / 2, grouped);
    ck_assert_int_gt(equal, 0);
    ck_assert_int_gt(grouped, 0);
}
END_TEST

START_TEST(best_is_none_slower)
{
    static struct world w;
    int fits = 0;

    setup_seed();
    for (int round = 0; round < WORLDS; round++) {
        double best;

        build_world(&w, 1 + below(2), below(2), BATCH);
        w.in.opt.gpus = 2 + below(11);
        w.in.opt.rank = true;
        if (round % 2)
            w.in.opt.free_intra = w.in.opt.free_inter = true;
        set_memory(&w, uniform(1.2, 6));
        best = search(DT_STRATEGY_BEST, &w.in);
        for (int i = 0; i < 3; i++) {
            double one = search(classes[i], &w.in);

            ck_assert_msg(best <= one * (1 + 1e-9), "%s %.9f, best %.9f",
                          dt_plan_strategy_names[classes[i]], one, best);
            fits += isfinite(one);
        }
        free_world(&w);
    }
    ck_assert_int_gt(fits, WORLDS);
}
END_TEST

/* Nothing lies anywhere: the classes search the same layouts. */
START_TEST(an_llm_alone_fits_every_class)
{
    static struct world w;
    int fits = 0;

    setup_seed();
    for (int round = 0; round < WORLDS; round++) {
        double homogeneous_s, colocated_s, own_s;

        build_world(&w, 0, 0, BATCH);
        w.in.opt.gpus = 2 + below(7);
        w.in.opt.rank = true;
        set_memory(&w, uniform(2, 8));
        homogeneous_s = search(DT_STRATEGY_HOMOGENEOUS, &w.in);
        colocated_s = search(DT_STRATEGY_COLOCATED, &w.in);
        own_s = search(DT_STRATEGY_NONCOLOCATED, &w.in);
        printf("round %d: homogeneous %.6f, colocated %.6f, noncolocated %.6f\n", round,
               homogeneous_s, colocated_s, own_s);
        fflush(stdout);
        ck_assert(isinf(own_s) || (homogeneous_s <= own_s * 1.05 && colocated_s <= own_s * 1.05));
        fits += isfinite(own_s);
        free_world(&w);
    }
    ck_assert_int_gt(fits, WORLDS / 2);
}
END_TEST

/* The simplest plan of all: every module on all GPUs, in turn.  HUGE_VAL: it does not fit. */
static double in_turn(struct dt_search_input in)
{
    struct dt_plan p;

    dt_search_plan_init(&in, &p);
    p.colocated = true;
    for (int m = 0; m < p.n_modules; m++)
        p.modules[m].layout.dp = in.opt.gpus;
    in.manual = &p;
    return BATCH % in.opt.gpus == 0 ? find(&in, DT_STRATEGY_MANUAL) : HUGE_VAL;
}

/* With fewer GPUs than modules strategy disttrain is a search, too: none of the classes is faster, or fits where it does not; what
 * is stated holds. */
START_TEST(fewer_gpus_than_modules)
{
    static struct world w;
    int fits = 0;

    setup_seed();
    for (int round = 0; round < WORLDS; round++) {
        const struct dt_search_options *o = &w.in.opt;
        struct dt_search_result r;
        double found, others;
        struct dt_error err;

        build_world(&w, 1 + below(2), 1 + below(2), BATCH);
        w.in.opt.gpus = 1 + below(w.in.model->n_modules - 1);
        w.in.opt.rank = true;
        w.in.opt.guests = ~0U;
        w.in.opt.tp_mask = round % 4 ? 0xf : 2;
        w.in.opt.max_microbatch = below(2) ? 16 : 0;
        for (int m = 0; m < w.in.model->n_modules && round % 2; m++) {
            w.in.opt.recompute[m] = 7;
            w.in.opt.zero[m] = 15;
        }
        set_memory(&w, uniform(0.8, 4));
        found = find(&w.in, DT_STRATEGY_DISTTRAIN);
        others = fmin(search(DT_STRATEGY_HOMOGENEOUS, &w.in), search(DT_STRATEGY_COLOCATED, &w.in));
        if (o->tp_mask & 1)
            others = fmin(others, in_turn(w.in));
        ck_assert_msg(found <= others * 1.001 || isinf(others), "%d modules on %d GPUs: %.6f, %.6f",
                      w.in.model->n_modules, o->gpus, found, others);
        fits += isfinite(found);
        if (isfinite(found)) {
            dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r), err);
            for (int m = 0; m < r.plans[0].n_modules; m++)
                ck_assert(o->tp_mask & (unsigned)r.plans[0].modules[m].layout.tp);
            ck_assert_int_le(dt_plan_gpus(&r.plans[0]), o->gpus);
            dt_search_result_free(&r);
        }
        w.in.opt.guests = 0; /* each on GPUs of its own */
        ck_assert(isinf(find(&w.in, DT_STRATEGY_DISTTRAIN)));
        free_world(&w);
    }
    ck_assert_int_gt(fits, WORLDS / 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("classes");
    TCase *tc = dt_test_case(suite, "classes", 300);

    tcase_add_test(tc, classes_equal_enumeration);
    tcase_add_test(tc, homogeneous_in_tiny_worlds);
    tcase_add_test(tc, colocated_in_tiny_worlds);
    tcase_add_test(tc, deep_llms_on_few_gpus);
    tcase_add_test(tc, generators_share_images_where_it_is_faster);
    tcase_add_test(tc, groups_that_shard_are_found);
    tcase_add_test(tc, best_is_none_slower);
    tcase_add_test(tc, an_llm_alone_fits_every_class);
    tcase_add_test(tc, fewer_gpus_than_modules);
    return dt_test_run(suite);
}
