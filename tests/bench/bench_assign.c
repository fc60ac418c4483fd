/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Benchmark: assignment of the main job's global batch (1,920 samples of MLLM-72B) with and without
 * reordering, costs by the roofline (no profile), and the order of one pipeline. */
#define _GNU_SOURCE
#include "core/orchestrate/orchestrate_sizing.h"
#include "core/schedule/assign.h"
#include "core/schedule/assign_entrain.h"
#include "base/doc.h"
#include "base/quantile.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 9 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(enum dt_status st, const struct dt_error *err)
{
    if (st != DT_OK) {
        fprintf(stderr, "bench_assign: %s\n", err->message);
        exit(1);
    }
}

/* DP 4 / 16 / 8: the LLM of ten stages, one stage each side. */
static void plan_init(struct dt_plan *p, const struct dt_model *m, bool intra, bool inter)
{
    static const int dp[] = {4, 16, 8}, pp[] = {1, 10, 1};
    memset(p, 0, sizeof(*p));
    p->n_modules = m->n_modules;
    for (int i = 0; i < m->n_modules; i++) {
        p->modules[i].layout = (struct dt_plan_layout){.tp = i == m->llm ? 8 : 2,
                                                       .cp = 1,
                                                       .ep = 1,
                                                       .pp = pp[i],
                                                       .vpp = 1,
                                                       .dp = dp[i],
                                                       .ip = 1};
        for (int v = 0; v <= pp[i]; v++)
            p->modules[i].split[v] = (uint16_t)(v * m->modules[i].n_blocks / pp[i]);
    }
    p->policy.global_batch = 1920;
    p->policy.microbatch = 1;
    p->policy.seq_len = 8192;
    p->policy.intra_reorder = intra;
    p->policy.inter_reorder = inter;
}

static double time_assign(const struct dt_plan *p, const struct dt_model *m, struct dt_cost *cost,
                          const struct dt_samples *s, double *first_s)
{
    double t[RUNS];
    struct dt_error err;
    for (int r = 0; r < RUNS; r++) {
        struct dt_assignment *a = NULL;
        double begin = now_s();
        must(dt_assign(p, m, cost, s, 0, &err, &a), &err);
        t[r] = now_s() - begin;
        must(dt_assign_check(a, &err), &err);
        dt_assign_free(a);
    }
    *first_s = t[0];
    dt_sort_numbers(t, RUNS);
    return t[RUNS / 2];
}

static void bench_order(int p, int n)
{
    double *t = malloc((size_t)(2 * p * n) * sizeof(*t)), runs[RUNS], before = 0, after = 0;
    int *order = malloc((size_t)n * sizeof(*order));
    struct dt_rng r;
    if (!t || !order)
        exit(1);
    dt_rng_init(&r, 3, 0);
    for (int i = 0; i < n; i++)
        for (int s = 0; s < p; s++) {
            t[s * n + i] = s == 0 || s == p - 1 ? 0.5 + dt_rng_uniform(&r) : 1;
            t[(p + s) * n + i] = 2 * t[s * n + i];
        }
    struct dt_assign_chain c = {p, n, t, t + p * n};
    for (int k = 0; k < RUNS; k++) {
        double begin = now_s();
        if (dt_assign_inter_order(&c, order, &before, &after) != DT_OK)
            exit(1);
        runs[k] = now_s() - begin;
    }
    dt_sort_numbers(runs, RUNS);
    printf("bench: inter_order_p%d_n%d %.1f us ratio %.4f of the given order's time\n", p, n,
           runs[RUNS / 2] * 1e6, after / before);
    free(t);
    free(order);
}

/* 7,680 samples of unlike loads: to microbatches of about four; and how many of them size 324 GPUs. */
static void bench_entrain(void)
{
    enum { N = 7680, GPUS = 324 };
    static double load[3 * N];
    static const int dps[] = {4, 12, 48};
    struct dt_rng r;
    struct dt_assign_loads in = {.n = N, .enc = load, .llm = load + N};
    struct dt_orch_loads size = {
        .n_modules = 3, .n = N, .load = load, .confidence = 0.95, .p_error = 0.05, .seed = 1};
    struct dt_orch_sizing z;
    double runs[RUNS];

    dt_rng_init(&r, 4, 0);
    for (int i = 0; i < 3 * N; i++)
        load[i] = (i < N ? 1 : i < 2 * N ? 8 : 0.7) * exp(0.7 * dt_rng_normal(&r));
    for (size_t d = 0; d < sizeof(dps) / sizeof(dps[0]); d++) {
        for (int k = 0; k < RUNS; k++) {
            struct dt_assign_entrained out;
            struct dt_arena arena = {0};
            double begin = now_s();

            if (dt_assign_entrain(&in, dps[d], N / dps[d] / 4, &arena, &out) != DT_OK)
                exit(1);
            runs[k] = now_s() - begin;
            dt_arena_free(&arena);
        }
        dt_sort_numbers(runs, RUNS);
        printf("bench: entrain_7680_dp%d %.3f ms ratio %.2f of 50 ms\n", dps[d],
               runs[RUNS / 2] * 1e3, runs[RUNS / 2] / 0.05);
    }
    for (int k = 0; k < RUNS; k++) {
        double begin = now_s();

        dt_orch_size(&size, GPUS, &z);
        runs[k] = now_s() - begin;
    }
    dt_sort_numbers(runs, RUNS);
    printf("bench: b_min_7680_gpus324 %.1f ms ratio %.3f of 1 s\n", runs[RUNS / 2] * 1e3,
           runs[RUNS / 2]);
}

int main(void)
{
    const char *text = "model: mllm-72b\ncluster: a800-1296\nsamples: laion-8k\n";
    struct dt_doc *doc = NULL;
    struct dt_error err;
    struct dt_model *model = NULL;
    struct dt_samples *s = NULL;
    static struct dt_cluster cluster;
    static struct dt_profile profile; /* no rows: everything from the roofline */
    static struct dt_plan plan;
    struct dt_cost_options opt = {.allow_analytical = true};
    struct dt_cost *cost = NULL;
    must(dt_doc_parse("bench", text, strlen(text), &err, &doc), &err);
    struct dt_node root = dt_doc_root(doc);
    must(dt_model_read(dt_map_get(root, "model"), &err, &model), &err);
    must(dt_cluster_read(dt_map_get(root, "cluster"), &err, &cluster), &err);
    must(dt_samples_read(dt_map_get(root, "samples"), 8192, 1920, 1, NULL, &err, &s), &err);
    must(dt_cost_new(model, &cluster, &profile, &opt, &err, &cost), &err);

    static const char *const names[] = {"given", "intra", "inter", "intra_inter"};
    for (int k = 0; k < 4; k++) {
        double cold;
        plan_init(&plan, model, k & 1, k & 2);
        double warm = time_assign(&plan, model, cost, s, &cold);
        printf("bench: assign_1920_%s %.3f ms ratio %.2f of the first call\n", names[k], warm * 1e3,
               warm / cold);
    }
    bench_order(12, 120);
    bench_order(12, 240);
    bench_entrain();
    dt_cost_free(cost);
    dt_samples_free(s);
    dt_model_free(model);
    dt_doc_free(doc);
    return 0;
}
