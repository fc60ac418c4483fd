/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What goes from lane to lane: which rows, and the hand-off between lanes of a rank; sums of gradients here. */
#include "exec/program/execute_impl.h"

#include <string.h>

/* ---- messages ---- */

/* Rows in common, in the order of the receiver's samples; do they lie side by side? */
static void rows_in_common(struct dt_exec_link *l)
{
    l->n = 0;
    l->from_runs = l->to_runs = true;
    for (uint32_t i = 0; i < l->mb->n; i++) {
        int64_t end, k = dt_exec_pieces(l->edge, l->to, l->mb->first + i, &end);

        for (; k < end; k++) {
            if (!dt_exec_takes(l, k))
                continue;
            if (l->n == 0) {
                l->from_first = l->from_at[k];
                l->to_first = l->to_at[k];
            }
            l->from_runs &= l->from_at[k] == l->from_first + l->n;
            l->to_runs &= l->to_at[k] == l->to_first + l->n;
            l->n += l->rows[k];
        }
    }
}

/* Rows of a microbatch of the module on one side of the edge: all, or those of one owner (-1: all). */
static int64_t count_rows(const struct dt_program *p, const struct dt_exec_edge *e, int module,
                          uint32_t mb, int owner)
{
    const struct dt_assignment_module *a = &p->assignment->m[module];
    int64_t n = 0;

    for (uint32_t i = 0; i < a->mb[mb].n; i++) {
        int64_t end, k = dt_exec_pieces(e, a, a->mb[mb].first + i, &end);

        for (; k < end; k++)
            n += owner < 0 || e->owner[k] == owner ? e->rows[k] : 0;
    }
    return n;
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
                  const struct dt_op *recv, int t, struct dt_exec_link *l)
{
    const struct dt_op *send = &it->p->ops[recv->peer];
    const struct dt_plan_layout *to = &stages->env->o.plan->modules[recv->module].layout;
    bool grad = recv->flags & DT_OPF_GRAD, here = dt_exec_here(stages->ranks, recv);
    size_t bytes;
    int64_t rows;

    *l = (struct dt_exec_link){.from_global = dt_exec_global_mb(it->p, send),
                               .to_global = dt_exec_global_mb(it->p, recv)};
    l->to = &it->p->assignment->m[recv->module];
    l->mb = &l->to->mb[l->to_global];
    bytes = here ? tensor_bytes(it, stages, recv, grad, l->to_global)
                 : tensor_bytes(it, stages, send, !grad, l->from_global);
    l->to_bytes = bytes;
    for (int k = 0; (recv->flags & DT_OPF_BOUNDARY) && k < DT_EDGES; k++)
        if ((grad ? it->edge[k].src : it->edge[k].dst) == recv->module)
            l->edge = &it->edge[k];
    if (!l->edge)
        return;
    l->rows = l->edge->rows;
    l->from_at = grad ? l->edge->dst_at : l->edge->src_at;
    l->to_at = grad ? l->edge->src_at : l->edge->dst_at;
    l->from_mb = grad ? l->edge->dst_mb : l->edge->src_mb;
    rows = here ? count_rows(it->p, l->edge, recv->module, l->to_global, -1)
                : count_rows(it->p, l->edge, send->module, l->from_global, -1);
    l->width = rows > 0 ? bytes / (size_t)rows : 0;
    if (to->cp > 1) {
        l->owner = l->edge->owner;
        l->member = t / to->tp;
        l->to_at = l->edge->own_at;
    }
    l->to_rows = count_rows(it->p, l->edge, recv->module, l->to_global, l->owner ? l->member : -1);
    l->to_bytes = (size_t)l->to_rows * l->width;
    rows_in_common(l);
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
            if (!dt_exec_takes(l, k))
                continue;
            add_run(dev, q, &r, l->rows[k] * (int64_t)l->width,
                    from + (size_t)(from_packed ? at : l->from_at[k]) * l->width,
                    to + (size_t)(to_packed ? at : l->to_at[k]) * l->width);
            at += l->rows[k];
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

enum dt_status dt_exec_recv(struct dt_exec *x, const struct dt_op *op, struct dt_error *err)
{
    const struct dt_op *send = &x->it.p->ops[op->peer];
    bool grad = op->flags & DT_OPF_GRAD;
    struct dt_exec_vstage *to = dt_exec_op_vs(&x->stages, op),
                          *from = dt_exec_op_vs(&x->stages, send);
    struct dt_exec_message *m = dt_exec_message_sent(&x->comm, from, send->mb, grad), *inbox;
    struct dt_exec_link l;
    struct dt_exec_microbatch *microbatch;

    DT_TRY(dt_exec_microbatch_get(&x->stages, &x->it, to, op->mb, err, &microbatch));
    if (!m)
        return dt_error_set(err, DT_ERR_INTERNAL, "a message comes from a microbatch that is gone");
    dt_exec_link(&x->it, &x->stages, op, dt_exec_member(&x->ranks, op), &l);
    if (!l.edge || (l.n == l.to_rows && l.from_first == 0 && l.from_runs && l.to_runs)) {
        /* handed on as it is, and kept until the receiver is done with it */
        *(grad ? &microbatch->dout : &microbatch->in) = m->data.p;
        *(grad ? &microbatch->dout_from : &microbatch->in_from) = m;
        return DT_OK;
    }
    if (l.n > 0) {
        DT_TRY(
            dt_exec_message_inbox(&x->comm, &x->stages, to, op->mb, grad, l.to_bytes, err, &inbox));
        copy_rows(x->env.dev, x->env.q, &l, m->data.p, false, inbox->data.p, false);
    }
    dt_exec_message_release(&x->comm, &x->env, m, 1, x->env.q);
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
        stages->env->dev->copy(q, (grads ? dt_stage_grads(s) : dt_stage_master(s)) + at,
                               (grads ? dt_stage_grads(from) : dt_stage_master(from)) + at,
                               n * sizeof(float), DT_COPY_ON_DEVICE);
        if (!grads && dt_stage_rounded(s))
            stages->env->dev->copy(q, (uint16_t *)dt_stage_rounded(s) + at,
                                   (uint16_t *)dt_stage_rounded(from) + at, n * sizeof(uint16_t),
                                   DT_COPY_ON_DEVICE);
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
