/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Published models: the configs in tests/data/hf become modules with the published number of parameters.
 *
 *   transformers  parameters of transformers 5.23's class, built from the same file (tests/hf_params.py does so again)
 *   recalled      sum of the checkpoint's tensors, from memory
 *   derived       sum over the weights that the class's source text makes
 *
 * The figure of the model card or paper (recalled, in units of `card_unit`) must be that number, rounded or cut.  Hyper-
 * parameters in the files are those of the published config.json files (recalled).  With the argument --table the
 * program prints what it found. */
#include "base/file.h"
#include "base/mem.h"
#include "core/model/model.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define B 1e9
#define M 1e6

static const struct {
    const char *file;
    int64_t params; /* the whole model; 0 = not known to the unit */
    const char *source;
    double card, card_unit;
    int64_t left_out; /* of params: what our modules do not have, and why */
    const char *why;
} models[] = {
    {"llama-2-7b", 6738415616, "transformers", 6.7 * B, 0.1 * B, 0, NULL},
    {"llama-2-13b", 13015864320, "transformers", 13.0 * B, 0.1 * B, 0, NULL},
    {"llama-2-70b", 68976648192, "transformers", 69 * B, B, 0, NULL},
    {"llama-3-8b", 8030261248, "transformers", 8.03 * B, 0.01 * B, 0, NULL},
    {"llama-3-70b", 70553706496, "transformers", 70.6 * B, 0.1 * B, 0, NULL},
    {"llama-3.1-405b", 405853388800, "transformers", 405 * B, B, 0, NULL},
    {"llama-3.2-1b", 1235814400, "transformers", 1.23 * B, 0.01 * B, 0, NULL},
    {"llama-3.2-3b", 3212749824, "transformers", 3.21 * B, 0.01 * B, 0, NULL},
    {"yi-6b", 6061035520, "transformers", 6.06 * B, 0.01 * B, 0, NULL},
    {"yi-34b", 34388917248, "transformers", 34.4 * B, 0.1 * B, 0, NULL},
    {"mistral-7b", 7241732096, "transformers", 7.24 * B, 0.01 * B, 0, NULL},
    {"mixtral-8x7b", 46702792704, "transformers", 46.7 * B, 0.1 * B, 0, NULL},
    {"mixtral-8x22b", 140620634112, "transformers", 141 * B, B, 0, NULL},
    {"qwen1.5-7b", 7721324544, "transformers", 7.72 * B, 0.01 * B, 0, NULL},
    {"qwen1.5-moe-a2.7b", 14315784192, "transformers", 14.3 * B, 0.1 * B, 0, NULL},
    {"qwen2-0.5b", 494032768, "transformers", 0.49 * B, 0.01 * B, 0, NULL},
    {"qwen2-7b", 7615616512, "transformers", 7.62 * B, 0.01 * B, 0, NULL},
    {"qwen2-57b-a14b", 57408658944, "transformers", 57.4 * B, 0.1 * B, 0, NULL},
    {"qwen2.5-32b", 32763876352, "transformers", 32.8 * B, 0.1 * B, 0, NULL},
    {"qwen2.5-72b", 72706203648, "transformers", 72.7 * B, 0.1 * B, 0, NULL},
    {"qwen3-0.6b", 596049920, "transformers", 0.6 * B, 0.1 * B, 0, NULL},
    {"qwen3-8b", 8190735360, "transformers", 8.2 * B, 0.1 * B, 0, NULL},
    {"qwen3-32b", 32762123264, "transformers", 32.8 * B, 0.1 * B, 0, NULL},
    {"qwen3-30b-a3b", 30532122624, "transformers", 30.5 * B, 0.1 * B, 0, NULL},
    {"qwen3-235b-a22b", 235093634560, "transformers", 235 * B, B, 0, NULL},
    {"deepseek-moe-16b", 16375728128, "recalled", 16.4 * B, 0.1 * B, 0, NULL},
    {"deepseek-v2-lite", 15706484224, "transformers", 15.7 * B, 0.1 * B, 0, NULL},
    {"deepseek-v2", 235741434880, "transformers", 236 * B, B, 0, NULL},
    {"deepseek-v3", 671026419200, "transformers", 671 * B, B, 0, NULL},
    {"gemma-2b", 2506172416, "transformers", 2.51 * B, 0.01 * B, 0, NULL},
    {"gemma-7b", 8537680896, "transformers", 8.54 * B, 0.01 * B, 0, NULL},
    {"gemma-2-2b", 2614341888, "transformers", 2.61 * B, 0.01 * B, 0, NULL},
    {"gemma-2-9b", 9241705984, "transformers", 9.24 * B, 0.01 * B, 0, NULL},
    {"gemma-2-27b", 27227128320, "transformers", 27.2 * B, 0.1 * B, 0, NULL},
    {"gemma-3-1b", 999885952, "transformers", 1.0 * B, 0.1 * B, 0, NULL},
    {"phi-3-mini-4k", 3821079552, "transformers", 3.8 * B, 0.1 * B, 0, NULL},
    {"phi-3-medium-4k", 13960238080, "transformers", 14 * B, B, 0, NULL},
    {"olmo-7b", 6888095744, "transformers", 6.9 * B, 0.1 * B, 0, NULL},
    {"olmo-2-7b", 7298617344, "transformers", 7.3 * B, 0.1 * B, 0, NULL},
    {"olmoe-1b-7b", 6919161856, "transformers", 6.9 * B, 0.1 * B, 0, NULL},
    {"internlm2-7b", 7737708544, "recalled", 7.74 * B, 0.01 * B, 0, NULL},
    {"gpt2", 124439808, "transformers", 124 * M, M, 0, NULL},
    {"gpt2-xl", 1557611200, "transformers", 1.56 * B, 0.01 * B, 0, NULL},
    {"gpt-neox-20b", 20554567680, "transformers", 20.6 * B, 0.1 * B, 0, NULL},
    {"pythia-6.9b", 6857302016, "transformers", 6.9 * B, 0.1 * B, 0, NULL},
    {"falcon-7b", 6921720704, "transformers", 7 * B, B, 0, NULL},
    {"falcon-40b", 41303293952, "transformers", 41 * B, B, 0, NULL},
    {"clip-vit-large-patch14", 303179776, "transformers", 303 * M, M, 2 * 1024, "post_layernorm"},
    {"siglip-so400m-patch14-384", 428225600, "transformers", 428 * M, M,
     1152 + 4 * (1152 * 1152 + 1152) + 2 * 1152 + 2 * 1152 * 4304 + 4304 + 1152,
     "attention pooling head"},
    {"dinov2-base", 86580480, "transformers", 86 * M, M, 0, NULL},
    {"dinov2-giant", 1136480768, "transformers", 1.1 * B, 0.1 * B, 0, NULL},
    {"internvit-300m-448px", 304012288, "recalled", 304 * M, M, 0, NULL},
    {"internvit-6b-448px-v2.5", 0, "card alone", 5.5 * B, 0.1 * B, 0, NULL},
    {"llava-1.5-7b", 7063427072, "transformers", 7.06 * B, 0.01 * B,
     12 * 1024 * 1024 + 13 * 1024 + 2 * 1024, "vision layer behind the features, post_layernorm"},
    {"llava-interleave-qwen-7b", 8141100576, "derived", 8 * B, B, 2 * 1152, "post_layernorm"},
    {"qwen2-vl-2b", 2208985600, "transformers", 2.21 * B, 0.01 * B, 0, NULL},
    {"qwen2-vl-7b", 8291375616, "transformers", 8.29 * B, 0.01 * B, 0, NULL},
    {"qwen2.5-vl-7b", 8292166656, "transformers", 8.29 * B, 0.01 * B, 0, NULL},
    {"internvl2-8b", 8075365376, "recalled", 8.08 * B, 0.01 * B, 0, NULL},
    {"gemma-3-4b", 4300079472, "transformers", 4.3 * B, 0.1 * B, 0, NULL},
    {"paligemma-3b-224", 2923466480, "transformers", 2.92 * B, 0.01 * B, 0, NULL},
};
enum { N_MODELS = sizeof(models) / sizeof(models[0]) };

static const char *path_of(const char *file)
{
    static char path[4096];
    const char *srcdir = getenv("srcdir");

    snprintf(path, sizeof(path), "%s/tests/data/hf/%s.json", srcdir && *srcdir ? srcdir : ".",
             file);
    return path;
}

/* Of a lone LLM or vision tower, or of both. */
static int64_t parameters(const char *file, struct dt_error *err)
{
    const char *path = path_of(file);
    char yaml[3 * 4096];
    struct dt_arena arena = {0};
    struct dt_module tower;
    struct dt_doc *doc = NULL;
    struct dt_model *m = NULL;
    int64_t sum = -1;

    if (dt_hf_module(path, &arena, err, &tower, NULL, 0) == DT_OK) {
        sum = dt_module_params(&tower);
    } else {
        snprintf(yaml, sizeof(yaml), "{hf: \"%s\"}", path);
        if (dt_doc_parse("model.yaml", yaml, strlen(yaml), err, &doc) == DT_OK &&
            dt_model_read(dt_doc_root(doc), err, &m) == DT_OK) {
            sum = 0;
            for (int i = 0; i < m->n_modules; i++)
                sum += dt_module_params(&m->modules[i]);
        }
        dt_doc_free(doc);
        dt_model_free(m);
    }
    dt_arena_free(&arena);
    return sum;
}

START_TEST(published_parameters)
{
    struct dt_error err = {0};
    int64_t got = parameters(models[_i].file, &err), want = models[_i].params;

    ck_assert_msg(got >= 0, "%s: %s:%d: %s", models[_i].file, err.file, err.line, err.message);
    got += models[_i].left_out;
    ck_assert_msg(want == 0 || got == want, "%s: %lld, published %lld (%lld of it left out: %s)",
                  models[_i].file, (long long)got, (long long)want, (long long)models[_i].left_out,
                  models[_i].why ? models[_i].why : "nothing");
    ck_assert_msg(fabs((double)got - models[_i].card) <= models[_i].card_unit, /* rounded or cut */
                  "%s: %lld, on the card %g", models[_i].file, (long long)got, models[_i].card);
}
END_TEST

/* Parameters that a token meets, as published (recalled), in units of the last digit. */
static const struct {
    const char *file;
    double active, unit;
} active[] = {
    {"mixtral-8x7b", 12.9 * B, 0.1 * B}, {"mixtral-8x22b", 39 * B, B},
    {"qwen3-30b-a3b", 3.3 * B, 0.1 * B}, {"qwen3-235b-a22b", 22 * B, B},
    {"deepseek-v2", 21 * B, B},          {"deepseek-v3", 37 * B, B},
    {"olmoe-1b-7b", 1.3 * B, 0.1 * B},   {"deepseek-moe-16b", 2.8 * B, 0.1 * B},
    {"qwen2-57b-a14b", 14 * B, B},       {"qwen1.5-moe-a2.7b", 2.7 * B, 0.1 * B},
    {"llama-3-8b", 8.03 * B, 0.01 * B},
};

START_TEST(published_active_parameters)
{
    struct dt_error err = {0};
    struct dt_arena arena = {0};
    struct dt_module m;
    int64_t got;

    dt_assert_ok(dt_hf_module(path_of(active[_i].file), &arena, &err, &m, NULL, 0), err);
    got = dt_module_active_params(&m);
    ck_assert_msg(fabs((double)got - active[_i].active) <= active[_i].unit, "%s: %lld",
                  active[_i].file, (long long)got);
    dt_arena_free(&arena);
}
END_TEST

/* ---- models with two towers ---- */

static enum dt_status read_yaml(const char *yaml, struct dt_error *err, struct dt_model **m)
{
    struct dt_doc *doc = NULL;
    enum dt_status st;

    dt_assert_ok(dt_doc_parse("model.yaml", yaml, strlen(yaml), err, &doc), *err);
    st = dt_model_read(dt_doc_root(doc), err, m);
    dt_doc_free(doc);
    return st;
}

static const struct {
    const char *file;
    int merge, in, mid, out; /* patches a side of a row; the projector */
} joined[] = {
    {"llava-1.5-7b", 1, 1024, 4096, 4096},        {"llava-interleave-qwen-7b", 1, 1152, 4096, 4096},
    {"qwen2-vl-7b", 2, 4 * 1280, 4 * 1280, 3584}, {"qwen2.5-vl-7b", 2, 4 * 1280, 4 * 1280, 3584},
    {"internvl2-8b", 2, 4 * 1024, 4096, 4096},    {"gemma-3-4b", 4, 1152, 0, 2560},
    {"paligemma-3b-224", 1, 1152, 0, 2048},
};

START_TEST(towers_are_joined)
{
    const char *path = path_of(joined[_i].file);
    char yaml[3 * 4096];
    struct dt_error err = {0};
    struct dt_model *m = NULL, *parts = NULL;
    const struct dt_block *p;

    snprintf(yaml, sizeof(yaml), "{hf: \"%s\", name: both, encoder: {resize: 448}}", path);
    dt_assert_ok(read_yaml(yaml, &err, &m), err);
    ck_assert_str_eq(m->name, "both");
    ck_assert_int_eq(m->n_modules, 2);
    ck_assert_int_eq(m->llm, 1);
    ck_assert_int_eq(m->modules[0].role, DT_ROLE_ENCODER);
    ck_assert_int_eq(m->modules[0].resize, 448); /* a change beside hf */
    ck_assert_int_eq(m->modules[0].merge, joined[_i].merge);
    p = &m->modules[0].blocks[m->modules[0].n_blocks - 1];
    ck_assert_int_eq(p->kind, DT_BLOCK_PROJECTOR);
    ck_assert_int_eq(p->in_dim, joined[_i].in);
    ck_assert_int_eq(p->mid_dim, joined[_i].mid);
    ck_assert_int_eq(p->out_dim, joined[_i].out);
    /* module by module it is the same */
    snprintf(yaml, sizeof(yaml),
             "modules: {eye: {hf: {config: \"%s\", part: vision}}, brain: {hf: {config: \"%s\", "
             "part: text}}}",
             path, path);
    dt_assert_ok(read_yaml(yaml, &err, &parts), err);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(dt_module_params(&m->modules[i]), dt_module_params(&parts->modules[i]));
    dt_model_free(m);
    dt_model_free(parts);
    snprintf(yaml, sizeof(yaml), "modules: {eye: {hf: \"%s\"}}", path);
    ck_assert_int_eq(read_yaml(yaml, &err, &m), DT_ERR_INPUT);
    dt_assert_has(err.message, "or part: vision or part: text");
    snprintf(yaml, sizeof(yaml), "modules: {llm: {hf: {config: \"%s\", part: text}}}",
             path_of("llama-2-7b"));
    ck_assert_int_eq(read_yaml(yaml, &err, &m), DT_ERR_INPUT);
    dt_assert_has(err.message, "a llama config has no two towers: leave out part");
}
END_TEST

/* Presets compute as the published configs of the same models do. */
static const struct {
    const char *preset, *file;
} same[] = {
    {"llama3-1b", "llama-3.2-1b"},      {"llama3-3b", "llama-3.2-3b"},
    {"llama-70b", "llama-2-70b"},       {"mixtral-8x7b", "mixtral-8x7b"},
    {"qwen3-30b-a3b", "qwen3-30b-a3b"},
};

static void same_layer(const struct dt_module *m, const struct dt_module *n, int i)
{
    const struct dt_block *a = &m->blocks[i], *b = &n->blocks[i];

    ck_assert_int_eq(a->kind, b->kind);
    ck_assert_int_eq(a->hidden, b->hidden);
    ck_assert_int_eq(a->ffn, b->ffn);
    ck_assert_int_eq(a->heads, b->heads);
    ck_assert_int_eq(a->kv_heads, b->kv_heads);
    ck_assert_int_eq(a->head_dim, b->head_dim);
    ck_assert_int_eq(a->max_pos, b->max_pos);
    ck_assert_int_eq(a->n_experts, b->n_experts);
    ck_assert_int_eq(a->top_k, b->top_k);
    ck_assert_int_eq(a->window, b->window);
    ck_assert_int_eq(a->tied, b->tied);
    ck_assert_int_eq(a->layernorm, b->layernorm);
    ck_assert_int_eq(a->bias, b->bias);
    ck_assert_int_eq(a->qkv_bias, b->qkv_bias);
    ck_assert_int_eq(a->qk_norm, b->qk_norm);
    if (a->kind != DT_BLOCK_TRANSFORMER)
        return;
    ck_assert_int_eq(dt_block_activation(&m->arith, a), dt_block_activation(&n->arith, b));
    ck_assert_double_eq(dt_block_attention_scale(&m->arith, a),
                        dt_block_attention_scale(&n->arith, b));
    for (int k = 0; k < a->head_dim / 2; k++)
        ck_assert_double_eq(dt_rope_frequency(&m->arith.rope, k, a->head_dim),
                            dt_rope_frequency(&n->arith.rope, k, b->head_dim));
}

START_TEST(presets_are_the_published_models)
{
    struct dt_error err = {0};
    struct dt_model *m = NULL, *n = NULL;
    const struct dt_module *a, *b;
    char yaml[4096 + 64];

    snprintf(yaml, sizeof(yaml), "{modules: {llm: {preset: %s}}}", same[_i].preset);
    dt_assert_ok(read_yaml(yaml, &err, &m), err);
    snprintf(yaml, sizeof(yaml), "{modules: {llm: {hf: \"%s\"}}}", path_of(same[_i].file));
    dt_assert_ok(read_yaml(yaml, &err, &n), err);
    a = &m->modules[0];
    b = &n->modules[0];
    ck_assert_double_eq(dt_module_norm_eps(a), dt_module_norm_eps(b));
    ck_assert_int_eq(a->arith.scale_by_layer, b->arith.scale_by_layer);
    ck_assert_int_eq(a->arith.top_k_raw, b->arith.top_k_raw);
    ck_assert_double_eq(a->arith.balance_loss, b->arith.balance_loss);
    ck_assert_int_eq(a->mixtral_names, b->mixtral_names);
    ck_assert_int_eq(a->n_blocks, b->n_blocks);
    for (int i = 0; i < a->n_blocks; i++)
        same_layer(a, b, i);
    dt_model_free(m);
    dt_model_free(n);
}
END_TEST

/* What blocks cannot express is named. */
static const struct {
    const char *type, *message;
} missing[] = {{"mamba2", "needs state-space layers, which blocks cannot express"},
               {"gpt_oss", "needs attention sinks"},
               {"bloom", "needs ALiBi biases of attention"},
               {"mllama", "cross-attention to an image"},
               {"qwen3_next", "gated linear attention"},
               {"qwen2_vll", "the nearest is \"qwen2_vl\""},
               {"qwen9", "the nearest is \"qwen2\""}};

START_TEST(missing_features_are_named)
{
    struct dt_error err = {0};
    struct dt_arena arena = {0};
    struct dt_module m;
    char path[] = "hf-missing-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");

    fprintf(f, "{\"model_type\": \"%s\"}", missing[_i].type);
    fclose(f);
    ck_assert_int_eq(dt_hf_module(path, &arena, &err, &m, NULL, 0), DT_ERR_INPUT);
    dt_assert_has(err.message, missing[_i].message);
    remove(path);
    dt_arena_free(&arena);
}
END_TEST

/* LLaVA's features are those of a layer, whatever the tower has behind its last one. */
START_TEST(features_pass_no_norm)
{
    static const char *const files[] = {"llava-1.5-7b", "llava-interleave-qwen-7b"};
    static const int layers[] = {23, 26};
    struct dt_error err = {0};
    struct dt_model *m = NULL;
    char yaml[4096 + 16];
    const struct dt_module *tower;
    int n = 0;

    snprintf(yaml, sizeof(yaml), "{hf: \"%s\"}", path_of(files[_i]));
    dt_assert_ok(read_yaml(yaml, &err, &m), err);
    tower = &m->modules[0];
    for (int i = 0; i < tower->n_blocks; i++)
        n += tower->blocks[i].kind == DT_BLOCK_TRANSFORMER;
    ck_assert_int_eq(n, layers[_i]);
    ck_assert_int_eq(tower->blocks[tower->n_blocks - 2].kind, DT_BLOCK_TRANSFORMER);
    ck_assert_int_eq(tower->blocks[tower->n_blocks - 1].kind, DT_BLOCK_PROJECTOR);
    dt_model_free(m);
}
END_TEST

/* What stands around the towers has what the config says, or is refused. */
#define SELECT "vision_feature_select_strategy"
static const struct {
    const char *file, *from, *to, *message;
} edits[] = {
    {"llava-1.5-7b", "\"projector_hidden_act\": \"gelu\"", "\"projector_hidden_act\": \"relu\"",
     "projector_hidden_act: relu is not supported (supported: gelu"},
    {"llava-1.5-7b", "\"default\"", "\"full\"",
     SELECT ": \"full\" is not supported (supported: default; the class token"},
    {"llava-interleave-qwen-7b", "\"full\"", "\"default\"",
     SELECT ": \"default\" is not supported (supported: full; the tower has no class token"},
    {"llava-interleave-qwen-7b", "\"" SELECT "\": \"full\",", "",
     SELECT ": \"default\", the library's default, is not supported (supported: full"},
    {"llava-1.5-7b", "\"default\"", "\"first\"", SELECT ": \"first\" is not supported"},
    {"llava-1.5-7b", "\"default\"", "null", SELECT ": null is not supported"},
};

START_TEST(other_joints_are_refused)
{
    struct dt_error err = {0};
    struct dt_model *m = NULL;
    char path[] = "hf-joint-XXXXXX", yaml[128], *text = NULL, *at;
    size_t len;
    FILE *f;

    dt_assert_ok(dt_file_read(path_of(edits[_i].file), 1 << 20, &err, &text, &len), err);
    at = strstr(text, edits[_i].from);
    ck_assert_ptr_nonnull(at);
    f = fdopen(mkstemp(path), "w");
    fprintf(f, "%.*s%s%s", (int)(at - text), text, edits[_i].to, at + strlen(edits[_i].from));
    fclose(f);
    dt_free(text);
    snprintf(yaml, sizeof(yaml), "{hf: \"./%s\"}", path);
    ck_assert_int_eq(read_yaml(yaml, &err, &m), DT_ERR_INPUT);
    dt_assert_has(err.message, edits[_i].message);
    ck_assert(err.line > 0 && err.col > 0);
    remove(path);
}
END_TEST

static int table(void)
{
    for (int i = 0; i < N_MODELS; i++) {
        struct dt_error err = {0};

        printf("%s %lld\n", models[i].file,
               (long long)(parameters(models[i].file, &err) + models[i].left_out));
    }
    return 0;
}

int main(int argc, char **argv)
{
    Suite *suite = suite_create("hf-models");
    TCase *c = dt_test_case(suite, "models", 0);

    if (argc > 1 && strcmp(argv[1], "--table") == 0)
        return table();
    tcase_add_loop_test(c, published_parameters, 0, N_MODELS);
    tcase_add_loop_test(c, published_active_parameters, 0, sizeof(active) / sizeof(active[0]));
    tcase_add_loop_test(c, towers_are_joined, 0, sizeof(joined) / sizeof(joined[0]));
    tcase_add_loop_test(c, presets_are_the_published_models, 0, sizeof(same) / sizeof(same[0]));
    tcase_add_loop_test(c, missing_features_are_named, 0, sizeof(missing) / sizeof(missing[0]));
    tcase_add_loop_test(c, features_pass_no_norm, 0, 2);
    tcase_add_loop_test(c, other_joints_are_refused, 0, sizeof(edits) / sizeof(edits[0]));
    return dt_test_run(suite);
}
