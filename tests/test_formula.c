/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The formula that plans are found by, written out here from times of single blocks (doc/planner.md, "What is minimised"),
 * and against timelines of programs where it is exact. */
#include "sched_fixture.h"
#include "small_world.h"

static struct world w;
static struct sched_fixture s;
static struct dt_plan p;

enum { ENCODER, LLM, GENERATOR, SEQ = 2048 };
static int side; /* of images */

/* All samples are alike: the mean one is any of them. */
static void open_world(int encoders, int generators, int64_t batch, int of_side)
{
    side = of_side;
    build_world(&w, encoders, generators, batch);
    for (int64_t i = 0; i <= batch; i++)
        w.item_first[i] = (uint64_t)i;
    for (int64_t i = 0; i < batch; i++) {
        w.tokens[i] = SEQ;
        w.items[i] = (struct dt_sample_item){(uint16_t)side, (uint16_t)side, DT_MODALITY_IMAGE,
                                             (encoders ? DT_ITEM_ENCODE : 0) |
                                                 (generators ? DT_ITEM_GENERATE : 0)};
    }
    for (int m = 0; m < w.in.model->n_modules; m++)
        w.in.recompute[m] = DT_RECOMPUTE_NONE;
}

/* Patches of 16 pixels; latents of 8 of what a generator makes of an image; M samples of the LLM are computed at once. */
static struct dt_work work_of(const struct dt_module *m, int microbatch)
{
    int64_t across = m->role == DT_ROLE_ENCODER ? side / 16 : m->resize / 8,
            tokens = across * across;

    return m->role == DT_ROLE_LLM ? fx_text(microbatch, SEQ) : fx_text(1, tokens);
}

/* Seconds of module m for one sample, from the first block to the last. */
struct seconds {
    double c;       /* forward and backward */
    double later;   /* of it, what a split backward puts off */
    double slowest; /* stage, all of its chunks */
};

static struct seconds seconds_of(int m)
{
    const struct dt_module *mod = &w.in.model->modules[m];
    const struct dt_plan_module *mp = &p.modules[m];
    struct dt_work work = work_of(mod, p.policy.microbatch);
    struct dt_block_shard shard = fx_shard(mp->layout.tp);
    double k = m == w.in.model->llm ? p.policy.microbatch : 1, stage[DT_MAX_VSTAGES] = {0};
    struct seconds sum = {0};

    for (int v = 0; v < mp->layout.pp * mp->layout.vpp; v++)
        for (int b = mp->split[v]; b < mp->split[v + 1]; b++) {
            struct dt_cost_stage_ns ns =
                dt_cost_stage_ns(w.cost, m, b, 1, &shard, &work, NULL, m > 0 || b > 0);
            double c = (ns.fwd + ns.bwd) * 1e-9 / k;

            sum.c += c;
            sum.later += p.policy.schedule == DT_SCHED_ZB_H1 ? ns.later * 1e-9 / k : 0;
            stage[v % mp->layout.pp] += c;
        }
    for (int i = 0; i < mp->layout.pp; i++)
        sum.slowest = fmax(sum.slowest, stage[i]);
    return sum;
}

struct lanes {
    int tp, pp, vpp, dp;
};

static void layout(int m, struct lanes l)
{
    double cost[256];
    int n = w.in.model->modules[m].n_blocks;

    for (int i = 0; i < n; i++)
        cost[i] = 1;
    p.modules[m].layout = (struct dt_plan_layout){l.tp, 1, 1, l.pp, l.vpp, l.dp, 1, 0};
    dt_plan_split_blocks(cost, n, l.pp * l.vpp, p.modules[m].split);
}

/* ---- three modules ---- */

static const struct three {
    int side, microbatch;
    enum dt_pipe_schedule schedule;
    struct lanes of[3];
} threes[] = {
    {256, 1, DT_SCHED_1F1B, {{1, 1, 1, 6}, {1, 1, 1, 4}, {1, 1, 1, 3}}},
    {256, 1, DT_SCHED_1F1B, {{1, 2, 1, 6}, {2, 3, 1, 4}, {1, 2, 1, 3}}},
    {256, 3, DT_SCHED_1F1B, {{2, 1, 1, 6}, {4, 4, 1, 4}, {1, 3, 1, 3}}},
    {256, 2, DT_SCHED_INTERLEAVED, {{1, 1, 1, 6}, {1, 2, 2, 4}, {1, 1, 1, 3}}},
    {256, 1, DT_SCHED_INTERLEAVED, {{1, 2, 1, 6}, {2, 3, 3, 4}, {2, 1, 1, 3}}},
    {256, 1, DT_SCHED_ZB_H1, {{1, 2, 1, 6}, {2, 3, 1, 4}, {1, 2, 1, 3}}},
    {256, 3, DT_SCHED_ZB_H1, {{1, 1, 1, 6}, {1, 5, 1, 4}, {1, 1, 1, 3}}},
    /* an encoder is the slowest, with one stage more than another, or samples that do not come out even */
    {1024, 3, DT_SCHED_1F1B, {{1, 2, 1, 5}, {1, 2, 1, 4}, {1, 1, 1, 3}}},
    {1024, 1, DT_SCHED_INTERLEAVED, {{1, 2, 1, 3}, {1, 3, 3, 4}, {1, 1, 1, 4}}},
    {1024, 2, DT_SCHED_ZB_H1, {{1, 3, 1, 3}, {1, 4, 1, 4}, {1, 1, 1, 4}}},
};
enum { BATCH = 48, N_THREES = sizeof(threes) / sizeof(threes[0]) };

START_TEST(three_modules_take_what_the_page_says)
{
    const struct three *t = &threes[_i];
    const struct lanes *lm = &t->of[LLM];
    double M = t->microbatch, S = lm->dp * M, n = BATCH / S, longest = 0, others = 0, warm, staged;
    struct dt_plan_prediction got;
    struct seconds llm;
    double llm_warm;

    open_world(1, 1, BATCH, t->side);
    deepen(&w, 10);
    w.in.policy.microbatch = t->microbatch;
    w.in.policy.schedule = t->schedule;
    dt_search_plan_init(&w.in, &p);
    for (int m = 0; m < 3; m++)
        layout(m, t->of[m]);
    dt_orch_formula(&w.in, &p, &got);

    llm = seconds_of(LLM);
    ck_assert_double_gt(llm.c, 0);
    ck_assert((llm.later > 0) == (t->schedule == DT_SCHED_ZB_H1));
    /* T_warmup = M C_lm + sum of S/DP_m C_m; the LLM's fill divided by vpp, or less what is put off into its gaps */
    llm_warm = M * llm.c * (lm->vpp + lm->pp - 1) / (lm->pp * lm->vpp) -
               M * llm.later / lm->pp * (lm->pp - 1 + fmin(n, lm->pp) - 1);
    warm = staged = llm_warm;
    for (int m = 0; m < 3; m++) {
        const struct lanes *l = &t->of[m];
        struct seconds c = seconds_of(m);

        /* T_steady = (n - 1) max of S TP_m C_m / x_m */
        longest = fmax(longest, S * l->tp * c.c / (l->tp * l->pp * l->dp));
        if (m == LLM)
            continue;
        warm += S / l->dp * c.c;
        staged += ceil(S / l->dp) * c.c;
        others = fmax(others, (l->dp > S ? S / l->dp : ceil(S / l->dp)) * c.slowest);
    }
    ck_assert_double_eq_tol(got.warmup_s, warm, 1e-9 * warm);
    ck_assert_double_eq_tol(got.steady_s, (n - 1) * longest, 1e-9 * warm);
    ck_assert_double_eq_tol(got.total_s, warm + (n - 1) * longest, 1e-9 * warm);
    staged += fmax((n - 1) * M * llm.slowest,
                   fmax(0, M * (llm.c - llm.later) - llm_warm) + (n - 1) * others);
    ck_assert_double_eq_tol(got.staged_s, staged, 1e-9 * staged);
    ck_assert_double_ge(got.staged_s, got.total_s * (1 - 1e-12));
    free_world(&w);
}
END_TEST

/* ---- an LLM alone ---- */

/* Seconds of the program with that pipeline, every stage taking the same. */
static double program_s(const struct dt_plan_layout *l, int n, double c, double later)
{
    int64_t f[DT_MAX_VSTAGES], b[DT_MAX_VSTAGES], put_off[DT_MAX_VSTAGES], *ns, span;

    for (int v = 0; v < l->pp * l->vpp; v++) {
        double of = 1e9 / (l->pp * l->vpp);

        put_off[v] = llround(later * of);
        f[v] = llround(c * of / 3);
        b[v] = llround(c * of) - f[v] - put_off[v];
    }
    sf_llm_only(&s, l->pp, l->vpp, l->dp, n, p.policy.schedule);
    ns = sf_split_durations(s.p, f, b, put_off);
    span = sf_makespan(&s, ns);
    free(ns);
    sf_free(&s);
    return (double)span * 1e-9;
}

/* Equal stages and nothing to send: the timeline is the formula. */
START_TEST(an_llm_alone_takes_what_its_program_takes)
{
    static const struct {
        enum dt_pipe_schedule schedule;
        int pp, vpp, dp, n, microbatch;
    } cases[] = {
        {DT_SCHED_1F1B, 1, 1, 1, 8, 1},        {DT_SCHED_1F1B, 4, 1, 2, 4, 3},
        {DT_SCHED_1F1B, 5, 1, 1, 16, 2},       {DT_SCHED_1F1B, 6, 1, 1, 3, 1},
        {DT_SCHED_INTERLEAVED, 2, 2, 1, 8, 1}, {DT_SCHED_INTERLEAVED, 4, 3, 2, 8, 2},
        {DT_SCHED_INTERLEAVED, 3, 2, 1, 3, 1}, {DT_SCHED_ZB_H1, 4, 1, 2, 8, 1},
        {DT_SCHED_ZB_H1, 5, 1, 1, 5, 2},       {DT_SCHED_ZB_H1, 1, 1, 1, 4, 1},
    };

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int batch = cases[k].n * cases[k].dp * cases[k].microbatch;
        struct dt_plan_prediction got;
        struct seconds c;
        double span;

        open_world(0, 0, batch, 0);
        deepen(&w, 12);
        w.in.policy.microbatch = cases[k].microbatch;
        w.in.policy.schedule = cases[k].schedule;
        dt_search_plan_init(&w.in, &p);
        layout(0, (struct lanes){1, cases[k].pp, cases[k].vpp, cases[k].dp});
        dt_orch_formula(&w.in, &p, &got);
        c = seconds_of(0);
        span = program_s(&p.modules[0].layout, cases[k].n, cases[k].microbatch * c.c,
                         cases[k].microbatch * c.later);
        ck_assert_msg(fabs(got.total_s - span) <= 1e-6 * span,
                      "%s, pp %d, vpp %d, n %d: formula %.9g s, program %.9g s",
                      dt_pipe_schedule_names[cases[k].schedule], cases[k].pp, cases[k].vpp,
                      cases[k].n, got.total_s, span);
        free_world(&w);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("formula");
    TCase *c = dt_test_case(suite, "formula", 60);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_loop_test(c, three_modules_take_what_the_page_says, 0, N_THREES);
    tcase_add_test(c, an_llm_alone_takes_what_its_program_takes);
    return dt_test_run(suite);
}
