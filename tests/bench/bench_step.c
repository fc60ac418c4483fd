/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Whole training steps (forward, backward, clipping, AdamW) as `disttrain train` makes them: a
 * program walked by the executor.  Each is held against the time of the step's own products run
 * alone through oneDNN, measured in turns with the steps, so that a busy machine slows both. */
#include "core/job/job.h"
#include "core/cost/memory.h"
#include "base/quantile.h"
#include "base/rng.h"
#include "core/schedule/schedule.h"
#include "base/clock.h"
#include "exec/program/execute.h"
#include "gemm.h"
#include "../plan_modes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS_MAX = 9, SEQS_MAX = 32 };

struct step_case {
    const char *name, *unit;
    const char *model;     /* YAML */
    int batch, microbatch; /* sequences */
    int seq_len;
    int side;      /* of every sequence's image, pixels; 0 = text only */
    uint32_t item; /* DT_ITEM_ENCODE or DT_ITEM_GENERATE */
    int patch;     /* encoder's: an image takes (side / patch)^2 tokens */
    int images;    /* per sequence */
    int rounds;
    double target_f32, target_bf16; /* of the bound */
    double memory_target;           /* bytes; 0 = none */
};

static const struct step_case cases[] = {
    {.name = "gpt2_124m",
     .unit = "tokens/s",
     .model = "{name: gpt2, modules: {llm: {kind: llm, layers: 12, hidden: 768, ffn: 3072, heads: "
              "12, vocab: 50257, positions: 1024, norm: layernorm, gated: false, bias: true, tied: "
              "true}}}",
     .batch = 4,
     .microbatch = 1,
     .seq_len = 1024,
     .rounds = 3,
     .target_f32 = 0.75,
     .target_bf16 = 0.60,
     .memory_target = 4e9},
    /* ViT-S/16 at 224 pixels; the LLM behind it, which every model has, is next to nothing */
    {.name = "vit_s16",
     .unit = "images/s",
     .model = "{name: vit, modules: {encoder: {kind: encoder, layers: 12, hidden: 384, ffn: 1536, "
              "heads: 6, patch: 16, positions: 197}, llm: {kind: llm, layers: 1, hidden: 64, ffn: "
              "128, heads: 1, vocab: 264}}}",
     .batch = 8,
     .microbatch = 8,
     .seq_len = 224,
     .side = 224,
     .item = DT_ITEM_ENCODE,
     .patch = 16,
     .images = 1,
     .rounds = 3,
     .target_f32 = 0.5,
     .target_bf16 = 0.5},
    /* Stable Diffusion's U-Net at a quarter of its widths, latents of 32 x 32 */
    {.name = "unet_small",
     .unit = "images/s",
     .model = "{name: unet, modules: {llm: {kind: llm, layers: 1, hidden: 64, ffn: 128, heads: 1, "
              "vocab: 264}, generator: {kind: unet, channels: [96, 192, 384, 384], attention: "
              "[true, true, true, false], head_dim: 32, res_blocks: 2, in_channels: 4, "
              "out_channels: 4, context_dim: 256, context_len: 16, latent_scale: 8}}}",
     .batch = 4,
     .microbatch = 4,
     .seq_len = 32,
     .side = 256,
     .item = DT_ITEM_GENERATE,
     .images = 1,
     .rounds = 3,
     .target_f32 = 0.5,
     .target_bf16 = 0.5},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

static void must(enum dt_status st, const struct dt_error *err)
{
    if (st == DT_OK)
        return;
    fprintf(stderr, "bench_step: %s\n", err->message);
    exit(EXIT_FAILURE);
}

static void *room(size_t n, size_t size)
{
    void *p = dt_calloc(n, size);

    if (!p)
        must(DT_ERR_NOMEM, &(struct dt_error){.message = "out of memory"});
    return p;
}

/* ---- a global batch ---- */

static void add_image(const struct step_case *c, struct dt_sequence *s, struct dt_rng *r)
{
    struct dt_sequence_item *it = &s->items[s->n_items++];
    size_t n = (size_t)c->side * (size_t)c->side * 3;

    *it = (struct dt_sequence_item){.w = c->side, .h = c->side, .flags = c->item};
    it->px = room(n, 1);
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)it->px)[i] = (uint8_t)dt_rng_below(r, 256);
    if (c->item != DT_ITEM_ENCODE)
        return;
    it->first = (uint32_t)s->n_tokens;
    it->n = (uint32_t)(c->side / c->patch * (c->side / c->patch));
    for (uint32_t i = 0; i < it->n; i++, s->n_tokens++)
        s->labels[s->n_tokens] = -1;
}

/* One document: the images, then random tokens up to seq_len. */
static struct dt_sequence *sequence(const struct step_case *c, int index, int vocab)
{
    struct dt_sequence *s = room(1, sizeof(*s));
    size_t len = (size_t)c->seq_len;
    struct dt_rng r;
    int text;

    dt_rng_init(&r, 1, (uint64_t)index);
    s->index = index;
    s->seq_len = c->seq_len;
    s->ids = room(3 * len, sizeof(int32_t)); /* one block, as the loader's */
    s->labels = s->ids + len;
    s->doc_of = s->ids + 2 * len;
    s->docs = room(1, sizeof(*s->docs));
    s->items = room((size_t)c->images + 1, sizeof(*s->items));
    for (int i = 0; i < c->images; i++)
        add_image(c, s, &r);
    text = s->n_tokens;
    for (; s->n_tokens < c->seq_len; s->n_tokens++)
        s->ids[s->n_tokens] = (int32_t)dt_rng_below(&r, (uint64_t)vocab);
    for (int i = text; i < c->seq_len; i++)
        s->labels[i] = i + 1 < c->seq_len ? s->ids[i + 1] : -1;
    s->docs[0] = (struct dt_sequence_doc){.task = c->item == DT_ITEM_ENCODE     ? DT_TASK_CAPTION
                                                  : c->item == DT_ITEM_GENERATE ? DT_TASK_GENERATE
                                                                                : DT_TASK_TEXT,
                                          .n = (uint32_t)s->n_tokens};
    s->n_docs = 1;
    s->text_tokens = c->seq_len - text;
    return s;
}

/* ---- one case ---- */

struct bench {
    const struct step_case *c;
    struct dt_device *cpu;
    struct dt_device dev; /* it, recording */
    enum dt_dtype type;
    struct dt_doc *doc;
    struct dt_model *model;
    struct dt_cluster cluster;
    struct dt_plan plan;
    struct dt_diffusion diffusion;
    struct dt_sequence *seqs[SEQS_MAX];
    struct dt_assignment *assignment;
    struct dt_program *program;
    struct dt_timeline timeline;
    struct dt_exec *x;
    struct dt_error err;
};

static void open_model(struct bench *b)
{
    const char *text = b->c->model;

    must(dt_doc_parse("model", text, strlen(text), &b->err, &b->doc), &b->err);
    must(dt_model_read(dt_doc_root(b->doc), &b->err, &b->model), &b->err);
    b->cluster = (struct dt_cluster){.nodes = 1, .gpus_per_node = 1, .mem_bytes = 1e12};
    snprintf(b->cluster.name, sizeof(b->cluster.name), "here");
}

static void open_program(struct bench *b)
{
    const struct step_case *c = b->c;
    struct dt_plan_policy y = {.global_batch = c->batch,
                               .microbatch = c->microbatch,
                               .seq_len = c->seq_len,
                               .schedule = DT_SCHED_1F1B,
                               .fp32 = b->type == DT_F32};
    const struct dt_sequence *seqs[SEQS_MAX];
    struct dt_samples *samples;

    for (int i = 0; i < c->batch; i++)
        seqs[i] = b->seqs[i] = sequence(c, i, b->model->modules[b->model->llm].blocks[0].vocab);
    dt_plan_init(&b->plan, b->model, &y);
    fx_modes(&b->plan, DT_RECOMPUTE_NONE, 1);
    b->plan.colocated = true;
    must(dt_plan_place(&b->plan, &b->cluster, &b->err), &b->err);
    must(dt_plan_validate(&b->plan, b->model, &b->cluster, &b->err), &b->err);
    must(dt_batching_samples(seqs, c->batch, &b->err, &samples), &b->err);
    must(dt_assign(&b->plan, b->model, NULL, samples, 0, &b->err, &b->assignment), &b->err);
    must(dt_sched_compile(&b->plan, b->model, &b->cluster, b->assignment, NULL, &b->err,
                          &b->program),
         &b->err);
    dt_samples_free(samples);
}

static void open_executor(struct bench *b)
{
    struct dt_exec_options o = {.device = &b->dev,
                                .model = b->model,
                                .plan = &b->plan,
                                .dtype = b->type,
                                .diffusion = &b->diffusion,
                                .text_weight = 1,
                                .image_weight = 1,
                                .seed = 1};

    must(dt_diffusion_init(&b->diffusion, DT_NOISE_COSINE, 1000, &b->err), &b->err);
    dt_optimizer_defaults(&o.optimizer);
    must(dt_exec_new(&o, &b->err, &b->x), &b->err);
}

static struct gemm_time one_step(struct bench *b, int64_t step)
{
    const struct dt_sequence *seqs[SEQS_MAX];
    struct dt_exec_input in = {.seqs = seqs, .n = b->c->batch, .step = step};
    struct dt_exec_result r;
    struct gemm_time t = gemm_now(), end;

    for (int i = 0; i < b->c->batch; i++)
        seqs[i] = b->seqs[i];
    must(dt_exec_run(b->x, b->program, &in, &b->err, &b->timeline, &r), &b->err);
    if (!(r.loss > 0 && r.loss < 100))
        must(DT_ERR_INTERNAL, &(struct dt_error){.message = "the loss is no number"});
    end = gemm_now();
    return (struct gemm_time){end.wall - t.wall, end.cpu - t.cpu};
}

/* What the memory model says of the same plan on one CPU. */
static double estimate_bytes(const struct bench *b)
{
    double sum = 0, scratch = 0;

    for (int m = 0; m < b->model->n_modules; m++) {
        const struct dt_assignment_module *a = &b->assignment->m[m];
        struct dt_work most = {0};
        struct dt_memory mem;

        for (uint32_t i = 0; i < a->mb_first[1]; i++)
            if (a->work[i].tokens > most.tokens)
                most = a->work[i];
        dt_memory_stage_on(DT_MEMORY_CPU, &b->plan, b->model, &b->cluster, m, 0, &most,
                           a->mb_first[1], &mem);
        sum += mem.total - mem.logits_workspace;
        scratch = mem.logits_workspace > scratch ? mem.logits_workspace : scratch;
    }
    return sum + scratch;
}

/* All products of the recorded step.  BENCH_STEP_SHAPES=1 prints each. */
static struct gemm_time bound_seconds(struct gemm *g, const struct rec *r, double *flops)
{
    struct gemm_time s = {0, 0};

    *flops = 0;
    for (int i = 0; i < r->n; i++) {
        const struct rec_product *p = &r->product[i];
        struct gemm_time one = gemm_seconds(g, p);
        double n = (double)p->count;

        s.wall += n * one.wall;
        s.cpu += n * one.cpu;
        *flops += n * gemm_flops(p);
        if (getenv("BENCH_STEP_SHAPES"))
            printf("# %d m %lld n %lld k %lld conv %dx%d %dx%d %d to %d: %lld times %.3f ms %.0f "
                   "GFLOP/s, %.0f of a core\n",
                   p->kind, (long long)p->m, (long long)p->n, (long long)p->k, (int)p->conv.h,
                   (int)p->conv.w, p->conv.kernel, p->conv.kernel, p->conv.c_in, p->conv.c_out,
                   (long long)p->count, one.wall * 1e3, gemm_flops(p) / one.wall * 1e-9,
                   gemm_flops(p) / one.cpu * 1e-9);
    }
    return s;
}

static void report_memory(const struct bench *b, const char *type)
{
    int64_t now, max;
    struct rusage u;

    dt_exec_memory(b->x, &now, &max);
    getrusage(RUSAGE_SELF, &u);
    printf("bench: step_%s_%s_memory %.3f GB ratio %.2f of the_memory_models_estimate\n",
           b->c->name, type, (double)max * 1e-9, (double)max / estimate_bytes(b));
    if (b->c->memory_target > 0)
        printf("bench: step_%s_%s_process %.3f GB ratio %.2f of target\n", b->c->name, type,
               (double)u.ru_maxrss * 1024e-9, (double)u.ru_maxrss * 1024 / b->c->memory_target);
}

struct rounds {
    double wall[ROUNDS_MAX], cpu[ROUNDS_MAX], bound[ROUNDS_MAX], ratio[ROUNDS_MAX],
        ratio_cpu[ROUNDS_MAX];
    double class[REC_CLASSES][ROUNDS_MAX];
};

static void report(const struct bench *b, struct rounds *r, double flops)
{
    const struct step_case *c = b->c;
    const char *type = b->type == DT_BF16 ? "bf16" : "f32";
    double per_step = (double)c->batch * (c->images > 0 ? c->images : c->seq_len);
    double target = b->type == DT_BF16 ? c->target_bf16 : c->target_f32;
    double wall = dt_median(r->wall, (size_t)c->rounds),
           bound = dt_median(r->bound, (size_t)c->rounds);

    printf("bench: step_%s_%s %.1f %s ratio %.2f of products_alone\n", c->name, type,
           per_step / wall, c->unit, dt_median(r->ratio, (size_t)c->rounds));
    /* as fast as whole cores would be: what other programs took from them does not count */
    printf("bench: step_%s_%s_by_cpu_time %.1f %s ratio %.2f of products_alone\n", c->name, type,
           per_step * b->dev.info.threads / dt_median(r->cpu, (size_t)c->rounds), c->unit,
           dt_median(r->ratio_cpu, (size_t)c->rounds));
    printf("bench: step_%s_%s_against_target %.2f of_products_alone ratio %.2f of target_%.2f\n",
           c->name, type, dt_median(r->ratio_cpu, (size_t)c->rounds),
           dt_median(r->ratio_cpu, (size_t)c->rounds) / target, target);
    printf("bench: step_%s_%s_products_alone %.1f %s\n", c->name, type, per_step / bound, c->unit);
    printf("bench: step_%s_%s_products_alone_rate %.1f GFLOP/s\n", c->name, type,
           flops / bound * 1e-9);
    for (int k = 0; k < REC_CLASSES; k++)
        if (dt_median(r->class[k], (size_t)c -> rounds) > 0)
            printf("bench: step_%s_%s_in_%s %.3f of_step\n", c->name, type, rec_class_names[k],
                   dt_median(r->class[k], (size_t)c -> rounds));
}

static void measure(struct bench *b)
{
    struct rounds r;
    double flops = 0;
    struct gemm *g;

    one_step(b, 1); /* packs, allocates */
    report_memory(b, b->type == DT_BF16 ? "bf16" : "f32");
    g = gemm_open(b->dev.info.threads);
    for (int i = 0; i < b->c->rounds; i++) {
        struct gemm_time step, bound;

        rec_reset();
        step = one_step(b, i + 2);
        bound = bound_seconds(g, rec_state(), &flops);
        r.wall[i] = step.wall;
        r.cpu[i] = step.cpu;
        r.bound[i] = bound.wall;
        r.ratio[i] = bound.wall / step.wall;
        r.ratio_cpu[i] = bound.cpu / step.cpu;
        for (int k = 0; k < REC_CLASSES; k++)
            r.class[k][i] = rec_state()->seconds[k] / step.wall;
    }
    gemm_close(g);
    report(b, &r, flops);
}

static void close_all(struct bench *b)
{
    dt_exec_free(b->x);
    dt_timeline_free(&b->timeline);
    dt_program_free(b->program);
    dt_assign_free(b->assignment);
    for (int i = 0; i < b->c->batch; i++)
        dt_sequence_free(b->seqs[i]);
    dt_diffusion_free(&b->diffusion);
    dt_model_free(b->model);
    dt_doc_free(b->doc);
    b->cpu->close(b->cpu);
}

static void run_case(const struct step_case *c, enum dt_dtype type)
{
    struct dt_device_options o = {.no_bf16 = type == DT_F32};
    struct bench b = {.c = c, .type = type};

    must(dt_device_open_cpu(&o, &b.err, &b.cpu), &b.err);
    if (type == DT_BF16 && b.cpu->info.fast != DT_BF16) {
        printf("# %s in bf16: no instructions for it here\n", c->name);
        b.cpu->close(b.cpu);
        return;
    }
    rec_device(b.cpu, &b.dev);
    open_model(&b);
    open_program(&b);
    open_executor(&b);
    measure(&b);
    close_all(&b);
}

/* A process of its own, so that its peak memory is its own; its threads sleep while they wait, so
 * that CPU time is work. */
static void in_process(char *program, const struct step_case *c, enum dt_dtype type)
{
    char name[64], *const argv[] = {program, "-1", name, type == DT_BF16 ? "bf16" : "f32", NULL};
    pid_t pid;
    int st;

    snprintf(name, sizeof(name), "%s", c->name);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        setenv("OMP_WAIT_POLICY", "passive", 0);
        execv("/proc/self/exe", argv);
        _exit(EXIT_FAILURE);
    }
    if (pid < 0 || waitpid(pid, &st, 0) != pid || st != 0) {
        fprintf(stderr, "bench_step: %s failed\n", c->name);
        exit(EXIT_FAILURE);
    }
}

static bool among(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return true;
    return false;
}

/* Arguments: names of cases, and "f32" or "bf16"; all without. */
int main(int argc, char **argv)
{
    static const char *const types[] = {"f32", "bf16"};
    bool any_case = false, any_type = among(argc, argv, "f32") || among(argc, argv, "bf16");

    for (int k = 0; k < CASES; k++)
        any_case |= among(argc, argv, cases[k].name);
    for (int k = 0; k < CASES; k++)
        for (int t = DT_BF16; t >= DT_F32; t--) {
            if ((any_case && !among(argc, argv, cases[k].name)) ||
                (any_type && !among(argc, argv, types[t])))
                continue;
            if (among(argc, argv, "-1"))
                run_case(&cases[k], (enum dt_dtype)t);
            else
                in_process(argv[0], &cases[k], (enum dt_dtype)t);
        }
    return EXIT_SUCCESS;
}
