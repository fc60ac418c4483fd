/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * On few GPUs, where memory is tight: splits of an LLM whose stages have several chunks, by enumeration from the nearly even ones on,
 * as far as so many questions about memory go. */
#include "base/mem.h"
#include "core/orchestrate/orchestrate_hosted_impl.h"

#include <math.h>

enum {
    SPLITS = 100, /* whose memory is asked for, under each of these bounds */
    STEPS =
        20000, /* of looking for them: most splits of a deep LLM are below the bound that was tried before */
    BOUNDS = 5,
};

struct splitting { /* ways of dealing the LLM's blocks to stages of several chunks */
    struct dt_orch_table *t;
    struct dt_orch_hosted_left *all; /* NULL: as many as each bound has */
    const double *block_s;
    double
        best; /* the slowest part may not take as long: a bound, then the slowest part of that in `found` */
    double asked; /* memory was asked of those whose slowest part takes less */
    double all_s; /* of all blocks */
    int blocks, parts, left, steps;
    struct dt_plan p, found;
};

/* Parts from v on; those before take `before` seconds, the slowest of them `slowest`. */
static void try_splits(struct splitting *x, int v, double before, double slowest)
{
    uint16_t *split = x->p.modules[x->t->in->model->llm].split;
    double sum = 0;

    if (v == x->parts) {
        if (slowest >= x->asked && x->left-- > 0) {
            struct dt_plan p = x->p;

            if (dt_orch_hosted_settle(x->t, &p) == DT_OK) {
                x->best = slowest;
                x->found = p;
            }
        }
        return;
    }
    for (int end = split[v] + 1; end <= x->blocks - (x->parts - 1 - v); end++) {
        sum += x->block_s[end - 1];
        if (fmax(slowest, sum) >= x->best || x->left <= 0 || x->steps-- <= 0)
            return;
        if (v + 1 == x->parts && end < x->blocks)
            continue;
        if (v + 1 < x->parts && x->all_s - before - sum >= x->best * (x->parts - 1 - v))
            continue; /* the rest cannot be dealt into parts that are all faster */
        split[v + 1] = (uint16_t)end;
        try_splits(x, v + 1, before + sum, fmax(slowest, sum));
    }
}

static int least(int most, int64_t left)
{
    return left < most ? (int)left : most;
}

/* Parts that are nearly even first, then such as are less and less: in the order of their blocks alone the first to be asked
 * for would be those with one block for every part but the last. */
static bool widen(struct splitting *x)
{
    static const double times_even[BOUNDS] = {1.1, 1.25, 1.5, 2, HUGE_VAL};
    bool found = false;

    for (int i = 0; i < BOUNDS && !found; i++) {
        double bound = x->all_s / x->parts * times_even[i];

        x->best = bound;
        x->left = least(SPLITS, x->all ? x->all->splits : SPLITS);
        x->steps = least(STEPS, x->all ? x->all->steps : STEPS);
        if (x->all)
            *x->all =
                (struct dt_orch_hosted_left){x->all->splits - x->left, x->all->steps - x->steps};
        try_splits(x, 0, 0, 0);
        if (x->all) { /* what is left over is for others */
            x->all->splits += x->left > 0 ? x->left : 0;
            x->all->steps += x->steps > 0 ? x->steps : 0;
        }
        found = x->best < bound;
        x->asked = bound;
    }
    return found;
}

bool dt_orch_hosted_chunks(struct dt_orch_table *t, const struct dt_orch_times *times,
                           struct dt_orch_hosted_left *left, struct dt_plan *p)
{
    const int llm = t->in->model->llm;
    const struct dt_plan_layout *l = &p->modules[llm].layout;
    struct splitting *x = dt_calloc(1, sizeof(*x)); /* plans are too large for the stack */
    bool found;

    if (!x) {
        t->nomem = true;
        return false;
    }
    *x = (struct splitting){.t = t,
                            .all = left,
                            .block_s = times->block_s,
                            .blocks = t->in->model->modules[llm].n_blocks,
                            .parts = l->pp * l->vpp,
                            .p = *p};
    for (int b = 0; b < x->blocks; b++)
        x->all_s += x->block_s[b];
    found = widen(x);
    if (found)
        *p = x->found;
    dt_free(x);
    return found;
}
