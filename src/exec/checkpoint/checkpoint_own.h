/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What in a checkpoint folder is ours.
 *
 * Every folder that a save makes gets a file ".disttrain" first, which says who made it for which
 * run; a checkpoint from before there was one is known by its manifest.  Only such folders are ever
 * emptied, of files that a save writes only, and never through a symbolic link.  Shared by
 * checkpoint*.c only. */
#ifndef DT_EXEC_CHECKPOINT_CHECKPOINT_OWN_H
#define DT_EXEC_CHECKPOINT_CHECKPOINT_OWN_H

#include "base/status.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_host.h"

#define DT_CKPT_MARKER ".disttrain"

/* Whose a folder is. */
struct dt_ckpt_owner {
    char run_id[DT_RUN_ID_SIZE];
    struct dt_ckpt_process process; /* that made it; zero where nothing says so */
};

/* Into a folder that was just made. */
enum dt_status dt_ckpt_mark(const char *folder, const char *run_id, struct dt_error *err);
/* Whose the folder `name` of the open folder `dir` is; false: not ours (a symbolic link, say). */
bool dt_ckpt_owned(int dir, const char *name, struct dt_ckpt_owner *out);
/* The same for a complete checkpoint: by its marker, else by its manifest. */
bool dt_ckpt_complete(int dir, const char *name, char run_id[DT_RUN_ID_SIZE]);

enum dt_ckpt_removed { DT_CKPT_GONE, DT_CKPT_LATER, DT_CKPT_OTHERS_INSIDE, DT_CKPT_NOT_OURS };
/* Empties a folder of ours of what a save writes and removes it.  DT_CKPT_OTHERS_INSIDE: something
 * else is in there, which stays, and the folder with it, no longer ours. */
enum dt_ckpt_removed dt_ckpt_empty(int dir, const char *name);
/* A file that this program was writing under a temporary name when it was killed. */
bool dt_ckpt_temp_file(int dir, const char *name);

/* For a descriptor: the regular file `name` of `dir`, at most `max` bytes, NUL-terminated; -1 if
 * there is no such file. */
long dt_ckpt_slurp(int dir, const char *name, char *buf, size_t max);

#endif
