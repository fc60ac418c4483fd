/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The hash table that only grows, against a list that is searched from its beginning. */
#include "base/hashtable.h"
#include "base/mem.h"
#include "base/rng.h"
#include "test_util.h"

#include <stdbool.h>

enum { LEAST = 4, KEYS = 3000, ASKED = 20000 };

struct entry {
    uint64_t key[2];
    uint64_t value;
    char more[9]; /* no power of two */
};

static struct entry list[KEYS];
static int n_list;

static struct entry *listed(const uint64_t key[2])
{
    for (int i = 0; i < n_list; i++)
        if (list[i].key[0] == key[0] && list[i].key[1] == key[1])
            return &list[i];
    return NULL;
}

/* Keys whose words differ in a few bits only: the lowest, or the highest. */
static void draw(struct dt_rng *r, uint64_t key[2])
{
    key[0] = 1 + dt_rng_below(r, 30);
    key[1] = dt_rng_below(r, 50) << (dt_rng_below(r, 2) ? 0 : 58);
    if (dt_rng_below(r, 3) == 0)
        key[0] <<= 58;
    key[0] += key[0] == 0;
}

START_TEST(it_is_a_list_by_keys)
{
    struct dt_hash_table t = {.cap = 0};
    uint64_t seed = dt_test_seed(), key[2];
    struct dt_rng r;

    n_list = 0;
    dt_rng_init(&r, seed, 1);
    for (int i = 0; i < ASKED && n_list < KEYS; i++) {
        struct entry *is, *was;
        bool isnew;

        draw(&r, key);
        was = listed(key);
        is = dt_hash_table_of(&t, sizeof(*is), LEAST, key, &isnew);
        ck_assert_ptr_nonnull(is);
        ck_assert_msg(isnew == !was, "seed %" PRIu64, seed);
        ck_assert_msg(is->key[0] == key[0] && is->key[1] == key[1], "seed %" PRIu64, seed);
        ck_assert_msg(is->value == (was ? was->value : 0), "seed %" PRIu64, seed);
        ck_assert_msg(is->more[8] == (was ? was->more[8] : 0), "seed %" PRIu64, seed);
        is->value = (uint64_t)i + 1;
        is->more[8] = (char)(i % 100);
        if (!was)
            was = &list[n_list++];
        *was = *is;
    }
    ck_assert_uint_eq(t.n, n_list);
    ck_assert_int_gt(n_list, 1000);
    ck_assert_uint_ge(t.cap, 2 * t.n);
    ck_assert_uint_eq(t.cap & (t.cap - 1), 0);
    for (int i = 0; i < n_list; i++) {
        const struct entry *e = dt_hash_table_of(&t, sizeof(*e), LEAST, list[i].key, NULL);

        ck_assert_uint_eq(e->value, list[i].value);
    }
    ck_assert_uint_eq(t.n, n_list);
    dt_hash_table_free(&t);
    ck_assert_uint_eq(t.n, 0);
}
END_TEST

START_TEST(without_memory_it_stays_as_it_is)
{
    struct dt_hash_table t = {.cap = 0};
    struct entry *e;
    uint64_t key[2] = {0, 7};

    dt_mem_fail_at(1);
    key[0] = 1;
    ck_assert_ptr_null(dt_hash_table_of(&t, sizeof(*e), LEAST, key, NULL));
    dt_mem_fail_at(0);
    for (key[0] = 1; t.n * 2 < LEAST; key[0]++) {
        e = dt_hash_table_of(&t, sizeof(*e), LEAST, key, NULL);
        ck_assert_ptr_nonnull(e);
        e->value = 10 * key[0];
    }
    dt_mem_fail_at(1); /* the next one would make it grow */
    ck_assert_ptr_null(dt_hash_table_of(&t, sizeof(*e), LEAST, key, NULL));
    dt_mem_fail_at(0);
    ck_assert_uint_eq(t.cap, LEAST);
    for (key[0] = 1; key[0] <= LEAST / 2; key[0]++) {
        bool isnew;

        e = dt_hash_table_of(&t, sizeof(*e), LEAST, key, &isnew); /* and this does */
        ck_assert(!isnew);
        ck_assert_uint_eq(e->value, 10 * key[0]);
    }
    ck_assert_uint_eq(t.n, LEAST / 2);
    ck_assert_uint_eq(t.cap, 2 * LEAST);
    dt_hash_table_free(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hashtable");
    TCase *c = dt_test_case(s, "hashtable", 0);

    tcase_add_test(c, it_is_a_list_by_keys);
    tcase_add_test(c, without_memory_it_stays_as_it_is);
    return dt_test_run(s);
}
