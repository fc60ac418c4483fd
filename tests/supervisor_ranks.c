/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A job of several ranks in which something happens to one of them; test_supervisor.sh starts it under
 * mpirun.
 *
 *   supervisor_ranks end                  nothing happens: every rank agrees, does 20 ops, ends
 *   supervisor_ranks facts RANK           rank RANK has another job than the others
 *   supervisor_ranks kill|stop|exit|hang|error RANK   at its 7th op
 *   supervisor_ranks idle RANK            hangs after its 7th op, as one that reads data
 *   supervisor_ranks late RANK            hangs, and the others give up as soon as the watch may
 *   supervisor_ranks link                 times messages between rank 0 and the last
 *
 * Ops are sums over all ranks, so that the others wait for the one. */
#include "base/clock.h"
#include "comm/supervisor.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BACKWARD = 7 << 16 | 3 << 4 | 1 }; /* as numbers of ops are: with replica and stage */

static void describe(void *ctx, int module, int op, int64_t mb, char *buf, size_t size)
{
    (void)ctx;
    snprintf(buf, size, "module %s, op %s, microbatch %" PRId64, module ? "llm" : "vit",
             op == BACKWARD ? "backward"
             : op == 0      ? "forward"
                            : "?",
             mb);
}

static void report(void *ctx, const char *message)
{
    (void)ctx;
    fprintf(stderr, "job: %s\n", message);
    fflush(stderr);
}

static void happen(const char *what, struct dt_supervisor *w, struct dt_transport *t)
{
    if (strcmp(what, "kill") == 0)
        raise(SIGKILL);
    else if (strcmp(what, "stop") == 0)
        raise(SIGSTOP);
    else if (strcmp(what, "exit") == 0)
        _exit(0);
    else if (strcmp(what, "idle") == 0)
        dt_supervisor_doing(w, -1, 0, -1);
    while (strcmp(what, "hang") == 0 || strcmp(what, "late") == 0 || strcmp(what, "idle") == 0)
        pause();
    if (strcmp(what, "error") == 0 && dt_supervisor_speak(w, DT_ERR_PEER)) {
        fprintf(stderr, "job: rank %d found an error\n", t->rank);
        t->abort(t, 5);
    }
}

static void must(struct dt_transport *t, struct dt_supervisor *w, enum dt_status st,
                 const struct dt_error *err)
{
    if (st == DT_OK)
        return;
    if (st == DT_ERR_INPUT ? t->rank == 0 : dt_supervisor_speak(w, st))
        fprintf(stderr, "job: %s\n", err->message);
    else
        sleep(2);
    t->abort(t, dt_status_exit_code(st));
}

/* Round trips of 8 bytes, the shortest; and 4 MiB there, a byte back. */
static int time_link(struct dt_transport *t)
{
    enum { TRIPS = 20, LONG = 4 << 20 };
    static char buf[LONG];
    int last = t->size - 1, peer = t->rank == 0 ? last : 0;
    double trip_s = 1e9, long_s = 0;
    struct dt_error err = {0};
    struct dt_req *r;

    for (int k = 0; k <= TRIPS && (t->rank == 0 || t->rank == last); k++) {
        size_t n = k < TRIPS ? 8 : LONG;
        uint64_t begin = dt_clock_ns();

        for (int turn = 0; turn < 2; turn++) {
            bool send = (turn == 0) == (t->rank == 0);
            size_t bytes = turn ? 1 : n;

            must(t, NULL,
                 send ? t->post_send(t, peer, k, buf, bytes, NULL, &err, &r)
                      : t->post_recv(t, peer, k, buf, bytes, NULL, &err, &r),
                 &err);
            must(t, NULL, dt_transport_wait(t, r, 60, "the other host", &err), &err);
        }
        long_s = (double)(dt_clock_ns() - begin) * 1e-9;
        if (k < TRIPS && long_s < trip_s)
            trip_s = long_s;
    }
    if (t->rank == 0)
        printf("link: round trip %.0f us, %.1f Mbit/s\n", trip_s * 1e6, LONG * 8e-6 / long_s);
    t->close(t);
    return 0;
}

int main(int argc, char **argv)
{
    struct dt_supervisor_watch opt = {.describe = describe, .report = report};
    struct dt_error err = {0};
    struct dt_transport *t;
    struct dt_supervisor *w = NULL;
    const char *what = argc > 1 ? argv[1] : "end";
    int whom = argc > 2 ? atoi(argv[2]) : -1, ranks[64];
    struct dt_supervisor_fact facts[] = {{"binary", "1"}, {"job", "0123456789abcdef"}};
    struct dt_comm *all;
    int64_t ahead, bound;

    signal(SIGTERM, SIG_IGN); /* as a trainer that ends after its step */
    if (dt_transport_open_mpi(&err, &t) != DT_OK || t->size > 64) {
        fprintf(stderr, "supervisor_ranks: %s\n", err.message);
        return 1;
    }
    if (strcmp(what, "link") == 0)
        return time_link(t);
    if (strcmp(what, "facts") == 0 && t->rank == whom)
        facts[1].value = "fedcba9876543210";
    must(t, w, dt_supervisor_open(t, facts, 2, &err, &w), &err);
    must(t, w, dt_supervisor_watch(w, &opt, &err), &err);
    for (int k = 0; k < t->size; k++)
        ranks[k] = k;
    must(t, w, t->comm_new(t, ranks, t->size, &err, &all), &err);
    for (int k = 0; k < 20; k++) {
        double x = 1;
        struct dt_req *r;

        dt_supervisor_doing(w, k % 2, k / 2 % 2 ? BACKWARD : 0, k);
        if (k == 7 && t->rank == whom)
            happen(what, w, t);
        must(t, w, t->post_all_reduce(all, DT_REDUCE_F64, &x, 1, NULL, &err, &r), &err);
        must(t, w, dt_transport_wait(t, r, strcmp(what, "late") ? 60 : 0, "the others", &err),
             &err);
        if (x != t->size)
            return 1;
    }
    dt_supervisor_doing(w, -1, 0, 0);
    ahead = dt_supervisor_clock(w, &bound);
    if (llabs(ahead) > bound && t->local_size == t->size) {
        fprintf(stderr, "the clock of this host differs from itself by %" PRId64 " ns\n", ahead);
        return 1;
    }
    must(t, w, dt_supervisor_measure_clock(w, &err), &err);
    t->comm_free(all);
    dt_supervisor_close(w);
    if (t->rank == 0)
        printf("%d ranks ended; clocks within %" PRId64 " ns\n", t->size, bound);
    t->close(t);
    return 0;
}
