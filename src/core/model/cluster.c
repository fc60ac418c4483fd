/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading clusters: a preset or file, plus what the job changes in it. */
#include "core/model/cluster.h"

#include "core/model/shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { PATH_SIZE = 4096, PRESET_DEPTH_MAX = 8, NODES_MAX = 1 << 20, GPUS_MAX = 1 << 21 };

static const char *const keys[] = {"preset",         "name",
                                   "device",         "nodes",
                                   "gpus",           "gpus_per_node",
                                   "cores_per_node", "peak_flops",
                                   "memory",         "memory_reserve",
                                   "hbm_bandwidth",  "nvlink_bandwidth",
                                   "nvlink_latency", "nics_per_node",
                                   "nic_bandwidth",  "nic_efficiency",
                                   "nic_latency",    "oversubscription",
                                   "mtbf_gpu_hours", NULL};

static enum dt_status read_gpus(struct dt_node n, struct dt_cluster *c, struct dt_error *err)
{
    int gpus = 0;

    DT_TRY(dt_get_i32(n, "gpus", 1, GPUS_MAX, &gpus, err));
    if (gpus == 0)
        return DT_OK;
    if (dt_node_present(dt_map_get(n, "nodes")))
        return dt_node_error(dt_map_get(n, "gpus"), err, "state either nodes or gpus, not both");
    if (c->gpus_per_node > 0 && gpus % c->gpus_per_node != 0)
        return dt_node_error(dt_map_get(n, "gpus"), err,
                             "gpus: %d is no multiple of the %d GPUs of a "
                             "node; use %d or %d",
                             gpus, c->gpus_per_node,
                             gpus / c->gpus_per_node * c->gpus_per_node > 0
                                 ? gpus / c->gpus_per_node * c->gpus_per_node
                                 : c->gpus_per_node,
                             (gpus / c->gpus_per_node + 1) * c->gpus_per_node);
    if (c->gpus_per_node > 0)
        c->nodes = gpus / c->gpus_per_node;
    return DT_OK;
}

static enum dt_status read_values(struct dt_node n, struct dt_cluster *c, struct dt_error *err)
{
    DT_TRY(dt_get_string(n, "name", c->name, sizeof(c->name), err));
    DT_TRY(dt_get_string(n, "device", c->device, sizeof(c->device), err));
    DT_TRY(dt_get_i32(n, "nodes", 1, NODES_MAX, &c->nodes, err));
    DT_TRY(dt_get_i32(n, "gpus_per_node", 1, 1024, &c->gpus_per_node, err));
    DT_TRY(dt_get_i32(n, "cores_per_node", 0, 1024, &c->cores_per_node, err));
    DT_TRY(read_gpus(n, c, err));
    DT_TRY(dt_get_quantity(n, "peak_flops", "flop/s", 1e6, 1e18, &c->peak_flops, err));
    DT_TRY(dt_get_quantity(n, "memory", "bytes", 1e6, 1e15, &c->mem_bytes, err));
    DT_TRY(dt_get_quantity(n, "memory_reserve", "bytes", 0, 1e15, &c->mem_reserve_bytes, err));
    DT_TRY(dt_get_quantity(n, "hbm_bandwidth", "bytes/s", 1e6, 1e16, &c->hbm_bytes_per_s, err));
    DT_TRY(
        dt_get_quantity(n, "nvlink_bandwidth", "bytes/s", 1e3, 1e16, &c->nvlink_bytes_per_s, err));
    DT_TRY(dt_get_quantity(n, "nvlink_latency", "s", 0, 1, &c->nvlink_latency_s, err));
    DT_TRY(dt_get_i32(n, "nics_per_node", 1, 1024, &c->nics_per_node, err));
    DT_TRY(dt_get_quantity(n, "nic_bandwidth", "bytes/s", 1e3, 1e16, &c->nic_bytes_per_s, err));
    DT_TRY(dt_get_double(n, "nic_efficiency", 0.01, 1, &c->nic_efficiency, err));
    DT_TRY(dt_get_quantity(n, "nic_latency", "s", 0, 1, &c->nic_latency_s, err));
    DT_TRY(dt_get_double(n, "oversubscription", 1, 1000, &c->fabric_oversubscription, err));
    return dt_get_double(n, "mtbf_gpu_hours", 0, 1e12, &c->mtbf_gpu_hours, err);
}

static enum dt_status read_node(struct dt_node node, int depth, struct dt_cluster *c,
                                struct dt_error *err);

static enum dt_status read_preset(struct dt_node at, const char *name, int depth,
                                  struct dt_cluster *c, struct dt_error *err)
{
    struct dt_doc *doc = NULL;
    enum dt_status st;

    if (depth >= PRESET_DEPTH_MAX)
        return dt_node_error(at, err, "preset: more than %d presets inside one another",
                             PRESET_DEPTH_MAX);
    DT_TRY(dt_preset_open(at, "clusters", name, err, &doc));
    st = read_node(dt_doc_root(doc), depth + 1, c, err);
    dt_doc_free(doc);
    return st;
}

static enum dt_status read_node(struct dt_node node, int depth, struct dt_cluster *c,
                                struct dt_error *err)
{
    char name[PATH_SIZE] = "";

    if (dt_node_is_scalar(node) && !dt_node_is_null(node) && *dt_node_text(node))
        return read_preset(node, dt_node_text(node), depth, c, err);
    if (!dt_node_is_map(node))
        return dt_node_error(node, err, "cluster: expected a preset name, a path or a map");
    DT_TRY(dt_map_check(node, "cluster", keys, err));
    if (dt_node_present(dt_map_get(node, "preset"))) {
        DT_TRY(dt_get_string(node, "preset", name, sizeof(name), err));
        DT_TRY(read_preset(dt_map_get(node, "preset"), name, depth, c, err));
    }
    return read_values(node, c, err);
}

static enum dt_status check(struct dt_node node, struct dt_cluster *c, struct dt_error *err)
{
    const struct {
        const char *key;
        bool given;
        const char *example;
    } needed[] = {
        {"device", c->device[0] != '\0', "A800-SXM4-80GB"},
        {"nodes", c->nodes > 0, "162"},
        {"gpus_per_node", c->gpus_per_node > 0, "8"},
        {"peak_flops", c->peak_flops > 0, "312 TFLOP/s"},
        {"memory", c->mem_bytes > 0, "80 GB"},
        {"hbm_bandwidth", c->hbm_bytes_per_s > 0, "2.0 TB/s"},
        {"nvlink_bandwidth", c->nvlink_bytes_per_s > 0, "160 GB/s"},
        {"nics_per_node", c->nics_per_node > 0, "4"},
        {"nic_bandwidth", c->nic_bytes_per_s > 0, "200 Gb/s"},
    };
    const char *file = dt_node_is_scalar(node) ? dt_node_text(node) : NULL;
    char what[PATH_SIZE + 16]; /* the node only names the file that is wrong */

    snprintf(what, sizeof(what), "cluster%s%s", file ? " " : "", file ? file : "");
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (!needed[i].given)
            return dt_node_error(node, err, "%s: key \"%s\" is missing (such as %s)", what,
                                 needed[i].key, needed[i].example);
    if ((int64_t)c->nodes * c->gpus_per_node > GPUS_MAX)
        return dt_node_error(node, err,
                             "%s: %d nodes of %d GPUs are more than the limit of %d GPUs", what,
                             c->nodes, c->gpus_per_node, GPUS_MAX);
    if (c->mem_reserve_bytes >= c->mem_bytes)
        return dt_node_error(node, err,
                             "%s: memory_reserve: %.1f GB of %.1f GB leave nothing to train in",
                             what, c->mem_reserve_bytes / 1e9, c->mem_bytes / 1e9);
    return DT_OK;
}

bool dt_cluster_is_cpu(const struct dt_cluster *c)
{
    return c->cores_per_node > 0 || strncasecmp(c->device, "cpu", 3) == 0;
}

enum dt_status dt_cluster_read(struct dt_node node, struct dt_error *err, struct dt_cluster *out)
{
    struct dt_cluster c = {.name = "cluster", .nic_efficiency = 1, .fabric_oversubscription = 1};

    DT_TRY(read_node(node, 0, &c, err));
    DT_TRY(check(node, &c, err));
    *out = c;
    return DT_OK;
}
