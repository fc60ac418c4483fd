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

/* The call succeeds, and says why if it does not (`err` is a struct dt_error). */
#define dt_assert_ok(call, err)                                                                    \
    do {                                                                                           \
        enum dt_status dt_assert_st_ = (call);                                                     \
        ck_assert_msg(dt_assert_st_ == DT_OK, "%s: %s:%d:%d: %s", #call, (err).file, (err).line,   \
                      (err).col, (err).message);                                                   \
    } while (0)

/* The text holds the part. */
#define dt_assert_has(text, part)                                                                  \
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" does not hold \"%s\"", text, part)

#endif
