/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Blocks and events of other ranks: opened when they are first named, kept, closed at the end.  Of blocks
 * dt_transport_ipc_mappings at most are left mapped between iterations: unmapping is like freeing, it may wait for the
 * card, which may wait for other ranks.  Those go first that were used the longest time ago.
 *
 *   wanted -- the mapper maps it --> there -- before an iteration, if there are too many --> gone */
#include "comm/transport_ipc.h"

#include "base/mem.h"

#include <string.h>

int dt_transport_ipc_mappings = 256;

/* ---- the mapper ---- */

/* Whoever wants it is its user, so it stays. */
static void map_one(struct dt_ipc *s, struct dt_ipc_mapping *m)
{
    struct dt_device_handle block = m->block;
    struct dt_error err = {0};
    enum dt_status st;
    void *base = NULL;

    pthread_mutex_unlock(&s->lock);
    st = s->dev->ipc_map(s->dev, &block, &err, &base);
    pthread_mutex_lock(&s->lock);
    m->base = base;
    m->failed = err;
    m->failed.status = st;
    m->state = st == DT_OK ? DT_IPC_THERE : DT_IPC_UNMAPPABLE;
}

static struct dt_ipc_mapping *wanted(const struct dt_ipc *s)
{
    struct dt_ipc_mapping *m = s->mappings;

    while (m && m->state != DT_IPC_WANTED)
        m = m->next;
    return m;
}

static void *serve(void *arg)
{
    struct dt_ipc *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->ends) {
        struct dt_ipc_mapping *m = wanted(s);

        if (m)
            map_one(s, m);
        else
            pthread_cond_wait(&s->work, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum dt_status dt_ipc_mapper_begin(struct dt_ipc *s, struct dt_error *err)
{
    if (pthread_create(&s->mapper, NULL, serve, s) != 0)
        return dt_error_set(err, DT_ERR_NOMEM,
                            "the thread that maps other ranks' memory cannot be started");
    s->has_mapper = true;
    return DT_OK;
}

void dt_ipc_mapper_end(struct dt_ipc *s)
{
    if (!s->has_mapper)
        return;
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->mapper, NULL);
    s->has_mapper = false;
}

/* ---- mappings ---- */

static void take_out(struct dt_ipc *s, struct dt_ipc_mapping *m)
{
    struct dt_ipc_mapping **at = &s->mappings;

    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    s->n_mappings--;
}

static enum dt_status want(struct dt_ipc *s, int peer, const struct dt_device_handle *block,
                           struct dt_error *err, struct dt_ipc_mapping **out)
{
    struct dt_ipc_mapping *m = dt_calloc(1, sizeof(*m));

    if (!m)
        return dt_error_nomem(err, "another rank's memory");
    m->state = DT_IPC_WANTED;
    m->peer = peer;
    m->block = *block;
    m->next = s->mappings;
    s->mappings = m;
    s->n_mappings++;
    pthread_cond_signal(&s->work);
    *out = m;
    return DT_OK;
}

enum dt_status dt_ipc_map(struct dt_ipc *s, int peer, const struct dt_device_handle *block,
                          struct dt_error *err, struct dt_ipc_mapping **out)
{
    struct dt_ipc_mapping *m = s->mappings;

    while (m && (m->peer != peer || memcmp(&m->block, block, sizeof(*block)) != 0))
        m = m->next;
    if (!m)
        DT_TRY(want(s, peer, block, err, &m));
    m->users++;
    m->used = ++s->uses;
    *out = m;
    return DT_OK;
}

void dt_ipc_map_leave(struct dt_ipc *s, struct dt_ipc_mapping *m)
{
    if (--m->users > 0 || m->state != DT_IPC_UNMAPPABLE)
        return;
    take_out(s, m);
    dt_free(m);
}

enum dt_status dt_ipc_map_for_good(struct dt_ipc *s, int peer, const struct dt_device_handle *block,
                                   struct dt_error *err, void **base)
{
    struct dt_ipc_mapping *m = dt_calloc(1, sizeof(*m));
    enum dt_status st;

    if (!m)
        return dt_error_nomem(err, "another rank's memory");
    st = s->dev->ipc_map(s->dev, block, err, &m->base);
    if (st != DT_OK) {
        dt_free(m);
        return st;
    }
    m->state = DT_IPC_THERE;
    m->peer = peer;
    m->block = *block;
    m->users = 1; /* which never leaves it, so it is not counted */
    m->next = s->mappings;
    s->mappings = m;
    *base = m->base;
    return DT_OK;
}

static struct dt_ipc_mapping *oldest(const struct dt_ipc *s)
{
    struct dt_ipc_mapping *old = NULL;

    for (struct dt_ipc_mapping *m = s->mappings; m; m = m->next)
        if (m->users == 0 && m->state == DT_IPC_THERE && (!old || m->used < old->used))
            old = m;
    return old;
}

void dt_ipc_map_trim(struct dt_ipc *s)
{
    struct dt_ipc_mapping *m;

    while (s->n_mappings > dt_transport_ipc_mappings && (m = oldest(s)) != NULL) {
        take_out(s, m);
        s->dev->ipc_unmap(s->dev, m->base);
        dt_free(m);
    }
}

/* ---- events ---- */

enum dt_status dt_ipc_event(struct dt_ipc *s, int peer, const struct dt_ipc_note *copied,
                            struct dt_error *err, struct dt_device_event **out)
{
    struct dt_ipc_peer *p = &s->peer[peer];
    size_t had = p->n_events, n = copied->event;

    if (dt_grow((void **)&p->events, &p->cap_events, n, sizeof(*p->events)) != 0)
        return dt_error_nomem(err, "events of another rank");
    if (n > had) {
        memset((void *)(p->events + had), 0, (n - had) * sizeof(*p->events));
        p->n_events = n;
    }
    if (!p->events[n - 1])
        DT_TRY(s->dev->ipc_event_open(s->dev, &copied->handle, err, &p->events[n - 1]));
    *out = p->events[n - 1];
    return DT_OK;
}

void dt_ipc_unmap_all(struct dt_ipc *s)
{
    for (struct dt_ipc_mapping *m = s->mappings, *next; m; m = next) {
        next = m->next;
        if (m->state == DT_IPC_THERE)
            s->dev->ipc_unmap(s->dev, m->base);
        dt_free(m);
    }
    s->mappings = NULL;
    s->n_mappings = 0;
    for (int k = 0; s->peer && k < s->t.size; k++) {
        for (size_t i = 0; i < s->peer[k].n_events; i++)
            s->dev->event_free(s->peer[k].events[i]);
        dt_free((void *)s->peer[k].events);
        s->peer[k].events = NULL;
        s->peer[k].n_events = s->peer[k].cap_events = 0;
    }
}
