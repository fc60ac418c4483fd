/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/cost/memory.h"
#include "base/rng.h"
#include "cost_fixture.h"
#include "test_util.h"

#include <stdio.h>
#include <string.h>

#define GIB 1073741824.0

struct rig {
    struct fixture f;
    struct dt_plan p;
    struct dt_work work[DT_MAX_MODULES];
    int vit, llm, gen;
};

static void even_split(struct dt_plan *p, const struct dt_model *m, int module)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    int v = l->pp * l->vpp;

    for (int i = 0; i <= v; i++)
        p->modules[module].split[i] = (uint16_t)(m->modules[module].n_blocks * i / v);
}

/* Encoder -> 70B-shaped LLM -> a generator of two blocks. */
static void rig_open(struct rig *r, int tp, int pp, int dp)
{
    struct dt_plan_policy policy = {.global_batch = 1920, .microbatch = 1, .seq_len = 8192};
    struct dt_module *gen;

    fx_init(&r->f);
    fx_index(&r->f);
    r->vit = fx_vit(&r->f, 32, 1280, 5120, 16, 8192);
    r->llm = fx_llm(&r->f, 80, 8192, 28672, 64, 8, 32000);
    gen = fx_module(&r->f, "gen", DT_ROLE_GENERATOR, 2);
    gen->blocks[0] = gen->blocks[1] = fx_layer(1024, 4096, 16, 16, false);
    r->gen = 2;
    r->f.model.n_edges = 2;
    r->f.model.edges[0] = (struct dt_model_edge){r->vit, r->llm};
    r->f.model.edges[1] = (struct dt_model_edge){r->llm, r->gen};
    dt_plan_init(&r->p, &r->f.model, &policy);
    fx_modes(&r->p, DT_RECOMPUTE_NONE, 1);
    for (int m = 0; m < 3; m++) {
        struct dt_plan_layout *l = &r->p.modules[m].layout;

        l->tp = m == r->llm ? tp : 1;
        l->cp = l->ep = l->ip = l->vpp = 1;
        l->pp = m == r->llm ? pp : 1;
        l->dp = m == r->llm ? dp : 4;
        even_split(&r->p, &r->f.model, m);
        r->work[m] = m == r->llm ? fx_text(1, 8192) : fx_text(3, 1024);
    }
}

static void assert_near(double a, double b, double rel, const char *what)
{
    ck_assert_msg(fabs(a - b) <= rel * fabs(b), "%s: %.9g is not %.9g within %g", what, a, b, rel);
}

/* A process is charged as the executor fills it, and may take what its reserve leaves; the search and
 * the check ask for the same. */
START_TEST(test_processes)
{
    struct dt_memory gpu, mem, cpu;
    struct dt_error err;
    double most;
    struct rig r;

    rig_open(&r, 1, 2, 1);
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 1, &r.work[r.llm], 8, &gpu);
    snprintf(r.f.cluster.device, sizeof(r.f.cluster.device), "cpu");
    for (int fp32 = 0; fp32 < 2; fp32++) {
        r.p.policy.fp32 = fp32;
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 1, &r.work[r.llm], 8, &mem);
        dt_memory_stage_on(DT_MEMORY_CPU, &r.p, &r.f.model, &r.f.cluster, r.llm, 1, &r.work[r.llm],
                           8, &cpu);
        ck_assert_double_eq(mem.total, cpu.total);
        dt_memory_stage_on(DT_MEMORY_GPU, &r.p, &r.f.model, &r.f.cluster, r.llm, 1, &r.work[r.llm],
                           8, &cpu);
        ck_assert(fp32 || cpu.total == gpu.total);
        assert_near(mem.params + mem.grads + mem.optimizer + mem.activations +
                        mem.logits_workspace + mem.broker + mem.reserve,
                    mem.total, 1e-12, "sum of the parts");
        ck_assert_int_eq(mem.in_flight, gpu.in_flight);
        ck_assert_double_gt(fabs(mem.total - gpu.total), 1e-3 * gpu.total);
    }
    r.f.cluster.mem_bytes = 4000 * GIB;
    r.f.cluster.mem_reserve_bytes = 1 * GIB;
    dt_assert_ok(dt_memory_check(&r.p, &r.f.model, &r.f.cluster, r.work, &most, &err), err);
    r.f.cluster.mem_bytes = most + 1 * GIB; /* just enough */
    ck_assert_double_eq(dt_memory_limit(&r.f.cluster), most);
    dt_assert_ok(dt_memory_check(&r.p, &r.f.model, &r.f.cluster, r.work, NULL, &err), err);
    r.f.cluster.mem_bytes -= 4096;
    ck_assert_int_eq(dt_memory_check(&r.p, &r.f.model, &r.f.cluster, r.work, NULL, &err),
                     DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "per process");
    fx_free(&r.f);
}
END_TEST

START_TEST(test_in_flight)
{
    struct rig r;

    rig_open(&r, 8, 10, 12);
    for (int s = 0; s < 10; s++) {
        ck_assert_int_eq(dt_memory_stages_after(&r.p, &r.f.model, r.llm, s), 9 - s + 1);
        ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.llm, s, 160), 9 - s + 2);
        ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.llm, s, 3), s < 8 ? 3 : 11 - s);
    }
    ck_assert_int_eq(dt_memory_stages_after(&r.p, &r.f.model, r.vit, 0), 11);
    ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.vit, 0, 160), 12);
    ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.gen, 0, 160), 1);
    r.p.policy.schedule = DT_SCHED_GPIPE;
    ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.llm, 4, 160), 160);
    fx_free(&r.f);
}
END_TEST

/* A generator beside another one: the deeper branch counts. */
START_TEST(test_longest_path)
{
    struct rig r;
    struct dt_module *other;

    rig_open(&r, 8, 10, 12);
    other = fx_module(&r.f, "audio", DT_ROLE_GENERATOR, 3);
    for (int b = 0; b < 3; b++)
        other->blocks[b] = fx_layer(768, 3072, 12, 12, false);
    r.f.model.edges[r.f.model.n_edges++] = (struct dt_model_edge){r.llm, 3};
    r.p.n_modules = 4;
    r.p.modules[3].layout = (struct dt_plan_layout){1, 1, 1, 3, 1, 1, 1, 0};
    even_split(&r.p, &r.f.model, 3);
    ck_assert_int_eq(dt_memory_stages_after(&r.p, &r.f.model, r.vit, 0), 13);
    ck_assert_int_eq(dt_memory_stages_after(&r.p, &r.f.model, r.llm, 9), 3);
    ck_assert_int_eq(dt_memory_stages_after(&r.p, &r.f.model, r.gen, 0), 0);
    fx_free(&r.f);
}
END_TEST

/* Megatron-LM: 2 (pp - 1 - stage) + (vpp - 1) pp forwards of chunks before the first backward. */
START_TEST(test_interleaved)
{
    struct rig r;

    rig_open(&r, 8, 4, 12);
    r.f.model.n_edges = 1; /* no generator behind */
    r.p.policy.schedule = DT_SCHED_INTERLEAVED;
    r.p.modules[r.llm].layout.vpp = 2;
    even_split(&r.p, &r.f.model, r.llm);
    for (int s = 0; s < 4; s++) {
        ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.llm, s, 160), 2 * (3 - s) + 4 + 1);
        ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.llm, s, 2), 4);
    }
    /* The first gradient leaves after 2 x 4 microbatches have entered (see memory.c), three more
     * wait for the next burst, one is being encoded. */
    ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.vit, 0, 160), 12);
    /* With a generator behind, the last of a burst of four comes back 3 x (2 - 1) turns late. */
    r.f.model.n_edges = 2;
    for (int s = 0; s < 4; s++)
        ck_assert_int_eq(dt_memory_in_flight(&r.p, &r.f.model, r.llm, s, 160),
                         2 * (3 - s) + 4 + 1 + 2 + 3);
    fx_free(&r.f);
}
END_TEST

/* The count behind the encoder's bound, by running the order of the LLM's first stage. */
START_TEST(test_interleaved_property)
{
    struct dt_rng rng;
    uint64_t seed = dt_test_seed();

    dt_rng_init(&rng, seed, 5);
    for (int i = 0; i < 200; i++) {
        int pp = 2 + (int)dt_rng_below(&rng, 6), vpp = 2 + (int)dt_rng_below(&rng, 4);
        int groups = 3 + (int)dt_rng_below(&rng, 4), n = groups * pp, total = n * vpp, held = 0,
            entered = 0;
        int left = 0, most = 0, warmup, have;
        struct rig r;

        rig_open(&r, 8, pp, 1);
        r.f.model.n_edges = 1 + (int)dt_rng_below(&rng, 2);
        r.p.policy.schedule = DT_SCHED_INTERLEAVED;
        r.p.modules[r.llm].layout.vpp = vpp;
        warmup = dt_memory_in_flight(&r.p, &r.f.model, r.llm, 0, n) - 1;
        for (int k = 0; k < total + warmup; k++) {
            if (k < total) {
                held++;
                entered += k % (pp * vpp) < pp; /* chunk 0 takes a new microbatch */
            }
            ck_assert_int_le(held, warmup + 1);
            if (k >= warmup) {
                int last_chunk = (k - warmup) % (pp * vpp) >= pp * (vpp - 1);

                most = entered - left > most ? entered - left : most;
                held--;
                left += last_chunk; /* chunk 0 is the last one backward */
            }
        }
        ck_assert_int_eq(held, 0);
        have = dt_memory_in_flight(&r.p, &r.f.model, r.vit, 0, n);
        ck_assert_msg(have >= most && have <= most + 2 * pp,
                      "seed %" PRIu64 ": pp %d vpp %d: %d, needs %d", seed, pp, vpp, have, most);
        fx_free(&r.f);
    }
}
END_TEST

START_TEST(test_closed_form_70b)
{
    struct rig r;
    struct dt_memory m;
    double layer = 2.0 * 8192 * 8192 + 2.0 * 8192 * 1024 + 3.0 * 8192 * 28672 + 2.0 * 8192;
    double params, act;

    rig_open(&r, 8, 10, 12);
    r.p.modules[r.llm].split[1] = 9; /* the embedding and eight layers */
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 160, &m);
    params = (8 * layer + 32000.0 * 8192) / 8;
    assert_near(m.params, 2 * params, 1e-12, "bf16 parameters");
    assert_near(m.grads, 4 * params, 1e-12, "fp32 gradients");
    assert_near(m.optimizer, params, 1e-12, "12 bytes over 12 ranks");
    /* per layer of s tokens, tp 8: four streams 8sh/8; q, k, v and context 2s(2h + 2g)/8;
     * log-sum-exp 4s heads/8; up, gate and product 6sf/8; statistics of two norms 8s/8 */
    act = 8192.0 / 8 * (8 * 8192 + 2 * (2 * 8192 + 2 * 1024) + 4 * 64 + 6 * 28672 + 8);
    ck_assert_int_eq(m.in_flight, 11);
    assert_near(m.activations, 11 * (8 * act + 8.0 * 8192), 1e-9, "activations");
    ck_assert(m.logits_workspace == 0 && m.reserve == 3.5e9 && m.broker > 0);
    assert_near(m.total, m.params + m.grads + m.optimizer + m.activations + m.broker + m.reserve,
                1e-12, "total");
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 9, &r.work[r.llm], 160, &m);
    /* of two microbatches in flight one waits for its gradient from the generator */
    assert_near(m.logits_workspace, (6.0 + 4) * 8192 * 32000 / 8, 1e-12, "logits");
    r.p.modules[r.llm].zero = 0;
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 160, &m);
    assert_near(m.optimizer, 12 * params, 1e-12, "12 bytes on every rank");
    r.p.policy.bf16_grads = true;
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 160, &m);
    assert_near(m.grads, 2 * params, 1e-12, "bf16 gradients");
    r.p.modules[r.llm].zero = 2; /* a rank's share, and the buckets that are whole */
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 160, &m);
    assert_near(m.grads - m.whole, 2 * params / 12, 1e-12, "shares of bf16 gradients");
    fx_free(&r.f);
}
END_TEST

/* By hand, 8192 tokens' share of 32000 logits on one of 8 ranks: 2 bytes of those that are computed, 4 of every softmax between
 * forward and backward of the head.  Without a module behind it a backward comes at once; with chunks a microbatch at
 * the head holds all of them, so that of 10 chunks in flight 5 may be the head's. */
START_TEST(test_logits_wait_for_their_backward)
{
    static const struct {
        enum dt_pipe_schedule schedule;
        int vpp, edges, recompute, waiting;
    } cases[] = {{DT_SCHED_1F1B, 1, 1, DT_RECOMPUTE_NONE, 1},
                 {DT_SCHED_1F1B, 1, 2, DT_RECOMPUTE_NONE, 2},
                 {DT_SCHED_1F1B, 1, 2, DT_RECOMPUTE_SELECTIVE, 2},
                 {DT_SCHED_1F1B, 1, 2, DT_RECOMPUTE_FULL, 1},
                 {DT_SCHED_ZB_H1, 1, 2, DT_RECOMPUTE_NONE, 2},
                 {DT_SCHED_GPIPE, 1, 1, DT_RECOMPUTE_NONE, 16},
                 {DT_SCHED_INTERLEAVED, 2, 1, DT_RECOMPUTE_NONE, 1},
                 {DT_SCHED_INTERLEAVED, 2, 2, DT_RECOMPUTE_NONE, 5}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dt_memory mem;
        struct rig r;

        rig_open(&r, 8, 4, 12);
        r.f.model.n_edges = cases[i].edges;
        r.p.policy.schedule = cases[i].schedule;
        r.p.modules[r.llm].layout.vpp = cases[i].vpp;
        r.p.modules[r.llm].recompute = (enum dt_block_recompute)cases[i].recompute;
        even_split(&r.p, &r.f.model, r.llm);
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 3, &r.work[r.llm], 16, &mem);
        ck_assert_msg(mem.logits_workspace == (2.0 + 4 * cases[i].waiting) * 8192 * 4000,
                      "case %zu: %.0f bytes", i, mem.logits_workspace);
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 16, &mem);
        ck_assert(mem.logits_workspace == 0);
        fx_free(&r.f);
    }
}
END_TEST

/* Frozen layers in front of a trained projector: one layer's forward is there at a time, whatever is recomputed.  By hand,
 * bytes of a token: the stream before and behind two norms 8 h, their statistics 16, queries, keys, values and output
 * 8 h, a log-sum-exp of each head, and both sides of the activation 4 f. */
START_TEST(test_frozen_layers_have_a_working_set)
{
    double layer = 8 * 1280 + 16 + 8 * 1280 + 4 * 16 + 4 * 5120;

    for (int mode = DT_RECOMPUTE_NONE; mode <= DT_RECOMPUTE_FULL; mode++) {
        struct dt_memory one, two;
        struct rig r;

        rig_open(&r, 8, 10, 12);
        r.p.modules[r.vit].frozen = true;
        r.p.modules[r.vit].recompute = (enum dt_block_recompute)mode;
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.vit, 0, &r.work[r.vit], 1, &one);
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.vit, 0, &r.work[r.vit], 2, &two);
        ck_assert_int_eq(two.in_flight, 2);
        /* the second microbatch has the projector's activations, and so has the first */
        assert_near(2 * one.activations - two.activations, 3 * 1024 * layer, 1e-12, "working set");
        fx_free(&r.f);
    }
}
END_TEST

/* A module that nothing comes to, and nothing leaves, has buffers between its stages alone. */
START_TEST(test_buffers_of_messages_that_there_are)
{
    double message = 2.0 * 8192 * 8192 / 8;
    struct dt_memory mem;
    struct rig r;

    rig_open(&r, 8, 2, 12);
    for (int edges = 0; edges < 3; edges++)
        for (int stage = 0; stage < 2; stage++) {
            int in = stage > 0 || edges > 0, out = stage == 0 || edges > 1;

            r.f.model.n_edges = edges;
            dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, stage, &r.work[r.llm], 8, &mem);
            assert_near(mem.broker, 2 * (in + out) * message, 1e-12, "buffers");
        }
    r.f.model.n_edges = 0;
    r.p.modules[r.llm].layout.pp = 1;
    even_split(&r.p, &r.f.model, r.llm);
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 8, &mem);
    ck_assert(mem.broker == 0);
    fx_free(&r.f);
}
END_TEST

/* ZeRO 3: the largest of four buckets, 21 layers or 20 and the head, is whole, in 2 bytes and its gradients in 4.  Experts of which
 * there is one copy are neither gathered nor reduced. */
START_TEST(test_experts_without_a_copy_stay)
{
    double h = 8192, dense = 2 * h * h + 2 * h * 1024 + 2 * h + 8 * h, head = 32000 * h + h;
    double expert = 3 * h * 28672, layer;

    for (int ep = 2; ep <= 8; ep *= 2) {
        struct dt_memory mem;
        struct rig r;

        rig_open(&r, 1, 1, 8);
        for (int b = 1; b <= 80; b++) {
            r.f.model.modules[r.llm].blocks[b].n_experts = 8;
            r.f.model.modules[r.llm].blocks[b].top_k = 2;
        }
        r.p.modules[r.llm].layout.ep = ep;
        r.p.modules[r.llm].zero = 3;
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 8, &mem);
        layer = dense + (ep < 8 ? 8 * expert / ep : 0);
        assert_near(mem.whole, 6 * fmax(21 * layer, 20 * layer + head), 1e-9, "buckets");
        fx_free(&r.f);
    }
}
END_TEST

/* What tensor parallelism does not deal: positions of tokens, routers, and latent attention's ways down with their norms. */
START_TEST(test_parameters_that_are_whole)
{
    static const struct dt_plan_layout l = {.tp = 4, .cp = 1, .pp = 1, .vpp = 1, .dp = 2, .ep = 2};
    struct dt_block table = {
        .kind = DT_BLOCK_EMBEDDING, .hidden = 64, .vocab = 1000, .max_pos = 128};
    struct dt_block b = fx_layer(64, 48, 4, 4, true);
    double attention = 4 * 64 * 64, norms = 2 * 64, experts = 8 * 3 * 64 * 48;

    ck_assert_double_eq(dt_memory_params(&table, &l), 1000 * 64 / 4 + 128 * 64);
    b.n_experts = 8;
    b.top_k = 2;
    ck_assert_double_eq(dt_memory_params(&b, &l),
                        (attention + norms) / 4 + 64 * 8 + experts / (4 * 2));
    b.shared_ffn = 96;
    b.shared_gate = b.router_bias = true;
    ck_assert_double_eq(dt_memory_params(&b, &l), (attention + norms + 3 * 64 * 96) / 4 + 64 * 8 +
                                                      8 + 64 + experts / (4 * 2));
    b = fx_layer(64, 200, 4, 4, true);
    b.head_dim = 24;
    b.q_lora = 40;
    b.kv_lora = 32;
    b.rope_dim = 8;
    b.v_dim = 16;
    ck_assert_double_eq(
        dt_memory_params(&b, &l),
        64 * 40 + 40 + 64 * (32 + 8) + 32 +
            (40 * 4 * 24 + 32 * 4 * (16 + 16) + 4 * 16 * 64 + norms + 3 * 64 * 200) / 4);
}
END_TEST

START_TEST(test_frozen_holds_less)
{
    struct rig r;
    struct dt_memory trained, frozen;

    rig_open(&r, 8, 10, 12);
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.vit, 0, &r.work[r.vit], 160, &trained);
    r.p.modules[r.vit].frozen = true;
    dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.vit, 0, &r.work[r.vit], 160, &frozen);
    ck_assert(frozen.params == trained.params);
    /* only the projector is trained: 1280 x 8192 weights */
    assert_near(frozen.grads, 4.0 * 1280 * 8192, 0.01, "gradients of the projector");
    ck_assert(frozen.activations < 0.2 * trained.activations && frozen.activations > 0);
    fx_free(&r.f);
}
END_TEST

START_TEST(test_recompute_order)
{
    struct rig r;
    double last = INFINITY;

    rig_open(&r, 8, 10, 12);
    for (int mode = DT_RECOMPUTE_NONE; mode <= DT_RECOMPUTE_FULL; mode++) {
        struct dt_memory m;

        r.p.modules[r.llm].recompute = (enum dt_block_recompute)mode;
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 160, &m);
        ck_assert(m.activations < last && m.activations > 0);
        last = m.activations;
    }
    fx_free(&r.f);
}
END_TEST

/* More sharding or fewer microbatches never need more. */
START_TEST(test_monotone_property)
{
    struct dt_rng rng;
    uint64_t seed = dt_test_seed();

    dt_rng_init(&rng, seed, 6);
    for (int i = 0; i < 300; i++) {
        int tp = 1 << dt_rng_below(&rng, 3), pp = 1 + (int)dt_rng_below(&rng, 20);
        int stage = (int)dt_rng_below(&rng, (uint64_t)pp);
        int64_t n = 1 + (int64_t)dt_rng_below(&rng, 200);
        struct dt_memory a, b, c, d;
        struct rig r;

        rig_open(&r, tp, pp, 1 + (int)dt_rng_below(&rng, 30));
        r.p.modules[r.llm].recompute = (enum dt_block_recompute)dt_rng_below(&rng, 3);
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, stage, &r.work[r.llm], n, &a);
        r.p.modules[r.llm].layout.tp *= 2;
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, stage, &r.work[r.llm], n, &b);
        r.p.modules[r.llm].layout.tp /= 2;
        r.p.modules[r.llm].layout.dp *= 2;
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, stage, &r.work[r.llm], n, &c);
        dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, r.llm, stage, &r.work[r.llm], 1 + n / 2,
                        &d);
        ck_assert_msg(b.total < a.total && c.total < a.total && d.total <= c.total,
                      "seed %" PRIu64 ": tp %d pp %d stage %d", seed, tp, pp, stage);
        fx_free(&r.f);
    }
}
END_TEST

/* One of the boundaries of a module's stages, if there are any, with a block or more on either side. */
static void move_boundary(struct dt_plan *p, int module, struct dt_rng *rng)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    uint16_t *split = p->modules[module].split;
    int n = l->pp * l->vpp, v;

    if (n < 2)
        return;
    v = 1 + (int)dt_rng_below(rng, (uint64_t)n - 1);
    split[v] = (uint16_t)(split[v - 1] + 1 +
                          dt_rng_below(rng, (uint64_t)(split[v + 1] - split[v - 1] - 1)));
}

/* One thing of the plan that memory depends on. */
static void change_one(struct rig *r, struct dt_rng *rng)
{
    struct dt_plan_policy *y = &r->p.policy;
    int m = (int)dt_rng_below(rng, 3);
    struct dt_plan_module *mp = &r->p.modules[m];
    bool flip = dt_rng_below(rng, 2);

    switch (dt_rng_below(rng, 18)) {
    case 17:
        r->p.modules[r->vit].layout.pp = 1 + flip;
        even_split(&r->p, &r->f.model, r->vit);
        break;
    case 16:
        move_boundary(&r->p, flip ? r->llm : r->vit, rng);
        break;
    case 15:
        y->cp_comm = flip ? DT_CP_COMM_RING : DT_CP_COMM_GATHER;
        break;
    case 14:
        mp->zero_group = flip ? (mp->layout.dp + 1) / 2 : 0;
        break;
    case 0:
        mp->zero = (int)dt_rng_below(rng, 4);
        break;
    case 1:
        mp->recompute = (enum dt_block_recompute)dt_rng_below(rng, 3);
        break;
    case 2:
        mp->frozen = flip;
        break;
    case 3:
        mp->layout.dp = 1 << dt_rng_below(rng, 4);
        break;
    case 4:
        mp->layout.tp = 1 << dt_rng_below(rng, 4);
        break;
    case 5:
        mp->layout.cp = 1 << dt_rng_below(rng, 4);
        break;
    case 6:
        mp->layout.ip = 1 + flip;
        break;
    case 7:
        y->bf16_grads = flip;
        break;
    case 8:
        y->fp32 = flip;
        break;
    case 9:
        y->overlap_grad = flip;
        break;
    case 10:
        y->overlap_param = flip;
        break;
    case 11:
        y->schedule = flip ? DT_SCHED_ZB_H1 : DT_SCHED_1F1B;
        break;
    case 12:
        r->work[m] = fx_text(1 + (int64_t)dt_rng_below(rng, 3), 1024 << dt_rng_below(rng, 3));
        break;
    default:
        r->p.modules[r->llm].layout.pp = 2 << flip;
        r->p.modules[r->llm].layout.vpp = 1 + (int)dt_rng_below(rng, 2);
        even_split(&r->p, &r->f.model, r->llm);
        break;
    }
}

/* What is remembered of a stage is what it holds, whatever has changed since. */
START_TEST(test_remembered)
{
    struct dt_memory_memo *memo;
    uint64_t seed = dt_test_seed();
    struct dt_rng rng;
    struct rig r;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&rng, seed, 9);
    rig_open(&r, 8, 4, 4);
    memo = dt_memory_memo_new(&r.f.model);
    ck_assert_ptr_nonnull(memo);
    for (int round = 0; round < 4000; round++) {
        change_one(&r, &rng);
        for (int m = 0; m < 3; m++)
            for (int s = 0; s < r.p.modules[m].layout.pp; s++) {
                struct dt_memory a, b;

                dt_memory_stage(&r.p, &r.f.model, &r.f.cluster, m, s, &r.work[m], 16, &a);
                dt_memory_stage_again(memo, &r.p, &r.f.model, &r.f.cluster, m, s, &r.work[m], 16,
                                      &b);
                ck_assert_msg(a.total == b.total && a.params == b.params && a.grads == b.grads &&
                                  a.activations == b.activations && a.broker == b.broker &&
                                  a.whole == b.whole && a.in_flight == b.in_flight,
                              "seed %" PRIu64 ", round %d, module %d stage %d: %.0f bytes, "
                              "remembered %.0f",
                              seed, round, m, s, a.total, b.total);
            }
    }
    dt_memory_memo_free(memo);
    fx_free(&r.f);
}
END_TEST

/* What a stage's activations take beyond those of as many tokens on one rank of context parallelism. */
static double for_all_ranks(struct rig *r, int module, int stage, int cp)
{
    struct dt_plan_layout *l = &r->p.modules[module].layout;
    struct dt_work all = fx_text(2, 8192), own = fx_text(2, 8192 / cp);
    struct dt_memory many, one;

    l->cp = cp;
    l->dp = 16 / cp;
    dt_memory_stage_on(DT_MEMORY_GPU, &r->p, &r->f.model, &r->f.cluster, module, stage, &all, 8,
                       &many);
    l->cp = 1;
    l->dp = 16;
    dt_memory_stage_on(DT_MEMORY_GPU, &r->p, &r->f.model, &r->f.cluster, module, stage, &own, 8,
                       &one);
    return many.activations - one.activations;
}

/* By hand, in 2 bytes, keys and values of 16,384 tokens: 8 heads of 128 with tp 2; 16 of 80 of a frozen encoder, whose first
 * stage has no backward and so no gradients of them.  A GPU holds them beside its own for the time of a block; of a
 * ring, two ranks'. */
START_TEST(test_context_parallel)
{
    for (int cp = 1; cp <= 8; cp *= 2)
        for (int ring = 0; ring < 2; ring++) {
            double llm = 2 * 2 * 2 * (8 / 2) * 128 * 16384.0, vit = 2 * 2 * 16 * 80 * 16384.0;
            double part = cp < 2 ? 0 : ring ? 2.0 / cp : 1;
            struct rig r;

            rig_open(&r, 2, 4, 4);
            r.p.policy.cp_comm = ring ? DT_CP_COMM_RING : DT_CP_COMM_GATHER;
            r.p.modules[r.vit].frozen = true;
            r.p.modules[r.vit].layout.pp = 2;
            even_split(&r.p, &r.f.model, r.vit);
            ck_assert_double_eq_tol(for_all_ranks(&r, r.llm, 1, cp), llm * part, 1);
            ck_assert_double_eq_tol(for_all_ranks(&r, r.vit, 0, cp), vit * part, 1);
            fx_free(&r.f);
        }
}
END_TEST

START_TEST(test_check)
{
    struct rig r;
    struct dt_error err = {0};
    double most = -1;

    rig_open(&r, 8, 10, 12);
    r.f.cluster.nodes = 200;
    dt_assert_ok(dt_memory_check(&r.p, &r.f.model, &r.f.cluster, r.work, &most, &err), err);
    ck_assert(most > 20 * GIB && most < 80e9);
    fx_free(&r.f);

    rig_open(&r, 1, 10, 12);
    most = -1;
    ck_assert_int_eq(dt_memory_check(&r.p, &r.f.model, &r.f.cluster, r.work, &most, &err),
                     DT_ERR_INFEASIBLE);
    ck_assert(most == -1);
    dt_assert_has(err.message, "llm stage 0 needs ");
    dt_assert_has(err.message, "the GPU has 74.5 GiB");
    dt_assert_has(err.message, "activations ");
    dt_assert_has(err.message, "(11 in flight)");
    dt_assert_has(err.message, "recompute full: ");
    dt_assert_has(err.message, "twice the tp: ");
    dt_assert_has(err.message, "twice the pp: ");
    ck_assert_int_eq(dt_memory_check(&r.p, &r.f.model, &r.f.cluster, r.work, &most, NULL),
                     DT_ERR_INFEASIBLE);
    fx_free(&r.f);
}
END_TEST

/* Masters and moments on hosts help where a node's host has the memory, or where nobody says what it has. */
START_TEST(test_offload_needs_a_host)
{
    struct dt_memory_host h;
    struct dt_memory mem;
    struct dt_error err;
    struct dt_plan q;
    char said[64];
    struct rig r;

    rig_open(&r, 8, 1, 4);
    r.f.cluster.host_bytes_per_s = 2e10;
    r.f.cluster.mem_bytes = 120e9;
    dt_assert_ok(dt_plan_place(&r.p, &r.f.cluster, &err), err);
    q = r.p;
    q.modules[r.llm].offload = DT_OFFLOAD_OPTIMIZER;
    dt_memory_stage(&q, &r.f.model, &r.f.cluster, r.llm, 0, &r.work[r.llm], 480, &mem);
    dt_assert_ok(dt_memory_host(&q, &r.f.model, &r.f.cluster, r.work, &err, &h), err);
    printf("%.1f GiB of a GPU, %.1f of a node\n", mem.total / GIB, h.node_bytes / GIB);
    ck_assert(mem.total <= r.f.cluster.mem_bytes && h.node_bytes > 100 * GIB);
    for (int host = 0; host < 3; host++) {
        r.f.cluster.host_mem_bytes = host == 0 ? 0 : h.node_bytes + (host == 1 ? 1 : -1);
        ck_assert_int_eq(dt_memory_check(&r.p, &r.f.model, &r.f.cluster, r.work, NULL, &err),
                         DT_ERR_INFEASIBLE);
        snprintf(said, sizeof(said), "offload optimizer: %.1f GiB %s", mem.total / GIB,
                 host == 2 ? "(and " : "(fits)");
        dt_assert_has(err.message, said);
        /* and so says the check of the plan that has it */
        ck_assert_int_eq(dt_memory_check(&q, &r.f.model, &r.f.cluster, r.work, NULL, &err),
                         host == 2 ? DT_ERR_INFEASIBLE : DT_OK);
    }
    snprintf(said, sizeof(said), "%.1f GiB of its host", h.node_bytes / GIB);
    dt_assert_has(err.message, said);
    fx_free(&r.f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("memory");
    TCase *t = dt_test_case(s, "memory", 0);

    tcase_add_test(t, test_in_flight);
    tcase_add_test(t, test_processes);
    tcase_add_test(t, test_longest_path);
    tcase_add_test(t, test_interleaved);
    tcase_add_test(t, test_interleaved_property);
    tcase_add_test(t, test_closed_form_70b);
    tcase_add_test(t, test_logits_wait_for_their_backward);
    tcase_add_test(t, test_frozen_layers_have_a_working_set);
    tcase_add_test(t, test_buffers_of_messages_that_there_are);
    tcase_add_test(t, test_experts_without_a_copy_stay);
    tcase_add_test(t, test_parameters_that_are_whole);
    tcase_add_test(t, test_frozen_holds_less);
    tcase_add_test(t, test_recompute_order);
    tcase_add_test(t, test_monotone_property);
    tcase_add_test(t, test_context_parallel);
    tcase_add_test(t, test_check);
    tcase_add_test(t, test_offload_needs_a_host);
    tcase_add_test(t, test_remembered);
    return dt_test_run(s);
}
