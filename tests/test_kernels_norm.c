/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Layer, RMS and group norm: values against double, gradients against central differences. */
#include "kernel_util.h"
#include "ref_kernels.h"

enum { PLACES = 40 };

struct norm_case {
    struct dt_kernel_norm n;
    struct dt_kernel_groupnorm g;
    bool layer, group;
    int64_t size;
    double *x, *gamma, *beta, *y;
    const double *dy;
};

static double norm_loss(void *ctx)
{
    struct norm_case *c = ctx;
    double s = 0;

    for (int64_t i = 0; i < c->size; i++)
        c->y[i] = 0; /* gaps between strided rows */
    if (c->group)
        ref_groupnorm(&c->g, c->x, c->gamma, c->beta, c->y);
    else
        ref_norm(&c->n, c->layer, c->x, c->gamma, c->beta, c->y);
    for (int64_t i = 0; i < c->size; i++)
        s += c->y[i] * c->dy[i];
    return s;
}

/* Rows whose gaps must stay untouched: y starts random there. */
static void check_norm(struct kt *k, bool layer, int64_t rows, int64_t width, int64_t inner,
                       int64_t stride, bool add)
{
    int64_t size = inner > 0 ? (rows + inner - 1) / inner * stride : rows * width;
    struct norm_case c = {
        .n = {k->t, rows, width, inner, stride, 1e-5f}, .layer = layer, .size = size};
    struct buf x = buf_new(k, size, k->t, 2.385, 0.7), y = buf_new(k, size, k->t, 1, 0);
    struct buf dy = buf_new(k, size, k->t, 1.3, 0), dx = buf_new(k, size, k->t, 1, 0);
    struct buf gamma = buf_new(k, width, DT_F32, 0.4, 1), beta = buf_new(k, width, DT_F32, 0.3, 0);
    struct buf dg = buf_new(k, width, DT_F32, 1, 0), db = buf_new(k, width, DT_F32, 1, 0);
    struct buf mean = buf_new(k, rows, DT_F32, 1, 0), rstd = buf_new(k, rows, DT_F32, 1, 0);
    double *want = calloc((size_t)size + 1, sizeof(double));

    for (int th = 0; th < 2; th++) {
        buf_reset(&y);
        buf_reset(&dx);
        buf_reset(&dg);
        buf_reset(&db);
        if (layer) {
            k->k->layernorm_fwd(k->q[th], &c.n, x.p, gamma.p, beta.p, y.p, mean.p, rstd.p);
            k->k->layernorm_bwd(k->q[th], &c.n, x.p, gamma.p, mean.p, rstd.p, dy.p, dx.p, add, dg.p,
                                db.p, add);
        } else {
            k->k->rmsnorm_fwd(k->q[th], &c.n, x.p, gamma.p, y.p, rstd.p);
            k->k->rmsnorm_bwd(k->q[th], &c.n, x.p, gamma.p, rstd.p, dy.p, dx.p, add, dg.p, add);
        }
        kt_same(k, th, &y);
        kt_same(k, th, &dx);
        kt_same(k, th, &dg);
        kt_same(k, th, &db);
    }
    memcpy(want, y.v, sizeof(double) * (size_t)size);
    ref_norm(&c.n, layer, x.v, gamma.v, layer ? beta.v : NULL, want);
    kt_all_near(k, "norm", &y, want, kt_tol(k->t));
    c.x = x.v, c.gamma = gamma.v, c.beta = layer ? beta.v : NULL, c.y = want, c.dy = dy.v;
    if (inner == 0) /* the gaps of strided rows have no gradient, and keep what they hold */
        kt_gradient(k, "norm dx", &dx, add ? dx.v : NULL, c.x, norm_loss, &c, ref_slope, PLACES,
                    2 * kt_tol(k->t));
    kt_gradient(k, "norm dgamma", &dg, add ? dg.v : NULL, c.gamma, norm_loss, &c, ref_slope, PLACES,
                1e-4);
    if (layer)
        kt_gradient(k, "norm dbeta", &db, add ? db.v : NULL, c.beta, norm_loss, &c, ref_slope,
                    PLACES, 1e-4);
    free(want);
    buf_free(&x), buf_free(&y), buf_free(&dy), buf_free(&dx), buf_free(&gamma), buf_free(&beta);
    buf_free(&dg), buf_free(&db), buf_free(&mean), buf_free(&rstd);
}

START_TEST(test_norms)
{
    struct kt k;

    kt_open(&k, _i);
    for (int layer = 0; layer < 2; layer++) {
        check_norm(&k, layer, 1, 5, 0, 0, false);
        check_norm(&k, layer, 7, 33, 0, 0, true);
        check_norm(&k, layer, 513, 64, 0, 0, false);
        check_norm(&k, layer, 301, 129, 0, 0, true);
        check_norm(&k, layer, 3 * 29, 24, 3, 101, false); /* heads inside wider rows */
        if (_i < 2) { /* a block's, and beyond what its registers hold */
            check_norm(&k, layer, 9, 2040, 0, 0, true);
            check_norm(&k, layer, 3, 17000, 0, 0, true);
        }
    }
    kt_close(&k);
}
END_TEST

/* Where tensors lie does not change results, by a bit: parameters and rows of other members may lie before them. */
START_TEST(test_norms_anywhere)
{
    enum { ROWS = 5, MOST = 1200 };
    static const int64_t widths[] = {32, 808, 1200}; /* a warp's, and those of more warps */
    struct kt k;

    kt_open(&k, _i);
    for (int layer = 0; layer < 2; layer++)
        for (int w = 0; w < 3; w++) {
            struct dt_kernel_norm n = {k.t, ROWS, widths[w], 0, 0, 1e-5f};
            int64_t size = ROWS * n.width;
            size_t unit = dt_dtype_bytes(k.t);
            struct buf x = buf_new(&k, size + 1, k.t, 1.7, 0.3);
            struct buf gamma = buf_new(&k, MOST + 1, DT_F32, 0.4, 1);
            struct buf y = buf_new(&k, size + 1, k.t, 1, 0), dx = buf_new(&k, size + 1, k.t, 1, 0);
            struct buf dg = buf_new(&k, MOST, DT_F32, 1, 0), db = buf_new(&k, MOST, DT_F32, 1, 0);
            struct buf mean = buf_new(&k, ROWS, DT_F32, 1, 0),
                       rstd = buf_new(&k, ROWS, DT_F32, 1, 0);
            double *got = calloc((size_t)(2 * size + 2 * n.width), sizeof(*got));

            for (int off = 0; off < 2; off++) { /* the same values one element further on */
                char *xp = (char *)x.p + (size_t)off * unit, *yp = (char *)y.p + (size_t)off * unit;
                char *dxp = (char *)dx.p + (size_t)off * unit;
                float *gp = (float *)gamma.p + off;

                for (int64_t i = 0; i < size; i++)
                    buf_put(&x, i + off, x.v[i]);
                for (int64_t i = 0; i < n.width; i++)
                    buf_put(&gamma, i + off, gamma.v[i]);
                buf_to_device(&x), buf_to_device(&gamma);
                if (layer) {
                    k.k->layernorm_fwd(k.q[0], &n, xp, gp, gp, yp, mean.p, rstd.p);
                    k.k->layernorm_bwd(k.q[0], &n, xp, gp, mean.p, rstd.p, yp, dxp, false, dg.p,
                                       db.p, false);
                } else {
                    k.k->rmsnorm_fwd(k.q[0], &n, xp, gp, yp, rstd.p);
                    k.k->rmsnorm_bwd(k.q[0], &n, xp, gp, rstd.p, yp, dxp, false, dg.p, false);
                }
                buf_to_host(&y, 0), buf_to_host(&dx, 0), buf_to_host(&dg, 0), buf_to_host(&db, 0);
                for (int64_t i = 0; i < 2 * size + (1 + layer) * n.width; i++) {
                    double v = i < size                 ? buf_get(&y, i + off)
                               : i < 2 * size           ? buf_get(&dx, i - size + off)
                               : i < 2 * size + n.width ? buf_get(&dg, i - 2 * size)
                                                        : buf_get(&db, i - 2 * size - n.width);

                    if (off == 0)
                        got[i] = v;
                    else
                        ck_assert_msg(got[i] == v, "width %d, value %d: %.9g, elsewhere %.9g",
                                      (int)n.width, (int)i, got[i], v);
                }
            }
            free(got);
            buf_free(&x), buf_free(&gamma), buf_free(&y), buf_free(&dx), buf_free(&dg),
                buf_free(&db);
            buf_free(&mean), buf_free(&rstd);
        }
    kt_close(&k);
}
END_TEST

/* Items of cu[i] .. cu[i+1] pixels. */
static void check_group(struct kt *k, int64_t items, const int32_t *cu, int channels, int groups,
                        bool silu, bool add)
{
    int64_t size = (int64_t)cu[items] * channels;
    struct norm_case c = {.g = {k->t, {items, cu, cu[items]}, channels, groups, 1e-5f, silu},
                          .group = true,
                          .size = size};
    struct buf x = buf_new(k, size, k->t, 1.385, 0.9), y = buf_new(k, size, k->t, 1, 0);
    struct buf dy = buf_new(k, size, k->t, 1.3, 0.1), dx = buf_new(k, size, k->t, 1, 0);
    struct buf gamma = buf_new(k, channels, DT_F32, 0.4, 1);
    struct buf beta = buf_new(k, channels, DT_F32, 0.3, 0);
    struct buf dg = buf_new(k, channels, DT_F32, 1, 0), db = buf_new(k, channels, DT_F32, 1, 0);
    struct buf mean = buf_new(k, items * groups, DT_F32, 1, 0);
    struct buf rstd = buf_new(k, items * groups, DT_F32, 1, 0);
    double *want = calloc((size_t)size + 1, sizeof(double));
    struct dt_kernel_groupnorm g = c.g;

    g.items.cu = kt_give(k, cu, (size_t)(items + 1) * sizeof(*cu));
    for (int th = 0; th < 2; th++) {
        buf_reset(&dx);
        buf_reset(&dg);
        buf_reset(&db);
        k->k->groupnorm_fwd(k->q[th], &g, x.p, gamma.p, beta.p, y.p, mean.p, rstd.p);
        k->k->groupnorm_bwd(k->q[th], &g, x.p, gamma.p, beta.p, mean.p, rstd.p, dy.p, dx.p, add,
                            dg.p, db.p, add);
        kt_same(k, th, &y);
        kt_same(k, th, &dx);
        kt_same(k, th, &dg);
        kt_same(k, th, &db);
    }
    ref_groupnorm(&c.g, x.v, gamma.v, beta.v, want);
    kt_all_near(k, "group norm", &y, want, kt_tol(k->t));
    c.x = x.v, c.gamma = gamma.v, c.beta = beta.v, c.y = want, c.dy = dy.v;
    kt_gradient(k, "group norm dx", &dx, add ? dx.v : NULL, c.x, norm_loss, &c, ref_slope, PLACES,
                2 * kt_tol(k->t));
    kt_gradient(k, "group norm dgamma", &dg, add ? dg.v : NULL, c.gamma, norm_loss, &c, ref_slope,
                PLACES, 1e-4);
    kt_gradient(k, "group norm dbeta", &db, add ? db.v : NULL, c.beta, norm_loss, &c, ref_slope,
                PLACES, 1e-4);
    free(want);
    buf_free(&x), buf_free(&y), buf_free(&dy), buf_free(&dx), buf_free(&gamma), buf_free(&beta);
    buf_free(&dg), buf_free(&db), buf_free(&mean), buf_free(&rstd);
}

START_TEST(test_group_norm)
{
    static const int32_t one[] = {0, 5}, equal[] = {0, 49, 98, 147}, unequal[] = {0, 49, 61, 62};
    static const int32_t long_ones[] = {0, 300, 300,
                                        557}; /* more than one slab of pixels, and none */
    struct kt k;

    kt_open(&k, _i);
    check_group(&k, 1, one, 2, 2, false, false);
    check_group(&k, 3, equal, 12, 4, false, true);
    check_group(&k, 3, unequal, 30, 3, true, false);
    check_group(&k, 3, long_ones, 8, 2, true, true);
    check_group(&k, 3, unequal, 640, 32, true, true);
    kt_close(&k);
}
END_TEST

/* As with the other norms: places, by one element, change no bit. */
START_TEST(test_group_norm_anywhere)
{
    enum { CHANNELS = 48, GROUPS = 6, ROWS = 75, N = ROWS * CHANNELS, ITEMS = 2 };
    static const int32_t cu[ITEMS + 1] = {0, 70, ROWS};
    double got[2 * N + 2 * CHANNELS];
    struct kt k;

    kt_open(&k, _i);
    const struct dt_kernel_groupnorm g = {
        k.t, {ITEMS, kt_give(&k, cu, sizeof(cu)), ROWS}, CHANNELS, GROUPS, 1e-5f, true};
    size_t unit = dt_dtype_bytes(k.t);
    struct buf x = buf_new(&k, N + 1, k.t, 1.7, 0.3), dy = buf_new(&k, N + 1, k.t, 1.1, 0);
    struct buf y = buf_new(&k, N + 1, k.t, 1, 0), dx = buf_new(&k, N + 1, k.t, 1, 0);
    struct buf gamma = buf_new(&k, CHANNELS + 1, DT_F32, 0.4, 1);
    struct buf beta = buf_new(&k, CHANNELS + 1, DT_F32, 0.4, 0);
    struct buf dg = buf_new(&k, CHANNELS, DT_F32, 1, 0), db = buf_new(&k, CHANNELS, DT_F32, 1, 0);
    struct buf mean = buf_new(&k, ITEMS * GROUPS, DT_F32, 1, 0);
    struct buf rstd = buf_new(&k, ITEMS * GROUPS, DT_F32, 1, 0);

    for (int off = 0; off < 2; off++) {
        size_t by = (size_t)off * unit;

        for (int i = 0; i < N; i++)
            buf_put(&x, i + off, x.v[i]), buf_put(&dy, i + off, dy.v[i]);
        for (int i = 0; i < CHANNELS; i++)
            buf_put(&gamma, i + off, gamma.v[i]), buf_put(&beta, i + off, beta.v[i]);
        buf_to_device(&x), buf_to_device(&dy), buf_to_device(&gamma), buf_to_device(&beta);
        k.k->groupnorm_fwd(k.q[0], &g, (char *)x.p + by, (float *)gamma.p + off,
                           (float *)beta.p + off, (char *)y.p + by, mean.p, rstd.p);
        k.k->groupnorm_bwd(k.q[0], &g, (char *)x.p + by, (float *)gamma.p + off,
                           (float *)beta.p + off, mean.p, rstd.p, (char *)dy.p + by,
                           (char *)dx.p + by, false, dg.p, db.p, false);
        buf_to_host(&y, 0), buf_to_host(&dx, 0), buf_to_host(&dg, 0), buf_to_host(&db, 0);
        for (int i = 0; i < 2 * N + 2 * CHANNELS; i++) {
            double v = i < N                  ? buf_get(&y, i + off)
                       : i < 2 * N            ? buf_get(&dx, i - N + off)
                       : i < 2 * N + CHANNELS ? buf_get(&dg, i - 2 * N)
                                              : buf_get(&db, i - 2 * N - CHANNELS);

            if (off == 0)
                got[i] = v;
            ck_assert_msg(got[i] == v, "value %d: %.9g, elsewhere %.9g", i, got[i], v);
        }
    }
    buf_free(&x), buf_free(&dy), buf_free(&y), buf_free(&dx), buf_free(&gamma), buf_free(&beta);
    buf_free(&dg), buf_free(&db), buf_free(&mean), buf_free(&rstd);
    kt_close(&k);
}
END_TEST

/* A mean far from zero does not spoil the variance. */
START_TEST(test_large_mean)
{
    struct kt k;

    kt_open(&k, _i / 2 * 2);
    struct buf x = buf_new(&k, 400 * 16, DT_F32, 1, 1000), y = buf_new(&k, 400 * 16, DT_F32, 1, 0);
    struct buf gamma = buf_new(&k, 400, DT_F32, 0, 1), beta = buf_new(&k, 400, DT_F32, 0, 0);
    struct buf mean = buf_new(&k, 16, DT_F32, 1, 0), rstd = buf_new(&k, 16, DT_F32, 1, 0);
    struct dt_kernel_norm n = {DT_F32, 16, 400, 0, 0, 1e-5f};
    static const int32_t cu[] = {0, 400};
    struct dt_kernel_groupnorm g = {DT_F32, {1, cu, 400}, 16, 4, 1e-5f, false}, on_device = g;
    double *want = calloc(400 * 16, sizeof(double));

    for (int th = 0; th < 2; th++) {
        k.k->layernorm_fwd(k.q[th], &n, x.p, gamma.p, beta.p, y.p, mean.p, rstd.p);
        kt_same(&k, th, &y);
    }
    ref_norm(&n, true, x.v, gamma.v, beta.v, want);
    kt_all_near(&k, "layer norm about 1000", &y, want, 2e-4);
    on_device.items.cu = kt_give(&k, cu, sizeof(cu));
    for (int th = 0; th < 2; th++) {
        k.k->groupnorm_fwd(k.q[th], &on_device, x.p, gamma.p, beta.p, y.p, mean.p, rstd.p);
        kt_same(&k, th, &y);
    }
    ref_groupnorm(&g, x.v, gamma.v, beta.v, want);
    kt_all_near(&k, "group norm about 1000", &y, want, 2e-4);
    free(want);
    buf_free(&x), buf_free(&y), buf_free(&gamma), buf_free(&beta), buf_free(&mean), buf_free(&rstd);
    kt_close(&k);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels: norms");
    TCase *t = dt_test_case(s, "norms", 900);

    tcase_add_loop_test(t, test_norms, 0, KT_CASES);
    tcase_add_loop_test(t, test_norms_anywhere, 0, KT_CASES);
    tcase_add_loop_test(t, test_group_norm, 0, KT_CASES);
    tcase_add_loop_test(t, test_group_norm_anywhere, 0, KT_CASES);
    tcase_add_loop_test(t, test_large_mean, 0, KT_CASES);
    return dt_test_run(s);
}
