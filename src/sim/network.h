/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Network: capacities of NVLink ports, node NICs and fabric, shared max-min fairly by the flows in
 * flight.
 *
 * A flow is one SEND (or one collective's inter-node traffic); it has a path of links and a cap of
 * its own. Rates change only when a flow starts or ends; bytes are conserved and no link exceeds
 * its capacity (property tests). */
#ifndef DT_SIM_NETWORK_H
#define DT_SIM_NETWORK_H

#include "core/model/cluster.h"
#include "core/schedule/program.h"

struct dt_network;
/* Builds links for the cluster: per GPU NVLink out/in, per node NIC out/in (all its NICs), one
 * fabric. */
enum dt_status dt_network_new(const struct dt_cluster *c, struct dt_error *err,
                              struct dt_network **out);
void dt_network_free(struct dt_network *n);
void dt_network_reset(struct dt_network *n);
/* Starts a flow of `bytes` from a lane to a lane at time now_ns with own rate cap; returns its id.
 * The rates of all flows that share links are recomputed.  bytes > 0 and cap > 0.  Rates are
 * recomputed once per instant, when they are next needed. Between flows of one tag value in flight
 * at once the order is by id; use distinct tags. */
uint32_t dt_network_start(struct dt_network *n, const struct dt_lane *src,
                          const struct dt_lane *dst, double bytes, double cap_bytes_per_s,
                          int64_t now_ns, uint32_t tag);
/* Earliest finish among flows in flight: time and tag; returns false if none. */
bool dt_network_next(struct dt_network *n, int64_t *finish_ns, uint32_t *flow, uint32_t *tag);
/* Ends flow at now_ns (it must have finished) and recomputes rates. */
void dt_network_end(struct dt_network *n, uint32_t flow, int64_t now_ns);
/* For tests: current rate of a flow, load and capacity of a link. */
double dt_network_rate(const struct dt_network *n, uint32_t flow);
int dt_network_links(const struct dt_network *n);
void dt_network_link_load(const struct dt_network *n, int link, double *load, double *capacity);

/* The same, if it is not later than until_ns.  Cheaper: events of one instant are taken before rates are recomputed. */
bool dt_network_due(struct dt_network *n, int64_t until_ns, int64_t *finish_ns, uint32_t *flow,
                    uint32_t *tag);

/* The tag of the flow that finishes k-th from now (0 = next) as the rates are; DT_NONE when that is not
 * known.  A hint about what memory is needed soon, at no cost: it may change. */
uint32_t dt_network_ahead(const struct dt_network *n, uint32_t k);

/* Flows in flight can be put aside, all at once, and taken up again one by one: then those whose links
 * the others do not touch finish by themselves.  Settle first. */
struct dt_network_finish { /* when a flow ends, as the rates are; ordered by all three */
    int64_t ns;
    uint32_t tag, flow;
};
void dt_network_settle(struct dt_network *n); /* rates that are due, now */
uint32_t dt_network_in_flight(const struct dt_network *n);
uint32_t dt_network_park(struct dt_network *n, struct dt_network_finish *out /* [in flight] */);
void dt_network_unpark(struct dt_network *n, const struct dt_network_finish *f);

/* ---- beyond transfers between two lanes ---- */

/* When no lane crosses a node's border, all widths are powers of two and lanes that share a GPU share
 * all of theirs (dt_network_even), then the GPUs of a lane always carry equal loads and one port
 * stands for all: a transfer crosses two links, each with 1/share of its rate.  False for a
 * transfer that crosses others nevertheless.  The two kinds of path must not be mixed in one network. */
uint32_t dt_network_gpus(const struct dt_network *n);
/* 0 when transfers between different nodes share links nevertheless (an oversubscribed fabric). */
uint32_t dt_network_gpus_per_node(const struct dt_network *n);
bool dt_network_even(const struct dt_network *n, const struct dt_lane *lanes, uint32_t n_lanes,
                     uint32_t *gpu_lane /* scratch, one per GPU of the cluster */);
bool dt_network_pair(const struct dt_network *n, const struct dt_lane *src,
                     const struct dt_lane *dst, uint32_t link[2], uint16_t share[2]);
/* The most links that a flow between two lanes of up to this width can cross. */
uint32_t dt_network_path_max(const struct dt_network *n, uint32_t lane_gpus_max);
/* Storage for `flows` flows in flight that cross `hops` links in all and `path` links at most each,
 * so that starting them does not allocate. */
enum dt_status dt_network_reserve(struct dt_network *n, size_t flows, size_t hops, size_t path,
                                  struct dt_error *err);
/* Links by number, from capacities alone (tests of the sharing rule on arbitrary graphs). */
enum dt_status dt_network_new_links(const double *capacity, int n_links, struct dt_error *err,
                                    struct dt_network **out);
/* A flow over given links: while it runs at rate r, link[i] carries weight[i] * r.  DT_NONE when
 * out of memory. */
uint32_t dt_network_start_path(struct dt_network *n, const uint32_t *link, const double *weight,
                               uint32_t n_hops, double bytes, double cap_bytes_per_s,
                               int64_t now_ns, uint32_t tag);
/* Ranks that take part in a collective: `per_lane` of each member (an index into `lanes`), one behind the other on
 * the lane's GPUs, with as many GPUs each. */
struct dt_network_ranks {
    const struct dt_lane *lanes;
    const uint32_t *members;
    uint32_t n_members, per_lane;
};
/* The ranks in rings of `of`, whose members are `apart` ranks from each other; every GPU passes `bytes` on. */
struct dt_network_ring {
    uint32_t of, apart;
    double bytes;
};
/* The inter-node traffic of a collective that makes such rings, one kind after another, and alone lasts alone_ns: one
 * flow that crosses NIC out and in of every node with one common progress rate.  Only where rings_cross.
 * DT_NONE when out of memory. */
uint32_t dt_network_start_rings(struct dt_network *n, const struct dt_network_ranks *x,
                                const struct dt_network_ring *ring, int n_rings, int64_t alone_ns,
                                int64_t now_ns, uint32_t tag);
/* Is there traffic between nodes at all? */
bool dt_network_rings_cross(struct dt_network *n, const struct dt_network_ranks *x,
                            const struct dt_network_ring *ring, int n_rings);
/* Upper bound of the hops of such a flow. */
uint32_t dt_network_ring_hops(const struct dt_network *n, const struct dt_lane *lanes,
                              const uint32_t *members, uint32_t n_members);
/* Bytes that a flow in flight has moved by now_ns. */
double dt_network_moved(const struct dt_network *n, uint32_t flow, int64_t now_ns);
/* Rate recomputations so far, and flows whose rate they looked at. */
void dt_network_stats(const struct dt_network *n, uint64_t *solves, uint64_t *flows_solved);

#endif
