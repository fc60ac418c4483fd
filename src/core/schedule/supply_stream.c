/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Batch after batch through the cores that make them: their queues go on from one iteration to the next. */
#include "core/schedule/supply.h"

#include "base/heap.h"
#include "base/mem.h"
#include "core/schedule/supply_parts.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define SOONER(ctx, a, b) ((a).ns != (b).ns ? (a).ns < (b).ns : (a).core < (b).core)
DT_HEAP(cores, const void *, struct dt_sched_core, 2, SOONER, DT_HEAP_SET)

/* How many times as long as they should the cores of a group take. */
static double slowness(const struct dt_sched_stream *x, int group)
{
    return dt_sched_stream_sends(x) && group < x->s->slow_nodes ? x->s->slow_factor : 1;
}

static void add_piece(void *ctx, struct dt_sched_part part)
{
    struct dt_sched_stream *x = ctx;

    if (x->oom || dt_grow((void **)&x->piece, &x->cap, x->n + 1, sizeof *x->piece) != 0) {
        x->oom = true;
        return;
    }
    x->piece[x->n] = x->proto;
    x->piece[x->n].core_ns = llround(1e9 * part.core_s * slowness(x, x->proto.group));
    x->piece[x->n++].bytes = part.bytes;
    x->proto.at++;
}

static int by_need(const void *va, const void *vb)
{
    const struct dt_sched_piece *a = va, *b = vb;

    if (a->need_ns != b->need_ns)
        return a->need_ns < b->need_ns ? -1 : 1;
    if (a->op != b->op)
        return a->op < b->op ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* When the forward begins that a FETCH is for, with all input there. */
static int64_t need_ns(const struct dt_program *p, const struct dt_timeline *t, uint32_t fetch)
{
    const struct dt_lane *l = &p->lanes[p->ops[fetch].lane];

    for (uint32_t i = fetch + 1; i < l->first + l->n; i++)
        if (p->ops[i].kind == DT_OP_FORWARD && p->ops[i].mb == p->ops[fetch].mb)
            return t->begin_ns[i];
    return t->begin_ns[fetch];
}

static void add_core_s(void *ctx, struct dt_sched_part part)
{
    *(double *)ctx += part.core_s;
}

/* All parts of a sample as one piece. */
static void add_sample(struct dt_sched_stream *x, const struct dt_module *m, int64_t sample)
{
    double core_s = 0;

    dt_sched_supply_parts(x->s, m, x->set, sample, DT_NONE, add_core_s, &core_s);
    add_piece(x, (struct dt_sched_part){core_s, 0});
}

/* What all replicas do in the slot of FETCH i. */
static void pieces_of_slot(struct dt_sched_stream *x, uint32_t slot, int module)
{
    const struct dt_assignment_module *a = &x->p->assignment->m[module];

    for (uint32_t b = 0; b < a->mb_first[a->n_replicas]; b++)
        for (uint32_t k = a->mb[b].first; a->mb[b].slot == slot && k < a->mb[b].first + a->mb[b].n;
             k++)
            if (!a->items || k == a->mb[b].first || a->samples[k] != a->samples[k - 1])
                add_sample(x, &x->m->modules[module], a->samples[k]);
}

static void pieces_of(struct dt_sched_stream *x, const struct dt_timeline *t, uint32_t i)
{
    const struct dt_op *op = &x->p->ops[i];
    const struct dt_assignment_module *a = &x->p->assignment->m[op->module];
    const struct dt_microbatch *mb = &a->mb[a->mb_first[op->replica] + op->mb];

    int node = (int)(x->p->lanes[op->lane].first_gpu / (uint32_t)x->gpus_per_node);

    x->proto = (struct dt_sched_piece){
        .need_ns = need_ns(x->p, t, i), .op = i, .node = node, .group = node};
    if (x->s->reads == DT_SCHED_READS_SLOT) {
        pieces_of_slot(x, mb->slot, op->module);
        return;
    }
    for (uint32_t k = mb->first; k < mb->first + mb->n; k++) {
        if (dt_sched_stream_sends(x))
            x->proto.group = (int)(a->samples[k] % x->s->cpu_nodes);
        dt_sched_supply_parts(x->s, &x->m->modules[op->module], x->set, a->samples[k],
                              a->items ? a->items[k] : DT_NONE, add_piece, x);
    }
}

static enum dt_status find_pieces(struct dt_sched_stream *x, const struct dt_timeline *t,
                                  struct dt_error *err)
{
    x->n = 0;
    for (uint32_t i = 0; i < x->p->n_ops; i++)
        if (x->p->ops[i].kind == DT_OP_FETCH)
            pieces_of(x, t, i);
    x->oom |= dt_grow((void **)&x->sent, &x->cap_sent, x->n + 1, sizeof *x->sent) != 0;
    if (x->oom)
        return dt_error_nomem(err, "pieces of input");
    if (x->n > 0)
        qsort(x->piece, x->n, sizeof *x->piece, by_need);
    return DT_OK;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int by_made(const void *va, const void *vb)
{
    const struct dt_sched_sending *a = va, *b = vb;

    if (a->made_ns != b->made_ns)
        return a->made_ns < b->made_ns ? -1 : 1;
    return a->k < b->k ? -1 : a->k > b->k;
}

/* What was made goes over the link of its node, what was made first before the rest: a CPU node that is late holds up no
 * other one. */
static void send_batch(struct dt_sched_stream *x, int64_t *ready_ns)
{
    if (x->n > 0)
        qsort(x->sent, x->n, sizeof *x->sent, by_made);
    for (size_t i = 0; i < x->n; i++) {
        const struct dt_sched_piece *w = &x->piece[x->sent[i].k];
        int64_t *link = &x->link_ns[w->node];

        *link = later(x->sent[i].made_ns, *link) + llround(1e9 * w->bytes / x->s->bw_bytes_per_s);
        ready_ns[w->op] = later(ready_ns[w->op], *link + llround(1e9 * x->s->latency_s));
    }
}

/* Makes one batch, none of it before start_ns; ready_ns[n_ops] on the clock of all iterations. */
static void make_batch(struct dt_sched_stream *x, int64_t start_ns, int64_t *ready_ns)
{
    for (uint32_t i = 0; i < x->p->n_ops; i++)
        ready_ns[i] = 0;
    for (size_t k = 0; k < x->n; k++) {
        const struct dt_sched_piece *w = &x->piece[k];
        struct dt_sched_core *heap = &x->core[(size_t)w->group * (size_t)x->cores_each];
        struct dt_sched_core c = cores_pop(NULL, heap, (uint32_t)x->cores_each);

        c.ns = later(c.ns, start_ns) + w->core_ns;
        cores_push(NULL, heap, (uint32_t)x->cores_each - 1, c);
        if (dt_sched_stream_sends(x))
            x->sent[k] = (struct dt_sched_sending){c.ns, k};
        else
            ready_ns[w->op] = later(ready_ns[w->op], c.ns);
    }
    if (dt_sched_stream_sends(x))
        send_batch(x, ready_ns);
}

/* What the batch is. */
static enum dt_status account(const struct dt_sched_stream *x, struct dt_error *err,
                              struct dt_sched_supplied *out)
{
    struct node {
        double core_s, bytes;
        bool fetches;
    } *node = dt_calloc((size_t)x->n_nodes + 1, sizeof *node);

    if (!node)
        return dt_error_nomem(err, "nodes that fetch");
    *out = (struct dt_sched_supplied){0};
    for (size_t k = 0; k < x->n; k++) {
        const struct dt_sched_piece *w = &x->piece[k];
        struct node *n = &node[w->node];

        n->core_s += 1e-9 * (double)w->core_ns / slowness(x, w->group);
        n->bytes += dt_sched_stream_sends(x) ? w->bytes : 0;
        n->fetches = true;
    }
    for (int k = 0; k < x->n_nodes; k++) {
        out->core_s += node[k].core_s;
        out->bytes += node[k].bytes;
        out->node_core_s = fmax(out->node_core_s, node[k].core_s);
        out->node_bytes = fmax(out->node_bytes, node[k].bytes);
        out->nodes += node[k].fetches;
    }
    out->cores = x->cores_each * (dt_sched_stream_sends(x) ? x->n_groups : out->nodes);
    dt_free(node);
    return DT_OK;
}

/* ---- the stream ---- */

enum dt_status dt_sched_stream_new(const struct dt_sched_supply *s, const struct dt_model *m,
                                   const struct dt_cluster *c, const struct dt_samples *set,
                                   struct dt_error *err, struct dt_sched_stream **out)
{
    struct dt_sched_stream *x = dt_calloc(1, sizeof *x);
    size_t cores;

    if (!x)
        return dt_error_nomem(err, "preprocessing");
    *x = (struct dt_sched_stream){
        .s = s, .m = m, .set = set, .gpus_per_node = c->gpus_per_node, .n_nodes = c->nodes};
    x->n_groups = dt_sched_stream_sends(x) ? s->cpu_nodes : x->n_nodes;
    x->cores_each = dt_sched_stream_sends(x) ? s->cores_per_cpu_node : s->cores_per_node;
    cores = (size_t)x->n_groups * (size_t)x->cores_each;
    x->core = dt_calloc(cores + 1, sizeof *x->core);
    x->link_ns = dt_calloc((size_t)x->n_nodes + 1, sizeof *x->link_ns);
    if (!x->core || !x->link_ns) {
        dt_sched_stream_free(x);
        return dt_error_nomem(err, "cores for input");
    }
    for (size_t k = 0; k < cores; k++)
        x->core[k].core = (int)(k % (size_t)x->cores_each);
    *out = x;
    return DT_OK;
}

enum dt_status dt_sched_stream_next(struct dt_sched_stream *x, const struct dt_program *p,
                                    const int64_t *dur_ns, struct dt_error *err,
                                    int64_t *release_ns, struct dt_sched_supplied *out)
{
    struct dt_program fed = *p;
    struct dt_timeline t = {0};
    enum dt_status st;

    x->p = p;
    fed.release_ns = NULL;
    st = dt_timeline_once(&fed, dur_ns, err, &t);
    if (st == DT_OK)
        st = find_pieces(x, &t, err);
    dt_timeline_free(&t);
    DT_TRY(st);
    DT_TRY(account(x, err, out));
    x->begin_ns[x->t % dt_sched_stream_ring(x)] = x->now_ns;
    make_batch(x, dt_sched_stream_start(x), release_ns);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        release_ns[i] = release_ns[i] > x->now_ns ? release_ns[i] - x->now_ns : 0;
        x->settling.there &= release_ns[i] == 0;
    }
    return DT_OK;
}

enum dt_status dt_sched_supply_batch(const struct dt_sched_supply *s, const struct dt_model *m,
                                     const struct dt_cluster *c, const struct dt_samples *set,
                                     const struct dt_program *p, struct dt_error *err,
                                     struct dt_sched_supplied *out)
{
    int64_t *zero = dt_calloc((size_t)p->n_ops + 1, sizeof *zero);
    int64_t *release_ns = dt_malloc(((size_t)p->n_ops + 1) * sizeof *release_ns);
    struct dt_sched_stream *x = NULL;
    enum dt_status st;

    st = zero && release_ns ? dt_sched_stream_new(s, m, c, set, err, &x)
                            : dt_error_nomem(err, "a batch of input");
    if (st == DT_OK)
        st = dt_sched_stream_next(x, p, zero, err, release_ns, out);
    dt_sched_stream_free(x);
    dt_free(release_ns);
    dt_free(zero);
    return st;
}

void dt_sched_stream_ran(struct dt_sched_stream *x, int64_t iteration_ns)
{
    x->now_ns += iteration_ns;
    x->t++;
    dt_sched_stream_note(x, iteration_ns);
}

void dt_sched_stream_free(struct dt_sched_stream *x)
{
    if (!x)
        return;
    dt_free(x->core);
    dt_free(x->link_ns);
    dt_free(x->piece);
    dt_free(x->sent);
    dt_free(x->settling.mark);
    dt_free(x);
}
