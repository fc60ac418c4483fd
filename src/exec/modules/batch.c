/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Batches: host arrays and their twins on the device, allocated once for the largest. */
#include "core/model/samples_sound.h"
#include "exec/modules/impl.h"

#include <math.h>
#include <string.h>

/* ---- memory: the same walk counts, then hands out.  The host's arrays are the device's first ones, in the same
 * places: an upload is one copy. ---- */

struct cut {
    char *base;
    size_t used;
};

static void *cut(struct cut *c, int64_t n, size_t size)
{
    char *p = c->base ? c->base + c->used : NULL;

    c->used += dt_nn_round64((size_t)(n > 0 ? n : 0) * size + 1);
    return p;
}

/* Stretches of rows in which routing is to be even: samples, or their halves. */
static int64_t max_items(const struct dt_batch_limits *max)
{
    return max->gathered > 0 && 2 * max->samples > max->seqs ? 2 * max->samples : max->seqs;
}

static void arrays(struct dt_batch_arrays *a, const struct dt_batch_limits *max,
                   const struct dt_nn_shape_facts *f, bool device, struct cut *c)
{
    int64_t width = f->conv_in >= 0 ? f->in_channels : f->patch_width;
    bool image = width > 0;

    a->stream = cut(c, max->seqs, 8);
    a->cu = cut(c, max->seqs + 1, 4);
    a->pos = cut(c, max->rows, 4);
    if (!image) {
        a->ids = cut(c, max->rows, 4);
        a->target = cut(c, max->rows, 4);
        a->in_row = cut(c, max->in, 4);
        a->cond_row = cut(c, max->cond, 4);
        a->begin = a->cu_keys = a->key_at = NULL;
        a->cu_sample = f->experts ? cut(c, max_items(max) + 1, 4) : NULL;
        a->sample_part = f->experts && max->gathered > 0 ? cut(c, 2 * max->samples, 4) : NULL;
        if (max->gathered > 0) {
            a->begin = cut(c, max->seqs, 4);
            a->cu_keys = cut(c, max->steps * (max->seqs + 1), 4);
            a->key_at = cut(c, max->keys, 4);
        }
    } else {
        a->hw = cut(c, max->seqs, sizeof(*a->hw));
        a->pixels = cut(c, max->rows * width, 4);
        a->turn = f->grid_dim > 0 ? cut(c, max->rows * f->grid_dim, 4) : NULL;
        a->cu_window = f->window > 0 ? cut(c, max->rows + 1, 4) : NULL;
        a->square = f->window > 0 ? cut(c, max->rows, 4) : NULL;
    }
    if (f->conv_in >= 0) {
        a->t = cut(c, max->seqs, 4);
        a->alpha = cut(c, max->seqs, 4);
        a->sigma = cut(c, max->seqs, 4);
        for (int l = 0; l < f->levels; l++)
            a->cu_level[l] = cut(c, max->seqs + 1, 4);
        a->cu_context = cut(c, max->seqs + 1, 4);
    }
    if (!device)
        return;
    if (f->conv_in >= 0) {
        a->noise = cut(c, max->rows * f->in_channels, 4);
        a->pred = cut(c, max->rows * f->out_channels, 4);
        a->sse = cut(c, max->seqs, 4);
    } else if (!image) {
        a->nll = cut(c, max->rows, 4);
        a->best = cut(c, max->rows, 4);
    }
}

/* Half of a head's elements turn by the row of a patch, half by its column, each as rotary positions of half a head. */
static enum dt_status make_angles(struct dt_batch *b, int dim, struct dt_error *err)
{
    int pairs = dim / 4;

    b->angles = dt_malloc(((size_t)b->max.max_len * 2 + 1) * (size_t)pairs * sizeof(*b->angles));
    if (!b->angles)
        return dt_error_nomem(err, "a batch");
    for (int64_t i = 0; i < b->max.max_len; i++)
        for (int k = 0; k < pairs; k++) {
            double angle = (double)i * dt_rope_frequency(&b->module->arith.rope, k, dim / 2);

            b->angles[i * 2 * pairs + k] = (float)cos(angle);
            b->angles[i * 2 * pairs + pairs + k] = (float)sin(angle);
        }
    return DT_OK;
}

static enum dt_status allocate(struct dt_batch *b, const struct dt_nn_shape_facts *f,
                               struct dt_error *err)
{
    struct cut c = {0};

    arrays(&b->host, &b->max, f, false, &c);
    DT_TRY(b->device->host_alloc(b->device, c.used + 64, err, &b->host_memory));
    memset(b->host_memory, 0, c.used + 64);
    c = (struct cut){0};
    arrays(&b->dev, &b->max, f, true, &c);
    DT_TRY(b->device->alloc(b->device, c.used + 64, err, &b->dev_memory));
    DT_TRY(dt_batch_fit(b, &b->max, err));
    b->doc_of = dt_calloc((size_t)b->max.rows + 1, sizeof(*b->doc_of));
    if (!b->doc_of)
        return dt_error_nomem(err, "a batch");
    return f->grid_dim > 0 ? make_angles(b, f->grid_dim, err) : DT_OK;
}

enum dt_status dt_batch_fit(struct dt_batch *b, const struct dt_batch_limits *need,
                            struct dt_error *err)
{
    struct dt_nn_shape_facts f;
    struct cut c = {b->host_memory, 0};

    DT_TRY(dt_nn_shape_facts(b->module, err, &f));
    if (need->rows > b->max.rows || need->seqs > b->max.seqs || need->in > b->max.in ||
        need->cond > b->max.cond || need->keys > b->max.keys || need->steps > b->max.steps ||
        need->keys_step > b->max.keys_step || need->gathered > b->max.gathered ||
        need->samples > b->max.samples)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "module \"%s\": a batch is larger than the place made for it",
                            b->module->name);
    b->room = *need;
    arrays(&b->host, need, &f, false, &c);
    b->upload_bytes = c.used;
    c = (struct cut){b->dev_memory, 0};
    arrays(&b->dev, need, &f, true, &c);
    return DT_OK;
}

enum dt_status dt_batch_new(const struct dt_device *dev, const struct dt_module *m,
                            const struct dt_batch_limits *max, struct dt_error *err,
                            struct dt_batch **out)
{
    struct dt_nn_shape_facts f;
    struct dt_batch *b;
    enum dt_status st;

    if (max->rows < 0 || max->seqs < 0 || max->in < 0 || max->cond < 0 || max->rows > INT32_MAX)
        return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": a microbatch of %lld rows", m->name,
                            (long long)max->rows);
    DT_TRY(dt_nn_shape_facts(m, err, &f));
    b = dt_calloc(1, sizeof(*b));
    if (!b)
        return dt_error_nomem(err, "a batch");
    b->device = dev;
    b->module = m;
    b->grid_dim = f.grid_dim;
    b->window = f.window;
    b->max = *max;
    if (b->max.max_len <= 0)
        b->max.max_len = b->max.rows;
    b->loss_scale = 1;
    st = allocate(b, &f, err);
    if (st != DT_OK) {
        dt_batch_free(b);
        return st;
    }
    *out = b;
    return DT_OK;
}

void dt_batch_free(struct dt_batch *b)
{
    if (!b)
        return;
    b->device->host_free(b->device, b->host_memory);
    b->device->free(b->device, b->dev_memory);
    dt_free(b->doc_of);
    dt_free(b->angles);
    dt_free(b);
}

/* ---- filling ---- */

static enum dt_status too_many(struct dt_error *err, const struct dt_batch *b, const char *what,
                               int64_t n, int64_t max)
{
    return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": %lld %s in a microbatch made for %lld",
                        b->module->name, (long long)n, what, (long long)max);
}

enum dt_status dt_batch_documents(struct dt_batch *b, const int32_t *doc_of, int64_t rows,
                                  struct dt_error *err)
{
    int64_t n = 0, begin = 0;

    if (rows > b->room.rows)
        return too_many(err, b, "rows", rows, b->room.rows);
    for (int64_t i = 0; i < rows; i++) {
        if (i == 0 || doc_of[i] != doc_of[i - 1]) {
            if (n == b->room.seqs)
                return too_many(err, b, "documents", n + 1, b->room.seqs);
            b->host.cu[n++] = (int32_t)i;
            begin = i;
        }
        b->host.pos[i] = (int32_t)(i - begin);
    }
    b->host.cu[n] = (int32_t)rows;
    b->n_seq = n;
    b->rows = rows;
    b->n_sample = rows > 0;
    if (b->host.cu_sample) {
        b->host.cu_sample[0] = 0;
        b->host.cu_sample[b->n_sample] = (int32_t)rows;
    }
    return DT_OK;
}

int dt_nn_grid_side(const struct dt_block *p)
{
    int side = (int)sqrt((double)(p->max_pos - p->class_tokens));

    while ((side + 1) * (side + 1) <= p->max_pos - p->class_tokens)
        side++;
    while (side > 0 && side * side > p->max_pos - p->class_tokens)
        side--;
    return side;
}

/* The grid is stretched over the image: cell under the middle of the patch. */
static int32_t grid_position(const struct dt_block *p, int side, int row, int rows, int col,
                             int cols)
{
    int64_t r = (int64_t)(2 * row + 1) * side / (2 * rows);
    int64_t c = (int64_t)(2 * col + 1) * side / (2 * cols);

    return (int32_t)(p->class_tokens + r * side + c);
}

/* What a byte of a colour is to an encoder. */
static void shades(float out[256])
{
    for (int v = 0; v < 256; v++)
        out[v] = (float)v / 127.5f - 1.0f;
}

/* Channels: moments of each colour side by side, or else colours again and again.  What lies behind an edge is what lies on
 * it; edges are found once for a line, since a card waits for all the patches of a microbatch. */
static void one_patch(const struct dt_module *m, const float shade[256], const uint8_t *px, int w,
                      int h, int row, int col, float *out)
{
    const struct dt_block *p = &m->blocks[0];
    int moments = m->tower_names == DT_TOWER_QWEN && p->channels > 3 ? p->channels / 3 : 1;
    int first = col * p->patch, there = w - first < p->patch ? w - first : p->patch;

    for (int ch = 0; ch < p->channels; ch++)
        for (int y = 0; y < p->patch; y++, out += p->patch) {
            int sy = row * p->patch + y < h ? row * p->patch + y : h - 1, x = 0;
            const uint8_t *line = px + 3 * (int64_t)sy * w + ch / moments % 3;
            const uint8_t *at = line + 3 * (int64_t)first;

            for (; x < there; x++)
                out[x] = shade[at[3 * x]];
            for (; x < p->patch; x++)
                out[x] = shade[line[3 * (int64_t)(w - 1)]];
        }
}

/* Whether there is room for so many patches of one image or sound. */
static enum dt_status room_for(const struct dt_batch *b, int64_t patches, struct dt_error *err)
{
    if (b->rows + patches > b->room.rows)
        return too_many(err, b, "patches", b->rows + patches, b->room.rows);
    if (b->n_seq == b->room.seqs)
        return too_many(err, b, "images or sounds", b->n_seq + 1, b->room.seqs);
    return DT_OK;
}

/* Patch `at` is that at (row, col) of its image. */
static void turn_patch(struct dt_batch *b, int64_t at, int row, int col)
{
    int pairs = b->grid_dim / 4;
    float *out = b->host.turn + at * b->grid_dim;

    b->host.pos[at] = (int32_t)at;
    for (int part = 0; part < 2; part++) { /* cosines, sines */
        memcpy(out + 2 * part * pairs, b->angles + (2 * row + part) * (int64_t)pairs,
               (size_t)pairs * sizeof(*out));
        memcpy(out + (2 * part + 1) * pairs, b->angles + (2 * col + part) * (int64_t)pairs,
               (size_t)pairs * sizeof(*out));
    }
}

/* Patches of an image: window by window, or of all; in it square by square of those that are merged, and patch by patch;
 * all of these row by row. */
struct walk {
    int rows, cols, merge; /* of the image */
    int side;              /* of windows */
    int top, left;         /* the window */
    int row, col;          /* the square */
};

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* The next square; true: of another window. */
static bool next_square(struct walk *w)
{
    w->col += w->merge;
    if (w->col < least(w->left + w->side, w->cols))
        return false;
    w->col = w->left;
    w->row += w->merge;
    if (w->row < least(w->top + w->side, w->rows))
        return false;
    w->left += w->side;
    if (w->left >= w->cols) {
        w->left = 0;
        w->top += w->side;
    }
    w->row = w->top;
    w->col = w->left;
    return true;
}

/* Of the walk's square, whose rows begin at `at`, as those of its image do at `image`: where it lies, and in which window. */
static void note_square(struct dt_batch *b, const struct walk *w, bool new_window, int64_t image,
                        int64_t at)
{
    int each = w->merge * w->merge;
    int64_t number = w->row / w->merge * (w->cols / w->merge) + w->col / w->merge, rows;

    if (!b->host.square)
        return;
    b->host.square[image / each + number] = (int32_t)(at / each);
    if (new_window)
        b->host.cu_window[b->n_window++] = (int32_t)at;
    b->host.cu_window[b->n_window] = (int32_t)(at + each);
    rows = at + each - b->host.cu_window[b->n_window - 1];
    b->max_window = rows > b->max_window ? rows : b->max_window;
}

enum dt_status dt_batch_patches(struct dt_batch *b, const uint8_t *px, int w, int h,
                                struct dt_error *err)
{
    const struct dt_block *p = &b->module->blocks[0];
    int rows, cols, side, merge = b->module->merge > 1 ? b->module->merge : 1;
    int64_t width, at = b->rows, image = at;
    struct walk walk = {.merge = merge};
    bool new_window = true;
    float shade[256];

    if (p->kind != DT_BLOCK_PATCH_EMBED || w < 1 || h < 1)
        return dt_error_set(err, DT_ERR_INPUT, "module \"%s\" takes no image of %d x %d pixels",
                            b->module->name, w, h);
    rows = (h + p->patch * merge - 1) / (p->patch * merge) * merge;
    cols = (w + p->patch * merge - 1) / (p->patch * merge) * merge;
    DT_TRY(room_for(b, (int64_t)rows * cols, err));
    if (b->host.turn && (rows > b->max.max_len || cols > b->max.max_len))
        return too_many(err, b, "patches of a side", rows > cols ? rows : cols, b->max.max_len);
    width = (int64_t)p->channels * p->patch * p->patch;
    side = dt_nn_grid_side(p);
    shades(shade);
    b->host.cu[b->n_seq] = (int32_t)at;
    if (b->n_seq == 0)
        b->n_window = b->max_window = 0;
    walk.rows = rows;
    walk.cols = cols;
    walk.side = b->window > 0 ? b->window : rows + cols;
    while (at < image + (int64_t)rows * cols) {
        note_square(b, &walk, new_window, image, at);
        for (int i = 0; i < merge * merge; i++, at++) {
            int r = walk.row + i / merge, c = walk.col + i % merge;

            b->host.pos[at] = side > 0 ? grid_position(p, side, r, rows, c, cols) : -1;
            one_patch(b->module, shade, px, w, h, r, c, b->host.pixels + at * width);
            if (b->host.turn)
                turn_patch(b, at, r, c);
        }
        new_window = next_square(&walk);
    }
    b->host.hw[b->n_seq][0] = rows;
    b->host.hw[b->n_seq++][1] = cols;
    b->host.cu[b->n_seq] = (int32_t)at;
    b->rows = at;
    return DT_OK;
}

/* Patch (row, col) of a spectrogram. */
static void sound_patch(int p, const float *x, int bins, int64_t frames, int64_t row, int col,
                        float *out)
{
    for (int y = 0; y < p; y++) {
        int64_t frame = row * p + y < frames ? row * p + y : frames - 1;

        memcpy(out + (size_t)y * (size_t)p, x + frame * bins + (size_t)col * (size_t)p,
               (size_t)p * sizeof *out);
    }
}

enum dt_status dt_batch_spectrogram(struct dt_batch *b, const float *x, int bins, int64_t frames,
                                    struct dt_error *err)
{
    const struct dt_block *p = &b->module->blocks[0];
    int64_t rows, at = b->rows;
    int cols;

    if (p->kind != DT_BLOCK_PATCH_EMBED || bins != b->module->mel_bins || frames < 1)
        return dt_error_set(err, DT_ERR_INPUT,
                            "module \"%s\" takes no spectrogram of %lld frames of %d filters",
                            b->module->name, (long long)frames, bins);
    rows = dt_sample_sound_rows(frames, p->patch);
    cols = bins / p->patch;
    DT_TRY(room_for(b, rows * cols, err));
    if (p->max_pos > 0 && rows * cols > p->max_pos - p->class_tokens)
        return too_many(err, b, "patches of a sound", rows * cols, p->max_pos - p->class_tokens);
    b->host.cu[b->n_seq] = (int32_t)at;
    for (int64_t r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++, at++) {
            b->host.pos[at] = p->max_pos > 0 ? (int32_t)(p->class_tokens + r * cols + c) : -1;
            sound_patch(p->patch, x, bins, frames, r, c, b->host.pixels + at * p->patch * p->patch);
        }
    b->host.hw[b->n_seq][0] = (int32_t)rows;
    b->host.hw[b->n_seq++][1] = cols;
    b->host.cu[b->n_seq] = (int32_t)at;
    b->rows = at;
    return DT_OK;
}

enum dt_status dt_batch_latents(struct dt_batch *b, const float *x0, int w, int h, uint64_t stream,
                                struct dt_error *err)
{
    struct dt_nn_shape_facts f;
    int64_t n = (int64_t)w * h;

    DT_TRY(dt_nn_shape_facts(b->module, err, &f));
    if (f.conv_in < 0 || w < 1 || h < 1 || (w | h) & ((1 << (f.levels - 1)) - 1))
        return dt_error_set(err, DT_ERR_INPUT,
                            "module \"%s\": latents of %d x %d cannot be halved %d times",
                            b->module->name, w, h, f.levels - 1);
    if (b->rows + n > b->room.rows)
        return too_many(err, b, "latent pixels", b->rows + n, b->room.rows);
    if (b->n_seq == b->room.seqs)
        return too_many(err, b, "images", b->n_seq + 1, b->room.seqs);
    if (x0 != b->host.pixels + b->rows * f.in_channels)
        memcpy(b->host.pixels + b->rows * f.in_channels, x0,
               (size_t)(n * f.in_channels) * sizeof(float));
    b->host.hw[b->n_seq][0] = h;
    b->host.hw[b->n_seq][1] = w;
    b->host.stream[b->n_seq++] = stream;
    b->rows += n;
    return DT_OK;
}

/* ---- upload ---- */

static enum dt_status check_rows(const struct dt_batch *b, const char *what, const int32_t *row,
                                 int64_t n, int64_t of, int64_t max, struct dt_error *err)
{
    if (n < 0 || n > max)
        return too_many(err, b, what, n, max);
    for (int64_t i = 0; i < n; i++)
        if (row[i] < 0 || row[i] >= of)
            return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": %s: row %d of %lld",
                                b->module->name, what, row[i], (long long)of);
    return DT_OK;
}

/* Keys of every step, which add up to all. */
static enum dt_status check_steps(struct dt_batch *b, struct dt_error *err)
{
    int64_t sum = 0;

    if (b->steps < 1 || b->steps > b->room.steps)
        return too_many(err, b, "steps of attention", b->steps, b->room.steps);
    b->max_keys = 0;
    for (int64_t t = 0; t < b->steps; t++) {
        const int32_t *cu = b->host.cu_keys + t * (b->n_seq + 1);

        for (int64_t i = 0; i < b->n_seq; i++)
            b->max_keys = cu[i + 1] - cu[i] > b->max_keys ? cu[i + 1] - cu[i] : b->max_keys;
        if (cu[b->n_seq] > b->room.keys_step)
            return too_many(err, b, "keys of a step", cu[b->n_seq], b->room.keys_step);
        sum += cu[b->n_seq];
    }
    return sum == b->keys ? DT_OK : too_many(err, b, "keys of all steps", sum, b->keys);
}

static enum dt_status check_cut(struct dt_batch *b, struct dt_error *err)
{
    DT_TRY(check_rows(b, "keys", b->host.key_at, b->keys,
                      b->cut.ring ? b->gathered / b->cut.n : b->gathered, b->room.keys, err));
    if (b->gathered > b->room.gathered || b->gathered % b->cut.n != 0 ||
        b->gathered / b->cut.n < b->rows)
        return too_many(err, b, "rows of all members", b->gathered, b->room.gathered);
    return b->gathered > 0 ? check_steps(b, err) : DT_OK;
}

static enum dt_status check(struct dt_batch *b, struct dt_error *err)
{
    int64_t positions = b->max.max_len, table = b->module->blocks[0].max_pos;

    if (b->rows < 0 || b->rows > b->room.rows)
        return too_many(err, b, "rows", b->rows, b->room.rows);
    if (b->n_seq < 0 || b->n_seq > b->room.seqs)
        return too_many(err, b, "sequences", b->n_seq, b->room.seqs);
    b->max_len = 0;
    for (int64_t i = 0; i < b->n_seq; i++) {
        int64_t len = b->host.cu[i + 1] - b->host.cu[i];

        if (len < 0 || b->host.cu[i] < 0 || b->host.cu[i + 1] > b->rows)
            return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": sequence %lld has %lld rows",
                                b->module->name, (long long)i, (long long)len);
        b->max_len = len > b->max_len ? len : b->max_len;
    }
    if (b->max_len > b->max.max_len)
        return too_many(err, b, "rows of a sequence", b->max_len, b->max.max_len);
    if (!b->host.ids)
        return DT_OK;
    if (table > 0 && table < positions) /* learned ones; beyond them there is nothing to add */
        positions = table;
    for (int64_t i = 0; i < b->rows; i++)
        if (b->host.pos[i] < 0 || b->host.pos[i] >= positions)
            return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": position %d of at most %lld",
                                b->module->name, b->host.pos[i], (long long)positions);
    DT_TRY(check_rows(b, "image rows", b->host.in_row, b->n_in, b->rows, b->room.in, err));
    DT_TRY(check_rows(b, "conditioning rows", b->host.cond_row, b->n_cond, b->rows, b->room.cond,
                      err));
    if (b->n_cond_all < b->n_cond) /* of one member */
        b->n_cond_all = b->n_cond;
    return b->cut.n > 1 ? check_cut(b, err) : DT_OK;
}

static void levels(struct dt_batch *b, const struct dt_nn_shape_facts *f)
{
    for (int l = 0; l < f->levels; l++)
        b->host.cu_level[l][0] = 0;
    b->host.cu_context[0] = b->host.cu[0] = 0;
    for (int64_t i = 0; i < b->n_seq; i++) {
        for (int l = 0; l < f->levels; l++)
            b->host.cu_level[l][i + 1] =
                b->host.cu_level[l][i] + (b->host.hw[i][0] >> l) * (b->host.hw[i][1] >> l);
        b->host.cu[i + 1] = b->host.cu_level[0][i + 1];
        b->host.cu_context[i + 1] = (int32_t)((i + 1) * f->context_len);
    }
}

enum dt_status dt_batch_upload(struct dt_device_queue *q, struct dt_batch *b, struct dt_error *err)
{
    struct dt_nn_shape_facts f;
    struct dt_kernel_items images;

    DT_TRY(dt_nn_shape_facts(b->module, err, &f));
    if (f.conv_in >= 0)
        levels(b, &f);
    DT_TRY(check(b, err));
    b->device->copy(q, b->dev_memory, b->host_memory, b->upload_bytes, DT_COPY_TO_DEVICE);
    images = dt_nn_items(b, 0);
    if (f.conv_in >= 0 && !b->given_noise)
        b->device->k->item_normal(q, DT_F32, &images, f.in_channels, b->noise_seed, b->dev.stream,
                                  1.0f, b->dev.noise);
    return DT_OK;
}

void dt_batch_work(const struct dt_batch *b, struct dt_work *out)
{
    *out = (struct dt_work){.n = b->n_seq, .tokens = b->rows};
    for (int64_t i = 0; i < b->n_seq; i++) {
        int64_t len = b->host.cu[i + 1] - b->host.cu[i];

        out->tokens_sq += len * len;
        out->tokens_max = len > out->tokens_max ? len : out->tokens_max;
    }
}
