/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Between the two files of a consumer: client.c says what is wanted, producers.c of whom. */
#ifndef DT_EXEC_FEED_CLIENT_IMPL_H
#define DT_EXEC_FEED_CLIENT_IMPL_H

#include "exec/feed/client.h"
#include "exec/feed/wire.h"

enum dt_feed_producer_state { DT_FEED_DOWN, DT_FEED_GREETED, DT_FEED_UP };

struct dt_feed_producer {
    char address[DT_FEED_ADDRESS_SIZE];
    enum dt_feed_producer_state state;
    bool wrong;          /* of another job or data: trying again is of no use */
    int64_t waits_ns;    /* before it is tried again */
    uint64_t heard_ns;   /* a frame of it; or since when one may be expected */
    uint64_t greeted_ns; /* the last greeting to it */
    uint64_t down_ns;
    int under_way;    /* places asked of it */
    uint64_t asked;   /* likewise, all since connecting */
    int64_t received; /* bytes, since connecting */
    char why[200];    /* it is down */
};

struct dt_feed_item { /* something wanted */
    int64_t place, bytes;
    uint64_t asked_ns;
    int producer; /* that was asked; -1 = none */
    uint8_t what;
    bool ready, moved;
    struct dt_document doc;
};
struct dt_feed_items {
    struct dt_feed_item *item; /* [n] */
    int n, under_way;
    int64_t bytes_under_way;
    uint64_t request; /* which of the two: answers tell it */
};
enum { DT_FEED_SIZES_REQUEST = 1, DT_FEED_PAYLOAD_REQUEST = 2 };

struct dt_feed_client {
    struct dt_feed_client_options o;
    struct dt_feed_limits limits;
    struct dt_feed_net *net;
    struct dt_feed_producer *producer; /* [o.n] */
    struct dt_feed_items sizes;        /* a ring: place p at p % n */
    struct dt_feed_items payload;      /* of the fetch under way */
    int64_t first; /* place that is taken next; sizes are of [first, first + ahead) */
    int64_t ahead, released, mean_bytes;
    uint64_t job, data; /* data: 0 until a producer has said it */
    bool known;
    uint64_t progress_ns; /* the last document, or the beginning */
    uint64_t turn_ns;     /* when it was last listened */
    struct dt_loader_source source;
    struct dt_feed_bytes frame;
    struct dt_feed_ask ask;
    struct dt_feed_client_report report;
};

/* producers.c: asks, listens for at most `timeout_ms`, looks after producers.  DT_ERR_PEER when
 * nothing has come of any for the deadline. */
enum dt_status dt_feed_client_turn(struct dt_feed_client *c, int timeout_ms, struct dt_error *err);

#endif
