/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Messages between processes by memory that they map (CUDA IPC), on the fake device, or on the module of cards built for
 * a CPU (DISTTRAIN_TEST_DEVICE).  What arrives is compared with what was sent, byte by byte. */
#include "ipc_fixture.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "comm/transport_tcp_impl.h"

#include <stdatomic.h>

/* ---- random messages ---- */

enum { ROUNDS = 4, MESSAGES = 24, BLOCK = 1 << 18, BLOCKS = 2, TAGS = 3 };

struct message {
    int from, to, tag, queue[2]; /* of the sender, of the receiver */
    size_t bytes;
    int block[2];
    size_t at[2]; /* in the block of each side; ranges do not overlap */
};

static unsigned char byte_of(uint64_t seed, int round, int m, size_t i)
{
    uint64_t x = seed ^ ((uint64_t)round << 40) ^ ((uint64_t)m << 48) ^ i;

    x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (unsigned char)((x ^ (x >> 32)) >> 8);
}

/* The same list on all ranks.  Blocks are filled from their beginnings on, with gaps. */
static void draw(struct dt_rng *g, int n, struct message *m)
{
    size_t end[IF_RANKS][BLOCKS] = {{0}};

    for (int i = 0; i < MESSAGES; i++) {
        m[i].from = (int)dt_rng_below(g, (uint64_t)n);
        m[i].to = (m[i].from + 1 + (int)dt_rng_below(g, (uint64_t)(n > 1 ? n - 1 : 1))) % n;
        if (dt_rng_below(g, 10) == 0)
            m[i].to = m[i].from; /* to oneself */
        m[i].tag = (int)dt_rng_below(g, TAGS);
        m[i].bytes = dt_rng_below(g, 5) == 0 ? dt_rng_below(g, 20000) : dt_rng_below(g, 200);
        if (dt_rng_below(g, 12) == 0)
            m[i].bytes = 0;
        for (int side = 0; side < 2; side++) {
            int rank = side == 0 ? m[i].from : m[i].to, b = (int)dt_rng_below(g, BLOCKS);

            m[i].queue[side] = (int)dt_rng_below(g, IF_QUEUES);
            m[i].block[side] = b;
            m[i].at[side] = end[rank][b] + dt_rng_below(g, 100);
            end[rank][b] = m[i].at[side] + m[i].bytes;
            ck_assert_uint_le(end[rank][b], BLOCK);
        }
    }
}

struct posted {
    int m, side;
    struct dt_req *req;
};

/* This rank's ends, in a random order that keeps the order of each sender, receiver, tag and side. */
static int shuffle(struct dt_rng *own, const struct message *m, int k, struct posted *p)
{
    int n = 0;

    for (int i = 0; i < MESSAGES; i++)
        for (int side = 0; side < 2; side++)
            if ((side == 0 ? m[i].from : m[i].to) == k)
                p[n++] = (struct posted){i, side, NULL};
    for (int turn = 0; turn < 10 * n; turn++) {
        int a = (int)dt_rng_below(own, (uint64_t)n);
        const struct message *x = &m[p[a].m], *y;
        struct posted was = p[a];

        if (a + 1 == n)
            continue;
        y = &m[p[a + 1].m];
        if (p[a].side == p[a + 1].side && x->from == y->from && x->to == y->to && x->tag == y->tag)
            continue;
        p[a] = p[a + 1];
        p[a + 1] = was;
    }
    return n;
}

static struct if_setting {
    uint64_t seed;
    int n_test;
} set;

/* Writes what is sent on the queue, right before the post; reads what lies where bytes will come, likewise. */
static void post(struct if_rank *r, const struct message *m, struct posted *p, char *block[BLOCKS],
                 unsigned char *host, unsigned char *before)
{
    char *at = block[m->block[p->side]] + m->at[p->side];
    struct dt_device_queue *q = r->q[m->queue[p->side]];

    if (p->side == 0) {
        r->dev->copy(q, at, host, m->bytes, DT_COPY_TO_DEVICE);
        dt_assert_ok(r->t->post_send(r->t, m->to, m->tag, at, m->bytes, q, &r->err, &p->req),
                     r->err);
    } else {
        r->dev->copy(q, before, at, m->bytes, DT_COPY_TO_HOST);
        dt_assert_ok(r->t->post_recv(r->t, m->from, m->tag, at, m->bytes, q, &r->err, &p->req),
                     r->err);
    }
}

static void wait_all(struct if_rank *r, struct dt_rng *own, struct posted *p, int n)
{
    uint64_t begin = dt_clock_ns();

    for (int left = n; left > 0;) {
        int a = (int)dt_rng_below(own, (uint64_t)n);
        bool done = false;

        if (!p[a].req)
            continue;
        dt_assert_ok(r->t->test(r->t, p[a].req, &done, &r->err), r->err);
        if (done)
            p[a].req = NULL;
        left -= done;
        ck_assert_msg(dt_clock_ns() - begin < UINT64_C(20000000000),
                      "rank %d waits for %d messages (DT_TEST_SEED=%" PRIu64 ")", r->k, left,
                      set.seed);
    }
}

static void check_round(struct if_rank *r, int round, const struct message *m,
                        const struct posted *p, int n, char *block[BLOCKS],
                        unsigned char *const *before)
{
    for (int i = 0; i < IF_QUEUES; i++)
        dt_assert_ok(r->dev->queue_sync(r->q[i], &r->err), r->err);
    for (int a = 0; a < n; a++) {
        const struct message *x = &m[p[a].m];
        const unsigned char *is =
            (const unsigned char *)dt_test_host(block[x->block[p[a].side]]) + x->at[p[a].side];

        for (size_t i = 0; i < x->bytes; i++) {
            unsigned char want = byte_of(set.seed, round, p[a].m, i);

            ck_assert_msg(is[i] == want,
                          "round %d, message %d from %d to %d: byte %zu of %zu is %d, not %d "
                          "(DT_TEST_SEED=%" PRIu64 ")",
                          round, p[a].m, x->from, x->to, i, x->bytes, is[i], want, set.seed);
            ck_assert_msg(p[a].side == 0 || before[a][i] == 0x11,
                          "message %d has come before readers had passed (DT_TEST_SEED=%" PRIu64
                          ")",
                          p[a].m, set.seed);
        }
    }
}

static void one_round(struct if_rank *r, struct dt_rng *g, struct dt_rng *own, int round)
{
    static unsigned char ones[BLOCK];
    struct message m[MESSAGES];
    struct posted p[2 * MESSAGES];
    unsigned char *host[2 * MESSAGES], *before[2 * MESSAGES];
    char *block[BLOCKS];
    int n;

    draw(g, r->n, m);
    n = shuffle(own, m, r->k, p);
    memset(ones, 0x11, sizeof(ones));
    for (int b = 0; b < BLOCKS; b++) {
        block[b] = if_alloc(r, BLOCK);
        r->dev->copy(r->q[0], block[b], ones, BLOCK, DT_COPY_TO_DEVICE);
    }
    dt_assert_ok(r->dev->queue_sync(r->q[0], &r->err), r->err);
    for (int a = 0; a < n; a++) {
        host[a] = malloc(2 * m[p[a].m].bytes + 1);
        ck_assert_ptr_nonnull(host[a]);
        before[a] = host[a] + m[p[a].m].bytes;
        for (size_t i = 0; i < m[p[a].m].bytes; i++)
            host[a][i] = byte_of(set.seed, round, p[a].m, i);
        post(r, &m[p[a].m], &p[a], block, host[a], before[a]);
    }
    wait_all(r, own, p, n);
    check_round(r, round, m, p, n, block, before);
    for (int a = 0; a < n; a++)
        free(host[a]);
    for (int b = 0; b < BLOCKS; b++) /* what others have mapped stays mapped */
        r->dev->free(r->dev, block[b]);
}

static void exchange(struct if_rank *r)
{
    struct dt_rng g, own;
    uint64_t ever;
    int now;

    dt_rng_init(&g, set.seed, (uint64_t)set.n_test);
    dt_rng_init(&own, set.seed, 100 + (uint64_t)r->k);
    dt_assert_ok(dt_transport_open_ipc(r->control, r->dev, &r->err, &r->t), r->err);
    ck_assert_str_eq(r->t->name, "ipc");
    for (int round = 0; round < ROUNDS; round++)
        one_round(r, &g, &own, round);
    if (if_is_fake()) { /* all is in one block of the driver's, which has been mapped since the look at the beginning */
        dt_fake_maps(r->dev, &now, &ever);
        ck_assert_int_eq(now, r->n - 1);
        ck_assert_uint_eq(ever, (uint64_t)(r->n - 1));
    }
}

START_TEST(random_messages)
{
    int n = 2 + _i % 2;

    setenv("DISTTRAIN_FAKE_DELAY_US", _i < 2 ? "0" : "2000", 1);
    setenv("DISTTRAIN_FAKE_SHARE", "4", 1);
    set = (struct if_setting){dt_test_seed(), _i};
    if_ranks(n, exchange);
    if_all_well(n);
}
END_TEST

/* ---- mappings ---- */

enum { PLACES = 5, LARGE = 9 << 20, TURNS = 15, KEPT = 3 }; /* KEPT: with what is mapped for good */

/* Blocks of the driver's are of 16 MiB here, so each of these is in one of its own. */
static void from_place_to_place(struct if_rank *r)
{
    struct dt_device_queue *q = r->q[0];
    uint64_t first, last = 0;
    char *place[PLACES], *from;
    uint32_t x[256];
    int now;

    for (int i = 0; i < PLACES; i++)
        place[i] = if_alloc(r, LARGE);
    from = if_alloc(r, sizeof(x));
    dt_transport_ipc_mappings = 2;
    dt_assert_ok(dt_transport_open_ipc(r->control, r->dev, &r->err, &r->t), r->err);
    dt_fake_maps(r->dev, &now, &first);
    ck_assert_int_eq(now, 1); /* access to the peer is set up, and stays so */
    for (int i = 0; i < TURNS; i++) {
        struct dt_req *req[2];
        int before = now;

        if (i >= PLACES) { /* an iteration each; the first one has many messages */
            dt_assert_ok(r->t->connect(r->t, NULL, 0, &r->err), r->err);
            dt_fake_maps(r->dev, &before, &last);
            ck_assert_int_le(before, KEPT);
        }

        for (size_t j = 0; j < 256; j++)
            x[j] = (uint32_t)(1000 * i) + (uint32_t)j;
        for (int side = 0; side < 2; side++) {
            if (r->k == 0)
                dt_assert_ok(r->t->post_recv(r->t, 1, side, place[(i + 2 * side) % PLACES] + 100,
                                             sizeof(x), q, &r->err, &req[side]),
                             r->err);
            else
                r->dev->copy(q, from, x, sizeof(x), DT_COPY_TO_DEVICE);
            if (r->k == 1)
                dt_assert_ok(
                    r->t->post_send(r->t, 0, side, from, sizeof(x), q, &r->err, &req[side]),
                    r->err);
        }
        for (int side = 0; side < 2; side++)
            dt_assert_ok(dt_transport_wait(r->t, req[side], 0, "a message", &r->err), r->err);
        dt_fake_maps(r->dev, &now, &last);
        ck_assert_int_ge(now, before); /* nothing is unmapped in an iteration */
        if (i == PLACES - 1 && r->k == 1)
            ck_assert_int_ge(now, PLACES);
        for (int side = 0; side < 2 && r->k == 0; side++)
            ck_assert_mem_eq((char *)dt_test_host(place[(i + 2 * side) % PLACES]) + 100, x,
                             sizeof(x));
    }
    if (r->k == 1) /* neither every time, nor only once */
        ck_assert_msg(last - first > PLACES && last - first <= 2 * TURNS, "%" PRIu64 " mappings",
                      last - first);
    for (int i = 0; i < PLACES; i++)
        r->dev->free(r->dev, place[i]);
    r->dev->free(r->dev, from);
}

START_TEST(mappings_are_bounded)
{
    if_ranks(2, from_place_to_place);
    if_all_well(2);
}
END_TEST

/* ---- what is not a message between two ranks ---- */

static void collect(struct if_rank *r)
{
    struct dt_device_queue *q = r->q[0];
    const int both[2] = {0, 1};
    const size_t pieces[2] = {4, 4};
    float x[2] = {1.0f + (float)r->k, 10};
    struct dt_comm *c[2];
    struct dt_req *req;
    float *p = if_alloc(r, sizeof(x));

    dt_assert_ok(dt_transport_open_ipc(r->control, r->dev, &r->err, &r->t), r->err);
    ck_assert(!r->t->on_queue && r->t->collectives_on_queue);
    for (int i = 0; i < 2; i++)
        dt_assert_ok(r->t->comm_new(r->t, both, 2, &r->err, &c[i]), r->err);
    ck_assert_ptr_eq(dt_comm_transport(c[0]), r->t);
    r->dev->copy(q, p, x, sizeof(x), DT_COPY_TO_DEVICE);
    dt_assert_ok(r->t->post_all_reduce(c[0], DT_REDUCE_F32, p, 2, q, &r->err, &req), r->err);
    dt_assert_ok(dt_transport_wait(r->t, req, 0, "a sum", &r->err), r->err);
    ck_assert(((float *)dt_test_host(p))[0] == 3 && ((float *)dt_test_host(p))[1] == 20);
    r->dev->copy(q, p, x, sizeof(x), DT_COPY_TO_DEVICE);
    dt_assert_ok(r->t->post_all_gather(c[1], p, pieces, q, &r->err, NULL),
                 r->err); /* on the queue */
    dt_assert_ok(r->dev->queue_sync(q, &r->err), r->err);
    dt_assert_ok(r->t->state(r->t, &r->err), r->err);
    ck_assert(((float *)dt_test_host(p))[0] == 1 && ((float *)dt_test_host(p))[1] == 10);
    for (int i = 0; i < 2; i++)
        r->t->comm_free(c[i]);
    r->dev->free(r->dev, p);
}

START_TEST(collectives_are_staged)
{
    if_ranks(2, collect);
    if_all_well(2);
}
END_TEST

/* ---- what is wrong ---- */

static void of_other_sizes(struct if_rank *r)
{
    char *p = if_alloc(r, 100);
    struct dt_req *req;
    enum dt_status st;

    dt_assert_ok(dt_transport_open_ipc(r->control, r->dev, &r->err, &r->t), r->err);
    if (r->k == 0)
        st = r->t->post_send(r->t, 1, 7, p, 90, r->q[0], &r->err, &req);
    else
        st = r->t->post_recv(r->t, 0, 7, p, 80, r->q[0], &r->err, &req);
    dt_assert_ok(st, r->err);
    if_say(r, dt_transport_wait(r->t, req, 0, "a message", &r->err));
    r->dev->free(r->dev, p);
}

START_TEST(sizes_must_agree)
{
    if_ranks(2, of_other_sizes);
    if_all_well(2);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(if_shared->status[k], DT_ERR_PEER);
        ck_assert_str_eq(if_shared->text[k],
                         "rank 0 sent 90 bytes with tag 7, but rank 1 expects 80 bytes");
    }
}
END_TEST

static const char *refuses; /* on rank 1 */

static void is_refused(struct if_rank *r)
{
    if (r->k == 1)
        setenv("DISTTRAIN_FAKE_IPC", refuses, 1);
    if_say(r, dt_transport_open_ipc(r->control, r->dev, &r->err, &r->t));
}

/* Said alike on both, by one sentence; nothing is left behind. */
START_TEST(one_refusal_is_everybodys)
{
    static const char *const call[] = {"memory", "map", "event", "open"};
    static const char *const who[] = {"rank 1: ", "rank 1 cannot reach the memory of rank 0: ",
                                      "rank 1: ", "rank 1 cannot reach the memory of rank 0: "};
    char text[512];

    refuses = call[_i];
    if_ranks(2, is_refused);
    if_all_well(2);
    snprintf(text, sizeof(text),
             "run.transport ipc cannot be used: %sthe fake device was told to refuse: %s; auto, "
             "staged and nccl are other ways",
             who[_i], call[_i]);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(if_shared->status[k], DT_ERR_INPUT);
        ck_assert_str_eq(if_shared->text[k], text);
    }
}
END_TEST

static void open_on_cpu(struct if_rank *r)
{
    struct dt_device_options o = {.threads = 1};
    struct dt_device *cpu;

    dt_assert_ok(dt_device_open_cpu(&o, &r->err, &cpu), r->err);
    if_say(r, dt_transport_open_device(r->control, cpu, DT_TRANSPORT_OVER_IPC, &r->err, &r->t));
    cpu->close(cpu);
}

START_TEST(cpus_have_none)
{
    if_ranks(2, open_on_cpu);
    if_all_well(2);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(if_shared->status[k], DT_ERR_INPUT);
        dt_assert_has(if_shared->text[k], "rank 0: the CPU's memory belongs to its process");
    }
}
END_TEST

/* ---- ranks that are lost ---- */

/* Rank 1 ends: before it posts; when it has offered; while its copy waits for its turn. */
static int dies_at;

static void lose(struct if_rank *r)
{
    const struct timespec pause = {0, 100000000};
    char *p = if_alloc(r, 1 << 20), *other = if_alloc(r, 1 << 20);
    struct dt_req *in, *out;
    bool done = false;

    dt_assert_ok(dt_transport_open_ipc(r->control, r->dev, &r->err, &r->t), r->err);
    __atomic_store_n(&if_shared->number[r->k], 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&if_shared->number[0], __ATOMIC_ACQUIRE) ==
           0) /* else it is lost before */
        nanosleep(&pause, NULL);
    if (r->k == 1) {
        if (dies_at > 0)
            dt_assert_ok(r->t->post_recv(r->t, 0, 1, p, 1 << 20, r->q[0], &r->err, &in), r->err);
        if (dies_at > 1)
            dt_assert_ok(r->t->post_send(r->t, 0, 2, other, 1 << 20, r->q[1], &r->err, &out),
                         r->err);
        for (int i = 0; i < 200 && dies_at > 0; i++) /* part of it is done, or all */
            dt_assert_ok(r->t->test(r->t, in, &done, &r->err), r->err);
        raise(SIGKILL);
    }
    nanosleep(&pause, NULL);
    /* what needs nothing more of the lost rank may still be over; what does is not */
    dt_assert_ok(r->t->post_recv(r->t, 1, 3, other, 1 << 20, r->q[1], &r->err, &in), r->err);
    if_say(r, dt_transport_wait(r->t, in, 0, "a lost rank", &r->err));
    r->t->give_up(r->t);
    r->dev->free(r->dev, p);
    r->dev->free(r->dev, other);
}

/* The close of the device finds what is still mapped of the lost one, if there is anything. */
START_TEST(a_lost_rank_is_an_error)
{
    uint64_t begin = dt_clock_ns();

    dies_at = _i;
    if_ranks(2, lose);
    if_all_well(1);
    ck_assert(WIFSIGNALED(if_status[1]) && WTERMSIG(if_status[1]) == SIGKILL);
    ck_assert_int_eq(if_shared->status[0], DT_ERR_PEER);
    dt_assert_has(if_shared->text[0], "rank 1");
    ck_assert_msg(dt_clock_ns() - begin < UINT64_C(15000000000), "by waiting for the limit");
}
END_TEST

/* ---- each call fails once ---- */

enum what { DEVICE, HOST_MEMORY };
static enum what failing;
static int failing_rank;
static uint64_t failing_call;
static struct {
    struct dt_device *dev, card; /* the real one, and what the transport sees */
    atomic_uint_fast64_t calls;  /* by the thread that maps, too */
} faulty;

static bool fails_now(struct dt_error *err)
{
    if (atomic_fetch_add(&faulty.calls, 1) + 1 != failing_call || failing != DEVICE)
        return false;
    dt_error_set(err, DT_ERR_INTERNAL, "call %" PRIu64 " was told to fail", failing_call);
    return true;
}

static enum dt_status bad_alloc(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                void **out)
{
    (void)dev;
    return fails_now(err) ? DT_ERR_INTERNAL : faulty.dev->alloc(faulty.dev, bytes, err, out);
}

static enum dt_status bad_host_alloc(const struct dt_device *dev, size_t bytes,
                                     struct dt_error *err, void **out)
{
    (void)dev;
    return fails_now(err) ? DT_ERR_INTERNAL : faulty.dev->host_alloc(faulty.dev, bytes, err, out);
}

static enum dt_status bad_queue_new(const struct dt_device *dev, bool high, struct dt_error *err,
                                    struct dt_device_queue **out)
{
    (void)dev;
    return fails_now(err) ? DT_ERR_INTERNAL : faulty.dev->queue_new(faulty.dev, high, err, out);
}

static enum dt_status bad_queue_sync(struct dt_device_queue *q, struct dt_error *err)
{
    enum dt_status st = faulty.dev->queue_sync(q, err);

    return fails_now(err) ? DT_ERR_INTERNAL : st;
}

static enum dt_status bad_event_new(const struct dt_device *dev, struct dt_error *err,
                                    struct dt_device_event **out)
{
    (void)dev;
    return fails_now(err) ? DT_ERR_INTERNAL : faulty.dev->event_new(faulty.dev, err, out);
}

static enum dt_status bad_ipc_memory(const struct dt_device *dev, const void *p,
                                     struct dt_error *err, struct dt_device_handle *block,
                                     size_t *offset)
{
    (void)dev;
    return fails_now(err) ? DT_ERR_INTERNAL
                          : faulty.dev->ipc_memory(faulty.dev, p, err, block, offset);
}

static enum dt_status bad_ipc_map(const struct dt_device *dev, const struct dt_device_handle *block,
                                  struct dt_error *err, void **out)
{
    (void)dev;
    return fails_now(err) ? DT_ERR_INTERNAL : faulty.dev->ipc_map(faulty.dev, block, err, out);
}

static enum dt_status bad_ipc_event_new(const struct dt_device *dev, struct dt_error *err,
                                        struct dt_device_event **out, struct dt_device_handle *h)
{
    (void)dev;
    return fails_now(err) ? DT_ERR_INTERNAL : faulty.dev->ipc_event_new(faulty.dev, err, out, h);
}

static enum dt_status bad_ipc_event_open(const struct dt_device *dev,
                                         const struct dt_device_handle *h, struct dt_error *err,
                                         struct dt_device_event **out)
{
    (void)dev;
    return fails_now(err) ? DT_ERR_INTERNAL : faulty.dev->ipc_event_open(faulty.dev, h, err, out);
}

static const struct dt_device *faulty_device(struct dt_device *dev)
{
    faulty.dev = dev;
    faulty.card = *dev;
    faulty.card.alloc = bad_alloc;
    faulty.card.host_alloc = bad_host_alloc;
    faulty.card.queue_new = bad_queue_new;
    faulty.card.queue_sync = bad_queue_sync;
    faulty.card.event_new = bad_event_new;
    faulty.card.ipc_memory = bad_ipc_memory;
    faulty.card.ipc_map = bad_ipc_map;
    faulty.card.ipc_event_new = bad_ipc_event_new;
    faulty.card.ipc_event_open = bad_ipc_event_open;
    return &faulty.card;
}

enum { BOTH = 2, FEW = 1000 };

/* A message each way, twice; the second one in what the first has opened. */
static enum dt_status there_and_back(struct if_rank *r, char *out, char *in)
{
    struct dt_req *req[2];

    for (int turn = 0; turn < 2; turn++) {
        struct dt_transport *t = r->t;

        DT_TRY(t->post_recv(t, 1 - r->k, 5, in, FEW, r->q[0], &r->err, &req[0]));
        DT_TRY(t->post_send(t, 1 - r->k, 5, out, FEW, r->q[1], &r->err, &req[1]));
        for (int i = 0; i < BOTH; i++)
            DT_TRY(dt_transport_wait(t, req[i], 0, "a message", &r->err));
    }
    return DT_OK;
}

/* A rank that has failed: nothing of it answers any more. */
static void be_lost(struct if_rank *r)
{
    if (r->t) {
        r->t->give_up(r->t);
        r->t->close(r->t);
    }
    dt_tcp_free(r->control->impl);
    r->control = NULL;
}

static void with_a_fault(struct if_rank *r)
{
    bool bad = r->k == failing_rank;
    char *out = if_alloc(r, FEW), *in = if_alloc(r, FEW);
    char sent[FEW];
    enum dt_status st;

    memset(sent, 'a' + r->k, FEW);
    r->dev->copy(r->q[1], out, sent, FEW, DT_COPY_TO_DEVICE);
    dt_assert_ok(r->dev->queue_sync(r->q[1], &r->err), r->err);
    if (bad && failing == HOST_MEMORY)
        dt_mem_fail_at(failing_call);
    st = dt_transport_open_ipc(r->control, bad ? faulty_device(r->dev) : r->dev, &r->err, &r->t);
    if (st == DT_OK)
        st = there_and_back(r, out, in);
    if_shared->number[r->k] = failing == HOST_MEMORY ? dt_mem_count() : faulty.calls;
    dt_mem_fail_at(0);
    if_say(r, st);
    if (st != DT_OK)
        be_lost(r);
    else
        r->t->close(r->t);
    r->t = NULL;
    for (int i = 0; i < FEW && st == DT_OK; i++)
        ck_assert_int_eq(((const char *)dt_test_host(in))[i], 'b' - r->k);
    r->dev->free(r->dev, out);
    r->dev->free(r->dev, in);
}

/* It is an error of the rank, and of the other one that waits for it, or results are right; and both get to their end,
 * with nothing left mapped or allocated, long before the limit. */
START_TEST(each_call_fails_once)
{
    int errors = 0, n = 0;

    failing = _i / 2 == 0 ? DEVICE : HOST_MEMORY;
    failing_rank = _i % 2;
    setenv("DISTTRAIN_FAKE_IPC", "freed",
           1); /* who has not heard yet that a rank fails still writes there */
    for (failing_call = 1; n + 1 == (int)failing_call; failing_call++) {
        uint64_t begin = dt_clock_ns();

        if_ranks(2, with_a_fault);
        if_all_well(2);
        ck_assert_msg(dt_clock_ns() - begin < UINT64_C(15000000000), "call %" PRIu64, failing_call);
        if (if_shared->number[failing_rank] >= failing_call)
            n++;
        errors += if_shared->status[failing_rank] != DT_OK;
        if (failing == DEVICE && n == (int)failing_call)
            ck_assert_msg(if_shared->status[failing_rank] != DT_OK, "call %d failed unheard", n);
    }
    for (int k = 0; k < 2; k++)
        ck_assert_int_eq(if_shared->status[k], DT_OK); /* the last time none did */
    ck_assert_int_gt(errors, 10);
    printf("ipc: %d calls failed, %d errors\n", n, errors);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ipc");
    TCase *c = dt_test_case(s, "messages", 120), *on_fake = dt_test_case(s, "faults", 300);

    tcase_add_loop_test(c, random_messages, 0, 4);
    tcase_add_test(c, collectives_are_staged);
    tcase_add_test(c, sizes_must_agree);
    tcase_add_test(c, cpus_have_none);
    tcase_add_loop_test(c, a_lost_rank_is_an_error, 0, 3);
    if (if_is_fake()) {
        tcase_add_test(on_fake, mappings_are_bounded);
        tcase_add_loop_test(on_fake, one_refusal_is_everybodys, 0, 4);
        tcase_add_loop_test(on_fake, each_call_fails_once, 0, 4);
    }
    return dt_test_run(s);
}
