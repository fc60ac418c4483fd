/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The memory of a device over a transport of host memory.
 *
 *   post     an event on the caller's queue: `ready`
 *   send     ready? -- copy --> page-locked memory -- inner --> over
 *   receive  inner --> page-locked memory -- copy, after ready --> over
 *
 * Collectives may be put on the caller's queue instead (transport_staged_post.c).
 *
 * Nobody waits: whoever tests a request asks its events, and takes all requests that are not yet with
 * `inner` as far as they go, since another rank may wait for any of them.  They are given to `inner` in
 * the order of their posts, as far as it matters: per comm, and per peer, tag and direction. */
#include "comm/transport_staged.h"

#include "base/mem.h"

#include <assert.h>

static struct dt_transport_staged_request *request_of(struct dt_req *r)
{
    return (struct dt_transport_staged_request *)(void *)r;
}

/* ---- requests ---- */

/* The one with the smallest room that is large enough, else one that has none yet.  A smaller room is not exchanged for
 * a larger one: freeing it may wait for the device, which may wait for other ranks.  It serves smaller messages. */
static struct dt_transport_staged_request *take_free(struct dt_transport_staged *s, size_t bytes)
{
    struct dt_transport_staged_request **best = NULL, *r;

    pthread_mutex_lock(&s->lock);
    for (struct dt_transport_staged_request **at = &s->free; *at; at = &(*at)->next) {
        bool fits = (*at)->host_cap >= bytes, had = best && (*best)->host_cap >= bytes;

        if ((fits && (!had || (*at)->host_cap < (*best)->host_cap)) ||
            (!best && (*at)->host_cap == 0))
            best = at;
    }
    r = best ? *best : NULL;
    if (r)
        *best = r->next;
    pthread_mutex_unlock(&s->lock);
    return r;
}

void dt_transport_staged_put_free(struct dt_transport_staged *s,
                                  struct dt_transport_staged_request *r)
{
    r->inner = NULL;
    pthread_mutex_lock(&s->lock);
    r->next = s->free;
    s->free = r;
    pthread_mutex_unlock(&s->lock);
}

static void request_free(struct dt_transport_staged *s, struct dt_transport_staged_request *r)
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

static enum dt_status request_make(struct dt_transport_staged *s, struct dt_error *err,
                                   struct dt_transport_staged_request **out)
{
    struct dt_transport_staged_request *r = dt_calloc(1, sizeof(*r));
    enum dt_status st;

    if (!r)
        return dt_error_nomem(err, "a request of the transport");
    r->staged = s;
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

/* Room in the host's memory, for half as much again: allocating it may stop the device. */
static enum dt_status host_room(struct dt_transport_staged *s,
                                struct dt_transport_staged_request *r, size_t bytes,
                                struct dt_error *err)
{
    void *p;

    if (s->direct || bytes <= r->host_cap)
        return DT_OK;
    assert(!r->host); /* take_free() */
    bytes += bytes / 2;
    DT_TRY(dt_transport_alloc(s->dev, true, bytes, err, &p));
    r->host = p;
    r->host_cap = bytes;
    return DT_OK;
}

enum dt_status dt_transport_staged_new(struct dt_transport_staged *s,
                                       enum dt_transport_staged_kind kind, size_t bytes,
                                       bool on_queue, struct dt_error *err,
                                       struct dt_transport_staged_request **out)
{
    struct dt_transport_staged_request *r = take_free(s, on_queue ? 0 : bytes);
    enum dt_status st;

    if (!r)
        DT_TRY(request_make(s, err, &r));
    st = host_room(s, r, on_queue ? 0 : bytes, err);
    if (st != DT_OK) {
        dt_transport_staged_put_free(s, r);
        return st;
    }
    r->next = NULL;
    r->kind = kind;
    r->state = POSTED;
    r->failed = DT_OK;
    r->comm = NULL;
    r->stand = r->host;
    r->bytes = bytes;
    r->recv_at = 0;
    r->out = (struct dt_transport_staged_range){0};
    r->n_in = 0;
    *out = r;
    return DT_OK;
}

/* ---- to the transport below ---- */

enum dt_status dt_transport_staged_post_inner(struct dt_transport_staged *s,
                                              struct dt_transport_staged_request *r,
                                              struct dt_error *err)
{
    struct dt_transport *t = s->inner;
    struct dt_comm *c = r->comm ? r->comm->inner : NULL;
    char *buf = s->direct ? r->buf : r->stand + r->recv_at;
    const char *send = s->direct ? r->send : r->stand;

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
static bool follows(const struct dt_transport_staged_request *a,
                    const struct dt_transport_staged_request *b)
{
    if (a->comm || b->comm)
        return a->comm == b->comm;
    return a->kind == b->kind && a->peer == b->peer && a->tag == b->tag;
}

static bool may_post(const struct dt_transport_staged *s,
                     const struct dt_transport_staged_request *r)
{
    const struct dt_transport_staged_request *a = s->waiting;

    while (a != r && !follows(a, r))
        a = a->next;
    return a == r;
}

static enum dt_status queue_failed(struct dt_transport_staged *s, struct dt_error *err)
{
    return s->dev->queue_state(s->q) == DT_OK ? DT_OK : s->dev->queue_sync(s->q, err);
}

/* As far as it goes now, towards UNDER_WAY.  Locked. */
static void advance(struct dt_transport_staged *s, struct dt_transport_staged_request *r)
{
    const struct dt_device *d = s->dev;
    bool copies = !s->direct && r->out.bytes > 0;

    if (r->state == POSTED && (s->direct || copies) && !d->event_done(r->ready))
        return;
    if (r->state == POSTED && copies) {
        d->copy(s->q, r->stand + r->out.at, r->out.device, r->out.bytes, DT_COPY_TO_HOST);
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
            r->failed = dt_transport_staged_post_inner(s, r, &r->error);
        r->state = UNDER_WAY;
    }
}

static void advance_all(struct dt_transport_staged *s)
{
    if (atomic_load_explicit(&s->n_waiting, memory_order_acquire) == 0)
        return;
    pthread_mutex_lock(&s->lock);
    for (struct dt_transport_staged_request **at = &s->waiting; *at;) {
        struct dt_transport_staged_request *r = *at;

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

enum dt_status dt_transport_staged_post(struct dt_transport_staged *s,
                                        struct dt_transport_staged_request *r,
                                        struct dt_device_queue *q, struct dt_error *err,
                                        struct dt_req **out)
{
    struct dt_transport_staged_request **end;
    enum dt_status st = s->dev->queue_state(q);

    if (st != DT_OK) {
        st = s->dev->queue_sync(q, err);
        dt_transport_staged_put_free(s, r);
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
        dt_transport_staged_put_free(s, r);
        return st;
    }
    *out = (struct dt_req *)(void *)r;
    return DT_OK;
}

/* ---- progress ---- */

static enum dt_transport_staged_state state_of(struct dt_transport_staged *s,
                                               const struct dt_transport_staged_request *r)
{
    enum dt_transport_staged_state state;

    pthread_mutex_lock(&s->lock);
    state = r->state;
    pthread_mutex_unlock(&s->lock);
    return state;
}

/* What came lies in the host's memory: onto the device, where nobody reads any more. */
static void copy_in(struct dt_transport_staged *s, struct dt_transport_staged_request *r)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < r->n_in; i++)
        s->dev->copy(s->q, r->in[i].device, r->stand + r->in[i].at, r->in[i].bytes,
                     DT_COPY_TO_DEVICE);
    s->dev->event_record(s->q, r->copied);
    r->state = COPYING_IN;
    pthread_mutex_unlock(&s->lock);
}

static enum dt_status come_in(struct dt_transport_staged *s, struct dt_transport_staged_request *r,
                              bool *over, struct dt_error *err)
{
    bool came = r->state == ARRIVED;

    if (!came)
        DT_TRY(s->inner->test(s->inner, r->inner, &came, err));
    if (!came || s->direct || r->n_in == 0) {
        *over = came;
        return DT_OK;
    }
    r->state = ARRIVED;
    /* The queue of copies does not wait: what others need may come behind it, and who reads there may wait for others. */
    if (s->dev->event_done(r->ready))
        copy_in(s, r);
    return DT_OK;
}

static enum dt_status progress(struct dt_transport_staged *s, struct dt_transport_staged_request *r,
                               bool *over, struct dt_error *err)
{
    if (r->failed != DT_OK) {
        if (err)
            *err = r->error;
        return r->failed;
    }
    if (r->state < COPYING_IN)
        DT_TRY(come_in(s, r, over, err));
    if (r->state < COPYING_IN)
        return DT_OK;
    *over = s->dev->event_done(r->copied);
    return *over ? queue_failed(s, err) : DT_OK;
}

static enum dt_status test(struct dt_transport *t, struct dt_req *req, bool *done,
                           struct dt_error *err)
{
    struct dt_transport_staged *s = dt_transport_staged_of(t);
    struct dt_transport_staged_request *r = request_of(req);
    enum dt_status st = DT_OK;

    *done = false;
    advance_all(s);
    if (state_of(s, r) >= UNDER_WAY)
        st = progress(s, r, done, err);
    if (st != DT_OK)
        *done = false;
    if (st != DT_OK || *done)
        dt_transport_staged_put_free(s, r);
    return st;
}

/* As long as the copies may take at 1 GB/s, too. */
static uint64_t eager_ns(const struct dt_transport *t, const struct dt_req *req)
{
    const struct dt_transport_staged_request *r =
        (const struct dt_transport_staged_request *)(const void *)req;

    (void)t;
    return 100000 + r->bytes;
}

/* ---- the table ---- */

static void comm_free(struct dt_comm *c)
{
    if (!c)
        return;
    dt_transport_staged_room_free(dt_transport_staged_of(c->t),
                                  (struct dt_transport_staged_comm *)(void *)c);
    dt_comm_free_over(c);
}

static enum dt_status comm_new(struct dt_transport *t, const int *ranks, int n,
                               struct dt_error *err, struct dt_comm **out)
{
    return dt_comm_new_over(t, dt_transport_staged_of(t)->inner,
                            sizeof(struct dt_transport_staged_comm), ranks, n, err, out);
}

/* What is still under way was given up, and `inner` may write into its host memory until it is closed
 * itself: that memory is left to the end of the process. */
static void close_staged(struct dt_transport *t)
{
    struct dt_transport_staged *s;

    if (!t)
        return;
    s = dt_transport_staged_of(t);
    if (s->q)
        s->dev->queue_free(s->q);
    for (struct dt_transport_staged_request *r = s->all, *next; r; r = next) {
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
    dt_transport_staged_of(t)->inner->abort(dt_transport_staged_of(t)->inner, exit_status);
}

static void tell_waiting(void *ctx, bool waits)
{
    struct dt_transport *inner = ctx;

    if (inner->waiting)
        inner->waiting(inner->waiting_ctx, waits);
}

static enum dt_status connect_inner(struct dt_transport *t, const struct dt_transport_edge *edges,
                                    int n, struct dt_error *err)
{
    return dt_transport_staged_of(t)->inner->connect(dt_transport_staged_of(t)->inner, edges, n,
                                                     err);
}

static void give_up(struct dt_transport *t)
{
    dt_transport_staged_stop(dt_transport_staged_of(t));
    dt_transport_staged_of(t)->inner->give_up(dt_transport_staged_of(t)->inner);
}

static void fill_table(struct dt_transport_staged *s)
{
    struct dt_transport *t = &s->t;

    *t = *s->inner; /* who is where, and the limit */
    t->memory = DT_TRANSPORT_DEVICE;
    t->on_queue = false;
    t->collectives_on_queue = !s->direct;
    t->impl = s;
    t->close = close_staged;
    t->abort = abort_inner;
    t->give_up = give_up;
    t->state = dt_transport_staged_state;
    t->comm_new = comm_new;
    t->comm_free = comm_free;
    dt_transport_staged_fill_posts(t);
    t->connect = connect_inner;
    t->test = test;
    t->eager_ns = eager_ns;
    t->waiting = tell_waiting;
    t->waiting_ctx = s->inner;
}

enum dt_status dt_transport_open_staged(struct dt_transport *inner, const struct dt_device *device,
                                        struct dt_error *err, struct dt_transport **out)
{
    struct dt_transport_staged *s;
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
    atomic_init(&s->n_waiting, 0);
    atomic_init(&s->stop, false);
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
