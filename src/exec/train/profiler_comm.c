/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 *   main thread      ask ----------------------------> wait ... time
 *   courier thread          post, test, pause, test ... done
 *
 * so that a measured time holds what an op of the executor holds: two hand-overs between threads,
 * the messages, and the pauses between looks at them. */
#include "exec/train/profiler_comm.h"

#include "base/mem.h"
#include "base/clock.h"
#include "comm/backoff.h"
#include "core/cost/cost.h"
#include "exec/train/profiler.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 15, WARM_UP = 3, BYTES_MIN = 4096, BYTES_STEP = 4, TAG = 1 };

struct courier {
    struct dt_transport *t;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked, done;
    /* locked */
    bool busy, stop;
    uint64_t core_ns; /* that this thread has computed for all that it has carried */
    enum dt_status status;
    struct dt_error error;
    /* what is asked for */
    struct dt_comm *comm; /* of a collective */
    int family;           /* enum dt_kop_family; of SEND_RECV this end's part: */
    bool sends;
    int peer;
    char *buf;
    size_t bytes, *pieces;
};

/* ---- the courier ---- */

static enum dt_status post(struct courier *c, struct dt_req **out)
{
    int n = c->comm ? dt_comm_size(c->comm) : 2;

    for (int k = 0; k < n; k++) {
        c->pieces[k] = c->bytes / (size_t)n;
        if (c->family == DT_KOP_REDUCE_SCATTER)
            c->pieces[k] /= sizeof(float);
    }
    if (c->family == DT_KOP_ALL_REDUCE)
        return c->t->post_all_reduce(c->comm, DT_REDUCE_F32, c->buf, c->bytes / sizeof(float), NULL,
                                     &c->error, out);
    if (c->family == DT_KOP_REDUCE_SCATTER)
        return c->t->post_reduce_scatter(c->comm, DT_REDUCE_F32, c->buf, c->pieces, NULL, &c->error,
                                         out);
    if (c->family == DT_KOP_ALL_GATHER)
        return c->t->post_all_gather(c->comm, c->buf, c->pieces, NULL, &c->error, out);
    return c->sends ? c->t->post_send(c->t, c->peer, TAG, c->buf, c->bytes, NULL, &c->error, out)
                    : c->t->post_recv(c->t, c->peer, TAG, c->buf, c->bytes, NULL, &c->error, out);
}

static enum dt_status carry(struct courier *c)
{
    uint64_t begin = dt_clock_ns();
    struct timespec pause = {0};
    struct dt_req *r;
    int64_t next = 0;
    bool done = false;

    DT_TRY(post(c, &r));
    for (;;) {
        DT_TRY(c->t->test(c->t, r, &done, &c->error));
        if (done)
            return DT_OK;
        if ((double)(dt_clock_ns() - begin) * 1e-9 > c->t->limit_s)
            return dt_error_set(&c->error, DT_ERR_TIMEOUT, "another rank stopped measuring");
        pause.tv_nsec = (long)dt_backoff_ns(true, dt_transport_crowded(c->t), &next);
        nanosleep(&pause, NULL);
    }
}

static void *courier(void *arg)
{
    struct courier *c = arg;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->busy && !c->stop)
            pthread_cond_wait(&c->asked, &c->lock);
        if (c->stop)
            break;
        pthread_mutex_unlock(&c->lock);
        c->status = carry(c);
        pthread_mutex_lock(&c->lock);
        c->core_ns = dt_clock_thread_ns(); /* with what it takes to wake up and to begin to wait */
        c->busy = false;
        pthread_cond_signal(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static enum dt_status ask(struct courier *c, struct dt_error *err)
{
    enum dt_status st;

    pthread_mutex_lock(&c->lock);
    c->busy = true;
    pthread_cond_signal(&c->asked);
    while (c->busy)
        pthread_cond_wait(&c->done, &c->lock);
    st = c->status;
    pthread_mutex_unlock(&c->lock);
    if (st != DT_OK && err)
        *err = c->error;
    return st;
}

static enum dt_status courier_open(struct courier *c, size_t bytes, struct dt_error *err)
{
    c->buf = dt_calloc(1, bytes);
    c->pieces = dt_calloc((size_t)c->t->size, sizeof(*c->pieces));
    if (!c->buf || !c->pieces)
        return dt_error_nomem(err, "messages to measure");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->asked, NULL);
    pthread_cond_init(&c->done, NULL);
    if (pthread_create(&c->thread, NULL, courier, c) == 0)
        return DT_OK;
    pthread_mutex_destroy(&c->lock);
    return dt_error_set(err, DT_ERR_NOMEM, "a thread to measure messages cannot be started");
}

static void courier_close(struct courier *c)
{
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->asked);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    pthread_mutex_destroy(&c->lock);
}

/* ---- measuring ---- */

static enum dt_status meet(struct dt_transport *t, struct dt_comm *all, struct dt_error *err)
{
    struct dt_req *r;
    float one = 1;

    DT_TRY(t->post_all_reduce(all, DT_REDUCE_F32, &one, 1, NULL, err, &r));
    return dt_transport_wait(t, r, 0, "the ranks that measure", err);
}

/* There and back: half of it is one message. */
static enum dt_status there_and_back(struct courier *c, double *ns, struct dt_error *err)
{
    bool first = c->t->rank == 0;
    uint64_t t0 = dt_clock_ns();

    c->peer = first ? 1 : 0;
    for (int leg = 0; leg < 2; leg++) {
        c->sends = first == (leg == 0);
        DT_TRY(ask(c, err));
    }
    *ns = (double)(dt_clock_ns() - t0) / 2;
    return DT_OK;
}

static enum dt_status collective(struct courier *c, double *ns, struct dt_error *err)
{
    uint64_t t0 = dt_clock_ns();

    DT_TRY(ask(c, err));
    *ns = (double)(dt_clock_ns() - t0);
    return DT_OK;
}

struct rows {
    const struct dt_profiler_comm_options *o;
    struct dt_comm *all;
    int device, dtype, source;
    struct dt_profile_table *out;
};

static double to_base(const struct rows *w)
{
    return w->o->to_base ? w->o->to_base(w->o->ctx) : 1;
}

static int repeats_of(const struct rows *w)
{
    return w->o->repeats > 0 ? w->o->repeats : REPEATS;
}

static enum dt_status add(struct rows *w, int family, int64_t d0, int64_t d1, int64_t d2,
                          double *ns, struct dt_error *err)
{
    struct dt_profile_table_row row = {.device = w->device, .dtype = w->dtype};

    dt_profiler_statistics(ns, repeats_of(w), &row.r);
    row.r.family = family;
    row.r.phase = DT_PHASE_FWD;
    row.r.kind = DT_ROW_MEASURED;
    row.r.source = w->source;
    row.r.d[0] = d0;
    row.r.d[1] = d1;
    row.r.d[2] = d2;
    return dt_profile_table_add(w->out, &row, err);
}

/* How long it took, and what a core did for it meanwhile. */
static enum dt_status add_rows(struct rows *w, const struct courier *c, int n, double *ns,
                               double *core, struct dt_error *err)
{
    bool p2p = c->family == DT_KOP_SEND_RECV; /* between two ranks of one node */
    int64_t bytes = (int64_t)c->bytes;

    DT_TRY(add(w, c->family, p2p ? 2 : n, p2p ? bytes : n, p2p ? 0 : bytes, ns, err));
    return add(w, DT_KOP_CARRY, p2p ? 1 : n, dt_cost_carry_sums((enum dt_kop_family)c->family),
               bytes, core, err);
}

/* c->family among `n` ranks (this one among them if `in`), c->bytes of buffer. */
static enum dt_status one(struct rows *w, struct courier *c, int n, bool in, struct dt_error *err)
{
    bool p2p = c->family == DT_KOP_SEND_RECV;
    int repeats = repeats_of(w);
    double *ns = dt_malloc(2 * (size_t)repeats * sizeof(*ns)), *core, x = 0, factor;
    enum dt_status st = ns ? DT_OK : dt_error_nomem(err, "times");

    core = ns ? ns + repeats : NULL;
    to_base(w);
    for (int i = -WARM_UP; i < repeats && st == DT_OK; i++) {
        uint64_t before;

        st = meet(c->t, w->all, err);
        before = c->core_ns;
        if (st == DT_OK && in)
            st = p2p ? there_and_back(c, &x, err) : collective(c, &x, err);
        if (i < 0)
            continue;
        ns[i] = x;
        core[i] = (double)(c->core_ns - before) / (p2p ? 2 : 1); /* one was sent, one received */
    }
    factor = to_base(w);
    for (int i = 0; i < 2 * repeats && st == DT_OK; i++)
        ns[i] *= factor; /* and the core's */
    if (st == DT_OK && c->t->rank == 0)
        st = add_rows(w, c, n, ns, core, err);
    dt_free(ns);
    return st;
}

static enum dt_status sizes(struct rows *w, struct courier *c, int n, bool in, struct dt_error *err)
{
    for (int64_t b = BYTES_MIN; b <= w->o->bytes_max || b == BYTES_MIN; b *= BYTES_STEP) {
        c->bytes = (size_t)b / (sizeof(float) * (size_t)n) * sizeof(float) * (size_t)n;
        DT_TRY(one(w, c, n, in, err));
    }
    return DT_OK;
}

/* The first n ranks. */
static enum dt_status among(struct rows *w, struct courier *c, int n, struct dt_error *err)
{
    static const int families[] = {DT_KOP_ALL_REDUCE, DT_KOP_REDUCE_SCATTER, DT_KOP_ALL_GATHER};
    bool in = c->t->rank < n;
    int *ranks = dt_malloc((size_t)n * sizeof(*ranks));
    enum dt_status st = ranks ? DT_OK : dt_error_nomem(err, "ranks");

    for (int k = 0; k < n && st == DT_OK; k++)
        ranks[k] = k;
    c->comm = NULL;
    if (st == DT_OK && in)
        st = c->t->comm_new(c->t, ranks, n, err, &c->comm);
    dt_free(ranks);
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]) && st == DT_OK; f++) {
        c->family = families[f];
        st = sizes(w, c, n, in, err);
    }
    if (c->comm)
        c->t->comm_free(c->comm);
    c->comm = NULL;
    return st;
}

static enum dt_status everything(struct rows *w, struct courier *c, struct dt_error *err)
{
    int size = c->t->size;

    c->family = DT_KOP_SEND_RECV;
    DT_TRY(sizes(w, c, 2, c->t->rank < 2, err));
    for (int n = 2; n < size; n *= 2)
        DT_TRY(among(w, c, n, err));
    return among(w, c, size, err);
}

static enum dt_status with_all(struct rows *w, struct courier *c, struct dt_error *err)
{
    int size = c->t->size, *ranks = dt_malloc((size_t)size * sizeof(*ranks));
    enum dt_status st;

    if (!ranks)
        return dt_error_nomem(err, "ranks");
    for (int k = 0; k < size; k++)
        ranks[k] = k;
    st = c->t->comm_new(c->t, ranks, size, err, &w->all);
    dt_free(ranks);
    DT_TRY(st);
    st = everything(w, c, err);
    c->t->comm_free(w->all);
    return st;
}

enum dt_status dt_profiler_comm(const struct dt_profiler_comm_options *o, int device, int dtype,
                                int source, struct dt_error *err, struct dt_profile_table *out)
{
    struct courier c = {.t = o->transport};
    struct rows w = {.o = o, .device = device, .dtype = dtype, .source = source, .out = out};
    enum dt_status st;

    if (o->transport->size < 2)
        return dt_error_set(err, DT_ERR_INPUT, "one rank sends no messages to measure");
    st = courier_open(&c, (size_t)(o->bytes_max > BYTES_MIN ? o->bytes_max : BYTES_MIN), err);
    if (st == DT_OK) {
        st = with_all(&w, &c, err);
        courier_close(&c);
    }
    dt_free(c.buf);
    dt_free(c.pieces);
    return st;
}
