/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Plans: placement on GPUs, structural validity, and what freezing means for a block. */
#include "core/model/plan.h"

#include <string.h>

#define NAME(id, name, planner, help) name,
#define HELP(id, name, planner, help) help,
const char *const dt_plan_strategy_names[DT_STRATEGY_N + 1] = {DT_STRATEGIES(NAME) NULL};
const char *const dt_plan_strategy_help[DT_STRATEGY_N + 1] = {DT_STRATEGIES(HELP) NULL};

int dt_plan_gpus(const struct dt_plan *p)
{
    int gpus = 0;

    for (int m = 0; m < p->n_modules; m++) {
        int own = dt_plan_layout_gpus(&p->modules[m].layout);

        gpus = !p->colocated ? gpus + own : own > gpus ? own : gpus;
    }
    return gpus;
}

int64_t dt_plan_slot_samples(const struct dt_plan *p, int llm)
{
    return (int64_t)p->modules[llm].layout.dp * p->policy.microbatch;
}

int64_t dt_plan_slots(const struct dt_plan *p, int llm)
{
    return p->policy.global_batch / dt_plan_slot_samples(p, llm);
}

void dt_plan_init(struct dt_plan *p, const struct dt_model *m, const struct dt_plan_policy *policy)
{
    static const struct dt_plan_layout one = {1, 1, 1, 1, 1, 1, 1, 0};

    memset(p, 0, sizeof(*p));
    memcpy(p->model, m->name, sizeof(p->model));
    p->strategy = DT_STRATEGY_MANUAL;
    p->n_modules = m->n_modules;
    p->policy = *policy;
    for (int i = 0; i < m->n_modules; i++) {
        memcpy(p->module_names[i], m->modules[i].name, sizeof(p->module_names[i]));
        p->modules[i].layout = one;
        p->modules[i].recompute = policy->recompute;
        p->modules[i].split[1] = (uint16_t)m->modules[i].n_blocks;
    }
}

/* Lanes of `width` GPUs laid end to end from an aligned start never straddle a node when this
 * holds. */
static bool lane_fits_nodes(int width, int per_node)
{
    return width <= per_node ? per_node % width == 0 : width % per_node == 0;
}

static int64_t align_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

void dt_plan_unpin(struct dt_plan *p)
{
    for (int m = 0; m < p->n_modules; m++)
        p->modules[m].pinned = false;
}

/* The lowest aligned GPU, not below `from`, of a range that no module with a place (first >= 0)
 * has. */
static int64_t free_range(const struct dt_plan *p, const int64_t *first, int64_t from, int align,
                          int gpus)
{
    bool moved = true;

    while (moved) {
        moved = false;
        from = align_up(from, align);
        for (int o = 0; o < p->n_modules; o++) {
            int64_t end = first[o] + dt_plan_layout_gpus(&p->modules[o].layout);

            if (first[o] >= 0 && from < end && first[o] < from + gpus) {
                from = end;
                moved = true;
            }
        }
    }
    return from;
}

/* Modules, those with wider lanes first, else in the order of the model. */
static void widest_first(const struct dt_plan *p, int *order)
{
    for (int i = 0; i < p->n_modules; i++) {
        int width = dt_plan_layout_lane_gpus(&p->modules[i].layout), j = i;

        for (; j > 0 && dt_plan_layout_lane_gpus(&p->modules[order[j - 1]].layout) < width; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
}

static enum dt_status place_module(const struct dt_plan *p, const struct dt_cluster *c, int m,
                                   bool pins, int64_t *first, int64_t *next, struct dt_error *err)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    int width = dt_plan_layout_lane_gpus(l), gpus = dt_plan_layout_gpus(l);
    int align = width < c->gpus_per_node ? width : c->gpus_per_node;

    if (!lane_fits_nodes(width, c->gpus_per_node))
        return dt_error_set(err, DT_ERR_INFEASIBLE,
                            "module %s: lanes of %d GPUs (tp*cp*ip) do not tile nodes of %d",
                            p->module_names[m], width, c->gpus_per_node);
    if (first[m] >= 0)
        return DT_OK;
    first[m] = p->colocated ? 0 : free_range(p, first, pins ? 0 : *next, align, gpus);
    *next = first[m] + gpus;
    if (*next <= dt_cluster_gpus(c))
        return DT_OK;
    if (pins && dt_plan_gpus(p) <= dt_cluster_gpus(c))
        return dt_error_set(err, DT_ERR_INFEASIBLE,
                            "module %s: the first_gpu of the others leave no %d GPUs in a row free "
                            "in cluster %s (%d GPUs)",
                            p->module_names[m], gpus, c->name, dt_cluster_gpus(c));
    return dt_error_set(err, DT_ERR_INFEASIBLE, "the plan needs %d GPUs, cluster %s has %d",
                        dt_plan_gpus(p), c->name, dt_cluster_gpus(c));
}

enum dt_status dt_plan_place(struct dt_plan *p, const struct dt_cluster *c, struct dt_error *err)
{
    int64_t first[DT_MAX_MODULES], next = 0;
    int order[DT_MAX_MODULES];
    bool pins = false;

    for (int i = 0; i < p->n_modules; i++) {
        const struct dt_plan_module *m = &p->modules[i];

        if (p->colocated && m->pinned && m->layout.first_gpu != 0)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: first_gpu %d cannot be combined with colocated "
                                "modules, which all begin at GPU 0",
                                p->module_names[i], m->layout.first_gpu);
        first[i] = m->pinned ? m->layout.first_gpu : -1;
        pins |= m->pinned;
    }
    widest_first(p, order);
    for (int i = 0; i < p->n_modules; i++)
        DT_TRY(place_module(p, c, order[i], pins, first, &next, err));
    for (int i = 0; i < p->n_modules; i++)
        p->modules[i].layout.first_gpu = (int)first[i];
    memcpy(p->cluster, c->name, sizeof(p->cluster));
    return DT_OK;
}

int dt_plan_lane_gpu(const struct dt_plan *p, int module, int replica, int stage)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;

    return l->first_gpu + (stage * l->dp + replica) * dt_plan_layout_lane_gpus(l);
}

/* ---- validity ---- */

static enum dt_status bad(struct dt_error *err, const struct dt_plan *p, int m, const char *what)
{
    return dt_error_set(err, DT_ERR_INPUT, "plan, module %s: %s", p->module_names[m], what);
}

static enum dt_status check_degrees(const struct dt_plan *p, int m, const struct dt_module *mod,
                                    struct dt_error *err)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    char chunked[128];

    if (l->tp < 1 || l->cp < 1 || l->ep < 1 || l->pp < 1 || l->vpp < 1 || l->dp < 1 || l->ip < 1)
        return bad(err, p, m, "tp, cp, ep, pp, vpp, dp and ip must be at least 1");
    if ((int64_t)l->tp * l->cp * l->ip * l->pp * l->dp > DT_PLAN_GPUS_MAX)
        return bad(err, p, m, "tp*cp*ip*pp*dp is larger than any cluster");
    if (l->pp * l->vpp > DT_MAX_VSTAGES)
        return dt_error_set(err, DT_ERR_INPUT, "plan, module %s: pp*vpp = %d, at most %d",
                            p->module_names[m], l->pp * l->vpp, DT_MAX_VSTAGES);
    if (l->pp * l->vpp > mod->n_blocks)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: pp*vpp = %d stages but only %d blocks",
                            p->module_names[m], l->pp * l->vpp, mod->n_blocks);
    if (l->vpp > 1 && !dt_pipe_of(p->policy.schedule)->chunks)
        return dt_error_set(err, DT_ERR_INPUT, "plan, module %s: vpp %d needs schedule %s, not %s",
                            p->module_names[m], l->vpp,
                            dt_pipe_chunked_names(chunked, sizeof(chunked)),
                            dt_pipe_schedule_names[p->policy.schedule]);
    if (l->vpp > 1 && l->pp == 1)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "plan, module %s: vpp %d with pp 1: chunks are dealt to several stages; "
            "use vpp 1",
            p->module_names[m], l->vpp);
    if (l->vpp > 1 && p->colocated)
        return bad(err, p, m, "vpp above 1 cannot be combined with colocated modules");
    if (l->ip > 1 && mod->role == DT_ROLE_LLM)
        return bad(err, p, m, "ip (image parallelism) is for encoders and generators");
    if (l->ep > 1) /* experts need gradient groups and routing of their own */
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: ep %d: expert parallelism is not supported yet, ep "
                            "must be 1 (experts are then split by tp)",
                            p->module_names[m], l->ep);
    return DT_OK;
}

bool dt_block_allows_tp(const struct dt_block *b, int tp)
{
    if (b->kind != DT_BLOCK_TRANSFORMER)
        return true;
    return b->heads % tp == 0 && (b->kv_heads == 0 || b->kv_heads % tp == 0);
}

static enum dt_status check_blocks(const struct dt_plan *p, int m, const struct dt_module *mod,
                                   struct dt_error *err)
{
    const struct dt_plan_module *mp = &p->modules[m];
    int v = mp->layout.pp * mp->layout.vpp;

    for (int b = 0; b < mod->n_blocks; b++) {
        const struct dt_block *blk = &mod->blocks[b];

        if (!dt_block_allows_tp(blk, mp->layout.tp))
            return dt_error_set(err, DT_ERR_INPUT,
                                "plan, module %s: tp %d does not divide the %d heads (%d key/value "
                                "heads) of block %d",
                                p->module_names[m], mp->layout.tp, blk->heads, blk->kv_heads, b);
    }
    if (mp->split[0] != 0 || mp->split[v] != mod->n_blocks)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: the split must run from 0 to %d, not %d to %d",
                            p->module_names[m], mod->n_blocks, mp->split[0], mp->split[v]);
    for (int i = 0; i < v; i++)
        if (mp->split[i + 1] <= mp->split[i])
            return dt_error_set(err, DT_ERR_INPUT,
                                "plan, module %s: virtual stage %d holds no block (split %d, %d)",
                                p->module_names[m], i, mp->split[i], mp->split[i + 1]);
    return DT_OK;
}

static enum dt_status check_place(const struct dt_plan *p, int m, const struct dt_cluster *c,
                                  struct dt_error *err)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    int width = dt_plan_layout_lane_gpus(l), gpus = dt_plan_layout_gpus(l);
    int node = width < c->gpus_per_node ? width : c->gpus_per_node;

    if (!lane_fits_nodes(width, c->gpus_per_node))
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: lanes of %d GPUs (tp*cp*ip) do not tile nodes of %d",
                            p->module_names[m], width, c->gpus_per_node);
    if (l->first_gpu < 0 || (int64_t)l->first_gpu + gpus > dt_cluster_gpus(c))
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: GPUs %d to %lld are outside cluster %s (%d GPUs)",
                            p->module_names[m], l->first_gpu, (long long)l->first_gpu + gpus - 1,
                            c->name, dt_cluster_gpus(c));
    if (l->first_gpu % node != 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: first_gpu %d is not a multiple of %d, so that lanes "
                            "of %d GPUs would straddle nodes",
                            p->module_names[m], l->first_gpu, node, width);
    for (int o = 0; o < m && !p->colocated; o++) {
        const struct dt_plan_layout *k = &p->modules[o].layout;

        if (l->first_gpu < k->first_gpu + dt_plan_layout_gpus(k) &&
            k->first_gpu < l->first_gpu + gpus)
            return dt_error_set(err, DT_ERR_INPUT,
                                "plan: modules %s (GPUs %d to %d) and %s (GPUs %d to %d) share "
                                "GPUs; move one by first_gpu, or state colocated: true",
                                p->module_names[o], k->first_gpu,
                                k->first_gpu + dt_plan_layout_gpus(k) - 1, p->module_names[m],
                                l->first_gpu, l->first_gpu + gpus - 1);
    }
    return DT_OK;
}

static enum dt_status check_policy(const struct dt_plan *p, int llm, struct dt_error *err)
{
    const struct dt_plan_policy *y = &p->policy;

    if (y->global_batch < 1 || y->microbatch < 1 || y->seq_len < 1)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan: global_batch, microbatch and seq_len must be at least 1");
    if ((unsigned)y->schedule >= DT_SCHED_N || (unsigned)y->recompute > DT_RECOMPUTE_FULL ||
        (unsigned)p->strategy >= DT_STRATEGY_N || (y->zero != 0 && y->zero != 1))
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan: unknown schedule, recompute, strategy or zero");
    if (y->global_batch % dt_plan_slot_samples(p, llm) != 0)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "plan: global batch %lld is not a multiple of dp %d x microbatch %d of %s",
            (long long)y->global_batch, p->modules[llm].layout.dp, y->microbatch,
            p->module_names[llm]);
    return DT_OK;
}

enum dt_status dt_plan_validate(const struct dt_plan *p, const struct dt_model *m,
                                const struct dt_cluster *c, struct dt_error *err)
{
    if (p->n_modules != m->n_modules)
        return dt_error_set(err, DT_ERR_INPUT, "plan has %d modules, model %s has %d", p->n_modules,
                            m->name, m->n_modules);
    for (int i = 0; i < m->n_modules; i++) {
        if (strcmp(p->module_names[i], m->modules[i].name) != 0)
            return dt_error_set(err, DT_ERR_INPUT, "plan: module %d is %s, in model %s it is %s", i,
                                p->module_names[i], m->name, m->modules[i].name);
        DT_TRY(check_degrees(p, i, &m->modules[i], err));
        DT_TRY(check_blocks(p, i, &m->modules[i], err));
        DT_TRY(check_place(p, i, c, err));
    }
    return check_policy(p, m->llm, err);
}

/* ---- freezing ---- */

bool dt_plan_trained(const struct dt_plan *p, const struct dt_model *m, int module, int block)
{
    return !p->modules[module].frozen ||
           m->modules[module].blocks[block].kind == DT_BLOCK_PROJECTOR;
}

bool dt_plan_splits_backward(const struct dt_plan *p, const struct dt_model *m, int module, int v)
{
    const uint16_t *split = &p->modules[module].split[v];

    for (int b = split[0]; dt_pipe_of(p->policy.schedule)->put_off && b < split[1]; b++)
        if (dt_plan_trained(p, m, module, b) && dt_block_params(&m->modules[module].blocks[b]) > 0)
            return true;
    return false;
}

void dt_plan_trainable(const struct dt_plan *p, const struct dt_model *m, int module,
                       unsigned char *out)
{
    for (int b = 0; b < m->modules[module].n_blocks; b++)
        out[b] = dt_plan_trained(p, m, module, b);
}

static bool any_trained(const struct dt_plan *p, const struct dt_model *m, int module, int n_blocks)
{
    for (int b = 0; b < n_blocks; b++)
        if (dt_plan_trained(p, m, module, b))
            return true;
    return false;
}

bool dt_plan_upstream_trained(const struct dt_plan *p, const struct dt_model *m, int module,
                              int block)
{
    bool reaches[DT_MAX_MODULES] = {false};

    if (any_trained(p, m, module, block))
        return true;
    /* Modules are in topological order: walk back from this one, marking all that reach it. */
    reaches[module] = true;
    for (int s = module; s >= 0; s--) {
        if (!reaches[s])
            continue;
        if (s != module && any_trained(p, m, s, m->modules[s].n_blocks))
            return true;
        for (int e = 0; e < m->n_edges; e++)
            if (m->edges[e].dst == s)
                reaches[m->edges[e].src] = true;
    }
    return false;
}
