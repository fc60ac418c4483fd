/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images in memory: decoding JPEG, PNG and WebP, encoding PNG, resizing and cropping.
 *
 * An image is 8-bit RGB, rows from the top, no padding.  Transparency is laid over white; images
 * are turned upright as EXIF says, and sizes are those of the upright image; an animation is its
 * first frame.  Sizes are checked against limits before anything is allocated for them.
 */
#ifndef DT_EXEC_DATA_IMAGE_H
#define DT_EXEC_DATA_IMAGE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_image {
    int w, h;
    uint8_t *px; /* [h][w][3]; dt_free */
};

enum dt_image_format { DT_IMAGE_UNKNOWN, DT_IMAGE_JPEG, DT_IMAGE_PNG, DT_IMAGE_WEBP };

struct dt_image_limits {
    int side_max;       /* pixels; 0 = DT_IMAGE_SIDE_MAX */
    int64_t pixels_max; /* 0 = DT_IMAGE_PIXELS_MAX */
};
enum {
    DT_IMAGE_SIDE_MAX = 16384,    /* what the sample-size CSV can hold (core/model/samples.h) */
    DT_IMAGE_PIXELS_MAX = 1 << 26 /* 64 Mi pixels, 192 MiB decoded */
};

enum dt_image_filter {
    DT_FILTER_AUTO,    /* area to shrink, bilinear to enlarge, each axis by itself */
    DT_FILTER_AREA,    /* mean over the covered area */
    DT_FILTER_BILINEAR /* triangle; widened when shrinking, so that nothing is skipped */
};

enum dt_image_fit {
    DT_FIT_NONE,    /* as stored */
    DT_FIT_MAX,     /* larger side cut to `side`, shape kept; smaller images stay */
    DT_FIT_CROP,    /* side x side: the largest square of the middle */
    DT_FIT_STRETCH, /* side x side, shape not kept */
};
extern const char *const dt_image_fit_names[]; /* NULL-terminated, in the order of the enum */

struct dt_image_spec { /* what a consumer wants to have */
    enum dt_image_fit fit;
    int side; /* pixels; unused with DT_FIT_NONE */
    enum dt_image_filter filter;
};

/* By the first bytes, never by a name. */
enum dt_image_format dt_image_sniff(const uint8_t *bytes, size_t len);
/* Width and height from the header alone.  DT_ERR_INPUT for anything else than an image within the
 * limits (NULL = default limits). */
enum dt_status dt_image_size(const uint8_t *bytes, size_t len, const struct dt_image_limits *limits,
                             struct dt_error *err, int *w, int *h);
/* Decodes.  Truncated or corrupt data is DT_ERR_INPUT, never a half image. */
enum dt_status dt_image_decode(const uint8_t *bytes, size_t len,
                               const struct dt_image_limits *limits, struct dt_error *err,
                               struct dt_image *out);
/* Decodes and fits: dt_image_decode + dt_image_apply, but a JPEG much larger than wanted is shrunk
 * by 2, 4 or 8 while it is decoded. */
enum dt_status dt_image_load(const uint8_t *bytes, size_t len, const struct dt_image_limits *limits,
                             const struct dt_image_spec *spec, struct dt_error *err,
                             struct dt_image *out);
/* Size that `spec` gives a w x h image. */
void dt_image_fitted_size(const struct dt_image_spec *spec, int w, int h, int *out_w, int *out_h);
/* A new image, fitted; `src` is left alone. */
enum dt_status dt_image_apply(const struct dt_image *src, const struct dt_image_spec *spec,
                              struct dt_error *err, struct dt_image *out);
/* The rectangle (x, y, rw, rh) of `src` resized to w x h.  The rectangle lies inside the image. */
enum dt_status dt_image_resize(const struct dt_image *src, int x, int y, int rw, int rh, int w,
                               int h, enum dt_image_filter filter, struct dt_error *err,
                               struct dt_image *out);
/* PNG bytes (dt_free).  channels 3 = RGB, 1 = the red channel as grey. */
enum dt_status dt_image_encode_png(const struct dt_image *img, int channels, struct dt_error *err,
                                   uint8_t **out, size_t *len);
/* All pixels 0; DT_ERR_INPUT beyond the default limits. */
enum dt_status dt_image_new(int w, int h, struct dt_error *err, struct dt_image *out);
void dt_image_free(struct dt_image *img);

#endif
