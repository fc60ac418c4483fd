/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Contributions to an iteration.  Compute is first summed per virtual stage and direction, then
 * dealt to kernels as those of the stage's mean microbatch, so that the price is one question per
 * stage and not one per op; so is the rest, per module, kind and direction. */
#include "report/explain.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 2048, ORIGINS = 512 };

struct stage_ns {
    double critical[2], gpu[2]; /* forward, backward */
};
struct other_ns { /* of what does not compute */
    double critical, gpu;
    bool any;
};
struct origin { /* of a kernel asked for before */
    int family, phase;
    int64_t d[6];
    struct dt_cost_origin o;
};
struct explain {
    const struct dt_program *p;
    const struct dt_model *model;
    struct dt_cost *cost;
    const struct dt_timeline *t;
    struct stage_ns *stage[DT_MAX_MODULES];                 /* [pp * vpp] */
    struct other_ns other[DT_MAX_MODULES][DT_CONTRIB_N][2]; /* forward, backward */
    struct dt_explain_contribution *row;
    int n, n_origins;
    struct origin *origin;
    /* the stage at hand */
    int module;
    double f_ns, b_ns; /* of its mean microbatch */
    const struct stage_ns *now;
    bool second; /* parts are being added, not summed */
    struct dt_arena arena;
};

enum dt_report_error_family dt_explain_contribution_family(const struct dt_explain_contribution *c)
{
    switch (c->kind) {
    case DT_CONTRIB_HOST:
    case DT_CONTRIB_DATA:
    case DT_CONTRIB_LINK:
        return DT_ERRF_HOST;
    case DT_CONTRIB_TRANSFER:
    case DT_CONTRIB_WAIT:
        return DT_ERRF_P2P;
    case DT_CONTRIB_GRAD_SYNC:
    case DT_CONTRIB_GRAD_NORM:
    case DT_CONTRIB_PARAM_GATHER:
        return DT_ERRF_COLLECTIVE;
    case DT_CONTRIB_KERNEL:
    case DT_CONTRIB_STEP:
    case DT_CONTRIB_N:
        break;
    }
    return dt_report_error_family_of(c->family);
}

void dt_explain_contribution_text(const struct dt_explain_contribution *c, char *buf, size_t size)
{
    static const char *const names[DT_CONTRIB_N] = {
        [DT_CONTRIB_HOST] = "waiting for the host",
        [DT_CONTRIB_TRANSFER] = "transfer",
        [DT_CONTRIB_GRAD_SYNC] = "gradient sync",
        [DT_CONTRIB_GRAD_NORM] = "gradient norm",
        [DT_CONTRIB_PARAM_GATHER] = "parameter gather",
        [DT_CONTRIB_STEP] = "optimizer step",
        [DT_CONTRIB_WAIT] = "waiting for links",
        [DT_CONTRIB_DATA] = "waiting for data",
        [DT_CONTRIB_LINK] = "parameters over the host link",
    };

    if (c->kind != DT_CONTRIB_KERNEL)
        snprintf(buf, size, "%s", names[c->kind]);
    else if (c->n > 0)
        snprintf(buf, size, "%s %lld x %lld%s", dt_kop_family_names[c->family], (long long)c->n,
                 (long long)c->k, c->core ? " (scores)" : "");
    else
        snprintf(buf, size, "%s%s", dt_kop_family_names[c->family], c->core ? " (scores)" : "");
}

/* The row with this key, made when it is new; the last row takes what does not fit. */
static struct dt_explain_contribution *find(struct explain *e,
                                            const struct dt_explain_contribution *key)
{
    for (int i = 0; i < e->n; i++) {
        struct dt_explain_contribution *r = &e->row[i];

        if (r->kind == key->kind && r->module == key->module && r->family == key->family &&
            r->direction == key->direction && r->core == key->core && r->n == key->n &&
            r->k == key->k)
            return r;
    }
    if (e->n == MAX_ROWS)
        return &e->row[MAX_ROWS - 1];
    e->row[e->n] = *key;
    return &e->row[e->n++];
}

static void add(struct dt_explain_contribution *r, double critical, double gpu,
                const struct dt_cost_origin *o)
{
    double sigma = fmax(o->sigma, dt_report_error_sigma[dt_explain_contribution_family(r)]);
    double before = r->gpu_ns + r->critical_ns, weight = gpu + critical;

    if (before + weight > 0)
        r->sigma = (r->sigma * before + sigma * weight) / (before + weight);
    if (weight > r->source_ns || !r->source[0]) {
        snprintf(r->source, sizeof r->source, "%s", o->source);
        r->rests = o->kind;
        r->source_ns = weight;
    }
    r->critical_ns += critical;
    r->gpu_ns += gpu;
}

static struct dt_cost_origin origin_of(struct explain *e, const struct dt_kop *k,
                                       enum dt_kop_phase phase)
{
    struct origin *o = NULL;

    for (int i = 0; i < e->n_origins; i++) {
        o = &e->origin[i];
        if (o->family == (int)k->family && o->phase == (int)phase &&
            memcmp(o->d, k->d, sizeof o->d) == 0)
            return o->o;
    }
    if (e->n_origins < ORIGINS)
        o = &e->origin[e->n_origins++]; /* else the last one is asked for again */
    o->family = (int)k->family;
    o->phase = (int)phase;
    memcpy(o->d, k->d, sizeof o->d);
    dt_cost_origin(e->cost, k, phase, &o->o);
    return o->o;
}

static void part(void *ctx, const struct dt_kop *k, enum dt_cost_direction dir,
                 const struct dt_cost_time *t)
{
    static const enum dt_kop_phase phase_of[] = {DT_PHASE_FWD, DT_PHASE_DGRAD, DT_PHASE_WGRAD,
                                                 DT_PHASE_FWD};
    struct explain *e = ctx;
    struct dt_explain_contribution key = {.module = e->module, .family = -1, .direction = (int)dir};
    struct dt_cost_origin o = {.source = "time per kernel, the job's train.dispatch", .kind = -2};
    bool back = dir != DT_DIR_FWD;
    double share;

    if (!e->second) {
        *(back ? &e->b_ns : &e->f_ns) += t->ns;
        return;
    }
    share = t->ns / (back ? e->b_ns : e->f_ns);
    key.kind = k ? DT_CONTRIB_KERNEL : DT_CONTRIB_HOST;
    if (k) {
        key.family = (int)k->family;
        key.core = k->core;
        key.n = k->family == DT_KOP_GEMM ? k->d[1] : 0;
        key.k = k->family == DT_KOP_GEMM ? k->d[2] : 0;
        o = origin_of(e, k, phase_of[dir]);
    }
    add(find(e, &key), share * e->now->critical[back], share * e->now->gpu[back], &o);
}

static void mean_work(const struct dt_assignment_module *a, struct dt_work *mean)
{
    int64_t n = 0;

    memset(mean, 0, sizeof *mean);
    for (uint32_t i = 0; i < a->mb_first[a->n_replicas]; i++) {
        dt_work_add(mean, &a->work[i]);
        n += a->work[i].n > 0;
    }
    if (n == 0)
        return;
    mean->n = (mean->n + n - 1) / n;
    mean->tokens = (mean->tokens + n - 1) / n;
    mean->tokens_sq = (mean->tokens_sq + n - 1) / n;
}

static enum dt_status module_parts(struct explain *e, int module, struct dt_error *err)
{
    const struct dt_plan *plan = e->p->plan;
    const struct dt_plan_module *mp = &plan->modules[module];
    const struct dt_plan_layout *l = &mp->layout;
    int node = dt_cost_cluster(e->cost)->gpus_per_node;
    unsigned char *trainable =
        DT_ARENA_NEW(&e->arena, unsigned char, e->model->modules[module].n_blocks + 1);
    struct dt_work mean;

    if (!trainable)
        return dt_error_nomem(err, "an explanation");
    dt_plan_trainable(plan, e->model, module, trainable);
    mean_work(&e->p->assignment->m[module], &mean);
    e->module = module;
    for (int v = 0; v < l->pp * l->vpp && mean.n > 0; v++) {
        int first = mp->split[v], n = mp->split[v + 1] - first;
        bool upstream = dt_plan_upstream_trained(plan, e->model, module, first);
        const struct dt_block_shard shard = dt_plan_stage_shard(plan, module, v % l->pp, node);

        e->now = &e->stage[module][v];
        e->f_ns = e->b_ns = 0;
        for (int pass = 0; pass < 2; pass++) {
            e->second = pass == 1;
            dt_cost_stage_parts(e->cost, module, first, n, &shard, &mean, trainable, upstream, part,
                                e);
        }
    }
    return DT_OK;
}

/* ---- ops ---- */

static bool compute(const struct dt_op *op)
{
    return op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD || op->kind == DT_OP_WEIGHT_GRAD;
}

static struct stage_ns *stage_of(struct explain *e, const struct dt_op *op)
{
    int pp = e->p->plan->modules[op->module].layout.pp;

    return &e->stage[op->module][op->chunk * pp + op->stage];
}

/* What the time of an op that does not compute counts as. */
static enum dt_explain_contribution_kind kind_of(const struct dt_op *op)
{
    static const uint8_t of[DT_OP_KIND_N] = {
        [DT_OP_SEND] = DT_CONTRIB_TRANSFER,       [DT_OP_RECV] = DT_CONTRIB_TRANSFER,
        [DT_OP_GRAD_SYNC] = DT_CONTRIB_GRAD_SYNC, [DT_OP_GRAD_NORM] = DT_CONTRIB_GRAD_NORM,
        [DT_OP_STEP] = DT_CONTRIB_STEP,           [DT_OP_PARAM_GATHER] = DT_CONTRIB_PARAM_GATHER,
        [DT_OP_FETCH] = DT_CONTRIB_HOST,          [DT_OP_OFFLOAD] = DT_CONTRIB_LINK,
        [DT_OP_RELOAD] = DT_CONTRIB_LINK,
    };

    return (enum dt_explain_contribution_kind)of[op->kind];
}

static struct other_ns *other_of(struct explain *e, const struct dt_op *op, bool waiting)
{
    enum dt_explain_contribution_kind kind = waiting ? DT_CONTRIB_WAIT : kind_of(op);
    bool back = kind == DT_CONTRIB_TRANSFER && (op->flags & DT_OPF_GRAD);

    return &e->other[op->module][kind][back];
}

static void others_of(struct explain *e, int module, enum dt_explain_contribution_kind kind)
{
    struct dt_explain_contribution key = {
        .kind = kind, .module = module, .family = -1, .direction = -1};
    struct dt_cost_origin o = {.source = "link arithmetic", .kind = -1};

    for (int back = 0; back < 2; back++) {
        const struct other_ns *ns = &e->other[module][kind][back];

        if (!ns->any)
            continue;
        if (kind == DT_CONTRIB_TRANSFER)
            key.direction = back ? DT_DIR_DGRAD : DT_DIR_FWD;
        if (kind == DT_CONTRIB_DATA)
            o.source = "simulate.preprocess";
        if (kind == DT_CONTRIB_STEP) {
            key.family = DT_KOP_ADAMW;
            o = origin_of(e, &(struct dt_kop){.family = DT_KOP_ADAMW, .d = {1 << 30}},
                          DT_PHASE_FWD);
        }
        add(find(e, &key), ns->critical, ns->gpu, &o);
    }
}

/* Of ns that op i takes, those until its input is there. */
static int64_t late_ns(const struct explain *e, uint32_t i, int64_t ns)
{
    int64_t begin = e->t->begin_ns[i], late = dt_program_released(e->p, i, begin) - begin;

    return late < ns ? late : ns;
}

static void on_path(void *ctx, uint32_t i, int64_t ns, bool waiting)
{
    struct explain *e = ctx;
    const struct dt_op *op = &e->p->ops[i];
    struct other_ns *other;
    int64_t late = waiting ? 0 : late_ns(e, i, ns);

    if (late > 0) {
        other = &e->other[op->module][DT_CONTRIB_DATA][0];
        other->critical += (double)late;
        other->any = true;
        ns -= late;
        if (ns == 0)
            return;
    }

    if (compute(op) && !waiting) {
        stage_of(e, op)->critical[op->kind != DT_OP_FORWARD] += (double)ns;
        return;
    }
    other = other_of(e, op, waiting);
    other->critical += (double)ns;
    other->any = true;
}

static void all_ops(struct explain *e)
{
    for (uint32_t i = 0; i < e->p->n_ops; i++) {
        const struct dt_op *op = &e->p->ops[i];
        double ns = (double)(e->t->end_ns[i] - e->t->begin_ns[i]) * e->p->lanes[op->lane].gpus;
        struct other_ns *other;

        if (compute(op)) {
            stage_of(e, op)->gpu[op->kind != DT_OP_FORWARD] += ns;
        } else if (op->kind != DT_OP_RECV && op->kind != DT_OP_FETCH && ns > 0) {
            other = other_of(e, op, false);
            other->gpu += ns;
            other->any = true;
        }
    }
}

/* ---- the whole ---- */

static int larger(const void *a, const void *b)
{
    const struct dt_explain_contribution *x = a, *y = b;

    if (x->critical_ns != y->critical_ns)
        return x->critical_ns > y->critical_ns ? -1 : 1;
    if (x->gpu_ns != y->gpu_ns)
        return x->gpu_ns > y->gpu_ns ? -1 : 1;
    if (x->module != y->module)
        return x->module - y->module;
    if (x->kind != y->kind)
        return (int)x->kind - (int)y->kind;
    if (x->family != y->family)
        return x->family - y->family;
    if (x->direction != y->direction)
        return x->direction - y->direction;
    return x->n != y->n ? (x->n > y->n ? 1 : -1) : (x->k > y->k) - (x->k < y->k);
}

static void totals(struct explain *e, struct dt_explanation *out)
{
    for (int i = 0; i < e->n; i++) {
        const struct dt_explain_contribution *r = &e->row[i];
        int f = (int)dt_explain_contribution_family(r);
        double share = r->critical_ns / out->makespan_ns;

        out->gpu_ns += r->gpu_ns;
        out->share[f] += share;
        out->sigma[f] += share * fmax(r->sigma, dt_report_error_sigma[f]);
    }
    for (int f = 0; f < DT_ERRF_N; f++)
        out->sigma[f] =
            out->share[f] > 0 ? out->sigma[f] / out->share[f] : dt_report_error_sigma[f];
}

static enum dt_status explain(struct explain *e, struct dt_error *err, struct dt_explanation *out)
{
    const struct dt_plan *plan = e->p->plan;

    e->row = dt_calloc(MAX_ROWS, sizeof *e->row);
    e->origin = DT_ARENA_NEW(&e->arena, struct origin, ORIGINS);
    if (!e->row || !e->origin)
        return dt_error_nomem(err, "an explanation");
    for (int m = 0; m < plan->n_modules; m++) {
        const struct dt_plan_layout *l = &plan->modules[m].layout;

        e->stage[m] = DT_ARENA_NEW(&e->arena, struct stage_ns, (size_t)l->pp * (size_t)l->vpp);
        if (!e->stage[m])
            return dt_error_nomem(err, "an explanation");
    }
    all_ops(e);
    dt_explain_critical_path(e->p, e->t, on_path, e);
    for (int m = 0; m < plan->n_modules; m++) {
        for (int kind = 0; kind < DT_CONTRIB_N; kind++)
            others_of(e, m, (enum dt_explain_contribution_kind)kind);
        DT_TRY(module_parts(e, m, err));
    }
    DT_TRY(dt_cost_status(e->cost, err));
    out->makespan_ns = (double)e->t->makespan_ns;
    totals(e, out);
    qsort(e->row, (size_t)e->n, sizeof *e->row, larger);
    out->n = e->n;
    out->at = e->row;
    e->row = NULL;
    return DT_OK;
}

enum dt_status dt_explain(const struct dt_program *p, const struct dt_model *m,
                          struct dt_cost *cost, const struct dt_timeline *t, struct dt_error *err,
                          struct dt_explanation *out)
{
    struct explain e = {.p = p, .model = m, .cost = cost, .t = t};
    struct dt_explanation x = {.n = 0};
    enum dt_status st;

    if (t->n_ops != p->n_ops || t->makespan_ns <= 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "explain: the timeline is not of this program");
    st = explain(&e, err, &x);
    dt_free(e.row);
    dt_arena_free(&e.arena);
    if (st == DT_OK)
        *out = x;
    return st;
}

void dt_explanation_free(struct dt_explanation *e)
{
    dt_free(e->at);
    memset(e, 0, sizeof *e);
}
