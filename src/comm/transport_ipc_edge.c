/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How a message gets from card to card: offers, copies and notes (transport_ipc.h). */
#include "comm/transport_ipc.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>
#include <time.h>

uint64_t dt_transport_ipc_part_ns = UINT64_C(5000000000);

/* ---- what is told ---- */

static void fails(struct dt_ipc_request *r, enum dt_status st)
{
    r->failed.status = st;
}

/* r->note, which stays until `tells` is over. */
static void tell(struct dt_ipc *s, struct dt_ipc_request *r)
{
    enum dt_status st = s->control->post_send(s->control, r->peer, DT_IPC_TAG, &r->note,
                                              sizeof(r->note), NULL, &r->failed, &r->tells);

    if (st != DT_OK)
        fails(r, st);
}

/* Is it the first of its peer, tag and direction that has not been offered, or matched? */
static bool has_turn(const struct dt_ipc *s, const struct dt_ipc_request *r)
{
    const struct dt_ipc_request *a = s->first;

    while (a != r && (a->state != DT_IPC_WAITS || a->kind != r->kind || a->peer != r->peer ||
                      a->tag != r->tag))
        a = a->next;
    return a == r;
}

/* ---- receives ---- */

static void offer(struct dt_ipc *s, struct dt_ipc_request *r)
{
    enum dt_status st = DT_OK;
    size_t offset = 0;

    if (!s->dev->event_done(r->ready) || !has_turn(s, r))
        return;
    r->note = (struct dt_ipc_note){
        .kind = DT_IPC_OFFER, .tag = r->tag, .number = r->number, .bytes = r->bytes};
    if (r->bytes > 0)
        st = s->dev->ipc_memory(s->dev, r->buf, &r->failed, &r->note.handle, &offset);
    r->note.offset = offset;
    r->state = DT_IPC_UNDER_WAY;
    s->shown = s->shown || (st == DT_OK && r->bytes > 0);
    if (st == DT_OK)
        tell(s, r);
    else
        fails(r, st);
}

/* ---- sends ---- */

static void match(struct dt_ipc *s, struct dt_ipc_request *r)
{
    struct dt_ipc_offer **at = &s->peer[r->peer].offers, *o;

    while (*at && (*at)->note.tag != r->tag)
        at = &(*at)->next;
    o = *at;
    if (!o || !has_turn(s, r))
        return;
    *at = o->next;
    r->note = o->note;
    r->state = DT_IPC_MATCHED;
    dt_free(o);
}

/* Where the block is mapped; *later: when it is, or when fewer blocks are in use. */
static enum dt_status find_mapping(struct dt_ipc *s, struct dt_ipc_request *r, bool *later,
                                   struct dt_error *err)
{
    struct dt_ipc_mapping *m;
    enum dt_status st;

    if (!r->mapping)
        DT_TRY(dt_ipc_map(s, r->peer, &r->note.handle, err, &r->mapping));
    m = r->mapping;
    *later = m->state == DT_IPC_WANTED;
    if (*later || m->state == DT_IPC_THERE)
        return DT_OK;
    st = m->failed.status;
    if (err)
        *err = m->failed;
    r->mapping = NULL;
    dt_ipc_map_leave(s, m);
    return st;
}

/* Puts the copy on its queue.  *later: nothing is done yet. */
static enum dt_status copy(struct dt_ipc *s, struct dt_ipc_request *r, bool *later,
                           struct dt_error *err)
{
    const struct dt_device *d = s->dev;

    *later = false;
    if (r->note.bytes != r->bytes)
        return dt_transport_size_error(err, s->t.rank, r->peer, (uint64_t)r->tag, r->bytes,
                                       (size_t)r->note.bytes);
    if (r->bytes == 0)
        return DT_OK;
    DT_TRY(find_mapping(s, r, later, err));
    if (*later)
        return DT_OK;
    d->copy(s->q, (char *)r->mapping->base + r->note.offset, r->buf, r->bytes, DT_COPY_ON_DEVICE);
    d->event_record(s->q, r->copied);
    return d->queue_state(s->q) == DT_OK ? DT_OK : d->queue_sync(s->q, err);
}

static void write_out(struct dt_ipc *s, struct dt_ipc_request *r)
{
    enum dt_status st;
    bool later;

    if (!s->dev->event_done(r->ready))
        return;
    st = copy(s, r, &later, &r->failed);
    if (later)
        return;
    r->note.kind = st == DT_OK ? DT_IPC_COPIED : DT_IPC_REFUSED;
    r->note.bytes = r->bytes;
    r->note.event = r->bytes > 0 ? r->number : 0;
    r->note.handle = r->copied_handle;
    r->state = DT_IPC_UNDER_WAY;
    fails(r, st);
    if (st == DT_OK) {
        tell(s, r);
    } else { /* what failed is said here, whether they can be told or not */
        struct dt_error first = r->failed;

        tell(s, r);
        r->failed = first;
    }
}

static void end_copy(struct dt_ipc *s, struct dt_ipc_request *r)
{
    if (r->bytes > 0 && !s->dev->event_done(r->copied))
        return;
    if (r->mapping)
        dt_ipc_map_leave(s, r->mapping);
    r->mapping = NULL;
    r->state = DT_IPC_OVER;
    if (r->failed.status == DT_OK && s->dev->queue_state(s->q) != DT_OK)
        fails(r, s->dev->queue_sync(s->q, &r->failed));
}

void dt_ipc_advance(struct dt_ipc *s, struct dt_ipc_request *r)
{
    if (r->kind == DT_IPC_RECV && r->state == DT_IPC_WAITS)
        offer(s, r);
    if (r->kind == DT_IPC_RECV)
        return;
    if (r->state == DT_IPC_WAITS)
        match(s, r);
    if (r->state == DT_IPC_MATCHED)
        write_out(s, r);
    if (r->state == DT_IPC_UNDER_WAY)
        end_copy(s, r);
}

/* ---- what is heard ---- */

static enum dt_status keep_offer(struct dt_ipc_peer *p, struct dt_error *err)
{
    struct dt_ipc_offer **end = &p->offers, *o = dt_calloc(1, sizeof(*o));

    if (!o)
        return dt_error_nomem(err, "an offer of another rank");
    while (*end)
        end = &(*end)->next;
    o->note = p->heard;
    *end = o;
    return DT_OK;
}

/* COPIED, or REFUSED: of a receive that was offered. */
static enum dt_status end_receive(struct dt_ipc *s, int peer, struct dt_error *err)
{
    const struct dt_ipc_note *n = &s->peer[peer].heard;
    struct dt_ipc_request *r = s->first;

    while (r && (r->kind != DT_IPC_RECV || r->peer != peer || r->number != n->number ||
                 r->state != DT_IPC_UNDER_WAY))
        r = r->next;
    if (!r) /* it was given up */
        return DT_OK;
    r->state = DT_IPC_OVER;
    r->copied = NULL;
    if (n->bytes != r->bytes)
        fails(r, dt_transport_size_error(&r->failed, peer, s->t.rank, (uint64_t)r->tag,
                                         (size_t)n->bytes, r->bytes));
    else if (n->kind == DT_IPC_REFUSED)
        fails(r, dt_error_set(&r->failed, DT_ERR_PEER,
                              "rank %d could not write its %zu bytes with tag %d to rank %d", peer,
                              r->bytes, r->tag, s->t.rank));
    else if (n->event > 0) {
        enum dt_status st = dt_ipc_event(s, peer, n, &r->failed, &r->copied);

        fails(r, st); /* else it would seem over while the copy is under way */
        if (st != DT_OK && err)
            *err = r->failed;
        return st;
    }
    return DT_OK;
}

static enum dt_status take(struct dt_ipc *s, int peer, struct dt_error *err)
{
    struct dt_ipc_peer *p = &s->peer[peer];

    switch ((enum dt_ipc_note_kind)p->heard.kind) {
    case DT_IPC_OFFER:
        return keep_offer(p, err);
    case DT_IPC_COPIED:
    case DT_IPC_REFUSED:
        return end_receive(s, peer, err);
    case DT_IPC_BYE:
        p->gone = true;
        return DT_OK;
    }
    return dt_error_set(err, DT_ERR_PEER, "rank %d sent what is no note about memory (%#x)", peer,
                        p->heard.kind);
}

enum dt_status dt_ipc_listen(struct dt_ipc *s, int peer, struct dt_error *err)
{
    struct dt_ipc_peer *p = &s->peer[peer];

    return s->control->post_recv(s->control, peer, DT_IPC_TAG, &p->heard, sizeof(p->heard), NULL,
                                 err, &p->hears);
}

static void hear(struct dt_ipc *s, int peer)
{
    struct dt_ipc_peer *p = &s->peer[peer];

    while (p->hears) {
        bool came = false;
        enum dt_status st = s->control->test(s->control, p->hears, &came, &p->failed);

        if (st == DT_OK && !came)
            return;
        p->hears = NULL;
        if (st == DT_OK)
            st = take(s, peer, &p->failed);
        if (st == DT_OK && !p->gone)
            st = dt_ipc_listen(s, peer, &p->failed);
        p->failed.status = st;
    }
}

void dt_ipc_advance_all(struct dt_ipc *s)
{
    for (int k = 0; k < s->t.size; k++)
        hear(s, k);
    for (struct dt_ipc_request *r = s->first; r; r = r->next)
        dt_ipc_advance(s, r);
}

/* ---- over? ---- */

static enum dt_status told(struct dt_ipc *s, struct dt_ipc_request *r, struct dt_error *err)
{
    bool over = true;

    if (r->tells)
        DT_TRY(s->control->test(s->control, r->tells, &over, err));
    if (over)
        r->tells = NULL;
    return DT_OK;
}

enum dt_status dt_ipc_look(struct dt_ipc *s, struct dt_ipc_request *r, bool *over,
                           struct dt_error *err)
{
    const struct dt_ipc_peer *p = &s->peer[r->peer];
    const struct dt_error *e = r->failed.status != DT_OK ? &r->failed : NULL;

    if (!e && r->kind == DT_IPC_RECV && r->copied && p->failed.status != DT_OK)
        e = &p->failed; /* nobody can say any more that the copy is over */
    *over = !e && r->state == DT_IPC_OVER &&
            (r->kind == DT_IPC_SEND || !r->copied || s->dev->event_done(r->copied));
    if (*over) {
        DT_TRY(told(s, r, err));
        *over = !r->tells;
    }
    if (!*over && !e && p->failed.status != DT_OK)
        e = &p->failed;
    if (r->state != DT_IPC_OVER && !e && p->gone)
        return dt_error_set(err, DT_ERR_PEER, "rank %d has ended before a message %s it was over",
                            r->peer, r->kind == DT_IPC_SEND ? "to" : "from");
    if (e && err)
        *err = *e;
    return e ? e->status : DT_OK;
}

/* ---- the end ---- */

static bool all_gone(struct dt_ipc *s, struct dt_req **tells)
{
    bool all = true;

    for (int k = 0; k < s->t.size; k++) {
        struct dt_ipc_peer *p = &s->peer[k];
        bool over = true;

        hear(s, k);
        if (tells[k] && s->control->test(s->control, tells[k], &over, NULL) != DT_OK)
            over = true;
        if (over)
            tells[k] = NULL;
        all = all && !tells[k] && !p->hears;
    }
    return all;
}

bool dt_ipc_part(struct dt_ipc *s)
{
    static struct dt_ipc_note bye = {.kind = DT_IPC_BYE}; /* stays, whoever has not read it */
    struct dt_req **tells = dt_calloc((size_t)s->t.size, sizeof(*tells));
    const struct timespec pause = {0, 100000};
    uint64_t begin = dt_clock_ns();

    bool all;

    if (!tells)
        return false;
    for (int k = 0; k < s->t.size; k++)
        if (s->peer[k].near && s->peer[k].failed.status == DT_OK &&
            s->control->post_send(s->control, k, DT_IPC_TAG, &bye, sizeof(bye), NULL, NULL,
                                  &tells[k]) != DT_OK)
            tells[k] = NULL;
    while (!(all = all_gone(s, tells)) && dt_clock_ns() - begin < dt_transport_ipc_part_ns)
        nanosleep(&pause, NULL);
    dt_free((void *)tells);
    return all;
}
