/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Products in pieces.
 *
 * A product is cut by a rule that knows only its shape; each piece is a primitive for one thread,
 * and dt_cpu_for deals pieces to threads.  So sums are the same for any number of threads on every
 * instruction set, and a core that is busy elsewhere delays one piece.  What is too small to cut
 * runs on oneDNN's own threads where its code divides only outputs among them ("brg..." matmuls,
 * convolutions forward and backward by data); convolutions backward by weights divide the sum and
 * are not used (products.c). */
#include "kernels/cpu/dnnl.h"

enum { CALL_MAX = 4 }; /* primitives of a call */

/* A grid of pieces, `full` in size but for the last row and column of the grid: four primitives. */
struct pieces {
    struct dt_queue *q;
    int64_t rows, cols;               /* of the grid */
    struct dt_primitive *entry[2][2]; /* [last row][last column] */
    struct dnnl_memory *packed[2][2];
    const char *a, *b, *bias;
    char *c;
    int64_t a_row, b_col, c_row, c_col, bias_col; /* bytes from one piece to the next */
    char *scratch;
    size_t scratch_each;
    _Atomic int status;
};

static void piece(void *arg, int64_t block, int thread)
{
    struct pieces *p = arg;
    int64_t i = block / p->cols, j = block % p->cols;
    int last_i = i == p->rows - 1, last_j = j == p->cols - 1;
    void *const ptr[DT_ARG_N] = {
        (void *)(uintptr_t)(p->a + i * p->a_row),
        p->b ? (void *)(uintptr_t)(p->b + j * p->b_col) : NULL,
        p->c + i * p->c_row + j * p->c_col,
        p->bias ? (void *)(uintptr_t)(p->bias + j * p->bias_col) : NULL,
        NULL,
    };
    int st = dt_dnnl_run(p->q, p->entry[last_i][last_j], thread, ptr, p->packed[last_i][last_j],
                         p->scratch + (size_t)thread * p->scratch_each);

    if (st != 0)
        atomic_store(&p->status, st);
}

/* The primitives are there: packs the weight for them, then runs all pieces.  `threads`: of a
 * single piece, oneDNN's own. */
static void pieces_run(struct pieces *p, const struct dt_weight *w, enum dt_view view, int threads)
{
    struct dt_queue *q = p->q;
    size_t each = 0;

    for (int i = 0; i < CALL_MAX; i++) {
        struct dt_primitive *e = p->entry[i / 2][i % 2];

        if (!e)
            continue;
        each = dt_dnnl_scratch_bytes(e) > each ? dt_dnnl_scratch_bytes(e) : each;
        if (w && !(p->packed[i / 2][i % 2] = dt_dnnl_packed(q, w, view, e)))
            return;
    }
    p->scratch_each = (each + 63) / 64 * 64;
    p->scratch = dt_cpu_scratch(q, DT_SCRATCH_PRODUCT, p->scratch_each * (size_t)q->threads + 64);
    if (!p->scratch)
        return;
    dt_dnnl_threads(threads);
    dt_cpu_for(q, p->rows * p->cols, piece, p);
    if (p->status != 0)
        dt_dnnl_fail(q, p->status, "running a primitive");
}

enum {
    PIECE_ROWS = 256,     /* at most: enough for a packed b to pay for its way through the cache */
    PIECE_COLS = 512,     /* at most, of a plain b, which every piece copies into its own order */
    PIECE_MACS = 1 << 24, /* at least, when cutting finer for the sake of balance */
    PIECES = 8            /* enough of them for balance on a few cores */
};

static int64_t round_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

/* Rows and columns of a piece. */
static void product_cut(const struct dt_product *p, bool weight, int64_t *mb, int64_t *nb)
{
    int64_t rows = dt_blocks(p->m, PIECE_ROWS), cols = weight ? 1 : dt_blocks(p->n, PIECE_COLS);
    double macs = (double)p->m * (double)p->n * (double)p->k;

    while (rows * cols < PIECES && macs / (double)(rows * cols) > PIECE_MACS) {
        if (!weight && p->n / cols > p->m / rows)
            cols++;
        else if (p->m / rows > 32)
            rows++;
        else
            break;
    }
    *mb = round_up(dt_blocks(p->m, rows), 16);
    *nb = cols == 1 ? p->n : round_up(dt_blocks(p->n, cols), 64);
}

void dt_cpu_product(struct dt_queue *q, const struct dt_product *p, const void *a, const void *b,
                    const struct dt_weight *w, const float *bias, void *c)
{
    int64_t elem = (int64_t)dt_dtype_bytes((enum dt_dtype)p->type), mb, nb;
    int64_t c_elem = (int64_t)dt_dtype_bytes((enum dt_dtype)p->c_type);
    /* of a weight, b's strides say only which way round it is read */
    enum dt_view view = p->rb == 1 && p->cb != 1 ? DT_VIEW_FORWARD : DT_VIEW_BACKWARD;
    struct pieces g = {.q = q, .a = a, .b = b, .bias = (const char *)bias, .c = c};
    int threads = 1;

    if (q->status != DT_OK || p->m == 0 || p->n == 0)
        return;
    dt_dnnl_room(q, CALL_MAX);
    product_cut(p, w != NULL, &mb, &nb);
    g.rows = dt_blocks(p->m, mb);
    g.cols = dt_blocks(p->n, nb);
    if (g.rows * g.cols == 1 && (double)p->n * (double)p->k * (double)p->m > PIECE_MACS &&
        q->threads > 1) {
        struct dt_primitive *e = dt_dnnl_product(q, p, w != NULL, q->threads);

        if (!e)
            return;
        if (dt_dnnl_only_outputs(e)) {
            g.entry[1][1] = e;
            threads = q->threads;
        }
    }
    for (int i = 0; i < CALL_MAX && threads == 1; i++) {
        struct dt_product s = *p;
        bool last_i = i / 2, last_j = i % 2;

        if ((!last_i && g.rows == 1) || (!last_j && g.cols == 1))
            continue;
        s.m = last_i ? p->m - (g.rows - 1) * mb : mb;
        s.n = last_j ? p->n - (g.cols - 1) * nb : nb;
        g.entry[last_i][last_j] = dt_dnnl_product(q, &s, w != NULL, 1);
        if (!g.entry[last_i][last_j])
            return;
    }
    g.a_row = mb * p->ra * elem;
    g.b_col = nb * p->cb * elem;
    g.c_row = mb * p->rc * c_elem;
    g.c_col = nb * c_elem;
    g.bias_col = nb * (int64_t)sizeof(float);
    pieces_run(&g, w, view, threads);
}

/* A piece is as many images as make it worth while. */
void dt_cpu_conv(struct dt_queue *q, const struct dt_conv *c, bool backward, const void *a,
                 const struct dt_weight *w, const float *bias, bool add, void *out)
{
    const struct dt_conv_build cb = {c, backward, bias != NULL, add};
    int64_t elem = (int64_t)dt_dtype_bytes(c->dtype), x = c->h * c->w * c->c_in;
    int64_t y = dt_conv_out(c->h, c) * dt_conv_out(c->w, c) * c->c_out;
    double macs = (double)y * (double)c->kernel * (double)c->kernel * (double)c->c_in;
    int64_t images = dt_max64(1, dt_min64(c->n, (int64_t)(PIECE_MACS / (macs + 1))));
    struct pieces g = {.q = q, .cols = 1, .a = a, .bias = (const char *)bias, .c = out};
    int threads;

    assert(!(backward && (add || bias)));
    if (q->status != DT_OK || c->n == 0)
        return;
    dt_dnnl_room(q, CALL_MAX);
    g.rows = dt_blocks(c->n, images);
    threads = g.rows == 1 ? q->threads : 1;
    g.entry[1][1] = dt_dnnl_conv(q, &cb, c->n - (g.rows - 1) * images, threads);
    if (g.rows > 1)
        g.entry[0][1] = dt_dnnl_conv(q, &cb, images, threads);
    if (!g.entry[1][1] || (g.rows > 1 && !g.entry[0][1]))
        return;
    g.a_row = images * (backward ? y : x) * elem;
    g.c_row = images * (backward ? x : y) * elem;
    pieces_run(&g, w, DT_VIEW_FILTER, threads);
}
