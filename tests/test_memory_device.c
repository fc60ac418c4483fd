/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the executor keeps on a device that reads its weights as they lie and does not pack them, as a GPU does,
 * against the memory model's row for it.  The device is the CPU; before its memory is read, what it has packed is
 * given back. */
#include "memory_fixture.h"

#include "comm/transport.h"

#include <math.h>
#include <pthread.h>

#define WIDE OF_HEADS("4")
#define OF_HEADS(n)                                                                                \
    "encoder: {kind: encoder, layers: 2, hidden: 128, ffn: 384, heads: 4, patch: 4, positions: "   \
    "16},"                                                                                         \
    "llm: {kind: llm, layers: 4, hidden: 192, ffn: 512, heads: " n ", vocab: 261},"                \
    "generator: {kind: unet, channels: [32, 64], head_dim: 16, res_blocks: 1, in_channels: 1, "    \
    "out_channels: 1, context_dim: 64, context_len: 8, latent_scale: 1, resize: 8}"

/* Most of what a step needs besides its states is the projector's, which merges 2 x 2 patches. */
#define MERGED MERGING("")
#define MEANS MERGING(", merge_by: mean, projector: linear, projector_norm: rmsnorm")
#define WINDOWS MERGING(", window: 16, projector_norm: layernorm")
#define MERGING(more)                                                                              \
    "encoder: {kind: encoder, layers: 1, hidden: 64, ffn: 64, heads: 4, patch: 2, positions: 64,"  \
    " merge: 2" more "},"                                                                          \
    "llm: {kind: llm, layers: 1, hidden: 1024, ffn: 256, heads: 4, vocab: 261},"                   \
    "generator: {kind: unet, channels: [32, 64], head_dim: 16, res_blocks: 1, in_channels: 1, "    \
    "out_channels: 1, context_dim: 64, context_len: 8, latent_scale: 1, resize: 8}"

/* ---- the device ---- */

enum { WEIGHTS = 512 };

struct keeper {
    struct dt_device dev, *cpu;
    struct dt_device_weight *weight[WEIGHTS];
    int n;
    bool given_back;
};
static struct keeper keepers[2]; /* of a rank */

static enum dt_status weight_new(const struct dt_device *dev,
                                 const struct dt_device_weight_shape *shape, const float *master,
                                 const void *rounded, struct dt_error *err,
                                 struct dt_device_weight **out)
{
    struct keeper *k = (struct keeper *)(uintptr_t)dev; /* its first member */

    ck_assert_int_lt(k->n, WEIGHTS);
    ck_assert((rounded != NULL) == (shape->dtype == DT_BF16));
    DT_TRY(k->cpu->weight_new(dev, shape, master, rounded, err, out));
    k->weight[k->n++] = *out;
    return DT_OK;
}

static void weight_free(struct dt_device_weight *w)
{
    for (int r = 0; w && r < 2; r++)
        for (int i = 0; i < keepers[r].n; i++)
            if (keepers[r].weight[i] == w) {
                keepers[r].weight[i] = NULL;
                if (!keepers[r].given_back)
                    keepers[r].cpu->weight_free(w);
            }
}

static double measured(struct keeper *k)
{
    int64_t now, max;

    for (int i = 0; i < k->n; i++)
        if (k->weight[i])
            k->cpu->weight_free(k->weight[i]);
    k->given_back = true;
    k->dev.memory_used(&k->dev, &now, &max);
    return (double)now;
}

/* ---- the cases ---- */

struct memory_case {
    const char *name;
    enum dt_dtype dtype;
    enum dt_block_recompute recompute;
    int ranks, tp; /* replicas, which share the moments, or members of tensor parallelism */
    const char *model;
    bool offload;       /* of all modules */
    const char *frozen; /* of each: 'f' */
    int chunks;         /* of StepCCL; 0: none */
    bool large;         /* all sequences in one microbatch */
};
static const struct memory_case cases[] = {
    {"fp32", DT_F32, DT_RECOMPUTE_NONE, 1, 1, WIDE, false, NULL, 0, false},
    {"bf16", DT_BF16, DT_RECOMPUTE_NONE, 1, 1, WIDE, false, NULL, 0, false},
    {"bf16, full recompute", DT_BF16, DT_RECOMPUTE_FULL, 1, 1, WIDE, false, NULL, 0, false},
    {"bf16, two replicas with ZeRO-1", DT_BF16, DT_RECOMPUTE_NONE, 2, 1, WIDE, false, NULL, 0,
     false},
    {"bf16, merged patches", DT_BF16, DT_RECOMPUTE_NONE, 1, 1, MERGED, false, NULL, 0, false},
    {"bf16, merged patches, tp 2", DT_BF16, DT_RECOMPUTE_NONE, 2, 2, MERGED, false, NULL, 0, false},
    {"bf16, means of patches", DT_BF16, DT_RECOMPUTE_NONE, 1, 1, MEANS, false, NULL, 0, false},
    {"bf16, means of patches, tp 2", DT_BF16, DT_RECOMPUTE_NONE, 2, 2, MEANS, false, NULL, 0,
     false},
    {"bf16, windows", DT_BF16, DT_RECOMPUTE_NONE, 1, 1, WINDOWS, false, NULL, 0, false},
    {"bf16, windows, tp 2", DT_BF16, DT_RECOMPUTE_NONE, 2, 2, WINDOWS, false, NULL, 0, false},
    {"fp32, offloaded", DT_F32, DT_RECOMPUTE_NONE, 1, 1, WIDE, true, "ttt", 0, false},
    {"bf16, offloaded", DT_BF16, DT_RECOMPUTE_NONE, 1, 1, WIDE, true, "ttt", 0, false},
    {"bf16, offloaded, two replicas with ZeRO-1", DT_BF16, DT_RECOMPUTE_NONE, 2, 1, WIDE, true,
     "ttt", 0, false},
    {"bf16, offloaded, tp 2", DT_BF16, DT_RECOMPUTE_NONE, 2, 2, WIDE, true, "ttt", 0, false},
    {"bf16, offloaded, frozen encoder, two replicas", DT_BF16, DT_RECOMPUTE_NONE, 2, 1, WIDE, true,
     "ftt", 0, false},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

struct rank {
    const struct memory_case *c;
    struct dt_transport *t; /* NULL: alone */
    struct keeper *keeper;
    double measured, predicted, host, predicted_host;
};

static void *run_rank(void *arg)
{
    const struct dt_device_options o = {.threads = 1};
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    int dp = r->c->ranks / r->c->tp;
    struct ef_layout l[3] = {{1, dp, 1}, {1, dp, 1}, {1, dp, 1}};
    struct keeper *k = r->keeper;

    ck_assert_ptr_nonnull(f);
    ef_init(f, r->c->model, 1);
    f->dev->close(f->dev);
    dt_assert_ok(dt_device_open_cpu(&o, &f->err, &k->cpu), f->err);
    k->dev = *k->cpu;
    k->dev.info.packs = false;
    k->dev.weight_new = weight_new;
    k->dev.weight_free = weight_free;
    f->dev = &k->dev;
    f->dtype = r->c->dtype;
    f->transport = r->t;
    ef_seqs(f, r->c->large ? EF_SEQS_MAX : 8, 5);
    ef_plan(f, r->c->large ? EF_SEQS_MAX : 2, l, true, DT_SCHED_1F1B);
    f->plan.policy.fp32 = r->c->dtype == DT_F32;
    f->plan.policy.stepccl = r->c->chunks > 0;
    f->plan.policy.stepccl_chunks = r->c->chunks;
    fx_modes(&f->plan, r->c->recompute, 1);
    for (int m = 0; m < 3; m++) {
        f->plan.modules[m].layout.tp = r->c->tp;
        f->plan.modules[m].offload = r->c->offload ? DT_OFFLOAD_OPTIMIZER : DT_OFFLOAD_NONE;
        f->plan.modules[m].frozen = r->c->frozen && r->c->frozen[m] == 'f';
    }
    dt_assert_ok(dt_plan_place(&f->plan, &f->cluster, &f->err), f->err);
    ef_open(f);
    for (int step = 1; step <= 2; step++)
        ef_step(f, step);
    r->predicted = mf_predicted(f, DT_MEMORY_EXECUTOR, NULL);
    r->predicted_host = mf_predicted_host(f, DT_MEMORY_EXECUTOR);
    r->host = (double)dt_exec_host_memory(f->x);
    r->measured = measured(k);
    ef_free(f); /* closes the copy of the device, and so the device */
    free(f);
    if (r->t)
        r->t->close(r->t);
    return NULL;
}

static void run_case(const struct memory_case *c, struct rank ranks[2])
{
    struct dt_transport *t[2] = {NULL, NULL};
    struct dt_error err;
    pthread_t id[2];

    memset(keepers, 0, sizeof(keepers));
    if (c->ranks > 1)
        dt_assert_ok(dt_transport_open_threads(c->ranks, &err, t), err);
    for (int r = 0; r < c->ranks; r++) {
        ranks[r] = (struct rank){.c = c, .t = t[r], .keeper = &keepers[r]};
        ck_assert_int_eq(pthread_create(&id[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < c->ranks; r++)
        pthread_join(id[r], NULL);
}

START_TEST(what_a_gpu_keeps)
{
    struct rank ranks[2];
    int n = cases[_i].ranks;

    if (cases[_i].dtype == DT_BF16 && !dt_test_has_bf16())
        return;
    run_case(&cases[_i], ranks);
    for (int r = 0; r < n; r++) {
        printf("%s, rank %d: predicted %.2f MiB, allocated %.2f MiB\n", cases[_i].name, r,
               ranks[r].predicted / 0x1p20, ranks[r].measured / 0x1p20);
        if (cases[_i].offload)
            printf("%s, rank %d: host: predicted %.2f MiB, allocated %.2f MiB\n", cases[_i].name, r,
                   ranks[r].predicted_host / 0x1p20, ranks[r].host / 0x1p20);
        ck_assert_double_gt(ranks[r].measured, cases[_i].offload ? 2e6 : 4e6);
        if (cases[_i].offload)
            ck_assert_double_lt(fabs(ranks[r].predicted_host / ranks[r].host - 1), 0.1);
        else
            ck_assert(ranks[r].host == 0 && ranks[r].predicted_host == 0);

        ck_assert_double_lt(fabs(ranks[r].predicted / ranks[r].measured - 1), 0.1);
    }
}
END_TEST

/* StepCCL needs rooms for its chunks: what is allocated beside the same step in one piece, with a sixteenth to spare. */
START_TEST(rooms_of_chunks)
{
    static const char *const models[] = {WIDE, MERGED};
    struct rank whole[2], cut[2];

    for (int m = 0; m < 2; m++)
        for (int chunks = 2; chunks <= 4; chunks += 2) {
            struct memory_case c = {.name = "tp 2, in chunks",
                                    .dtype = dt_test_has_bf16() ? DT_BF16 : DT_F32,
                                    .ranks = 2,
                                    .tp = 2,
                                    .model = models[m],
                                    .large = true};
            double had, said;

            run_case(&c, whole);
            c.chunks = chunks;
            run_case(&c, cut);
            had = cut[0].measured - whole[0].measured;
            said = cut[0].predicted - whole[0].predicted;
            printf("model %d in %d chunks: %.1f KiB more, predicted %.1f\n", m, chunks, had / 1024,
                   said / 1024);
            ck_assert_double_gt(had, 0);
            ck_assert_double_lt(fabs(said / had - 1), 0.02);
        }
}
END_TEST

/* By what 32 sequences in a microbatch take more than two. */
static void grown(const char *model, double *measured, double *predicted)
{
    struct memory_case c = {.name = "heads", .dtype = DT_F32, .ranks = 1, .tp = 1, .model = model};
    struct rank small[2], large[2];

    run_case(&c, small);
    c.large = true;
    run_case(&c, large);
    *measured = large[0].measured - small[0].measured;
    *predicted = large[0].predicted - small[0].predicted;
}

/* Heads of 192 instead of 48 elements turn by wider rows of angles, of which there is one for every row that there is room for;
 * a row keeps one number instead of four in each of four layers. */
START_TEST(angles_of_positions)
{
    double narrow, wide, said_narrow, said_wide;

    grown(WIDE, &narrow, &said_narrow);
    grown(OF_HEADS("1"), &wide, &said_wide);
    printf("wider heads: %.1f KiB more, predicted %.1f\n", (wide - narrow) / 1024,
           (said_wide - said_narrow) / 1024);
    ck_assert_double_gt(wide - narrow, 1e5);
    ck_assert_double_lt(fabs((said_wide - said_narrow) / (wide - narrow) - 1), 0.1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("memory_device");
    TCase *c = dt_test_case(s, "memory", 240);

    tcase_add_loop_test(c, what_a_gpu_keeps, 0, CASES);
    tcase_add_test(c, rooms_of_chunks);
    tcase_add_test(c, angles_of_positions);
    return dt_test_run(s);
}
