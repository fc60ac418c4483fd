/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "config.h"

#include "comm/cores.h"

#include <sched.h>
#include <string.h>

_Static_assert(sizeof(cpu_set_t) == sizeof(struct dt_cores), "a set of cores");

int dt_cores_here(struct dt_cores *out)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        CPU_ZERO(&set);
        CPU_SET(0, &set);
    }
    memcpy(out, &set, sizeof(*out));
    return CPU_COUNT(&set);
}

void dt_cores_sharers(const struct dt_cores *ranks, int n, int me, int *sharer, int *sharers)
{
    *sharer = *sharers = 0;
    for (int r = 0; r < n; r++)
        if (memcmp(&ranks[r], &ranks[me], sizeof(*ranks)) == 0) {
            *sharer += r < me;
            ++*sharers;
        }
}

void dt_cores_share(int n, int ranks, int k, int *first, int *count)
{
    if (ranks > n) {
        *first = k % n;
        *count = 1;
        return;
    }
    *first = (int)((int64_t)k * n / ranks);
    *count = (int)((int64_t)(k + 1) * n / ranks) - *first;
}

static void pin(int first, int count)
{
    struct dt_cores here;
    cpu_set_t may, own;
    int k = 0;

    dt_cores_here(&here);
    memcpy(&may, &here, sizeof(may));
    CPU_ZERO(&own);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &may)) {
            if (k >= first && k < first + count)
                CPU_SET(c, &own);
            k++;
        }
    sched_setaffinity(0, sizeof(own), &own); /* only for speed: a refusal does no harm */
}

int dt_cores_take(const struct dt_transport *t)
{
    int first, count;

    dt_cores_share(t->cores, t->sharers, t->sharer, &first, &count);
    if (t->sharers > 1 && !dt_transport_crowded(t))
        pin(first, count);
    return count;
}
