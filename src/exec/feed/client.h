/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A consumer: documents from producers, sizes first.
 *
 *   place k is asked of producer k mod n; if that one is dead, silent, slow or wrong, of the next
 *
 * Any producer makes the same documents, so whose they are changes nothing, and none is lost or
 * taken twice.  One that has failed is tried again, each time later.  When none has answered for
 * the deadline, what is wrong with each is the error.  One thread at a time. */
#ifndef DT_EXEC_FEED_CLIENT_H
#define DT_EXEC_FEED_CLIENT_H

#include "exec/data/document.h"
#include "exec/feed/net.h"

struct dt_feed_client_options {
    const char *const *address; /* "tcp://HOST:PORT" */
    int n;
    const struct dt_feed_keys *keys; /* NULL = plain, on this machine's own addresses only */
    const struct dt_loader_options *loader;
    double deadline_s; /* without any producer; 0 = 60 */
    double silent_s;   /* one that does not answer a greeting for so long is dead; 0 = 5 */
    double
        late_s; /* one that has not made a document for so long is stuck; 0 = half the deadline */
    int64_t ahead_bytes;        /* documents that producers make ahead; 0 = 256 MiB for each */
    const struct dt_warn *warn; /* a producer that failed, or is back; NULL = nobody listens */
};
struct dt_feed_client_report {
    int64_t bytes;    /* received */
    int64_t sizes;    /* documents whose sizes were received */
    int64_t payloads; /* documents whose text or pixels were */
    int64_t moved;    /* places asked of another producer, after the first had failed */
    int64_t failures; /* of producers */
    int up;           /* producers that answer */
};
struct dt_feed_fetch { /* text or pixels of one document (DT_FEED_TEXT, DT_FEED_PIXELS) */
    int64_t place;
    int what;
    int64_t bytes;          /* about; for what is under way at once */
    struct dt_document doc; /* out; dt_document_free */
};

struct dt_feed_client;
/* Waits for the first producer, and a second at most for the others. */
enum dt_status dt_feed_client_open(const struct dt_feed_client_options *o, struct dt_error *err,
                                   struct dt_feed_client **out);
/* What a loader takes instead of shards; valid while the client is. */
const struct dt_loader_source *dt_feed_client_source(const struct dt_feed_client *c);
/* `f` is in order of places, each once.  On failure none is there. */
enum dt_status dt_feed_client_fetch(struct dt_feed_client *c, struct dt_feed_fetch *f, int n,
                                    struct dt_error *err);
/* Nothing before `place` will be asked for again. */
void dt_feed_client_release(struct dt_feed_client *c, int64_t place);
void dt_feed_client_report(const struct dt_feed_client *c, struct dt_feed_client_report *out);
void dt_feed_client_close(struct dt_feed_client *c);

#endif
