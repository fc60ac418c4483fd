/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory and events of a card for the other processes of its host (CUDA IPC).
 *
 * A handle is of an allocation of the driver's: here a piece of the arena, or what the driver has cut a small piece
 * from.  The driver says where that begins.  Pieces that were named stay until the device is closed, and behind it if
 * others may have them mapped still; without an arena blocks go back at once, and none is shared. */
#include "kernels/cuda/device.h"

#include <string.h>

/* The driver's cuMemGetAddressRange, which the runtime does not have. */
typedef int range_fn(unsigned long long *base, size_t *bytes, unsigned long long at);

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(struct dt_device_handle) &&
                  sizeof(cudaIpcEventHandle_t) == sizeof(struct dt_device_handle),
              "handles of CUDA are as long as ours");

static enum dt_status why_not(struct dt_error *err, cudaError_t e, const char *what)
{
    const char *hint = "";

    dt_cuda_said(e);
    switch (e) {
    case cudaErrorMapBufferObjectFailed:
        hint = "; processes in containers need a PID and an IPC namespace in common";
        break;
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidValue:
        hint = "; CUDA_VISIBLE_DEVICES or a container may hide the other process's card";
        break;
    case cudaErrorPeerAccessUnsupported:
        hint = "; the two cards cannot reach each other";
        break;
    case cudaErrorNotSupported:
        hint = "; this driver or virtual machine has no CUDA IPC";
        break;
    default:
        break;
    }
    return dt_error_set(err, e == cudaErrorMemoryAllocation ? DT_ERR_NOMEM : DT_ERR_INPUT,
                        "%s: %s%s", what, cudaGetErrorString(e), hint);
}

/* ---- memory ---- */

static enum dt_status ipc_memory(const struct dt_device *dev, const void *p, struct dt_error *err,
                                 struct dt_device_handle *block, size_t *offset)
{
    range_fn *range = (range_fn *)dt_cuda_of(dev)->address_range;
    unsigned long long base = 0, at = (unsigned long long)(uintptr_t)p;
    cudaIpcMemHandle_t h;
    cudaError_t e;
    size_t bytes;

    if (!dt_cuda_memory_stays(dt_cuda_of(dev)))
        return dt_error_set(err, DT_ERR_INPUT,
                            "DISTTRAIN_CUDA_ARENA=0 gives memory back to the driver at once, which "
                            "other processes may have mapped");
    dt_cuda_use(dev);
    if (!range || range(&base, &bytes, at) != 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "%s: the driver does not say which block memory lies in",
                            dev->info.name);
    e = cudaIpcGetMemHandle(&h, (void *)(uintptr_t)base);
    if (e != cudaSuccess)
        return why_not(err, e, "no handle of the card's memory");
    dt_cuda_memory_shown(dt_cuda_of(dev), p);
    memcpy(block, &h, sizeof(*block));
    *offset = (size_t)(at - base);
    return DT_OK;
}

static enum dt_status ipc_map(const struct dt_device *dev, const struct dt_device_handle *block,
                              struct dt_error *err, void **out)
{
    cudaIpcMemHandle_t h;
    cudaError_t e;

    memcpy(&h, block, sizeof(h));
    dt_cuda_use(dev);
    e = cudaIpcOpenMemHandle(out, h, cudaIpcMemLazyEnablePeerAccess);
    return e == cudaSuccess ? DT_OK
                            : why_not(err, e, "the memory of another process cannot be mapped");
}

static void ipc_unmap(const struct dt_device *dev, void *p)
{
    if (!p)
        return;
    dt_cuda_use(dev);
    dt_cuda_said(cudaIpcCloseMemHandle(p));
}

static void ipc_leave(const struct dt_device *dev)
{
    dt_cuda_memory_leave(dt_cuda_of(dev));
}

/* ---- events ---- */

static enum dt_status ipc_event_new(const struct dt_device *dev, struct dt_error *err,
                                    struct dt_device_event **out, struct dt_device_handle *handle)
{
    struct dt_device_event *event;
    cudaIpcEventHandle_t h;
    cudaEvent_t raw;
    cudaError_t e;

    dt_cuda_use(dev);
    e = cudaEventCreateWithFlags(&raw, cudaEventDisableTiming | cudaEventInterprocess);
    if (e != cudaSuccess)
        return why_not(err, e, "an event for other processes");
    event = dt_cuda_event_over(dev, raw);
    if (!event)
        return dt_error_nomem(err, "an event");
    e = cudaIpcGetEventHandle(&h, raw);
    if (e != cudaSuccess) {
        dev->event_free(event);
        return why_not(err, e, "no handle of an event");
    }
    memcpy(handle, &h, sizeof(*handle));
    *out = event;
    return DT_OK;
}

static enum dt_status ipc_event_open(const struct dt_device *dev,
                                     const struct dt_device_handle *handle, struct dt_error *err,
                                     struct dt_device_event **out)
{
    cudaIpcEventHandle_t h;
    cudaEvent_t raw;
    cudaError_t e;

    memcpy(&h, handle, sizeof(h));
    dt_cuda_use(dev);
    e = cudaIpcOpenEventHandle(&raw, h);
    if (e != cudaSuccess)
        return why_not(err, e, "an event of another process cannot be opened");
    *out = dt_cuda_event_over(dev, raw);
    return *out ? DT_OK : dt_error_nomem(err, "an event");
}

void dt_cuda_ipc(struct dt_cuda *c)
{
    struct dt_device *d = &c->dev;

    c->address_range = dt_cuda_driver_entry("cuMemGetAddressRange");
    d->ipc_memory = ipc_memory;
    d->ipc_map = ipc_map;
    d->ipc_unmap = ipc_unmap;
    d->ipc_leave = ipc_leave;
    d->ipc_event_new = ipc_event_new;
    d->ipc_event_open = ipc_event_open;
}
