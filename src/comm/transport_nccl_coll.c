/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Operations over NCCL.  Pieces of one size are a collective of NCCL's; others a group of broadcasts or reductions,
 * one per member, which it runs as one. */
#include "comm/transport_nccl_impl.h"

/* An operation while it is posted. */
struct call {
    const char *what;
    void (*make)(struct call *k); /* the calls of NCCL */
    struct dt_comm *c;
    enum dt_reduce_type type;
    int root;
    const char *send; /* all-to-all */
    char *buf;
    size_t n;                          /* elements, or bytes */
    const size_t *counts, *send_bytes; /* of pieces */
    struct dt_device_queue *q;
    /* the issuing thread's */
    const struct dt_nccl *f;
    struct dt_nccl_comm *h;
    void *stream;
    int result;
};

static enum dt_status issue(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    struct call *k = arg;
    struct dt_nccl_link *l = k->c->own;

    DT_TRY(dt_nccl_state(s, err));
    k->f = s->f;
    k->h = l->h;
    k->stream = s->dev->queue_stream(k->q);
    k->result = DT_NCCL_SUCCESS;
    k->make(k);
    return dt_nccl_settle(s, l, k->what, k->result, k->q, err);
}

/* A member alone has nothing to do. */
static enum dt_status post(struct call *k, struct dt_error *err, struct dt_req **out)
{
    struct dt_nccl_ranks *s = dt_nccl_of(k->c->t);
    enum dt_status st;
    struct dt_req *r;

    DT_TRY(dt_req_begin(k->c->t, k->q, err));
    DT_TRY(dt_req_new(k->c->t, k->q, err, &r));
    st = k->c->own && k->n > 0 ? dt_nccl_issue(s, issue, k, err) : dt_nccl_state(s, err);
    return dt_req_end_on_queue(r, st, err, out);
}

/* The first failure of a group's calls stays. */
static void also(struct call *k, int result)
{
    if (k->result == DT_NCCL_SUCCESS || k->result == DT_NCCL_IN_PROGRESS)
        k->result = result != DT_NCCL_SUCCESS ? result : k->result;
}

/* After a call that failed the others of its group would be others than those of the members. */
static bool well(const struct call *k)
{
    return k->result == DT_NCCL_SUCCESS || k->result == DT_NCCL_IN_PROGRESS;
}

static int type_of(enum dt_reduce_type t)
{
    switch (t) {
    case DT_REDUCE_F32:
    case DT_REDUCE_F32_MAX:
        return DT_NCCL_FLOAT32;
    case DT_REDUCE_F64:
        return DT_NCCL_FLOAT64;
    case DT_REDUCE_BF16:
        return DT_NCCL_BFLOAT16;
    case DT_REDUCE_U64_MAX:
        break;
    }
    return DT_NCCL_UINT64;
}

static int op_of(enum dt_reduce_type t)
{
    return t == DT_REDUCE_U64_MAX || t == DT_REDUCE_F32_MAX ? DT_NCCL_MAX : DT_NCCL_SUM;
}

static size_t total(const size_t *counts, int n, bool *alike)
{
    size_t sum = 0;

    *alike = true;
    for (int k = 0; k < n; k++) {
        sum += counts[k];
        *alike = *alike && counts[k] == counts[0];
    }
    return sum;
}

static void broadcast(struct call *k)
{
    k->result = k->f->Broadcast(k->buf, k->buf, k->n, DT_NCCL_INT8, k->root, k->h, k->stream);
}

static enum dt_status post_broadcast(struct dt_comm *c, int root, void *buf, size_t bytes,
                                     struct dt_device_queue *q, struct dt_error *err,
                                     struct dt_req **out)
{
    struct call k = {.what = "a broadcast",
                     .make = broadcast,
                     .c = c,
                     .root = root,
                     .buf = buf,
                     .n = bytes,
                     .q = q};

    if (root < 0 || root >= c->n)
        return dt_error_set(err, DT_ERR_INTERNAL, "there is no member %d among %d", root, c->n);
    return post(&k, err, out);
}

static void all_reduce(struct call *k)
{
    k->result =
        k->f->AllReduce(k->buf, k->buf, k->n, type_of(k->type), op_of(k->type), k->h, k->stream);
}

static enum dt_status post_all_reduce(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                      size_t n, struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct call k = {.what = "an all-reduce",
                     .make = all_reduce,
                     .c = c,
                     .type = type,
                     .buf = buf,
                     .n = n,
                     .q = q};

    return post(&k, err, out);
}

static void reduce_each(struct call *k)
{
    size_t at = 0;

    also(k, k->f->GroupStart());
    for (int m = 0; m < k->c->n; at += k->counts[m++] * dt_reduce_bytes(k->type))
        if (k->counts[m] > 0 && well(k))
            also(k, k->f->Reduce(k->buf + at, k->buf + at, k->counts[m], type_of(k->type),
                                 op_of(k->type), m, k->h, k->stream));
    also(k, k->f->GroupEnd());
}

static void reduce_scatter(struct call *k)
{
    size_t piece = k->counts[0] * dt_reduce_bytes(k->type);

    k->result = k->f->ReduceScatter(k->buf, k->buf + piece * (size_t)k->c->me, k->counts[0],
                                    type_of(k->type), op_of(k->type), k->h, k->stream);
}

static enum dt_status post_reduce_scatter(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                          const size_t *counts, struct dt_device_queue *q,
                                          struct dt_error *err, struct dt_req **out)
{
    struct call k = {
        .what = "a reduce-scatter", .c = c, .type = type, .buf = buf, .counts = counts, .q = q};
    bool alike;

    k.n = total(counts, c->n, &alike);
    k.make = alike ? reduce_scatter : reduce_each;
    return post(&k, err, out);
}

static void broadcast_each(struct call *k)
{
    size_t at = 0;

    also(k, k->f->GroupStart());
    for (int m = 0; m < k->c->n; at += k->counts[m++])
        if (k->counts[m] > 0 && well(k))
            also(k, k->f->Broadcast(k->buf + at, k->buf + at, k->counts[m], DT_NCCL_INT8, m, k->h,
                                    k->stream));
    also(k, k->f->GroupEnd());
}

static void all_gather(struct call *k)
{
    k->result = k->f->AllGather(k->buf + k->counts[0] * (size_t)k->c->me, k->buf, k->counts[0],
                                DT_NCCL_INT8, k->h, k->stream);
}

static enum dt_status post_all_gather(struct dt_comm *c, void *buf, const size_t *bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct call k = {.what = "an all-gather", .c = c, .buf = buf, .counts = bytes, .q = q};
    bool alike;

    k.n = total(bytes, c->n, &alike);
    k.make = alike ? all_gather : broadcast_each;
    return post(&k, err, out);
}

static size_t place(const size_t *bytes, int member)
{
    size_t at = 0;

    for (int m = 0; m < member; m++)
        at += bytes[m];
    return at;
}

/* What a member has for itself is copied; a group without messages is one of nothing. */
static void exchange_each(struct call *k)
{
    const struct dt_device *dev = dt_nccl_of(k->c->t)->dev;
    size_t from = 0, to = 0;
    int me = k->c->me;

    dev->copy(k->q, k->buf + place(k->counts, me), k->send + place(k->send_bytes, me),
              k->send_bytes[me], DT_COPY_ON_DEVICE);
    if (!k->h)
        return;
    also(k, k->f->GroupStart());
    for (int m = 0; m < k->c->n; from += k->send_bytes[m], to += k->counts[m], m++) {
        if (m == me)
            continue;
        if (k->send_bytes[m] > 0 && well(k))
            also(k, k->f->Send(k->send + from, k->send_bytes[m], DT_NCCL_INT8, m, k->h, k->stream));
        if (k->counts[m] > 0 && well(k))
            also(k, k->f->Recv(k->buf + to, k->counts[m], DT_NCCL_INT8, m, k->h, k->stream));
    }
    also(k, k->f->GroupEnd());
}

static enum dt_status post_all_to_all(struct dt_comm *c, const void *send, const size_t *send_bytes,
                                      void *recv, const size_t *recv_bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct call k = {.what = "an all-to-all",
                     .make = exchange_each,
                     .c = c,
                     .send = send,
                     .send_bytes = send_bytes,
                     .buf = recv,
                     .counts = recv_bytes,
                     .n = 1,
                     .q = q};

    if (send_bytes[c->me] != recv_bytes[c->me])
        return dt_error_set(err, DT_ERR_INTERNAL, "a member sends itself %zu bytes and expects %zu",
                            send_bytes[c->me], recv_bytes[c->me]);
    if (!c->own) /* alone */
        exchange_each(&k);
    return post(&k, err, out);
}

void dt_nccl_collectives(struct dt_transport *t)
{
    t->post_broadcast = post_broadcast;
    t->post_all_reduce = post_all_reduce;
    t->post_reduce_scatter = post_reduce_scatter;
    t->post_all_gather = post_all_gather;
    t->post_all_to_all = post_all_to_all;
}
