/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a job leaves to the search: keys of `train` that are "auto", or absent where plans are searched for on GPUs.
 * On CPUs plans are executed, on a machine of few ranks, and an absent key keeps its fixed default.  And how samples become
 * microbatches, which goes with some strategies alone. */
#include "core/job/job_internal.h"

#include <string.h>

enum { MICROBATCH_AUTO_MAX = 16 };

/* GPipe never beats 1F1B: it waits as long and holds more. */
enum {
    RECOMPUTE_AUTO = 1 << DT_RECOMPUTE_NONE | 1 << DT_RECOMPUTE_SELECTIVE | 1 << DT_RECOMPUTE_FULL,
    ZERO_AUTO = (2 << DT_ZERO_MAX) - 1,
    OFFLOAD_AUTO = (1 << DT_OFFLOAD_N) - 1,
    SCHEDULES_AUTO = 1 << DT_SCHED_1F1B | 1 << DT_SCHED_INTERLEAVED | 1 << DT_SCHED_ZB_H1,
};

bool dt_job_is_auto(struct dt_node n)
{
    const char *text = dt_node_is_scalar(n) ? dt_node_text(n) : NULL;

    return text && strcmp(text, "auto") == 0;
}

static bool left_open(struct dt_node n, const struct dt_job *j)
{
    if (j->has_plan || j->strategy == DT_STRATEGY_MANUAL)
        return false;
    return dt_node_present(n) ? dt_job_is_auto(n) : !dt_cluster_is_cpu(&j->cluster);
}

/* What a key that may be a map of modules says of one of them. */
static struct dt_node of_module(struct dt_node n, const struct dt_job *j, int m)
{
    return dt_node_is_map(n) ? dt_map_get(n, j->model->modules[m].name) : n;
}

void dt_job_open_search(struct dt_node train, struct dt_job *j)
{
    struct dt_node recompute = dt_map_get(train, "recompute"), zero = dt_map_get(train, "zero");
    struct dt_node offload = dt_map_get(train, "offload");
    struct dt_search_options *o = &j->search;

    o->schedules = left_open(dt_map_get(train, "schedule"), j) ? SCHEDULES_AUTO : 0;
    o->max_microbatch = left_open(dt_map_get(train, "microbatch"), j) ? MICROBATCH_AUTO_MAX : 0;
    for (int m = 0; m < j->model->n_modules; m++) {
        o->recompute[m] = left_open(of_module(recompute, j, m), j) ? RECOMPUTE_AUTO : 0;
        o->zero[m] = left_open(of_module(zero, j, m), j) ? ZERO_AUTO : 0;
        /* what takes memory of hosts is chosen only where that is asked for; a CPU's memory is its host's */
        o->offload[m] = dt_job_is_auto(of_module(offload, j, m)) &&
                                left_open(of_module(offload, j, m), j) &&
                                !dt_cluster_is_cpu(&j->cluster)
                            ? OFFLOAD_AUTO
                            : 0;
    }
}

#define HELP(id, name, help) help,
const char *const dt_job_assignment_help[DT_ASSIGNMENT_N + 1] = {DT_ASSIGNMENTS(HELP)};
const char *const dt_job_warmup_help[DT_WARMUP_N + 1] = {DT_WARMUPS(HELP)};
const char *const dt_job_cp_comm_help[DT_CP_COMM_N + 1] = {DT_CP_COMMS(HELP)};
#undef HELP

/* Keys of `search` that strategy entrain does nothing with, and those that nothing else does. */
static enum dt_status check_sizing(struct dt_node search, const struct dt_job *j,
                                   struct dt_error *err)
{
    static const char *const sizing[] = {"profile_samples", "dp", "confidence", "p_error"};
    static const char *const others[] = {"placement", "max_vpp", "uniform"};
    bool entrain = j->strategy == DT_STRATEGY_ENTRAIN;
    bool useless[] = {j->search.guests != 0, j->search.max_vpp > 1, j->search.uniform};

    for (size_t i = 0; i < sizeof(sizing) / sizeof(sizing[0]); i++) {
        struct dt_node n = dt_map_get(search, sizing[i]);

        if (!dt_node_present(n))
            continue;
        if (!entrain && !(j->strategy == DT_STRATEGY_DIP && strcmp(sizing[i], "dp") == 0))
            return dt_node_error(
                n, err,
                "%s: strategy %s does not size modules by samples, with one number "
                "of replicas for all; it is for "
                "search.strategy: entrain",
                sizing[i], dt_plan_strategy_names[j->strategy]);
        if (i > 1 && j->search.profile_samples > 0)
            return dt_node_error(n, err,
                                 "%s: profile_samples states how many samples are looked at, so "
                                 "nothing is drawn; leave out one of the two",
                                 sizing[i]);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]) && entrain; i++)
        if (dt_node_present(dt_map_get(search, others[i])) && useless[i])
            return dt_node_error(dt_map_get(search, others[i]), err,
                                 "%s: strategy entrain gives every module GPUs of its own, in "
                                 "stages of one chunk and as they are; leave this out",
                                 others[i]);
    return DT_OK;
}

/* Other searches take guests and chunks, whose memory is not a stage's own. */
static enum dt_status check_warmup(struct dt_node train, const struct dt_job *j, bool planned,
                                   struct dt_error *err)
{
    if (j->policy.warmup != DT_WARMUP_EAGER || planned || j->strategy == DT_STRATEGY_ENTRAIN ||
        j->strategy == DT_STRATEGY_MANUAL)
        return DT_OK;
    return dt_node_error(
        dt_map_get(train, "warmup"), err,
        "warmup: eager goes with modules that have GPUs of their own and stages of "
        "one chunk, which strategy %s does not keep to; use search.strategy: "
        "entrain, or manual with a plan, or warmup: 1f1b",
        dt_plan_strategy_names[j->strategy]);
}

/* Entrain's assignment has an order of its own, and a search of another strategy would find plans that it does not go
 * with. */
enum dt_status dt_job_assignment(struct dt_node search, struct dt_node train, struct dt_job *j,
                                 struct dt_error *err)
{
    struct dt_node n = dt_map_get(train, "assignment"), reorder = dt_map_get(train, "reorder");
    const char *word = dt_node_is_scalar(reorder) ? dt_node_text(reorder) : NULL;
    bool planned = j->has_plan || j->plan_file[0];

    if (j->searched) { /* as disttrain would */
        j->policy.assignment = DT_ASSIGNMENT_SLOTS;
        j->policy.warmup = DT_WARMUP_1F1B;
    } else {
        DT_TRY(check_warmup(train, j, planned, err));
        if (!planned)
            DT_TRY(check_sizing(search, j, err));
    }
    if (j->strategy == DT_STRATEGY_ENTRAIN && !planned && !dt_node_present(n))
        j->policy.assignment = DT_ASSIGNMENT_ENTRAIN;
    if (dt_node_present(dt_map_get(train, "reorder_budget")) && !j->policy.batch_reorder)
        return dt_node_error(dt_map_get(train, "reorder_budget"), err,
                             "reorder_budget: it is for the timelines of each batch, which are run "
                             "with reorder: batch; state that, or leave this out");
    if (j->policy.assignment != DT_ASSIGNMENT_ENTRAIN)
        return DT_OK;
    if (j->strategy != DT_STRATEGY_ENTRAIN && j->strategy != DT_STRATEGY_MANUAL && !planned)
        return dt_node_error(n, err,
                             "assignment: entrain goes with plans whose modules have the same dp, "
                             "which strategy %s does not keep to; use search.strategy: entrain, or "
                             "manual with a plan, or assignment: slots",
                             dt_plan_strategy_names[j->strategy]);
    if (dt_node_present(reorder) && !(word && strcmp(word, "none") == 0))
        return dt_node_error(reorder, err,
                             "reorder: assignment entrain has an order of its own; leave this out, "
                             "or use assignment: slots");
    j->policy.intra_reorder = j->policy.inter_reorder = j->policy.batch_reorder = false;
    j->search.free_intra = j->search.free_inter = false;
    return DT_OK;
}
