/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The space of the search: what it may choose from, as short lists.  A candidate names its choices by
 * their places in them.
 *
 *   of the plan      microbatch, and schedule with the LLM's chunks per stage ("pipe")
 *   of a module      lane (tp, cp, ep), recomputation, ZeRO, what is offloaded
 *   not listed here  pp, dp and the split, which depend on the numbers of GPUs and blocks */
#include "core/orchestrate/orchestrate_internal.h"

enum {
    TP_BITS = 10, /* tensor-parallel degrees 2^0 .. 2^9 */
    CP_TOKENS_MIN =
        8192, /* of a sequence on a rank: below, its attention is not worth another rank */
    MICROBATCH_MAX = 4096, /* as train.microbatch */
    COARSE_VPP_MAX = 8,
};

/* ---- of the plan ---- */

static bool left_out(const struct dt_search_input *in, int degree)
{
    return dt_orch_effort_of(in)->coarse && (degree & (degree - 1)) != 0;
}

static void fill_microbatches(const struct dt_search_input *in, struct dt_orch_space *s)
{
    int most = in->opt.max_microbatch;

    if (most < 1) {
        s->microbatch[s->n_microbatches++] = in->policy.microbatch;
        return;
    }
    for (int m = 1; m <= most && m <= MICROBATCH_MAX; m++)
        if (!left_out(in, m) && in->policy.global_batch % m == 0 &&
            s->n_microbatches < DT_ORCH_MICROBATCHES_MAX)
            s->microbatch[s->n_microbatches++] = m;
}

static void add_pipe(struct dt_orch_space *s, int schedule, int vpp)
{
    const struct dt_pipe *pipe = dt_pipe_of((enum dt_pipe_schedule)schedule);

    s->pipe[s->n_pipes++] =
        (struct dt_orch_pipe){(enum dt_pipe_schedule)schedule, vpp, pipe->put_off != NULL};
    s->whole |= pipe->put_off == NULL;
}

/* With one chunk a schedule of chunks is 1F1B: not listed twice. */
static void fill_pipes(const struct dt_search_input *in, struct dt_orch_space *s)
{
    unsigned set = in->opt.schedules ? in->opt.schedules : 1U << in->policy.schedule;
    int blocks = in->model->modules[in->model->llm].n_blocks, max = blocks / 2;

    if (in->opt.max_vpp > 0 && in->opt.max_vpp < max)
        max = in->opt.max_vpp;
    if (max > DT_SEARCH_VPP_MAX)
        max = DT_SEARCH_VPP_MAX;
    /* a look at a few replicas does not show what so many transfers cost all of them */
    if (dt_orch_effort_of(in)->coarse && max > COARSE_VPP_MAX)
        max = COARSE_VPP_MAX;
    for (int i = 0; i < DT_SCHED_N; i++) {
        bool chunks = dt_pipe_of((enum dt_pipe_schedule)i)->chunks;

        if (!(set >> i & 1))
            continue;
        if (!chunks || !(set >> DT_SCHED_1F1B & 1))
            add_pipe(s, i, 1);
        for (int vpp = 2; chunks && vpp <= max; vpp++)
            if (!left_out(in, vpp))
                add_pipe(s, i, vpp);
    }
}

/* ---- of a module ---- */

static bool tp_legal(struct dt_orch_table *t, int m, int tp)
{
    const struct dt_module *mod = &t->in->model->modules[m];
    int node = t->in->cluster->gpus_per_node;

    if (node % tp != 0 && tp % node != 0) {
        t->rejects.nodes++;
        return false;
    }
    for (int b = 0; b < mod->n_blocks; b++)
        if (!dt_block_allows_tp(&mod->blocks[b], tp)) {
            t->rejects.heads++;
            return false;
        }
    return true;
}

/* Context parallelism is for sequences that are long: those of the LLM. */
static int cp_max(const struct dt_search_input *in, int m)
{
    const struct dt_module *mod = &in->model->modules[m];
    int most = 1;

    if (m != in->model->llm || dt_cluster_is_cpu(in->cluster) || dt_module_is_unfused(mod))
        return 1;
    while (in->policy.seq_len / (2 * most) >= CP_TOKENS_MIN &&
           (in->opt.max_cp == 0 || 2 * most <= in->opt.max_cp))
        most *= 2;
    return most;
}

/* Experts of the layer that has most. */
static int experts_of(const struct dt_module *m)
{
    int most = 1;

    for (int b = 0; b < m->n_blocks; b++)
        most = m->blocks[b].n_experts > most ? m->blocks[b].n_experts : most;
    return most;
}

/* What divides the experts of every layer, for an LLM, in groups that share nodes evenly; which DP they go with is for the
 * cells. */
static bool ep_legal(const struct dt_search_input *in, int m, int tp, int ep)
{
    int node = in->cluster->gpus_per_node, span = tp * ep; /* members are tp GPUs apart */

    if (ep == 1)
        return true;
    return (node % span == 0 || span % node == 0) && m == in->model->llm &&
           !dt_cluster_is_cpu(in->cluster) && (in->opt.max_ep == 0 || ep <= in->opt.max_ep) &&
           dt_plan_allows_ep(&in->model->modules[m], ep, ep);
}

static void fill_lanes(struct dt_orch_table *t, int m, struct dt_orch_modes *o)
{
    unsigned mask = t->in->opt.tp_mask ? t->in->opt.tp_mask : 0xfu;
    int node = t->in->cluster->gpus_per_node, most = cp_max(t->in, m);
    int experts = experts_of(&t->in->model->modules[m]);

    for (int bit = 0; bit < TP_BITS; bit++) {
        if (!(mask >> bit & 1) || !tp_legal(t, m, 1 << bit))
            continue;
        for (int cp = 1; cp <= most; cp *= 2) {
            if (node % (cp << bit) != 0 && (cp << bit) % node != 0)
                continue;
            for (int ep = 1; ep <= experts && o->n_lanes < DT_ORCH_LANES_MAX; ep++)
                if (ep_legal(t->in, m, 1 << bit, ep))
                    o->lane[o->n_lanes++] = (struct dt_orch_lane){1 << bit, cp, ep};
        }
    }
}

/* Cheapest first.  Level 0 is left out where level 1 may be chosen, which moves as many bytes, holds less and updates
 * less on each rank. */
static void fill_zero(const struct dt_search_input *in, int m, bool on_host,
                      struct dt_orch_modes *o)
{
    unsigned set = in->opt.zero[m] ? in->opt.zero[m] : 1U << in->zero[m];

    if (set & 1U << 1)
        set &= ~1U;
    for (int z = 0; z <= DT_ZERO_MAX; z++)
        if ((set >> z & 1) && (z < 2 || !dt_cluster_is_cpu(in->cluster))) {
            o->on_host[o->n_zero] = on_host;
            o->zero[o->n_zero++] = z;
        }
}

static bool has_trained(const struct dt_orch_table *t, int m)
{
    for (int b = 0; b < t->in->model->modules[m].n_blocks; b++)
        if (dt_plan_trained(&t->scratch, t->in->model, m, b))
            return true;
    return false;
}

/* Masters and moments on the host take as little memory as is possible, and the step takes longest: they come behind all levels of
 * ZeRO without. */
static void fill_states(const struct dt_orch_table *t, int m, struct dt_orch_modes *o)
{
    enum {
        HERE = 1U << DT_OFFLOAD_NONE | 1U << DT_OFFLOAD_PARAMETERS,
        ON_HOST = 1U << DT_OFFLOAD_OPTIMIZER | 1U << DT_OFFLOAD_ALL,
    };
    const struct dt_search_input *in = t->in;

    o->offloads = dt_orch_offloads(in, m);
    if (o->offloads & HERE)
        fill_zero(in, m, false, o);
    if ((o->offloads & ON_HOST) &&
        (o->n_zero == 0 || (has_trained(t, m) && !dt_cluster_is_cpu(in->cluster))))
        fill_zero(in, m, true, o);
}

void dt_orch_space_fill(struct dt_orch_table *t)
{
    const struct dt_search_input *in = t->in;
    struct dt_orch_space *s = &t->space;

    fill_microbatches(in, s);
    fill_pipes(in, s);
    for (int m = 0; m < in->model->n_modules; m++) {
        unsigned set = in->opt.recompute[m] ? in->opt.recompute[m] : 1U << in->recompute[m];
        struct dt_orch_modes *o = &s->of[m];

        fill_lanes(t, m, o);
        for (int r = 0; r < DT_ORCH_RECOMPUTE_N; r++)
            if (set >> r & 1)
                o->recompute[o->n_recompute++] = (enum dt_block_recompute)r;
        fill_states(t, m, o);
    }
}

/* ---- places ---- */

int dt_orch_space_lane(const struct dt_orch_table *t, int m, const struct dt_plan_layout *l)
{
    const struct dt_orch_modes *o = &t->space.of[m];

    for (int i = 0; i < o->n_lanes; i++)
        if (o->lane[i].tp == l->tp && o->lane[i].cp == l->cp && o->lane[i].ep == l->ep &&
            l->ip == 1)
            return i;
    return -1;
}

int dt_orch_space_recompute(const struct dt_orch_table *t, int m, enum dt_block_recompute r)
{
    const struct dt_orch_modes *o = &t->space.of[m];

    for (int i = 0; i < o->n_recompute; i++)
        if (o->recompute[i] == r)
            return i;
    return -1;
}

int dt_orch_space_microbatch(const struct dt_orch_table *t, int microbatch)
{
    for (int i = 0; i < t->space.n_microbatches; i++)
        if (t->space.microbatch[i] == microbatch)
            return i;
    return -1;
}

int dt_orch_space_zero(const struct dt_orch_table *t, int m, const struct dt_plan_module *mp)
{
    const struct dt_orch_modes *o = &t->space.of[m];

    for (int z = 0; z < o->n_zero; z++)
        if (o->zero[z] == mp->zero && o->on_host[z] == dt_plan_offloads_optimizer(mp))
            return z;
    return -1;
}

int dt_orch_state_of(const struct dt_orch_modes *o, bool on_host)
{
    for (int z = 0; z < o->n_zero; z++)
        if (o->on_host[z] == on_host)
            return z;
    return -1;
}

void dt_orch_states_apply(const struct dt_orch_modes *o, int z, bool leave,
                          struct dt_plan_module *mp)
{
    mp->zero = o->zero[z];
    mp->offload = dt_plan_offload_of(o->on_host[z], leave);
}

void dt_orch_choice_apply(const struct dt_orch_table *t, int m, const struct dt_orch_choice *c,
                          int vpp, struct dt_plan *p)
{
    const struct dt_orch_modes *o = &t->space.of[m];
    const struct dt_orch_lane *lane = &o->lane[c->lane];
    struct dt_plan_module *mp = &p->modules[m];

    mp->layout = (struct dt_plan_layout){
        .tp = lane->tp,
        .cp = lane->cp,
        .ep = lane->ep,
        .ip = 1,
        .pp = c->pp,
        .vpp = m == t->in->model->llm ? vpp : 1,
        .dp = c->dp,
    };
    mp->recompute = o->recompute[c->recompute];
    dt_orch_states_apply(o, c->zero, false, mp);
}
