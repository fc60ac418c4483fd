/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The makespan of a plan's program without the program.
 *
 * Searches ask for the makespans of many programs and keep none, and writing a program, its durations and a timeline takes
 * far longer than the sums and maxima that its timing rules (program.h) ask for.  Here each lane walks its own order of
 * forwards and backwards as far as messages of other lanes allow, and all that is kept of an op is when it ended:
 *
 *     lane      where its four resources have got to
 *     message   when its SEND began and ended; a lane that waits for it
 *
 * Gathers come before everything else and syncs, norm and steps behind it, so these are done for all lanes at once.
 * Collectives of each microbatch (ZeRO 2 and 3) are in the same order on all replicas of a stage, so a stage has one queue of
 * them:
 *
 *     round     one of them: how many lanes have come to it, when the last of them was ready, when it ended
 *
 * What couples lanes in other ways is left to the program: GPUs that lanes share, lanes without backwards, which wait for
 * credits, and messages that are not received in the order of their consumers (schedule_recv.c).  So are errors: the
 * program's say what is wrong. */
#include "core/schedule/schedule_direct.h"

#include "base/number.h"
#include "core/schedule/schedule_direct_impl.h"

#include <string.h>

/* ---- what it can do ---- */

static bool has_credits(const struct dt_sched *s, const struct dt_sched_module *m, int stage)
{
    uint32_t most = 0;

    for (int v = stage; v < m->n_v; v += m->pp)
        if (m->v[v].backward)
            return false;
    for (int r = 0; r < m->dp; r++) {
        uint32_t n = m->mb_first[r + 1] - m->mb_first[r];

        most = n > most ? n : most;
    }
    return (int64_t)most * m->vpp > dt_memory_in_flight(s->plan, s->model, m->index, stage, most);
}

/* Gathers of each microbatch and such that come before everything else, which the first forward waits for, on one lane. */
static bool mixes_gathers(const struct dt_sched *s, const struct dt_sched_module *m, int stage)
{
    bool each = false, once = false;

    for (int v = stage; v < m->n_v; v += m->pp)
        *(m->v[v].f_each ? &each : &once) = true;
    return each && once && !s->plan->policy.overlap_param;
}

static bool is_plain(const struct dt_sched *s)
{
    if (!s->cost || dt_plan_shares(s->plan))
        return false;
    for (int i = 0; i < s->n_modules; i++)
        for (int stage = 0; stage < s->m[i].pp; stage++)
            if (has_credits(s, &s->m[i], stage) || mixes_gathers(s, &s->m[i], stage))
                return false;
    return true;
}

/* ---- durations ---- */

/* A collective of n lanes. */
static int64_t group_ns(struct dt_sched_direct *d, int module, uint32_t group, uint64_t bytes,
                        int64_t gpus)
{
    struct dt_sched_collective c = {.group = &d->p.groups[group],
                                    .module = module,
                                    .tied = d->s->tied_group != DT_NONE &&
                                            group >= d->s->tied_group && group != d->s->norm_group,
                                    .bytes = bytes,
                                    .gpus = gpus};
    struct dt_cost_time cost;
    int64_t ns;

    dt_sched_times_group(&d->t, &c, &cost);
    ns = dt_sched_direct_ns(d, cost.ns);
    d->sum += ((uint64_t)ns >> DT_SCHED_SUM_SHIFT) * c.group->n;
    return ns;
}

static int64_t gpus_of(const struct dt_sched_module *m, uint32_t lanes)
{
    return (int64_t)lanes * dt_sched_sync_ranks(m->layout);
}

/* A virtual stage's times in whole nanoseconds. */
static bool stage_times(struct dt_sched_direct *d, const struct dt_sched_module *m, int v)
{
    struct dt_sched_times *t = &d->t;
    uint32_t n = t->m[m->index].n_ids;
    const struct dt_cost_stage_ns *all = dt_sched_times_stage(t, m->index, v);
    int64_t(*ns)[DT_CODE_WEIGHT + 1];

    for (int u = 0; all && u < v; u++)
        if (t->m[m->index].ns[u] == all) {
            d->m[m->index].ns[v] = d->m[m->index].ns[u];
            return true;
        }
    ns = dt_arena_alloc_raw(&d->s->arena, n + (size_t)1, sizeof(*ns));
    if (!all || !ns)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        ns[i][DT_CODE_FORWARD] =
            dt_sched_direct_ns(d, dt_sched_times_of(t, DT_OP_FORWARD, &all[i]));
        ns[i][DT_CODE_BACKWARD] =
            dt_sched_direct_ns(d, dt_sched_times_of(t, DT_OP_BACKWARD, &all[i]));
        ns[i][DT_CODE_WEIGHT] =
            dt_sched_direct_ns(d, dt_sched_times_of(t, DT_OP_WEIGHT_GRAD, &all[i]));
    }
    d->m[m->index].ns[v] = ns;
    return true;
}

/* ---- before the first forward ---- */

/* How long the collectives of a virtual stage take; those of each microbatch count once they come. */
static void collective_times(struct dt_sched_direct *d, const struct dt_sched_module *m, int v)
{
    const struct dt_sched_vstage *x = &m->v[v];
    struct dt_sched_module_state *of = &d->m[m->index];
    int64_t gpus = gpus_of(m, (uint32_t)m->dp);

    for (int k = 0; k < DT_PARTS_MAX; k++) {
        if (x->gather_group[k] != DT_NONE)
            of->gather_ns[v * DT_PARTS_MAX + k] =
                group_ns(d, m->index, x->gather_group[k], x->gather_bytes[k], gpus);
        if (x->sync_group[k] != DT_NONE)
            of->sync_ns[v * DT_PARTS_MAX + k] =
                group_ns(d, m->index, x->sync_group[k], x->sync_bytes[k], gpus);
    }
}

/* Gathers of one stage, one after the other on all replicas at once. */
static void gathers(struct dt_sched_direct *d, const struct dt_sched_module *m, int stage)
{
    struct dt_sched_module_state *of = &d->m[m->index];
    int64_t at = 0;

    for (int v = stage; v < m->n_v; v += m->pp)
        for (int k = 0; k < m->v[v].f_parts; k++)
            if (!m->v[v].f_each && m->v[v].gather_group[k] != DT_NONE) {
                at += of->gather_ns[v * DT_PARTS_MAX + k];
                of->gathered_ns[v * DT_PARTS_MAX + k] = at;
            }
    of->stage[stage].head_ns = of->stage[stage].end_ns = at;
}

static bool stage_rounds(struct dt_sched_direct *d, const struct dt_sched_module *m, int stage)
{
    struct dt_sched_stage_state *x = &d->m[m->index].stage[stage];
    uint32_t n = dt_sched_fill_group_ops(d->s, m, stage);
    bool any = false;

    x->waiting = DT_NONE;
    for (int v = stage; v < m->n_v; v += m->pp)
        any |= m->v[v].f_each || m->v[v].b_each;
    if (!any)
        return true;
    x->round = dt_arena_alloc_raw(&d->s->arena, n + (size_t)1, sizeof(*x->round));
    for (uint32_t k = 0; x->round && k < n; k++)
        x->round[k] = (struct dt_sched_round){.end_ns = -1};
    return x->round;
}

static struct dt_sched_message *messages(struct dt_sched *s, size_t n)
{
    struct dt_sched_message *x = dt_arena_alloc_raw(&s->arena, n + 1, sizeof(*x));

    if (x)
        memset(x, 0xff, n * sizeof(*x)); /* none is sent */
    return x;
}

static bool init_module(struct dt_sched_direct *d, const struct dt_sched_module *m)
{
    struct dt_sched_module_state *of = &d->m[m->index];
    size_t n = (size_t)m->n_mb * (size_t)m->n_v, buckets = (size_t)m->n_v * DT_PARTS_MAX;

    if (m->pp > 1) { /* else nothing crosses lanes inside the module */
        of->f = messages(d->s, n);
        of->b = messages(d->s, n);
    }
    of->ns = dt_arena_alloc(&d->s->arena, (size_t)m->n_v, sizeof(*of->ns));
    of->gather_ns = DT_ARENA_NEW(&d->s->arena, int64_t, buckets);
    of->sync_ns = DT_ARENA_NEW(&d->s->arena, int64_t, buckets);
    of->gathered_ns = DT_ARENA_NEW(&d->s->arena, int64_t, buckets);
    of->grads_ns = DT_ARENA_NEW(&d->s->arena, int64_t, (size_t)m->dp * buckets);
    of->stage = DT_ARENA_NEW(&d->s->arena, struct dt_sched_stage_state, m->pp);
    if ((m->pp > 1 && (!of->f || !of->b)) || !of->ns || !of->gather_ns || !of->sync_ns ||
        !of->gathered_ns || !of->grads_ns || !of->stage)
        return false;
    for (int v = 0; v < m->n_v; v++) {
        if (!stage_times(d, m, v))
            return false;
        collective_times(d, m, v);
    }
    for (int stage = 0; stage < m->pp; stage++) {
        gathers(d, m, stage);
        if (!stage_rounds(d, m, stage))
            return false;
    }
    return true;
}

static bool init(struct dt_sched_direct *d)
{
    struct dt_sched *s = d->s;

    d->p.lanes = DT_ARENA_NEW(&s->arena, struct dt_lane, s->n_lanes + 1);
    d->p.groups = DT_ARENA_NEW(&s->arena, struct dt_group, s->n_groups + 1);
    d->lane = DT_ARENA_NEW(&s->arena, struct dt_sched_lane_state, s->n_lanes + 1);
    d->stack = DT_ARENA_NEW(&s->arena, uint32_t, s->n_lanes + 1);
    d->forward = messages(s, s->n_transfers);
    d->grad = messages(s, s->n_transfers);
    if (!d->p.lanes || !d->p.groups || !d->lane || !d->stack || !d->forward || !d->grad ||
        dt_sched_times_init(&d->t) != 0)
        return false;
    for (int i = 0; i < s->n_modules; i++)
        for (int l = 0; l < s->m[i].dp * s->m[i].pp; l++)
            d->p.lanes[s->m[i].lane_base + (uint32_t)l] =
                dt_sched_fill_lane(s, &s->m[i], l / s->m[i].pp, l % s->m[i].pp);
    dt_sched_fill_groups(s, &d->p);
    dt_sched_expert_groups(s, &d->p);
    for (int i = 0; i < s->n_modules; i++)
        if (!init_module(d, &s->m[i]))
            return false;
    for (uint32_t l = s->n_lanes; l-- > 0;)
        d->stack[d->n_stack++] = l;
    return true;
}

/* ---- behind the last backward ---- */

/* Syncs of one stage, in the order of the lanes' arrays. */
static void syncs(struct dt_sched_direct *d, const struct dt_sched_module *m, int stage)
{
    struct dt_sched_lane_state *lane = &d->lane[m->lane_base + (uint32_t)stage];
    const struct dt_sched_module_state *of = &d->m[m->index];

    for (int r = 0; r < m->dp; r++)
        lane[r * m->pp].at_ns[DT_RES_COLL] = of->stage[stage].end_ns;
    for (int v = stage + (m->vpp - 1) * m->pp; v >= 0; v -= m->pp)
        for (int i = 0; i < m->v[v].b_parts; i++) {
            int bucket = m->v[v].b_parts - 1 - i;
            int64_t at = 0;

            if (m->v[v].b_each || m->v[v].sync_group[bucket] == DT_NONE)
                continue;
            for (int r = 0; r < m->dp; r++) {
                const struct dt_sched_lane_state *x = &lane[r * m->pp];
                const int64_t *done = &of->grads_ns[(r * m->n_v + v) * DT_PARTS_MAX];

                at = dt_sched_later(at, x->at_ns[DT_RES_COLL]);
                at = dt_sched_later(at, d->s->plan->policy.overlap_grad ? done[i]
                                                                        : x->at_ns[DT_RES_COMPUTE]);
            }
            at += of->sync_ns[v * DT_PARTS_MAX + bucket];
            for (int r = 0; r < m->dp; r++)
                lane[r * m->pp].at_ns[DT_RES_COLL] = at;
        }
}

/* When a lane could begin a collective that waits for all of its compute. */
static int64_t collective_ready(const struct dt_sched_lane_state *x)
{
    return dt_sched_later(x->at_ns[DT_RES_COLL], x->at_ns[DT_RES_COMPUTE]);
}

static void tied_syncs(struct dt_sched_direct *d)
{
    const struct dt_sched_module *m = &d->s->m[d->s->model->llm];
    uint64_t bytes = dt_sched_fill_tied_bytes(d->s, m);

    for (int r = 0; r < m->dp; r++) {
        struct dt_sched_lane_state *first = &d->lane[dt_sched_lane_of(m, r, 0)];
        struct dt_sched_lane_state *last = &d->lane[dt_sched_lane_of(m, r, m->pp - 1)];
        int64_t at = dt_sched_later(collective_ready(first), collective_ready(last));

        at += group_ns(d, m->index, d->s->tied_group + (uint32_t)r, bytes, gpus_of(m, 2));
        first->at_ns[DT_RES_COLL] = last->at_ns[DT_RES_COLL] = at;
    }
}

static bool trains(const struct dt_sched_direct *d, uint32_t lane)
{
    const struct dt_lane *l = &d->p.lanes[lane];

    return d->s->m[l->module].lane_trains[l->stage];
}

/* The norm of all gradients, and the steps that wait for it. */
static void norm_and_steps(struct dt_sched_direct *d)
{
    int64_t at = 0, gpus = 0;
    int module = -1;

    for (uint32_t l = 0; l < d->s->n_lanes; l++)
        if (trains(d, l)) {
            module = module < 0 ? d->p.lanes[l].module : module;
            gpus += d->p.lanes[l].gpus;
            at = dt_sched_later(at, collective_ready(&d->lane[l]));
        }
    at += group_ns(d, module, d->s->norm_group, DT_SCHED_FILL_NORM_BYTES, gpus);
    for (uint32_t l = 0; l < d->s->n_lanes; l++)
        if (trains(d, l)) {
            int64_t ns = dt_sched_times_step(&d->t, 0, d->p.lanes[l].module, d->p.lanes[l].stage);

            d->sum += (uint64_t)ns >> DT_SCHED_SUM_SHIFT;
            d->lane[l].at_ns[DT_RES_COLL] = at;
            d->lane[l].at_ns[DT_RES_COMPUTE] = at + ns;
        }
}

static int64_t last_end(const struct dt_sched_direct *d)
{
    int64_t last = 0;

    for (uint32_t l = 0; l < d->s->n_lanes; l++)
        for (int r = 0; r < DT_RES_N; r++)
            last = dt_sched_later(last, d->lane[l].at_ns[r]);
    return last;
}

/* False: as for lanes that wait for each other or times that are none, the program has to say. */
static bool run(struct dt_sched_direct *d, int64_t *ns)
{
    if (d->sum >> DT_SCHED_SUM_BITS || !dt_sched_direct_walk(d))
        return false;
    for (int i = 0; i < d->s->n_modules; i++)
        for (int stage = 0; stage < d->s->m[i].pp; stage++)
            syncs(d, &d->s->m[i], stage);
    if (d->s->tied_group != DT_NONE)
        tied_syncs(d);
    if (d->s->norm_group != DT_NONE)
        norm_and_steps(d);
    *ns = last_end(d);
    return !d->late && d->t.late == DT_NONE && *ns < DT_TIME_MAX_NS &&
           d->sum >> DT_SCHED_SUM_BITS == 0;
}

enum dt_status dt_sched_direct(struct dt_sched *s, struct dt_error *err, bool *known, int64_t *ns)
{
    struct dt_sched_direct d = {
        .s = s,
        .t = {
            .plan = s->plan, .model = s->model, .cluster = s->cluster, .a = s->a, .cost = s->cost}};
    enum dt_status st = DT_OK;
    int64_t found;
    bool ready;

    *known = is_plain(s);
    if (*known)
        DT_TRY(dt_sched_meets(s, err, known));
    if (!*known)
        return DT_OK;
    ready = init(&d);
    *known = ready && run(&d, &found) && !d.t.oom;
    if (*known)
        *ns = found;
    if (!ready || d.t.oom)
        st = dt_error_nomem(err, "the makespan of a plan");
    dt_arena_free(&d.t.arena);
    return st;
}
