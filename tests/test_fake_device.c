/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The fake device finds what it is for: each test here does what no program may do on a card, and that it
 * is noticed is what is tested. */
#include "fake_device.h"

#include "base/rng.h"
#include "test_util.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { N = 1000 };

static struct dt_device *dev;
static struct dt_device_queue *q, *other;
static struct dt_error err;
static float *x, *y;

static void open_with(const char *delay_us)
{
    struct dt_device_options o = {.threads = 1};
    void *p;

    setenv("DISTTRAIN_FAKE_DELAY_US", delay_us, 1);
    setenv("DISTTRAIN_FAKE_SHARE", "1", 1);
    dt_assert_ok(dt_fake_device_open(&o, &err, &dev), err);
    dt_assert_ok(dev->queue_new(dev, false, &err, &q), err);
    dt_assert_ok(dev->queue_new(dev, false, &err, &other), err);
    dt_assert_ok(dev->alloc(dev, N * sizeof(float), &err, &p), err);
    x = p;
    dt_assert_ok(dev->alloc(dev, N * sizeof(float), &err, &p), err);
    y = p;
}

static void setup(void)
{
    open_with("0");
}

static void slow_setup(void)
{
    open_with("20000");
}

static void teardown(void)
{
    dev->free(dev, x);
    dev->free(dev, y);
    dev->queue_free(q);
    dev->queue_free(other);
    dev->close(dev);
}

/* ---- memory ---- */

START_TEST(the_host_may_not_read)
{
    ck_assert(*(volatile float *)x == 0);
}
END_TEST

START_TEST(the_host_may_not_write)
{
    *(volatile float *)(x + N / 2) = 1;
}
END_TEST

/* The header says N; the kernel is told of more. */
START_TEST(a_kernel_may_not_leave_its_block)
{
    dev->k->scale(q, DT_F32, 2048, 2, x, y);
    dt_assert_ok(dev->queue_sync(q, &err), err);
}
END_TEST

START_TEST(what_is_freed_may_not_be_used)
{
    dev->free(dev, x);
    dev->k->scale(q, DT_F32, N, 2, x, y);
}
END_TEST

START_TEST(nothing_is_freed_twice)
{
    dev->free(dev, x);
    dev->free(dev, x);
}
END_TEST

START_TEST(memory_of_the_host_is_no_argument)
{
    static float mine[N];

    dev->k->scale(q, DT_F32, N, 2, mine, y);
}
END_TEST

START_TEST(a_copy_says_where_memory_is)
{
    static float mine[N];

    dev->copy(q, mine, x, N * sizeof(float), DT_COPY_ON_DEVICE);
}
END_TEST

START_TEST(a_close_finds_what_is_left)
{
    dev->queue_free(q);
    dev->queue_free(other);
    dev->close(dev);
}
END_TEST

/* Work that was issued before the free still has its memory; then it is gone. */
START_TEST(free_waits_for_the_queues)
{
    float *view = dt_test_host(x);
    void *seen;

    for (int i = 0; i < N; i++)
        view[i] = (float)i;
    dt_assert_ok(dev->host_alloc(dev, N * sizeof(float), &err, &seen), err);
    for (int i = 0; i < 20; i++)
        dev->k->scale(q, DT_F32, N, 1, x, y);
    dev->free(dev, x);
    dev->copy(q, seen, y, N * sizeof(float), DT_COPY_TO_HOST);
    dt_assert_ok(dev->queue_sync(q, &err), err);
    ck_assert(((float *)seen)[N - 1] == N - 1);
    dev->host_free(dev, seen);
    ck_assert(*(volatile float *)view != 0); /* faults */
}
END_TEST

START_TEST(fresh_memory_is_poison)
{
    const float *view = dt_test_host(x);

    for (int i = 0; i < N; i++)
        ck_assert(view[i] == 1e36f);
}
END_TEST

/* Weights are packed, and what is packed goes, on the queue's thread: no card has that memory, and whoever looks
 * meanwhile is not shown it. */
START_TEST(packed_weights_are_not_counted)
{
    static const struct dt_device_weight_shape shape = {DT_F32, 256, 256, 0};
    int64_t now, max, before;
    void *master, *rows;

    dt_assert_ok(dev->alloc(dev, 256 * 256 * sizeof(float), &err, &master), err);
    dt_assert_ok(dev->alloc(dev, 2 * 32 * 256 * sizeof(float), &err, &rows), err);
    dev->zero(q, master, 256 * 256 * sizeof(float));
    dev->zero(q, rows, 2 * 32 * 256 * sizeof(float));
    for (int k = 0; k < 2000; k++) {
        struct dt_device_weight *w;

        dt_assert_ok(dev->weight_new(dev, &shape, master, NULL, &err, &w), err);
        dev->k->linear_fwd(q, 32, rows, w, NULL, NULL, (float *)rows + 32 * 256);
        dev->weight_free(w);
        for (int look = 0; look < 50; look++)
            dev->memory_used(dev, &now, &max);
        if (k == 0)
            dt_assert_ok(dev->queue_sync(q, &err), err); /* its workspace is there */
        if (k == 0)
            dev->memory_used(dev, &now, &before);
    }
    dt_assert_ok(dev->queue_sync(q, &err), err);
    dev->memory_used(dev, &now, &max);
    ck_assert_int_eq(max, before);
    ck_assert_int_eq(now, before);
    dev->free(dev, rows);
    dev->free(dev, master);
}
END_TEST

/* ---- order ---- */

static double sum_over(bool event)
{
    struct dt_device_event *e;
    double *host;
    void *p, *sum;

    dt_assert_ok(dev->event_new(dev, &err, &e), err);
    dt_assert_ok(dev->alloc(dev, sizeof(double), &err, &sum), err);
    dt_assert_ok(dev->host_alloc(dev, sizeof(double), &err, &p), err);
    host = p;
    for (int i = 0; i < 8; i++)
        dev->zero(q, x, N * sizeof(float));
    dev->event_record(q, e);
    if (event)
        dev->event_wait(other, e);
    dev->k->sum(other, N, x, sum, false);
    dev->copy(other, host, sum, sizeof(double), DT_COPY_TO_HOST);
    dt_assert_ok(dev->queue_sync(other, &err), err);
    dt_assert_ok(dev->queue_sync(q, &err), err);
    dev->event_free(e);
    dev->free(dev, sum);
    return *host; /* left to the device's close */
}

START_TEST(only_events_order_queues)
{
    ck_assert_double_eq(sum_over(true), 0);
    x = (dev->free(dev, x), NULL);
    dt_assert_ok(dev->alloc(dev, N * sizeof(float), &err, (void **)&x), err);
    ck_assert_double_ne(sum_over(false), 0); /* it did not wait: poison */
}
END_TEST

/* Results come when the host has waited, and the log says that it did. */
START_TEST(waits_are_logged)
{
    struct dt_device_event *e;
    struct dt_fake_wait w[4];
    float mine[N];

    dt_assert_ok(dev->event_new(dev, &err, &e), err);
    ck_assert(dev->event_done(e)); /* never recorded */
    dev->k->normal(q, DT_F32, N, 1, 2, 0, 1, x);
    dev->event_record(q, e);
    ck_assert(!dev->event_done(e));
    dt_assert_ok(dev->event_sync(e, &err), err);
    ck_assert(dev->event_done(e) && dev->event_ns(e) > 0);
    dev->copy(q, mine, x, sizeof(mine), DT_COPY_TO_HOST);
    dt_assert_ok(dev->queue_sync(q, &err), err);
    dt_assert_ok(dev->queue_sync(q, &err), err); /* nothing to wait for */
    for (int i = 0; i < N; i++)
        ck_assert(mine[i] == (float)dt_rng_normal_at(1, 2, (uint64_t)i));
    ck_assert_uint_eq(dt_fake_waits(dev, w, 4), 3);
    ck_assert_int_eq(w[0].kind, DT_FAKE_EVENT_SYNC);
    ck_assert_int_eq(w[1].kind, DT_FAKE_PAGEABLE);
    ck_assert_int_eq(w[2].kind, DT_FAKE_QUEUE_SYNC);
    ck_assert_uint_eq(dt_fake_waits(dev, w, 4), 0);
    ck_assert_uint_eq(dt_fake_tasks(dev), 3);
    dev->event_free(e);
}
END_TEST

/* ---- the record of touches ---- */

START_TEST(a_record_lists_touches_and_goes_on)
{
    char path[] = "fake-device-XXXXXX", line[256];
    int fd = mkstemp(path), sites = 0;
    volatile float *v;
    FILE *f;

    ck_assert_int_ge(fd, 0);
    setenv("DISTTRAIN_FAKE_RECORD", path, 1);
    setup();
    v = x;
    for (int i = 0; i < N; i++)
        v[i] = (float)i;
    for (int i = 0; i < N; i++)
        ck_assert(v[i] == (float)i); /* another place, and it has the value */
    teardown();
    f = fdopen(fd, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f))
        sites += strcmp(line, "touch by the host:\n") == 0;
    fclose(f);
    remove(path);
    ck_assert_int_eq(sites, 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fake device");
    TCase *t = dt_test_case(s, "memory", 60);

    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test_raise_signal(t, the_host_may_not_read, SIGSEGV);
    tcase_add_test_raise_signal(t, the_host_may_not_write, SIGSEGV);
    tcase_add_test_raise_signal(t, a_kernel_may_not_leave_its_block, SIGSEGV);
    tcase_add_test_raise_signal(t, what_is_freed_may_not_be_used, SIGABRT);
    tcase_add_test_raise_signal(t, nothing_is_freed_twice, SIGABRT);
    tcase_add_test_raise_signal(t, memory_of_the_host_is_no_argument, SIGABRT);
    tcase_add_test_raise_signal(t, a_copy_says_where_memory_is, SIGABRT);
    tcase_add_test_raise_signal(t, a_close_finds_what_is_left, SIGABRT);
    t = dt_test_case(s, "weights", 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, packed_weights_are_not_counted);
    t = dt_test_case(s, "order", 60);
    tcase_add_checked_fixture(t, slow_setup, teardown);
    tcase_add_test(t, fresh_memory_is_poison);
    tcase_add_test(t, only_events_order_queues);
    tcase_add_test(t, waits_are_logged);
    t = dt_test_case(s, "frees", 60);
    tcase_add_checked_fixture(t, slow_setup, NULL);
    tcase_add_test_raise_signal(t, free_waits_for_the_queues, SIGSEGV);
    t = dt_test_case(s, "record", 60);
#ifdef __x86_64__
    tcase_add_test(t, a_record_lists_touches_and_goes_on);
#endif
    return dt_test_run(s);
}
