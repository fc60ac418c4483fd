/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives and point-to-point transfers.
 *
 * Inside a node: measured bus bandwidth over bytes.  Across nodes: NCCL's own latency terms for
 * ring and tree over the cluster's NICs, and no less than the published steps of long rings take.
 *
 *   bus bytes = bytes * f        f of n ranks, as in nccl-tests:
 *     2 (n-1)/n   all-reduce
 *       (n-1)/n   all-gather, reduce-scatter, all-to-all
 *
 * Constants: NCCL src/graph/tuning.cc at 5067397c (published), SimAI nic_ratio.csv (published). */
#include "core/cost/cost_internal.h"

#include "core/model/cluster_gpu.h"

#include <gsl/gsl_errno.h>
#include <stdio.h>
#include <string.h>

enum proto { PROTO_LL, PROTO_LL128, PROTO_SIMPLE, PROTO_N };

/* NCCL tuning.cc: base and per-step latencies in microseconds, columns LL / LL128 / Simple. */
static const double tree_base_us[PROTO_N] = {6.8, 14.0, 8.4};
static const double ring_base_us[PROTO_N] = {6.6, 14.0, 8.4};
static const double ring_nvlink_us[PROTO_N] = {0.6, 1.9, 3.4};
static const double tree_nvlink_us[PROTO_N] = {0.6, 1.25, 4.0};
static const double ring_net_us[PROTO_N] = {2.7, 4.0, 14.0};
static const double tree_net_us[PROTO_N] = {5.0, 8.5, 14.0};
static const double proto_bw[PROTO_N] = {0.5, 0.92, 1.0}; /* share of the channel bandwidth */
#define RING_SIMPLE_MULTINODE 1.4                         /* all-reduce, SM80 and later */
#define TREE_BW 0.92

/* SimAI nic_ratio.csv: bus bandwidth of an all-reduce as a fraction of the node's line rate, by bytes and
 * nodes of 8 GPUs: 16, 64, ... MiB, 2, 4, ... nodes. */
enum { NIC_NODES = 7, NIC_SIZES = 5 };
static const double nic_ratio[NIC_SIZES][NIC_NODES] = {
    {.32, .24, .13, .05, .044, .021, .009}, /* 16 MiB */
    {.50, .53, .39, .21, .106, .051, .044}, /* 64 MiB */
    {.85, .77, .69, .57, .39, .21, .10},    /* 256 MiB */
    {.92, .93, .90, .76, .74, .56, .31},    /* 1 GiB */
    {.95, .95, .95, .95, .92, .76, .74},    /* 4 GiB */
};
#define SIMAI_GPUS_PER_NODE 8
/* 8 NICs of 400 Gb/s: with them the table's columns fall by 4 to 6 us a step of the ring, whatever its length (derived). */
#define SIMAI_LINE 400e9

double dt_cost_bus_factor(int family, int gpus)
{
    if (gpus <= 1)
        return 0;
    return (family == DT_KOP_ALL_REDUCE ? 2.0 : 1.0) * (gpus - 1) / gpus;
}

static double clamp(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static double nic_bytes(int size)
{
    return 16.0 * (1 << 20) * (1 << 2 * size);
}

/* Of a cell of the table: what a step of its ring takes beyond the bytes that it moves at line rate. */
static double nic_step_ns(int size, int column)
{
    double ranks = SIMAI_GPUS_PER_NODE * (2 << column);

    return 1e9 * nic_bytes(size) / ranks / SIMAI_LINE * (1 / nic_ratio[size][column] - 1);
}

/* What it takes in a ring of so many ranks, not nodes, since steps are those of ranks: between cells bilinear in the
 * logarithms, beyond the ends as there, but less and less with fewer bytes, for which NCCL has faster protocols. */
static double step_beside_line_ns(int gpus, double bytes)
{
    double x = clamp(log2((double)gpus / SIMAI_GPUS_PER_NODE) - 1, 0, NIC_NODES - 1);
    double y = clamp(log2(bytes / nic_bytes(0)) / 2, 0, NIC_SIZES - 1);
    int i = x < NIC_NODES - 1 ? (int)x : NIC_NODES - 2;
    int k = y < NIC_SIZES - 1 ? (int)y : NIC_SIZES - 2;
    double low = nic_step_ns(k, i) * (1 + i - x) + nic_step_ns(k, i + 1) * (x - i);
    double high = nic_step_ns(k + 1, i) * (1 + i - x) + nic_step_ns(k + 1, i + 1) * (x - i);

    return (low * (1 + k - y) + high * (y - k)) * fmin(1, bytes / nic_bytes(0));
}

static bool all_reduce(int family)
{
    return family == DT_KOP_ALL_REDUCE;
}

static double ring_steps(int family, int gpus)
{
    return (all_reduce(family) ? 2.0 : 1.0) * (gpus - 1);
}

/* ---- latencies ---- */

/* Times of one pair over the bytes it moves, from rows of the class (1 = between nodes, 2 = inside); NULL when the
 * profile has none of that class. */
static struct dt_cost_surface *pair_surface(struct dt_cost *c, bool same_node)
{
    int64_t d[6] = {same_node ? 2 : 1};
    struct dt_cost_surface *s = dt_cost_surface(c, DT_KOP_SEND_RECV, DT_PHASE_FWD, d);

    return s && s->slow_inside && s->slow_exact ? s : NULL;
}

/* Time of the smallest measured message of the class; 0 without rows. */
static double measured_alpha_ns(struct dt_cost *c, bool same_node)
{
    double *kept = &c->message_ns[same_node];
    struct dt_cost_surface *s;
    enum dt_cost_prov prov;
    bool below;

    if (*kept < 0) {
        s = pair_surface(c, same_node);
        *kept = s ? exp(s->lu[0] - dt_cost_surface_eval(s, -1, 0, &prov, &below)) : 0;
    }
    return *kept;
}

/* The cluster's latency of a message; where it states none, or the same, what is contained in times already. */
static double latency_ns(const struct dt_cost *c, bool same_node, double contained)
{
    double stated = 1e9 * (same_node ? c->cluster->nvlink_latency_s : c->cluster->nic_latency_s);

    return stated < 0 || fabs(stated - contained) < 1e-6 * contained ? contained : stated;
}

/* What it adds to each step of a collective.  Rows, and without them NCCL's terms, have a latency in them already: that of
 * the smallest measured message, or base and one step.  A lower one is not taken off, since how much of a step is the
 * wire's is not known. */
static double step_late_ns(struct dt_cost *c, bool same_node)
{
    double contained = measured_alpha_ns(c, same_node);
    double step_us = (same_node ? ring_nvlink_us : ring_net_us)[PROTO_SIMPLE];

    if (contained <= 0)
        contained = 1e3 * (ring_base_us[PROTO_SIMPLE] + step_us);
    return fmax(0, latency_ns(c, same_node, contained) - contained);
}

/* ---- inside a node ---- */

/* No rows: ring over NVLink, the fastest protocol. */
static double ring_intra_ns(const struct dt_cost *c, int family, int gpus, double bytes)
{
    double steps = ring_steps(family, gpus), best = INFINITY;
    double bus = bytes * dt_cost_bus_factor(family, gpus);

    for (int p = 0; p < PROTO_N; p++) {
        double ns = 1e3 * (ring_base_us[p] + steps * ring_nvlink_us[p]) +
                    1e9 * bus / (c->cluster->nvlink_bytes_per_s * proto_bw[p]);

        best = ns < best ? ns : best;
    }
    return best;
}

/* Rows of a faster or slower link: the latency, which is the time of the smallest measured buffer, stays; what the
 * bytes add goes with the link. */
static double rescale(const struct dt_cost *c, double alpha_ns, double ns)
{
    return ns > alpha_ns ? alpha_ns + (ns - alpha_ns) * c->link_ratio : ns;
}

double dt_cost_link_ratio(const struct dt_profile *p, const struct dt_cluster *cl)
{
    const struct dt_cluster_gpu *d = dt_cluster_gpu_find(p->device);

    return d ? d->link_bytes_per_s / cl->nvlink_bytes_per_s : 1;
}

static bool differ(double stated, double of_rows)
{
    return fabs(stated - of_rows) > 0.01 * of_rows;
}

void dt_cost_note(const struct dt_cost *c, char *buf, size_t size)
{
    const struct dt_cluster *cl = c->cluster;
    const char *rows = c->profile->device;
    const struct dt_cluster_gpu *d = dt_cluster_gpu_find(rows);
    double link = cl->nvlink_bytes_per_s;
    size_t n = 0;

    buf[0] = '\0';
    if (c->profile->n_rows <= 0)
        return;
    if (strcmp(rows, cl->device) != 0)
        n = (size_t)snprintf(buf, size, "kernels of %s are those of %s, the same chip", cl->device,
                             rows);
    if (c->link_ratio != 1 && n < size)
        n += (size_t)snprintf(
            buf + n, size - n,
            "%scollectives and transfers inside a node are computed from rows over %.4g GB/s "
            "for %.4g GB/s",
            n ? "; " : "", 1e-9 * link * c->link_ratio, 1e-9 * link);
    if (d && n < size &&
        (differ(cl->peak_flops, d->peak_flops) || differ(cl->hbm_bytes_per_s, d->hbm_bytes_per_s)))
        snprintf(buf + n, size - n,
                 "%sprofiled kernels take as long as on %s with %.4g TFLOP/s and %.4g TB/s, but no "
                 "less than the stated peak_flops and hbm_bandwidth allow",
                 n ? "; " : "", d->name, 1e-12 * d->peak_flops, 1e-12 * d->hbm_bytes_per_s);
}

static void intra(struct dt_cost *c, int family, int gpus, double bytes, struct dt_cost_time *out)
{
    int64_t d[6] = {gpus, gpus, 1};
    struct dt_cost_surface *s = dt_cost_surface(c, family, DT_PHASE_FWD, d);
    double bus = bytes * dt_cost_bus_factor(family, gpus), z, ns, alpha;
    double late = step_late_ns(c, true);
    enum dt_cost_prov prov, smallest;
    bool below;

    late *= family == DT_KOP_ALL_TO_ALL ? 1 : ring_steps(family, gpus); /* its pairs move at once */
    if (!s) {
        dt_cost_time_set(out, ring_intra_ns(c, family, gpus, bytes) + late, DT_PROV_COMPUTED);
        return;
    }
    z = dt_cost_surface_eval(s, log(bytes), 0, &prov, &below);
    if (below) /* latency bound: as long as the smallest measured buffer */
        bus *= exp(s->lu[0]) / bytes;
    ns = bus / exp(z);
    if (c->link_ratio != 1 && !below) {
        z = dt_cost_surface_eval(s, s->lu[0], 0, &smallest, &below);
        alpha = exp(s->lu[0]) * dt_cost_bus_factor(family, gpus) / exp(z);
        ns = rescale(c, alpha, ns);
        prov = DT_PROV_COMPUTED;
    }
    dt_cost_time_set(out, ns + late, late > 0 ? DT_PROV_COMPUTED : prov);
}

double dt_cost_collective_alpha_ns(struct dt_cost *c, int family, int gpus)
{
    struct dt_cost_time t;

    intra(c, family, gpus, 1, &t); /* one byte: below every table, so its smallest buffer */
    return t.ns;
}

/* ---- what a core does for them ---- */

int64_t dt_cost_carry_sums(enum dt_kop_family family)
{
    return family == DT_KOP_ALL_REDUCE ? 2 : family == DT_KOP_REDUCE_SCATTER ? 1 : 0;
}

double dt_cost_carry_ns(struct dt_cost *c, enum dt_kop_family family, int members, double bytes)
{
    int64_t d[6] = {members, dt_cost_carry_sums(family)};
    struct dt_cost_surface *s;
    enum dt_cost_prov prov;
    bool below;
    double u;

    if (dt_cost_groups(c, DT_KOP_CARRY, DT_PHASE_FWD)->n_groups == 0)
        return -1;
    s = dt_cost_surface(c, DT_KOP_CARRY, DT_PHASE_FWD, d);
    if (!s)
        return -1;
    u = fmax(log(fmax(bytes, 1)), s->lu[0]); /* no less than the smallest measured one */
    return exp(u - dt_cost_surface_eval(s, u, 0, &prov, &below));
}

/* ---- across nodes ---- */

/* NCCL's correction of tree bandwidth by bytes (Simple): 0.9 below 4 KB, 0.5 from 128 KB to 1 MB,
 * 0.9 from 128 MB. */
static double tree_correction(double bytes)
{
    double x = log2(bytes > 1 ? bytes : 1);

    if (x <= 12 || x >= 27)
        return 0.9;
    if (x < 17)
        return 0.9 - 0.4 * (x - 12) / 5;
    if (x <= 20)
        return 0.5;
    return 0.5 + 0.4 * (x - 20) / 7;
}

/* NIC line rate, bytes/s, that one of `share` groups has in a node with so many of its members: one NIC each at most. */
static double nic_line(const struct dt_cost *c, double members, int share)
{
    const struct dt_cluster *cl = c->cluster;
    double nics = fmin(members, (double)cl->nics_per_node / (share > 1 ? share : 1));

    return nics * cl->nic_bytes_per_s / fmax(1, cl->fabric_oversubscription);
}

static double nic_usable(const struct dt_cost *c, double members, int share)
{
    double efficiency = c->cluster->nic_efficiency;

    return nic_line(c, members, share) * (efficiency > 0 ? efficiency : 1);
}

struct inter {
    double gpus, nodes;
    double least, most; /* members in a node */
    double line;        /* bytes/s of NIC line rate one such group has in the node with the least */
    double usable;      /* the same, usable, and no more than a ring carries inside a node */
    /* of each step between nodes and inside one, beyond what NCCL's terms and rows contain */
    double late_ns, late_inside_ns;
};

/* As the published table has it.  Some of its cells take less than others of fewer bytes; no time does. */
static double table_ns(int family, const struct inter *g, double bytes)
{
    double steps = ring_steps(family, (int)g->gpus), bus = dt_cost_bus_factor(family, (int)g->gpus);
    double most = 0;

    for (int i = 0; i <= NIC_SIZES; i++) {
        double b = i < NIC_SIZES ? fmin(bytes, nic_bytes(i)) : bytes;

        most = fmax(most, 1e9 * bus * b / g->line + steps * step_beside_line_ns((int)g->gpus, b));
    }
    return most;
}

static double ring_inter_ns(int family, const struct inter *g, double bytes)
{
    double k = all_reduce(family) ? 2 : 1, best = INFINITY;
    double bus = bytes * dt_cost_bus_factor(family, (int)g->gpus);
    double hops = k * (g->nodes - 1), inside = k * (g->gpus - 1) - hops;

    for (int p = 0; p < PROTO_N; p++) {
        /* a step inside a node is no faster than the network's posting overhead, 1 us, 3 for Simple
         */
        double least = p == PROTO_SIMPLE ? 3.0 : 1.0;
        double step = ring_nvlink_us[p] > least ? ring_nvlink_us[p] : least;
        double lat = ring_base_us[p] + inside * step + hops * ring_net_us[p];

        if (p == PROTO_SIMPLE && all_reduce(family))
            lat *= RING_SIMPLE_MULTINODE;
        lat = 1e3 * lat + 1e9 * bus / (g->usable * proto_bw[p]);
        best = lat < best ? lat : best;
    }
    /* the published table contains the latency, so the slower of the two views holds, not their sum */
    return fmax(best, table_ns(family, g, bytes)) + hops * g->late_ns + inside * g->late_inside_ns;
}

static double tree_inter_ns(const struct inter *g, double bytes)
{
    double best = INFINITY;

    for (int p = 0; p < PROTO_N; p++) {
        double lat = tree_base_us[p] +
                     2 * ((g->most - 1) * tree_nvlink_us[p] + log2(g->nodes) * tree_net_us[p]);
        double bw = g->usable * TREE_BW * proto_bw[p];

        if (p == PROTO_SIMPLE)
            bw *= tree_correction(bytes);
        lat = 1e3 * lat + 2 * ((g->most - 1) * g->late_inside_ns + log2(g->nodes) * g->late_ns);
        lat += 1e9 * 2 * bytes / bw; /* up and down: each byte crosses every NIC twice */
        best = lat < best ? lat : best;
    }
    return best;
}

/* Each GPU sends bytes/n to every other one; what leaves a node with `here` of them shares its NICs. */
static double leaves_ns(const struct dt_cost *c, const struct inter *g, double here, int share,
                        double bytes)
{
    return 1e9 * here * bytes * (g->gpus - here) / g->gpus / nic_usable(c, here, share);
}

static double all_to_all_ns(const struct dt_cost *c, const struct inter *g, int share, double bytes)
{
    double out =
        fmax(leaves_ns(c, g, g->most, share, bytes), leaves_ns(c, g, g->least, share, bytes));
    double in = 1e9 * bytes * (g->most - 1) / g->gpus / c->cluster->nvlink_bytes_per_s;

    return 1e3 * (ring_base_us[PROTO_SIMPLE] + ring_net_us[PROTO_SIMPLE]) + g->late_ns +
           g->late_inside_ns + fmax(out, in);
}

/* What a ring carries inside a node: no more than was measured of the largest buffer, nor than NCCL takes links for. */
static double ring_inside(struct dt_cost *c, int family, int members)
{
    double link = c->cluster->nvlink_bytes_per_s;
    int64_t d[6] = {members, members, 1};
    struct dt_cost_surface *s = dt_cost_surface(c, family, DT_PHASE_FWD, d);
    enum dt_cost_prov prov;
    bool below;

    if (!s)
        return link;
    return fmin(link, 1e9 * exp(dt_cost_surface_eval(s, s->lu[s->nu - 1], 0, &prov, &below)) /
                          c->link_ratio);
}

static void across(struct dt_cost *c, int family, const struct dt_cost_members *m, double bytes,
                   struct dt_cost_time *out)
{
    int room = m->per_node, first = room - m->ahead, last = (m->ahead + m->n - 1) % room + 1;
    int nodes = (m->ahead + m->n + room - 1) / room;
    struct inter g = {.gpus = m->n, .nodes = nodes};
    double ns;

    g.least = first < last ? first : last;
    g.most = nodes > 2 ? room : first < last ? last : first;
    g.late_ns = step_late_ns(c, false);
    g.late_inside_ns = step_late_ns(c, true);
    if (family == DT_KOP_ALL_TO_ALL) {
        ns = all_to_all_ns(c, &g, m->share, bytes);
    } else {
        g.line = nic_line(c, g.least, m->share);
        g.usable = nic_usable(c, g.least, m->share);
        if (g.most > 1)
            g.usable = fmin(g.usable, ring_inside(c, family, (int)g.most));
        ns = ring_inter_ns(family, &g, bytes);
        if (all_reduce(family))
            ns = fmin(ns, tree_inter_ns(&g, bytes));
    }
    dt_cost_time_set(out, ns, DT_PROV_COMPUTED);
}

void dt_cost_collective_of(struct dt_cost *c, enum dt_kop_family family,
                           const struct dt_cost_members *m, double bytes, struct dt_cost_time *out)
{
    struct dt_cost_members at = *m;

    *out = (struct dt_cost_time){0};
    if (m->n <= 1 || bytes <= 0)
        return;
    at.per_node = (int)clamp(m->per_node, 1, c->cluster->gpus_per_node);
    at.ahead = m->ahead % at.per_node;
    if (at.ahead + at.n <= at.per_node)
        intra(c, (int)family, at.n, bytes, out);
    else
        across(c, (int)family, &at, bytes, out);
    dt_cost_scale(c, (int)family, out);
}

void dt_cost_collective(struct dt_cost *c, enum dt_kop_family family, int gpus, int per_node,
                        int share, double bytes, struct dt_cost_time *out)
{
    const struct dt_cost_members m = {.n = gpus, .per_node = per_node, .share = share};

    dt_cost_collective_of(c, family, &m, bytes, out);
}

/* ---- point to point ---- */

void dt_cost_p2p(struct dt_cost *c, bool same_node, int width, double bytes,
                 struct dt_cost_time *out, double *alpha_ns, double *bytes_per_s)
{
    const struct dt_cluster *cl = c->cluster;
    struct dt_cost_surface *s = pair_surface(c, same_node);
    double w = width > 1 ? width : 1, part = bytes / w, alpha, rate, ns, z, measured;
    enum dt_cost_prov prov = DT_PROV_COMPUTED;
    bool below = true;

    measured = measured_alpha_ns(c, same_node);
    alpha = latency_ns(c, same_node, measured);
    if (same_node) {
        rate = cl->nvlink_bytes_per_s;
        if (s && part > 0) {
            z = dt_cost_surface_eval(s, log(part), 0, &prov, &below);
            ns = rescale(c, measured, part / exp(z));
            prov = c->link_ratio != 1 || alpha != measured ? DT_PROV_COMPUTED : prov;
            /* the rate beside the latency, so that both together are the measured time */
            if (ns > measured * 1.001 && 1e9 * part / (ns - measured) < rate)
                rate = 1e9 * part / (ns - measured);
        }
    } else { /* measured NICs are another machine's: only their latency is taken */
        rate = cl->nics_per_node * cl->nic_bytes_per_s / cl->gpus_per_node;
        rate *= cl->nic_efficiency > 0 ? cl->nic_efficiency : 1;
        prov = DT_PROV_COMPUTED;
    }
    rate *= w;
    if (c->opt.scale[DT_KOP_SEND_RECV] > 0) {
        alpha *= c->opt.scale[DT_KOP_SEND_RECV];
        rate /= c->opt.scale[DT_KOP_SEND_RECV];
    }
    *out = (struct dt_cost_time){0};
    if (bytes > 0)
        dt_cost_time_set(out, alpha + 1e9 * bytes / rate, prov);
    if (alpha_ns)
        *alpha_ns = alpha;
    if (bytes_per_s)
        *bytes_per_s = rate;
}
