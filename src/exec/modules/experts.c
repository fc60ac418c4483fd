/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The MLP of a layer with experts, without dropping rows:
 *
 *   n2 -> logits -> p -> choices of each row, in the order of experts
 *   n2 -> taken = rows by expert -> h = up -> a = act(h) -> w a -> down -> rows added up -> y  (+ shared experts)
 *
 * A row's weight multiplies what goes into `down`, not what comes out, so that no output has to be kept for the
 * weight's gradient.  Kept are p, `taken`, h and a; the order is found again from p.
 *
 * How many rows each expert takes decides the sizes of products, so the host waits for these numbers once in every
 * pass.  With an expert group (experts_move.c) members tell each other first. */
#include "exec/modules/experts.h"

#include <string.h>

int dt_nn_experts_here(const struct dt_stage *s, const struct dt_block *b)
{
    return b->n_experts / dt_tp_size(s->ep);
}

int dt_nn_experts_first(const struct dt_stage *s, const struct dt_block *b)
{
    return dt_tp_rank(s->ep) * dt_nn_experts_here(s, b);
}

/* ---- what the host has for it ---- */

enum dt_status dt_nn_routing_new(struct dt_stage *s, struct dt_error *err)
{
    size_t members = (size_t)dt_tp_size(s->ep), most = 0;
    struct dt_nn_routing *r;
    void *p = NULL;

    for (int i = s->first; i < s->last; i++) {
        size_t n = (size_t)s->module->blocks[i].n_experts;

        most = n > most ? n : most;
    }
    if (most == 0)
        return DT_OK;
    r = s->routing = DT_ARENA_NEW(&s->arena, struct dt_nn_routing, 1);
    if (!r)
        return dt_error_nomem(err, "experts");
    r->parts = DT_ARENA_NEW(&s->arena, struct dt_kernel_copy_part, most);
    r->rows = DT_ARENA_NEW(&s->arena, int64_t, most);
    r->send = DT_ARENA_NEW(&s->arena, size_t, members);
    r->recv = DT_ARENA_NEW(&s->arena, size_t, members);
    if (!r->parts || !r->rows || !r->send || !r->recv)
        return dt_error_nomem(err, "experts");
    DT_TRY(s->dev->host_alloc(s->dev, members * most * sizeof(*r->count) + sizeof(*r->balance), err,
                              &p));
    r->balance = p;
    r->count = (int32_t *)(void *)(r->balance + 1);
    return s->dev->event_new(s->dev, err, &r->counted);
}

void dt_nn_routing_free(struct dt_stage *s)
{
    if (!s->routing)
        return;
    s->dev->event_free(s->routing->counted);
    s->dev->host_free(s->dev, s->routing->balance);
}

/* ---- sizes ---- */

struct dt_nn_experts dt_nn_experts_of(const struct dt_nn_call *c)
{
    const struct dt_block *b = c->b;
    int64_t members = dt_tp_size(c->s->ep), all = c->batch->routed;
    struct dt_nn_experts d = {.rows = c->batch->rows,
                              .n = b->n_experts,
                              .here = dt_nn_experts_here(c->s, b),
                              .first = dt_nn_experts_first(c->s, b),
                              .top_k = b->top_k,
                              .hidden = b->hidden,
                              .ffn = b->ffn,
                              .shared = b->shared_ffn};

    d.up = b->gated ? 2 * d.ffn : d.ffn;
    d.choices = d.rows * d.top_k;
    /* all rows of all members might choose as many experts here as they can */
    d.room = members > 1
                 ? (all > 0 ? all : d.rows * members) * (d.top_k < d.here ? d.top_k : d.here)
                 : d.choices;
    return d;
}

void dt_nn_experts_layout(struct dt_nn_call *c)
{
    struct dt_nn_experts d = dt_nn_experts_of(c);
    struct dt_nn_tf_act *t = &c->act.tf;

    t->taken = dt_nn_keep_rows(c, d.room, d.hidden, false);
    t->h = dt_nn_keep_rows(c, d.room, d.up, false);
    t->a = dt_nn_keep_rows(c, d.room, d.ffn, true);
    if (d.shared > 0) {
        t->sh = dt_nn_keep_rows(c, d.rows, c->b->gated ? 2 * d.shared : d.shared, false);
        t->sa = dt_nn_keep_rows(c, d.rows, d.shared, true);
    }
}

/* ---- the order of rows ---- */

static void take_order(struct dt_nn_call *c, const struct dt_nn_experts *d, struct dt_nn_order *o)
{
    o->expert = dt_nn_work(c, (size_t)d->choices * 4);
    o->place = dt_nn_work(c, (size_t)d->choices * 4);
    o->choice = dt_nn_work(c, (size_t)d->choices * 4);
    o->row = dt_nn_work(c, (size_t)d->choices * 4);
    o->weight = dt_nn_work(c, (size_t)d->choices * 4);
    o->sorted = dt_nn_work(c, (size_t)d->choices * 4);
    o->count = dt_nn_work(c, (size_t)(d->n * dt_tp_size(c->s->ep)) * 4);
    o->taken = c->s->ep ? dt_nn_work(c, (size_t)d->room * 4) : o->sorted;
    o->sent = c->s->ep ? dt_nn_work_rows(c, d->choices, d->hidden) : NULL;
    o->came = c->s->ep ? dt_nn_work_rows(c, d->room, d->hidden) : NULL;
}

static struct dt_kernel_route route_of(const struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    return (struct dt_kernel_route){d->rows, d->n, d->top_k, !c->s->numbers.top_k_raw};
}

static struct dt_kernel_items samples_of(const struct dt_nn_call *c)
{
    return (struct dt_kernel_items){c->batch->n_sample, c->batch->dev.cu_sample, c->batch->rows};
}

/* Uneven routing is a loss of the batch, also where the router is frozen. */
static bool balanced(const struct dt_nn_call *c)
{
    return c->s->numbers.balance_loss > 0 && c->batch->train;
}

struct even { /* work areas */
    float *load, *sum;
    double *total;
};

static struct even take_even(struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    struct even v;

    v.load = dt_nn_work(c, (size_t)(c->batch->n_seq * d->n) * 4);
    v.sum = dt_nn_work(c, (size_t)c->batch->n_seq * 4);
    v.total = dt_nn_work(c, sizeof(*v.total));
    return v;
}

static void weigh_evenness(struct dt_nn_call *c, const struct dt_nn_experts *d,
                           const struct dt_nn_order *o, const struct even *v)
{
    struct dt_kernel_route r = route_of(c, d);
    struct dt_kernel_items items = samples_of(c);

    *c->s->routing->balance = 0;
    if (c->batch->cut.n > 1) /* samples are not whole here; balance_loss is 0 then */
        return;
    c->k->route_load(c->q, &r, &items, c->act.tf.prob, o->expert, v->load, v->sum);
    c->k->sum(c->q, items.n, v->sum, v->total, false);
    c->s->dev->copy(c->q, c->s->routing->balance, v->total, sizeof(*v->total), DT_COPY_TO_HOST);
}

/* Waits for the counts.  A failure stays with the queue, so that what is issued from here on does nothing and the step
 * says why; queue_sync would clear it. */
static bool have_come(struct dt_nn_call *c)
{
    const struct dt_device *dev = c->s->dev;
    struct dt_tp *ep = c->s->ep;
    enum dt_status st;

    dev->event_record(c->q, c->s->routing->counted);
    st = dev->event_sync(c->s->routing->counted, NULL);
    if (st == DT_OK)
        st = dev->queue_state(c->q);
    if (st != DT_OK && ep && dt_tp_state(ep, NULL) == DT_OK)
        dt_error_set(&ep->error, st, "the device failed before experts' rows were counted");
    return st == DT_OK && dt_tp_state(ep, NULL) == DT_OK;
}

/* Rows that each expert here takes, after the device has counted them. */
static void count_rows(struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    struct dt_nn_routing *r = c->s->routing;
    int64_t sum = 0;
    bool well = have_come(c);

    for (int e = 0; e < d->here; e++) {
        r->rows[e] = 0;
        for (int k = 0; well && k < dt_tp_size(c->s->ep); k++)
            r->rows[e] += r->count[k * d->n + d->first + e];
        sum += r->rows[e];
    }
    if (well && sum > d->room) /* members' microbatches are larger than the batch says (routed) */
        well = dt_error_set(&c->s->ep->error, DT_ERR_INTERNAL,
                            "experts are to take %lld rows, with room for %lld", (long long)sum,
                            (long long)d->room) == DT_OK;
    r->well = well;
    for (int e = 0; !r->well && e < d->here;
         e++) /* the queue, or the group, has failed and says so */
        r->rows[e] = 0;
}

/* From p.  `v` (NULL): how even it is, too. */
static void find_order(struct dt_nn_call *c, const struct dt_nn_experts *d,
                       const struct dt_nn_order *o, const struct even *v)
{
    struct dt_kernel_route r = route_of(c, d);
    int32_t *mine = o->count + (int64_t)dt_tp_rank(c->s->ep) * d->n;

    c->k->route_choose(c->q, &r, c->act.tf.prob, o->expert, o->weight);
    if (v)
        weigh_evenness(c, d, o, v);
    c->k->route_sort(c->q, &r, o->expert, mine, o->place, o->choice, o->row);
    c->k->rows_copy(c->q, DT_F32, d->choices, 1, o->weight, o->choice, o->sorted, NULL, false);
    dt_tp_all_gather(c->q, c->s->ep, DT_F32, dt_tp_size(c->s->ep), d->n, o->count);
    c->s->dev->copy(c->q, c->s->routing->count, o->count,
                    (size_t)(d->n * dt_tp_size(c->s->ep)) * sizeof(*o->count), DT_COPY_TO_HOST);
    count_rows(c, d);
    if (c->s->ep)
        dt_nn_experts_send(c, d, (char *)o->sorted, (char *)o->taken, o->came, sizeof(float));
}

/* `to`: rows of x by expert. */
static void take_rows(struct dt_nn_call *c, const struct dt_nn_experts *d,
                      const struct dt_nn_order *o, const char *x, char *to)
{
    char *sorted = c->s->ep ? o->sent : to;

    c->k->rows_copy(c->q, c->dtype, d->choices, d->hidden, x, o->row, sorted, NULL, false);
    if (c->s->ep)
        dt_nn_experts_send(c, d, sorted, to, o->came, (size_t)d->hidden * c->es);
}

/* y: the sum over a row's choices of what there is for them in `from`, by expert. */
static void give_rows(struct dt_nn_call *c, const struct dt_nn_experts *d,
                      const struct dt_nn_order *o, char *from, char *y)
{
    char *sorted = c->s->ep ? o->sent : from;

    if (c->s->ep)
        dt_nn_experts_return(c, d, from, sorted, o->came, (size_t)d->hidden * c->es);
    c->k->rows_join(c->q, c->dtype, d->rows, d->top_k, d->hidden, sorted, o->place, y, false);
}

/* ---- how even it is ---- */

/* Rows of the busiest of `shares` equal shares of the experts, over the mean. */
static double busiest(const struct dt_nn_routing *r, const struct dt_nn_experts *d, int members,
                      int shares)
{
    int each = d->n / shares;
    int64_t most = 0, all = 0;

    if (d->n % shares != 0)
        return 0;
    for (int i = 0; i < shares; i++) {
        int64_t sum = 0;

        for (int e = i * each; e < (i + 1) * each; e++)
            for (int k = 0; k < members; k++)
                sum += r->count[k * d->n + e];
        most = sum > most ? sum : most;
        all += sum;
    }
    return all > 0 ? (double)most * shares / (double)all : 0;
}

static void note_load(struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    struct dt_nn_routing *r = c->s->routing;
    const int shares[DT_LOAD_N] = {d->n, 2, 4, 8};

    if (!r->well || d->rows == 0)
        return;
    r->load.forwards++;
    r->load.balance += *r->balance;
    for (int i = 0; i < DT_LOAD_N; i++)
        r->load.busiest[i] += busiest(r, d, dt_tp_size(c->s->ep), shares[i]);
}

void dt_stage_load_take(struct dt_stage *s, struct dt_stage_load *sum)
{
    struct dt_stage_load *l;

    if (!s->routing)
        return;
    l = &s->routing->load;
    sum->forwards += l->forwards;
    sum->balance += l->balance;
    for (int i = 0; i < DT_LOAD_N; i++)
        sum->busiest[i] += l->busiest[i];
    *l = (struct dt_stage_load){0};
}

/* ---- products ---- */

enum direction { UP, DOWN };

/* Of every expert here: its rows of x, `in` wide, into those of y. */
static void forward_products(struct dt_nn_call *c, const struct dt_nn_experts *d, enum direction w,
                             const char *x, char *y)
{
    int64_t at = 0, in = w == UP ? d->hidden : d->ffn, out = w == UP ? d->up : d->hidden;

    for (int e = 0; e < d->here; e++) {
        int64_t n = c->s->routing->rows[e];

        if (n > 0)
            dt_nn_linear(c, n, dt_nn_off(x, at * in, c->es),
                         w == UP ? dt_nn_expert_up(e) : dt_nn_expert_down(e), -1, NULL,
                         dt_nn_off(y, at * out, c->es));
        at += n;
    }
}

static void backward_products(struct dt_nn_call *c, int what, const struct dt_nn_experts *d,
                              enum direction w, const char *x, const char *dy, char *dx)
{
    int64_t at = 0, in = w == UP ? d->hidden : d->ffn, out = w == UP ? d->up : d->hidden;

    for (int e = 0; e < d->here; e++) {
        int64_t n = c->s->routing->rows[e];

        if (n > 0) /* else the gradient stays unwritten, which is zero */
            dt_nn_linear_back(c, what, n, dt_nn_off(x, at * in, c->es),
                              dt_nn_off(dy, at * out, c->es),
                              w == UP ? dt_nn_expert_up(e) : dt_nn_expert_down(e), -1,
                              dt_nn_off(dx, at * in, c->es), false);
        at += n;
    }
}

static int64_t taken(const struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    int64_t sum = 0;

    for (int e = 0; e < d->here; e++)
        sum += c->s->routing->rows[e];
    return sum;
}

static void activate(struct dt_nn_call *c, int64_t rows, int64_t width, const char *h, char *a)
{
    if (c->b->gated)
        c->k->glu_fwd(c->q, c->n->act, c->dtype, rows, width, false, h, a);
    else
        c->k->act_fwd(c->q, c->n->act, c->dtype, rows * width, h, a);
}

static void activate_back(struct dt_nn_call *c, int64_t rows, int64_t width, const char *h,
                          const char *da, char *dh)
{
    if (c->b->gated)
        c->k->glu_bwd(c->q, c->n->act, c->dtype, rows, width, false, h, da, dh);
    else
        c->k->act_bwd(c->q, c->n->act, c->dtype, rows * width, h, da, dh);
}

/* Of all experts, those here and the shared ones. */
static void activations(struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    struct dt_nn_tf_act *t = &c->act.tf;

    activate(c, taken(c, d), d->ffn, t->h, t->a);
    if (d->shared > 0)
        activate(c, d->rows, d->shared, t->sh, t->sa);
}

/* ---- forward ---- */

void dt_nn_experts_forward(struct dt_nn_call *c, char *y)
{
    struct dt_nn_experts d = dt_nn_experts_of(c);
    struct dt_nn_tf_act *t = &c->act.tf;
    char *logit = dt_nn_work_rows(c, d.rows, d.n);
    char *weighed = dt_nn_work_rows(c, d.room, d.ffn);
    char *out = dt_nn_work_rows(c, d.room, d.hidden);
    struct even v = take_even(c, &d);
    struct dt_nn_order o;

    take_order(c, &d, &o);
    if (dt_nn_counting(c))
        return;
    dt_nn_linear(c, d.rows, t->n2, TF_ROUTER, -1, NULL, logit);
    c->k->softmax(c->q, c->dtype, d.rows, d.n, 1, logit, t->prob);
    find_order(c, &d, &o, y ? &v : NULL);
    take_rows(c, &d, &o, t->n2, t->taken);
    forward_products(c, &d, UP, t->taken, t->h);
    if (d.shared > 0)
        dt_nn_linear(c, d.rows, t->n2, TF_SHARED_UP, -1, NULL, t->sh);
    activations(c, &d);
    if (!y)
        return;
    note_load(c, &d);
    c->k->rows_weigh(c->q, c->dtype, taken(c, &d), d.ffn, o.taken, t->a, weighed);
    forward_products(c, &d, DOWN, weighed, out);
    give_rows(c, &d, &o, out, y);
    if (d.shared > 0)
        dt_nn_linear(c, d.rows, t->sa, TF_SHARED_DOWN, -1, y, y);
}

/* ---- backward ---- */

struct grads {
    char *dout, *dh, *dlogit, *dsh; /* backward_weight reads them */
    char *weighed, *da, *dx, *dsa;
    float *dtaken, *dsorted,
        *dweight; /* of weights: by expert, by own choices in order, by choice */
};

static struct grads take_grads(struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    int64_t wide = c->b->gated ? 2 * d->shared : d->shared;
    struct grads g;

    g.dout = dt_nn_grad_rows(c, d->room, d->hidden, true);
    g.dh = dt_nn_grad_rows(c, d->room, d->up, true);
    g.dlogit = dt_nn_grad_rows(c, d->rows, d->n, true);
    g.dsh = dt_nn_grad_rows(c, d->rows, wide, true);
    g.weighed = dt_nn_work_rows(c, d->room, d->ffn);
    g.da = dt_nn_work_rows(c, d->room, d->ffn);
    g.dx = dt_nn_work_rows(c, d->room, d->hidden);
    g.dsa = dt_nn_work_rows(c, d->rows, d->shared);
    g.dtaken = dt_nn_work(c, (size_t)d->room * 4);
    g.dsorted = c->s->ep ? dt_nn_work(c, (size_t)d->choices * 4) : g.dtaken;
    g.dweight = dt_nn_work(c, (size_t)d->choices * 4);
    return g;
}

static void router_back(struct dt_nn_call *c, const struct dt_nn_experts *d,
                        const struct dt_nn_order *o, const struct grads *g, const struct even *v)
{
    struct dt_kernel_route r = route_of(c, d);
    struct dt_kernel_items items = samples_of(c);
    bool even = balanced(c);

    if (c->s->ep)
        dt_nn_experts_return(c, d, (char *)g->dtaken, (char *)g->dsorted, o->came, sizeof(float));
    c->k->rows_copy(c->q, DT_F32, d->choices, 1, g->dsorted, NULL, g->dweight, o->choice, false);
    if (even)
        c->k->route_load(c->q, &r, &items, c->act.tf.prob, o->expert, v->load, NULL);
    c->k->route_bwd(c->q, c->dtype, &r, c->act.tf.prob, o->expert, g->dweight, &items,
                    even ? v->load : NULL, c->batch->balance_scale, g->dlogit);
}

static void shared_back(struct dt_nn_call *c, int what, const struct dt_nn_experts *d,
                        const struct grads *g, const char *dy, char *dn2)
{
    struct dt_nn_tf_act *t = &c->act.tf;

    dt_nn_linear_back(c, what, d->rows, t->sa, dy, TF_SHARED_DOWN, -1, g->dsa, false);
    if (what & DT_BACKWARD_INPUT)
        activate_back(c, d->rows, d->shared, t->sh, g->dsa, g->dsh);
    dt_nn_linear_back(c, what, d->rows, t->n2, g->dsh, TF_SHARED_UP, -1, dn2, true);
}

void dt_nn_experts_backward(struct dt_nn_call *c, int what, const char *dy, char *dn2)
{
    struct dt_nn_experts d = dt_nn_experts_of(c);
    struct dt_nn_tf_act *t = &c->act.tf;
    struct grads g = take_grads(c, &d);
    struct even v = take_even(c, &d);
    struct dt_nn_order o;
    int64_t rows;

    take_order(c, &d, &o);
    if (dt_nn_counting(c))
        return;
    find_order(c, &d, &o, NULL);
    rows = taken(c, &d);
    if (c->n->mode == DT_LAY_SELECTIVE)
        activations(c, &d);
    if (what & DT_BACKWARD_INPUT)
        take_rows(c, &d, &o, dy, g.dout);
    c->k->rows_weigh(c->q, c->dtype, rows, d.ffn, o.taken, t->a, g.weighed);
    backward_products(c, what, &d, DOWN, g.weighed, g.dout, g.da);
    if (what & DT_BACKWARD_INPUT) {
        c->k->rows_weigh_bwd(c->q, c->dtype, rows, d.ffn, o.taken, t->a, g.da, g.da, g.dtaken);
        activate_back(c, rows, d.ffn, t->h, g.da, g.dh);
    }
    backward_products(c, what, &d, UP, t->taken, g.dh, g.dx);
    if (what & DT_BACKWARD_INPUT) {
        give_rows(c, &d, &o, g.dx, dn2);
        router_back(c, &d, &o, &g, &v);
    }
    dt_nn_linear_back(c, what, d.rows, t->n2, g.dlogit, TF_ROUTER, -1, dn2, true);
    if (d.shared > 0)
        shared_back(c, what, &d, &g, dy, dn2);
}
