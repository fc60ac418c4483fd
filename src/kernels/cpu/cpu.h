/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside src/kernels/cpu only: the queue, the parallel loop, the products.
 *
 * The files that end in _simd.c are compiled once per instruction set (local.mk); each of their
 * registration functions carries the set's name.  Everything else is compiled once. */
#ifndef DT_KERNELS_CPU_CPU_H
#define DT_KERNELS_CPU_CPU_H

#include "kernels/cpu/bf16.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <stdatomic.h>

/* Scratch regions of a queue; a kernel uses its own, the products that it calls use theirs. */
enum { DT_SCRATCH_KERNEL, DT_SCRATCH_OUTER, DT_SCRATCH_PRODUCT, DT_SCRATCH_TEMP, DT_SCRATCH_N };

struct dt_cpu {
    struct dt_device dev;
    void *engine;                       /* of the product library */
    const struct dt_cpu_bf16_ops *bf16; /* attention's products of bf16; NULL = in fp32 */
    _Atomic int64_t now_bytes, max_bytes;
    struct dt_device_memory_owner scratch; /* of its queues; tests of memory look at it, too */
};

struct dt_device_queue {
    const struct dt_device *dev;
    int threads;
    enum dt_status status; /* first failure, sticky */
    struct dt_error err;
    struct {
        void *p;
        size_t bytes;
    } scratch[DT_SCRATCH_N];
    struct dt_cpu_products *products; /* primitives by shape, dnnl.c */
};

static inline const struct dt_cpu *dt_cpu_of(const struct dt_device_queue *q)
{
    return q->dev->impl;
}

void dt_cpu_queue_fail(struct dt_device_queue *q, enum dt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* At least `bytes`, 64-byte aligned, contents undefined, until the next call for the same region.
 * Grows while shapes are new, then stays.  NULL (and a failed queue) when out of memory. */
void *dt_cpu_scratch(struct dt_device_queue *q, int region, size_t bytes);

/* Device memory with accounting; 64-byte aligned. */
void *dt_cpu_alloc(struct dt_cpu *cpu, size_t bytes);
void dt_cpu_free(struct dt_cpu *cpu, void *p);

/* fn(arg, block, thread) for every block, each once, on the queue's threads; thread < q->threads.
 * The blocks are the kernel's fixed division of its work: what one computes depends on nothing
 * else, so neither does the result on the threads.  The only parallel loop of our own kernels. */
typedef void dt_cpu_block_fn(void *arg, int64_t block, int thread);
void dt_cpu_for(struct dt_device_queue *q, int64_t blocks, dt_cpu_block_fn *fn, void *arg);

/* Rows of one block: about 2^14 elements, a function of the shape only. */
static inline int64_t dt_cpu_block_rows(int64_t width)
{
    int64_t rows = width > 0 ? (1 << 14) / width : 1;

    return rows < 1 ? 1 : rows;
}
static inline int64_t dt_cpu_blocks(int64_t n, int64_t per)
{
    return (n + per - 1) / per;
}
static inline int64_t dt_cpu_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t dt_cpu_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The item that has the row. */
static inline int64_t dt_cpu_item_of(const struct dt_kernel_items *items, int64_t row)
{
    int64_t i = 0, end = items->n; /* cu[i] <= row < cu[end] */

    while (end - i > 1) {
        int64_t middle = (i + end) / 2;

        if (items->cu[middle] <= row)
            i = middle;
        else
            end = middle;
    }
    return i;
}
static inline int64_t dt_cpu_item_rows(const struct dt_kernel_items *items, int64_t i)
{
    return items->cu[i + 1] - items->cu[i];
}

/* ---- products (pieces.c, dnnl.c) ---- */

/* c[m,n] = a[m,k] b[k,n] + bias + (add ? c : 0); element (i, j) of a at a + i*ra + j*ca, and so on.
 */
struct dt_cpu_product_args {
    int64_t m, n, k;
    int64_t ra, ca; /* one of each pair is 1 */
    int64_t rb, cb;
    int64_t rc;
    int32_t type, c_type; /* enum dt_dtype of a and b, and of c */
    int32_t add, bias;
};
/* b: plain memory, or NULL and `w` (transposed: b is the master's transpose, as the forward wants
 * it).  With `w`, n or k may be larger than the weight's `out`: what is behind it counts as zeros. */
void dt_cpu_product(struct dt_device_queue *q, const struct dt_cpu_product_args *p, const void *a,
                    const void *b, const struct dt_device_weight *w, const float *bias, void *c);

enum dt_status dt_cpu_products_open(struct dt_cpu *cpu, const struct dt_device_options *opt,
                                    struct dt_error *err);
void dt_cpu_products_close(struct dt_cpu *cpu);
enum dt_status dt_cpu_products_new(struct dt_device_queue *q, struct dt_error *err);
void dt_cpu_products_free(struct dt_device_queue *q);
const struct dt_device_weight_shape *dt_cpu_weight_shape(const struct dt_device_weight *w);
enum dt_status dt_cpu_weight_new(const struct dt_device *dev,
                                 const struct dt_device_weight_shape *shape, const float *master,
                                 const void *rounded, struct dt_error *err,
                                 struct dt_device_weight **out);
void dt_cpu_weight_free(struct dt_device_weight *w);
void dt_cpu_weight_changed(struct dt_device_queue *q, struct dt_device_weight *w);
void dt_cpu_products(struct dt_kernels *k); /* fills linear_* and conv_* */

/* ---- the instruction sets: kernels compiled for each ---- */
void dt_cpu_simd_base(struct dt_kernels *k);
void dt_cpu_simd_v3(struct dt_kernels *k); /* x86-64-v3: AVX2, FMA */
void dt_cpu_simd_v4(struct dt_kernels *k); /* x86-64-v4: AVX-512 F, BW, CD, DQ, VL */

/* ---- between processes (ipc.c): there is no such thing ---- */
enum dt_status dt_cpu_ipc_memory(const struct dt_device *dev, const void *p, struct dt_error *err,
                                 struct dt_device_handle *block, size_t *offset);
enum dt_status dt_cpu_ipc_map(const struct dt_device *dev, const struct dt_device_handle *block,
                              struct dt_error *err, void **out);
void dt_cpu_ipc_unmap(const struct dt_device *dev, void *p);
void dt_cpu_ipc_leave(const struct dt_device *dev);
enum dt_status dt_cpu_ipc_event_new(const struct dt_device *dev, struct dt_error *err,
                                    struct dt_device_event **out, struct dt_device_handle *handle);
enum dt_status dt_cpu_ipc_event_open(const struct dt_device *dev,
                                     const struct dt_device_handle *handle, struct dt_error *err,
                                     struct dt_device_event **out);

#endif
