/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Benchmark: the planner on MLLM-72B with 96, 1,296 and 16,384 GPUs, everything free as the shipped jobs have it, and with
 * what was free before schedules, microbatches, recomputation, placement and reordering were searched for (narrow); the
 * size of the space, what of it was looked at, times and rates.  Every run starts with a fresh cost model, so nothing is
 * remembered from the one before. */
#define _GNU_SOURCE
#include "core/job/job.h"

#include "base/quantile.h"
#include "core/orchestrate/orchestrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 3 };
/* Search time of the published system at 1,296 GPUs, as recalled. */
#define RECALLED_S 0.922

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(enum dt_status st, const struct dt_error *err)
{
    if (st == DT_OK)
        return;
    fprintf(stderr, "bench_search: %s\n", err->message);
    exit(1);
}

/* Median seconds of a search, and what it did. */
static double median_s(const struct dt_job *job, bool rank, struct dt_search_stats *stats)
{
    double s[RUNS];

    for (int i = 0; i < RUNS; i++) {
        struct dt_search_input in = {.model = job->model,
                                     .cluster = &job->cluster,
                                     .samples = job->samples,
                                     .policy = job->policy,
                                     .opt = job->search};
        struct dt_search_result r = {0};
        struct dt_error err;

        memcpy(in.recompute, job->recompute, sizeof(in.recompute));
        memcpy(in.zero, job->zero, sizeof(in.zero));
        in.opt.rank = rank;
        must(dt_cost_new(job->model, &job->cluster, job->profile, &job->cost_opt, &err, &in.cost),
             &err);
        s[i] = now_s();
        must(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &in, &err, &r), &err);
        s[i] = now_s() - s[i];
        *stats = r.stats;
        dt_search_result_free(&r);
        dt_cost_free(in.cost);
    }
    dt_sort_numbers(s, RUNS);
    return s[RUNS / 2];
}

static void search(const char *name, const char *job_name, const char *const *keys, int n)
{
    const char *src = getenv("srcdir");
    struct dt_search_stats stats, plain;
    struct dt_error err;
    struct dt_job *job;
    char path[4096];
    double s, formula;

    snprintf(path, sizeof(path), "%s/traces/jobs/%s.yaml", src ? src : ".", job_name);
    must(dt_job_read(path, keys, n, &err, &job), &err);
    s = median_s(job, true, &stats);
    formula = median_s(job, false, &plain);
    printf("bench: search_%s_ranked %.4f s ratio %.2f of the recalled %.3f s at 1,296 GPUs\n", name,
           s, s / RECALLED_S, RECALLED_S);
    printf("bench: search_%s_formula %.4f s\n", name, formula);
    printf("bench: search_%s_space %lld cells\n", name, (long long)stats.cells);
    printf("bench: search_%s_pruned %lld cells\n", name,
           (long long)(stats.cells - stats.cells_opened));
    printf("bench: search_%s_costed %lld layouts\n", name, (long long)stats.candidates);
    printf("bench: search_%s_timed %lld plans\n", name, (long long)stats.simulated);
    printf("bench: search_%s_rate %.3g layouts/s ratio %.2f of 1e6\n", name,
           (double)plain.candidates / formula, (double)plain.candidates / formula / 1e6);
    dt_job_free(job);
}

int main(void)
{
    static const char *const narrow[] = {
        "train.schedule=1f1b", "train.microbatch=1",   "train.recompute=selective",
        "train.zero=1",        "search.placement=own", "train.reorder={intra: true, inter: true}"};
    static const char *const large[] = {"cluster.nodes=2048", "train.global_batch=16384"};

    search("72b_96", "mllm-72b-96", NULL, 0);
    search("72b_1296_narrow", "mllm-72b-1296", narrow, 6);
    search("72b_1296", "mllm-72b-1296", NULL, 0);
    search("72b_16384", "mllm-72b-1296", large, 2);
    return 0;
}
