/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Operations over NCCL.  Pieces of one size are a collective of NCCL's; others a group of broadcasts or reductions,
 * one per member, which it runs as one. */
#include "comm/transport_nccl_impl.h"

/* An operation while it is posted. */
struct call {
    struct dt_nccl_ranks *s;
    const struct dt_nccl *f;
    struct dt_nccl_link *l; /* NULL: a member alone, who has nothing to do */
    struct dt_nccl_comm *h;
    void *stream;
    struct dt_req *r;
    int result;
};

/* Locks the transport, unless it fails. */
static enum dt_status begin(struct dt_comm *c, struct dt_device_queue *q, struct dt_error *err,
                            struct call *k)
{
    struct dt_nccl_ranks *s = dt_nccl_of(c->t);
    enum dt_status st;

    DT_TRY(dt_req_begin(c->t, q, err));
    *k = (struct call){.s = s, .f = s->f, .l = c->own, .result = DT_NCCL_SUCCESS};
    DT_TRY(dt_req_new(c->t, q, err, &k->r));
    k->stream = s->dev->queue_stream(q);
    pthread_mutex_lock(&s->lock);
    st = dt_nccl_state(s, err);
    if (st != DT_OK) {
        pthread_mutex_unlock(&s->lock);
        dt_req_release(k->r);
        return st;
    }
    k->h = k->l ? k->l->h : NULL;
    return DT_OK;
}

static enum dt_status end(struct call *k, const char *what, struct dt_device_queue *q,
                          struct dt_error *err, struct dt_req **out)
{
    enum dt_status st = k->l ? dt_nccl_settle(k->s, k->l, what, k->result, q, err) : DT_OK;

    pthread_mutex_unlock(&k->s->lock);
    return dt_req_end_on_queue(k->r, st, err, out);
}

/* The first failure of a group's calls stays. */
static void also(struct call *k, int result)
{
    if (k->result == DT_NCCL_SUCCESS || k->result == DT_NCCL_IN_PROGRESS)
        k->result = result != DT_NCCL_SUCCESS ? result : k->result;
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

static enum dt_status post_broadcast(struct dt_comm *c, int root, void *buf, size_t bytes,
                                     struct dt_device_queue *q, struct dt_error *err,
                                     struct dt_req **out)
{
    struct call k;

    if (root < 0 || root >= c->n)
        return dt_error_set(err, DT_ERR_INTERNAL, "there is no member %d among %d", root, c->n);
    DT_TRY(begin(c, q, err, &k));
    if (k.l && bytes > 0)
        k.result = k.f->Broadcast(buf, buf, bytes, DT_NCCL_INT8, root, k.h, k.stream);
    return end(&k, "a broadcast", q, err, out);
}

static enum dt_status post_all_reduce(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                      size_t n, struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct call k;

    DT_TRY(begin(c, q, err, &k));
    if (k.l && n > 0)
        k.result = k.f->AllReduce(buf, buf, n, type_of(type), op_of(type), k.h, k.stream);
    return end(&k, "an all-reduce", q, err, out);
}

static void reduce_each(struct call *k, const struct dt_comm *c, enum dt_reduce_type type,
                        char *buf, const size_t *counts)
{
    size_t at = 0;

    also(k, k->f->GroupStart());
    for (int m = 0; m < c->n; at += counts[m++] * dt_reduce_bytes(type))
        if (counts[m] > 0)
            also(k, k->f->Reduce(buf + at, buf + at, counts[m], type_of(type), op_of(type), m, k->h,
                                 k->stream));
    also(k, k->f->GroupEnd());
}

static enum dt_status post_reduce_scatter(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                          const size_t *counts, struct dt_device_queue *q,
                                          struct dt_error *err, struct dt_req **out)
{
    size_t piece = counts[0] * dt_reduce_bytes(type), n;
    struct call k;
    bool alike;

    n = total(counts, c->n, &alike);
    DT_TRY(begin(c, q, err, &k));
    if (k.l && n > 0 && alike)
        k.result = k.f->ReduceScatter(buf, (char *)buf + piece * (size_t)c->me, counts[0],
                                      type_of(type), op_of(type), k.h, k.stream);
    else if (k.l && n > 0)
        reduce_each(&k, c, type, buf, counts);
    return end(&k, "a reduce-scatter", q, err, out);
}

static void broadcast_each(struct call *k, const struct dt_comm *c, char *buf, const size_t *bytes)
{
    size_t at = 0;

    also(k, k->f->GroupStart());
    for (int m = 0; m < c->n; at += bytes[m++])
        if (bytes[m] > 0)
            also(k,
                 k->f->Broadcast(buf + at, buf + at, bytes[m], DT_NCCL_INT8, m, k->h, k->stream));
    also(k, k->f->GroupEnd());
}

static enum dt_status post_all_gather(struct dt_comm *c, void *buf, const size_t *bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct call k;
    bool alike;
    size_t n = total(bytes, c->n, &alike);

    DT_TRY(begin(c, q, err, &k));
    if (k.l && n > 0 && alike)
        k.result = k.f->AllGather((char *)buf + bytes[0] * (size_t)c->me, buf, bytes[0],
                                  DT_NCCL_INT8, k.h, k.stream);
    else if (k.l && n > 0)
        broadcast_each(&k, c, buf, bytes);
    return end(&k, "an all-gather", q, err, out);
}

static void exchange_each(struct call *k, const struct dt_comm *c, const char *send,
                          const size_t *send_bytes, char *recv, const size_t *recv_bytes)
{
    size_t from = 0, to = 0;

    also(k, k->f->GroupStart());
    for (int m = 0; m < c->n; from += send_bytes[m], to += recv_bytes[m], m++) {
        if (m == c->me)
            continue;
        if (send_bytes[m] > 0)
            also(k, k->f->Send(send + from, send_bytes[m], DT_NCCL_INT8, m, k->h, k->stream));
        if (recv_bytes[m] > 0)
            also(k, k->f->Recv(recv + to, recv_bytes[m], DT_NCCL_INT8, m, k->h, k->stream));
    }
    also(k, k->f->GroupEnd());
}

static size_t place(const size_t *bytes, int member)
{
    size_t at = 0;

    for (int m = 0; m < member; m++)
        at += bytes[m];
    return at;
}

static enum dt_status post_all_to_all(struct dt_comm *c, const void *send, const size_t *send_bytes,
                                      void *recv, const size_t *recv_bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    struct call k;

    if (send_bytes[c->me] != recv_bytes[c->me])
        return dt_error_set(err, DT_ERR_INTERNAL, "a member sends itself %zu bytes and expects %zu",
                            send_bytes[c->me], recv_bytes[c->me]);
    DT_TRY(begin(c, q, err, &k));
    k.s->dev->copy(q, (char *)recv + place(recv_bytes, c->me),
                   (const char *)send + place(send_bytes, c->me), send_bytes[c->me],
                   DT_COPY_ON_DEVICE);
    if (k.l)
        exchange_each(&k, c, send, send_bytes, recv, recv_bytes);
    return end(&k, "an all-to-all", q, err, out);
}

void dt_nccl_collectives(struct dt_transport *t)
{
    t->post_broadcast = post_broadcast;
    t->post_all_reduce = post_all_reduce;
    t->post_reduce_scatter = post_reduce_scatter;
    t->post_all_gather = post_all_gather;
    t->post_all_to_all = post_all_to_all;
}
