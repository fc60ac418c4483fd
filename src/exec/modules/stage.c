/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Making stages: nodes, sizes, the one workspace.
 *
 *   workspace: | temp 0 | temp 1 | a block's | gradients of the flow | saved (no backward only) |
 */
#include "core/model/plan.h"

#include "base/hash.h"
#include "exec/modules/impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- nodes ---- */

static enum dt_kernel_act activation(const struct dt_stage *s, const struct dt_block *b)
{
    switch (dt_block_activation(&s->numbers, b)) {
    case DT_ACTIVATION_GELU:
        return DT_ACT_GELU_ERF;
    case DT_ACTIVATION_GELU_TANH:
        return DT_ACT_GELU_TANH;
    case DT_ACTIVATION_QUICK_GELU:
        return DT_ACT_QUICK_GELU;
    case DT_ACTIVATION_SILU:
        return DT_ACT_SILU;
    case DT_ACTIVATION_RELU:
        return DT_ACT_RELU;
    case DT_ACTIVATION_HABIT:
    case DT_ACTIVATION_N:
        break;
    }
    return DT_ACT_GELU_ERF; /* the habit is one of the above */
}

static float attention_scale(const struct dt_stage *s, const struct dt_nn_node *n)
{
    int layer = 1;

    if (n->b->kind != DT_BLOCK_TRANSFORMER)
        return 0;
    for (int i = 0; i < n->index && s->numbers.scale_by_layer; i++)
        layer += s->module->blocks[i].kind == DT_BLOCK_TRANSFORMER;
    return (float)(dt_block_attention_scale(&s->numbers, n->b) / layer);
}

static enum dt_nn_lay_mode mode_of(const struct dt_nn_node *n, enum dt_block_recompute r)
{
    if (!n->keep)
        return DT_LAY_TRANSIENT;
    if (n->ops->source)
        return DT_LAY_NONE;
    return r == DT_RECOMPUTE_NONE        ? DT_LAY_NONE
           : r == DT_RECOMPUTE_SELECTIVE ? DT_LAY_SELECTIVE
                                         : DT_LAY_FULL;
}

static void node_kind(struct dt_nn_node *n, const struct dt_nn_shape_facts *f)
{
    int64_t rows = 0;

    n->has_x = !n->ops->source;
    n->has_y = n->ops->out_width(n->b, &rows) > 0;
    n->own_x = n->index == f->conv_in;
    n->x_width = n->ops->in_width(n->b);
    n->push = n->pop = n->source = -1;
    for (int i = 0; i < f->n_skips; i++) {
        if (f->skip[i].push == n->index)
            n->push = i;
        if (f->skip[i].push + 1 == n->index)
            n->source = i;
        if (f->skip[i].pop == n->index) {
            n->pop = i;
            n->x_width -= f->skip[i].channels;
            n->x_elsewhere = true;
        }
    }
}

static enum dt_status make_nodes(struct dt_stage *s, const struct dt_stage_spec *spec,
                                 struct dt_error *err)
{
    bool above = spec->upstream_trained;
    int n = s->last - s->first;
    char name[sizeof(s->module->name) + 48];

    s->nodes = DT_ARENA_NEW(&s->arena, struct dt_nn_node, n);
    s->place = DT_ARENA_NEW(&s->arena, struct dt_nn_place, n);
    if (!s->nodes || !s->place)
        return dt_error_nomem(err, "a stage");
    for (int i = 0; i < n; i++) {
        struct dt_nn_node *p = &s->nodes[i];
        int weights = TF_N + SP_N;

        p->index = s->first + i;
        p->b = &s->module->blocks[p->index];
        p->ops = dt_nn_ops_of(p->b);
        node_kind(p, &s->facts);
        p->trained = !spec->trained || spec->trained[p->index];
        p->need = above;
        above |= p->trained;
        p->keep = above;
        s->any_backward |= p->keep;
        p->act = activation(s, p->b);
        p->scale = attention_scale(s, p);
        p->mode = mode_of(p, spec->recompute);
        for (int j = 0; j < 2; j++) {
            snprintf(name, sizeof(name), "%s/dropout/%d/%d", s->module->name, p->index, j);
            p->drop_key[j] = dt_hash_text(DT_HASH_START, name);
        }
        weights += DT_EXPERT_ROLES * p->b->n_experts;
        if (p->b->kind == DT_BLOCK_SPATIAL_TRANSFORMER)
            weights = SP_N + SPL_N * p->b->depth;
        p->weight = DT_ARENA_NEW(&s->arena, int, weights);
        if (!p->weight)
            return dt_error_nomem(err, "a stage");
        for (int j = 0; j < weights; j++)
            p->weight[j] = -1;
    }
    return DT_OK;
}

/* ---- sizes ---- */

void dt_nn_node_sizes(struct dt_stage *s, struct dt_nn_node *n, const struct dt_batch *b,
                      size_t *rest, size_t *work, size_t *stash)
{
    struct dt_nn_call c = {.s = s, .n = n, .b = n->b, .batch = b, .dtype = s->dtype};

    c.es = dt_dtype_bytes(s->dtype);
    n->ops->layout(&c);
    *rest = c.saved.used;
    n->ops->forward(&c, false);
    if (n->keep)
        n->ops->backward(&c, DT_BACKWARD_BOTH);
    *work = c.work.used;
    *stash = c.stash.used;
}

static size_t take(size_t *at, size_t bytes)
{
    size_t here = *at;

    *at += dt_nn_round64(bytes);
    return here;
}

void dt_nn_saved_places(struct dt_stage *s, const struct dt_batch *b, struct dt_nn_place *place,
                        struct dt_nn_carry *carry)
{
    const struct dt_nn_shape_facts *f = &s->facts;
    size_t es = dt_dtype_bytes(s->dtype), at = 0, blocks;

    for (int i = 0; i < s->last - s->first; i++) {
        struct dt_nn_node *n = &s->nodes[i];
        size_t rest, work, stash;

        place[i] = (struct dt_nn_place){DT_NOWHERE, DT_NOWHERE};
        if (!n->keep)
            continue;
        dt_nn_node_sizes(s, n, b, &rest, &work, &stash);
        if (n->has_x && !n->x_elsewhere)
            place[i].x = take(&at, dt_nn_node_x_bytes(s, n, b));
        place[i].rest = take(&at, rest);
    }
    blocks = at;
    for (int i = 0; i < s->last - s->first;
         i++) /* a skip outlives the block that takes it as input */
        if (!s->nodes[i].keep && s->nodes[i].source >= 0)
            place[i].x = take(&at, dt_nn_node_x_bytes(s, &s->nodes[i], b));
    carry->time = carry->context = DT_NOWHERE;
    if (f->conv_in >= 0 && s->first <= f->time_last && s->last >= f->time_first)
        carry->time = take(&at, (size_t)(b->n_seq * f->time_dim) * es);
    if (f->conv_in >= 0 && s->first <= f->context_last && s->last >= f->context_first)
        carry->context = take(&at, (size_t)(b->n_seq * f->context_len * f->context_dim) * es);
    for (int k = 0; k < f->n_skips; k++) {
        const struct dt_nn_skip *p = &f->skip[k];

        carry->skip[k] = DT_NOWHERE;
        if (p->push + 1 < s->first && p->pop >= s->first)
            carry->skip[k] = take(&at, (size_t)(dt_nn_level_rows(b, p->level) * p->channels) * es);
    }
    carry->bytes = at;
    carry->passing = at - blocks;
}

static size_t saved_bytes(const struct dt_stage *s, const struct dt_batch *b, bool passing)
{
    struct dt_stage *t = (struct dt_stage *)(uintptr_t)s; /* its scratch, not its state */
    struct dt_nn_carry carry;

    dt_nn_saved_places(t, b, t->place, &carry);
    return passing ? carry.passing : carry.bytes;
}

size_t dt_stage_saved_bytes(const struct dt_stage *s, const struct dt_batch *b)
{
    return saved_bytes(s, b, false);
}

size_t dt_stage_carry_bytes(const struct dt_stage *s, const struct dt_batch *b)
{
    return saved_bytes(s, b, true);
}

size_t dt_stage_block_bytes(const struct dt_stage *s, const struct dt_batch *b, int block)
{
    struct dt_stage *t = (struct dt_stage *)(uintptr_t)s;
    struct dt_nn_node *n = &t->nodes[block - s->first];
    size_t rest, work, stash;

    if (!n->keep)
        return 0;
    dt_nn_node_sizes(t, n, b, &rest, &work, &stash);
    return rest + (n->x_elsewhere ? 0 : dt_nn_node_x_bytes(s, n, b));
}

size_t dt_stage_stash_bytes(const struct dt_stage *s, const struct dt_batch *b)
{
    struct dt_stage *t = (struct dt_stage *)(uintptr_t)s;
    size_t sum = 0;

    for (int i = 0; s->split && i < s->last - s->first; i++) {
        struct dt_nn_node *n = &t->nodes[i];
        size_t rest, work, stash;

        if (!n->keep)
            continue;
        dt_nn_node_sizes(t, n, b, &rest, &work, &stash);
        sum += dt_nn_round64(dt_nn_output_bytes(s, n, b)) + stash;
    }
    return sum;
}

static size_t flows_bytes(const struct dt_stage *s, const struct dt_batch *b, int at)
{
    struct dt_flow list[DT_FLOWS_MAX];
    int n = dt_flow_list(s, b, at, list);
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += list[i].bytes;
    return sum;
}

size_t dt_stage_in_bytes(const struct dt_stage *s, const struct dt_batch *b)
{
    return flows_bytes(s, b, s->first);
}

size_t dt_stage_out_bytes(const struct dt_stage *s, const struct dt_batch *b)
{
    return flows_bytes(s, b, s->last);
}

size_t dt_stage_workspace_bytes(const struct dt_stage *s)
{
    return s->work_bytes;
}

bool dt_stage_has_backward(const struct dt_stage *s)
{
    return s->any_backward;
}

bool dt_stage_sends_gradient(const struct dt_stage *s)
{
    return s->upstream && (s->first > 0 || s->module->blocks[0].kind != DT_BLOCK_PATCH_EMBED);
}

/* ---- the workspace ---- */

static enum dt_status make_workspace(struct dt_stage *s, struct dt_error *err)
{
    struct dt_batch full = {.rows = s->max.rows,
                            .n_seq = s->max.seqs,
                            .n_in = s->max.in,
                            .n_cond = s->max.cond,
                            .max_len = s->max.max_len,
                            .keys = s->max.keys,
                            .keys_step = s->max.keys_step,
                            .steps = s->max.steps,
                            .gathered = s->max.gathered,
                            .routed = s->max.routed,
                            .n_sample = s->max.samples};
    const struct dt_nn_shape_facts *f = &s->facts;
    size_t es = dt_dtype_bytes(s->dtype), at = 0, where[DT_MAX_SKIPS], g_time, g_context, saved;
    size_t chunk_rows = 0, chunk_part = 0;
    void *p = NULL;

    s->temp_bytes = s->block_bytes = 0;

    for (int i = 0; i < s->last - s->first; i++) {
        struct dt_nn_node *n = &s->nodes[i];
        size_t rest, work, stash, x = dt_nn_node_x_bytes(s, n, &full),
                                  y = dt_nn_output_bytes(s, n, &full);

        dt_nn_node_sizes(s, n, &full, &rest, &work, &stash);
        s->block_bytes = work > s->block_bytes ? work : s->block_bytes;
        x = x > y ? x : y;
        s->temp_bytes = x > s->temp_bytes ? x : s->temp_bytes;
    }
    s->temp_bytes = dt_nn_round64(s->temp_bytes);
    s->block_bytes = dt_nn_round64(s->block_bytes);
    at = 2 * s->temp_bytes + s->block_bytes;
    g_time = take(&at, f->conv_in >= 0 ? (size_t)(full.n_seq * f->time_dim) * es : 0);
    g_context = take(
        &at, f->conv_in >= 0 ? (size_t)(full.n_seq * f->context_len * f->context_dim) * es : 0);
    for (int k = 0; k < f->n_skips; k++) {
        const struct dt_nn_skip *q = &f->skip[k];

        where[k] = DT_NOWHERE;
        if (s->any_backward && q->push + 1 < s->last && q->pop >= s->first)
            where[k] = take(&at, (size_t)(dt_nn_level_rows(&full, q->level) * q->channels) * es);
    }
    if (s->seqpar && s->chunks > 1)
        dt_nn_chunks_bytes(s, &chunk_rows, &chunk_part);
    chunk_rows = take(&at, chunk_rows);
    chunk_part = take(&at, chunk_part);
    saved = at;
    if (!s->any_backward)
        at += saved_bytes(s, &full, false);
    s->work_bytes = at + 64;
    DT_TRY(s->dev->alloc(s->dev, s->work_bytes, err, &p));
    s->work = p;
    s->temp[0] = s->work;
    s->temp[1] = s->work + s->temp_bytes;
    s->block_work = s->work + 2 * s->temp_bytes;
    s->g_time = s->work + g_time;
    s->g_context = s->work + g_context;
    for (int k = 0; k < f->n_skips; k++)
        s->g_skip[k] = where[k] == DT_NOWHERE ? NULL : s->work + where[k];
    s->chunk_rows = s->work + chunk_rows;
    s->chunk_part = s->work + chunk_part;
    s->own_saved = s->work + saved;
    return DT_OK;
}

/* ---- rotary table: [position][cosines | sines] ---- */

static enum dt_status make_rope(struct dt_stage *s, struct dt_error *err)
{
    struct dt_device_queue *q = NULL;
    enum dt_status st;
    void *p = NULL, *host = NULL;
    float *t;
    int dim = 0;

    for (int i = s->first; i < s->last; i++) {
        const struct dt_block *b = &s->module->blocks[i];

        if (b->kind == DT_BLOCK_TRANSFORMER && b->causal && b->max_pos == 0)
            dim = b->head_dim;
    }
    if (dim == 0)
        return DT_OK;
    DT_TRY(s->dev->alloc(s->dev, (size_t)(s->max.max_len * dim) * sizeof(float), err, &p));
    s->rope = p;
    DT_TRY(s->dev->host_alloc(s->dev, (size_t)(s->max.max_len * dim) * sizeof(float), err, &host));
    t = host;
    for (int64_t pos = 0; pos < s->max.max_len; pos++)
        for (int i = 0; i < dim / 2; i++) {
            double angle = (double)pos * dt_rope_frequency(&s->numbers.rope, i, dim);

            t[pos * dim + i] = (float)cos(angle);
            t[pos * dim + dim / 2 + i] = (float)sin(angle);
        }
    st = s->dev->queue_new(s->dev, false, err, &q);
    if (st == DT_OK) {
        s->dev->copy(q, s->rope, host, (size_t)(s->max.max_len * dim) * sizeof(float),
                     DT_COPY_TO_DEVICE);
        st = s->dev->queue_sync(q, err);
        s->dev->queue_free(q);
    }
    s->dev->host_free(s->dev, host);
    return st;
}

/* ---- new and free ---- */

static void numbers(struct dt_stage *s)
{
    s->numbers = s->module->arith;
    s->numbers.norm_eps = dt_module_norm_eps(s->module);
}

static enum dt_status copy_module(struct dt_stage *s, const struct dt_module *m,
                                  struct dt_error *err)
{
    s->own_module = *m;
    s->own_module.blocks = DT_ARENA_NEW(&s->arena, struct dt_block, m->n_blocks);
    if (!s->own_module.blocks)
        return dt_error_nomem(err, "a stage");
    memcpy(s->own_module.blocks, m->blocks, (size_t)m->n_blocks * sizeof(*m->blocks));
    s->module = &s->own_module;
    return DT_OK;
}

static bool sequence_parallel(const struct dt_stage *s)
{
    for (int i = 0; i < s->module->n_blocks; i++)
        if (s->module->blocks[i].no_seqpar)
            return false;
    return s->tp && s->facts.conv_in < 0;
}

static enum dt_status check_members(const struct dt_stage *s, struct dt_error *err)
{
    int n = dt_tp_size(s->tp), ep = dt_tp_size(s->ep);

    for (int i = 0; i < s->module->n_blocks; i++) {
        const struct dt_block *b = &s->module->blocks[i];

        if (b->n_experts % ep != 0)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module \"%s\": ep %d does not divide the %d experts of block %d",
                                s->module->name, ep, b->n_experts, i);
        if (!dt_block_allows_tp(b, n))
            return dt_error_set(err, DT_ERR_INPUT,
                                "module \"%s\": tp %d does not divide the %d heads (%d key/value "
                                "heads) of block %d",
                                s->module->name, n, b->heads, b->kv_heads, i);
        if ((b->kind == DT_BLOCK_EMBEDDING || b->kind == DT_BLOCK_LM_HEAD) && b->vocab < n)
            return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": tp %d of a vocabulary of %d",
                                s->module->name, n, b->vocab);
    }
    return DT_OK;
}

/* Masks are drawn four elements at a time (kernels.h), so a member's rows must begin at such. */
static enum dt_status check_dropout(const struct dt_stage *s, struct dt_error *err)
{
    if (!(s->dropout >= 0 && s->dropout < 1))
        return dt_error_set(err, DT_ERR_INPUT, "dropout: expected 0 or more and less than 1");
    for (int i = 0; i < s->module->n_blocks && s->dropout > 0 && s->seqpar; i++)
        if (s->module->blocks[i].hidden % 4 != 0)
            return dt_error_set(
                err, DT_ERR_INPUT,
                "module \"%s\": dropout with tp needs a hidden size that 4 divides, "
                "not %d",
                s->module->name, s->module->blocks[i].hidden);
    return DT_OK;
}

static enum dt_status build(struct dt_stage *s, const struct dt_stage_spec *spec,
                            struct dt_error *err)
{
    DT_TRY(copy_module(s, spec->module, err));
    numbers(s);
    DT_TRY(dt_nn_shape_facts(s->module, err, &s->facts));
    DT_TRY(check_members(s, err));
    s->seqpar = sequence_parallel(s);
    DT_TRY(check_dropout(s, err));
    DT_TRY(make_nodes(s, spec, err));
    DT_TRY(dt_nn_names(s, err));
    dt_params_place(s);
    if (spec->layout_only)
        return DT_OK;
    DT_TRY(dt_params_allocate(s, err));
    DT_TRY(dt_nn_routing_new(s, err));
    DT_TRY(make_rope(s, err));
    return make_workspace(s, err);
}

static void set_limits(struct dt_stage *s, const struct dt_batch_limits *max)
{
    s->max = *max;
    if (s->max.max_len <= 0)
        s->max.max_len = s->max.rows;
}

enum dt_status dt_stage_new(const struct dt_device *dev, const struct dt_stage_spec *spec,
                            struct dt_error *err, struct dt_stage **out)
{
    const struct dt_module *m = spec->module;
    struct dt_stage *s;
    enum dt_status st;

    if (spec->first < 0 || spec->last > m->n_blocks || spec->first >= spec->last)
        return dt_error_set(err, DT_ERR_INTERNAL, "module \"%s\": no blocks %d to %d", m->name,
                            spec->first, spec->last);
    if (spec->dtype == DT_BF16 && !dev->info.bf16)
        return dt_error_set(err, DT_ERR_INPUT, "%s does not multiply in bf16; use fp32",
                            dev->info.name);
    s = dt_calloc(1, sizeof(*s));
    if (!s)
        return dt_error_nomem(err, "a stage");
    s->dev = dev;
    s->first = spec->first;
    s->last = spec->last;
    s->dtype = spec->dtype;
    if (spec->gathered)
        s->gathered = *spec->gathered;
    if (spec->summed)
        s->summed = *spec->summed;
    s->tp = dt_tp_size(spec->tp) > 1 ? spec->tp : NULL;
    s->cp = dt_tp_size(spec->cp) > 1 ? spec->cp : NULL;
    s->ring = s->cp && spec->ring;
    s->ep = dt_tp_size(spec->ep) > 1 ? spec->ep : NULL;
    s->upstream = spec->upstream_trained;
    s->split = spec->split_backward;
    s->masters_away = spec->masters_away;
    s->dropout = spec->dropout;
    s->chunks = spec->chunks < DT_STAGE_CHUNKS_MAX ? spec->chunks : DT_STAGE_CHUNKS_MAX;
    set_limits(s, &spec->max);
    st = build(s, spec, err);
    if (st != DT_OK) {
        dt_stage_free(s);
        return st;
    }
    *out = s;
    return DT_OK;
}

static void drop_rooms(struct dt_stage *s)
{
    s->dev->free(s->dev, s->rope);
    s->dev->free(s->dev, s->work);
    s->rope = NULL;
    s->work = NULL;
}

enum dt_status dt_stage_resize(struct dt_stage *s, const struct dt_batch_limits *max,
                               struct dt_error *err)
{
    drop_rooms(s);
    set_limits(s, max);
    DT_TRY(make_rope(s, err));
    return make_workspace(s, err);
}

void dt_stage_free(struct dt_stage *s)
{
    if (!s)
        return;
    dt_params_free(s);
    dt_nn_routing_free(s);
    drop_rooms(s);
    dt_arena_free(&s->arena);
    dt_free(s);
}
