/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ranks of a device whose queues run on their own: what they exchange is put on queues, by the transport of ranks that
 * share one or by NCCL (that of tests).
 *
 * One thread posts for all ranks, in an order drawn from the seed.  So if any post waited for another rank, or
 * for a queue, the test would not end. */
#include "nccl_fixture.h"

#include "base/rng.h"

#include <stdio.h>

enum { RANKS = 5, QUEUES = 3, OPS = 40 };

static struct dt_device *dev;
static struct dt_device card[RANKS]; /* the same, as NCCL sees it: a card for each */
static struct dt_transport *t[RANKS], *control[RANKS]; /* control: under NCCL */
static struct dt_comm *all[RANKS];
static struct dt_device_queue *queue[RANKS][QUEUES];
static struct dt_error err;

/* Of rank k; collective over NCCL. */
static void join(struct nf_rank *r)
{
    const struct dt_transport_edge ring = {r->k, (r->k + 1) % r->n, 7},
                                   back = {(r->k + r->n - 1) % r->n, r->k, 7},
                                   other[] = {{0, 1, 3}, {1, 0, 3}, {1, 2, 4}, {0, 1, 4}};
    struct dt_error e;
    int who[RANKS];

    card[r->k] = *dev;
    snprintf(card[r->k].info.id, sizeof(card[r->k].info.id), "card %d", r->k);

    for (int k = 0; k < r->n; k++)
        who[k] = k;
    if (control[r->k])
        dt_assert_ok(dt_transport_open_nccl(control[r->k], &card[r->k], &e, &t[r->k]), e);
    ck_assert(t[r->k]->on_queue);
    dt_assert_ok(t[r->k]->comm_new(t[r->k], who, r->n, &e, &all[r->k]), e);
    /* those of a ring, in an order that is the same for all: by the rank that sends */
    dt_assert_ok(t[r->k]->connect(t[r->k], r->k == 0 ? &ring : &back, 1, &e), e);
    dt_assert_ok(t[r->k]->connect(t[r->k], r->k == 0 ? &back : &ring, 1, &e), e);
    if (r->n == 3)
        dt_assert_ok(t[r->k]->connect(t[r->k], other, 4, &e), e);
}

static void open_ranks(int n, bool nccl)
{
    const struct dt_device *devices[RANKS];
    struct dt_device_options o = {.threads = 1};

    dt_assert_ok(dt_fake_device_open(&o, &err, &dev), err);
    for (int k = 0; k < n; k++) {
        devices[k] = dev;
        control[k] = NULL;
    }
    if (nccl) {
        nf_use();
        dt_assert_ok(dt_transport_open_threads(n, &err, control), err);
    } else {
        dt_assert_ok(dt_transport_open_threads_on(n, devices, &err, t), err);
    }
    nf_together(n, join, NULL);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < QUEUES; i++)
            dt_assert_ok(dev->queue_new(dev, false, &err, &queue[k][i]), err);
}

static void part(struct nf_rank *r)
{
    t[r->k]->comm_free(all[r->k]);
    t[r->k]->close(t[r->k]);
}

static void close_ranks(int n)
{
    for (int k = 0; k < n; k++)
        for (int i = 0; i < QUEUES; i++)
            dev->queue_free(queue[k][i]);
    nf_together(n, part, NULL);
    for (int k = 0; k < n; k++)
        if (control[k])
            control[k]->close(control[k]);
    dev->close(dev);
    if (control[0])
        ck_assert_int_eq(nf_living(), 0);
}

/* ---- random operations ---- */

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, RING, KINDS };

struct op {
    enum kind kind;
    int root;
    size_t
        count[RANKS]
             [RANKS]; /* floats from one to another; of most kinds, those of [0] to each member */
    struct side {
        float *in, *want; /* host */
        size_t n_in, n, want_at, want_n;
        void *send, *buf; /* device; the same but for what does not work in place */
        struct dt_req *req;
    } side[RANKS];
};

static size_t sum(const size_t *count, int n)
{
    size_t s = 0;

    for (int k = 0; k < n; k++)
        s += count[k];
    return s;
}

static void draw_counts(struct dt_rng *r, struct op *o, int n, bool large)
{
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++)
            o->count[a][b] = dt_rng_below(r, 5) == 0 ? 0 : dt_rng_below(r, large ? 90000 : 400);
}

/* How long a rank's buffers are. */
static void measure(struct op *o, int n, int k)
{
    struct side *s = &o->side[k];

    s->n_in = s->n = sum(o->count[0], n);
    if (o->kind == ALL_REDUCE || o->kind == BROADCAST)
        s->n_in = s->n = o->count[0][0];
    if (o->kind == RING) {
        s->n_in = o->count[k][(k + 1) % n];
        s->n = o->count[(k + n - 1) % n][k];
    }
    if (o->kind == ALL_TO_ALL) {
        s->n_in = sum(o->count[k], n);
        s->n = 0;
        for (int a = 0; a < n; a++)
            s->n += o->count[a][k];
    }
    s->want_n = s->n;
}

static void sum_of_members(const struct op *o, int n, struct side *s)
{
    for (size_t i = s->want_at; i < s->want_at + s->want_n; i++) {
        s->want[i] = o->side[0].in[i];
        for (int a = 1; a < n; a++)
            s->want[i] += o->side[a].in[i];
    }
}

/* What the rank's buffer holds in the end. */
static void expect(struct op *o, int n, int k)
{
    struct side *s = &o->side[k];
    size_t at = 0;

    s->want = calloc(s->n + 1, sizeof(*s->want));
    ck_assert_ptr_nonnull(s->want);
    switch (o->kind) {
    case REDUCE_SCATTER:
        s->want_at = sum(o->count[0], k);
        s->want_n = o->count[0][k];
        sum_of_members(o, n, s);
        return;
    case ALL_REDUCE:
        sum_of_members(o, n, s);
        return;
    case ALL_GATHER:
        for (int a = 0; a < n; at += o->count[0][a++])
            memcpy(s->want + at, o->side[a].in + at, o->count[0][a] * sizeof(float));
        return;
    case BROADCAST:
        memcpy(s->want, o->side[o->root].in, s->n * sizeof(float));
        return;
    case RING:
        memcpy(s->want, o->side[(k + n - 1) % n].in, s->n * sizeof(float));
        return;
    case ALL_TO_ALL:
        for (int a = 0; a < n; at += o->count[a++][k])
            memcpy(s->want + at, o->side[a].in + sum(o->count[a], k),
                   o->count[a][k] * sizeof(float));
        return;
    case KINDS:
        break;
    }
    ck_abort();
}

static void make(struct op *o, int n, struct dt_rng *r, bool large)
{
    o->kind = (enum kind)dt_rng_below(r, KINDS);
    o->root = (int)dt_rng_below(r, (uint64_t)n);
    draw_counts(r, o, n, large);
    for (int k = 0; k < n; k++) {
        struct side *s = &o->side[k];
        bool in_place = o->kind != RING && o->kind != ALL_TO_ALL;

        measure(o, n, k);
        s->in = malloc((s->n_in + 1) * sizeof(*s->in));
        ck_assert_ptr_nonnull(s->in);
        for (size_t i = 0; i < s->n_in; i++)
            s->in[i] = (float)(dt_rng_uniform(r) - 0.5);
        dt_assert_ok(dev->alloc(dev, (s->n + 1) * sizeof(float), &err, &s->buf), err);
        s->send = s->buf;
        if (!in_place)
            dt_assert_ok(dev->alloc(dev, (s->n_in + 1) * sizeof(float), &err, &s->send), err);
    }
    for (int k = 0; k < n; k++)
        expect(o, n, k);
}

static void drop(struct op *o, int n)
{
    for (int k = 0; k < n; k++) {
        struct side *s = &o->side[k];

        free(s->in);
        free(s->want);
        if (s->send != s->buf)
            dev->free(dev, s->send);
        dev->free(dev, s->buf);
    }
}

/* Number i of rank k; its data is written in front of it, on the same queue.  What is sent around the ring has a queue
 * of its own, as a queue stands still until a rank's neighbour has come. */
static void post(struct op *o, int n, int k, int i)
{
    struct dt_device_queue *q = queue[k][i % QUEUES], *other = queue[k][(i + 1) % QUEUES];
    struct side *s = &o->side[k];
    struct dt_req **out = i % 2 ? &s->req : NULL;
    size_t sent[RANKS], come[RANKS], b = sizeof(float);

    dev->copy(o->kind == RING ? other : q, s->send, s->in, s->n_in * b, DT_COPY_TO_DEVICE);
    for (int a = 0; a < n; a++) {
        sent[a] = o->count[o->kind == ALL_TO_ALL ? k : 0][a] * b;
        come[a] = o->count[a][k] * b;
    }
    switch (o->kind) {
    case ALL_REDUCE:
        dt_assert_ok(t[k]->post_all_reduce(all[k], DT_REDUCE_F32, s->buf, s->n, q, &err, out), err);
        return;
    case REDUCE_SCATTER:
        dt_assert_ok(
            t[k]->post_reduce_scatter(all[k], DT_REDUCE_F32, s->buf, o->count[0], q, &err, out),
            err);
        return;
    case ALL_GATHER:
        dt_assert_ok(t[k]->post_all_gather(all[k], s->buf, sent, q, &err, out), err);
        return;
    case BROADCAST:
        dt_assert_ok(t[k]->post_broadcast(all[k], o->root, s->buf, s->n * b, q, &err, out), err);
        return;
    case ALL_TO_ALL:
        dt_assert_ok(t[k]->post_all_to_all(all[k], s->send, sent, s->buf, come, q, &err, out), err);
        return;
    case RING:
        dt_assert_ok(t[k]->post_recv(t[k], (k + n - 1) % n, 7, s->buf, s->n * b, q, &err, out),
                     err);
        dt_assert_ok(t[k]->post_send(t[k], (k + 1) % n, 7, s->send, s->n_in * b, other, &err, NULL),
                     err);
        return;
    case KINDS:
        break;
    }
    ck_abort();
}

static void look(const struct op *o, int n, int i, uint64_t seed)
{
    static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather",
                                        "broadcast",  "all-to-all",     "ring"};

    for (int k = 0; k < n; k++) {
        const struct side *s = &o->side[k];
        const float *is = dt_test_host(s->buf);

        for (size_t j = s->want_at; j < s->want_at + s->want_n; j++)
            ck_assert_msg(is[j] == s->want[j],
                          "%s %d on rank %d of %d: [%zu] is %g, not %g (DT_TEST_SEED=%" PRIu64 ")",
                          names[o->kind], i, k, n, j, (double)is[j], (double)s->want[j], seed);
    }
}

static void finish(struct op *op, int n)
{
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < QUEUES; i++)
            dt_assert_ok(dev->queue_sync(queue[k][i], &err), err);
        for (int i = 0; i < OPS; i++) {
            bool done = false;

            if (!op[i].side[k].req)
                continue;
            dt_assert_ok(t[k]->test(t[k], op[i].side[k].req, &done, &err), err);
            ck_assert(done);
        }
    }
}

/* Times at which the host waited for a queue or an event. */
static size_t waits(void)
{
    struct dt_fake_wait w[256];
    size_t n = dt_fake_waits(dev, w, 256), stood = 0;

    for (size_t i = 0; i < n && i < 256; i++)
        stood += w[i].kind != DT_FAKE_PAGEABLE;
    return stood;
}

START_TEST(random_operations)
{
    static const int sizes[] = {1, 2, 3, 5, 2, 3, 5}; /* from the fifth on, over NCCL */
    struct op *op = calloc(OPS, sizeof(*op));
    uint64_t seed = dt_test_seed();
    int n = sizes[_i], next[RANKS] = {0};
    struct dt_rng r;

    ck_assert_ptr_nonnull(op);
    dt_rng_init(&r, seed, (uint64_t)_i);
    open_ranks(n, _i > 3);
    for (int i = 0; i < OPS; i++)
        make(&op[i], n, &r, i % 10 == 9);
    (void)waits();
    for (int left = OPS * n; left > 0;) {
        int k = (int)dt_rng_below(&r, (uint64_t)n);

        if (next[k] == OPS)
            continue;
        post(&op[next[k]], n, k, next[k]);
        next[k]++;
        left--;
    }
    ck_assert_uint_eq(waits(), 0);
    finish(op, n);
    for (int i = 0; i < OPS; i++) {
        look(&op[i], n, i, seed);
        drop(&op[i], n);
    }
    free(op);
    close_ranks(n);
}
END_TEST

/* ---- what goes wrong ---- */

START_TEST(sizes_differ)
{
    struct dt_req *send, *recv;
    void *p;
    bool done = false;

    open_ranks(2, false);
    dt_assert_ok(dev->alloc(dev, 64, &err, &p), err);
    dt_assert_ok(t[0]->post_send(t[0], 1, 3, p, 8, queue[0][0], &err, &send), err);
    ck_assert_int_eq(t[1]->post_recv(t[1], 0, 3, p, 12, queue[1][0], &err, &recv), DT_ERR_PEER);
    ck_assert_ptr_nonnull(strstr(err.message, "8"));
    ck_assert_ptr_nonnull(strstr(err.message, "12"));
    dt_assert_ok(dev->queue_sync(queue[0][0], &err), err); /* it has gone on */
    ck_assert_int_eq(t[0]->test(t[0], send, &done, &err), DT_ERR_PEER);
    ck_assert(!done && strstr(err.message, "12"));
    ck_assert_int_eq(t[0]->post_send(t[0], 1, 4, p, 8, queue[0][1], &err, NULL), DT_ERR_PEER);
    dev->free(dev, p);
    close_ranks(2);
}
END_TEST

/* A rank that has failed lets go of its queues; the others are not disturbed. */
START_TEST(a_rank_gives_up)
{
    struct dt_req *sum_req;
    bool done = false;
    float *x;
    void *p;

    open_ranks(3, _i);
    dt_assert_ok(dev->alloc(dev, 64, &err, &p), err);
    x = p;
    dev->zero(queue[0][0], x, 64);
    dt_assert_ok(dev->queue_sync(queue[0][0], &err), err);
    dt_assert_ok(t[0]->post_recv(t[0], 1, 3, x, 8, queue[0][0], &err, NULL), err);
    dt_assert_ok(t[0]->post_all_reduce(all[0], DT_REDUCE_F32, x, 8, queue[0][1], &err, &sum_req),
                 err);
    dt_assert_ok(t[1]->post_send(t[1], 2, 4, x, 8, queue[1][0], &err, NULL), err);
    dt_assert_ok(t[0]->test(t[0], sum_req, &done, &err), err);
    ck_assert(!done);
    t[0]->give_up(t[0]);
    dt_assert_ok(dev->queue_sync(queue[0][0], &err), err);
    dt_assert_ok(dev->queue_sync(queue[0][1], &err), err);
    ck_assert_int_eq(t[0]->test(t[0], sum_req, &done, &err), DT_ERR_PEER);
    ck_assert_ptr_nonnull(strstr(err.message, "rank 0 has given up"));
    ck_assert_int_eq(t[0]->post_recv(t[0], 2, 3, x, 8, queue[0][0], &err, NULL), DT_ERR_PEER);
    dt_assert_ok(t[2]->post_recv(t[2], 1, 4, x + 8, 8, queue[2][0], &err, NULL), err);
    dt_assert_ok(dev->queue_sync(queue[2][0], &err), err);
    dt_assert_ok(dev->queue_sync(queue[1][0], &err), err);
    dev->free(dev, p);
    close_ranks(3);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("on queues");
    TCase *c = dt_test_case(s, "on queues", 60);

    tcase_add_loop_test(c, random_operations, 0, 7);
    tcase_add_test(c, sizes_differ);
    tcase_add_loop_test(c, a_rank_gives_up, 0, 2);
    return dt_test_run(s);
}
