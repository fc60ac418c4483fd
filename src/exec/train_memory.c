/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of each rank: what it allocated, beside what the memory model charges its lanes. */
#include "exec/train_memory.h"

#include "core/mem.h"
#include "core/memory.h"
#include "exec/placement.h"

/* Of one lane of a stage, without what the device itself needs. */
static double lane_bytes(const struct dt_program *p, const struct dt_model *model,
                         const struct dt_cluster *c, int module, int stage)
{
    const struct dt_module_assignment *a = &p->assignment->m[module];
    struct dt_work most = {0};
    struct dt_memory m;
    int64_t n = 0;

    for (uint32_t i = 0; i < a->mb_first[a->n_replicas]; i++)
        if (a->work[i].tokens > most.tokens)
            most = a->work[i];
    for (int r = 0; r < a->n_replicas; r++)
        if (a->mb_first[r + 1] - a->mb_first[r] > n)
            n = a->mb_first[r + 1] - a->mb_first[r];
    dt_memory_stage(p->plan, model, c, module, stage, &most, n, &m);
    return m.total - m.reserve;
}

enum dt_status dt_train_predict_memory(const struct dt_program *p, const struct dt_model *model,
                                       const struct dt_cluster *c, int ranks, struct dt_error *err,
                                       struct dt_rank_memory *out)
{
    struct dt_placement place;

    DT_TRY(dt_placement_init(&place, p->plan, ranks, err));
    for (int r = 0; r < ranks; r++)
        out[r].predicted_bytes = 0;
    for (int m = 0; m < p->plan->n_modules; m++) {
        const struct dt_layout *l = &p->plan->modules[m].layout;

        for (int s = 0; s < l->pp; s++) {
            int64_t bytes = (int64_t)lane_bytes(p, model, c, m, s);

            for (int r = 0; r < l->dp; r++)
                for (int t = 0; t < l->tp; t++)
                    out[dt_placement_rank(&place, m, r, s, t)].predicted_bytes += bytes;
        }
    }
    dt_placement_free(&place);
    return DT_OK;
}
