/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The job's maps train, search and simulate.  disttrain-job(5) documents every key and default. */
#include "core/job/job_internal.h"

#include "base/number.h"

#include <string.h>

enum {
    ITERATIONS_MAX = 1 << 20,
    TP_BITS = 7, /* TP up to 64 */
    TOP_K_MAX = 256,
};

void dt_job_defaults(struct dt_job *j)
{
    j->policy = (struct dt_plan_policy){
        .microbatch = 1,
        .schedule = DT_SCHED_1F1B,
        .recompute = DT_RECOMPUTE_SELECTIVE,
        .zero = 1,
        .intra_reorder = true,
        .inter_reorder = true,
        .stepccl = true,
        .overlap_grad = true,
        .overlap_param = true,
    };
    j->strategy = DT_STRATEGY_DISTTRAIN;
    j->search = (struct dt_search_options){.k = 8, .rank = true, .tp_mask = 0xf, .max_vpp = 1};
    j->sim = (struct dt_job_simulate_options){
        .iterations = 1,
        .contention = true,
        .slow_gpu_factor = 1.1,
        .checkpoint_interval_s = 1800, /* assumed, as the two below */
        .checkpoint_write_s = 30,
        .restart_s = 600,
        .seed = 1,
    };
}

/* ---- train ---- */

static enum dt_status read_frozen(struct dt_node list, struct dt_job *j, struct dt_error *err)
{
    const char *names[DT_MAX_MODULES + 1] = {NULL}, *near;
    bool frozen[DT_MAX_MODULES] = {false};

    for (int i = 0; i < j->model->n_modules; i++)
        names[i] = j->model->modules[i].name;
    if (!dt_node_is_seq(list))
        return dt_node_error(list, err, "frozen: expected a list of module names, such as [%s]",
                             names[0]);
    for (size_t i = 0; i < dt_seq_size(list); i++) {
        struct dt_node n = dt_seq_at(list, i);
        const char *name = dt_node_text(n);
        int m = name ? dt_model_find(j->model, name) : -1;

        if (m < 0) {
            near = name ? dt_suggest(name, names) : NULL;
            return dt_node_error(n, err, "frozen: \"%.60s\" is no module of the model; %s \"%s\"?",
                                 name ? name : "(not a name)", near ? "did you mean" : "perhaps",
                                 near ? near : names[0]);
        }
        frozen[m] = true;
    }
    memcpy(j->frozen, frozen, sizeof(frozen));
    return DT_OK;
}

static enum dt_status read_pair(struct dt_node map, const char *what, const char *const *keys,
                                bool *a, bool *b, struct dt_error *err)
{
    DT_TRY(dt_map_check(map, what, keys, err));
    DT_TRY(dt_get_bool(map, keys[0], a, err));
    return dt_get_bool(map, keys[1], b, err);
}

static enum dt_status check_policy(struct dt_node map, const struct dt_job *j, struct dt_error *err)
{
    const struct dt_plan_policy *p = &j->policy;
    const struct dt_block *b = j->model->modules[j->model->llm].blocks;
    struct dt_node seq = dt_map_get(map, "seq_len");

    if (p->global_batch % p->microbatch != 0)
        return dt_node_error(dt_map_get(map, "global_batch"), err,
                             "global_batch: %lld is no multiple of microbatch %d; use %lld",
                             (long long)p->global_batch, p->microbatch,
                             (long long)(p->global_batch / p->microbatch + 1) * p->microbatch);
    if (b->max_pos > 0 && p->seq_len > b->max_pos)
        return dt_node_error(seq, err,
                             "seq_len: %d is longer than the model's %d learned positions; use "
                             "at most %d",
                             p->seq_len, b->max_pos, b->max_pos);
    return DT_OK;
}

enum dt_status dt_job_train(struct dt_node map, struct dt_job *j, bool *frozen_stated,
                            struct dt_error *err)
{
    static const char *const keys[] = {
        "global_batch", "microbatch", "seq_len", "precision", "frozen",   "recompute", "zero",
        "schedule",     "reorder",    "overlap", "stepccl",   "dispatch", NULL};
    static const char *const precisions[] = {"bf16", "fp16", NULL};
    static const char *const reorder[] = {"intra", "inter", NULL};
    static const char *const overlap[] = {"grad", "param", NULL};
    struct dt_plan_policy *p = &j->policy;
    double dispatch_s = j->cost_opt.dispatch_ns * 1e-9;
    int precision = p->half_grads, schedule = (int)p->schedule, recompute = (int)p->recompute;
    struct dt_node frozen = dt_map_get(map, "frozen");

    DT_TRY(dt_map_check(map, "train", keys, err));
    if (p->global_batch == 0)
        DT_TRY(dt_map_require(map, "train", "global_batch", err));
    if (p->seq_len == 0)
        DT_TRY(dt_map_require(map, "train", "seq_len", err));
    DT_TRY(dt_get_int(map, "global_batch", 1, DT_BATCH_MAX, &p->global_batch, err));
    DT_TRY(dt_get_i32(map, "microbatch", 1, DT_MICROBATCH_MAX, &p->microbatch, err));
    DT_TRY(dt_get_i32(map, "seq_len", 1, DT_SEQ_MAX, &p->seq_len, err));
    DT_TRY(dt_get_enum(map, "precision", precisions, &precision, err));
    DT_TRY(dt_get_enum(map, "recompute", dt_block_recompute_names, &recompute, err));
    DT_TRY(dt_get_enum(map, "schedule", dt_pipe_schedule_names, &schedule, err));
    DT_TRY(dt_get_i32(map, "zero", 0, 1, &p->zero, err));
    DT_TRY(dt_get_bool(map, "stepccl", &p->stepccl, err));
    DT_TRY(dt_get_quantity(map, "dispatch", "s", 0, 1e-2, &dispatch_s, err));
    j->cost_opt.dispatch_ns = dispatch_s * 1e9;
    p->half_grads = precision == 1;
    DT_TRY(read_pair(dt_map_get(map, "reorder"), "reorder", reorder, &p->intra_reorder,
                     &p->inter_reorder, err));
    DT_TRY(read_pair(dt_map_get(map, "overlap"), "overlap", overlap, &p->overlap_grad,
                     &p->overlap_param, err));
    p->recompute = (enum dt_block_recompute)recompute;
    p->schedule = (enum dt_pipe_schedule)schedule;
    *frozen_stated = dt_node_present(frozen);
    if (*frozen_stated)
        DT_TRY(read_frozen(frozen, j, err));
    return check_policy(map, j, err);
}

/* ---- search ---- */

static enum dt_status tp_bit(struct dt_node n, int gpus_per_node, unsigned *mask,
                             struct dt_error *err)
{
    const char *text = dt_node_text(n);
    int64_t v = 0;

    if (text && dt_number_int(text, &v))
        for (int bit = 0; bit < TP_BITS; bit++)
            if (v == 1 << bit && v <= gpus_per_node) {
                *mask |= 1u << bit;
                return DT_OK;
            }
    return dt_node_error(n, err,
                         "tp: \"%.20s\" is no tensor-parallel degree here; use powers of two up "
                         "to the %d GPUs of a node, such as [1, 2, 4, 8]",
                         text ? text : "(not a number)", gpus_per_node);
}

static enum dt_status read_tp(struct dt_node n, const struct dt_job *j, unsigned *out,
                              struct dt_error *err)
{
    unsigned mask = 0;

    if (!dt_node_present(n))
        return DT_OK;
    if (dt_node_is_scalar(n))
        DT_TRY(tp_bit(n, j->cluster.gpus_per_node, &mask, err));
    for (size_t i = 0; i < dt_seq_size(n); i++)
        DT_TRY(tp_bit(dt_seq_at(n, i), j->cluster.gpus_per_node, &mask, err));
    if (mask == 0)
        return dt_node_error(n, err, "tp: expected a list of degrees, such as [1, 2, 4, 8]");
    *out = mask;
    return DT_OK;
}

enum dt_status dt_job_search(struct dt_node map, struct dt_job *j, struct dt_error *err)
{
    static const char *const keys[] = {"strategy",         "gpus", "top_k",   "tp",
                                       "max_vpp",          "rank", "uniform", "megatron_pp",
                                       "allow_analytical", NULL};
    int strategy = (int)j->strategy, all = dt_cluster_gpus(&j->cluster);
    struct dt_search_options *s = &j->search;

    DT_TRY(dt_map_check(map, "search", keys, err));
    DT_TRY(dt_get_enum(map, "strategy", dt_plan_strategy_names, &strategy, err));
    j->strategy = (enum dt_plan_strategy)strategy;
    DT_TRY(dt_get_i32(map, "gpus", 1, all, &s->gpus, err));
    DT_TRY(dt_get_i32(map, "top_k", 1, TOP_K_MAX, &s->k, err));
    DT_TRY(dt_get_i32(map, "max_vpp", 1, DT_MAX_VSTAGES, &s->max_vpp, err));
    DT_TRY(dt_get_bool(map, "rank", &s->rank, err));
    DT_TRY(dt_get_bool(map, "uniform", &s->uniform, err));
    DT_TRY(dt_get_i32(map, "megatron_pp", 0, DT_MAX_VSTAGES, &s->megatron_pp, err));
    DT_TRY(dt_get_bool(map, "allow_analytical", &j->cost_opt.allow_analytical, err));
    while (s->tp_mask > 1 &&
           1u << (31 - __builtin_clz(s->tp_mask)) > (unsigned)j->cluster.gpus_per_node)
        s->tp_mask &= ~(1u << (31 - __builtin_clz(s->tp_mask)));
    return read_tp(dt_map_get(map, "tp"), j, &s->tp_mask, err);
}

/* ---- simulate ---- */

static enum dt_status read_failures(struct dt_node n, struct dt_job *j, struct dt_error *err)
{
    static const char *const keys[] = {"enabled", "checkpoint_interval", "checkpoint_write",
                                       "restart", NULL};
    struct dt_job_simulate_options *s = &j->sim;

    DT_TRY(dt_map_check(n, "failures", keys, err));
    DT_TRY(dt_get_bool(n, "enabled", &s->failures, err));
    DT_TRY(dt_get_quantity(n, "checkpoint_interval", "s", 1, 1e9, &s->checkpoint_interval_s, err));
    DT_TRY(dt_get_quantity(n, "checkpoint_write", "s", 0, 1e9, &s->checkpoint_write_s, err));
    DT_TRY(dt_get_quantity(n, "restart", "s", 0, 1e9, &s->restart_s, err));
    if (s->failures && j->cluster.mtbf_gpu_hours <= 0)
        return dt_node_error(n, err,
                             "failures: the cluster states no mtbf_gpu_hours; add it, such as "
                             "cluster.mtbf_gpu_hours=50000");
    return DT_OK;
}

enum dt_status dt_job_simulate(struct dt_node map, struct dt_job *j, struct dt_error *err)
{
    static const char *const keys[] = {"iterations", "contention", "batch_s", "jitter",
                                       "slow_gpu",   "failures",   "seed",    NULL};
    static const char *const slow_keys[] = {"fraction", "factor", NULL};
    struct dt_job_simulate_options *s = &j->sim;
    struct dt_node slow = dt_map_get(map, "slow_gpu");
    int64_t seed = (int64_t)s->seed;

    DT_TRY(dt_map_check(map, "simulate", keys, err));
    DT_TRY(dt_get_i32(map, "iterations", 1, ITERATIONS_MAX, &s->iterations, err));
    DT_TRY(dt_get_bool(map, "contention", &s->contention, err));
    DT_TRY(dt_get_quantity(map, "batch_s", "s", 0, 3600, &s->batch_s, err));
    if (s->batch_s > 0 && j->cluster.cores_per_node == 0)
        return dt_node_error(dt_map_get(map, "batch_s"), err,
                             "batch_s: time of cores that ranks share with their batches; cluster "
                             "%s has no cores_per_node",
                             j->cluster.name);
    DT_TRY(dt_get_double(map, "jitter", 0, 1, &s->jitter, err));
    DT_TRY(dt_get_int(map, "seed", 0, INT64_MAX, &seed, err));
    s->seed = (uint64_t)seed;
    DT_TRY(dt_map_check(slow, "slow_gpu", slow_keys, err));
    DT_TRY(dt_get_double(slow, "fraction", 0, 1, &s->slow_gpu_fraction, err));
    DT_TRY(dt_get_double(slow, "factor", 1, 100, &s->slow_gpu_factor, err));
    return read_failures(dt_map_get(map, "failures"), j, err);
}
