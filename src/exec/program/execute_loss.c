/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Losses of an iteration.  Every row's and every image's loss has a place of its own on the host: those of a
 * microbatch lie side by side, so that one copy brings them.  They are added up in the order of samples at the
 * end, so the sum does not depend on layout, order or threads. */
#include "exec/program/execute_impl.h"

#include <string.h>

/* A host array of at least n elements. */
static enum dt_status host_room(const struct dt_device *dev, void **p, size_t *cap, size_t n,
                                size_t elem, struct dt_error *err)
{
    if (n <= *cap && *p)
        return DT_OK;
    dev->host_free(dev, *p);
    *p = NULL;
    *cap = 0;
    n += n / 4 + 64;
    DT_TRY(dev->host_alloc(dev, n * elem, err, p));
    *cap = n;
    return DT_OK;
}

/* Microbatches whose losses are computed here: by the first member of their lane. */
static void count_losses(struct dt_exec_losses *losses, const struct dt_program *p,
                         const struct dt_exec_stages *stages)
{
    losses->left = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *op = &p->ops[i];

        if (op->kind == DT_OP_FORWARD && op->part + 1 == op->parts &&
            dt_exec_here(stages->ranks, op) &&
            dt_exec_op_vs(stages, op)->v == stages->env->n_v[op->module] - 1 &&
            stages->env->o.model->modules[op->module].role != DT_ROLE_ENCODER)
            losses->left++;
    }
}

/* Where the rows of samples lie: microbatch after microbatch of the LLM.  Returns their number. */
static int64_t place_rows(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                          int module)
{
    const struct dt_assignment_module *a = &it->p->assignment->m[module];
    int64_t rows = 0;

    for (uint32_t mb = 0; mb < a->mb_first[a->n_replicas]; mb++)
        for (uint32_t i = 0; i < a->mb[mb].n; i++) {
            int64_t s = a->samples[a->mb[mb].first + i];

            losses->row_at[0][s] = losses->row_at[1][s] = rows;
            rows += it->in->seqs[s]->n_tokens;
        }
    return rows;
}

/* Images to draw, sample by sample. */
static enum dt_status list_images(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                                  const struct dt_module *gen, struct dt_error *err)
{
    int64_t n = 0;

    for (int64_t s = 0; s < it->in->n; s++) {
        const struct dt_sequence *q = it->in->seqs[s];

        losses->image_of[s] = n;
        for (int i = 0; i < q->n_items; i++) {
            int lw, lh;

            if (!(q->items[i].flags & DT_ITEM_GENERATE))
                continue;
            if (dt_grow((void **)&losses->image, &losses->cap_image, (size_t)n + 1,
                        sizeof(*losses->image)))
                return dt_error_nomem(err, "losses");
            dt_batching_latent_size(gen, q->items[i].w, q->items[i].h, &lw, &lh);
            losses->image[n++] =
                (struct dt_exec_image){.values = (int64_t)lw * lh * dt_batching_channels(gen)};
        }
    }
    losses->image_of[it->in->n] = n;
    return DT_OK;
}

/* Those of entry k of the generator's assignment: [first, *end). */
static int64_t images_of(const struct dt_exec_losses *losses, const struct dt_assignment_module *a,
                         uint32_t k, int64_t *end)
{
    int64_t s = a->samples[k], first = losses->image_of[s] + (a->items ? a->items[k] : 0);

    *end = a->items ? first + 1 : losses->image_of[s + 1];
    return first;
}

/* Where they lie: microbatch after microbatch of the generator. */
static void place_images(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                         int module)
{
    const struct dt_assignment_module *a = &it->p->assignment->m[module];
    int64_t at = 0;

    for (uint32_t mb = 0; mb < a->mb_first[a->n_replicas]; mb++)
        for (uint32_t k = 0; k < a->mb[mb].n; k++) {
            int64_t end, i = images_of(losses, a, a->mb[mb].first + k, &end);

            for (; i < end; i++)
                losses->image[i].at = at++;
        }
}

enum dt_status dt_exec_loss_begin(struct dt_exec_losses *losses, struct dt_exec_iteration *it,
                                  const struct dt_exec_stages *stages, struct dt_error *err)
{
    const struct dt_module *gen = it->edge[DT_EDGE_COND].src >= 0
                                      ? &stages->env->o.model->modules[it->edge[DT_EDGE_COND].dst]
                                      : NULL;
    int64_t rows = 0, images = 0, targets = 0;
    size_t n = (size_t)it->in->n;

    if (!losses->read)
        DT_TRY(stages->env->dev->event_new(stages->env->dev, err, &losses->read));
    if (dt_grow((void **)&losses->value, &losses->cap_value, 2 * n + 1, sizeof(*losses->value)) ||
        dt_grow((void **)&losses->has, &losses->cap_has, n + 1, sizeof(*losses->has)))
        return dt_error_nomem(err, "losses");
    memset(losses->value, 0, (2 * n + 1) * sizeof(*losses->value));
    memset(losses->has, 0, n + 1);
    count_losses(losses, it->p, stages);
    if (n > losses->cap_samples) {
        int64_t **at[] = {&losses->row_at[0], &losses->row_at[1], &losses->image_of};

        for (int i = 0; i < 3; i++) {
            int64_t *grown = dt_realloc(*at[i], (n + 1) * sizeof(*grown));

            if (!grown)
                return dt_error_nomem(err, "losses");
            *at[i] = grown;
        }
        losses->cap_samples = n;
    }
    for (int64_t s = 0; s < it->in->n; s++)
        targets += dt_batching_targets(it->in->seqs[s]);
    rows = place_rows(losses, it, stages->env->o.model->llm);
    if (gen) {
        DT_TRY(list_images(losses, it, gen, err));
        place_images(losses, it, it->edge[DT_EDGE_COND].dst);
        images = losses->image_of[it->in->n];
    }
    DT_TRY(host_room(stages->env->dev, (void **)&losses->nll, &losses->cap_nll, (size_t)rows,
                     sizeof(float), err));
    DT_TRY(host_room(stages->env->dev, (void **)&losses->sse, &losses->cap_sse, (size_t)images,
                     sizeof(float), err));
    it->text_scale = targets > 0 ? stages->env->o.text_weight / (double)targets : 0;
    it->balance_scale =
        rows > 0 ? stages->env->o.model->modules[stages->env->o.model->llm].arith.balance_loss /
                       (double)rows
                 : 0;
    it->image_scale = images > 0 ? stages->env->o.image_weight / (double)images : 0;
    return DT_OK;
}

/* A microbatch of which only some rows are here: the early halves of its samples, then the late ones.  Returns their
 * number. */
static int64_t place_own(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                         const struct dt_assignment_module *a, const struct dt_microbatch *mb,
                         const struct dt_batch_cut *cut)
{
    int64_t begin = mb->n > 0 ? losses->row_at[0][a->samples[mb->first]] : 0, at = begin;

    for (int half = 0; half < 2; half++)
        for (uint32_t i = 0; i < mb->n; i++) {
            int64_t s = a->samples[mb->first + i];

            losses->row_at[half][s] = at;
            at += dt_batching_cut_rows(it->in->seqs[s], cut->n, cut->mine, half);
        }
    return at - begin;
}

/* Of the images of a microbatch, the first one's place; returns their number. */
static int64_t take_images(struct dt_exec_losses *losses, const struct dt_assignment_module *a,
                           const struct dt_microbatch *mb, int64_t *first)
{
    int64_t n = 0;

    for (uint32_t k = mb->first; k < mb->first + mb->n; k++) {
        int64_t end, i = images_of(losses, a, k, &end);

        for (; i < end; i++, n++) {
            losses->image[i].here = true;
            if (n == 0)
                *first = losses->image[i].at;
        }
    }
    return n;
}

static int64_t take_rows(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                         const struct dt_assignment_module *a, const struct dt_microbatch *mb,
                         const struct dt_batch_cut *cut, int64_t *first)
{
    int64_t n = 0;

    for (uint32_t i = 0; i < mb->n; i++) {
        int64_t s = a->samples[mb->first + i];

        losses->has[s] = true;
        n += it->in->seqs[s]->n_tokens;
    }
    if (cut->n > 1)
        n = place_own(losses, it, a, mb, cut);
    if (mb->n > 0)
        *first = losses->row_at[0][a->samples[mb->first]];
    return n;
}

void dt_exec_loss_take(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                       const struct dt_exec_stages *stages, const struct dt_op *op,
                       const struct dt_exec_microbatch *s)
{
    const struct dt_assignment_module *a = &it->p->assignment->m[op->module];
    const struct dt_microbatch *mb = &a->mb[dt_exec_global_mb(it->p, op)];
    bool text = stages->env->o.model->modules[op->module].role == DT_ROLE_LLM;
    int64_t first = 0, n;
    int tp = stages->env->o.plan->modules[op->module].layout.tp;

    if (dt_exec_member(stages->ranks, op) % tp > 0)
        return;
    n = text ? take_rows(losses, it, a, mb, &s->batch->cut, &first)
             : take_images(losses, a, mb, &first);
    if (n > 0)
        stages->env->dev->copy(stages->env->q, (text ? losses->nll : losses->sse) + first,
                               text ? s->batch->dev.nll : s->batch->dev.sse,
                               (size_t)n * sizeof(float), DT_COPY_TO_HOST);
}

/* Of the rows of a sample that are here. */
static double text_loss(const struct dt_exec_losses *losses, const struct dt_sequence *q, size_t s,
                        const struct dt_batch_cut *cut)
{
    int64_t at[2] = {losses->row_at[0][s], losses->row_at[1][s]};
    struct dt_batching_chunks c;
    double sum = 0;

    dt_batching_chunks_begin(&c, cut->n, q);
    while (dt_batching_chunks_next(&c))
        for (int64_t i = c.first; c.member == cut->mine && i < c.end; i++, at[c.half]++)
            sum += q->labels[i] >= 0 ? (double)losses->nll[at[c.half]] : 0;
    return sum;
}

/* Per sample, and these in the order of samples: the same sum whatever the layout. */
void dt_exec_loss_sum(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                      const struct dt_batch_cut *cut)
{
    size_t n = (size_t)it->in->n;
    bool draws = it->edge[DT_EDGE_COND].src >= 0;

    for (size_t s = 0; s < n; s++) {
        int64_t first = draws ? losses->image_of[s] : 0, end = draws ? losses->image_of[s + 1] : 0;

        if (losses->has[s])
            losses->value[s] += text_loss(losses, it->in->seqs[s], s, cut);
        for (int64_t i = first; i < end; i++)
            if (losses->image[i].here)
                losses->value[n + s] +=
                    (double)losses->sse[losses->image[i].at] / (double)losses->image[i].values;
    }
    losses->value[2 * n] = it->in->signal;
}

void dt_exec_loss_end(const struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                      const struct dt_exec_env *env, struct dt_exec_result *out)
{
    size_t n = (size_t)it->in->n;
    double nll = 0, sse = 0;

    for (size_t s = 0; s < n; s++) {
        const struct dt_sequence *q = it->in->seqs[s];

        nll += losses->value[s];
        sse += losses->value[n + s];
        out->tokens += q->n_tokens;
        out->targets += dt_batching_targets(q);
        out->encoded += dt_batching_images(q, DT_ITEM_ENCODE);
        if (it->edge[DT_EDGE_COND].src >= 0)
            out->images += dt_batching_images(q, DT_ITEM_GENERATE);
    }
    out->signal = losses->value[2 * n];
    out->loss_text = out->targets > 0 ? nll / (double)out->targets : 0;
    out->loss_image = out->images > 0 ? sse / (double)out->images : 0;
    out->loss = env->o.text_weight * out->loss_text + env->o.image_weight * out->loss_image;
}

/* Blocks with experts. */
static int layers_with_experts(const struct dt_module *m)
{
    int n = 0;

    for (int i = 0; i < m->n_blocks; i++)
        n += m->blocks[i].n_experts > 0;
    return n;
}

enum dt_status dt_exec_load_take(const struct dt_exec_stages *stages, struct dt_error *err,
                                 struct dt_exec_result *out)
{
    int m = stages->env->o.model->llm,
        layers = layers_with_experts(&stages->env->o.model->modules[m]);
    struct dt_stage_load l = {0};
    double v[2 + DT_LOAD_N];

    if (layers == 0)
        return DT_OK;
    for (int i = 0; i < stages->env->dp[m] * stages->env->n_v[m]; i++) {
        struct dt_exec_vstage *vs = &stages->vs[m][i];
        struct dt_stage_load others = {0}; /* of tensor-parallel members, who route the same rows */

        int stage = vs->v % stages->env->pp[m];
        bool first = dt_tp_rank(dt_exec_tp(stages->ranks, m, vs->replica, stage)) == 0;

        if (vs->stage)
            dt_stage_load_take(vs->stage, first ? &l : &others);
    }
    v[0] = l.forwards;
    v[1] = l.balance;
    memcpy(v + 2, l.busiest, sizeof(l.busiest));
    DT_TRY(dt_exec_ranks_sum(stages->ranks, v, 2 + DT_LOAD_N, err));
    out->expert_forwards = v[0];
    out->balance = out->tokens > 0 ? v[1] / ((double)out->tokens * layers) : 0;
    for (int i = 0; i < DT_LOAD_N; i++)
        out->busiest[i] = v[0] > 0 ? v[2 + i] / v[0] : 0;
    return DT_OK;
}

void dt_exec_losses_free(struct dt_exec_losses *losses, const struct dt_device *dev)
{
    dev->host_free(dev, losses->nll);
    dev->host_free(dev, losses->sse);
    dev->event_free(losses->read);
    dt_free(losses->value);
    dt_free(losses->has);
    dt_free(losses->row_at[0]);
    dt_free(losses->row_at[1]);
    dt_free(losses->image_of);
    dt_free(losses->image);
}

const double *dt_exec_losses(const struct dt_exec *x)
{
    return x->losses.value;
}
