/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What nccl-tests prints (all_reduce_perf and its siblings), as rows of a profile. */
#ifndef DT_FIT_PROFILE_NCCL_TEXT_H
#define DT_FIT_PROFILE_NCCL_TEXT_H

#include "core/profile/profile_schema.h"

struct dt_import_nccl_counts {
    size_t rows;
    size_t left_out; /* lines of others: NCCL's messages, a command line, a launcher's notes */
};

/* The output of one run or several.  Tags of launchers before a line ("[1,0]<stdout>:", "0: ") are
 * no part of it.  The operation is the program that a line before the times names, else that of the
 * file name; GPUs and hosts are those of the "# Rank" lines, else nThread times nGpus.  Both, and
 * the unit of time, must agree with the bandwidths of every line.  Times out of place and in place
 * are two observations of a row.  DT_ERR_INPUT with the line for anything else that begins like
 * times, for processes that did not know of each other, and for results that nccl-tests found
 * wrong. */
enum dt_status dt_import_nccl_text(const char *name, const char *text, size_t len,
                                   struct dt_profile_table *t, int device, int dtype, int source,
                                   struct dt_error *err, struct dt_import_nccl_counts *counts);

#endif
