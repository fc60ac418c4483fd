/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images: formats, limits, PNG in and out, and the road from bytes to a fitted image.  JPEG is in
 * image_jpeg.c, WebP in image_webp.c, resizing in resize.c. */
#include "exec/data/image.h"

#include "base/mem.h"
#include "exec/data/image_impl.h"

#include <png.h>
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

/* ---- PNG, through libpng's simplified interface (it converts all kinds of pixels, and gamma) ----
 */

static enum dt_status png_begin(const uint8_t *bytes, size_t len,
                                const struct dt_image_limits *limits, struct dt_error *err,
                                png_image *p)
{
    memset(p, 0, sizeof *p);
    p->version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_memory(p, bytes, len)) {
        enum dt_status st = dt_error_set(err, DT_ERR_INPUT, "PNG: %s", p->message);
        png_image_free(p);
        return st;
    }
    if (dt_image_check(p->width, p->height, limits, err) != DT_OK) {
        png_image_free(p);
        return DT_ERR_INPUT;
    }
    return DT_OK;
}

/* Its chunk eXIf (PNG 3, 11.3.3.4), which libpng's simplified interface does not hand out. */
static enum dt_status png_orientation(const uint8_t *b, size_t len, struct dt_error *err, int *out)
{
    size_t at = 8;

    while (len - at >= 12) {
        size_t n =
            (size_t)b[at] << 24 | (size_t)b[at + 1] << 16 | (size_t)b[at + 2] << 8 | b[at + 3];

        if (n > len - at - 12)
            break;
        if (memcmp(b + at + 4, "eXIf", 4) == 0)
            return dt_image_exif_orientation(b + at + 8, n, err, out);
        at += n + 12;
    }
    *out = 1;
    return DT_OK;
}

static enum dt_status png_decode(const uint8_t *bytes, size_t len,
                                 const struct dt_image_limits *limits, struct dt_error *err,
                                 struct dt_image *out)
{
    png_image p;
    struct dt_image img = {0};
    enum dt_status st;
    size_t n;
    bool alpha;
    int up;
    DT_TRY(png_begin(bytes, len, limits, err, &p));
    /* libpng would lay it over white in linear light; WebP, and what others train on, is laid in the
     * image's own values. */
    alpha = p.format & PNG_FORMAT_FLAG_ALPHA;
    p.format = alpha ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
    p.flags |=
        PNG_IMAGE_FLAG_16BIT_sRGB; /* values of 16 bits are not linear unless the file says so */
    img.w = (int)p.width;
    img.h = (int)p.height;
    n = (size_t)img.w * (size_t)img.h;
    img.px = dt_malloc(n * (alpha ? 4 : 3));
    if (!img.px) {
        png_image_free(&p);
        return dt_error_nomem(err, "an image");
    }
    if (!png_image_finish_read(&p, NULL, img.px, 0, NULL)) {
        st = dt_error_set(err, DT_ERR_INPUT, "PNG: %s", p.message);
        png_image_free(&p);
    } else {
        if (alpha)
            dt_image_over_white(img.px, n, img.px);
        st = png_orientation(bytes, len, err, &up);
    }
    if (st == DT_OK)
        st = dt_image_orient(up, err, &img);
    if (st == DT_OK)
        *out = img;
    else
        dt_image_free(&img);
    return st;
}

enum dt_status dt_image_encode_png(const struct dt_image *img, int channels, struct dt_error *err,
                                   uint8_t **out, size_t *len)
{
    png_image p = {.version = PNG_IMAGE_VERSION,
                   .width = (png_uint_32)img->w,
                   .height = (png_uint_32)img->h,
                   .format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB};
    size_t n = (size_t)img->w * (size_t)img->h;
    png_alloc_size_t size;
    uint8_t *grey = NULL, *buf;
    if (channels == 1) {
        grey = dt_malloc(n);
        if (!grey)
            return dt_error_nomem(err, "an image");
        for (size_t i = 0; i < n; i++)
            grey[i] = img->px[3 * i];
    }
    size = PNG_IMAGE_PNG_SIZE_MAX(p);
    buf = dt_malloc(size);
    if (!buf) {
        dt_free(grey);
        return dt_error_nomem(err, "a PNG file");
    }
    if (!png_image_write_to_memory(&p, buf, &size, 0, grey ? grey : img->px, 0, NULL)) {
        dt_free(buf);
        dt_free(grey);
        return dt_error_set(err, DT_ERR_INTERNAL, "PNG: %s", p.message);
    }
    dt_free(grey);
    *out = buf;
    *len = size;
    return DT_OK;
}

/* ---- any format ---- */

enum dt_status dt_image_size(const uint8_t *bytes, size_t len, const struct dt_image_limits *limits,
                             struct dt_error *err, int *w, int *h)
{
    png_image p;
    int up;
    switch (dt_image_sniff(bytes, len)) {
    case DT_IMAGE_JPEG:
        return dt_image_jpeg_size(bytes, len, limits, err, w, h);
    case DT_IMAGE_WEBP:
        return dt_image_webp_size(bytes, len, limits, err, w, h);
    case DT_IMAGE_PNG:
        DT_TRY(png_begin(bytes, len, limits, err, &p));
        *w = (int)p.width;
        *h = (int)p.height;
        png_image_free(&p);
        DT_TRY(png_orientation(bytes, len, err, &up));
        dt_image_oriented_size(up, w, h);
        return DT_OK;
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
        st = png_decode(bytes, len, limits, err, out);
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
