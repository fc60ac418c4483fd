/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What we use of cuDNN's backend ("graph") interface, declared by ourselves: the library is loaded at run time, so a
 * program is built without its headers.  Values are those of cudnn_graph.h of version 9; tests/test_cudnn_abi.c
 * compares them with it. */
#ifndef DT_KERNELS_CUDA_DNN_API_H
#define DT_KERNELS_CUDA_DNN_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DT_DNN_MAJOR = 9, DT_DNN_SUCCESS = 0, DT_DNN_NOT_SUPPORTED = 3000 };

enum dt_cuda_dnn_kind { /* cudnnBackendDescriptorType_t */
                        DT_DNN_POINTWISE = 0,
                        DT_DNN_CONVOLUTION = 1,
                        DT_DNN_ENGINECFG = 3,
                        DT_DNN_ENGINEHEUR = 4,
                        DT_DNN_EXECUTION_PLAN = 5,
                        DT_DNN_ENGINE = 2,
                        DT_DNN_OPERATION_CONVOLUTION_FORWARD = 10,
                        DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER = 11,
                        DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA = 12,
                        DT_DNN_OPERATION_POINTWISE = 13,
                        DT_DNN_OPERATIONGRAPH = 15,
                        DT_DNN_VARIANT_PACK = 16,
                        DT_DNN_TENSOR = 17,
                        DT_DNN_MATMUL = 18,
                        DT_DNN_OPERATION_MATMUL = 19,
                        DT_DNN_REDUCTION = 21,
                        DT_DNN_OPERATION_REDUCTION = 22,
                        DT_DNN_OPERATION_RESHAPE = 31,
                        DT_DNN_DEVICEPROP = 38
};

enum dt_cuda_dnn_attribute { /* cudnnBackendAttributeName_t */
                             DT_DNN_POINTWISE_MODE = 0,
                             DT_DNN_POINTWISE_MATH_PREC = 1,
                             DT_DNN_POINTWISE_AXIS = 9,
                             DT_DNN_CONVOLUTION_COMP_TYPE = 100,
                             DT_DNN_CONVOLUTION_CONV_MODE = 101,
                             DT_DNN_CONVOLUTION_DILATIONS = 102,
                             DT_DNN_CONVOLUTION_FILTER_STRIDES = 103,
                             DT_DNN_CONVOLUTION_POST_PADDINGS = 104,
                             DT_DNN_CONVOLUTION_PRE_PADDINGS = 105,
                             DT_DNN_CONVOLUTION_SPATIAL_DIMS = 106,
                             DT_DNN_ENGINEHEUR_MODE = 200,
                             DT_DNN_ENGINEHEUR_OPERATION_GRAPH = 201,
                             DT_DNN_ENGINEHEUR_RESULTS = 202,
                             DT_DNN_ENGINEHEUR_DEVICEPROP = 204,
                             DT_DNN_ENGINECFG_ENGINE = 300,
                             DT_DNN_PLAN_HANDLE = 400,
                             DT_DNN_PLAN_ENGINE_CONFIG = 401,
                             DT_DNN_PLAN_WORKSPACE_SIZE = 402,
                             DT_DNN_PLAN_DEVICEPROP = 407,
                             DT_DNN_FORWARD_ALPHA = 700, /* then beta, convolution, w, x, y */
                             DT_DNN_DATA_ALPHA = 706,    /* then beta, convolution, w, dx, dy */
                             DT_DNN_FILTER_ALPHA = 712,  /* then beta, convolution, dw, x, dy */
                             DT_DNN_POINTWISE_DESCRIPTOR = 750,
                             DT_DNN_POINTWISE_X = 751,
                             DT_DNN_POINTWISE_B = 752,
                             DT_DNN_POINTWISE_Y = 753,
                             DT_DNN_POINTWISE_T = 758,
                             DT_DNN_GRAPH_HANDLE = 800,
                             DT_DNN_GRAPH_OPS = 801,
                             DT_DNN_TENSOR_BYTE_ALIGNMENT = 900,
                             DT_DNN_TENSOR_DATA_TYPE = 901,
                             DT_DNN_TENSOR_DIMENSIONS = 902,
                             DT_DNN_TENSOR_STRIDES = 903,
                             DT_DNN_TENSOR_UNIQUE_ID = 906,
                             DT_DNN_TENSOR_IS_VIRTUAL = 907,
                             DT_DNN_TENSOR_IS_BY_VALUE = 908,
                             DT_DNN_PACK_UNIQUE_IDS = 1000,
                             DT_DNN_PACK_DATA_POINTERS = 1001,
                             DT_DNN_PACK_WORKSPACE = 1003,
                             DT_DNN_ENGINE_NUMERICAL_NOTE = 1303,
                             DT_DNN_MATMUL_COMP_TYPE = 1500,
                             DT_DNN_MATMUL_A = 1520, /* then b, c, descriptor */
                             DT_DNN_MATMUL_B = 1521,
                             DT_DNN_MATMUL_C = 1522,
                             DT_DNN_MATMUL_DESCRIPTOR = 1523,
                             DT_DNN_REDUCTION_OPERATOR = 1600,
                             DT_DNN_REDUCTION_COMP_TYPE = 1601,
                             DT_DNN_REDUCTION_X = 1610, /* then y, descriptor */
                             DT_DNN_REDUCTION_Y = 1611,
                             DT_DNN_REDUCTION_DESCRIPTOR = 1612,
                             DT_DNN_RESHAPE_X = 2200,
                             DT_DNN_RESHAPE_Y = 2201,
                             DT_DNN_DEVICEPROP_JSON = 2702
};

enum dt_cuda_dnn_type { /* cudnnBackendAttributeType_t */
                        DT_DNN_T_HANDLE = 0,
                        DT_DNN_T_DATA_TYPE = 1,
                        DT_DNN_T_BOOLEAN = 2,
                        DT_DNN_T_INT64 = 3,
                        DT_DNN_T_FLOAT = 4,
                        DT_DNN_T_VOID_PTR = 6,
                        DT_DNN_T_CONVOLUTION_MODE = 7,
                        DT_DNN_T_HEUR_MODE = 8,
                        DT_DNN_T_NUMERICAL_NOTE = 11,
                        DT_DNN_T_POINTWISE_MODE = 14,
                        DT_DNN_T_DESCRIPTOR = 15,
                        DT_DNN_T_REDUCTION_OPERATOR = 18,
                        DT_DNN_T_CHAR = 24
};

enum { /* cudnnDataType_t */ DT_DNN_FLOAT = 0,
       DT_DNN_INT32 = 4,
       DT_DNN_BF16 = 9,
       DT_DNN_BOOL = 11 };
enum { /* cudnnConvolutionMode_t */ DT_DNN_CROSS_CORRELATION = 1 };
enum { /* cudnnReduceTensorOp_t */ DT_DNN_REDUCE_ADD = 0, DT_DNN_REDUCE_MAX = 3 };
enum { /* cudnnBackendHeurMode_t */ DT_DNN_HEUR_FALLBACK = 2, DT_DNN_HEUR_A = 3 };
enum { /* cudnnBackendNumericalNote_t */ DT_DNN_NOTE_NONDETERMINISTIC = 4, DT_DNN_NOTES = 10 };
enum { /* cudnnPointwiseMode_t */
       DT_DNN_ADD = 0,
       DT_DNN_MUL = 1,
       DT_DNN_DIV = 6,
       DT_DNN_SUB = 9,
       DT_DNN_EXP = 13,
       DT_DNN_LOG = 15,
       DT_DNN_IDENTITY = 21,
       DT_DNN_CMP_GE = 303,
       DT_DNN_GEN_INDEX = 501,
       DT_DNN_SELECT = 601
};

/* Handles and descriptors are pointers, enumerations are ints, a stream is a pointer. */
#define DT_CUDA_DNN_FUNCTIONS(X)                                                                   \
    X(GetVersion, size_t, (void))                                                                  \
    X(GetLastErrorString, void, (char *text, size_t size))                                         \
    X(Create, int, (void **handle))                                                                \
    X(Destroy, int, (void *handle))                                                                \
    X(SetStream, int, (void *handle, void *stream))                                                \
    X(BackendCreateDescriptor, int, (int kind, void **d))                                          \
    X(BackendDestroyDescriptor, int, (void *d))                                                    \
    X(BackendSetAttribute, int, (void *d, int name, int type, int64_t n, const void *p))           \
    X(BackendGetAttribute, int, (void *d, int name, int type, int64_t most, int64_t *n, void *p))  \
    X(BackendFinalize, int, (void *d))                                                             \
    X(BackendExecute, int, (void *handle, void *plan, void *pack))

struct dt_cuda_dnn {
#define X(name, result, args) result(*name) args;
    DT_CUDA_DNN_FUNCTIONS(X)
#undef X
};

#endif
