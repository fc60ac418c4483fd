/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Communicators of NCCL: how they begin, what their calls come to, how they end.  None of them ever blocks: a call
 * that is not over when it returns is asked about, for as long as an operation may take, or until the rank gives up. */
#include "comm/transport_nccl_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* Thread blocks of a message.  A kernel that waits for its other side keeps them; a few copy as fast as a link of
 * a node takes it, and leave the processors to compute. */
enum { EDGE_CTAS = 4 };
#define CLOSE_S 10.0

static void pause_for(int64_t *ns)
{
    struct timespec t = {.tv_nsec = (long)*ns};

    nanosleep(&t, NULL);
    *ns = *ns < 500000 ? 2 * *ns : *ns;
}

static bool over(uint64_t since_ns, double limit_s)
{
    return (double)(dt_clock_ns() - since_ns) > limit_s * 1e9;
}

/* ---- giving up communicators ---- */

/* NCCL ends the kernels of the one that is given up, and then waits for its streams, which may wait for the whole card:
 * behind the kernel of another one that is stuck, too, it would never come back (nccl#1013).  So all are told before one
 * is waited for: in a group, which knows of aborts since 2.22, or before it each by a thread of its own. */
static bool is_left(const struct dt_nccl_link *l)
{
    return l->h && !l->finished;
}

static void *abort_link(void *arg)
{
    const struct dt_nccl_link *l = arg;

    (void)l->ranks->dev->queue_stream(l->ranks->q); /* the card is this thread's */
    l->ranks->f->CommAbort(l->h);
    return NULL;
}

static void abort_by_threads(struct dt_nccl_ranks *s)
{
    for (struct dt_nccl_link *l = s->links; l; l = l->next)
        l->aborts = is_left(l) && pthread_create(&l->thread, NULL, abort_link, l) == 0;
    for (struct dt_nccl_link *l = s->links; l; l = l->next)
        if (is_left(l) && !l->aborts)
            s->f->CommAbort(l->h);
    for (struct dt_nccl_link *l = s->links; l; l = l->next)
        if (l->aborts)
            pthread_join(l->thread, NULL);
}

static void abort_in_group(struct dt_nccl_ranks *s)
{
    for (struct dt_nccl_link *l = s->links; l; l = l->next)
        if (is_left(l))
            s->f->CommAbort(l->h);
    (void)s->f->GroupEnd();
}

/* All but those that have finished. */
static void abort_all(struct dt_nccl_ranks *s)
{
    bool some = false;

    for (struct dt_nccl_link *l = s->links; l; l = l->next)
        some = some || is_left(l);
    if (!some)
        return;
    if (s->f->version >= DT_NCCL_VERSION_2_22 && s->f->GroupStart() == DT_NCCL_SUCCESS)
        abort_in_group(s);
    else
        abort_by_threads(s);
    for (struct dt_nccl_link *l = s->links; l; l = l->next)
        if (!l->finished)
            l->h = NULL;
}

/* ---- failures ---- */

enum dt_status dt_nccl_fail(struct dt_nccl_ranks *s, enum dt_status st, const char *text)
{
    enum dt_status before = dt_nccl_state(s, NULL);

    if (before != DT_OK)
        return before;
    pthread_mutex_lock(&s->lock);
    dt_error_set(&s->failed, st, "%s", text);
    pthread_mutex_unlock(&s->lock);
    abort_all(s);
    return st;
}

enum dt_status dt_nccl_failed(struct dt_nccl_ranks *s, const struct dt_nccl_link *l,
                              const char *what, int result)
{
    bool peer = result == DT_NCCL_REMOTE_ERROR || result == DT_NCCL_SYSTEM_ERROR;
    const char *more = l && l->h ? s->f->GetLastError(l->h) : NULL;
    char text[1024];

    snprintf(text, sizeof(text), "rank %d: NCCL: %s: %s%s%.600s", s->t.rank, what,
             s->f->GetErrorString(result), more && *more ? ": " : "", more ? more : "");
    return dt_nccl_fail(s, peer ? DT_ERR_PEER : DT_ERR_INTERNAL, text);
}

enum dt_status dt_nccl_state(struct dt_nccl_ranks *s, struct dt_error *err)
{
    enum dt_status st;

    pthread_mutex_lock(&s->lock);
    st = s->failed.status;
    if (st != DT_OK && err)
        *err = s->failed;
    pthread_mutex_unlock(&s->lock);
    return st;
}

void dt_nccl_given_up(struct dt_nccl_ranks *s)
{
    char text[64];

    snprintf(text, sizeof(text), "rank %d has given up its transfers", s->t.rank);
    dt_nccl_fail(s, DT_ERR_PEER, text);
}

static enum dt_status late(struct dt_nccl_ranks *s, const char *what, double limit_s)
{
    char text[256];

    snprintf(text, sizeof(text), "rank %d waited %g s for %s", s->t.rank, limit_s, what);
    return dt_nccl_fail(s, DT_ERR_TIMEOUT, text);
}

static int ask(struct dt_nccl_ranks *s, struct dt_nccl_link *l)
{
    int state = DT_NCCL_IN_PROGRESS, result = s->f->CommGetAsyncError(l->h, &state);

    return result == DT_NCCL_SUCCESS ? state : result;
}

enum dt_status dt_nccl_wait(struct dt_nccl_ranks *s, struct dt_nccl_link *l, const char *what,
                            int result, struct dt_error *err)
{
    uint64_t begin = dt_clock_ns();
    int64_t pause_ns = 5000;

    while (result == DT_NCCL_IN_PROGRESS && !s->gives_up && !over(begin, s->t.limit_s)) {
        result = ask(s, l);
        if (result == DT_NCCL_IN_PROGRESS)
            pause_for(&pause_ns);
    }
    if (result == DT_NCCL_IN_PROGRESS && s->gives_up)
        dt_nccl_given_up(s);
    else if (result == DT_NCCL_IN_PROGRESS)
        late(s, what, s->t.limit_s);
    else if (result != DT_NCCL_SUCCESS)
        dt_nccl_failed(s, l, what, result);
    return dt_nccl_state(s, err);
}

enum dt_status dt_nccl_settle(struct dt_nccl_ranks *s, struct dt_nccl_link *l, const char *what,
                              int result, struct dt_device_queue *q, struct dt_error *err)
{
    DT_TRY(dt_nccl_wait(s, l, what, result, err));
    s->dev->event_record(q, l->past);
    l->posted_ns = dt_clock_ns();
    return DT_OK;
}

/* ---- the beginning ---- */

enum dt_status dt_nccl_link_new(struct dt_nccl_ranks *s, const struct dt_transport_edge *edge,
                                int me, int n, const struct dt_nccl_id *id, struct dt_error *err,
                                struct dt_nccl_link **out)
{
    struct dt_nccl_config config = dt_nccl_config(s->f->version);
    struct dt_nccl_link *l = dt_calloc(1, sizeof(*l));
    enum dt_status st;
    int result;

    if (!l)
        return dt_error_nomem(err, "a communicator");
    if (edge->from < 0)
        config.cta_policy = DT_NCCL_CTA_POLICY_ZERO; /* where gathers have windows, else nothing */
    else
        config.max_ctas = EDGE_CTAS;
    l->ranks = s;
    l->edge = *edge;
    l->me = me;
    l->n = n;
    st = s->dev->event_new(s->dev, err, &l->past);
    if (st != DT_OK) {
        dt_free(l);
        return st;
    }
    st = dt_nccl_state(s, err);
    if (st == DT_OK) {
        (void)s->dev->queue_stream(s->q); /* the card is this thread's */
        result = s->f->CommInitRankConfig(&l->h, n, *id, me, &config);
        if (result != DT_NCCL_SUCCESS && result != DT_NCCL_IN_PROGRESS)
            dt_nccl_failed(s, NULL, "a communicator", result);
        st = dt_nccl_state(s, err);
    }
    if (st == DT_OK) {
        l->next = s->links;
        s->links = l;
    }
    if (st != DT_OK) {
        s->dev->event_free(l->past);
        dt_free(l);
        return st;
    }
    *out = l;
    return DT_OK;
}

struct question { /* about a link that begins */
    struct dt_nccl_link *link;
    uint64_t since_ns;
    bool ready;
};

static enum dt_status ask_once(struct dt_nccl_ranks *s, void *arg, struct dt_error *err)
{
    struct question *x = arg;
    int result = x->link->h ? ask(s, x->link) : DT_NCCL_IN_PROGRESS;

    if (x->link->h && result != DT_NCCL_SUCCESS && result != DT_NCCL_IN_PROGRESS)
        dt_nccl_failed(s, x->link, "a communicator", result);
    if (result == DT_NCCL_IN_PROGRESS && over(x->since_ns, s->t.limit_s))
        late(s, "the other members of a communicator", s->t.limit_s);
    x->ready = result == DT_NCCL_SUCCESS;
    return dt_nccl_state(s, err);
}

enum dt_status dt_nccl_link_ready(struct dt_nccl_ranks *s, struct dt_nccl_link *l,
                                  struct dt_error *err)
{
    struct question x = {.link = l, .since_ns = dt_clock_ns()};
    int64_t pause_ns = 20000;

    for (;;) {
        DT_TRY(dt_nccl_issue(s, ask_once, &x, err));
        if (x.ready)
            return DT_OK;
        pause_for(&pause_ns);
    }
}

struct dt_nccl_link *dt_nccl_link_find(const struct dt_nccl_ranks *s, int from, int to, int tag)
{
    struct dt_nccl_link *l = s->links;

    while (l && (l->edge.from != from || l->edge.to != to || l->edge.tag != tag))
        l = l->next;
    return l;
}

/* ---- the end ---- */

/* What is under way comes to its end first; whoever does not come is not waited for. */
static bool finishes(struct dt_nccl_ranks *s, struct dt_nccl_link *l, uint64_t begin_ns,
                     double limit_s)
{
    int64_t pause_ns = 20000;
    int result;

    while ((result = ask(s, l)) == DT_NCCL_IN_PROGRESS && !over(begin_ns, limit_s))
        pause_for(&pause_ns);
    return result == DT_NCCL_SUCCESS;
}

/* Destroying one may wait for the card as well, so by then none is stuck. */
static void finalize(struct dt_nccl_ranks *s)
{
    double limit_s = s->t.limit_s < CLOSE_S ? s->t.limit_s : CLOSE_S;
    uint64_t begin_ns = dt_clock_ns();

    for (struct dt_nccl_link *l = s->links; l; l = l->next)
        l->finished = l->h && finishes(s, l, begin_ns, limit_s);
    abort_all(s);
    for (struct dt_nccl_link *l = s->links; l; l = l->next) {
        if (l->h)
            s->f->CommDestroy(l->h);
        l->h = NULL;
    }
}

void dt_nccl_links_close(struct dt_nccl_ranks *s)
{
    for (struct dt_nccl_link *l = s->links; l; l = l->next)
        if (l->h)
            (void)s->f->CommFinalize(l->h); /* all begin before one is waited for */
    finalize(s);
    for (struct dt_nccl_link *l = s->links, *next; l; l = next) {
        next = l->next;
        s->dev->event_free(l->past);
        dt_free(l);
    }
    s->links = NULL;
}
