/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shards of pictures, and a loader of them, for tests. */
#ifndef DT_TESTS_LOADER_FIXTURE_H
#define DT_TESTS_LOADER_FIXTURE_H

#include "data_fixture.h"

static struct dt_error err;
static struct fixture_data data;

enum { SAMPLES = 137 };

static inline void begin(void)
{
    fixture_data_open(&data, SAMPLES, 40);
}

static inline void end(void)
{
    fixture_data_close(&data);
}

static inline struct dt_loader_options options(void)
{
    return fixture_data_options(&data);
}

static inline struct dt_loader *open_loader(const struct dt_loader_options *o)
{
    struct dt_loader *l;

    dt_assert_ok(dt_loader_open(o, &err, &l), err);
    return l;
}

static inline struct dt_sequence *next(struct dt_loader *l)
{
    struct dt_sequence *s;

    dt_assert_ok(dt_loader_next(l, &err, &s), err);
    return s;
}

#endif
