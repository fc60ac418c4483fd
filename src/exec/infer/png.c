/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Grids of images. */
#include "exec/infer/png.h"
#include "base/file.h"
#include "base/mem.h"

#include <string.h>

enum {
    GRID_SIDE_MAX = 1 << 20
}; /* cells, gaps and scales stay far from overflow; dt_image_new says
      how large an image may be */

static int clamped(int v, int least)
{
    return v < least ? least : v > GRID_SIDE_MAX ? GRID_SIDE_MAX : v;
}

/* Copies `src`, each pixel `scale` times both ways, to (x, y). */
static void put(struct dt_image *grid, const struct dt_image *src, int x, int y, int scale)
{
    for (int row = 0; row < src->h * scale; row++) {
        const uint8_t *from = src->px + (size_t)(row / scale) * (size_t)src->w * 3;
        uint8_t *to = grid->px + ((size_t)(y + row) * (size_t)grid->w + (size_t)x) * 3;

        for (int col = 0; col < src->w * scale; col++)
            memcpy(to + (size_t)col * 3, from + (size_t)(col / scale) * 3, 3);
    }
}

enum dt_status dt_infer_grid_compose(const struct dt_image *images, int n,
                                     const struct dt_infer_grid_options *opt, struct dt_error *err,
                                     struct dt_image *out)
{
    int64_t cell_w = 1, cell_h = 1, w, h;
    int scale = clamped(opt->scale, 1), gap = clamped(opt->gap, 0), cols = opt->cols, rows;
    struct dt_image grid;

    if (n < 1)
        return dt_error_set(err, DT_ERR_INTERNAL, "a grid of no images");
    if (cols <= 0)
        for (cols = 1; cols < 1 << 15 && cols * cols < n; cols++)
            ;
    cols = cols > n ? n : cols;
    rows = (n - 1) / cols + 1;
    for (int i = 0; i < n; i++) {
        cell_w = images[i].w > cell_w ? images[i].w : cell_w;
        cell_h = images[i].h > cell_h ? images[i].h : cell_h;
    }
    w = cols * (cell_w * scale + gap) + gap;
    h = rows * (cell_h * scale + gap) + gap;
    if (w > DT_IMAGE_SIDE_MAX || h > DT_IMAGE_SIDE_MAX)
        return dt_error_set(err, DT_ERR_INPUT,
                            "%d images in %d columns make a picture wider or higher than %d pixels",
                            n, cols, DT_IMAGE_SIDE_MAX);
    DT_TRY(dt_image_new((int)w, (int)h, err, &grid));
    memset(grid.px, opt->back, (size_t)w * (size_t)h * 3);
    for (int i = 0; i < n; i++) {
        int64_t x = gap + (i % cols) * (cell_w * scale + gap);
        int64_t y = gap + (i / cols) * (cell_h * scale + gap);

        x += (cell_w - images[i].w) * scale / 2;
        y += (cell_h - images[i].h) * scale / 2;
        put(&grid, &images[i], (int)x, (int)y, scale);
    }
    *out = grid;
    return DT_OK;
}

enum dt_status dt_infer_grid_write_png(const char *path, const struct dt_image *images, int n,
                                       const struct dt_infer_grid_options *opt,
                                       struct dt_error *err)
{
    struct dt_image grid;
    enum dt_status st;
    uint8_t *png;
    size_t len;

    DT_TRY(dt_infer_grid_compose(images, n, opt, err, &grid));
    st = dt_image_encode_png(&grid, opt->grey ? 1 : 3, err, &png, &len);
    dt_image_free(&grid);
    if (st != DT_OK)
        return st;
    st = dt_file_write(path, (const char *)png, len, err);
    dt_free(png);
    return st;
}
