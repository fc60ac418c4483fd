/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Running a stage: each block writes its output where the next one keeps its input; backwards the
 * gradient alternates between two temporaries (or stays in one, where a block works in place). */
#include "exec/modules/impl.h"

#include <assert.h>

struct pass {
    struct dt_device_queue *q;
    struct dt_stage *s;
    const struct dt_nn_run *r;
    char *saved;
    struct dt_nn_carry carry;
};

static void begin(struct pass *p, struct dt_device_queue *q, struct dt_stage *s,
                  const struct dt_nn_run *r)
{
    p->q = q;
    p->s = s;
    p->r = r;
    p->saved = r->saved ? r->saved : s->own_saved;
    assert(r->saved || !s->any_backward);
    dt_nn_saved_places(s, r->batch, s->place, &p->carry);
}

static struct dt_nn_node *node(const struct pass *p, int block)
{
    return &p->s->nodes[block - p->s->first];
}

static char *saved_at(const struct pass *p, size_t at)
{
    return at == DT_NOWHERE ? NULL : p->saved + at;
}

static char *input_of(const struct pass *p, int block)
{
    char *x = saved_at(p, p->s->place[block - p->s->first].x);

    return x ? x : p->s->temp[block & 1];
}

/* A skip lies in the input of the block after its push, or came with the flow. */
static char *skip_at(const struct pass *p, int k)
{
    int taker = p->s->facts.skip[k].push + 1;

    if (p->carry.skip[k] != DT_NOWHERE)
        return p->saved + p->carry.skip[k];
    return taker >= p->s->first && taker < p->s->last ? input_of(p, taker) : NULL;
}

static struct dt_nn_call call_of(const struct pass *p, int block)
{
    struct dt_stage *s = p->s;
    struct dt_nn_node *n = node(p, block);
    struct dt_nn_call c = {.q = p->q,
                           .k = s->dev->k,
                           .s = s,
                           .n = n,
                           .b = n->b,
                           .batch = p->r->batch,
                           .dtype = s->dtype,
                           .es = dt_dtype_bytes(s->dtype)};

    c.saved.base = saved_at(p, s->place[block - s->first].rest);
    c.work.base = s->block_work;
    c.x = n->has_x ? input_of(p, block) : NULL;
    c.time = saved_at(p, p->carry.time);
    c.context = saved_at(p, p->carry.context);
    c.d_time = s->g_time;
    c.d_context = s->g_context;
    if (n->pop >= 0) {
        c.skip = skip_at(p, n->pop);
        c.d_skip = s->g_skip[n->pop];
    }
    n->ops->layout(&c);
    return c;
}

static void copy(const struct pass *p, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0 && dst && src && dst != src)
        p->s->dev->copy(p->q, dst, src, bytes, DT_COPY_ON_DEVICE);
}

/* ---- forward ---- */

static bool begins_module(const struct dt_stage *s)
{
    return s->module->blocks[s->first].kind == DT_BLOCK_EMBEDDING;
}

static bool ends_in_head(const struct dt_stage *s)
{
    return s->module->blocks[s->last - 1].kind == DT_BLOCK_LM_HEAD;
}

static bool ends_module(const struct dt_stage *s)
{
    return s->last == s->module->n_blocks;
}

/* ---- ends of a module whose members have whole rows inside, and exchange shares of them ---- */

static bool features_whole(const struct dt_stage *s)
{
    return ends_module(s) && s->tp && !s->seqpar && s->facts.conv_in < 0 && !ends_in_head(s);
}

static struct dt_flow_share features_of(const struct pass *p)
{
    struct dt_flow_share e;

    e.all = dt_nn_rows_after(p->s, p->r->batch, p->s->last, &e.width);
    e.first = dt_nn_mine_first(p->s, e.all);
    e.n = dt_nn_mine(p->s, e.all);
    return e;
}

static bool states_come(const struct dt_stage *s)
{
    return s->first == 0 && s->tp && s->facts.conv_in >= 0;
}

static char *own_of(const struct pass *p, const struct dt_flow_share *e, char *whole)
{
    return dt_nn_off(whole, e->first * e->width, dt_dtype_bytes(p->s->dtype));
}

/* Whole rows from the members' shares. */
static void gather(const struct pass *p, const struct dt_flow_share *e, const char *own,
                   char *whole)
{
    copy(p, own_of(p, e, whole), own, (size_t)(e->n * e->width) * dt_dtype_bytes(p->s->dtype));
    dt_tp_all_gather(p->q, p->s->tp, p->s->dtype, e->all, e->width, whole);
}

/* The conditioning states of a U-Net, where they will be read. */
static void states_in(struct pass *p)
{
    struct dt_stage *s = p->s;
    struct dt_flow_share e = dt_flow_states(s, p->r->batch);

    if (e.all > 0)
        gather(p, &e, p->r->in,
               s->facts.context_first == 0 ? saved_at(p, p->carry.context) : input_of(p, s->first));
}

static void flow_in(struct pass *p)
{
    struct dt_stage *s = p->s;
    struct dt_flow list[DT_FLOWS_MAX];
    int n = dt_flow_list(s, p->r->batch, s->first, list);
    const char *from = p->r->in;

    if (states_come(s)) {
        states_in(p);
        return;
    }
    if (begins_module(s) || !from)
        return;
    for (int i = 0; i < n; from += list[i++].bytes) {
        switch (list[i].kind) {
        case DT_FLOW_H:
            copy(p, input_of(p, s->first), from, list[i].bytes);
            break;
        case DT_FLOW_TIME:
            copy(p, saved_at(p, p->carry.time), from, list[i].bytes);
            break;
        case DT_FLOW_CONTEXT:
            copy(p, saved_at(p, p->carry.context), from, list[i].bytes);
            break;
        case DT_FLOW_SKIP:
            copy(p, skip_at(p, list[i].skip), from, list[i].bytes);
            break;
        }
    }
}

/* The running activation is there already. */
static void flow_out(struct pass *p)
{
    struct dt_stage *s = p->s;
    struct dt_flow list[DT_FLOWS_MAX];
    int n = dt_flow_list(s, p->r->batch, s->last, list);
    char *to = p->r->out;

    if (ends_in_head(s) || !to)
        return;
    if (features_whole(s)) {
        struct dt_flow_share e = features_of(p);

        copy(p, to, own_of(p, &e, s->temp[s->last & 1]), list[0].bytes);
        return;
    }
    for (int i = 0; i < n; to += list[i++].bytes) {
        if (list[i].kind == DT_FLOW_TIME)
            copy(p, to, saved_at(p, p->carry.time), list[i].bytes);
        else if (list[i].kind == DT_FLOW_CONTEXT)
            copy(p, to, saved_at(p, p->carry.context), list[i].bytes);
        else if (list[i].kind == DT_FLOW_SKIP)
            copy(p, to, skip_at(p, list[i].skip), list[i].bytes);
    }
}

void dt_stage_forward(struct dt_device_queue *q, struct dt_stage *s, const struct dt_nn_run *r,
                      int first, int last)
{
    struct pass p;

    begin(&p, q, s, r);
    assert(first >= s->first && last <= s->last);
    if (first == s->first)
        flow_in(&p);
    for (int i = first; i < last; i++) {
        struct dt_nn_call c = call_of(&p, i);

        if (c.n->has_y && i + 1 < s->last)
            c.y = input_of(&p, i + 1);
        else if (c.n->has_y)
            c.y = features_whole(s) ? s->temp[s->last & 1] : r->out;
        c.in_rows = r->in;
        c.out_rows = r->out;
        c.n->ops->forward(&c, false);
    }
    if (last == s->last)
        flow_out(&p);
}

/* ---- backward ---- */

static void zero(const struct pass *p, char *to, size_t bytes)
{
    if (bytes > 0)
        p->s->dev->zero(p->q, to, bytes);
}

static void gradients_in(struct pass *p)
{
    struct dt_stage *s = p->s;
    const struct dt_nn_shape_facts *f = &s->facts;
    const struct dt_batch *b = p->r->batch;
    struct dt_flow list[DT_FLOWS_MAX];
    int n = dt_flow_list(s, b, s->last, list);
    const char *from = p->r->dout;
    size_t es = dt_dtype_bytes(s->dtype);
    size_t h_bytes = dt_nn_output_bytes(s, node(p, s->last - 1), b);

    s->grad_y = s->temp[0];
    if (f->conv_in >= 0) {
        zero(p, s->g_time, (size_t)(b->n_seq * f->time_dim) * es);
        zero(p, s->g_context, (size_t)(b->n_seq * f->context_len * f->context_dim) * es);
    }
    if (ends_in_head(s))
        return;
    if (features_whole(s)) {
        struct dt_flow_share e = features_of(p);

        gather(p, &e, from, s->grad_y);
        return;
    }
    if (!from)
        return;
    for (int i = 0; i < n; from += list[i++].bytes) {
        switch (list[i].kind) {
        case DT_FLOW_H:
            copy(p, s->grad_y, from, h_bytes);
            break;
        case DT_FLOW_TIME:
            copy(p, s->g_time, from, list[i].bytes);
            break;
        case DT_FLOW_CONTEXT:
            copy(p, s->g_context, from, list[i].bytes);
            break;
        case DT_FLOW_SKIP:
            copy(p, s->g_skip[list[i].skip], from, list[i].bytes);
            break;
        }
    }
}

/* The heads of each member have added to their own. */
static void sum_context(struct pass *p)
{
    struct dt_stage *s = p->s;
    const struct dt_nn_shape_facts *f = &s->facts;

    if (f->context_first == 0 && f->context_last >= 0)
        dt_tp_all_reduce(p->q, s->tp, s->dtype,
                         p->r->batch->n_seq * f->context_len * f->context_dim, s->g_context);
}

static void gradients_out(struct pass *p)
{
    struct dt_stage *s = p->s;
    struct dt_flow list[DT_FLOWS_MAX];
    int n = dt_flow_list(s, p->r->batch, s->first, list);
    char *to = p->r->din;

    if (begins_module(s) || !dt_stage_sends_gradient(s))
        return;
    if (s->first == 0 && s->facts.conv_in >= 0) /* no projector: the conditioning states' end */
        sum_context(p);
    if (states_come(s)) {
        struct dt_flow_share e = dt_flow_states(s, p->r->batch);

        copy(p, to, own_of(p, &e, s->facts.context_first == 0 ? s->g_context : s->grad_y),
             (size_t)(e.n * e.width) * dt_dtype_bytes(s->dtype));
        return;
    }
    if (!to)
        return;
    for (int i = 0; i < n; to += list[i++].bytes) {
        switch (list[i].kind) {
        case DT_FLOW_H:
            copy(p, to, s->grad_y, list[i].bytes);
            break;
        case DT_FLOW_TIME:
            copy(p, to, s->g_time, list[i].bytes);
            break;
        case DT_FLOW_CONTEXT:
            copy(p, to, s->g_context, list[i].bytes);
            break;
        case DT_FLOW_SKIP:
            copy(p, to, s->g_skip[list[i].skip], list[i].bytes);
            break;
        }
    }
}

/* Each node's part of the stash: its output's gradient, then what the block leaves. */
static char *stash_at(const struct pass *p, int block)
{
    struct dt_stage *s = p->s;
    char *at = p->r->stash;

    for (int i = s->first; i < block; i++) {
        struct dt_nn_node *n = node(p, i);
        size_t rest, work, stash;

        if (!n->keep)
            continue;
        dt_nn_node_sizes(s, n, p->r->batch, &rest, &work, &stash);
        at += dt_nn_round64(dt_nn_output_bytes(s, n, p->r->batch)) + stash;
    }
    return at;
}

static void use_stash(struct pass *p, struct dt_nn_call *c, int block, int what)
{
    size_t bytes = dt_nn_output_bytes(p->s, c->n, p->r->batch);
    char *stash = stash_at(p, block);

    if (what & DT_BACKWARD_INPUT)
        copy(p, stash, c->dy, bytes);
    c->dy = stash;
    c->stash.base = stash + dt_nn_round64(bytes);
}

static void back_one(struct pass *p, int block, int what)
{
    struct dt_stage *s = p->s;
    struct dt_nn_call c = call_of(p, block);
    size_t es = dt_dtype_bytes(s->dtype);

    c.dy = s->grad_y;
    c.dx = c.n->need && c.n->has_x && (what & DT_BACKWARD_INPUT)
               ? (s->grad_y == s->temp[0] ? s->temp[1] : s->temp[0])
               : NULL;
    c.d_in_rows = c.n->need ? p->r->din : NULL;
    c.d_out_rows = p->r->dout;
    if (s->split)
        use_stash(p, &c, block, what);
    c.n->ops->backward(&c, what);
    if (!c.dx)
        return;
    s->grad_y = c.dx;
    if (c.n->source >= 0) /* the input went on as a skip too */
        s->dev->k->add(p->q, s->dtype, (int64_t)(dt_nn_node_x_bytes(s, c.n, p->r->batch) / es),
                       c.dx, s->g_skip[c.n->source], c.dx);
}

void dt_stage_backward(struct dt_device_queue *q, struct dt_stage *s, const struct dt_nn_run *r,
                       int first, int last, int what)
{
    struct pass p;

    begin(&p, q, s, r);
    assert(first >= s->first && last <= s->last);
    assert(what == DT_BACKWARD_BOTH || (s->split && r->stash));
    if (last == s->last && (what & DT_BACKWARD_INPUT))
        gradients_in(&p);
    for (int i = last - 1; i >= first && node(&p, i)->keep; i--)
        if (what != DT_BACKWARD_WEIGHT || node(&p, i)->trained)
            back_one(&p, i, what);
    if (first == s->first && (what & DT_BACKWARD_INPUT))
        gradients_out(&p);
}
