/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parameters of a stage: one flat fp32 buffer, block after block.
 *
 *   block 0: | decayed: matrices, tables | not decayed: norms, biases |  block 1: | ...
 *
 * Tensor parallelism: | dealt, whole, summands | summands, whole, dealt |, so that what members
 * hold alike, and of that what they sum gradients of, lie together. */
#include "exec/modules/impl.h"

#include "base/hash.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_FLOATS = 16 }; /* 64 bytes */

/* This member's share of a dealt dimension. */
static int64_t share(const struct dt_stage *s, const struct dt_nn_deal *d)
{
    int64_t sum = 0;

    for (int k = 0; k < d->n; k++)
        sum += dt_nn_mine(s, d->grains[k]) * d->size;
    return sum;
}

int dt_nn_weight_add(struct dt_stage *s, struct dt_nn_node *n, int role, int64_t out, int64_t in,
                     int kernel, bool product, const struct dt_nn_deal *deal)
{
    bool dealt = s->tp && deal && deal->by != DT_DEAL_NONE;
    struct dt_nn_weight *p;

    if (dt_grow((void **)&s->weights, &s->cap_weights, (size_t)s->n_weights + 1,
                sizeof(*s->weights)) != 0)
        return -1;
    p = &s->weights[s->n_weights];
    *p = (struct dt_nn_weight){.out = dealt && deal->by == DT_DEAL_OUT ? share(s, deal) : out,
                               .in = dealt && deal->by == DT_DEAL_IN ? share(s, deal) : in,
                               .kernel = kernel,
                               .block = n->index,
                               .decay = in > 0,
                               .product = product,
                               .rounded = product,
                               .dealt = dealt,
                               .dealt_in = dealt && deal->by == DT_DEAL_IN,
                               .partial = s->seqpar && !dealt};
    p->n = (size_t)p->out * dt_nn_weight_row(p);
    n->weight[role] = s->n_weights;
    return s->n_weights++;
}

enum dt_status dt_param_add(struct dt_stage *s, int weight, int64_t row, int64_t rows, int n_dims,
                            const int64_t *shape, enum dt_param_init init, double std,
                            bool transpose, struct dt_error *err, const char *fmt, ...)
{
    struct dt_param *p;
    const struct dt_nn_weight *t;
    va_list ap;
    int len;

    if (weight < 0 ||
        dt_grow((void **)&s->params, &s->cap_params, (size_t)s->n_params + 1, sizeof(*p)) != 0)
        return dt_error_nomem(err, "parameters");
    t = &s->weights[weight];
    p = &s->params[s->n_params];
    *p = (struct dt_param){.n_dims = n_dims,
                           .transpose = transpose,
                           .decay = t->decay,
                           .block = t->block,
                           .init = init,
                           .std = (float)std};
    memcpy(p->shape, shape, (size_t)n_dims * sizeof(*shape));
    p->replicated = s->tp && !t->dealt;
    /* until dt_params_place: weight number and offset inside it */
    p->at = (size_t)row * dt_nn_weight_row(t);
    p->n = (size_t)rows * dt_nn_weight_row(t);
    va_start(ap, fmt);
    len = vsnprintf(p->name, sizeof(p->name), fmt, ap);
    va_end(ap);
    if (len < 0 || (size_t)len >= sizeof(p->name))
        return dt_error_set(err, DT_ERR_INTERNAL, "parameter name too long: %s", p->name);
    p->block = weight; /* replaced below */
    s->n_params++;
    return DT_OK;
}

void dt_param_deal(struct dt_stage *s, const struct dt_nn_deal *deal)
{
    struct dt_param *p = &s->params[s->n_params - 1];
    int64_t begin = 0;

    if (!s->tp || !deal || deal->by == DT_DEAL_NONE)
        return;
    p->split = (deal->by == DT_DEAL_IN) != p->transpose;
    p->n_pieces = deal->n;
    for (int k = 0; k < deal->n; k++) {
        p->piece[k].first = begin + dt_nn_mine_first(s, deal->grains[k]) * deal->size;
        p->piece[k].count = dt_nn_mine(s, deal->grains[k]) * deal->size;
        begin += deal->grains[k] * deal->size;
    }
}

/* Elements before and behind the dealt dimension as the tensor lies. */
static void around(const struct dt_param *p, size_t *outer, size_t *inner)
{
    int split = p->transpose ? 1 - p->split : p->split;

    *outer = *inner = 1;
    for (int i = 0; i < p->n_dims; i++) {
        int lies = p->transpose ? 1 - i : i;

        if (lies < split)
            *outer *= (size_t)p->shape[i];
        else if (lies > split)
            *inner *= (size_t)p->shape[i];
    }
}

int64_t dt_param_runs(const struct dt_param *p)
{
    size_t outer, inner;

    if (p->n_pieces == 0)
        return 1;
    around(p, &outer, &inner);
    return (int64_t)outer * p->n_pieces;
}

struct dt_param_run dt_param_run(const struct dt_param *p, int64_t i)
{
    size_t outer, inner, row = (size_t)(p->n_pieces ? i / p->n_pieces : 0), held = 0, before = 0;
    int piece = p->n_pieces ? (int)(i % p->n_pieces) : 0;

    if (p->n_pieces == 0)
        return (struct dt_param_run){0, 0, p->n};
    around(p, &outer, &inner);
    for (int k = 0; k < p->n_pieces; k++) {
        before += k < piece ? (size_t)p->piece[k].count : 0;
        held += (size_t)p->piece[k].count;
    }
    return (struct dt_param_run){
        (row * (size_t)p->shape[p->split] + (size_t)p->piece[piece].first) * inner,
        (row * held + before) * inner, (size_t)p->piece[piece].count * inner};
}

/* Those of experts, which an expert group has dealt, lie together. */
static void place_experts(struct dt_stage *s, int block, bool decay)
{
    for (int i = 0; i < s->n_weights; i++) {
        struct dt_nn_weight *p = &s->weights[i];

        if (p->block != block || !p->expert || p->decay != decay)
            continue;
        p->at = s->floats;
        s->floats += (p->n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    }
}

static void place_some(struct dt_stage *s, int block, bool decay, bool dealt, bool partial)
{
    for (int i = 0; i < s->n_weights; i++) {
        struct dt_nn_weight *p = &s->weights[i];

        if (p->block != block || p->expert || p->decay != decay || p->dealt != dealt ||
            p->partial != partial)
            continue;
        p->at = s->floats;
        s->floats += (p->n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    }
}

static void place_block(struct dt_stage *s, struct dt_nn_node *n)
{
    struct dt_param_range *r = &n->range;
    size_t end;

    r->at = s->floats;
    place_experts(s, n->index, true);
    place_experts(s, n->index, false);
    r->n_experts = s->floats - r->at;
    place_some(s, n->index, true, true, false);
    r->replicated_at = s->floats;
    place_some(s, n->index, true, false, false);
    n->partial_at = s->floats;
    place_some(s, n->index, true, false, true);
    r->n_decay = s->floats - r->at;
    place_some(s, n->index, false, false, true);
    n->n_partial = s->floats - n->partial_at;
    place_some(s, n->index, false, false, false);
    end = s->floats;
    place_some(s, n->index, false, true, false);
    r->n = s->floats - r->at;
    r->n_replicated = s->tp ? end - r->replicated_at : 0;
}

static enum dt_status make_weight(struct dt_stage *s, struct dt_nn_weight *p, struct dt_error *err)
{
    struct dt_device_weight_shape shape = {s->dtype, p->out, p->in, p->kernel};

    if (!p->product || p->n == 0) /* fewer heads or groups than members */
        return DT_OK;
    return s->dev->weight_new(s->dev, &shape, s->master ? s->master + p->at : NULL,
                              s->rounded ? s->rounded + p->at : NULL, err, &p->w);
}

void dt_params_place(struct dt_stage *s)
{
    for (int i = s->first; i < s->last; i++)
        place_block(s, &s->nodes[i - s->first]);
    for (int i = 0; i < s->n_params; i++) {
        const struct dt_nn_weight *t = &s->weights[s->params[i].block];

        s->params[i].at += t->at;
        s->params[i].rounded = t->rounded;
        s->params[i].looked_up = t->looked_up;
        s->params[i].block = t->block;
    }
}

static bool in_fp32(const struct dt_nn_weight *p)
{
    return !p->rounded || p->looked_up;
}

static int by_kind_and_place(const void *a, const void *b)
{
    const struct dt_nn_weight *x = *(struct dt_nn_weight *const *)a,
                              *y = *(struct dt_nn_weight *const *)b;

    if (x->looked_up != y->looked_up)
        return x->looked_up ? 1 : -1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* What is kept in fp32 where there are no masters: vectors in their order, then tables.  *floats: of all of it. */
static enum dt_status place_exact(struct dt_stage *s, struct dt_error *err, size_t *floats)
{
    struct dt_nn_weight **w = dt_malloc(((size_t)s->n_weights + 1) * sizeof(*w));
    size_t at = 0;
    int n = 0;

    if (!w)
        return dt_error_nomem(err, "parameters");
    for (int i = 0; i < s->n_weights; i++)
        if (in_fp32(&s->weights[i]))
            w[n++] = &s->weights[i];
    qsort((void *)w, (size_t)n, sizeof(struct dt_nn_weight *), by_kind_and_place);
    for (int i = 0; i < n; i++) {
        w[i]->exact_at = at;
        at += (w[i]->n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    }
    dt_free((void *)w);
    *floats = at;
    return DT_OK;
}

/* NULL: the device's. */
static const struct dt_stage_memory *gathered(const struct dt_stage *s, bool is)
{
    return is ? &s->gathered : NULL;
}

static enum dt_status memory_new(const struct dt_stage *s, const struct dt_stage_memory *from,
                                 size_t bytes, struct dt_error *err, void **out)
{
    return from && from->alloc ? from->alloc(from->arg, bytes, err, out)
                               : s->dev->alloc(s->dev, bytes, err, out);
}

static void memory_free(const struct dt_stage *s, const struct dt_stage_memory *from, void *p)
{
    if (from && from->alloc)
        from->free(from->arg, p);
    else
        s->dev->free(s->dev, p);
}

/* Is there a value that is trained?  (Of fewer heads than members some have none.) */
static bool steps_any(const struct dt_stage *s)
{
    for (int i = 0; i < s->n_weights; i++)
        if (s->weights[i].n > 0 && s->nodes[s->weights[i].block - s->first].trained)
            return true;
    return false;
}

enum dt_status dt_params_allocate(struct dt_stage *s, struct dt_error *err)
{
    bool trained = false;
    size_t ones = 0, exact = 0;
    void *p = NULL;

    for (int i = s->first; i < s->last; i++)
        trained |= s->nodes[i - s->first].trained;
    s->masters_away &= steps_any(s) && s->dtype == DT_BF16 && !s->dev->info.packs;
    for (int i = 0; i < s->n_params; i++)
        if (s->params[i].init == DT_INIT_ONE && s->params[i].n > ones)
            ones = s->params[i].n;
    s->ones = DT_ARENA_NEW(&s->arena, float, ones + 1);
    if (!s->ones)
        return dt_error_nomem(err, "parameters");
    for (size_t i = 0; i < ones; i++)
        s->ones[i] = 1.0f;
    if (s->masters_away) {
        DT_TRY(place_exact(s, err, &exact));
        DT_TRY(s->dev->alloc(s->dev, (exact + 1) * sizeof(float), err, (void **)&s->exact));
        s->exact_floats = exact;
    } else {
        DT_TRY(memory_new(s, gathered(s, s->dtype == DT_F32), (s->floats + 1) * sizeof(float), err,
                          &p));
        s->master = p;
    }
    if (s->dtype == DT_BF16 && !s->dev->info.packs) {
        DT_TRY(memory_new(s, &s->gathered, (s->floats + 1) * sizeof(*s->rounded), err, &p));
        s->rounded = p;
    }
    if (trained) {
        DT_TRY(memory_new(s, &s->summed, (s->floats + 1) * sizeof(float), err, &p));
        s->grads = p;
        s->unwritten = DT_ARENA_NEW(&s->arena, struct dt_kernel_span, (size_t)s->n_weights + 1);
        if (!s->unwritten)
            return dt_error_nomem(err, "parameters");
    }
    for (int i = 0; i < s->n_weights; i++)
        DT_TRY(make_weight(s, &s->weights[i], err));
    return DT_OK;
}

void dt_params_free(struct dt_stage *s)
{
    for (int i = 0; i < s->n_weights; i++)
        s->dev->weight_free(s->weights[i].w);
    memory_free(s, gathered(s, s->dtype == DT_F32), s->master);
    s->dev->free(s->dev, s->exact);
    memory_free(s, &s->gathered, s->rounded);
    memory_free(s, &s->summed, s->grads);
    dt_free(s->weights);
    dt_free(s->params);
}

/* ---- offload ---- */

static size_t away_elem(const struct dt_stage *s)
{
    return s->dtype == DT_BF16 && !s->dev->info.packs ? sizeof(*s->rounded) : sizeof(*s->master);
}

static char *what_goes(const struct dt_stage *s)
{
    return s->rounded ? (char *)s->rounded : (char *)s->master;
}

size_t dt_stage_away_bytes(const struct dt_stage *s)
{
    return s->floats * away_elem(s);
}

void dt_stage_copy_away(struct dt_device_queue *q, struct dt_stage *s, void *host, bool all)
{
    size_t elem = away_elem(s);

    if (all) {
        s->dev->copy(q, host, what_goes(s), s->floats * elem, DT_COPY_TO_HOST);
        return;
    }
    for (int i = s->first; i < s->last; i++) {
        const struct dt_param_range *r = &s->nodes[i - s->first].range;

        if (s->nodes[i - s->first].trained && r->n > 0)
            s->dev->copy(q, (char *)host + r->at * elem, what_goes(s) + r->at * elem, r->n * elem,
                         DT_COPY_TO_HOST);
    }
}

void dt_stage_leave(struct dt_stage *s)
{
    for (int i = 0; i < s->n_weights; i++) {
        s->dev->weight_free(s->weights[i].w);
        s->weights[i].w = NULL;
    }
    s->dev->free(s->dev, what_goes(s));
    if (s->rounded)
        s->rounded = NULL;
    else
        s->master = NULL;
    s->is_away = true;
}

bool dt_stage_is_away(const struct dt_stage *s)
{
    return s->is_away;
}

enum dt_status dt_stage_return(struct dt_device_queue *q, struct dt_stage *s, const void *host,
                               struct dt_error *err)
{
    size_t elem = away_elem(s);
    void *p;

    DT_TRY(s->dev->alloc(s->dev, (s->floats + 1) * elem, err, &p));
    if (elem == sizeof(*s->rounded))
        s->rounded = p;
    else
        s->master = p;
    s->is_away = false;
    s->dev->copy(q, p, host, s->floats * elem, DT_COPY_TO_DEVICE);
    for (int i = 0; i < s->n_weights; i++)
        DT_TRY(make_weight(s, &s->weights[i], err));
    dt_stage_stepped(q, s, s->first, s->last);
    return DT_OK;
}

/* ---- what trainers see ---- */

const struct dt_param *dt_stage_params(const struct dt_stage *s, int *n)
{
    *n = s->n_params;
    return s->params;
}

struct dt_param_range dt_stage_range(const struct dt_stage *s, int block)
{
    return s->nodes[block - s->first].range;
}

size_t dt_stage_param_floats(const struct dt_stage *s)
{
    return s->floats;
}

float *dt_stage_master(struct dt_stage *s)
{
    return s->master;
}

float *dt_nn_weight_exact(const struct dt_stage *s, const struct dt_nn_weight *w)
{
    if (s->master)
        return s->master + w->at;
    return s->exact && in_fp32(w) ? s->exact + w->exact_at : NULL;
}

float *dt_stage_exact(struct dt_stage *s, const struct dt_param *p)
{
    if (s->master)
        return s->master + p->at;
    for (int i = 0; i < s->n_weights; i++) /* a parameter is one, or some rows of one */
        if (p->at >= s->weights[i].at && p->at < s->weights[i].at + s->weights[i].n) {
            float *w = dt_nn_weight_exact(s, &s->weights[i]);

            return w ? w + (p->at - s->weights[i].at) : NULL;
        }
    return NULL;
}

float *dt_stage_grads(struct dt_stage *s)
{
    return s->grads;
}

bool dt_stage_trained(const struct dt_stage *s, int block)
{
    return s->nodes[block - s->first].trained;
}

void *dt_stage_rounded(struct dt_stage *s)
{
    return s->rounded;
}

void dt_stage_changed(struct dt_device_queue *q, struct dt_stage *s, int first, int last)
{
    int lo = first > s->first ? first : s->first, hi = last < s->last ? last : s->last;

    if (s->master && s->rounded && lo < hi) {
        const struct dt_param_range *a = &s->nodes[lo - s->first].range,
                                    *z = &s->nodes[hi - 1 - s->first].range;

        s->dev->k->cast(q, (int64_t)(z->at + z->n - a->at), DT_F32, s->master + a->at, DT_BF16,
                        s->rounded + a->at);
    }
    dt_stage_stepped(q, s, first, last);
}

void dt_stage_stepped(struct dt_device_queue *q, struct dt_stage *s, int first, int last)
{
    for (int i = 0; i < s->n_weights; i++) {
        struct dt_nn_weight *p = &s->weights[i];

        if (p->w && p->block >= first && p->block < last)
            s->dev->weight_changed(q, p->w);
    }
}

/* The part of a weight that lies in [at, at + n), counted from its own beginning. */
static size_t overlap(const struct dt_nn_weight *w, size_t at, size_t n, size_t *first)
{
    size_t lo = w->at > at ? w->at : at;
    size_t end = w->at + w->n < at + n ? w->at + w->n : at + n;

    *first = lo - w->at;
    return end > lo ? end - lo : 0;
}

void dt_stage_look_up(struct dt_device_queue *q, struct dt_stage *s, size_t at, size_t n)
{
    for (int i = 0; s->exact && i < s->n_weights; i++) {
        const struct dt_nn_weight *w = &s->weights[i];
        size_t first, count = overlap(w, at, n, &first);

        if (w->looked_up && count > 0)
            s->dev->k->cast(q, (int64_t)count, DT_BF16, s->rounded + w->at + first, DT_F32,
                            s->exact + w->exact_at + first);
    }
}

void dt_stage_copy(struct dt_device_queue *q, struct dt_stage *to, struct dt_stage *from, size_t at,
                   size_t n)
{
    const struct dt_device *dev = to->dev;

    if (to->master)
        dev->copy(q, to->master + at, from->master + at, n * sizeof(float), DT_COPY_ON_DEVICE);
    if (to->rounded)
        dev->copy(q, to->rounded + at, from->rounded + at, n * sizeof(*to->rounded),
                  DT_COPY_ON_DEVICE);
    for (int i = 0; to->exact && i < to->n_weights; i++) {
        const struct dt_nn_weight *w = &to->weights[i];
        size_t first, count = in_fp32(w) ? overlap(w, at, n, &first) : 0;

        if (count > 0)
            dev->copy(q, to->exact + w->exact_at + first, from->exact + w->exact_at + first,
                      count * sizeof(float), DT_COPY_ON_DEVICE);
    }
}

/* Of a stage without masters its gradients' memory is as large. */
static float *room_of_all(struct dt_stage *s)
{
    return s->master ? s->master : s->grads;
}

const float *dt_stage_initial(struct dt_stage *s)
{
    return room_of_all(s);
}

/* A slice has the values that it has in the whole tensor. */
static void init_normal(struct dt_device_queue *q, struct dt_stage *s, const struct dt_param *p,
                        uint64_t seed, uint64_t stream)
{
    for (int64_t i = 0; i < dt_param_runs(p); i++) {
        struct dt_param_run r = dt_param_run(p, i);

        if (r.n > 0)
            s->dev->k->normal(q, DT_F32, (int64_t)r.n, seed, stream, r.whole, p->std,
                              room_of_all(s) + p->at + r.at);
    }
}

/* There are no masters: what kernels read, from where they were made. */
static void take_initial(struct dt_device_queue *q, struct dt_stage *s)
{
    const float *from = room_of_all(s);

    s->dev->zero(q, s->exact, s->exact_floats * sizeof(float));
    s->dev->k->cast(q, (int64_t)s->floats, DT_F32, from, DT_BF16, s->rounded);
    for (int i = 0; i < s->n_weights; i++) {
        const struct dt_nn_weight *w = &s->weights[i];

        if (in_fp32(w))
            s->dev->copy(q, s->exact + w->exact_at, from + w->at, w->n * sizeof(float),
                         DT_COPY_ON_DEVICE);
    }
}

void dt_stage_init(struct dt_device_queue *q, struct dt_stage *s, uint64_t seed)
{
    const struct dt_device *dev = s->dev;
    float *all = room_of_all(s);
    char name[DT_NAME_MAX + sizeof(s->params[0].name) + 1];

    dev->zero(q, all, s->floats * sizeof(float));
    for (int i = 0; i < s->n_params; i++) {
        const struct dt_param *p = &s->params[i];

        snprintf(name, sizeof(name), "%s/%s", s->module->name, p->name);
        if (p->init == DT_INIT_ONE)
            dev->copy(q, all + p->at, s->ones, p->n * sizeof(float), DT_COPY_TO_DEVICE);
        else if (p->init == DT_INIT_NORMAL)
            init_normal(q, s, p, seed, dt_hash_text(DT_HASH_START, name));
    }
    if (s->masters_away)
        take_initial(q, s);
    dt_stage_changed(q, s, s->first, s->last);
}

void dt_stage_grads_begin(struct dt_stage *s)
{
    for (int i = 0; i < s->n_weights; i++)
        s->weights[i].written = false;
}

void dt_stage_grads_finish(struct dt_device_queue *q, struct dt_stage *s, int first, int last)
{
    int n = 0;

    for (int i = 0; s->grads && i < s->n_weights; i++) {
        struct dt_nn_weight *p = &s->weights[i];
        size_t padded = (p->n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
        size_t from = p->written ? p->n : 0;

        if (p->block < first || p->block >= last)
            continue;
        if (from < padded)
            s->unwritten[n++] =
                (struct dt_kernel_span){(int64_t)(padded - from), s->grads + p->at + from};
        p->written = true;
    }
    if (n > 0)
        s->dev->k->zero(q, n, s->unwritten);
}

void dt_stage_grads_reduce(struct dt_device_queue *q, struct dt_stage *s, int first, int last)
{
    for (int i = first > s->first ? first : s->first; i < last && i < s->last; i++) {
        const struct dt_nn_node *n = &s->nodes[i - s->first];

        if (s->tp && n->trained && n->n_partial > 0)
            dt_tp_all_reduce(q, s->tp, DT_F32, (int64_t)n->n_partial, s->grads + n->partial_at);
    }
}
