/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * When ops began and ended: read on each rank, put together on rank 0.
 *
 * Every rank's clock is moved by what it is known to be ahead of rank 0's.  What a rank notes about
 * messages is when it posted them and when a test found them over; the rules of core/schedule/program.h say
 * what that means: ops of one resource one after the other, a RECV not before its SEND, members of
 * a group together. */
#include "exec/program/execute_impl.h"

#include <string.h>

enum dt_status dt_exec_event_room(struct dt_exec_events *events, const struct dt_device *dev,
                                  size_t n, struct dt_error *err)
{
    if (dt_grow((void **)&events->begin, &events->cap_begin, n + 1, sizeof(*events->begin)) ||
        dt_grow((void **)&events->end, &events->cap_end, n + 1, sizeof(*events->end)))
        return dt_error_nomem(err, "events");
    for (; events->n < n; events->n++) {
        DT_TRY(dev->event_new(dev, err, &events->begin[events->n]));
        if (dev->event_new(dev, err, &events->end[events->n]) != DT_OK) {
            dev->event_free(events->begin[events->n]);
            return err ? err->status : DT_ERR_NOMEM;
        }
    }
    return DT_OK;
}

void dt_exec_events_free(struct dt_exec_events *events, const struct dt_device *dev)
{
    for (size_t i = 0; i < events->n; i++) {
        dev->event_free(events->begin[i]);
        dev->event_free(events->end[i]);
    }
    dt_free(events->begin);
    dt_free(events->end);
}

/* ---- one rank ---- */

static uint64_t ended_ns(const struct dt_exec *x, uint32_t op)
{
    return op != DT_NONE ? x->env.dev->event_ns(x->events.end[op]) : 0;
}

static uint64_t max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* An operation was posted when what it waits for had been issued, and began when that was done. */
static void times_of_comm(const struct dt_exec *x, uint32_t k, int64_t t[2])
{
    const struct dt_exec_comm *c = &x->comm;
    uint64_t begin = max64(c->begin_ns[k], ended_ns(x, c->after_main[k])), end = c->end_ns[k];

    for (uint32_t i = c->after_land[k]; i != DT_NONE; i = c->land_next[i])
        begin = max64(begin, ended_ns(x, c->land_by[i]));
    if (c->early[k]) /* the host looked later */
        end = ended_ns(x, k);
    else if (c->landed[k])
        end = max64(end, ended_ns(x, k));
    t[0] = (int64_t)begin - x->env.o.clock_ahead_ns;
    t[1] = (int64_t)max64(begin, end) - x->env.o.clock_ahead_ns;
}

/* One member of a group acts for all of this rank. */
static void times_of(const struct dt_exec *x, uint32_t i, int64_t t[2])
{
    uint32_t k = dt_exec_leader(x->it.p, &x->ranks, i);

    if (dt_exec_is_comm(&x->comm, i)) {
        times_of_comm(x, k, t);
    } else {
        t[0] = (int64_t)x->env.dev->event_ns(x->events.begin[k]) - x->env.o.clock_ahead_ns;
        t[1] = (int64_t)x->env.dev->event_ns(x->events.end[k]) - x->env.o.clock_ahead_ns;
    }
}

/* Members of a lane act in lockstep: the first one's times are the lane's. */
static bool on_rank(const struct dt_exec_ranks *ranks, const struct dt_op *op, int rank)
{
    return dt_placement_rank(&ranks->place, op->module, op->replica, op->stage, 0) == rank;
}

static void put(struct dt_timeline *t, uint32_t i, const int64_t v[2])
{
    t->begin_ns[i] = v[0];
    t->end_ns[i] = v[1];
}

static enum dt_status exchange(struct dt_exec *x, int64_t *buf, struct dt_error *err,
                               struct dt_timeline *t)
{
    const struct dt_program *p = x->it.p;
    struct dt_req *req;
    size_t n = 0;

    if (x->ranks.rank != 0) {
        for (uint32_t i = 0; i < p->n_ops; i++)
            if (on_rank(&x->ranks, &p->ops[i], x->ranks.rank))
                times_of(x, i, &buf[2 * n++]);
        DT_TRY(x->ranks.t->post_send(x->ranks.t, 0, DT_EXEC_TAG_TIMES, buf, 2 * n * sizeof(*buf),
                                     NULL, err, &req));
        return dt_transport_wait(x->ranks.t, req, x->env.o.limit_s, "times of ops", err);
    }
    for (int r = 1; r < x->ranks.n; r++) {
        for (uint32_t i = n = 0; i < p->n_ops; i++)
            n += on_rank(&x->ranks, &p->ops[i], r);
        DT_TRY(x->ranks.t->post_recv(x->ranks.t, r, DT_EXEC_TAG_TIMES, buf, 2 * n * sizeof(*buf),
                                     NULL, err, &req));
        DT_TRY(dt_transport_wait(x->ranks.t, req, x->env.o.limit_s, "times of ops", err));
        for (uint32_t i = n = 0; i < p->n_ops; i++)
            if (on_rank(&x->ranks, &p->ops[i], r))
                put(t, i, &buf[2 * n++]);
    }
    return DT_OK;
}

/* The queue stands still before an op that waits for other ranks, or the communication thread for them when all has been
 * done here; not as long as a batch is on its way. */
static uint64_t waited_ns(const struct dt_exec *x)
{
    uint64_t at = x->it.begin_ns, sum = 0;

    for (uint32_t k = 0; k < x->it.n_order; k++) {
        uint32_t i = x->it.order[k];
        uint64_t begin;

        if (dt_exec_is_comm(&x->comm, i))
            continue;
        begin = x->env.dev->event_ns(x->events.begin[i]);
        sum += x->comm.graph.hears[i] && begin > at ? begin - at : 0;
        at = max64(at, x->env.dev->event_ns(x->events.end[i]));
    }
    return sum + (x->it.drained_ns > at ? x->it.drained_ns - at : 0);
}

void dt_exec_read_shares(const struct dt_exec *x, struct dt_exec_result *out)
{
    uint64_t ns = 0;

    for (uint32_t k = 0; k < x->it.n_order; k++) {
        uint32_t i = x->it.order[k];

        if (dt_op_resource(x->it.p->ops[i].kind) == DT_RES_COMPUTE)
            ns += x->env.dev->event_ns(x->events.end[i]) - x->env.dev->event_ns(x->events.begin[i]);
    }
    out->compute_s = (double)ns * 1e-9;
    out->waited_s = x->ranks.t ? (double)waited_ns(x) * 1e-9 : 0;
}

/* ---- all of them ---- */

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Members of a group begin together, when the last one is ready, and end together: when the first
 * one has got what it wanted, since that took all of them, and the others have it as soon as they
 * look.
 */
static void join_groups(const struct dt_program *p, struct dt_timeline *t)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const uint32_t *op = &p->group_ops[p->groups[g].first];
        int64_t begin = INT64_MIN, end = INT64_MAX;

        for (uint32_t k = 0; k < p->groups[g].n; k++) {
            begin = later(begin, t->begin_ns[op[k]]);
            end = t->end_ns[op[k]] < end ? t->end_ns[op[k]] : end;
        }
        for (uint32_t k = 0; k < p->groups[g].n; k++) {
            t->begin_ns[op[k]] = begin < end ? begin : end;
            t->end_ns[op[k]] = end;
        }
    }
}

/* Ops of a resource one after the other. */
static void queue_up(const struct dt_program *p, struct dt_timeline *t, enum dt_op_resource r)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *op = &p->ops[i];

        if (dt_op_resource(op->kind) != r)
            continue;
        if (op->dep[0] != DT_NONE)
            t->begin_ns[i] = later(t->begin_ns[i], t->end_ns[op->dep[0]]);
        t->end_ns[i] = later(t->end_ns[i], t->begin_ns[i]);
    }
}

/* A SEND was over when it had arrived. */
static void end_sends(const struct dt_program *p, struct dt_timeline *t)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == DT_OP_SEND) {
            int64_t arrived = later(t->end_ns[p->ops[i].peer], t->begin_ns[i]);

            t->end_ns[i] = t->end_ns[i] < arrived ? t->end_ns[i] : arrived;
        }
}

/* A RECV that waited for its SEND began with it. */
static void follow_sends(const struct dt_program *p, struct dt_timeline *t)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == DT_OP_RECV) {
            int64_t sent = t->begin_ns[p->ops[i].peer];

            sent = sent < t->end_ns[i] ? sent : t->end_ns[i];
            t->begin_ns[i] = later(t->begin_ns[i], sent);
        }
}

static void count_from_zero(const struct dt_program *p, struct dt_timeline *t)
{
    int64_t zero = p->n_ops > 0 ? INT64_MAX : 0;

    for (uint32_t i = 0; i < p->n_ops; i++)
        zero = t->begin_ns[i] < zero ? t->begin_ns[i] : zero;
    t->makespan_ns = 0;
    t->origin_ns += zero;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        t->begin_ns[i] -= zero;
        t->end_ns[i] -= zero;
        t->makespan_ns = later(t->makespan_ns, t->end_ns[i]);
    }
}

enum dt_status dt_exec_read_timeline(struct dt_exec *x, struct dt_error *err, struct dt_timeline *t)
{
    const struct dt_program *p = x->it.p;
    enum dt_status st = DT_OK;

    DT_TRY(dt_timeline_reserve(t, p->n_ops, err));
    t->origin_ns = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (on_rank(&x->ranks, &p->ops[i], x->ranks.rank)) {
            int64_t v[2];

            times_of(x, i, v);
            put(t, i, v);
        }
    }
    if (x->ranks.t) {
        int64_t *buf = dt_malloc((2 * (size_t)p->n_ops + 2) * sizeof(*buf));

        st = buf ? exchange(x, buf, err, t) : dt_error_nomem(err, "times of ops");
        dt_free(buf);
        if (st != DT_OK || x->ranks.rank != 0)
            return st;
    }
    count_from_zero(p, t);
    if (x->ranks.t) {
        end_sends(p, t);
        queue_up(p, t, DT_RES_P2P_OUT);
        follow_sends(p, t);
        queue_up(p, t, DT_RES_P2P_IN);
    }
    queue_up(p, t, DT_RES_COLL);
    join_groups(p, t);
    count_from_zero(p, t);
    return DT_OK;
}
