/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Losses of an iteration.  Every row's and every image's loss is copied to its own place and added
 * up in the order of samples at the end, so the sum does not depend on layout, order or threads. */
#include "exec/program/execute_impl.h"

#include <string.h>

/* A host array of at least n elements. */
static enum dt_status host_room(struct dt_exec *x, void **p, size_t *cap, size_t n, size_t elem,
                                struct dt_error *err)
{
    if (n <= *cap && *p)
        return DT_OK;
    x->dev->host_free(x->dev, *p);
    *p = NULL;
    *cap = 0;
    n += n / 4 + 64;
    DT_TRY(x->dev->host_alloc(x->dev, n * elem, err, p));
    *cap = n;
    return DT_OK;
}

enum { LOSS_TEXT = 1, LOSS_IMAGE = 2 };

/* Microbatches whose losses are computed here: by the first member of their lane. */
static void count_losses(struct dt_exec *x)
{
    x->losses_left = 0;
    for (uint32_t i = 0; i < x->p->n_ops; i++) {
        const struct dt_op *op = &x->p->ops[i];

        if (op->kind == DT_OP_FORWARD && op->part + 1 == op->parts && dt_exec_here(x, op) &&
            dt_exec_op_vs(x, op)->v == x->n_v[op->module] - 1 &&
            x->o.model->modules[op->module].role != DT_ROLE_ENCODER)
            x->losses_left++;
    }
}

enum dt_status dt_exec_loss_begin(struct dt_exec *x, struct dt_error *err)
{
    const struct dt_module *gen =
        x->edge[DT_EDGE_COND].src >= 0 ? &x->o.model->modules[x->edge[DT_EDGE_COND].dst] : NULL;
    int64_t rows = 0, images = 0, targets = 0;
    size_t n = (size_t)x->in->n;

    if (dt_grow((void **)&x->losses, &x->cap_losses, 2 * n + 1, sizeof(*x->losses)) ||
        dt_grow((void **)&x->has_loss, &x->cap_has_loss, n + 1, sizeof(*x->has_loss)))
        return dt_error_nomem(err, "losses");
    memset(x->losses, 0, (2 * n + 1) * sizeof(*x->losses));
    memset(x->has_loss, 0, n + 1);
    count_losses(x);
    if (n > x->cap_samples) {
        int64_t *row_at = dt_realloc(x->row_at, n * sizeof(*row_at));
        int64_t *img_at = row_at ? dt_realloc(x->img_at, n * sizeof(*img_at)) : NULL;

        x->row_at = row_at ? row_at : x->row_at;
        if (!img_at)
            return dt_error_nomem(err, "losses");
        x->img_at = img_at;
        x->cap_samples = n;
    }
    for (int64_t s = 0; s < x->in->n; s++) {
        const struct dt_sequence *q = x->in->seqs[s];

        x->row_at[s] = rows;
        x->img_at[s] = images;
        rows += q->n_tokens;
        targets += dt_batching_targets(q);
        for (int i = 0; gen && i < q->n_items; i++) {
            int lw, lh;

            if (!(q->items[i].flags & DT_ITEM_GENERATE))
                continue;
            if (dt_grow((void **)&x->image_values, &x->cap_images, (size_t)images + 1,
                        sizeof(*x->image_values)))
                return dt_error_nomem(err, "losses");
            dt_batching_latent_size(gen, q->items[i].w, q->items[i].h, &lw, &lh);
            x->image_values[images++] = (int64_t)lw * lh * dt_batching_channels(gen);
        }
    }
    DT_TRY(host_room(x, (void **)&x->nll, &x->cap_nll, (size_t)rows, sizeof(float), err));
    DT_TRY(host_room(x, (void **)&x->sse, &x->cap_sse, (size_t)images, sizeof(float), err));
    x->text_scale = targets > 0 ? x->o.text_weight / (double)targets : 0;
    x->image_scale = images > 0 ? x->o.image_weight / (double)images : 0;
    return DT_OK;
}

void dt_exec_loss_take(struct dt_exec *x, const struct dt_op *op,
                       const struct dt_exec_microbatch *s)
{
    const struct dt_assignment_module *a = &x->p->assignment->m[op->module];
    const struct dt_microbatch *mb = &a->mb[dt_exec_global_mb(x, op)];
    enum dt_module_role role = x->o.model->modules[op->module].role;
    int64_t at = 0;

    if (x->member[op->module][op->replica * x->pp[op->module] + op->stage] > 0)
        return;
    for (uint32_t i = 0; i < mb->n; i++) {
        int64_t j = a->samples[mb->first + i];
        const struct dt_sequence *q = x->in->seqs[j];

        x->has_loss[j] |= role == DT_ROLE_LLM ? LOSS_TEXT : LOSS_IMAGE;
        if (role == DT_ROLE_LLM) {
            x->dev->copy(x->q, x->nll + x->row_at[j], s->batch->dev.nll + at,
                         (size_t)q->n_tokens * sizeof(float), DT_COPY_TO_HOST);
            at += q->n_tokens;
        } else {
            int64_t n = dt_batching_images(q, DT_ITEM_GENERATE);

            if (n > 0)
                x->dev->copy(x->q, x->sse + x->img_at[j], s->batch->dev.sse + at,
                             (size_t)n * sizeof(float), DT_COPY_TO_HOST);
            at += n;
        }
    }
}

/* Per sample, and these in the order of samples: the same sum whatever the layout. */
void dt_exec_loss_sum(struct dt_exec *x)
{
    size_t n = (size_t)x->in->n;
    int gen = x->edge[DT_EDGE_COND].src >= 0 ? x->edge[DT_EDGE_COND].dst : -1;

    for (size_t s = 0; s < n; s++) {
        const struct dt_sequence *q = x->in->seqs[s];
        int64_t images = gen >= 0 ? dt_batching_images(q, DT_ITEM_GENERATE) : 0;

        if (x->has_loss[s] & LOSS_TEXT)
            for (int i = 0; i < q->n_tokens; i++)
                x->losses[s] += q->labels[i] >= 0 ? (double)x->nll[x->row_at[s] + i] : 0;
        if (x->has_loss[s] & LOSS_IMAGE)
            for (int64_t i = x->img_at[s]; i < x->img_at[s] + images; i++)
                x->losses[n + s] += (double)x->sse[i] / (double)x->image_values[i];
    }
    x->losses[2 * n] = x->in->signal;
}

void dt_exec_loss_end(struct dt_exec *x, struct dt_exec_result *out)
{
    size_t n = (size_t)x->in->n;
    double nll = 0, sse = 0;

    for (size_t s = 0; s < n; s++) {
        const struct dt_sequence *q = x->in->seqs[s];

        nll += x->losses[s];
        sse += x->losses[n + s];
        out->tokens += q->n_tokens;
        out->targets += dt_batching_targets(q);
        out->encoded += dt_batching_images(q, DT_ITEM_ENCODE);
        if (x->edge[DT_EDGE_COND].src >= 0)
            out->images += dt_batching_images(q, DT_ITEM_GENERATE);
    }
    out->signal = x->losses[2 * n];
    out->loss_text = out->targets > 0 ? nll / (double)out->targets : 0;
    out->loss_image = out->images > 0 ? sse / (double)out->images : 0;
    out->loss = x->o.text_weight * out->loss_text + x->o.image_weight * out->loss_image;
}
