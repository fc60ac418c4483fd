/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Bringing what is measured on a core to one speed of this core (comm/reference.h). */
#ifndef DT_EXEC_TRAIN_PROFILER_SPEED_H
#define DT_EXEC_TRAIN_PROFILER_SPEED_H

#include "comm/reference.h"

struct dt_profiler_speed { /* zero: nothing is changed */
    struct dt_load_reference *reference;
    double base_s, last_s; /* its time at the speed that times are brought to; when it ran last */
};
/* To the speed at which the kernel takes base_s on so many threads; 0 = its speed now. */
enum dt_status dt_profiler_speed_open(double base_s, int threads, struct dt_error *err,
                                      struct dt_profiler_speed *out);
void dt_profiler_speed_close(struct dt_profiler_speed *s);
/* Runs the kernel: what times measured since it ran last are multiplied with.  *steady, unless NULL: the speed was the same
 * before and after. */
double dt_profiler_speed_factor(struct dt_profiler_speed *s, bool *steady);

#endif
