/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Linear weights into the layout that products of bf16 want, straight from the fp32 master. */
#ifndef DT_KERNELS_CPU_PACK_H
#define DT_KERNELS_CPU_PACK_H

#include "kernels/cpu/cpu.h"

/* Element (k, n) of the product's right operand:
 *
 *   from   x + k ldx + n, or turned x + n ldx + k
 *   to     to + k / kb tk + n / nb tn              blocks of kb x nb; in each
 *          + k % kb / 2 * 2 nb + n % nb * 2 + k % 2                 pairs of k beside each other */
struct dt_cpu_pack {
    const float *x;
    uint16_t *to;
    bool turned;
    int64_t k, n, ldx;
    int64_t kb, nb, tk, tn;
};

/* True: done.  False: this CPU or this layout needs the product library's own way.  What of the
 * last blocks lies behind k or n is left alone, except that an odd last pair and 16 columns are
 * filled up with zeros. */
bool dt_cpu_pack(struct dt_device_queue *q, const struct dt_cpu_pack *p);

#endif
