/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows that tables of several kinds of modules have; inside shape_keys*.c only. */
#ifndef DT_CORE_MODEL_SHAPE_KEYS_H
#define DT_CORE_MODEL_SHAPE_KEYS_H

#include "core/model/shape.h"

extern const char *const dt_shape_modality_words[];
extern const char *const dt_shape_projector_words[];
extern const char *const dt_shape_projector_norm_words[];
extern const struct dt_key dt_shape_unet_keys[];
/* What says where the other keys come from is read before them. */
enum dt_status dt_shape_read_before(struct dt_node map, const struct dt_key *key, void *into,
                                    struct dt_error *err);

/* in more than one kind of module */
#define DT_SHAPE_COMMON_ROWS                                                                       \
    {.name = "name", .type = DT_KEY_OWN, .form = "string", .fallback = "none", .help = "a note"},  \
        {.name = "kind",                                                                           \
         .type = DT_KEY_WORD,                                                                      \
         .words = dt_shape_kind_words,                                                             \
         .read = dt_shape_read_before,                                                             \
         .fallback = "that of preset or hf",                                                       \
         .help = "of module"},                                                                     \
        {.name = "preset",                                                                         \
         .type = DT_KEY_OWN,                                                                       \
         .form = "preset or path",                                                                 \
         .file = DT_KEY_PRESET,                                                                    \
         .fallback = "none",                                                                       \
         .help = "a module that the other keys change"},                                           \
        {.name = "hf",                                                                             \
         .type = DT_KEY_OWN,                                                                       \
         .form = "path of a config.json, or map",                                                  \
         .file = DT_KEY_FILE,                                                                      \
         .keys = dt_shape_hf_keys,                                                                 \
         .fallback = "none",                                                                       \
         .help = "a Hugging Face configuration that the other keys change"},                       \
    {                                                                                              \
        .name = "modality", .type = DT_KEY_WORD, DT_KEY_INTO(struct dt_shape, modality),           \
        .words = dt_shape_modality_words, .help = "what the module reads or makes"                 \
    }
#define DT_SHAPE_PROJECTOR_ROWS                                                                    \
    {.name = "projector",                                                                          \
     .type = DT_KEY_WORD,                                                                          \
     DT_KEY_INTO(struct dt_shape, projector),                                                      \
     .words = dt_shape_projector_words,                                                            \
     .help = "joins the module to the LLM"},                                                       \
        {.name = "projector_hidden",                                                               \
         .type = DT_KEY_INTEGER,                                                                   \
         DT_KEY_INTO(struct dt_shape, projector_hidden),                                           \
         .min = 1,                                                                                 \
         .max = DT_LIM_HIDDEN,                                                                     \
         .fallback = "that of its output",                                                         \
         .help = "width between a projector's layers"},                                            \
        {.name = "projector_norm",                                                                 \
         .type = DT_KEY_WORD,                                                                      \
         DT_KEY_INTO(struct dt_shape, projector_norm),                                             \
         .words = dt_shape_projector_norm_words,                                                   \
         .help = "of the rows that it takes in"},                                                  \
    {                                                                                              \
        .name = "projector_bias", .type = DT_KEY_BOOL,                                             \
        DT_KEY_INTO(struct dt_shape, projector_bias), .help = "biases of its layers"               \
    }
#define DT_SHAPE_RESIZE_ROW                                                                        \
    {                                                                                              \
        .name = "resize", .type = DT_KEY_INTEGER, DT_KEY_INTO(struct dt_shape, resize), .min = 0,  \
        .max = 1 << 15, .help = "pixels a side to which images are resized; 0: their own"          \
    }
#define DT_SHAPE_RATE_ROW(FALLBACK)                                                                \
    {                                                                                              \
        .name = "frames_per_s", .type = DT_KEY_NUMBER, DT_KEY_INTO(struct dt_shape, frames_per_s), \
        .min = 1e-3, .max = 1e6, .fallback = FALLBACK,                                             \
        .help = "tokens or latent pixels per second of sound"                                      \
    }

#endif
