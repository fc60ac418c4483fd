/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * PNG in and out.
 *
 * Reading goes through libpng's row interface: the simplified one takes 16 bits for linear light, lays
 * transparency over white in linear light, which neither WebP nor what others train on does, and (1.6.39)
 * mixes up the rows of interlaced images of 16 bits. */
#include "exec/data/image_impl.h"

#include "base/mem.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

struct reader {
    const uint8_t *bytes;
    size_t len, at;
    png_structp png;
    png_infop info;
    char why[128];
    uint8_t *px;    /* decoded */
    png_bytep *row; /* [height], in px */
};

static void on_error(png_structp png, png_const_charp message)
{
    struct reader *r = png_get_error_ptr(png);

    snprintf(r->why, sizeof r->why, "%.120s", message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    struct reader *r = png_get_io_ptr(png);

    if (n > r->len - r->at)
        png_error(png, "cut short");
    memcpy(to, r->bytes + r->at, n);
    r->at += n;
}

static void close_reader(struct reader *r)
{
    png_destroy_read_struct(&r->png, &r->info, NULL);
    dt_free(r->row);
    dt_free(r->px);
}

/* Up to the pixels. */
static bool read_info(struct reader *r)
{
    /* what changes pixels; text, thumbnails and the like are not looked at */
    static const png_byte wanted[] = "cHRM\0gAMA\0iCCP\0sBIT\0sRGB\0tRNS";

    if (setjmp(png_jmpbuf(r->png)))
        return false;
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_AS_DEFAULT, wanted, sizeof wanted / 5);
    png_set_user_limits(r->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* ours say it better */
    png_set_read_fn(r->png, r, on_read);
    png_read_info(r->png, r->info);
    return true;
}

/* In 8 bits, with alpha where there is transparency; *bytes of a pixel. */
static bool set_output(struct reader *r, size_t *bytes)
{
    if (setjmp(png_jmpbuf(r->png)))
        return false;
    png_set_alpha_mode_fixed(r->png, PNG_ALPHA_PNG, PNG_DEFAULT_sRGB);
    png_set_expand(r->png);
    png_set_scale_16(r->png);
    png_set_gray_to_rgb(r->png);
    png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    *bytes = png_get_channels(r->png, r->info);
    return true;
}

static bool read_rows(struct reader *r)
{
    if (setjmp(png_jmpbuf(r->png)))
        return false;
    png_read_image(r->png, r->row);
    png_read_end(r->png, NULL);
    return true;
}

static enum dt_status corrupt(const struct reader *r, struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_INPUT, "PNG: %s", r->why);
}

static enum dt_status open_reader(struct reader *r, const uint8_t *bytes, size_t len,
                                  const struct dt_image_limits *limits, struct dt_error *err)
{
    enum dt_status st;

    *r = (struct reader){.bytes = bytes, .len = len};
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info)
        st = dt_error_nomem(err, "a PNG reader");
    else if (!read_info(r))
        st = corrupt(r, err);
    else
        st = dt_image_check(png_get_image_width(r->png, r->info),
                            png_get_image_height(r->png, r->info), limits, err);
    if (st != DT_OK)
        close_reader(r);
    return st;
}

/* Its chunk eXIf (PNG 3, 11.3.3.4), wherever it is in the file. */
static enum dt_status orientation(const uint8_t *b, size_t len, struct dt_error *err, int *out)
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

enum dt_status dt_image_png_size(const uint8_t *bytes, size_t len,
                                 const struct dt_image_limits *limits, struct dt_error *err, int *w,
                                 int *h)
{
    struct reader r;
    int up, width, height;

    DT_TRY(open_reader(&r, bytes, len, limits, err));
    width = (int)png_get_image_width(r.png, r.info);
    height = (int)png_get_image_height(r.png, r.info);
    close_reader(&r);
    DT_TRY(orientation(bytes, len, err, &up));
    dt_image_oriented_size(up, &width, &height);
    *w = width;
    *h = height;
    return DT_OK;
}

static enum dt_status decode(struct reader *r, struct dt_error *err, struct dt_image *img)
{
    size_t w = png_get_image_width(r->png, r->info), h = png_get_image_height(r->png, r->info);
    size_t bytes;

    if (!set_output(r, &bytes))
        return corrupt(r, err);
    if ((bytes != 3 && bytes != 4) || png_get_rowbytes(r->png, r->info) != w * bytes)
        return dt_error_set(err, DT_ERR_INPUT, "PNG: %zu bytes a pixel", bytes);
    r->px = dt_malloc(w * h * bytes);
    r->row = dt_malloc(h * sizeof *r->row);
    if (!r->px || !r->row)
        return dt_error_nomem(err, "an image");
    for (size_t y = 0; y < h; y++)
        r->row[y] = r->px + y * w * bytes;
    if (!read_rows(r))
        return corrupt(r, err);
    if (bytes == 4)
        dt_image_over_white(r->px, w * h, r->px);
    *img = (struct dt_image){(int)w, (int)h, r->px};
    r->px = NULL;
    return DT_OK;
}

enum dt_status dt_image_png_decode(const uint8_t *bytes, size_t len,
                                   const struct dt_image_limits *limits, struct dt_error *err,
                                   struct dt_image *out)
{
    struct dt_image img = {0};
    struct reader r;
    enum dt_status st;
    int up;

    DT_TRY(open_reader(&r, bytes, len, limits, err));
    st = decode(&r, err, &img);
    close_reader(&r);
    if (st == DT_OK)
        st = orientation(bytes, len, err, &up);
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
