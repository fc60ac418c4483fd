/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * AdamW: steps of the executor against steps made here, in double, of every named parameter; and that the executor gets
 * what the job says. */
#include "core/job/job.h"
#include "exec/train/setup.h"
#include "exec_fixture.h"

#include <math.h>

static struct exec_fixture f;

#define LLAMA EF_ENCODER ", " EF_LLM ", " EF_UNET
/* A shared table, learned positions, biases. */
#define GPT                                                                                        \
    EF_ENCODER ", llm: {kind: llm, layers: 2, hidden: 32, ffn: 64, heads: 4, vocab: 61, tied: "    \
               "true, positions: 48, norm: layernorm, gated: false, bias: true}, " EF_UNET

/* ---- steps by hand ---- */

enum { MODULES = 3, STEPS = 3 };

/* Of a module, laid out as its stage's. */
struct moments {
    double *p, *m, *v;
};

/* Matrices and filters decay; biases, norms, and the LLM's token and position tables do not (disttrain-job(5)). */
static bool decays(const char *name)
{
    static const char *const without[] = {".bias",        "norm",  ".ln_",
                                          "embed_tokens", ".wte.", ".wpe."};

    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++)
        if (strstr(name, without[i]))
            return false;
    return true;
}

/* Of a frozen module its projector. */
static bool trained(int module, const struct dt_param *p)
{
    return !f.plan.modules[module].frozen || strstr(p->name, "projector.") != NULL;
}

static double rate(const struct dt_optimizer_options *o, int64_t step)
{
    if (step <= o->warmup_steps)
        return o->lr * (double)step / (double)o->warmup_steps;
    return o->min_lr + (o->lr - o->min_lr) / 2 *
                           (1 + cos(M_PI * (double)(step - o->warmup_steps) /
                                    (double)(o->steps - o->warmup_steps)));
}

static double *doubles(size_t n)
{
    double *p = calloc(n + 1, sizeof(double));

    ck_assert_ptr_nonnull(p);
    return p;
}

static struct moments moments_new(int module)
{
    struct dt_stage *s = dt_exec_stage(f.x, module, 0, 0);
    const float *w = dt_test_host(dt_stage_master(s));
    size_t n = dt_stage_param_floats(s);
    struct moments h = {doubles(n), doubles(n), doubles(n)};

    for (size_t i = 0; i < n; i++)
        h.p[i] = w[i];
    return h;
}

static void moments_free(struct moments *h)
{
    free(h->p);
    free(h->m);
    free(h->v);
}

/* Of all that is trained. */
static double norm_of_gradients(void)
{
    double sq = 0;

    for (int m = 0; m < MODULES; m++) {
        struct dt_stage *s = dt_exec_stage(f.x, m, 0, 0);
        const float *g = dt_test_host(dt_stage_grads(s));
        int n;
        const struct dt_param *p = dt_stage_params(s, &n);

        for (int k = 0; k < n; k++)
            for (size_t i = p[k].at; trained(m, &p[k]) && i < p[k].at + p[k].n; i++)
                sq += (double)g[i] * g[i];
    }
    return sqrt(sq);
}

static void step_param(const struct dt_param *p, const float *grad, double coef, int64_t step,
                       struct moments *h)
{
    const struct dt_optimizer_options *o = &f.opt.optimizer;
    double lr = rate(o, step), decay = decays(p->name) ? o->weight_decay : 0;

    for (size_t i = p->at; i < p->at + p->n; i++) {
        double g = coef * grad[i], m, v;

        h->m[i] = o->beta1 * h->m[i] + (1 - o->beta1) * g;
        h->v[i] = o->beta2 * h->v[i] + (1 - o->beta2) * g * g;
        m = h->m[i] / (1 - pow(o->beta1, (double)step));
        v = h->v[i] / (1 - pow(o->beta2, (double)step));
        h->p[i] -= lr * (m / (sqrt(v) + o->eps) + decay * h->p[i]);
    }
}

/* Steps module m by hand, and holds the executor's parameters against that. */
static void check_step(const char *name, int m, double coef, int64_t step, struct moments *h)
{
    struct dt_stage *s = dt_exec_stage(f.x, m, 0, 0);
    const float *w = dt_test_host(dt_stage_master(s)), *g = dt_test_host(dt_stage_grads(s));
    int n;
    const struct dt_param *p = dt_stage_params(s, &n);

    for (int k = 0; k < n; k++) {
        if (trained(m, &p[k]))
            step_param(&p[k], g, coef, step, h);
        for (size_t i = p[k].at; i < p[k].at + p[k].n; i++)
            ck_assert_msg(fabs(w[i] - h->p[i]) <= 2e-7 * fabs(h->p[i]) + 1e-5 * f.opt.optimizer.lr,
                          "%s, step %d: %s[%zu] is %.9g, not %.9g", name, (int)step, p[k].name,
                          i - p[k].at, (double)w[i], h->p[i]);
    }
}

/* No two numbers are alike, none is what is usual, and each tells: eps is near to gradients, and decay to the rate. */
static const struct dt_optimizer_options odd = {.lr = 0.011,
                                                .min_lr = 0.004,
                                                .warmup_steps = 2,
                                                .decay = DT_LR_COSINE,
                                                .steps = 5,
                                                .beta1 = 0.71,
                                                .beta2 = 0.83,
                                                .eps = 3e-3,
                                                .weight_decay = 0.37};

START_TEST(steps_are_those_of_the_formula)
{
    static const struct {
        const char *name, *modules, *frozen;
        double clip;
    } cases[] = {
        {"clipped", LLAMA, "ttt", 0.4},
        {"below the norm that clips", LLAMA, "ttt", 1e4},
        {"GPT", GPT, "ttt", 0.4},
        {"without clipping", GPT, "ftt", 0},
    };
    static const struct ef_layout one[MODULES] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct moments h[MODULES];
        double clip = cases[k].clip;

        ef_init(&f, cases[k].modules, 1);
        ef_seqs(&f, 6, 10);
        ef_plan(&f, 2, one, true, DT_SCHED_1F1B);
        for (int m = 0; m < MODULES; m++)
            f.plan.modules[m].frozen = cases[k].frozen[m] == 'f';
        ef_open(&f);
        ef_close(&f);
        f.opt.optimizer = odd;
        f.opt.optimizer.clip = clip;
        dt_assert_ok(dt_exec_new(&f.opt, &f.err, &f.x), f.err);
        for (int m = 0; m < MODULES; m++)
            h[m] = moments_new(m);
        for (int64_t step = 1; step <= STEPS; step++) {
            struct dt_exec_result r = ef_step(&f, step);
            double norm = norm_of_gradients();

            ck_assert_double_eq_tol(r.grad_norm, norm, 1e-6 * norm);
            ck_assert_double_eq_tol(r.lr, rate(&odd, step), 1e-12);
            ck_assert_msg(clip == 0 || (clip < 1 ? norm > 1.1 * clip : norm < clip), "%s: norm %g",
                          cases[k].name, norm);
            for (int m = 0; m < MODULES; m++)
                check_step(cases[k].name, m, clip > 0 && norm > clip ? clip / norm : 1, step,
                           &h[m]);
        }
        for (int m = 0; m < MODULES; m++)
            moments_free(&h[m]);
        ef_free(&f);
    }
}
END_TEST

/* ---- what a job says ---- */

static const char job_text[] =
    "model: {name: small, modules: {llm: {kind: llm, layers: 1, hidden: 32, ffn: 48, heads: 2, "
    "vocab: 264}}}\n"
    "cluster: local\n"
    "samples: text\n"
    "train: {global_batch: 4, microbatch: 2, seq_len: 48}\n"
    "search: {allow_analytical: true}\n"
    "run: {lr: 0.011, min_lr: 0.004, warmup_steps: 7, decay: constant, steps: 19, beta1: 0.71, "
    "beta2: 0.83, eps: 3e-3, weight_decay: 0.37, clip: 0.6, text_weight: 0.7, image_weight: 2.5, "
    "dropout: 0.13, seed: 23, threads: 3, transport: ipc}\n";

START_TEST(the_executor_gets_what_the_job_says)
{
    struct dt_error err;
    struct dt_job *job;
    struct dt_setup s = {.dtype = DT_BF16};
    struct dt_exec_options o;

    dt_assert_ok(dt_job_parse("job", job_text, strlen(job_text), NULL, 0, false, &err, &job), err);
    s.job = job;
    dt_setup_exec_options(&s, &o);
    ck_assert_double_eq(o.optimizer.lr, 0.011);
    ck_assert_double_eq(o.optimizer.min_lr, 0.004);
    ck_assert_int_eq(o.optimizer.warmup_steps, 7);
    ck_assert_int_eq(o.optimizer.decay, DT_LR_CONSTANT);
    ck_assert_int_eq(o.optimizer.steps, 19);
    ck_assert_double_eq(o.optimizer.beta1, 0.71);
    ck_assert_double_eq(o.optimizer.beta2, 0.83);
    ck_assert_double_eq(o.optimizer.eps, 3e-3);
    ck_assert_double_eq(o.optimizer.weight_decay, 0.37);
    ck_assert_double_eq(o.optimizer.clip, 0.6);
    ck_assert_double_eq(o.text_weight, 0.7);
    ck_assert_double_eq(o.image_weight, 2.5);
    ck_assert_double_eq(o.dropout, 0.13);
    ck_assert_uint_eq(o.seed, 23);
    ck_assert_int_eq(o.host_threads, 3);
    ck_assert_int_eq(o.over, DT_TRANSPORT_OVER_IPC);
    ck_assert_int_eq(o.dtype, DT_BF16);
    ck_assert_ptr_eq(o.model, job->model);
    ck_assert_ptr_eq(o.plan, &s.plan);
    ck_assert_ptr_eq(o.diffusion, &s.diffusion);
    dt_job_free(job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("optimizer");
    TCase *tc = dt_test_case(suite, "adamw", 60);

    tcase_add_test(tc, steps_are_those_of_the_formula);
    tcase_add_test(tc, the_executor_gets_what_the_job_says);
    return dt_test_run(suite);
}
