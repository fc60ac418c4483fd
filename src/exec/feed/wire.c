/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/feed/wire.h"

#include "base/hash.h"
#include "base/mem.h"
#include "core/model/samples_build.h"
#include "exec/data/audio.h"
#include "exec/data/shard.h"

#include <math.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "spectrograms are sent as they lie in memory"
#endif

#define MAGIC 0x44465444u /* "DTFD" */
enum { WHY_MAX = 255, CRC_AT = DT_FEED_HEAD_BYTES - 4, LENGTH_AT = DT_FEED_HEAD_BYTES - 8 };

void dt_feed_bytes_free(struct dt_feed_bytes *b)
{
    dt_free(b->p);
    memset(b, 0, sizeof *b);
}

/* ---- writing: b->n is what was needed, even if memory has run out ---- */

struct writer {
    struct dt_feed_bytes *b;
    bool full;
};

static void put(struct writer *w, const void *p, size_t n)
{
    if (w->full || dt_grow((void **)&w->b->p, &w->b->cap, w->b->n + n, 1)) {
        w->full = true;
        return;
    }
    if (n > 0)
        memcpy(w->b->p + w->b->n, p, n);
    w->b->n += n;
}

static void store(uint8_t *to, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(v >> 8 * i);
}

static void put_int(struct writer *w, uint64_t v, int bytes)
{
    uint8_t le[8];

    store(le, v, bytes);
    put(w, le, (size_t)bytes);
}

static void put_text(struct writer *w, const char *text)
{
    size_t n = strlen(text);

    n = n < WHY_MAX ? n : WHY_MAX;
    put_int(w, n, 1);
    put(w, text, n);
}

static struct writer begin(const struct dt_feed_head *h, enum dt_feed_kind kind,
                           struct dt_feed_bytes *out)
{
    struct writer w = {.b = out};

    out->n = 0;
    put_int(&w, MAGIC, 4);
    put_int(&w, DT_FEED_VERSION, 2);
    put_int(&w, (uint64_t)kind, 2);
    put_int(&w, h->request, 8);
    put_int(&w, h->job, 8);
    put_int(&w, h->data, 8);
    put_int(&w, 0, 8); /* length, checksum */
    return w;
}

static uint32_t checksum(const uint8_t *bytes, size_t n)
{
    return dt_hash_crc32c(dt_hash_crc32c(0, bytes, CRC_AT), bytes + DT_FEED_HEAD_BYTES,
                          n - DT_FEED_HEAD_BYTES);
}

static enum dt_status end(struct writer *w, struct dt_error *err)
{
    struct dt_feed_bytes *b = w->b;

    if (w->full)
        return dt_error_nomem(err, "a frame");
    store(b->p + LENGTH_AT, b->n - DT_FEED_HEAD_BYTES, 4);
    store(b->p + CRC_AT, checksum(b->p, b->n), 4);
    return DT_OK;
}

enum dt_status dt_feed_encode_hello(const struct dt_feed_head *h, struct dt_error *err,
                                    struct dt_feed_bytes *out)
{
    struct writer w = begin(h, DT_FEED_HELLO, out);

    return end(&w, err);
}

enum dt_status dt_feed_encode_welcome(const struct dt_feed_head *h, const struct dt_feed_welcome *v,
                                      struct dt_error *err, struct dt_feed_bytes *out)
{
    struct writer w = begin(h, DT_FEED_WELCOME, out);

    put_int(&w, (uint64_t)v->samples, 8);
    put_int(&w, DT_BAD_COUNT, 1);
    for (int i = 0; i < DT_BAD_COUNT; i++) {
        put_int(&w, (uint64_t)v->report.bad[i], 8);
        put_text(&w, v->report.example[i]);
    }
    return end(&w, err);
}

enum dt_status dt_feed_encode_ask(const struct dt_feed_head *h, const struct dt_feed_ask *a,
                                  struct dt_error *err, struct dt_feed_bytes *out)
{
    struct writer w = begin(h, DT_FEED_ASK, out);

    put_int(&w, (uint64_t)a->released, 8);
    put_int(&w, (uint64_t)a->received, 8);
    put_int(&w, (uint64_t)a->n, 4);
    for (int i = 0; i < a->n; i++) {
        put_int(&w, (uint64_t)a->place[i], 8);
        put_int(&w, a->what[i], 1);
    }
    return end(&w, err);
}

static void put_good(struct writer *w, const struct dt_document *d, int what)
{
    put_int(w, (uint64_t)d->task, 1);
    put_int(w, (uint64_t)(d->cut | d->clip_cut << 1 | d->sound << 2), 1);
    put_int(w, (uint64_t)d->label, 8);
    put_int(w, (uint64_t)d->n_images, 4);
    for (int i = 0; i < d->n_images; i++) {
        put_int(w, (uint64_t)d->image[i].w, 4);
        put_int(w, (uint64_t)d->image[i].h, 4);
    }
    put_int(w, d->text.n, 4);
    put_int(w, (uint64_t)what, 1);
    for (size_t i = 0; what & DT_FEED_TEXT && i < d->text.n; i++)
        put_int(w, (uint32_t)d->text.id[i], 4);
    for (int i = 0; what & DT_FEED_PIXELS && i < d->n_images; i++)
        if (d->image[i].px)
            put(w, d->image[i].px, dt_sequence_bytes(d->sound, d->image[i].w, d->image[i].h));
}

enum dt_status dt_feed_encode_document(const struct dt_feed_head *h, const struct dt_document *d,
                                       int what, struct dt_error *err, struct dt_feed_bytes *out)
{
    struct writer w = begin(h, DT_FEED_DOCUMENT, out);

    put_int(&w, (uint64_t)d->place, 8);
    put_int(&w, d->sample, 8);
    put_text(&w, d->name ? d->name : "");
    put_int(&w, d->status != DT_OK, 1);
    put_int(&w, d->status != DT_OK ? (uint64_t)d->bad : 0, 1);
    put_text(&w, d->status != DT_OK ? d->why : "");
    if (d->status == DT_OK)
        put_good(&w, d, what);
    return end(&w, err);
}

enum dt_status dt_feed_encode_refuse(const struct dt_feed_head *h, const char *why,
                                     struct dt_error *err, struct dt_feed_bytes *out)
{
    struct writer w = begin(h, DT_FEED_REFUSE, out);

    put_text(&w, why);
    return end(&w, err);
}

/* ---- reading ---- */

struct reader {
    const uint8_t *p;
    size_t left;
    bool past; /* more was asked for than there is */
};

static const uint8_t *get(struct reader *r, size_t n)
{
    const uint8_t *p = r->p;

    if (r->past || n > r->left) {
        r->past = true;
        return NULL;
    }
    r->p += n;
    r->left -= n;
    return p;
}

static uint64_t get_int(struct reader *r, int bytes)
{
    const uint8_t *p = get(r, (size_t)bytes);
    uint64_t v = 0;

    for (int i = 0; p && i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* What others sent is printed: no control characters. */
static void get_text(struct reader *r, char *to, size_t size)
{
    size_t n = (size_t)get_int(r, 1), k = 0;
    const uint8_t *p = get(r, n);

    for (; p && k < n && k + 1 < size; k++)
        to[k] = p[k] < 32 || p[k] == 127 ? '?' : (char)p[k];
    to[k] = '\0';
}

static enum dt_status damaged(struct dt_error *err, const char *what)
{
    return dt_error_set(err, DT_ERR_INPUT, "a frame %s", what);
}

enum dt_status dt_feed_open(const uint8_t *bytes, size_t n, struct dt_error *err,
                            struct dt_feed_frame *out)
{
    struct reader r = {.p = bytes, .left = n};
    struct dt_feed_frame f;
    uint64_t magic, version, kind, length, crc;

    magic = get_int(&r, 4);
    version = get_int(&r, 2);
    kind = get_int(&r, 2);
    f.head.request = get_int(&r, 8);
    f.head.job = get_int(&r, 8);
    f.head.data = get_int(&r, 8);
    length = get_int(&r, 4);
    crc = get_int(&r, 4);
    if (r.past)
        return damaged(err, "that is cut short");
    if (magic != MAGIC)
        return damaged(err, "of something else than disttrain");
    if (version != DT_FEED_VERSION)
        return dt_error_set(err, DT_ERR_INPUT, "version %d of the frames, not version %d",
                            (int)version, DT_FEED_VERSION);
    if (length != r.left)
        return damaged(err, "of another length than it says");
    if (crc != checksum(bytes, n))
        return damaged(err, "whose checksum is wrong");
    if (kind < DT_FEED_HELLO || kind > DT_FEED_REFUSE)
        return damaged(err, "of unknown kind");
    f.head.kind = (enum dt_feed_kind)kind;
    f.body = r.p;
    f.n = r.left;
    *out = f;
    return DT_OK;
}

enum dt_status dt_feed_decode_welcome(const struct dt_feed_frame *f, struct dt_error *err,
                                      struct dt_feed_welcome *out)
{
    struct reader r = {.p = f->body, .left = f->n};
    struct dt_feed_welcome w = {.samples = (int64_t)get_int(&r, 8)};

    if (get_int(&r, 1) != DT_BAD_COUNT)
        return damaged(err, "with other counts of bad data");
    for (int i = 0; i < DT_BAD_COUNT; i++) {
        w.report.bad[i] = (int64_t)get_int(&r, 8);
        get_text(&r, w.report.example[i], sizeof w.report.example[i]);
        if (w.report.bad[i] < 0)
            return damaged(err, "with a count below zero");
    }
    if (r.past || r.left > 0 || w.samples < 1 || w.samples > INT64_MAX / 4)
        return damaged(err, "that greets, but makes no sense");
    *out = w;
    return DT_OK;
}

enum dt_status dt_feed_decode_ask(const struct dt_feed_frame *f, struct dt_error *err,
                                  struct dt_feed_ask *out)
{
    struct reader r = {.p = f->body, .left = f->n};
    uint64_t n;

    out->released = (int64_t)get_int(&r, 8);
    out->received = (int64_t)get_int(&r, 8);
    n = get_int(&r, 4);
    if (r.past || n > DT_FEED_ASK_MAX || r.left != 9 * n || out->released < 0 || out->received < 0)
        return damaged(err, "that asks for more than may be asked for");
    out->n = (int)n;
    for (int i = 0; i < out->n; i++) {
        out->place[i] = (int64_t)get_int(&r, 8);
        out->what[i] = (uint8_t)get_int(&r, 1);
        if (out->place[i] < 0 || out->place[i] > INT64_MAX / 4 ||
            out->what[i] & ~(DT_FEED_TEXT | DT_FEED_PIXELS))
            return damaged(err, "that asks for what there is not");
    }
    return DT_OK;
}

/* As the loader makes them: one to draw, one or a video's frames to read, a sound where the model hears, none. */
static bool images_fit(const struct dt_document *d, const struct dt_feed_limits *l)
{
    int64_t tokens = (int64_t)d->text.n + 2;

    if (d->sound != (l->mel_bins > 0 && d->task == DT_TASK_CAPTION) || (d->clip_cut && !d->sound))
        return false;
    if (d->sound && (d->n_images != 1 || d->image[0].w != l->mel_bins ||
                     d->image[0].h > dt_sample_sound_frames(DT_AUDIO_CS_MAX)))
        return false;
    if (d->task == DT_TASK_CAPTION ? d->n_images < 1 : d->n_images != (d->task != DT_TASK_TEXT))
        return false;
    for (int i = 0; i < d->n_images; i++)
        tokens += d->image[i].tokens;
    return tokens <= l->seq_len && dt_document_pixel_bytes(d) / 3 <= DT_IMAGE_PIXELS_MAX;
}

/* Sizes; how many tokens each has follows from them. */
static enum dt_status get_images(struct reader *r, const struct dt_feed_limits *l, uint64_t n,
                                 struct dt_document *d, struct dt_error *err)
{
    if (n > DT_SHARD_MEMBERS_MAX || n > r->left / 8)
        return damaged(err, "with more images than a document has");
    d->image = n > 0 ? dt_calloc((size_t)n, sizeof *d->image) : NULL;
    if (n > 0 && !d->image)
        return dt_error_nomem(err, "images of a document");
    for (uint64_t i = 0; i < n; i++) {
        uint64_t w = get_int(r, 4), h = get_int(r, 4);

        if (w < 1 || h < 1 || w > DT_IMAGE_SIDE_MAX ||
            h > (d->sound ? UINT16_MAX : DT_IMAGE_SIDE_MAX))
            return damaged(err, "with an image beyond the limits");
        d->image[d->n_images] = (struct dt_document_image){.w = (int)w, .h = (int)h};
        if (d->task == DT_TASK_CAPTION)
            d->image[d->n_images].tokens =
                (int)(d->sound ? dt_sample_sound_patches((int)h, (int)w, l->patch)
                               : dt_sample_image_tokens((int)w, (int)h, l->patch));
        d->n_images++;
    }
    return DT_OK;
}

static enum dt_status get_text_ids(struct reader *r, const struct dt_feed_limits *l,
                                   struct dt_document *d, struct dt_error *err)
{
    size_t n = d->text.n;
    const uint8_t *p = get(r, 4 * n);
    struct reader ids = {.p = p, .left = p ? 4 * n : 0};

    if (!p)
        return damaged(err, "with less text than it says");
    d->text.id = dt_malloc((n + 1) * sizeof *d->text.id);
    if (!d->text.id)
        return dt_error_nomem(err, "a text");
    d->text.cap = n + 1;
    for (size_t i = 0; i < n; i++) {
        d->text.id[i] = (int32_t)get_int(&ids, 4);
        if (d->text.id[i] < 0 || d->text.id[i] >= l->vocab)
            return damaged(err, "with a token that the vocabulary does not have");
    }
    return DT_OK;
}

static enum dt_status get_pixels(struct reader *r, const struct dt_document *d,
                                 struct dt_document_image *image, struct dt_error *err)
{
    size_t n = dt_sequence_bytes(d->sound, image->w, image->h);
    const uint8_t *p = get(r, n);

    if (!p)
        return damaged(err, "with fewer pixels than it says");
    image->px = dt_malloc(n);
    if (!image->px)
        return dt_error_nomem(err, "an image");
    memcpy(image->px, p, n);
    for (size_t i = 0; d->sound && i < n / sizeof(float); i++)
        if (!isfinite(((const float *)image->px)[i]))
            return damaged(err, "with sound that is no numbers");
    return DT_OK;
}

static enum dt_status get_good(struct reader *r, const struct dt_feed_limits *l,
                               struct dt_document *d, int *what, struct dt_error *err)
{
    uint64_t task = get_int(r, 1), cut = get_int(r, 1), images, text;

    d->label = (int64_t)get_int(r, 8);
    images = get_int(r, 4);
    if (r->past || task > DT_TASK_GENERATE || cut > 7 || d->label < -1 || l->seq_len < 4)
        return damaged(err, "with a document beyond the limits");
    d->task = (enum dt_sequence_task)task;
    d->cut = cut & 1;
    d->clip_cut = cut >> 1 & 1;
    d->sound = cut >> 2 & 1;
    DT_TRY(get_images(r, l, images, d, err));
    text = get_int(r, 4);
    *what = (int)get_int(r, 1);
    if (r->past || text > (uint64_t)l->seq_len || *what & ~(DT_FEED_TEXT | DT_FEED_PIXELS))
        return damaged(err, "with a document beyond the limits");
    d->text.n = (size_t)text;
    if (!images_fit(d, l))
        return damaged(err, "with images that its document cannot have");
    if (*what & DT_FEED_TEXT)
        DT_TRY(get_text_ids(r, l, d, err));
    for (int i = 0; *what & DT_FEED_PIXELS && i < d->n_images; i++)
        DT_TRY(get_pixels(r, d, &d->image[i], err));
    return DT_OK;
}

enum dt_status dt_feed_decode_document(const struct dt_feed_frame *f,
                                       const struct dt_feed_limits *l, struct dt_error *err,
                                       int *what, struct dt_document *out)
{
    struct reader r = {.p = f->body, .left = f->n};
    struct dt_document d = {.place = (int64_t)get_int(&r, 8)};
    enum dt_status st = DT_OK;
    char name[WHY_MAX + 1];
    uint64_t status, kind;
    int sent = 0;

    d.sample = get_int(&r, 8);
    get_text(&r, name, sizeof name);
    status = get_int(&r, 1);
    kind = get_int(&r, 1);
    get_text(&r, d.why, sizeof d.why);
    if (r.past || d.place < 0 || d.sample >= (uint64_t)l->samples || status > 1 ||
        kind >= DT_BAD_COUNT || (status == 0 && d.why[0]))
        return damaged(err, "with a document that there is not");
    d.status = status ? DT_ERR_INPUT : DT_OK;
    d.bad = (enum dt_data_bad_kind)kind;
    d.name = dt_strdup(name);
    st = d.name ? DT_OK : dt_error_nomem(err, "the name of a sample");
    if (st == DT_OK && d.status == DT_OK)
        st = get_good(&r, l, &d, &sent, err);
    if (st == DT_OK && r.left > 0)
        st = damaged(err, "with more than its document");
    if (st != DT_OK) {
        dt_document_free(&d);
        return st;
    }
    *what = sent;
    *out = d;
    return DT_OK;
}

void dt_feed_decode_refuse(const struct dt_feed_frame *f, char *why, size_t size)
{
    struct reader r = {.p = f->body, .left = f->n};

    get_text(&r, why, size);
}
