/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * CUDA C++ on a CPU, for tests: included in front of every .cu file that g++ compiles.
 *
 * A block is run by one OS thread; a CUDA thread is a fiber of it.  A fiber runs until it meets the others
 * of its block (barrier) or of its warp (shuffle, vote, tensor-core product), then the next one runs, in an
 * order that is drawn anew for every block and every turn.  Whatever relies on a barrier that is not there
 * meets an order in which it fails; asynchronous copies land only when they are waited for.
 *
 * What this does not have: warp collectives by a part of the lanes (unless the others have ended), cooperative
 * groups, clusters, shared memory with initialisers; nor does it know of bank conflicts, of occupancy, or of a
 * weak order of memory.  Fast intrinsics are exact here, so that results agree within tolerances, not in bits. */
#ifndef DT_TESTS_CUDA_CPU_H
#define DT_TESTS_CUDA_CPU_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* ---- a CUDA thread and what it can do ---- */

struct cucpu_thread {
    uint3 thread, block;
    dim3 dim, grid;
};
/* Of the fiber that runs. */
extern constinit thread_local cucpu_thread *cucpu_self;
#define threadIdx (cucpu_self->thread)
#define blockIdx (cucpu_self->block)
#define blockDim (cucpu_self->dim)
#define gridDim (cucpu_self->grid)
#define warpSize 32

/* Every thread of a block meets the others.  `id` names the place in the program, in reports. */
void cucpu_barrier(const char *file, int line);
#define __syncthreads() cucpu_barrier(__FILE__, __LINE__)
/* The lanes of a warp meet; each brings `bytes` (at most 64) and sees what all have brought: lane l's at
 * [64 * l], valid until its next meeting.  Before anyone goes on, `then` may replace it. */
const unsigned char *cucpu_warp(unsigned mask, const void *mine, size_t bytes, const char *file,
                                int line, void (*then)(unsigned char *all) = NULL);
int cucpu_lane();
/* Ends the program: `what` is wrong in the kernel that runs. */
[[noreturn]] void cucpu_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Shared memory whose size is known to the kernel, the same for all threads of the block, filled with 0xff
 * at first.  The sum of all is limited as on a card. */
void *cucpu_shared(size_t bytes, const char *name);
/* The part whose size is said at the launch. */
void *cucpu_dynamic_shared();

template <typename T> T cucpu_from_lane(unsigned mask, T x, int lane, const char *file, int line)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    const unsigned char *all = cucpu_warp(mask, &x, sizeof(x), file, line);
    T y;

    memcpy(&y, all + 64 * (lane & 31), sizeof(y));
    return y;
}
#define __shfl_sync(mask, x, lane) cucpu_from_lane(mask, x, lane, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, x, with)                                                             \
    cucpu_from_lane(mask, x, cucpu_lane() ^ (with), __FILE__, __LINE__)
#define __shfl_down_sync(mask, x, by)                                                              \
    cucpu_from_lane(mask, x, cucpu_lane() + (by) < 32 ? cucpu_lane() + (by) : cucpu_lane(),        \
                    __FILE__, __LINE__)
#define __syncwarp() ((void)cucpu_warp(~0u, NULL, 0, __FILE__, __LINE__))

/* ---- arithmetic ---- */

#define __expf expf /* the C library has functions of these names, which nobody should call */
#define __logf logf
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __uint_as_float(unsigned u)
{
    float f;

    memcpy(&f, &u, 4);
    return f;
}
static inline unsigned __float_as_uint(float f)
{
    unsigned u;

    memcpy(&u, &f, 4);
    return u;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
static inline int atomicAdd(int *p, int x)
{
    return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}

/* ---- launches ---- */

struct CUstream_st;
typedef CUstream_st *cudaStream_t;

/* `body` is run once per CUDA thread when the stream comes to it. */
void cucpu_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared,
                  cudaStream_t stream, std::function<void()> body);
/* The address that a kernel uses for one that the host holds. */
void *cucpu_seen(const void *p, const char *kernel);

/* Arguments are copied at the launch; pointers among them are translated by their types, structs with
 * pointers by a dt_cu_see of theirs. */
template <typename T> auto cucpu_argument(const char *kernel, const T &x)
{
    if constexpr (std::is_pointer_v<T>) {
        return static_cast<T>(const_cast<std::remove_const_t<std::remove_pointer_t<T>> *>(
            static_cast<const std::remove_const_t<std::remove_pointer_t<T>> *>(
                cucpu_seen(x, kernel))));
    } else if constexpr (requires(T y) { dt_cu_see(y, kernel); }) {
        T y = x;

        dt_cu_see(y, kernel);
        return y;
    } else {
        return x;
    }
}
template <typename... P, typename... A>
void cucpu_start(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                 cudaStream_t stream, const A &...args)
{
    std::tuple<P...> seen(cucpu_argument(name, static_cast<P>(args))...);

    cucpu_launch(name, (const void *)kernel, grid, block, shared, stream,
                 [kernel, seen = std::move(seen)] { std::apply(kernel, seen); });
}

/* ---- what one header of PTX does on a card (kernels/cuda/ptx.h) ---- */

void cucpu_async_copy(void *dst, const void *src, int bytes, int from_src);
void cucpu_async_commit();
void cucpu_async_wait(int left);

#endif
