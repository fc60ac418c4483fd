/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Network: capacities of NVLink ports, node NICs and fabric, shared max-min fairly by the flows in flight.
 *
 * A flow is one SEND (or one collective's inter-node traffic); it has a path of links and a cap of its own.
 * Rates change only when a flow starts or ends; bytes are conserved and no link exceeds its capacity (property tests). */
#ifndef DT_SIM_NETWORK_H
#define DT_SIM_NETWORK_H

#include "core/cluster.h"
#include "core/program.h"

struct dt_network;
/* Builds links for the cluster: per GPU NVLink out/in, per node NIC out/in (all its NICs), one fabric. */
enum dt_status dt_network_new(const struct dt_cluster *c, struct dt_error *err,
                              struct dt_network **out);
void dt_network_free(struct dt_network *n);
void dt_network_reset(struct dt_network *n);
/* Starts a flow of `bytes` from a lane to a lane at time now_ns with own rate cap; returns its id.  The rates of all flows that share
 * links are recomputed.  */
uint32_t dt_network_start(struct dt_network *n, const struct dt_lane *src, const struct dt_lane *dst,
                          double bytes, double cap_bytes_per_s, int64_t now_ns, uint32_t tag);
/* Earliest finish among flows in flight: time and tag; returns false if none. */
bool dt_network_next(struct dt_network *n, int64_t *finish_ns, uint32_t *flow, uint32_t *tag);
/* Ends flow at now_ns (it must have finished) and recomputes rates. */
void dt_network_end(struct dt_network *n, uint32_t flow, int64_t now_ns);
/* For tests: current rate of a flow, load and capacity of a link. */
double dt_network_rate(const struct dt_network *n, uint32_t flow);
int dt_network_links(const struct dt_network *n);
void dt_network_link(const struct dt_network *n, int link, double *load, double *capacity);

#endif
