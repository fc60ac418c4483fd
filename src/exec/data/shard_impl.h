/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shards, the inside.  Shared by shard*.c only. */
#ifndef DT_EXEC_DATA_SHARD_IMPL_H
#define DT_EXEC_DATA_SHARD_IMPL_H

#include "exec/data/shard.h"

#include <archive.h>
#include <archive_entry.h>

/* Length of the key in a member's path, or 0 if it has none (no base name, or one that begins with
 * a dot). The extension follows the dot at path[length], if any. */
size_t dt_shard_key_length(const char *path);

/* The name of a regular file, or NULL (directories, links, devices). */
const char *dt_shard_member_path(struct archive_entry *e);

#endif
