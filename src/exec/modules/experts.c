/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The MLP of a layer with experts, without dropping rows:
 *
 *   n2 -> logits -> p -> choices of each row, in the order of experts
 *   n2 -> taken = rows by expert -> h = up -> a = act(h) -> w a -> down -> rows added up -> y  (+ shared experts)
 *
 * A row's weight multiplies what goes into `down`, not what comes out, so that no output has to be kept for the
 * weight's gradient; the same goes for the gate of shared experts.  (So a bias of `down` is added behind the product, weighed
 * by itself.)  Kept are p, `taken`, h and a; the order is found again from p.
 *
 * Tensor parallelism: own rows are gathered, every member routes all of them alike, and has a slice of each expert's
 * width, as of the shared ones': outputs are summands, of which the first member's have the bias.  So are the gradients
 * of weights and gates, which are summed before they go through the router; its input's gradient is taken for own rows
 * alone.
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
                              .own = dt_nn_own_rows(c->s, c->batch->rows),
                              .n = b->n_experts,
                              .here = dt_nn_experts_here(c->s, b),
                              .first = dt_nn_experts_first(c->s, b),
                              .top_k = b->top_k,
                              .hidden = b->hidden,
                              .ffn = dt_nn_mine(c->s, b->ffn),
                              .shared = dt_nn_mine(c->s, b->shared_ffn),
                              .gate = b->shared_gate};

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
    if (d.gate)
        t->sg = dt_nn_keep_rows(c, d.rows, 1, false);
    if (c->b->shared_ffn > 0) {
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

/* Samples; or of a cut batch their early halves, then their late ones. */
static struct dt_kernel_items samples_of(const struct dt_nn_call *c)
{
    int64_t n = c->s->cp ? 2 * c->batch->n_sample : c->batch->n_sample;

    return (struct dt_kernel_items){n, c->batch->dev.cu_sample, c->batch->rows};
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
    int64_t items = c->s->cp ? 2 * c->batch->n_sample : c->batch->n_seq;
    struct even v;

    v.load = dt_nn_work(c, (size_t)(items * d->n) * 4);
    v.sum = dt_nn_work(c, (size_t)items * 4);
    v.total = dt_nn_work(c, sizeof(*v.total));
    return v;
}

/* Of every item that of its sample, of which other members have rows, too. */
static void find_load(struct dt_nn_call *c, const struct dt_nn_experts *d,
                      const struct dt_nn_order *o, const struct even *v)
{
    struct dt_kernel_route r = route_of(c, d);
    struct dt_kernel_items items = samples_of(c);
    int64_t half = items.n / 2 * d->n;

    c->k->route_load(c->q, &r, &items, o->expert, v->load);
    if (!c->s->cp)
        return;
    c->k->rows_weigh(c->q, DT_F32, items.n, d->n, c->batch->dev.sample_part, v->load, v->load);
    c->k->add(c->q, DT_F32, half, v->load, v->load + half, v->load);
    dt_tp_all_reduce(c->q, c->s->cp, DT_F32, half, v->load);
    dt_nn_copy(c, v->load + half, v->load, (size_t)half * 4);
}

static void weigh_evenness(struct dt_nn_call *c, const struct dt_nn_experts *d,
                           const struct dt_nn_order *o, const struct even *v)
{
    struct dt_kernel_route r = route_of(c, d);
    struct dt_kernel_items items = samples_of(c);

    find_load(c, d, o, v);
    c->k->route_even(c->q, &r, &items, c->act.tf.prob, v->load, v->sum);
    c->k->sum(c->q, items.n, v->sum, v->total, false);
    c->s->dev->copy(c->q, c->s->routing->balance, v->total, sizeof(*v->total), DT_COPY_TO_HOST);
}

/* Waits for the counts.  A failure stays with the queue, so that what is issued from here on does nothing and the step
 * says why; queue_sync would clear it. */
static bool have_come(struct dt_nn_call *c)
{
    const struct dt_device *dev = c->s->dev;
    struct dt_tp *of[] = {c->s->ep, c->s->tp};
    enum dt_status st;
    bool well = true;

    dev->event_record(c->q, c->s->routing->counted);
    st = dev->event_sync(c->s->routing->counted, NULL);
    if (st == DT_OK)
        st = dev->queue_state(c->q);
    for (int i = 0; i < 2; i++) {
        if (st != DT_OK && of[i] && dt_tp_state(of[i], NULL) == DT_OK)
            dt_error_set(&of[i]->error, st, "the device failed before experts' rows were counted");
        well = well && dt_tp_state(of[i], NULL) == DT_OK;
    }
    return st == DT_OK && well;
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

/* The role of a bias where there is one, else -1. */
static int bias_of(const struct dt_nn_call *c, int role)
{
    return c->b->bias ? role + 1 : -1;
}

/* One member adds to what all sum. */
static bool adds_biases(const struct dt_nn_call *c)
{
    return c->b->bias && dt_tp_rank(c->s->tp) == 0;
}

/* Of every expert here: its rows of x, `in` wide, into those of y. */
static void forward_products(struct dt_nn_call *c, const struct dt_nn_experts *d, enum direction w,
                             const char *x, char *y)
{
    int64_t at = 0, in = w == UP ? d->hidden : d->ffn, out = w == UP ? d->up : d->hidden;

    for (int e = 0; e < d->here; e++) {
        int64_t n = c->s->routing->rows[e];

        if (n > 0)
            dt_nn_linear(c, n, dt_nn_off(x, at * in, c->es),
                         w == UP ? dt_nn_expert_up(e) : dt_nn_expert_down(e),
                         w == UP ? bias_of(c, dt_nn_expert_up(e)) : -1, NULL,
                         dt_nn_off(y, at * out, c->es));
        at += n;
    }
}

/* What comes out of `down`, with each expert's bias as often as the row's weight says. */
static void add_biases(struct dt_nn_call *c, const struct dt_nn_experts *d, const float *weight,
                       char *out)
{
    int64_t at = 0;

    for (int e = 0; adds_biases(c) && e < d->here; e++) {
        int64_t n = c->s->routing->rows[e];

        c->k->rows_bias(c->q, c->dtype, n, d->hidden, weight + at,
                        dt_nn_master_of(c, dt_nn_expert_down(e) + 1),
                        dt_nn_off(out, at * d->hidden, c->es));
        at += n;
    }
}

/* Their gradients, and what they add to those of weights.  room: as large as dout. */
static void biases_back(struct dt_nn_call *c, int what, const struct dt_nn_experts *d,
                        const float *weight, const char *dout, char *room, float *dweight)
{
    int64_t at = 0;

    for (int e = 0; c->b->bias && e < d->here; e++) {
        int64_t n = c->s->routing->rows[e];
        const char *dy = dt_nn_off(dout, at * d->hidden, c->es);
        int b = dt_nn_expert_down(e) + 1;

        if ((what & DT_BACKWARD_WEIGHT) && c->n->trained && n > 0) {
            c->k->rows_weigh(c->q, c->dtype, n, d->hidden, weight + at, dy, room);
            dt_nn_bias_back(c, n, room, b);
        }
        if ((what & DT_BACKWARD_INPUT) && adds_biases(c))
            c->k->rows_bias_bwd(c->q, c->dtype, n, d->hidden, dt_nn_master_of(c, b), dy,
                                dweight + at);
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
                              w == UP ? dt_nn_expert_up(e) : dt_nn_expert_down(e),
                              w == UP ? bias_of(c, dt_nn_expert_up(e)) : -1,
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
    if (c->b->shared_ffn > 0)
        activate(c, d->rows, d->shared, t->sh, t->sa);
}

/* ---- shared experts ---- */

/* Work areas of their gate: what it lets through, as the logits are and in fp32, and what goes into `down`. */
struct gate {
    char *part, *through;
    float *share, *d_share;
};

static struct gate take_gate(struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    struct gate g = {0};

    if (!d->gate)
        return g;
    g.part = dt_nn_work_rows(c, d->rows, 1);
    g.share = dt_nn_work(c, (size_t)d->rows * 4);
    g.d_share = dt_nn_work(c, (size_t)d->rows * 4);
    g.through = dt_nn_work_rows(c, d->rows, d->shared);
    return g;
}

/* What goes into `down`: a, or as much of it as the gate of the row lets through. */
static const char *gated(struct dt_nn_call *c, const struct dt_nn_experts *d, const struct gate *g)
{
    struct dt_nn_tf_act *t = &c->act.tf;

    if (!d->gate)
        return t->sa;
    c->k->act_fwd(c->q, DT_ACT_SIGMOID, c->dtype, d->rows, t->sg, g->part);
    c->k->cast(c->q, d->rows, c->dtype, g->part, DT_F32, g->share);
    c->k->rows_weigh(c->q, c->dtype, d->rows, d->shared, g->share, t->sa, g->through);
    return g->through;
}

static void shared_in(struct dt_nn_call *c, const struct dt_nn_experts *d, const char *n2)
{
    struct dt_nn_tf_act *t = &c->act.tf;

    if (d->gate)
        dt_nn_linear(c, d->rows, n2, TF_SHARED_GATE, -1, NULL, t->sg);
    if (c->b->shared_ffn > 0)
        dt_nn_linear(c, d->rows, n2, TF_SHARED_UP, bias_of(c, TF_SHARED_UP), NULL, t->sh);
}

/* Added to `part`. */
static void shared_out(struct dt_nn_call *c, const struct dt_nn_experts *d, const struct gate *g,
                       char *part)
{
    dt_nn_linear(c, d->rows, gated(c, d, g), TF_SHARED_DOWN,
                 adds_biases(c) && !d->gate ? TF_SHARED_DOWNB : -1, part, part);
    if (adds_biases(c) && d->gate)
        c->k->rows_bias(c->q, c->dtype, d->rows, d->hidden, g->share,
                        dt_nn_master_of(c, TF_SHARED_DOWNB), part);
}

/* ---- forward ---- */

void dt_nn_experts_forward(struct dt_nn_call *c, char *y)
{
    struct dt_nn_experts d = dt_nn_experts_of(c);
    struct dt_nn_tf_act *t = &c->act.tf;
    char *logit = dt_nn_work_rows(c, d.rows, d.n);
    char *weighed = dt_nn_work_rows(c, d.room, d.ffn);
    char *out = dt_nn_work_rows(c, d.room, d.hidden);
    char *whole = dt_nn_tp_room(c, d.rows, d.hidden), *part = dt_nn_tp_room(c, d.rows, d.hidden);
    struct gate gate = take_gate(c, &d);
    struct even v = take_even(c, &d);
    struct dt_nn_order o;
    const char *n2;

    take_order(c, &d, &o);
    if (dt_nn_counting(c))
        return;
    n2 = dt_nn_whole_rows(c, d.rows, d.hidden, t->n2, whole);
    dt_nn_linear(c, d.rows, n2, TF_ROUTER, bias_of(c, TF_ROUTER), NULL, logit);
    c->k->softmax(c->q, c->dtype, d.rows, d.n, 1, logit, t->prob);
    find_order(c, &d, &o, y ? &v : NULL);
    take_rows(c, &d, &o, n2, t->taken);
    forward_products(c, &d, UP, t->taken, t->h);
    shared_in(c, &d, n2);
    activations(c, &d);
    if (!y)
        return;
    note_load(c, &d);
    c->k->rows_weigh(c->q, c->dtype, taken(c, &d), d.ffn, o.taken, t->a, weighed);
    forward_products(c, &d, DOWN, weighed, out);
    add_biases(c, &d, o.taken, out);
    part = part ? part : y;
    give_rows(c, &d, &o, out, part);
    if (c->b->shared_ffn > 0)
        shared_out(c, &d, &gate, part);
    if (part != y)
        dt_nn_own_sum(c, d.rows, d.hidden, part, y, false);
}

/* ---- backward ---- */

struct grads {
    char *dout, *dh, *dlogit, *dsh, *dsg; /* backward_weight reads them */
    char *weighed, *da, *dx, *dsa;
    float *dtaken, *dsorted,
        *dweight;        /* of weights: by expert, by own choices in order, by choice */
    char *n2, *dy, *dn2; /* of all rows, where there are other members: gathered, and a summand */
};

static struct grads take_grads(struct dt_nn_call *c, const struct dt_nn_experts *d)
{
    int64_t wide = c->b->gated ? 2 * d->shared : d->shared;
    struct grads g;

    g.dout = dt_nn_grad_rows(c, d->room, d->hidden, true);
    g.dh = dt_nn_grad_rows(c, d->room, d->up, true);
    g.dlogit = dt_nn_grad_rows(c, d->rows, d->n, true);
    g.dsh = dt_nn_grad_rows(c, d->rows, wide, true);
    g.dsg = d->gate ? dt_nn_grad_rows(c, d->rows, 1, true) : NULL;
    g.weighed = dt_nn_work_rows(c, d->room, d->ffn);
    g.da = dt_nn_work_rows(c, d->room, d->ffn);
    g.dx = dt_nn_work_rows(c, d->room, d->hidden);
    g.dsa = dt_nn_work_rows(c, d->rows, d->shared);
    g.dtaken = dt_nn_work(c, (size_t)d->room * 4);
    g.dsorted = c->s->ep ? dt_nn_work(c, (size_t)d->choices * 4) : g.dtaken;
    g.dweight = dt_nn_work(c, (size_t)d->choices * 4);
    g.n2 = dt_nn_tp_room(c, d->rows, d->hidden);
    g.dy = dt_nn_tp_room(c, d->rows, d->hidden);
    g.dn2 = dt_nn_tp_room(c, d->rows, d->hidden);
    return g;
}

static void router_back(struct dt_nn_call *c, const struct dt_nn_experts *d,
                        const struct dt_nn_order *o, const struct grads *g, const struct even *v)
{
    struct dt_kernel_route r = route_of(c, d);
    struct dt_kernel_items items = samples_of(c);
    bool even = balanced(c);

    dt_tp_all_reduce(c->q, c->s->tp, DT_F32, taken(c, d), g->dtaken);
    if (c->s->ep)
        dt_nn_experts_return(c, d, (char *)g->dtaken, (char *)g->dsorted, o->came, sizeof(float));
    c->k->rows_copy(c->q, DT_F32, d->choices, 1, g->dsorted, NULL, g->dweight, o->choice, false);
    if (even)
        find_load(c, d, o, v);
    c->k->route_bwd(c->q, c->dtype, &r, c->act.tf.prob, o->expert, g->dweight, &items,
                    even ? v->load : NULL, c->batch->balance_scale, g->dlogit);
}

/* dsa, of what went into `down`, becomes that of a; and the gradient of the gate's logits. */
static void gate_back(struct dt_nn_call *c, const struct dt_nn_experts *d, const struct grads *g,
                      const struct gate *gate, const char *dy)
{
    struct dt_nn_tf_act *t = &c->act.tf;

    c->k->rows_weigh_bwd(c->q, c->dtype, d->rows, d->shared, gate->share, t->sa, g->dsa, g->dsa,
                         gate->d_share);
    if (adds_biases(c))
        c->k->rows_bias_bwd(c->q, c->dtype, d->rows, d->hidden, dt_nn_master_of(c, TF_SHARED_DOWNB),
                            dy, gate->d_share);
    dt_tp_all_reduce(c->q, c->s->tp, DT_F32, d->rows, gate->d_share);
    c->k->cast(c->q, d->rows, DT_F32, gate->d_share, c->dtype, gate->part);
    c->k->act_bwd(c->q, DT_ACT_SIGMOID, c->dtype, d->rows, t->sg, gate->part, g->dsg);
}

static void shared_back(struct dt_nn_call *c, int what, const struct dt_nn_experts *d,
                        const struct grads *g, const struct gate *gate, const char *n2,
                        const char *dy, char *dn2)
{
    struct dt_nn_tf_act *t = &c->act.tf;

    dt_nn_linear_back(c, what, d->rows, gated(c, d, gate), dy, TF_SHARED_DOWN,
                      d->gate ? -1 : bias_of(c, TF_SHARED_DOWN), g->dsa, false);
    if ((what & DT_BACKWARD_WEIGHT) && c->n->trained && c->b->bias && d->gate) {
        c->k->rows_weigh(c->q, c->dtype, d->rows, d->hidden, gate->share, dy, g->dx);
        dt_nn_bias_back(c, d->rows, g->dx, TF_SHARED_DOWNB);
    }
    if ((what & DT_BACKWARD_INPUT) && d->gate)
        gate_back(c, d, g, gate, dy);
    if (what & DT_BACKWARD_INPUT)
        activate_back(c, d->rows, d->shared, t->sh, g->dsa, g->dsh);
    dt_nn_linear_back(c, what, d->rows, n2, g->dsh, TF_SHARED_UP, bias_of(c, TF_SHARED_UP), dn2,
                      true);
}

/* Of a matrix that all members have whole, `width` outputs a row: its gradient is of all rows, and each member has it; its
 * input's goes to own rows. */
static void whole_back(struct dt_nn_call *c, int what, const struct dt_nn_experts *d,
                       const char *n2, const char *dout, int64_t width, int w, int b, char *dn2)
{
    int64_t first = dt_nn_own_first(c->s, d->rows);

    dt_nn_linear_back(c, what & DT_BACKWARD_WEIGHT, d->rows, n2, dout, w, b, NULL, false);
    dt_nn_linear_back(c, what & DT_BACKWARD_INPUT, d->own, NULL,
                      dt_nn_off(dout, first * width, c->es), w, -1, dn2, true);
}

void dt_nn_experts_backward(struct dt_nn_call *c, int what, const char *dy, char *dn2)
{
    struct dt_nn_experts d = dt_nn_experts_of(c);
    struct dt_nn_tf_act *t = &c->act.tf;
    struct grads g = take_grads(c, &d);
    struct gate gate = take_gate(c, &d);
    struct even v = take_even(c, &d);
    struct dt_nn_order o;
    const char *n2;
    char *part;
    int64_t rows;

    take_order(c, &d, &o);
    if (dt_nn_counting(c))
        return;
    n2 = dt_nn_whole_rows(c, d.rows, d.hidden, t->n2, g.n2);
    dy = dt_nn_whole_rows(c, d.rows, d.hidden, dy, g.dy);
    part = g.dn2 ? g.dn2 : dn2;
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
    biases_back(c, what, &d, o.taken, g.dout, g.dx, g.dtaken);
    backward_products(c, what, &d, UP, t->taken, g.dh, g.dx);
    if (what & DT_BACKWARD_INPUT) {
        give_rows(c, &d, &o, g.dx, part);
        router_back(c, &d, &o, &g, &v);
    }
    if (c->b->shared_ffn > 0)
        shared_back(c, what, &d, &g, &gate, n2, dy, part);
    if (part != dn2 && (what & DT_BACKWARD_INPUT))
        dt_nn_own_sum(c, d.rows, d.hidden, part, dn2, false);
    whole_back(c, what, &d, n2, g.dlogit, d.n, TF_ROUTER, bias_of(c, TF_ROUTER), dn2);
    if (d.gate)
        whole_back(c, what, &d, n2, g.dsg, 1, TF_SHARED_GATE, -1, dn2);
}
