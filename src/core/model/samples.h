/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Samples: the sizes of every training sequence, per modality.
 *
 * Storage is flat and linear: 10 M samples are a few hundred MB.  A sample is one packed training
 * sequence of <= seq_len tokens: text tokens plus items (images, audio clips), some of which are also targets to
 * generate. */
#ifndef DT_CORE_MODEL_SAMPLES_H
#define DT_CORE_MODEL_SAMPLES_H

#include "base/keys.h"
#include "core/model/model.h"
#include "base/status.h"

struct dt_sample_item { /* one image or audio clip */
    uint16_t w, h;      /* image: pixels; audio: w = duration in centiseconds, h = 0 */
    uint16_t kind;      /* enum dt_module_modality */
    uint16_t flags;     /* DT_ITEM_ENCODE | DT_ITEM_GENERATE */
};
enum { DT_ITEM_ENCODE = 1, DT_ITEM_GENERATE = 2 };

/* What an image is to the LLM: a token per patch (of merged ones: per square of them) of so many pixels a side
 * (0 = 16), of the image itself or, unless `resize` is 0, of resize x resize pixels.  A clip: a token per patch of
 * its spectrogram of mel_bins filters, sound_patch a side; mel_bins 0: so many tokens per second. */
struct dt_samples_image {
    int patch, resize;
    int mel_bins, sound_patch;
};
/* As the model's (first) encoders of images and of sound have it; zeros without one. */
struct dt_samples_image dt_samples_image_of(const struct dt_model *m);

struct dt_samples {
    char name[DT_NAME_MAX];
    char source[256]; /* where the sizes come from; printed in reports */
    double generate;  /* share of images and clips that are drawn as targets; -1 = none is drawn */
    bool generate_stated; /* by the user, not by a preset */
    int64_t n;
    uint32_t *text_tokens; /* [n] */
    uint32_t *seq_tokens;  /* [n] LLM tokens of the whole sequence, padding included when packed */
    uint64_t *
        seq_tokens_sq; /* [n] sums of squares of what of a sequence attends to itself; NULL: all of it to all */
    uint64_t *item_first; /* [n+1] offsets into items */
    struct dt_sample_item *items;
};

/* `node`: preset name (traces/samples/NAME.yaml), a .csv path, or an inline map:
 *   {preset: laion-8k, max_side: 1024, seed: 7, count: 19200}  |  {distribution: {...}}  |  {csv: path}.
 * `seq_len` is train.seq_len; `count` the number of samples wanted (>= one global batch), `seed` the default seed;
 * `image` (may be NULL) the model's, which holds unless the user states a patch.
 * CSV columns (documented in disttrain-job(5)): sample,text_tokens,images,audio_s,gen_images where images is
 * "WxH;WxH;…" and gen_images the same. */
enum dt_status dt_samples_read(struct dt_node node, int seq_len, int64_t count, uint64_t seed,
                               const struct dt_samples_image *image, struct dt_error *err,
                               struct dt_samples **out);
/* The keys of the map, and what those that have a default read into. */
extern const struct dt_key dt_samples_keys[];
extern const struct dt_samples_pairs dt_samples_pairs_defaults;
/* How a file of packed rows begins that says, as ", patch 28", what an image's tokens were counted with (and a clip's:
 * ", mel_bins 128"); another one than the model's is an error. */
#define DT_SAMPLES_SCANNED "# disttrain data scan: "
enum dt_status dt_samples_read_csv(const char *path, int seq_len,
                                   const struct dt_samples_image *image, struct dt_error *err,
                                   struct dt_samples **out);
/* `patch` of the map `node`, if it is there, into image; another one than the encoder's is an error. */
enum dt_status dt_samples_patch(struct dt_node node, struct dt_samples_image *image,
                                struct dt_error *err);
/* Source and assumptions for people, as far as they concern the model. */
void dt_samples_describe(const struct dt_samples *s, const struct dt_model *m, char *buf,
                         size_t size);
/* The same from memory (tests, fuzzing). */
enum dt_status dt_samples_parse_csv(const char *name, const char *text, size_t len, int seq_len,
                                    const struct dt_samples_image *image, struct dt_error *err,
                                    struct dt_samples **out);
/* A copy of the first n <= s->n samples; of a distribution it is what drawing n of them gives. */
enum dt_status dt_samples_prefix(const struct dt_samples *s, int64_t n, struct dt_error *err,
                                 struct dt_samples **out);
void dt_samples_free(struct dt_samples *s);

/* What module m has to do for sample i (i taken modulo n, so short sets repeat). */
void dt_sample_work(const struct dt_samples *s, int64_t i, const struct dt_module *m,
                    struct dt_work *out);
/* The same of each of its items for module m alone, in their order; NULL: their number only. */
int64_t dt_sample_items(const struct dt_samples *s, int64_t i, const struct dt_module *m,
                        struct dt_work *out);

/* DT_ERR_INPUT where an iteration of `batch` samples could hold more work than 64 bits count. */
enum dt_status dt_samples_check_work(const struct dt_samples *s, const struct dt_model *m,
                                     int64_t batch, struct dt_error *err);

#endif
