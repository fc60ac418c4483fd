/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The transport over TCP, the inside.  Shared by transport_tcp*.c only. */
#ifndef DT_COMM_TRANSPORT_TCP_IMPL_H
#define DT_COMM_TRANSPORT_TCP_IMPL_H

#include "comm/transport_impl.h"

enum { DT_TCP_MESSAGE = 0x6d736731, DT_TCP_ABORT = 0x656e6431, DT_TCP_BYE = 0x62796531 };
#define DT_TCP_BYTES_MAX                                                                           \
    (UINT64_C(1) << 48) /* of a message; more comes from nobody who speaks this */
struct dt_tcp_frame {
    uint32_t kind, none;
    uint64_t key; /* DT_TCP_ABORT: the exit status */
    uint64_t bytes;
};

/* A message under way, or (owned) one that waits here for its receiver. */
struct dt_transport_xfer {
    struct dt_transport_xfer *next;
    uint64_t key;
    char *buf;
    size_t bytes, other_bytes;
    size_t moved; /* so far: of a send, its frame included */
    int peer;
    bool send, owned, done, wrong;
};
struct dt_tcp_queue {
    struct dt_transport_xfer *first, **last;
};

struct dt_tcp_peer {
    int fd; /* -1: oneself, or lost */
    char host[64], lost[128];
    bool out;  /* epoll tells when there is room */
    bool shut; /* nothing more is sent */
    bool
        bye; /* it has closed its table, as all do in the end: nothing more comes, and nothing is wrong */
    struct dt_tcp_queue sends, recvs, early;
    /* what is being read: a frame, then its message */
    struct dt_tcp_frame frame;
    size_t got;
    struct dt_transport_xfer *in;
    bool unread; /* nobody is to have it */
};

struct dt_tcp {
    struct dt_transport_base base; /* first: see dt_transport_base */
    struct dt_transport t;
    pthread_mutex_t lock; /* of all below */
    struct dt_tcp_peer *peer;
    int epoll, listener;
};

extern const struct dt_transport_wire dt_tcp_wire;
void dt_tcp_close(struct dt_transport *t);
void dt_tcp_abort(struct dt_transport *t, int exit_status);
/* Also one that is half open. */
void dt_tcp_free(struct dt_tcp *s);

#endif
