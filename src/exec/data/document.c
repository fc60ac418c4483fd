/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/document.h"

#include "base/doc.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "core/model/samples_build.h"
#include "exec/data/audio.h"
#include "exec/data/fbank.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAPTION_BYTES_MAX = 1 << 20, TASK_STREAM = 0x7461736b, DROP_STREAM = 0x64726f70 };

static void drop_images(struct dt_document *d)
{
    for (int i = 0; i < d->n_images; i++)
        dt_free(d->image[i].px);
    dt_free(d->image);
    d->image = NULL;
    d->n_images = 0;
}

void dt_document_free(struct dt_document *d)
{
    dt_tokenizer_ids_free(&d->text);
    drop_images(d);
    dt_free(d->name);
    memset(d, 0, sizeof *d);
}

int dt_document_image_tokens(const struct dt_document *d)
{
    int n = 0;
    for (int i = 0; i < d->n_images; i++)
        n += d->image[i].tokens;
    return n;
}

int dt_document_tokens(const struct dt_document *d)
{
    return 2 + dt_document_image_tokens(d) + (int)d->text.n;
}

int64_t dt_document_pixel_bytes(const struct dt_document *d)
{
    int64_t n = 0;
    for (int i = 0; i < d->n_images; i++)
        n += (int64_t)dt_sequence_bytes(d->sound, d->image[i].w, d->image[i].h);
    return n;
}

struct maker {
    const struct dt_loader_options *o;
    const struct dt_shard_sample *s;
    struct dt_document *d;
    bool pixels;
    struct dt_error err;
};

static enum dt_status bad(struct maker *m, enum dt_data_bad_kind kind, enum dt_status st)
{
    m->d->bad = kind;
    return st;
}

static const struct dt_shard_member *find(const struct dt_shard_sample *s, const char *const *exts)
{
    for (int e = 0; exts[e]; e++)
        for (int i = 0; i < s->n_members; i++)
            if (strcmp(s->member[i].ext, exts[e]) == 0)
                return &s->member[i];
    return NULL;
}

/* ---- text ---- */

static enum dt_status encode_text(struct maker *m, const char *text, size_t len)
{
    while (len && isspace((unsigned char)text[len - 1]))
        len--;
    while (len && isspace((unsigned char)*text)) {
        text++;
        len--;
    }
    if (len == 0)
        return bad(m, DT_BAD_EMPTY_CAPTION,
                   dt_error_set(&m->err, DT_ERR_INPUT, "the caption is empty"));
    if (len > CAPTION_BYTES_MAX)
        return bad(m, DT_BAD_CAPTION,
                   dt_error_set(&m->err, DT_ERR_INPUT, "a caption of %zu bytes", len));
    for (size_t i = 0, n; i < len; i += n) {
        n = dt_utf8_length(text + i, len - i);
        if (n == 0 || text[i] == '\0')
            return bad(m, DT_BAD_CAPTION,
                       dt_error_set(&m->err, DT_ERR_INPUT, "the caption is not UTF-8 text"));
    }
    return dt_tokenizer_encode(m->o->tokenizer, text, len, false, &m->err, &m->d->text);
}

static enum dt_status json_text(struct maker *m, const struct dt_shard_member *f)
{
    static const char *const keys[] = {"caption", "text", NULL};
    struct dt_doc *doc;
    const char *text = NULL;
    enum dt_status st;

    if (f->len > CAPTION_BYTES_MAX)
        return bad(m, DT_BAD_CAPTION,
                   dt_error_set(&m->err, DT_ERR_INPUT, "a json member of %zu bytes", f->len));
    st = dt_doc_parse("json", (const char *)f->data, f->len, &m->err, &doc);
    if (st != DT_OK)
        return bad(m, DT_BAD_CAPTION, st);
    for (int i = 0; keys[i] && !text && dt_node_is_map(dt_doc_root(doc)); i++) {
        struct dt_node n = dt_map_get(dt_doc_root(doc), keys[i]);

        text = dt_node_present(n) && !dt_node_is_null(n) ? dt_node_text(n) : NULL;
    }
    st = text ? encode_text(m, text, strlen(text))
              : bad(m, DT_BAD_CAPTION,
                    dt_error_set(
                        &m->err, DT_ERR_INPUT,
                        "the json member has neither a \"caption\" nor a \"text\" that is one"));
    dt_doc_free(doc);
    return st;
}

static enum dt_status read_text(struct maker *m)
{
    static const char *const txt[] = {"txt", NULL}, *const json[] = {"json", NULL};
    const struct dt_shard_member *f = find(m->s, txt);
    if (f)
        return encode_text(m, (const char *)f->data, f->len);
    f = find(m->s, json);
    if (f)
        return json_text(m, f);
    return bad(m, DT_BAD_NO_CAPTION,
               dt_error_set(&m->err, DT_ERR_INPUT, "neither a txt nor a json member"));
}

/* ---- images ---- */

/* One more; *out is valid until the next. */
static enum dt_status add_image(struct maker *m, int n_max, struct dt_document_image **out)
{
    struct dt_document *d = m->d;
    if (!d->image)
        d->image = dt_calloc((size_t)n_max, sizeof *d->image);
    if (!d->image)
        return dt_error_nomem(&m->err, "images of a document");
    *out = &d->image[d->n_images++];
    return DT_OK;
}

/* Together they may have no more pixels than one image may.  Asked before any is decoded that goes beyond it. */
static enum dt_status check_pixels(struct maker *m)
{
    const struct dt_document *d = m->d;
    int64_t pixels = dt_document_pixel_bytes(d) / 3;

    if (d->n_images == 1 || pixels <= DT_IMAGE_PIXELS_MAX)
        return DT_OK;
    return dt_error_set(&m->err, DT_ERR_INPUT,
                        "%lld pixels in the first %d frames; all may have %d together "
                        "(frame_stride and frames_max take fewer)",
                        (long long)pixels, d->n_images, (int)DT_IMAGE_PIXELS_MAX);
}

/* A generator halves what it draws, as often as it has levels below the first. */
static enum dt_status check_latents(struct maker *m, const struct dt_document_image *image)
{
    int scale = m->o->latent_scale > 0 ? m->o->latent_scale : 1, of = m->o->latent_multiple;
    int w = (image->w + scale - 1) / scale, h = (image->h + scale - 1) / scale;

    if (m->d->task != DT_TASK_GENERATE || of < 2 || (w % of == 0 && h % of == 0))
        return DT_OK;
    return dt_error_set(&m->err, DT_ERR_INPUT,
                        "an image of %d x %d is %d x %d latents; the generator takes multiples of "
                        "%d a side",
                        image->w, image->h, w, h, of);
}

static enum dt_status read_image(struct maker *m, const struct dt_shard_member *f, int n_max)
{
    const struct dt_loader_options *o = m->o;
    const struct dt_image_spec *spec = m->d->task == DT_TASK_GENERATE ? &o->target : &o->image;
    struct dt_document_image *to = NULL;
    struct dt_image img = {0};
    enum dt_data_bad_kind kind = DT_BAD_IMAGE;
    int w = 0, h = 0;
    /* without limits first, so that "absurd size" is told from "not an image" */
    static const struct dt_image_limits any = {INT32_MAX, INT64_MAX};
    enum dt_status st;
    DT_TRY(add_image(m, n_max, &to));
    st = dt_image_size(f->data, f->len, &any, &m->err, &w, &h);
    if (st == DT_OK) {
        kind = DT_BAD_IMAGE_SIZE;
        st = dt_image_size(f->data, f->len, &o->limits, &m->err, &w, &h);
    }
    if (st == DT_OK) {
        dt_image_fitted_size(spec, w, h, &to->w, &to->h);
        st = check_pixels(m);
    }
    if (st == DT_OK)
        st = check_latents(m, to);
    if (st == DT_OK && m->pixels) {
        kind = DT_BAD_IMAGE;
        st = dt_image_load(f->data, f->len, &o->limits, spec, &m->err, &img);
        to->w = img.w;
        to->h = img.h;
        to->px = img.px;
    }
    return st == DT_OK ? DT_OK : bad(m, kind, st);
}

/* Together they may have no more tokens than one image may. */
static enum dt_status check_images(struct maker *m)
{
    const struct dt_loader_options *o = m->o;
    const struct dt_document *d = m->d;
    int64_t tokens = 0;
    if (d->sound) /* it has limits of its own */
        return DT_OK;
    for (int i = 0; d->task == DT_TASK_CAPTION && i < d->n_images; i++) {
        d->image[i].tokens = (int)dt_sample_image_tokens(d->image[i].w, d->image[i].h, o->patch);
        tokens += d->image[i].tokens;
    }
    if (tokens <= o->seq_len - 3) /* bos, one word, eos */
        return DT_OK;
    if (d->n_images > 1)
        dt_error_set(&m->err, DT_ERR_INPUT,
                     "%d frames have %lld tokens; a sequence has %d (frame_stride and frames_max "
                     "take fewer)",
                     d->n_images, (long long)tokens, o->seq_len);
    else
        dt_error_set(&m->err, DT_ERR_INPUT,
                     "an image of %d x %d has %lld tokens; a sequence has %d", d->image[0].w,
                     d->image[0].h, (long long)tokens, o->seq_len);
    return bad(m, DT_BAD_TOO_LONG, DT_ERR_INPUT);
}

/* ---- frames ---- */

struct frame {
    int64_t number;
    const struct dt_shard_member *member;
};

static int by_number(const void *a, const void *b)
{
    const struct frame *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static int find_frames(const struct dt_shard_sample *s, struct frame frame[DT_SHARD_MEMBERS_MAX])
{
    int n = 0;
    for (int i = 0; i < s->n_members; i++) {
        frame[n] = (struct frame){dt_data_frame_number(s->member[i].ext), &s->member[i]};
        n += frame[n].number >= 0;
    }
    qsort(frame, (size_t)n, sizeof *frame, by_number);
    return n;
}

static enum dt_status read_frames(struct maker *m, const struct frame *frame, int n)
{
    const struct dt_data_frames *f = &m->o->frames;
    int taken = dt_data_frames_taken(f, n);
    for (int i = 1; i < n; i++)
        if (frame[i].number == frame[i - 1].number)
            return bad(m, DT_BAD_IMAGE,
                       dt_error_set(&m->err, DT_ERR_INPUT, "two frames of number %lld",
                                    (long long)frame[i].number));
    for (int i = 0; i < taken; i++)
        DT_TRY(read_image(m, frame[dt_data_frames_at(f, n, i)].member, taken));
    return DT_OK;
}

/* ---- sound ---- */

static enum dt_status read_sound(struct maker *m, const struct dt_shard_member *f)
{
    const struct dt_loader_options *o = m->o;
    struct dt_document *d = m->d;
    struct dt_document_image *to = NULL;
    struct dt_audio a = {0};
    enum dt_audio_bad why = DT_AUDIO_DAMAGED;
    enum dt_status st;
    int64_t n;

    DT_TRY(add_image(m, 1, &to));
    st = m->pixels
             ? dt_audio_spectrogram(f->data, f->len, o->sound_cs, o->mel_bins, &m->err, &a, &why)
             : dt_audio_length(f->data, f->len, o->sound_cs, &m->err, &a, &why);
    if (st != DT_OK)
        return bad(m, why == DT_AUDIO_LIMIT ? DT_BAD_AUDIO_LIMIT : DT_BAD_AUDIO, st);
    d->sound = true;
    d->clip_cut = a.cut;
    to->w = o->mel_bins;
    to->h = (int)dt_sample_sound_frames(a.cs);
    to->px = a.at;
    n = dt_sample_sound_patches(to->h, to->w, o->patch);
    if (n > o->seq_len - 3)
        return bad(m, DT_BAD_TOO_LONG,
                   dt_error_set(&m->err, DT_ERR_INPUT,
                                "a sound of %d.%02d s has %lld tokens; a sequence has %d",
                                a.cs / 100, a.cs % 100, (long long)n, o->seq_len));
    to->tokens = (int)n;
    return DT_OK;
}

/* A draw of its own for each question, sample and epoch. */
static bool draw(const struct dt_loader_options *o, uint64_t stream, double share, uint64_t sample,
                 int64_t epoch)
{
    struct dt_rng r;
    dt_rng_init(&r, o->seed ^ stream << 32, sample ^ (uint64_t)epoch << 40);
    return dt_rng_uniform(&r) < share;
}

static enum dt_status set_name(struct maker *m, const char *path, const char *key)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t size = strlen(base) + strlen(key) + 2;
    m->d->name = dt_malloc(size);
    if (!m->d->name)
        return dt_error_nomem(&m->err, "the name of a sample");
    snprintf(m->d->name, size, "%s:%s", base, key);
    return DT_OK;
}

static int64_t read_label(const struct dt_shard_sample *s)
{
    static const char *const cls[] = {"cls", NULL};
    const struct dt_shard_member *f = find(s, cls);
    char text[24];
    int64_t v = -1;
    size_t n = f ? f->len : 0;
    while (n && isspace((unsigned char)f->data[n - 1]))
        n--;
    if (n == 0 || n >= sizeof text)
        return -1;
    memcpy(text, f->data, n);
    text[n] = '\0';
    return dt_number_int(text, &v) && v >= 0 ? v : -1;
}

/* What the LLM reads or the generator draws; NULL if the sample has neither.  A video's frames, which are no such member,
 * are read, never drawn. */
static enum dt_status choose_item(struct maker *m, int64_t epoch, int n_frames,
                                  const struct dt_shard_member **out)
{
    static const char *const images[] = {"jpg", "jpeg", "png", "webp", NULL};
    static const char *const sounds[] = {"wav", "flac", NULL};
    const struct dt_loader_options *o = m->o;
    const struct dt_shard_member *image = NULL, *sound = NULL;
    bool hears = o->mel_bins > 0, drawn;

    *out = NULL;
    if (n_frames > 0 && !hears && o->generate >= 1)
        return bad(
            m, DT_BAD_NO_IMAGE,
            dt_error_set(&m->err, DT_ERR_INPUT, "frames of a video are no image to generate"));
    m->d->task = DT_TASK_CAPTION;
    if (n_frames > 0 && !hears)
        return DT_OK;
    if (hears)
        sound = find(m->s, sounds);
    if (!hears || o->generate > 0)
        image = find(m->s, images);
    drawn = image && draw(o, TASK_STREAM, o->generate, m->d->sample, epoch);
    if (hears && !sound)
        drawn = image != NULL;
    m->d->task = drawn ? DT_TASK_GENERATE : image || sound ? DT_TASK_CAPTION : DT_TASK_TEXT;
    *out = drawn || !hears ? image : sound;
    if (*out || o->text_only)
        return DT_OK;
    return bad(m, DT_BAD_NO_IMAGE,
               dt_error_set(&m->err, DT_ERR_INPUT, "no %s member",
                            hears ? "wav or flac" : "jpg, jpeg, png or webp"));
}

static enum dt_status make(struct maker *m, const struct dt_shard_index *ix, uint64_t i,
                           int64_t epoch, struct dt_shard_sample *scratch)
{
    struct frame frame[DT_SHARD_MEMBERS_MAX];
    const struct dt_loader_options *o = m->o;
    struct dt_document *d = m->d;
    const struct dt_shard_member *item;
    size_t room;
    int n_frames;
    enum dt_status st = dt_shard_read(ix, (size_t)i, (size_t)o->sample_bytes_max, &m->err, scratch);
    if (st != DT_OK)
        return bad(m, DT_BAD_SAMPLE, st);
    DT_TRY(set_name(m, ix->paths[ix->samples[i].shard], scratch->key));
    d->label = read_label(scratch);
    n_frames = find_frames(scratch, frame);
    DT_TRY(choose_item(m, epoch, n_frames, &item));
    DT_TRY(read_text(m));
    if (d->task == DT_TASK_GENERATE && draw(o, DROP_STREAM, o->caption_drop, i, epoch))
        d->text.n = 0;
    if (item && o->mel_bins > 0 && d->task == DT_TASK_CAPTION)
        DT_TRY(read_sound(m, item));
    else if (item)
        DT_TRY(read_image(m, item, 1));
    else if (d->task == DT_TASK_CAPTION)
        DT_TRY(read_frames(m, frame, n_frames));
    DT_TRY(check_images(m));
    room = (size_t)(o->seq_len - 2 - dt_document_image_tokens(d));
    if (o->text_tokens_max && (size_t)o->text_tokens_max < room)
        room = (size_t)o->text_tokens_max;
    if (d->text.n > room) {
        d->text.n = room;
        d->cut = true;
    }
    return DT_OK;
}

void dt_document_read(const struct dt_loader_options *o, const struct dt_shard_index *ix,
                      uint64_t i, int64_t epoch, bool pixels, struct dt_shard_sample *scratch,
                      struct dt_document *out)
{
    struct maker m = {.o = o, .s = scratch, .d = out, .pixels = pixels};
    struct dt_document d = {.sample = i, .label = -1};
    m.d = &d;
    d.status = make(&m, ix, i, epoch, scratch);
    if (d.status != DT_OK) {
        const char *path = ix->paths[ix->samples[i].shard], *base = strrchr(path, '/');
        drop_images(&d);
        if (m.err.file[0] && d.bad == DT_BAD_SAMPLE)
            snprintf(d.why, sizeof d.why, "%.100s: %.140s", m.err.file, m.err.message);
        else
            snprintf(d.why, sizeof d.why, "%.60s, sample %.60s: %.120s", base ? base + 1 : path,
                     scratch->key, m.err.message);
    }
    *out = d;
}
