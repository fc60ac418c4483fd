/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * WebP through libwebp.  Animations are refused. */
#include "base/mem.h"
#include "exec/data/image_impl.h"

#include <webp/decode.h>

static enum dt_status features(const uint8_t *bytes, size_t len,
                               const struct dt_image_limits *limits, struct dt_error *err,
                               WebPBitstreamFeatures *f)
{
    if (WebPGetFeatures(bytes, len, f) != VP8_STATUS_OK)
        return dt_error_set(err, DT_ERR_INPUT, "WebP: the header is truncated or corrupt");
    if (f->has_animation)
        return dt_error_set(err, DT_ERR_INPUT, "WebP: animations are not supported");
    return dt_image_check(f->width, f->height, limits, err);
}

enum dt_status dt_image_webp_size(const uint8_t *bytes, size_t len,
                                  const struct dt_image_limits *limits, struct dt_error *err,
                                  int *w, int *h)
{
    WebPBitstreamFeatures f;
    DT_TRY(features(bytes, len, limits, err, &f));
    *w = f.width;
    *h = f.height;
    return DT_OK;
}

enum dt_status dt_image_webp_decode(const uint8_t *bytes, size_t len,
                                    const struct dt_image_limits *limits, struct dt_error *err,
                                    struct dt_image *out)
{
    WebPBitstreamFeatures f;
    struct dt_image img;
    size_t n, channels;
    const uint8_t *done;
    DT_TRY(features(bytes, len, limits, err, &f));
    channels = f.has_alpha ? 4 : 3;
    img = (struct dt_image){f.width, f.height, NULL};
    n = (size_t)f.width * (size_t)f.height;
    img.px = dt_malloc(n * channels);
    if (!img.px)
        return dt_error_nomem(err, "an image");
    done = f.has_alpha ? WebPDecodeRGBAInto(bytes, len, img.px, n * 4, f.width * 4)
                       : WebPDecodeRGBInto(bytes, len, img.px, n * 3, f.width * 3);
    if (!done) {
        dt_free(img.px);
        return dt_error_set(err, DT_ERR_INPUT, "WebP: the data is truncated or corrupt");
    }
    for (size_t i = 0; f.has_alpha && i < n; i++) { /* over white, in place: writes trail reads */
        unsigned a = img.px[4 * i + 3];
        for (size_t k = 0; k < 3; k++)
            img.px[3 * i + k] = (uint8_t)((img.px[4 * i + k] * a + 255u * (255u - a) + 127) / 255);
    }
    *out = img;
    return DT_OK;
}
