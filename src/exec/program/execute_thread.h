/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The communication thread of an executor: what waits for what, its queues and its turns.  Included by execute_impl.h alone. */
#ifndef DT_EXEC_PROGRAM_EXECUTE_THREAD_H
#define DT_EXEC_PROGRAM_EXECUTE_THREAD_H

#include "base/status.h"
#include "kernels/device.h"

#include <pthread.h>

struct dt_exec_request;
struct dt_exec_packed;

/* Which thread does an op. */
enum dt_exec_where { DT_EXEC_ELSEWHERE, DT_EXEC_MAIN, DT_EXEC_COMM };
/* A token tells another rank that an op that one of its ops waits for has ended, where no message
 * says so. */
struct dt_exec_token {
    int rank; /* to tell, or to hear from */
    int tag;
    bool hears;
    uint32_t op; /* waits for it here (hears), or is told of */
};
/* Who waits for whom on this rank in this iteration (execute_graph.c).  Numbers: ops of the program,
 * then `n_tokens` tokens, then the losses. */
struct dt_exec_graph {
    uint32_t n;                  /* numbers */
    uint32_t *pending;           /* per number: what it waits for */
    bool *hears;                 /* per number: the communication thread does some of that */
    unsigned char *kind;         /* per number: enum dt_exec_where */
    uint32_t *succ_first, *succ; /* per number: who waits for it */
    struct dt_exec_token *tokens;
    uint32_t n_tokens;
    size_t cap_pending, cap_hears, cap_kind, cap_succ_first, cap_succ, cap_tokens;
};
/* The communication thread's queues, where no queue stands still for other ranks (execute_queue.c).  What is posted on
 * the first three waits for its ops on the main queue, each kind behind its own; what lands waits for nothing but
 * what landed before. */
enum dt_exec_queue {
    DT_EXEC_SENDS,
    DT_EXEC_RECVS,
    DT_EXEC_COLLS,
    DT_EXEC_LANDS, /* what remains to be done on the device when an operation is over */
    DT_EXEC_QUEUES
};
/* A queue of one op at a time, elsewhere. */
struct dt_exec_own_queue {
    struct dt_device_queue *q;
    struct dt_device_event *given; /* what its last op has put there is over */
    bool used;
};
struct dt_exec_turns { /* of what is posted on queues (execute_turn.c) */
    uint32_t *op, n, next;
    unsigned char *takes; /* per op */
    size_t cap, cap_takes;
};

/* The communication thread (execute_comm.c, execute_post.c).
 *
 * An op is *issued* when its work is on a queue, and *done* when the queue is past it.  Counters and
 * conditions tell what has been issued (of a transport's operation: what is over, unless it is on_queue, and
 * the main thread waits for it).  Whoever comes after it on another queue waits there, on the device, for the op's
 * event. */
struct dt_exec_comm {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of all below, of messages and their users */
    pthread_cond_t work, done;
    bool stop, main_waits;
    struct dt_exec_graph graph;
    uint32_t left;                           /* ops of the thread that have not completed */
    uint32_t *ready, ready_first, ready_end; /* for the thread */
    enum dt_status status;
    struct dt_error error;
    size_t cap_ready;
    struct dt_exec_turns turns;
    /* the thread's own */
    struct dt_exec_request *requests; /* under way */
    size_t n_requests, cap_requests;
    uint32_t *under_way; /* per number: its requests */
    size_t cap_under_way;
    struct dt_device_queue *q[DT_EXEC_QUEUES]; /* NULL: there is no thread */
    struct dt_exec_packed **pool;
    size_t n_pool, cap_pool;
    void **
        outgrown; /* memory of the transport that messages have outgrown, until nothing is under way */
    size_t n_outgrown, cap_outgrown;
    uint32_t *held, n_held; /* numbers whose host work needs what their ops have computed */
    size_t cap_held;
    unsigned char byte_out, byte_in; /* of tokens */
    /* per number: the last op on the main queue of those that it waits for, and the first of a list of those
     * that landed, by their places in graph.succ; DT_NONE = none */
    uint32_t *after_main, *after_land;
    uint32_t *land_by,
        *land_next;        /* per place in graph.succ: the op that landed; the rest of the list */
    unsigned char *landed; /* per number: its event is on the queue of what lands */
    unsigned char *early;  /* per number: the main thread went on before it was over */
    unsigned char *more;   /* per number: dt_exec_post_more has been called */
    struct dt_device_queue **queue_of; /* per number: what it has been posted on */
    struct dt_exec_own_queue *own;
    size_t n_own, cap_own;
    /* measured */
    uint64_t *begin_ns, *end_ns; /* per number */
    size_t cap_begin, cap_end, cap_after_main, cap_after_land, cap_landed, cap_land_by,
        cap_land_next;
    size_t cap_early, cap_queue_of, cap_more;
};

#endif
