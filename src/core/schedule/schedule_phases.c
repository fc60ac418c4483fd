/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/schedule/schedule_phases.h"

#include "base/mem.h"

#include <string.h>

/* Of a GPU: forwards of encoders with phases, and all work of others.  (What a step takes waits for both anyway.) */
struct counts {
    uint32_t forwards, others;
};
struct dt_sched_phases {
    const struct dt_program *p;
    const struct dt_plan *plan;
    uint32_t n_gpus;
    struct counts *all, *left; /* [n_gpus] that there are, and that have not begun */
};

int dt_sched_phases_new(const struct dt_sched *s, const struct dt_program *p, uint32_t n_gpus,
                        struct dt_arena *a, struct dt_sched_phases **out)
{
    struct dt_sched_phases *x;
    bool any = false;

    *out = NULL;
    for (int m = 0; m < s->n_modules; m++)
        any |= dt_plan_in_phases(&s->plan->modules[m]);
    if (!any)
        return 0;
    x = DT_ARENA_NEW(a, struct dt_sched_phases, 1);
    if (!x)
        return -1;
    x->p = p;
    x->plan = s->plan;
    x->n_gpus = n_gpus;
    x->all = DT_ARENA_NEW(a, struct counts, (size_t)n_gpus + 1);
    x->left = DT_ARENA_NEW(a, struct counts, (size_t)n_gpus + 1);
    if (!x->all || !x->left)
        return -1;
    *out = x;
    return 0;
}

static bool has_phases(const struct dt_sched_phases *x, const struct dt_op *op)
{
    return dt_plan_in_phases(&x->plan->modules[op->module]);
}

/* Which of a GPU's numbers an op counts in, or NULL. */
static uint32_t *number_of(const struct dt_sched_phases *x, struct counts *c,
                           const struct dt_op *op)
{
    if (op->kind != DT_OP_FORWARD && op->kind != DT_OP_BACKWARD && op->kind != DT_OP_WEIGHT_GRAD)
        return NULL;
    if (!has_phases(x, op))
        return &c->others;
    return op->kind == DT_OP_FORWARD ? &c->forwards : NULL;
}

void dt_sched_phases_add(struct dt_sched_phases *x, uint32_t i, uint32_t first, uint32_t n)
{
    for (uint32_t k = first; k < first + n; k++) {
        uint32_t *number = number_of(x, &x->all[k], &x->p->ops[i]);

        if (number)
            ++*number;
    }
}

void dt_sched_phases_rewind(struct dt_sched_phases *x)
{
    memcpy(x->left, x->all, (size_t)x->n_gpus * sizeof(*x->left));
}

void dt_sched_phases_begin(struct dt_sched_phases *x, uint32_t i, uint32_t first, uint32_t n)
{
    for (uint32_t k = first; k < first + n; k++) {
        uint32_t *number = number_of(x, &x->left[k], &x->p->ops[i]);

        if (number)
            --*number;
    }
}

bool dt_sched_phases_allow(const struct dt_sched_phases *x, uint32_t i, uint32_t first, uint32_t n)
{
    const struct dt_op *op = &x->p->ops[i];
    bool own = has_phases(x, op);

    if (own && op->kind == DT_OP_FORWARD)
        return true;
    for (uint32_t k = first; k < first + n; k++)
        if (own ? x->left[k].others > 0 : x->left[k].forwards > 0)
            return false;
    return true;
}
