/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is carried between a slow device and the host arrives, whatever its size, in stretches, and is never
 * copied from or to memory for which a card would stop. */
#include "exec/modules/ferry.h"

#include "fake_device.h"
#include "test_util.h"

#include <string.h>

enum { ROOM = 64, MOST = 9 * ROOM + 4 };
static const size_t sizes[] = {0, 4, ROOM - 4, ROOM, ROOM + 4, 2 * ROOM, 7 * ROOM + 12, MOST};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static struct dt_device *dev;
static struct dt_device_queue *q;
static struct dt_ferry ferry;
static struct dt_error err;
static char *there;

static void setup(void)
{
    void *p;

    setenv("DISTTRAIN_FAKE_DELAY_US", "3000", 1);
    setenv("DISTTRAIN_FAKE_SHARE", "2", 1);
    dt_assert_ok(dt_fake_device_open(&(struct dt_device_options){.threads = 1}, &err, &dev), err);
    dt_assert_ok(dev->queue_new(dev, false, &err, &q), err);
    dt_assert_ok(dev->alloc(dev, MOST, &err, &p), err);
    there = p;
    dt_assert_ok(dt_ferry_open(&ferry, dev, q, ROOM, &err), err);
}

static void teardown(void)
{
    dt_ferry_close(&ferry);
    dev->free(dev, there);
    dev->queue_free(q);
    dev->close(dev);
}

struct taken {
    char bytes[MOST];
    size_t n;
    int stretches, fails_at;
};

static enum dt_status take(void *arg, size_t at, const void *p, size_t bytes, struct dt_error *e)
{
    struct taken *t = arg;

    ck_assert_uint_eq(at, t->n);
    ck_assert(bytes > 0 && bytes <= ROOM);
    memcpy(t->bytes + at, p, bytes);
    t->n += bytes;
    if (++t->stretches == t->fails_at)
        return dt_error_set(e, DT_ERR_INPUT, "enough");
    return DT_OK;
}

/* To the device and back, one size after the other through the same buffers. */
START_TEST(arrives)
{
    struct dt_fake_wait waits[64];
    char bytes[MOST], was[MOST];
    size_t n;

    for (int i = 0; i < 3 * SIZES; i++) {
        struct taken t = {.n = 0};
        size_t size = sizes[(i * 5) % SIZES];

        for (size_t k = 0; k < size; k++)
            bytes[k] = was[k] = (char)(k * 7 + (size_t)i);
        dt_assert_ok(dt_ferry_to(&ferry, there, bytes, size, &err), err);
        memset(bytes, 0, sizeof(bytes)); /* it is the caller's again */
        dt_assert_ok(dt_ferry_out(&ferry, there, size, take, &t, &err), err);
        ck_assert_uint_eq(t.n, size);
        ck_assert_int_eq(t.stretches, (int)((size + ROOM - 1) / ROOM));
        ck_assert_mem_eq(t.bytes, was, size);
        n = dt_fake_waits(dev, waits, 64);
        for (size_t k = 0; k < n && k < 64; k++)
            ck_assert_int_eq(waits[k].kind, DT_FAKE_EVENT_SYNC);
    }
    dt_assert_ok(dev->queue_sync(q, &err), err);
}
END_TEST

/* Who takes may have enough; the buffers are then as good as before. */
START_TEST(may_end_early)
{
    struct taken t = {.fails_at = 3}, all = {.n = 0};
    char bytes[MOST];

    for (size_t k = 0; k < MOST; k++)
        bytes[k] = (char)(k * 5);
    dt_assert_ok(dt_ferry_to(&ferry, there, bytes, MOST, &err), err);
    ck_assert_int_eq(dt_ferry_out(&ferry, there, MOST, take, &t, &err), DT_ERR_INPUT);
    ck_assert_int_eq(t.stretches, 3);
    dt_assert_ok(dt_ferry_out(&ferry, there, MOST, take, &all, &err), err);
    ck_assert_mem_eq(all.bytes, bytes, MOST);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ferry");
    TCase *c = dt_test_case(s, "ferry", 60);

    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, arrives);
    tcase_add_test(c, may_end_early);
    return dt_test_run(s);
}
