/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The host link: OFFLOAD and RELOAD of guests' parameters (model/plan_offload.c), what waits for them, and who has the link.
 *
 *   guest's lane   GATHER   F F F                                        B B B ... STEP
 *   host link         \-> OFFLOAD                              RELOAD -/
 *                             \                               /
 *   host's lane                L0 L1 [L2] L0' L3 L1' L2' [L3'] ...
 *                                     |                    `- the backward that leaves so few in flight again
 *                                     `- the first forward that makes more in flight than there may be beside the parameters
 *                                        (dt_memory_beside_guests)
 *
 * A GPU has one link, which carries one copy at a time in a direction: OFFLOADs of guests on the same GPUs are one behind the other,
 * and so are RELOADs, in the order of lanes, those that no backward waits for last.  (A RELOAD is behind all OFFLOADs on its GPUs
 * as it is: it waits for a backward of the host that follows [L2].)  Optimizers that step on the host copy both ways; all that is
 * trained has come back when they begin, and they wait for the rest.
 *
 * Which of the host's ops these are is counted in the first pass. */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_LINK_H
#define DT_CORE_SCHEDULE_SCHEDULE_LINK_H

#include "core/schedule/schedule_impl.h"

struct dt_sched_link {        /* of a lane */
    uint32_t offload, reload; /* of a guest whose parameters are offloaded: its ops; else DT_NONE */
    bool unasked;             /* no backward waits for its RELOAD */
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
/* The k-th lane that shares GPUs with this one, of the guests of its module that offload parameters, of its module's hosts, or of
 * all other modules that offload parameters; DT_NONE: there are no more. */
enum dt_sched_link_who { DT_SCHED_LINK_GUESTS, DT_SCHED_LINK_HOSTS, DT_SCHED_LINK_SHARERS };
uint32_t dt_sched_link_beside(const struct dt_sched *s, const struct dt_lane *l,
                              enum dt_sched_link_who who, uint32_t k);
/* Of two guests on the same GPUs: does the first one have the link before the other, for its RELOAD? */
bool dt_sched_link_reloads_first(const struct dt_sched *s, uint32_t lane, uint32_t other);
/* Bytes per GPU of the parameters of a lane, of those trained or of all. */
uint64_t dt_sched_link_bytes(const struct dt_sched *s, const struct dt_sched_module *m, int stage,
                             bool all);

#endif
