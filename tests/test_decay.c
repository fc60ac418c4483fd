/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The optimizer: rates, and which floats decay. */
#include "core/model/shape.h"
#include "exec/program/optimizer.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rates ---- */

/* Of cosines from 1: half of 1 + cos(pi t), t the share of the steps behind warm-up. */
static const struct {
    int64_t steps, warmup;
    double min_lr, rates[10];
} runs[] = {
    {1, 0, 0, {1}},
    {1, 0, 0.25, {1}},
    {1, 1, 0, {1}},
    {1, 2, 0, {0.5}},
    {2, 0, 0, {0.5, 0}},
    {2, 1, 0, {1, 0}},
    {3, 0, 0, {0.75, 0.25, 0}},
    {3, 1, 0.5, {1, 0.75, 0.5}},
    {10,
     0,
     0,
     {0.9755282581, 0.9045084972, 0.7938926261, 0.6545084972, 0.5, 0.3454915028, 0.2061073739,
      0.0954915028, 0.0244717419, 0}},
    {10,
     2,
     0,
     {0.5, 1, 0.9619397663, 0.8535533906, 0.6913417162, 0.5, 0.3086582838, 0.1464466094,
      0.0380602337, 0}},
};

START_TEST(rates_of_short_runs)
{
    struct dt_optimizer_options o;
    double most = 0;

    dt_optimizer_defaults(&o);
    o.lr = 1;
    o.min_lr = runs[_i].min_lr;
    o.steps = runs[_i].steps;
    o.warmup_steps = runs[_i].warmup;
    for (int64_t step = 1; step <= o.steps; step++) {
        double rate = dt_optimizer_lr(&o, step);

        ck_assert_msg(fabs(rate - runs[_i].rates[step - 1]) < 1e-9, "step %d of %d: %g", (int)step,
                      (int)o.steps, rate);
        most = rate > most ? rate : most;
    }
    ck_assert_msg(most > 0, "a run that trains nothing");
}
END_TEST

/* ---- what takes no part ---- */

static const struct {
    enum dt_module_modality modality;
    int positions, class_tokens;
    int first, end; /* the positions that patches have */
} towers[] = {
    {DT_MODALITY_IMAGE, 17, 1, 1, 17}, {DT_MODALITY_IMAGE, 18, 1, 1, 17},
    {DT_MODALITY_IMAGE, 65, 0, 0, 64}, {DT_MODALITY_IMAGE, 6, 2, 2, 6},
    {DT_MODALITY_IMAGE, 2, 2, 2, 2},   {DT_MODALITY_IMAGE, 0, 1, 0, 0},
    {DT_MODALITY_AUDIO, 22, 2, 2, 22},
};

struct rig {
    struct dt_arena arena;
    struct dt_module m;
    struct dt_device *dev;
    struct dt_device_queue *q;
    struct dt_stage *stage;
    float *before; /* the masters */
    size_t total;
    struct dt_error err;
};

static void rig_open(struct rig *r, int k)
{
    struct dt_device_options opt = {.threads = 1};
    struct dt_stage_spec spec = {.module = &r->m, .dtype = DT_F32};
    struct dt_shape s;

    memset(r, 0, sizeof(*r));
    dt_shape_init(&s, DT_SHAPE_ENCODER);
    s.modality = towers[k].modality;
    s.layers = 1;
    s.hidden = 12;
    s.ffn = 20;
    s.heads = s.kv_heads = 2;
    s.head_dim = 6;
    s.patch = 4;
    s.positions = towers[k].positions;
    s.class_tokens = towers[k].class_tokens;
    if (s.modality == DT_MODALITY_AUDIO) {
        s.channels = 1;
        s.mel_bins = 8;
    }
    dt_assert_ok(dt_shape_build(&s, 0, &r->arena, &r->err, &r->m), r->err);
    spec.last = r->m.n_blocks;
    spec.max = (struct dt_batch_limits){.rows = 16, .seqs = 5, .max_len = 16};
    dt_assert_ok(dt_device_open_cpu(&opt, &r->err, &r->dev), r->err);
    dt_assert_ok(r->dev->queue_new(r->dev, false, &r->err, &r->q), r->err);
    dt_assert_ok(dt_stage_new(r->dev, &spec, &r->err, &r->stage), r->err);
    dt_stage_init(r->q, r->stage, 7);
    dt_assert_ok(r->dev->queue_sync(r->q, &r->err), r->err);
    r->total = dt_stage_param_floats(r->stage);
    r->before = malloc(r->total * sizeof(float));
    ck_assert_ptr_nonnull(r->before);
    memcpy(r->before, dt_stage_master(r->stage), r->total * sizeof(float));
}

static void rig_close(struct rig *r)
{
    dt_stage_free(r->stage);
    r->dev->queue_free(r->q);
    r->dev->close(r->dev);
    dt_arena_free(&r->arena);
    free(r->before);
}

/* Two steps without gradients, of what is owned (NULL: all). */
static void steps(struct rig *r, const struct dt_optimizer_owned *owned, int n_owned, int *counted)
{
    struct dt_optimizer_spec spec = {
        .module = &r->m, .stage = r->stage, .owned = owned, .n_owned = n_owned};
    struct dt_optimizer_coef coef = {NULL, 1};
    struct dt_optimizer_options opt;
    struct dt_optimizer o;

    dt_optimizer_defaults(&opt);
    dt_stage_grads_begin(r->stage);
    memset(dt_stage_grads(r->stage), 0, r->total * sizeof(float));
    dt_assert_ok(dt_optimizer_init(&o, r->dev, &spec, NULL, r->q, &r->err), r->err);
    for (int step = 1; step <= 2; step++)
        dt_optimizer_step(r->q, &o, &opt, step, &coef, 0, r->m.n_blocks);
    dt_assert_ok(r->dev->queue_sync(r->q, &r->err), r->err);
    *counted = o.n_counted;
    dt_optimizer_free(&o);
}

/* Do these floats of the table have a use?  Of other tensors all have. */
static bool used(const struct dt_param *p, size_t i, int k)
{
    int64_t row = (int64_t)i / 12;

    if (strstr(p->name, "cls_token"))
        return false;
    return !strstr(p->name, "position_embeddings") ||
           (row >= towers[k].first && row < towers[k].end);
}

static void check(struct rig *r, int k)
{
    const float *now = dt_stage_master(r->stage);
    int n;
    const struct dt_param *p = dt_stage_params(r->stage, &n);

    for (int i = 0; i < n; i++)
        for (size_t j = 0; j < p[i].n; j++) {
            size_t at = p[i].at + j;

            ck_assert_msg((now[at] != r->before[at]) == (p[i].decay && used(&p[i], j, k)),
                          "%s[%zu]: %.9g, was %.9g", p[i].name, j, (double)now[at],
                          (double)r->before[at]);
        }
}

START_TEST(what_takes_no_part_does_not_decay)
{
    struct dt_optimizer_owned half[2];
    int whole, split;
    struct rig r;

    rig_open(&r, _i);
    steps(&r, NULL, 0, &whole);
    check(&r, _i);
    rig_close(&r);
    /* cut anywhere, and not summed in other pieces than before it was told apart */
    for (size_t cut = 1; cut < 600; cut += 37) {
        rig_open(&r, _i);
        half[0] = (struct dt_optimizer_owned){0, cut, true};
        half[1] = (struct dt_optimizer_owned){cut, r.total - cut, true};
        steps(&r, half, 2, &split);
        check(&r, _i);
        ck_assert_int_ge(split, whole);
        ck_assert_int_le(split, whole + 1);
        rig_close(&r);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("optimizer");
    TCase *c = dt_test_case(s, "steps", 60);

    tcase_add_loop_test(c, rates_of_short_runs, 0, sizeof(runs) / sizeof(runs[0]));
    tcase_add_loop_test(c, what_takes_no_part_does_not_decay, 0,
                        sizeof(towers) / sizeof(towers[0]));
    return dt_test_run(s);
}
