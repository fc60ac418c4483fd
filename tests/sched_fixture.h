/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small hand-made models, plans and samples for tests of programs and timelines. */
#ifndef DT_TESTS_SCHED_FIXTURE_H
#define DT_TESTS_SCHED_FIXTURE_H

#include "cost_fixture.h"

#include "base/mem.h"
#include "core/cost/memory.h"
#include "report/report.h"
#include "base/rng.h"
#include "core/schedule/schedule.h"
#include "test_util.h"

enum { SF_SAMPLES_MAX = 4096, SF_ITEMS_MAX = 4 * SF_SAMPLES_MAX, SF_SEQ = 256 };

struct sched_fixture {
    struct fixture f; /* cluster and model */
    struct dt_plan plan;
    struct dt_samples samples;
    uint32_t text[SF_SAMPLES_MAX], seq[SF_SAMPLES_MAX];
    uint64_t item_first[SF_SAMPLES_MAX + 1];
    struct dt_sample_item items[SF_ITEMS_MAX];
    struct dt_assignment *a;
    struct dt_program *p;
    struct dt_error err;
};

static inline void sf_init(struct sched_fixture *s)
{
    memset(s, 0, sizeof(*s));
    fx_init(&s->f);
    s->f.cluster.nodes = 512;
}

static inline void sf_free_program(struct sched_fixture *s)
{
    dt_program_free(s->p);
    dt_assign_free(s->a);
    s->p = NULL;
    s->a = NULL;
}

static inline void sf_free(struct sched_fixture *s)
{
    sf_free_program(s);
    fx_free(&s->f);
}

static inline int sf_encoder(struct sched_fixture *s, const char *name, int layers)
{
    int m = fx_vit(&s->f, layers, 1280, 5120, 16, 1024);

    strcpy(s->f.model.modules[m].name, name);
    s->f.model.modules[m].patch = 16;
    return m;
}

static inline int sf_llm(struct sched_fixture *s, int layers)
{
    return fx_llm(&s->f, layers, 1024, 2816, 16, 16, 4099);
}

/* A projector of the LLM's states, then layers over latent pixels. */
static inline int sf_generator(struct sched_fixture *s, const char *name, int layers)
{
    struct dt_module *m = fx_module(&s->f, name, DT_ROLE_GENERATOR, layers + 1);

    m->modality = DT_MODALITY_IMAGE;
    m->latent_scale = 8;
    m->resize = 64;
    m->out_tokens_per_item = 77;
    m->blocks[0].kind = DT_BLOCK_PROJECTOR;
    m->blocks[0].in_dim = m->blocks[0].out_dim = 1024;
    for (int i = 1; i <= layers; i++)
        m->blocks[i] = fx_layer(640, 2560, 8, 8, false);
    return s->f.model.n_modules - 1;
}

static inline void sf_edge(struct sched_fixture *s, int src, int dst)
{
    s->f.model.edges[s->f.model.n_edges++] = (struct dt_model_edge){src, dst};
}

/* Encoder, LLM, generator in a row. */
static inline void sf_chain(struct sched_fixture *s, int layers)
{
    int e = sf_encoder(s, "encoder", layers), l = sf_llm(s, layers);
    int g = sf_generator(s, "generator", layers);

    sf_edge(s, e, l);
    sf_edge(s, l, g);
}

static inline void sf_plan(struct sched_fixture *s, int64_t batch, int microbatch,
                           enum dt_pipe_schedule schedule)
{
    struct dt_plan_policy y = {.global_batch = batch,
                               .microbatch = microbatch,
                               .seq_len = SF_SEQ,
                               .schedule = schedule,
                               .overlap_grad = true,
                               .overlap_param = true};

    dt_plan_init(&s->plan, &s->f.model, &y);
    fx_modes(&s->plan, DT_RECOMPUTE_NONE, 1);
}

static inline void sf_layout(struct sched_fixture *s, int m, int tp, int pp, int vpp, int dp)
{
    double cost[256];
    int n = s->f.model.modules[m].n_blocks;

    for (int i = 0; i < n; i++)
        cost[i] = 1;
    s->plan.modules[m].layout = (struct dt_plan_layout){tp, 1, 1, pp, vpp, dp, 1, 0};
    dt_plan_split_blocks(cost, n, pp * vpp, s->plan.modules[m].split);
}

/* `items` images to encode and `targets` to generate on average; every third sample is text only
 * when sparse. */
static inline void sf_samples(struct sched_fixture *s, int64_t n, int items, int targets,
                              bool sparse, uint64_t seed)
{
    struct dt_rng r;
    uint64_t at = 0;

    dt_rng_init(&r, seed, 77);
    s->samples = (struct dt_samples){.n = n,
                                     .text_tokens = s->text,
                                     .seq_tokens = s->seq,
                                     .item_first = s->item_first,
                                     .items = s->items};
    for (int64_t i = 0; i < n; i++) {
        int e = (int)dt_rng_below(&r, 2 * (uint64_t)items + 1);
        int g = (int)dt_rng_below(&r, 2 * (uint64_t)targets + 1);

        s->text[i] = s->seq[i] = SF_SEQ;
        s->item_first[i] = at;
        if (sparse && i % 3 == 1)
            e = g = 0;
        else if (!sparse)
            e += items > 0 && e == 0, g += targets > 0 && g == 0;
        for (int k = 0; k < e + g && at < SF_ITEMS_MAX; k++)
            s->items[at++] =
                (struct dt_sample_item){.w = (uint16_t)(64 + 16 * dt_rng_below(&r, 9)),
                                        .h = (uint16_t)(64 + 16 * dt_rng_below(&r, 9)),
                                        .kind = DT_MODALITY_IMAGE,
                                        .flags = k < e ? DT_ITEM_ENCODE : DT_ITEM_GENERATE};
    }
    s->item_first[n] = at;
}

static inline void sf_assign(struct sched_fixture *s)
{
    dt_assert_ok(dt_plan_place(&s->plan, &s->f.cluster, &s->err), s->err);
    dt_assert_ok(dt_plan_validate(&s->plan, &s->f.model, &s->f.cluster, &s->err), s->err);
    dt_assert_ok(dt_assign(&s->plan, &s->f.model, NULL, &s->samples, 0, &s->err, &s->a), s->err);
}

/* Assigns, compiles and checks. */
static inline void sf_compile(struct sched_fixture *s)
{
    if (!s->a)
        sf_assign(s);
    dt_assert_ok(dt_sched_compile(&s->plan, &s->f.model, &s->f.cluster, s->a, NULL, &s->err, &s->p),
                 s->err);
    dt_assert_ok(dt_program_check(s->p, &s->f.model, &s->err), s->err);
}

/* An LLM alone. */
static inline void sf_llm_only(struct sched_fixture *s, int pp, int vpp, int dp, int n,
                               enum dt_pipe_schedule schedule)
{
    sf_init(s);
    sf_llm(s, pp * vpp < 2 ? 2 : pp * vpp);
    sf_plan(s, (int64_t)n * dp, 1, schedule);
    sf_layout(s, 0, 1, pp, vpp, dp);
    sf_samples(s, (int64_t)n * dp, 0, 0, false, 1);
    sf_compile(s);
}

static inline uint32_t sf_count(const struct dt_program *p, int module, enum dt_op_kind kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_ops; i++)
        n += p->ops[i].module == module && p->ops[i].kind == kind;
    return n;
}

/* Forward f[virtual stage], backward b, and weight gradient w where it is apart; parts of one op sharing
 * its time; the rest 0. */
static inline int64_t *sf_split_durations(const struct dt_program *p, const int64_t *f,
                                          const int64_t *b, const int64_t *w)
{
    int64_t *ns = calloc((size_t)p->n_ops + 1, sizeof(*ns));

    ck_assert_ptr_nonnull(ns);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *op = &p->ops[i];
        int v = op->chunk * p->plan->modules[op->module].layout.pp + op->stage;
        const int64_t *t = op->kind == DT_OP_FORWARD       ? f
                           : op->kind == DT_OP_BACKWARD    ? b
                           : op->kind == DT_OP_WEIGHT_GRAD ? w
                                                           : NULL;

        if (t)
            ns[i] = t[v] * (op->part + 1) / op->parts - t[v] * op->part / op->parts;
    }
    return ns;
}

static inline int64_t *sf_durations(const struct dt_program *p, const int64_t *f, const int64_t *b)
{
    return sf_split_durations(p, f, b, NULL);
}

static inline int64_t sf_makespan(struct sched_fixture *s, const int64_t *ns)
{
    struct dt_timeline_topo topo = {0};
    struct dt_timeline t = {0};
    int64_t span;

    dt_assert_ok(dt_timeline_topo_build(s->p, &s->err, &topo), s->err);
    dt_assert_ok(dt_timeline_eval(s->p, &topo, ns, &s->err, &t), s->err);
    span = t.makespan_ns;
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&t);
    return span;
}

#endif
