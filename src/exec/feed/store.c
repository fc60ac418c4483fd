/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/feed/store.h"

#include "base/hash.h"
#include "base/mem.h"
#include "exec/data/loader.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { CHAINS = 1 << 12 };

struct entry {
    int64_t place;
    struct dt_document doc; /* a making thread's until it is collected */
    bool collected;
    int64_t bytes;
    struct dt_feed_want *wants;
    struct entry *chain;         /* of its hash */
    struct entry *next;          /* of those wanted, or made and not collected */
    struct entry *older, *newer; /* of those kept */
};

struct queue {
    struct entry *first, **last;
};

struct dt_feed_store {
    int64_t bytes_max, bytes, most_bytes, made;
    dt_feed_answer_fn *answer;
    void *ctx;
    struct entry *chain[CHAINS], *oldest, *newest;
    int pipe[2];
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work;
    struct queue wanted, done;
    bool stop;
};

static void push(struct queue *q, struct entry *e)
{
    e->next = NULL;
    *q->last = e;
    q->last = &e->next;
}

static struct entry *pop(struct queue *q)
{
    struct entry *e = q->first;

    if (e && !(q->first = e->next))
        q->last = &q->first;
    return e;
}

/* ---- entries ---- */

static struct entry **chain_of(struct dt_feed_store *s, int64_t place)
{
    return &s->chain[dt_hash_word(DT_HASH_START, (uint64_t)place) % CHAINS];
}

static struct entry *find(struct dt_feed_store *s, int64_t place)
{
    struct entry *e = *chain_of(s, place);

    while (e && e->place != place)
        e = e->chain;
    return e;
}

static void free_wants(struct entry *e)
{
    while (e->wants) {
        struct dt_feed_want *w = e->wants;

        e->wants = w->next;
        dt_free(w);
    }
}

static void unlink_kept(struct dt_feed_store *s, struct entry *e)
{
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    e->older = e->newer = NULL;
}

static void link_kept(struct dt_feed_store *s, struct entry *e)
{
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

static void drop(struct dt_feed_store *s, struct entry *e)
{
    struct entry **at = chain_of(s, e->place);

    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    s->bytes -= e->bytes;
    free_wants(e);
    dt_document_free(&e->doc);
    dt_free(e);
}

/* ---- the serving thread ---- */

enum dt_status dt_feed_store_want(struct dt_feed_store *s, int64_t place,
                                  const struct dt_feed_want *want, struct dt_error *err)
{
    struct entry *e = find(s, place);
    struct dt_feed_want *w;

    if (e && e->collected) {
        unlink_kept(s, e);
        link_kept(s, e);
        s->answer(s->ctx, want, &e->doc);
        return DT_OK;
    }
    w = dt_malloc(sizeof *w);
    if (!w)
        return dt_error_nomem(err, "a request");
    if (!e) {
        e = dt_calloc(1, sizeof *e);
        if (!e) {
            dt_free(w);
            return dt_error_nomem(err, "a request");
        }
        e->place = place;
        e->chain = *chain_of(s, place);
        *chain_of(s, place) = e;
        pthread_mutex_lock(&s->lock);
        push(&s->wanted, e);
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
    }
    *w = *want;
    w->next = e->wants;
    e->wants = w;
    return DT_OK;
}

static void collect(struct dt_feed_store *s, struct entry *e)
{
    e->bytes = (int64_t)(sizeof *e + e->doc.text.cap * sizeof *e->doc.text.id +
                         (e->doc.px ? dt_sequence_bytes(e->doc.sound, e->doc.w, e->doc.h) : 0));
    e->collected = true;
    s->made++;
    s->bytes += e->bytes;
    s->most_bytes = s->bytes > s->most_bytes ? s->bytes : s->most_bytes;
    for (struct dt_feed_want *w = e->wants; w; w = w->next)
        s->answer(s->ctx, w, &e->doc);
    free_wants(e);
    link_kept(s, e);
}

void dt_feed_store_collect(struct dt_feed_store *s)
{
    char dust[64];

    while (read(s->pipe[0], dust, sizeof dust) > 0)
        ;
    for (;;) {
        struct entry *e;

        pthread_mutex_lock(&s->lock);
        e = pop(&s->done);
        pthread_mutex_unlock(&s->lock);
        if (!e)
            break;
        collect(s, e);
        /* what went wrong here may go right next time */
        if (e->doc.status != DT_OK && e->doc.status != DT_ERR_INPUT) {
            unlink_kept(s, e);
            drop(s, e);
        }
        while (s->bytes > s->bytes_max && s->oldest) {
            e = s->oldest;
            unlink_kept(s, e);
            drop(s, e);
        }
    }
}

void dt_feed_store_release(struct dt_feed_store *s, int64_t place)
{
    for (struct entry *e = s->oldest, *newer; e; e = newer) {
        newer = e->newer;
        if (e->place < place) {
            unlink_kept(s, e);
            drop(s, e);
        }
    }
}

void dt_feed_store_forget(struct dt_feed_store *s, const struct dt_feed_peer *who)
{
    struct queue still = {NULL, NULL};
    struct entry *e;

    for (int i = 0; i < CHAINS; i++)
        for (e = s->chain[i]; e; e = e->chain)
            for (struct dt_feed_want **w = &e->wants; *w;) {
                struct dt_feed_want *gone = *w;

                if (!dt_feed_peer_is(&gone->who, who)) {
                    w = &gone->next;
                    continue;
                }
                *w = gone->next;
                dt_free(gone);
            }
    still.last = &still.first;
    pthread_mutex_lock(&s->lock);
    while ((e = pop(&s->wanted))) {
        if (e->wants)
            push(&still, e);
        else
            drop(s, e);
    }
    s->wanted = still;
    if (!still.first)
        s->wanted.last = &s->wanted.first;
    pthread_mutex_unlock(&s->lock);
}

int dt_feed_store_fd(const struct dt_feed_store *s)
{
    return s->pipe[0];
}

int64_t dt_feed_store_made(const struct dt_feed_store *s)
{
    return s->made;
}

int64_t dt_feed_store_bytes(const struct dt_feed_store *s)
{
    return s->bytes;
}

int64_t dt_feed_store_most_bytes(const struct dt_feed_store *s)
{
    return s->most_bytes;
}

/* ---- threads ---- */

void dt_feed_store_work(struct dt_feed_store *s, const struct dt_loader *l)
{
    struct dt_shard_sample scratch = {0};

    pthread_mutex_lock(&s->lock);
    for (;;) {
        struct entry *e;
        bool first;

        while (!s->stop && !s->wanted.first)
            pthread_cond_wait(&s->work, &s->lock);
        if (s->stop)
            break;
        e = pop(&s->wanted);
        pthread_mutex_unlock(&s->lock);
        dt_loader_document(l, e->place, &scratch, &e->doc);
        pthread_mutex_lock(&s->lock);
        first = !s->done.first;
        push(&s->done, e);
        /* full: then there is something to read already */
        if (first && write(s->pipe[1], "", 1) < 0)
            continue;
    }
    pthread_mutex_unlock(&s->lock);
    dt_shard_sample_free(&scratch);
}

void dt_feed_store_stop(struct dt_feed_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

enum dt_status dt_feed_store_new(int64_t bytes_max, dt_feed_answer_fn *answer, void *ctx,
                                 struct dt_error *err, struct dt_feed_store **out)
{
    struct dt_feed_store *s = dt_calloc(1, sizeof *s);

    if (!s)
        return dt_error_nomem(err, "a store of documents");
    s->bytes_max = bytes_max;
    s->answer = answer;
    s->ctx = ctx;
    s->wanted.last = &s->wanted.first;
    s->done.last = &s->done.first;
    if (pipe(s->pipe) != 0) {
        dt_free(s);
        return dt_error_set(err, DT_ERR_IO, "cannot make a pipe");
    }
    for (int i = 0; i < 2; i++) {
        fcntl(s->pipe[i], F_SETFL, O_NONBLOCK);
        fcntl(s->pipe[i], F_SETFD, FD_CLOEXEC);
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    *out = s;
    return DT_OK;
}

void dt_feed_store_free(struct dt_feed_store *s)
{
    if (!s)
        return;
    for (int i = 0; i < CHAINS; i++)
        while (s->chain[i])
            drop(s, s->chain[i]);
    close(s->pipe[0]);
    close(s->pipe[1]);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    dt_free(s);
}
