/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small traces as profilers write them, made from one story, so that what an importer must find is
 * known.  One host thread, five steps (i = 0..4); times in microseconds:
 *
 *   step i |--------------------------------------------------------------|
 *            |-- gemm 512 256 128 --------|  |-- attn 2 64 4 4 32 --|
 *              |-- inner --|
 *                 L     L                        L                     L       L launches
 *   GPU           gemm 100+i, reduce 20          flash 50+i            mystery 30; copy 5
 *
 * The GPU runs each kernel 10 ms after its launch, in the order of the launches: far behind the
 * ranges, so an importer that looks at the kernels' own times finds the wrong ones. */
#ifndef DT_TESTS_KERNEL_TRACES_H
#define DT_TESTS_KERNEL_TRACES_H

#include <stdbool.h>
#include <stdio.h>

enum { KT_STEPS = 5 };
struct kt_nsys {        /* how Nsight Systems versions differ */
    bool names_inline;  /* names as text, not as ids of StringIds */
    bool short_only;    /* no column demangledName */
    bool no_runtime;    /* no launches: the GPU then runs a kernel when it is launched */
    bool no_process;    /* kernels without globalPid */
    bool no_copies;     /* no table of copies */
    bool no_gpu;        /* no TARGET_INFO_GPU */
    bool two_processes; /* a second process uses the same correlation ids for other kernels */
};
/* Makes the file anew; false if SQLite refuses. */
bool kt_write_nsys(const char *path, const struct kt_nsys *how);

struct kt_kineto {             /* how versions of PyTorch differ */
    bool first_names;          /* categories and keys of 2021: Operator, Runtime, external id */
    bool ids_are_correlations; /* the External id of kernels and calls is their correlation */
    bool tf32;                 /* the product is of fp32 operands, in TF32 */
};
/* The same story from torch.profiler: the ranges are record_function()s, the gemm is an aten::addmm
 * with its shapes; a backward pass of one more gemm of 70 and an addition of integers of 3 are
 * there too. */
void kt_write_kineto(FILE *f, const char *device, const struct kt_kineto *how);

#endif
