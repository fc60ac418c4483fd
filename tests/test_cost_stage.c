/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/cost/cost.h"
#include "base/rng.h"
#include "core/cost/cost_internal.h"
#include "cost_fixture.h"
#include "test_util.h"

struct rig {
    struct fixture f;
    struct dt_cost *c;
    int vit, llm;
};

static void rig_open_with(struct rig *r, const struct dt_cost_options *o)
{
    struct dt_error err = {0};

    fx_init(&r->f);
    r->vit = fx_vit(&r->f, 8, 1280, 5120, 16, 8192);
    r->llm = fx_llm(&r->f, 16, 8192, 28672, 64, 8, 32000);
    fx_profile(&r->f, true);
    dt_assert_ok(dt_cost_new(&r->f.model, &r->f.cluster, &r->f.profile, o, &err, &r->c), err);
}

static void rig_open(struct rig *r, bool stepccl)
{
    rig_open_with(r, &(struct dt_cost_options){.stepccl = stepccl});
}

static void rig_open_fp32(struct rig *r)
{
    rig_open_with(r, &(struct dt_cost_options){.fp32 = true});
}

static void rig_close(struct rig *r)
{
    dt_cost_free(r->c);
    fx_free(&r->f);
}

static void assert_near(double a, double b, double rel, const char *what)
{
    ck_assert_msg(fabs(a - b) <= rel * fabs(b) + 1e-6, "%s: %.9g is not %.9g within %g", what, a, b,
                  rel);
}

static struct dt_cost_stage layers_as(struct rig *r, int n, int tp, enum dt_block_recompute how)
{
    struct dt_block_shard shard = fx_shard(tp);
    struct dt_work w = fx_text(1, 8192);
    struct dt_cost_stage s;

    shard.recompute = how;
    dt_cost_stage(r->c, r->llm, 1, n, &shard, &w, NULL, true, &s);
    return s;
}

static struct dt_cost_stage layers(struct rig *r, int n, int tp)
{
    return layers_as(r, n, tp, DT_RECOMPUTE_NONE);
}

/* Kernels of one layer summed by hand, and its collectives apart. */
static void by_hand(struct rig *r, int tp, double *kernels, double *collectives)
{
    struct dt_block_shard shard = fx_shard(tp);
    struct dt_work w = fx_text(1, 8192);
    struct dt_kop k[DT_MAX_KOPS];
    int n = dt_block_kops(&r->f.model.modules[r->llm].blocks[1], &shard, &w, k);

    *kernels = *collectives = 0;
    for (int i = 0; i < n; i++) {
        struct dt_cost_time t;

        dt_cost_kernel(r->c, &k[i], DT_PHASE_FWD, &t);
        *(k[i].family >= DT_KOP_ALL_REDUCE ? collectives : kernels) += t.ns;
    }
}

START_TEST(test_forward_is_the_sum)
{
    struct rig r;

    rig_open(&r, false);
    for (int tp = 1; tp <= 8; tp *= 2) {
        double kernels, collectives;
        struct dt_cost_stage one = layers(&r, 1, tp), ten = layers(&r, 10, tp);

        by_hand(&r, tp, &kernels, &collectives);
        ck_assert((collectives > 0) == (tp > 1));
        assert_near(one.fwd.ns, kernels + collectives, 1e-12, "exposed collectives");
        assert_near(ten.fwd.ns, 10 * one.fwd.ns, 1e-12, "ten layers, forward");
        assert_near(ten.dgrad.ns, 10 * one.dgrad.ns, 1e-12, "ten layers, input gradients");
        assert_near(ten.wgrad.ns, 10 * one.wgrad.ns, 1e-12, "ten layers, weight gradients");
        /* two matrix products backward for one forward */
        ck_assert(one.dgrad.ns + one.wgrad.ns > 1.8 * one.fwd.ns);
        ck_assert(one.dgrad.ns + one.wgrad.ns < 2.5 * one.fwd.ns);
    }
    rig_close(&r);
}
END_TEST

/* The same by hand, of collectives of twice the bytes. */
START_TEST(test_fp32_collectives_are_twice_as_long)
{
    struct rig r, bf16;
    struct dt_block_shard shard = fx_shard(4);
    struct dt_work w = fx_text(1, 8192);
    struct dt_kop k[DT_MAX_KOPS];
    struct dt_cost_stage one;
    double sum = 0;
    int n;

    rig_open(&bf16, false);
    rig_open_fp32(&r);
    n = dt_block_kops(&r.f.model.modules[r.llm].blocks[1], &shard, &w, k);
    for (int i = 0; i < n; i++) {
        struct dt_cost_time t;

        if (k[i].family >= DT_KOP_ALL_REDUCE) {
            k[i].d[2] *= 2;
            k[i].bytes *= 2;
        }
        dt_cost_kernel(r.c, &k[i], DT_PHASE_FWD, &t);
        sum += t.ns;
    }
    one = layers(&r, 1, 4);
    assert_near(one.fwd.ns, sum, 1e-12, "a layer in fp32");
    ck_assert_double_gt(one.fwd.ns, layers(&bf16, 1, 4).fwd.ns);
    rig_close(&r);
    rig_close(&bf16);
}
END_TEST

/* With StepCCL a layer takes no more than with its collectives exposed and no less than without
 * any. */
/* A rank keeps keys and values of its own tokens: others' come forward and again backward, and gradients go back. */
START_TEST(test_keys_are_gathered_twice)
{
    struct dt_block_shard shard = {.tp = 1, .cp = 4, .ep = 1, .ip = 1};
    struct dt_work w = fx_text(1, 8192);
    struct dt_cost_block_times part[DT_MAX_KOPS];
    struct dt_kop k[DT_MAX_KOPS];
    struct rig r;
    int n, found = 0;

    rig_open(&r, false);
    n = dt_cost_block_parts(r.c, r.llm, 1, &shard, &w, k, part);
    for (int i = 0; i < n; i++) {
        struct dt_kop back = k[i];
        struct dt_cost_time forth, reverse;

        if (k[i].family != DT_KOP_ALL_GATHER)
            continue;
        back.family = DT_KOP_REDUCE_SCATTER;
        dt_cost_kernel(r.c, &k[i], DT_PHASE_FWD, &forth);
        dt_cost_kernel(r.c, &back, DT_PHASE_FWD, &reverse);
        ck_assert_double_gt(forth.ns, 0);
        ck_assert_double_gt(reverse.ns, 0);
        assert_near(part[i].fwd.ns, forth.ns, 1e-12, "gathered forward");
        assert_near(part[i].dgrad.ns, forth.ns + reverse.ns, 1e-12, "gathered and scattered");
        found++;
    }
    ck_assert_int_eq(found, 1);
    rig_close(&r);
}
END_TEST

START_TEST(test_stepccl_bounds)
{
    struct rig off, on;

    rig_open(&off, false);
    rig_open(&on, true);
    for (int tp = 1; tp <= 8; tp *= 2) {
        struct dt_cost_stage a = layers(&off, 1, tp), b = layers(&on, 1, tp);
        double kernels, collectives, hidden;

        by_hand(&off, tp, &kernels, &collectives);
        if (tp == 1) {
            ck_assert(a.fwd.ns == b.fwd.ns && a.dgrad.ns == b.dgrad.ns);
            continue;
        }
        hidden = (a.fwd.ns - b.fwd.ns) / collectives;
        ck_assert_msg(hidden > 0.3 && hidden < 0.9, "tp %d hides %.0f %%", tp, 100 * hidden);
        ck_assert(b.fwd.ns > kernels && b.dgrad.ns < a.dgrad.ns);
        ck_assert(a.wgrad.ns == b.wgrad.ns);
    }
    rig_close(&off);
    rig_close(&on);
}
END_TEST

/* ---- StepCCL's pipeline by hand ---- */

/* A layer whose MLP multiplies TOKENS rows by square matrices on every member: sizes of the profile's own rows, so that times
 * are those of the made-up device. */
enum { TOKENS = 8192 };
struct pair {
    int tp, width, stated;
    bool cpu;
};

static double gemm_of(const struct pair *p, enum dt_kop_phase phase, int chunks)
{
    return fx_gemm_ns((double)TOKENS / chunks, p->width, p->width) *
           (phase == DT_PHASE_DGRAD ? 1.031 : 1);
}

/* What a collective beside its product adds to it (cost_block.c, the picture at the top): g + (c - 1) max(g, G + r) + G + r
 * less the product in one piece, for the best number of chunks, or for the stated one.  On a CPU nothing is beside anything. */
static double exposed_of(const struct fixture *f, const struct pair *p, int family,
                         enum dt_kop_phase phase)
{
    double whole = fx_coll_ns(family, p->tp, 2.0 * TOKENS * p->width),
           latency = fx_coll_ns(family, p->tp, 1024), best = whole;
    bool remapped = phase == DT_PHASE_FWD || p->stated;

    for (int c = 2; c <= 8; c *= 2) {
        double g = latency + (whole - latency) / c, r = 4.0 * TOKENS * p->width / c,
               step = gemm_of(p, phase, c) +
                      (remapped ? 1e9 * r / (0.8 * f->cluster.hbm_bytes_per_s) : 0),
               total = p->cpu ? c * (g + step) : g + (c - 1) * fmax(g, step) + step;

        if (p->stated ? p->stated == c : total - gemm_of(p, phase, 1) < best)
            best = total - gemm_of(p, phase, 1);
    }
    return best;
}

/* Of the layer the all-gather before the first product and the reduce-scatter behind the second. */
static int pairs_of(struct rig *r, const struct pair *p, struct dt_cost_time got[2][2])
{
    struct dt_cost_options o = {.stepccl = true, .stepccl_chunks = p->stated};
    struct dt_cost_block_times part[DT_MAX_KOPS];
    struct dt_block_shard shard = fx_shard(p->tp);
    struct dt_work w = fx_text(1, TOKENS);
    struct dt_kop k[DT_MAX_KOPS];
    struct dt_error err = {0};
    int n, found = 0;

    fx_init(&r->f);
    if (p->cpu)
        strcpy(r->f.cluster.device, "cpu");
    r->llm = fx_llm(&r->f, 1, p->width, p->width * p->tp, 16, 16, 32000);
    r->f.model.modules[r->llm].blocks[1].gated = false;
    fx_profile(&r->f, true);
    dt_assert_ok(dt_cost_new(&r->f.model, &r->f.cluster, &r->f.profile, &o, &err, &r->c), err);
    n = dt_cost_block_parts(r->c, r->llm, 1, &shard, &w, k, part);
    for (int i = 1; i + 1 < n; i++) {
        const struct dt_kop *gemm = &k[k[i].family == DT_KOP_ALL_GATHER ? i + 1 : i - 1];
        int at = k[i].family == DT_KOP_REDUCE_SCATTER;

        if ((at || k[i].family == DT_KOP_ALL_GATHER) && gemm->d[1] == p->width &&
            gemm->d[2] == p->width) {
            got[at][0] = part[i].fwd;
            got[at][1] = part[i].dgrad;
            found++;
        }
    }
    return found;
}

START_TEST(test_stepccl_by_hand)
{
    static const struct pair pairs[] = {
        {2, 4096, 0, false}, {4, 4096, 0, false}, {8, 4096, 0, false}, /* the product is longer */
        {2, 1024, 0, false}, {4, 1024, 0, false}, {8, 1024, 0, false}, /* the collective is */
        {4, 4096, 2, false}, {8, 1024, 4, false}, {4, 1024, 8, false},
        {4, 4096, 2, true},  {2, 1024, 8, true},  {4, 1024, 0, true},
    };

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        static const int families[] = {DT_KOP_ALL_GATHER, DT_KOP_REDUCE_SCATTER};
        const struct pair *p = &pairs[i];
        struct dt_cost_time got[2][2];
        struct rig r;

        ck_assert_int_eq(pairs_of(&r, p, got), 2);
        for (int k = 0; k < 2; k++)
            for (int back = 0; back < 2; back++) {
                enum dt_kop_phase phase = back ? DT_PHASE_DGRAD : DT_PHASE_FWD;
                double want = p->cpu && !p->stated ? fx_coll_ns(0, p->tp, 2.0 * TOKENS * p->width)
                                                   : exposed_of(&r.f, p, families[k ^ back], phase);

                ck_assert_msg(fabs(got[k][back].ns - want) <= 1e-9 * gemm_of(p, phase, 1),
                              "tp %d, width %d, %d chunks stated%s: %s, %s: %.9g ns, not %.9g",
                              p->tp, p->width, p->stated, p->cpu ? ", CPU" : "",
                              dt_kop_family_names[families[k]], back ? "backward" : "forward",
                              got[k][back].ns, want);
            }
        rig_close(&r);
    }
}
END_TEST

/* Unfused blocks add up weights' gradients between a product and its reduce-scatter, which overlap all the same: as much
 * of the forward as those behind all-gathers. */
START_TEST(test_stepccl_of_unfused_blocks)
{
    struct rig off, on;

    rig_open(&off, false);
    rig_open(&on, true);
    for (int i = 0; i < 2; i++) {
        struct rig *r = i ? &on : &off;
        struct dt_module *mod = &r->f.model.modules[r->llm];

        for (int b = 0; b < mod->n_blocks; b++)
            mod->blocks[b].unfused = true;
    }
    for (int tp = 2; tp <= 8; tp *= 2) {
        struct dt_block_shard shard = fx_shard(tp);
        struct dt_work w = fx_text(1, 8192);
        struct dt_kop k[DT_MAX_KOPS];
        struct dt_cost_block_times a[DT_MAX_KOPS], b[DT_MAX_KOPS];
        int n = dt_cost_block_parts(off.c, off.llm, 1, &shard, &w, k, a), found = 0;

        ck_assert_int_eq(dt_cost_block_parts(on.c, on.llm, 1, &shard, &w, k, b), n);
        for (int i = 0; i < n; i++) {
            if (k[i].family != DT_KOP_ALL_GATHER && k[i].family != DT_KOP_REDUCE_SCATTER)
                continue;
            ck_assert_msg(b[i].fwd.ns < 0.8 * a[i].fwd.ns, "tp %d, %s: %g of %g ns exposed", tp,
                          dt_kop_family_names[k[i].family], b[i].fwd.ns, a[i].fwd.ns);
            found++;
        }
        ck_assert_int_eq(found, 4);
    }
    rig_close(&off);
    rig_close(&on);
}
END_TEST

/* Stated chunks are all there are: where they are the best there are, they cost no less than the free choice (the
 * executor's remap is never the smaller one), and one chunk is no overlap.  A weight's gradient pays for the order of
 * its rows. */
START_TEST(test_stated_chunks)
{
    struct rig off, on, stated[5];

    rig_open(&off, false);
    rig_open(&on, true);
    for (int i = 0; i < 5; i++)
        rig_open_with(&stated[i],
                      &(struct dt_cost_options){.stepccl = true, .stepccl_chunks = 1 << i});
    for (int tp = 2; tp <= 8; tp *= 2) {
        struct dt_cost_stage a = layers(&off, 1, tp), b = layers(&on, 1, tp);
        struct dt_cost_stage one = layers(&stated[0], 1, tp);

        ck_assert(one.fwd.ns == a.fwd.ns && one.dgrad.ns == a.dgrad.ns);
        ck_assert(one.wgrad.ns == a.wgrad.ns);
        for (int i = 1; i < 5; i++) {
            struct dt_cost_stage s = layers(&stated[i], 1, tp);

            ck_assert_msg(s.fwd.ns >= b.fwd.ns && (tp < 8 || s.fwd.ns < a.fwd.ns),
                          "tp %d, %d chunks: forward %.0f, best %.0f, whole %.0f", tp, 1 << i,
                          s.fwd.ns, b.fwd.ns, a.fwd.ns);
            ck_assert(s.wgrad.ns > a.wgrad.ns);
        }
    }
    for (int i = 0; i < 5; i++)
        rig_close(&stated[i]);
    rig_close(&off);
    rig_close(&on);
}
END_TEST

START_TEST(test_freezing)
{
    struct rig r;
    struct dt_block_shard shard = fx_shard(2);
    struct dt_work w = fx_text(1, 8192);
    unsigned char trained[18];
    struct dt_cost_stage all, s, head;

    rig_open(&r, false);
    memset(trained, 0, sizeof(trained));
    dt_cost_stage(r.c, r.llm, 0, 18, &shard, &w, NULL, true, &all);
    dt_cost_stage(r.c, r.llm, 0, 18, &shard, &w, trained, false, &s);
    ck_assert(s.fwd.ns == all.fwd.ns && s.dgrad.ns == 0 && s.wgrad.ns == 0);
    dt_cost_stage(r.c, r.llm, 0, 18, &shard, &w, trained, true, &s);
    ck_assert(s.dgrad.ns == all.dgrad.ns && s.wgrad.ns == 0);
    trained[17] = 1; /* only the head: no gradient leaves it */
    dt_cost_stage(r.c, r.llm, 0, 18, &shard, &w, trained, false, &s);
    dt_cost_stage(r.c, r.llm, 17, 1, &shard, &w, NULL, true, &head);
    ck_assert(s.dgrad.ns == 0 && s.wgrad.ns >= head.wgrad.ns && s.wgrad.ns < 2 * head.wgrad.ns);
    trained[17] = 0;
    /* blocks above the trained one pass gradients down to it, blocks below do nothing */
    trained[4] = 1;
    dt_cost_stage(r.c, r.llm, 0, 18, &shard, &w, trained, false, &s);
    dt_cost_stage(r.c, r.llm, 5, 13, &shard, &w, trained, true, &head);
    assert_near(s.dgrad.ns, head.dgrad.ns, 1e-12, "blocks above the trained one");
    rig_close(&r);
}
END_TEST

START_TEST(test_recompute)
{
    struct rig r;
    struct dt_cost_stage a, b, c;
    unsigned char frozen[18] = {0};
    struct dt_block_shard shard = fx_shard(4);
    struct dt_work w = fx_text(1, 8192);

    rig_open(&r, true);
    a = layers_as(&r, 3, 4, DT_RECOMPUTE_NONE);
    b = layers_as(&r, 3, 4, DT_RECOMPUTE_SELECTIVE);
    c = layers_as(&r, 3, 4, DT_RECOMPUTE_FULL);
    ck_assert(a.fwd.ns == b.fwd.ns && a.fwd.ns == c.fwd.ns && a.wgrad.ns == c.wgrad.ns);
    assert_near(c.dgrad.ns, a.dgrad.ns + a.fwd.ns, 1e-12, "the whole forward again");
    ck_assert(b.dgrad.ns > a.dgrad.ns && b.dgrad.ns < a.dgrad.ns + 0.2 * a.fwd.ns);
    shard.recompute = DT_RECOMPUTE_FULL;
    dt_cost_stage(r.c, r.llm, 1, 3, &shard, &w, frozen, false, &c);
    ck_assert(c.dgrad.ns == 0); /* nothing to recompute for */
    rig_close(&r);
}
END_TEST

/* The memo answers what the sum says, for any mix of questions. */
START_TEST(test_memo_property)
{
    struct rig r;
    struct dt_rng rng;
    uint64_t seed = dt_test_seed();

    rig_open(&r, true);
    dt_rng_init(&rng, seed, 4);
    for (int i = 0; i < 4000; i++) {
        int module = (int)dt_rng_below(&rng, 2), n_blocks = r.f.model.modules[module].n_blocks;
        int first = (int)dt_rng_below(&rng, (uint64_t)n_blocks);
        int n = 1 + (int)dt_rng_below(&rng, (uint64_t)(n_blocks - first));
        struct dt_block_shard shard = fx_shard(1 << dt_rng_below(&rng, 4));
        bool upstream = dt_rng_below(&rng, 2) != 0;
        unsigned char trained[18], *t = dt_rng_below(&rng, 2) ? trained : NULL;
        struct dt_work w = {0};
        struct dt_cost_stage s;
        struct dt_cost_stage_ns ns;

        shard.recompute = (enum dt_block_recompute)dt_rng_below(&rng, 3);
        for (int b = 0; b < 18; b++)
            trained[b] = dt_rng_below(&rng, 4) != 0;
        for (int64_t k = (int64_t)dt_rng_below(&rng, 9); k > 0; k--) {
            int64_t len = 64 * (1 + (int64_t)dt_rng_below(&rng, 3));
            struct dt_work one = fx_text(1, len);

            dt_work_add(&w, &one);
        }
        dt_cost_stage(r.c, module, first, n, &shard, &w, t, upstream, &s);
        for (int twice = 0; twice < 2; twice++) {
            ns = dt_cost_stage_ns(r.c, module, first, n, &shard, &w, t, upstream);
            ck_assert_msg(ns.fwd == s.fwd.ns && ns.bwd == s.dgrad.ns + s.wgrad.ns,
                          "seed %" PRIu64 ", question %d", seed, i);
        }
        for (int k = 0; k < 3; k++) {
            const struct dt_cost_time *x = k == 0 ? &s.fwd : k == 1 ? &s.dgrad : &s.wgrad;
            double sum = 0;

            for (int p = 0; p < DT_PROV_N; p++)
                sum += x->prov[p];
            assert_near(sum, x->ns, 1e-9, "provenance");
            ck_assert(isfinite(x->ns) && x->ns >= 0);
        }
    }
    rig_close(&r);
}
END_TEST

static bool all_like(const struct dt_module *m, int block, int from, int n)
{
    for (int b = from; b < from + n; b++)
        if (b >= m->n_blocks || memcmp(&m->blocks[b], &m->blocks[block], sizeof(m->blocks[b])) != 0)
            return false;
    return true;
}

/* Stages of equal blocks are sent to the first such blocks of the module, all others nowhere. */
START_TEST(test_stages_alike)
{
    struct rig r;
    int moved = 0;

    rig_open(&r, false);
    for (int m = 0; m < r.f.model.n_modules; m++) {
        struct dt_module *x = &r.f.model.modules[m];

        for (int first = 0; first < x->n_blocks; first++)
            for (int n = 1; first + n <= x->n_blocks; n++) {
                int want = 0;

                while (!all_like(x, first, want, 1))
                    want++;
                if (!all_like(x, first, first, n) || !all_like(x, first, want, n))
                    want = first;
                ck_assert_int_eq(dt_cost_stage_like(r.c, m, first, n), want);
                moved += want != first;
            }
    }
    ck_assert_int_gt(moved, 20);
    rig_close(&r);
}
END_TEST

/* More work never takes less time. */
START_TEST(test_more_images_take_longer)
{
    struct rig r;
    struct dt_block_shard shard = fx_shard(1);
    struct dt_work w = {0}, image = fx_text(1, 1024);
    double last = 0;

    rig_open(&r, false);
    ck_assert(dt_cost_stage_ns(r.c, r.vit, 0, 9, &shard, &w, NULL, true).fwd == 0);
    for (int i = 0; i < 60; i++) {
        struct dt_cost_stage_ns ns;

        dt_work_add(&w, &image);
        ns = dt_cost_stage_ns(r.c, r.vit, 0, 9, &shard, &w, NULL, true);
        ck_assert(ns.fwd >= last && ns.bwd > ns.fwd);
        last = ns.fwd;
    }
    rig_close(&r);
}
END_TEST

/* One layer of the 70B shape at 8,192 tokens, as model FLOPs over time: between the hand-made
 * device's kernel efficiency and half of it; wider tensor parallelism is less efficient, StepCCL
 * gives back a part. */
START_TEST(test_layer_efficiency)
{
    struct rig off, on;
    struct dt_work w = fx_text(1, 8192);
    double last = 1;

    rig_open(&off, false);
    rig_open(&on, true);
    for (int tp = 1; tp <= 8; tp *= 2) {
        double flops = 3 * dt_block_flops(&off.f.model.modules[off.llm].blocks[1], &w) / tp;
        struct dt_cost_stage a = layers(&off, 1, tp), b = layers(&on, 1, tp);
        double x = flops / (a.fwd.ns + a.dgrad.ns + a.wgrad.ns) / 312e3;
        double y = flops / (b.fwd.ns + b.dgrad.ns + b.wgrad.ns) / 312e3;

        ck_assert_msg(x > 0.4 && x < 0.79 && x < last, "tp %d: %.3f", tp, x);
        ck_assert_msg(y >= x && y < 0.79, "tp %d: %.3f with StepCCL, %.3f without", tp, y, x);
        last = x;
    }
    rig_close(&off);
    rig_close(&on);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stage cost");
    TCase *t = dt_test_case(s, "stages", 60);

    tcase_add_test(t, test_forward_is_the_sum);
    tcase_add_test(t, test_fp32_collectives_are_twice_as_long);
    tcase_add_test(t, test_keys_are_gathered_twice);
    tcase_add_test(t, test_stepccl_bounds);
    tcase_add_test(t, test_stepccl_by_hand);
    tcase_add_test(t, test_stepccl_of_unfused_blocks);
    tcase_add_test(t, test_stated_chunks);
    tcase_add_test(t, test_freezing);
    tcase_add_test(t, test_recompute);
    tcase_add_test(t, test_memo_property);
    tcase_add_test(t, test_stages_alike);
    tcase_add_test(t, test_more_images_take_longer);
    tcase_add_test(t, test_layer_efficiency);
    return dt_test_run(s);
}
