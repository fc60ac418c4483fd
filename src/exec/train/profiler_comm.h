/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Measuring this machine: messages and collectives between ranks of one host, as the executor's
 * communication thread carries them. */
#ifndef DT_EXEC_TRAIN_PROFILER_COMM_H
#define DT_EXEC_TRAIN_PROFILER_COMM_H

#include "core/profile/profile_schema.h"
#include "comm/transport.h"

struct dt_profiler_comm_options {
    struct dt_transport *transport; /* at least two ranks, all of which call */
    int64_t bytes_max;              /* largest buffer; sizes are 4 KiB times powers of 4 below */
    int repeats;                    /* of each; 0 = 15 */
    /* what times measured since the last call are multiplied with, on every rank; NULL = nothing */
    double (*to_base)(void *ctx);
    void *ctx;
};
/* Collective.  Rank 0 adds rows of op send_recv (one way between ranks 0 and 1, half of there and back), and of
 * all_reduce, reduce_scatter and all_gather among the first 2, 4, 8, ... ranks and among all of them, and with each of
 * these one of op carry: what a core of rank 0 did for it.  They have these numbers of device, dtype and source; `out`
 * is NULL at the others. */
enum dt_status dt_profiler_comm(const struct dt_profiler_comm_options *o, int device, int dtype,
                                int source, struct dt_error *err, struct dt_profile_table *out);

#endif
