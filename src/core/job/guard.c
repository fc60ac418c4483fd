/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/job/guard.h"

#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const dt_guard_action_names[] = {"off", "warn", "stop", "skip", "rollback", NULL};

/* Of a normal distribution, its standard deviation over its median absolute deviation. */
#define NORMAL_OF_MAD 1.4826
/* The least distance of the limit, as a share of the median: assumed.  The losses of small batches
 * vary by a few percent. */
#define LEAST_SHARE 0.1

void dt_guard_defaults(struct dt_guard_options *o)
{
    /* Ten deviations: losses of one step have heavier tails than a normal distribution, where six
     * are one in a billion.  Three and 64 are assumed. */
    *o = (struct dt_guard_options){.nonfinite = DT_GUARD_SKIP,
                                   .nonfinite_most = 3,
                                   .spike = DT_GUARD_WARN,
                                   .spike_most = 3,
                                   .deviations = 10,
                                   .window = 64};
}

void dt_guard_init(struct dt_guard *g, const struct dt_guard_options *o)
{
    memset(g, 0, sizeof(*g));
    g->o = *o;
}

bool dt_guard_rolls_back(const struct dt_guard_options *o)
{
    return o->nonfinite == DT_GUARD_ROLLBACK || o->spike == DT_GUARD_ROLLBACK;
}

/* ---- the window ---- */

/* False while too few are known. */
static bool find_limit(const struct dt_guard *g, double *median, double *limit)
{
    double v[DT_GUARD_WINDOW_MAX], spread;
    int n = (int)(g->seen < g->o.window ? g->seen : g->o.window);

    if (n < DT_GUARD_WINDOW_MIN)
        return false;
    memcpy(v, g->losses, (size_t)n * sizeof(*v));
    *median = dt_median(v, (size_t)n);
    for (int i = 0; i < n; i++)
        v[i] = fabs(v[i] - *median);
    spread = g->o.deviations * NORMAL_OF_MAD * dt_median(v, (size_t)n);
    *limit = *median + fmax(spread, LEAST_SHARE * fabs(*median));
    return true;
}

/* ---- verdicts ---- */

/* What was decided on comes to nothing after too many times. */
static void count(struct dt_guard *g, int64_t step, struct dt_guard_verdict *v, int most)
{
    int *n = v->action == DT_GUARD_SKIP ? &g->skipped[v->cause == DT_GUARD_SPIKE] : &g->rollbacks;

    if (v->action != DT_GUARD_SKIP && v->action != DT_GUARD_ROLLBACK)
        return;
    v->nth = ++*n;
    v->most = most;
    if (v->action == DT_GUARD_ROLLBACK && step > g->trouble)
        g->trouble = step;
    if (v->nth <= most) {
        if (v->action == DT_GUARD_ROLLBACK)
            g->seen = 0; /* losses rise by going back */
        return;
    }
    v->action =
        v->action == DT_GUARD_SKIP && v->cause == DT_GUARD_SPIKE ? DT_GUARD_WARN : DT_GUARD_STOP;
    if (v->action == DT_GUARD_WARN)
        g->seen = 0;
}

static void made(struct dt_guard *g, int64_t step, double loss)
{
    g->losses[g->seen++ % g->o.window] = loss;
    g->skipped[0] = g->skipped[1] = 0;
    if (step > g->trouble)
        g->rollbacks = 0;
}

struct dt_guard_verdict dt_guard_lost(struct dt_guard *g, int64_t step)
{
    struct dt_guard_verdict v = {.cause = DT_GUARD_NONFINITE, .action = DT_GUARD_STOP};

    if (g->o.nonfinite == DT_GUARD_ROLLBACK)
        v.action = DT_GUARD_ROLLBACK;
    count(g, step, &v, g->o.nonfinite_most);
    return v;
}

struct dt_guard_verdict dt_guard_judge(struct dt_guard *g, int64_t step, double loss,
                                       double grad_norm)
{
    struct dt_guard_verdict v = {.cause = DT_GUARD_NONE};

    if (!isfinite(loss) || !isfinite(grad_norm)) {
        v.cause = DT_GUARD_NONFINITE;
        v.action = (enum dt_guard_action)g->o.nonfinite;
        count(g, step, &v, g->o.nonfinite_most);
    } else if (g->o.spike != DT_GUARD_OFF && find_limit(g, &v.median, &v.limit) && loss > v.limit) {
        v.cause = DT_GUARD_SPIKE;
        v.action = (enum dt_guard_action)g->o.spike;
        count(g, step, &v, g->o.spike_most);
    }
    if (dt_guard_applies(&v))
        made(g, step, loss);
    return v;
}
