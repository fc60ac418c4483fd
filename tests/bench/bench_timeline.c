/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Speed of compiling a program, of its durations, its topological order and its evaluation, from a
 * thousand to 131,072 GPUs.  Medians of repeated runs, CPU time of one core; one line each: "bench:
 * NAME VALUE UNIT [ratio R of WHAT]". */
#include "../test_util.h"

#include "base/quantile.h"

#include <stdio.h>

/* The fixture's asserts need a running test; here they end the program. */
#undef dt_assert_ok
#define dt_assert_ok(call, err)                                                                    \
    do {                                                                                           \
        if ((call) != DT_OK) {                                                                     \
            fprintf(stderr, "bench_timeline: %s\n", (err).message);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#include "../sched_fixture.h"

#include <sys/resource.h>
#include <time.h>

enum { RUNS = 5 };

static struct sched_fixture s;

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { COMPILE, DURATIONS, ORDER, EVALUATE, TOTAL, PHASES };
static const char *const phase_names[PHASES] = {"compile", "durations", "order", "evaluate",
                                                "program_total"};

struct size {
    const char *name;
    int pp, dp, n, encoders, generators; /* LLM tp 8; n slots; replicas of the others at tp 1 */
};

static void setup(const struct size *z, struct dt_cost **cost)
{
    struct dt_cost_options opt = {.allow_analytical = true};

    sf_init(&s);
    s.f.cluster.nodes = 131072 / 8;
    sf_encoder(&s, "encoder", 16);
    sf_llm(&s, 78);
    sf_generator(&s, "generator", 16);
    sf_edge(&s, 0, 1);
    sf_edge(&s, 1, 2);
    fx_profile(&s.f, true);
    sf_plan(&s, (int64_t)z->dp * z->n, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 1, 1, z->encoders);
    sf_layout(&s, 1, 8, z->pp, 1, z->dp);
    sf_layout(&s, 2, 1, 1, 1, z->generators);
    sf_samples(&s, SF_SAMPLES_MAX, 1, 1, false, 61);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, cost), s.err);
    dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
    dt_assert_ok(dt_assign(&s.plan, &s.f.model, NULL, &s.samples, 0, &s.err, &s.a), s.err);
}

static uint32_t run(struct dt_cost *cost, double *phase, struct dt_timeline *t)
{
    struct dt_program *p = NULL;
    struct dt_durations d = {0};
    struct dt_timeline_topo topo = {0};
    double at[PHASES];
    uint32_t n;

    at[0] = now_s();
    dt_assert_ok(dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &p), s.err);
    at[1] = now_s();
    dt_assert_ok(dt_durations_compute(p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d), s.err);
    at[2] = now_s();
    dt_assert_ok(dt_timeline_topo_build(p, &s.err, &topo), s.err);
    at[3] = now_s();
    dt_assert_ok(dt_timeline_eval(p, &topo, d.ns, &s.err, t), s.err);
    at[4] = now_s();
    for (int k = 0; k < TOTAL; k++)
        phase[k] = at[k + 1] - at[k];
    phase[TOTAL] = at[TOTAL] - at[0];
    n = p->n_ops;
    dt_timeline_topo_free(&topo);
    dt_durations_free(&d);
    dt_program_free(p);
    return n;
}

static void bench(const struct size *z)
{
    struct dt_cost *cost = NULL;
    struct dt_timeline t = {0};
    double runs[PHASES][RUNS], phase[PHASES];
    struct rusage use;
    uint32_t n = 0;

    setup(z, &cost);
    run(cost, phase, &t); /* warms up caches and memos */
    for (int i = 0; i < RUNS; i++) {
        n = run(cost, phase, &t);
        for (int k = 0; k < PHASES; k++)
            runs[k][i] = phase[k];
    }
    printf("bench: program_ops_%s %u ops (%d GPUs)\n", z->name, n, dt_plan_gpus(&s.plan));
    for (int k = 0; k < PHASES; k++) {
        double x;

        dt_sort_numbers(runs[k], RUNS);
        x = runs[k][RUNS / 2];
        printf("bench: %s_%s %.3f ms ratio %.1f of 1 M ops/s\n", phase_names[k], z->name, 1e3 * x,
               (double)n / x * 1e-6);
    }
    getrusage(RUSAGE_SELF, &use);
    printf("bench: program_memory_%s %.0f MiB\n", z->name, (double)use.ru_maxrss / 1024);
    dt_timeline_free(&t);
    dt_cost_free(cost);
    sf_free(&s);
}

int main(void)
{
    static const struct size sizes[] = {{"1k_gpus", 10, 12, 160, 72, 60},
                                        {"16k_gpus", 16, 125, 64, 125, 125},
                                        {"131k_gpus", 16, 1000, 64, 1000, 1000}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        bench(&sizes[i]);
    return 0;
}
