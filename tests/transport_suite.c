/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Every rank draws the same random numbers, so that all know what everybody posts. */
#include "transport_suite.h"

#include "base/bf16.h"
#include "base/mem.h"
#include "base/rng.h"
#include "comm/transport_impl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_S 60.0

struct dt_device_queue *suite_queue[SUITE_RANKS];

static void fail(struct verdict *v, const struct dt_transport *t, const char *where,
                 const char *what)
{
    if (!v->text[0])
        snprintf(v->text, sizeof(v->text), "rank %d of %d (%s): %s: %s", t->rank, t->size, t->name,
                 where, what);
}
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fail(v, t, __func__, #cond);                                                           \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != DT_OK) {                                                                     \
            fail(v, t, __func__, err.message);                                                     \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)
#define WAIT(r) OK(dt_transport_wait(t, r, LIMIT_S, "a check", &err))

/* The byte at `i` of message `id` from rank `from`. */
static unsigned char byte_of(int from, uint64_t id, size_t i)
{
    return (unsigned char)((uint64_t)from * 37 + id * 101 + i * 7 + (i >> 8) * 13);
}

static void fill(unsigned char *p, size_t n, int from, uint64_t id)
{
    for (size_t i = 0; i < n; i++)
        p[i] = byte_of(from, id, i);
}

static bool is(const unsigned char *p, size_t n, int from, uint64_t id)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != byte_of(from, id, i))
            return false;
    return true;
}

/* Sizes around every limit of an implementation, and nothing. */
static size_t draw_size(struct dt_rng *g)
{
    static const size_t some[] = {0, 1, 7, 8, 63, 64, 4095, 4096, 4097, 65536, 300001, 1 << 20};

    if (dt_rng_below(g, 3) == 0)
        return some[dt_rng_below(g, sizeof(some) / sizeof(some[0]))];
    return (size_t)dt_rng_below(g, UINT64_C(1) << (1 + dt_rng_below(g, 18)));
}

static struct dt_comm *all_of(struct dt_transport *t, struct dt_error *err)
{
    int ranks[64];
    struct dt_comm *c = NULL;

    for (int k = 0; k < t->size; k++)
        ranks[k] = k;
    return t->comm_new(t, ranks, t->size, err, &c) == DT_OK ? c : NULL;
}

/* ---- between two ranks ---- */

struct message {
    int from, to, tag;
    size_t bytes;
    unsigned char *buf;
    struct dt_req *req;
};

/* Many messages among all ranks, all posted, then completed in an order of each rank's own. */
static void many_outstanding(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    enum { MANY = 200 };
    struct message *m = calloc(MANY, sizeof(*m));
    struct dt_error err = {0};
    struct dt_rng g, own;

    dt_rng_init(&g, seed, 1);
    dt_rng_init(&own, seed, 100 + (uint64_t)t->rank);
    CHECK(m);
    for (int round = 0; round < rounds; round++) {
        int left = 0;

        for (int i = 0; i < MANY; i++) {
            struct message *x = &m[i];

            x->from = (int)dt_rng_below(&g, (uint64_t)t->size);
            x->to = (int)dt_rng_below(&g, (uint64_t)t->size);
            x->tag = dt_rng_below(&g, 2) ? (1 << 22) - 1 : (int)dt_rng_below(&g, 3);
            x->bytes = draw_size(&g) / 8;
            x->req = NULL;
            if (x->to == t->rank) { /* receives, and sends to oneself too, in the order of posts */
                CHECK(x->buf = malloc(x->bytes + 1));
                OK(t->post_recv(t, x->from, x->tag, x->buf, x->bytes, suite_queue[t->rank], &err,
                                &x->req));
                left++;
            }
        }
        for (int i = 0; i < MANY; i++) {
            struct message *x = &m[i];
            struct dt_req *r;
            unsigned char *p;

            if (x->from != t->rank)
                continue;
            CHECK(p = malloc(x->bytes + 1));
            fill(p, x->bytes, x->from, (uint64_t)i);
            OK(t->post_send(t, x->to, x->tag, p, x->bytes, suite_queue[t->rank], &err, &r));
            if (x->to == t->rank) { /* the receive stands already */
                bool done = false;

                for (int k = 0; k < 1000000 && !done; k++)
                    OK(t->test(t, r, &done, &err));
                CHECK(done);
                free(p);
            } else { /* remember it as a further message */
                x->buf = p;
                x->req = r;
                left++;
            }
        }
        while (left > 0) {
            int i = (int)dt_rng_below(&own, MANY);
            bool done = false;

            if (!m[i].req)
                continue;
            OK(t->test(t, m[i].req, &done, &err));
            if (!done)
                continue;
            if (m[i].to == t->rank)
                CHECK(is(m[i].buf, m[i].bytes, m[i].from, (uint64_t)i));
            free(m[i].buf);
            m[i].req = NULL;
            m[i].buf = NULL;
            left--;
        }
    }
out:
    free(m);
}

/* Everybody sends before anybody receives: a post never blocks. */
static void sends_before_receives(struct dt_transport *t, uint64_t seed, int rounds,
                                  struct verdict *v)
{
    struct dt_error err = {0};
    struct dt_req *s, *r;
    size_t n = 3 << 20;
    unsigned char *a = malloc(n), *b = malloc(n);
    int next = (t->rank + 1) % t->size, prev = (t->rank + t->size - 1) % t->size;

    (void)seed;
    (void)rounds;
    CHECK(a && b);
    fill(a, n, t->rank, 5);
    OK(t->post_send(t, next, 9, a, n, suite_queue[t->rank], &err, &s));
    OK(t->post_recv(t, prev, 9, b, n, suite_queue[t->rank], &err, &r));
    WAIT(s);
    WAIT(r);
    CHECK(is(b, n, prev, 5));
out:
    free(a);
    free(b);
}

/* ---- collectives ---- */

static void broadcast(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    struct dt_error err = {0};
    struct dt_comm *c = all_of(t, &err);
    unsigned char *p = malloc(5 << 20);
    struct dt_rng g;

    dt_rng_init(&g, seed, 2);
    CHECK(c && p);
    for (int round = 0; round < rounds; round++) {
        size_t n = round == 0 ? 5 << 20 : draw_size(&g);
        int root = (int)dt_rng_below(&g, (uint64_t)t->size);
        struct dt_req *r;

        fill(p, n, t->rank == root ? root : root + 1, (uint64_t)round);
        OK(t->post_broadcast(c, root, p, n, suite_queue[t->rank], &err, &r));
        WAIT(r);
        CHECK(is(p, n, root, (uint64_t)round));
    }
out:
    free(p);
    if (c)
        t->comm_free(c);
}

union elem {
    float f;
    double d;
    uint16_t h;
    uint64_t u;
};

static size_t elem_bytes(enum dt_reduce_type type)
{
    return type == DT_REDUCE_BF16 ? 2 : type == DT_REDUCE_F32 || type == DT_REDUCE_F32_MAX ? 4 : 8;
}

static float value(int rank, uint64_t id, size_t i)
{
    return (float)dt_rng_normal_at(id, (uint64_t)rank, i % 997) * 1.37f;
}

static union elem part(enum dt_reduce_type type, int rank, uint64_t id, size_t i)
{
    union elem e = {.u = 0};
    float f = value(rank, id, i);

    if (type == DT_REDUCE_F64)
        e.d = f;
    else if (type == DT_REDUCE_U64_MAX)
        e.u = (uint64_t)((double)(f + 100) * 1e15);
    else if (type == DT_REDUCE_BF16)
        e.h = dt_bf16_from_f32(f);
    else
        e.f = f;
    return e;
}

/* In the order of members, one after another; bf16 in fp32, rounded once. */
static union elem total(enum dt_reduce_type type, const int *ranks, int n, uint64_t id, size_t i)
{
    union elem e = part(type, ranks[0], id, i);
    float sum = type == DT_REDUCE_BF16 ? dt_bf16_to_f32(e.h) : e.f;

    for (int k = 1; k < n; k++) {
        union elem x = part(type, ranks[k], id, i);

        switch (type) {
        case DT_REDUCE_F32:
            e.f += x.f;
            break;
        case DT_REDUCE_F64:
            e.d += x.d;
            break;
        case DT_REDUCE_BF16:
            sum += dt_bf16_to_f32(x.h);
            e.h = dt_bf16_from_f32(sum);
            break;
        case DT_REDUCE_U64_MAX:
            e.u = x.u > e.u ? x.u : e.u;
            break;
        case DT_REDUCE_F32_MAX:
            e.f = x.f > e.f ? x.f : e.f;
            break;
        }
    }
    return e;
}

static void store(char *p, enum dt_reduce_type type, size_t i, union elem e)
{
    size_t b = elem_bytes(type);

    memcpy(p + i * b, &e, b); /* little-endian or not: the members begin at the same address */
}

/* A random subset of the ranks in random order, the same everywhere; 0 when this rank is not in. */
static int draw_group(struct dt_rng *g, const struct dt_transport *t, int *ranks)
{
    int n = 1 + (int)dt_rng_below(g, (uint64_t)t->size), all[64], in = 0;

    for (int k = 0; k < t->size; k++)
        all[k] = k;
    for (int k = 0; k < n; k++) {
        int j = k + (int)dt_rng_below(g, (uint64_t)(t->size - k)), x = all[j];

        all[j] = all[k];
        all[k] = x;
        ranks[k] = x;
        in |= x == t->rank;
    }
    return in ? n : 0;
}

static void sums(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    struct dt_error err = {0};
    struct dt_comm *c = NULL;
    struct dt_rng g;
    char *p = NULL;

    dt_rng_init(&g, seed, 3);
    for (int round = 0; round < 2 * rounds; round++) {
        enum dt_reduce_type type = (enum dt_reduce_type)dt_rng_below(&g, 5);
        bool scatter = dt_rng_below(&g, 2);
        uint64_t id = dt_rng_u64(&g);
        size_t n = 0, from = 0, to, counts[64], len = draw_size(&g), b = elem_bytes(type);
        int ranks[64], members = draw_group(&g, t, ranks), want = 1;
        struct dt_req *r;

        for (int k = 0; k < 64; k++) /* as many draws whether in the group or not */
            counts[k] = dt_rng_below(&g, 4) ? (size_t)dt_rng_below(&g, len + 1) : 0;
        if (round == 1) {
            counts[0] = 1400001; /* longer than all chunks under way */
            len = 2200007;
        }
        if (!members)
            continue;
        OK(t->comm_new(t, ranks, members, &err, &c));
        CHECK(dt_comm_size(c) == members && dt_comm_rank(c, dt_comm_member(c)) == t->rank);
        for (int k = 0; k < members; k++) {
            if (k == dt_comm_member(c))
                from = n;
            n += counts[k];
        }
        to = from + counts[dt_comm_member(c)];
        if (!scatter) {
            from = 0;
            to = n = len;
        }
        CHECK(p = malloc(n * b + 1));
        for (size_t i = 0; i < n; i++)
            store(p, type, i, part(type, t->rank, id, i));
        if (scatter)
            OK(t->post_reduce_scatter(c, type, p, counts, suite_queue[t->rank], &err, &r));
        else
            OK(t->post_all_reduce(c, type, p, n, suite_queue[t->rank], &err, &r));
        WAIT(r);
        for (size_t i = from; i < to && want; i++) {
            union elem e = total(type, ranks, members, id, i);

            want = memcmp(p + i * b, &e, b) == 0;
        }
        CHECK(want);
        free(p);
        p = NULL;
        t->comm_free(c);
        c = NULL;
    }
out:
    free(p);
    if (c)
        t->comm_free(c);
}

static void gathers(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    struct dt_error err = {0};
    struct dt_comm *c = all_of(t, &err);
    unsigned char *p = NULL, *q = NULL;
    struct dt_rng g;

    dt_rng_init(&g, seed, 4);
    CHECK(c);
    for (int round = 0; round < rounds; round++) {
        size_t size[64][64], n = 0, m = 0, at = 0, mine[64], theirs[64], own = 0;
        struct dt_req *r, *s;

        for (int i = 0; i < t->size; i++)
            for (int k = 0; k < t->size; k++)
                size[i][k] = draw_size(&g) / 4;
        for (int k = 0; k < t->size; k++) {
            mine[k] = size[t->rank][k];
            theirs[k] = size[k][t->rank];
            n += mine[k];
            m += theirs[k];
        }
        CHECK((p = malloc(n + 1)) && (q = malloc(m + 1)));
        for (int k = 0; k < t->size; at += mine[k++])
            fill(p + at, mine[k], t->rank, (uint64_t)k);
        OK(t->post_all_to_all(c, p, mine, q, theirs, suite_queue[t->rank], &err, &r));
        WAIT(r);
        at = 0;
        for (int k = 0; k < t->size; at += theirs[k++])
            CHECK(is(q + at, theirs[k], k, (uint64_t)t->rank));
        /* and an all-gather of pieces size[0][k] */
        free(p);
        for (int k = n = 0; k < t->size; n += size[0][k++])
            own = k == t->rank ? n : own;
        CHECK(p = calloc(n + 1, 1));
        fill(p + own, size[0][t->rank], t->rank, 77);
        OK(t->post_all_gather(c, p, size[0], suite_queue[t->rank], &err, &s));
        WAIT(s);
        at = 0;
        for (int k = 0; k < t->size; at += size[0][k++])
            CHECK(is(p + at, size[0][k], k, 77));
        free(p);
        free(q);
        p = q = NULL;
    }
out:
    free(p);
    free(q);
    if (c)
        t->comm_free(c);
}

/* Two collectives under way at once, waited for in an order that differs between ranks. */
static void crossed_waits(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    enum { N = 700001, SETS = 6 };
    struct dt_error err = {0};
    struct dt_comm *c = all_of(t, &err), *d = all_of(t, &err);
    float *x[SETS] = {0};
    struct dt_req *r[SETS];

    (void)seed;
    CHECK(c && d);
    for (int k = 0; k < SETS; k++)
        CHECK(x[k] = malloc(N * sizeof(float)));
    for (int round = 0; round < rounds / 4 + 1; round++) {
        for (int k = 0; k < SETS; k++) {
            for (int i = 0; i < N; i++)
                x[k][i] = (float)(t->rank + k + i % 5);
            OK(t->post_all_reduce(k % 2 ? c : d, DT_REDUCE_F32, x[k], N, suite_queue[t->rank], &err,
                                  &r[k]));
        }
        for (int k = 0; k < SETS; k++)
            WAIT(r[(k + t->rank) % SETS]);
        for (int k = 0; k < SETS; k++)
            for (int i = 0; i < N; i += 1009)
                CHECK(x[k][i] == (float)(t->size * (t->size - 1) / 2 + t->size * (k + i % 5)));
    }
out:
    for (int k = 0; k < SETS; k++)
        free(x[k]);
    if (c)
        t->comm_free(c);
    if (d)
        t->comm_free(d);
}

/* ---- two threads of a rank ---- */

struct second {
    struct dt_transport *t;
    struct dt_comm *c;
    int rounds;
    struct verdict v;
};

static void *second_thread(void *arg)
{
    struct second *s = arg;
    struct dt_transport *t = s->t;
    struct verdict *v = &s->v;
    struct dt_error err = {0};
    enum { N = 30000 };
    double *x = malloc(N * sizeof(*x));

    CHECK(x);
    for (int round = 0; round < 10 * s->rounds; round++) {
        struct dt_req *r;
        int n = round % 2 ? N : 17;

        for (int i = 0; i < n; i++)
            x[i] = t->rank + i;
        OK(t->post_all_reduce(s->c, DT_REDUCE_F64, x, (size_t)n, suite_queue[t->rank], &err, &r));
        WAIT(r);
        for (int i = 0; i < n; i++)
            CHECK(x[i] == t->size * (t->size - 1) / 2 + (double)t->size * i);
    }
out:
    free(x);
    return NULL;
}

static void two_threads(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    struct dt_error err = {0};
    struct second s = {.t = t, .c = all_of(t, &err), .rounds = rounds};
    pthread_t thread;

    CHECK(s.c);
    CHECK(pthread_create(&thread, NULL, second_thread, &s) == 0);
    many_outstanding(t, seed ^ 1, rounds, v);
    gathers(t, seed ^ 2, rounds, v);
    pthread_join(thread, NULL);
    if (s.v.text[0] && !v->text[0])
        *v = s.v;
    t->comm_free(s.c);
out:;
}

/* ---- tensor parallelism ---- */

static void tensor_parallel(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    struct dt_error err = {0};
    struct dt_device_queue *q = suite_queue[t->rank];
    struct dt_tp tp = {.comm = all_of(t, &err), .rank = t->rank, .size = t->size};
    enum { ROWS = 13, WIDTH = 24 };
    float x[ROWS * WIDTH], m[3] = {(float)t->rank, -(float)t->rank, 2.5f};
    double d[2] = {0.5, t->rank};
    int64_t first = dt_tp_first(&tp, ROWS, t->rank), n = dt_tp_count(&tp, ROWS, t->rank);

    (void)seed;
    (void)rounds;
    CHECK(tp.comm);
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)(t->rank + i);
    dt_tp_reduce_scatter(q, &tp, DT_F32, ROWS, WIDTH, x);
    OK(dt_tp_state(&tp, &err));
    for (int64_t i = first * WIDTH; i < (first + n) * WIDTH; i++)
        CHECK(x[i] == (float)(t->size * (t->size - 1) / 2 + t->size * i));
    dt_tp_all_gather(q, &tp, DT_F32, ROWS, WIDTH, x);
    dt_tp_all_reduce(q, &tp, DT_F32, ROWS * WIDTH, x);
    dt_tp_all_reduce_max(q, &tp, 3, m);
    dt_tp_all_reduce_f64(q, &tp, 2, d);
    OK(dt_tp_state(&tp, &err));
    for (int i = 0; i < ROWS * WIDTH; i++)
        CHECK(x[i] == (float)(t->size * (t->size * (t->size - 1) / 2 + t->size * i)));
    CHECK(m[0] == (float)(t->size - 1) && m[1] == 0 && m[2] == 2.5f);
    CHECK(d[0] == 0.5 * t->size && d[1] == t->size * (t->size - 1) / 2);
    dt_tp_all_reduce(q, NULL, DT_F32, 1, x);
out:
    if (tp.comm)
        t->comm_free(tp.comm);
}

/* ---- what goes wrong ---- */

static void size_mismatch(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    static const size_t sent[] = {8, 100, 1 << 20, 5000}, expected[] = {16, 60, 1 << 19, 0};
    static unsigned char of_rank[64][1 << 20]; /* what nobody takes stays under way until close */
    unsigned char *p = of_rank[t->rank];
    struct dt_error err = {0};
    struct dt_req *r;

    (void)seed;
    (void)rounds;
    for (int k = 0; t->size > 1 && k < 4; k++) {
        char a[64], b[64];

        if (t->rank == 0) { /* what the sender hears of it depends on the transport */
            OK(t->post_send(t, 1, 40 + k, p, sent[k], suite_queue[t->rank], &err, &r));
            (void)!dt_transport_wait(t, r, 0.05, NULL, &err);
        } else if (t->rank == 1) {
            OK(t->post_recv(t, 0, 40 + k, p, expected[k], suite_queue[t->rank], &err, &r));
            CHECK(dt_transport_wait(t, r, LIMIT_S, NULL, &err) == DT_ERR_PEER);
            snprintf(a, sizeof(a), " %zu bytes", sent[k]);
            snprintf(b, sizeof(b), " %zu bytes", expected[k]);
            /* of a message in pieces, only those that came so far are counted */
            if (sent[k] > dt_transport_mpi_piece_bytes)
                continue;
            if (!strstr(err.message, a) || !strstr(err.message, b))
                fail(v, t, __func__, err.message);
        }
    }
out:;
}

static void wrong_arguments(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    struct dt_error err = {0};
    struct dt_comm *c = NULL;
    struct dt_req *r = NULL;
    int self = t->rank, none = t->size, twice[2] = {self, self};
    char x = 0;

    (void)seed;
    (void)rounds;
    CHECK(t->post_send(t, t->size, 0, &x, 1, suite_queue[t->rank], &err, &r) == DT_ERR_INTERNAL);
    CHECK(t->post_recv(t, -1, 0, &x, 1, suite_queue[t->rank], &err, &r) == DT_ERR_INTERNAL);
    CHECK(t->post_send(t, 0, -1, &x, 1, suite_queue[t->rank], &err, &r) == DT_ERR_INTERNAL);
    CHECK(t->post_recv(t, 0, 1 << 22, &x, 1, suite_queue[t->rank], &err, &r) == DT_ERR_INTERNAL);
    CHECK(t->comm_new(t, &none, 1, &err, &c) == DT_ERR_INTERNAL);
    CHECK(t->comm_new(t, twice, 2, &err, &c) == DT_ERR_INTERNAL);
    CHECK(t->comm_new(t, NULL, 0, &err, &c) == DT_ERR_INTERNAL);
    OK(t->comm_new(t, &self, 1, &err, &c));
    CHECK(t->post_broadcast(c, 1, &x, 1, suite_queue[t->rank], &err, &r) == DT_ERR_INTERNAL);
    CHECK(r == NULL);
out:
    if (c)
        t->comm_free(c);
}

/* Last, since what timed out stays under way until close. */
static void time_out(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    static char memory; /* in use until close */
    struct dt_error err = {0};
    struct dt_req *r;

    (void)seed;
    (void)rounds;
    OK(t->post_recv(t, (t->rank + 1) % t->size, 1234567, &memory, 1, suite_queue[t->rank], &err,
                    &r));
    CHECK(dt_transport_wait(t, r, 0.02, "the kettle", &err) == DT_ERR_TIMEOUT);
    CHECK(strstr(err.message, "the kettle"));
out:;
}

const struct suite_check transport_checks[] = {
    {"many outstanding", many_outstanding},
    {"sends before receives", sends_before_receives},
    {"broadcast", broadcast},
    {"sums", sums},
    {"gathers", gathers},
    {"crossed waits", crossed_waits},
    {"two threads", two_threads},
    {"tensor parallelism", tensor_parallel},
    {"size mismatch", size_mismatch},
    {"wrong arguments", wrong_arguments},
    {"time out", time_out},
};
const int transport_checks_n = sizeof(transport_checks) / sizeof(transport_checks[0]);

bool transport_suite(struct dt_transport *t, uint64_t seed, int rounds, struct verdict *v)
{
    v->text[0] = '\0';
    for (int k = 0; k < transport_checks_n && !v->text[0]; k++)
        transport_checks[k].run(t, seed + (uint64_t)k, rounds, v);
    return v->text[0] == '\0';
}
