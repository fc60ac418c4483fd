/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Image grids: every pixel is where it should be, in memory and in the file. */
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "exec/infer/png.h"
#include "test_util.h"

#include <unistd.h>

static struct dt_image noise(struct dt_rng *r, int w, int h)
{
    struct dt_image img;
    struct dt_error err = {0};

    dt_assert_ok(dt_image_new(w, h, &err, &img), err);
    for (int i = 0; i < w * h * 3; i++)
        img.px[i] = (uint8_t)dt_rng_u32(r);
    return img;
}

/* The pixel of the grid at (x, y), by asking every image whether it covers it. */
static const uint8_t *expected(const struct dt_image *images, int n, int cols, int gap, int scale,
                               int cell_w, int cell_h, int x, int y)
{
    for (int i = 0; i < n; i++) {
        int left = gap + i % cols * (cell_w * scale + gap) + (cell_w - images[i].w) * scale / 2;
        int top = gap + i / cols * (cell_h * scale + gap) + (cell_h - images[i].h) * scale / 2;

        if (x >= left && x < left + images[i].w * scale && y >= top &&
            y < top + images[i].h * scale)
            return images[i].px + ((y - top) / scale * images[i].w + (x - left) / scale) * 3;
    }
    return NULL;
}

START_TEST(pixels_are_in_place)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 1);
    for (int round = 0; round < 40; round++) {
        int n = 1 + (int)dt_rng_below(&r, 11), cell_w = 0, cell_h = 0, cols;
        struct dt_infer_grid_options opt = {.cols = (int)dt_rng_below(&r, 13),
                                            .gap = (int)dt_rng_below(&r, 4),
                                            .scale = 1 + (int)dt_rng_below(&r, 3),
                                            .back = 77};
        struct dt_image images[11], grid;
        struct dt_error err = {0};

        for (int i = 0; i < n; i++) {
            images[i] = noise(&r, 1 + (int)dt_rng_below(&r, 9), 1 + (int)dt_rng_below(&r, 9));
            cell_w = images[i].w > cell_w ? images[i].w : cell_w;
            cell_h = images[i].h > cell_h ? images[i].h : cell_h;
        }
        dt_assert_ok(dt_infer_grid_compose(images, n, &opt, &err, &grid), err);
        cols = opt.cols ? opt.cols : n <= 1 ? 1 : n <= 4 ? 2 : n <= 9 ? 3 : 4;
        cols = cols > n ? n : cols;
        ck_assert_int_eq(grid.w, cols * (cell_w * opt.scale + opt.gap) + opt.gap);
        ck_assert_int_eq(grid.h, (n + cols - 1) / cols * (cell_h * opt.scale + opt.gap) + opt.gap);
        for (int y = 0; y < grid.h; y++)
            for (int x = 0; x < grid.w; x++) {
                const uint8_t ground[] = {77, 77, 77};
                const uint8_t *p =
                    expected(images, n, cols, opt.gap, opt.scale, cell_w, cell_h, x, y);

                ck_assert_mem_eq(grid.px + (y * grid.w + x) * 3, p ? p : ground, 3);
            }
        for (int i = 0; i < n; i++)
            dt_image_free(&images[i]);
        dt_image_free(&grid);
    }
}
END_TEST

START_TEST(file_decodes_to_the_grid)
{
    char path[] = "/tmp/dt-png-XXXXXX", *bytes;
    struct dt_infer_grid_options opt = {.cols = 2, .gap = 1, .scale = 2, .back = 255};
    struct dt_image images[3], grid, back;
    struct dt_error err = {0};
    struct dt_rng r;
    size_t len;

    dt_rng_init(&r, dt_test_seed(), 2);
    for (int i = 0; i < 3; i++)
        images[i] = noise(&r, 28, 28);
    close(mkstemp(path));
    for (int grey = 0; grey < 2; grey++) {
        opt.grey = grey;
        dt_assert_ok(dt_infer_grid_compose(images, 3, &opt, &err, &grid), err);
        dt_assert_ok(dt_infer_grid_write_png(path, images, 3, &opt, &err), err);
        dt_assert_ok(dt_file_read(path, 1 << 20, &err, &bytes, &len), err);
        dt_assert_ok(dt_image_decode((uint8_t *)bytes, len, NULL, &err, &back), err);
        ck_assert_int_eq(back.w, grid.w);
        ck_assert_int_eq(back.h, grid.h);
        for (int i = 0; i < back.w * back.h; i++)
            for (int c = 0; c < 3; c++)
                ck_assert_uint_eq(back.px[3 * i + c], grid.px[3 * i + (grey ? 0 : c)]);
        dt_free(bytes);
        dt_image_free(&grid);
        dt_image_free(&back);
    }
    unlink(path);
    for (int i = 0; i < 3; i++)
        dt_image_free(&images[i]);
}
END_TEST

START_TEST(too_large_is_refused)
{
    static uint8_t px[3];
    struct dt_image dot = {1, 1, px}, many[3] = {dot, dot, dot}, out;
    struct dt_infer_grid_options opt = {.cols = 3, .scale = 6000};
    struct dt_error err = {0};

    ck_assert_int_eq(dt_infer_grid_compose(many, 3, &opt, &err, &out), DT_ERR_INPUT);
    opt.scale = INT32_MAX;
    opt.gap = INT32_MAX;
    ck_assert_int_eq(dt_infer_grid_compose(many, 3, &opt, &err, &out), DT_ERR_INPUT);
    opt = (struct dt_infer_grid_options){.cols = 1};
    ck_assert_int_eq(dt_infer_grid_write_png("/no/such/folder.png", many, 3, &opt, &err),
                     DT_ERR_IO);
    for (uint64_t k = 1; k <= 2; k++) {
        dt_mem_fail_at(k);
        ck_assert_int_eq(dt_infer_grid_write_png("/dev/null", many, 3, &opt, &err), DT_ERR_NOMEM);
        dt_mem_fail_at(0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("png");
    TCase *c = dt_test_case(s, "grid", 0);

    tcase_add_test(c, pixels_are_in_place);
    tcase_add_test(c, file_decodes_to_the_grid);
    tcase_add_test(c, too_large_is_refused);
    return dt_test_run(s);
}
