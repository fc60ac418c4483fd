/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The planner's search against exhaustive enumeration of small random worlds. */
#include "small_world.h"

/* ---- exhaustive enumeration ---- */

struct brute {
    const struct dt_search_input *in;
    struct dt_orch_table *t;
    struct dt_plan p;
    int gpus;
    int64_t slot;
    double best, least_formula;
    int64_t tried, fit;
};

static void brute_leaf(struct brute *b)
{
    struct dt_work work[DT_MAX_MODULES];
    struct dt_plan_prediction q;
    double value;

    b->tried++;
    for (int m = 0; m < b->p.n_modules; m++)
        dt_orch_largest_work(
            &b->t->work[m], (double)dt_orch_samples_per_replica(b->slot, b->p.modules[m].layout.dp),
            3, &work[m]);
    if (dt_memory_check(&b->p, b->in->model, b->in->cluster, work, NULL, NULL) != DT_OK)
        return;
    b->fit++;
    dt_orch_formula_stats(b->in, &b->p, b->t->work, &q);
    value = b->in->opt.uniform ? q.total_s : q.staged_s;
    b->best = fmin(b->best, value);
    b->least_formula = fmin(b->least_formula, q.total_s);
}

static void brute_module(struct brute *b, int m, int left);

static void brute_layouts(struct brute *b, int m, int left, int tpi, int dp)
{
    int n = b->in->model->modules[m].n_blocks, llm = b->in->model->llm;

    for (int vpp = 1; vpp <= (m == llm ? b->t->max_vpp : 1); vpp++)
        for (int pp = 1; pp * vpp <= n && (pp * dp) << tpi <= left; pp++) {
            const struct dt_orch_stage_entry *e = dt_orch_table_stage(b->t, m, tpi, pp, vpp);

            b->p.modules[m].layout = (struct dt_plan_layout){1 << tpi, 1, 1, pp, vpp, dp, 1, 0};
            memcpy(b->p.modules[m].split, e->split, (size_t)(pp * vpp + 1) * 2);
            brute_module(b, m + 1, left - ((pp * dp) << tpi));
        }
}

/* Modules 0.. in turn (the LLM has been chosen before). */
static void brute_module(struct brute *b, int m, int left)
{
    if (m == b->in->model->llm)
        m++;
    if (m >= b->in->model->n_modules) {
        brute_leaf(b);
        return;
    }
    for (int tpi = 0; tpi < 4; tpi++)
        if (b->t->cost[m][tpi].legal)
            for (int dp = 1; dp <= b->slot && dp << tpi <= left; dp++)
                brute_layouts(b, m, left, tpi, dp);
}

static void brute_llm(struct brute *b)
{
    const struct dt_plan_policy *y = &b->in->policy;
    int llm = b->in->model->llm, n = b->in->model->modules[llm].n_blocks;

    b->best = b->least_formula = HUGE_VAL;
    for (int tpi = 0; tpi < 4; tpi++)
        for (int dp = 1; dp <= b->gpus; dp++)
            for (int vpp = 1; vpp <= b->t->max_vpp; vpp++)
                for (int pp = 1; pp * vpp <= n && (pp * dp) << tpi <= b->gpus; pp++) {
                    const struct dt_orch_stage_entry *e;

                    b->slot = (int64_t)dp * y->microbatch;
                    if (!b->t->cost[llm][tpi].legal || y->global_batch % b->slot != 0 ||
                        (vpp > 1 && pp == 1))
                        continue;
                    e = dt_orch_table_stage(b->t, llm, tpi, pp, vpp);
                    b->p.modules[llm].layout =
                        (struct dt_plan_layout){1 << tpi, 1, 1, pp, vpp, dp, 1, 0};
                    memcpy(b->p.modules[llm].split, e->split, (size_t)(pp * vpp + 1) * 2);
                    brute_module(b, 0, b->gpus - ((pp * dp) << tpi));
                }
}

static void brute_force(struct brute *b, const struct dt_search_input *in)
{
    struct dt_error err;

    memset(b, 0, sizeof(*b));
    b->in = in;
    dt_assert_ok(dt_orch_table_new(in, &err, &b->t), err);
    b->gpus = b->t->gpus;
    dt_plan_init(&b->p, in->model, &in->policy);
    for (int m = 0; m < in->model->n_modules; m++)
        b->p.modules[m].frozen = in->frozen[m];
    brute_llm(b);
    dt_orch_table_free(b->t);
}

static double value_of(const struct dt_search_input *in, const struct dt_plan *p)
{
    return in->opt.uniform ? p->predicted.total_s : p->predicted.staged_s;
}

/* What must hold of any result: valid, best first, different, at most two per (TP_lm, DP_lm,
 * pp_lm). */
static void check_result(const struct dt_search_input *in, const struct dt_search_result *r)
{
    struct dt_error err;
    int llm = in->model->llm;

    for (int i = 0; i < r->n; i++) {
        const struct dt_plan_layout *a = &r->plans[i].modules[llm].layout;
        int same = 0;

        dt_assert_ok(dt_plan_validate(&r->plans[i], in->model, in->cluster, &err), err);
        ck_assert_int_le(dt_plan_gpus(&r->plans[i]), in->opt.gpus);
        if (i > 0)
            ck_assert_double_le(value_of(in, &r->plans[i - 1]),
                                value_of(in, &r->plans[i]) * (1 + 1e-12));
        ck_assert_double_le(r->plans[i].predicted.lower_bound_s,
                            r->plans[i].predicted.total_s * (1 + 1e-7));
        ck_assert_double_le(r->plans[i].predicted.total_s,
                            r->plans[i].predicted.staged_s * (1 + 1e-12));
        for (int j = 0; j < r->n; j++) {
            const struct dt_plan_layout *b = &r->plans[j].modules[llm].layout;

            same += a->tp == b->tp && a->dp == b->dp && a->pp == b->pp;
            if (j != i)
                ck_assert_mem_ne(r->plans[i].modules, r->plans[j].modules,
                                 sizeof(r->plans[i].modules));
        }
        ck_assert_int_le(same, 2);
    }
}

START_TEST(search_is_exhaustive)
{
    static const int64_t batches[] = {6, 8, 12, 24};
    int encoders = (_i + 1) % 3, generators = _i / 3 % 3;
    struct dt_search_result r;
    struct dt_error err;
    struct brute b;
    struct world w;
    enum dt_status st;

    if (encoders + generators > 3)
        generators = 1;
    dt_rng_init(&rng, seed, 100 + (uint64_t)_i);
    build_world(&w, encoders, generators, batches[_i % 4]);
    w.in.opt.gpus = encoders + generators > 2 ? 7 + below(4) : 8 + below(9);
    w.in.policy.microbatch = batches[_i % 4] % 2 == 0 && _i % 5 == 0 ? 2 : 1;
    w.in.policy.zero = _i % 2;
    w.in.opt.uniform = _i % 4 == 3;
    if (_i % 6 == 5) {
        w.in.policy.schedule = DT_SCHED_INTERLEAVED;
        w.in.opt.max_vpp = 3;
    }
    for (int m = 0; m < w.in.model->n_modules; m++)
        w.in.frozen[m] = below(4) == 0;
    set_memory(&w, _i % 3 == 0 ? 10 : _i % 3 == 1 ? uniform(0.6, 1.3) : uniform(0.3, 0.8));
    brute_force(&b, &w.in);
    st = dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w.in, &err, &r);
    if (isinf(b.best)) {
        ck_assert_msg(st == DT_ERR_INFEASIBLE, "seed %" PRIu64 " case %d: found what does not fit",
                      seed, _i);
        ck_assert(strstr(err.message, "memory:") || strstr(err.message, "parameters alone"));
    } else {
        dt_assert_ok(st, err);
        ck_assert_msg(
            fabs(value_of(&w.in, &r.plans[0]) / b.best - 1) < 1e-12,
            "seed %" PRIu64 " case %d: %.12g, exhaustive %.12g of %lld layouts (%lld fit)", seed,
            _i, value_of(&w.in, &r.plans[0]), b.best, (long long)b.tried, (long long)b.fit);
        ck_assert_double_le(r.stats.lower_bound_s, b.least_formula * (1 + 1e-7));
        ck_assert_double_gt(r.stats.lower_bound_s, _i % 3 == 0 ? 0.5 * b.least_formula : 0);
        check_result(&w.in, &r);
        dt_search_result_free(&r);
    }
    free_world(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("search");
    TCase *c = dt_test_case(s, "all", 120);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_loop_test(c, search_is_exhaustive, 0, 36);
    return dt_test_run(s);
}
