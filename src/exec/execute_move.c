/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What goes from lane to lane of a process: activations, their gradients, gradient sums. */
#include "exec/execute_impl.h"

#include <string.h>

/* ---- edges between modules ---- */

static void place_rows(const struct dt_exec *x, const struct dt_exec_edge *e, int module,
                       int64_t *at_of, uint32_t *mb_of)
{
    const struct dt_module_assignment *a = &x->p->assignment->m[module];

    for (uint32_t mb = 0; mb < a->mb_first[a->n_replicas]; mb++) {
        int64_t at = 0;

        for (uint32_t i = 0; i < a->mb[mb].n; i++) {
            int64_t s = a->samples[a->mb[mb].first + i];

            at_of[s] = at;
            mb_of[s] = mb;
            at += e->rows[s];
        }
    }
}

static enum dt_status edge_room(struct dt_exec *x, struct dt_error *err)
{
    int64_t n = x->in->n;

    for (int k = 0; k < DT_EDGES && n > x->edge_cap; k++) {
        struct dt_exec_edge *e = &x->edge[k];
        void **p[] = {(void **)&e->rows, (void **)&e->src_at, (void **)&e->dst_at,
                      (void **)&e->src_mb, (void **)&e->dst_mb};

        for (int i = 0; i < 5; i++) {
            void *grown = dt_realloc(*p[i], (size_t)n * sizeof(int64_t));

            if (!grown)
                return dt_error_nomem(err, "rows of samples");
            *p[i] = grown;
        }
    }
    x->edge_cap = n > x->edge_cap ? n : x->edge_cap;
    return DT_OK;
}

enum dt_status dt_exec_edges(struct dt_exec *x, struct dt_error *err)
{
    DT_TRY(edge_room(x, err));
    for (int k = 0; k < DT_EDGES; k++) {
        struct dt_exec_edge *e = &x->edge[k];

        if (e->src < 0)
            continue;
        for (int64_t s = 0; s < x->in->n; s++)
            e->rows[s] = k == DT_EDGE_IN ? dt_feed_in_rows(x->in->seqs[s])
                                         : dt_feed_cond_count(x->o.model, x->in->seqs[s]);
        place_rows(x, e, e->src, e->src_at, e->src_mb);
        place_rows(x, e, e->dst, e->dst_at, e->dst_mb);
    }
    return DT_OK;
}

/* ---- messages ---- */

struct transfer {
    struct dt_exec_vstage *to;
    struct dt_slot_mb *slot;
    struct dt_message *from;
    const char *data;
    struct dt_buffer *own;
    const int64_t *rows, *from_at, *to_at;
    const uint32_t *from_mb;
    uint32_t from_global; /* microbatch */
    const struct dt_module_assignment *a;
    const struct dt_microbatch *mb;
    size_t bytes; /* of the whole tensor on the receiving side */
};

/* The sender's tensor begins with just what the receiver wants. */
static bool same_rows(const struct transfer *m)
{
    for (uint32_t i = 0; i < m->mb->n; i++) {
        int64_t s = m->a->samples[m->mb->first + i];

        if (m->rows[s] > 0 && (m->from_mb[s] != m->from_global || m->from_at[s] != m->to_at[s]))
            return false;
    }
    return true;
}

static enum dt_status copy_rows(struct dt_exec *x, const struct transfer *m, struct dt_error *err)
{
    int64_t all = 0;
    size_t width;

    for (uint32_t i = 0; i < m->mb->n; i++)
        all += m->rows[m->a->samples[m->mb->first + i]];
    if (all == 0)
        return DT_OK;
    width = m->bytes / (size_t)all;
    DT_TRY(dt_exec_room(x, m->own, m->bytes, err));
    for (uint32_t i = 0; i < m->mb->n; i++) {
        int64_t s = m->a->samples[m->mb->first + i];

        if (m->rows[s] > 0 && m->from_mb[s] == m->from_global)
            x->dev->copy(x->q, (char *)m->own->p + (size_t)m->to_at[s] * width,
                         m->data + (size_t)m->from_at[s] * width, (size_t)m->rows[s] * width,
                         DT_COPY_ON_DEVICE);
    }
    return DT_OK;
}

enum dt_status dt_exec_recv(struct dt_exec *x, const struct dt_op *op, struct dt_error *err)
{
    const struct dt_op *send = &x->p->ops[op->peer];
    bool grad = op->flags & DT_OPF_GRAD;
    struct dt_exec_edge *e = NULL;
    struct transfer m = {.to = dt_exec_op_vs(x, op)};
    const void **where;
    struct dt_message **whose;

    DT_TRY(dt_exec_slot(x, m.to, op->mb, err, &m.slot));
    m.from = dt_exec_sent(dt_exec_op_vs(x, send), send->mb, grad);
    if (!m.from)
        return dt_error_set(err, DT_ERR_INTERNAL, "a message comes from a microbatch that is gone");
    m.data = m.from->data.p;
    where = grad ? &m.slot->dout : &m.slot->in;
    whose = grad ? &m.slot->dout_from : &m.slot->in_from;
    for (int k = 0; (op->flags & DT_OPF_BOUNDARY) && k < DT_EDGES; k++)
        if ((grad ? x->edge[k].src : x->edge[k].dst) == op->module)
            e = &x->edge[k];
    if (e) {
        m.a = &x->p->assignment->m[op->module];
        m.mb = &m.a->mb[dt_exec_global_mb(x, op)];
        m.rows = e->rows;
        m.from_at = grad ? e->dst_at : e->src_at;
        m.to_at = grad ? e->src_at : e->dst_at;
        m.from_mb = grad ? e->dst_mb : e->src_mb;
        m.from_global = dt_exec_global_mb(x, send);
        m.own = grad ? &m.slot->dout_own : &m.slot->in_own;
        m.bytes = grad ? dt_stage_out_bytes(m.to->stage, m.slot->batch)
                       : dt_stage_in_bytes(m.to->stage, m.slot->batch);
        if (!same_rows(&m)) {
            enum dt_status st = copy_rows(x, &m, err);

            *where = m.own->p;
            dt_exec_release(m.from);
            return st;
        }
    }
    *where = m.data; /* handed on as it is, and kept until the receiver is done with it */
    *whose = m.from;
    return DT_OK;
}

/* ---- gradients ---- */

/* at: where the floats lie in the first member; others: in the others. */
static void sum_floats(struct dt_exec *x, const struct dt_group *g, size_t at, size_t others,
                       size_t n)
{
    float *first = NULL;

    for (uint32_t k = 0; k < g->n; k++) {
        const struct dt_op *op = &x->p->ops[x->p->group_ops[g->first + k]];
        float *own = dt_stage_grads(dt_exec_op_vs(x, op)->stage) + (k == 0 ? at : others);

        if (k == 0)
            first = own;
        else
            x->k->add(x->q, DT_F32, (int64_t)n, first, own, first);
    }
    for (uint32_t k = 1; k < g->n; k++) {
        const struct dt_op *op = &x->p->ops[x->p->group_ops[g->first + k]];

        x->dev->copy(x->q, dt_stage_grads(dt_exec_op_vs(x, op)->stage) + others, first,
                     n * sizeof(float), DT_COPY_ON_DEVICE);
    }
}

void dt_exec_finish_grads(struct dt_exec *x, struct dt_exec_vstage *vs, int first, int last)
{
    for (int b = first; b < last; b++)
        if (!vs->finished[b - vs->first]) {
            dt_stage_grads_finish(x->q, vs->stage, b, b + 1);
            vs->finished[b - vs->first] = true;
        }
}

/* The table of the first stage and the head's copy of it. */
static const struct dt_param *shared_table(const struct dt_exec *x, const struct dt_op *op)
{
    int n;
    const struct dt_param *p = dt_stage_params(dt_exec_op_vs(x, op)->stage, &n);
    const struct dt_param *table = NULL;

    for (int i = 0; i < n; i++) {
        const struct dt_block *b = &x->o.model->modules[op->module].blocks[p[i].block];

        if (p[i].tied || (!table && b->kind == DT_BLOCK_EMBEDDING && p[i].n_dims == 2 &&
                          p[i].shape[0] == b->vocab))
            table = &p[i];
    }
    return table;
}

void dt_exec_sync(struct dt_exec *x, const struct dt_group *g)
{
    const struct dt_op *first = &x->p->ops[x->p->group_ops[g->first]];
    struct dt_exec_vstage *vs = dt_exec_op_vs(x, first);
    int n = vs->last - vs->first, bucket = first->parts - 1 - first->part;
    int lo = vs->first + n * bucket / first->parts,
        hi = vs->first + n * (bucket + 1) / first->parts;

    if (first->flags & DT_OPF_TIED) {
        const struct dt_param *p[2];

        for (uint32_t k = 0; k < 2; k++) {
            const struct dt_op *op = &x->p->ops[x->p->group_ops[g->first + k]];

            vs = dt_exec_op_vs(x, op);
            p[k] = shared_table(x, op);
            if (!p[k])
                return;
            dt_exec_finish_grads(x, vs, p[k]->block, p[k]->block + 1);
        }
        sum_floats(x, g, p[0]->at, p[1]->at, p[0]->n);
        return;
    }
    for (int b = lo; b < hi; b++) {
        struct dt_param_range r = dt_stage_range(vs->stage, b);

        if (!dt_stage_trained(vs->stage, b))
            continue;
        for (uint32_t k = 0; k < g->n; k++)
            dt_exec_finish_grads(x, dt_exec_op_vs(x, &x->p->ops[x->p->group_ops[g->first + k]]), b,
                                 b + 1);
        sum_floats(x, g, r.at, r.at, r.n);
    }
}
