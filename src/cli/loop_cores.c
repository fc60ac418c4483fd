/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A quiet place to measure, and watching that it stays quiet. */
#include "cli/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TRIES = 3, LOOK_US = 1000000 };

/* Others' work keeps cores to itself if we leave it some: the scheduler moves it there. */
enum dt_status dt_loop_settle(struct dt_loop *l, struct dt_error *err)
{
    static struct dt_load a, b;
    struct dt_load_cpus all;
    double busy;
    int free_cores;

    dt_load_cpus(&all);
    l->cpus = all;
    l->cpus_all = l->cores = all.n;
    if (l->anyway)
        return DT_OK;
    dt_load_read(&a);
    usleep(LOOK_US);
    dt_load_read(&b);
    busy = dt_load_foreign(&a, &b, &all);
    free_cores = dt_drift_free_cores(all.n, busy > 0 ? busy : 0);
    if (free_cores == 0)
        return dt_error_set(err, DT_ERR_BUSY,
                            "machine too busy: other work takes %.1f of %d cores; measure when it "
                            "has ended, or --anyway",
                            busy, all.n);
    if (free_cores < all.n) {
        dt_load_least_busy(&a, &b, &all, free_cores, &l->cpus);
        dt_load_keep_to(&l->cpus);
        l->cores = free_cores;
    }
    return DT_OK;
}

static void note(struct dt_loop *l, const struct dt_drift *d)
{
    if (d->foreign > l->foreign_max)
        l->foreign_max = d->foreign;
}

static enum dt_status once(struct dt_loop *l, dt_loop_fn *fn, void *arg, struct dt_error *err,
                           struct dt_drift *out)
{
    static struct dt_load a, b;
    double foreign;

    dt_load_read(&a);
    DT_TRY(fn(l, arg, err, out));
    dt_load_read(&b);
    foreign = dt_load_foreign(&a, &b, &l->cpus);
    out->foreign = foreign < 0 ? -1 : foreign / l->cores;
    out->at_s = (a.at_s + b.at_s) / 2;
    return DT_OK;
}

enum dt_status dt_loop_watched(struct dt_loop *l, const char *what, dt_loop_fn *fn, void *arg,
                               struct dt_error *err, struct dt_drift *out)
{
    char reason[160];

    for (int k = 0; k < TRIES; k++) {
        DT_TRY(once(l, fn, arg, err, out));
        if (dt_drift_counts(out) || l->anyway) {
            note(l, out);
            return DT_OK;
        }
        l->again++;
    }
    dt_drift_reason(out, reason, sizeof(reason));
    return dt_error_set(err, DT_ERR_BUSY,
                        "machine too busy: while %s was measured, %d times, %s; measure when other "
                        "work has ended, or --anyway",
                        what, TRIES, reason);
}
