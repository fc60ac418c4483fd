/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images that say which way up they are (EXIF) in each format, and the first frame of animations.
 * What a value means is written here as the standard has it: where row 0 and column 0 of the stored
 * image are seen. */
#include "data_fixture.h"

#include <zlib.h>

static struct dt_error err;

enum side { TOP, BOTTOM, LEFT, RIGHT };
static const enum side row0[9] = {0, TOP, TOP, BOTTOM, BOTTOM, LEFT, RIGHT, RIGHT, LEFT};
static const enum side col0[9] = {0, LEFT, RIGHT, RIGHT, LEFT, TOP, TOP, BOTTOM, BOTTOM};

enum { W = 24, H = 16 };

/* The stored picture as it is to be seen. */
static struct dt_image seen(const struct dt_image *stored, int value)
{
    bool turned = row0[value] == LEFT || row0[value] == RIGHT;
    struct dt_image out;

    dt_assert_ok(
        dt_image_new(turned ? stored->h : stored->w, turned ? stored->w : stored->h, &err, &out),
        err);
    for (int r = 0; r < stored->h; r++)
        for (int c = 0; c < stored->w; c++) {
            int x = -1, y = -1;

            switch (row0[value]) {
            case TOP:
                y = r;
                break;
            case BOTTOM:
                y = out.h - 1 - r;
                break;
            case LEFT:
                x = r;
                break;
            case RIGHT:
                x = out.w - 1 - r;
                break;
            }
            switch (col0[value]) {
            case TOP:
                y = c;
                break;
            case BOTTOM:
                y = out.h - 1 - c;
                break;
            case LEFT:
                x = c;
                break;
            case RIGHT:
                x = out.w - 1 - c;
                break;
            }
            memcpy(out.px + 3 * (y * out.w + x), stored->px + 3 * (r * stored->w + c), 3);
        }
    return out;
}

static uint8_t *put(uint8_t *to, uint32_t v, int bytes, bool big)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(v >> 8 * (big ? bytes - 1 - i : i));
    return to + bytes;
}

/* A TIFF block with one entry. */
static size_t tiff(uint8_t *b, int value, bool big)
{
    uint8_t *p = b;

    memcpy(p, big ? "MM" : "II", 2);
    p = put(p + 2, 42, 2, big);
    p = put(p, 8, 4, big);
    p = put(p, 1, 2, big);
    p = put(p, 0x0112, 2, big);
    p = put(p, 3, 2, big);
    p = put(p, 1, 4, big);
    p = put(p, (uint32_t)value, 2, big);
    p = put(p, 0, 2, big);
    return (size_t)(put(p, 0, 4, big) - b);
}

static uint8_t *insert(const uint8_t *file, size_t *len, size_t at, const uint8_t *part, size_t n)
{
    uint8_t *out = malloc(*len + n);

    memcpy(out, file, at);
    memcpy(out + at, part, n);
    memcpy(out + at + n, file + at, *len - at);
    *len += n;
    return out; /* free() */
}

static uint8_t *jpeg_with(const struct dt_image *img, int value, bool big, size_t *len)
{
    uint8_t *file = fixture_jpeg(img, false, len), *out, part[64] = {0xff, 0xe1};
    size_t n = tiff(part + 10, value, big);

    put(part + 2, (uint32_t)(n + 8), 2, true);
    memcpy(part + 4, "Exif\0\0", 6);
    out = insert(file, len, 2, part, n + 10);
    free(file);
    return out;
}

static uint8_t *png_with(const struct dt_image *img, int value, bool big, size_t *len)
{
    uint8_t *file = fixture_png(img, len), *out, part[64];
    size_t n = tiff(part + 8, value, big);

    put(part, (uint32_t)n, 4, true);
    memcpy(part + 4, "eXIf", 4);
    put(part + 8 + n, (uint32_t)crc32(0, part + 4, (uInt)(n + 4)), 4, true);
    out = insert(file, len, 33, part, n + 12); /* behind IHDR */
    dt_free(file);
    return out;
}

static uint8_t *chunk(uint8_t *p, const char *name, const uint8_t *data, size_t n)
{
    memcpy(p, name, 4);
    put(p + 4, (uint32_t)n, 4, false);
    memcpy(p + 8, data, n);
    p[8 + n] = 0;
    return p + 8 + n + (n & 1);
}

/* The extended header of a file; returns where chunks go. */
static uint8_t *webp_begin(uint8_t *p, int w, int h, unsigned flags)
{
    uint8_t x[10] = {(uint8_t)flags};

    memcpy(p, "RIFF", 4);
    memcpy(p + 8, "WEBP", 4);
    put(x + 4, (uint32_t)w - 1, 3, false);
    put(x + 7, (uint32_t)h - 1, 3, false);
    return chunk(p + 12, "VP8X", x, sizeof x);
}

static uint8_t *webp_end(uint8_t *file, uint8_t *end, size_t *len)
{
    *len = (size_t)(end - file);
    put(file + 4, (uint32_t)(*len - 8), 4, false);
    return file;
}

static uint8_t *webp_with(const struct dt_image *img, int value, bool big, size_t *len)
{
    size_t n, m;
    uint8_t *still = fixture_webp(img, &n), *file = malloc(n + 256), block[64], *p;

    p = webp_begin(file, img->w, img->h, 0x08);
    memcpy(p, still + 12, n - 12);
    m = tiff(block, value, big);
    p = chunk(p + n - 12, "EXIF", block, m);
    WebPFree(still);
    return webp_end(file, p, len);
}

static int difference(const struct dt_image *a, const struct dt_image *b)
{
    int max = 0;

    ck_assert_int_eq(a->w, b->w);
    ck_assert_int_eq(a->h, b->h);
    for (int i = 0; i < a->w * a->h * 3; i++)
        max = abs(a->px[i] - b->px[i]) > max ? abs(a->px[i] - b->px[i]) : max;
    return max;
}

typedef uint8_t *(*maker)(const struct dt_image *, int, bool, size_t *);
static const maker makers[] = {jpeg_with, png_with, webp_with};
static const int tolerance[] = {24, 0, 0}; /* of what JPEG loses */

START_TEST(every_value)
{
    struct dt_image img = fixture_picture(W, H, 1), out;
    size_t len;
    int w, h;

    for (int f = 0; f < 3; f++)
        for (int value = 1; value <= 8; value++)
            for (int big = 0; big < 2; big++) {
                uint8_t *file = makers[f](&img, value, big, &len);
                struct dt_image want = seen(&img, value);

                dt_assert_ok(dt_image_decode(file, len, NULL, &err, &out), err);
                ck_assert_int_le(difference(&out, &want), tolerance[f]);
                dt_assert_ok(dt_image_size(file, len, NULL, &err, &w, &h), err);
                ck_assert_int_eq(w, want.w);
                ck_assert_int_eq(h, want.h);
                dt_image_free(&out);
                dt_image_free(&want);
                free(file);
            }
    dt_image_free(&img);
}
END_TEST

/* Values that the standard does not have change nothing. */
START_TEST(no_value)
{
    static const int values[] = {0, 9, 65535};
    struct dt_image img = fixture_picture(W, H, 1), out;
    size_t len;

    for (int f = 0; f < 3; f++)
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            uint8_t *file = makers[f](&img, values[k], k & 1, &len);

            dt_assert_ok(dt_image_decode(file, len, NULL, &err, &out), err);
            ck_assert_int_le(difference(&out, &img), tolerance[f]);
            dt_image_free(&out);
            free(file);
        }
    dt_image_free(&img);
}
END_TEST

/* Turned before it is fitted, also where the decoder shrinks: as the upright picture would be. */
START_TEST(fitted)
{
    static const struct dt_image_spec specs[] = {{DT_FIT_CROP, 20, DT_FILTER_AUTO},
                                                 {DT_FIT_MAX, 31, DT_FILTER_AUTO},
                                                 {DT_FIT_STRETCH, 17, DT_FILTER_AUTO}};
    struct dt_image img = fixture_picture(320, 192, 2), out, want;
    size_t len;

    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++)
        for (int f = 0; f < 3; f++)
            for (int value = 1; value <= 8; value++) {
                uint8_t *file = makers[f](&img, value, false, &len);
                struct dt_image upright = seen(&img, value);

                dt_assert_ok(dt_image_load(file, len, NULL, &specs[s], &err, &out), err);
                dt_assert_ok(dt_image_apply(&upright, &specs[s], &err, &want), err);
                ck_assert_int_le(difference(&out, &want), tolerance[f]);
                dt_image_free(&upright);
                dt_image_free(&out);
                dt_image_free(&want);
                free(file);
            }
    dt_image_free(&img);
}
END_TEST

/* One frame of an animation, at (x, y) of the canvas. */
static uint8_t *frame(uint8_t *p, const struct dt_image *img, int x, int y)
{
    size_t n;
    uint8_t *still = fixture_webp(img, &n), *data = malloc(n + 16);

    put(data, (uint32_t)x / 2, 3, false);
    put(data + 3, (uint32_t)y / 2, 3, false);
    put(data + 6, (uint32_t)img->w - 1, 3, false);
    put(data + 9, (uint32_t)img->h - 1, 3, false);
    put(data + 12, 100, 3, false);
    data[15] = 0;
    memcpy(data + 16, still + 12, n - 12);
    p = chunk(p, "ANMF", data, n + 4);
    free(data);
    WebPFree(still);
    return p;
}

static uint8_t *animation(const struct dt_image *first, int x, int y, const struct dt_image *second,
                          size_t *len)
{
    static const uint8_t anim[6] = {0};
    uint8_t *file = malloc(1 << 16), *p = webp_begin(file, W, H, 0x12);

    p = frame(chunk(p, "ANIM", anim, sizeof anim), first, x, y);
    return webp_end(file, frame(p, second, 0, 0), len);
}

START_TEST(first_frames)
{
    struct dt_image a = fixture_picture(W, H, 0), b = fixture_picture(W, H, 2), out;
    struct dt_image small = fixture_picture(6, 4, 1);
    size_t len;
    uint8_t *file = animation(&a, 0, 0, &b, &len);
    int w, h;

    dt_assert_ok(dt_image_decode(file, len, NULL, &err, &out), err);
    ck_assert_int_eq(difference(&out, &a), 0);
    dt_image_free(&out);
    for (size_t n = 30; n + 2 < len; n += 37) {
        uint8_t *cut = malloc(n);

        memcpy(cut, file, n);
        out.px = NULL;
        ck_assert_int_eq(dt_image_decode(cut, n, NULL, &err, &out), DT_ERR_INPUT);
        ck_assert_ptr_null(out.px);
        free(cut);
    }
    free(file);
    file = animation(&small, 4, 2, &b, &len); /* what it leaves free is white */
    dt_assert_ok(dt_image_size(file, len, NULL, &err, &w, &h), err);
    ck_assert(w == W && h == H);
    dt_assert_ok(dt_image_decode(file, len, NULL, &err, &out), err);
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int c = 0; c < 3; c++) {
                bool inside = x >= 4 && x < 10 && y >= 2 && y < 6;
                int want = inside ? small.px[3 * ((y - 2) * 6 + x - 4) + c] : 255;

                ck_assert_int_eq(out.px[3 * (y * W + x) + c], want);
            }
    free(file);
    dt_image_free(&out);
    dt_image_free(&a);
    dt_image_free(&b);
    dt_image_free(&small);
}
END_TEST

START_TEST(out_of_memory)
{
    struct dt_image img = fixture_picture(W, H, 0);

    for (int f = 0; f < 3; f++) {
        size_t len;
        uint8_t *file = makers[f](&img, 6, false, &len);

        for (uint64_t k = 1;; k++) {
            struct dt_image out = {0};
            enum dt_status st;
            bool done;

            dt_mem_fail_at(k);
            st = dt_image_decode(file, len, NULL, &err, &out);
            done = dt_mem_count() < k;
            dt_mem_fail_at(0);
            ck_assert_int_eq(st, done ? DT_OK : DT_ERR_NOMEM);
            ck_assert(!done || (out.w == H && out.h == W)); /* never as it is stored */
            dt_image_free(&out);
            if (done)
                break;
        }
        free(file);
    }
    dt_image_free(&img);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("data_upright");
    TCase *c = dt_test_case(s, "all", 60);

    tcase_add_test(c, every_value);
    tcase_add_test(c, no_value);
    tcase_add_test(c, fitted);
    tcase_add_test(c, first_frames);
    tcase_add_test(c, out_of_memory);
    return dt_test_run(s);
}
