/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Frames between producers of documents and who trains on them.  Pure: bytes in, values out.
 *
 *   consumer                                   producer
 *   HELLO                          ------->
 *                                  <-------    WELCOME   what data it has; or REFUSE, why not
 *   ASK places, what of each       ------->
 *                                  <-------    DOCUMENT  one frame for each place, in any order
 *
 * Every frame: a head of DT_FEED_HEAD_BYTES, then the body.  Numbers are little-endian.
 *
 *   magic u32 | version u16 | kind u16 | request u64 | job u64 | data u64 | body bytes u32 | CRC-32C u32
 *
 * Values of spectrograms are IEEE floats, little-endian too.
 * The checksum is of the head before it and of the body.  A place is the running number of a
 * document since the beginning of the first epoch, so a producer needs to remember nothing. */
#ifndef DT_EXEC_FEED_WIRE_H
#define DT_EXEC_FEED_WIRE_H

#include "exec/data/document.h"
#include "exec/data/report.h"

enum {
    DT_FEED_VERSION = 3,
    DT_FEED_HEAD_BYTES = 40,
    DT_FEED_ASK_MAX = 256, /* places of one request */
    /* A request is small; the largest document has 64 Mi pixels and 2^24 tokens. */
    DT_FEED_REQUEST_BYTES_MAX = DT_FEED_HEAD_BYTES + 20 + 9 * DT_FEED_ASK_MAX,
    DT_FEED_ANSWER_BYTES_MAX = 1 << 28,
    /* Of one consumer: places asked for and not answered; bytes sent that it has not said it has. */
    DT_FEED_OPEN_MAX = 4096,
    DT_FEED_UNREAD_BYTES_MAX = 1 << 29
};
enum dt_feed_kind {
    DT_FEED_HELLO = 1,
    DT_FEED_WELCOME,
    DT_FEED_ASK,
    DT_FEED_DOCUMENT,
    DT_FEED_REFUSE
};
/* What of a document: its sizes always; these on demand. */
enum { DT_FEED_TEXT = 1, DT_FEED_PIXELS = 2 };

struct dt_feed_head {
    enum dt_feed_kind kind;
    uint64_t request; /* which one an answer is to; of HELLO: places asked for since connecting */
    uint64_t job;     /* dt_loader_job_digest */
    uint64_t data;    /* the shard index's fingerprint; 0 in HELLO */
};
struct dt_feed_frame { /* the body is the caller's bytes */
    struct dt_feed_head head;
    const uint8_t *body;
    size_t n;
};
struct dt_feed_bytes { /* zero-initialised is valid; dt_feed_bytes_free */
    uint8_t *p;
    size_t n, cap;
};
void dt_feed_bytes_free(struct dt_feed_bytes *b);

struct dt_feed_welcome {
    int64_t samples;              /* in the data set */
    struct dt_data_report report; /* of the index */
};
struct dt_feed_ask {
    int64_t released; /* nothing before this place will be asked for again */
    int64_t received; /* bytes of this producer's frames, since connecting */
    int n;
    int64_t place[DT_FEED_ASK_MAX];
    uint8_t what[DT_FEED_ASK_MAX];
};
/* What a document may hold; the rest is damage, or a lie. */
struct dt_feed_limits {
    int seq_len, patch, vocab;
    int mel_bins; /* of the sounds that are read; 0 = images are */
    int64_t samples;
};

/* Each replaces what is in `out`. */
enum dt_status dt_feed_encode_hello(const struct dt_feed_head *h, struct dt_error *err,
                                    struct dt_feed_bytes *out);
enum dt_status dt_feed_encode_welcome(const struct dt_feed_head *h, const struct dt_feed_welcome *w,
                                      struct dt_error *err, struct dt_feed_bytes *out);
enum dt_status dt_feed_encode_ask(const struct dt_feed_head *h, const struct dt_feed_ask *a,
                                  struct dt_error *err, struct dt_feed_bytes *out);
enum dt_status dt_feed_encode_document(const struct dt_feed_head *h, const struct dt_document *d,
                                       int what, struct dt_error *err, struct dt_feed_bytes *out);
enum dt_status dt_feed_encode_refuse(const struct dt_feed_head *h, const char *why,
                                     struct dt_error *err, struct dt_feed_bytes *out);

/* DT_ERR_INPUT for anything that is not a whole, undamaged frame of this version. */
enum dt_status dt_feed_open(const uint8_t *bytes, size_t n, struct dt_error *err,
                            struct dt_feed_frame *out);
/* Of the body; the frame's kind has been looked at. */
enum dt_status dt_feed_decode_welcome(const struct dt_feed_frame *f, struct dt_error *err,
                                      struct dt_feed_welcome *out);
enum dt_status dt_feed_decode_ask(const struct dt_feed_frame *f, struct dt_error *err,
                                  struct dt_feed_ask *out);
/* dt_document_free; text and pixels are NULL where they were not sent, text.n and images' w, h are there
 * always.  `place` is the absolute one. */
enum dt_status dt_feed_decode_document(const struct dt_feed_frame *f,
                                       const struct dt_feed_limits *l, struct dt_error *err,
                                       int *what, struct dt_document *out);
/* `why` always ends; control characters become '?'. */
void dt_feed_decode_refuse(const struct dt_feed_frame *f, char *why, size_t size);

#endif
