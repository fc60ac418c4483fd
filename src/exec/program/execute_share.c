/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory that groups of ranks know (dt_transport.memory_share): what replicas gather, and their gradients. */
#include "exec/program/execute_impl.h"

/* The stage that stands for those here of a module's virtual stage; NULL: none is. */
static struct dt_exec_vstage *leading(const struct dt_exec_stages *stages, int m, int v)
{
    const struct dt_exec_peers *p = &stages->ranks->peers[m][v % stages->env->pp[m]];
    struct dt_exec_vstage *vs =
        stages->vs[m] && p->leader >= 0 ? dt_exec_vs(stages, m, p->leader, v) : NULL;

    return vs && vs->stage ? vs : NULL;
}

/* Parameters that are gathered where they lie. */
static void *in_place(const struct dt_exec_vstage *vs)
{
    void *rounded = dt_stage_rounded(vs->stage);

    return rounded ? rounded : vs->wire ? NULL : dt_stage_master(vs->stage);
}

bool dt_exec_sums(const struct dt_exec_stages *stages, const struct dt_exec_vstage *vs)
{
    const struct dt_exec_peers *p =
        &stages->ranks->peers[vs->module][vs->v % stages->env->pp[vs->module]];

    return p->comm && vs->replica == p->leader;
}

/* A buffer and a group that uses it. */
struct known {
    struct dt_comm *comm;
    void *p;
};
enum { KNOWN = 4 };

/* Of a virtual stage, in an order that all members have alike.  (Of experts that an expert group deals, and of a table
 * that two stages share, nothing is registered.) */
static int list(const struct dt_exec_stages *stages, int m, int v, struct known *out)
{
    const struct dt_exec_peers *p = &stages->ranks->peers[m][v % stages->env->pp[m]];
    struct dt_exec_vstage *vs = leading(stages, m, v);
    int n = 0;

    if (vs && dt_exec_gathers(stages, vs)) {
        out[n++] = (struct known){p->group, vs->wire};
        if (!vs->away) /* what leaves the device between phases comes back to another place */
            out[n++] = (struct known){p->group, in_place(vs)};
    }
    if (vs && dt_exec_sums(stages, vs)) {
        out[n++] = (struct known){dt_exec_peers_shard(stages->ranks, m, p) ? p->group : p->comm,
                                  dt_stage_grads(vs->stage)};
        out[n++] = (struct known){p->over, dt_stage_grads(vs->stage)};
    }
    return n;
}

enum dt_status dt_exec_share(const struct dt_exec_stages *stages, struct dt_error *err)
{
    struct dt_transport *t = stages->ranks->t ? stages->ranks->data : NULL;
    struct known k[KNOWN];

    for (int m = 0; t && t->memory_share && m < stages->env->o.model->n_modules; m++)
        for (int v = 0; v < stages->env->n_v[m]; v++) {
            int n = list(stages, m, v, k);

            for (int i = 0; i < n; i++)
                if (k[i].comm && k[i].p)
                    DT_TRY(t->memory_share(k[i].comm, k[i].p, err));
        }
    return DT_OK;
}

void dt_exec_unshare(const struct dt_exec_stages *stages)
{
    struct dt_transport *t = stages->ranks->t ? stages->ranks->data : NULL;
    struct known k[KNOWN];

    if (!t || !t->memory_unshare)
        return;
    dt_exec_env_sync(stages->env, NULL); /* nothing uses it any more */
    for (int m = 0; m < stages->env->o.model->n_modules; m++)
        for (int v = 0; v < stages->env->n_v[m]; v++) {
            int n = list(stages, m, v, k);

            for (int i = 0; i < n; i++)
                if (k[i].comm && k[i].p)
                    t->memory_unshare(k[i].comm, k[i].p);
        }
}
