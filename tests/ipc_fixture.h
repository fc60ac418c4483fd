/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ranks that are processes, over TCP, each with a device of tests: memory that others can map needs others. */
#ifndef DT_TESTS_IPC_FIXTURE_H
#define DT_TESTS_IPC_FIXTURE_H

#include "fake_device.h"
#include "test_util.h"

#include "comm/transport_impl.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { IF_RANKS = 3, IF_QUEUES = 3 };

struct if_rank {
    int k, n;
    struct dt_device *dev;
    struct dt_device_queue *q[IF_QUEUES];
    struct dt_transport *control, *t;
    struct dt_error err;
};

/* How each rank has ended, as waitpid says. */
static int if_status[IF_RANKS];
/* What ranks and the test share; zero at first. */
struct if_shared {
    uint64_t number[IF_RANKS];
    enum dt_status status[IF_RANKS];
    char text[IF_RANKS][512];
};
static struct if_shared *if_shared;

static inline void if_say(struct if_rank *r, enum dt_status st)
{
    if_shared->status[r->k] = st;
    snprintf(if_shared->text[r->k], sizeof(if_shared->text[r->k]), "%.500s", r->err.message);
}

static inline bool if_is_fake(void)
{
    return getenv("DISTTRAIN_TEST_DEVICE") == NULL;
}

static inline void if_open(struct if_rank *r, int port)
{
    struct dt_transport_launch l = {.rank = r->k, .size = r->n, .address = "127.0.0.1"};
    struct dt_device_options o = {.threads = 1};

    snprintf(l.port, sizeof(l.port), "%d", port);
    dt_assert_ok(dt_transport_open_tcp(&l, &r->err, &r->control), r->err);
    dt_assert_ok((if_is_fake() ? dt_fake_device_open : dt_test_device_open)(&o, &r->err, &r->dev),
                 r->err);
    for (int i = 0; i < IF_QUEUES; i++)
        dt_assert_ok(r->dev->queue_new(r->dev, false, &r->err, &r->q[i]), r->err);
}

static inline void if_close(struct if_rank *r)
{
    for (int i = 0; i < IF_QUEUES; i++)
        r->dev->queue_free(r->q[i]);
    if (r->t)
        r->t->close(r->t);
    r->dev->close(r->dev);
    if (r->control)
        r->control->close(r->control);
}

/* Each rank: `fn`.  Returns when all have ended; ck_assert in a rank ends it with status 1. */
static inline void if_ranks(int n, void (*fn)(struct if_rank *r))
{
    static int started;
    int port = 20000 + (int)(getpid() % 6000) * 2 + started++ % 2;
    pid_t pid[IF_RANKS], parent = getpid();

    if_shared =
        mmap(NULL, sizeof(*if_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(if_shared != MAP_FAILED);
    setenv("DISTTRAIN_OP_TIMEOUT_S", "20", 1);
    for (int k = 0; k < n; k++) {
        pid[k] = fork();
        ck_assert_int_ge(pid[k], 0);
        if (pid[k] == 0) {
            struct if_rank r = {.k = k, .n = n};

            prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that takes too long leaves nobody behind */
            if (getppid() != parent)
                _exit(1);
            if_open(&r, port);
            fn(&r);
            if_close(&r);
            _exit(0);
        }
    }
    for (int k = 0; k < n; k++)
        ck_assert_int_eq(waitpid(pid[k], &if_status[k], 0), pid[k]);
}

static inline void if_all_well(int n)
{
    for (int k = 0; k < n; k++)
        ck_assert_msg(WIFEXITED(if_status[k]) && WEXITSTATUS(if_status[k]) == 0,
                      "rank %d of %d ended with status %#x: %s", k, n, (unsigned)if_status[k],
                      if_shared->text[k]);
}

static inline void *if_alloc(struct if_rank *r, size_t bytes)
{
    void *p;

    dt_assert_ok(r->dev->alloc(r->dev, bytes, &r->err, &p), r->err);
    return p;
}

#endif
