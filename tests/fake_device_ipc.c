/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory and events of the fake device for other processes: a handle names a process, one of its open files, and a
 * place there.  As with CUDA a process cannot open its own. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "fake_device_impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS = 1 << 14, MAGIC = 0x66616b65 };

struct handle {
    uint32_t magic;
    int32_t pid, fd;
    uint32_t slot;
    uint64_t at, bytes;
};
_Static_assert(sizeof(struct handle) <= sizeof(struct dt_device_handle), "it fits");

static struct {
    pthread_mutex_t lock;
    int fd;
    struct dt_fake_slot *slot;
    uint32_t n; /* none is used again */
} events = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The fault of tests: a call fails. */
static bool refused(const char *call, struct dt_error *err)
{
    const char *s = getenv("DISTTRAIN_FAKE_IPC");

    if (!s || strcmp(s, call) != 0)
        return false;
    dt_error_set(err, DT_ERR_INPUT, "the fake device was told to refuse: %s", call);
    return true;
}

static enum dt_status open_theirs(const struct dt_device_handle *from, struct dt_error *err,
                                  struct handle *h, int *fd)
{
    char path[64];

    memcpy(h, from, sizeof(*h));
    if (h->magic != MAGIC || h->pid == getpid())
        return dt_error_set(err, DT_ERR_INPUT, "it is no other process's handle");
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", h->pid, h->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    return *fd >= 0 ? DT_OK
                    : dt_error_set(err, DT_ERR_INPUT, "process %d cannot be looked into", h->pid);
}

/* ---- memory ---- */

static enum dt_status ipc_memory(const struct dt_device *dev, const void *p, struct dt_error *err,
                                 struct dt_device_handle *block, size_t *offset)
{
    struct dt_fake_piece piece;
    struct handle h;

    (void)dev;
    if (refused("memory", err))
        return DT_ERR_INPUT;
    piece = dt_fake_piece_of(p, offset);
    h = (struct handle){MAGIC, getpid(), piece.fd, 0, piece.at, piece.bytes};
    memset(block, 0, sizeof(*block));
    memcpy(block, &h, sizeof(h));
    return DT_OK;
}

static enum dt_status ipc_map(const struct dt_device *dev, const struct dt_device_handle *block,
                              struct dt_error *err, void **out)
{
    struct dt_fake *f = dt_fake_of(dev);
    struct dt_fake_piece piece;
    struct handle h;
    void *p;

    if (refused("map", err))
        return DT_ERR_INPUT;
    DT_TRY(open_theirs(block, err, &h, &piece.fd));
    piece.at = h.at;
    piece.bytes = h.bytes;
    p = dt_fake_piece_map(&piece);
    close(piece.fd);
    if (!p)
        return dt_error_nomem(err, "another process's memory");
    pthread_mutex_lock(&f->lock);
    f->maps++;
    f->mapped++;
    pthread_mutex_unlock(&f->lock);
    *out = p;
    return DT_OK;
}

static void ipc_unmap(const struct dt_device *dev, void *p)
{
    struct dt_fake *f = dt_fake_of(dev);

    if (!p)
        return;
    dt_fake_piece_unmap(p);
    pthread_mutex_lock(&f->lock);
    f->mapped--;
    pthread_mutex_unlock(&f->lock);
}

static void ipc_leave(const struct dt_device *dev)
{
    struct dt_fake *f = dt_fake_of(dev);

    pthread_mutex_lock(&f->lock);
    f->left = true;
    pthread_mutex_unlock(&f->lock);
}

void dt_fake_maps(const struct dt_device *dev, int *now, uint64_t *ever)
{
    struct dt_fake *f = dt_fake_of(dev);

    pthread_mutex_lock(&f->lock);
    *now = f->mapped;
    *ever = f->maps;
    pthread_mutex_unlock(&f->lock);
}

/* ---- events ---- */

static struct dt_fake_slot *slots_of(int fd)
{
    void *p =
        mmap(NULL, SLOTS * sizeof(struct dt_fake_slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* The number of a new one; they stay until the process ends. */
static uint32_t slot_new(void)
{
    uint32_t n;

    pthread_mutex_lock(&events.lock);
    if (!events.slot) {
        events.fd = memfd_create("fake events", MFD_CLOEXEC);
        if (events.fd < 0 || ftruncate(events.fd, SLOTS * sizeof(struct dt_fake_slot)) != 0 ||
            !(events.slot = slots_of(events.fd)))
            dt_fake_stop("no memory for events of processes");
    }
    if (events.n == SLOTS)
        dt_fake_stop("too many events for other processes");
    n = events.n++;
    pthread_mutex_unlock(&events.lock);
    atomic_store(&events.slot[n].alive, true);
    return n;
}

static enum dt_status ipc_event_new(const struct dt_device *dev, struct dt_error *err,
                                    struct dt_device_event **out, struct dt_device_handle *handle)
{
    struct handle h = {.magic = MAGIC, .pid = getpid()};

    if (refused("event", err))
        return DT_ERR_INPUT;
    DT_TRY(dev->event_new(dev, err, out));
    h.slot = slot_new();
    h.fd = events.fd;
    dt_fake_event_share(*out, &events.slot[h.slot], false);
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &h, sizeof(h));
    return DT_OK;
}

/* The page stays mapped: tests open few. */
static enum dt_status ipc_event_open(const struct dt_device *dev,
                                     const struct dt_device_handle *handle, struct dt_error *err,
                                     struct dt_device_event **out)
{
    struct dt_fake_slot *slots;
    struct handle h;
    int fd;

    if (refused("open", err))
        return DT_ERR_INPUT;
    DT_TRY(open_theirs(handle, err, &h, &fd));
    slots = h.slot < SLOTS ? slots_of(fd) : NULL;
    close(fd);
    if (!slots)
        return dt_error_nomem(err, "another process's event");
    DT_TRY(dev->event_new(dev, err, out));
    dt_fake_event_share(*out, &slots[h.slot], true);
    return DT_OK;
}

void dt_fake_ipc_entries(struct dt_device *dev)
{
    dev->ipc_memory = ipc_memory;
    dev->ipc_map = ipc_map;
    dev->ipc_unmap = ipc_unmap;
    dev->ipc_leave = ipc_leave;
    dev->ipc_event_new = ipc_event_new;
    dev->ipc_event_open = ipc_event_open;
}
