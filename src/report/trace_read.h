/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the trace writers share: the lanes and ops of a run, read from the runs file in order. */
#ifndef DT_REPORT_TRACE_READ_H
#define DT_REPORT_TRACE_READ_H

#include "report/compare.h"
#include "core/schedule/program.h"

struct dt_trace_run {
    int n_lanes;
    bool executed;
};
struct dt_trace_op {
    const char *name; /* of its kind */
    enum dt_op_kind kind;
    int lane, chunk, part, mb; /* mb -1 = of no microbatch */
    int64_t bytes, begin_ns, end_ns;
    int from, to; /* lanes of a message; -1 = none */
    int64_t nth;  /* of the messages between these two, from 0 */
};
struct dt_trace_data { /* what a rank did for a batch meanwhile */
    const char *work;  /* "load", "order" */
    int rank;
    int lane; /* the first of the rank's; -1 = none */
    int64_t batch;
    int64_t begin_ns, end_ns;
    int64_t shown_ns; /* its begin, or where the iteration begins if that is later */
};
struct dt_trace_sink {
    void *ctx;
    enum dt_status (*begin)(void *ctx, const struct dt_trace_run *run, struct dt_error *err);
    void (*lane)(void *ctx, int lane, const char *module, int replica, int stage);
    void (*op)(void *ctx, const struct dt_trace_op *op);
    void (*data)(void *ctx, const struct dt_trace_data *d);
};
/* begin, then every lane, then every op in program order, then data in order of ranks and time.  DT_ERR_INPUT when the run is not there
 * or has kept no ops.  A NULL sink only fills *out. */
enum dt_status dt_trace_read(const struct dt_run_ref *run, const struct dt_trace_sink *sink,
                             struct dt_error *err, struct dt_trace_run *out);

extern const char *const dt_trace_threads[DT_RES_N];

#endif
