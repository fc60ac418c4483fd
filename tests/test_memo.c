/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The memo against an array with room for every place. */
#include "base/memo.h"
#include "base/rng.h"
#include "test_util.h"

enum { BITS = 12, PLACES = 1 << BITS, ASKED = 40000 };

struct entry {
    uint64_t hash, value;
    char more[5]; /* no power of two */
};

START_TEST(a_newcomer_takes_the_place)
{
    static struct entry model[PLACES];
    uint64_t seed = dt_test_seed();
    struct dt_memo m;
    struct dt_rng r;
    uint32_t known = 0, taken = 0, n = 0;

    memset(model, 0, sizeof(model));
    dt_rng_init(&r, seed, 1);
    ck_assert(dt_memo_init(&m, BITS, sizeof(struct entry)));
    for (int i = 0; i < ASKED; i++) {
        uint64_t hash = 1 + dt_rng_below(&r, 3 * PLACES / 2); /* of some places, two questions */
        struct entry *was = &model[hash & (PLACES - 1)], *is = dt_memo_at(&m, hash);

        ck_assert_msg((is != NULL) == (was->hash != 0), "seed %" PRIu64, seed);
        known += was->hash == hash;
        taken += was->hash && was->hash != hash;
        n += !was->hash;
        ck_assert_msg(!is || (is->hash == was->hash && is->value == was->value &&
                              is->more[4] == was->more[4]),
                      "seed %" PRIu64, seed);
        is = dt_memo_place(&m, hash);
        ck_assert_ptr_nonnull(is);
        ck_assert_msg(was->hash || (!is->hash && !is->value), "seed %" PRIu64, seed);
        *is = *was = (struct entry){hash, (uint64_t)i, {[4] = (char)(i % 100)}};
    }
    ck_assert_uint_gt(known, 1000);
    ck_assert_uint_gt(taken, 1000);
    ck_assert_uint_eq(m.n, n);
    dt_memo_free(&m);
}
END_TEST

START_TEST(without_memory_it_stays_as_it_is)
{
    struct dt_memo m;
    uint64_t *e;

    for (uint64_t k = 1; k <= 2; k++) {
        dt_mem_fail_at(k);
        ck_assert(!dt_memo_init(&m, BITS, sizeof(*e)));
        dt_mem_fail_at(0);
    }
    ck_assert(dt_memo_init(&m, BITS, sizeof(*e)));
    for (uint64_t i = 0; i < 1 << DT_MEMO_CHUNK_BITS; i++) {
        e = dt_memo_place(&m, i);
        ck_assert_ptr_nonnull(e);
        *e = i + 1;
    }
    dt_mem_fail_at(1); /* the next one needs more */
    ck_assert_ptr_null(dt_memo_place(&m, 1 << DT_MEMO_CHUNK_BITS));
    dt_mem_fail_at(0);
    ck_assert_uint_eq(m.n, 1 << DT_MEMO_CHUNK_BITS);
    for (uint64_t i = 0; i < 1 << DT_MEMO_CHUNK_BITS; i++)
        ck_assert_uint_eq(*(uint64_t *)dt_memo_at(&m, i), i + 1);
    ck_assert_ptr_nonnull(dt_memo_place(&m, 1 << DT_MEMO_CHUNK_BITS));
    dt_memo_free(&m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("memo");
    TCase *c = dt_test_case(s, "memo", 0);

    tcase_add_test(c, a_newcomer_takes_the_place);
    tcase_add_test(c, without_memory_it_stays_as_it_is);
    return dt_test_run(s);
}
