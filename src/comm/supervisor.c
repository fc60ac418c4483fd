/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The start of a job: identities, agreement, clocks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "comm/supervisor_impl.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/clock.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FACTS_BYTES = 4096, VALUE = 128 };

static enum dt_status pass(struct dt_supervisor *w, bool send, int peer, int tag, void *buf,
                           size_t bytes, const char *what, struct dt_error *err)
{
    struct dt_transport *t = w->t;
    struct dt_req *r;

    if (send)
        DT_TRY(t->post_send(t, peer, DT_SUPERVISOR_TAG + tag, buf, bytes, NULL, err, &r));
    else
        DT_TRY(t->post_recv(t, peer, DT_SUPERVISOR_TAG + tag, buf, bytes, NULL, err, &r));
    return dt_transport_wait(t, r, 0, what, err);
}

/* ---- agreement ---- */

/* The facts as pairs of strings, the same length whoever has how many. */
static enum dt_status facts_pack(const struct dt_supervisor_fact *facts, int n,
                                 struct dt_error *err, char buf[FACTS_BYTES])
{
    size_t at = 0;

    memset(buf, 0, FACTS_BYTES);
    for (int k = 0; k < n; k++) {
        size_t a = strlen(facts[k].what) + 1, b = strlen(facts[k].value) + 1;

        if (at + a + b >= FACTS_BYTES)
            return dt_error_set(err, DT_ERR_INTERNAL, "too many facts of a job");
        memcpy(buf + at, facts[k].what, a);
        memcpy(buf + at + a, facts[k].value, b);
        at += a + b;
    }
    return DT_OK;
}

/* Value of a fact, or what says that there is none. */
static const char *fact_of(const char buf[FACTS_BYTES], const char *what)
{
    for (const char *p = buf; *p;) {
        const char *value = p + strlen(p) + 1;

        if (strcmp(p, what) == 0)
            return value;
        p = value + strlen(value) + 1;
    }
    return "none";
}

/* Room for what is appended to a message. */
static void append(struct dt_error *e, const char *text)
{
    size_t n = strlen(e->message);

    snprintf(e->message + n, sizeof(e->message) - n, "%s", text);
}

/* In which fact do ranks differ from rank 0, and which?  One line per fact. */
static void compare(const struct dt_supervisor *w, const char *all, struct dt_error *e)
{
    char text[256];

    for (const char *p = all; *p;) {
        const char *value = p + strlen(p) + 1;
        int differ = 0;

        for (int r = 1; r < w->t->size; r++) {
            const char *other = fact_of(all + (size_t)r * FACTS_BYTES, p);

            if (strcmp(other, value) == 0)
                continue;
            if (differ++ == 0) {
                if (e->status == DT_OK)
                    dt_error_set(e, DT_ERR_INPUT, "the ranks of this job differ:");
                snprintf(text, sizeof text, "\n  %.60s: rank 0 on %s has %.40s; ", p,
                         w->ranks[0].host, value);
                append(e, text);
            }
            if (differ <= 8) {
                snprintf(text, sizeof text, "%srank %d on %s has %.40s", differ > 1 ? ", " : "", r,
                         w->ranks[r].host, other);
                append(e, text);
            }
        }
        if (differ > 8) {
            snprintf(text, sizeof text, " and %d more", differ - 8);
            append(e, text);
        }
        p = value + strlen(value) + 1;
    }
}

enum dt_status dt_supervisor_agree(struct dt_supervisor *w, const struct dt_supervisor_fact *facts,
                                   int n_facts, struct dt_error *err)
{
    bool first = w->t->rank == 0;
    struct dt_error *verdict = dt_calloc(1, sizeof(*verdict));
    char *all = dt_calloc(first ? (size_t)w->t->size : 1, FACTS_BYTES);
    enum dt_status st = verdict && all ? facts_pack(facts, n_facts, err, all)
                                       : dt_error_nomem(err, "the facts of a job");

    for (int r = 1; first && r < w->t->size && !st; r++)
        st = pass(w, false, r, TAG_FACTS, all + (size_t)r * FACTS_BYTES, FACTS_BYTES,
                  "another rank to tell what job it runs", err);
    if (first && !st)
        compare(w, all, verdict);
    for (int r = 1; first && r < w->t->size && !st; r++)
        st = pass(w, true, r, TAG_VERDICT, verdict, sizeof(*verdict), "a rank to agree", err);
    if (!first && !st)
        st = pass(w, true, 0, TAG_FACTS, all, FACTS_BYTES, "rank 0 to agree", err);
    if (!first && !st)
        st = pass(w, false, 0, TAG_VERDICT, verdict, sizeof(*verdict), "rank 0 to agree", err);
    if (!st && verdict->status) {
        st = verdict->status;
        if (err)
            *err = *verdict;
    }
    dt_free(verdict);
    dt_free(all);
    return st;
}

void dt_supervisor_binary_digest(char *buf, size_t size)
{
    uint64_t h = DT_HASH_START;
    char block[65536];
    FILE *f = fopen("/proc/self/exe", "rb");
    size_t n;

    snprintf(buf, size, "unknown");
    if (!f)
        return;
    do {
        n = fread(block, 1, sizeof(block), f);
        h = dt_hash_digest(h, block, n);
    } while (n == sizeof(block));
    if (!ferror(f))
        snprintf(buf, size, "%016" PRIx64, h);
    fclose(f);
}

/* ---- who is where ---- */

static enum dt_status identify(struct dt_supervisor *w, struct dt_error *err)
{
    struct dt_transport *t = w->t;
    struct dt_supervisor_rank *me = &w->ranks[t->rank];
    size_t *bytes = dt_malloc((size_t)t->size * sizeof(*bytes));
    struct dt_req *r;
    enum dt_status st;
    cpu_set_t set;

    if (!bytes)
        return dt_error_nomem(err, "the ranks of a job");
    for (int k = 0; k < t->size; k++)
        bytes[k] = sizeof(*me);
    snprintf(me->host, sizeof(me->host), "%s", t->host);
    me->pid = getpid();
    me->cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    me->page = w->page_fd;
    me->nonce = w->page->nonce;
    st = t->post_all_gather(w->all, w->ranks, bytes, NULL, err, &r);
    if (st == DT_OK)
        st = dt_transport_wait(t, r, 0, "the other ranks to start", err);
    dt_free(bytes);
    return st;
}

const struct dt_supervisor_rank *dt_supervisor_rank(const struct dt_supervisor *w, int rank)
{
    return &w->ranks[rank];
}

/* ---- clocks ----
 *
 *   rank r   t1 ----------- t4        rank 0's clock read at t0 belongs to the middle of t1 and t4,
 *   rank 0        \_ t0 _/            give or take half the time between: the shortest of several
 *                                     says it best */

enum { CLOCK_ROUNDS = 16 };

static enum dt_status clock_answer(struct dt_supervisor *w, int rank, struct dt_error *err)
{
    for (int k = 0; k < CLOCK_ROUNDS; k++) {
        uint64_t x = 0;

        DT_TRY(pass(w, false, rank, TAG_CLOCK, &x, sizeof x, "a rank to ask for the time", err));
        x = dt_clock_ns();
        DT_TRY(pass(w, true, rank, TAG_CLOCK, &x, sizeof x, "a rank to hear the time", err));
    }
    return DT_OK;
}

static enum dt_status clock_ask(struct dt_supervisor *w, struct dt_error *err)
{
    w->bound_ns = INT64_MAX;
    for (int k = 0; k < CLOCK_ROUNDS; k++) {
        uint64_t begin = dt_clock_ns(), x = begin, end;

        DT_TRY(pass(w, true, 0, TAG_CLOCK, &x, sizeof x, "rank 0 to hear", err));
        DT_TRY(pass(w, false, 0, TAG_CLOCK, &x, sizeof x, "rank 0 to tell the time", err));
        end = dt_clock_ns();
        if (k > 0 && (int64_t)(end - begin) / 2 >= w->bound_ns)
            continue;
        w->bound_ns = (int64_t)(end - begin) / 2 + 1;
        w->ahead_ns = (int64_t)(begin + (end - begin) / 2 - x);
    }
    return DT_OK;
}

enum dt_status dt_supervisor_measure_clock(struct dt_supervisor *w, struct dt_error *err)
{
    if (w->t->rank != 0)
        return clock_ask(w, err);
    w->ahead_ns = w->bound_ns = 0;
    for (int r = 1; r < w->t->size; r++)
        DT_TRY(clock_answer(w, r, err));
    return DT_OK;
}

int64_t dt_supervisor_clock(const struct dt_supervisor *w, int64_t *bound_ns)
{
    if (bound_ns)
        *bound_ns = w->bound_ns;
    return w->ahead_ns;
}

/* ---- open and close ---- */

static void supervisor_free(struct dt_supervisor *w)
{
    if (w->all)
        w->t->comm_free(w->all);
    dt_supervisor_page_free(w);
    dt_free(w->ranks);
    dt_free(w->peers);
    dt_free(w);
}

static enum dt_status supervisor_init(struct dt_supervisor *w, struct dt_error *err)
{
    int *ranks;
    enum dt_status st;

    w->page_fd = -1;
    w->ranks = dt_calloc((size_t)w->t->size, sizeof(*w->ranks));
    ranks = dt_malloc((size_t)w->t->size * sizeof(*ranks));
    if (!w->ranks || !ranks) {
        dt_free(ranks);
        return dt_error_nomem(err, "the ranks of a job");
    }
    for (int k = 0; k < w->t->size; k++)
        ranks[k] = k;
    st = w->t->comm_new(w->t, ranks, w->t->size, err, &w->all);
    dt_free(ranks);
    return st ? st : dt_supervisor_page_new(w, err);
}

enum dt_status dt_supervisor_open(struct dt_transport *t, const struct dt_supervisor_fact *facts,
                                  int n_facts, struct dt_error *err, struct dt_supervisor **out)
{
    struct dt_supervisor *w = dt_calloc(1, sizeof(*w));
    enum dt_status st;

    if (!w)
        return dt_error_nomem(err, "the ranks of a job");
    w->t = t;
    st = supervisor_init(w, err);
    if (st == DT_OK)
        st = identify(w, err);
    if (st == DT_OK)
        st = dt_supervisor_agree(w, facts, n_facts, err);
    if (st == DT_OK)
        st = dt_supervisor_measure_clock(w, err);
    if (st) {
        supervisor_free(w);
        return st;
    }
    *out = w;
    return DT_OK;
}

void dt_supervisor_close(struct dt_supervisor *w)
{
    if (!w)
        return;
    dt_supervisor_watch_stop(w);
    supervisor_free(w);
}
