/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How modules compute, beyond their widths: the names of activations, and the angles of rotary
 * positions. */
#include "core/model/model.h"

#include <math.h>

const char *const dt_block_activation_names[DT_ACTIVATION_N + 1] = {
    "habit", "gelu", "gelu-tanh", "quick-gelu", "silu", "relu", NULL};
const char *const dt_rope_scaling_names[] = {"none", "linear", "llama3", NULL};

enum dt_block_activation dt_block_activation(const struct dt_module_arithmetic *a,
                                             const struct dt_block *b)
{
    if (a->activation != DT_ACTIVATION_HABIT)
        return a->activation;
    if (b->gated)
        return DT_ACTIVATION_SILU;
    return b->causal ? DT_ACTIVATION_GELU_TANH : DT_ACTIVATION_GELU;
}

double dt_block_attention_scale(const struct dt_module_arithmetic *a, const struct dt_block *b)
{
    return a->attention_scale > 0 ? a->attention_scale : 1 / sqrt((double)b->head_dim);
}

double dt_module_norm_eps(const struct dt_module *m)
{
    if (m->arith.norm_eps > 0)
        return m->arith.norm_eps;
    return m->role == DT_ROLE_ENCODER ? 1e-12 : 1e-5;
}

/* Su et al. 2021 (DT_ROPE_THETA); positions divided by the factor: Chen et al. 2023; llama3: Llama
 * 3.1's reference code, apply_scaling, whose constants the configuration states. */
double dt_rope_frequency(const struct dt_rope *r, int i, int dim)
{
    const double full_turn = 6.283185307179586477;
    double f = pow(r->theta > 0 ? r->theta : DT_ROPE_THETA, -2.0 * i / dim), turns, blend;

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
