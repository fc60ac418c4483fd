/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a run was of.  A simulation predicts an executed run only if both are of the same model,
 * samples, batch, precision and policies; layouts and times are what they may differ in. */
#ifndef DT_REPORT_RUN_FACTS_H
#define DT_REPORT_RUN_FACTS_H

#include "core/model/plan.h"
#include "core/model/samples.h"

enum { DT_RUN_FACTS_MAX = 16 };
struct dt_run_fact {
    char name[24];
    char value[320];
};
struct dt_run_facts { /* n = 0: not known */
    int n;
    struct dt_run_fact fact[DT_RUN_FACTS_MAX];
};

/* Of the sizes of n samples from the first on, whatever order they are in: 64 bits. */
uint64_t dt_run_samples_digest(const struct dt_samples *s, int64_t first, int64_t n);

/* `source`: where the samples come from; `digest`: of those of the kept iteration;
 * `peak_flops`: of a GPU or process, what MFU is a share of, 0 = not known. */
void dt_run_facts_of(const struct dt_model *m, const struct dt_plan *p, const char *source,
                     uint64_t digest, double peak_flops, struct dt_run_facts *out);
/* The value; NULL. */
const char *dt_run_facts_find(const struct dt_run_facts *f, const char *name);
/* Adds one; what does not fit is left out. */
void dt_run_facts_add(struct dt_run_facts *f, const char *name, const char *value);

struct dt_run_difference {
    const char *name, *a, *b; /* borrowed from the facts, or for ever */
};
/* What makes them runs of two jobs; 0 when they are of one, or one of them does not say. */
int dt_run_facts_differ(const struct dt_run_facts *a, const struct dt_run_facts *b,
                        struct dt_run_difference out[DT_RUN_FACTS_MAX]);

#endif
