/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What becomes of a training step, judged by its loss and its gradient norm before anything is
 * stepped.
 *
 *   not finite         -> skip, roll back or stop
 *   above the limit    -> warn, skip, roll back or stop:  a spike
 *   else               -> the step is made, its loss joins the window
 *
 *   limit = median + max(deviations * 1.4826 * median |loss - median|, median / 10)
 *
 * over the losses of the last steps that were made.  A median and its deviation are not moved by
 * the few losses that stand out, a falling loss only raises the limit, and the tenth keeps a loss
 * that hardly varies from being alarmed by nothing.  Pure: the same numbers give the same verdict
 * on every rank. */
#ifndef DT_CORE_JOB_GUARD_H
#define DT_CORE_JOB_GUARD_H

#include <stdbool.h>
#include <stdint.h>

enum dt_guard_action {
    DT_GUARD_OFF,
    DT_GUARD_WARN,
    DT_GUARD_STOP,
    DT_GUARD_SKIP,
    DT_GUARD_ROLLBACK
};
extern const char *const dt_guard_action_names[]; /* "off", "warn", ..., NULL */
enum dt_guard_cause { DT_GUARD_NONE, DT_GUARD_NONFINITE, DT_GUARD_SPIKE };

enum { DT_GUARD_WINDOW_MIN = 16, DT_GUARD_WINDOW_MAX = 1024 };

struct dt_guard_options {
    int nonfinite;      /* stop, skip or rollback */
    int nonfinite_most; /* steps skipped in a row, or rollbacks without progress; then it stops */
    int spike;          /* any */
    int spike_most;     /* the same; skipped ones are no spike any more then, but the new level */
    double deviations;
    int window; /* losses; spikes are looked for once there are DT_GUARD_WINDOW_MIN */
};
void dt_guard_defaults(struct dt_guard_options *o);

struct dt_guard {
    struct dt_guard_options o;
    double losses[DT_GUARD_WINDOW_MAX]; /* a ring */
    int64_t seen;                       /* put into it */
    int skipped[2];                     /* in a row: not finite, spikes */
    int rollbacks;                      /* since a step beyond `trouble` was made */
    int64_t trouble;                    /* the highest step that was rolled back */
};
struct dt_guard_verdict {
    enum dt_guard_cause cause;
    enum dt_guard_action action; /* DT_GUARD_OFF: none */
    int nth, most;               /* of skips or rollbacks, this one included; most 0: not counted */
    double median, limit;        /* of a spike */
};
void dt_guard_init(struct dt_guard *g, const struct dt_guard_options *o);
/* May the step be made?  (With a warning it may.) */
static inline bool dt_guard_applies(const struct dt_guard_verdict *v)
{
    return v->action <= DT_GUARD_WARN;
}
/* Of an iteration.  Changes the guard's memory: to be asked once for each. */
struct dt_guard_verdict dt_guard_judge(struct dt_guard *g, int64_t step, double loss,
                                       double grad_norm);
/* The parameters themselves are not finite: skipping does not help. */
struct dt_guard_verdict dt_guard_lost(struct dt_guard *g, int64_t step);
/* Does it ever roll back? */
bool dt_guard_rolls_back(const struct dt_guard_options *o);

#endif
