/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The keys of U-Nets, many of which are lists with a value for each level. */
#include "base/number.h"
#include "core/model/shape_keys.h"

#include <string.h>

static enum dt_status level_value(struct dt_node n, const char *key, int min, int max, bool boolean,
                                  int *out, struct dt_error *err)
{
    const char *text = dt_node_text(n);
    int64_t v = 0;

    if (boolean && text && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)) {
        *out = text[0] == 't';
        return DT_OK;
    }
    if (boolean)
        return dt_node_error(n, err, "%s: expected true or false for each level", key);
    if (!text || !dt_number_int(text, &v) || v < min || v > max)
        return dt_node_error(n, err, "%s: expected an integer from %d to %d for each level", key,
                             min, max);
    *out = (int)v;
    return DT_OK;
}

static enum dt_status get_levels(struct dt_node map, const char *key, int levels, int min, int max,
                                 bool boolean, int *out, struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);
    size_t size = dt_seq_size(n);
    int values[DT_MAX_LEVELS] = {0};

    if (!dt_node_present(n))
        return DT_OK;
    if (!dt_node_is_seq(n)) { /* one value for all levels */
        DT_TRY(level_value(n, key, min, max, boolean, &values[0], err));
        for (int i = 0; i < DT_MAX_LEVELS; i++)
            out[i] = values[0];
        return DT_OK;
    }
    if ((int)size != levels)
        return dt_node_error(n, err, "%s: %zu values for %d levels; give one per entry of channels",
                             key, size, levels);
    for (int i = 0; i < levels; i++)
        DT_TRY(level_value(dt_seq_at(n, (size_t)i), key, min, max, boolean, &values[i], err));
    memcpy(out, values, sizeof(values));
    return DT_OK;
}

static enum dt_status read_channels(struct dt_node map, const struct dt_key *key, void *into,
                                    struct dt_error *err)
{
    struct dt_shape_unet *u = &((struct dt_shape *)into)->unet;
    struct dt_node list = dt_map_get(map, key->name);
    size_t levels = dt_seq_size(list);

    if (levels < 1 || levels > DT_MAX_LEVELS)
        return dt_node_error(list, err,
                             "channels: expected a list of 1 to %d channel counts, one "
                             "per level, such as [320, 640, 1280, 1280]",
                             DT_MAX_LEVELS);
    if (u->n_levels > 0 && u->time_dim == 4 * u->channels[0])
        u->time_dim = 0; /* derived numbers are derived anew */
    u->n_levels = (int)levels;
    memset(u->heads, 0, sizeof(u->heads));
    return get_levels(map, key->name, u->n_levels, (int)key->min, (int)key->max, false, u->channels,
                      err);
}

static enum dt_status read_levels(struct dt_node map, const struct dt_key *key, void *into,
                                  struct dt_error *err)
{
    struct dt_shape *s = into;

    return get_levels(map, key->name, s->unet.n_levels, (int)key->min, (int)key->max, false,
                      (int *)((char *)into + key->at), err);
}

static enum dt_status read_level_flags(struct dt_node map, const struct dt_key *key, void *into,
                                       struct dt_error *err)
{
    struct dt_shape *s = into;

    return get_levels(map, key->name, s->unet.n_levels, 0, 1, true, s->unet.attention, err);
}

const struct dt_key dt_shape_unet_keys[] = {
    DT_SHAPE_COMMON_ROWS,
    {.name = "channels",
     .type = DT_KEY_OWN,
     .min = 1,
     .max = DT_LIM_CHANNELS,
     .form = "list of integers",
     .read = read_channels,
     .needed = "[320, 640, 1280, 1280]",
     .help = "per level, from the input down"},
    {.name = "attention",
     .type = DT_KEY_OWN,
     .form = "bool or list of bools",
     .read = read_level_flags,
     .fallback = "none",
     .help = "levels with spatial transformers"},
    {.name = "depth",
     .type = DT_KEY_OWN,
     DT_KEY_INTO(struct dt_shape, unet.depth),
     .min = 1,
     .max = 64,
     .form = "integer or list of integers",
     .read = read_levels,
     .fallback = "1",
     .help = "layers of a spatial transformer, per level"},
    {.name = "heads",
     .type = DT_KEY_OWN,
     DT_KEY_INTO(struct dt_shape, unet.heads),
     .min = 1,
     .max = DT_LIM_HEADS,
     .form = "integer or list of integers",
     .read = read_levels,
     .fallback = "from head_dim",
     .help = "attention heads, per level"},
    {.name = "head_dim",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.head_dim),
     .min = 1,
     .max = DT_LIM_HEADS,
     .fallback = "64",
     .help = "width of a head"},
    {.name = "res_blocks",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.res_blocks),
     .min = 1,
     .max = 16,
     .help = "ResBlocks per level on the way down"},
    {.name = "in_channels",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.in_channels),
     .min = 1,
     .max = DT_LIM_CHANNELS,
     .help = "latent channels read"},
    {.name = "out_channels",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.out_channels),
     .min = 1,
     .max = DT_LIM_CHANNELS,
     .help = "latent channels made"},
    {.name = "time_dim",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.time_dim),
     .min = 1,
     .max = DT_LIM_HIDDEN,
     .fallback = "4 times the first channel count",
     .help = "width of the time embedding"},
    {.name = "context_dim",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.context_dim),
     .min = 1,
     .max = DT_LIM_HIDDEN,
     .fallback = "none; context_len needs it",
     .help = "width of the conditioning states"},
    {.name = "context_len",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.context_len),
     .min = 0,
     .max = 1 << 16,
     .help = "conditioning states of an item"},
    {.name = "class_dim",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.class_dim),
     .min = 0,
     .max = DT_LIM_HIDDEN,
     .help = "width of a pooled condition"},
    {.name = "class_layers",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.class_layers),
     .min = 1,
     .max = 2,
     .help = "layers that bring it to time_dim"},
    {.name = "class_concat",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, unet.class_concat),
     .help = "it is concatenated, not added"},
    DT_SHAPE_RESIZE_ROW,
    {.name = "latent_scale",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, latent_scale),
     .min = 1,
     .max = 1 << 10,
     .help = "pixels per latent side"},
    DT_SHAPE_RATE_ROW("none; audio needs it"),
    DT_SHAPE_PROJECTOR_ROWS,
    {.name = "norm_eps",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_shape, arith.norm_eps),
     .min = DT_NORM_EPS_MIN,
     .max = 1,
     .fallback = "1e-5",
     .help = "added to the variance in norms of ResBlocks"},
    {.name = "norm_groups",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_shape, unet.norm_groups),
     .min = 1,
     .max = DT_LIM_CHANNELS,
     .fallback = "32, or fewer below 4 channels each",
     .help = "groups of every norm"},
    {.name = "freq_shift",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_shape, arith.freq_shift),
     .min = 0,
     .max = 1,
     .help = "shift in the timestep's frequencies"},
    {.name = "sine_first",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_shape, arith.sine_first),
     .help = "sines come before cosines of the timestep"},
    {.name = NULL},
};
