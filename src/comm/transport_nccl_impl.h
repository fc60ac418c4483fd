/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The transport over NCCL, the inside.  Shared by transport_nccl*.c only. */
#ifndef DT_COMM_TRANSPORT_NCCL_IMPL_H
#define DT_COMM_TRANSPORT_NCCL_IMPL_H

#include "comm/nccl.h"
#include "comm/transport_impl.h"

#include <stdatomic.h>

/* One of NCCL's communicators: of a group of ranks, or of the messages of an edge. */
struct dt_nccl_link {
    struct dt_nccl_link *next;
    struct dt_nccl_ranks *ranks;   /* whose it is */
    struct dt_nccl_comm *h;        /* NULL: aborted, or not begun */
    struct dt_transport_edge edge; /* from -1: of a group */
    int me, n;
    struct dt_nccl_id id;
    struct dt_device_event *past; /* its last operation */
    uint64_t posted_ns;           /* 0: there was none */
    bool finished, aborts;        /* at the end: nothing of it is under way; `thread` aborts it */
    pthread_t thread;
};

/* An event that a request waits for. */
struct dt_nccl_mark {
    struct dt_device_event *event;
    struct dt_nccl_mark *all;
};

struct dt_nccl_ranks {             /* one, seen from one of its ranks */
    struct dt_transport_base base; /* first: see dt_transport_base */
    struct dt_transport t;
    const struct dt_nccl *f;
    struct dt_transport *control; /* and what its table had for a comm */
    const struct dt_device *dev;
    struct dt_device_queue *q; /* for first messages */
    void *scratch;
    enum dt_status (*base_comm_new)(struct dt_transport *t, const int *ranks, int n,
                                    struct dt_error *err, struct dt_comm **out);
    void (*base_comm_free)(struct dt_comm *c);
    struct dt_nccl_link *links; /* the issuing thread's, as what it has registered is */
    struct dt_nccl_memory *memory;
    pthread_t thread; /* it: every call of NCCL is made there */
    bool runs;
    atomic_bool gives_up; /* it need not wait for others any more */
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t wake, issued;
    struct dt_nccl_job *jobs, **jobs_end; /* for it; first come, first served */
    bool stop;
    struct dt_nccl_mark *marks;
    struct dt_error failed;
};

static inline struct dt_nccl_ranks *dt_nccl_of(const struct dt_transport *t)
{
    return t->impl;
}

/* ---- the issuing thread (transport_nccl_issue.c) ---- */

/* What it does. */
typedef enum dt_status dt_nccl_job_fn(struct dt_nccl_ranks *s, void *arg, struct dt_error *err);
enum dt_status dt_nccl_issue_begin(struct dt_nccl_ranks *s, struct dt_error *err);
/* Does what it has been given, and ends. */
void dt_nccl_issue_end(struct dt_nccl_ranks *s);
/* Any thread but it: has it do fn(arg), behind what it was given before, and waits until it has. */
enum dt_status dt_nccl_issue(struct dt_nccl_ranks *s, dt_nccl_job_fn *fn, void *arg,
                             struct dt_error *err);

/* ---- links (transport_nccl_link.c); all but dt_nccl_state are for the issuing thread ---- */

/* A link of n ranks, of which this one is member `me`; the lowest member has made `id`.  Begun, not ready. */
enum dt_status dt_nccl_link_new(struct dt_nccl_ranks *s, const struct dt_transport_edge *edge,
                                int me, int n, const struct dt_nccl_id *id, struct dt_error *err,
                                struct dt_nccl_link **out);
/* Waits for all members.  Any thread but the issuing one, which does other things meanwhile. */
enum dt_status dt_nccl_link_ready(struct dt_nccl_ranks *s, struct dt_nccl_link *l,
                                  struct dt_error *err);
/* Ends those that are left.  Collective, unless there was a failure. */
void dt_nccl_links_close(struct dt_nccl_ranks *s);
/* Nothing works from now on, and no queue waits for other ranks any more.  Returns `st`. */
enum dt_status dt_nccl_fail(struct dt_nccl_ranks *s, enum dt_status st, const char *text);
/* The same, because this rank gives up. */
void dt_nccl_given_up(struct dt_nccl_ranks *s);
/* The same, of what NCCL has answered to `what`. */
enum dt_status dt_nccl_failed(struct dt_nccl_ranks *s, const struct dt_nccl_link *l,
                              const char *what, int result);
/* Has it failed? */
enum dt_status dt_nccl_state(struct dt_nccl_ranks *s, struct dt_error *err);
/* `result` of a call on the link: until it is over. */
enum dt_status dt_nccl_wait(struct dt_nccl_ranks *s, struct dt_nccl_link *l, const char *what,
                            int result, struct dt_error *err);
/* The same of an operation: all of it is on the queue. */
enum dt_status dt_nccl_settle(struct dt_nccl_ranks *s, struct dt_nccl_link *l, const char *what,
                              int result, struct dt_device_queue *q, struct dt_error *err);
/* The link of an edge; NULL: nobody has said that there would be one. */
struct dt_nccl_link *dt_nccl_link_find(const struct dt_nccl_ranks *s, int from, int to, int tag);

/* ---- the table's entries (transport_nccl_connect.c, transport_nccl_coll.c) ---- */
enum dt_status dt_nccl_comm_new(struct dt_transport *t, const int *ranks, int n,
                                struct dt_error *err, struct dt_comm **out);
enum dt_status dt_nccl_connect(struct dt_transport *t, const struct dt_transport_edge *edges, int n,
                               struct dt_error *err);
void dt_nccl_collectives(struct dt_transport *t);
/* transport_nccl_memory.c */
void dt_nccl_memory(struct dt_transport *t);
/* The issuing thread: an edge's link knows the memory that the buffer lies in, if it is the library's. */
enum dt_status dt_nccl_know(struct dt_nccl_ranks *s, struct dt_nccl_link *l, const void *buf,
                            struct dt_error *err);

#endif
