/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Steps on the host (exec/program/optimizer_host.h), on the fake device: what chunks bring up where they hold more than
 * parameters.  That parameters are those of a step on the device is for execute_ranks_offload.c. */
#include "core/model/shape.h"
#include "exec/program/optimizer_host.h"
#include "fake_device.h"
#include "test_util.h"

#include <stdio.h>

enum { CHUNK = DT_PLAN_OFFLOAD_CHUNK };

struct rig {
    struct dt_arena arena;
    struct dt_module m;
    struct dt_device *dev;
    struct dt_device_queue *q;
    struct dt_stage *stage;
    struct dt_optimizer_host host;
    size_t total;
    unsigned char *used; /* of the stage's floats, those of parameters */
    struct dt_error err;
};

/* Vectors of 20 floats, so that 12 of padding are behind each, and a table of more than a chunk before them. */
static void rig_open(struct rig *r, enum dt_dtype dtype)
{
    struct dt_device_options opt = {.threads = 1};
    struct dt_stage_spec spec = {.module = &r->m, .dtype = dtype, .masters_away = true};
    struct dt_shape s;
    const struct dt_param *p;
    int n;

    memset(r, 0, sizeof(*r));
    dt_shape_init(&s, DT_SHAPE_LLM);
    s.layers = 1;
    s.hidden = 20;
    s.ffn = 22;
    s.heads = s.kv_heads = 4;
    s.head_dim = 6;
    s.vocab = CHUNK / 20 + 100;
    s.qk_norm = true;
    dt_assert_ok(dt_shape_build(&s, 0, &r->arena, &r->err, &r->m), r->err);
    spec.last = r->m.n_blocks;
    spec.max = (struct dt_batch_limits){.rows = 16, .seqs = 5, .max_len = 12};
    dt_assert_ok(dt_fake_device_open(&opt, &r->err, &r->dev), r->err);
    dt_assert_ok(r->dev->queue_new(r->dev, false, &r->err, &r->q), r->err);
    dt_assert_ok(dt_stage_new(r->dev, &spec, &r->err, &r->stage), r->err);
    dt_assert_ok(dt_optimizer_host_open(&r->host, r->dev, NULL, 1, &r->err), r->err);
    r->total = dt_stage_param_floats(r->stage);
    r->used = calloc(r->total, 1);
    ck_assert_ptr_nonnull(r->used);
    p = dt_stage_params(r->stage, &n);
    for (int i = 0; i < n; i++)
        memset(r->used + p[i].at, 1, p[i].n);
}

static void rig_close(struct rig *r)
{
    dt_optimizer_host_close(&r->host);
    dt_stage_free(r->stage);
    r->dev->queue_free(r->q);
    r->dev->close(r->dev);
    dt_arena_free(&r->arena);
    free(r->used);
}

/* What one chunk has left is not what the next one brings. */
static void poison(void *p, size_t bytes)
{
    memset(p, 0x5a, bytes);
}

/* One step of the floats from `first` on. */
static void step_from(struct rig *r, size_t first)
{
    struct dt_optimizer_owned owned = {first, r->total - first, true};
    struct dt_optimizer_spec spec = {
        .module = &r->m, .stage = r->stage, .owned = &owned, .n_owned = 1, .offloaded = true};
    struct dt_optimizer_coef coef = {NULL, 1};
    struct dt_optimizer_options opt;
    struct dt_optimizer o;

    dt_optimizer_defaults(&opt);
    dt_stage_grads_begin(r->stage);
    dt_stage_init(r->q, r->stage, 7);
    dt_assert_ok(dt_optimizer_init(&o, r->dev, &spec, &r->host, r->q, &r->err), r->err);
    for (int i = 0; i < DT_OPTIMIZER_ROOMS; i++)
        poison(r->host.room[i].out, (size_t)CHUNK * (DT_PLAN_OFFLOAD_BYTES - 4));
    poison(dt_test_host(dt_stage_grads(r->stage)), r->total * sizeof(float));
    dt_optimizer_step(r->q, &o, &opt, 1, &coef, 0, r->m.n_blocks);
    dt_assert_ok(dt_optimizer_host_sync(&r->host, &r->err), r->err);
    dt_assert_ok(r->dev->queue_sync(r->q, &r->err), r->err);
    dt_optimizer_free(&o);
}

static bool is_zero(struct rig *r, size_t i)
{
    const float *master = dt_stage_master(r->stage);
    const uint16_t *rounded = dt_stage_rounded(r->stage);

    return (!master || ((const float *)dt_test_host(master))[i] == 0) &&
           (!rounded || ((const uint16_t *)dt_test_host(rounded))[i] == 0);
}

/* The padding of a stage is zero and stays so (exec/modules/module.h), wherever chunks end: before it, in it, behind it. */
START_TEST(padding_stays_zero)
{
    struct rig r;
    int gaps = 0;

    if (_i != 0 && !dt_test_has_bf16())
        return;
    rig_open(&r, _i == 0 ? DT_F32 : DT_BF16);
    ck_assert_int_eq(dt_stage_master(r.stage) == NULL, _i == 1);
    for (size_t end = CHUNK + 1; end < r.total; end++) {
        size_t gap = end;

        while (gap > 0 && !r.used[gap - 1])
            gap--;
        if (gap == end || !r.used[end] || gap < CHUNK)
            continue;
        gaps++;
        for (int k = 0; k < 3; k++) {
            size_t stop = gap + (size_t)k * (end - gap) / 2;

            step_from(&r, stop - CHUNK);
            for (size_t i = 0; i < r.total; i++)
                ck_assert_msg(r.used[i] || is_zero(&r, i),
                              "padding of floats %zu to %zu, a chunk ends at %zu: float %zu is not "
                              "zero",
                              gap, end, stop, i);
        }
    }
    ck_assert_int_ge(gaps, 2);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("optimizer_host");
    TCase *c = dt_test_case(s, "steps", 60);

    tcase_add_loop_test(c, padding_stays_zero, 0, 2);
    return dt_test_run(s);
}
