/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/cost/cost.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cost_fixture.h"
#include "test_util.h"

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

static void assert_sums(const struct dt_cost_time *t)
{
    double sum = 0;

    for (int i = 0; i < DT_PROV_N; i++) {
        ck_assert(t->prov[i] >= 0);
        sum += t->prov[i];
    }
    assert_near(sum, t->ns, 1e-12, "provenance");
}

static struct dt_kop gemm(int64_t m, int64_t n, int64_t k)
{
    struct dt_kop op = {.family = DT_KOP_GEMM, .d = {m, n, k}, .count = 1, .has_weight = true};

    op.flops = 2.0 * (double)m * (double)n * (double)k;
    op.bytes = 2.0 * ((double)m * (double)n + (double)n * (double)k + (double)m * (double)k);
    return op;
}

static double cost_of_gemm(const int64_t *d)
{
    return 2.0 * (double)d[0] * (double)d[1] * (double)d[2];
}

/* ---- interpolation ---- */

START_TEST(test_exact_on_knots)
{
    struct fixture f;
    struct dt_cost *c;

    fx_init(&f);
    fx_profile(&f, true);
    c = cost_of(&f, &plain);
    for (int64_t i = 0; i < f.profile.n_rows; i++) {
        const struct dt_profile_row *r = &f.profile.rows[i];
        struct dt_kop op = {
            .family = (enum dt_kop_family)r->family, .count = 1, .has_weight = true};
        struct dt_cost_time t;

        if (r->family == DT_KOP_SEND_RECV)
            continue;
        memcpy(op.d, r->d, sizeof(op.d));
        dt_cost_kernel(c, &op, (enum dt_kop_phase)r->phase, &t);
        assert_near(t.ns, r->median_ns, 1e-9, dt_kop_family_names[r->family]);
        assert_sums(&t);
        ck_assert_msg(t.prov[DT_PROV_MEASURED] == t.ns, "row %d of %s is not measured", (int)i,
                      dt_kop_family_names[r->family]);
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

START_TEST(test_between_knots)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_rng rng;
    struct dt_cost_time t;

    fx_init(&f);
    fx_profile(&f, false);
    c = cost_of(&f, &plain);
    dt_rng_init(&rng, dt_test_seed(), 1);
    for (int i = 0; i < 2000; i++) {
        int64_t m = 16 + (int64_t)dt_rng_below(&rng, 65500),
                n = 256 + (int64_t)dt_rng_below(&rng, 65000),
                k = 256 + (int64_t)dt_rng_below(&rng, 65000);
        struct dt_kop op = gemm(m, n, k);

        dt_cost_kernel(c, &op, DT_PHASE_FWD, &t);
        ck_assert_msg(t.prov[DT_PROV_INTERPOLATED] == t.ns || t.prov[DT_PROV_MEASURED] == t.ns,
                      "seed %" PRIu64 ": %d %d %d", dt_test_seed(), (int)m, (int)n, (int)k);
        /* the knots are a factor 4 apart in n and k: the launch share makes the worst case */
        ck_assert_msg(fabs(t.ns / fx_gemm_ns((double)m, (double)n, (double)k) - 1) < 0.25,
                      "seed %" PRIu64 ": gemm %d %d %d is %g, device %g", dt_test_seed(), (int)m,
                      (int)n, (int)k, t.ns, fx_gemm_ns((double)m, (double)n, (double)k));
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

START_TEST(test_monotone_in_tokens)
{
    struct fixture f;
    struct dt_cost *c;
    double last = 0;

    fx_init(&f);
    fx_profile(&f, false);
    c = cost_of(&f, &plain);
    for (int64_t m = 1; m < 200000; m += 1 + m / 37) {
        struct dt_kop op = gemm(m, 3333, 7777);
        struct dt_cost_time t;

        dt_cost_kernel(c, &op, DT_PHASE_FWD, &t);
        ck_assert_msg(t.ns >= last * (1 - 1e-12), "m = %d takes %g, less than %g", (int)m, t.ns,
                      last);
        last = t.ns;
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

START_TEST(test_extrapolation_holds_efficiency)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_kop at = gemm(1 << 16, 4096, 4096), far = gemm(5 << 16, 4096, 4096),
                  tiny = gemm(1, 4096, 4096);
    struct dt_kop wide = gemm(4096, 1 << 18, 4096);
    struct dt_cost_time a, b;

    fx_init(&f);
    fx_profile(&f, false);
    c = cost_of(&f, &plain);
    dt_cost_kernel(c, &at, DT_PHASE_FWD, &a);
    dt_cost_kernel(c, &far, DT_PHASE_FWD, &b);
    assert_near(b.ns, 5 * a.ns, 1e-12, "five times the largest size");
    ck_assert(b.prov[DT_PROV_EXTRAPOLATED] == b.ns);
    dt_cost_kernel(c, &wide, DT_PHASE_FWD, &b);
    ck_assert(b.prov[DT_PROV_EXTRAPOLATED] == b.ns);
    /* below the table a kernel is no faster than the fastest one measured */
    dt_cost_kernel(c, &tiny, DT_PHASE_FWD, &b);
    ck_assert(b.ns >= fx_gemm_ns(16, 256, 256) * (1 - 1e-12));
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

START_TEST(test_never_below_roofline)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_rng rng;
    int64_t d[3] = {4096, 4096, 4096};

    fx_init(&f);
    fx_row(&f, DT_KOP_GEMM, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3, 100000); /* 4.4 x the peak */
    fx_index(&f);
    c = cost_of(&f, &plain);
    dt_rng_init(&rng, dt_test_seed(), 2);
    for (int i = 0; i < 500; i++) {
        struct dt_kop op =
            gemm(1 + (int64_t)dt_rng_below(&rng, 9000), 1 + (int64_t)dt_rng_below(&rng, 9000),
                 1 + (int64_t)dt_rng_below(&rng, 9000));
        double floor_ns =
            1e9 * fmax(op.flops / f.cluster.peak_flops, op.bytes / f.cluster.hbm_bytes_per_s);
        struct dt_cost_time t;

        for (int phase = 0; phase < DT_PHASE_N; phase++) {
            dt_cost_kernel(c, &op, (enum dt_kop_phase)phase, &t);
            ck_assert_msg(t.ns >= floor_ns * (1 - 1e-12), "seed %" PRIu64, dt_test_seed());
            assert_sums(&t);
        }
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

START_TEST(test_scattered_rows)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_rng rng;
    struct dt_cost_time t;

    fx_init(&f);
    dt_rng_init(&rng, dt_test_seed(), 3);
    for (int i = 0; i < 400; i++) {
        int64_t d[5] = {1 + (int64_t)dt_rng_below(&rng, 32), 64 + (int64_t)dt_rng_below(&rng, 4000),
                        1 + (int64_t)dt_rng_below(&rng, 63), 1, 64};
        double flops = 4.0 * (double)(d[0] * d[1] * d[1] * d[2]) * 64;

        fx_row(&f, DT_KOP_ATTN_FULL, DT_PHASE_FWD, DT_ROW_MEASURED, d, 5,
               flops / (0.4 * 312e12) * 1e9);
    }
    fx_index(&f);
    c = cost_of(&f, &plain);
    for (int i = 0; i < 500; i++) {
        struct dt_kop op = {.family = DT_KOP_ATTN_FULL, .count = 1};

        op.d[0] = 1 + (int64_t)dt_rng_below(&rng, 40);
        op.d[1] = 64 + (int64_t)dt_rng_below(&rng, 5000);
        op.d[2] = 1 + (int64_t)dt_rng_below(&rng, 80);
        op.d[3] = 1;
        op.d[4] = 64;
        op.flops = 4.0 * (double)(op.d[0] * op.d[1] * op.d[1] * op.d[2]) * 64;
        dt_cost_kernel(c, &op, DT_PHASE_FWD, &t);
        if (t.ns > 1.5 * 1e5) /* above the launch floor of the table */
            assert_near(t.ns, op.flops / (0.4 * 312e12) * 1e9, 1e-9, "one efficiency everywhere");
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* GEMM rows anywhere, no grid: one efficiency everywhere must come back, whatever rows are blended.
 */
START_TEST(test_scattered_groups)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_rng rng;

    fx_init(&f);
    dt_rng_init(&rng, dt_test_seed(), 7);
    for (int i = 0; i < 60; i++) {
        int64_t d[3] = {0, 256 + (int64_t)dt_rng_below(&rng, 9000),
                        256 + (int64_t)dt_rng_below(&rng, 9000)};

        for (int k = 0; k < 5; k++) { /* every group has its own token counts */
            d[0] = 1500 + (int64_t)dt_rng_below(&rng, 9000);
            fx_row(&f, DT_KOP_GEMM, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3,
                   cost_of_gemm(d) / (0.61 * 312e12) * 1e9);
        }
    }
    fx_index(&f);
    c = cost_of(&f, &plain);
    for (int i = 0; i < 300; i++) {
        struct dt_kop op = gemm(2000 + (int64_t)dt_rng_below(&rng, 20000),
                                256 + (int64_t)dt_rng_below(&rng, 20000),
                                256 + (int64_t)dt_rng_below(&rng, 20000));
        double want = op.flops / (0.61 * 312e12) * 1e9;
        struct dt_cost_time t;

        dt_cost_kernel(c, &op, DT_PHASE_FWD, &t);
        assert_sums(&t);
        assert_near(t.ns, want, 1e-9, "the one efficiency");
        ck_assert(t.prov[DT_PROV_INTERPOLATED] == t.ns || t.prov[DT_PROV_EXTRAPOLATED] == t.ns);
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* Two groups measured over different tokens: between them both count, beyond one of them it is
 * extrapolated. */
START_TEST(test_groups_of_unequal_reach)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_cost_time t;

    fx_init(&f);
    for (int64_t m = 1024; m <= 16384; m *= 2) {
        int64_t a[3] = {m, 2048, 4096}, b[3] = {m + m / 2, 8192, 4096};

        fx_row(&f, DT_KOP_GEMM, DT_PHASE_FWD, DT_ROW_MEASURED, a, 3,
               cost_of_gemm(a) / (0.5 * 312e12) * 1e9);
        if (m <= 4096)
            fx_row(&f, DT_KOP_GEMM, DT_PHASE_FWD, DT_ROW_MEASURED, b, 3,
                   cost_of_gemm(b) / (0.8 * 312e12) * 1e9);
    }
    fx_index(&f);
    c = cost_of(&f, &plain);
    for (int64_t m = 2048; m <= 16384; m *= 2) {
        struct dt_kop op = gemm(m, 4096, 4096); /* half way in log n: the geometric mean */

        dt_cost_kernel(c, &op, DT_PHASE_FWD, &t);
        assert_near(t.ns, op.flops / (sqrt(0.5 * 0.8) * 312e12) * 1e9, 1e-9, "geometric mean");
        ck_assert(t.prov[m <= 4096 ? DT_PROV_INTERPOLATED : DT_PROV_EXTRAPOLATED] == t.ns);
    }
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

static struct dt_kop attention(int64_t batch, int64_t seq)
{
    return (struct dt_kop){.family = DT_KOP_ATTN_CAUSAL,
                           .d = {batch, seq, 16, 16, 64},
                           .count = 1,
                           .flops = 2.0 * 16 * 64 * (double)(batch * seq * seq)};
}

/* Attention measured at `nb` batches from 4 on and `ns` lengths from 1024 on.  What lies beside an axis holds its
 * efficiency, and was not measured, also where the axis is a single row; below it no kernel is faster than any row. */
START_TEST(test_attention_beside_its_rows)
{
    static const struct {
        int64_t batch, seq;
    } ask[] = {{4, 1024}, {4, 2048}, {8, 1024}, {8, 2048}, {4, 4096},
               {4, 512},  {2, 1024}, {1, 4096}, {16, 512}};

    for (int nb = 1; nb <= 2; nb++) {
        for (int ns = 1; ns <= 2; ns++) {
            struct fixture f;
            struct dt_cost *c;
            double fastest = attention(4, 1024).flops / (0.3 * 312e12) * 1e9;

            fx_init(&f);
            for (int64_t b = 4; b <= 4 * nb; b *= 2) {
                for (int64_t s = 1024; s <= 1024 * ns; s *= 2)
                    fx_row(&f, DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD, DT_ROW_MEASURED, attention(b, s).d,
                           5, attention(b, s).flops / (0.3 * 312e12) * 1e9);
            }
            fx_index(&f);
            c = cost_of(&f, &plain);
            for (size_t i = 0; i < sizeof(ask) / sizeof(ask[0]); i++) {
                struct dt_kop op = attention(ask[i].batch, ask[i].seq);
                bool on =
                    op.d[0] >= 4 && op.d[0] <= 4 * nb && op.d[1] >= 1024 && op.d[1] <= 1024 * ns;
                bool below = op.d[0] < 4 || op.d[1] < 1024;
                double want = op.flops / (0.3 * 312e12) * 1e9;
                struct dt_cost_time t;

                dt_cost_kernel(c, &op, DT_PHASE_FWD, &t);
                assert_near(t.ns, below ? fmax(want, fastest) : want, 1e-9, "attention");
                ck_assert_msg(t.prov[on ? DT_PROV_MEASURED : DT_PROV_EXTRAPOLATED] == t.ns,
                              "%d x %d rows, batch %d of %d tokens", nb, ns, (int)op.d[0],
                              (int)op.d[1]);
            }
            dt_cost_free(c);
            fx_free(&f);
        }
    }
}
END_TEST

static struct dt_kop conv(int64_t pixels, int64_t channels, int kernel)
{
    struct dt_kop op = {.family = DT_KOP_CONV2D,
                        .d = {pixels, channels, channels, kernel, 1},
                        .count = 1,
                        .has_weight = true};

    op.flops = 2.0 * (double)pixels * (double)channels * (double)channels * kernel * kernel;
    op.bytes = 4.0 * (double)pixels * (double)channels;
    return op;
}

START_TEST(test_classes_and_stand_ins)
{
    struct dt_kop same = conv(4096, 320, 3), other = conv(4096, 320, 1);
    struct dt_kop full = {.family = DT_KOP_ATTN_FULL, .d = {2, 1024, 16, 16, 64}, .count = 3};
    struct dt_kop cross = {.family = DT_KOP_ATTN_CROSS, .d = {2, 1024, 16, 77, 64}, .count = 1};
    struct fixture f;
    struct dt_cost *c;
    struct dt_cost_time t;

    fx_init(&f);
    fx_row(&f, DT_KOP_CONV2D, DT_PHASE_FWD, DT_ROW_MEASURED, same.d, 5,
           same.flops / (0.4 * 312e12) * 1e9);
    for (int64_t s = 512; s <= 2048; s *= 2) { /* one batch only: a curve over the sequence */
        int64_t d[5] = {2, s, 16, 16, 64};

        fx_row(&f, DT_KOP_ATTN_FULL, DT_PHASE_FWD, DT_ROW_MEASURED, d, 5,
               4.0 * 2 * 16 * 64 * (double)(s * s) / (0.3 * 312e12) * 1e9);
    }
    fx_index(&f);
    c = cost_of(&f, &plain);
    dt_cost_kernel(c, &same, DT_PHASE_FWD, &t);
    ck_assert(t.prov[DT_PROV_MEASURED] == t.ns && t.ns > 0);
    dt_cost_kernel(c, &other, DT_PHASE_FWD,
                   &t); /* another kernel size: the nearest, extrapolated */
    assert_near(t.ns, other.flops / (0.4 * 312e12) * 1e9, 1e-9, "another kernel size");
    ck_assert(t.prov[DT_PROV_EXTRAPOLATED] == t.ns);
    full.flops = 4.0 * 2 * 16 * 64 * 1024 * 1024;
    dt_cost_kernel(c, &full, DT_PHASE_FWD, &t);
    assert_near(t.ns, 3 * full.flops / (0.3 * 312e12) * 1e9, 1e-9, "three attentions");
    ck_assert(t.prov[DT_PROV_MEASURED] == t.ns);
    dt_cost_kernel(c, &full, DT_PHASE_WGRAD, &t);
    ck_assert(t.ns == 0); /* attention has no weights */
    cross.flops = 4.0 * 2 * 16 * 64 * 1024 * 77;
    dt_cost_kernel(c, &cross, DT_PHASE_DGRAD, &t);
    assert_near(t.ns, 2.88 * cross.flops / (0.3 * 312e12) * 1e9, 1e-9,
                "cross attention by full attention");
    ck_assert(t.prov[DT_PROV_ASSUMED] == t.ns);
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

/* ---- provenance ---- */

START_TEST(test_row_kinds)
{
    static const struct {
        int kind, exact, between;
    } cases[] = {
        {DT_ROW_MEASURED, DT_PROV_MEASURED, DT_PROV_INTERPOLATED},
        {DT_ROW_FITTED, DT_PROV_INTERPOLATED, DT_PROV_INTERPOLATED},
        {DT_ROW_DERIVED, DT_PROV_COMPUTED, DT_PROV_COMPUTED},
        {DT_ROW_ASSUMED, DT_PROV_ASSUMED, DT_PROV_ASSUMED},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f;
        struct dt_cost *c;
        struct dt_kop on = gemm(512, 1024, 2048), off = gemm(700, 1024, 2048);
        struct dt_cost_time t;

        fx_init(&f);
        for (int64_t m = 256; m <= 1024; m *= 2) {
            int64_t d[3] = {m, 1024, 2048};

            fx_row(&f, DT_KOP_GEMM, DT_PHASE_FWD, cases[i].kind, d, 3,
                   fx_gemm_ns((double)m, 1024, 2048));
        }
        fx_index(&f);
        c = cost_of(&f, &plain);
        dt_cost_kernel(c, &on, DT_PHASE_FWD, &t);
        ck_assert(t.prov[cases[i].exact] == t.ns && t.ns > 0);
        dt_cost_kernel(c, &off, DT_PHASE_FWD, &t);
        ck_assert(t.prov[cases[i].between] == t.ns && t.ns > 0);
        /* a phase without rows is the forward times a documented ratio: assumed */
        dt_cost_kernel(c, &on, DT_PHASE_WGRAD, &t);
        assert_near(t.ns, 1.054 * fx_gemm_ns(512, 1024, 2048), 1e-9, "weight gradient");
        ck_assert(t.prov[DT_PROV_ASSUMED] == t.ns);
        dt_cost_free(c);
        fx_free(&f);
    }
}
END_TEST

START_TEST(test_better_row_of_two)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_kop op = gemm(512, 1024, 2048);
    int64_t d[3] = {512, 1024, 2048};
    struct dt_cost_time t;

    fx_init(&f);
    fx_row(&f, DT_KOP_GEMM, DT_PHASE_FWD, DT_ROW_ASSUMED, d, 3, 91000);
    fx_row(&f, DT_KOP_GEMM, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3, 93000);
    fx_index(&f);
    c = cost_of(&f, &plain);
    dt_cost_kernel(c, &op, DT_PHASE_FWD, &t);
    assert_near(t.ns, 93000, 1e-12, "the measured row");
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

static enum dt_status survey(struct dt_cost *c, unsigned tp_mask, struct dt_error *err)
{
    return dt_cost_survey(c, &(struct dt_cost_modes){.tp = tp_mask, .recompute = {1, 1}}, err);
}

START_TEST(test_survey)
{
    struct fixture f;
    struct dt_cost *c;
    struct dt_error err = {0};
    struct dt_cost_options loose = {.allow_analytical = true};
    struct dt_cost_stage s;
    struct dt_block_shard shard = fx_shard(4);
    struct dt_work w = fx_text(1, 8192);

    fx_init(&f);
    fx_llm(&f, 2, 4096, 11008, 32, 32, 32000);
    fx_pointwise(&f);
    fx_index(&f);
    c = cost_of(&f, &plain);
    ck_assert_int_eq(survey(c, 1 | 4, &err), DT_ERR_MISSING_PROFILE);
    dt_assert_has(err.message, "\n  gemm: ");
    dt_assert_has(err.message, "\n  attn_causal: ");
    dt_assert_has(err.message, "\n  all_gather: ");
    dt_assert_has(err.message, "\n  reduce_scatter: ");
    ck_assert(!strstr(err.message, "norm:") && !strstr(err.message, "rope:"));
    ck_assert(!strstr(err.message, "xent:")); /* activations stand in */
    ck_assert_int_eq(survey(c, 1, &err), DT_ERR_MISSING_PROFILE);
    ck_assert(!strstr(err.message, "all_gather")); /* not needed without tensor parallelism */
    dt_cost_free(c);

    c = cost_of(&f, &loose);
    dt_assert_ok(survey(c, 0xf, &err), err);
    dt_cost_stage(c, 0, 0, 4, &shard, &w, NULL, false, &s);
    ck_assert(s.fwd.prov[DT_PROV_COMPUTED] > 0.9 * s.fwd.ns);
    assert_sums(&s.fwd);
    assert_sums(&s.dgrad);
    assert_sums(&s.wgrad);
    dt_cost_free(c);

    fx_profile(&f, false);
    c = cost_of(&f, &plain);
    dt_assert_ok(survey(c, 0xf, &err), err);
    dt_cost_free(c);
    fx_free(&f);
}
END_TEST

START_TEST(test_bad_cluster)
{
    struct fixture f;
    struct dt_error err = {0};
    struct dt_cost *c = NULL;

    fx_init(&f);
    f.cluster.hbm_bytes_per_s = 0;
    ck_assert_int_eq(dt_cost_new(&f.model, &f.cluster, &f.profile, &plain, &err, &c), DT_ERR_INPUT);
    ck_assert(c == NULL);
    fx_free(&f);
}
END_TEST

START_TEST(test_out_of_memory)
{
    struct fixture f;
    struct dt_error err = {0};
    struct dt_block_shard shard = fx_shard(2);
    struct dt_work w = fx_text(1, 4096);
    struct dt_cost_stage full, s;
    struct dt_cost *c;
    uint64_t tries;

    fx_init(&f);
    fx_llm(&f, 1, 1024, 2816, 8, 8, 32000);
    fx_profile(&f, false);
    dt_mem_fail_at(0);
    c = cost_of(&f, &plain);
    dt_cost_stage(c, 0, 0, 3, &shard, &w, NULL, true, &full);
    tries = dt_mem_count();
    dt_cost_free(c);
    ck_assert_uint_gt(tries, 10);
    for (uint64_t k = 1; k <= tries; k++) {
        enum dt_status status;

        c = NULL;
        dt_mem_fail_at(k);
        status = dt_cost_new(&f.model, &f.cluster, &f.profile, &plain, &err, &c);
        if (status == DT_OK) {
            dt_cost_stage(c, 0, 0, 3, &shard, &w, NULL, true, &s);
            status = dt_cost_status(c, &err);
            ck_assert(s.fwd.ns > 0);
        }
        dt_mem_fail_at(0);
        ck_assert_int_eq(status, DT_ERR_NOMEM);
        dt_cost_free(c);
    }
    fx_free(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cost");
    TCase *t = dt_test_case(s, "kernels", 60);

    tcase_add_test(t, test_exact_on_knots);
    tcase_add_test(t, test_between_knots);
    tcase_add_test(t, test_monotone_in_tokens);
    tcase_add_test(t, test_extrapolation_holds_efficiency);
    tcase_add_test(t, test_never_below_roofline);
    tcase_add_test(t, test_scattered_rows);
    tcase_add_test(t, test_scattered_groups);
    tcase_add_test(t, test_groups_of_unequal_reach);
    tcase_add_test(t, test_attention_beside_its_rows);
    tcase_add_test(t, test_classes_and_stand_ins);
    tcase_add_test(t, test_row_kinds);
    tcase_add_test(t, test_better_row_of_two);
    tcase_add_test(t, test_survey);
    tcase_add_test(t, test_bad_cluster);
    tcase_add_test(t, test_out_of_memory);
    return dt_test_run(s);
}
