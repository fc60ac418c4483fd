/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The list schedule: a simulated execution whose order becomes the fixed order of its lanes.
 *
 * A lane that is free takes, of what is ready, the oldest backward, else its next forward while
 * fewer than its in-flight bound are held.  Modules that already have an order (interleaved) follow
 * it.  The result is an order that did execute, hence free of deadlock.  When slots are aligned one
 * replica of each module stands for all; otherwise every lane takes part.  Durations are those of
 * the mean microbatch of each virtual stage (1 and 2 units without a cost model); transfers take no
 * time.  Ties fall to the lower lane, so that equal inputs give equal orders. */
#include "core/schedule_impl.h"

#include <string.h>

struct task {
    uint32_t waits; /* unfinished inputs */
};
struct event {
    int64_t ns;
    uint32_t lane;
};
struct list_lane {
    uint8_t module;
    bool fixed, busy, touched, backward;
    uint16_t stage;
    uint32_t n, next_f, held, cap, at; /* at: next entry of a fixed order */
    uint32_t running;                  /* code */
    uint32_t first_mb;
    uint32_t ready_n, *ready; /* codes of backwards that can run (1F1B lanes) */
    struct dt_lane_order *order;
};
struct list {
    struct dt_sched *s;
    const bool *is_list;
    int replicas[DT_MAX_MODULES];
    uint32_t lane_base[DT_MAX_MODULES], n_mb[DT_MAX_MODULES];
    size_t task_base[DT_MAX_MODULES], n_tasks, done;
    int64_t *ns[DT_MAX_MODULES]; /* [2 * n_v]: forward, backward */
    uint32_t n_lanes, n_events, n_touched;
    struct list_lane *lanes;
    uint32_t *waits, *touched;
    struct event *heap;
    int64_t now;
    struct dt_arena arena;
};

static size_t task_of(const struct list *l, int module, uint32_t mb, int v, int backward)
{
    return l->task_base[module] + ((size_t)mb * l->s->m[module].n_v + v) * 2 + backward;
}

static bool earlier(const struct event *a, const struct event *b)
{
    return a->ns != b->ns ? a->ns < b->ns : a->lane < b->lane;
}

static void heap_push(struct list *l, struct event e)
{
    uint32_t i = l->n_events++;

    for (; i > 0 && earlier(&e, &l->heap[(i - 1) / 2]); i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = e;
}

static struct event heap_pop(struct list *l)
{
    struct event top = l->heap[0], last = l->heap[--l->n_events];
    uint32_t i = 0;

    for (uint32_t c = 1; c < l->n_events; c = 2 * i + 1) {
        if (c + 1 < l->n_events && earlier(&l->heap[c + 1], &l->heap[c]))
            c++;
        if (!earlier(&l->heap[c], &last))
            break;
        l->heap[i] = l->heap[c];
        i = c;
    }
    l->heap[i] = last;
    return top;
}

static void mean_work(const struct dt_sched *s, int module, struct dt_work *w)
{
    uint32_t n = s->m[module].n_mb;

    memset(w, 0, sizeof(*w));
    for (uint32_t i = 0; i < n; i++)
        dt_work_add(w, &s->a->m[module].work[i]);
    w->n = (w->n + n - 1) / n;
    w->tokens = (w->tokens + n - 1) / n;
    w->tokens_sq = (w->tokens_sq + n - 1) / n;
}

static int stage_times(struct list *l, int module)
{
    struct dt_sched *s = l->s;
    const struct dt_sched_module *m = &s->m[module];
    const struct dt_layout *y = m->layout;
    struct dt_shard shard = {y->tp, y->cp, y->ep, y->ip, y->tp > 1};
    unsigned char *trainable = DT_ARENA_NEW(&l->arena, unsigned char, m->mod->n_blocks + 1);
    struct dt_work w;

    l->ns[module] = DT_ARENA_NEW(&l->arena, int64_t, 2 * m->n_v);
    if (!l->ns[module] || !trainable)
        return -1;
    if (s->cost && m->n_mb > 0) {
        mean_work(s, module, &w);
        dt_plan_trainable(s->plan, s->model, module, trainable);
    }
    for (int v = 0; v < m->n_v; v++) {
        struct dt_stage_ns t = {1, 2};

        if (s->cost && m->n_mb > 0)
            t = dt_cost_stage_ns(
                s->cost, module, m->v[v].first, m->v[v].n, &shard, &w, trainable,
                dt_plan_upstream_trained(s->plan, s->model, module, m->v[v].first));
        l->ns[module][2 * v] = (int64_t)t.fwd + 1;
        l->ns[module][2 * v + 1] = (int64_t)t.bwd + 1;
    }
    return 0;
}

/* Unfinished inputs of every task.  Aligned: microbatch k of each module stands for its slot. */
static void count_inputs(struct list *l)
{
    struct dt_sched *s = l->s;

    for (int i = 0; i < s->n_modules; i++) {
        const struct dt_sched_module *m = &s->m[i];

        for (uint32_t mb = 0; mb < l->n_mb[i]; mb++)
            for (int v = 0; v < m->n_v; v++) {
                l->waits[task_of(l, i, mb, v, 0)] = v > 0;
                l->waits[task_of(l, i, mb, v, 1)] = 1 + (v < m->n_v - 1);
            }
    }
    for (int e = 0; s->aligned && e < s->model->n_edges; e++) {
        const struct dt_edge *x = &s->model->edges[e];

        for (uint32_t k = 0; k < l->n_mb[x->src]; k++) {
            l->waits[task_of(l, x->dst, k, 0, 0)]++;
            l->waits[task_of(l, x->src, k, s->m[x->src].n_v - 1, 1)] += s->m[x->src].mirrored_out;
        }
    }
    for (uint32_t t = 0; !s->aligned && t < s->n_transfers; t++) {
        const struct dt_transfer *x = &s->transfers[t];

        l->waits[task_of(l, x->d, x->d_mb, 0, 0)]++;
        l->waits[task_of(l, x->u, x->u_mb, s->m[x->u].n_v - 1, 1)] += x->grad;
    }
}

static int list_init(struct list *l)
{
    struct dt_sched *s = l->s;

    for (int i = 0; i < s->n_modules; i++) {
        l->replicas[i] = s->aligned ? 1 : s->m[i].dp;
        l->lane_base[i] = l->n_lanes;
        l->n_lanes += (uint32_t)(l->replicas[i] * s->m[i].pp);
        l->n_mb[i] = s->m[i].mb_first[l->replicas[i]];
        l->task_base[i] = l->n_tasks;
        l->n_tasks += (size_t)l->n_mb[i] * s->m[i].n_v * 2;
    }
    l->lanes = DT_ARENA_NEW(&l->arena, struct list_lane, l->n_lanes);
    l->waits = DT_ARENA_NEW(&l->arena, uint32_t, l->n_tasks + 1);
    l->touched = DT_ARENA_NEW(&l->arena, uint32_t, l->n_lanes);
    l->heap = DT_ARENA_NEW(&l->arena, struct event, l->n_lanes + 1);
    if (!l->lanes || !l->waits || !l->touched || !l->heap)
        return -1;
    for (uint32_t i = 0; i < l->n_lanes; i++) {
        struct list_lane *x = &l->lanes[i];
        int module = 0, local;

        while (module + 1 < s->n_modules && i >= l->lane_base[module + 1])
            module++;
        local = (int)(i - l->lane_base[module]);
        x->module = (uint8_t)module;
        x->stage = (uint16_t)(local % s->m[module].pp);
        x->order = &s->m[module].order[local];
        x->fixed = !l->is_list[module];
        x->first_mb = s->m[module].mb_first[local / s->m[module].pp];
        x->n = s->m[module].mb_first[local / s->m[module].pp + 1] - x->first_mb;
        x->backward = s->m[module].v[x->stage].backward;
        x->cap = (uint32_t)dt_memory_in_flight(s->plan, s->model, module, x->stage, (int64_t)x->n);
        x->ready = DT_ARENA_NEW(&l->arena, uint32_t, x->n + 1);
        if (!x->ready)
            return -1;
    }
    for (int i = 0; i < s->n_modules; i++)
        if (stage_times(l, i) != 0)
            return -1;
    count_inputs(l);
    return 0;
}

static void touch(struct list *l, uint32_t lane)
{
    if (l->lanes[lane].touched)
        return;
    l->lanes[lane].touched = true;
    l->touched[l->n_touched++] = lane;
}

/* One input of (module, mb, v, backward) is there. */
static void arrive(struct list *l, int module, uint32_t mb, int v, int backward)
{
    const struct dt_sched_module *m = &l->s->m[module];
    uint32_t lane;
    int replica = l->replicas[module] > 1 ? m->replica_of[mb] : 0;

    if (backward && !m->v[v].backward)
        return;
    if (--l->waits[task_of(l, module, mb, v, backward)] > 0)
        return;
    lane = l->lane_base[module] + (uint32_t)(replica * m->pp + v % m->pp);
    if (backward && !l->lanes[lane].fixed) {
        struct list_lane *x = &l->lanes[lane];
        uint32_t code = DT_CODE(mb - x->first_mb, 0, 1), i = x->ready_n++;

        for (; i > 0 && x->ready[i - 1] < code; i--) /* oldest last */
            x->ready[i] = x->ready[i - 1];
        x->ready[i] = code;
    }
    touch(l, lane);
}

static void finish(struct list *l, struct list_lane *x)
{
    struct dt_sched *s = l->s;
    const struct dt_sched_module *m = &s->m[x->module];
    uint32_t mb = x->first_mb + DT_CODE_MB(x->running);
    int v = (int)DT_CODE_CHUNK(x->running) * m->pp + x->stage;
    bool backward = DT_CODE_BACKWARD(x->running);

    x->busy = false;
    l->done++;
    if (!backward) {
        arrive(l, x->module, mb, v, 1);
        if (v + 1 < m->n_v)
            arrive(l, x->module, mb, v + 1, 0);
    } else if (v > 0) {
        arrive(l, x->module, mb, v - 1, 1);
    }
    for (int e = 0; s->aligned && e < s->model->n_edges; e++) {
        const struct dt_edge *y = &s->model->edges[e];

        if (!backward && v == m->n_v - 1 && y->src == x->module)
            arrive(l, y->dst, mb, 0, 0);
        if (backward && v == 0 && y->dst == x->module && s->m[y->src].mirrored_out)
            arrive(l, y->src, mb, s->m[y->src].n_v - 1, 1);
    }
    if (s->aligned)
        return;
    for (uint32_t i = m->out_first[mb]; !backward && v == m->n_v - 1 && i < m->out_first[mb + 1];
         i++)
        arrive(l, s->transfers[m->out[i]].d, s->transfers[m->out[i]].d_mb, 0, 0);
    for (uint32_t i = m->in_first[mb]; backward && v == 0 && i < m->in_first[mb + 1]; i++) {
        const struct dt_transfer *t = &s->transfers[m->in[i]];

        if (t->grad)
            arrive(l, t->u, t->u_mb, s->m[t->u].n_v - 1, 1);
    }
}

/* The code of what a free lane runs next, or DT_NONE. */
static uint32_t choose(struct list *l, struct list_lane *x)
{
    const struct dt_sched_module *m = &l->s->m[x->module];

    if (x->fixed) {
        uint32_t code = x->at < x->order->n ? x->order->code[x->at] : DT_NONE;

        if (code == DT_NONE ||
            l->waits[task_of(l, x->module, x->first_mb + DT_CODE_MB(code),
                             (int)DT_CODE_CHUNK(code) * m->pp + x->stage, DT_CODE_BACKWARD(code))] >
                0)
            return DT_NONE;
        x->at++;
        return code;
    }
    if (x->ready_n > 0) {
        x->held--;
        return x->ready[--x->ready_n];
    }
    if (x->next_f < x->n && (!x->backward || x->held < x->cap) &&
        l->waits[task_of(l, x->module, x->first_mb + x->next_f, x->stage, 0)] == 0) {
        x->held++;
        return DT_CODE(x->next_f++, 0, 0);
    }
    return DT_NONE;
}

static void start_touched(struct list *l)
{
    /* Lanes in ascending order, whatever woke them. */
    for (uint32_t i = 0; i < l->n_touched; i++) {
        struct list_lane *x = &l->lanes[l->touched[i]];
        uint32_t code;
        int v;

        x->touched = false;
        if (x->busy || (code = choose(l, x)) == DT_NONE)
            continue;
        if (!x->fixed)
            x->order->code[x->order->n++] = code;
        v = (int)DT_CODE_CHUNK(code) * l->s->m[x->module].pp + x->stage;
        x->running = code;
        x->busy = true;
        heap_push(l, (struct event){l->now + l->ns[x->module][2 * v + DT_CODE_BACKWARD(code)],
                                    l->touched[i]});
    }
    l->n_touched = 0;
}

static size_t tasks_to_do(const struct list *l)
{
    size_t n = 0;

    for (int i = 0; i < l->s->n_modules; i++)
        for (int v = 0; v < l->s->m[i].n_v; v++)
            n += (size_t)l->n_mb[i] * (1 + l->s->m[i].v[v].backward);
    return n;
}

enum dt_status dt_sched_list(struct dt_sched *s, const bool *list, struct dt_error *err)
{
    struct list l = {.s = s, .is_list = list};
    enum dt_status st = DT_OK;

    if (list_init(&l) != 0) {
        dt_arena_free(&l.arena);
        return dt_error_nomem(err, "list schedule");
    }
    for (uint32_t i = 0; i < l.n_lanes; i++)
        touch(&l, i);
    start_touched(&l);
    while (l.n_events > 0) {
        l.now = l.heap[0].ns;
        while (l.n_events > 0 && l.heap[0].ns == l.now) {
            uint32_t lane = heap_pop(&l).lane;

            finish(&l, &l.lanes[lane]);
            touch(&l, lane);
        }
        start_touched(&l);
    }
    if (l.done != tasks_to_do(&l))
        st = dt_error_set(err, DT_ERR_INFEASIBLE,
                          "no order of the microbatches keeps within the in-flight bounds: %zu of "
                          "%zu forwards and backwards can run",
                          l.done, tasks_to_do(&l));
    dt_arena_free(&l.arena);
    return st;
}
