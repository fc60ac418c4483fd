/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Activation functions and gated units. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

/* f(x), and its derivative in *d. */
template <enum dt_kernel_act ACT> __device__ __forceinline__ float value(float x, float *d)
{
    /* tanh form (Hendrycks & Gimpel 2016): x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
    const float c = 0.7978845608f, k = 0.044715f;
    float s, slope;

    if constexpr (ACT == DT_ACT_RELU) {
        *d = x > 0 ? 1.0f : 0.0f;
        return x > 0 ? x : 0.0f;
    } else if constexpr (ACT == DT_ACT_GELU_ERF) {
        s = 0.5f * (1 + erff(x * 0.70710678f));
        *d = s + x * 0.39894228f * __expf(-0.5f * x * x);
        return x * s;
    } else if constexpr (ACT == DT_ACT_SIGMOID) {
        s = 1 / (1 + __expf(-x));
        *d = s * (1 - s);
        return s;
    } else {
        float u;

        if constexpr (ACT == DT_ACT_GELU_TANH) {
            u = 2 * c * (x + k * x * x * x);
            slope = 2 * c * (1 + 3 * k * x * x);
        } else if constexpr (ACT == DT_ACT_QUICK_GELU) {
            u = 1.702f * x;
            slope = 1.702f;
        } else {
            u = x;
            slope = 1;
        }
        s = 1 / (1 + __expf(-u));
        /* where s is 0 or 1 for good, the cube's slope must not make 0 times infinity of it */
        *d = s * (1 - s) > 0 ? s + x * s * (1 - s) * slope : s;
        return x * s;
    }
}

#define BY_ACT(act, ...)                                                                           \
    do {                                                                                           \
        switch (act) {                                                                             \
        case DT_ACT_GELU_TANH: {                                                                   \
            constexpr dt_kernel_act ACT = DT_ACT_GELU_TANH;                                        \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case DT_ACT_GELU_ERF: {                                                                    \
            constexpr dt_kernel_act ACT = DT_ACT_GELU_ERF;                                         \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case DT_ACT_QUICK_GELU: {                                                                  \
            constexpr dt_kernel_act ACT = DT_ACT_QUICK_GELU;                                       \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case DT_ACT_SILU: {                                                                        \
            constexpr dt_kernel_act ACT = DT_ACT_SILU;                                             \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case DT_ACT_SIGMOID: {                                                                     \
            constexpr dt_kernel_act ACT = DT_ACT_SIGMOID;                                          \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case DT_ACT_RELU:                                                                          \
        case DT_ACT_N: {                                                                           \
            constexpr dt_kernel_act ACT = DT_ACT_RELU;                                             \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        }                                                                                          \
    } while (0)

template <enum dt_kernel_act ACT, typename T, int V>
__global__ void act_kernel(int64_t n, const T *x, const T *dy, T *y)
{
    int64_t step = (int64_t)V * gridDim.x * blockDim.x;

    for (int64_t i = V * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x); i < n; i += step) {
        float f[V], g[V], d;

        dt_cu_load<V>(f, x + i);
        if (dy)
            dt_cu_load<V>(g, dy + i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float r = value<ACT>(f[j], &d);

            f[j] = dy ? g[j] * d : r;
        }
        dt_cu_store<V>(y + i, f);
    }
}

/* dy NULL: y = f(x); else y = dy f'(x) */
static void act_run(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, const void *dy, void *y)
{
    if (n == 0)
        return;
    DT_BY_TYPE(dtype, DT_BY_WIDTH(n % (16 / sizeof(T)) == 0 && dt_cuda_aligned(x, dy, y),
                                  BY_ACT(act, DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS,
                                                        0, (act_kernel<ACT, T, V>), n, (const T *)x,
                                                        (const T *)dy, (T *)y))));
}

static void act_fwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, void *y)
{
    act_run(q, act, dtype, n, x, NULL, y);
}

static void act_bwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t n, const void *x, const void *dy, void *dx)
{
    act_run(q, act, dtype, n, x, dy, dx);
}

/* n elements of y; gate and up: of h, `width` apart */
template <enum dt_kernel_act ACT, typename T, int V>
__global__ void glu_kernel(int64_t n, int64_t width, int64_t gate, int64_t up, const T *h,
                           const T *dy, T *out)
{
    int64_t step = (int64_t)V * gridDim.x * blockDim.x;

    for (int64_t i = V * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x); i < n; i += step) {
        int64_t at = i / width * 2 * width + i % width;
        float a[V], b[V], g[V], d;

        dt_cu_load<V>(a, h + at + gate);
        dt_cu_load<V>(b, h + at + up);
        if (!dy) {
#pragma unroll
            for (int j = 0; j < V; j++)
                a[j] = value<ACT>(a[j], &d) * b[j];
            dt_cu_store<V>(out + i, a);
            continue;
        }
        dt_cu_load<V>(g, dy + i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float f = value<ACT>(a[j], &d);

            a[j] = g[j] * b[j] * d;
            b[j] = g[j] * f;
        }
        dt_cu_store<V>(out + at + gate, a);
        dt_cu_store<V>(out + at + up, b);
    }
}

static void glu_run(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, const void *dy,
                    void *out)
{
    int64_t n = rows * width, gate = gate_last ? width : 0, up = width - gate;

    if (n == 0)
        return;
    DT_BY_TYPE(dtype,
               DT_BY_WIDTH(width % (16 / sizeof(T)) == 0 && dt_cuda_aligned(h, dy, out),
                           BY_ACT(act, DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0,
                                                 (glu_kernel<ACT, T, V>), n, width, gate, up,
                                                 (const T *)h, (const T *)dy, (T *)out))));
}

static void glu_fwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, void *y)
{
    glu_run(q, act, dtype, rows, width, gate_last, h, NULL, y);
}

static void glu_bwd(struct dt_device_queue *q, enum dt_kernel_act act, enum dt_dtype dtype,
                    int64_t rows, int64_t width, bool gate_last, const void *h, const void *dy,
                    void *dh)
{
    glu_run(q, act, dtype, rows, width, gate_last, h, dy, dh);
}

void dt_cuda_act(struct dt_kernels *k)
{
    k->act_fwd = act_fwd;
    k->act_bwd = act_bwd;
    k->glu_fwd = glu_fwd;
    k->glu_bwd = glu_bwd;
}
