/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The rate of products that MFU refers to. */
#include "exec/train/setup.h"
#include "exec/train/train.h"
#include "exec/train/train_speed.h"
#include "kernels/kernels.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

static struct dt_error err;

/* ---- the rate of products ---- */

/* A card that is told, not there: a launch takes 20 us, a product what 775 TFLOP/s make of it, and memory ends. */
static double now_ns, moments[2]; /* what stands for the queue, and for events */
static size_t room_bytes;
static int events, side_now, blocks, trims;

static enum dt_status told_alloc(const struct dt_device *d, size_t bytes, struct dt_error *e,
                                 void **out)
{
    (void)d;
    if (bytes > room_bytes)
        return dt_error_nomem(e, "a test");
    *out = &now_ns;
    blocks++;
    return DT_OK;
}
static void told_free(const struct dt_device *d, void *p)
{
    (void)d;
    blocks -= p != NULL;
}
static void told_trim(const struct dt_device *d)
{
    (void)d;
    ck_assert_int_eq(blocks, 0);
    trims++;
}
static enum dt_status told_queue(const struct dt_device *d, bool high, struct dt_error *e,
                                 struct dt_device_queue **out)
{
    (void)d, (void)high, (void)e;
    *out = (struct dt_device_queue *)(void *)&now_ns;
    return DT_OK;
}
static void told_queue_free(struct dt_device_queue *q)
{
    (void)q;
}
static enum dt_status told_sync(struct dt_device_queue *q, struct dt_error *e)
{
    (void)q, (void)e;
    return DT_OK;
}
static enum dt_status told_event(const struct dt_device *d, struct dt_error *e,
                                 struct dt_device_event **out)
{
    (void)d, (void)e;
    *out = (struct dt_device_event *)(void *)&moments[events++ % 2];
    return DT_OK;
}
static void told_event_free(struct dt_device_event *e)
{
    (void)e;
}
static void told_record(struct dt_device_queue *q, struct dt_device_event *e)
{
    *(double *)(void *)e = *(double *)(void *)q;
}
static uint64_t told_ns(struct dt_device_event *e)
{
    return (uint64_t) * (double *)(void *)e;
}
static enum dt_status told_weight(const struct dt_device *d,
                                  const struct dt_device_weight_shape *shape, const float *master,
                                  const void *rounded, struct dt_error *e,
                                  struct dt_device_weight **out)
{
    (void)d, (void)master, (void)rounded, (void)e;
    side_now = (int)shape->out;
    *out = (struct dt_device_weight *)(void *)&now_ns;
    return DT_OK;
}
static void told_weight_free(struct dt_device_weight *w)
{
    (void)w;
}
static void told_normal(struct dt_device_queue *q, enum dt_dtype t, int64_t n, uint64_t seed,
                        uint64_t stream, uint64_t first, float scale, void *y)
{
    (void)q, (void)t, (void)n, (void)seed, (void)stream, (void)first, (void)scale, (void)y;
}
static void told_product(struct dt_device_queue *q, int64_t m, const void *x,
                         const struct dt_device_weight *w, const float *bias, const void *residual,
                         void *y)
{
    (void)x, (void)w, (void)bias, (void)residual, (void)y;
    ck_assert_int_eq(m, side_now);
    *(double *)(void *)q += 20e3 + 2.0 * (double)(m * m * m) / 775e3;
}

/* Small products tell how long launches are, not how fast a card is. */
START_TEST(peak_is_of_a_large_product)
{
    static const struct dt_kernels k = {.normal = told_normal, .linear_fwd = told_product};
    static const struct dt_device d = {.k = &k,
                                       .alloc = told_alloc,
                                       .free = told_free,
                                       .memory_trim = told_trim,
                                       .queue_new = told_queue,
                                       .queue_free = told_queue_free,
                                       .queue_sync = told_sync,
                                       .event_new = told_event,
                                       .event_free = told_event_free,
                                       .event_record = told_record,
                                       .event_ns = told_ns,
                                       .weight_new = told_weight,
                                       .weight_free = told_weight_free};
    const struct dt_setup s = {.device = &d, .dtype = DT_BF16};
    struct dt_setup_peak peak;

    room_bytes = SIZE_MAX;
    dt_assert_ok(dt_setup_gemm_peak(&s, &err, &peak), err);
    ck_assert_int_eq(peak.side, 8192);
    ck_assert_double_gt(peak.flops, 0.97 * 775e12);
    ck_assert_double_lt(peak.flops, 775e12);
    room_bytes = (size_t)100 << 20; /* 4,096 rows of fp32 are 64 MiB */
    dt_assert_ok(dt_setup_gemm_peak(&s, &err, &peak), err);
    ck_assert_int_eq(peak.side, 4096);
    room_bytes = 1 << 20;
    ck_assert_int_eq(dt_setup_gemm_peak(&s, &err, &peak), DT_ERR_NOMEM);
    ck_assert_int_eq(trims, 3); /* what was multiplied goes back to the driver */
}
END_TEST

static int heard;
static char said[512];

static void hear(void *ctx, const char *line)
{
    (void)ctx;
    heard++;
    snprintf(said, sizeof(said), "%s", line);
}

/* Nobody trains faster than products are. */
START_TEST(mfu_is_not_above_all)
{
    static const struct dt_warn warn = {.say = hear};
    const struct dt_train_options o = {.warn = &warn};
    struct dt_train_summary sum = {.gemm_peak_flops = 93e12, .gemm_peak_side = 1024};

    ck_assert_double_eq(dt_train_mfu(&o, &sum, 1, 93e11, 1), 0.1);
    ck_assert_double_eq(dt_train_mfu(&o, &sum, 2, 93e12, 1), 1);
    ck_assert_double_eq(dt_train_mfu(&o, &sum, 3, 93e12, 0), 0);
    ck_assert(heard == 0 && !sum.mfu_refused);
    for (int step = 4; step < 6; step++)
        ck_assert(isnan(dt_train_mfu(&o, &sum, step, 2 * 93e12, 1)));
    ck_assert_int_eq(heard, 1);
    ck_assert_msg(strncmp(said, "step 4 has no MFU: ", 19) == 0 &&
                      strstr(said, "186 TFLOP/s, 200 % of the 93 TFLOP/s") &&
                      strstr(said, "1024 x 1024"),
                  "%s", said);
    ck_assert_double_eq(dt_train_mfu(&o, &sum, 0, 93e11, 1), 0.1);
    ck_assert_int_eq(heard, 1); /* that of the run is there */
    ck_assert(isnan(dt_train_mfu(&o, &sum, 0, 2 * 93e12, 1)));
    ck_assert_msg(heard == 2 && strncmp(said, "there is no MFU: ", 17) == 0, "%s", said);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train_peak");
    TCase *c = dt_test_case(s, "peak", 0);

    tcase_add_test(c, peak_is_of_a_large_product);
    tcase_add_test(c, mfu_is_not_above_all);
    return dt_test_run(s);
}
