/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Keys that vary and change nothing: a key may have nothing to act on (the factor of slow GPUs where none is slow), and
 * rows that are all alike would tell so only to who compares every digit. */
#include "cli/whatif.h"

#include <string.h>

static bool alike(const struct dt_sweep_result *x, const struct dt_sweep_result *y)
{
#define X(name)                                                                                    \
    if (x->name != y->name)                                                                        \
        return false;
    DT_SWEEP_NUMBERS(X)
    DT_SWEEP_LATER(X)
#undef X
    return x->gpus == y->gpus && x->gpus_used == y->gpus_used && strcmp(x->plan, y->plan) == 0;
}

/* In nothing but the axis. */
static bool differ_in(const struct dt_whatif *w, int axis, const struct dt_whatif_point *x,
                      const struct dt_whatif_point *y)
{
    for (int a = 0; a < w->n_axes; a++)
        if ((strcmp(x->value[a], y->value[a]) == 0) == (a == axis))
            return false;
    return true;
}

bool dt_whatif_idle(const struct dt_whatif *w, int axis)
{
    int stride = 1, pairs = 0;

    if (w->scan || w->sample) /* no grid */
        return false;
    for (int a = axis + 1; a < w->n_axes; a++)
        stride *= w->axis[a].n; /* the last axis is the fastest */
    for (int i = 0; i + stride < w->n; i++) {
        const struct dt_whatif_point *x = &w->point[i], *y = &w->point[i + stride];

        if (!differ_in(w, axis, x, y) || (!x->r.feasible && !y->r.feasible))
            continue;
        if (!x->r.feasible != !y->r.feasible || !alike(&x->r, &y->r))
            return false;
        pairs++;
    }
    return pairs > 0;
}
