/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Samples, the inside: growing a set sample by sample, and token counts of items.
 * Shared by samples*.c only. */
#ifndef DT_CORE_MODEL_SAMPLES_BUILD_H
#define DT_CORE_MODEL_SAMPLES_BUILD_H

#include "core/model/samples.h"
#include "core/model/samples_sound.h"

enum {
    DT_SAMPLES_PATCH = 16,       /* pixels per patch side where the model has no image encoder */
    DT_SAMPLES_SIDE_MAX = 16384, /* pixels; larger images are taken for mistakes */
    DT_SAMPLES_AUDIO_CS_MAX = 65535, /* centiseconds: what dt_sample_item.w can hold, 655.35 s */
    DT_SAMPLES_ITEMS_MAX = 1 << 26,  /* images and clips in all: 512 MiB */
    DT_SAMPLES_COUNT_MAX = 1 << 20,  /* drawn: 160 MB and 5 s of them, measured */
    DT_SAMPLES_SEQ_MAX = 1 << 24     /* tokens of a sequence */
};
/* LLM tokens per second of audio: BEATs gives 496 tokens per 10 s (published; FACTS: Model shapes).
 */
#define DT_SAMPLES_AUDIO_TOKENS_PER_S 49.6

/* A set that grows; zero-initialised is valid. */
struct dt_samples_builder {
    struct dt_samples *s;
    size_t cap_text, cap_seq, cap_first, cap_items;
    uint64_t n_items;
};
/* Room for `n` samples at once (more may follow). */
enum dt_status dt_samples_builder_init(struct dt_samples_builder *b, int64_t n,
                                       struct dt_error *err);
/* An item of the sample that is being built. */
enum dt_status dt_samples_builder_item(struct dt_samples_builder *b, struct dt_sample_item item,
                                       struct dt_error *err);
/* Closes the sample that is being built. */
enum dt_status dt_samples_builder_end(struct dt_samples_builder *b, uint32_t text_tokens,
                                      uint32_t seq_tokens, struct dt_error *err);
/* Gives the set away, shrunk to its size. */
struct dt_samples *dt_samples_builder_take(struct dt_samples_builder *b);
void dt_samples_builder_drop(struct dt_samples_builder *b);

/* ceil(a/b) for positive ints. */
static inline int64_t dt_samples_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t dt_sample_image_tokens(int w, int h, int patch)
{
    return dt_samples_ceil_div(w, patch) * dt_samples_ceil_div(h, patch);
}
/* Tokens of the LLM that an image is; image->patch > 0. */
static inline int64_t dt_samples_image_tokens(const struct dt_samples_image *image,
                                              const struct dt_sample_item *it)
{
    return dt_sample_image_tokens(image->resize ? image->resize : it->w,
                                  image->resize ? image->resize : it->h, image->patch);
}
/* Frames of a clip of `cs` centiseconds: rounded to nearest, at least one. */
int64_t dt_sample_audio_frames(int cs, double frames_per_s);
/* Tokens of the LLM that a clip is; tokens_per_s where no encoder says it. */
static inline int64_t dt_samples_sound_tokens(const struct dt_samples_image *image, int cs,
                                              double tokens_per_s)
{
    return image->mel_bins > 0 ? dt_sample_sound_patches(dt_sample_sound_frames(cs),
                                                         image->mel_bins, image->sound_patch)
                               : dt_sample_audio_frames(cs, tokens_per_s);
}

/* ---- what is drawn ---- */

enum dt_samples_dist_kind {
    DT_SAMPLES_CONSTANT,
    DT_SAMPLES_LOGNORMAL,
    DT_SAMPLES_EXPONENTIAL,
    DT_SAMPLES_UNIFORM
};
struct dt_samples_dist { /* clipped to [min, max] */
    bool on;
    enum dt_samples_dist_kind kind;
    double a, b; /* value | mu, sigma | mean | - */
    double min, max;
};

/* What the keys of a `distribution:` map, and those beside it, are read into. */
struct dt_samples_pairs {
    int64_t seed, count; /* beside a distribution or preset only */
    int seq_len;
    struct dt_samples_dist text, side, audio_s;
    double aspect_sigma; /* < 0: not stated */
    int min_side, max_side;
    struct dt_samples_image image;
    bool generate_stated;
    double tokens_per_s, generate;
    bool fill_text; /* what follows the last pair is text, not padding */
    bool apart;     /* every pair is a sequence of its own, as long as it is */
};

/* samples_read.c: `map` is a `distribution:` map; `over` a map whose min_side, max_side, patch and
 * generate replace those of `map` (absent node = none).  preset: `map` is not the user's. */
enum dt_status dt_samples_pairs_read(struct dt_node map, struct dt_node over, int seq_len,
                                     const struct dt_samples_image *image, bool preset,
                                     struct dt_error *err, struct dt_samples_pairs *out);
/* samples_dist.c: reads the pairs and draws `count` samples of them. */
enum dt_status dt_samples_generate(struct dt_node map, struct dt_node over, int seq_len,
                                   int64_t count, uint64_t seed,
                                   const struct dt_samples_image *image, bool preset,
                                   struct dt_error *err, struct dt_samples **out);

#endif
