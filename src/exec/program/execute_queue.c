/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The queues of the communication thread's ops.
 *
 * Where no queue ever stands still for other ranks, ops of a kind share one.  A transport that is on_queue has the
 * queue of an op stand still until the others have come, in an order that no rank knows beforehand; one whose
 * collectives are on the queue does so with the main queue, and a SEND that waits for an op there would hold up
 * another, posted after it, that the other rank needs to come.  So each op has a queue of its own then, as long as it is
 * under way, and nothing waits behind it that need not: the proof that posts cannot deadlock
 * (core/schedule/program_check.c) holds for queues, too. */
#include "exec/program/execute_impl.h"

static bool has_own(const struct dt_exec *x)
{
    return x->ranks.data->on_queue || x->ranks.data->collectives_on_queue;
}

static enum dt_status new_own(struct dt_exec_comm *c, const struct dt_device *dev,
                              struct dt_error *err)
{
    struct dt_exec_own_queue own = {0};
    enum dt_status st;

    if (dt_grow((void **)&c->own, &c->cap_own, c->n_own + 1, sizeof(*c->own)))
        return dt_error_nomem(err, "queues");
    DT_TRY(dev->queue_new(dev, true, err, &own.q));
    st = dev->event_new(dev, err, &own.given);
    if (st != DT_OK) {
        dev->queue_free(own.q);
        return st;
    }
    c->own[c->n_own++] = own;
    return DT_OK;
}

/* One that no op is on, or a new one.  (An op without bytes is over at once, but its queue still waits for what came
 * before it.) */
static enum dt_status take_own(struct dt_exec_comm *c, const struct dt_device *dev,
                               struct dt_error *err, struct dt_device_queue **out)
{
    size_t k = 0;

    while (k < c->n_own && (c->own[k].used || !dev->event_done(c->own[k].given)))
        k++;
    if (k == c->n_own)
        DT_TRY(new_own(c, dev, err));
    c->own[k].used = true;
    *out = c->own[k].q;
    return DT_OK;
}

enum dt_status dt_exec_queue_take(struct dt_exec *x, uint32_t i, enum dt_exec_queue kind,
                                  struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;

    c->queue_of[i] = c->q[kind];
    if (has_own(x))
        DT_TRY(take_own(c, x->env.dev, err, &c->queue_of[i]));
    if (c->after_main[i] != DT_NONE)
        x->env.dev->event_wait(c->queue_of[i], x->events.end[c->after_main[i]]);
    dt_exec_queue_land(x, i, c->queue_of[i]);
    return DT_OK;
}

void dt_exec_queue_give(struct dt_exec *x, uint32_t i)
{
    struct dt_exec_comm *c = &x->comm;

    for (size_t k = 0; k < c->n_own; k++)
        if (c->own[k].q == c->queue_of[i]) {
            x->env.dev->event_record(c->own[k].q, c->own[k].given);
            c->own[k].used = false;
        }
}

struct dt_device_queue *dt_exec_queue_of_lands(const struct dt_exec *x, uint32_t i)
{
    return has_own(x) ? x->comm.queue_of[i] : x->comm.q[DT_EXEC_LANDS];
}

/* On a queue of what lands, the last one stands for all before it. */
void dt_exec_queue_landed(struct dt_exec_comm *c, uint32_t successor, uint32_t by)
{
    uint32_t to = c->graph.succ[successor];

    c->land_by[successor] = by;
    c->land_next[successor] = c->n_own > 0 ? c->after_land[to] : DT_NONE;
    c->after_land[to] = successor;
}

void dt_exec_queue_land(const struct dt_exec *x, uint32_t i, struct dt_device_queue *q)
{
    const struct dt_exec_comm *c = &x->comm;

    for (uint32_t k = c->after_land[i]; k != DT_NONE; k = c->land_next[k])
        x->env.dev->event_wait(q, x->events.end[c->land_by[k]]);
}

bool dt_exec_queue_passed(const struct dt_exec *x, uint32_t i)
{
    const struct dt_exec_comm *c = &x->comm;
    const struct dt_device *dev = x->env.dev;

    if (c->after_main[i] != DT_NONE && !dev->event_done(x->events.end[c->after_main[i]]))
        return false;
    for (uint32_t k = c->after_land[i]; k != DT_NONE; k = c->land_next[k])
        if (!dev->event_done(x->events.end[c->land_by[k]]))
            return false;
    return true;
}

enum dt_status dt_exec_queues_new(struct dt_exec *x, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;

    for (int k = 0; k < DT_EXEC_QUEUES; k++) {
        enum dt_status st = x->env.dev->queue_new(x->env.dev, true, err, &c->q[k]);

        if (st == DT_OK)
            continue;
        while (k > 0)
            x->env.dev->queue_free(c->q[--k]);
        c->q[0] = NULL;
        return st;
    }
    return DT_OK;
}

enum dt_status dt_exec_queues_sync(struct dt_exec *x, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;

    for (int k = 0; k < DT_EXEC_QUEUES; k++)
        DT_TRY(x->env.dev->queue_sync(c->q[k], err));
    for (size_t k = 0; k < c->n_own; k++)
        DT_TRY(x->env.dev->queue_sync(c->own[k].q, err));
    return DT_OK;
}

void dt_exec_queues_free(struct dt_exec *x)
{
    struct dt_exec_comm *c = &x->comm;

    for (int k = 0; k < DT_EXEC_QUEUES; k++)
        x->env.dev->queue_free(c->q[k]);
    for (size_t k = 0; k < c->n_own; k++) {
        x->env.dev->queue_free(c->own[k].q);
        x->env.dev->event_free(c->own[k].given);
    }
    dt_free(c->own);
}
