/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What tests share. */
#ifndef DT_TESTS_TEST_UTIL_H
#define DT_TESTS_TEST_UTIL_H

#include "base/status.h"

#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Seed of property tests; repeat a failure with DT_TEST_SEED=N. */
static inline uint64_t dt_test_seed(void)
{
    const char *s = getenv("DT_TEST_SEED");

    return s && *s ? strtoull(s, NULL, 10) : UINT64_C(20251120);
}

/* A case of the suite; its tests are added with tcase_add_test.  timeout_s 0: Check's own, 4 s. */
static inline TCase *dt_test_case(Suite *s, const char *name, int timeout_s)
{
    TCase *c = tcase_create(name);

    if (timeout_s > 0)
        tcase_set_timeout(c, timeout_s);
    suite_add_tcase(s, c);
    return c;
}

static inline int dt_test_run_as(Suite *s, enum fork_status fork, enum print_output print)
{
    SRunner *r = srunner_create(s);
    int failed;

    srunner_set_fork_status(r, fork);
    srunner_run_all(r, print);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* What the main of a test program returns: runs the suite, each test in a process of its own. */
static inline int dt_test_run(Suite *s)
{
    return dt_test_run_as(s, CK_FORK_GETENV, CK_ENV);
}

/* The same in this process. */
static inline int dt_test_run_here(Suite *s, enum print_output print)
{
    return dt_test_run_as(s, CK_NOFORK, print);
}

/* The call succeeds, and says why if it does not (`err` is a struct dt_error). */
#define dt_assert_ok(call, err)                                                                    \
    do {                                                                                           \
        enum dt_status dt_assert_st_ = (call);                                                     \
        ck_assert_msg(dt_assert_st_ == DT_OK, "%s: %s:%d:%d: %s", #call, (err).file, (err).line,   \
                      (err).col, (err).message);                                                   \
    } while (0)

/* Two struct dt_data_cursor are the same place.  They have padding, which nobody writes. */
#define dt_assert_cursor_eq(a, b)                                                                  \
    do {                                                                                           \
        ck_assert_uint_eq((a).fingerprint, (b).fingerprint);                                       \
        ck_assert_int_eq((a).reader, (b).reader);                                                  \
        ck_assert_int_eq((a).epoch, (b).epoch);                                                    \
        ck_assert_int_eq((a).position, (b).position);                                              \
        ck_assert_int_eq((a).sequences, (b).sequences);                                            \
        ck_assert_int_eq((a).bad, (b).bad);                                                        \
    } while (0)

/* The text holds the part. */
#define dt_assert_has(text, part)                                                                  \
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" does not hold \"%s\"", text, part)

#endif
