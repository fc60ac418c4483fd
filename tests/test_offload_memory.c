/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What offload of a guest's parameters leaves a device whose memory is not the host's: the most that the executor has
 * allocated, with it and without, against the memory model's row for such a device. */
#include "fake_device.h"
#include "memory_fixture.h"

#include <math.h>

/* Wide layers: parameters are most of what the encoder has. */
#define MODEL(width, text)                                                                         \
    "encoder: {kind: encoder, layers: 2, hidden: " width ", ffn: 512, heads: 4, patch: 4, "        \
    "positions: 16}, "                                                                             \
    "llm: {kind: llm, layers: 4, hidden: " text ", ffn: 512, heads: 4, vocab: 261}, " EF_UNET

enum { SEQS = 8 };

static const struct memory_case {
    const char *name, *model;
    enum dt_dtype dtype;
    bool window; /* else in phases */
    char frozen; /* 'f' */
} cases[] = {
    {"small encoder, window", MODEL("64", "192"), DT_F32, true, 't'},
    {"small encoder, phases", MODEL("64", "192"), DT_F32, false, 't'},
    {"large encoder, window", MODEL("512", "192"), DT_F32, true, 't'},
    {"large encoder, phases, bf16", MODEL("512", "192"), DT_BF16, false, 't'},
    {"large encoder, frozen", MODEL("512", "192"), DT_F32, true, 'f'},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

struct seen {
    double measured, predicted, frees, host; /* frees: what the model says that offload does */
    double loss;
};

/* Each takes what the largest takes, which memory is charged for. */
static void equal_seqs(struct exec_fixture *f)
{
    struct dt_sequence *all[SEQS];

    for (int k = 0; k < SEQS; k++) {
        ef_seqs_of(f, 1, 5, EF_PICTURED);
        all[k] = f->seqs[0];
        all[k]->index = k;
    }
    memcpy(f->seqs, all, sizeof(all));
    f->n_seqs = SEQS;
}

static void run(const struct memory_case *c, enum dt_plan_offload offload, struct seen *out)
{
    static const struct ef_layout one[3] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    struct exec_fixture *f = calloc(1, sizeof(*f));
    struct dt_memory mem[DT_MAX_MODULES];
    int64_t now, max;

    ck_assert_ptr_nonnull(f);
    ef_init(f, c->model, 1);
    f->dev->close(f->dev);
    dt_assert_ok(dt_fake_device_open(&(struct dt_device_options){.threads = 1}, &f->err, &f->dev),
                 f->err);
    f->dtype = c->dtype;
    equal_seqs(f);
    ef_plan(f, 1, one, false, DT_SCHED_GPIPE);
    f->plan.policy.fp32 = c->dtype == DT_F32;
    f->plan.policy.exact_vectors = true;
    f->plan.modules[0].with = 2;
    f->plan.modules[0].window = c->window ? DT_PLAN_WINDOW_ALL : 0;
    f->plan.modules[0].phases = !c->window;
    f->plan.modules[0].frozen = c->frozen == 'f';
    f->plan.modules[0].offload = offload;
    dt_assert_ok(dt_plan_place(&f->plan, &f->cluster, &f->err), f->err);
    dt_assert_ok(dt_plan_validate(&f->plan, f->model, &f->cluster, &f->err), f->err);
    ef_open(f);
    for (int step = 1; step <= 3; step++)
        out->loss = ef_step(f, step).loss;
    dt_exec_memory(f->x, &now, &max);
    mf_stages(f, DT_MEMORY_EXECUTOR, mem);
    out->measured = (double)max;
    out->predicted = mf_predicted(f, DT_MEMORY_EXECUTOR, NULL);
    out->frees = fmin(mem[0].away, mem[1].beside);
    out->host = (double)dt_exec_host_memory(f->x);
    ck_assert_double_le(fabs(out->host - mem[0].away_host), 0.02 * mem[0].away_host);
    ef_free(f);
    free(f);
}

START_TEST(the_device_has_less)
{
    struct seen with, without;
    double fell;

    if (cases[_i].dtype == DT_BF16 && !dt_test_has_bf16())
        return;
    run(&cases[_i], DT_OFFLOAD_NONE, &without);
    run(&cases[_i], DT_OFFLOAD_PARAMETERS, &with);
    fell = without.measured - with.measured;
    printf("%s: predicted %.2f MiB, allocated %.2f; without %.2f and %.2f; %.2f less, predicted "
           "%.2f\n",
           cases[_i].name, with.predicted / 0x1p20, with.measured / 0x1p20,
           without.predicted / 0x1p20, without.measured / 0x1p20, fell / 0x1p20,
           with.frees / 0x1p20);
    ck_assert(with.loss == without.loss);
    ck_assert(without.frees == 0 && with.frees > 0);
    ck_assert_double_lt(fabs(with.predicted / with.measured - 1), 0.1);
    ck_assert_double_lt(fabs(fell / with.frees - 1), 0.05);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("offload_memory");
    TCase *c = dt_test_case(s, "memory", 120);

    tcase_add_loop_test(c, the_device_has_less, 0, CASES);
    return dt_test_run(s);
}
