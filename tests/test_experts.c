/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Layers beyond the plain one: experts, latent attention, windows and other norms, each against a closed form written
 * from the papers. */
#include "core/model/model.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static enum dt_status try_model(const char *keys, struct dt_error *err, struct dt_model **m)
{
    char text[1024];
    struct dt_doc *doc = NULL;
    enum dt_status st;

    snprintf(text, sizeof(text), "{kind: llm, vocab: 1000, %s}", keys);
    dt_assert_ok(dt_doc_parse("model.yaml", text, strlen(text), err, &doc), *err);
    st = dt_model_read(dt_doc_root(doc), err, m);
    dt_doc_free(doc);
    return st;
}

static struct dt_model *read_model(const char *keys)
{
    struct dt_error err = {0};
    struct dt_model *m = NULL;

    dt_assert_ok(try_model(keys, &err, &m), err);
    return m;
}

static struct dt_work work_of(int64_t n, int64_t tokens)
{
    return (struct dt_work){n, n * tokens, n * tokens * tokens, tokens};
}

#define MOE                                                                                        \
    "layers: 6, hidden: 64, ffn: 200, heads: 4, kv_heads: 2, experts: 8, top_k: 2, expert_ffn: "   \
    "48"
enum { H = 64, KV = 32, ATTN = 2 * H * H + 2 * H * KV, EXPERT = 3 * H * 48, DENSE = 3 * H * 200 };

/* ---- experts ---- */

static const struct {
    const char *more;
    int moe;        /* layers of the six that have experts */
    const char *at; /* '1' for each of them */
    int64_t shared; /* parameters per layer with experts, beside experts and router */
} mixes[] = {
    {"", 6, "111111", 0},
    {", dense_first: 1", 5, "011111", 0},
    {", moe_every: 2", 3, "010101", 0},
    {", moe_every: 2, dense_first: 2", 2, "000101", 0},
    {", moe_every: 3", 2, "001001", 0},
    {", shared_ffn: 96", 6, "111111", 3 * H * 96},
};

START_TEST(layers_with_experts)
{
    char keys[256];
    struct dt_model *m;
    const struct dt_module *llm;
    int64_t common = 2 * 1000 * H + H + 6 * (ATTN + 2 * H), moe, one = mixes[_i].shared + H * 8;

    snprintf(keys, sizeof(keys), MOE "%s", mixes[_i].more);
    m = read_model(keys);
    llm = &m->modules[0];
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(llm->blocks[1 + i].n_experts, mixes[_i].at[i] == '1' ? 8 : 0);
        ck_assert_int_eq(llm->blocks[1 + i].ffn, mixes[_i].at[i] == '1' ? 48 : 200);
    }
    moe = mixes[_i].moe;
    ck_assert_int_eq(dt_module_params(llm), common + moe * (8 * EXPERT + one) + (6 - moe) * DENSE);
    ck_assert_int_eq(dt_module_active_params(llm),
                     common + moe * (2 * EXPERT + one) + (6 - moe) * DENSE);
    dt_assert_has(m->assumed, "llm.expert_imbalance: 1 (the busiest rank");
    dt_model_free(m);
}
END_TEST

/* Of every matrix: of each expert, its router, attention and shared experts, and none of their gate. */
START_TEST(biases_of_experts)
{
    struct dt_model *without = read_model(MOE ", shared_ffn: 96, shared_gate: true");
    struct dt_model *with = read_model(MOE ", shared_ffn: 96, shared_gate: true, bias: true");
    int64_t attention = H + 2 * KV + H, expert = 2 * 48 + H, shared = 2 * 96 + H;

    ck_assert_int_eq(dt_module_params(&with->modules[0]) - dt_module_params(&without->modules[0]),
                     6 * (attention + 8 * expert + 8 + shared));
    ck_assert_int_eq(dt_module_active_params(&with->modules[0]) -
                         dt_module_active_params(&without->modules[0]),
                     6 * (attention + 2 * expert + 8 + shared));
    dt_model_free(without);
    dt_model_free(with);
}
END_TEST

static double flops_of(const struct dt_kop *k, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += k[i].flops * k[i].count;
    return sum;
}

static int find(const struct dt_kop *k, int n, enum dt_kop_family f, int from)
{
    while (from < n && k[from].family != f)
        from++;
    ck_assert_int_lt(from, n);
    return from;
}

/* What a rank computes: its tokens' attention, router and shared experts, and rows that are as many as its own tokens
 * ask for, times the stated factor. */
START_TEST(work_of_a_rank)
{
    static const struct {
        const char *more;
        int ep;
        double crowd; /* rows over the mean */
    } cases[] = {{"", 1, 1},
                 {"", 4, 1},
                 {", expert_imbalance: 1.5", 1, 1}, /* all experts are here */
                 {", expert_imbalance: 1.5", 4, 1.5},
                 {", expert_capacity: 1.25", 1, 1.25},
                 {", expert_capacity: 1.25", 2, 1.25},
                 {", expert_capacity: 0.5", 2, 0.5}}; /* the other half is dropped */
    struct dt_work w = work_of(2, 512);
    double attn = 2.0 * 1024 * ATTN + 2.0 * 2 * 512 * 512 * H;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int tp = 1; tp <= 4; tp *= 2) {
            struct dt_block_shard s = {
                .tp = tp, .cp = 1, .ep = cases[i].ep, .ip = 1, .seqpar = tp > 1};
            struct dt_kop k[DT_MAX_KOPS];
            char keys[256];
            struct dt_model *m;
            const struct dt_block *b;
            double rows = 1024 * 2 * cases[i].crowd, want, got;
            int n;

            snprintf(keys, sizeof(keys), MOE ", shared_ffn: 96%s", cases[i].more);
            m = read_model(keys);
            b = &m->modules[0].blocks[1];
            want = attn + 2.0 * 1024 * (H * 8 + 3 * H * 96) + 2.0 * rows * EXPERT;
            n = dt_block_kops(b, &s, &w, k);
            got = flops_of(k, n) * tp;
            if (tp <= 2) /* 4 ranks have half a head of keys and values each: they repeat one */
                ck_assert_msg(fabs(got / want - 1) < 1e-12, "case %zu tp %d: %g of %g", i, tp, got,
                              want);
            /* the model's own work knows no factor but that of what is dropped; what all experts run knows that of
             * capacities alone */
            got = want - 2.0 * fmax(0, rows - 2048) * EXPERT;
            ck_assert_double_eq_tol(dt_block_flops(b, &w) / got, 1, 1e-12);
            if (strstr(cases[i].more, "capacity"))
                got = want;
            ck_assert_double_eq_tol(dt_block_run_flops(b, &w) / got, 1, 1e-12);
            for (int a = 0, from = 0; a < 2 && cases[i].ep > 1; a++, from++) {
                from = find(k, n, DT_KOP_ALL_TO_ALL, from);
                ck_assert_int_eq(k[from].d[0], cases[i].ep);
                ck_assert_int_eq(k[from].d[3], tp); /* expert groups are tp apart */
                ck_assert_double_eq(k[from].bytes, 2 * rows * H / tp);
            }
            dt_model_free(m);
        }
}
END_TEST

/* Rows gathered for the experts of a rank: own tokens without an expert group, else the rows sent to it. */
START_TEST(gathers_of_experts)
{
    struct dt_model *m = read_model(MOE);
    const struct dt_block *b = &m->modules[0].blocks[1];
    struct dt_block_shard s = {.tp = 2, .cp = 1, .ep = 1, .ip = 1, .seqpar = true};
    struct dt_work w = work_of(1, 512);
    struct dt_kop k[DT_MAX_KOPS];
    int n = dt_block_kops(b, &s, &w, k), at;

    at = find(k, n, DT_KOP_ALL_GATHER, find(k, n, DT_KOP_ALL_GATHER, 0) + 1);
    ck_assert_double_eq(k[at].bytes, 2.0 * 512 * H);
    s.ep = 4;
    n = dt_block_kops(b, &s, &w, k);
    at = find(k, n, DT_KOP_ALL_GATHER, find(k, n, DT_KOP_ALL_GATHER, 0) + 1);
    ck_assert_double_eq(k[at].bytes, 2.0 * 512 * 2 * H);
    dt_model_free(m);
}
END_TEST

/* Of 24 rows an expert of a rank takes 1024 x 2 / 2 at ep 4. */
START_TEST(rows_per_expert)
{
    struct dt_model *m = read_model(MOE);
    struct dt_block_shard s = {.tp = 1, .cp = 1, .ep = 4, .ip = 1};
    struct dt_work w = work_of(2, 512);
    struct dt_kop k[DT_MAX_KOPS];
    int n = dt_block_kops(&m->modules[0].blocks[1], &s, &w, k), found = 0;

    for (int i = 0; i < n; i++)
        if (k[i].family == DT_KOP_GEMM && k[i].count > 1) {
            ck_assert_double_eq(k[i].count, 2); /* experts on a rank */
            ck_assert_int_eq(k[i].d[0], 1024);
            found++;
        }
    ck_assert_int_eq(found, 2);
    dt_model_free(m);
}
END_TEST

/* Everything kept of an MoE half, bytes per token of bf16: its input and its norm, router's choices, the rows that went
 * to experts, their up output (gated: twice) and their activation; the shared expert's. */
START_TEST(activations_of_experts)
{
    struct dt_model *moe = read_model(MOE ", shared_ffn: 96, expert_imbalance: 2");
    struct dt_model *dense = read_model("layers: 6, hidden: 64, ffn: 200, heads: 4, kv_heads: 2");
    const struct dt_block *a = &moe->modules[0].blocks[1], *b = &dense->modules[0].blocks[1];
    struct dt_block_shard s = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct dt_work w = work_of(1, 512);
    double mlp = 512 * 2.0 * 3 * 200;

    for (int ep = 1; ep <= 2; ep++) {
        double rows = 512 * 2 * ep; /* the factor counts where there is an expert group */

        s.ep = ep;
        ck_assert_double_eq(dt_block_act_bytes(a, &s, &w, DT_RECOMPUTE_NONE),
                            dt_block_act_bytes(b, &s, &w, DT_RECOMPUTE_NONE) - mlp +
                                rows * 2 * (H + 3 * 48) + 512 * (2.0 * 3 * 96 + 4 * 8));
    }
    ck_assert_double_eq(dt_block_act_bytes(a, &s, &w, DT_RECOMPUTE_FULL), 2.0 * 512 * H);
    /* tp deals heads, widths, and with sequence parallelism rows of norms and of the router; the rows that experts take
     * are gathered, whole on every rank for the gradients of its share of each expert */
    s = (struct dt_block_shard){.tp = 2, .cp = 1, .ep = 2, .ip = 1, .seqpar = true};
    ck_assert_double_eq(dt_block_act_bytes(a, &s, &w, DT_RECOMPUTE_NONE),
                        512 * (2.0 * 4 * H + 2 * 4 + 2.0 * (2 * H + 2 * KV) + 4 * 4 + 4 * 8) / 2 +
                            512 * 4 * 2 * (H + 3 * 48 / 2.0) + 512 * 2.0 * 3 * 96 / 2);
    dt_model_free(moe);
    dt_model_free(dense);
}
END_TEST

#define NONE "layers: 2, hidden: 64, ffn: 200, heads: 4"
static const struct {
    const char *keys, *message;
} refused[] = {
    {NONE ", shared_ffn: 4", "shared_ffn: a dense LLM"},
    {NONE ", expert_ffn: 4", "expert_ffn: a dense LLM"},
    {NONE ", dense_first: 1", "dense_first: a dense LLM has no experts"},
    {NONE ", moe_every: 2", "moe_every: a dense LLM has no experts"},
    {NONE ", expert_capacity: 1.25", "expert_capacity: a dense LLM has no experts"},
    {NONE ", expert_imbalance: 1.5", "expert_imbalance: a dense LLM has no experts"},
    {NONE ", top_k: 2", "top_k counts with experts"},
    {NONE ", expert_norm: none", "expert_norm counts with experts"},
    {NONE ", expert_names: mixtral", "expert_names counts with experts"},
    {NONE ", balance_loss: 0.01", "balance_loss counts with experts"},
    {NONE ", window_every: 2", "window_every counts with window"},
    {NONE ", positions: 64, rope: {theta: 500000}", "rope counts with positions: 0"},
    {NONE ", rope: {factor: 2}", "factor counts with scaling: linear or llama3; the scaling is"},
    {NONE ", rope: {scaling: linear, factor: 2, high_freq_factor: 4}",
     "high_freq_factor counts with scaling: llama3; the scaling is linear"},
    {MOE ", expert_imbalance: 0.5", "expert_imbalance"},
    {MOE ", expert_capacity: 1.5, expert_imbalance: 1.5", "state one of the two"},
    {MOE ", norms: 3", "norms: 2"},
    {MOE ", q_lora: 8", "needs kv_lora"},
    {"layers: 2, hidden: 64, ffn: 9, heads: 4, kv_lora: 8, rope_dim: 4", "v_dim"},
    {"layers: 2, hidden: 64, ffn: 9, heads: 4, kv_lora: 8, rope_dim: 16, v_dim: 8", "rope_dim: 16"},
    {MOE ", kv_lora: 8, rope_dim: 4, v_dim: 8", "kv_heads"},
};

START_TEST(refused_in_a_sentence)
{
    struct dt_error err = {0};
    struct dt_model *m = NULL;

    ck_assert_int_eq(try_model(refused[_i].keys, &err, &m), DT_ERR_INPUT);
    dt_assert_has(err.message, refused[_i].message);
}
END_TEST

/* What says that there is none of it does no harm. */
START_TEST(none_is_not_refused)
{
    static const char *const keys[] = {NONE ", balance_loss: 0", NONE ", window_every: 0",
                                       NONE ", rope: {scaling: none}"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        dt_model_free(read_model(keys[i]));
}
END_TEST

/* ---- latent attention: DeepSeek-V2, section 2.1 ---- */

START_TEST(latent_attention)
{
    static const char *const both[] = {"", ", q_lora: 40"};
    struct dt_work w = work_of(3, 256);

    for (int q = 0; q < 2; q++)
        for (int tp = 1; tp <= 4; tp *= 2) {
            char keys[256];
            struct dt_block_shard s = {.tp = tp, .cp = 1, .ep = 1, .ip = 1, .seqpar = tp > 1};
            struct dt_kop k[DT_MAX_KOPS];
            struct dt_model *m;
            const struct dt_block *b;
            /* heads 4, of 24 = 16 + 8 rotated, values of 16 */
            int64_t wq = q ? H * 40 + 40 * 4 * 24 : H * 4 * 24;
            int64_t mats = wq + H * (32 + 8) + 32 * 4 * (16 + 16) + 4 * 16 * H + 3 * H * 200;
            int n;

            snprintf(keys, sizeof(keys),
                     "layers: 1, hidden: 64, ffn: 200, heads: 4, head_dim: 24, kv_lora: 32, "
                     "rope_dim: 8, v_dim: 16%s",
                     both[q]);
            m = read_model(keys);
            b = &m->modules[0].blocks[1];
            ck_assert_int_eq(dt_block_params(b), mats + 2 * H + 32 + (q ? 40 : 0));
            n = dt_block_kops(b, &s, &w, k);
            /* causal: half of 2 x (24 + 16) per pair and head */
            ck_assert_double_eq_tol(
                flops_of(k, n) * tp / (2.0 * 768 * (double)mats + 3.0 * 256 * 256 * 4 * (24 + 16)),
                1, 1e-12);
            dt_model_free(m);
        }
}
END_TEST

/* ---- windows and norms ---- */

/* Pairs within a window, counted one by one. */
START_TEST(windows)
{
    static const int lengths[] = {40, 64, 200, 512};
    struct dt_model *m = read_model("layers: 6, hidden: 64, ffn: 200, heads: 4, window: 64, "
                                    "window_every: 3");
    const struct dt_block *b = m->modules[0].blocks;

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        int n = lengths[i];
        struct dt_work w = work_of(2, n);
        double all = dt_block_flops(&b[3], &w), some = dt_block_flops(&b[1], &w), pairs = 0;

        for (int t = 0; t < n; t++) /* t + 1/2 on average, as the causal half of n^2 has it */
            pairs += t + 0.5 < 64 ? t + 0.5 : 64;
        ck_assert_double_eq_tol(all - some, 2 * (n * n / 2.0 - pairs) * 4 * H,
                                1e-9 * all); /* 2 sequences, 2 x 2 per pair */
    }
    ck_assert_int_eq(b[3].window, 0);
    ck_assert_int_eq(b[6].window, 0);
    ck_assert_int_eq(b[4].window, 64);
    dt_model_free(m);
}
END_TEST

START_TEST(norms)
{
    int64_t want[] = {1, 2, 4};

    for (int i = 0; i < 3; i++) {
        char keys[128];
        struct dt_kop k[DT_MAX_KOPS];
        struct dt_block_shard s = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
        struct dt_work w = work_of(1, 64);
        struct dt_model *m;
        int n, found = 0;

        snprintf(keys, sizeof(keys), "layers: 1, hidden: 64, ffn: 200, heads: 4, norms: %d",
                 (int)want[i]);
        m = read_model(keys);
        ck_assert_int_eq(dt_block_params(&m->modules[0].blocks[1]),
                         4 * H * H + 3 * H * 200 + want[i] * H);
        n = dt_block_kops(&m->modules[0].blocks[1], &s, &w, k);
        for (int j = 0; j < n; j++)
            found += k[j].family == DT_KOP_NORM;
        ck_assert_int_eq(found, want[i]);
        dt_model_free(m);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("experts");
    TCase *c = dt_test_case(suite, "experts", 0);

    tcase_add_loop_test(c, layers_with_experts, 0, sizeof(mixes) / sizeof(mixes[0]));
    tcase_add_test(c, biases_of_experts);
    tcase_add_test(c, work_of_a_rank);
    tcase_add_test(c, gathers_of_experts);
    tcase_add_test(c, rows_per_expert);
    tcase_add_test(c, activations_of_experts);
    tcase_add_loop_test(c, refused_in_a_sentence, 0, sizeof(refused) / sizeof(refused[0]));
    tcase_add_test(c, none_is_not_refused);
    c = dt_test_case(suite, "layers", 0);
    tcase_add_test(c, latent_attention);
    tcase_add_test(c, windows);
    tcase_add_test(c, norms);
    return dt_test_run(suite);
}
