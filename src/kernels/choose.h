/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The order in which experts are chosen, once for CPUs and for kernels of cards; DT_KERNEL_FUNCTION is in front of its
 * function. */
#ifndef DT_KERNELS_CHOOSE_H
#define DT_KERNELS_CHOOSE_H

/* The largest p that is behind `last` in the order (p falling, number rising); `last` below 0: the first of all.  Below 0:
 * there is none, as NaNs have no order. */
DT_KERNEL_FUNCTION int dt_kernel_next_best(const float *p, int n, int last)
{
    int best = -1;

    for (int e = 0; e < n; e++) {
        bool behind = last < 0 || p[e] < p[last] || (p[e] == p[last] && e > last);

        if (behind && (best < 0 || p[e] > p[best]))
            best = e;
    }
    return best;
}

#endif
