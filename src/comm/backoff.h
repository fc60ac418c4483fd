/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How long a communication thread pauses between tests of what is under way.
 *
 * It shares its core with compute.  Pauses are each twice the one before, from the shortest since
 * something happened.  To wake up and test costs about 15 us of a core (measured under Open MPI on
 * a busy 2-core virtual machine), so the longest one costs a computing core less than 1 %. Messages
 * move while they are young, as whoever waits for one tests often; where ranks share cores every
 * test costs others. */
#ifndef DT_COMM_BACKOFF_H
#define DT_COMM_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

enum {
    DT_BACKOFF_WAITING_MIN_NS = 20000,
    DT_BACKOFF_WAITING_MAX_NS = 100000,
    DT_BACKOFF_CROWDED_MAX_NS = 300000,
    DT_BACKOFF_COMPUTING_MIN_NS = 100000,
    DT_BACKOFF_COMPUTING_MAX_NS = 2000000
};

/* The pause now; *next, 0 at first, becomes the one after.  `waits`: the main thread has nothing to
 * do but wait; `crowded`: dt_transport_crowded. */
static inline int64_t dt_backoff_ns(bool waits, bool crowded, int64_t *next)
{
    int64_t min = waits ? DT_BACKOFF_WAITING_MIN_NS : DT_BACKOFF_COMPUTING_MIN_NS;
    int64_t max = !waits    ? DT_BACKOFF_COMPUTING_MAX_NS
                  : crowded ? DT_BACKOFF_CROWDED_MAX_NS
                            : DT_BACKOFF_WAITING_MAX_NS;
    int64_t now = *next < min ? min : *next < max ? *next : max;

    *next = 2 * now;
    return now;
}

#endif
