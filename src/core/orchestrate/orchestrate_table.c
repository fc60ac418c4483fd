/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The planner's tables: mean sample sizes, block times per TP degree, the best split per (pp, vpp).
 * Built once per search; after that a layout is costed with a few loads. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <string.h>

/* Samples of the first global batch looked at for the means: enough for 0.4 % of a coefficient of
 * variation. */
enum { STATS_SAMPLES_MAX = 65536 };

void dt_orch_work_stats(const struct dt_search_input *in, int module,
                        struct dt_orch_work_stats *out)
{
    const struct dt_module *mod = &in->model->modules[module];
    int64_t n = in->policy.global_batch;
    double square = 0;

    if (n > in->samples->n)
        n = in->samples->n;
    if (n > STATS_SAMPLES_MAX)
        n = STATS_SAMPLES_MAX;
    memset(out, 0, sizeof(*out));
    for (int64_t i = 0; i < n; i++) {
        struct dt_work w;

        dt_sample_work(in->samples, i, mod, &w);
        out->n += (double)w.n;
        out->tokens += (double)w.tokens;
        out->tokens_sq += (double)w.tokens_sq;
        square += (double)w.tokens * (double)w.tokens;
        out->n_max = fmax(out->n_max, (double)w.n);
        out->tokens_max = fmax(out->tokens_max, (double)w.tokens);
        out->tokens_sq_max = fmax(out->tokens_sq_max, (double)w.tokens_sq);
        if (w.tokens_max > out->longest)
            out->longest = w.tokens_max;
    }
    if (n < 1)
        return;
    out->n /= (double)n;
    out->tokens /= (double)n;
    out->tokens_sq /= (double)n;
    out->tokens_sd = sqrt(fmax(0, square / (double)n - out->tokens * out->tokens));
}

/* Work of k mean samples. */
static void mean_work(const struct dt_orch_work_stats *s, double k, struct dt_work *out)
{
    memset(out, 0, sizeof(*out));
    if (s->tokens <= 0)
        return;
    out->n = llround(fmax(1, s->n * k));
    out->tokens = llround(fmax(1, s->tokens * k));
    out->tokens_sq = llround(fmax(1, s->tokens_sq * k));
    out->tokens_max = s->longest < out->tokens ? s->longest : out->tokens;
}

void dt_search_mean_work(const struct dt_search_input *in, int module, struct dt_work *out)
{
    struct dt_orch_work_stats s;

    dt_orch_work_stats(in, module, &s);
    mean_work(&s, 1, out);
}

/* The LLM's kernels see M samples at once; encoders and generators are costed one sample at a time
 * (a packed sample already holds several images). */
void dt_orch_block_timer_init(struct dt_orch_block_timer *b, const struct dt_search_input *in,
                              const struct dt_plan *p, int module,
                              const struct dt_block_shard *shard,
                              const struct dt_orch_work_stats *w)
{
    b->in = in;
    b->p = p;
    b->module = module;
    b->shard = *shard;
    b->k = module == in->model->llm ? in->policy.microbatch : 1;
    mean_work(w, b->k, &b->work);
    dt_plan_trainable(p, in->model, module, b->trainable);
}

double dt_orch_block_timer_s(const struct dt_orch_block_timer *b, int block)
{
    struct dt_cost_stage_ns ns;

    if (b->work.tokens <= 0)
        return 0;
    ns = dt_cost_stage_ns(b->in->cost, b->module, block, 1, &b->shard, &b->work, b->trainable,
                          dt_plan_upstream_trained(b->p, b->in->model, b->module, block));
    return (ns.fwd + ns.bwd) * 1e-9 / b->k;
}

static bool tp_legal(const struct dt_orch_table *t, int m, int tp, struct dt_orch_rejects *r)
{
    const struct dt_module *mod = &t->in->model->modules[m];

    if (t->in->cluster->gpus_per_node % tp != 0) {
        r->nodes++;
        return false;
    }
    for (int b = 0; b < mod->n_blocks; b++)
        if (!dt_block_allows_tp(&mod->blocks[b], tp)) {
            r->heads++;
            return false;
        }
    return true;
}

static enum dt_status build_tp(struct dt_orch_table *t, int m, int tpi, struct dt_error *err)
{
    const struct dt_module *mod = &t->in->model->modules[m];
    struct dt_orch_tp_costs *c = &t->cost[m][tpi];
    const struct dt_block_shard shard = {.tp = 1 << tpi,
                                         .cp = 1,
                                         .ep = 1,
                                         .ip = 1,
                                         .seqpar = tpi > 0,
                                         .recompute = t->scratch.modules[m].recompute};
    struct dt_orch_block_timer timer;
    size_t n = (size_t)mod->n_blocks;
    size_t entries = n * (size_t)(m == t->in->model->llm ? t->max_vpp : 1);

    c->legal = tp_legal(t, m, 1 << tpi, &t->rejects);
    if (!c->legal)
        return DT_OK;
    c->block_s = DT_ARENA_NEW(&t->arena, double, n);
    c->stage = DT_ARENA_NEW(&t->arena, struct dt_orch_stage_entry, entries);
    if (!c->block_s || !c->stage)
        return dt_error_nomem(err, "planner tables");
    for (size_t i = 0; i < entries; i++)
        c->stage[i].max_s = -1;
    dt_orch_block_timer_init(&timer, t->in, &t->scratch, m, &shard, &t->work[m]);
    for (size_t b = 0; b < n; b++) {
        c->block_s[b] = dt_orch_block_timer_s(&timer, (int)b);
        c->sample_s += c->block_s[b];
    }
    return DT_OK;
}

static enum dt_status build(struct dt_orch_table *t, struct dt_error *err)
{
    const struct dt_search_input *in = t->in;
    unsigned mask = in->opt.tp_mask ? in->opt.tp_mask : 0xfu;

    dt_plan_init(&t->scratch, in->model, &in->policy);
    for (int m = 0; m < in->model->n_modules; m++)
        t->scratch.modules[m].frozen = in->frozen[m];
    for (int m = 0; m < in->model->n_modules; m++) {
        dt_orch_work_stats(in, m, &t->work[m]);
        dt_orch_table_static_bytes(t, m);
        t->cost[m] = DT_ARENA_NEW(&t->arena, struct dt_orch_tp_costs, DT_TP_N);
        if (!t->cost[m])
            return dt_error_nomem(err, "planner tables");
        for (int tpi = 0; tpi < DT_TP_N; tpi++)
            if (mask >> tpi & 1)
                DT_TRY(build_tp(t, m, tpi, err));
    }
    return DT_OK;
}

enum dt_status dt_orch_table_new(const struct dt_search_input *in, struct dt_error *err,
                                 struct dt_orch_table **out)
{
    struct dt_orch_table *t;
    enum dt_status st;

    if (dt_cost_opts(in->cost)->stepccl != in->policy.stepccl)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "the cost model was made with stepccl %s, the policy says %s",
                            in->policy.stepccl ? "off" : "on", in->policy.stepccl ? "on" : "off");
    t = dt_calloc(1, sizeof(*t));
    if (!t)
        return dt_error_nomem(err, "planner tables");
    t->in = in;
    t->sigmas = 3;
    t->gpus = in->opt.gpus > 0 && in->opt.gpus < dt_cluster_gpus(in->cluster)
                  ? in->opt.gpus
                  : dt_cluster_gpus(in->cluster);
    t->max_vpp =
        dt_pipe_of(in->policy.schedule)->chunks && in->opt.max_vpp > 1 ? in->opt.max_vpp : 1;
    if (t->max_vpp > DT_SEARCH_VPP_MAX)
        t->max_vpp = DT_SEARCH_VPP_MAX;
    st = build(t, err);
    if (st != DT_OK)
        dt_orch_table_free(t);
    else
        *out = t;
    return st;
}

void dt_orch_table_free(struct dt_orch_table *t)
{
    if (!t)
        return;
    dt_arena_free(&t->arena);
    dt_free(t->mem);
    dt_free(t);
}

/* Time of one sample through the chunks of the slowest stage. */
static double slowest_stage(const double *block_s, const uint16_t *split, int pp, int vpp)
{
    double max = 0;

    for (int s = 0; s < pp; s++) {
        double sum = 0;

        for (int chunk = 0; chunk < vpp; chunk++)
            for (int b = split[chunk * pp + s]; b < split[chunk * pp + s + 1]; b++)
                sum += block_s[b];
        max = fmax(max, sum);
    }
    return max;
}

const struct dt_orch_stage_entry *dt_orch_table_stage(struct dt_orch_table *t, int m, int tpi,
                                                      int pp, int vpp)
{
    int n = t->in->model->modules[m].n_blocks;
    struct dt_orch_tp_costs *c = &t->cost[m][tpi];
    struct dt_orch_stage_entry *e = &c->stage[(size_t)(vpp - 1) * (size_t)n + (size_t)(pp - 1)];

    if (e->max_s >= 0)
        return e;
    e->split = DT_ARENA_NEW(&t->arena, uint16_t, pp * vpp + 1);
    if (!e->split) {
        t->nomem = true;
        return NULL;
    }
    dt_plan_split_blocks(c->block_s, n, pp * vpp, e->split);
    e->max_s = slowest_stage(c->block_s, e->split, pp, vpp);
    return e;
}
