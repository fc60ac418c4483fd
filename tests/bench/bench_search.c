/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Benchmark: the planner on the main job (MLLM-72B, 1,296 GPUs, global batch 1,920): the whole
 * search with ranking by timeline, the search alone, and layouts costed per second.  Every run
 * starts with a fresh cost model, so nothing is remembered from the one before. */
#define _GNU_SOURCE
#include "core/job/job.h"

#include "base/quantile.h"
#include "core/orchestrate/orchestrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 5 };
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

/* Median seconds of a search; *layouts = layouts costed by one. */
static double median_s(const struct dt_job *job, bool rank, double *layouts)
{
    double s[RUNS];

    for (int i = 0; i < RUNS; i++) {
        struct dt_search_input in = {.model = job->model,
                                     .cluster = &job->cluster,
                                     .samples = job->samples,
                                     .policy = job->policy,
                                     .opt = job->search};
        struct dt_search_result r;
        struct dt_error err;

        in.opt.rank = rank;
        must(dt_cost_new(job->model, &job->cluster, job->profile, &job->cost_opt, &err, &in.cost),
             &err);
        s[i] = now_s();
        must(dt_orch_find_plans(DT_STRATEGY_DISTTRAIN, &in, &err, &r), &err);
        s[i] = now_s() - s[i];
        *layouts = (double)r.stats.candidates;
        dt_search_result_free(&r);
        dt_cost_free(in.cost);
    }
    dt_sort_numbers(s, RUNS);
    return s[RUNS / 2];
}

int main(void)
{
    const char *src = getenv("srcdir");
    struct dt_error err;
    struct dt_job *job;
    char path[4096];
    double layouts, s;

    snprintf(path, sizeof(path), "%s/traces/jobs/mllm-72b-1296.yaml", src ? src : ".");
    must(dt_job_read(path, NULL, 0, &err, &job), &err);
    s = median_s(job, true, &layouts);
    printf("bench: search_72b_1296_ranked %.4f s ratio %.2f of the recalled %.3f s\n", s,
           s / RECALLED_S, RECALLED_S);
    s = median_s(job, false, &layouts);
    printf("bench: search_72b_1296_formula %.4f s\n", s);
    printf("bench: layouts_costed %.3g 1/s ratio %.2f of 1e6\n", layouts / s, layouts / s / 1e6);
    dt_job_free(job);
    return 0;
}
