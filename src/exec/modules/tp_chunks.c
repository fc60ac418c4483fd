/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * StepCCL (DistTrain): a collective of sequence parallelism and the product beside it go in chunks, so that one
 * chunk's collective runs beside another chunk's product.
 *
 *   gathers    | g0 | g1 | g2 | g3 |              products   | r0 G0 | r1 G1 | r2 G2 | r3 G3 |
 *   products        | G0 r0 | G1 r1 | ...         scatters           |  s0   |  s1   |  s2   | s3 |
 *
 * Chunk i has the i-th part of every member's rows, one member's after the other's: what a collective takes.
 * The product has its rows in that order, too; r puts what it gives (takes) into the order of rows.  No sum has
 * terms of two chunks, so results are those of one chunk to the bit, wherever a product's row does not depend
 * on how many others there are. */
#include "exec/modules/impl.h"

enum { MEMBERS = 64 }; /* of more, nothing goes in chunks; and pieces that one call copies */

static int64_t share_first(int64_t n, int parts, int i)
{
    int64_t q = n / parts, r = n % parts;

    return i * q + (i < r ? i : r);
}

/* Piece i of member k's rows: where it is among its own, and how many. */
static int64_t piece_first(const struct dt_stage *s, int64_t rows, int chunks, int i, int k)
{
    return share_first(dt_tp_count(s->tp, rows, k), chunks, i);
}

static int64_t piece_rows(const struct dt_stage *s, int64_t rows, int chunks, int i, int k)
{
    return piece_first(s, rows, chunks, i + 1, k) - piece_first(s, rows, chunks, i, k);
}

/* Rows before chunk i, in the order of chunks. */
static int64_t chunk_first(const struct dt_stage *s, int64_t rows, int chunks, int i)
{
    int64_t sum = 0;

    for (int k = 0; k < dt_tp_size(s->tp); k++)
        sum += piece_first(s, rows, chunks, i, k);
    return sum;
}

/* Of piece k of chunk i, within the chunk. */
static int64_t piece_at(const struct dt_stage *s, int64_t rows, int chunks, int i, int k)
{
    int64_t sum = 0;

    for (int m = 0; m < k; m++)
        sum += piece_rows(s, rows, chunks, i, m);
    return sum;
}

int dt_nn_chunks(const struct dt_stage *s, int64_t rows)
{
    int64_t least = rows / dt_tp_size(s->tp);
    int n = s->chunks < least ? s->chunks : (int)least;

    return s->seqpar && n > 1 && dt_tp_size(s->tp) <= MEMBERS ? n : 1;
}

/* ---- copies ---- */

struct cut { /* a tensor of all rows that goes in chunks */
    struct dt_nn_call *c;
    int64_t rows;
    int chunks;
};

static void flush(const struct cut *t, struct dt_kernel_copy_part *part, int *n)
{
    if (*n > 0)
        t->c->k->copy(t->c->q, *n, part);
    *n = 0;
}

/* Chunk i between its own order (`chunk`) and that of rows (`whole`). */
static void reorder(const struct cut *t, int i, int64_t width, const char *chunk, const char *whole,
                    bool to_chunk)
{
    const struct dt_stage *s = t->c->s;
    struct dt_kernel_copy_part part[MEMBERS];
    size_t row = (size_t)width * t->c->es;
    int n = 0;

    for (int k = 0; k < dt_tp_size(s->tp); k++) {
        char *a = (char *)(uintptr_t)chunk + (size_t)piece_at(s, t->rows, t->chunks, i, k) * row;
        char *b = (char *)(uintptr_t)whole + (size_t)(dt_tp_first(s->tp, t->rows, k) +
                                                      piece_first(s, t->rows, t->chunks, i, k)) *
                                                 row;
        int64_t m = piece_rows(s, t->rows, t->chunks, i, k);

        if (n == MEMBERS)
            flush(t, part, &n);
        part[n++] =
            (struct dt_kernel_copy_part){m * (int64_t)row, to_chunk ? b : a, to_chunk ? a : b};
    }
    flush(t, part, &n);
}

/* Own rows between `own` and their places among all chunks. */
static void reorder_own(const struct cut *t, int64_t width, const char *all, const char *own,
                        bool to_all)
{
    const struct dt_stage *s = t->c->s;
    struct dt_kernel_copy_part part[MEMBERS];
    size_t row = (size_t)width * t->c->es;
    int n = 0, me = dt_tp_rank(s->tp);

    for (int i = 0; i < t->chunks; i++) {
        int64_t at = chunk_first(s, t->rows, t->chunks, i) + piece_at(s, t->rows, t->chunks, i, me);
        char *a = (char *)(uintptr_t)all + (size_t)at * row;
        char *b = (char *)(uintptr_t)own + (size_t)piece_first(s, t->rows, t->chunks, i, me) * row;

        if (n == MEMBERS)
            flush(t, part, &n);
        part[n++] =
            (struct dt_kernel_copy_part){piece_rows(s, t->rows, t->chunks, i, me) * (int64_t)row,
                                         to_all ? b : a, to_all ? a : b};
    }
    flush(t, part, &n);
}

/* ---- collectives ---- */

struct chunk {
    int64_t first, n; /* rows, in the order of chunks */
    int begun;
};

static void begin(const struct cut *t, int i, int64_t width, char *all, bool gather,
                  struct chunk *out)
{
    const struct dt_stage *s = t->c->s;
    int64_t rows[MEMBERS];
    char *at;

    out->first = chunk_first(s, t->rows, t->chunks, i);
    out->n = chunk_first(s, t->rows, t->chunks, i + 1) - out->first;
    at = dt_nn_off(all, out->first * width, t->c->es);
    for (int k = 0; k < dt_tp_size(s->tp); k++)
        rows[k] = piece_rows(s, t->rows, t->chunks, i, k);
    out->begun = gather ? dt_tp_begin_gather(t->c->q, s->tp, t->c->dtype, rows, width, at)
                        : dt_tp_begin_scatter(t->c->q, s->tp, t->c->dtype, rows, width, at);
}

/* Own rows of x in their places, and all gathers begun. */
static void gather_all(const struct cut *t, int64_t width, const char *x, char *all,
                       struct chunk *chunk)
{
    reorder_own(t, width, all, x, true);
    for (int i = 0; i < t->chunks; i++)
        begin(t, i, width, all, true, &chunk[i]);
}

static void end_all(const struct cut *t, const struct chunk *chunk)
{
    for (int i = 0; i < t->chunks; i++)
        dt_tp_end(t->c->q, t->c->s->tp, chunk[i].begun);
}

/* ---- gather, then product ---- */

void dt_nn_chunks_col(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b, void *y,
                      char *room)
{
    struct cut t = {c, rows, dt_nn_chunks(c->s, rows)};
    const struct dt_nn_weight *p = dt_nn_weight_of(c, w);
    struct chunk chunk[DT_STAGE_CHUNKS_MAX];

    gather_all(&t, p->in, x, room, chunk);
    for (int i = 0; i < t.chunks; i++) {
        dt_tp_end(c->q, c->s->tp, chunk[i].begun);
        dt_nn_linear(c, chunk[i].n, dt_nn_off(room, chunk[i].first * p->in, c->es), w, b, NULL,
                     c->s->chunk_part);
        reorder(&t, i, p->out, c->s->chunk_part, y, false);
    }
}

void dt_nn_chunks_row_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, void *dx, char *room)
{
    struct cut t = {c, rows, dt_nn_chunks(c->s, rows)};
    const struct dt_nn_weight *p = dt_nn_weight_of(c, w);
    bool trained = (what & DT_BACKWARD_WEIGHT) && c->n->trained;
    struct chunk chunk[DT_STAGE_CHUNKS_MAX];
    char *all = c->s->chunk_rows;

    gather_all(&t, p->out, dy, all, chunk);
    for (int i = 0; i < t.chunks; i++) {
        dt_tp_end(c->q, c->s->tp, chunk[i].begun);
        dt_nn_linear_back(c, DT_BACKWARD_INPUT, chunk[i].n, NULL,
                          dt_nn_off(all, chunk[i].first * p->out, c->es), w, b, c->s->chunk_part,
                          false);
        reorder(&t, i, p->in, c->s->chunk_part, dx, false);
    }
    for (int i = 0; trained && i < t.chunks; i++) /* its sum is over rows, in their order */
        reorder(&t, i, p->out, dt_nn_off(all, chunk[i].first * p->out, c->es), room, false);
    if (trained)
        dt_nn_linear_back(c, DT_BACKWARD_WEIGHT, rows, x, room, w, b, NULL, false);
}

/* ---- product, then scatter ---- */

void dt_nn_chunks_row(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b, void *y,
                      char *room)
{
    struct cut t = {c, rows, dt_nn_chunks(c->s, rows)};
    const struct dt_nn_weight *p = dt_nn_weight_of(c, w);
    struct chunk chunk[DT_STAGE_CHUNKS_MAX];

    for (int i = 0; i < t.chunks; i++) {
        int64_t first = chunk_first(c->s, rows, t.chunks, i);

        reorder(&t, i, p->in, c->s->chunk_part, x, true);
        dt_nn_linear(c, chunk_first(c->s, rows, t.chunks, i + 1) - first, c->s->chunk_part, w, b,
                     NULL, dt_nn_off(room, first * p->out, c->es));
        begin(&t, i, p->out, room, false, &chunk[i]);
    }
    end_all(&t, chunk);
    reorder_own(&t, p->out, room, y, false);
}

/* All of x, which is begun here. */
static int gather_whole(const struct cut *t, int64_t width, const void *x, char *room)
{
    struct dt_stage *s = t->c->s;
    int64_t rows[MEMBERS];

    dt_nn_copy(t->c, dt_nn_off(room, dt_nn_own_first(s, t->rows) * width, t->c->es), x,
               (size_t)(dt_nn_own_rows(s, t->rows) * width) * t->c->es);
    for (int k = 0; k < dt_tp_size(s->tp); k++)
        rows[k] = dt_tp_count(s->tp, t->rows, k);
    return dt_tp_begin_gather(t->c->q, s->tp, t->c->dtype, rows, width, room);
}

/* The input that the weight's gradient needs is gathered first, beside the products of the input's gradient. */
void dt_nn_chunks_col_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, void *dx, char *room_x, char *room_dx)
{
    struct cut t = {c, rows, dt_nn_chunks(c->s, rows)};
    const struct dt_nn_weight *p = dt_nn_weight_of(c, w);
    bool trained = (what & DT_BACKWARD_WEIGHT) && c->n->trained;
    struct chunk chunk[DT_STAGE_CHUNKS_MAX];
    int whole = trained ? gather_whole(&t, p->in, x, room_x) : -1;

    for (int i = 0; i < t.chunks; i++) {
        int64_t first = chunk_first(c->s, rows, t.chunks, i);

        reorder(&t, i, p->out, c->s->chunk_part, dy, true);
        dt_nn_linear_back(c, DT_BACKWARD_INPUT, chunk_first(c->s, rows, t.chunks, i + 1) - first,
                          NULL, c->s->chunk_part, w, b, dt_nn_off(room_dx, first * p->in, c->es),
                          false);
        begin(&t, i, p->in, room_dx, false, &chunk[i]);
    }
    if (trained) {
        dt_tp_end(c->q, c->s->tp, whole);
        dt_nn_linear_back(c, DT_BACKWARD_WEIGHT, rows, room_x, dy, w, b, NULL, false);
    }
    end_all(&t, chunk);
    reorder_own(&t, p->in, room_dx, dx, false);
}

/* ---- memory ---- */

/* Of products whose other side is gathered or scattered: not a head's, which meets by vocabulary. */
void dt_nn_chunks_bytes(const struct dt_stage *s, size_t *rows, size_t *part)
{
    size_t es = dt_dtype_bytes(s->dtype);
    /* of a chunk; where rows are too few for all chunks, one has up to two of each member */
    int64_t most = s->max.rows / s->chunks + 2 * dt_tp_size(s->tp);

    *rows = *part = 0;
    for (int i = 0; i < s->n_weights; i++) {
        const struct dt_nn_weight *p = &s->weights[i];
        size_t dealt = (size_t)(most * (p->dealt_in ? p->in : p->out)) * es;
        size_t whole = p->dealt_in ? (size_t)(s->max.rows * p->out) * es : 0;

        if (!p->product || !p->dealt || p->kernel != 0 ||
            s->module->blocks[p->block].kind == DT_BLOCK_LM_HEAD)
            continue;
        *rows = whole > *rows ? whole : *rows;
        *part = dealt > *part ? dealt : *part;
    }
}
