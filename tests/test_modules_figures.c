/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Stages are what the model says of them: memory, messages, counts, initial values; and what is refused. */
#include "core/model/block_ops.h"
#include "core/model/boundary.h"
#include "exec/modules/impl.h"
#include "module_util.h"

/* ---- memory ---- */

struct rig {
    struct dt_device *dev;
    struct dt_stage *stage;
    struct dt_error err;
};

static void rig_open(struct rig *r, const struct dt_stage_spec *spec)
{
    struct dt_device_options opt = {.threads = 1};

    dt_assert_ok(dt_test_device_open(&opt, &r->err, &r->dev), r->err);
    dt_assert_ok(dt_stage_new(r->dev, spec, &r->err, &r->stage), r->err);
}

static void rig_close(struct rig *r)
{
    dt_stage_free(r->stage);
    r->dev->close(r->dev);
}

START_TEST(saved_memory_is_the_models_figure)
{
    static const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct mu u;
    struct dt_stage_spec spec;
    struct rig r;

    mu_open_case(&u, _i);
    spec = (struct dt_stage_spec){.module = &u.m, .last = u.m.n_blocks, .max = u.max};
    for (int i = 0; i < (dt_test_has_bf16() ? 6 : 3); i++) {
        struct dt_batch b = {.module = &u.m, .rows = 48, .n_seq = 3, .max_len = 16};
        struct dt_work w = {3, 48, 3 * 16 * 16, 16};
        size_t sum = 0;

        spec.recompute = (enum dt_block_recompute)(i % 3);
        spec.dtype = i < 3 ? DT_F32 : DT_BF16;
        rig_open(&r, &spec);
        for (int k = 0; k < u.m.n_blocks; k++) {
            double want = dt_block_act_bytes_of(&u.m.blocks[k], &whole, &w, spec.recompute,
                                                (int)dt_dtype_bytes(spec.dtype));
            size_t got = dt_stage_block_bytes(r.stage, &b, k);

            ck_assert_msg((double)got == want, "%s, block %d (%s), %s, %s: %zu bytes, model %.1f",
                          mu_names[u.kind], k, dt_block_kind_name(u.m.blocks[k].kind),
                          dt_block_recompute_names[spec.recompute], spec.dtype ? "bf16" : "fp32",
                          got, want);
            sum += got;
        }
        ck_assert_uint_ge(dt_stage_saved_bytes(r.stage, &b), sum);
        ck_assert_uint_le(dt_stage_saved_bytes(r.stage, &b) - dt_stage_carry_bytes(r.stage, &b),
                          sum + 2 * 63 * (size_t)u.m.n_blocks);
        rig_close(&r);
    }
    mu_close(&u);
}
END_TEST

/* What a split backward leaves: gradients of the outputs of all kernels with weights.  Blocks of a U-Net share a few of
 * them, which the model counts twice. */
START_TEST(stashed_memory_is_the_models_figure)
{
    static const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct mu u;
    struct dt_stage_spec spec;
    struct rig r;
    struct dt_batch b;
    struct dt_work w = {3, 768, 3 * 256 * 256,
                        256}; /* so that rows of merged patches fill regions, too */
    double want = 0, got;

    mu_open_case(&u, _i);
    b = (struct dt_batch){.module = &u.m, .rows = 768, .n_seq = 3, .max_len = 256};
    spec = (struct dt_stage_spec){
        .module = &u.m, .last = u.m.n_blocks, .max = u.max, .split_backward = true};
    rig_open(&r, &spec);
    for (int k = 0; k < u.m.n_blocks; k++)
        want += dt_block_stash_bytes(&u.m.blocks[k], &whole, &w, 4);
    got = (double)dt_stage_stash_bytes(r.stage, &b);
    ck_assert_msg(got <= want && got >= (u.m.role == DT_ROLE_GENERATOR ? 0.95 : 1) * want,
                  "%s: %.0f bytes, model %.0f", mu_names[u.kind], got, want);
    rig_close(&r);
    mu_close(&u);
}
END_TEST

/* ---- names, counts, initialisation ---- */

/* The messages that the executor sends are those that core's programs and its memory model count
 * (core in bf16, here fp32: twice the bytes), at every cut and for every number of rows. */
START_TEST(messages_are_the_programs_figure)
{
    struct dt_device_options opt = {.threads = 1};
    struct dt_device *dev = NULL;
    struct dt_error err;
    struct mu u;

    mu_open_case(&u, _i);
    dt_assert_ok(dt_test_device_open(&opt, &err, &dev), err);
    for (int cut = 1; cut < u.m.n_blocks; cut++) {
        struct dt_stage_spec spec = {.module = &u.m, .last = cut, .max = u.max};
        struct dt_stage *s;

        dt_assert_ok(dt_stage_new(dev, &spec, &err, &s), err);
        for (int k = 1; k <= 4; k++) {
            struct dt_batch b = {.module = &u.m, .rows = 64 * k, .n_seq = k};
            struct dt_work w = {.n = k, .tokens = b.rows};

            struct dt_boundary wire;

            dt_block_boundary(&u.m, cut, 4, &wire);
            ck_assert_msg(dt_stage_out_bytes(s, &b) == dt_boundary_bytes(&wire, w.tokens, w.n),
                          "%s, before block %d, %d rows: %zu bytes in the executor, %llu in core",
                          mu_names[u.kind], cut, 64 * k, dt_stage_out_bytes(s, &b),
                          (unsigned long long)dt_boundary_bytes(&wire, w.tokens, w.n));
        }
        dt_stage_free(s);
    }
    dev->close(dev);
    mu_close(&u);
}
END_TEST

START_TEST(counts_are_the_models)
{
    struct mu u;
    struct dt_stage_spec spec;
    struct rig r;
    const struct dt_param *p;
    int n;

    mu_open_case(&u, _i);
    spec = (struct dt_stage_spec){.module = &u.m, .last = u.m.n_blocks, .max = u.max};
    rig_open(&r, &spec);
    p = dt_stage_params(r.stage, &n);
    for (int k = 0; k < u.m.n_blocks; k++) {
        struct dt_param_range range = dt_stage_range(r.stage, k);
        struct dt_block_param_counts count = dt_block_param_count(&u.m.blocks[k]);
        int64_t sum = 0, rounded = 0;

        for (int i = 0; i < n; i++) {
            int64_t shape = 1;

            if (p[i].block != k)
                continue;
            for (int d = 0; d < p[i].n_dims; d++)
                shape *= p[i].shape[d];
            ck_assert_int_eq(shape, (int64_t)p[i].n);
            if (p[i].at >= range.at + range.n_experts)
                ck_assert_uint_ge(p[i].at, range.at + (p[i].decay ? 0 : range.n_decay));
            ck_assert_uint_ge(p[i].at, range.at);
            ck_assert_uint_le(p[i].at + p[i].n, range.at + (p[i].decay ? range.n_decay : range.n));
            ck_assert_int_eq(p[i].decay, p[i].n_dims > 1);
            sum += (int64_t)p[i].n;
            rounded += p[i].rounded ? (int64_t)p[i].n : 0;
        }
        ck_assert_int_eq(rounded, count.matrices);
        ck_assert_int_eq(sum, count.matrices + count.vectors);
        ck_assert_msg(sum == dt_block_params(&u.m.blocks[k]), "%s, block %d: %lld, model %lld",
                      mu_names[u.kind], k, (long long)sum,
                      (long long)dt_block_params(&u.m.blocks[k]));
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(p[i].name, p[j].name);
    rig_close(&r);
    mu_close(&u);
}
END_TEST

START_TEST(initial_values_do_not_depend_on_the_layout)
{
    struct mu u;
    struct dt_stage_spec spec;
    struct rig whole, part;
    const struct dt_param *p, *q;
    struct dt_device_queue *queue;
    const float *a, *b;
    int n, m;

    mu_open_case(&u, _i);
    spec = (struct dt_stage_spec){.module = &u.m, .last = u.m.n_blocks, .max = u.max};
    rig_open(&whole, &spec);
    spec.first = 2;
    rig_open(&part, &spec);
    for (int i = 0; i < 2; i++) {
        struct rig *r = i ? &part : &whole;

        dt_assert_ok(r->dev->queue_new(r->dev, false, &r->err, &queue), r->err);
        dt_stage_init(queue, r->stage, 99);
        dt_assert_ok(r->dev->queue_sync(queue, &r->err), r->err);
        r->dev->queue_free(queue);
    }
    p = dt_stage_params(whole.stage, &n);
    q = dt_stage_params(part.stage, &m);
    a = dt_test_host(dt_stage_master(whole.stage));
    b = dt_test_host(dt_stage_master(part.stage));
    for (int j = 0; j < m; j++) {
        int i = 0;
        double sq = 0;

        while (i < n && strcmp(p[i].name, q[j].name) != 0)
            i++;
        ck_assert_int_lt(i, n);
        ck_assert_int_eq(memcmp(a + p[i].at, b + q[j].at, q[j].n * 4), 0);
        for (size_t k = 0; k < q[j].n; k++) {
            double v = (double)b[q[j].at + k];

            sq += v * v;
            if (q[j].init != DT_INIT_NORMAL)
                ck_assert(v == (q[j].init == DT_INIT_ONE ? 1 : 0));
        }
        if (q[j].init == DT_INIT_NORMAL && q[j].n > 200) /* 5 standard errors of a variance */
            ck_assert_double_eq_tol(sqrt(sq / (double)q[j].n) / (double)q[j].std, 1,
                                    5 / sqrt(2.0 * (double)q[j].n));
    }
    rig_close(&part);
    rig_close(&whole);
    mu_close(&u);
}
END_TEST

/* ---- refusals ---- */

/* What a new kind forgets is found here at the latest; both floors agree on what needs no block before it. */
START_TEST(every_kind_of_block_has_a_whole_row)
{
    for (int k = 0; k < DT_BLOCK_KIND_N; k++) {
        struct dt_block b = {.kind = (enum dt_block_kind)k};
        const struct dt_nn_block_ops *o = dt_nn_ops_of(&b);

        ck_assert_msg(o->layout && o->forward && o->backward && o->in_width && o->out_width &&
                          o->begin && o->note,
                      "%s: its row lacks a function", dt_block_kind_name(b.kind));
        ck_assert_msg(o->source == !dt_block_row_of(&b)->input,
                      "%s: does recomputation keep its input?", dt_block_kind_name(b.kind));
    }
}
END_TEST

/* Layers that can be planned alone: each is named, and none is run as if it were the plain one. */
START_TEST(layers_that_are_only_planned)
{
    static const struct {
        struct dt_block change;
        const char *message;
    } cases[] = {
        {{.n_experts = 4, .capacity = 1.5}, "(expert_capacity) cannot be run yet, only planned"},
        {{.n_experts = 4, .router_bias = true}, "a bias to scores"},
        {{.n_experts = 80, .top_k = 65}, "more than 64 experts per token"},
        {{.kv_lora = 8}, "latent attention"},
        {{.window = 8}, "(window)"},
        {{.norms = 4}, "other norms"},
        {{.norm_free = true}, "other norms"},
        {{.qk_norm_whole = true}, "together"},
        {{.layer_scale = true}, "layer scale"}};
    size_t n = sizeof(cases) / sizeof(cases[0]);

    for (size_t i = 0; i <= n; i++) {
        struct dt_nn_shape_facts f;
        struct dt_error err = {0};
        struct mu u;

        mu_open(&u, MU_LLAMA, 1);
        for (size_t at = 0; i < n && at < sizeof(struct dt_block); at++)
            ((char *)&u.m.blocks[2])[at] |= ((const char *)&cases[i].change)[at];
        u.m.planned_only = i < n ? NULL : "capped scores";
        ck_assert_int_eq(dt_nn_shape_facts(&u.m, &err, &f), DT_ERR_INPUT);
        dt_assert_has(err.message, i < n ? cases[i].message : "capped scores cannot be run yet");
        mu_close(&u);
    }
}
END_TEST

/* Windows that patches do not lie in as a whole, or out of which nothing puts them in order again. */
START_TEST(windows_that_are_only_planned)
{
    static const struct {
        enum mu_kind kind;
        int window;
        const char *message;
    } cases[] = {{MU_VIT_BARE, 4, "windows without a projector"},
                 {MU_MERGE, 9, "not squares of whole squares"},
                 {MU_WINDOWS, 5, "not squares of whole squares"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dt_nn_shape_facts f;
        struct dt_error err = {0};
        struct mu u;

        mu_open(&u, cases[i].kind, 1);
        for (int b = 0; b < u.m.n_blocks; b++)
            if (u.m.blocks[b].kind == DT_BLOCK_TRANSFORMER ||
                u.m.blocks[b].kind == DT_BLOCK_PROJECTOR)
                u.m.blocks[b].window = cases[i].window;
        ck_assert_int_eq(dt_nn_shape_facts(&u.m, &err, &f), DT_ERR_INPUT);
        dt_assert_has(err.message, cases[i].message);
        mu_close(&u);
    }
}
END_TEST

/* Spectrograms of 4, 11 and 2 frames in patches of 4 x 4: 1, 2 and 1 rows of 3.  Value (frame, filter) of sound s is
 * 1000 s + 20 frame + filter. */
START_TEST(a_spectrogram_is_cut_into_patches)
{
    enum { BINS = 12, P = 4, COLS = 3, CLASS = 1, ROWS = 4 };
    static const int frames[] = {4, 11, 2}, rows_of[] = {1, 2, 1};
    struct dt_batch_limits max = {.rows = ROWS * COLS, .seqs = 3, .max_len = ROWS * COLS};
    struct dt_batch *b = NULL;
    struct rig r;
    struct mu u;
    int at = 0;

    mu_open(&u, MU_VIT, 1);
    rig_open(&r, &(struct dt_stage_spec){.module = &u.m, .last = u.m.n_blocks, .max = u.max});
    u.m.modality = DT_MODALITY_AUDIO;
    ck_assert_int_eq(dt_batch_new(r.dev, &u.m, &max, &r.err, &b), DT_ERR_INPUT);
    dt_assert_has(r.err.message, "relative position bias");
    u.m.mel_bins = BINS;
    u.m.blocks[0].patch = P;
    u.m.blocks[0].channels = 1;
    u.m.blocks[0].class_tokens = CLASS;
    u.m.blocks[0].max_pos = CLASS + 2 * COLS;
    dt_assert_ok(dt_batch_new(r.dev, &u.m, &max, &r.err, &b), r.err);
    for (int s = 0; s < 3; s++) {
        float x[11 * BINS];

        for (int f = 0; f < frames[s]; f++)
            for (int k = 0; k < BINS; k++)
                x[f * BINS + k] = (float)(1000 * s + 20 * f + k);
        dt_assert_ok(dt_batch_spectrogram(b, x, BINS, frames[s], &r.err), r.err);
    }
    ck_assert_int_eq(b->rows, ROWS * COLS);
    ck_assert_int_eq(b->n_seq, 3);
    for (int s = 0; s < 3; s++) {
        ck_assert_int_eq(b->host.cu[s + 1] - b->host.cu[s], rows_of[s] * COLS);
        for (int i = 0; i < rows_of[s] * COLS; i++, at++) {
            ck_assert_int_eq(b->host.pos[at], CLASS + i);
            for (int k = 0; k < P * P; k++) {
                int f = i / COLS * P + k / P, last = frames[s] - 1;

                ck_assert_double_eq((double)b->host.pixels[at * P * P + k],
                                    1000 * s + 20 * (f < last ? f : last) + i % COLS * P + k % P);
            }
        }
    }
    ck_assert_int_eq(dt_batch_spectrogram(b, (float[BINS]){0}, BINS, 1, &r.err), DT_ERR_INPUT);
    dt_assert_has(r.err.message, "patches in a microbatch made for 12");
    b->rows = b->n_seq = 0;
    ck_assert_int_eq(dt_batch_spectrogram(b, (float[12 * BINS]){0}, BINS, 12, &r.err),
                     DT_ERR_INPUT);
    dt_assert_has(r.err.message, "9 patches of a sound in a microbatch made for 6");
    ck_assert_int_eq(dt_batch_spectrogram(b, (float[16]){0}, 16, 1, &r.err), DT_ERR_INPUT);
    dt_assert_has(r.err.message, "takes no spectrogram");
    dt_batch_free(b);
    rig_close(&r);
    mu_close(&u);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    struct mu u;
    struct dt_batch *b = NULL;
    struct rig r;
    struct dt_stage_spec spec;
    float x0[3 * 64] = {0};
    int32_t doc[20] = {0};
    struct dt_device_queue *q = NULL;

    mu_open(&u, MU_UNET, 1);
    spec = (struct dt_stage_spec){.module = &u.m, .last = u.m.n_blocks, .max = u.max};
    rig_open(&r, &spec);
    dt_assert_ok(dt_batch_new(r.dev, &u.m, &u.max, &r.err, &b), r.err);
    ck_assert_int_eq(dt_batch_latents(b, x0, 3, 4, 1, &r.err), DT_ERR_INPUT);
    dt_assert_has(r.err.message, "halved");
    u.m.blocks[3].window = 4;
    spec.module = &u.m;
    ck_assert_int_eq(dt_stage_new(r.dev, &spec, &r.err, &r.stage), DT_ERR_INPUT);
    dt_assert_has(r.err.message, "window");
    dt_batch_free(b);
    rig_close(&r);
    mu_close(&u);

    mu_open(&u, MU_LLAMA, 1);
    spec = (struct dt_stage_spec){.module = &u.m, .last = u.m.n_blocks, .max = u.max};
    rig_open(&r, &spec);
    dt_assert_ok(r.dev->queue_new(r.dev, false, &r.err, &q), r.err);
    dt_assert_ok(dt_batch_new(r.dev, &u.m, &u.max, &r.err, &b), r.err);
    ck_assert_int_eq(dt_batch_documents(b, doc, 17, &r.err), DT_ERR_INPUT);
    ck_assert_int_eq(dt_batch_documents(b, doc, 14, &r.err), DT_OK);
    ck_assert_int_eq(dt_batch_upload(q, b, &r.err), DT_ERR_INPUT); /* 14 rows, 12 allowed */
    ck_assert_int_eq(dt_batch_documents(b, doc, 12, &r.err), DT_OK);
    b->n_in = 1;
    b->host.in_row[0] = 12;
    ck_assert_int_eq(dt_batch_upload(q, b, &r.err), DT_ERR_INPUT);
    dt_assert_has(r.err.message, "row 12 of 12");
    dt_batch_free(b);
    r.dev->queue_free(q);
    rig_close(&r);
    mu_close(&u);
}
END_TEST

static struct dt_device_gate *never;
static const struct dt_device *failing;

static void fail_sort(struct dt_device_queue *q, const struct dt_kernel_route *r,
                      const int32_t *expert, int32_t *count, int32_t *place, int32_t *choice,
                      int32_t *row)
{
    (void)r, (void)expert, (void)count, (void)place, (void)choice, (void)row;
    failing->gate_wait(q, never, 1); /* of a queue that nothing runs beside: it fails */
}

/* A queue that failed before the host waits for experts' counts has failed after the pass, too. */
START_TEST(failures_before_experts_stay)
{
    struct dt_device_queue *q = NULL;
    struct dt_batch *b = NULL;
    struct dt_kernels k;
    struct dt_stage_spec spec;
    struct dt_nn_run run = {0};
    const struct dt_kernels *works;
    void *in;
    struct rig r;
    struct mu u;

    mu_open(&u, MU_MOE, 1);
    spec = (struct dt_stage_spec){.module = &u.m, .last = u.m.n_blocks, .max = u.max};
    rig_open(&r, &spec);
    if (!r.dev->info.gates) {
        k = *r.dev->k;
        k.route_sort = fail_sort;
        failing = r.dev;
        dt_assert_ok(r.dev->gate_new(r.dev, &r.err, &never), r.err);
        dt_assert_ok(r.dev->queue_new(r.dev, false, &r.err, &q), r.err);
        dt_assert_ok(dt_batch_new(r.dev, &u.m, &u.max, &r.err, &b), r.err);
        dt_assert_ok(dt_batch_documents(b, u.llm.doc, u.llm.rows, &r.err), r.err);
        b->n_in = u.llm.n_in;
        memcpy(b->host.in_row, u.llm.in_row, (size_t)u.llm.n_in * 4);
        memcpy(b->host.ids, u.llm.ids, (size_t)u.llm.rows * 4);
        memcpy(b->host.target, u.llm.target, (size_t)u.llm.rows * 4);
        dt_assert_ok(dt_batch_upload(q, b, &r.err), r.err);
        dt_stage_init(q, r.stage, 1);
        dt_assert_ok(r.dev->queue_sync(q, &r.err), r.err);
        run.batch = b;
        dt_assert_ok(r.dev->alloc(r.dev, dt_stage_saved_bytes(r.stage, b), &r.err, &run.saved),
                     r.err);
        dt_assert_ok(r.dev->alloc(r.dev, dt_stage_in_bytes(r.stage, b) + 64, &r.err, &in), r.err);
        dt_assert_ok(r.dev->alloc(r.dev, dt_stage_out_bytes(r.stage, b) + 64, &r.err, &run.out),
                     r.err);
        run.in = in;
        works = r.dev->k;
        r.dev->k = &k;
        dt_stage_forward(q, r.stage, &run, 0, u.m.n_blocks);
        r.dev->k = works;
        ck_assert_int_eq(r.dev->queue_state(q), DT_ERR_INTERNAL);
        ck_assert_int_eq(r.dev->queue_sync(q, &r.err), DT_ERR_INTERNAL);
        dt_assert_has(r.err.message, "waits for what comes after it");
        r.dev->free(r.dev, run.saved);
        r.dev->free(r.dev, run.out);
        r.dev->free(r.dev, in);
        dt_batch_free(b);
        r.dev->queue_free(q);
        r.dev->gate_free(never);
    }
    rig_close(&r);
    mu_close(&u);
}
END_TEST

/* What members of groups cannot share. */
START_TEST(experts_with_members_are_refused)
{
    struct dt_tp three = {.size = 3};
    struct dt_stage_spec spec;
    struct rig r;
    struct mu u;

    mu_open(&u, MU_MOE, 1);
    spec = (struct dt_stage_spec){.module = &u.m, .last = u.m.n_blocks, .max = u.max};
    rig_open(&r, &spec);
    dt_stage_free(r.stage);
    r.stage = NULL;
    spec.ep = &three;
    ck_assert_int_eq(dt_stage_new(r.dev, &spec, &r.err, &r.stage), DT_ERR_INPUT);
    dt_assert_has(r.err.message, "ep 3 does not divide the 4 experts");
    rig_close(&r);
    mu_close(&u);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("modules_figures");
    TCase *c = dt_test_case(s, "figures", 240);

    tcase_add_loop_test(c, saved_memory_is_the_models_figure, 0, MU_N);
    tcase_add_loop_test(c, stashed_memory_is_the_models_figure, 0, MU_N);
    tcase_add_loop_test(c, messages_are_the_programs_figure, 0, MU_N);
    tcase_add_loop_test(c, counts_are_the_models, 0, MU_N);
    tcase_add_loop_test(c, initial_values_do_not_depend_on_the_layout, 0, MU_N);
    tcase_add_test(c, every_kind_of_block_has_a_whole_row);
    tcase_add_test(c, layers_that_are_only_planned);
    tcase_add_test(c, windows_that_are_only_planned);
    tcase_add_test(c, a_spectrogram_is_cut_into_patches);
    tcase_add_test(c, what_does_not_fit_is_refused);
    tcase_add_test(c, failures_before_experts_stay);
    tcase_add_test(c, experts_with_members_are_refused);
    return dt_test_run(s);
}
