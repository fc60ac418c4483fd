/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The engine's view of a program (dependency counters and successor lists, built once per program)
 * and the state of a run. */
#ifndef DT_SIM_ENGINE_INTERNAL_H
#define DT_SIM_ENGINE_INTERNAL_H

#include "sim/engine.h"
#include "sim/queue.h"

enum dt_engine_class {
    ENGINE_PLAIN, /* begins when ready, lasts its duration */
    ENGINE_SEND,  /* the same, or a latency and then a flow */
    ENGINE_RECV,  /* ends with its last dependency, its SEND among them */
    ENGINE_GROUP, /* begins when the whole group is ready */
};

struct dt_engine_node {  /* 32 bytes: all that the loop touches of an op, two to a cache line */
    int64_t begin_ns;    /* latest end, so far, of what it waits for; then its begin */
    int64_t end_ns;      /* its duration; once it has ended, its end */
    uint32_t succ_first; /* successors: succ[succ_first .. next node's succ_first) */
    uint32_t need;       /* dependencies that have not ended */
    uint32_t need_all : 18, class : 2;
    /* SEND: index into alpha_ns[]; 0 = it takes its duration and nothing else */
    uint32_t alpha : 12;
    uint32_t peer; /* RECV: its SEND; SEND: index into sends[]; group: the group's index */
};

enum { ENGINE_ALPHAS = 4096 }; /* the last one: more are distinct, ask the durations */

struct dt_engine_send { /* 32 bytes: what the network asks of a SEND */
    double bytes;
    uint32_t src, dst; /* lanes; dst DT_NONE when nobody receives */
    uint32_t link[2];  /* its path when `pair`, ... */
    uint16_t share[2]; /* ... of weights 1/share */
    bool pair;
};

/* Lanes that nothing ties together but collectives (engine_parts.c): neither transfers nor a node's
 * ports and NICs. */
struct dt_engine_parts {
    uint32_t n;        /* 0: not known to come apart */
    uint32_t *first;   /* [n + 1] */
    uint32_t *lanes;   /* part k: lanes[first[k] .. first[k + 1]) */
    uint32_t *of_lane; /* [n_lanes] */
    uint32_t *wide;    /* groups with members in several parts ... */
    int64_t *wide_at;  /* ... each one's begin, at the earliest; -1: not known */
    uint32_t *wide_of; /* [n_groups] index into wide[]; DT_NONE: all members in one part */
    uint32_t n_wide;
    int64_t makespan_ns; /* a lower bound */
    uint32_t *at[2];     /* window: where each part's events and flows begin */
    size_t at_cap[2];
    size_t first_cap, lanes_cap, of_lane_cap, wide_cap, wide_at_cap, wide_of_cap;
};

struct dt_engine {
    uint64_t fingerprint; /* of the program that the arrays below were built from; 0 = none */
    uint32_t n_ops, n_groups;
    struct dt_engine_node *node; /* [n_ops + 1] */
    size_t node_cap;
    struct dt_engine_send *sends; /* [n_sends] in program order */
    uint32_t n_sends;
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
    struct dt_sim_event *events; /* the queue's storage: an op has at most one event at a time */
    size_t events_cap;
    uint32_t *ended; /* ops that ended at this instant and whose successors are not told yet */
    size_t ended_cap;
    struct dt_engine_parts parts;
    struct dt_sim_event *parked; /* window: events of all parts, by part */
    size_t parked_cap;
    /* window: flows in flight, by part; those that outlast it */
    struct dt_network_finish *flows[2];
    size_t flows_cap[2];
    bool tangled;    /* ops wait for ops of other lanes that are no SENDs */
    bool in_windows; /* wanted */
    bool remembers;  /* the program that it was prepared for */
    uint64_t n_events;
    uint32_t n_windows; /* of the last run */
};

struct dt_engine_run { /* one dt_engine_run */
    struct dt_engine *e;
    const struct dt_program *p;
    struct dt_network *net;
    const struct dt_sim_noise *noise;
    const int64_t *alpha_ns; /* per op */
    struct dt_sim_queue queue;
    struct dt_engine_node *node;
    int64_t last;     /* latest end so far */
    int64_t now_ns;   /* of the last event */
    int64_t until_ns; /* events before this one are taken */
    uint64_t events;
    uint32_t n_ended, done;
    uint32_t wide_open; /* wide groups that move bytes now */
    bool nomem, early;  /* early: a wide group began before its bound */
};

/* Makes the arrays fit the program; does nothing when they already do. */
enum dt_status dt_engine_prepare(struct dt_engine *e, const struct dt_program *p,
                                 struct dt_error *err);
/* Room for flows, so that none allocates, and the routes that hold for every transfer. */
enum dt_status dt_engine_reserve_network(struct dt_engine *e, const struct dt_program *p,
                                         struct dt_network *net, struct dt_error *err);
/* Everything as before the first op, and what this run's network (NULL: none) and latencies mean for
 * the SENDs. */
enum dt_status dt_engine_reset(struct dt_engine *e, const struct dt_program *p,
                               const struct dt_durations *dur, const struct dt_network *net,
                               struct dt_error *err);
static inline void dt_engine_reset_op(struct dt_engine *e, const struct dt_durations *dur,
                                      uint32_t i)
{
    struct dt_engine_node *n = &e->node[i];

    n->begin_ns = 0;
    n->end_ns = dur->ns[i];
    n->need = n->need_all;
}

/* Does the group move bytes between nodes? */
bool dt_engine_group_flows(const struct dt_engine_run *r, uint32_t g, int64_t ns);
void dt_engine_ring_start(struct dt_engine_run *r, uint32_t g, int64_t now);

/* Finds the program's parts, and the groups that span several. */
enum dt_status dt_engine_part(struct dt_engine *e, const struct dt_program *p,
                              const struct dt_network *net, struct dt_error *err);
void dt_engine_parts_free(struct dt_engine_parts *s);

/* engine_window.c: runs each part by itself up to the earliest instant at which a wide group can
 * begin, if that is some way off. */
void dt_engine_window(struct dt_engine_run *r, void (*advance)(struct dt_engine_run *));

#endif
