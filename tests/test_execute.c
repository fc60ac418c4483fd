/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The executor: every layout of a model trains alike, and learns. */
#include "exec_fixture.h"

#include <math.h>

static struct exec_fixture f;

#define CHAIN EF_ENCODER ", " EF_LLM ", " EF_UNET

START_TEST(overfits_a_small_text)
{
    static const struct ef_layout one[] = {{1, 1, 1}};
    struct dt_exec_result first, last = {0};

    ef_init(&f, EF_LLM, 1);
    ef_seqs(&f, 4, 7);
    ef_plan(&f, 1, one, false, DT_SCHED_1F1B);
    ef_open(&f);
    first = ef_step(&f, 1);
    /* random weights know nothing: ln 61 */
    ck_assert_double_eq_tol(first.loss_text, log(61), 0.3);
    ck_assert_double_gt(first.grad_norm, 0);
    for (int i = 2; i <= 150; i++)
        last = ef_step(&f, i);
    printf("text loss %.3f -> %.4f\n", first.loss_text, last.loss_text);
    ck_assert_double_lt(last.loss_text, 0.1);
    ef_free(&f);
}
END_TEST

START_TEST(learns_captions_and_images)
{
    static const struct ef_layout one[] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    struct dt_exec_result first, r;
    double image = 0;

    ef_init(&f, CHAIN, 0);
    ef_seqs(&f, 8, 9);
    ef_plan(&f, 1, one, true, DT_SCHED_1F1B);
    ef_open(&f);
    first = ef_step(&f, 1);
    ck_assert_int_gt(first.images, 0);
    ck_assert_int_gt(first.encoded, 0);
    ck_assert_double_eq_tol(first.loss_image, 1, 0.4); /* of unit noise, predicted by about zero */
    for (int i = 2; i <= 150; i++) {
        r = ef_step(&f, i);
        image += i > 130 ? r.loss_image / 20 : 0;
    }
    printf("text %.3f -> %.4f, image %.3f -> %.3f\n", first.loss_text, r.loss_text,
           first.loss_image, image);
    ck_assert_double_lt(r.loss_text, 0.2);
    ck_assert_double_lt(image, 0.7 * first.loss_image);
    ef_free(&f);
}
END_TEST

/* ---- layouts ---- */

struct layout_case {
    const char *name;
    struct ef_layout l[3];
    int microbatch;
    bool colocated;
    enum dt_pipe_schedule schedule;
    enum dt_block_recompute recompute;
};
static const struct layout_case layouts[] = {
    {"colocated", {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, 1, true, DT_SCHED_1F1B, DT_RECOMPUTE_NONE},
    {"disjoint", {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, 1, false, DT_SCHED_1F1B, DT_RECOMPUTE_NONE},
    {"larger microbatches",
     {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     3,
     true,
     DT_SCHED_1F1B,
     DT_RECOMPUTE_NONE},
    {"pp 2/3/2", {{2, 1, 1}, {3, 1, 1}, {2, 1, 1}}, 1, false, DT_SCHED_1F1B, DT_RECOMPUTE_NONE},
    {"pp 2/2/3 gpipe",
     {{2, 1, 1}, {2, 1, 1}, {3, 1, 1}},
     2,
     false,
     DT_SCHED_GPIPE,
     DT_RECOMPUTE_NONE},
    {"dp 2/2/2", {{1, 2, 1}, {1, 2, 1}, {1, 2, 1}}, 1, false, DT_SCHED_1F1B, DT_RECOMPUTE_NONE},
    {"fan-in dp 4/1/2",
     {{1, 4, 1}, {1, 1, 1}, {1, 2, 1}},
     4,
     false,
     DT_SCHED_1F1B,
     DT_RECOMPUTE_NONE},
    {"fan-out dp 1/4/3",
     {{1, 1, 1}, {1, 4, 1}, {1, 3, 1}},
     1,
     false,
     DT_SCHED_1F1B,
     DT_RECOMPUTE_NONE},
    {"dp 6/4/3", {{1, 6, 1}, {1, 4, 1}, {1, 3, 1}}, 1, false, DT_SCHED_1F1B, DT_RECOMPUTE_NONE},
    {"vpp 1/2/1",
     {{1, 1, 1}, {2, 1, 2}, {2, 1, 1}},
     1,
     false,
     DT_SCHED_INTERLEAVED,
     DT_RECOMPUTE_NONE},
    {"vpp 1/2/2",
     {{1, 2, 1}, {2, 2, 2}, {2, 1, 2}},
     1,
     false,
     DT_SCHED_INTERLEAVED,
     DT_RECOMPUTE_NONE},
    {"selective",
     {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     1,
     true,
     DT_SCHED_1F1B,
     DT_RECOMPUTE_SELECTIVE},
    {"full", {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, 1, true, DT_SCHED_1F1B, DT_RECOMPUTE_FULL},
    {"full, pp 2/3/2",
     {{2, 1, 1}, {3, 1, 1}, {2, 1, 1}},
     1,
     false,
     DT_SCHED_1F1B,
     DT_RECOMPUTE_FULL},
    {"colocated pp 2/2/1 dp 1/2/2",
     {{2, 1, 1}, {2, 2, 1}, {1, 2, 1}},
     1,
     true,
     DT_SCHED_1F1B,
     DT_RECOMPUTE_NONE},
};
enum { N_LAYOUTS = sizeof(layouts) / sizeof(layouts[0]), STEPS = 8 };

struct curve {
    struct dt_exec_result r[STEPS];
};

static void train(const struct layout_case *c, const char *frozen, int threads, struct curve *out)
{
    ef_init(&f, CHAIN, threads);
    ef_seqs(&f, 12, 9);
    ef_plan(&f, c->microbatch, c->l, c->colocated, c->schedule);
    fx_modes(&f.plan, c->recompute, 1);
    for (int m = 0; m < 3; m++)
        f.plan.modules[m].frozen = frozen[m] == 'f';
    ef_open(&f);
    for (int i = 0; i < STEPS; i++)
        out->r[i] = ef_step(&f, i + 1);
    ef_free(&f);
}

static void check_equal(const char *name, const struct curve *a, const struct curve *b)
{
    for (int i = 0; i < STEPS; i++) {
        double tol = i == 0 ? 1e-5 : 1e-3;
        const struct dt_exec_result *x = &a->r[i], *y = &b->r[i];

        ck_assert_msg(fabs(x->loss_text - y->loss_text) <= tol * x->loss_text,
                      "%s: step %d: text loss %.9g, should be %.9g", name, i + 1, y->loss_text,
                      x->loss_text);
        ck_assert_msg(fabs(x->loss_image - y->loss_image) <= tol * x->loss_image,
                      "%s: step %d: image loss %.9g, should be %.9g", name, i + 1, y->loss_image,
                      x->loss_image);
        ck_assert_msg(fabs(x->grad_norm - y->grad_norm) <= 10 * tol * x->grad_norm,
                      "%s: step %d: gradient norm %.9g, should be %.9g", name, i + 1, y->grad_norm,
                      x->grad_norm);
        ck_assert_int_eq(x->targets, y->targets);
        ck_assert_int_eq(x->images, y->images);
    }
}

START_TEST(every_layout_trains_alike)
{
    struct curve one, other;

    train(&layouts[0], "ttt", 1, &one);
    for (int k = 1; k < N_LAYOUTS; k++) {
        train(&layouts[k], "ttt", 1, &other);
        check_equal(layouts[k].name, &one, &other);
    }
}
END_TEST

START_TEST(every_freezing_trains_alike)
{
    static const char *const frozen[] = {"ftt", "tft", "ttf", "fft", "ftf", "tff"};
    struct curve one, other;

    for (int i = 0; i < 6; i++) {
        train(&layouts[0], frozen[i], 1, &one);
        ck_assert_double_gt(one.r[0].grad_norm, 0);
        train(&layouts[3], frozen[i], 1, &other);
        check_equal(frozen[i], &one, &other);
        train(&layouts[7], frozen[i], 1, &other);
        check_equal(frozen[i], &one, &other);
    }
}
END_TEST

/* Parameters of all stages after some steps, and what the last step gave back. */
struct trained {
    float *w[64];
    size_t n[64];
    int stages;
    struct curve curve;
};

static void train_and_keep(struct layout_case c, const char *frozen, double dropout,
                           enum dt_pipe_schedule schedule, struct trained *out)
{
    ef_init(&f, CHAIN, 1);
    f.dropout = dropout;
    ef_seqs(&f, 12, 9);
    ef_plan(&f, c.microbatch, c.l, c.colocated, schedule);
    fx_modes(&f.plan, c.recompute, 1);
    for (int m = 0; m < 3; m++)
        f.plan.modules[m].frozen = frozen[m] == 'f';
    ef_open(&f);
    for (int i = 0; i < STEPS; i++)
        out->curve.r[i] = ef_step(&f, i + 1);
    out->stages = 0;
    for (int m = 0; m < 3; m++)
        for (int r = 0; r < f.plan.modules[m].layout.dp; r++)
            for (int v = 0; v < f.plan.modules[m].layout.pp; v++) {
                struct dt_stage *s = dt_exec_stage(f.x, m, r, v);
                size_t n = dt_stage_param_floats(s);
                int k = out->stages++;

                ck_assert_int_lt(k, 64);
                out->n[k] = n;
                out->w[k] = malloc(n * sizeof(float) + 1);
                ck_assert_ptr_nonnull(out->w[k]);
                memcpy(out->w[k], dt_test_host(dt_stage_master(s)), n * sizeof(float));
            }
    ef_free(&f);
}

/* A lane adds up its weight gradients in the order of its microbatches in both schedules, from the same
 * numbers, so nothing differs by a bit. */
START_TEST(zb_h1_trains_as_1f1b_to_the_bit)
{
    static const struct {
        int layout;
        const char *frozen;
        double dropout;
    } runs[] = {{0, "ttt", 0},  {1, "ttt", 0},  {2, "ttt", 0},  {3, "ttt", 0}, {3, "ttt", 0.1},
                {5, "ttt", 0},  {6, "ttt", 0},  {7, "ttt", 0},  {8, "ttt", 0}, {11, "ttt", 0},
                {12, "ttt", 0}, {13, "ttt", 0}, {14, "ttt", 0}, {3, "ftt", 0}, {3, "tft", 0},
                {3, "ttf", 0},  {14, "ftf", 0}, {7, "tff", 0},  {3, "fff", 0}};
    static struct trained a, b;

    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        const struct layout_case *c = &layouts[runs[i].layout];

        train_and_keep(*c, runs[i].frozen, runs[i].dropout, DT_SCHED_1F1B, &a);
        train_and_keep(*c, runs[i].frozen, runs[i].dropout, DT_SCHED_ZB_H1, &b);
        ck_assert_int_eq(a.stages, b.stages);
        ck_assert_msg(memcmp(&a.curve, &b.curve, sizeof(a.curve)) == 0, "%s, %s: other losses",
                      c->name, runs[i].frozen);
        for (int k = 0; k < a.stages; k++) {
            ck_assert_msg(memcmp(a.w[k], b.w[k], a.n[k] * sizeof(float)) == 0,
                          "%s, %s: stage %d differs", c->name, runs[i].frozen, k);
            free(a.w[k]);
            free(b.w[k]);
        }
    }
}
END_TEST

START_TEST(threads_and_repetition_change_nothing)
{
    struct curve one, two, again;

    train(&layouts[0], "ttt", 1, &one);
    train(&layouts[0], "ttt", 1, &again);
    ck_assert_int_eq(memcmp(&one, &again, sizeof(one)), 0);
    train(&layouts[0], "ttt", 2, &two);
    check_equal("two threads", &one, &two);
}
END_TEST

/* A GPT whose head shares the token table: copies on the first and the last stage. */
START_TEST(shared_tables_stay_equal)
{
    static const struct ef_layout one[] = {{1, 1, 1}}, more[] = {{3, 2, 1}};
    struct curve a, b;

    for (int k = 0; k < 2; k++) {
        ef_init(&f,
                "llm: {kind: llm, layers: 3, hidden: 32, ffn: 64, heads: 4, vocab: 61, tied: true, "
                "positions: 48, norm: layernorm, gated: false, bias: true}",
                1);
        ef_seqs(&f, 12, 12);
        ef_plan(&f, 1, k ? more : one, false, DT_SCHED_1F1B);
        ef_open(&f);
        for (int i = 0; i < STEPS; i++)
            (k ? &b : &a)->r[i] = ef_step(&f, i + 1);
        if (k > 0)
            for (int r = 0; r < 2; r++) {
                const float *first = dt_test_host(dt_stage_master(dt_exec_stage(f.x, 0, r, 0)));
                struct dt_stage *last = dt_exec_stage(f.x, 0, r, 2);
                const float *copy = dt_test_host(dt_stage_master(last));
                int n, tied = 0;
                const struct dt_param *p = dt_stage_params(last, &n);

                for (int i = 0; i < n; i++)
                    if (p[i].tied) {
                        tied++;
                        ck_assert_int_eq(memcmp(copy + p[i].at, first, p[i].n * sizeof(float)), 0);
                    }
                ck_assert_int_eq(tied, 1);
            }
        ef_free(&f);
    }
    check_equal("shared table", &a, &b);
}
END_TEST

/* ---- the gradient itself ---- */

/* What training makes small, of what a step says of it: the weighted losses, and that of uneven routing of every layer
 * with experts (disttrain-job(5), balance_loss). */
static double objective(struct dt_exec_result r)
{
    const struct dt_module *llm = &f.model->modules[f.model->llm];
    double sum = f.opt.text_weight * r.loss_text + f.opt.image_weight * r.loss_image;

    ck_assert_double_eq_tol(r.loss, sum, 1e-9 * sum);
    for (int b = 0; b < llm->n_blocks; b++)
        if (llm->blocks[b].n_experts > 0)
            sum += llm->arith.balance_loss * r.balance;
    return sum;
}

static void move(float *w, const float *dir, size_t n, double step)
{
    for (size_t i = 0; i < n; i++)
        w[i] += (float)step * dir[i];
    dt_assert_ok(dt_exec_changed(f.x, &f.err), f.err);
}

/* Along a random direction that leans on the gradient: central differences against the gradient of the walk.  Steps are
 * so short that rows do not choose other experts. */
static void check_slope(const char *name, int m, struct dt_rng *r)
{
    struct dt_stage *s = dt_exec_stage(f.x, m, 0, 0);
    float *w = dt_test_host(dt_stage_master(s)), *g = dt_test_host(dt_stage_grads(s));
    size_t n = dt_stage_param_floats(s);
    float *grad = malloc(n * sizeof(float)), *dir = malloc(n * sizeof(float));
    double dot = 0, h = 3e-4, norm = 0, slope;

    ck_assert(grad && dir);
    memcpy(grad, g, n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        norm += (double)grad[i] * grad[i];
    for (size_t i = 0; i < n; i++) {
        dir[i] =
            grad[i] == 0 ? 0 : (float)(grad[i] / sqrt(norm) + dt_rng_normal(r) / sqrt((double)n));
        dot += (double)grad[i] * dir[i];
    }
    move(w, dir, n, h);
    slope = objective(ef_step(&f, 1));
    move(w, dir, n, -2 * h);
    slope = (slope - objective(ef_step(&f, 1))) / (2 * h);
    move(w, dir, n, h);
    ck_assert_msg(fabs(slope - dot) <= 0.01 * fabs(dot), "%s, module %d: slope %.6g, gradient %.6g",
                  name, m, slope, dot);
    free(grad);
    free(dir);
}

/* An even routing weighs as much as all else, where there are experts. */
#define EXPERTS                                                                                    \
    "llm: {kind: llm, layers: 3, hidden: 32, ffn: 48, heads: 4, vocab: 61, experts: 4, top_k: 2, " \
    "expert_ffn: 24, dense_first: 1, balance_loss: 3}"

/* Losses as functions of the parameters, each loss with a weight of its own. */
START_TEST(gradients_are_those_of_the_loss)
{
    static const struct {
        const char *name, *modules;
        double text_weight, image_weight;
    } cases[] = {
        {"text below, images above", CHAIN, 0.7, 2.5},
        {"text alone", CHAIN, 1.3, 0},
        {"experts", EF_ENCODER ", " EXPERTS ", " EF_UNET, 0.7, 2.5},
    };
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 5);
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        ef_init(&f, cases[k].modules, 1);
        ef_seqs(&f, 6, 10);
        ef_plan(&f, 2, layouts[0].l, true, DT_SCHED_1F1B);
        ef_open(&f);
        ef_close(&f);
        f.opt.optimizer.lr = 0; /* gradients without a step */
        f.opt.optimizer.clip = 0;
        f.opt.text_weight = cases[k].text_weight;
        f.opt.image_weight = cases[k].image_weight;
        dt_assert_ok(dt_exec_new(&f.opt, &f.err, &f.x), f.err);
        for (int m = 0; m < f.model->n_modules; m++) {
            ef_step(&f, 1);
            check_slope(cases[k].name, m, &r);
        }
        ef_free(&f);
    }
}
END_TEST

START_TEST(refuses_what_it_cannot_run)
{
    struct dt_exec *x;

    ef_init(&f, CHAIN, 1);
    ef_seqs(&f, 4, 11);
    ef_plan(&f, 1, layouts[0].l, true, DT_SCHED_1F1B);
    ef_open(&f);
    f.plan.modules[1].layout.tp = 2;
    ck_assert_int_eq(dt_exec_new(&f.opt, &f.err, &x), DT_ERR_INPUT);
    dt_assert_has(f.err.message, "tp");
    f.plan.modules[1].layout.tp = 1;
    f.plan.modules[1].layout.dp = 2;
    f.plan.modules[1].zero = 2;
    ck_assert_int_eq(dt_exec_new(&f.opt, &f.err, &x), DT_ERR_INPUT);
    dt_assert_has(f.err.message, "zero 2 is planned and simulated");
    f.plan.modules[1].layout.dp = f.plan.modules[1].zero = 1;
    f.plan.modules[1].layout.cp = 2;
    ck_assert_int_eq(dt_exec_new(&f.opt, &f.err, &x), DT_ERR_INPUT);
    dt_assert_has(f.err.message, "the 2 members of a lane need a rank each");
    f.plan.modules[1].layout.cp = 1;
    f.plan.modules[1].layout.ip = 2;
    ck_assert_int_eq(dt_exec_new(&f.opt, &f.err, &x), DT_ERR_INPUT);
    f.plan.modules[1].layout.ip = 1;
    ef_free(&f);
}
END_TEST

/* Text and pixels that were not fetched are not taken for zeros. */
START_TEST(refuses_what_is_not_there)
{
    static const struct ef_layout one[] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    static const uint32_t flags[] = {DT_ITEM_ENCODE, DT_ITEM_GENERATE};

    ef_init(&f, CHAIN, 0);
    ef_seqs(&f, 8, 9);
    ef_plan(&f, 1, one, true, DT_SCHED_1F1B);
    f.expected = DT_ERR_INTERNAL;
    f.seqs[5]->docs[0].no_text = true;
    ef_open(&f);
    ef_step(&f, 1);
    dt_assert_has(f.err.message, "sequence 5 is to be computed without its text");
    ef_free(&f);
    for (int k = 0; k < 2; k++) {
        void *px = NULL, **at = NULL;

        ef_init(&f, CHAIN, 0);
        ef_seqs(&f, 8, 9);
        ef_plan(&f, 1, one, true, DT_SCHED_1F1B);
        f.expected = DT_ERR_INTERNAL;
        for (int i = 0; i < 8 && !px; i++)
            for (int j = 0; j < f.seqs[i]->n_items && !px; j++)
                if (f.seqs[i]->items[j].flags & flags[k]) {
                    at = &f.seqs[i]->items[j].px;
                    px = *at;
                }
        ck_assert_ptr_nonnull(px);
        *at = NULL;
        ef_open(&f);
        ef_step(&f, 1);
        dt_assert_has(f.err.message, "is to be computed without its images");
        *at = px;
        ef_free(&f);
    }
}
END_TEST

START_TEST(learning_rate_warms_up_and_falls)
{
    struct dt_optimizer_options o;

    dt_optimizer_defaults(&o);
    o.lr = 2;
    o.min_lr = 0.5;
    o.warmup_steps = 4;
    o.steps = 104;
    ck_assert_double_eq_tol(dt_optimizer_lr(&o, 1), 0.5, 1e-12);
    ck_assert_double_eq_tol(dt_optimizer_lr(&o, 4), 2, 1e-12);
    ck_assert_double_eq_tol(dt_optimizer_lr(&o, 54), 1.25, 1e-12);
    ck_assert_double_eq_tol(dt_optimizer_lr(&o, 104), 0.5, 1e-12);
    ck_assert_double_eq_tol(dt_optimizer_lr(&o, 1000), 0.5, 1e-12);
    o.decay = DT_LR_CONSTANT;
    ck_assert_double_eq_tol(dt_optimizer_lr(&o, 90), 2, 1e-12);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("execute");
    TCase *tc = dt_test_case(suite, "walk", 600);

    tcase_add_test(tc, overfits_a_small_text);
    tcase_add_test(tc, learns_captions_and_images);
    tcase_add_test(tc, every_layout_trains_alike);
    tcase_add_test(tc, every_freezing_trains_alike);
    tcase_add_test(tc, shared_tables_stay_equal);
    tcase_add_test(tc, zb_h1_trains_as_1f1b_to_the_bit);
    tcase_add_test(tc, threads_and_repetition_change_nothing);
    tcase_add_test(tc, refuses_what_it_cannot_run);
    tcase_add_test(tc, refuses_what_is_not_there);
    tcase_add_test(tc, learning_rate_warms_up_and_falls);
    tc = dt_test_case(suite, "gradient", 60);
    tcase_add_test(tc, gradients_are_those_of_the_loss);
    return dt_test_run(suite);
}
