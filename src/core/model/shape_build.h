/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Block list builder: the same walk first counts (no storage), then writes. */
#ifndef DT_CORE_MODEL_SHAPE_BUILD_H
#define DT_CORE_MODEL_SHAPE_BUILD_H

#include "core/model/shape.h"

struct dt_shape_builder {
    struct dt_block *blocks;
    int n, cap;
    struct dt_block spare; /* where blocks go while counting */
};
struct dt_block *dt_shape_builder_add(struct dt_shape_builder *b, enum dt_block_kind kind);
/* shape_unet.c */
void dt_shape_build_unet(const struct dt_shape_unet *u, struct dt_shape_builder *b);

#endif
