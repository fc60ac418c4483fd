/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "comm/reference.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/quantile.h"

#include <pthread.h>
#include <string.h>

enum { SIDE = 64, SWEEP = 1 << 20, PRODUCTS = 24, ROUNDS = 8 }; /* sweep: 4 MiB */

struct worker {
    pthread_t thread;
    double round_s; /* the median */
    float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    float memory[SWEEP];
};
struct dt_load_reference {
    int n;
    struct worker *worker[];
};

static struct worker *worker_new(void)
{
    struct worker *w = dt_malloc(sizeof *w);

    if (!w)
        return NULL;
    for (int i = 0; i < SIDE * SIDE; i++)
        w->a[i] = w->b[i] = (float)(i % 7) / 64;
    for (int i = 0; i < SWEEP; i++)
        w->memory[i] = 1;
    return w;
}

enum dt_status dt_load_reference_new(int threads, struct dt_error *err,
                                     struct dt_load_reference **out)
{
    struct dt_load_reference *r =
        dt_calloc(1, sizeof *r + (size_t)threads * sizeof(struct worker *));

    *out = r;
    for (; r && r->n < threads; r->n++)
        if (!(r->worker[r->n] = worker_new()))
            break;
    if (r && r->n == threads)
        return DT_OK;
    dt_load_reference_free(r);
    *out = NULL;
    return dt_error_nomem(err, "the reference kernel");
}

void dt_load_reference_free(struct dt_load_reference *r)
{
    for (int i = 0; r && i < r->n; i++)
        dt_free(r->worker[i]);
    dt_free(r);
}

bool dt_load_reference_steady(double before_s, double after_s)
{
    return after_s <= DT_LOAD_REFERENCE_STEADY * before_s &&
           before_s <= DT_LOAD_REFERENCE_STEADY * after_s;
}

static void product(struct worker *w)
{
    for (int i = 0; i < SIDE; i++)
        for (int k = 0; k < SIDE; k++)
            for (int j = 0; j < SIDE; j++)
                w->c[i * SIDE + j] += w->a[i * SIDE + k] * w->b[k * SIDE + j];
}

static void *work(void *arg)
{
    struct worker *w = arg;
    double s[ROUNDS];

    for (int k = 0; k < ROUNDS; k++) {
        uint64_t begin = dt_clock_thread_ns();

        memset(w->c, 0, sizeof w->c);
        for (int i = 0; i < PRODUCTS; i++)
            product(w);
        for (int i = 0; i < SWEEP; i++)
            w->memory[i] = 0.5f * w->memory[i] + w->c[i % (SIDE * SIDE)];
        s[k] = 1e-9 * (double)(dt_clock_thread_ns() - begin);
    }
    w->round_s = dt_median(s, ROUNDS);
    return NULL;
}

/* Threads that cannot be started are done without: the speed is that of the others. */
double dt_load_reference_s(struct dt_load_reference *r)
{
    int started = 1;
    double sum;

    while (started < r->n &&
           pthread_create(&r->worker[started]->thread, NULL, work, r->worker[started]) == 0)
        started++;
    work(r->worker[0]);
    sum = r->worker[0]->round_s;
    for (int i = 1; i < started; i++) {
        pthread_join(r->worker[i]->thread, NULL);
        sum += r->worker[i]->round_s;
    }
    return sum / started;
}
