/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/program/optimizer.h"

#include "base/mem.h"
#include "exec/program/optimizer_host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const dt_optimizer_decay_names[] = {"constant", "cosine", NULL};

void dt_optimizer_defaults(struct dt_optimizer_options *o)
{
    /* What GPT-3 and Llama were trained with (beta2 0.95, decay 0.1, clip 1), at a rate for small
     * models. */
    *o = (struct dt_optimizer_options){.lr = 1e-3,
                                       .decay = DT_LR_COSINE,
                                       .steps = 1000,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = 0.1,
                                       .clip = 1};
}

double dt_optimizer_lr(const struct dt_optimizer_options *o, int64_t step)
{
    double left = (double)(o->steps - o->warmup_steps), t;

    if (step <= o->warmup_steps)
        return o->lr * (double)step / (double)o->warmup_steps;
    if (o->decay == DT_LR_CONSTANT || left <= 0 || o->steps == 1) /* one step falls nowhere */
        return o->lr;
    t = (double)(step - o->warmup_steps) / left;
    t = t > 1 ? 1 : t;
    return o->min_lr + (o->lr - o->min_lr) * 0.5 * (1 + cos(M_PI * t));
}

static int by_place(const void *a, const void *b)
{
    const struct dt_optimizer_segment *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* The owned parts of what is trained, in the order of places; neighbours become one. */
static void add_segment(struct dt_optimizer *o, struct dt_optimizer_segment s)
{
    struct dt_optimizer_segment *last = o->n_segments > 0 ? &o->segments[o->n_segments - 1] : NULL;

    if (last && last->at + last->n == s.at && last->decay == s.decay && last->idle == s.idle &&
        last->tied == s.tied && last->counted == s.counted)
        last->n += s.n;
    else
        o->segments[o->n_segments++] = s;
}

static void cut_segment(struct dt_optimizer *o, struct dt_optimizer_segment s,
                        const struct dt_optimizer_owned *owned, int n)
{
    for (int k = 0; k < n; k++) {
        size_t lo = s.at > owned[k].at ? s.at : owned[k].at;
        size_t end = s.at + s.n, hi = owned[k].at + owned[k].n;
        struct dt_optimizer_segment piece = s;

        hi = hi < end ? hi : end;
        if (lo >= hi)
            continue;
        piece.at = lo;
        piece.n = hi - lo;
        piece.counted = s.counted && owned[k].counted;
        add_segment(o, piece);
    }
}

/* Up to three: what is idle at either end of a parameter, and what lies between. */
static int add_param(struct dt_optimizer_segment *all, const struct dt_param *p,
                     struct dt_optimizer_segment s)
{
    const size_t n[] = {p->idle_first, p->n - p->idle_first - p->idle_last, p->idle_last};
    int k = 0;

    s.at = p->at;
    for (int i = 0; i < 3; i++, s.at += s.n) {
        s.n = n[i];
        s.idle = i != 1;
        if (s.n > 0) /* of fewer heads than members some have none */
            all[k++] = s;
    }
    return k;
}

static enum dt_status find_segments(struct dt_optimizer *o, const struct dt_optimizer_spec *spec,
                                    struct dt_error *err)
{
    const struct dt_module *module = spec->module;
    const struct dt_optimizer_owned *owned = spec->owned;
    struct dt_optimizer_segment *all;
    const struct dt_param *p;
    int n, k = 0;

    p = dt_stage_params(o->stage, &n);
    o->trained = dt_calloc((size_t)n + 1, 1);
    o->segments =
        dt_malloc((3 * (size_t)n * (size_t)(owned ? spec->n_owned : 1) + 1) * sizeof(*all));
    all = dt_malloc((3 * (size_t)n + 1) * sizeof(*all));
    if (!o->trained || !o->segments || !all) {
        dt_free(all);
        return dt_error_nomem(err, "an optimizer");
    }
    for (int i = 0; i < n; i++) {
        bool table = module->blocks[p[i].block].kind == DT_BLOCK_EMBEDDING || p[i].tied;

        o->trained[i] = dt_stage_trained(o->stage, p[i].block);
        if (o->trained[i])
            k += add_param(
                all + k, &p[i],
                (struct dt_optimizer_segment){.decay = p[i].decay && !table,
                                              .tied = p[i].tied,
                                              .counted = spec->member == 0 || !p[i].replicated});
    }
    qsort(all, (size_t)k, sizeof(*all), by_place);
    for (int i = 0; i < k; i++)
        if (owned)
            cut_segment(o, all[i], owned, spec->n_owned);
        else
            add_segment(o, all[i]);
    dt_free(all);
    return DT_OK;
}

static void place_moments(struct dt_optimizer *o)
{
    size_t at = 0;

    for (int i = 0; i < o->n_segments; i++) {
        o->segments[i].moment = o->sharded ? at : o->segments[i].at;
        at += o->segments[i].n;
    }
    o->moments = o->sharded ? at : dt_stage_param_floats(o->stage);
}

/* What is not trained of a stage whose masters the host has. */
static enum dt_status place_kept(struct dt_optimizer *o, struct dt_error *err)
{
    int n;
    const struct dt_param *p = dt_stage_params(o->stage, &n);

    o->masters = o->moments;
    o->kept = dt_malloc(((size_t)n + 1) * sizeof(*o->kept));
    if (!o->kept)
        return dt_error_nomem(err, "an optimizer");
    for (int i = 0; i < n; i++) {
        if (o->trained[i])
            continue;
        o->kept[o->n_kept++] = (struct dt_optimizer_segment){
            .at = p[i].at, .n = p[i].n, .moment = o->sharded ? o->masters : p[i].at};
        o->masters += o->sharded ? p[i].n : 0;
    }
    return DT_OK;
}

/* Idle floats are no border of what is summed. */
static bool goes_on(const struct dt_optimizer_segment *last, const struct dt_optimizer_segment *s)
{
    return last->at + last->n == s->at && last->decay == s->decay && last->counted && !last->tied &&
           last->idle != s->idle;
}

/* What kernels are given: all segments at once. */
static enum dt_status make_tables(struct dt_optimizer *o, struct dt_error *err)
{
    float *p = dt_stage_master(o->stage), *g = dt_stage_grads(o->stage);
    uint16_t *copy = dt_stage_rounded(o->stage);

    o->stepped =
        dt_calloc((size_t)o->n_segments, sizeof(*o->stepped)); /* on the host: of a chunk */
    o->counted = dt_calloc((size_t)o->n_segments, sizeof(*o->counted));
    if (!o->stepped || !o->counted)
        return dt_error_nomem(err, "an optimizer");
    for (int i = 0; i < o->n_segments; i++) {
        const struct dt_optimizer_segment *s = &o->segments[i];

        if (!o->offloaded)
            o->stepped[i] = (struct dt_kernel_adamw_part){(int64_t)s->n,
                                                          p + s->at,
                                                          g + s->at,
                                                          o->exp_avg + s->moment,
                                                          o->exp_avg_sq + s->moment,
                                                          copy ? copy + s->at : NULL,
                                                          s->decay && !s->idle};
        if (!s->tied && s->counted && i > 0 && goes_on(s - 1, s))
            o->counted[o->n_counted - 1].n += (int64_t)s->n;
        else if (!s->tied && s->counted)
            o->counted[o->n_counted++] = (struct dt_kernel_span){(int64_t)s->n, g + s->at};
    }
    return DT_OK;
}

enum dt_status dt_optimizer_layout(struct dt_optimizer *o, const struct dt_optimizer_spec *spec,
                                   struct dt_error *err)
{
    *o = (struct dt_optimizer){
        .stage = spec->stage, .sharded = spec->owned != NULL, .name = spec->module->name};
    DT_TRY(find_segments(o, spec, err));
    if (o->n_segments == 0)
        return DT_OK;
    place_moments(o);
    o->offloaded = spec->offloaded;
    return o->offloaded ? place_kept(o, err) : DT_OK;
}

static enum dt_status on_device(struct dt_optimizer *o, struct dt_error *err)
{
    const struct dt_device *dev = o->dev;
    struct dt_device_queue *q;
    enum dt_status st;

    DT_TRY(dev->alloc(dev, o->moments * sizeof(float), err, (void **)&o->exp_avg));
    DT_TRY(dev->alloc(dev, o->moments * sizeof(float), err, (void **)&o->exp_avg_sq));
    DT_TRY(dev->queue_new(dev, false, err, &q));
    dev->zero(q, o->exp_avg, o->moments * sizeof(float));
    dev->zero(q, o->exp_avg_sq, o->moments * sizeof(float));
    st = dev->queue_sync(q, err);
    dev->queue_free(q);
    return st;
}

enum dt_status dt_optimizer_init(struct dt_optimizer *o, const struct dt_device *dev,
                                 const struct dt_optimizer_spec *spec,
                                 struct dt_optimizer_host *host, struct dt_device_queue *q,
                                 struct dt_error *err)
{
    DT_TRY(dt_optimizer_layout(o, spec, err));
    o->dev = dev;
    if (o->n_segments == 0)
        return DT_OK;
    DT_TRY(o->offloaded ? dt_optimizer_host_init(o, host, q, err) : on_device(o, err));
    return make_tables(o, err);
}

void dt_optimizer_moved(struct dt_optimizer *o)
{
    float *p = dt_stage_master(o->stage);
    uint16_t *copy = dt_stage_rounded(o->stage);

    for (int i = 0; !o->offloaded && i < o->n_segments; i++) {
        o->stepped[i].p = p + o->segments[i].at;
        o->stepped[i].copy = copy ? copy + o->segments[i].at : NULL;
    }
}

void dt_optimizer_free(struct dt_optimizer *o)
{
    if (o->host) {
        dt_optimizer_host_free(o);
    } else if (o->dev) {
        o->dev->free(o->dev, o->exp_avg);
        o->dev->free(o->dev, o->exp_avg_sq);
    }
    dt_free(o->segments);
    dt_free(o->kept);
    dt_free(o->stepped);
    dt_free(o->counted);
    dt_free(o->trained);
    memset(o, 0, sizeof(*o));
}

void dt_optimizer_sum_sq(struct dt_device_queue *q, const struct dt_optimizer *o, double *sq)
{
    if (o->n_counted > 0)
        o->dev->k->sum_sq(q, o->n_counted, o->counted, sq, true);
}

void dt_optimizer_step(struct dt_device_queue *q, struct dt_optimizer *o,
                       const struct dt_optimizer_options *opt, int64_t step,
                       const struct dt_optimizer_coef *coef, int first_block, int last_block)
{
    struct dt_kernel_adamw h = {.lr = (float)dt_optimizer_lr(opt, step),
                                .beta1 = (float)opt->beta1,
                                .beta2 = (float)opt->beta2,
                                .eps = (float)opt->eps,
                                .weight_decay = (float)opt->weight_decay,
                                .step = step};

    if (o->n_segments == 0)
        return;
    if (o->host)
        dt_optimizer_host_step(q, o, &h, coef->host);
    else
        o->dev->k->adamw(q, &h, o->n_segments, o->stepped, coef->device);
    dt_stage_stepped(q, o->stage, first_block, last_block);
}
