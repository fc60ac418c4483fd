/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The transport whose messages between ranks of a host go from card to card by CUDA IPC (transport_ipc.h says how);
 * messages between hosts, and all collectives, are staged. */
#include "comm/transport_ipc.h"

#include "base/mem.h"

#include <stdio.h>

/* ---- groups: the staged transport's, which a comm of ours stands for ---- */

static void comm_free(struct dt_comm *c)
{
    if (c)
        dt_comm_free_over(c);
}

static enum dt_status comm_new(struct dt_transport *t, const int *ranks, int n,
                               struct dt_error *err, struct dt_comm **out)
{
    return dt_comm_new_over(t, dt_ipc_of(t)->staged, sizeof(struct dt_comm), ranks, n, err, out);
}

/* ---- the end ---- */

/* Did all go well, so that the others will part, too? */
static bool is_sound(const struct dt_ipc *s)
{
    bool sound = !s->failed && !s->first;

    for (int k = 0; k < s->t.size; k++)
        sound = sound && s->peer[k].failed.status == DT_OK;
    return sound;
}

/* What the control transport may still read stays until the process ends; so do events that ranks may still ask, which
 * have not said that they ask no more. */
static void free_requests(struct dt_ipc *s, bool parted)
{
    for (struct dt_ipc_request *r = s->all, *next; r; r = next) {
        next = r->all;
        if (parted || (!r->tells && r->kind != DT_IPC_SEND))
            dt_ipc_request_free(s, r);
        else
            dt_transport_leave(r);
    }
}

static void free_peers(struct dt_ipc *s)
{
    bool heard = false;

    for (int k = 0; s->peer && k < s->control->size; k++) {
        heard = heard || s->peer[k].hears;
        while (s->peer[k].offers) {
            struct dt_ipc_offer *o = s->peer[k].offers;

            s->peer[k].offers = o->next;
            dt_free(o);
        }
    }
    if (heard)
        dt_transport_leave(s->peer);
    else
        dt_free(s->peer);
}

static void free_all(struct dt_ipc *s)
{
    bool parts = s->peer && is_sound(s);

    if (s->q)
        s->dev->queue_free(s->q); /* the last copies have been made */
    dt_ipc_mapper_end(s);
    dt_ipc_unmap_all(s);
    if (parts)
        parts = dt_ipc_part(s);
    if (!parts && s->shown)
        s->dev->ipc_leave(s->dev);
    free_requests(s, parts);
    free_peers(s);
    if (s->staged)
        s->staged->close(s->staged);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    dt_free(s);
}

static void close_ipc(struct dt_transport *t)
{
    if (t)
        free_all(dt_ipc_of(t));
}

/* ---- the table ---- */

static void abort_job(struct dt_transport *t, int exit_status)
{
    struct dt_transport *control = dt_ipc_of(t)->control;

    control->abort(control, exit_status);
}

static void give_up(struct dt_transport *t)
{
    struct dt_ipc *s = dt_ipc_of(t);

    pthread_mutex_lock(&s->lock);
    s->failed = true;
    pthread_mutex_unlock(&s->lock);
    s->staged->give_up(s->staged);
}

static enum dt_status state(struct dt_transport *t, struct dt_error *err)
{
    struct dt_transport *staged = dt_ipc_of(t)->staged;

    return staged->state(staged, err);
}

static enum dt_status connect_ipc(struct dt_transport *t, const struct dt_transport_edge *edges,
                                  int n, struct dt_error *err)
{
    struct dt_ipc *s = dt_ipc_of(t);

    pthread_mutex_lock(&s->lock);
    dt_ipc_map_trim(s);
    pthread_mutex_unlock(&s->lock);
    return s->staged->connect(s->staged, edges, n, err);
}

static void fill_table(struct dt_ipc *s)
{
    struct dt_transport *t = &s->t;

    *t = *s->staged; /* who is where, the limit, and who is told of waits */
    snprintf(t->name, sizeof(t->name), "ipc");
    t->impl = s;
    t->close = close_ipc;
    t->abort = abort_job;
    t->give_up = give_up;
    t->state = state;
    t->comm_new = comm_new;
    t->comm_free = comm_free;
    t->connect = connect_ipc;
    dt_ipc_fill_posts(t);
}

static enum dt_status prepare(struct dt_ipc *s, struct dt_error *err)
{
    DT_TRY(dt_transport_open_staged(s->control, s->dev, err, &s->staged));
    DT_TRY(s->dev->queue_new(s->dev, true, err, &s->q));
    s->peer = dt_calloc((size_t)s->control->size, sizeof(*s->peer));
    return s->peer ? dt_ipc_mapper_begin(s, err) : dt_error_nomem(err, "ranks");
}

/* What fails before the others hear of it is theirs, too. */
static enum dt_status open_ipc(struct dt_ipc *s, struct dt_error *err)
{
    struct dt_error why = {0};
    bool able = prepare(s, &why) == DT_OK;

    DT_TRY(dt_ipc_agree(s, able ? NULL : &why, err));
    fill_table(s);
    for (int k = 0; k < s->t.size; k++)
        if (s->peer[k].near)
            DT_TRY(dt_ipc_listen(s, k, err));
    return DT_OK;
}

enum dt_status dt_transport_open_ipc(struct dt_transport *control, const struct dt_device *device,
                                     struct dt_error *err, struct dt_transport **out)
{
    struct dt_ipc *s = dt_calloc(1, sizeof(*s));
    enum dt_status st;

    if (!s)
        return dt_error_nomem(err, "the transport over CUDA IPC");
    s->control = control;
    s->dev = device;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    st = open_ipc(s, err);
    if (st != DT_OK) {
        s->failed = true;
        free_all(s);
        return st;
    }
    *out = &s->t;
    return DT_OK;
}
