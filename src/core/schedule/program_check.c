/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Proof of a program against its plan and assignment. */
#include "core/cost/memory.h"
#include "core/schedule/program_check_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum dt_status dt_check_fail(const struct dt_check *c, uint32_t i, const char *fmt, ...)
{
    const struct dt_program *p = c->p;
    const struct dt_op *op = &p->ops[i];
    const struct dt_lane *l = op->lane < (uint32_t)p->n_lanes ? &p->lanes[op->lane] : NULL;
    char what[256], of[32] = "";
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    if (op->mb != DT_NONE)
        snprintf(of, sizeof(of), " of microbatch %u", op->mb);
    return dt_error_set(
        c->err, DT_ERR_INTERNAL, "program: %s/%d.%d, op %u (%s%s): %s",
        l && l->module < p->plan->n_modules ? p->plan->module_names[l->module] : "?",
        l ? l->replica : -1, l ? l->stage : -1, l && i >= l->first ? i - l->first : i,
        op->kind < DT_OP_KIND_N ? dt_op_kind_names[op->kind] : "?", of, what);
}

/* ---- shape: lanes, indices, resources ---- */

/* Beside messages and collectives processes tell each other only of compute ops; of a host link's, lanes of the same GPUs
 * know. */
static bool may_wait(const struct dt_program *p, uint32_t lane, uint32_t i, uint32_t d)
{
    enum dt_op_resource a, b;

    if (p->ops[d].kind >= DT_OP_KIND_N || p->ops[d].lane >= (uint32_t)p->n_lanes)
        return false;
    a = dt_op_resource(p->ops[i].kind);
    b = dt_op_resource(p->ops[d].kind);
    if (a == DT_RES_COMPUTE && b == DT_RES_COMPUTE)
        return true;
    return (a == DT_RES_COMPUTE || a == DT_RES_HOST) && (b == DT_RES_COMPUTE || b == DT_RES_HOST) &&
           dt_check_meet(&p->lanes[lane], &p->lanes[p->ops[d].lane]);
}

static enum dt_status check_op(const struct dt_check *c, const struct dt_lane *l, uint32_t lane,
                               uint32_t i)
{
    const struct dt_program *p = c->p;
    const struct dt_op *op = &p->ops[i];

    if (op->kind >= DT_OP_KIND_N)
        return dt_check_fail(c, i, "is of kind %u, which does not exist", op->kind);
    if (op->lane != lane || op->module != l->module || op->stage != l->stage ||
        op->replica != l->replica || op->chunk >= p->plan->modules[l->module].layout.vpp)
        return dt_check_fail(c, i, "says that it is of another lane or chunk than its place");
    if (op->more_n > 0 && (uint64_t)op->more_first + op->more_n > p->n_deps)
        return dt_check_fail(c, i, "has its dependencies outside the list");
    for (uint32_t k = 0; k < 3u + op->more_n; k++) {
        uint32_t d = k < 3 ? op->dep[k] : p->deps[op->more_first + k - 3];

        if (d == DT_NONE)
            continue;
        if (d >= p->n_ops)
            return dt_check_fail(c, i, "waits for op %u; there are %u", d, p->n_ops);
        if (p->ops[d].lane != lane && !may_wait(p, lane, i, d))
            return dt_check_fail(c, i, "waits for op %u of another lane; compute may for compute",
                                 d);
    }
    if (dt_op_resource(op->kind) == DT_RES_COLL && op->peer >= p->n_groups)
        return dt_check_fail(c, i, "is of group %u; there are %u", op->peer, p->n_groups);
    return DT_OK;
}

/* Every op waits for the one before it on its resource. */
static enum dt_status check_chain(const struct dt_check *c, const struct dt_lane *l)
{
    uint32_t last[DT_RES_N] = {DT_NONE, DT_NONE, DT_NONE, DT_NONE, DT_NONE};

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        enum dt_op_resource r = dt_op_resource(c->p->ops[i].kind);

        if (c->p->ops[i].dep[0] != last[r])
            return dt_check_fail(c, i,
                                 "its first dependency is not the op before it on its "
                                 "resource");
        last[r] = i;
    }
    return DT_OK;
}

/* Lanes follow each other by module, replica and stage, their ops likewise. */
static enum dt_status check_lanes(const struct dt_check *c)
{
    const struct dt_program *p = c->p;
    int lane = 0;
    uint32_t at = 0;

    for (int i = 0; i < p->plan->n_modules; i++) {
        const struct dt_plan_layout *y = &p->plan->modules[i].layout;

        for (int k = 0; k < y->dp * y->pp; k++, lane++) {
            const struct dt_lane *l = &p->lanes[lane];

            if (lane >= p->n_lanes || l->first != at || l->n > p->n_ops - at || l->module != i ||
                l->replica != k / y->pp || l->stage != k % y->pp)
                return dt_error_set(c->err, DT_ERR_INTERNAL,
                                    "program: lane %d is not %s/%d.%d with the ops from %u on",
                                    lane, p->plan->module_names[i], k / y->pp, k % y->pp, at);
            if (l->gpus != y->tp * y->cp * y->ip ||
                l->first_gpu != (uint32_t)dt_plan_lane_gpu(p->plan, i, l->replica, l->stage))
                return dt_error_set(c->err, DT_ERR_INTERNAL,
                                    "program: %s/%d.%d is not on the plan's GPUs",
                                    p->plan->module_names[i], l->replica, l->stage);
            at += l->n;
        }
    }
    if (lane != p->n_lanes || at != p->n_ops)
        return dt_error_set(c->err, DT_ERR_INTERNAL,
                            "program: %d lanes with %u ops; the plan has %d lanes, and %u ops are "
                            "on them",
                            p->n_lanes, p->n_ops, lane, at);
    return DT_OK;
}

static enum dt_status check_shape(const struct dt_check *c)
{
    const struct dt_program *p = c->p;

    DT_TRY(check_lanes(c));
    for (int l = 0; l < p->n_lanes; l++) {
        for (uint32_t i = p->lanes[l].first; i < p->lanes[l].first + p->lanes[l].n; i++)
            DT_TRY(check_op(c, &p->lanes[l], (uint32_t)l, i));
        DT_TRY(check_chain(c, &p->lanes[l]));
    }
    return DT_OK;
}

static enum dt_status check_bounds(const struct dt_check *c)
{
    for (int i = 0; i < c->p->n_lanes; i++) {
        const struct dt_lane *l = &c->p->lanes[i];
        int bound = dt_memory_in_flight(c->p->plan, c->model, l->module, l->stage,
                                        dt_check_count(c, l->module, l->replica));

        if (l->in_flight_max != (uint32_t)bound)
            return dt_error_set(c->err, DT_ERR_INTERNAL,
                                "program: %s/%d.%d may hold %u microbatches; memory is for %d",
                                c->p->plan->module_names[l->module], l->replica, l->stage,
                                l->in_flight_max, bound);
    }
    return DT_OK;
}

/* What a GPU has come to, with an encoder in phases on it (plan_phases.c). */
enum phase { FORWARDS, OTHERS, BACKWARDS };

static enum dt_status check_phase(struct dt_check *c, uint32_t i, unsigned char *at)
{
    const struct dt_op *op = &c->p->ops[i];
    bool own = dt_plan_in_phases(&c->p->plan->modules[op->module]);
    enum phase now = !own ? OTHERS : op->kind == DT_OP_FORWARD ? FORWARDS : BACKWARDS;

    if (!dt_check_is_work(op) && op->kind != DT_OP_WEIGHT_GRAD)
        return DT_OK;
    if (now < *at)
        return dt_check_fail(c, i, "is behind work that its GPU has in a later phase");
    *at = (unsigned char)now;
    return DT_OK;
}

static bool has_phases(const struct dt_plan *p)
{
    bool any = false;

    for (int m = 0; m < p->n_modules; m++)
        any |= dt_plan_in_phases(&p->modules[m]);
    return any;
}

/* Lanes that share a GPU take turns on it: each of its compute ops waits for the one before. */
static enum dt_status check_gpus(struct dt_check *c)
{
    const struct dt_program *p = c->p;
    uint32_t n_gpus = 0, *last;
    unsigned char *phase;
    bool phases = has_phases(p->plan);

    for (int l = 0; l < p->n_lanes; l++)
        if (p->lanes[l].first_gpu + p->lanes[l].gpus > n_gpus)
            n_gpus = p->lanes[l].first_gpu + p->lanes[l].gpus;
    last = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)n_gpus + 1);
    phase = DT_ARENA_NEW(&c->arena, unsigned char, (size_t)n_gpus + 1);
    if (!last || !phase)
        return dt_error_nomem(c->err, "check of a program");
    memset(last, 0xff, (size_t)n_gpus * sizeof(*last));
    for (uint32_t k = 0; k < p->n_ops; k++) {
        uint32_t i = c->order[k];
        const struct dt_lane *l = &p->lanes[p->ops[i].lane];

        if (dt_op_resource(p->ops[i].kind) != DT_RES_COMPUTE)
            continue;
        for (uint32_t gpu = l->first_gpu; gpu < l->first_gpu + l->gpus; gpu++) {
            if (last[gpu] != DT_NONE && !dt_check_after(c, i, last[gpu]))
                return dt_check_fail(c, i, "may overlap op %u of lane %u on GPU %u",
                                     last[gpu] - p->lanes[p->ops[last[gpu]].lane].first,
                                     p->ops[last[gpu]].lane, gpu);
            last[gpu] = i;
            if (phases)
                DT_TRY(check_phase(c, i, &phase[gpu]));
        }
    }
    return DT_OK;
}

static enum dt_status check_all(struct dt_check *c)
{
    DT_TRY(check_shape(c));
    DT_TRY(dt_check_expect(c));
    DT_TRY(check_bounds(c));
    DT_TRY(dt_check_groups(c));
    DT_TRY(dt_check_pairs(c));
    DT_TRY(dt_check_order(c));
    DT_TRY(check_gpus(c));
    DT_TRY(dt_check_compute(c));
    DT_TRY(dt_check_data(c));
    DT_TRY(dt_check_sync(c));
    DT_TRY(dt_check_host(c));
    return dt_check_held(c);
}

enum dt_status dt_program_check(const struct dt_program *p, const struct dt_model *m,
                                struct dt_error *err)
{
    struct dt_check c = {.p = p, .model = m, .err = err};
    enum dt_status st;

    if (p->plan->n_modules != m->n_modules || p->assignment->n_modules != m->n_modules)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "program: plan, model and assignment differ in their modules");
    st = check_all(&c);
    dt_arena_free(&c.arena);
    return st;
}
