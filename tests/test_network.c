/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The network: max-min fairness on known and random cases, conservation of bytes, paths through a
 * cluster. */
#include "base/mem.h"
#include "base/rng.h"
#include "sim/network.h"

#include "synth.h"
#include "test_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOL 1e-9 /* relative, of rates and loads */

static struct dt_network *links(const double *capacity, int n)
{
    struct dt_network *net = NULL;

    ck_assert_int_eq(dt_network_new_links(capacity, n, NULL, &net), DT_OK);
    return net;
}

static uint32_t over(struct dt_network *n, uint32_t a, uint32_t b, double bytes, double cap,
                     int64_t now, uint32_t tag)
{
    const uint32_t link[2] = {a, b};
    const double one[2] = {1, 1};

    return dt_network_start_path(n, link, one, b == DT_NONE ? 1 : 2, bytes, cap, now, tag);
}

static void rate_is(const struct dt_network *n, uint32_t flow, double rate)
{
    ck_assert_double_eq_tol(dt_network_rate(n, flow), rate, TOL * rate);
}

START_TEST(a_lone_flow_takes_its_own_time_exactly)
{
    double capacity[1] = {1e9};
    struct dt_network *n = links(capacity, 1);
    struct dt_rng r;
    int64_t finish;
    uint32_t id, tag;

    dt_rng_init(&r, synth_seed(41), 1);
    for (int i = 0; i < 100000; i++) {
        /* any duration from 1 ns to hours, any size; the cap may even exceed what the link is said
         * to have */
        int64_t ns = 1 + (int64_t)dt_rng_below(&r, (uint64_t)1 << (1 + dt_rng_below(&r, 44)));
        double bytes = (double)(1 + dt_rng_below(&r, (uint64_t)1 << (1 + dt_rng_below(&r, 36))));
        int64_t now = (int64_t)dt_rng_below(&r, 1000000000000);
        uint32_t f = over(n, 0, DT_NONE, bytes, bytes / ((double)ns * 1e-9), now, 7);
        ck_assert(dt_network_next(n, &finish, &id, &tag));
        ck_assert_int_eq(finish, now + ns);
        ck_assert_int_eq(id, f);
        ck_assert_int_eq(tag, 7);
        dt_network_end(n, f, finish);
        ck_assert(!dt_network_next(n, &finish, &id, &tag));
    }
    dt_network_free(n);
}
END_TEST

/* A textbook line of three links: one flow crosses all, one more on each. */
START_TEST(known_allocations)
{
    double capacity[3] = {1e9, 2e9, 1e9};
    struct dt_network *n = links(capacity, 3);
    const uint32_t all[3] = {0, 1, 2};
    const double one[3] = {1, 1, 1};
    double load, cap;

    uint32_t f0 = dt_network_start_path(n, all, one, 3, 1e9, 1e9, 0, 0);
    uint32_t f1 = over(n, 0, DT_NONE, 1e9, 1e9, 0, 1);
    uint32_t f2 = over(n, 1, DT_NONE, 1e9, 2e9, 0, 2);
    uint32_t f3 = over(n, 2, DT_NONE, 1e9, 0.2e9, 0, 3);
    rate_is(n, f0, 0.5e9);
    rate_is(n, f1, 0.5e9);
    rate_is(n, f2, 1.5e9);
    rate_is(n, f3, 0.2e9);
    dt_network_link_load(n, 2, &load, &cap);
    ck_assert_double_eq_tol(load, 0.7e9, 1);
    ck_assert_double_eq(cap, 1e9);
    dt_network_end(n, f1, 1000); /* ended early: only rates matter here */
    rate_is(n, f0, 0.8e9);       /* link 2 binds now: 1.0 - 0.2 */
    rate_is(n, f2, 1.2e9);
    dt_network_end(n, f3, 1000);
    rate_is(n, f0, 1e9);
    rate_is(n, f2, 1e9);
    dt_network_free(n);
}
END_TEST

START_TEST(finish_times_follow_the_rates)
{
    double capacity[1] = {1e9};
    struct dt_network *n = links(capacity, 1);
    int64_t t;
    uint32_t id, tag;

    /* 1 MB alone: 1 ms.  The second comes at 0.4 ms: 0.6 MB are left, at half speed until 1.6 ms.
     */
    uint32_t a = over(n, 0, DT_NONE, 1e6, 1e9, 0, 0);
    ck_assert(dt_network_next(n, &t, &id, &tag) && t == 1000000);
    uint32_t b = over(n, 0, DT_NONE, 1e6, 1e9, 400000, 1);
    ck_assert(dt_network_next(n, &t, &id, &tag) && id == a);
    ck_assert_int_eq(t, 1600000);
    ck_assert_double_eq_tol(dt_network_moved(n, a, 1000000), 0.7e6, 1);
    dt_network_end(n, a, t);
    ck_assert(dt_network_next(n, &t, &id, &tag) && id == b);
    ck_assert_int_eq(t, 2000000); /* 0.4 MB left at full speed */
    dt_network_end(n, b, t);
    dt_network_free(n);
}
END_TEST

/* ---- random graphs ---- */

enum { LINKS = 12, LIVE = 24, STEPS = 400 };
enum { LINKS_WIDE = 72 }; /* with flows over more than 64, whose rates are found another way */
enum graph { PLAIN, WEIGHTED, WIDE };

struct live {
    uint32_t id, n_hops, link[LINKS_WIDE];
    double weight[LINKS_WIDE], cap, bytes, moved;
    bool on;
};

struct world {
    struct dt_network *n;
    struct live f[LIVE];
    double capacity[LINKS_WIDE];
    int n_links;
    struct dt_rng rng;
    int64_t now;
    uint64_t seed;
};

static void fill_flow(struct world *w, struct live *f, enum graph graph)
{
    struct dt_rng *r = &w->rng;

    memset(f, 0, sizeof *f);
    f->n_hops = 1 + (uint32_t)dt_rng_below(r, 4);
    uint32_t step = 1 + (uint32_t)dt_rng_below(r, 2), first = (uint32_t)dt_rng_below(r, LINKS);
    uint32_t n_links = LINKS;
    if (graph == WIDE && dt_rng_below(r, 4) == 0) {
        n_links = LINKS_WIDE;
        f->n_hops = n_links - (uint32_t)dt_rng_below(r, 7);
        step = 1;
    }
    for (uint32_t k = 0; k < f->n_hops; k++) {
        f->link[k] = (first + k * step) % n_links;
        f->weight[k] = graph == WEIGHTED ? 0.125 * (double)(1 + dt_rng_below(r, 8)) : 1;
    }
    f->cap = 1e9 * (0.1 + 2 * dt_rng_uniform(r));
    f->bytes = 1e6 * (0.1 + dt_rng_uniform(r));
    f->on = true;
}

static void start(struct world *w, int slot)
{
    struct live *f = &w->f[slot];

    f->id = dt_network_start_path(w->n, f->link, f->weight, f->n_hops, f->bytes, f->cap, w->now,
                                  (uint32_t)slot);
    ck_assert_uint_ne(f->id, DT_NONE);
}

/* What a flow really puts on a link: the network never lets a lone flow ask for more than the link
 * has. */
static double weight_on(const struct world *w, const struct live *f, uint32_t k)
{
    double most = w->capacity[f->link[k]] / f->cap;

    return f->weight[k] < most ? f->weight[k] : most;
}

/* Capacity is respected, and every flow is at its cap or crosses a full link on which nobody is
 * faster: that is the definition of max-min fairness, and such an allocation is unique. */
static void check_fair(const struct world *w)
{
    double load[LINKS_WIDE] = {0}, fastest[LINKS_WIDE] = {0}, rate[LIVE];

    for (int i = 0; i < LIVE; i++) {
        if (!w->f[i].on)
            continue;
        rate[i] = dt_network_rate(w->n, w->f[i].id);
        for (uint32_t k = 0; k < w->f[i].n_hops; k++) {
            uint32_t l = w->f[i].link[k];
            load[l] += weight_on(w, &w->f[i], k) * rate[i];
            fastest[l] = rate[i] > fastest[l] ? rate[i] : fastest[l];
        }
    }
    for (int l = 0; l < w->n_links; l++) {
        double told, cap;
        dt_network_link_load(w->n, l, &told, &cap);
        ck_assert_double_eq_tol(told, load[l], TOL * cap);
        ck_assert_msg(load[l] <= cap * (1 + 2 * TOL), "DT_TEST_SEED=%llu link %d over capacity",
                      (unsigned long long)w->seed, l);
    }
    for (int i = 0; i < LIVE; i++) {
        bool bound = !w->f[i].on || rate[i] >= w->f[i].cap * (1 - TOL);
        for (uint32_t k = 0; k < w->f[i].n_hops && !bound; k++) {
            uint32_t l = w->f[i].link[k];
            bound = load[l] >= w->capacity[l] * (1 - 4 * TOL) && rate[i] >= fastest[l] * (1 - TOL);
        }
        ck_assert_msg(bound, "DT_TEST_SEED=%llu flow %d could go faster",
                      (unsigned long long)w->seed, i);
    }
}

static void advance(struct world *w, int64_t to)
{
    for (int i = 0; i < LIVE; i++)
        if (w->f[i].on)
            w->f[i].moved += dt_network_rate(w->n, w->f[i].id) * (double)(to - w->now) * 1e-9;
    w->now = to;
}

static void finish_next(struct world *w)
{
    int64_t t;
    uint32_t id, tag;

    if (!dt_network_next(w->n, &t, &id, &tag))
        return;
    ck_assert_int_ge(t, w->now);
    advance(w, t);
    struct live *f = &w->f[tag];
    /* All bytes have arrived; finish times are whole ns, so up to half a ns at its rate may differ
     * per change of rate. */
    ck_assert_double_eq_tol(f->moved, f->bytes, f->cap * 1e-9 + 1e-9 * f->bytes);
    ck_assert_double_eq_tol(dt_network_moved(w->n, id, t), f->bytes, f->cap * 1e-9);
    dt_network_end(w->n, id, t);
    f->on = false;
}

static void churn(uint64_t seed, enum graph graph)
{
    struct world w = {.seed = seed, .n_links = graph == WIDE ? LINKS_WIDE : LINKS};

    dt_rng_init(&w.rng, seed, 2);
    for (int l = 0; l < w.n_links; l++)
        w.capacity[l] = 1e9 * (0.5 + dt_rng_uniform(&w.rng));
    w.n = links(w.capacity, w.n_links);
    for (int step = 0; step < STEPS; step++) {
        int slot = (int)dt_rng_below(&w.rng, LIVE);
        if (!w.f[slot].on && dt_rng_below(&w.rng, 5) < 3) {
            int64_t t, later = w.now + (int64_t)dt_rng_below(&w.rng, 200000);
            uint32_t id, tag;
            if (!dt_network_next(w.n, &t, &id, &tag) || later <= t)
                advance(&w, later);
            fill_flow(&w, &w.f[slot], graph);
            start(&w, slot);
        } else {
            finish_next(&w);
        }
        check_fair(&w);
    }
    for (int i = 0; i < LIVE; i++)
        finish_next(&w);
    for (int l = 0; l < w.n_links; l++) {
        double load, cap;
        dt_network_link_load(w.n, l, &load, &cap);
        ck_assert_double_eq(load, 0);
    }
    dt_network_free(w.n);
}

START_TEST(random_flows_are_fair_and_conserve_bytes)
{
    uint64_t base = synth_seed(51);

    for (uint64_t k = 0; k < 90; k++)
        churn(base + k, (enum graph)(k % 3));
}
END_TEST

START_TEST(order_of_starts_does_not_matter)
{
    uint64_t base = synth_seed(52);

    for (uint64_t k = 0; k < 60; k++) {
        enum graph graph = k % 2 == 0 ? WEIGHTED : WIDE;
        struct world w = {.seed = base + k, .n_links = graph == WIDE ? LINKS_WIDE : LINKS};
        int order[LIVE];
        double rate[LIVE];
        dt_rng_init(&w.rng, base + k, 3);
        for (int l = 0; l < w.n_links; l++)
            w.capacity[l] = 1e9 * (0.5 + dt_rng_uniform(&w.rng));
        w.n = links(w.capacity, w.n_links);
        for (int i = 0; i < LIVE; i++) {
            order[i] = i;
            fill_flow(&w, &w.f[i], graph);
            start(&w, i);
        }
        for (int i = 0; i < LIVE; i++)
            rate[i] = dt_network_rate(w.n, w.f[i].id);
        for (int i = LIVE - 1; i > 0; i--) {
            int j = (int)dt_rng_below(&w.rng, (uint64_t)i + 1), x = order[i];
            order[i] = order[j];
            order[j] = x;
        }
        dt_network_reset(w.n);
        for (int i = 0; i < LIVE; i++) {
            start(&w, order[i]);
            (void)dt_network_rate(w.n, w.f[order[i]].id); /* recomputed at each start this time */
        }
        for (int i = 0; i < LIVE; i++)
            rate_is(w.n, w.f[i].id, rate[i]);
        dt_network_free(w.n);
    }
}
END_TEST

START_TEST(equal_flows_get_equal_shares)
{
    double capacity[2] = {1e9, 3e9};
    struct dt_network *n = links(capacity, 2);
    uint32_t id[7], tag, f;
    int64_t t;

    for (uint32_t i = 0; i < 7; i++)
        id[i] = over(n, 0, 1, 1e6, 0.9e9, 0, i);
    for (int i = 0; i < 7; i++)
        rate_is(n, id[i], 1e9 / 7);
    for (uint32_t i = 0; i < 7; i++) { /* all end at once, in the order of their tags */
        ck_assert(dt_network_next(n, &t, &f, &tag));
        ck_assert_int_eq(t, 7000000);
        ck_assert_uint_eq(tag, i);
        dt_network_end(n, f, t);
    }
    dt_network_free(n);
}
END_TEST

/* ---- a cluster ---- */

static struct dt_cluster cluster(double oversubscription)
{
    struct dt_cluster c = {.nodes = 6,
                           .gpus_per_node = 8,
                           .nvlink_bytes_per_s = 160e9,
                           .nics_per_node = 4,
                           .nic_bytes_per_s = 25e9,
                           .nic_efficiency = 0.92,
                           .fabric_oversubscription = oversubscription};
    return c;
}

static struct dt_network *network(double oversubscription)
{
    struct dt_cluster c = cluster(oversubscription);
    struct dt_network *n = NULL;

    ck_assert_int_eq(dt_network_new(&c, NULL, &n), DT_OK);
    ck_assert_int_eq(dt_network_links(n), 2 * 48 + 2 * 6 + 1);
    return n;
}

static struct dt_lane lane(uint32_t first_gpu, uint16_t gpus)
{
    struct dt_lane l = {.first_gpu = first_gpu, .gpus = gpus};
    return l;
}

START_TEST(narrow_lanes_share_the_nics_of_their_node)
{
    struct dt_network *n = network(1);
    uint32_t id[8];

    for (uint32_t i = 0; i < 8;
         i++) { /* each lane could drive one NIC: 8 x 23 against 4 x 23 GB/s */
        struct dt_lane a = lane(i, 1), b = lane(8 + i, 1);
        id[i] = dt_network_start(n, &a, &b, 1e6, 23e9, 0, i);
        if (i == 3)
            rate_is(n, id[0], 23e9);
    }
    for (int i = 0; i < 8; i++)
        rate_is(n, id[i], 11.5e9);
    dt_network_free(n);
}
END_TEST

/* One port stands for a lane's GPUs: the rates are those of all ports. */
START_TEST(even_lanes_need_two_links)
{
    const struct dt_lane lanes[] = {lane(0, 4), lane(4, 2),  lane(6, 1),  lane(7, 1),
                                    lane(8, 8), lane(16, 4), lane(20, 4), lane(20, 4)};
    enum { N = sizeof lanes / sizeof lanes[0], FLOWS = 40 };
    const struct dt_lane astride = lane(4, 8), three = lane(0, 3),
                         nested[2] = {lane(0, 4), lane(0, 2)};
    uint32_t scratch[48], a[FLOWS], b[FLOWS];
    struct dt_network *all = network(1), *pair = network(1);
    struct dt_rng r;

    ck_assert_uint_eq(dt_network_gpus(all), 48);
    ck_assert(dt_network_even(pair, lanes, N, scratch));
    ck_assert(!dt_network_even(pair, &astride, 1, scratch));
    ck_assert(!dt_network_even(pair, &three, 1, scratch));
    ck_assert(!dt_network_even(pair, nested, 2, scratch));
    dt_rng_init(&r, synth_seed(53), 1);
    for (uint32_t i = 0; i < FLOWS; i++) {
        uint32_t s, d, link[2];
        uint16_t share[2];
        do {
            s = (uint32_t)dt_rng_below(&r, N);
            d = (uint32_t)dt_rng_below(&r, N);
        } while (lanes[s].first_gpu == lanes[d].first_gpu);
        double cap = 1e9 * (20 + 300 * dt_rng_uniform(&r));
        a[i] = dt_network_start(all, &lanes[s], &lanes[d], 1e6, cap, 0, i);
        ck_assert(dt_network_pair(pair, &lanes[s], &lanes[d], link, share));
        const double weight[2] = {1.0 / share[0], 1.0 / share[1]};
        b[i] = dt_network_start_path(pair, link, weight, 2, 1e6, cap, 0, i);
        for (uint32_t k = 0; k <= i; k++)
            rate_is(pair, b[k], dt_network_rate(all, a[k]));
    }
    dt_network_free(all);
    dt_network_free(pair);
}
END_TEST

/* The hint about what finishes next is the order in which flows then finish. */
START_TEST(what_finishes_next_is_known_ahead)
{
    double capacity[1] = {1e9};
    struct dt_network *n = links(capacity, 1);
    uint32_t id, tag, next;
    struct dt_rng r;
    int64_t t;

    dt_rng_init(&r, synth_seed(54), 1);
    for (uint32_t i = 0; i < 200; i++)
        ck_assert_uint_ne(over(n, 0, DT_NONE, 1 + (double)dt_rng_below(&r, 5000), 1e6, 0, i),
                          DT_NONE);
    for (uint32_t i = 0; i < 200; i++) {
        ck_assert(dt_network_next(n, &t, &id, &tag));
        ck_assert_uint_eq(dt_network_ahead(n, 0), tag);
        next = dt_network_ahead(n, 1);
        dt_network_end(n, id, t);
        ck_assert(dt_network_next(n, &t, &id, &tag) == (i < 199));
        ck_assert_uint_eq(next, i < 199 ? tag : DT_NONE);
    }
    dt_network_free(n);
}
END_TEST

START_TEST(ports_bind_inside_a_node)
{
    struct dt_network *n = network(1);
    struct dt_lane one = lane(4, 1), four = lane(0, 4), other = lane(5, 1), pair = lane(2, 2);

    /* Four GPUs to one: the destination's port carries it all. */
    uint32_t f = dt_network_start(n, &four, &one, 1e6, 160e9, 0, 0);
    rate_is(n, f, 160e9);
    uint32_t g = dt_network_start(n, &other, &one, 1e6, 160e9, 0, 1);
    rate_is(n, f, 80e9);
    rate_is(n, g, 80e9);
    dt_network_end(n, g, 5);
    rate_is(n, f, 160e9);
    /* Colocated lanes: GPUs 2 and 3 belong to both, and each port carries 40 of its 160 GB/s. */
    uint32_t h = dt_network_start(n, &pair, &other, 1e6, 160e9, 5, 2);
    rate_is(n, h, 160e9);
    rate_is(n, f, 160e9);
    uint32_t self = dt_network_start(n, &one, &one, 1e6, 7e9, 5, 3); /* crosses nothing */
    rate_is(n, self, 7e9);
    dt_network_free(n);
}
END_TEST

START_TEST(wide_lanes_use_the_nics_of_all_their_nodes)
{
    struct dt_network *n = network(1);
    struct dt_lane a = lane(0, 16), b = lane(16, 16), c = lane(0, 8), d = lane(32, 8);
    double load, cap;

    uint32_t f = dt_network_start(n, &a, &b, 1e6, 184e9, 0, 0);
    rate_is(n, f, 184e9); /* 2 nodes x 92 GB/s */
    uint32_t g = dt_network_start(n, &c, &d, 1e6, 92e9, 0, 1);
    /* Node 0's NICs: f puts half its rate there, g all; equal rates x: x/2 + x = 92. */
    rate_is(n, f, 92e9 / 1.5);
    rate_is(n, g, 92e9 / 1.5);
    dt_network_link_load(n, 2 * 48, &load, &cap);
    ck_assert_double_eq_tol(load, 92e9, 1);
    ck_assert_double_eq_tol(cap, 92e9, 1);
    dt_network_free(n);
}
END_TEST

START_TEST(fabric_binds_only_when_oversubscribed)
{
    for (int over_by = 1; over_by <= 3; over_by += 2) {
        struct dt_network *n = network(over_by);
        uint32_t id[3];
        for (uint32_t i = 0; i < 3; i++) {
            struct dt_lane a = lane(16 * i, 8), b = lane(16 * i + 8, 8);
            id[i] = dt_network_start(n, &a, &b, 1e6, 92e9, 0, i);
        }
        for (int i = 0; i < 3; i++) /* 6 nodes x 92 / 3 = 184 GB/s for three flows of 92 */
            rate_is(n, id[i], over_by == 1 ? 92e9 : 184e9 / 3);
        dt_network_free(n);
    }
}
END_TEST

START_TEST(rings_load_every_node_they_cross)
{
    struct dt_network *n = network(1);
    /* Four lanes of 4 GPUs: two on node 0, one on node 1, one on node 2. */
    struct dt_lane lanes[5] = {lane(0, 4), lane(4, 4), lane(8, 4), lane(16, 4), lane(24, 8)};
    const uint32_t members[4] = {0, 1, 2, 3};
    struct dt_network_ranks ranks = {lanes, members, 4, 1}, two = {lanes, members, 2, 1};
    struct dt_network_ring all = {4, 1, 11.5e6}, both = {2, 1, 11.5e6};
    double load, cap;

    ck_assert(dt_network_rings_cross(n, &ranks, &all, 1));
    ck_assert(!dt_network_rings_cross(n, &two, &both, 1));
    /* 4 rings x 11.5 MB in 1 ms = 46 GB/s, half of each node's NICs; node 0 is crossed once per
     * ring, not twice. */
    uint32_t f = dt_network_start_rings(n, &ranks, &all, 1, 1000000, 0, 0);
    rate_is(n, f, 46e9);
    for (int node = 0; node < 4; node++) {
        dt_network_link_load(n, 2 * 48 + node, &load, &cap);
        ck_assert_double_eq_tol(load, node < 3 ? 46e9 : 0, 1);
        dt_network_link_load(n, 2 * 48 + 6 + node, &load, &cap);
        ck_assert_double_eq_tol(load, node < 3 ? 46e9 : 0, 1);
    }
    /* One transfer out of node 2 slows the whole ring to its share there. */
    uint32_t g = dt_network_start(n, &lanes[3], &lanes[4], 1e6, 92e9, 0, 1);
    rate_is(n, f, 46e9);
    rate_is(n, g, 46e9);
    uint32_t h = dt_network_start(n, &lanes[3], &lanes[4], 1e6, 92e9, 0, 2);
    rate_is(n, f, 92e9 / 3);
    rate_is(n, h, 92e9 / 3);
    dt_network_link_load(n, 2 * 48, &load, &cap);
    ck_assert_double_eq_tol(load, 92e9 / 3, 1); /* node 0 idles for the rest */
    dt_network_free(n);
}
END_TEST

enum { RING_NODES = 6, RING_GPUS = 8 };

/* Oracle: every GPU passes `bytes` to the one behind it in its ring; what goes to another node leaves this one. */
static void pass_on(double *out, const struct dt_network_ranks *x, const struct dt_network_ring *r)
{
    uint32_t n = x->n_members * x->per_lane, wide = x->lanes[0].gpus / x->per_lane;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t block = i / (r->of * r->apart), k = i / r->apart % r->of;
        uint32_t to = block * r->of * r->apart + (k + 1) % r->of * r->apart + i % r->apart;

        for (uint32_t g = 0; g < wide; g++) {
            uint32_t a =
                x->lanes[x->members[i / x->per_lane]].first_gpu + i % x->per_lane * wide + g;
            uint32_t b =
                x->lanes[x->members[to / x->per_lane]].first_gpu + to % x->per_lane * wide + g;

            if (a / RING_GPUS != b / RING_GPUS)
                out[a / RING_GPUS] += r->bytes;
        }
    }
}

/* Rings of any blocks and places, of lanes side by side: as many bytes leave each node as pass its border hop by hop,
 * and none where all rings lie inside of nodes. */
START_TEST(rings_of_groups_load_what_passes_a_border)
{
    static const uint32_t size[] = {1, 2, 4, 8, 16};
    struct dt_lane lanes[RING_NODES * RING_GPUS];
    uint32_t members[RING_NODES * RING_GPUS];
    int crossed = 0, inside = 0;

    for (uint32_t i = 0; i < RING_NODES * RING_GPUS; i++)
        members[i] = i;
    for (int k = 0; k < 5 * 5 * 3 * 2; k++) {
        uint32_t group = size[k % 5], per_lane = size[k / 25 % 3], tp = size[k / 75];
        uint32_t n_lanes = 2 * size[k / 5 % 5], all = n_lanes * per_lane;
        struct dt_network_ranks x = {lanes, members, n_lanes, per_lane};
        struct dt_network_ring ring[2] = {{group, 1, 3e6}, {all / group, group, 2e6}};
        double out[RING_NODES] = {0}, most = 0;
        struct dt_network *n;

        if (all % group != 0 || all * tp > RING_NODES * RING_GPUS)
            continue;
        n = network(1);
        for (uint32_t i = 0; i < n_lanes; i++)
            lanes[i] = lane(i * per_lane * tp, per_lane * tp);
        for (int r = 0; r < 2; r++)
            if (ring[r].of > 1)
                pass_on(out, &x, &ring[r]);
        for (int i = 0; i < RING_NODES; i++)
            most = out[i] > most ? out[i] : most;
        ck_assert(dt_network_rings_cross(n, &x, ring, 2) == (most > 0));
        crossed += most > 0;
        inside += !(most > 0);
        if (most > 0) {
            uint32_t f = dt_network_start_rings(n, &x, ring, 2, 1000000000, 0, 0);

            rate_is(n, f, most);
            for (int i = 0; i < RING_NODES; i++) {
                double load, cap;

                dt_network_link_load(n, 2 * RING_NODES * RING_GPUS + i, &load, &cap);
                ck_assert_double_eq_tol(load, out[i], 1e-6 * most);
                dt_network_link_load(n, 2 * RING_NODES * RING_GPUS + RING_NODES + i, &load, &cap);
                ck_assert_double_eq_tol(load, out[i], 1e-6 * most);
            }
        }
        dt_network_free(n);
    }
    ck_assert_int_gt(crossed, 20);
    ck_assert_int_gt(inside, 10);
}
END_TEST

START_TEST(uncoupled_flows_are_left_alone)
{
    struct dt_network *n = network(1);
    uint64_t solves, flows;
    int64_t t;
    uint32_t id, tag;

    for (uint32_t i = 0; i < 4; i++) {
        struct dt_lane a = lane(0, 8), b = lane(8 + 8 * i, 8), c = lane(40, 8);
        (void)dt_network_start(n, i == 3 ? &c : &a, &b, 1e6, 50e9, 0, i);
    }
    ck_assert(dt_network_next(n, &t, &id, &tag));
    dt_network_stats(n, &solves, &flows);
    ck_assert_uint_eq(solves, 1); /* four starts, one instant, one recomputation ... */
    ck_assert_uint_eq(flows, 3);  /* ... of the three flows out of node 0 */
    ck_assert_uint_eq(tag, 3);    /* which therefore end after the fourth */
    dt_network_free(n);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct dt_cluster c = cluster(2);
    struct dt_lane a = lane(0, 16), b = lane(16, 16);

    for (uint64_t k = 1;; k++) {
        struct dt_network *n = NULL;
        uint32_t f = DT_NONE;
        dt_mem_fail_at(k);
        enum dt_status st = dt_network_new(&c, NULL, &n);
        if (st == DT_OK)
            f = dt_network_start(n, &a, &b, 1e6, 1e9, 0, 0);
        bool reached = dt_mem_count() >= k;
        dt_mem_fail_at(0);
        ck_assert_int_eq(reached, f == DT_NONE);
        if (st == DT_OK)
            dt_network_free(n);
        if (!reached)
            break;
        ck_assert_int_lt(k, 100);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("network");
    TCase *tc = dt_test_case(suite, "known", 0);
    tcase_add_test(tc, a_lone_flow_takes_its_own_time_exactly);
    tcase_add_test(tc, known_allocations);
    tcase_add_test(tc, finish_times_follow_the_rates);
    tcase_add_test(tc, equal_flows_get_equal_shares);
    tc = dt_test_case(suite, "random", 60);
    tcase_add_test(tc, random_flows_are_fair_and_conserve_bytes);
    tcase_add_test(tc, order_of_starts_does_not_matter);
    tc = dt_test_case(suite, "cluster", 0);
    tcase_add_test(tc, narrow_lanes_share_the_nics_of_their_node);
    tcase_add_test(tc, even_lanes_need_two_links);
    tcase_add_test(tc, what_finishes_next_is_known_ahead);
    tcase_add_test(tc, ports_bind_inside_a_node);
    tcase_add_test(tc, wide_lanes_use_the_nics_of_all_their_nodes);
    tcase_add_test(tc, fabric_binds_only_when_oversubscribed);
    tcase_add_test(tc, rings_load_every_node_they_cross);
    tcase_add_test(tc, rings_of_groups_load_what_passes_a_border);
    tcase_add_test(tc, uncoupled_flows_are_left_alone);
    tcase_add_test(tc, every_allocation_may_fail);
    return dt_test_run(suite);
}
