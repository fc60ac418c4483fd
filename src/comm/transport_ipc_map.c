/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Blocks and events of other ranks: opened when they are first named, kept, closed at the end.  Of blocks
 * dt_transport_ipc_mappings at most are mapped; the one that was used the longest time ago makes room. */
#include "comm/transport_ipc.h"

#include "base/mem.h"

#include <string.h>

int dt_transport_ipc_mappings = 256;

static void unmap(struct dt_ipc *s, struct dt_ipc_mapping **at)
{
    struct dt_ipc_mapping *m = *at;

    *at = m->next;
    s->n_mappings--;
    s->dev->ipc_unmap(s->dev, m->base);
    dt_free(m);
}

/* Is there room for one more? */
static bool make_room(struct dt_ipc *s)
{
    struct dt_ipc_mapping **oldest = NULL;

    if (s->n_mappings < dt_transport_ipc_mappings)
        return true;
    for (struct dt_ipc_mapping **at = &s->mappings; *at; at = &(*at)->next)
        if ((*at)->users == 0 && (!oldest || (*at)->used < (*oldest)->used))
            oldest = at;
    if (oldest)
        unmap(s, oldest);
    return oldest != NULL;
}

static enum dt_status map_new(struct dt_ipc *s, int peer, const struct dt_device_handle *block,
                              struct dt_error *err, struct dt_ipc_mapping **out)
{
    struct dt_ipc_mapping *m = dt_calloc(1, sizeof(*m));
    enum dt_status st;

    if (!m)
        return dt_error_nomem(err, "another rank's memory");
    m->peer = peer;
    m->block = *block;
    st = s->dev->ipc_map(s->dev, block, err, &m->base);
    if (st != DT_OK) {
        dt_free(m);
        return st;
    }
    m->next = s->mappings;
    s->mappings = m;
    s->n_mappings++;
    *out = m;
    return DT_OK;
}

enum dt_status dt_ipc_map(struct dt_ipc *s, int peer, const struct dt_device_handle *block,
                          struct dt_error *err, struct dt_ipc_mapping **out)
{
    struct dt_ipc_mapping *m = s->mappings;

    *out = NULL;
    while (m && (m->peer != peer || memcmp(&m->block, block, sizeof(*block)) != 0))
        m = m->next;
    if (!m && !make_room(s))
        return DT_OK;
    if (!m)
        DT_TRY(map_new(s, peer, block, err, &m));
    m->users++;
    m->used = ++s->uses;
    *out = m;
    return DT_OK;
}

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
    while (s->mappings)
        unmap(s, &s->mappings);
    for (int k = 0; s->peer && k < s->t.size; k++) {
        for (size_t i = 0; i < s->peer[k].n_events; i++)
            s->dev->event_free(s->peer[k].events[i]);
        dt_free((void *)s->peer[k].events);
        s->peer[k].events = NULL;
        s->peer[k].n_events = s->peer[k].cap_events = 0;
    }
}
