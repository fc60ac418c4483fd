/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which links a transfer between two lanes, or rings over many, cross.
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

/* Of `gpus` GPUs from `first` on those on that node. */
static uint32_t gpus_on(const struct dt_network *n, uint32_t first, uint32_t gpus, uint32_t node)
{
    uint32_t per = (uint32_t)n->cluster.gpus_per_node;
    uint32_t a = first > node * per ? first : node * per;
    uint32_t b = first + gpus < (node + 1) * per ? first + gpus : (node + 1) * per;

    return b - a;
}

/* One ring: which nodes it is on (n->ring_node), and with how many GPUs of a rank at most (n->ring_gpus, zero elsewhere):
 * GPU k of every rank forms a ring of its own, which leaves and enters a node once, however many ranks are there. */
static uint32_t visit_ring(struct dt_network *n, const struct dt_network_ranks *x,
                           const struct dt_network_ring *r, uint32_t q)
{
    uint32_t rank = q / r->apart * r->of * r->apart + q % r->apart, nodes = 0;

    for (uint32_t k = 0; k < r->of; k++, rank += r->apart) {
        const struct dt_lane *l = &x->lanes[x->members[rank / x->per_lane]];
        uint32_t gpus = l->gpus / x->per_lane, first = l->first_gpu + rank % x->per_lane * gpus;
        uint32_t last = node_of(n, first + gpus - 1);

        for (uint32_t node = node_of(n, first); node <= last; node++) {
            uint32_t g = gpus_on(n, first, gpus, node);

            if (n->ring_gpus[node] == 0)
                n->ring_node[nodes++] = node;
            n->ring_gpus[node] = g > n->ring_gpus[node] ? g : n->ring_gpus[node];
        }
    }
    return nodes;
}

static uint32_t rings_of(const struct dt_network_ranks *x, const struct dt_network_ring *r)
{
    return r->of > 1 && r->bytes > 0 ? x->n_members * x->per_lane / r->of : 0;
}

bool dt_network_rings_cross(struct dt_network *n, const struct dt_network_ranks *x,
                            const struct dt_network_ring *ring, int n_rings)
{
    bool cross = false;

    for (int k = 0; k < n_rings; k++)
        for (uint32_t q = 0; q < rings_of(x, &ring[k]) && !cross; q++) {
            uint32_t on = visit_ring(n, x, &ring[k], q);

            for (uint32_t i = 0; i < on; i++)
                n->ring_gpus[n->ring_node[i]] = 0;
            cross = on > 1;
        }
    return cross;
}

/* Out-hops of all rings, each with the bytes that leave its node. */
static uint32_t bytes_of_nodes(struct dt_network *n, const struct dt_network_ranks *x,
                               const struct dt_network_ring *ring, int n_rings)
{
    uint32_t nodes = 0;

    for (int k = 0; k < n_rings; k++)
        for (uint32_t q = 0; q < rings_of(x, &ring[k]); q++) {
            uint32_t on = visit_ring(n, x, &ring[k], q);

            for (uint32_t i = 0; i < on; i++) {
                uint32_t node = n->ring_node[i];
                double bytes = n->ring_gpus[node] * ring[k].bytes;

                n->ring_gpus[node] = 0;
                if (on < 2)
                    continue;
                if (n->node_mark[node] == 0) {
                    n->scratch_link[nodes] = n->nic_out + node;
                    n->scratch_weight[nodes] = 0;
                    n->node_mark[node] = ++nodes;
                }
                n->scratch_weight[n->node_mark[node] - 1] += bytes;
            }
        }
    return nodes;
}

uint32_t dt_network_start_rings(struct dt_network *n, const struct dt_network_ranks *x,
                                const struct dt_network_ring *ring, int n_rings, int64_t alone_ns,
                                int64_t now_ns, uint32_t tag)
{
    uint32_t nodes, hops;
    double most = 0, sum = 0;

    if (reserve_scratch(n, dt_network_ring_hops(n, x->lanes, x->members, x->n_members)))
        return DT_NONE;
    nodes = bytes_of_nodes(n, x, ring, n_rings);
    for (uint32_t i = 0; i < nodes; i++)
        most = n->scratch_weight[i] > most ? n->scratch_weight[i] : most;
    for (uint32_t i = 0; i < nodes; i++) {
        uint32_t node = n->scratch_link[i] - n->nic_out;
        n->node_mark[node] = 0;
        n->scratch_weight[i] /= most;
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
    return dt_network_start_path(n, n->scratch_link, n->scratch_weight, hops, most,
                                 most / ((double)alone_ns * 1e-9), now_ns, tag);
}
