/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/program/placement.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return x < y ? -1 : x > y;
}

static enum dt_status used_gpus(struct dt_placement *p, struct dt_error *err)
{
    size_t n = 0;
    int k = 0;

    for (int m = 0; m < p->plan->n_modules; m++)
        n += (size_t)dt_plan_layout_gpus(&p->plan->modules[m].layout);
    p->gpu = dt_malloc((n + 1) * sizeof(*p->gpu));
    if (!p->gpu)
        return dt_error_nomem(err, "a placement");
    n = 0;
    for (int m = 0; m < p->plan->n_modules; m++)
        for (int g = 0; g < dt_plan_layout_gpus(&p->plan->modules[m].layout); g++)
            p->gpu[n++] = p->plan->modules[m].layout.first_gpu + g;
    qsort(p->gpu, n, sizeof(*p->gpu), ascending);
    for (size_t i = 0; i < n; i++) /* modules of a colocated plan name the same ones */
        if (i == 0 || p->gpu[i] != p->gpu[i - 1])
            p->gpu[k++] = p->gpu[i];
    p->n_gpus = k;
    return DT_OK;
}

/* The lanes of an expert group wait for each other inside their ops. */
static enum dt_status check_experts(const struct dt_placement *p, int m, struct dt_error *err)
{
    const struct dt_plan_layout *l = &p->plan->modules[m].layout;
    int last = dt_plan_layout_lane_gpus(l) - 1;

    for (int s = 0; s < l->pp; s++)
        for (int r = 1; r < l->dp; r++)
            if (dt_placement_rank(p, m, r, s, 0) == dt_placement_rank(p, m, r - 1, s, last))
                return dt_error_set(err, DT_ERR_INPUT,
                                    "module %s: with ep %d replicas need a rank each; the plan has "
                                    "%d GPUs, so start %d ranks, not %d",
                                    p->plan->module_names[m], l->ep, p->n_gpus, p->n_gpus,
                                    p->ranks);
    return DT_OK;
}

static enum dt_status check_lanes(const struct dt_placement *p, struct dt_error *err)
{
    for (int m = 0; m < p->plan->n_modules; m++) {
        const struct dt_plan_layout *l = &p->plan->modules[m].layout;

        for (int lane = 0; lane < l->dp * l->pp; lane++)
            for (int t = 1; t < dt_plan_layout_lane_gpus(l); t++)
                if (dt_placement_rank(p, m, lane % l->dp, lane / l->dp, t) ==
                    dt_placement_rank(p, m, lane % l->dp, lane / l->dp, t - 1))
                    return dt_error_set(err, DT_ERR_INPUT,
                                        "module %s: the %s%d members of a lane need a rank each; "
                                        "the plan has %d GPUs, so start %d ranks, not %d",
                                        p->plan->module_names[m], l->cp > 1 ? "" : "tp ",
                                        dt_plan_layout_lane_gpus(l), p->n_gpus, p->n_gpus,
                                        p->ranks);
        if (l->ep > 1)
            DT_TRY(check_experts(p, m, err));
    }
    return DT_OK;
}

enum dt_status dt_placement_init(struct dt_placement *p, const struct dt_plan *plan, int ranks,
                                 struct dt_error *err)
{
    enum dt_status st;

    memset(p, 0, sizeof(*p));
    p->plan = plan;
    p->ranks = ranks;
    DT_TRY(used_gpus(p, err));
    if (ranks > p->n_gpus)
        st = dt_error_set(err, DT_ERR_INPUT,
                          "%d ranks for a plan of %d GPU%s: start %d (or fewer), or plan for %d",
                          ranks, p->n_gpus, p->n_gpus == 1 ? "" : "s", p->n_gpus, ranks);
    else
        st = check_lanes(p, err);
    if (st != DT_OK)
        dt_placement_free(p);
    return st;
}

void dt_placement_free(struct dt_placement *p)
{
    dt_free(p->gpu);
    memset(p, 0, sizeof(*p));
}

int dt_placement_gpu_rank(const struct dt_placement *p, int gpu)
{
    int lo = 0, hi = p->n_gpus;

    while (lo + 1 < hi) {
        int mid = (lo + hi) / 2;

        if (p->gpu[mid] <= gpu)
            lo = mid;
        else
            hi = mid;
    }
    return (int)((int64_t)lo * p->ranks / p->n_gpus);
}

int dt_placement_rank(const struct dt_placement *p, int module, int replica, int stage, int t)
{
    return dt_placement_gpu_rank(p, dt_plan_lane_gpu(p->plan, module, replica, stage) + t);
}

int dt_placement_member(const struct dt_placement *p, int module, int replica, int stage, int rank)
{
    for (int t = 0; t < dt_plan_layout_lane_gpus(&p->plan->modules[module].layout); t++)
        if (dt_placement_rank(p, module, replica, stage, t) == rank)
            return t;
    return -1;
}
