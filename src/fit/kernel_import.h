/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 *   traces --rules--> observations --n, median, p10, p90--> rows of a profile
 *              '----> time that no rule maps, by kernel */
#ifndef DT_FIT_KERNEL_IMPORT_H
#define DT_FIT_KERNEL_IMPORT_H

#include "fit/kernel_trace.h"
#include "core/profile/profile_schema.h"

enum { DT_KIMPORT_TOP = 10 };

struct dt_import_kernels_sums { /* times are sums over kernels, which may have run side by side */
    int64_t kernels, mapped, ignored, unmapped;
    double ns, mapped_ns, ignored_ns, unmapped_ns;
    int64_t observations;
    int64_t assumed_dtype; /* of mapped: nobody says the element type of their op */
    /* of unmapped: a rule fits, but the op has no or several element types; may be fp32 or TF32;
     * or nobody says its type and the kernel's name denies the one assumed */
    int64_t mixed_dtype, unknown_math, denied_dtype;
};
struct dt_import_kernels_name { /* time of a kernel that no rule maps */
    const char *name;
    int64_t kernels;
    double ns;
};
struct dt_import_kernels; /* what has been read so far, of any number of files */

/* `dtype`: of ops whose rule and trace name none and that are no collectives. */
enum dt_status dt_import_kernels_new(const char *dtype, struct dt_error *err,
                                     struct dt_import_kernels **out);
void dt_import_kernels_free(struct dt_import_kernels *k);
/* Applies the rules to a trace, which is sorted for it.  `source`: index in the table that the rows
 * will go to.  Adds to *sums. */
enum dt_status dt_import_kernels_trace(struct dt_import_kernels *k, struct dt_import_trace *t,
                                       const struct dt_import_rules *rules, int source,
                                       struct dt_error *err, struct dt_import_kernels_sums *sums);
/* One observation of an op, of times that were measured without a trace; dtype "any". */
enum dt_status dt_import_kernels_observe(struct dt_import_kernels *k,
                                         const struct dt_profile_row *row, double ns,
                                         struct dt_error *err);
/* Up to DT_KIMPORT_TOP names, most time first (ties by name); returns how many. */
int dt_import_kernels_top(struct dt_import_kernels *k, struct dt_import_kernels_name *top);
/* Replaces or adds the rows in `t`, one per (dtype, op, phase, dims, source), all on `device` (an
 * index of t).  *rows: how many. */
enum dt_status dt_import_kernels_finish(struct dt_import_kernels *k, int device,
                                        struct dt_error *err, struct dt_profile_table *t,
                                        size_t *rows);

#endif
