/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How modules compute, beyond their widths: the names of activations, and the angles of rotary
 * positions. */
#include "core/model/model.h"

#include <math.h>

const char *const dt_block_activation_names[DT_ACTIVATION_N + 1] = {
    "habit", "gelu", "gelu-tanh", "quick-gelu", "silu", "relu", NULL};
const char *const dt_rope_scaling_names[] = {"none", "linear", "llama3", NULL};

/* Su et al. 2021 (theta 10,000); positions divided by the factor: Chen et al. 2023; llama3: Llama
 * 3.1's reference code, apply_scaling, whose constants the configuration states. */
double dt_rope_frequency(const struct dt_rope *r, int i, int dim)
{
    const double full_turn = 6.283185307179586477;
    double f = pow(r->theta > 0 ? r->theta : 10000, -2.0 * i / dim), turns, blend;

    switch (r->scaling) {
    case DT_ROPE_LINEAR:
        return f / r->factor;
    case DT_ROPE_LLAMA3:
        turns = r->original * f / full_turn; /* within the original length */
        if (turns > r->high_freq)
            return f;
        if (turns < r->low_freq)
            return f / r->factor;
        blend = (turns - r->low_freq) / (r->high_freq - r->low_freq);
        return (1 - blend) * f / r->factor + blend * f;
    case DT_ROPE_PLAIN:
        break;
    }
    return f;
}
