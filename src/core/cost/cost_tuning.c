/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The constants of kernels in a running training step.  `disttrain accuracy --sensitivity` prints
 * them and what they do to the predictions. */
#include "core/cost/cost.h"

/* Fitted together on the rows with even index of three measured tables (vTrain single
 * and multi node, Megatron-LM's recomputation table), coordinate descent, then rounded. */
const struct dt_cost_tuning dt_cost_tuning_default = {
    .gemm = 0.90,
    .misaligned = 3.7,
    .core = 1.5,
    .tp_skew_ns = 200e3,
    .call_per_rank = 0.20,
    .backward_call = 0.33,
    .host_norm = 3.3,
};

#define FITTED "fitted, even rows"
const struct dt_cost_constant dt_cost_constants[DT_COST_CONSTANTS] = {
    {"gemm", "x profile", FITTED, "GEMM in training / profile row (stacks differ by 8.9 %)"},
    {"misaligned", "x GEMM", FITTED, "n or k no multiple of 8: no wide loads"},
    {"core", "x residual add", FITTED, "softmax and dropout of the scores"},
    {"tp_skew", "ns", FITTED, "a tensor-parallel all-reduce waits for the slowest rank"},
    {"call_per_rank", "kernels/rank", FITTED, "host work of a collective beyond one kernel"},
    {"backward_call", "x forward", FITTED, "host time of a backward kernel"},
    {"host_norm", "-", FITTED, "p-norm of host and device time"},
};

double *dt_cost_tuning_at(struct dt_cost_tuning *t, int i)
{
    return (double *)t + i; /* nothing but doubles: the count is checked by the array's size */
}
