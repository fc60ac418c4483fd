/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What src/comm/nccl.h declares is what the nccl.h that configure has found declares: it compiles. */
#include "comm/nccl.h"

#include <nccl.h>
#include <stdio.h>

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a " is not " #b)
SAME(DT_NCCL_SUCCESS, ncclSuccess);
SAME(DT_NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(DT_NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(DT_NCCL_IN_PROGRESS, ncclInProgress);
SAME(DT_NCCL_SUM, ncclSum);
SAME(DT_NCCL_MAX, ncclMax);
SAME(DT_NCCL_INT8, ncclInt8);
SAME(DT_NCCL_UINT64, ncclUint64);
SAME(DT_NCCL_FLOAT32, ncclFloat32);
SAME(DT_NCCL_FLOAT64, ncclFloat64);
SAME(DT_NCCL_BFLOAT16, ncclBfloat16);
SAME(DT_NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(DT_NCCL_VERSION_2_18, NCCL_VERSION(2, 18, 0));
SAME(sizeof(struct dt_nccl_id), sizeof(ncclUniqueId));
#define AT(mine, theirs) SAME(offsetof(struct dt_nccl_config, mine), offsetof(ncclConfig_t, theirs))
AT(size, size);
AT(magic, magic);
AT(version, version);
AT(blocking, blocking);
AT(cga_cluster_size, cgaClusterSize);
AT(min_ctas, minCTAs);
AT(max_ctas, maxCTAs);
AT(net_name, netName);
AT(split_share, splitShare);
#if NCCL_VERSION_CODE >= 22700
AT(traffic_class, trafficClass);
SAME(DT_NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
#endif
#if NCCL_VERSION_CODE >= 22800
SAME(DT_NCCL_VERSION_2_28, NCCL_VERSION(2, 28, 0));
SAME(DT_NCCL_CTA_POLICY_ZERO, NCCL_CTA_POLICY_ZERO);
AT(comm_name, commName);
AT(collnet_enable, collnetEnable);
AT(cta_policy, CTAPolicy);
AT(shrink_share, shrinkShare);
AT(nvls_ctas, nvlsCTAs);
AT(channels_per_net_peer, nChannelsPerNetPeer);
AT(nvlink_centric_sched, nvlinkCentricSched);
_Static_assert(sizeof(struct dt_nccl_config) <= sizeof(ncclConfig_t), "more than there is");
#endif
_Static_assert(offsetof(struct dt_nccl_config, comm_name) <= sizeof(ncclConfig_t),
               "more than there is");

/* Arguments, in the types of nccl.h: enums are ints, handles and streams pointers. */
#define TAKES(name, type)                                                                          \
    _Static_assert(__builtin_types_compatible_p(__typeof__(nccl##name), type),                     \
                   "arguments of nccl" #name)
typedef ncclResult_t of_comm(ncclComm_t);
TAKES(GetVersion, ncclResult_t(int *));
TAKES(GetUniqueId, ncclResult_t(ncclUniqueId *));
TAKES(CommInitRankConfig, ncclResult_t(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));
TAKES(CommFinalize, of_comm);
TAKES(CommDestroy, of_comm);
TAKES(CommAbort, of_comm);
TAKES(CommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t *));
TAKES(GetErrorString, const char *(ncclResult_t));
TAKES(GetLastError, const char *(ncclComm_t));
TAKES(GroupStart, ncclResult_t(void));
TAKES(GroupEnd, ncclResult_t(void));
TAKES(AllReduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                              cudaStream_t));
TAKES(Reduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int,
                           ncclComm_t, cudaStream_t));
TAKES(ReduceScatter, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                                  ncclComm_t, cudaStream_t));
TAKES(AllGather,
      ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));
TAKES(Broadcast,
      ncclResult_t(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
TAKES(Send, ncclResult_t(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
TAKES(Recv, ncclResult_t(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));

#if NCCL_VERSION_CODE >= 21900
TAKES(MemAlloc, ncclResult_t(void **, size_t));
TAKES(MemFree, ncclResult_t(void *));
TAKES(CommRegister, ncclResult_t(const ncclComm_t, void *, size_t, void **));
TAKES(CommDeregister, ncclResult_t(const ncclComm_t, void *));
#endif
#if NCCL_VERSION_CODE >= 22700
TAKES(CommWindowRegister, ncclResult_t(ncclComm_t, void *, size_t, ncclWindow_t *, int));
TAKES(CommWindowDeregister, ncclResult_t(ncclComm_t, ncclWindow_t));
#endif

int main(void)
{
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;

    if (theirs.magic != DT_NCCL_MAGIC) {
        printf("a configuration begins with %x\n", theirs.magic);
        return 1;
    }
    printf("nccl.h of version %d.%d\n", NCCL_MAJOR, NCCL_MINOR);
    return 0;
}
