/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the files of the staged transport share (transport_staged.c, transport_staged_post.c). */
#ifndef DT_COMM_TRANSPORT_STAGED_H
#define DT_COMM_TRANSPORT_STAGED_H

#include "comm/transport_impl.h"

enum dt_transport_staged_kind {
    SEND,
    RECV,
    BROADCAST,
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL
};
enum dt_transport_staged_state { POSTED, COPYING_OUT, TO_POST, UNDER_WAY, ARRIVED, COPYING_IN };

struct dt_transport_staged_range { /* of the caller's buffer, and where it stands in the host's */
    char *device;
    size_t at, bytes;
};

/* What the table's struct dt_req is here. */
struct dt_transport_staged_request {
    struct dt_transport_staged_request *next; /* waiting, or free */
    struct dt_transport_staged_request *all;  /* every one there is */
    struct dt_transport_staged *staged;
    enum dt_transport_staged_kind kind;
    enum dt_transport_staged_state state;
    enum dt_status failed;
    struct dt_error error;
    struct dt_req *inner;
    struct dt_device_event *ready, *copied;
    /* what was asked for */
    int peer, tag;
    struct dt_comm *comm;
    enum dt_reduce_type type;
    char *buf;
    const char *send;
    size_t n; /* bytes, or elements of an all-reduce */
    size_t *counts, *send_counts;
    /* by way of the host */
    char *stand; /* where its bytes stand there: in `host`, or in the room of the comm */
    char *host;
    size_t bytes, recv_at; /* in `stand`; where an all-to-all receives */
    struct dt_transport_staged_range out, in[2];
    int n_in;
    size_t host_cap, counts_cap, send_counts_cap;
};

/* Page-locked memory, with the bytes behind it. */
struct dt_transport_staged_room {
    struct dt_transport_staged_room *next; /* smaller ones before it, which copies may still read */
    size_t cap;
};

struct dt_transport_staged_comm {
    struct dt_comm c;                      /* first */
    struct dt_transport_staged_room *room; /* of what is put on queues, one after another */
};

struct dt_transport_staged {
    struct dt_transport t, *inner;
    const struct dt_device *dev;
    bool direct; /* no copies */
    struct dt_device_queue *q;
    pthread_mutex_t
        lock; /* of q, the lists, requests on the list of those that wait, and `error` */
    struct dt_transport_staged_request *waiting, *free, *all;
    atomic_int n_waiting;
    /* of what has been put on queues */
    atomic_bool stop; /* nothing more of it goes to `inner`, and nothing is waited for */
    struct dt_error error;
};

static inline struct dt_transport_staged *dt_transport_staged_of(const struct dt_transport *t)
{
    return t->impl;
}

/* ---- requests (transport_staged.c) ---- */
/* One with room for `bytes` in its own memory of the host; on_queue: without, and its comm has some. */
enum dt_status dt_transport_staged_new(struct dt_transport_staged *s,
                                       enum dt_transport_staged_kind kind, size_t bytes,
                                       bool on_queue, struct dt_error *err,
                                       struct dt_transport_staged_request **out);
void dt_transport_staged_put_free(struct dt_transport_staged *s,
                                  struct dt_transport_staged_request *r);
enum dt_status dt_transport_staged_post_inner(struct dt_transport_staged *s,
                                              struct dt_transport_staged_request *r,
                                              struct dt_error *err);
enum dt_status dt_transport_staged_post(struct dt_transport_staged *s,
                                        struct dt_transport_staged_request *r,
                                        struct dt_device_queue *q, struct dt_error *err,
                                        struct dt_req **out);

/* ---- the table's entries (transport_staged_post.c) ---- */
void dt_transport_staged_fill_posts(struct dt_transport *t);
/* What is put on queues goes on without the other ranks. */
void dt_transport_staged_stop(struct dt_transport_staged *s);
enum dt_status dt_transport_staged_state(struct dt_transport *t, struct dt_error *err);
/* No queue has anything of it any more. */
void dt_transport_staged_room_free(struct dt_transport_staged *s,
                                   struct dt_transport_staged_comm *c);

#endif
