/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Supervision of the ranks of a job: that they are the same job, where they run, how their clocks
 * differ, and whether they are still alive.
 *
 *   dt_supervisor_open     who is where; refuses ranks that differ in a fact (digests of the binary,
 *                          the job, the data); clock of this rank before rank 0's
 *   dt_supervisor_watch    begins to watch: from here on a rank that dies or falls silent ends the
 *                          job, with one message that names it and what it did
 *   dt_supervisor_doing    what this rank does now; written by the main thread, read by the others
 *   dt_supervisor_close    all are through
 *
 * Rank 0 hears everybody and everybody hears rank 0, a few times within the limit.  Ranks of a host
 * also see each other's processes, and what each did last, by a page of memory that they share: a
 * rank that is killed is noticed at once, before the launcher has ended the rest. */
#ifndef DT_COMM_SUPERVISOR_H
#define DT_COMM_SUPERVISOR_H

#include "comm/transport.h"

/* Tags from here on are the supervisor's; messages of a job's own are below. */
#define DT_SUPERVISOR_TAG ((1 << 22) - 16)

struct dt_supervisor;

/* What all ranks must have alike: "job", "data", "binary" …, and its digest or version. */
struct dt_supervisor_fact {
    const char *what, *value;
};
struct dt_supervisor_rank {
    char host[64];
    int64_t pid;
    int32_t cores; /* that the process may use */
    int32_t page;  /* its file descriptor of the page that it shares; -1 = none */
    uint64_t nonce;
};

/* Collective.  DT_ERR_INPUT at all ranks alike, naming the ranks that differ from rank 0 and in
 * what. */
enum dt_status dt_supervisor_open(struct dt_transport *t, const struct dt_supervisor_fact *facts,
                                  int n_facts, struct dt_error *err, struct dt_supervisor **out);
/* The same for facts that are known later (the program).  Collective. */
enum dt_status dt_supervisor_agree(struct dt_supervisor *w, const struct dt_supervisor_fact *facts,
                                   int n_facts, struct dt_error *err);
const struct dt_supervisor_rank *dt_supervisor_rank(const struct dt_supervisor *w, int rank);

/* This rank's dt_clock_ns before rank 0's, and how far off that may be; as of the last
 * measurement, which dt_supervisor_open makes.  Measuring again (collective) shows the drift. */
int64_t dt_supervisor_clock(const struct dt_supervisor *w, int64_t *bound_ns);
enum dt_status dt_supervisor_measure_clock(struct dt_supervisor *w, struct dt_error *err);

/* Digest of this program's file; "unknown" where it cannot be read. */
void dt_supervisor_binary_digest(char *buf, size_t size);

/* ---- watching ---- */

struct dt_supervisor_watch {
    double limit_s;    /* silence; 0 = DISTTRAIN_HEARTBEAT_S, or 10 */
    double op_limit_s; /* one op; 0 = the transport's limit */
    /* Names what a rank does, of the arguments of dt_supervisor_doing. */
    void (*describe)(void *ctx, int module, int op, int64_t microbatch, char *buf, size_t size);
    /* The one message of the job, at one rank, right before its end (exit status 5). */
    void (*report)(void *ctx, const char *message);
    void *ctx;
};
enum dt_status dt_supervisor_watch(struct dt_supervisor *w, const struct dt_supervisor_watch *opt,
                                   struct dt_error *err);
/* module < 0: nothing in particular, for which there is no limit as long as nobody waits. */
void dt_supervisor_doing(struct dt_supervisor *w, int module, int op, int64_t microbatch);
/* The main thread does nothing but wait for other ranks: if an op takes too long, it is theirs.
 * Calls are counted; waits by dt_transport_wait need none. */
void dt_supervisor_waiting(struct dt_supervisor *w, bool waits);
/* This rank is about to say why it ends the job: nobody else need say that it ended.  False: this
 * rank's watch or another rank of this host has spoken already, so say nothing and let it end the
 * job.  With DT_ERR_TIMEOUT the watch has the first word, as it knows who was waited for. */
bool dt_supervisor_speak(struct dt_supervisor *w, enum dt_status why);
/* Ends the watch.  Collective: returns when all have called it. */
void dt_supervisor_close(struct dt_supervisor *w);

#endif
