/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images, the inside.  Shared by image*.c only. */
#ifndef DT_EXEC_DATA_IMAGE_IMPL_H
#define DT_EXEC_DATA_IMAGE_IMPL_H

#include "exec/data/image.h"

/* Nobody allocates for an image that has not passed. */
enum dt_status dt_image_check(int64_t w, int64_t h, const struct dt_image_limits *limits,
                              struct dt_error *err);

/* n pixels of RGBA laid over white, in the image's own values; `out` may be `rgba`. */
void dt_image_over_white(const uint8_t *rgba, size_t n, uint8_t *out);

/* Of an EXIF block, with or without its mark: 1 (upright, also where nothing is said) to 8. */
enum dt_status dt_image_exif_orientation(const uint8_t *exif, size_t n, struct dt_error *err,
                                         int *out);
/* The size of a w x h image once it is upright. */
void dt_image_oriented_size(int orientation, int *w, int *h);
/* Turns the image upright. */
enum dt_status dt_image_orient(int orientation, struct dt_error *err, struct dt_image *img);

/* Sizes and pixels of what follows are upright. */
enum dt_status dt_image_jpeg_size(const uint8_t *bytes, size_t len,
                                  const struct dt_image_limits *limits, struct dt_error *err,
                                  int *w, int *h);
/* *w, *h: the size in the file; with a spec the decoded image may be smaller by 2, 4 or 8. */
enum dt_status dt_image_jpeg_decode(const uint8_t *bytes, size_t len,
                                    const struct dt_image_limits *limits,
                                    const struct dt_image_spec *spec, struct dt_error *err,
                                    struct dt_image *out, int *w, int *h);
enum dt_status dt_image_png_size(const uint8_t *bytes, size_t len,
                                 const struct dt_image_limits *limits, struct dt_error *err, int *w,
                                 int *h);
enum dt_status dt_image_png_decode(const uint8_t *bytes, size_t len,
                                   const struct dt_image_limits *limits, struct dt_error *err,
                                   struct dt_image *out);
enum dt_status dt_image_webp_size(const uint8_t *bytes, size_t len,
                                  const struct dt_image_limits *limits, struct dt_error *err,
                                  int *w, int *h);
enum dt_status dt_image_webp_decode(const uint8_t *bytes, size_t len,
                                    const struct dt_image_limits *limits, struct dt_error *err,
                                    struct dt_image *out);

#endif
