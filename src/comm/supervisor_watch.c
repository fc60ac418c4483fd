/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The watch: a thread of each rank.
 *
 *   rank 0 <-- beat -- every rank        rank 0 -- beat --> every rank
 *
 * A rank that dies is noticed by those of its host, which poll a file descriptor of its process;
 * one that stands still, or a host that is gone, by rank 0 (rank 0 by the others) when beats fail
 * to come.  Whoever is to speak does so by rank, each waiting a little longer than the one before,
 * and the speaker ends the job. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include "comm/transport_impl.h"
#include "comm/supervisor_impl.h"

#include "base/mem.h"
#include "base/clock.h"
#include "comm/lifeline.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    BEATS = 8, /* within the limit: one or two that come late are no reason */
    POLL_MAX_MS = 100,
    TURN_LOCAL_MS = 150, /* between speakers that see each other's pages */
    TURN_MS = 300,       /* between speakers that do not */
    LATE_MS = 1000, /* whoever has waited too long leaves the word to rank 0, who sees for whom */
    TURNS = 10,     /* so that the last one still speaks within 15 s of the default limit */
    EXIT = 5,       /* of a job that lost a rank: DT_ERR_PEER's */
};

struct view { /* of the thread */
    struct dt_supervisor *w;
    uint64_t period_ns, sent_ns;
};

/* ---- what others do ---- */

static struct dt_supervisor_beat seen(const struct dt_supervisor *w, int rank, uint64_t now)
{
    const struct dt_supervisor_page *p = rank == w->t->rank ? w->page : w->peers[rank].page;
    struct dt_supervisor_beat b = w->peers[rank].said;
    uint64_t since, wait_since;

    if (!p)
        return b;
    b.doing = atomic_load_explicit(&p->doing, memory_order_relaxed);
    b.last = atomic_load_explicit(&p->last, memory_order_relaxed);
    b.waits = (uint32_t)atomic_load_explicit(&p->waits, memory_order_relaxed);
    since = atomic_load_explicit(&p->since_ns, memory_order_relaxed);
    wait_since = atomic_load_explicit(&p->wait_since_ns, memory_order_relaxed);
    b.age_ns = now > since ? now - since : 0;
    b.wait_age_ns = b.waits && now > wait_since ? now - wait_since : 0;
    return b;
}

static void describe(const struct dt_supervisor *w, const struct dt_supervisor_beat *b, char *buf,
                     size_t size)
{
    uint64_t doing = b->doing ? b->doing : b->last;
    int module = (int)(doing >> 56) - 1, op = (int)((uint32_t)(doing >> 24) - 1);
    int64_t mb = (int64_t)(doing & 0xffffff) - 1;
    int n = snprintf(buf, size, "it was last seen %s ", b->doing ? "in" : "after");

    if (doing == 0)
        snprintf(buf, size, "it had not begun its first op");
    else if (w->watch.describe)
        w->watch.describe(w->watch.ctx, module, op, mb, buf + n, size - (size_t)n);
    else
        snprintf(buf + n, size - (size_t)n, "module %d, op %d, microbatch %" PRId64, module, op,
                 mb);
}

/* Has a rank of this host told already why the job ends?  `below`: those below this rank only. */
static bool spoken(const struct dt_supervisor *w, bool below)
{
    for (int r = 0; w->peers && r < w->t->size; r++)
        if (r != w->t->rank && (!below || r < w->t->rank) && w->peers[r].page &&
            atomic_load(&w->peers[r].page->spoke))
            return true;
    return false;
}

static void pause_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};

    nanosleep(&t, NULL);
}

bool dt_supervisor_speak(struct dt_supervisor *w, enum dt_status why)
{
    if (!w)
        return true;
    if (why == DT_ERR_TIMEOUT && w->watching)
        pause_ms(LATE_MS);
    if (spoken(w, false) || atomic_exchange(&w->page->spoke, 1))
        return false;
    return !spoken(w, true); /* of two at once, the lower one */
}

/* ---- the end ---- */

/* Says why and ends the job; does not return.  What has been said already is not said again. */
static void end_job(struct dt_supervisor *w, int turn_ms, int turn, const char *why, int rank)
{
    char text[512], op[256];
    uint64_t now = dt_clock_ns();

    pause_ms(turn_ms * (turn < TURNS ? turn : TURNS));
    if (!dt_supervisor_speak(w, DT_ERR_PEER)) {
        pause_ms(3000); /* for the speaker to end us */
    } else {
        struct dt_supervisor_beat b = seen(w, rank, now);

        describe(w, &b, op, sizeof op);
        snprintf(text, sizeof text, "rank %d on %s (process %" PRId64 ") %s; %s", rank,
                 w->ranks[rank].host, w->ranks[rank].pid, why, op);
        w->watch.report(w->watch.ctx, text);
    }
    w->t->abort(w->t, EXIT);
}

/* ---- processes of this host ---- */

static bool gone(const struct dt_supervisor *w, int r)
{
    struct pollfd f = {.fd = w->peers[r].pidfd, .events = POLLIN};

    if (f.fd >= 0)
        return poll(&f, 1, 0) == 1 && (f.revents & POLLIN);
    return kill((pid_t)w->ranks[r].pid, 0) != 0 && errno == ESRCH;
}

static void check_processes(struct dt_supervisor *w)
{
    int before = 0; /* living ranks of this host below this one: their turn comes first */

    for (int r = 0; r < w->t->size; r++) {
        const struct dt_supervisor_page *p = w->peers[r].page;
        char why[64];

        if (!p || atomic_load(&p->left))
            continue;
        if (!gone(w, r)) {
            before += r < w->t->rank;
            continue;
        }
        /* one that told why it ends has been asked to end all */
        if (atomic_load(&p->spoke))
            continue;
        for (int k = r + 1; k < w->t->rank; k++)
            before += w->peers[k].page && !gone(w, k);
        snprintf(why, sizeof why, "has died");
        end_job(w, TURN_LOCAL_MS, before, why, r);
    }
}

/* ---- beats ---- */

static struct dt_supervisor_beat own_beat(const struct dt_supervisor *w, bool bye)
{
    struct dt_supervisor_beat b = seen(w, w->t->rank, dt_clock_ns());

    b.bye = bye;
    return b;
}

static bool post(struct dt_supervisor *w, int r, bool send)
{
    struct dt_supervisor_peer *p = &w->peers[r];
    struct dt_transport *t = w->t;
    struct dt_error err;
    int tag = DT_SUPERVISOR_TAG + TAG_BEAT;

    return (send ? t->post_send(t, r, tag, &p->out, sizeof(p->out), NULL, &err, &p->send)
                 : t->post_recv(t, r, tag, &p->in, sizeof(p->in), NULL, &err, &p->recv)) == DT_OK;
}

/* A beat that has come, and whether the last one went out.  What fails is left to the silence that
 * follows. */
static void hear(struct dt_supervisor *w, int r)
{
    struct dt_supervisor_peer *p = &w->peers[r];
    struct dt_error err;
    bool done = false;

    if (p->send && (w->t->test(w->t, p->send, &done, &err) != DT_OK || done))
        p->send = NULL;
    while (p->recv) {
        done = false;
        if (w->t->test(w->t, p->recv, &done, &err) != DT_OK)
            p->recv = NULL;
        if (!done)
            return;
        p->recv = NULL;
        p->said = p->in;
        p->heard_ns = dt_clock_ns();
        if (!p->said.bye)
            post(w, r, false);
    }
}

/* The ranks that this one hears: rank 0 everybody, everybody rank 0. */
static int first_heard(const struct dt_supervisor *w)
{
    return w->t->rank == 0 ? 1 : 0;
}
static int end_heard(const struct dt_supervisor *w)
{
    return w->t->rank == 0 ? w->t->size : 1;
}

static void check_silence(struct dt_supervisor *w, uint64_t now)
{
    double limit_ns = w->watch.limit_s * 1e9;

    for (int r = first_heard(w); r < end_heard(w); r++) {
        const struct dt_supervisor_peer *p = &w->peers[r];
        char why[96];

        if (p->said.bye || (double)(now - p->heard_ns) < limit_ns)
            continue;
        snprintf(why, sizeof why, "has been silent for %.0f s", (double)(now - p->heard_ns) * 1e-9);
        end_job(w, TURN_MS, w->t->rank == 0 ? 0 : w->t->rank - 1, why, r);
    }
}

/* What has passed since a rank said it. */
static double since_said(const struct dt_supervisor *w, int r, uint64_t now)
{
    return r != 0 && !w->peers[r].page ? (double)(now - w->peers[r].heard_ns) : 0;
}

/* Between ops (reading data, say) there is no limit but the others' patience. */
static bool patience_is_over(const struct dt_supervisor *w, double limit_ns, uint64_t now)
{
    for (int r = 0; r < w->t->size; r++) {
        struct dt_supervisor_beat b = seen(w, r, now);

        if (b.waits && !b.bye && (double)b.wait_age_ns + since_said(w, r, now) >= limit_ns)
            return true;
    }
    return false;
}

/* Rank 0: the op that takes too long is that of a rank which does not itself wait for others. */
static void check_ops(struct dt_supervisor *w, uint64_t now)
{
    double limit_ns = w->watch.op_limit_s * 1e9;

    for (int r = 0; w->t->rank == 0 && r < w->t->size; r++) {
        struct dt_supervisor_beat b = seen(w, r, now);
        double age_ns = (double)b.age_ns + since_said(w, r, now);
        char why[96];

        if (b.waits || b.bye || age_ns < limit_ns ||
            (b.doing == 0 && !patience_is_over(w, limit_ns, now)))
            continue;
        snprintf(why, sizeof why, "has not %s an op for %.0f s", b.doing ? "ended" : "begun",
                 age_ns * 1e-9);
        end_job(w, TURN_MS, 0, why, r);
    }
}

/* Has everybody said good-bye that this rank hears? */
static bool all_leave(const struct dt_supervisor *w)
{
    for (int r = first_heard(w); r < end_heard(w); r++)
        if (!w->peers[r].said.bye)
            return false;
    return true;
}

/* Sends what is due.  True when this rank is through: all have said good-bye and so has it. */
static bool beat(struct view *v, uint64_t now)
{
    struct dt_supervisor *w = v->w;
    bool leaving = atomic_load(&w->leaving), under_way = false;
    bool bye = leaving && (w->t->rank != 0 || all_leave(w)); /* rank 0 last */
    bool due = now - v->sent_ns >= v->period_ns;

    for (int r = first_heard(w); r < end_heard(w); r++) {
        struct dt_supervisor_peer *p = &w->peers[r];

        if (!p->send && !p->out.bye && (due || bye)) {
            p->out = own_beat(w, bye);
            if (!post(w, r, true))
                p->out.bye = 0;
        }
        under_way = under_way || p->send || !p->out.bye;
    }
    if (due)
        v->sent_ns = now;
    return bye && !under_way && all_leave(w);
}

/* After this rank itself stood still (it was stopped, its machine slept), nobody has been silent
 * for it: what they said is on its way. */
static void forgive(struct dt_supervisor *w, uint64_t now)
{
    for (int r = first_heard(w); r < end_heard(w); r++)
        w->peers[r].heard_ns = now;
}

static void *watch_main(void *arg)
{
    struct dt_supervisor *w = arg;
    struct view v = {.w = w, .period_ns = (uint64_t)(w->watch.limit_s * 1e9 / BEATS)};
    int poll_ms = (int)(v.period_ns / 2000000) + 1;
    uint64_t last = dt_clock_ns();

    poll_ms = poll_ms < POLL_MAX_MS ? poll_ms : POLL_MAX_MS;
    for (;;) {
        uint64_t now;

        for (int r = first_heard(w); r < end_heard(w); r++)
            hear(w, r);
        now = dt_clock_ns();
        if (now - last > 2 * v.period_ns)
            forgive(w, now);
        last = now;
        if (beat(&v, now))
            return NULL;
        check_processes(w);
        check_silence(w, now);
        check_ops(w, now);
        if (poll(w->fds, (nfds_t)w->n_fds, atomic_load(&w->leaving) ? 2 : poll_ms) > 0) {
            check_processes(w);
            for (int k = 0; k < w->n_fds; k++) /* ended as it should, or told why */
                if (w->fds[k].revents)
                    w->fds[k].fd = -1;
        }
    }
}

/* ---- beginning and end ---- */

static void see_processes(struct dt_supervisor *w)
{
    for (int r = 0; r < w->t->size; r++) {
        struct dt_supervisor_peer *p = &w->peers[r];

        p->pidfd = -1;
        p->heard_ns = dt_clock_ns();
        if (r == w->t->rank || w->ranks[r].pid == w->ranks[w->t->rank].pid)
            continue; /* ranks may be threads of one process */
        p->page = dt_supervisor_page_of(w, r);
        if (!p->page)
            continue;
#ifdef SYS_pidfd_open
        p->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)w->ranks[r].pid, 0);
#endif
        dt_lifeline_share(p->pidfd);
        if (p->pidfd >= 0)
            w->fds[w->n_fds++] = (struct pollfd){.fd = p->pidfd, .events = POLLIN};
    }
}

static void on_waiting(void *ctx, bool waits)
{
    dt_supervisor_waiting(ctx, waits);
}

enum dt_status dt_supervisor_watch(struct dt_supervisor *w, const struct dt_supervisor_watch *opt,
                                   struct dt_error *err)
{
    sigset_t all, before;
    int failed;

    w->watch = *opt;
    if (!(w->watch.limit_s > 0))
        DT_TRY(dt_transport_seconds("DISTTRAIN_HEARTBEAT_S", 10, err, &w->watch.limit_s));
    if (!(w->watch.op_limit_s > 0))
        w->watch.op_limit_s = w->t->limit_s;
    if (w->t->size < 2)
        return DT_OK;
    w->peers = dt_calloc((size_t)w->t->size, sizeof(*w->peers));
    w->fds = dt_calloc((size_t)w->t->size, sizeof(*w->fds));
    if (!w->peers || !w->fds) {
        dt_free(w->peers);
        w->peers = NULL;
        return dt_error_nomem(err, "the watch over the ranks");
    }
    see_processes(w);
    dt_supervisor_doing(w, -1, 0, -1); /* from now on */
    w->t->waiting = on_waiting;
    w->t->waiting_ctx = w;
    for (int r = first_heard(w); r < end_heard(w); r++)
        if (!post(w, r, false))
            return dt_error_set(err, DT_ERR_PEER, "rank %d cannot hear rank %d", w->t->rank, r);
    /* signals are the main thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&w->thread, NULL, watch_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return dt_error_set(err, DT_ERR_NOMEM, "cannot start the watch over the ranks: %s",
                            strerror(failed));
    w->watching = true;
    return DT_OK;
}

void dt_supervisor_watch_stop(struct dt_supervisor *w)
{
    if (w->watching) {
        atomic_store(&w->leaving, true);
        pthread_join(w->thread, NULL);
        w->watching = false;
    }
    w->t->waiting = NULL;
    atomic_store(&w->page->left, 1);
    for (int r = 0; w->peers && r < w->t->size; r++) {
        dt_supervisor_page_unmap(w->peers[r].page);
        if (w->peers[r].pidfd >= 0)
            close(w->peers[r].pidfd);
    }
    dt_free(w->fds);
    w->fds = NULL;
}
