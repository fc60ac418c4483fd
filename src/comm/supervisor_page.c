/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The page in which a rank says what it does.  It is an unnamed file of its own (nothing is left
 * behind by whoever is killed) that ranks of the same host open by way of /proc; where that does
 * not go, other hosts' way of hearing of each other is left. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "comm/supervisor_impl.h"

#include "base/clock.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *map(int fd, int prot)
{
    void *p = mmap(NULL, sizeof(struct dt_supervisor_page), prot, MAP_SHARED, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

enum dt_status dt_supervisor_page_new(struct dt_supervisor *w, struct dt_error *err)
{
    struct dt_supervisor_page *p = NULL;
    int fd = memfd_create("disttrain-rank", MFD_CLOEXEC);

    if (fd >= 0 && ftruncate(fd, sizeof(*p)) == 0)
        p = map(fd, PROT_READ | PROT_WRITE);
    if (!p) {
        if (fd >= 0)
            close(fd);
        fd = -1;
        p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return dt_error_nomem(err, "a page for what a rank does");
    }
    p->rank = w->t->rank;
    p->nonce = dt_clock_ns() ^ (uint64_t)getpid() << 32;
    w->page = p;
    w->page_fd = fd;
    return DT_OK;
}

void dt_supervisor_page_free(struct dt_supervisor *w)
{
    if (w->page)
        munmap(w->page, sizeof(*w->page));
    if (w->page_fd >= 0)
        close(w->page_fd);
    w->page = NULL;
    w->page_fd = -1;
}

/* A process of that number in another container is another process: the nonce tells. */
const struct dt_supervisor_page *dt_supervisor_page_of(const struct dt_supervisor *w, int rank)
{
    const struct dt_supervisor_rank *r = &w->ranks[rank];
    const struct dt_supervisor_page *p;
    char path[64];
    int fd;

    if (r->page < 0 || strcmp(r->host, w->t->host) != 0)
        return NULL;
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/fd/%d", r->pid, (int)r->page);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    p = map(fd, PROT_READ);
    close(fd);
    if (p && (p->nonce != r->nonce || p->rank != rank)) {
        dt_supervisor_page_unmap(p);
        return NULL;
    }
    return p;
}

void dt_supervisor_page_unmap(const struct dt_supervisor_page *p)
{
    if (p)
        munmap((void *)(uintptr_t)p, sizeof(*p));
}

void dt_supervisor_doing(struct dt_supervisor *w, int module, int op, int64_t microbatch)
{
    uint64_t doing = 0, before;

    if (!w)
        return;
    if (module >= 0)
        doing = (uint64_t)(module + 1) << 56 | (uint64_t)((uint32_t)op + 1) << 24 |
                (((uint64_t)microbatch + 1) & 0xffffff);
    before = atomic_load_explicit(&w->page->doing, memory_order_relaxed);
    if (before)
        atomic_store_explicit(&w->page->last, before, memory_order_relaxed);
    atomic_store_explicit(&w->page->since_ns, dt_clock_ns(), memory_order_relaxed);
    atomic_store_explicit(&w->page->doing, doing, memory_order_relaxed);
}

void dt_supervisor_waiting(struct dt_supervisor *w, bool waits)
{
    if (!w)
        return;
    if (!waits)
        atomic_fetch_sub_explicit(&w->page->waits, 1, memory_order_relaxed);
    else if (atomic_fetch_add_explicit(&w->page->waits, 1, memory_order_relaxed) == 0)
        atomic_store_explicit(&w->page->wait_since_ns, dt_clock_ns(), memory_order_relaxed);
}
