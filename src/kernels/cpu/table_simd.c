/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fills the kernel table with this instruction set's functions. */
#include "kernels/cpu/simd.h"

void DT_SIMD(dt_cpu_simd)(struct dt_kernels *k)
{
    DT_SIMD(dt_cpu_act)(k);
    DT_SIMD(dt_cpu_attention)(k);
    DT_SIMD(dt_cpu_attention_bwd)(k);
    DT_SIMD(dt_cpu_elementwise)(k);
    DT_SIMD(dt_cpu_groupnorm)(k);
    DT_SIMD(dt_cpu_image)(k);
    DT_SIMD(dt_cpu_norm)(k);
    DT_SIMD(dt_cpu_optimizer)(k);
    DT_SIMD(dt_cpu_random)(k);
    DT_SIMD(dt_cpu_route)(k);
    DT_SIMD(dt_cpu_rows)(k);
    DT_SIMD(dt_cpu_softmax)(k);
}
