/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What this machine's cores do, and how fast they are: /proc/stat, and a reference kernel. */
#ifndef DT_COMM_LOAD_H
#define DT_COMM_LOAD_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DT_LOAD_CPUS = 1024 };

struct dt_load_cpus { /* numbers of the kernel's */
    int n;
    int cpu[DT_LOAD_CPUS];
};
/* Those that this process may run on, and later shall run on. */
void dt_load_cpus(struct dt_load_cpus *out);
void dt_load_keep_to(const struct dt_load_cpus *c);

struct dt_load { /* since the machine began, in seconds */
    /* of each CPU: anything but idle, time stolen by a hypervisor too */
    double busy_s[DT_LOAD_CPUS];
    double own_s; /* of this process and its children that have ended */
    double at_s;
    bool known;
};
/* Of the text of /proc/stat, with ticks_per_s. */
void dt_load_parse(const char *text, double ticks_per_s, struct dt_load *out);
void dt_load_read(struct dt_load *out);
/* Time that others took of these CPUs from a to b, in cores: 1 = all of one.  Below 0: not known.
 */
double dt_load_foreign(const struct dt_load *a, const struct dt_load *b,
                       const struct dt_load_cpus *c);
/* The n CPUs of `c` that were least busy from a to b, in their order. */
void dt_load_least_busy(const struct dt_load *a, const struct dt_load *b,
                        const struct dt_load_cpus *c, int n, struct dt_load_cpus *out);

/* Runs the reference kernel on all these CPUs at once for about `seconds`: products of small
 * matrices in the first-level cache and sums over memory beyond the second, always the same number
 * of both.  *round_s: the median time of a round, the mean of all CPUs: work that others do now and
 * then does not show in it, only how fast the machine is. */
enum dt_status dt_load_reference(const struct dt_load_cpus *c, double seconds, struct dt_error *err,
                                 double *round_s);

#endif
