/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What lies between blocks.  In a transformer: the running activation.  In a U-Net also the time
 * embedding, the conditioning states and the skips:
 *
 *   projector | time | conv_in | R . T . down . R . T | R T R | R<-skip ...
 *       context--->-----------------------------------------> last transformer
 *               time-------------------------------------------> last ResBlock
 *                       x----> every block;  a skip is the input of the block after its push
 *
 * A skip whose push is the boundary's own activation is not a tensor of its own there. */
#include "exec/modules/impl.h"

#include <string.h>

static enum dt_status unsupported(struct dt_error *err, const struct dt_module *m, const char *what)
{
    return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": %s cannot be run yet, only planned",
                        m->name, what);
}

static const char *unknown_experts(const struct dt_block *b)
{
    if (b->capacity > 0)
        return "experts that drop tokens (expert_capacity)";
    if (b->router_bias)
        return "a router that adds a bias to scores";
    if (b->layernorm && !b->gated && b->max_pos > 0)
        return "experts in layers that are GPT-2's otherwise";
    if (b->top_k > DT_KERNEL_TOP_K_MAX)
        return "more than 64 experts per token";
    return NULL;
}

/* What a transformer layer has beyond those that run. */
static const char *unknown_layer(const struct dt_block *b)
{
    if (b->n_experts > 0 && unknown_experts(b))
        return unknown_experts(b);
    if (b->kv_lora > 0)
        return "multi-head latent attention";
    if (b->window > 0 &&
        (b->causal || (b->kind != DT_BLOCK_TRANSFORMER && b->kind != DT_BLOCK_PROJECTOR)))
        return "attention to a window of tokens (window)";
    if ((b->norms != 0 && b->norms != 2) || b->norm_free)
        return "a layer with other norms than one before attention and one before its MLP";
    if (b->qk_norm_whole)
        return "a norm of all heads' queries or keys together";
    if (b->layer_scale || b->no_qkv_bias)
        return "a layer with a layer scale or with biases on some matrices alone";
    return NULL;
}

static enum dt_status check_block(const struct dt_module *m, const struct dt_block *b,
                                  struct dt_error *err)
{
    if (unknown_layer(b))
        return unsupported(err, m, unknown_layer(b));
    if (b->class_attends)
        return unsupported(err, m,
                           "attention to a class token (class_attention: false leaves the token "
                           "out, which computes other features than the model was trained for)");
    if (b->kind == DT_BLOCK_TIME_EMBED && b->depth < 2)
        return unsupported(err, m, "a class embedding");
    if (b->kind == DT_BLOCK_SPATIAL_TRANSFORMER && b->depth > DT_SP_DEPTH_MAX)
        return unsupported(err, m, "a spatial transformer this deep");
    if (b->kind == DT_BLOCK_TRANSFORMER && b->qk_norm && b->layernorm)
        return unsupported(err, m, "a LayerNorm of queries and keys");
    if (b->kind == DT_BLOCK_TRANSFORMER && b->causal && b->max_pos == 0 && b->head_dim % 2 != 0)
        return unsupported(err, m, "rotary positions in an odd head dimension");
    return DT_OK;
}

struct walk {
    const struct dt_module *m;
    struct dt_nn_shape_facts *f;
    int stack[DT_MAX_SKIPS], n;
    bool down; /* still on the way down */
};

static void push(struct walk *w, int block, int level, int channels)
{
    if (w->f->n_skips >= DT_MAX_SKIPS)
        return;
    w->f->skip[w->f->n_skips] = (struct dt_nn_skip){block, -1, level, channels};
    w->stack[w->n++] = w->f->n_skips++;
}

/* The block before the next ResBlock or convolution of the way down ends a pair that pushes. */
static bool pushes(const struct dt_module *m, int i)
{
    const struct dt_block *b = &m->blocks[i], *next = &m->blocks[i + 1];

    if (b->kind == DT_BLOCK_CONV)
        return !b->upsample && !b->layernorm;
    return next->kind != DT_BLOCK_SPATIAL_TRANSFORMER &&
           (b->kind == DT_BLOCK_RESNET || b->kind == DT_BLOCK_SPATIAL_TRANSFORMER);
}

/* First block of the middle: ResBlock, transformer, ResBlock after the last push.  The way up
 * begins with the first ResBlock whose input is wider than the activation that reaches it. */
static enum dt_status skips(struct walk *w, struct dt_error *err)
{
    const struct dt_module *m = w->m;
    int channels = 0, n = 0, mid;

    for (int i = 0; i < m->n_blocks; i++)
        n += m->blocks[i].kind == DT_BLOCK_RESNET || m->blocks[i].kind == DT_BLOCK_CONV;
    /* the way up starts at the first ResBlock that takes more than it is given */
    for (mid = w->f->conv_in; mid < m->n_blocks; mid++) {
        const struct dt_block *b = &m->blocks[mid];

        if (b->kind == DT_BLOCK_RESNET && b->c_in > channels)
            break;
        if (b->kind == DT_BLOCK_RESNET || b->kind == DT_BLOCK_CONV)
            channels = b->c_out;
    }
    if (mid < 3 || mid >= m->n_blocks)
        return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": a U-Net without a way up", m->name);
    for (int i = w->f->conv_in; i < mid - 3; i++) {
        const struct dt_block *b = &m->blocks[i];
        int level = b->kind == DT_BLOCK_CONV && b->stride == 2 ? b->level + 1 : b->level;

        if (pushes(m, i))
            push(w, i, level, b->kind == DT_BLOCK_SPATIAL_TRANSFORMER ? b->hidden : b->c_out);
    }
    channels = m->blocks[mid - 1].c_out;
    for (int i = mid; i < m->n_blocks; i++) {
        const struct dt_block *b = &m->blocks[i];
        struct dt_nn_skip *s;

        if (b->kind == DT_BLOCK_RESNET) {
            if (w->n == 0)
                return dt_error_set(err, DT_ERR_INPUT, "module \"%s\": block %d has no skip",
                                    m->name, i);
            s = &w->f->skip[w->stack[--w->n]];
            s->pop = i;
            if (s->channels + channels != b->c_in || s->level != b->level)
                return dt_error_set(err, DT_ERR_INPUT,
                                    "module \"%s\": block %d does not fit its skip", m->name, i);
        }
        if (b->kind == DT_BLOCK_RESNET || b->kind == DT_BLOCK_CONV)
            channels = b->c_out;
    }
    return w->n == 0 ? DT_OK
                     : dt_error_set(err, DT_ERR_INPUT, "module \"%s\": %d skips are not taken",
                                    m->name, w->n);
}

/* Windows are squares of the squares that are merged, in whose order patches lie until the projector puts the rows that
 * leave in that of the image. */
static enum dt_status check_windows(const struct dt_module *m, int side, struct dt_error *err)
{
    const struct dt_block *last = &m->blocks[m->n_blocks - 1];
    int merge = m->merge > 1 ? m->merge : 1;

    if (side == 0)
        return DT_OK;
    if (m->modality == DT_MODALITY_AUDIO)
        return unsupported(err, m, "windows of sound (window)");
    if (last->kind != DT_BLOCK_PROJECTOR || last->context_len > 0)
        return unsupported(err, m, "windows without a projector (window)");
    if (side * side != last->window || side % merge != 0)
        return unsupported(err, m,
                           "windows that are not squares of whole squares of merged patches "
                           "(window)");
    return DT_OK;
}

enum dt_status dt_nn_shape_facts(const struct dt_module *m, struct dt_error *err,
                                 struct dt_nn_shape_facts *f)
{
    struct walk w = {.m = m, .f = f};

    memset(f, 0, sizeof(*f));
    f->conv_in = -1;
    f->time_last = f->context_last = -1;
    if (m->planned_only)
        return unsupported(err, m, m->planned_only);
    if (m->modality == DT_MODALITY_AUDIO && m->role != DT_ROLE_ENCODER)
        return unsupported(err, m, "a generator of sound");
    if (m->modality == DT_MODALITY_AUDIO && m->mel_bins == 0)
        return unsupported(err, m,
                           "an encoder of sound with frames_per_s instead of mel_bins (BEATs has "
                           "a relative position bias besides)");
    for (int i = 0; i < m->n_blocks; i++) {
        DT_TRY(check_block(m, &m->blocks[i], err));
        if (m->blocks[i].kind == DT_BLOCK_TIME_EMBED && f->time_dim > 0)
            return unsupported(err, m, "a class embedding");
        dt_nn_ops_of(&m->blocks[i])->note(f, &m->blocks[i], i);
        if (m->blocks[i].level >= f->levels)
            f->levels = m->blocks[i].level + 1;
    }
    if (f->levels > DT_BATCH_LEVELS)
        return unsupported(err, m, "a U-Net of more than 8 levels");
    DT_TRY(check_windows(m, f->window, err));
    return f->conv_in >= 0 ? skips(&w, err) : DT_OK;
}

/* ---- kinds ---- */

#define ROW(id, name, kind) &dt_nn_ops_##kind,
static const struct dt_nn_block_ops *const ops[DT_BLOCK_KIND_N] = {DT_BLOCK_KINDS(ROW)};

const struct dt_nn_block_ops *dt_nn_ops_of(const struct dt_block *b)
{
    return ops[b->kind];
}

int64_t dt_nn_in_hidden(const struct dt_block *b)
{
    return b->hidden;
}

int64_t dt_nn_out_hidden(const struct dt_block *b, int64_t *rows)
{
    (void)rows;
    return b->hidden;
}

int64_t dt_nn_out_none(const struct dt_block *b, int64_t *rows)
{
    (void)b;
    (void)rows;
    return 0;
}

int64_t dt_nn_begin_none(const struct dt_block *b, const struct dt_batch *m)
{
    (void)b;
    (void)m;
    return 0;
}

void dt_nn_note_nothing(struct dt_nn_shape_facts *f, const struct dt_block *b, int i)
{
    (void)f;
    (void)b;
    (void)i;
}

/* ---- sizes ---- */

/* Rows of the activation that a block takes. */
int64_t dt_nn_node_rows(const struct dt_stage *s, const struct dt_nn_node *n,
                        const struct dt_batch *b)
{
    if (n->b->kind == DT_BLOCK_PROJECTOR && n->b->context_len > 0)
        return b->n_seq * n->b->context_len;
    return dt_nn_own_rows(s, dt_nn_level_rows(b, n->b->level));
}

size_t dt_nn_node_x_bytes(const struct dt_stage *s, const struct dt_nn_node *n,
                          const struct dt_batch *b)
{
    if (!n->has_x)
        return 0;
    return (size_t)(dt_nn_node_rows(s, n, b) * n->x_width) * dt_dtype_bytes(s->dtype);
}

int64_t dt_nn_rows_after(const struct dt_stage *s, const struct dt_batch *b, int last,
                         int64_t *width)
{
    const struct dt_block *p = &s->module->blocks[last - 1];
    int64_t rows = b->rows >> 2 * p->level;

    *width = dt_nn_ops_of(p)->out_width(p, &rows);
    return rows;
}

/* Of what block i - 1 leaves and block i takes, own rows, or a member's share where it leaves the module; 0 = no running
 * activation there. */
static size_t running_bytes(const struct dt_stage *s, const struct dt_batch *b, int at, bool leaves)
{
    int64_t rows, width;

    if (at <= 0 || at > s->module->n_blocks)
        return 0;
    rows = dt_nn_rows_after(s, b, at, &width);
    rows = leaves ? dt_nn_mine(s, rows) : dt_nn_own_rows(s, rows);
    return (size_t)(rows * width) * dt_dtype_bytes(s->dtype);
}

size_t dt_nn_output_bytes(const struct dt_stage *s, const struct dt_nn_node *n,
                          const struct dt_batch *b)
{
    return n->has_y ? running_bytes(s, b, n->index + 1, false) : 0;
}

/* Conditioning states come into a U-Net by shares. */
struct dt_flow_share dt_flow_states(const struct dt_stage *s, const struct dt_batch *b)
{
    const struct dt_block *p = &s->module->blocks[0];
    struct dt_flow_share e = {.width = s->facts.context_dim};

    if (s->facts.conv_in < 0)
        return e;
    if (p->kind == DT_BLOCK_PROJECTOR && p->context_len > 0)
        e.width = p->in_dim;
    e.all = b->n_seq * s->facts.context_len;
    e.first = dt_nn_mine_first(s, e.all);
    e.n = dt_nn_mine(s, e.all);
    return e;
}

static size_t share_bytes(const struct dt_stage *s, const struct dt_flow_share *e)
{
    return (size_t)(e->n * e->width) * dt_dtype_bytes(s->dtype);
}

static size_t begin_bytes(const struct dt_stage *s, const struct dt_batch *b)
{
    const struct dt_block *p = &s->module->blocks[0];
    struct dt_flow_share e = dt_flow_states(s, b);

    if (s->facts.conv_in >= 0)
        return s->facts.context_first == 0 ? 0 : share_bytes(s, &e);
    return (size_t)dt_nn_ops_of(p)->begin(p, b) * dt_dtype_bytes(s->dtype);
}

static size_t end_bytes(const struct dt_stage *s, const struct dt_batch *b)
{
    const struct dt_block *p = &s->module->blocks[s->module->n_blocks - 1];

    if (p->kind == DT_BLOCK_LM_HEAD)
        return (size_t)(b->n_cond * p->hidden) * dt_dtype_bytes(s->dtype);
    if (p->kind == DT_BLOCK_CONV)
        return 0;
    return running_bytes(s, b, s->module->n_blocks, true);
}

static int add(struct dt_flow *out, int n, enum dt_flow_kind kind, int skip, size_t bytes)
{
    if (bytes == 0 && kind != DT_FLOW_H)
        return n;
    out[n] = (struct dt_flow){kind, skip, bytes};
    return n + 1;
}

int dt_flow_list(const struct dt_stage *s, const struct dt_batch *b, int at,
                 struct dt_flow out[DT_FLOWS_MAX])
{
    const struct dt_nn_shape_facts *f = &s->facts;
    struct dt_flow_share states = dt_flow_states(s, b);
    size_t es = dt_dtype_bytes(s->dtype);
    int n = 0;

    if (at >= s->module->n_blocks)
        return add(out, 0, DT_FLOW_H, -1, end_bytes(s, b));
    n = add(out, n, DT_FLOW_H, -1, at == 0 ? begin_bytes(s, b) : running_bytes(s, b, at, false));
    if (f->conv_in < 0)
        return n;
    if (at >= f->time_first && at <= f->time_last)
        n = add(out, n, DT_FLOW_TIME, -1, (size_t)(b->n_seq * f->time_dim) * es);
    if (at >= f->context_first && at <= f->context_last)
        n = add(out, n, DT_FLOW_CONTEXT, -1,
                at == 0 ? share_bytes(s, &states)
                        : (size_t)(b->n_seq * f->context_len * f->context_dim) * es);
    for (int k = 0; k < f->n_skips; k++) {
        const struct dt_nn_skip *p = &f->skip[k];

        if (p->push + 1 < at && at <= p->pop)
            n = add(out, n, DT_FLOW_SKIP, k,
                    (size_t)(dt_nn_level_rows(b, p->level) * p->channels) * es);
    }
    return n;
}
