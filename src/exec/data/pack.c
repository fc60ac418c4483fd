/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Packing: what its sources share, and IDX files. */
#include "exec/data/pack_impl.h"

#include "base/mem.h"
#include "exec/data/caption.h"
#include "exec/data/idx.h"
#include "exec/data/image.h"

#include <stdio.h>
#include <string.h>

enum { SHARD_SAMPLES = 10000 };
#define SHARD_BYTES ((int64_t)1 << 30)

bool dt_pack_full(const struct dt_pack_state *p)
{
    return p->o->limit && p->samples >= p->o->limit;
}

enum dt_status dt_pack_start(struct dt_pack_state *p)
{
    int64_t n = p->o->shard_samples ? p->o->shard_samples : SHARD_SAMPLES;
    return dt_shard_writer_open(p->o->prefix, n, SHARD_BYTES, p->o->replace, p->err, &p->w);
}

enum dt_status dt_pack_finish(struct dt_pack_state *p, enum dt_status st,
                              struct dt_pack_result *out)
{
    int shards;
    const char *first = NULL;
    for (int i = 0; i < DT_BAD_COUNT && !first; i++)
        first = p->report->bad[i] ? p->report->example[i] : NULL;
    if (st == DT_OK && p->samples == 0)
        st = dt_error_set(p->err, DT_ERR_INPUT, "nothing to pack%s%s",
                          first ? ": every sample is bad, for instance " : "", first ? first : "");
    if (st != DT_OK) {
        dt_shard_writer_abort(p->w);
        return st;
    }
    DT_TRY(dt_shard_writer_close(p->w, p->err, &shards));
    *out = (struct dt_pack_result){p->samples, shards};
    return DT_OK;
}

enum dt_status dt_pack_write(struct dt_pack_state *p, const char *key,
                             const struct dt_shard_member *m, int n)
{
    DT_TRY(dt_shard_write(p->w, key, m, n, p->err));
    p->samples++;
    p->report->documents++;
    return DT_OK;
}

enum dt_status dt_pack_bad(struct dt_pack_state *p, enum dt_data_bad_kind kind, const char *path,
                           int line, int col, const char *what)
{
    struct dt_error why;
    dt_error_at(&why, DT_ERR_INPUT, path, line, col, "%s", what);
    if (p->err)
        *p->err = why;
    return dt_data_bad(p->report, kind, &why);
}

/* ---- IDX ---- */

static enum dt_status pack_picture(struct dt_pack_state *p, const uint8_t *grey, int w, int h,
                                   struct dt_image *img, int64_t i, int label, const char *word)
{
    char key[24], text[256], cls[16];
    struct dt_shard_member m[3] = {
        {"png", NULL, 0}, {"txt", (const uint8_t *)text, 0}, {"cls", (const uint8_t *)cls, 0}};
    uint8_t *png;
    enum dt_status st;
    for (size_t k = 0; k < (size_t)w * (size_t)h; k++)
        memset(img->px + 3 * k, grey[k], 3);
    DT_TRY(dt_image_encode_png(img, 1, p->err, &png, &m[0].len));
    m[0].data = png;
    snprintf(key, sizeof key, "%08lld", (long long)i);
    m[1].len = (size_t)dt_caption_write(grey, w, h, word, text, sizeof text);
    m[1].len = m[1].len < sizeof text ? m[1].len : sizeof text - 1;
    m[2].len = (size_t)snprintf(cls, sizeof cls, "%d", label);
    st = dt_pack_write(p, key, m, 3);
    dt_free(png);
    return st;
}

static enum dt_status pack_pictures(struct dt_pack_state *p, const struct dt_idx *x,
                                    const struct dt_idx *y, const char *path,
                                    const char *const *words, struct dt_image *img)
{
    int h = (int)x->size[1], w = (int)x->size[2], classes = 0;
    while (words[classes])
        classes++;
    for (uint32_t i = 0; i < x->size[0] && !dt_pack_full(p); i++) {
        int label = y->data[i];
        if (label >= classes) {
            char what[80];
            snprintf(what, sizeof what, "label %d of picture %u; there are names for %d", label, i,
                     classes);
            DT_TRY(dt_pack_bad(p, DT_BAD_CAPTION, path, 0, 0, what));
            continue;
        }
        DT_TRY(pack_picture(p, x->data + (size_t)i * (size_t)w * (size_t)h, w, h, img, i, label,
                            words[label]));
    }
    return DT_OK;
}

enum dt_status dt_pack_idx(const char *images, const char *labels, const char *const *words,
                           const struct dt_pack_options *o, struct dt_data_report *report,
                           struct dt_error *err, struct dt_pack_result *out)
{
    struct dt_pack_state p = {.o = o, .report = report, .err = err};
    struct dt_idx x = {0}, y = {0};
    struct dt_image img = {0};
    enum dt_status st = dt_idx_read(images, 0, err, &x);
    if (st == DT_OK)
        st = dt_idx_read(labels, 0, err, &y);
    if (st == DT_OK && x.dims != 3)
        st = dt_error_at(err, DT_ERR_INPUT, images, 0, 0, "not pictures: %d dimensions, not 3",
                         x.dims);
    if (st == DT_OK && (y.dims != 1 || y.size[0] != x.size[0]))
        st = dt_error_at(err, DT_ERR_INPUT, labels, 0, 0, "these are not %u labels", x.size[0]);
    if (st == DT_OK && (x.size[1] > DT_IMAGE_SIDE_MAX || x.size[2] > DT_IMAGE_SIDE_MAX))
        st = dt_error_at(err, DT_ERR_INPUT, images, 0, 0, "pictures of %u x %u pixels", x.size[2],
                         x.size[1]);
    if (st == DT_OK)
        st = dt_image_new((int)x.size[2], (int)x.size[1], err, &img);
    if (st == DT_OK)
        st = dt_pack_start(&p);
    if (st == DT_OK)
        st = dt_pack_finish(&p, pack_pictures(&p, &x, &y, labels, words, &img), out);
    dt_image_free(&img);
    dt_idx_free(&x);
    dt_idx_free(&y);
    return st;
}
