/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Weights as products want them: in their type, filters with the channels of a place side by side.  What its
 * owner keeps serves as it is where it is of that type and no filter. */
#include "kernels/cuda/device.h"

extern "C" {
#include "base/mem.h"
}

#include <pthread.h>

enum { THREADS = 256 };

struct dt_device_weight {
    const struct dt_device *dev;
    struct dt_device_weight_shape shape;
    const void *from; /* the master, or what its owner rounded */
    enum dt_dtype from_type;
    void *copy; /* NULL: `from` serves */
    pthread_mutex_t lock;
    bool fresh;
    struct dt_device_queue *by; /* made it, and this came behind */
    cudaEvent_t made;
};

const struct dt_device_weight_shape *dt_cuda_weight_shape(const struct dt_device_weight *w)
{
    return &w->shape;
}

/* [out][in][places] -> [out][places][in] */
template <typename From, typename T>
__global__ void turn_kernel(int64_t n, int64_t in, int64_t places, const From *from, T *copy)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t out = i / (in * places), place = i / in % places, c = i % in;

        copy[i] = dt_cu_from_float<T>(dt_cu_float(from[(out * in + c) * places + place]));
    }
}

static int64_t elements(const struct dt_device_weight_shape *s)
{
    return s->out * s->in * (s->kernel ? (int64_t)s->kernel * s->kernel : 1);
}

template <typename From>
static void turn(struct dt_device_queue *q, struct dt_device_weight *w, int64_t n, int64_t places)
{
    DT_BY_TYPE(w->shape.dtype,
               DT_LAUNCH(q, dt_cuda_grid(q, n, THREADS), THREADS, 0, (turn_kernel<From, T>), n,
                         w->shape.in, places, (const From *)w->from, (T *)w->copy));
}

static void make(struct dt_device_queue *q, struct dt_device_weight *w)
{
    int64_t n = elements(&w->shape), places = (int64_t)w->shape.kernel * w->shape.kernel;

    if (places <= 1)
        q->dev->k->cast(q, n, w->from_type, w->from, w->shape.dtype, w->copy);
    else
        DT_BY_TYPE(w->from_type, turn<T>(q, w, n, places));
    if (q->status == DT_OK)
        dt_cuda_ok(q, cudaEventRecord(w->made, q->stream), "a weight's event");
}

/* Made at the first use after a change; whoever uses it on another queue waits for that. */
const void *dt_cuda_weight(struct dt_device_queue *q, const struct dt_device_weight *shared)
{
    struct dt_device_weight *w = (struct dt_device_weight *)(uintptr_t)shared;

    if (!w->copy)
        return w->from;
    if (q->status != DT_OK)
        return w->copy;
    pthread_mutex_lock(&w->lock);
    if (!w->fresh) {
        make(q, w);
        w->by = q;
        w->fresh = q->status == DT_OK;
    } else if (w->by != q) {
        dt_cuda_ok(q, cudaStreamWaitEvent(q->stream, w->made, 0), "waiting for a weight");
    }
    pthread_mutex_unlock(&w->lock);
    return w->copy;
}

static void weight_free(struct dt_device_weight *w)
{
    if (!w)
        return;
    if (w->copy) {
        w->dev->free(w->dev, w->copy);
        dt_cuda_said(cudaEventDestroy(w->made));
    }
    pthread_mutex_destroy(&w->lock);
    dt_free(w);
}

static enum dt_status weight_new(const struct dt_device *dev,
                                 const struct dt_device_weight_shape *shape, const float *master,
                                 const void *rounded, struct dt_error *err,
                                 struct dt_device_weight **out)
{
    struct dt_device_weight *w = (struct dt_device_weight *)dt_calloc(1, sizeof(*w));
    enum dt_status st = DT_OK;

    if (shape->dtype == DT_BF16 && !dev->info.bf16) {
        dt_free(w);
        return dt_error_set(err, DT_ERR_INPUT, "%s is not to compute in bf16", dev->info.name);
    }
    if (!w)
        return dt_error_nomem(err, "a weight");
    w->dev = dev;
    w->shape = *shape;
    w->from = rounded ? rounded : master;
    w->from_type = rounded ? DT_BF16 : DT_F32;
    pthread_mutex_init(&w->lock, NULL);
    if (shape->dtype != w->from_type || shape->kernel > 1) {
        st = dev->alloc(dev, (size_t)elements(shape) * dt_dtype_bytes(shape->dtype), err, &w->copy);
        if (st == DT_OK && dt_cuda_said(cudaEventCreateWithFlags(
                               &w->made, cudaEventDisableTiming)) != cudaSuccess) {
            dev->free(dev, w->copy);
            w->copy = NULL;
            st = dt_error_set(err, DT_ERR_INTERNAL, "no event for a weight");
        }
    }
    if (st != DT_OK) {
        weight_free(w);
        return st;
    }
    *out = w;
    return DT_OK;
}

static void weight_changed(struct dt_device_queue *q, struct dt_device_weight *w)
{
    (void)q;
    pthread_mutex_lock(&w->lock);
    w->fresh = false;
    pthread_mutex_unlock(&w->lock);
}

void dt_cuda_weights(struct dt_device *dev)
{
    dev->weight_new = weight_new;
    dev->weight_free = weight_free;
    dev->weight_changed = weight_changed;
}
