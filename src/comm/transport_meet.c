/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Transfers between the queues of ranks that share a device.  Whoever posts first leaves an offer, and his queue
 * waits at its gate; whoever posts second puts the copy on his own queue.
 *
 *   first    ... record ready | wait for the gate ........ | ...
 *   second   ... | wait for ready | copy | raise the gate | ...
 *
 * The host waits for nothing.  Transfers that go together are posted together, and then waited for
 * (dt_transport_meet_wait): each is ready before its queue waits for any, so they cannot wait for one another. */
#include "comm/transport_meet.h"

#include "base/mem.h"
#include "comm/transport_impl.h"

#include <pthread.h>

struct offer {
    struct offer *next; /* that waits, or is free */
    struct offer *all;
    struct dt_transport_meet_side side;
    struct dt_device_event *ready; /* of the one who offers */
    struct dt_device_gate *gate;
    uint64_t number;              /* of the gate, when this offer has been taken */
    struct dt_device_event *over; /* the gate has been raised: the offer may be used again */
};

struct dt_transport_meet {
    const struct dt_device *dev;
    pthread_mutex_t lock;        /* of all below */
    struct offer *first, **last; /* that wait, in the order of their posts */
    struct offer *free, *all;
    struct dt_error *failed; /* [n] */
};

/* ---- offers ---- */

static void offer_free(struct dt_transport_meet *m, struct offer *o)
{
    m->dev->event_free(o->ready);
    m->dev->event_free(o->over);
    m->dev->gate_free(o->gate);
    dt_free(o);
}

static enum dt_status offer_new(struct dt_transport_meet *m, struct dt_error *err,
                                struct offer **out)
{
    struct offer *o = dt_calloc(1, sizeof(*o));
    enum dt_status st;

    if (!o)
        return dt_error_nomem(err, "a transfer between queues");
    st = m->dev->event_new(m->dev, err, &o->ready);
    if (st == DT_OK)
        st = m->dev->event_new(m->dev, err, &o->over);
    if (st == DT_OK)
        st = m->dev->gate_new(m->dev, err, &o->gate);
    if (st != DT_OK) {
        offer_free(m, o);
        return st;
    }
    o->all = m->all;
    m->all = o;
    *out = o;
    return DT_OK;
}

/* Locked.  One whose gate nobody will raise any more, or a new one. */
static enum dt_status offer_take(struct dt_transport_meet *m, struct dt_error *err,
                                 struct offer **out)
{
    struct offer **at = &m->free;

    while (*at && !m->dev->event_done((*at)->over))
        at = &(*at)->next;
    if (!*at)
        return offer_new(m, err, out);
    *out = *at;
    *at = (*at)->next;
    return DT_OK;
}

static void offer_put(struct dt_transport_meet *m, struct offer *o)
{
    o->next = m->free;
    m->free = o;
}

/* Locked. */
static void line_up(struct dt_transport_meet *m, struct offer *o)
{
    o->next = NULL;
    *m->last = o;
    m->last = &o->next;
}

/* Locked. */
static void take_out(struct dt_transport_meet *m, struct offer **at)
{
    struct offer *o = *at;

    *at = o->next;
    if (m->last == &o->next)
        m->last = at;
}

/* Locked: the first that fits is taken out; NULL when there is none. */
static struct offer *find(struct dt_transport_meet *m, const struct dt_transport_meet_side *s)
{
    for (struct offer **at = &m->first; *at; at = &(*at)->next) {
        struct offer *o = *at;

        if (o->side.send != s->send && o->side.from == s->from && o->side.to == s->to &&
            o->side.key == s->key) {
            take_out(m, at);
            return o;
        }
    }
    return NULL;
}

/* ---- posting ---- */

static void open_gate(struct dt_transport_meet *m, struct offer *o, struct dt_device_queue *q)
{
    m->dev->gate_raise(q, o->gate, o->number);
    m->dev->event_record(q, o->over);
}

/* Locked: `s` came second. */
static enum dt_status take(struct dt_transport_meet *m, const struct dt_transport_meet_side *s,
                           struct offer *o, struct dt_device_queue *q, struct dt_error *err)
{
    const struct dt_transport_meet_side *send = s->send ? s : &o->side,
                                        *recv = s->send ? &o->side : s;
    int other = s->send ? s->to : s->from;
    enum dt_status st = DT_OK;

    if (send->bytes != recv->bytes) {
        st = dt_transport_size_error(&m->failed[other], s->from, s->to, s->key, send->bytes,
                                     recv->bytes);
        if (err)
            *err = m->failed[other];
    } else if (send->bytes > 0) {
        m->dev->event_wait(q, o->ready);
        m->dev->copy(q, recv->buf, send->buf, send->bytes, DT_COPY_ON_DEVICE);
    }
    open_gate(m, o, q);
    offer_put(m, o);
    return st;
}

enum dt_status dt_transport_meet_post(struct dt_transport_meet *m,
                                      const struct dt_transport_meet_side *side,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_transport_meet_ticket *out)
{
    const struct dt_error *failed = &m->failed[side->send ? side->from : side->to];
    struct offer *o;
    enum dt_status st;

    *out = (struct dt_transport_meet_ticket){0};
    pthread_mutex_lock(&m->lock);
    st = failed->status;
    if (st != DT_OK && err)
        *err = *failed;
    o = st == DT_OK ? find(m, side) : NULL;
    if (o) {
        st = take(m, side, o, q, err);
    } else if (st == DT_OK) {
        st = offer_take(m, err, &o);
        if (st == DT_OK) {
            o->side = *side;
            m->dev->event_record(q, o->ready);
            line_up(m, o);
            *out = (struct dt_transport_meet_ticket){o->gate, ++o->number};
        }
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* ---- the end of it ---- */

void dt_transport_meet_wait(struct dt_transport_meet *m, const struct dt_transport_meet_ticket *t,
                            struct dt_device_queue *q)
{
    if (t->gate)
        m->dev->gate_wait(q, t->gate, t->number);
}

void dt_transport_meet_cancel(struct dt_transport_meet *m, const struct dt_transport_meet_ticket *t)
{
    struct offer **at;

    if (!t->gate)
        return;
    pthread_mutex_lock(&m->lock);
    for (at = &m->first; *at; at = &(*at)->next)
        if ((*at)->gate == t->gate && (*at)->number == t->number) {
            struct offer *o = *at;

            take_out(m, at);
            offer_put(m, o);
            break;
        }
    pthread_mutex_unlock(&m->lock);
}

void dt_transport_meet_give_up(struct dt_transport_meet *m, int rank, struct dt_device_queue *q)
{
    pthread_mutex_lock(&m->lock);
    for (struct offer **at = &m->first; *at;) {
        struct offer *o = *at;

        if ((o->side.send ? o->side.from : o->side.to) != rank) {
            at = &o->next;
            continue;
        }
        take_out(m, at);
        open_gate(m, o, q);
        offer_put(m, o);
    }
    if (m->failed[rank].status == DT_OK)
        dt_error_set(&m->failed[rank], DT_ERR_PEER, "rank %d has given up its transfers", rank);
    pthread_mutex_unlock(&m->lock);
}

enum dt_status dt_transport_meet_state(struct dt_transport_meet *m, int rank, struct dt_error *err)
{
    enum dt_status st;

    pthread_mutex_lock(&m->lock);
    st = m->failed[rank].status;
    if (st != DT_OK && err)
        *err = m->failed[rank];
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* ---- opening and closing ---- */

enum dt_status dt_transport_meet_new(int n, const struct dt_device *dev, struct dt_error *err,
                                     struct dt_transport_meet **out)
{
    struct dt_transport_meet *m = dt_calloc(1, sizeof(*m));

    if (m)
        m->failed = dt_calloc((size_t)n, sizeof(*m->failed));
    if (!m || !m->failed || pthread_mutex_init(&m->lock, NULL) != 0) {
        if (m)
            dt_free(m->failed);
        dt_free(m);
        return dt_error_nomem(err, "ranks on a device");
    }
    m->dev = dev;
    m->last = &m->first;
    *out = m;
    return DT_OK;
}

void dt_transport_meet_free(struct dt_transport_meet *m)
{
    if (!m)
        return;
    for (struct offer *o = m->all, *next; o; o = next) {
        next = o->all;
        offer_free(m, o);
    }
    pthread_mutex_destroy(&m->lock);
    dt_free(m->failed);
    dt_free(m);
}
