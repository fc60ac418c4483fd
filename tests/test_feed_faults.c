/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Producers that die, are replaced, lie; consumers that die, or ask for too much. */
#include "exec/feed/wire.h"
#include "feed_fixture.h"

#include <time.h>

/* ---- producers that die ---- */

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

static void *run_late(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    run(arg);
    return NULL;
}

/* What is asked meanwhile would be dealt among the others, and made twice. */
START_TEST(the_last_to_answer_is_waited_for)
{
    struct dt_loader_options o = options();
    struct dt_feed_client_report r;
    struct producer p[2];
    const char *address[2] = {p[0].address, p[1].address};
    struct dt_feed_client *c;
    pthread_t late;

    start(&p[0], &o, 0);
    prepare(&p[1], "tcp://127.0.0.1:0", &o, NULL, 0);
    ck_assert_int_eq(pthread_create(&late, NULL, run_late, &p[1]), 0);
    c = consumer(&o, address, 2);
    dt_feed_client_report(c, &r);
    ck_assert_int_eq(r.up, 2);
    pthread_join(late, NULL);
    compare(&o, c, NULL, NULL);
    dt_feed_client_close(c);
    for (int i = 0; i < 2; i++)
        finish(&p[i]);
}
END_TEST

/* ---- consumers that are not to be trusted ---- */

struct raw { /* speaks the protocol by hand */
    struct dt_feed_net *net;
    struct dt_feed_head head;
    int64_t received;
};

static void raw_open(struct raw *r, const struct producer *p)
{
    struct dt_loader_options o = options();
    struct dt_feed_bytes b = {.n = 0};

    *r = (struct raw){.head = {.request = 0}};
    dt_assert_ok(dt_loader_job_digest(&o, &err, &r->head.job), err);
    dt_assert_ok(dt_feed_net_new(1, &err, &r->net), err);
    dt_assert_ok(dt_feed_net_connect(r->net, 0, p->address, NULL, &err), err);
    dt_assert_ok(dt_feed_encode_hello(&r->head, &err, &b), err);
    ck_assert(dt_feed_net_send(r->net, &(struct dt_feed_peer){.n = 2}, b.p, b.n));
    r->head.data = dt_loader_data(p->loader);
    dt_feed_bytes_free(&b);
}

/* Places [first, first + n) with all that they have; nothing before `first` any more. */
static void raw_ask(struct raw *r, int64_t first, int n)
{
    static struct dt_feed_ask a;
    struct dt_feed_bytes b = {.n = 0};

    a.released = first;
    a.received = r->received;
    for (a.n = 0; a.n < n; a.n++) {
        a.place[a.n] = first + a.n;
        a.what[a.n] = DT_FEED_TEXT | DT_FEED_PIXELS;
    }
    dt_assert_ok(dt_feed_encode_ask(&r->head, &a, &err, &b), err);
    ck_assert(dt_feed_net_send(r->net, &(struct dt_feed_peer){.n = 2}, b.p, b.n));
    dt_feed_bytes_free(&b);
}

/* Frames of that kind among the next n; a test that hangs is ended by its time limit. */
static int raw_hear(struct raw *r, enum dt_feed_kind kind, int n)
{
    int found = 0;

    for (int i = 0; i < n;) {
        struct dt_feed_peer from;
        struct dt_feed_frame f;
        const uint8_t *p;
        size_t len;

        if (!dt_feed_net_recv(r->net, -1, 100, &from, &p, &len))
            continue;
        dt_assert_ok(dt_feed_open(p, len, &err, &f), err);
        r->received += (int64_t)len;
        found += f.head.kind == kind;
        i++;
    }
    return found;
}

START_TEST(a_dead_consumer_holds_nothing)
{
    struct dt_loader_options o = options();
    struct raw dead, alive;
    struct producer p;

    start(&p, &o, 0);
    raw_open(&dead, &p);
    raw_open(&alive, &p);
    raw_ask(&dead, 0, SAMPLES);
    ck_assert_int_eq(raw_hear(&dead, DT_FEED_DOCUMENT, 4), 3);
    raw_ask(&alive, SAMPLES - 1, 1); /* all but the last could go, but for the other */
    ck_assert_int_eq(raw_hear(&alive, DT_FEED_DOCUMENT, 2), 1);
    dt_feed_net_close(dead.net);
    for (int i = 0; p.gone < 1; i++) { /* until the test's limit */
        raw_ask(&alive, SAMPLES - 1, 1);
        ck_assert_int_eq(raw_hear(&alive, DT_FEED_DOCUMENT, 1), 1);
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    finish(&p);
    dt_feed_net_close(alive.net);
    ck_assert_int_eq(p.gone, 1);
    ck_assert_int_eq(p.report.consumers, 1);
    ck_assert_int_eq(p.report.open, 0);
    ck_assert_int_ge(p.report.made, SAMPLES);
    ck_assert_int_gt(p.report.most_bytes, SAMPLES * (int64_t)sizeof(struct dt_document));
    ck_assert_int_lt(p.report.bytes, p.report.most_bytes / 10); /* one document of 53 */
}
END_TEST

/* All is asked before the producer begins to serve. */
START_TEST(wants_are_bounded)
{
    struct dt_loader_options o = options();
    struct producer p;
    struct raw r, liar;
    int asks = DT_FEED_OPEN_MAX / DT_FEED_ASK_MAX + 5;

    prepare(&p, "tcp://127.0.0.1:0", &o, NULL, 0);
    raw_open(&r, &p);
    for (int i = 0; i < asks; i++)
        raw_ask(&r, 256 * i, 256);
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); /* until they are there */
    run(&p);
    ck_assert_int_eq(raw_hear(&r, DT_FEED_REFUSE, 1 + 5), 5);
    ck_assert_int_eq(raw_hear(&r, DT_FEED_DOCUMENT, DT_FEED_OPEN_MAX), DT_FEED_OPEN_MAX);
    raw_open(&liar, &p);
    liar.received = 1 << 20;
    raw_ask(&liar, 0, 1);
    ck_assert_int_eq(raw_hear(&liar, DT_FEED_REFUSE, 2), 1);
    dt_feed_net_close(liar.net);
    dt_feed_net_close(r.net);
    finish(&p);
    ck_assert_int_eq(p.report.refused, 6);
}
END_TEST

/* What is sent and not said to be read stays below the bound, and its consumer is given up; one that
 * says what it has read gets any number of times as much. */
START_TEST(unread_bytes_are_bounded)
{
    enum { BOUND = 60000 };
    struct dt_loader_options o = options();
    struct raw silent, honest;
    int64_t all = 0;
    struct producer p;

    unread_bytes = BOUND;
    start(&p, &o, 0);
    unread_bytes = 0;
    raw_open(&honest, &p);
    ck_assert_int_eq(raw_hear(&honest, DT_FEED_WELCOME, 1), 1);
    while (all < 4 * BOUND) {
        raw_ask(&honest, 0, 10);
        ck_assert_int_eq(raw_hear(&honest, DT_FEED_DOCUMENT, 10), 10);
        all = honest.received;
    }
    ck_assert_int_eq(p.gone, 0);
    raw_open(&silent, &p);
    for (int i = 0; i < 10; i++) { /* 100 documents: more than the bound, as the other has seen */
        silent.received = 0;
        raw_ask(&silent, 0, 10);
    }
    for (int i = 0; p.gone < 1; i++) { /* until the test's limit; the other is served on */
        raw_ask(&honest, 0, 1);
        ck_assert_int_eq(raw_hear(&honest, DT_FEED_DOCUMENT, 1), 1);
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    for (int i = 0; i < 10; i++) { /* not heard, or the count would begin anew */
        raw_ask(&silent, 0, 10);
        raw_ask(&honest, 0, 1);
        ck_assert_int_eq(raw_hear(&honest, DT_FEED_DOCUMENT, 1), 1);
    }
    finish(&p);
    ck_assert_int_eq(p.gone, 1);
    ck_assert_int_gt(all, 4 * BOUND - 1);
    ck_assert_int_eq(p.report.consumers, 1);
    ck_assert_int_le(p.report.sent_bytes - honest.received, BOUND);
    ck_assert_int_gt(p.report.sent_bytes - honest.received, BOUND - 5000); /* one document less */
    dt_feed_net_close(silent.net);
    dt_feed_net_close(honest.net);
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
    struct producer heir;
};
enum { WRONG_CHECKSUM, CUT_SHORT, OTHER_TOKENS, OTHER_PLACE_DATA, HUGE_IMAGE, LIES, LEAVES = LIES };

static void lie(struct liar *l, const struct dt_feed_peer *to, const struct dt_feed_frame *f)
{
    static struct dt_feed_ask a;
    int32_t id[1] = {l->how == OTHER_TOKENS ? 1 << 20 : 65};
    struct dt_document_image image = {.w = l->how == HUGE_IMAGE ? 1 << 20 : 4, .h = 4};
    struct dt_document d = {
        .task = DT_TASK_GENERATE, .text = {.id = id, .n = 1}, .image = &image, .n_images = 1};
    struct dt_feed_bytes b = {.n = 0};
    struct dt_feed_head h = l->head;

    dt_assert_ok(dt_feed_decode_ask(f, &err, &a), err);
    h.request = f->head.request;
    h.data += l->how == OTHER_PLACE_DATA;
    d.place = a.place[0];
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
        if (f.head.kind == DT_FEED_ASK && l->how == LEAVES) {
            struct dt_loader_options o = options();

            dt_feed_net_close(l->net);
            start_at(&l->heir, l->address, &o, NULL, 0);
            break;
        }
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

/* ZeroMQ connects to the heir by itself, which knows nothing of what was asked: nothing but asking
 * again helps here, since nobody is late before the deadline. */
START_TEST(replaced_behind_the_connection)
{
    static struct liar l = {.how = LEAVES};
    struct dt_loader_options o = options();
    const char *address[1] = {l.address};
    struct dt_feed_client_options co = {
        .address = address, .n = 1, .loader = &o, .silent_s = 10, .late_s = 1000, .deadline_s = 20};
    struct dt_feed_client_report r;
    struct dt_feed_client *c;
    struct dt_loader *shards;

    dt_assert_ok(dt_loader_open(&o, &err, &shards), err);
    l.samples = dt_loader_samples(shards);
    l.head.data = dt_loader_data(shards);
    dt_loader_close(shards);
    dt_assert_ok(dt_loader_job_digest(&o, &err, &l.head.job), err);
    dt_assert_ok(dt_feed_net_listen("tcp://127.0.0.1:0", NULL, &err, &l.net), err);
    dt_feed_net_where(l.net, l.address);
    ck_assert_int_eq(pthread_create(&l.thread, NULL, tell_lies, &l), 0);
    dt_assert_ok(dt_feed_client_open(&co, &err, &c), err);
    compare(&o, c, NULL, NULL);
    dt_feed_client_report(c, &r);
    ck_assert_int_eq(r.failures, 1);
    dt_feed_client_close(c);
    pthread_join(l.thread, NULL);
    finish(&l.heir);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("feed_faults");
    TCase *c;

    if (!dt_feed_net_works())
        return 77;
    c = dt_test_case(s, "faults", 300);
    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, producers_die_and_return);
    tcase_add_test(c, the_last_to_answer_is_waited_for);
    tcase_add_test(c, replaced_behind_the_connection);
    tcase_add_test(c, a_dead_consumer_holds_nothing);
    tcase_add_test(c, wants_are_bounded);
    tcase_add_test(c, unread_bytes_are_bounded);
    tcase_add_loop_test(c, liars_are_found, 0, LIES);
    tcase_add_test(c, a_liar_alone_ends_the_job);
    return dt_test_run(s);
}
