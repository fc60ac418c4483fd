/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Programs as JSON: the lanes and their ops, as disttrain-json(5) documents them. */
#include "core/schedule/program.h"

/* An op of any lane: [lane, its place on the lane]. */
static void json_ref(struct dt_json *j, const struct dt_program *p, uint32_t op)
{
    uint32_t lane = op < p->n_ops ? p->ops[op].lane : DT_NONE;

    if (lane >= (uint32_t)p->n_lanes) {
        dt_json_null(j);
        return;
    }
    dt_json_begin_array(j);
    dt_json_int(j, lane);
    dt_json_int(j, op - p->lanes[lane].first);
    dt_json_end_array(j);
}

static void json_peer(struct dt_json *j, const struct dt_program *p, const struct dt_op *op)
{
    bool transfer = op->kind == DT_OP_SEND || op->kind == DT_OP_RECV;

    dt_json_key(j, "peer");
    if (transfer)
        json_ref(j, p, op->peer);
    else
        dt_json_null(j);
    dt_json_key(j, "group");
    if (!transfer && op->peer < p->n_groups)
        dt_json_int(j, op->peer);
    else
        dt_json_null(j);
}

static void json_deps(struct dt_json *j, const struct dt_program *p, const struct dt_op *op)
{
    dt_json_key(j, "deps");
    dt_json_begin_array(j);
    for (int d = 0; d < 3; d++)
        if (op->dep[d] != DT_NONE)
            json_ref(j, p, op->dep[d]);
    for (uint32_t d = 0; d < op->more_n; d++)
        json_ref(j, p, p->deps[op->more_first + d]);
    dt_json_end_array(j);
}

static void json_op(struct dt_json *j, const struct dt_program *p, const struct dt_op *op)
{
    dt_json_begin_object(j);
    dt_json_kv_string(j, "op", op->kind < DT_OP_KIND_N ? dt_op_kind_names[op->kind] : NULL);
    dt_json_key(j, "microbatch");
    if (op->mb == DT_NONE)
        dt_json_null(j);
    else
        dt_json_int(j, op->mb);
    dt_json_kv_int(j, "chunk", op->chunk);
    dt_json_kv_int(j, "part", op->part);
    dt_json_kv_int(j, "parts", op->parts);
    dt_json_kv_bool(j, "grad", op->flags & DT_OPF_GRAD);
    dt_json_kv_bool(j, "boundary", op->flags & DT_OPF_BOUNDARY);
    dt_json_kv_bool(j, "tied", op->flags & DT_OPF_TIED);
    dt_json_kv_int(j, "bytes", (int64_t)op->bytes);
    json_peer(j, p, op);
    json_deps(j, p, op);
    dt_json_end_object(j);
}

static void json_lane(struct dt_json *j, const struct dt_program *p, int lane)
{
    const struct dt_lane *l = &p->lanes[lane];

    dt_json_begin_object(j);
    dt_json_kv_int(j, "lane", lane);
    dt_json_kv_string(j, "module", p->plan->module_names[l->module]);
    dt_json_kv_int(j, "replica", l->replica);
    dt_json_kv_int(j, "stage", l->stage);
    dt_json_kv_int(j, "first_gpu", l->first_gpu);
    dt_json_kv_int(j, "gpus", l->gpus);
    dt_json_key(j, "ops");
    dt_json_begin_array(j);
    for (uint32_t i = l->first; i < l->first + l->n; i++)
        json_op(j, p, &p->ops[i]);
    dt_json_end_array(j);
    dt_json_end_object(j);
}

enum dt_status dt_program_json(const struct dt_program *p, int lane, struct dt_json *j,
                               struct dt_error *err)
{
    if (lane < -1 || lane >= p->n_lanes)
        return dt_error_set(err, DT_ERR_USAGE, "lane %d: the program has lanes 0 to %d", lane,
                            p->n_lanes - 1);
    dt_json_key(j, "lanes");
    dt_json_begin_array(j);
    for (int l = lane < 0 ? 0 : lane; l < (lane < 0 ? p->n_lanes : lane + 1); l++)
        json_lane(j, p, l);
    dt_json_end_array(j);
    dt_json_key(j, "groups");
    dt_json_begin_array(j);
    for (uint32_t g = 0; g < p->n_groups; g++)
        dt_json_int(j, p->groups[g].n);
    dt_json_end_array(j);
    return DT_OK;
}
