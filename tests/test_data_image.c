/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images: each format there and back, limits, truncation at every length, resizing against plain
 * sums. */
#include "base/rng.h"
#include "data_fixture.h"

#include <math.h>

static struct dt_error err;

static int difference(const struct dt_image *a, const struct dt_image *b)
{
    int max = 0;

    ck_assert_int_eq(a->w, b->w);
    ck_assert_int_eq(a->h, b->h);
    for (size_t i = 0; i < (size_t)a->w * (size_t)a->h * 3; i++)
        max = abs(a->px[i] - b->px[i]) > max ? abs(a->px[i] - b->px[i]) : max;
    return max;
}

/* The file decodes to `img` within `tolerance` and its header tells its size; cut anywhere it is
 * refused. */
static void check_file(const uint8_t *bytes, size_t len, const struct dt_image *img, int tolerance,
                       size_t tail)
{
    struct dt_image out;
    int w, h;

    dt_assert_ok(dt_image_size(bytes, len, NULL, &err, &w, &h), err);
    ck_assert_int_eq(w, img->w);
    ck_assert_int_eq(h, img->h);
    dt_assert_ok(dt_image_decode(bytes, len, NULL, &err, &out), err);
    ck_assert_int_le(difference(img, &out), tolerance);
    dt_image_free(&out);
    for (size_t n = 0; n + tail < len; n += 1 + len / 301) {
        uint8_t *cut = malloc(n + 1);

        memcpy(cut, bytes, n);
        out.px = NULL;
        ck_assert_msg(dt_image_decode(cut, n, NULL, &err, &out) == DT_ERR_INPUT, "%zu of %zu bytes",
                      n, len);
        ck_assert_ptr_null(out.px);
        free(cut);
    }
}

START_TEST(formats)
{
    struct dt_image img = fixture_picture(67, 41, 3);
    size_t len;
    uint8_t *bytes = fixture_png(&img, &len);

    ck_assert_int_eq(dt_image_sniff(bytes, len), DT_IMAGE_PNG);
    check_file(bytes, len, &img, 0, 12); /* the end chunk may be lost */
    dt_free(bytes);
    for (int progressive = 0; progressive < 2; progressive++) {
        bytes = fixture_jpeg(&img, progressive, &len);
        ck_assert_int_eq(dt_image_sniff(bytes, len), DT_IMAGE_JPEG);
        check_file(bytes, len, &img, 24, 4);
        free(bytes);
    }
    bytes = fixture_webp(&img, &len);
    ck_assert_int_eq(dt_image_sniff(bytes, len), DT_IMAGE_WEBP);
    check_file(bytes, len, &img, 0, 2);
    WebPFree(bytes);
    dt_image_free(&img);
}
END_TEST

START_TEST(unknown)
{
    struct dt_image out;

    ck_assert_int_eq(dt_image_decode((const uint8_t *)"GIF89a\1\0\1\0", 10, NULL, &err, &out),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "neither");
    ck_assert_int_eq(dt_image_decode((const uint8_t *)"", 0, NULL, &err, &out), DT_ERR_INPUT);
}
END_TEST

START_TEST(limits)
{
    static const struct dt_image_limits side = {.side_max = 40}, area = {.pixels_max = 2000};
    struct dt_image img = fixture_picture(50, 41, 0), out;
    size_t len;
    uint8_t *file[3] = {fixture_png(&img, &len)};
    size_t lens[3] = {len};
    int w, h;

    file[1] = fixture_jpeg(&img, false, &lens[1]);
    file[2] = fixture_webp(&img, &lens[2]);
    for (int k = 0; k < 3; k++) {
        uint64_t before;

        dt_mem_fail_at(0);
        before = dt_mem_count();
        ck_assert_int_eq(dt_image_decode(file[k], lens[k], &side, &err, &out), DT_ERR_INPUT);
        dt_assert_has(err.message, "50 x 41");
        ck_assert_int_eq(dt_image_decode(file[k], lens[k], &area, &err, &out), DT_ERR_INPUT);
        ck_assert_int_eq(dt_image_size(file[k], lens[k], &side, &err, &w, &h), DT_ERR_INPUT);
        ck_assert_uint_eq(dt_mem_count(), before); /* nothing was allocated for it */
    }
    /* a PNG header that claims 2^31 - 1 squared */
    memcpy(file[0] + 16, "\x7f\xff\xff\xff\x7f\xff\xff\xff", 8);
    ck_assert_int_eq(dt_image_decode(file[0], lens[0], NULL, &err, &out), DT_ERR_INPUT);
    ck_assert_int_eq(dt_image_new(0, 5, &err, &out), DT_ERR_INPUT);
    ck_assert_int_eq(dt_image_new(16385, 1, &err, &out), DT_ERR_INPUT);
    dt_free(file[0]);
    free(file[1]);
    WebPFree(file[2]);
    dt_image_free(&img);
}
END_TEST

/* Area resizing against the sum over covered pixels in double precision, and bilinear enlargement
 * against the two nearest pixels per axis. */
static double plain(const struct dt_image *s, const int *r, int w, int h, int x, int y, int c,
                    bool area)
{
    double sx = (double)r[2] / w, sy = (double)r[3] / h, sum = 0, total = 0;

    for (int j = 0; j < r[3]; j++)
        for (int i = 0; i < r[2]; i++) {
            double wx, wy;
            if (area) {
                wx = fmax(0, fmin((x + 1) * sx, i + 1) - fmax(x * sx, i));
                wy = fmax(0, fmin((y + 1) * sy, j + 1) - fmax(y * sy, j));
            } else {
                wx = fmax(0, 1 - fabs(i + 0.5 - (x + 0.5) * sx) / fmax(sx, 1));
                wy = fmax(0, 1 - fabs(j + 0.5 - (y + 0.5) * sy) / fmax(sy, 1));
            }
            sum += wx * wy *
                   s->px[3 * ((size_t)(r[1] + j) * (size_t)s->w + (size_t)(r[0] + i)) + (size_t)c];
            total += wx * wy;
        }
    return sum / total;
}

START_TEST(resizing)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng rng;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&rng, seed, 2);
    for (int k = 0; k < 40; k++) {
        int sw = 1 + (int)dt_rng_below(&rng, 37), sh = 1 + (int)dt_rng_below(&rng, 29);
        int w = 1 + (int)dt_rng_below(&rng, 33), h = 1 + (int)dt_rng_below(&rng, 33);
        bool area = k % 2;
        struct dt_image src, out;
        int r[4]; /* x, y, w, h */

        dt_assert_ok(dt_image_new(sw, sh, &err, &src), err);
        for (size_t i = 0; i < (size_t)sw * (size_t)sh * 3; i++)
            src.px[i] = (uint8_t)dt_rng_u32(&rng);
        r[0] = (int)dt_rng_below(&rng, (uint64_t)sw);
        r[1] = (int)dt_rng_below(&rng, (uint64_t)sh);
        r[2] = 1 + (int)dt_rng_below(&rng, (uint64_t)(sw - r[0]));
        r[3] = 1 + (int)dt_rng_below(&rng, (uint64_t)(sh - r[1]));
        dt_assert_ok(dt_image_resize(&src, r[0], r[1], r[2], r[3], w, h,
                                     area ? DT_FILTER_AREA : DT_FILTER_BILINEAR, &err, &out),
                     err);
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                for (int c = 0; c < 3; c++) {
                    double want = plain(&src, r, w, h, x, y, c, area);
                    int got = out.px[3 * (y * w + x) + c];
                    ck_assert_msg(fabs(got - want) < 0.502, "%d,%d of %dx%d from %dx%d: %d, %g", x,
                                  y, w, h, r[2], r[3], got, want);
                }
        dt_image_free(&out);
        dt_image_free(&src);
    }
}
END_TEST

START_TEST(fitting)
{
    struct dt_image_spec max = {DT_FIT_MAX, 30, DT_FILTER_AUTO};
    struct dt_image_spec crop = {DT_FIT_CROP, 16, DT_FILTER_AUTO};
    struct dt_image_spec none = {DT_FIT_NONE, 0, DT_FILTER_AUTO};
    struct dt_image img = fixture_picture(90, 45, 1), out, middle;
    size_t len;
    uint8_t *bytes;
    int w, h;

    dt_image_fitted_size(&max, 90, 45, &w, &h);
    ck_assert(w == 30 && h == 15);
    dt_image_fitted_size(&max, 29, 3, &w, &h);
    ck_assert(w == 29 && h == 3);
    dt_image_fitted_size(&max, 16384, 1, &w, &h);
    ck_assert(w == 30 && h == 1);
    dt_image_fitted_size(&none, 16384, 1, &w, &h);
    ck_assert(w == 16384 && h == 1);
    dt_assert_ok(dt_image_apply(&img, &crop, &err, &out), err);
    dt_assert_ok(dt_image_resize(&img, 22, 0, 45, 45, 16, 16, DT_FILTER_AREA, &err, &middle), err);
    ck_assert_int_eq(difference(&out, &middle), 0);
    dt_image_free(&out);
    dt_image_free(&middle);

    /* a JPEG shrunk while it is decoded looks the same */
    dt_image_free(&img);
    img = fixture_picture(640, 480, 2);
    bytes = fixture_jpeg(&img, false, &len);
    dt_assert_ok(dt_image_load(bytes, len, NULL, &crop, &err, &out), err);
    dt_assert_ok(dt_image_apply(&img, &crop, &err, &middle), err);
    ck_assert_int_le(difference(&out, &middle), 12);
    dt_image_free(&out);
    dt_image_free(&middle);
    dt_assert_ok(dt_image_load(bytes, len, NULL, &max, &err, &out), err);
    ck_assert(out.w == 30 && out.h == 23);
    dt_image_free(&out);
    dt_assert_ok(dt_image_load(bytes, len, NULL, &none, &err, &out), err);
    ck_assert(out.w == 640 && out.h == 480);
    dt_image_free(&out);
    free(bytes);
    dt_image_free(&img);
}
END_TEST

START_TEST(transparency)
{
    /* 2 x 1: half transparent black, opaque red; made by WebP (lossless) */
    static const uint8_t rgba[8] = {0, 0, 0, 128, 255, 0, 0, 255};
    uint8_t *bytes = NULL;
    size_t len = WebPEncodeLosslessRGBA(rgba, 2, 1, 8, &bytes);
    struct dt_image out;

    ck_assert_uint_gt(len, 0);
    dt_assert_ok(dt_image_decode(bytes, len, NULL, &err, &out), err);
    ck_assert_int_eq(out.px[0], 127);
    ck_assert(out.px[3] == 255 && out.px[4] == 0 && out.px[5] == 0);
    dt_image_free(&out);
    WebPFree(bytes);
}
END_TEST

/* CMYK as Adobe stores it (255 = no ink), and grey. */
START_TEST(cmyk_and_grey_jpeg)
{
    static const uint8_t ink[2][4] = {{255, 255, 255, 255}, {255, 128, 0, 200}};
    static const uint8_t rgb[2][3] = {{255, 255, 255}, {200, 100, 0}};

    for (int k = 0; k < 3; k++) {
        struct jpeg_compress_struct c;
        struct jpeg_error_mgr mgr;
        unsigned char *bytes = NULL;
        unsigned long n = 0;
        uint8_t line[16 * 4];
        struct dt_image out;

        c.err = jpeg_std_error(&mgr);
        jpeg_create_compress(&c);
        jpeg_mem_dest(&c, &bytes, &n);
        c.image_width = c.image_height = 16;
        c.input_components = k < 2 ? 4 : 1;
        c.in_color_space = k < 2 ? JCS_CMYK : JCS_GRAYSCALE;
        jpeg_set_defaults(&c);
        jpeg_set_quality(&c, 100, TRUE);
        jpeg_start_compress(&c, TRUE);
        for (int i = 0; i < 16 * c.input_components; i++)
            line[i] = k < 2 ? ink[k][i % 4] : 77;
        while (c.next_scanline < 16) {
            JSAMPROW row = line;
            jpeg_write_scanlines(&c, &row, 1);
        }
        jpeg_finish_compress(&c);
        jpeg_destroy_compress(&c);
        dt_assert_ok(dt_image_decode(bytes, n, NULL, &err, &out), err);
        for (int i = 0; i < 16 * 16 * 3; i++)
            ck_assert_int_le(abs(out.px[i] - (k < 2 ? rgb[k][i % 3] : 77)), 2);
        dt_image_free(&out);
        free(bytes);
    }
}
END_TEST

START_TEST(grey_png)
{
    struct dt_image img = fixture_picture(9, 5, 0), out;
    uint8_t *bytes;
    size_t len;

    dt_assert_ok(dt_image_encode_png(&img, 1, &err, &bytes, &len), err);
    dt_assert_ok(dt_image_decode(bytes, len, NULL, &err, &out), err);
    for (int i = 0; i < 9 * 5; i++)
        for (int c = 0; c < 3; c++)
            ck_assert_int_eq(out.px[3 * i + c], img.px[3 * i]);
    dt_free(bytes);
    dt_image_free(&out);
    dt_image_free(&img);
}
END_TEST

/* The middle of what is smaller than the wanted square is enlarged. */
START_TEST(smaller_than_the_crop)
{
    struct dt_image_spec crop = {DT_FIT_CROP, 16, DT_FILTER_AUTO};
    struct dt_image img = fixture_picture(9, 5, 1), out, middle;
    size_t len;
    uint8_t *bytes = fixture_png(&img, &len);

    dt_assert_ok(dt_image_load(bytes, len, NULL, &crop, &err, &out), err);
    ck_assert(out.w == 16 && out.h == 16);
    dt_assert_ok(dt_image_resize(&img, 2, 0, 5, 5, 16, 16, DT_FILTER_BILINEAR, &err, &middle), err);
    ck_assert_int_eq(difference(&out, &middle), 0);
    dt_image_free(&out);
    dt_image_free(&middle);
    dt_image_free(&img);
    dt_free(bytes);
}
END_TEST

START_TEST(out_of_memory)
{
    struct dt_image img = fixture_picture(40, 30, 0);
    struct dt_image_spec crop = {DT_FIT_CROP, 7, DT_FILTER_AUTO};
    size_t len[3];
    uint8_t *file[3] = {fixture_png(&img, &len[0]), fixture_jpeg(&img, false, &len[1]),
                        fixture_webp(&img, &len[2])};

    for (int f = 0; f < 3; f++)
        for (uint64_t k = 1;; k++) {
            struct dt_image out = {0};
            bool done;
            enum dt_status st;

            dt_mem_fail_at(k);
            st = dt_image_load(file[f], len[f], NULL, &crop, &err, &out);
            done = dt_mem_count() < k;
            dt_mem_fail_at(0);
            ck_assert_int_eq(st, done ? DT_OK : DT_ERR_NOMEM);
            dt_image_free(&out);
            if (done)
                break;
        }
    dt_free(file[0]);
    free(file[1]);
    WebPFree(file[2]);
    dt_image_free(&img);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("data_image");
    TCase *c = dt_test_case(s, "all", 120);

    tcase_add_test(c, formats);
    tcase_add_test(c, unknown);
    tcase_add_test(c, limits);
    tcase_add_test(c, resizing);
    tcase_add_test(c, fitting);
    tcase_add_test(c, transparency);
    tcase_add_test(c, cmyk_and_grey_jpeg);
    tcase_add_test(c, grey_png);
    tcase_add_test(c, smaller_than_the_crop);
    tcase_add_test(c, out_of_memory);
    return dt_test_run(s);
}
