/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#ifndef DT_COMM_SUPERVISOR_IMPL_H
#define DT_COMM_SUPERVISOR_IMPL_H

#include "comm/supervisor.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum { /* after DT_SUPERVISOR_TAG */
       TAG_FACTS,
       TAG_VERDICT,
       TAG_CLOCK,
       TAG_BEAT
};

/* What a rank does, in memory that the ranks of its host can read. */
struct dt_supervisor_page {
    uint64_t nonce; /* of the rank that owns it */
    int32_t rank;
    _Atomic uint64_t doing;    /* module + 1, op + 1, microbatch + 1: 8, 32, 24 bits; 0 = nothing */
    _Atomic uint64_t last;     /* what it did before that */
    _Atomic uint64_t since_ns; /* of the owner's clock */
    _Atomic uint64_t wait_since_ns; /* the same, of the first of `waits` */
    atomic_int waits;
    atomic_int spoke; /* it has told, or tells, why the job ends */
    atomic_int left;  /* it ends as it should */
};

struct dt_supervisor_beat {
    uint64_t doing, last, age_ns, wait_age_ns;
    uint32_t waits, bye;
};

struct dt_supervisor_peer {                /* seen by this rank */
    const struct dt_supervisor_page *page; /* NULL: another host */
    int pidfd;                             /* of its process; -1 = none */
    struct dt_supervisor_beat said;        /* what was last heard */
    uint64_t heard_ns;                     /* when */
    struct dt_supervisor_beat in, out;     /* under way */
    struct dt_req *recv, *send;
};

struct dt_supervisor {
    struct dt_transport *t;
    struct dt_comm *all;
    struct dt_supervisor_rank *ranks;
    int64_t ahead_ns, bound_ns;

    struct dt_supervisor_page *page; /* this rank's */
    int page_fd;

    struct dt_supervisor_watch watch;
    struct dt_supervisor_peer *peers; /* [size] */
    struct pollfd *fds;               /* of the processes of this host */
    int n_fds;
    bool watching;
    atomic_bool leaving;
    pthread_t thread;
};

/* This rank's page; without shared memory it is an ordinary one. */
enum dt_status dt_supervisor_page_new(struct dt_supervisor *w, struct dt_error *err);
void dt_supervisor_page_free(struct dt_supervisor *w);
/* The page of a rank of this host, or NULL. */
const struct dt_supervisor_page *dt_supervisor_page_of(const struct dt_supervisor *w, int rank);
void dt_supervisor_page_unmap(const struct dt_supervisor_page *p);
void dt_supervisor_watch_stop(struct dt_supervisor *w);

#endif
