/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A model at work: what was learnt by heart is said again, through a checkpoint; losses are the
 * executor's; drawing follows the sampler whatever the batch. */
#include "exec/data/document.h"
#include "exec/infer/infer.h"
#include "exec_fixture.h"

#include <math.h>
#include <unistd.h>

/* Vocabulary of the byte tokenizer. */
#define LLM "llm: {kind: llm, layers: 2, hidden: 48, ffn: 96, heads: 4, kv_heads: 2, vocab: 260}"
#define ENCODER                                                                                    \
    "encoder: {kind: encoder, layers: 1, hidden: 32, ffn: 64, heads: 2, patch: 4, positions: 17}"
#define MODULES ENCODER ", " LLM ", " EF_UNET

enum { SIDE = 8, N = 5 };
static const char *const truth[N] = {"a boot", "two red bags", "shirt", "an old coat, wide", "b"};

static struct dt_tokenizer *tok;
static int frames = 1; /* of what is captioned; all but the last are the same in all documents */

static struct dt_image picture(int i)
{
    struct dt_image img;
    struct dt_error err = {0};
    struct dt_rng r;

    dt_assert_ok(dt_image_new(SIDE, SIDE, &err, &img), err);
    dt_rng_init(&r, 77, (uint64_t)i);
    for (int k = 0; k < SIDE * SIDE; k++)
        memset(img.px + 3 * k, (int)dt_rng_below(&r, 256), 3);
    return img;
}

static struct dt_sequence_item seen(const struct dt_image *img)
{
    return (struct dt_sequence_item){.w = img->w, .h = img->h, .px = img->px};
}

static struct dt_sequence *sequence(int i, enum dt_sequence_task task)
{
    struct dt_document_image image[2] = {{0}};
    int n = task == DT_TASK_CAPTION ? frames : 1;
    struct dt_document d = {.task = task, .image = image, .n_images = n, .label = i};
    struct dt_sequence *s = dt_sequence_new(48, i);
    struct dt_error err = {0};

    ck_assert_ptr_nonnull(s);
    for (int k = 0; k < n; k++)
        image[k] = (struct dt_document_image){.w = SIDE,
                                              .h = SIDE,
                                              .tokens = task == DT_TASK_CAPTION ? 4 : 0,
                                              .px = picture(k < n - 1 ? N : i).px};
    dt_assert_ok(dt_tokenizer_encode(tok, truth[i], strlen(truth[i]), false, &err, &d.text), err);
    ck_assert_int_eq(dt_sequence_append(s, &d, dt_tokenizer_special(tok)), 0);
    dt_tokenizer_ids_free(&d.text);
    return s;
}

static void setup(struct exec_fixture *f)
{
    static const struct ef_layout one[] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    struct dt_error err = {0};

    dt_assert_ok(dt_tokenizer_bytes(&err, &tok), err);
    ef_init(f, MODULES, 1);
    for (int i = 0; i < N; i++) {
        f->seqs[2 * i] = sequence(i, DT_TASK_CAPTION);
        f->seqs[2 * i + 1] = sequence(i, DT_TASK_GENERATE);
    }
    f->n_seqs = 2 * N;
    ef_plan(f, 5, one, true, DT_SCHED_1F1B);
    ef_open(f);
}

static struct dt_infer *infer(struct exec_fixture *f, int batch)
{
    struct dt_infer_options o = {.device = f->dev,
                                 .model = f->model,
                                 .tokenizer = tok,
                                 .diffusion = &f->diffusion,
                                 .batch = batch};
    struct dt_infer *x;

    dt_assert_ok(dt_infer_new(&o, &f->err, &x), f->err);
    return x;
}

static void done(struct exec_fixture *f)
{
    ef_free(f);
    dt_tokenizer_free(tok);
}

/* What the executor holds, saved. */
static void save(struct exec_fixture *f, const char *dir, char *path)
{
    struct dt_ckpt_part parts[3];
    struct dt_ckpt_state state = {.step = 1};
    struct dt_ckpt_options opt = {.keep = 1};
    struct dt_exec_whole w;

    dt_assert_ok(dt_exec_share_new(f->x, &f->err, &w), f->err);
    dt_assert_ok(dt_exec_collect(f->x, &w, &f->err), f->err);
    ck_assert_int_eq(w.n, 3);
    for (int m = 0; m < 3; m++)
        parts[m] = (struct dt_ckpt_part){.module = f->model->modules[m].name,
                                         .params = w.part[m].params,
                                         .n_params = w.part[m].n_params,
                                         .master = w.part[m].master,
                                         .exp_avg = w.part[m].exp_avg,
                                         .exp_avg_sq = w.part[m].exp_avg_sq,
                                         .trained = w.part[m].trained};
    dt_assert_ok(dt_ckpt_save(dir, parts, 3, &state, &opt, &f->err, path, 256), f->err);
    dt_exec_whole_free(&w);
}

START_TEST(losses_are_the_executors)
{
    struct exec_fixture f;
    struct dt_infer_losses sum = {0};
    struct dt_exec_result r;
    struct dt_infer *x;

    setup(&f);
    x = infer(&f, 32);
    dt_assert_ok(dt_infer_init(x, 42, &f.err), f.err); /* the executor's seed */
    r = ef_step(&f, 1);                                /* its losses are from before the step */
    dt_assert_ok(
        dt_infer_add_losses(x, (const struct dt_sequence *const *)f.seqs, 4, 9, 0, &f.err, &sum),
        f.err);
    dt_assert_ok(dt_infer_add_losses(x, (const struct dt_sequence *const *)f.seqs + 4, f.n_seqs - 4,
                                     9, 0, &f.err, &sum),
                 f.err);
    ck_assert_int_eq(sum.targets, r.targets);
    ck_assert_int_eq(sum.images, N);
    ck_assert_double_eq_tol(sum.nll / (double)sum.targets, r.loss_text, 2e-5);
    ck_assert_double_gt(sum.mse / N, 0.2); /* a model that knows nothing */
    dt_infer_losses_free(&sum);
    dt_infer_free(x);
    done(&f);
}
END_TEST

START_TEST(says_what_it_learnt_by_heart)
{
    char dir[] = "/tmp/dt-infer-XXXXXX", path[256], cmd[64];
    struct dt_image images[N], first = picture(N);
    struct dt_sequence_item items[N][2];
    struct dt_infer_seen shown[N];
    struct exec_fixture f;
    struct dt_exec_result r = {0};
    int64_t step = 0;

    frames = 1 + _i;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    setup(&f);
    /* Without an image nobody knows which of N captions comes: log(N) nats in each of N documents
     * is what cannot be learnt. */
    while (++step <= 500 && (step == 1 || r.loss_text > N * log(N) / (double)r.targets + 0.003))
        r = ef_step(&f, step);
    ck_assert_double_lt(r.loss_text, N * log(N) / (double)r.targets + 0.003);
    save(&f, dir, path);
    for (int i = 0; i < N; i++) {
        images[i] = picture(i);
        items[i][0] = seen(frames > 1 ? &first : &images[i]);
        items[i][1] = seen(&images[i]);
        shown[i] = (struct dt_infer_seen){items[i], frames};
    }
    for (int batch = 1; batch <= 3; batch += 2) {
        struct dt_infer *x = infer(&f, batch);
        struct dt_ckpt_state state;
        char *texts[N];

        dt_assert_ok(dt_infer_load(x, path, &f.err, &state), f.err);
        ck_assert_int_eq(state.step, 1);
        dt_assert_ok(dt_infer_caption(x, shown, N, 30, &f.err, texts), f.err);
        for (int i = 0; i < N; i++) {
            ck_assert_str_eq(texts[i], truth[i]);
            dt_free(texts[i]);
        }
        dt_assert_ok(dt_infer_caption(x, shown, N, 4, &f.err, texts), f.err);
        for (int i = 0; i < N; i++) { /* cut off */
            ck_assert_uint_eq(strlen(texts[i]), strlen(truth[i]) < 4 ? strlen(truth[i]) : 4);
            dt_free(texts[i]);
        }
        dt_infer_free(x);
    }
    for (int i = 0; i < N; i++)
        dt_image_free(&images[i]);
    dt_image_free(&first);
    frames = 1;
    done(&f);
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}
END_TEST

/* ---- drawing ---- */

START_TEST(a_model_of_zeros_draws_its_noise)
{
    struct dt_infer_draw_options o = {.w = SIDE, .h = SIDE, .steps = 7, .seed = 5, .clip = 1};
    float v[SIDE * SIDE], zero[SIDE * SIDE] = {0};
    struct dt_image img, want;
    struct exec_fixture f;
    struct dt_infer *x;
    struct dt_rng r;

    setup(&f);
    x = infer(&f, 4);
    dt_assert_ok(dt_infer_draw(x, truth, 1, &o, &f.err, &img), f.err);
    dt_rng_init(&r, 5, 0);
    for (int i = 0; i < SIDE * SIDE; i++)
        v[i] = (float)dt_rng_normal(&r);
    for (int k = 6; k >= 0; k--) /* 999, 832, ..., 0 */
        dt_diffusion_ddim_step(&f.diffusion, k * 999 / 6, k > 0 ? (k - 1) * 999 / 6 : -1, 1, 0,
                               SIDE * SIDE, zero, NULL, v);
    dt_assert_ok(dt_image_new(SIDE, SIDE, &f.err, &want), f.err);
    dt_batching_pixels(&f.model->modules[2], v, SIDE, SIDE, want.px);
    ck_assert_int_eq(img.w, SIDE);
    ck_assert_mem_eq(img.px, want.px, SIDE * SIDE * 3);
    dt_image_free(&img);
    dt_image_free(&want);
    dt_infer_free(x);
    done(&f);
}
END_TEST

START_TEST(drawing_does_not_depend_on_the_batch)
{
    struct dt_infer_draw_options o = {.w = SIDE, .h = SIDE, .steps = 5, .seed = 8, .clip = 1};
    struct dt_image a[N], b[N];
    struct exec_fixture f;
    int differ = 0;

    setup(&f);
    for (int64_t step = 1; step <= 5; step++)
        ef_step(&f, step);
    for (int k = 0; k < 2; k++) {
        struct dt_infer *x = infer(&f, k ? 2 : 32);

        for (int m = 0; m < 3; m++) {
            struct dt_stage *to = dt_infer_stage(x, m), *from = dt_exec_stage(f.x, m, 0, 0);

            memcpy(dt_test_host(dt_stage_master(to)), dt_test_host(dt_stage_master(from)),
                   dt_stage_param_floats(to) * sizeof(float));
        }
        dt_assert_ok(dt_infer_draw(x, truth, N, &o, &f.err, k ? b : a), f.err);
        dt_infer_free(x);
    }
    for (int i = 0; i < N; i++) {
        for (int p = 0; p < SIDE * SIDE * 3; p++)
            ck_assert_int_le(abs(a[i].px[p] - b[i].px[p]), 1);
        differ += i > 0 && memcmp(a[i].px, a[0].px, SIDE * SIDE * 3) != 0;
    }
    ck_assert_int_eq(differ, N - 1);
    for (int i = 0; i < N; i++) {
        dt_image_free(&a[i]);
        dt_image_free(&b[i]);
    }
    done(&f);
}
END_TEST

/* Guidance follows its formula: the text against itself changes nothing, one step from the noise
 * is linear in it. */
START_TEST(guidance)
{
    static const char *const nothing[] = {"", ""};
    const double strength[] = {0, 1, 41, 81};
    struct dt_infer_draw_options o = {.w = SIDE, .h = SIDE, .steps = 4, .seed = 8, .clip = 1};
    struct dt_image a[2], b[2], one[4];
    struct exec_fixture f;
    struct dt_infer *x;
    int moved = 0;

    setup(&f);
    for (int64_t step = 1; step <= 5; step++)
        ef_step(&f, step);
    /* so that an image of the last timestep is not all noise, nor its estimate all out of range */
    f.diffusion.alpha_bar[f.diffusion.steps - 1] = 0.8;
    x = infer(&f, 1); /* batches of one: another batch for the second image */
    for (int m = 0; m < 3; m++) {
        struct dt_stage *to = dt_infer_stage(x, m), *from = dt_exec_stage(f.x, m, 0, 0);

        memcpy(dt_test_host(dt_stage_master(to)), dt_test_host(dt_stage_master(from)),
               dt_stage_param_floats(to) * sizeof(float));
    }
    dt_assert_ok(dt_infer_draw(x, nothing, 2, &o, &f.err, a), f.err);
    o.guidance = 4;
    dt_assert_ok(dt_infer_draw(x, nothing, 2, &o, &f.err, b), f.err);
    for (int i = 0; i < 2; i++)
        for (int p = 0; p < SIDE * SIDE * 3; p++)
            ck_assert_int_le(abs(a[i].px[p] - b[i].px[p]), 1);
    o.steps = 1;
    o.clip = 0;
    for (int k = 0; k < 4; k++) {
        o.guidance = strength[k];
        dt_assert_ok(dt_infer_draw(x, truth, 1, &o, &f.err, &one[k]), f.err);
    }
    ck_assert_mem_eq(one[0].px, one[1].px, SIDE * SIDE * 3); /* 0 and 1: the text alone */
    for (int p = 0; p < SIDE * SIDE * 3; p++) {
        int v[3] = {one[1].px[p], one[2].px[p], one[3].px[p]};

        if (v[0] == 0 || v[0] == 255 || v[1] == 0 || v[1] == 255 || v[2] == 0 || v[2] == 255)
            continue;
        ck_assert_int_le(abs((v[2] - v[1]) - (v[1] - v[0])), 2); /* equal steps */
        moved += v[2] != v[0];
    }
    ck_assert_int_gt(moved, 0);
    for (int k = 0; k < 4; k++)
        dt_image_free(&one[k]);
    for (int i = 0; i < 2; i++) {
        dt_image_free(&a[i]);
        dt_image_free(&b[i]);
    }
    dt_infer_free(x);
    done(&f);
}
END_TEST

/* From what is drawn without the text through what is drawn with it, and on: u + w (c - u), of a generator to which texts
 * make much of a difference. */
START_TEST(guidance_goes_to_the_text)
{
    static const char *const nothing[] = {""};
    const double strength[] = {1, 5, 9};
    struct dt_infer_draw_options o = {.w = SIDE, .h = SIDE, .steps = 1, .seed = 8, .guidance = 1};
    struct dt_image none, with[3];
    double along = 0, square = 0;
    struct exec_fixture f;
    struct dt_infer *x;
    const struct dt_param *p;
    int n, inside = 0;

    setup(&f);
    for (int64_t step = 1; step <= 5; step++)
        ef_step(&f, step);
    f.diffusion.alpha_bar[f.diffusion.steps - 1] = 0.8;
    x = infer(&f, 1);
    for (int m = 0; m < 3; m++) {
        struct dt_stage *to = dt_infer_stage(x, m), *from = dt_exec_stage(f.x, m, 0, 0);

        memcpy(dt_test_host(dt_stage_master(to)), dt_test_host(dt_stage_master(from)),
               dt_stage_param_floats(to) * sizeof(float));
    }
    p = dt_stage_params(dt_infer_stage(x, 2), &n);
    for (int k = 0; k < n; k++)
        if (strncmp(p[k].name, "context_projector.linear_2", 20) == 0) {
            float *v = dt_test_host(dt_stage_master(dt_infer_stage(x, 2)));

            for (size_t i = 0; i < p[k].n; i++)
                v[p[k].at + i] *= 200;
        }
    dt_assert_ok(dt_infer_draw(x, nothing, 1, &o, &f.err, &none), f.err);
    for (int k = 0; k < 3; k++) {
        o.guidance = strength[k];
        dt_assert_ok(dt_infer_draw(x, truth, 1, &o, &f.err, &with[k]), f.err);
    }
    for (int i = 0; i < SIDE * SIDE * 3; i += 3) {
        int u = none.px[i], c = with[0].px[i], a = with[1].px[i], b = with[2].px[i];
        double slope = (b - a) / 4.0; /* c - u */

        if (u == 0 || u == 255 || c == 0 || c == 255 || a == 0 || a == 255 || b == 0 || b == 255)
            continue;
        ck_assert_double_le(fabs(a - 5 * slope - u), 2.5); /* halves of u, 9/4 a and 5/4 b */
        along += slope * (c - u);
        square += (c - u) * (c - u);
        inside++;
    }
    ck_assert_int_ge(inside, 20);
    ck_assert_double_ge(square, 200);
    ck_assert_double_eq_tol(along / square, 1, 0.2);
    for (int k = 0; k < 3; k++)
        dt_image_free(&with[k]);
    dt_image_free(&none);
    dt_infer_free(x);
    done(&f);
}
END_TEST

START_TEST(refuses_what_the_model_cannot)
{
    struct dt_infer_draw_options o = {.w = SIDE, .h = SIDE};
    struct dt_infer_options opt = {.batch = 1};
    struct dt_image img = picture(0), out;
    struct dt_sequence_item item = seen(&img);
    struct dt_infer_seen one = {&item, 1};
    struct exec_fixture f;
    struct dt_infer *x;
    char *text;

    dt_assert_ok(dt_tokenizer_bytes(&f.err, &tok), f.err);
    ef_init(&f, LLM, 1);
    opt.device = f.dev;
    opt.model = f.model;
    opt.tokenizer = tok;
    dt_assert_ok(dt_infer_new(&opt, &f.err, &x), f.err);
    ck_assert_int_eq(dt_infer_caption(x, &one, 1, 9, &f.err, &text), DT_ERR_INPUT);
    dt_assert_has(f.err.message, "no encoder");
    ck_assert_int_eq(dt_infer_draw(x, truth, 1, &o, &f.err, &out), DT_ERR_INPUT);
    dt_assert_has(f.err.message, "no generator");
    dt_infer_free(x);
    dt_image_free(&img);
    done(&f);
}
END_TEST

/* Of 16 learned positions, bos and an image of 2 x 2 patches leave 11 to a caption, and bos and eos 14 to a text. */
START_TEST(learned_positions_end)
{
    struct dt_infer_draw_options o = {.w = SIDE, .h = SIDE, .steps = 1};
    const struct dt_batch_limits max = {.rows = 40, .seqs = 2, .max_len = 40};
    const char *fits = "fourteen bytes", *long_one = "fifteen bytes..";
    struct dt_image images[N], drawn;
    struct dt_sequence_item items[N];
    struct dt_infer_seen all[N];
    struct dt_device_queue *q;
    int32_t doc_of[17] = {0};
    struct exec_fixture f;
    struct dt_batch *b;
    struct dt_infer *x;
    char *text[N];
    int longest = 0;

    dt_assert_ok(dt_tokenizer_bytes(&f.err, &tok), f.err);
    ef_init(&f,
            ENCODER ", llm: {kind: llm, layers: 1, hidden: 48, ffn: 96, heads: 4, vocab: 260, "
                    "positions: 16}, " EF_UNET,
            1);
    x = infer(&f, 0);
    dt_assert_ok(dt_infer_init(x, 42, &f.err), f.err);
    for (int i = 0; i < N; i++) {
        images[i] = picture(i);
        items[i] = seen(&images[i]);
        all[i] = (struct dt_infer_seen){&items[i], 1};
    }
    dt_assert_ok(dt_infer_caption(x, all, N, 200, &f.err, text), f.err);
    for (int i = 0; i < N; i++) {
        longest = (int)strlen(text[i]) > longest ? (int)strlen(text[i]) : longest;
        dt_free(text[i]);
        dt_image_free(&images[i]);
    }
    ck_assert_int_eq(longest, 11);
    dt_assert_ok(dt_infer_draw(x, &fits, 1, &o, &f.err, &drawn), f.err);
    dt_image_free(&drawn);
    ck_assert_int_eq(dt_infer_draw(x, &long_one, 1, &o, &f.err, &drawn), DT_ERR_INPUT);
    dt_assert_has(f.err.message,
                  "17 tokens are too many for module llm, which has learned 16 positions");
    dt_infer_free(x);

    dt_assert_ok(dt_batch_new(f.dev, &f.model->modules[f.model->llm], &max, &f.err, &b), f.err);
    dt_assert_ok(f.dev->queue_new(f.dev, false, &f.err, &q), f.err);
    dt_assert_ok(dt_batch_documents(b, doc_of, 16, &f.err), f.err);
    dt_assert_ok(dt_batch_upload(q, b, &f.err), f.err);
    dt_assert_ok(dt_batch_documents(b, doc_of, 17, &f.err), f.err);
    ck_assert_int_eq(dt_batch_upload(q, b, &f.err), DT_ERR_INPUT);
    dt_assert_has(f.err.message, "position 16 of at most 16");
    f.dev->queue_free(q);
    dt_batch_free(b);
    done(&f);
}
END_TEST

/* ---- the trivial predictor ---- */

/* Finite weights, so large that what a module gives is no number. */
START_TEST(what_is_not_finite_is_an_error)
{
    static const char *const told_by[] = {"module llm", "module llm", "module generator"};

    for (int m = 0; m < 3; m++) {
        struct dt_infer_draw_options o = {.w = SIDE, .h = SIDE, .steps = 2, .seed = 5, .clip = 1};
        struct dt_infer_losses sum = {0};
        struct dt_image image = picture(0), drawn;
        struct dt_sequence_item item = seen(&image);
        struct dt_infer_seen one = {&item, 1};
        struct exec_fixture f;
        struct dt_infer *x;
        struct dt_stage *s;
        struct dt_device_queue *q;
        float *master;
        char *text;

        setup(&f);
        x = infer(&f, 4);
        dt_assert_ok(dt_infer_init(x, 42, &f.err), f.err);
        s = dt_infer_stage(x, m);
        master = dt_test_host(dt_stage_master(s));
        for (size_t k = 0; k < dt_stage_param_floats(s); k++)
            master[k] = k % 2 ? 2e38f : 3e38f;
        dt_assert_ok(f.dev->queue_new(f.dev, false, &f.err, &q), f.err);
        dt_stage_changed(q, s, 0, f.model->modules[m].n_blocks);
        f.dev->queue_free(q);
        ck_assert_int_eq(dt_infer_add_losses(x, (const struct dt_sequence *const *)f.seqs, 4, 9, 0,
                                             &f.err, &sum),
                         DT_ERR_DIVERGED);
        dt_assert_has(f.err.message, told_by[m]);
        dt_assert_has(f.err.message, "not finite");
        if (m < 2)
            ck_assert_int_eq(dt_infer_caption(x, &one, 1, 4, &f.err, &text), DT_ERR_DIVERGED);
        if (m == 2)
            ck_assert_int_eq(dt_infer_draw(x, truth, 1, &o, &f.err, &drawn), DT_ERR_DIVERGED);
        dt_infer_losses_free(&sum);
        dt_image_free(&image);
        dt_infer_free(x);
        done(&f);
    }
}
END_TEST

START_TEST(trivial_predictor_by_chance)
{
    enum { IMAGES = 60, PIXELS = 50 };
    struct dt_infer_drawn drawn[IMAGES];
    struct dt_infer_losses sum = {.images = IMAGES, .drawn = drawn};
    static double x0[IMAGES][PIXELS];
    double mean = 0, var = 0, mse = 0;
    const int draws = 400;
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 4);
    for (int i = 0; i < IMAGES; i++) {
        double level = dt_rng_uniform(&r) * 1.4 - 0.9, a = dt_rng_uniform(&r);

        drawn[i] = (struct dt_infer_drawn){sqrt(a), sqrt(1 - a), 0, 0};
        for (int k = 0; k < PIXELS; k++) {
            x0[i][k] = level + 0.3 * dt_rng_normal(&r);
            drawn[i].mean += x0[i][k] / PIXELS;
            drawn[i].mean_sq += x0[i][k] * x0[i][k] / PIXELS;
        }
        mean += drawn[i].mean / IMAGES;
    }
    for (int i = 0; i < IMAGES; i++)
        for (int k = 0; k < PIXELS; k++)
            var += pow(x0[i][k] - mean, 2) / (IMAGES * PIXELS);
    for (int d = 0; d < draws; d++)
        for (int i = 0; i < IMAGES; i++)
            for (int k = 0; k < PIXELS; k++) {
                double s = drawn[i].sigma, a = drawn[i].alpha, e = dt_rng_normal(&r);
                double guess = s * (a * x0[i][k] + s * e - a * mean) / (a * a * var + s * s);

                mse += pow(e - guess, 2) / (draws * IMAGES * PIXELS);
            }
    ck_assert_double_eq_tol(dt_infer_trivial_mse(&sum), mse, 0.01 * mse);
    ck_assert_double_lt(mse, 0.9);
    sum.images = 0;
    ck_assert_double_eq(dt_infer_trivial_mse(&sum), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("infer");
    TCase *c = dt_test_case(s, "model", 300);

    tcase_add_test(c, losses_are_the_executors);
    tcase_add_loop_test(c, says_what_it_learnt_by_heart, 0, 2);
    tcase_add_test(c, refuses_what_the_model_cannot);
    tcase_add_test(c, learned_positions_end);
    tcase_add_test(c, what_is_not_finite_is_an_error);
    tcase_add_test(c, trivial_predictor_by_chance);
    c = dt_test_case(s, "drawing", 300);
    tcase_add_test(c, a_model_of_zeros_draws_its_noise);
    tcase_add_test(c, drawing_does_not_depend_on_the_batch);
    tcase_add_test(c, guidance);
    tcase_add_test(c, guidance_goes_to_the_text);
    return dt_test_run_here(s, CK_ENV); /* OpenMP's threads do not survive a fork */
}
