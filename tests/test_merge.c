/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Encoders that merge squares of patches into one row: parameters, kernels, memory, samples and messages, each against
 * a closed form. */
#include "core/model/samples.h"
#include "random_plan.h"
#include "test_util.h"

#include "core/cost/memory.h"

#include <stdio.h>
#include <string.h>

static struct dt_model *read_model(const char *keys)
{
    char text[1024];
    struct dt_doc *doc = NULL;
    struct dt_model *m = NULL;
    struct dt_error err = {0};

    snprintf(text, sizeof(text),
             "modules: {encoder: {kind: encoder, layers: 3, hidden: 64, ffn: 256, heads: 4, patch: "
             "14, %s}, llm: {kind: llm, layers: 2, hidden: 96, ffn: 128, heads: 4, vocab: 100}}",
             keys);
    dt_assert_ok(dt_doc_parse("model.yaml", text, strlen(text), &err, &doc), err);
    dt_assert_ok(dt_model_read(dt_doc_root(doc), &err, &m), err);
    dt_doc_free(doc);
    return m;
}

static const struct dt_block *projector_of(const struct dt_model *m)
{
    const struct dt_block *b = &m->modules[0].blocks[m->modules[0].n_blocks - 1];

    ck_assert_int_eq(b->kind, DT_BLOCK_PROJECTOR);
    return b;
}

/* ---- parameters and FLOPs of a projector ---- */

static const struct {
    const char *keys;
    int64_t params, multiply_adds; /* of the latter, per row */
} projectors[] = {
    {"merge: 1, projector: mlp", 64 * 96 + 96 + 96 * 96 + 96, 64 * 96 + 96 * 96},
    {"merge: 2, projector: mlp", 256 * 96 + 96 + 96 * 96 + 96, 256 * 96 + 96 * 96},
    /* as Qwen2-VL's merger: the middle is as wide as the merged row */
    {"merge: 2, projector: mlp, projector_hidden: 256", 256 * 256 + 256 + 256 * 96 + 96,
     256 * 256 + 256 * 96},
    /* as InternVL's: LayerNorm of the merged row first */
    {"merge: 2, projector: mlp, projector_norm: layernorm", 512 + 256 * 96 + 96 + 96 * 96 + 96,
     256 * 96 + 96 * 96},
    /* as Gemma 3's: the mean of 4 x 4 patches, RMSNorm, a matrix */
    {"merge: 4, merge_by: mean, projector: linear, projector_norm: rmsnorm, projector_bias: false",
     64 + 64 * 96, 64 * 96},
    {"merge: 3, projector: linear", 576 * 96 + 96, 576 * 96},
};

START_TEST(projectors_have_their_parameters_and_flops)
{
    struct dt_model *m = read_model(projectors[_i].keys);
    const struct dt_block *b = projector_of(m);
    int k = m->modules[0].merge, patches = 144;
    struct dt_work w = {1, patches, (int64_t)patches * patches, patches};

    ck_assert_int_eq(dt_block_params(b), projectors[_i].params);
    ck_assert_double_eq(dt_block_flops(b, &w),
                        2.0 * (double)projectors[_i].multiply_adds * patches / (k * k));
    dt_model_free(m);
}
END_TEST

/* What is kept of merged rows is as much as of the patches: the same numbers, side by side. */
START_TEST(activations_are_of_the_rows)
{
    struct dt_model *one = read_model("projector: mlp, merge: 1");
    struct dt_model *two = read_model("projector: mlp, merge: 2, projector_norm: layernorm");
    static const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct dt_work w = {1, 144, 144 * 144, 144};

    /* input, and the middle before and after the activation */
    ck_assert_double_eq(dt_block_act_bytes(projector_of(one), &whole, &w, DT_RECOMPUTE_NONE),
                        2.0 * 144 * (64 + 2 * 96));
    ck_assert_double_eq(dt_block_act_bytes(projector_of(two), &whole, &w, DT_RECOMPUTE_NONE),
                        36 * (2.0 * 256 + 2.0 * 256 + 8 + 2 * 2.0 * 96));
    ck_assert_double_eq(dt_block_act_bytes(projector_of(two), &whole, &w, DT_RECOMPUTE_SELECTIVE),
                        36 * (2.0 * 256 + 2.0 * 96));
    ck_assert_double_eq(dt_block_act_bytes(projector_of(two), &whole, &w, DT_RECOMPUTE_FULL),
                        36 * 2.0 * 256);
    dt_model_free(one);
    dt_model_free(two);
}
END_TEST

/* ---- samples ---- */

static const struct {
    int merge, w, h;
    int64_t patches, rows;
} images[] = {
    {1, 448, 448, 1024, 1024}, {2, 448, 448, 1024, 256}, {4, 448, 448, 1024, 64},
    {2, 449, 448, 1088, 272}, /* completed to whole squares: 17 x 16 of 28 pixels */
    {3, 448, 448, 1089, 121},  {2, 1, 1, 4, 1},
};

START_TEST(images_are_whole_squares_of_patches)
{
    char keys[64], csv[128];
    struct dt_samples *s = NULL;
    struct dt_samples_image image;
    struct dt_error err = {0};
    struct dt_work enc, llm;
    struct dt_model *m;

    snprintf(keys, sizeof(keys), "merge: %d", images[_i].merge);
    m = read_model(keys);
    image = dt_samples_image_of(m);
    ck_assert_int_eq(image.patch, 14 * images[_i].merge);
    snprintf(csv, sizeof(csv), "text_tokens,images\n5,%dx%d\n", images[_i].w, images[_i].h);
    /* one token of room less than the image needs */
    ck_assert_int_eq(
        dt_samples_parse_csv("s.csv", csv, strlen(csv), 4 + (int)images[_i].rows, &image, &err, &s),
        DT_ERR_INPUT);
    dt_assert_ok(
        dt_samples_parse_csv("s.csv", csv, strlen(csv), 5 + (int)images[_i].rows, &image, &err, &s),
        err);
    dt_sample_work(s, 0, &m->modules[0], &enc);
    dt_sample_work(s, 0, &m->modules[1], &llm);
    ck_assert_int_eq(enc.tokens, images[_i].patches);
    ck_assert_int_eq(llm.tokens, 5 + images[_i].rows);
    ck_assert_int_eq(dt_module_out_tokens(&m->modules[0], enc.tokens), images[_i].rows);
    dt_samples_free(s);
    dt_model_free(m);
}
END_TEST

/* ---- messages and their buffers ---- */

/* Two lanes of an encoder, `merge` patches a side, before an LLM and a generator. */
static void chain(struct sched_fixture *s, int merge)
{
    sf_init(s);
    sf_chain(s, 4);
    s->f.model.modules[0].merge = merge;
    sf_plan(s, 8, 1, DT_SCHED_1F1B);
    for (int m = 0; m < 3; m++)
        sf_layout(s, m, 1, 1, 1, 2);
    sf_samples(s, 8, 3, 1, false, 7);
    sf_compile(s);
}

START_TEST(messages_are_of_the_rows)
{
    struct sched_fixture s;
    uint64_t sum = 0, want = 0;

    chain(&s, _i);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];

        if (op->kind == DT_OP_SEND && op->module == 0 && s.p->ops[op->peer].module == 1)
            sum += op->bytes;
    }
    for (uint64_t i = 0; i < s.item_first[8]; i++)
        if (s.items[i].flags & DT_ITEM_ENCODE)
            want += (uint64_t)((s.items[i].w + 16 * _i - 1) / (16 * _i)) *
                    (uint64_t)((s.items[i].h + 16 * _i - 1) / (16 * _i));
    ck_assert_uint_gt(sum, 0);
    ck_assert_uint_eq(sum, want * 1024 * 2); /* bf16, as wide as the LLM */
    sf_free(&s);
}
END_TEST

START_TEST(buffers_are_of_the_rows)
{
    struct dt_work w = {4, 4096, 1 << 22, 1024};
    struct sched_fixture s;
    double all;
    struct dt_memory mem;

    chain(&s, 1);
    dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 0, 0, &w, 4, &mem);
    all = mem.broker;
    s.f.model.modules[0].merge = 2;
    dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 0, 0, &w, 4, &mem);
    /* of two messages, one in use and one under way, three quarters */
    ck_assert_double_eq_tol(all - mem.broker, 2 * 0.75 * 2.0 * 1024 * 4096, 1);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("merge");
    TCase *c = dt_test_case(suite, "merge", 0);

    tcase_add_loop_test(c, projectors_have_their_parameters_and_flops, 0,
                        sizeof(projectors) / sizeof(projectors[0]));
    tcase_add_test(c, activations_are_of_the_rows);
    tcase_add_loop_test(c, images_are_whole_squares_of_patches, 0,
                        sizeof(images) / sizeof(images[0]));
    tcase_add_loop_test(c, messages_are_of_the_rows, 1, 5);
    tcase_add_test(c, buffers_are_of_the_rows);
    return dt_test_run(suite);
}
