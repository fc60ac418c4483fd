/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the two forms of attention share: tensor cores for bf16 (attention_mma.cu), and one that takes every
 * type and size (attention.cu). */
#ifndef DT_KERNELS_CUDA_ATTENTION_H
#define DT_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/cuda.h"

/* The shape, and all that a call reads and writes; a forward has no gradients. */
struct dt_cuda_attention {
    int64_t rows_q, stride_q, stride_k, stride_v, stride_o;
    const int32_t *cu_q, *cu_k;
    const void *q, *k, *v, *d_o;
    void *o, *dq, *dk, *dv;
    float *lse, *delta; /* [heads][rows_q]; delta = sum of o d_o */
    float scale;
    int heads, group, head_dim,
        seq; /* group: heads of a kv head; seq: the first sequence of this launch */
    bool causal;
};
#ifndef __CUDACC__
static inline void dt_cu_see(struct dt_cuda_attention &a, const char *kernel)
{
    a.cu_q = (const int32_t *)cucpu_seen(a.cu_q, kernel);
    a.cu_k = (const int32_t *)cucpu_seen(a.cu_k, kernel);
    a.q = cucpu_seen(a.q, kernel);
    a.k = cucpu_seen(a.k, kernel);
    a.v = cucpu_seen(a.v, kernel);
    a.d_o = cucpu_seen(a.d_o, kernel);
    a.o = cucpu_seen(a.o, kernel);
    a.dq = cucpu_seen(a.dq, kernel);
    a.dk = cucpu_seen(a.dk, kernel);
    a.dv = cucpu_seen(a.dv, kernel);
    a.lse = (float *)cucpu_seen(a.lse, kernel);
    a.delta = (float *)cucpu_seen(a.delta, kernel);
}
#endif

/* Where sequence `s` lies. */
struct dt_cu_seq {
    int64_t q0, k0;
    int lq, lk;
};
__device__ __forceinline__ struct dt_cu_seq dt_cu_seq_of(const struct dt_cuda_attention &a, int s)
{
    struct dt_cu_seq p;

    p.q0 = a.cu_q[s];
    p.k0 = a.cu_k[s];
    p.lq = (int)(a.cu_q[s + 1] - p.q0);
    p.lk = (int)(a.cu_k[s + 1] - p.k0);
    return p;
}

/* Calls fn for launches of at most 65,535 sequences; `tiles` of the longest. */
template <typename F>
static void dt_cuda_by_seq(struct dt_cuda_attention a, int64_t n_seq, int64_t tiles, int heads,
                           F fn)
{
    for (int64_t s = 0; s < n_seq && tiles > 0; s += 65535) {
        a.seq = (int)s;
        fn(a, dim3((unsigned)tiles, (unsigned)heads,
                   (unsigned)(n_seq - s < 65535 ? n_seq - s : 65535)));
    }
}

/* Does it do this?  16-byte accesses, bf16, and a card whose blocks have the shared memory for it (those of compute
 * capability 8.6 and 8.9 have less than the others). */
bool dt_cuda_mma_can(const struct dt_device_queue *q, const struct dt_kernel_attention *a,
                     const struct dt_cuda_attention *c, bool backward);
void dt_cuda_mma_fwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                     const struct dt_cuda_attention *c);
/* delta is there */
void dt_cuda_mma_bwd(struct dt_device_queue *q, const struct dt_kernel_attention *a,
                     const struct dt_cuda_attention *c);

#endif
