/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The metrics.jsonl that training writes (doc/formats.md), read back. */
#ifndef DT_REPORT_RUN_LOG_H
#define DT_REPORT_RUN_LOG_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

/* Numbers of a step, by the names that they have in the file. */
#define DT_RUN_LOG_VALUES(X)                                                                       \
    X(loss)                                                                                        \
    X(loss_text)                                                                                   \
    X(loss_image)                                                                                  \
    X(grad_norm)                                                                                   \
    X(lr)                                                                                          \
    X(step_s)                                                                                      \
    X(data_s)                                                                                      \
    X(tokens_per_s)                                                                                \
    X(samples_per_s)                                                                               \
    X(mfu)
enum {
#define ENUMERATOR(name) DT_RUN_LOG_##name,
    DT_RUN_LOG_VALUES(ENUMERATOR)
#undef ENUMERATOR
        DT_RUN_LOG_N
};
extern const char *const dt_run_log_names[DT_RUN_LOG_N + 1]; /* ended by NULL */

struct dt_run_log_step {
    int64_t step;
    uint64_t run;           /* a hash of its run_id; 0: older versions name no run */
    double v[DT_RUN_LOG_N]; /* NAN = null or not there */
};
struct dt_run_log_event { /* the guard objected */
    int64_t step;
    char event[16], action[16];
};
struct dt_run_log {
    struct dt_run_log_step *step; /* in the order of the file: after a rollback numbers repeat */
    int64_t n;
    size_t cap;
    struct dt_run_log_event *event;
    int64_t n_events;
    size_t cap_events;
};
/* A file, or a folder with a metrics.jsonl.  DT_ERR_INPUT with the line that is none of such a log; a last line without
 * an end, which a training that goes on is writing, is left out. */
enum dt_status dt_run_log_read(const char *path, struct dt_error *err, struct dt_run_log *out);
enum dt_status dt_run_log_parse(const char *name, const char *text, size_t len,
                                struct dt_error *err, struct dt_run_log *out);
void dt_run_log_free(struct dt_run_log *l);
/* Leaves the steps of one run, which restarts continue: of that run_id ("": those that name no run), or, of NULL, of the
 * last one that names its run.  Those that name none cannot be told apart and stay.  Returns how many went. */
int64_t dt_run_log_select(struct dt_run_log *l, const char *run_id);
/* Of each step number only what was logged last, in their order: the run as it is kept. */
void dt_run_log_settle(struct dt_run_log *l);

#endif
