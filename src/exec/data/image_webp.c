/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * WebP through libwebp.  An animation gives its first frame. */
#include "base/mem.h"
#include "exec/data/image_impl.h"

#include <string.h>
#include <webp/decode.h>
#include <webp/demux.h>

static enum dt_status features(const uint8_t *bytes, size_t len,
                               const struct dt_image_limits *limits, struct dt_error *err,
                               WebPBitstreamFeatures *f)
{
    if (WebPGetFeatures(bytes, len, f) != VP8_STATUS_OK)
        return dt_error_set(err, DT_ERR_INPUT, "WebP: the header is truncated or corrupt");
    return dt_image_check(f->width, f->height, limits, err);
}

static enum dt_status corrupt(struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_INPUT, "WebP: the data is truncated or corrupt");
}

static enum dt_status orientation(const uint8_t *bytes, size_t len, struct dt_error *err, int *out)
{
    WebPData data = {bytes, len};
    WebPChunkIterator exif;
    WebPDemuxer *d;
    enum dt_status st = DT_OK;

    *out = 1;
    if (len < 16 || memcmp(bytes + 12, "VP8X", 4) != 0) /* only these have more than an image */
        return DT_OK;
    d = WebPDemux(&data);
    if (!d)
        return corrupt(err);
    if (WebPDemuxGetChunk(d, "EXIF", 1, &exif)) {
        st = dt_image_exif_orientation(exif.chunk.bytes, exif.chunk.size, err, out);
        WebPDemuxReleaseChunkIterator(&exif);
    }
    WebPDemuxDelete(d);
    return st;
}

enum dt_status dt_image_webp_size(const uint8_t *bytes, size_t len,
                                  const struct dt_image_limits *limits, struct dt_error *err,
                                  int *w, int *h)
{
    WebPBitstreamFeatures f;
    int up;
    DT_TRY(features(bytes, len, limits, err, &f));
    DT_TRY(orientation(bytes, len, err, &up));
    *w = f.width;
    *h = f.height;
    dt_image_oriented_size(up, w, h);
    return DT_OK;
}

static bool still(const uint8_t *bytes, size_t len, const WebPBitstreamFeatures *f, uint8_t *px)
{
    size_t n = (size_t)f->width * (size_t)f->height;

    if (!f->has_alpha)
        return WebPDecodeRGBInto(bytes, len, px, n * 3, f->width * 3) != NULL;
    if (!WebPDecodeRGBAInto(bytes, len, px, n * 4, f->width * 4))
        return false;
    dt_image_over_white(px, n, px);
    return true;
}

static bool first_frame(const uint8_t *bytes, size_t len, const WebPBitstreamFeatures *f,
                        uint8_t *px)
{
    WebPData data = {bytes, len};
    WebPAnimDecoderOptions o;
    WebPAnimDecoder *d;
    uint8_t *canvas;
    bool good;
    int ms;

    WebPAnimDecoderOptionsInit(&o);
    o.color_mode = MODE_RGBA;
    d = WebPAnimDecoderNew(&data, &o);
    good = d && WebPAnimDecoderGetNext(d, &canvas, &ms);
    if (good)
        dt_image_over_white(canvas, (size_t)f->width * (size_t)f->height, px);
    WebPAnimDecoderDelete(d);
    return good;
}

enum dt_status dt_image_webp_decode(const uint8_t *bytes, size_t len,
                                    const struct dt_image_limits *limits, struct dt_error *err,
                                    struct dt_image *out)
{
    WebPBitstreamFeatures f;
    struct dt_image img;
    enum dt_status st;
    bool good;
    int up;
    DT_TRY(features(bytes, len, limits, err, &f));
    DT_TRY(orientation(bytes, len, err, &up));
    img = (struct dt_image){f.width, f.height, NULL};
    img.px = dt_malloc((size_t)f.width * (size_t)f.height * (f.has_alpha ? 4 : 3));
    if (!img.px)
        return dt_error_nomem(err, "an image");
    good = f.has_animation ? first_frame(bytes, len, &f, img.px) : still(bytes, len, &f, img.px);
    st = good ? dt_image_orient(up, err, &img) : corrupt(err);
    if (st == DT_OK)
        *out = img;
    else
        dt_image_free(&img);
    return st;
}
