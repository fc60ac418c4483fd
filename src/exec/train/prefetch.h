/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Global batches, made ahead of the steps that take them.
 *
 *   loader --> sequences --> order and assignment --> program     a thread of its own
 *                                                     |
 *                                     [ at most DT_PREFETCH_BATCHES wait ]
 *                                                     |
 *                                                     v
 *                                                  the steps      the caller's thread
 *
 * A batch depends on those before it and on nothing that a step does: what comes out is the same as
 * if each were made when it is asked for, on every rank.  Errors come with the batch that they are
 * of, so a batch that no step needs does no harm. */
#ifndef DT_EXEC_TRAIN_PREFETCH_H
#define DT_EXEC_TRAIN_PREFETCH_H

#include "report/runs.h"
#include "exec/train/prefetch_fetch.h"
#include "core/orchestrate/orchestrate_mix.h"
#include "exec/train/setup.h"
#include "exec/train/turns.h"

enum { DT_PREFETCH_BATCHES = 2 };

struct dt_prefetch_batch {
    struct dt_sequence **seqs;
    int64_t n; /* the global batch */
    struct dt_assignment *assignment;
    struct dt_assign_choice how; /* it was chosen */
    struct dt_program *program;
    double model_flops;           /* of one iteration */
    double flops[DT_MAX_MODULES]; /* of it, each module's */
    uint64_t samples_digest;      /* report/run_facts.h */
    struct dt_data_cursor cursor; /* of the loader behind this batch */
    struct dt_data_report data;   /* of the loader then */
    /* taking and packing the data, and fetching this rank's share of it; costing, assigning and
     * compiling */
    double load_s, order_s;
    struct dt_feed_client_report feed; /* then */
    struct dt_loader_mark before;      /* where the loader began with it */
    struct dt_prefetch_bad bad;        /* in this rank's share */
    struct dt_orch_mix_found
        *mix; /* of a window that this batch filled and that asks for another plan; else NULL */
};
void dt_prefetch_batch_free(struct dt_prefetch_batch *b);

struct dt_prefetch_report { /* of the batches taken so far */
    int64_t batches;
    int64_t waits;          /* batches behind the first that were not ready when asked for */
    double load_s, order_s; /* sums over all of them, in the thread */
    double first_s;         /* what the first was waited for: nothing runs beside it */
    double exposed_s;       /* what the others were waited for */
    int producers;          /* 0 = shards */
    int64_t decoded;        /* images, by this rank */
    struct dt_feed_client_report feed; /* then */
};

/* When the thread was at work on a batch, on this rank's dt_clock_ns. */
struct dt_prefetch_span {
    int64_t batch; /* counted from 0 */
    enum dt_run_data_work work;
    uint64_t begin_ns, end_ns;
};
/* Of the last batches: those that wait, the one before them. */
enum { DT_PREFETCH_SPANS = DT_DATA_WORK_N * (DT_PREFETCH_BATCHES + 1) };

struct dt_prefetch;
/* Where batches come from; all of it is the thread's alone until dt_prefetch_close, as is the setup's cost model. */
struct dt_prefetch_data {
    struct dt_loader *loader;
    struct dt_feed_client *feed; /* what the loader's documents come from; NULL = shards */
    int rank, ranks;             /* whose share is fetched or decoded of it */
    int threads;                 /* that decode it, if the loader leaves out pixels */
    /* orders take turns, of shards alone; programs point to its plans.  NULL: the setup's plan */
    const struct dt_train_turns *turns;
};
/* Makes `count` batches at most, the program of the first one checked. */
enum dt_status dt_prefetch_open(const struct dt_setup *s, const struct dt_prefetch_data *data,
                                int64_t count, struct dt_error *err, struct dt_prefetch **out);
/* The next batch (dt_prefetch_batch_free); waits for it.  No more than `count` times. */
enum dt_status dt_prefetch_take(struct dt_prefetch *a, struct dt_error *err,
                                struct dt_prefetch_batch **out);
/* Every rank reads the headers of all images and decodes those of its share: when a rank has found bad
 * ones in its batch, all have to make that batch again without them.  Takes back `b`, the one that was
 * taken last, and what was made since; the next dt_prefetch_take has it anew. */
enum dt_status dt_prefetch_again(struct dt_prefetch *a, struct dt_prefetch_batch *b,
                                 const int64_t *bad, int n, struct dt_error *err);
/* Batches made so far, taken ones included. */
int64_t dt_prefetch_made(struct dt_prefetch *a);
/* Ends the thread, soon; what it was at is dropped.  Nothing may be taken afterwards. */
void dt_prefetch_stop(struct dt_prefetch *a);
/* After dt_prefetch_stop: what it did last, in order; returns how much. */
int dt_prefetch_spans(const struct dt_prefetch *a, struct dt_prefetch_span out[DT_PREFETCH_SPANS]);
void dt_prefetch_report(const struct dt_prefetch *a, struct dt_prefetch_report *out);
void dt_prefetch_close(struct dt_prefetch *a);

#endif
