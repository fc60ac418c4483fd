/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What goes from lane to lane: which rows, and the hand-off between lanes of a rank; sums of gradients here. */
#include "exec/program/execute_impl.h"

#include <string.h>

/* ---- messages ---- */

static bool takes(const struct dt_exec_link *l, const struct dt_exec_rows *r)
{
    return r->mb[l->from_side] == l->from_global && r->owner[l->from_side] == l->from_member &&
           r->owner[l->to_side] == l->to_member;
}

/* Rows in common, in the order of the receiver's samples; do they lie side by side? */
static void rows_in_common(struct dt_exec_link *l)
{
    l->n = l->to_rows = 0;
    l->from_runs = l->to_runs = true;
    for (uint32_t i = 0; i < l->mb->n; i++) {
        int64_t end, k = dt_exec_pieces(l->edge, l->to, l->mb->first + i, &end);

        for (; k < end; k++) {
            const struct dt_exec_rows *r = &l->edge->piece[k];

            l->to_rows += r->owner[l->to_side] == l->to_member ? r->n : 0;
            if (!takes(l, r))
                continue;
            if (l->n == 0) {
                l->from_first = r->at[l->from_side];
                l->to_first = r->at[l->to_side];
            }
            l->from_runs &= r->at[l->from_side] == l->from_first + l->n;
            l->to_runs &= r->at[l->to_side] == l->to_first + l->n;
            l->n += r->n;
        }
    }
}

/* Bytes of the tensor of the side that is here: the same stage functions on both. */
static size_t tensor_bytes(const struct dt_exec_iteration *it, const struct dt_exec_stages *stages,
                           const struct dt_op *op, bool out, uint32_t mb)
{
    const struct dt_stage *s = dt_exec_op_vs(stages, op)->stage;
    struct dt_batch counts = dt_exec_counts(stages->env, it, op->module, mb);

    return out ? dt_stage_out_bytes(s, &counts) : dt_stage_in_bytes(s, &counts);
}

void dt_exec_link(const struct dt_exec_iteration *it, const struct dt_exec_stages *stages,
                  const struct dt_op *recv, int s, int t, struct dt_exec_link *l)
{
    const struct dt_op *send = &it->p->ops[recv->peer];
    bool grad = recv->flags & DT_OPF_GRAD, here = dt_exec_here(stages->ranks, recv);

    *l = (struct dt_exec_link){.from_global = dt_exec_global_mb(it->p, send),
                               .to_global = dt_exec_global_mb(it->p, recv),
                               .from_side = grad ? DT_EXEC_DST : DT_EXEC_SRC,
                               .to_side = grad ? DT_EXEC_SRC : DT_EXEC_DST,
                               .from_member = s,
                               .to_member = t};
    l->to = &it->p->assignment->m[recv->module];
    l->mb = &l->to->mb[l->to_global];
    for (int k = 0; (recv->flags & DT_OPF_BOUNDARY) && k < DT_EDGES; k++)
        if ((grad ? it->edge[k].src : it->edge[k].dst) == recv->module)
            l->edge = &it->edge[k];
    if (!l->edge) {
        l->to_bytes = here ? tensor_bytes(it, stages, recv, grad, l->to_global)
                           : tensor_bytes(it, stages, send, !grad, l->from_global);
        return;
    }
    l->width = l->edge->width;
    rows_in_common(l);
    l->to_bytes = (size_t)l->to_rows * l->width;
}

enum { RUNS = 64 }; /* of rows, in one launch */

struct runs {
    int n;
    struct dt_kernel_copy_part part[RUNS];
};

static void copy_runs(const struct dt_device *dev, struct dt_device_queue *q, struct runs *r)
{
    if (r->n > 0)
        dev->k->copy(q, r->n, r->part);
    r->n = 0;
}

/* Behind the last run, where both sides go on there. */
static bool extends(const struct runs *r, const char *from, const char *to)
{
    const struct dt_kernel_copy_part *p = r->part + r->n;

    return r->n > 0 && from == (const char *)p[-1].from + p[-1].n &&
           to == (char *)p[-1].to + p[-1].n;
}

static void add_run(const struct dt_device *dev, struct dt_device_queue *q, struct runs *r,
                    int64_t bytes, const char *from, char *to)
{
    if (extends(r, from, to)) {
        r->part[r->n - 1].n += bytes;
        return;
    }
    if (r->n == RUNS)
        copy_runs(dev, q, r);
    r->part[r->n++] = (struct dt_kernel_copy_part){bytes, from, to};
}

/* Rows in common, however many samples they are of, by one launch. */
static void copy_rows(const struct dt_device *dev, struct dt_device_queue *q,
                      const struct dt_exec_link *l, const char *from, bool from_packed, char *to,
                      bool to_packed)
{
    struct runs r = {0};
    int64_t at = 0;

    for (uint32_t i = 0; i < l->mb->n; i++) {
        int64_t end, k = dt_exec_pieces(l->edge, l->to, l->mb->first + i, &end);

        for (; k < end; k++) {
            const struct dt_exec_rows *x = &l->edge->piece[k];

            if (!takes(l, x))
                continue;
            add_run(dev, q, &r, x->n * (int64_t)l->width,
                    from + (size_t)(from_packed ? at : x->at[l->from_side]) * l->width,
                    to + (size_t)(to_packed ? at : x->at[l->to_side]) * l->width);
            at += x->n;
        }
    }
    copy_runs(dev, q, &r);
}

void dt_exec_pack(const struct dt_device *dev, struct dt_device_queue *q,
                  const struct dt_exec_link *l, const char *tensor, char *packed)
{
    copy_rows(dev, q, l, tensor, false, packed, true);
}

void dt_exec_unpack(const struct dt_device *dev, struct dt_device_queue *q,
                    const struct dt_exec_link *l, const char *packed, char *tensor)
{
    copy_rows(dev, q, l, packed, true, tensor, false);
}

/* Which member of the sending lane is this rank, among those that feed member t; -1: none. */
static int feeder_here(const struct dt_exec_ranks *ranks, const struct dt_op *send,
                       const struct dt_op *recv, int t)
{
    for (int k = 0; k < dt_exec_feeders(ranks, send, recv); k++) {
        int s = dt_exec_feeder(recv, t, k);

        if (dt_exec_rank_of(ranks, send, s) == ranks->rank)
            return s;
    }
    return -1;
}

static enum dt_status gone(struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_INTERNAL, "a message comes from a microbatch that is gone");
}

/* Rows of a message of this rank to their places, and the sender is done with it. */
static enum dt_status copy_own(struct dt_exec *x, const struct dt_op *recv,
                               const struct dt_exec_link *l, struct dt_exec_message *m,
                               struct dt_error *err)
{
    struct dt_exec_message *inbox;

    if (l->n > 0) {
        DT_TRY(dt_exec_message_inbox(&x->comm, &x->stages, dt_exec_op_vs(&x->stages, recv),
                                     recv->mb, (recv->flags & DT_OPF_GRAD) != 0, l->to_bytes, err,
                                     &inbox));
        copy_rows(x->env.dev, x->env.q, l, m->data.p, false, inbox->data.p, false);
    }
    dt_exec_message_release(&x->comm, &x->env, m, 1, x->env.q);
    return DT_OK;
}

enum dt_status dt_exec_recv(struct dt_exec *x, const struct dt_op *op, struct dt_error *err)
{
    const struct dt_op *send = &x->it.p->ops[op->peer];
    bool grad = op->flags & DT_OPF_GRAD;
    struct dt_exec_vstage *to = dt_exec_op_vs(&x->stages, op),
                          *from = dt_exec_op_vs(&x->stages, send);
    struct dt_exec_message *m = dt_exec_message_sent(&x->comm, from, send->mb, grad);
    int t = dt_exec_member(&x->ranks, op);
    struct dt_exec_link l;
    struct dt_exec_microbatch *microbatch;

    DT_TRY(dt_exec_microbatch_get(&x->stages, &x->it, to, op->mb, err, &microbatch));
    dt_exec_link(&x->it, &x->stages, op, feeder_here(&x->ranks, send, op, t), t, &l);
    if (!m)
        return l.edge && l.n == 0 ? DT_OK : gone(err);
    if (!l.edge || (l.n == l.to_rows && l.from_first == 0 && l.from_runs && l.to_runs)) {
        /* handed on as it is, and kept until the receiver is done with it */
        *(grad ? &microbatch->dout : &microbatch->in) = m->data.p;
        *(grad ? &microbatch->dout_from : &microbatch->in_from) = m;
        return DT_OK;
    }
    return copy_own(x, op, &l, m, err);
}

static enum dt_status recv_own(struct dt_exec *x, uint32_t d, struct dt_error *err)
{
    const struct dt_op *recv = &x->it.p->ops[d], *send = &x->it.p->ops[recv->peer];
    int t = dt_exec_member(&x->ranks, recv), s = feeder_here(&x->ranks, send, recv, t);
    struct dt_exec_message *m;
    struct dt_exec_link l;

    if (s < 0)
        return DT_OK;
    m = dt_exec_message_sent(&x->comm, dt_exec_op_vs(&x->stages, send), send->mb,
                             (recv->flags & DT_OPF_GRAD) != 0);
    dt_exec_link(&x->it, &x->stages, recv, s, t, &l);
    if (!m)
        return l.n == 0 ? DT_OK : gone(err);
    return copy_own(x, recv, &l, m, err);
}

enum dt_status dt_exec_recv_own(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    uint32_t d;

    for (uint32_t j = 0; (d = dt_exec_dep(x->it.p, i, j)) != DT_NONE; j++)
        if (x->it.p->ops[d].kind == DT_OP_RECV && dt_exec_is_comm(&x->comm, d))
            DT_TRY(recv_own(x, d, err));
    return DT_OK;
}

/* ---- gradients ---- */

/* at: where the floats lie in the first member; others: in the others. */
static void sum_floats(const struct dt_exec_stages *stages, const struct dt_program *p,
                       const struct dt_group *g, size_t at, size_t others, size_t n)
{
    float *first = NULL;

    for (uint32_t k = 0; k < g->n; k++) {
        const struct dt_op *op = &p->ops[p->group_ops[g->first + k]];
        float *own = dt_stage_grads(dt_exec_op_vs(stages, op)->stage) + (k == 0 ? at : others);

        if (k == 0)
            first = own;
        else
            stages->env->k->add(stages->env->q, DT_F32, (int64_t)n, first, own, first);
    }
    for (uint32_t k = 1; k < g->n; k++) {
        const struct dt_op *op = &p->ops[p->group_ops[g->first + k]];

        stages->env->dev->copy(stages->env->q,
                               dt_stage_grads(dt_exec_op_vs(stages, op)->stage) + others, first,
                               n * sizeof(float), DT_COPY_ON_DEVICE);
    }
}

void dt_exec_sum_here(const struct dt_exec_stages *stages, struct dt_device_queue *q,
                      const struct dt_op *op, size_t at, size_t n)
{
    int v = op->chunk * stages->env->pp[op->module] + op->stage;
    int leader = stages->ranks->peers[op->module][op->stage].leader;
    float *sum = dt_stage_grads(dt_exec_vs(stages, op->module, leader, v)->stage) + at;

    for (int r = leader + 1; r < stages->env->dp[op->module]; r++) {
        struct dt_stage *s = dt_exec_vs(stages, op->module, r, v)->stage;

        if (s)
            stages->env->k->add(q, DT_F32, (int64_t)n, sum, dt_stage_grads(s) + at, sum);
    }
}

void dt_exec_copy_here(const struct dt_exec_stages *stages, struct dt_device_queue *q,
                       const struct dt_op *op, bool grads, size_t at, size_t n)
{
    int v = op->chunk * stages->env->pp[op->module] + op->stage;
    int leader = stages->ranks->peers[op->module][op->stage].leader;
    struct dt_stage *from = dt_exec_vs(stages, op->module, leader, v)->stage;

    for (int r = leader + 1; r < stages->env->dp[op->module]; r++) {
        struct dt_stage *s = dt_exec_vs(stages, op->module, r, v)->stage;

        if (!s)
            continue;
        if (grads)
            stages->env->dev->copy(q, dt_stage_grads(s) + at, dt_stage_grads(from) + at,
                                   n * sizeof(float), DT_COPY_ON_DEVICE);
        else
            dt_stage_copy(q, s, from, at, n);
    }
}

void dt_exec_finish_grads(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs, int first,
                          int last)
{
    for (int b = first; b < last;) {
        int end = b;

        while (end < last && !vs->finished[end - vs->first])
            vs->finished[end++ - vs->first] = true;
        if (end > b)
            dt_stage_grads_finish(stages->env->q, vs->stage, b, end);
        b = end > b ? end : b + 1;
    }
}

const struct dt_param *dt_exec_shared_table(const struct dt_exec_env *env,
                                            const struct dt_exec_vstage *vs)
{
    const struct dt_module *mod = &env->o.model->modules[vs->module];
    const struct dt_block *head = &mod->blocks[mod->n_blocks - 1];
    int n;
    const struct dt_param *p = dt_stage_params(vs->stage, &n);
    const struct dt_param *table = NULL;

    if (head->kind != DT_BLOCK_LM_HEAD || !head->tied)
        return NULL;
    for (int i = 0; i < n; i++) {
        const struct dt_block *b = &mod->blocks[p[i].block];

        if (p[i].tied || (!table && b->kind == DT_BLOCK_EMBEDDING && p[i].n_dims == 2 &&
                          p[i].shape[0] == b->vocab))
            table = &p[i];
    }
    return table;
}

void dt_exec_bucket(const struct dt_exec_stages *stages, const struct dt_op *op, int *first,
                    int *last)
{
    const struct dt_exec_vstage *vs = dt_exec_op_vs(stages, op);
    int n = vs->last - vs->first;
    int k = op->kind == DT_OP_GRAD_SYNC ? op->parts - 1 - op->part : op->part;

    *first = vs->first + n * k / op->parts;
    *last = vs->first + n * (k + 1) / op->parts;
}

void dt_exec_sync(const struct dt_exec_stages *stages, const struct dt_program *p,
                  const struct dt_group *g)
{
    const struct dt_op *first = &p->ops[p->group_ops[g->first]];
    struct dt_exec_vstage *vs = dt_exec_op_vs(stages, first);
    int lo, hi;

    if (first->flags & DT_OPF_TIED) {
        const struct dt_param *table[2];

        for (uint32_t k = 0; k < 2; k++) {
            vs = dt_exec_op_vs(stages, &p->ops[p->group_ops[g->first + k]]);
            table[k] = dt_exec_shared_table(stages->env, vs);
            if (!table[k])
                return;
            dt_exec_finish_grads(stages, vs, table[k]->block, table[k]->block + 1);
        }
        sum_floats(stages, p, g, table[0]->at, table[1]->at, table[0]->n);
        return;
    }
    dt_exec_bucket(stages, first, &lo, &hi);
    for (int b = lo; b < hi; b++) {
        struct dt_param_range r = dt_stage_range(vs->stage, b);

        if (!dt_stage_trained(vs->stage, b))
            continue;
        for (uint32_t k = 0; k < g->n; k++)
            dt_exec_finish_grads(stages, dt_exec_op_vs(stages, &p->ops[p->group_ops[g->first + k]]),
                                 b, b + 1);
        sum_floats(stages, p, g, r.at, r.at, r.n);
    }
}
