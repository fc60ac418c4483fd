/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rotary positions of Hugging Face configs: rope_theta and rope_scaling (transformers 4), or
 * rope_parameters with both (transformers 5). */
#include "core/model/hf.h"

#include <string.h>

static enum dt_status scaling_of(const struct dt_hf *hf, enum dt_rope_scaling *out)
{
    const char *key = dt_hf_has(hf, "rope_type") ? "rope_type" : "type";
    char type[32] = "default";

    DT_TRY(dt_get_string(hf->map, key, type, sizeof(type), hf->err));
    if (strcmp(type, "default") == 0)
        *out = DT_ROPE_PLAIN;
    else if (strcmp(type, "linear") == 0)
        *out = DT_ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        *out = DT_ROPE_LLAMA3;
    else
        return dt_node_error(dt_map_get(hf->map, key), hf->err,
                             "%s: \"%s\" is not supported (supported: default, linear, llama3)",
                             key, type);
    return DT_OK;
}

static enum dt_status needs(const struct dt_hf *hf, const char *key, double *out)
{
    if (!dt_hf_has(hf, key))
        return dt_node_error(hf->map, hf->err, "this kind of rope needs \"%s\"", key);
    return dt_get_double(hf->map, key, 0, DT_ROPE_FACTOR_MAX, out, hf->err);
}

/* Inside of rope_scaling or rope_parameters. */
static enum dt_status read_inside(const struct dt_hf *hf, int positions, struct dt_rope *r)
{
    DT_TRY(dt_hf_check_keys(hf, DT_HF_ROPE));
    if (dt_hf_has(hf, "rope_theta"))
        DT_TRY(dt_get_double(hf->map, "rope_theta", DT_ROPE_THETA_MIN, DT_ROPE_THETA_MAX, &r->theta,
                             hf->err));
    DT_TRY(scaling_of(hf, &r->scaling));
    if (r->scaling == DT_ROPE_PLAIN)
        return DT_OK;
    DT_TRY(needs(hf, "factor", &r->factor));
    if (r->scaling == DT_ROPE_LLAMA3) {
        DT_TRY(needs(hf, "low_freq_factor", &r->low_freq));
        DT_TRY(needs(hf, "high_freq_factor", &r->high_freq));
        DT_TRY(dt_hf_int(hf, "original_max_position_embeddings", DT_LIM_POSITIONS, positions,
                         &r->original));
    }
    return dt_rope_check(hf->map, r, hf->err);
}

/* A scaling that is planned, not run: angles cost the same.  Only theta is read. */
static bool only_planned(const struct dt_hf *hf, struct dt_node node, struct dt_shape *s)
{
    static const struct {
        const char *name, *what;
    } kinds[] = {{"yarn", "yarn rotary positions"},
                 {"longrope", "longrope rotary positions"},
                 {"su", "longrope rotary positions"},
                 {"dynamic", "dynamic rotary positions"},
                 {"mrope", "multimodal rotary positions"}};
    const char *type = dt_node_text(dt_map_get(node, "rope_type")), *what = NULL;

    if (!type)
        type = dt_node_text(dt_map_get(node, "type"));
    for (size_t i = 0; hf->planned && type && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].name, type) == 0)
            what = kinds[i].what;
    if (hf->planned && dt_node_present(dt_map_get(node, "mrope_section")))
        what = "multimodal rotary positions";
    if (what)
        s->planned_only = what;
    return what != NULL;
}

enum dt_status dt_hf_rope(const struct dt_hf *hf, double theta, struct dt_shape *s)
{
    const char *key = dt_hf_has(hf, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    struct dt_node node = dt_hf_get(hf, key);
    struct dt_rope r = {.theta = 0};
    int positions = 2048; /* LlamaConfig's */

    if (dt_hf_has(hf, "max_position_embeddings"))
        DT_TRY(dt_get_i32(hf->map, "max_position_embeddings", 1, DT_LIM_POSITIONS, &positions,
                          hf->err));
    if (dt_hf_has(hf, "rope_parameters") && dt_hf_has(hf, "rope_scaling"))
        return dt_node_error(node, hf->err,
                             "rope_parameters: rope_scaling says the same; state one of them");
    if (dt_hf_has(hf, "rope_theta"))
        DT_TRY(dt_get_double(hf->map, "rope_theta", DT_ROPE_THETA_MIN, DT_ROPE_THETA_MAX, &r.theta,
                             hf->err));
    if (dt_node_present(node)) {
        struct dt_hf inside = *hf;

        if (!dt_node_is_map(node))
            return dt_node_error(node, hf->err, "%s: expected an object or null", key);
        inside.map = node;
        inside.type = key;
        if (!only_planned(hf, node, s))
            DT_TRY(read_inside(&inside, positions, &r));
        else if (dt_hf_has(&inside, "rope_theta"))
            DT_TRY(dt_get_double(node, "rope_theta", DT_ROPE_THETA_MIN, DT_ROPE_THETA_MAX, &r.theta,
                                 hf->err));
    }
    if (r.theta <= 0) {
        r.theta = theta;
        dt_hf_assume(hf, "rope_theta: %g", theta);
    }
    s->arith.rope = r;
    return DT_OK;
}
