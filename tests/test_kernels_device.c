/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The device itself: its tables are whole, memory is counted, and what runs out of memory goes on. */
#include "kernel_util.h"

static void count_call(void *arg)
{
    ++*(int *)arg;
}

/* Every entry of both tables is there; memory is counted; events have times in order. */
START_TEST(test_device)
{
    void (*const *entry)(void);
    struct dt_device_event *a = NULL, *b = NULL;
    int64_t now, max;
    struct dt_device_memory_owner mine = {0};
    struct dt_error err;
    void *p = NULL, *other = NULL;
    int calls = 0;
    struct kt k;

    kt_open(&k, 0);
    const struct dt_device *dev = k.dev[0];

    ck_assert_uint_eq(dev->abi, DT_DEVICE_ABI);
    ck_assert_int_eq(sizeof(struct dt_kernels) % sizeof(*entry), 0);
    entry = (void (*const *)(void))(const void *)dev->k;
    for (size_t i = 0; i < sizeof(struct dt_kernels) / sizeof(*entry); i++)
        ck_assert_msg(entry[i] != NULL, "kernel %zu is missing", i);
    entry = (void (*const *)(void))(const void *)&dev->close;
    for (size_t i = 0; i < (sizeof(*dev) - offsetof(struct dt_device, close)) / sizeof(*entry); i++)
        ck_assert_msg(entry[i] != NULL, "device entry %zu is missing", i);
    ck_assert(dev->info.memory_bytes > 0 && dev->info.host_memory == kt_is_cpu() &&
              dev->info.isa[0]);
    dt_assert_ok(dev->alloc(dev, 1000, &err, &p), err);
    ck_assert_uint_eq((uintptr_t)p % 64, 0);
    dev->memory_used(dev, &now, &max);
    ck_assert(now == 1000 && max == 1000);
    dev->free(dev, p);
    dev->free(dev, NULL);
    dev->memory_used(dev, &now, &max);
    ck_assert(now == 0 && max == 1000);
    ck_assert_ptr_null(dev->memory_for(dev, &mine));
    dt_assert_ok(dev->alloc(dev, 500, &err, &p), err);
    ck_assert_ptr_eq(dev->memory_for(dev, NULL), &mine);
    dt_assert_ok(dev->alloc(dev, 70, &err, &other), err);
    ck_assert_int_eq(mine.now_bytes, 500);
    dev->free(dev, p);
    dev->free(dev, other);
    ck_assert_int_eq(mine.now_bytes, 0);
    dt_assert_ok(dev->event_new(dev, &err, &a), err);
    dt_assert_ok(dev->event_new(dev, &err, &b), err);
    dev->event_record(k.q[0], a);
    dev->event_wait(k.q[0], a);
    dev->call(k.q[0], count_call, &calls);
    dev->event_record(k.q[0], b);
    dt_assert_ok(dev->event_sync(b, &err), err);
    ck_assert(dev->event_done(b) && dev->event_ns(b) >= dev->event_ns(a) && calls == 1);
    dev->event_free(a), dev->event_free(b);
    p = NULL;
    if (kt_is_cpu()) { /* a module allocates for itself */
        dt_mem_fail_at(1);
        ck_assert_int_eq(dev->alloc(dev, 64, &err, &p), DT_ERR_NOMEM);
        ck_assert_ptr_null(p);
    }
    kt_close(&k);
}
END_TEST

/* Out of memory inside a kernel or a product sticks to the queue; whatever allocation fails,
 * nothing leaks and the next try works. */
START_TEST(test_out_of_memory)
{
    float x[64 * 64] = {1}, y[64 * 64], g[64] = {1}, dg[64], r[64] = {1};
    struct dt_device_weight_shape s = {DT_F32, 64, 64, 0};
    struct dt_kernel_norm n = {DT_F32, 64, 64, 0, 0, 1e-5f};
    int failures = 0;

    if (!kt_is_cpu())
        return;
    for (uint64_t at = 1; at < 40; at++) {
        struct dt_device_weight *w = NULL;
        enum dt_status st;
        struct dt_error err;
        struct kt k;

        kt_open(&k, 0);
        dt_mem_fail_at(at);
        st = k.dev[0]->weight_new(k.dev[0], &s, x, NULL, &err, &w);
        if (st == DT_OK) {
            k.k->linear_fwd(k.q[0], 64, x, w, NULL, NULL, y);
            k.k->rmsnorm_bwd(k.q[0], &n, x, g, r, x, y, false, dg, false);
            st = k.dev[0]->queue_sync(k.q[0], &err);
        }
        dt_mem_fail_at(0);
        if (st != DT_OK) {
            ck_assert_int_eq(st, DT_ERR_NOMEM);
            failures++;
        }
        if (w) {
            k.k->linear_fwd(k.q[0], 64, x, w, NULL, NULL, y);
            dt_assert_ok(k.dev[0]->queue_sync(k.q[0], &err), err);
        }
        k.dev[0]->weight_free(w);
        kt_close(&k);
    }
    ck_assert_int_gt(failures, 3);
    ck_assert_int_lt(failures, 39);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels: the device");
    TCase *c = dt_test_case(s, "device", 900);

    tcase_add_test(c, test_device);
    tcase_add_test(c, test_out_of_memory);
    return dt_test_run(s);
}
