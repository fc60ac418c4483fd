/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Models, blocks and Hugging Face imports: totals against published ones, kernels against
 * closed forms, messages against what they should say. */
#include "base/mem.h"
#include "core/model/block_ops.h"
#include "core/model/model.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

/* `model: <yaml>` as a job would read it. */
static enum dt_status read_model(const char *yaml, struct dt_error *err, struct dt_model **out)
{
    struct dt_doc *doc = NULL;
    char text[4096];
    enum dt_status st;

    snprintf(text, sizeof(text), "model: %s\n", yaml);
    st = dt_doc_parse("job.yaml", text, strlen(text), err, &doc);
    if (st == DT_OK)
        st = dt_model_read(dt_map_get(dt_doc_root(doc), "model"), err, out);
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

static struct dt_work work_of(int64_t n, int64_t tokens)
{
    return (struct dt_work){n, n * tokens, n * tokens * tokens, tokens};
}

/* Forward FLOPs, or parameters, of the blocks of one kind (all kinds but projectors for `kind` -1).
 */
static double flops_of(const struct dt_module *m, int kind, const struct dt_work *w)
{
    double sum = 0;

    for (int i = 0; i < m->n_blocks; i++)
        if (kind < 0 ? m->blocks[i].kind != DT_BLOCK_PROJECTOR : (int)m->blocks[i].kind == kind)
            sum += dt_block_flops(&m->blocks[i], w);
    return sum;
}

static int64_t params_of(const struct dt_module *m)
{
    int64_t sum = 0;

    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].kind != DT_BLOCK_PROJECTOR)
            sum += dt_block_params(&m->blocks[i]);
    return sum;
}

static void assert_near(double got, double want, double rel, const char *what)
{
    ck_assert_msg(fabs(got - want) <= rel * fabs(want), "%s: %.9g, expected %.9g within %g", what,
                  got, want, rel);
}

/* ---- totals ---- */

static const struct {
    const char *model, *module;
    int64_t params;
} totals[] = {
    {"llama-7b", "llm", 6738415616},
    {"llama-13b", "llm", 13015864320},
    {"llama-70b", "llm", 68976648192},
    {"{preset: llama-7b, llm: {vocab: 128256}}", "llm", 7526944768},
    {"{preset: llama-13b, llm: {vocab: 128256}}", "llm", 14001525760},
    {"{preset: llama-70b, llm: {vocab: 128256}}", "llm", 70553706496},
    {"gpt3-175b", "llm", 174615846912},
    {"{preset: mllm-9b, encoder: {patch: 14}}", "encoder", 630764800},
    {"mllm-9b", "encoder", 630995200},
    {"llama3-1b", "llm", 1235814400},
    {"llama3-3b", "llm", 3212749824},
    {"{modules: {encoder: {preset: qwen2.5-vl-vit}, llm: {preset: llama3-3b}}}", "encoder",
     631976960},
    {"mixtral-8x7b", "llm", 46702792704},
    {"qwen3-30b-a3b", "llm", 30532122624},
    {"mllm-9b", "llm", 6738415616},
    {"mllm-15b", "llm", 13015864320},
    {"mllm-72b", "llm", 68976648192},
    {"mllm-72b", "generator", 865910724},
    {"mllm-audio", "generator", 185036552},
};

START_TEST(params_are_pinned)
{
    struct dt_model *m = must_read(totals[_i].model);

    ck_assert_int_eq(params_of(module(m, totals[_i].module)), totals[_i].params);
    dt_model_free(m);
}
END_TEST

/* FACTS, "model shapes and FLOPs" (derived): training PFLOP of 8,192 tokens, causal and full */
static const struct {
    const char *model;
    double causal, full;
} llm_flops[] = {{"llama-7b", 0.378e15, 0.430e15},
                 {"llama-13b", 0.714e15, 0.797e15},
                 {"llama-70b", 3.641e15, 3.905e15}};

START_TEST(llm_flops_are_pinned)
{
    struct dt_model *m = must_read(llm_flops[_i].model);
    struct dt_module *llm = &m->modules[m->llm];
    struct dt_work w = work_of(1, 8192);
    double half_digit = 0.5e12 * 1.0001;

    ck_assert_double_eq_tol(3 * dt_module_flops(llm, &w), llm_flops[_i].causal, half_digit);
    for (int b = 0; b < llm->n_blocks; b++)
        llm->blocks[b].causal = false;
    ck_assert_double_eq_tol(3 * dt_module_flops(llm, &w), llm_flops[_i].full, half_digit);
    dt_model_free(m);
}
END_TEST

START_TEST(encoder_and_unet_flops_are_pinned)
{
    struct dt_model *m = must_read("mllm-72b");
    const struct dt_module *vit = module(m, "encoder"), *unet = module(m, "generator");
    struct dt_work small = work_of(1, 1024), large = work_of(1, 4096),
                   latent = work_of(1, 128 * 128);

    /* FACTS counts the transformer layers; the patch embedding adds 2 * tokens * 768 * 1280 */
    ck_assert_double_eq_tol(flops_of(vit, DT_BLOCK_TRANSFORMER, &small), 1.460e12, 0.5e9);
    ck_assert_double_eq_tol(flops_of(vit, DT_BLOCK_TRANSFORMER, &large), 7.903e12, 0.5e9);
    assert_near(flops_of(vit, DT_BLOCK_PATCH_EMBED, &small), 2.0 * 1024 * 768 * 1280, 1e-12,
                "patches");
    ck_assert_double_eq_tol(flops_of(unet, -1, &large), 0.804e12, 0.5e9);
    ck_assert_double_eq_tol(flops_of(unet, -1, &latent), 4.675e12, 0.5e9);
    /* output projector: 77 tokens of 8192 -> 1024 -> 1024 per image */
    assert_near(flops_of(unet, DT_BLOCK_PROJECTOR, &large), 2.0 * 77 * (8192 * 1024 + 1024 * 1024),
                1e-12, "projector");
    dt_model_free(m);
    m = must_read("mllm-audio");
    ck_assert_double_eq_tol(flops_of(module(m, "generator"), -1, &large), 0.1034e12, 0.05e9);
    dt_model_free(m);
}
END_TEST

START_TEST(graph_and_widths)
{
    struct dt_model *m = must_read("mllm-72b");

    ck_assert_int_eq(m->n_modules, 3);
    ck_assert_int_eq(m->llm, 1);
    ck_assert_int_eq(m->n_edges, 2);
    ck_assert_int_eq(m->edges[0].src, 0);
    ck_assert_int_eq(m->edges[1].dst, 2);
    ck_assert_int_eq(m->modules[0].out_width, 8192);
    ck_assert_int_eq(m->modules[0].out_tokens_per_item, 0);
    ck_assert_int_eq(m->modules[1].out_width, 8192);
    ck_assert_int_eq(m->modules[1].out_tokens_per_item, 77);
    ck_assert_int_eq(m->modules[2].resize, 512);
    ck_assert_int_eq(m->modules[0].patch, 16);
    ck_assert_int_eq(m->modules[0].blocks[m->modules[0].n_blocks - 1].kind, DT_BLOCK_PROJECTOR);
    ck_assert_int_eq(m->modules[2].blocks[0].kind, DT_BLOCK_PROJECTOR);
    dt_model_free(m);
}
END_TEST

/* ---- blocks ---- */

static struct dt_block random_layer(struct dt_rng *r, int tp)
{
    int groups = 1 << dt_rng_below(r, 3), kv = tp << dt_rng_below(r, 3);

    return (struct dt_block){.kind = DT_BLOCK_TRANSFORMER,
                             .heads = kv * groups,
                             .kv_heads = kv,
                             .head_dim = 8 * (int)(1 + dt_rng_below(r, 16)),
                             .hidden = tp * (int)(17 + dt_rng_below(r, 500)),
                             .ffn = tp * (int)(13 + dt_rng_below(r, 900)),
                             .causal = dt_rng_below(r, 2),
                             .gated = dt_rng_below(r, 2)};
}

/* 2s(h q + 2 h k + q h + (2 or 3) h f) + (2 or 4) sum(s^2) q, for any mix of sequence lengths; and
 * shards of tensor, context and expert parallelism add up to the whole. */
START_TEST(transformer_flops_match_the_closed_form)
{
    static const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 1);
    for (int round = 0; round < 300; round++) {
        int tp = 1 << dt_rng_below(&r, 4), cp = 1 << dt_rng_below(&r, 3),
            items = 1 + (int)dt_rng_below(&r, 9);
        struct dt_block b = random_layer(&r, tp);
        struct dt_block_shard s = {.tp = tp, .cp = cp, .ep = 1, .ip = 1, .seqpar = true};
        struct dt_kop ops[DT_MAX_KOPS], one[DT_MAX_KOPS];
        struct dt_work w = {0};
        double q = (double)b.heads * b.head_dim, k = (double)b.kv_heads * b.head_dim, h = b.hidden,
               sum = 0;
        double want, whole_sum = 0;

        for (int i = 0; i < items; i++) {
            int64_t t = 1 + (int64_t)dt_rng_below(&r, 4097);
            struct dt_work item = {1, t, t * t, t};

            dt_work_add(&w, &item);
        }
        want = 2.0 * (double)w.tokens * (2 * h * q + 2 * h * k + (b.gated ? 3 : 2) * h * b.ffn) +
               (b.causal ? 2.0 : 4.0) * (double)w.tokens_sq * q;
        for (int i = 0, n = dt_block_kops(&b, &s, &w, ops); i < n; i++)
            sum += ops[i].flops * ops[i].count;
        for (int i = 0, n = dt_block_kops(&b, &whole, &w, one); i < n; i++)
            whole_sum += one[i].flops * one[i].count;
        ck_assert_msg(fabs(whole_sum / want - 1) < 1e-12 && fabs(sum * tp * cp / want - 1) < 1e-12,
                      "round %d of seed %" PRIu64 ": %g and %g of %g", round, dt_test_seed(),
                      whole_sum, sum * tp * cp, want);
    }
}
END_TEST

static int count_family(const struct dt_kop *ops, int n, enum dt_kop_family f, double *bytes)
{
    int found = 0;

    for (int i = 0; i < n; i++)
        if (ops[i].family == f) {
            found++;
            *bytes = ops[i].bytes;
        }
    return found;
}

START_TEST(tensor_parallel_layer_lists_its_collectives)
{
    struct dt_block b = {.kind = DT_BLOCK_TRANSFORMER,
                         .hidden = 8192,
                         .ffn = 28672,
                         .heads = 64,
                         .kv_heads = 8,
                         .head_dim = 128,
                         .causal = true,
                         .gated = true};
    struct dt_block_shard s = {.tp = 8, .cp = 1, .ep = 1, .ip = 1, .seqpar = true};
    struct dt_work w = work_of(1, 8192);
    struct dt_kop ops[DT_MAX_KOPS];
    double bytes = 0;
    int n = dt_block_kops(&b, &s, &w, ops);

    ck_assert_int_eq(count_family(ops, n, DT_KOP_ALL_GATHER, &bytes), 2);
    ck_assert_double_eq(bytes, 8192.0 * 8192 * 2);
    ck_assert_int_eq(count_family(ops, n, DT_KOP_REDUCE_SCATTER, &bytes), 2);
    ck_assert_double_eq(bytes, 8192.0 * 8192 * 2);
    ck_assert_int_eq(count_family(ops, n, DT_KOP_ALL_REDUCE, &bytes), 0);
    ck_assert_int_eq(count_family(ops, n, DT_KOP_NORM, &bytes), 2);
    ck_assert_double_eq(bytes, 8192.0 / 8 * 8192 * 2 * 2);
    s.seqpar = false;
    n = dt_block_kops(&b, &s, &w, ops);
    ck_assert_int_eq(count_family(ops, n, DT_KOP_ALL_REDUCE, &bytes), 2);
    ck_assert_int_eq(count_family(ops, n, DT_KOP_ALL_GATHER, &bytes), 0);
    s.tp = 1;
    n = dt_block_kops(&b, &s, &w, ops);
    ck_assert_int_eq(count_family(ops, n, DT_KOP_ALL_REDUCE, &bytes), 0);
}
END_TEST

/* Mixtral-like layer: top_k of the experts' MLPs are computed, all of them are stored. */
START_TEST(experts_compute_top_k_and_store_all)
{
    struct dt_block dense = {.kind = DT_BLOCK_TRANSFORMER,
                             .hidden = 512,
                             .ffn = 1408,
                             .heads = 8,
                             .kv_heads = 8,
                             .head_dim = 64,
                             .causal = true,
                             .gated = true};
    struct dt_block moe = dense;
    struct dt_work w = work_of(2, 640);
    struct dt_block_shard s = {.tp = 1, .cp = 1, .ep = 4, .ip = 1};
    struct dt_kop ops[DT_MAX_KOPS];
    double mlp = 2.0 * 1280 * 3 * 512 * 1408, router = 2.0 * 1280 * 512 * 8, bytes = 0, sum = 0;
    int n;

    moe.n_experts = 8;
    moe.top_k = 2;
    assert_near(dt_block_flops(&moe, &w), dt_block_flops(&dense, &w) + mlp + router, 1e-12,
                "MoE FLOPs");
    ck_assert_int_eq(dt_block_params(&moe) - dt_block_params(&dense), 7 * 3 * 512 * 1408 + 512 * 8);
    n = dt_block_kops(&moe, &s, &w, ops);
    ck_assert_int_eq(count_family(ops, n, DT_KOP_ALL_TO_ALL, &bytes), 2);
    ck_assert_double_eq(bytes, 1280.0 * 2 * 512 * 2);
    for (int i = 0; i < n; i++)
        sum += ops[i].flops * ops[i].count;
    /* every rank of the expert group brings its own tokens: the work per rank does not shrink */
    assert_near(sum, dt_block_flops(&moe, &w), 1e-12, "expert-parallel work");
}
END_TEST

/* ip ranks take whole images: never less than an equal share, never less than the largest image. */
START_TEST(image_parallel_share)
{
    struct dt_block b = {.kind = DT_BLOCK_TRANSFORMER,
                         .hidden = 256,
                         .ffn = 1024,
                         .heads = 4,
                         .kv_heads = 4,
                         .head_dim = 64};
    struct dt_block_shard s = {.tp = 1, .cp = 1, .ep = 1, .ip = 8};
    struct dt_work even = work_of(16, 700), lone = work_of(1, 700), mixed = {3, 900, 300000, 500};
    struct dt_kop ops[DT_MAX_KOPS];

    ck_assert_int_gt(dt_block_kops(&b, &s, &even, ops), 0);
    ck_assert_int_eq(ops[1].d[0], 2 * 700);
    dt_block_kops(&b, &s, &lone, ops);
    ck_assert_int_eq(ops[1].d[0], 700);
    dt_block_kops(&b, &s, &mixed, ops);
    ck_assert_int_eq(ops[1].d[0], 500);
}
END_TEST

/* Every block of every preset under every split: dimensions and bytes positive, list within bounds,
 * empty work lists nothing, tensor parallelism never adds work. */
START_TEST(kernel_lists_are_sane)
{
    static const char *const presets[] = {"mllm-72b", "mllm-audio", "gpt3-175b", "mllm-nano",
                                          "mllm-tiny"};
    struct dt_model *m = must_read(presets[_i]);
    struct dt_work w = {3, 1237, 700001, 800}, none = {0};
    struct dt_kop ops[DT_MAX_KOPS];

    for (int i = 0; i < m->n_modules; i++)
        for (int k = 0; k < m->modules[i].n_blocks; k++)
            for (int tp = 1; tp <= 8; tp *= 2) {
                const struct dt_block *b = &m->modules[i].blocks[k];
                struct dt_block_shard s = {.tp = tp, .cp = 1, .ep = 1, .ip = 1, .seqpar = tp > 1};
                int n = dt_block_kops(b, &s, &w, ops);
                double sum = 0;

                ck_assert_int_gt(n, 0);
                ck_assert_int_lt(n, DT_MAX_KOPS);
                ck_assert_int_eq(dt_block_kops(b, &s, &none, ops + n), 0);
                for (int o = 0; o < n; o++) {
                    ck_assert_int_ge(ops[o].d[0], 1);
                    ck_assert_int_ge(ops[o].d[1], 1);
                    ck_assert_double_gt(ops[o].bytes, 0);
                    ck_assert_double_gt(ops[o].count, 0);
                    ck_assert_double_ge(ops[o].flops, 0);
                    sum += ops[o].flops * ops[o].count;
                }
                ck_assert_double_le(sum, dt_block_flops(b, &w) * (1 + 1e-9));
            }
    dt_model_free(m);
}
END_TEST

/* ---- activations ---- */

/* Korthikanti et al. 2022: 34 s h without scores, less two 1-byte dropout masks, plus 4 bytes per
 * head of log-sum-exp that flash attention keeps instead of them, plus 4 of each RMSNorm. */
START_TEST(activation_bytes_follow_the_paper)
{
    struct dt_block b = {.kind = DT_BLOCK_TRANSFORMER,
                         .hidden = 6144,
                         .ffn = 4 * 6144,
                         .heads = 64,
                         .kv_heads = 64,
                         .head_dim = 96,
                         .causal = true};
    struct dt_block_shard s = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct dt_work w = work_of(4, 2048);
    double tokens = 4 * 2048, whole = tokens * (32.0 * 6144 + 4 * 64 + 2 * 4);

    assert_near(dt_block_act_bytes(&b, &s, &w, DT_RECOMPUTE_NONE), whole, 1e-12, "none");
    assert_near(dt_block_act_bytes(&b, &s, &w, DT_RECOMPUTE_SELECTIVE),
                tokens * (20.0 * 6144 + 4 * 64), 1e-12, "selective");
    assert_near(dt_block_act_bytes(&b, &s, &w, DT_RECOMPUTE_FULL), tokens * 2 * 6144, 1e-12,
                "full");
    s.tp = 8;
    s.seqpar = true;
    assert_near(dt_block_act_bytes(&b, &s, &w, DT_RECOMPUTE_NONE), whole / 8, 1e-12, "tp and s.p.");
    /* the residual stream (2 inputs and 2 outputs of norms) is whole on every rank */
    s.seqpar = false;
    assert_near(dt_block_act_bytes(&b, &s, &w, DT_RECOMPUTE_NONE),
                (whole - tokens * (8 * 6144 + 8)) / 8 + tokens * (8 * 6144 + 8), 1e-12, "tp alone");
}
END_TEST

START_TEST(activation_bytes_are_ordered)
{
    static const char *const presets[] = {"mllm-72b", "mllm-audio", "mllm-nano"};
    struct dt_model *m = must_read(presets[_i]);
    struct dt_work w = work_of(2, 1024), twice = work_of(4, 1024), none = {0};
    struct dt_block_shard s = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};

    for (int i = 0; i < m->n_modules; i++)
        for (int k = 0; k < m->modules[i].n_blocks; k++) {
            const struct dt_block *b = &m->modules[i].blocks[k];
            double v[3];

            for (int r = 0; r < 3; r++) {
                v[r] = dt_block_act_bytes(b, &s, &w, (enum dt_block_recompute)r);
                assert_near(dt_block_act_bytes(b, &s, &twice, (enum dt_block_recompute)r), 2 * v[r],
                            1e-12, "twice");
                ck_assert_double_eq(dt_block_act_bytes(b, &s, &none, (enum dt_block_recompute)r),
                                    0);
            }
            ck_assert_double_gt(v[2], 0);
            ck_assert_double_ge(v[1], v[2]);
            ck_assert_double_ge(v[0], v[1]);
        }
    dt_model_free(m);
}
END_TEST

/* ---- Hugging Face ---- */

static const char *hf_path(const char *name)
{
    static char path[4096];
    const char *srcdir = getenv("srcdir");

    snprintf(path, sizeof(path), "%s/tests/data/hf/%s.json", srcdir && *srcdir ? srcdir : ".",
             name);
    return path;
}

static const struct {
    const char *name;
    int64_t params;
    const char *assumed; /* a line that must be reported, or NULL */
} hf_totals[] = {
    {"llama-2-7b", 6738415616, "num_key_value_heads: 32"},
    {"llama-3-8b", 8030261248, NULL},
    {"qwen2-7b", 7615616512, NULL},
    {"qwen2-0.5b", 494032768, NULL},
    {"qwen3-0.6b", 596049920, NULL},
    {"mixtral-8x7b", 46702792704, "tie_word_embeddings: false"},
    {"gpt2", 124439808, "n_inner: 3072"},
    {"vit-base-patch16-224", 85798656, "pooler: left out"},
    {"vit-huge-patch14-224", 630764800, NULL},
    {"clip-vit-large-patch14", 303177728, "num_channels: 3"}, /* 303,179,776 with post_layernorm */
    {"siglip-base-patch16-224", 85797120,
     "attention pooling head: left out"}, /* 92,884,224 with it */
    {"sd-2-1-unet", 865910724, "context_len: 77"},
    {"sd-1-5-unet", 859520964, "latent_scale: 8"},
    {"sdxl-unet", 2567463684, NULL},
};

START_TEST(hf_params_match_the_published_models)
{
    struct dt_arena arena = {0};
    struct dt_module m;
    struct dt_error err = {0};
    char assumed[1024] = "";

    dt_assert_ok(
        dt_hf_module(hf_path(hf_totals[_i].name), &arena, &err, &m, assumed, sizeof(assumed)), err);
    ck_assert_int_eq(dt_module_params(&m), hf_totals[_i].params);
    if (hf_totals[_i].assumed)
        dt_assert_has(assumed, hf_totals[_i].assumed);
    dt_arena_free(&arena);
}
END_TEST

START_TEST(hf_modules_make_a_model)
{
    char yaml[3 * 4096], vit[4096], llm[4096];
    struct dt_model *m;

    snprintf(vit, sizeof(vit), "%s", hf_path("vit-huge-patch14-224"));
    snprintf(llm, sizeof(llm), "%s", hf_path("llama-2-7b"));
    snprintf(yaml, sizeof(yaml),
             "{name: mine, modules: {eye: {hf: '%s', patch: 16}, brain: {hf: '%s'}, "
             "hand: {preset: sd21-unet, resize: 1024, projector: linear}}}",
             vit, llm);
    m = must_read(yaml);
    ck_assert_str_eq(m->name, "mine");
    ck_assert_int_eq(params_of(module(m, "eye")), 630995200);
    ck_assert_int_eq(module(m, "hand")->resize, 1024);
    ck_assert_int_eq(dt_block_params(&module(m, "hand")->blocks[0]), 4096 * 1024 + 1024);
    dt_assert_has(m->assumed, "brain.num_key_value_heads: 32");
    dt_assert_has(m->assumed, "eye.pooler: left out");
    dt_model_free(m);
}
END_TEST

/* ---- model files ---- */

static const struct {
    const char *yaml;
    int col;
    const char *message;
} bad_models[] = {
    {"mlm-72b", 8, "did you mean \"mllm-72b\""},
    {"vit-huge", 8, "has no LLM"},
    {"[1]", 8, "expected a preset name"},
    {"{}", 8, "needs \"preset\" or \"modules\""},
    {"{modles: {}}", 9, "did you mean \"modules\""},
    {"{preset: mllm-9b, generater: {resize: 512}}", 37, "did you mean \"generator\""},
    {"{preset: mllm-9b, generator: {resise: 512}}", 38, "did you mean \"resize\""},
    {"{preset: mllm-9b, generator: {resize: big}}", 46, "resize: expected an integer"},
    {"{preset: mllm-9b, generator: {resize: 513}}", 37, "not a multiple of latent_scale 8"},
    {"{preset: mllm-9b, llm: {heads: 33}}", 31, "not a multiple of heads 33"},
    {"{preset: mllm-9b, llm: {kv_heads: 5}}", 31, "not a multiple of kv_heads 5"},
    {"{preset: mllm-9b, llm: {experts: 4}}", 31, "top_k"},
    {"{preset: mllm-9b, llm: {kind: unet}}", 38, "of kind llm already"},
    {"{preset: mllm-9b, llm: {modality: image}}", 31, "text"},
    {"{preset: mllm-9b, encoder: {modality: audio}}", 35, "frames_per_s"},
    {"{preset: mllm-nano-audio, encoder: {frames_per_s: 50}}", 43, "leave one of the two out"},
    {"{preset: mllm-nano-audio, encoder: {modality: image}}", 43, "state modality: audio"},
    {"{preset: mllm-nano-audio, encoder: {mel_bins: 100}}", 43, "no multiple of patch 16"},
    {"{preset: mllm-nano-audio, encoder: {mel_bins: 8}}", 54, "mel_bins"},
    {"{preset: mllm-nano-audio, encoder: {channels: 3}}", 43, "has 1, not 3"},
    {"{preset: mllm-nano-audio, encoder: {resize: 64}}", 43, "resize: it is of images"},
    {"{preset: mllm-nano-audio, encoder: {positions: 497}}", 43, "no multiple of the 8"},
    {"{preset: mllm-nano-audio, encoder: {positions: 4}}", 43, "no multiple of the 8"},
    {"{preset: mllm-9b, llm: {attention: unfused, window: 64}}", 43, "without a window; use flash"},
    {"{preset: mllm-9b, llm: {attention: unfused, qk_norm: true}}", 43, "without norms of queries"},
    {"{preset: mllm-9b, llm: {attention: unfused, norms: 4}}", 43, "other than two norms"},
    {"{preset: mllm-9b, llm: {experts: 4, top_k: 2, attention: unfused}}", 65, "without experts"},
    {"{preset: mllm-9b, encoder: {merge_by: mean}}", 46, "merge_by counts with merge"},
    {"{preset: mllm-9b, encoder: {window_every: 2}}", 50, "window_every counts with window"},
    {"{preset: mllm-9b, encoder: {frames_per_s: 50}}", 50,
     "frames_per_s counts with modality: audio"},
    {"{preset: mllm-9b, generator: {frames_per_s: 50}}", 52,
     "frames_per_s counts with modality: audio"},
    {"{preset: mllm-9b, generator: {class_layers: 2}}", 52, "class_layers counts with class_dim"},
    {"{preset: mllm-9b, encoder: {preset: beats, resize: 64}}", 59,
     "resize counts with modality: image"},
    {"{preset: mllm-9b, encoder: {preset: mllm-9b}}", 44, "is a whole model"},
    {"{preset: mllm-9b, encoder: {preset: vit-huge, hf: x.json}}", 58, "not from both"},
    {"{preset: mllm-9b, generator: {attention: [true, maybe]}}", 49, "2 values for 4 levels"},
    {"{preset: mllm-9b, generator: {channels: [12]}}", 37, "channels at level 0"},
    {"{preset: mllm-9b, generator: {context_len: 0}}", 37, "nothing takes in"},
    {"{modules: {a: {preset: llama-7b}, b: {preset: llama-7b}}}", 8, "both LLMs"},
    {"{modules: {\"a b\": {preset: llama-7b}}}", 26, "letters, digits"},
    {"{modules: {a: {kind: llm}}}", 22, "\"layers\" is missing"},
    {"{modules: {a: {layers: 3}}}", 23, "unknown key \"layers\""},
    {"{modules: {a: {}}}", 22, "needs \"preset\", \"hf\" or \"kind\""},
    {"{hf: missing.json}", 13, "no file \"missing.json\""},
};

START_TEST(model_errors_explain)
{
    struct dt_error err = {0};
    struct dt_model *m = NULL;

    ck_assert_int_eq(read_model(bad_models[_i].yaml, &err, &m), DT_ERR_INPUT);
    dt_assert_has(err.message, bad_models[_i].message);
    ck_assert_str_eq(err.file, "job.yaml");
    ck_assert_int_eq(err.line, 1);
    ck_assert_int_eq(err.col, bad_models[_i].col);
    ck_assert_ptr_null(m);
}
END_TEST

START_TEST(model_survives_failing_allocations)
{
    struct dt_error err = {0};
    struct dt_model *m = NULL;
    uint64_t total;

    dt_mem_fail_at(0);
    ck_assert_int_eq(read_model("mllm-nano", &err, &m), DT_OK);
    dt_model_free(m);
    total = dt_mem_count();
    ck_assert_uint_gt(total, 3);
    for (uint64_t k = 1; k <= total; k++) {
        m = NULL;
        dt_mem_fail_at(k);
        if (read_model("mllm-nano", &err, &m) == DT_OK) /* an allocation that may fail harmlessly */
            dt_model_free(m);
        else
            ck_assert_int_eq(err.status, DT_ERR_NOMEM);
    }
    dt_mem_fail_at(0);
}
END_TEST

/* ---- the suite ---- */

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* A row may leave out only `input`: what a new kind forgets is found here at the latest. */
START_TEST(every_kind_of_block_has_a_whole_row)
{
    for (int k = 0; k < DT_BLOCK_KIND_N; k++) {
        struct dt_block b = {.kind = (enum dt_block_kind)k};
        const struct dt_block_row *r = dt_block_row_of(&b);

        ck_assert_msg(r->by_items && r->params && r->kernels && r->kept && r->cpu_flow &&
                          r->cpu_temporaries && r->cpu_packed && r->cpu_scratch,
                      "%s: its row lacks a function", dt_block_kind_name(b.kind));
        for (int o = 0; o < k; o++)
            ck_assert_str_ne(dt_block_kind_name(b.kind), dt_block_kind_name((enum dt_block_kind)o));
    }
}
END_TEST

static void add_blocks(Suite *s)
{
    TCase *t = dt_test_case(s, "blocks", 0);

    tcase_add_test(t, every_kind_of_block_has_a_whole_row);
    tcase_add_test(t, transformer_flops_match_the_closed_form);
    tcase_add_test(t, tensor_parallel_layer_lists_its_collectives);
    tcase_add_test(t, experts_compute_top_k_and_store_all);
    tcase_add_test(t, image_parallel_share);
    tcase_add_loop_test(t, kernel_lists_are_sane, 0, 5);
    tcase_add_test(t, activation_bytes_follow_the_paper);
    tcase_add_loop_test(t, activation_bytes_are_ordered, 0, 3);
}

static void add_models(Suite *s)
{
    TCase *t = dt_test_case(s, "models", 0);

    tcase_add_loop_test(t, params_are_pinned, 0, COUNT(totals));
    tcase_add_loop_test(t, llm_flops_are_pinned, 0, COUNT(llm_flops));
    tcase_add_test(t, encoder_and_unet_flops_are_pinned);
    tcase_add_test(t, graph_and_widths);
    tcase_add_loop_test(t, hf_params_match_the_published_models, 0, COUNT(hf_totals));
    tcase_add_test(t, hf_modules_make_a_model);
    tcase_add_loop_test(t, model_errors_explain, 0, COUNT(bad_models));
    tcase_add_test(t, model_survives_failing_allocations);
}

int main(void)
{
    Suite *s = suite_create("model");

    add_blocks(s);
    add_models(s);
    return dt_test_run(s);
}
