/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The data of a run against its plan: a mix that stays says nothing, one that changes says what it asks for and what that
 * would bring. */
#include "base/json.h"
#include "core/orchestrate/orchestrate_mix.h"
#include "sched_fixture.h"

enum { BATCH = 24, BATCHES = 40 };

static struct sched_fixture s;
static struct dt_cost *cost;
static struct dt_orch_mix *mix;

/* An encoder and an LLM of 6 layers each, on enc and llm stages. */
static void build(int enc, int llm)
{
    struct dt_cost_options opt = {.allow_analytical = true};

    sf_init(&s);
    sf_encoder(&s, "encoder", 6);
    sf_llm(&s, 6);
    sf_edge(&s, 0, 1);
    sf_plan(&s, BATCH, 2, DT_SCHED_1F1B);
    s.plan.policy.assignment = DT_ASSIGNMENT_ENTRAIN;
    sf_layout(&s, 0, 1, enc, 1, 1);
    sf_layout(&s, 1, 1, llm, 1, 1);
    dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
    fx_profile(&s.f, false);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost), s.err);
    dt_assert_ok(dt_orch_mix_new(&s.plan, &s.f.model, &s.f.cluster, cost, 0, 0, 7, &s.err, &mix),
                 s.err);
}

static void unbuild(void)
{
    dt_orch_mix_free(mix);
    dt_cost_free(cost);
    sf_free(&s);
}

/* A batch of images with sides around `side`, one a sample. */
static void draw(int side, uint64_t seed)
{
    sf_samples(&s, BATCH, 0, 0, false, seed);
    for (int64_t i = 0; i < BATCH; i++) {
        struct dt_rng r;

        dt_rng_init(&r, seed, (uint64_t)i);
        s.item_first[i] = (uint64_t)i;
        s.items[i] = (struct dt_sample_item){.kind = DT_MODALITY_IMAGE, .flags = DT_ITEM_ENCODE};
        s.items[i].w = s.items[i].h = (uint16_t)(16 * (side / 16 - 1 + (int)dt_rng_below(&r, 3)));
    }
    s.item_first[BATCH] = BATCH;
}

/* The side with which the loads ask for that many GPUs of six for the encoder, in the middle of such sides. */
static int side_for(int gpus)
{
    int first = 0, last = 0;

    for (int side = 32; side <= 1024; side += 16) {
        double load[2 * BATCH], sum[2] = {0};
        int units[2];

        draw(side, 1);
        dt_assert_ok(
            dt_orch_sample_loads(&s.plan, &s.f.model, cost, &s.samples, BATCH, &s.err, load),
            s.err);
        for (int i = 0; i < 2 * BATCH; i++)
            sum[i / BATCH] += load[i];
        dt_orch_allocate(2, sum, 6, units);
        if (units[0] != gpus)
            continue;
        first = first ? first : side;
        last = side;
    }
    ck_assert_int_gt(first, 0);
    return (first + last) / 32 * 16;
}

/* Windows that asked for another plan, of `batches` of that side. */
static int told(int side, int batches, uint64_t seed, int *windows, struct dt_orch_mix_found *last)
{
    int n = 0;

    for (int b = 0; b < batches; b++) {
        struct dt_orch_mix_found f;
        bool tested;

        draw(side, seed + (uint64_t)b);
        dt_assert_ok(dt_orch_mix_add(mix, &s.samples, &s.err, &tested, &f), s.err);
        *windows += tested;
        n += tested && f.other;
        if (tested && f.other)
            *last = f;
    }
    return n;
}

START_TEST(a_mix_that_stays_says_nothing)
{
    struct dt_orch_mix_found f;
    int windows = 0;

    build(2, 4);
    ck_assert_ptr_nonnull(mix);
    ck_assert_int_eq(told(side_for(2), BATCHES, dt_test_seed(), &windows, &f), 0);
    ck_assert_int_eq(windows, BATCHES / 4); /* 96 samples a window */
    unbuild();
}
END_TEST

START_TEST(a_mix_that_changes_is_told)
{
    struct dt_orch_mix_found f = {0};
    char text[1024], *json;
    struct dt_json j;
    int windows = 0, before, after;

    build(2, 4);
    before = side_for(2);
    after = side_for(4);
    ck_assert_int_eq(told(before, BATCHES, 1, &windows, &f), 0);
    ck_assert_int_eq(told(after, BATCHES, 1000, &windows, &f), BATCHES / 4);
    ck_assert(f.has[0] == 2 && f.has[1] == 4 && f.asks_for[0] == 4 && f.asks_for[1] == 2);
    ck_assert_int_eq(f.plan.modules[0].layout.pp, 4);
    ck_assert_int_eq(f.plan.modules[1].layout.pp, 2);
    ck_assert_int_eq(f.trials, 59);
    ck_assert_double_gt(f.then_s, 0);
    ck_assert_double_lt(f.then_s, f.now_s); /* the encoder had half the GPUs that it needs */
    dt_orch_mix_text(&f, text, sizeof(text));
    dt_assert_has(text, "encoder 4 instead of 2, llm 2 instead of 4");
    dt_assert_has(text, "% less");
    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_orch_mix_json(&f, &j);
    dt_json_end_object(&j);
    dt_assert_ok(dt_json_finish(&j, &s.err, &json), s.err);
    dt_assert_has(json, "\"asks_for\":4");
    dt_free(json);
    unbuild();
}
END_TEST

/* Half of the draws ask for each of two divisions: no warning, whatever the plan has of the two. */
START_TEST(a_boundary_is_not_told)
{
    struct dt_orch_mix_found f;
    int windows = 0, side;

    build(3, 3);
    side = side_for(3);
    while (side_for(3) && side < 2000) { /* the last side of that division, with sizes around it */
        double load[2 * BATCH], sum[2] = {0};
        int units[2];

        draw(side + 16, 1);
        dt_assert_ok(
            dt_orch_sample_loads(&s.plan, &s.f.model, cost, &s.samples, BATCH, &s.err, load),
            s.err);
        for (int i = 0; i < 2 * BATCH; i++)
            sum[i / BATCH] += load[i];
        dt_orch_allocate(2, sum, 6, units);
        if (units[0] != 3)
            break;
        side += 16;
    }
    ck_assert_int_eq(told(side, BATCHES, 3, &windows, &f), 0);
    ck_assert_int_eq(windows, BATCHES / 4);
    unbuild();
}
END_TEST

/* Nothing to move, and other assignments. */
START_TEST(other_plans_are_left_alone)
{
    build(1, 1);
    ck_assert_ptr_null(mix);
    unbuild();
    build(2, 3);
    ck_assert_ptr_nonnull(mix);
    dt_orch_mix_free(mix);
    s.plan.policy.assignment = DT_ASSIGNMENT_SLOTS;
    dt_assert_ok(dt_orch_mix_new(&s.plan, &s.f.model, &s.f.cluster, cost, 0, 0, 7, &s.err, &mix),
                 s.err);
    ck_assert_ptr_null(mix);
    unbuild();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mix");
    TCase *tc = dt_test_case(suite, "mix", 60);
    tcase_add_test(tc, a_mix_that_stays_says_nothing);
    tcase_add_test(tc, a_mix_that_changes_is_told);
    tcase_add_test(tc, a_boundary_is_not_told);
    tcase_add_test(tc, other_plans_are_left_alone);
    return dt_test_run(suite);
}
