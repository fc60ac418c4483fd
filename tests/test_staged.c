/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A staged transport over a device whose queues do nothing until the test lets them: what it does must not depend on
 * when queues run, and it may neither wait for them nor touch the device's memory meanwhile.  Two ranks in one
 * thread, which is enough where nothing blocks. */
#include "test_util.h"

#include "base/mem.h"
#include "comm/transport.h"

#include <pthread.h>
#include <string.h>

/* ---- the device ---- */

enum { TASKS = 4096, QUEUES = 8 };

struct dt_device_event {
    int recorded, done;
};
struct task {
    enum { COPY, CALL, RECORD, WAIT } kind;
    void *dst;
    const void *src;
    size_t bytes;
    void (*fn)(void *);
    void *arg;
    struct dt_device_event *event;
    int count;
};
struct dt_device_queue {
    struct task task[TASKS];
    int first, end;
    enum dt_status failed;
};
static struct {
    struct dt_device_queue *queue[QUEUES];
    int queues, syncs, host_allocs, host_frees;
} lazy;

static enum dt_status host_alloc(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                 void **out)
{
    (void)dev;
    (void)err;
    lazy.host_allocs++;
    *out = malloc(bytes + 1);
    return *out ? DT_OK : DT_ERR_NOMEM;
}

static void host_free(const struct dt_device *dev, void *p)
{
    (void)dev;
    lazy.host_frees += p != NULL;
    free(p);
}

static struct dt_device_memory_owner *memory_for(const struct dt_device *dev,
                                                 struct dt_device_memory_owner *o)
{
    (void)dev;
    (void)o;
    return NULL;
}

static enum dt_status queue_new(const struct dt_device *dev, bool high_priority,
                                struct dt_error *err, struct dt_device_queue **out)
{
    (void)dev;
    (void)high_priority;
    (void)err;
    ck_assert_int_lt(lazy.queues, QUEUES);
    *out = lazy.queue[lazy.queues++] = calloc(1, sizeof(**out));
    ck_assert_ptr_nonnull(*out);
    return DT_OK;
}

static void queue_free(struct dt_device_queue *q)
{
    for (int k = 0; k < lazy.queues; k++)
        if (lazy.queue[k] == q)
            lazy.queue[k] = NULL;
    free(q);
}

static struct task *put(struct dt_device_queue *q)
{
    ck_assert_int_lt(q->end, TASKS);
    return &q->task[q->end++];
}

static void queue_copy(struct dt_device_queue *q, void *dst, const void *src, size_t bytes,
                       enum dt_device_copy dir)
{
    (void)dir;
    *put(q) = (struct task){.kind = COPY, .dst = dst, .src = src, .bytes = bytes};
}

static void queue_call(struct dt_device_queue *q, void (*fn)(void *), void *arg)
{
    *put(q) = (struct task){.kind = CALL, .fn = fn, .arg = arg};
}

static enum dt_status queue_state(const struct dt_device_queue *q)
{
    return q->failed;
}

static enum dt_status queue_sync(struct dt_device_queue *q, struct dt_error *err)
{
    lazy.syncs++;
    return q->failed ? dt_error_set(err, q->failed, "the queue has failed") : DT_OK;
}

static enum dt_status event_new(const struct dt_device *dev, struct dt_error *err,
                                struct dt_device_event **out)
{
    (void)dev;
    (void)err;
    *out = calloc(1, sizeof(**out));
    return *out ? DT_OK : DT_ERR_NOMEM;
}

static void event_free(struct dt_device_event *e)
{
    free(e);
}

static void event_record(struct dt_device_queue *q, struct dt_device_event *e)
{
    *put(q) = (struct task){.kind = RECORD, .event = e, .count = ++e->recorded};
}

static void event_wait(struct dt_device_queue *q, struct dt_device_event *e)
{
    *put(q) = (struct task){.kind = WAIT, .event = e, .count = e->recorded};
}

static bool event_done(struct dt_device_event *e)
{
    return e->done >= e->recorded;
}

/* A queue runs until an event stops it. */
static void run(struct dt_device_queue *q)
{
    for (; q->first < q->end; q->first++) {
        struct task *t = &q->task[q->first];

        if (t->kind == WAIT && t->event->done < t->count)
            return;
        if (t->kind == COPY)
            memcpy(t->dst, t->src, t->bytes);
        else if (t->kind == CALL)
            t->fn(t->arg);
        else if (t->kind == RECORD)
            t->event->done = t->count;
    }
    q->first = q->end = 0;
}

static struct dt_device device = {.host_alloc = host_alloc,
                                  .host_free = host_free,
                                  .memory_for = memory_for,
                                  .queue_new = queue_new,
                                  .queue_free = queue_free,
                                  .queue_sync = queue_sync,
                                  .queue_state = queue_state,
                                  .copy = queue_copy,
                                  .call = queue_call,
                                  .event_new = event_new,
                                  .event_free = event_free,
                                  .event_record = event_record,
                                  .event_wait = event_wait,
                                  .event_done = event_done};

/* ---- two ranks ---- */

struct pair {
    struct dt_transport *host[2], *t[2];
    struct dt_device_queue *q[2], *copies[2];
    struct dt_error err;
};

static void open_pair(struct pair *p)
{
    memset(&lazy, 0, sizeof(lazy));
    memset(p, 0, sizeof(*p));
    device.info.host_memory = false;
    dt_assert_ok(dt_transport_open_threads(2, &p->err, p->host), p->err);
    for (int k = 0; k < 2; k++) {
        dt_assert_ok(dt_transport_open_staged(p->host[k], &device, &p->err, &p->t[k]), p->err);
        p->copies[k] = lazy.queue[lazy.queues - 1];
        dt_assert_ok(queue_new(&device, false, &p->err, &p->q[k]), p->err);
    }
}

static void close_pair(struct pair *p)
{
    ck_assert_int_eq(lazy.syncs, 0); /* the host never waited */
    for (int k = 0; k < 2; k++) {
        queue_free(p->q[k]);
        p->t[k]->close(p->t[k]);
        p->host[k]->close(p->host[k]);
    }
    for (int k = 0; k < lazy.queues; k++)
        ck_assert_ptr_null(lazy.queue[k]);
}

/* Is it over?  Asked often enough for all that can happen without a queue. */
static bool over(struct pair *p, int rank, struct dt_req *r)
{
    bool done = false;

    for (int i = 0; i < 20 && !done; i++)
        dt_assert_ok(p->t[rank]->test(p->t[rank], r, &done, &p->err), p->err);
    return done;
}

/* The same while the queues of copies run. */
static bool over_running(struct pair *p, int rank, struct dt_req *r)
{
    bool done = false;

    for (int i = 0; i < 20 && !done; i++) {
        dt_assert_ok(p->t[rank]->test(p->t[rank], r, &done, &p->err), p->err);
        run(p->copies[0]);
        run(p->copies[1]);
    }
    return done;
}

static void become_b(void *p)
{
    memset(p, 'b', 100);
}

/* What is on the queue at the post has written the bytes before they are copied; every step waits for its queue. */
START_TEST(a_send_waits_for_its_queue)
{
    char from[100], to[100];
    struct dt_req *s, *r;
    struct pair p;

    open_pair(&p);
    memset(from, 'a', 100);
    memset(to, '-', 100);
    queue_call(p.q[0], become_b, from);
    dt_assert_ok(p.t[0]->post_send(p.t[0], 1, 3, from, 100, p.q[0], &p.err, &s), p.err);
    dt_assert_ok(p.t[1]->post_recv(p.t[1], 0, 3, to, 100, p.q[1], &p.err, &r), p.err);
    run(p.q[1]);
    ck_assert(!over_running(&p, 0, s) && !over_running(&p, 1, r));
    run(p.q[0]);
    ck_assert(!over(&p, 0, s)); /* the copy to the host has not run */
    ck_assert(!over(&p, 1, r));
    run(p.copies[0]);
    ck_assert(over(&p, 0, s));
    ck_assert(!over(&p, 1, r)); /* the copy to the device has not run */
    ck_assert(to[0] == '-' && to[99] == '-');
    run(p.copies[1]);
    ck_assert(over(&p, 1, r));
    ck_assert(to[0] == 'b' && to[99] == 'b');
    close_pair(&p);
}
END_TEST

struct look {
    const char *at;
    char seen;
};
static void look(void *p)
{
    struct look *l = p;

    l->seen = *l->at;
}

/* A buffer is overwritten when those that still read it have passed. */
START_TEST(a_receive_waits_for_readers)
{
    char from[100], to[100];
    struct look reader = {.at = to};
    struct dt_req *s, *r;
    struct pair p;

    open_pair(&p);
    memset(from, 'x', 100);
    memset(to, 'o', 100);
    queue_call(p.q[1], look, &reader);
    dt_assert_ok(p.t[1]->post_recv(p.t[1], 0, 3, to, 100, p.q[1], &p.err, &r), p.err);
    dt_assert_ok(p.t[0]->post_send(p.t[0], 1, 3, from, 100, p.q[0], &p.err, &s), p.err);
    run(p.q[0]);
    ck_assert(over_running(&p, 0, s));
    ck_assert(!over_running(&p, 1, r));
    ck_assert(to[0] == 'o');
    run(p.q[1]);
    ck_assert(reader.seen == 'o');
    ck_assert(over_running(&p, 1, r));
    ck_assert(to[0] == 'x' && to[99] == 'x');
    close_pair(&p);
}
END_TEST

/* Freeing page-locked memory may wait for the device, so what is too small stays for smaller messages. */
START_TEST(rooms_are_freed_at_the_end_only)
{
    static const size_t bytes[] = {100, 500, 1000, 100, 700, 20};
    char from[1000], to[1000];
    struct dt_req *s, *r;
    struct pair p;

    open_pair(&p);
    for (int i = 0; i < 6; i++) {
        int allocs = lazy.host_allocs;

        memset(from, 'a' + i, sizeof(from));
        memset(to, '-', sizeof(to));
        dt_assert_ok(p.t[0]->post_send(p.t[0], 1, 3, from, bytes[i], p.q[0], &p.err, &s), p.err);
        dt_assert_ok(p.t[1]->post_recv(p.t[1], 0, 3, to, bytes[i], p.q[1], &p.err, &r), p.err);
        run(p.q[0]);
        run(p.q[1]);
        ck_assert(over_running(&p, 0, s) && over_running(&p, 1, r));
        ck_assert_mem_eq(to, from, bytes[i]);
        ck_assert_int_eq(lazy.host_allocs, allocs + (i < 3 ? 2 : 0));
    }
    ck_assert_int_eq(lazy.host_frees, 0);
    close_pair(&p);
    ck_assert_int_eq(lazy.host_frees, lazy.host_allocs);
}
END_TEST

/* What has come and may not be written yet holds up no other message: its readers may wait for who waits for that one. */
START_TEST(a_send_passes_a_receive_that_waits)
{
    char from[2][100], to[2][100];
    struct look reader = {.at = to[1]};
    struct dt_device_queue *other;
    struct dt_req *s[2], *r[2];
    struct pair p;

    open_pair(&p);
    dt_assert_ok(queue_new(&device, false, &p.err, &other), p.err);
    memset(from, 'x', sizeof(from));
    memset(to, 'o', sizeof(to));
    queue_call(p.q[1], look, &reader);
    dt_assert_ok(p.t[1]->post_recv(p.t[1], 0, 3, to[1], 100, p.q[1], &p.err, &r[1]), p.err);
    dt_assert_ok(p.t[0]->post_send(p.t[0], 1, 3, from[0], 100, p.q[0], &p.err, &s[0]), p.err);
    run(p.q[0]);
    ck_assert(over_running(&p, 0, s[0]));
    ck_assert(!over_running(&p, 1, r[1])); /* has come */
    dt_assert_ok(p.t[1]->post_send(p.t[1], 0, 4, from[1], 100, other, &p.err, &s[1]), p.err);
    dt_assert_ok(p.t[0]->post_recv(p.t[0], 1, 4, to[0], 100, p.q[0], &p.err, &r[0]), p.err);
    run(other);
    run(p.q[0]);
    ck_assert(over_running(&p, 1, s[1]));
    ck_assert(over_running(&p, 0, r[0]));
    ck_assert(to[0][99] == 'x' && to[1][0] == 'o');
    run(p.q[1]);
    ck_assert(over_running(&p, 1, r[1]));
    ck_assert(reader.seen == 'o' && to[1][99] == 'x');
    queue_free(other);
    close_pair(&p);
}
END_TEST

/* Messages of a tag arrive in the order of their posts, whichever queue is first; those of another do not wait. */
START_TEST(order_is_that_of_posts)
{
    char from[3][8] = {"first", "second", "other"}, to[3][8] = {"", "", ""};
    struct dt_req *s[3], *r[3];
    struct dt_device_queue *late;
    struct pair p;

    open_pair(&p);
    dt_assert_ok(queue_new(&device, false, &p.err, &late), p.err);
    for (int k = 0; k < 3; k++) {
        dt_assert_ok(p.t[1]->post_recv(p.t[1], 0, k == 2, to[k], 8, p.q[1], &p.err, &r[k]), p.err);
        dt_assert_ok(
            p.t[0]->post_send(p.t[0], 1, k == 2, from[k], 8, k ? p.q[0] : late, &p.err, &s[k]),
            p.err);
    }
    run(p.q[0]);
    run(p.q[1]);
    ck_assert(over_running(&p, 0, s[2]) && over_running(&p, 1, r[2]));
    ck_assert_str_eq(to[2], "other");
    ck_assert(!over_running(&p, 0, s[1]) && !over_running(&p, 1, r[0]));
    run(late);
    /* progress of the first is made by whoever asks for the second */
    ck_assert(over_running(&p, 0, s[1]) && over_running(&p, 0, s[0]));
    ck_assert(over_running(&p, 1, r[0]) && over_running(&p, 1, r[1]));
    ck_assert_str_eq(to[0], "first");
    ck_assert_str_eq(to[1], "second");
    queue_free(late);
    close_pair(&p);
}
END_TEST

/* Sums, again and again, in what the first ones allocated. */
START_TEST(nothing_is_allocated_twice)
{
    int both[2] = {0, 1}, allocs = 0;
    struct dt_comm *c[2];
    struct pair p;

    open_pair(&p);
    for (int k = 0; k < 2; k++)
        dt_assert_ok(p.t[k]->comm_new(p.t[k], both, 2, &p.err, &c[k]), p.err);
    for (int i = 0; i < 10; i++) {
        float x[2][4] = {{1, 2, 3, 4}, {10, 20, 30, (float)i}};
        size_t pieces[2] = {4, 12};
        struct dt_req *r[2], *g[2];

        if (i == 2) {
            dt_mem_fail_at(0); /* counts anew */
            allocs = lazy.host_allocs;
        }
        for (int k = 0; k < 2; k++) {
            dt_assert_ok(
                p.t[k]->post_all_reduce(c[k], DT_REDUCE_F32, x[k], 4, p.q[k], &p.err, &r[k]),
                p.err);
            run(p.q[k]);
        }
        for (int k = 0; k < 40; k++) { /* both, as neither is over before the other */
            bool done[2] = {false, false};

            for (int m = 0; m < 2; m++) {
                if (r[m])
                    dt_assert_ok(p.t[m]->test(p.t[m], r[m], &done[m], &p.err), p.err);
                r[m] = done[m] ? NULL : r[m];
                run(p.copies[m]);
            }
        }
        ck_assert(!r[0] && !r[1]);
        for (int m = 0; m < 2; m++)
            ck_assert(x[m][0] == 11 && x[m][2] == 33 && x[m][3] == 4 + (float)i);
        /* a gather has its own piece out and the others' in */
        x[1][0] = 7;
        for (int k = 0; k < 2; k++) {
            dt_assert_ok(p.t[k]->post_all_gather(c[k], x[k], pieces, p.q[k], &p.err, &g[k]), p.err);
            run(p.q[k]);
        }
        for (int k = 0; k < 40; k++)
            for (int m = 0; m < 2; m++) {
                bool done = false;

                if (g[m])
                    dt_assert_ok(p.t[m]->test(p.t[m], g[m], &done, &p.err), p.err);
                g[m] = done ? NULL : g[m];
                run(p.copies[m]);
            }
        ck_assert(!g[0] && !g[1]);
        ck_assert(x[0][0] == 11 && x[1][0] == 11);
    }
    ck_assert_uint_eq(dt_mem_count(), 0);
    ck_assert_int_eq(lazy.host_allocs, allocs);
    for (int k = 0; k < 2; k++)
        p.t[k]->comm_free(c[k]);
    close_pair(&p);
}
END_TEST

static const void *passed;
static enum dt_status pass(struct dt_transport *t, int to, int tag, const void *buf, size_t bytes,
                           struct dt_device_queue *q, struct dt_error *err, struct dt_req **out)
{
    (void)t;
    (void)to;
    (void)tag;
    (void)bytes;
    (void)err;
    (void)out;
    ck_assert_ptr_null(q);
    passed = buf;
    return DT_ERR_PEER;
}

/* Where the host may touch the device's memory the transport below gets the buffer itself; errors come through. */
START_TEST(no_copies_where_the_host_may_touch)
{
    struct dt_transport *self, *t;
    struct dt_device_queue *q;
    struct dt_error err = {0};
    struct dt_req *r;
    char x = 1;

    memset(&lazy, 0, sizeof(lazy));
    device.info.host_memory = true;
    dt_assert_ok(queue_new(&device, false, &err, &q), err);
    dt_assert_ok(dt_transport_open_self(&err, &self), err);
    self->post_send = pass;
    dt_assert_ok(dt_transport_open_staged(self, &device, &err, &t), err);
    dt_assert_ok(t->post_send(t, 0, 1, &x, 1, q, &err, &r), err);
    ck_assert_ptr_null(passed); /* the queue has not passed */
    run(q);
    ck_assert_int_eq(t->test(t, r, &(bool){false}, &err), DT_ERR_PEER);
    ck_assert_ptr_eq(passed, &x);
    dt_assert_ok(t->post_send(t, 0, 1, &x, 1, q, &err, &r), err); /* not yet either */
    q->failed = DT_ERR_NOMEM;
    ck_assert_int_eq(t->post_send(t, 0, 1, &x, 1, q, &err, &r), DT_ERR_NOMEM);
    dt_assert_has(err.message, "the queue has failed");
    ck_assert_int_eq(t->post_send(t, 0, 1, &x, 1, NULL, &err, &r), DT_ERR_INTERNAL);
    ck_assert_int_eq(lazy.host_allocs, 0);
    t->close(t);
    self->close(self);
    queue_free(q);
}
END_TEST

static int posts;
static enum dt_status put_on_queue(struct dt_comm *c, enum dt_reduce_type type, void *buf, size_t n,
                                   struct dt_device_queue *q, struct dt_error *err,
                                   struct dt_req **out)
{
    (void)c;
    (void)err;
    ck_assert(type == DT_REDUCE_F32 && n == 3 && q);
    ck_assert_ptr_null(out); /* nobody will ask */
    queue_call(q, become_b, buf);
    posts++;
    return DT_OK;
}

static enum dt_status never(struct dt_transport *t, struct dt_req *r, bool *done,
                            struct dt_error *err)
{
    (void)t;
    (void)r;
    (void)done;
    (void)err;
    ck_abort_msg("a collective on a queue is not waited for");
}

/* Tensor parallelism over a transport that puts its operations on the queue: the host goes on at once. */
START_TEST(on_a_queue_the_host_goes_on)
{
    struct dt_transport *t;
    struct dt_device_queue *q;
    struct dt_error err = {0};
    char x[100] = "a";
    struct dt_tp tp = {.size = 2};
    int me = 0;

    memset(&lazy, 0, sizeof(lazy));
    dt_assert_ok(queue_new(&device, false, &err, &q), err);
    dt_assert_ok(dt_transport_open_self(&err, &t), err);
    t->memory = DT_TRANSPORT_DEVICE;
    t->on_queue = true;
    t->post_all_reduce = put_on_queue;
    t->test = never;
    dt_assert_ok(t->comm_new(t, &me, 1, &err, &tp.comm), err);
    dt_mem_fail_at(0);
    for (int i = 0; i < 5; i++)
        dt_tp_all_reduce(q, &tp, DT_F32, 3, x);
    ck_assert_uint_eq(dt_mem_count(), 0);
    dt_assert_ok(dt_tp_state(&tp, &err), err);
    ck_assert_int_eq(posts, 5);
    ck_assert_int_eq(lazy.syncs, 0);
    ck_assert_int_eq(x[0], 'a');
    run(q);
    ck_assert_int_eq(x[0], 'b');
    t->comm_free(tp.comm);
    t->close(t);
    queue_free(q);
}
END_TEST

/* ---- collectives on the caller's queue, of a transport that is not ---- */

static void *run_in_thread(void *q)
{
    run(q);
    return NULL;
}

/* Both ranks' queues run, as each waits for the other. */
static void run_both(struct pair *p)
{
    pthread_t other;

    ck_assert_int_eq(pthread_create(&other, NULL, run_in_thread, p->q[0]), 0);
    run(p->q[1]);
    pthread_join(other, NULL);
}

static void open_tp(struct pair *p, struct dt_tp tp[2])
{
    int both[2] = {0, 1};

    open_pair(p);
    for (int k = 0; k < 2; k++) {
        ck_assert(!p->t[k]->on_queue && p->t[k]->collectives_on_queue);
        tp[k] = (struct dt_tp){.rank = k, .size = 2};
        dt_assert_ok(p->t[k]->comm_new(p->t[k], both, 2, &p->err, &tp[k].comm), p->err);
    }
}

static void close_tp(struct pair *p, struct dt_tp tp[2])
{
    for (int k = 0; k < 2; k++)
        p->t[k]->comm_free(tp[k].comm);
    close_pair(p);
}

static void add_one(void *x)
{
    *(float *)x += 1;
}

/* Three in a row, of which the last is the largest, are there before any of them has begun.  What they take is taken
 * once. */
START_TEST(the_queue_meets_the_other_ranks)
{
    struct dt_tp tp[2];
    struct pair p;
    int allocs = 0;

    open_tp(&p, tp);
    for (int i = 0; i < 6; i++) {
        float x[2] = {0, 0}, rows[2][3] = {{0, 0, 0}, {0, 0, 0}}, wide[2][8];

        if (i == 2) {
            dt_mem_fail_at(0);
            allocs = lazy.host_allocs;
        }
        for (int k = 0; k < 2; k++) {
            x[k] = (float)(10 * k + i);
            rows[k][0] = rows[k][1] = rows[k][2] =
                (float)(k + 1); /* two of the first, one of the other */
            for (int j = 0; j < 8; j++)
                wide[k][j] = (float)(j * (k + 1));
            queue_call(p.q[k], add_one, &x[k]);
            dt_tp_all_reduce(p.q[k], &tp[k], DT_F32, 1, &x[k]);
            dt_tp_all_gather(p.q[k], &tp[k], DT_F32, 3, 1, rows[k]);
            dt_tp_reduce_scatter(p.q[k], &tp[k], DT_F32, 2, 4, wide[k]);
            dt_assert_ok(dt_tp_state(&tp[k], &p.err), p.err);
        }
        ck_assert(x[0] == (float)i && x[1] == (float)(10 + i)); /* nothing has run */
        run_both(&p);
        for (int k = 0; k < 2; k++) {
            ck_assert(x[k] == (float)(12 + 2 * i));
            ck_assert(rows[k][0] == 1 && rows[k][1] == 1 && rows[k][2] == 2);
            for (int j = 4 * k; j < 4 * k + 4; j++)
                ck_assert(wide[k][j] == (float)(3 * j));
            dt_assert_ok(p.t[k]->state(p.t[k], &p.err), p.err);
        }
    }
    ck_assert_uint_eq(dt_mem_count(), 0);
    ck_assert_int_eq(lazy.host_allocs, allocs);
    close_tp(&p, tp);
}
END_TEST

/* Loop: the other rank does not come in time; it never will, and this one gives up.  The queue goes on, and whoever posts
 * or asks is told. */
START_TEST(a_queue_is_let_go)
{
    float x[2] = {1, 1}, behind = 0;
    struct dt_error e = {0};
    struct dt_tp tp[2];
    struct pair p;
    pthread_t thread;

    open_tp(&p, tp);
    if (_i == 0)
        p.t[0]->limit_s = 0.05;
    dt_tp_all_reduce(p.q[0], &tp[0], DT_F32, 1, &x[0]);
    dt_tp_all_reduce(p.q[0], &tp[0], DT_F32, 1, &x[1]);
    queue_call(p.q[0], add_one, &behind);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_in_thread, p.q[0]), 0);
    if (_i == 1)
        p.t[0]->give_up(p.t[0]);
    pthread_join(thread, NULL);
    ck_assert(behind == 1);
    ck_assert_int_eq(p.t[0]->state(p.t[0], &e), _i == 0 ? DT_ERR_TIMEOUT : DT_ERR_PEER);
    dt_assert_has(e.message,
                  _i == 0 ? "rank 0 waited 0.05 s for an all-reduce" : "rank 0 has given up");
    dt_tp_all_reduce(p.q[0], &tp[0], DT_F32, 1, &x[0]);
    ck_assert_int_eq(dt_tp_state(&tp[0], &p.err), e.status);
    dt_assert_ok(p.t[1]->state(p.t[1], &p.err), p.err);
    close_tp(&p, tp);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("staged");
    TCase *c = dt_test_case(s, "staged", 30);

    tcase_add_test(c, a_send_waits_for_its_queue);
    tcase_add_test(c, a_receive_waits_for_readers);
    tcase_add_test(c, rooms_are_freed_at_the_end_only);
    tcase_add_test(c, a_send_passes_a_receive_that_waits);
    tcase_add_test(c, order_is_that_of_posts);
    tcase_add_test(c, nothing_is_allocated_twice);
    tcase_add_test(c, no_copies_where_the_host_may_touch);
    tcase_add_test(c, on_a_queue_the_host_goes_on);
    tcase_add_test(c, the_queue_meets_the_other_ranks);
    tcase_add_loop_test(c, a_queue_is_let_go, 0, 2);
    return dt_test_run(s);
}
