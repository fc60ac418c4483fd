/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Messages over MPI: Isend, Irecv and Test, nothing that blocks once the transport is open, so that
 * every wait has a deadline.  One lock around every call: libraries that allow several threads at
 * once (MPI_THREAD_MULTIPLE) pay for it in each, and not all of them are right. */
#include "base/clock.h"
#include "comm/cores.h"
#include "comm/transport_impl.h"

#include "base/mem.h"

#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ABORT_S = 5 }; /* the launcher has 4 s to end by itself */

struct dt_transport_xfer {
    MPI_Request one, *req; /* req: of all pieces, or &one */
    int n, next;           /* pieces; the first that is not over */
    bool send;
    int peer;
    uint64_t key;
    size_t bytes, piece;
};

struct mpi {
    struct dt_transport_base base; /* first: see dt_transport_base */
    struct dt_transport t;
    struct dt_transport_wire wire;
    pthread_mutex_t lock; /* around every call of MPI */
    MPI_Comm p2p, coll;
    bool initialised_here;
};

static struct mpi *mpi_of(struct dt_transport *t)
{
    return t->impl;
}

static void text_of(int code, char text[MPI_MAX_ERROR_STRING])
{
    int n = 0;

    text[0] = '\0';
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS)
        snprintf(text, MPI_MAX_ERROR_STRING, "MPI error %d", code);
}

static enum dt_status failed(struct dt_transport *t, const struct dt_transport_xfer *x, int code,
                             struct dt_error *err)
{
    char text[MPI_MAX_ERROR_STRING];

    text_of(code, text);
    return dt_error_set(err, DT_ERR_PEER, "%s rank %d (%zu bytes, rank %d): %s",
                        x->send ? "sending to" : "receiving from", x->peer, x->bytes, t->rank,
                        text);
}

/* ---- the wire ---- */

static enum dt_status begin(struct dt_transport *t, struct dt_transport_xfer *x, void *buf,
                            struct dt_error *err)
{
    struct mpi *m = mpi_of(t);
    MPI_Comm comm = x->key & DT_KEY_COLL ? m->coll : m->p2p;
    int tag = (int)(x->key & INT_MAX), code = MPI_SUCCESS;

    x->piece = dt_transport_mpi_piece_bytes;
    x->n = x->bytes ? (int)((x->bytes - 1) / x->piece + 1) : 1;
    x->req = &x->one;
    if (x->n > 1) {
        x->req = dt_malloc((size_t)x->n * sizeof(*x->req));
        if (!x->req)
            return dt_error_nomem(err, "the pieces of a long message");
    }
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < x->n && code == MPI_SUCCESS; i++) {
        size_t at = (size_t)i * x->piece, left = x->bytes - at;
        int bytes = (int)(left < x->piece ? left : x->piece);

        code = x->send
                   ? MPI_Isend((char *)buf + at, bytes, MPI_BYTE, x->peer, tag, comm, &x->req[i])
                   : MPI_Irecv((char *)buf + at, bytes, MPI_BYTE, x->peer, tag, comm, &x->req[i]);
    }
    pthread_mutex_unlock(&m->lock);
    return code == MPI_SUCCESS ? DT_OK : failed(t, x, code, err);
}

static enum dt_status wire_send(struct dt_transport *t, struct dt_transport_xfer *x, int to,
                                uint64_t key, const void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err)
{
    (void)q;
    x->send = true;
    x->peer = to;
    x->key = key;
    x->bytes = bytes;
    return begin(t, x, (void *)(uintptr_t)buf, err); /* only read */
}

static enum dt_status wire_recv(struct dt_transport *t, struct dt_transport_xfer *x, int from,
                                uint64_t key, void *buf, size_t bytes, struct dt_device_queue *q,
                                struct dt_error *err)
{
    (void)q;
    x->send = false;
    x->peer = from;
    x->key = key;
    x->bytes = bytes;
    return begin(t, x, buf, err);
}

static void forget(struct dt_transport_xfer *x)
{
    if (x->req != &x->one)
        dt_free(x->req);
    x->req = NULL;
}

/* Is this piece over?  A message of another size is the receiver's to tell. */
static enum dt_status test_piece(struct dt_transport *t, struct dt_transport_xfer *x, int *flag,
                                 struct dt_error *err)
{
    struct mpi *m = mpi_of(t);
    size_t at = (size_t)x->next * x->piece, left = x->bytes - at;
    size_t expected = left < x->piece ? left : x->piece;
    MPI_Status status;
    int code, got = -1;

    pthread_mutex_lock(&m->lock);
    code = MPI_Test(&x->req[x->next], flag, &status);
    if (!x->send && (code != MPI_SUCCESS || *flag))
        MPI_Get_count(&status, MPI_BYTE, &got);
    pthread_mutex_unlock(&m->lock);
    if (code == MPI_SUCCESS && (!*flag || x->send || (size_t)got == expected))
        return DT_OK;
    if (!x->send && got >= 0 && (size_t)got != expected)
        return dt_transport_size_error(err, x->peer, t->rank, x->key, at + (size_t)got, x->bytes);
    return failed(t, x, code, err);
}

static enum dt_status wire_progress(struct dt_transport *t, struct dt_transport_xfer *x,
                                    struct dt_device_queue *q, bool *done, struct dt_error *err)
{
    (void)q;
    while (x->next < x->n) {
        int flag = 0;
        enum dt_status st = test_piece(t, x, &flag, err);

        if (st || !flag) {
            if (st)
                forget(x);
            return st;
        }
        x->next++;
    }
    forget(x);
    *done = true;
    return DT_OK;
}

static void wire_cancel(struct dt_transport *t, struct dt_transport_xfer *x)
{
    struct mpi *m = mpi_of(t);

    if (!x->req)
        return;
    pthread_mutex_lock(&m->lock);
    for (; x->next < x->n; x->next++) {
        if (!x->send) /* a send cannot be taken back */
            MPI_Cancel(&x->req[x->next]);
        MPI_Request_free(&x->req[x->next]);
    }
    pthread_mutex_unlock(&m->lock);
    forget(x);
}

/* ---- opening and closing ---- */

static void mpi_free(struct mpi *m)
{
    dt_transport_base_free(&m->t);
    pthread_mutex_destroy(&m->lock);
    dt_free(m);
}

static void close_mpi(struct dt_transport *t)
{
    struct mpi *m;
    bool finalize;

    if (!t)
        return;
    m = mpi_of(t);
    finalize = m->initialised_here;
    dt_transport_base_free(t);
    MPI_Comm_free(&m->p2p);
    MPI_Comm_free(&m->coll);
    mpi_free(m);
    if (finalize)
        MPI_Finalize();
}

/* MPI_Abort asks the launcher to end this rank, and waits for an answer. */
static void limit_abort(void)
{
    sigset_t set;

    signal(SIGALRM, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    alarm(ABORT_S);
}

static void abort_mpi(struct dt_transport *t, int exit_status)
{
    struct timespec limit = dt_clock_wall_in(1000000000);

    /* whoever holds the lock may never give it back */
    (void)!pthread_mutex_timedlock(&mpi_of(t)->lock, &limit);
    dt_transport_hurry_launcher();
    limit_abort();
    MPI_Abort(MPI_COMM_WORLD, exit_status);
    _exit(exit_status);
}

static enum dt_status said(int code, const char *call, struct dt_error *err)
{
    char text[MPI_MAX_ERROR_STRING];

    if (code == MPI_SUCCESS)
        return DT_OK;
    text_of(code, text);
    return dt_error_set(err, DT_ERR_PEER, "%s: %s", call, text);
}

/* Open MPI sends the go-ahead for one direction's bulk behind the bulk of the other when both share
 * a TCP connection, so that an exchange runs one way at a time.  Measured with 4.1 on a link of 200
 * Mbit/s each way: an all-reduce of 4 MiB among two takes 300 ms, with a second connection 178 ms
 * (168 ms is what the link allows).  Other libraries do not know the variable. */
static void two_connections(void)
{
    setenv("OMPI_MCA_btl_tcp_links", "2", 0);
}

static enum dt_status initialise(struct mpi *m, struct dt_error *err)
{
    int already = 0, level = MPI_THREAD_SINGLE;

    two_connections();
    MPI_Initialized(&already);
    if (already)
        MPI_Query_thread(&level);
    else
        DT_TRY(said(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread",
                    err));
    m->initialised_here = !already;
    if (level < MPI_THREAD_SERIALIZED)
        return dt_error_set(err, DT_ERR_INPUT,
                            "this MPI library allows one thread only; DistTrain needs "
                            "MPI_THREAD_SERIALIZED");
    return DT_OK;
}

/* The largest key of a collective fits a tag, with at least 256 groups between any two ranks. */
static enum dt_status tags(struct mpi *m, struct dt_error *err, uint64_t *key_max)
{
    int *ub = NULL, found = 0;

    DT_TRY(said(MPI_Comm_get_attr(m->coll, MPI_TAG_UB, &ub, &found), "MPI_Comm_get_attr", err));
    if (!found || *ub < 1 << (8 + DT_SEQ_BITS + DT_STRAND_BITS))
        return dt_error_set(err, DT_ERR_INPUT, "this MPI library has tags up to %d only",
                            found ? *ub : 32767);
    *key_max = (uint64_t)*ub;
    return DT_OK;
}

static enum dt_status find_sharers(struct dt_transport *t, MPI_Comm local, struct dt_error *err)
{
    struct dt_cores *all = dt_calloc((size_t)t->local_size, sizeof(*all)), mine;
    enum dt_status st;

    if (!all)
        return dt_error_nomem(err, "ranks");
    dt_cores_here(&mine);
    st = said(MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all, sizeof(mine), MPI_BYTE, local),
              "MPI_Allgather", err);
    if (st == DT_OK)
        dt_cores_sharers(all, t->local_size, t->local_rank, &t->sharer, &t->sharers);
    dt_free(all);
    return st;
}

static enum dt_status connect_ranks(struct mpi *m, struct dt_error *err)
{
    struct dt_transport *t = &m->t;
    enum dt_status st;
    MPI_Comm local;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    DT_TRY(said(MPI_Comm_rank(MPI_COMM_WORLD, &t->rank), "MPI_Comm_rank", err));
    DT_TRY(said(MPI_Comm_size(MPI_COMM_WORLD, &t->size), "MPI_Comm_size", err));
    DT_TRY(said(
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, t->rank, MPI_INFO_NULL, &local),
        "MPI_Comm_split_type", err));
    MPI_Comm_rank(local, &t->local_rank);
    MPI_Comm_size(local, &t->local_size);
    st = find_sharers(t, local, err);
    MPI_Comm_free(&local);
    DT_TRY(st);
    /* errors are returned on the copies too: they inherit the handler */
    DT_TRY(said(MPI_Comm_dup(MPI_COMM_WORLD, &m->p2p), "MPI_Comm_dup", err));
    return said(MPI_Comm_dup(MPI_COMM_WORLD, &m->coll), "MPI_Comm_dup", err);
}

static const struct dt_transport_wire mpi_wire = {
    .xfer_bytes = sizeof(struct dt_transport_xfer),
    .send = wire_send,
    .recv = wire_recv,
    .progress = wire_progress,
    .cancel = wire_cancel,
};

static enum dt_status open_mpi(struct mpi *m, struct dt_error *err)
{
    struct dt_transport *t = &m->t;

    t->impl = m;
    t->close = close_mpi;
    t->abort = abort_mpi;
    snprintf(t->name, sizeof(t->name), "mpi");
    if (gethostname(t->host, sizeof(t->host) - 1) != 0)
        snprintf(t->host, sizeof(t->host), "unknown");
    DT_TRY(initialise(m, err));
    DT_TRY(connect_ranks(m, err));
    m->wire = mpi_wire;
    DT_TRY(tags(m, err, &m->wire.key_max));
    return dt_transport_base_init(t, &m->wire, err);
}

enum dt_status dt_transport_open_mpi(struct dt_error *err, struct dt_transport **out)
{
    struct mpi *m = dt_calloc(1, sizeof(*m));
    pthread_mutexattr_t attr;
    enum dt_status st;

    if (!m)
        return dt_error_nomem(err, "the MPI transport");
    m->t.impl = m;
    pthread_mutexattr_init(&attr);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    /* calls are short: better to spin for the lock than to sleep */
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(&m->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    st = open_mpi(m, err);
    if (st) {
        mpi_free(m);
        return st;
    }
    *out = &m->t;
    return DT_OK;
}
