/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images: formats, limits, and the road from bytes to a fitted image.  JPEG is in image_jpeg.c, PNG in
 * image_png.c, WebP in image_webp.c, resizing in resize.c. */
#include "exec/data/image.h"

#include "base/mem.h"
#include "exec/data/image_impl.h"

#include <string.h>

const char *const dt_image_fit_names[] = {"none", "max", "crop", "stretch", NULL};

void dt_image_free(struct dt_image *img)
{
    dt_free(img->px);
    *img = (struct dt_image){0};
}

enum dt_status dt_image_check(int64_t w, int64_t h, const struct dt_image_limits *limits,
                              struct dt_error *err)
{
    int64_t side = limits && limits->side_max ? limits->side_max : DT_IMAGE_SIDE_MAX;
    int64_t pixels = limits && limits->pixels_max ? limits->pixels_max : DT_IMAGE_PIXELS_MAX;
    if (w < 1 || h < 1)
        return dt_error_set(err, DT_ERR_INPUT, "the image has no pixels");
    if (w > side || h > side || w * h > pixels)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "the image claims %lld x %lld pixels; the limits are %lld on a side and "
            "%lld in all",
            (long long)w, (long long)h, (long long)side, (long long)pixels);
    return DT_OK;
}

enum dt_status dt_image_new(int w, int h, struct dt_error *err, struct dt_image *out)
{
    struct dt_image img = {w, h, NULL};
    DT_TRY(dt_image_check(w, h, NULL, err));
    img.px = dt_calloc((size_t)w * (size_t)h, 3);
    if (!img.px)
        return dt_error_nomem(err, "an image");
    *out = img;
    return DT_OK;
}

enum dt_image_format dt_image_sniff(const uint8_t *b, size_t len)
{
    if (len >= 3 && memcmp(b, "\xff\xd8\xff", 3) == 0)
        return DT_IMAGE_JPEG;
    if (len >= 8 && memcmp(b, "\x89PNG\r\n\x1a\n", 8) == 0)
        return DT_IMAGE_PNG;
    if (len >= 12 && memcmp(b, "RIFF", 4) == 0 && memcmp(b + 8, "WEBP", 4) == 0)
        return DT_IMAGE_WEBP;
    return DT_IMAGE_UNKNOWN;
}

static enum dt_status unknown(struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_INPUT, "neither JPEG, PNG nor WebP");
}

/* Writes trail reads. */
void dt_image_over_white(const uint8_t *rgba, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        unsigned a = rgba[4 * i + 3];
        for (size_t k = 0; k < 3; k++)
            out[3 * i + k] = (uint8_t)((rgba[4 * i + k] * a + 255u * (255u - a) + 127) / 255);
    }
}

/* ---- any format ---- */

enum dt_status dt_image_size(const uint8_t *bytes, size_t len, const struct dt_image_limits *limits,
                             struct dt_error *err, int *w, int *h)
{
    switch (dt_image_sniff(bytes, len)) {
    case DT_IMAGE_JPEG:
        return dt_image_jpeg_size(bytes, len, limits, err, w, h);
    case DT_IMAGE_WEBP:
        return dt_image_webp_size(bytes, len, limits, err, w, h);
    case DT_IMAGE_PNG:
        return dt_image_png_size(bytes, len, limits, err, w, h);
    case DT_IMAGE_UNKNOWN:
        break;
    }
    return unknown(err);
}

static enum dt_status decode(const uint8_t *bytes, size_t len, const struct dt_image_limits *limits,
                             const struct dt_image_spec *spec, struct dt_error *err,
                             struct dt_image *out, int *w, int *h)
{
    enum dt_status st = DT_ERR_INTERNAL; /* of no kind */
    switch (dt_image_sniff(bytes, len)) {
    case DT_IMAGE_JPEG:
        return dt_image_jpeg_decode(bytes, len, limits, spec, err, out, w, h);
    case DT_IMAGE_WEBP:
        st = dt_image_webp_decode(bytes, len, limits, err, out);
        break;
    case DT_IMAGE_PNG:
        st = dt_image_png_decode(bytes, len, limits, err, out);
        break;
    case DT_IMAGE_UNKNOWN:
        return unknown(err);
    }
    if (st == DT_OK) {
        *w = out->w;
        *h = out->h;
    }
    return st;
}

enum dt_status dt_image_decode(const uint8_t *bytes, size_t len,
                               const struct dt_image_limits *limits, struct dt_error *err,
                               struct dt_image *out)
{
    int w, h;
    return decode(bytes, len, limits, NULL, err, out, &w, &h);
}

/* Fits `src`, which stands for an image that was w x h before the decoder shrank it. */
static enum dt_status fit(const struct dt_image *src, int w, int h,
                          const struct dt_image_spec *spec, struct dt_error *err,
                          struct dt_image *out)
{
    int ow, oh, x = 0, y = 0, rw = src->w, rh = src->h;
    dt_image_fitted_size(spec, w, h, &ow, &oh);
    if (spec->fit == DT_FIT_CROP) {
        rw = rh = src->w < src->h ? src->w : src->h;
        x = (src->w - rw) / 2;
        y = (src->h - rh) / 2;
    }
    return dt_image_resize(src, x, y, rw, rh, ow, oh, spec->filter, err, out);
}

enum dt_status dt_image_apply(const struct dt_image *src, const struct dt_image_spec *spec,
                              struct dt_error *err, struct dt_image *out)
{
    return fit(src, src->w, src->h, spec, err, out);
}

enum dt_status dt_image_load(const uint8_t *bytes, size_t len, const struct dt_image_limits *limits,
                             const struct dt_image_spec *spec, struct dt_error *err,
                             struct dt_image *out)
{
    struct dt_image img;
    enum dt_status st;
    int w, h, ow, oh;
    DT_TRY(decode(bytes, len, limits, spec, err, &img, &w, &h));
    dt_image_fitted_size(spec, w, h, &ow, &oh);
    if (ow == img.w && oh == img.h) { /* as wide and as high as wanted: nothing was cut either */
        *out = img;
        return DT_OK;
    }
    st = fit(&img, w, h, spec, err, out);
    dt_image_free(&img);
    return st;
}

void dt_image_fitted_size(const struct dt_image_spec *spec, int w, int h, int *out_w, int *out_h)
{
    int64_t side = spec->side, larger = w > h ? w : h;
    *out_w = w;
    *out_h = h;
    if (spec->fit == DT_FIT_CROP || spec->fit == DT_FIT_STRETCH) {
        *out_w = *out_h = spec->side;
    } else if (spec->fit == DT_FIT_MAX && larger > side) { /* to nearest, at least one pixel */
        *out_w = (int)((2 * w * side + larger) / (2 * larger));
        *out_h = (int)((2 * h * side + larger) / (2 * larger));
        *out_w = *out_w < 1 ? 1 : *out_w;
        *out_h = *out_h < 1 ? 1 : *out_h;
    }
}
