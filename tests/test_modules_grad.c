/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Whole small modules, every block kind: values against plain double precision, gradients of every
 * tensor and of the flow in against central differences of that reference. */
#include "module_util.h"

enum { SEEDS = 2, ELEMENTS = 3 };
#define STEP 1e-5 /* truncation 1e-10, cancellation 1e-11 of an objective of order 10 */

static void open_case(struct mu *u, int i)
{
    mu_open(u, (enum mu_kind)(i % MU_N), dt_test_seed() + (uint64_t)(i / MU_N));
}

static void near(const struct mu *u, const char *what, double got, double want, double scale,
                 double tol)
{
    ck_assert_msg(isfinite(got) && fabs(got - want) <= tol * scale,
                  "%s, seed %" PRIu64 ": %s is %.9g, expected %.9g (difference %.2g of %.2g)",
                  mu_names[u->kind], u->seed, what, got, want, fabs(got - want), scale);
}

START_TEST(values_are_the_references)
{
    struct mu u;
    struct mu_run run = {0};
    struct mu_result got;
    double linear = 0, want;

    open_case(&u, _i);
    mu_execute(&u, &run, &got);
    want = mu_reference(&u);
    for (int64_t i = 0; i < u.n_out; i++) {
        near(&u, "an output", got.out[i], u.out[i], 1 + fabs(u.out[i]), 2e-5);
        linear += u.out[i] * u.weights[i];
    }
    linear += u.ref.balance_scale * u.ref.uneven;
    near(&u, "the loss", got.loss, want - linear, 1 + fabs(want), 2e-5);
    near(&u, "unevenness", got.load.balance, u.ref.uneven, 1 + u.ref.uneven, 2e-5);
    if (got.best) {
        int *best = DT_ARENA_NEW(&u.arena, int, u.llm.rows);

        ref_llm(&u.ref, &u.llm, NULL, best);
        for (int i = 0; i < u.llm.rows; i++)
            ck_assert_int_eq(got.best[i], best[i]);
    }
    if (got.pred) {
        double *pred = DT_ARENA_NEW(&u.arena, double, u.max.rows * 3);

        ref_unet(&u.ref, &u.gen, pred);
        for (int64_t i = 0; i < 3 * (u.max.rows - 16); i++)
            near(&u, "a prediction", got.pred[i], pred[i], 1 + fabs(pred[i]), 5e-5);
    }
    mu_close(&u);
}
END_TEST

/* Derivative of the reference along `dir` (n values at v). */
static double slope(struct mu *u, double *v, int64_t n, const double *dir, double *kept)
{
    double up, down;

    memcpy(kept, v, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++)
        v[i] = kept[i] + STEP * dir[i];
    up = mu_reference(u);
    for (int64_t i = 0; i < n; i++)
        v[i] = kept[i] - STEP * dir[i];
    down = mu_reference(u);
    memcpy(v, kept, (size_t)n * sizeof(double));
    return (up - down) / (2 * STEP);
}

/* One random direction, which all elements take part in, and a few single elements. */
static void check_gradient(struct mu *u, const char *name, double *v, int64_t n, const double *g,
                           struct dt_rng *r)
{
    double *dir = DT_ARENA_NEW(&u->arena, double, n), *kept = DT_ARENA_NEW(&u->arena, double, n);
    double dot = 0, norm = 0;
    char what[160];

    for (int64_t i = 0; i < n; i++) {
        dir[i] = dt_rng_normal(r);
        dot += dir[i] * g[i];
        norm += g[i] * g[i];
    }
    norm = sqrt(norm);
    snprintf(what, sizeof(what), "gradient of %s along a direction", name);
    near(u, what, dot, slope(u, v, n, dir, kept), 0.02 + norm, 2e-4);
    memset(dir, 0, (size_t)n * sizeof(double));
    for (int k = 0; k < ELEMENTS; k++) {
        int64_t i = (int64_t)dt_rng_below(r, (uint64_t)n);

        dir[i] = 1;
        snprintf(what, sizeof(what), "gradient of %s[%lld]", name, (long long)i);
        near(u, what, g[i], slope(u, v, n, dir, kept), 0.02 + norm, 1e-4);
        dir[i] = 0;
    }
}

START_TEST(gradients_are_central_differences)
{
    struct mu u;
    struct mu_run run = {.upstream = true};
    struct mu_result got;
    struct dt_rng r;

    open_case(&u, _i);
    mu_execute(&u, &run, &got);
    dt_rng_init(&r, u.seed, 4711);
    for (int i = 0; i < u.n; i++) {
        ck_assert(got.has[i]);
        check_gradient(&u, u.t[i].name, u.t[i].v, u.t[i].n, got.g[i], &r);
    }
    if (u.n_in > 0)
        check_gradient(&u, "the flow in", u.in, u.n_in, got.d_in, &r);
    mu_close(&u);
}
END_TEST

/* With dropout the reference draws the same masks from their documented counters.  In a U-Net
 * nothing is dropped. */
START_TEST(dropout_is_the_references)
{
    struct mu u;
    struct mu_run run = {.upstream = true, .dropout = 0.3f};
    struct mu_result got, kept;
    double linear = 0, want;
    struct dt_rng r;

    open_case(&u, _i);
    mu_execute(&u, &run, &got);
    run.dropout = 0;
    mu_execute(&u, &run, &kept);
    u.ref.dropout = 0.3;
    u.ref.seed = u.seed;
    u.ref.first_stream = MU_STREAM;
    want = mu_reference(&u);
    for (int64_t i = 0; i < u.n_out; i++) {
        near(&u, "an output", got.out[i], u.out[i], 1 + fabs(u.out[i]), 2e-5);
        linear += u.out[i] * u.weights[i];
    }
    linear += u.ref.balance_scale * u.ref.uneven;
    near(&u, "the loss", got.loss, want - linear, 1 + fabs(want), 2e-5);
    near(&u, "unevenness", got.load.balance, u.ref.uneven, 1 + u.ref.uneven, 2e-5);
    if (u.m.role == DT_ROLE_GENERATOR)
        ck_assert_double_eq(got.loss, kept.loss);
    else
        ck_assert_msg(u.n_out > 0 ? memcmp(got.out, kept.out, (size_t)u.n_out * sizeof(double)) != 0
                                  : got.loss != kept.loss,
                      "%s: dropout changes nothing", mu_names[u.kind]);
    dt_rng_init(&r, u.seed, 4712);
    for (int i = 0; i < u.n; i++)
        check_gradient(&u, u.t[i].name, u.t[i].v, u.t[i].n, got.g[i], &r);
    if (u.n_in > 0)
        check_gradient(&u, "the flow in", u.in, u.n_in, got.d_in, &r);
    mu_close(&u);
}
END_TEST

/* A gradient that is zero everywhere would pass the tests above unnoticed only if the reference's
 * were zero too: every tensor must matter but a class token, and those of an expert that no row chose. */
START_TEST(every_tensor_matters)
{
    struct mu u;
    struct mu_run run = {.upstream = true};
    struct mu_result got;
    int experts = 0, idle = 0;

    open_case(&u, _i);
    mu_execute(&u, &run, &got);
    for (int i = 0; i < u.n; i++) {
        bool expert = strstr(u.t[i].name, ".experts.") != NULL;
        double most = 0;

        for (int64_t k = 0; k < u.t[i].n; k++)
            most = fmax(most, fabs(got.g[i][k]));
        experts += expert;
        idle += expert && most == 0;
        if (expert && most == 0)
            continue;
        if (strstr(u.t[i].name, "cls_token") || strstr(u.t[i].name, "key.bias") ||
            strstr(u.t[i].name, "k_proj.bias"))
            continue; /* a bias of all keys shifts every score of a query: softmax ignores it */
        ck_assert_msg(most > 1e-6, "%s: %s has no gradient", mu_names[u.kind], u.t[i].name);
    }
    ck_assert_msg(4 * idle <= experts, "%s: %d of %d tensors of experts have no gradient",
                  mu_names[u.kind], idle, experts);
    mu_close(&u);
}
END_TEST

/* --dump KIND: for tests/test_modules_torch.sh */
int main(int argc, char **argv)
{
    int cases = getenv("DT_CHECK_FULL") ? MU_N * SEEDS : MU_N;
    Suite *s;
    TCase *c;

    if (argc == 3 && strcmp(argv[1], "--dump") == 0)
        return mu_dump(argv[2]);
    s = suite_create("modules_grad");
    c = dt_test_case(s, "modules", 240);
    tcase_add_loop_test(c, values_are_the_references, 0, cases);
    tcase_add_loop_test(c, gradients_are_central_differences, 0, cases);
    tcase_add_loop_test(c, dropout_is_the_references, 0, MU_N);
    tcase_add_loop_test(c, every_tensor_matters, 0, MU_N);
    return dt_test_run(s);
}
