/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The memory of a device over a transport of host memory.
 *
 *   post     an event on the caller's queue: `ready`
 *   send     ready? -- copy --> page-locked memory -- inner --> over
 *   receive  inner --> page-locked memory -- copy, after ready --> over
 *
 * Nobody waits: whoever tests a request asks its events, and takes all requests that are not yet with
 * `inner` as far as they go, since another rank may wait for any of them.  They are given to `inner` in
 * the order of their posts, as far as it matters: per comm, and per peer, tag and direction. */
#include "comm/transport_impl.h"

#include "base/mem.h"

#include <string.h>

enum { ALIGN = 64 };
enum kind { SEND, RECV, BROADCAST, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL };
enum state { POSTED, COPYING_OUT, TO_POST, UNDER_WAY, COPYING_IN };

struct range { /* of the caller's buffer, and where it stands in the host's */
    char *device;
    size_t at, bytes;
};

/* What the table's struct dt_req is here. */
struct request {
    struct request *next; /* waiting, or free */
    struct request *all;  /* every one there is */
    enum kind kind;
    enum state state;
    enum dt_status failed;
    struct dt_error error;
    struct dt_req *inner;
    struct dt_device_event *ready, *copied;
    /* what was asked for */
    int peer, tag;
    struct dt_comm *comm;
    enum dt_reduce_type type;
    char *buf;
    const char *send;
    size_t n; /* bytes, or elements of an all-reduce */
    size_t *counts, *send_counts;
    /* by way of the host */
    char *host;
    size_t bytes, recv_at; /* in `host`; where an all-to-all receives */
    struct range out, in[2];
    int n_in;
    size_t host_cap, counts_cap, send_counts_cap;
};

struct staged {
    struct dt_transport t, *inner;
    const struct dt_device *dev;
    bool direct; /* no copies */
    struct dt_device_queue *q;
    pthread_mutex_t lock; /* of q, the lists, and requests on the list of those that wait */
    struct request *waiting, *free, *all;
    atomic_int n_waiting;
};

static struct staged *staged_of(const struct dt_transport *t)
{
    return t->impl;
}
static struct request *request_of(struct dt_req *r)
{
    return (struct request *)(void *)r;
}

/* ---- requests ---- */

/* The smallest that is large enough, else the largest. */
static struct request *take_free(struct staged *s, size_t bytes)
{
    struct request **best = NULL, *r;

    pthread_mutex_lock(&s->lock);
    for (struct request **at = &s->free; *at; at = &(*at)->next) {
        bool fits = (*at)->host_cap >= bytes, had = best && (*best)->host_cap >= bytes;

        if (!best || (fits && (!had || (*at)->host_cap < (*best)->host_cap)) ||
            (!had && (*at)->host_cap > (*best)->host_cap))
            best = at;
    }
    r = best ? *best : NULL;
    if (r)
        *best = r->next;
    pthread_mutex_unlock(&s->lock);
    return r;
}

static void put_free(struct staged *s, struct request *r)
{
    r->inner = NULL;
    pthread_mutex_lock(&s->lock);
    r->next = s->free;
    s->free = r;
    pthread_mutex_unlock(&s->lock);
}

static void request_free(struct staged *s, struct request *r)
{
    if (r->ready)
        s->dev->event_free(r->ready);
    if (r->copied)
        s->dev->event_free(r->copied);
    s->dev->host_free(s->dev, r->host);
    dt_free(r->counts);
    dt_free(r->send_counts);
    dt_free(r);
}

static enum dt_status request_make(struct staged *s, struct dt_error *err, struct request **out)
{
    struct request *r = dt_calloc(1, sizeof(*r));
    enum dt_status st;

    if (!r)
        return dt_error_nomem(err, "a request of the transport");
    st = s->dev->event_new(s->dev, err, &r->ready);
    if (st == DT_OK)
        st = s->dev->event_new(s->dev, err, &r->copied);
    if (st != DT_OK) {
        request_free(s, r);
        return st;
    }
    pthread_mutex_lock(&s->lock);
    r->all = s->all;
    s->all = r;
    pthread_mutex_unlock(&s->lock);
    *out = r;
    return DT_OK;
}

/* Room in the host's memory; it grows by half as much again, as allocating it may stop the device. */
static enum dt_status host_room(struct staged *s, struct request *r, size_t bytes,
                                struct dt_error *err)
{
    void *p;

    if (s->direct || bytes <= r->host_cap)
        return DT_OK;
    bytes += bytes / 2;
    s->dev->host_free(s->dev, r->host);
    r->host = NULL;
    r->host_cap = 0;
    DT_TRY(dt_transport_alloc(s->dev, true, bytes, err, &p));
    r->host = p;
    r->host_cap = bytes;
    return DT_OK;
}

static enum dt_status request_new(struct staged *s, enum kind kind, size_t bytes,
                                  struct dt_error *err, struct request **out)
{
    struct request *r = take_free(s, bytes);
    enum dt_status st;

    if (!r)
        DT_TRY(request_make(s, err, &r));
    st = host_room(s, r, bytes, err);
    if (st != DT_OK) {
        put_free(s, r);
        return st;
    }
    r->next = NULL;
    r->kind = kind;
    r->state = POSTED;
    r->failed = DT_OK;
    r->comm = NULL;
    r->bytes = bytes;
    r->recv_at = 0;
    r->out = (struct range){0};
    r->n_in = 0;
    *out = r;
    return DT_OK;
}

/* Bytes [at, at + bytes) of the buffer come back, to the same place. */
static void comes_back(struct request *r, size_t at, size_t bytes)
{
    if (bytes > 0)
        r->in[r->n_in++] = (struct range){r->buf + at, r->recv_at + at, bytes};
}

static void goes_out(struct request *r, const char *from, size_t at, size_t bytes)
{
    r->out = (struct range){(char *)(uintptr_t)from + at, at, bytes}; /* only read */
}

/* ---- to the transport below ---- */

static enum dt_status post_inner(struct staged *s, struct request *r, struct dt_error *err)
{
    struct dt_transport *t = s->inner;
    struct dt_comm *c = r->comm ? r->comm->inner : NULL;
    char *buf = s->direct ? r->buf : r->host + r->recv_at;
    const char *send = s->direct ? r->send : r->host;

    switch (r->kind) {
    case SEND:
        return t->post_send(t, r->peer, r->tag, buf, r->n, NULL, err, &r->inner);
    case RECV:
        return t->post_recv(t, r->peer, r->tag, buf, r->n, NULL, err, &r->inner);
    case BROADCAST:
        return t->post_broadcast(c, r->peer, buf, r->n, NULL, err, &r->inner);
    case ALL_REDUCE:
        return t->post_all_reduce(c, r->type, buf, r->n, NULL, err, &r->inner);
    case REDUCE_SCATTER:
        return t->post_reduce_scatter(c, r->type, buf, r->counts, NULL, err, &r->inner);
    case ALL_GATHER:
        return t->post_all_gather(c, buf, r->counts, NULL, err, &r->inner);
    case ALL_TO_ALL:
        break;
    }
    return t->post_all_to_all(c, send, r->send_counts, buf, r->counts, NULL, err, &r->inner);
}

/* Must `b` come to the transport below after `a`? */
static bool follows(const struct request *a, const struct request *b)
{
    if (a->comm || b->comm)
        return a->comm == b->comm;
    return a->kind == b->kind && a->peer == b->peer && a->tag == b->tag;
}

static bool may_post(const struct staged *s, const struct request *r)
{
    const struct request *a = s->waiting;

    while (a != r && !follows(a, r))
        a = a->next;
    return a == r;
}

static enum dt_status queue_failed(struct staged *s, struct dt_error *err)
{
    return s->dev->queue_state(s->q) == DT_OK ? DT_OK : s->dev->queue_sync(s->q, err);
}

/* As far as it goes now, towards UNDER_WAY.  Locked. */
static void advance(struct staged *s, struct request *r)
{
    const struct dt_device *d = s->dev;
    bool copies = !s->direct && r->out.bytes > 0;

    if (r->state == POSTED && (s->direct || copies) && !d->event_done(r->ready))
        return;
    if (r->state == POSTED && copies) {
        d->copy(s->q, r->host + r->out.at, r->out.device, r->out.bytes, DT_COPY_TO_HOST);
        d->event_record(s->q, r->copied);
    }
    if (r->state == POSTED)
        r->state = copies ? COPYING_OUT : TO_POST;
    if (r->state == COPYING_OUT && d->event_done(r->copied)) {
        r->failed = queue_failed(s, &r->error);
        r->state = TO_POST;
    }
    if (r->state == TO_POST && may_post(s, r)) {
        if (r->failed == DT_OK)
            r->failed = post_inner(s, r, &r->error);
        r->state = UNDER_WAY;
    }
}

static void advance_all(struct staged *s)
{
    if (atomic_load_explicit(&s->n_waiting, memory_order_acquire) == 0)
        return;
    pthread_mutex_lock(&s->lock);
    for (struct request **at = &s->waiting; *at;) {
        struct request *r = *at;

        advance(s, r);
        if (r->state == UNDER_WAY) {
            *at = r->next;
            atomic_fetch_sub_explicit(&s->n_waiting, 1, memory_order_release);
        } else {
            at = &r->next;
        }
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- posting ---- */

static enum dt_status post(struct staged *s, struct request *r, struct dt_device_queue *q,
                           struct dt_error *err, struct dt_req **out)
{
    struct request **end;
    enum dt_status st = s->dev->queue_state(q);

    if (st != DT_OK) {
        st = s->dev->queue_sync(q, err);
        put_free(s, r);
        return st;
    }
    s->dev->event_record(q, r->ready);
    pthread_mutex_lock(&s->lock);
    for (end = &s->waiting; *end; end = &(*end)->next)
        ;
    *end = r;
    advance(s, r);
    if (r->state == UNDER_WAY)
        *end = NULL;
    else
        atomic_fetch_add_explicit(&s->n_waiting, 1, memory_order_release);
    pthread_mutex_unlock(&s->lock);
    if (r->state == UNDER_WAY && r->failed != DT_OK) {
        st = r->failed;
        if (err)
            *err = r->error;
        put_free(s, r);
        return st;
    }
    *out = (struct dt_req *)(void *)r;
    return DT_OK;
}

static enum dt_status post_send(struct dt_transport *t, int to, int tag, const void *buf,
                                size_t bytes, struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out)
{
    struct request *r;

    DT_TRY(dt_req_check_queue(t, q, err));
    DT_TRY(request_new(staged_of(t), SEND, bytes, err, &r));
    r->peer = to;
    r->tag = tag;
    r->n = bytes;
    r->buf = (char *)(uintptr_t)buf; /* only read */
    goes_out(r, buf, 0, bytes);
    return post(staged_of(t), r, q, err, out);
}

static enum dt_status post_recv(struct dt_transport *t, int from, int tag, void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out)
{
    struct request *r;

    DT_TRY(dt_req_check_queue(t, q, err));
    DT_TRY(request_new(staged_of(t), RECV, bytes, err, &r));
    r->peer = from;
    r->tag = tag;
    r->n = bytes;
    r->buf = buf;
    comes_back(r, 0, bytes);
    return post(staged_of(t), r, q, err, out);
}

static enum dt_status coll_new(struct dt_comm *c, enum kind kind, void *buf, size_t bytes,
                               struct dt_device_queue *q, struct dt_error *err,
                               struct request **out)
{
    DT_TRY(dt_req_check_queue(c->t, q, err));
    DT_TRY(request_new(staged_of(c->t), kind, bytes, err, out));
    (*out)->comm = c;
    (*out)->buf = buf;
    return DT_OK;
}

/* Counts of all members stay with the request. */
static enum dt_status keep(struct dt_comm *c, struct request *r, const size_t *counts,
                           size_t **kept, size_t *cap, struct dt_error *err)
{
    if (dt_grow((void **)kept, cap, (size_t)c->n, sizeof(**kept)) != 0) {
        put_free(staged_of(c->t), r);
        return dt_error_nomem(err, "the pieces of a collective");
    }
    memcpy(*kept, counts, (size_t)c->n * sizeof(**kept));
    return DT_OK;
}

static size_t sum(const size_t *counts, int n)
{
    size_t all = 0;

    for (int k = 0; k < n; k++)
        all += counts[k];
    return all;
}

static enum dt_status post_broadcast(struct dt_comm *c, int root, void *buf, size_t bytes,
                                     struct dt_device_queue *q, struct dt_error *err,
                                     struct dt_req **out)
{
    struct request *r;

    DT_TRY(coll_new(c, BROADCAST, buf, bytes, q, err, &r));
    r->peer = root;
    r->n = bytes;
    if (root == c->me)
        goes_out(r, buf, 0, bytes);
    else
        comes_back(r, 0, bytes);
    return post(staged_of(c->t), r, q, err, out);
}

static enum dt_status post_all_reduce(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                      size_t n, struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    size_t e = dt_reduce_bytes(type);
    struct request *r;

    if (n > SIZE_MAX / 2 / e)
        return dt_error_set(err, DT_ERR_INTERNAL, "all-reduce of %zu elements", n);
    DT_TRY(coll_new(c, ALL_REDUCE, buf, n * e, q, err, &r));
    r->type = type;
    r->n = n;
    goes_out(r, buf, 0, n * e);
    comes_back(r, 0, n * e);
    return post(staged_of(c->t), r, q, err, out);
}

static enum dt_status post_reduce_scatter(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                          const size_t *counts, struct dt_device_queue *q,
                                          struct dt_error *err, struct dt_req **out)
{
    size_t e = dt_reduce_bytes(type), all = sum(counts, c->n) * e;
    struct request *r;

    DT_TRY(coll_new(c, REDUCE_SCATTER, buf, all, q, err, &r));
    DT_TRY(keep(c, r, counts, &r->counts, &r->counts_cap, err));
    r->type = type;
    goes_out(r, buf, 0, all);
    comes_back(r, sum(counts, c->me) * e, counts[c->me] * e);
    return post(staged_of(c->t), r, q, err, out);
}

static enum dt_status post_all_gather(struct dt_comm *c, void *buf, const size_t *bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    size_t all = sum(bytes, c->n), mine = sum(bytes, c->me), after = mine + bytes[c->me];
    struct request *r;

    DT_TRY(coll_new(c, ALL_GATHER, buf, all, q, err, &r));
    DT_TRY(keep(c, r, bytes, &r->counts, &r->counts_cap, err));
    goes_out(r, buf, mine, bytes[c->me]);
    comes_back(r, 0, mine);
    comes_back(r, after, all - after);
    return post(staged_of(c->t), r, q, err, out);
}

static enum dt_status post_all_to_all(struct dt_comm *c, const void *send, const size_t *send_bytes,
                                      void *recv, const size_t *recv_bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out)
{
    size_t sends = sum(send_bytes, c->n), receives = sum(recv_bytes, c->n);
    size_t at = (sends + ALIGN - 1) / ALIGN * ALIGN;
    struct request *r;

    DT_TRY(coll_new(c, ALL_TO_ALL, recv, at + receives, q, err, &r));
    DT_TRY(keep(c, r, recv_bytes, &r->counts, &r->counts_cap, err));
    DT_TRY(keep(c, r, send_bytes, &r->send_counts, &r->send_counts_cap, err));
    r->send = send;
    r->recv_at = at;
    goes_out(r, send, 0, sends);
    comes_back(r, 0, receives);
    return post(staged_of(c->t), r, q, err, out);
}

/* ---- progress ---- */

static enum state state_of(struct staged *s, const struct request *r)
{
    enum state state;

    pthread_mutex_lock(&s->lock);
    state = r->state;
    pthread_mutex_unlock(&s->lock);
    return state;
}

/* What came lies in the host's memory: onto the device, behind those that may still read there. */
static void copy_in(struct staged *s, struct request *r)
{
    pthread_mutex_lock(&s->lock);
    s->dev->event_wait(s->q, r->ready);
    for (int i = 0; i < r->n_in; i++)
        s->dev->copy(s->q, r->in[i].device, r->host + r->in[i].at, r->in[i].bytes,
                     DT_COPY_TO_DEVICE);
    s->dev->event_record(s->q, r->copied);
    r->state = COPYING_IN;
    pthread_mutex_unlock(&s->lock);
}

static enum dt_status progress(struct staged *s, struct request *r, bool *over,
                               struct dt_error *err)
{
    if (r->failed != DT_OK) {
        if (err)
            *err = r->error;
        return r->failed;
    }
    if (r->state == UNDER_WAY) {
        DT_TRY(s->inner->test(s->inner, r->inner, over, err));
        if (!*over || s->direct || r->n_in == 0)
            return DT_OK;
        *over = false;
        copy_in(s, r);
    }
    *over = s->dev->event_done(r->copied);
    return *over ? queue_failed(s, err) : DT_OK;
}

static enum dt_status test(struct dt_transport *t, struct dt_req *req, bool *done,
                           struct dt_error *err)
{
    struct staged *s = staged_of(t);
    struct request *r = request_of(req);
    enum dt_status st = DT_OK;

    *done = false;
    advance_all(s);
    if (state_of(s, r) >= UNDER_WAY)
        st = progress(s, r, done, err);
    if (st != DT_OK)
        *done = false;
    if (st != DT_OK || *done)
        put_free(s, r);
    return st;
}

/* As long as the copies may take at 1 GB/s, too. */
static uint64_t eager_ns(const struct dt_transport *t, const struct dt_req *req)
{
    const struct request *r = (const struct request *)(const void *)req;

    (void)t;
    return 100000 + r->bytes;
}

/* ---- the table ---- */

static void comm_free(struct dt_comm *c)
{
    if (!c)
        return;
    staged_of(c->t)->inner->comm_free(c->inner);
    dt_free(c);
}

static enum dt_status comm_new(struct dt_transport *t, const int *ranks, int n,
                               struct dt_error *err, struct dt_comm **out)
{
    struct dt_comm *c = dt_calloc(1, sizeof(*c));
    enum dt_status st;

    if (!c)
        return dt_error_nomem(err, "a group of ranks");
    st = staged_of(t)->inner->comm_new(staged_of(t)->inner, ranks, n, err, &c->inner);
    if (st != DT_OK) {
        dt_free(c);
        return st;
    }
    c->t = t;
    c->n = n;
    c->me = c->inner->me;
    c->ranks = c->inner->ranks;
    *out = c;
    return DT_OK;
}

/* What is still under way was given up, and `inner` may write into its host memory until it is closed
 * itself: that memory is left to the end of the process. */
static void close_staged(struct dt_transport *t)
{
    struct staged *s;

    if (!t)
        return;
    s = staged_of(t);
    if (s->q)
        s->dev->queue_free(s->q);
    for (struct request *r = s->all, *next; r; r = next) {
        next = r->all;
        if (r->inner)
            r->host = NULL;
        request_free(s, r);
    }
    pthread_mutex_destroy(&s->lock);
    dt_free(s);
}

static void abort_inner(struct dt_transport *t, int exit_status)
{
    staged_of(t)->inner->abort(staged_of(t)->inner, exit_status);
}

static void tell_waiting(void *ctx, bool waits)
{
    struct dt_transport *inner = ctx;

    if (inner->waiting)
        inner->waiting(inner->waiting_ctx, waits);
}

static void give_up_inner(struct dt_transport *t)
{
    staged_of(t)->inner->give_up(staged_of(t)->inner);
}

static void fill_table(struct staged *s)
{
    struct dt_transport *t = &s->t;

    *t = *s->inner; /* who is where, and the limit */
    t->memory = DT_TRANSPORT_DEVICE;
    t->on_queue = false;
    t->impl = s;
    t->close = close_staged;
    t->abort = abort_inner;
    t->give_up = give_up_inner;
    t->comm_new = comm_new;
    t->comm_free = comm_free;
    t->post_send = post_send;
    t->post_recv = post_recv;
    t->post_broadcast = post_broadcast;
    t->post_all_reduce = post_all_reduce;
    t->post_reduce_scatter = post_reduce_scatter;
    t->post_all_gather = post_all_gather;
    t->post_all_to_all = post_all_to_all;
    t->test = test;
    t->eager_ns = eager_ns;
    t->waiting = tell_waiting;
    t->waiting_ctx = s->inner;
}

enum dt_status dt_transport_open_staged(struct dt_transport *inner, const struct dt_device *device,
                                        struct dt_error *err, struct dt_transport **out)
{
    struct staged *s;
    enum dt_status st = DT_OK;

    if (inner->memory != DT_TRANSPORT_HOST)
        return dt_error_set(err, DT_ERR_INTERNAL, "transport %s does not carry host memory",
                            inner->name);
    s = dt_calloc(1, sizeof(*s));
    if (!s)
        return dt_error_nomem(err, "the transport of a device");
    if (pthread_mutex_init(&s->lock, NULL) != 0) {
        dt_free(s);
        return dt_error_nomem(err, "the lock of a transport");
    }
    s->inner = inner;
    s->dev = device;
    s->direct = device->info.host_memory;
    fill_table(s);
    if (!s->direct)
        st = device->queue_new(device, true, err, &s->q);
    if (st != DT_OK) {
        close_staged(&s->t);
        return st;
    }
    *out = &s->t;
    return DT_OK;
}
