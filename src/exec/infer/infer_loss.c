/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Losses on held-out sequences, and what a predictor without a model would reach. */
#include "base/mem.h"
#include "exec/infer/infer_impl.h"

#include <math.h>

static void add_text(const struct dt_infer *x, const struct dt_sequence *const *seqs, int n,
                     struct dt_infer_losses *sum)
{
    int64_t row = 0;

    for (int k = 0; k < n; row += seqs[k++]->n_tokens)
        for (int i = 0; i < seqs[k]->n_tokens; i++)
            if (seqs[k]->labels[i] >= 0) {
                sum->nll += (double)x->nll[row + i];
                sum->targets++;
            }
}

/* Mean and mean square of an image's clean latents. */
static void moments(const float *v, int64_t n, struct dt_infer_drawn *d)
{
    double sum = 0, sum_sq = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += (double)v[i];
        sum_sq += (double)v[i] * (double)v[i];
    }
    d->mean = sum / (double)n;
    d->mean_sq = sum_sq / (double)n;
}

static enum dt_status add_images(struct dt_infer *x, const struct dt_sequence *const *seqs, int n,
                                 uint64_t seed, uint64_t draw, struct dt_error *err,
                                 struct dt_infer_losses *sum)
{
    struct dt_infer_part *u = &x->generator;
    int channels = dt_batching_channels(&x->o.model->modules[u->module]);
    struct dt_batch_limits need;
    struct dt_batch *b;
    const float *v;
    void *p = sum->drawn;
    float *sse;
    enum dt_status st;

    dt_batching_limits(x->o.model, u->module, seqs, n, NULL, &need);
    if (need.seqs == 0)
        return DT_OK;
    DT_TRY(dt_infer_room(x, u, &need, err));
    b = u->batch;
    DT_TRY(dt_batching_fill(x->o.model, u->module, seqs, n, b, err));
    dt_batch_diffuse(b, x->o.diffusion, seed, draw);
    b->noise_seed = seed ^ (draw + 1) * UINT64_C(0xD1B54A32D192ED03); /* an odd constant: another
                                                                        noise for every draw */
    b->given_noise = false;
    DT_TRY(dt_infer_forward(x, u, x->llm.out, err));
    if (dt_grow(&p, &sum->cap_drawn, (size_t)(sum->images + b->n_seq), sizeof(*sum->drawn)))
        return dt_error_nomem(err, "losses");
    sum->drawn = p;
    sse = dt_malloc((size_t)b->n_seq * sizeof(*sse));
    if (!sse)
        return dt_error_nomem(err, "losses");
    x->o.device->copy(x->q, sse, b->dev.sse, (size_t)b->n_seq * sizeof(*sse), DT_COPY_TO_HOST);
    st = x->o.device->queue_sync(x->q, err);
    if (st == DT_OK)
        st = dt_infer_check(x, u, sse, (size_t)b->n_seq, err);
    v = b->host.pixels;
    for (int64_t i = 0; i < b->n_seq && st == DT_OK; i++) {
        struct dt_infer_drawn *d = &sum->drawn[sum->images++];
        int64_t values = (int64_t)b->host.hw[i][0] * b->host.hw[i][1] * channels;

        sum->mse += (double)sse[i] / (double)values;
        d->alpha = (double)b->host.alpha[i];
        d->sigma = (double)b->host.sigma[i];
        moments(v, values, d);
        v += values;
    }
    dt_free(sse);
    return st;
}

enum dt_status dt_infer_add_losses(struct dt_infer *x, const struct dt_sequence *const *seqs, int n,
                                   uint64_t seed, uint64_t draw, struct dt_error *err,
                                   struct dt_infer_losses *sum)
{
    DT_TRY(dt_infer_encode(x, seqs, n, err));
    DT_TRY(dt_infer_read(x, seqs, n, err));
    add_text(x, seqs, n, sum);
    return x->generator.module < 0 ? DT_OK : add_images(x, seqs, n, seed, draw, err, sum);
}

double dt_infer_trivial_mse(const struct dt_infer_losses *sum)
{
    double mean = 0, mean_sq = 0, v, mse = 0, n = (double)sum->images;

    if (sum->images == 0)
        return 0;
    for (int64_t i = 0; i < sum->images; i++) {
        mean += sum->drawn[i].mean / n;
        mean_sq += sum->drawn[i].mean_sq / n;
    }
    v = mean_sq - mean * mean;
    for (int64_t i = 0; i < sum->images; i++) {
        const struct dt_infer_drawn *d = &sum->drawn[i];
        double c = d->sigma / (d->alpha * d->alpha * v + d->sigma * d->sigma);
        double spread = d->mean_sq - 2 * mean * d->mean + mean * mean;

        /* noise - c (x_t - alpha m) = (1 - c sigma) noise - c alpha (x_0 - m), noise of variance 1
         */
        mse += pow(1 - c * d->sigma, 2) + pow(c * d->alpha, 2) * spread;
    }
    return mse / n;
}

void dt_infer_losses_free(struct dt_infer_losses *sum)
{
    dt_free(sum->drawn);
    sum->drawn = NULL;
    sum->cap_drawn = 0;
}
