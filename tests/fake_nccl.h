/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * An NCCL for tests (tests/modules/NCCL/libnccl.so.2): ranks are threads of one process, and a stream is whatever
 * the test says.  What the transport promises to NCCL is held against it, and whatever is wrong ends the program
 * with a line that begins "fake nccl: ":
 *
 *   - calls that must meet name the same kind, count, type, operation and root; messages have one size
 *   - nobody calls anything on a communicator that is not ready, and nobody but the thread that has made it
 *   - communicators do not block; an operation is on its stream when the communicator is asked and not in progress,
 *     which every fourth of them takes some questions
 *   - what is given up, by CommAbort, comes to an end; others go on waiting for it.  The call, which any thread may make,
 *     waits until no other communicator of the rank is stuck; in a group, since 2.22, all are given up before
 *
 * What is registered, and windows: fake_nccl_memory.c.  FAKE_NCCL_VERSION=N (22809): it is of another version.
 * FAKE_NCCL_TELLS=FILE: what it finds in the environment when it is asked for its version is appended.
 *
 * A test finds these functions in the library. */
#ifndef DT_TESTS_FAKE_NCCL_H
#define DT_TESTS_FAKE_NCCL_H

#include <stddef.h>
#include <stdint.h>

struct fake_nccl_hooks {
    /* Where a task may touch what lies at `p`, which `what` is given. */
    void *(*alias)(const void *p, const char *what);
    /* Puts fn(arg) on a stream.  It may wait there for other streams. */
    void (*submit)(void *stream, const char *what, void (*fn)(void *arg), void *arg);
    /* Memory of a device, at 4,096 bytes; NULL: there is none. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *p);
};
typedef void fake_nccl_hooks_fn(const struct fake_nccl_hooks *hooks); /* fake_nccl_hooks */
typedef void
fake_nccl_fail_at_fn(uint64_t n); /* fake_nccl_fail_at: the n-th call from now fails; 0: none */
typedef uint64_t fake_nccl_calls_fn(void); /* fake_nccl_calls: since then */
typedef int fake_nccl_living_fn(void);     /* fake_nccl_living: communicators that have not ended */
/* fake_nccl_memory: blocks that it has given and not got back; since the last call, windows and buffers that were
 * registered, and gathers: all, those between what is registered, and those that take no thread blocks. */
struct fake_nccl_memory {
    int living, windows, buffers, gathers, registered_gathers, zero_cta_gathers;
    int failed_questions; /* CommGetAsyncError that failed, as the test wanted */
    int messages,
        registered_messages; /* sends and receives but for the first of a pair, which connects it */
    int sums,
        registered_sums; /* calls that form sums, and those of memory that their communicator knows */
};
typedef struct fake_nccl_memory fake_nccl_memory_fn(void);
/* fake_nccl_callers: threads that have made communicators since it was called last, while there are none; *order: a
 * number that stands for the order of each one's calls. */
typedef int fake_nccl_callers_fn(uint64_t *order);
typedef void
fake_nccl_break_fn(int members); /* fake_nccl_break: a rank of each of so many members is lost */

#endif
