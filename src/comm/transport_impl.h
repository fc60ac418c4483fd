/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What transports over host memory share.  An implementation brings a wire (messages between two
 * ranks); requests and all collectives are made of those here, so that every transport forms sums
 * in the same order.
 *
 *   request     p2p: one transfer.  Collective: strands, each of which goes through rounds
 *   round       transfers that are under way together, then a local step (a sum, nothing)
 *   strand      every n-th chunk of a long collective; strands overlap one another
 *
 * A request makes progress when it is tested, and a collective also when anything else of this rank
 * is: two ranks that wait for the same two collectives in different order both complete them. */
#ifndef DT_COMM_TRANSPORT_IMPL_H
#define DT_COMM_TRANSPORT_IMPL_H

#include "comm/transport.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
    DT_TAG_BITS = 22,   /* of the caller's tags */
    DT_STRANDS = 4,     /* at most, of a collective; a power of two */
    DT_STRAND_BITS = 2, /* of it */
    DT_SEQ_BITS = 10,   /* collectives of a comm that may be told apart; further ones queue */
};

/* A message is matched by its sender, its receiver, and a key: the caller's tag, or of a
 * collective DT_KEY_COLL | id of the comm between the two ranks, sequence, strand. */
#define DT_KEY_COLL (UINT64_C(1) << 63)

/* The implementation's: one message under way, xfer_bytes long, zeroed at first. */
struct dt_transport_xfer;

struct dt_transport_wire {
    size_t xfer_bytes;
    uint64_t key_max; /* of a collective's key without DT_KEY_COLL */
    /* Posts a transfer.  The bytes may be none.  `q`: the queue of the operation, or NULL. */
    enum dt_status (*send)(struct dt_transport *t, struct dt_transport_xfer *x, int to,
                           uint64_t key, const void *buf, size_t bytes, struct dt_device_queue *q,
                           struct dt_error *err);
    enum dt_status (*recv)(struct dt_transport *t, struct dt_transport_xfer *x, int from,
                           uint64_t key, void *buf, size_t bytes, struct dt_device_queue *q,
                           struct dt_error *err);
    /* Moves it on; is it over?  Not asked again once done or failed.  On a queue: over as soon as what comes
     * after it there waits for it. */
    enum dt_status (*progress)(struct dt_transport *t, struct dt_transport_xfer *x,
                               struct dt_device_queue *q, bool *done, struct dt_error *err);
    /* The request was given up (the job ends): takes the transfer back if it is still there. */
    void (*cancel)(struct dt_transport *t, struct dt_transport_xfer *x);

    /* ---- of device memory; NULL where buffers are host memory ---- */
    /* What is posted from now on comes after what is on q. */
    enum dt_status (*follow)(struct dt_transport *t, struct dt_device_queue *q,
                             struct dt_error *err);
    /* dt_reduce_parts, behind the transfers that are over and before those that are posted later. */
    void (*sum)(struct dt_transport *t, enum dt_reduce_type type, void *x,
                const void *const *others, int members, int me, size_t n,
                struct dt_device_queue *q);
    /* Has all of `sum` so far happened?  *mark: NULL at first, and when it has. */
    enum dt_status (*settle)(struct dt_transport *t, void **mark, bool *done, struct dt_error *err);
    /* Scratch memory of a collective; grows, and is lost. */
    enum dt_status (*grow)(struct dt_transport *t, char **p, size_t *cap, size_t bytes,
                           struct dt_error *err);
    void (*free)(struct dt_transport *t, char *p);

    /* ---- of a transport that is on_queue; NULL elsewhere ---- */
    /* All of an operation is on `q`: *mark (made if it is NULL) says from now on when it is past it. */
    enum dt_status (*mark)(struct dt_transport *t, struct dt_device_queue *q, void **mark,
                           struct dt_error *err);
    /* Is it past it?  (No mark: yes.) */
    bool (*passed)(struct dt_transport *t, void *mark);
};

struct dt_comm {
    struct dt_transport *t;
    struct dt_comm *inner; /* of a transport over another: the same ranks in the one below */
    void *own;             /* the implementation's */
    int n, me;
    int *ranks;
    uint64_t *pair; /* [n] number of this comm among those that this rank and member k share */
    atomic_uint seq;
};

/* A comm of `bytes`, at least those of struct dt_comm, that stands for one of `inner`'s, and what frees both. */
enum dt_status dt_comm_new_over(struct dt_transport *t, struct dt_transport *inner, size_t bytes,
                                const int *ranks, int n, struct dt_error *err,
                                struct dt_comm **out);
void dt_comm_free_over(struct dt_comm *c);

struct dt_coll_strand {
    long round;
    int first, n; /* transfers of this round that are not yet over */
    bool over;
};

struct dt_req;
/* A kind of collective: begins round `s->round` of a strand (dt_coll_send, dt_coll_recv), or says
 * that there is none; what to do when the transfers of that round are over. */
struct dt_coll {
    const char *name;
    bool (*begin)(struct dt_req *r, struct dt_coll_strand *s, int strand, struct dt_error *err);
    void (*end)(struct dt_req *r, struct dt_coll_strand *s, int strand);
};

struct dt_req {
    struct dt_transport *t;
    struct dt_req *next, *prev; /* in the list of collectives under way, or of free ones */
    struct dt_req *all;         /* every request of the transport */
    atomic_flag busy;           /* somebody makes it progress */
    bool live;                  /* given out, not yet over */
    enum dt_status failed;
    struct dt_error error;
    size_t bytes; /* this rank's share, for how long to poll */

    const struct dt_coll *coll; /* NULL: one transfer */
    struct dt_comm *comm;
    uint64_t seq;
    enum dt_reduce_type type;
    char *buf;
    const char *send; /* all-to-all */
    int root;
    size_t n;     /* elements (all-reduce), bytes (broadcast) */
    size_t chunk; /* elements of a chunk, or bytes */
    int n_strands, max_xfers;
    struct dt_coll_strand strand[DT_STRANDS];
    size_t *at;      /* [members + 1] where pieces begin, elements or bytes */
    size_t *at_send; /* [members + 1], all-to-all */
    char *scratch;   /* n_strands x scratch_strand bytes */
    size_t scratch_strand;
    const void **parts;        /* [members] of a sum */
    void *mark;                /* of wire->settle, or wire->mark */
    struct dt_device_queue *q; /* of the operation; NULL: of host memory */
    char *xfers;               /* n_strands x max_xfers x xfer_bytes */
    size_t at_cap, at_send_cap, scratch_cap, parts_cap, xfers_cap;
};

/* What every implementation's `impl` begins with. */
struct dt_transport_base {
    const struct dt_transport_wire *wire;
    pthread_mutex_t lock; /* the lists below, and the pairs */
    struct dt_req *colls; /* under way */
    struct dt_req *free, *all;
    _Atomic(struct dt_req *) spare; /* a free one that costs no lock */
    uint64_t *pairs;                /* [size] comms made so far that this rank and rank k share */
    atomic_int n_colls;
};

/* Fills the table's entries above the wire, and the base; t->rank, t->size, t->sharers and t->impl are set. */
enum dt_status dt_transport_base_init(struct dt_transport *t, const struct dt_transport_wire *wire,
                                      struct dt_error *err);
/* Drops what is still under way and frees the requests.  t itself is the caller's. */
void dt_transport_base_free(struct dt_transport *t);
/* Seconds of a variable of the environment, or `otherwise_s`. */
enum dt_status dt_transport_seconds(const char *name, double otherwise_s, struct dt_error *err,
                                    double *out_s);
/* A message and its receive differ in size.  DT_ERR_PEER. */
enum dt_status dt_transport_size_error(struct dt_error *err, int from, int to, uint64_t key,
                                       size_t sent, size_t expected);

static inline struct dt_transport_base *dt_transport_base(const struct dt_transport *t)
{
    return t->impl;
}

/* ---- requests (transport_request.c) ---- */
/* A queue goes with device memory, and only with it. */
enum dt_status dt_req_check_queue(const struct dt_transport *t, const struct dt_device_queue *q,
                                  struct dt_error *err);
/* The same, and what is posted now comes after what is on it. */
enum dt_status dt_req_begin(struct dt_transport *t, struct dt_device_queue *q,
                            struct dt_error *err);
enum dt_status dt_req_new(struct dt_transport *t, struct dt_device_queue *q, struct dt_error *err,
                          struct dt_req **out);
void dt_req_release(struct dt_req *r);
/* Room for the transfers and the scratch of the strands; `at` (and `at_send`) of the members. */
enum dt_status dt_req_room(struct dt_req *r, int n_strands, int max_xfers, size_t scratch_strand,
                           struct dt_error *err);
/* A collective of `c` with the next sequence number; counts of the members' pieces, or NULL. */
enum dt_status dt_coll_new(struct dt_comm *c, const struct dt_coll *kind, void *buf,
                           const size_t *counts, struct dt_device_queue *q, struct dt_error *err,
                           struct dt_req **out);
/* Gives it room and posts it; a request that cannot be posted is released. */
enum dt_status dt_coll_post(struct dt_req *r, int n_strands, int max_xfers, size_t scratch_strand,
                            struct dt_error *err, struct dt_req **out);
enum dt_status dt_req_post(struct dt_req *r, struct dt_error *err, struct dt_req **out);
/* All of it is on its queue, or `st` says that it has failed: on_queue's end of a post. */
enum dt_status dt_req_end_on_queue(struct dt_req *r, enum dt_status st, struct dt_error *err,
                                   struct dt_req **out);
bool dt_coll_send(struct dt_req *r, struct dt_coll_strand *s, int strand, int member,
                  const void *buf, size_t bytes, struct dt_error *err);
bool dt_coll_recv(struct dt_req *r, struct dt_coll_strand *s, int strand, int member, void *buf,
                  size_t bytes, struct dt_error *err);

/* ---- collectives (transport_coll.c, transport_reduce.c): the table's entries ---- */
enum dt_status dt_coll_broadcast(struct dt_comm *c, int root, void *buf, size_t bytes,
                                 struct dt_device_queue *q, struct dt_error *err,
                                 struct dt_req **out);
enum dt_status dt_coll_all_gather(struct dt_comm *c, void *buf, const size_t *bytes,
                                  struct dt_device_queue *q, struct dt_error *err,
                                  struct dt_req **out);
enum dt_status dt_coll_all_to_all(struct dt_comm *c, const void *send, const size_t *send_bytes,
                                  void *recv, const size_t *recv_bytes, struct dt_device_queue *q,
                                  struct dt_error *err, struct dt_req **out);
enum dt_status dt_coll_all_reduce(struct dt_comm *c, enum dt_reduce_type type, void *buf, size_t n,
                                  struct dt_device_queue *q, struct dt_error *err,
                                  struct dt_req **out);
enum dt_status dt_coll_reduce_scatter(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                      const size_t *counts, struct dt_device_queue *q,
                                      struct dt_error *err, struct dt_req **out);

/* dt_transport_wait; once *stop is true, DT_ERR_PEER. */
enum dt_status dt_transport_wait_unless(struct dt_transport *t, struct dt_req *r, double limit_s,
                                        const char *what, const atomic_bool *stop,
                                        struct dt_error *err);

/* What operations that have failed may still write into: it stays until the process ends, and what it points to. */
void dt_transport_leave(void *p);
/* Memory of the device, or the host's for copies, that a transport keeps until it is closed.  It is nobody's: it outlives
 * the lane in whose name the thread that posts allocates. */
enum dt_status dt_transport_alloc(const struct dt_device *dev, bool host, size_t bytes,
                                  struct dt_error *err, void **out);

/* MPI: longest message in one piece; tests set it. */
extern size_t dt_transport_mpi_piece_bytes;

/* CUDA IPC: blocks of other ranks that are mapped at a time, at most; tests set it. */
extern int dt_transport_ipc_mappings;
/* How long ranks that close wait for each other; tests set it. */
extern uint64_t dt_transport_ipc_part_ns;

/* Before an abort: leaves a process behind that kills this rank's launcher, if that is one of Open
 * MPI's and does not end within 4 s. */
void dt_transport_hurry_launcher(void);
/* Is this the process of a launcher that ends with its ranks, or of its daemon on this host? */
bool dt_transport_is_launcher(pid_t pid);

#endif
