/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Messages: what ops hand to each other.  Both threads of a rank make, find and give them back. */
#include "exec/program/execute_impl.h"

static void lock(struct dt_exec *x)
{
    if (x->t)
        pthread_mutex_lock(&x->c.lock);
}

static void unlock(struct dt_exec *x)
{
    if (x->t)
        pthread_mutex_unlock(&x->c.lock);
}

static struct dt_exec_message *find(const struct dt_exec_vstage *vs, uint32_t mb, bool grad,
                                    bool inbox)
{
    for (struct dt_exec_message *m = vs->messages; m; m = m->next)
        if (m->users > 0 && m->mb == mb && m->grad == grad && m->inbox == inbox)
            return m;
    return NULL;
}

static enum dt_status take(struct dt_exec *x, struct dt_exec_vstage *vs, bool grad, bool inbox,
                           size_t bytes, struct dt_error *err, struct dt_exec_message **out)
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
        m->next = vs->messages;
        vs->messages = m;
    }
    m->grad = grad;
    m->inbox = inbox;
    before = dt_exec_for_vs(x, vs); /* whichever thread this is */
    st = dt_exec_room(x, &m->data, bytes, err);
    x->dev->memory_for(x->dev, before);
    DT_TRY(st);
    *out = m;
    return DT_OK;
}

enum dt_status dt_exec_message_new(struct dt_exec *x, struct dt_exec_vstage *vs, uint32_t mb,
                                   bool grad, size_t bytes, struct dt_error *err,
                                   struct dt_exec_message **out)
{
    enum dt_status st;

    lock(x);
    st = take(x, vs, grad, false, bytes, err, out);
    if (st == DT_OK) {
        (*out)->mb = mb;
        (*out)->users = 1;
    }
    unlock(x);
    return st;
}

struct dt_exec_message *dt_exec_message_sent(struct dt_exec *x, const struct dt_exec_vstage *vs,
                                             uint32_t mb, bool grad)
{
    struct dt_exec_message *m;

    lock(x);
    m = find(vs, mb, grad, false);
    unlock(x);
    return m;
}

enum dt_status dt_exec_message_inbox(struct dt_exec *x, struct dt_exec_vstage *vs, uint32_t mb,
                                     bool grad, size_t bytes, struct dt_error *err,
                                     struct dt_exec_message **out)
{
    enum dt_status st = DT_OK;

    lock(x);
    *out = find(vs, mb, grad, true);
    if (!*out)
        st = take(x, vs, grad, true, bytes, err, out);
    if (st == DT_OK) {
        (*out)->mb = mb;
        (*out)->users = 1;
    }
    unlock(x);
    return st;
}

struct dt_exec_message *dt_exec_message_received(struct dt_exec *x, const struct dt_exec_vstage *vs,
                                                 uint32_t mb, bool grad)
{
    struct dt_exec_message *m;

    lock(x);
    m = find(vs, mb, grad, true);
    unlock(x);
    return m;
}

void dt_exec_message_release(struct dt_exec *x, struct dt_exec_message *m, int users)
{
    if (!m)
        return;
    lock(x);
    m->users -= users;
    unlock(x);
}
