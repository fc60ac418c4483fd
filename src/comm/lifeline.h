/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A rank must not outlive what started it.  Two ways, since each alone has a gap: the kernel's
 * signal at the parent's death, which reaches a process that is stopped, but only from its very
 * parent; and a thread that watches the processes further up by file descriptors, and the parent
 * where its threads make that signal unreliable. */
#ifndef DT_COMM_LIFELINE_H
#define DT_COMM_LIFELINE_H

#include "base/status.h"
#include <sys/types.h>

/* In a child, between fork and exec: `sig` when `parent`, which forked it, ends.  Ends at once if
 * it has already.  Does only what a signal handler may. */
void dt_lifeline_follow(pid_t parent, int sig);

/* In the process that is to become the launcher, just before: hands down, in DISTTRAIN_LAUNCHER,
 * who it is and who started it (`parent`). */
void dt_lifeline_hand_down(pid_t parent);
/* In a rank, once, before anything that takes long: from now on it ends when the launcher or what
 * started that does.  Nothing happens in a process that no launcher started. */
enum dt_status dt_lifeline_hold(struct dt_error *err);
/* When that happens the process of this descriptor is killed, too: it may be stopped, and not see
 * it for itself.  The descriptor stays the caller's. */
void dt_lifeline_share(int pidfd);

#endif
