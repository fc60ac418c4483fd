/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The evaluation of Entrain (Jang and Chowdhury 2026, arXiv 2605.27918, tables 2 to 11): how unequal microbatches are, iterations
 * beside the baselines, other divisions of a replica's GPUs, and how many samples make a division.
 *
 * Models, GPUs, batch and layouts are published; sizes of samples are not.  They are assumed, log-normal and independent, inside the
 * published range, and for SynthChartNet such that the mean load of the encoder is 1.27 of that of the 3B LLM, as published. */
#include "cli/reproduce.h"

#include "base/mem.h"
#include "core/orchestrate/orchestrate_sizing.h"
#include "core/schedule/assign_spread.h"

#include <math.h>
#include <string.h>

#define JOB "mllm-3b-entrain-64"
#define GIB 1073741824.0
enum { REPLICA_GPUS = 16, TP = 2, STAGES = REPLICA_GPUS / TP, SETS = 4, LLMS = 2, SPLITS = 5 };

/* Sides of images [px] and lengths of texts [tokens]: medians, and deviations of the logarithms. */
static const struct set {
    const char *name;
    double side, side_sigma, aspect_sigma, text, text_sigma;
} sets[SETS] = {{"SynthChartNet", 748.5, 0.23, 0, 180, 0.7}, /* as the job has it */
                {"ChartQA", 600, 0.15, 0.35, 40, 0.4},
                {"CocoQA", 450, 0.06, 0.3, 36, 0.2}, /* photographs of about 640 x 480 pixels */
                {"LLaVA-150k", 450, 0.06, 0.3, 250, 0.7}};
static const char *const llms[LLMS] = {"1b", "3b"};

/* ---- runs ---- */

enum system { ENTRAIN, AS_GIVEN, DIP, REORDERED, SYSTEMS };
static const char *const how[SYSTEMS][4] = {
    [ENTRAIN] = {"search.strategy=entrain", "search.dp=4", "train.warmup=eager"},
    /* Their DistTrain sizes modules by one sample and leaves microbatches as they are given. */
    [AS_GIVEN] = {"search.strategy=entrain", "search.dp=4", "search.profile_samples=1",
                  "train.assignment=slots"},
    /* All encoder work before the LLM's and behind it, both on all GPUs: how many samples are looked at changes nothing. */
    [DIP] = {"search.strategy=dip", "search.dp=4", "train.assignment=slots"},
    [REORDERED] = {"search.strategy=entrain", "search.dp=4", "search.profile_samples=1",
                   "train.assignment=slots"},
};

struct got {
    double iteration_s;
    int stages[2]; /* of the encoder and of the LLM */
    double ratio;  /* of their loads */
    struct dt_orch_sizing sizing;
    struct dt_assign_spreads spread; /* of ENTRAIN */
    int64_t b_min;                   /* of 16 GPUs */
    bool boundary;
};

enum { TEXT = 256, OVERRIDES = 12 };

/* What the set and the LLM change of the job; returns how many overrides these are. */
static int describe_set(const struct set *s, const char *llm, char text[][TEXT], const char **o)
{
    int n = 0;

    snprintf(text[n], TEXT, "model.modules.llm={preset: llama3-%s}", llm);
    o[n] = text[n], n++;
    snprintf(text[n], TEXT,
             "samples.distribution.image_side={kind: lognormal, mu: %.6g, sigma: %g}", log(s->side),
             s->side_sigma);
    o[n] = text[n], n++;
    snprintf(text[n], TEXT, "samples.distribution.aspect_sigma=%g", s->aspect_sigma);
    o[n] = text[n], n++;
    snprintf(text[n], TEXT,
             "samples.distribution.text_tokens={kind: lognormal, mu: %.6g, sigma: %g, min: 32, "
             "max: 1024}",
             log(s->text), s->text_sigma);
    o[n] = text[n], n++;
    return n;
}

/* b_min of 16 GPUs one by one, whatever lanes are, and the ratio of all loads; as published, without what a plan recomputes
 * where memory is short. */
static enum dt_status find_b_min(const struct dt_session *s, struct dt_error *err, struct got *out)
{
    int64_t n = s->job->samples->n;
    struct dt_orch_loads in = {.n_modules = 2,
                               .n = n,
                               .confidence = s->job->search.confidence,
                               .p_error = s->job->search.p_error,
                               .seed = s->job->search.seed};
    struct dt_orch_sizing z;
    double *load = dt_malloc(2 * (size_t)n * sizeof(*load));
    struct dt_plan p = s->search.plans[0];
    enum dt_status st = DT_OK;

    if (!load)
        return dt_error_nomem(err, "loads of samples");
    for (int m = 0; m < p.n_modules; m++)
        p.modules[m].recompute = DT_RECOMPUTE_NONE;
    st = dt_orch_sample_loads(&p, s->job->model, s->cost, s->job->samples, n, err, load);
    if (st == DT_OK) {
        in.load = load;
        dt_orch_size(&in, REPLICA_GPUS, &z);
        out->b_min = z.samples;
        out->boundary = z.boundary;
        out->ratio = z.share[0] / z.share[1];
    }
    dt_free(load);
    return st;
}

static enum dt_status look(struct dt_session *s, bool entrain, struct dt_error *err,
                           struct got *out)
{
    const struct dt_plan *p = &s->search.plans[0];
    struct dt_sim_result sim;

    DT_TRY(dt_session_simulate(s, "entrain", err, &sim));
    out->iteration_s = sim.report.iteration_s;
    dt_sim_result_free(&sim);
    for (int m = 0; m < 2; m++)
        out->stages[m] = p->modules[m].layout.pp;
    out->sizing = s->search.sizing;
    if (!entrain)
        return DT_OK;
    DT_TRY(dt_assign_spread(p, s->job->model, s->cost, s->job->samples, 0, err, &out->spread));
    return find_b_min(s, err, out);
}

static enum dt_status run(const char *const *o, int n, bool entrain, struct dt_error *err,
                          struct got *out)
{
    struct dt_session s;
    enum dt_status st;

    *out = (struct got){0};
    DT_TRY(dt_session_open(JOB, NULL, o, n, err, &s));
    st = dt_session_plan(&s, err);
    if (st == DT_OK)
        st = look(&s, entrain, err, out);
    dt_session_close(&s);
    return st;
}

static enum dt_status run_system(const struct set *set, const char *llm, enum system system,
                                 struct dt_error *err, struct got *out)
{
    char text[4][TEXT];
    const char *o[OVERRIDES];
    int n = describe_set(set, llm, text, o);

    for (int k = 0; k < 4 && how[system][k]; k++)
        o[n++] = how[system][k];
    if (system != ENTRAIN)
        o[n++] = system == REORDERED ? "train.reorder=both" : "train.reorder=none";
    return run(o, n, system == ENTRAIN, err, out);
}

/* ---- rows ---- */

static const struct dt_cli_range none = {0, 0};

static enum dt_status add(struct dt_cli_results *r, const char *what, const char *unit,
                          double published, struct dt_cli_range accept, double ours,
                          const char *because, const char *detail, struct dt_error *err)
{
    struct dt_cli_result_row row = {.section = 'i',
                                    .unit = unit,
                                    .published = {published, published},
                                    .accept = accept,
                                    .because = because,
                                    .judged = accept.hi > 0,
                                    .ours = ours};

    snprintf(row.what, sizeof row.what, "%s", what);
    snprintf(row.detail, sizeof row.detail, "%s", detail);
    return dt_cli_results_add(r, &row, err);
}

#define FEW_SIZES                                                                                  \
    "photographs come in few sizes, which whole samples cannot even out; the drawn ones differ "   \
    "all"
#define WHOLE_SAMPLES "only whole samples can be deferred, and a microbatch has few"

/* Deviation of microbatches' times inside replicas, as given over with Entrain.  Published: table 3 (DistTrain / Entrain); replicas
 * were run one after the other there. */
static const struct {
    int set, llm; /* llm -1: the encoder */
    double published;
    struct dt_cli_range accept;
    const char *because;
} variability[] = {
    {0, -1, 10.6, {5, 1000}, WHOLE_SAMPLES},
    {1, -1, 4.03, {0, 0}, NULL},
    {2, -1, 1.03, {0, 0}, NULL},
    {3, -1, 2.22, {0, 0}, NULL},
    {0, 0, 4.1, {2.5, 1000}, WHOLE_SAMPLES},
    {0, 1, 4.1, {2.5, 1000}, WHOLE_SAMPLES},
    {1, 1, 1.38, {0, 0}, NULL},
    {2, 1, 0.97, {0.8, 1.5}, FEW_SIZES},
    {3, 1, 1.04, {0.8, 1.5}, FEW_SIZES},
};

static enum dt_status variability_rows(struct dt_cli_results *r, struct got got[SETS][LLMS],
                                       struct dt_error *err)
{
    for (size_t i = 0; i < sizeof variability / sizeof variability[0]; i++) {
        bool encoder = variability[i].llm < 0;
        const struct got *g = &got[variability[i].set][encoder ? 1 : variability[i].llm];
        const struct dt_assign_spread *of = g->spread.of[encoder ? 0 : 1];
        const struct dt_assign_spread *given = &of[DT_ASSIGN_SPREAD_GIVEN];
        const struct dt_assign_spread *now = &of[DT_ASSIGN_SPREAD_RUN];
        char what[96], detail[160];

        snprintf(what, sizeof what, "Entrain %s %s, std as given / Entrain",
                 sets[variability[i].set].name, encoder ? "vision" : llms[variability[i].llm]);
        snprintf(detail, sizeof detail,
                 "%.0f -> %.0f ms, cv %.3f -> %.3f, max/mean %.2f -> %.2f, pooled %.2f x; K_eff "
                 "%lld to %lld of %d, %lld deferred",
                 1e3 * given->within_std_s, 1e3 * now->within_std_s, given->within_cv,
                 now->within_cv, given->max_over_mean, now->max_over_mean,
                 given->std_s / now->std_s, (long long)g->spread.fewest, (long long)g->spread.most,
                 g->spread.slots, (long long)g->spread.deferred);
        DT_TRY(add(r, what, "x", variability[i].published, variability[i].accept,
                   given->within_std_s / now->within_std_s, variability[i].because, detail, err));
    }
    return DT_OK;
}

/* ---- beside the baselines ---- */

static const char *const beside[SYSTEMS] = {[AS_GIVEN] = "sized by one sample, as given",
                                            [DIP] = "DIP, in phases",
                                            [REORDERED] = "the same with our reordering"};

static enum dt_status speed_rows(struct dt_cli_results *r, struct got got[SETS][LLMS],
                                 enum system system, struct dt_error *err)
{
    static const char below[] =
        "with the 3B LLM memory for one large image has Entrain's encoder recompute everything; "
        "the plan in phases, planned for the first batch, does not hold it";
    double best = 0, worst = INFINITY;
    char what[96], detail[160];

    for (int i = 0; i < SETS; i++)
        for (int l = 0; l < LLMS; l++) {
            const struct got *e = &got[i][l];
            struct got b;

            DT_TRY(run_system(&sets[i], llms[l], system, err, &b));
            snprintf(what, sizeof what, "Entrain %s %s, samples/s / %s", sets[i].name, llms[l],
                     beside[system]);
            snprintf(detail, sizeof detail, "%.3f s with %d/%d stages, %.3f s with %d/%d",
                     e->iteration_s, e->stages[0], e->stages[1], b.iteration_s, b.stages[0],
                     b.stages[1]);
            DT_TRY(add(r, what, "x", 0, none, b.iteration_s / e->iteration_s, NULL, detail, err));
            best = fmax(best, b.iteration_s / e->iteration_s);
            worst = fmin(worst, b.iteration_s / e->iteration_s);
        }
    snprintf(what, sizeof what, "Entrain best of these, / %s", beside[system]);
    /* published: up to 1.40 */
    DT_TRY(add(r, what, "x", system == AS_GIVEN ? 1.4 : 0,
               system == REORDERED ? none : (struct dt_cli_range){1.2, 1.6}, best, below, "", err));
    snprintf(what, sizeof what, "Entrain worst of these, / %s", beside[system]);
    return add(r, what, "x", 0, system == REORDERED ? none : (struct dt_cli_range){0.98, 1000},
               worst, below, "", err);
}

/* ---- memory ---- */

struct peaks { /* of the fullest GPU, over global batches [bytes] */
    double most, least;
};

static enum dt_status find_peaks(struct dt_session *s, struct dt_error *err, struct peaks *out)
{
    int64_t batch = s->job->policy.global_batch;
    struct dt_search_input in;

    dt_session_search_input(s, &in);
    *out = (struct peaks){0, INFINITY};
    for (int64_t first = 0; first + batch <= s->job->samples->n; first += batch) {
        double seconds, bytes;

        DT_TRY(dt_orch_plan_timeline_s(&in, &s->search.plans[0], first, err, &seconds, &bytes));
        out->most = fmax(out->most, bytes);
        out->least = fmin(out->least, bytes);
    }
    return DT_OK;
}

static enum dt_status run_peaks(enum system system, struct dt_error *err, struct peaks *out)
{
    char text[4][TEXT];
    const char *o[OVERRIDES];
    int n = describe_set(&sets[0], "3b", text, o);
    struct dt_session s;
    enum dt_status st;

    for (int k = 0; k < 4 && how[system][k]; k++)
        o[n++] = how[system][k];
    o[n++] = "train.warmup=1f1b"; /* eager forwards take what there is */
    if (system != ENTRAIN)
        o[n++] = "train.reorder=none";
    o[n++] = "train.recompute=full"; /* alike, and with which all of them fit in every batch */
    DT_TRY(dt_session_open(JOB, NULL, o, n, err, &s));
    st = dt_session_plan(&s, err);
    if (st == DT_OK)
        st = find_peaks(&s, err, out);
    dt_session_close(&s);
    return st;
}

/* Published: Entrain's fullest GPU takes no more than DistTrain's, and DIP's more than both; Entrain's differs least from one
 * iteration to the next. */
static enum dt_status memory_rows(struct dt_cli_results *r, struct dt_error *err)
{
    static const char because[] = "a batch with a large image has fewer, larger microbatches, and "
                                  "logits of more tokens at a time";
    struct dt_cli_range at_least = {1, 1000};
    struct peaks of[REORDERED];
    char detail[160];
    double spread[REORDERED];

    for (int k = 0; k < REORDERED; k++) {
        DT_TRY(run_peaks((enum system)k, err, &of[k]));
        spread[k] = of[k].most - of[k].least;
    }
    snprintf(detail, sizeof detail, "%.2f GiB; sized by one sample %.2f GiB",
             of[ENTRAIN].most / GIB, of[AS_GIVEN].most / GIB);
    DT_TRY(add(r, "Entrain SynthChartNet 3b, fullest GPU, sized by one sample / Entrain", "x", 0,
               at_least, of[AS_GIVEN].most / of[ENTRAIN].most, because, detail, err));
    snprintf(detail, sizeof detail, "DIP %.2f GiB", of[DIP].most / GIB);
    DT_TRY(add(r, "Entrain SynthChartNet 3b, fullest GPU, DIP / sized by one sample", "x", 0,
               at_least, of[DIP].most / of[AS_GIVEN].most, NULL, detail, err));
    snprintf(detail, sizeof detail,
             "most less least of 8 batches: %.2f; one sample %.2f, DIP %.2f GiB",
             spread[ENTRAIN] / GIB, spread[AS_GIVEN] / GIB, spread[DIP] / GIB);
    return add(r, "Entrain SynthChartNet 3b, memory between iterations, baselines / Entrain", "x",
               0, at_least, fmin(spread[AS_GIVEN], spread[DIP]) / spread[ENTRAIN], because, detail,
               err);
}

/* ---- other divisions ---- */

/* Of a replica's eight stages: iterations over that of 4:4.  Published for SynthChartNet and the 3B LLM. */
static const struct {
    int encoder;
    double published;
} splits[SPLITS] = {{5, 1.26}, {4, 1}, {3, 1.07}, {2, 1.16}, {1, 1.85}};

static enum dt_status split_rows(struct dt_cli_results *r, struct dt_error *err)
{
    static const char because[] = "with the published mean ratio 1.27 the encoder's stages alone "
                                  "would take 1.33, 2 and 4 times as long as those of 4:4 at 3:5, "
                                  "2:6 and 1:7, and the LLM's 1.05 times at 5:3";
    double at[SPLITS];
    char what[96];
    int agree = 0;

    for (int i = 0; i < SPLITS; i++) {
        char text[4][TEXT], plan[TEXT];
        const char *o[OVERRIDES];
        int n = describe_set(&sets[0], "3b", text, o);
        struct got g;

        snprintf(plan, sizeof plan,
                 "plan={encoder: {tp: %d, pp: %d, dp: 4}, llm: {tp: %d, pp: %d, dp: 4}}", TP,
                 splits[i].encoder, TP, STAGES - splits[i].encoder);
        o[n++] = plan;
        o[n++] = "search.strategy=manual";
        o[n++] = "train.assignment=entrain";
        o[n++] = "train.recompute=full"; /* with which all of them fit */
        DT_TRY(run(o, n, false, err, &g));
        at[i] = g.iteration_s;
    }
    for (int i = 0; i < SPLITS; i++) {
        double x = at[i] / at[1];

        snprintf(what, sizeof what, "Entrain SynthChartNet 3b, %d:%d stages / 4:4",
                 splits[i].encoder, STAGES - splits[i].encoder);
        DT_TRY(add(r, what, "x", splits[i].published,
                   (struct dt_cli_range){0.85 * splits[i].published, 1.15 * splits[i].published}, x,
                   because, "", err));
        for (int k = 0; k < i; k++)
            agree += (at[k] < at[i]) == (splits[k].published < splits[i].published);
    }
    return add(r, "Entrain SynthChartNet 3b, pairs of these five in the published order", "of 10",
               10, (struct dt_cli_range){10, 10}, agree, because, "", err);
}

/* ---- sizing ---- */

static enum dt_status b_min_rows(struct dt_cli_results *r, struct got got[SETS][LLMS],
                                 struct dt_error *err)
{
    char what[96], detail[160];

    for (int i = 0; i < SETS; i++)
        for (int l = 0; l < LLMS; l++) {
            const struct got *g = &got[i][l];

            snprintf(what, sizeof what, "Entrain %s %s, b_min of 16 GPUs", sets[i].name, llms[l]);
            snprintf(detail, sizeof detail,
                     "mean ratio %.2f, %.2f to %.2f of 16 GPUs%s; in lanes of two: %lld%s, %d/%d "
                     "stages",
                     g->ratio, 16 * g->ratio / (1 + g->ratio), 16 / (1 + g->ratio),
                     g->boundary ? " (on a boundary)" : "", (long long)g->sizing.samples,
                     g->sizing.boundary ? " (on a boundary)" : "", g->stages[0], g->stages[1]);
            DT_TRY(add(r, what, "samples", 256, (struct dt_cli_range){0, 512}, (double)g->b_min,
                       "the mean lies so near a boundary between two divisions", detail, err));
        }
    return DT_OK;
}

/* Divisions of 256 samples whose mean ratio is what 10:6 and 8:8 were published for. */
static enum dt_status division_rows(struct dt_cli_results *r, struct dt_error *err)
{
    static const struct {
        double side, ratio;
        int encoder;
    } rows[] = {{929, 1.667, 5}, {748.5, 1.27, 4}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct set set = sets[0];
        char text[4][TEXT], what[96], detail[160];
        const char *o[OVERRIDES];
        struct got g;
        int n;

        set.side = rows[i].side;
        n = describe_set(&set, "3b", text, o);
        o[n++] = "search.strategy=entrain";
        o[n++] = "search.dp=4";
        o[n++] = "search.profile_samples=256";
        DT_TRY(run(o, n, true, err, &g));
        snprintf(what, sizeof what, "Entrain ratio %g, stages of the encoder by 256 samples",
                 rows[i].ratio);
        snprintf(detail, sizeof detail, "mean ratio of all samples %.3f, %d/%d stages", g.ratio,
                 g.stages[0], g.stages[1]);
        DT_TRY(add(r, what, "of 8", rows[i].encoder,
                   (struct dt_cli_range){rows[i].encoder, rows[i].encoder}, g.stages[0],
                   "these 256 samples lie on the other side of a boundary", detail, err));
    }
    return DT_OK;
}

enum dt_status dt_cmd_reproduce_entrain(struct dt_cli_results *r, struct dt_error *err)
{
    struct got got[SETS][LLMS];

    for (int i = 0; i < SETS; i++)
        for (int l = 0; l < LLMS; l++)
            DT_TRY(run_system(&sets[i], llms[l], ENTRAIN, err, &got[i][l]));
    DT_TRY(variability_rows(r, got, err));
    for (int k = AS_GIVEN; k < SYSTEMS; k++)
        DT_TRY(speed_rows(r, got, (enum system)k, err));
    DT_TRY(memory_rows(r, err));
    DT_TRY(split_rows(r, err));
    DT_TRY(b_min_rows(r, got, err));
    return division_rows(r, err);
}
