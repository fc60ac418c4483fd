/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives inside a lane (tensor and context parallelism), in queue order. */
#include "comm/transport_tp_impl.h"

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

/* In the order of `q`: by the transport itself, or because nothing more is put there until it is over. */
static void run(struct dt_device_queue *q, struct dt_tp *tp, const struct dt_tp_job *j, void *x)
{
    dt_tp_end(q, tp, dt_tp_begin(q, tp, j, x));
}

/* ---- sums ---- */

static enum dt_status post_all_reduce(struct dt_tp *tp, const struct dt_tp_job *j, void *buf,
                                      struct dt_device_queue *q, struct dt_req **out)
{
    return dt_comm_transport(tp->comm)->post_all_reduce(tp->comm, j->type, buf, j->n, q, &tp->error,
                                                        out);
}

static void all_reduce(struct dt_device_queue *q, struct dt_tp *tp, enum dt_reduce_type type,
                       int64_t n, void *x)
{
    struct dt_tp_job j = {.what = "an all-reduce inside a lane",
                          .post = post_all_reduce,
                          .type = type,
                          .n = (size_t)n};

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

static enum dt_status post_all_gather(struct dt_tp *tp, const struct dt_tp_job *j, void *buf,
                                      struct dt_device_queue *q, struct dt_req **out)
{
    return dt_comm_transport(tp->comm)->post_all_gather(tp->comm, buf, j->pieces, q, &tp->error,
                                                        out);
}

static enum dt_status post_reduce_scatter(struct dt_tp *tp, const struct dt_tp_job *j, void *buf,
                                          struct dt_device_queue *q, struct dt_req **out)
{
    return dt_comm_transport(tp->comm)->post_reduce_scatter(tp->comm, j->type, buf, j->pieces, q,
                                                            &tp->error, out);
}

/* Begins `j` with `each` bytes or elements a row: of rows[k] of member k, or of its share of `n`. */
static int by_rows(struct dt_device_queue *q, struct dt_tp *tp, struct dt_tp_job *j,
                   const int64_t *rows, int64_t n, size_t each, void *all)
{
    size_t few[FEW], *pieces = few, sum = 0;
    int begun = -1;

    if (!tp || tp->size < 2 || tp->error.status)
        return -1;
    if (tp->size > FEW) {
        pieces = dt_malloc((size_t)tp->size * sizeof(*pieces));
        if (!pieces) {
            dt_error_nomem(&tp->error, "the pieces of a collective");
            return -1;
        }
    }
    for (int k = 0; k < tp->size; k++) {
        pieces[k] = (size_t)(rows ? rows[k] : dt_tp_count(tp, n, k)) * each;
        sum += pieces[k];
    }
    j->pieces = pieces;
    if (sum > 0)
        begun = dt_tp_begin(q, tp, j, all);
    if (pieces != few)
        dt_free(pieces);
    return begun;
}

static int gather(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                  const int64_t *rows, int64_t n, int64_t width, void *all)
{
    struct dt_tp_job j = {
        .what = "an all-gather inside a lane", .post = post_all_gather, .type = DT_REDUCE_F32};

    return by_rows(q, tp, &j, rows, n, (size_t)width * dt_dtype_bytes(type), all);
}

static int scatter(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                   const int64_t *rows, int64_t n, int64_t width, void *all)
{
    struct dt_tp_job j = {.what = "a reduce-scatter inside a lane",
                          .post = post_reduce_scatter,
                          .type = reduce_type(type)};

    return by_rows(q, tp, &j, rows, n, (size_t)width, all);
}

void dt_tp_all_gather(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type, int64_t rows,
                      int64_t width, void *all)
{
    dt_tp_end(q, tp, gather(q, tp, type, NULL, rows, width, all));
}

void dt_tp_reduce_scatter(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                          int64_t rows, int64_t width, void *all)
{
    dt_tp_end(q, tp, scatter(q, tp, type, NULL, rows, width, all));
}

int dt_tp_begin_gather(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                       const int64_t *rows, int64_t width, void *all)
{
    return gather(q, tp, type, rows, 0, width, all);
}

int dt_tp_begin_scatter(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                        const int64_t *rows, int64_t width, void *all)
{
    return scatter(q, tp, type, rows, 0, width, all);
}

/* ---- all to all ---- */

static enum dt_status post_all_to_all(struct dt_tp *tp, const struct dt_tp_job *j, void *buf,
                                      struct dt_device_queue *q, struct dt_req **out)
{
    return dt_comm_transport(tp->comm)->post_all_to_all(tp->comm, j->from, j->sent, buf, j->pieces,
                                                        q, &tp->error, out);
}

/* Bytes to or from one member alone. */
static void to_one(size_t *bytes, int size, int member, size_t n)
{
    for (int k = 0; k < size; k++)
        bytes[k] = k == member ? n : 0;
}

int dt_tp_begin_pass(struct dt_device_queue *q, struct dt_tp *tp, const void *from, size_t bytes,
                     void *to)
{
    size_t few[2 * FEW], *sent = few;
    struct dt_tp_job j = {
        .what = "a hop round a ring", .post = post_all_to_all, .type = DT_REDUCE_F32, .from = from};
    int begun;

    if (!tp || tp->size < 2 || bytes == 0 || tp->error.status != DT_OK)
        return -1;
    if (tp->size > FEW) {
        sent = dt_malloc(2 * (size_t)tp->size * sizeof(*sent));
        if (!sent) {
            dt_error_nomem(&tp->error, "a hop round a ring");
            return -1;
        }
    }
    to_one(sent, tp->size, (tp->rank + 1) % tp->size, bytes);
    to_one(sent + tp->size, tp->size, (tp->rank + tp->size - 1) % tp->size, bytes);
    j.sent = sent;
    j.pieces = sent + tp->size;
    begun = dt_tp_begin(q, tp, &j, to);
    if (sent != few)
        dt_free(sent);
    return begun;
}

void dt_tp_all_to_all(struct dt_device_queue *q, struct dt_tp *tp, const void *from,
                      const size_t *send_bytes, void *to, const size_t *recv_bytes)
{
    struct dt_tp_job j = {.what = "an all-to-all inside an expert group",
                          .post = post_all_to_all,
                          .type = DT_REDUCE_F32,
                          .pieces = recv_bytes,
                          .from = from,
                          .sent = send_bytes};

    if (tp && tp->size > 1 && tp->error.status == DT_OK)
        run(q, tp, &j, to);
}
