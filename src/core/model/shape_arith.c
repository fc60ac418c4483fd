/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Keys of module maps that say how a module computes and change no width. */
#include "core/model/shape.h"

static const char *const rope_keys[] = {
    "theta", "scaling", "factor", "low_freq_factor", "high_freq_factor", "original_positions",
    NULL};
static const char *const names_words[] = {"vit", "clip", NULL};

enum dt_status dt_rope_check(struct dt_node node, const struct dt_rope *r, struct dt_error *err)
{
    if (r->scaling != DT_ROPE_PLAIN && !(r->factor >= 1))
        return dt_node_error(node, err, "rope: scaling %s needs factor, 1 or more",
                             dt_rope_scaling_names[r->scaling]);
    if (r->scaling != DT_ROPE_LLAMA3)
        return DT_OK;
    if (r->original < 1)
        return dt_node_error(node, err,
                             "rope: scaling llama3 needs the original number of positions");
    if (!(r->low_freq > 0 && r->high_freq > r->low_freq))
        return dt_node_error(node, err,
                             "rope: scaling llama3 needs low_freq_factor above 0 and "
                             "high_freq_factor above that");
    return DT_OK;
}

static enum dt_status read_rope(struct dt_node module, struct dt_rope *r, struct dt_error *err)
{
    struct dt_node n = dt_map_get(module, "rope");
    int scaling = (int)r->scaling;

    if (!dt_node_present(n))
        return DT_OK;
    DT_TRY(dt_map_check(n, "rope", rope_keys, err));
    DT_TRY(dt_get_double(n, "theta", DT_ROPE_THETA_MIN, DT_ROPE_THETA_MAX, &r->theta, err));
    DT_TRY(dt_get_enum(n, "scaling", dt_rope_scaling_names, &scaling, err));
    r->scaling = (enum dt_rope_scaling)scaling;
    DT_TRY(dt_get_double(n, "factor", 1, DT_ROPE_FACTOR_MAX, &r->factor, err));
    DT_TRY(dt_get_double(n, "low_freq_factor", 0, DT_ROPE_FACTOR_MAX, &r->low_freq, err));
    DT_TRY(dt_get_double(n, "high_freq_factor", 0, DT_ROPE_FACTOR_MAX, &r->high_freq, err));
    DT_TRY(dt_get_i32(n, "original_positions", 1, DT_LIM_POSITIONS, &r->original, err));
    return dt_rope_check(n, r, err);
}

static enum dt_status read_unet(struct dt_node n, struct dt_shape *s, struct dt_error *err)
{
    DT_TRY(dt_get_i32(n, "norm_groups", 1, DT_LIM_CHANNELS, &s->unet.norm_groups, err));
    DT_TRY(dt_get_bool(n, "sine_first", &s->arith.sine_first, err));
    return dt_get_double(n, "freq_shift", 0, 1, &s->arith.freq_shift, err);
}

enum dt_status dt_shape_read_arith(struct dt_node n, struct dt_shape *s, struct dt_error *err)
{
    struct dt_module_arithmetic *a = &s->arith;
    int activation = (int)a->activation - 1, names = s->clip_names;

    DT_TRY(dt_get_double(n, "norm_eps", DT_NORM_EPS_MIN, 1, &a->norm_eps, err));
    if (s->kind == DT_SHAPE_UNET)
        return read_unet(n, s, err);
    DT_TRY(dt_get_enum(n, "activation", dt_block_activation_names + 1, &activation, err));
    a->activation = (enum dt_block_activation)(activation + 1);
    DT_TRY(dt_get_double(n, "attention_scale", 1e-6, 1e6, &a->attention_scale, err));
    DT_TRY(dt_get_bool(n, "attention_scale_by_layer", &a->scale_by_layer, err));
    if (s->kind == DT_SHAPE_LLM)
        return read_rope(n, &a->rope, err);
    DT_TRY(dt_get_enum(n, "names", names_words, &names, err));
    s->clip_names = names;
    return DT_OK;
}
