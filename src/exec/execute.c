/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The walk: one op after the other, each between two events. */
#include "exec/execute_impl.h"

#include <string.h>

/* ---- opening ---- */

static enum dt_status find_edges(struct dt_exec *x, struct dt_error *err)
{
    const struct dt_model *m = x->o.model;

    x->edge[DT_EDGE_IN].src = x->edge[DT_EDGE_COND].src = -1;
    x->edge[DT_EDGE_IN].dst = x->edge[DT_EDGE_COND].dst = -1;
    for (int i = 0; i < m->n_modules; i++)
        if (m->modules[i].modality == DT_MODALITY_AUDIO)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: audio is planned and simulated, not yet trained",
                                m->modules[i].name);
    for (int e = 0; e < m->n_edges; e++) {
        struct dt_exec_edge *x_edge =
            &x->edge[m->edges[e].dst == m->llm ? DT_EDGE_IN : DT_EDGE_COND];

        if (x_edge->src >= 0 || (m->edges[e].dst != m->llm && m->edges[e].src != m->llm))
            return dt_error_set(err, DT_ERR_INPUT,
                                "model %s: training takes one encoder, one LLM and one generator "
                                "at most",
                                m->name);
        x_edge->src = m->edges[e].src;
        x_edge->dst = m->edges[e].dst;
    }
    return DT_OK;
}

static enum dt_status check_layout(const struct dt_exec_options *o, struct dt_error *err)
{
    for (int m = 0; m < o->plan->n_modules; m++) {
        const struct dt_layout *l = &o->plan->modules[m].layout;

        if (l->tp * l->cp * l->ep * l->ip != 1)
            return dt_error_set(
                err, DT_ERR_INPUT,
                "module %s: one process runs lanes of one device (tp, cp, ep and ip "
                "1), not tp %d cp %d ep %d ip %d",
                o->plan->module_names[m], l->tp, l->cp, l->ep, l->ip);
        if (l->pp == 1 && l->vpp > 1)
            return dt_error_set(err, DT_ERR_INPUT, "module %s: vpp %d needs more than one stage",
                                o->plan->module_names[m], l->vpp);
    }
    return DT_OK;
}

static enum dt_status open_device(struct dt_exec *x, struct dt_error *err)
{
    DT_TRY(x->dev->queue_new(x->dev, false, err, &x->q));
    DT_TRY(x->dev->alloc(x->dev, sizeof(double), err, (void **)&x->sq));
    DT_TRY(x->dev->alloc(x->dev, sizeof(float), err, (void **)&x->norm));
    return x->dev->alloc(x->dev, sizeof(float), err, (void **)&x->coef);
}

enum dt_status dt_exec_new(const struct dt_exec_options *opt, struct dt_error *err,
                           struct dt_exec **out)
{
    struct dt_exec *x = dt_calloc(1, sizeof(*x));
    enum dt_status st;

    if (!x)
        return dt_error_nomem(err, "an executor");
    x->o = *opt;
    x->dev = opt->device;
    x->k = opt->device->k;
    st = find_edges(x, err);
    if (st == DT_OK)
        st = check_layout(opt, err);
    if (st == DT_OK)
        st = open_device(x, err);
    if (st == DT_OK)
        st = dt_exec_build(x, err);
    if (st != DT_OK) {
        dt_exec_free(x);
        return st;
    }
    *out = x;
    return DT_OK;
}

void dt_exec_free(struct dt_exec *x)
{
    if (!x)
        return;
    dt_exec_drop(x);
    for (size_t i = 0; i < x->n_events; i++) {
        x->dev->event_free(x->begin[i]);
        x->dev->event_free(x->end[i]);
    }
    x->dev->queue_free(x->q);
    x->dev->free(x->dev, x->sq);
    x->dev->free(x->dev, x->norm);
    x->dev->free(x->dev, x->coef);
    x->dev->host_free(x->dev, x->nll);
    x->dev->host_free(x->dev, x->sse);
    for (int k = 0; k < DT_EDGES; k++) {
        dt_free(x->edge[k].rows);
        dt_free(x->edge[k].src_at);
        dt_free(x->edge[k].dst_at);
        dt_free(x->edge[k].src_mb);
        dt_free(x->edge[k].dst_mb);
    }
    dt_free(x->row_at);
    dt_free(x->img_at);
    dt_free(x->image_values);
    dt_free((void *)x->mb_seqs);
    dt_free(x->order);
    dt_free(x->placed);
    dt_free(x->begin);
    dt_free(x->end);
    dt_free(x);
}

/* ---- ops ---- */

/* SENDs stand behind the op that produces their data. */
static int sends_of(const struct dt_program *p, uint32_t i)
{
    const struct dt_lane *l = &p->lanes[p->ops[i].lane];
    int n = 0;

    for (uint32_t k = i + 1; k < l->first + l->n && p->ops[k].kind == DT_OP_SEND; k++)
        n += p->ops[k].dep[1] == i;
    return n;
}

/* Whose microbatch it is, and the buffers that it reads and writes. */
static enum dt_status prepare(struct dt_exec *x, struct dt_exec_vstage *vs, struct dt_slot_mb *s,
                              bool forward, struct dt_error *err, struct dt_run *run)
{
    const struct dt_stage *g = vs->stage;
    size_t out = dt_stage_out_bytes(g, s->batch);
    size_t in = dt_stage_sends_gradient(g) ? dt_stage_in_bytes(g, s->batch) : 0;

    if (forward && out > 0 && !s->out)
        DT_TRY(dt_exec_message(x, vs, s->mb, false, out, err, &s->out));
    if (!forward && in > 0 && !s->din)
        DT_TRY(dt_exec_message(x, vs, s->mb, true, in, err, &s->din));
    *run = (struct dt_run){
        .batch = s->batch,
        .saved = dt_stage_has_backward(g) ? s->saved.p : NULL,
        .in = s->in,
        .out = s->out ? s->out->data.p : NULL,
        .dout = s->dout,
        .din = s->din ? s->din->data.p : NULL,
    };
    return DT_OK;
}

/* What was read is given back, what was written goes to those that it is sent to. */
static void hand_on(struct dt_slot_mb *s, bool forward, int sends)
{
    struct dt_message **from = forward ? &s->in_from : &s->dout_from;
    struct dt_message **to = forward ? &s->out : &s->din;

    dt_exec_release(*from);
    *from = NULL;
    if (*to)
        (*to)->users += sends - 1;
    *to = NULL;
}

static enum dt_status compute(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->p->ops[i];
    struct dt_exec_vstage *vs = dt_exec_op_vs(x, op);
    bool forward = op->kind == DT_OP_FORWARD, last = op->part + 1 == op->parts;
    int n = vs->last - vs->first, part = forward ? op->part : op->parts - 1 - op->part;
    int lo = vs->first + n * part / op->parts, hi = vs->first + n * (part + 1) / op->parts;
    struct dt_slot_mb *s;
    struct dt_run run;

    DT_TRY(dt_exec_slot(x, vs, op->mb, err, &s));
    if (!s->empty) {
        DT_TRY(prepare(x, vs, s, forward, err, &run));
        if (forward)
            dt_stage_forward(x->q, vs->stage, &run, lo, hi);
        else
            dt_stage_backward(x->q, vs->stage, &run, lo, hi, DT_BACKWARD_BOTH);
    }
    if (!last)
        return DT_OK;
    if (forward && !s->empty && vs->v == x->n_v[op->module] - 1 &&
        x->o.model->modules[op->module].role != DT_ROLE_ENCODER)
        dt_exec_loss_take(x, op, s);
    hand_on(s, forward, sends_of(x->p, i));
    if (!forward || !dt_stage_has_backward(vs->stage))
        dt_exec_slot_done(vs, s);
    return DT_OK;
}

/* Squares of all that is trained, then the factor that clips them. */
static void grad_norm(struct dt_exec *x)
{
    x->dev->zero(x->q, x->sq, sizeof(double));
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int r = 0; r < x->dp[m]; r++)
            for (int v = 0; v < x->n_v[m]; v++) {
                struct dt_exec_vstage *vs = dt_exec_vs(x, m, r, v);

                if (!dt_stage_grads(vs->stage))
                    continue;
                dt_exec_finish_grads(x, vs, vs->first, vs->last);
                if (r == 0) /* replicas hold the same sums */
                    dt_optimizer_sum_sq(x->q, &vs->opt, x->sq);
            }
    x->k->clip_coef(x->q, x->sq, (float)x->o.optimizer.clip, x->norm, x->coef);
    x->dev->copy(x->q, &x->host_norm, x->norm, sizeof(float), DT_COPY_TO_HOST);
    x->has_norm = true;
}

static void step(struct dt_exec *x, const struct dt_op *op)
{
    for (int v = op->stage; v < x->n_v[op->module]; v += x->pp[op->module]) {
        struct dt_exec_vstage *vs = dt_exec_vs(x, op->module, op->replica, v);

        dt_optimizer_step(x->q, &vs->opt, &x->o.optimizer, x->in->step, x->coef, vs->first,
                          vs->last);
    }
}

static enum dt_status execute(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->p->ops[i];
    struct dt_slot_mb *s;
    bool leads = dt_op_resource(op->kind) == DT_RES_COLL &&
                 x->p->group_ops[x->p->groups[op->peer].first] == i;

    switch (op->kind) {
    case DT_OP_FETCH:
        return dt_exec_slot(x, dt_exec_op_vs(x, op), op->mb, err, &s);
    case DT_OP_RECV:
        return dt_exec_recv(x, op, err);
    case DT_OP_FORWARD:
    case DT_OP_BACKWARD:
        return compute(x, i, err);
    case DT_OP_GRAD_SYNC:
        if (leads)
            dt_exec_sync(x, &x->p->groups[op->peer]);
        return DT_OK;
    case DT_OP_GRAD_NORM:
        if (leads)
            grad_norm(x);
        return DT_OK;
    case DT_OP_STEP:
        step(x, op);
        return DT_OK;
    case DT_OP_SEND:         /* the receiver takes it */
    case DT_OP_PARAM_GATHER: /* every replica has stepped all of its parameters */
        return DT_OK;
    default:
        return dt_error_set(err, DT_ERR_INTERNAL, "op %s is not executed",
                            dt_op_kind_names[op->kind]);
    }
}

/* ---- the walk ---- */

static enum dt_status event_room(struct dt_exec *x, struct dt_error *err)
{
    size_t n = x->p->n_ops;

    if (dt_grow((void **)&x->begin, &x->cap_events, n + 1, sizeof(*x->begin)) ||
        dt_grow((void **)&x->end, &x->cap_ends, n + 1, sizeof(*x->end)))
        return dt_error_nomem(err, "events");
    for (; x->n_events < n; x->n_events++) {
        DT_TRY(x->dev->event_new(x->dev, err, &x->begin[x->n_events]));
        if (x->dev->event_new(x->dev, err, &x->end[x->n_events]) != DT_OK) {
            x->dev->event_free(x->begin[x->n_events]);
            return err ? err->status : DT_ERR_NOMEM;
        }
    }
    return DT_OK;
}

/* Members of a group begin and end together. */
static void join_groups(const struct dt_program *p, struct dt_timeline *t)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const uint32_t *op = &p->group_ops[p->groups[g].first];
        int64_t begin = INT64_MAX, end = 0;

        for (uint32_t k = 0; k < p->groups[g].n; k++) {
            begin = t->begin_ns[op[k]] < begin ? t->begin_ns[op[k]] : begin;
            end = t->end_ns[op[k]] > end ? t->end_ns[op[k]] : end;
        }
        for (uint32_t k = 0; k < p->groups[g].n; k++) {
            t->begin_ns[op[k]] = begin;
            t->end_ns[op[k]] = end;
        }
    }
}

static enum dt_status read_timeline(struct dt_exec *x, struct dt_error *err, struct dt_timeline *t)
{
    const struct dt_program *p = x->p;
    uint64_t zero;

    DT_TRY(dt_timeline_reserve(t, p->n_ops, err));
    t->makespan_ns = 0;
    if (p->n_ops == 0)
        return DT_OK;
    zero = x->dev->event_ns(x->begin[x->order[0]]);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        t->begin_ns[i] = (int64_t)(x->dev->event_ns(x->begin[i]) - zero);
        t->end_ns[i] = (int64_t)(x->dev->event_ns(x->end[i]) - zero);
        if (t->end_ns[i] > t->makespan_ns)
            t->makespan_ns = t->end_ns[i];
    }
    join_groups(p, t);
    return DT_OK;
}

static void begin_iteration(struct dt_exec *x)
{
    x->has_norm = false;
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int i = 0; i < x->dp[m] * x->n_v[m]; i++) {
            struct dt_exec_vstage *vs = &x->vs[m][i];

            memset(vs->finished, 0, (size_t)(vs->last - vs->first) * sizeof(*vs->finished));
            dt_stage_grads_begin(vs->stage);
            /* an iteration that failed may have left some in use */
            for (struct dt_slot_mb *s = vs->slots; s; s = s->next)
                s->used = false;
            for (struct dt_message *k = vs->messages; k; k = k->next)
                k->users = 0;
            vs->in_use = 0;
        }
}

static enum dt_status walk(struct dt_exec *x, struct dt_error *err)
{
    for (uint32_t k = 0; k < x->n_order; k++) {
        uint32_t i = x->order[k];

        x->dev->event_record(x->q, x->begin[i]);
        DT_TRY(execute(x, i, err));
        x->dev->event_record(x->q, x->end[i]);
    }
    return DT_OK;
}

enum dt_status dt_exec_run(struct dt_exec *x, const struct dt_program *p,
                           const struct dt_exec_input *in, struct dt_error *err,
                           struct dt_timeline *timeline, struct dt_exec_result *out)
{
    struct dt_exec_result r = {0};
    enum dt_status st;

    if (p->assignment->n_samples != in->n || p->assignment->first_sample != 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "the program is for other samples");
    x->p = p;
    x->in = in;
    DT_TRY(dt_exec_edges(x, err));
    DT_TRY(dt_exec_loss_begin(x, err));
    DT_TRY(dt_exec_reserve(x, err));
    DT_TRY(dt_exec_make_order(x, err));
    DT_TRY(event_room(x, err));
    begin_iteration(x);
    st = walk(x, err);
    if (st == DT_OK)
        st = x->dev->queue_sync(x->q, err);
    else
        x->dev->queue_sync(x->q, NULL);
    DT_TRY(st);
    if (timeline)
        DT_TRY(read_timeline(x, err, timeline));
    dt_exec_loss_end(x, &r);
    r.grad_norm = x->has_norm ? (double)x->host_norm : 0;
    r.lr = dt_optimizer_lr(&x->o.optimizer, in->step);
    *out = r;
    return DT_OK;
}

/* ---- access ---- */

struct dt_stage *dt_exec_stage(const struct dt_exec *x, int module, int replica, int v)
{
    return dt_exec_vs(x, module, replica, v)->stage;
}

struct dt_optimizer *dt_exec_optimizer(const struct dt_exec *x, int module, int replica, int v)
{
    return &dt_exec_vs(x, module, replica, v)->opt;
}

enum dt_status dt_exec_changed(struct dt_exec *x, struct dt_error *err)
{
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int v = 0; v < x->n_v[m]; v++)
            for (int r = 0; r < x->dp[m]; r++) {
                struct dt_exec_vstage *first = dt_exec_vs(x, m, 0, v), *vs = dt_exec_vs(x, m, r, v);
                size_t bytes = dt_stage_param_floats(vs->stage) * sizeof(float);

                if (r > 0) {
                    x->dev->copy(x->q, dt_stage_master(vs->stage), dt_stage_master(first->stage),
                                 bytes, DT_COPY_ON_DEVICE);
                    if (vs->opt.exp_avg) {
                        x->dev->copy(x->q, vs->opt.exp_avg, first->opt.exp_avg, bytes,
                                     DT_COPY_ON_DEVICE);
                        x->dev->copy(x->q, vs->opt.exp_avg_sq, first->opt.exp_avg_sq, bytes,
                                     DT_COPY_ON_DEVICE);
                    }
                }
                dt_stage_changed(x->q, vs->stage, vs->first, vs->last);
            }
    return x->dev->queue_sync(x->q, err);
}

void dt_exec_memory(const struct dt_exec *x, int64_t *now_bytes, int64_t *max_bytes)
{
    x->dev->memory_used(x->dev, now_bytes, max_bytes);
}

int dt_exec_in_flight(const struct dt_exec *x, int module, int replica, int v)
{
    return dt_exec_vs(x, module, replica, v)->in_use_max;
}
