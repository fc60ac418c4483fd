/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How many microbatches a stage may hold beyond those of its schedule: as many as fit.  The publication (Jang and Chowdhury 2026,
 * arXiv 2605.27918) runs as many forwards as memory allows before the first backward; that no stage is further ahead
 * than the one in front of it is ours, and costs nothing: a microbatch that a stage holds is held by all in front of it.
 *
 * Stages are taken in the order in which data goes through them.  What one holds may wait as messages at the next, so that one
 * has to fit with these, too, while it is not ahead itself; whatever it then holds itself does not wait. */
#include "core/cost/memory.h"

#include <limits.h>

struct room {
    struct dt_plan *p;
    const struct dt_model *m;
    const struct dt_cluster *c;
    const struct dt_work *work;
};

static bool fits(const struct room *r, int module, int stage)
{
    int64_t n = dt_plan_microbatches(r->p, r->m->llm, module);
    struct dt_memory mem;

    dt_memory_stage(r->p, r->m, r->c, module, stage, &r->work[module], n > 0 ? n : 1, &mem);
    return mem.total <= dt_memory_limit(r->c);
}

/* The stage, and those that it sends to. */
static bool fits_with_next(const struct room *r, int module, int stage, int ahead)
{
    struct dt_plan_module *mp = &r->p->modules[module];

    mp->ahead[stage] = (uint16_t)ahead;
    if (!fits(r, module, stage))
        return false;
    if (stage + 1 < mp->layout.pp)
        return fits(r, module, stage + 1);
    for (int e = 0; e < r->m->n_edges; e++)
        if (r->m->edges[e].src == module && !fits(r, r->m->edges[e].dst, 0))
            return false;
    return true;
}

/* The stages in front are this far ahead at least. */
static int limit_of(const struct room *r, int module, int stage)
{
    int64_t n = dt_plan_microbatches(r->p, r->m->llm, module);
    int most = n < UINT16_MAX ? (int)n : UINT16_MAX;

    if (stage > 0)
        return r->p->modules[module].ahead[stage - 1];
    for (int e = 0; e < r->m->n_edges; e++) {
        const struct dt_plan_module *src = &r->p->modules[r->m->edges[e].src];
        int theirs = src->ahead[src->layout.pp - 1];

        if (r->m->edges[e].dst == module && theirs < most)
            most = theirs;
    }
    return most;
}

static void take_room(const struct room *r, int module, int stage)
{
    int low = 0, high = limit_of(r, module, stage);

    while (low < high) {
        int middle = low + (high - low + 1) / 2;

        if (fits_with_next(r, module, stage, middle))
            low = middle;
        else
            high = middle - 1;
    }
    r->p->modules[module].ahead[stage] = (uint16_t)low;
}

void dt_memory_ahead(struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                     const struct dt_work *work)
{
    const struct room r = {p, m, c, work};

    for (int module = 0; module < p->n_modules; module++)
        for (int s = 0; s < p->modules[module].layout.pp; s++)
            p->modules[module].ahead[s] = 0;
    for (int module = 0; module < p->n_modules; module++) /* in topological order */
        for (int s = 0; s < p->modules[module].layout.pp; s++)
            take_room(&r, module, s);
}
