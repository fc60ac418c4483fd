/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small products of bf16: those of this CPU, and the AMX one on imitated tiles, which need no CPU
 * that has them; and what brings their operands into order. */
#include "base/rng.h"
#include "kernels/cpu/pack.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- tiles as Intel's manual describes them ---- */

static struct {
    unsigned char byte[16][64];
} tiles[8];
static bool configured;

static void tile_load(int t, const void *from, size_t stride)
{
    ck_assert(configured);
    for (size_t r = 0; r < 16; r++)
        memcpy(tiles[t].byte[r], (const char *)from + r * stride, 64);
}

static void tile_store(int t, void *to, size_t stride)
{
    ck_assert(configured);
    for (size_t r = 0; r < 16; r++)
        memcpy((char *)to + r * stride, tiles[t].byte[r], 64);
}

static float wide(const unsigned char *p, int i)
{
    uint32_t u = 0;
    float f;

    memcpy((char *)&u + 2, p + 2 * i, 2);
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* c[m][n] += a[m][2k] b[k][2n] + a[m][2k+1] b[k][2n+1] */
static void tile_dp(int c, int a, int b)
{
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float s;

            memcpy(&s, tiles[c].byte[m] + 4 * n, 4);
            for (int k = 0; k < 16; k++)
                for (int h = 0; h < 2; h++)
                    s += wide(tiles[a].byte[m], 2 * k + h) * wide(tiles[b].byte[k], 2 * n + h);
            memcpy(tiles[c].byte[m] + 4 * n, &s, 4);
        }
}

static void tile_config(const void *p)
{
    const unsigned char *c = p;

    ck_assert_int_eq(c[0], 1);
    for (int i = 0; i < 8; i++) {
        uint16_t bytes;

        memcpy(&bytes, c + 16 + 2 * i, 2);
        ck_assert_int_eq(bytes, 64);
        ck_assert_int_eq(c[48 + i], 16);
    }
    configured = true;
}

#define DT_AMX_TARGET
#define _tile_loadd(t, p, s) tile_load(t, p, s)
#define _tile_stored(t, p, s) tile_store(t, p, s)
#define _tile_zero(t) memset(&tiles[t], 0, sizeof(tiles[t]))
#define _tile_dpbf16ps(c, a, b) tile_dp(c, a, b)
#define _tile_loadconfig(p) tile_config(p)
#define _tile_release() (configured = false)
#include "kernels/cpu/bf16_amx.h"

/* ---- against plain sums ---- */

enum { EXTRA = 5 }; /* columns behind the rows of a, b and c that nobody may touch */

static void check(dt_cpu_bf16_product_fn *product, struct dt_rng *r, uint64_t seed, int64_t m,
                  int64_t n, int64_t k, bool add)
{
    int64_t lda = k + EXTRA, ldb = n + EXTRA, ldc = n + EXTRA;
    uint16_t *a = calloc((size_t)(m * lda), 2), *b = calloc((size_t)(k * ldb), 2);
    float *c = calloc((size_t)(m * ldc), 4), *before = calloc((size_t)(m * ldc), 4);

    for (int64_t i = 0; i < m * lda; i++)
        a[i] = (uint16_t)(0x3f00u + dt_rng_below(r, 0x100) + (dt_rng_below(r, 2) << 15));
    for (int64_t i = 0; i < k * ldb; i++)
        b[i] = (uint16_t)(0x3f00u + dt_rng_below(r, 0x100) + (dt_rng_below(r, 2) << 15));
    for (int64_t i = 0; i < m * ldc; i++)
        before[i] = c[i] = (float)dt_rng_normal(r);
    product(m, n, k, a, lda, b, ldb, c, ldc, add);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double want = add ? (double)before[i * ldc + j] : 0;

            for (int64_t p = 0; p < k; p++)
                want += (double)wide((const unsigned char *)&a[i * lda + p], 0) *
                        (double)wide((const unsigned char *)&b[p / 2 * 2 * ldb + 2 * j + p % 2], 0);
            ck_assert_msg(fabs((double)c[i * ldc + j] - want) <= 1e-6 * sqrt((double)k) * 8,
                          "%dx%dx%d at %d, %d: %g, expected %g (seed %" PRIu64 ")", (int)m, (int)n,
                          (int)k, (int)i, (int)j, (double)c[i * ldc + j], want, seed);
        }
        for (int64_t j = n; j < ldc; j++)
            ck_assert(c[i * ldc + j] == before[i * ldc + j]);
    }
    free(a), free(b), free(c), free(before);
}

static void check_all(dt_cpu_bf16_product_fn *product)
{
    struct dt_rng r;
    uint64_t seed = dt_test_seed();

    dt_rng_init(&r, seed, 77);
    for (int add = 0; add < 2; add++) {
        check(product, &r, seed, 16, 16, 32, add);
        check(product, &r, seed, 16, 64, 96, add);
        check(product, &r, seed, 48, 32, 64, add);
        check(product, &r, seed, 64, 48, 64, add);
        check(product, &r, seed, 32, 80, 32, add);
        check(product, &r, seed, 80, 112, 160, add);
    }
}

/* ---- transposes ---- */

/* rows x width of x, whose rows are `stride` apart, or 0 outside. */
static uint16_t at(const uint16_t *x, int64_t stride, int64_t rows, int64_t width, int64_t r,
                   int64_t c)
{
    return r < rows && c < width ? x[r * stride + c] : 0;
}

static void check_turns(const struct dt_cpu_bf16_ops *ops, struct dt_rng *g, int64_t rows,
                        int64_t width)
{
    int64_t stride = width + 3, rooms = (rows + 31) / 32 * 32, room = (width + 31) / 32 * 32;
    /* x ends with its last row: nothing behind it may be read */
    uint16_t *x = malloc((size_t)(rows * stride) * 2), *y = malloc((size_t)(rooms * room) * 2);
    float *f = malloc((size_t)(rooms * room) * 4);

    for (int64_t i = 0; i < rows * stride; i++)
        x[i] = (uint16_t)dt_rng_below(g, 0x10000);
    ops->turn(x, stride, rows, width, rooms, room, y);
    for (int64_t c = 0; c < room; c++)
        for (int64_t r = 0; r < rooms; r++)
            ck_assert_int_eq(y[c * rooms + r], at(x, stride, rows, width, r, c));
    ops->turn_pairs(x, stride, rows, width, rooms, room, y);
    for (int64_t c = 0; c < room; c++)
        for (int64_t r = 0; r < rooms; r++)
            ck_assert_int_eq(y[c / 2 * 2 * rooms + 2 * r + c % 2],
                             at(x, stride, rows, width, r, c));
    for (int64_t i = 0; i < rooms * room; i++)
        f[i] = (float)(int)dt_rng_below(g, 256); /* times 0.5 bf16 keeps all of it */
    memset(x, 0x7f, (size_t)(rows * stride) * 2);
    ops->store_turned(f, rooms, rows, width, 0.5f, x, stride);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < stride; c++) {
            const unsigned char *p = (const unsigned char *)&x[r * stride + c];

            if (c < width)
                ck_assert(wide(p, 0) == 0.5f * f[c * rooms + r]);
            else
                ck_assert_int_eq(x[r * stride + c], 0x7f7f);
        }
    free(x), free(y), free(f);
}

START_TEST(test_turns)
{
    static const int sizes[][2] = {{1, 1}, {16, 32}, {64, 64}, {33, 17}, {5, 80}, {31, 47}};
    const struct dt_cpu_bf16_ops *ops = dt_cpu_bf16_ops(false);
    struct dt_rng g;

    dt_rng_init(&g, dt_test_seed(), 78);
    for (size_t i = 0; ops && i < sizeof(sizes) / sizeof(sizes[0]); i++)
        check_turns(ops, &g, sizes[i][0], sizes[i][1]);
}
END_TEST

/* ---- packing ---- */

/* Blocks of 32 x nb one after another along k, as oneDNN wants a linear weight. */
static void check_packing(struct dt_device_queue *q, struct dt_rng *g, bool turned, int64_t k,
                          int64_t n, int64_t nb)
{
    int64_t kr = (k + 31) / 32 * 32, nr = (n + nb - 1) / nb * nb, size = kr * nr;
    float *x = malloc((size_t)(k * n) * 4);
    uint16_t *y = calloc((size_t)size, 2);
    struct dt_cpu_pack p = {x, y, turned, k, n, turned ? k : n, 32, nb, 32 * nb, kr * nb};

    for (int64_t i = 0; i < k * n; i++)
        x[i] = (float)(int)dt_rng_below(g, 256) - 128; /* bf16 keeps all of it */
    if (dt_cpu_pack(q, &p))
        for (int64_t i = 0; i < kr; i++)
            for (int64_t j = 0; j < nr; j++) {
                int64_t at = i / 32 * p.tk + j / nb * p.tn + i % 32 / 2 * 2 * nb + j % nb * 2;
                float want = i >= k || j >= n ? 0 : turned ? x[j * k + i] : x[i * n + j];

                ck_assert(wide((const unsigned char *)&y[at + i % 2], 0) == want);
            }
    free(x), free(y);
}

START_TEST(test_packing)
{
    static const int sizes[][3] = {{1, 1, 64},   {32, 64, 64}, {33, 65, 64},
                                   {70, 17, 48}, {7, 130, 16}, {95, 63, 32}};
    struct dt_device *dev;
    struct dt_device_queue *q;
    struct dt_error err;
    struct dt_rng g;

    dt_rng_init(&g, dt_test_seed(), 79);
    dt_assert_ok(dt_device_open_cpu(NULL, &err, &dev), err);
    dt_assert_ok(dev->queue_new(dev, false, &err, &q), err);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int turned = 0; turned < 2; turned++)
            check_packing(q, &g, turned, sizes[i][0], sizes[i][1], sizes[i][2]);
    dev->queue_free(q);
    dev->close(dev);
}
END_TEST

START_TEST(test_this_cpu)
{
    const struct dt_cpu_bf16_ops *ops = dt_cpu_bf16_ops(_i > 0);

    if (!ops)
        return;
    ops->begin();
    check_all(ops->product);
    ops->end();
}
END_TEST

START_TEST(test_imitated_amx)
{
    begin_amx();
    check_all(product_amx);
    end_amx();
    ck_assert(!configured);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels: small products of bf16");
    TCase *t = dt_test_case(s, "bf16", 120);

    tcase_add_loop_test(t, test_this_cpu, 0, 2);
    tcase_add_test(t, test_imitated_amx);
    tcase_add_test(t, test_turns);
    tcase_add_test(t, test_packing);
    return dt_test_run(s);
}
