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
#include <string.h>

enum { CAPTION_BYTES_MAX = 1 << 20, TASK_STREAM = 0x7461736b, DROP_STREAM = 0x64726f70 };

void dt_document_free(struct dt_document *d)
{
    dt_tokenizer_ids_free(&d->text);
    dt_free(d->px);
    memset(d, 0, sizeof *d);
}

int dt_document_tokens(const struct dt_document *d)
{
    return 2 + d->image_tokens + (int)d->text.n;
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
    for (int i = 0; keys[i] && !text; i++)
        if (dt_node_is_map(dt_doc_root(doc)))
            text = dt_node_text(dt_map_get(dt_doc_root(doc), keys[i]));
    st = text ? encode_text(m, text, strlen(text))
              : bad(m, DT_BAD_CAPTION,
                    dt_error_set(&m->err, DT_ERR_INPUT,
                                 "the json member has neither \"caption\" nor \"text\""));
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

/* ---- image ---- */

static enum dt_status read_image(struct maker *m, const struct dt_shard_member *f)
{
    const struct dt_loader_options *o = m->o;
    struct dt_document *d = m->d;
    const struct dt_image_spec *spec = d->task == DT_TASK_GENERATE ? &o->target : &o->image;
    struct dt_image img = {0};
    enum dt_data_bad_kind kind = DT_BAD_IMAGE;
    int w = 0, h = 0;
    /* without limits first, so that "absurd size" is told from "not an image" */
    static const struct dt_image_limits any = {INT32_MAX, INT64_MAX};
    enum dt_status st = dt_image_size(f->data, f->len, &any, &m->err, &w, &h);
    if (st == DT_OK) {
        kind = DT_BAD_IMAGE_SIZE;
        st = dt_image_size(f->data, f->len, &o->limits, &m->err, &w, &h);
    }
    if (st == DT_OK && !m->pixels) {
        dt_image_fitted_size(spec, w, h, &d->w, &d->h);
    } else if (st == DT_OK) {
        kind = DT_BAD_IMAGE;
        st = dt_image_load(f->data, f->len, &o->limits, spec, &m->err, &img);
        d->w = img.w;
        d->h = img.h;
        d->px = img.px;
    }
    if (st != DT_OK)
        return bad(m, kind, st);
    if (d->task == DT_TASK_CAPTION) {
        int64_t n = dt_sample_image_tokens(d->w, d->h, o->patch);
        if (n > o->seq_len - 3) /* bos, one word, eos */
            return bad(m, DT_BAD_TOO_LONG,
                       dt_error_set(&m->err, DT_ERR_INPUT,
                                    "an image of %d x %d has %lld tokens; a sequence has %d", d->w,
                                    d->h, (long long)n, o->seq_len));
        d->image_tokens = (int)n;
    }
    return DT_OK;
}

/* ---- sound ---- */

static enum dt_status read_sound(struct maker *m, const struct dt_shard_member *f)
{
    const struct dt_loader_options *o = m->o;
    struct dt_document *d = m->d;
    struct dt_audio a = {0};
    enum dt_audio_bad why = DT_AUDIO_DAMAGED;
    enum dt_status st =
        m->pixels
            ? dt_audio_spectrogram(f->data, f->len, o->sound_cs, o->mel_bins, &m->err, &a, &why)
            : dt_audio_length(f->data, f->len, o->sound_cs, &m->err, &a, &why);
    int64_t n;

    if (st != DT_OK)
        return bad(m, why == DT_AUDIO_LIMIT ? DT_BAD_AUDIO_LIMIT : DT_BAD_AUDIO, st);
    d->sound = true;
    d->clip_cut = a.cut;
    d->w = o->mel_bins;
    d->h = (int)dt_sample_sound_frames(a.cs);
    d->px = a.at;
    n = dt_sample_sound_patches(d->h, d->w, o->patch);
    if (n > o->seq_len - 3)
        return bad(m, DT_BAD_TOO_LONG,
                   dt_error_set(&m->err, DT_ERR_INPUT,
                                "a sound of %d.%02d s has %lld tokens; a sequence has %d",
                                a.cs / 100, a.cs % 100, (long long)n, o->seq_len));
    d->image_tokens = (int)n;
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

/* What the LLM reads or the generator draws; NULL if the sample has neither. */
static const struct dt_shard_member *choose_item(struct maker *m, int64_t epoch)
{
    static const char *const images[] = {"jpg", "jpeg", "png", "webp", NULL};
    static const char *const sounds[] = {"wav", "flac", NULL};
    const struct dt_loader_options *o = m->o;
    const struct dt_shard_member *image = NULL, *sound = NULL;
    bool drawn;

    if (o->mel_bins > 0)
        sound = find(m->s, sounds);
    if (o->mel_bins == 0 || o->generate > 0)
        image = find(m->s, images);
    drawn = image && draw(o, TASK_STREAM, o->generate, m->d->sample, epoch);
    if (o->mel_bins > 0 && !sound)
        drawn = image != NULL;
    m->d->task = drawn ? DT_TASK_GENERATE : image || sound ? DT_TASK_CAPTION : DT_TASK_TEXT;
    return drawn || o->mel_bins == 0 ? image : sound;
}

static enum dt_status make(struct maker *m, const struct dt_shard_index *ix, uint64_t i,
                           int64_t epoch, struct dt_shard_sample *scratch)
{
    const struct dt_loader_options *o = m->o;
    struct dt_document *d = m->d;
    const struct dt_shard_member *item;
    size_t room;
    enum dt_status st = dt_shard_read(ix, (size_t)i, (size_t)o->sample_bytes_max, &m->err, scratch);
    if (st != DT_OK)
        return bad(m, DT_BAD_SAMPLE, st);
    d->label = read_label(scratch);
    item = choose_item(m, epoch);
    if (!item && !o->text_only)
        return bad(m, DT_BAD_NO_IMAGE,
                   dt_error_set(&m->err, DT_ERR_INPUT, "no %s member",
                                o->mel_bins > 0 ? "wav or flac" : "jpg, jpeg, png or webp"));
    DT_TRY(read_text(m));
    if (d->task == DT_TASK_GENERATE && draw(o, DROP_STREAM, o->caption_drop, i, epoch))
        d->text.n = 0;
    if (item)
        DT_TRY(o->mel_bins > 0 && d->task == DT_TASK_CAPTION ? read_sound(m, item)
                                                             : read_image(m, item));
    room = (size_t)(o->seq_len - 2 - d->image_tokens);
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
        if (m.err.file[0] && d.bad == DT_BAD_SAMPLE)
            snprintf(d.why, sizeof d.why, "%.100s: %.140s", m.err.file, m.err.message);
        else
            snprintf(d.why, sizeof d.why, "%.60s, sample %.60s: %.120s", base ? base + 1 : path,
                     scratch->key, m.err.message);
    }
    *out = d;
}
