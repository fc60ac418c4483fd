/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Runs of a program in which lanes that share GPUs take turns (schedule_turns.c).  By which rule, and what becomes of the
 * turns: schedule_colocate.c. */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_TURNS_H
#define DT_CORE_SCHEDULE_SCHEDULE_TURNS_H

#include "core/schedule/schedule_impl.h"

/* What ops wait for so that lanes take turns, and when the run that it comes from has ended. */
struct dt_sched_turns {
    uint32_t *before_n;    /* per op: entries of `before`; NULL: none are noted */
    uint32_t (*before)[2]; /* (op, what it waits for), those of an op side by side */
    uint32_t n, cap;
    int64_t end_ns;           /* INT64_MAX: there was no run, or it was given up */
    uint32_t *order, n_order; /* ops as they ended, members of a group side by side */
};
/* silent: only for runs that are. */
enum dt_status dt_sched_turns_new(const struct dt_program *p, bool silent, struct dt_error *err,
                                  struct dt_sched_turns *out);
void dt_sched_turns_free(struct dt_sched_turns *t);

struct dt_sched_turns_rule {
    bool longest;     /* the op behind which most time passes first; else the oldest */
    bool keeps;       /* an op that is blocked keeps its free GPUs */
    bool silent;      /* turns and order are not noted: when the run ends is all that is asked */
    int64_t limit_ns; /* a run that will certainly end later is given up */
};

/* What the runs of a program share; its memory is the arena's of `s`. */
struct dt_sched_turns_runs;
/* NULL: out of memory.  ns: per op. */
struct dt_sched_turns_runs *dt_sched_turns_prepare(struct dt_sched *s, const struct dt_program *p,
                                                   const int64_t *ns);
/* How much time passes behind every op, which rules and limits of later runs ask. */
void dt_sched_turns_find_behind(struct dt_sched_turns_runs *g);
/* Behind dt_sched_turns_find_behind(): do GPUs stand idle for so little of a run that ends then that turns by another rule cannot
 * end much sooner? */
bool dt_sched_turns_are_dense(const struct dt_sched_turns_runs *g, int64_t end_ns);
/* DT_ERR_INFEASIBLE: lanes wait for each other. */
enum dt_status dt_sched_turns_run(struct dt_sched_turns_runs *g,
                                  const struct dt_sched_turns_rule *rule, struct dt_error *err,
                                  struct dt_sched_turns *t);
/* The run in which ops begin as soon as they can in the order t->order, which has every op behind what it waits for and
 * members of a group side by side: when each ends (in place of what is behind it), turns (unless it is silent, into a `t` that
 * has none) and t->end_ns. */
enum dt_status dt_sched_turns_follow(struct dt_sched_turns_runs *g, bool silent,
                                     struct dt_error *err, struct dt_sched_turns *t);

#endif
