/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A device for tests that has a card's manners and the CPU's kernels: its memory is out of the host's
 * reach, and its queues run when they please.  Whatever is right on it by luck on the CPU fails.
 *
 *   memory   a host that touches it is stopped at once, in whatever thread, with a stack of calls; there
 *            are guard pages around every block, fresh memory is poison, and freed memory faults as soon
 *            as every queue has passed the free, or where it is handed to a kernel after it
 *   queues   threads; a task in `share` waits before it runs, for a time drawn from the seed
 *   weights  are not packed: products of bf16 read the copy that stages keep, and the memory that the CPU
 *            takes to pack it is not counted
 *   kernels  those of the CPU; pointers are checked and translated by the types that kernels.h declares
 *
 * Environment, read when the device is opened:
 *
 *   DISTTRAIN_FAKE_DEVICE=1      dt_test_device_open opens it, instead of the CPU
 *   DISTTRAIN_FAKE_SYNC=1        no threads: a call has run when it returns, and only memory is foreign
 *   DISTTRAIN_FAKE_DELAY_US=N    the longest delay of a task (0: none)
 *   DISTTRAIN_FAKE_SHARE=N       one task in N is delayed (512; 1: each)
 *   DISTTRAIN_FAKE_SEED=N        which, and for how long (1)
 *   DISTTRAIN_FAKE_RECORD=FILE   a touch by the host is let through, and the file gets a line for each
 *                                place in the program that touched: the calls that led there
 *   DISTTRAIN_FAKE_IPC=WHAT      the ipc_... call of that name is refused, read at each: "memory", "map", "event",
 *                                "open"; or "freed": memory may be used that its process has freed, as cards let it be
 *                                until that process closes its device
 *   DISTTRAIN_FAKE_FAULT=WHAT    the device breaks its word, which a test must notice: "wait" (queues do
 *                                not wait for events), "free" (memory is gone at once, whatever still
 *                                reads it), "done" (events are done before they are) */
#ifndef DT_TESTS_FAKE_DEVICE_H
#define DT_TESTS_FAKE_DEVICE_H

#include "kernels/kernels.h"

/* The CPU, or where the environment asks for it the fake device. */
enum dt_status dt_test_device_open(const struct dt_device_options *opt, struct dt_error *err,
                                   struct dt_device **out);
/* Does the CPU here multiply in bf16, and the fake device with it?  Only with AVX-512. */
bool dt_test_has_bf16(void);
/* The fake device, whatever the environment says. */
enum dt_status dt_fake_device_open(const struct dt_device_options *opt, struct dt_error *err,
                                   struct dt_device **out);

/* For a test's own eyes: where the host may read and write what lies at device memory `p`, once
 * nothing is under way on any queue of that device.  Memory of the CPU is where it is. */
void *dt_test_host(const void *p);

/* Several ranks use the device: dt_test_host does not wait then, since their queues may wait for the rank that
 * looks.  Who looks has synchronised what he looks at. */
void dt_fake_share(struct dt_device *dev);

/* Times at which the host was held up by the device: it waited for a queue or an event that was not
 * there yet, or copied from or to memory that host_alloc did not make (a card stops for that). */
enum dt_fake_wait_kind { DT_FAKE_QUEUE_SYNC, DT_FAKE_EVENT_SYNC, DT_FAKE_PAGEABLE };
extern const char *const dt_fake_wait_names[];
struct dt_fake_wait {
    enum dt_fake_wait_kind kind;
    uint64_t begin_ns, end_ns; /* dt_clock_ns */
    void *caller[8];           /* addresses, innermost first; NULL: no more */
};
/* Those since the last call; at most `max` are given, all are counted and forgotten. */
size_t dt_fake_waits(const struct dt_device *dev, struct dt_fake_wait *out, size_t max);
/* Tasks that have been put on the device's queues: all; and of each kind, which is a kernel's name in kernels.h,
 * "zero" (also that of device.h), "weight_changed", "call" or one of these. */
extern const char *const dt_fake_copy_names[]; /* by enum dt_device_copy */
uint64_t dt_fake_tasks(const struct dt_device *dev);
enum { DT_FAKE_COUNTS = 128 };
struct dt_fake_count {
    const char *what;
    uint64_t n;
};
int dt_fake_counts(const struct dt_device *dev, struct dt_fake_count out[DT_FAKE_COUNTS]);
/* Tasks that have run since the last call, in the order in which they ended; at most `max` are given.  The first call
 * begins it.  A task's time has its delay in it. */
struct dt_fake_span {
    const char *what;
    uint64_t queue; /* the device's queues are numbered as they are made */
    uint64_t begin_ns, end_ns;
};
size_t dt_fake_trace(const struct dt_device *dev, struct dt_fake_span *out, size_t max);
/* Blocks of other processes that are mapped now, and how often one was. */
void dt_fake_maps(const struct dt_device *dev, int *now, uint64_t *ever);
/* Calls of alloc and host_alloc so far. */
uint64_t dt_fake_allocations(const struct dt_device *dev);

#endif
