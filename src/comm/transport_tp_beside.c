/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives of tensor parallelism beside the caller's work.
 *
 *   q        ... | record ready | product of another chunk ....... | wait for over | ...
 *   its own      (wait for ready) [ collective ] record over
 *
 * Members meet on one queue in the order of the calls, whichever collectives are begun and ended early: a comm may
 * have its collectives on one queue only (transport.h). */
#include "comm/transport_tp_impl.h"

#include "base/mem.h"

struct slot {
    struct dt_req *req;                   /* where the host waits; NULL: none is under way */
    struct dt_device_event *ready, *over; /* where a queue does */
};

struct dt_tp_beside {
    const struct dt_device *dev;
    struct dt_device_queue *q; /* NULL: no queue runs on its own */
    struct slot slot[DT_TP_BESIDE_MAX];
    int next;
};

/* ---- a queue of their own ---- */

static enum dt_status fill(struct dt_tp_beside *b, struct dt_error *err)
{
    if (!b->dev->info.gates) /* calls have run when they return */
        return DT_OK;
    DT_TRY(b->dev->queue_new(b->dev, true, err, &b->q));
    for (int i = 0; i < DT_TP_BESIDE_MAX; i++) {
        DT_TRY(b->dev->event_new(b->dev, err, &b->slot[i].ready));
        DT_TRY(b->dev->event_new(b->dev, err, &b->slot[i].over));
    }
    return DT_OK;
}

void dt_tp_beside_free(struct dt_tp *tp)
{
    struct dt_tp_beside *b = tp->beside;

    if (!b)
        return;
    b->dev->queue_free(b->q);
    for (int i = 0; i < DT_TP_BESIDE_MAX; i++) {
        b->dev->event_free(b->slot[i].ready);
        b->dev->event_free(b->slot[i].over);
    }
    dt_free(b);
    tp->beside = NULL;
}

enum dt_status dt_tp_beside_new(struct dt_tp *tp, const struct dt_device *dev, struct dt_error *err)
{
    enum dt_status st;

    tp->beside = dt_calloc(1, sizeof(*tp->beside));
    if (!tp->beside)
        return dt_error_nomem(err, "collectives beside products");
    tp->beside->dev = dev;
    st = fill(tp->beside, err);
    if (st != DT_OK)
        dt_tp_beside_free(tp);
    return st;
}

/* ---- beginning and ending ---- */

static enum dt_status begin_now(struct dt_device_queue *q, struct dt_tp *tp,
                                const struct dt_tp_job *j, void *x)
{
    struct dt_transport *t = dt_comm_transport(tp->comm);
    struct dt_req *r;

    if (t->on_queue || t->collectives_on_queue)
        return j->post(tp, j, x, q, NULL);
    DT_TRY(j->post(tp, j, x, q, &r));
    return dt_transport_wait(t, r, tp->limit_s, j->what, &tp->error);
}

static enum dt_status begin_beside(struct dt_device_queue *q, struct dt_tp *tp,
                                   const struct dt_tp_job *j, void *x, int *begun)
{
    struct dt_tp_beside *b = tp->beside;
    struct slot *s = &b->slot[b->next];

    if (b->q) {
        b->dev->event_record(q, s->ready);
        b->dev->event_wait(b->q, s->ready);
        DT_TRY(j->post(tp, j, x, b->q, NULL));
        b->dev->event_record(b->q, s->over);
    } else {
        if (s->req)
            return dt_error_set(&tp->error, DT_ERR_INTERNAL, "more than %d collectives at once",
                                DT_TP_BESIDE_MAX);
        DT_TRY(j->post(tp, j, x, q, &s->req));
    }
    *begun = b->next;
    b->next = (b->next + 1) % DT_TP_BESIDE_MAX;
    return DT_OK;
}

int dt_tp_begin(struct dt_device_queue *q, struct dt_tp *tp, const struct dt_tp_job *j, void *x)
{
    struct dt_transport *t = dt_comm_transport(tp->comm);
    bool queues = t->on_queue || t->collectives_on_queue;
    enum dt_status st;
    int begun = -1;

    if (tp->beside && (tp->beside->q || !queues))
        st = begin_beside(q, tp, j, x, &begun);
    else
        st = begin_now(q, tp, j, x);
    if (st != DT_OK && tp->error.status == DT_OK)
        dt_error_set(&tp->error, st, "%s failed", j->what);
    return begun;
}

void dt_tp_end(struct dt_device_queue *q, struct dt_tp *tp, int begun)
{
    struct dt_tp_beside *b = tp ? tp->beside : NULL;
    struct dt_req *r;
    enum dt_status st;

    if (!b || begun < 0)
        return;
    if (b->q) {
        b->dev->event_wait(q, b->slot[begun].over);
        return;
    }
    r = b->slot[begun].req;
    b->slot[begun].req = NULL;
    if (!r || tp->error.status != DT_OK)
        return; /* what is under way after a failure is left to the transport's end */
    st = dt_transport_wait(dt_comm_transport(tp->comm), r, tp->limit_s,
                           "a collective inside a lane", &tp->error);
    if (st != DT_OK && tp->error.status == DT_OK)
        dt_error_set(&tp->error, st, "a collective inside a lane failed");
}
