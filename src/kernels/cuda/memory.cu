/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of the card: an arena of large pieces that the driver gave, cut into blocks.
 *
 * A freed block may still be in use by what has been issued.  It waits in a group of blocks freed together;
 * the group closes, with an event on every queue, when memory is wanted or the group is large, and its blocks are
 * free when these events are over.  Nobody waits but one who would otherwise be told that memory is out.
 *
 * DISTTRAIN_CUDA_ARENA: MiB that the driver is asked for at a time, at least (64).  0: every block is the driver's
 * own, so that tools see where one ends. */
#include "kernels/cuda/device.h"

extern "C" {
#include "base/mem.h"
}

#include <stdlib.h>
#include <time.h>

enum { ALIGN = 256, GROUP = 64 };

struct block { /* of a piece, in the order of addresses */
    char *p;
    size_t bytes, asked;
    bool used;
    struct dt_device_memory_owner *owner;
    struct block *prev, *next; /* neighbours */
    struct block *other;       /* of the free list, or of a group */
};

struct piece {
    void *p;
    size_t bytes;
    bool shown; /* other processes may have mapped it */
    struct piece *next;
};

struct passing { /* an event on each queue there was */
    cudaEvent_t event;
    struct passing *next;
};

struct group {
    struct block *blocks;
    int n;
    bool closed;
    struct passing *events;
    struct group *next; /* the one closed after it */
};

struct dt_cuda_memory {
    size_t piece; /* the least that the driver is asked for; 0: every block is its own */
    struct piece *pieces;
    struct block *free;
    struct group *first, *last; /* the last one may be open */
    struct block **table;       /* by address, of the used blocks */
    size_t n_table, cap_table;
    struct passing *spare; /* events to be used again */
    int64_t now_bytes, max_bytes;
    bool left; /* what was shown outlives the device */
};

static thread_local struct dt_device_memory_owner *owner; /* of what this thread allocates */

static struct dt_device_memory_owner *memory_for(const struct dt_device *dev,
                                                 struct dt_device_memory_owner *o)
{
    struct dt_device_memory_owner *before = owner;

    (void)dev;
    owner = o;
    return before;
}

static void account(struct dt_cuda_memory *m, struct dt_device_memory_owner *o, int64_t bytes)
{
    m->now_bytes += bytes;
    if (m->now_bytes > m->max_bytes)
        m->max_bytes = m->now_bytes;
    if (o)
        __atomic_fetch_add(&o->now_bytes, bytes, __ATOMIC_RELAXED);
}

/* ---- used blocks by address: open addressing ---- */

static size_t slot_of(const struct dt_cuda_memory *m, const void *p)
{
    size_t i = ((uintptr_t)p / ALIGN * 0x9e3779b97f4a7c15u) & (m->cap_table - 1);

    while (m->table[i] && m->table[i]->p != p)
        i = (i + 1) & (m->cap_table - 1);
    return i;
}

static bool table_add(struct dt_cuda_memory *m, struct block *b)
{
    if (2 * (m->n_table + 1) > m->cap_table) {
        struct block **old = m->table;
        size_t cap = m->cap_table;

        m->table = (struct block **)dt_calloc(cap ? 2 * cap : 1024, sizeof(*old));
        if (!m->table) {
            m->table = old;
            return false;
        }
        m->cap_table = cap ? 2 * cap : 1024;
        for (size_t i = 0; i < cap; i++)
            if (old[i])
                m->table[slot_of(m, old[i]->p)] = old[i];
        dt_free(old);
    }
    m->table[slot_of(m, b->p)] = b;
    m->n_table++;
    return true;
}

static struct block *table_take(struct dt_cuda_memory *m, const void *p)
{
    size_t i = m->cap_table ? slot_of(m, p) : 0, hole;
    struct block *b = m->cap_table ? m->table[i] : NULL;

    if (!b)
        return NULL;
    m->table[i] = NULL;
    m->n_table--;
    for (hole = (i + 1) & (m->cap_table - 1); m->table[hole];
         hole = (hole + 1) & (m->cap_table - 1)) { /* those behind may have wanted this place */
        struct block *x = m->table[hole];

        m->table[hole] = NULL;
        m->table[slot_of(m, x->p)] = x;
    }
    return b;
}

/* ---- free blocks ---- */

static void list_remove(struct dt_cuda_memory *m, struct block *b)
{
    struct block **at = &m->free;

    while (*at != b)
        at = &(*at)->other;
    *at = b->other;
}

/* b and its right neighbour become one, if both are free. */
static void join(struct dt_cuda_memory *m, struct block *b)
{
    struct block *n = b->next;

    if (!n || b->used || n->used || b->p + b->bytes != n->p)
        return;
    list_remove(m, n);
    b->bytes += n->bytes;
    b->next = n->next;
    if (n->next)
        n->next->prev = b;
    dt_free(n);
}

static void give_back(struct dt_cuda_memory *m, struct block *b)
{
    struct block *prev = b->prev;

    if (m->piece == 0) {
        dt_cuda_said(cudaFree(b->p));
        dt_free(b);
        return;
    }
    b->used = false;
    b->other = m->free;
    m->free = b;
    join(m, b);
    if (prev)
        join(m, prev);
}

/* The smallest that is large enough, cut to size. */
static struct block *take(struct dt_cuda_memory *m, size_t bytes)
{
    struct block *best = NULL, *rest;

    for (struct block *b = m->free; b; b = b->other)
        if (b->bytes >= bytes && (!best || b->bytes < best->bytes))
            best = b;
    if (!best)
        return NULL;
    if (best->bytes > bytes) {
        rest = (struct block *)dt_calloc(1, sizeof(*rest));
        if (!rest)
            return NULL;
        rest->p = best->p + bytes;
        rest->bytes = best->bytes - bytes;
        rest->prev = best;
        rest->next = best->next;
        if (best->next)
            best->next->prev = rest;
        best->next = rest;
        best->bytes = bytes;
        rest->other = m->free;
        m->free = rest;
    }
    list_remove(m, best);
    best->used = true;
    return best;
}

/* ---- groups of what was freed ---- */

static void drop_events(struct dt_cuda_memory *m, struct group *g)
{
    while (g->events) {
        struct passing *e = g->events;

        g->events = e->next;
        e->next = m->spare;
        m->spare = e;
    }
}

static bool record(struct dt_cuda_memory *m, struct group *g, cudaStream_t stream)
{
    struct passing *e = m->spare;

    if (e) {
        m->spare = e->next;
    } else {
        e = (struct passing *)dt_calloc(1, sizeof(*e));
        if (!e)
            return false;
        if (dt_cuda_said(cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming)) !=
            cudaSuccess) {
            dt_free(e);
            return false;
        }
    }
    e->next = g->events;
    g->events = e;
    return dt_cuda_said(cudaEventRecord(e->event, stream)) == cudaSuccess;
}

/* An event on every queue; one that cannot be had makes the group stay open. */
static void close_group(struct dt_cuda *c)
{
    struct dt_cuda_memory *m = c->memory;
    struct group *g = m->last;

    if (!g || g->closed)
        return;
    g->closed = true;
    for (struct dt_device_queue *q = c->queues; q && g->closed; q = q->next)
        g->closed = record(m, g, q->stream);
    if (!g->closed)
        drop_events(m, g);
}

/* Have all queues passed it?  `wait`: until they have. */
static bool is_over(struct group *g, bool wait)
{
    for (struct passing *e = g->events; e; e = e->next)
        if (dt_cuda_said(wait ? cudaEventSynchronize(e->event) : cudaEventQuery(e->event)) ==
            cudaErrorNotReady)
            return false;
    return true;
}

/* Gives back what has been passed; the oldest first, since queues are in order. */
static bool reclaim(struct dt_cuda *c, bool wait)
{
    struct dt_cuda_memory *m = c->memory;
    bool some = false;

    while (m->first && m->first->closed && is_over(m->first, wait)) {
        struct group *g = m->first;

        while (g->blocks) {
            struct block *b = g->blocks;

            g->blocks = b->other;
            give_back(m, b);
        }
        drop_events(m, g);
        m->first = g->next;
        if (!m->first)
            m->last = NULL;
        dt_free(g);
        some = true;
    }
    return some;
}

static void put_into_group(struct dt_cuda *c, struct block *b)
{
    struct dt_cuda_memory *m = c->memory;
    struct group *g = m->last;

    if (!g || g->closed) {
        g = (struct group *)dt_calloc(1, sizeof(*g));
        if (!g) { /* no memory on the host: wait, rather than lose the block */
            dt_cuda_said(cudaDeviceSynchronize());
            give_back(m, b);
            return;
        }
        if (m->last)
            m->last->next = g;
        else
            m->first = g;
        m->last = g;
    }
    b->other = g->blocks;
    g->blocks = b;
    if (++g->n >= GROUP)
        close_group(c);
}

/* ---- from the driver ---- */

static struct block *own_block(size_t bytes)
{
    struct block *b = (struct block *)dt_calloc(1, sizeof(*b));
    void *p;

    if (!b)
        return NULL;
    if (dt_cuda_said(cudaMalloc(&p, bytes)) != cudaSuccess) {
        dt_free(b);
        return NULL;
    }
    b->p = (char *)p;
    b->bytes = bytes;
    b->used = true;
    return b;
}

static bool grow(struct dt_cuda_memory *m, size_t bytes)
{
    struct piece *piece = (struct piece *)dt_calloc(1, sizeof(*piece));
    struct block *b;

    b = piece ? own_block(bytes < m->piece ? m->piece : bytes) : NULL;
    if (!b && bytes < m->piece && piece)
        b = own_block(bytes);
    if (!b) {
        dt_free(piece);
        return false;
    }
    piece->p = b->p;
    piece->bytes = b->bytes;
    piece->next = m->pieces;
    m->pieces = piece;
    b->used = false;
    b->other = m->free;
    m->free = b;
    return true;
}

/* ---- and back ---- */

static void piece_free(struct piece *p)
{
    dt_cuda_said(cudaFree(p->p));
    dt_free(p);
}

/* The only block of a piece that nobody uses; NULL: somebody does. */
static struct block *all_of(const struct dt_cuda_memory *m, const struct piece *p)
{
    struct block *b = m->free;

    while (b && (b->p != p->p || b->bytes != p->bytes))
        b = b->other;
    return b;
}

/* Pieces that nobody uses.  The driver waits for the card.  Were there any? */
static bool trim(struct dt_cuda_memory *m)
{
    bool some = false;

    for (struct piece **at = &m->pieces; *at;) {
        struct piece *p = *at;
        struct block *b = p->shown ? NULL : all_of(m, p);

        if (!b) {
            at = &p->next;
            continue;
        }
        list_remove(m, b);
        dt_free(b);
        *at = p->next;
        piece_free(p);
        some = true;
    }
    return some;
}

static void memory_trim(const struct dt_device *dev)
{
    struct dt_cuda *c = dt_cuda_of(dev);
    struct dt_cuda_memory *m = c->memory;

    dt_cuda_use(dev);
    pthread_mutex_lock(&c->lock);
    close_group(c);
    reclaim(c, true);
    trim(m);
    pthread_mutex_unlock(&c->lock);
}

/* ---- what is asked for ---- */

static bool is_idle(const struct dt_cuda *c)
{
    for (const struct dt_device_queue *q = c->queues; q; q = q->next)
        if (dt_cuda_said(cudaStreamQuery(q->stream)) == cudaErrorNotReady)
            return false;
    return true;
}

/* Of what nobody uses; or of the driver's. */
static struct block *of_free(struct dt_cuda_memory *m, size_t bytes)
{
    return m->piece > 0 ? take(m, bytes) : NULL;
}
static struct block *of_driver(struct dt_cuda_memory *m, size_t bytes)
{
    if (m->piece == 0)
        return own_block(bytes);
    return grow(m, bytes) ? take(m, bytes) : NULL;
}

/* What queues have not passed yet comes back when they have.  One may stand until other ranks come, and these until another
 * thread of this rank has issued something, for which it may want the lock.  So the lock is not held meanwhile, nor is
 * the driver asked to free anything, for which it waits for all queues, before they have nothing to do. */
static struct block *find_later(struct dt_cuda *c, size_t bytes)
{
    static const struct timespec a_while = {0, 200000};
    struct dt_cuda_memory *m = c->memory;
    struct block *b = NULL;

    for (;;) {
        bool idle = is_idle(c);

        close_group(c);
        if (reclaim(c, false))
            b = m->piece == 0 ? own_block(bytes) : take(m, bytes);
        if (b || idle)
            break;
        pthread_mutex_unlock(&c->lock);
        nanosleep(&a_while, NULL);
        pthread_mutex_lock(&c->lock);
    }
    return b || !trim(m) ? b : of_driver(m, bytes); /* free, but in pieces too small */
}

static struct block *find(struct dt_cuda *c, size_t bytes)
{
    struct dt_cuda_memory *m = c->memory;
    struct block *b;

    if (m->piece > 0)
        bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    reclaim(c, false);
    b = of_free(m, bytes);
    if (b)
        return b;
    close_group(c);
    if (reclaim(c, false))
        b = of_free(m, bytes);
    if (!b)
        b = of_driver(m, bytes);
    return b ? b : find_later(c, bytes);
}

void dt_cuda_memory_shown(struct dt_cuda *c, const void *p)
{
    pthread_mutex_lock(&c->lock);
    for (struct piece *x = c->memory->pieces; x; x = x->next)
        if ((const char *)p >= (const char *)x->p &&
            (const char *)p < (const char *)x->p + x->bytes)
            x->shown = true;
    pthread_mutex_unlock(&c->lock);
}

void dt_cuda_memory_leave(struct dt_cuda *c)
{
    pthread_mutex_lock(&c->lock);
    c->memory->left = true;
    pthread_mutex_unlock(&c->lock);
}

/* ---- entries ---- */

static enum dt_status dev_alloc(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                void **out)
{
    struct dt_cuda *c = dt_cuda_of(dev);
    struct block *b;

    dt_cuda_use(dev);
    pthread_mutex_lock(&c->lock);
    b = find(c, bytes > 0 ? bytes : 1);
    if (b && !table_add(c->memory, b)) {
        give_back(c->memory, b);
        b = NULL;
    }
    if (b) {
        b->asked = bytes;
        b->owner = owner;
        account(c->memory, owner, (int64_t)bytes);
    }
    pthread_mutex_unlock(&c->lock);
    if (!b)
        return dt_error_set(err, DT_ERR_NOMEM, "out of memory on %s: %zu bytes for a tensor",
                            dev->info.name, bytes);
    *out = b->p;
    return DT_OK;
}

static void dev_free(const struct dt_device *dev, void *p)
{
    struct dt_cuda *c = dt_cuda_of(dev);
    struct block *b;

    if (!p)
        return;
    dt_cuda_use(dev);
    pthread_mutex_lock(&c->lock);
    b = table_take(c->memory, p);
    assert(b);
    account(c->memory, b->owner, -(int64_t)b->asked);
    put_into_group(c, b);
    pthread_mutex_unlock(&c->lock);
}

static enum dt_status host_alloc(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                 void **out)
{
    cudaError_t e;
    void *p;

    dt_cuda_use(dev);
    e = dt_cuda_said(cudaMallocHost(&p, bytes > 0 ? bytes : 1));
    if (e != cudaSuccess)
        return dt_error_set(err, DT_ERR_NOMEM, "out of page-locked memory: %zu bytes: %s", bytes,
                            cudaGetErrorString(e));
    *out = p;
    return DT_OK;
}

static void host_free(const struct dt_device *dev, void *p)
{
    if (!p)
        return;
    dt_cuda_use(dev);
    dt_cuda_said(cudaFreeHost(p));
}

static void memory_used(const struct dt_device *dev, int64_t *now_bytes, int64_t *max_bytes)
{
    struct dt_cuda *c = dt_cuda_of(dev);

    pthread_mutex_lock(&c->lock);
    *now_bytes = c->memory->now_bytes;
    *max_bytes = c->memory->max_bytes;
    pthread_mutex_unlock(&c->lock);
}

static void memory_given(const struct dt_device *dev, struct dt_device_memory_owner *o,
                         int64_t bytes)
{
    struct dt_cuda *c = dt_cuda_of(dev);

    pthread_mutex_lock(&c->lock);
    account(c->memory, o, bytes);
    pthread_mutex_unlock(&c->lock);
}

enum dt_status dt_cuda_memory_new(struct dt_cuda *c, struct dt_error *err)
{
    const char *arena = getenv("DISTTRAIN_CUDA_ARENA");

    c->memory = (struct dt_cuda_memory *)dt_calloc(1, sizeof(*c->memory));
    if (!c->memory)
        return dt_error_nomem(err, "the memory of a card");
    c->memory->piece = (size_t)(arena ? strtoul(arena, NULL, 10) : 64) << 20;
    c->dev.alloc = dev_alloc;
    c->dev.free = dev_free;
    c->dev.host_alloc = host_alloc;
    c->dev.host_free = host_free;
    c->dev.memory_used = memory_used;
    c->dev.memory_trim = memory_trim;
    c->dev.memory_given = memory_given;
    c->dev.memory_for = memory_for;
    return DT_OK;
}

bool dt_cuda_memory_stays(const struct dt_cuda *c)
{
    return c->memory->piece > 0;
}

void dt_cuda_memory_close(struct dt_cuda *c)
{
    struct dt_cuda_memory *m = c->memory;

    close_group(c);
    reclaim(c, true);
    while (m->pieces) {
        struct piece *p = m->pieces;

        m->pieces = p->next;
        if (m->left && p->shown)
            dt_free(p);
        else
            piece_free(p);
    }
    while (m->free) {
        struct block *b = m->free;

        m->free = b->other;
        dt_free(b);
    }
    while (m->spare) {
        struct passing *e = m->spare;

        m->spare = e->next;
        dt_cuda_said(cudaEventDestroy(e->event));
        dt_free(e);
    }
    dt_free(m->table);
    dt_free(m);
}
