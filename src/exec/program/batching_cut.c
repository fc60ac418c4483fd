/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A member's share of the LLM's rows under context parallelism (batching_chunks.c): which rows, and which keys they
 * see. */
#include "base/mem.h"
#include "exec/program/batching.h"

/* ---- counts ---- */

/* Rows of the member that has most of them. */
static int64_t most_rows(const struct dt_sequence *const *seqs, int n_seqs, int n)
{
    int64_t most = 0;

    for (int member = 0; member < n; member++) {
        int64_t rows = 0;

        for (int half = 0; half < 2; half++)
            for (int j = 0; j < n_seqs; j++)
                rows += dt_batching_cut_rows(seqs[j], n, member, half);
        most = rows > most ? rows : most;
    }
    return most;
}

/* Does the chunk of a document that `member` has in `half` come no later than that of `mine` in `mine_half`? */
static bool seen_by(int mine, int mine_half, int member, int half)
{
    if (half != mine_half)
        return half < mine_half;
    return half == 0 ? member <= mine : member >= mine;
}

/* Rows of `member` that this one's chunks of a document see. */
static int64_t keys_of(const struct dt_batching_deal *d, int mine, int member)
{
    int64_t keys = 0;

    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 2 && dt_batching_deal_rows(d, mine, half) > 0; k++)
            keys += seen_by(mine, half, member, k) ? dt_batching_deal_rows(d, member, k) : 0;
    return keys;
}

/* Keys of one member's rows, or of all members' (-1), that this one sees. */
static int64_t count_keys(const struct dt_sequence *const *seqs, int n,
                          const struct dt_batch_cut *cut, int of)
{
    int64_t keys = 0;

    for (int k = 0; k < n; k++) {
        struct dt_batching_deal d;

        dt_batching_deal_begin(&d, cut->n, seqs[k]);
        for (int i = 0; i < seqs[k]->n_docs; i++) {
            dt_batching_deal_next(&d, seqs[k]->docs[i].n);
            for (int member = 0; member < cut->n; member++)
                keys += of < 0 || member == of ? keys_of(&d, cut->mine, member) : 0;
        }
    }
    return keys;
}

void dt_batching_limits_cut(const struct dt_model *m, const struct dt_sequence *const *seqs, int n,
                            const struct dt_batch_cut *cut, struct dt_batch_limits *out)
{
    for (int k = 0; k < n; k++) {
        struct dt_batching_chunks c;

        out->samples += seqs[k]->n_tokens > 0;
        out->in += dt_batching_in_rows(seqs[k]);
        out->cond += dt_batching_cond_count(m, seqs[k]);
        for (int d = 0; d < seqs[k]->n_docs; d++)
            if (seqs[k]->docs[d].n > out->max_len)
                out->max_len = seqs[k]->docs[d].n;
        dt_batching_chunks_begin(&c, cut->n, seqs[k]);
        while (dt_batching_chunks_next(&c))
            if (c.member == cut->mine) {
                out->rows += c.end - c.first;
                out->seqs++;
            }
    }
    out->gathered = cut->n * most_rows(seqs, n, cut->n);
    out->steps = cut->ring ? cut->n : 1;
    out->keys = count_keys(seqs, n, cut, -1);
    out->keys_step = cut->ring ? 0 : out->keys;
    for (int member = 0; cut->ring && member < cut->n; member++) {
        int64_t keys = count_keys(seqs, n, cut, member);

        out->keys_step = keys > out->keys_step ? keys : out->keys_step;
    }
}

/* ---- filling: rows ---- */

struct feed {
    const struct dt_sequence *const *seqs;
    int n;
    struct dt_batch *b;
    int64_t most; /* rows of a member's place among all */
    int64_t *at;  /* [2n] rows of member m, half h before a document: 2m + h */
    int32_t *
        own; /* of every row of all sequences, one after another: this member's row; -1 = another's */
    struct dt_batching_range exchanged; /* of the member's rows */
};

static void add_stretch(const struct feed *f, const struct dt_batching_chunks *c, int number,
                        int32_t *own)
{
    struct dt_batch *b = f->b;
    const struct dt_sequence *q = c->q;
    int64_t at = b->n_seq++, document = q->docs[c->doc].first;

    b->host.cu[at] = (int32_t)b->rows;
    b->host.begin[at] = (int32_t)(c->first - document);
    b->host.stream[at] = (uint64_t)q->index << 16 | (uint64_t)number;
    for (int64_t i = c->first; i < c->end; i++, b->rows++) {
        b->host.ids[b->rows] = q->ids[i];
        b->host.target[b->rows] = q->labels[i];
        b->host.pos[b->rows] = (int32_t)(i - document);
        own[i] = (int32_t)b->rows;
    }
}

/* Own rows of a half. */
static void add_half(const struct feed *f, int half)
{
    int32_t *own = f->own;

    for (int k = 0; k < f->n; k++) {
        struct dt_batching_chunks c;

        dt_batching_chunks_begin(&c, f->b->cut.n, f->seqs[k]);
        while (dt_batching_chunks_next(&c))
            if (c.member == f->b->cut.mine && c.half == half)
                add_stretch(f, &c, c.doc, own);
        own += f->seqs[k]->n_tokens;
    }
}

/* Own rows of every sample's halves, those without rows here too: members ask together whether routing is even. */
static void add_samples(const struct feed *f)
{
    struct dt_batch *b = f->b;
    int64_t n = 0;
    int32_t row = 0;

    b->n_sample = 0;
    if (!b->host.cu_sample)
        return;
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < f->n; k++) {
            int64_t rows = dt_batching_cut_rows(f->seqs[k], b->cut.n, b->cut.mine, half);

            if (f->seqs[k]->n_tokens == 0)
                continue;
            b->host.sample_part[n] = (float)rows / (float)f->seqs[k]->n_tokens;
            b->host.cu_sample[n++] = row;
            row += (int32_t)rows;
        }
    b->host.cu_sample[n] = row;
    b->n_sample = n / 2;
}

/* ---- filling: keys ---- */

/* Rows of a chunk of the document as keys: where they lie in the place of their member, or among all places. */
static void add_chunk(const struct feed *f, const struct dt_batching_deal *d, int member, int half)
{
    struct dt_batch *b = f->b;
    int64_t at = f->at[2 * member + half] + (b->cut.ring ? 0 : member * f->most);

    for (int64_t i = 0; i < dt_batching_deal_rows(d, member, half); i++)
        b->host.key_at[b->keys++] = (int32_t)(at + i);
}

/* Keys of own rows of a document's chunk, in its order as far as own rows go, which are the last. */
static void add_keys(const struct feed *f, const struct dt_batching_deal *d, int half, int of)
{
    const struct dt_batch_cut *cut = &f->b->cut;

    for (int chunk = 0; chunk < 2 * cut->n; chunk++) {
        int theirs = chunk >= cut->n, member = theirs ? 2 * cut->n - 1 - chunk : chunk;

        if ((of < 0 || member == of) && seen_by(cut->mine, half, member, theirs))
            add_chunk(f, d, member, theirs);
    }
}

/* In front of the first document: early halves begin at 0, late ones behind them. */
static void rewind_rows(const struct feed *f)
{
    for (int member = 0; member < f->b->cut.n; member++) {
        f->at[2 * member] = f->at[2 * member + 1] = 0;
        for (int k = 0; k < f->n; k++)
            f->at[2 * member + 1] += dt_batching_cut_rows(f->seqs[k], f->b->cut.n, member, 0);
    }
}

/* Of a step: the keys of member `of`, or of all (-1). */
static void add_step(const struct feed *f, int64_t step, int of)
{
    struct dt_batch *b = f->b;
    int32_t *cu = b->host.cu_keys + step * (b->n_seq + 1);
    int64_t first = b->keys, n = 0;

    for (int half = 0; half < 2; half++) {
        rewind_rows(f);
        for (int k = 0; k < f->n; k++) {
            struct dt_batching_deal d;

            dt_batching_deal_begin(&d, b->cut.n, f->seqs[k]);
            for (int i = 0; i < f->seqs[k]->n_docs; i++) {
                dt_batching_deal_next(&d, f->seqs[k]->docs[i].n);
                if (dt_batching_deal_rows(&d, b->cut.mine, half) > 0) {
                    cu[n++] = (int32_t)(b->keys - first);
                    add_keys(f, &d, half, of);
                }
                for (int j = 0; j < 2 * b->cut.n; j++)
                    f->at[j] += dt_batching_deal_rows(&d, j / 2, j % 2);
            }
        }
        if (half == 0)
            b->n_early = n;
    }
    cu[n] = (int32_t)(b->keys - first);
}

static void add_steps(const struct feed *f)
{
    const struct dt_batch_cut *cut = &f->b->cut;

    for (int64_t t = 0; t < f->b->steps; t++) {
        int64_t first = f->b->keys;

        add_step(f, t, cut->ring ? (int)((cut->mine - t + cut->n) % cut->n) : -1);
        if (f->b->keys - first > f->b->keys_step)
            f->b->keys_step = f->b->keys - first;
    }
}

/* ---- filling: rows of other modules ---- */

static void add_image(const struct feed *f, const int32_t *own, const struct dt_sequence_item *it)
{
    struct dt_batch *b = f->b;

    for (uint32_t r = 0; r < it->n; r++) {
        int32_t row = own[it->first + r];

        if (row < 0)
            continue;
        b->host.ids[row] = -1;
        if (dt_batching_owns(&f->exchanged, row))
            b->host.in_row[b->n_in++] = row;
    }
}

static void add_states(const struct feed *f, const int32_t *own, const struct dt_sequence_doc *d,
                       int context_len)
{
    struct dt_batch *b = f->b;

    for (int j = 0; j < context_len; j++) {
        int32_t row = own[dt_batching_cond_row(d, context_len, j)];

        if (row < 0)
            continue;
        b->n_cond_all++;
        if (dt_batching_owns(&f->exchanged, row))
            b->host.cond_row[b->n_cond++] = row;
    }
}

static void add_items(const struct dt_model *m, const struct feed *f)
{
    int context_len = dt_batching_context_len(m);
    const int32_t *own = f->own;

    for (int k = 0; k < f->n; own += f->seqs[k++]->n_tokens)
        for (int i = 0; i < f->seqs[k]->n_items; i++) {
            const struct dt_sequence_item *it = &f->seqs[k]->items[i];

            if (it->flags & DT_ITEM_ENCODE)
                add_image(f, own, it);
            if ((it->flags & DT_ITEM_GENERATE) && context_len > 0)
                add_states(f, own, &f->seqs[k]->docs[it->doc], context_len);
        }
}

/* ---- all of it ---- */

/* The host's arrays have room for what is to come (dt_batch_fit). */
static enum dt_status check_room(const struct dt_model *m, const struct feed *f,
                                 struct dt_error *err)
{
    const struct dt_batch_limits *room = &f->b->room;
    struct dt_batch_limits need = {0};

    dt_batching_limits_cut(m, f->seqs, f->n, &f->b->cut, &need);
    if (need.rows > room->rows || need.seqs > room->seqs || need.in > room->in ||
        need.cond > room->cond || need.keys > room->keys || need.keys_step > room->keys_step ||
        need.steps > room->steps || need.gathered > room->gathered || need.samples > room->samples)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "module \"%s\": a microbatch is larger than the place made for it",
                            f->b->module->name);
    return DT_OK;
}

static enum dt_status feed_open(struct feed *f, struct dt_error *err)
{
    size_t rows = 0;

    for (int k = 0; k < f->n; k++)
        rows += (size_t)f->seqs[k]->n_tokens;
    f->at = dt_malloc(2 * (size_t)f->b->cut.n * sizeof(*f->at));
    f->own = dt_malloc((rows + 1) * sizeof(*f->own));
    for (size_t i = 0; f->own && i < rows; i++)
        f->own[i] = -1;
    return f->at && f->own ? DT_OK : dt_error_nomem(err, "the rows of a microbatch");
}

static void feed_close(struct feed *f)
{
    dt_free(f->at);
    dt_free(f->own);
}

enum dt_status dt_batching_fill_cut(const struct dt_model *m, const struct dt_sequence *const *seqs,
                                    int n, struct dt_batch *b, struct dt_error *err)
{
    struct feed f = {.seqs = seqs, .n = n, .b = b, .most = most_rows(seqs, n, b->cut.n)};
    enum dt_status st;

    DT_TRY(check_room(m, &f, err));
    b->rows = b->n_seq = b->n_early = b->n_in = b->n_cond = b->n_cond_all = 0;
    b->keys = b->keys_step = b->n_sample = 0;
    b->gathered = b->cut.n * f.most;
    if (b->gathered == 0)
        return DT_OK;
    b->steps = b->cut.ring ? b->cut.n : 1;
    st = feed_open(&f, err);
    if (st == DT_OK) {
        add_half(&f, 0);
        add_half(&f, 1);
        b->host.cu[b->n_seq] = (int32_t)b->rows;
        add_samples(&f);
        add_steps(&f);
        dt_batch_own(&b->cut, b->rows, &f.exchanged.first, &f.exchanged.end);
        add_items(m, &f);
    }
    feed_close(&f);
    return st;
}
