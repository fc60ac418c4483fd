/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The last look at figures before they are printed: shares within 0..100 %, times that are times.
 * What is not goes out as an error that names the inputs which are likely to be wrong. */
#ifndef DT_REPORT_SANITY_H
#define DT_REPORT_SANITY_H

#include "core/job/job.h"
#include "report/report.h"

/* DT_ERR_RANGE where a figure cannot be one.  No kernel is faster than the roofline
 * (doc/calibration.md), so neither is a simulated iteration; but of a CPU blocks may be measured as
 * a whole, beside a peak that is only assumed. */
enum dt_status dt_report_check(const struct dt_report *r, const struct dt_plan *p,
                               const struct dt_cluster *c, struct dt_error *err);
/* DT_ERR_INFEASIBLE where GPUs, or hosts, do not hold all iterations: which, and by how much. */
enum dt_status dt_report_check_memory(const struct dt_report *r, const struct dt_cluster *c,
                                      struct dt_error *err);
/* To an error of status DT_ERR_RANGE: adds those of the job's figures that are far from anything
 * known, and places it at the first of them.  Returns `st`. */
enum dt_status dt_report_suspect(const struct dt_job *j, enum dt_status st, struct dt_error *err);

#endif
