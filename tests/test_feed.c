/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Documents from producers: frames and their damage, the same sequences as from the shards for any
 * number of producers, sizes first and payload later, producers that die, lie or are of another job,
 * keys, and the bound of a producer's store. */
#include "base/clock.h"
#include "base/hash.h"
#include "data_fixture.h"
#include "exec/data/loader.h"
#include "exec/data/pack.h"
#include "exec/feed/client.h"
#include "exec/feed/server.h"
#include "exec/feed/wire.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

enum { SAMPLES = 53, MAX = 6 };
static struct dt_error err;
static char dir[256];
static struct dt_tokenizer *tok;
static char **shards;
static int n_shards;

static struct dt_loader_options options(void)
{
    return (struct dt_loader_options){.shards = (const char *const *)shards,
                                      .n_shards = n_shards,
                                      .tokenizer = tok,
                                      .seq_len = 96,
                                      .patch = 4,
                                      .generate = 0.4,
                                      .shuffle = true,
                                      .seed = 2385,
                                      .epochs = 2};
}

static void begin(void)
{
    const char *name = dir;

    fixture_folder(dir, sizeof dir);
    fixture_shards(dir, SAMPLES, 20);
    dt_assert_ok(dt_shard_list(&name, 1, &err, &shards, &n_shards), err);
    dt_assert_ok(dt_tokenizer_bytes(&err, &tok), err);
}

static void end(void)
{
    dt_free(shards);
    dt_tokenizer_free(tok);
    fixture_folder_remove(dir);
}

/* ---- producers in this process ---- */

struct producer {
    struct dt_loader *loader;
    struct dt_feed_net *net;
    struct dt_feed_server *server;
    struct dt_feed_server_report report;
    volatile sig_atomic_t stop;
    pthread_t thread;
    char address[DT_FEED_ADDRESS_SIZE];
};

static void *serve(void *arg)
{
    struct producer *p = arg;

    dt_feed_server_run(p->server, &p->stop);
    return NULL;
}

static void start_at(struct producer *p, const char *address, const struct dt_loader_options *o,
                     const struct dt_feed_keys *keys, int64_t memory)
{
    struct dt_loader_options l = *o;
    struct dt_feed_server_options s = {.workers = 2, .memory_bytes = memory};

    memset(p, 0, sizeof *p);
    l.threads = 0;
    dt_assert_ok(dt_loader_open(&l, &err, &p->loader), err);
    dt_assert_ok(dt_loader_job_digest(&l, &err, &s.job), err);
    dt_assert_ok(dt_feed_net_listen(address, keys, &err, &p->net), err);
    dt_feed_net_where(p->net, p->address);
    s.loader = p->loader;
    s.net = p->net;
    dt_assert_ok(dt_feed_server_open(&s, &err, &p->server), err);
    ck_assert_int_eq(pthread_create(&p->thread, NULL, serve, p), 0);
}

static void start(struct producer *p, const struct dt_loader_options *o, int64_t memory)
{
    start_at(p, "tcp://127.0.0.1:0", o, NULL, memory);
}

static void finish(struct producer *p)
{
    p->stop = 1;
    pthread_join(p->thread, NULL);
    dt_feed_server_report(p->server, &p->report);
    dt_feed_server_close(p->server);
    dt_feed_net_close(p->net);
    dt_loader_close(p->loader);
}

static struct dt_feed_client *consumer(const struct dt_loader_options *o,
                                       const char *const *address, int n)
{
    struct dt_feed_client_options c = {
        .address = address, .n = n, .loader = o, .silent_s = 2, .deadline_s = 20};
    struct dt_feed_client *out;

    dt_assert_ok(dt_feed_client_open(&c, &err, &out), err);
    return out;
}

/* ---- what a sequence holds ---- */

static uint64_t digest(const struct dt_sequence *s)
{
    uint64_t h = dt_hash_bytes(DT_HASH_START, s->ids, 3 * (size_t)s->seq_len * sizeof *s->ids);

    h = dt_hash_bytes(h, &s->index, sizeof s->index);
    for (int i = 0; i < s->n_docs; i++) {
        h = dt_hash_word(h, s->docs[i].sample);
        h = dt_hash_word(h, (uint64_t)s->docs[i].label);
        h = dt_hash_word(h, s->docs[i].task);
    }
    for (int i = 0; i < s->n_items; i++) {
        h = dt_hash_word(h, (uint64_t)s->items[i].w << 32 | (uint64_t)s->items[i].h);
        ck_assert_ptr_nonnull(s->items[i].px);
        h = dt_hash_bytes(h, s->items[i].px, 3 * (size_t)s->items[i].w * (size_t)s->items[i].h);
    }
    return h;
}

static void fetch_all(struct dt_feed_client *c, struct dt_sequence *s)
{
    struct dt_feed_fetch f[64];

    ck_assert_int_le(s->n_docs, 64);
    for (int d = 0; d < s->n_docs; d++)
        f[d] = (struct dt_feed_fetch){
            .place = s->docs[d].place, .what = DT_FEED_TEXT | DT_FEED_PIXELS, .bytes = 1000};
    dt_assert_ok(dt_feed_client_fetch(c, f, s->n_docs, &err), err);
    for (int d = 0; d < s->n_docs; d++) {
        if (s->docs[d].text_n > 0) {
            ck_assert(s->docs[d].no_text);
            dt_sequence_put_text(s, d, f[d].doc.text.id);
        }
        for (int i = 0; i < s->n_items; i++)
            if (s->items[i].doc == (uint32_t)d) {
                ck_assert_ptr_null(s->items[i].px);
                s->items[i].px = f[d].doc.px;
                f[d].doc.px = NULL;
            }
        dt_document_free(&f[d].doc);
    }
}

/* Digests of all sequences from the cursor on; `at` is called before each (NULL = nothing). */
static int all(struct dt_loader_options o, struct dt_feed_client *c, uint64_t *h,
               void (*at)(void *, int), void *ctx, struct dt_data_report *report)
{
    struct dt_loader *l;
    struct dt_sequence *s;
    int n = 0;

    if (c)
        o.source = dt_feed_client_source(c);
    dt_assert_ok(dt_loader_open(&o, &err, &l), err);
    for (;; n++) {
        if (at)
            at(ctx, n);
        dt_assert_ok(dt_loader_next(l, &err, &s), err);
        if (!s)
            break;
        ck_assert_int_lt(n, 4 * SAMPLES);
        if (c)
            fetch_all(c, s);
        h[n] = digest(s);
        dt_sequence_free(s);
    }
    dt_loader_report(l, report);
    dt_loader_close(l);
    return n;
}

static void compare(const struct dt_loader_options *o, struct dt_feed_client *c,
                    void (*at)(void *, int), void *ctx)
{
    static uint64_t own[4 * SAMPLES], fed[4 * SAMPLES];
    struct dt_data_report r[2];
    int n = all(*o, NULL, own, NULL, NULL, &r[0]);

    ck_assert_int_gt(n, 10);
    ck_assert_int_eq(all(*o, c, fed, at, ctx, &r[1]), n);
    for (int i = 0; i < n; i++)
        ck_assert_msg(own[i] == fed[i], "sequence %d is not the same", i);
    ck_assert_mem_eq(r[0].bad, r[1].bad, sizeof r[0].bad);
    ck_assert_mem_eq(r[0].example, r[1].example, sizeof r[0].example);
    ck_assert_int_eq(r[0].documents, r[1].documents);
    ck_assert_int_eq(r[0].captions_cut, r[1].captions_cut);
}

START_TEST(same_sequences)
{
    static const int counts[] = {1, 2, 5};
    struct producer p[MAX];
    const char *address[MAX];
    struct dt_loader_options o = options();
    struct dt_feed_client_report r;
    struct dt_feed_client *c;
    int n = counts[_i];

    if (n == 2)
        o.seq_len = 40; /* some images are too long: bad samples, with their examples */
    for (int i = 0; i < n; i++) {
        start(&p[i], &o, 0);
        address[i] = p[i].address;
    }
    c = consumer(&o, address, n);
    compare(&o, c, NULL, NULL);
    dt_feed_client_report(c, &r);
    ck_assert_int_eq(r.failures, 0);
    ck_assert_int_eq(r.moved, 0);
    dt_feed_client_close(c);
    for (int i = 0; i < n; i++) {
        finish(&p[i]);
        ck_assert_int_gt(p[i].report.made, 0);
        ck_assert_int_eq(p[i].report.refused, 0);
    }
}
END_TEST

START_TEST(resumes_anywhere)
{
    struct producer p;
    const char *address[1];
    struct dt_loader_options o = options();
    struct dt_sequence *s;
    struct dt_feed_client *c;
    struct dt_loader *l;

    dt_assert_ok(dt_loader_open(&o, &err, &l), err);
    for (int i = 0; i < 9; i++) {
        dt_assert_ok(dt_loader_next(l, &err, &s), err);
        dt_sequence_free(s);
    }
    dt_loader_cursor(l, &o.cursor);
    dt_loader_close(l);
    ck_assert_int_gt(o.cursor.position, 9);
    start(&p, &o, 0);
    address[0] = p.address;
    c = consumer(&o, address, 1);
    compare(&o, c, NULL, NULL);
    dt_feed_client_close(c);
    finish(&p);
}
END_TEST

/* A producer that keeps next to nothing makes again what it is asked for again. */
START_TEST(little_memory)
{
    struct producer p[2];
    const char *address[2];
    struct dt_loader_options o = options();
    struct dt_feed_client *c;

    for (int i = 0; i < 2; i++) {
        start(&p[i], &o, 5000);
        address[i] = p[i].address;
    }
    c = consumer(&o, address, 2);
    compare(&o, c, NULL, NULL);
    dt_feed_client_close(c);
    for (int i = 0; i < 2; i++) {
        finish(&p[i]);
        ck_assert_int_gt(p[i].report.made, SAMPLES);
        ck_assert_int_lt(p[i].report.most_bytes, 5000 + 3 * 64 * 64 + 4000);
    }
}
END_TEST

/* ---- faults ---- */

struct plot {
    struct producer p[3];
    struct dt_loader_options o;
    bool gone[3];
};

static void kill_and_restart(void *ctx, int n)
{
    struct plot *t = ctx;

    if (n == 6 || n == 12) {
        finish(&t->p[n / 6]);
        t->gone[n / 6] = true;
    }
    if (n == 18) {
        char address[DT_FEED_ADDRESS_SIZE];

        memcpy(address, t->p[1].address, sizeof address);
        start_at(&t->p[1], address, &t->o, NULL, 0);
        t->gone[1] = false;
    }
}

START_TEST(producers_die_and_return)
{
    struct plot t = {.o = options()};
    struct dt_feed_client_report r;
    const char *address[3];
    struct dt_feed_client *c;

    for (int i = 0; i < 3; i++) {
        start(&t.p[i], &t.o, 0);
        address[i] = t.p[i].address;
    }
    c = consumer(&t.o, address, 3);
    compare(&t.o, c, kill_and_restart, &t);
    dt_feed_client_report(c, &r);
    ck_assert_int_ge(r.failures, 1);
    ck_assert_int_ge(r.moved, 1);
    dt_feed_client_close(c);
    for (int i = 0; i < 3; i++)
        if (!t.gone[i])
            finish(&t.p[i]);
}
END_TEST

/* Speaks the protocol, and lies. */
struct liar {
    struct dt_feed_net *net;
    volatile sig_atomic_t stop;
    pthread_t thread;
    struct dt_feed_head head;
    int64_t samples;
    int how, lies;
    char address[DT_FEED_ADDRESS_SIZE];
};
enum { WRONG_CHECKSUM, CUT_SHORT, OTHER_TOKENS, OTHER_PLACE_DATA, HUGE_IMAGE, LIES };

static void lie(struct liar *l, const struct dt_feed_peer *to, const struct dt_feed_frame *f)
{
    static struct dt_feed_ask a;
    int32_t id[1] = {l->how == OTHER_TOKENS ? 1 << 20 : 65};
    struct dt_document d = {.task = DT_TASK_GENERATE, .text = {.id = id, .n = 1}, .w = 4, .h = 4};
    struct dt_feed_bytes b = {.n = 0};
    struct dt_feed_head h = l->head;

    dt_assert_ok(dt_feed_decode_ask(f, &err, &a), err);
    h.request = f->head.request;
    h.data += l->how == OTHER_PLACE_DATA;
    d.place = a.place[0];
    d.w = l->how == HUGE_IMAGE ? 1 << 20 : 4;
    dt_assert_ok(
        dt_feed_encode_document(&h, &d, l->how == OTHER_TOKENS ? DT_FEED_TEXT : 0, &err, &b), err);
    if (l->how == WRONG_CHECKSUM)
        b.p[b.n - 1] ^= 1;
    if (l->how == CUT_SHORT)
        b.n -= 3;
    dt_feed_net_send(l->net, to, b.p, b.n);
    l->lies++;
    dt_feed_bytes_free(&b);
}

static void *tell_lies(void *arg)
{
    struct liar *l = arg;

    while (!l->stop) {
        struct dt_feed_welcome w = {.samples = l->samples};
        struct dt_feed_bytes b = {.n = 0};
        struct dt_feed_peer from;
        struct dt_feed_frame f;
        const uint8_t *p;
        size_t n;

        if (!dt_feed_net_recv(l->net, -1, 50, &from, &p, &n))
            continue;
        dt_assert_ok(dt_feed_open(p, n, &err, &f), err);
        if (f.head.kind == DT_FEED_ASK) {
            lie(l, &from, &f);
            continue;
        }
        dt_assert_ok(dt_feed_encode_welcome(&l->head, &w, &err, &b), err);
        dt_feed_net_send(l->net, &from, b.p, b.n);
        dt_feed_bytes_free(&b);
    }
    return NULL;
}

START_TEST(liars_are_found)
{
    struct liar l = {.how = _i, .samples = SAMPLES};
    struct producer p;
    const char *address[2];
    struct dt_loader_options o = options();
    struct dt_feed_client_report r;
    struct dt_feed_client *c;

    start(&p, &o, 0);
    dt_assert_ok(dt_loader_job_digest(&o, &err, &l.head.job), err);
    l.head.data = dt_loader_data(p.loader);
    l.samples = dt_loader_samples(p.loader);
    dt_assert_ok(dt_feed_net_listen("tcp://127.0.0.1:0", NULL, &err, &l.net), err);
    dt_feed_net_where(l.net, l.address);
    ck_assert_int_eq(pthread_create(&l.thread, NULL, tell_lies, &l), 0);
    address[0] = l.address;
    address[1] = p.address;
    c = consumer(&o, address, 2);
    compare(&o, c, NULL, NULL);
    dt_feed_client_report(c, &r);
    dt_feed_client_close(c);
    l.stop = 1;
    pthread_join(l.thread, NULL);
    dt_feed_net_close(l.net);
    finish(&p);
    ck_assert_int_ge(l.lies, r.failures);
    if (l.lies > 0)
        ck_assert_int_ge(r.failures, 1);
}
END_TEST

/* However often it greets. */
START_TEST(a_liar_alone_ends_the_job)
{
    struct liar l = {.how = WRONG_CHECKSUM, .head = {.data = 7}, .samples = SAMPLES};
    struct dt_loader_options o = options();
    const char *address[1] = {l.address};
    struct dt_feed_client_options co = {
        .address = address, .n = 1, .loader = &o, .silent_s = 2, .deadline_s = 3};
    struct dt_feed_client *c;
    struct dt_document d;

    dt_assert_ok(dt_loader_job_digest(&o, &err, &l.head.job), err);
    dt_assert_ok(dt_feed_net_listen("tcp://127.0.0.1:0", NULL, &err, &l.net), err);
    dt_feed_net_where(l.net, l.address);
    ck_assert_int_eq(pthread_create(&l.thread, NULL, tell_lies, &l), 0);
    dt_assert_ok(dt_feed_client_open(&co, &err, &c), err);
    ck_assert_int_eq(dt_feed_client_source(c)->take(c, 0, &err, &d), DT_ERR_PEER);
    ck_assert_ptr_nonnull(strstr(err.message, l.address));
    ck_assert_ptr_nonnull(strstr(err.message, "checksum"));
    dt_feed_client_close(c);
    l.stop = 1;
    pthread_join(l.thread, NULL);
    dt_feed_net_close(l.net);
}
END_TEST

START_TEST(another_job_is_refused)
{
    struct producer p;
    struct dt_loader_options o = options(), other = options();
    const char *address[1] = {p.address};
    struct dt_feed_client_options c = {.address = address, .n = 1, .loader = &o, .deadline_s = 20};
    struct dt_feed_client *out;

    other.seed++;
    start(&p, &other, 0);
    ck_assert_int_eq(dt_feed_client_open(&c, &err, &out), DT_ERR_PEER);
    ck_assert_ptr_nonnull(strstr(err.message, "another job"));
    ck_assert_ptr_nonnull(strstr(err.message, p.address));
    finish(&p);
}
END_TEST

START_TEST(nobody_there)
{
    struct dt_loader_options o = options();
    const char *address[1] = {"tcp://127.0.0.1:1"};
    struct dt_feed_client_options c = {
        .address = address, .n = 1, .loader = &o, .deadline_s = 1.5, .silent_s = 0.5};
    struct dt_feed_client *out;
    uint64_t t0 = dt_clock_ns();

    ck_assert_int_eq(dt_feed_client_open(&c, &err, &out), DT_ERR_PEER);
    ck_assert_ptr_nonnull(strstr(err.message, "tcp://127.0.0.1:1"));
    ck_assert_uint_lt(dt_clock_ns() - t0, UINT64_C(20000000000));
    address[0] = "tcp://192.0.2.1:7070"; /* not this machine: only with keys */
    ck_assert_int_eq(dt_feed_client_open(&c, &err, &out), DT_ERR_INPUT);
}
END_TEST

/* ---- keys ---- */

START_TEST(keys_open_the_door)
{
    static struct dt_feed_keys server, client, stranger;
    char path[300], train[320], other[320];
    struct dt_loader_options o = options();
    struct producer p;
    const char *address[1] = {p.address};
    struct dt_feed_client_options c = {
        .address = address, .n = 1, .loader = &o, .deadline_s = 2, .silent_s = 1};
    struct dt_feed_client *out;

    snprintf(path, sizeof path, "%s/keys", dir);
    snprintf(train, sizeof train, "%s/keys.train", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    dt_assert_ok(dt_feed_keys_make(path, &err), err);
    ck_assert_int_eq(dt_feed_keys_make(path, &err), DT_ERR_INPUT); /* never replaced */
    dt_assert_ok(dt_feed_keys_make(other, &err), err);
    dt_assert_ok(dt_feed_keys_read(path, &err, &server), err);
    dt_assert_ok(dt_feed_keys_read(train, &err, &client), err);
    ck_assert_str_eq(server.own, client.peer[0]);
    ck_assert_str_eq(client.own, server.peer[0]);
    dt_assert_ok(dt_feed_keys_read(other, &err, &stranger), err);
    memcpy(stranger.peer[0], server.own, sizeof stranger.peer[0]);
    start_at(&p, "tcp://127.0.0.1:0", &o, &server, 0);
    ck_assert_int_eq(dt_feed_client_open(&c, &err, &out), DT_ERR_PEER); /* plain */
    c.keys = &stranger;
    ck_assert_int_eq(dt_feed_client_open(&c, &err, &out), DT_ERR_PEER);
    ck_assert_ptr_nonnull(strstr(err.message, "key"));
    c.keys = &client;
    c.deadline_s = 20;
    dt_assert_ok(dt_feed_client_open(&c, &err, &out), err);
    compare(&o, out, NULL, NULL);
    dt_feed_client_close(out);
    finish(&p);
    ck_assert_int_eq(chmod(path, 0644), 0);
    ck_assert_int_eq(dt_feed_keys_read(path, &err, &server), DT_ERR_INPUT);
}
END_TEST

/* ---- frames ---- */

START_TEST(damage_is_seen)
{
    int32_t id[3] = {1, 2, 3};
    uint8_t px[12] = {9, 8, 7};
    struct dt_document d = {.task = DT_TASK_GENERATE,
                            .text = {.id = id, .n = 3},
                            .w = 2,
                            .h = 2,
                            .px = px,
                            .sample = 4,
                            .label = -1,
                            .place = 77};
    struct dt_feed_limits l = {.seq_len = 32, .patch = 4, .vocab = 10, .samples = 5};
    struct dt_feed_head h = {.request = 5, .job = 6, .data = 7};
    struct dt_feed_bytes b = {.n = 0};
    struct dt_feed_frame f;
    struct dt_document back;
    int what;

    dt_assert_ok(dt_feed_encode_document(&h, &d, DT_FEED_TEXT | DT_FEED_PIXELS, &err, &b), err);
    dt_assert_ok(dt_feed_open(b.p, b.n, &err, &f), err);
    ck_assert(f.head.request == 5 && f.head.job == 6 && f.head.data == 7);
    dt_assert_ok(dt_feed_decode_document(&f, &l, &err, &what, &back), err);
    ck_assert_int_eq(what, DT_FEED_TEXT | DT_FEED_PIXELS);
    ck_assert_mem_eq(back.px, px, 12);
    ck_assert_mem_eq(back.text.id, id, sizeof id);
    ck_assert(back.place == 77 && back.sample == 4 && back.label == -1 && back.w == 2);
    dt_document_free(&back);
    for (size_t bit = 0; bit < 8 * b.n; bit++) { /* every single bit */
        b.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert_int_eq(dt_feed_open(b.p, b.n, &err, &f), DT_ERR_INPUT);
        b.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < b.n; n++)
        ck_assert_int_eq(dt_feed_open(b.p, n, &err, &f), DT_ERR_INPUT);
    dt_assert_ok(dt_feed_open(b.p, b.n, &err, &f), err);
    l.vocab = 3; /* id 3 is one too many */
    ck_assert_int_eq(dt_feed_decode_document(&f, &l, &err, &what, &back), DT_ERR_INPUT);
    l.vocab = 10;
    l.samples = 4;
    ck_assert_int_eq(dt_feed_decode_document(&f, &l, &err, &what, &back), DT_ERR_INPUT);
    dt_feed_bytes_free(&b);
}
END_TEST

START_TEST(addresses)
{
    char out[DT_FEED_ADDRESS_SIZE];
    bool here;

    dt_assert_ok(dt_feed_address("127.0.0.1:7", &err, out, &here), err);
    ck_assert_str_eq(out, "tcp://127.0.0.1:7");
    ck_assert(here);
    dt_assert_ok(dt_feed_address("tcp://[::1]:70", &err, out, &here), err);
    ck_assert(here);
    dt_assert_ok(dt_feed_address("127.evil.example:7", &err, out, &here), err);
    ck_assert(!here);
    dt_assert_ok(dt_feed_address("cpu7:7070", &err, out, &here), err);
    ck_assert(!here);
    ck_assert_int_eq(dt_feed_address("cpu7", &err, out, &here), DT_ERR_INPUT);
    ck_assert_int_eq(dt_feed_address("cpu7:70000", &err, out, &here), DT_ERR_INPUT);
    ck_assert_int_eq(dt_feed_address("ipc:///tmp/x:1", &err, out, &here), DT_ERR_INPUT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("feed");
    TCase *frames = dt_test_case(s, "frames", 60);

    tcase_add_test(frames, damage_is_seen);
    tcase_add_test(frames, addresses);
    if (dt_feed_net_works()) {
        TCase *c = dt_test_case(s, "producers", 300);

        tcase_add_checked_fixture(c, begin, end);
        tcase_add_loop_test(c, same_sequences, 0, 3);
        tcase_add_test(c, resumes_anywhere);
        tcase_add_test(c, little_memory);
        tcase_add_test(c, producers_die_and_return);
        tcase_add_loop_test(c, liars_are_found, 0, LIES);
        tcase_add_test(c, a_liar_alone_ends_the_job);
        tcase_add_test(c, another_job_is_refused);
        tcase_add_test(c, nobody_there);
        tcase_add_test(c, keys_open_the_door);
    }
    return dt_test_run(s);
}
