/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The host link: OFFLOAD and RELOAD of guests' parameters (model/plan_offload.c), and what waits for them.
 *
 *   guest's lane   GATHER   F F F                                        B B B ... STEP
 *   host link         \-> OFFLOAD                              RELOAD -/
 *                             \                               /
 *   host's lane                L0 L1 [L2] L0' L3 L1' L2' [L3'] ...
 *                                     |                    `- the backward that leaves so few in flight again
 *                                     `- the first forward that makes more in flight than there may be beside the parameters
 *                                        (dt_memory_beside_guests)
 *
 * Which of the host's ops these are is counted in the first pass. */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_LINK_H
#define DT_CORE_SCHEDULE_SCHEDULE_LINK_H

#include "core/schedule/schedule_impl.h"

struct dt_sched_link { /* of a lane */
    uint32_t offload;  /* of a guest whose parameters are offloaded: its op; else DT_NONE */
    /* of a host of such guests: the entry of its order that begins to hold more than there may be beside them, and the last op
     * before it holds no more again; DT_NONE: it never does */
    uint32_t full, drained;
    uint32_t held, most; /* while it is counted */
};

/* Room for all lanes, where any module offloads parameters (else s->link stays NULL); -1: out of memory. */
int dt_sched_link_init(struct dt_sched *s);
/* A lane's entries are counted: of a host of such guests how much it holds with entry i, whose last op is `end`. */
void dt_sched_link_begin(const struct dt_sched *s, const struct dt_sched_module *m, int replica,
                         int stage);
void dt_sched_link_count(const struct dt_sched *s, const struct dt_sched_module *m, int replica,
                         int stage, uint32_t i, uint32_t end);
/* The k-th lane that shares GPUs with this one, of the guests that offload parameters (`guests`) or of their hosts; DT_NONE: there
 * are no more. */
uint32_t dt_sched_link_beside(const struct dt_sched *s, const struct dt_lane *l, bool guests,
                              uint32_t k);
/* Bytes per GPU of the parameters of a lane, of those trained or of all. */
uint64_t dt_sched_link_bytes(const struct dt_sched *s, const struct dt_sched_module *m, int stage,
                             bool all);

#endif
