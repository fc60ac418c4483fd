/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#ifndef DT_TESTS_PLAN_MODES_H
#define DT_TESTS_PLAN_MODES_H

#include "core/model/plan.h"

/* The same for all modules. */
static inline void fx_modes(struct dt_plan *p, enum dt_block_recompute recompute, int zero)
{
    for (int m = 0; m < p->n_modules; m++) {
        p->modules[m].recompute = recompute;
        p->modules[m].zero = zero;
    }
}

#endif
