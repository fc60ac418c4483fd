/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Kinds of PNG that photographs and their tools come in: 16 bits, interlaced, grey with alpha, palettes
 * with transparency, animations; and images smaller than the crop.
 *
 * The files are made by libpng's other interface, sample by sample; what their pixels must be is
 * arithmetic written down here: 16 bits to the nearest of 8, transparency over white in the file's own
 * values (as Pillow and libwebp do it). */
#include "data_fixture.h"

#include <math.h>
#include <png.h>
#include <string.h>

enum { W = 11, H = 9 };
static struct dt_error err;

struct file {
    uint8_t bytes[1 << 16];
    size_t n;
};

static void on_write(png_structp png, png_bytep p, size_t n)
{
    struct file *f = png_get_io_ptr(png);

    ck_assert_uint_le(f->n + n, sizeof f->bytes);
    memcpy(f->bytes + f->n, p, n);
    f->n += n;
}

static void on_flush(png_structp png)
{
    (void)png;
}

struct kind {
    int depth, color, interlace;
    int channels;
};

/* A sample of channel c at (x, y): all bits of it vary. */
static unsigned value(const struct kind *k, int x, int y, int c)
{
    unsigned v = (unsigned)(x * 5881 + y * 9973 + c * 21001 + x * y * 77) & 0xffff;

    return k->depth == 16 ? v : v >> 8 & ((1u << k->depth) - 1);
}

static void write_rows(png_structp png, const struct kind *k)
{
    static uint8_t rows[H][W * 8];
    png_bytep at[H];

    memset(rows, 0, sizeof rows);
    for (int y = 0; y < H; y++) {
        for (int x = 0; x < W; x++)
            for (int c = 0; c < k->channels; c++) {
                unsigned v = value(k, x, y, c);
                int i = x * k->channels + c;

                if (k->depth == 16) {
                    rows[y][2 * i] = (uint8_t)(v >> 8);
                    rows[y][2 * i + 1] = (uint8_t)v;
                } else if (k->depth == 8) {
                    rows[y][i] = (uint8_t)v;
                } else {
                    rows[y][i * k->depth / 8] |= (uint8_t)(v << (8 - k->depth - i * k->depth % 8));
                }
            }
        at[y] = rows[y];
    }
    png_write_image(png, at); /* in seven passes where it is interlaced */
}

static const png_color palette[4] = {{10, 20, 30}, {250, 0, 128}, {0, 255, 0}, {77, 66, 55}};
static const png_byte clear[3] = {0, 128, 255}; /* the fourth is opaque */

static void write_png(const struct kind *k, struct file *f)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);

    f->n = 0;
    png_set_write_fn(png, f, on_write, on_flush);
    png_set_IHDR(png, info, W, H, k->depth, k->color,
                 k->interlace ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (k->color == PNG_COLOR_TYPE_PALETTE) {
        png_set_PLTE(png, info, palette, 4);
        png_set_tRNS(png, info, clear, 3, NULL);
    }
    png_write_info(png, info);
    write_rows(png, k);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
}

/* Of 8 bits, not rounded yet. */
static double eight(const struct kind *k, int x, int y, int c)
{
    return value(k, x, y, c) * 255.0 / ((1 << k->depth) - 1);
}

static double over_white(double v, double alpha)
{
    return v * alpha + 255 * (1 - alpha);
}

static double expected(const struct kind *k, int x, int y, int c)
{
    switch (k->color) {
    case PNG_COLOR_TYPE_PALETTE: {
        unsigned v = value(k, x, y, 0);
        const png_color *p = &palette[v];

        return over_white(c == 0   ? p->red
                          : c == 1 ? p->green
                                   : p->blue,
                          v < 3 ? clear[v] / 255.0 : 1);
    }
    case PNG_COLOR_TYPE_GRAY:
        return eight(k, x, y, 0);
    case PNG_COLOR_TYPE_GRAY_ALPHA:
        return over_white(eight(k, x, y, 0), eight(k, x, y, 1) / 255);
    case PNG_COLOR_TYPE_RGB_ALPHA:
        return over_white(eight(k, x, y, c), eight(k, x, y, 3) / 255);
    default:
        return eight(k, x, y, c);
    }
}

static const struct kind kinds[] = {
    {16, PNG_COLOR_TYPE_RGB, 0, 3},        {16, PNG_COLOR_TYPE_GRAY, 0, 1},
    {16, PNG_COLOR_TYPE_GRAY_ALPHA, 0, 2}, {16, PNG_COLOR_TYPE_RGB_ALPHA, 0, 4},
    {16, PNG_COLOR_TYPE_RGB, 1, 3},        {8, PNG_COLOR_TYPE_RGB, 1, 3},
    {8, PNG_COLOR_TYPE_RGB_ALPHA, 1, 4},   {8, PNG_COLOR_TYPE_GRAY_ALPHA, 0, 2},
    {8, PNG_COLOR_TYPE_GRAY_ALPHA, 1, 2},  {2, PNG_COLOR_TYPE_PALETTE, 0, 1},
    {2, PNG_COLOR_TYPE_PALETTE, 1, 1},     {1, PNG_COLOR_TYPE_GRAY, 1, 1},
    {4, PNG_COLOR_TYPE_GRAY, 0, 1},        {8, PNG_COLOR_TYPE_RGB, 0, 3}};

START_TEST(every_kind)
{
    static struct file f;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const struct kind *k = &kinds[i];
        /* 16 bits of value and of alpha are each rounded to 8 before one is laid over the other */
        double off = k->depth == 16 && (k->color & PNG_COLOR_MASK_ALPHA) ? 1.51 : 0.51;
        struct dt_image img;

        write_png(k, &f);
        dt_assert_ok(dt_image_decode(f.bytes, f.n, NULL, &err, &img), err);
        ck_assert(img.w == W && img.h == H);
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++)
                for (int c = 0; c < 3; c++) {
                    int got = img.px[(y * W + x) * 3 + c];
                    double want = expected(k, x, y, c);

                    ck_assert_msg(fabs(got - want) <= off,
                                  "%d bits, colour type %d, interlaced %d: (%d, %d, %d) is %d, not "
                                  "%.2f",
                                  k->depth, k->color, k->interlace, x, y, c, got, want);
                }
        dt_image_free(&img);
        for (size_t n = 0; n + 12 < f.n; n += 7) /* cut short: an error, never half an image */
            ck_assert_int_eq(dt_image_decode(f.bytes, n, NULL, &err, &img), DT_ERR_INPUT);
    }
}
END_TEST

/* ---- animations ---- */

static void put32(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void add_chunk(struct file *f, const char *type, const uint8_t *body, uint32_t n)
{
    uint8_t *at = f->bytes + f->n;
    uint32_t crc = 0xffffffff;

    put32(at, n);
    memcpy(at + 4, type, 4);
    if (n)
        memcpy(at + 8, body, n);
    for (uint32_t i = 4; i < 8 + n; i++) { /* CRC-32 of ISO 3309, as the PNG standard has it */
        crc ^= at[i];
        for (int b = 0; b < 8; b++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    put32(at + 8 + n, ~crc);
    f->n += n + 12;
}

/* The chunk of that type in a file: its body. */
static const uint8_t *find_chunk(const struct file *f, const char *type, uint32_t *n)
{
    for (size_t at = 8; at + 12 <= f->n; at += *n + 12) {
        const uint8_t *b = f->bytes + at;

        *n = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
        if (memcmp(b + 4, type, 4) == 0)
            return b + 8;
    }
    ck_abort_msg("no %s", type);
    return NULL;
}

static void frame_control(uint8_t fc[26], uint32_t sequence)
{
    memset(fc, 0, 26);
    put32(fc, sequence);
    put32(fc + 4, W);
    put32(fc + 8, H);
    fc[21] = fc[23] = 1; /* a delay of 1 / 1 s */
}

START_TEST(animation)
{
    static struct file still[2], f;
    struct kind k[2] = {{8, PNG_COLOR_TYPE_RGB, 0, 3}, {8, PNG_COLOR_TYPE_RGB, 0, 3}};
    uint8_t control[8] = {0, 0, 0, 2}, fc[26], second[1 << 14];
    const uint8_t *body;
    struct dt_image img, first;
    uint32_t n;

    write_png(&k[0], &still[0]);
    dt_assert_ok(dt_image_decode(still[0].bytes, still[0].n, NULL, &err, &first), err);
    memcpy(f.bytes, still[0].bytes, 8);
    f.n = 8;
    body = find_chunk(&still[0], "IHDR", &n);
    add_chunk(&f, "IHDR", body, n);
    add_chunk(&f, "acTL", control, 8);
    frame_control(fc, 0);
    add_chunk(&f, "fcTL", fc, 26);
    body = find_chunk(&still[0], "IDAT", &n);
    add_chunk(&f, "IDAT", body, n);
    frame_control(fc, 1);
    add_chunk(&f, "fcTL", fc, 26);
    put32(second, 2); /* the second frame is black */
    body = find_chunk(&still[0], "IDAT", &n);
    memcpy(second + 4, body, n);
    add_chunk(&f, "fdAT", second, n + 4);
    add_chunk(&f, "IEND", NULL, 0);
    dt_assert_ok(dt_image_decode(f.bytes, f.n, NULL, &err, &img), err);
    ck_assert(img.w == W && img.h == H);
    ck_assert_mem_eq(img.px, first.px, 3 * W * H);
    dt_image_free(&img);
    dt_image_free(&first);
}
END_TEST

/* ---- images smaller than the crop ---- */

/* 4 x 2, cut to the 2 x 2 of its middle, then 8 x 8 by linear interpolation between the centres of
 * pixels (beyond the outer ones their value). */
START_TEST(smaller_than_the_crop)
{
    static const uint8_t grey[2][4] = {{9, 40, 200, 9}, {9, 120, 80, 9}};
    struct dt_image_spec crop = {DT_FIT_CROP, 8, DT_FILTER_AUTO};
    struct dt_image img, out;
    uint8_t *png;
    size_t n;

    dt_assert_ok(dt_image_new(4, 2, &err, &img), err);
    for (int i = 0; i < 8; i++)
        memset(img.px + 3 * i, grey[i / 4][i % 4], 3);
    png = fixture_png(&img, &n);
    dt_assert_ok(dt_image_load(png, n, NULL, &crop, &err, &out), err);
    ck_assert(out.w == 8 && out.h == 8);
    for (int y = 0; y < 8; y++)
        for (int x = 0; x < 8; x++) {
            double u = fmin(1, fmax(0, (x + 0.5) / 4 - 0.5)),
                   v = fmin(1, fmax(0, (y + 0.5) / 4 - 0.5));
            double want = (grey[0][1] * (1 - u) + grey[0][2] * u) * (1 - v) +
                          (grey[1][1] * (1 - u) + grey[1][2] * u) * v;

            for (int c = 0; c < 3; c++)
                ck_assert_msg(fabs(out.px[(y * 8 + x) * 3 + c] - want) <= 1,
                              "(%d, %d): %d, not %.2f", x, y, out.px[(y * 8 + x) * 3 + c], want);
        }
    dt_image_free(&out);
    /* one pixel: all are it; higher than wide: the middle of the height */
    dt_image_free(&img);
    dt_free(png);
    dt_assert_ok(dt_image_new(1, 5, &err, &img), err);
    for (int i = 0; i < 5; i++)
        memset(img.px + 3 * i, 50 * i, 3);
    png = fixture_png(&img, &n);
    dt_assert_ok(dt_image_load(png, n, NULL, &crop, &err, &out), err);
    ck_assert(out.w == 8 && out.h == 8);
    for (int i = 0; i < 3 * 64; i++)
        ck_assert_int_eq(out.px[i], 100);
    dt_image_free(&out);
    dt_image_free(&img);
    dt_free(png);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kinds of PNG");
    TCase *c = dt_test_case(s, "png", 60);

    tcase_add_test(c, every_kind);
    tcase_add_test(c, animation);
    tcase_add_test(c, smaller_than_the_crop);
    return dt_test_run(s);
}
