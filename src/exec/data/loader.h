/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The loader: shards in, packed sequences out, in an order that depends on the seed only.
 *
 *   index --(order: a permutation per epoch)--> documents, read by threads into a ring of bounded
 *   size --> taken in order, packed by the caller's thread --> sequences
 *
 * The cursor after any sequence restarts the loader there exactly: same documents, same tasks, same
 * packing, for any number of threads. */
#ifndef DT_EXEC_DATA_LOADER_H
#define DT_EXEC_DATA_LOADER_H

#include "exec/data/frames.h"
#include "exec/data/report.h"
#include "exec/data/sequence.h"
#include "exec/data/tokenizer.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    DT_LOADER_PATCH = 16,
    DT_LOADER_SOUND_CS = 1000 /* AudioSet's clips (published); what BEATs and AST were trained on */
};

/* What is made of a shard's bytes.  A change after which a document has other pixels, tokens or values counts one up, and
 * says what changed (dt_loader_reader_since). */
enum { DT_LOADER_READER = 3 };

struct dt_data_cursor {
    uint64_t fingerprint; /* of data and options; 0 = the beginning */
    int reader;           /* DT_LOADER_READER of then */
    int64_t epoch;
    int64_t position;  /* in the epoch's order: the next document */
    int64_t sequences; /* delivered so far */
    int64_t bad;       /* samples passed over in this epoch, before the position */
};

struct dt_document;
/* Documents from elsewhere, instead of shards: exec/feed. */
struct dt_loader_source {
    /* The document of a place, counted from the beginning of the first epoch; places come in order.
     * Without text ids or pixels they are asked for later (no_text of struct dt_sequence_doc). */
    enum dt_status (*take)(void *ctx, int64_t place, struct dt_error *err, struct dt_document *out);
    void *ctx;
    int64_t samples;              /* in the data set */
    uint64_t data;                /* dt_loader_data */
    struct dt_data_report report; /* of the data set's index */
};

struct dt_loader_options {
    const struct dt_loader_source *source; /* NULL = the shards; must outlive the loader */
    const char *const *shards;             /* paths */
    int n_shards;
    bool keep_index;                      /* of the shards, from one time to the next */
    const char *index_folder;             /* where, however few samples; NULL = beside the shards */
    const struct dt_tokenizer *tokenizer; /* must outlive the loader */
    int seq_len;
    int patch; /* pixels per patch side; 0 = DT_LOADER_PATCH, as core/model/samples.h counts */
    double generate;     /* share of documents whose image is a target, 0 to 1 */
    double caption_drop; /* share of these without their text, so that the generator also learns to
                          * draw from nothing (classifier-free guidance, Ho & Salimans 2022) */
    struct dt_image_spec image, target; /* size of encoded images and of targets */
    int latent_scale;                   /* of targets: pixels a side of a latent; 0 = 1 */
    int latent_multiple;                /* latents a side are to be a multiple of; 0 = any number */
    int mel_bins; /* what is encoded is sound, spectrograms of that many filters; 0 = images */
    int sound_cs; /* hundredths of a second that longer clips are cut to; 0 = DT_LOADER_SOUND_CS */
    struct dt_image_limits limits;
    struct dt_data_frames frames; /* of videos */
    int64_t sample_bytes_max;     /* 0 = 64 MiB */
    int text_tokens_max;          /* captions are cut to it; 0 = what fits */
    bool text_only;    /* samples without an image (or sound) are TEXT documents, not bad */
    bool unpacked;     /* one document per sequence */
    bool sizes_only;   /* items without pixels: only headers of images are read */
    bool pixels_later; /* likewise, but the cursor is the same as with them: dt_loader_document has
                        * them for those who need them */
    bool shuffle;
    uint64_t seed;
    int64_t epochs;  /* 0 = endless */
    int part, parts; /* this loader takes every parts-th document, from part on; 0, 0 = all */
    int threads;     /* 0 = none: work is done in dt_loader_next */
    int queue;       /* documents in flight; 0 = 16 + 8 per thread */
    bool fatal;      /* bad data is an error, not counted and skipped */
    int64_t bad_max; /* more bad samples in one epoch are an error; 0 = no limit */
    struct dt_data_cursor cursor; /* zero = from the beginning */
    bool changed;                 /* a cursor of other data or options begins at the beginning */
};

struct dt_loader;
enum dt_status dt_loader_open(const struct dt_loader_options *o, struct dt_error *err,
                              struct dt_loader **out);
/* The next sequence (dt_sequence_free), or NULL after the last epoch.  DT_ERR_INPUT when a whole
 * epoch has no good document.  One caller at a time. */
enum dt_status dt_loader_next(struct dt_loader *l, struct dt_error *err, struct dt_sequence **out);
/* Where the next call continues. */
void dt_loader_cursor(const struct dt_loader *l, struct dt_data_cursor *out);
/* What documents are other than those of an earlier reader, 1 or later. */
const char *dt_loader_reader_since(int reader);

/* Where it is, to go back to within its life. */
struct dt_loader_mark {
    int64_t place, sequences, bad_epoch, bad_in_epoch;
    struct dt_data_report report;
};
void dt_loader_mark(const struct dt_loader *l, struct dt_loader_mark *out);
/* Goes back there.  With pixels_later the documents of these places are read whole from now on: an
 * image whose header is sound turned out to be none, and is passed over this time. */
enum dt_status dt_loader_return(struct dt_loader *l, const struct dt_loader_mark *m,
                                const int64_t *whole, int n, struct dt_error *err);
/* The document that did not fit the last sequence and begins the next one, if its images are still to be decoded: what
 * comes after it depends on whether they can be. */
bool dt_loader_pending(const struct dt_loader *l, int64_t *place);
/* Images decoded so far, by whomever. */
int64_t dt_loader_decoded(const struct dt_loader *l);
/* Samples in the data set, and what was wrong so far (documents delivered or passed over). */
int64_t dt_loader_samples(const struct dt_loader *l);
void dt_loader_report(const struct dt_loader *l, struct dt_data_report *out);
void dt_loader_close(struct dt_loader *l);

/* The whole document of a place, counted from the beginning of the first epoch, whatever the cursor.
 *  Thread-safe; `scratch` is the calling thread's own. */
struct dt_shard_sample;
void dt_loader_document(const struct dt_loader *l, int64_t place, struct dt_shard_sample *scratch,
                        struct dt_document *out);
/* Fingerprint of the data alone, without options. */
uint64_t dt_loader_data(const struct dt_loader *l);
/* Digest of everything but the data: two that differ in it do not make the same documents. */
enum dt_status dt_loader_job_digest(const struct dt_loader_options *o, struct dt_error *err,
                                    uint64_t *out);

/* The i-th of n in a pseudo-random order of (seed, epoch); a bijection, O(1), no state. */
uint64_t dt_loader_order_at(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i);

#endif
