/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Points evaluated by ranks.  Rank 0 deals tasks out as they are done, two ahead at each other rank, and evaluates some
 * itself where there are few ranks; between its own it looks after the others.
 *
 *   rank 0 --ask (fixed size)--> rank k --answer (fixed size)--> rank 0       task -1: the end */
#include "cli/whatif.h"

#include <poll.h>
#include <string.h>

enum { AHEAD = 2, TAG_ASK = 1, TAG_ANSWER = 2, FEW_RANKS = 8 };
#define FOR_EVER                                                                                   \
    1e9 /* s: a point takes what it takes; a rank that is lost is the supervisor's to find */

struct ask {
    int32_t task, len;
    char text[DT_WHATIF_TASK_MAX];
};

struct slot { /* a task at another rank */
    int task;
    struct ask ask;
    struct dt_whatif_answer answer;
    struct dt_req *sent, *got;
};
struct ranks {
    struct dt_whatif_engine e;
    const struct dt_whatif_base *base;
    struct dt_transport *t;
    struct slot *slot; /* [(size - 1) * AHEAD], AHEAD of each rank from 1 on; a ring */
    int *first, *n;    /* [size] */
    bool failed;       /* the job is about to end; messages may be under way */
};
struct run {
    struct ranks *x;
    const struct dt_whatif_task *tasks;
    dt_whatif_result_fn *fn;
    void *ctx;
    struct dt_error *err;
    struct dt_whatif_deal *deal;
    int n, done;
};

static struct slot *slot_of(struct ranks *x, int rank, int k)
{
    return &x->slot[(rank - 1) * AHEAD + (x->first[rank] + k) % AHEAD];
}

static enum dt_status give(struct run *r, int rank, int task)
{
    struct ranks *x = r->x;
    struct slot *s = slot_of(x, rank, x->n[rank]);
    const struct dt_whatif_task *t = &r->tasks[task];

    s->task = task;
    memset(&s->ask, 0, sizeof s->ask);
    s->ask.task = s->task;
    s->ask.len = t->len;
    memcpy(s->ask.text, t->text, (size_t)t->len);
    DT_TRY(x->t->post_recv(x->t, rank, TAG_ANSWER, &s->answer, sizeof s->answer, NULL, r->err,
                           &s->got));
    DT_TRY(x->t->post_send(x->t, rank, TAG_ASK, &s->ask, sizeof s->ask, NULL, r->err, &s->sent));
    x->n[rank]++;
    return DT_OK;
}

/* What the rank has answered, oldest first; *any: something has come. */
static enum dt_status collect(struct run *r, int rank, bool *any)
{
    struct ranks *x = r->x;

    while (x->n[rank] > 0) {
        struct slot *s = slot_of(x, rank, 0);
        bool done = !s->sent;

        if (!done) {
            DT_TRY(x->t->test(x->t, s->sent, &done, r->err));
            if (!done)
                return DT_OK;
            s->sent = NULL;
        }
        DT_TRY(x->t->test(x->t, s->got, &done, r->err));
        if (!done)
            return DT_OK;
        x->first[rank] = (x->first[rank] + 1) % AHEAD;
        x->n[rank]--;
        *any = true;
        if (s->answer.task != s->task)
            return dt_error_set(r->err, DT_ERR_INTERNAL, "rank %d answered what it was not asked",
                                rank);
        if (s->answer.status != DT_OK)
            return dt_error_set(r->err, (enum dt_status)s->answer.status, "rank %d: %s", rank,
                                s->answer.message);
        r->done++;
        DT_TRY(r->fn(r->ctx, s->task, &s->answer.r, r->err));
    }
    return DT_OK;
}

static enum dt_status own(struct run *r, int task)
{
    struct dt_sweep_result result;

    DT_TRY(dt_whatif_evaluate(r->x->base, &r->tasks[task], r->err, &result));
    r->done++;
    return r->fn(r->ctx, task, &result, r->err);
}

static enum dt_status rounds(struct run *r)
{
    struct ranks *x = r->x;
    int size = x->t->size;

    while (r->done < r->n) {
        bool any = false;
        int task;

        for (int k = 1; k < size; k++) {
            DT_TRY(collect(r, k, &any));
            while (x->n[k] < AHEAD && (task = dt_whatif_deal_next(r->deal, k)) >= 0)
                DT_TRY(give(r, k, task));
        }
        if (dt_whatif_signal())
            return dt_error_set(r->err, DT_ERR_IO, "interrupted");
        if (!any && size < FEW_RANKS && (task = dt_whatif_deal_next(r->deal, 0)) >= 0)
            DT_TRY(own(r, task));
        else if (!any)
            poll(NULL, 0, 1); /* a millisecond */
    }
    return DT_OK;
}

static enum dt_status run_ranks(struct dt_whatif_engine *e, const struct dt_whatif_task *tasks,
                                int n, dt_whatif_result_fn *fn, void *ctx, struct dt_error *err)
{
    struct ranks *x = (struct ranks *)(void *)e;
    struct run r = {.x = x, .tasks = tasks, .fn = fn, .ctx = ctx, .err = err, .n = n};
    enum dt_status st = dt_whatif_deal_new(n, x->t->size, err, &r.deal);

    if (st == DT_OK)
        st = rounds(&r);
    dt_whatif_deal_free(r.deal);
    x->failed |= st != DT_OK;
    return st;
}

static void close_ranks(struct dt_whatif_engine *e)
{
    struct ranks *x = (struct ranks *)(void *)e;
    static struct ask end = {.task = -1};

    if (x->failed)
        return;
    for (int k = 1; k < x->t->size; k++) {
        struct dt_req *req;

        if (x->t->post_send(x->t, k, TAG_ASK, &end, sizeof end, NULL, NULL, &req) == DT_OK)
            dt_transport_wait(x->t, req, FOR_EVER, NULL, NULL);
    }
    dt_free(x->slot);
    dt_free(x->first);
    dt_free(x->n);
    dt_free(x);
}

enum dt_status dt_whatif_engine_ranks(const struct dt_whatif_base *b, struct dt_transport *t,
                                      struct dt_error *err, struct dt_whatif_engine **out)
{
    struct ranks *x = dt_calloc(1, sizeof *x);
    size_t size = (size_t)t->size;

    if (!x)
        return dt_error_nomem(err, "ranks");
    x->e = (struct dt_whatif_engine){t->size, run_ranks, close_ranks};
    x->base = b;
    x->t = t;
    x->slot = dt_calloc(size * AHEAD, sizeof *x->slot);
    x->first = dt_calloc(size, sizeof *x->first);
    x->n = dt_calloc(size, sizeof *x->n);
    if (!x->slot || !x->first || !x->n) {
        dt_free(x->slot);
        dt_free(x->first);
        dt_free(x->n);
        dt_free(x);
        return dt_error_nomem(err, "ranks");
    }
    *out = &x->e;
    return DT_OK;
}

enum dt_status dt_whatif_rank_works(const struct dt_whatif_base *b, struct dt_transport *t,
                                    struct dt_error *err)
{
    static struct ask ask;
    static struct dt_whatif_answer answer;

    for (;;) {
        struct dt_req *req;

        DT_TRY(t->post_recv(t, 0, TAG_ASK, &ask, sizeof ask, NULL, err, &req));
        DT_TRY(dt_transport_wait(t, req, FOR_EVER, "a point from rank 0", err));
        if (ask.task < 0)
            return DT_OK;
        dt_whatif_answer(b, ask.task, ask.text, ask.len, &answer);
        DT_TRY(t->post_send(t, 0, TAG_ANSWER, &answer, sizeof answer, NULL, err, &req));
        DT_TRY(dt_transport_wait(t, req, FOR_EVER, "rank 0 to take a result", err));
    }
}
