/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The executor over several ranks (threads of this process): every layout trains as one process
 * does.  A few layouts, or all of them with DT_TEST_FULL=1. */
#include "execute_ranks.h"

#define CHAIN EF_ENCODER ", " EF_LLM ", " EF_UNET
#define GPT                                                                                        \
    "llm: {kind: llm, layers: 3, hidden: 32, ffn: 64, heads: 4, vocab: 61, tied: true, "           \
    "positions: 48, norm: layernorm, gated: false, bias: true}"

static const struct ranks_case cases[] = {
    {.name = "disjoint", .l = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, .microbatch = 1},
    {.name = "two ranks for three GPUs",
     .l = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     .microbatch = 1,
     .ranks = 2},
    {.name = "colocated, dp 2",
     .l = {{1, 2, 1}, {1, 2, 1}, {1, 2, 1}},
     .microbatch = 1,
     .colocated = true},
    {.name = "colocated, pp 2/2/1 dp 1/1/2",
     .l = {{2, 1, 1}, {2, 1, 1}, {1, 2, 1}},
     .microbatch = 1,
     .colocated = true,
     .full = true},
    {.name = "pp 3", .l = {{3, 1, 1}, {3, 1, 1}, {3, 1, 1}}, .microbatch = 1, .full = true},
    {.name = "pp 1/3/1", .l = {{1, 1, 1}, {3, 1, 1}, {1, 1, 1}}, .microbatch = 1},
    {.name = "gpipe",
     .l = {{2, 1, 1}, {2, 1, 1}, {2, 1, 1}},
     .microbatch = 2,
     .schedule = DT_SCHED_GPIPE,
     .full = true},
    {.name = "vpp 2",
     .l = {{1, 1, 1}, {2, 1, 2}, {1, 1, 1}},
     .microbatch = 1,
     .schedule = DT_SCHED_INTERLEAVED},
    {.name = "vpp 1/2/2",
     .l = {{1, 2, 1}, {2, 2, 2}, {2, 1, 2}},
     .microbatch = 1,
     .schedule = DT_SCHED_INTERLEAVED,
     .full = true},
    {.name = "fan-in 4/2/1", .l = {{1, 4, 1}, {2, 2, 1}, {1, 1, 1}}, .microbatch = 2},
    {.name = "fan-in 4/1/2", .l = {{1, 4, 1}, {1, 1, 1}, {1, 2, 1}}, .microbatch = 4, .full = true},
    {.name = "fan-out 1/4/4",
     .l = {{1, 1, 1}, {1, 4, 1}, {1, 4, 1}},
     .microbatch = 1,
     .full = true},
    {.name = "dp 6/4/3", .l = {{1, 6, 1}, {1, 4, 1}, {1, 3, 1}}, .microbatch = 1},
    {.name = "dp 6/4/3 on 5 ranks",
     .l = {{1, 6, 1}, {1, 4, 1}, {1, 3, 1}},
     .microbatch = 1,
     .ranks = 5},
    {.name = "reordered, dp 2/2/1",
     .l = {{1, 2, 1}, {2, 2, 1}, {1, 1, 1}},
     .microbatch = 1,
     .reorder = true},
    {.name = "reordered, dp 4/2/2",
     .l = {{1, 4, 1}, {1, 2, 1}, {1, 2, 1}},
     .microbatch = 2,
     .reorder = true,
     .full = true},
    {.name = "dp 2, zero 0",
     .l = {{1, 2, 1}, {1, 2, 1}, {1, 2, 1}},
     .microbatch = 1,
     .zero0 = true},
    {.name = "dp 4 on 2 ranks, zero 0",
     .l = {{1, 4, 1}, {1, 4, 1}, {1, 4, 1}},
     .microbatch = 1,
     .colocated = true,
     .ranks = 2,
     .zero0 = true,
     .full = true},
    {.name = "dp 4 on 2 ranks",
     .l = {{1, 4, 1}, {1, 4, 1}, {1, 4, 1}},
     .microbatch = 1,
     .colocated = true,
     .ranks = 2},
    {.name = "dp 2, no overlap",
     .l = {{1, 2, 1}, {1, 2, 1}, {1, 2, 1}},
     .microbatch = 1,
     .apart = true,
     .full = true},
    {.name = "generator dp 2",
     .l = {{1, 1, 1}, {1, 1, 1}, {1, 2, 1}},
     .microbatch = 1,
     .full = true},
    {.name = "selective",
     .l = {{1, 1, 1}, {2, 1, 1}, {1, 1, 1}},
     .microbatch = 1,
     .recompute = DT_RECOMPUTE_SELECTIVE,
     .full = true},
    {.name = "full recompute",
     .l = {{1, 2, 1}, {2, 1, 1}, {1, 1, 1}},
     .microbatch = 1,
     .recompute = DT_RECOMPUTE_FULL,
     .full = true},
    {.name = "frozen encoder",
     .l = {{1, 2, 1}, {2, 1, 1}, {1, 1, 1}},
     .microbatch = 1,
     .frozen = "ftt"},
    {.name = "frozen LLM",
     .l = {{1, 2, 1}, {2, 2, 1}, {1, 1, 1}},
     .microbatch = 1,
     .frozen = "tft",
     .full = true},
    {.name = "frozen generator",
     .l = {{1, 1, 1}, {2, 2, 1}, {1, 2, 1}},
     .microbatch = 1,
     .frozen = "ttf",
     .full = true},
    {.name = "generator only",
     .l = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}},
     .microbatch = 1,
     .frozen = "fft",
     .full = true},
    {.name = "LLM only",
     .l = {{1, 2, 1}, {2, 1, 1}, {1, 1, 1}},
     .microbatch = 1,
     .frozen = "ftf",
     .full = true},
    {.name = "encoder only",
     .l = {{1, 2, 1}, {1, 1, 1}, {1, 1, 1}},
     .microbatch = 1,
     .frozen = "tff",
     .full = true},
    {.name = "tp 2", .l = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, .tp = {2, 2, 2}, .microbatch = 1},
    {.name = "tp 2, colocated",
     .l = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     .tp = {2, 2, 2},
     .microbatch = 2,
     .colocated = true,
     .full = true},
    {.name = "tp 1/2/1, dp 2/1/1",
     .l = {{1, 2, 1}, {1, 1, 1}, {1, 1, 1}},
     .tp = {1, 2, 1},
     .microbatch = 2},
    {.name = "tp 2/1/2, pp 1/2/1",
     .l = {{1, 1, 1}, {2, 1, 1}, {1, 1, 1}},
     .tp = {2, 1, 2},
     .microbatch = 1,
     .full = true},
    {.name = "tp 2, pp 2, dp 2 of the LLM",
     .l = {{1, 2, 1}, {2, 2, 1}, {1, 1, 1}},
     .tp = {1, 2, 1},
     .microbatch = 1,
     .full = true},
    {.name = "tp 2, pp 2 everywhere",
     .l = {{2, 1, 1}, {2, 1, 1}, {2, 1, 1}},
     .tp = {2, 2, 2},
     .microbatch = 1,
     .full = true},
    {.name = "fan-in, dp 4 to tp 2 pp 2",
     .l = {{1, 4, 1}, {2, 1, 1}, {1, 1, 1}},
     .tp = {1, 2, 1},
     .microbatch = 4},
    {.name = "fan-out, tp 2 pp 2 to dp 4",
     .l = {{1, 1, 1}, {2, 1, 1}, {1, 4, 1}},
     .tp = {1, 2, 1},
     .microbatch = 4,
     .full = true},
    {.name = "tp 2, full recompute",
     .l = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     .tp = {2, 2, 2},
     .microbatch = 1,
     .recompute = DT_RECOMPUTE_FULL,
     .full = true},
    {.name = "tp 2, selective",
     .l = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     .tp = {2, 2, 2},
     .microbatch = 1,
     .recompute = DT_RECOMPUTE_SELECTIVE,
     .full = true},
    {.name = "tp 2, frozen LLM",
     .l = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     .tp = {2, 2, 2},
     .microbatch = 1,
     .frozen = "tft",
     .full = true},
    {.name = "shared table, tp 2 pp 2 dp 2",
     .l = {{2, 2, 1}},
     .tp = {2},
     .microbatch = 1,
     .model = GPT},
    {.name = "shared table, pp 3 dp 2", .l = {{3, 2, 1}}, .microbatch = 1, .model = GPT},
    {.name = "shared table, pp 2 dp 4 on 3 ranks",
     .l = {{2, 4, 1}},
     .microbatch = 1,
     .ranks = 3,
     .model = GPT,
     .full = true},
    {.name = "shared table, zero 0",
     .l = {{2, 2, 1}},
     .microbatch = 1,
     .zero0 = true,
     .model = GPT,
     .full = true},
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static bool all_of_them(void)
{
    const char *s = getenv("DT_TEST_FULL");

    return s && *s && *s != '0';
}

/* ---- one rank ---- */

struct curve {
    struct dt_exec_result r[STEPS_MAX];
};
struct rank {
    struct world *w;
    struct dt_transport *t;
    struct curve curve;
    pthread_t thread;
};

static void open_case(struct exec_fixture *f, const struct ranks_case *c)
{
    const char *frozen = c->frozen ? c->frozen : "ttt";

    ef_init(f, c->model ? c->model : CHAIN, 1);
    ef_seqs(f, 12, 9);
    ef_plan(f, c->microbatch, c->l, c->colocated, c->schedule);
    for (int m = 0; m < f->model->n_modules; m++)
        f->plan.modules[m].layout.tp = c->tp[m] > 0 ? c->tp[m] : 1;
    dt_assert_ok(dt_plan_place(&f->plan, &f->cluster, &f->err), f->err);
    dt_assert_ok(dt_plan_validate(&f->plan, f->model, &f->cluster, &f->err), f->err);
    f->plan.policy.recompute = c->recompute;
    f->plan.policy.zero = !c->zero0;
    f->plan.policy.overlap_grad = f->plan.policy.overlap_param = !c->apart;
    for (int m = 0; m < f->model->n_modules; m++)
        f->plan.modules[m].frozen = frozen[m] == 'f';
    if (c->reorder)
        ef_reorder(f);
}

/* What the rank owns of n floats from `at`. */
static void keep_owned(const struct dt_optimizer *o, size_t at, size_t n, const float *g, float *to)
{
    for (int k = 0; k < o->n_segments; k++) {
        const struct dt_segment *x = &o->segments[k];
        size_t lo = x->at > at ? x->at : at;
        size_t hi = x->at + x->n < at + n ? x->at + x->n : at + n;

        if (lo < hi)
            memcpy(to + (lo - at), g + lo, (hi - lo) * sizeof(float));
    }
}

/* What this rank owns of the gradients of a virtual stage. */
static void keep_stage(struct world *w, int m, struct dt_stage *s, const struct dt_optimizer *o)
{
    struct dt_stage *whole = dt_exec_stage(w->one->x, m, 0, 0);
    const float *g = dt_stage_grads(s);
    int n;
    const struct dt_param *p = dt_stage_params(s, &n);

    for (int i = 0; i < n; i++) {
        const struct dt_param *to = p[i].tied ? NULL : param_named(whole, p[i].name);

        if (p[i].tied)
            continue;
        ck_assert_ptr_nonnull(to);
        for (int64_t k = 0; k < dt_param_runs(&p[i]); k++) {
            struct dt_param_run run = dt_param_run(&p[i], k);

            keep_owned(o, p[i].at + run.at, run.n, g, w->grads[m] + to->at + run.whole);
        }
    }
}

static void keep_grads(struct world *w, struct exec_fixture *f)
{
    pthread_mutex_lock(&w->lock);
    for (int m = 0; m < f->model->n_modules; m++) {
        const struct dt_layout *l = &f->plan.modules[m].layout;

        for (int r = 0; r < l->dp; r++)
            for (int v = 0; v < l->pp * l->vpp; v++) {
                struct dt_stage *s = dt_exec_stage(f->x, m, r, v);

                if (s && dt_stage_grads(s))
                    keep_stage(w, m, s, dt_exec_optimizer(f->x, m, r, v));
            }
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- the life of a rank ---- */

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));

    ck_assert_ptr_nonnull(f);
    open_case(f, r->w->c);
    f->transport = r->t;
    ef_open(f);
    for (int i = 0; i < r->w->steps; i++) {
        r->curve.r[i] = ef_step(f, i + 1);
        if (i == 0)
            keep_grads(r->w, f);
    }
    check_whole(r->w, f);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

/* ---- comparisons ---- */

static void same_loss(const char *name, int i, const char *what, double is, double should,
                      double tol)
{
    ck_assert_msg(fabs(is - should) <= tol * fabs(should), "%s: step %d: %s %.9g, should be %.9g",
                  name, i + 1, what, is, should);
}

static void same_curve(const char *name, const struct curve *a, const struct curve *b, int steps)
{
    for (int i = 0; i < steps; i++) {
        double tol = i == 0 ? 1e-5 : 1e-3;
        const struct dt_exec_result *x = &a->r[i], *y = &b->r[i];

        same_loss(name, i, "text loss", y->loss_text, x->loss_text, tol);
        same_loss(name, i, "image loss", y->loss_image, x->loss_image, tol);
        same_loss(name, i, "gradient norm", y->grad_norm, x->grad_norm, 10 * tol);
        ck_assert_int_eq(x->targets, y->targets);
        ck_assert_int_eq(x->images, y->images);
    }
}

/* Every tensor's gradient, by norms. */
static void same_grads(const struct world *w, float *const *should)
{
    for (int m = 0; m < w->one->model->n_modules; m++) {
        struct dt_stage *s = dt_exec_stage(w->one->x, m, 0, 0);
        int n;
        const struct dt_param *p = dt_stage_params(s, &n);

        for (int i = 0; should[m] && i < n; i++) {
            double off = 0, all = 0;

            if (!dt_stage_trained(s, p[i].block))
                continue;
            for (size_t k = p[i].at; k < p[i].at + p[i].n; k++) {
                double d = (double)w->grads[m][k] - (double)should[m][k];

                off += d * d;
                all += (double)should[m][k] * (double)should[m][k];
            }
            ck_assert_msg(sqrt(off) <= 1e-4 * sqrt(all) + 1e-9,
                          "%s: gradient of %s is %.3g off, its norm is %.3g", w->c->name, p[i].name,
                          sqrt(off), sqrt(all));
        }
    }
}

/* One process, everything on one device; its gradients of step 1. */
static void run_alone(struct exec_fixture *f, const struct ranks_case *c, int steps,
                      struct curve *out, float *grads[MODULES])
{
    struct ranks_case one = *c;

    for (int m = 0; m < MODULES; m++) {
        one.l[m] = (struct ef_layout){1, 1, 1};
        one.tp[m] = 1;
    }
    one.colocated = true;
    one.schedule = DT_SCHED_1F1B;
    one.recompute = DT_RECOMPUTE_NONE;
    one.reorder = false;
    open_case(f, &one);
    ef_open(f);
    for (int i = 0; i < steps; i++) {
        out->r[i] = ef_step(f, i + 1);
        for (int m = 0; i == 0 && m < f->model->n_modules; m++) {
            struct dt_stage *s = dt_exec_stage(f->x, m, 0, 0);
            size_t bytes = dt_stage_param_floats(s) * sizeof(float);

            grads[m] = dt_stage_grads(s) ? malloc(bytes) : NULL;
            if (grads[m])
                memcpy(grads[m], dt_stage_grads(s), bytes);
        }
    }
}

static void run_ranks(struct world *w, struct rank *ranks)
{
    struct dt_transport *t[RANKS_MAX];
    struct dt_error err;

    dt_assert_ok(dt_transport_open_threads(w->ranks, &err, t), err);
    for (int i = 0; i < w->ranks; i++) {
        ranks[i] = (struct rank){.w = w, .t = t[i]};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < w->ranks; i++)
        pthread_join(ranks[i].thread, NULL);
}

static int gpus_of(const struct ranks_case *c, const struct exec_fixture *f)
{
    int sum = 0, max = 0;

    for (int m = 0; m < f->model->n_modules; m++) {
        int n = c->l[m].pp * c->l[m].dp * (c->tp[m] > 0 ? c->tp[m] : 1);

        sum += n;
        max = n > max ? n : max;
    }
    return c->colocated ? max : sum;
}

static void check_case(const struct ranks_case *c, int steps)
{
    static struct exec_fixture one;
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    float *should[MODULES] = {0};
    struct world w = {.c = c, .steps = steps, .one = &one};
    struct curve alone;

    ck_assert_ptr_nonnull(ranks);
    pthread_mutex_init(&w.lock, NULL);
    run_alone(&one, c, steps, &alone, should);
    for (int m = 0; m < one.model->n_modules; m++)
        w.grads[m] = calloc(dt_stage_param_floats(dt_exec_stage(one.x, m, 0, 0)), sizeof(float));
    w.ranks = c->ranks > 0 ? c->ranks : gpus_of(c, &one);
    ck_assert_int_le(w.ranks, RANKS_MAX);
    run_ranks(&w, ranks);
    same_curve(c->name, &alone, &ranks[0].curve, steps);
    for (int i = 1; i < w.ranks; i++) /* all ranks know the same */
        for (int k = 0; k < steps; k++)
            ck_assert_msg(ranks[i].curve.r[k].loss == ranks[0].curve.r[k].loss,
                          "%s: rank %d has another loss", c->name, i);
    same_grads(&w, should);
    for (int m = 0; m < MODULES; m++) {
        free(should[m]);
        free(w.grads[m]);
    }
    free(ranks);
    ef_free(&one);
    pthread_mutex_destroy(&w.lock);
}

START_TEST(ranks_train_as_one_process)
{
    const struct ranks_case *c = &cases[_i];
    const char *only = getenv("DT_TEST_CASE");

    if (only && *only ? strcmp(only, c->name) != 0 : c->full && !all_of_them())
        return;
    check_case(c, all_of_them() ? STEPS_MAX : 4);
}
END_TEST

/* ---- failures ---- */

static void *wait_for_nothing(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    struct dt_error err;
    struct dt_comm *both;
    struct dt_req *req;
    double x = 0;

    ck_assert_ptr_nonnull(f);
    open_case(f, r->w->c);
    f->transport = r->t;
    f->limit_s = 0.3;
    ef_open(f);
    dt_assert_ok(r->t->comm_new(r->t, (int[]){0, 1}, 2, &err, &both), err);
    if (r->t->rank == 0) { /* the other rank never begins the step */
        f->expected = DT_ERR_TIMEOUT;
        ef_step(f, 1);
        dt_assert_has(f->err.message, "rank 0 on ");
        dt_assert_has(f->err.message, "llm/0.0 ");
        dt_assert_has(f->err.message, "of microbatch 0");
    }
    dt_assert_ok(r->t->post_all_reduce(both, DT_REDUCE_F64, &x, 1, &err, &req), err);
    dt_assert_ok(dt_transport_wait(r->t, req, 30, NULL, &err), err);
    r->t->comm_free(both);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

/* A step that another rank does not take part in ends in time and names what it waits for. */
START_TEST(a_missing_rank_is_named)
{
    static const struct ranks_case two = {
        .name = "two ranks", .l = {{2, 1, 1}}, .microbatch = 1, .model = EF_LLM};
    struct rank ranks[2];
    struct world w = {.c = &two, .ranks = 2};
    struct dt_transport *t[2];
    struct dt_error err;

    dt_assert_ok(dt_transport_open_threads(2, &err, t), err);
    for (int i = 0; i < 2; i++) {
        ranks[i] = (struct rank){.w = &w, .t = t[i]};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, wait_for_nothing, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(ranks[i].thread, NULL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ranks");
    TCase *t = tcase_create("ranks");
    SRunner *r;
    int failed;

    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_missing_rank_is_named);
    tcase_add_loop_test(t, ranks_train_as_one_process, 0, N_CASES);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
