/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * An image as the bytes of a JPEG file. */
#ifndef DT_TESTS_JPEG_FILE_H
#define DT_TESTS_JPEG_FILE_H

#include "exec/data/image.h"

#include <stdio.h>

#include <jpeglib.h>

/* free() */
static inline uint8_t *jpeg_file(const struct dt_image *img, int quality, bool progressive,
                                 size_t *len)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr mgr;
    unsigned char *bytes = NULL;
    unsigned long n = 0;

    c.err = jpeg_std_error(&mgr);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &bytes, &n);
    c.image_width = (JDIMENSION)img->w;
    c.image_height = (JDIMENSION)img->h;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, quality, TRUE);
    if (progressive)
        jpeg_simple_progression(&c);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        JSAMPROW row = img->px + (size_t)c.next_scanline * (size_t)img->w * 3;
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    *len = n;
    return bytes;
}

#endif
