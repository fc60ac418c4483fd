/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * JPEG through libjpeg(-turbo).  The library reports errors by a call that must not return; a long
 * jump brings them back here.  Data that is cut off or does not decode is only a warning to the
 * library, which fills in grey; here it is an error. */
#include "base/mem.h"
#include "exec/data/image_impl.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

enum {
    SCANS_MAX = 100,        /* a progressive file of tiny size can ask for endless work */
    MEMORY_MAX = 512 << 20, /* of the library, bytes: coefficients of a progressive image */
    SHRINK_SPARE = 2        /* keep at least this many decoded pixels per wanted one and axis */
};

struct jpeg {
    struct jpeg_error_mgr mgr; /* first: the library hands this back */
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct c;
    jmp_buf back;
    char message[JMSG_LENGTH_MAX];
    bool nomem;
    int orientation;
    uint8_t *row; /* CMYK only */
    uint8_t *px;
};

static void fail(struct jpeg *j, const char *message)
{
    snprintf(j->message, sizeof j->message, "%s", message);
    longjmp(j->back, 1);
}

static void on_error(j_common_ptr c)
{
    struct jpeg *j = (struct jpeg *)c->err;
    c->err->format_message(c, j->message);
    longjmp(j->back, 1);
}

static void on_message(j_common_ptr c, int level)
{
    int code = c->err->msg_code;
    if (level >= 0)
        return;
    c->err->num_warnings++;
    if (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
        code == JWRN_BOGUS_PROGRESSION || code == JWRN_MUST_RESYNC)
        on_error(c);
}

static void on_output(j_common_ptr c)
{
    (void)c; /* library code never prints */
}

static void on_progress(j_common_ptr c)
{
    struct jpeg *j = (struct jpeg *)c->err;
    if (j->c.input_scan_number > SCANS_MAX)
        fail(j, "too many scans");
}

static void start(struct jpeg *j)
{
    memset(j, 0, sizeof *j);
    j->c.err = jpeg_std_error(&j->mgr);
    j->mgr.error_exit = on_error;
    j->mgr.emit_message = on_message;
    j->mgr.output_message = on_output;
}

static enum dt_status orientation(struct jpeg *j, struct dt_error *err)
{
    jpeg_saved_marker_ptr m = j->c.marker_list;

    while (m && (m->data_length <= 6 || memcmp(m->data, "Exif\0\0", 6) != 0))
        m = m->next;
    return dt_image_exif_orientation(m ? m->data : NULL, m ? m->data_length : 0, err,
                                     &j->orientation);
}

/* Reads the header; the rest runs only if the size is within the limits. */
static enum dt_status header(struct jpeg *j, const uint8_t *bytes, size_t len,
                             const struct dt_image_limits *limits, struct dt_error *err)
{
    jpeg_create_decompress(&j->c);
    j->progress.progress_monitor = on_progress;
    j->c.progress = &j->progress;
    j->c.mem->max_memory_to_use = MEMORY_MAX;
    jpeg_mem_src(&j->c, bytes, len);
    jpeg_save_markers(&j->c, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&j->c, TRUE);
    DT_TRY(orientation(j, err));
    return dt_image_check(j->c.image_width, j->c.image_height, limits, err);
}

/* The largest of 1, 2, 4, 8 by which the decoder may shrink without loss to what `spec` makes of
 * it. */
static int shrink_factor(const struct dt_image_spec *spec, int w, int h)
{
    int ow, oh, factor = 1, side = w < h ? w : h;
    if (!spec || spec->fit == DT_FIT_NONE)
        return 1;
    dt_image_fitted_size(spec, w, h, &ow, &oh);
    while (factor < 8) {
        int f = 2 * factor;
        int rw = spec->fit == DT_FIT_CROP ? side / f : w / f;
        int rh = spec->fit == DT_FIT_CROP ? side / f : h / f;
        if (rw < SHRINK_SPARE * ow || rh < SHRINK_SPARE * oh)
            break;
        factor = f;
    }
    return factor;
}

/* Adobe's CMYK is stored inverted: 255 = no ink. */
static void cmyk_row(const uint8_t *in, uint8_t *out, unsigned w, bool inverted)
{
    for (unsigned i = 0; i < w; i++, in += 4, out += 3)
        for (int k = 0; k < 3; k++) {
            unsigned ink = inverted ? in[k] : 255u - in[k], black = inverted ? in[3] : 255u - in[3];
            out[k] = (uint8_t)((ink * black + 127) / 255);
        }
}

static void pixels(struct jpeg *j, const struct dt_image_spec *spec)
{
    struct jpeg_decompress_struct *c = &j->c;
    bool cmyk = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    c->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    c->scale_num = 1;
    c->scale_denom = (unsigned)shrink_factor(spec, (int)c->image_width, (int)c->image_height);
    c->dct_method = JDCT_ISLOW; /* the same bytes with and without SIMD */
    jpeg_start_decompress(c);
    j->px = dt_malloc((size_t)c->output_width * c->output_height * 3);
    j->row = dt_malloc(cmyk ? (size_t)c->output_width * 4 : 1);
    if (!j->px || !j->row) {
        j->nomem = true;
        fail(j, "out of memory");
    }
    while (c->output_scanline < c->output_height) {
        uint8_t *to = j->px + (size_t)c->output_scanline * c->output_width * 3;
        JSAMPROW row = cmyk ? j->row : to;
        jpeg_read_scanlines(c, &row, 1);
        if (cmyk)
            cmyk_row(j->row, to, c->output_width, c->saw_Adobe_marker != 0);
    }
    jpeg_finish_decompress(c);
}

static enum dt_status finish(struct jpeg *j, bool jumped, enum dt_status st, struct dt_error *err)
{
    if (jumped)
        st = j->nomem ? dt_error_nomem(err, "an image")
                      : dt_error_set(err, DT_ERR_INPUT, "JPEG: %s", j->message);
    jpeg_destroy_decompress(&j->c);
    dt_free(j->row);
    j->row = NULL;
    if (st != DT_OK)
        dt_free(j->px);
    return st;
}

enum dt_status dt_image_jpeg_size(const uint8_t *bytes, size_t len,
                                  const struct dt_image_limits *limits, struct dt_error *err,
                                  int *w, int *h)
{
    struct jpeg j;
    enum dt_status st;
    start(&j);
    if (setjmp(j.back))
        return finish(&j, true, DT_ERR_INPUT, err);
    st = finish(&j, false, header(&j, bytes, len, limits, err), err);
    if (st == DT_OK) {
        *w = (int)j.c.image_width;
        *h = (int)j.c.image_height;
        dt_image_oriented_size(j.orientation, w, h);
    }
    return st;
}

enum dt_status dt_image_jpeg_decode(const uint8_t *bytes, size_t len,
                                    const struct dt_image_limits *limits,
                                    const struct dt_image_spec *spec, struct dt_error *err,
                                    struct dt_image *out, int *w, int *h)
{
    struct jpeg j;
    struct dt_image img;
    enum dt_status st;
    start(&j);
    if (setjmp(j.back))
        return finish(&j, true, DT_ERR_INPUT, err);
    st = header(&j, bytes, len, limits, err);
    if (st == DT_OK)
        pixels(&j, spec);
    st = finish(&j, false, st, err);
    if (st != DT_OK)
        return st;
    img = (struct dt_image){(int)j.c.output_width, (int)j.c.output_height, j.px};
    st = dt_image_orient(j.orientation, err, &img);
    if (st != DT_OK) {
        dt_image_free(&img);
        return st;
    }
    *out = img;
    *w = (int)j.c.image_width;
    *h = (int)j.c.image_height;
    dt_image_oriented_size(j.orientation, w, h);
    return DT_OK;
}
