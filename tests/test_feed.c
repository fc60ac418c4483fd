/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Documents from producers: frames and their damage, the same sequences as from the shards for any
 * number of producers, sizes first and payload later, keys, and the bound of a producer's store. */
#include "base/clock.h"
#include "exec/feed/wire.h"
#include "feed_fixture.h"

#include <math.h>
#include <sys/stat.h>

enum { MAX = 6 };

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

/* Frames of videos travel as the images of one document. */
START_TEST(videos)
{
    struct dt_loader_options o = options();
    struct dt_shard_writer *w;
    struct dt_feed_client *c;
    const char *address[1], *paths[1];
    char prefix[300], path[320], key[16], text[32], ext[5][16];
    struct producer p;

    snprintf(prefix, sizeof prefix, "%s/video", data.dir);
    snprintf(path, sizeof path, "%s-000000.tar", prefix);
    dt_assert_ok(dt_shard_writer_open(prefix, 100, INT64_MAX, false, &err, &w), err);
    for (int i = 0; i < 31; i++) {
        struct dt_shard_member m[6];
        int n = i % 5;

        for (int k = 0; k <= n; k++) {
            struct dt_image img = fixture_picture(8 + i % 3 * 4, 8 + k * 4, i + k);

            snprintf(ext[k], sizeof ext[k], n == 0 ? "png" : "%04d.png", 9 - k);
            m[k].ext = ext[k];
            m[k].data = fixture_png(&img, &m[k].len);
            dt_image_free(&img);
        }
        snprintf(key, sizeof key, "%02d", i);
        snprintf(text, sizeof text, "video %d", i);
        m[n + 1] = (struct dt_shard_member){"txt", (uint8_t *)text, strlen(text)};
        dt_assert_ok(dt_shard_write(w, key, m, n + 2, &err), err);
        for (int k = 0; k <= n; k++)
            dt_free((void *)(uintptr_t)m[k].data);
    }
    dt_assert_ok(dt_shard_writer_close(w, &err, NULL), err);
    paths[0] = path;
    o.shards = paths;
    o.n_shards = 1;
    o.frames.most = 3;
    start(&p, &o, 0);
    address[0] = p.address;
    c = consumer(&o, address, 1);
    compare(&o, c, NULL, NULL);
    dt_feed_client_close(c);
    finish(&p);
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

    snprintf(path, sizeof path, "%s/keys", data.dir);
    snprintf(train, sizeof train, "%s/keys.train", data.dir);
    snprintf(other, sizeof other, "%s/other", data.dir);
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
    struct dt_document_image image = {.w = 2, .h = 2, .px = px};
    struct dt_document d = {.task = DT_TASK_GENERATE,
                            .text = {.id = id, .n = 3},
                            .image = &image,
                            .n_images = 1,
                            .name = "a.tar:b\x1b[2J",
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
    ck_assert_mem_eq(back.image[0].px, px, 12);
    ck_assert_str_eq(back.name, "a.tar:b?[2J"); /* nothing that a terminal obeys */
    ck_assert_mem_eq(back.text.id, id, sizeof id);
    ck_assert(back.place == 77 && back.sample == 4 && back.label == -1 && back.image[0].w == 2);
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

/* Its values are what they were to the bit, and only who reads sounds takes it. */
START_TEST(a_sound_is_sent_whole)
{
    enum { BINS = 16, FRAMES = 37, PATCHES = 9 * 4 };
    float px[FRAMES * BINS];
    struct dt_document_image sound = {.w = BINS, .h = FRAMES, .tokens = PATCHES, .px = px};
    struct dt_document d = {.task = DT_TASK_CAPTION,
                            .sound = true,
                            .clip_cut = true,
                            .image = &sound,
                            .n_images = 1,
                            .label = -1};
    struct dt_feed_limits l = {
        .seq_len = 64, .patch = 4, .mel_bins = BINS, .vocab = 10, .samples = 1};
    struct dt_feed_head h = {.request = 5, .job = 6, .data = 7};
    struct dt_feed_bytes b = {.n = 0};
    struct dt_feed_frame f;
    struct dt_document back;
    int what;

    for (int i = 0; i < FRAMES * BINS; i++)
        px[i] = (float)sin(i) / 3;
    dt_assert_ok(dt_feed_encode_document(&h, &d, DT_FEED_PIXELS, &err, &b), err);
    ck_assert_uint_gt(b.n, sizeof px);
    dt_assert_ok(dt_feed_open(b.p, b.n, &err, &f), err);
    dt_assert_ok(dt_feed_decode_document(&f, &l, &err, &what, &back), err);
    ck_assert(back.sound && back.clip_cut && !back.cut && back.n_images == 1);
    ck_assert(back.image[0].w == BINS && back.image[0].h == FRAMES);
    ck_assert_int_eq(back.image[0].tokens, PATCHES);
    ck_assert_mem_eq(back.image[0].px, px, sizeof px);
    dt_document_free(&back);
    l.mel_bins = 32;
    ck_assert_int_eq(dt_feed_decode_document(&f, &l, &err, &what, &back), DT_ERR_INPUT);
    l.mel_bins = 0;
    ck_assert_int_eq(dt_feed_decode_document(&f, &l, &err, &what, &back), DT_ERR_INPUT);
    l.mel_bins = BINS;
    px[100] = NAN;
    dt_assert_ok(dt_feed_encode_document(&h, &d, DT_FEED_PIXELS, &err, &b), err);
    dt_assert_ok(dt_feed_open(b.p, b.n, &err, &f), err);
    ck_assert_int_eq(dt_feed_decode_document(&f, &l, &err, &what, &back), DT_ERR_INPUT);
    sound.h = 8 * FRAMES; /* more patches than a sequence has */
    dt_assert_ok(dt_feed_encode_document(&h, &d, 0, &err, &b), err);
    dt_assert_ok(dt_feed_open(b.p, b.n, &err, &f), err);
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
    tcase_add_test(frames, a_sound_is_sent_whole);
    tcase_add_test(frames, addresses);
    if (dt_feed_net_works()) {
        TCase *c = dt_test_case(s, "producers", 300);

        tcase_add_checked_fixture(c, begin, end);
        tcase_add_loop_test(c, same_sequences, 0, 3);
        tcase_add_test(c, resumes_anywhere);
        tcase_add_test(c, little_memory);
        tcase_add_test(c, videos);
        tcase_add_test(c, another_job_is_refused);
        tcase_add_test(c, nobody_there);
        tcase_add_test(c, keys_open_the_door);
    }
    return dt_test_run(s);
}
