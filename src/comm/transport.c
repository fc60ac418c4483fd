/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What does not depend on who carries the messages: waiting, groups, the environment. */
#include "comm/transport_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* MPI counts in int: a longer message goes in pieces, one after another under the same tag. */
size_t dt_transport_mpi_piece_bytes = (size_t)1 << 30;

int dt_comm_size(const struct dt_comm *c)
{
    return c->n;
}

int dt_comm_member(const struct dt_comm *c)
{
    return c->me;
}

int dt_comm_rank(const struct dt_comm *c, int member)
{
    return c->ranks[member];
}

struct dt_transport *dt_comm_transport(const struct dt_comm *c)
{
    return c->t;
}

enum dt_status dt_comm_new_over(struct dt_transport *t, struct dt_transport *inner, size_t bytes,
                                const int *ranks, int n, struct dt_error *err, struct dt_comm **out)
{
    struct dt_comm *c = dt_calloc(1, bytes);
    enum dt_status st;

    if (!c)
        return dt_error_nomem(err, "a group of ranks");
    st = inner->comm_new(inner, ranks, n, err, &c->inner);
    if (st != DT_OK) {
        dt_free(c);
        return st;
    }
    c->t = t;
    c->n = n;
    c->me = c->inner->me;
    c->ranks = c->inner->ranks;
    *out = c;
    return DT_OK;
}

void dt_comm_free_over(struct dt_comm *c)
{
    c->inner->t->comm_free(c->inner);
    dt_free(c);
}

enum dt_status dt_transport_seconds(const char *name, double otherwise_s, struct dt_error *err,
                                    double *out_s)
{
    const char *s = getenv(name);
    char *end;
    double v;

    if (!s || !*s) {
        *out_s = otherwise_s;
        return DT_OK;
    }
    errno = 0;
    v = strtod(s, &end);
    if (*end || errno || !(v > 0) || isinf(v))
        return dt_error_set(err, DT_ERR_USAGE, "%s is \"%s\"; it takes a number of seconds above 0",
                            name, s);
    *out_s = v;
    return DT_OK;
}

enum dt_status dt_transport_size_error(struct dt_error *err, int from, int to, uint64_t key,
                                       size_t sent, size_t expected)
{
    if (key & DT_KEY_COLL)
        return dt_error_set(err, DT_ERR_PEER,
                            "rank %d sent %zu bytes in a collective, but rank %d expects %zu bytes",
                            from, sent, to, expected);
    return dt_error_set(err, DT_ERR_PEER,
                        "rank %d sent %zu bytes with tag %llu, but rank %d expects %zu bytes", from,
                        sent, (unsigned long long)key, to, expected);
}

enum dt_status dt_transport_open_device(struct dt_transport *control,
                                        const struct dt_device *device, enum dt_transport_over over,
                                        struct dt_error *err, struct dt_transport **out)
{
    enum dt_status st;

    if (over == DT_TRANSPORT_OVER_AUTO && !device->info.id[0]) /* no card: nobody need be asked */
        over = DT_TRANSPORT_OVER_STAGED;
    if (over == DT_TRANSPORT_OVER_IPC)
        return dt_transport_open_ipc(control, device, err, out);
    if (over != DT_TRANSPORT_OVER_STAGED) {
        st = dt_transport_open_nccl(control, device, err, out);
        if (st != DT_ERR_INPUT || over == DT_TRANSPORT_OVER_NCCL)
            return st;
    }
    return dt_transport_open_staged(control, device, err, out);
}

enum dt_status dt_transport_memory_new(struct dt_transport *t, const struct dt_device *dev,
                                       size_t bytes, struct dt_error *err, void **out)
{
    return t && t->memory_new ? t->memory_new(t, bytes, err, out)
                              : dev->alloc(dev, bytes, err, out);
}

void dt_transport_memory_free(struct dt_transport *t, const struct dt_device *dev, void *p)
{
    if (t && t->memory_new)
        t->memory_free(t, p);
    else
        dev->free(dev, p);
}

enum { FEW_TESTS = 100 };

/* A thirty-second of the time waited so far, so that a wait lasts at most so much longer than it
 * had to. */
static void pause_after(uint64_t waited_ns)
{
    uint64_t ns = waited_ns / 32;
    struct timespec t = {0, 0};

    ns = ns < 20000 ? 20000 : ns > 1000000 ? 1000000 : ns;
    t.tv_nsec = (long)ns;
    nanosleep(&t, NULL);
}

static bool stopped(const atomic_bool *stop)
{
    return stop && atomic_load_explicit(stop, memory_order_acquire);
}

enum dt_status dt_transport_wait_unless(struct dt_transport *t, struct dt_req *r, double limit_s,
                                        const char *what, const atomic_bool *stop,
                                        struct dt_error *err)
{
    uint64_t begin, now, eager;
    bool done = false;

    /* most answers come within a few microseconds: no look at the clock until then */
    for (int k = 0; k < FEW_TESTS; k++) {
        DT_TRY(t->test(t, r, &done, err));
        if (done)
            return DT_OK;
    }
    if (!(limit_s > 0))
        limit_s = t->limit_s;
    begin = dt_clock_ns();
    eager = t->eager_ns(t, r);
    if (t->waiting)
        t->waiting(t->waiting_ctx, true);
    for (;;) {
        DT_TRY(t->test(t, r, &done, err));
        if (done) {
            if (t->waiting)
                t->waiting(t->waiting_ctx, false);
            return DT_OK;
        }
        if (stopped(stop))
            return dt_error_set(err, DT_ERR_PEER, "rank %d waits no more for %s", t->rank,
                                what ? what : "another rank");
        now = dt_clock_ns();
        if ((double)(now - begin) > limit_s * 1e9)
            return dt_error_set(err, DT_ERR_TIMEOUT, "rank %d waited %g s for %s", t->rank, limit_s,
                                what ? what : "another rank");
        if (now - begin >= eager)
            pause_after(now - begin);
        else if (dt_transport_crowded(t))
            sched_yield(); /* to the rank that is waited for, maybe */
    }
}

enum dt_status dt_transport_wait(struct dt_transport *t, struct dt_req *r, double limit_s,
                                 const char *what, struct dt_error *err)
{
    return dt_transport_wait_unless(t, r, limit_s, what, NULL, err);
}
