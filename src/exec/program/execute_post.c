/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the communication thread does for each op: posts operations, and what remains to be done
 * when these are over.
 *
 *   sender's tensor  [....aaaa..bb....]      in place where the rows lie side by side,
 *                         \ pack /           else through a buffer
 *   message               [aaaabb]
 *                        / unpack \
 *   inbox            [bb......aaaa....]      of the receiver's microbatch, from all who feed it */
#include "exec/program/execute_impl.h"

#include <stdio.h>
#include <string.h>

/* Room to write in, on `q`. */
static enum dt_status pool_take(struct dt_exec_comm *c, const struct dt_exec_ranks *ranks,
                                struct dt_device_queue *q, size_t bytes, struct dt_error *err,
                                struct dt_exec_packed **out)
{
    const struct dt_device *dev = ranks->env->dev;
    enum dt_status room;
    size_t k = 0;

    while (k < c->n_pool && c->pool[k]->used)
        k++;
    if (k == c->n_pool) {
        struct dt_exec_packed *b = dt_calloc(1, sizeof(*b));
        enum dt_status st;

        if (!b || dt_grow((void **)&c->pool, &c->cap_pool, k + 1, sizeof(*c->pool))) {
            dt_free(b);
            return dt_error_nomem(err, "a message");
        }
        st = dev->event_new(dev, err, &b->read);
        if (st != DT_OK) {
            dt_free(b);
            return st;
        }
        c->pool[c->n_pool++] = b;
    }
    pthread_mutex_lock(&c->lock);
    room = dt_exec_message_room(c, ranks, &c->pool[k]->data, bytes, err);
    pthread_mutex_unlock(&c->lock);
    DT_TRY(room);
    dev->event_wait(q, c->pool[k]->read);
    c->pool[k]->used = true;
    *out = c->pool[k];
    return DT_OK;
}

/* ---- messages ---- */

/* Rows for a member of the receiving lane. */
struct parcel {
    const char *data;
    size_t bytes;
    struct dt_exec_packed *packed;
};

static enum dt_status make_parcel(struct dt_exec *x, uint32_t i, const struct dt_exec_link *l,
                                  struct dt_error *err, struct parcel *out)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_exec_message *m = dt_exec_message_sent(&x->comm, dt_exec_op_vs(&x->stages, op),
                                                     op->mb, (op->flags & DT_OPF_GRAD) != 0);
    struct dt_device_queue *q = x->comm.queue_of[i];

    *out = (struct parcel){.bytes = l->edge ? (size_t)l->n * l->width : l->to_bytes};
    if (out->bytes == 0) /* none of this member's are for that one */
        return DT_OK;
    if (!m)
        return dt_error_set(err, DT_ERR_INTERNAL, "a message comes from a microbatch that is gone");
    out->data = m->data.p;
    if (l->edge && l->from_runs) {
        out->data += (size_t)l->from_first * l->width;
    } else if (l->edge) {
        DT_TRY(pool_take(&x->comm, &x->ranks, q, out->bytes, err, &out->packed));
        dt_exec_pack(x->env.dev, q, l, out->data, out->packed->data.p);
        out->data = out->packed->data.p;
    }
    return DT_OK;
}

static enum dt_status post_send(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i], *recv = &x->it.p->ops[op->peer];
    int me = dt_exec_member(&x->ranks, op);

    for (int t = 0; t < dt_exec_members(&x->env, recv->module); t++) {
        int to = dt_exec_rank_of(&x->ranks, recv, t);
        struct dt_exec_link l;
        struct dt_req *req;
        struct parcel p;

        if (to == x->ranks.rank || !(recv->flags & DT_OPF_BOUNDARY || t == me))
            continue;
        dt_exec_link(&x->it, &x->stages, recv, me, t, &l);
        DT_TRY(make_parcel(x, i, &l, err, &p));
        if (p.bytes == 0)
            continue;
        DT_TRY(x->ranks.data->post_send(x->ranks.data, to, dt_exec_tag(x, op->peer), p.data,
                                        p.bytes, x->comm.queue_of[i], err, &req));
        DT_TRY(dt_exec_request_add(&x->comm, i, x->ranks.data, req, p.packed, err));
    }
    return DT_OK;
}

static void complete_send(struct dt_exec *x, const struct dt_op *op)
{
    struct dt_exec_vstage *vs = dt_exec_op_vs(&x->stages, op);

    dt_exec_message_release(
        &x->comm, &x->env,
        dt_exec_message_sent(&x->comm, vs, op->mb, (op->flags & DT_OPF_GRAD) != 0), 1, NULL);
}

/* What member t takes of a RECV from the k-th rank that feeds it; *from: that rank, -1 = this one.  Rows that have a
 * place in the inbox side by side come there, others into a buffer, from `packed_at` on. */
struct part {
    struct dt_exec_link l;
    int from;
    size_t bytes, packed_at;
    bool packed;
};

/* The k-th part; begins with k = 0 and what is zero. */
static void next_part(const struct dt_exec *x, const struct dt_op *recv, int k, struct part *p)
{
    const struct dt_op *send = &x->it.p->ops[recv->peer];
    int t = dt_exec_member(&x->ranks, recv), s = dt_exec_feeder(recv, t, k);

    p->packed_at += p->packed ? p->bytes : 0;
    p->from = dt_exec_rank_of(&x->ranks, send, s);
    dt_exec_link(&x->it, &x->stages, recv, s, t, &p->l);
    p->bytes = p->l.edge ? (size_t)p->l.n * p->l.width : p->l.to_bytes;
    if (p->from == x->ranks.rank) /* the main thread copies it (dt_exec_recv_own) */
        p->bytes = 0;
    p->packed = p->l.edge && !p->l.to_runs && p->bytes > 0;
}

/* All parts of a RECV: what comes at all, and what needs a buffer. */
static void count_parts(const struct dt_exec *x, const struct dt_op *recv, size_t *bytes,
                        size_t *packed, size_t *inbox)
{
    int n = dt_exec_feeders(&x->ranks, &x->it.p->ops[recv->peer], recv);
    struct part p = {0};

    *bytes = *packed = *inbox = 0;
    for (int k = 0; k < n; k++) {
        next_part(x, recv, k, &p);
        *bytes += p.bytes;
        *packed += p.packed ? p.bytes : 0;
        *inbox = p.l.to_bytes;
    }
}

static enum dt_status post_parts(struct dt_exec *x, uint32_t i, char *inbox,
                                 struct dt_exec_packed *packed, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    int n = dt_exec_feeders(&x->ranks, &x->it.p->ops[op->peer], op);
    struct part p = {0};

    for (int k = 0; k < n; k++) {
        struct dt_req *req;
        char *to;

        next_part(x, op, k, &p);
        if (p.bytes == 0)
            continue;
        to = p.packed ? (char *)packed->data.p + p.packed_at
                      : inbox + (p.l.edge ? (size_t)p.l.to_first * p.l.width : 0);
        DT_TRY(x->ranks.data->post_recv(x->ranks.data, p.from, dt_exec_tag(x, i), to, p.bytes,
                                        x->comm.queue_of[i], err, &req));
        /* all requests name the buffer: whichever is the last tells of it */
        DT_TRY(dt_exec_request_add(&x->comm, i, x->ranks.data, req, packed, err));
    }
    return DT_OK;
}

static enum dt_status post_recv(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_device_queue *q = x->comm.queue_of[i];
    struct dt_exec_packed *packed = NULL;
    size_t bytes, packed_bytes, inbox_bytes;
    struct dt_exec_message *inbox;

    count_parts(x, op, &bytes, &packed_bytes, &inbox_bytes);
    if (bytes == 0)
        return DT_OK;
    DT_TRY(dt_exec_message_inbox(&x->comm, &x->stages, dt_exec_op_vs(&x->stages, op), op->mb,
                                 (op->flags & DT_OPF_GRAD) != 0, inbox_bytes, err, &inbox));
    x->env.dev->event_wait(q, inbox->read); /* of the microbatch that had it before */
    if (packed_bytes > 0)
        DT_TRY(pool_take(&x->comm, &x->ranks, q, packed_bytes, err, &packed));
    return post_parts(x, i, inbox->data.p, packed, err);
}

static void complete_recv(struct dt_exec *x, uint32_t i, const struct dt_exec_packed *packed)
{
    const struct dt_op *op = &x->it.p->ops[i];
    int n = dt_exec_feeders(&x->ranks, &x->it.p->ops[op->peer], op);
    struct dt_device_queue *q = dt_exec_queue_of_lands(x, i);
    struct dt_exec_message *inbox;
    struct part p = {0};

    inbox = dt_exec_message_received(&x->comm, dt_exec_op_vs(&x->stages, op), op->mb,
                                     (op->flags & DT_OPF_GRAD) != 0);
    for (int k = 0; k < n; k++) {
        next_part(x, op, k, &p);
        if (p.packed)
            dt_exec_unpack(x->env.dev, q, &p.l, (char *)packed->data.p + p.packed_at,
                           inbox->data.p);
    }
    x->env.dev->event_record(q, packed->read);
}

static enum dt_status post_token(struct dt_exec_comm *c, const struct dt_exec_ranks *ranks,
                                 const struct dt_program *p, uint32_t i, struct dt_error *err)
{
    struct dt_exec_token *t = &c->graph.tokens[i - p->n_ops];
    struct dt_req *req;

    if (t->hears)
        DT_TRY(ranks->t->post_recv(ranks->t, t->rank, t->tag, &c->byte_in, 1, NULL, err, &req));
    else
        DT_TRY(ranks->t->post_send(ranks->t, t->rank, t->tag, &c->byte_out, 1, NULL, err, &req));
    return dt_exec_request_add(c, i, ranks->t, req, NULL, err);
}

/* ---- collectives ---- */

struct dt_exec_vstage *dt_exec_leader_stage(const struct dt_exec_stages *stages,
                                            const struct dt_op *op)
{
    return dt_exec_vs(stages, op->module, stages->ranks->peers[op->module][op->stage].leader,
                      op->chunk * stages->env->pp[op->module] + op->stage);
}

/* Does the bucket of the op hold the region?  Both are cut from the same partition. */
bool dt_exec_in_bucket(const struct dt_exec_stages *stages, const struct dt_op *op,
                       const struct dt_exec_region *u)
{
    int first, last;

    dt_exec_bucket(stages, op, &first, &last);
    return u->first >= first && u->last <= last;
}

/* Floats of each member's piece. */
static enum dt_status pieces(const struct dt_exec_region *u, int n, struct dt_error *err,
                             size_t **out)
{
    size_t *count = dt_malloc((size_t)n * sizeof(*count)), at;

    if (!count)
        return dt_error_nomem(err, "pieces of a stage");
    for (int k = 0; k < n; k++)
        dt_exec_piece(u, n, k, &at, &count[k]);
    *out = count;
    return DT_OK;
}

static enum dt_status sync_region(struct dt_exec *x, uint32_t i, const struct dt_exec_region *u,
                                  float *grads, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    const struct dt_exec_peers *p = dt_exec_region_peers(&x->ranks, op->module, op->stage, u);
    size_t *count = NULL;
    struct dt_device_queue *q = x->comm.queue_of[i];
    struct dt_req *req;
    enum dt_status st;

    dt_exec_sum_here(&x->stages, q, op, u->at, u->n);
    if (u->experts && !p->comm) /* nobody else has these */
        return DT_OK;
    if (u->whole || !dt_exec_peers_shard(&x->ranks, op->module, p)) {
        DT_TRY(x->ranks.data->post_all_reduce(p->comm, DT_REDUCE_F32, grads + u->at, u->n, q, err,
                                              &req));
        return dt_exec_request_add(&x->comm, i, x->ranks.data, req, NULL, err);
    }
    DT_TRY(pieces(u, p->n_group, err, &count));
    st = x->ranks.data->post_reduce_scatter(p->group, DT_REDUCE_F32, grads + u->at, count, q, err,
                                            &req);
    dt_free(count);
    return st == DT_OK ? dt_exec_request_add(&x->comm, i, x->ranks.data, req, NULL, err) : st;
}

static enum dt_status post_sync(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_exec_vstage *vs;

    if (op->flags & DT_OPF_TIED) {
        const struct dt_param *table;
        struct dt_req *req;

        vs = dt_exec_op_vs(&x->stages, op);
        table = dt_exec_shared_table(&x->env, vs);
        DT_TRY(x->ranks.data->post_all_reduce(x->ranks.tied[op->replica], DT_REDUCE_F32,
                                              dt_stage_grads(vs->stage) + table->at, table->n,
                                              x->comm.queue_of[i], err, &req));
        return dt_exec_request_add(&x->comm, i, x->ranks.data, req, NULL, err);
    }
    vs = dt_exec_leader_stage(&x->stages, op);
    for (int k = 0; k < vs->n_regions; k++)
        if (dt_exec_in_bucket(&x->stages, op, &vs->regions[k]))
            DT_TRY(sync_region(x, i, &vs->regions[k], dt_stage_grads(vs->stage), err));
    return DT_OK;
}

/* This rank's pieces, which its group has summed, over all groups. */
static enum dt_status sum_over_groups(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    const struct dt_exec_peers *p = &x->ranks.peers[op->module][op->stage];
    struct dt_exec_vstage *vs = dt_exec_leader_stage(&x->stages, op);

    for (int k = 0; k < vs->n_regions; k++) {
        const struct dt_exec_region *u = &vs->regions[k];
        struct dt_req *req;
        size_t at, n;

        dt_exec_piece(u, p->n_group, p->me % p->n_group, &at, &n);
        if (u->whole || n == 0 || !dt_exec_in_bucket(&x->stages, op, u))
            continue;
        DT_TRY(x->ranks.data->post_all_reduce(p->over, DT_REDUCE_F32,
                                              dt_stage_grads(vs->stage) + at, n,
                                              x->comm.queue_of[i], err, &req));
        DT_TRY(dt_exec_request_add(&x->comm, i, x->ranks.data, req, NULL, err));
    }
    return DT_OK;
}

enum dt_status dt_exec_post_more(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = i < x->it.p->n_ops ? &x->it.p->ops[i] : NULL;

    if (!op || op->kind != DT_OP_GRAD_SYNC || (op->flags & DT_OPF_TIED) ||
        !dt_exec_shards(&x->ranks, op->module, op->stage) ||
        !x->ranks.peers[op->module][op->stage].over)
        return DT_OK;
    return sum_over_groups(x, i, err);
}

/* Other replicas of this rank step what is whole themselves. */
static void complete_sync(struct dt_exec *x, uint32_t i)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_exec_vstage *vs = dt_exec_leader_stage(&x->stages, op);

    for (int k = 0; k < vs->n_regions; k++)
        if (dt_exec_in_bucket(&x->stages, op, &vs->regions[k]) &&
            (vs->regions[k].whole || !dt_exec_shards(&x->ranks, op->module, op->stage)))
            dt_exec_copy_here(&x->stages, dt_exec_queue_of_lands(x, i), op, true, vs->regions[k].at,
                              vs->regions[k].n);
}

static enum dt_status post_losses(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    struct dt_req *req;

    dt_exec_loss_sum(&x->losses, &x->it, &x->ranks.cut[x->env.o.model->llm]);
    DT_TRY(x->ranks.t->post_all_reduce(x->ranks.world, DT_REDUCE_F64, x->losses.value,
                                       2 * (size_t)x->it.in->n + 1, NULL, err, &req));
    return dt_exec_request_add(&x->comm, i, x->ranks.t, req, NULL, err);
}

/* ---- all ---- */

static enum dt_status no_message(const struct dt_op *op, struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_INTERNAL, "op %s has no message", dt_op_kind_names[op->kind]);
}

static enum dt_exec_queue queue_of(const struct dt_op *op)
{
    switch ((enum dt_op_kind)op->kind) {
    case DT_OP_SEND:
        return DT_EXEC_SENDS;
    case DT_OP_RECV:
        return DT_EXEC_RECVS;
    case DT_OP_FORWARD:
    case DT_OP_BACKWARD:
    case DT_OP_WEIGHT_GRAD:
    case DT_OP_GRAD_SYNC:
    case DT_OP_GRAD_NORM:
    case DT_OP_PARAM_GATHER:
    case DT_OP_STEP:
    case DT_OP_FETCH:
    case DT_OP_OFFLOAD:
    case DT_OP_RELOAD:
    case DT_OP_KIND_N:
        break;
    }
    return DT_EXEC_COLLS;
}

enum dt_status dt_exec_post(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    if (i == dt_exec_loss_number(&x->comm.graph))
        return post_losses(x, i, err);
    if (i >= x->it.p->n_ops)
        return post_token(&x->comm, &x->ranks, x->it.p, i, err);
    DT_TRY(dt_exec_queue_take(x, i, queue_of(&x->it.p->ops[i]), err));
    switch ((enum dt_op_kind)x->it.p->ops[i].kind) {
    case DT_OP_SEND:
        return post_send(x, i, err);
    case DT_OP_RECV:
        return post_recv(x, i, err);
    case DT_OP_GRAD_SYNC:
        return post_sync(x, i, err);
    case DT_OP_PARAM_GATHER:
        return dt_exec_gather_post(x, i, err);
    case DT_OP_GRAD_NORM:
        return dt_exec_norm_post(x, i, err);
    case DT_OP_FORWARD:
    case DT_OP_BACKWARD:
    case DT_OP_WEIGHT_GRAD:
    case DT_OP_STEP:
    case DT_OP_FETCH:
    case DT_OP_OFFLOAD:
    case DT_OP_RELOAD:
    case DT_OP_KIND_N:
        break;
    }
    return no_message(&x->it.p->ops[i], err);
}

enum dt_status dt_exec_complete(struct dt_exec *x, uint32_t i, const struct dt_exec_packed *packed,
                                bool *landed, struct dt_error *err)
{
    const struct dt_op *op = i < x->it.p->n_ops ? &x->it.p->ops[i] : NULL;

    *landed = false;
    if (!op)
        return DT_OK;
    switch ((enum dt_op_kind)op->kind) {
    case DT_OP_SEND:
        complete_send(x, op);
        return DT_OK;
    case DT_OP_RECV:
        *landed = packed != NULL;
        if (*landed)
            complete_recv(x, i, packed);
        return DT_OK;
    case DT_OP_GRAD_SYNC:
        *landed = !(op->flags & DT_OPF_TIED);
        if (*landed)
            complete_sync(x, i);
        return DT_OK;
    case DT_OP_PARAM_GATHER:
        *landed = true;
        dt_exec_gather_complete(x, i);
        return DT_OK;
    case DT_OP_GRAD_NORM:
        *landed = true;
        dt_exec_norm_complete(x, i);
        return DT_OK;
    case DT_OP_FORWARD:
    case DT_OP_BACKWARD:
    case DT_OP_WEIGHT_GRAD:
    case DT_OP_STEP:
    case DT_OP_FETCH:
    case DT_OP_OFFLOAD:
    case DT_OP_RELOAD:
    case DT_OP_KIND_N:
        break;
    }
    return no_message(op, err);
}

enum dt_status dt_exec_error_at(const struct dt_exec *x, uint32_t i, enum dt_status st,
                                struct dt_error *err)
{
    char what[160], text[sizeof(err->message)];
    const struct dt_op *op = i < x->it.p->n_ops ? &x->it.p->ops[i] : NULL;
    int n, rank, end = 0;

    if (!err || !x->ranks.t || (sscanf(err->message, "rank %d on %n", &rank, &end) == 1 && end > 0))
        return st; /* it says already who and where */
    if (op) {
        n = snprintf(what, sizeof(what), "%s/%d.%d %s", x->env.o.model->modules[op->module].name,
                     op->replica, op->stage, dt_op_kind_names[op->kind]);
        if (op->mb != DT_NONE)
            snprintf(what + n, sizeof(what) - (size_t)n, " of microbatch %u", op->mb);
    } else {
        snprintf(what, sizeof(what), "%s",
                 i == dt_exec_loss_number(&x->comm.graph) ? "losses" : "a token");
    }
    snprintf(text, sizeof(text), "%s", err->message);
    snprintf(err->message, sizeof(err->message), "rank %d on %.64s: %s: %.3800s", x->ranks.rank,
             x->ranks.t->host, what, text);
    return st;
}
