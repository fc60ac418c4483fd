/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The engine's view of a program: dependency counters and successor lists, built once per program.
 */
#ifndef DT_SIM_ENGINE_INTERNAL_H
#define DT_SIM_ENGINE_INTERNAL_H

#include "sim/engine.h"
#include "sim/queue.h"

enum engine_class {
    ENGINE_PLAIN, /* begins when ready, lasts its duration */
    ENGINE_SEND,  /* the same, or a latency and then a flow */
    ENGINE_RECV,  /* ends with its last dependency, its SEND among them */
    ENGINE_GROUP, /* begins when the whole group is ready */
};

struct engine_node {     /* 32 bytes: all that the loop touches of an op, two to a cache line */
    int64_t begin_ns;    /* latest end, so far, of what it waits for; then its begin */
    int64_t end_ns;      /* its duration; once it has ended, its end */
    uint32_t succ_first; /* successors: succ[succ_first .. next node's succ_first) */
    uint32_t need;       /* dependencies that have not ended */
    uint32_t need_all : 18, class : 2;
    uint32_t alpha : 12; /* SEND: index into alpha_ns[]; 0 = it takes its duration and nothing else */
    uint32_t peer; /* RECV: its SEND; SEND: index into sends[]; group: the group's index */
};

enum { ENGINE_ALPHAS = 4096 }; /* the last one: more are distinct, ask the durations */

struct engine_send { /* 32 bytes: what the network asks of a SEND */
    double bytes;
    uint32_t src, dst; /* lanes; dst DT_NONE when nobody receives */
    uint32_t link[2];  /* its path when `pair`, ... */
    uint16_t share[2]; /* ... of weights 1/share */
    bool pair;
};

struct dt_engine {
    uint64_t fingerprint; /* of the program that the arrays below were built from; 0 = none */
    uint32_t n_ops, n_groups;
    struct engine_node *node; /* [n_ops + 1] */
    size_t node_cap;
    struct engine_send *sends; /* in program order */
    size_t sends_cap;
    uint32_t *gpu_lane; /* scratch of dt_network_even */
    size_t gpu_lane_cap;
    int64_t alpha_ns[ENGINE_ALPHAS]; /* distinct latencies of SENDs, hashed; -1 = free */
    uint32_t *succ;
    size_t succ_cap;
    uint32_t *group_left; /* members of each group that are not ready */
    size_t group_cap;
    uint32_t *members; /* lanes of the group whose flow is being started */
    size_t members_cap;
    struct dt_event *events; /* the queue's storage: an op has at most one event at a time */
    size_t events_cap;
    uint32_t *ended; /* ops that ended at this instant and whose successors are not told yet */
    size_t ended_cap;
    uint64_t n_events;
};

/* Makes the arrays fit the program; does nothing when they already do. */
enum dt_status dt_engine_prepare(struct dt_engine *e, const struct dt_program *p,
                                 struct dt_error *err);

#endif
