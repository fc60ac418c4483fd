/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Pixels as encoders and generators take them, value by value as their definitions have them; sizes as the planner has
 * them. */
#include "base/mem.h"
#include "base/rng.h"
#include "exec/program/batching.h"
#include "kernels/device_open.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

static struct dt_error err;

static uint8_t *random_pixels(struct dt_rng *r, int w, int h)
{
    uint8_t *px = dt_malloc(3 * (size_t)w * (size_t)h);

    for (int i = 0; i < 3 * w * h; i++)
        px[i] = (uint8_t)dt_rng_below(r, 256);
    return px;
}

/* The mean of a cell, whose pixels end with the image. */
static double mean_of(const uint8_t *px, int w, int h, int f, int x, int y, int colour)
{
    double sum = 0;
    int n = 0;

    for (int v = y * f; v < (y + 1) * f; v++)
        for (int u = x * f; u < (x + 1) * f; u++)
            if (v < h && u < w) {
                sum += px[(v * w + u) * 3 + colour];
                n++;
            }
    return sum / n;
}

START_TEST(latents_are_means)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&r, seed, 0);
    for (int i = 0; i < 60; i++) {
        int w = 1 + (int)dt_rng_below(&r, 40), h = 1 + (int)dt_rng_below(&r, 40), lw, lh;
        int channels = 1 + (int)dt_rng_below(&r, 5);
        struct dt_block conv = {.kind = DT_BLOCK_CONV, .c_in = channels};
        const struct dt_module m = {
            .blocks = &conv, .n_blocks = 1, .latent_scale = 1 + (int)dt_rng_below(&r, 9)};
        uint8_t *px = random_pixels(&r, w, h);
        float *out;

        dt_batching_latent_size(&m, w, h, &lw, &lh);
        out = dt_malloc(sizeof(float) * (size_t)(lw * lh * channels));
        dt_batching_latents(&m, px, w, h, out);
        for (int k = 0; k < lw * lh * channels; k++) {
            int x = k / channels % lw, y = k / channels / lw, c = k % channels;
            double want = 0;

            for (int colour = 0; colour < 3; colour++)
                if (channels < 3 || c >= 3 || c == colour)
                    want += mean_of(px, w, h, m.latent_scale, x, y, colour) /
                            (channels < 3 || c >= 3 ? 3 : 1);
            ck_assert_double_eq_tol((double)out[k], want / 127.5 - 1, 1e-6);
        }
        dt_free(out);
        dt_free(px);
    }
}
END_TEST

/* Channel after channel, line after line; behind an edge is what lies on it. */
START_TEST(patches_are_pixels)
{
    static const struct dt_device_choice cpu = {.name = "cpu"};
    uint64_t seed = dt_test_seed();
    struct dt_device *dev;
    struct dt_rng r;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&r, seed, 0);
    dt_assert_ok(dt_device_open(&cpu, NULL, &err, &dev), err);
    for (int i = 0; i < 40; i++) {
        int w = 1 + (int)dt_rng_below(&r, 30), h = 1 + (int)dt_rng_below(&r, 30);
        int patch = 1 + (int)dt_rng_below(&r, 7), moments = 1 + (int)dt_rng_below(&r, 2);
        int merge = 1 + (int)dt_rng_below(&r, 2), channels = 3 * moments, rows, cols;
        bool side_by_side = dt_rng_below(&r, 2) != 0;
        struct dt_block b = {
            .kind = DT_BLOCK_PATCH_EMBED, .patch = patch, .channels = channels, .hidden = 8};
        const struct dt_module m = {.name = "eye",
                                    .role = DT_ROLE_ENCODER,
                                    .blocks = &b,
                                    .n_blocks = 1,
                                    .merge = merge,
                                    .tower_names = side_by_side ? DT_TOWER_QWEN : DT_TOWER_VIT};
        const struct dt_batch_limits max = {.rows = 4000, .seqs = 2, .max_len = 4000};
        uint8_t *px = random_pixels(&r, w, h);
        struct dt_batch *batch;

        dt_assert_ok(dt_batch_new(dev, &m, &max, &err, &batch), err);
        dt_assert_ok(dt_batch_patches(batch, px, w, h, &err), err);
        rows = batch->host.hw[0][0];
        cols = batch->host.hw[0][1];
        ck_assert(rows % merge == 0 && rows * patch >= h && (rows - merge) * patch < h);
        ck_assert(cols % merge == 0 && cols * patch >= w && (cols - merge) * patch < w);
        for (int k = 0; k < rows * cols * channels * patch * patch; k++) {
            int at = k / (channels * patch * patch), inside = k % (channels * patch * patch);
            int ch = inside / (patch * patch), square = at / (merge * merge);
            int y = square / (cols / merge) * merge + at % (merge * merge) / merge;
            int x = square % (cols / merge) * merge + at % merge;
            int py = y * patch + inside / patch % patch, px_x = x * patch + inside % patch;
            int colour = side_by_side && channels > 3 ? ch / moments : ch % 3;
            double want;

            py = py < h ? py : h - 1;
            px_x = px_x < w ? px_x : w - 1;
            want = px[(py * w + px_x) * 3 + colour] / 127.5 - 1;
            ck_assert_msg(fabs((double)batch->host.pixels[k] - want) < 1e-6,
                          "value %d of %d x %d pixels, patches of %d: %g, not %g", k, w, h, patch,
                          (double)batch->host.pixels[k], want);
        }
        dt_batch_free(batch);
        dt_free(px);
    }
    dev->close(dev);
}
END_TEST

/* A layer of 2 heads of 8: attention is 4 FLOPs for each element of its heads and each of n^2 / 2 pairs of tokens (q k and
 * p v, two each), the rest goes by tokens. */
START_TEST(documents_attend_to_themselves)
{
    static const int docs[2][3] = {{40, 5, 19}, {64, 0, 0}};
    struct dt_sequence_doc doc[2][3] = {{{.n = 0}}};
    struct dt_sequence seq[2] = {{.n_tokens = 64, .docs = doc[0], .n_docs = 3},
                                 {.n_tokens = 64, .docs = doc[1], .n_docs = 1}};
    const struct dt_sequence *seqs[2] = {&seq[0], &seq[1]};
    const struct dt_module llm = {.role = DT_ROLE_LLM};
    const struct dt_block layer = {.kind = DT_BLOCK_TRANSFORMER,
                                   .hidden = 16,
                                   .ffn = 32,
                                   .heads = 2,
                                   .kv_heads = 2,
                                   .head_dim = 8,
                                   .causal = true};
    struct dt_samples *all, *some;
    struct dt_work w[2];

    for (int k = 0; k < 2; k++)
        for (int d = 0, first = 0; d < 3; first += docs[k][d++])
            doc[k][d] =
                (struct dt_sequence_doc){.first = (uint32_t)first, .n = (uint32_t)docs[k][d]};
    dt_assert_ok(dt_batching_samples(seqs, 2, &err, &all), err);
    for (int k = 0; k < 2; k++) {
        dt_sample_work(all, k, &llm, &w[k]);
        ck_assert_int_eq(w[k].n, 1);
        ck_assert_int_eq(w[k].tokens, 64);
    }
    ck_assert_int_eq(w[0].tokens_sq, 40 * 40 + 5 * 5 + 19 * 19);
    ck_assert_int_eq(w[1].tokens_sq, 64 * 64);
    ck_assert_double_eq_tol(dt_block_flops(&layer, &w[1]) - dt_block_flops(&layer, &w[0]),
                            2.0 * 16 * (64 * 64 - 40 * 40 - 5 * 5 - 19 * 19), 1e-6);
    dt_assert_ok(dt_samples_prefix(all, 1, &err, &some), err);
    dt_sample_work(some, 0, &llm, &w[1]);
    ck_assert_mem_eq(&w[0], &w[1], sizeof(w[0]));
    dt_samples_free(some);
    dt_samples_free(all);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("batching");
    TCase *t = dt_test_case(s, "pixels", 60);

    tcase_add_test(t, latents_are_means);
    tcase_add_test(t, patches_are_pixels);
    tcase_add_test(t, documents_attend_to_themselves);
    return dt_test_run(s);
}
