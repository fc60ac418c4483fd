/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Values that were measured elsewhere, to be compared with runs: a CSV of metrics by name (doc/formats.md), or the
 * metrics.jsonl of a training. */
#ifndef DT_REPORT_MEASURED_H
#define DT_REPORT_MEASURED_H

#include "report/run_log.h"
#include "report/run_summary.h"

/* Is `name` such a file rather than a run: NAME.csv, NAME.jsonl, or a folder with a metrics.jsonl. */
bool dt_run_measured_is(const char *name);
enum dt_status dt_run_measured_read(const char *path, struct dt_error *err,
                                    struct dt_run_summary *out);
/* From text; `name` is used in messages. */
enum dt_status dt_run_measured_parse(const char *name, const char *text, size_t len,
                                     struct dt_error *err, struct dt_run_summary *out);
/* Medians of the steps but the first, which warms up, and the 10th and 90th percentile of their times. */
enum dt_status dt_run_measured_log(const struct dt_run_log *log, const char *name,
                                   struct dt_error *err, struct dt_run_summary *out);

#endif
