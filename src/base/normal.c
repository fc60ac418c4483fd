/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Kernels draw normal numbers, and what kernels need may not need GSL: its licence has no
 * permission to link NVIDIA's libraries (doc/dependencies.md).  The test's oracle is GSL's own
 * function. */
#include "base/rng.h"

#define DT_NORMAL_FUNCTION static
#include "base/normal_as241.h"

double dt_normal_quantile(double p)
{
    return dt_normal_as241(p);
}
