/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a timeline says: busy time, bubbles, waits by cause.
 *
 * A compute op that begins after the one before it has waited.  The part of the gap in which the
 * last thing that it needs was already produced and only under way (a transfer whose producer has
 * ended, a collective whose last member is ready) is exposed communication; the rest is a wait for
 * other computation.  An optimizer step needs the gradient norm, which needs the gradient syncs of all
 * lanes: it is only communication as soon as the last of them has computed its gradients. */
#include "core/schedule/timeline.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static bool is_compute(const struct dt_op *op)
{
    return dt_op_resource(op->kind) == DT_RES_COMPUTE;
}

static bool is_work(const struct dt_op *op)
{
    return op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD || op->kind == DT_OP_WEIGHT_GRAD;
}

int64_t dt_timeline_computed_ns(const struct dt_program *p, const struct dt_timeline *t)
{
    int64_t last = 0;

    for (int k = 0; k < p->n_lanes; k++) {
        const struct dt_lane *l = &p->lanes[k];
        int64_t end = 0;
        bool member = false;

        for (uint32_t i = l->first; i < l->first + l->n; i++) {
            member |= p->ops[i].kind == DT_OP_GRAD_NORM;
            if (is_work(&p->ops[i]) && t->end_ns[i] > end)
                end = t->end_ns[i];
        }
        last = member && end > last ? end : last;
    }
    return last;
}

/* From when op `d`, which a compute op waits for, was only communication: the end of what a
 * message's SEND carries, the begin of a collective, the last gradients of a norm.  The end of `d` itself for
 * anything else. */
static int64_t produced_ns(const struct dt_program *p, const struct dt_timeline *t,
                           int64_t computed_ns, uint32_t d)
{
    const struct dt_op *op = &p->ops[d];

    if (op->kind == DT_OP_RECV && op->peer < p->n_ops) {
        uint32_t producer = p->ops[op->peer].dep[1];

        return producer < p->n_ops ? t->end_ns[producer] : t->begin_ns[op->peer];
    }
    if (op->kind == DT_OP_GRAD_NORM)
        return computed_ns;
    if (dt_op_resource(op->kind) == DT_RES_COLL)
        return t->begin_ns[d];
    return t->end_ns[d];
}

/* When the last input of op `i` that is no compute op of its own lane was produced. */
static int64_t inputs_produced_ns(const struct dt_program *p, const struct dt_timeline *t,
                                  int64_t computed_ns, uint32_t i, uint32_t previous)
{
    const struct dt_op *op = &p->ops[i];
    int64_t at = 0;

    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE && op->dep[k] != previous) {
            int64_t x = produced_ns(p, t, computed_ns, op->dep[k]);

            at = x > at ? x : at;
        }
    for (uint32_t k = 0; k < op->more_n; k++) {
        uint32_t d = p->deps[op->more_first + k];

        if (d != DT_NONE && d != previous) {
            int64_t x = produced_ns(p, t, computed_ns, d);

            at = x > at ? x : at;
        }
    }
    return at;
}

void dt_timeline_lane(const struct dt_program *p, const struct dt_timeline *t, int64_t computed_ns,
                      int lane, struct dt_lane_summary *out)
{
    const struct dt_lane *l = &p->lanes[lane];
    uint32_t previous = DT_NONE;
    int64_t free_ns = 0;

    memset(out, 0, sizeof(*out));
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        int64_t produced, gap;

        if (!is_compute(&p->ops[i]))
            continue;
        if (previous == DT_NONE)
            out->first_ns = t->begin_ns[i];
        gap = t->begin_ns[i] - free_ns;
        if (gap > 0) {
            int64_t comm;

            produced = inputs_produced_ns(p, t, computed_ns, i, previous);
            produced = produced < free_ns ? free_ns : produced;
            comm = t->begin_ns[i] - produced;

            comm = comm < 0 ? 0 : comm;
            out->comm_wait_ns += comm;
            out->dep_wait_ns += gap - comm;
        }
        *(dt_program_on_host(p, &p->ops[i]) ? &out->host_ns : &out->busy_ns) +=
            t->end_ns[i] - t->begin_ns[i];
        free_ns = out->last_ns = t->end_ns[i];
        previous = i;
    }
}

/* The lane whose last backward ends last: it holds up all others at the gradient norm. */
static const struct dt_lane *critical_lane(const struct dt_program *p, const struct dt_timeline *t)
{
    uint32_t lane = 0;
    int64_t last = -1;

    for (uint32_t i = 0; i < p->n_ops; i++)
        if (is_work(&p->ops[i]) && t->end_ns[i] > last) {
            last = t->end_ns[i];
            lane = p->ops[i].lane;
        }
    return &p->lanes[lane];
}

/* Its tail: from its last backward to the end, by cause. */
static void tail(const struct dt_program *p, const struct dt_timeline *t,
                 struct dt_timeline_summary *out)
{
    const struct dt_lane *l = critical_lane(p, t);
    int64_t computed = 0, synced = 0;

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &p->ops[i];

        if (is_work(op))
            computed = t->end_ns[i] > computed ? t->end_ns[i] : computed;
        else if (op->kind == DT_OP_GRAD_SYNC || op->kind == DT_OP_GRAD_NORM)
            synced = t->end_ns[i] > synced ? t->end_ns[i] : synced;
        else if (op->kind == DT_OP_STEP)
            out->step_s += 1e-9 * (double)(t->end_ns[i] - t->begin_ns[i]);
    }
    if (synced > computed)
        out->sync_s = 1e-9 * (double)(synced - computed);
}

/* Time in which the first compute op of a lane stands behind parameter gathers only. */
static double gather_s(const struct dt_program *p, const struct dt_timeline *t, int lane)
{
    const struct dt_lane *l = &p->lanes[lane];
    int64_t gathered = 0;

    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (p->ops[i].kind == DT_OP_FORWARD) {
            const struct dt_op *op = &p->ops[i];

            for (int k = 1; k < 3; k++)
                if (op->dep[k] != DT_NONE && p->ops[op->dep[k]].kind == DT_OP_PARAM_GATHER)
                    gathered = t->end_ns[op->dep[k]];
            for (uint32_t k = 0; k < op->more_n; k++) {
                uint32_t d = p->deps[op->more_first + k];

                if (p->ops[d].kind == DT_OP_PARAM_GATHER && t->end_ns[d] > gathered)
                    gathered = t->end_ns[d];
            }
            return gathered == t->begin_ns[i] ? 1e-9 * (double)gathered : 0;
        }
    return 0;
}

/* ---- lanes that share GPUs ---- */

struct edge { /* where a lane's GPUs begin or end */
    uint32_t gpu;
    int lane;
};
struct cursor {
    int lane;
    uint32_t at, previous; /* its next compute op, and the one before */
};

static int by_gpu(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;

    return x->gpu != y->gpu ? (x->gpu > y->gpu ? 1 : -1) : x->lane - y->lane;
}

static uint32_t next_compute(const struct dt_program *p, const struct dt_lane *l, uint32_t i)
{
    while (i < l->first + l->n && !is_compute(&p->ops[i]))
        i++;
    return i;
}

/* What a GPU waits for communication: the compute ops of its lanes in the order in which they begin. */
static int64_t comm_of_gpu(const struct dt_program *p, const struct dt_timeline *t,
                           int64_t computed_ns, struct cursor *c, int n)
{
    int64_t free_ns = 0, comm = 0;

    for (int k = 0; k < n; k++) {
        c[k].at = next_compute(p, &p->lanes[c[k].lane], p->lanes[c[k].lane].first);
        c[k].previous = DT_NONE;
    }
    for (;;) {
        struct cursor *x = NULL;

        for (int k = 0; k < n; k++)
            if (c[k].at < p->lanes[c[k].lane].first + p->lanes[c[k].lane].n &&
                (!x || t->begin_ns[c[k].at] < t->begin_ns[x->at]))
                x = &c[k];
        if (!x)
            return comm;
        if (t->begin_ns[x->at] > free_ns) {
            int64_t produced = inputs_produced_ns(p, t, computed_ns, x->at, x->previous);

            produced = produced < free_ns ? free_ns : produced;
            if (t->begin_ns[x->at] > produced)
                comm += t->begin_ns[x->at] - produced;
        }
        if (t->end_ns[x->at] > free_ns)
            free_ns = t->end_ns[x->at];
        x->previous = x->at;
        x->at = next_compute(p, &p->lanes[x->lane], x->at + 1);
    }
}

/* The sum over GPUs; those between two edges have the same lanes. */
static double comm_of_gpus(const struct dt_program *p, const struct dt_timeline *t,
                           int64_t computed_ns, struct edge *first, struct edge *last,
                           struct cursor *c)
{
    double sum = 0;
    int n = 0, in = 0, out = 0;

    for (int l = 0; l < p->n_lanes; l++) {
        first[l] = (struct edge){p->lanes[l].first_gpu, l};
        last[l] = (struct edge){p->lanes[l].first_gpu + p->lanes[l].gpus, l};
    }
    qsort(first, (size_t)p->n_lanes, sizeof(*first), by_gpu);
    qsort(last, (size_t)p->n_lanes, sizeof(*last), by_gpu);
    while (out < p->n_lanes) {
        uint32_t from = n > 0 ? last[out].gpu : first[in].gpu, to;
        int kept = 0;

        if (n > 0 && in < p->n_lanes && first[in].gpu < from)
            from = first[in].gpu;
        for (int k = 0; k < n; k++) {
            const struct dt_lane *l = &p->lanes[c[k].lane];

            if (l->first_gpu + l->gpus > from)
                c[kept++] = c[k];
        }
        n = kept;
        while (out < p->n_lanes && last[out].gpu <= from)
            out++;
        while (in < p->n_lanes && first[in].gpu <= from)
            c[n++].lane = first[in++].lane;
        if (n == 0)
            continue;
        to = last[out].gpu;
        if (in < p->n_lanes && first[in].gpu < to)
            to = first[in].gpu;
        sum += (double)comm_of_gpu(p, t, computed_ns, c, n) * (to - from);
    }
    return sum;
}

static enum dt_status shared_comm(const struct dt_program *p, const struct dt_timeline *t,
                                  int64_t computed_ns, struct dt_error *err, double *ns)
{
    size_t n = (size_t)p->n_lanes;
    struct edge *e = dt_malloc(2 * n * sizeof(*e));
    struct cursor *c = dt_malloc(n * sizeof(*c));

    if (e && c)
        *ns = comm_of_gpus(p, t, computed_ns, e, e + n, c);
    dt_free(e);
    dt_free(c);
    return e && c ? DT_OK : dt_error_nomem(err, "waits of GPUs");
}

/* ---- all of it ---- */

enum dt_status dt_timeline_summarise(const struct dt_program *p, const struct dt_timeline *t,
                                     struct dt_error *err, struct dt_timeline_summary *out)
{
    double busy = 0, gpus = 0, comm = 0, by_module[DT_MAX_MODULES] = {0}, of[DT_MAX_MODULES] = {0};
    double span = (double)t->makespan_ns;
    int64_t computed_ns = dt_timeline_computed_ns(p, t);

    memset(out, 0, sizeof(*out));
    out->iteration_s = 1e-9 * span;
    for (int i = 0; i < p->n_lanes; i++) {
        const struct dt_lane *l = &p->lanes[i];
        struct dt_lane_summary s;

        dt_timeline_lane(p, t, computed_ns, i, &s);
        busy += (double)s.busy_ns * l->gpus;
        comm += (double)s.comm_wait_ns * l->gpus;
        gpus += l->gpus;
        by_module[l->module] += (double)s.busy_ns * l->gpus;
        of[l->module] += l->gpus;
    }
    if (p->n_lanes < 1 || span <= 0)
        return DT_OK;
    if (p->plan && dt_plan_shares(p->plan)) {
        gpus = dt_plan_gpus(p->plan);
        DT_TRY(shared_comm(p, t, computed_ns, err, &comm));
    }
    out->bubble_fraction = 1 - busy / (gpus * span);
    out->exposed_comm_s = 1e-9 * comm / gpus;
    for (int m = 0; m < DT_MAX_MODULES; m++)
        out->utilisation[m] = of[m] > 0 ? by_module[m] / (of[m] * span) : 0;
    tail(p, t, out);
    /* The gathers that delay the start: of the lane whose first forward leads the pipeline. */
    for (int i = 0; i < p->n_lanes; i++)
        if (p->lanes[i].stage == 0) {
            double g = gather_s(p, t, i);

            out->gather_s = g > out->gather_s ? g : out->gather_s;
        }
    return DT_OK;
}
