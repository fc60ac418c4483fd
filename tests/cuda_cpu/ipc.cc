// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// CUDA IPC on a CPU, between processes: a handle names a process, one of its open files and a place there.  Memory is
// mapped once more from the file that it is in; events count in a file of slots.  As in CUDA a process cannot open its
// own, a handle opened twice is the same mapping, and what another process has mapped may not be freed.
//
// CUCPU_IPC=no: there is no such thing; hidden: nothing of others can be opened.
#include "cuda_cpu_impl.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace
{

const uint64_t MAGIC = 0x6375637075697063u;
enum { SLOTS = 1 << 14 };

struct handle {
    uint64_t magic;
    int32_t pid, fd, slots; // of memory: its file; the file of slots
    uint32_t slot;
    uint64_t pages_at, pages, inside, bytes;
};
static_assert(sizeof(handle) <= sizeof(cudaIpcMemHandle_t));

struct mapping { // of what others have
    int users;
    cucpu_slot *slot;
};

std::mutex lock;
int slots_fd = -1;
cucpu_slot *slots;
uint32_t n_slots;
std::map<std::string, void *> opened; // by handle
std::map<void *, mapping> mapped;

bool says(const char *what)
{
    const char *s = getenv("CUCPU_IPC");

    return s && strcmp(s, what) == 0;
}

handle whose(cucpu_slot *s)
{
    std::lock_guard<std::mutex> hold(lock);

    return {MAGIC, getpid(), -1, slots_fd, uint32_t(s - slots), 0, 0, 0, 0};
}

int open_file(int pid, int fd)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

// NULL: it cannot be seen.
cucpu_slot *open_slot(const handle &h)
{
    int fd = h.magic == MAGIC && h.slot < SLOTS ? open_file(h.pid, h.slots) : -1;

    if (fd < 0)
        return nullptr;
    void *p = mmap(nullptr, SLOTS * sizeof(cucpu_slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    close(fd);
    if (p == MAP_FAILED)
        return nullptr;
    cucpu_slot *s = static_cast<cucpu_slot *>(p) + h.slot;

    for (std::atomic<int32_t> &u : s->user) {
        int32_t none = 0;

        if (u.compare_exchange_strong(none, getpid()))
            return s;
    }
    cucpu_stop("more processes open something than the imitation has places for");
}

} // namespace

void cucpu_stop(const char *what)
{
    fprintf(stderr, "cuda on the cpu: %s\n", what);
    abort();
}

cucpu_slot *cucpu_slot_new()
{
    std::lock_guard<std::mutex> hold(lock);

    if (!slots) {
        slots_fd = memfd_create("cucpu slots", MFD_CLOEXEC);
        if (slots_fd < 0 || ftruncate(slots_fd, SLOTS * sizeof(cucpu_slot)) != 0)
            cucpu_stop("no file for what processes share");
        void *p = mmap(nullptr, SLOTS * sizeof(cucpu_slot), PROT_READ | PROT_WRITE, MAP_SHARED,
                       slots_fd, 0);

        if (p == MAP_FAILED)
            cucpu_stop("no memory for what processes share");
        slots = static_cast<cucpu_slot *>(p);
    }
    if (n_slots == SLOTS)
        cucpu_stop("too many events and blocks for other processes");
    slots[n_slots].alive = 1;
    return &slots[n_slots++];
}

// The page that it is in stays mapped: another slot of it may be open.
void cucpu_slot_close(cucpu_slot *s)
{
    for (std::atomic<int32_t> &u : s->user) {
        int32_t me = getpid();

        if (u.compare_exchange_strong(me, 0))
            return;
    }
}

int cucpu_slot_user(cucpu_slot *s)
{
    for (std::atomic<int32_t> &u : s->user)
        if (u > 0 && (kill(u, 0) == 0 || errno != ESRCH))
            return u;
    return 0;
}

int cucpu_address_range(unsigned long long *base, size_t *bytes, unsigned long long at)
{
    cucpu_place b;

    if (cucpu_fails("cuMemGetAddressRange") || !cucpu_block_of(reinterpret_cast<void *>(at), &b))
        return cudaErrorUnknown;
    *base = reinterpret_cast<uintptr_t>(b.p);
    *bytes = b.bytes;
    return 0;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *p)
{
    CALL("cudaIpcGetMemHandle");
    cucpu_place b;

    if (says("no"))
        return cucpu_error = cudaErrorNotSupported;
    if (!cucpu_block_of(p, &b) || b.p != p)
        return cucpu_error = cudaErrorInvalidValue;
    handle h = whose(b.slot);

    h.fd = b.fd;
    h.pages_at = b.pages_at;
    h.pages = b.pages;
    h.inside = b.inside;
    h.bytes = b.bytes;
    *out = {};
    memcpy(out, &h, sizeof(h));
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t in, unsigned flags)
{
    CALL("cudaIpcOpenMemHandle");
    std::string key(in.reserved, sizeof(in.reserved));
    handle h;

    memcpy(&h, &in, sizeof(h));
    if (flags != cudaIpcMemLazyEnablePeerAccess || h.magic != MAGIC)
        return cucpu_error = cudaErrorInvalidValue;
    if (says("hidden"))
        return cucpu_error = cudaErrorMapBufferObjectFailed;
    if (h.pid == getpid())
        return cucpu_error = cudaErrorDeviceUninitialized;
    std::lock_guard<std::mutex> hold(lock);
    auto it = opened.find(key);

    if (it != opened.end()) {
        mapped[it->second].users++;
        *p = it->second;
        return cudaSuccess;
    }
    int fd = open_file(h.pid, h.fd);
    cucpu_slot *slot = fd < 0 ? nullptr : open_slot(h);
    void *q = slot ? cucpu_block_map({nullptr, fd, h.pages_at, h.pages, h.inside, h.bytes, nullptr})
                   : nullptr;

    if (fd >= 0)
        close(fd);
    if (slot && !q)
        cucpu_slot_close(slot);
    if (!q)
        return cucpu_error = cudaErrorMapBufferObjectFailed;
    opened[key] = q;
    mapped[q] = {1, slot};
    *p = q;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    {
        std::lock_guard<std::mutex> hold(lock);
        auto it = mapped.find(p);

        if (it == mapped.end())
            cucpu_stop("memory is unmapped that was not mapped");
        if (--it->second.users == 0) {
            cucpu_block_unmap(p);
            cucpu_slot_close(it->second.slot);
            mapped.erase(it);
            for (auto k = opened.begin(); k != opened.end();)
                k = k->second == p ? opened.erase(k) : std::next(k);
        }
    }
    return cucpu_fails("cudaIpcCloseMemHandle") ? cucpu_error = cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *out, cudaEvent_t e)
{
    CALL("cudaIpcGetEventHandle");
    if (says("no"))
        return cucpu_error = cudaErrorNotSupported;
    if (!cucpu_event_slot(e))
        return cucpu_error = cudaErrorInvalidResourceHandle;
    handle h = whose(cucpu_event_slot(e));

    *out = {};
    memcpy(out, &h, sizeof(h));
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *e, cudaIpcEventHandle_t in)
{
    CALL("cudaIpcOpenEventHandle");
    handle h;

    memcpy(&h, &in, sizeof(h));
    if (says("hidden"))
        return cucpu_error = cudaErrorMapBufferObjectFailed;
    cucpu_slot *s = h.pid == getpid() ? nullptr : open_slot(h);

    if (!s)
        return cucpu_error = cudaErrorInvalidResourceHandle;
    *e = cucpu_event_over(s, false);
    return cudaSuccess;
}
