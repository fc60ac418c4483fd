/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is used of NCCL, which is loaded at run time: this program is built where there is no NCCL, and runs where
 * there is no card.  The declarations are nccl.h's, as of version 2.18 and, where it says so, later ones;
 * tests/test_nccl_abi.c compares them with those of the NCCL that configure finds. */
#ifndef DT_COMM_NCCL_H
#define DT_COMM_NCCL_H

#include "base/status.h"
#include <limits.h>
#include <stddef.h>

struct dt_nccl_comm; /* ncclComm */
struct dt_nccl_id {  /* ncclUniqueId */
    char internal[128];
};
enum {
    DT_NCCL_SUCCESS = 0,
    DT_NCCL_SYSTEM_ERROR = 2,
    DT_NCCL_REMOTE_ERROR = 6,
    DT_NCCL_IN_PROGRESS = 7
};
enum { DT_NCCL_SUM = 0, DT_NCCL_MAX = 2 };
enum {
    DT_NCCL_INT8 = 0,
    DT_NCCL_UINT64 = 5,
    DT_NCCL_FLOAT32 = 7,
    DT_NCCL_FLOAT64 = 8,
    DT_NCCL_BFLOAT16 = 9
};
/* ncclConfig_t as of version 2.18, and what stands in its padding since 2.27; the rest is for 2.28 and later. */
struct dt_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer;
    int nvlink_centric_sched;
};
enum { DT_NCCL_UNDEFINED = INT_MIN };
enum { DT_NCCL_VERSION_2_18 = 21800, DT_NCCL_VERSION_2_22 = 22200, DT_NCCL_VERSION_2_28 = 22800 };
enum { DT_NCCL_CTA_POLICY_ZERO = 2, DT_NCCL_WIN_COLL_SYMMETRIC = 1 };
#define DT_NCCL_MAGIC 0xcafebeefu
/* Nothing said of what may be left to the library, in the form that `version` knows. */
struct dt_nccl_config dt_nccl_config(int version);

/* Streams are cudaStream_t; what returns int returns ncclResult_t. */
#define DT_NCCL_FUNCTIONS(X)                                                                       \
    X(int, GetVersion, (int *version))                                                             \
    X(int, GetUniqueId, (struct dt_nccl_id * id))                                                  \
    X(int, CommInitRankConfig,                                                                     \
      (struct dt_nccl_comm * *comm, int ranks, struct dt_nccl_id id, int rank,                     \
       struct dt_nccl_config *config))                                                             \
    X(int, CommFinalize, (struct dt_nccl_comm * comm))                                             \
    X(int, CommDestroy, (struct dt_nccl_comm * comm))                                              \
    X(int, CommAbort, (struct dt_nccl_comm * comm))                                                \
    X(int, CommGetAsyncError, (struct dt_nccl_comm * comm, int *error))                            \
    X(const char *, GetErrorString, (int result))                                                  \
    X(const char *, GetLastError, (struct dt_nccl_comm * comm))                                    \
    X(int, GroupStart, (void))                                                                     \
    X(int, GroupEnd, (void))                                                                       \
    X(int, AllReduce,                                                                              \
      (const void *in, void *out, size_t n, int type, int op, struct dt_nccl_comm *comm,           \
       void *stream))                                                                              \
    X(int, Reduce,                                                                                 \
      (const void *in, void *out, size_t n, int type, int op, int root, struct dt_nccl_comm *comm, \
       void *stream))                                                                              \
    X(int, ReduceScatter,                                                                          \
      (const void *in, void *out, size_t n, int type, int op, struct dt_nccl_comm *comm,           \
       void *stream))                                                                              \
    X(int, AllGather,                                                                              \
      (const void *in, void *out, size_t n, int type, struct dt_nccl_comm *comm, void *stream))    \
    X(int, Broadcast,                                                                              \
      (const void *in, void *out, size_t n, int type, int root, struct dt_nccl_comm *comm,         \
       void *stream))                                                                              \
    X(int, Send,                                                                                   \
      (const void *in, size_t n, int type, int peer, struct dt_nccl_comm *comm, void *stream))     \
    X(int, Recv, (void *out, size_t n, int type, int peer, struct dt_nccl_comm *comm, void *stream))

/* What later versions have: buffers since 2.19, windows since 2.27.  NULL where they are missing. */
#define DT_NCCL_LATER_FUNCTIONS(X)                                                                 \
    X(int, MemAlloc, (void **p, size_t bytes))                                                     \
    X(int, MemFree, (void *p))                                                                     \
    X(int, CommRegister, (struct dt_nccl_comm *const comm, void *p, size_t bytes, void **handle))  \
    X(int, CommDeregister, (struct dt_nccl_comm *const comm, void *handle))                        \
    X(int, CommWindowRegister,                                                                     \
      (struct dt_nccl_comm * comm, void *p, size_t bytes, void **window, int flags))               \
    X(int, CommWindowDeregister, (struct dt_nccl_comm * comm, void *window))

struct dt_nccl {
#define X(type, name, args) type(*name) args;
    DT_NCCL_FUNCTIONS(X)
    DT_NCCL_LATER_FUNCTIONS(X)
#undef X
    int version; /* 22809 */
};

/* Loads it once: libnccl.so.2 from the folders of DISTTRAIN_CUDA_LIBS (separated by ':'), else where the system has
 * it.  NULL with `err` filled. */
/* What NCCL is to read from the environment, where the user has not said it.  Before there are threads: the environment
 * must not change while one of them reads it. */
void dt_nccl_environment(void);
/* The same, for the same bits in every run: before a communicator, and before a thread that reads the environment. */
void dt_nccl_deterministic(void);
const struct dt_nccl *dt_nccl_load(struct dt_error *err);

#endif
