/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The keys of `samples:` and of its distributions (disttrain-job(5)), as far as they say what is drawn. */
#include "core/model/samples_build.h"
#include "core/model/samples_fit.h"

#include <math.h>
#include <stdio.h>

/* 64 px: below, web images are icons; 1,024 px: the larger published resolution; both are house assumptions, as is
 * generating half of the images (doc/samples.md). */
const struct dt_samples_pairs dt_samples_pairs_defaults = {
    .aspect_sigma = -1,
    .min_side = 64,
    .max_side = 1024,
    .image = {.patch = DT_SAMPLES_PATCH},
    .tokens_per_s = DT_SAMPLES_AUDIO_TOKENS_PER_S,
    .generate = 0.5,
};

/* ---- the distribution of one number ---- */

static const char *const kind_words[] = {"constant", "lognormal", "exponential", "uniform", NULL};
static const struct dt_key dist_keys[] = {
    {.name = "kind",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_samples_dist, kind),
     .words = kind_words,
     .needed = "lognormal",
     .help = "of distribution"},
    {.name = "value",
     .type = DT_KEY_OWN,
     .form = "number",
     .fallback = "none; constant needs it",
     .help = "of constant"},
    {.name = "mu",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_samples_dist, a),
     .min = -20,
     .max = 20,
     .fallback = "from mean and p99",
     .help = "of lognormal: mean of the logarithm"},
    {.name = "sigma",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_samples_dist, b),
     .min = 0,
     .max = 10,
     .fallback = "from mean and p99",
     .help = "of lognormal: standard deviation of the logarithm"},
    {.name = "mean",
     .type = DT_KEY_OWN,
     .form = "number",
     .fallback = "none; exponential needs it",
     .help = "of exponential, and with p99 of lognormal"},
    {.name = "p99",
     .type = DT_KEY_OWN,
     .form = "number",
     .fallback = "none",
     .help = "of lognormal: the 99th percentile"},
    {.name = "min",
     .type = DT_KEY_OWN,
     .form = "number",
     .fallback = "the least possible; uniform needs it",
     .help = "less becomes this"},
    {.name = "max",
     .type = DT_KEY_OWN,
     .form = "number",
     .fallback = "the largest possible; uniform needs it",
     .help = "more becomes this"},
    {.name = NULL},
};

/* {kind: lognormal, mu: 2.4, sigma: 0.7, min: 1, max: 256}, or instead of mu and sigma {mean: 15,
 * p99: 63}. */
static enum dt_status read_lognormal(struct dt_node n, struct dt_samples_dist *d,
                                     struct dt_error *err)
{
    double p99 = 0, mean = 0;
    if (!dt_node_present(dt_map_get(n, "p99"))) {
        DT_TRY(dt_map_require(n, "lognormal", "mu", err));
        DT_TRY(dt_map_require(n, "lognormal", "sigma", err));
        DT_TRY(dt_keys_get(n, dist_keys, "mu", d, err));
        return dt_keys_get(n, dist_keys, "sigma", d, err);
    }
    struct dt_error why;
    DT_TRY(dt_map_require(n, "lognormal", "mean", err));
    DT_TRY(dt_get_double(n, "mean", 1e-6, 1e9, &mean, err));
    DT_TRY(dt_get_double(n, "p99", 1e-6, 1e9, &p99, err));
    if (dt_samples_lognormal_from_mean(mean, p99, 0.99, &why, &d->a, &d->b) != DT_OK)
        return dt_node_error(dt_map_get(n, "p99"), err, "%s", why.message);
    return DT_OK;
}

/* What this kind does not look at would be a number without an effect. */
static enum dt_status refuse_others(struct dt_node n, const struct dt_samples_dist *d,
                                    struct dt_error *err)
{
    bool log = d->kind == DT_SAMPLES_LOGNORMAL, p99 = dt_node_present(dt_map_get(n, "p99"));
    const char *with = d->kind == DT_SAMPLES_CONSTANT      ? "value"
                       : d->kind == DT_SAMPLES_EXPONENTIAL ? "mean"
                       : d->kind == DT_SAMPLES_UNIFORM     ? "min and max"
                       : p99                               ? "mean and p99"
                                                           : "mu and sigma, or mean and p99";
    const struct {
        const char *key;
        bool counts;
    } keys[] = {{"value", d->kind == DT_SAMPLES_CONSTANT},
                {"mean", d->kind == DT_SAMPLES_EXPONENTIAL || (log && p99)},
                {"p99", log},
                {"mu", log && !p99},
                {"sigma", log && !p99}};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct dt_node x = dt_map_get(n, keys[i].key);

        if (!keys[i].counts && dt_node_present(x))
            return dt_node_error(x, err, "%s: this distribution is stated by %s", keys[i].key,
                                 with);
    }
    return DT_OK;
}

static enum dt_status read_dist(struct dt_node n, const char *key, double lo, double hi,
                                struct dt_samples_dist *d, struct dt_error *err)
{
    d->min = lo;
    d->max = hi;
    d->on = true;
    DT_TRY(dt_keys_check(n, key, dist_keys, err));
    DT_TRY(dt_keys_require(n, key, dist_keys, err));
    DT_TRY(dt_keys_get(n, dist_keys, "kind", d, err));
    DT_TRY(refuse_others(n, d, err));
    DT_TRY(dt_get_double(n, "min", lo, hi, &d->min, err));
    DT_TRY(dt_get_double(n, "max", d->min, hi, &d->max, err));
    switch (d->kind) {
    case DT_SAMPLES_CONSTANT:
        DT_TRY(dt_map_require(n, key, "value", err));
        return dt_get_double(n, "value", lo, hi, &d->a, err);
    case DT_SAMPLES_EXPONENTIAL:
        DT_TRY(dt_map_require(n, key, "mean", err));
        return dt_get_double(n, "mean", 1e-6, hi, &d->a, err);
    case DT_SAMPLES_UNIFORM:
        DT_TRY(dt_map_require(n, key, "min", err));
        return dt_map_require(n, key, "max", err);
    case DT_SAMPLES_LOGNORMAL:
        break;
    }
    return read_lognormal(n, d, err);
}

/* Texts are at most as long as a sequence. */
static enum dt_status read_text(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    struct dt_samples_pairs *p = into;

    return read_dist(dt_map_get(map, key->name), key->name, key->min, p->seq_len, &p->text, err);
}

static enum dt_status read_side(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    struct dt_samples_pairs *p = into;

    return read_dist(dt_map_get(map, key->name), key->name, key->min, key->max, &p->side, err);
}

static enum dt_status read_audio(struct dt_node map, const struct dt_key *key, void *into,
                                 struct dt_error *err)
{
    struct dt_samples_pairs *p = into;

    return read_dist(dt_map_get(map, key->name), key->name, key->min, key->max, &p->audio_s, err);
}

/* ---- sizes by their complementary distribution ---- */

struct ccdf_row {
    struct dt_samples_ccdf c;
    double total;
};
static const struct ccdf_row ccdf_row_defaults = {.total = 1};
static const struct dt_key ccdf_row_keys[] = {
    {.name = "px",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct ccdf_row, c.px),
     .min = 1,
     .max = DT_SAMPLES_SIDE_MAX,
     .needed = "256",
     .help = "pixels of a side"},
    {.name = "smaller",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct ccdf_row, c.smaller),
     .min = 0,
     .max = 1e15,
     .needed = "0.5",
     .help = "images whose smaller side is at least as long"},
    {.name = "larger",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct ccdf_row, c.larger),
     .min = 0,
     .max = 1e15,
     .needed = "0.6",
     .help = "images whose larger side is"},
    {.name = "total",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct ccdf_row, total),
     .min = 1e-9,
     .max = 1e15,
     .help = "images in all"},
    {.name = NULL},
};
static const struct dt_key ccdf_keys[] = {
    {.name = "ROW",
     .type = DT_KEY_OWN,
     .any = true,
     .keys = ccdf_row_keys,
     .base = &ccdf_row_defaults,
     .help = "an element of the list"},
    {.name = NULL},
};

/* image_side without mu and sigma: fitted from the size_ccdf rows that stand beside it. */
static enum dt_status read_ccdf(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    struct dt_node rows = dt_map_get(map, key->name);
    struct dt_samples_pairs *p = into;
    struct dt_samples_ccdf c[DT_SIZE_CCDF_MAX];
    struct dt_samples_size_fit fit;
    struct dt_error why;
    size_t n = dt_seq_size(rows);

    if (p->side.on && p->aspect_sigma >= 0)
        return DT_OK;
    if (!dt_node_is_seq(rows) || n > DT_SIZE_CCDF_MAX)
        return dt_node_error(rows, err, "size_ccdf must be a list of at most %d rows",
                             (int)DT_SIZE_CCDF_MAX);
    for (size_t i = 0; i < n; i++) {
        struct dt_node at = dt_seq_at(rows, i);
        struct ccdf_row row = ccdf_row_defaults;

        DT_TRY(dt_keys_check(at, "size_ccdf row", ccdf_row_keys, err));
        DT_TRY(dt_keys_require(at, "size_ccdf row", ccdf_row_keys, err));
        DT_TRY(dt_keys_read(at, "size_ccdf row", ccdf_row_keys, &row, err));
        c[i] = row.c;
        c[i].smaller /= row.total;
        c[i].larger /= row.total;
    }
    if (dt_samples_fit(c, (int)n, &why, &fit) != DT_OK)
        return dt_node_error(rows, err, "%s", why.message);
    if (!p->side.on)
        p->side = (struct dt_samples_dist){true, DT_SAMPLES_LOGNORMAL, fit.mu, fit.sigma,
                                           1,    DT_SAMPLES_SIDE_MAX};
    if (p->aspect_sigma < 0)
        p->aspect_sigma = fit.aspect_sigma;
    return DT_OK;
}

/* ---- the rows ---- */

/* In a distribution, and beside it or a preset, where each replaces what that states. */
#define MIN_SIDE_ROW(otherwise)                                                                    \
    {                                                                                              \
        .name = "min_side", .type = DT_KEY_INTEGER,                                                \
        DT_KEY_INTO(struct dt_samples_pairs, min_side), .min = 1, .max = DT_SAMPLES_SIDE_MAX,      \
        .fallback = otherwise, .help = "least pixels of an image's smaller side"                   \
    }
#define MAX_SIDE_ROW(otherwise)                                                                    \
    {                                                                                              \
        .name = "max_side", .type = DT_KEY_INTEGER,                                                \
        DT_KEY_INTO(struct dt_samples_pairs, max_side), .min = 1, .max = DT_SAMPLES_SIDE_MAX,      \
        .fallback = otherwise, .help = "most pixels of an image's larger side"                     \
    }
#define GENERATE_ROW(otherwise)                                                                    \
    {                                                                                              \
        .name = "generate", .type = DT_KEY_NUMBER, DT_KEY_INTO(struct dt_samples_pairs, generate), \
        .min = 0, .max = 1, .fallback = otherwise,                                                 \
        .help = "share of the images or clips that are also generated"                             \
    }
#define PATCH_ROW(otherwise)                                                                       \
    {                                                                                              \
        .name = "patch", .type = DT_KEY_INTEGER,                                                   \
        DT_KEY_INTO(struct dt_samples_pairs, image.patch), .min = 1, .max = 1024,                  \
        .fallback = otherwise, .help = "pixels a side of the patch that is one token of the LLM"   \
    }

static const char *const fill_words[] = {"padding", "text", NULL}; /* false, true of fill_text */
static const char *const pack_words[] = {"pairs", "none", NULL};   /* of apart */
static const struct dt_key distribution_keys[] = {
    {.name = "text_tokens",
     .type = DT_KEY_OWN,
     .min = 0,
     .keys = dist_keys,
     .read = read_text,
     .fallback = "none",
     .help = "tokens of a text"},
    {.name = "image_side",
     .type = DT_KEY_OWN,
     .min = 1,
     .max = DT_SAMPLES_SIDE_MAX,
     .keys = dist_keys,
     .read = read_side,
     .fallback = "from size_ccdf, else no images",
     .help = "pixels of an image's smaller side"},
    {.name = "aspect_sigma",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_samples_pairs, aspect_sigma),
     .min = 0,
     .max = 5,
     .fallback = "from size_ccdf, else 0",
     .help = "standard deviation of the logarithm of the aspect ratio"},
    {.name = "size_ccdf",
     .type = DT_KEY_OWN,
     .form = "list of maps",
     .keys = ccdf_keys,
     .read = read_ccdf,
     .fallback = "none",
     .help = "sizes to which image_side and aspect_sigma are fitted"},
    {.name = "audio_s",
     .type = DT_KEY_OWN,
     .min = 0.01,
     .max = DT_SAMPLES_AUDIO_CS_MAX / 100.0,
     .keys = dist_keys,
     .read = read_audio,
     .fallback = "no clips",
     .help = "seconds of a clip"},
    MIN_SIDE_ROW(NULL),
    MAX_SIDE_ROW(NULL),
    PATCH_ROW("the image encoder's, else 16"),
    {.name = "audio_tokens_per_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_samples_pairs, tokens_per_s),
     .min = 1e-3,
     .max = 1e6,
     .fallback = "49.6, or the patches of the model's encoder (mel_bins)",
     .help = "tokens of the LLM per second of a clip"},
    GENERATE_ROW(NULL),
    {.name = "fill",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_samples_pairs, fill_text),
     .words = fill_words,
     .help = "what follows the last pair of a sequence"},
    {.name = "pack",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_samples_pairs, apart),
     .words = pack_words,
     .help = "whether sequences are filled with pairs, or each pair is one of its own length"},
    {.name = NULL},
};
const struct dt_key dt_samples_keys[] = {
    {.name = "preset",
     .type = DT_KEY_OWN,
     .form = "preset or path",
     .file = DT_KEY_PRESET,
     .fallback = "none",
     .help = "shipped samples"},
    {.name = "csv",
     .type = DT_KEY_OWN,
     .form = "path of a CSV file",
     .file = DT_KEY_FILE,
     .fallback = "none",
     .help = "samples that are listed"},
    {.name = "distribution",
     .type = DT_KEY_OWN,
     .keys = distribution_keys,
     .base = &dt_samples_pairs_defaults,
     .fallback = "none",
     .help = "samples that are drawn"},
    {.name = "seed",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_samples_pairs, seed),
     .min = 0,
     .max = DT_KEY_NO_LIMIT,
     .fallback = "the preset's, else simulate.seed",
     .help = "of what is drawn"},
    {.name = "count",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_samples_pairs, count),
     .min = 1,
     .max = DT_SAMPLES_COUNT_MAX,
     .fallback = "as many as all iterations need",
     .help = "samples drawn"},
    MIN_SIDE_ROW("the distribution's"),
    MAX_SIDE_ROW("the distribution's"),
    GENERATE_ROW("the distribution's"),
    PATCH_ROW("the image encoder's, else 16"),
    {.name = NULL},
};

/* ---- a distribution map ---- */

enum dt_status dt_samples_patch(struct dt_node node, struct dt_samples_image *image,
                                struct dt_error *err)
{
    struct dt_samples_pairs stated = {.seq_len = 0};
    int patch, encoder = image->patch;

    DT_TRY(dt_keys_get(node, dt_samples_keys, "patch", &stated, err));
    patch = stated.image.patch;
    if (patch == 0)
        return DT_OK;
    if (encoder > 0 && patch != encoder)
        return dt_node_error(dt_map_get(node, "patch"), err,
                             "patch: the encoder makes one token of %d x %d pixels, not of %d x "
                             "%d; leave this key out, or change patch or merge of the encoder",
                             encoder, encoder, patch, patch);
    image->patch = patch;
    return DT_OK;
}

static enum dt_status read_overrides(struct dt_node n, struct dt_samples_pairs *p,
                                     struct dt_error *err)
{
    DT_TRY(dt_keys_get(n, dt_samples_keys, "min_side", p, err));
    DT_TRY(dt_keys_get(n, dt_samples_keys, "max_side", p, err));
    DT_TRY(dt_samples_patch(n, &p->image, err));
    p->generate_stated |= dt_node_present(dt_map_get(n, "generate"));
    return dt_keys_get(n, dt_samples_keys, "generate", p, err);
}

/* Every pair must fit an empty sequence, else packing could not go on. */
static enum dt_status check_fits(struct dt_node map, const struct dt_samples_pairs *p,
                                 struct dt_error *err)
{
    if (p->side.on && p->min_side > p->max_side)
        return dt_node_error(map, err, "min_side %d is above max_side %d", p->min_side,
                             p->max_side);
    int64_t side =
        dt_samples_ceil_div(p->image.resize ? p->image.resize : p->max_side, p->image.patch);
    int64_t image = p->side.on ? side * side : 0;
    int64_t audio =
        p->audio_s.on
            ? dt_samples_sound_tokens(&p->image, (int)ceil(p->audio_s.max * 100.0), p->tokens_per_s)
            : 0;
    int64_t text = p->text.on ? (int64_t)ceil(p->text.max) : 0;
    if (image + audio + text <= p->seq_len)
        return DT_OK;
    return dt_node_error(map, err,
                         "a pair may need %lld tokens (text %lld, image %lld at max_side %d, "
                         "audio %lld), more than train.seq_len %d; lower samples.max_side or the "
                         "'max' of text_tokens and audio_s",
                         (long long)(image + audio + text), (long long)text, (long long)image,
                         p->max_side, (long long)audio, p->seq_len);
}

/* The encoder's patch goes before a preset's; a stated one must go with the encoder's. */
static enum dt_status settle_patch(struct dt_node map, const struct dt_samples_image *image,
                                   bool preset, struct dt_samples_pairs *p, struct dt_error *err)
{
    if (!image || image->patch == 0)
        return DT_OK;
    p->image.patch = image->patch;
    return preset ? DT_OK : dt_samples_patch(map, &p->image, err);
}

enum dt_status dt_samples_pairs_read(struct dt_node map, struct dt_node over, int seq_len,
                                     const struct dt_samples_image *image, bool preset,
                                     struct dt_error *err, struct dt_samples_pairs *out)
{
    struct dt_samples_pairs p = dt_samples_pairs_defaults;

    p.seq_len = seq_len;
    if (image)
        p.image = (struct dt_samples_image){p.image.patch, image->resize, image->mel_bins,
                                            image->sound_patch};
    DT_TRY(dt_keys_read(map, "distribution", distribution_keys, &p, err));
    if (p.aspect_sigma < 0)
        p.aspect_sigma = 0;
    DT_TRY(settle_patch(map, image, preset, &p, err));
    if (p.image.mel_bins > 0 && !preset && dt_node_present(dt_map_get(map, "audio_tokens_per_s")))
        return dt_node_error(dt_map_get(map, "audio_tokens_per_s"), err,
                             "audio_tokens_per_s: the encoder's patches are counted (mel_bins); "
                             "leave this key out");
    p.generate_stated = !preset && dt_node_present(dt_map_get(map, "generate"));
    DT_TRY(read_overrides(over, &p, err));
    if (!p.text.on && !p.side.on && !p.audio_s.on && !p.fill_text)
        return dt_node_error(map, err,
                             "the distribution is empty: give text_tokens, image_side, audio_s or "
                             "'fill: text'");
    if (p.apart && p.fill_text)
        return dt_node_error(dt_map_get(map, "fill"), err,
                             "fill: text goes with pack: pairs; with pack: none a sequence ends "
                             "with its pair");
    DT_TRY(check_fits(map, &p, err));
    *out = p;
    return DT_OK;
}
