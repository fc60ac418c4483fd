/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "config.h"

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* affinities */
#endif
#include "comm/load.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/clock.h"
#include "base/quantile.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void dt_load_cpus(struct dt_load_cpus *out)
{
    cpu_set_t set;

    out->n = 0;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        for (int c = 0; c < CPU_SETSIZE && c < DT_LOAD_CPUS; c++)
            if (CPU_ISSET(c, &set))
                out->cpu[out->n++] = c;
    if (out->n == 0)
        out->cpu[out->n++] = 0;
}

static void to_set(const struct dt_load_cpus *c, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (int i = 0; i < c->n; i++)
        CPU_SET(c->cpu[i], out);
}

void dt_load_keep_to(const struct dt_load_cpus *c)
{
    cpu_set_t set;

    to_set(c, &set);
    sched_setaffinity(0, sizeof(set), &set); /* a refusal shows in what is measured */
}

/* ---- /proc/stat ---- */

/* "cpu3 user nice system idle iowait irq softirq steal guest ...": guests are in user already. */
void dt_load_parse(const char *text, double ticks_per_s, struct dt_load *out)
{
    *out = (struct dt_load){0};
    for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        unsigned long long v[8] = {0};
        int cpu;

        if (sscanf(p, "cpu%d %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, &v[0], &v[1], &v[2],
                   &v[3], &v[4], &v[5], &v[6], &v[7]) < 5 ||
            cpu < 0 || cpu >= DT_LOAD_CPUS)
            continue;
        out->busy_s[cpu] = (double)(v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / ticks_per_s;
        out->known = true;
    }
}

static double seconds_of(int who)
{
    struct rusage r;

    if (getrusage(who, &r) != 0)
        return 0;
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

void dt_load_read(struct dt_load *out)
{
    char *text = NULL;
    size_t len;

    *out = (struct dt_load){0};
    if (dt_file_read("/proc/stat", 1 << 22, NULL, &text, &len) == DT_OK)
        dt_load_parse(text, (double)sysconf(_SC_CLK_TCK), out);
    dt_free(text);
    out->own_s = seconds_of(RUSAGE_SELF) + seconds_of(RUSAGE_CHILDREN);
    out->at_s = (double)dt_clock_ns() * 1e-9;
}

double dt_load_foreign(const struct dt_load *a, const struct dt_load *b,
                       const struct dt_load_cpus *c)
{
    double busy = 0, wall = b->at_s - a->at_s;

    if (!a->known || !b->known || !(wall > 0))
        return -1;
    for (int i = 0; i < c->n; i++)
        busy += b->busy_s[c->cpu[i]] - a->busy_s[c->cpu[i]];
    busy -= b->own_s - a->own_s;
    return busy > 0 ? busy / wall : 0;
}

void dt_load_least_busy(const struct dt_load *a, const struct dt_load *b,
                        const struct dt_load_cpus *c, int n, struct dt_load_cpus *out)
{
    struct dt_load_cpus left = *c;

    while (left.n > n) {
        int worst = 0;

        for (int i = 1; i < left.n; i++)
            if (b->busy_s[left.cpu[i]] - a->busy_s[left.cpu[i]] >
                b->busy_s[left.cpu[worst]] - a->busy_s[left.cpu[worst]])
                worst = i;
        memmove(&left.cpu[worst], &left.cpu[worst + 1],
                (size_t)(left.n - worst - 1) * sizeof(left.cpu[0]));
        left.n--;
    }
    *out = left;
}

/* ---- the reference kernel ---- */

enum { SIDE = 64, SWEEP = 1 << 20, PRODUCTS = 24, ROUNDS_MAX = 4096 }; /* sweep: 4 MiB */

struct worker {
    int cpu;
    double seconds, round_s; /* of a round: the median */
    double round[ROUNDS_MAX];
    float *memory;
    float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
};

static void product(struct worker *w)
{
    for (int i = 0; i < SIDE; i++)
        for (int k = 0; k < SIDE; k++)
            for (int j = 0; j < SIDE; j++)
                w->c[i * SIDE + j] += w->a[i * SIDE + k] * w->b[k * SIDE + j];
}

static void one_round(struct worker *w)
{
    memset(w->c, 0, sizeof(w->c));
    for (int i = 0; i < PRODUCTS; i++)
        product(w);
    for (int i = 0; i < SWEEP; i++)
        w->memory[i] = 0.5f * w->memory[i] + w->c[i % (SIDE * SIDE)];
}

static void *work(void *arg)
{
    struct dt_load_cpus own = {.n = 1};
    struct worker *w = arg;
    uint64_t begin, last;
    int rounds = 0;

    own.cpu[0] = w->cpu;
    dt_load_keep_to(&own); /* of this thread */
    for (int i = 0; i < SIDE * SIDE; i++)
        w->a[i] = w->b[i] = (float)(i % 7) / 64;
    for (int i = 0; i < SWEEP; i++)
        w->memory[i] = 1;
    one_round(w);
    begin = last = dt_clock_ns();
    do {
        uint64_t now;

        one_round(w);
        now = dt_clock_ns();
        w->round[rounds++] = (double)(now - last) * 1e-9;
        last = now;
    } while ((double)(last - begin) * 1e-9 < w->seconds && rounds < ROUNDS_MAX);
    w->round_s = dt_median(w->round, (size_t)rounds);
    return NULL;
}

static enum dt_status run_workers(struct worker *w, int n, struct dt_error *err, double *round_s)
{
    pthread_t *thread = dt_calloc((size_t)n, sizeof(*thread));
    int started = 0;
    double sum = 0;

    if (!thread)
        return dt_error_nomem(err, "threads");
    while (started < n && pthread_create(&thread[started], NULL, work, &w[started]) == 0)
        started++;
    for (int i = 0; i < started; i++) {
        pthread_join(thread[i], NULL);
        sum += w[i].round_s;
    }
    dt_free(thread);
    if (started < n)
        return dt_error_set(err, DT_ERR_NOMEM,
                            "a thread for the reference kernel cannot be started");
    *round_s = sum / n;
    return DT_OK;
}

enum dt_status dt_load_reference(const struct dt_load_cpus *c, double seconds, struct dt_error *err,
                                 double *round_s)
{
    struct worker *w = dt_calloc((size_t)c->n, sizeof(*w));
    enum dt_status st = w ? DT_OK : dt_error_nomem(err, "the reference kernel");

    for (int i = 0; st == DT_OK && i < c->n; i++) {
        w[i].cpu = c->cpu[i];
        w[i].seconds = seconds;
        w[i].memory = dt_malloc(SWEEP * sizeof(float));
        if (!w[i].memory)
            st = dt_error_nomem(err, "the reference kernel");
    }
    if (st == DT_OK)
        st = run_workers(w, c->n, err, round_s);
    for (int i = 0; w && i < c->n; i++)
        dt_free(w[i].memory);
    dt_free(w);
    return st;
}
