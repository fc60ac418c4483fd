/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside src/kernels/cuda only: the card itself. */
#ifndef DT_KERNELS_CUDA_DEVICE_H
#define DT_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/cuda.h"

#include <pthread.h>

struct dt_cuda_memory;    /* memory.cu */
struct dt_cuda_dnn_plans; /* dnn.cu: of a device, for all its queues */

struct dt_cuda {
    struct dt_device dev;
    struct dt_kernels k;
    int index, processors, capability; /* capability: 90 of an H100 */
    size_t shared;                     /* of a block, at most */
    struct dt_cuda_dnn_plans *dnn;     /* NULL: our own kernels do everything */
    pthread_mutex_t lock;              /* of what follows */
    struct dt_device_queue *queues;
    struct dt_cuda_memory *memory;
    struct { /* moments of the card's clock and of the host's, the newer one first */
        cudaEvent_t event;
        uint64_t ns;
    } base[2];
    cudaStream_t clock;  /* for these, and nothing else */
    void *address_range; /* the driver's cuMemGetAddressRange; NULL: it has none (ipc.cu) */
};
static inline struct dt_cuda *dt_cuda_of(const struct dt_device *dev)
{
    return (struct dt_cuda *)dev->impl;
}
/* Makes the card the calling thread's. */
void dt_cuda_use(const struct dt_device *dev);

/* ---- memory (memory.cu): fills alloc, free, host_alloc, host_free, memory_* ---- */
enum dt_status dt_cuda_memory_new(struct dt_cuda *c, struct dt_error *err);
void dt_cuda_memory_close(struct dt_cuda *c);
/* Does the driver get back no block by itself? */
bool dt_cuda_memory_stays(const struct dt_cuda *c);
/* What `p` lies in is another process's, too: it stays until the close; or, left, behind it. */
void dt_cuda_memory_shown(struct dt_cuda *c, const void *p);
void dt_cuda_memory_leave(struct dt_cuda *c);
/* ---- queues, events and gates (queue.cu): fills their entries ---- */
enum dt_status dt_cuda_queues(struct dt_cuda *c, struct dt_error *err);
void dt_cuda_queues_close(struct dt_cuda *c);
/* The queue waits until a word that the card can read is n or more. */
void dt_cuda_wait_word(struct dt_device_queue *q, const uint64_t *word, uint64_t n);
/* ---- functions of the host (call.cu) ---- */
void dt_cuda_call(struct dt_device_queue *q, void (*fn)(void *), void *arg);
/* The stream has passed, or failed: so have they. */
void dt_cuda_caller_sync(struct dt_device_queue *q);
void dt_cuda_caller_free(struct dt_device_queue *q);
/* An event of the table over one that has no time, which is its own from now on; NULL: out of memory. */
struct dt_device_event *dt_cuda_event_over(const struct dt_device *dev, cudaEvent_t e);
/* A function of the driver's; NULL: it has none of that name. */
void *dt_cuda_driver_entry(const char *name);
/* ---- for other processes (ipc.cu): fills ipc_* ---- */
void dt_cuda_ipc(struct dt_cuda *c);

#endif
