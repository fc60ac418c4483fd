/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The cells of the search and their bounds.  A cell fixes what the others cannot do without: schedule and chunks,
 * microbatch, the LLM's lane and DP, and with them the slots of an iteration.  Encoders and generators are free.
 *
 * Why the convex bound (orchestrate_convex.c) holds for all of their modes at once: a module in any mode, on x GPUs in
 * lanes of g, takes S*g*C/x a slot and as much warm-up, where C depends on the mode and g on the lane.  The bound only
 * falls with K = S*g*C, so the least g*C over the modes bounds each of them; it need not be the g*C of one mode that
 * also has the least C, which only the term "a replica sees at least one sample" uses, and that is a bound of its own. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_search.h"

#include <math.h>
#include <stdlib.h>

int dt_orch_cell_least_gpus(const struct dt_search_state *s)
{
    int gpus = 0;

    for (int i = 0; i < s->n_others; i++)
        gpus += s->least[s->others[i]]->lane_gpus;
    return gpus;
}

double dt_orch_cell_least_warm(const struct dt_search_state *s)
{
    double warm = 0;

    for (int i = 0; i < s->n_others; i++)
        warm += s->least[s->others[i]]->sample_s;
    return warm;
}

int dt_orch_cell_depth_max(const struct dt_search_state *s)
{
    int lane = s->lane_gpus * s->c->dp_lm, vpp = s->pipe->vpp;
    int room = dt_orch_module_cap(s, s->llm, s->t->gpus - dt_orch_cell_least_gpus(s)) / lane;
    int max = s->t->in->model->modules[s->llm].n_blocks / vpp;

    if (max * vpp > DT_MAX_VSTAGES)
        max = DT_MAX_VSTAGES / vpp;
    return room < max ? room : max;
}

/* The least over what recomputation may be. */
static bool llm_times(struct dt_search_state *s)
{
    const struct dt_orch_modes *o = &s->t->space.of[s->llm];

    s->sample_lm = s->passage_lm = s->filled_lm = HUGE_VAL;
    for (int r = 0; r < o->n_recompute; r++) {
        const struct dt_orch_times *x =
            dt_orch_times_of(s->t, s->llm, s->c->lane, r, s->c->microbatch, s->pipe->split);

        if (!x)
            return false;
        s->sample_lm = fmin(s->sample_lm, x->sample_s);
        s->passage_lm = fmin(s->passage_lm, x->sample_s - x->later_s);
        s->filled_lm = fmin(s->filled_lm, x->sample_s - 2 * x->later_s);
    }
    return true;
}

void dt_orch_cell_set(struct dt_search_state *s, const struct dt_orch_cell *c)
{
    const struct dt_orch_space *space = &s->t->space;

    s->c = c;
    s->pipe = &space->pipe[c->pipe];
    s->micro = space->microbatch[c->microbatch];
    s->lane_gpus = dt_orch_lane_gpus(&space->of[s->llm].lane[c->lane]);
    s->slot = (int64_t)c->dp_lm * s->micro;
    s->steps = (double)(s->t->in->policy.global_batch / s->slot) - 1;
    for (int i = 0; i < s->n_others; i++)
        s->least[s->others[i]] = &s->t->least[s->others[i]][s->pipe->split];
    (void)llm_times(s); /* out of memory: t->nomem stays set */
}

/* ---- bounds of the formula ---- */

/* The LLM's warm-up at any depth; chunks are dealt to as many stages as there are blocks for, at most. */
double dt_orch_cell_least_base(const struct dt_search_state *s)
{
    double c = s->micro * s->sample_lm;
    int vpp = s->pipe->vpp, blocks = s->t->in->model->modules[s->llm].n_blocks;

    return vpp > 1 ? c / vpp + c * (vpp - 1) / blocks : fmax(0, s->micro * s->filled_lm);
}

/* The others share `gpus`: their slowest takes what all of them together need on it, and their warm-up is least when
 * they share as the roots of their needs (Cauchy-Schwarz). */
double dt_orch_cell_bound(const struct dt_search_state *s, double gpus, double base, double pass,
                          double interval)
{
    double k_sum = 0, roots = 0, least = 0, slot = (double)s->slot;

    for (int i = 0; i < s->n_others; i++) {
        const struct dt_orch_least *l = s->least[s->others[i]];

        k_sum += slot * l->gpu_s;
        roots += sqrt(slot * l->gpu_s);
        least += l->sample_s;
    }
    if (s->n_others == 0)
        return dt_orch_staged_s(base, s->steps, interval, 0, pass);
    if (gpus <= 0)
        return HUGE_VAL;
    return dt_orch_staged_s(base + fmax(least, roots * roots / gpus), s->steps, interval,
                            k_sum / gpus, pass);
}

/* A bound without solving anything: all modules do their work on all GPUs, and a microbatch passes the LLM. */
static double quick_bound(const struct dt_search_state *s)
{
    double n = s->t->gpus, slot = (double)s->slot, base = dt_orch_cell_least_base(s);
    double k_sum = slot * s->lane_gpus * s->sample_lm;
    double passage = s->micro * s->passage_lm;

    for (int i = 0; i < s->n_others; i++)
        k_sum += slot * s->least[s->others[i]]->gpu_s;
    return dt_orch_cell_bound(
        s, n, base, s->t->in->opt.uniform || passage < base ? 0 : passage - base, k_sum / n);
}

double dt_orch_cell_convex(struct dt_search_state *s, double *x)
{
    double min_x[DT_MAX_MODULES], k[DT_MAX_MODULES];

    s->min_gpus = 0;
    for (int m = 0; m < s->n_modules; m++) {
        bool llm = m == s->llm;
        int lane = llm ? s->lane_gpus : s->least[m]->lane_gpus;

        k[m] = (double)s->slot * (llm ? s->lane_gpus * s->sample_lm : s->least[m]->gpu_s);
        min_x[m] = dt_orch_table_min_gpus(s->t, m, lane, llm ? s->c->dp_lm : (int)s->slot);
        s->min_gpus += min_x[m];
    }
    s->stats->convex_solves++;
    return dt_orch_convex_solve_k(s->n_modules, s->llm, k, s->steps, s->t->gpus, min_x,
                                  dt_orch_cell_least_base(s), x);
}

/* ---- bound of timelines ---- */

/* The others do their part of the batch on the GPUs that the LLM leaves; the LLM's slowest stage does all slots, one
 * after the other, and a microbatch passes all of them. */
double dt_orch_cell_floor(const struct dt_search_state *s, int pp, double interval)
{
    double left = s->t->gpus - (double)s->lane_gpus * pp * s->c->dp_lm, work = 0, llm;

    for (int i = 0; i < s->n_others; i++)
        work += (double)s->t->in->policy.global_batch * s->least[s->others[i]]->gpu_s;
    llm = fmax(s->micro * s->passage_lm, (s->steps + 1) * interval);
    if (work <= 0)
        return llm;
    return left > 0 ? fmax(llm, work / left) : HUGE_VAL;
}

/* ---- the list ---- */

static int by_bound(const void *pa, const void *pb)
{
    const struct dt_orch_cell *a = pa, *b = pb;

    if (a->bound != b->bound)
        return a->bound < b->bound ? -1 : 1;
    if (a->dp_lm != b->dp_lm)
        return a->dp_lm - b->dp_lm;
    if (a->pipe != b->pipe)
        return a->pipe - b->pipe;
    return a->microbatch != b->microbatch ? a->microbatch - b->microbatch : a->lane - b->lane;
}

/* Cells of one pipe, microbatch and lane: every DP that divides the slots and that experts can be dealt over. */
static bool list_dp(struct dt_search_state *s, struct dt_orch_cell *c, void **cells, size_t *cap,
                    size_t *n)
{
    int64_t slots = s->t->in->policy.global_batch / s->t->space.microbatch[c->microbatch];
    const struct dt_orch_lane *l = &s->t->space.of[s->llm].lane[c->lane];
    const struct dt_module *llm = &s->t->in->model->modules[s->llm];

    c->dp_lm = 1;
    dt_orch_cell_set(s, c);
    for (; c->dp_lm <= slots && (int64_t)c->dp_lm * s->lane_gpus <= s->t->gpus; c->dp_lm++) {
        if (slots % c->dp_lm != 0 || !dt_plan_allows_ep(llm, l->ep, c->dp_lm * l->cp))
            continue;
        if (dt_grow(cells, cap, *n + 1, sizeof(*c)) != 0)
            return false;
        s->slot = (int64_t)c->dp_lm * s->micro;
        s->steps = (double)(s->t->in->policy.global_batch / s->slot) - 1;
        c->bound = quick_bound(s);
        ((struct dt_orch_cell *)*cells)[(*n)++] = *c;
    }
    return true;
}

bool dt_orch_cells_list(struct dt_search_state *s, enum dt_pipe_schedule schedule,
                        struct dt_orch_cell **out, size_t *n)
{
    const struct dt_orch_space *space = &s->t->space;
    size_t cap = 0;
    void *cells = NULL;
    bool ok = true;

    *n = 0;
    *out = NULL;
    for (int m = 0; m < s->n_modules; m++)
        if (space->of[m].n_lanes == 0)
            return true;
    for (int p = 0; p < space->n_pipes; p++)
        for (int k = 0; k < space->n_microbatches; k++)
            for (int lane = 0; lane < space->of[s->llm].n_lanes; lane++) {
                struct dt_orch_cell c = {0, 1, (uint8_t)p, (uint8_t)k, (uint8_t)lane};

                if (space->pipe[p].schedule != schedule)
                    break;
                ok = ok && list_dp(s, &c, &cells, &cap, n) && !s->t->nomem;
            }
    if (!ok) {
        dt_free(cells);
        *n = 0;
        return false;
    }
    if (*n > 1)
        qsort(cells, *n, sizeof(struct dt_orch_cell), by_bound);
    *out = cells;
    return true;
}
