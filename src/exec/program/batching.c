/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/program/batching.h"

#include "base/mem.h"
#include "core/model/samples_sound.h"

#include <stdio.h>
#include <string.h>

/* ---- counts ---- */

int64_t dt_batching_in_rows(const struct dt_sequence *s)
{
    int64_t rows = 0;

    for (int i = 0; i < s->n_items; i++)
        if (s->items[i].flags & DT_ITEM_ENCODE)
            rows += s->items[i].n;
    return rows;
}

int64_t dt_batching_images(const struct dt_sequence *s, uint32_t flag)
{
    int64_t n = 0;

    for (int i = 0; i < s->n_items; i++)
        n += (s->items[i].flags & flag) != 0;
    return n;
}

int64_t dt_batching_targets(const struct dt_sequence *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->n_tokens; i++)
        n += s->labels[i] >= 0;
    return n;
}

static int generator_of(const struct dt_model *m)
{
    for (int i = 0; i < m->n_modules; i++)
        if (m->modules[i].role == DT_ROLE_GENERATOR)
            return i;
    return -1;
}

int dt_batching_context_len(const struct dt_model *m)
{
    int g = generator_of(m);

    for (int b = 0; g >= 0 && b < m->modules[g].n_blocks; b++)
        if (m->modules[g].blocks[b].context_len > 0)
            return m->modules[g].blocks[b].context_len;
    return 0;
}

int64_t dt_batching_cond_count(const struct dt_model *m, const struct dt_sequence *s)
{
    return dt_batching_images(s, DT_ITEM_GENERATE) * dt_batching_context_len(m);
}

/* ---- LLM ---- */

int64_t dt_batching_cond_row(const struct dt_sequence_doc *d, int context_len, int j)
{
    int64_t at = (int64_t)d->n - context_len + j;

    return (int64_t)d->first + (at > 0 ? at : 0);
}

/* What is drawn for a document: by its sequence and its number there. */
static void draw_by_document(const struct dt_sequence *const *seqs, struct dt_batch *b)
{
    int64_t begin = 0, end = seqs[0]->n_tokens, in = 0;
    int k = 0;

    for (int64_t i = 0; i < b->n_seq; i++) {
        while (b->host.cu[i] >= end) {
            begin = end;
            end += seqs[++k]->n_tokens;
        }
        in = b->host.cu[i] == begin ? 0 : in + 1;
        b->host.stream[i] = (uint64_t)seqs[k]->index << 16 | (uint64_t)in;
    }
}

/* Those samples that have rows. */
static void mark_samples(const struct dt_sequence *const *seqs, int n, struct dt_batch *b)
{
    int32_t row = 0;

    if (!b->host.cu_sample)
        return;
    b->n_sample = 0;
    for (int k = 0; k < n; k++) {
        if (seqs[k]->n_tokens == 0)
            continue;
        b->host.cu_sample[b->n_sample++] = row;
        row += seqs[k]->n_tokens;
    }
    b->host.cu_sample[b->n_sample] = row;
}

/* Rows of an item that cross the LLM's ends at row `row` of the batch; own ones are exchanged here. */
static void feed_item(const struct dt_sequence *s, const struct dt_sequence_item *it,
                      int context_len, int64_t row, const struct dt_batching_range *own,
                      struct dt_batch *b)
{
    for (int64_t r = 0; (it->flags & DT_ITEM_ENCODE) && r < (int64_t)it->n; r++) {
        b->host.ids[row + it->first + r] = -1;
        if (dt_batching_owns(own, row + it->first + r))
            b->host.in_row[b->n_in++] = (int32_t)(row + it->first + r);
    }
    for (int j = 0; (it->flags & DT_ITEM_GENERATE) && j < context_len; j++, b->n_cond_all++) {
        int64_t at = row + dt_batching_cond_row(&s->docs[it->doc], context_len, j);

        if (dt_batching_owns(own, at))
            b->host.cond_row[b->n_cond++] = (int32_t)at;
    }
}

static enum dt_status feed_llm(const struct dt_model *m, const struct dt_sequence *const *seqs,
                               int n, struct dt_batch *b, struct dt_error *err)
{
    int context_len = dt_batching_context_len(m);
    int32_t *doc_of = b->doc_of, docs = 0;
    struct dt_batching_range own;
    int64_t row = 0;

    for (int k = 0; k < n; k++)
        row += seqs[k]->n_tokens;
    dt_batch_own(&b->cut, row, &own.first, &own.end);
    row = b->n_in = b->n_cond = b->n_cond_all = 0;
    for (int k = 0; k < n; k++) {
        const struct dt_sequence *s = seqs[k];

        for (int i = 0; i < s->n_tokens; i++) {
            doc_of[row + i] = docs + s->doc_of[i];
            b->host.ids[row + i] = s->ids[i];
            b->host.target[row + i] = s->labels[i];
        }
        for (int i = 0; i < s->n_items; i++)
            feed_item(s, &s->items[i], context_len, row, &own, b);
        docs += s->n_docs;
        row += s->n_tokens;
    }
    DT_TRY(dt_batch_documents(b, doc_of, row, err));
    mark_samples(seqs, n, b);
    if (n > 0)
        draw_by_document(seqs, b);
    return DT_OK;
}

/* ---- generator ---- */

void dt_batching_latent_size(const struct dt_module *m, int w, int h, int *lw, int *lh)
{
    int f = m->latent_scale > 0 ? m->latent_scale : 1;

    *lw = (w + f - 1) / f;
    *lh = (h + f - 1) / f;
}

int dt_batching_channels(const struct dt_module *m)
{
    for (int b = 0; b < m->n_blocks; b++)
        if (m->blocks[b].kind == DT_BLOCK_CONV)
            return m->blocks[b].c_in;
    return 0;
}

/* Sums of a cell's colours.  They are whole numbers: exact, and quick. */
static void add_pixels(const uint8_t *px, size_t line, int w, int h, uint64_t sum[3])
{
    sum[0] = sum[1] = sum[2] = 0;
    for (int v = 0; v < h; v++) {
        const uint8_t *p = px + (size_t)v * line;
        uint32_t s[3] = {0};

        for (int u = 0; u < w; u++, p += 3) {
            s[0] += p[0];
            s[1] += p[1];
            s[2] += p[2];
        }
        for (int c = 0; c < 3; c++)
            sum[c] += s[c];
    }
}

void dt_batching_latents(const struct dt_module *m, const uint8_t *px, int w, int h, float *out)
{
    int f = m->latent_scale > 0 ? m->latent_scale : 1, lw, lh, channels = dt_batching_channels(m);
    size_t line = 3 * (size_t)w;

    dt_batching_latent_size(m, w, h, &lw, &lh);
    for (int y = 0; y < lh; y++)
        for (int x = 0; x < lw; x++) {
            int cw = w - x * f < f ? w - x * f : f, ch = h - y * f < f ? h - y * f : f;
            double n = (double)cw * ch, mean;
            uint64_t sum[3];

            add_pixels(px + (size_t)(y * f) * line + 3 * (size_t)(x * f), line, cw, ch, sum);
            mean = (double)(sum[0] + sum[1] + sum[2]) / 3;
            for (int c = 0; c < channels; c++) {
                double v = channels >= 3 && c < 3 ? (double)sum[c] : mean;

                *out++ = (float)(v / n / 127.5 - 1);
            }
        }
}

static uint8_t to_byte(double v)
{
    v = (v + 1) * 127.5 + 0.5;
    return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
}

void dt_batching_pixels(const struct dt_module *m, const float *latents, int lw, int lh,
                        uint8_t *px)
{
    int channels = dt_batching_channels(m);

    for (size_t i = 0; i < (size_t)lw * lh; i++)
        for (int c = 0; c < 3; c++)
            px[3 * i + c] = to_byte(latents[i * channels + (channels >= 3 ? c : 0)]);
}

uint64_t dt_batching_noise_stream(const struct dt_sequence *s, int item)
{
    return (uint64_t)s->index << 16 | (uint64_t)item;
}

static enum dt_status feed_generator(const struct dt_module *mod,
                                     const struct dt_sequence *const *seqs, int n,
                                     struct dt_batch *b, struct dt_error *err)
{
    int channels = dt_batching_channels(mod);

    b->rows = b->n_seq = 0;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < seqs[k]->n_items; i++) {
            const struct dt_sequence_item *it = &seqs[k]->items[i];
            float *x = b->host.pixels + b->rows * channels;
            int lw, lh;

            if (!(it->flags & DT_ITEM_GENERATE))
                continue;
            dt_batching_latent_size(mod, it->w, it->h, &lw, &lh);
            if (b->rows + (int64_t)lw * lh <= b->room.rows) /* else the next line says so */
                dt_batching_latents(mod, it->px, it->w, it->h, x);
            DT_TRY(dt_batch_latents(b, x, lw, lh, dt_batching_noise_stream(seqs[k], i), err));
        }
    return DT_OK;
}

/* ---- all ---- */

static enum dt_status feed_encoder(const struct dt_sequence *const *seqs, int n, struct dt_batch *b,
                                   struct dt_error *err)
{
    b->rows = b->n_seq = 0;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < seqs[k]->n_items; i++) {
            const struct dt_sequence_item *it = &seqs[k]->items[i];
            int64_t before = b->rows;

            if (!(it->flags & DT_ITEM_ENCODE))
                continue;
            DT_TRY(it->sound ? dt_batch_spectrogram(b, it->px, it->w, it->h, err)
                             : dt_batch_patches(b, it->px, it->w, it->h, err));
            b->host.stream[b->n_seq - 1] = dt_batching_noise_stream(seqs[k], i);
            if (dt_module_out_tokens(b->module, b->rows - before) != it->n)
                return dt_error_set(err, DT_ERR_INTERNAL,
                                    "%s of %d x %d %s makes %lld rows, the sequence has %u "
                                    "tokens for it",
                                    it->sound ? "a sound" : "an image", it->w, it->h,
                                    it->sound ? "values" : "pixels",
                                    (long long)dt_module_out_tokens(b->module, b->rows - before),
                                    it->n);
        }
    return DT_OK;
}

/* What was not fetched must not be taken for zeros. */
static enum dt_status all_there(enum dt_module_role role, const struct dt_sequence *const *seqs,
                                int n, struct dt_error *err)
{
    uint32_t flag = role == DT_ROLE_ENCODER ? DT_ITEM_ENCODE : DT_ITEM_GENERATE;

    for (int k = 0; k < n; k++) {
        bool missing = false;

        for (int i = 0; role == DT_ROLE_LLM && i < seqs[k]->n_docs; i++)
            missing |= seqs[k]->docs[i].no_text;
        for (int i = 0; role != DT_ROLE_LLM && i < seqs[k]->n_items; i++)
            missing |= seqs[k]->items[i].flags & flag && !seqs[k]->items[i].px;
        if (missing)
            return dt_error_set(
                err, DT_ERR_INTERNAL, "sequence %lld is to be computed without its %s",
                (long long)seqs[k]->index, role == DT_ROLE_LLM ? "text" : "images or sounds");
    }
    return DT_OK;
}

enum dt_status dt_batching_fill(const struct dt_model *m, int module,
                                const struct dt_sequence *const *seqs, int n, struct dt_batch *b,
                                struct dt_error *err)
{
    DT_TRY(all_there(m->modules[module].role, seqs, n, err));
    switch (m->modules[module].role) {
    case DT_ROLE_LLM:
        if (b->cut.n > 1)
            return dt_batching_fill_cut(m, seqs, n, b, err);
        return feed_llm(m, seqs, n, b, err);
    case DT_ROLE_ENCODER:
        return feed_encoder(seqs, n, b, err);
    case DT_ROLE_GENERATOR:
        return feed_generator(&m->modules[module], seqs, n, b, err);
    }
    return dt_error_set(err, DT_ERR_INTERNAL, "a module without a role");
}

static void image_limits(const struct dt_module *mod, const struct dt_sequence *s,
                         struct dt_batch_limits *out)
{
    for (int i = 0; i < s->n_items; i++) {
        const struct dt_sequence_item *it = &s->items[i];
        int64_t rows;

        if (mod->role == DT_ROLE_ENCODER && (it->flags & DT_ITEM_ENCODE)) {
            rows = (int64_t)it->n * dt_module_merged(mod);
        } else if (mod->role == DT_ROLE_GENERATOR && (it->flags & DT_ITEM_GENERATE)) {
            int lw, lh;

            dt_batching_latent_size(mod, it->w, it->h, &lw, &lh);
            rows = (int64_t)lw * lh;
        } else {
            continue;
        }
        out->rows += rows;
        out->seqs++;
        out->max_len = rows > out->max_len ? rows : out->max_len;
    }
}

void dt_batching_limits(const struct dt_model *m, int module, const struct dt_sequence *const *seqs,
                        int n, const struct dt_batch_cut *cut, struct dt_batch_limits *out)
{
    memset(out, 0, sizeof(*out));
    if (cut && cut->n > 1 && m->modules[module].role == DT_ROLE_LLM) {
        dt_batching_limits_cut(m, seqs, n, cut, out);
        return;
    }
    for (int k = 0; k < n; k++) {
        if (m->modules[module].role != DT_ROLE_LLM) {
            image_limits(&m->modules[module], seqs[k], out);
            continue;
        }
        out->rows += seqs[k]->n_tokens;
        out->seqs += seqs[k]->n_docs;
        out->in += dt_batching_in_rows(seqs[k]);
        out->cond += dt_batching_cond_count(m, seqs[k]);
        for (int d = 0; d < seqs[k]->n_docs; d++)
            if (seqs[k]->docs[d].n > out->max_len)
                out->max_len = seqs[k]->docs[d].n;
    }
}

/* ---- samples ---- */

/* As the planner has it. */
static struct dt_sample_item item_size(const struct dt_sequence_item *it)
{
    if (it->sound)
        return (struct dt_sample_item){(uint16_t)dt_sample_sound_cs(it->h), 0, DT_MODALITY_AUDIO,
                                       (uint16_t)it->flags};
    return (struct dt_sample_item){(uint16_t)it->w, (uint16_t)it->h, DT_MODALITY_IMAGE,
                                   (uint16_t)it->flags};
}

/* Documents do not see each other. */
static uint64_t tokens_sq(const struct dt_sequence *s)
{
    uint64_t sum = 0;

    for (int d = 0; d < s->n_docs; d++)
        sum += (uint64_t)s->docs[d].n * s->docs[d].n;
    return sum;
}

enum dt_status dt_batching_samples(const struct dt_sequence *const *seqs, int64_t n,
                                   struct dt_error *err, struct dt_samples **out)
{
    struct dt_samples *s = dt_calloc(1, sizeof(*s));
    uint64_t items = 0;

    for (int64_t i = 0; i < n; i++)
        items += (uint64_t)seqs[i]->n_items;
    if (!s)
        return dt_error_nomem(err, "samples");
    s->text_tokens = dt_malloc(((size_t)n + 1) * sizeof(*s->text_tokens));
    s->seq_tokens = dt_malloc(((size_t)n + 1) * sizeof(*s->seq_tokens));
    s->seq_tokens_sq = dt_malloc(((size_t)n + 1) * sizeof(*s->seq_tokens_sq));
    s->item_first = dt_malloc(((size_t)n + 1) * sizeof(*s->item_first));
    s->items = dt_malloc(((size_t)items + 1) * sizeof(*s->items));
    if (!s->text_tokens || !s->seq_tokens || !s->seq_tokens_sq || !s->item_first || !s->items) {
        dt_samples_free(s);
        return dt_error_nomem(err, "samples");
    }
    snprintf(s->name, sizeof(s->name), "data");
    snprintf(s->source, sizeof(s->source), "the sequences of the training data");
    s->n = n;
    items = 0;
    for (int64_t i = 0; i < n; i++) {
        s->text_tokens[i] = (uint32_t)seqs[i]->text_tokens;
        s->seq_tokens[i] = (uint32_t)seqs[i]->n_tokens;
        s->seq_tokens_sq[i] = tokens_sq(seqs[i]);
        s->item_first[i] = items;
        for (int k = 0; k < seqs[i]->n_items; k++)
            s->items[items++] = item_size(&seqs[i]->items[k]);
    }
    s->item_first[n] = items;
    *out = s;
    return DT_OK;
}
