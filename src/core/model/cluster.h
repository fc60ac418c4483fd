/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Clusters: nodes of GPUs, NVLink domain, NICs/rails, fabric.  Bandwidths are usable, per direction. */
#ifndef DT_CORE_MODEL_CLUSTER_H
#define DT_CORE_MODEL_CLUSTER_H

#include "base/keys.h"
#include "base/doc.h"
#include "core/model/model.h"
#include "base/status.h"

struct dt_cluster {
    char name[DT_NAME_MAX];
    char device[DT_NAME_MAX]; /* GPU name, key into the profile ("A800-SXM4-80GB") */
    int nodes, gpus_per_node;
    int cores_per_node; /* CPUs as devices: cores that the ranks of a node share; 0 = one each */
    double peak_flops;  /* dense bf16, flop/s */
    double mem_bytes;   /* HBM per GPU */
    double mem_reserve_bytes; /* CUDA context, NCCL buffers, fragmentation */
    double hbm_bytes_per_s;
    double nvlink_bytes_per_s; /* per GPU, per direction, usable */
    double nvlink_latency_s;   /* of a small message; below 0: not stated, that of measured ones */
    int nics_per_node;
    double nic_bytes_per_s;         /* per NIC, per direction, line rate */
    double nic_efficiency;          /* usable share of line rate */
    double nic_latency_s;           /* as nvlink_latency_s */
    double fabric_oversubscription; /* 1 = full bisection */
    double mtbf_gpu_hours;          /* 0 = failures not modelled */
    /* what is offloaded lies there; 0 = not stated */
    double host_mem_bytes;       /* of a node, for training */
    double host_bytes_per_s;     /* between a GPU and it, per direction, usable */
    double host_mem_bytes_per_s; /* of a node's memory to its cores, usable; shared by its GPUs */
    /* what it costs: 0 = not stated, and nothing is taken for it (pue: 1, the GPUs' own share) */
    double price_per_gpu_hour; /* in whatever currency */
    double watts_per_gpu;      /* while it trains, with its share of the node */
    double pue;                /* power of the building / power of the nodes */
    double grams_co2_per_kwh;
};
static inline int dt_cluster_gpus(const struct dt_cluster *c)
{
    return c->nodes * c->gpus_per_node;
}
/* Devices are CPUs, and so what trains there is our executor: the device's name begins with "cpu", or the cores are
 * stated. */
bool dt_cluster_is_cpu(const struct dt_cluster *c);

/* Every key of a cluster, into a struct dt_cluster, and what it has of those that may be left out. */
extern const struct dt_key dt_cluster_keys[];
extern const struct dt_cluster dt_cluster_defaults;

/* preset name, path or inline map; `nodes`/`gpus` may override a preset: {preset: a800-1296, nodes: 12}. */
enum dt_status dt_cluster_read(struct dt_node node, struct dt_error *err, struct dt_cluster *out);

#endif
