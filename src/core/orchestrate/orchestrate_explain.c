/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Why layouts were rejected, per constraint with counts. */
#include "core/orchestrate/orchestrate_internal.h"

#include <stdarg.h>
#include <stdio.h>

struct text {
    char *buf;
    size_t size, n;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    if (t->n > 0 && t->n + 2 < t->size)
        t->n += (size_t)snprintf(t->buf + t->n, t->size - t->n, "; ");
    va_start(ap, fmt);
    n = vsnprintf(t->buf + t->n, t->size - t->n, fmt, ap);
    va_end(ap);
    if (n > 0)
        t->n = t->n + (size_t)n < t->size ? t->n + (size_t)n : t->size - 1;
}

void dt_orch_rejects_text(const struct dt_orch_table *t, char *out, size_t size)
{
    const struct dt_orch_rejects *r = &t->rejects;
    struct text x = {out, size, 0};

    out[0] = '\0';
    if (r->memory > 0) {
        double over_mib = r->memory_least_over_bytes / (1024.0 * 1024);
        bool little = over_mib < 100; /* 0.00 GiB would say nothing */
        add(&x, "memory: %lld refusals, the closest over by %.*f %s: %s (%.1f GiB per %s)",
            (long long)r->memory, little ? 1 : 2, little ? over_mib : over_mib / 1024,
            little ? "MiB" : "GiB", r->memory_least,
            dt_memory_limit(t->in->cluster) / (1024.0 * 1024 * 1024),
            dt_cluster_is_cpu(t->in->cluster) ? "process" : "GPU");
    }
    if (r->gpus > 0)
        add(&x,
            "gpus: %lld (schedule, microbatch, TP, DP) choices need more than %d GPUs for one lane "
            "of every module or "
            "for the parameters alone (the least of them %lld)",
            (long long)r->gpus, t->gpus, (long long)r->gpus_least);
    if (r->heads > 0)
        add(&x, "tp: %lld (module, TP) choices do not divide the attention heads",
            (long long)r->heads);
    if (r->nodes > 0)
        add(&x, "nodes: %lld (module, TP) choices do not divide the %d GPUs of a node",
            (long long)r->nodes, t->in->cluster->gpus_per_node);
    if (r->assigned > 0)
        add(&x, "assigned: %lld plans fit the mean microbatch but not the largest one assigned",
            (long long)r->assigned);
    if (r->hosts_floor_bytes > 0)
        add(&x, "hosts: every plan offloads at least %.1f GiB of a node (%.1f GiB)",
            r->hosts_floor_bytes / (1024.0 * 1024 * 1024),
            t->in->cluster->host_mem_bytes / (1024.0 * 1024 * 1024));
    if (r->hosts > 0)
        add(&x, "hosts: %lld plans offload more than fits, at least %.1f GiB of a node (%.1f GiB)",
            (long long)r->hosts, r->hosts_least_bytes / (1024.0 * 1024 * 1024),
            t->in->cluster->host_mem_bytes / (1024.0 * 1024 * 1024));
}

enum dt_status dt_orch_infeasible(const struct dt_orch_table *t, struct dt_error *err)
{
    char why[2048];

    dt_orch_rejects_text(t, why, sizeof(why));
    return dt_error_set(err, DT_ERR_INFEASIBLE,
                        "no plan fits model %s on %d GPUs of cluster %s: %s", t->in->model->name,
                        t->gpus, t->in->cluster->name, why[0] ? why : "no TP degree is allowed");
}
