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
#include "core/model/samples_fit.h"

#include <math.h>
#include <string.h>

enum dist_kind { KIND_CONSTANT, KIND_LOGNORMAL, KIND_EXPONENTIAL, KIND_UNIFORM };
static const char *const kind_words[] = {"constant", "lognormal", "exponential", "uniform", NULL};

struct dist { /* clipped to [min, max] */
    bool on;
    int kind;
    double a, b; /* value | mu, sigma | mean | - */
    double min, max;
};

struct pairs {
    struct dist text, side, audio_s;
    double aspect_sigma;
    int min_side, max_side;
    struct dt_samples_image image;
    bool generate_stated;
    double tokens_per_s, generate;
    bool fill_text; /* what follows the last pair is text, not padding */
};

/* ---- reading ---- */

/* {kind: lognormal, mu: 2.4, sigma: 0.7, min: 1, max: 256}, or instead of mu and sigma {mean: 15,
 * p99: 63}. */
static enum dt_status read_lognormal(struct dt_node n, struct dist *d, struct dt_error *err)
{
    double p99 = 0, mean = 0;
    if (!dt_node_present(dt_map_get(n, "p99"))) {
        DT_TRY(dt_map_require(n, "lognormal", "mu", err));
        DT_TRY(dt_map_require(n, "lognormal", "sigma", err));
        DT_TRY(dt_get_double(n, "mu", -20, 20, &d->a, err));
        return dt_get_double(n, "sigma", 0, 10, &d->b, err);
    }
    struct dt_error why;
    DT_TRY(dt_map_require(n, "lognormal", "mean", err));
    DT_TRY(dt_get_double(n, "mean", 1e-6, 1e9, &mean, err));
    DT_TRY(dt_get_double(n, "p99", 1e-6, 1e9, &p99, err));
    if (dt_samples_lognormal_from_mean(mean, p99, 0.99, &why, &d->a, &d->b) != DT_OK)
        return dt_node_error(dt_map_get(n, "p99"), err, "%s", why.message);
    return DT_OK;
}

static enum dt_status read_dist(struct dt_node map, const char *key, double lo, double hi,
                                struct dist *d, struct dt_error *err)
{
    static const char *const keys[] = {"kind", "value", "mu",  "sigma", "mean",
                                       "p99",  "min",   "max", NULL};
    struct dt_node n = dt_map_get(map, key);
    d->min = lo;
    d->max = hi;
    if (!dt_node_present(n))
        return DT_OK;
    d->on = true;
    DT_TRY(dt_map_check(n, key, keys, err));
    DT_TRY(dt_map_require(n, key, "kind", err));
    DT_TRY(dt_get_enum(n, "kind", kind_words, &d->kind, err));
    DT_TRY(dt_get_double(n, "min", lo, hi, &d->min, err));
    DT_TRY(dt_get_double(n, "max", d->min, hi, &d->max, err));
    switch ((enum dist_kind)d->kind) {
    case KIND_CONSTANT:
        DT_TRY(dt_map_require(n, key, "value", err));
        return dt_get_double(n, "value", lo, hi, &d->a, err);
    case KIND_EXPONENTIAL:
        DT_TRY(dt_map_require(n, key, "mean", err));
        return dt_get_double(n, "mean", 1e-6, hi, &d->a, err);
    case KIND_UNIFORM:
        DT_TRY(dt_map_require(n, key, "min", err));
        return dt_map_require(n, key, "max", err);
    case KIND_LOGNORMAL:
        break;
    }
    return read_lognormal(n, d, err);
}

/* image_side without mu and sigma: fitted from the size_ccdf rows that stand beside it. */
static enum dt_status fit_sides(struct dt_node rows, struct pairs *p, struct dt_error *err)
{
    static const char *const keys[] = {"px", "smaller", "larger", "total", NULL};
    struct dt_samples_ccdf c[DT_SIZE_CCDF_MAX];
    size_t n = dt_seq_size(rows);
    if (!dt_node_is_seq(rows) || n > DT_SIZE_CCDF_MAX)
        return dt_node_error(rows, err, "size_ccdf must be a list of at most %d rows",
                             (int)DT_SIZE_CCDF_MAX);
    for (size_t i = 0; i < n; i++) {
        struct dt_node row = dt_seq_at(rows, i);
        double total = 1;
        DT_TRY(dt_map_check(row, "size_ccdf row", keys, err));
        for (int k = 0; k < 3; k++)
            DT_TRY(dt_map_require(row, "size_ccdf row", keys[k], err));
        DT_TRY(dt_get_double(row, "px", 1, DT_SAMPLES_SIDE_MAX, &c[i].px, err));
        DT_TRY(dt_get_double(row, "smaller", 0, 1e15, &c[i].smaller, err));
        DT_TRY(dt_get_double(row, "larger", 0, 1e15, &c[i].larger, err));
        DT_TRY(dt_get_double(row, "total", 1e-9, 1e15, &total, err));
        c[i].smaller /= total;
        c[i].larger /= total;
    }
    struct dt_error why;
    struct dt_samples_size_fit fit;
    if (dt_samples_fit(c, (int)n, &why, &fit) != DT_OK)
        return dt_node_error(rows, err, "%s", why.message);
    if (!p->side.on)
        p->side = (struct dist){true, KIND_LOGNORMAL, fit.mu, fit.sigma, 1, DT_SAMPLES_SIDE_MAX};
    if (p->aspect_sigma < 0)
        p->aspect_sigma = fit.aspect_sigma;
    return DT_OK;
}

static enum dt_status read_overrides(struct dt_node n, struct pairs *p, struct dt_error *err)
{
    if (!dt_node_present(n))
        return DT_OK;
    DT_TRY(dt_get_i32(n, "min_side", 1, DT_SAMPLES_SIDE_MAX, &p->min_side, err));
    DT_TRY(dt_get_i32(n, "max_side", 1, DT_SAMPLES_SIDE_MAX, &p->max_side, err));
    DT_TRY(dt_samples_patch(n, &p->image, err));
    p->generate_stated |= dt_node_present(dt_map_get(n, "generate"));
    return dt_get_double(n, "generate", 0, 1, &p->generate, err);
}

/* Every pair must fit an empty sequence, else packing could not go on. */
static enum dt_status check_fits(struct dt_node map, const struct pairs *p, int seq_len,
                                 struct dt_error *err)
{
    if (p->side.on && p->min_side > p->max_side)
        return dt_node_error(map, err, "min_side %d is above max_side %d", p->min_side,
                             p->max_side);
    int64_t side =
        dt_samples_ceil_div(p->image.resize ? p->image.resize : p->max_side, p->image.patch);
    int64_t image = p->side.on ? side * side : 0;
    int64_t audio = p->audio_s.on
                        ? dt_sample_audio_frames((int)ceil(p->audio_s.max * 100.0), p->tokens_per_s)
                        : 0;
    int64_t text = p->text.on ? (int64_t)ceil(p->text.max) : 0;
    if (image + audio + text <= seq_len)
        return DT_OK;
    return dt_node_error(map, err,
                         "a pair may need %lld tokens (text %lld, image %lld at max_side %d, "
                         "audio %lld), more than train.seq_len %d; lower samples.max_side or the "
                         "'max' of text_tokens and audio_s",
                         (long long)(image + audio + text), (long long)text, (long long)image,
                         p->max_side, (long long)audio, seq_len);
}

/* The encoder's patch goes before a preset's; a stated one must go with the encoder's. */
static enum dt_status read_patch(struct dt_node map, const struct dt_samples_image *image,
                                 bool preset, struct pairs *p, struct dt_error *err)
{
    DT_TRY(dt_get_i32(map, "patch", 1, 1024, &p->image.patch, err));
    if (!image || image->patch == 0)
        return DT_OK;
    p->image.patch = image->patch;
    return preset ? DT_OK : dt_samples_patch(map, &p->image, err);
}

static enum dt_status read_pairs(struct dt_node map, struct dt_node over, int seq_len,
                                 const struct dt_samples_image *image, bool preset, struct pairs *p,
                                 struct dt_error *err)
{
    static const char *const keys[] = {
        "text_tokens", "image_side", "aspect_sigma",       "size_ccdf", "audio_s", "min_side",
        "max_side",    "patch",      "audio_tokens_per_s", "generate",  "fill",    NULL};
    static const char *const fills[] = {"padding", "text", NULL};
    int fill = 0;
    /* 64 px: below, web images are icons; 1,024 px: the larger published resolution; both are house
     * assumptions, as is generating half of the images (doc/samples.md). */
    *p = (struct pairs){.aspect_sigma = -1,
                        .min_side = 64,
                        .max_side = 1024,
                        .image = {DT_SAMPLES_PATCH, image ? image->resize : 0},
                        .tokens_per_s = DT_SAMPLES_AUDIO_TOKENS_PER_S,
                        .generate = 0.5};
    DT_TRY(dt_map_check(map, "distribution", keys, err));
    DT_TRY(read_dist(map, "text_tokens", 0, seq_len, &p->text, err));
    DT_TRY(read_dist(map, "image_side", 1, DT_SAMPLES_SIDE_MAX, &p->side, err));
    DT_TRY(read_dist(map, "audio_s", 0.01, DT_SAMPLES_AUDIO_CS_MAX / 100.0, &p->audio_s, err));
    DT_TRY(dt_get_double(map, "aspect_sigma", 0, 5, &p->aspect_sigma, err));
    struct dt_node rows = dt_map_get(map, "size_ccdf");
    if (dt_node_present(rows) && !(p->side.on && p->aspect_sigma >= 0))
        DT_TRY(fit_sides(rows, p, err));
    if (p->aspect_sigma < 0)
        p->aspect_sigma = 0;
    DT_TRY(read_patch(map, image, preset, p, err));
    DT_TRY(dt_get_double(map, "audio_tokens_per_s", 1e-3, 1e6, &p->tokens_per_s, err));
    DT_TRY(dt_get_enum(map, "fill", fills, &fill, err));
    p->fill_text = fill == 1;
    DT_TRY(dt_get_i32(map, "min_side", 1, DT_SAMPLES_SIDE_MAX, &p->min_side, err));
    DT_TRY(dt_get_i32(map, "max_side", 1, DT_SAMPLES_SIDE_MAX, &p->max_side, err));
    DT_TRY(dt_get_double(map, "generate", 0, 1, &p->generate, err));
    p->generate_stated = !preset && dt_node_present(dt_map_get(map, "generate"));
    DT_TRY(read_overrides(over, p, err));
    if (!p->text.on && !p->side.on && !p->audio_s.on && !p->fill_text)
        return dt_node_error(map, err,
                             "the distribution is empty: give text_tokens, image_side, audio_s or "
                             "'fill: text'");
    return check_fits(map, p, seq_len, err);
}

/* ---- drawing ---- */

static double value_of(const struct dist *d, struct dt_rng *r)
{
    switch ((enum dist_kind)d->kind) {
    case KIND_CONSTANT:
        return d->a;
    case KIND_EXPONENTIAL:
        return -d->a * log(dt_rng_uniform(r));
    case KIND_UNIFORM:
        return d->min + (d->max - d->min) * dt_rng_uniform(r);
    case KIND_LOGNORMAL:
        break;
    }
    return exp(d->a + d->b * dt_rng_normal(r));
}

static double draw(const struct dist *d, struct dt_rng *r)
{
    return fmin(fmax(value_of(d, r), d->min), d->max);
}

/* Smaller side at least min_side; then the larger is cut to max_side, the shape kept as far as
 * min_side allows. */
static struct dt_sample_item draw_image(const struct pairs *p, struct dt_rng *r)
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

static void draw_pair(const struct pairs *p, uint64_t seed, uint64_t k, struct pair *out)
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
        out->tokens += dt_sample_audio_frames(cs, p->tokens_per_s);
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

static enum dt_status pack(const struct pairs *p, int seq_len, int64_t count, uint64_t seed,
                           struct dt_samples_builder *b, struct dt_error *err)
{
    bool any = p->text.on || p->side.on || p->audio_s.on;
    struct pair next = {0};
    uint64_t k = 0;
    if (any)
        draw_pair(p, seed, k++, &next);
    for (int64_t i = 0; i < count; i++) {
        int64_t used = 0, text = 0;
        while (any && used + next.tokens <= seq_len) {
            used += next.tokens;
            text += next.text;
            for (int j = 0; j < next.n_items; j++)
                DT_TRY(dt_samples_builder_item(b, next.items[j], err));
            draw_pair(p, seed, k++, &next);
        }
        if (p->fill_text)
            text += seq_len - used;
        DT_TRY(dt_samples_builder_end(b, (uint32_t)text, (uint32_t)seq_len, err));
    }
    return DT_OK;
}

enum dt_status dt_samples_generate(struct dt_node map, struct dt_node over, int seq_len,
                                   int64_t count, uint64_t seed,
                                   const struct dt_samples_image *image, bool preset,
                                   struct dt_error *err, struct dt_samples **out)
{
    struct pairs p;
    struct dt_samples_builder b;
    DT_TRY(read_pairs(map, over, seq_len, image, preset, &p, err));
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
