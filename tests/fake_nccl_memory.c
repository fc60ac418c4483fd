/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory that the NCCL of tests gives, and what communicators know of it.  It is held to that
 *
 *   - members make windows of the same size, in the same order, and give them back
 *   - nothing is freed, and no communicator ends, before what is registered has been given back
 *
 * FAKE_NCCL_REFUSES: memory (there is none), memory-once (the first who asks gets none), windows (they get no handle). */
#include "fake_nccl_impl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct memory {
    struct memory *next;
    char *p;
    size_t bytes;
};

struct known { /* by a communicator: a handle */
    struct known *next;
    struct dt_nccl_comm *comm;
    struct world *world;
    const struct memory *of;
    uint64_t number; /* of the communicator's windows; 0: it is none */
};

static struct memory *given;
static struct known *all;
static struct fake_nccl_memory count;
static atomic_int refused; /* of memory-once */

static bool refuses(const char *what)
{
    const char *r = getenv("FAKE_NCCL_REFUSES");

    return r && strcmp(r, what) == 0;
}

/* Locked: what `p` lies in. */
static const struct memory *memory_of(const void *p)
{
    const struct memory *m = given;

    while (m && ((const char *)p < m->p || (const char *)p >= m->p + m->bytes))
        m = m->next;
    return m;
}

/* Locked. */
static bool is_known(const struct dt_nccl_comm *c, const void *p, bool window)
{
    const struct memory *m = memory_of(p);

    for (const struct known *k = all; m && k; k = k->next)
        if (k->comm == c && k->of == m && (k->number > 0) == window)
            return true;
    return false;
}

void fake_nccl_gather(struct dt_nccl_comm *c, const void *in, const void *out, size_t bytes)
{
    pthread_mutex_lock(&fake_nccl_lock);
    count.gathers++;
    count.registered_gathers +=
        (is_known(c, in, false) && is_known(c, out, false)) ||
        (is_known(c, in, true) && is_known(c, (const char *)out + bytes - 1, true));
    count.zero_cta_gathers += c->zero_cta && is_known(c, in, true) && is_known(c, out, true);
    pthread_mutex_unlock(&fake_nccl_lock);
}

void fake_nccl_sum(struct dt_nccl_comm *c, const void *in)
{
    pthread_mutex_lock(&fake_nccl_lock);
    count.sums++;
    count.registered_sums += is_known(c, in, false) || is_known(c, in, true);
    pthread_mutex_unlock(&fake_nccl_lock);
}

void fake_nccl_message(struct dt_nccl_comm *c, const void *buf)
{
    pthread_mutex_lock(&fake_nccl_lock);
    count.messages++;
    count.registered_messages += is_known(c, buf, false);
    pthread_mutex_unlock(&fake_nccl_lock);
}

/* Of one that is given up, handles are gone. */
void fake_nccl_forget(const struct dt_nccl_comm *c, bool given_up)
{
    pthread_mutex_lock(&fake_nccl_lock);
    for (struct known **at = &all; *at;) {
        struct known *k = *at;

        if (k->comm != c) {
            at = &k->next;
            continue;
        }
        if (!given_up)
            fake_nccl_stop("a communicator ends that still knows memory");
        *at = k->next;
        free(k);
    }
    pthread_mutex_unlock(&fake_nccl_lock);
}

/* ---- the library ---- */

SHOWN int ncclMemAlloc(void **p, size_t bytes);
SHOWN int ncclMemAlloc(void **p, size_t bytes)
{
    struct memory *m;
    void *got;

    if (fake_nccl_fails() || refuses("memory") || (refuses("memory-once") && !refused++))
        return UNHANDLED;
    got = fake_nccl_hooks_now()->alloc(bytes);
    if (!got)
        return UNHANDLED;
    m = fake_nccl_zeroed(sizeof(*m));
    pthread_mutex_lock(&fake_nccl_lock);
    *m = (struct memory){given, got, bytes};
    given = m;
    count.living++;
    pthread_mutex_unlock(&fake_nccl_lock);
    *p = got;
    return SUCCESS;
}

SHOWN int ncclMemFree(void *p);
SHOWN int ncclMemFree(void *p)
{
    struct memory **at = &given, *m;

    pthread_mutex_lock(&fake_nccl_lock);
    while (*at && (*at)->p != p)
        at = &(*at)->next;
    m = *at;
    if (!m)
        fake_nccl_stop("MemFree of what MemAlloc has not given");
    for (const struct known *k = all; k; k = k->next)
        if (k->of == m)
            fake_nccl_stop("MemFree of memory that a communicator knows");
    *at = m->next;
    count.living--;
    pthread_mutex_unlock(&fake_nccl_lock);
    fake_nccl_hooks_now()->free(p);
    free(m);
    return SUCCESS;
}

static int know(struct dt_nccl_comm *c, void *p, size_t bytes, void **handle, bool window)
{
    struct known *k = fake_nccl_zeroed(sizeof(*k));

    pthread_mutex_lock(&fake_nccl_lock);
    *k = (struct known){all, c, c->w, memory_of(p), window ? ++c->windows : 0};
    if (!k->of || k->of->p != p || k->of->bytes != bytes)
        fake_nccl_stop("a communicator is told of memory that MemAlloc has not given");
    for (const struct known *o = all; window && o; o = o->next)
        if (o->world == c->w && o->number == k->number && o->of->bytes != bytes)
            fake_nccl_stop("window %d has %zu bytes here and %zu elsewhere", (int)k->number, bytes,
                           o->of->bytes);
    all = k;
    count.windows += window;
    count.buffers += !window;
    pthread_mutex_unlock(&fake_nccl_lock);
    *handle = k;
    return SUCCESS;
}

static int unknow(struct dt_nccl_comm *c, void *handle, bool window)
{
    struct known **at = &all;

    pthread_mutex_lock(&fake_nccl_lock);
    while (*at && *at != handle)
        at = &(*at)->next;
    if (!*at || (*at)->comm != c || ((*at)->number > 0) != window)
        fake_nccl_stop("what a communicator does not know is taken from it");
    *at = (*at)->next;
    pthread_mutex_unlock(&fake_nccl_lock);
    free(handle);
    return SUCCESS;
}

SHOWN int ncclCommRegister(struct dt_nccl_comm *c, void *p, size_t bytes, void **handle);
SHOWN int ncclCommRegister(struct dt_nccl_comm *c, void *p, size_t bytes, void **handle)
{
    int result;

    if (fake_nccl_fails())
        return SYSTEM;
    fake_nccl_enter(c, "CommRegister");
    result = know(c, p, bytes, handle, false);
    fake_nccl_leave(c);
    return result;
}

SHOWN int ncclCommDeregister(struct dt_nccl_comm *c, void *handle);
SHOWN int ncclCommDeregister(struct dt_nccl_comm *c, void *handle)
{
    int result;

    fake_nccl_enter(c, "CommDeregister");
    result = unknow(c, handle, false);
    fake_nccl_leave(c);
    return result;
}

/* It is over, and the window is written, after some questions; from 2.28 on it says SUCCESS all the same. */
SHOWN int ncclCommWindowRegister(struct dt_nccl_comm *c, void *p, size_t bytes, void **window,
                                 int flags);
SHOWN int ncclCommWindowRegister(struct dt_nccl_comm *c, void *p, size_t bytes, void **window,
                                 int flags)
{
    if (fake_nccl_fails())
        return SYSTEM;
    fake_nccl_enter(c, "CommWindowRegister");
    if (flags != DT_NCCL_WIN_COLL_SYMMETRIC || (uintptr_t)p % 4096 != 0)
        fake_nccl_stop("a window at %p with flags %d", p, flags);
    c->window_to = window;
    c->window = NULL;
    if (!refuses("windows"))
        know(c, p, bytes, &c->window, true);
    c->questions = 3;
    fake_nccl_leave(c);
    return fake_nccl_version() < DT_NCCL_VERSION_2_28 ? IN_PROGRESS : SUCCESS;
}

SHOWN int ncclCommWindowDeregister(struct dt_nccl_comm *c, void *window);
SHOWN int ncclCommWindowDeregister(struct dt_nccl_comm *c, void *window)
{
    int result;

    fake_nccl_enter(c, "CommWindowDeregister");
    result = unknow(c, window, true);
    fake_nccl_leave(c);
    return result;
}

void fake_nccl_question_failed(void)
{
    pthread_mutex_lock(&fake_nccl_lock);
    count.failed_questions++;
    pthread_mutex_unlock(&fake_nccl_lock);
}

SHOWN fake_nccl_memory_fn fake_nccl_memory;
SHOWN struct fake_nccl_memory fake_nccl_memory(void)
{
    struct fake_nccl_memory now;

    pthread_mutex_lock(&fake_nccl_lock);
    now = count;
    count = (struct fake_nccl_memory){.living = now.living};
    pthread_mutex_unlock(&fake_nccl_lock);
    return now;
}
