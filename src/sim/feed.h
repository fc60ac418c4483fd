/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What feeds the iterations of a simulation, where the job says that preprocessing takes time: one stream of batches,
 * whose releases are kept, so that an iteration can be run again. */
#ifndef DT_SIM_FEED_H
#define DT_SIM_FEED_H

#include "core/job/job.h"
#include "core/schedule/schedule.h"

struct dt_sim_feed;
/* NULL where all input is there from the begin; the job is borrowed. */
enum dt_status dt_sim_feed_open(const struct dt_job *job, int iterations, struct dt_error *err,
                                struct dt_sim_feed **out);
/* Sets p->release_ns (of the program's arena) for the iteration that comes next. */
enum dt_status dt_sim_feed_next(struct dt_sim_feed *f, struct dt_program *p,
                                const struct dt_durations *d, struct dt_error *err,
                                struct dt_sched_supplied *out);
/* That iteration took so long. */
void dt_sim_feed_ran(struct dt_sim_feed *f, int64_t iteration_ns);
/* All iterations have been run once more: will they repeat (dt_sched_stream_settled)? */
enum dt_status dt_sim_feed_settled(struct dt_sim_feed *f, struct dt_error *err, bool *yes);
/* Keeps its releases and what was made as those of this number; sets the same again. */
enum dt_status dt_sim_feed_keep(struct dt_sim_feed *f, int iteration, const struct dt_program *p,
                                const struct dt_sched_supplied *made, struct dt_error *err);
enum dt_status dt_sim_feed_again(const struct dt_sim_feed *f, int iteration, struct dt_program *p,
                                 struct dt_error *err, struct dt_sched_supplied *made);
void dt_sim_feed_close(struct dt_sim_feed *f);

#endif
