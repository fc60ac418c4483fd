/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The baseline Megatron-LM: searched as widely as its rules allow, against all its configurations written down here. */
#include "small_world.h"

#include "core/pipeline/pipeline.h"

#include <math.h>

static int layers_of(const struct dt_module *m)
{
    int n = 0;

    for (int b = 0; b < m->n_blocks; b++)
        n += m->blocks[b].kind == DT_BLOCK_TRANSFORMER;
    return n;
}

struct tried {
    int tp, cp, ep, pp, vpp, dp, microbatch;
    enum dt_block_recompute recompute;
    /* --decoder-first-pipeline-num-layers and -last-, 0: not stated; --account-for-embedding-in-pipeline-split, -loss- */
    int first, last, embedding, loss;
};

/* Layers of each part of the pipeline as Megatron Core counts them (get_num_layers_to_build); false where it refuses. */
static bool parts_of(const struct tried *c, int layers, int *n)
{
    int stages = c->pp - (c->first > 0) - (c->last > 0), left = layers - c->first - c->last;

    if ((c->vpp > 1 || c->first > 0 || c->last > 0) && c->pp == 1)
        return false;
    if ((c->first > 0 || c->last > 0) && (c->embedding || c->loss))
        return false;
    left += c->embedding + c->loss;
    if (c->first % c->vpp != 0 || c->last % c->vpp != 0 || left < 0 ||
        (stages == 0 ? left != 0 : left == 0 || left % (stages * c->vpp) != 0))
        return false;
    for (int v = 0; v < c->pp * c->vpp; v++) {
        bool first = v % c->pp == 0, last = v % c->pp == c->pp - 1;

        n[v] = first && c->first ? c->first / c->vpp
               : last && c->last ? c->last / c->vpp
                                 : left / (stages * c->vpp);
        n[v] -= v == 0 ? c->embedding : 0;
        n[v] -= v == c->pp * c->vpp - 1 ? c->loss : 0;
        if (n[v] < 0)
            return false;
    }
    return true;
}

/* Timeline of a configuration by the rules: one TP, PP and DP, encoders and generators a stage each whose
 * TP and CP ranks take different images; INFINITY where it cannot be or is not sure to fit. */
static double timeline_tried(const struct world *w, const struct dt_search_input *in,
                             const struct tried *c)
{
    const struct dt_module *llm = &in->model->modules[in->model->llm];
    int parts = c->pp * c->vpp, layers = layers_of(llm);
    struct dt_work work[DT_MAX_MODULES];
    struct dt_plan p;
    struct dt_error err;
    int of[DT_MAX_VSTAGES], at = 1; /* the embedding is block 0 */
    double s, bytes;

    if (!parts_of(c, layers, of) ||
        in->policy.global_batch % ((int64_t)c->dp * c->microbatch) != 0 ||
        (c->ep > 1 && (c->dp * c->cp % c->ep != 0 || llm->blocks[layers].n_experts % c->ep != 0)) ||
        c->dp * c->tp * c->cp * (c->pp + in->model->n_modules - 1) >
            dt_cluster_gpus(&w->fx.cluster))
        return INFINITY;
    dt_search_plan_init(in, &p);
    p.policy.microbatch = c->microbatch;
    p.policy.schedule = c->vpp > 1 ? DT_SCHED_INTERLEAVED : DT_SCHED_1F1B;
    for (int m = 0; m < p.n_modules; m++) {
        bool is_llm = m == in->model->llm;

        p.modules[m].recompute = c->recompute;
        p.modules[m].layout =
            is_llm ? (struct dt_plan_layout){c->tp, c->cp, c->ep, c->pp, c->vpp, c->dp, 1, 0}
                   : (struct dt_plan_layout){1, 1, 1, 1, 1, c->dp, c->tp * c->cp, 0};
    }
    for (int k = 1; k < parts; k++)
        p.modules[in->model->llm].split[k] = (uint16_t)(at += of[k - 1]);
    p.modules[in->model->llm].split[parts] = (uint16_t)llm->n_blocks;
    dt_search_largest_work(in, &p, work);
    if (dt_plan_place(&p, in->cluster, &err) != DT_OK ||
        dt_plan_validate(&p, in->model, in->cluster, &err) != DT_OK ||
        dt_memory_check(&p, in->model, in->cluster, work, &bytes, &err) != DT_OK ||
        dt_orch_plan_timeline_s(in, &p, 0, &err, &s, NULL) != DT_OK)
        return INFINITY;
    return s;
}

/* All ways to deal layers: as many to every stage; what counts as a layer; ends of their own. */
static double best_deal(const struct world *w, const struct dt_search_input *in, struct tried *c)
{
    int layers = layers_of(&in->model->modules[in->model->llm]);
    struct tried t = *c;
    double least = INFINITY;

    for (int k = 0; k < 4 + (layers + 1) * (layers + 1); k++) {
        double s;

        t.embedding = k < 4 ? k & 1 : 0;
        t.loss = k < 4 ? k >> 1 : 0;
        t.first = k < 4 ? 0 : (k - 4) / (layers + 1);
        t.last = k < 4 ? 0 : (k - 4) % (layers + 1);
        s = timeline_tried(w, in, &t);
        if (s < least) {
            least = s;
            *c = t;
        }
    }
    return least;
}

static double best_of_all(const struct world *w, const struct dt_search_input *in,
                          struct tried *best)
{
    int layers = layers_of(&in->model->modules[in->model->llm]);
    int experts = in->model->modules[in->model->llm].blocks[layers].n_experts;
    int lanes = in->policy.seq_len / 8192 < 1 ? 1 : in->policy.seq_len / 8192; /* at most, of CP */
    double least = INFINITY;

    for (int lane = 0; lane < 3 * lanes * (experts + 1); lane++)
        for (int pp = 1; pp <= layers + 2; pp++)
            for (int vpp = 1; vpp <= layers; vpp++)
                for (int dp = 1; dp <= 16; dp++)
                    for (int mb = 1; mb <= 4; mb++)
                        for (int r = 0; r <= DT_RECOMPUTE_FULL; r++) {
                            struct tried c = {1 << lane % 3,
                                              1 + lane / 3 % lanes,
                                              1 + lane / 3 / lanes,
                                              pp,
                                              vpp,
                                              dp,
                                              mb,
                                              (enum dt_block_recompute)r,
                                              0,
                                              0,
                                              0,
                                              0};
                            double s = best_deal(w, in, &c);

                            if (s < least) {
                                least = s;
                                *best = c;
                            }
                        }
    return least;
}

static void open_all(struct dt_search_input *in)
{
    in->opt.schedules = 1U << DT_SCHED_1F1B | 1U << DT_SCHED_INTERLEAVED | 1U << DT_SCHED_ZB_H1;
    in->opt.max_vpp = 0;
    in->opt.max_microbatch = 4;
    in->opt.rank = true;
    for (int m = 0; m < in->model->n_modules; m++)
        in->opt.recompute[m] = (1U << DT_ORCH_RECOMPUTE_N) - 1;
}

/* Sequences that CP is for. */
static void lengthen(struct world *w, int tokens)
{
    for (int i = 0; i < w->samples.n; i++)
        w->tokens[i] = (uint32_t)tokens;
    w->in.policy.seq_len = tokens;
}

START_TEST(no_configuration_is_faster)
{
    int searched = 0, gained = 0;

    for (int round = 0; round < 12; round++) {
        struct dt_search_result r, published;
        struct dt_search_input in;
        struct dt_error err;
        struct tried c = {0};
        struct world w;
        double least;

        build_world(&w, below(2), below(2), 24);
        open_all(&w.in);
        if (round % 4 == 1)
            add_experts(&w);
        if (round % 4 == 2)
            lengthen(&w, 16384 << below(2));
        if (below(2))
            set_memory(&w, uniform(0.5, 2));
        in = w.in;
        dt_orch_policy(DT_STRATEGY_MEGATRON, &in.policy);
        least = best_of_all(&w, &in, &c);
        if (dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r) != DT_OK) {
            ck_assert_msg(isinf(least),
                          "seed %" PRIu64 " round %d: none found, but tp %d pp %d fits", seed,
                          round, c.tp, c.pp);
            free_world(&w);
            continue;
        }
        searched++;
        ck_assert_msg(r.plans[0].predicted.timeline_s <= 1.0011 * least,
                      "seed %" PRIu64 " round %d: %g s, but tp %d cp %d ep %d pp %d vpp %d dp %d "
                      "microbatch %d recompute %d first %d last %d embedding %d loss %d take %g s",
                      seed, round, r.plans[0].predicted.timeline_s, c.tp, c.cp, c.ep, c.pp, c.vpp,
                      c.dp, c.microbatch, (int)c.recompute, c.first, c.last, c.embedding, c.loss,
                      least);
        ck_assert(r.plans[0].policy.schedule != DT_SCHED_ZB_H1);
        w.in.opt.megatron_pp = DT_MEGATRON_PUBLISHED;
        if (dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &published) == DT_OK) {
            ck_assert_double_ge(published.plans[0].predicted.timeline_s, 0.9989 * least);
            gained += published.plans[0].predicted.timeline_s > 1.02 * least;
            ck_assert_int_eq(published.plans[0].policy.microbatch, 1);
            ck_assert_int_eq(published.plans[0].policy.schedule, DT_SCHED_1F1B);
            dt_search_result_free(&published);
        }
        dt_search_result_free(&r);
        free_world(&w);
    }
    ck_assert_int_gt(searched, 6);
    ck_assert_int_gt(gained, 3); /* the search is worth its name */
}
END_TEST

/* The LLM's layout in the best plan, all 0 where none fits; the others are as wide. */
static struct dt_plan_layout best_llm(const struct world *w)
{
    struct dt_plan_layout l = {0};
    struct dt_search_result r;
    struct dt_error err;

    if (dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w->in, &err, &r) != DT_OK)
        return l;
    l = r.plans[0].modules[w->in.model->llm].layout;
    for (int m = 0; m < w->in.model->n_modules; m++)
        if (m != w->in.model->llm)
            ck_assert_int_eq(r.plans[0].modules[m].layout.ip, l.tp * l.cp);
    dt_search_result_free(&r);
    return l;
}

/* Two long sequences on 16 GPUs leave nothing else to divide. */
START_TEST(long_sequences_are_divided)
{
    struct world w;

    dt_rng_init(&rng, 3, 7);
    build_world(&w, 1, 0, 2);
    lengthen(&w, 32768);
    w.in.opt.rank = true;
    w.in.opt.tp_mask = 1;
    ck_assert_int_gt(best_llm(&w).cp, 1);
    w.in.opt.max_cp = 1;
    ck_assert_int_eq(best_llm(&w).cp, 1);
    free_world(&w);
}
END_TEST

/* Where memory does not hold all experts on a rank, they are dealt out. */
START_TEST(experts_are_dealt_where_they_must)
{
    struct world w;
    double bytes;

    dt_rng_init(&rng, 3, 7);
    build_world(&w, 1, 0, 24);
    add_experts(&w);
    w.in.opt.rank = true;
    w.in.opt.tp_mask = 1;
    w.in.opt.megatron_pp = 1;
    bytes = set_memory(&w, 1);
    w.in.opt.max_ep = 1;
    while (best_llm(&w).ep == 1)
        w.fx.cluster.mem_bytes -= bytes / 50;
    w.in.opt.max_ep = 0;
    ck_assert_int_gt(best_llm(&w).ep, 1);
    free_world(&w);
}
END_TEST

/* What is stated stays, one key at a time. */
START_TEST(stated_keys_stay)
{
    struct dt_search_result r;
    struct dt_error err;
    struct world w;

    build_world(&w, 1, 1, 24);
    open_all(&w.in);
    w.in.opt.tp_mask = 2;
    w.in.opt.max_microbatch = 0;
    w.in.policy.microbatch = 2;
    for (int m = 0; m < 3; m++) {
        w.in.opt.recompute[m] = 0;
        w.in.recompute[m] = m == 0 ? DT_RECOMPUTE_FULL : DT_RECOMPUTE_NONE;
    }
    w.in.opt.megatron_pp = 1;
    dt_assert_ok(dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r), err);
    for (int i = 0; i < r.n; i++) {
        ck_assert_int_eq(r.plans[i].modules[1].layout.pp, 1);
        ck_assert_int_eq(r.plans[i].modules[1].layout.tp, 2);
        ck_assert_int_eq(r.plans[i].policy.microbatch, 2);
        for (int m = 0; m < 3; m++)
            ck_assert_int_eq(r.plans[i].modules[m].recompute, w.in.recompute[m]);
    }
    dt_search_result_free(&r);
    w.in.opt.megatron_pp = 99;
    ck_assert_int_eq(dt_orch_find_plans(DT_STRATEGY_MEGATRON, &w.in, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "search.megatron_pp: 99 ");
    free_world(&w);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("megatron");
    TCase *c = dt_test_case(u, "megatron", 240);

    tcase_add_checked_fixture(c, setup_seed, NULL);
    tcase_add_test(c, no_configuration_is_faster);
    tcase_add_test(c, long_sequences_are_divided);
    tcase_add_test(c, experts_are_dealt_where_they_must);
    tcase_add_test(c, stated_keys_stay);
    return dt_test_run(u);
}
