/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Offload of a guest's parameters between phases.  Between its last forward and its first backward an encoder that lies with the
 * LLM computes nothing, and the LLM, whose activations are most in between, has their memory.
 *
 *   GPU       | E  E  E | L0 L1 L2 L0' L3 L1' L2' | L3' |  E' E' E' | ...
 *   host link | offload |                         | reload |
 *   there     ----------+                         +--------------------
 *
 * Nothing writes parameters between the gather (or step) that an iteration begins with and its step, so the host's copy is made
 * while the forwards still read them: they are given back when both have ended.  What is not trained never changes; the host keeps
 * its copy for good.  (Megatron MIMO takes encoders' parameters to the host likewise, arXiv 2605.27678.) */
#include "core/model/plan.h"

static enum dt_status refuse(struct dt_error *err, const struct dt_plan *p, int m, const char *why)
{
    return dt_error_set(err, DT_ERR_INPUT, "plan, module %s: offload %s: %s", p->module_names[m],
                        dt_plan_offload_names[p->modules[m].offload], why);
}

static enum dt_status check_params(const struct dt_plan *p, const struct dt_model *m, int i,
                                   struct dt_error *err)
{
    const struct dt_plan_module *mp = &p->modules[i];

    if (m->modules[i].role != DT_ROLE_ENCODER)
        return refuse(err, p, i,
                      "parameters that nothing uses for a time are an encoder's, between its "
                      "forwards and its backwards; use optimizer or none");
    for (int e = 0; e < m->n_edges; e++)
        if (m->edges[e].dst == i)
            return refuse(err, p, i,
                          "it takes inputs of another module, which may wait for work that comes "
                          "behind its forwards; use optimizer or none");
    if (p->colocated || dt_plan_host(p, i) == i)
        return refuse(err, p, i,
                      "only a guest's parameters leave memory to others; say with whom it lies "
                      "(with: llm), or use optimizer or none");
    if (mp->layout.ep > 1)
        return refuse(err, p, i, "experts are dealt to expert groups (ep); use ep 1");
    if (mp->layout.vpp > 1)
        return refuse(err, p, i, "parameters are those of a stage of one chunk; use vpp 1");
    if (mp->zero > 2 && dt_plan_layout_copies(&mp->layout) > 1)
        return refuse(err, p, i,
                      "with zero 3 a rank has a share of the parameters and gathers them for each "
                      "use; use zero 2 or less");
    if (!mp->phases && dt_plan_microbatches(p, m->llm, i) > 1)
        return refuse(err, p, i,
                      "a replica has several microbatches, whose forwards and backwards come in "
                      "turn, so that its parameters are needed all the time; use window: all, or "
                      "phases: true");
    return DT_OK;
}

enum dt_status dt_plan_check_offload(const struct dt_plan *p, const struct dt_model *m, int module,
                                     const struct dt_cluster *c, struct dt_error *err)
{
    const struct dt_plan_module *mp = &p->modules[module];

    if (mp->offload == DT_OFFLOAD_NONE)
        return DT_OK;
    if (dt_plan_offloads_params(mp))
        DT_TRY(check_params(p, m, module, err));
    /* how long it takes is known only where the way to the host is */
    if (dt_cluster_is_cpu(c) || c->host_bytes_per_s > 0)
        return DT_OK;
    return refuse(err, p, module,
                  "the cluster does not say how fast a GPU's copies to and from the host are; "
                  "state cluster.host_bandwidth (such as 25 GB/s for PCIe 4 x16)");
}

bool dt_plan_offloads(const struct dt_plan *p, const struct dt_model *m)
{
    bool any = dt_plan_steps_on_host(p, m);

    for (int i = 0; i < p->n_modules; i++)
        any |= dt_plan_offloads_params(&p->modules[i]);
    return any;
}

bool dt_plan_hosts_offload(const struct dt_plan *p, int module)
{
    for (int i = 0; i < p->n_modules; i++)
        if (i != module && dt_plan_offloads_params(&p->modules[i]) && dt_plan_host(p, i) == module)
            return true;
    return false;
}
