/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of each rank: what it allocated, beside what the memory model charges its lanes. */
#include "exec/train_memory.h"

#include "core/mem.h"
#include "core/memory_cpu.h"
#include "exec/placement.h"

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void dt_memory_see(struct dt_memory_seen *seen, const struct dt_program *p)
{
    for (int m = 0; m < p->plan->n_modules; m++) {
        const struct dt_module_assignment *a = &p->assignment->m[m];
        struct dt_work *most = &seen->most[m];

        for (uint32_t i = 0; i < a->mb_first[a->n_replicas]; i++) {
            most->n = larger(most->n, a->work[i].n);
            most->tokens = larger(most->tokens, a->work[i].tokens);
            most->tokens_sq = larger(most->tokens_sq, a->work[i].tokens_sq);
            most->tokens_max = larger(most->tokens_max, a->work[i].tokens_max);
        }
        for (int r = 0; r < a->n_replicas; r++)
            seen->n[m] = larger(seen->n[m], a->mb_first[r + 1] - a->mb_first[r]);
    }
}

enum dt_status dt_train_predict_memory(const struct dt_setup *s, const struct dt_memory_seen *seen,
                                       int ranks, struct dt_error *err, struct dt_rank_memory *out)
{
    double *scratch = dt_calloc((size_t)ranks, sizeof(*scratch));
    struct dt_placement place;
    enum dt_status st;

    if (!scratch)
        return dt_error_nomem(err, "ranks");
    st = dt_placement_init(&place, &s->plan, ranks, err);
    for (int r = 0; r < ranks; r++)
        out[r].predicted_bytes = 0;
    for (int m = 0; st == DT_OK && m < s->plan.n_modules; m++) {
        const struct dt_layout *l = &s->plan.modules[m].layout;

        for (int k = 0; k < l->pp * l->dp * l->tp; k++) {
            int stage = k / (l->dp * l->tp), rank;
            struct dt_memory_cpu c;

            rank = dt_placement_rank(&place, m, k / l->tp % l->dp, stage, k % l->tp);
            dt_memory_cpu_stage(&s->plan, s->job->model, &s->job->cluster, m, stage, &seen->most[m],
                                seen->n[m], (int)dt_dtype_bytes(s->dtype), &c);
            out[rank].predicted_bytes += (int64_t)c.total;
            scratch[rank] = c.scratch > scratch[rank] ? c.scratch : scratch[rank];
        }
    }
    for (int r = 0; r < ranks; r++)
        out[r].predicted_bytes += (int64_t)scratch[r];
    if (st == DT_OK)
        dt_placement_free(&place);
    dt_free(scratch);
    return st;
}
