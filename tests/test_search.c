/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The planner's search against exhaustive enumeration of small random worlds. */
#include "small_world.h"

#include <stdlib.h>

/* ---- exhaustive enumeration: lays out, splits and asks by itself ---- */

struct brute {
    const struct dt_search_input *in;
    struct dt_orch_work_stats work[DT_MAX_MODULES];
    struct dt_plan p;
    int gpus;
    bool stated_space; /* replicas around the LLM: the fewest of each number of samples alone */
    int64_t slot;
    double best, least_formula;
    int64_t tried, fit;
};

static bool in_set(unsigned set, int value, int stated)
{
    return set ? set >> value & 1 : value == stated;
}

static void brute_leaf(struct brute *b)
{
    struct dt_work work[DT_MAX_MODULES];
    struct dt_plan_prediction q;
    double value;

    b->tried++;
    for (int m = 0; m < b->p.n_modules; m++)
        dt_orch_largest_work(
            &b->work[m],
            (double)((b->slot + b->p.modules[m].layout.dp - 1) / b->p.modules[m].layout.dp), 3,
            &work[m]);
    if (dt_memory_check(&b->p, b->in->model, b->in->cluster, work, NULL, NULL) != DT_OK)
        return;
    b->fit++;
    dt_orch_formula(b->in, &b->p, &q);
    value = b->in->opt.uniform ? q.total_s : q.staged_s;
    b->best = fmin(b->best, value);
    b->least_formula = fmin(b->least_formula, q.total_s);
}

/* The split whose slowest stage is fastest, by the times of single blocks of the mean microbatch. */
static void split_module(struct brute *b, int m)
{
    struct dt_plan_module *mp = &b->p.modules[m];
    const struct dt_block_shard shard = dt_plan_shard(mp);
    int n = b->in->model->modules[m].n_blocks;
    bool zb = b->p.policy.schedule == DT_SCHED_ZB_H1;
    double k = m == b->in->model->llm ? b->p.policy.microbatch : 1, s[DT_MAX_VSTAGES];
    unsigned char trainable[DT_MAX_VSTAGES];
    struct dt_work w = {0};

    w.n = llround(fmax(1, b->work[m].n * k));
    w.tokens = llround(fmax(1, b->work[m].tokens * k));
    w.tokens_sq = llround(fmax(1, b->work[m].tokens_sq * k));
    w.tokens_max = b->work[m].longest < w.tokens ? b->work[m].longest : w.tokens;
    dt_plan_trainable(&b->p, b->in->model, m, trainable);
    for (int i = 0; i < n; i++) {
        struct dt_cost_stage_ns ns =
            dt_cost_stage_ns(b->in->cost, m, i, 1, &shard, &w, trainable,
                             dt_plan_upstream_trained(&b->p, b->in->model, m, i));

        s[i] = (ns.fwd + ns.bwd + (zb ? ns.again : 0)) * 1e-9 / k;
    }
    dt_plan_split_blocks(s, n, mp->layout.pp * mp->layout.vpp, mp->split);
}

static void brute_module(struct brute *b, int m, int left);

/* Powers of two that divide the replicas, times cp, and every layer's experts. */
static bool ep_allowed(const struct brute *b, int m, int ep, int dp)
{
    const struct dt_module *mod = &b->in->model->modules[m];
    int experts = 0;

    for (int i = 0; i < mod->n_blocks; i++) {
        experts += mod->blocks[i].n_experts;
        if (mod->blocks[i].n_experts % ep != 0)
            return false;
    }
    return ep == 1 || (experts > 0 && dp % ep == 0 && (ep & (ep - 1)) == 0);
}

/* One shape of a module, with every level of ZeRO. */
static void brute_zero(struct brute *b, int m, int left)
{
    struct dt_plan_module *mp = &b->p.modules[m];

    split_module(b, m);
    for (int z = 0; z <= DT_ZERO_MAX; z++)
        if (in_set(b->in->opt.zero[m], z, b->in->zero[m])) {
            mp->zero = z;
            brute_module(b, m == b->in->model->llm ? 0 : m + 1, left);
        }
}

static void brute_layouts(struct brute *b, int m, int left, int tp, int cp, int dp)
{
    const struct dt_search_options *o = &b->in->opt;
    struct dt_plan_module *mp = &b->p.modules[m];
    int n = b->in->model->modules[m].n_blocks, vpp = m == b->in->model->llm ? mp->layout.vpp : 1;

    for (int r = 0; r < 3; r++)
        for (int pp = vpp > 1 ? 2 : 1; pp * vpp <= n && pp * dp * tp * cp <= left; pp++) {
            if (!in_set(o->recompute[m], r, (int)b->in->recompute[m]))
                continue;
            for (int ep = 1; ep <= dp * cp; ep++) {
                if (!ep_allowed(b, m, ep, dp * cp))
                    continue;
                mp->layout = (struct dt_plan_layout){tp, cp, ep, pp, vpp, dp, 1, 0};
                mp->recompute = (enum dt_block_recompute)r;
                brute_zero(b, m, left - pp * dp * tp * cp);
            }
        }
}

static bool tp_allowed(const struct brute *b, int m, int tp)
{
    for (int i = 0; i < b->in->model->modules[m].n_blocks; i++)
        if (!dt_block_allows_tp(&b->in->model->modules[m].blocks[i], tp))
            return false;
    return b->in->cluster->gpus_per_node % tp == 0;
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
    for (int tp = 1; tp <= 8; tp *= 2)
        for (int dp = 1; dp <= b->slot && dp * tp <= left && tp_allowed(b, m, tp); dp++) {
            int64_t each = (b->slot + dp - 1) / dp;

            if (!b->stated_space || dp == (b->slot + each - 1) / each)
                brute_layouts(b, m, left, tp, 1, dp);
        }
}

static void brute_llm(struct brute *b)
{
    struct dt_plan_policy *y = &b->p.policy;
    int llm = b->in->model->llm;

    for (int tp = 1; tp <= 8; tp *= 2)
        for (int dp = 1; dp * tp <= b->gpus && tp_allowed(b, llm, tp); dp++) {
            b->slot = (int64_t)dp * y->microbatch;
            b->p.modules[llm].layout.dp = dp;
            if (y->global_batch % b->slot != 0)
                continue;
            for (int cp = 1; cp <= (b->in->opt.max_cp ? b->in->opt.max_cp : 1); cp *= 2)
                if (b->in->cluster->gpus_per_node % (tp * cp) == 0 && tp * cp * dp <= b->gpus)
                    brute_layouts(b, llm, b->gpus, tp, cp, dp);
        }
}

static void brute_force(struct brute *b, const struct dt_search_input *in, bool stated_space)
{
    memset(b, 0, sizeof(*b));
    b->in = in;
    b->stated_space = stated_space;
    b->gpus = in->opt.gpus;
    b->best = b->least_formula = HUGE_VAL;
    dt_plan_init(&b->p, in->model, &in->policy);
    for (int m = 0; m < in->model->n_modules; m++) {
        b->p.modules[m].frozen = in->frozen[m];
        b->p.modules[m].zero = in->zero[m];
        dt_orch_work_stats(in, m, &b->work[m]);
    }
    for (int s = 0; s < DT_SCHED_N; s++)
        for (int vpp = 1; vpp <= (s == DT_SCHED_INTERLEAVED ? in->opt.max_vpp : 1); vpp++)
            for (int micro = 1; micro <= (in->opt.max_microbatch ? in->opt.max_microbatch : 16);
                 micro++) {
                if (!in_set(in->opt.schedules, s, (int)in->policy.schedule) ||
                    (!in->opt.max_microbatch && micro != in->policy.microbatch) ||
                    in->policy.global_batch % micro != 0)
                    continue;
                b->p.policy.schedule = (enum dt_pipe_schedule)s;
                b->p.policy.microbatch = micro;
                b->p.modules[in->model->llm].layout.vpp = vpp;
                brute_llm(b);
            }
}

static double value_of(const struct dt_search_input *in, const struct dt_plan *p)
{
    return in->opt.uniform ? p->predicted.total_s : p->predicted.staged_s;
}

/* What must hold of any result: valid, best first, different, at most two that have schedule, microbatch and the LLM's
 * layout in common. */
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

            same += a->tp == b->tp && a->ep == b->ep && a->dp == b->dp && a->pp == b->pp &&
                    a->vpp == b->vpp &&
                    r->plans[i].policy.schedule == r->plans[j].policy.schedule &&
                    r->plans[i].policy.microbatch == r->plans[j].policy.microbatch;
            if (j != i)
                ck_assert(
                    memcmp(r->plans[i].modules, r->plans[j].modules, sizeof(r->plans[i].modules)) ||
                    memcmp(&r->plans[i].policy, &r->plans[j].policy, sizeof(r->plans[i].policy)));
        }
        ck_assert_int_le(same, 2);
    }
}

static void compare(struct world *w, int encoders, bool stated_space)
{
    struct dt_search_result r;
    struct dt_error err;
    struct brute b;
    enum dt_status st;

    brute_force(&b, &w->in, stated_space);
    st = dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &w->in, &err, &r);
    if (isinf(b.best)) {
        ck_assert_msg(st == DT_ERR_INFEASIBLE, "seed %" PRIu64 ": found what does not fit", seed);
        ck_assert(strstr(err.message, "memory:") || strstr(err.message, "parameters alone"));
        return;
    }
    ck_assert_msg(st == DT_OK, "seed %" PRIu64 ", %d encoders: %s", seed, encoders, err.message);
    ck_assert_msg(fabs(value_of(&w->in, &r.plans[0]) / b.best - 1) < 1e-12,
                  "seed %" PRIu64 ": %.12g, exhaustive %.12g of %lld layouts (%lld fit)", seed,
                  value_of(&w->in, &r.plans[0]), b.best, (long long)b.tried, (long long)b.fit);
    ck_assert_double_le(r.stats.lower_bound_s, b.least_formula * (1 + 1e-7));
    ck_assert_double_gt(r.stats.lower_bound_s, 0.05 * b.least_formula);
    check_result(&w->in, &r);
    dt_search_result_free(&r);
}

static void compare_with_brute_force(struct world *w, int encoders)
{
    compare(w, encoders, false);
}

START_TEST(search_is_exhaustive)
{
    static const int64_t batches[] = {6, 8, 12, 24};
    int encoders = (_i + 1) % 3, generators = _i / 3 % 3;
    struct world w;

    if (encoders + generators > 3)
        generators = 1;
    dt_rng_init(&rng, seed, 100 + (uint64_t)_i);
    build_world(&w, encoders, generators, batches[_i % 4]);
    if (_i % 3 == 1)
        add_experts(&w);
    w.in.opt.gpus = encoders + generators > 2 ? 7 + below(4) : 8 + below(9);
    w.in.policy.microbatch = batches[_i % 4] % 2 == 0 && _i % 5 == 0 ? 2 : 1;
    w.in.opt.uniform = _i % 4 == 3;
    if (_i % 6 == 5) {
        w.in.policy.schedule = DT_SCHED_INTERLEAVED;
        w.in.opt.max_vpp = 3;
    }
    for (int m = 0; m < w.in.model->n_modules; m++)
        w.in.frozen[m] = below(4) == 0;
    for (int m = 0; m < w.in.model->n_modules; m++) {
        w.in.zero[m] = (_i + m) % 2;
        w.in.recompute[m] = (enum dt_block_recompute)((_i / 2 + m) % 3);
    }
    set_memory(&w, _i % 3 == 0 ? 10 : _i % 3 == 1 ? uniform(0.6, 1.3) : uniform(0.3, 0.8));
    compare_with_brute_force(&w, encoders);
    free_world(&w);
}
END_TEST

/* The same with schedules, chunks, microbatches and recomputation open. */
START_TEST(wide_search_is_exhaustive)
{
    static const int64_t batches[] = {4, 6, 8};
    int encoders = _i % 2, generators = _i / 2 % 2;
    struct world w;

    dt_rng_init(&rng, seed, 200 + (uint64_t)_i);
    build_world(&w, encoders, generators, batches[_i % 3]);
    if (_i % 3 == 2)
        add_experts(&w);
    w.in.opt.gpus = 4 + below(encoders + generators > 1 ? 3 : 6);
    w.in.opt.schedules = 1U << DT_SCHED_1F1B | 1U << DT_SCHED_INTERLEAVED | 1U << DT_SCHED_ZB_H1;
    w.in.opt.schedules &= _i % 4 == 3 ? 1U << DT_SCHED_ZB_H1 : ~0U;
    w.in.opt.max_vpp = 3;
    w.in.opt.max_microbatch = 1 + below(4);
    for (int m = 0; m < w.in.model->n_modules; m++) {
        w.in.opt.recompute[m] = 1 + (unsigned)below(7);
        w.in.frozen[m] = below(4) == 0;
    }
    set_memory(&w, _i % 3 == 0 ? uniform(0.5, 1.5) : uniform(0.25, 0.6));
    compare_with_brute_force(&w, encoders);
    free_world(&w);
}
END_TEST

/* Generators that hold the most, behind LLMs that make them hold more: the shallowest that fit alone do not fit there. */
START_TEST(heavy_generators_are_exhausted)
{
    static const int64_t batches[] = {6, 8, 12};
    struct world w;

    dt_rng_init(&rng, seed, 400 + (uint64_t)_i);
    build_world(&w, 0, 1, batches[_i % 3]);
    for (int b = 1; b < w.in.model->modules[1].n_blocks; b++)
        w.fx.model.modules[1].blocks[b].ffn *= 1 + below(3);
    w.in.opt.gpus = 4 + below(6);
    w.in.opt.schedules = 1U << (_i % 2 ? DT_SCHED_ZB_H1 : DT_SCHED_INTERLEAVED);
    w.in.opt.max_vpp = 2;
    w.in.opt.recompute[0] = 1 + (unsigned)below(7);
    w.in.opt.recompute[1] = 7;
    w.in.zero[0] = w.in.zero[1] =
        0; /* else more replicas than their samples call for may be what fits */
    set_memory(&w, uniform(0.3, 1.2));
    compare_with_brute_force(&w, 0);
    free_world(&w);
}
END_TEST

/* Long sequences dealt to several GPUs, and any ZeRO of any module, which exchanges more than computing takes where links are
 * slow. */
START_TEST(context_and_zero_are_exhausted)
{
    static const int64_t batches[] = {4, 6, 8};
    int around = _i % 3;
    struct world w;

    dt_rng_init(&rng, seed, 600 + (uint64_t)_i);
    build_world(&w, around == 1, around == 2, batches[_i / 3 % 3]);
    if (_i % 4 == 3)
        add_experts(&w);
    w.fx.cluster.nic_bytes_per_s *= _i % 2 ? 1 : uniform(0.05, 0.5);
    w.fx.cluster.nvlink_bytes_per_s *= _i % 5 ? 1 : uniform(0.05, 0.5);
    w.in.policy.seq_len = 32768;
    for (int64_t i = 0; i < w.samples.n; i++)
        w.tokens[i] = 32768;
    w.in.opt.max_cp = 1 << below(3);
    w.in.opt.gpus = 4 + below(around ? 5 : 13);
    w.in.opt.schedules = 1U << DT_SCHED_1F1B | 1U << DT_SCHED_INTERLEAVED;
    w.in.opt.max_vpp = 2;
    for (int m = 0; m < w.in.model->n_modules; m++) {
        w.in.opt.recompute[m] = 7;
        w.in.opt.zero[m] = below(3) ? 0 : 0xcU;
        w.in.zero[m] = below(DT_ZERO_MAX + 1);
    }
    set_memory(&w, uniform(0.15, 0.9));
    compare(&w, around == 1, true);
    free_world(&w);
}
END_TEST

int main(void)
{
    int most = getenv("DT_CHECK_FULL") ? 400 : 24;

    Suite *s = suite_create("search");
    TCase *c = dt_test_case(s, "all", 120);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_loop_test(c, search_is_exhaustive, 0, 36);
    tcase_add_loop_test(c, wide_search_is_exhaustive, 0, 24);
    tcase_add_loop_test(c, heavy_generators_are_exhausted, 0, 32);
    tcase_add_loop_test(c, context_and_zero_are_exhausted, 0, most);
    return dt_test_run(s);
}
