/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The data of a run against its plan.  Published is the test (b_min's); ours are the window, and when it fails: where the
 * loads of the whole window ask for another division, and every one of the draws of a global batch asks for another than
 * the plan's as well.  So a mix near a boundary between two divisions, of which some draws ask for each, says nothing. */
#include "core/orchestrate/orchestrate_mix.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/rng.h"
#include "base/text.h"
#include "core/cost/memory.h"

#include <stdio.h>
#include <string.h>

enum { BATCHES = 4, SAMPLES_MIN = 64, MIX_STREAM = 0x6d697874 };

struct dt_orch_mix {
    const struct dt_plan *plan;
    const struct dt_model *model;
    const struct dt_cluster *cluster;
    struct dt_cost *cost;
    int trials, unit, units, has[DT_MAX_MODULES]; /* units of a replica, and of each module in it */
    uint64_t seed;
    int64_t window, n, batch, windows; /* samples; of the window so far */
    double *load;                      /* [modules * window], by module */
    double *of_batch;                  /* [modules * batch], by module */
};

static int gpus_of(const struct dt_plan *p, int m)
{
    return dt_plan_layout_lane_gpus(&p->modules[m].layout) * p->modules[m].layout.pp;
}

/* What modules' GPUs are divided in: as wide as the widest lane, if all of them are made of that, else what they have in
 * common. */
static int unit_of(const struct dt_plan *p)
{
    int widest = 1, common = gpus_of(p, 0);
    bool whole = true;

    for (int i = 0; i < p->n_modules; i++) {
        int lane = dt_plan_layout_lane_gpus(&p->modules[i].layout);

        widest = lane > widest ? lane : widest;
        common = dt_number_gcd(common, gpus_of(p, i));
    }
    for (int i = 0; i < p->n_modules; i++)
        whole &= gpus_of(p, i) % widest == 0;
    return whole ? widest : common;
}

enum dt_status dt_orch_mix_new(const struct dt_plan *plan, const struct dt_model *model,
                               const struct dt_cluster *cluster, struct dt_cost *cost,
                               double confidence, double p_error, uint64_t seed,
                               struct dt_error *err, struct dt_orch_mix **out)
{
    int64_t batch = plan->policy.global_batch, batches = BATCHES;
    size_t modules = (size_t)plan->n_modules;
    struct dt_orch_mix *m;
    int unit = unit_of(plan), units = 0;

    *out = NULL;
    if (plan->policy.assignment != DT_ASSIGNMENT_ENTRAIN || !cost)
        return DT_OK;
    for (int i = 0; i < plan->n_modules; i++)
        units += gpus_of(plan, i) / unit;
    if (units <= plan->n_modules)
        return DT_OK;
    while (batches * batch < SAMPLES_MIN)
        batches++;
    m = dt_calloc(1, sizeof(*m));
    if (!m)
        return dt_error_nomem(err, "loads of samples");
    *m = (struct dt_orch_mix){.plan = plan,
                              .model = model,
                              .cluster = cluster,
                              .cost = cost,
                              .trials = dt_orch_sizing_trials(confidence > 0 ? confidence : 0.95,
                                                              p_error > 0 ? p_error : 0.05),
                              .unit = unit,
                              .units = units,
                              .seed = seed,
                              .window = batches * batch,
                              .batch = batch};
    for (int i = 0; i < plan->n_modules; i++)
        m->has[i] = gpus_of(plan, i) / unit;
    m->load = dt_malloc(modules * (size_t)m->window * sizeof(*m->load));
    m->of_batch = dt_malloc(modules * (size_t)batch * sizeof(*m->of_batch));
    if (!m->load || !m->of_batch) {
        dt_orch_mix_free(m);
        return dt_error_nomem(err, "loads of samples");
    }
    *out = m;
    return DT_OK;
}

void dt_orch_mix_free(struct dt_orch_mix *m)
{
    if (!m)
        return;
    dt_free(m->load);
    dt_free(m->of_batch);
    dt_free(m);
}

/* ---- the test ---- */

static void ask(const struct dt_orch_mix *m, const double *load, int *units)
{
    dt_orch_allocate(m->plan->n_modules, load, m->units, units);
}

/* What the whole window asks for. */
static void ask_all(const struct dt_orch_mix *m, int *units)
{
    double load[DT_MAX_MODULES] = {0};

    for (int i = 0; i < m->plan->n_modules; i++)
        for (int64_t k = 0; k < m->window; k++)
            load[i] += m->load[i * m->window + k];
    ask(m, load, units);
}

static bool is_plans(const struct dt_orch_mix *m, const int *units)
{
    return memcmp(units, m->has, (size_t)m->plan->n_modules * sizeof(*units)) == 0;
}

/* Does a global batch drawn from the window, with replacement, ask for the plan's division? */
static bool draw_is_plans(const struct dt_orch_mix *m, int trial)
{
    double load[DT_MAX_MODULES] = {0};
    int units[DT_MAX_MODULES];
    struct dt_rng r;

    dt_rng_init(&r, m->seed,
                (uint64_t)MIX_STREAM << 32 ^ (uint64_t)m->windows << 12 ^ (uint64_t)trial);
    for (int64_t k = 0; k < m->batch; k++) {
        int64_t s = (int64_t)dt_rng_below(&r, (uint64_t)m->window);

        for (int i = 0; i < m->plan->n_modules; i++)
            load[i] += m->load[i * m->window + s];
    }
    ask(m, load, units);
    return is_plans(m, units);
}

static bool fails(const struct dt_orch_mix *m, const int *units)
{
    if (is_plans(m, units))
        return false;
    for (int t = 0; t < m->trials; t++)
        if (draw_is_plans(m, t))
            return false;
    return true;
}

/* ---- the other plan ---- */

/* Stages of module i as even as the loads of its blocks on the batch's mean sample allow. */
static bool split(const struct dt_orch_mix *m, const struct dt_samples *batch, int i,
                  struct dt_plan *p)
{
    const struct dt_module *mod = &m->model->modules[i];
    struct dt_plan_module *mp = &p->modules[i];
    struct dt_block_shard shard = dt_plan_shard(mp);
    double *cost = dt_malloc((size_t)mod->n_blocks * sizeof(*cost));
    unsigned char *trained = dt_malloc((size_t)mod->n_blocks);
    struct dt_work mean = {0, 0, 0, 0}, w;

    for (int64_t k = 0; k < batch->n; k++) {
        dt_sample_work(batch, k, mod, &w);
        dt_work_add(&mean, &w);
    }
    mean.n = (mean.n + batch->n - 1) / batch->n;
    mean.tokens = (mean.tokens + batch->n - 1) / batch->n;
    mean.tokens_sq = (mean.tokens_sq + batch->n - 1) / batch->n;
    if (cost && trained) {
        dt_plan_trainable(p, m->model, i, trained);
        for (int b = 0; b < mod->n_blocks; b++) {
            struct dt_cost_stage_ns t =
                dt_cost_stage_ns(m->cost, i, b, 1, &shard, &mean, trained,
                                 dt_plan_upstream_trained(p, m->model, i, b));

            cost[b] = t.fwd + t.bwd;
        }
        dt_plan_split_blocks(cost, mod->n_blocks, mp->layout.pp, mp->split);
    }
    dt_free(cost);
    dt_free(trained);
    return cost && trained;
}

static enum dt_status divide(const struct dt_orch_mix *m, const struct dt_samples *batch,
                             const int *units, struct dt_error *err, struct dt_plan *p)
{
    *p = *m->plan;
    dt_plan_unpin(p);
    for (int i = 0; i < p->n_modules; i++) {
        struct dt_plan_module *mp = &p->modules[i];
        int gpus = units[i] * m->unit, lane = dt_plan_layout_lane_gpus(&mp->layout);

        if (gpus % lane != 0 || gpus / lane > m->model->modules[i].n_blocks)
            return dt_error_set(err, DT_ERR_INFEASIBLE,
                                "%d GPUs are no whole stages of %s, whose lanes have %d and which "
                                "has %d blocks",
                                gpus, p->module_names[i], lane, m->model->modules[i].n_blocks);
        mp->layout.pp = gpus / lane;
        memset(mp->ahead, 0, sizeof(mp->ahead));
        if (!split(m, batch, i, p))
            return dt_error_nomem(err, "another plan");
    }
    DT_TRY(dt_plan_place(p, m->cluster, err));
    return dt_plan_validate(p, m->model, m->cluster, err);
}

/* What both take; a plan that does not fit is none. */
static enum dt_status compare(const struct dt_orch_mix *m, const struct dt_samples *batch,
                              const int *units, struct dt_error *err, struct dt_orch_mix_found *f)
{
    const struct dt_search_input in = {
        .model = m->model, .cluster = m->cluster, .samples = batch, .cost = m->cost};
    struct dt_error why;
    enum dt_status st = divide(m, batch, units, &why, &f->plan);

    if (st == DT_OK)
        st = dt_orch_plan_timeline_s(&in, &f->plan, 0, &why, &f->then_s, NULL);
    if (st == DT_OK)
        st = dt_orch_plan_timeline_s(&in, m->plan, 0, &why, &f->now_s, NULL);
    if (st == DT_OK)
        return DT_OK;
    f->then_s = f->now_s = 0;
    snprintf(f->why, sizeof(f->why), "%.255s", why.message);
    return st == DT_ERR_INFEASIBLE || st == DT_ERR_INPUT ? DT_OK : dt_error_pass(err, &why);
}

/* ---- batches ---- */

enum dt_status dt_orch_mix_add(struct dt_orch_mix *m, const struct dt_samples *batch,
                               struct dt_error *err, bool *tested, struct dt_orch_mix_found *found)
{
    int64_t n = batch->n < m->batch ? batch->n : m->batch;
    int units[DT_MAX_MODULES];

    *tested = false;
    DT_TRY(dt_orch_sample_loads(m->plan, m->model, m->cost, batch, n, err, m->of_batch));
    for (int64_t k = 0; k < n && m->n < m->window; k++, m->n++)
        for (int i = 0; i < m->plan->n_modules; i++)
            m->load[i * m->window + m->n] = m->of_batch[i * n + k];
    if (m->n < m->window)
        return DT_OK;
    memset(found, 0, sizeof(*found));
    ask_all(m, units);
    found->samples = m->window;
    found->trials = m->trials;
    found->other = fails(m, units);
    found->plan.n_modules = m->plan->n_modules;
    for (int i = 0; i < m->plan->n_modules; i++) {
        found->has[i] = m->has[i] * m->unit;
        found->asks_for[i] = units[i] * m->unit;
    }
    m->n = 0;
    m->windows++;
    *tested = true;
    return found->other ? compare(m, batch, units, err, found) : DT_OK;
}

const char *dt_orch_mix_text(const struct dt_orch_mix_found *f, char *buf, size_t size)
{
    size_t used =
        (size_t)snprintf(buf, size,
                         "the last %lld samples ask for another division of a replica's "
                         "GPUs, as does every one of %d draws of a global batch from them:",
                         (long long)f->samples, f->trials);

    for (int i = 0; i < f->plan.n_modules && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s %s %d instead of %d", i ? "," : "",
                                 f->plan.module_names[i], f->asks_for[i], f->has[i]);
    if (used >= size)
        return buf;
    if (f->then_s > 0)
        snprintf(buf + used, size - used,
                 "; the last batch would take %.4g s instead of %.4g s, %.1f %% %s", f->then_s,
                 f->now_s,
                 100 * (f->then_s < f->now_s ? 1 - f->then_s / f->now_s : f->then_s / f->now_s - 1),
                 f->then_s < f->now_s ? "less" : "more");
    else
        snprintf(buf + used, size - used, "; no such plan: %s", f->why);
    return buf;
}

void dt_orch_mix_json(const struct dt_orch_mix_found *f, struct dt_json *j)
{
    dt_json_kv_int(j, "samples", f->samples);
    dt_json_kv_int(j, "trials", f->trials);
    dt_json_key(j, "modules");
    dt_json_begin_array(j);
    for (int i = 0; i < f->plan.n_modules; i++) {
        dt_json_begin_object(j);
        dt_json_kv_string(j, "name", f->plan.module_names[i]);
        dt_json_kv_int(j, "gpus", f->has[i]);
        dt_json_kv_int(j, "asks_for", f->asks_for[i]);
        if (f->then_s > 0)
            dt_json_kv_int(j, "pp", f->plan.modules[i].layout.pp);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
    if (f->then_s > 0) {
        dt_json_kv_double(j, "now_s", f->now_s);
        dt_json_kv_double(j, "then_s", f->then_s);
    } else {
        dt_json_kv_string(j, "no_plan", f->why);
    }
}
