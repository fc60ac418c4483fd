/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The ring of documents and its threads, and packing.
 *
 *   taken <= place < issued <= taken + queue;  place k is ring[k % queue]
 */
#include "exec/data/loader.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "exec/data/audio.h"
#include "exec/data/document.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { THREADS_MAX = 256, QUEUE_MAX = 1 << 16, BATCH_MAX = 8, SAMPLE_BYTES_MAX = 64 << 20 };

struct place {
    struct dt_document doc;
    bool ready;
};

struct dt_loader {
    struct dt_loader_options o;
    struct dt_shard_index *ix;
    struct dt_tokenizer_special_ids ids;
    uint64_t fingerprint;
    int64_t samples;   /* in the data set */
    uint64_t data;     /* its fingerprint */
    int64_t per_epoch; /* documents of this part in an epoch */
    int64_t start;     /* place 0 is this many documents after the start of epoch 0 */
    int64_t end;       /* the first place that is not there; INT64_MAX = endless */
    /* the caller's side */
    struct dt_data_report report;
    struct dt_document pending; /* did not fit the last sequence */
    bool has_pending;
    int64_t sequences;
    int64_t bad_epoch, bad_in_epoch; /* samples passed over in that epoch */
    struct dt_shard_sample scratch;  /* without threads */
    /* changed while there are no threads */
    int64_t *whole; /* places whose pixels are read at once, whatever the options */
    size_t n_whole, cap_whole;
    /* shared */
    pthread_mutex_t lock;
    pthread_cond_t can_issue, can_take;
    int64_t issued, taken;
    int batch; /* places that a thread takes at a time; at most queue */
    bool stop;
    struct place *ring;
    _Atomic int64_t *decoded;
    int n_threads;
    pthread_t threads[THREADS_MAX];
};

/* ---- order ---- */

uint64_t dt_loader_order_at(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i)
{
    /* A Feistel network on 2 * half bits, walked until it lands below n (at most 4 steps on
     * average) */
    uint32_t half = 1, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
    uint64_t mask;
    while (half < 32 && (UINT64_C(1) << (2 * half)) < n)
        half++;
    mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t ctr[4] = {(uint32_t)right, round, (uint32_t)epoch, (uint32_t)(epoch >> 32)};
            uint64_t next;
            dt_rng_philox4x32(ctr, key, out);
            next = left ^ (out[0] & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

/* ---- documents ---- */

static void read_place(const struct dt_loader *l, int64_t place, bool pixels,
                       struct dt_shard_sample *scratch, struct dt_document *out)
{
    int64_t epoch = place / l->per_epoch;
    uint64_t n = l->ix->n;
    uint64_t i = (uint64_t)(place % l->per_epoch) * (uint64_t)l->o.parts + (uint64_t)l->o.part;
    if (l->o.shuffle)
        i = dt_loader_order_at(l->o.seed, (uint64_t)epoch, n, i);
    dt_document_read(&l->o, l->ix, i, epoch, pixels, scratch, out);
    out->place = place;
    for (int k = 0; k < out->n_images; k++)
        if (out->image[k].px)
            atomic_fetch_add_explicit(l->decoded, 1, memory_order_relaxed);
}

void dt_loader_document(const struct dt_loader *l, int64_t place, struct dt_shard_sample *scratch,
                        struct dt_document *out)
{
    read_place(l, place, true, scratch, out);
}

/* As the options want it. */
static void read_next(const struct dt_loader *l, int64_t place, struct dt_shard_sample *scratch,
                      struct dt_document *out)
{
    bool pixels = !l->o.sizes_only && !l->o.pixels_later;

    for (size_t k = 0; k < l->n_whole && !pixels; k++)
        pixels = l->whole[k] == place;
    read_place(l, place, pixels, scratch, out);
}

/* Takes `batch` places at a time: waking a thread costs as much as a small document. */
static void *worker(void *arg)
{
    struct dt_loader *l = arg;
    struct dt_shard_sample scratch = {0};
    pthread_mutex_lock(&l->lock);
    for (;;) {
        int64_t first, end;
        while (!l->stop && l->issued < l->end && l->issued - l->taken > l->o.queue - l->batch)
            pthread_cond_wait(&l->can_issue, &l->lock);
        if (l->stop || l->issued >= l->end)
            break;
        first = l->issued;
        end = first > l->end - l->batch ? l->end : first + l->batch;
        l->issued = end;
        pthread_mutex_unlock(&l->lock);
        for (int64_t place = first; place < end; place++) /* these are this thread's own */
            read_next(l, l->start + place, &scratch, &l->ring[place % l->o.queue].doc);
        pthread_mutex_lock(&l->lock);
        for (int64_t place = first; place < end; place++)
            l->ring[place % l->o.queue].ready = true;
        if (first == l->taken)
            pthread_cond_signal(&l->can_take);
    }
    pthread_mutex_unlock(&l->lock);
    dt_shard_sample_free(&scratch);
    return NULL;
}

/* The next document in order; there is one. */
static enum dt_status take(struct dt_loader *l, struct dt_error *err, struct dt_document *out)
{
    struct place *s;
    if (l->o.source) {
        DT_TRY(l->o.source->take(l->o.source->ctx, l->start + l->taken, err, out));
        l->taken++;
        return DT_OK;
    }
    if (l->n_threads == 0) {
        read_next(l, l->start + l->taken++, &l->scratch, out);
        return DT_OK;
    }
    pthread_mutex_lock(&l->lock);
    s = &l->ring[l->taken % l->o.queue];
    while (!s->ready)
        pthread_cond_wait(&l->can_take, &l->lock);
    *out = s->doc;
    s->ready = false;
    l->taken++;
    if (l->issued - l->taken <= l->o.queue - l->batch)
        pthread_cond_signal(&l->can_issue);
    pthread_mutex_unlock(&l->lock);
    return DT_OK;
}

/* ---- packing ---- */

/* The epoch counts its bad samples from its beginning, also where an earlier run read that. */
static enum dt_status count_in_epoch(struct dt_loader *l, const struct dt_document *d,
                                     struct dt_error *err)
{
    int64_t epoch = (l->start + l->taken - 1) / l->per_epoch;

    if (epoch != l->bad_epoch)
        l->bad_in_epoch = 0;
    l->bad_epoch = epoch;
    if (++l->bad_in_epoch >= l->per_epoch)
        return dt_error_set(err, DT_ERR_INPUT, "none of %lld samples can be used; the last: %s",
                            (long long)l->per_epoch, d->why);
    if (l->bad_in_epoch > l->o.bad_max && l->o.bad_max > 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "%lld samples of epoch %lld cannot be used, and %lld may be "
                            "(bad_samples); the last: %s",
                            (long long)l->bad_in_epoch, (long long)epoch + 1,
                            (long long)l->o.bad_max, d->why);
    return DT_OK;
}

/* Counts a document that is not good; DT_OK to go on. */
static enum dt_status pass_over(struct dt_loader *l, const struct dt_document *d,
                                struct dt_error *err)
{
    struct dt_error why;
    dt_error_set(&why, d->status, "%s", d->why);
    if (d->status != DT_ERR_INPUT || dt_data_bad(&l->report, d->bad, &why) != DT_OK) {
        if (err)
            *err = why;
        return d->status;
    }
    return count_in_epoch(l, d, err);
}

/* The next good document; *end if there is none. */
static enum dt_status next_good(struct dt_loader *l, struct dt_error *err, struct dt_document *d,
                                bool *end)
{
    *end = false;
    if (l->has_pending) {
        *d = l->pending;
        l->has_pending = false;
        return DT_OK;
    }
    for (;;) {
        *end = l->taken >= l->end;
        if (*end)
            return DT_OK;
        DT_TRY(take(l, err, d));
        if (d->status == DT_OK)
            break;
        enum dt_status st = pass_over(l, d, err);
        dt_document_free(d);
        DT_TRY(st);
    }
    l->report.documents++;
    l->report.captions_cut += d->cut;
    l->report.clips_cut += d->clip_cut;
    return DT_OK;
}

static enum dt_status fill(struct dt_loader *l, struct dt_sequence *s, struct dt_error *err)
{
    do {
        struct dt_document d;
        bool end;
        int failed;
        DT_TRY(next_good(l, err, &d, &end));
        if (end)
            break;
        if (dt_document_tokens(&d) > s->seq_len - s->n_tokens) {
            l->pending = d;
            l->has_pending = true;
            break;
        }
        failed = dt_sequence_append(s, &d, l->ids);
        dt_document_free(&d);
        if (failed)
            return dt_error_nomem(err, "a sequence");
    } while (!l->o.unpacked);
    return DT_OK;
}

enum dt_status dt_loader_next(struct dt_loader *l, struct dt_error *err, struct dt_sequence **out)
{
    struct dt_sequence *s = dt_sequence_new(l->o.seq_len, l->sequences);
    enum dt_status st;
    if (!s)
        return dt_error_nomem(err, "a sequence");
    st = fill(l, s, err);
    if (st != DT_OK || s->n_docs == 0) {
        dt_sequence_free(s);
        if (st == DT_OK)
            *out = NULL;
        return st;
    }
    dt_sequence_finish(s, l->ids);
    l->sequences++;
    *out = s;
    return DT_OK;
}

/* ---- cursor, report ---- */

void dt_loader_cursor(const struct dt_loader *l, struct dt_data_cursor *out)
{
    /* only this thread changes `taken`, so it may read it unlocked */
    int64_t at = l->has_pending ? l->pending.place : l->start + l->taken;
    int64_t epoch = at / l->per_epoch;

    *out = (struct dt_data_cursor){.fingerprint = l->fingerprint,
                                   .reader = DT_LOADER_READER,
                                   .epoch = epoch,
                                   .position = at % l->per_epoch,
                                   .sequences = l->sequences,
                                   .bad = epoch == l->bad_epoch ? l->bad_in_epoch : 0};
}

void dt_loader_mark(const struct dt_loader *l, struct dt_loader_mark *out)
{
    *out = (struct dt_loader_mark){.place = l->has_pending ? l->pending.place : l->start + l->taken,
                                   .sequences = l->sequences,
                                   .bad_epoch = l->bad_epoch,
                                   .bad_in_epoch = l->bad_in_epoch,
                                   .report = l->report};
    if (l->has_pending) { /* it will be counted again */
        out->report.documents--;
        out->report.captions_cut -= l->pending.cut;
        out->report.clips_cut -= l->pending.clip_cut;
    }
}

bool dt_loader_pending(const struct dt_loader *l, int64_t *place)
{
    const struct dt_document *d = &l->pending;

    if (!l->has_pending || d->n_images == 0 || d->image[0].px)
        return false;
    *place = d->place;
    return true;
}

int64_t dt_loader_decoded(const struct dt_loader *l)
{
    return atomic_load_explicit(l->decoded, memory_order_relaxed);
}

int64_t dt_loader_samples(const struct dt_loader *l)
{
    return l->samples;
}

void dt_loader_report(const struct dt_loader *l, struct dt_data_report *out)
{
    *out = l->report;
}

/* ---- opening ---- */

static uint64_t fingerprint(const struct dt_loader_options *o, uint64_t data)
{
    uint64_t h = data, generate, drop;
    memcpy(&generate, &o->generate, sizeof generate);
    memcpy(&drop, &o->caption_drop, sizeof drop);
    const uint64_t v[] = {
        (uint64_t)o->seq_len,
        (uint64_t)o->patch,
        generate,
        drop,
        o->image.fit,
        (uint64_t)o->image.side,
        o->image.filter,
        o->target.fit,
        (uint64_t)o->target.side,
        o->target.filter,
        (uint64_t)o->limits.side_max,
        (uint64_t)o->limits.pixels_max,
        (uint64_t)o->sample_bytes_max,
        (uint64_t)o->text_tokens_max,
        (uint64_t)(o->text_only | o->unpacked << 1 | o->sizes_only << 2 | o->shuffle << 3),
        o->seed,
        (uint64_t)o->part,
        (uint64_t)o->parts,
        (uint64_t)dt_tokenizer_vocab(o->tokenizer)};
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
        h = dt_hash_word(h, v[i]);
    /* not where all are taken, so that the cursors of earlier versions stay good */
    if (o->frames.stride > 1 || o->frames.most > 0)
        h = dt_hash_word(dt_hash_word(h, o->frames.stride > 1 ? (uint64_t)o->frames.stride : 1),
                         (uint64_t)o->frames.most);
    if (o->mel_bins > 0) /* without sound it is what it was before there was any */
        h = dt_hash_word(dt_hash_word(h, (uint64_t)o->mel_bins), (uint64_t)o->sound_cs);
    return h ? h : 1;
}

static enum dt_status check(struct dt_loader_options *o, struct dt_error *err)
{
    const struct dt_image_spec *spec[] = {&o->image, &o->target};
    o->patch = o->patch ? o->patch : DT_LOADER_PATCH;
    o->sound_cs = o->sound_cs ? o->sound_cs : DT_LOADER_SOUND_CS;
    o->parts = o->parts ? o->parts : 1;
    o->sample_bytes_max = o->sample_bytes_max ? o->sample_bytes_max : SAMPLE_BYTES_MAX;
    o->queue = o->queue ? o->queue : 16 + 8 * o->threads;
    if (o->n_shards < 1 && !o->source)
        return dt_error_set(err, DT_ERR_USAGE, "no shards to read");
    if (!o->tokenizer || o->seq_len < 4 || o->seq_len > 1 << 24 || o->patch < 1 || o->parts < 1 ||
        o->part < 0 || o->part >= o->parts || !(o->generate >= 0 && o->generate <= 1) ||
        o->threads < 0 || o->threads > THREADS_MAX || o->queue < 1 || o->queue > QUEUE_MAX ||
        o->epochs < 0 || o->sample_bytes_max < 1 || o->text_tokens_max < 0 ||
        o->limits.side_max < 0 || o->limits.pixels_max < 0 || o->latent_scale < 0 ||
        o->latent_multiple < 0 || o->sound_cs < DT_SAMPLE_SOUND_CS_MIN ||
        o->sound_cs > DT_AUDIO_CS_MAX)
        return dt_error_set(err, DT_ERR_USAGE, "an option of the loader is out of range");
    if (o->mel_bins != 0 && (o->mel_bins < DT_SAMPLE_SOUND_BINS_MIN ||
                             o->mel_bins > DT_SAMPLE_SOUND_BINS_MAX || o->mel_bins % o->patch != 0))
        return dt_error_set(err, DT_ERR_USAGE, "%d filters of sound are not possible", o->mel_bins);
    for (int i = 0; i < 2; i++)
        if (spec[i]->fit != DT_FIT_NONE && (spec[i]->side < 1 || spec[i]->side > DT_IMAGE_SIDE_MAX))
            return dt_error_set(err, DT_ERR_USAGE, "an image side of %d pixels is not possible",
                                spec[i]->side);
    return DT_OK;
}

uint64_t dt_loader_data(const struct dt_loader *l)
{
    return l->data;
}

#define SINCE_READER_2                                                                             \
    "bos, eos and pad of tokenizers whose vocabulary has text of such a name (Qwen's), and "       \
    "captions in JSON that are null"

const char *dt_loader_reader_since(int reader)
{
    static const char *const changed[] = {
        "pixels of PNGs of 16 bits or with transparency, samples that have both an image and "
        "numbered frames, of which the frames are read now, " SINCE_READER_2,
        SINCE_READER_2};

    _Static_assert(sizeof changed / sizeof changed[0] == DT_LOADER_READER - 1,
                   "a reader is not told of");
    return changed[reader - 1];
}

static enum dt_status same_reader(const struct dt_data_cursor *c, struct dt_error *err)
{
    if (c->reader > DT_LOADER_READER || c->reader < 1)
        return dt_error_set(err, DT_ERR_INPUT,
                            "the checkpoint's data was read by a later version of this program "
                            "(reader %d; this one is %d)",
                            c->reader, DT_LOADER_READER);
    if (c->reader == DT_LOADER_READER)
        return DT_OK;
    return dt_error_set(err, DT_ERR_INPUT,
                        "the checkpoint's data was read by an earlier version of this program "
                        "(reader %d; this one is %d); since then these are read "
                        "differently: %s; if the data has none of these, or should be read as it "
                        "is now, --changed-data goes on at the same place",
                        c->reader, DT_LOADER_READER, dt_loader_reader_since(c->reader));
}

/* The tokenizer and the reader, too: producers and consumers may be of different versions. */
enum dt_status dt_loader_job_digest(const struct dt_loader_options *options, struct dt_error *err,
                                    uint64_t *out)
{
    struct dt_loader_options o = *options;
    struct dt_tokenizer_special_ids ids;
    uint64_t h;
    static const struct dt_loader_source any;
    o.source = o.source ? o.source : &any; /* shards may be elsewhere */
    DT_TRY(check(&o, err));
    ids = dt_tokenizer_special(o.tokenizer);
    h = dt_hash_bytes(fingerprint(&o, dt_hash_word(DT_HASH_START, DT_LOADER_READER)), &ids,
                      sizeof ids);
    h = dt_hash_word(dt_hash_word(h, (uint64_t)o.latent_scale), (uint64_t)o.latent_multiple);
    *out = dt_hash_word(h, dt_tokenizer_digest(o.tokenizer));
    return DT_OK;
}

/* Why there is nothing to load. */
static enum dt_status too_few(const struct dt_loader *l, struct dt_error *err)
{
    const struct dt_data_report *r = &l->report;
    int n_shards;

    if (l->samples > 0 || !l->ix)
        return dt_error_set(err, DT_ERR_INPUT, "%lld samples are too few for %d parts",
                            (long long)l->samples, l->o.parts);
    n_shards = l->ix->n_shards;
    if (n_shards < 1)
        return dt_error_set(err, DT_ERR_INPUT, "no shards, so no samples");
    if (r->bad[DT_BAD_SHARD] > 0)
        return dt_error_set(err, DT_ERR_INPUT, "no samples in %s: %s",
                            n_shards > 1 ? "any of the shards" : "the shard",
                            r->example[DT_BAD_SHARD]);
    return dt_error_at(err, DT_ERR_INPUT, l->ix->paths[0], 0, 0,
                       "this tar archive holds no samples%s",
                       n_shards > 1 ? ", nor do the other shards" : "");
}

/* Sets where the order begins and ends. */
static enum dt_status place_cursor(struct dt_loader *l, struct dt_error *err)
{
    const struct dt_data_cursor *c = &l->o.cursor;
    int64_t n = l->samples, epoch = 0, position = 0;
    l->per_epoch = n / l->o.parts + (l->o.part < n % l->o.parts);
    l->fingerprint = fingerprint(&l->o, l->data);
    if (l->per_epoch < 1)
        return too_few(l, err);
    if (c->fingerprint != l->fingerprint && l->o.changed) {
        l->sequences = c->sequences > 0 ? c->sequences : 0;
    } else if (c->fingerprint) {
        if (c->fingerprint != l->fingerprint)
            return dt_error_set(
                err, DT_ERR_INPUT,
                "the checkpoint's cursor belongs to other data, or to other options "
                "of the loader (lengths, image sizes, order ...); restore the original "
                "ones, or pass --changed-data to read the data from its beginning");
        if (!l->o.changed)
            DT_TRY(same_reader(c, err));
        if (c->epoch < 0 || c->position < 0 || c->position >= l->per_epoch || c->sequences < 0 ||
            c->bad < 0 || c->bad > c->position || c->epoch > INT64_MAX / 2 / l->per_epoch)
            return dt_error_set(err, DT_ERR_INPUT, "the cursor is damaged");
        epoch = c->epoch;
        position = c->position;
        l->sequences = c->sequences;
        l->bad_epoch = epoch;
        l->bad_in_epoch = c->bad;
    }
    l->start = epoch * l->per_epoch + position;
    l->end = INT64_MAX;
    if (l->o.epochs) {
        if (l->o.epochs > INT64_MAX / 2 / l->per_epoch)
            return dt_error_set(err, DT_ERR_USAGE, "that many epochs are not possible");
        l->end = l->o.epochs * l->per_epoch - l->start;
        l->end = l->end < 0 ? 0 : l->end;
    }
    return DT_OK;
}

static enum dt_status start_threads(struct dt_loader *l, struct dt_error *err)
{
    l->stop = false;
    l->batch = l->o.queue / (2 * l->o.threads);
    l->batch = l->batch < 1 ? 1 : l->batch > BATCH_MAX ? BATCH_MAX : l->batch;
    if (!l->ring)
        l->ring = dt_calloc((size_t)l->o.queue, sizeof *l->ring);
    if (!l->ring)
        return dt_error_nomem(err, "the loader's queue");
    for (int i = 0; i < l->o.threads; i++) {
        if (pthread_create(&l->threads[i], NULL, worker, l) != 0)
            return dt_error_set(err, DT_ERR_IO, "cannot start a thread");
        l->n_threads++;
    }
    return DT_OK;
}

/* With all that they have read. */
static void stop_threads(struct dt_loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->can_issue);
    pthread_mutex_unlock(&l->lock);
    while (l->n_threads > 0)
        pthread_join(l->threads[--l->n_threads], NULL);
    for (int i = 0; l->ring && i < l->o.queue; i++) {
        if (l->ring[i].ready)
            dt_document_free(&l->ring[i].doc);
        l->ring[i].ready = false;
    }
    if (l->has_pending)
        dt_document_free(&l->pending);
    l->has_pending = false;
}

enum dt_status dt_loader_return(struct dt_loader *l, const struct dt_loader_mark *m,
                                const int64_t *whole, int n, struct dt_error *err)
{
    void *grown = l->whole;

    stop_threads(l);
    if (dt_grow(&grown, &l->cap_whole, l->n_whole + (size_t)n, sizeof *l->whole))
        return dt_error_nomem(err, "what is to be read again");
    l->whole = grown;
    for (int k = 0; k < n; k++)
        l->whole[l->n_whole++] = whole[k];
    if (l->end != INT64_MAX)
        l->end += l->start - m->place;
    l->start = m->place;
    l->issued = l->taken = 0;
    l->sequences = m->sequences;
    l->bad_epoch = m->bad_epoch;
    l->bad_in_epoch = m->bad_in_epoch;
    l->report = m->report;
    return l->o.threads && !l->o.source ? start_threads(l, err) : DT_OK;
}

static enum dt_status open_data(struct dt_loader *l, struct dt_error *err)
{
    const struct dt_loader_source *from = l->o.source;
    struct dt_shard_keep keep = {.folder = l->o.index_folder, .always = l->o.index_folder};
    if (from) {
        l->samples = from->samples;
        l->data = from->data;
        dt_data_report_add(&l->report, &from->report);
        return DT_OK;
    }
    DT_TRY(dt_shard_index_open(l->o.shards, l->o.n_shards, l->o.keep_index ? &keep : NULL,
                               &l->report, err, &l->ix));
    l->samples = (int64_t)l->ix->n;
    l->data = l->ix->fingerprint;
    return DT_OK;
}

enum dt_status dt_loader_open(const struct dt_loader_options *o, struct dt_error *err,
                              struct dt_loader **out)
{
    struct dt_loader *l = dt_calloc(1, sizeof *l);
    enum dt_status st;
    if (!l)
        return dt_error_nomem(err, "a loader");
    l->o = *o;
    l->report.fatal = o->fatal;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->can_issue, NULL);
    pthread_cond_init(&l->can_take, NULL);
    l->decoded = dt_calloc(1, sizeof *l->decoded);
    st = l->decoded ? check(&l->o, err) : dt_error_nomem(err, "a loader");
    if (st == DT_OK)
        st = open_data(l, err);
    if (st == DT_OK) {
        l->ids = dt_tokenizer_special(o->tokenizer);
        st = place_cursor(l, err);
    }
    if (st == DT_OK && o->threads && !o->source)
        st = start_threads(l, err);
    if (st != DT_OK) {
        dt_loader_close(l);
        return st;
    }
    *out = l;
    return DT_OK;
}

void dt_loader_close(struct dt_loader *l)
{
    if (!l)
        return;
    stop_threads(l);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->can_issue);
    pthread_cond_destroy(&l->can_take);
    dt_shard_sample_free(&l->scratch);
    dt_shard_index_close(l->ix);
    dt_free(l->ring);
    dt_free(l->whole);
    dt_free(l->decoded);
    dt_free(l);
}
