/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One training at a time in a checkpoint folder.
 *
 * DIR/lock names host, process and run.  It is made under another name and linked into place, which
 * is atomic on NFS, too, where flock and fcntl need not be; where there are no hard links O_EXCL
 * makes it.  A thread of the owner renews the file's time.  A process of this machine is looked up
 * (number and start), so that a lock of a killed one is stale at once; one of another host is stale
 * when its time has not been renewed for DISTTRAIN_LOCK_STALE_S seconds (default 120), by the clock
 * of the file system. */
#ifndef DT_EXEC_CHECKPOINT_CHECKPOINT_LOCK_H
#define DT_EXEC_CHECKPOINT_CHECKPOINT_LOCK_H

#include "base/status.h"
#include <signal.h>

struct dt_ckpt_lock;
struct dt_ckpt_lock_options {
    const char *run_id; /* that goes on here, and may wait for the rest of itself; NULL = any */
    const volatile sig_atomic_t *stop; /* not 0: give up waiting; NULL = never */
    const struct dt_warn *warn;
};

/* Makes DIR if need be.  DT_ERR_INPUT when another training has it, with a message that names it.
 * Waits for a lock of another host to be renewed (then it is refused) or to become stale, and for
 * the process of an earlier attempt of `run_id` to end. */
enum dt_status dt_ckpt_lock(const char *dir, const struct dt_ckpt_lock_options *o,
                            struct dt_error *err, struct dt_ckpt_lock **out);
/* Says which run it is, in the lock and in DIR/run.json. */
enum dt_status dt_ckpt_lock_run(struct dt_ckpt_lock *l, const char *run_id, struct dt_error *err);
/* DT_OK while it is still ours; takes it again if somebody has removed it. */
enum dt_status dt_ckpt_lock_check(struct dt_ckpt_lock *l, struct dt_error *err);
/* NULL is ignored. */
void dt_ckpt_unlock(struct dt_ckpt_lock *l);

#endif
