/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Kept indexes: where the samples of one shard lie, in a file, so that a data set opens without a
 * pass over the headers of all its members.
 *
 * One file for each shard, named after it: in a folder beside the shard or, where that cannot be
 * written, in the user's cache folder, or in a folder that was named.  It is believed only if it is
 * whole (CRC-32C), of this shard's name and size, and if the shard was not touched since (inode and
 * times) or its content check is still the same (shard_print.h); else the shard is passed over again
 * and the file replaced.  Shards with damage have none.
 *
 * Numbers are little-endian:
 *
 *   magic u32 | version u32 | shard: bytes u64, inode u64, modified_ns i64, changed_ns i64, crc u32 |
 *   length of the name u64 | samples u64 | name | samples x (offset u64, bytes u64) | CRC-32C u32 */
#ifndef DT_EXEC_DATA_SHARD_KEPT_H
#define DT_EXEC_DATA_SHARD_KEPT_H

#include "exec/data/shard.h"
#include "exec/data/shard_print.h"

enum { DT_SHARD_KEPT_VERSION = 1 };
/* Of the folder beside the shards. */
#define DT_SHARD_KEPT_FOLDER ".disttrain-index"

struct dt_shard_kept {
    struct dt_shard_print print; /* of the shard */
    struct dt_shard_place *samples;
    size_t n;
};

/* *out: dt_free. */
enum dt_status dt_shard_kept_encode(const struct dt_shard_kept *k, struct dt_error *err,
                                    uint8_t **out, size_t *len);
/* DT_ERR_INPUT for anything that is not a whole index whose places can be: in order, apart, in whole
 * blocks and inside of the shard.  k->samples: dt_free; their shard is number 0. */
enum dt_status dt_shard_kept_decode(const uint8_t *bytes, size_t len, struct dt_error *err,
                                    struct dt_shard_kept *out);

/* The index of the shard at `path`, open as `fd`, if one is kept and right.  DT_ERR_INPUT: there is
 * none (no message is worth showing).  Its file is brought up to date where only times differ. */
enum dt_status dt_shard_kept_find(struct dt_shard_keep *keep, const char *path, int fd,
                                  struct dt_error *err, struct dt_shard_kept *out);
/* Keeps one.  Where it cannot be written is no error, but for a folder that was named; keep->why
 * says it. */
enum dt_status dt_shard_kept_write(struct dt_shard_keep *keep, const char *path,
                                   const struct dt_shard_kept *k, struct dt_error *err);

#endif
