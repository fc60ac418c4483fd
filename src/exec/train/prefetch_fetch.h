/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the lanes of a rank take of a batch whose sequences came as sizes only. */
#ifndef DT_EXEC_TRAIN_PREFETCH_FETCH_H
#define DT_EXEC_TRAIN_PREFETCH_FETCH_H

#include "core/schedule/assign.h"
#include "exec/data/sequence.h"
#include "exec/feed/client.h"
#include "exec/program/placement.h"

struct dt_prefetch_share {
    const struct dt_model *model;
    const struct dt_placement *place;
    int rank;
    struct dt_feed_client *feed;    /* where they are fetched from; or NULL: */
    const struct dt_loader *loader; /* from the shards, by so many threads */
    int threads;
};
struct dt_prefetch_bad { /* places whose images turned out to be none; dt_free */
    int64_t *place;      /* with room for one more */
    int n;
};
/* Text of the samples of its LLM lanes that is not there yet, pixels of the items of its encoder and
 * generator lanes. */
enum dt_status dt_prefetch_fetch(const struct dt_prefetch_share *share,
                                 const struct dt_assignment *a, struct dt_sequence **seqs,
                                 int64_t n, struct dt_error *err, struct dt_prefetch_bad *bad);

#endif
