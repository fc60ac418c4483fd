/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Traces of GPU kernels as profilers write them: which kernels ran for how long, and the ranges
 * (NVTX, annotations, operators) in which a host thread launched them. */
#ifndef DT_FIT_KERNEL_TRACE_H
#define DT_FIT_KERNEL_TRACE_H

#include "fit/kernel_rules.h"
#include "base/mem.h"

struct dt_import_trace_range {
    int64_t thread, start_ns, end_ns; /* thread: a host thread */
    const char *text;
    bool op; /* an operator of the framework, with what is known of its inputs */
    int64_t id;
    const struct dt_import_trace_inputs *inputs; /* NULL = nothing */
    size_t parent;                               /* the range open when it began + 1; 0 = none */
};
struct dt_import_trace_kernel {
    int64_t thread, at_ns; /* host thread and time of the launch */
    int64_t duration_ns;
    const char *name;
    bool has_op;
    int64_t op_id; /* of the operator that launched it, if has_op */
    size_t range;  /* the innermost range around the launch + 1; 0 = none */
    size_t op;     /* the operator's range + 1; 0 = none */
};
struct dt_import_trace { /* a zeroed struct is an empty trace */
    char device[48];     /* "A100-SXM4-80GB"; "" where the trace does not say */
    char other[48];      /* a device of another kind that has kernels, or may have; "" = none */
    bool by_time; /* launches are not in the trace: ranges are those around the kernels' times */
    struct dt_arena arena; /* owns all text */
    struct dt_import_trace_range *ranges;
    struct dt_import_trace_kernel *kernels;
    size_t n_ranges, cap_ranges, n_kernels, cap_kernels;
};

/* Longest time of one kernel: sums over a trace then stay in 63 bits. */
#define DT_KTRACE_DURATION_MAX_NS INT64_C(100000000000)

void dt_import_trace_free(struct dt_import_trace *t);
enum dt_status dt_import_trace_add_range(struct dt_import_trace *t,
                                         const struct dt_import_trace_range *r,
                                         struct dt_error *err);
enum dt_status dt_import_trace_add_kernel(struct dt_import_trace *t,
                                          const struct dt_import_trace_kernel *k,
                                          struct dt_error *err);
/* "NVIDIA H100 80GB HBM3" -> device "H100 80GB HBM3"; one more of another name is the other. */
void dt_import_trace_add_device(struct dt_import_trace *t, const char *name);
/* Puts every kernel into the ranges around its launch; sorts both.  O(n log n). */
enum dt_status dt_import_trace_attach(struct dt_import_trace *t, struct dt_error *err);

/* An Nsight Systems export (nsys export --type sqlite).  Its schema is read from the file. */
enum dt_status dt_import_trace_read_nsys(const char *path, struct dt_error *err,
                                         struct dt_import_trace *out);
/* A Kineto trace (torch.profiler, export_chrome_trace). */
enum dt_status dt_import_trace_parse_kineto(const char *name, const char *text, size_t len,
                                            struct dt_error *err, struct dt_import_trace *out);

#endif
