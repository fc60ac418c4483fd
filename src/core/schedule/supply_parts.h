/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside supply*.c: what an image, a text or a clip costs (supply.c), the queues that make them (supply_stream.c), and whether
 * these have settled (supply_steady.c). */
#ifndef DT_CORE_SCHEDULE_SUPPLY_PARTS_H
#define DT_CORE_SCHEDULE_SUPPLY_PARTS_H

#include "core/schedule/supply.h"

struct dt_sched_part { /* of a sample, for a module */
    double core_s, bytes;
};
typedef void dt_sched_part_fn(void *ctx, struct dt_sched_part part);

/* Calls fn with each image, clip or text of sample i for the module; `item`: only that one of its items, DT_NONE: all. */
void dt_sched_supply_parts(const struct dt_sched_supply *s, const struct dt_module *m,
                           const struct dt_samples *set, int64_t i, uint32_t item,
                           dt_sched_part_fn *fn, void *ctx);

/* ---- the stream ---- */

enum { DT_SCHED_STREAM_RING = DT_SCHED_SUPPLY_PREFETCH_MAX + 1 };

struct dt_sched_piece { /* an image, a clip or a text of a FETCH */
    int64_t need_ns;
    uint32_t op, at; /* at: its place within the op */
    int64_t core_ns;
    double bytes;
    int node, group; /* that fetches it; whose cores make it */
};
struct dt_sched_core {
    int64_t ns; /* when it is free */
    int core;
};
struct dt_sched_sending { /* a piece on its way */
    int64_t made_ns;
    size_t k;
};
struct dt_sched_settling { /* see supply_steady.c */
    int64_t *mark;      /* [cores, links, begins] where the window began; NULL: no pass has ended */
    int passes, window; /* since then, and how many there are to be */
    int64_t ahead;      /* windows that the next drift is carried on by */
    bool there,
        calm; /* since then: no input was waited for; all passes took as long as the first */
    uint64_t times, first_times; /* of the pass under way, and of the window's first */
    int64_t longest_ns;          /* iteration since then */
};
struct dt_sched_stream {
    const struct dt_sched_supply *s;
    const struct dt_model *m;
    const struct dt_samples *set;
    int gpus_per_node, cores_each;
    /* what goes on from batch to batch */
    int n_nodes, n_groups;                  /* that fetch; with cores */
    struct dt_sched_core *core;             /* [n_groups * cores_each], a heap for each group */
    int64_t *link_ns;                       /* [n_nodes] when the link into the node is free */
    int64_t begin_ns[DT_SCHED_STREAM_RING]; /* of iteration t at t % (prefetch + 1) */
    int64_t now_ns, t;                      /* when the iteration at hand begins, and its number */
    struct dt_sched_settling settling;
    /* the batch at hand */
    const struct dt_program *p;
    struct dt_sched_piece *piece;
    size_t n, cap;
    struct dt_sched_sending *sent; /* [n] */
    size_t cap_sent;
    bool oom;
    struct dt_sched_piece proto; /* of the FETCH at hand */
};

static inline bool dt_sched_stream_sends(const struct dt_sched_stream *x)
{
    return x->s->mode == DT_SCHED_SUPPLY_DISAGGREGATED;
}
static inline int64_t dt_sched_stream_ring(const struct dt_sched_stream *x)
{
    return x->s->prefetch + 1;
}
/* When the batch at hand may be begun; those of the run's first iterations may all begin with it. */
static inline int64_t dt_sched_stream_start(const struct dt_sched_stream *x)
{
    int64_t first = x->t - x->s->prefetch;

    if (x->s->prefetch == 0)
        return x->now_ns;
    return first < 0 ? 0 : x->begin_ns[first % dt_sched_stream_ring(x)];
}
/* An iteration has been run. */
void dt_sched_stream_note(struct dt_sched_stream *x, int64_t iteration_ns);

#endif
