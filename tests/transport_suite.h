/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What every transport must do, as checks that each rank of a job runs at the same time. */
#ifndef DT_TESTS_TRANSPORT_SUITE_H
#define DT_TESTS_TRANSPORT_SUITE_H

#include "comm/transport.h"

/* What went wrong, if anything; the first failure stays. */
struct verdict {
    char text[8192];
};
struct suite_check {
    const char *name;
    /* `n` members: how much of the random part is run. */
    void (*run)(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v);
};
extern const struct suite_check transport_checks[];
extern const int transport_checks_n;

/* The queue that each rank of a transport of device memory gives with every operation; NULL: it carries
 * host memory.  The host may touch what the device calls its own. */
enum { SUITE_RANKS = 64 };
extern struct dt_device_queue *suite_queue[SUITE_RANKS];

/* Runs all of them over one rank; false with v->text filled on the first failure. */
bool transport_suite(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v);

#endif
