/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/feed/server.h"

#include "base/clock.h"
#include "base/mem.h"
#include "exec/feed/store.h"
#include "exec/feed/wire.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { WORKERS_MAX = 256, CONSUMERS_MAX = 4096, WAIT_MS = 200, FRAMES_AT_ONCE = 64 };
/* A consumer asks or greets every second while it waits; a step may be long. */
#define GONE_S 60.0

struct consumer {
    struct dt_feed_peer who;
    int64_t released;
    uint64_t asked;         /* places */
    int open;               /* of them not answered */
    int64_t sent, received; /* bytes; received: by its own account */
    uint64_t seen_ns;
    bool lost; /* what is sent to it does not arrive */
    bool
        given_up; /* likewise, and nothing is kept for it any more; what it asks is not heard, or what it
                    * never read would be counted from nothing again */
};

struct dt_feed_server {
    struct dt_feed_server_options o;
    struct dt_feed_store *store;
    struct dt_feed_head head; /* of what is sent */
    struct dt_feed_welcome welcome;
    struct dt_feed_bytes frame;
    struct dt_feed_ask ask;
    struct consumer *consumer;
    size_t n_consumers, cap_consumers;
    int64_t released;
    struct dt_feed_server_report report;
    uint64_t opened_ns;
    int n_threads;
    pthread_t threads[WORKERS_MAX];
};

/* ---- sending ---- */

static struct consumer *find(struct dt_feed_server *s, const struct dt_feed_peer *who)
{
    for (size_t i = 0; i < s->n_consumers; i++)
        if (dt_feed_peer_is(&s->consumer[i].who, who))
            return &s->consumer[i];
    return NULL;
}

/* What waits to be sent to a consumer that does not read is in our memory. */
static bool deliver(struct dt_feed_server *s, const struct dt_feed_peer *to, enum dt_status encoded)
{
    struct consumer *c = find(s, to);
    int64_t n = (int64_t)s->frame.n;

    if (encoded != DT_OK || (c && c->lost))
        return false;
    if ((c && c->sent - c->received + n > s->o.unread_bytes) ||
        !dt_feed_net_send(s->o.net, to, s->frame.p, s->frame.n)) {
        if (c)
            c->lost = true;
        return false;
    }
    if (c)
        c->sent += n;
    s->report.sent_bytes += n;
    return true;
}

static void refuse(struct dt_feed_server *s, const struct dt_feed_peer *to, uint64_t request,
                   const char *why)
{
    s->head.request = request;
    deliver(s, to, dt_feed_encode_refuse(&s->head, why, NULL, &s->frame));
}

static void answer(void *ctx, const struct dt_feed_want *w, const struct dt_document *d)
{
    struct dt_feed_server *s = ctx;
    struct consumer *c = find(s, &w->who);

    if (c)
        c->open--;
    if (d->status != DT_OK && d->status != DT_ERR_INPUT) {
        refuse(s, &w->who, w->request, d->why);
        return;
    }
    s->head.request = w->request;
    s->report.sent +=
        deliver(s, &w->who, dt_feed_encode_document(&s->head, d, w->what, NULL, &s->frame));
}

/* ---- consumers ---- */

static size_t served(const struct dt_feed_server *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_consumers; i++)
        n += !s->consumer[i].given_up;
    return n;
}

static struct consumer *consumer_of(struct dt_feed_server *s, const struct dt_feed_peer *who)
{
    struct consumer *c = find(s, who);

    if (!c) {
        if (s->n_consumers == CONSUMERS_MAX ||
            dt_grow((void **)&s->consumer, &s->cap_consumers, s->n_consumers + 1, sizeof *c))
            return NULL;
        c = &s->consumer[s->n_consumers++];
        *c = (struct consumer){.who = *who};
        s->report.came++;
        dt_warn(s->o.warn, "a consumer has come; there are %zu", served(s));
    }
    c->seen_ns = dt_clock_ns();
    return c;
}

/* What all have passed goes. */
static void release(struct dt_feed_server *s)
{
    int64_t least = served(s) > 0 ? INT64_MAX : 0;

    for (size_t i = 0; i < s->n_consumers; i++)
        least = s->consumer[i].released < least ? s->consumer[i].released : least;
    if (least != s->released)
        dt_feed_store_release(s->store, least);
    s->released = least;
}

static void give_up(struct dt_feed_server *s, struct consumer *c)
{
    dt_feed_store_forget(s->store, &c->who);
    c->given_up = c->lost = true;
    c->open = 0;
    c->released = INT64_MAX;
    dt_warn(s->o.warn, "a consumer is gone; there are %zu", served(s));
    release(s);
}

static void look_for_the_gone(struct dt_feed_server *s)
{
    uint64_t now = dt_clock_ns();

    for (size_t i = 0; i < s->n_consumers;) {
        struct consumer *c = &s->consumer[i];
        bool silent = (double)(now - c->seen_ns) * 1e-9 >= s->o.gone_s;

        if ((c->lost || silent) && !c->given_up)
            give_up(s, c);
        if (silent)
            *c = s->consumer[--s->n_consumers];
        else
            i++;
    }
}

/* ---- frames ---- */

static enum dt_status give(struct dt_feed_server *s, const struct dt_feed_peer *from,
                           const struct dt_feed_frame *f, struct consumer *c, struct dt_error *err)
{
    DT_TRY(dt_feed_decode_ask(f, err, &s->ask));
    if (s->ask.released > c->released) {
        c->released = s->ask.released;
        release(s);
    }
    if (s->ask.received > c->sent)
        return dt_error_set(err, DT_ERR_INPUT, "a consumer that has more than it was sent");
    c->received = s->ask.received;
    if (c->open + s->ask.n > DT_FEED_OPEN_MAX)
        return dt_error_set(err, DT_ERR_INPUT, "a consumer may wait for %d documents, not for more",
                            DT_FEED_OPEN_MAX);
    c->asked += (uint64_t)s->ask.n;
    for (int i = 0; i < s->ask.n; i++) {
        struct dt_feed_want w = {.who = *from, .request = f->head.request, .what = s->ask.what[i]};
        enum dt_status st;

        c->open++;
        st = dt_feed_store_want(s->store, s->ask.place[i], &w, err);
        c->open -= st != DT_OK;
        DT_TRY(st);
    }
    return DT_OK;
}

static enum dt_status handle(struct dt_feed_server *s, const struct dt_feed_peer *from,
                             const struct dt_feed_frame *f, struct dt_error *err)
{
    struct consumer *c;

    if (f->head.job != s->o.job)
        return dt_error_set(err, DT_ERR_INPUT,
                            "this producer serves another job, or other options of this one");
    if (f->head.kind == DT_FEED_ASK && f->head.data != s->head.data)
        return dt_error_set(err, DT_ERR_INPUT, "this producer has other data");
    c = consumer_of(s, from);
    if (!c)
        return dt_error_set(err, DT_ERR_INPUT, "this producer has too many consumers");
    if (c->given_up)
        return DT_OK; /* an answer would not arrive */
    if (f->head.kind == DT_FEED_ASK)
        return give(s, from, f, c, err);
    if (f->head.kind != DT_FEED_HELLO)
        return dt_error_set(err, DT_ERR_INPUT, "a frame that producers send, not get");
    if (f->head.request != c->asked)
        return dt_error_set(err, DT_ERR_INPUT, "this producer has begun anew");
    s->head.request = f->head.request;
    deliver(s, from, dt_feed_encode_welcome(&s->head, &s->welcome, NULL, &s->frame));
    return DT_OK;
}

static bool receive(struct dt_feed_server *s, int timeout_ms)
{
    struct dt_feed_peer from;
    struct dt_feed_frame f = {.head = {.request = 0}};
    struct dt_error err = {.status = DT_OK};
    enum dt_status st;
    const uint8_t *p;
    size_t n;

    if (!dt_feed_net_recv(s->o.net, dt_feed_store_fd(s->store), timeout_ms, &from, &p, &n))
        return false;
    st = dt_feed_open(p, n, &err, &f);
    if (st == DT_OK)
        st = handle(s, &from, &f, &err);
    if (st != DT_OK) {
        s->report.refused++;
        refuse(s, &from, f.head.request, err.message);
    }
    return true;
}

void dt_feed_server_run(struct dt_feed_server *s, const volatile sig_atomic_t *stop)
{
    while (!*stop) {
        bool more = receive(s, WAIT_MS);

        for (int i = 1; more && i < FRAMES_AT_ONCE; i++)
            more = receive(s, 0);
        dt_feed_store_collect(s->store);
        look_for_the_gone(s);
    }
}

/* ---- opening ---- */

static void *worker(void *arg)
{
    struct dt_feed_server *s = arg;

    dt_feed_store_work(s->store, s->o.loader);
    return NULL;
}

static enum dt_status start(struct dt_feed_server *s, struct dt_error *err)
{
    DT_TRY(dt_feed_store_new(s->o.memory_bytes, answer, s, err, &s->store));
    for (int i = 0; i < s->o.workers; i++) {
        if (pthread_create(&s->threads[i], NULL, worker, s) != 0)
            return dt_error_set(err, DT_ERR_IO, "cannot start a thread");
        s->n_threads++;
    }
    return DT_OK;
}

enum dt_status dt_feed_server_open(const struct dt_feed_server_options *o, struct dt_error *err,
                                   struct dt_feed_server **out)
{
    struct dt_feed_server *s;
    enum dt_status st;

    if (o->workers < 1 || o->workers > WORKERS_MAX || o->memory_bytes < 0)
        return dt_error_set(err, DT_ERR_USAGE, "1 to %d workers are possible", WORKERS_MAX);
    s = dt_calloc(1, sizeof *s);
    if (!s)
        return dt_error_nomem(err, "a producer");
    s->o = *o;
    s->opened_ns = dt_clock_ns();
    s->o.memory_bytes = o->memory_bytes ? o->memory_bytes : DT_FEED_MEMORY_BYTES;
    s->o.gone_s = o->gone_s > 0 ? o->gone_s : GONE_S;
    s->o.unread_bytes = o->unread_bytes > 0 ? o->unread_bytes : DT_FEED_UNREAD_BYTES_MAX;
    s->head = (struct dt_feed_head){.job = o->job, .data = dt_loader_data(o->loader)};
    s->welcome.samples = dt_loader_samples(o->loader);
    dt_loader_report(o->loader, &s->welcome.report);
    st = start(s, err);
    if (st == DT_OK)
        *out = s;
    else
        dt_feed_server_close(s);
    return st;
}

void dt_feed_server_report(const struct dt_feed_server *s, struct dt_feed_server_report *out)
{
    struct dt_feed_store_made made;

    dt_feed_store_made(s->store, &made);
    *out = s->report;
    out->made = made.n;
    out->bad = made.bad;
    out->core_s = (double)made.core_ns * 1e-9;
    out->images = dt_loader_decoded(s->o.loader);
    out->wall_s = (double)(dt_clock_ns() - s->opened_ns) * 1e-9;
    out->most_bytes = dt_feed_store_most_bytes(s->store);
    out->bytes = dt_feed_store_bytes(s->store);
    out->consumers = (int)served(s);
    for (size_t i = 0; i < s->n_consumers; i++)
        out->open += s->consumer[i].open;
}

void dt_feed_server_close(struct dt_feed_server *s)
{
    if (!s)
        return;
    if (s->store)
        dt_feed_store_stop(s->store);
    for (int i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
    dt_feed_store_free(s->store);
    dt_feed_bytes_free(&s->frame);
    dt_free(s->consumer);
    dt_free(s);
}
