/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Profiles that are shipped: nothing is faster than its device, and public figures are met. */
#include "core/profile/profile.h"
#include "base/mem.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dt_error err;

static void near(double a, double b, double rel)
{
    ck_assert_msg(fabs(a - b) <= rel * fabs(b), "%.12g is not within %g of %.12g", a, rel, b);
}

/* What the shipped files promise. */
static struct dt_profile *shipped(const char *name)
{
    struct dt_profile *p;

    dt_assert_ok(dt_profile_load(name, "", "bf16", &err, &p), err);
    return p;
}

static double time_of(const struct dt_profile *p, int family, int phase, const int64_t d[6])
{
    for (int64_t i = p->first[family][phase]; i < p->first[family][phase + 1]; i++)
        if (memcmp(p->rows[i].d, d, sizeof p->rows[i].d) == 0)
            return p->rows[i].median_ns;
    ck_abort_msg("%s has no such row of %s", p->device, dt_kop_family_names[family]);
    return 0;
}

START_TEST(shipped_under_the_peak)
{
    static const struct {
        const char *name;
        double flops_per_ns;
    } files[] = {{"a100", 312e3}, {"a800", 312e3}, {"h100", 989e3}};
    struct dt_profile *p = shipped(files[_i].name);
    int64_t n = 0;

    for (int64_t i = 0; i < p->n_rows; i++) {
        const struct dt_profile_row *r = &p->rows[i];
        double flops = 0;
        if (r->family == DT_KOP_GEMM)
            flops = 2.0 * (double)r->d[0] * (double)r->d[1] * (double)r->d[2];
        else if (r->family == DT_KOP_ATTN_CAUSAL || r->family == DT_KOP_ATTN_FULL)
            flops = (r->family == DT_KOP_ATTN_FULL ? 4.0 : 2.0) * (double)r->d[0] *
                    (double)r->d[1] * (double)r->d[1] * (double)r->d[2] * (double)r->d[4] *
                    (r->phase ? 2.5 : 1);
        else if (r->family == DT_KOP_CONV2D)
            flops = 2.0 * (double)r->d[0] * (double)r->d[1] * (double)r->d[2] * (double)r->d[3] *
                    (double)r->d[3];
        ck_assert_msg(flops <= files[_i].flops_per_ns * r->p10_ns * (1 + 1e-9),
                      "%s %s %lld %lld %lld", p->device, dt_kop_family_names[r->family],
                      (long long)r->d[0], (long long)r->d[1], (long long)r->d[2]);
        ck_assert(r->source >= 0 && r->source < p->n_sources && p->sources[r->source].origin[0]);
        n += flops > 0;
    }
    ck_assert_int_gt(n, 10000);
    for (int f = 0; f < DT_KOP_FAMILY_N;
         f++) /* every family has forward rows; blocks and what cores do are one's own */
        ck_assert_msg(f == DT_KOP_BLOCK || f == DT_KOP_CPU_PREP || f == DT_KOP_CARRY
                          ? p->first[f][1] == p->first[f][0]
                          : p->first[f][1] > p->first[f][0],
                      "%s", dt_kop_family_names[f]);
    dt_profile_free(p);
}
END_TEST

START_TEST(shipped_matches_public_figures)
{
    struct dt_profile *a100 = shipped("a100"), *a800 = shipped("a800");
    const int64_t gemm[6] = {4096, 4096, 4096}, attn[6] = {1, 8192, 32, 32, 128};
    const int64_t big[6] = {8, 8, 512 << 20}, small[6] = {8, 8, 1024}, p2p[6] = {2, 64 << 20},
                  inter[6] = {1, 64 << 20};

    /* The table's own rows nearby: 4096^3 0.54-0.61 ms in four tables, attention 3.0-4.0 ms. */
    near(time_of(a100, DT_KOP_GEMM, DT_PHASE_FWD, gemm), 0.575e6, 0.08);
    near(time_of(a100, DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD, attn), 3.0e6, 0.15);
    /* Bus bandwidth of an 8-GPU all-reduce at 512 MiB: 222 GB/s on A100, 2/3 of it on A800; latency
     * alike. */
    near(2 * 7 / 8.0 * (512 << 20) / time_of(a100, DT_KOP_ALL_REDUCE, 0, big), 222, 0.03);
    near(2 * 7 / 8.0 * (512 << 20) / time_of(a800, DT_KOP_ALL_REDUCE, 0, big), 148, 0.03);
    near(time_of(a800, DT_KOP_ALL_REDUCE, 0, small), time_of(a100, DT_KOP_ALL_REDUCE, 0, small),
         0.01);
    near((64 << 20) / time_of(a100, DT_KOP_SEND_RECV, 0, p2p), 228, 0.05);
    near(time_of(a800, DT_KOP_SEND_RECV, 0, p2p) / time_of(a100, DT_KOP_SEND_RECV, 0, p2p), 1.5,
         0.03);
    near(time_of(a800, DT_KOP_SEND_RECV, 0, inter), time_of(a100, DT_KOP_SEND_RECV, 0, inter),
         1e-12);
    near(time_of(a800, DT_KOP_GEMM, DT_PHASE_WGRAD, gemm),
         time_of(a100, DT_KOP_GEMM, DT_PHASE_WGRAD, gemm), 1e-12);
    /* The A800's NVLink is arithmetic on the A100's and says so; its kernels are the A100's. */
    ck_assert_int_eq(a800->n_rows, a100->n_rows);
    for (int64_t i = 0; i < a800->n_rows; i++) {
        const struct dt_profile_row *r = &a800->rows[i];
        bool nvlink = r->family >= DT_KOP_ALL_REDUCE && r->family <= DT_KOP_ALL_TO_ALL;

        nvlink = nvlink || (r->family == DT_KOP_SEND_RECV && r->d[0] == 2);
        ck_assert_int_eq(r->kind, nvlink ? DT_ROW_DERIVED : a100->rows[i].kind);
    }
    dt_profile_free(a100);
    dt_profile_free(a800);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("profile_shipped");
    TCase *c = dt_test_case(s, "shipped", 0);

    tcase_add_loop_test(c, shipped_under_the_peak, 0, 3);
    tcase_add_test(c, shipped_matches_public_figures);
    return dt_test_run(s);
}
