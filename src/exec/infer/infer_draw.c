/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Images from captions: the LLM reads the text, the generator takes the noise away. */
#include "base/mem.h"
#include "base/rng.h"
#include "exec/infer/infer_impl.h"

#include <math.h>
#include <string.h>

enum { STEPS = 50 };

struct drawing {
    struct dt_infer *x;
    const struct dt_infer_draw_options *o;
    const struct dt_module *m;
    int steps, lw, lh;
    int copies;    /* of an image in a batch: 2 with guidance, with and without the text */
    size_t values; /* of one image */
    float *latents, *eps, *fresh;
};

/* All with their text, then, with guidance, all without. */
static enum dt_status write_sequences(struct drawing *d, const char *const *texts, int n,
                                      struct dt_error *err, struct dt_sequence **seqs)
{
    const struct dt_sequence_item empty = {.w = d->o->w, .h = d->o->h};
    const struct dt_infer_seen image = {&empty, 1};
    enum dt_status st = DT_OK;

    for (int i = 0; i < n * d->copies && st == DT_OK; i++) {
        const char *text = i < n ? texts[i] : "";
        struct dt_tokenizer_ids ids = {0};

        st = dt_tokenizer_encode(d->x->o.tokenizer, text, strlen(text), false, err, &ids);
        if (st == DT_OK)
            st = dt_infer_sequence(d->x, &image, DT_TASK_GENERATE, ids.id, ids.n, 0, err, &seqs[i]);
        dt_tokenizer_ids_free(&ids);
    }
    return st;
}

/* The k-th of the timesteps, from the noisiest to the cleanest, evenly spread. */
static int timestep(const struct drawing *d, int k)
{
    int all = d->x->o.diffusion->steps;

    if (k >= d->steps)
        return -1;
    return d->steps == 1 ? all - 1
                         : (int)(((int64_t)(d->steps - 1 - k) * (all - 1)) / (d->steps - 1));
}

/* Away from what would be drawn without the text. */
static void guide(struct drawing *d, int n)
{
    size_t values = (size_t)n * d->values;
    float w = (float)d->o->guidance;

    for (size_t k = 0; k < values; k++)
        d->eps[k] = d->eps[values + k] + w * (d->eps[k] - d->eps[values + k]);
}

static enum dt_status predict(struct drawing *d, int n, int t, struct dt_error *err)
{
    struct dt_infer_part *u = &d->x->generator;
    const struct dt_diffusion *s = d->x->o.diffusion;

    u->batch->rows = u->batch->n_seq = 0;
    u->batch->given_noise = true;
    for (int i = 0; i < n * d->copies; i++) {
        DT_TRY(dt_batch_latents(u->batch, d->latents + (size_t)(i % n) * d->values, d->lw, d->lh, 0,
                                err));
        u->batch->host.t[i] = (float)t;
        u->batch->host.alpha[i] = (float)sqrt(s->alpha_bar[t]);
        u->batch->host.sigma[i] = (float)sqrt(1 - s->alpha_bar[t]);
    }
    DT_TRY(dt_infer_forward(d->x, u, d->x->llm.out, err));
    d->x->o.device->copy(d->x->q, d->eps, u->batch->dev.pred,
                         (size_t)(n * d->copies) * d->values * sizeof(float), DT_COPY_TO_HOST);
    DT_TRY(d->x->o.device->queue_sync(d->x->q, err));
    DT_TRY(dt_infer_check(d->x, u, d->eps, (size_t)(n * d->copies) * d->values, err));
    if (d->copies == 2)
        guide(d, n);
    return DT_OK;
}

/* Noise of images first .. first + n - 1: round 0 is what they start from, then one per step. */
static void noise(const struct drawing *d, int round, int first, int n, float *out)
{
    for (int i = 0; i < n; i++) {
        struct dt_rng r;

        dt_rng_init(&r, d->o->seed, (uint64_t)(first + i) | (uint64_t)round << 32);
        for (size_t k = 0; k < d->values; k++)
            out[(size_t)i * d->values + k] = (float)dt_rng_normal(&r);
    }
}

static enum dt_status some(struct drawing *d, const char *const *texts, int first, int n,
                           struct dt_sequence **seqs, struct dt_error *err, struct dt_image *images)
{
    int all = n * d->copies;
    struct dt_batch_limits need = {
        .rows = (int64_t)all * d->lw * d->lh, .seqs = all, .max_len = (int64_t)d->lw * d->lh};

    DT_TRY(write_sequences(d, texts, n, err, seqs));
    DT_TRY(dt_infer_read(d->x, (const struct dt_sequence *const *)seqs, all, err));
    DT_TRY(dt_infer_room(d->x, &d->x->generator, &need, err));
    noise(d, 0, first, n, d->latents);
    for (int k = 0; k < d->steps; k++) {
        int t = timestep(d, k);

        DT_TRY(predict(d, n, t, err));
        if (d->o->eta > 0)
            noise(d, k + 1, first, n, d->fresh);
        dt_diffusion_ddim_step(d->x->o.diffusion, t, timestep(d, k + 1), d->o->clip, d->o->eta,
                               (int64_t)((size_t)n * d->values), d->eps,
                               d->o->eta > 0 ? d->fresh : NULL, d->latents);
    }
    for (int i = 0; i < n; i++) {
        DT_TRY(dt_image_new(d->lw, d->lh, err, &images[i]));
        dt_batching_pixels(d->m, d->latents + (size_t)i * d->values, d->lw, d->lh, images[i].px);
    }
    return DT_OK;
}

enum dt_status dt_infer_draw(struct dt_infer *x, const char *const *texts, int n,
                             const struct dt_infer_draw_options *o, struct dt_error *err,
                             struct dt_image *images)
{
    struct drawing d = {.x = x, .o = o};
    struct dt_sequence **seqs = NULL;
    enum dt_status st = DT_OK;
    size_t batch = (size_t)x->o.batch;

    if (!dt_infer_can_draw(x))
        return dt_error_set(err, DT_ERR_INPUT, "the model has no generator: it cannot draw");
    d.m = &x->o.model->modules[x->generator.module];
    d.copies = o->guidance == 0 || o->guidance == 1 ? 1 : 2;
    d.steps = o->steps > 0 ? o->steps : STEPS;
    if (d.steps > x->o.diffusion->steps)
        d.steps = x->o.diffusion->steps;
    dt_batching_latent_size(d.m, o->w, o->h, &d.lw, &d.lh);
    d.values = (size_t)d.lw * (size_t)d.lh * (size_t)dt_batching_channels(d.m);
    memset(images, 0, (size_t)n * sizeof(*images));
    d.latents = dt_calloc(batch * d.values + 1, sizeof(float));
    d.eps = dt_calloc(2 * batch * d.values + 1, sizeof(float));
    d.fresh = dt_calloc(batch * d.values + 1, sizeof(float));
    seqs = dt_calloc(2 * batch, sizeof(*seqs));
    if (!d.latents || !d.eps || !d.fresh || !seqs)
        st = dt_error_nomem(err, "images to draw");
    for (int i = 0; i < n && st == DT_OK; i += x->o.batch) {
        int now = n - i < x->o.batch ? n - i : x->o.batch;

        memset(seqs, 0, 2 * batch * sizeof(*seqs));
        st = some(&d, texts + i, i, now, seqs, err, images + i);
        for (int k = 0; k < now * d.copies; k++)
            dt_sequence_free(seqs[k]);
    }
    dt_free(d.latents);
    dt_free(d.eps);
    dt_free(d.fresh);
    dt_free(seqs);
    for (int i = 0; i < n && st != DT_OK; i++)
        dt_image_free(&images[i]);
    return st;
}
