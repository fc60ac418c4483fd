/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Packing, the inside.  Shared by pack*.c only. */
#ifndef DT_EXEC_DATA_PACK_IMPL_H
#define DT_EXEC_DATA_PACK_IMPL_H

#include "base/hashtable.h"
#include "exec/data/pack.h"
#include "exec/data/shard.h"

struct dt_pack_state {
    const struct dt_pack_options *o;
    struct dt_shard_writer *w;
    struct dt_data_report *report;
    struct dt_error *err;
    int64_t samples;
    size_t root;               /* length of the folder's path, and of the '/' behind it */
    int folder;                /* its number among several, from 1; 0: it is the only one */
    struct dt_hash_table seen; /* keys, and paths that were packed */
};

/* As many samples as were asked for. */
bool dt_pack_full(const struct dt_pack_state *p);
enum dt_status dt_pack_start(struct dt_pack_state *p);
enum dt_status dt_pack_finish(struct dt_pack_state *p, enum dt_status st,
                              struct dt_pack_result *out);
enum dt_status dt_pack_write(struct dt_pack_state *p, const char *key,
                             const struct dt_shard_member *m, int n);
/* Counts what is wrong with a file, or with a place in it; DT_OK to go on. */
enum dt_status dt_pack_bad(struct dt_pack_state *p, enum dt_data_bad_kind kind, const char *path,
                           int line, int col, const char *what);

#endif
