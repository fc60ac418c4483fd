/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Producers in the test's own process, and what a consumer of theirs gets against what the shards have. */
#ifndef DT_TESTS_FEED_FIXTURE_H
#define DT_TESTS_FEED_FIXTURE_H

#include "base/hash.h"
#include "data_fixture.h"
#include "exec/feed/client.h"
#include "exec/feed/server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { SAMPLES = 53 };
static struct dt_error err;
static struct fixture_data data;
static int64_t unread_bytes; /* of producers to be started; 0 = as usual */

static inline struct dt_loader_options options(void)
{
    return fixture_data_options(&data);
}

static inline void begin(void)
{
    fixture_data_open(&data, SAMPLES, 20);
}

static inline void end(void)
{
    fixture_data_close(&data);
}

/* ---- producers in this process ---- */

struct producer {
    struct dt_loader *loader;
    struct dt_feed_net *net;
    struct dt_feed_server *server;
    struct dt_feed_server_report report;
    volatile sig_atomic_t stop;
    atomic_int gone; /* consumers */
    struct dt_warn warn;
    pthread_t thread;
    char address[DT_FEED_ADDRESS_SIZE];
};

static inline void hear(void *ctx, const char *line)
{
    struct producer *p = ctx;

    p->gone += strstr(line, "gone") != NULL;
}

static inline void *serve(void *arg)
{
    struct producer *p = arg;

    dt_feed_server_run(p->server, &p->stop);
    return NULL;
}

static inline void prepare(struct producer *p, const char *address,
                           const struct dt_loader_options *o, const struct dt_feed_keys *keys,
                           int64_t memory)
{
    struct dt_loader_options l = *o;
    struct dt_feed_server_options s = {.workers = 2,
                                       .memory_bytes = memory,
                                       .gone_s = 3,
                                       .unread_bytes = unread_bytes,
                                       .warn = &p->warn};

    memset(p, 0, sizeof *p);
    p->warn = (struct dt_warn){hear, p};
    l.threads = 0;
    dt_assert_ok(dt_loader_open(&l, &err, &p->loader), err);
    dt_assert_ok(dt_loader_job_digest(&l, &err, &s.job), err);
    dt_assert_ok(dt_feed_net_listen(address, keys, &err, &p->net), err);
    dt_feed_net_where(p->net, p->address);
    s.loader = p->loader;
    s.net = p->net;
    dt_assert_ok(dt_feed_server_open(&s, &err, &p->server), err);
}

static inline void run(struct producer *p)
{
    ck_assert_int_eq(pthread_create(&p->thread, NULL, serve, p), 0);
}

static inline void start_at(struct producer *p, const char *address,
                            const struct dt_loader_options *o, const struct dt_feed_keys *keys,
                            int64_t memory)
{
    prepare(p, address, o, keys, memory);
    run(p);
}

static inline void start(struct producer *p, const struct dt_loader_options *o, int64_t memory)
{
    start_at(p, "tcp://127.0.0.1:0", o, NULL, memory);
}

static inline void finish(struct producer *p)
{
    p->stop = 1;
    pthread_join(p->thread, NULL);
    dt_feed_server_report(p->server, &p->report);
    dt_feed_server_close(p->server);
    dt_feed_net_close(p->net);
    dt_loader_close(p->loader);
}

static inline struct dt_feed_client *consumer(const struct dt_loader_options *o,
                                              const char *const *address, int n)
{
    struct dt_feed_client_options c = {
        .address = address, .n = n, .loader = o, .silent_s = 2, .deadline_s = 20};
    struct dt_feed_client *out;

    dt_assert_ok(dt_feed_client_open(&c, &err, &out), err);
    return out;
}

/* ---- what a sequence holds ---- */

static inline uint64_t digest(const struct dt_sequence *s)
{
    uint64_t h = dt_hash_bytes(DT_HASH_START, s->ids, 3 * (size_t)s->seq_len * sizeof *s->ids);

    h = dt_hash_bytes(h, &s->index, sizeof s->index);
    for (int i = 0; i < s->n_docs; i++) {
        h = dt_hash_word(h, s->docs[i].sample);
        h = dt_hash_word(h, (uint64_t)s->docs[i].label);
        h = dt_hash_word(h, s->docs[i].task);
        h = dt_hash_text(h, s->docs[i].name);
    }
    for (int i = 0; i < s->n_items; i++) {
        h = dt_hash_word(h, (uint64_t)s->items[i].w << 32 | (uint64_t)s->items[i].h);
        ck_assert_ptr_nonnull(s->items[i].px);
        h = dt_hash_bytes(h, s->items[i].px, 3 * (size_t)s->items[i].w * (size_t)s->items[i].h);
    }
    return h;
}

static inline void fetch_all(struct dt_feed_client *c, struct dt_sequence *s)
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
        for (int i = 0, k = 0; i < s->n_items; i++)
            if (s->items[i].doc == (uint32_t)d) {
                ck_assert_ptr_null(s->items[i].px);
                s->items[i].px = f[d].doc.image[k].px;
                f[d].doc.image[k++].px = NULL;
            }
        dt_document_free(&f[d].doc);
    }
}

/* Digests of all sequences from the cursor on; `at` is called before each (NULL = nothing). */
static inline int all(struct dt_loader_options o, struct dt_feed_client *c, uint64_t *h,
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

static inline void compare(const struct dt_loader_options *o, struct dt_feed_client *c,
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

#endif
