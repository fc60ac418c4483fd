/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A trained model at work: captions of images, images for captions, losses on held-out data.
 *
 * Every module is one stage without a backward.  Text is chosen greedily, the likeliest token each
 * time, the whole document run again for every token (no key-value cache: meant for looking at what
 * was learnt).  Images are drawn with DDIM (dt_diffusion_ddim_step). */
#ifndef DT_EXEC_INFER_INFER_H
#define DT_EXEC_INFER_INFER_H

#include "exec/checkpoint/checkpoint.h"
#include "exec/data/tokenizer.h"
#include "exec/program/batching.h"

struct dt_infer_options {
    const struct dt_device *device;
    const struct dt_model *model;         /* one encoder, one LLM, one generator at most */
    const struct dt_tokenizer *tokenizer; /* outlives the result, as all of these do */
    const struct dt_diffusion *diffusion; /* NULL without a generator */
    enum dt_dtype dtype;
    int batch;        /* documents at once; 0 = 32 */
    int image_tokens; /* at most, of an image; 0 = 4096 */
};

struct dt_infer;
/* Parameters are all zero until they are loaded. */
enum dt_status dt_infer_new(const struct dt_infer_options *o, struct dt_error *err,
                            struct dt_infer **out);
void dt_infer_free(struct dt_infer *x);
/* Loads the weights of a checkpoint (dt_ckpt_load without moments). */
enum dt_status dt_infer_load(struct dt_infer *x, const char *path, struct dt_error *err,
                             struct dt_ckpt_state *state);
/* Initialises as training does (tests). */
enum dt_status dt_infer_init(struct dt_infer *x, uint64_t seed, struct dt_error *err);
/* Stage of a module (tests). */
struct dt_stage *dt_infer_stage(const struct dt_infer *x, int module);
bool dt_infer_can_caption(const struct dt_infer *x);
bool dt_infer_can_draw(const struct dt_infer *x);

/* What one caption is of: an image, a sound, or the frames of a video in their order (`sound`, w, h and px of each). */
struct dt_infer_seen {
    const struct dt_sequence_item *items;
    int n;
};
/* Captions of at most max_tokens tokens each, and at most as long as the LLM has learned positions; texts[i] is the caller's (dt_free).  On failure no text is left. */
enum dt_status dt_infer_caption(struct dt_infer *x, const struct dt_infer_seen *seen, int n,
                                int max_tokens, struct dt_error *err, char **texts);

struct dt_infer_draw_options {
    int w, h;        /* pixels of the images that the generator learnt from */
    int steps;       /* of DDIM, at most the schedule's; 0 = 50 */
    uint64_t seed;   /* image i starts from the noise of (seed, i) */
    double eta;      /* of DDIM: 0 = the same noise gives the same image, 1 = as random as DDPM */
    double clip;     /* bound of the clean image's estimate; 0 = none; pixels lie in [-1, 1] */
    double guidance; /* noise = without + guidance (with - without the text), Ho & Salimans 2022;
                      * 0 = 1 = the text alone.  Wants training with caption_drop. */
};
/* Draws an image for each text; images[i] (one pixel per latent) is the caller's. */
enum dt_status dt_infer_draw(struct dt_infer *x, const char *const *texts, int n,
                             const struct dt_infer_draw_options *o, struct dt_error *err,
                             struct dt_image *images);

/* Sums over held-out sequences; begins with zeros. */
struct dt_infer_losses {
    int64_t targets; /* tokens to be foretold */
    double nll;      /* their negative log likelihoods, summed */
    int64_t images;  /* to be drawn */
    double mse;      /* mean squared errors of their noise, summed */
    struct dt_infer_drawn *drawn;
    size_t cap_drawn;
};
struct dt_infer_drawn { /* what a predictor without a model would need to know of an image */
    double alpha, sigma, mean, mean_sq;
};
/* Adds the losses of n sequences; timesteps and noise come from (seed, draw). */
enum dt_status dt_infer_add_losses(struct dt_infer *x, const struct dt_sequence *const *seqs, int n,
                                   uint64_t seed, uint64_t draw, struct dt_error *err,
                                   struct dt_infer_losses *sum);
/* Expected error of the best linear guess from the noisy pixel alone: for data of mean m and
 * variance v, noise = sigma (x_t - alpha m) / (alpha^2 v + sigma^2), with m and v of these very
 * images.  (Guessing zero noise has an expected error of 1.) */
double dt_infer_trivial_mse(const struct dt_infer_losses *sum);
void dt_infer_losses_free(struct dt_infer_losses *sum);

#endif
