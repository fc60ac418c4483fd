/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Presets and configs that a model file changes: what follows from the change, and what stays as it was stated. */
#include "core/model/model.h"
#include "test_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum dt_status read_model(const char *yaml, struct dt_error *err, struct dt_model **out)
{
    struct dt_doc *doc = NULL;
    enum dt_status st;

    dt_assert_ok(dt_doc_parse("model.yaml", yaml, strlen(yaml), err, &doc), *err);
    st = dt_model_read(dt_doc_root(doc), err, out);
    dt_doc_free(doc);
    return st;
}

static struct dt_model *must_read(const char *yaml)
{
    struct dt_error err = {0};
    struct dt_model *m = NULL;

    dt_assert_ok(read_model(yaml, &err, &m), err);
    return m;
}

static const struct dt_module *module(const struct dt_model *m, const char *name)
{
    int i = dt_model_find(m, name);

    ck_assert_msg(i >= 0, "no module %s in %s", name, m->name);
    return &m->modules[i];
}

START_TEST(overrides_derive_anew)
{
    struct dt_model *m =
        must_read("{preset: mllm-9b, name: w, llm: {hidden: 5120, heads: 40}, "
                  "generator: {channels: [64, 128], attention: [false, true], depth: 2, "
                  "heads: [2, 4]}}");
    const struct dt_block *layer = &module(m, "llm")->blocks[1];
    const struct dt_module *gen = module(m, "generator");

    ck_assert_str_eq(m->name, "w");
    ck_assert_int_eq(layer->kv_heads, 40);
    ck_assert_int_eq(layer->head_dim, 128);
    ck_assert_int_eq(module(m, "encoder")->out_width, 5120);
    for (int i = 0; i < gen->n_blocks; i++) {
        if (gen->blocks[i].kind == DT_BLOCK_SPATIAL_TRANSFORMER) {
            ck_assert_int_eq(gen->blocks[i].level, 1);
            ck_assert_int_eq(gen->blocks[i].depth, 2);
            ck_assert_int_eq(gen->blocks[i].head_dim, 32);
        }
        if (gen->blocks[i].kind == DT_BLOCK_RESNET)
            ck_assert_int_eq(gen->blocks[i].time_dim, 256);
    }
    dt_model_free(m);
}
END_TEST

/* What a preset or config states beside what is changed stays; only what followed from it is derived anew. */
static const struct {
    const char *base, *change;
    int hidden, heads, kv_heads, head_dim;
} changed[] = {
    {"preset: qwen3-30b-a3b", "heads: 16", 2048, 16, 4, 128},
    {"preset: qwen3-30b-a3b", "hidden: 4096", 4096, 32, 4, 128},
    {"preset: qwen3-30b-a3b", "kv_heads: 8", 2048, 32, 8, 128},
    {"preset: qwen3-30b-a3b", "heads: 16, head_dim: 64", 2048, 16, 4, 64},
    {"preset: llama-70b", "heads: 32", 8192, 32, 8, 256},
    {"preset: llama-70b", "hidden: 4096", 4096, 64, 8, 64},
    {"preset: llama-7b", "heads: 64", 4096, 64, 64, 64},
    {"preset: llama-7b", "heads: 64, kv_heads: 16", 4096, 64, 16, 64},
    {"preset: vit-huge", "heads: 8", 1280, 8, 8, 160},
    {"hf: \"%s/llama-3-8b.json\"", "heads: 16", 4096, 16, 8, 256},
    {"hf: \"%s/llama-2-7b.json\"", "heads: 16", 4096, 16, 16, 256},
    {"hf: \"%s/gemma-7b.json\"", "heads: 8", 3072, 8, 8, 256},
    {"hf: \"%s/deepseek-v2.json\"", "heads: 64", 5120, 64, 64, 192},
};

START_TEST(what_is_stated_stays)
{
    const char *srcdir = getenv("srcdir");
    char dir[4096], base[4096 + 64], yaml[2 * 4096];
    struct dt_model *m;
    const struct dt_block *b;
    struct dt_error err = {0};

    snprintf(dir, sizeof(dir), "%s/tests/data/hf", srcdir && *srcdir ? srcdir : ".");
    snprintf(base, sizeof(base), changed[_i].base, dir);
    snprintf(yaml, sizeof(yaml), "{modules: {x: {%s, %s}%s}}", base, changed[_i].change,
             strstr(base, "vit") ? ", llm: {preset: llama-7b}" : "");
    m = must_read(yaml);
    b = &module(m, "x")->blocks[1];
    ck_assert_int_eq(b->kind, DT_BLOCK_TRANSFORMER);
    ck_assert_int_eq(b->hidden, changed[_i].hidden);
    ck_assert_int_eq(b->heads, changed[_i].heads);
    ck_assert_int_eq(b->kv_heads, changed[_i].kv_heads);
    ck_assert_int_eq(b->head_dim, changed[_i].head_dim);
    dt_model_free(m);
    ck_assert_int_eq(read_model("{preset: qwen3-30b-a3b, llm: {heads: 6}}", &err, &m),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "heads 6 is not a multiple of kv_heads 4");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model-changes");
    TCase *t = dt_test_case(s, "changes", 0);

    tcase_add_test(t, overrides_derive_anew);
    tcase_add_loop_test(t, what_is_stated_stays, 0, sizeof(changed) / sizeof(changed[0]));
    return dt_test_run(s);
}
