/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The transport table: how ranks of a job reach each other.
 *
 *   rank   one process (MPI) or one thread of a test (threads), with one device
 *   comm   an ordered set of ranks that act together; made once, before training
 *   req    an operation under way: begun by post_*, over when `test` says so
 *
 * Every implementation fills every entry; callers never ask which one it is.  Nothing blocks: whoever
 * needs a result tests and decides how long to wait (dt_transport_wait).
 *
 * Memory.  A rank has two of these tables.  One is for control: it carries host memory (MPI, TCP, threads,
 * self), and `q` is NULL.  The other one carries the memory of a device, and every operation names the
 * queue `q` in whose order its buffer is ready: the operation begins when what is on `q` at the post has
 * passed, be it what writes the bytes to send or what still reads where bytes will be received.
 *
 *   on_queue    the operation itself is put on `q`: what is put there later comes after it.  `out` may be
 *               NULL, as nobody needs to test it; what fails then is told by the rank's next post.  The queue
 *               stands still until the other ranks have posted theirs, so whatever need not come after the
 *               operation goes on another queue
 *   otherwise   it is over when `test` says so; any queue, and the host, may then use the buffer.  The
 *               caller keeps `q` from writing it in the meantime
 *
 * collectives_on_queue: where the transport as a whole is not on_queue, a collective is nevertheless put on `q`
 * if its `out` is NULL.  A comm has either only such collectives, all on one queue, or none.  They may hold up
 * host functions of other queues (dt_device.call), so only what no other rank waits for comes behind those.
 *
 * Order.  Between two ranks, messages of one tag meet in the order of their posts; on one comm all
 * members post the same operations in the same order.  A caller that posts in the program's order
 * therefore needs no further agreement, and dt_program_check's proof that the program has no cycle
 * is the proof that nothing waits for ever.  Sizes are agreed on beforehand: a message of another
 * size than its receive is an error that names both.
 *
 * Threads: entries may be called by any thread of the rank at any time; one req is tested by one
 * thread.  The main thread uses comms for tensor parallelism, the communication thread the rest. */
#ifndef DT_COMM_TRANSPORT_H
#define DT_COMM_TRANSPORT_H

#include "base/reduce.h"
#include "base/status.h"
#include "kernels/device.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_TRANSPORT_ABI 6u

struct dt_transport;
struct dt_comm; /* belongs to one transport */
struct dt_req;  /* belongs to one transport; ends with the `test` that reports it done or failed */

/* Messages from a rank to another one with that tag. */
struct dt_transport_edge {
    int from, to, tag;
};
enum {
    DT_TRANSPORT_NCCL_TAG = (1 << 22) - 17
}; /* of the control transport, before the supervisor's */

enum dt_transport_memory { DT_TRANSPORT_HOST, DT_TRANSPORT_DEVICE };

struct dt_transport {
    uint32_t abi;                    /* DT_TRANSPORT_ABI */
    enum dt_transport_memory memory; /* of all buffers */
    bool on_queue;                   /* see above; only of device memory */
    bool collectives_on_queue;       /* the same */
    int rank, size;
    int local_rank, local_size; /* among the ranks of this host */
    int cores;                  /* that this rank may run on */
    int sharer, sharers; /* among the ranks of this host that may run on just the same cores */
    char name[16];       /* "mpi", "tcp", "nccl", "ipc", "threads", "self" */
    char host[64];
    char note[160]; /* what it does without, and why, in a line; "" = nothing so far */
    void *impl;

    /* All comms are gone.  Collective. */
    void (*close)(struct dt_transport *t);
    /* Ends the whole job now, without waiting for anybody; does not return. */
    void (*abort)(struct dt_transport *t, int exit_status);
    /* For a rank that has failed: its queues stop waiting for other ranks, what they wait for remains
     * undefined, and later posts fail.  So queues that are on_queue can be synchronised and freed. */
    void (*give_up)(struct dt_transport *t);
    /* What has failed on queues so far, the first of it, which a post would be told as well.  For whoever has seen
     * a queue pass, and relies on what came from other ranks. */
    enum dt_status (*state)(struct dt_transport *t, struct dt_error *err);

    /* Collective over the named ranks (ascending or not; their order is the order of members), in
     * the same order at all of them; this rank is one of them. */
    enum dt_status (*comm_new)(struct dt_transport *t, const int *ranks, int n,
                               struct dt_error *err, struct dt_comm **out);
    void (*comm_free)(struct dt_comm *c);

    /* ---- between two ranks ---- tag: 0 .. 2^22 - 1.  To oneself is allowed, but not over NCCL. */

    /* Says what messages there will be: both ends say so before they post any, in an order that is the same for all
     * ranks.  Those that are known, or are of others, are passed over.  Most transports do not care.  Called before
     * each iteration, when the device is idle (there may be no edges then): what waits for the device is done here. */
    enum dt_status (*connect)(struct dt_transport *t, const struct dt_transport_edge *edges, int n,
                              struct dt_error *err);
    enum dt_status (*post_send)(struct dt_transport *t, int to, int tag, const void *buf,
                                size_t bytes, struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out);
    enum dt_status (*post_recv)(struct dt_transport *t, int from, int tag, void *buf, size_t bytes,
                                struct dt_device_queue *q, struct dt_error *err,
                                struct dt_req **out);

    /* ---- collectives; every member has the same arguments ----
     * counts are elements; pieces lie side by side in the order of members, pieces may be empty. */
    enum dt_status (*post_broadcast)(struct dt_comm *c, int root_member, void *buf, size_t bytes,
                                     struct dt_device_queue *q, struct dt_error *err,
                                     struct dt_req **out);
    /* In place. */
    enum dt_status (*post_all_reduce)(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                      size_t n, struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out);
    /* `buf` holds all pieces; afterwards this member's piece in it is the sum, the others are
     * undefined. */
    enum dt_status (*post_reduce_scatter)(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                          const size_t *counts, struct dt_device_queue *q,
                                          struct dt_error *err, struct dt_req **out);
    /* `buf` holds this member's piece in its place; afterwards all pieces.  bytes[]: per member. */
    enum dt_status (*post_all_gather)(struct dt_comm *c, void *buf, const size_t *bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out);
    /* send_bytes[k] go to member k; recv_bytes[k] come from it. */
    enum dt_status (*post_all_to_all)(struct dt_comm *c, const void *send, const size_t *send_bytes,
                                      void *recv, const size_t *recv_bytes,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_req **out);

    /* ---- memory that is exchanged often ---- NULL: the device's own is as good (dt_transport_memory_new).
     * Nothing that uses it is under way when it is freed, or not shared any more.  Messages need only lie in it. */
    enum dt_status (*memory_new)(struct dt_transport *t, size_t bytes, struct dt_error *err,
                                 void **out);
    void (*memory_free)(struct dt_transport *t, void *p);
    /* Collective: each member has so much of it, which collectives of `c` will read and write; before c is
     * freed, and before the memory is, it is unshared, which is collective, too. */
    enum dt_status (*memory_share)(struct dt_comm *c, void *p, struct dt_error *err);
    void (*memory_unshare)(struct dt_comm *c, void *p);

    /* Makes progress of what is under way.  *done: over, and `r` is gone.  An error is reported once
     * and ends `r` too. */
    enum dt_status (*test)(struct dt_transport *t, struct dt_req *r, bool *done,
                           struct dt_error *err);

    /* For waiting: the default limit, and for how long it pays to test `r` without pauses. */
    double limit_s;
    uint64_t (*eager_ns)(const struct dt_transport *t, const struct dt_req *r);
    /* Told when dt_transport_wait begins to wait, and when what it waited for has come; may be
     * NULL.  (A wait that fails is not over: others are still waited for.) */
    void (*waiting)(void *ctx, bool waits);
    void *waiting_ctx;
};

/* More ranks than cores: whoever waits leaves a core to others. */
static inline bool dt_transport_crowded(const struct dt_transport *t)
{
    return t->sharers > t->cores;
}

int dt_comm_size(const struct dt_comm *c);
int dt_comm_member(const struct dt_comm *c);           /* this rank's number in it */
int dt_comm_rank(const struct dt_comm *c, int member); /* its rank in the transport */
struct dt_transport *dt_comm_transport(const struct dt_comm *c);

/* Memory of the device for what is exchanged often, by the transport if it has its own. */
enum dt_status dt_transport_memory_new(struct dt_transport *t, const struct dt_device *dev,
                                       size_t bytes, struct dt_error *err, void **out);
void dt_transport_memory_free(struct dt_transport *t, const struct dt_device *dev, void *p);

/* Tests until it is done, first eagerly, then with growing pauses that leave the core to others.
 * After `limit_s` seconds (0 = the transport's default, see below) DT_ERR_TIMEOUT that says `what`
 * was waited for; `r` then stays under way and its memory in use until close.  `what` may be
 * NULL. */
enum dt_status dt_transport_wait(struct dt_transport *t, struct dt_req *r, double limit_s,
                                 const char *what, struct dt_error *err);

/* ---- implementations ---- */

/* MPI (built when configure finds it).  Initialises MPI if need be; reads DISTTRAIN_OP_TIMEOUT_S
 * (default 300) for the default limit. */
enum dt_status dt_transport_open_mpi(struct dt_error *err, struct dt_transport **out);
/* Was this process started by an MPI launcher (mpirun, srun)?  Looks at the environment only, which
 * may not tell how many ranks there are (1 then). */
bool dt_transport_mpi_launched(int *ranks);
/* Was it started by a launcher that says who it is and where rank 0 is to be found (RANK, WORLD_SIZE, MASTER_ADDR,
 * MASTER_PORT, as torchrun does), as one of several, and by none of MPI's? */
struct dt_transport_launch {
    int rank, size;
    char address[256], port[8]; /* of rank 0 */
};
bool dt_transport_tcp_launched(struct dt_transport_launch *out);
/* Over TCP, between the ranks of such a launch.  Collective; the limit is that of operations. */
enum dt_status dt_transport_open_tcp(const struct dt_transport_launch *l, struct dt_error *err,
                                     struct dt_transport **out);
/* Over whatever this process was started with: TCP, MPI, or alone. */
enum dt_status dt_transport_open_launched(struct dt_error *err, struct dt_transport **out);
/* DT_ERR_USAGE if the environment says that this process is one of several tasks, but there is no
 * MPI between them: each would run the whole job by itself.  `size` is that of MPI's world, 1 where
 * MPI is not asked. */
enum dt_status dt_transport_check_tasks(int size, struct dt_error *err);
/* `n` ranks that are threads of this process: one table per rank in out[], each to be used by the
 * threads of that rank.  For tests, and where there is no MPI. */
enum dt_status dt_transport_open_threads(int n, struct dt_error *err, struct dt_transport **out);
/* The same for the memory of devices, one of each rank, which may be the same one: bytes go from memory to
 * memory, copied by the device of the rank that came second, and sums are made by the devices.  A device
 * takes the memory and the events of all: they are one device, or CPUs.  Where it has gates, the transport is
 * on_queue.  The devices outlive it. */
enum dt_status dt_transport_open_threads_on(int n, const struct dt_device *const *devices,
                                            struct dt_error *err, struct dt_transport **out);
/* One rank alone. */
enum dt_status dt_transport_open_self(struct dt_error *err, struct dt_transport **out);

/* The memory of a device, over a transport of host memory, which outlives it.  Bytes go through page-locked
 * memory, copied on a queue of its own; where the host may touch the device's memory (info.host_memory)
 * they do not, and `inner` gets the buffers themselves.  Not collective. */
enum dt_status dt_transport_open_staged(struct dt_transport *inner, const struct dt_device *device,
                                        struct dt_error *err, struct dt_transport **out);

/* The memory of cards, over NCCL, which is loaded at run time; on_queue.  `control` lets ranks find each other, and
 * outlives it, as the device does.  Sums are NCCL's: the same from run to run, but not formed in the order of
 * members.  Collective; DT_ERR_INPUT, alike on all ranks, if one has no NCCL or no card, or two have the same card. */
enum dt_status dt_transport_open_nccl(struct dt_transport *control, const struct dt_device *device,
                                      struct dt_error *err, struct dt_transport **out);

/* The memory of cards: messages between ranks of one host go from card to card, or within a card that they share, by
 * memory that processes map (CUDA IPC); other messages and all collectives are staged over `control`, which outlives it,
 * as the device does, and carries notes.  Collective; DT_ERR_INPUT, alike on all ranks, if a device has no such memory,
 * two ranks of a host cannot map each other's, or no two are on one host. */
enum dt_status dt_transport_open_ipc(struct dt_transport *control, const struct dt_device *device,
                                     struct dt_error *err, struct dt_transport **out);

/* The memory of a device by the best way there is, or the one that is named: NCCL where all ranks have a card each
 * that it can use, else staged.  CUDA IPC only if it is named: a message of it takes two notes of the hosts, one after
 * the other.  Collective; devices are of one kind on all ranks. */
enum dt_transport_over {
    DT_TRANSPORT_OVER_AUTO,
    DT_TRANSPORT_OVER_STAGED,
    DT_TRANSPORT_OVER_NCCL,
    DT_TRANSPORT_OVER_IPC
};
enum dt_status dt_transport_open_device(struct dt_transport *control,
                                        const struct dt_device *device, enum dt_transport_over over,
                                        struct dt_error *err, struct dt_transport **out);

/* ---- tensor parallelism: collectives inside an op, in queue order ----
 *
 * Where the transport puts collectives on queues these are put there; else they have happened when they
 * return.  Failures stick to the dt_tp: later calls do nothing, and dt_tp_state tells.  (What fails on the
 * queue is told by a later call, and by the transport's `state`.)  A NULL dt_tp is one rank alone: calls do
 * nothing. */
struct dt_tp_beside; /* transport_tp_beside.c */
struct dt_tp {
    struct dt_comm *comm; /* of device memory */
    int rank, size;       /* members of comm */
    double limit_s;
    struct dt_error error; /* the first failure */
    struct dt_tp_beside
        *beside; /* NULL: collectives are over, or on the caller's queue, when they return */
};
static inline int dt_tp_size(const struct dt_tp *tp)
{
    return tp ? tp->size : 1;
}
static inline int dt_tp_rank(const struct dt_tp *tp)
{
    return tp ? tp->rank : 0;
}
/* Pieces of n things over the members: the first n % size have one more. */
static inline int64_t dt_tp_first(const struct dt_tp *tp, int64_t n, int member)
{
    int64_t q = n / dt_tp_size(tp), r = n % dt_tp_size(tp);

    return member * q + (member < r ? member : r);
}
static inline int64_t dt_tp_count(const struct dt_tp *tp, int64_t n, int member)
{
    return dt_tp_first(tp, n, member + 1) - dt_tp_first(tp, n, member);
}
enum dt_status dt_tp_state(const struct dt_tp *tp, struct dt_error *err);
/* x[n] becomes the sum over members. */
void dt_tp_all_reduce(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type, int64_t n,
                      void *x);
/* The same of doubles, and the maximum of floats (vocabulary-parallel softmax). */
void dt_tp_all_reduce_f64(struct dt_device_queue *q, struct dt_tp *tp, int64_t n, double *x);
void dt_tp_all_reduce_max(struct dt_device_queue *q, struct dt_tp *tp, int64_t n, float *x);
/* all[rows][width]: every member holds its dt_tp_first/count rows in their place; then all do. */
void dt_tp_all_gather(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type, int64_t rows,
                      int64_t width, void *all);
/* all[rows][width] are partial sums; this member's rows become the sums, the others undefined. */
void dt_tp_reduce_scatter(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                          int64_t rows, int64_t width, void *all);

/* A ring: `bytes` of `from` go to the next member, the last one's to the first; as many come to `to` from the one
 * before.  Returns what dt_tp_end takes; until then `from` stays as it is (see dt_tp_beside_new). */
int dt_tp_begin_pass(struct dt_device_queue *q, struct dt_tp *tp, const void *from, size_t bytes,
                     void *to);

/* send_bytes[k] bytes of `from` go to member k, what it sends comes to `to`, both side by side in the order of
 * members (expert parallelism). */
void dt_tp_all_to_all(struct dt_device_queue *q, struct dt_tp *tp, const void *from,
                      const size_t *send_bytes, void *to, const size_t *recv_bytes);

/* ---- the same beside what the caller does next (chunks of a product: StepCCL) ----
 *
 * From dt_tp_beside_new on, where queues run on their own all collectives of `tp` are on a queue of its own, in
 * the order of the calls; those above have the caller's queue wait for them.  What is begun starts when `q` has
 * passed what is on it now; what is put on `q` after dt_tp_end comes after it.  On a CPU it makes progress while
 * transports are asked, and dt_tp_end waits.  Without dt_tp_beside_new it is over when it has been begun. */
enum { DT_TP_BESIDE_MAX = 32 }; /* begun and not ended, at most */
enum dt_status dt_tp_beside_new(struct dt_tp *tp, const struct dt_device *dev,
                                struct dt_error *err);
void dt_tp_beside_free(
    struct dt_tp *tp); /* before its comm; what is under way was ended or given up */
/* Member k has rows[k] rows of `all`, one member's after the other's.  Returns what dt_tp_end takes. */
int dt_tp_begin_gather(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                       const int64_t *rows, int64_t width, void *all);
int dt_tp_begin_scatter(struct dt_device_queue *q, struct dt_tp *tp, enum dt_dtype type,
                        const int64_t *rows, int64_t width, void *all);
void dt_tp_end(struct dt_device_queue *q, struct dt_tp *tp, int begun);

#endif
