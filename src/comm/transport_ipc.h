/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Messages between cards of a host over CUDA IPC, the inside.  Shared by transport_ipc*.c only.
 *
 *   receiver   post | nobody reads the buffer any more: OFFER ------>                      ... the event is done: over
 *   sender     post | it is written, and the offer is here:     map, copy, record, COPIED ->  the event is done: over
 *
 * Who may write when: from the offer to the event the sender alone has the receiver's buffer, and he only reads his
 * own.  Copies go on one queue of the sender's, which never waits, so one message holds up no other.  Notes go over the
 * control transport, all of a pair of ranks on one tag, so they come in the order in which they were sent; offers of one
 * sender and tag are made in the order of their posts, and so are copies matched.
 *
 *   BYE        the last note: nothing of the receiver's is mapped or asked any more.
 *
 * Whose memory is when: a block that was offered may be given back to the driver behind the BYE of every other rank, and
 * so may the events of sends.  A rank that is lost, has failed or takes too long says none; then both are left to the end
 * of this process (ipc_leave), and nothing is freed that another one may have mapped.
 *
 * Mapping may take as long as the whole device, so a thread does nothing else, without the lock: messages into what is
 * mapped go on.  Nothing is unmapped in an iteration, and something of each peer stays mapped from the beginning to the
 * end, so that the driver sets up access to its card once, while nothing is under way. */
#ifndef DT_COMM_TRANSPORT_IPC_H
#define DT_COMM_TRANSPORT_IPC_H

#include "comm/transport_impl.h"

enum { DT_IPC_TAG = DT_TRANSPORT_NCCL_TAG - 1 };

enum dt_ipc_note_kind { DT_IPC_OFFER = 0x1fc0, DT_IPC_COPIED, DT_IPC_REFUSED, DT_IPC_BYE };
struct dt_ipc_note {
    uint32_t kind;
    int32_t tag;
    uint32_t number;                /* of the receive */
    uint32_t event;                 /* COPIED: of the sender's events; 0: it needs none */
    uint64_t bytes;                 /* OFFER: expected; else sent */
    uint64_t offset;                /* OFFER: in the block */
    struct dt_device_handle handle; /* OFFER: of the block; COPIED: of the event */
};

/* A block of another rank's. */
enum dt_ipc_mapping_state { DT_IPC_WANTED, DT_IPC_THERE, DT_IPC_UNMAPPABLE };
struct dt_ipc_mapping {
    struct dt_ipc_mapping *next;
    enum dt_ipc_mapping_state state;
    int peer;
    struct dt_device_handle block;
    void *base;
    int users;     /* copies that want it, or are under way */
    uint64_t used; /* larger: later */
    struct dt_error failed;
};

struct dt_ipc_offer { /* that no send has taken yet */
    struct dt_ipc_offer *next;
    struct dt_ipc_note note;
};

struct dt_ipc_peer {
    bool near; /* its memory can be mapped, and it can map ours */
    struct dt_req *hears;
    struct dt_ipc_note heard;
    struct dt_ipc_offer *offers;     /* in their order */
    struct dt_device_event **events; /* of its sends, by number - 1 */
    size_t n_events, cap_events;
    bool gone;
    struct dt_error failed;
};

enum dt_ipc_kind { DT_IPC_SEND, DT_IPC_RECV, DT_IPC_STAGED, DT_IPC_KINDS };
enum dt_ipc_state { DT_IPC_WAITS, DT_IPC_MATCHED, DT_IPC_UNDER_WAY, DT_IPC_OVER };

/* What the table's struct dt_req is here. */
struct dt_ipc_request {
    struct dt_ipc_request *next, *prev; /* under way, in the order of posts; or free */
    struct dt_ipc_request *all;
    enum dt_ipc_kind kind;
    enum dt_ipc_state state;
    uint32_t number;       /* among all of this rank, from 1 */
    struct dt_req *staged; /* of DT_IPC_STAGED: what it stands for */
    int peer, tag;
    char *buf;
    size_t bytes;
    struct dt_device_event *ready;
    struct dt_device_event *copied; /* SEND: its own, for both; RECV: the sender's, or NULL */
    struct dt_device_handle copied_handle;
    struct dt_ipc_mapping *mapping; /* SEND: wanted, or in use */
    struct dt_ipc_note note;        /* SEND: the offer; then what is told */
    struct dt_req *tells;           /* of it */
    struct dt_error failed;
};

struct dt_ipc {
    struct dt_transport t, *control, *staged;
    const struct dt_device *dev;
    struct dt_device_queue *q;           /* of copies; it never waits */
    pthread_mutex_t lock;                /* of all below, and of q */
    struct dt_ipc_peer *peer;            /* [size] */
    struct dt_ipc_request *first, *last; /* under way */
    struct dt_ipc_request *free[DT_IPC_KINDS], *all;
    uint32_t n_requests;
    struct dt_ipc_mapping *mappings;
    int n_mappings; /* but for those that are there for good */
    uint64_t uses;
    pthread_t mapper; /* its thread, if there is one; told of work, or that it is to end */
    bool has_mapper, ends;
    pthread_cond_t work;
    bool shown;  /* others may have mapped memory of this rank */
    bool failed; /* the others need not be waited for, nor wait */
};

static inline struct dt_ipc *dt_ipc_of(const struct dt_transport *t)
{
    return t->impl;
}

/* ---- which ranks reach which (transport_ipc_agree.c) ---- */
/* Collective: fills peer[].near.  unable: why this rank can do nothing, or NULL.  DT_ERR_INPUT, alike on all ranks, if there is nothing to be gained or a rank of the
 * same host cannot be reached. */
enum dt_status dt_ipc_agree(struct dt_ipc *s, const struct dt_error *unable, struct dt_error *err);

/* ---- what is mapped and opened (transport_ipc_map.c); locked ---- */
/* The thread that maps; the lock is initialised. */
enum dt_status dt_ipc_mapper_begin(struct dt_ipc *s, struct dt_error *err);
void dt_ipc_mapper_end(struct dt_ipc *s);
/* One user more; it may not be there yet. */
enum dt_status dt_ipc_map(struct dt_ipc *s, int peer, const struct dt_device_handle *block,
                          struct dt_error *err, struct dt_ipc_mapping **out);
/* One user less. */
void dt_ipc_map_leave(struct dt_ipc *s, struct dt_ipc_mapping *m);
/* At once, by the calling thread, until all are unmapped. */
enum dt_status dt_ipc_map_for_good(struct dt_ipc *s, int peer, const struct dt_device_handle *block,
                                   struct dt_error *err, void **base);
/* Unmaps what nobody uses, down to dt_transport_ipc_mappings.  The card is idle. */
void dt_ipc_map_trim(struct dt_ipc *s);
/* The event of a peer's number, which it has told of. */
enum dt_status dt_ipc_event(struct dt_ipc *s, int peer, const struct dt_ipc_note *copied,
                            struct dt_error *err, struct dt_device_event **out);
/* All; none is in use or wanted. */
void dt_ipc_unmap_all(struct dt_ipc *s);

/* ---- the protocol (transport_ipc_edge.c); locked ---- */
/* The first note of a peer is waited for. */
enum dt_status dt_ipc_listen(struct dt_ipc *s, int peer, struct dt_error *err);
/* Takes what has come from all peers, and every request as far as it goes. */
void dt_ipc_advance_all(struct dt_ipc *s);
/* One that has just been posted, the last one. */
void dt_ipc_advance(struct dt_ipc *s, struct dt_ipc_request *r);
/* Is it over?  Or has it failed? */
enum dt_status dt_ipc_look(struct dt_ipc *s, struct dt_ipc_request *r, bool *over,
                           struct dt_error *err);
/* Tells all peers that this rank has nothing of theirs any more, and waits for them to say so, a few seconds at most:
 * who does not come has failed.  Have all come? */
bool dt_ipc_part(struct dt_ipc *s);

/* ---- the table's entries (transport_ipc_post.c) ---- */
void dt_ipc_fill_posts(struct dt_transport *t);
void dt_ipc_request_free(struct dt_ipc *s, struct dt_ipc_request *r);

#endif
