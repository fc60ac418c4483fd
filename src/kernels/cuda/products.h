/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * cuBLASLt, which is loaded at run time: the functions that we use. */
#ifndef DT_KERNELS_CUDA_PRODUCTS_H
#define DT_KERNELS_CUDA_PRODUCTS_H

#include "kernels/cuda/cuda.h"

#include <cublasLt.h>

#define DT_CUDA_LT_FUNCTIONS(X)                                                                    \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(Matmul)

struct dt_cuda_lt {
#define X(name) decltype(&cublasLt##name) name;
    DT_CUDA_LT_FUNCTIONS(X)
#undef X
};
/* Loaded once; NULL with `err` filled when it is not there. */
const struct dt_cuda_lt *dt_cuda_lt_load(struct dt_error *err);

#endif
