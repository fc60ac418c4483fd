/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives inside a lane (tensor and context parallelism), in queue order. */
#include "comm/transport.h"

#include "base/mem.h"

enum { FEW = 64 }; /* members whose pieces are counted without an allocation */

enum dt_status dt_tp_state(const struct dt_tp *tp, struct dt_error *err)
{
    if (!tp || tp->error.status == DT_OK)
        return DT_OK;
    if (err)
        *err = tp->error;
    return tp->error.status;
}

struct job {
    const char *what;
    /* `out` as the table's entries take it */
    enum dt_status (*post)(struct dt_tp *tp, const struct job *j, void *buf,
                           struct dt_device_queue *q, struct dt_req **out);
    enum dt_reduce_type type;
    size_t n;
    const size_t *pieces;
};

/* In the order of `q`: by the transport itself, or because nothing more is put there until it is over. */
static void run(struct dt_device_queue *q, struct dt_tp *tp, const struct job *j, void *x)
{
    struct dt_transport *t = dt_comm_transport(tp->comm);
    struct dt_req *r;
    enum dt_status st;

    if (t->on_queue || t->collectives_on_queue) {
        st = j->post(tp, j, x, q, NULL);
    } else {
        st = j->post(tp, j, x, q, &r);
        if (st == DT_OK)
            st = dt_transport_wait(t, r, tp->limit_s, j->what, &tp->error);
    }
    if (st != DT_OK && tp->error.status == DT_OK)
        dt_error_set(&tp->error, st, "%s failed", j->what);
}

/* ---- sums ---- */

static enum dt_status post_all_reduce(struct dt_tp *tp, const struct job *j, void *buf,
                                      struct dt_device_queue *q, struct dt_req **out)
{
    return dt_comm_transport(tp->comm)->post_all_reduce(tp->comm, j->type, buf, j->n, q, &tp->error,
                                                        out);
}

static void all_reduce(struct dt_device_queue *q, struct dt_tp *tp, enum dt_reduce_type type,
                       int64_t n, void *x)
{
    struct job j = {"an all-reduce inside a lane", post_all_reduce, type, (size_t)n, NULL};

    if (tp && tp->size > 1 && n > 0 && tp->error.status == DT_OK)
        run(q, tp, &j, x);
}

static enum dt_reduce_type reduce_type(enum dt_dtype type)
{
    return type == DT_BF16 ? DT_REDUCE_BF16 : DT_REDUCE_F32;
}

void dt_tp_all_reduce(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type, int64_t n,
                      void *x)
{
    all_reduce(q, tp, reduce_type(type), n, x);
}

void dt_tp_all_reduce_f64(struct dt_device_queue *q, struct dt_tp *tp, int64_t n, double *x)
{
    all_reduce(q, tp, DT_REDUCE_F64, n, x);
}

void dt_tp_all_reduce_max(struct dt_device_queue *q, struct dt_tp *tp, int64_t n, float *x)
{
    all_reduce(q, tp, DT_REDUCE_F32_MAX, n, x);
}

/* ---- rows ---- */

static enum dt_status post_all_gather(struct dt_tp *tp, const struct job *j, void *buf,
                                      struct dt_device_queue *q, struct dt_req **out)
{
    return dt_comm_transport(tp->comm)->post_all_gather(tp->comm, buf, j->pieces, q, &tp->error,
                                                        out);
}

static enum dt_status post_reduce_scatter(struct dt_tp *tp, const struct job *j, void *buf,
                                          struct dt_device_queue *q, struct dt_req **out)
{
    return dt_comm_transport(tp->comm)->post_reduce_scatter(tp->comm, j->type, buf, j->pieces, q,
                                                            &tp->error, out);
}

/* Runs `j` with every member's rows counted, `each` bytes or elements a row. */
static void by_rows(struct dt_device_queue *q, struct dt_tp *tp, struct job *j, int64_t rows,
                    size_t each, void *all)
{
    size_t few[FEW], *pieces = few;

    if (!tp || tp->size < 2 || rows * (int64_t)each == 0 || tp->error.status)
        return;
    if (tp->size > FEW) {
        pieces = dt_malloc((size_t)tp->size * sizeof(*pieces));
        if (!pieces) {
            dt_error_nomem(&tp->error, "the pieces of a collective");
            return;
        }
    }
    for (int k = 0; k < tp->size; k++)
        pieces[k] = (size_t)dt_tp_count(tp, rows, k) * each;
    j->pieces = pieces;
    run(q, tp, j, all);
    if (pieces != few)
        dt_free(pieces);
}

void dt_tp_all_gather(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type, int64_t rows,
                      int64_t width, void *all)
{
    struct job j = {"an all-gather inside a lane", post_all_gather, DT_REDUCE_F32, 0, NULL};
    size_t row = (size_t)width * dt_dtype_bytes(type);

    by_rows(q, tp, &j, rows, row, all);
}

void dt_tp_reduce_scatter(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                          int64_t rows, int64_t width, void *all)
{
    struct job j = {"a reduce-scatter inside a lane", post_reduce_scatter, reduce_type(type), 0,
                    NULL};

    by_rows(q, tp, &j, rows, (size_t)width, all);
}
