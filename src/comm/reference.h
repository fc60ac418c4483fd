/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How fast a core is just now: a reference kernel, always the same work.
 *
 * Cores of one machine change their speed within seconds: clocks rise and fall, and a virtual machine's neighbours share
 * its execution units and caches.  Times that were measured beside runs of this kernel can be brought to one speed. */
#ifndef DT_COMM_REFERENCE_H
#define DT_COMM_REFERENCE_H

#include "base/status.h"

#include <stdbool.h>

struct dt_load_reference;
/* On as many threads as what it is compared with: cores may share execution units. */
enum dt_status dt_load_reference_new(int threads, struct dt_error *err,
                                     struct dt_load_reference **out);
void dt_load_reference_free(struct dt_load_reference *r);
/* Products of small matrices in the first-level cache and sums over memory beyond the second, on the calling thread and
 * threads beside it, for some milliseconds.  Seconds of a thread's own time of a core (dt_clock_thread_ns), so that
 * others that have the core in between do not count: the median of a few rounds, the mean of the threads. */
double dt_load_reference_s(struct dt_load_reference *r);
/* Was the speed the same before and after, within what the kernel's own times scatter by?  Times in between say little if
 * not. */
#define DT_LOAD_REFERENCE_STEADY 1.15
bool dt_load_reference_steady(double before_s, double after_s);

#endif
