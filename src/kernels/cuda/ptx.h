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

/* The compiler forgets what it has made of these four bytes, and makes it again where it is needed once more: that takes
 * fewer registers than keeping it. */
__device__ __forceinline__ void dt_cu_forget(unsigned &x)
{
#ifdef __CUDACC__
    asm volatile("" : "+r"(x));
#else
    (void)x;
#endif
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

/* ---- warps: what an associative and commutative `Op` makes of the x of all lanes, the same bits in each ---- */

#ifndef __CUDACC__
template <typename F, typename Op> static void dt_cu_imitate_fold(unsigned char *all)
{
    F x[32];

    for (int i = 0; i < 32; i++)
        memcpy(&x[i], all + 64 * i, sizeof(F));
    for (int by = 16; by > 0; by /= 2)
        for (int i = 0; i < by; i++)
            x[i] = Op()(x[i], x[i + by]);
    memcpy(all, x, sizeof(F));
}
#endif
template <typename Op, typename F> __device__ __forceinline__ F dt_cu_warp_fold(F x)
{
#ifdef __CUDACC__
    for (int by = 16; by > 0; by /= 2)
        x = Op()(x, __shfl_xor_sync(0xffffffffu, x, by));
#else
    memcpy(&x, cucpu_warp(~0u, &x, sizeof(x), __FILE__, __LINE__, dt_cu_imitate_fold<F, Op>),
           sizeof(x));
#endif
    return x;
}

/* ---- tensor cores: c[16,8] += a[16,16] b[16,8], bf16 products, fp32 sums ----
 *
 * Lane l, g = l / 4, t = l % 4, holds (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
 *   a[0] row g, columns 2t 2t+1; a[1] row g+8; a[2] row g, columns 2t+8 2t+9; a[3] row g+8 of those
 *   b[0] rows 2t 2t+1 of column g; b[1] rows 2t+8 2t+9
 *   c[0] c[1] row g, columns 2t 2t+1; c[2] c[3] row g+8 */
#ifndef __CUDACC__
static inline void dt_cu_imitate_mma(unsigned char *all)
{
    float a[16][16], b[16][8], c[16][8];
    auto each = [&](auto &&fn) {
        for (int lane = 0; lane < 32; lane++) {
            unsigned mine[10];

            memcpy(mine, all + 64 * lane, sizeof(mine));
            fn(all + 64 * lane, mine, lane / 4, 2 * (lane % 4));
        }
    };
    auto low = [](unsigned u) { return __uint_as_float(u << 16); };
    auto high = [](unsigned u) { return __uint_as_float(u & 0xffff0000u); };

    each([&](unsigned char *, const unsigned *x, int g, int t) {
        for (int i = 0; i < 4; i++) {
            a[g + i % 2 * 8][t + i / 2 * 8] = low(x[i]);
            a[g + i % 2 * 8][t + i / 2 * 8 + 1] = high(x[i]);
        }
        for (int i = 0; i < 2; i++) {
            b[t + 8 * i][g] = low(x[4 + i]);
            b[t + 8 * i + 1][g] = high(x[4 + i]);
        }
        memcpy(&c[g][t], x + 6, 8);
        memcpy(&c[g + 8][t], x + 8, 8);
    });
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                c[i][j] += a[i][k] * b[k][j];
    each([&](unsigned char *to, const unsigned *, int g, int t) {
        memcpy(to, &c[g][t], 8);
        memcpy(to + 8, &c[g + 8][t], 8);
    });
}
template <bool TURNED> static void dt_cu_imitate_load(unsigned char *all)
{
    uint16_t x[32][8];

    for (int lane = 0; lane < 32; lane++) {
        const void *row;

        memcpy(&row, all + 64 * lane, sizeof(row));
        memcpy(x[lane], row, 16);
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 2; j++) {
                int row = lane / 4, column = 2 * (lane % 4) + j;

                memcpy(all + 64 * lane + 4 * i + 2 * j,
                       &x[8 * i + (TURNED ? column : row)][TURNED ? row : column], 2);
            }
}
#endif
__device__ __forceinline__ void dt_cu_mma(float c[4], const unsigned a[4], const unsigned b[2])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    unsigned mine[10] = {a[0], a[1], a[2], a[3], b[0], b[1]};

    memcpy(mine + 6, c, 16);
    memcpy(c,
           cucpu_warp(~0u, mine, sizeof(mine), __FILE__, __LINE__, dt_cu_imitate_mma) +
               64 * cucpu_lane(),
           16);
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
    memcpy(r,
           cucpu_warp(~0u, &row, sizeof(row), __FILE__, __LINE__, dt_cu_imitate_load<false>) +
               64 * cucpu_lane(),
           16);
#endif
}
__device__ __forceinline__ void dt_cu_load_matrices_turned(unsigned r[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
#else
    memcpy(r,
           cucpu_warp(~0u, &row, sizeof(row), __FILE__, __LINE__, dt_cu_imitate_load<true>) +
               64 * cucpu_lane(),
           16);
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
