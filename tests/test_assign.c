/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Assignment: who gets which sample.  (LPT and the order of microbatches: test_assign_order.c.) */
#include "core/schedule/assign.h"
#include "base/doc.h"
#include "base/mem.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

enum { ROUNDS = 300 };

/* ---- assignments ---- */

struct world {
    struct dt_model model;
    struct dt_block blocks[3][6];
    struct dt_samples samples;
    struct dt_plan plan;
};

static void module_init(struct world *w, int m, const char *name, enum dt_module_role role, int n,
                        int hidden)
{
    struct dt_module *mod = &w->model.modules[m];
    snprintf(mod->name, sizeof(mod->name), "%s", name);
    mod->role = role;
    mod->modality = role == DT_ROLE_LLM ? DT_MODALITY_TEXT : DT_MODALITY_IMAGE;
    mod->patch = 16;
    mod->latent_scale = 8;
    mod->n_blocks = n;
    mod->blocks = w->blocks[m];
    for (int b = 0; b < n; b++)
        mod->blocks[b] = (struct dt_block){.kind = DT_BLOCK_TRANSFORMER,
                                           .hidden = hidden,
                                           .ffn = 4 * hidden,
                                           .heads = 8,
                                           .kv_heads = 8,
                                           .head_dim = hidden / 8,
                                           .causal = role == DT_ROLE_LLM};
}

/* A chain of three modules and 997 packed sequences of log-normal images. */
static void world_init(struct world *w, uint64_t seed)
{
    enum { N = 997 };
    static uint32_t text[N], seq[N];
    static uint64_t first[N + 1];
    static struct dt_sample_item items[N * 24];
    struct dt_rng r;
    memset(w, 0, sizeof(*w));
    w->model.n_modules = 3;
    w->model.llm = 1;
    w->model.n_edges = 2;
    w->model.edges[0] = (struct dt_model_edge){0, 1};
    w->model.edges[1] = (struct dt_model_edge){1, 2};
    module_init(w, 0, "encoder", DT_ROLE_ENCODER, 4, 256);
    module_init(w, 1, "llm", DT_ROLE_LLM, 6, 512);
    module_init(w, 2, "generator", DT_ROLE_GENERATOR, 3, 192);
    dt_rng_init(&r, seed, 99);
    w->samples = (struct dt_samples){
        .n = N, .text_tokens = text, .seq_tokens = seq, .item_first = first, .items = items};
    for (int i = 0; i < N; i++) {
        int n = (int)dt_rng_below(&r, 24);
        text[i] = 100;
        seq[i] = 8192;
        first[i + 1] = first[i];
        for (int k = 0; k < n; k++) {
            double side = fmin(fmax(exp(5.56 + 0.69 * dt_rng_normal(&r)), 64), 1024);
            items[first[i + 1]++] = (struct dt_sample_item){
                (uint16_t)side, (uint16_t)side, DT_MODALITY_IMAGE,
                (uint16_t)(DT_ITEM_ENCODE | (dt_rng_below(&r, 2) ? DT_ITEM_GENERATE : 0))};
        }
    }
}

static void plan_init(struct world *w, int enc, int llm, int gen, int m, int slots, bool intra,
                      bool inter)
{
    const int dp[] = {enc, llm, gen}, pp[] = {1, 3, 1};
    memset(&w->plan, 0, sizeof(w->plan));
    w->plan.n_modules = 3;
    for (int i = 0; i < 3; i++) {
        struct dt_plan_module *mp = &w->plan.modules[i];
        mp->layout = (struct dt_plan_layout){
            .tp = 1, .cp = 1, .ep = 1, .pp = pp[i], .vpp = 1, .dp = dp[i], .ip = 1};
        for (int v = 0; v <= pp[i]; v++)
            mp->split[v] = (uint16_t)(v * w->model.modules[i].n_blocks / pp[i]);
    }
    w->plan.policy.global_batch = (int64_t)llm * m * slots;
    w->plan.policy.microbatch = m;
    w->plan.policy.seq_len = 8192;
    w->plan.policy.intra_reorder = intra;
    w->plan.policy.inter_reorder = inter;
}

static struct dt_assignment *must_assign(struct world *w, int64_t first)
{
    struct dt_assignment *a = NULL;
    struct dt_error err = {0};
    dt_assert_ok(dt_assign(&w->plan, &w->model, NULL, &w->samples, first, &err, &a), err);
    dt_assert_ok(dt_assign_check(a, &err), err);
    return a;
}

static int slot_of[4096];

/* Counts, works and slots that must hold whatever the policy. */
static void check_structure(const struct world *w, const struct dt_assignment *a)
{
    const struct dt_plan_policy *pol = &w->plan.policy;
    int s = w->plan.modules[1].layout.dp * pol->microbatch;
    ck_assert_int_eq(a->n_slots, pol->global_batch / s);
    for (int pass = 0; pass < 3; pass++) {
        int m = pass == 0 ? 1 : pass == 1 ? 0 : 2; /* the LLM first: it defines the slots */
        const struct dt_assignment_module *ma = &a->m[m];
        ck_assert_int_eq(ma->n_replicas, w->plan.modules[m].layout.dp);
        for (int r = 0; r < ma->n_replicas; r++) {
            int mbs = (int)(ma->mb_first[r + 1] - ma->mb_first[r]);
            if (ma->n_replicas <= s)
                ck_assert_int_eq(mbs, a->n_slots);
            for (uint32_t b = ma->mb_first[r]; b < ma->mb_first[r + 1]; b++) {
                struct dt_work sum = {0}, one;
                if (m == 1)
                    ck_assert_uint_eq(ma->mb[b].n, (unsigned)pol->microbatch);
                for (uint32_t k = 0; k < ma->mb[b].n; k++) {
                    int64_t i = ma->samples[ma->mb[b].first + k];
                    int at = (int)(i - a->first_sample);
                    if (m == 1)
                        slot_of[at] = (int)ma->mb[b].slot;
                    ck_assert_int_eq(slot_of[at], (int)ma->mb[b].slot);
                    dt_sample_work(&w->samples, i, &w->model.modules[m], &one);
                    dt_work_add(&sum, &one);
                }
                ck_assert_mem_eq(&sum, &ma->work[b], sizeof(sum));
            }
        }
    }
}

START_TEST(every_sample_once_for_any_replicas)
{
    uint64_t seed = dt_test_seed();
    struct world w;
    struct dt_rng r;
    world_init(&w, seed);
    dt_rng_init(&r, seed, 5);
    static const int fixed[][4] = {{6, 4, 3, 1},  {4, 6, 3, 2}, {3, 4, 6, 1}, {1, 12, 1, 1},
                                   {13, 3, 2, 2}, {2, 2, 9, 1}, {7, 5, 5, 1}, {16, 16, 16, 3}};
    for (int t = 0; t < ROUNDS; t++) {
        int dp[4];
        for (int i = 0; i < 4; i++)
            dp[i] = t < 32 ? fixed[t / 4][i] : 1 + (int)dt_rng_below(&r, i == 3 ? 3 : 16);
        int slots = 3 + (int)dt_rng_below(&r, 12);
        bool intra = t & 1, inter = t & 2;
        if (dp[0] > dp[1] * dp[3] * slots || dp[2] > dp[1] * dp[3] * slots)
            continue;
        plan_init(&w, dp[0], dp[1], dp[2], dp[3], slots, intra, inter);
        struct dt_assignment *a = must_assign(&w, (int64_t)dt_rng_below(&r, 5000));
        check_structure(&w, a);
        dt_assign_free(a);
    }
}
END_TEST

/* No reordering: sample j of slot k as given, in contiguous shares that differ by one at most. */
START_TEST(as_given_when_nothing_is_reordered)
{
    struct world w;
    world_init(&w, 7);
    plan_init(&w, 6, 4, 3, 2, 5, false, false);
    struct dt_assignment *a = must_assign(&w, 40);
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < 5; k++)
            for (int i = 0; i < 2; i++)
                ck_assert_int_eq(a->m[1].samples[(r * 5 + k) * 2 + i], 40 + k * 8 + r * 2 + i);
    for (int m = 0; m < 3; m += 2)
        for (int k = 0; k < 5; k++) {
            int64_t next = 40 + k * 8;
            for (int r = 0; r < a->m[m].n_replicas; r++) {
                const struct dt_microbatch *mb = &a->m[m].mb[a->m[m].mb_first[r] + (uint32_t)k];
                int dp = a->m[m].n_replicas;
                ck_assert(mb->n == (unsigned)(8 / dp) || mb->n == (unsigned)((8 + dp - 1) / dp));
                for (uint32_t i = 0; i < mb->n; i++)
                    ck_assert_int_eq(a->m[m].samples[mb->first + i], next++);
            }
        }
    dt_assign_free(a);
}
END_TEST

/* More replicas than samples in a slot: sample j of slot k to replica (k*S + j) mod DP. */
START_TEST(more_replicas_than_samples_take_turns)
{
    struct world w;
    world_init(&w, 8);
    plan_init(&w, 5, 3, 1, 1, 4, false, true);
    w.plan.policy.inter_reorder = false;
    struct dt_assignment *a = must_assign(&w, 0);
    static const uint32_t first[] = {0, 3, 6, 8, 10, 12};
    ck_assert_mem_eq(a->m[0].mb_first, first, sizeof(first));
    for (int r = 0; r < 5; r++)
        for (uint32_t b = first[r]; b < first[r + 1]; b++) {
            int64_t i = r + 5 * (int64_t)(b - first[r]);
            ck_assert_int_eq(a->m[0].samples[b], i);
            ck_assert_uint_eq(a->m[0].mb[b].slot, (unsigned)(i / 3));
        }
    dt_assign_free(a);
}
END_TEST

/* Within one broker group nothing leaves: encoder replica e works for the LLM replicas of its
 * group. */
START_TEST(samples_stay_in_their_broker_group)
{
    struct world w;
    world_init(&w, 9);
    plan_init(&w, 6, 4, 2, 3, 7, true, true); /* gcd 2 */
    struct dt_assignment *a = must_assign(&w, 0);
    int group[4096];
    for (int pass = 0; pass < 3; pass++) {
        int m = pass == 0 ? 1 : pass == 1 ? 0 : 2;
        const struct dt_assignment_module *ma = &a->m[m];
        for (int r = 0; r < ma->n_replicas; r++)
            for (uint32_t b = ma->mb_first[r]; b < ma->mb_first[r + 1]; b++)
                for (uint32_t k = 0; k < ma->mb[b].n; k++) {
                    int64_t i = ma->samples[ma->mb[b].first + k];
                    int g = r / (ma->n_replicas / 2);
                    if (m == 1)
                        group[i] = g;
                    ck_assert_int_eq(group[i], g);
                }
    }
    dt_assign_free(a);
}
END_TEST

/* What the slowest encoder and generator replicas of each slot take, summed over slots. */
static double straggler_time(const struct world *w, const struct dt_assignment *a)
{
    double sum = 0;
    for (int m = 0; m < 3; m += 2)
        for (int k = 0; k < a->n_slots; k++) {
            double worst = 0;
            for (int r = 0; r < a->m[m].n_replicas; r++)
                worst =
                    fmax(worst, dt_module_flops(&w->model.modules[m],
                                                &a->m[m].work[a->m[m].mb_first[r] + (uint32_t)k]));
            sum += worst;
        }
    return sum;
}

START_TEST(intra_reordering_tames_stragglers)
{
    struct world w;
    world_init(&w, dt_test_seed());
    static const int shapes[][4] = {{4, 8, 2, 1}, {6, 12, 4, 1}, {8, 8, 8, 4}, {2, 16, 3, 1}};
    for (int k = 0; k < 4; k++) {
        const int *d = shapes[k];
        plan_init(&w, d[0], d[1], d[2], d[3], 20, false, false);
        struct dt_assignment *given = must_assign(&w, 0);
        w.plan.policy.intra_reorder = true;
        struct dt_assignment *made = must_assign(&w, 0);
        double gain = straggler_time(&w, given) / straggler_time(&w, made);
        printf("intra reordering: dp %d/%d/%d M %d: stragglers' time over slots %.3f times less\n",
               d[0], d[1], d[2], d[3], gain);
        ck_assert_double_gt(gain, 1.03);
        dt_assign_free(given);
        dt_assign_free(made);
    }
}
END_TEST

static uint64_t digest(const struct dt_assignment *a)
{
    uint64_t h = 14695981039346656037u;
    for (int m = 0; m < a->n_modules; m++) {
        const struct dt_assignment_module *ma = &a->m[m];
        for (int64_t i = 0; i < a->n_samples; i++)
            h = (h ^ (uint64_t)ma->samples[i]) * 1099511628211u;
        for (uint32_t b = 0; b < ma->mb_first[ma->n_replicas]; b++)
            h = (h ^ ma->mb[b].first ^ (uint64_t)ma->mb[b].n << 20) * 1099511628211u;
    }
    return h;
}

START_TEST(same_input_same_assignment)
{
    struct world w;
    world_init(&w, 10);
    uint64_t seen[4];
    for (int k = 0; k < 4; k++) {
        plan_init(&w, 3, 6, 2, 2, 9, k & 1, k & 2);
        struct dt_assignment *a = must_assign(&w, 13), *b = must_assign(&w, 13);
        seen[k] = digest(a);
        ck_assert_uint_eq(seen[k], digest(b));
        for (int i = 0; i < k; i++) /* and every policy has its own */
            ck_assert_uint_ne(seen[k], seen[i]);
        dt_assign_free(a);
        dt_assign_free(b);
    }
}
END_TEST

/* Real costs (here the roofline of a preset cluster) instead of FLOPs. */
START_TEST(costs_decide_when_given)
{
    static struct dt_cluster cluster;
    static struct dt_profile profile; /* no rows */
    const struct dt_cost_options opt = {.allow_analytical = true};
    const char *text = "cluster: a100\n";
    struct world w;
    struct dt_doc *doc = NULL;
    struct dt_cost *cost = NULL;
    struct dt_assignment *a = NULL, *b = NULL;
    struct dt_error err = {0};
    world_init(&w, 15);
    dt_assert_ok(dt_doc_parse("t", text, strlen(text), &err, &doc), err);
    dt_assert_ok(dt_cluster_read(dt_map_get(dt_doc_root(doc), "cluster"), &err, &cluster), err);
    dt_assert_ok(dt_cost_new(&w.model, &cluster, &profile, &opt, &err, &cost), err);
    plan_init(&w, 3, 6, 2, 2, 9, true, true);
    dt_assert_ok(dt_assign(&w.plan, &w.model, cost, &w.samples, 3, &err, &a), err);
    dt_assert_ok(dt_assign(&w.plan, &w.model, cost, &w.samples, 3, &err, &b), err);
    dt_assert_ok(dt_assign_check(a, &err), err);
    check_structure(&w, a);
    ck_assert_uint_eq(digest(a), digest(b));
    dt_assign_free(a);
    dt_assign_free(b);
    dt_cost_free(cost);
    dt_doc_free(doc);
}
END_TEST

START_TEST(frozen_modules_are_assigned_too)
{
    struct world w;
    world_init(&w, 11);
    for (int m = 0; m < 3; m++) {
        plan_init(&w, 2, 4, 2, 1, 8, true, true);
        w.plan.modules[m].frozen = true;
        struct dt_assignment *a = must_assign(&w, 0);
        check_structure(&w, a);
        dt_assign_free(a);
    }
}
END_TEST

START_TEST(impossible_plans_are_refused)
{
    struct world w;
    struct dt_assignment *a = NULL;
    struct dt_error err = {0};
    world_init(&w, 12);
    plan_init(&w, 2, 4, 2, 1, 8, true, true);
    w.plan.policy.global_batch = 30;
    ck_assert_int_eq(dt_assign(&w.plan, &w.model, NULL, &w.samples, 0, &err, &a), DT_ERR_INPUT);
    dt_assert_has(err.message, "30");
    plan_init(&w, 2, 0, 2, 1, 8, true, true);
    ck_assert_int_eq(dt_assign(&w.plan, &w.model, NULL, &w.samples, 0, &err, &a), DT_ERR_INPUT);
    dt_assert_has(err.message, "LLM");
    plan_init(&w, 2, 4, 0, 1, 8, true, true);
    ck_assert_int_eq(dt_assign(&w.plan, &w.model, NULL, &w.samples, 0, &err, &a), DT_ERR_INPUT);
    dt_assert_has(err.message, "generator: dp 0 must be at least 1");
    ck_assert_ptr_null(a);
}
END_TEST

START_TEST(check_finds_what_is_wrong)
{
    struct world w;
    struct dt_error err = {0};
    world_init(&w, 13);
    plan_init(&w, 2, 4, 2, 2, 4, true, true);
    struct dt_assignment *a = must_assign(&w, 5);
    struct dt_assignment_module *ma = &a->m[2];
    int64_t kept = ma->samples[3];
    ma->samples[3] = ma->samples[4];
    ck_assert_int_eq(dt_assign_check(a, &err), DT_ERR_INTERNAL);
    dt_assert_has(err.message, "twice");
    ma->samples[3] = 4;
    ck_assert_int_eq(dt_assign_check(a, &err), DT_ERR_INTERNAL);
    dt_assert_has(err.message, "not of the batch");
    ma->samples[3] = kept;
    ma->mb[1].n--;
    ck_assert_int_eq(dt_assign_check(a, &err), DT_ERR_INTERNAL);
    ma->mb[1].n++;
    ma->mb[2].slot = ma->mb[1].slot;
    ck_assert_int_eq(dt_assign_check(a, &err), DT_ERR_INTERNAL);
    dt_assert_has(err.message, "out of order");
    ma->mb[2].slot = 2;
    dt_assert_ok(dt_assign_check(a, &err), err);
    dt_assign_free(a);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct world w;
    int failed = 0;
    world_init(&w, 14);
    plan_init(&w, 2, 4, 2, 1, 200, true, true);
    for (uint64_t k = 1;; k++) {
        struct dt_assignment *a = NULL;
        struct dt_error err = {0};
        dt_mem_fail_at(k);
        enum dt_status st = dt_assign(&w.plan, &w.model, NULL, &w.samples, 0, &err, &a);
        bool reached = dt_mem_count() >= k;
        dt_mem_fail_at(0);
        if (!reached) {
            ck_assert_int_eq(st, DT_OK);
            dt_assign_free(a);
            break;
        }
        ck_assert_int_eq(st, DT_ERR_NOMEM);
        ck_assert_ptr_null(a);
        ck_assert_str_ne(err.message, "");
        failed++;
    }
    ck_assert_int_gt(failed, 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("assign");
    TCase *tc = dt_test_case(suite, "assignment", 60);

    tcase_add_test(tc, every_sample_once_for_any_replicas);
    tcase_add_test(tc, as_given_when_nothing_is_reordered);
    tcase_add_test(tc, more_replicas_than_samples_take_turns);
    tcase_add_test(tc, samples_stay_in_their_broker_group);
    tcase_add_test(tc, intra_reordering_tames_stragglers);
    tcase_add_test(tc, same_input_same_assignment);
    tcase_add_test(tc, costs_decide_when_given);
    tcase_add_test(tc, frozen_modules_are_assigned_too);
    tcase_add_test(tc, impossible_plans_are_refused);
    tcase_add_test(tc, check_finds_what_is_wrong);
    tcase_add_test(tc, every_allocation_may_fail);
    return dt_test_run(suite);
}
