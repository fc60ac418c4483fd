/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives, transfers and the optimizer step. */
#include "core/cost/cost_internal.h"
#include "cost_fixture.h"
#include "test_util.h"

#include "base/rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const struct dt_cost_options plain = {0};

static struct dt_cost *cost_of(struct fixture *f, const struct dt_cost_options *o)
{
    struct dt_error err = {0};
    struct dt_cost *c = NULL;

    dt_assert_ok(dt_cost_new(&f->model, &f->cluster, &f->profile, o, &err, &c), err);
    return c;
}

static void assert_near(double a, double b, double rel, const char *what)
{
    ck_assert_msg(fabs(a - b) <= rel * fabs(b), "%s: %.9g is not %.9g within %g", what, a, b, rel);
}

/* ---- collectives ---- */

START_TEST(test_collectives_in_a_node)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_cost_time t;

    fx_init(&f);
    fx_collectives(&f);
    fx_index(&f);
    c = cost_of(&f, &plain);
    for (int family = DT_KOP_ALL_REDUCE; family <= DT_KOP_ALL_TO_ALL; family++) {
        dt_cost_collective(c, (enum dt_kop_family)family, 8, 8, 1, 134217728.0, &t);
        assert_near(t.ns, fx_coll_ns(family, 8, 134217728.0), 0.02, "between rows");
        dt_cost_collective(c, (enum dt_kop_family)family, 8, 8, 1, 1 << 22, &t);
        assert_near(t.ns, fx_coll_ns(family, 8, 1 << 22), 1e-9, "on a row");
        dt_cost_collective(c, (enum dt_kop_family)family, 4, 8, 1, 3, &t);
        assert_near(t.ns, fx_coll_ns(family, 4, 1024), 1e-9, "below the rows: latency");
        ck_assert(t.prov[DT_PROV_EXTRAPOLATED] == t.ns);
        dt_cost_collective(c, (enum dt_kop_family)family, 1, 1, 1, 1 << 22, &t);
        ck_assert(t.ns == 0);
        dt_cost_collective(c, (enum dt_kop_family)family, 6, 8, 1, 134217728.0, &t);
        assert_near(t.ns, fx_coll_ns(family, 6, 134217728.0), 0.1, "between 4 and 8 GPUs");
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* Rows over one link, a cluster with another: what the bytes add to the smallest buffer's time goes with the link. */
START_TEST(test_rows_of_another_link)
{
    static const double links[] = {480e9, 240e9, 160e9, 60e9, 10e9};
    struct fixture f;
    double last = 0;

    fx_init(&f);
    fx_collectives(&f);
    fx_index(&f);
    snprintf(f.profile.device, sizeof(f.profile.device), "A100-SXM4-80GB"); /* 240 GB/s */
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        struct dt_cost *c;
        struct dt_cost_time big, small, p2p;
        double small_ns = fx_coll_ns(DT_KOP_ALL_GATHER, 8, 1024),
               big_ns = fx_coll_ns(DT_KOP_ALL_GATHER, 8, 1 << 28);
        char note[256];

        f.cluster.nvlink_bytes_per_s = links[i];
        c = cost_of(&f, &plain);
        dt_cost_collective(c, DT_KOP_ALL_GATHER, 8, 8, 1, 100, &small);
        assert_near(small.ns, small_ns, 1e-9, "the latency stays");
        dt_cost_collective(c, DT_KOP_ALL_GATHER, 8, 8, 1, 1 << 28, &big);
        assert_near(big.ns, small_ns + (big_ns - small_ns) * 240e9 / links[i], 1e-9,
                    "the bytes go with the link");
        ck_assert(big.prov[links[i] == 240e9 ? DT_PROV_MEASURED : DT_PROV_COMPUTED] == big.ns);
        dt_cost_p2p(c, true, 1, 1 << 28, &p2p, NULL, NULL);
        ck_assert_msg(p2p.ns > last, "a transfer over %g B/s takes %g ns, over a faster link %g",
                      links[i], p2p.ns, last);
        last = p2p.ns;
        dt_cost_note(c, note, sizeof(note));
        ck_assert_int_eq(strstr(note, "inside a node are computed from rows over 240 GB/s") != NULL,
                         links[i] != 240e9);
        dt_cost_free(c);
    }
    fx_free(&f);
}
END_TEST

/* Ranks of a lane lie tp fastest, so the ranks of a context-parallel group are tp apart; the expected members per
 * node and groups per NIC are counted here GPU by GPU. */
START_TEST(test_context_parallel_groups_span_nodes)
{
    static const struct {
        int tp, cp;
    } cases[] = {{1, 2}, {1, 8}, {1, 16}, {2, 2}, {2, 4}, {2, 8},
                 {4, 2}, {4, 4}, {8, 2},  {8, 4}, {8, 16}};
    const struct dt_block block = {.kind = DT_BLOCK_TRANSFORMER,
                                   .hidden = 4096,
                                   .heads = 32,
                                   .kv_heads = 32,
                                   .head_dim = 128,
                                   .ffn = 11008,
                                   .gated = true,
                                   .causal = true};
    const struct dt_work w = {1, 65536, 65536.0 * 65536.0, 65536};
    struct fixture f;
    struct dt_cost *c;

    fx_init(&f);
    fx_collectives(&f);
    fx_index(&f);
    c = cost_of(&f, &plain);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int tp = cases[i].tp, cp = cases[i].cp, node = f.cluster.gpus_per_node;
        struct dt_block_shard shard = {.tp = tp, .cp = cp, .ep = 1, .ip = 1, .seqpar = tp > 1};
        struct dt_kop k[DT_MAX_KOPS];
        struct dt_cost_time got = {0}, want;
        int n = dt_block_kops(&block, &shard, &w, k), per_node = 0, groups = 0, found = 0;
        /* keys and values of this rank's heads, gathered */
        double bytes = 2.0 * 65536 * 2 * 4096 / tp;

        for (int r = 0; r < cp; r++) /* the group of GPU 0: GPUs r * tp */
            per_node += r * tp < node;
        for (int g = 0; g < tp; g++) /* groups of the lane with a GPU in node 0 */
            groups += g < node;
        for (int j = 0; j < n; j++)
            if (k[j].family == DT_KOP_ALL_GATHER && k[j].d[0] == cp && (double)k[j].d[2] == bytes &&
                k[j].d[3] == tp) {
                dt_cost_kernel(c, &k[j], DT_PHASE_FWD, &got);
                found++;
            }
        ck_assert_msg(found == 1, "tp %d cp %d: %d gathers of keys and values", tp, cp, found);
        dt_cost_collective(c, DT_KOP_ALL_GATHER, cp, per_node, groups, bytes, &want);
        assert_near(got.ns, want.ns, 1e-12, "a group as it lies");
        if (tp * cp > node) {
            dt_cost_collective(c, DT_KOP_ALL_GATHER, cp < node ? cp : node, node, 1, bytes, &want);
            ck_assert_msg(got.ns > (tp == node ? 2 : 1) * want.ns,
                          "tp %d cp %d: as fast as inside a node", tp, cp);
        }
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* What tensor parallelism of 8 adds to a block, forward and backward, as in Megatron-LM: Shoeybi et al. 2019 (arXiv 1909.08053,
 * f and g: an all-reduce each way of a layer, one forward of the embedding and one backward of the head), Korthikanti et al.
 * 2022 (arXiv 2205.05198: gathers and reduce-scatters in their place).  Loop: without and with sequence parallelism. */
START_TEST(test_tensor_parallel_collectives)
{
    enum { TOKENS = 512, HIDDEN = 4096, BYTES = 2 * TOKENS * HIDDEN };
    static const struct {
        struct dt_block block;
        int reduced[2], gathered[2], scattered[2]; /* forward, backward */
    } cases[] = {
        {{.kind = DT_BLOCK_EMBEDDING, .hidden = HIDDEN, .vocab = 32000}, {1, 0}, {0, 1}, {1, 0}},
        {{.kind = DT_BLOCK_TRANSFORMER,
          .hidden = HIDDEN,
          .heads = 32,
          .kv_heads = 32,
          .head_dim = 128,
          .ffn = 11008,
          .gated = true,
          .causal = true},
         {2, 2},
         {2, 2},
         {2, 2}},
        {{.kind = DT_BLOCK_LM_HEAD, .hidden = HIDDEN, .vocab = 32000}, {0, 1}, {1, 0}, {0, 1}},
    };
    const struct dt_work w = {1, TOKENS, (double)TOKENS * TOKENS, TOKENS};
    const struct dt_block_shard shard = {.tp = 8, .cp = 1, .ep = 1, .ip = 1, .seqpar = _i};

    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        struct dt_block block = cases[i / 2].block;
        struct dt_cost_block_times part[DT_MAX_KOPS];
        struct dt_kop k[DT_MAX_KOPS];
        double got[2] = {0}, want[2];
        struct fixture f;
        struct dt_cost *c;
        int n;

        block.unfused = i % 2;
        fx_init(&f);
        fx_module(&f, "llm", DT_ROLE_LLM, 1)->blocks[0] = block;
        fx_collectives(&f);
        fx_index(&f);
        c = cost_of(&f, &plain);
        n = dt_cost_block_parts(c, 0, 0, &shard, &w, k, part);
        for (int j = 0; j < n; j++)
            if (dt_cost_is_collective((int)k[j].family) && k[j].d[2] == BYTES) {
                got[0] += part[j].fwd.ns;
                got[1] += part[j].dgrad.ns;
            }
        for (int back = 0; back < 2; back++) {
            want[back] =
                _i ? cases[i / 2].gathered[back] * fx_coll_ns(DT_KOP_ALL_GATHER, 8, BYTES) +
                         cases[i / 2].scattered[back] * fx_coll_ns(DT_KOP_REDUCE_SCATTER, 8, BYTES)
                   : cases[i / 2].reduced[back] * fx_coll_ns(DT_KOP_ALL_REDUCE, 8, BYTES);
            ck_assert_msg(fabs(got[back] - want[back]) <= 1e-9 * want[back] ||
                              (block.unfused && got[back] >= want[back]), /* and what waits */
                          "%s, %s: %g ns of collectives, %g in the papers",
                          dt_block_kind_name(block.kind), back ? "backward" : "forward", got[back],
                          want[back]);
            ck_assert_msg(want[back] > 0 || got[back] <= 0, "%s, %s: %g ns",
                          dt_block_kind_name(block.kind), back ? "backward" : "forward", got[back]);
        }
        dt_cost_free(c);
        fx_free(&f);
    }
}
END_TEST

/* Step by step: attention to one rank's keys while the next rank's come; backwards with gradients as large, which
 * have one hop more.  A ring of 8 ranks 2 apart leaves its node, one of 4 does not.  Loop: on GPUs, on CPUs, where
 * attention hides nothing. */
START_TEST(test_a_ring_of_keys)
{
    static const struct {
        int tp, cp, tokens;
    } cases[] = {{2, 8, 65536}, {2, 8, 4096}, {2, 4, 65536}, {2, 4, 4096}, {8, 2, 16384}};
    struct dt_cost_options around = plain;
    const struct dt_block block = {.kind = DT_BLOCK_TRANSFORMER,
                                   .hidden = 4096,
                                   .heads = 32,
                                   .kv_heads = 32,
                                   .head_dim = 128,
                                   .ffn = 11008,
                                   .gated = true,
                                   .causal = true};
    bool exposed = false, hidden = false, cpu = _i;
    struct fixture f;
    struct dt_cost *gather, *ring;

    around.cp_ring = true;
    fx_init(&f);
    if (cpu)
        f.cluster.cores_per_node = 16;
    fx_module(&f, "llm", DT_ROLE_LLM, 1)->blocks[0] = block;
    fx_collectives(&f);
    fx_index(&f);
    gather = cost_of(&f, &plain);
    ring = cost_of(&f, &around);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int tp = cases[i].tp, cp = cases[i].cp, tokens = cases[i].tokens;
        const struct dt_work w = {1, tokens, (double)tokens * tokens, tokens};
        struct dt_block_shard shard = {.tp = tp, .cp = cp, .ep = 1, .ip = 1, .seqpar = tp > 1};
        struct dt_kop k[DT_MAX_KOPS];
        struct dt_cost_block_times part[DT_MAX_KOPS], none[DT_MAX_KOPS];
        double hop = 2.0 * tokens / cp * 2 * 4096 / tp, fwd = 0, bwd = 0;
        int n = dt_cost_block_parts(ring, 0, 0, &shard, &w, k, part), at = 0;
        struct dt_cost_time there, both;

        dt_cost_block_parts(gather, 0, 0, &shard, &w, k, none);
        while (k[at].family != DT_KOP_ATTN_CAUSAL)
            at++;
        dt_cost_p2p(ring, tp * cp <= f.cluster.gpus_per_node, 1, hop, &there, NULL, NULL);
        dt_cost_p2p(ring, tp * cp <= f.cluster.gpus_per_node, 1, 2 * hop, &both, NULL, NULL);
        for (int step = 1; step < cp;
             step++) { /* beyond what attention to the keys at hand takes */
            fwd += fmax(0, there.ns - (cpu ? 0 : part[at].fwd.ns / cp));
            bwd += fmax(0, both.ns - (cpu ? 0 : part[at].dgrad.ns / cp));
        }
        exposed |= fwd > 0;
        hidden |= fwd <= 0;
        assert_near(part[at - 1].fwd.ns, fwd, 1e-9, "keys and values forward");
        assert_near(part[at - 1].dgrad.ns, bwd + there.ns, 1e-9, "keys and values backward");
        for (int j = 0; j < n; j++)
            if (j != at - 1)
                assert_near(part[j].fwd.ns + part[j].dgrad.ns, none[j].fwd.ns + none[j].dgrad.ns,
                            1e-12, "all else");
    }
    ck_assert(exposed && hidden == !cpu);
    dt_cost_free(gather);
    dt_cost_free(ring);
    fx_free(&f);
}
END_TEST

START_TEST(test_collectives_across_nodes)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_cost_time a, b, ar;
    double bytes = 3.4e9, line = 25e9;

    fx_init(&f);
    fx_collectives(&f);
    fx_index(&f);
    c = cost_of(&f, &plain);
    /* 12 ranks, one per node, alone: one NIC each; never faster than line rate, published plateau
     * 0.95 */
    dt_cost_collective(c, DT_KOP_REDUCE_SCATTER, 12, 1, 1, bytes, &a);
    ck_assert(a.ns > 1e9 * bytes * 11 / 12 / line);
    ck_assert(a.ns < 1e9 * bytes * 11 / 12 / line / 0.85);
    ck_assert(a.prov[DT_PROV_COMPUTED] == a.ns);
    /* eight of them share the node's four NICs: half a NIC each */
    dt_cost_collective(c, DT_KOP_REDUCE_SCATTER, 12, 1, 8, bytes, &b);
    assert_near(b.ns, 2 * a.ns, 0.02, "half the NIC");
    dt_cost_collective(c, DT_KOP_ALL_REDUCE, 12, 1, 8, bytes, &ar);
    ck_assert(ar.ns > 1.8 * b.ns && ar.ns < 2.2 * b.ns);
    /* more ranks are never faster, more bytes neither */
    for (int n = 2; n < 512; n *= 2) {
        dt_cost_collective(c, DT_KOP_ALL_REDUCE, n, 1, 8, 1e8, &a);
        dt_cost_collective(c, DT_KOP_ALL_REDUCE, 2 * n, 1, 8, 1e8, &b);
        ck_assert(b.ns >= a.ns);
    }
    for (double x = 1; x < 1e10; x *= 3) {
        dt_cost_collective(c, DT_KOP_ALL_GATHER, 64, 2, 4, x, &a);
        dt_cost_collective(c, DT_KOP_ALL_GATHER, 64, 2, 4, 3 * x, &b);
        ck_assert_msg(b.ns >= a.ns, "%g bytes: %g, thrice: %g", x, a.ns, b.ns);
    }
    dt_cost_collective(c, DT_KOP_ALL_TO_ALL, 16, 8, 1, 1e8, &a);
    ck_assert(a.ns > 1e9 * 8 * 1e8 * 8 / 16 / 100e9);
    /* a scalar over a thousand ranks goes by tree: tens of microseconds, not thousands of steps */
    dt_cost_collective(c, DT_KOP_ALL_REDUCE, 1024, 8, 1, 8, &a);
    ck_assert(a.ns > 5e4 && a.ns < 5e5);
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* Nodes of 8 GPUs with a NIC each, which lose nothing; links inside that are never in the way; no rows. */
static void open_nics(struct fixture *f, double nic_bytes_per_s)
{
    fx_init(f);
    fx_index(f);
    f->cluster.nics_per_node = 8;
    f->cluster.nic_bytes_per_s = nic_bytes_per_s;
    f->cluster.nic_efficiency = 1;
    f->cluster.nvlink_bytes_per_s = 1e15;
}

/* The table's own cells, with the NICs that it was made with. */
START_TEST(test_published_ring)
{
    static const struct {
        int ranks;
        double mib, ratio;
    } cells[] = {{16, 16, .32},    {16, 64, .50},    {16, 4096, .95},  {32, 256, .77},
                 {64, 64, .39},    {128, 16, .05},   {256, 256, .39},  {512, 1024, .56},
                 {1024, 16, .009}, {1024, 256, .10}, {1024, 4096, .74}};
    struct fixture f;
    struct dt_cost *c;
    struct dt_cost_time t;

    open_nics(&f, 50e9);
    c = cost_of(&f, &plain);
    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
        double bytes = cells[i].mib * 1048576, n = cells[i].ranks;

        dt_cost_collective(c, DT_KOP_REDUCE_SCATTER, cells[i].ranks, 8, 1, bytes, &t);
        assert_near(t.ns, 1e9 * bytes * (n - 1) / n / (400e9 * cells[i].ratio), 1e-9, "a cell");
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* Steps take as long over any NIC: what a slower one adds is the bytes'.  By hand: 128 ranks in as many nodes, of which
 * each has an eighth of its NICs; steps of 4 to 6.3 us, to which NCCL's own figure is near. */
START_TEST(test_ring_latency_is_no_bandwidth)
{
    const double bytes = 76e6;
    double last = INFINITY;

    for (double gbit = 12.5; gbit <= 800; gbit *= 2) {
        double nic = gbit / 8 * 1e9, moved = 1e9 * bytes * 127 / 128 / nic;
        struct fixture f;
        struct dt_cost *c;
        struct dt_cost_time t;

        open_nics(&f, nic);
        c = cost_of(&f, &plain);
        dt_cost_collective(c, DT_KOP_ALL_GATHER, 128, 1, 8, bytes, &t);
        ck_assert_msg(t.ns >= moved && t.ns < 1.09 * moved + 127 * 6.3e3,
                      "%g Gb/s: %g ns, the bytes alone %g", gbit, t.ns, moved);
        ck_assert(t.ns < last);
        last = t.ns;
        dt_cost_free(c);
        fx_free(&f);
    }
}
END_TEST

static double random_between(struct dt_rng *r, double low, double high) /* in the logarithm */
{
    return low * exp(dt_rng_uniform(r) * log(high / low));
}

/* Of any ring or tree over nodes: more bytes or slower NICs never take less, a little more takes a little more, and a part
 * of an all-reduce takes no more than all of it (where a rank's part is so small that a ring's steps, of 20 us at most, cost
 * more than its bytes, an all-reduce goes by tree, which the others do not have). */
START_TEST(test_ring_properties)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 20);
    for (int round = 0; round < 400; round++) {
        struct dt_cost_members m = {.per_node = 1 << dt_rng_below(&r, 4),
                                    .share = 1 << dt_rng_below(&r, 4)};
        enum dt_kop_family family =
            (enum dt_kop_family)(DT_KOP_ALL_REDUCE + (int)dt_rng_below(&r, 3));
        double nic = random_between(&r, 0.2e9, 400e9), bytes = random_between(&r, 1, 32e9), line;
        struct fixture f, slow;
        struct dt_cost *c, *d;
        struct dt_cost_time a, b;

        m.n = 1 + m.per_node + (int)random_between(&r, 1, 3000);
        m.ahead = (int)dt_rng_below(&r, (uint64_t)m.per_node);
        if (round % 3 == 0) /* a border of the table */
            bytes = 1048576.0 * (16 << 2 * dt_rng_below(&r, 5));
        open_nics(&f, nic);
        open_nics(&slow, nic / random_between(&r, 1, 10));
        c = cost_of(&f, &plain);
        d = cost_of(&slow, &plain);
        dt_cost_collective_of(c, family, &m, bytes, &a);
        dt_cost_collective_of(d, family, &m, bytes, &b);
        ck_assert_msg(b.ns >= a.ns * (1 - 1e-12), "seed %" PRIu64 ", round %d: slower NICs",
                      dt_test_seed(), round);
        dt_cost_collective_of(c, family, &m, bytes * random_between(&r, 1, 100), &b);
        ck_assert_msg(b.ns >= a.ns * (1 - 1e-12), "seed %" PRIu64 ", round %d: more bytes",
                      dt_test_seed(), round);
        dt_cost_collective_of(c, family, &m, bytes * (1 + 1e-6), &b);
        ck_assert_msg(b.ns <= a.ns * (1 + 1e-5), "seed %" PRIu64 ", round %d: a jump of %g",
                      dt_test_seed(), round, b.ns / a.ns);
        line = nic * fmin(1, 8.0 / m.share);
        dt_cost_collective_of(c, DT_KOP_ALL_REDUCE, &m, bytes, &b);
        ck_assert_msg(a.ns <= b.ns * (1 + 1e-12) || bytes / m.n < line * m.per_node * 20e-6,
                      "seed %" PRIu64 ", round %d: %g ns, an all-reduce %g", dt_test_seed(), round,
                      a.ns, b.ns);
        dt_cost_free(c);
        dt_cost_free(d);
        fx_free(&f);
        fx_free(&slow);
    }
}
END_TEST

/* By hand, of buffers so large that only links count: the last node's one rank has one NIC; a ring goes no faster over two
 * nodes than in one; a rank sends to those elsewhere by its own NIC, whatever its link inside carries. */
START_TEST(test_ranks_as_they_lie)
{
    const double bytes = 4e10;
    static const struct {
        enum dt_kop_family family;
        struct dt_cost_members m;
        double ns; /* of a byte, at 1 GB/s */
    } cases[] = {
        {DT_KOP_REDUCE_SCATTER, {9, 8, 0, 1}, 8. / 9 / 50}, /* 8 + 1 */
        {DT_KOP_REDUCE_SCATTER,
         {12, 8, 0, 1},
         11. / 12 / 148}, /* 8 + 4: 200 of NICs, 148 measured */
        {DT_KOP_REDUCE_SCATTER, {10, 8, 0, 1}, 9. / 10 / 100},  /* 8 + 2 */
        {DT_KOP_REDUCE_SCATTER, {10, 8, 7, 1}, 9. / 10 / 50},   /* 1 + 8 + 1 */
        {DT_KOP_REDUCE_SCATTER, {3, 4, 3, 2}, 2. / 3 / 50},     /* 1 + 2 */
        {DT_KOP_REDUCE_SCATTER, {16, 8, 0, 1}, 15. / 16 / 148}, /* NICs of 400 */
        {DT_KOP_ALL_GATHER, {4, 4, 2, 2}, 3. / 4 / 100},        /* 2 + 2 */
        {DT_KOP_ALL_REDUCE, {2, 2, 1, 4}, 2. / 2 / 50},         /* 1 + 1 */
        {DT_KOP_ALL_TO_ALL, {16, 8, 0, 1}, 8. / 16 / 50},       /* half of it leaves */
        {DT_KOP_ALL_TO_ALL, {8, 8, 4, 1}, 4. / 8 / 50},
        {DT_KOP_ALL_TO_ALL, {16, 2, 0, 4}, 14. / 16 / 50},
        {DT_KOP_ALL_TO_ALL, {16, 4, 0, 4}, 4 * 12. / 16 / 100}, /* a quarter of 8 NICs for four */
    };
    struct dt_cost_time t, inside;
    struct fixture f;
    struct dt_cost *c;

    open_nics(&f, 50e9);
    f.cluster.nvlink_bytes_per_s = 160e9;
    fx_collectives(&f); /* 148 GB/s */
    fx_index(&f);
    c = cost_of(&f, &plain);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        dt_cost_collective_of(c, cases[i].family, &cases[i].m, bytes, &t);
        assert_near(t.ns, bytes * cases[i].ns, 0.02, "as links allow");
    }
    for (int ahead = 0; ahead <= 4; ahead++) { /* four fit behind four */
        struct dt_cost_members m = {4, 8, ahead, 1};

        dt_cost_collective_of(c, DT_KOP_ALL_GATHER, &m, bytes, &t);
        dt_cost_collective(c, DT_KOP_ALL_GATHER, 4, 8, 1, bytes, &inside);
        ck_assert_double_eq(t.ns, inside.ns);
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* What a stated latency is longer than that of the rows comes with each step; what it is shorter does not. */
START_TEST(test_stated_latencies)
{
    struct fixture f;
    struct dt_cost_time t[3], far[3], up[3];
    double alpha[3], rate, row_ns = 23871 + 2048 / 7.8;

    fx_init(&f);
    fx_collectives(&f);
    fx_index(&f);
    for (int i = 0; i < 3; i++) {
        struct dt_cost *c;

        f.cluster.nic_latency_s = i == 0 ? -1 : i == 1 ? 1e-6 : 1e-9 * row_ns + 1e-3;
        c = cost_of(&f, &plain);
        dt_cost_p2p(c, false, 1, 1e6, &t[i], &alpha[i], &rate);
        dt_cost_collective(c, DT_KOP_ALL_GATHER, 12, 1, 1, 1e9, &far[i]);
        dt_cost_collective(c, DT_KOP_ALL_GATHER, 8, 8, 1, 1e9, &up[i]);
        dt_cost_free(c);
    }
    assert_near(alpha[0], row_ns, 1e-9, "not stated: the rows'");
    assert_near(alpha[1], 1e3, 1e-9, "shorter");
    assert_near(t[2].ns - t[0].ns, 1e6, 1e-6, "longer");
    assert_near(far[1].ns, far[0].ns, 1e-12, "a shorter one does not shorten collectives");
    assert_near(far[2].ns - far[0].ns, 11 * 1e6, 1e-6, "eleven steps of a ring of twelve");
    assert_near(up[2].ns, up[0].ns, 1e-12, "inside a node there is no NIC");
    fx_free(&f);
}
END_TEST

START_TEST(test_point_to_point)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_cost_time t;
    double alpha, rate;

    fx_init(&f);
    fx_collectives(&f);
    f.cluster.nvlink_latency_s = f.cluster.nic_latency_s = -1; /* not stated */
    fx_index(&f);
    c = cost_of(&f, &plain);
    dt_cost_p2p(c, true, 1, 1 << 25, &t, &alpha, &rate);
    assert_near(t.ns, 7913 + (1 << 25) / 151e9 * 1e9, 0.02, "inside a node");
    dt_cost_p2p(c, true, 8, 8.0 * (1 << 25), &t, NULL, NULL);
    assert_near(t.ns, 7913 + (1 << 25) / 151e9 * 1e9, 0.02, "eight pairs side by side");
    for (int same = 0; same <= 1; same++) {
        for (double bytes = 1; bytes < 1e10; bytes *= 7.31) {
            dt_cost_p2p(c, same, 4, bytes, &t, &alpha, &rate);
            assert_near(t.ns, alpha + 1e9 * bytes / rate, 1e-12, "alpha + bytes / rate");
            ck_assert(rate <= 4 * 160e9 * (1 + 1e-12));
        }
    }
    dt_cost_p2p(c, false, 8, 1e9, &t, &alpha, &rate);
    assert_near(rate, 4 * 25e9 * 0.94, 1e-12, "the whole node's NICs");
    assert_near(alpha, 23871 + 2048 / 7.8, 1e-9, "latency from the rows");
    dt_cost_free(c);

    f.cluster.nvlink_latency_s = 3.1e-6;
    f.profile.n_rows = 0; /* no rows at all: the cluster's own link figures */
    fx_index(&f);
    c = cost_of(&f, &plain);
    dt_cost_p2p(c, true, 1, 1.6e9, &t, &alpha, &rate);
    assert_near(t.ns, 3100 + 1e7, 1e-9, "NVLink");
    dt_cost_collective(c, DT_KOP_ALL_GATHER, 8, 8, 1, 1e9, &t);
    ck_assert(t.ns > 1e9 * 1e9 * 7 / 8 / 160e9 && t.ns < 1.05e9 * 1e9 * 7 / 8 / 160e9);
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

START_TEST(test_optimizer)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_cost_time t;

    fx_init(&f);
    fx_index(&f);
    c = cost_of(&f, &plain);
    dt_cost_optimizer(c, 1e9, &t);
    assert_near(t.ns, 30 * 1e9 / (2.039e12 * 0.8) * 1e9, 1e-12, "30 bytes per parameter");
    ck_assert(t.prov[DT_PROV_COMPUTED] == t.ns);
    dt_cost_optimizer(c, 0, &t);
    ck_assert(t.ns == 0);
    dt_cost_free(c);
    for (int64_t p = 1 << 20; p <= 1 << 30; p *= 4)
        fx_row(&f, DT_KOP_ADAMW, DT_PHASE_FWD, DT_ROW_MEASURED, &p, 1, 4000 + 0.0201 * (double)p);
    fx_index(&f);
    c = cost_of(&f, &plain);
    dt_cost_optimizer(c, 1 << 24, &t);
    assert_near(t.ns, 4000 + 0.0201 * (1 << 24), 1e-9, "a measured step");
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* A processor's caches may be faster than the bandwidth that its cluster states, which holds only beyond the rows; a
 * GPU's rows are not believed. */
START_TEST(test_optimizer_in_a_cache)
{
    const double times_faster = 10;
    struct fixture f;
    struct dt_cost_time t;
    struct dt_cost *c;

    fx_init(&f);
    for (int64_t p = 1 << 10; p <= 1 << 20; p *= 4)
        fx_row(&f, DT_KOP_ADAMW, DT_PHASE_FWD, DT_ROW_MEASURED, &p, 1,
               30 * (double)p / f.cluster.hbm_bytes_per_s / times_faster * 1e9);
    fx_index(&f);
    for (int cpu = 0; cpu < 2; cpu++) {
        f.cluster.cores_per_node = cpu ? 8 : 0;
        c = cost_of(&f, &plain);
        for (int64_t p = 1 << 12; p <= 3 << 20; p *= 3) {
            double roof = 30 * (double)p / f.cluster.hbm_bytes_per_s * 1e9;
            bool inside = p <= 1 << 20;

            dt_cost_optimizer(c, (double)p, &t);
            assert_near(t.ns, cpu && inside ? roof / times_faster : roof, 1e-9,
                        cpu ? "as measured" : "as memory allows");
            ck_assert(inside && cpu ? t.prov[DT_PROV_COMPUTED] == 0
                                    : t.prov[DT_PROV_COMPUTED] == t.ns);
        }
        dt_cost_free(c);
    }
    fx_free(&f);
}
END_TEST

/* What cores do for messages and collectives: rows themselves, in between for sizes and members in between, the smallest
 * row's below it; without rows, not known. */
START_TEST(test_carried)
{
    static const enum dt_kop_family family[] = {DT_KOP_SEND_RECV, DT_KOP_ALL_GATHER,
                                                DT_KOP_REDUCE_SCATTER, DT_KOP_ALL_REDUCE};
    struct fixture f;
    struct dt_cost *c;

    fx_init(&f);
    fx_index(&f);
    c = cost_of(&f, &plain);
    ck_assert_double_lt(dt_cost_carry_ns(c, DT_KOP_SEND_RECV, 1, 4096), 0);
    dt_cost_free(c);
    for (int64_t n = 1; n <= 4; n *= 2)
        for (int64_t sums = 0; sums <= (n > 1 ? 2 : 0); sums++)
            for (int64_t bytes = 4096; bytes <= 1 << 20; bytes *= 16) {
                const int64_t d[] = {n, sums, bytes};

                fx_row(&f, DT_KOP_CARRY, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3,
                       (double)n * (20000 + (double)bytes * (double)(sums + 1) / 10));
            }
    fx_index(&f);
    c = cost_of(&f, &plain);
    for (int k = 0; k < 4; k++) {
        int n = k == 0 ? 1 : 2, sums = k == 0 ? 0 : k - 1;
        double small = n * (20000 + 409.6 * (sums + 1)), large = n * (20000 + 6553.6 * (sums + 1));
        double between = dt_cost_carry_ns(c, family[k], n, 20000);

        assert_near(dt_cost_carry_ns(c, family[k], n, 4096), small, 1e-9, "a row");
        assert_near(dt_cost_carry_ns(c, family[k], n, 65536), large, 1e-9, "another");
        assert_near(dt_cost_carry_ns(c, family[k], n, 1), small, 1e-9, "below the rows");
        ck_assert_double_gt(between, small);
        ck_assert_double_lt(between, large);
        if (n > 1) {
            ck_assert_double_gt(dt_cost_carry_ns(c, family[k], 3, 65536), large);
            ck_assert_double_lt(dt_cost_carry_ns(c, family[k], 3, 65536), 2 * large);
        }
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("communication cost");
    TCase *t = dt_test_case(s, "communication", 0);

    tcase_add_test(t, test_collectives_in_a_node);
    tcase_add_loop_test(t, test_a_ring_of_keys, 0, 2);
    tcase_add_loop_test(t, test_tensor_parallel_collectives, 0, 2);
    tcase_add_test(t, test_collectives_across_nodes);
    tcase_add_test(t, test_published_ring);
    tcase_add_test(t, test_ring_latency_is_no_bandwidth);
    tcase_add_test(t, test_ring_properties);
    tcase_add_test(t, test_ranks_as_they_lie);
    tcase_add_test(t, test_context_parallel_groups_span_nodes);
    tcase_add_test(t, test_rows_of_another_link);
    tcase_add_test(t, test_stated_latencies);
    tcase_add_test(t, test_point_to_point);
    tcase_add_test(t, test_optimizer);
    tcase_add_test(t, test_optimizer_in_a_cache);
    tcase_add_test(t, test_carried);
    return dt_test_run(s);
}
