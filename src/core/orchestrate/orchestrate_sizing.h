/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Entrain's sizing (Jang and Chowdhury 2026, arXiv 2605.27918, algorithm 1): GPUs of modules in proportion to their loads,
 * from so many samples that another draw of them would give the same. */
#ifndef DT_CORE_ORCHESTRATE_ORCHESTRATE_SIZING_H
#define DT_CORE_ORCHESTRATE_ORCHESTRATE_SIZING_H

#include "core/orchestrate/orchestrate.h"

/* Shares of `units` in proportion to load[n], by largest remainder, at least one each; n <= units. */
void dt_orch_allocate(int n, const double *load, int units, int *out);

/* Draws that have to agree: if none of them differs, a draw differs with a probability of at most p_error, with that
 * confidence. */
int dt_orch_sizing_trials(double confidence, double p_error);

/* What each of the first n samples costs each module, forward and backward on a lane of the plan times its GPUs [ns]:
 * load[n_modules * n], by module.  DT_ERR_NOMEM. */
enum dt_status dt_orch_sample_loads(const struct dt_plan *p, const struct dt_model *model,
                                    struct dt_cost *cost, const struct dt_samples *samples,
                                    int64_t n, struct dt_error *err, double *load);

struct dt_orch_loads {
    int n_modules;
    int64_t n;          /* samples */
    const double *load; /* [n_modules * n], by module */
    double confidence, p_error;
    int64_t profile; /* samples that are looked at, the first ones; 0: as many as it takes */
    uint64_t seed;
};

/* The allocation of `units`; the draws of n samples, with replacement, for n = 1, 2, 4 ... until they agree, or as many as
 * there are samples: the boundary between two allocations is where the mean lies then. */
void dt_orch_size(const struct dt_orch_loads *in, int units, struct dt_orch_sizing *out);

/* Fills out->stable for global batches of so many samples.  O(draws * batch). */
void dt_orch_size_stable(const struct dt_orch_loads *in, int64_t batch, struct dt_orch_sizing *out);

#endif
