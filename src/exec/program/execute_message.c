/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Messages: what ops hand to each other.  Both threads of a rank make, find and give them back. */
#include "exec/program/execute_impl.h"

static void lock(struct dt_exec_comm *c)
{
    if (c->q[0]) /* else there is one thread */
        pthread_mutex_lock(&c->lock);
}

static void unlock(struct dt_exec_comm *c)
{
    if (c->q[0]) /* else there is one thread */
        pthread_mutex_unlock(&c->lock);
}

static struct dt_exec_message *find(const struct dt_exec_vstage *vs, uint32_t mb, bool grad,
                                    bool inbox)
{
    for (struct dt_exec_message *m = vs->messages; m; m = m->next)
        if (m->users > 0 && m->mb == mb && m->grad == grad && m->inbox == inbox)
            return m;
    return NULL;
}

/* Ranks exchange what lies in memory of the transport without a copy (dt_transport.memory_new), but it must not be
 * given back while something that is on a queue uses it. */
static struct dt_transport *lender(const struct dt_exec_ranks *ranks)
{
    return ranks->t && ranks->data->memory_new ? ranks->data : NULL;
}

enum dt_status dt_exec_message_room(struct dt_exec_comm *c, const struct dt_exec_ranks *ranks,
                                    struct dt_exec_buffer *b, size_t bytes, struct dt_error *err)
{
    struct dt_transport *t = lender(ranks);
    void *p;

    if (!t)
        return dt_exec_room(ranks->env->dev, b, bytes, err);
    if (bytes <= b->cap && b->p)
        return DT_OK;
    if (dt_grow((void **)&c->outgrown, &c->cap_outgrown, c->n_outgrown + 1, sizeof(*c->outgrown)))
        return dt_error_nomem(err, "a message");
    bytes = bytes > 0 ? bytes : 64;
    DT_TRY(t->memory_new(t, bytes, err, &p));
    if (b->p)
        c->outgrown[c->n_outgrown++] = b->p;
    *b = (struct dt_exec_buffer){p, bytes};
    return DT_OK;
}

void dt_exec_message_room_free(const struct dt_exec_ranks *ranks, struct dt_exec_buffer *b)
{
    dt_transport_memory_free(lender(ranks), ranks->env->dev, b->p);
    *b = (struct dt_exec_buffer){NULL, 0};
}

void dt_exec_message_outgrown(struct dt_exec_comm *c, const struct dt_exec_ranks *ranks)
{
    while (c->n_outgrown > 0)
        dt_transport_memory_free(lender(ranks), ranks->env->dev, c->outgrown[--c->n_outgrown]);
}

static enum dt_status take(struct dt_exec_comm *c, const struct dt_exec_stages *stages,
                           struct dt_exec_vstage *vs, bool grad, bool inbox, size_t bytes,
                           struct dt_error *err, struct dt_exec_message **out)
{
    struct dt_exec_message *m = vs->messages;
    struct dt_device_memory_owner *before;
    enum dt_status st;

    while (m && (m->users > 0 || m->grad != grad || m->inbox != inbox)) /* their sizes differ */
        m = m->next;
    if (!m) {
        m = dt_calloc(1, sizeof(*m));
        if (!m)
            return dt_error_nomem(err, "a message");
        st = stages->env->dev->event_new(stages->env->dev, err, &m->read);
        if (st != DT_OK) {
            dt_free(m);
            return st;
        }
        m->next = vs->messages;
        vs->messages = m;
    }
    m->grad = grad;
    m->inbox = inbox;
    before = dt_exec_for_vs(stages, vs); /* whichever thread this is */
    st = dt_exec_message_room(c, stages->ranks, &m->data, bytes, err);
    stages->env->dev->memory_for(stages->env->dev, before);
    DT_TRY(st);
    *out = m;
    return DT_OK;
}

enum dt_status dt_exec_message_new(struct dt_exec_comm *c, const struct dt_exec_stages *stages,
                                   struct dt_exec_vstage *vs, uint32_t mb, bool grad, size_t bytes,
                                   struct dt_error *err, struct dt_exec_message **out)
{
    enum dt_status st;

    lock(c);
    st = take(c, stages, vs, grad, false, bytes, err, out);
    if (st == DT_OK) {
        (*out)->mb = mb;
        (*out)->users = 1;
    }
    unlock(c);
    return st;
}

struct dt_exec_message *dt_exec_message_sent(struct dt_exec_comm *c,
                                             const struct dt_exec_vstage *vs, uint32_t mb,
                                             bool grad)
{
    struct dt_exec_message *m;

    lock(c);
    m = find(vs, mb, grad, false);
    unlock(c);
    return m;
}

enum dt_status dt_exec_message_inbox(struct dt_exec_comm *c, const struct dt_exec_stages *stages,
                                     struct dt_exec_vstage *vs, uint32_t mb, bool grad,
                                     size_t bytes, struct dt_error *err,
                                     struct dt_exec_message **out)
{
    enum dt_status st = DT_OK;

    lock(c);
    *out = find(vs, mb, grad, true);
    if (!*out)
        st = take(c, stages, vs, grad, true, bytes, err, out);
    if (st == DT_OK) {
        (*out)->mb = mb;
        (*out)->users = 1;
    }
    unlock(c);
    return st;
}

struct dt_exec_message *dt_exec_message_received(struct dt_exec_comm *c,
                                                 const struct dt_exec_vstage *vs, uint32_t mb,
                                                 bool grad)
{
    struct dt_exec_message *m;

    lock(c);
    m = find(vs, mb, grad, true);
    unlock(c);
    return m;
}

void dt_exec_message_release(struct dt_exec_comm *c, const struct dt_exec_env *env,
                             struct dt_exec_message *m, int users, struct dt_device_queue *reader)
{
    if (!m)
        return;
    lock(c);
    if (reader && m->inbox)
        env->dev->event_record(reader, m->read);
    m->users -= users;
    unlock(c);
}
