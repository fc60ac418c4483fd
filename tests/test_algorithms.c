/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hashes, heaps, quantiles and protocol buffers of src/base. */
#include "base/bf16.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "base/quantile.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>

/* ---- hashes: published values ---- */

START_TEST(fnv_1a)
{
    static const char foobar[] = "foobar"; /* draft-eastlake-fnv, appendix C */

    ck_assert_uint_eq(dt_hash_text(DT_HASH_START, ""), UINT64_C(0xcbf29ce484222325));
    ck_assert_uint_eq(dt_hash_text(DT_HASH_START, "a"), UINT64_C(0xaf63dc4c8601ec8c));
    ck_assert_uint_eq(dt_hash_text(DT_HASH_START, foobar), UINT64_C(0x85944171f73967e8));
    ck_assert_uint_eq(dt_hash_bytes(DT_HASH_START, foobar, 6), UINT64_C(0x85944171f73967e8));
    ck_assert_uint_eq(dt_hash_bytes(dt_hash_text(DT_HASH_START, "foo"), "bar", 3),
                      UINT64_C(0x85944171f73967e8));
    ck_assert_uint_eq(dt_hash_number(DT_HASH_START, UINT64_C(0x0807060504030201)),
                      dt_hash_bytes(DT_HASH_START, "\1\2\3\4\5\6\7\10", 8));
    ck_assert_uint_eq(dt_hash_bytes(DT_HASH_START, "\377", 1), /* bytes are not signed */
                      (DT_HASH_START ^ 255) * DT_HASH_PRIME);
}
END_TEST

START_TEST(finalisers)
{
    /* splitmix64 with the seed 1234567: its first three numbers */
    ck_assert_uint_eq(dt_hash_spread(1234567 + DT_HASH_GOLDEN), UINT64_C(6457827717110365317));
    ck_assert_uint_eq(dt_hash_spread(1234567 + 2 * DT_HASH_GOLDEN), UINT64_C(3203168211198807973));
    ck_assert_uint_eq(dt_hash_spread(1234567 + 3 * DT_HASH_GOLDEN), UINT64_C(9817491932198370423));
    /* MurmurHash3's fmix64 */
    ck_assert_uint_eq(dt_hash_finish(0), 0);
    ck_assert_uint_eq(dt_hash_finish(1), UINT64_C(0xb456bcfc34c2cb2c));
}
END_TEST

/* Every byte counts, wherever it stands; so does the length. */
START_TEST(digest_of_arrays)
{
    unsigned char b[100] = {0};

    for (size_t n = 0; n <= sizeof(b); n++) {
        uint64_t h = dt_hash_digest(7, b, n);

        ck_assert_uint_eq(h, dt_hash_digest(7, b, n));
        ck_assert_uint_ne(h, dt_hash_digest(8, b, n));
        for (size_t i = 0; i < n; i++) {
            b[i] ^= 1;
            ck_assert_uint_ne(dt_hash_digest(7, b, n), h);
            b[i] ^= 1;
        }
        if (n < sizeof(b))
            ck_assert_uint_ne(dt_hash_digest(7, b, n + 1), h);
    }
    ck_assert_uint_ne(dt_hash_word(dt_hash_word(0, 1), 2), dt_hash_word(dt_hash_word(0, 2), 1));
}
END_TEST

/* ---- heaps ---- */

struct thing {
    int key;
    uint32_t number; /* ties: the lower first */
};
#define BEFORE(ctx, a, b) ((a).key != (b).key ? (a).key < (b).key : (a).number < (b).number)
#define NOTE(ctx, h, i, e) ((h)[i] = (e), (ctx)[(e).number] = (i))
DT_HEAP(two, const void *, struct thing, 2, BEFORE, DT_HEAP_SET)
DT_HEAP(three, uint32_t *, struct thing, 3, BEFORE, NOTE)
DT_HEAP(four, uint32_t *, struct thing, 4, BEFORE, NOTE)

enum { THINGS = 300 };

static int by_order(const void *a, const void *b)
{
    const struct thing *x = a, *y = b;

    return BEFORE(0, *x, *y) ? -1 : BEFORE(0, *y, *x);
}

static struct thing random_thing(struct dt_rng *r, uint32_t number)
{
    return (struct thing){(int)dt_rng_below(r, 40), number};
}

/* Pushed in any order, with some popped between, things come in the order of keys and numbers. */
START_TEST(heaps_sort)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), (uint64_t)_i);
    for (int round = 0; round < 200; round++) {
        struct thing a[THINGS], b[THINGS], c[THINGS], sorted[THINGS];
        uint32_t at3[THINGS], at4[THINGS], n = 0, size = 1 + (uint32_t)dt_rng_below(&r, THINGS - 1);

        for (uint32_t i = 0; i < size; i++) {
            struct thing t = random_thing(&r, i);

            two_push(NULL, a, n, t);
            three_push(at3, b, n, t);
            four_push(at4, c, n, t);
            sorted[n++] = t;
            if (dt_rng_below(&r, 3) > 0)
                continue;
            qsort(sorted, n, sizeof(*sorted), by_order);
            t = two_pop(NULL, a, n);
            ck_assert_uint_eq(t.number, sorted[0].number);
            ck_assert_uint_eq(three_pop(at3, b, n).number, t.number);
            ck_assert_uint_eq(four_pop(at4, c, n).number, t.number);
            memmove(sorted, sorted + 1, --n * sizeof(*sorted));
        }
        for (uint32_t i = 0; i < n; i++) { /* each is where the note says */
            ck_assert_uint_eq(b[at3[b[i].number]].number, b[i].number);
            ck_assert_uint_eq(c[at4[c[i].number]].number, c[i].number);
        }
        qsort(sorted, n, sizeof(*sorted), by_order);
        for (uint32_t i = 0; i < n; i++) {
            ck_assert_uint_eq(two_pop(NULL, a, n - i).number, sorted[i].number);
            ck_assert_uint_eq(three_pop(at3, b, n - i).number, sorted[i].number);
            ck_assert_uint_eq(four_pop(at4, c, n - i).number, sorted[i].number);
        }
    }
}
END_TEST

/* A heap made of what stands there; elements whose key changes go up or down. */
START_TEST(heaps_are_made_and_mended)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 100);
    for (uint32_t n = 0; n < THINGS; n++) {
        struct thing h[THINGS], sorted[THINGS];
        uint32_t at[THINGS];

        for (uint32_t i = 0; i < n; i++)
            h[i] = random_thing(&r, i);
        four_make(at, h, n);
        for (int k = 0; n > 0 && k < 20; k++) {
            uint32_t i = (uint32_t)dt_rng_below(&r, n);
            struct thing t = random_thing(&r, h[i].number);

            four_down(at, h, n, four_up(at, h, i, t), t);
        }
        memcpy(sorted, h, n * sizeof(*h));
        if (n > 0)
            qsort(sorted, n, sizeof(*sorted), by_order);
        for (uint32_t i = 0; i < n; i++) {
            struct thing t = four_pop(at, h, n - i);

            ck_assert_int_eq(t.key, sorted[i].key);
            ck_assert_uint_eq(t.number, sorted[i].number);
        }
    }
}
END_TEST

/* ---- quantiles ---- */

START_TEST(medians)
{
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, one[] = {7};

    ck_assert_double_eq(dt_median(odd, 3), 2);
    ck_assert_double_eq(odd[0], 1);
    ck_assert_double_eq(odd[2], 3);
    ck_assert_double_eq(dt_median(even, 4), 2.5);
    ck_assert_double_eq(dt_median(one, 1), 7);
    ck_assert_double_eq(dt_median(NULL, 0), 0);
}
END_TEST

START_TEST(quantiles)
{
    struct {
        int other;
        double v;
    } rows[5] = {{0, 10}, {0, 20}, {0, 30}, {0, 40}, {0, 100}};
    static const double v[] = {10, 20, 30, 40, 100};
    static const struct {
        double q, value; /* quantile(c(10, 20, 30, 40, 100), q) of R */
    } known[] = {{0, 10}, {0.1, 14}, {0.25, 20}, {0.5, 30}, {0.9, 76}, {1, 100}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        ck_assert_double_eq_tol(dt_quantile(v, sizeof(*v), 5, known[i].q), known[i].value, 1e-12);
        ck_assert_double_eq(dt_quantile(&rows[0].v, sizeof(rows[0]), 5, known[i].q),
                            dt_quantile(v, sizeof(*v), 5, known[i].q));
    }
    ck_assert_double_eq(dt_quantile(v, sizeof(*v), 1, 0.9), 10);
    /* between equal infinities there is nothing to subtract */
    ck_assert(isinf(dt_quantile((const double[]){1, INFINITY}, sizeof(double), 2, 1)));
}
END_TEST

/* ---- protocol buffers ---- */

START_TEST(fields_of_messages)
{
    /* by hand after protobuf.dev, "Encoding": field 1 = 150 is 08 96 01; field 2 = "testing" */
    static const uint8_t expected[] = {0x08, 0x96, 0x01,                                     /* */
                                       0x12, 7,    't',  'e',  's',  't',  'i',  'n',  'g',  /* */
                                       0x19, 1,    0,    0,    0,    0,    0,    0,    0,    /* */
                                       0x21, 0,    0,    0,    0,    0,    0,    0xf0, 0x3f, /* */
                                       0x2d, 0,    0,    0x80, 0xbf,                         /* */
                                       0xaa, 0x06, 3,    0x08, 0x96, 0x01,                   /* */
                                       0x38, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, /* */
                                       0xff, 0x01};
    struct dt_pb b = {0};
    uint8_t room[3];
    struct dt_pb in = DT_PB_IN(room);

    dt_pb_int(&in, 1, 150);
    dt_pb_int(&b, 1, 150);
    dt_pb_text(&b, 2, "testing");
    dt_pb_fixed64(&b, 3, 1);
    dt_pb_double(&b, 4, 1);
    dt_pb_float(&b, 5, -1);
    dt_pb_message(&b, 101, &in);
    dt_pb_int(&b, 7, UINT64_MAX);
    ck_assert(!b.failed && !in.failed);
    ck_assert_uint_eq(b.n, sizeof(expected));
    ck_assert_mem_eq(b.p, expected, sizeof(expected));
    dt_pb_int(&in, 1, 0); /* there is no more room */
    ck_assert(in.failed);
    ck_assert_uint_eq(in.n, 3);
    dt_pb_message(&b, 1, &in);
    ck_assert(b.failed);
    dt_free(b.p);
}
END_TEST

START_TEST(writers_run_out_of_memory)
{
    struct dt_pb b = {0};

    dt_mem_fail_at(1);
    dt_pb_text(&b, 1, "lost");
    dt_mem_fail_at(0);
    ck_assert(b.failed);
    dt_pb_int(&b, 2, 1);
    ck_assert_uint_eq(b.n, 0);
    dt_free(b.p);
}
END_TEST

/* ---- bf16 ---- */

/* Every bf16 comes back from fp32; a float becomes the nearer neighbour, of two the even one. */
START_TEST(bf16_rounds_to_the_nearest)
{
    struct dt_rng r;

    for (uint32_t v = 0; v < 0x10000; v++) {
        float f = dt_bf16_to_f32((uint16_t)v);

        if (isnan(f))
            ck_assert(isnan(dt_bf16_to_f32(dt_bf16_from_f32(f))));
        else
            ck_assert_uint_eq(dt_bf16_from_f32(f), v);
    }
    dt_rng_init(&r, dt_test_seed(), 200);
    for (int k = 0; k < 100000; k++) {
        uint32_t bits = (uint32_t)dt_rng_below(&r, UINT64_C(1) << 32);
        uint16_t low = (uint16_t)(bits >> 16), got;
        double f, below, above;
        float x;

        memcpy(&x, &bits, sizeof(x));
        if (!isfinite(x) ||
            (low & 0x7fff) == 0x7f7f) /* the greatest finite one: above is infinity */
            continue;
        got = dt_bf16_from_f32(x);
        f = fabs((double)x);
        below = fabs((double)dt_bf16_to_f32(low));
        above = fabs((double)dt_bf16_to_f32((uint16_t)(low + 1)));
        ck_assert_uint_eq(got, f - below < above - f   ? low
                               : f - below > above - f ? low + 1u
                                                       : low + (low & 1u));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("algorithms");
    TCase *hash = dt_test_case(s, "hash", 0), *heap = dt_test_case(s, "heap", 60);
    TCase *quantile = dt_test_case(s, "quantile", 0), *pb = dt_test_case(s, "protobuf", 0);
    TCase *bf16 = dt_test_case(s, "bf16", 0);

    tcase_add_test(hash, fnv_1a);
    tcase_add_test(hash, finalisers);
    tcase_add_test(hash, digest_of_arrays);
    tcase_add_loop_test(heap, heaps_sort, 0, 4);
    tcase_add_test(heap, heaps_are_made_and_mended);
    tcase_add_test(quantile, medians);
    tcase_add_test(quantile, quantiles);
    tcase_add_test(pb, fields_of_messages);
    tcase_add_test(pb, writers_run_out_of_memory);
    tcase_add_test(bf16, bf16_rounds_to_the_nearest);
    return dt_test_run(s);
}
