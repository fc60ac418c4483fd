/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Does the data of a run still ask for the layout that it was planned with?  Entrain's sizing (orchestrate_sizing.h) with a
 * window of the samples that were trained on last, in place of a data set. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_MIX_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_MIX_H

#include "core/orchestrate/orchestrate_sizing.h"

struct dt_orch_mix;

struct dt_orch_mix_found {   /* of the last window */
    bool other;              /* it asks for another division of a replica's GPUs */
    int64_t samples;         /* of the window */
    int trials;              /* draws of a global batch out of it, which all gave another one */
    int has[DT_MAX_MODULES]; /* GPUs of each module in a replica of the plan */
    int asks_for[DT_MAX_MODULES]; /* by the window's loads */
    /* Timelines of the last global batch: of the plan, and of the same lanes with the other numbers of stages, which is
     * `plan`; 0: there is no such plan (why) */
    double now_s, then_s;
    struct dt_plan plan;
    char why[256];
};

/* For plans with assignment entrain, in units of the widest lane, or of what the GPUs of modules have in common.  *out is NULL
 * where the plan has another assignment or where a replica has no unit to move.  Keeps the pointers.
 * Draws have to agree as for b_min: dt_orch_sizing_trials(confidence, p_error); 0: 0.95 and 0.05. */
enum dt_status dt_orch_mix_new(const struct dt_plan *plan, const struct dt_model *model,
                               const struct dt_cluster *cluster, struct dt_cost *cost,
                               double confidence, double p_error, uint64_t seed,
                               struct dt_error *err, struct dt_orch_mix **out);
void dt_orch_mix_free(struct dt_orch_mix *m);

/* The next global batch.  When a window is full, of four batches and at least 64 samples (ours), *found says what it asks
 * for and *tested is set; the next window begins then.  O(samples) beside that, and two timelines where another plan is asked
 * for. */
enum dt_status dt_orch_mix_add(struct dt_orch_mix *m, const struct dt_samples *batch,
                               struct dt_error *err, bool *tested, struct dt_orch_mix_found *found);

/* Members of an object that is open. */
struct dt_json;
void dt_orch_mix_json(const struct dt_orch_mix_found *f, struct dt_json *j);
/* One sentence for people about a window that asks for another plan; returns buf. */
const char *dt_orch_mix_text(const struct dt_orch_mix_found *f, char *buf, size_t size);

#endif
