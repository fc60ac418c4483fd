/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs of Gemma 1 to 3 -> shapes.  Defaults are those of transformers' config classes. */
#include "core/model/hf.h"

#include <math.h>
#include <string.h>

static enum dt_status gemma(const struct dt_hf *hf, int kv_heads, struct dt_shape *s)
{
    const struct dt_hf_habits habits = {.norm_eps = 1e-6,
                                        .theta = 10000,
                                        .kv_heads = kv_heads,
                                        .tied = true,
                                        .activation_key = "hidden_activation",
                                        .activation = "gelu_pytorch_tanh"};

    DT_TRY(dt_hf_llama_like(hf, &habits, s));
    if (s->head_dim == 0)
        DT_TRY(dt_hf_int(hf, "head_dim", DT_LIM_HEADS, 256, &s->head_dim));
    s->planned_only = "scaled embeddings and norms of 1 + weight (Gemma)";
    return DT_OK;
}

enum dt_status dt_hf_gemma(const struct dt_hf *hf, struct dt_shape *s)
{
    return gemma(hf, 16, s);
}

/* Every how many layers one attends to all: where layer_types has them, or by sliding_window_pattern. */
static enum dt_status pattern(const struct dt_hf *hf, int fallback, int *out)
{
    struct dt_node list = dt_hf_get(hf, "layer_types");
    int every = 0;

    if (dt_hf_has(hf, "sliding_window_pattern"))
        return dt_hf_need(hf, "sliding_window_pattern", DT_LIM_LAYERS, out);
    if (!dt_node_present(list)) {
        *out = fallback;
        return DT_OK;
    }
    for (size_t i = 0; i < dt_seq_size(list); i++) {
        const char *text = dt_node_text(dt_seq_at(list, i));
        bool full = text && strcmp(text, "full_attention") == 0;

        if (!text || (!full && strcmp(text, "sliding_attention") != 0))
            return dt_node_error(dt_seq_at(list, i), hf->err,
                                 "layer_types: \"%.60s\" is not supported (supported: "
                                 "full_attention, sliding_attention)",
                                 text ? text : "?");
        if (full && every == 0)
            every = (int)i + 1;
        if (full != (every > 0 && (i + 1) % (size_t)every == 0))
            return dt_node_error(dt_seq_at(list, i), hf->err,
                                 "layer_types: layers with full attention are supported at equal "
                                 "distances, as every 6th");
    }
    *out = every;
    return DT_OK;
}

static enum dt_status windowed(const struct dt_hf *hf, int window, int every, struct dt_shape *s)
{
    double scalar = 256;

    DT_TRY(gemma(hf, 4, s));
    DT_TRY(dt_hf_int(hf, "sliding_window", DT_LIM_POSITIONS, window, &s->window));
    DT_TRY(pattern(hf, every, &s->window_every));
    DT_TRY(dt_hf_double(hf, "query_pre_attn_scalar", 1, 1e6, 256, &scalar));
    s->arith.attention_scale = 1 / sqrt(scalar);
    s->norms = 4;
    return DT_OK;
}

enum dt_status dt_hf_gemma2(const struct dt_hf *hf, struct dt_shape *s)
{
    return windowed(hf, 4096, 2, s);
}

enum dt_status dt_hf_gemma3(const struct dt_hf *hf, struct dt_shape *s)
{
    DT_TRY(windowed(hf, 4096, 6, s));
    s->qk_norm = true;
    return DT_OK;
}
