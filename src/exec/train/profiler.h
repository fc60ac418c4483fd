/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Measuring this machine: every block of a job's model, as the executor runs it.
 *
 * All modules are built whole, fed real sequences and run block by block: forwards in the model's
 * order, backwards in the other, so each block finds the caches as training leaves them.  Once all
 * of it is trained, once nothing is: the backward of the second is the input gradient, the rest of
 * the first's the weight gradient. Rows are of op "block" (core/model/block_key.h) and "adamw", of kind
 * measured. */
#ifndef DT_EXEC_TRAIN_PROFILER_H
#define DT_EXEC_TRAIN_PROFILER_H

#include "core/profile/profile_schema.h"
#include "exec/train/setup.h"

struct dt_profiler_progress {
    int sequences; /* in the microbatch being measured */
    int done, all; /* of these sizes */
};
typedef void dt_profiler_fn(void *ctx, const struct dt_profiler_progress *p);

struct dt_profiler_options {
    const struct dt_setup *setup;
    const struct dt_sequence *const *seqs; /* what microbatches are made of */
    int n_seqs;
    int sequences_max; /* microbatches of 1, 2, 4, ... sequences up to this many; 0 = n_seqs */
    int repeats;       /* of each, at least; 0 = 15 */
    double
        seconds; /* times modules: how long repeats of a size go on after these; 0 = not at all */
    double reference_s; /* the speed of all times, by the reference kernel; 0 = its first time */
    struct dt_transport *transport; /* of several ranks, which measure at once; NULL = alone */
    const char *device;             /* name of the device in the rows */
    dt_profiler_fn *progress;       /* NULL = none */
    void *ctx;
};
/* Collective.  With several ranks also messages and collectives between them
 * (exec/train/profiler_comm.h); rank 0 has all rows.  Adds the rows to `out`, whose source names this
 * host, its CPU or its card and what drives that, the precision and the time.  On a CPU the reference kernel (comm/reference.h) runs between repeats, and all
 * times are those at one speed, at which it takes *reference_s; 0 on a card. */
enum dt_status dt_profiler_blocks(const struct dt_profiler_options *o, struct dt_error *err,
                                  struct dt_profile_table *out, double *reference_s);

/* "measured on HOST, CPU", or of a card: "measured on HOST, NAME (sm_90), VERSIONS"; NULL: no device but the CPU. */
void dt_profiler_origin(const struct dt_device_info *i, char *buf, size_t size);
/* Median, 10th and 90th percentile of n > 0 times (sorted in place), at least 1 ns. */
void dt_profiler_statistics(double *ns, int n, struct dt_profile_row *row);

#endif
