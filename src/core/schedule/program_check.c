/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Proof of a program against its plan and assignment.  It takes from the compiler only what follows
 * from plan and assignment (virtual stages, transfers); order, indices and dependencies are looked
 * at as they stand. */
#include "core/schedule/program_check_impl.h"

#include <string.h>

enum dt_status dt_check_fail(struct dt_error *err, const struct dt_program *p, uint32_t i,
                             const char *what)
{
    const struct dt_op *op = &p->ops[i];
    const struct dt_lane *l = op->lane < (uint32_t)p->n_lanes ? &p->lanes[op->lane] : NULL;

    return dt_error_set(
        err, DT_ERR_INTERNAL, "program: %s/%d.%d, op %u (%s, microbatch %d): %s",
        l && l->module < p->plan->n_modules ? p->plan->module_names[l->module] : "?",
        l ? l->replica : -1, l ? l->stage : -1, l ? i - l->first : i,
        op->kind < DT_OP_KIND_N ? dt_op_kind_names[op->kind] : "?", (int)op->mb, what);
}

bool dt_check_waits(const struct dt_program *p, uint32_t i, uint32_t for_op)
{
    const struct dt_op *op = &p->ops[i];

    for (int k = 0; k < 3; k++)
        if (op->dep[k] == for_op)
            return true;
    for (uint32_t k = 0; k < op->more_n; k++)
        if (p->deps[op->more_first + k] == for_op)
            return true;
    return false;
}

/* ---- shape: lanes, indices, resources, peers ---- */

static enum dt_status check_op_shape(const struct dt_program *p, const struct dt_lane *l,
                                     uint32_t lane, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &p->ops[i];
    const struct dt_layout *y = &p->plan->modules[l->module].layout;

    if (op->kind >= DT_OP_KIND_N || op->lane != lane || op->module != l->module ||
        op->stage != l->stage || op->replica != l->replica || op->chunk >= y->vpp)
        return dt_check_fail(err, p, i, "does not belong to its lane");
    for (int k = 0; k < 3; k++)
        if (op->dep[k] != DT_NONE && op->dep[k] >= p->n_ops)
            return dt_check_fail(err, p, i, "waits for an op that does not exist");
    if (op->more_n > 0 && (uint64_t)op->more_first + op->more_n > p->n_deps)
        return dt_check_fail(err, p, i, "has its dependencies outside the list");
    for (uint32_t k = 0; k < op->more_n; k++)
        if (p->deps[op->more_first + k] >= p->n_ops)
            return dt_check_fail(err, p, i, "waits for an op that does not exist");
    return DT_OK;
}

static enum dt_status check_peer(const struct dt_program *p, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &p->ops[i], *peer;

    if (op->kind != DT_OP_SEND && op->kind != DT_OP_RECV)
        return DT_OK;
    if (op->peer >= p->n_ops)
        return dt_check_fail(err, p, i, "has no peer");
    peer = &p->ops[op->peer];
    if (peer->kind != (op->kind == DT_OP_SEND ? DT_OP_RECV : DT_OP_SEND) || peer->peer != i)
        return dt_check_fail(err, p, i, "its peer does not name it");
    if (peer->bytes != op->bytes || peer->flags != op->flags || op->bytes == 0)
        return dt_check_fail(err, p, i, "send and receive differ in size or direction");
    if (peer->lane == op->lane)
        return dt_check_fail(err, p, i, "sends to its own lane");
    return DT_OK;
}

static enum dt_status check_shape(const struct dt_program *p, struct dt_error *err)
{
    uint32_t at = 0;

    for (int l = 0; l < p->n_lanes; l++) {
        const struct dt_lane *lane = &p->lanes[l];
        uint32_t last[DT_RES_N] = {DT_NONE, DT_NONE, DT_NONE, DT_NONE};

        if (lane->first != at || lane->n > p->n_ops - at || lane->module >= p->plan->n_modules)
            return dt_error_set(err, DT_ERR_INTERNAL, "program: lane %d is out of place", l);
        at += lane->n;
        for (uint32_t i = lane->first; i < at; i++) {
            enum dt_resource r;

            DT_TRY(check_op_shape(p, lane, (uint32_t)l, i, err));
            r = dt_op_resource(p->ops[i].kind);
            if (p->ops[i].dep[0] != last[r])
                return dt_check_fail(err, p, i,
                                     "its first dependency is not the previous op of its resource");
            last[r] = i;
        }
    }
    if (at != p->n_ops)
        return dt_error_set(err, DT_ERR_INTERNAL, "program: %u ops are on no lane", p->n_ops - at);
    for (uint32_t i = 0; i < p->n_ops; i++)
        DT_TRY(check_peer(p, i, err));
    return DT_OK;
}

/* Messages from one lane to another are received in the order in which they are sent. */
static enum dt_status check_pairs(const struct dt_program *p, struct dt_error *err)
{
    uint32_t *last = dt_calloc((size_t)p->n_lanes + 1, sizeof(*last));
    enum dt_status st = last ? DT_OK : dt_error_nomem(err, "check of a program");

    for (int l = 0; l < p->n_lanes && st == DT_OK; l++) {
        const struct dt_lane *lane = &p->lanes[l];

        for (uint32_t i = lane->first; i < lane->first + lane->n && st == DT_OK; i++)
            if (p->ops[i].kind == DT_OP_SEND) {
                uint32_t to = p->ops[p->ops[i].peer].lane;

                if (last[to] > p->ops[i].peer)
                    st = dt_check_fail(err, p, i, "is received in another order than it is sent");
                last[to] = p->ops[i].peer + 1;
            }
        for (uint32_t i = lane->first; i < lane->first + lane->n; i++)
            if (p->ops[i].kind == DT_OP_SEND)
                last[p->ops[p->ops[i].peer].lane] = 0;
    }
    dt_free(last);
    return st;
}

enum dt_status dt_program_check(const struct dt_program *p, const struct dt_model *m,
                                struct dt_error *err)
{
    /* The cluster only places groups on nodes, which the check does not judge. */
    struct dt_cluster any = {.gpus_per_node = 8};
    struct dt_topo topo = {0};
    struct dt_sched s;
    enum dt_status st;

    DT_TRY(check_shape(p, err));
    DT_TRY(check_pairs(p, err));
    DT_TRY(dt_topo_build(p, err, &topo));
    st = dt_check_colocated(p, &topo, err);
    dt_topo_free(&topo);
    DT_TRY(st);
    st = dt_sched_init(&s, p->plan, m, &any, p->assignment, err);
    if (st == DT_OK)
        st = dt_check_data(p, &s, err);
    if (st == DT_OK)
        st = dt_check_sync(p, &s, err);
    dt_sched_fini(&s);
    return st;
}
