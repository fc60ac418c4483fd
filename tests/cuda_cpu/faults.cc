// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// Kernels with faults, to see that the imitation of a card finds them.  faults WHAT SEED: exits 0 where the result is
// right, 1 where it is wrong; what ends the program says why (tests/test_cuda_cpu.sh).
#include "cuda_cpu_impl.h"

#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/ptx.h"

extern "C" void *cucpu_host(const void *p);

enum { N = 64 };

// Neighbours through shared memory.
static __global__ void turned(bool barrier, int *out)
{
    DT_SHARED(int, room, N);

    room[threadIdx.x] = (int)threadIdx.x;
    if (barrier)
        __syncthreads();
    out[threadIdx.x] = room[N - 1 - threadIdx.x];
}

static __global__ void half_meet(int *out)
{
    if (threadIdx.x < N / 2)
        __syncthreads();
    out[threadIdx.x] = N - 1 - (int)threadIdx.x;
}

static __global__ void two_places(int *out)
{
    if (threadIdx.x < N / 2)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = N - 1 - (int)threadIdx.x;
}

// A copy to shared memory, waited for or not.
template <int LEFT> static __global__ void copied(const int *in, int *out)
{
    DT_SHARED(int, room, N);

    if (threadIdx.x < N / 4)
        dt_cu_copy_async(room + 4 * threadIdx.x, in + 4 * threadIdx.x, true);
    dt_cu_copy_commit();
    dt_cu_copy_wait<LEFT>();
    __syncthreads();
    out[threadIdx.x] = room[threadIdx.x];
}

static __global__ void beyond(int by, int *out)
{
    out[threadIdx.x + by] = N - 1 - (int)threadIdx.x;
}

static bool is(const char *what, const char *name)
{
    return strcmp(what, name) == 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int *out, *in, *seen, right[N], *host = right;
    void *p, *q;
    cudaStream_t s, other;

    if (cudaMalloc(&p, sizeof(right)) != cudaSuccess ||
        cudaMalloc(&q, sizeof(right)) != cudaSuccess ||
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess ||
        cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) != cudaSuccess)
        return 2;
    out = static_cast<int *>(p);
    in = static_cast<int *>(q);
    for (int i = 0; i < N; i++)
        right[i] = N - 1 - i;
    cudaMemcpyAsync(in, right, sizeof(right), cudaMemcpyHostToDevice, s);
    if (is(what, "right"))
        cucpu_start("turned", turned, 1, N, 0, s, true, out);
    else if (is(what, "no barrier"))
        cucpu_start("turned", turned, 1, N, 0, s, false, out);
    else if (is(what, "half a barrier"))
        cucpu_start("half_meet", half_meet, 1, N, 0, s, out);
    else if (is(what, "two barriers"))
        cucpu_start("two_places", two_places, 1, N, 0, s, out);
    else if (is(what, "waited"))
        cucpu_start("copied", copied<0>, 1, N, 0, s, in, out);
    else if (is(what, "not waited"))
        cucpu_start("copied", copied<1>, 1, N, 0, s, in, out);
    else if (is(what, "beyond"))
        cucpu_start("beyond", beyond, 1, N, 0, s, 1, out);
    else if (is(what, "freed")) {
        cudaFree(out);
        cucpu_start("turned", turned, 1, N, 0, s, true, out);
    } else if (is(what, "the host's"))
        cucpu_start("turned", turned, 1, N, 0, s, true, host);
    else if (is(what, "touched"))
        out[0] = 1;
    else if (is(what, "large"))
        cucpu_start("turned", turned, 1, 2048, 0, s, true, out);
    else if (is(what, "not ordered")) /* nothing says that the copy comes first */
        cucpu_start("copied", copied<0>, 1, N, 0, other, in, out);
    else
        return 2;
    seen = static_cast<int *>(cucpu_host(out));
    for (int i = 0; i < N; i++)
        if (seen[i] != right[i])
            return 1;
    cudaFree(out);
    cudaFree(in);
    cudaStreamDestroy(s);
    cudaStreamDestroy(other);
    return 0;
}
