/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the files that let lanes take turns share. */
#ifndef DT_CORE_SCHEDULE_SCHEDULE_TURNS_IMPL_H
#define DT_CORE_SCHEDULE_SCHEDULE_TURNS_IMPL_H

#include "core/schedule/program_partners.h"
#include "core/schedule/schedule_phases.h"
#include "core/schedule/schedule_turns.h"

enum dt_sched_turns_class { /* of an op */
                            DT_SCHED_TURNS_FREE, /* begins when it is ready: no compute, or that of a lane which shares no GPU */
                            DT_SCHED_TURNS_COMPUTE, /* waits for its turn */
                            DT_SCHED_TURNS_MEMBER   /* of a group, with which it begins and ends */
};

struct dt_sched_turns_node { /* an op */
    int64_t ns;              /* how long it takes */
    union {
        int64_t behind; /* from its begin to the end of the iteration on the longest path */
        int64_t
            ends; /* in a known order and in a pass into bubbles, which write over `behind`: when */
    };
    uint32_t pred_first; /* what it waits for: pred[pred_first .. the next node's), */
    uint32_t waits;      /* and how much of that has not ended */
    uint32_t succ_first; /* what waits for it: succ[succ_first .. the next node's) */
    uint32_t of;         /* CLASS << DT_SCHED_TURNS_SHIFT | lane or group */
};
#define DT_SCHED_TURNS_SHIFT 30
#define DT_SCHED_TURNS_MASK ((1U << DT_SCHED_TURNS_SHIFT) - 1)

struct dt_sched_turns_event { /* the end of an op, or of all ops of a group */
    int64_t ns;
    uint64_t op; /* or DT_SCHED_TURNS_GROUP and the group */
};
#define DT_SCHED_TURNS_GROUP (1U << 31)

struct dt_sched_turns_island {
    uint32_t first, n; /* its lanes: lanes_of[first .. first + n) */
    uint32_t gpus, free;
    uint32_t ready; /* lanes with an op that could begin */
    bool stirred;   /* something became ready or free */
};
struct dt_sched_turns_lane {
    uint32_t first_gpu, gpus; /* of those that count */
    uint32_t ready;           /* its compute op that could begin, or DT_NONE */
    uint32_t island;
    uint64_t age;   /* of that op, where the oldest is first; */
    int64_t behind; /* else what is behind it */
};
struct dt_sched_turns_gpu { /* all on which the same lanes lie */
    uint32_t last;          /* its last op, DT_NONE */
    uint32_t kept;          /* the look at its island in which it was kept for an op */
    bool busy;
    int64_t work_ns; /* of all ops on it, and of those that have not begun */
    int64_t left_ns;
    int64_t tail_ns; /* that passes at least behind the last of them */
};

struct dt_sched_turns_runs {
    struct dt_sched *s;
    const struct dt_program *p;
    struct dt_sched_turns_node *node;
    uint32_t *succ, *pred;
    struct dt_sched_turns_lane *lane;
    struct dt_sched_turns_island *island;
    struct dt_sched_turns_gpu *gpu;
    struct dt_sched_phases *phases;      /* NULL: no module has phases */
    struct dt_program_partners partners; /* ops that expert groups run together */
    uint32_t *lanes_of;
    uint32_t n_gpus, n_islands;
    int64_t chain_ns; /* of the longest chain of ops that wait for each other */
    /* a run */
    struct dt_sched_turns_rule rule;
    struct dt_sched_turns *turns;
    int64_t now;
    uint32_t *group_waits;             /* per group: members that are not ready */
    struct dt_sched_turns_event *heap; /* what is under way */
    bool hole;                         /* heap[0] was taken */
    uint32_t n_heap;
    uint32_t *over, n_over; /* ops that have ended, and what waits for them does not know yet */
    uint32_t *stir, n_stir; /* islands */
    uint32_t *choice;       /* lanes of an island */
    uint32_t looks;
    bool given_up;
};

/* Walks come to an op's neighbours soon, as lanes keep their orders, but go from lane to lane meanwhile: what lies n ops
 * behind *p, or before it, is asked for when *p is looked at.  It need not be there. */
#define DT_SCHED_TURNS_ASK(p, n)                                                                   \
    __builtin_prefetch((const void *)((uintptr_t)(p) + (uintptr_t)(n) * sizeof(*(p))))
enum { DT_SCHED_TURNS_AHEAD = 8 };

static inline enum dt_sched_turns_class dt_sched_turns_class_of(const struct dt_sched_turns_node *x)
{
    return (enum dt_sched_turns_class)(x->of >> DT_SCHED_TURNS_SHIFT);
}
static inline uint32_t dt_sched_turns_of(const struct dt_sched_turns_node *x)
{
    return x->of & DT_SCHED_TURNS_MASK;
}
static inline int64_t dt_sched_turns_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
