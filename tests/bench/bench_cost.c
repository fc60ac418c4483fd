/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The speed of the questions the search and the compiler ask most. */
#include "core/cost/cost.h"

#include "base/quantile.h"
#include "../cost_fixture.h"

#include <stdio.h>
#include <time.h>

enum { ROUNDS = 7 };

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void)
{
    static const struct dt_cost_options opt = {.stepccl = true};
    struct dt_block_shard tp8 = fx_shard(8), tp1 = fx_shard(1);
    struct dt_work text = fx_text(1, 8192);
    double hit[ROUNDS], miss[ROUNDS], cold, sum = 0;
    struct dt_cost *c;
    unsigned char trained[82];
    struct fixture f;
    int vit, llm;

    tp8.recompute = tp1.recompute = DT_RECOMPUTE_SELECTIVE;
    fx_init(&f);
    vit = fx_vit(&f, 32, 1280, 5120, 16, 8192);
    llm = fx_llm(&f, 80, 8192, 28672, 64, 8, 32000);
    fx_profile(&f, true);
    memset(trained, 1, sizeof(trained));
    if (dt_cost_new(&f.model, &f.cluster, &f.profile, &opt, NULL, &c) != DT_OK)
        return EXIT_FAILURE;
    cold = now_ns();
    sum += dt_cost_stage_ns(c, llm, 0, 82, &tp8, &text, trained, true).fwd;
    sum += dt_cost_stage_ns(c, vit, 0, 33, &tp1, &text, trained, false).fwd;
    cold = now_ns() - cold;
    for (int r = 0; r < ROUNDS; r++) {
        const int hits = 200000, misses = 5000;
        double t = now_ns();

        for (int i = 0; i < hits; i++)
            sum += dt_cost_stage_ns(c, llm, i % 10 * 8, 8, &tp8, &text, trained, true).fwd;
        hit[r] = (now_ns() - t) / hits;
        t = now_ns();
        for (int i = 0; i < misses; i++) { /* an encoder microbatch never seen before */
            struct dt_work w = fx_text(4, 700);

            w.tokens += r * misses + i;
            w.tokens_sq += 3 * (r * misses + i);
            sum += dt_cost_stage_ns(c, vit, 0, 32, &tp1, &w, trained, false).bwd;
        }
        miss[r] = (now_ns() - t) / misses;
    }
    if (!(sum > 0))
        return EXIT_FAILURE;
    printf("bench: cost_stage_hit %.1f ns\n", dt_median(hit, ROUNDS));
    printf("bench: cost_stage_new_work %.0f ns\n", dt_median(miss, ROUNDS));
    printf("bench: cost_first_use_of_a_model %.2f ms\n", cold / 1e6);
    dt_cost_free(c);
    fx_free(&f);
    return EXIT_SUCCESS;
}
