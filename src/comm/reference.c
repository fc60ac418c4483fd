/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "comm/reference.h"

#include "base/mem.h"
#include "base/quantile.h"

#include <string.h>
#include <time.h>

enum { SIDE = 64, SWEEP = 1 << 20, PRODUCTS = 24, ROUNDS = 8 }; /* sweep: 4 MiB */

struct dt_load_reference {
    float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    float memory[SWEEP];
};

enum dt_status dt_load_reference_new(struct dt_error *err, struct dt_load_reference **out)
{
    struct dt_load_reference *r = dt_malloc(sizeof *r);

    *out = r;
    if (!r)
        return dt_error_nomem(err, "the reference kernel");
    for (int i = 0; i < SIDE * SIDE; i++)
        r->a[i] = r->b[i] = (float)(i % 7) / 64;
    for (int i = 0; i < SWEEP; i++)
        r->memory[i] = 1;
    return DT_OK;
}

void dt_load_reference_free(struct dt_load_reference *r)
{
    dt_free(r);
}

bool dt_load_reference_steady(double before_s, double after_s)
{
    return after_s <= DT_LOAD_REFERENCE_STEADY * before_s &&
           before_s <= DT_LOAD_REFERENCE_STEADY * after_s;
}

static void product(struct dt_load_reference *r)
{
    for (int i = 0; i < SIDE; i++)
        for (int k = 0; k < SIDE; k++)
            for (int j = 0; j < SIDE; j++)
                r->c[i * SIDE + j] += r->a[i * SIDE + k] * r->b[k * SIDE + j];
}

static double core_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double dt_load_reference_s(struct dt_load_reference *r)
{
    double s[ROUNDS];

    for (int k = 0; k < ROUNDS; k++) {
        double begin = core_s();

        memset(r->c, 0, sizeof r->c);
        for (int i = 0; i < PRODUCTS; i++)
            product(r);
        for (int i = 0; i < SWEEP; i++)
            r->memory[i] = 0.5f * r->memory[i] + r->c[i % (SIDE * SIDE)];
        s[k] = core_s() - begin;
    }
    return dt_median(s, ROUNDS);
}
