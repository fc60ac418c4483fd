/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the files that find the makespan of a plan without its program share. */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_DIRECT_IMPL_H
#define DT_CORE_SCHEDULE_SCHEDULE_DIRECT_IMPL_H

#include "core/schedule/schedule_fill.h"
#include "core/schedule/schedule_times.h"

struct dt_sched_message {
    int64_t begin_ns, end_ns; /* end: negative: not sent; -2 - L: lane L waits for it */
};

struct dt_sched_round {
    int64_t ready_ns; /* the last of those that have come */
    int64_t end_ns;   /* negative: not all have */
    uint32_t come;
};
struct dt_sched_stage_state {
    int64_t head_ns;              /* when the gathers before everything else have ended */
    struct dt_sched_round *round; /* its collectives of each microbatch; NULL: none */
    int64_t end_ns;               /* of the last collective so far */
    uint32_t waiting;             /* the first lane that waits for a round, DT_NONE */
};
struct dt_sched_module_state {
    struct dt_sched_message *f,
        *b; /* [n_mb * n_v]: what leaves a forward, a backward for its neighbour; see dt_sched_at() */
    int64_t (**ns)[DT_CODE_WEIGHT + 1]; /* [v][id of work][kind of code] */
    int64_t *gather_ns, *sync_ns;       /* [v * DT_PARTS_MAX + bucket]: how long they take ... */
    int64_t *gathered_ns;               /* ... and when those before everything else end */
    struct dt_sched_stage_state *stage;
    int64_t
        *grads_ns; /* [(replica * n_v + v) * DT_PARTS_MAX + part]: when gradients are complete */
};
struct dt_sched_sent { /* the last message of its kind */
    uint64_t bytes;    /* 0: none yet */
    int64_t ns;
    uint32_t to; /* lane */
};
struct dt_sched_lane_state {
    int64_t at_ns[DT_RES_N];
    uint32_t next;                /* of its order */
    int part;                     /* of that op; those before have ended */
    bool forwards;                /* a forward has begun */
    struct dt_sched_sent sent[2]; /* by forwards, by backwards: most often the next is like it */
    /* collectives of each microbatch; the places are those in struct fill (schedule_fill.c), DT_NONE where there is none */
    uint32_t n_rounds, n_parts, gathered[2], unreduced[2];
    uint32_t also_waits; /* the next lane that waits for a round of this stage */
    struct dt_sched_fill_ahead ahead;
};
struct dt_sched_direct {
    struct dt_sched *s;
    struct dt_sched_times t;
    struct dt_program p; /* lanes and groups alone */
    struct dt_sched_module_state m[DT_MAX_MODULES];
    struct dt_sched_message *forward, *grad; /* [n_transfers] */
    struct dt_sched_lane_state *lane;
    uint32_t *stack, n_stack; /* lanes that can go on */
    uint32_t done;            /* lanes that have ended their orders */
    uint64_t sum;             /* of all durations, as schedule_times.h bounds it */
    bool late;                /* some time is too long to be simulated */
};

static inline int64_t dt_sched_later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* What is no time, or too long, makes the whole `late`. */
static inline int64_t dt_sched_direct_ns(struct dt_sched_direct *d, double ns)
{
    int64_t whole = dt_sched_times_ns(&d->t, 0, ns);

    d->late |= d->t.late != DT_NONE;
    return whole;
}

/* Runs all lanes to the ends of their orders; false: lanes wait for each other, or it is late. */
bool dt_sched_direct_walk(struct dt_sched_direct *d);

#endif
