/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Guests' work into the bubbles of a finished timeline.
 *
 * A run by a rule (schedule_turns.c) starts what is ready on a GPU that is free, and so also a guest's op that is longer than
 * the bubble and that holds up the host's next one.  Here ops are placed one by one instead, each as early as it can be in a
 * gap that is long enough on all of its GPUs, whatever comes behind the gap; the ones that must not wait go first.
 * Which these are the last timeline says: a pass from the end of the iteration to its begin places every op as late as it
 * can be, those first that end last in that timeline; then one from the begin to the end places every op as early as it can
 * be, those first that have to begin first by the late ones.  No pass makes the iteration longer than the one before: an op
 * always finds the place that it had there, or a better one.  (Forward-backward improvement of schedules with limited
 * resources: Li and Willis 1992, "justification" in Valls, Ballestin and Quintanilla 2005.)
 *
 * Lanes keep their own orders, so what they hold in flight stays as it is charged. */
#include "core/schedule/schedule_bubbles.h"

#include "core/schedule/schedule_turns_impl.h"

#include "base/heap.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 4, /* to the begin and back, at most; two bring nearly all */
    LARGE =
        50000, /* ops of a program from which on a second round is not worth its time: it brought at most 0.02 % */
    SMALL =
        4096 /* ops of a program for which other starts cost nothing; in the large ones of the presets they bring nothing */
};
#define LEAST_GAIN 5e-4 /* of the iteration, that bounds have to leave open */
#define ROUND_GAIN 1e-4 /* that a round has to bring for another one */

struct busy { /* of a GPU, without a gap */
    int64_t begin_ns, end_ns;
};
struct gpu {
    struct busy *busy; /* in the order of time */
    uint32_t n;
};
struct choice { /* an op that waits for nothing but GPUs */
    int64_t key;
    uint32_t op;
};
struct timed { /* an op by one of its times */
    int64_t ns;
    uint32_t op;
};
struct pack {
    struct dt_sched_turns_runs *g;
    bool
        back; /* from the end of the iteration, from which times are counted: `ends` of an op is when it begins */
    int64_t *key; /* [ops] for turns by the heap: `ends` of the pass before, the greatest first */
    int64_t *behind; /* [ops] of a small program: what passes write over */
    uint32_t *
        placed; /* [ops] of the pass from the begin, in the order in which they came; NULL: is not asked */
    int64_t *at_ns;  /* per group */
    struct gpu *gpu; /* [n_gpus] */
    struct choice *heap;
    struct timed *sorted; /* computation in the order of its turns, and as much room again */
    bool by_heap; /* turns come from the heap of what is ready, else they are sorted before */
    uint32_t n_compute, n_heap, n_placed;
    int64_t last_ns;
    bool instants; /* is there computation that takes no time? */
};

/* ---- gaps ---- */

static uint32_t busy_behind(const struct gpu *x, int64_t at)
{
    uint32_t i = x->n;

    while (i > 0 && x->busy[i - 1].end_ns > at)
        i--;
    return i;
}

/* The first time from `at` on at which a GPU is free for so long. */
static int64_t gap_ns(const struct gpu *x, int64_t at, int64_t ns)
{
    for (uint32_t i = busy_behind(x, at); i < x->n && x->busy[i].begin_ns < at + ns; i++)
        at = x->busy[i].end_ns;
    return at;
}

static void take(struct gpu *x, int64_t at, int64_t ns)
{
    uint32_t i = busy_behind(x, at);
    bool behind = i > 0 && x->busy[i - 1].end_ns == at;
    bool before = i < x->n && x->busy[i].begin_ns == at + ns;

    if (behind && before) {
        x->busy[i - 1].end_ns = x->busy[i].end_ns;
        memmove(&x->busy[i], &x->busy[i + 1], (--x->n - i) * sizeof(*x->busy));
    } else if (behind) {
        x->busy[i - 1].end_ns += ns;
    } else if (before) {
        x->busy[i].begin_ns = at;
    } else {
        memmove(&x->busy[i + 1], &x->busy[i], (x->n++ - i) * sizeof(*x->busy));
        x->busy[i] = (struct busy){at, at + ns};
    }
}

/* Computation that takes no time has its place in the order of its GPUs, too. */
static int64_t length_ns(const struct dt_sched_turns_node *x)
{
    return x->ns == 0 && dt_sched_turns_class_of(x) == DT_SCHED_TURNS_COMPUTE ? 1 : x->ns;
}

static int64_t place_on_gpus(struct pack *w, const struct dt_sched_turns_node *x, int64_t at)
{
    const struct dt_sched_turns_lane *l = &w->g->lane[dt_sched_turns_of(x)];
    int64_t ns = length_ns(x);
    uint32_t agreed = 0;

    for (uint32_t k = 0; agreed < l->gpus; k = (k + 1) % l->gpus) {
        int64_t gap = gap_ns(&w->gpu[l->first_gpu + k], at, ns);

        agreed = gap > at ? 1 : agreed + 1;
        at = gap;
    }
    for (uint32_t k = 0; k < l->gpus; k++)
        take(&w->gpu[l->first_gpu + k], at, ns);
    return at;
}

/* ---- sorting ---- */

#define DIGIT 12 /* bits of a time that are looked at together: three passes for 68 seconds */

/* Ops by one digit of their times, those with the same one as they came. */
static void sort_digit(const struct timed *x, uint32_t n, int shift, struct timed *out)
{
    uint32_t first[1 << DIGIT] = {0}, sum = 0;
    const uint64_t mask = (1 << DIGIT) - 1;

    for (uint32_t i = 0; i < n; i++)
        first[(uint64_t)x[i].ns >> shift & mask]++;
    for (uint32_t d = 0; d < 1 << DIGIT; d++) {
        uint32_t with_it = first[d];

        first[d] = sum;
        sum += with_it;
    }
    for (uint32_t i = 0; i < n; i++)
        out[first[(uint64_t)x[i].ns >> shift & mask]++] = x[i];
}

/* The earliest first, of times from 0 to last_ns; ops at the same one as they came.  `x` has room for twice as many. */
static void sort_times(struct timed *x, uint32_t n, int64_t last_ns)
{
    struct timed *from = x, *to = x + n;

    for (int shift = 0; shift < 63 && last_ns >> shift > 0; shift += DIGIT) {
        struct timed *sorted = to;

        sort_digit(from, n, shift, to);
        to = from;
        from = sorted;
    }
    if (from != x)
        memcpy(x, from, n * sizeof(*x));
}

/* The turns of a pass, where all computation takes time: by when it was in the last one, so that what it waits for comes before it
 * and no heap of what is ready is needed. */
static void sort_turns(struct pack *w)
{
    int64_t last = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->g->p->n_ops; i++) {
        const struct dt_sched_turns_node *x = &w->g->node[i];

        if (dt_sched_turns_class_of(x) == DT_SCHED_TURNS_COMPUTE) {
            w->sorted[n++] = (struct timed){x->ends, i};
            last = dt_sched_turns_most(last, x->ends);
        }
    }
    for (uint32_t k = 0; k < n; k++)
        w->sorted[k].ns = last - w->sorted[k].ns;
    sort_times(w->sorted, n, last);
}

/* ---- a pass ---- */

#define SOONER(ctx, a, b) ((a).key != (b).key ? (a).key > (b).key : (a).op < (b).op)
DT_HEAP(choices, const void *, struct choice, 4, SOONER, DT_HEAP_SET)

static void ends(struct pack *w, uint32_t i, int64_t at)
{
    w->g->node[i].ends = at;
    w->last_ns = dt_sched_turns_most(w->last_ns, at);
    if (!w->back && w->placed)
        w->placed[w->n_placed++] = i;
    w->g->over[w->g->n_over++] = i;
}

static void join(struct pack *w, uint32_t i, int64_t at)
{
    const struct dt_sched_turns_node *x = &w->g->node[i];
    uint32_t group = dt_sched_turns_of(x);
    const struct dt_group *gr = &w->g->p->groups[group];

    w->at_ns[group] = dt_sched_turns_most(w->at_ns[group], at);
    if (--w->g->group_waits[group] > 0)
        return;
    for (uint32_t k = 0; k < gr->n; k++)
        ends(w, w->g->p->group_ops[gr->first + k], w->at_ns[group] + x->ns);
}

/* All that op i waits for has its place; it ends at `ends`. */
static void make_ready(struct pack *w, uint32_t i)
{
    const struct dt_sched_turns_node *x = &w->g->node[i];

    switch (dt_sched_turns_class_of(x)) {
    case DT_SCHED_TURNS_COMPUTE:
        if (w->by_heap)
            choices_push(NULL, w->heap, w->n_heap++, (struct choice){w->key[i], i});
        break;
    case DT_SCHED_TURNS_MEMBER:
        join(w, i, x->ends);
        break;
    case DT_SCHED_TURNS_FREE:
        ends(w, i, x->ends + x->ns);
        break;
    }
}

static void tell_all(struct pack *w)
{
    struct dt_sched_turns_runs *g = w->g;

    while (g->n_over > 0) {
        uint32_t i = g->over[--g->n_over];
        const struct dt_sched_turns_node *x = &g->node[i];
        const uint32_t *next = w->back ? g->pred + x->pred_first : g->succ + x->succ_first;
        const uint32_t *last = w->back ? g->pred + x[1].pred_first : g->succ + x[1].succ_first;
        ptrdiff_t ahead = w->back ? -DT_SCHED_TURNS_AHEAD : DT_SCHED_TURNS_AHEAD;

        DT_SCHED_TURNS_ASK(x, ahead);
        DT_SCHED_TURNS_ASK(next, 2 * ahead);
        for (; next < last; next++) {
            struct dt_sched_turns_node *y = &g->node[*next];

            DT_SCHED_TURNS_ASK(y, ahead);
            y->ends = dt_sched_turns_most(y->ends, x->ends);
            if (--y->waits == 0)
                make_ready(w, *next);
        }
    }
}

static void rewind_all(struct pack *w)
{
    struct dt_sched_turns_runs *g = w->g;
    const uint32_t n = g->p->n_ops;

    w->last_ns = 0;
    w->n_heap = w->n_placed = g->n_over = 0;
    for (uint32_t k = 0; k < g->n_gpus; k++)
        w->gpu[k].n = 0;
    for (uint32_t k = 0; k < g->p->n_groups; k++) {
        g->group_waits[k] = g->p->groups[k].n;
        w->at_ns[k] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct dt_sched_turns_node *x = &g->node[i];

        x->waits = w->back ? x[1].succ_first - x->succ_first : x[1].pred_first - x->pred_first;
        x->ends = 0;
    }
}

static void place(struct pack *w, uint32_t i)
{
    const struct dt_sched_turns_node *x = &w->g->node[i];

    ends(w, i, place_on_gpus(w, x, x->ends) + length_ns(x));
    tell_all(w);
}

/* What is placed k ops from now, and the gap where that may be, are asked of memory now. */
static void ask(const struct pack *w, uint32_t k)
{
    const struct dt_sched_turns_node *x;
    const struct gpu *gpu;

    if (k + DT_SCHED_TURNS_AHEAD < w->n_compute)
        DT_SCHED_TURNS_ASK(&w->g->node[w->sorted[k + DT_SCHED_TURNS_AHEAD].op], 0);
    if (k >= w->n_compute)
        return;
    x = &w->g->node[w->sorted[k].op];
    gpu = &w->gpu[w->g->lane[dt_sched_turns_of(x)].first_gpu];
    DT_SCHED_TURNS_ASK(gpu->busy + gpu->n, 0);
    DT_SCHED_TURNS_ASK(gpu->busy + gpu->n, -1);
}

/* How long the iteration takes by it.  What is first is what has the greatest `ends`.  by_heap: these are no times of a
 * pass, or some computation takes no time. */
static int64_t pass(struct pack *w, bool back, bool by_heap)
{
    struct dt_sched_turns_runs *g = w->g;

    w->back = back;
    w->by_heap = by_heap;
    if (!by_heap)
        sort_turns(w);
    for (uint32_t i = 0; by_heap && i < g->p->n_ops; i++)
        w->key[i] = g->node[i].ends;
    rewind_all(w);
    for (uint32_t i = 0; i < g->p->n_ops; i++)
        if (back ? g->node[i].succ_first == g->node[i + 1].succ_first
                 : g->node[i].pred_first == g->node[i + 1].pred_first)
            make_ready(w, i);
    tell_all(w);
    for (uint32_t k = 0; !by_heap && k < w->n_compute; k++) {
        ask(w, k + DT_SCHED_TURNS_AHEAD);
        place(w, w->sorted[k].op);
    }
    while (w->n_heap > 0)
        place(w, choices_pop(NULL, w->heap, w->n_heap--).op);
    return w->last_ns;
}

/* ---- all of them ---- */

/* What passes by the heap need. */
static int heap_init(struct pack *w)
{
    struct dt_arena *a = &w->g->s->arena;
    const uint32_t n = w->g->p->n_ops;

    if (n > SMALL && !w->instants)
        return 0;
    w->heap = dt_arena_alloc_raw(a, (size_t)w->n_compute + 1, sizeof(*w->heap));
    w->key = dt_arena_alloc_raw(a, (size_t)n + 1, sizeof(*w->key));
    w->behind = dt_arena_alloc_raw(a, (size_t)n + 1, sizeof(*w->behind));
    if (!w->heap || !w->key || !w->behind)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        w->behind[i] = w->g->node[i].behind;
    return 0;
}

static int pack_init(struct pack *w, struct dt_sched_turns_runs *g)
{
    struct dt_arena *a = &g->s->arena;
    const struct dt_program *p = g->p;
    size_t all = 0;
    struct busy *busy;

    *w = (struct pack){.g = g};
    w->at_ns = DT_ARENA_NEW(a, int64_t, (size_t)p->n_groups + 1);
    w->gpu = DT_ARENA_NEW(a, struct gpu, (size_t)g->n_gpus + 1);
    if (!w->at_ns || !w->gpu)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (dt_sched_turns_class_of(&g->node[i]) == DT_SCHED_TURNS_COMPUTE) {
            const struct dt_sched_turns_lane *l = &g->lane[dt_sched_turns_of(&g->node[i])];

            for (uint32_t k = l->first_gpu; k < l->first_gpu + l->gpus; k++)
                w->gpu[k].n++;
            all += l->gpus;
            w->n_compute++;
            w->instants |= g->node[i].ns == 0;
        }
    busy = dt_arena_alloc_raw(a, all + 1, sizeof(*busy));
    w->sorted = dt_arena_alloc_raw(a, 2 * (size_t)w->n_compute + 1, sizeof(*w->sorted));
    if (!busy || !w->sorted || heap_init(w) != 0)
        return -1;
    for (uint32_t k = 0; k < g->n_gpus; k++) {
        w->gpu[k].busy = busy;
        busy += w->gpu[k].n;
    }
    return 0;
}

/* ---- the order of an iteration ---- */

/* The ops of the pass from the begin as they begin; members of a group side by side, as they were placed. */
static enum dt_status write_order(const struct pack *w, struct dt_error *err, uint32_t *order)
{
    const uint32_t n = w->g->p->n_ops;
    struct timed *x = dt_malloc(2 * ((size_t)n + 1) * sizeof(*x));

    if (!x)
        return dt_error_nomem(err, "bubbles of a program");
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = w->placed[k];

        x[k] = (struct timed){w->g->node[i].ends - length_ns(&w->g->node[i]), i};
    }
    sort_times(x, n, w->last_ns);
    for (uint32_t k = 0; k < n; k++)
        order[k] = x[k].op;
    dt_free(x);
    return DT_OK;
}

void dt_sched_bubbles_bounds(const struct dt_sched_turns_runs *g, struct dt_sched_bubbles *out)
{
    out->chain_ns = g->chain_ns;
    out->work_ns = 0;
    for (uint32_t k = 0; k < g->n_gpus; k++)
        if (g->gpu[k].work_ns > 0)
            out->work_ns = dt_sched_turns_most(out->work_ns, g->gpu[k].work_ns + g->gpu[k].tail_ns);
}

bool dt_sched_bubbles_matter(const struct dt_sched_turns_runs *g, const struct dt_sched_bubbles *x)
{
    int64_t least = dt_sched_turns_most(x->chain_ns, x->work_ns);

    return !g->phases && !g->partners.any &&
           (double)(x->rules_ns - least) >= LEAST_GAIN * (double)x->rules_ns;
}

struct found { /* the shortest of all passes from the begin */
    int64_t ns;
    uint32_t *order; /* the caller's; where there is `any`; NULL: only the time is asked */
    bool any;
};

/* Keys of a first pass from the begin: what is behind an op, and with `hosts` theirs before guests' of all. */
static void key_by_behind(const struct pack *w, bool hosts)
{
    struct dt_sched_turns_runs *g = w->g;
    int64_t first[DT_MAX_MODULES];

    for (int m = 0; m < g->s->n_modules; m++)
        first[m] = hosts && dt_plan_host(g->s->plan, m) == m ? INT64_MAX / 2 : 0;
    for (uint32_t i = 0; i < g->p->n_ops; i++)
        g->node[i].ends = w->behind[i] + first[g->p->ops[i].module];
}

/* Rounds from the ops' times, as long as they bring more than a little.  Where a later one brings nothing on its way back, it
 * hardly ever does on its way forth. */
static enum dt_status run_rounds(struct pack *w, int64_t ns, struct dt_error *err,
                                 struct found *best)
{
    int rounds = w->g->p->n_ops > LARGE ? 1 : ROUNDS;

    for (int k = 0; k < rounds; k++) {
        int64_t before = ns;

        if (pass(w, true, w->instants) >= before && k > 0)
            break;
        ns = pass(w, false, w->instants);
        if (ns < best->ns) {
            best->ns = ns;
            best->any = true;
            if (best->order)
                DT_TRY(write_order(w, err, best->order));
        }
        if ((double)(before - ns) < ROUND_GAIN * (double)before)
            break;
    }
    return DT_OK;
}

/* From the turns that are there, and in a small program from two others. */
static enum dt_status run_starts(struct pack *w, struct dt_error *err, struct found *best)
{
    DT_TRY(run_rounds(w, best->ns, err, best));
    for (int hosts = 0; hosts < 2 && w->g->p->n_ops <= SMALL; hosts++) {
        key_by_behind(w, hosts);
        DT_TRY(run_rounds(w, pass(w, false, true), err, best));
    }
    return DT_OK;
}

/* The time alone.  In the order in which ops were placed none begins sooner than where it was placed: it would have been
 * placed there.  So that order need not be run. */
static enum dt_status fill_time(struct pack *w, struct dt_error *err, struct dt_sched_turns *t)
{
    struct found best = {.ns = t->end_ns};

    DT_TRY(run_starts(w, err, &best));
    t->end_ns = best.ns;
    return DT_OK;
}

static enum dt_status fill_turns(struct pack *w, bool silent, struct dt_error *err,
                                 struct dt_sched_turns *t)
{
    struct dt_sched_turns other;
    struct found best;
    enum dt_status st;

    DT_TRY(dt_sched_turns_new(w->g->p, silent, err, &other));
    best = (struct found){.ns = t->end_ns, .order = other.order};
    st = run_starts(w, err, &best);
    if (st == DT_OK && best.any)
        st = dt_sched_turns_follow(w->g, silent, err, &other);
    if (st == DT_OK && other.end_ns < t->end_ns) {
        struct dt_sched_turns old = *t;

        *t = other;
        other = old;
    }
    dt_sched_turns_free(&other);
    return st;
}

enum dt_status dt_sched_bubbles_fill(struct dt_sched_turns_runs *g, bool silent,
                                     struct dt_error *err, struct dt_sched_turns *t)
{
    struct pack w;

    if (pack_init(&w, g) != 0)
        return dt_error_nomem(err, "bubbles of a program");
    DT_TRY(dt_sched_turns_follow(g, true, err, t)); /* for the times of its ops */
    if (silent && !w.instants)
        return fill_time(&w, err, t);
    w.placed = dt_arena_alloc_raw(&g->s->arena, (size_t)g->p->n_ops + 1, sizeof(*w.placed));
    return w.placed ? fill_turns(&w, silent, err, t) : dt_error_nomem(err, "bubbles of a program");
}
