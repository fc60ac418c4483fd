/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What nccl-tests prints (all_reduce_perf and its siblings), as rows of a profile. */
#ifndef DT_CORE_PROFILE_NCCL_TEXT_H
#define DT_CORE_PROFILE_NCCL_TEXT_H

#include "core/profile_schema.h"

/* One run's output.  The operation is taken from a line that names the program, else from the file
 * name, else from the reduction operator ("sum": all-reduce); GPUs and hosts from the "# Rank"
 * lines, else from "nGpus".  Times out of place and in place are two observations of a row.
 * DT_ERR_INPUT with the line for anything else, also for results that nccl-tests found wrong. */
enum dt_status dt_nccl_text_import(const char *name, const char *text, size_t len,
                                   struct dt_ptable *t, int device, int dtype, int source,
                                   struct dt_error *err, size_t *rows);

#endif
