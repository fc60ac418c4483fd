/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Recorded products run alone, straight through oneDNN on all threads: what a training step is
 * held against. */
#ifndef DT_TESTS_BENCH_GEMM_H
#define DT_TESTS_BENCH_GEMM_H

#include "record.h"

struct gemm;
struct gemm *gemm_open(int threads);
void gemm_close(struct gemm *g);
/* Seconds by the clock and on all cores together.  On a machine that others use too, only the
 * second says what was worked; it wants threads that sleep while they wait
 * (OMP_WAIT_POLICY=passive). */
struct gemm_time {
    double wall, cpu;
};
struct gemm_time gemm_now(void);
/* One such product: the faster of plain and packed layouts (packing not counted), each the median
 * of three runs. */
struct gemm_time gemm_seconds(struct gemm *g, const struct rec_product *p);
/* Multiply-adds x 2. */
double gemm_flops(const struct rec_product *p);

#endif
