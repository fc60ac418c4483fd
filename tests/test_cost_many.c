/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Many works at once are answered to the last bit as one by one, whatever the blocks, the shard,
 * the options and the state of training. */
#include "core/model/block_key.h"
#include "core/cost/cost_internal.h" /* STAGE_BITS */
#include "base/rng.h"
#include "cost_fixture.h"
#include "test_util.h"

enum { BLOCKS = 24, WORKS = 120 };

static int pick(struct dt_rng *rng, int a, int b, int c)
{
    int v[3] = {a, b, c};

    return v[dt_rng_below(rng, 3)];
}

static bool coin(struct dt_rng *rng)
{
    return dt_rng_below(rng, 2) != 0;
}

static struct dt_block any_block(struct dt_rng *rng, enum dt_block_kind kind)
{
    struct dt_block b;

    memset(&b, 0, sizeof(b));
    b.kind = kind;
    b.head_dim = pick(rng, 64, 80, 128);
    b.heads = pick(rng, 8, 16, 20);
    b.kv_heads = coin(rng) ? b.heads : 4;
    b.hidden = b.heads * b.head_dim;
    b.ffn = pick(rng, 2048, 5120, 5121);
    b.vocab = pick(rng, 1000, 32000, 50257);
    b.max_pos = coin(rng) ? 2048 : 0;
    b.n_experts = kind == DT_BLOCK_TRANSFORMER && dt_rng_below(rng, 4) == 0 ? 8 : 0;
    b.top_k = 2;
    b.causal = coin(rng);
    b.gated = coin(rng);
    b.bias = coin(rng);
    b.layernorm = coin(rng);
    b.qk_norm = coin(rng);
    b.unfused = coin(rng);
    b.no_seqpar = coin(rng);
    b.patch = 14;
    b.channels = 3;
    b.c_in = pick(rng, 4, 320, 640);
    b.c_out = pick(rng, 4, 320, 640);
    b.kernel = 3;
    b.stride = 1 + coin(rng);
    b.upsample = b.stride == 1 && coin(rng);
    b.level = (int)dt_rng_below(rng, 3);
    b.time_dim = 1280;
    b.context_dim = 1024;
    b.context_len = coin(rng) ? 77 : 0;
    b.depth = 1 + (int)dt_rng_below(rng, 3);
    b.in_dim = b.hidden;
    b.out_dim = 4096;
    b.mid_dim = coin(rng) ? 4096 : 0;
    return b;
}

/* Every kind, some of them several times in a row or apart. */
static void any_module(struct fixture *f, struct dt_rng *rng)
{
    struct dt_module *m = fx_module(f, "any", DT_ROLE_LLM, BLOCKS);

    for (int b = 0; b < BLOCKS; b++) {
        if (b >= DT_BLOCK_KIND_N && coin(rng))
            m->blocks[b] = m->blocks[b - 1 - (int)dt_rng_below(rng, 3)];
        else
            m->blocks[b] = any_block(rng, (enum dt_block_kind)(b % DT_BLOCK_KIND_N));
    }
}

/* Few different sums of tokens and items, lengths that differ within them, repetitions, nothing. */
static void any_works(struct dt_rng *rng, struct dt_work *w)
{
    for (int i = 0; i < WORKS; i++) {
        int64_t total = 512 * (1 + (int64_t)dt_rng_below(rng, 4)), rest = total;

        memset(&w[i], 0, sizeof(w[i]));
        if (i > 0 && dt_rng_below(rng, 8) == 0) {
            w[i] = w[dt_rng_below(rng, (uint64_t)i)];
            continue;
        }
        if (dt_rng_below(rng, 16) == 0)
            continue;
        while (rest > 0) {
            int64_t len = 1 + (int64_t)dt_rng_below(rng, (uint64_t)rest);
            struct dt_work one = fx_text(1, w[i].n == 3 ? rest : len);

            dt_work_add(&w[i], &one);
            rest -= one.tokens;
        }
    }
}

/* Over tokens, as in older profiles, or over equivalent ones. */
static void measure_whole(struct fixture *f, const struct dt_block *b,
                          const struct dt_block_shard *s, bool older)
{
    int64_t key = older ? dt_block_key(b, s) : dt_block_work_key(b, s);

    for (int phase = 0; phase < DT_PHASE_N; phase++)
        for (int64_t t = 128; t <= 4096; t *= 2)
            fx_row(f, DT_KOP_BLOCK, phase, DT_ROW_MEASURED, (int64_t[]){t, key}, 2,
                   5e3 + 311.7 * (double)t);
}

static void one_case(uint64_t seed, int nr)
{
    struct dt_cost_options o = {.allow_analytical = true};
    struct dt_work work[WORKS];
    struct dt_cost_stage_ns many[WORKS];
    struct dt_cost *fast, *slow;
    struct dt_error err = {0};
    struct dt_block_shard shard;
    struct fixture f;
    struct dt_rng rng;

    dt_rng_init(&rng, seed, (uint64_t)nr);
    fx_init(&f);
    any_module(&f, &rng);
    o.stepccl = coin(&rng);
    o.cp_ring = coin(&rng);
    o.dispatch_ns = coin(&rng) ? 4000 : 0;
    o.scale[DT_KOP_GEMM] = coin(&rng) ? 1.07 : 0;
    shard = fx_shard(pick(&rng, 1, 2, 8));
    shard.cp = pick(&rng, 1, 1, 2);
    shard.ep = pick(&rng, 1, 1, 4);
    shard.ip = pick(&rng, 1, 1, 4);
    shard.recompute = (enum dt_block_recompute)dt_rng_below(&rng, 3);
    if (coin(&rng))
        measure_whole(&f, &f.model.modules[0].blocks[2], &shard, coin(&rng));
    fx_profile(&f, coin(&rng));
    dt_assert_ok(dt_cost_new(&f.model, &f.cluster, &f.profile, &o, &err, &fast), err);
    dt_assert_ok(dt_cost_new(&f.model, &f.cluster, &f.profile, &o, &err, &slow), err);
    for (int round = 0; round < 4; round++) {
        int first = (int)dt_rng_below(&rng, BLOCKS);
        int n = 1 + (int)dt_rng_below(&rng, (uint64_t)(BLOCKS - first));
        bool upstream = coin(&rng);
        unsigned char trained[BLOCKS], *t = coin(&rng) ? trained : NULL;

        for (int b = 0; b < BLOCKS; b++)
            trained[b] = dt_rng_below(&rng, 4) != 0;
        any_works(&rng, work);
        ck_assert(dt_cost_stages_ns(fast, 0, first, n, &shard, work, WORKS, t, upstream, many));
        for (int i = 0; i < WORKS; i++) {
            struct dt_cost_stage s = {0};

            if (work[i].n > 0)
                dt_cost_stage(slow, 0, first, n, &shard, &work[i], t, upstream, &s);
            ck_assert_msg(many[i].fwd == s.fwd.ns && many[i].bwd == s.dgrad.ns + s.wgrad.ns,
                          "seed %" PRIu64 ", case %d, round %d, work %d: %.17g + %.17g is not "
                          "%.17g + %.17g",
                          seed, nr, round, i, many[i].fwd, many[i].bwd, s.fwd.ns,
                          s.dgrad.ns + s.wgrad.ns);
        }
    }
    dt_cost_free(fast);
    dt_cost_free(slow);
    fx_free(&f);
}

START_TEST(test_many_as_one_by_one)
{
    uint64_t seed = dt_test_seed();

    for (int i = 0; i < 24; i++)
        one_case(seed, i);
}
END_TEST

/* More works than the memo holds. */
START_TEST(test_large_batch)
{
    enum { MANY = (1 << STAGE_BITS) + 1000 };
    struct dt_cost_options o = {.stepccl = true};
    struct dt_work *work = calloc(MANY, sizeof(*work));
    struct dt_cost_stage_ns *many = calloc(MANY, sizeof(*many));
    struct dt_block_shard shard = fx_shard(2);
    struct dt_error err = {0};
    struct dt_cost *c;
    struct dt_rng rng;
    struct fixture f;
    uint64_t seed = dt_test_seed();
    int vit;

    ck_assert(work && many);
    dt_rng_init(&rng, seed, 7);
    fx_init(&f);
    vit = fx_vit(&f, 4, 1280, 5120, 16, 8192);
    fx_profile(&f, true);
    dt_assert_ok(dt_cost_new(&f.model, &f.cluster, &f.profile, &o, &err, &c), err);
    for (int i = 0; i < MANY; i++) {
        int64_t a = 1 + (int64_t)dt_rng_below(&rng, 1999), sum = 2000 + i % 7;

        work[i] = fx_text(1, a);
        if (i % 5)
            dt_work_add(&work[i], &(struct dt_work){1, sum - a, (sum - a) * (sum - a), sum - a});
    }
    ck_assert(dt_cost_stages_ns(c, vit, 0, 5, &shard, work, MANY, NULL, false, many));
    for (int i = 0; i < MANY; i += 11) {
        struct dt_cost_stage one;

        dt_cost_stage(c, vit, 0, 5, &shard, &work[i], NULL, false, &one);
        ck_assert_msg(many[i].fwd == one.fwd.ns && many[i].bwd == one.dgrad.ns + one.wgrad.ns,
                      "seed %" PRIu64 ", work %d", seed, i);
    }
    dt_cost_free(c);
    fx_free(&f);
    free(work);
    free(many);
}
END_TEST

/* A list written again for other lengths is the list of those lengths. */
START_TEST(test_kernels_again)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng rng;

    dt_rng_init(&rng, seed, 99);
    for (int i = 0; i < 2000; i++) {
        struct dt_block b =
            any_block(&rng, (enum dt_block_kind)dt_rng_below(&rng, DT_BLOCK_KIND_N));
        struct dt_block_shard s = fx_shard(pick(&rng, 1, 2, 8));
        struct dt_work one = {4, 2048, 2048 * 600, 900}, other = {4, 2048, 2048 * 700, 1300};
        struct dt_kop a[DT_MAX_KOPS], w[DT_MAX_KOPS];
        int n, m, differ = 0, marked = 0;

        memset(a, 0, sizeof(a));
        memset(w, 0, sizeof(w));
        s.cp = pick(&rng, 1, 2, 4);
        s.ep = pick(&rng, 1, 2, 4);
        if (!dt_block_by_items(&b))
            other.n = 3;
        n = dt_block_kops(&b, &s, &one, a);
        m = dt_block_kops(&b, &s, &other, w);
        ck_assert_int_eq(n, m);
        for (int k = 0; k < n; k++) {
            bool same = !memcmp(a[k].d, w[k].d, sizeof(a[k].d)) && a[k].flops == w[k].flops &&
                        a[k].bytes == w[k].bytes && a[k].count == w[k].count;

            ck_assert_msg(same || w[k].by_sq, "seed %" PRIu64 ", block %d, kernel %d", seed, i, k);
            differ += !same;
            marked += w[k].by_sq;
        }
        ck_assert_int_eq(differ > 0, marked > 0);
        ck_assert_int_eq(dt_block_kops_again(&b, &s, &other, a), n);
        for (int k = 0; k < n; k++)
            ck_assert_msg(a[k].family == w[k].family && !memcmp(a[k].d, w[k].d, sizeof(a[k].d)) &&
                              a[k].flops == w[k].flops && a[k].bytes == w[k].bytes &&
                              a[k].count == w[k].count && a[k].back == w[k].back &&
                              a[k].has_weight == w[k].has_weight && a[k].core == w[k].core &&
                              a[k].own_back == w[k].own_back &&
                              a[k].wgrad_only == w[k].wgrad_only &&
                              a[k].own_calls == w[k].own_calls && a[k].calls == w[k].calls &&
                              a[k].calls_back == w[k].calls_back && a[k].by_sq == w[k].by_sq,
                          "seed %" PRIu64 ", block %d, kernel %d", seed, i, k);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cost of many works");
    TCase *t = dt_test_case(s, "many", 300);

    tcase_add_test(t, test_many_as_one_by_one);
    tcase_add_test(t, test_large_batch);
    tcase_add_test(t, test_kernels_again);
    return dt_test_run(s);
}
