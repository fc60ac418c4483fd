/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/pack.h"

#include "base/file.h"
#include "base/mem.h"
#include "exec/data/audio.h"
#include "exec/data/caption.h"
#include "exec/data/idx.h"
#include "exec/data/image.h"
#include "exec/data/shard.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 32, SHARD_SAMPLES = 10000, FILE_MAX = 64 << 20, CAPTION_MAX = 1 << 20 };
#define SHARD_BYTES ((int64_t)1 << 30)

struct packer {
    const struct dt_pack_options *o;
    struct dt_shard_writer *w;
    struct dt_data_report *report;
    struct dt_error *err;
    int64_t samples;
    size_t root; /* length of the folder's path */
};

static bool full(const struct packer *p)
{
    return p->o->limit && p->samples >= p->o->limit;
}

static enum dt_status start(struct packer *p)
{
    int64_t n = p->o->shard_samples ? p->o->shard_samples : SHARD_SAMPLES;
    return dt_shard_writer_open(p->o->prefix, n, SHARD_BYTES, p->err, &p->w);
}

static enum dt_status finish(struct packer *p, enum dt_status st, struct dt_pack_result *out)
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

static enum dt_status write(struct packer *p, const char *key, const struct dt_shard_member *m,
                            int n)
{
    DT_TRY(dt_shard_write(p->w, key, m, n, p->err));
    p->samples++;
    p->report->documents++;
    return DT_OK;
}

/* ---- folders ---- */

static bool is_sound(const char *ext)
{
    return strcmp(ext, "wav") == 0 || strcmp(ext, "flac") == 0;
}

static const char *item_ext(const char *name)
{
    static const char *const exts[] = {"jpg", "jpeg", "png", "webp", "wav", "flac", NULL};
    const char *dot = strrchr(name, '.');
    for (int i = 0; dot && dot > name && exts[i]; i++)
        if (strcasecmp(dot + 1, exts[i]) == 0)
            return exts[i];
    return NULL;
}

static bool blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isspace((unsigned char)s[i]))
            return false;
    return true;
}

/* The caption beside `path` (a copy that may be changed, its extension at `dot`). */
static enum dt_status beside(char *path, size_t size, size_t dot, struct dt_error *err, char **text,
                             size_t *len, const char **ext)
{
    static const char *const exts[] = {"txt", "json", NULL};
    struct stat sb;
    for (int i = 0; exts[i]; i++) {
        snprintf(path + dot, size - dot, ".%s", exts[i]);
        if (stat(path, &sb) == 0) {
            *ext = exts[i];
            return dt_file_read(path, CAPTION_MAX, err, text, len);
        }
    }
    *text = NULL;
    return DT_OK;
}

static enum dt_status bad_file(struct packer *p, enum dt_data_bad_kind kind, const char *path,
                               const char *what)
{
    struct dt_error why;
    dt_error_at(&why, DT_ERR_INPUT, path, 0, 0, "%s", what);
    *p->err = why;
    return dt_data_bad(p->report, kind, &why);
}

/* Sees that the sound can be read as a whole; *ok tells. */
static enum dt_status check_sound(struct packer *p, const char *path, const char *bytes, size_t len,
                                  bool *ok)
{
    struct dt_audio a = {0};
    struct dt_error why;
    enum dt_audio_bad bad;
    enum dt_status st =
        dt_audio_decode((const uint8_t *)bytes, len, DT_AUDIO_CS_MAX, &why, &a, &bad);

    dt_free(a.at);
    *ok = st == DT_OK;
    if (st == DT_ERR_INPUT)
        return bad_file(p, bad == DT_AUDIO_LIMIT ? DT_BAD_AUDIO_LIMIT : DT_BAD_AUDIO, path,
                        why.message);
    if (st != DT_OK)
        *p->err = why;
    return st;
}

/* Sees that the image can be read; *ok tells. */
static enum dt_status check_image(struct packer *p, const char *path, const char *bytes, size_t len,
                                  bool *ok)
{
    static const struct dt_image_limits any = {INT_MAX, INT64_MAX};
    const uint8_t *b = (const uint8_t *)bytes;
    struct dt_image img = {0};
    struct dt_error why;
    int w, h;
    enum dt_status st = dt_image_decode(b, len, NULL, &why, &img);
    dt_image_free(&img);
    *ok = st == DT_OK;
    if (*ok)
        return DT_OK;
    if (st != DT_ERR_INPUT) {
        *p->err = why;
        return st;
    }
    struct dt_error ignored;
    bool large = dt_image_size(b, len, &any, &ignored, &w, &h) == DT_OK &&
                 dt_image_size(b, len, NULL, &ignored, &w, &h) != DT_OK;
    return bad_file(p, large ? DT_BAD_IMAGE_SIZE : DT_BAD_IMAGE, path, why.message);
}

static enum dt_status pack_pair(struct packer *p, const char *path, const char *ext, char *image,
                                size_t image_len, const char *text, size_t text_len,
                                const char *text_ext)
{
    char key[PATH_MAX], *base;
    struct dt_shard_member m[2] = {{ext, (const uint8_t *)image, image_len},
                                   {text_ext, (const uint8_t *)text, text_len}};
    bool ok;
    if (!text)
        return bad_file(p, DT_BAD_NO_CAPTION, path, "there is no .txt or .json next to it");
    if (blank(text, text_len))
        return bad_file(p, DT_BAD_EMPTY_CAPTION, path, "its caption is empty");
    DT_TRY((is_sound(ext) ? check_sound : check_image)(p, path, image, image_len, &ok));
    if (!ok)
        return DT_OK;
    snprintf(key, sizeof key, "%s", path + p->root);
    *strrchr(key, '.') = '\0';
    base = strrchr(key, '/');
    for (base = base ? base + 1 : key; *base; base++)
        if (*base == '.')
            *base = '_';
    return write(p, key, m, 2);
}

static enum dt_status pack_file(struct packer *p, const char *path, const char *ext)
{
    char other[PATH_MAX], *image = NULL, *text = NULL;
    const char *text_ext = "txt";
    size_t image_len = 0, text_len = 0, dot = (size_t)(strrchr(path, '.') - path);
    struct dt_error why;
    enum dt_status st;
    memcpy(other, path, dot);
    st = beside(other, sizeof other, dot, &why, &text, &text_len, &text_ext);
    if (st == DT_ERR_INPUT) /* too long */
        return bad_file(p, DT_BAD_CAPTION, path, why.message);
    if (st == DT_OK)
        st = dt_file_read(path, FILE_MAX, &why, &image, &image_len);
    if (st == DT_ERR_INPUT)
        st = bad_file(p, DT_BAD_SAMPLE, path, why.message);
    else if (st != DT_OK)
        *p->err = why;
    if (st == DT_OK && image)
        st = pack_pair(p, path, ext, image, image_len, text, text_len, text_ext);
    dt_free(image);
    dt_free(text);
    return st;
}

static enum dt_status pack_dir(struct packer *p, const char *dir, int depth)
{
    struct dirent **e = NULL;
    enum dt_status st = DT_OK;
    int n = scandir(dir, &e, NULL, alphasort);
    if (n < 0)
        return dt_error_at(p->err, DT_ERR_INPUT, dir, 0, 0, "cannot read the folder: %s",
                           strerror(errno));
    for (int i = 0; i < n && st == DT_OK && !full(p); i++) {
        char path[PATH_MAX];
        const char *ext;
        struct stat sb;
        if (e[i]->d_name[0] == '.')
            continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, e[i]->d_name) >= PATH_MAX - 8 ||
            lstat(path, &sb) != 0)
            continue;
        ext = item_ext(e[i]->d_name);
        if (S_ISDIR(sb.st_mode) && depth < DEPTH_MAX)
            st = pack_dir(p, path, depth + 1);
        else if (!S_ISDIR(sb.st_mode) && ext)
            st = pack_file(p, path, ext);
    }
    for (int i = 0; i < n; i++)
        free(e[i]);
    free(e);
    return st;
}

enum dt_status dt_pack_folders(const char *const *dirs, int n, const struct dt_pack_options *o,
                               struct dt_data_report *report, struct dt_error *err,
                               struct dt_pack_result *out)
{
    struct packer p = {.o = o, .report = report, .err = err};
    enum dt_status st = start(&p);
    if (st != DT_OK)
        return st;
    for (int i = 0; i < n && st == DT_OK; i++) {
        char dir[PATH_MAX];
        size_t len = strlen(dirs[i]);
        while (len > 1 && dirs[i][len - 1] == '/')
            len--;
        if (len >= sizeof dir)
            st = dt_error_set(err, DT_ERR_INPUT, "file name too long");
        if (st != DT_OK)
            break;
        snprintf(dir, sizeof dir, "%.*s", (int)len, dirs[i]);
        p.root = len + 1;
        st = pack_dir(&p, dir, 0);
    }
    return finish(&p, st, out);
}

/* ---- IDX ---- */

static enum dt_status pack_picture(struct packer *p, const uint8_t *grey, int w, int h,
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
    st = write(p, key, m, 3);
    dt_free(png);
    return st;
}

static enum dt_status pack_pictures(struct packer *p, const struct dt_idx *x,
                                    const struct dt_idx *y, const char *path,
                                    const char *const *words, struct dt_image *img)
{
    int h = (int)x->size[1], w = (int)x->size[2], classes = 0;
    while (words[classes])
        classes++;
    for (uint32_t i = 0; i < x->size[0] && !full(p); i++) {
        int label = y->data[i];
        if (label >= classes) {
            char what[80];
            snprintf(what, sizeof what, "label %d of picture %u; there are names for %d", label, i,
                     classes);
            DT_TRY(bad_file(p, DT_BAD_CAPTION, path, what));
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
    struct packer p = {.o = o, .report = report, .err = err};
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
        st = start(&p);
    if (st == DT_OK)
        st = finish(&p, pack_pictures(&p, &x, &y, labels, words, &img), out);
    dt_image_free(&img);
    dt_idx_free(&x);
    dt_idx_free(&y);
    return st;
}
