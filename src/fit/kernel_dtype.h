/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The element type of an op of a trace.  It is that of the op, not of each of its kernels: a
 * product in TF32 and the reduction of its parts are one observation. */
#ifndef DT_FIT_KERNEL_DTYPE_H
#define DT_FIT_KERNEL_DTYPE_H

#include "fit/kernel_rules.h"

/* What the operators and kernels of an op say; sets of bits, 1 << enum dt_import_type. */
struct dt_import_types {
    unsigned operands; /* types of the operators' inputs */
    unsigned names;    /* types that names of kernels tell */
};
enum dt_import_type_why { /* why an op has no type */
                          DT_KDTYPE_OK,
                          DT_KDTYPE_ASSUMED, /* it has: nobody said one, so it is the default */
                          DT_KDTYPE_MIXED, /* integers, several types, or one that no profile has */
                          DT_KDTYPE_MATH,  /* fp32 or TF32: no name of a kernel tells */
                          DT_KDTYPE_DENIED, /* nobody says the type of the operands, and a kernel's name
                                           denies the  default */
};

/* "c10::BFloat16" -> DT_KTYPE_BF16; also the names of versions before PyTorch 2. */
enum dt_import_type dt_import_type_of(const char *name);
/* Adds what an operator's inputs say: all that have sizes, but for the indices of a lookup. */
void dt_import_types_inputs(struct dt_import_types *t, enum dt_kop_family family,
                            const struct dt_import_trace_inputs *in);
void dt_import_types_kernel(struct dt_import_types *t, const char *name);
/* The type of an op, of those that all its kernels and their operators say.  `annotated`: a range
 * names the op, so that operators of integers in it are helpers.  `fallback`: where nobody says
 * one.  *dtype is set if OK or ASSUMED. */
enum dt_import_type_why dt_import_types_decide(const struct dt_import_types *t,
                                               enum dt_kop_family family, bool annotated,
                                               const char *fallback, const char **dtype);

#endif
