/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Single steps from the best plans of a search for plans with guests alone: blocks of the LLM, windows, what generators share,
 * groups, what leaves the GPUs between phases. */
#include "core/orchestrate/orchestrate_hosted_impl.h"

#include <math.h>

enum {
    FEW_BEST = 24, /* plans that steps go out from on few GPUs */
    NEAR_MAX =
        48, /* plans near the best on few GPUs, by the turns of a rule, that are timed with bubbles */
};
/* How near. */
#define NEAR 0.2

/* Generators whose replicas take samples share items, and the other way round. */
static void turn_items(const struct dt_orch_hosting *w, struct dt_plan *p)
{
    for (int m = w->llm + 1; m < p->n_modules; m++)
        p->modules[m].window = p->modules[m].window == 0;
}

static bool regroup(const struct dt_orch_hosting *w, int k, struct dt_plan *p)
{
    struct dt_plan_module *mp = &p->modules[k / DT_ORCH_GROUPS];
    int group = dt_orch_group_of(w->t, mp, k % DT_ORCH_GROUPS);

    if (group >= 0)
        mp->zero_group = group;
    return group >= 0;
}

/* Window number k of encoders, in slots: one longer or shorter, twice or half as long; on few GPUs also the shortest ones, as
 * between a longer and a shorter one that are slower may be one that is not. */
enum { NEAR_WINDOWS = 4, SHORT_WINDOWS = 16 };
static int64_t window_of(const struct dt_orch_hosting *w, const struct dt_plan *p, int k)
{
    int64_t now = dt_plan_window(p, w->llm, 0);
    const int64_t near[NEAR_WINDOWS] = {now - 1, now + 1, now / 2, 2 * now};

    return k < NEAR_WINDOWS ? near[k] : k - NEAR_WINDOWS + 1;
}

static void set_leave(struct dt_plan *p, int m, bool leave)
{
    struct dt_plan_module *mp = &p->modules[m];

    mp->offload = dt_plan_offload_of(dt_plan_offloads_optimizer(mp), leave);
}

static bool give_window(const struct dt_orch_hosting *w, int k, struct dt_plan *p)
{
    int64_t window = window_of(w, p, k), slots = dt_plan_slots(p, w->llm);

    if (window < 1 || window > slots || window == dt_plan_window(p, w->llm, 0))
        return false;
    for (int m = 0; m < w->llm; m++) {
        p->modules[m].window = window == slots ? DT_PLAN_WINDOW_ALL : (int)window;
        if (window < slots && dt_orch_hosted_may_stay(w, m))
            set_leave(p, m, false);
    }
    return true;
}

/* Encoder after encoder: its parameters stay, or leave, with any recomputation; the memory that they leave may be worth less of it. */
static int leaves_of(const struct dt_orch_hosting *w, int m)
{
    return dt_orch_hosted_may_leave(w, m) ? 1 + w->t->space.of[m].n_recompute : 0;
}

static bool give_leave(const struct dt_orch_hosting *w, int k, struct dt_plan *p)
{
    int m = 0;

    for (; k >= leaves_of(w, m); m++)
        k -= leaves_of(w, m);
    if (k == 0 ? !dt_orch_hosted_may_stay(w, m) : !dt_orch_hosted_can_leave(w, p, m))
        return false;
    set_leave(p, m, k > 0);
    if (k > 0)
        p->modules[m].recompute = w->t->space.of[m].recompute[k - 1];
    return true;
}

/* A boundary between two of so many parts one block on or back, or (few GPUs) a block from any part to any other, those between
 * passing one on. */
static int moves_of(const struct dt_orch_hosting *w, int parts)
{
    return w->few ? parts * (parts - 1) : 2 * (parts - 1);
}

static void move_block(const struct dt_orch_hosting *w, int k, int parts, uint16_t *split)
{
    int from = k / 2, to = k / 2 + 1;

    if (w->few) {
        from = k / (parts - 1);
        to = k % (parts - 1);
        to += to >= from;
    } else if (k % 2 == 1) {
        from++;
        to--;
    }
    for (int v = from + 1; v <= to; v++)
        split[v]--;
    for (int v = to + 1; v <= from; v++)
        split[v]++;
}

/* Neighbour number k of a plan: a block of the LLM elsewhere, or an encoder's window, or what generators share, or a module's group,
 * or what leaves the GPUs between phases; false: that is none.  *last: there are no more. */
static bool neighbour(const struct dt_orch_hosting *w, int k, struct dt_plan *p, bool *last)
{
    struct dt_plan_module *llm = &p->modules[w->llm];
    int parts = llm->layout.pp * llm->layout.vpp, moves = moves_of(w, parts);
    int windows = w->llm == 0 || p->modules[0].window == 0 ? 0
                  : w->few                                 ? NEAR_WINDOWS + SHORT_WINDOWS
                                                           : NEAR_WINDOWS;
    int grouped = moves + windows + (w->h->drawn && w->llm + 1 < p->n_modules);
    int left = grouped + (w->h->groups ? DT_ORCH_GROUPS * p->n_modules : 0), all = left;

    for (int m = 0; m < w->llm; m++)
        all += leaves_of(w, m);
    *last = k >= all;
    if (*last)
        return false;
    if (k >= left)
        return give_leave(w, k - left, p);
    if (k >= grouped)
        return regroup(w, k - grouped, p);
    if (k < moves) {
        move_block(w, k, parts, llm->split);
        return true;
    }
    if (k == moves + windows) {
        turn_items(w, p);
        return true;
    }
    return give_window(w, k - moves, p);
}

/* The time of a plan that settled, whose guests take turns by a rule, or (few GPUs) are placed into bubbles; HUGE_VAL: what is
 * assigned does not fit. */
static enum dt_status time_it(struct dt_orch_hosting *w, struct dt_plan *p, struct dt_error *err,
                              double *seconds)
{
    struct dt_error why;
    bool closer;
    enum dt_status st =
        w->few ? dt_orch_plan_timeline_s(w->t->in, p, 0, &why, &p->predicted.timeline_s, NULL)
               : dt_orch_time_plan(w->t, p, 0, HUGE_VAL, HUGE_VAL, &why, &closer);

    *seconds = st == DT_OK ? p->predicted.timeline_s : HUGE_VAL;
    return st == DT_OK || st == DT_ERR_INFEASIBLE ? DT_OK : dt_error_pass(err, &why);
}

/* The plan after the last step that made it faster; *ops are what is left to spend. */
static enum dt_status descend(struct dt_orch_hosting *w, struct dt_plan *p, double *ops,
                              struct dt_error *err)
{
    struct dt_orch_table *t = w->t;
    bool last = false;

    for (int k = 0; !last && *ops > 0; k++) {
        struct dt_plan q = *p;
        double s;

        if (!neighbour(w, k, &q, &last) || dt_orch_hosted_settle(w, &q) != DT_OK)
            continue;
        *ops -= dt_orch_look_ops(t, &q, 0);
        DT_TRY(time_it(w, &q, err, &s));
        if (s < p->predicted.timeline_s) {
            *p = q;
            k = -1; /* from the beginning */
        }
    }
    return DT_OK;
}

/* Guests' work in bubbles may turn the order of those that come near the best. */
static enum dt_status time_near(struct dt_orch_hosting *w, struct dt_plan *plans, int n,
                                struct dt_error *err)
{
    double limit = plans[0].predicted.timeline_s * (1 + NEAR), s;
    int near = 0;

    for (; near < n && near < NEAR_MAX && plans[near].predicted.timeline_s > 0; near++) {
        if (plans[near].predicted.timeline_s > limit)
            break;
        DT_TRY(time_it(w, &plans[near], err, &s));
    }
    return near > 1 ? dt_orch_sort(plans, near, err) : DT_OK;
}

enum dt_status dt_orch_hosted_polish(struct dt_orch_hosting *w, struct dt_plan *plans, int n,
                                     struct dt_error *err)
{
    double ops = (double)w->t->in->opt.neighbours;
    int most = w->few ? FEW_BEST : DT_ORCH_HOSTED_BEST;

    if (ops <= 0)
        ops = dt_orch_effort_of(w->t->in)->polish * (double)dt_orch_budget(w->t->in) /
              DT_ORCH_HOSTED_BEST;
    if (w->few)
        DT_TRY(time_near(w, plans, n, err));
    for (int i = 0; i < n && i < most; i++)
        if (plans[i].predicted.timeline_s > 0)
            DT_TRY(descend(w, &plans[i], &ops, err));
    return dt_orch_sort(plans, n, err);
}
