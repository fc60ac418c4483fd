/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "fake_nccl_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t fake_nccl_lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
pthread_cond_t fake_nccl_change = PTHREAD_COND_INITIALIZER;
static struct caller *callers;
static uint64_t ids, calls, fail_at;
static uint64_t living; /* communicators: these */
static struct dt_nccl_comm *comms;
static struct fake_nccl_hooks hooks;
static _Thread_local int depth;
static _Thread_local struct launch *group;
static _Thread_local struct dt_nccl_comm *given_up; /* in the group */
enum { STUCK_S = 20 };

void fake_nccl_stop(const char *fmt, ...)
{
    va_list ap;

    fputs("fake nccl: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

void *fake_nccl_zeroed(size_t bytes)
{
    void *p = calloc(1, bytes);

    return p ? p : (fake_nccl_stop("out of memory"), NULL);
}

/* Does this call fail? */
bool fake_nccl_fails(void)
{
    bool now;

    pthread_mutex_lock(&fake_nccl_lock);
    now = ++calls == fail_at;
    pthread_mutex_unlock(&fake_nccl_lock);
    return now;
}

/* ---- callers ---- */

static struct caller *caller(void)
{
    struct caller *c;

    pthread_mutex_lock(&fake_nccl_lock);
    for (c = callers; c && !pthread_equal(c->thread, pthread_self()); c = c->next)
        ;
    if (!c) {
        c = fake_nccl_zeroed(sizeof(*c));
        c->thread = pthread_self();
        c->next = callers;
        callers = c;
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    return c;
}

/* FNV-1a */
static void note(struct caller *c, const uint64_t *what, int n)
{
    pthread_mutex_lock(&fake_nccl_lock);
    for (int k = 0; k < n; k++)
        c->order = (c->order ^ what[k]) * UINT64_C(1099511628211);
    pthread_mutex_unlock(&fake_nccl_lock);
}

/* ---- on streams ---- */

static void run(void *arg)
{
    struct launch *l = arg;
    struct world *w = l->w;
    struct meeting **m = fake_nccl_zeroed((size_t)l->n * sizeof(struct meeting *) + 1);

    pthread_mutex_lock(&fake_nccl_lock);
    if (!w->given_up[l->me]) {
        for (int k = 0; k < l->n; k++)
            m[k] = fake_nccl_come(w, l->me, &l->parts[k]);
        for (int k = 0; k < l->n; k++) {
            while (!m[k]->over && !w->given_up[l->me])
                pthread_cond_wait(&fake_nccl_change, &fake_nccl_lock);
            if (m[k]->over)
                fake_nccl_meeting_leave(w, m[k]);
        }
    }
    w->under_way[l->me]--;
    pthread_cond_broadcast(&fake_nccl_change);
    fake_nccl_world_leave(w);
    pthread_mutex_unlock(&fake_nccl_lock);
    free((void *)m);
    free(l->parts);
    free(l);
}

static void submit(struct launch *l)
{
    hooks.submit(l->stream, l->n > 1 ? "nccl group" : fake_nccl_kinds[l->parts[0].kind], run, l);
}

void fake_nccl_leave(struct dt_nccl_comm *c)
{
    atomic_fetch_sub(&c->inside, 1);
}

const struct fake_nccl_hooks *fake_nccl_hooks_now(void)
{
    return &hooks;
}

/* Every fourth takes a few questions until it is on its stream. */
static int launch(struct launch *l)
{
    struct dt_nccl_comm *c = l->comm;

    l->w = c->w;
    l->me = c->me;
    pthread_mutex_lock(&fake_nccl_lock);
    c->w->users++;
    c->w->under_way[c->me]++;
    pthread_mutex_unlock(&fake_nccl_lock);
    if ((c->launches++ + (uint64_t)c->me) % 4 != 3) {
        submit(l);
        return SUCCESS;
    }
    c->held = l;
    c->questions = 1 + (int)(c->launches % 3);
    return IN_PROGRESS;
}

void fake_nccl_enter(struct dt_nccl_comm *c, const char *what)
{
    if (c->caller != caller())
        fake_nccl_stop("%s on a communicator that another thread has made", what);
    if (atomic_fetch_add(&c->inside, 1) != 0)
        fake_nccl_stop("%s on a communicator that another thread is in", what);
    if (c->questions > 0 || c->held)
        fake_nccl_stop("%s on a communicator that is in progress", what);
    if (c->finalizing)
        fake_nccl_stop("%s on a finalized communicator", what);
}

static int add(struct dt_nccl_comm *c, void *stream, struct part p)
{
    struct launch *l;
    int result = SUCCESS;

    if (fake_nccl_fails())
        return SYSTEM;
    fake_nccl_enter(c, fake_nccl_kinds[p.kind]);
    if (p.kind == ALL_GATHER)
        fake_nccl_gather(c, p.in, p.out, p.n * (size_t)c->w->n);
    if (p.kind == ALL_REDUCE || p.kind == REDUCE || p.kind == REDUCE_SCATTER)
        fake_nccl_sum(c, p.in);
    if (p.kind == MESSAGE && (p.from == c->me ? c->sent[p.to] : c->received[p.from]) > 0)
        fake_nccl_message(c, p.from == c->me ? p.in : p.out);
    note(c->caller, (uint64_t[]){c->name, p.kind, p.n, (uint64_t)p.type, (uint64_t)p.root}, 5);
    p.in = p.in ? hooks.alias(p.in, fake_nccl_kinds[p.kind]) : NULL;
    p.out = p.out ? hooks.alias(p.out, fake_nccl_kinds[p.kind]) : NULL;
    p.number = p.kind != MESSAGE ? c->collectives++
               : p.from == c->me ? c->sent[p.to]++
                                 : c->received[p.from]++;
    for (l = group; l && (l->comm != c || l->stream != stream); l = l->next)
        ;
    if (!l) {
        l = fake_nccl_zeroed(sizeof(*l));
        l->comm = c;
        l->stream = stream;
        l->next = group;
        group = l;
    }
    if (l->n == l->cap) {
        l->cap = 2 * l->cap + 4;
        l->parts = realloc(l->parts, (size_t)l->cap * sizeof(*l->parts));
        if (!l->parts)
            fake_nccl_stop("out of memory");
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

/* FAKE_NCCL_VERSION: another one. */
int fake_nccl_version(void)
{
    const char *v = getenv("FAKE_NCCL_VERSION");

    return v ? atoi(v) : 22809;
}

/* FAKE_NCCL_TELLS=FILE: what it finds in the environment is appended. */
static void tell_environment(void)
{
    const char *path = getenv("FAKE_NCCL_TELLS"), *nvls = getenv("NCCL_NVLS_ENABLE");
    FILE *f = path ? fopen(path, "a") : NULL;

    if (!f)
        return;
    fprintf(f, "NCCL_NVLS_ENABLE %s\n", nvls ? nvls : "is not set");
    fclose(f);
}

SHOWN int ncclGetVersion(int *version);
SHOWN int ncclGetVersion(int *version)
{
    tell_environment();
    *version = fake_nccl_version();
    return SUCCESS;
}

SHOWN int ncclGetUniqueId(struct dt_nccl_id *id);
SHOWN int ncclGetUniqueId(struct dt_nccl_id *id)
{
    uint64_t n;

    if (fake_nccl_fails())
        return SYSTEM;
    pthread_mutex_lock(&fake_nccl_lock);
    n = ++ids;
    pthread_mutex_unlock(&fake_nccl_lock);
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
    struct caller *who = caller();
    struct world *w = NULL;
    uint64_t n = 0;

    if (fake_nccl_fails())
        return SYSTEM;
    if (config->magic != 0xcafebeef || config->blocking != 0)
        fake_nccl_stop("a communicator is configured to block, or not at all");
    if ((int)config->version > fake_nccl_version() ||
        config->size != (config->version < 22800 ? offsetof(struct dt_nccl_config, comm_name)
                                                 : sizeof(*config)))
        fake_nccl_stop("a configuration of %zu bytes for version %u", config->size,
                       config->version);
    if (ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks)
        return ARGUMENT;
    memcpy(&n, id.internal + 100, sizeof(n));
    c = fake_nccl_zeroed(sizeof(*c));
    pthread_mutex_lock(&fake_nccl_lock);
    if (n == 0 || n > ids)
        fake_nccl_stop("a communicator has an id that nobody has made");
    for (w = fake_nccl_worlds; w && w->id != n; w = w->next)
        ;
    if (!w) {
        w = fake_nccl_zeroed(sizeof(*w));
        w->id = n;
        w->n = ranks;
        w->next = fake_nccl_worlds;
        fake_nccl_worlds = w;
    }
    if (w->n != ranks || w->joined >= ranks)
        fake_nccl_stop("%d ranks join a communicator of %d", w->joined + 1, w->n);
    w->joined++;
    w->users++;
    living++;
    c->w = w;
    c->me = rank;
    c->caller = who;
    c->next = comms;
    comms = c;
    pthread_mutex_unlock(&fake_nccl_lock);
    c->zero_cta = config->version >= 22800 && config->cta_policy == DT_NCCL_CTA_POLICY_ZERO;
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
        fake_nccl_stop("CommGetAsyncError on a communicator that another thread has made");
    if (atomic_fetch_add(&c->inside, 1) != 0)
        fake_nccl_stop("CommGetAsyncError on a communicator that another thread is in");
    if (fake_nccl_fails()) {
        atomic_fetch_sub(&c->inside, 1);
        fake_nccl_question_failed();
        return SYSTEM;
    }
    pthread_mutex_lock(&fake_nccl_lock);
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
        if (c->window_to)
            *c->window_to = c->window;
        c->window_to = NULL;
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    if (l)
        submit(l);
    atomic_fetch_sub(&c->inside, 1);
    return SUCCESS;
}

SHOWN int ncclCommFinalize(struct dt_nccl_comm *c);
SHOWN int ncclCommFinalize(struct dt_nccl_comm *c)
{
    fake_nccl_enter(c, "CommFinalize");
    pthread_mutex_lock(&fake_nccl_lock);
    c->finalizing = true;
    c->w->finalized++;
    pthread_mutex_unlock(&fake_nccl_lock);
    atomic_fetch_sub(&c->inside, 1);
    return IN_PROGRESS;
}

/* Locked. */
static void take_out(struct dt_nccl_comm *c)
{
    struct dt_nccl_comm **at = &comms;

    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    living--;
}

static int end(struct dt_nccl_comm *c, bool aborted)
{
    fake_nccl_forget(c, aborted);
    pthread_mutex_lock(&fake_nccl_lock);
    if (!aborted && c->w->finalized < c->w->n)
        fake_nccl_stop("CommDestroy of a communicator that is not finalized by all");
    if (!aborted && c->w->under_way[c->me] > 0)
        fake_nccl_stop("CommDestroy of a communicator with operations under way");
    if (c->held) { /* it never gets to its stream */
        c->w->users--;
        c->w->under_way[c->me]--;
        free(c->held->parts);
        free(c->held);
    }
    fake_nccl_world_leave(c->w);
    take_out(c);
    pthread_mutex_unlock(&fake_nccl_lock);
    free(c);
    return SUCCESS;
}

SHOWN int ncclCommDestroy(struct dt_nccl_comm *c);
SHOWN int ncclCommDestroy(struct dt_nccl_comm *c)
{
    if (c->caller != caller())
        fake_nccl_stop("the end of a communicator that another thread has made");
    return end(c, false);
}

/* Locked: another one of the rank's that keeps its card, and that nobody has given up. */
static bool one_is_stuck(const struct dt_nccl_comm *c)
{
    for (const struct dt_nccl_comm *o = comms; o; o = o->next)
        if (o->caller == c->caller && !o->w->given_up[o->me] && o->w->under_way[o->me] > 0)
            return true;
    return false;
}

/* Waits for the card, as the library may. */
static int end_given_up(struct dt_nccl_comm *c)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STUCK_S;
    pthread_mutex_lock(&fake_nccl_lock);
    while (one_is_stuck(c))
        if (pthread_cond_timedwait(&fake_nccl_change, &fake_nccl_lock, &until) != 0)
            fake_nccl_stop("CommAbort waits for the card, where another communicator is stuck");
    pthread_mutex_unlock(&fake_nccl_lock);
    return end(c, true);
}

SHOWN int ncclCommAbort(struct dt_nccl_comm *c);
SHOWN int ncclCommAbort(struct dt_nccl_comm *c)
{
    pthread_mutex_lock(&fake_nccl_lock);
    c->w->given_up[c->me] = true;
    pthread_cond_broadcast(&fake_nccl_change);
    pthread_mutex_unlock(&fake_nccl_lock);
    if (depth == 0 || fake_nccl_version() < DT_NCCL_VERSION_2_22)
        return end_given_up(c);
    c->given_up = given_up;
    given_up = c;
    return SUCCESS;
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
    if (fake_nccl_fails())
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
    for (struct dt_nccl_comm *c = given_up, *after; c; c = after) {
        after = c->given_up;
        end_given_up(c);
    }
    given_up = NULL;
    return fake_nccl_fails() ? SYSTEM : result;
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

    pthread_mutex_lock(&fake_nccl_lock);
    n = *of;
    pthread_mutex_unlock(&fake_nccl_lock);
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
    pthread_mutex_lock(&fake_nccl_lock);
    calls = 0;
    fail_at = n;
    pthread_mutex_unlock(&fake_nccl_lock);
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
    pthread_mutex_lock(&fake_nccl_lock);
    for (struct caller *c = callers, *next; c; c = next) {
        next = c->next;
        *order += c->order;
        n += c->comms > 0;
        free(c);
    }
    callers = NULL;
    pthread_mutex_unlock(&fake_nccl_lock);
    return n;
}

SHOWN fake_nccl_break_fn fake_nccl_break;
SHOWN void fake_nccl_break(int members)
{
    pthread_mutex_lock(&fake_nccl_lock);
    for (struct world *w = fake_nccl_worlds; w; w = w->next)
        w->lost = w->lost || w->n == members;
    pthread_mutex_unlock(&fake_nccl_lock);
}
