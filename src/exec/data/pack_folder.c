/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Packing folders of images and sounds, with captions beside them or in one file. */
#include "exec/data/pack_impl.h"

#include "base/file.h"
#include "base/mem.h"
#include "exec/data/audio.h"
#include "exec/data/frames.h"
#include "exec/data/image.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 32, FILE_MAX = 64 << 20, CAPTION_MAX = 1 << 20 };

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

/* ---- captions ---- */

struct caption {
    const char *text, *ext; /* as the member that it becomes */
    size_t len;
    char *own;   /* what it lies in, where that is ours; dt_free */
    bool usable; /* it is there; what is not was counted */
};

static enum dt_status listed(struct dt_pack_state *p, const char *path, struct caption *c)
{
    const char *file = dt_pack_captions_path(p->o->captions);
    struct dt_pack_caption *row = dt_pack_captions_find(p->o->captions, path + p->root);
    char what[300], name[200];

    if (!row) {
        snprintf(what, sizeof what, "%.250s has no caption for it", file);
        return dt_pack_bad(p, DT_BAD_NO_CAPTION, path, 0, 0, what);
    }
    row->used = true;
    if (blank(row->text, row->len)) {
        snprintf(what, sizeof what, "the caption of %s is empty",
                 dt_pack_captions_quote(row->name, name, sizeof name));
        return dt_pack_bad(p, DT_BAD_EMPTY_CAPTION, file, row->line, row->col, what);
    }
    *c = (struct caption){.text = row->text, .ext = "txt", .len = row->len, .usable = true};
    return DT_OK;
}

/* Of the image or folder of frames at `path`, whose name without extension has `stem` bytes. */
static enum dt_status find_caption(struct dt_pack_state *p, const char *path, size_t stem,
                                   struct caption *c)
{
    char other[PATH_MAX];
    struct dt_error why;
    enum dt_status st;

    *c = (struct caption){.ext = "txt"};
    if (p->o->captions)
        return listed(p, path, c);
    memcpy(other, path, stem);
    st = beside(other, sizeof other, stem, &why, &c->own, &c->len, &c->ext);
    if (st == DT_ERR_INPUT) /* too long */
        return dt_pack_bad(p, DT_BAD_CAPTION, path, 0, 0, why.message);
    if (st != DT_OK)
        return dt_error_pass(p->err, &why);
    if (!c->own)
        return dt_pack_bad(p, DT_BAD_NO_CAPTION, path, 0, 0,
                           "there is no .txt or .json next to it");
    c->text = c->own;
    c->usable = !blank(c->text, c->len);
    return c->usable ? DT_OK
                     : dt_pack_bad(p, DT_BAD_EMPTY_CAPTION, path, 0, 0, "its caption is empty");
}

/* Those of images that are not there. */
static enum dt_status report_unused(struct dt_pack_state *p)
{
    struct dt_pack_captions *c = p->o->captions;

    for (size_t i = 0; c && !dt_pack_full(p) && i < dt_pack_captions_count(c); i++) {
        const struct dt_pack_caption *row = dt_pack_captions_at(c, i);
        char what[300], name[200];

        if (row->used)
            continue;
        snprintf(what, sizeof what, "%s is in none of the folders",
                 dt_pack_captions_quote(row->name, name, sizeof name));
        DT_TRY(
            dt_pack_bad(p, DT_BAD_NO_IMAGE, dt_pack_captions_path(c), row->line, row->col, what));
    }
    return DT_OK;
}

/* ---- one image or sound ---- */

/* Sees that the sound can be read as a whole; *ok tells. */
static enum dt_status check_sound(struct dt_pack_state *p, const char *path, const char *bytes,
                                  size_t len, bool *ok)
{
    struct dt_audio a = {0};
    struct dt_error why;
    enum dt_audio_bad bad;
    enum dt_status st =
        dt_audio_decode((const uint8_t *)bytes, len, DT_AUDIO_CS_MAX, &why, &a, &bad);

    dt_free(a.at);
    *ok = st == DT_OK;
    if (st == DT_ERR_INPUT)
        return dt_pack_bad(p, bad == DT_AUDIO_LIMIT ? DT_BAD_AUDIO_LIMIT : DT_BAD_AUDIO, path, 0, 0,
                           why.message);
    return st == DT_OK ? DT_OK : dt_error_pass(p->err, &why);
}

/* Sees that the image can be read; *ok tells. */
static enum dt_status check_image(struct dt_pack_state *p, const char *path, const char *bytes,
                                  size_t len, bool *ok)
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
    return dt_pack_bad(p, large ? DT_BAD_IMAGE_SIZE : DT_BAD_IMAGE, path, 0, 0, why.message);
}

/* Reads an image or a sound and sees that it can be decoded; NULL: it was counted. */
static enum dt_status read_item(struct dt_pack_state *p, const char *path, const char *ext,
                                char **image, size_t *len)
{
    struct dt_error why;
    enum dt_status st = dt_file_read(path, FILE_MAX, &why, image, len);
    bool ok;

    if (st != DT_OK)
        *image = NULL;
    if (st == DT_ERR_INPUT)
        return dt_pack_bad(p, DT_BAD_SAMPLE, path, 0, 0, why.message);
    if (st != DT_OK)
        return dt_error_pass(p->err, &why);
    st = (is_sound(ext) ? check_sound : check_image)(p, path, *image, *len, &ok);
    if (st != DT_OK || !ok) {
        dt_free(*image);
        *image = NULL;
    }
    return st;
}

/* ---- keys ---- */

enum { OF_KEY = -1, SEEN_MIN = 1024 };

/* Of a key, or of a path in the folder of that number. */
struct seen {
    uint64_t id[2]; /* hash, and which */
};

static struct seen seen_of(int which, const char *text, size_t len)
{
    uint64_t h = dt_hash_bytes(dt_hash_number(DT_HASH_START, (uint64_t)which), text, len);

    return (struct seen){{h ? h : 1, (uint64_t)which}};
}

static bool was_seen(const struct dt_pack_state *p, struct seen s)
{
    uint64_t first = 0;

    if (p->seen.cap > 0)
        memcpy(&first, dt_hash_table_place(&p->seen, sizeof s, s.id), sizeof first);
    return first != 0;
}

static enum dt_status see(struct dt_pack_state *p, struct seen s)
{
    return dt_hash_table_of(&p->seen, sizeof s, SEEN_MIN, s.id, NULL)
               ? DT_OK
               : dt_error_nomem(p->err, "the keys of samples");
}

/* The path below the folder, behind the folder's number where there are several; no dot in its last part, and a number
 * behind it where another name has become the same. */
static void key_of(const struct dt_pack_state *p, const char *path, size_t stem, char *key,
                   size_t size)
{
    size_t n = 0;
    char *base;

    if (p->folder > 0)
        n = (size_t)snprintf(key, size, "%d/", p->folder);
    snprintf(key + n, size - n, "%.*s", (int)(stem - p->root), path + p->root);
    base = strrchr(key, '/');
    for (base = base ? base + 1 : key; *base; base++)
        if (*base == '.')
            *base = '_';
    n = strlen(key);
    for (int i = 2; was_seen(p, seen_of(OF_KEY, key, strlen(key))); i++)
        snprintf(key + n, size - n, "_%d", i);
}

/* Of images and sounds of one name one has the caption that is beside them. */
static enum dt_status write_once(struct dt_pack_state *p, const char *path, size_t stem,
                                 const struct dt_shard_member *m, int n)
{
    struct seen name = seen_of(p->folder, path, stem);
    char key[PATH_MAX + 64];

    if (!p->o->captions && was_seen(p, name))
        return dt_pack_bad(p, DT_BAD_SAMPLE, path, 0, 0,
                           "another file has this name but for its extension, and was packed");
    key_of(p, path, stem, key, sizeof key);
    if (!p->o->captions)
        DT_TRY(see(p, name));
    DT_TRY(see(p, seen_of(OF_KEY, key, strlen(key))));
    return dt_pack_write(p, key, m, n);
}

static enum dt_status pack_file(struct dt_pack_state *p, const char *path, const char *ext)
{
    size_t len = 0, dot = (size_t)(strrchr(path, '.') - path);
    char *image = NULL;
    struct dt_error why;
    struct caption c;
    enum dt_status st;

    if (dt_file_check(path, &why) !=
        DT_OK) /* a pipe: more to the point than its lack of a caption */
        return dt_pack_bad(p, DT_BAD_SAMPLE, path, 0, 0, why.message);
    st = find_caption(p, path, dot, &c);
    if (st == DT_OK && c.usable)
        st = read_item(p, path, ext, &image, &len);
    if (st == DT_OK && image) {
        struct dt_shard_member m[2] = {{ext, (const uint8_t *)image, len},
                                       {c.ext, (const uint8_t *)c.text, c.len}};

        st = write_once(p, path, dot, m, 2);
    }
    dt_free(image);
    dt_free(c.own);
    return st;
}

/* ---- a folder of frames ---- */

struct frame {
    int64_t number;
    char *path, *bytes;
    size_t len;
    const char *ext;
    char name[32]; /* of the member, behind the key */
};
struct video {
    struct frame *frame;
    size_t n, cap;
};

/* The last number in a name, before its extension; -1 if there is none. */
static int64_t number_in(const char *name)
{
    const char *end = strrchr(name, '.'), *at = end;
    int64_t v = 0;

    while (at > name && !isdigit((unsigned char)at[-1]))
        at--;
    end = at;
    while (at > name && isdigit((unsigned char)at[-1]))
        at--;
    if (at == end || end - at > 9)
        return -1;
    for (; at < end; at++)
        v = 10 * v + *at - '0';
    return v;
}

static int by_number(const void *a, const void *b)
{
    const struct frame *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

static enum dt_status add_frame(struct video *v, const char *path, const char *ext,
                                struct dt_error *err)
{
    struct frame *f;

    if (dt_grow((void **)&v->frame, &v->cap, v->n + 1, sizeof *v->frame))
        return dt_error_nomem(err, "frames");
    f = &v->frame[v->n];
    *f = (struct frame){
        .number = number_in(strrchr(path, '/') + 1), .path = dt_strdup(path), .ext = ext};
    if (!f->path)
        return dt_error_nomem(err, "frames");
    v->n++;
    return DT_OK;
}

static void free_video(struct video *v)
{
    for (size_t i = 0; i < v->n; i++) {
        dt_free(v->frame[i].path);
        dt_free(v->frame[i].bytes);
    }
    dt_free(v->frame);
}

/* In their order; *ok: each has a number of its own. */
static enum dt_status order_frames(struct dt_pack_state *p, struct video *v, bool *ok)
{
    *ok = false;
    qsort(v->frame, v->n, sizeof *v->frame, by_number);
    for (size_t i = 0; i < v->n; i++) {
        if (v->frame[i].number < 0)
            return dt_pack_bad(p, DT_BAD_SAMPLE, v->frame[i].path, 0, 0,
                               "a frame without a number in its name");
        if (i > 0 && v->frame[i].number == v->frame[i - 1].number)
            return dt_pack_bad(p, DT_BAD_SAMPLE, v->frame[i].path, 0, 0,
                               "a second frame of this number");
    }
    *ok = true;
    return DT_OK;
}

/* Bytes of a member in a shard: its header, and itself in whole blocks. */
static size_t in_shard(size_t len)
{
    return 512 + (len + 511) / 512 * 512;
}

/* The frames that are taken, as members; *ok: all of them can be used. */
static enum dt_status read_frames(struct dt_pack_state *p, const char *dir, struct video *v,
                                  size_t caption_len, struct dt_shard_member *m, int *n_out,
                                  bool *ok)
{
    int n = dt_data_frames_taken(&p->o->frames, (int)v->n);
    size_t bytes = in_shard(caption_len);

    *ok = false;
    if (n > DT_SHARD_MEMBERS_MAX - 1)
        return dt_pack_bad(p, DT_BAD_TOO_LONG, dir, 0, 0,
                           "more than 1023 frames; --frame-stride or --frames-max takes fewer");
    for (int i = 0; i < n; i++) {
        struct frame *f = &v->frame[dt_data_frames_at(&p->o->frames, (int)v->n, i)];

        DT_TRY(read_item(p, f->path, f->ext, &f->bytes, &f->len));
        if (!f->bytes)
            return DT_OK;
        bytes += in_shard(f->len);
        if (bytes > FILE_MAX)
            return dt_pack_bad(p, DT_BAD_TOO_LONG, dir, 0, 0,
                               "frames of more than 64 MiB; --frame-stride or --frames-max takes "
                               "fewer");
        snprintf(f->name, sizeof f->name, "%06lld.%s", (long long)f->number, f->ext);
        m[i] = (struct dt_shard_member){f->name, (const uint8_t *)f->bytes, f->len};
    }
    *n_out = n;
    *ok = true;
    return DT_OK;
}

static enum dt_status pack_video(struct dt_pack_state *p, const char *dir, struct video *v)
{
    struct dt_shard_member m[DT_SHARD_MEMBERS_MAX];
    size_t stem = strlen(dir);
    struct caption c;
    bool ok = false;
    int n = 0;
    enum dt_status st;

    if (stem < p->root)
        return dt_pack_bad(p, DT_BAD_SAMPLE, v->frame[0].path, 0, 0,
                           "a frame that is in no folder of its video");
    st = find_caption(p, dir, stem, &c);
    if (st == DT_OK && c.usable)
        st = order_frames(p, v, &ok);
    if (st == DT_OK && ok)
        st = read_frames(p, dir, v, c.len, m, &n, &ok);
    if (st == DT_OK && ok) {
        m[n++] = (struct dt_shard_member){c.ext, (const uint8_t *)c.text, c.len};
        st = write_once(p, dir, stem, m, n);
    }
    dt_free(c.own);
    return st;
}

/* ---- folders ---- */

static enum dt_status pack_dir(struct dt_pack_state *p, const char *dir, int depth);

static enum dt_status pack_entry(struct dt_pack_state *p, const char *path, int depth,
                                 struct video *v)
{
    const char *ext = item_ext(strrchr(path, '/') + 1);
    struct stat sb;

    if (lstat(path, &sb) != 0)
        return DT_OK;
    if (S_ISDIR(sb.st_mode))
        return depth < DEPTH_MAX ? pack_dir(p, path, depth + 1) : DT_OK;
    if (!ext)
        return DT_OK;
    if (p->o->videos) /* whose frames are images */
        return is_sound(ext) ? DT_OK : add_frame(v, path, ext, p->err);
    return pack_file(p, path, ext);
}

static enum dt_status pack_dir(struct dt_pack_state *p, const char *dir, int depth)
{
    struct dirent **e = NULL;
    enum dt_status st = DT_OK;
    struct video v = {.n = 0};
    int n = scandir(dir, &e, NULL, alphasort);
    if (n < 0)
        return dt_error_at(p->err, DT_ERR_INPUT, dir, 0, 0, "cannot read the folder: %s",
                           strerror(errno));
    for (int i = 0; i < n && st == DT_OK && !dt_pack_full(p); i++) {
        char path[PATH_MAX];
        if (e[i]->d_name[0] != '.' &&
            snprintf(path, sizeof path, "%s/%s", dir, e[i]->d_name) < PATH_MAX - 8)
            st = pack_entry(p, path, depth, &v);
    }
    for (int i = 0; i < n; i++)
        free(e[i]);
    free(e);
    if (st == DT_OK && v.n > 0 && !dt_pack_full(p))
        st = pack_video(p, dir, &v);
    free_video(&v);
    return st;
}

enum dt_status dt_pack_folders(const char *const *dirs, int n, const struct dt_pack_options *o,
                               struct dt_data_report *report, struct dt_error *err,
                               struct dt_pack_result *out)
{
    struct dt_pack_state p = {.o = o, .report = report, .err = err};
    enum dt_status st = dt_pack_start(&p);
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
        p.folder = n > 1 ? i + 1 : 0;
        st = pack_dir(&p, dir, 0);
    }
    dt_hash_table_free(&p.seen);
    if (st == DT_OK)
        st = report_unused(&p);
    return dt_pack_finish(&p, st, out);
}
