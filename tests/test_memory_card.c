/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the executor takes of a card's memory, workspaces of its kernels included, against the memory model's row for it.
 * The card is the module built for a CPU (tests/cuda_cpu), whose allocator is asked. */
#include "memory_fixture.h"
#include "kernels/device_open.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define MODULES "tests/modules/CPU"

#define WIDE                                                                                       \
    "encoder: {kind: encoder, layers: 2, hidden: 128, ffn: 384, heads: 4, patch: 4, positions: "   \
    "16},"                                                                                         \
    "llm: {kind: llm, layers: 2, hidden: 192, ffn: 512, heads: 4, vocab: 261},"                    \
    "generator: {kind: unet, channels: [32, 64], head_dim: 16, res_blocks: 1, in_channels: 1, "    \
    "out_channels: 1, context_dim: 64, context_len: 8, latent_scale: 1, resize: 8}"

struct memory_case {
    const char *name;
    enum dt_dtype dtype;
    enum dt_block_recompute recompute;
};
static const struct memory_case cases[] = {
    {"fp32", DT_F32, DT_RECOMPUTE_NONE},
    {"bf16", DT_BF16, DT_RECOMPUTE_NONE},
    {"bf16, full recompute", DT_BF16, DT_RECOMPUTE_FULL},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

START_TEST(what_a_card_keeps)
{
    struct exec_fixture *f = calloc(1, sizeof(*f));
    struct ef_layout l[3] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    static const struct dt_device_choice which = {.name = "cuda"};
    double predicted, scratch;
    int64_t now, max;

    ck_assert_ptr_nonnull(f);
    ef_init(f, WIDE, 1);
    f->dev->close(f->dev);
    dt_assert_ok(dt_device_open(&which, NULL, &f->err, &f->dev), f->err);
    ck_assert_msg(f->dev->info.id[0] != '\0', "the device is no card");
    f->dtype = cases[_i].dtype;
    ef_seqs(f, 8, 5);
    ef_plan(f, 2, l, true, DT_SCHED_1F1B);
    f->plan.policy.fp32 = cases[_i].dtype == DT_F32;
    fx_modes(&f->plan, cases[_i].recompute, 1);
    ef_open(f);
    for (int step = 1; step <= 2; step++)
        ef_step(f, step);
    predicted = mf_predicted(f, DT_MEMORY_CARD, &scratch);
    f->dev->memory_used(f->dev, &now, &max);
    printf("%s: predicted %.2f MiB, %.2f of it for kernels; allocated %.2f MiB\n", cases[_i].name,
           predicted / 0x1p20, scratch / 0x1p20, (double)now / 0x1p20);
    ck_assert_double_gt((double)now, 4e7);
    ck_assert_double_lt(fabs(predicted / (double)now - 1), 0.1);
    ef_free(f);
    free(f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("memory_card");
    TCase *c = dt_test_case(s, "memory", 240);

    if (access(MODULES "/disttrain-cuda.so", R_OK) != 0) {
        printf("SKIP: there is no C++20 compiler for %s\n", MODULES);
        return 77;
    }
    setenv("DISTTRAIN_MODULES", MODULES, 1);
    setenv("OMP_NUM_THREADS", "1", 0);
    tcase_add_loop_test(c, what_a_card_keeps, 0, CASES);
    return dt_test_run(s);
}
