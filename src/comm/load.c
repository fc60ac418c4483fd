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
