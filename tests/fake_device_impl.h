/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The fake device, the inside.  Shared by fake_device*.c only. */
#ifndef DT_TESTS_FAKE_DEVICE_IMPL_H
#define DT_TESTS_FAKE_DEVICE_IMPL_H

#include "fake_device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct dt_fake_settings {
    bool sync, fault_wait, fault_free, fault_done;
    uint64_t seed, share, delay_us;
};

struct dt_fake_pinned { /* what host_alloc made */
    char *p;
    size_t bytes;
    struct dt_fake_pinned *next;
};

struct dt_fake {
    struct dt_device dev;  /* what callers see */
    struct dt_device *cpu; /* whose kernels run */
    struct dt_kernels k;   /* of this device */
    struct dt_fake_settings set;
    pthread_mutex_t lock; /* of all below */
    struct dt_device_queue *queues;
    uint64_t n_queues; /* ever made: a queue's delays are drawn by its number */
    int64_t now_bytes, max_bytes;
    struct dt_fake_count counts[DT_FAKE_COUNTS];
    int n_counts;
    uint64_t allocations;
    int blocks;    /* of memory, not freed */
    int mapped;    /* blocks of other processes */
    uint64_t maps; /* ever */
    bool left;     /* its own that others have mapped are theirs for ever */
    bool shared;
    struct dt_fake_pinned *pinned;
    struct dt_fake_wait *waits;
    size_t n_waits, cap_waits;
    bool traced;
    struct dt_fake_span *spans;
    size_t n_spans, cap_spans;
};

/* ---- memory (fake_device_memory.c) ---- */

struct dt_fake_block;
/* NULL: there is none. */
void *dt_fake_block_new(struct dt_fake *f, size_t bytes);
/* The live block that `p` is the beginning of.  Anything else ends the program. */
struct dt_fake_block *dt_fake_block_of(const void *p);
/* It may not be given to tasks any more; then: nobody may touch it.  Its bytes. */
void dt_fake_block_retire(struct dt_fake_block *b);
size_t dt_fake_block_drop(struct dt_fake_block *b);
size_t dt_fake_block_bytes(const struct dt_fake_block *b);
struct dt_device_memory_owner *dt_fake_block_owner(const struct dt_fake_block *b);
/* Whose memory `p` is. */
struct dt_fake *dt_fake_of_block(const void *p);
/* Is it an address that this device has given out, alive or not? */
bool dt_fake_is_device(const void *p);
/* What kernels use instead of `p`, which lies in a live block (or right behind it); NULL stays.  `what`
 * it is for is said where it does not. */
void *dt_fake_alias(const void *p, const char *what);
/* The same; it may have been freed while a queue still stands before that: a transfer that one rank has
 * offered is put on another's queue later (comm/transport_meet.c). */
void *dt_fake_alias_kept(const void *p, const char *what);
/* The driver's block that live memory lies in: where it is in this device's file, which other processes can open. */
struct dt_fake_piece {
    int fd;
    size_t at, bytes; /* of the file */
};
struct dt_fake_piece dt_fake_piece_of(const void *p, size_t *offset);
/* Another process's, for copies; NULL: no room. */
void *dt_fake_piece_map(const struct dt_fake_piece *theirs);
void dt_fake_piece_unmap(void *p);
/* Are there pieces that others have mapped? */
bool dt_fake_pieces_mapped(void);
/* What this thread is doing, for reports of faults. */
void dt_fake_doing(const char *what);
/* Ends the program. */
void dt_fake_stop(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* The device's alloc, which nobody counts. */
enum dt_status dt_fake_alloc(struct dt_fake *f, size_t bytes, struct dt_error *err, void **out);

/* ---- queues (fake_device_queue.c) ---- */

/* With the CPU's queue and kernels, on the queue's thread. */
typedef void dt_fake_task_fn(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg);
/* Room for a task's arguments; fill it, then submit.  `what` lives for ever. */
void *dt_fake_task(const char *what, dt_fake_task_fn *fn, size_t arg_bytes);
void dt_fake_submit(struct dt_device_queue *q, void *arg);
/* Waits for the queue, then runs it on the caller's thread. */
void dt_fake_here(struct dt_device_queue *q, void *arg);
/* Calls `fn(arg)` when every queue has passed what is on it now. */
void dt_fake_when_passed(struct dt_fake *f, void (*fn)(struct dt_fake *f, void *arg), void *arg);
/* Returns when nothing is under way; says nothing to the log. */
void dt_fake_drain(struct dt_device_queue *q);
void dt_fake_queue_entries(struct dt_device *dev);
/* One more task; locked. */
void dt_fake_count(struct dt_fake *f, const char *what);
void dt_fake_log(struct dt_fake *f, enum dt_fake_wait_kind kind, uint64_t begin_ns);
struct dt_fake *dt_fake_of_queue(const struct dt_device_queue *q);
static inline struct dt_fake *dt_fake_of(const struct dt_device *dev)
{
    return dev->impl;
}
/* What the calling thread's memory is for. */
extern _Thread_local struct dt_device_memory_owner *dt_fake_owner;
void dt_fake_account(struct dt_fake *f, int64_t bytes);

/* ---- events and gates (fake_device_event.c) ---- */

struct
    dt_fake_slot { /* what an event counts; of those that processes share, in memory that they share */
    atomic_uint_fast64_t recorded, done;
    atomic_bool alive;
};
/* A new one counts there from now on; foreign: another process records it. */
void dt_fake_event_share(struct dt_device_event *e, struct dt_fake_slot *slot, bool foreign);
void dt_fake_event_entries(struct dt_device *dev);

/* ---- between processes (fake_device_ipc.c) ---- */

void dt_fake_ipc_entries(struct dt_device *dev);

/* ---- kernels (fake_device_kernels.c) ---- */

void dt_fake_kernels(struct dt_kernels *k);

struct dt_device_weight { /* of the fake device */
    struct dt_fake *f;
    struct dt_device_weight *cpu;
};

#endif
