/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The event engine: walks a program in virtual time.
 *
 * int64 nanoseconds; total order of events (time, priority, sequence).  Without network and noise it equals
 * dt_timeline_eval to the nanosecond (a property test). */
#ifndef DT_SIM_ENGINE_H
#define DT_SIM_ENGINE_H

#include "core/schedule/timeline.h"
#include "sim/network.h"
#include "sim/noise.h"

struct dt_engine; /* reusable workspace: no allocation inside dt_engine_run once sized */
enum dt_status dt_engine_new(struct dt_error *err, struct dt_engine **out);
void dt_engine_free(struct dt_engine *e);
/* network NULL = no contention; noise NULL = off.  alpha_ns (dt_durations) is needed with a network. */
enum dt_status dt_engine_run(struct dt_engine *e, const struct dt_program *p,
                             const struct dt_durations *dur, struct dt_network *network,
                             const struct dt_sim_noise *noise, struct dt_error *err,
                             struct dt_timeline *out);
uint64_t dt_engine_events(const struct dt_engine *e);
/* Windows: while no collective of many lanes is under way, lanes that share neither transfers nor links
 * are simulated one part after the other, each in its caches.  On from the start; off is for tests. */
void dt_engine_set_windows(struct dt_engine *e, bool on);
/* A program that is run again is prepared once (the default); for programs that are run once, that is not worth the look. */
void dt_engine_set_memory(struct dt_engine *e, bool on);
uint32_t dt_engine_windows(const struct dt_engine *e); /* of the last run */

#endif
