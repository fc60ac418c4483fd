/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The loader over samples that are damaged, incomplete or too large. */
#include "core/model/samples.h"
#include "exec/data/pack.h"
#include "loader_fixture.h"

static void bad_shard(char *path, size_t size)
{
    struct dt_image img = fixture_picture(20, 20, 0);
    size_t len;
    uint8_t *png = fixture_png(&img, &len);
    const uint8_t *text = (const uint8_t *)"fine";
    uint8_t *huge = dt_malloc(len);
    struct dt_shard_writer *w;
    char prefix[512];
    int n;

    memcpy(huge, png, len);
    memcpy(huge + 16, "\0\1\0\0\0\1\0\0\x08\x02\0\0\0", 13); /* 65,536 squared; its checksum */
    memcpy(huge + 29, "\xe3\xe6\xa7\xb4", 4);
    snprintf(prefix, sizeof prefix, "%s/bad", data.dir);
    dt_assert_ok(dt_shard_writer_open(prefix, 1000, INT64_MAX, false, &err, &w), err);
    const struct {
        const char *key;
        struct dt_shard_member m[2];
        int n;
    } s[] = {
        {"a", {{"png", png, len}, {"txt", text, 4}}, 2},
        {"b", {{"png", png, len / 2}, {"txt", text, 4}}, 2},
        {"c", {{"png", text, 4}, {"txt", text, 4}}, 2},
        {"d", {{"png", png, len}}, 1},
        {"e", {{"txt", text, 4}}, 1},
        {"f", {{"png", png, len}, {"txt", (const uint8_t *)" \n\t", 3}}, 2},
        {"g", {{"png", png, len}, {"txt", (const uint8_t *)"\xff\xfe", 2}}, 2},
        {"h", {{"png", png, len}, {"json", (const uint8_t *)"{\"caption\": \"jay\"}", 18}}, 2},
        {"i", {{"png", png, len}, {"json", (const uint8_t *)"{\"size\": 3}", 11}}, 2},
        {"j", {{"png", png, len}, {"json", (const uint8_t *)"{", 1}}, 2},
        {"k", {{"png", huge, len}, {"txt", text, 4}}, 2},
        {"l", {{"txt", text, 4}, {"png", png, 0}}, 2},
    };
    for (size_t i = 0; i < sizeof s / sizeof s[0]; i++)
        dt_assert_ok(dt_shard_write(w, s[i].key, s[i].m, s[i].n, &err), err);
    dt_assert_ok(dt_shard_writer_close(w, &err, &n), err);
    snprintf(path, size, "%s-000000.tar", prefix);
    dt_free(png);
    dt_free(huge);
    dt_image_free(&img);
}

START_TEST(bad_data)
{
    struct dt_loader_options o = options();
    struct dt_data_report r;
    struct dt_loader *l;
    struct dt_sequence *s;
    char path[600];
    const char *paths[1] = {path};
    int docs = 0;

    bad_shard(path, sizeof path);
    o.shards = paths;
    o.n_shards = 1;
    o.epochs = 1;
    o.threads = 2;
    l = open_loader(&o);
    while ((s = next(l))) {
        docs += s->n_docs;
        dt_sequence_free(s);
    }
    dt_loader_report(l, &r);
    dt_loader_close(l);
    ck_assert_int_eq(docs, 2);
    ck_assert_int_eq(r.documents, 2);
    ck_assert_int_eq(r.bad[DT_BAD_IMAGE], 3); /* b, c, l */
    ck_assert_int_eq(r.bad[DT_BAD_NO_CAPTION], 1);
    ck_assert_int_eq(r.bad[DT_BAD_NO_IMAGE], 1);
    ck_assert_int_eq(r.bad[DT_BAD_EMPTY_CAPTION], 1);
    ck_assert_int_eq(r.bad[DT_BAD_CAPTION], 3); /* g, i, j */
    ck_assert_int_eq(r.bad[DT_BAD_IMAGE_SIZE], 1);
    ck_assert_int_eq(dt_data_bad_total(&r), 10);
    dt_assert_has(r.example[DT_BAD_NO_CAPTION], "sample d");

    o.fatal = true;
    l = open_loader(&o);
    while (dt_loader_next(l, &err, &s) == DT_OK) {
        ck_assert_ptr_nonnull(s); /* it cannot end well */
        dt_sequence_free(s);
    }
    dt_loader_close(l);

    o.fatal = false;
    o.text_only = true;
    l = open_loader(&o);
    for (docs = 0; (s = next(l)); dt_sequence_free(s))
        docs += s->n_docs;
    ck_assert_int_eq(docs, 3);
    dt_loader_close(l);
}
END_TEST

/* A caption that is null or no text is none: "text" stands for it, or nothing. */
START_TEST(captions_in_json)
{
    static const struct {
        const char *json;
        int text; /* bytes; 0 = it is bad */
    } v[] = {{"{\"caption\": null}", 0},
             {"{\"caption\": null, \"text\": \"four\"}", 4},
             {"{\"caption\": [\"a\", \"b\"]}", 0},
             {"{\"caption\": {\"en\": \"a\"}, \"text\": \"six it\"}", 6},
             {"{\"caption\": \"null\", \"text\": \"x\"}", 4},
             {"null", 0},
             {"{\"text\": null}", 0}};
    struct dt_loader_options o = options();
    struct dt_image img = fixture_picture(20, 20, 0);
    char path[600], prefix[512], key[8];
    const char *paths[1] = {path};
    struct dt_shard_writer *w;
    struct dt_data_report r;
    struct dt_sequence *s;
    struct dt_loader *l;
    size_t len;
    uint8_t *png = fixture_png(&img, &len);
    int n, good = 0;

    snprintf(prefix, sizeof prefix, "%s/json", data.dir);
    dt_assert_ok(dt_shard_writer_open(prefix, 1000, INT64_MAX, false, &err, &w), err);
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        const struct dt_shard_member m[] = {
            {"png", png, len}, {"json", (const uint8_t *)v[i].json, strlen(v[i].json)}};

        snprintf(key, sizeof key, "%zu", i);
        dt_assert_ok(dt_shard_write(w, key, m, 2, &err), err);
    }
    dt_assert_ok(dt_shard_writer_close(w, &err, &n), err);
    snprintf(path, sizeof path, "%s-000000.tar", prefix);
    o.shards = paths;
    o.n_shards = 1;
    o.epochs = 1;
    l = open_loader(&o);
    while ((s = next(l))) {
        for (int k = 0; k < s->n_docs; k++, good++)
            ck_assert_uint_eq(s->docs[k].text_n, (unsigned)v[s->docs[k].sample].text);
        dt_sequence_free(s);
    }
    dt_loader_report(l, &r);
    ck_assert_int_eq(good, 3);
    ck_assert_int_eq(r.bad[DT_BAD_CAPTION], 4);
    ck_assert_int_eq(dt_data_bad_total(&r), 4);
    dt_loader_close(l);
    dt_free(png);
    dt_image_free(&img);
}
END_TEST

/* Of latents of 8 x 8 pixels, of which the last ones may be cut, a generator takes an even number a side; an encoder takes
 * any. */
START_TEST(targets_that_cannot_be_halved)
{
    static const struct {
        int w, h;
        bool good;
    } image[] = {
        {16, 16, true}, {9, 32, true},   {16, 17, false}, {24, 16, false}, {15, 10, true},
        {8, 16, false}, {33, 48, false}, {64, 64, true},  {41, 41, true}}; /* 6 x 6, the last ones of a pixel */
    struct dt_loader_options o = options();
    char path[600], prefix[512], key[8];
    const char *paths[1] = {path};
    struct dt_shard_writer *w;
    struct dt_data_report r;
    struct dt_sequence *s;
    struct dt_loader *l;
    int n, drawn = 0;

    snprintf(prefix, sizeof prefix, "%s/sides", data.dir);
    dt_assert_ok(dt_shard_writer_open(prefix, 1000, INT64_MAX, false, &err, &w), err);
    for (size_t i = 0; i < sizeof image / sizeof image[0]; i++) {
        struct dt_image img = fixture_picture(image[i].w, image[i].h, 0);
        size_t len;
        uint8_t *png = fixture_png(&img, &len);
        const struct dt_shard_member m[] = {{"png", png, len}, {"txt", (const uint8_t *)"x", 1}};

        snprintf(key, sizeof key, "%zu", i);
        dt_assert_ok(dt_shard_write(w, key, m, 2, &err), err);
        dt_free(png);
        dt_image_free(&img);
    }
    dt_assert_ok(dt_shard_writer_close(w, &err, &n), err);
    snprintf(path, sizeof path, "%s-000000.tar", prefix);
    o.shards = paths;
    o.n_shards = 1;
    o.epochs = 1;
    o.shuffle = false;
    o.target.fit = o.image.fit = DT_FIT_NONE;
    o.latent_scale = 8;
    o.latent_multiple = 2;
    for (int pixels_later = 0; pixels_later < 2; pixels_later++) {
        o.pixels_later = pixels_later;
        o.generate = 1;
        l = open_loader(&o);
        for (drawn = 0; (s = next(l)); dt_sequence_free(s))
            for (int k = 0; k < s->n_docs; k++, drawn++)
                ck_assert(image[s->docs[k].sample].good);
        dt_loader_report(l, &r);
        ck_assert_int_eq(drawn, 5);
        ck_assert_int_eq(r.bad[DT_BAD_IMAGE_SIZE], 4);
        ck_assert_int_eq(dt_data_bad_total(&r), 4);
        dt_assert_has(r.example[DT_BAD_IMAGE_SIZE],
                      "sample 2: an image of 16 x 17 is 2 x 3 latents");
        dt_loader_close(l);
    }
    o.generate = 0;
    l = open_loader(&o);
    while ((s = next(l)))
        dt_sequence_free(s);
    dt_loader_report(l, &r);
    ck_assert_int_eq(r.bad[DT_BAD_IMAGE_SIZE], 0);
    dt_loader_close(l);
}
END_TEST

/* Sequences up to the error; the cursors before each, and what was wrong. */
static int until_error(const struct dt_loader_options *o, struct dt_data_cursor *c, int max,
                       char *why, size_t size)
{
    struct dt_loader *l = open_loader(o);
    struct dt_sequence *s;
    int n = 0;

    why[0] = '\0';
    for (;;) {
        ck_assert_int_lt(n, max);
        dt_loader_cursor(l, &c[n]);
        if (dt_loader_next(l, &err, &s) != DT_OK) {
            snprintf(why, size, "%.*s", (int)size - 1, err.message);
            break;
        }
        if (!s)
            break;
        dt_sequence_free(s);
        n++;
    }
    dt_loader_close(l);
    return n;
}

/* Ten of twelve samples are bad: nine may not be, ten may, in every epoch anew, wherever it is gone on from. */
START_TEST(bad_samples_up_to_a_limit)
{
    struct dt_loader_options o = options();
    struct dt_data_cursor c[32], again[32];
    char path[600], why[256], text[256];
    const char *paths[1] = {path};
    int n, behind = 0;

    bad_shard(path, sizeof path);
    o.shards = paths;
    o.n_shards = 1;
    o.epochs = 3;
    o.unpacked = true; /* a document each */
    o.threads = 2;
    o.bad_max = 10;
    n = until_error(&o, c, 32, why, sizeof why);
    ck_assert_str_eq(why, "");
    ck_assert_int_eq(n, 6);
    o.bad_max = 9;
    for (o.seed = 1; o.seed < 9; o.seed++) {
        memset(&o.cursor, 0, sizeof o.cursor);
        n = until_error(&o, c, 32, why, sizeof why);
        ck_assert_int_le(n, 2);
        dt_assert_has(why, "10 samples of epoch 1 cannot be used, and 9 may be (bad_samples)");
        dt_assert_has(why, ".tar, sample ");
        for (int k = 1; k <= n; k++) { /* the same end from every cursor */
            o.cursor = c[k];
            ck_assert_int_eq(until_error(&o, again, 32, text, sizeof text), n - k);
            ck_assert_str_eq(text, why);
            behind += c[k].bad > 0;
        }
    }
    ck_assert_int_gt(behind, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("data_bad");
    TCase *c = dt_test_case(s, "bad", 0);

    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, bad_data);
    tcase_add_test(c, captions_in_json);
    tcase_add_test(c, targets_that_cannot_be_halved);
    tcase_add_test(c, bad_samples_up_to_a_limit);
    return dt_test_run(s);
}
