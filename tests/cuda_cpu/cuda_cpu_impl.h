/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * CUDA on the CPU, the inside: what block.cc and runtime.cc share. */
#ifndef DT_TESTS_CUDA_CPU_IMPL_H
#define DT_TESTS_CUDA_CPU_IMPL_H

#include "cuda_cpu.h"

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
