/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The communication thread: posts what is ready, makes progress of what is under way, and tells the
 * main thread what has completed.
 *
 *   main thread   compute ... issued(i) --> pending of successors falls --> ready[] --------+
 *                 wait(j) <-- pending of j is 0 <-- complete <-- progress <-- post <--------+  this thread
 *
 * The main thread does not wait for what it has issued, nor does this one: what this one posts for an op
 * begins, on the device, when the ops that it waits for are done (execute_post.c, follow).  Only what the
 * host itself sends, losses and tokens, is held here until then.
 *
 * It shares its core with compute: after a test that found nothing it pauses (comm/backoff.h), each
 * time longer, and shorter while the main thread has nothing to do but wait.  A new op to post
 * wakes it at once. */
#include "base/clock.h"
#include "exec/program/execute_impl.h"
#include "comm/backoff.h"

#include <string.h>
#include <unistd.h>

/* ---- locked ---- */

/* What i waits for is one less. */
static void satisfy(struct dt_exec_comm *c, uint32_t i)
{
    if (--c->graph.pending[i] == 0 && c->graph.kind[i] == DT_EXEC_COMM)
        c->ready[c->ready_end++] = i;
}

/* Whose turn it is, and what is left of `by` on a queue. */
enum { OF_MAIN = 1 << DT_EXEC_MAIN, OF_COMM = 1 << DT_EXEC_COMM, OF_ALL = OF_MAIN | OF_COMM };
enum left { NOTHING, ON_MAIN, LANDING };

static void satisfy_successors(struct dt_exec_comm *c, const struct dt_program *p, uint32_t i,
                               unsigned whose, enum left left, uint32_t by)
{
    bool send = i < p->n_ops && p->ops[i].kind == DT_OP_SEND && c->graph.kind[i] == DT_EXEC_COMM;

    for (uint32_t k = c->graph.succ_first[i]; k < c->graph.succ_first[i + 1]; k++) {
        uint32_t to = c->graph.succ[k];

        /* those behind a SEND went on when it was posted */
        if (send || !(whose & 1u << c->graph.kind[to]))
            continue;
        if (left == ON_MAIN)
            c->after_main[to] = by;
        if (left == LANDING)
            dt_exec_queue_landed(c, k, by);
        satisfy(c, to);
    }
}

static bool is_collective(const struct dt_program *p, uint32_t i)
{
    return i < p->n_ops && dt_op_resource(p->ops[i].kind) == DT_RES_COLL;
}

/* Op i is over, for all members of its group that are here, but for what has landed.  To some (`whose`) it may
 * be so before, as their queues wait. */
static void complete(struct dt_exec_comm *c, const struct dt_program *p, uint32_t i, unsigned whose)
{
    const struct dt_group *g;
    enum left left;

    pthread_mutex_lock(&c->lock);
    left = c->landed[i] ? LANDING : NOTHING;
    if (is_collective(p, i) && c->graph.kind[i] == DT_EXEC_COMM) {
        g = &p->groups[p->ops[i].peer];
        for (uint32_t k = 0; k < g->n; k++)
            if (c->graph.kind[p->group_ops[g->first + k]] == DT_EXEC_COMM)
                satisfy_successors(c, p, p->group_ops[g->first + k], whose, left, i);
    } else {
        satisfy_successors(c, p, i, whose, left, i);
    }
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* One less to be waited for in the end. */
static void count_down(struct dt_exec_comm *c)
{
    pthread_mutex_lock(&c->lock);
    c->left--;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

static void fail(struct dt_exec_comm *c, enum dt_status st, const struct dt_error *e)
{
    pthread_mutex_lock(&c->lock);
    c->status = st;
    c->error = *e;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* ---- requests ---- */

enum dt_status dt_exec_request_add(struct dt_exec_comm *c, uint32_t i, struct dt_transport *t,
                                   struct dt_req *req, struct dt_exec_packed *packed,
                                   struct dt_error *err)
{
    if (dt_grow((void **)&c->requests, &c->cap_requests, c->n_requests + 1, sizeof(*c->requests)))
        return dt_error_nomem(err, "operations under way");
    c->requests[c->n_requests++] = (struct dt_exec_request){t, req, i, dt_clock_ns(), packed};
    c->under_way[i]++;
    return DT_OK;
}

static enum dt_status land(struct dt_exec *x, uint32_t i, const struct dt_exec_packed *packed,
                           struct dt_error *err)
{
    bool landed;

    DT_TRY(dt_exec_complete(x, i, packed, &landed, err));
    landed = landed || x->comm.early[i];
    if (landed)
        x->env.dev->event_record(dt_exec_queue_of_lands(x, i), x->events.end[i]);
    x->comm.landed[i] = landed;
    return DT_OK;
}

/* Who need not wait until op i is over, when it is on its queue: the main thread; and collectives, which need no
 * memory of their own.  Messages do, so the next one of a lane is posted when the one before it is over. */
static unsigned goes_on(const struct dt_program *p, uint32_t i)
{
    return is_collective(p, i) ? OF_ALL : OF_MAIN;
}

/* All requests of op i are on its queue, and so is what remains to be done. */
static enum dt_status go_early(struct dt_exec *x, uint32_t i, const struct dt_exec_packed *packed,
                               struct dt_error *err)
{
    x->comm.early[i] = true;
    DT_TRY(land(x, i, packed, err));
    complete(&x->comm, x->it.p, i, goes_on(x->it.p, i));
    return DT_OK;
}

/* All requests of op i are over. */
static enum dt_status complete_op(struct dt_exec *x, uint32_t i,
                                  const struct dt_exec_packed *packed, struct dt_error *err)
{
    if (!x->comm.early[i])
        DT_TRY(land(x, i, packed, err));
    dt_exec_queue_give(x, i);
    x->comm.end_ns[i] = dt_clock_ns();
    complete(&x->comm, x->it.p, i,
             x->comm.early[i] ? OF_ALL & ~goes_on(x->it.p, i) : (unsigned)OF_ALL);
    count_down(&x->comm);
    return DT_OK;
}

/* A SEND hands nothing on, and losses and tokens are the host's. */
static bool may_go_early(const struct dt_exec *x, uint32_t i)
{
    return x->ranks.data->on_queue && x->comm.under_way[i] > 0 && i < x->it.p->n_ops &&
           x->it.p->ops[i].kind != DT_OP_SEND;
}

/* No request of op i is under way: what is left of it is posted, or it is over. */
static enum dt_status go_on(struct dt_exec *x, uint32_t i, const struct dt_exec_packed *packed,
                            struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;
    enum dt_status st;

    if (!c->more[i]) {
        c->more[i] = true;
        st = dt_exec_post_more(x, i, err);
        if (st != DT_OK)
            return dt_exec_error_at(x, i, st, err);
    }
    return c->under_way[i] == 0 ? complete_op(x, i, packed, err) : DT_OK;
}

static enum dt_status post_op(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;
    enum dt_status st;

    c->begin_ns[i] = dt_clock_ns();
    st = dt_exec_post(x, i, err);
    c->more[i] = x->ranks.data->on_queue;
    if (st == DT_OK && c->more[i])
        st = dt_exec_post_more(x, i, err);
    if (st != DT_OK)
        return dt_exec_error_at(x, i, st, err);
    if (i < x->it.p->n_ops && x->it.p->ops[i].kind == DT_OP_SEND) {
        pthread_mutex_lock(&c->lock);
        for (uint32_t k = c->graph.succ_first[i]; k < c->graph.succ_first[i + 1]; k++)
            satisfy(c, c->graph.succ[k]);
        pthread_mutex_unlock(&c->lock);
    }
    if (may_go_early(x, i)) /* its last request is the latest of all */
        return go_early(x, i, c->requests[c->n_requests - 1].packed, err);
    return c->under_way[i] == 0 ? go_on(x, i, NULL, err) : DT_OK;
}

static enum dt_status check_limit(const struct dt_exec_ranks *ranks,
                                  const struct dt_exec_request *f, struct dt_error *err)
{
    double limit = ranks->env->o.limit_s > 0 ? ranks->env->o.limit_s : ranks->t->limit_s;

    if ((double)(dt_clock_ns() - f->since_ns) * 1e-9 < limit)
        return DT_OK;
    return dt_error_set(err, DT_ERR_TIMEOUT, "not over after %g s", limit);
}

/* All parts of a RECV that do not lie side by side come into one buffer. */
static bool is_used(const struct dt_exec_comm *c, const struct dt_exec_packed *packed)
{
    for (size_t k = 0; k < c->n_requests; k++)
        if (c->requests[k].packed == packed)
            return true;
    return false;
}

static enum dt_status progress_requests(struct dt_exec *x, bool *any, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;

    for (size_t k = 0; k < c->n_requests;) {
        struct dt_exec_request f = c->requests[k];
        bool done = false;
        enum dt_status st = f.t->test(f.t, f.req, &done, err);

        if (st == DT_OK && !done)
            st = check_limit(&x->ranks, &f, err);
        if (st != DT_OK)
            return dt_exec_error_at(x, f.op, st, err);
        if (!done) {
            k++;
            continue;
        }
        memmove(&c->requests[k], &c->requests[k + 1], (--c->n_requests - k) * sizeof(f));
        *any = true;
        if (--c->under_way[f.op] == 0)
            DT_TRY(go_on(x, f.op, f.packed, err));
        if (f.packed && !is_used(c, f.packed))
            f.packed->used = false;
    }
    return DT_OK;
}

/* ---- the thread ---- */

static bool take_ready(struct dt_exec_comm *c, uint32_t *i)
{
    bool any;

    pthread_mutex_lock(&c->lock);
    any = c->ready_first < c->ready_end;
    if (any)
        *i = c->ready[c->ready_first++];
    pthread_mutex_unlock(&c->lock);
    return any;
}

/* Tokens and losses are the host's to send: has what they tell of been computed?  Others take turns. */
static bool may_post(struct dt_exec *x, uint32_t i)
{
    bool turn;

    if (i < x->it.p->n_ops) {
        pthread_mutex_lock(&x->comm.lock);
        turn = dt_exec_turn(&x->comm.turns, x->it.p, i);
        pthread_mutex_unlock(&x->comm.lock);
        return turn;
    }
    if (i == dt_exec_loss_number(&x->comm.graph))
        return x->env.dev->event_done(x->losses.read);
    return dt_exec_queue_passed(x, i);
}

static enum dt_status post_in_turn(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;

    DT_TRY(post_op(x, i, err));
    pthread_mutex_lock(&c->lock);
    if (dt_exec_turn_over(&c->turns, x->it.p, i))
        pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
    return DT_OK;
}

static enum dt_status post_ready(struct dt_exec *x, bool *any, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;
    uint32_t i, n = c->n_held;

    c->n_held = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (may_post(x, c->held[k])) {
            DT_TRY(post_in_turn(x, c->held[k], err));
            *any = true;
        } else {
            c->held[c->n_held++] = c->held[k];
        }
    }
    while (take_ready(c, &i)) {
        if (may_post(x, i)) {
            DT_TRY(post_in_turn(x, i, err));
            *any = true;
        } else {
            c->held[c->n_held++] = i;
        }
    }
    return DT_OK;
}

/* Until there is something to post, or it is time to test again. */
static bool pause_or_stop(struct dt_exec *x, int64_t *pause_ns)
{
    struct dt_exec_comm *c = &x->comm;
    struct timespec until;
    bool stop;

    pthread_mutex_lock(&c->lock);
    while (!c->stop && c->ready_first == c->ready_end && c->n_requests == 0 && c->n_held == 0)
        pthread_cond_wait(&c->work, &c->lock);
    if (!c->stop && c->ready_first == c->ready_end) {
        until =
            dt_clock_in(dt_backoff_ns(c->main_waits, dt_transport_crowded(x->ranks.t), pause_ns));
        pthread_cond_timedwait(&c->work, &c->lock, &until);
    }
    stop = c->stop;
    pthread_mutex_unlock(&c->lock);
    return stop;
}

static enum dt_status serve(struct dt_exec *x, struct dt_error *err)
{
    int64_t pause_ns = 0;
    bool progress;

    do {
        progress = false;
        DT_TRY(post_ready(x, &progress, err));
        DT_TRY(progress_requests(x, &progress, err));
        if (progress) {
            pause_ns = 0;
            continue;
        }
    } while (progress || !pause_or_stop(x, &pause_ns));
    return DT_OK;
}

static void *run(void *arg)
{
    struct dt_exec *x = arg;
    struct dt_exec_comm *c = &x->comm;
    struct dt_error err = {0};
    enum dt_status st = serve(x, &err);

    if (st != DT_OK) {
        fail(&x->comm, st, &err);
        x->ranks.data->give_up(
            x->ranks.data); /* the main queue may wait for ranks that do not come */
    }
    pthread_mutex_lock(&c->lock); /* after a failure: nothing more until the end */
    while (!c->stop)
        pthread_cond_wait(&c->work, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

enum dt_status dt_exec_comm_init(struct dt_exec *x, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;
    pthread_condattr_t a;
    bool ok;

    if (!x->ranks.t)
        return DT_OK;
    DT_TRY(dt_exec_queues_new(x, err));
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&c->work, &a);
    pthread_condattr_destroy(&a);
    pthread_cond_init(&c->done, NULL);
    ok = pthread_create(&c->thread, NULL, run, x) == 0;
    if (!ok)
        return dt_error_set(err, DT_ERR_NOMEM, "the communication thread cannot be started");
    c->started = true;
    return DT_OK;
}

void dt_exec_comm_free(struct dt_exec *x)
{
    struct dt_exec_comm *c = &x->comm;

    if (!c->q[0])
        return;
    if (c->started) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    if (c->n_requests > 0) /* a step has failed */
        x->ranks.data->give_up(x->ranks.data);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->done);
    dt_exec_queues_free(x); /* when nothing is on them */
    for (size_t k = 0; k < c->n_pool; k++) {
        dt_exec_message_room_free(&x->ranks, &c->pool[k]->data);
        x->env.dev->event_free(c->pool[k]->read);
        dt_free(c->pool[k]);
    }
    dt_exec_message_outgrown(c, &x->ranks);
    dt_free((void *)c->outgrown);
    dt_free((void *)c->pool);
    dt_exec_graph_free(&c->graph);
    dt_exec_turns_free(&c->turns);
    dt_free(c->ready);
    dt_free(c->requests);
    dt_free(c->under_way);
    dt_free(c->held);
    dt_free(c->after_main);
    dt_free(c->after_land);
    dt_free(c->land_by);
    dt_free(c->land_next);
    dt_free(c->landed);
    dt_free(c->early);
    dt_free(c->more);
    dt_free((void *)c->queue_of);
    dt_free(c->begin_ns);
    dt_free(c->end_ns);
}

/* ---- the main thread ---- */

static enum dt_status room(struct dt_exec_comm *c, struct dt_error *err)
{
    size_t n = c->graph.n, places = c->graph.succ_first[n] + 1u;

    if (dt_grow((void **)&c->ready, &c->cap_ready, n, sizeof(*c->ready)) ||
        dt_grow((void **)&c->under_way, &c->cap_under_way, n, sizeof(*c->under_way)) ||
        dt_grow((void **)&c->held, &c->cap_held, n, sizeof(*c->held)) ||
        dt_grow((void **)&c->after_main, &c->cap_after_main, n, sizeof(*c->after_main)) ||
        dt_grow((void **)&c->after_land, &c->cap_after_land, n, sizeof(*c->after_land)) ||
        dt_grow((void **)&c->land_by, &c->cap_land_by, places, sizeof(*c->land_by)) ||
        dt_grow((void **)&c->land_next, &c->cap_land_next, places, sizeof(*c->land_next)) ||
        dt_grow((void **)&c->landed, &c->cap_landed, n, sizeof(*c->landed)) ||
        dt_grow((void **)&c->early, &c->cap_early, n, sizeof(*c->early)) ||
        dt_grow((void **)&c->more, &c->cap_more, n, sizeof(*c->more)) ||
        dt_grow((void **)&c->queue_of, &c->cap_queue_of, n, sizeof(*c->queue_of)) ||
        dt_grow((void **)&c->begin_ns, &c->cap_begin, n, sizeof(*c->begin_ns)) ||
        dt_grow((void **)&c->end_ns, &c->cap_end, n, sizeof(*c->end_ns)))
        return dt_error_nomem(err, "the order of a program");
    memset(c->under_way, 0, n * sizeof(*c->under_way));
    memset(c->landed, 0, n * sizeof(*c->landed));
    memset(c->early, 0, n * sizeof(*c->early));
    for (size_t i = 0; i < n; i++) {
        c->after_main[i] = c->after_land[i] = DT_NONE;
        c->queue_of[i] = NULL;
    }
    for (size_t k = 0; k < c->n_own; k++) /* a step that failed may have left some in use */
        c->own[k].used = false;
    c->n_held = 0;
    return DT_OK;
}

enum dt_status dt_exec_comm_begin(struct dt_exec *x, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;
    enum dt_status st;

    if (!x->ranks.t)
        return DT_OK;
    pthread_mutex_lock(&c->lock);
    st = c->status != DT_OK ? dt_error_set(err, DT_ERR_INTERNAL, "an iteration has failed before")
                            : dt_exec_graph(&c->graph, &x->it, &x->ranks, err);
    if (st == DT_OK)
        st = room(c, err);
    if (st == DT_OK)
        st = dt_exec_turns_begin(x, err);
    c->left = 0;
    c->ready_first = c->ready_end = 0;
    for (uint32_t i = 0; st == DT_OK && i < c->graph.n; i++)
        if (c->graph.kind[i] == DT_EXEC_COMM &&
            (i >= x->it.p->n_ops || dt_exec_leader(x->it.p, &x->ranks, i) == i)) {
            c->left++;
            if (c->graph.pending[i] == 0)
                c->ready[c->ready_end++] = i;
        }
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* Has the main thread's op i to wait?  At the end: has anything? */
static bool must_wait(const struct dt_exec *x, uint32_t i)
{
    const struct dt_exec_comm *c = &x->comm;

    return i == DT_NONE ? c->left > 0
                        : c->graph.pending[i] > 0 || !dt_exec_turn(&c->turns, x->it.p, i);
}

/* Locked; until it has not. */
static enum dt_status wait_for(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    struct dt_exec_comm *c = &x->comm;
    bool waited = false;
    enum dt_status st;

    while (must_wait(x, i) && c->status == DT_OK) {
        if (!waited) {
            waited = true;
            if (x->env.o.supervisor)
                dt_supervisor_waiting(x->env.o.supervisor, true);
            c->main_waits = true;
            pthread_cond_signal(&c->work);
        }
        pthread_cond_wait(&c->done, &c->lock);
    }
    c->main_waits = false;
    if (waited && x->env.o.supervisor &&
        !must_wait(x, i)) /* what failed is still waited for, as the watch must know */
        dt_supervisor_waiting(x->env.o.supervisor, false);
    st = must_wait(x, i) ? c->status : DT_OK;
    if (st != DT_OK && err)
        *err = c->error;
    return st;
}

enum dt_status dt_exec_comm_wait(struct dt_exec *x, uint32_t i, struct dt_device_queue *q,
                                 struct dt_error *err)
{
    enum dt_status st;

    if (!x->ranks.t)
        return DT_OK;
    pthread_mutex_lock(&x->comm.lock);
    st = wait_for(x, i, err);
    pthread_mutex_unlock(&x->comm.lock);
    if (st == DT_OK)
        dt_exec_queue_land(x, i, q);
    return st;
}

static void more(struct dt_exec *x, uint32_t i, bool losses)
{
    struct dt_exec_comm *c = &x->comm;
    uint32_t before;
    bool turn;

    pthread_mutex_lock(&c->lock);
    before = c->ready_end;
    if (losses)
        satisfy(c, i);
    else
        satisfy_successors(c, x->it.p, i, OF_ALL, ON_MAIN, i);
    turn = !losses && dt_exec_turn_over(&c->turns, x->it.p, i);
    if (c->ready_end != before || turn)
        pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
}

void dt_exec_comm_issued(struct dt_exec *x, uint32_t i)
{
    if (x->ranks.t)
        more(x, i, false);
}

void dt_exec_comm_post_losses(struct dt_exec *x)
{
    if (x->ranks.t)
        more(x, dt_exec_loss_number(&x->comm.graph), true);
}

enum dt_status dt_exec_comm_drain(struct dt_exec *x, struct dt_error *err)
{
    enum dt_status st;

    if (!x->ranks.t)
        return DT_OK;
    pthread_mutex_lock(&x->comm.lock);
    st = wait_for(x, DT_NONE, err);
    pthread_mutex_unlock(&x->comm.lock);
    /* the thread puts nothing on its queues now */
    return st == DT_OK ? dt_exec_queues_sync(x, err) : st;
}
