/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Plans: structural validity, and what freezing means for a block (placement: plan_place.c). */
#include "core/model/plan.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define NAME(id, name, planner, help) name,
#define HELP(id, name, planner, help) help,
const char *const dt_plan_strategy_names[DT_STRATEGY_N + 1] = {DT_STRATEGIES(NAME) NULL};
const char *const dt_plan_strategy_help[DT_STRATEGY_N + 1] = {DT_STRATEGIES(HELP) NULL};
#undef NAME
#undef HELP

int64_t dt_plan_slot_samples(const struct dt_plan *p, int llm)
{
    return (int64_t)p->modules[llm].layout.dp * p->policy.microbatch;
}

int64_t dt_plan_slots(const struct dt_plan *p, int llm)
{
    return p->policy.global_batch / dt_plan_slot_samples(p, llm);
}

int64_t dt_plan_window(const struct dt_plan *p, int llm, int module)
{
    const struct dt_plan_module *mp = &p->modules[module];
    int64_t slots = dt_plan_slots(p, llm);

    if (mp->window == 0)
        return module != llm && mp->layout.dp > p->policy.global_batch;
    return mp->window > 0 && mp->window < slots ? mp->window : slots;
}

int64_t dt_plan_microbatches(const struct dt_plan *p, int llm, int module)
{
    int64_t dp = p->modules[module].layout.dp, window = dt_plan_window(p, llm, module);

    if (window > 0)
        return (dt_plan_slots(p, llm) + window - 1) / window;
    if (dp <= dt_plan_slot_samples(p, llm))
        return dt_plan_slots(p, llm);
    return (p->policy.global_batch + dp - 1) / dp;
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
        p->modules[i].split[1] = (uint16_t)m->modules[i].n_blocks;
    }
}

/* ---- validity ---- */

static enum dt_status bad(struct dt_error *err, const struct dt_plan *p, int m, const char *what)
{
    return dt_error_set(err, DT_ERR_INPUT, "plan, module %s: %s", p->module_names[m], what);
}

bool dt_plan_allows_ep(const struct dt_module *m, int ep, int copies)
{
    bool any = false;

    if (ep == 1)
        return true;
    for (int b = 0; b < m->n_blocks; b++) {
        any |= m->blocks[b].n_experts > 0;
        if (m->blocks[b].n_experts % ep != 0)
            return false;
    }
    return any && copies % ep == 0;
}

/* Why not. */
static enum dt_status check_experts(const struct dt_plan *p, int m, const struct dt_module *mod,
                                    struct dt_error *err)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    int most = 0;

    if (dt_plan_allows_ep(mod, l->ep, l->dp * l->cp))
        return DT_OK;
    for (int b = 0; b < mod->n_blocks; b++)
        most = mod->blocks[b].n_experts > most ? mod->blocks[b].n_experts : most;
    if (most == 0)
        return dt_error_set(err, DT_ERR_INPUT, "plan, module %s: ep %d, but it has no experts",
                            p->module_names[m], l->ep);
    if (l->dp * l->cp % l->ep != 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: ep %d does not divide dp*cp = %d, the ranks that "
                            "experts are dealt to",
                            p->module_names[m], l->ep, l->dp * l->cp);
    return dt_error_set(err, DT_ERR_INPUT, "plan, module %s: ep %d does not divide the %d experts",
                        p->module_names[m], l->ep, most);
}

/* A generator waits for the LLM's forwards, and the LLM's first backward for the generator: more slots at a time would have
 * the LLM hold all of them. */
static enum dt_status check_window(const struct dt_plan *p, int m, const struct dt_module *mod,
                                   struct dt_error *err)
{
    int window = p->modules[m].window;

    if (window != 0 && mod->role == DT_ROLE_LLM)
        return bad(err, p, m,
                   "window (slots whose items replicas share) is for encoders and generators");
    if (window != 0 && window != 1 && mod->role == DT_ROLE_GENERATOR)
        return bad(
            err, p, m,
            "a generator's replicas share the items of one slot at a time: window 1, or none "
            "for whole samples");
    return DT_OK;
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
    if (l->cp > 1 && dt_module_is_unfused(mod))
        return bad(err, p, m,
                   "cp (context parallelism) needs attention: flash; with unfused attention there "
                   "is none");
    if (l->ip > 1 && mod->role == DT_ROLE_LLM)
        return bad(err, p, m, "ip (image parallelism) is for encoders and generators");
    DT_TRY(check_window(p, m, mod, err));
    return check_experts(p, m, mod, err);
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

static enum dt_status check_zero_group(const struct dt_plan *p, int m, struct dt_error *err)
{
    const struct dt_plan_module *mp = &p->modules[m];
    int64_t copies = dt_plan_layout_copies(&mp->layout);

    if (mp->zero_group == 0)
        return DT_OK;
    if (mp->zero != 1 || mp->layout.ep > 1)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: zero_group cuts the ranks that shard optimizer "
                            "states into groups: it takes zero 1 and ep 1, not zero %d and ep %d",
                            p->module_names[m], mp->zero, mp->layout.ep);
    if (mp->zero_group < 0 || copies % mp->zero_group != 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: zero_group %d does not divide dp*cp*ip = %lld, the "
                            "ranks that hold the same parameters",
                            p->module_names[m], mp->zero_group, (long long)copies);
    return DT_OK;
}

/* What is exchanged at each microbatch (ZeRO 2 and 3) needs replicas that work in step, slot by slot. */
static enum dt_status check_in_step(const struct dt_plan *p, int m, int llm, struct dt_error *err)
{
    int64_t slot = dt_plan_slot_samples(p, llm);

    for (int o = 0; o < p->n_modules; o++) {
        int64_t window = dt_plan_window(p, llm, o);

        if (window == 0 && p->modules[o].layout.dp > slot)
            return dt_error_set(err, DT_ERR_INPUT,
                                "plan, module %s: zero %d exchanges gradients at each microbatch, "
                                "but the %d replicas of %s share slots of %lld sample%s and do not "
                                "work in step; use zero 0 or 1, or window 1 of %s",
                                p->module_names[m], p->modules[m].zero, p->modules[o].layout.dp,
                                p->module_names[o], (long long)slot, dt_plural(slot),
                                p->module_names[o]);
        if (window > 1)
            return dt_error_set(
                err, DT_ERR_INPUT,
                "plan, module %s: zero %d exchanges gradients at each microbatch, "
                "but a microbatch of %s has the items of %lld slots (window), so modules do "
                "not work in step; use zero 0 or 1, or window 1 of %s",
                p->module_names[m], p->modules[m].zero, p->module_names[o], (long long)window,
                p->module_names[o]);
    }
    return DT_OK;
}

static enum dt_status check_modes(const struct dt_plan *p, int m, int llm,
                                  const struct dt_cluster *c, struct dt_error *err)
{
    const struct dt_plan_module *mp = &p->modules[m];
    const char *schedule = dt_pipe_schedule_names[p->policy.schedule];

    if ((unsigned)mp->recompute > DT_RECOMPUTE_FULL || mp->zero < 0 || mp->zero > DT_ZERO_MAX)
        return bad(err, p, m, "unknown recompute or zero");
    if ((unsigned)mp->offload >= DT_OFFLOAD_N)
        return bad(err, p, m, "unknown offload");
    DT_TRY(check_zero_group(p, m, err));
    if (mp->zero < 2 || dt_plan_layout_copies(&mp->layout) == 1)
        return DT_OK;
    if (dt_cluster_is_cpu(c))
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: zero %d: on CPUs gradients and parameters are not "
                            "sharded; use zero 0 or 1",
                            p->module_names[m], mp->zero);
    if (mp->zero > 2 && dt_pipe_of(p->policy.schedule)->put_off)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: zero 3 gathers parameters for a forward and a "
                            "backward, and schedule %s splits the backward; use zero 2",
                            p->module_names[m], schedule);
    return check_in_step(p, m, llm, err);
}

static enum dt_status check_policy(const struct dt_plan *p, int llm, const struct dt_cluster *c,
                                   struct dt_error *err)
{
    const struct dt_plan_policy *y = &p->policy;

    if (y->global_batch < 1 || y->microbatch < 1 || y->seq_len < 1)
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan: global_batch, microbatch and seq_len must be at least 1");
    if ((unsigned)y->schedule >= DT_SCHED_N || (unsigned)p->strategy >= DT_STRATEGY_N)
        return dt_error_set(err, DT_ERR_INPUT, "plan: unknown schedule or strategy");
    if (y->bf16_grads && dt_cluster_is_cpu(c))
        return dt_error_set(err, DT_ERR_INPUT, "plan: bf16_grads: on CPUs gradients are fp32");
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
        DT_TRY(check_modes(p, i, m->llm, c, err));
        DT_TRY(check_degrees(p, i, &m->modules[i], err));
        DT_TRY(check_blocks(p, i, &m->modules[i], err));
    }
    DT_TRY(dt_plan_check_places(p, c, err));
    DT_TRY(check_policy(p, m->llm, c, err));
    DT_TRY(dt_plan_check_warmup(p, m, err));
    DT_TRY(dt_plan_check_phases(p, m, err));
    for (int i = 0; i < m->n_modules; i++)
        DT_TRY(dt_plan_check_offload(p, m, i, c, err));
    return p->policy.assignment == DT_ASSIGNMENT_ENTRAIN ? dt_plan_check_entrain(p, m, err) : DT_OK;
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

/* ---- for people ---- */

#define NAME(id, name, help) name,
const char *const dt_plan_cp_comm_names[DT_CP_COMM_N + 1] = {DT_CP_COMMS(NAME) NULL};
const char *const dt_plan_offload_names[DT_OFFLOAD_N + 1] = {DT_OFFLOADS(NAME) NULL};
#undef NAME

typedef const char *text_of(const struct dt_plan_module *mp, char *buf, size_t size);

static const char *recompute_of(const struct dt_plan_module *mp, char *buf, size_t size)
{
    (void)buf;
    (void)size;
    return dt_block_recompute_names[mp->recompute];
}

static const char *zero_of(const struct dt_plan_module *mp, char *buf, size_t size)
{
    if (mp->zero_group > 0)
        snprintf(buf, size, "%d in groups of %d", mp->zero, mp->zero_group);
    else
        snprintf(buf, size, "%d", mp->zero);
    return buf;
}

static const char *offload_of(const struct dt_plan_module *mp, char *buf, size_t size)
{
    (void)buf;
    (void)size;
    return dt_plan_offload_names[mp->offload];
}

/* One word if all modules have the same, else each with its name. */
static const char *of_modules(const struct dt_plan *p, text_of *of, char *buf, size_t size)
{
    char one[32], other[32];
    bool same = true;
    size_t used = 0;

    for (int m = 1; m < p->n_modules; m++)
        same &= strcmp(of(&p->modules[0], one, sizeof(one)),
                       of(&p->modules[m], other, sizeof(other))) == 0;
    if (same) {
        snprintf(buf, size, "%s", of(&p->modules[0], one, sizeof(one)));
        return buf;
    }
    for (int m = 0; m < p->n_modules && used < size; m++)
        used += (size_t)snprintf(buf + used, size - used, "%s%s %s", m ? ", " : "",
                                 p->module_names[m], of(&p->modules[m], one, sizeof(one)));
    return buf;
}

const char *dt_plan_recompute_text(const struct dt_plan *p, char *buf, size_t size)
{
    return of_modules(p, recompute_of, buf, size);
}

const char *dt_plan_zero_text(const struct dt_plan *p, char *buf, size_t size)
{
    return of_modules(p, zero_of, buf, size);
}

const char *dt_plan_offload_text(const struct dt_plan *p, char *buf, size_t size)
{
    return of_modules(p, offload_of, buf, size);
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

bool dt_plan_steps_on_host(const struct dt_plan *p, const struct dt_model *m)
{
    for (int i = 0; i < p->n_modules; i++)
        if (dt_plan_offloads_optimizer(&p->modules[i]) &&
            any_trained(p, m, i, m->modules[i].n_blocks))
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
