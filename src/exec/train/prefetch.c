/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 *   taken <= made <= taken + DT_PREFETCH_BATCHES;  batch k waits in place k % DT_PREFETCH_BATCHES of the ring */
#include "exec/train/prefetch.h"

#include "base/mem.h"
#include "report/report.h"
#include "base/clock.h"
#include "exec/data/document.h"
#include "exec/data/shard.h"
#include "exec/program/batching.h"

#include <pthread.h>
#include <string.h>
#include <sys/resource.h>

enum { PAUSE_NS = 2000000 };
enum { NICE = 10 }; /* a tenth of a core that others want, by the kernel's table of weights */

struct dt_prefetch {
    const struct dt_setup *s;
    struct dt_prefetch_data data;
    bool shares;               /* a loader without pixels: this rank gets those of its share */
    struct dt_placement place; /* then */
    int64_t count;
    pthread_t thread;
    bool has_thread;
    struct dt_prefetch_report report; /* the caller's */
    /* the thread's; a ring, its work of a batch in turn */
    struct dt_prefetch_span span[DT_PREFETCH_SPANS];
    int64_t begun;                    /* batches; likewise */
    struct dt_loader_mark *mark;      /* with turns, where batches of the data begin, */
    int64_t marked;                   /* so many of them */
    int64_t stands;                   /* the one that the loader stands before */
    struct dt_orch_mix *mix;          /* NULL: this rank does not look at what the data asks for */
    int mix_asks_for[DT_MAX_MODULES]; /* by the last window that was told of; of 0 GPUs: none */
    /* shared */
    pthread_mutex_t lock;
    pthread_cond_t can_make, can_take;
    struct dt_prefetch_batch *ring[DT_PREFETCH_BATCHES];
    int64_t made, taken;
    bool stop;
    enum dt_status failed; /* of batch number `made`, the last */
    struct dt_error err;
};

void dt_prefetch_batch_free(struct dt_prefetch_batch *b)
{
    if (!b)
        return;
    for (int64_t i = 0; b->seqs && i < b->n; i++)
        dt_sequence_free(b->seqs[i]);
    dt_free(b->seqs);
    dt_free(b->bad.place);
    dt_free(b->mix);
    dt_program_free(b->program);
    dt_assign_free(b->assignment);
    dt_free(b);
}

/* ---- the thread's side ---- */

static bool stopped(struct dt_prefetch *a)
{
    bool stop;

    pthread_mutex_lock(&a->lock);
    stop = a->stop;
    pthread_mutex_unlock(&a->lock);
    return stop;
}

/* With turns a batch may be one that was read before. */
static enum dt_status go_to_batch(struct dt_prefetch *a, int64_t k, struct dt_error *err)
{
    struct dt_train_turn now;

    if (!a->data.turns)
        return DT_OK;
    dt_train_turn(a->data.turns, k, &now);
    if (now.batch != a->stands)
        DT_TRY(dt_loader_return(a->data.loader, &a->mark[now.batch], NULL, 0, err));
    if (now.batch == a->marked)
        dt_loader_mark(a->data.loader, &a->mark[a->marked++]);
    a->stands = now.batch + 1;
    return DT_OK;
}

/* Nobody waits for what is made when told to stop: leaving early is no failure. */
static enum dt_status load(struct dt_prefetch *a, struct dt_prefetch_batch *b, int64_t k,
                           struct dt_error *err)
{
    DT_TRY(go_to_batch(a, k, err));
    dt_loader_mark(a->data.loader, &b->before);
    for (int64_t i = 0; i < b->n && !stopped(a); i++) {
        DT_TRY(dt_loader_next(a->data.loader, err, &b->seqs[i]));
        if (!b->seqs[i])
            return dt_error_set(err, DT_ERR_INPUT, "the data ends after %lld sequences",
                                (long long)i);
        if (a->s->encoder < 0 && dt_batching_images(b->seqs[i], DT_ITEM_ENCODE) > 0)
            return dt_error_set(err, DT_ERR_INPUT,
                                "the data has images to read, the model has no encoder");
    }
    dt_loader_cursor(a->data.loader, &b->cursor);
    dt_loader_report(a->data.loader, &b->data);
    return DT_OK;
}

/* Tells of a window whose samples ask for another plan, but not twice of the same one in a row. */
static enum dt_status look_at_mix(struct dt_prefetch *a, struct dt_prefetch_batch *b,
                                  const struct dt_samples *samples, struct dt_error *err)
{
    struct dt_orch_mix_found *f;
    bool tested;
    enum dt_status st;

    if (!a->mix)
        return DT_OK;
    f = dt_malloc(sizeof(*f));
    if (!f)
        return dt_error_nomem(err, "what the data asks for");
    st = dt_orch_mix_add(a->mix, samples, err, &tested, f);
    if (st == DT_OK && tested && !f->other)
        memset(a->mix_asks_for, 0, sizeof(a->mix_asks_for));
    if (st == DT_OK && tested && f->other &&
        memcmp(a->mix_asks_for, f->asks_for, sizeof(f->asks_for)) != 0) {
        memcpy(a->mix_asks_for, f->asks_for, sizeof(f->asks_for));
        b->mix = f;
        return DT_OK;
    }
    dt_free(f);
    return st;
}

/* The plan of batch k; one GPU has no order. */
static const struct dt_plan *plan_of(const struct dt_prefetch *a, int64_t k)
{
    struct dt_train_turn now;

    if (!a->data.turns || !a->s->cost)
        return &a->s->plan;
    dt_train_turn(a->data.turns, k, &now);
    return &a->data.turns->plan[now.order];
}

static void say_turn(const struct dt_prefetch *a, int64_t k, struct dt_assign_choice *how)
{
    struct dt_train_turn now;

    if (!a->data.turns)
        return;
    dt_train_turn(a->data.turns, k, &now);
    how->by_batch = true;
    how->way = a->data.turns->way[now.order];
}

static enum dt_status order(struct dt_prefetch *a, struct dt_prefetch_batch *b, int64_t k,
                            struct dt_error *err)
{
    const struct dt_setup *s = a->s;
    const struct dt_plan *plan = plan_of(a, k);
    const struct dt_model *m = s->job->model;
    double hardware;
    struct dt_samples *samples;
    enum dt_status st;

    DT_TRY(dt_batching_samples((const struct dt_sequence *const *)b->seqs, b->n, err, &samples));
    st = dt_assign_choose(plan, m, &s->job->cluster, s->cost, samples, 0, err, &b->assignment,
                          &b->how);
    say_turn(a, k, &b->how);
    if (st == DT_OK)
        st = dt_sched_compile(plan, m, &s->job->cluster, b->assignment, s->cost, err, &b->program);
    if (st == DT_OK && k == 0)
        st = dt_program_check(b->program, m, err);
    if (st == DT_OK)
        st = look_at_mix(a, b, samples, err);
    b->samples_digest = dt_run_samples_digest(samples, 0, b->n);
    dt_samples_free(samples);
    DT_TRY(st);
    dt_report_flops(plan, m, b->assignment, b->flops, &hardware);
    for (int i = 0; i < s->plan.n_modules; i++)
        b->model_flops += b->flops[i];
    return DT_OK;
}

static struct dt_prefetch_span *begin(struct dt_prefetch *a, int64_t k, enum dt_run_data_work work)
{
    struct dt_prefetch_span *s = &a->span[(k * DT_DATA_WORK_N + work) % DT_PREFETCH_SPANS];

    a->begun = k + 1;
    s->batch = k;
    s->work = work;
    s->begin_ns = s->end_ns = dt_clock_ns();
    return s;
}

/* How long it was. */
static double end(struct dt_prefetch_span *s)
{
    s->end_ns = dt_clock_ns();
    return (double)(s->end_ns - s->begin_ns) * 1e-9;
}

/* What did not fit the last sequence is no one's share of this batch, but if it is bad, what comes behind it might have
 * fitted: the ranks take turns in finding out. */
static enum dt_status try_pending(const struct dt_prefetch *a, struct dt_prefetch_batch *b,
                                  int64_t k, struct dt_error *err)
{
    struct dt_shard_sample scratch = {0};
    struct dt_document d;
    enum dt_status st = DT_OK;
    int64_t place;

    if (a->data.feed || k % a->data.ranks != a->data.rank ||
        !dt_loader_pending(a->data.loader, &place))
        return DT_OK;
    dt_loader_document(a->data.loader, place, &scratch, &d);
    if (d.status == DT_ERR_INPUT)
        b->bad.place[b->bad.n++] = place;
    else if (d.status != DT_OK)
        st = dt_error_set(err, d.status, "%s", d.why);
    dt_document_free(&d);
    dt_shard_sample_free(&scratch);
    return st;
}

/* What this rank computes with; the rest of the batch stays sizes. */
static enum dt_status fetch(struct dt_prefetch *a, struct dt_prefetch_batch *b, int64_t k,
                            struct dt_error *err)
{
    struct dt_prefetch_share share = {.model = a->s->job->model,
                                      .place = &a->place,
                                      .rank = a->data.rank,
                                      .feed = a->data.feed,
                                      .loader = a->data.loader,
                                      .threads = a->data.threads};
    uint64_t t0 = dt_clock_ns();
    enum dt_status st;

    st = dt_prefetch_fetch(&share, b->assignment, b->seqs, b->n, err, &b->bad);
    if (st == DT_OK)
        st = try_pending(a, b, k, err);
    b->load_s += (double)(dt_clock_ns() - t0) * 1e-9;
    if (a->data.feed)
        dt_feed_client_report(a->data.feed, &b->feed);
    return st;
}

static enum dt_status make(struct dt_prefetch *a, int64_t k, struct dt_error *err,
                           struct dt_prefetch_batch **out)
{
    struct dt_prefetch_batch *b = dt_calloc(1, sizeof(*b));
    struct dt_prefetch_span *s;
    enum dt_status st = DT_OK;

    if (b) {
        b->n = a->s->plan.policy.global_batch;
        b->seqs = dt_calloc((size_t)b->n, sizeof(*b->seqs));
    }
    if (!b || !b->seqs)
        st = dt_error_nomem(err, "a global batch");
    if (st == DT_OK) {
        s = begin(a, k, DT_DATA_LOAD);
        st = load(a, b, k, err);
        b->load_s = end(s);
    }
    if (st == DT_OK && !stopped(a)) {
        s = begin(a, k, DT_DATA_ORDER);
        st = order(a, b, k, err);
        b->order_s = end(s);
        if (st == DT_OK && a->shares)
            st = fetch(a, b, k, err);
    }
    if (st == DT_OK)
        *out = b;
    else
        dt_prefetch_batch_free(b);
    return st;
}

/* Looks now and then instead of being woken: on a rank with one core whoever wakes this thread is
 * put aside for it, and a step begins late. */
static bool wait_for_room(struct dt_prefetch *a)
{
    bool stop;

    pthread_mutex_lock(&a->lock);
    while (!a->stop && a->made - a->taken >= DT_PREFETCH_BATCHES) {
        struct timespec until = dt_clock_in(PAUSE_NS);

        pthread_cond_timedwait(&a->can_make, &a->lock, &until);
    }
    stop = a->stop;
    pthread_mutex_unlock(&a->lock);
    return !stop;
}

/* Where threads share a core the step has it, but for what it waits for messages or for this. */
static void step_back(void)
{
#ifdef __linux__
    setpriority(PRIO_PROCESS, 0, NICE); /* of this thread; only for speed: a refusal does no harm */
#endif
}

static void *worker(void *arg)
{
    struct dt_prefetch *a = arg;
    enum dt_status st = DT_OK;

    step_back();
    for (int64_t k = a->made; k < a->count && st == DT_OK && wait_for_room(a); k++) {
        struct dt_prefetch_batch *b = NULL;
        struct dt_error err;

        st = make(a, k, &err, &b);
        pthread_mutex_lock(&a->lock);
        if (st == DT_OK) {
            a->ring[a->made++ % DT_PREFETCH_BATCHES] = b;
        } else {
            a->failed = st;
            a->err = err;
        }
        pthread_cond_signal(&a->can_take);
        pthread_mutex_unlock(&a->lock);
    }
    return NULL;
}

/* ---- the caller's side ---- */

static enum dt_status begin_thread(struct dt_prefetch *a, struct dt_error *err)
{
    if (pthread_create(&a->thread, NULL, worker, a) != 0)
        return dt_error_set(err, DT_ERR_IO, "cannot start a thread");
    a->has_thread = true;
    return DT_OK;
}

enum dt_status dt_prefetch_open(const struct dt_setup *s, const struct dt_prefetch_data *data,
                                int64_t count, struct dt_error *err, struct dt_prefetch **out)
{
    struct dt_prefetch *a = dt_calloc(1, sizeof(*a));
    pthread_condattr_t clock;

    if (!a)
        return dt_error_nomem(err, "batches");
    a->s = s;
    a->data = *data;
    a->shares = data->feed || data->ranks > 1;
    a->report.producers = data->feed ? s->n_producers : 0;
    a->count = count;
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&a->can_make, &clock);
    pthread_condattr_destroy(&clock);
    pthread_cond_init(&a->can_take, NULL);
    if (data->turns) {
        const struct dt_train_turns *t = data->turns;

        a->mark = dt_calloc((size_t)(t->warm_up + t->batches), sizeof(*a->mark));
        if (!a->mark) {
            dt_prefetch_close(a);
            return dt_error_nomem(err, "batches");
        }
    }
    if (a->shares) {
        enum dt_status st = dt_placement_init(&a->place, &s->plan, data->ranks, err);

        if (st != DT_OK) {
            dt_prefetch_close(a);
            return st;
        }
    }
    if (data->rank == 0) {
        const struct dt_search_options *o = &s->job->search;
        enum dt_status st = dt_orch_mix_new(&s->plan, s->job->model, &s->job->cluster, s->cost,
                                            o->confidence, o->p_error, o->seed, err, &a->mix);

        if (st != DT_OK) {
            dt_prefetch_close(a);
            return st;
        }
    }
    if (count > 0) {
        enum dt_status st = begin_thread(a, err);

        if (st != DT_OK) {
            dt_prefetch_close(a);
            return st;
        }
    }
    *out = a;
    return DT_OK;
}

enum dt_status dt_prefetch_take(struct dt_prefetch *a, struct dt_error *err,
                                struct dt_prefetch_batch **out)
{
    uint64_t t0 = dt_clock_ns();
    struct dt_prefetch_report *r = &a->report;
    struct dt_prefetch_batch *b = NULL;
    enum dt_status st = DT_OK;
    bool waited = false;
    double s;

    if (a->taken >= a->count)
        return dt_error_set(err, DT_ERR_INTERNAL, "more batches than were asked for");
    pthread_mutex_lock(&a->lock);
    while (a->made == a->taken && a->failed == DT_OK) {
        waited = true;
        pthread_cond_wait(&a->can_take, &a->lock);
    }
    if (a->made > a->taken) {
        b = a->ring[a->taken++ % DT_PREFETCH_BATCHES];
        if (a->made == a->taken) /* short steps: no time to lose */
            pthread_cond_signal(&a->can_make);
    } else {
        st = a->failed;
        if (err)
            *err = a->err;
    }
    pthread_mutex_unlock(&a->lock);
    DT_TRY(st);
    s = (double)(dt_clock_ns() - t0) * 1e-9;
    *(r->batches == 0 ? &r->first_s : &r->exposed_s) += s;
    r->waits += waited && r->batches > 0;
    r->batches++;
    r->load_s += b->load_s;
    r->order_s += b->order_s;
    r->feed = b->feed;
    *out = b;
    return DT_OK;
}

int64_t dt_prefetch_made(struct dt_prefetch *a)
{
    int64_t made;

    pthread_mutex_lock(&a->lock);
    made = a->made;
    pthread_mutex_unlock(&a->lock);
    return made;
}

void dt_prefetch_report(const struct dt_prefetch *a, struct dt_prefetch_report *out)
{
    *out = a->report;
    out->decoded = dt_loader_decoded(a->data.loader);
}

void dt_prefetch_stop(struct dt_prefetch *a)
{
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_signal(&a->can_make);
    pthread_mutex_unlock(&a->lock);
    if (a->has_thread)
        pthread_join(a->thread, NULL);
    a->has_thread = false;
}

/* The loader goes back to where batch number `made` begins; those behind it will begin elsewhere. */
static void stand_again(struct dt_prefetch *a)
{
    struct dt_train_turn now;

    if (!a->data.turns)
        return;
    dt_train_turn(a->data.turns, a->made, &now);
    a->stands = now.batch;
    if (a->marked > now.batch + 1)
        a->marked = now.batch + 1;
}

enum dt_status dt_prefetch_again(struct dt_prefetch *a, struct dt_prefetch_batch *b,
                                 const int64_t *bad, int n, struct dt_error *err)
{
    struct dt_loader_mark before = b->before;

    dt_prefetch_stop(a);
    dt_prefetch_batch_free(b);
    while (a->made > a->taken)
        dt_prefetch_batch_free(a->ring[--a->made % DT_PREFETCH_BATCHES]);
    a->made = --a->taken;
    a->report.batches--;
    a->stop = false;
    a->failed = DT_OK;
    memset(a->mix_asks_for, 0, sizeof(a->mix_asks_for)); /* what was found in them was not told */
    stand_again(a);
    DT_TRY(dt_loader_return(a->data.loader, &before, bad, n, err));
    return begin_thread(a, err);
}

int dt_prefetch_spans(const struct dt_prefetch *a, struct dt_prefetch_span out[DT_PREFETCH_SPANS])
{
    int n = 0;

    for (int64_t k = a->begun - DT_PREFETCH_BATCHES - 1; k < a->begun; k++) {
        for (int w = 0; k >= 0 && w < DT_DATA_WORK_N; w++) {
            const struct dt_prefetch_span *s =
                &a->span[(k * DT_DATA_WORK_N + w) % DT_PREFETCH_SPANS];

            if (s->batch == k && s->begin_ns > 0) /* not one that was left early */
                out[n++] = *s;
        }
    }
    return n;
}

void dt_prefetch_close(struct dt_prefetch *a)
{
    if (!a)
        return;
    dt_prefetch_stop(a);
    for (int64_t k = a->taken; k < a->made; k++)
        dt_prefetch_batch_free(a->ring[k % DT_PREFETCH_BATCHES]);
    dt_placement_free(&a->place);
    dt_orch_mix_free(a->mix);
    dt_free(a->mark);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->can_make);
    pthread_cond_destroy(&a->can_take);
    dt_free(a);
}
