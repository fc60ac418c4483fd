/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The one thread of a rank that calls NCCL.
 *
 *   a thread of the rank    dt_nccl_issue(fn, arg) ---+                          +--> goes on
 *                                                     v  first come, first served |
 *   the issuing thread      [look at links] ... fn(arg): calls of NCCL, until they are on their queues
 *
 * Whoever hands something over waits until it has been issued, so that what he puts on the queue next comes behind it.
 * In between, the thread looks after what is under way a few times a second. */
#include "comm/transport_nccl_impl.h"

#include "base/clock.h"

#include <stdio.h>

enum { LOOK_NS = 100000000 };

struct dt_nccl_job {
    struct dt_nccl_job *next;
    dt_nccl_job_fn *fn;
    void *arg;
    struct dt_error *err;
    enum dt_status st;
    bool over;
};

/* ---- what is under way ---- */

static void look_after(struct dt_nccl_ranks *s, struct dt_nccl_link *l)
{
    int state = DT_NCCL_IN_PROGRESS;
    char text[256];

    if (!l->h)
        return;
    if (s->f->CommGetAsyncError(l->h, &state) == DT_NCCL_SUCCESS &&
        (state == DT_NCCL_SUCCESS || state == DT_NCCL_IN_PROGRESS)) {
        if (l->posted_ns == 0 || s->dev->event_done(l->past) ||
            (double)(dt_clock_ns() - l->posted_ns) < s->t.limit_s * 1e9)
            return;
        snprintf(text, sizeof(text), "rank %d waited %g s for an operation among %d ranks",
                 s->t.rank, s->t.limit_s, l->n);
        dt_nccl_fail(s, DT_ERR_TIMEOUT, text);
        return;
    }
    dt_nccl_failed(s, l, "an operation under way", state);
}

static void look(struct dt_nccl_ranks *s)
{
    for (struct dt_nccl_link *l = s->links; l && dt_nccl_state(s, NULL) == DT_OK; l = l->next)
        look_after(s, l);
}

/* ---- the thread ---- */

/* Locked. */
static void do_first(struct dt_nccl_ranks *s)
{
    struct dt_nccl_job *j = s->jobs;
    enum dt_status st;

    s->jobs = j->next;
    if (!s->jobs)
        s->jobs_end = &s->jobs;
    pthread_mutex_unlock(&s->lock);
    st = j->fn(s, j->arg, j->err);
    pthread_mutex_lock(&s->lock);
    j->st = st;
    j->over = true; /* from now on it is gone */
    pthread_cond_broadcast(&s->issued);
}

static void *run(void *arg)
{
    struct dt_nccl_ranks *s = arg;
    uint64_t looked_ns = dt_clock_ns();

    pthread_mutex_lock(&s->lock);
    while (!s->stop || s->jobs) {
        struct timespec until = dt_clock_in(LOOK_NS);

        if (s->jobs)
            do_first(s);
        else if (!s->stop)
            pthread_cond_timedwait(&s->wake, &s->lock, &until);
        if (dt_clock_ns() - looked_ns < LOOK_NS)
            continue;
        pthread_mutex_unlock(&s->lock);
        look(s);
        looked_ns = dt_clock_ns();
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum dt_status dt_nccl_issue_begin(struct dt_nccl_ranks *s, struct dt_error *err)
{
    s->jobs_end = &s->jobs;
    if (pthread_create(&s->thread, NULL, run, s) != 0)
        return dt_error_set(err, DT_ERR_NOMEM, "the thread that calls NCCL cannot be started");
    s->runs = true;
    return DT_OK;
}

void dt_nccl_issue_end(struct dt_nccl_ranks *s)
{
    if (!s->runs)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->runs = false;
}

enum dt_status dt_nccl_issue(struct dt_nccl_ranks *s, dt_nccl_job_fn *fn, void *arg,
                             struct dt_error *err)
{
    struct dt_nccl_job j = {.fn = fn, .arg = arg, .err = err};

    pthread_mutex_lock(&s->lock);
    *s->jobs_end = &j;
    s->jobs_end = &j.next;
    pthread_cond_signal(&s->wake);
    while (!j.over)
        pthread_cond_wait(&s->issued, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return j.st;
}
