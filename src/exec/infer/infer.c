/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Stages for inference, and running sequences through them. */
#include "base/finite.h"
#include "base/mem.h"
#include "core/model/samples_build.h"
#include "exec/data/document.h"
#include "exec/infer/infer_impl.h"
#include "exec/modules/ferry.h"

#include <limits.h>
#include <string.h>

enum { BATCH = 32, IMAGE_TOKENS_MAX = 4096 };

/* ---- stages ---- */

static const struct dt_module *module_of(const struct dt_infer *x, const struct dt_infer_part *u)
{
    return &x->o.model->modules[u->module];
}

static enum dt_status make_stage(const struct dt_infer *x, const struct dt_infer_part *u,
                                 const struct dt_batch_limits *max, struct dt_error *err,
                                 struct dt_stage **out)
{
    const struct dt_module *m = module_of(x, u);
    unsigned char *none = dt_calloc((size_t)m->n_blocks + 1, 1);
    struct dt_stage_spec spec = {.model = x->o.model,
                                 .module = m,
                                 .last = m->n_blocks,
                                 .dtype = x->o.dtype,
                                 .trained = none,
                                 .max = *max};
    enum dt_status st;

    if (!none)
        return dt_error_nomem(err, "a stage");
    st = dt_stage_new(x->o.device, &spec, err, out);
    dt_free(none);
    return st;
}

static bool larger(int64_t *have, int64_t need)
{
    if (need <= *have)
        return false;
    *have = need;
    return true;
}

/* A larger stage takes over the parameters of the one before it. */
static enum dt_status replace_stage(struct dt_infer *x, struct dt_infer_part *u,
                                    const struct dt_batch_limits *max, struct dt_error *err)
{
    const struct dt_device *dev = x->o.device;
    struct dt_stage *s;
    size_t bytes;

    DT_TRY(make_stage(x, u, max, err, &s));
    bytes = dt_stage_param_floats(s) * sizeof(float);
    if (u->stage)
        dev->copy(x->q, dt_stage_master(s), dt_stage_master(u->stage), bytes, DT_COPY_ON_DEVICE);
    else
        dev->zero(x->q, dt_stage_master(s), bytes);
    dt_stage_changed(x->q, s, 0, module_of(x, u)->n_blocks);
    if (dev->queue_sync(x->q, err) != DT_OK) {
        dt_stage_free(s);
        return err ? err->status : DT_ERR_INTERNAL;
    }
    dt_stage_free(u->stage);
    u->stage = s;
    return DT_OK;
}

enum dt_status dt_infer_room(struct dt_infer *x, struct dt_infer_part *u,
                             const struct dt_batch_limits *need, struct dt_error *err)
{
    struct dt_batch_limits max = u->max;
    struct dt_batch *b;
    bool grown = !u->stage;

    grown |= larger(&max.rows, need->rows);
    grown |= larger(&max.seqs, need->seqs);
    grown |= larger(&max.in, need->in);
    grown |= larger(&max.cond, need->cond);
    grown |= larger(&max.max_len, need->max_len);
    if (!grown)
        return DT_OK;
    DT_TRY(dt_batch_new(x->o.device, module_of(x, u), &max, err, &b));
    dt_batch_free(u->batch);
    u->batch = b;
    DT_TRY(replace_stage(x, u, &max, err));
    u->max = max;
    return DT_OK;
}

enum dt_status dt_infer_forward(struct dt_infer *x, struct dt_infer_part *u, const void *in,
                                struct dt_error *err)
{
    struct dt_nn_run r = {.batch = u->batch, .in = in};
    size_t bytes;

    u->batch->train = false;
    x->o.device->settle(x->o.device);
    DT_TRY(dt_batch_upload(x->q, u->batch, err));
    bytes = dt_stage_out_bytes(u->stage, u->batch);
    if (bytes > u->out_bytes) {
        x->o.device->free(x->o.device, u->out);
        u->out = NULL;
        u->out_bytes = 0;
        DT_TRY(x->o.device->alloc(x->o.device, bytes, err, &u->out));
        u->out_bytes = bytes;
    }
    r.out = bytes > 0 ? u->out : NULL;
    dt_stage_forward(x->q, u->stage, &r, 0, module_of(x, u)->n_blocks);
    return x->o.device->queue_sync(x->q, err);
}

/* ---- the model ---- */

/* Which module plays the role; more than one cannot be fed (exec/program/batching.h). */
static enum dt_status find(const struct dt_model *m, enum dt_module_role role, struct dt_error *err,
                           struct dt_infer_part *u)
{
    u->module = -1;
    for (int i = 0; i < m->n_modules; i++) {
        if (m->modules[i].role != role)
            continue;
        if (u->module >= 0 ||
            (role == DT_ROLE_GENERATOR && m->modules[i].modality != DT_MODALITY_IMAGE))
            return dt_error_set(err, DT_ERR_INPUT,
                                "module \"%s\" cannot be run: one encoder, one LLM, one generator "
                                "of images",
                                m->modules[i].name);
        u->module = i;
    }
    return DT_OK;
}

enum dt_status dt_infer_new(const struct dt_infer_options *o, struct dt_error *err,
                            struct dt_infer **out)
{
    struct dt_infer *x = dt_calloc(1, sizeof(*x));
    struct dt_infer_part *parts[3];
    static const struct dt_batch_limits least = {.rows = 1, .seqs = 1, .max_len = 1};
    enum dt_status st;

    if (!x)
        return dt_error_nomem(err, "a model");
    x->o = *o;
    x->o.batch = o->batch > 0 ? o->batch : BATCH;
    x->o.image_tokens = o->image_tokens > 0 ? o->image_tokens : IMAGE_TOKENS_MAX;
    x->ids = dt_tokenizer_special(o->tokenizer);
    st = find(o->model, DT_ROLE_ENCODER, err, &x->encoder);
    if (st == DT_OK)
        st = find(o->model, DT_ROLE_LLM, err, &x->llm);
    if (st == DT_OK)
        st = find(o->model, DT_ROLE_GENERATOR, err, &x->generator);
    if (st == DT_OK && x->generator.module >= 0 && !o->diffusion)
        st = dt_error_set(err, DT_ERR_INTERNAL, "a generator without a noise schedule");
    if (st == DT_OK)
        st = o->device->queue_new(o->device, false, err, &x->q);
    parts[0] = &x->encoder;
    parts[1] = &x->llm;
    parts[2] = &x->generator;
    for (int i = 0; i < 3 && st == DT_OK; i++)
        if (parts[i]->module >= 0) { /* parameters have a place before the first batch */
            st = replace_stage(x, parts[i], &least, err);
            parts[i]->max = (struct dt_batch_limits){0};
        }
    if (st != DT_OK) {
        dt_infer_free(x);
        return st;
    }
    *out = x;
    return DT_OK;
}

static void free_part(struct dt_infer *x, struct dt_infer_part *u)
{
    dt_stage_free(u->stage);
    dt_batch_free(u->batch);
    x->o.device->free(x->o.device, u->out);
}

void dt_infer_free(struct dt_infer *x)
{
    if (!x)
        return;
    free_part(x, &x->encoder);
    free_part(x, &x->llm);
    free_part(x, &x->generator);
    x->o.device->queue_free(x->q);
    dt_free(x->best);
    dt_free(x->nll);
    dt_free(x);
}

static struct dt_infer_part *part(struct dt_infer *x, int module)
{
    return x->encoder.module == module     ? &x->encoder
           : x->generator.module == module ? &x->generator
                                           : &x->llm;
}

struct loading { /* of a module */
    struct dt_ferry *ferry;
    struct dt_stage *stage;
};

static enum dt_status put(void *arg, enum dt_param_what what, int i, const float *values,
                          struct dt_error *err)
{
    const struct loading *l = arg;
    int n;
    const struct dt_param *p = &dt_stage_params(l->stage, &n)[i];

    (void)what; /* there are no moments */
    return dt_ferry_to(l->ferry, dt_stage_master(l->stage) + p->at, values, p->n * sizeof(*values),
                       err);
}

enum dt_status dt_infer_load(struct dt_infer *x, const char *path, struct dt_error *err,
                             struct dt_ckpt_state *state)
{
    struct dt_ckpt_part parts[DT_MAX_MODULES] = {{0}};
    struct loading loading[DT_MAX_MODULES];
    struct dt_ferry ferry;
    int n = x->o.model->n_modules;
    enum dt_status st;

    for (int i = 0; i < n; i++) {
        loading[i] = (struct loading){&ferry, part(x, i)->stage};
        parts[i] = (struct dt_ckpt_part){
            .module = x->o.model->modules[i].name, .put = put, .arg = &loading[i]};
        parts[i].params = dt_stage_params(loading[i].stage, &parts[i].n_params);
    }
    DT_TRY(dt_ferry_open(&ferry, x->o.device, x->q, 0, err));
    st = dt_ckpt_load(path, parts, n, false, err, state);
    dt_ferry_close(&ferry);
    DT_TRY(st);
    for (int i = 0; i < n; i++)
        dt_stage_changed(x->q, part(x, i)->stage, 0, x->o.model->modules[i].n_blocks);
    return x->o.device->queue_sync(x->q, err);
}

enum dt_status dt_infer_init(struct dt_infer *x, uint64_t seed, struct dt_error *err)
{
    for (int i = 0; i < x->o.model->n_modules; i++)
        dt_stage_init(x->q, part(x, i)->stage, seed);
    return x->o.device->queue_sync(x->q, err);
}

struct dt_stage *dt_infer_stage(const struct dt_infer *x, int module)
{
    return x->encoder.module == module     ? x->encoder.stage
           : x->generator.module == module ? x->generator.stage
                                           : x->llm.stage;
}

bool dt_infer_can_caption(const struct dt_infer *x)
{
    return x->encoder.module >= 0;
}

bool dt_infer_can_draw(const struct dt_infer *x)
{
    return x->generator.module >= 0;
}

/* ---- sequences ---- */

/* Tokens of what the LLM reads. */
static int item_tokens(const struct dt_module *enc, const struct dt_sequence_item *it)
{
    return (int)(it->sound ? dt_sample_sound_patches(it->h, it->w, enc->patch)
                           : dt_sample_image_tokens(it->w, it->h, dt_module_token_pixels(enc)));
}

int dt_infer_positions(const struct dt_infer *x)
{
    int table = module_of(x, &x->llm)->blocks[0].max_pos;

    return table > 0 ? table : INT_MAX;
}

static enum dt_status seen_image(const struct dt_infer *x, const struct dt_sequence_item *it,
                                 enum dt_sequence_task task, struct dt_error *err,
                                 struct dt_document_image *out)
{
    const struct dt_module *enc = x->encoder.module >= 0 ? module_of(x, &x->encoder) : NULL;
    size_t bytes = dt_sequence_bytes(it->sound, it->w, it->h);

    if (task == DT_TASK_CAPTION && it->sound != (enc->mel_bins > 0))
        return dt_error_set(err, DT_ERR_INPUT, "the model's encoder takes %s in, not %s",
                            it->sound ? "images" : "sounds", it->sound ? "sounds" : "images");
    *out = (struct dt_document_image){.w = it->w, .h = it->h};
    if (task == DT_TASK_CAPTION)
        out->tokens = item_tokens(enc, it);
    if (out->tokens > x->o.image_tokens)
        return dt_error_set(err, DT_ERR_INPUT, "an image or sound of %d tokens; at most %d",
                            out->tokens, x->o.image_tokens);
    if (!it->px)
        return DT_OK;
    out->px = dt_malloc(bytes);
    if (!out->px)
        return dt_error_nomem(err, "a sequence");
    memcpy(out->px, it->px, bytes);
    return DT_OK;
}

enum dt_status dt_infer_sequence(const struct dt_infer *x, const struct dt_infer_seen *seen,
                                 enum dt_sequence_task task, const int32_t *text, size_t n,
                                 int room, struct dt_error *err, struct dt_sequence **out)
{
    struct dt_document d = {
        .task = task, .sound = seen->items[0].sound, .n_images = seen->n, .label = -1};
    enum dt_status st = DT_OK;
    struct dt_sequence *s = NULL;

    d.text.id = (int32_t *)(uintptr_t)text; /* only read */
    d.text.n = n;
    d.image = dt_calloc((size_t)seen->n, sizeof(*d.image));
    if (!d.image)
        return dt_error_nomem(err, "a sequence");
    for (int i = 0; i < seen->n && st == DT_OK; i++)
        st = seen_image(x, &seen->items[i], task, err, &d.image[i]);
    if (st == DT_OK && dt_document_tokens(&d) > dt_infer_positions(x))
        st = dt_error_set(err, DT_ERR_INPUT,
                          "%d tokens are too many for module %s, which has learned %d positions",
                          dt_document_tokens(&d), module_of(x, &x->llm)->name,
                          dt_infer_positions(x));
    if (st == DT_OK) {
        s = dt_sequence_new(dt_document_tokens(&d) + room, 0);
        if (!s || dt_sequence_append(s, &d, x->ids))
            st = dt_error_nomem(err, "a sequence");
    }
    for (int i = 0; i < seen->n && st != DT_OK; i++)
        dt_free(d.image[i].px);
    dt_free(d.image);
    if (st != DT_OK) {
        dt_sequence_free(s);
        return st;
    }
    *out = s;
    return DT_OK;
}

enum dt_status dt_infer_encode(struct dt_infer *x, const struct dt_sequence *const *seqs, int n,
                               struct dt_error *err)
{
    struct dt_infer_part *u = &x->encoder;
    struct dt_batch_limits need;

    if (u->module < 0)
        return DT_OK;
    dt_batching_limits(x->o.model, u->module, seqs, n, NULL, &need);
    if (need.rows == 0)
        return DT_OK;
    DT_TRY(dt_infer_room(x, u, &need, err));
    DT_TRY(dt_batching_fill(x->o.model, u->module, seqs, n, u->batch, err));
    return dt_infer_forward(x, u, NULL, err);
}

enum dt_status dt_infer_check(const struct dt_infer *x, const struct dt_infer_part *u,
                              const float *v, size_t n, struct dt_error *err)
{
    struct dt_nonfinite bad = {.nan = 0};
    char text[128];

    dt_nonfinite_count(v, n, &bad);
    if (dt_nonfinite_all(&bad) == 0)
        return DT_OK;
    return dt_error_set(err, DT_ERR_DIVERGED,
                        "module %s: %s among what it gives; its weights are too large for this "
                        "input%s, so take an older checkpoint",
                        module_of(x, u)->name, dt_nonfinite_text(&bad, n, text, sizeof(text)),
                        x->o.dtype == DT_BF16 ? " or this precision" : "");
}

/* Rows without a target have a loss of 0. */
enum dt_status dt_infer_read(struct dt_infer *x, const struct dt_sequence *const *seqs, int n,
                             struct dt_error *err)
{
    struct dt_infer_part *u = &x->llm;
    struct dt_batch_limits need;
    size_t rows;

    dt_batching_limits(x->o.model, u->module, seqs, n, NULL, &need);
    DT_TRY(dt_infer_room(x, u, &need, err));
    DT_TRY(dt_batching_fill(x->o.model, u->module, seqs, n, u->batch, err));
    rows = (size_t)u->batch->rows;
    if (dt_grow((void **)&x->best, &x->cap_best, rows + 1, sizeof(*x->best)) ||
        dt_grow((void **)&x->nll, &x->cap_nll, rows + 1, sizeof(*x->nll)))
        return dt_error_nomem(err, "tokens");
    DT_TRY(dt_infer_forward(x, u, u->batch->n_in > 0 ? x->encoder.out : NULL, err));
    x->o.device->copy(x->q, x->best, u->batch->dev.best, rows * sizeof(*x->best), DT_COPY_TO_HOST);
    x->o.device->copy(x->q, x->nll, u->batch->dev.nll, rows * sizeof(*x->nll), DT_COPY_TO_HOST);
    DT_TRY(x->o.device->queue_sync(x->q, err));
    return dt_infer_check(x, u, x->nll, rows, err);
}
