/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "module_util.h"

#include "base/hash.h"

const char *const mu_names[MU_N] = {
    "llama",     "qwen",         "gpt2",       "vit",      "vit-bare",      "unet",
    "unet-self", "moe",          "mixtral",    "llama3",   "linear",        "gpt2-idle",
    "clip",      "unet-sine",    "moe-gate",   "moe-bias", "moe-gate-bias", "mixtral-bias",
    "merge",     "merge-linear", "merge-mean", "qwen2-vl", "qwen2.5-vl",    "windows"};

enum mu_kind mu_base(enum mu_kind kind)
{
    switch ((int)kind) {
    case MU_LLAMA3:
        return MU_LLAMA;
    case MU_LINEAR:
        return MU_QWEN;
    case MU_GPT2_IDLE:
        return MU_GPT2;
    case MU_CLIP:
        return MU_VIT_BARE;
    case MU_UNET_SINE:
        return MU_UNET;
    case MU_MOE_GATE:
    case MU_MOE_BIAS:
    case MU_MOE_GATE_BIAS:
        return MU_MOE;
    case MU_MIXTRAL_BIAS:
        return MU_MIXTRAL;
    case MU_MERGE:
    case MU_MERGE_LINEAR:
    case MU_MERGE_MEAN:
    case MU_QWEN_VL:
    case MU_QWEN25_VL:
    case MU_WINDOWS:
        return MU_VIT;
    default:
        return kind;
    }
}

#define NEW(u, type, n) DT_ARENA_NEW(&(u)->arena, type, (n) + 1)

/* ---- shapes ---- */

static void shape_of(enum mu_kind kind, struct dt_shape *s, int *llm_hidden)
{
    *llm_hidden = 0;
    switch ((int)kind) {
    case MU_LLAMA:
    case MU_QWEN:
    case MU_GPT2:
    case MU_MOE:
    case MU_MIXTRAL:
        dt_shape_init(s, DT_SHAPE_LLM);
        s->layers = 2;
        s->hidden = kind == MU_GPT2 ? 12 : 20;
        s->ffn = 22;
        s->heads = s->kv_heads = kind == MU_GPT2 ? 3 : 4;
        s->kv_heads = kind == MU_LLAMA ? 2 : s->kv_heads;
        s->head_dim = kind == MU_GPT2 ? 4 : 6;
        s->vocab = 37;
        s->qkv_bias = s->qk_norm = kind == MU_QWEN;
        s->tied = kind == MU_QWEN || kind == MU_GPT2;
        s->n_experts = kind == MU_MOE ? 4 : kind == MU_MIXTRAL ? 6 : 0;
        s->top_k = kind == MU_MOE ? 2 : 3;
        s->expert_ffn = s->n_experts > 0 ? 10 : 0;
        s->shared_ffn = kind == MU_MOE ? 9 : 0;
        s->dense_first = s->mixtral_names = s->arith.top_k_raw = kind == MU_MIXTRAL;
        if (kind == MU_GPT2) {
            s->gated = false;
            s->bias = s->layernorm = true;
            s->positions = 16;
        }
        break;
    case MU_VIT:
    case MU_VIT_BARE:
        dt_shape_init(s, DT_SHAPE_ENCODER);
        s->layers = 2;
        s->hidden = 15;
        s->ffn = 21;
        s->heads = s->kv_heads = 3;
        s->head_dim = 5;
        s->patch = 3;
        s->positions = kind == MU_VIT ? 17 : 4;
        s->pre_norm = kind == MU_VIT_BARE;
        s->patch_bias = kind == MU_VIT;
        s->class_tokens = kind == MU_VIT ? 1 : 0;
        *llm_hidden = kind == MU_VIT ? 14 : 0;
        s->projector_hidden = 11;
        break;
    default:
        dt_shape_init(s, DT_SHAPE_UNET);
        s->unet.n_levels = 2;
        s->unet.channels[0] = kind == MU_UNET ? 8 : 6;
        s->unet.channels[1] = kind == MU_UNET ? 16 : 9;
        s->unet.attention[0] = kind == MU_UNET_SELF;
        s->unet.attention[1] = kind == MU_UNET;
        s->unet.depth[0] = 1;
        s->unet.depth[1] = kind == MU_UNET ? 2 : 1;
        s->unet.heads[0] = 2;
        s->unet.heads[1] = kind == MU_UNET ? 2 : 3;
        s->unet.res_blocks = kind == MU_UNET ? 2 : 1;
        s->unet.in_channels = s->unet.out_channels = 3;
        s->unet.time_dim = 10;
        s->unet.context_dim = 7;
        s->unet.context_len = 3;
        *llm_hidden = kind == MU_UNET ? 13 : 0;
    }
}

/* Far from the habits, so that whoever forgot to look fails. */
static void arithmetic_of(enum mu_kind kind, struct dt_shape *s)
{
    struct dt_module_arithmetic *a = &s->arith;

    switch ((int)kind) {
    case MU_LLAMA3: /* of three frequencies one stays, one is blended, one is stretched */
        *a = (struct dt_module_arithmetic){.norm_eps = 0.03,
                                           .activation = DT_ACTIVATION_QUICK_GELU,
                                           .rope = {500000, DT_ROPE_LLAMA3, 8, 0.01, 4, 40}};
        break;
    case MU_LINEAR:
        *a = (struct dt_module_arithmetic){.norm_eps = 1e-3,
                                           .rope = {700, DT_ROPE_LINEAR, 3, 0, 0, 0}};
        break;
    case MU_GPT2_IDLE:
        *a = (struct dt_module_arithmetic){.norm_eps = 0.02,
                                           .activation = DT_ACTIVATION_GELU,
                                           .attention_scale = 1,
                                           .scale_by_layer = true};
        break;
    case MU_CLIP:
        *a =
            (struct dt_module_arithmetic){.norm_eps = 1e-3, .activation = DT_ACTIVATION_QUICK_GELU};
        s->tower_names = DT_TOWER_CLIP;
        break;
    case MU_UNET_SINE:
        *a = (struct dt_module_arithmetic){.norm_eps = 0.01, .sine_first = true, .freq_shift = 1};
        s->unet.norm_groups = 2;
        break;
    default:
        break;
    }
}

/* What a kind has beside the arithmetic of the one whose widths it has. */
static void more_of(enum mu_kind kind, struct dt_shape *s)
{
    s->shared_gate = kind == MU_MOE_GATE || kind == MU_MOE_GATE_BIAS;
    s->bias |= kind == MU_MOE_BIAS || kind == MU_MOE_GATE_BIAS || kind == MU_MIXTRAL_BIAS;
    if (kind == MU_MOE_BIAS) {
        s->gated = false;
        s->arith.activation = DT_ACTIVATION_GELU;
    }
    if (kind == MU_MERGE) {
        s->merge = 2;
        s->projector_norm = DT_NORM_LAYERNORM;
        s->projector_bias = false;
    } else if (kind == MU_MERGE_LINEAR) {
        s->merge = 4;
        s->projector_norm = DT_NORM_RMSNORM;
        s->projector = DT_PROJ_LINEAR;
    } else if (kind == MU_MERGE_MEAN) {
        s->merge = 2;
        s->merge_mean = true;
        s->projector_norm = DT_NORM_RMSNORM;
        s->projector_bias = false;
        s->projector = DT_PROJ_LINEAR;
    } else if (kind == MU_WINDOWS) {
        s->window = 4;
    } else if (kind == MU_QWEN_VL || kind == MU_QWEN25_VL) {
        s->gated = kind == MU_QWEN25_VL;
        s->layernorm = kind == MU_QWEN_VL;
        s->window = s->gated ? 16 : 0;
        s->window_every = s->gated ? 2 : 0;
        s->merge = 2;
        s->channels = 6;
        s->head_dim = 8;
        s->positions = s->class_tokens = 0;
        s->patch_bias = false;
        s->grid_rope = true;
        s->tower_names = DT_TOWER_QWEN;
        s->arith = (struct dt_module_arithmetic){
            .norm_eps = 1e-3, .activation = DT_ACTIVATION_QUICK_GELU, .rope = {.theta = 30}};
    }
}

static double normal(struct mu *u, const char *what, int64_t i)
{
    return dt_rng_normal_at(u->seed, dt_hash_text(DT_HASH_START, what), (uint64_t)i);
}

/* Rounded to bf16, so that both precisions start from the same numbers. */
static double exact(double x)
{
    float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, 4);
    bits &= 0xffff0000u;
    memcpy(&f, &bits, 4);
    return (double)f;
}

static double *randoms(struct mu *u, const char *what, int64_t n, double scale)
{
    double *v = NEW(u, double, n);

    for (int64_t i = 0; i < n; i++)
        v[i] = exact(scale * normal(u, what, i));
    return v;
}

/* ---- microbatches ---- */

static void fill_llm(struct mu *u)
{
    /* three documents of 5, 1 and 6 rows, then padding; images inside the first and the third */
    static const int doc[14] = {0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, -1, -1};
    static const int in_row[3] = {1, 2, 8}, cond_row[4] = {3, 4, 11, 9};
    int *ids = NEW(u, int, 14), *target = NEW(u, int, 14);
    struct dt_rng r;

    dt_rng_init(&r, u->seed, 77);
    for (int i = 0; i < 14; i++) {
        ids[i] = (int)dt_rng_below(&r, 37);
        target[i] = doc[i] < 0 || i % 5 == 3 ? -1 : (int)dt_rng_below(&r, 37);
    }
    ids[1] = ids[2] = ids[8] = -1;
    u->llm = (struct ref_llm_in){14, 3, 4, doc, ids, target, in_row, cond_row, NULL, 0.37};
    u->max = (struct dt_batch_limits){.rows = 16, .seqs = 5, .in = 4, .cond = 5, .max_len = 12};
    u->ref.balance_scale = 0.11;
    u->n_in = 3 * u->m.blocks[0].hidden;
    u->n_out = 4 * u->m.blocks[0].hidden;
}

static void fill_encoder(struct mu *u)
{
    static const int sizes[2][3][2] = {{{7, 5}, {12, 12}, {3, 9}}, /* w, h in pixels */
                                       {{14, 10}, {24, 24}, {7, 18}}};
    int windows = u->kind == MU_QWEN25_VL; /* several, whole ones and parts */
    struct dt_rng r;
    int rows = 0, merged = dt_module_merged(&u->m), side = 3 * (u->m.merge > 1 ? u->m.merge : 1);

    dt_rng_init(&r, u->seed, 78);
    u->n_images = 3;
    for (int i = 0; i < 3; i++) {
        int w = sizes[windows][i][0], h = sizes[windows][i][1], n = 3 * w * h;

        memcpy(u->sizes[i], sizes[windows][i], sizeof(u->sizes[i]));
        u->px[i] = NEW(u, uint8_t, n);
        for (int k = 0; k < n; k++)
            u->px[i][k] = (uint8_t)dt_rng_below(&r, 256);
        rows += (w + side - 1) / side * ((h + side - 1) / side) * merged;
    }
    u->max = (struct dt_batch_limits){.rows = rows + 3 * merged, .seqs = 4};
    u->enc.rows = rows;
    u->n_out = (int64_t)rows / merged * (mu_base(u->kind) == MU_VIT ? 14 : 15);
}

struct patch { /* of an image of so many */
    int r, c, rows, cols;
};

/* Pixels by (channel, y, x), edges repeated; channels are the colours, or of each colour some moments. */
static void patch_pixels(const struct mu *u, int image, const struct patch *p, double *px)
{
    int w = u->sizes[image][0], h = u->sizes[image][1], n = 9 * u->m.blocks[0].channels;

    for (int k = 0; k < n; k++) {
        int y = 3 * p->r + k / 3 % 3, x = 3 * p->c + k % 3, colour = k * 3 / n;

        y = y < h ? y : h - 1;
        x = x < w ? x : w - 1;
        px[k] = u->px[image][(y * w + x) * 3 + colour] / 127.5 - 1;
    }
}

/* What patches are put in order by: image, window, square of merged ones, patch; each of the last three by row and column. */
enum { KEYS = 7 };
struct ordered {
    int key[KEYS], square; /* its number in the order of images, rows and columns */
    struct patch p;
};

static int by_keys(const void *a, const void *b)
{
    const struct ordered *x = a, *y = b;

    for (int i = 0; i < KEYS; i++)
        if (x->key[i] != y->key[i])
            return x->key[i] < y->key[i] ? -1 : 1;
    return 0;
}

static int window_side(const struct dt_module *m)
{
    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].window > 0)
            return (int)lround(sqrt(m->blocks[i].window));
    return 1 << 20;
}

static struct ordered *order_patches(struct mu *u)
{
    int merge = u->m.merge > 1 ? u->m.merge : 1, side = window_side(&u->m), at = 0, squares = 0;
    struct ordered *all = NEW(u, struct ordered, u->enc.rows);

    for (int i = 0; i < u->n_images; i++) {
        struct patch p = {.rows = (u->sizes[i][1] + 2) / 3, .cols = (u->sizes[i][0] + 2) / 3};

        p.rows += (merge - p.rows % merge) % merge;
        p.cols += (merge - p.cols % merge) % merge;
        for (p.r = 0; p.r < p.rows; p.r++)
            for (p.c = 0; p.c < p.cols; p.c++)
                all[at++] = (struct ordered){
                    {i, p.r / side, p.c / side, p.r / merge, p.c / merge, p.r, p.c},
                    squares + p.r / merge * (p.cols / merge) + p.c / merge,
                    p};
        squares += p.rows / merge * (p.cols / merge);
    }
    ck_assert_int_eq(at, u->enc.rows);
    qsort(all, (size_t)at, sizeof(*all), by_keys);
    return all;
}

/* The grid, stated anew. */
static void reference_patches(struct mu *u)
{
    int side = mu_base(u->kind) == MU_VIT ? 4 : 2, cls = mu_base(u->kind) == MU_VIT;
    int merged = dt_module_merged(&u->m), width = 9 * u->m.blocks[0].channels;
    const struct ordered *o = order_patches(u);
    int *image = NEW(u, int, u->enc.rows), *pos = NEW(u, int, u->enc.rows);
    int *window = NEW(u, int, u->enc.rows), *square = NEW(u, int, u->enc.rows);
    int(*cell)[2] = (int(*)[2])NEW(u, int, 2 * u->enc.rows);
    double *px = NEW(u, double, u->enc.rows *width);

    for (int i = 0; i < u->enc.rows; i++) {
        const struct patch *p = &o[i].p;

        image[i] = o[i].key[0];
        window[i] =
            i == 0 ? 0 : window[i - 1] + (memcmp(o[i].key, o[i - 1].key, 3 * sizeof(int)) != 0);
        square[o[i].square] = i / merged;
        cell[i][0] = p->r;
        cell[i][1] = p->c;
        pos[i] = cls + (int)floor((p->r + 0.5) / p->rows * side) * side +
                 (int)floor((p->c + 0.5) / p->cols * side);
        patch_pixels(u, image[i], p, px + i * width);
    }
    u->enc =
        (struct ref_encoder_in){u->enc.rows, image, pos, px, (const int(*)[2])cell, window, square};
}

static void fill_unet(struct mu *u)
{
    static const int sizes[4][2] = {{4, 6}, {4, 6}, {2, 2}, {6, 4}}; /* h, w */
    static const double t[4] = {3, 517, 999, 0}, alpha[4] = {0.93, 0.51, 0.11, 0.998};
    double *sigma = NEW(u, double, 4), *ab = NEW(u, double, 4);
    int rows = 0, width = mu_base(u->kind) == MU_UNET ? 13 : 7;

    for (int i = 0; i < 4; i++) {
        memcpy(u->sizes[i], sizes[i], sizeof(sizes[i]));
        rows += sizes[i][0] * sizes[i][1];
        ab[i] = (double)(float)alpha[i];
        sigma[i] = (double)(float)sqrt(1 - alpha[i] * alpha[i]);
    }
    u->n_images = 4;
    u->max = (struct dt_batch_limits){.rows = rows + 16, .seqs = 5};
    u->n_in = (int64_t)4 * 3 * width;
    u->gen = (struct ref_unet_in){
        4,   (const int(*)[2])u->sizes, randoms(u, "x0", rows * 3, 1), NULL, t, ab, sigma, NULL,
        0.41};
}

/* ---- opening: names and shapes are asked of a stage of the whole module ---- */

static double start_value(struct mu *u, const struct dt_param *p, int64_t i)
{
    double fan = p->n_dims > 1 ? (double)p->n / (double)p->shape[p->transpose ? 1 : 0] : 1;
    double x = normal(u, p->name, i);

    if (p->n_dims == 1)
        return (p->init == DT_INIT_ONE ? 1 : 0) + 0.2 * x;
    return (strstr(p->name, "embed") || strstr(p->name, "wte") || strstr(p->name, "wpe"))
               ? 0.8 * x
               : 1.1 * x / sqrt(fan);
}

static void take_names(struct mu *u)
{
    struct dt_device_options opt = {.threads = 1};
    struct dt_stage_spec spec = {.module = &u->m, .last = u->m.n_blocks, .max = u->max};
    struct dt_device *dev = NULL;
    struct dt_stage *s = NULL;
    struct dt_error err;
    const struct dt_param *p;

    dt_assert_ok(dt_test_device_open(&opt, &err, &dev), err);
    dt_assert_ok(dt_stage_new(dev, &spec, &err, &s), err);
    p = dt_stage_params(s, &u->n);
    u->t = NEW(u, struct mu_tensor, u->n);
    u->ref.tensors = NEW(u, struct ref_tensor, u->n);
    for (int i = 0; i < u->n; i++) {
        struct mu_tensor *t = &u->t[i];

        memcpy(t->name, p[i].name, sizeof(t->name));
        t->n = (int64_t)p[i].n;
        t->transpose = p[i].transpose;
        t->rows = p[i].shape[p[i].transpose ? 1 : 0];
        t->cols = t->n / t->rows;
        t->v = NEW(u, double, t->n);
        t->g = NEW(u, double, t->n);
        for (int64_t k = 0; k < t->n; k++)
            t->v[k] = exact(start_value(u, &p[i], k));
        u->ref.tensors[i] = (struct ref_tensor){t->name, t->n, t->v};
    }
    u->ref.n_tensors = u->n;
    dt_stage_free(s);
    dev->close(dev);
}

void mu_open(struct mu *u, enum mu_kind kind, uint64_t seed)
{
    mu_open_heads(u, kind, seed, 0, 0);
}

void mu_open_heads(struct mu *u, enum mu_kind kind, uint64_t seed, int heads, int kv_heads)
{
    struct dt_shape shape;
    struct dt_error err;
    int llm_hidden;

    memset(u, 0, sizeof(*u));
    u->kind = kind;
    u->seed = seed;
    shape_of(mu_base(kind), &shape, &llm_hidden);
    arithmetic_of(kind, &shape);
    more_of(kind, &shape);
    if (heads > 0) {
        shape.heads = shape.unet.heads[0] = shape.unet.heads[1] = heads;
        shape.kv_heads = kv_heads;
    }
    dt_assert_ok(dt_shape_build(&shape, llm_hidden, &u->arena, &err, &u->m), err);
    snprintf(u->m.name, sizeof(u->m.name), "%s", mu_names[kind]);
    u->ref.m = &u->m;
    u->ref.gpt2 = mu_base(kind) == MU_GPT2;
    ref_arithmetic(&u->ref);
    if (u->m.role == DT_ROLE_LLM) {
        fill_llm(u);
    } else if (u->m.role == DT_ROLE_ENCODER) {
        fill_encoder(u);
        reference_patches(u);
    } else {
        fill_unet(u);
    }
    u->in = randoms(u, "in", u->n_in, 0.7);
    u->weights = randoms(u, "objective", u->n_out, 0.6);
    u->out = NEW(u, double, u->n_out);
    u->llm.features = u->gen.states = u->in;
    take_names(u);
    if (u->m.role == DT_ROLE_GENERATOR) { /* the kernel's noise: a stream per image */
        double *noise;
        int at = 0;

        noise = NEW(u, double, 3 * u->max.rows);
        for (int i = 0; i < u->n_images; i++) {
            int n = 3 * u->sizes[i][0] * u->sizes[i][1];

            for (int k = 0; k < n; k++)
                noise[at++] = (double)(float)dt_rng_normal_at(u->seed, (uint64_t)(MU_STREAM + i),
                                                              (uint64_t)k);
        }
        u->gen.noise = noise;
    }
}

void mu_close(struct mu *u)
{
    dt_arena_free(&u->arena);
}

double mu_reference(struct mu *u)
{
    double f = 0;

    if (u->m.role == DT_ROLE_LLM)
        f = ref_llm(&u->ref, &u->llm, u->out, NULL);
    else if (u->m.role == DT_ROLE_ENCODER)
        ref_encoder(&u->ref, &u->enc, u->out);
    else
        f = ref_unet(&u->ref, &u->gen, NULL);
    for (int64_t i = 0; i < u->n_out; i++)
        f += u->out[i] * u->weights[i];
    return f;
}
