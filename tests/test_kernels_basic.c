/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Activations, rows, images, element-wise kernels, random numbers. */
#include "kernel_util.h"
#include "ref_kernels.h"

#define BOTH for (int th = 0; th < 2; th++)

START_TEST(test_activations)
{
    enum { N = 33001 };
    struct kt k;

    kt_open(&k, _i);
    struct buf x = buf_new(&k, N, k.t, 2.385, 0), dy = buf_new(&k, N, k.t, 1, 0);
    struct buf y = buf_new(&k, N, k.t, 1, 0), dx = buf_new(&k, N, k.t, 1, 0);
    double *want = calloc(N, sizeof(double)), *grad = calloc(N, sizeof(double));

    x.v[0] = 60, x.v[1] = -60, x.v[2] = 100, x.v[3] = -100, x.v[4] = 0;
    buf_reset(&x);
    for (int act = 0; act < DT_ACT_N; act++) {
        enum dt_kernel_act a = (enum dt_kernel_act)act;

        BOTH
        {
            buf_reset(&dx);
            k.k->act_fwd(k.q[th], a, k.t, N, x.p, y.p);
            k.k->act_bwd(k.q[th], a, k.t, N, x.p, dy.p, dx.p);
            kt_same(&k, th, &y), kt_same(&k, th, &dx);
        }
        for (int i = 0; i < N; i++) {
            double h = 1e-5;

            want[i] = ref_act(a, x.v[i]);
            grad[i] = dy.v[i] * (ref_act(a, x.v[i] + h) - ref_act(a, x.v[i] - h)) / (2 * h);
        }
        for (int i = 0; i < N && a == DT_ACT_RELU; i++) /* differences fail near the kink */
            grad[i] = x.v[i] > 0 ? dy.v[i] : 0;
        /* relative to the value itself, not only to the largest */
        for (int i = 0; i < N; i++) {
            kt_near(&k, "act", y.got[i], want[i], fabs(want[i]) + 5e-2, kt_tol(k.t));
            kt_near(&k, "act gradient", dx.got[i], grad[i], fabs(grad[i]) + 1e-2,
                    k.t == DT_BF16 ? 0x1p-8 : 1e-4);
        }
    }
    free(want), free(grad);
    buf_free(&x), buf_free(&dy), buf_free(&y), buf_free(&dx);
    kt_close(&k);
}
END_TEST

struct glu_case {
    enum dt_kernel_act act;
    int64_t rows, width;
    bool gate_last;
    double *h, *y;
    const double *dy;
};

static double glu_loss(void *ctx)
{
    struct glu_case *c = ctx;
    double s = 0;

    ref_glu(c->act, c->rows, c->width, c->gate_last, c->h, c->y);
    for (int64_t i = 0; i < c->rows * c->width; i++)
        s += c->y[i] * c->dy[i];
    return s;
}

START_TEST(test_glu)
{
    enum { ROWS = 71, WIDTH = 37, N = ROWS * WIDTH };
    struct kt k;

    kt_open(&k, _i);
    struct buf h = buf_new(&k, 2 * N, k.t, 1.7, 0.1), dy = buf_new(&k, N, k.t, 1, 0);
    struct buf y = buf_new(&k, N, k.t, 1, 0), dh = buf_new(&k, 2 * N, k.t, 1, 0);
    double *want = calloc(N, sizeof(double));

    for (int act = 0; act < DT_ACT_N; act++)
        for (int last = 0; last < 2; last++) {
            struct glu_case c = {(enum dt_kernel_act)act, ROWS, WIDTH, last, h.v, want, dy.v};

            BOTH
            {
                k.k->glu_fwd(k.q[th], c.act, k.t, ROWS, WIDTH, last, h.p, y.p);
                k.k->glu_bwd(k.q[th], c.act, k.t, ROWS, WIDTH, last, h.p, dy.p, dh.p);
                kt_same(&k, th, &y), kt_same(&k, th, &dh);
            }
            ref_glu(c.act, ROWS, WIDTH, last, h.v, want);
            kt_all_near(&k, "glu", &y, want, kt_tol(k.t));
            kt_gradient(&k, "glu gradient", &dh, NULL, c.h, glu_loss, &c, ref_slope, 20,
                        kt_tol(k.t));
            /* in place */
            memcpy(dh.h, h.h, buf_bytes(&h));
            buf_to_device(&dh);
            k.k->glu_bwd(k.q[1], c.act, k.t, ROWS, WIDTH, last, dh.p, dy.p, dh.p);
            kt_same(&k, 1, &dh);
        }
    free(want);
    buf_free(&h), buf_free(&dy), buf_free(&y), buf_free(&dh);
    kt_close(&k);
}
END_TEST

/* `often`: every second row has id 3, so that there are long runs of one id, and short ones. */
static void check_embedding(struct kt *k, int rows, int width, int vocab, bool often)
{
    int32_t *id = calloc((size_t)rows, sizeof(*id));
    struct buf table = buf_new(k, vocab * width, DT_F32, 1, 0);
    struct buf y = buf_new(k, rows * width, k->t, 1, 0), dy = buf_new(k, y.n, k->t, 1, 0);
    struct buf dt = buf_new(k, table.n, DT_F32, 1, 0);
    double *want = calloc((size_t)y.n, sizeof(double)),
           *grad = calloc((size_t)dt.n, sizeof(double));

    for (int r = 0; r < rows; r++)
        id[r] = often && r % 2 ? 3 /* -1 and vocab among the others */
                               : (int32_t)dt_rng_below(&k->rng, (uint64_t)vocab + 2) - 1;
    const int32_t *ids = kt_give(k, id, (size_t)rows * sizeof(*id));

    for (int add = 0; add < 2; add++) {
        for (int th = 0; th < 2; th++) {
            buf_reset(&y), buf_reset(&dt);
            k->k->embedding_fwd(k->q[th], k->t, rows, width, vocab, ids, table.p, y.p, add);
            k->k->embedding_bwd(k->q[th], k->t, rows, width, vocab, ids, dy.p, dt.p);
            kt_same(k, th, &y), kt_same(k, th, &dt);
        }
        memcpy(grad, dt.v, sizeof(double) * (size_t)dt.n);
        for (int i = 0; i < rows * width; i++) {
            int t = id[i / width];
            bool in = t >= 0 && t < vocab;

            want[i] = (add ? y.v[i] : 0) + (in ? table.v[t * width + i % width] : 0);
            if (in)
                grad[t * width + i % width] += dy.v[i];
        }
        kt_all_near(k, "embedding", &y, want, kt_tol(k->t));
        kt_all_near(k, "embedding gradient", &dt, grad, 1e-6);
    }
    free(id), free(want), free(grad);
    buf_free(&table), buf_free(&y), buf_free(&dy), buf_free(&dt);
}

START_TEST(test_embedding)
{
    struct kt k;

    kt_open(&k, _i);
    check_embedding(&k, 301, 77, 13, false);
    check_embedding(&k, 700, 80, 97, true);
    check_embedding(&k, 8, 64, 3000, false);
    kt_close(&k);
}
END_TEST

START_TEST(test_rows)
{
    enum { N = 40, WIDTH = 19, SRC = 50, DST = 60, STRIDE = 31 };
    int32_t from[N], to[N];
    struct kt k;

    kt_open(&k, _i);
    struct buf src = buf_new(&k, SRC * STRIDE, k.t, 1, 0),
               dst = buf_new(&k, DST * STRIDE, k.t, 1, 0);
    double *want = calloc((size_t)dst.n, sizeof(double));

    for (int i = 0; i < N; i++) {
        from[i] = (int32_t)dt_rng_below(&k.rng, SRC);
        to[i] = (int32_t)((i * 7 + 3) % DST); /* 7 and 60 have no common factor: distinct */
    }
    const int32_t *froms = kt_give(&k, from, sizeof(from)), *tos = kt_give(&k, to, sizeof(to));

    for (int mode = 0; mode < 6; mode++) {
        bool add = mode % 2;
        const int32_t *f = mode / 2 == 0 ? from : NULL, *t = mode / 2 == 1 ? to : NULL;

        BOTH
        {
            buf_reset(&dst);
            if (mode < 4)
                k.k->rows_copy(k.q[th], k.t, N, WIDTH, src.p, f ? froms : NULL, dst.p,
                               t ? tos : NULL, add);
            else
                k.k->copy2d(k.q[th], k.t, N, WIDTH, src.p, STRIDE, dst.p, WIDTH + 5, add);
            kt_same(&k, th, &dst);
        }
        memcpy(want, dst.v, sizeof(double) * (size_t)dst.n);
        for (int i = 0; i < N; i++)
            for (int c = 0; c < WIDTH; c++) {
                int s = mode < 4 ? (f ? f[i] : i) * WIDTH : i * STRIDE;
                int d = mode < 4 ? (t ? t[i] : i) * WIDTH : i * (WIDTH + 5);

                want[d + c] = (add ? want[d + c] : 0) + src.v[s + c];
            }
        kt_all_near(&k, "rows", &dst, want, kt_tol(k.t));
    }
    free(want);
    buf_free(&src), buf_free(&dst);
    kt_close(&k);
}
END_TEST

/* More parts than a table of any device holds, some empty, the bytes between them as they were.  Loop: sizes and places
 * are whole multiples of 16 bytes, or any. */
START_TEST(test_copy)
{
    enum { PARTS = 150, LARGE = 40000, ROOM = PARTS * 400 + 4 * LARGE };
    static uint8_t from[ROOM], to[ROOM], want[ROOM];
    struct dt_kernel_copy_part part[PARTS];
    int unit = _i ? 1 : 16;
    int64_t x = 0, y = 0;
    struct kt k;

    kt_open(&k, 0);
    for (int i = 0; i < ROOM; i++) {
        from[i] = (uint8_t)dt_rng_below(&k.rng, 256);
        to[i] = want[i] = 0x5a;
    }
    const char *src = kt_give(&k, from, ROOM);
    char *dst = kt_give(&k, to, ROOM);

    for (int i = 0; i < PARTS; i++) {
        int64_t n = i % 5 == 3 ? 0 : (int64_t)dt_rng_below(&k.rng, 300) / unit * unit;

        n = i % 50 == 7 ? LARGE + (int64_t)(_i * 5) : n;
        part[i] = (struct dt_kernel_copy_part){n, src + x, dst + y};
        memcpy(want + y, from + x, (size_t)n);
        x += n + (int64_t)dt_rng_below(&k.rng, 3) * unit;
        y += n + (int64_t)(1 + dt_rng_below(&k.rng, 3)) * unit;
        ck_assert(x < ROOM && y < ROOM);
    }
    for (int th = 0; th < 2; th++) {
        kt_copy(&k, th, dst, to, ROOM, DT_COPY_TO_DEVICE);
        k.k->copy(k.q[th], PARTS, part);
        k.k->copy(k.q[th], 0, NULL);
        kt_take(&k, th, from, dst, ROOM);
        ck_assert(memcmp(from, want, ROOM) == 0);
    }
    kt_close(&k);
}
END_TEST

START_TEST(test_images)
{
    enum { N = 3, H = 4, W = 6, C = 5, SMALL = N * H * W * C, BIG = 4 * SMALL };
    static const int32_t cu[] = {0, H * W, 2 * H * W, N * H * W};
    static const int32_t hw[] = {2 * H, 2 * W, 2 * H, 2 * W, 2 * H, 2 * W};
    double want[BIG], down[SMALL];
    struct kt k;

    kt_open(&k, _i);
    const struct dt_kernel_images sizes = {
        {N, kt_give(&k, cu, sizeof(cu)), N * H * W}, kt_give(&k, hw, sizeof(hw)), 1};
    struct buf s = buf_new(&k, SMALL, k.t, 1, 0), b = buf_new(&k, BIG, k.t, 1, 0);
    struct buf s2 = buf_new(&k, SMALL, k.t, 1, 0), b2 = buf_new(&k, BIG, k.t, 1, 0);

    for (int mean = 0; mean < 2; mean++) {
        double f = mean ? 0.25 : 1;

        memset(down, 0, sizeof(down));
        for (int i = 0; i < BIG; i++) {
            int c = i % C, x = i / C % (2 * W), y = i / C / (2 * W) % (2 * H),
                n = i / C / (4 * W * H);
            int small = ((n * H + y / 2) * W + x / 2) * C + c;

            want[i] = f * s.v[small];
            down[small] += f * b.v[i];
        }
        BOTH
        {
            if (mean) {
                k.k->avgpool2_bwd(k.q[th], k.t, N, 2 * H, 2 * W, C, s.p, b2.p);
                k.k->avgpool2_fwd(k.q[th], k.t, N, 2 * H, 2 * W, C, b.p, s2.p);
            } else {
                k.k->upsample2_fwd(k.q[th], k.t, &sizes, C, s.p, b2.p);
                k.k->upsample2_bwd(k.q[th], k.t, &sizes, C, b.p, s2.p);
            }
            kt_same(&k, th, &b2), kt_same(&k, th, &s2);
        }
        kt_all_near(&k, "to the big image", &b2, want, kt_tol(k.t));
        kt_all_near(&k, "to the small image", &s2, down, kt_tol(k.t));
    }
    buf_free(&s), buf_free(&b), buf_free(&s2), buf_free(&b2);
    kt_close(&k);
}
END_TEST

/* Pixels of image i above (y, x), in an image of width w that begins at pixel `first`. */
static int64_t pixel(int64_t first, int64_t w, int64_t y, int64_t x)
{
    return first + y * w + x;
}

/* Images of different sizes in one launch. */
START_TEST(test_images_of_any_size)
{
    enum { N = 4, ROWS = 3 * 5 + 0 + 2 * 61 + 40 * 33, C = 7 };
    static const int32_t hw[] = {6, 10,  0,  8,
                                 5, 122, 81, 66}; /* halved: 3 x 5, 0 x 4, 2 x 61, 40 x 33 */
    static const int32_t cu[] = {0, 15, 15, 15 + 122, ROWS};
    struct kt k;

    kt_open(&k, _i);
    const struct dt_kernel_images small = {
        {N, kt_give(&k, cu, sizeof(cu)), ROWS}, kt_give(&k, hw, sizeof(hw)), 1};
    struct buf s = buf_new(&k, ROWS * C, k.t, 1, 0), b = buf_new(&k, 4 * ROWS * C, k.t, 1, 0);
    struct buf s2 = buf_new(&k, s.n, k.t, 1, 0), b2 = buf_new(&k, b.n, k.t, 1, 0);
    double *up = calloc((size_t)b.n, sizeof(*up)), *down = calloc((size_t)s.n, sizeof(*down));

    BOTH
    {
        k.k->upsample2_fwd(k.q[th], k.t, &small, C, s.p, b2.p);
        k.k->upsample2_bwd(k.q[th], k.t, &small, C, b.p, s2.p);
        kt_same(&k, th, &b2), kt_same(&k, th, &s2);
    }
    for (int i = 0; i < N; i++) {
        int64_t w = hw[2 * i + 1] / 2, h = hw[2 * i] / 2;

        for (int64_t y = 0; y < 2 * h; y++)
            for (int64_t x = 0; x < 2 * w; x++)
                for (int64_t c = 0; c < C; c++) {
                    int64_t big = pixel(4 * cu[i], 2 * w, y, x) * C + c;
                    int64_t below = pixel(cu[i], w, y / 2, x / 2) * C + c;

                    up[big] = s.v[below];
                    down[below] += b.v[big];
                }
    }
    kt_all_near(&k, "doubled", &b2, up, kt_tol(k.t));
    kt_all_near(&k, "halved", &s2, down, kt_tol(k.t));
    free(up), free(down);
    buf_free(&s), buf_free(&b), buf_free(&s2), buf_free(&b2);
    kt_close(&k);
}
END_TEST

START_TEST(test_timestep)
{
    enum { N = 7, DIM = 20 };
    float t[N] = {0, 1, 2.385f, 17, 250, 731.5f, 999};
    double want[N * DIM];
    struct kt k;

    kt_open(&k, _i);
    struct buf y = buf_new(&k, N * DIM, k.t, 1, 0);
    const float *times = kt_give(&k, t, sizeof(t));

    for (int mode = 0; mode < 4; mode++) {
        double shift = mode / 2, half = DIM / 2;

        BOTH
        {
            k.k->timestep(k.q[th], k.t, N, DIM, times, 10000, (float)shift, mode % 2, y.p);
            kt_same(&k, th, &y);
        }
        for (int r = 0; r < N; r++)
            for (int i = 0; i < DIM / 2; i++) {
                double a = (double)t[r] * pow(10000, -i / (half - shift));

                want[r * DIM + i] = mode % 2 ? cos(a) : sin(a);
                want[r * DIM + DIM / 2 + i] = mode % 2 ? sin(a) : cos(a);
            }
        kt_all_near(&k, "timestep", &y, want, kt_tol(k.t));
    }
    buf_free(&y);
    kt_close(&k);
}
END_TEST

START_TEST(test_elementwise)
{
    enum { ITEMS = 5, ROWS = 415, WIDTH = 21, N = ROWS * WIDTH };
    static const int32_t cu[] = {0, 83, 84, 84, 301, ROWS};
    float fa[ITEMS] = {1.5f, -0.3f, 0, 2.385f, 1}, fb[ITEMS] = {0.1f, 0.9f, 1, -1.25f, 0};
    enum { ADD, SCALE, MIX, ITEM_ADD, CAST, KINDS };
    struct kt k;

    kt_open(&k, _i);
    const struct dt_kernel_items items = {ITEMS, kt_give(&k, cu, sizeof(cu)), ROWS};
    const float *pa = kt_give(&k, fa, sizeof(fa)), *pb = kt_give(&k, fb, sizeof(fb));
    struct buf x = buf_new(&k, N, k.t, 1, 0.3), z = buf_new(&k, N, k.t, 1, 0);
    struct buf e = buf_new(&k, ITEMS * WIDTH, k.t, 1, 0), y = buf_new(&k, N, k.t, 1, 0);
    struct buf other = buf_new(&k, N, k.t == DT_BF16 ? DT_F32 : DT_BF16, 1, 0);
    struct buf db = buf_new(&k, WIDTH, DT_F32, 1, 0), de = buf_new(&k, e.n, k.t, 1, 0);
    double *want = calloc(N, sizeof(double));

    for (int kind = 0; kind < KINDS; kind++) {
        struct buf *out = kind == CAST ? &other : &y;

        BOTH
        {
            if (kind == ADD)
                k.k->add(k.q[th], k.t, N, x.p, z.p, y.p);
            else if (kind == SCALE)
                k.k->scale(k.q[th], k.t, N, -1.375f, x.p, y.p);
            else if (kind == MIX)
                k.k->mix(k.q[th], k.t, &items, WIDTH, pa, x.p, pb, z.p, y.p);
            else if (kind == ITEM_ADD)
                k.k->item_add(k.q[th], k.t, &items, WIDTH, x.p, e.p, y.p);
            else
                k.k->cast(k.q[th], N, k.t, x.p, other.t, other.p);
            kt_same(&k, th, out);
        }
        for (int i = 0, item = 0; i < N; i++) {
            while (i / WIDTH >= cu[item + 1])
                item++;

            want[i] = kind == ADD        ? x.v[i] + z.v[i]
                      : kind == SCALE    ? -1.375 * x.v[i]
                      : kind == MIX      ? (double)fa[item] * x.v[i] + (double)fb[item] * z.v[i]
                      : kind == ITEM_ADD ? x.v[i] + e.v[item * WIDTH + i % WIDTH]
                                         : x.v[i];
        }
        kt_all_near(&k, "element-wise", out, want, kt_tol(out->t));
    }
    for (int add = 0; add < 2; add++) {
        BOTH
        {
            buf_reset(&db), buf_reset(&de);
            k.k->bias_bwd(k.q[th], k.t, ROWS, WIDTH, x.p, db.p, add);
            k.k->item_sum(k.q[th], k.t, &items, WIDTH, x.p, de.p, add);
            kt_same(&k, th, &db), kt_same(&k, th, &de);
        }
        for (int i = 0; i < WIDTH; i++) {
            want[i] = add ? db.v[i] : 0;
            for (int r = 0; r < ROWS; r++)
                want[i] += x.v[r * WIDTH + i];
        }
        kt_all_near(&k, "bias gradient", &db, want, 1e-5);
        for (int i = 0; i < ITEMS * WIDTH; i++) {
            want[i] = add ? de.v[i] : 0;
            for (int r = cu[i / WIDTH]; r < cu[i / WIDTH + 1]; r++)
                want[i] += x.v[r * WIDTH + i % WIDTH];
        }
        kt_all_near(&k, "item sum", &de, want, kt_tol(k.t));
    }
    free(want);
    buf_free(&x), buf_free(&z), buf_free(&e), buf_free(&y), buf_free(&other), buf_free(&db);
    buf_free(&de);
    kt_close(&k);
}
END_TEST

/* Sums of many rows, whose columns are whole accesses or not. */
START_TEST(test_column_sums)
{
    static const int shape[][2] = {{1500, 264}, {40, 2048}, {300, 37}};
    struct kt k;

    kt_open(&k, _i);
    for (int s = 0; s < 3; s++) {
        int rows = shape[s][0], width = shape[s][1];
        struct buf x = buf_new(&k, rows * width, k.t, 1, 0.1);
        struct buf db = buf_new(&k, width, DT_F32, 1, 0);
        double *want = calloc((size_t)width, sizeof(double));

        BOTH
        {
            buf_reset(&db);
            k.k->bias_bwd(k.q[th], k.t, rows, width, x.p, db.p, true);
            kt_same(&k, th, &db);
        }
        for (int i = 0; i < rows * width; i++)
            want[i % width] += x.v[i];
        for (int i = 0; i < width; i++)
            want[i] += db.v[i];
        kt_all_near(&k, "bias gradient", &db, want, 1e-5);
        free(want);
        buf_free(&x), buf_free(&db);
    }
    kt_close(&k);
}
END_TEST

START_TEST(test_bf16_rounding)
{
    const float in[] = {1.00390625f, 1.01171875f, 0x1.fep127f, INFINITY, -INFINITY,
                        NAN,         0x1p-140f,   -0.0f,       3.0e38f};
    const uint16_t out[9] = {0};
    float back[9];
    struct kt k;

    kt_open(&k, _i / 2 * 2);
    const float *from = kt_give(&k, in, sizeof(in));
    uint16_t *rounded = kt_give(&k, out, sizeof(out));
    float *to = kt_give(&k, in, sizeof(in));

    k.k->cast(k.q[0], 9, DT_F32, from, DT_BF16, rounded);
    k.k->cast(k.q[0], 9, DT_BF16, rounded, DT_F32, to);
    kt_take(&k, 0, back, to, sizeof(back));
    ck_assert(back[0] == 1.0f);        /* half way: to even */
    ck_assert(back[1] == 1.015625f);   /* half way: to even, upwards */
    ck_assert(back[2] == 0x1.fep127f); /* the largest */
    ck_assert(back[3] == INFINITY && back[4] == -INFINITY);
    ck_assert(isnan(back[5]));
    ck_assert(back[7] == 0 && signbit(back[7]));
    kt_near(&k, "bf16", (double)back[8], 3.0e38, 3.0e38, 0x1p-8);
    kt_close(&k);
}
END_TEST

START_TEST(test_random)
{
    enum { WIDTH = 21, ROWS = 2381, N = ROWS * WIDTH, FIRST = 900 };
    static const int32_t cu[] = {0, 500, 501, 501, 1700, ROWS};
    static const uint64_t stream[] = {5, 6, 7, 8, 9};
    struct kt k;

    kt_open(&k, _i);
    const struct dt_kernel_items items = {5, kt_give(&k, cu, sizeof(cu)), ROWS};
    const uint64_t *streams = kt_give(&k, stream, sizeof(stream));
    struct buf y = buf_new(&k, N, k.t, 1, 0), x = buf_new(&k, N, k.t, 1, 3);
    double *want = calloc(N, sizeof(double)), mean = 0;
    int dropped = 0;

    BOTH
    {
        k.k->normal(k.q[th], k.t, N, 77, 5, 1000, 0.5f, y.p);
        kt_same(&k, th, &y);
    }
    for (int i = 0; i < N; i++)
        want[i] = 0.5 * dt_rng_normal_at(77, 5, 1000 + (uint64_t)i);
    kt_all_near(&k, "normal", &y, want, kt_tol(k.t));
    BOTH
    {
        k.k->item_normal(k.q[th], k.t, &items, WIDTH, 77, streams, 0.5f, y.p);
        kt_same(&k, th, &y);
    }
    for (int i = 0, item = 0; i < N; i++) {
        while (i / WIDTH >= cu[item + 1])
            item++;
        want[i] = 0.5 * dt_rng_normal_at(77, stream[item], (uint64_t)(i - cu[item] * WIDTH));
    }
    kt_all_near(&k, "normal values of items", &y, want, kt_tol(k.t));
    BOTH
    {
        k.k->dropout(k.q[th], k.t, &items, WIDTH, 77, streams, NULL, 0, ROWS, 0.25f, x.p, y.p);
        kt_same(&k, th, &y);
    }
    for (int i = 0; i < N; i++) {
        dropped += y.got[i] == 0;
        mean += y.got[i] / N;
        if (y.got[i] != 0)
            kt_near(&k, "kept", y.got[i], x.v[i] / 0.75, fabs(x.v[i] / 0.75), kt_tol(k.t));
    }
    ck_assert_int_lt(abs(dropped - N / 4), 600); /* 6 standard deviations */
    ck_assert(fabs(mean - 3) < 0.06);
    /* as every item alone, and as any rows of them */
    memcpy(want, y.got, sizeof(double) * N);
    for (int item = 0; item < 5; item++) {
        const int32_t own[] = {0, cu[item + 1] - cu[item]};
        const struct dt_kernel_items alone = {1, kt_give(&k, own, sizeof(own)), own[1]};

        k.k->dropout(k.q[0], k.t, &alone, WIDTH, 77, &streams[item], NULL, 0, own[1], 0.25f,
                     (char *)x.p + (size_t)(cu[item] * WIDTH) * dt_dtype_bytes(k.t), y.p);
        buf_to_host(&y, 0);
        for (int i = 0; i < own[1] * WIDTH; i++)
            ck_assert(buf_get(&y, i) == want[cu[item] * WIDTH + i]);
    }
    k.k->dropout(k.q[0], k.t, &items, WIDTH, 77, streams, NULL, FIRST, ROWS - FIRST - 1, 0.25f,
                 (char *)x.p + (size_t)(FIRST * WIDTH) * dt_dtype_bytes(k.t), y.p);
    buf_to_host(&y, 0);
    for (int i = 0; i < (ROWS - FIRST - 1) * WIDTH; i++)
        ck_assert(buf_get(&y, i) == want[FIRST * WIDTH + i]);
    /* as parts of items: the first 200 rows of the fourth and those from 700 on */
    {
        static const int32_t parts[] = {0, 200, 699}, begin[] = {0, 700};
        static const uint64_t of[] = {8, 8};
        const struct dt_kernel_items cuts = {2, kt_give(&k, parts, sizeof(parts)), 699};

        k.k->dropout(k.q[0], k.t, &cuts, WIDTH, 77, kt_give(&k, of, sizeof(of)),
                     kt_give(&k, begin, sizeof(begin)), 100, 599, 0.25f, x.p, y.p);
        buf_to_host(&y, 0);
        for (int i = 0; i < 599 * WIDTH; i++)
            ck_assert((buf_get(&y, i) == 0) ==
                      (want[(501 + (i < 100 * WIDTH ? 100 : 600)) * WIDTH + i] == 0));
    }
    free(want);
    buf_free(&y), buf_free(&x);
    kt_close(&k);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels: basics");
    TCase *t = dt_test_case(s, "basics", 900);

    tcase_add_loop_test(t, test_activations, 0, KT_CASES);
    tcase_add_loop_test(t, test_glu, 0, KT_CASES);
    tcase_add_loop_test(t, test_embedding, 0, KT_CASES);
    tcase_add_loop_test(t, test_column_sums, 0, KT_CASES);
    tcase_add_loop_test(t, test_copy, 0, 2);
    tcase_add_loop_test(t, test_rows, 0, KT_CASES);
    tcase_add_loop_test(t, test_images, 0, KT_CASES);
    tcase_add_loop_test(t, test_images_of_any_size, 0, KT_CASES);
    tcase_add_loop_test(t, test_timestep, 0, KT_CASES);
    tcase_add_loop_test(t, test_elementwise, 0, KT_CASES);
    tcase_add_loop_test(t, test_bf16_rounding, 0, KT_CASES);
    tcase_add_loop_test(t, test_random, 0, KT_CASES);
    return dt_test_run(s);
}
