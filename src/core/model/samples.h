/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Samples: the sizes of every training sequence, per modality.
 *
 * Storage is flat and linear: 10 M samples are a few hundred MB.  A sample is one packed training
 * sequence of <= seq_len tokens: text tokens plus items (images, audio clips), some of which are also targets to
 * generate. */
#ifndef DT_CORE_MODEL_SAMPLES_H
#define DT_CORE_MODEL_SAMPLES_H

#include "base/doc.h"
#include "core/model/model.h"
#include "base/status.h"

struct dt_sample_item { /* one image or audio clip */
    uint16_t w, h;      /* image: pixels; audio: w = duration in centiseconds, h = 0 */
    uint16_t kind;      /* enum dt_module_modality */
    uint16_t flags;     /* DT_ITEM_ENCODE | DT_ITEM_GENERATE */
};
enum { DT_ITEM_ENCODE = 1, DT_ITEM_GENERATE = 2 };

struct dt_samples {
    char name[DT_NAME_MAX];
    char source[256]; /* where the sizes come from; printed in reports */
    int64_t n;
    uint32_t *text_tokens; /* [n] */
    uint32_t *seq_tokens;  /* [n] LLM tokens of the whole sequence, padding included when packed */
    uint64_t *item_first;  /* [n+1] offsets into items */
    struct dt_sample_item *items;
};

/* `node`: preset name (traces/samples/NAME.yaml), a .csv path, or an inline map:
 *   {preset: laion-8k, max_side: 1024, seed: 7, count: 19200}  |  {distribution: {...}}  |  {csv: path}.
 * `seq_len` is train.seq_len; `count` the number of samples wanted (>= one global batch), `seed` the default seed.
 * CSV columns (documented in disttrain-job(5)): sample,text_tokens,images,audio_s,gen_images where images is
 * "WxH;WxH;…" and gen_images the same. */
enum dt_status dt_samples_read(struct dt_node node, int seq_len, int64_t count, uint64_t seed,
                               struct dt_error *err, struct dt_samples **out);
enum dt_status dt_samples_read_csv(const char *path, int seq_len, struct dt_error *err,
                                   struct dt_samples **out);
/* The same from memory (tests, fuzzing). */
enum dt_status dt_samples_parse_csv(const char *name, const char *text, size_t len, int seq_len,
                                    struct dt_error *err, struct dt_samples **out);
void dt_samples_free(struct dt_samples *s);

/* What module m has to do for sample i (i taken modulo n, so short sets repeat). */
void dt_sample_work(const struct dt_samples *s, int64_t i, const struct dt_module *m,
                    struct dt_work *out);

/* DT_ERR_INPUT where an iteration of `batch` samples could hold more work than 64 bits count. */
enum dt_status dt_samples_check_work(const struct dt_samples *s, const struct dt_model *m,
                                     int64_t batch, struct dt_error *err);

#endif
