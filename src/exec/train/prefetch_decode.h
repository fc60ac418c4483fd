/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Documents read whole by threads of this rank. */
#ifndef DT_EXEC_TRAIN_PREFETCH_DECODE_H
#define DT_EXEC_TRAIN_PREFETCH_DECODE_H

#include "exec/feed/client.h"

/* f[k].doc of each place, good or bad, by the calling thread and threads - 1 others. */
enum dt_status dt_prefetch_decode(const struct dt_loader *l, int threads, struct dt_feed_fetch *f,
                                  int n, struct dt_error *err);

#endif
