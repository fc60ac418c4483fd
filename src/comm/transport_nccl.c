/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Between cards over NCCL.
 *
 *   link       a communicator: one of every group of ranks, and one of every edge (from, to, tag), so that what
 *              waits on one waits for nobody else's turn.  A send and its receive are the n-th of their edge on both
 *              sides, as NCCL has no tags
 *   post       handed to the rank's issuing thread (transport_nccl_issue.c), which alone calls NCCL; never waits
 *              for another rank, as links are connected when they are made
 *   watch      that thread asks all links a few times a second.  What fails, or takes longer than an operation
 *              may, ends all of them: kernels that wait for others come to an end, queues go on, and the rank's next
 *              post or test tells why */
#include "comm/transport_agree.h"
#include "comm/transport_nccl_impl.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { SCRATCH_BYTES = 128 };

/* ---- what the base asks of a wire: messages, and when they are over ---- */

struct dt_transport_xfer { /* nothing is kept of a message: it is on its queue */
    char none;
};

static enum dt_status follow(struct dt_transport *t, struct dt_device_queue *q,
                             struct dt_error *err)
{
    struct dt_nccl_ranks *s = dt_nccl_of(t);

    return s->dev->queue_state(q) != DT_OK ? s->dev->queue_sync(q, err) : t->state(t, err);
}

struct message { /* to (peer 1) or from (peer 0) the edge's other rank */
    int from, to, tag;
    void *buf;
    size_t bytes;
    struct dt_device_queue *q;
};

static enum dt_status issue_message(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    const struct message *m = arg;
    struct dt_nccl_link *l = dt_nccl_link_find(s, m->from, m->to, m->tag);
    bool send = m->from == s->t.rank;
    int result = DT_NCCL_SUCCESS;
    void *stream;

    DT_TRY(dt_nccl_state(s, err));
    if (!l)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "nobody has said that rank %d sends to rank %d with tag %d", m->from,
                            m->to, m->tag);
    if (m->bytes == 0)
        return DT_OK;
    DT_TRY(dt_nccl_know(s, l, m->buf, err));
    stream = s->dev->queue_stream(m->q);
    result = send ? s->f->Send(m->buf, m->bytes, DT_NCCL_INT8, 1, l->h, stream)
                  : s->f->Recv(m->buf, m->bytes, DT_NCCL_INT8, 0, l->h, stream);
    return dt_nccl_settle(s, l, send ? "a send" : "a receive", result, m->q, err);
}

static enum dt_status message(struct dt_nccl_ranks *s, int from, int to, uint64_t key, void *buf,
                              size_t bytes, struct dt_device_queue *q, struct dt_error *err)
{
    struct message m = {from, to, (int)key, buf, bytes, q};

    return dt_nccl_issue(s, issue_message, &m, err);
}

static enum dt_status wire_send(struct dt_transport *t, struct dt_transport_xfer *x, int to,
                                uint64_t key, const void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err)
{
    (void)x;
    return message(dt_nccl_of(t), t->rank, to, key, (void *)(uintptr_t)buf, bytes, q, err);
}

static enum dt_status wire_recv(struct dt_transport *t, struct dt_transport_xfer *x, int from,
                                uint64_t key, void *buf, size_t bytes, struct dt_device_queue *q,
                                struct dt_error *err)
{
    (void)x;
    return message(dt_nccl_of(t), from, t->rank, key, buf, bytes, q, err);
}

static enum dt_status wire_progress(struct dt_transport *t, struct dt_transport_xfer *x,
                                    struct dt_device_queue *q, bool *done, struct dt_error *err)
{
    (void)t;
    (void)x;
    (void)q;
    (void)err;
    *done = true;
    return DT_OK;
}

static void wire_cancel(struct dt_transport *t, struct dt_transport_xfer *x)
{
    (void)t;
    (void)x;
}

static enum dt_status mark_new(struct dt_nccl_ranks *s, struct dt_error *err,
                               struct dt_nccl_mark **out)
{
    struct dt_nccl_mark *m = dt_calloc(1, sizeof(*m));
    enum dt_status st;

    if (!m)
        return dt_error_nomem(err, "an event");
    st = s->dev->event_new(s->dev, err, &m->event);
    if (st != DT_OK) {
        dt_free(m);
        return st;
    }
    pthread_mutex_lock(&s->lock);
    m->all = s->marks;
    s->marks = m;
    pthread_mutex_unlock(&s->lock);
    *out = m;
    return DT_OK;
}

static enum dt_status mark(struct dt_transport *t, struct dt_device_queue *q, void **mark,
                           struct dt_error *err)
{
    struct dt_nccl_ranks *s = dt_nccl_of(t);
    struct dt_nccl_mark *m = *mark;

    if (!m)
        DT_TRY(mark_new(s, err, &m));
    s->dev->event_record(q, m->event);
    *mark = m;
    return DT_OK;
}

static bool passed(struct dt_transport *t, void *mark)
{
    struct dt_nccl_mark *m = mark;

    return !m || dt_nccl_of(t)->dev->event_done(m->event);
}

static const struct dt_transport_wire nccl_wire = {
    .xfer_bytes = sizeof(struct dt_transport_xfer),
    .key_max = DT_KEY_COLL - 1,
    .send = wire_send,
    .recv = wire_recv,
    .progress = wire_progress,
    .cancel = wire_cancel,
    .follow = follow,
    .mark = mark,
    .passed = passed,
};

/* ---- the table ---- */

static void comm_free(struct dt_comm *c)
{
    if (c) /* its link ends with the others, as that is for all members at once */
        dt_nccl_of(c->t)->base_comm_free(c);
}

static enum dt_status end_all(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    (void)arg;
    (void)err;
    dt_nccl_given_up(s);
    return DT_OK;
}

static void give_up(struct dt_transport *t)
{
    struct dt_nccl_ranks *s = dt_nccl_of(t);

    s->gives_up = true; /* what is being issued waits no longer */
    (void)dt_nccl_issue(s, end_all, NULL, NULL);
}

static enum dt_status state(struct dt_transport *t, struct dt_error *err)
{
    return dt_nccl_state(dt_nccl_of(t), err);
}

static void abort_job(struct dt_transport *t, int exit_status)
{
    struct dt_transport *control = dt_nccl_of(t)->control;

    control->abort(control, exit_status);
}

static enum dt_status close_links(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    (void)arg;
    (void)err;
    dt_nccl_links_close(s);
    return DT_OK;
}

static void free_all(struct dt_nccl_ranks *s)
{
    if (s->runs) /* else there are none */
        (void)dt_nccl_issue(s, close_links, NULL, NULL);
    dt_nccl_issue_end(s);
    if (s->q)
        s->dev->queue_free(s->q);
    s->dev->free(s->dev, s->scratch);
    dt_transport_base_free(&s->t);
    for (struct dt_nccl_mark *m = s->marks, *next; m; m = next) {
        next = m->all;
        s->dev->event_free(m->event);
        dt_free(m);
    }
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->issued);
    pthread_mutex_destroy(&s->lock);
    dt_free(s);
}

static void close_nccl(struct dt_transport *t)
{
    if (t)
        free_all(dt_nccl_of(t));
}

static void fill_table(struct dt_nccl_ranks *s)
{
    const struct dt_transport *c = s->control;
    struct dt_transport *t = &s->t;

    t->impl = s;
    t->memory = DT_TRANSPORT_DEVICE;
    t->on_queue = true;
    t->rank = c->rank;
    t->size = c->size;
    t->local_rank = c->local_rank;
    t->local_size = c->local_size;
    t->sharer = c->sharer;
    t->sharers = c->sharers;
    memcpy(t->host, c->host, sizeof(t->host));
    snprintf(t->name, sizeof(t->name), "nccl");
    t->close = close_nccl;
    t->abort = abort_job;
    t->give_up = give_up;
    t->state = state;
}

/* ---- opening ---- */

/* What every rank must know of every other before they begin. */
struct candidate {
    struct dt_transport_place place;
    char id[32], why[512]; /* why: it cannot */
};

static void look_here(struct dt_nccl_ranks *s, struct candidate *mine)
{
    struct dt_error e = {0};
    void *p;

    *mine = (struct candidate){.why = ""};
    dt_transport_place_here(s->control, &mine->place);
    snprintf(mine->id, sizeof(mine->id), "%s", s->dev->info.id);
    if (!mine->id[0]) {
        snprintf(mine->why, sizeof(mine->why), "%s is no device of NVIDIA's", s->dev->info.name);
        return;
    }
    if (s->dev->queue_new(s->dev, true, &e, &s->q) != DT_OK ||
        dt_transport_alloc(s->dev, false, SCRATCH_BYTES, &e, &p) != DT_OK) {
        snprintf(mine->why, sizeof(mine->why), "%.500s", e.message);
        return;
    }
    s->scratch = p;
    s->dev->zero(s->q, p, SCRATCH_BYTES);
    if (!s->dev->queue_stream(s->q))
        snprintf(mine->why, sizeof(mine->why), "%s is no device of NVIDIA's", s->dev->info.name);
    else if (!(s->f = dt_nccl_load(&e)))
        snprintf(mine->why, sizeof(mine->why), "%.500s", e.message);
}

/* Two processes of a host name a card alike. */
static enum dt_status judge(const struct candidate *all, int n, struct dt_error *err)
{
    for (int k = 0; k < n; k++)
        if (all[k].why[0])
            return dt_error_set(err, DT_ERR_INPUT, "NCCL cannot be used by rank %d: %.500s", k,
                                all[k].why);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < k; i++)
            if (strcmp(all[k].id, all[i].id) == 0 &&
                dt_transport_same_host(&all[k].place, &all[i].place))
                return dt_error_set(err, DT_ERR_INPUT,
                                    "NCCL cannot be used: ranks %d and %d share the card %s of %s",
                                    i, k, all[k].id, all[k].place.host);
    return DT_OK;
}

static enum dt_status agree(struct dt_nccl_ranks *s, struct dt_error *err)
{
    struct dt_transport *c = s->control;
    struct candidate *all = dt_calloc((size_t)c->size, sizeof(*all));
    enum dt_status st;

    if (!all)
        return dt_error_nomem(err, "ranks");
    look_here(s, &all[c->rank]);
    DT_TRY(dt_transport_tell_all(c, all, sizeof(*all), "all ranks, who open NCCL", err));
    st = judge(all, c->size, err);
    dt_free(all);
    return st;
}

static enum dt_status open_nccl(struct dt_nccl_ranks *s, struct dt_error *err)
{
    DT_TRY(agree(s, err));
    DT_TRY(dt_transport_base_init(&s->t, &nccl_wire, err));
    s->base_comm_new = s->t.comm_new;
    s->base_comm_free = s->t.comm_free;
    s->t.comm_new = dt_nccl_comm_new;
    s->t.comm_free = comm_free;
    s->t.connect = dt_nccl_connect;
    dt_nccl_collectives(&s->t);
    dt_nccl_memory(&s->t);
    return dt_nccl_issue_begin(s, err);
}

enum dt_status dt_transport_open_nccl(struct dt_transport *control, const struct dt_device *device,
                                      struct dt_error *err, struct dt_transport **out)
{
    struct dt_nccl_ranks *s = dt_calloc(1, sizeof(*s));
    pthread_condattr_t a;
    enum dt_status st;

    if (!s)
        return dt_error_nomem(err, "the transport over NCCL");
    s->control = control;
    s->dev = device;
    fill_table(s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC); /* that of dt_clock_in */
    pthread_cond_init(&s->wake, &a);
    pthread_condattr_destroy(&a);
    pthread_cond_init(&s->issued, NULL);
    st = open_nccl(s, err);
    if (st != DT_OK) {
        free_all(s);
        return st;
    }
    *out = &s->t;
    return DT_OK;
}
