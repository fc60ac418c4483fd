/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/optimizer.h"

#include "core/mem.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const dt_lr_decay_names[] = {"constant", "cosine", NULL};

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
    if (o->decay == DT_LR_CONSTANT || left <= 0)
        return o->lr;
    t = (double)(step - o->warmup_steps) / left;
    t = t > 1 ? 1 : t;
    return o->min_lr + (o->lr - o->min_lr) * 0.5 * (1 + cos(M_PI * t));
}

static int by_place(const void *a, const void *b)
{
    const struct dt_segment *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

static void find_segments(struct dt_optimizer *o, const struct dt_module *module)
{
    const struct dt_param *p;
    int n, k = 0;

    p = dt_stage_params(o->stage, &n);
    for (int i = 0; i < n; i++) {
        bool table = module->blocks[p[i].block].kind == DT_BLOCK_EMBEDDING || p[i].tied;

        o->trained[i] = dt_stage_trained(o->stage, p[i].block);
        if (o->trained[i])
            o->segments[o->n_segments++] =
                (struct dt_segment){p[i].at, p[i].n, p[i].decay && !table, p[i].tied};
    }
    qsort(o->segments, (size_t)o->n_segments, sizeof(*o->segments), by_place);
    for (int i = 1; i < o->n_segments; i++) { /* neighbours become one */
        struct dt_segment *a = &o->segments[k], *b = &o->segments[i];

        if (a->at + a->n == b->at && a->decay == b->decay && a->tied == b->tied)
            a->n += b->n;
        else
            o->segments[++k] = *b;
    }
    o->n_segments = o->n_segments > 0 ? k + 1 : 0;
}

enum dt_status dt_optimizer_init(struct dt_optimizer *o, const struct dt_device *dev,
                                 const struct dt_module *module, struct dt_stage *stage,
                                 struct dt_error *err)
{
    size_t bytes = dt_stage_param_floats(stage) * sizeof(float);
    struct dt_queue *q;
    int n;

    *o = (struct dt_optimizer){.dev = dev, .stage = stage};
    dt_stage_params(stage, &n);
    o->segments = dt_malloc(((size_t)n + 1) * sizeof(*o->segments));
    o->trained = dt_calloc((size_t)n + 1, 1);
    if (!o->segments || !o->trained)
        return dt_error_nomem(err, "an optimizer");
    find_segments(o, module);
    if (o->n_segments == 0)
        return DT_OK;
    DT_TRY(dev->alloc(dev, bytes, err, (void **)&o->exp_avg));
    DT_TRY(dev->alloc(dev, bytes, err, (void **)&o->exp_avg_sq));
    DT_TRY(dev->queue_new(dev, false, err, &q));
    dev->zero(q, o->exp_avg, bytes);
    dev->zero(q, o->exp_avg_sq, bytes);
    enum dt_status st = dev->queue_sync(q, err);
    dev->queue_free(q);
    return st;
}

void dt_optimizer_free(struct dt_optimizer *o)
{
    if (o->dev) {
        o->dev->free(o->dev, o->exp_avg);
        o->dev->free(o->dev, o->exp_avg_sq);
    }
    dt_free(o->segments);
    dt_free(o->trained);
    memset(o, 0, sizeof(*o));
}

void dt_optimizer_sum_sq(struct dt_queue *q, const struct dt_optimizer *o, double *sq)
{
    const float *g = dt_stage_grads(o->stage);

    for (int i = 0; i < o->n_segments; i++)
        if (!o->segments[i].tied)
            o->dev->k->sum_sq(q, (int64_t)o->segments[i].n, g + o->segments[i].at, sq, true);
}

void dt_optimizer_step(struct dt_queue *q, struct dt_optimizer *o,
                       const struct dt_optimizer_options *opt, int64_t step, const float *coef,
                       int first_block, int last_block)
{
    float *p = dt_stage_master(o->stage);
    const float *g = dt_stage_grads(o->stage);
    struct dt_adamw h = {.lr = (float)dt_optimizer_lr(opt, step),
                         .beta1 = (float)opt->beta1,
                         .beta2 = (float)opt->beta2,
                         .eps = (float)opt->eps,
                         .step = step};

    for (int i = 0; i < o->n_segments; i++) {
        size_t at = o->segments[i].at;

        h.weight_decay = o->segments[i].decay ? (float)opt->weight_decay : 0;
        o->dev->k->adamw(q, &h, (int64_t)o->segments[i].n, p + at, g + at, o->exp_avg + at,
                         o->exp_avg_sq + at, coef);
    }
    if (o->n_segments > 0)
        dt_stage_changed(q, o->stage, first_block, last_block);
}
