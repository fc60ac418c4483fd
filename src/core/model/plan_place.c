/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Plans: which GPUs a module has.
 *
 * A module has GPUs of its own, or it is the guest of another one (`with`) and lies on the GPUs of that one: its lanes,
 * in the order that they have everywhere (tp fastest, then dp, then pp), from the host's first GPU on.
 *
 *     llm      tp 4, dp 2, pp 2       0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15
 *     encoder  with llm, tp 1, dp 8   0 1 2 3   4 5 6 7
 *
 * A host may itself be a guest; the last host of the chain is the one that has the GPUs. */
#include "core/model/plan.h"

#include <string.h>

/* ---- guests and hosts ---- */

static int widest(const struct dt_plan *p)
{
    int most = 0;

    for (int m = 1; m < p->n_modules; m++)
        if (dt_plan_layout_gpus(&p->modules[m].layout) >
            dt_plan_layout_gpus(&p->modules[most].layout))
            most = m;
    return most;
}

int dt_plan_host(const struct dt_plan *p, int module)
{
    if (p->colocated)
        return widest(p);
    for (int k = 0; k < p->n_modules && p->modules[module].with; k++) /* ends in a circle, too */
        module = p->modules[module].with - 1;
    return module;
}

bool dt_plan_shares(const struct dt_plan *p)
{
    bool any = p->colocated;

    for (int m = 0; m < p->n_modules; m++)
        any |= p->modules[m].with != 0;
    return any;
}

int dt_plan_gpus(const struct dt_plan *p)
{
    int gpus = 0;

    for (int m = 0; m < p->n_modules; m++)
        gpus += dt_plan_host(p, m) == m ? dt_plan_layout_gpus(&p->modules[m].layout) : 0;
    return gpus;
}

bool dt_plan_takes_turns(const struct dt_plan *p, int u, int d)
{
    const struct dt_plan_layout *x = &p->modules[u].layout, *y = &p->modules[d].layout;

    if (p->colocated)
        return true;
    if (u != d && !p->modules[u].with &&
        !p->modules[d].with) /* asked for every stage of a search */
        return false;
    return dt_plan_host(p, u) == dt_plan_host(p, d) &&
           dt_plan_lane_gpu(p, u, 0, x->pp - 1) == dt_plan_lane_gpu(p, d, 0, 0) &&
           x->dp * dt_plan_layout_lane_gpus(x) == y->dp * dt_plan_layout_lane_gpus(y);
}

static enum dt_status check_hosts(const struct dt_plan *p, struct dt_error *err)
{
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_module *mp = &p->modules[m];

        if (mp->with == 0)
            continue;
        if (p->colocated)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: with and colocated: true cannot be combined; all "
                                "colocated modules share their GPUs",
                                p->module_names[m]);
        if (mp->with > p->n_modules)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: it is to lie on the GPUs of module %d, and there are "
                                "%d",
                                p->module_names[m], mp->with - 1, p->n_modules);
        if (p->modules[dt_plan_host(p, m)].with != 0)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s lies with %s, and so on in a circle: one module of it "
                                "must have GPUs of its own",
                                p->module_names[m], p->module_names[mp->with - 1]);
    }
    return DT_OK;
}

/* ---- placing ---- */

/* Lanes of `width` GPUs laid end to end from an aligned start never straddle a node when this
 * holds. */
static bool lane_fits_nodes(int width, int per_node)
{
    return width <= per_node ? per_node % width == 0 : width % per_node == 0;
}

static int64_t align_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

void dt_plan_unpin(struct dt_plan *p)
{
    for (int m = 0; m < p->n_modules; m++)
        p->modules[m].pinned = false;
}

/* The widest lane on the GPUs of a host, its own or a guest's. */
static int widest_lane(const struct dt_plan *p, int host)
{
    int most = 0;

    for (int m = 0; m < p->n_modules; m++) {
        int width = dt_plan_layout_lane_gpus(&p->modules[m].layout);

        most = dt_plan_host(p, m) == host && width > most ? width : most;
    }
    return most;
}

/* The lowest aligned GPU, not below `from`, of a range that no module with GPUs of its own and a
 * place (first >= 0) has. */
static int64_t free_range(const struct dt_plan *p, const int64_t *first, int64_t from, int align,
                          int gpus)
{
    bool moved = true;

    while (moved) {
        moved = false;
        from = align_up(from, align);
        for (int o = 0; o < p->n_modules; o++) {
            int64_t end = first[o] + dt_plan_layout_gpus(&p->modules[o].layout);

            if (dt_plan_host(p, o) == o && first[o] >= 0 && from < end && first[o] < from + gpus) {
                from = end;
                moved = true;
            }
        }
    }
    return from;
}

/* Whether a host is placed before another one: it has wider lanes, or as wide ones and deals experts, whose groups then do not
 * straddle nodes because of what lies in front. */
static bool goes_before(const struct dt_plan *p, int a, int b)
{
    int width = widest_lane(p, a), other = widest_lane(p, b);

    if (width != other)
        return width > other;
    return p->modules[a].layout.ep > 1 && p->modules[b].layout.ep <= 1;
}

/* Modules with GPUs of their own, in that order, else in the order of the model; how many. */
static int hosts_in_order(const struct dt_plan *p, int *order)
{
    int n = 0;

    for (int i = 0; i < p->n_modules; i++) {
        int j = n;

        if (dt_plan_host(p, i) != i)
            continue;
        for (; j > 0 && goes_before(p, i, order[j - 1]); j--)
            order[j] = order[j - 1];
        order[j] = i;
        n++;
    }
    return n;
}

static enum dt_status place_host(const struct dt_plan *p, const struct dt_cluster *c, int m,
                                 bool pins, int64_t *first, int64_t *next, struct dt_error *err)
{
    int width = widest_lane(p, m), gpus = dt_plan_layout_gpus(&p->modules[m].layout);
    int align = width < c->gpus_per_node ? width : c->gpus_per_node;

    if (first[m] >= 0)
        return DT_OK;
    first[m] = free_range(p, first, pins ? 0 : *next, align, gpus);
    *next = first[m] + gpus;
    if (*next <= dt_cluster_gpus(c))
        return DT_OK;
    if (pins && dt_plan_gpus(p) <= dt_cluster_gpus(c))
        return dt_error_set(err, DT_ERR_INFEASIBLE,
                            "module %s: the first_gpu of the others leave no %d GPUs in a row free "
                            "in cluster %s (%d GPUs)",
                            p->module_names[m], gpus, c->name, dt_cluster_gpus(c));
    return dt_error_set(err, DT_ERR_INFEASIBLE, "the plan needs %d GPUs, cluster %s has %d",
                        dt_plan_gpus(p), c->name, dt_cluster_gpus(c));
}

/* Where the host of a guest is that states no place: over a chain, the first one with a place. */
static int64_t guest_first(const struct dt_plan *p, const int64_t *first, int m)
{
    while (first[m] < 0 && p->modules[m].with)
        m = p->modules[m].with - 1;
    return first[m] >= 0 ? first[m] : first[dt_plan_host(p, m)];
}

static enum dt_status check_tiles(const struct dt_plan *p, const struct dt_cluster *c, int m,
                                  enum dt_status status, struct dt_error *err)
{
    int width = dt_plan_layout_lane_gpus(&p->modules[m].layout);

    if (lane_fits_nodes(width, c->gpus_per_node))
        return DT_OK;
    return dt_error_set(
        err, status, "%smodule %s: lanes of %d GPUs (tp*cp*ip) do not tile nodes of %d",
        status == DT_ERR_INPUT ? "plan, " : "", p->module_names[m], width, c->gpus_per_node);
}

enum dt_status dt_plan_place(struct dt_plan *p, const struct dt_cluster *c, struct dt_error *err)
{
    int64_t first[DT_MAX_MODULES], next = 0;
    int order[DT_MAX_MODULES], n;
    bool pins = false;

    DT_TRY(check_hosts(p, err));
    for (int i = 0; i < p->n_modules; i++) {
        const struct dt_plan_module *m = &p->modules[i];

        if (p->colocated && m->pinned && m->layout.first_gpu != 0)
            return dt_error_set(err, DT_ERR_INPUT,
                                "module %s: first_gpu %d cannot be combined with colocated "
                                "modules, which all begin at GPU 0",
                                p->module_names[i], m->layout.first_gpu);
        DT_TRY(check_tiles(p, c, i, DT_ERR_INFEASIBLE, err));
        first[i] = m->pinned ? m->layout.first_gpu : -1;
        pins |= m->pinned && dt_plan_host(p, i) == i;
    }
    n = hosts_in_order(p, order);
    for (int i = 0; i < n; i++)
        DT_TRY(place_host(p, c, order[i], pins, first, &next, err));
    for (int i = 0; i < p->n_modules; i++)
        p->modules[i].layout.first_gpu = (int)guest_first(p, first, i);
    memcpy(p->cluster, c->name, sizeof(p->cluster));
    return DT_OK;
}

int dt_plan_lane_gpu(const struct dt_plan *p, int module, int replica, int stage)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    int replicas = l->dp;

    if (p->in_place > 0) {
        replicas *= dt_plan_stands_for(p);
        replica += p->first_group > 0 ? (p->first_group - 1) * (l->dp / p->in_place) : 0;
    }
    return l->first_gpu + (stage * replicas + replica) * dt_plan_layout_lane_gpus(l);
}

int dt_plan_ranks_ahead(const struct dt_plan *p, int module, int stage, int gpus_per_node)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    int replicas = l->dp * dt_plan_takes_part(p);
    int64_t first = l->first_gpu + (int64_t)stage * replicas * dt_plan_layout_lane_gpus(l);

    return l->tp < gpus_per_node ? (int)(first % gpus_per_node / l->tp) : 0;
}

struct dt_block_shard dt_plan_stage_shard(const struct dt_plan *p, int module, int stage,
                                          int gpus_per_node)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    struct dt_block_shard shard = dt_plan_shard(&p->modules[module]);
    int64_t groups = dt_plan_layout_copies(l) * dt_plan_takes_part(p) / l->ep;
    int room = l->tp < gpus_per_node ? gpus_per_node / l->tp : 1, worst = room + 1;
    int ahead = dt_plan_ranks_ahead(p, module, stage, gpus_per_node);

    for (int k = 0; l->ep > 1 && k < groups && k < room; k++, ahead = (ahead + l->ep) % room) {
        int first = room - ahead, last = (ahead + l->ep - 1) % room + 1;
        int least = l->ep <= first ? room : first < last ? first : last;

        if (least < worst) {
            worst = least;
            shard.ahead = ahead;
        }
    }
    return shard;
}

/* ---- validity ---- */

/* A guest uses GPUs of the module that it names, no others. */
static enum dt_status check_guest(const struct dt_plan *p, int m, struct dt_error *err)
{
    const struct dt_plan_layout *l = &p->modules[m].layout, *k;
    int gpus = dt_plan_layout_gpus(l), host = p->modules[m].with - 1;

    k = &p->modules[host].layout;
    if (gpus > dt_plan_layout_gpus(k))
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: its %d GPUs are to be some of those of %s, which has "
                            "%d",
                            p->module_names[m], gpus, p->module_names[host],
                            dt_plan_layout_gpus(k));
    if (l->first_gpu < k->first_gpu || l->first_gpu + gpus > k->first_gpu + dt_plan_layout_gpus(k))
        return dt_error_set(err, DT_ERR_INPUT,
                            "plan, module %s: GPUs %d to %d are not all among those of %s, which "
                            "has %d to %d",
                            p->module_names[m], l->first_gpu, l->first_gpu + gpus - 1,
                            p->module_names[host], k->first_gpu,
                            k->first_gpu + dt_plan_layout_gpus(k) - 1);
    return DT_OK;
}

static enum dt_status check_apart(const struct dt_plan *p, int m, int o, struct dt_error *err)
{
    const struct dt_plan_layout *l = &p->modules[m].layout, *k = &p->modules[o].layout;
    int l_end = l->first_gpu + dt_plan_layout_gpus(l);
    int k_end = k->first_gpu + dt_plan_layout_gpus(k);

    if (l->first_gpu >= k_end || k->first_gpu >= l_end || dt_plan_host(p, m) == dt_plan_host(p, o))
        return DT_OK;
    return dt_error_set(err, DT_ERR_INPUT,
                        "plan: modules %s (GPUs %d to %d) and %s (GPUs %d to %d) share GPUs; move "
                        "one by first_gpu, or let them take turns by with: %s",
                        p->module_names[o], k->first_gpu, k_end - 1, p->module_names[m],
                        l->first_gpu, l_end - 1,
                        p->module_names[l_end - l->first_gpu > k_end - k->first_gpu ? m : o]);
}

enum dt_status dt_plan_check_places(const struct dt_plan *p, const struct dt_cluster *c,
                                    struct dt_error *err)
{
    DT_TRY(check_hosts(p, err));
    for (int m = 0; m < p->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;
        int width = dt_plan_layout_lane_gpus(l), gpus = dt_plan_layout_gpus(l);
        int node = width < c->gpus_per_node ? width : c->gpus_per_node;

        DT_TRY(check_tiles(p, c, m, DT_ERR_INPUT, err));
        if (l->first_gpu < 0 || (int64_t)l->first_gpu + gpus > dt_cluster_gpus(c))
            return dt_error_set(err, DT_ERR_INPUT,
                                "plan, module %s: GPUs %d to %lld are outside cluster %s (%d GPUs)",
                                p->module_names[m], l->first_gpu,
                                (long long)l->first_gpu + gpus - 1, c->name, dt_cluster_gpus(c));
        if (l->first_gpu % node != 0)
            return dt_error_set(err, DT_ERR_INPUT,
                                "plan, module %s: first_gpu %d is not a multiple of %d, so that "
                                "lanes of %d GPUs would straddle nodes",
                                p->module_names[m], l->first_gpu, node, width);
        if (p->modules[m].with)
            DT_TRY(check_guest(p, m, err));
        for (int o = 0; o < m; o++)
            DT_TRY(check_apart(p, m, o, err));
    }
    return DT_OK;
}
