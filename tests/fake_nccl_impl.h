/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The NCCL of tests, the inside.  Shared by fake_nccl*.c only. */
#ifndef DT_TESTS_FAKE_NCCL_IMPL_H
#define DT_TESTS_FAKE_NCCL_IMPL_H

#include "fake_nccl.h"

#include "comm/nccl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define SHOWN __attribute__((visibility("default")))
enum { SUCCESS, UNHANDLED, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS, RANKS = 64 };
enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, MESSAGE };

/* What the members of a communicator do together: a collective of all, or a message of two. */
struct meeting {
    struct meeting *next;
    uint64_t number; /* of its kind: collectives; messages from one to another */
    enum kind kind;
    int from, to; /* of a message */
    size_t n;
    int type, op, root, came, left;
    const char *in[RANKS]; /* as tasks see them; NULL: has not come */
    char *out[RANKS];
    bool over;
};

struct world { /* the members of a communicator */
    struct world *next;
    uint64_t id;
    int n, joined, users, finalized;
    int under_way[RANKS]; /* launches of each member that are not over */
    bool given_up[RANKS], lost;
    struct meeting *meetings;
};

struct part { /* of a launch: what one member brings to a meeting */
    enum kind kind;
    const char *in;
    char *out;
    size_t n;
    int type, op, root, from, to;
    uint64_t number;
};

struct launch { /* what goes to a stream as one */
    struct launch *next;
    struct dt_nccl_comm *comm;
    struct world *w; /* of comm, which may have ended */
    int me;
    void *stream;
    struct part *parts;
    int n, cap;
};

struct caller { /* a thread that makes communicators */
    struct caller *next;
    pthread_t thread;
    uint64_t comms, order; /* made so far; a hash of its calls, in their order */
};

struct dt_nccl_comm {
    struct dt_nccl_comm *next; /* all that have not ended */
    struct world *w;
    struct caller *caller; /* nobody else may call */
    uint64_t name;         /* among the caller's */
    int me, questions;     /* more of them until it is ready */
    uint64_t windows;      /* made so far */
    uint64_t launches, collectives, sent[RANKS], received[RANKS];
    struct launch *held;       /* goes to its stream when it is ready */
    void **window_to, *window; /* where a window is written when it is ready */
    atomic_int inside;
    bool finalizing, zero_cta;
    struct dt_nccl_comm *given_up; /* the next that a group gives up */
};

extern pthread_mutex_t fake_nccl_lock; /* of worlds, meetings, callers and memory */
extern pthread_cond_t fake_nccl_change;

void *fake_nccl_zeroed(size_t bytes);
void fake_nccl_stop(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Does this call fail? */
bool fake_nccl_fails(void);
void fake_nccl_question_failed(void);
/* Nobody else is in the communicator, and it is the caller's. */
void fake_nccl_enter(struct dt_nccl_comm *c, const char *what);
void fake_nccl_leave(struct dt_nccl_comm *c);
const struct fake_nccl_hooks *fake_nccl_hooks_now(void);
int fake_nccl_version(void);

/* ---- meetings (fake_nccl_meet.c); all are locked ---- */
extern struct world *fake_nccl_worlds;
void fake_nccl_world_leave(struct world *w);
struct meeting *fake_nccl_come(struct world *w, int me, const struct part *p);
void fake_nccl_meeting_leave(struct world *w, struct meeting *m);
extern const char *const fake_nccl_kinds[];

/* ---- memory (fake_nccl_memory.c) ---- */
/* A gather is posted; locked. */
void fake_nccl_gather(struct dt_nccl_comm *c, const void *in, const void *out, size_t bytes);
void fake_nccl_sum(struct dt_nccl_comm *c, const void *in);
void fake_nccl_message(struct dt_nccl_comm *c, const void *buf);
/* The communicator ends.  It may not know memory any more, unless it is given up. */
void fake_nccl_forget(const struct dt_nccl_comm *c, bool given_up);

#endif
