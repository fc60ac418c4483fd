/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A producer's documents: which are wanted by whom, being made, or kept until all have passed them.
 *
 *   wanted --thread--> being made --thread--> made --collect--> kept; what nobody used for longest goes first
 *
 * The serving thread calls everything but dt_feed_store_work. */
#ifndef DT_EXEC_FEED_STORE_H
#define DT_EXEC_FEED_STORE_H

#include "exec/data/document.h"
#include "exec/feed/net.h"

struct dt_feed_want {
    struct dt_feed_want *next;
    struct dt_feed_peer who;
    uint64_t request;
    uint8_t what;
};
typedef void dt_feed_answer_fn(void *ctx, const struct dt_feed_want *w,
                               const struct dt_document *d);

struct dt_feed_store;
enum dt_status dt_feed_store_new(int64_t bytes_max, dt_feed_answer_fn *answer, void *ctx,
                                 struct dt_error *err, struct dt_feed_store **out);
/* Answers at once if the document is there, or else when it has been made. */
enum dt_status dt_feed_store_want(struct dt_feed_store *s, int64_t place,
                                  const struct dt_feed_want *w, struct dt_error *err);
/* Answers what has been made since. */
void dt_feed_store_collect(struct dt_feed_store *s);
/* Nobody wants what is before it. */
void dt_feed_store_release(struct dt_feed_store *s, int64_t place);
/* Wants of a consumer that is gone. */
void dt_feed_store_forget(struct dt_feed_store *s, const struct dt_feed_peer *who);
/* Readable when there may be something to collect. */
int dt_feed_store_fd(const struct dt_feed_store *s);
struct dt_feed_store_made {
    int64_t n;       /* documents; one that was made twice counts twice */
    int64_t bad;     /* of them */
    int64_t core_ns; /* of the threads that made them */
};
void dt_feed_store_made(const struct dt_feed_store *s, struct dt_feed_store_made *out);
int64_t dt_feed_store_bytes(const struct dt_feed_store *s);
int64_t dt_feed_store_most_bytes(const struct dt_feed_store *s);
/* A thread's loop: makes what is wanted until dt_feed_store_stop. */
void dt_feed_store_work(struct dt_feed_store *s, const struct dt_loader *l);
void dt_feed_store_stop(struct dt_feed_store *s);
/* Once no thread works any more. */
void dt_feed_store_free(struct dt_feed_store *s);

#endif
