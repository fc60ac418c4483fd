/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/schedule/program_partners.h"

#include "base/mem.h"
#include "base/number.h"

/* Lanes that are linked by expert groups.  Members are neighbours among cp ranks of each lane: where ep does not divide
 * cp, nor cp ep, a lane may have members of two groups. */
static int linked(const struct dt_program *p, int module)
{
    const struct dt_plan_layout *l = &p->plan->modules[module].layout;

    return l->ep / (int)dt_number_gcd(l->ep, l->cp);
}

static bool exchanges(const struct dt_op *op)
{
    return op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD || op->kind == DT_OP_WEIGHT_GRAD;
}

static void number_compute(const struct dt_program *p, struct dt_program_partners *g)
{
    uint32_t n = 0;

    for (int l = 0; l < p->n_lanes; l++) {
        g->first[l] = n;
        for (uint32_t i = p->lanes[l].first; i < p->lanes[l].first + p->lanes[l].n; i++) {
            g->nth[i] = n - g->first[l];
            if (exchanges(&p->ops[i]))
                g->compute[n++] = i;
        }
    }
    g->first[p->n_lanes] = n;
}

/* Lanes of a stage lie in any order: first those of each module and stage by their replicas. */
static int find_lanes(const struct dt_program *p, struct dt_arena *a, struct dt_program_partners *g)
{
    int32_t *of[DT_MAX_MODULES] = {NULL};
    uint32_t at = 0;

    for (int m = 0; m < p->plan->n_modules; m++) {
        const struct dt_plan_layout *x = &p->plan->modules[m].layout;

        of[m] = DT_ARENA_NEW(a, int32_t, (size_t)x->pp * (size_t)x->dp + 1);
        if (!of[m])
            return -1;
    }
    for (int l = 0; l < p->n_lanes; l++) {
        const struct dt_lane *x = &p->lanes[l];

        of[x->module][x->stage * p->plan->modules[x->module].layout.dp + x->replica] = l;
    }
    for (int l = 0; l < p->n_lanes; l++) {
        const struct dt_lane *x = &p->lanes[l];
        int n = linked(p, x->module), dp = p->plan->modules[x->module].layout.dp;

        g->at[l] = at;
        for (int k = 0; n > 1 && dp % n == 0 && k < n; k++)
            g->lane[at++] = of[x->module][x->stage * dp + x->replica / n * n + k];
    }
    g->at[p->n_lanes] = at;
    return 0;
}

enum dt_status dt_program_partners_find(const struct dt_program *p, struct dt_arena *a,
                                        struct dt_error *err, struct dt_program_partners *out)
{
    size_t ops = (size_t)p->n_ops + 1, lanes = (size_t)p->n_lanes + 1, members = 1;

    *out = (struct dt_program_partners){0};
    for (int m = 0; m < p->plan->n_modules; m++)
        out->any |= linked(p, m) > 1;
    if (!out->any)
        return DT_OK;
    for (int l = 0; l < p->n_lanes; l++)
        members += (size_t)linked(p, p->lanes[l].module);
    out->nth = DT_ARENA_NEW(a, uint32_t, ops);
    out->compute = DT_ARENA_NEW(a, uint32_t, ops);
    out->first = DT_ARENA_NEW(a, uint32_t, lanes);
    out->at = DT_ARENA_NEW(a, uint32_t, lanes);
    out->lane = DT_ARENA_NEW(a, int32_t, members);
    if (!out->nth || !out->compute || !out->first || !out->at || !out->lane ||
        find_lanes(p, a, out) != 0)
        return dt_error_nomem(err, "expert groups");
    number_compute(p, out);
    return DT_OK;
}

int dt_program_partners_n(const struct dt_program *p, const struct dt_program_partners *g,
                          uint32_t i)
{
    const struct dt_op *op = &p->ops[i];

    if (!g->any || !exchanges(op) || g->at[op->lane + 1] == g->at[op->lane])
        return 1;
    return (int)(g->at[op->lane + 1] - g->at[op->lane]);
}

uint32_t dt_program_partner(const struct dt_program *p, const struct dt_program_partners *g,
                            uint32_t i, int k)
{
    const struct dt_op *op = &p->ops[i], *other;
    int32_t lane;
    uint32_t at;

    if (dt_program_partners_n(p, g, i) == 1)
        return i;
    lane = g->lane[g->at[op->lane] + (uint32_t)k];
    at = g->first[lane] + g->nth[i];
    if (at >= g->first[lane + 1])
        return DT_NONE;
    other = &p->ops[g->compute[at]];
    return other->kind == op->kind && other->chunk == op->chunk && other->mb == op->mb &&
                   other->part == op->part && other->parts == op->parts
               ? g->compute[at]
               : DT_NONE;
}
