/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which way up an image is: EXIF's orientation (CIPA DC-008, tag 0x0112) through libexif, and turning. */
#include "base/mem.h"
#include "exec/data/image_impl.h"

#include <libexif/exif-data.h>
#include <string.h>

enum { EXIF_BYTES_MAX = 1 << 16 }; /* as a JPEG segment; the tag is in the first table */

static int tag_of(ExifData *e)
{
    const ExifEntry *t = exif_content_get_entry(e->ifd[EXIF_IFD_0], EXIF_TAG_ORIENTATION);
    int v;

    if (!t || t->format != EXIF_FORMAT_SHORT || t->components < 1 || t->size < 2)
        return 1;
    v = exif_get_short(t->data, exif_data_get_byte_order(e));
    return v >= 1 && v <= 8 ? v : 1;
}

static enum dt_status read_tag(const uint8_t *block, size_t n, struct dt_error *err, int *out)
{
    ExifData *e = exif_data_new();

    if (!e)
        return dt_error_nomem(err, "an image's EXIF data");
    exif_data_unset_option(e, EXIF_DATA_OPTION_FOLLOW_SPECIFICATION); /* it would mend entries */
    exif_data_load_data(e, block, (unsigned)n);
    *out = tag_of(e);
    exif_data_unref(e);
    return DT_OK;
}

enum dt_status dt_image_exif_orientation(const uint8_t *exif, size_t n, struct dt_error *err,
                                         int *out)
{
    static const uint8_t mark[] = {'E', 'x', 'i',
                                   'f', 0,   0}; /* libexif asks for it, PNG has none */
    enum dt_status st;
    uint8_t *block;

    if (n >= sizeof mark && memcmp(exif, mark, sizeof mark) == 0) {
        exif += sizeof mark;
        n -= sizeof mark;
    }
    *out = 1;
    if (n == 0)
        return DT_OK;
    n = n > EXIF_BYTES_MAX ? EXIF_BYTES_MAX : n;
    block = dt_malloc(sizeof mark + n);
    if (!block)
        return dt_error_nomem(err, "an image's EXIF data");
    memcpy(block, mark, sizeof mark);
    memcpy(block + sizeof mark, exif, n);
    st = read_tag(block, sizeof mark + n, err, out);
    dt_free(block);
    return st;
}

void dt_image_oriented_size(int orientation, int *w, int *h)
{
    int was = *w;

    if (orientation < 5)
        return;
    *w = *h;
    *h = was;
}

enum dt_status dt_image_orient(int orientation, struct dt_error *err, struct dt_image *img)
{
    bool swap = orientation >= 5;
    bool up = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    bool left = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    int w = img->w, h = img->h;
    uint8_t *px;

    if (orientation <= 1)
        return DT_OK;
    px = dt_malloc((size_t)w * (size_t)h * 3);
    if (!px)
        return dt_error_nomem(err, "an image");
    for (int r = 0; r < h; r++) {
        const uint8_t *from = img->px + (size_t)r * (size_t)w * 3;
        size_t row = (size_t)(up ? h - 1 - r : r);

        for (int c = 0; c < w; c++) {
            size_t col = (size_t)(left ? w - 1 - c : c);
            size_t to = swap ? col * (size_t)h + row : row * (size_t)w + col;

            memcpy(px + 3 * to, from + 3 * c, 3);
        }
    }
    dt_free(img->px);
    img->px = px;
    dt_image_oriented_size(orientation, &img->w, &img->h);
    return DT_OK;
}
