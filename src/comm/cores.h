/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Cores for ranks: those of one host share the cores that they may use. */
#ifndef DT_COMM_CORES_H
#define DT_COMM_CORES_H

#include "comm/transport.h"

struct dt_cores { /* a set of cores: a cpu_set_t, whatever its name is elsewhere */
    unsigned char bits[128];
};

/* Those that this process may run on; returns how many. */
int dt_cores_here(struct dt_cores *out);
/* Of n ranks of a host with these cores: how many have just those of rank `me`, and which of them
 * that one is.  Ranks that a launcher gave cores of their own share none. */
void dt_cores_sharers(const struct dt_cores *ranks, int n, int me, int *sharer, int *sharers);
/* Of `n` cores, those of the k-th of `ranks` ranks: [*first, *first + *count).  More ranks than
 * cores: one each, in turn. */
void dt_cores_share(int n, int ranks, int k, int *first, int *count);
/* Pins this process to its share and returns how many cores that is; before any thread is started.
 * With more ranks than cores nothing is pinned. */
int dt_cores_take(const struct dt_transport *t);

#endif
