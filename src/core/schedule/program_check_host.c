/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Check of a program: parameters that are offloaded.
 *
 * They are on the device until the OFFLOAD and the last forward of their lane have ended, and from the beginning of the RELOAD on.
 * So every forward comes before the RELOAD and every backward and the step behind it; and while they are on the device the host's
 * lanes on their GPUs hold no more than what memory was charged for (dt_memory_beside_guests).
 *
 * A GPU's link carries one copy at a time in a direction, of whatever lane, or a step on the host, which copies both ways. */
#include "core/cost/memory.h"
#include "core/schedule/program_check_impl.h"

struct guest {
    uint32_t lane, offload, reload, last_f;
};

static bool is_guest(const struct dt_check *c, const struct dt_lane *l)
{
    return dt_plan_offloads_params(&c->p->plan->modules[l->module]);
}

static enum dt_status lacks(const struct dt_check *c, const struct dt_lane *l, const char *what)
{
    return dt_error_set(c->err, DT_ERR_INTERNAL, "program: %s/%d.%d lacks a %s of its parameters",
                        c->p->plan->module_names[l->module], l->replica, l->stage, what);
}

static enum dt_status check_bytes(const struct dt_check *c, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i];
    const struct dt_plan_policy *y = &c->p->plan->policy;
    const struct dt_check_vstage *v = &c->m[op->module].v[dt_check_v(c, op)];

    if (op->mb != DT_NONE || op->part != 0 || op->parts != 1 || op->peer != DT_NONE)
        return dt_check_fail(c, i, "is of one microbatch, of a part or of a peer, not of a lane");
    if (!dt_check_bytes(c, op->module, v->first, v->n, op->kind == DT_OP_RELOAD, y->fp32 ? 4 : 2,
                        !y->fp32 && y->exact_vectors ? 2 : 0, op->bytes))
        return dt_check_fail(c, i, "is of %llu bytes, which is not what the lane's parameters take",
                             (unsigned long long)op->bytes);
    return DT_OK;
}

/* Finds both ops of a lane: one each, or none. */
static enum dt_status find(const struct dt_check *c, const struct dt_lane *l, struct guest *g)
{
    *g = (struct guest){(uint32_t)(l - c->p->lanes), DT_NONE, DT_NONE, DT_NONE};
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &c->p->ops[i];
        uint32_t *is = op->kind == DT_OP_OFFLOAD ? &g->offload : &g->reload;

        if (op->kind == DT_OP_FORWARD)
            g->last_f = i;
        if (op->kind != DT_OP_OFFLOAD && op->kind != DT_OP_RELOAD)
            continue;
        if (!is_guest(c, l))
            return dt_check_fail(c, i, "is of a module whose parameters stay where they are");
        if (*is != DT_NONE)
            return dt_check_fail(c, i, "is the second of its lane");
        *is = i;
        DT_TRY(check_bytes(c, i));
    }
    return DT_OK;
}

/* No op uses parameters that are away. */
static enum dt_status check_uses(struct dt_check *c, const struct dt_lane *l, const struct guest *g)
{
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &c->p->ops[i];

        if (op->kind == DT_OP_PARAM_GATHER && !dt_check_after(c, g->offload, i))
            return dt_check_fail(c, g->offload, "does not wait for op %u, which gathers",
                                 i - l->first);
        if (op->kind == DT_OP_FORWARD && !dt_check_after(c, g->reload, i))
            return dt_check_fail(c, g->reload, "does not wait for op %u, a forward", i - l->first);
        if ((op->kind == DT_OP_BACKWARD || op->kind == DT_OP_WEIGHT_GRAD ||
             op->kind == DT_OP_STEP) &&
            !dt_check_after(c, i, g->reload))
            return dt_check_fail(c, i, "does not wait for op %u, which brings its parameters back",
                                 g->reload - l->first);
    }
    if (!dt_check_after(c, g->reload, g->offload))
        return dt_check_fail(c, g->reload, "does not wait for op %u, the offload",
                             g->offload - l->first);
    return DT_OK;
}

/* A host's lane: what makes it hold more than beside the guest's parameters comes behind their leaving and before their return. */
static enum dt_status check_room(struct dt_check *c, const struct dt_lane *host,
                                 const struct guest *g)
{
    int64_t n = dt_check_count(c, host->module, host->replica), held = 0;
    int64_t most = dt_memory_beside_guests(c->p->plan, c->model, host->module, host->stage, n);
    uint32_t full = DT_NONE, drained = DT_NONE;

    for (uint32_t i = host->first; i < host->first + host->n; i++) {
        const struct dt_op *op = &c->p->ops[i];
        const struct dt_check_vstage *v = &c->m[op->module].v[dt_check_v(c, op)];

        if (!dt_check_is_work(op) || !v->backward)
            continue;
        if (op->kind == DT_OP_FORWARD && op->part == 0 && ++held > most && full == DT_NONE)
            full = i;
        if (op->kind == (v->split ? DT_OP_WEIGHT_GRAD : DT_OP_BACKWARD) &&
            op->part + 1 == op->parts && held-- == most + 1)
            drained = i;
    }
    if (full == DT_NONE)
        return DT_OK;
    if (!dt_check_after(c, full, g->offload) ||
        (g->last_f != DT_NONE && !dt_check_after(c, full, g->last_f)))
        return dt_check_fail(c, full,
                             "holds more than memory was charged for beside parameters of %s, "
                             "which have not left yet",
                             c->p->plan->module_names[c->p->ops[g->offload].module]);
    if (!dt_check_after(c, g->reload, drained))
        return dt_check_fail(c, g->reload, "takes memory that %s/%d.%d still has",
                             c->p->plan->module_names[host->module], host->replica, host->stage);
    return DT_OK;
}

static enum dt_status check_guest(struct dt_check *c, const struct dt_lane *l,
                                  const struct guest *g)
{
    int host = dt_plan_host(c->p->plan, l->module);

    DT_TRY(check_uses(c, l, g));
    for (int o = 0; o < c->p->n_lanes; o++)
        if (c->p->lanes[o].module == host && dt_check_meet(&c->p->lanes[o], l))
            DT_TRY(check_room(c, &c->p->lanes[o], g));
    return DT_OK;
}

/* ---- the link ---- */

static enum dt_status check_turn(struct dt_check *c, uint32_t a, uint32_t b)
{
    if (dt_check_after(c, a, b) || dt_check_after(c, b, a))
        return DT_OK;
    return dt_check_fail(c, a, "has its GPUs' host link at the same time as op %u", b);
}

static enum dt_status check_steps(struct dt_check *c, const struct guest *g)
{
    for (int l = 0; l < c->p->n_lanes; l++) {
        const struct dt_lane *x = &c->p->lanes[l];

        if (!dt_plan_offloads_optimizer(&c->p->plan->modules[x->module]) ||
            !dt_check_meet(x, &c->p->lanes[g->lane]))
            continue;
        for (uint32_t i = x->first; i < x->first + x->n; i++)
            if (c->p->ops[i].kind == DT_OP_STEP) {
                DT_TRY(check_turn(c, i, g->offload));
                DT_TRY(check_turn(c, i, g->reload));
            }
    }
    return DT_OK;
}

static enum dt_status check_link(struct dt_check *c, const struct guest *guest, int n)
{
    for (int a = 0; a < n; a++) {
        for (int b = 0; b < a; b++) {
            if (!dt_check_meet(&c->p->lanes[guest[a].lane], &c->p->lanes[guest[b].lane]))
                continue;
            DT_TRY(check_turn(c, guest[a].offload, guest[b].offload));
            DT_TRY(check_turn(c, guest[a].reload, guest[b].reload));
        }
        DT_TRY(check_steps(c, &guest[a]));
    }
    return DT_OK;
}

static enum dt_status check_guests(struct dt_check *c, struct guest *guest)
{
    int n = 0;

    for (int l = 0; l < c->p->n_lanes; l++) {
        struct guest g;

        DT_TRY(find(c, &c->p->lanes[l], &g));
        if (!is_guest(c, &c->p->lanes[l]))
            continue;
        if (g.offload == DT_NONE || g.reload == DT_NONE)
            return lacks(c, &c->p->lanes[l], g.offload == DT_NONE ? "way to the host" : "way back");
        DT_TRY(check_guest(c, &c->p->lanes[l], &g));
        guest[n++] = g;
    }
    return check_link(c, guest, n);
}

enum dt_status dt_check_host(struct dt_check *c)
{
    struct guest *guest = dt_malloc(((size_t)c->p->n_lanes + 1) * sizeof(*guest));
    enum dt_status st;

    if (!guest)
        return dt_error_nomem(c->err, "the check of a program");
    st = check_guests(c, guest);
    dt_free(guest);
    return st;
}
