// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// What the cards are that CUDA on a CPU has, and which one a thread uses.  CUCPU_DEVICES (1): how many.  As in CUDA, a
// thread's first card is number 0, and launches go to streams of the thread's card only.
#include "cuda_cpu_impl.h"

#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

thread_local cudaError_t cucpu_error;
thread_local int cucpu_card;

uint64_t cucpu_setting(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);

    return s && *s ? strtoull(s, nullptr, 10) : otherwise;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    CALL("cudaGetDeviceCount");
    *n = static_cast<int>(cucpu_setting("CUCPU_DEVICES", 1));
    return *n > 0 ? cudaSuccess : cucpu_error = cudaErrorInsufficientDriver;
}
cudaError_t cudaSetDevice(int i)
{
    CALL("cudaSetDevice");
    int n = 0;

    cudaGetDeviceCount(&n);
    if (i < 0 || i >= n)
        return cucpu_error = cudaErrorInvalidValue;
    cucpu_card = i;
    return cudaSuccess;
}
size_t cucpu_shared_most()
{
    return cucpu_setting("CUCPU_SHARED_KIB", 227) << 10;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    CALL("cudaGetDeviceProperties");
    *p = {};
    snprintf(p->name, sizeof(p->name), "CUDA on a CPU");
    p->major = 9;
    p->multiProcessorCount = int(cucpu_setting("CUCPU_PROCESSORS", 2));
    p->totalGlobalMem = size_t(8) << 30;
    p->sharedMemPerBlockOptin = cucpu_shared_most();
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    CALL("cudaDriverGetVersion");
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CALL("cudaDeviceGetStreamPriorityRange");
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
