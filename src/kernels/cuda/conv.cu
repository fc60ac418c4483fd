/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Convolutions as products: the pixels under a filter side by side in a row ("patch"), for as many images at
 * a time as SCRATCH_BYTES have room for, at least one.  That is 5 images of 320 channels at 64 x 64, or 20,480 rows of
 * a product: with 320 columns, 480 tiles of 128 x 128 for the 132 processors of an H100. */
#include "kernels/cuda/dnn.h"

enum { THREADS = 256, SCRATCH_BYTES = 128 << 20 };

struct geometry {
    int64_t h, w, oh, ow;
    int c, kernel, stride, pad;
};

static struct geometry geometry_of(const struct dt_kernel_conv *c)
{
    return {c->h,
            c->w,
            dt_kernel_conv_out(c->h, c),
            dt_kernel_conv_out(c->w, c),
            c->c_in,
            c->kernel,
            c->stride,
            c->pad};
}

/* patch[n, oh, ow][ky, kx, c] */
template <typename T, int V>
__global__ void take_kernel(struct geometry g, int64_t n, const T *x, T *patch)
{
    int64_t row = (int64_t)g.kernel * g.kernel * g.c;

    for (int64_t i = V * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x); i < n;
         i += V * (int64_t)gridDim.x * blockDim.x) {
        int64_t pixel = i / row, at = i % row, place = at / g.c;
        int64_t ox = pixel % g.ow, oy = pixel / g.ow % g.oh, image = pixel / (g.ow * g.oh);
        int64_t px = ox * g.stride - g.pad + place % g.kernel;
        int64_t py = oy * g.stride - g.pad + place / g.kernel;
        float f[V] = {};

        if (px >= 0 && px < g.w && py >= 0 && py < g.h)
            dt_cu_load<V>(f, x + ((image * g.h + py) * g.w + px) * g.c + at % g.c);
        dt_cu_store<V>(patch + i, f);
    }
}

/* dx (+)= what its places in all patches have */
template <typename T, int V>
__global__ void give_kernel(struct geometry g, int64_t n, const T *patch, T *dx, bool add)
{
    int64_t row = (int64_t)g.kernel * g.kernel * g.c;

    for (int64_t i = V * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x); i < n;
         i += V * (int64_t)gridDim.x * blockDim.x) {
        int64_t c = i % g.c, x = i / g.c % g.w, y = i / g.c / g.w % g.h,
                image = i / g.c / g.w / g.h;
        float s[V] = {}, f[V];

        if (add)
            dt_cu_load<V>(s, dx + i);
        for (int ky = 0; ky < g.kernel; ky++) {
            int64_t oy = y + g.pad - ky;

            if (oy < 0 || oy % g.stride != 0 || oy / g.stride >= g.oh)
                continue;
            for (int kx = 0; kx < g.kernel; kx++) {
                int64_t ox = x + g.pad - kx;

                if (ox < 0 || ox % g.stride != 0 || ox / g.stride >= g.ow)
                    continue;
                dt_cu_load<V>(f, patch +
                                     ((image * g.oh + oy / g.stride) * g.ow + ox / g.stride) * row +
                                     (ky * g.kernel + kx) * (int64_t)g.c + c);
                for (int j = 0; j < V; j++)
                    s[j] += f[j];
            }
        }
        dt_cu_store<V>(dx + i, s);
    }
}

/* dw[out][in][places] (+)= from[out][places][in] */
__global__ void turn_back(int64_t n, int64_t in, int64_t places, const float *from, float *dw,
                          bool add)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t out = i / (in * places), c = i / places % in, place = i % places;
        float f = from[(out * places + place) * in + c];

        dw[i] = add ? dw[i] + f : f;
    }
}

/* Is every pixel its own patch? */
static bool is_plain(const struct dt_kernel_conv *c)
{
    return c->kernel == 1 && c->stride == 1 && c->pad == 0;
}

/* A convolution, image group by image group. */
struct walk {
    struct geometry g;
    int64_t pixels, row, in; /* of an image: output pixels; elements of a patch; input elements */
    int64_t group;           /* images at a time */
    void *patch;
};

static bool walk_new(struct dt_device_queue *q, const struct dt_kernel_conv *c, size_t more,
                     struct walk *w)
{
    size_t one;

    w->g = geometry_of(c);
    w->pixels = w->g.oh * w->g.ow;
    w->row = (int64_t)c->kernel * c->kernel * c->c_in;
    w->in = c->h * c->w * c->c_in;
    one = (size_t)(w->pixels * w->row) * dt_dtype_bytes(c->dtype);
    w->group = one > 0 ? (int64_t)(SCRATCH_BYTES / one) : c->n;
    w->group = w->group < 1 ? 1 : w->group < c->n ? w->group : c->n;
    if (is_plain(c))
        w->group = c->n;
    one = is_plain(c) ? 0 : (one * (size_t)w->group + 255) / 256 * 256;
    w->patch = dt_cuda_scratch(q, DT_SCRATCH_OUTER, one + more + 16);
    return w->patch != NULL;
}

/* The patches of images `at` .. at + m - 1. */
template <typename T>
static const void *patches(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                           const struct walk *w, int64_t m, const T *x)
{
    int64_t n = m * w->pixels * w->row;

    if (is_plain(c))
        return x;
    DT_BY_WIDTH(c->c_in % (16 / sizeof(T)) == 0 && dt_cuda_aligned(x),
                DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0, (take_kernel<T, V>), w->g,
                          n, x, (T *)w->patch));
    return w->patch;
}

template <typename T>
static void forward(struct dt_device_queue *q, const struct dt_kernel_conv *c, struct walk *w,
                    const T *x, const void *weight, const float *bias, const T *residual, T *y)
{
    for (int64_t i = 0; i < c->n; i += w->group) {
        int64_t m = c->n - i < w->group ? c->n - i : w->group, at = i * w->pixels * c->c_out;

        dt_cuda_product_bias(q, m * w->pixels, c->c_out, w->row,
                             {patches<T>(q, c, w, m, x + i * w->in), c->dtype, w->row, false},
                             {weight, c->dtype, w->row, true}, bias,
                             residual ? residual + at : NULL, c->c_out, y + at);
    }
}

static void conv_fwd(struct dt_device_queue *q, const struct dt_kernel_conv *c, const void *x,
                     const struct dt_device_weight *weight, const float *bias, const void *residual,
                     void *y)
{
    struct walk w;

    if (c->n == 0 || dt_cuda_dnn_conv_fwd(q, c, x, dt_cuda_weight(q, weight), bias, residual, y) ||
        !walk_new(q, c, 0, &w))
        return;
    DT_BY_TYPE(c->dtype, forward<T>(q, c, &w, (const T *)x, dt_cuda_weight(q, weight), bias,
                                    (const T *)residual, (T *)y));
}

template <typename T>
static void backward_input(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                           struct walk *w, const T *dy, const void *weight, T *dx, bool add)
{
    for (int64_t i = 0; i < c->n; i += w->group) {
        int64_t m = c->n - i < w->group ? c->n - i : w->group, n = m * w->in;
        struct dt_cuda_matrix d = {dy + i * w->pixels * c->c_out, c->dtype, c->c_out, false};
        struct dt_cuda_matrix f = {weight, c->dtype, w->row, false};
        T *to = dx + i * w->in;

        if (is_plain(c)) {
            dt_cuda_product(q, m * w->pixels, w->row, c->c_out, d, f, add, c->dtype, w->row, to);
            continue;
        }
        dt_cuda_product(q, m * w->pixels, w->row, c->c_out, d, f, false, c->dtype, w->row,
                        w->patch);
        DT_BY_WIDTH(c->c_in % (16 / sizeof(T)) == 0 && dt_cuda_aligned(to),
                    DT_LAUNCH(q, dt_cuda_grid(q, n / V, THREADS), THREADS, 0, (give_kernel<T, V>),
                              w->g, n, (const T *)w->patch, to, add));
    }
}

static void conv_bwd_input(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                           const void *dy, const struct dt_device_weight *weight, void *dx,
                           bool add)
{
    struct walk w;

    if (c->n == 0 || dt_cuda_dnn_conv_bwd_input(q, c, dy, dt_cuda_weight(q, weight), dx, add) ||
        !walk_new(q, c, 0, &w))
        return;
    DT_BY_TYPE(c->dtype,
               backward_input<T>(q, c, &w, (const T *)dy, dt_cuda_weight(q, weight), (T *)dx, add));
}

template <typename T>
static void backward_weight(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                            struct walk *w, const T *x, const T *dy, float *dw, bool add,
                            float *dbias, bool add_bias)
{
    for (int64_t i = 0; i < c->n; i += w->group) {
        int64_t m = c->n - i < w->group ? c->n - i : w->group;
        const struct dt_cuda_gradients g = {c->dtype,
                                            m * w->pixels,
                                            c->c_out,
                                            w->row,
                                            patches<T>(q, c, w, m, x + i * w->in),
                                            dy + i * w->pixels * c->c_out,
                                            dw,
                                            dbias,
                                            add || i > 0,
                                            add_bias || i > 0};

        dt_cuda_product_gradients(q, &g);
    }
}

/* By our products, for want of cuDNN's. */
static void weight_by_products(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                               const void *x, const void *dy, float *dw, float *dbias, bool add)
{
    int64_t places = (int64_t)c->kernel * c->kernel, n = c->c_out * c->c_in * places;
    size_t turned = places > 1 ? sizeof(float) * (size_t)n : 0, patch = 0;
    float *sum = dw;
    struct walk w;

    if (!walk_new(q, c, turned, &w))
        return;
    if (!is_plain(c))
        patch = ((size_t)(w.group * w.pixels * w.row) * dt_dtype_bytes(c->dtype) + 255) / 256 * 256;
    if (places > 1)
        sum = (float *)((char *)w.patch + patch);
    DT_BY_TYPE(c->dtype, backward_weight<T>(q, c, &w, (const T *)x, (const T *)dy, sum,
                                            places > 1 ? false : add, dbias, add));
    if (places > 1)
        DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, turn_back, n, (int64_t)c->c_in,
                  places, (const float *)sum, dw, add);
}

static void conv_bwd_weight(struct dt_device_queue *q, const struct dt_kernel_conv *c,
                            const void *x, const void *dy, float *dw, float *dbias, bool add)
{
    int64_t places = (int64_t)c->kernel * c->kernel, n = c->c_out * c->c_in * places;
    struct dt_kernel_span whole = {n, dw};
    const float *sum = NULL;

    if (c->n == 0) {
        if (dw && !add)
            q->dev->k->zero(q, 1, &whole);
    } else if (dw) {
        sum = dt_cuda_dnn_conv_bwd_weight(q, c, x, dy);
        if (sum)
            DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, turn_back, n, (int64_t)c->c_in,
                      places, sum, dw, add);
        else
            weight_by_products(q, c, x, dy, dw, dbias, add);
    }
    if (dbias && (c->n == 0 || !dw || sum))
        q->dev->k->bias_bwd(q, c->dtype,
                            c->n * dt_kernel_conv_out(c->h, c) * dt_kernel_conv_out(c->w, c),
                            c->c_out, dy, dbias, add);
}

void dt_cuda_conv(struct dt_kernels *k)
{
    k->conv_fwd = conv_fwd;
    k->conv_bwd_input = conv_bwd_input;
    k->conv_bwd_weight = conv_bwd_weight;
}
