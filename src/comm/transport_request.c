/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Requests of transports over host memory: where they come from, how they progress, how they end. */
#include "comm/cores.h"
#include "comm/transport_impl.h"

#include "base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static struct dt_transport_xfer *xfer_of(const struct dt_req *r, int strand, int i)
{
    size_t k = (size_t)strand * (size_t)r->max_xfers + (size_t)i;

    return (struct dt_transport_xfer *)(void *)(r->xfers +
                                                k * dt_transport_base(r->t)->wire->xfer_bytes);
}

/* ---- from the pool and back ---- */

/* The one that the queue has used last, as it comes to the new operation when it is past the old one: so operations of a
 * queue share their scratch memory however many are under way.  Otherwise one that no queue uses any more: whoever waited
 * for it here would wait for other operations. */
static struct dt_req *take_passed(struct dt_transport *t, const struct dt_device_queue *q)
{
    struct dt_transport_base *b = dt_transport_base(t);
    struct dt_req **best = NULL, *r = NULL;

    pthread_mutex_lock(&b->lock);
    for (struct dt_req **at = &b->free; *at; at = &(*at)->next) {
        if ((*at)->q == q) {
            best = at;
            break;
        }
        if (!best && b->wire->passed(t, (*at)->mark))
            best = at;
    }
    if (best) {
        r = *best;
        *best = r->next;
    }
    pthread_mutex_unlock(&b->lock);
    return r;
}

/* The one at hand, or one of the list. */
static struct dt_req *take_free(struct dt_transport *t, const struct dt_device_queue *q)
{
    struct dt_transport_base *b = dt_transport_base(t);
    struct dt_req *r;

    if (t->on_queue)
        return take_passed(t, q);
    r = atomic_exchange_explicit(&b->spare, NULL, memory_order_acquire);
    if (r)
        return r;
    pthread_mutex_lock(&b->lock);
    r = b->free;
    if (r)
        b->free = r->next;
    pthread_mutex_unlock(&b->lock);
    return r;
}

static void put_free(struct dt_transport_base *b, struct dt_req *r)
{
    if (!r->t->on_queue)
        r = atomic_exchange_explicit(&b->spare, r, memory_order_acq_rel);
    if (!r)
        return;
    pthread_mutex_lock(&b->lock);
    r->next = b->free;
    b->free = r;
    pthread_mutex_unlock(&b->lock);
}

enum dt_status dt_req_check_queue(const struct dt_transport *t, const struct dt_device_queue *q,
                                  struct dt_error *err)
{
    if ((t->memory == DT_TRANSPORT_DEVICE) == (q != NULL))
        return DT_OK;
    return dt_error_set(err, DT_ERR_INTERNAL, "a transport of %s memory was given %s queue",
                        q ? "host" : "device", q ? "a" : "no");
}

enum dt_status dt_req_begin(struct dt_transport *t, struct dt_device_queue *q, struct dt_error *err)
{
    const struct dt_transport_wire *w = dt_transport_base(t)->wire;

    DT_TRY(dt_req_check_queue(t, q, err));
    return w->follow ? w->follow(t, q, err) : DT_OK;
}

enum dt_status dt_req_new(struct dt_transport *t, struct dt_device_queue *q, struct dt_error *err,
                          struct dt_req **out)
{
    struct dt_transport_base *b = dt_transport_base(t);
    struct dt_req *r = take_free(t, q);

    if (!r) {
        r = dt_calloc(1, sizeof(*r));
        if (!r)
            return dt_error_nomem(err, "a request of the transport");
        atomic_flag_clear(&r->busy);
        r->t = t;
        pthread_mutex_lock(&b->lock);
        r->all = b->all;
        b->all = r;
        pthread_mutex_unlock(&b->lock);
    }
    r->next = r->prev = NULL;
    r->q = q;
    r->live = true;
    r->failed = DT_OK;
    r->bytes = 0;
    r->coll = NULL;
    r->comm = NULL;
    r->n_strands = 0;
    memset(r->strand, 0, sizeof(r->strand));
    *out = r;
    return DT_OK;
}

static void cancel_transfers(struct dt_req *r)
{
    for (int i = 0; i < r->n_strands; i++) {
        struct dt_coll_strand *s = &r->strand[i];

        for (int k = s->first; k < s->n; k++)
            dt_transport_base(r->t)->wire->cancel(r->t, xfer_of(r, i, k));
        s->first = s->n = 0;
    }
}

static void unlink_coll(struct dt_transport_base *b, struct dt_req *r)
{
    if (!r->coll)
        return;
    pthread_mutex_lock(&b->lock);
    if (r->prev || b->colls == r) {
        *(r->prev ? &r->prev->next : &b->colls) = r->next;
        if (r->next)
            r->next->prev = r->prev;
        atomic_fetch_sub_explicit(&b->n_colls, 1, memory_order_relaxed);
    }
    r->next = r->prev = NULL;
    pthread_mutex_unlock(&b->lock);
}

/* `busy` is held where it is a collective: nobody else looks at it once it is out of the list. */
void dt_req_release(struct dt_req *r)
{
    unlink_coll(dt_transport_base(r->t), r);
    cancel_transfers(r);
    r->live = false;
    atomic_flag_clear_explicit(&r->busy, memory_order_release);
    put_free(dt_transport_base(r->t), r);
}

static enum dt_status grow_scratch(struct dt_req *r, size_t bytes, struct dt_error *err)
{
    const struct dt_transport_wire *w = dt_transport_base(r->t)->wire;

    if (w->grow)
        return bytes > r->scratch_cap ? w->grow(r->t, &r->scratch, &r->scratch_cap, bytes, err)
                                      : DT_OK;
    if (dt_grow((void **)&r->scratch, &r->scratch_cap, bytes, 1) != 0)
        return dt_error_nomem(err, "the messages of a collective");
    return DT_OK;
}

enum dt_status dt_req_room(struct dt_req *r, int n_strands, int max_xfers, size_t scratch_strand,
                           struct dt_error *err)
{
    size_t xfers =
        (size_t)n_strands * (size_t)max_xfers * dt_transport_base(r->t)->wire->xfer_bytes;

    scratch_strand = (scratch_strand + 63) / 64 * 64;
    if (dt_grow((void **)&r->xfers, &r->xfers_cap, xfers, 1) != 0)
        return dt_error_nomem(err, "the messages of a collective");
    DT_TRY(grow_scratch(r, scratch_strand * (size_t)n_strands, err));
    r->n_strands = n_strands;
    r->max_xfers = max_xfers;
    r->scratch_strand = scratch_strand;
    return DT_OK;
}

/* ---- progress ---- */

static uint64_t coll_key(const struct dt_req *r, int member, int strand)
{
    uint64_t seq = r->seq % (UINT64_C(1) << DT_SEQ_BITS);

    return DT_KEY_COLL | ((r->comm->pair[member] << DT_SEQ_BITS | seq) << DT_STRAND_BITS) |
           (uint64_t)strand;
}

static struct dt_transport_xfer *xfer_next(struct dt_req *r, struct dt_coll_strand *s, int strand)
{
    struct dt_transport_xfer *x = xfer_of(r, strand, s->n);

    memset((void *)x, 0, dt_transport_base(r->t)->wire->xfer_bytes);
    return x;
}

/* Both ends know the sizes: nothing is sent for nothing. */
bool dt_coll_send(struct dt_req *r, struct dt_coll_strand *s, int strand, int member,
                  const void *buf, size_t bytes, struct dt_error *err)
{
    if (r->failed || bytes == 0)
        return !r->failed;
    r->failed =
        dt_transport_base(r->t)->wire->send(r->t, xfer_next(r, s, strand), r->comm->ranks[member],
                                            coll_key(r, member, strand), buf, bytes, r->q, err);
    s->n += !r->failed;
    return !r->failed;
}

bool dt_coll_recv(struct dt_req *r, struct dt_coll_strand *s, int strand, int member, void *buf,
                  size_t bytes, struct dt_error *err)
{
    if (r->failed || bytes == 0)
        return !r->failed;
    r->failed =
        dt_transport_base(r->t)->wire->recv(r->t, xfer_next(r, s, strand), r->comm->ranks[member],
                                            coll_key(r, member, strand), buf, bytes, r->q, err);
    s->n += !r->failed;
    return !r->failed;
}

/* As far as it goes now; `busy` is held. */
static void progress_strand(struct dt_req *r, int i)
{
    struct dt_coll_strand *s = &r->strand[i];

    while (!s->over && !r->failed) {
        while (s->first < s->n) {
            bool done = false;

            r->failed = dt_transport_base(r->t)->wire->progress(r->t, xfer_of(r, i, s->first), r->q,
                                                                &done, &r->error);
            s->first += done || r->failed;
            if (!done)
                return;
        }
        s->first = s->n = 0;
        if (s->round >= 0)
            r->coll->end(r, s, i);
        s->round++;
        s->over = !r->coll->begin(r, s, i, &r->error) && !r->failed;
    }
}

static bool progress(struct dt_req *r)
{
    bool over = true;

    for (int i = 0; i < r->n_strands; i++) {
        progress_strand(r, i);
        over = over && r->strand[i].over;
    }
    return over;
}

/* One of the other collectives under way, in turn. */
static void progress_another(struct dt_transport_base *b, const struct dt_req *but)
{
    struct dt_req *r, *last;

    if (atomic_load_explicit(&b->n_colls, memory_order_relaxed) < (but ? 2 : 1))
        return;
    pthread_mutex_lock(&b->lock);
    r = b->colls;
    if (r && r->next) { /* to the end of the list */
        for (last = r; last->next; last = last->next)
            ;
        b->colls = r->next;
        b->colls->prev = NULL;
        last->next = r;
        r->prev = last;
        r->next = NULL;
    }
    if (r && (r == but || atomic_flag_test_and_set_explicit(&r->busy, memory_order_acquire)))
        r = NULL;
    pthread_mutex_unlock(&b->lock);
    if (r) {
        if (!r->failed)
            progress(r);
        atomic_flag_clear_explicit(&r->busy, memory_order_release);
    }
}

/* One transfer: nobody but its owner makes it progress. */
static enum dt_status test_transfer(struct dt_transport *t, struct dt_req *r, bool *done,
                                    struct dt_error *err)
{
    struct dt_coll_strand *s = &r->strand[0];
    enum dt_status st = dt_transport_base(t)->wire->progress(t, xfer_of(r, 0, 0), r->q, done, err);

    if (st || *done) {
        s->first = s->n; /* nothing to cancel */
        dt_req_release(r);
    }
    return st;
}

static enum dt_status test_coll(struct dt_req *r, bool *done, struct dt_error *err)
{
    bool over;
    enum dt_status st;

    if (atomic_flag_test_and_set_explicit(&r->busy, memory_order_acquire))
        return DT_OK; /* somebody else is at it */
    over = !r->failed && progress(r);
    if (over && dt_transport_base(r->t)->wire->settle)
        r->failed = dt_transport_base(r->t)->wire->settle(r->t, &r->mark, &over, &r->error);
    st = r->failed;
    if (st && err)
        *err = r->error;
    if (st || over)
        dt_req_release(r);
    else
        atomic_flag_clear_explicit(&r->busy, memory_order_release);
    *done = !st && over;
    return st;
}

/* Of a request whose work is on a queue. */
static enum dt_status test_queue(struct dt_transport *t, struct dt_req *r, bool *done,
                                 struct dt_error *err)
{
    const struct dt_transport_wire *w = dt_transport_base(t)->wire;
    struct dt_device_queue *q = r->q;

    *done = w->passed(t, r->mark);
    if (!*done)
        return DT_OK;
    dt_req_release(r);
    return w->follow(t, q, err); /* what has failed meanwhile */
}

static enum dt_status test(struct dt_transport *t, struct dt_req *r, bool *done,
                           struct dt_error *err)
{
    const struct dt_req *but = r->coll ? r : NULL;
    enum dt_status st;

    *done = false;
    if (t->on_queue) {
        st = test_queue(t, r, done, err);
        *done = *done && st == DT_OK;
        return st;
    }
    st = r->coll ? test_coll(r, done, err) : test_transfer(t, r, done, err);
    if (st == DT_OK && !*done)
        progress_another(dt_transport_base(t), but);
    return st;
}

enum dt_status dt_req_end_on_queue(struct dt_req *r, enum dt_status st, struct dt_error *err,
                                   struct dt_req **out)
{
    if (st == DT_OK)
        st = dt_transport_base(r->t)->wire->mark(r->t, r->q, &r->mark, err);
    if (st != DT_OK || !out)
        dt_req_release(r);
    else
        *out = r;
    return st;
}

enum dt_status dt_req_post(struct dt_req *r, struct dt_error *err, struct dt_req **out)
{
    struct dt_transport_base *b = dt_transport_base(r->t);
    enum dt_status st;

    atomic_flag_test_and_set_explicit(&r->busy, memory_order_acquire);
    for (int i = 0; i < r->n_strands; i++)
        r->strand[i].round = -1;
    progress(r); /* begins the first rounds; on a queue, all of them */
    st = r->failed;
    if (st && err)
        *err = r->error;
    if (r->t->on_queue)
        return dt_req_end_on_queue(r, st, err, out);
    if (st) {
        dt_req_release(r);
        return st;
    }
    pthread_mutex_lock(&b->lock);
    r->prev = NULL;
    r->next = b->colls;
    if (b->colls)
        b->colls->prev = r;
    b->colls = r;
    atomic_fetch_add_explicit(&b->n_colls, 1, memory_order_relaxed);
    pthread_mutex_unlock(&b->lock);
    atomic_flag_clear_explicit(&r->busy, memory_order_release);
    *out = r;
    return DT_OK;
}

/* ---- between two ranks ---- */

static enum dt_status post(struct dt_transport *t, bool send, int peer, int tag, void *buf,
                           size_t bytes, struct dt_device_queue *q, struct dt_error *err,
                           struct dt_req **out)
{
    const struct dt_transport_wire *w = dt_transport_base(t)->wire;
    struct dt_req *r;
    struct dt_transport_xfer *x;
    enum dt_status st;
    bool done;

    if (peer < 0 || peer >= t->size)
        return dt_error_set(err, DT_ERR_INTERNAL, "there is no rank %d among %d", peer, t->size);
    if (tag < 0 || tag >= 1 << DT_TAG_BITS)
        return dt_error_set(err, DT_ERR_INTERNAL, "tag %d is not below 2^%d", tag, DT_TAG_BITS);
    DT_TRY(dt_req_begin(t, q, err));
    DT_TRY(dt_req_new(t, q, err, &r));
    st = dt_req_room(r, 1, 1, 0, err);
    if (st == DT_OK) {
        x = xfer_next(r, &r->strand[0], 0);
        r->bytes = bytes;
        st = send ? w->send(t, x, peer, (uint64_t)tag, buf, bytes, q, err)
                  : w->recv(t, x, peer, (uint64_t)tag, buf, bytes, q, err);
    }
    if (st == DT_OK && t->on_queue) {
        st = w->progress(t, x, q, &done, err);
        return dt_req_end_on_queue(r, st, err, out);
    }
    if (st) {
        dt_req_release(r);
        return st;
    }
    r->strand[0].n = 1;
    *out = r;
    return DT_OK;
}

static enum dt_status post_send(struct dt_transport *t, int to, int tag, const void *buf,
                                size_t bytes, struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out)
{
    return post(t, true, to, tag, (void *)(uintptr_t)buf, bytes, q, err, out);
}

static enum dt_status post_recv(struct dt_transport *t, int from, int tag, void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out)
{
    return post(t, false, from, tag, buf, bytes, q, err, out);
}

/* ---- comms ---- */

static void comm_free(struct dt_comm *c)
{
    if (!c)
        return;
    dt_free(c->ranks);
    dt_free(c->pair);
    dt_free(c);
}

static enum dt_status comm_fill(struct dt_transport *t, const int *ranks, int n,
                                struct dt_error *err, struct dt_comm *c)
{
    for (int k = 0; k < n; k++) {
        if (ranks[k] < 0 || ranks[k] >= t->size)
            return dt_error_set(err, DT_ERR_INTERNAL, "there is no rank %d among %d", ranks[k],
                                t->size);
        for (int i = 0; i < k; i++)
            if (ranks[i] == ranks[k])
                return dt_error_set(err, DT_ERR_INTERNAL, "rank %d is named twice", ranks[k]);
        c->ranks[k] = ranks[k];
        if (ranks[k] == t->rank)
            c->me = k;
    }
    if (c->me < 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "rank %d is not one of the %d ranks named",
                            t->rank, n);
    return DT_OK;
}

/* Any two members make the comms that they share in the same order, so that both count alike, and
 * the number tells the messages of this comm from those of the others: nothing is exchanged. */
static enum dt_status comm_number(struct dt_transport *t, struct dt_error *err, struct dt_comm *c)
{
    struct dt_transport_base *b = dt_transport_base(t);
    uint64_t limit = b->wire->key_max >> (DT_SEQ_BITS + DT_STRAND_BITS);
    enum dt_status st = DT_OK;

    pthread_mutex_lock(&b->lock);
    for (int k = 0; k < c->n && !st; k++)
        if (b->pairs[c->ranks[k]] >= limit)
            st = dt_error_set(err, DT_ERR_INTERNAL,
                              "more than %llu groups with rank %d: the transport has no tags left",
                              (unsigned long long)limit, c->ranks[k]);
    for (int k = 0; k < c->n && !st; k++)
        c->pair[k] = b->pairs[c->ranks[k]]++;
    pthread_mutex_unlock(&b->lock);
    return st;
}

static enum dt_status comm_new(struct dt_transport *t, const int *ranks, int n,
                               struct dt_error *err, struct dt_comm **out)
{
    struct dt_comm *c;
    enum dt_status st;

    if (n < 1)
        return dt_error_set(err, DT_ERR_INTERNAL, "a group of %d ranks", n);
    c = dt_calloc(1, sizeof(*c));
    if (c) {
        c->t = t;
        c->n = n;
        c->me = -1;
        c->ranks = dt_calloc((size_t)n, sizeof(*c->ranks));
        c->pair = dt_calloc((size_t)n, sizeof(*c->pair));
    }
    if (!c || !c->ranks || !c->pair) {
        comm_free(c);
        return dt_error_nomem(err, "a group of ranks");
    }
    st = comm_fill(t, ranks, n, err, c);
    if (st == DT_OK)
        st = comm_number(t, err, c);
    if (st) {
        comm_free(c);
        return st;
    }
    *out = c;
    return DT_OK;
}

/* ---- the table ---- */

/* Testing without pauses: as long as a wake-up takes (measured: a pause ends 50 to 100 us late),
 * and while the bytes may be moving at 1 GB/s. */
static uint64_t eager_ns(const struct dt_transport *t, const struct dt_req *r)
{
    (void)t;
    return 100000 + r->bytes;
}

enum dt_status dt_transport_alloc(const struct dt_device *dev, bool host, size_t bytes,
                                  struct dt_error *err, void **out)
{
    struct dt_device_memory_owner *before = dev->memory_for(dev, NULL);
    enum dt_status st = (host ? dev->host_alloc : dev->alloc)(dev, bytes, err, out);

    dev->memory_for(dev, before);
    return st;
}

struct left {
    struct left *next;
    void *p;
};

/* A list, so that leak checkers take nothing of it for lost. */
static _Atomic(struct left *) all_left;

void dt_transport_leave(void *p)
{
    struct left *l = p ? dt_malloc(sizeof(*l)) : NULL;

    if (!l)
        return;
    l->p = p;
    l->next = atomic_load(&all_left);
    while (!atomic_compare_exchange_weak(&all_left, &l->next, l))
        ;
}

static enum dt_status no_edges(struct dt_transport *t, const struct dt_transport_edge *edges, int n,
                               struct dt_error *err)
{
    (void)t;
    (void)edges;
    (void)n;
    (void)err;
    return DT_OK;
}

static void nothing_on_queues(struct dt_transport *t)
{
    (void)t;
}

static enum dt_status nothing_failed(struct dt_transport *t, struct dt_error *err)
{
    (void)t;
    (void)err;
    return DT_OK;
}

enum dt_status dt_transport_base_init(struct dt_transport *t, const struct dt_transport_wire *wire,
                                      struct dt_error *err)
{
    struct dt_transport_base *b = dt_transport_base(t);
    struct dt_cores cores;

    b->wire = wire;
    b->pairs = dt_calloc((size_t)t->size, sizeof(*b->pairs));
    if (!b->pairs)
        return dt_error_nomem(err, "the transport");
    if (pthread_mutex_init(&b->lock, NULL) != 0) {
        dt_free(b->pairs);
        b->pairs = NULL;
        return dt_error_nomem(err, "the lock of the transport");
    }
    t->abi = DT_TRANSPORT_ABI;
    t->give_up = t->give_up ? t->give_up : nothing_on_queues;
    t->state = t->state ? t->state : nothing_failed;
    t->comm_new = comm_new;
    t->comm_free = comm_free;
    t->connect = no_edges;
    t->post_send = post_send;
    t->post_recv = post_recv;
    t->post_broadcast = dt_coll_broadcast;
    t->post_all_reduce = dt_coll_all_reduce;
    t->post_reduce_scatter = dt_coll_reduce_scatter;
    t->post_all_gather = dt_coll_all_gather;
    t->post_all_to_all = dt_coll_all_to_all;
    t->test = test;
    t->eager_ns = eager_ns;
    t->cores = dt_cores_here(&cores);
    return dt_transport_seconds("DISTTRAIN_OP_TIMEOUT_S", 300, err, &t->limit_s);
}

void dt_transport_base_free(struct dt_transport *t)
{
    struct dt_transport_base *b = dt_transport_base(t);

    if (!b->pairs)
        return;
    for (struct dt_req *r = b->all, *next; r; r = next) {
        next = r->all;
        if (r->live)
            cancel_transfers(r);
        dt_free(r->at);
        dt_free(r->at_send);
        if (b->wire->free)
            b->wire->free(t, r->scratch);
        else
            dt_free(r->scratch);
        dt_free((void *)r->parts);
        dt_free(r->xfers);
        dt_free(r);
    }
    pthread_mutex_destroy(&b->lock);
    dt_free(b->pairs);
    b->pairs = NULL;
    b->all = NULL;
}
