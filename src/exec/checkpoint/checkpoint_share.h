/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A rank's share of a checkpoint, written by a thread of its own while training goes on.
 *
 *   every rank   dt_ckpt_share_new       counts its files
 *   rank 0       dt_ckpt_share_folder    makes the folder
 *   every rank   dt_ckpt_share_start     begins to write; its files are numbered among those of all
 *                                        ranks, and next to them lies its part of the manifest
 *   every rank   dt_ckpt_share_done      asked now and then; at last dt_ckpt_share_end
 *   rank 0       dt_ckpt_share_commit    when all have ended without an error;
 *                dt_ckpt_share_abandon   else
 *
 * Until the commit there is nothing but a folder with a temporary name. */
#ifndef DT_EXEC_CHECKPOINT_CHECKPOINT_SHARE_H
#define DT_EXEC_CHECKPOINT_CHECKPOINT_SHARE_H

#include "exec/checkpoint/checkpoint.h"

struct dt_ckpt_sharing;
struct dt_ckpt_share_files {
    int model, optimizer;
};

/* What the parts point to stays as it is until dt_ckpt_share_end.  The originals of shared tables are in some
 * rank's share, so copies of them are left out.  shard_bytes_max 0 = the default. */
enum dt_status dt_ckpt_share_new(const struct dt_ckpt_part *parts, int n_parts, int64_t step,
                                 int64_t shard_bytes_max, struct dt_error *err,
                                 struct dt_ckpt_sharing **out, struct dt_ckpt_share_files *files);
/* Makes DIR and in it the folder to write into, which goes by *tag < 2^53. */
enum dt_status dt_ckpt_share_folder(const char *dir, int64_t step, const char *run_id,
                                    struct dt_error *err, uint64_t *tag);
/* files[0 .. n_ranks): of all ranks; tag: of the folder. */
enum dt_status dt_ckpt_share_start(struct dt_ckpt_sharing *s, const char *dir, uint64_t tag,
                                   int rank, const struct dt_ckpt_share_files *files, int n_ranks,
                                   struct dt_error *err);
bool dt_ckpt_share_done(struct dt_ckpt_sharing *s);
/* Waits and frees; the writer's status.  NULL is ignored. */
enum dt_status dt_ckpt_share_end(struct dt_ckpt_sharing *s, struct dt_error *err);

/* By the process that made the folder.  On failure the folder is gone. */
enum dt_status dt_ckpt_share_commit(const char *dir, uint64_t tag,
                                    const struct dt_ckpt_state *state,
                                    const struct dt_ckpt_options *opt,
                                    const struct dt_ckpt_share_files *files, int n_ranks,
                                    struct dt_error *err, char *path, size_t path_size);
void dt_ckpt_share_abandon(const char *dir, int64_t step, uint64_t tag);

#endif
