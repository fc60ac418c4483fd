/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small random models, samples and clusters for tests of the planner. */
#ifndef DT_TESTS_SMALL_WORLD_H
#define DT_TESTS_SMALL_WORLD_H

#include "cost_fixture.h"
#include "core/cost/memory.h"
#include "core/orchestrate/orchestrate_internal.h"
#include "base/rng.h"
#include "test_util.h"

#include <stdio.h>

static struct dt_rng rng;
static uint64_t seed;

static inline double uniform(double lo, double hi)
{
    return lo + (hi - lo) * dt_rng_uniform(&rng);
}

static inline int below(int n)
{
    return (int)dt_rng_below(&rng, (uint64_t)n);
}

static inline void setup_seed(void)
{
    seed = dt_test_seed();
    dt_rng_init(&rng, seed, 7);
}

struct world {
    struct fixture fx;
    struct dt_samples samples;
    uint32_t tokens[64];
    uint64_t item_first[65];
    struct dt_sample_item items[64 * 6];
    struct dt_cost *cost;
    struct dt_search_input in;
};

static inline void add_generator(struct world *w, int layers, int hidden)
{
    struct dt_module *g = fx_module(&w->fx, "gen", DT_ROLE_GENERATOR, layers + 1);

    snprintf(g->name, sizeof(g->name), "gen%d", w->fx.model.n_modules);
    g->modality = DT_MODALITY_IMAGE;
    g->latent_scale = 8;
    g->resize = 256;
    g->blocks[0].kind = DT_BLOCK_PROJECTOR;
    g->blocks[0].in_dim = 512;
    g->blocks[0].out_dim = hidden;
    for (int b = 1; b <= layers; b++)
        g->blocks[b] = fx_layer(hidden, 4 * hidden, 4, 4, false);
}

/* Images of random sizes, each encoded, some also to be generated. */
static inline void random_samples(struct world *w, int n)
{
    uint64_t k = 0;

    for (int i = 0; i < n; i++) {
        w->item_first[i] = k;
        w->tokens[i] = 2048;
        for (int j = 1 + below(5); j > 0; j--)
            w->items[k++] =
                (struct dt_sample_item){(uint16_t)(64 + below(960)), (uint16_t)(64 + below(960)),
                                        DT_MODALITY_IMAGE, (uint16_t)(below(2) ? 3 : 1)};
    }
    w->item_first[n] = k;
    w->samples = (struct dt_samples){.name = "random",
                                     .n = n,
                                     .text_tokens = w->tokens,
                                     .seq_tokens = w->tokens,
                                     .item_first = w->item_first,
                                     .items = w->items};
}

static inline void build_world(struct world *w, int encoders, int generators, int64_t batch)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    struct dt_error err;
    struct dt_model *m = &w->fx.model;

    memset(w, 0, sizeof(*w));
    fx_init(&w->fx);
    fx_index(&w->fx);
    w->fx.cluster.nodes = 2;
    w->fx.cluster.mem_reserve_bytes = 0;
    strcpy(m->name, "small");
    for (int e = 0; e < encoders; e++) {
        int v = fx_vit(&w->fx, 2 + below(3), 256 << below(2), 1024, 4, 512);

        snprintf(m->modules[v].name, DT_NAME_MAX, "vit%d", e);
        m->modules[v].patch = 16;
    }
    fx_llm(&w->fx, 3 + below(4), 512, 1408, 8, 4, 4000);
    m->modules[m->llm].out_tokens_per_item = generators ? 77 : 0;
    for (int g = 0; g < generators; g++)
        add_generator(w, 2 + below(3), 256 << below(2));
    for (int i = 0; i < m->n_modules; i++)
        if (i != m->llm)
            m->edges[m->n_edges++] =
                i < m->llm ? (struct dt_model_edge){i, m->llm} : (struct dt_model_edge){m->llm, i};
    random_samples(w, (int)batch);
    dt_assert_ok(dt_cost_new(m, &w->fx.cluster, &w->fx.profile, &opt, &err, &w->cost), err);
    w->in = (struct dt_search_input){
        .model = m,
        .cluster = &w->fx.cluster,
        .samples = &w->samples,
        .cost = w->cost,
        .policy = {.global_batch = batch, .microbatch = 1, .seq_len = 2048},
        .opt = {.k = 8, .tp_mask = 0xf, .max_vpp = 1}};
    for (int i = 0; i < m->n_modules; i++) {
        w->in.recompute[i] = DT_RECOMPUTE_SELECTIVE;
        w->in.zero[i] = 1;
    }
}

/* The LLM's layers have experts, of which the first may be dense. */
static inline void add_experts(struct world *w)
{
    struct dt_module *llm = &w->fx.model.modules[w->fx.model.llm];
    int first = 1 + below(2), experts = 2 << below(3);

    for (int b = first; b < llm->n_blocks - 1; b++) {
        llm->blocks[b].ffn = 256;
        llm->blocks[b].n_experts = experts;
        llm->blocks[b].top_k = 2;
        llm->blocks[b].imbalance = 1.25;
    }
}

/* An LLM of other depth: those that build_world makes are too shallow to have much of a choice of splits. */
static inline void deepen(struct world *w, int layers)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    struct dt_error err;
    struct dt_module *llm = &w->fx.model.modules[w->fx.model.llm];
    const struct dt_block first = llm->blocks[0], layer = llm->blocks[1],
                          last = llm->blocks[llm->n_blocks - 1];

    llm->n_blocks = layers + 2;
    llm->blocks = DT_ARENA_NEW(&w->fx.model.arena, struct dt_block, llm->n_blocks);
    ck_assert_ptr_nonnull(llm->blocks);
    llm->blocks[0] = first;
    llm->blocks[layers + 1] = last;
    for (int b = 1; b <= layers; b++)
        llm->blocks[b] = layer;
    dt_cost_free(w->cost); /* it knows the blocks by their places */
    dt_assert_ok(dt_cost_new(&w->fx.model, &w->fx.cluster, &w->fx.profile, &opt, &err, &w->cost),
                 err);
    w->in.cost = w->cost;
}

static inline void free_world(struct world *w)
{
    dt_cost_free(w->cost);
    fx_free(&w->fx);
}

/* Fewest bytes per GPU at which something fits, so that limits can be set where they bind. */
static inline double set_memory(struct world *w, double fraction)
{
    struct dt_orch_table *t;
    struct dt_error err;
    double bytes = 0;

    dt_assert_ok(dt_orch_table_new(&w->in, &err, &t), err);
    for (int m = 0; m < w->in.model->n_modules; m++) {
        struct dt_memory mem;
        struct dt_work work;

        dt_orch_largest_work(&t->work[m], 1, 3, &work);
        t->scratch.modules[m].split[1] = (uint16_t)w->in.model->modules[m].n_blocks;
        dt_memory_stage(&t->scratch, w->in.model, w->in.cluster, m, 0, &work, 4, &mem);
        bytes = fmax(bytes, mem.total);
    }
    dt_orch_table_free(t);
    w->fx.cluster.mem_bytes = bytes * fraction;
    return bytes;
}

/* Seconds of a plan on the timeline, placed first; HUGE_VAL where it cannot be. */
static inline double timeline_of(const struct dt_search_input *in, struct dt_plan *p)
{
    struct dt_error err;
    double s = HUGE_VAL;

    if (dt_plan_place(p, in->cluster, &err) != DT_OK ||
        dt_plan_validate(p, in->model, in->cluster, &err) != DT_OK ||
        dt_orch_plan_timeline_s(in, p, 0, &err, &s, NULL) != DT_OK)
        return HUGE_VAL;
    return s;
}

#endif
