/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The rate of the device's own products, which MFU is a share of.
 *
 * A product must be large enough for its rate not to be that of launches: one of 1,024 rows and columns is over on an
 * H100 in 23 us, at 93 TFLOP/s, where a large one reaches 775.  So its side doubles until it takes a
 * millisecond.  Operands are random numbers: a card that multiplies zeros draws less power and is faster.  They are
 * large (0.8 GB at the largest side), and what training wants has other sizes: the memory goes back to the driver. */
#include "exec/train/setup.h"

#include "kernels/kernels.h"

enum { SIDE = 1024, SIDE_MOST = 8192, RUNS = 12, WARM_UP = 3 };
static const uint64_t ENOUGH_NS = 1000000;
static const uint64_t LONG_NS =
    500000000; /* of all runs: what takes so long needs no more of them */

struct peak {
    const struct dt_device *dev;
    enum dt_dtype dtype;
    int side;
    struct dt_device_queue *q;
    struct dt_device_event *event[2];
    struct dt_device_weight *w;
    float *master;
    void *x, *y;
};

static enum dt_status peak_open(struct peak *p, struct dt_error *err)
{
    size_t n = (size_t)p->side * (size_t)p->side;
    struct dt_device_weight_shape shape = {.dtype = p->dtype, .out = p->side, .in = p->side};

    DT_TRY(p->dev->queue_new(p->dev, false, err, &p->q));
    for (int i = 0; i < 2; i++)
        DT_TRY(p->dev->event_new(p->dev, err, &p->event[i]));
    DT_TRY(p->dev->alloc(p->dev, n * sizeof(float), err, (void **)&p->master));
    DT_TRY(p->dev->alloc(p->dev, n * dt_dtype_bytes(p->dtype), err, &p->x));
    DT_TRY(p->dev->alloc(p->dev, n * dt_dtype_bytes(p->dtype), err, &p->y));
    p->dev->k->normal(p->q, DT_F32, (int64_t)n, 1, 1, 0, 1, p->master);
    p->dev->k->normal(p->q, p->dtype, (int64_t)n, 1, 2, 0, 1, p->x);
    return p->dev->weight_new(p->dev, &shape, p->master, NULL, err, &p->w);
}

static void peak_close(struct peak *p)
{
    if (p->w)
        p->dev->weight_free(p->w);
    p->dev->free(p->dev, p->master);
    p->dev->free(p->dev, p->x);
    p->dev->free(p->dev, p->y);
    for (int i = 0; i < 2; i++)
        p->dev->event_free(p->event[i]);
    p->dev->queue_free(p->q);
}

/* The best of several, on the device's own clock; the first ones pack the weight and warm up. */
static enum dt_status best_of(struct peak *p, struct dt_error *err, uint64_t *best)
{
    uint64_t spent = 0;

    for (int i = 0; i < WARM_UP + RUNS; i++) {
        bool counts = i >= WARM_UP || spent > LONG_NS;
        uint64_t ns;

        p->dev->event_record(p->q, p->event[0]);
        p->dev->k->linear_fwd(p->q, p->side, p->x, p->w, NULL, NULL, p->y);
        p->dev->event_record(p->q, p->event[1]);
        DT_TRY(p->dev->queue_sync(p->q, err));
        ns = p->dev->event_ns(p->event[1]) - p->dev->event_ns(p->event[0]);
        spent += ns;
        if (counts && (*best == 0 || ns < *best))
            *best = ns > 0 ? ns : 1;
        if (counts && spent > LONG_NS)
            break;
    }
    return DT_OK;
}

static enum dt_status measure(const struct dt_setup *s, int side, struct dt_error *err,
                              uint64_t *best)
{
    struct peak p = {.dev = s->device, .dtype = s->dtype, .side = side};
    enum dt_status st = peak_open(&p, err);

    if (st == DT_OK)
        st = best_of(&p, err, best);
    peak_close(&p);
    return st;
}

static enum dt_status find_peak(const struct dt_setup *s, struct dt_error *err,
                                struct dt_setup_peak *out)
{
    struct dt_setup_peak peak = {0};

    for (int side = SIDE; side <= SIDE_MOST; side *= 2) {
        uint64_t best = 0;
        enum dt_status st = measure(s, side, err, &best);
        double flops;

        if (st == DT_ERR_NOMEM && peak.side > 0) /* what fits must do */
            break;
        DT_TRY(st);
        flops = 2.0 * side * side * side / ((double)best * 1e-9);
        if (flops > peak.flops)
            peak = (struct dt_setup_peak){.flops = flops, .side = side};
        if (best >= ENOUGH_NS)
            break;
    }
    *out = peak;
    return DT_OK;
}

enum dt_status dt_setup_gemm_peak(const struct dt_setup *s, struct dt_error *err,
                                  struct dt_setup_peak *out)
{
    enum dt_status st = find_peak(s, err, out);

    s->device->memory_trim(s->device);
    return st;
}
