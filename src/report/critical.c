/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The critical path of a timeline: from the op that ends last, back through whatever each one
 * waited for. */
#include "report/explain.h"

struct walk {
    const struct dt_program *p;
    const struct dt_timeline *t;
    uint32_t last;   /* the op that ended last of those seen */
    int64_t last_ns; /* when */
};

static void look(struct walk *w, uint32_t op)
{
    if (op != DT_NONE && (w->last == DT_NONE || w->t->end_ns[op] > w->last_ns)) {
        w->last = op;
        w->last_ns = w->t->end_ns[op];
    }
}

static void look_before(struct walk *w, const struct dt_op *op)
{
    for (int k = 0; k < 3; k++)
        look(w, op->dep[k]);
    for (uint32_t k = 0; k < op->more_n; k++)
        look(w, w->p->deps[op->more_first + k]);
}

static bool is_group(const struct dt_op *op)
{
    return op->kind == DT_OP_GRAD_SYNC || op->kind == DT_OP_GRAD_NORM ||
           op->kind == DT_OP_PARAM_GATHER;
}

/* What op i waited for, or DT_NONE. */
static uint32_t before(struct walk *w, uint32_t i)
{
    const struct dt_op *op = &w->p->ops[i];

    w->last = DT_NONE;
    if (is_group(op)) { /* all members begin when the last one is ready */
        const struct dt_group *g = &w->p->groups[op->peer];

        for (uint32_t k = 0; k < g->n; k++)
            look_before(w, &w->p->ops[w->p->group_ops[g->first + k]]);
    } else {
        look_before(w, op);
        if (op->kind == DT_OP_RECV) /* ends with its SEND */
            look(w, op->peer);
    }
    return w->last;
}

void dt_explain_critical_path(const struct dt_program *p, const struct dt_timeline *t,
                              dt_explain_critical_fn *fn, void *ctx)
{
    struct walk w = {.p = p, .t = t, .last = DT_NONE};
    uint32_t op;
    int64_t now;

    for (uint32_t i = 0; i < p->n_ops; i++)
        look(&w, i);
    if (w.last == DT_NONE)
        return;
    op = w.last;
    now = w.last_ns;
    while (op != DT_NONE && now > 0) {
        uint32_t prev = before(&w, op);
        int64_t begin = t->begin_ns[op], ready = prev == DT_NONE ? 0 : w.last_ns;

        if (ready > now) /* a RECV and its SEND end together; nothing ends later than what waits */
            ready = now;
        if (p->ops[op].kind == DT_OP_RECV)
            begin = ready;
        if (begin > now)
            begin = now;
        if (begin < ready) /* it began before what it is said to have waited for ended */
            begin = ready;
        if (now > begin)
            fn(ctx, op, now - begin, false);
        if (begin > ready)
            fn(ctx, op, begin - ready, true);
        now = ready;
        op = prev;
    }
}
