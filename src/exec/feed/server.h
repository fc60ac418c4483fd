/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A producer: makes documents for whoever asks, wherever in the order.
 *
 *   frames --> wanted places --> threads that read, decode, resize and tokenise --> store --> frames
 *
 * It keeps what it has made until every consumer has passed it, within a bound of bytes; what had to
 * go is made again when it is asked for.  Nothing else is remembered, so that any producer of the
 * same job and data can take the place of another. */
#ifndef DT_EXEC_FEED_SERVER_H
#define DT_EXEC_FEED_SERVER_H

#include "exec/data/loader.h"
#include "exec/feed/net.h"
#include <signal.h>

#define DT_FEED_MEMORY_BYTES (INT64_C(1) << 30) /* assumed: what a machine has to spare */

struct dt_feed_server_options {
    const struct dt_loader *loader; /* opened without threads; borrowed */
    struct dt_feed_net *net;        /* listens; borrowed */
    uint64_t job;                   /* dt_loader_job_digest */
    int workers;                    /* threads, at least 1 */
    int64_t memory_bytes;           /* of documents made; 0 = DT_FEED_MEMORY_BYTES */
    int64_t unread_bytes;           /* sent to one consumer that has not read them; 0 =
                                     * DT_FEED_UNREAD_BYTES_MAX; one that goes beyond is lost */
    double gone_s;                  /* a consumer not heard of for so long is gone; 0 = 60 */
    const struct dt_warn *warn;     /* who came, who went; NULL = nobody listens */
};
struct dt_feed_server_report {
    int64_t made;   /* documents; one that was made twice counts twice */
    int64_t bad;    /* of them */
    double core_s;  /* of the threads that made them */
    int64_t images; /* decoded */
    int64_t sent;   /* documents */
    int64_t sent_bytes;
    int64_t refused;    /* frames that were damaged or of another job */
    int64_t most_bytes; /* in the store at once */
    int64_t bytes;      /* in the store */
    int64_t open;       /* places asked for and not answered */
    int consumers;      /* that are there */
    int64_t came;       /* consumers in all; one that was given up and is back counts twice */
    double wall_s;      /* since it was opened */
};

struct dt_feed_server;
enum dt_status dt_feed_server_open(const struct dt_feed_server_options *o, struct dt_error *err,
                                   struct dt_feed_server **out);
/* Until *stop is not 0. */
void dt_feed_server_run(struct dt_feed_server *s, const volatile sig_atomic_t *stop);
void dt_feed_server_report(const struct dt_feed_server *s, struct dt_feed_server_report *out);
void dt_feed_server_close(struct dt_feed_server *s);

#endif
