/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is known about a step that the guard (core/job/guard.h) objected to. */
#ifndef DT_EXEC_TRAIN_TRAIN_TROUBLE_H
#define DT_EXEC_TRAIN_TRAIN_TROUBLE_H

#include "core/job/guard.h"
#include "exec/train/prefetch.h"

enum { DT_EVENT_SAMPLES = 8 };

struct dt_train_event {
    int64_t step;
    struct dt_guard_verdict verdict;
    double loss,
        grad_norm;   /* of all; not known when parameters were found in a checkpoint's copy */
    char module[64]; /* whose loss is not finite; "" = none's */
    struct dt_exec_culprit param, grad;
    char note[256]; /* instead of these: what else was found */
    /* Those whose loss is not finite, else those of the batch; the first few by shard and key. */
    char samples[DT_EVENT_SAMPLES][160];
    int64_t n_samples;
    bool of_batch;
    int64_t to_step; /* rolled back to it; -1 = not */
};

struct dt_train_trouble { /* counts since this process began */
    int64_t nonfinite;    /* iterations whose loss or gradient norm was not finite */
    int64_t spikes;       /* whose loss was beyond the limit */
    int64_t skipped;      /* steps not made, of either; those that were rolled back excepted */
    int64_t rollbacks;
};

/* Looks for the origin; collective, after the iteration of `b`.  Samples are named on rank 0. */
enum dt_status dt_train_trouble_find(const struct dt_setup *s, struct dt_exec *x,
                                     const struct dt_prefetch_batch *b,
                                     const struct dt_exec_result *r, bool first,
                                     struct dt_error *err, struct dt_train_event *e);
/* One line: what, where, and what is done about it. */
void dt_train_trouble_text(const struct dt_train_event *e, char *buf, size_t size);
/* "nonfinite", "spike" */
const char *dt_train_trouble_name(const struct dt_train_event *e);
void dt_train_trouble_count(struct dt_train_trouble *t, const struct dt_guard_verdict *v);

#endif
