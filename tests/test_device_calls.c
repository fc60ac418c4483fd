/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Functions of the host on queues of a device (`call` of kernels/device.h), on the fake device, or on the module of cards
 * built for a CPU (DISTTRAIN_TEST_DEVICE), which calls host functions of all streams one after another, as CUDA may. */
#include "fake_device.h"
#include "test_util.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { QUEUES = 3, CALLS = 60 };

static struct dt_device *dev;
static struct dt_device_queue *q[QUEUES];
static struct dt_error err;

static void open_device(void)
{
    struct dt_device_options o = {.threads = 1};

    dt_assert_ok((getenv("DISTTRAIN_TEST_DEVICE") ? dt_test_device_open
                                                  : dt_fake_device_open)(&o, &err, &dev),
                 err);
    for (int i = 0; i < QUEUES; i++)
        dt_assert_ok(dev->queue_new(dev, false, &err, &q[i]), err);
}

static void close_device(void)
{
    for (int i = 0; i < QUEUES; i++)
        dev->queue_free(q[i]);
    dev->close(dev);
}

static void pause_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* ---- one waits for another ---- */

static atomic_bool came, waited_for;

static void wait_for_other(void *arg)
{
    uint64_t begin = dt_clock_ns();

    (void)arg;
    while (!atomic_load(&came) && dt_clock_ns() - begin < UINT64_C(5000000000))
        pause_us(100);
    atomic_store(&waited_for, atomic_load(&came));
}

static void come(void *arg)
{
    (void)arg;
    atomic_store(&came, true);
}

/* As a staged collective does, whose other ranks may be held up by what is behind it here: the step of an offloaded
 * optimizer, or another collective. */
START_TEST(one_may_wait_for_another_queues)
{
    open_device();
    ck_assert(dev->info.gates);
    dev->call(q[0], wait_for_other, NULL);
    pause_us(20000); /* it has begun */
    dev->call(q[1], come, NULL);
    for (int i = 0; i < QUEUES; i++)
        dt_assert_ok(dev->queue_sync(q[i], &err), err);
    ck_assert_msg(waited_for, "a function has held up the other queue's");
    close_device();
}
END_TEST

/* ---- the order of a queue ---- */

static struct cell {
    int queue, number;
    uint32_t *place;
} cells[QUEUES][CALLS];
static atomic_int last[QUEUES];

static void fill(void *arg)
{
    const struct cell *c = arg;

    pause_us(c->number % 7 == 0 ? 500 : 10);
    ck_assert_int_eq(atomic_exchange(&last[c->queue], c->number), c->number - 1);
    *c->place = (uint32_t)(1000 * c->queue + c->number);
}

/* Copies behind a function have what it has written, and it begins behind what is before it. */
START_TEST(they_are_in_the_order_of_their_queue)
{
    uint32_t *host[QUEUES], *there[QUEUES];
    void *p;

    open_device();
    for (int i = 0; i < QUEUES; i++) {
        dt_assert_ok(dev->host_alloc(dev, CALLS * sizeof(uint32_t), &err, &p), err);
        host[i] = p;
        dt_assert_ok(dev->alloc(dev, CALLS * sizeof(uint32_t), &err, &p), err);
        there[i] = p;
    }
    for (int k = 0; k < CALLS; k++)
        for (int i = 0; i < QUEUES;
             i++) { /* one place: a copy must be over before it is filled again */
            cells[i][k] = (struct cell){i, k + 1, host[i]};
            dev->call(q[i], fill, &cells[i][k]);
            dev->copy(q[i], there[i] + k, host[i], sizeof(uint32_t), DT_COPY_TO_DEVICE);
        }
    for (int i = 0; i < QUEUES; i++)
        dt_assert_ok(dev->queue_sync(q[i], &err), err);
    for (int i = 0; i < QUEUES; i++) {
        dev->copy(q[i], host[i], there[i], CALLS * sizeof(uint32_t), DT_COPY_TO_HOST);
        dt_assert_ok(dev->queue_sync(q[i], &err), err);
        for (int k = 0; k < CALLS; k++)
            ck_assert_uint_eq(host[i][k], (uint32_t)(1000 * i + k + 1));
    }
    for (int i = 0; i < QUEUES; i++) {
        dev->host_free(dev, host[i]);
        dev->free(dev, there[i]);
    }
    close_device();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("device_calls");
    TCase *c = dt_test_case(s, "calls", 30);

    tcase_add_test(c, one_may_wait_for_another_queues);
    tcase_add_test(c, they_are_in_the_order_of_their_queue);
    return dt_test_run(s);
}
