/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Speed of the event engine and of the topological evaluation on synthetic 1F1B programs, and their
 * growth with size. Medians of repeated runs; one line each: "bench: NAME VALUE UNIT [ratio R of
 * WHAT]". */
#include "../synth.h"

#include "base/quantile.h"

#include "sim/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum { RUNS = 9 };

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(enum dt_status s, const struct dt_error *err)
{
    if (s == DT_OK)
        return;
    fprintf(stderr, "bench_engine: %s\n", err->message);
    exit(1);
}

struct bench {
    struct synth s;
    struct dt_engine *e;
    struct dt_network *net;
    struct dt_timeline_topo topo;
    struct dt_timeline t;
    struct dt_error err;
};
enum what { ENGINE, ENGINE_NET, EVAL };

static double median_s(struct bench *b, enum what what)
{
    double s[RUNS];

    for (int i = -1; i < RUNS; i++) { /* the first run warms up */
        double t0 = now_s();
        if (what == EVAL)
            must(dt_timeline_eval(&b->s.p, &b->topo, b->s.dur.ns, &b->err, &b->t), &b->err);
        else
            must(dt_engine_run(b->e, &b->s.p, &b->s.dur, what == ENGINE_NET ? b->net : NULL, NULL,
                               &b->err, &b->t),
                 &b->err);
        if (i >= 0)
            s[i] = now_s() - t0;
    }
    dt_sort_numbers(s, RUNS);
    return s[RUNS / 2];
}

/* The shape of the main job's LLM: 10 stages, 12 replicas x `scale`, 160 microbatches of lanes that
 * fill a node. */
static void open_bench(struct bench *b, int scale)
{
    struct synth_pipeline c = {.stages = 10,
                               .replicas = 12 * scale,
                               .microbatches = 160,
                               .lane_gpus = 8,
                               .fwd_ns = 80000000,
                               .bwd_ns = 160000000,
                               .alpha_ns = 20000,
                               .transfer_ns = 2000000,
                               .bytes = 134217728,
                               .sync_ns = 200000000,
                               .sync_bytes = 1 << 30,
                               .spread = 0.2,
                               .seed = 2385};
    /* A node as in the a800 presets: 4 x 25 GB/s NICs. */
    struct dt_cluster cl = {.nodes = c.stages * c.replicas,
                            .gpus_per_node = 8,
                            .nvlink_bytes_per_s = 160e9,
                            .nics_per_node = 4,
                            .nic_bytes_per_s = 25e9,
                            .nic_efficiency = 0.94,
                            .fabric_oversubscription = 1};

    synth_1f1b(&c, &b->s);
    must(dt_engine_new(&b->err, &b->e), &b->err);
    must(dt_network_new(&cl, &b->err, &b->net), &b->err);
    must(dt_timeline_topo_build(&b->s.p, &b->err, &b->topo), &b->err);
}

static void close_bench(struct bench *b)
{
    dt_timeline_free(&b->t);
    dt_timeline_topo_free(&b->topo);
    dt_network_free(b->net);
    dt_engine_free(b->e);
    synth_free(&b->s);
}

static void line(const char *name, double value, double target, const char *of)
{
    printf("bench: %s %.2f Mops/s ratio %.2f of %s\n", name, value / 1e6, value / target, of);
}

int main(void)
{
    static const int scales[3] = {1, 4, 16};
    static struct bench b;
    double first = 0, first_net = 0;

    for (int i = 0; i < 3; i++) {
        char name[64];
        b = (struct bench){.err = {0}};
        open_bench(&b, scales[i]);
        double n = b.s.p.n_ops, plain = n / median_s(&b, ENGINE),
               net = n / median_s(&b, ENGINE_NET);
        if (i == 0) {
            line("engine_ops", plain, 10e6, "the 10 Mops/s target");
            line("engine_ops_contention", net, 10e6, "the 10 Mops/s target");
            line("timeline_eval", n / median_s(&b, EVAL), 50e6, "the 50 Mops/s target");
            first = plain;
            first_net = net;
        }
        snprintf(name, sizeof name, "engine_ops_%.0fk", n / 1e3);
        line(name, plain, first, "the smallest size");
        snprintf(name, sizeof name, "engine_ops_contention_%.0fk", n / 1e3);
        line(name, net, first_net, "the smallest size");
        close_bench(&b);
    }
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("bench: engine_memory %.0f MiB\n", (double)use.ru_maxrss / 1024);
    return 0;
}
