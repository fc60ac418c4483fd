/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading clusters: a preset or file, plus what the job changes in it. */
#include "core/model/cluster.h"

#include "core/model/cluster_gpu.h"
#include "core/model/shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { PATH_SIZE = 4096, PRESET_DEPTH_MAX = 8, NODES_MAX = 1 << 20, GPUS_MAX = 1 << 21 };

static enum dt_status read_gpus(struct dt_node n, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    struct dt_cluster *c = into;
    int gpus = 0;

    DT_TRY(dt_get_i32(n, key->name, (int)key->min, (int)key->max, &gpus, err));
    if (dt_node_present(dt_map_get(n, "nodes")))
        return dt_node_error(dt_map_get(n, "gpus"), err, "state either nodes or gpus, not both");
    if (c->gpus_per_node > 0 && gpus % c->gpus_per_node != 0) {
        int below = gpus / c->gpus_per_node * c->gpus_per_node;
        char less[24] = "";

        if (below > 0)
            snprintf(less, sizeof(less), "%d or ", below);
        return dt_node_error(dt_map_get(n, "gpus"), err,
                             "gpus: %d is not a multiple of the %d GPUs of a node; use %s%d", gpus,
                             c->gpus_per_node, less, below + c->gpus_per_node);
    }
    if (c->gpus_per_node > 0)
        c->nodes = gpus / c->gpus_per_node;
    return DT_OK;
}

/* Another device than the preset's brings the values of its data sheet; what the map states beside it goes before
 * them. */
static enum dt_status read_device(struct dt_node n, const struct dt_key *key, void *into,
                                  struct dt_error *err)
{
    struct dt_cluster *c = into;
    char name[DT_NAME_MAX] = "";
    const struct dt_cluster_gpu *d;

    DT_TRY(dt_get_string(n, key->name, name, sizeof(name), err));
    d = dt_cluster_gpu_find(name);
    if (d)
        snprintf(name, sizeof(name), "%s", d->name);
    if (d && strcmp(name, c->device) != 0) {
        c->peak_flops = d->peak_flops;
        c->mem_bytes = d->mem_bytes;
        c->hbm_bytes_per_s = d->hbm_bytes_per_s;
        c->nvlink_bytes_per_s = d->link_bytes_per_s;
        c->host_bytes_per_s = d->host_bytes_per_s;
        c->nvlink_latency_s = -1;
    }
    memcpy(c->device, name, sizeof(c->device));
    return DT_OK;
}

const struct dt_key dt_cluster_keys[] = {
    {.name = "preset",
     .type = DT_KEY_OWN,
     .form = "preset or path",
     .file = DT_KEY_PRESET,
     .fallback = "none",
     .help = "a shipped cluster or a file; the other keys change it"},
    {.name = "name",
     .type = DT_KEY_STRING,
     DT_KEY_INTO(struct dt_cluster, name),
     .help = "what it is called"},
    {.name = "device",
     .type = DT_KEY_STRING,
     DT_KEY_INTO(struct dt_cluster, device),
     .read = read_device,
     .needed = "A800-SXM4-80GB",
     .help = "the GPU's name, as the profile has it; a known one brings its data sheet"},
    {.name = "nodes",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_cluster, nodes),
     .min = 1,
     .max = NODES_MAX,
     .needed = "162",
     .help = "nodes"},
    {.name = "gpus_per_node",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_cluster, gpus_per_node),
     .min = 1,
     .max = 1024,
     .needed = "8",
     .help = "GPUs of a node"},
    {.name = "cores_per_node",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_cluster, cores_per_node),
     .min = 0,
     .max = 1024,
     .help = "CPUs as devices: cores that the ranks of a node share"},
    {.name = "gpus",
     .type = DT_KEY_OWN,
     .min = 1,
     .max = GPUS_MAX,
     .form = "integer",
     .read = read_gpus,
     .fallback = "nodes x gpus_per_node",
     .help = "GPUs in all, instead of nodes"},
    {.name = "peak_flops",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, peak_flops),
     .min = 1e6,
     .max = 1e18,
     .unit = "flop/s",
     .needed = "312 TFLOP/s",
     .help = "of a GPU, dense bf16"},
    {.name = "memory",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, mem_bytes),
     .min = 1e6,
     .max = 1e15,
     .unit = "bytes",
     .needed = "80 GB",
     .help = "of a GPU"},
    {.name = "memory_reserve",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, mem_reserve_bytes),
     .min = 0,
     .max = 1e15,
     .unit = "bytes",
     .help = "of it not for training: context, NCCL, fragmentation"},
    {.name = "hbm_bandwidth",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, hbm_bytes_per_s),
     .min = 1e6,
     .max = 1e16,
     .unit = "bytes/s",
     .needed = "2.0 TB/s",
     .help = "of a GPU's memory"},
    {.name = "nvlink_bandwidth",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, nvlink_bytes_per_s),
     .min = 1e3,
     .max = 1e16,
     .unit = "bytes/s",
     .needed = "160 GB/s",
     .help = "of a GPU, per direction, usable"},
    {.name = "nvlink_latency",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, nvlink_latency_s),
     .min = 0,
     .max = 1,
     .unit = "s",
     .fallback = "that of the profile's rows",
     .help = "of a small message inside a node"},
    {.name = "nics_per_node",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_cluster, nics_per_node),
     .min = 1,
     .max = 1024,
     .needed = "4",
     .help = "NICs of a node"},
    {.name = "nic_bandwidth",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, nic_bytes_per_s),
     .min = 1e3,
     .max = 1e16,
     .unit = "bytes/s",
     .needed = "200 Gb/s",
     .help = "of a NIC, per direction, line rate"},
    {.name = "nic_efficiency",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_cluster, nic_efficiency),
     .min = 0.01,
     .max = 1,
     .help = "usable share of the line rate"},
    {.name = "nic_latency",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, nic_latency_s),
     .min = 0,
     .max = 1,
     .unit = "s",
     .fallback = "that of the profile's rows",
     .help = "of a small message between nodes"},
    {.name = "oversubscription",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_cluster, fabric_oversubscription),
     .min = 1,
     .max = 1000,
     .help = "of the fabric; 1: full bisection"},
    {.name = "host_memory",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, host_mem_bytes),
     .min = 1e6,
     .max = 1e16,
     .unit = "bytes",
     .fallback = "not known",
     .help = "of a node's CPUs, for what is offloaded from its GPUs"},
    {.name = "host_bandwidth",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, host_bytes_per_s),
     .min = 1e3,
     .max = 1e16,
     .unit = "bytes/s",
     .fallback = "of a known device, of its data sheet",
     .help = "between a GPU and its node's memory, per direction, usable"},
    {.name = "host_memory_bandwidth",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_cluster, host_mem_bytes_per_s),
     .min = 1e6,
     .max = 1e16,
     .unit = "bytes/s",
     .help = "between a node's cores and its memory, usable; its GPUs share it"},
    {.name = "mtbf_gpu_hours",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_cluster, mtbf_gpu_hours),
     .min = 0,
     .max = 1e12,
     .help = "GPU hours from a failure to the next; 0: none"},
    {.name = "price_per_gpu_hour",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_cluster, price_per_gpu_hour),
     .min = 0,
     .max = 1e9,
     .fallback = "none",
     .help = "what a GPU costs an hour, used or not; in any currency"},
    {.name = "watts_per_gpu",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_cluster, watts_per_gpu),
     .min = 0,
     .max = 1e6,
     .fallback = "none",
     .help = "power in watts of a GPU and its share of the node while it trains"},
    {.name = "pue",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_cluster, pue),
     .min = 1,
     .max = 100,
     .fallback = "none",
     .help = "power of the whole building / power of the nodes"},
    {.name = "grams_co2_per_kwh",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_cluster, grams_co2_per_kwh),
     .min = 0,
     .max = 1e5,
     .fallback = "none",
     .help = "carbon dioxide in grams emitted for a kilowatt hour"},
    {.name = NULL},
};
/* assumed: half the 409.6 GB/s of two sockets of 8 channels of DDR4-3200 */
#define HOST_MEM_BYTES_PER_S 204.8e9
const struct dt_cluster dt_cluster_defaults = {.name = "cluster",
                                               .nvlink_latency_s = -1,
                                               .nic_efficiency = 1,
                                               .nic_latency_s = -1,
                                               .fabric_oversubscription = 1,
                                               .host_mem_bytes_per_s = HOST_MEM_BYTES_PER_S};

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
    if (dt_node_present(dt_map_get(node, "preset"))) {
        DT_TRY(dt_keys_check(node, "cluster", dt_cluster_keys, err));
        DT_TRY(dt_get_string(node, "preset", name, sizeof(name), err));
        DT_TRY(read_preset(dt_map_get(node, "preset"), name, depth, c, err));
    }
    return dt_keys_read(node, "cluster", dt_cluster_keys, c, err);
}

static enum dt_status check(struct dt_node node, struct dt_cluster *c, struct dt_error *err)
{
    const struct dt_key *missing = dt_keys_missing(dt_cluster_keys, c);
    const char *file = dt_node_is_scalar(node) ? dt_node_text(node) : NULL;
    char what[PATH_SIZE + 16]; /* the node only names the file that is wrong */

    snprintf(what, sizeof(what), "cluster%s%s", file ? " " : "", file ? file : "");
    if (missing)
        return dt_node_error(node, err, "%s: key \"%s\" is missing (such as %s)", what,
                             missing->name, missing->needed);
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
    bool may_be =
        c->device[0] == 'c' || c->device[0] == 'C'; /* asked for every stage of a search */

    return c->cores_per_node > 0 || (may_be && strncasecmp(c->device, "cpu", 3) == 0);
}

enum dt_status dt_cluster_read(struct dt_node node, struct dt_error *err, struct dt_cluster *out)
{
    struct dt_cluster c = dt_cluster_defaults;
    const struct dt_cluster_gpu *d;

    DT_TRY(read_node(node, 0, &c, err));
    DT_TRY(check(node, &c, err));
    d = dt_cluster_gpu_find(c.device);
    if (c.host_bytes_per_s == 0 && d)
        c.host_bytes_per_s = d->host_bytes_per_s;
    *out = c;
    return DT_OK;
}
