/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Two figures of DistTrain (SIGCOMM'25) of which no number is published: how unlike the modules are, and how unlike the samples. */
#include "cli/reproduce.h"

#include "base/mem.h"
#include "base/quantile.h"

#include <math.h>
#include <string.h>

static enum dt_status add(struct dt_cli_results *r, char section, const char *what,
                          const char *unit, double ours, const char *detail, struct dt_error *err)
{
    struct dt_cli_result_row row = {.section = section, .unit = unit, .ours = ours};

    snprintf(row.what, sizeof row.what, "%s", what);
    snprintf(row.detail, sizeof row.detail, "%s", detail);
    return dt_cli_results_add(r, &row, err);
}

/* ---- (g) modules ---- */

/* The work of one sequence of 8,192 tokens with so many square images, all of them also generated. */
static void work_of(const struct dt_module *m, int images, int side, struct dt_work *w)
{
    int pixels = m->role == DT_ROLE_ENCODER ? m->patch : m->latent_scale;
    int64_t each = m->role == DT_ROLE_LLM ? 8192 : (int64_t)(side / pixels) * (side / pixels);

    *w = (struct dt_work){.n = m->role == DT_ROLE_LLM ? 1 : images};
    w->tokens = w->n * each;
    w->tokens_sq = w->n * each * each;
    w->tokens_max = each;
}

static double module_ms(const struct dt_session *s, int module, int tp, int images, int side)
{
    const struct dt_module *m = &s->job->model->modules[module];
    struct dt_block_shard shard = {.tp = tp,
                                   .cp = 1,
                                   .ep = 1,
                                   .ip = 1,
                                   .seqpar = tp > 1,
                                   .recompute = s->job->recompute[module]};
    struct dt_cost_stage c;
    struct dt_work w;

    work_of(m, images, side, &w);
    dt_cost_stage(s->cost, module, 0, m->n_blocks, &shard, &w, NULL, true, &c);
    return 1e-6 * (c.fwd.ns + c.dgrad.ns + c.wgrad.ns);
}

/* As the recalled baseline has them: TP 8, ten stages of the LLM, one of each other module. */
enum { WIDE = 8, STAGES = 10 };

static enum dt_status bars(struct dt_cli_results *r, const struct dt_session *s, int images,
                           int side, struct dt_error *err)
{
    const struct dt_model *model = s->job->model;
    const struct dt_plan *p = &s->search.plans[0];
    int dp_lm = p->modules[model->llm].layout.dp;

    for (int m = 0; m < model->n_modules; m++) {
        const struct dt_plan_layout *l = &p->modules[m].layout;
        char what[96], detail[160];
        double all = module_ms(s, m, WIDE, images, side);

        snprintf(what, sizeof what, "MLLM-72B %d images of %d² %s stage, monolithic", images, side,
                 model->modules[m].name);
        snprintf(detail, sizeof detail, "forward and backward of a sequence, TP %d, %d stage%s",
                 WIDE, m == model->llm ? STAGES : 1, m == model->llm ? "s" : "");
        DT_TRY(add(r, 'g', what, "ms", m == model->llm ? all / STAGES : all, detail, err));
        snprintf(what, sizeof what, "MLLM-72B %d images of %d² %s stage, planned", images, side,
                 model->modules[m].name);
        snprintf(detail, sizeof detail, "of a slot of %d sequences, tp %d pp %d dp %d", dp_lm,
                 l->tp, l->pp, l->dp);
        DT_TRY(add(r, 'g', what, "ms",
                   module_ms(s, m, l->tp, images, side) * dp_lm / ((double)l->dp * l->pp), detail,
                   err));
    }
    return DT_OK;
}

enum dt_status dt_cmd_reproduce_modules(struct dt_cli_results *r, struct dt_error *err)
{
    static const char *const own[] = {"search.placement=own", "train.schedule=1f1b",
                                      "train.microbatch=1", "train.recompute=selective",
                                      "train.zero=1"};
    struct dt_session s;
    enum dt_status st;

    DT_TRY(dt_session_open("mllm-72b-1296", NULL, own, 5, err, &s));
    st = dt_session_plan(&s, err);
    if (st == DT_OK)
        st = bars(r, &s, 8, 512, err);
    if (st == DT_OK)
        st = bars(r, &s, 16, 1024, err);
    dt_session_close(&s);
    return st;
}

/* ---- (n) samples ---- */

static enum dt_status quantiles(struct dt_cli_results *r, const char *what, const char *unit,
                                double *v, size_t n, struct dt_error *err)
{
    double sum = 0, squares = 0, mean;
    char detail[160];

    if (n == 0)
        return DT_OK;
    dt_sort_numbers(v, n);
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (v[i] - mean) * (v[i] - mean);
    snprintf(detail, sizeof detail,
             "mean of %zu; 1 %% %.0f, 10 %% %.0f, median %.0f, 90 %% %.0f, 99 %% %.0f; standard "
             "deviation %.1f %% of the mean",
             n, dt_quantile(v, sizeof *v, n, 0.01), dt_quantile(v, sizeof *v, n, 0.1),
             dt_quantile(v, sizeof *v, n, 0.5), dt_quantile(v, sizeof *v, n, 0.9),
             dt_quantile(v, sizeof *v, n, 0.99),
             mean > 0 ? 100 * sqrt(squares / (double)n) / mean : 0);
    return add(r, 'n', what, unit, mean, detail, err);
}

/* FLOPs of the forward of a sample in a module. */
static double load(const struct dt_samples *s, int64_t i, const struct dt_module *m)
{
    struct dt_work w;
    double sum = 0;

    dt_sample_work(s, i, m, &w);
    for (int b = 0; b < m->n_blocks; b++)
        sum += dt_block_flops(&m->blocks[b], &w);
    return 1e-12 * sum;
}

static enum dt_status distributions(struct dt_cli_results *r, const struct dt_session *s,
                                    const char *name, double *v, struct dt_error *err)
{
    const struct dt_samples *x = s->job->samples;
    const struct dt_model *model = s->job->model;
    char what[96];
    size_t n = 0;

    for (uint64_t k = 0; k < x->item_first[x->n]; k++)
        v[n++] = ceil(x->items[k].w / 16.0) * ceil(x->items[k].h / 16.0);
    snprintf(what, sizeof what, "MLLM-9B %s, tokens of an image", name);
    DT_TRY(quantiles(r, what, "tokens", v, n, err));
    for (int64_t i = 0; i < x->n; i++)
        v[i] = (double)(x->item_first[i + 1] - x->item_first[i]);
    snprintf(what, sizeof what, "MLLM-9B %s, images of a sequence", name);
    DT_TRY(quantiles(r, what, "images", v, (size_t)x->n, err));
    for (int64_t i = 0; i < x->n; i++)
        v[i] = x->text_tokens[i];
    snprintf(what, sizeof what, "MLLM-9B %s, text tokens of a sequence", name);
    DT_TRY(quantiles(r, what, "tokens", v, (size_t)x->n, err));
    for (int m = 0; m < model->n_modules; m++) {
        for (int64_t i = 0; i < x->n; i++)
            v[i] = load(x, i, &model->modules[m]);
        snprintf(what, sizeof what, "MLLM-9B %s, %s forward of a sequence", name,
                 model->modules[m].name);
        DT_TRY(quantiles(r, what, "TFLOP", v, (size_t)x->n, err));
    }
    return DT_OK;
}

enum dt_status dt_cmd_reproduce_samples(struct dt_cli_results *r, struct dt_error *err)
{
    static const char *const sets[] = {"laion-8k", "interleaved-8k"};

    for (int i = 0; i < 2; i++) {
        char set[96];
        const char *o[] = {set};
        struct dt_session s;
        double *v;
        enum dt_status st;

        snprintf(set, sizeof set, "samples={preset: %s, count: 2048, seed: 1}", sets[i]);
        DT_TRY(dt_session_open("mllm-9b-96", NULL, o, 1, err, &s));
        v = dt_malloc((s.job->samples->item_first[s.job->samples->n] + (size_t)s.job->samples->n) *
                      sizeof *v);
        st = v ? distributions(r, &s, sets[i], v, err) : dt_error_nomem(err, "samples");
        dt_free(v);
        dt_session_close(&s);
        DT_TRY(st);
    }
    return DT_OK;
}
