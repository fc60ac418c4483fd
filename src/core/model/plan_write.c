/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * plan.json: written with the keys in a fixed order.  Writing what plan_json.c has read gives the same bytes. */
#include "base/json.h"
#include "core/model/plan.h"

static void put_ahead(struct dt_json *j, const struct dt_plan_module *mp)
{
    if (mp->ahead[0] == 0)
        return;
    dt_json_key(j, "ahead");
    dt_json_begin_array(j);
    for (int s = 0; s < mp->layout.pp; s++)
        dt_json_int(j, mp->ahead[s]);
    dt_json_end_array(j);
}

/* `host`: the module on whose GPUs it lies, or NULL. */
static void put_module(struct dt_json *j, const char *name, const char *host,
                       const struct dt_plan_module *mp)
{
    const struct dt_plan_layout *l = &mp->layout;

    dt_json_begin_object(j);
    dt_json_kv_string(j, "name", name);
    dt_json_kv_int(j, "tp", l->tp);
    dt_json_kv_int(j, "cp", l->cp);
    dt_json_kv_int(j, "ep", l->ep);
    dt_json_kv_int(j, "ip", l->ip);
    dt_json_kv_int(j, "pp", l->pp);
    dt_json_kv_int(j, "vpp", l->vpp);
    dt_json_kv_int(j, "dp", l->dp);
    dt_json_kv_int(j, "first_gpu", l->first_gpu);
    if (host)
        dt_json_kv_string(j, "with", host);
    if (mp->window == DT_PLAN_WINDOW_ALL)
        dt_json_kv_string(j, "window", "all");
    else if (mp->window > 0)
        dt_json_kv_int(j, "window", mp->window);
    if (mp->phases)
        dt_json_kv_bool(j, "phases", true);
    dt_json_kv_bool(j, "frozen", mp->frozen);
    dt_json_kv_string(j, "recompute", dt_block_recompute_names[mp->recompute]);
    dt_json_kv_int(j, "zero", mp->zero);
    if (mp->zero_group > 0)
        dt_json_kv_int(j, "zero_group", mp->zero_group);
    if (mp->offload != DT_OFFLOAD_NONE)
        dt_json_kv_string(j, "offload", dt_plan_offload_names[mp->offload]);
    dt_json_key(j, "split");
    dt_json_begin_array(j);
    for (int v = 0; v <= l->pp * l->vpp; v++)
        dt_json_int(j, mp->split[v]);
    dt_json_end_array(j);
    put_ahead(j, mp);
    dt_json_end_object(j);
}

static void put_policy(struct dt_json *j, const struct dt_plan_policy *y)
{
    dt_json_begin_object(j);
    dt_json_kv_int(j, "global_batch", y->global_batch);
    dt_json_kv_int(j, "microbatch", y->microbatch);
    dt_json_kv_int(j, "seq_len", y->seq_len);
    dt_json_kv_string(j, "schedule", dt_pipe_schedule_names[y->schedule]);
    if (y->assignment != DT_ASSIGNMENT_SLOTS)
        dt_json_kv_string(j, "assignment", dt_plan_assignment_names[y->assignment]);
    if (y->warmup != DT_WARMUP_1F1B)
        dt_json_kv_string(j, "warmup", dt_plan_warmup_names[y->warmup]);
    if (y->cp_comm != DT_CP_COMM_GATHER)
        dt_json_kv_string(j, "cp_comm", dt_plan_cp_comm_names[y->cp_comm]);
    dt_json_kv_bool(j, "intra_reorder", y->intra_reorder);
    dt_json_kv_bool(j, "inter_reorder", y->inter_reorder);
    if (y->batch_reorder) {
        dt_json_kv_bool(j, "batch_reorder", true);
        dt_json_kv_double(j, "reorder_budget_s", y->reorder_budget_s);
    }
    dt_json_kv_bool(j, "stepccl", y->stepccl);
    if (y->stepccl_chunks)
        dt_json_kv_int(j, "stepccl_chunks", y->stepccl_chunks);
    dt_json_kv_bool(j, "overlap_grad", y->overlap_grad);
    dt_json_kv_bool(j, "overlap_param", y->overlap_param);
    if (y->half_grads)
        dt_json_kv_bool(j, "half_grads", true);
    if (y->bf16_grads)
        dt_json_kv_bool(j, "bf16_grads", true);
    if (y->fp32)
        dt_json_kv_bool(j, "fp32", true);
    if (y->exact_vectors)
        dt_json_kv_bool(j, "exact_vectors", true);
    dt_json_end_object(j);
}

static void put_predicted(struct dt_json *j, const struct dt_plan_prediction *q)
{
    dt_json_begin_object(j);
    dt_json_kv_double(j, "warmup_s", q->warmup_s);
    dt_json_kv_double(j, "steady_s", q->steady_s);
    dt_json_kv_double(j, "total_s", q->total_s);
    dt_json_kv_double(j, "staged_s", q->staged_s);
    dt_json_kv_double(j, "lower_bound_s", q->lower_bound_s);
    dt_json_kv_double(j, "timeline_s", q->timeline_s);
    dt_json_kv_double(j, "mem_bytes_max", q->mem_bytes_max);
    dt_json_end_object(j);
}

enum dt_status dt_plan_to_json(const struct dt_plan *p, struct dt_error *err, char **out)
{
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "format", DT_PLAN_FORMAT);
    dt_json_kv_int(&j, "version", DT_PLAN_VERSION);
    dt_json_kv_string(&j, "model", p->model);
    dt_json_kv_string(&j, "cluster", p->cluster);
    dt_json_kv_string(&j, "strategy", dt_plan_strategy_names[p->strategy]);
    if (p->colocated)
        dt_json_kv_bool(&j, "colocated", true);
    dt_json_key(&j, "policy");
    put_policy(&j, &p->policy);
    dt_json_key(&j, "modules");
    dt_json_begin_array(&j);
    for (int m = 0; m < p->n_modules; m++)
        put_module(&j, p->module_names[m],
                   p->modules[m].with ? p->module_names[p->modules[m].with - 1] : NULL,
                   &p->modules[m]);
    dt_json_end_array(&j);
    dt_json_key(&j, "predicted");
    put_predicted(&j, &p->predicted);
    dt_json_end_object(&j);
    return dt_json_finish(&j, err, out);
}
