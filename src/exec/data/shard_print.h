/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fingerprints of shards by their contents, which a checkpoint keeps: a training that goes on must
 * find the data that it was trained on.
 *
 * A print is the CRC-32 of a whole shard, or, where all shards together are larger than
 * DT_PRINT_WHOLE_MAX, of DT_PRINT_BLOCKS blocks of DT_PRINT_BLOCK bytes that are spread evenly over
 * it, its first and its last among them.  A file that is still what it was by size, inode and both
 * times (nothing but the system sets the time of the last status change) is not read again. */
#ifndef DT_EXEC_DATA_SHARD_PRINT_H
#define DT_EXEC_DATA_SHARD_PRINT_H

#include "base/doc.h"
#include "base/json.h"
#include "base/status.h"

#define DT_PRINT_WHOLE_MAX (INT64_C(2) << 30)
enum { DT_PRINT_BLOCKS = 64, DT_PRINT_BLOCK = 1 << 16 };

struct dt_shard_print {
    char name[256]; /* without its folder */
    int64_t bytes;
    uint32_t crc;
    bool sampled;
    /* What tells that the file was not touched; changed_ns 0: too young to tell. */
    int64_t inode, modified_ns, changed_ns;
};
struct dt_shard_prints { /* zero-initialised is valid */
    struct dt_shard_print *p;
    int n;
};

/* Of one shard, open as `fd`.  `sampled` says which kind, unless `known` (or NULL) does. */
enum dt_status dt_shard_print_take(int fd, const char *path, const struct dt_shard_print *known,
                                   bool sampled, struct dt_error *err, struct dt_shard_print *out,
                                   int64_t *read_bytes);
/* Of the shards as they are.  With `known` (or NULL) the same kind of print is taken of a shard as
 * is known, and the known one where the file was not touched; *read_bytes (may be NULL) is what had
 * to be read.  `whole_max` 0 = DT_PRINT_WHOLE_MAX. */
enum dt_status dt_shard_prints_take(const char *const *paths, int n,
                                    const struct dt_shard_prints *known, int64_t whole_max,
                                    struct dt_error *err, struct dt_shard_prints *out,
                                    int64_t *read_bytes);
/* DT_ERR_INPUT names the first shard that is not what it was, and says what it was. */
enum dt_status dt_shard_prints_compare(const struct dt_shard_prints *was,
                                       const struct dt_shard_prints *is, const char *const *paths,
                                       struct dt_error *err);
void dt_shard_prints_free(struct dt_shard_prints *s);

/* As the value of a JSON key, and back. */
void dt_shard_prints_write(const struct dt_shard_prints *s, struct dt_json *j);
enum dt_status dt_shard_prints_read(struct dt_node list, struct dt_error *err,
                                    struct dt_shard_prints *out);

#endif
