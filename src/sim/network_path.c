/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which links a transfer between two lanes, or a ring over many, crosses.
 *
 *   same node:   NVLink port out of each source GPU -> NVLink port in of each destination GPU
 *   other node:  NIC out -> (fabric, when oversubscribed) -> NIC in; NICs hang off PCIe, so that
 *                NVLink is not crossed
 */
#include "sim/network_internal.h"

#include "base/mem.h"

static uint32_t node_of(const struct dt_network *n, uint32_t gpu)
{
    return gpu / (uint32_t)n->cluster.gpus_per_node;
}

static int reserve_scratch(struct dt_network *n, size_t path)
{
    return dt_grow((void **)&n->scratch_link, &n->scratch_cap, path, sizeof *n->scratch_link) ||
           dt_grow((void **)&n->scratch_weight, &n->scratch_weight_cap, path,
                   sizeof *n->scratch_weight);
}

/* Adds weight on a link; the last few hops are looked at first because pairs come in GPU order. */
static uint32_t add_hop(struct dt_network *n, uint32_t n_hops, uint32_t link, double weight)
{
    for (uint32_t i = n_hops; i-- > 0;) {
        if (n->scratch_link[i] == link) {
            n->scratch_weight[i] += weight;
            return n_hops;
        }
    }
    n->scratch_link[n_hops] = link;
    n->scratch_weight[n_hops] = weight;
    return n_hops + 1;
}

/* The general case: max(widths) GPU pairs, each with an equal part of the bytes. */
static uint32_t pair_path(struct dt_network *n, const struct dt_lane *src,
                          const struct dt_lane *dst)
{
    uint32_t pairs = src->gpus > dst->gpus ? src->gpus : dst->gpus, hops = 0;

    for (uint32_t j = 0; j < pairs; j++) {
        uint32_t a = src->first_gpu + j * src->gpus / pairs;
        uint32_t b = dst->first_gpu + j * dst->gpus / pairs;
        if (a == b)
            continue; /* colocated: the data is already there */
        if (node_of(n, a) == node_of(n, b)) {
            hops = add_hop(n, hops, n->port_out + a, 1.0 / pairs);
            hops = add_hop(n, hops, n->port_in + b, 1.0 / pairs);
            continue;
        }
        hops = add_hop(n, hops, n->nic_out + node_of(n, a), 1.0 / pairs);
        hops = add_hop(n, hops, n->nic_in + node_of(n, b), 1.0 / pairs);
        if (n->fabric_binds)
            hops = add_hop(n, hops, n->fabric, 1.0 / pairs);
    }
    return hops;
}

uint32_t dt_network_path_max(const struct dt_network *n, uint32_t lane_gpus_max)
{
    (void)n;
    return 4 * lane_gpus_max + 1; /* a port or NIC out and in per GPU, and the fabric */
}

uint32_t dt_network_start(struct dt_network *n, const struct dt_lane *src,
                          const struct dt_lane *dst, double bytes, double cap_bytes_per_s,
                          int64_t now_ns, uint32_t tag)
{
    uint32_t sn = node_of(n, src->first_gpu), dn = node_of(n, dst->first_gpu);

    if (sn != dn && node_of(n, src->first_gpu + src->gpus - 1) == sn &&
        node_of(n, dst->first_gpu + dst->gpus - 1) == dn) { /* almost every transfer */
        const uint32_t link[3] = {n->nic_out + sn, n->nic_in + dn, n->fabric};
        static const double one[3] = {1, 1, 1};
        return dt_network_start_path(n, link, one, n->fabric_binds ? 3 : 2, bytes, cap_bytes_per_s,
                                     now_ns, tag);
    }
    uint32_t wide = src->gpus > dst->gpus ? src->gpus : dst->gpus;
    if (reserve_scratch(n, dt_network_path_max(n, wide)))
        return DT_NONE;
    uint32_t hops = pair_path(n, src, dst);
    return dt_network_start_path(n, n->scratch_link, n->scratch_weight, hops, bytes,
                                 cap_bytes_per_s, now_ns, tag);
}

uint32_t dt_network_gpus(const struct dt_network *n)
{
    return n->port_in - n->port_out;
}

uint32_t dt_network_gpus_per_node(const struct dt_network *n)
{
    return n->has_cluster && !n->fabric_binds ? (uint32_t)n->cluster.gpus_per_node : 0;
}

bool dt_network_even(const struct dt_network *n, const struct dt_lane *lanes, uint32_t n_lanes,
                     uint32_t *gpu_lane)
{
    uint32_t gpus = n->port_in - n->port_out;

    for (uint32_t i = 0; i < gpus; i++)
        gpu_lane[i] = DT_NONE;
    for (uint32_t i = 0; i < n_lanes; i++) {
        const struct dt_lane *l = &lanes[i];
        if (l->gpus == 0 || (l->gpus & (l->gpus - 1)) != 0 || l->first_gpu + l->gpus > gpus ||
            node_of(n, l->first_gpu) != node_of(n, l->first_gpu + l->gpus - 1))
            return false;
        for (uint32_t g = l->first_gpu; g < l->first_gpu + l->gpus; g++) {
            if (gpu_lane[g] == DT_NONE)
                gpu_lane[g] = i;
            const struct dt_lane *other = &lanes[gpu_lane[g]];
            if (other->first_gpu != l->first_gpu || other->gpus != l->gpus)
                return false;
        }
    }
    return true;
}

bool dt_network_pair(const struct dt_network *n, const struct dt_lane *src,
                     const struct dt_lane *dst, uint32_t link[2], uint16_t share[2])
{
    uint32_t sn = node_of(n, src->first_gpu), dn = node_of(n, dst->first_gpu);

    if (sn != dn) {
        link[0] = n->nic_out + sn;
        link[1] = n->nic_in + dn;
        share[0] = share[1] = 1;
        return !n->fabric_binds;
    }
    /* max(widths) pairs with equal parts of the bytes; every GPU is in as many as the others. */
    link[0] = n->port_out + src->first_gpu;
    link[1] = n->port_in + dst->first_gpu;
    share[0] = src->gpus;
    share[1] = dst->gpus;
    return src->first_gpu != dst->first_gpu;
}

bool dt_network_ring_crosses(const struct dt_network *n, const struct dt_lane *lanes,
                             const uint32_t *members, uint32_t n_members)
{
    uint32_t home = n_members > 0 ? node_of(n, lanes[members[0]].first_gpu) : 0;

    for (uint32_t i = 0; i < n_members; i++) {
        const struct dt_lane *l = &lanes[members[i]];
        if (node_of(n, l->first_gpu) != home || node_of(n, l->first_gpu + l->gpus - 1) != home)
            return true;
    }
    return false;
}

uint32_t dt_network_ring_hops(const struct dt_network *n, const struct dt_lane *lanes,
                              const uint32_t *members, uint32_t n_members)
{
    uint32_t hops = 1;

    for (uint32_t i = 0; i < n_members; i++) {
        const struct dt_lane *l = &lanes[members[i]];
        hops += 2 * (node_of(n, l->first_gpu + l->gpus - 1) - node_of(n, l->first_gpu) + 1);
    }
    return hops;
}

/* GPUs of the lane on that node. */
static uint32_t gpus_on(const struct dt_network *n, const struct dt_lane *l, uint32_t node)
{
    uint32_t per = (uint32_t)n->cluster.gpus_per_node;
    uint32_t a = l->first_gpu > node * per ? l->first_gpu : node * per;
    uint32_t b =
        l->first_gpu + l->gpus < (node + 1) * per ? l->first_gpu + l->gpus : (node + 1) * per;
    return b - a;
}

uint32_t dt_network_start_ring(struct dt_network *n, const struct dt_lane *lanes,
                               const uint32_t *members, uint32_t n_members, double ring_bytes,
                               int64_t alone_ns, int64_t now_ns, uint32_t tag)
{
    uint32_t nodes = 0, hops;
    double widest = 0, sum = 0;

    if (reserve_scratch(n, dt_network_ring_hops(n, lanes, members, n_members)))
        return DT_NONE;
    /* GPU k of every lane forms ring k; the rings of a lane that has g GPUs on a node leave and
     * enter that node g times, however many lanes of the group share the node.  Out-hops first: [0,
     * nodes), weight = g. */
    for (uint32_t i = 0; i < n_members; i++) {
        const struct dt_lane *l = &lanes[members[i]];
        uint32_t last = node_of(n, l->first_gpu + l->gpus - 1);
        for (uint32_t node = node_of(n, l->first_gpu); node <= last; node++) {
            double g = gpus_on(n, l, node);
            if (n->node_mark[node] == 0) {
                n->scratch_link[nodes] = n->nic_out + node;
                n->scratch_weight[nodes] = 0;
                n->node_mark[node] = ++nodes;
            }
            double *w = &n->scratch_weight[n->node_mark[node] - 1];
            *w = g > *w ? g : *w;
            widest = g > widest ? g : widest;
        }
    }
    for (uint32_t i = 0; i < nodes; i++) {
        uint32_t node = n->scratch_link[i] - n->nic_out;
        n->node_mark[node] = 0;
        n->scratch_weight[i] /= widest;
        sum += n->scratch_weight[i];
        n->scratch_link[nodes + i] = n->nic_in + node;
        n->scratch_weight[nodes + i] = n->scratch_weight[i];
    }
    hops = 2 * nodes;
    if (n->fabric_binds) {
        n->scratch_link[hops] = n->fabric;
        n->scratch_weight[hops++] = sum;
    }
    /* Rates of flows are compared with one another, so the unit is bytes through the busiest node's
     * NICs. */
    double bytes = ring_bytes * widest;
    return dt_network_start_path(n, n->scratch_link, n->scratch_weight, hops, bytes,
                                 bytes / ((double)alone_ns * 1e-9), now_ns, tag);
}
