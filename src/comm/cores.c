/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "config.h"

#include "comm/cores.h"

#include "base/mem.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

struct seat { /* where a rank may run */
    char host[64];
    cpu_set_t cores;
};

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

static enum dt_status gather(struct dt_transport *t, struct seat *seats, struct dt_error *err)
{
    int *ranks = dt_malloc((size_t)t->size * sizeof(*ranks));
    size_t *bytes = dt_malloc((size_t)t->size * sizeof(*bytes));
    struct dt_comm *all = NULL;
    struct dt_req *req;
    enum dt_status st = ranks && bytes ? DT_OK : dt_error_nomem(err, "ranks");

    for (int r = 0; st == DT_OK && r < t->size; r++) {
        ranks[r] = r;
        bytes[r] = sizeof(*seats);
    }
    if (st == DT_OK)
        st = t->comm_new(t, ranks, t->size, err, &all);
    if (st == DT_OK)
        st = t->post_all_gather(all, seats, bytes, err, &req);
    if (st == DT_OK)
        st = dt_transport_wait(t, req, 0, "the hosts of all ranks", err);
    if (all)
        t->comm_free(all);
    dt_free(ranks);
    dt_free(bytes);
    return st;
}

static void pin(const cpu_set_t *may, int first, int count)
{
    cpu_set_t own;
    int k = 0;

    CPU_ZERO(&own);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, may)) {
            if (k >= first && k < first + count)
                CPU_SET(c, &own);
            k++;
        }
    sched_setaffinity(0, sizeof(own), &own); /* only for speed: a refusal does no harm */
}

enum dt_status dt_cores_take(struct dt_transport *t, struct dt_error *err, int *threads)
{
    struct seat *seats = dt_calloc((size_t)t->size, sizeof(*seats)), *mine;
    int ranks = 0, k = 0, n, first, count;
    enum dt_status st;

    if (!seats)
        return dt_error_nomem(err, "ranks");
    mine = &seats[t->rank];
    snprintf(mine->host, sizeof(mine->host), "%s", t->host);
    if (sched_getaffinity(0, sizeof(mine->cores), &mine->cores) != 0)
        CPU_SET(0, &mine->cores);
    st = gather(t, seats, err);
    for (int r = 0; st == DT_OK && r < t->size; r++)
        if (strcmp(seats[r].host, mine->host) == 0 && CPU_EQUAL(&seats[r].cores, &mine->cores)) {
            k += r < t->rank;
            ranks++;
        }
    if (st == DT_OK) {
        n = CPU_COUNT(&mine->cores);
        dt_cores_share(n, ranks, k, &first, &count);
        if (ranks <= n && ranks > 1)
            pin(&mine->cores, first, count);
        t->crowded |= ranks > n; /* the cores may be few of the host's, which open cannot know */
        *threads = count;
    }
    dt_free(seats);
    return st;
}
