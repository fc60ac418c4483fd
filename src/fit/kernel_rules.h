/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rules that say which op of a profile a kernel of a trace is.  Format: doc/formats.md. */
#ifndef DT_FIT_KERNEL_RULES_H
#define DT_FIT_KERNEL_RULES_H

#include "core/model/model.h"
#include "base/status.h"

enum {
    DT_KTRACE_OPERANDS = 8,
    DT_KTRACE_AXES = 8,
    DT_KTRACE_DEPTH = 32, /* ranges around a launch that are looked at, innermost first */
};

enum dt_import_type { /* of elements; OTHER: integers, and what no profile has */
                      DT_KTYPE_NONE,
                      DT_KTYPE_BF16,
                      DT_KTYPE_FP16,
                      DT_KTYPE_FP32,
                      DT_KTYPE_FP64,
                      DT_KTYPE_TF32, /* never of an input */
                      DT_KTYPE_OTHER,
                      DT_KTYPE_N
};
struct dt_import_trace_inputs { /* of the operator that launched a kernel */
    int n, axes[DT_KTRACE_OPERANDS];
    int64_t size[DT_KTRACE_OPERANDS][DT_KTRACE_AXES];
    enum dt_import_type type[DT_KTRACE_OPERANDS]; /* NONE: not a tensor, or not said */
};
struct dt_import_trace_what { /* what a trace says about a kernel; NULL = nothing */
    const char *kernel, *cpu_op;
    const struct dt_import_trace_inputs *inputs;
    int n_ranges; /* around the launch, innermost first */
    const char *range[DT_KTRACE_DEPTH];
};
struct dt_import_hit {
    bool ignore, unmapped; /* no op: not wanted; or wanted, but not to be had */
    bool sum;              /* the kernels of one range or operator are one observation */
    int range;             /* which of what->range matched; -1: the rule asks for none */
    const char *dtype;     /* the rule's; NULL = not stated */
    enum dt_kop_family family;
    enum dt_kop_phase phase;
    int64_t d[6];
};

struct dt_import_rules;
enum dt_status dt_import_rules_parse(const char *name, const char *text, size_t len,
                                     struct dt_error *err, struct dt_import_rules **out);
enum dt_status dt_import_rules_read(const char *path, struct dt_error *err,
                                    struct dt_import_rules **out);
void dt_import_rules_free(struct dt_import_rules *r);
size_t dt_import_rules_count(const struct dt_import_rules *r);

/* Which rules' kernel and cpu_op patterns fit, may[0..count).  These repeat a thousandfold in a
 * trace where ranges hardly do, and their names are long. */
void dt_import_rules_select(const struct dt_import_rules *r, const char *kernel, const char *cpu_op,
                            bool *may);
/* The first rule that fits: its patterns match and all its dims can be had.  `may`: of the same
 * kernel and cpu_op. */
bool dt_import_rules_match(const struct dt_import_rules *r, const bool *may,
                           const struct dt_import_trace_what *w, struct dt_import_hit *hit);

#endif
