/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * libcuda.so.1 for tests/test_cudnn_plans: a driver without a card.  cuDNN compiles kernels for a card of which it has the
 * properties only, and then loads them to see that they can be; here they can.  The names are those that cuDNN 9.19 looks
 * for; everything else that it may call says CUDA_ERROR_STUB_LIBRARY. */
#include <stddef.h>

#define SEEN __attribute__((visibility("default")))
enum { SUCCESS = 0, STUB_LIBRARY = 34, VERSION = 13000 };

#define REFUSES(X)                                                                                 \
    X(cuInit)                                                                                      \
    X(cuCtxGetCurrent)                                                                             \
    X(cuCtxGetDevice)                                                                              \
    X(cuCtxGetLimit)                                                                               \
    X(cuCtxPopCurrent)                                                                             \
    X(cuCtxPushCurrent)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDeviceGetCount)                                                                            \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuDevicePrimaryCtxReset)                                                                     \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuFuncGetAttribute)                                                                          \
    X(cuFuncSetAttribute)                                                                          \
    X(cuKernelGetAttribute)                                                                        \
    X(cuLaunchCooperativeKernel)                                                                   \
    X(cuLaunchKernel)                                                                              \
    X(cuLaunchKernelEx)                                                                            \
    X(cuLibraryLoadFromFile)                                                                       \
    X(cuLinkAddData)                                                                               \
    X(cuLinkComplete)                                                                              \
    X(cuLinkCreate)                                                                                \
    X(cuLinkDestroy)                                                                               \
    X(cuMemcpyDtoH_v2)                                                                             \
    X(cuModuleGetFunction)                                                                         \
    X(cuModuleGetGlobal_v2)                                                                        \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleLoadFatBinary)                                                                       \
    X(cuModuleUnload)                                                                              \
    X(cuOccupancyMaxPotentialClusterSize)                                                          \
    X(cuStreamGetCtx)                                                                              \
    X(cuStreamSynchronize)                                                                         \
    X(cuTensorMapEncodeTiled)                                                                      \
    X(cuGetProcAddress)                                                                            \
    X(cuGetProcAddress_v2)
#define X(name)                                                                                    \
    SEEN int name(void);                                                                           \
    int name(void)                                                                                 \
    {                                                                                              \
        return STUB_LIBRARY;                                                                       \
    }
REFUSES(X)
#undef X

static int something;

#define ACCEPTS(name, ...)                                                                         \
    SEEN int name(__VA_ARGS__);                                                                    \
    int name(__VA_ARGS__)
ACCEPTS(cuDriverGetVersion, int *v)
{
    *v = VERSION;
    return SUCCESS;
}
ACCEPTS(cuGetErrorName, int e, const char **s)
{
    (void)e;
    *s = "CUDA_ERROR_STUB_LIBRARY";
    return SUCCESS;
}
ACCEPTS(cuGetErrorString, int e, const char **s)
{
    (void)e;
    *s = "there is no card";
    return SUCCESS;
}
ACCEPTS(cuLibraryLoadData, void **library)
{
    *library = &something;
    return SUCCESS;
}
ACCEPTS(cuLibraryGetKernel, void **kernel)
{
    *kernel = &something;
    return SUCCESS;
}
ACCEPTS(cuLibraryUnload, void *library)
{
    (void)library;
    return SUCCESS;
}
ACCEPTS(cuKernelSetAttribute, void)
{
    return SUCCESS;
}
