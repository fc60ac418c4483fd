/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The name under which a profile knows the time of a whole block (op "block"). */
#ifndef DT_CORE_MODEL_BLOCK_KEY_H
#define DT_CORE_MODEL_BLOCK_KEY_H

#include "core/model/model.h"

/* A positive number that stands for everything about the block that its time depends on, besides
 * the work: its shape, how it is split, what its backward computes again.  64-bit FNV-1a of the
 * fields, its upper 47 bits. */
int64_t dt_block_key(const struct dt_block *b, const struct dt_block_shard *s);

/* Rows of blocks with attention are over equivalent tokens: as many tokens of sequences of length 1 as have the FLOPs of
 * the work, since tokens of long sequences and large images cost more.  They have a key of their own: rows under
 * dt_block_key are over tokens, as all were once.  The two are the same where nothing attends. */
int64_t dt_block_work_key(const struct dt_block *b, const struct dt_block_shard *s);
double dt_block_equivalent_tokens(const struct dt_block *b, const struct dt_work *w);

#endif
