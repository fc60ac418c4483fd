/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/sanity.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Rounding of times to whole nanoseconds can lift a share above 1 by this much. */
#define ROUNDING 1e-6

/* A CPU's peak is an assumption about one core (traces/clusters/local.yaml), and blocks that were
 * measured as a whole may have had many, which do up to this much more. */
#define CPU_PEAKS 1000

/* ---- the report ---- */

/* The module whose GPUs do most of what their peak allows while they compute. */
static int fastest(const struct dt_report *r, const struct dt_plan *p, const struct dt_cluster *c,
                   double *share)
{
    int worst = 0;

    *share = 0;
    for (int m = 0; m < p->n_modules; m++) {
        double busy_s = r->timeline.utilisation[m] * r->iteration_s;
        double s = r->model_flops[m] /
                   (busy_s * dt_plan_layout_gpus(&p->modules[m].layout) * c->peak_flops);

        if (s > *share) {
            *share = s;
            worst = m;
        }
    }
    return worst;
}

static enum dt_status too_fast(const struct dt_report *r, const struct dt_plan *p,
                               const struct dt_cluster *c, struct dt_error *err)
{
    double share;
    int m = fastest(r, p, c, &share);

    return dt_error_set(
        err, DT_ERR_RANGE,
        "the simulation gives MFU %.4g %%, HFU %.4g %%: more than the devices' peak of %.3g FLOP/s "
        "allows; %s comes to %.4g %% of it while it computes. Its profile is of a faster device "
        "than %s, peak_flops is too low, or simulate.jitter is too large",
        100 * r->mfu, 100 * r->hfu, c->peak_flops, p->module_names[m], 100 * share, c->device);
}

enum dt_status dt_report_check(const struct dt_report *r, const struct dt_plan *p,
                               const struct dt_cluster *c, struct dt_error *err)
{
    const struct {
        const char *name;
        double value, most;
    } figures[] = {
        {"iteration time", r->iteration_s, INFINITY},
        {"10th percentile of the iteration time", r->iteration_s_p10, INFINITY},
        {"90th percentile of the iteration time", r->iteration_s_p90, INFINITY},
        {"mean iteration time", r->iteration_s_mean, INFINITY},
        {"10th percentile of the mean iteration time", r->iteration_s_mean_p10, INFINITY},
        {"90th percentile of the mean iteration time", r->iteration_s_mean_p90, INFINITY},
        {"tokens per second", r->tokens_per_s, INFINITY},
        {"samples per second", r->samples_per_s, INFINITY},
        {"time of exposed communication", r->exposed_comm_s, INFINITY},
        {"hardware FLOPs", r->hardware_flops, INFINITY},
        {"share of bubbles", r->bubble_fraction, 1 + ROUNDING},
        {"MFU", r->mfu, INFINITY},
    };
    double most = dt_cluster_is_cpu(c) ? CPU_PEAKS : 1 + ROUNDING;

    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (!(figures[i].value >= -ROUNDING && figures[i].value <= figures[i].most) ||
            isinf(figures[i].value))
            return dt_error_set(err, DT_ERR_RANGE,
                                "the simulation gives no sensible result: %s %.4g", figures[i].name,
                                figures[i].value);
    for (int m = 0; m < p->n_modules; m++)
        if (!(r->memory.of_module[m] >= 0) || isinf(r->memory.of_module[m]))
            return dt_error_set(err, DT_ERR_RANGE,
                                "the simulation gives no sensible result: memory of %s, %.4g bytes",
                                p->module_names[m], r->memory.of_module[m]);
    return r->mfu > most || r->hfu > most ? too_fast(r, p, c, err) : DT_OK;
}

/* ---- memory ---- */

enum dt_status dt_report_check_memory(const struct dt_report *r, const struct dt_cluster *c,
                                      struct dt_error *err)
{
    bool cpu = dt_cluster_is_cpu(c);
    double unit = cpu ? 1048576.0 : 1073741824.0, limit = dt_memory_limit(c);
    const char *name = cpu ? "MiB" : "GiB", *device = cpu ? "process" : "GPU";
    char others[64] = "";

    if (r->unfit == 0)
        return DT_OK;
    if (r->unfit > 1)
        snprintf(others, sizeof others, "; %d iterations do not fit", r->unfit);
    if (r->memory.fullest <= limit)
        return dt_error_set(err, DT_ERR_INFEASIBLE,
                            "iteration %d needs more of a node's host memory than the cluster has, "
                            "at most %.2f GiB of %.2f%s",
                            r->unfit_first, r->memory.host.node_bytes / 1073741824.0,
                            c->host_mem_bytes / 1073741824.0, others);
    return dt_error_set(err, DT_ERR_INFEASIBLE,
                        "iteration %d needs %.2f %s of a %s, %.2f more than it has%s",
                        r->memory_iteration, r->memory.fullest / unit, name, device,
                        (r->memory.fullest - limit) / unit, others);
}

/* ---- what may be wrong ---- */

struct suspect {
    const char *map, *key, *unit;
    double value, least, most; /* of what is known, with some room */
};

enum dt_status dt_report_suspect(const struct dt_job *j, enum dt_status st, struct dt_error *err)
{
    const struct dt_cluster *c = &j->cluster;
    const struct suspect all[] = {
        {"cluster", "peak_flops", " FLOP/s", c->peak_flops, 1e8, 1e17},
        {"cluster", "hbm_bandwidth", " bytes/s", c->hbm_bytes_per_s, 1e8, 1e15},
        {"cluster", "nvlink_bandwidth", " bytes/s", c->nvlink_bytes_per_s, 1e7, 1e14},
        {"cluster", "nic_bandwidth", " bytes/s", c->nic_bytes_per_s, 1e6, 1e13},
        {"cluster", "nvlink_latency", " s", fmax(c->nvlink_latency_s, 0), 0, 1e-3},
        {"cluster", "nic_latency", " s", fmax(c->nic_latency_s, 0), 0, 1e-2},
        {"cluster", "nic_efficiency", "", c->nic_efficiency, 0.1, 1},
        {"cluster", "oversubscription", "", c->fabric_oversubscription, 1, 32},
        {"train", "seq_len", " tokens", j->policy.seq_len, 1, 1 << 17},
        {"train", "microbatch", " samples", j->policy.microbatch, 1, 256},
        {"train", "global_batch", " samples", (double)j->policy.global_batch, 1, 1 << 16},
        {"train", "dispatch", " s", 1e-9 * j->cost_opt.dispatch_ns, 0, 1e-3},
        {"simulate", "jitter", "", j->sim.jitter, 0, 0.5},
    };
    struct dt_node map, first = {NULL, NULL};
    char message[sizeof err->message];
    int n = 0;

    if (st != DT_ERR_RANGE || !err)
        return st;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct suspect *s = &all[i];
        size_t used = strlen(err->message);

        if (s->value >= s->least && s->value <= s->most)
            continue;
        if (n++ == 0) {
            map = dt_map_get(dt_doc_root(j->doc), s->map);
            first = dt_node_present(dt_map_get(map, s->key)) ? dt_map_get(map, s->key) : map;
        }
        snprintf(err->message + used, sizeof err->message - used, "%s%s is %.4g%s",
                 n == 1 ? "; " : ", ", s->key, s->value, s->unit);
    }
    if (n == 0)
        return st;
    memcpy(message, err->message, sizeof message);
    return dt_node_error(first, err, "%s", message);
}
