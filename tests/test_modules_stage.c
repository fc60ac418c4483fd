/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What must not change results: stage boundaries, recompute, threads, parts, split backwards.  What
 * must: precision within bounds.  (That they are what the model says: test_modules_figures.c.) */
#include "exec/modules/impl.h"
#include "module_util.h"

static void same(const struct mu *u, const char *why, const struct mu_result *a,
                 const struct mu_result *b)
{
    ck_assert_msg(memcmp(&a->loss, &b->loss, sizeof(a->loss)) == 0, "%s, %s: loss %.17g, %.17g",
                  mu_names[u->kind], why, a->loss, b->loss);
    for (int64_t i = 0; i < u->n_out; i++)
        ck_assert_msg(a->out[i] == b->out[i], "%s, %s: output %lld", mu_names[u->kind], why,
                      (long long)i);
    for (int64_t i = 0; i < u->n_in; i++)
        ck_assert_msg(a->d_in[i] == b->d_in[i], "%s, %s: gradient of input %lld: %.17g, %.17g",
                      mu_names[u->kind], why, (long long)i, a->d_in[i], b->d_in[i]);
    for (int i = 0; i < u->n; i++)
        for (int64_t k = 0; k < u->t[i].n; k++)
            ck_assert_msg(a->g[i][k] == b->g[i][k], "%s, %s: gradient of %s[%lld]: %.17g, %.17g",
                          mu_names[u->kind], why, u->t[i].name, (long long)k, a->g[i][k],
                          b->g[i][k]);
}

/* Largest difference of gradients, by tensor, over the tensor's norm. */
static double distance(const struct mu *u, const struct mu_result *a, const struct mu_result *b)
{
    double most = 0;

    for (int i = 0; i < u->n; i++) {
        double d = 0, n = 0;

        for (int64_t k = 0; k < u->t[i].n; k++) {
            d += (a->g[i][k] - b->g[i][k]) * (a->g[i][k] - b->g[i][k]);
            n += b->g[i][k] * b->g[i][k];
        }
        most = fmax(most, sqrt(d) / (0.05 + sqrt(n)));
    }
    return most;
}

START_TEST(a_boundary_anywhere_changes_nothing)
{
    struct mu u;
    struct mu_run run = {.upstream = true};
    struct mu_result whole, cut;
    bool tied;

    mu_open_case(&u, _i);
    tied = u.m.blocks[u.m.n_blocks - 1].tied;
    mu_execute(&u, &run, &whole);
    run.n_cuts = 1;
    for (run.cuts[0] = 1; run.cuts[0] < u.m.n_blocks; run.cuts[0]++) {
        mu_execute(&u, &run, &cut);
        if (tied) /* two copies are added up by the trainer, in another order */
            ck_assert_msg(distance(&u, &cut, &whole) < 1e-6, "%s cut at %d", mu_names[u.kind],
                          run.cuts[0]);
        else
            same(&u, "cut", &cut, &whole);
    }
    run.n_cuts = 3; /* the middle ones carry what they do not use */
    run.cuts[0] = u.m.n_blocks / 4 + 1;
    run.cuts[1] = run.cuts[0] + 1;
    run.cuts[2] = u.m.n_blocks - 1;
    if (run.cuts[1] < run.cuts[2]) {
        mu_execute(&u, &run, &cut);
        if (!tied)
            same(&u, "four stages", &cut, &whole);
    }
    mu_close(&u);
}
END_TEST

START_TEST(recompute_changes_nothing)
{
    struct mu u;
    struct mu_run run = {.upstream = true};
    struct mu_result none, other;

    if (_i >= MU_N && !dt_test_has_bf16())
        return;
    mu_open_case(&u, _i % MU_N);
    run.dtype = _i < MU_N ? DT_F32 : DT_BF16;
    mu_execute(&u, &run, &none);
    for (int r = DT_RECOMPUTE_SELECTIVE; r <= DT_RECOMPUTE_FULL; r++) {
        run.recompute = (enum dt_block_recompute)r;
        mu_execute(&u, &run, &other);
        same(&u, dt_block_recompute_names[r], &other, &none);
    }
    mu_close(&u);
}
END_TEST

START_TEST(threads_and_parts_change_nothing)
{
    struct mu u;
    struct mu_run run = {.upstream = true};
    struct mu_result one, two;

    mu_open_case(&u, _i);
    mu_execute(&u, &run, &one);
    run.threads = 2;
    mu_execute(&u, &run, &two);
    same(&u, "two threads", &two, &one);
    run.parts = true;
    mu_execute(&u, &run, &two);
    same(&u, "in parts", &two, &one);
    mu_close(&u);
}
END_TEST

START_TEST(weight_gradients_may_come_later)
{
    static const enum dt_block_recompute modes[3] = {DT_RECOMPUTE_NONE, DT_RECOMPUTE_SELECTIVE,
                                                     DT_RECOMPUTE_FULL};
    struct mu u;
    struct mu_run run = {.upstream = true};
    struct mu_result whole, split;

    mu_open_case(&u, _i);
    mu_execute(&u, &run, &whole);
    run.split_backward = true;
    run.n_cuts = 1;
    run.cuts[0] = u.m.n_blocks / 2;
    for (int i = 0; i < 3; i++) {
        run.recompute = modes[i];
        mu_execute(&u, &run, &split);
        ck_assert_msg(distance(&u, &split, &whole) < 1e-6, "%s, %s: %g", mu_names[u.kind],
                      dt_block_recompute_names[modes[i]], distance(&u, &split, &whole));
        for (int64_t k = 0; k < u.n_in; k++)
            ck_assert(split.d_in[k] == whole.d_in[k]);
    }
    mu_close(&u);
}
END_TEST

/* Masks are drawn again where they are needed: no layout, recomputation or thread changes them. */
START_TEST(dropout_depends_on_no_layout)
{
    struct mu u;
    struct mu_run run = {.upstream = true, .dropout = 0.25f};
    struct mu_result whole, other;

    mu_open_case(&u, _i);
    mu_execute(&u, &run, &whole);
    run.threads = 2;
    for (int r = DT_RECOMPUTE_NONE; r <= DT_RECOMPUTE_FULL; r++) {
        run.recompute = (enum dt_block_recompute)r;
        mu_execute(&u, &run, &other);
        same(&u, dt_block_recompute_names[r], &other, &whole);
    }
    run.n_cuts = 1;
    run.cuts[0] = u.m.n_blocks / 2;
    for (int split = 0; split < 2; split++) {
        run.split_backward = split;
        mu_execute(&u, &run, &other);
        ck_assert_msg(distance(&u, &other, &whole) < 1e-6, "%s: %g", mu_names[u.kind],
                      distance(&u, &other, &whole));
    }
    /* a module that is not trained drops nothing */
    run = (struct mu_run){.frozen = true, .freeze_to = u.m.n_blocks};
    mu_execute(&u, &run, &whole);
    run.dropout = 0.25f;
    mu_execute(&u, &run, &other);
    ck_assert_double_eq(other.loss, whole.loss);
    for (int64_t i = 0; i < u.n_out; i++)
        ck_assert(other.out[i] == whole.out[i]);
    mu_close(&u);
}
END_TEST

START_TEST(microbatches_add_up)
{
    struct mu u;
    struct mu_run run = {0};
    struct mu_result once, thrice;

    mu_open_case(&u, _i);
    mu_execute(&u, &run, &once);
    run.microbatches = 3;
    mu_execute(&u, &run, &thrice);
    for (int i = 0; i < u.n; i++)
        for (int64_t k = 0; k < u.t[i].n; k++)
            once.g[i][k] *= 3;
    ck_assert_msg(distance(&u, &thrice, &once) < 1e-5, "%s", mu_names[u.kind]);
    mu_close(&u);
}
END_TEST

/* All gradients together. */
static double relative(const struct mu *u, const struct mu_result *a, const struct mu_result *b)
{
    double d = 0, n = 0;

    for (int i = 0; i < u->n; i++)
        for (int64_t k = 0; k < u->t[i].n; k++) {
            d += (a->g[i][k] - b->g[i][k]) * (a->g[i][k] - b->g[i][k]);
            n += b->g[i][k] * b->g[i][k];
        }
    return sqrt(d / n);
}

/* bf16 rounds by up to 2^-9 at every stored tensor.  How much that moves a gradient depends on the
 * network; fp32 with all parameters moved by that much says how much it may. */
START_TEST(bf16_is_near_fp32)
{
    struct mu u;
    struct mu_run run = {.upstream = true};
    struct mu_result full, half, moved;
    double bound = 0;

    if (!dt_test_has_bf16())
        return;
    mu_open_case(&u, _i);
    mu_execute(&u, &run, &full);
    run.dtype = DT_BF16;
    mu_execute(&u, &run, &half);
    run.dtype = DT_F32;
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < u.n; i++)
            for (int64_t k = 0; k < u.t[i].n; k++)
                u.t[i].v[k] *=
                    1 + ldexp(dt_rng_normal_at(u.seed + 1, (uint64_t)(100 * pass + i), (uint64_t)k),
                              -9);
        mu_execute(&u, &run, &moved);
        bound = fmax(bound, relative(&u, &moved, &full));
    }
    ck_assert_msg(fabs(half.loss - full.loss) < 0.01 * (1 + full.loss), "%s: %g, %g",
                  mu_names[u.kind], half.loss, full.loss);
    ck_assert_msg(relative(&u, &half, &full) < 4 * bound, "%s: %g, perturbed %g", mu_names[u.kind],
                  relative(&u, &half, &full), bound);
    ck_assert_msg(relative(&u, &half, &full) > 1e-4, "%s: bf16 is fp32", mu_names[u.kind]);
    mu_close(&u);
}
END_TEST

/* Frozen blocks have no gradients, and the others the same ones as if nothing were frozen; what
 * lies before the first trained block has no backward at all. */
START_TEST(frozen_blocks_are_skipped)
{
    struct mu u;
    struct mu_run run = {.frozen = true};
    struct mu_result all, some;
    int n;

    mu_open_case(&u, _i);
    n = u.m.n_blocks;
    run.upstream = true;
    run.freeze_to = 0;
    mu_execute(&u, &run, &all);
    run.freeze_from = n / 3;
    run.freeze_to = n - 1;
    mu_execute(&u, &run, &some);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < u.n; i++)
            for (int64_t k = 0; some.has[i] && k < u.t[i].n; k++)
                ck_assert_msg(some.g[i][k] == all.g[i][k] || u.m.blocks[n - 1].tied, "%s: %s",
                              mu_names[u.kind], u.t[i].name);
        ck_assert(!some.has[u.n / 2]);
        run.upstream = false;
        run.freeze_from = 0;
        mu_execute(&u, &run, &some);
    }
    run.freeze_to = n; /* nothing to train: losses and outputs only */
    mu_execute(&u, &run, &some);
    ck_assert(fabs(some.loss - all.loss) <= 1e-5 * (1 + all.loss));
    for (int i = 0; i < u.n; i++)
        ck_assert(!some.has[i]);
    for (int64_t i = 0; i < u.n_out; i++)
        ck_assert(some.out[i] == all.out[i]);
    mu_close(&u);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("modules_stage");
    TCase *c = dt_test_case(s, "stages", 240);

    tcase_add_loop_test(c, a_boundary_anywhere_changes_nothing, 0, MU_N);
    tcase_add_loop_test(c, recompute_changes_nothing, 0, 2 * MU_N);
    tcase_add_loop_test(c, dropout_depends_on_no_layout, 0, MU_N);
    tcase_add_loop_test(c, threads_and_parts_change_nothing, 0, MU_N);
    tcase_add_loop_test(c, weight_gradients_may_come_later, 0, MU_N);
    tcase_add_loop_test(c, microbatches_add_up, 0, MU_N);
    tcase_add_loop_test(c, bf16_is_near_fp32, 0, MU_N);
    tcase_add_loop_test(c, frozen_blocks_are_skipped, 0, MU_N);
    return dt_test_run(s);
}
