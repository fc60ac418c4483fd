/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Model FLOPs, MFU and HFU.  Conventions: 2 FLOPs per multiply-add, causal attention counted once
 * (half of the square), real sizes of every sample, recompute left out of the model's FLOPs and
 * counted in the hardware's, as are scores that a fused backward of attention makes again; peak is the
 * dense bf16 rate of the GPUs that the plan uses. */
#include "report/report.h"
#include "base/mem.h"
#include "core/cost/memory.h"

#include <math.h>
#include <string.h>

static void total_work(const struct dt_assignment *a, int module, struct dt_work *w)
{
    const struct dt_assignment_module *m = &a->m[module];

    memset(w, 0, sizeof(*w));
    for (uint32_t i = 0; i < m->mb_first[m->n_replicas]; i++)
        dt_work_add(w, &m->work[i]);
}

static const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};

/* Forward FLOPs of fused attention. */
static double attention_flops(const struct dt_block *b, const struct dt_work *w)
{
    struct dt_kop ops[DT_MAX_KOPS];
    int n = dt_block_kops(b, &whole, w, ops);
    double sum = 0;

    for (int i = 0; i < n; i++)
        if (ops[i].family == DT_KOP_ATTN_CAUSAL || ops[i].family == DT_KOP_ATTN_FULL ||
            ops[i].family == DT_KOP_ATTN_CROSS)
            sum += ops[i].flops * ops[i].count;
    return sum;
}

/* Forward FLOPs that the backward of a block runs again. */
static double recomputed_flops(const struct dt_block *b, const struct dt_work *w,
                               enum dt_block_recompute mode)
{
    struct dt_kop ops[DT_MAX_KOPS];
    double sum = 0;
    int n;

    if (mode == DT_RECOMPUTE_NONE)
        return 0;
    if (mode == DT_RECOMPUTE_FULL)
        return dt_block_run_flops(b, w);
    n = dt_block_kops(b, &whole, w, ops);
    for (int i = 0; i < n; i++)
        if (dt_kop_recomputed(mode, b, &ops[i]))
            sum += ops[i].flops * ops[i].count;
    return sum;
}

void dt_report_flops(const struct dt_plan *p, const struct dt_model *m,
                     const struct dt_assignment *a, double *model_flops, double *hardware_flops)
{
    bool split = dt_pipe_of(p->policy.schedule)->put_off != NULL;
    double hardware = 0;

    for (int i = 0; i < m->n_modules; i++) {
        const struct dt_module *mod = &m->modules[i];
        struct dt_work w;

        total_work(a, i, &w);
        model_flops[i] = 0;
        for (int b = 0; b < mod->n_blocks; b++) {
            bool wgrad = dt_plan_trained(p, m, i, b), dgrad = dt_plan_upstream_trained(p, m, i, b);
            double f = dt_block_flops(&mod->blocks[b], &w), times = wgrad ? 3 : dgrad ? 2 : 1;

            /* A trained block counts 3, the first of the network too: its input gradient is not
             * computed, but the convention (forward : backward = 1 : 2) is kept. */
            model_flops[i] += f * times;
            hardware += dt_block_run_flops(&mod->blocks[b], &w) * times;
            /* it has no weights: whatever is trained, its backward is five products for the forward's two */
            if (wgrad || dgrad)
                hardware += attention_flops(&mod->blocks[b], &w) * (1 + 2.5 - times);
            /* a split backward brings the same back for either half, but for the LM head, which stays whole */
            if (wgrad || dgrad)
                hardware += recomputed_flops(&mod->blocks[b], &w, p->modules[i].recompute) *
                            (split && wgrad && mod->blocks[b].kind != DT_BLOCK_LM_HEAD ? 2 : 1);
        }
    }
    *hardware_flops = hardware;
}

int64_t dt_report_largest(const struct dt_plan *p, const struct dt_cluster *c,
                          const struct dt_assignment *a, int module, struct dt_work *most)
{
    const struct dt_assignment_module *ma = &a->m[module];
    int64_t n = 0;

    *most = (struct dt_work){0};
    if (!dt_cluster_is_cpu(c))
        *most = dt_assignment_charged(p, a, module);
    for (uint32_t i = 0; dt_cluster_is_cpu(c) && i < ma->mb_first[ma->n_replicas]; i++) {
        struct dt_work w = dt_assignment_held(ma, i);

        dt_work_most(most, &w);
    }
    for (int r = 0; r < ma->n_replicas; r++)
        if (dt_assignment_positions(ma, r) > n)
            n = dt_assignment_positions(ma, r);
    return n;
}

/* Returns the most; of_stage[pp], or NULL. */
static double memory_of_stages(const struct dt_program *prog, const struct dt_model *m,
                               const struct dt_cluster *c, int module, double *of_stage)
{
    struct dt_work most;
    int64_t n = dt_report_largest(prog->plan, c, prog->assignment, module, &most);
    double max = 0;

    for (int s = 0; s < prog->plan->modules[module].layout.pp; s++) {
        struct dt_memory mem;

        dt_memory_stage(prog->plan, m, c, module, s, &most, n, &mem);
        max = mem.total > max ? mem.total : max;
        if (of_stage) /* lanes of a process share one scratch */
            of_stage[s] = mem.total - (dt_cluster_is_cpu(c) ? mem.logits_workspace + mem.host : 0);
    }
    return max;
}

enum dt_status dt_report_memory_of(const struct dt_program *prog, const struct dt_model *m,
                                   const struct dt_cluster *c, struct dt_error *err,
                                   struct dt_report_memory *out)
{
    struct dt_report_memory r = {.fullest = 0};
    struct dt_work most[DT_MAX_MODULES];
    int64_t n_mb[DT_MAX_MODULES];

    for (int i = 0; i < m->n_modules; i++) {
        r.of_module[i] = memory_of_stages(prog, m, c, i, NULL);
        n_mb[i] = dt_report_largest(prog->plan, c, prog->assignment, i, &most[i]);
    }
    DT_TRY(dt_memory_fullest(prog->plan, m, c, most, n_mb, err, &r.fullest));
    DT_TRY(dt_memory_host(prog->plan, m, c, most, err, &r.host));
    *out = r;
    return DT_OK;
}

void dt_report_memory_most(struct dt_report_memory *most, const struct dt_report_memory *one)
{
    for (int i = 0; i < DT_MAX_MODULES; i++)
        most->of_module[i] = fmax(most->of_module[i], one->of_module[i]);
    most->fullest = fmax(most->fullest, one->fullest);
    most->host.gpu_bytes = fmax(most->host.gpu_bytes, one->host.gpu_bytes);
    most->host.node_bytes = fmax(most->host.node_bytes, one->host.node_bytes);
    most->host.all_bytes = fmax(most->host.all_bytes, one->host.all_bytes);
}

bool dt_report_memory_fits(const struct dt_report_memory *r, const struct dt_cluster *c)
{
    return r->fullest <= dt_memory_limit(c) &&
           (c->host_mem_bytes <= 0 || r->host.node_bytes <= c->host_mem_bytes);
}

enum dt_status dt_report_lane_memory(const struct dt_program *prog, const struct dt_model *m,
                                     const struct dt_cluster *c, struct dt_error *err, double *out)
{
    double *stage[DT_MAX_MODULES] = {NULL};
    enum dt_status st = DT_OK;

    for (int i = 0; st == DT_OK && i < m->n_modules; i++) {
        stage[i] = dt_calloc((size_t)prog->plan->modules[i].layout.pp, sizeof(*stage[i]));
        if (stage[i])
            memory_of_stages(prog, m, c, i, stage[i]);
        else
            st = dt_error_nomem(err, "stages");
    }
    for (int k = 0; st == DT_OK && k < prog->n_lanes; k++)
        out[k] = stage[prog->lanes[k].module][prog->lanes[k].stage];
    for (int i = 0; i < m->n_modules; i++)
        dt_free(stage[i]);
    return st;
}

void dt_report_set_gpus(struct dt_report *r, int gpus)
{
    r->gpus = gpus;
    r->mfu_cluster = r->mfu * r->gpus_used / gpus;
}

double dt_report_tokens(const struct dt_model *m, const struct dt_assignment *a)
{
    struct dt_work llm = {0};

    if (m->llm >= 0)
        total_work(a, m->llm, &llm);
    return (double)llm.tokens;
}

enum dt_status dt_report_fill(const struct dt_program *prog, const struct dt_model *m,
                              const struct dt_cluster *c, const struct dt_durations *dur,
                              const struct dt_timeline *t, struct dt_error *err,
                              struct dt_report *out)
{
    const struct dt_assignment *a = prog->assignment;
    struct dt_report r = {0};
    double model = 0, peak;

    if (t->n_ops != prog->n_ops || t->makespan_ns <= 0)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "report: the timeline is not one of this program");
    DT_TRY(dt_timeline_summarise(prog, t, err, &r.timeline));
    r.iteration_s = r.iteration_s_p10 = r.iteration_s_p90 = r.timeline.iteration_s;
    r.samples_s_p10 = r.samples_s_p90 = r.iteration_s;
    r.iteration_s_mean = r.iteration_s_mean_p10 = r.iteration_s_mean_p90 = r.iteration_s;
    r.bubble_fraction = r.timeline.bubble_fraction;
    r.exposed_comm_s = r.timeline.exposed_comm_s;
    r.gpus_used = dt_plan_gpus(prog->plan);
    r.ops = prog->n_ops;
    dt_report_flops(prog->plan, m, a, r.model_flops, &r.hardware_flops);
    for (int i = 0; i < m->n_modules; i++)
        model += r.model_flops[i];
    DT_TRY(dt_report_memory_of(prog, m, c, err, &r.memory));
    r.memory_iteration = 1;
    r.unfit = r.unfit_first = !dt_report_memory_fits(&r.memory, c);
    peak = r.gpus_used * c->peak_flops * r.iteration_s;
    if (peak > 0) {
        r.mfu = model / peak;
        r.hfu = r.hardware_flops / peak;
    }
    dt_report_set_gpus(&r, dt_cluster_gpus(c));
    r.tokens = r.tokens_mean = dt_report_tokens(m, a);
    r.tokens_per_s = r.tokens / r.iteration_s;
    r.samples_per_s = (double)a->n_samples / r.iteration_s;
    if (dur->prov.ns > 0)
        for (int k = 0; k < DT_PROV_N; k++)
            r.prov_share[k] = dur->prov.prov[k] / dur->prov.ns;
    *out = r;
    return DT_OK;
}
