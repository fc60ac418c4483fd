/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A member's share of the LLM's rows under context parallelism (struct dt_batch_cut): which rows, and which keys they
 * see. */
#include "exec/program/batching.h"

/* ---- where rows are ---- */

static int64_t half_rows(int n, int member, int half, int64_t len)
{
    int64_t lo, hi;

    dt_batch_cut_half(n, member, half, len, &lo, &hi);
    return hi - lo;
}

/* Rows of a member before half `half` of sequence k. */
static int64_t rows_before(const struct dt_sequence *const *seqs, int n_seqs, int n, int member,
                           int half, int k)
{
    int64_t rows = 0;

    for (int j = 0; half == 1 && j < n_seqs; j++)
        rows += half_rows(n, member, 0, seqs[j]->n_tokens);
    for (int j = 0; j < k; j++)
        rows += half_rows(n, member, half, seqs[j]->n_tokens);
    return rows;
}

/* Rows of the member that has most of them. */
static int64_t most_rows(const struct dt_sequence *const *seqs, int n_seqs, int n)
{
    int64_t most = 0;

    for (int member = 0; member < n; member++) {
        int64_t rows = 0;

        for (int half = 0; half < 2; half++)
            for (int j = 0; j < n_seqs; j++)
                rows += half_rows(n, member, half, seqs[j]->n_tokens);
        most = rows > most ? rows : most;
    }
    return most;
}

/* ---- stretches of documents ---- */

struct stretch {
    int64_t document, number; /* its first row, and which one of the sequence it is */
    int64_t first, end;       /* rows of the sequence */
};

/* The next one of rows [.., hi); begins with s->end = lo and s->document < 0. */
static bool next_stretch(const struct dt_sequence *q, int64_t hi, struct stretch *s)
{
    if (s->end >= hi)
        return false;
    if (s->document < 0) { /* whose rows the first ones are */
        s->document = s->number = 0;
        for (int64_t i = 1; i <= s->end; i++)
            if (q->doc_of[i] != q->doc_of[i - 1]) {
                s->document = i;
                s->number++;
            }
    } else {
        s->document = s->end;
        s->number++;
    }
    s->first = s->end++;
    while (s->end < hi && q->doc_of[s->end] == q->doc_of[s->first])
        s->end++;
    return true;
}

void dt_batching_limits_cut(const struct dt_model *m, const struct dt_sequence *const *seqs, int n,
                            const struct dt_batch_cut *cut, struct dt_batch_limits *out)
{
    for (int k = 0; k < n; k++) {
        out->in += dt_batching_in_rows(seqs[k]);
        out->cond += dt_batching_cond_count(m, seqs[k]);
        for (int d = 0; d < seqs[k]->n_docs; d++)
            if (seqs[k]->docs[d].n > out->max_len)
                out->max_len = seqs[k]->docs[d].n;
        for (int half = 0; half < 2; half++) {
            struct stretch s = {.document = -1};
            int64_t hi;

            dt_batch_cut_half(cut->n, cut->mine, half, seqs[k]->n_tokens, &s.end, &hi);
            out->rows += hi - s.end;
            while (next_stretch(seqs[k], hi, &s)) {
                out->seqs++;
                out->keys += s.end - s.document;
            }
        }
    }
    out->gathered = cut->n * most_rows(seqs, n, cut->n);
}

/* ---- filling ---- */

struct feed {
    const struct dt_sequence *const *seqs;
    int n;
    struct dt_batch *b;
    int64_t most; /* rows of a member's place among all */
};

/* Rows [first, end) of sequence k as keys: where they lie among all members' rows. */
static void add_keys(const struct feed *f, int k, int64_t first, int64_t end)
{
    struct dt_batch *b = f->b;
    int n = b->cut.n;

    for (int chunk = 0; chunk < 2 * n; chunk++) {
        int half = chunk >= n, member = half ? 2 * n - 1 - chunk : chunk;
        int64_t lo, hi, at;

        dt_batch_cut_half(n, member, half, f->seqs[k]->n_tokens, &lo, &hi);
        at = member * f->most + rows_before(f->seqs, f->n, n, member, half, k);
        for (int64_t i = lo > first ? lo : first; i < hi && i < end; i++)
            b->host.key_at[b->keys++] = (int32_t)(at + i - lo);
    }
}

static void add_stretch(const struct feed *f, int k, const struct stretch *s)
{
    struct dt_batch *b = f->b;
    const struct dt_sequence *q = f->seqs[k];
    int64_t at = b->n_seq++;

    b->host.cu[at] = (int32_t)b->rows;
    b->host.cu_keys[at] = (int32_t)b->keys;
    b->host.begin[at] = (int32_t)(s->first - s->document);
    b->host.stream[at] = (uint64_t)q->index << 16 | (uint64_t)s->number;
    for (int64_t i = s->first; i < s->end; i++, b->rows++) {
        b->host.ids[b->rows] = q->ids[i];
        b->host.target[b->rows] = q->labels[i];
        b->host.pos[b->rows] = (int32_t)(i - s->document);
    }
    add_keys(f, k, s->document, s->end);
}

/* This member's row of row i of sequence k; -1 = another's. */
static int64_t own_row(const struct feed *f, int k, int64_t i)
{
    const struct dt_batch_cut *c = &f->b->cut;

    for (int half = 0; half < 2; half++) {
        int64_t lo, hi;

        dt_batch_cut_half(c->n, c->mine, half, f->seqs[k]->n_tokens, &lo, &hi);
        if (i >= lo && i < hi)
            return rows_before(f->seqs, f->n, c->n, c->mine, half, k) + i - lo;
    }
    return -1;
}

static void add_image(const struct feed *f, int k, const struct dt_sequence_item *it)
{
    struct dt_batch *b = f->b;

    for (uint32_t r = 0; r < it->n; r++, b->n_in++) {
        int64_t row = own_row(f, k, (int64_t)it->first + r);

        if (row < 0)
            continue;
        b->host.ids[row] = -1;
        b->host.in_take[b->n_in_mine] = (int32_t)b->n_in;
        b->host.in_row[b->n_in_mine++] = (int32_t)row;
    }
}

static void add_states(const struct feed *f, int k, const struct dt_sequence_doc *d,
                       int context_len)
{
    struct dt_batch *b = f->b;

    for (int j = 0; j < context_len; j++, b->n_cond++) {
        int64_t row = own_row(f, k, dt_batching_cond_row(d, context_len, j));

        if (row < 0)
            continue;
        b->host.cond_take[b->n_cond_mine] = (int32_t)b->n_cond;
        b->host.cond_row[b->n_cond_mine++] = (int32_t)row;
    }
}

/* The host's arrays have room for what is to come (dt_batch_fit). */
static enum dt_status check_room(const struct dt_model *m, const struct feed *f,
                                 struct dt_error *err)
{
    const struct dt_batch_limits *room = &f->b->room;
    struct dt_batch_limits need = {0};

    dt_batching_limits_cut(m, f->seqs, f->n, &f->b->cut, &need);
    if (need.rows > room->rows || need.seqs > room->seqs || need.in > room->in ||
        need.cond > room->cond || need.keys > room->keys || need.gathered > room->gathered)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "module \"%s\": a microbatch is larger than the place made for it",
                            f->b->module->name);
    return DT_OK;
}

enum dt_status dt_batching_fill_cut(const struct dt_model *m, const struct dt_sequence *const *seqs,
                                    int n, struct dt_batch *b, struct dt_error *err)
{
    int context_len = dt_batching_context_len(m);
    struct feed f = {seqs, n, b, most_rows(seqs, n, b->cut.n)};

    DT_TRY(check_room(m, &f, err));
    b->rows = b->n_seq = b->n_in = b->n_cond = b->n_in_mine = b->n_cond_mine = b->keys = 0;
    b->gathered = b->cut.n * f.most;
    if (b->gathered == 0)
        return DT_OK;
    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < n; k++) {
            struct stretch s = {.document = -1};
            int64_t hi;

            dt_batch_cut_half(b->cut.n, b->cut.mine, half, seqs[k]->n_tokens, &s.end, &hi);
            while (next_stretch(seqs[k], hi, &s))
                add_stretch(&f, k, &s);
        }
        if (half == 0)
            b->keys_early = b->keys;
    }
    b->host.cu[b->n_seq] = (int32_t)b->rows;
    b->host.cu_keys[b->n_seq] = (int32_t)b->keys;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < seqs[k]->n_items; i++) {
            const struct dt_sequence_item *it = &seqs[k]->items[i];

            if (it->flags & DT_ITEM_ENCODE)
                add_image(&f, k, it);
            if ((it->flags & DT_ITEM_GENERATE) && context_len > 0)
                add_states(&f, k, &seqs[k]->docs[it->doc], context_len);
        }
    return DT_OK;
}
