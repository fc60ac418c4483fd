/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images side by side in one PNG. */
#ifndef DT_EXEC_INFER_PNG_H
#define DT_EXEC_INFER_PNG_H

#include "exec/data/image.h"

struct dt_infer_grid_options {
    int cols;     /* 0 = about square */
    int gap;      /* pixels between and around cells */
    int scale;    /* each pixel becomes scale x scale; 0 = 1 */
    bool grey;    /* one channel (red) */
    uint8_t back; /* grey of the ground */
};

/* Cells are as large as the largest image; smaller ones stand in their middle.  At least one image;
 * DT_ERR_INPUT when the grid is larger than an image may be. */
enum dt_status dt_infer_grid_compose(const struct dt_image *images, int n,
                                     const struct dt_infer_grid_options *opt, struct dt_error *err,
                                     struct dt_image *out);
/* The same, written whole or not at all; path "-" = stdout. */
enum dt_status dt_infer_grid_write_png(const char *path, const struct dt_image *images, int n,
                                       const struct dt_infer_grid_options *opt,
                                       struct dt_error *err);

#endif
