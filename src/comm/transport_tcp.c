/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Messages over TCP, for ranks that a launcher starts without MPI (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as
 * torchrun sets them): a connection between any two ranks.
 *
 *   frame   kind | key | bytes | payload
 *   send    lines up behind the others to that rank; over when the kernel has taken all of it
 *   receive matched by its sender and its key, in the order of posts.  What nobody waits for yet is kept in memory
 *
 * Nothing blocks once it is open, and whoever tests makes all connections progress.  How ranks find each other is
 * in transport_tcp_open.c. */
#include "comm/transport_tcp_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { EVENTS = 64 };

static struct dt_tcp *tcp_of(struct dt_transport *t)
{
    return t->impl;
}

/* ---- lists ---- */

static void append(struct dt_tcp_queue *q, struct dt_transport_xfer *x)
{
    x->next = NULL;
    *q->last = x;
    q->last = &x->next;
}

static void take_out(struct dt_tcp_queue *q, struct dt_transport_xfer **at)
{
    struct dt_transport_xfer *x = *at;

    *at = x->next;
    if (q->last == &x->next)
        q->last = at;
}

static struct dt_transport_xfer *take_key(struct dt_tcp_queue *q, uint64_t key)
{
    for (struct dt_transport_xfer **at = &q->first; *at; at = &(*at)->next) {
        struct dt_transport_xfer *x = *at;

        if (x->key == key) {
            take_out(q, at);
            return x;
        }
    }
    return NULL;
}

static bool take_this(struct dt_tcp_queue *q, const struct dt_transport_xfer *x)
{
    for (struct dt_transport_xfer **at = &q->first; *at; at = &(*at)->next)
        if (*at == x) {
            take_out(q, at);
            return true;
        }
    return false;
}

/* Those that came before anybody waited for them, or whose owner has left. */
static struct dt_transport_xfer *own_xfer(uint64_t key, const void *bytes, size_t n)
{
    struct dt_transport_xfer *x = dt_calloc(1, sizeof(*x));

    if (!x)
        return NULL;
    x->key = key;
    x->bytes = n;
    x->buf = dt_malloc(n + 1);
    if (!x->buf) {
        dt_free(x);
        return NULL;
    }
    if (bytes)
        memcpy(x->buf, bytes, n);
    x->owned = true;
    return x;
}

static void drop(struct dt_transport_xfer *x)
{
    if (!x || !x->owned)
        return;
    dt_free(x->buf);
    dt_free(x);
}

static void drop_all(struct dt_tcp_queue *q)
{
    for (struct dt_transport_xfer *x = q->first, *next; x; x = next) {
        next = x->next;
        drop(x);
    }
    q->first = NULL;
    q->last = &q->first;
}

/* ---- connections.  Locked ---- */

static void lose(struct dt_tcp *s, struct dt_tcp_peer *p, const char *why)
{
    if (p->fd < 0)
        return;
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    close(p->fd);
    p->fd = -1;
    snprintf(p->lost, sizeof(p->lost), "%s", why);
}

static void want_out(struct dt_tcp *s, struct dt_tcp_peer *p, bool out)
{
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0u),
                            .data.u32 = (uint32_t)(p - s->peer)};

    if (p->fd >= 0 && p->out != out) {
        epoll_ctl(s->epoll, EPOLL_CTL_MOD, p->fd, &e);
        p->out = out;
    }
}

/* As much as the kernel takes. */
static void flush_out(struct dt_tcp *s, struct dt_tcp_peer *p)
{
    while (p->fd >= 0 && p->sends.first) {
        struct dt_transport_xfer *x = p->sends.first;
        struct dt_tcp_frame f = {DT_TCP_MESSAGE, 0, x->key, x->bytes};
        size_t head = x->moved < sizeof(f) ? sizeof(f) - x->moved : 0;
        size_t at = x->moved > sizeof(f) ? x->moved - sizeof(f) : 0;
        struct iovec v[2] = {{(char *)&f + (sizeof(f) - head), head}, {x->buf + at, x->bytes - at}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        ssize_t n = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            break;
        if (n < 0) {
            lose(s, p, strerror(errno));
            return;
        }
        x->moved += (size_t)n;
        if (x->moved < sizeof(f) + x->bytes)
            continue;
        take_out(&p->sends, &p->sends.first);
        x->done = true;
        drop(x);
    }
    want_out(s, p, p->sends.first != NULL);
}

/* A whole frame's head is there: who gets what follows. */
static void begin_message(struct dt_tcp *s, struct dt_tcp_peer *p)
{
    const struct dt_tcp_frame *f = &p->frame;

    if (f->kind == DT_TCP_ABORT)
        _exit((int)f->key);
    if (f->kind == DT_TCP_BYE) {
        p->bye = true;
        p->got = 0;
        return;
    }
    if (f->kind != DT_TCP_MESSAGE || f->bytes > DT_TCP_BYTES_MAX) {
        lose(s, p, "it sent what is no message");
        return;
    }
    p->in = take_key(&p->recvs, f->key);
    if (p->in && p->in->bytes == f->bytes) {
        p->in->moved = 0;
        return;
    }
    if (p->in) { /* its receiver tells; the bytes are read past */
        p->in->other_bytes = (size_t)f->bytes;
        p->in->wrong = p->in->done = true;
    }
    p->unread = p->in != NULL;
    p->in = own_xfer(f->key, NULL, (size_t)f->bytes);
    if (!p->in)
        lose(s, p, "there is no memory for its messages");
}

/* What has come already; `e` is gone then. */
static void receive_early(struct dt_transport_xfer *x, struct dt_transport_xfer *e)
{
    x->wrong = e->bytes != x->bytes;
    x->other_bytes = e->bytes;
    if (!x->wrong && x->bytes > 0) /* an empty message may have no buffer */
        memcpy(x->buf, e->buf, x->bytes);
    x->done = true;
    drop(e);
}

static void end_message(struct dt_tcp_peer *p)
{
    struct dt_transport_xfer *x = p->in, *r = NULL;

    p->in = NULL;
    p->got = 0;
    if (x->owned && !p->unread) /* somebody may wait for it by now */
        r = take_key(&p->recvs, x->key);
    if (x->owned && p->unread)
        drop(x);
    else if (r)
        receive_early(r, x);
    else if (x->owned)
        append(&p->early, x);
    else
        x->done = true;
    p->unread = false;
}

/* Reads what is there; false: nothing more for now. */
static bool read_some(struct dt_tcp *s, struct dt_tcp_peer *p)
{
    char *to = p->in ? p->in->buf + p->in->moved : (char *)&p->frame + p->got;
    size_t want = p->in ? p->in->bytes - p->in->moved : sizeof(p->frame) - p->got;
    ssize_t n = recv(p->fd, to, want, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return false;
    if (n <= 0) {
        lose(s, p, n == 0 ? "it has ended" : strerror(errno));
        return false;
    }
    *(p->in ? &p->in->moved : &p->got) += (size_t)n;
    if (!p->in && p->got == sizeof(p->frame))
        begin_message(s, p);
    if (p->fd >= 0 && p->in && p->in->moved == p->in->bytes)
        end_message(p);
    return p->fd >= 0;
}

static void progress_all(struct dt_tcp *s)
{
    struct epoll_event e[EVENTS];
    int n = epoll_wait(s->epoll, e, EVENTS, 0);

    for (int i = 0; i < n; i++) {
        struct dt_tcp_peer *p = &s->peer[e[i].data.u32];

        if (e[i].events & EPOLLOUT)
            flush_out(s, p);
        while (p->fd >= 0 && read_some(s, p))
            ;
    }
}

/* ---- the wire ---- */

static enum dt_status lost(struct dt_tcp *s, int peer, struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_PEER, "rank %d on %s cannot be reached any more: %s", peer,
                        s->peer[peer].host, s->peer[peer].lost);
}

/* To oneself: kept, or given to who waits. */
static enum dt_status send_here(struct dt_tcp *s, struct dt_transport_xfer *x, struct dt_error *err)
{
    struct dt_tcp_peer *p = &s->peer[s->t.rank];
    struct dt_transport_xfer *r = take_key(&p->recvs, x->key);

    if (!r) {
        r = own_xfer(x->key, x->buf, x->bytes);
        if (!r)
            return dt_error_nomem(err, "a message to oneself");
        append(&p->early, r);
    } else if (r->bytes == x->bytes) {
        if (x->bytes > 0)
            memcpy(r->buf, x->buf, x->bytes);
        r->done = true;
    } else {
        r->other_bytes = x->bytes;
        r->wrong = r->done = true;
    }
    x->done = true;
    return DT_OK;
}

static enum dt_status wire_send(struct dt_transport *t, struct dt_transport_xfer *x, int to,
                                uint64_t key, const void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err)
{
    struct dt_tcp *s = tcp_of(t);
    enum dt_status st = DT_OK;

    (void)q;
    *x = (struct dt_transport_xfer){.key = key,
                                    .peer = to,
                                    .send = true,
                                    .buf = (char *)(uintptr_t)buf, /* only read */
                                    .bytes = bytes};
    pthread_mutex_lock(&s->lock);
    if (to == t->rank) {
        st = send_here(s, x, err);
    } else if (s->peer[to].fd < 0) {
        st = lost(s, to, err);
    } else {
        append(&s->peer[to].sends, x);
        flush_out(s, &s->peer[to]);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

static enum dt_status wire_recv(struct dt_transport *t, struct dt_transport_xfer *x, int from,
                                uint64_t key, void *buf, size_t bytes, struct dt_device_queue *q,
                                struct dt_error *err)
{
    struct dt_tcp *s = tcp_of(t);
    struct dt_tcp_peer *p = &s->peer[from];
    struct dt_transport_xfer *e;
    enum dt_status st = DT_OK;

    (void)q;
    *x = (struct dt_transport_xfer){.key = key, .peer = from, .buf = buf, .bytes = bytes};
    pthread_mutex_lock(&s->lock);
    e = take_key(&p->early, key);
    if (e)
        receive_early(x, e);
    else if (from != t->rank && p->fd < 0 && !p->bye)
        st = lost(s, from, err);
    else
        append(&p->recvs, x);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static enum dt_status wire_progress(struct dt_transport *t, struct dt_transport_xfer *x,
                                    struct dt_device_queue *q, bool *done, struct dt_error *err)
{
    struct dt_tcp *s = tcp_of(t);
    enum dt_status st = DT_OK;

    (void)q;
    pthread_mutex_lock(&s->lock);
    if (!x->done)
        progress_all(s);
    *done = x->done && !x->wrong;
    if (x->wrong)
        st = dt_transport_size_error(err, x->peer, t->rank, x->key, x->other_bytes, x->bytes);
    else if (!x->done && x->peer != t->rank && s->peer[x->peer].fd < 0 &&
             (x->send || !s->peer[x->peer].bye))
        st = lost(s, x->peer, err);
    if (st != DT_OK)
        (void)take_this(x->send ? &s->peer[x->peer].sends : &s->peer[x->peer].recvs, x);
    if (st != DT_OK && s->peer[x->peer].in == x)
        s->peer[x->peer].in = NULL;
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* What the kernel has begun to take or to bring goes on, with memory of its own. */
static void wire_cancel(struct dt_transport *t, struct dt_transport_xfer *x)
{
    struct dt_tcp *s = tcp_of(t);
    struct dt_tcp_peer *p = &s->peer[x->peer];
    struct dt_transport_xfer *copy;

    pthread_mutex_lock(&s->lock);
    if (x->send ? x->moved > 0 && p->sends.first == x : p->in == x) {
        copy = own_xfer(x->key, x->buf, x->bytes);
        if (copy) {
            copy->moved = x->moved;
            copy->peer = x->peer;
            copy->send = x->send;
            p->unread = p->unread || !x->send;
        } else {
            lose(s, p, "there is no memory for its messages");
        }
        if (x->send && take_this(&p->sends, x) && copy) {
            copy->next = p->sends.first;
            p->sends.first = copy;
            if (!copy->next)
                p->sends.last = &copy->next;
        }
        if (!x->send)
            p->in = copy;
    } else {
        (void)take_this(x->send ? &p->sends : &p->recvs, x);
    }
    pthread_mutex_unlock(&s->lock);
}

const struct dt_transport_wire dt_tcp_wire = {
    .xfer_bytes = sizeof(struct dt_transport_xfer),
    .key_max = DT_KEY_COLL - 1,
    .send = wire_send,
    .recv = wire_recv,
    .progress = wire_progress,
    .cancel = wire_cancel,
};

/* ---- the end ---- */

static void say_bye(struct dt_tcp_peer *p)
{
    const struct dt_tcp_frame f = {DT_TCP_BYE, 0, 0, 0};

    if (p->fd < 0 || p->sends.first || p->shut)
        return;
    (void)!send(p->fd, &f, sizeof(f), MSG_NOSIGNAL);
    p->shut = shutdown(p->fd, SHUT_WR) == 0;
}

/* All that was sent has arrived when the others have closed their ends, too. */
static void part(struct dt_tcp *s)
{
    uint64_t begin = dt_clock_ns();
    struct timespec pause = {.tv_nsec = 200000};
    bool open = true;

    while (open && (double)(dt_clock_ns() - begin) < s->t.limit_s * 1e9) {
        open = false;
        for (int k = 0; k < s->t.size; k++)
            say_bye(&s->peer[k]);
        progress_all(s);
        for (int k = 0; k < s->t.size; k++)
            open = open || s->peer[k].fd >= 0;
        if (open)
            nanosleep(&pause, NULL);
    }
}

void dt_tcp_free(struct dt_tcp *s)
{
    dt_transport_base_free(&s->t);
    for (int k = 0; s->peer && k < s->t.size; k++) {
        struct dt_tcp_peer *p = &s->peer[k];

        if (p->fd >= 0)
            close(p->fd);
        drop_all(&p->sends);
        drop_all(&p->early);
        drop(p->in);
    }
    if (s->epoll >= 0)
        close(s->epoll);
    if (s->listener >= 0)
        close(s->listener);
    dt_free(s->peer);
    pthread_mutex_destroy(&s->lock);
    dt_free(s);
}

void dt_tcp_close(struct dt_transport *t)
{
    struct dt_tcp *s;

    if (!t)
        return;
    s = tcp_of(t);
    pthread_mutex_lock(&s->lock);
    part(s);
    pthread_mutex_unlock(&s->lock);
    dt_tcp_free(s);
}

/* Everybody is told with what status to end, as far as connections take it at once. */
void dt_tcp_abort(struct dt_transport *t, int exit_status)
{
    struct dt_tcp *s = tcp_of(t);
    struct timespec limit = dt_clock_wall_in(1000000000);
    const struct dt_tcp_frame f = {DT_TCP_ABORT, 0, (uint64_t)exit_status, 0};

    /* whoever holds the lock may never give it back */
    (void)!pthread_mutex_timedlock(&s->lock, &limit);
    for (int k = 0; k < t->size; k++) {
        struct dt_tcp_peer *p = &s->peer[k];

        if (p->fd >= 0 && (!p->sends.first || p->sends.first->moved == 0))
            (void)!send(p->fd, &f, sizeof(f), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    _exit(exit_status);
}
