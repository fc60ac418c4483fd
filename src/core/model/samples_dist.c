/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Samples drawn from a distribution (doc/samples.md).
 *
 * The stream of training data is a sequence of *pairs*: a text of some length with one image and/or
 * one audio clip.  Pairs are packed in order: appended to a training sequence until the next does
 * not fit, which then opens the following sequence; the rest is padding.  Pair k draws from random
 * stream k of the seed and nothing else, so sample i does not depend on how many samples are asked
 * for, and the same pairs come back whatever the sequence length or size cap. */
#include "core/model/samples_build.h"

#include "base/rng.h"

#include <math.h>

static double value_of(const struct dt_samples_dist *d, struct dt_rng *r)
{
    switch (d->kind) {
    case DT_SAMPLES_CONSTANT:
        return d->a;
    case DT_SAMPLES_EXPONENTIAL:
        return -d->a * log(dt_rng_uniform(r));
    case DT_SAMPLES_UNIFORM:
        return d->min + (d->max - d->min) * dt_rng_uniform(r);
    case DT_SAMPLES_LOGNORMAL:
        break;
    }
    return exp(d->a + d->b * dt_rng_normal(r));
}

static double draw(const struct dt_samples_dist *d, struct dt_rng *r)
{
    return fmin(fmax(value_of(d, r), d->min), d->max);
}

/* Smaller side at least min_side; then the larger is cut to max_side, the shape kept as far as
 * min_side allows. */
static struct dt_sample_item draw_image(const struct dt_samples_pairs *p, struct dt_rng *r)
{
    double smaller = fmax(draw(&p->side, r), p->min_side);
    double larger = smaller * exp(p->aspect_sigma * fabs(dt_rng_normal(r)));
    if (larger > p->max_side) {
        smaller = fmax(smaller * p->max_side / larger, p->min_side);
        larger = p->max_side;
    }
    uint16_t s = (uint16_t)rint(smaller), l = (uint16_t)rint(larger);
    bool landscape = dt_rng_uniform(r) < 0.5; /* tokens do not depend on it */
    return (struct dt_sample_item){landscape ? l : s, landscape ? s : l, DT_MODALITY_IMAGE,
                                   DT_ITEM_ENCODE};
}

struct pair {
    int64_t text, tokens; /* tokens: text, image and clip together */
    int n_items;
    struct dt_sample_item items[2];
};

static void draw_pair(const struct dt_samples_pairs *p, uint64_t seed, uint64_t k, struct pair *out)
{
    struct dt_rng r;
    dt_rng_init(&r, seed, k);
    out->text = p->text.on ? (int64_t)rint(draw(&p->text, &r)) : 0;
    out->tokens = out->text;
    out->n_items = 0;
    if (p->side.on) {
        struct dt_sample_item it = draw_image(p, &r);
        out->tokens += dt_samples_image_tokens(&p->image, &it);
        out->items[out->n_items++] = it;
    }
    if (p->audio_s.on) {
        uint16_t cs = (uint16_t)fmax(rint(draw(&p->audio_s, &r) * 100.0), 1.0);
        out->tokens += dt_samples_sound_tokens(&p->image, cs, p->tokens_per_s);
        out->items[out->n_items++] =
            (struct dt_sample_item){cs, 0, DT_MODALITY_AUDIO, DT_ITEM_ENCODE};
    }
    for (int i = 0; i < out->n_items; i++)
        if (dt_rng_uniform(&r) < p->generate)
            out->items[i].flags |= DT_ITEM_GENERATE;
    if (out->tokens < 1) { /* an empty pair would never fill a sequence */
        out->text = 1;
        out->tokens = 1;
    }
}

static enum dt_status pack(const struct dt_samples_pairs *p, int seq_len, int64_t count,
                           uint64_t seed, struct dt_samples_builder *b, struct dt_error *err)
{
    bool any = p->text.on || p->side.on || p->audio_s.on;
    struct pair next = {0};
    uint64_t k = 0;
    if (any)
        draw_pair(p, seed, k++, &next);
    for (int64_t i = 0; i < count; i++) {
        int64_t used = 0, text = 0;
        while (any && used + next.tokens <= seq_len && !(p->apart && used > 0)) {
            used += next.tokens;
            text += next.text;
            for (int j = 0; j < next.n_items; j++)
                DT_TRY(dt_samples_builder_item(b, next.items[j], err));
            draw_pair(p, seed, k++, &next);
        }
        if (p->fill_text)
            text += seq_len - used;
        DT_TRY(
            dt_samples_builder_end(b, (uint32_t)text, (uint32_t)(p->apart ? used : seq_len), err));
    }
    return DT_OK;
}

enum dt_status dt_samples_generate(struct dt_node map, struct dt_node over, int seq_len,
                                   int64_t count, uint64_t seed,
                                   const struct dt_samples_image *image, bool preset,
                                   struct dt_error *err, struct dt_samples **out)
{
    struct dt_samples_pairs p;
    struct dt_samples_builder b;
    DT_TRY(dt_samples_pairs_read(map, over, seq_len, image, preset, err, &p));
    DT_TRY(dt_samples_builder_init(&b, count, err));
    enum dt_status st = pack(&p, seq_len, count, seed, &b, err);
    if (st != DT_OK) {
        dt_samples_builder_drop(&b);
        return st;
    }
    *out = dt_samples_builder_take(&b);
    (*out)->generate = p.side.on || p.audio_s.on ? p.generate : -1;
    (*out)->generate_stated = p.generate_stated;
    return DT_OK;
}
