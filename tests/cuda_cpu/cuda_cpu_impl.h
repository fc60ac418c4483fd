/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * CUDA on the CPU, the inside: what block.cc and runtime.cc share. */
#ifndef DT_TESTS_CUDA_CPU_IMPL_H
#define DT_TESTS_CUDA_CPU_IMPL_H

#include "cuda_cpu.h"

#include <atomic>

#include <cuda_runtime.h>

struct cucpu_kernel {
    const char *name;
    dim3 grid, block;
    size_t shared;
    uint64_t seed; /* of the order of threads */
    std::function<void()> body;
};
/* All blocks, on the caller's thread. */
void cucpu_run(const cucpu_kernel &k);

/* Something else than a kernel, in the stream's order (runtime.cc). */
void cucpu_task(cudaStream_t s, const char *what, std::function<void()> run);

/* The same, whatever the thread's card is; and the stream's card. */
void cucpu_put(cudaStream_t s, const char *what, std::function<void()> run);
int cucpu_stream_card(cudaStream_t s);

/* Are tasks put into a graph, and so not done? */
bool cucpu_capturing(cudaStream_t s);
/* A library loads kernels, for which the driver may wait for all streams of the process: ends the program if one of them
 * waits for a word that is not written yet. */
void cucpu_loads(const char *what);

/* ---- what processes share (ipc.cc) ----
 * A slot is of an event, or of a block of memory.  It is never used again. */
enum { CUCPU_USERS = 16 };
struct cucpu_slot {
    std::atomic<uint64_t> recorded, done;   /* an event's */
    std::atomic<uint32_t> alive;            /* its maker has it */
    std::atomic<int32_t> user[CUCPU_USERS]; /* processes that have it open; 0: none */
};
cucpu_slot *cucpu_slot_new();
/* A process that has it open and lives; 0: none. */
int cucpu_slot_user(cucpu_slot *s);
/* Ends the program: it is used against CUDA's rules. */
[[noreturn]] void cucpu_stop(const char *what);
/* The driver's cuMemGetAddressRange. */
int cucpu_address_range(unsigned long long *base, size_t *bytes, unsigned long long at);

/* Blocks of memory (runtime.cc). */
struct cucpu_place {
    char *p;
    int fd;
    size_t pages_at, pages, inside, bytes; /* of the file; where it begins in its pages */
    cucpu_slot *slot;
};
bool cucpu_block_of(const void *p, cucpu_place *out);
void *cucpu_block_map(const cucpu_place &theirs); /* NULL: no room */
void cucpu_block_unmap(void *p);
/* Events that there are (events.cc); one over a slot, as cudaEventCreate would make it. */
int cucpu_events();
cudaEvent_t cucpu_event_over(cucpu_slot *s, bool own);
cucpu_slot *cucpu_event_slot(cudaEvent_t e); /* NULL: it is for this process only */
void cucpu_slot_close(cucpu_slot *s);

/* Counts a call of a library's function `name`; is it the one that is to fail (calls.cc)? */
bool cucpu_fails(const char *name);

/* Leaves a function of the runtime that is to fail. */
#define CALL(name)                                                                                 \
    do {                                                                                           \
        if (cucpu_fails(name))                                                                     \
            return cucpu_error = cudaErrorUnknown;                                                 \
    } while (0)

/* The thread's: what the runtime said last, and its card (card.cc). */
extern thread_local cudaError_t cucpu_error;
extern thread_local int cucpu_card;
/* A number of the environment. */
uint64_t cucpu_setting(const char *name, uint64_t otherwise);
/* The most shared memory of a block, in bytes. */
size_t cucpu_shared_most();

/* CUCPU_DRY: launches and products are told, not done (dry.cc). */
bool cucpu_dry();
void cucpu_dry_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared);
void cucpu_dry_product(uint64_t m, uint64_t n, uint64_t k, int in, int out, bool adds);

#endif
