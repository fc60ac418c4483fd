/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The fit on planted tables: what went in must come out, on our grids, with the right kind. */
#include "base/mem.h"
#include "fit/profile_fit.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

#define A100 "A100-SXM4-80GB"
#define A800 "A800-SXM4-80GB"
#define H100 "H100-SXM5-80GB"
#define PCIE "A100-PCIe-80GB"

static struct dt_error err;

/* Planted truths, high-entropy on purpose. */
static const double gemm_share[2] = {0.713, 0.687}, causal_share = 0.531, full_share = 0.467;
static const double dgrad_ratio = 1.127, wgrad_ratio = 1.183, attn_back = 2.617, conv_ratio = 1.37;
static const double alpha_ns = 14217, beta = 0.00731;

static double peak_of(const char *device)
{
    return device[0] == 'H' ? 989e3 : 312e3;
}

struct world {
    struct dt_profile_table t;
    struct dt_rng rng;
};

static void put(struct world *w, const char *device, const char *dtype, const char *origin,
                int family, int phase, const int64_t *d, int n_dims, double ns)
{
    struct dt_profile_table_row row = {0};
    struct dt_profile_source s = {.licence = "test", .date = "2026-01-02"};

    snprintf(s.name, sizeof s.name, "%s", origin);
    snprintf(s.origin, sizeof s.origin, "https://example.org/%s", origin);
    dt_assert_ok(dt_profile_table_device(&w->t, device, &err, &row.device), err);
    dt_assert_ok(dt_profile_table_dtype(&w->t, dtype, &err, &row.dtype), err);
    dt_assert_ok(dt_profile_table_source(&w->t, &s, &err, &row.r.source), err);
    row.r.family = family;
    row.r.phase = phase;
    row.r.n = 1;
    memcpy(row.r.d, d, (size_t)n_dims * sizeof *d);
    row.r.median_ns = row.r.p10_ns = row.r.p90_ns = ns * exp(0.01 * dt_rng_normal(&w->rng));
    dt_assert_ok(dt_profile_table_add(&w->t, &row, &err), err);
}

static double gemm_ns(const char *device, double m, double n, double k)
{
    return 2500 + 2 * m * n * k / (gemm_share[device[0] == 'H'] * peak_of(device)) +
           2 * (m * k + k * n + m * n) / 1100;
}

static void gemms(struct world *w, const char *device)
{
    for (int m = 1; m <= 32768; m *= 4)
        for (int n = 32; n <= 65536; n *= 2)
            for (int k = 32; k <= 65536; k *= 2) {
                const int64_t d[3] = {m, n, k};
                put(w, device, "bf16", "aiconfigurator", DT_KOP_GEMM, DT_PHASE_FWD, d, 3,
                    gemm_ns(device, m, n, k));
            }
    /* one odd m, which is left out, and a table to check against */
    const int64_t odd[3] = {1025, 1024, 1024}, other[3] = {8192, 4096, 4096};
    put(w, device, "bf16", "aiconfigurator", DT_KOP_GEMM, DT_PHASE_FWD, odd, 3, 1e9);
    put(w, device, "bf16", "vidur", DT_KOP_GEMM, DT_PHASE_FWD, other, 3,
        1.25 * gemm_ns(device, 8192, 4096, 4096));
}

static void gradients(struct world *w)
{
    for (int i = 0; i < 40; i++) {
        double m = ldexp(1, 11 + i % 3), n = ldexp(1, 9 + i % 5), k = ldexp(1, 10 + i % 4),
               slow = 1.061; /* the card is slower */
        const int64_t d[3] = {(int64_t)m, (int64_t)n, (int64_t)k};
        put(w, PCIE, "bf16", "simumax", DT_KOP_GEMM, DT_PHASE_FWD, d, 3,
            slow * gemm_ns(A100, m, n, k));
        put(w, PCIE, "bf16", "simumax", DT_KOP_GEMM, DT_PHASE_DGRAD, d, 3,
            slow * dgrad_ratio * gemm_ns(A100, m, k, n));
        put(w, PCIE, "bf16", "simumax", DT_KOP_GEMM, DT_PHASE_WGRAD, d, 3,
            slow * wgrad_ratio * gemm_ns(A100, n, k, m));
    }
}

static double attn_ns(const char *device, bool causal, double seq, double heads, double dim)
{
    double flops = (causal ? 2 : 4) * heads * seq * seq * dim;
    return 5000 + flops / ((causal ? causal_share : full_share) * peak_of(device));
}

static void attention(struct world *w)
{
    static const struct {
        const char *device;
        bool causal;
        int dim;
    } tables[] = {{A100, true, 128}, {H100, true, 64},  {H100, true, 128},
                  {H100, false, 64}, {H100, false, 72}, {H100, false, 80}};

    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        for (int seq = 16; seq <= 16384; seq *= 2)
            for (int heads = 1; heads <= 64; heads *= 2)
                for (int batch = 1; batch <= 64; batch *= 8) {
                    const int64_t d[5] = {batch, seq, heads, heads, tables[i].dim};
                    put(w, tables[i].device, "bf16", "aiconfigurator",
                        tables[i].causal ? DT_KOP_ATTN_CAUSAL : DT_KOP_ATTN_FULL, DT_PHASE_FWD, d,
                        5,
                        attn_ns(tables[i].device, tables[i].causal, seq, batch * heads,
                                tables[i].dim));
                }
    for (int heads = 4; heads <= 64; heads *= 2) {
        const int64_t d[5] = {1, 4096, heads, heads, 128};
        double ns = attn_ns(A100, true, 4096, heads, 128);
        put(w, PCIE, "bf16", "simumax", DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD, d, 5, ns);
        put(w, PCIE, "bf16", "simumax", DT_KOP_ATTN_CAUSAL, DT_PHASE_DGRAD, d, 5, attn_back * ns);
    }
}

static void links(struct world *w, const char *device)
{
    static const int families[] = {DT_KOP_ALL_REDUCE, DT_KOP_ALL_GATHER, DT_KOP_REDUCE_SCATTER,
                                   DT_KOP_ALL_TO_ALL};

    for (int f = 0; f < 4; f++)
        for (int gpus = 2; gpus <= 8; gpus *= 2)
            for (int k = 9; k <= 29; k++) {
                const int64_t d[3] = {gpus, gpus, INT64_C(1) << k};
                put(w, device, "any", "aiconfigurator", families[f], DT_PHASE_FWD, d, 3,
                    alpha_ns + beta * ldexp(1, k));
            }
    for (int64_t per_node = 1; per_node <= 2; per_node++)
        for (int i = 0; i < 400; i++) {
            const int64_t d[2] = {per_node, 2048 + i * INT64_C(163840)};
            put(w, device, "any", "vidur", DT_KOP_SEND_RECV, DT_PHASE_FWD, d, 2,
                alpha_ns + beta * (double)d[1]);
        }
}

static const int pointwise_family[] = {DT_KOP_NORM, DT_KOP_ACT, DT_KOP_ADD, DT_KOP_ROPE,
                                       DT_KOP_EMBED};
static const double pointwise_passes[] = {2, 3, 3, 2, 2};

static double stream_ns(double bytes)
{
    return 3100 + bytes / 1234;
}

static void pointwise(struct world *w, const char *device)
{
    for (int f = 0; f < 5; f++)
        for (int i = 0; i < 128; i++) {
            const int64_t d[3] = {1 + i * INT64_C(256), 4096, pointwise_family[f] == DT_KOP_ACT};
            put(w, device, "bf16", "vidur", pointwise_family[f], DT_PHASE_FWD, d, 3,
                stream_ns(2 * pointwise_passes[f] * (double)d[0] * 4096));
        }
}

static void convolutions(struct world *w)
{
    for (int i = 0; i < 9; i++) {
        const int64_t d[5] = {INT64_C(6272) << (i % 4), 64 << (i % 3), 128 << (i % 2), 3, 1};
        double k = 9.0 * (double)d[1], gemm = gemm_ns(H100, (double)d[0], (double)d[2], k);
        put(w, H100, "tf32", "triosim", DT_KOP_CONV2D, DT_PHASE_FWD, d, 5,
            2 * conv_ratio * gemm); /* half the peak */
        put(w, H100, "tf32", "triosim", DT_KOP_CONV2D, DT_PHASE_BWD, d, 5,
            3.7 * 2 * conv_ratio * gemm);
    }
    for (int i = 0; i < 500; i++) {
        const int64_t d[5] = {1 + (int64_t)dt_rng_below(&w->rng, 100000),
                              1 + (int64_t)dt_rng_below(&w->rng, 2000),
                              1 + (int64_t)dt_rng_below(&w->rng, 2000), 3, 1};
        put(w, PCIE, "fp32", "neusight", DT_KOP_CONV2D, DT_PHASE_FWD, d, 5,
            5000 + 18.0 * (double)d[0] * (double)d[1] * (double)d[2] / (0.9 * 19.5e3));
    }
}

static void plant(struct world *w)
{
    dt_rng_init(&w->rng, dt_test_seed(), 11);
    gemms(w, A100);
    gemms(w, H100);
    gradients(w);
    attention(w);
    links(w, A100);
    links(w, H100);
    pointwise(w, A100);
    pointwise(w, H100);
    convolutions(w);
}

static const struct dt_profile_row *row_of(const struct dt_profile_table *t, int family, int phase,
                                           const int64_t d[6])
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct dt_profile_row *r = &t->rows[i].r;
        if (r->family == family && r->phase == phase && memcmp(r->d, d, sizeof r->d) == 0)
            return r;
    }
    ck_abort_msg("no row of %s", dt_kop_family_names[family]);
    return NULL;
}

static void expect(const struct dt_profile_table *t, int family, int phase, const int64_t d[6],
                   int kind, double ns, double rel)
{
    const struct dt_profile_row *r = row_of(t, family, phase, d);

    ck_assert_msg(fabs(r->median_ns / ns - 1) < rel,
                  "%s %s %lld %lld %lld: %.1f, planted %.1f, seed %" PRIu64, t->devices[0],
                  dt_kop_family_names[family], (long long)d[0], (long long)d[1], (long long)d[2],
                  r->median_ns, ns, dt_test_seed());
    ck_assert_int_eq(r->kind, kind);
}

static void expect_kernels(const struct dt_profile_table *t, const char *device)
{
    const int64_t gemm[6] = {4096, 1024, 8192}, wide[6] = {256, 16384, 512};
    const int64_t causal[6] = {2, 4096, 16, 16, 128}, full[6] = {4, 1024, 16, 16, 80},
                  norm[6] = {4096, 2048, 0};
    const int fitted = DT_ROW_FITTED;

    expect(t, DT_KOP_GEMM, DT_PHASE_FWD, gemm, fitted, gemm_ns(device, 4096, 1024, 8192), 0.04);
    expect(t, DT_KOP_GEMM, DT_PHASE_FWD, wide, fitted, gemm_ns(device, 256, 16384, 512), 0.04);
    expect(t, DT_KOP_GEMM, DT_PHASE_DGRAD, gemm, DT_ROW_DERIVED,
           dgrad_ratio * gemm_ns(device, 4096, 8192, 1024), 0.06);
    expect(t, DT_KOP_GEMM, DT_PHASE_WGRAD, gemm, DT_ROW_DERIVED,
           wgrad_ratio * gemm_ns(device, 1024, 8192, 4096), 0.06);
    expect(t, DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD, causal, fitted,
           attn_ns(device, true, 4096, 32, 128), 0.04);
    expect(t, DT_KOP_ATTN_CAUSAL, DT_PHASE_DGRAD, causal, DT_ROW_DERIVED,
           attn_back * attn_ns(device, true, 4096, 32, 128), 0.06);
    expect(t, DT_KOP_NORM, DT_PHASE_FWD, norm, fitted, stream_ns(4.0 * 4096 * 2048), 0.04);
    expect(t, DT_KOP_NORM, DT_PHASE_DGRAD, norm, DT_ROW_ASSUMED, stream_ns(6.0 * 4096 * 2048),
           0.04);
    if (device[0] == 'H')
        expect(t, DT_KOP_ATTN_FULL, DT_PHASE_FWD, full, DT_ROW_FITTED,
               attn_ns(H100, false, 1024, 64, 80), 0.04);
    else /* causal 128 x full 80 / causal 128, all planted */
        expect(t, DT_KOP_ATTN_FULL, DT_PHASE_FWD, full, DT_ROW_DERIVED,
               attn_ns(A100, true, 1024, 64, 128) * attn_ns(H100, false, 1024, 64, 80) /
                   attn_ns(H100, true, 1024, 64, 128),
               0.06);
}

START_TEST(planted)
{
    static const char *const devices[] = {A100, A800, H100};
    const char *device = devices[_i];
    struct world w = {0};
    struct dt_fit_report report;
    struct dt_profile_table t = {0};
    double stretch = _i == 1 ? 1.5 : 1;

    plant(&w);
    dt_assert_ok(dt_fit_profile(&w.t, device, &err, &t, &report), err);
    ck_assert_int_eq(t.n_devices, 1);
    ck_assert_str_eq(t.devices[0], device);
    expect_kernels(&t, device);
    const int64_t reduce[6] = {4, 4, 1 << 28}, small[6] = {4, 4, 1 << 11},
                  far[6] = {8, 8, INT64_C(1) << 32}, p2p[6] = {2, 1 << 24}, inter[6] = {1, 1 << 24};
    int fitted = _i == 1 ? DT_ROW_DERIVED : DT_ROW_FITTED;
    expect(&t, DT_KOP_ALL_REDUCE, 0, reduce, fitted, alpha_ns + stretch * beta * (1 << 28), 0.04);
    expect(&t, DT_KOP_ALL_GATHER, 0, small, fitted, alpha_ns + stretch * beta * (1 << 11), 0.04);
    expect(&t, DT_KOP_ALL_TO_ALL, 0, far, fitted, alpha_ns + stretch * beta * ldexp(1, 32), 0.05);
    expect(&t, DT_KOP_SEND_RECV, 0, p2p, fitted, alpha_ns + stretch * beta * (1 << 24), 0.04);
    expect(&t, DT_KOP_SEND_RECV, 0, inter, DT_ROW_FITTED, alpha_ns + beta * (1 << 24), 0.04);

    /* 1 x 1 is a GEMM; 3 x 3 takes the planted ratio of shares of peak. */
    const int64_t one[6] = {16384, 640, 320, 1, 1}, three[6] = {16384, 128, 320, 3, 1};
    expect(&t, DT_KOP_CONV2D, DT_PHASE_FWD, one, DT_ROW_DERIVED, gemm_ns(device, 16384, 320, 640),
           0.06);
    expect(&t, DT_KOP_CONV2D, DT_PHASE_FWD, three, DT_ROW_DERIVED,
           conv_ratio * gemm_ns(device, 16384, 320, 1152), 0.06);

    /* Noise of 1 % was planted; the fits must not add much. */
    ck_assert_int_ge(report.n, 12);
    size_t large = 0; /* 4 collectives, 3 GPU counts, 8 to 512 MiB */
    for (int i = 0; i < report.n; i++)
        if (strncmp(report.score[i].what, "collectives on", 14) == 0)
            large = report.score[i].s.n;
    ck_assert_uint_eq(large, 4 * 3 * 7);
    for (int i = 0; i < report.n; i++)
        if (strstr(report.score[i].what, "folds") && !strstr(report.score[i].what, "fp32"))
            ck_assert_msg(report.score[i].s.mean < 0.05, "%s: %g, seed %" PRIu64,
                          report.score[i].what, report.score[i].s.mean, dt_test_seed());
    /* errors of a few pairs of rows with noise: no two statistics are one */
    for (int i = 0; i < report.n; i++) {
        const struct dt_fit_local_score *s = &report.score[i].s;

        if (strncmp(report.score[i].what, "attention backward", 18) == 0)
            ck_assert_msg(s->n >= 5 && s->median > 0 && s->median != s->mean && s->p90 > s->median,
                          "mean %g, median %g, p90 %g, seed %" PRIu64, s->mean, s->median, s->p90,
                          dt_test_seed());
    }
    for (size_t i = 0; i < t.n_rows; i++)
        ck_assert(t.sources[t.rows[i].r.source].note[0] && t.sources[t.rows[i].r.source].origin[0]);
    dt_profile_table_free(&t);
    dt_profile_table_free(&w.t);
}
END_TEST

/* Without the rows of one table the fit says which import is missing. */
START_TEST(missing_tables)
{
    static const struct {
        const char *device, *dtype;
        int family, phase;
        const char *says;
    } cut[] = {
        {A100, "bf16", DT_KOP_GEMM, DT_PHASE_FWD, "aic-gemm"},
        {PCIE, "bf16", DT_KOP_GEMM, DT_PHASE_WGRAD, "simumax-gemm"},
        {H100, "bf16", DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD, "aic-causal-attn"},
        {H100, "bf16", DT_KOP_ATTN_FULL, DT_PHASE_FWD, "aic-full-attn"},
        {PCIE, "bf16", DT_KOP_ATTN_CAUSAL, DT_PHASE_DGRAD, "simumax-attn"},
        {A100, "any", DT_KOP_ALL_GATHER, DT_PHASE_FWD, "aic-nccl"},
        {A100, "any", DT_KOP_SEND_RECV, DT_PHASE_FWD, "vidur-send-recv"},
        {A100, "bf16", DT_KOP_ROPE, DT_PHASE_FWD, "vidur-layer"},
        {H100, "tf32", DT_KOP_CONV2D, DT_PHASE_FWD, "triosim-conv"},
    };
    struct world w = {0};
    struct dt_profile_table out = {0};
    size_t kept = 0;

    plant(&w);
    for (size_t i = 0; i < w.t.n_rows; i++) {
        const struct dt_profile_table_row *r = &w.t.rows[i];
        if (r->r.family != cut[_i].family || r->r.phase != cut[_i].phase ||
            strcmp(w.t.devices[r->device], cut[_i].device) != 0 ||
            strcmp(w.t.dtypes[r->dtype], cut[_i].dtype) != 0)
            w.t.rows[kept++] = *r;
    }
    ck_assert_uint_lt(kept, w.t.n_rows);
    w.t.n_rows = kept;
    ck_assert_int_eq(dt_fit_profile(&w.t, A100, &err, &out, NULL), DT_ERR_INPUT);
    dt_assert_has(err.message, cut[_i].says);
    ck_assert_uint_eq(out.n_rows, 0);
    dt_profile_table_free(&w.t);
}
END_TEST

START_TEST(allocation_failures)
{
    struct world w = {0};
    struct dt_profile_table out = {0};

    plant(&w);
    for (uint64_t k = 1; k <= 24; k++) {
        dt_mem_fail_at(k);
        enum dt_status status = dt_fit_profile(&w.t, H100, &err, &out, NULL);
        dt_mem_fail_at(0);
        ck_assert_msg(status == DT_ERR_NOMEM, "allocation %" PRIu64 ": status %d", k, status);
    }
    dt_profile_table_free(&w.t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("profile fit");
    TCase *c = dt_test_case(s, "planted", 300);

    tcase_add_loop_test(c, planted, 0, 3);
    tcase_add_loop_test(c, missing_tables, 0, 9);
    tcase_add_test(c, allocation_failures);
    return dt_test_run(s);
}
