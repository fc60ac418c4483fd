/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What kernels need of the machine itself: bf16, launches, tensor cores, asynchronous copies.  The only
 * file with PTX in it.  A compiler that is not CUDA's gets imitations (tests/cuda_cpu), so that every kernel
 * runs, and is tested, on a CPU. */
#ifndef DT_KERNELS_CUDA_PTX_H
#define DT_KERNELS_CUDA_PTX_H

#include <cuda_runtime.h>
#include <stdint.h>

/* ---- bf16 ---- */

struct dt_cu_bf16 {
    uint16_t bits;
};

__device__ __forceinline__ float dt_cu_float(float x)
{
    return x;
}
__device__ __forceinline__ float dt_cu_float(dt_cu_bf16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

/* Two floats, each rounded to the nearest, ties to even; `low` in the lower half. */
__device__ __forceinline__ unsigned dt_cu_pack_bf16(float low, float high)
{
#ifdef __CUDACC__
    unsigned r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    auto half = [](float f) -> unsigned {
        unsigned u = __float_as_uint(f);

        if ((u & 0x7fffffff) > 0x7f800000)
            return 0x7fff; /* as the card makes of every NaN */
        return (u + 0x7fff + (u >> 16 & 1)) >> 16;
    };

    return half(low) | half(high) << 16;
#endif
}

template <typename T> __device__ __forceinline__ T dt_cu_from_float(float x);
template <> __device__ __forceinline__ float dt_cu_from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ dt_cu_bf16 dt_cu_from_float<dt_cu_bf16>(float x)
{
    return dt_cu_bf16{(uint16_t)dt_cu_pack_bf16(x, 0.0f)};
}

/* ---- launches ---- */

#ifdef __CUDACC__
#define DT_CUDA_START(name, kernel, grid, block, shared, stream, ...)                              \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
/* Shared memory of a size that the kernel knows, declared at its beginning; and of one said at the launch. */
#define DT_SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define DT_DYNAMIC_SHARED(T, name)                                                                 \
    extern __shared__ __align__(128) unsigned char dt_dynamic_shared_[];                           \
    T *name = reinterpret_cast<T *>(dt_dynamic_shared_)
#else
#define DT_CUDA_START(name, kernel, grid, block, shared, stream, ...)                              \
    cucpu_start(name, kernel, grid, block, shared, stream, __VA_ARGS__)
#define DT_SHARED(T, name, n)                                                                      \
    T(*const name##_in_)[n] = static_cast<T(*)[n]>(cucpu_shared(sizeof(T) * (n), #name));          \
    T(&name)[n] = *name##_in_
#define DT_DYNAMIC_SHARED(T, name) T *name = static_cast<T *>(cucpu_dynamic_shared())
#endif

/* ---- tensor cores: c[16,8] += a[16,16] b[16,8], bf16 products, fp32 sums ----
 *
 * Lane l, g = l / 4, t = l % 4, holds (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
 *   a[0] row g, columns 2t 2t+1; a[1] row g+8; a[2] row g, columns 2t+8 2t+9; a[3] row g+8 of those
 *   b[0] rows 2t 2t+1 of column g; b[1] rows 2t+8 2t+9
 *   c[0] c[1] row g, columns 2t 2t+1; c[2] c[3] row g+8 */
__device__ __forceinline__ void dt_cu_mma(float c[4], const unsigned a[4], const unsigned b[2])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    const unsigned mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const unsigned char *all = cucpu_warp(~0u, mine, sizeof(mine), __FILE__, __LINE__);
    int lane = cucpu_lane(), g = lane / 4, t = lane % 4;
    auto word = [&](int l, int i) {
        unsigned u;

        memcpy(&u, all + 64 * l + 4 * i, 4);
        return u;
    };
    auto half = [&](unsigned u, int k) { return __uint_as_float(k ? u & 0xffff0000u : u << 16); };

    for (int i = 0; i < 4; i++) {
        int low = i / 2, column = 2 * t + i % 2;

        for (int k = 0; k < 16; k++) {
            unsigned x = word(4 * g + k % 8 / 2, low + (k / 8) * 2);
            unsigned y = word(4 * column + k % 8 / 2, 4 + k / 8);

            c[i] += half(x, k & 1) * half(y, k & 1);
        }
    }
#endif
}

/* Four 8x8 matrices of 16-bit elements from shared memory; lane l names row l % 8 of matrix l / 8 (16 bytes,
 * aligned) and gets elements 2(l%4), 2(l%4)+1 of row l / 4 of each; transposed: of column l / 4. */
__device__ __forceinline__ void dt_cu_load_matrices(unsigned r[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
#else
    const unsigned char *all = cucpu_warp(~0u, &row, sizeof(row), __FILE__, __LINE__);
    int lane = cucpu_lane();

    for (int i = 0; i < 4; i++) {
        const unsigned char *p;

        memcpy(&p, all + 64 * (8 * i + lane / 4), sizeof(p));
        memcpy(&r[i], p + 4 * (lane % 4), 4);
    }
    cucpu_warp(~0u, nullptr, 0, __FILE__, __LINE__);
#endif
}
__device__ __forceinline__ void dt_cu_load_matrices_turned(unsigned r[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
#else
    const unsigned char *all = cucpu_warp(~0u, &row, sizeof(row), __FILE__, __LINE__);
    int lane = cucpu_lane();

    for (int i = 0; i < 4; i++) {
        uint16_t e[2];

        for (int j = 0; j < 2; j++) {
            const unsigned char *p;

            memcpy(&p, all + 64 * (8 * i + 2 * (lane % 4) + j), sizeof(p));
            memcpy(&e[j], p + 2 * (lane / 4), 2);
        }
        r[i] = e[0] | (unsigned)e[1] << 16;
    }
    cucpu_warp(~0u, nullptr, 0, __FILE__, __LINE__);
#endif
}

/* ---- 16 bytes from global to shared memory, landing when waited for; not `there`: zeros ---- */

__device__ __forceinline__ void dt_cu_copy_async(void *shared, const void *global, bool there)
{
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(there ? 16 : 0));
#else
    cucpu_async_copy(shared, global, 16, there ? 16 : 0);
#endif
}
__device__ __forceinline__ void dt_cu_copy_commit()
{
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;");
#else
    cucpu_async_commit();
#endif
}
/* Until at most LEFT of this thread's groups are under way. */
template <int LEFT> __device__ __forceinline__ void dt_cu_copy_wait()
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
#else
    cucpu_async_wait(LEFT);
#endif
}

#endif
