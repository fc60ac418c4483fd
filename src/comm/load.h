/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What this machine's cores do: /proc/stat. */
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

#endif
