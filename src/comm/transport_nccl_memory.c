/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory that NCCL has given, and communicators know.
 *
 * What a communicator knows it reads and writes where it lies, instead of by way of buffers of its own.  A window that
 * all members have made of theirs is more: from 2.28 on, communicators of groups have the policy ZERO, so that
 * gathers from and into windows within a node are made by copy engines and take no processor from computing.
 *
 * What the library cannot do is done without, and the transport's `note` says so once. */
#include "comm/transport_nccl_impl.h"

#include "base/mem.h"

#include <stdio.h>

struct share { /* what a communicator knows of it */
    struct share *next;
    struct dt_nccl_link *link;
    void *handle; /* NULL: nothing, as the library cannot */
    bool window;
};

struct dt_nccl_memory {
    struct dt_nccl_memory *next;
    void *p;
    size_t bytes;
    struct dt_device_memory_owner *owner;
    struct share *shares;
};

static void note(struct dt_nccl_ranks *s, const char *what, const char *why)
{
    if (!s->t.note[0])
        snprintf(s->t.note, sizeof(s->t.note), "NCCL %d.%d.%d %s: %s", s->f->version / 10000,
                 s->f->version / 100 % 100, s->f->version % 100, what, why);
}

static struct dt_nccl_memory *find(const struct dt_nccl_ranks *s, const void *p)
{
    struct dt_nccl_memory *m = s->memory;

    while (m && m->p != p)
        m = m->next;
    return m;
}

/* ---- having it ---- */

static bool from_library(struct dt_nccl_ranks *s, size_t bytes, void **out)
{
    int result;

    if (!s->f->MemAlloc || !s->f->CommRegister) {
        note(s, "registers no buffers", "2.19 is the first that does");
        return false;
    }
    (void)s->dev->queue_stream(s->q); /* the card is this thread's */
    result = s->f->MemAlloc(out, bytes);
    if (result != DT_NCCL_SUCCESS)
        note(s, "gives no memory for buffers", s->f->GetErrorString(result));
    return result == DT_NCCL_SUCCESS;
}

static enum dt_status get(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    struct dt_nccl_memory *m = arg;

    DT_TRY(dt_nccl_state(s, err));
    if (!from_library(s, m->bytes, &m->p))
        return DT_OK;
    m->next = s->memory;
    s->memory = m;
    return DT_OK;
}

static enum dt_status memory_new(struct dt_transport *t, size_t bytes, struct dt_error *err,
                                 void **out)
{
    struct dt_nccl_ranks *s = dt_nccl_of(t);
    struct dt_nccl_memory *m = dt_calloc(1, sizeof(*m));
    enum dt_status st;

    if (!m)
        return dt_error_nomem(err, "a buffer");
    m->bytes = bytes;
    m->owner = s->dev->memory_for(s->dev, NULL);
    s->dev->memory_for(s->dev, m->owner);
    st = dt_nccl_issue(s, get, m, err);
    if (st == DT_OK && m->p) {
        s->dev->memory_given(s->dev, m->owner, (int64_t)bytes);
        *out = m->p;
        return DT_OK;
    }
    dt_free(m);
    return st == DT_OK ? s->dev->alloc(s->dev, bytes, err, out) : st;
}

/* ---- being known ---- */

/* 2.28 answers SUCCESS although a thread of its own only writes the window later (2.27: IN_PROGRESS), so the
 * communicator is asked either way. */
static int make_known(struct dt_nccl_ranks *s, const struct dt_nccl_memory *m, struct share *x)
{
    int result;

    x->window = s->f->CommWindowRegister != NULL;
    if (!x->window)
        return s->f->CommRegister(x->link->h, m->p, m->bytes, &x->handle);
    result = s->f->CommWindowRegister(x->link->h, m->p, m->bytes, &x->handle,
                                      DT_NCCL_WIN_COLL_SYMMETRIC);
    return result == DT_NCCL_SUCCESS ? DT_NCCL_IN_PROGRESS : result;
}

/* Without a handle the library has said that it cannot. */
static void say_how(struct dt_nccl_ranks *s, const struct share *x)
{
    if (!x->handle)
        note(s, "registers no buffers", "it cannot between these cards");
    else if (!x->window)
        note(s, "gathers by way of thread blocks", "it has no windows, which 2.27 brought");
    else if (s->f->version < DT_NCCL_VERSION_2_28)
        note(s, "gathers by way of thread blocks", "2.28 is the first that does without");
}

/* ---- messages: each side by itself, when an edge first has something of the memory ---- */

static struct dt_nccl_memory *around(const struct dt_nccl_ranks *s, const void *p)
{
    struct dt_nccl_memory *m = s->memory;

    while (m && ((const char *)p < (const char *)m->p ||
                 (const char *)p >= (const char *)m->p + m->bytes))
        m = m->next;
    return m;
}

enum dt_status dt_nccl_know(struct dt_nccl_ranks *s, struct dt_nccl_link *l, const void *buf,
                            struct dt_error *err)
{
    struct dt_nccl_memory *m = around(s, buf);
    struct share *x = m ? m->shares : NULL;
    enum dt_status st;

    while (x && x->link != l)
        x = x->next;
    if (!m || x)
        return DT_OK;
    x = dt_calloc(1, sizeof(*x));
    if (!x)
        return dt_error_nomem(err, "a buffer");
    x->link = l;
    st = dt_nccl_wait(s, l, "a buffer of messages",
                      s->f->CommRegister(l->h, m->p, m->bytes, &x->handle), err);
    if (st != DT_OK) {
        dt_free(x);
        return st;
    }
    x->next = m->shares; /* also without a handle: it need not be asked again */
    m->shares = x;
    return DT_OK;
}

/* ---- what groups share ---- */

struct sharing {
    struct dt_nccl_link *link;
    void *p;
};

static enum dt_status share(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    const struct sharing *a = arg;
    struct dt_nccl_memory *m = find(s, a->p);
    struct share *x;
    enum dt_status st;

    DT_TRY(dt_nccl_state(s, err));
    if (!m)
        return DT_OK;
    x = dt_calloc(1, sizeof(*x));
    if (!x)
        return dt_error_nomem(err, "a buffer");
    x->link = a->link;
    st = dt_nccl_wait(s, x->link, "a buffer that all register", make_known(s, m, x), err);
    if (st == DT_OK)
        say_how(s, x);
    if (st != DT_OK || !x->handle) {
        dt_free(x);
        return st;
    }
    x->next = m->shares;
    m->shares = x;
    return DT_OK;
}

/* Registering waits for all members, so none begins before it is known that the others will, too: the library may have
 * given memory to some of them only.  The lowest member asks and tells. */
static enum dt_status ask(struct dt_nccl_ranks *s, const struct dt_comm *c, unsigned char *said,
                          struct dt_error *err)
{
    struct dt_transport *t = s->control;
    struct dt_req *r;

    for (int k = 1; k < c->n; k++) {
        DT_TRY(t->post_recv(t, c->ranks[k], DT_TRANSPORT_NCCL_TAG, &said[k], 1, NULL, err, &r));
        DT_TRY(dt_transport_wait(t, r, s->t.limit_s, "members who register a buffer", err));
        said[0] &= said[k];
    }
    for (int k = 1; k < c->n; k++) {
        DT_TRY(t->post_send(t, c->ranks[k], DT_TRANSPORT_NCCL_TAG, said, 1, NULL, err, &r));
        DT_TRY(dt_transport_wait(t, r, s->t.limit_s, "members who register a buffer", err));
    }
    return DT_OK;
}

static enum dt_status answer(struct dt_nccl_ranks *s, const struct dt_comm *c, unsigned char *said,
                             struct dt_error *err)
{
    struct dt_transport *t = s->control;
    struct dt_req *r;

    DT_TRY(t->post_send(t, c->ranks[0], DT_TRANSPORT_NCCL_TAG, said, 1, NULL, err, &r));
    DT_TRY(dt_transport_wait(t, r, s->t.limit_s, "members who register a buffer", err));
    DT_TRY(t->post_recv(t, c->ranks[0], DT_TRANSPORT_NCCL_TAG, said, 1, NULL, err, &r));
    return dt_transport_wait(t, r, s->t.limit_s, "members who register a buffer", err);
}

static enum dt_status all_have(struct dt_nccl_ranks *s, const struct dt_comm *c, bool mine,
                               struct dt_error *err, bool *out)
{
    unsigned char *said = dt_calloc((size_t)c->n, 1);
    enum dt_status st;

    if (!said)
        return dt_error_nomem(err, "a buffer");
    said[0] = mine;
    st = c->me == 0 ? ask(s, c, said, err) : answer(s, c, said, err);
    if (st != DT_OK) {
        dt_transport_leave(said); /* of what has failed, more may come */
        return st;
    }
    *out = said[0];
    dt_free(said);
    return DT_OK;
}

struct search {
    const void *p;
    bool found;
};

static enum dt_status look(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    struct search *a = arg;

    a->found = find(s, a->p) != NULL;
    if (!a->found)
        return DT_OK;
    return dt_nccl_state(s, err);
}

static enum dt_status not_all(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    (void)arg;
    (void)err;
    note(s, "registers no buffers", "it gives another rank no memory for them");
    return DT_OK;
}

static enum dt_status memory_share(struct dt_comm *c, void *p, struct dt_error *err)
{
    struct dt_nccl_ranks *s = dt_nccl_of(c->t);
    struct sharing a = {c->own, p};
    struct search mine = {p, false};
    bool all = false;

    if (!a.link)
        return DT_OK;
    DT_TRY(dt_nccl_issue(s, look, &mine, err));
    DT_TRY(all_have(s, c, mine.found, err, &all));
    return dt_nccl_issue(s, all ? share : not_all, &a, err);
}

/* ---- the end of it ---- */

/* Of a communicator that has been given up nothing is known any more. */
static void forget(struct dt_nccl_ranks *s, struct share **at)
{
    struct share *x = *at;
    int result = DT_NCCL_SUCCESS;

    *at = x->next;
    if (x->link->h && x->handle) {
        result = x->window ? s->f->CommWindowDeregister(x->link->h, x->handle)
                           : s->f->CommDeregister(x->link->h, x->handle);
        (void)dt_nccl_wait(s, x->link, "a buffer that is given back", result, NULL);
    }
    dt_free(x);
}

static enum dt_status unshare(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    const struct sharing *a = arg;
    struct dt_nccl_memory *m = find(s, a->p);
    struct share **at = m ? &m->shares : NULL;

    (void)err;
    while (at && *at)
        if ((*at)->link == a->link)
            forget(s, at);
        else
            at = &(*at)->next;
    return DT_OK;
}

static void memory_unshare(struct dt_comm *c, void *p)
{
    struct sharing a = {c->own, p};

    if (a.link)
        (void)dt_nccl_issue(dt_nccl_of(c->t), unshare, &a, NULL);
}

static enum dt_status drop(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    struct dt_nccl_memory **at = &s->memory, *m;
    void **p = arg;

    (void)err;
    while (*at && (*at)->p != *p)
        at = &(*at)->next;
    m = *at;
    if (!m)
        return DT_OK;
    while (m->shares)
        forget(s, &m->shares);
    *at = m->next;
    s->dev->memory_given(s->dev, m->owner, -(int64_t)m->bytes);
    (void)s->f->MemFree(m->p);
    dt_free(m);
    *p = NULL;
    return DT_OK;
}

static void memory_free(struct dt_transport *t, void *p)
{
    struct dt_nccl_ranks *s = dt_nccl_of(t);

    if (!p)
        return;
    (void)dt_nccl_issue(s, drop, &p, NULL);
    s->dev->free(s->dev, p); /* NULL, unless it is the device's */
}

void dt_nccl_memory(struct dt_transport *t)
{
    t->memory_new = memory_new;
    t->memory_share = memory_share;
    t->memory_unshare = memory_unshare;
    t->memory_free = memory_free;
}
