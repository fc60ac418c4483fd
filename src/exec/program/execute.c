/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The walk: one op after the other, each between two events. */
#include "exec/program/execute_impl.h"

#include <math.h>
#include <stdio.h>
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
        const struct dt_plan_layout *l = &o->plan->modules[m].layout;

        if (l->cp * l->ep * l->ip != 1)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: cp %d, ep %d and ip %d are planned and simulated; "
                                "training takes 1 of each",
                                o->plan->module_names[m], l->cp, l->ep, l->ip);
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
        st = open_device(x, err);
    if (st == DT_OK)
        st = dt_exec_place(x, err);
    if (st == DT_OK)
        st = check_layout(opt, err);
    if (st == DT_OK)
        st = dt_exec_build(x, err);
    if (st == DT_OK)
        st = dt_exec_comm_init(x, err);
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
    dt_exec_comm_free(x);
    dt_exec_drop(x);
    dt_exec_unplace(x);
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
    for (int m = 0; m < DT_MAX_MODULES; m++)
        dt_free(x->lim[m]);
    dt_free(x->losses);
    dt_free(x->has_loss);
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
static int sends_of(const struct dt_exec *x, uint32_t i)
{
    const struct dt_program *p = x->p;
    const struct dt_lane *l = &p->lanes[p->ops[i].lane];
    int n = 0;

    for (uint32_t k = i + 1; k < l->first + l->n && p->ops[k].kind == DT_OP_SEND; k++)
        n += p->ops[k].dep[1] == i ? dt_exec_send_users(x, k) : 0;
    return n;
}

/* What was gathered for the microbatch is its input. */
static void open_inbox(struct dt_exec *x, struct dt_exec_vstage *vs, struct dt_exec_microbatch *s,
                       bool grad)
{
    struct dt_exec_message *m, **from = grad ? &s->dout_from : &s->in_from;

    if (*from)
        return;
    m = dt_exec_message_received(x, vs, s->mb, grad);
    if (!m)
        return;
    *from = m;
    *(grad ? &s->dout : &s->in) = m->data.p;
}

/* Whose microbatch it is, and the buffers that it reads and writes. */
static enum dt_status prepare(struct dt_exec *x, struct dt_exec_vstage *vs,
                              struct dt_exec_microbatch *s, bool forward, struct dt_error *err,
                              struct dt_nn_run *run)
{
    const struct dt_stage *g = vs->stage;
    size_t out = dt_stage_out_bytes(g, s->batch);
    size_t in = dt_stage_sends_gradient(g) ? dt_stage_in_bytes(g, s->batch) : 0;

    if (forward && out > 0 && !s->out)
        DT_TRY(dt_exec_message_new(x, vs, s->mb, false, out, err, &s->out));
    if (!forward && in > 0 && !s->din)
        DT_TRY(dt_exec_message_new(x, vs, s->mb, true, in, err, &s->din));
    open_inbox(x, vs, s, !forward);
    *run = (struct dt_nn_run){
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
static void hand_on(struct dt_exec *x, struct dt_exec_microbatch *s, bool forward, int sends)
{
    struct dt_exec_message **from = forward ? &s->in_from : &s->dout_from;
    struct dt_exec_message **to = forward ? &s->out : &s->din;

    dt_exec_message_release(x, *from, 1);
    *from = NULL;
    dt_exec_message_release(x, *to, 1 - sends);
    *to = NULL;
}

/* After the last backward of a stage its gradients are complete, for whoever sums them. */
static void last_backward(struct dt_exec *x, struct dt_exec_vstage *vs, int lo, int hi)
{
    if (vs->backwards > 1 || !dt_stage_grads(vs->stage))
        return;
    dt_exec_finish_grads(x, vs, lo, hi);
    dt_stage_grads_reduce(x->q, vs->stage, lo, hi);
}

/* Parameters that others have stepped have come since they were last used. */
static void use_parameters(struct dt_exec *x, struct dt_exec_vstage *vs, int lo, int hi)
{
    for (int b = lo; x->t && vs->opt.sharded && b < hi; b++)
        if (!vs->fresh[b - vs->first]) {
            dt_stage_changed(x->q, vs->stage, b, b + 1);
            vs->fresh[b - vs->first] = true;
        }
}

/* When the last one is there, they go to the other ranks. */
static enum dt_status take_losses(struct dt_exec *x, const struct dt_op *op,
                                  const struct dt_exec_microbatch *s, struct dt_error *err)
{
    if (!s->empty)
        dt_exec_loss_take(x, op, s);
    if (--x->losses_left > 0)
        return DT_OK;
    DT_TRY(x->dev->queue_sync(x->q, err));
    dt_exec_loss_sum(x);
    dt_exec_comm_losses(x);
    return DT_OK;
}

static enum dt_status compute(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->p->ops[i];
    struct dt_exec_vstage *vs = dt_exec_op_vs(x, op);
    bool forward = op->kind == DT_OP_FORWARD, last = op->part + 1 == op->parts;
    int n = vs->last - vs->first, part = forward ? op->part : op->parts - 1 - op->part;
    int lo = vs->first + n * part / op->parts, hi = vs->first + n * (part + 1) / op->parts;
    struct dt_exec_microbatch *s;
    struct dt_nn_run run;

    DT_TRY(dt_exec_microbatch_get(x, vs, op->mb, err, &s));
    if (!s->empty) {
        DT_TRY(prepare(x, vs, s, forward, err, &run));
        if (forward) {
            use_parameters(x, vs, lo, hi);
            dt_stage_forward(x->q, vs->stage, &run, lo, hi);
        } else {
            dt_stage_backward(x->q, vs->stage, &run, lo, hi, DT_BACKWARD_BOTH);
        }
    }
    if (!forward)
        last_backward(x, vs, lo, hi);
    if (!last)
        return DT_OK;
    if (!forward)
        vs->backwards--;
    if (forward && vs->v == x->n_v[op->module] - 1 &&
        x->o.model->modules[op->module].role != DT_ROLE_ENCODER)
        DT_TRY(take_losses(x, op, s, err));
    hand_on(x, s, forward, sends_of(x, i));
    if (!forward || !dt_stage_has_backward(vs->stage))
        dt_exec_microbatch_done(vs, s);
    return DT_OK;
}

/* Squares of all that is trained here and counted nowhere else, then those of the other ranks, then
 * the factor that clips.  Ranks that train nothing take part: all know the same. */
static enum dt_status grad_norm(struct dt_exec *x, struct dt_error *err)
{
    x->dev->zero(x->q, x->sq, sizeof(double));
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int k = 0; k < x->dp[m] * x->n_v[m]; k++) {
            struct dt_exec_vstage *vs = &x->vs[m][k];
            const struct dt_exec_peers *p = &x->peers[m][vs->v % x->pp[m]];

            if (!vs->stage || !dt_stage_grads(vs->stage))
                continue;
            dt_exec_finish_grads(x, vs, vs->first, vs->last);
            /* replicas hold the same sums, unless each has its piece */
            if (vs->replica == p->leader && (p->me == 0 || vs->opt.sharded))
                dt_optimizer_sum_sq(x->q, &vs->opt, x->sq);
        }
    if (x->training) {
        struct dt_req *req;

        x->dev->copy(x->q, &x->host_sq, x->sq, sizeof(double), DT_COPY_TO_HOST);
        DT_TRY(x->dev->queue_sync(x->q, err));
        DT_TRY(x->t->post_all_reduce(x->training, DT_REDUCE_F64, &x->host_sq, 1, err, &req));
        DT_TRY(dt_transport_wait(x->t, req, x->o.limit_s, "the gradient norm", err));
        x->dev->copy(x->q, x->sq, &x->host_sq, sizeof(double), DT_COPY_TO_DEVICE);
    }
    x->k->clip_coef(x->q, x->sq, (float)x->o.optimizer.clip, x->norm, x->coef);
    x->dev->copy(x->q, &x->host_norm, x->norm, sizeof(float), DT_COPY_TO_HOST);
    x->has_norm = true;
    return DT_OK;
}

/* Once, when norm and losses are known and before anything is stepped.  Every rank has the sums of
 * the same numbers in the same order, so all decide alike. */
static enum dt_status decide(struct dt_exec *x, struct dt_error *err)
{
    struct dt_exec_result *r = &x->result;

    if (x->decided)
        return DT_OK;
    DT_TRY(x->dev->queue_sync(x->q, err));
    *r = (struct dt_exec_result){.grad_norm = x->has_norm ? (double)x->host_norm : 0,
                                 .lr = dt_optimizer_lr(&x->o.optimizer, x->in->step)};
    dt_exec_loss_end(x, r);
    r->applied = x->in->accept ? x->in->accept(x->in->accept_ctx, r)
                               : isfinite(r->loss) && isfinite(r->grad_norm);
    x->decided = true;
    return DT_OK;
}

static enum dt_status step(struct dt_exec *x, const struct dt_op *op, struct dt_error *err)
{
    DT_TRY(decide(x, err));
    for (int v = op->stage; x->result.applied && v < x->n_v[op->module]; v += x->pp[op->module]) {
        struct dt_exec_vstage *vs = dt_exec_vs(x, op->module, op->replica, v);

        dt_optimizer_step(x->q, &vs->opt, &x->o.optimizer, x->in->step, x->coef, vs->first,
                          vs->last);
    }
    return DT_OK;
}

static enum dt_status execute(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->p->ops[i];
    struct dt_exec_microbatch *s;
    bool leads = dt_exec_leader(x, i) == i;

    switch ((enum dt_op_kind)op->kind) {
    case DT_OP_FETCH:
        return dt_exec_microbatch_get(x, dt_exec_op_vs(x, op), op->mb, err, &s);
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
        return leads ? grad_norm(x, err) : DT_OK;
    case DT_OP_STEP:
        return x->late_steps ? DT_OK : step(x, op, err);
    case DT_OP_SEND:         /* the receiver takes it */
    case DT_OP_PARAM_GATHER: /* every replica has stepped all of its parameters */
        return DT_OK;
    case DT_OP_WEIGHT_GRAD:
    case DT_OP_KIND_N:
        break;
    }
    return dt_error_set(err, DT_ERR_INTERNAL, "op %s is not executed", dt_op_kind_names[op->kind]);
}

/* ---- the walk ---- */

static void begin_iteration(struct dt_exec *x)
{
    x->has_norm = x->decided = false;
    x->waited_ns = 0;
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int i = 0; i < x->dp[m] * x->n_v[m]; i++) {
            struct dt_exec_vstage *vs = &x->vs[m][i];

            if (!vs->stage)
                continue;
            memset(vs->finished, 0, (size_t)(vs->last - vs->first) * sizeof(*vs->finished));
            memset(vs->fresh, 0, (size_t)(vs->last - vs->first) * sizeof(*vs->fresh));
            dt_stage_grads_begin(vs->stage);
            /* an iteration that failed may have left some in use */
            for (struct dt_exec_microbatch *s = vs->microbatches; s; s = s->next)
                s->used = false;
            for (struct dt_exec_message *k = vs->messages; k; k = k->next)
                k->users = 0;
            vs->in_use = 0;
            vs->backwards = 0;
        }
    for (uint32_t i = 0; i < x->p->n_ops; i++) {
        const struct dt_op *op = &x->p->ops[i];

        if (op->kind == DT_OP_BACKWARD && op->part == 0 && dt_exec_here(x, op))
            dt_exec_op_vs(x, op)->backwards++;
    }
    /* a replica without microbatches has gradients, too */
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int i = 0; i < x->dp[m] * x->n_v[m]; i++)
            if (x->vs[m][i].stage && x->vs[m][i].backwards == 0)
                last_backward(x, &x->vs[m][i], x->vs[m][i].first, x->vs[m][i].last);
}

/* Kind, stage and replica in one number, for dt_supervisor_doing. */
enum { OP_STAGE = 4, OP_REPLICA = 16 };

static void tell(const struct dt_exec *x, uint32_t i)
{
    const struct dt_op *op = &x->p->ops[i];

    if (x->o.supervisor)
        dt_supervisor_doing(x->o.supervisor, op->module,
                            op->kind | op->stage << OP_STAGE | op->replica << OP_REPLICA,
                            op->mb == DT_NONE ? -1 : (int64_t)op->mb);
}

void dt_exec_describe(const struct dt_model *m, int module, int op, int64_t microbatch, char *buf,
                      size_t size)
{
    int kind = op & ((1 << OP_STAGE) - 1);
    int n = snprintf(buf, size, "%s/%d.%d %s",
                     module >= 0 && module < m->n_modules ? m->modules[module].name : "?",
                     op >> OP_REPLICA, (op >> OP_STAGE) & ((1 << (OP_REPLICA - OP_STAGE)) - 1),
                     kind < DT_OP_KIND_N ? dt_op_kind_names[kind] : "?");

    if (microbatch >= 0 && n > 0 && (size_t)n < size)
        snprintf(buf + n, size - (size_t)n, " of microbatch %lld", (long long)microbatch);
}

static enum dt_status walk_op(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->p->ops[i];
    struct dt_device_memory_owner *before;
    enum dt_status st;

    tell(x, i);
    DT_TRY(dt_exec_comm_wait(x, i, err));
    x->dev->event_record(x->q, x->begin[i]);
    before = dt_exec_for(x, op->module, op->replica, op->stage);
    st = execute(x, i, err);
    x->dev->memory_for(x->dev, before);
    x->dev->event_record(x->q, x->end[i]);
    /* what others take must be there */
    if (st == DT_OK && x->t)
        st = x->dev->event_sync(x->end[i], err);
    if (st == DT_OK)
        st = dt_tp_state(dt_exec_tp(x, op->module, op->replica, op->stage), err);
    if (st != DT_OK)
        return dt_exec_error_at(x, i, st, err);
    dt_exec_comm_ended(x, i);
    return DT_OK;
}

static enum dt_status walk(struct dt_exec *x, struct dt_error *err)
{
    if (x->losses_left == 0) {
        dt_exec_loss_sum(x);
        dt_exec_comm_losses(x);
    }
    for (uint32_t k = 0; k < x->n_order; k++)
        if (!dt_exec_is_comm(x, x->order[k]))
            DT_TRY(walk_op(x, x->order[k], err));
    DT_TRY(dt_exec_comm_end(x, err));
    if (x->o.supervisor)
        dt_supervisor_doing(x->o.supervisor, -1, 0, -1);
    return DT_OK;
}

static enum dt_status step_late(struct dt_exec *x, struct dt_error *err)
{
    for (uint32_t k = 0; x->late_steps && k < x->n_order; k++)
        if (x->p->ops[x->order[k]].kind == DT_OP_STEP)
            DT_TRY(step(x, &x->p->ops[x->order[k]], err));
    return DT_OK;
}

static void count_compute(struct dt_exec *x, struct dt_exec_result *r)
{
    int64_t ns = 0;

    for (uint32_t k = 0; k < x->n_order; k++) {
        uint32_t i = x->order[k];

        if (dt_op_resource(x->p->ops[i].kind) == DT_RES_COMPUTE)
            ns += (int64_t)(x->dev->event_ns(x->end[i]) - x->dev->event_ns(x->begin[i]));
    }
    r->compute_s = (double)ns * 1e-9;
    r->waited_s = (double)x->waited_ns * 1e-9;
}

enum dt_status dt_exec_run(struct dt_exec *x, const struct dt_program *p,
                           const struct dt_exec_input *in, struct dt_error *err,
                           struct dt_timeline *timeline, struct dt_exec_result *out)
{
    enum dt_status st;

    if (p->assignment->n_samples != in->n || p->assignment->first_sample != 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "the program is for other samples");
    x->p = p;
    x->in = in;
    DT_TRY(dt_exec_edges(x, err));
    DT_TRY(dt_exec_loss_begin(x, err));
    DT_TRY(dt_exec_reserve(x, err));
    DT_TRY(dt_exec_make_order(x, err));
    DT_TRY(dt_exec_event_room(x, err));
    begin_iteration(x);
    DT_TRY(dt_exec_comm_begin(x, err));
    st = walk(x, err);
    if (st == DT_OK && x->training && !x->has_norm) /* nothing is trained here */
        st = grad_norm(x, err);
    if (st == DT_OK)
        st = decide(x, err);
    if (st == DT_OK)
        st = step_late(x, err);
    if (st == DT_OK)
        st = x->dev->queue_sync(x->q, err);
    else
        x->dev->queue_sync(x->q, NULL);
    DT_TRY(st);
    if (timeline)
        DT_TRY(dt_exec_read_timeline(x, err, timeline));
    count_compute(x, &x->result);
    *out = x->result;
    return DT_OK;
}

enum dt_status dt_exec_timeline(struct dt_exec *x, const struct dt_program *p, struct dt_error *err,
                                struct dt_timeline *out)
{
    x->p = p;
    return dt_exec_read_timeline(x, err, out);
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

/* What the lowest replica here holds goes to the others here. */
static void copy_to_replica(struct dt_exec *x, const struct dt_exec_vstage *from,
                            struct dt_exec_vstage *to)
{
    size_t bytes = dt_stage_param_floats(to->stage) * sizeof(float);
    size_t moments = to->opt.moments * sizeof(float);

    x->dev->copy(x->q, dt_stage_master(to->stage), dt_stage_master(from->stage), bytes,
                 DT_COPY_ON_DEVICE);
    if (!to->opt.exp_avg || to->opt.sharded)
        return;
    x->dev->copy(x->q, to->opt.exp_avg, from->opt.exp_avg, moments, DT_COPY_ON_DEVICE);
    x->dev->copy(x->q, to->opt.exp_avg_sq, from->opt.exp_avg_sq, moments, DT_COPY_ON_DEVICE);
}

enum dt_status dt_exec_changed(struct dt_exec *x, struct dt_error *err)
{
    for (int m = 0; m < x->o.model->n_modules; m++)
        for (int k = 0; k < x->dp[m] * x->n_v[m]; k++) {
            struct dt_exec_vstage *vs = &x->vs[m][k];
            int leader = x->peers[m][vs->v % x->pp[m]].leader;

            if (!vs->stage)
                continue;
            if (vs->replica != leader)
                copy_to_replica(x, dt_exec_vs(x, m, leader, vs->v), vs);
            dt_stage_changed(x->q, vs->stage, vs->first, vs->last);
        }
    return x->dev->queue_sync(x->q, err);
}

enum dt_status dt_exec_sum(struct dt_exec *x, double *v, size_t n, struct dt_error *err)
{
    struct dt_req *req;

    if (!x->world)
        return DT_OK;
    DT_TRY(x->t->post_all_reduce(x->world, DT_REDUCE_F64, v, n, err, &req));
    return dt_transport_wait(x->t, req, x->o.limit_s, "all ranks", err);
}

void dt_exec_memory(const struct dt_exec *x, int64_t *now_bytes, int64_t *max_bytes)
{
    x->dev->memory_used(x->dev, now_bytes, max_bytes);
}

int64_t dt_exec_lane_memory(const struct dt_exec *x, int module, int replica, int stage)
{
    return __atomic_load_n(&x->lane[module][replica * x->pp[module] + stage].now_bytes,
                           __ATOMIC_RELAXED);
}

int dt_exec_in_flight(const struct dt_exec *x, int module, int replica, int v)
{
    return dt_exec_vs(x, module, replica, v)->in_use_max;
}
