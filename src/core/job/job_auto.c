/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a job leaves to the search: keys of `train` that are "auto", or absent where plans are searched for on GPUs.
 * On CPUs plans are executed, on a machine of few ranks, and an absent key keeps its fixed default. */
#include "core/job/job_internal.h"

#include <string.h>

enum { MICROBATCH_AUTO_MAX = 16 };

/* GPipe never beats 1F1B: it waits as long and holds more. */
enum {
    RECOMPUTE_AUTO = 1 << DT_RECOMPUTE_NONE | 1 << DT_RECOMPUTE_SELECTIVE | 1 << DT_RECOMPUTE_FULL,
    ZERO_AUTO = (2 << DT_ZERO_MAX) - 1,
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
    struct dt_search_options *o = &j->search;

    o->schedules = left_open(dt_map_get(train, "schedule"), j) ? SCHEDULES_AUTO : 0;
    o->max_microbatch = left_open(dt_map_get(train, "microbatch"), j) ? MICROBATCH_AUTO_MAX : 0;
    for (int m = 0; m < j->model->n_modules; m++) {
        o->recompute[m] = left_open(of_module(recompute, j, m), j) ? RECOMPUTE_AUTO : 0;
        o->zero[m] = left_open(of_module(zero, j, m), j) ? ZERO_AUTO : 0;
    }
}
