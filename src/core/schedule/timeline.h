/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Timeline: when each op began and ended; the O(ops) topological evaluation; summaries. */
#ifndef DT_CORE_SCHEDULE_TIMELINE_H
#define DT_CORE_SCHEDULE_TIMELINE_H

#include "core/schedule/program.h"
#include "core/schedule/schedule.h"

enum dt_timeline_wait { DT_WAIT_NONE, DT_WAIT_DEPENDENCY, DT_WAIT_LINK, DT_WAIT_GROUP, DT_WAIT_N };

struct dt_timeline {
    uint32_t n_ops;
    int64_t *begin_ns, *end_ns; /* [n_ops] */
    int64_t makespan_ns;        /* end of the last op */
    int64_t origin_ns;          /* of an executed one: what all count from, on rank 0's clock */
    uint32_t cap;               /* ops that the arrays have room for */
};
/* Caller-owned storage is reused when large enough: start from a zeroed struct. */
enum dt_status dt_timeline_reserve(struct dt_timeline *t, uint32_t n_ops, struct dt_error *err);
void dt_timeline_free(struct dt_timeline *t);

/* Topological order computed once per program (program order per lane is not global order). */
/* What the evaluation reads, in topological order; a group is one record. */
struct dt_timeline_topo_rec {
    uint32_t op; /* op or group index, kind of record in the top two bits (timeline.c) */
    uint32_t dep[3];
};
struct dt_timeline_topo {
    uint32_t *order; /* [n_ops] every op after all it depends on; group members adjacent */
    uint32_t n;
    uint32_t n_rec;
    struct dt_timeline_topo_rec *rec;
};
enum dt_status dt_timeline_topo_build(const struct dt_program *p, struct dt_error *err,
                                      struct dt_timeline_topo *out);
void dt_timeline_topo_free(struct dt_timeline_topo *t);
/* Pure function of (program, durations): the no-contention timeline. */
enum dt_status dt_timeline_eval(const struct dt_program *p, const struct dt_timeline_topo *topo,
                                const int64_t *dur_ns, struct dt_error *err,
                                struct dt_timeline *out);

/* The same in one walk that keeps no order, for a program that is evaluated once. */
enum dt_status dt_timeline_once(const struct dt_program *p, const int64_t *dur_ns,
                                struct dt_error *err, struct dt_timeline *out);
/* Its end alone, for a program that is asked for no more; `order`, if known, has every op behind all that it waits for. */
enum dt_status dt_timeline_makespan(const struct dt_program *p, const uint32_t *order,
                                    const int64_t *dur_ns, struct dt_error *err, int64_t *ns);

/* DT_ERR_RANGE for an iteration of DT_TIME_MAX_NS or longer. */
enum dt_status dt_timeline_check(int64_t makespan_ns, struct dt_error *err);

/* When the last forward, backward or weight gradient ended of the lanes that take part in the gradient norm: what optimizer
 * steps wait for from then on is communication.  0: there is none. */
int64_t dt_timeline_computed_ns(const struct dt_program *p, const struct dt_timeline *t);

struct dt_lane_summary {
    int64_t busy_ns, first_ns, last_ns, comm_wait_ns, dep_wait_ns;
    int64_t host_ns; /* of optimizer steps that the host does meanwhile */
};
/* `computed_ns` is that of the timeline. */
void dt_timeline_lane(const struct dt_program *p, const struct dt_timeline *t, int64_t computed_ns,
                      int lane, struct dt_lane_summary *out);
struct dt_timeline_summary {
    double iteration_s;
    double bubble_fraction; /* 1 - sum(busy compute * gpus) / (gpus_used * makespan) */
    /* mean over GPUs of the time in which compute waited for a transfer or collective, and no other lane of the GPU computed */
    double exposed_comm_s;
    double utilisation[DT_MAX_MODULES]; /* busy compute share per module */
    double sync_s, gather_s,
        step_s; /* exposed tail: from last backward to the end, by cause (critical lane) */
};
/* DT_ERR_NOMEM */
enum dt_status dt_timeline_summarise(const struct dt_program *p, const struct dt_timeline *t,
                                     struct dt_error *err, struct dt_timeline_summary *out);

#endif
