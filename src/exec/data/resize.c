/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Resizing: per axis a table of weights (area: how much of each source pixel an output pixel
 * covers; bilinear: a triangle as wide as two source or two output pixels, whichever are larger),
 * rows first across, then down over a ring of resized rows. */
#include "base/mem.h"
#include "exec/data/image_impl.h"

#include <math.h>
#include <string.h>

struct axis { /* output i = sum over k < n[i] of weight[i * taps + k] * source[first[i] + k] */
    int *first, *n;
    float *weight;
    int taps;
};

static void axis_free(struct axis *a)
{
    dt_free(a->first);
    dt_free(a->n);
    dt_free(a->weight);
}

/* Unnormalised weight of source pixel s for the output pixel that covers [begin, begin + scale). */
static double weight_of(bool area, double begin, double scale, int s)
{
    if (area) {
        double lo = begin > s ? begin : s, end = begin + scale;
        double hi = end < s + 1.0 ? end : s + 1.0;
        return hi > lo ? hi - lo : 0;
    }
    double reach = scale > 1 ? scale : 1, d = fabs(s + 0.5 - (begin + 0.5 * scale));
    return d < reach ? 1 - d / reach : 0;
}

static int axis_init(struct axis *a, int from, int to, enum dt_image_filter filter)
{
    double scale = (double)from / to;
    bool area = filter == DT_FILTER_AREA || (filter == DT_FILTER_AUTO && from > to);
    double reach = area ? 0.5 * scale : scale > 1 ? scale : 1;
    *a = (struct axis){.taps = (int)ceil(2 * reach) + 2};
    a->taps = a->taps > from ? from : a->taps;
    a->first = dt_calloc((size_t)to, sizeof *a->first);
    a->n = dt_calloc((size_t)to, sizeof *a->n);
    a->weight = dt_calloc((size_t)to * (size_t)a->taps, sizeof *a->weight);
    if (!a->first || !a->n || !a->weight)
        return -1;
    for (int i = 0; i < to; i++) {
        double begin = i * scale, sum = 0, middle = begin + 0.5 * scale;
        float *w = a->weight + (size_t)i * (size_t)a->taps;
        int s = (int)floor(middle - reach);
        s = s < 0 ? 0 : s;
        while (s < from - 1 && weight_of(area, begin, scale, s) <= 0)
            s++;
        a->first[i] = s;
        for (; a->n[i] < a->taps && s < from; s++) {
            double x = weight_of(area, begin, scale, s);
            if (x <= 0)
                break;
            sum += x;
            w[a->n[i]++] = (float)x;
        }
        if (a->n[i] == 0) { /* rounding at the very edge */
            w[a->n[i]++] = 1;
            sum = 1;
        }
        for (int k = 0; k < a->n[i]; k++)
            w[k] = (float)(w[k] / sum);
    }
    return 0;
}

static void across(const uint8_t *src, const struct axis *a, int w, float *out)
{
    for (int i = 0; i < w; i++) {
        const float *weight = a->weight + (size_t)i * (size_t)a->taps;
        const uint8_t *p = src + 3 * (size_t)a->first[i];
        float r = 0, g = 0, b = 0;
        for (int k = 0; k < a->n[i]; k++, p += 3) {
            r += weight[k] * p[0];
            g += weight[k] * p[1];
            b += weight[k] * p[2];
        }
        out[3 * i] = r;
        out[3 * i + 1] = g;
        out[3 * i + 2] = b;
    }
}

/* Rows of floats are padded to whole blocks, so that the compiler can make vectors of the inner
 * loops. */
enum { BLOCK = 16 };

static void set_row(float *restrict acc, const float *restrict from, float weight, size_t n)
{
    for (size_t j = 0; j < n; j += BLOCK)
        for (size_t k = 0; k < BLOCK; k++)
            acc[j + k] = weight * from[j + k];
}

static void add_row(float *restrict acc, const float *restrict from, float weight, size_t n)
{
    for (size_t j = 0; j < n; j += BLOCK)
        for (size_t k = 0; k < BLOCK; k++)
            acc[j + k] += weight * from[j + k];
}

/* To nearest.  Weights are not negative and sum to 1 but for rounding: only the upper end needs a
 * bound. */
static void round_row(const float *restrict acc, uint8_t *restrict out, size_t n)
{
    for (size_t j = 0; j < n; j += BLOCK)
        for (size_t k = 0; k < BLOCK; k++) {
            int v = (int)(acc[j + k] + 0.5f);
            out[j + k] = (uint8_t)(v > 255 ? 255 : v);
        }
}

static void copy_rows(const struct dt_image *src, int x, int y, struct dt_image *dst)
{
    for (int i = 0; i < dst->h; i++)
        memcpy(dst->px + (size_t)i * (size_t)dst->w * 3,
               src->px + ((size_t)(y + i) * (size_t)src->w + (size_t)x) * 3, (size_t)dst->w * 3);
}

struct rows {          /* scratch */
    float *ring, *acc; /* [taps][stride], [stride] */
    uint8_t *out;      /* [stride] */
    size_t stride;
};

static void resize(const struct dt_image *src, int x, int y, const struct axis *ax,
                   const struct axis *ay, const struct rows *r, struct dt_image *dst)
{
    size_t row = (size_t)dst->w * 3;
    int ready = 0; /* source rows in the ring so far */
    for (int i = 0; i < dst->h; i++) {
        const float *weight = ay->weight + (size_t)i * (size_t)ay->taps;
        if (ready < ay->first[i])
            ready = ay->first[i];
        for (; ready < ay->first[i] + ay->n[i]; ready++)
            across(src->px + ((size_t)(y + ready) * (size_t)src->w + (size_t)x) * 3, ax, dst->w,
                   r->ring + (size_t)(ready % ay->taps) * r->stride);
        for (int k = 0; k < ay->n[i]; k++) {
            const float *from = r->ring + (size_t)((ay->first[i] + k) % ay->taps) * r->stride;
            if (k == 0)
                set_row(r->acc, from, weight[k], r->stride);
            else
                add_row(r->acc, from, weight[k], r->stride);
        }
        round_row(r->acc, r->out, r->stride);
        memcpy(dst->px + (size_t)i * row, r->out, row);
    }
}

static void rows_free(struct rows *r)
{
    dt_free(r->ring);
    dt_free(r->acc);
    dt_free(r->out);
}

static int rows_init(struct rows *r, int taps, int w)
{
    r->stride = ((size_t)w * 3 + BLOCK - 1) / BLOCK * BLOCK;
    r->ring = dt_calloc((size_t)taps * r->stride, sizeof *r->ring);
    r->acc = dt_calloc(r->stride, sizeof *r->acc);
    r->out = dt_malloc(r->stride);
    return r->ring && r->acc && r->out ? 0 : -1;
}

enum dt_status dt_image_resize(const struct dt_image *src, int x, int y, int rw, int rh, int w,
                               int h, enum dt_image_filter filter, struct dt_error *err,
                               struct dt_image *out)
{
    struct dt_image dst = {0};
    struct axis ax = {0}, ay = {0};
    struct rows rows = {0};
    enum dt_status st = DT_OK;
    DT_TRY(dt_image_new(w, h, err, &dst));
    if (rw == w && rh == h) {
        copy_rows(src, x, y, &dst);
        *out = dst;
        return DT_OK;
    }
    if (axis_init(&ax, rw, w, filter) || axis_init(&ay, rh, h, filter) ||
        rows_init(&rows, ay.taps, w))
        st = dt_error_nomem(err, "an image");
    else
        resize(src, x, y, &ax, &ay, &rows, &dst);
    rows_free(&rows);
    axis_free(&ax);
    axis_free(&ay);
    if (st == DT_OK)
        *out = dst;
    else
        dt_image_free(&dst);
    return st;
}
