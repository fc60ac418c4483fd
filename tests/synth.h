/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Synthetic programs for tests and benchmarks: no model, no plan, only lanes, ops and durations. */
#ifndef DT_TESTS_SYNTH_H
#define DT_TESTS_SYNTH_H

#include "core/schedule/timeline.h"

struct synth {
    struct dt_program p;
    struct dt_durations dur;
    uint32_t *order; /* [n_ops] every op after all it depends on: the order of construction */
};
void synth_free(struct synth *s);

struct synth_pipeline {
    int stages, replicas, microbatches;
    int lane_gpus;
    int64_t fwd_ns,
        bwd_ns; /* of every stage; each op is scaled by 1 + spread * u, u in (0,1) from the seed */
    int64_t alpha_ns, transfer_ns;
    int64_t sync_ns;
    uint64_t bytes, sync_bytes;
    double spread;
    uint64_t seed;
};
/* 1F1B: stages x replicas lanes, stage-major on the GPUs, with SEND/RECV pairs, a gradient sync per
 * stage, one norm, a step per lane.  Aborts when out of memory (tests only). */
void synth_1f1b(const struct synth_pipeline *c, struct synth *out);
/* A random valid program: lanes of several widths, all kinds of ops, extra dependencies, groups,
 * many ties and zero durations. */
void synth_random(uint64_t seed, int gpus, struct synth *out);
/* Input of every other FETCH or so comes late, with ties; the last ones come long after everything else could end. */
void synth_release(uint64_t seed, struct synth *s);

/* The timing rules of core/schedule/program.h written down a second time, as plainly as possible. */
void synth_reference(const struct synth *s, int64_t *begin_ns, int64_t *end_ns);
/* Seed of property tests: DT_TEST_SEED or the given one. */
uint64_t synth_seed(uint64_t standard);

#endif
