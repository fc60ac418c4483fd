/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Products in pieces.
 *
 * A product is cut by a rule that knows only its shape; each piece is a primitive for one thread,
 * and dt_cpu_for deals pieces to threads.  So sums are the same for any number of threads on every
 * instruction set, and a core that is busy elsewhere delays one piece.  What is too small to cut
 * runs on oneDNN's own threads where its code divides only outputs among them ("brg..." matmuls,
 * convolutions forward and backward by data); convolutions backward by weights divide the sum and
 * are not used (products.c).
 *
 * Microbatches differ in tokens and images, and a primitive of a new shape takes oneDNN longer to
 * make than a small product to run.  So what varies with the batch - rows, images, and the sum over
 * rows of a weight's gradient - is cut to lengths of 2^i and 3 2^i: a few shapes per weight do for
 * all batches. */
#include "kernels/cpu/dnnl.h"

enum { BANDS = 16, CALL_MAX = 2 * BANDS }; /* primitives of a call */

/* Rows of pieces, equally high. */
struct band {
    int64_t first, height, count;      /* of rows; pieces of the grid in this direction */
    struct dt_cpu_primitive *entry[2]; /* [last column] */
    struct dnnl_memory *packed[2];
};

/* Bands of pieces, all columns but the last equally wide. */
struct pieces {
    struct dt_device_queue *q;
    struct band band[BANDS];
    int n_bands;
    int64_t rows, cols; /* of the grid */
    const char *a, *b, *bias;
    char *c;
    int64_t a_row, c_row;           /* bytes from one row to the next */
    int64_t b_col, c_col, bias_col; /* and from one column of pieces to the next */
    char *scratch;
    size_t scratch_each;
    _Atomic int status;
};

/* The longest usual length up to n > 0. */
static int64_t usual(int64_t n)
{
    int64_t x = 1;

    while (2 * x <= n)
        x *= 2;
    return x / 2 * 3 <= n && x > 1 ? x / 2 * 3 : x;
}

/* n rows as bands of `most` at most, which is a usual length. */
static void cut_rows(struct pieces *p, int64_t n, int64_t most)
{
    for (int64_t first = 0; first < n;) {
        struct band *b = &p->band[p->n_bands++];
        int64_t left = n - first;

        assert(p->n_bands <= BANDS);
        *b = (struct band){.first = first, .height = left < most ? usual(left) : most};
        b->count = left / b->height;
        first += b->count * b->height;
        p->rows += b->count;
    }
}

static void piece(void *arg, int64_t block, int thread)
{
    struct pieces *p = arg;
    int64_t i = block / p->cols, j = block % p->cols, row;
    const struct band *b = p->band;
    bool last = j == p->cols - 1;
    void *ptr[DT_ARG_N];
    int st;

    for (; i >= b->count; b++)
        i -= b->count;
    row = b->first + i * b->height;
    ptr[DT_ARG_A] = (void *)(uintptr_t)(p->a + row * p->a_row);
    ptr[DT_ARG_B] = p->b ? (void *)(uintptr_t)(p->b + j * p->b_col) : NULL;
    ptr[DT_ARG_C] = p->c + row * p->c_row + j * p->c_col;
    ptr[DT_ARG_BIAS] = p->bias ? (void *)(uintptr_t)(p->bias + j * p->bias_col) : NULL;
    st = dt_dnnl_run(p->q, b->entry[last], thread, ptr, b->packed[last],
                     p->scratch + (size_t)thread * p->scratch_each);
    if (st != 0)
        atomic_store(&p->status, st);
}

/* The primitives are there: packs the weight for them, then runs all pieces.  `threads`: of a
 * single piece, oneDNN's own. */
static void pieces_run(struct pieces *p, const struct dt_device_weight *w, enum dt_cpu_view view,
                       int threads)
{
    struct dt_device_queue *q = p->q;
    size_t each = 0;

    for (int i = 0; i < 2 * p->n_bands; i++) {
        struct band *b = &p->band[i / 2];
        struct dt_cpu_primitive *e = b->entry[i % 2];

        if (!e)
            continue;
        each = dt_dnnl_scratch_bytes(e) > each ? dt_dnnl_scratch_bytes(e) : each;
        if (w && !(b->packed[i % 2] = dt_dnnl_packed(q, w, view, e)))
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
    PIECE_ROWS = 256, /* at most: enough for a packed b to pay for its way through the cache */
    PLAIN_ROWS = 384, /* the same of a plain b, which every piece copies into its own order ... */
    PIECE_COLS = 768, /* ... and which is no wider: measured, as fast as larger pieces */
    PIECE_MACS = 1 << 24, /* at least, when cutting finer for the sake of balance */
    PIECES = 8            /* enough of them for balance on a few cores */
};

static int64_t round_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

/* Rows and columns of a piece. */
static void product_cut(const struct dt_cpu_product_args *p, bool weight, int64_t *mb, int64_t *nb)
{
    int64_t rows = dt_cpu_blocks(p->m, weight ? PIECE_ROWS : PLAIN_ROWS);
    int64_t cols = weight ? 1 : dt_cpu_blocks(p->n, PIECE_COLS);
    double macs = (double)p->m * (double)p->n * (double)p->k;

    while (rows * cols < PIECES && macs / (double)(rows * cols) > PIECE_MACS) {
        if (!weight && p->n / cols > 2 * p->m / rows)
            cols++;
        else if (p->m / rows > 32)
            rows++;
        else
            break;
    }
    *mb = dt_cpu_max64(16, dt_cpu_blocks(p->m, rows));
    *mb = usual(*mb) < *mb ? usual(2 * *mb - 1) : *mb; /* the next usual length */
    *nb = cols == 1 ? p->n : round_up(dt_cpu_blocks(p->n, cols), 64);
}

/* A single piece that oneDNN's threads share, if they divide only outputs. */
static bool whole(struct pieces *g, const struct dt_cpu_product_args *p, bool weight)
{
    struct dt_cpu_primitive *e = dt_dnnl_product(g->q, p, weight, g->q->threads);

    if (!e || !dt_dnnl_only_outputs(e))
        return false;
    g->band[0] = (struct band){.height = p->m, .count = 1, .entry = {NULL, e}};
    g->n_bands = 1;
    g->rows = 1;
    return true;
}

static bool product_entries(struct pieces *g, const struct dt_cpu_product_args *p, bool weight,
                            int64_t nb)
{
    for (int i = 0; i < 2 * g->n_bands; i++) {
        struct band *b = &g->band[i / 2];
        struct dt_cpu_product_args s = *p;
        bool last = i % 2;

        if (!last && g->cols == 1)
            continue;
        s.m = b->height;
        s.n = last ? p->n - (g->cols - 1) * nb : nb;
        b->entry[last] = dt_dnnl_product(g->q, &s, weight, 1);
        if (!b->entry[last])
            return false;
    }
    return true;
}

static void product(struct dt_device_queue *q, const struct dt_cpu_product_args *p, const void *a,
                    const void *b, const struct dt_device_weight *w, const float *bias, void *c)
{
    int64_t elem = (int64_t)dt_dtype_bytes((enum dt_dtype)p->type), mb, nb;
    int64_t c_elem = (int64_t)dt_dtype_bytes((enum dt_dtype)p->c_type);
    /* of a weight, b's strides say only which way round it is read */
    enum dt_cpu_view view = p->rb == 1 && p->cb != 1 ? DT_VIEW_FORWARD : DT_VIEW_BACKWARD;
    struct pieces g = {.q = q, .a = a, .b = b, .bias = (const char *)bias, .c = c};
    int threads = 1;

    dt_dnnl_room(q, CALL_MAX);
    product_cut(p, w != NULL, &mb, &nb);
    g.cols = dt_cpu_blocks(p->n, nb);
    if (p->m <= mb && g.cols == 1 && q->threads > 1 &&
        (double)p->n * (double)p->k * (double)p->m > PIECE_MACS && whole(&g, p, w != NULL))
        threads = q->threads;
    if (q->status != DT_OK)
        return;
    if (threads == 1) {
        cut_rows(&g, p->m, mb);
        if (!product_entries(&g, p, w != NULL, nb))
            return;
    }
    g.a_row = p->ra * elem;
    g.b_col = nb * p->cb * elem;
    g.c_row = p->rc * c_elem;
    g.c_col = nb * c_elem;
    g.bias_col = nb * (int64_t)sizeof(float);
    pieces_run(&g, w, view, threads);
}

/* The first part of a sum over n rows: its three leading bits, so most of it. */
static int64_t most_of(int64_t n)
{
    int64_t step = 1;

    while (n / step >= 8)
        step *= 2;
    return n / step * step;
}

void dt_cpu_product(struct dt_device_queue *q, const struct dt_cpu_product_args *p, const void *a,
                    const void *b, const struct dt_device_weight *w, const float *bias, void *c)
{
    int64_t elem = (int64_t)dt_dtype_bytes((enum dt_dtype)p->type);
    struct dt_cpu_product_args s = *p;

    if (q->status != DT_OK || p->m == 0 || p->n == 0)
        return;
    if (w || p->ca == 1) { /* a sum over a weight's width, or none of rows */
        product(q, p, a, b, w, bias, c);
        return;
    }
    for (int64_t done = 0; done < p->k; done += s.k) {
        s.k = done == 0 ? most_of(p->k) : usual(p->k - done);
        s.add = p->add || done > 0;
        product(q, &s, (const char *)a + done * p->ca * elem, (const char *)b + done * p->rb * elem,
                NULL, NULL, c);
    }
}

/* A piece is as many images as make it worth while. */
void dt_cpu_conv(struct dt_device_queue *q, const struct dt_kernel_conv *c, bool backward,
                 const void *a, const struct dt_device_weight *w, const float *bias, bool add,
                 void *out)
{
    const struct dt_cpu_conv_build cb = {c, backward, bias != NULL, add};
    int64_t elem = (int64_t)dt_dtype_bytes(c->dtype), x = c->h * c->w * c->c_in;
    int64_t y = dt_kernel_conv_out(c->h, c) * dt_kernel_conv_out(c->w, c) * c->c_out;
    double macs = (double)y * (double)c->kernel * (double)c->kernel * (double)c->c_in;
    int64_t images = dt_cpu_max64(1, dt_cpu_min64(c->n, (int64_t)(PIECE_MACS / (macs + 1))));
    struct pieces g = {.q = q, .cols = 1, .a = a, .bias = (const char *)bias, .c = out};
    int threads;

    assert(!(backward && (add || bias)));
    if (q->status != DT_OK || c->n == 0)
        return;
    dt_dnnl_room(q, CALL_MAX);
    cut_rows(&g, c->n, usual(images));
    threads = g.rows == 1 ? q->threads : 1;
    for (int i = 0; i < g.n_bands; i++)
        if (!(g.band[i].entry[1] = dt_dnnl_conv(q, &cb, g.band[i].height, threads)))
            return;
    g.a_row = (backward ? y : x) * elem;
    g.c_row = (backward ? x : y) * elem;
    pieces_run(&g, w, DT_VIEW_FILTER, threads);
}
