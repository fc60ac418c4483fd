/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A run of the runs file as a trace: Chrome's (JSON), which Perfetto and chrome://tracing open and
 * trace analyses for PyTorch's profiler read, or Perfetto's own (protobuf). */
#ifndef DT_REPORT_TRACE_EXPORT_H
#define DT_REPORT_TRACE_EXPORT_H

#include "report/compare.h"

/* One process per lane, one thread per resource, an arrow from every SEND to its RECV; one process
 * per rank that made batches meanwhile.  lane -1: all; else only this one, as `distributedInfo`
 * says, and its rank if it is the rank's first.  *out is the caller's (dt_free). */
enum dt_status dt_trace_chrome(const struct dt_run_ref *run, int lane, struct dt_error *err,
                               char **out);
/* The same in protobuf, for traces too large for JSON; ops of a resource that overlap get tracks of
 * their own, as slices of a track must nest. */
enum dt_status dt_trace_perfetto(const struct dt_run_ref *run, int lane, struct dt_error *err,
                                 char **out, size_t *size);
/* Lanes of the run. */
enum dt_status dt_trace_lanes(const struct dt_run_ref *run, struct dt_error *err, int *n);

#endif
