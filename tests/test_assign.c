/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Assignment: LPT, the order of microbatches, and who gets which sample. */
#include "core/schedule/assign.h"
#include "base/doc.h"
#include "base/mem.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

enum { ROUNDS = 300 };

/* ---- LPT ---- */

/* Least possible largest load, by trying everything (bins are alike: item i opens at most one new).
 */
static double best_load(const double *cost, int n, int k, int i, int open, double *load)
{
    double best = INFINITY;
    if (i == n) {
        double worst = 0;
        for (int b = 0; b < k; b++)
            worst = fmax(worst, load[b]);
        return worst;
    }
    for (int b = 0; b < k && b <= open; b++) {
        load[b] += cost[i];
        best = fmin(best, best_load(cost, n, k, i + 1, b == open ? open + 1 : open, load));
        load[b] -= cost[i];
    }
    return best;
}

START_TEST(lpt_keeps_grahams_bound)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    dt_rng_init(&r, seed, 1);
    double worst = 0;
    for (int t = 0; t < ROUNDS; t++) {
        int k = 2 + (int)dt_rng_below(&r, 3), n = k + (int)dt_rng_below(&r, 7), bin[16];
        double cost[16], load[4] = {0}, check[4] = {0}, got = -1;
        for (int i = 0; i < n; i++)
            cost[i] = t % 2 ? 0.7 + dt_rng_uniform(&r) : exp(1.3 * dt_rng_normal(&r));
        double opt = best_load(cost, n, k, 0, 0, load);
        ck_assert_int_eq(dt_assign_lpt(cost, n, k, false, bin, &got), DT_OK);
        double top = 0;
        for (int i = 0; i < n; i++) {
            ck_assert(bin[i] >= 0 && bin[i] < k);
            check[bin[i]] += cost[i];
        }
        for (int b = 0; b < k; b++)
            top = fmax(top, check[b]);
        ck_assert_double_eq_tol(top, got, 1e-9 * top);
        ck_assert_msg(got <= (4.0 / 3 - 1.0 / (3 * k)) * opt * (1 + 1e-12),
                      "seed %" PRIu64 " round %d: %g over %g", seed, t, got, opt);
        ck_assert_double_ge(got, opt * (1 - 1e-12));
        worst = fmax(worst, got / opt);
    }
    ck_assert_double_gt(worst, 1.01); /* the bound was put to the test */
}
END_TEST

/* The classical worst case: 2k+1 items 2k-1, 2k-1, 2k-2, ..., k, k, k. */
START_TEST(lpt_bound_is_tight)
{
    enum { K = 5 };
    double cost[2 * K + 1], got;
    int bin[2 * K + 1], n = 0;
    for (int v = 2 * K - 1; v >= K; v--)
        for (int twice = 0; twice < 2 && n < 2 * K; twice++)
            cost[n++] = v;
    cost[n++] = K;
    ck_assert_int_eq(dt_assign_lpt(cost, n, K, false, bin, &got), DT_OK);
    ck_assert_double_eq_tol(got, 4 * K - 1, 1e-12);
}
END_TEST

START_TEST(lpt_equal_cardinality)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    dt_rng_init(&r, seed, 2);
    for (int t = 0; t < ROUNDS; t++) {
        int k = 1 + (int)dt_rng_below(&r, 24), n = (int)dt_rng_below(&r, 200), bin[200];
        int count[24] = {0}, least = n, most = 0;
        double cost[200], got, sum = 0;
        for (int i = 0; i < n; i++)
            sum += cost[i] = exp(0.8 * dt_rng_normal(&r));
        ck_assert_int_eq(dt_assign_lpt(cost, n, k, true, bin, &got), DT_OK);
        for (int i = 0; i < n; i++)
            count[bin[i]]++;
        for (int b = 0; b < k; b++) {
            least = count[b] < least ? count[b] : least;
            most = count[b] > most ? count[b] : most;
        }
        ck_assert_int_le(most, (n + k - 1) / k);
        if (n % k == 0)
            ck_assert_int_eq(least, most);
        ck_assert_double_ge(got, sum / k * (1 - 1e-12));
    }
}
END_TEST

START_TEST(lpt_ties_go_to_the_lowest_bin)
{
    const double cost[] = {2, 2, 2, 2, 0, 0};
    static const int equal[] = {0, 1, 2, 0, 1, 2}, any[] = {0, 1, 2, 0, 1, 1};
    int bin[6];
    double got;
    ck_assert_int_eq(dt_assign_lpt(cost, 6, 3, true, bin, &got), DT_OK);
    ck_assert_mem_eq(bin, equal, sizeof(bin));
    ck_assert_int_eq(dt_assign_lpt(cost, 6, 3, false, bin, &got), DT_OK);
    ck_assert_mem_eq(bin, any, sizeof(bin));
    ck_assert_double_eq(got, 4);
    ck_assert_int_eq(dt_assign_lpt(cost, 6, 0, false, bin, &got), DT_ERR_INTERNAL);
}
END_TEST

/* ---- the chain ---- */

/* 1F1B written plainly: lists of operations per stage, run until all are done. */
static double plain_1f1b(const struct dt_assign_chain *c, const int *order)
{
    int p = c->p, n = c->n;
    double *fe = calloc((size_t)(p * n), sizeof(*fe)), *be = calloc((size_t)(p * n), sizeof(*be));
    double *now = calloc((size_t)p, sizeof(*now)), last = 0;
    int *nf = calloc((size_t)p, sizeof(*nf)), *nb = calloc((size_t)p, sizeof(*nb));
    for (int left = 2 * p * n; left > 0;) {
        int before = left;
        for (int s = 0; s < p; s++) {
            int warm = p - 1 - s < n ? p - 1 - s : n;
            bool forward = nf[s] < warm || (nf[s] < n && nf[s] - warm == nb[s]);
            int q = forward ? nf[s] : nb[s];
            if (q >= n)
                continue;
            double ready = 0;
            if (forward && s > 0) {
                if (nf[s - 1] <= q)
                    continue;
                ready = fe[(s - 1) * n + q];
            } else if (!forward && s < p - 1) {
                if (nb[s + 1] <= q)
                    continue;
                ready = be[(s + 1) * n + q];
            }
            now[s] = fmax(now[s], ready) + (forward ? c->fwd : c->bwd)[s * n + order[q]];
            (forward ? fe : be)[s * n + q] = now[s];
            (forward ? nf : nb)[s]++;
            last = fmax(last, now[s]);
            left--;
        }
        ck_assert_int_lt(left, before);
    }
    free(fe);
    free(be);
    free(now);
    free(nf);
    free(nb);
    return last;
}

struct random_chain {
    double fwd[16 * 80], bwd[16 * 80];
    struct dt_assign_chain c;
};

/* Encoder first, generator last, the LLM's stages alike; backward = 2 x forward. */
static void make_chain(struct random_chain *x, struct dt_rng *r, int p, int n, double spread)
{
    double enc = 0.4 + 1.2 * dt_rng_uniform(r), gen = 0.4 + 1.2 * dt_rng_uniform(r);
    for (int i = 0; i < n; i++) {
        double e = enc * exp(spread * dt_rng_normal(r)), g = gen * exp(spread * dt_rng_normal(r));
        for (int s = 0; s < p; s++) {
            x->fwd[s * n + i] = s == 0 ? e : s == p - 1 ? g : 1.037;
            x->bwd[s * n + i] = 2 * x->fwd[s * n + i];
        }
    }
    x->c = (struct dt_assign_chain){p, n, x->fwd, x->bwd};
}

START_TEST(chain_equals_the_plain_schedule)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    dt_rng_init(&r, seed, 3);
    for (int t = 0; t < ROUNDS; t++) {
        static struct random_chain x;
        int p = 1 + (int)dt_rng_below(&r, 9), n = 1 + (int)dt_rng_below(&r, 40), order[40];
        for (int k = 0; k < p * n; k++) {
            x.fwd[k] = exp(dt_rng_normal(&r));
            x.bwd[k] = dt_rng_below(&r, 5) ? exp(dt_rng_normal(&r)) : 0;
        }
        for (int i = 0; i < n; i++)
            order[i] = i;
        for (int i = n - 1; i > 0; i--) {
            int k = (int)dt_rng_below(&r, (uint64_t)i + 1), o = order[i];
            order[i] = order[k];
            order[k] = o;
        }
        x.c = (struct dt_assign_chain){p, n, x.fwd, x.bwd};
        double want = plain_1f1b(&x.c, order), got = dt_assign_chain_makespan(&x.c, order);
        ck_assert_msg(fabs(got - want) <= 1e-12 * want,
                      "seed %" PRIu64 " round %d p %d n %d: %g %g", seed, t, p, n, got, want);
    }
}
END_TEST

START_TEST(chain_of_uniform_stages_is_closed_form)
{
    static struct random_chain x;
    int order[80];
    for (int i = 0; i < 80; i++)
        order[i] = i;
    for (int p = 1; p <= 16; p++)
        for (int n = p; n <= 80; n += 13) {
            for (int k = 0; k < p * n; k++) {
                x.fwd[k] = 2.385;
                x.bwd[k] = 4.117;
            }
            x.c = (struct dt_assign_chain){p, n, x.fwd, x.bwd};
            double want = (n + p - 1) * (2.385 + 4.117);
            ck_assert_double_eq_tol(dt_assign_chain_makespan(&x.c, order), want, 1e-12 * want);
        }
}
END_TEST

/* Real 1F1B over the one-microbatch formula T_warmup + T_steady, first stage `factor` times the
 * rest, backward = 2 x forward, no communication. */
static double over_formula(int p, int n, int slow, double factor)
{
    static struct random_chain x;
    int order[80];
    double warm = 0;
    ck_assert(p * n <= 16 * 80 && n <= 80);
    for (int s = 0; s < p; s++) {
        double f = s == slow ? factor : 1;
        warm += 3 * f;
        for (int i = 0; i < n; i++) {
            x.fwd[s * n + i] = f;
            x.bwd[s * n + i] = 2 * f;
        }
    }
    for (int i = 0; i < n; i++)
        order[i] = i;
    x.c = (struct dt_assign_chain){p, n, x.fwd, x.bwd};
    return dt_assign_chain_makespan(&x.c, order) / (warm + 3 * factor * (n - 1));
}

/* Derived ratios, known to three digits; a first stage twice as slow as the others gives them. */
START_TEST(formula_overestimates_as_derived)
{
    ck_assert_double_eq_tol(over_formula(4, 8, 0, 2), 0.895, 0.0006);
    ck_assert_double_eq_tol(over_formula(8, 32, 0, 2), 0.934, 0.0006);
    ck_assert_double_eq_tol(over_formula(12, 64, 0, 2), 0.947, 0.0006);
    ck_assert_double_eq_tol(over_formula(8, 32, 7, 2), 1, 1e-12); /* last-stage bottleneck: exact */
    ck_assert_double_eq_tol(over_formula(8, 32, 0, 1), 1, 1e-12); /* uniform: exact */
}
END_TEST

START_TEST(order_is_never_worse)
{
    static const int shapes[][2] = {{1, 7}, {2, 2}, {4, 3}, {4, 8}, {6, 32}, {12, 32}, {12, 80}};
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    dt_rng_init(&r, seed, 4);
    double all = 0;
    int count = 0;
    for (size_t k = 0; k < sizeof(shapes) / sizeof(*shapes); k++) {
        int p = shapes[k][0], n = shapes[k][1];
        double gain = 0, most = 0;
        for (int t = 0; t < ROUNDS; t++) {
            static struct random_chain x;
            int order[80], given[80], seen[80] = {0};
            double before = 0, after = 0;
            make_chain(&x, &r, p, n, 0.5);
            ck_assert_int_eq(dt_assign_inter_order(&x.c, order, &before, &after), DT_OK);
            for (int i = 0; i < n; i++) {
                given[i] = i;
                ck_assert(order[i] >= 0 && order[i] < n && !seen[order[i]]++);
            }
            ck_assert_double_eq(before, dt_assign_chain_makespan(&x.c, given));
            ck_assert_double_eq_tol(after, dt_assign_chain_makespan(&x.c, order), 1e-12 * after);
            ck_assert_msg(after <= before, "seed %" PRIu64 " p %d n %d round %d", seed, p, n, t);
            gain += before / after;
            most = fmax(most, before / after);
        }
        printf("inter order: p %d n %d: mean gain %.4f, largest %.4f over %d chains\n", p, n,
               gain / ROUNDS, most, ROUNDS);
        if (p > 1 && n > p) {
            all += gain / ROUNDS;
            count++;
        }
    }
    ck_assert_double_gt(all / count, 1.01);
}
END_TEST

/* The smallest microbatch opens, the p-1 next smallest close, when the algorithm's order wins. */
START_TEST(order_puts_the_smallest_at_the_ends)
{
    enum { P = 4, N = 12 };
    static struct random_chain x;
    int order[N], rank[N];
    double before, after;
    static const double e[N] = {2.9, 0.7, 1.9, 2.3, 0.5, 1.1, 2.7, 0.9, 1.7, 2.1, 1.3, 0.6};
    for (int i = 0; i < N; i++) {
        rank[i] = 0;
        for (int k = 0; k < N; k++)
            rank[i] += e[k] < e[i];
        for (int s = 0; s < P; s++) {
            x.fwd[s * N + i] = s == 0 ? e[i] : 1.5;
            x.bwd[s * N + i] = 2 * x.fwd[s * N + i];
        }
    }
    x.c = (struct dt_assign_chain){P, N, x.fwd, x.bwd};
    ck_assert_int_eq(dt_assign_inter_order(&x.c, order, &before, &after), DT_OK);
    ck_assert_double_lt(after, before);
    ck_assert_int_eq(rank[order[0]], 0);
    for (int q = N - P + 1; q < N; q++)
        ck_assert_int_eq(rank[order[q]], N - q);
}
END_TEST

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
    TCase *tc = dt_test_case(suite, "lpt", 0);
    tcase_add_test(tc, lpt_keeps_grahams_bound);
    tcase_add_test(tc, lpt_bound_is_tight);
    tcase_add_test(tc, lpt_equal_cardinality);
    tcase_add_test(tc, lpt_ties_go_to_the_lowest_bin);
    tc = dt_test_case(suite, "order", 60);
    tcase_add_test(tc, chain_equals_the_plain_schedule);
    tcase_add_test(tc, chain_of_uniform_stages_is_closed_form);
    tcase_add_test(tc, formula_overestimates_as_derived);
    tcase_add_test(tc, order_is_never_worse);
    tcase_add_test(tc, order_puts_the_smallest_at_the_ends);
    tc = dt_test_case(suite, "assignment", 60);
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
