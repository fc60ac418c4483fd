/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The planner's tables: mean sample sizes, block times per TP degree, the best split per (pp, vpp).
 * Built once per search; after that a layout is costed with a few loads. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <limits.h>
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
    out->samples = (double)in->samples->n;
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
void dt_orch_mean_work(const struct dt_orch_work_stats *s, double k, struct dt_work *out)
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
    dt_orch_mean_work(&s, 1, out);
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
    b->k = module == in->model->llm ? p->policy.microbatch : 1;
    b->split = dt_pipe_of(p->policy.schedule)->put_off != NULL;
    dt_orch_mean_work(w, b->k, &b->work);
    dt_plan_trainable(p, in->model, module, b->trainable);
}

double dt_orch_block_timer_s(const struct dt_orch_block_timer *b, int block, double *later_s)
{
    struct dt_cost_stage_ns ns = {0};

    if (b->work.tokens > 0)
        ns = dt_cost_stage_ns(b->in->cost, b->module, block, 1, &b->shard, &b->work, b->trainable,
                              dt_plan_upstream_trained(b->p, b->in->model, b->module, block));
    if (!b->split)
        ns.later = ns.again = 0;
    if (later_s)
        *later_s = (ns.later + ns.again) * 1e-9 / b->k;
    return (ns.fwd + ns.bwd + ns.again) * 1e-9 / b->k;
}

/* ---- times of the modes ---- */

static struct dt_orch_times *slot_of(const struct dt_orch_table *t, int m, int lane, int recompute,
                                     int microbatch, bool split)
{
    int n = m == t->in->model->llm ? t->space.n_microbatches : 1;

    return &t->times[m][((lane * t->space.of[m].n_recompute + recompute) * n + microbatch) * 2 +
                        split];
}

/* A schedule of the space whose backwards are split or whole, as asked. */
static enum dt_pipe_schedule a_schedule(const struct dt_orch_table *t, bool split)
{
    for (int i = 0; i < t->space.n_pipes; i++)
        if (t->space.pipe[i].split == split)
            return t->space.pipe[i].schedule;
    return t->in->policy.schedule;
}

/* Stacks repeat one block: it is asked for once where its neighbour is equal and trained alike. */
static void time_blocks(struct dt_orch_table *t, int m, const struct dt_block_shard *shard,
                        struct dt_orch_times *out)
{
    const struct dt_module *mod = &t->in->model->modules[m];
    struct dt_orch_block_timer timer;
    double later = 0;
    bool before = false;

    dt_orch_block_timer_init(&timer, t->in, &t->scratch, m, shard, &t->work[m]);
    for (int b = 0; b < mod->n_blocks; b++) {
        bool above = dt_plan_upstream_trained(&t->scratch, t->in->model, m, b);

        if (b > 0 && above == before && timer.trainable[b] == timer.trainable[b - 1] &&
            memcmp(&mod->blocks[b], &mod->blocks[b - 1], sizeof(*mod->blocks)) == 0)
            out->block_s[b] = out->block_s[b - 1];
        else
            out->block_s[b] = dt_orch_block_timer_s(&timer, b, &later);
        before = above;
        out->sample_s += out->block_s[b];
        out->later_s += later;
    }
}

/* Asked for the first time. */
static struct dt_orch_times *fill_times(struct dt_orch_table *t, int m, int lane, int recompute,
                                        int microbatch, bool split, struct dt_orch_times *x)
{
    const struct dt_orch_modes *o = &t->space.of[m];
    struct dt_plan_policy *y = &t->scratch.policy;
    const struct dt_plan_policy stated = *y;
    struct dt_block_shard shard = {.tp = o->lane[lane].tp,
                                   .cp = o->lane[lane].cp,
                                   .ep = o->lane[lane].ep,
                                   .ip = 1,
                                   .seqpar = o->lane[lane].tp > 1,
                                   .recompute = o->recompute[recompute]};

    x->block_s = DT_ARENA_NEW(&t->arena, double, t->in->model->modules[m].n_blocks);
    if (!x->block_s) {
        t->nomem = true;
        return NULL;
    }
    if (m == t->in->model->llm)
        y->microbatch = t->space.microbatch[microbatch];
    y->schedule = a_schedule(t, split);
    time_blocks(t, m, &shard, x);
    *y = stated;
    return x;
}

struct dt_orch_times *dt_orch_times_of(struct dt_orch_table *t, int m, int lane, int recompute,
                                       int microbatch, bool split)
{
    struct dt_orch_times *x = slot_of(t, m, lane, recompute, microbatch, split);

    return x->block_s ? x : fill_times(t, m, lane, recompute, microbatch, split, x);
}

/* ---- building ---- */

static bool has_split(const struct dt_orch_table *t, bool split)
{
    for (int i = 0; i < t->space.n_pipes; i++)
        if (t->space.pipe[i].split == split)
            return true;
    return false;
}

static enum dt_status build_times(struct dt_orch_table *t, int m, struct dt_error *err)
{
    const struct dt_orch_modes *o = &t->space.of[m];
    bool llm = m == t->in->model->llm;
    size_t n = (size_t)o->n_lanes * (size_t)o->n_recompute * 2 *
               (size_t)(llm ? t->space.n_microbatches : 1);

    t->times[m] = DT_ARENA_NEW(&t->arena, struct dt_orch_times, n + 1);
    if (!t->times[m])
        return dt_error_nomem(err, "planner tables");
    for (int split = 0; split < 2 && !llm; split++) {
        struct dt_orch_least *least = &t->least[m][split];

        *least = (struct dt_orch_least){HUGE_VAL, HUGE_VAL, INT_MAX};
        for (int lane = 0; has_split(t, split) && lane < o->n_lanes; lane++)
            for (int r = 0; r < o->n_recompute; r++) {
                const struct dt_orch_times *x = dt_orch_times_of(t, m, lane, r, 0, split);

                if (!x)
                    return dt_error_nomem(err, "planner tables");
                if (dt_orch_lane_gpus(&o->lane[lane]) < least->lane_gpus)
                    least->lane_gpus = dt_orch_lane_gpus(&o->lane[lane]);
                least->sample_s = fmin(least->sample_s, x->sample_s);
                least->gpu_s = fmin(least->gpu_s, dt_orch_lane_gpus(&o->lane[lane]) * x->sample_s);
            }
    }
    return DT_OK;
}

static enum dt_status build(struct dt_orch_table *t, struct dt_error *err)
{
    const struct dt_search_input *in = t->in;

    dt_search_plan_init(in, &t->scratch);
    dt_orch_space_fill(t);
    for (int m = 0; m < in->model->n_modules; m++) {
        dt_orch_work_stats(in, m, &t->work[m]);
        dt_orch_table_static_bytes(t, m);
        DT_TRY(build_times(t, m, err));
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
    if (dt_cost_opts(in->cost)->stepccl_chunks != in->policy.stepccl_chunks)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "the cost model was made with %d chunks, the policy says %d",
                            dt_cost_opts(in->cost)->stepccl_chunks, in->policy.stepccl_chunks);
    t = dt_calloc(1, sizeof(*t));
    if (!t)
        return dt_error_nomem(err, "planner tables");
    t->acts = dt_memory_memo_new(in->model);
    if (!t->acts) {
        dt_free(t);
        return dt_error_nomem(err, "planner tables");
    }
    t->in = in;
    t->sigmas = 3;
    t->gpus = in->opt.gpus > 0 && in->opt.gpus < dt_cluster_gpus(in->cluster)
                  ? in->opt.gpus
                  : dt_cluster_gpus(in->cluster);
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
    dt_memory_memo_free(t->acts);
    dt_orch_table_forget(t);
    dt_hash_table_free(&t->exchange);
    dt_free(t);
}

/* ---- splits ---- */

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

const struct dt_orch_stage_entry *dt_orch_stage_of(struct dt_orch_table *t, int m,
                                                   struct dt_orch_times *times, int pp, int vpp)
{
    int n = t->in->model->modules[m].n_blocks;
    struct dt_orch_stage_entry **row = &times->stage[vpp - 1], *e;

    if (!*row)
        *row = DT_ARENA_NEW(&t->arena, struct dt_orch_stage_entry, n);
    if (!*row) {
        t->nomem = true;
        return NULL;
    }
    e = &(*row)[pp - 1];
    if (e->split)
        return e;
    e->split = DT_ARENA_NEW(&t->arena, uint16_t, pp * vpp + 1);
    if (!e->split) {
        t->nomem = true;
        return NULL;
    }
    dt_plan_split_blocks(times->block_s, n, pp * vpp, e->split);
    e->max_s = slowest_stage(times->block_s, e->split, pp, vpp);
    return e;
}
