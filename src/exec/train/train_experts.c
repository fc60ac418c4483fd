/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_experts.h"

void dt_train_experts_add(struct dt_train_summary *s, const struct dt_exec_result *r)
{
    s->expert_forwards += r->expert_forwards;
    s->balance += r->balance * r->expert_forwards;
    for (int i = 0; i < DT_LOAD_N; i++)
        s->busiest[i] += r->busiest[i] * r->expert_forwards;
}

void dt_train_experts_end(struct dt_train_summary *s)
{
    double n = s->expert_forwards > 0 ? s->expert_forwards : 1;

    s->balance /= n;
    for (int i = 0; i < DT_LOAD_N; i++)
        s->busiest[i] /= n;
}

void dt_train_experts_json(struct dt_json *j, double balance, const double busiest[DT_LOAD_N])
{
    static const char *const keys[DT_LOAD_N] = {"busiest_expert", "busiest_rank_ep2",
                                                "busiest_rank_ep4", "busiest_rank_ep8"};

    dt_json_begin_object(j);
    dt_json_kv_double(j, "balance", balance);
    for (int i = 0; i < DT_LOAD_N; i++)
        if (busiest[i] > 0)
            dt_json_kv_double(j, keys[i], busiest[i]);
    dt_json_end_object(j);
}
