/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Samples: finding the set that a job names, and what each sample means for a module. */
#include "core/model/samples.h"

#include "base/file.h"
#include "base/mem.h"
#include "core/model/samples_build.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- building ---- */

enum dt_status dt_samples_builder_init(struct dt_samples_builder *b, int64_t n,
                                       struct dt_error *err)
{
    memset(b, 0, sizeof(*b));
    b->s = dt_calloc(1, sizeof(*b->s));
    if (!b->s)
        return dt_error_nomem(err, "samples");
    size_t need = n > 0 ? (size_t)n : 1;
    if (dt_grow((void **)&b->s->text_tokens, &b->cap_text, need, sizeof(uint32_t)) ||
        dt_grow((void **)&b->s->seq_tokens, &b->cap_seq, need, sizeof(uint32_t)) ||
        dt_grow((void **)&b->s->item_first, &b->cap_first, need + 1, sizeof(uint64_t)) ||
        dt_grow((void **)&b->s->items, &b->cap_items, need, sizeof(struct dt_sample_item))) {
        dt_samples_builder_drop(b);
        return dt_error_nomem(err, "samples");
    }
    b->s->item_first[0] = 0;
    return DT_OK;
}

enum dt_status dt_samples_builder_item(struct dt_samples_builder *b, struct dt_sample_item item,
                                       struct dt_error *err)
{
    if (b->n_items >= DT_SAMPLES_ITEMS_MAX)
        return dt_error_set(err, DT_ERR_INPUT,
                            "the samples hold more than %d images and clips; take fewer samples "
                            "(samples.count, train.global_batch) or shorter ones (train.seq_len)",
                            DT_SAMPLES_ITEMS_MAX);
    if (b->n_items >= b->cap_items && dt_grow((void **)&b->s->items, &b->cap_items, b->n_items + 1,
                                              sizeof(struct dt_sample_item)))
        return dt_error_nomem(err, "images of the samples");
    b->s->items[b->n_items++] = item;
    return DT_OK;
}

enum dt_status dt_samples_builder_end(struct dt_samples_builder *b, uint32_t text_tokens,
                                      uint32_t seq_tokens, struct dt_error *err)
{
    size_t n = (size_t)b->s->n;
    if (dt_grow((void **)&b->s->text_tokens, &b->cap_text, n + 1, sizeof(uint32_t)) ||
        dt_grow((void **)&b->s->seq_tokens, &b->cap_seq, n + 1, sizeof(uint32_t)) ||
        dt_grow((void **)&b->s->item_first, &b->cap_first, n + 2, sizeof(uint64_t)))
        return dt_error_nomem(err, "samples");
    b->s->text_tokens[n] = text_tokens;
    b->s->seq_tokens[n] = seq_tokens;
    b->s->item_first[n + 1] = b->n_items;
    b->s->n++;
    return DT_OK;
}

struct dt_samples *dt_samples_builder_take(struct dt_samples_builder *b)
{
    struct dt_samples *s = b->s;
    /* Geometric growth may have left half of the items unused; a failed shrink changes nothing. */
    if (b->n_items > 0 && b->n_items < b->cap_items) {
        void *p = dt_realloc(s->items, (size_t)b->n_items * sizeof(struct dt_sample_item));
        if (p)
            s->items = p;
    }
    memset(b, 0, sizeof(*b));
    return s;
}

void dt_samples_builder_drop(struct dt_samples_builder *b)
{
    dt_samples_free(b->s);
    memset(b, 0, sizeof(*b));
}

enum dt_status dt_samples_prefix(const struct dt_samples *s, int64_t n, struct dt_error *err,
                                 struct dt_samples **out)
{
    size_t count = (size_t)n, items = (size_t)s->item_first[n];
    struct dt_samples *p = dt_malloc(sizeof(*p));

    if (!p)
        return dt_error_nomem(err, "samples");
    *p = *s;
    p->n = n;
    p->text_tokens = dt_malloc(count * sizeof(*p->text_tokens));
    p->seq_tokens = dt_malloc(count * sizeof(*p->seq_tokens));
    p->seq_tokens_sq = s->seq_tokens_sq ? dt_malloc(count * sizeof(*p->seq_tokens_sq)) : NULL;
    p->item_first = dt_malloc((count + 1) * sizeof(*p->item_first));
    p->items = dt_malloc(items * sizeof(*p->items));
    if (!p->text_tokens || !p->seq_tokens || !p->item_first || !p->items ||
        (s->seq_tokens_sq && !p->seq_tokens_sq)) {
        dt_samples_free(p);
        return dt_error_nomem(err, "samples");
    }
    memcpy(p->text_tokens, s->text_tokens, count * sizeof(*p->text_tokens));
    memcpy(p->seq_tokens, s->seq_tokens, count * sizeof(*p->seq_tokens));
    if (s->seq_tokens_sq)
        memcpy(p->seq_tokens_sq, s->seq_tokens_sq, count * sizeof(*p->seq_tokens_sq));
    memcpy(p->item_first, s->item_first, (count + 1) * sizeof(*p->item_first));
    if (items > 0)
        memcpy(p->items, s->items, items * sizeof(*p->items));
    *out = p;
    return DT_OK;
}

void dt_samples_free(struct dt_samples *s)
{
    if (!s)
        return;
    dt_free(s->text_tokens);
    dt_free(s->seq_tokens);
    dt_free(s->seq_tokens_sq);
    dt_free(s->item_first);
    dt_free(s->items);
    dt_free(s);
}

/* ---- work ---- */

int64_t dt_sample_audio_frames(int cs, double frames_per_s)
{
    double f = rint((double)cs * frames_per_s / 100.0);
    return f < 1.0 ? 1 : (int64_t)f;
}

static inline void add_sequence(struct dt_work *w, int64_t tokens)
{
    int64_t square;

    w->n++;
    w->tokens += tokens;
    /* what is too much stays so, and dt_samples_check_work finds it */
    if (__builtin_mul_overflow(tokens, tokens, &square) ||
        __builtin_add_overflow(w->tokens_sq, square, &w->tokens_sq))
        w->tokens_sq = INT64_MAX;
    if (tokens > w->tokens_max)
        w->tokens_max = tokens;
}

/* Tokens of one item in a module: patches, latent pixels or frames.  Patches that are merged come in whole squares:
 * an image has as many as rows for the LLM, times those of a square. */
static inline int64_t item_tokens(const struct dt_sample_item *it, const struct dt_module *m,
                                  int pixels)
{
    if (it->kind == DT_MODALITY_AUDIO)
        return m->mel_bins > 0
                   ? dt_sample_sound_patches(dt_sample_sound_frames(it->w), m->mel_bins, m->patch)
                   : dt_sample_audio_frames(it->w, m->frames_per_s);
    int w = m->resize ? m->resize : it->w, h = m->resize ? m->resize : it->h;
    if (m->merge > 1)
        return dt_sample_image_tokens(w, h, pixels * m->merge) * dt_module_merged(m);
    return dt_sample_image_tokens(w, h, pixels);
}

void dt_sample_work(const struct dt_samples *s, int64_t i, const struct dt_module *m,
                    struct dt_work *out)
{
    memset(out, 0, sizeof(*out));
    if (i >= s->n)
        i %= s->n;
    if (m->role == DT_ROLE_LLM) {
        add_sequence(out, s->seq_tokens[i]);
        if (s->seq_tokens_sq)
            out->tokens_sq = (int64_t)s->seq_tokens_sq[i];
        return;
    }
    if (m->modality == DT_MODALITY_TEXT) {
        if (s->text_tokens[i])
            add_sequence(out, s->text_tokens[i]);
        return;
    }
    bool encoder = m->role == DT_ROLE_ENCODER;
    unsigned flag = encoder ? DT_ITEM_ENCODE : DT_ITEM_GENERATE;
    int pixels = encoder ? m->patch : m->latent_scale;
    if (pixels < 1)
        pixels = 1;
    const struct dt_sample_item *it = s->items + s->item_first[i],
                                *end = s->items + s->item_first[i + 1];
    for (; it < end; it++)
        if ((it->flags & flag) && it->kind == (unsigned)m->modality)
            add_sequence(out, item_tokens(it, m, pixels));
}

int64_t dt_sample_items(const struct dt_samples *s, int64_t i, const struct dt_module *m,
                        struct dt_work *out)
{
    bool encoder = m->role == DT_ROLE_ENCODER;
    unsigned flag = encoder ? DT_ITEM_ENCODE : DT_ITEM_GENERATE;
    int pixels = encoder ? m->patch : m->latent_scale;
    int64_t n = 0;

    if (m->role == DT_ROLE_LLM || m->modality == DT_MODALITY_TEXT) { /* one, of all there is */
        struct dt_work w;

        dt_sample_work(s, i, m, &w);
        if (w.n > 0 && out)
            *out = w;
        return w.n > 0;
    }
    i %= s->n;
    for (uint64_t k = s->item_first[i]; k < s->item_first[i + 1]; k++) {
        const struct dt_sample_item *it = &s->items[k];

        if (!(it->flags & flag) || it->kind != (unsigned)m->modality)
            continue;
        if (out) {
            memset(&out[n], 0, sizeof(*out));
            add_sequence(&out[n], item_tokens(it, m, pixels < 1 ? 1 : pixels));
        }
        n++;
    }
    return n;
}

enum dt_status dt_samples_check_work(const struct dt_samples *s, const struct dt_model *m,
                                     int64_t batch, struct dt_error *err)
{
    for (int k = 0; k < m->n_modules; k++)
        for (int64_t i = 0; i < s->n; i++) {
            struct dt_work w;

            dt_sample_work(s, i, &m->modules[k], &w);
            if (w.tokens_sq > (INT64_MAX >> 1) / batch)
                return dt_error_set(err, DT_ERR_INPUT,
                                    "%s: sample %lld has a sequence of %lld tokens, too long to "
                                    "count the work of %lld samples; see patch, resize, "
                                    "latent_scale or frames_per_s of the module, or train.seq_len",
                                    m->modules[k].name, (long long)i, (long long)w.tokens_max,
                                    (long long)batch);
        }
    return DT_OK;
}

/* ---- reading ---- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

struct dt_samples_image dt_samples_image_of(const struct dt_model *m)
{
    struct dt_samples_image image = {.patch = 0};

    for (int i = 0; i < m->n_modules; i++) {
        const struct dt_module *e = &m->modules[i];

        if (e->role != DT_ROLE_ENCODER)
            continue;
        if (e->modality == DT_MODALITY_IMAGE && image.patch == 0) {
            image.patch = dt_module_token_pixels(e);
            image.resize = e->resize;
        }
        if (e->modality == DT_MODALITY_AUDIO && image.mel_bins == 0) {
            image.mel_bins = e->mel_bins;
            image.sound_patch = e->patch;
        }
    }
    return image;
}

void dt_samples_describe(const struct dt_samples *s, const struct dt_model *m, char *buf,
                         size_t size)
{
    const struct dt_module *g = NULL;
    size_t n = (size_t)snprintf(buf, size, "%s", s->source);

    for (int i = 0; i < m->n_modules; i++)
        if (m->modules[i].role == DT_ROLE_GENERATOR)
            g = &m->modules[i];
    if (s->generate < 0 || n >= size)
        return;
    if (!g) {
        snprintf(buf + n, size - n, "; none is generated, for no module does");
        return;
    }
    if (s->generate == 0) {
        snprintf(buf + n, size - n, "; no image or clip is generated (%s)",
                 s->generate_stated ? "stated" : "assumed");
        return;
    }
    n += (size_t)snprintf(buf + n, size - n, "; %g %% of the images or clips generated (%s)",
                          100 * s->generate, s->generate_stated ? "stated" : "assumed");
    if (g->resize > 0 && g->modality == DT_MODALITY_IMAGE && n < size)
        snprintf(buf + n, size - n, ", each at %d x %d pixels (resize)", g->resize, g->resize);
}

enum dt_status dt_samples_read_csv(const char *path, int seq_len,
                                   const struct dt_samples_image *image, struct dt_error *err,
                                   struct dt_samples **out)
{
    char *text = NULL;
    size_t len = 0;
    DT_TRY(dt_file_read(path, (size_t)4 << 30, err, &text, &len));
    enum dt_status st = dt_samples_parse_csv(path, text, len, seq_len, image, err, out);
    dt_free(text);
    return st;
}

/* A preset file. */
struct preset {
    char name[DT_NAME_MAX], source[sizeof(((struct dt_samples *)0)->source)];
    int64_t seed;
};
static const struct dt_key preset_keys[] = {
    {.name = "name", .type = DT_KEY_STRING, DT_KEY_INTO(struct preset, name)},
    {.name = "source", .type = DT_KEY_STRING, DT_KEY_INTO(struct preset, source)},
    {.name = "licence", .type = DT_KEY_OWN},
    {.name = "seed",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct preset, seed),
     .max = DT_KEY_NO_LIMIT},
    {.name = "distribution", .type = DT_KEY_OWN, .needed = "{...}"},
    {.name = NULL},
};

static enum dt_status read_preset(struct dt_node at, const char *name, struct dt_node over,
                                  int seq_len, int64_t count, uint64_t seed, bool seed_given,
                                  const struct dt_samples_image *image, struct dt_error *err,
                                  struct dt_samples **out)
{
    char path[4096];
    struct dt_error why;
    if (dt_file_find("samples", name, ".yaml", &why, path, sizeof(path)) != DT_OK)
        return dt_node_error(at, err, "%s", why.message);
    struct dt_doc *doc = NULL;
    DT_TRY(dt_doc_read(path, err, &doc));
    struct dt_node root = dt_doc_root(doc);
    struct dt_samples *s = NULL;
    struct preset p = {.seed = (int64_t)(seed & INT64_MAX)};
    enum dt_status st = dt_keys_check(root, "samples", preset_keys, err);
    if (st == DT_OK)
        st = dt_keys_require(root, "samples", preset_keys, err);
    if (st == DT_OK)
        st = dt_keys_read(root, "samples", preset_keys, &p, err);
    if (st == DT_OK)
        st = dt_samples_generate(dt_map_get(root, "distribution"), over, seq_len, count,
                                 seed_given ? seed : (uint64_t)p.seed, image, true, err, &s);
    if (st == DT_OK) {
        memcpy(s->name, p.name, sizeof(p.name));
        memcpy(s->source, p.source, sizeof(p.source));
        *out = s;
    }
    dt_doc_free(doc);
    return st;
}

/* A CSV file that a job names: one that cannot be opened is the job's mistake. */
static enum dt_status read_named_csv(struct dt_node at, const char *path, int seq_len,
                                     const struct dt_samples_image *image, struct dt_error *err,
                                     struct dt_samples **out)
{
    struct dt_error why;
    memset(&why, 0, sizeof(why));
    enum dt_status st = dt_samples_read_csv(path, seq_len, image, &why, out);
    if (st == DT_ERR_INPUT && why.line == 0)
        return dt_node_error(at, err, "%s: %s", path, why.message);
    if (st != DT_OK && err)
        *err = why;
    return st;
}

/* Of the keys beside a CSV file only the patch means something. */
static enum dt_status refuse_drawn(struct dt_node node, struct dt_error *err)
{
    for (const struct dt_key *k = dt_samples_keys; k->name; k++)
        if (strcmp(k->name, "csv") != 0 && strcmp(k->name, "patch") != 0 &&
            dt_node_present(dt_map_get(node, k->name)))
            return dt_node_error(dt_map_get(node, k->name), err,
                                 "'%s' does not apply to samples read from a CSV file", k->name);
    return DT_OK;
}

static enum dt_status read_map(struct dt_node node, int seq_len, int64_t count, uint64_t seed,
                               const struct dt_samples_image *image, struct dt_error *err,
                               struct dt_samples **out)
{
    struct dt_samples_image stated = image ? *image : (struct dt_samples_image){.patch = 0};
    DT_TRY(dt_keys_check(node, "samples", dt_samples_keys, err));
    bool preset = dt_node_present(dt_map_get(node, "preset"));
    bool csv = dt_node_present(dt_map_get(node, "csv"));
    bool dist = dt_node_present(dt_map_get(node, "distribution"));
    if (preset + csv + dist != 1)
        return dt_node_error(node, err,
                             "samples needs exactly one of 'preset', 'csv' and 'distribution'");
    char name[4096] = "";
    struct dt_samples_pairs drawn = {.seed = (int64_t)(seed & INT64_MAX), .count = count};
    bool seed_given = dt_node_present(dt_map_get(node, "seed"));
    DT_TRY(dt_keys_get(node, dt_samples_keys, "seed", &drawn, err));
    DT_TRY(dt_keys_get(node, dt_samples_keys, "count", &drawn, err));
    if (seed_given)
        seed = (uint64_t)drawn.seed;
    if (csv) {
        DT_TRY(refuse_drawn(node, err));
        DT_TRY(dt_get_string(node, "csv", name, sizeof(name), err));
        DT_TRY(dt_samples_patch(node, &stated, err));
        return read_named_csv(dt_map_get(node, "csv"), name, seq_len, &stated, err, out);
    }
    if (preset) {
        DT_TRY(dt_get_string(node, "preset", name, sizeof(name), err));
        return read_preset(dt_map_get(node, "preset"), name, node, seq_len, drawn.count, seed,
                           seed_given, image, err, out);
    }
    struct dt_samples *s = NULL;
    DT_TRY(dt_samples_generate(dt_map_get(node, "distribution"), node, seq_len, drawn.count, seed,
                               image, false, err, &s));
    snprintf(s->name, sizeof(s->name), "distribution");
    snprintf(s->source, sizeof(s->source), "distribution stated in the job");
    *out = s;
    return DT_OK;
}

enum dt_status dt_samples_read(struct dt_node node, int seq_len, int64_t count, uint64_t seed,
                               const struct dt_samples_image *image, struct dt_error *err,
                               struct dt_samples **out)
{
    if (seq_len < 1 || seq_len > DT_SAMPLES_SEQ_MAX || count < 1)
        return dt_error_set(err, DT_ERR_INPUT,
                            "samples: seq_len must be 1 to %d and count positive",
                            (int)DT_SAMPLES_SEQ_MAX);
    if (dt_node_is_map(node))
        return read_map(node, seq_len, count, seed, image, err, out);
    const char *text = dt_node_is_scalar(node) ? dt_node_text(node) : NULL;
    if (!text || !*text || dt_node_is_null(node))
        return dt_node_error(node, err,
                             "samples must be a preset name, a .csv path or a map with 'preset', "
                             "'csv' or 'distribution'");
    if (ends_with(text, ".csv"))
        return read_named_csv(node, text, seq_len, image, err, out);
    struct dt_node none = {NULL, NULL};
    return read_preset(node, text, none, seq_len, count, seed, false, image, err, out);
}
