/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "fake_nccl.h"

#include "comm/nccl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))
enum { SUCCESS, UNHANDLED, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS, RANKS = 64 };
enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, MESSAGE };
static const char *const kinds[] = {"AllReduce", "Reduce",    "ReduceScatter",
                                    "AllGather", "Broadcast", "Send and Recv"};

/* What the members of a communicator do together: a collective of all, or a message of two. */
struct meeting {
    struct meeting *next;
    uint64_t number; /* of its kind: collectives; messages from one to another */
    enum kind kind;
    int from, to; /* of a message */
    size_t n;
    int type, op, root, came, left;
    const char *in[RANKS]; /* as tasks see them; NULL: has not come */
    char *out[RANKS];
    bool over;
};

struct world { /* the members of a communicator */
    struct world *next;
    uint64_t id;
    int n, joined, users, finalized;
    int under_way[RANKS]; /* launches of each member that are not over */
    bool given_up[RANKS], lost;
    struct meeting *meetings;
};

struct part { /* of a launch: what one member brings to a meeting */
    enum kind kind;
    const char *in;
    char *out;
    size_t n;
    int type, op, root, from, to;
    uint64_t number;
};

struct launch { /* what goes to a stream as one */
    struct launch *next;
    struct dt_nccl_comm *comm;
    struct world *w; /* of comm, which may have ended */
    int me;
    void *stream;
    struct part *parts;
    int n, cap;
};

struct caller { /* a thread that makes communicators */
    struct caller *next;
    pthread_t thread;
    uint64_t comms, order; /* made so far; a hash of its calls, in their order */
};

struct dt_nccl_comm {
    struct world *w;
    struct caller *caller; /* nobody else may call */
    uint64_t name;         /* among the caller's */
    int me, questions;     /* more of them until it is ready */
    uint64_t launches, collectives, sent[RANKS], received[RANKS];
    struct launch *held; /* goes to its stream when it is ready */
    atomic_int inside;
    bool finalizing;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static struct world *worlds;
static struct caller *callers;
static uint64_t ids, calls, fail_at;
static uint64_t living; /* communicators */
static struct fake_nccl_hooks hooks;
static _Thread_local int depth;
static _Thread_local struct launch *group;

static void __attribute__((format(printf, 1, 2), noreturn)) stop(const char *fmt, ...)
{
    va_list ap;

    fputs("fake nccl: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

static void *zeroed(size_t bytes)
{
    void *p = calloc(1, bytes);

    return p ? p : (stop("out of memory"), NULL);
}

/* Does this call fail? */
static bool fails(void)
{
    bool now;

    pthread_mutex_lock(&lock);
    now = ++calls == fail_at;
    pthread_mutex_unlock(&lock);
    return now;
}

/* ---- callers ---- */

static struct caller *caller(void)
{
    struct caller *c;

    pthread_mutex_lock(&lock);
    for (c = callers; c && !pthread_equal(c->thread, pthread_self()); c = c->next)
        ;
    if (!c) {
        c = zeroed(sizeof(*c));
        c->thread = pthread_self();
        c->next = callers;
        callers = c;
    }
    pthread_mutex_unlock(&lock);
    return c;
}

/* FNV-1a */
static void note(struct caller *c, const uint64_t *what, int n)
{
    pthread_mutex_lock(&lock);
    for (int k = 0; k < n; k++)
        c->order = (c->order ^ what[k]) * UINT64_C(1099511628211);
    pthread_mutex_unlock(&lock);
}

/* ---- worlds ---- */

static void world_leave(struct world *w) /* locked */
{
    if (--w->users > 0)
        return;
    for (struct world **at = &worlds; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    for (struct meeting *m = w->meetings, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    free(w);
}

/* ---- meetings ---- */

static size_t bytes_of(int type)
{
    switch (type) {
    case DT_NCCL_INT8:
        return 1;
    case DT_NCCL_BFLOAT16:
        return 2;
    case DT_NCCL_FLOAT32:
        return 4;
    case DT_NCCL_FLOAT64:
    case DT_NCCL_UINT64:
        return 8;
    default:
        stop("no data have type %d here", type);
    }
}

static float wide(const char *p)
{
    uint16_t h;
    uint32_t u;
    float f;

    memcpy(&h, p, 2);
    u = (uint32_t)h << 16;
    memcpy(&f, &u, 4);
    return f;
}

static void narrow(char *p, float f)
{
    uint32_t u;
    uint16_t h;

    memcpy(&u, &f, 4);
    h = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    memcpy(p, &h, 2);
}

#define FOLD(T)                                                                                    \
    do {                                                                                           \
        T sum, x;                                                                                  \
        memcpy(&sum, m->in[0] + at, sizeof(T));                                                    \
        for (int k = 1; k < n; k++) {                                                              \
            memcpy(&x, m->in[k] + at, sizeof(T));                                                  \
            sum = m->op == DT_NCCL_SUM ? sum + x : x > sum ? x : sum;                              \
        }                                                                                          \
        memcpy(to, &sum, sizeof(T));                                                               \
    } while (0)

/* Element at byte `at` of all members, in their order. */
static void fold(const struct meeting *m, int n, size_t at, char *to)
{
    float wide_sum;

    switch (m->type) {
    case DT_NCCL_FLOAT32:
        FOLD(float);
        return;
    case DT_NCCL_FLOAT64:
        FOLD(double);
        return;
    case DT_NCCL_UINT64:
        FOLD(uint64_t);
        return;
    case DT_NCCL_BFLOAT16:
        wide_sum = wide(m->in[0] + at);
        for (int k = 1; k < n; k++)
            wide_sum += wide(m->in[k] + at);
        narrow(to, wide_sum);
        return;
    default:
        stop("%s of type %d", kinds[m->kind], m->type);
    }
}

/* Sums of elements [first, first + count) of all members. */
static char *fold_range(const struct meeting *m, int n, size_t first, size_t count)
{
    size_t b = bytes_of(m->type);
    char *sum = zeroed(count * b + 1);

    for (size_t i = 0; i < count; i++)
        fold(m, n, (first + i) * b, sum + i * b);
    return sum;
}

/* All have come: everybody gets what is his.  Sums are formed before anything is written, as buffers may be one. */
static void hold(struct meeting *m, int n)
{
    size_t bytes = m->n * bytes_of(m->type);
    char *all;

    switch (m->kind) {
    case ALL_REDUCE:
        all = fold_range(m, n, 0, m->n);
        for (int k = 0; k < n; k++)
            memcpy(m->out[k], all, bytes);
        break;
    case REDUCE:
        all = fold_range(m, n, 0, m->n);
        memcpy(m->out[m->root], all, bytes);
        break;
    case REDUCE_SCATTER:
        all = fold_range(m, n, 0, m->n * (size_t)n);
        for (int k = 0; k < n; k++)
            memcpy(m->out[k], all + (size_t)k * bytes, bytes);
        break;
    case ALL_GATHER:
        all = zeroed(bytes * (size_t)n + 1);
        for (int k = 0; k < n; k++)
            memcpy(all + (size_t)k * bytes, m->in[k], bytes);
        for (int k = 0; k < n; k++)
            memcpy(m->out[k], all, bytes * (size_t)n);
        break;
    case BROADCAST:
        all = NULL;
        for (int k = 0; k < n; k++)
            if (m->out[k] != m->in[m->root])
                memcpy(m->out[k], m->in[m->root], bytes);
        break;
    case MESSAGE:
    default:
        all = NULL;
        memcpy(m->out[m->to], m->in[m->from], bytes);
        break;
    }
    free(all);
    m->over = true;
    pthread_cond_broadcast(&change);
}

static struct meeting *meeting_of(struct world *w, const struct part *p) /* locked */
{
    struct meeting *m = w->meetings;

    while (m && (m->number != p->number || (m->kind == MESSAGE) != (p->kind == MESSAGE) ||
                 (p->kind == MESSAGE && (m->from != p->from || m->to != p->to))))
        m = m->next;
    if (m)
        return m;
    m = zeroed(sizeof(*m));
    *m = (struct meeting){.next = w->meetings,
                          .number = p->number,
                          .kind = p->kind,
                          .from = p->from,
                          .to = p->to,
                          .n = p->n,
                          .type = p->type,
                          .op = p->op,
                          .root = p->root};
    w->meetings = m;
    return m;
}

static struct meeting *come(struct world *w, int me, const struct part *p) /* locked */
{
    struct meeting *m = meeting_of(w, p);

    if (m->kind != p->kind || m->n != p->n || m->type != p->type || m->op != p->op ||
        m->root != p->root)
        stop("member %d of %d calls %s of %zu elements of type %d (operation %d, root %d), but "
             "another one %s of %zu of type %d (operation %d, root %d)",
             me, w->n, kinds[p->kind], p->n, p->type, p->op, p->root, kinds[m->kind], m->n, m->type,
             m->op, m->root);
    if (p->in)
        m->in[me] = p->in;
    if (p->out)
        m->out[me] = p->out;
    if (++m->came == (m->kind == MESSAGE ? 2 : w->n))
        hold(m, w->n);
    return m;
}

static void leave(struct world *w, struct meeting *m) /* locked */
{
    if (++m->left < m->came || !m->over)
        return;
    for (struct meeting **at = &w->meetings; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            free(m);
            return;
        }
}

/* ---- on streams ---- */

static void run(void *arg)
{
    struct launch *l = arg;
    struct world *w = l->w;
    struct meeting **m = zeroed((size_t)l->n * sizeof(struct meeting *) + 1);

    pthread_mutex_lock(&lock);
    if (!w->given_up[l->me]) {
        for (int k = 0; k < l->n; k++)
            m[k] = come(w, l->me, &l->parts[k]);
        for (int k = 0; k < l->n; k++) {
            while (!m[k]->over && !w->given_up[l->me])
                pthread_cond_wait(&change, &lock);
            if (m[k]->over)
                leave(w, m[k]);
        }
    }
    w->under_way[l->me]--;
    world_leave(w);
    pthread_mutex_unlock(&lock);
    free((void *)m);
    free(l->parts);
    free(l);
}

static void submit(struct launch *l)
{
    hooks.submit(l->stream, l->n > 1 ? "nccl group" : kinds[l->parts[0].kind], run, l);
}

/* Every fourth takes a few questions until it is on its stream. */
static int launch(struct launch *l)
{
    struct dt_nccl_comm *c = l->comm;

    l->w = c->w;
    l->me = c->me;
    pthread_mutex_lock(&lock);
    c->w->users++;
    c->w->under_way[c->me]++;
    pthread_mutex_unlock(&lock);
    if ((c->launches++ + (uint64_t)c->me) % 4 != 3) {
        submit(l);
        return SUCCESS;
    }
    c->held = l;
    c->questions = 1 + (int)(c->launches % 3);
    return IN_PROGRESS;
}

static void enter(struct dt_nccl_comm *c, const char *what)
{
    if (c->caller != caller())
        stop("%s on a communicator that another thread has made", what);
    if (atomic_fetch_add(&c->inside, 1) != 0)
        stop("%s on a communicator that another thread is in", what);
    if (c->questions > 0 || c->held)
        stop("%s on a communicator that is in progress", what);
    if (c->finalizing)
        stop("%s on a finalized communicator", what);
}

static int add(struct dt_nccl_comm *c, void *stream, struct part p)
{
    struct launch *l;
    int result = SUCCESS;

    if (fails())
        return SYSTEM;
    enter(c, kinds[p.kind]);
    note(c->caller, (uint64_t[]){c->name, p.kind, p.n, (uint64_t)p.type, (uint64_t)p.root}, 5);
    p.in = p.in ? hooks.alias(p.in, kinds[p.kind]) : NULL;
    p.out = p.out ? hooks.alias(p.out, kinds[p.kind]) : NULL;
    p.number = p.kind != MESSAGE ? c->collectives++
               : p.from == c->me ? c->sent[p.to]++
                                 : c->received[p.from]++;
    for (l = group; l && (l->comm != c || l->stream != stream); l = l->next)
        ;
    if (!l) {
        l = zeroed(sizeof(*l));
        l->comm = c;
        l->stream = stream;
        l->next = group;
        group = l;
    }
    if (l->n == l->cap) {
        l->cap = 2 * l->cap + 4;
        l->parts = realloc(l->parts, (size_t)l->cap * sizeof(*l->parts));
        if (!l->parts)
            stop("out of memory");
    }
    l->parts[l->n++] = p;
    if (depth == 0) {
        group = NULL;
        result = launch(l);
    }
    atomic_fetch_sub(&c->inside, 1);
    return result;
}

/* ---- the library ---- */

SHOWN int ncclGetVersion(int *version);
SHOWN int ncclGetVersion(int *version)
{
    *version = 22809;
    return SUCCESS;
}

SHOWN int ncclGetUniqueId(struct dt_nccl_id *id);
SHOWN int ncclGetUniqueId(struct dt_nccl_id *id)
{
    uint64_t n;

    if (fails())
        return SYSTEM;
    pthread_mutex_lock(&lock);
    n = ++ids;
    pthread_mutex_unlock(&lock);
    memset(id, 0x5a, sizeof(*id));
    memcpy(id->internal + 100, &n, sizeof(n));
    return SUCCESS;
}

SHOWN int ncclCommInitRankConfig(struct dt_nccl_comm **comm, int ranks, struct dt_nccl_id id,
                                 int rank, struct dt_nccl_config *config);
SHOWN int ncclCommInitRankConfig(struct dt_nccl_comm **comm, int ranks, struct dt_nccl_id id,
                                 int rank, struct dt_nccl_config *config)
{
    struct dt_nccl_comm *c = NULL;
    struct world *w = NULL;
    uint64_t n = 0;

    if (fails())
        return SYSTEM;
    if (config->size != sizeof(*config) || config->magic != 0xcafebeef || config->blocking != 0)
        stop("a communicator is configured to block, or not at all");
    if (ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks)
        return ARGUMENT;
    memcpy(&n, id.internal + 100, sizeof(n));
    c = zeroed(sizeof(*c));
    pthread_mutex_lock(&lock);
    if (n == 0 || n > ids)
        stop("a communicator has an id that nobody has made");
    for (w = worlds; w && w->id != n; w = w->next)
        ;
    if (!w) {
        w = zeroed(sizeof(*w));
        w->id = n;
        w->n = ranks;
        w->next = worlds;
        worlds = w;
    }
    if (w->n != ranks || w->joined >= ranks)
        stop("%d ranks join a communicator of %d", w->joined + 1, w->n);
    w->joined++;
    w->users++;
    living++;
    pthread_mutex_unlock(&lock);
    c->w = w;
    c->me = rank;
    c->caller = caller();
    c->name = ++c->caller->comms;
    c->questions = 2;
    *comm = c;
    return IN_PROGRESS;
}

SHOWN int ncclCommGetAsyncError(struct dt_nccl_comm *c, int *error);
SHOWN int ncclCommGetAsyncError(struct dt_nccl_comm *c, int *error)
{
    struct launch *l = NULL;

    if (c->caller != caller())
        stop("CommGetAsyncError on a communicator that another thread has made");
    if (atomic_fetch_add(&c->inside, 1) != 0)
        stop("CommGetAsyncError on a communicator that another thread is in");
    if (fails()) {
        atomic_fetch_sub(&c->inside, 1);
        return SYSTEM;
    }
    pthread_mutex_lock(&lock);
    if (c->w->lost)
        *error = REMOTE;
    else if (c->w->joined < c->w->n)
        *error = IN_PROGRESS;
    else if (c->finalizing && (c->w->finalized < c->w->n || c->w->under_way[c->me] > 0))
        *error = IN_PROGRESS; /* it waits for what has been launched */
    else if (c->questions > 0 && --c->questions > 0)
        *error = IN_PROGRESS;
    else
        *error = SUCCESS;
    if (*error == SUCCESS) {
        l = c->held;
        c->held = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (l)
        submit(l);
    atomic_fetch_sub(&c->inside, 1);
    return SUCCESS;
}

SHOWN int ncclCommFinalize(struct dt_nccl_comm *c);
SHOWN int ncclCommFinalize(struct dt_nccl_comm *c)
{
    enter(c, "CommFinalize");
    pthread_mutex_lock(&lock);
    c->finalizing = true;
    c->w->finalized++;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&c->inside, 1);
    return IN_PROGRESS;
}

static int end(struct dt_nccl_comm *c, bool given_up)
{
    if (c->caller != caller())
        stop("the end of a communicator that another thread has made");
    pthread_mutex_lock(&lock);
    if (!given_up && c->w->finalized < c->w->n)
        stop("CommDestroy of a communicator that is not finalized by all");
    if (!given_up && c->w->under_way[c->me] > 0)
        stop("CommDestroy of a communicator with operations under way");
    c->w->given_up[c->me] = c->w->given_up[c->me] || given_up;
    pthread_cond_broadcast(&change);
    if (c->held) { /* it never gets to its stream */
        c->w->users--;
        c->w->under_way[c->me]--;
        free(c->held->parts);
        free(c->held);
    }
    world_leave(c->w);
    living--;
    pthread_mutex_unlock(&lock);
    free(c);
    return SUCCESS;
}

SHOWN int ncclCommDestroy(struct dt_nccl_comm *c);
SHOWN int ncclCommDestroy(struct dt_nccl_comm *c)
{
    return end(c, false);
}

SHOWN int ncclCommAbort(struct dt_nccl_comm *c);
SHOWN int ncclCommAbort(struct dt_nccl_comm *c)
{
    return end(c, true);
}

SHOWN const char *ncclGetErrorString(int result);
SHOWN const char *ncclGetErrorString(int result)
{
    static const char *const text[] = {"no error",       "unhandled cuda error", "system error",
                                       "internal error", "invalid argument",     "invalid usage",
                                       "remote error",   "in progress"};

    return result >= 0 && result <= IN_PROGRESS ? text[result] : "unknown";
}

SHOWN const char *ncclGetLastError(struct dt_nccl_comm *c);
SHOWN const char *ncclGetLastError(struct dt_nccl_comm *c)
{
    (void)c;
    return "as the test wants it";
}

SHOWN int ncclGroupStart(void);
SHOWN int ncclGroupStart(void)
{
    if (fails())
        return SYSTEM;
    depth++;
    return SUCCESS;
}

SHOWN int ncclGroupEnd(void);
SHOWN int ncclGroupEnd(void)
{
    struct launch *l = group, *next;
    int result = SUCCESS;

    if (depth == 0)
        return USAGE;
    if (--depth > 0)
        return SUCCESS;
    group = NULL;
    for (; l; l = next) {
        int r;

        next = l->next;
        r = launch(l);
        result = r != SUCCESS ? r : result;
    }
    return fails() ? SYSTEM : result;
}

SHOWN int ncclAllReduce(const void *in, void *out, size_t n, int type, int op,
                        struct dt_nccl_comm *comm, void *stream);
SHOWN int ncclAllReduce(const void *in, void *out, size_t n, int type, int op,
                        struct dt_nccl_comm *comm, void *stream)
{
    return add(comm, stream, (struct part){ALL_REDUCE, in, out, n, type, op, 0, 0, 0, 0});
}

SHOWN int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root,
                     struct dt_nccl_comm *comm, void *stream);
SHOWN int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root,
                     struct dt_nccl_comm *comm, void *stream)
{
    return add(comm, stream, (struct part){REDUCE, in, out, n, type, op, root, 0, 0, 0});
}

SHOWN int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op,
                            struct dt_nccl_comm *comm, void *stream);
SHOWN int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op,
                            struct dt_nccl_comm *comm, void *stream)
{
    return add(comm, stream, (struct part){REDUCE_SCATTER, in, out, n, type, op, 0, 0, 0, 0});
}

SHOWN int ncclAllGather(const void *in, void *out, size_t n, int type, struct dt_nccl_comm *comm,
                        void *stream);
SHOWN int ncclAllGather(const void *in, void *out, size_t n, int type, struct dt_nccl_comm *comm,
                        void *stream)
{
    return add(comm, stream, (struct part){ALL_GATHER, in, out, n, type, 0, 0, 0, 0, 0});
}

SHOWN int ncclBroadcast(const void *in, void *out, size_t n, int type, int root,
                        struct dt_nccl_comm *comm, void *stream);
SHOWN int ncclBroadcast(const void *in, void *out, size_t n, int type, int root,
                        struct dt_nccl_comm *comm, void *stream)
{
    return add(comm, stream, (struct part){BROADCAST, in, out, n, type, 0, root, 0, 0, 0});
}

SHOWN int ncclSend(const void *in, size_t n, int type, int peer, struct dt_nccl_comm *comm,
                   void *stream);
SHOWN int ncclSend(const void *in, size_t n, int type, int peer, struct dt_nccl_comm *comm,
                   void *stream)
{
    return add(comm, stream, (struct part){MESSAGE, in, NULL, n, type, 0, 0, comm->me, peer, 0});
}

SHOWN int ncclRecv(void *out, size_t n, int type, int peer, struct dt_nccl_comm *comm,
                   void *stream);
SHOWN int ncclRecv(void *out, size_t n, int type, int peer, struct dt_nccl_comm *comm, void *stream)
{
    return add(comm, stream, (struct part){MESSAGE, NULL, out, n, type, 0, 0, peer, comm->me, 0});
}

/* ---- for tests ---- */

static uint64_t locked(const uint64_t *of)
{
    uint64_t n;

    pthread_mutex_lock(&lock);
    n = *of;
    pthread_mutex_unlock(&lock);
    return n;
}

SHOWN fake_nccl_hooks_fn fake_nccl_hooks;
SHOWN void fake_nccl_hooks(const struct fake_nccl_hooks *h)
{
    hooks = *h;
}

SHOWN fake_nccl_fail_at_fn fake_nccl_fail_at;
SHOWN void fake_nccl_fail_at(uint64_t n)
{
    pthread_mutex_lock(&lock);
    calls = 0;
    fail_at = n;
    pthread_mutex_unlock(&lock);
}

SHOWN fake_nccl_calls_fn fake_nccl_calls;
SHOWN uint64_t fake_nccl_calls(void)
{
    return locked(&calls);
}

SHOWN fake_nccl_living_fn fake_nccl_living;
SHOWN int fake_nccl_living(void)
{
    return (int)locked(&living);
}

SHOWN fake_nccl_callers_fn fake_nccl_callers;
SHOWN int fake_nccl_callers(uint64_t *order)
{
    int n = 0;

    *order = 0;
    pthread_mutex_lock(&lock);
    for (struct caller *c = callers, *next; c; c = next) {
        next = c->next;
        *order += c->order;
        n += c->comms > 0;
        free(c);
    }
    callers = NULL;
    pthread_mutex_unlock(&lock);
    return n;
}

SHOWN fake_nccl_break_fn fake_nccl_break;
SHOWN void fake_nccl_break(int members)
{
    pthread_mutex_lock(&lock);
    for (struct world *w = worlds; w; w = w->next)
        w->lost = w->lost || w->n == members;
    pthread_mutex_unlock(&lock);
}
