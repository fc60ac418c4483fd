/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The walk: one op after the other, each between two events. */
#include "base/clock.h"
#include "exec/program/execute_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- opening ---- */

static enum dt_status open_env(struct dt_exec_env *env, const struct dt_exec_options *o,
                               struct dt_error *err)
{
    bool away = false;

    env->o = *o;
    env->dev = o->device;
    env->k = o->device->k;
    for (int m = 0; m < o->plan->n_modules; m++) {
        const struct dt_plan_layout *l = &o->plan->modules[m].layout;

        env->pp[m] = l->pp;
        env->dp[m] = l->dp;
        env->n_v[m] = l->pp * l->vpp;
    }
    env->offloads = dt_plan_steps_on_host(o->plan, o->model);
    for (int m = 0; m < o->plan->n_modules; m++)
        away |= dt_plan_offloads_params(&o->plan->modules[m]);
    if (away)
        DT_TRY(env->dev->queue_new(env->dev, true, err, &env->link));
    DT_TRY(env->dev->queue_new(env->dev, false, err, &env->q));
    return env->dev->queue_new(env->dev, true, err, &env->uploads);
}

static enum dt_status open_host(struct dt_exec *x, struct dt_error *err)
{
    const struct dt_exec_options *o = &x->env.o;
    const struct dt_device_info *info = &o->device->info;

    x->env.host = &x->host;
    if (!x->env.offloads)
        return DT_OK;
    return dt_optimizer_host_open(&x->host, o->device, o->host,
                                  info->host_memory ? info->threads : o->host_threads, err);
}

enum dt_status dt_exec_env_sync(const struct dt_exec_env *env, struct dt_error *err)
{
    enum dt_status st = env->dev->queue_sync(env->q, err);
    enum dt_status uploads = env->dev->queue_sync(env->uploads, st == DT_OK ? err : NULL), host,
                   link;

    st = st == DT_OK ? uploads : st;
    if (env->link) {
        link = env->dev->queue_sync(env->link, st == DT_OK ? err : NULL);
        st = st == DT_OK ? link : st;
    }
    if (!env->offloads)
        return st;
    host = dt_optimizer_host_sync(env->host, st == DT_OK ? err : NULL);
    return st == DT_OK ? host : st;
}

enum dt_status dt_exec_new(const struct dt_exec_options *opt, struct dt_error *err,
                           struct dt_exec **out)
{
    struct dt_exec *x = dt_calloc(1, sizeof(*x));
    enum dt_status st;

    if (!x)
        return dt_error_nomem(err, "an executor");
    x->ranks.env = x->stages.env = &x->env;
    x->stages.ranks = &x->ranks;
    st = open_env(&x->env, opt, err);
    if (st == DT_OK)
        st = open_host(x, err);
    if (st == DT_OK)
        st = dt_exec_find_edges(&x->it, &x->env, err);
    if (st == DT_OK)
        st = dt_exec_norm_init(&x->norm, &x->env, err);
    if (st == DT_OK)
        st = dt_exec_place(&x->ranks, err);
    if (st == DT_OK)
        st = dt_exec_check_layout(opt, err);
    if (st == DT_OK)
        st = dt_exec_build(&x->stages, err);
    if (st == DT_OK)
        st = dt_exec_comm_init(x, err);
    if (st != DT_OK) {
        dt_exec_free(x);
        return st;
    }
    *out = x;
    return DT_OK;
}

static void free_iteration(struct dt_exec_iteration *it)
{
    for (int k = 0; k < DT_EDGES; k++)
        dt_exec_edge_free(&it->edge[k]);
    for (int m = 0; m < DT_MAX_MODULES; m++)
        dt_free(it->lim[m]);
    dt_free((void *)it->mb_seqs);
    dt_free(it->views);
    dt_free(it->view_items);
    dt_free(it->order);
    dt_free(it->placed);
    dt_arena_free(&it->partners_of);
}

void dt_exec_free(struct dt_exec *x)
{
    if (!x)
        return;
    dt_exec_comm_free(x);
    dt_exec_drop(&x->stages);
    dt_exec_unplace(&x->ranks);
    dt_exec_events_free(&x->events, x->env.dev);
    dt_exec_losses_free(&x->losses, x->env.dev);
    dt_exec_norm_free(&x->norm, x->env.dev);
    dt_optimizer_host_close(&x->host);
    free_iteration(&x->it);
    if (x->env.link)
        x->env.dev->queue_free(x->env.link);
    x->env.dev->queue_free(x->env.uploads);
    x->env.dev->queue_free(x->env.q);
    dt_free(x);
}

const char *dt_exec_note(const struct dt_exec *x)
{
    return x->ranks.t ? x->ranks.data->note : "";
}

/* ---- ops ---- */

/* SENDs stand behind the op that produces their data. */
static int sends_of(const struct dt_program *p, const struct dt_exec_ranks *ranks, uint32_t i)
{
    const struct dt_lane *l = &p->lanes[p->ops[i].lane];
    int n = 0;

    for (uint32_t k = i + 1; k < l->first + l->n && p->ops[k].kind == DT_OP_SEND; k++)
        n += p->ops[k].dep[1] == i ? dt_exec_send_users(p, ranks, k) : 0;
    return n;
}

/* What was gathered for the microbatch is its input. */
static void open_inbox(struct dt_exec_comm *c, struct dt_exec_vstage *vs,
                       struct dt_exec_microbatch *s, bool grad)
{
    struct dt_exec_message *m, **from = grad ? &s->dout_from : &s->in_from;

    if (*from)
        return;
    m = dt_exec_message_received(c, vs, s->mb, grad);
    if (!m)
        return;
    *from = m;
    *(grad ? &s->dout : &s->in) = m->data.p;
}

/* Whose microbatch it is, and the buffers that it reads and writes. */
static enum dt_status prepare(struct dt_exec *x, struct dt_exec_vstage *vs,
                              struct dt_exec_microbatch *s, enum dt_op_kind kind,
                              struct dt_error *err, struct dt_nn_run *run)
{
    const struct dt_stage *g = vs->stage;
    bool forward = kind == DT_OP_FORWARD, back = kind == DT_OP_BACKWARD;
    size_t out = dt_stage_out_bytes(g, s->batch);
    size_t in = dt_stage_sends_gradient(g) ? dt_stage_in_bytes(g, s->batch) : 0;

    if (forward && out > 0 && !s->out)
        DT_TRY(dt_exec_message_new(&x->comm, &x->stages, vs, s->mb, false, out, err, &s->out));
    if (back && in > 0 && !s->din)
        DT_TRY(dt_exec_message_new(&x->comm, &x->stages, vs, s->mb, true, in, err, &s->din));
    if (forward || back)
        open_inbox(&x->comm, vs, s, back);
    *run = (struct dt_nn_run){
        .batch = s->batch,
        .saved = dt_stage_has_backward(g) ? s->saved.p : NULL,
        .stash = s->stash ? s->stash->data.p : NULL,
        .in = s->in,
        .out = s->out ? s->out->data.p : NULL,
        .dout = s->dout,
        .din = s->din ? s->din->data.p : NULL,
    };
    return DT_OK;
}

/* What was read is released, what was written goes to those that it is sent to. */
static void pass_messages(struct dt_exec_comm *c, const struct dt_exec_env *env,
                          struct dt_exec_microbatch *s, bool forward, int sends)
{
    struct dt_exec_message **from = forward ? &s->in_from : &s->dout_from;
    struct dt_exec_message **to = forward ? &s->out : &s->din;

    dt_exec_message_release(c, env, *from, 1, env->q);
    *from = NULL;
    dt_exec_message_release(c, env, *to, 1 - sends, NULL);
    *to = NULL;
}

/* After the last backward of a stage its gradients are complete, for whoever sums them. */
static void last_backward(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs, int lo,
                          int hi)
{
    if (vs->backwards > 1 || !dt_stage_grads(vs->stage))
        return;
    dt_exec_finish_grads(stages, vs, lo, hi);
    dt_stage_grads_reduce(stages->env->q, vs->stage, lo, hi);
}

/* Parameters that others have stepped have come since they were last used. */
static void use_parameters(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs, int lo,
                           int hi)
{
    for (int b = lo; stages->ranks->t && vs->opt.sharded && b < hi; b++)
        if (!vs->fresh[b - vs->first]) {
            dt_stage_stepped(stages->env->q, vs->stage, b, b + 1);
            vs->fresh[b - vs->first] = true;
        }
}

/* After the last one's copy to the host they can go to the other ranks. */
static void post_losses(struct dt_exec *x)
{
    x->env.dev->event_record(x->env.q, x->losses.read);
    dt_exec_comm_post_losses(x);
}

static void take_losses(struct dt_exec *x, const struct dt_op *op,
                        const struct dt_exec_microbatch *s)
{
    if (!s->empty)
        dt_exec_loss_take(&x->losses, &x->it, &x->stages, op, s);
    if (--x->losses.left == 0)
        post_losses(x);
}

/* What a backward op computes: all gradients, or a split one's half. */
static int gradients_of(const struct dt_exec_vstage *vs, const struct dt_op *op)
{
    if (!vs->split)
        return DT_BACKWARD_BOTH;
    return op->kind == DT_OP_BACKWARD ? DT_BACKWARD_INPUT : DT_BACKWARD_WEIGHT;
}

static enum dt_status run_blocks(struct dt_exec *x, struct dt_exec_vstage *vs,
                                 struct dt_exec_microbatch *s, const struct dt_op *op, int lo,
                                 int hi, struct dt_error *err)
{
    struct dt_nn_run run;

    if (op->kind == DT_OP_BACKWARD && vs->split)
        DT_TRY(dt_exec_stash_take(&x->stages, vs, s, err));
    DT_TRY(prepare(x, vs, s, (enum dt_op_kind)op->kind, err, &run));
    if (op->kind == DT_OP_FORWARD) {
        use_parameters(&x->stages, vs, lo, hi);
        dt_stage_forward(x->env.q, vs->stage, &run, lo, hi);
    } else {
        dt_stage_backward(x->env.q, vs->stage, &run, lo, hi, gradients_of(vs, op));
    }
    return DT_OK;
}

static enum dt_status compute(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_exec_vstage *vs = dt_exec_op_vs(&x->stages, op);
    bool forward = op->kind == DT_OP_FORWARD, last = op->part + 1 == op->parts;
    bool completes = !forward && (gradients_of(vs, op) & DT_BACKWARD_WEIGHT);
    int n = vs->last - vs->first, part = forward ? op->part : op->parts - 1 - op->part;
    int lo = vs->first + n * part / op->parts, hi = vs->first + n * (part + 1) / op->parts;
    struct dt_exec_microbatch *s;

    DT_TRY(dt_exec_microbatch_get(&x->stages, &x->it, vs, op->mb, err, &s));
    if (op->part == 0 && op->kind != DT_OP_WEIGHT_GRAD)
        DT_TRY(dt_exec_recv_own(x, i, err));
    if (!s->empty)
        DT_TRY(run_blocks(x, vs, s, op, lo, hi, err));
    if (completes)
        last_backward(&x->stages, vs, lo, hi);
    if (!last)
        return DT_OK;
    if (forward && vs->away)
        dt_exec_host_forward(vs);
    if (completes)
        vs->backwards--;
    if (forward && vs->v == x->env.n_v[op->module] - 1 &&
        x->env.o.model->modules[op->module].role != DT_ROLE_ENCODER)
        take_losses(x, op, s);
    if (op->kind != DT_OP_WEIGHT_GRAD)
        pass_messages(&x->comm, &x->env, s, forward, sends_of(x->it.p, &x->ranks, i));
    if (completes || !dt_stage_has_backward(vs->stage))
        dt_exec_microbatch_done(&x->env, vs, s);
    return DT_OK;
}

/* Once, when norm and losses are known and before anything is stepped.  Every rank has the sums of
 * the same numbers in the same order, so all decide alike. */
static enum dt_status decide(struct dt_exec *x, struct dt_error *err)
{
    struct dt_exec_result *r = &x->it.result;

    if (x->it.decided)
        return DT_OK;
    DT_TRY(x->env.dev->queue_sync(x->env.q, err));
    if (x->ranks.t) /* a collective that has failed on the queue has let it pass */
        DT_TRY(x->ranks.data->state(x->ranks.data, err));
    else
        dt_exec_loss_sum(&x->losses, &x->it, &x->ranks.cut[x->env.o.model->llm]);
    *r = (struct dt_exec_result){.grad_norm = x->norm.known ? (double)*x->norm.host : 0,
                                 .lr = dt_optimizer_lr(&x->env.o.optimizer, x->it.in->step)};
    dt_exec_loss_end(&x->losses, &x->it, &x->env, r);
    r->applied = x->it.in->accept ? x->it.in->accept(x->it.in->accept_ctx, r)
                                  : isfinite(r->loss) && isfinite(r->grad_norm);
    x->it.decided = true;
    return DT_OK;
}

static enum dt_status step(struct dt_exec *x, const struct dt_op *op, struct dt_error *err)
{
    struct dt_optimizer_coef coef = {x->norm.coef, 0};

    DT_TRY(decide(x, err)); /* the norm, and what clips, have come to the host */
    if (x->env.offloads)
        coef.host = x->norm.host[1];
    for (int v = op->stage; x->it.result.applied && v < x->env.n_v[op->module];
         v += x->env.pp[op->module]) {
        struct dt_exec_vstage *vs = dt_exec_vs(&x->stages, op->module, op->replica, v);

        dt_optimizer_step(x->env.q, &vs->opt, &x->env.o.optimizer, x->it.in->step, &coef, vs->first,
                          vs->last);
    }
    return DT_OK;
}

static enum dt_status execute(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    bool leads = dt_exec_leader(x->it.p, &x->ranks, i) == i;

    switch ((enum dt_op_kind)op->kind) {
    case DT_OP_RECV:
        return dt_exec_recv(x, op, err);
    case DT_OP_FORWARD:
    case DT_OP_BACKWARD:
    case DT_OP_WEIGHT_GRAD:
        return compute(x, i, err);
    case DT_OP_GRAD_SYNC:
        if (leads)
            dt_exec_sync(&x->stages, x->it.p, &x->it.p->groups[op->peer]);
        return DT_OK;
    case DT_OP_GRAD_NORM:
        if (leads)
            dt_exec_norm_alone(&x->norm, &x->stages);
        return DT_OK;
    case DT_OP_STEP:
        return x->it.late_steps ? DT_OK : step(x, op, err);
    case DT_OP_OFFLOAD:
        dt_exec_host_offload(&x->stages, op);
        return DT_OK;
    case DT_OP_RELOAD:
        return dt_exec_host_reload(&x->stages, x->it.p, op, err);
    case DT_OP_FETCH:        /* dt_exec_fetch */
    case DT_OP_SEND:         /* the receiver takes it */
    case DT_OP_PARAM_GATHER: /* every replica has stepped all of its parameters */
        return DT_OK;
    case DT_OP_KIND_N:
        break;
    }
    return dt_error_set(err, DT_ERR_INTERNAL, "op %s is not executed", dt_op_kind_names[op->kind]);
}

/* ---- the walk ---- */

static void begin_iteration(struct dt_exec_iteration *it, const struct dt_exec_stages *stages,
                            struct dt_exec_norm *norm)
{
    norm->known = it->decided = false;
    for (int m = 0; m < stages->env->o.model->n_modules; m++)
        for (int i = 0; i < stages->env->dp[m] * stages->env->n_v[m]; i++) {
            struct dt_exec_vstage *vs = &stages->vs[m][i];

            if (!vs->stage)
                continue;
            memset(vs->finished, 0, (size_t)(vs->last - vs->first) * sizeof(*vs->finished));
            memset(vs->fresh, 0, (size_t)(vs->last - vs->first) * sizeof(*vs->fresh));
            dt_stage_grads_begin(vs->stage);
            dt_stage_load_take(vs->stage, &(struct dt_stage_load){0}); /* of one that failed */
            /* an iteration that failed may have left some in use */
            dt_exec_microbatches_forget(vs);
            for (struct dt_exec_stash *k = vs->stashes; k; k = k->next)
                k->used = false;
            for (struct dt_exec_message *k = vs->messages; k; k = k->next)
                k->users = 0;
            vs->backwards = 0;
        }
    for (uint32_t i = 0; i < it->p->n_ops; i++) {
        const struct dt_op *op = &it->p->ops[i];

        if (op->part == 0 && dt_exec_here(stages->ranks, op) &&
            op->kind == (dt_exec_op_vs(stages, op)->split ? DT_OP_WEIGHT_GRAD : DT_OP_BACKWARD))
            dt_exec_op_vs(stages, op)->backwards++;
        if (op->part == 0 && op->kind == DT_OP_FORWARD && dt_exec_here(stages->ranks, op))
            dt_exec_op_vs(stages, op)->forwards++;
    }
    /* a replica without microbatches has gradients, too */
    for (int m = 0; m < stages->env->o.model->n_modules; m++)
        for (int i = 0; i < stages->env->dp[m] * stages->env->n_v[m]; i++)
            if (stages->vs[m][i].stage && stages->vs[m][i].backwards == 0)
                last_backward(stages, &stages->vs[m][i], stages->vs[m][i].first,
                              stages->vs[m][i].last);
}

/* Kind, stage and replica in one number, for dt_supervisor_doing. */
enum { OP_STAGE = 4, OP_REPLICA = 16 };

static void tell(const struct dt_exec_env *env, const struct dt_program *p, uint32_t i)
{
    const struct dt_op *op = &p->ops[i];

    if (env->o.supervisor)
        dt_supervisor_doing(env->o.supervisor, op->module,
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

static bool is_compute(const struct dt_op *op)
{
    return op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD || op->kind == DT_OP_WEIGHT_GRAD;
}

static struct dt_device_queue *queue_of(const struct dt_exec_env *env, const struct dt_op *op)
{
    return op->kind == DT_OP_FETCH                   ? env->uploads
           : dt_op_resource(op->kind) == DT_RES_HOST ? env->link
                                                     : env->q;
}

/* What goes over the host link and what the main thread computes wait for each other on the device. */
static void follow_host(const struct dt_exec *x, uint32_t i, struct dt_device_queue *q)
{
    const struct dt_program *p = x->it.p;
    bool host = dt_op_resource(p->ops[i].kind) == DT_RES_HOST;
    uint32_t d;

    for (uint32_t k = 0; x->env.link && (d = dt_exec_dep(p, i, k)) != DT_NONE; k++)
        if ((dt_op_resource(p->ops[d].kind) == DT_RES_HOST) != host &&
            dt_exec_here(&x->ranks, &p->ops[d]) && !dt_exec_is_comm(&x->comm, d))
            x->env.dev->event_wait(q, x->events.end[d]);
}

/* What comes in to a lane comes in one by one: op i after the one before it, where that is on the other queue. */
static void follow_input(const struct dt_exec *x, uint32_t i, struct dt_device_queue *q)
{
    const struct dt_op *op = &x->it.p->ops[i];
    uint32_t d = op->dep[0];

    if (d != DT_NONE && dt_op_resource(op->kind) == DT_RES_P2P_IN &&
        !dt_exec_is_comm(&x->comm, d) && queue_of(&x->env, &x->it.p->ops[d]) != q)
        x->env.dev->event_wait(q, x->events.end[d]);
}

/* Until all is on queues that op i waits for.  A batch that has no FETCH is put there before anything is waited for. */
static enum dt_status get_ready(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_device_queue *q = queue_of(&x->env, op);
    struct dt_exec_microbatch *s = NULL;
    enum dt_status st;

    if (is_compute(op)) {
        st = dt_exec_microbatch_get(&x->stages, &x->it, dt_exec_op_vs(&x->stages, op), op->mb, err,
                                    &s);
        if (st != DT_OK)
            return dt_exec_error_at(x, i, st, err);
    }
    DT_TRY(dt_exec_comm_wait(x, i, q, err));
    follow_input(x, i, q);
    follow_host(x, i, q);
    if (s)
        dt_exec_microbatch_follow(&x->env, s);
    return DT_OK;
}

static enum dt_status do_op(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    enum dt_status st;

    DT_TRY(get_ready(x, i, err));
    if (op->kind == DT_OP_FETCH) { /* it records its events itself */
        st = dt_exec_fetch(x, i, err);
    } else {
        struct dt_device_queue *q = queue_of(&x->env, op);

        x->env.dev->event_record(q, x->events.begin[i]);
        st = execute(x, i, err);
        x->env.dev->event_record(q, x->events.end[i]);
    }
    if (st == DT_OK)
        st = dt_tp_state(dt_exec_tp(&x->ranks, op->module, op->replica, op->stage), err);
    if (st == DT_OK)
        st = dt_tp_state(dt_exec_cp(&x->ranks, op->module, op->replica, op->stage), err);
    if (st == DT_OK)
        st = dt_tp_state(dt_exec_ep(&x->ranks, op->module, op->replica, op->stage), err);
    return st == DT_OK ? DT_OK : dt_exec_error_at(x, i, st, err);
}

static enum dt_status walk_op(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_device_memory_owner *before;
    enum dt_status st;

    tell(&x->env, x->it.p, i);
    before = dt_exec_for(&x->stages, op->module, op->replica, op->stage);
    st = do_op(x, i, err);
    x->env.dev->memory_for(x->env.dev, before);
    if (st == DT_OK)
        dt_exec_comm_issued(x, i);
    return st;
}

static enum dt_status walk(struct dt_exec *x, struct dt_error *err)
{
    x->it.begin_ns = dt_clock_ns();
    if (x->losses.left == 0)
        post_losses(x);
    for (uint32_t k = 0; k < x->it.n_order; k++)
        if (!dt_exec_is_comm(&x->comm, x->it.order[k]))
            DT_TRY(walk_op(x, x->it.order[k], err));
    DT_TRY(dt_exec_comm_drain(x, err));
    x->it.drained_ns = dt_clock_ns();
    if (x->env.o.supervisor)
        dt_supervisor_doing(x->env.o.supervisor, -1, 0, -1);
    return DT_OK;
}

static enum dt_status step_late(struct dt_exec *x, struct dt_error *err)
{
    for (uint32_t k = 0; x->it.late_steps && k < x->it.n_order; k++)
        if (x->it.p->ops[x->it.order[k]].kind == DT_OP_STEP)
            DT_TRY(step(x, &x->it.p->ops[x->it.order[k]], err));
    return DT_OK;
}

enum dt_status dt_exec_run(struct dt_exec *x, const struct dt_program *p,
                           const struct dt_exec_input *in, struct dt_error *err,
                           struct dt_timeline *timeline, struct dt_exec_result *out)
{
    enum dt_status st;

    if (p->assignment->n_samples != in->n || p->assignment->first_sample != 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "the program is for other samples");
    x->it.p = p;
    x->it.in = in;
    dt_exec_message_outgrown(&x->comm, &x->ranks);
    DT_TRY(dt_exec_edges(&x->it, &x->env, err));
    DT_TRY(dt_exec_loss_begin(&x->losses, &x->it, &x->stages, err));
    DT_TRY(dt_exec_reserve(&x->stages, &x->it, err));
    DT_TRY(dt_exec_make_order(&x->it, &x->ranks, err));
    DT_TRY(dt_exec_event_room(&x->events, x->env.dev, p->n_ops, err));
    DT_TRY(dt_exec_host_begin(&x->stages, err));
    x->env.dev->settle(x->env.dev); /* no queue waits for others yet */
    begin_iteration(&x->it, &x->stages, &x->norm);
    DT_TRY(dt_exec_connect(x, err));
    DT_TRY(dt_exec_comm_begin(x, err));
    st = walk(x, err);
    if (st == DT_OK && x->ranks.training && !x->norm.known) /* nothing is trained here */
        st = dt_exec_norm_join(x, err);
    if (st == DT_OK)
        st = decide(x, err);
    if (st == DT_OK)
        st = step_late(x, err);
    if (st != DT_OK && x->ranks.t) /* its queue may wait for ranks that do not come */
        x->ranks.data->give_up(x->ranks.data);
    if (st == DT_OK)
        st = dt_exec_env_sync(&x->env, err);
    else
        dt_exec_env_sync(&x->env, NULL);
    DT_TRY(st);
    DT_TRY(dt_exec_load_take(&x->stages, err, &x->it.result));
    if (timeline)
        DT_TRY(dt_exec_read_timeline(x, err, timeline));
    dt_exec_read_shares(x, &x->it.result);
    *out = x->it.result;
    return DT_OK;
}

enum dt_status dt_exec_timeline(struct dt_exec *x, const struct dt_program *p, struct dt_error *err,
                                struct dt_timeline *out)
{
    x->it.p = p;
    return dt_exec_read_timeline(x, err, out);
}

/* ---- access ---- */

struct dt_stage *dt_exec_stage(const struct dt_exec *x, int module, int replica, int v)
{
    return dt_exec_vs(&x->stages, module, replica, v)->stage;
}

struct dt_optimizer *dt_exec_optimizer(const struct dt_exec *x, int module, int replica, int v)
{
    return &dt_exec_vs(&x->stages, module, replica, v)->opt;
}

/* What the lowest replica here holds goes to the others here.  Nothing is under way. */
static void copy_to_replica(const struct dt_exec_env *env, const struct dt_exec_vstage *from,
                            struct dt_exec_vstage *to)
{
    const struct dt_optimizer *o = &to->opt;
    size_t moments = o->moments * sizeof(float);

    dt_stage_copy(env->q, to->stage, from->stage, 0, dt_stage_param_floats(to->stage));
    if (!o->exp_avg || o->sharded)
        return;
    if (o->host) {
        memcpy(o->master, from->opt.master, o->masters * sizeof(float));
        memcpy(o->exp_avg, from->opt.exp_avg, moments);
        memcpy(o->exp_avg_sq, from->opt.exp_avg_sq, moments);
        return;
    }
    env->dev->copy(env->q, o->exp_avg, from->opt.exp_avg, moments, DT_COPY_ON_DEVICE);
    env->dev->copy(env->q, o->exp_avg_sq, from->opt.exp_avg_sq, moments, DT_COPY_ON_DEVICE);
}

enum dt_status dt_exec_changed(struct dt_exec *x, struct dt_error *err)
{
    for (int m = 0; m < x->env.o.model->n_modules; m++)
        for (int k = 0; k < x->env.dp[m] * x->env.n_v[m]; k++) {
            struct dt_exec_vstage *vs = &x->stages.vs[m][k];
            int leader = x->ranks.peers[m][vs->v % x->env.pp[m]].leader;

            if (!vs->stage)
                continue;
            if (vs->replica != leader)
                copy_to_replica(&x->env, dt_exec_vs(&x->stages, m, leader, vs->v), vs);
            dt_stage_changed(x->env.q, vs->stage, vs->first, vs->last);
            vs->away_kept = false;
        }
    return x->env.dev->queue_sync(x->env.q, err);
}

enum dt_status dt_exec_sum(struct dt_exec *x, double *v, size_t n, struct dt_error *err)
{
    return dt_exec_ranks_sum(&x->ranks, v, n, err);
}

void dt_exec_memory(const struct dt_exec *x, int64_t *now_bytes, int64_t *max_bytes)
{
    x->env.dev->memory_used(x->env.dev, now_bytes, max_bytes);
}

int64_t dt_exec_host_memory(const struct dt_exec *x)
{
    return dt_optimizer_host_bytes(&x->host) + dt_exec_host_bytes(&x->stages);
}

int64_t dt_exec_lane_memory(const struct dt_exec *x, int module, int replica, int stage)
{
    int at = replica * x->env.pp[module] + stage;
    int64_t now = __atomic_load_n(&x->stages.lane[module][at].now_bytes, __ATOMIC_RELAXED);

    return now > x->stages.lane_most[module][at] ? now : x->stages.lane_most[module][at];
}

int dt_exec_in_flight(const struct dt_exec *x, int module, int replica, int v)
{
    return dt_exec_vs(&x->stages, module, replica, v)->in_use_max;
}
