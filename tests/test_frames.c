/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Video as frames in a shard: which members are frames, which of them are taken, what they become in a
 * sequence.  The oracle is written out by hand: solid frames of known sizes, their places and pixels. */
#include "data_fixture.h"
#include "exec/data/loader.h"

static struct dt_error err;
static char dir[256], path[320];
static struct dt_tokenizer *tok;

static void begin(void)
{
    fixture_folder(dir, sizeof dir);
    dt_assert_ok(dt_tokenizer_bytes(&err, &tok), err);
}

static void end(void)
{
    dt_tokenizer_free(tok);
    fixture_folder_remove(dir);
}

/* A member: a grey picture of w x h, or, with w 0, a text. */
struct part {
    const char *ext;
    int w, h, grey;
    const char *text;
};

static void write_sample(struct dt_shard_writer *w, const char *key, const struct part *part, int n)
{
    struct dt_shard_member m[40];
    struct dt_image img;

    ck_assert_int_le(n, 40);
    for (int i = 0; i < n; i++) {
        m[i] = (struct dt_shard_member){part[i].ext, (const uint8_t *)part[i].text,
                                        part[i].text ? strlen(part[i].text) : 0};
        if (part[i].w > 0) {
            dt_assert_ok(dt_image_new(part[i].w, part[i].h, &err, &img), err);
            memset(img.px, part[i].grey, 3 * (size_t)part[i].w * (size_t)part[i].h);
            m[i].data = fixture_png(&img, &m[i].len);
            dt_image_free(&img);
        }
    }
    dt_assert_ok(dt_shard_write(w, key, m, n, &err), err);
    for (int i = 0; i < n; i++)
        if (part[i].w > 0)
            dt_free((void *)(uintptr_t)m[i].data);
}

static struct dt_shard_writer *new_shard(void)
{
    struct dt_shard_writer *w;
    char prefix[300];

    snprintf(prefix, sizeof prefix, "%s/v", dir);
    snprintf(path, sizeof path, "%s-000000.tar", prefix);
    dt_assert_ok(dt_shard_writer_open(prefix, 1000, INT64_MAX, false, &err, &w), err);
    return w;
}

/* The only sequence of the shard, of all its documents; NULL: none was good. */
static struct dt_sequence *load(struct dt_loader_options o, struct dt_data_report *r)
{
    const char *paths[1] = {path};
    struct dt_sequence *s = NULL, *more;
    struct dt_loader *l;
    enum dt_status st;

    o.shards = paths;
    o.n_shards = 1;
    o.tokenizer = tok;
    o.patch = 4;
    o.epochs = 1;
    dt_assert_ok(dt_loader_open(&o, &err, &l), err);
    st = dt_loader_next(l, &err, &s);
    if (st == DT_OK && s) {
        dt_assert_ok(dt_loader_next(l, &err, &more), err);
        ck_assert_ptr_null(more);
    }
    dt_loader_report(l, r);
    dt_loader_close(l);
    return st == DT_OK ? s : NULL;
}

START_TEST(which_members_are_frames)
{
    static const struct {
        const char *ext;
        int number;
    } of[] = {{"0000.jpg", 0},
              {"7.png", 7},
              {"frame_0012.webp", 12},
              {"frame3.jpeg", 3},
              {"frame-45.jpg", 45},
              {"jpg", -1},
              {"frame_.jpg", -1},
              {"0001.txt", -1},
              {"seg.0001.jpg", -1},
              {"0001.jpg.gz", -1},
              {"frame__1.jpg", -1},
              {"1234567890.jpg", -1},
              {"", -1},
              {"-1.jpg", -1}};

    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        ck_assert_msg(dt_data_frame_number(of[i].ext) == of[i].number, "%s", of[i].ext);
}
END_TEST

START_TEST(which_frames_are_taken)
{
    static const struct {
        int stride, most, n, taken, at[8];
    } of[] = {{0, 0, 5, 5, {0, 1, 2, 3, 4}},
              {2, 0, 5, 3, {0, 2, 4}},
              {3, 0, 7, 3, {0, 3, 6}},
              {9, 0, 5, 1, {0}},
              {0, 3, 9, 3, {0, 3, 6}},
              {1, 4, 10, 4, {0, 2, 5, 7}},
              {2, 2, 9, 2, {0, 4}},
              {1, 8, 3, 3, {0, 1, 2}},
              {1, 1, 100, 1, {0}}};

    for (size_t k = 0; k < sizeof of / sizeof of[0]; k++) {
        struct dt_data_frames f = {of[k].stride, of[k].most};

        ck_assert_int_eq(dt_data_frames_taken(&f, of[k].n), of[k].taken);
        for (int i = 0; i < of[k].taken; i++)
            ck_assert_int_eq(dt_data_frames_at(&f, of[k].n, i), of[k].at[i]);
    }
}
END_TEST

/* Five frames in no order, of sizes that tell them apart; a poster that is left out. */
static const struct part five[] = {{"0003.png", 8, 4, 103, NULL}, {"0000.png", 4, 4, 100, NULL},
                                   {"jpg", 4, 4, 5, NULL},        {"0004.png", 12, 4, 104, NULL},
                                   {"txt", 0, 0, 0, "ab"},        {"frame_1.png", 4, 8, 101, NULL},
                                   {"0002.png", 8, 8, 102, NULL}};

static void write_five(void)
{
    struct dt_shard_writer *w = new_shard();

    write_sample(w, "clip", five, 7);
    dt_assert_ok(dt_shard_writer_close(w, &err, NULL), err);
}

static void check_items(const struct dt_sequence *s, const int *number, int n)
{
    static const int w[] = {4, 4, 8, 8, 12}, h[] = {4, 8, 8, 4, 4}; /* by number */
    int at = 1;                                                     /* behind bos */

    ck_assert_int_eq(s->n_docs, 1);
    ck_assert_int_eq(s->n_items, n);
    ck_assert_int_eq(s->docs[0].task, DT_TASK_CAPTION);
    ck_assert_str_eq(s->docs[0].name, "v-000000.tar:clip");
    for (int i = 0; i < n; i++) {
        const struct dt_sequence_item *it = &s->items[i];
        int k = number[i];

        ck_assert_int_eq(it->w, w[k]);
        ck_assert_int_eq(it->h, h[k]);
        ck_assert_uint_eq(it->flags, DT_ITEM_ENCODE);
        ck_assert_uint_eq(it->first, (unsigned)at);
        ck_assert_uint_eq(it->n, (unsigned)(w[k] / 4 * (h[k] / 4)));
        ck_assert_uint_eq(it->doc, 0);
        for (int p = 0; it->px && p < 3 * w[k] * h[k]; p++)
            ck_assert_int_eq(((const uint8_t *)it->px)[p], 100 + k);
        for (unsigned p = 0; p < it->n; p++, at++) {
            bool last = i == n - 1 && p == it->n - 1;

            ck_assert_int_eq(s->ids[at], 259); /* <image> of the tokenizer of bytes */
            ck_assert_int_eq(s->labels[at], last ? 'a' : -1);
        }
    }
    ck_assert_uint_eq(s->docs[0].text_first, (unsigned)at);
    ck_assert_uint_eq(s->docs[0].text_n, 2);
    ck_assert_int_eq(s->ids[at], 'a');
    ck_assert_int_eq(s->ids[at + 1], 'b');
    ck_assert_int_eq(s->n_tokens, at + 3);
    ck_assert_int_eq(s->text_tokens, 4);
}

START_TEST(frames_become_items_in_their_order)
{
    static const struct {
        struct dt_data_frames frames;
        int number[5], n;
    } of[] = {{{0, 0}, {0, 1, 2, 3, 4}, 5}, {{2, 0}, {0, 2, 4}, 3}, {{1, 2}, {0, 2}, 2}};
    struct dt_data_report r;

    write_five();
    for (size_t k = 0; k < sizeof of / sizeof of[0]; k++)
        for (int sizes = 0; sizes < 2; sizes++)
            for (int share = 0; share < 2;
                 share++) { /* frames are read even where images are drawn */
                struct dt_sequence *s =
                    load((struct dt_loader_options){.seq_len = 64,
                                                    .frames = of[k].frames,
                                                    .generate = share ? 0.999999 : 0,
                                                    .sizes_only = sizes},
                         &r);

                ck_assert_ptr_nonnull(s);
                check_items(s, of[k].number, of[k].n);
                for (int i = 0; i < s->n_items; i++)
                    ck_assert((s->items[i].px != NULL) == !sizes);
                dt_sequence_free(s);
            }
}
END_TEST

START_TEST(what_cannot_be_used_is_counted)
{
    static const struct part twice[] = {
        {"1.png", 4, 4, 1, NULL}, {"0001.png", 4, 4, 1, NULL}, {"txt", 0, 0, 0, "x"}};
    static const struct part broken[] = {
        {"1.png", 4, 4, 1, NULL}, {"2.png", 0, 0, 0, "no image"}, {"txt", 0, 0, 0, "x"}};
    struct dt_shard_writer *w = new_shard();
    struct dt_data_report r;
    struct dt_sequence *s;

    write_sample(w, "twice", twice, 3);
    write_sample(w, "broken", broken, 3);
    write_sample(w, "long", five, 7);
    write_sample(w, "good", broken, 1); /* its first frame alone, and no caption */
    dt_assert_ok(dt_shard_writer_close(w, &err, NULL), err);
    s = load((struct dt_loader_options){.seq_len = 9, .frames = {1, 0}},
             &r); /* 5 frames: 12 tokens */
    ck_assert_ptr_null(s);
    ck_assert_int_eq(r.bad[DT_BAD_IMAGE], 2);
    ck_assert_int_eq(r.bad[DT_BAD_TOO_LONG], 1);
    ck_assert_int_eq(r.bad[DT_BAD_NO_CAPTION] + r.bad[DT_BAD_TOO_LONG] + r.bad[DT_BAD_IMAGE],
                     dt_data_bad_total(&r));
    dt_assert_has(r.example[DT_BAD_IMAGE], "two frames of number 1");
    dt_assert_has(r.example[DT_BAD_TOO_LONG], "5 frames have 12 tokens");
    dt_assert_has(r.example[DT_BAD_TOO_LONG], "frames_max");
    s = load((struct dt_loader_options){.seq_len = 9, .frames = {1, 1}}, &r);
    ck_assert_ptr_nonnull(s); /* the first frame of the long one, and of the broken one */
    ck_assert_int_eq(s->n_docs, 2);
    dt_sequence_free(s);
}
END_TEST

/* The header of an image of 8192 x 8192 pixels, as many as there may be, with nothing behind it that could be decoded. */
static uint8_t *huge_png(size_t *len)
{
    struct dt_image img;
    uint32_t crc = 0xffffffff;
    uint8_t *png;

    dt_assert_ok(dt_image_new(8, 8, &err, &img), err);
    memset(img.px, 9, 3 * 8 * 8);
    png = fixture_png(&img, len);
    dt_image_free(&img);
    png[18] = png[22] = 8192 >> 8;
    png[19] = png[23] = 0;
    for (int i = 12; i < 29; i++) { /* type and contents of IHDR */
        crc ^= png[i];
        for (int b = 0; b < 8; b++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    for (int i = 0; i < 4; i++)
        png[29 + i] = (uint8_t)(~crc >> (24 - 8 * i));
    return png;
}

START_TEST(pixels_of_all_frames_are_counted_before_they_are_decoded)
{
    struct dt_shard_writer *w = new_shard();
    struct dt_shard_member m[3] = {
        {"1.png", NULL, 0}, {"2.png", NULL, 0}, {"txt", (const uint8_t *)"x", 1}};
    struct dt_data_report r;
    struct dt_image img;
    uint8_t *small, *huge = huge_png(&m[1].len);

    dt_assert_ok(dt_image_new(4, 4, &err, &img), err);
    memset(img.px, 1, 3 * 4 * 4);
    m[0].data = small = fixture_png(&img, &m[0].len);
    m[1].data = huge;
    dt_image_free(&img);
    dt_assert_ok(dt_shard_write(w, "video", m, 3, &err), err);
    dt_assert_ok(dt_shard_writer_close(w, &err, NULL), err);
    ck_assert_ptr_null(load((struct dt_loader_options){.seq_len = 9, .frames = {1, 0}}, &r));
    ck_assert_int_eq(r.bad[DT_BAD_IMAGE_SIZE], 1);
    dt_assert_has(r.example[DT_BAD_IMAGE_SIZE], "67108880 pixels in the first 2 frames");
    dt_free(small);
    dt_free(huge);
}
END_TEST

START_TEST(nothing_to_draw)
{
    struct dt_data_report r;

    write_five();
    ck_assert_ptr_null(load((struct dt_loader_options){.seq_len = 64, .generate = 1}, &r));
    ck_assert_int_eq(r.bad[DT_BAD_NO_IMAGE], 1);
    dt_assert_has(r.example[DT_BAD_NO_IMAGE], "v-000000.tar, sample clip: frames of a video");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("video as frames");
    TCase *c = dt_test_case(s, "frames", 60);

    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, which_members_are_frames);
    tcase_add_test(c, which_frames_are_taken);
    tcase_add_test(c, frames_become_items_in_their_order);
    tcase_add_test(c, what_cannot_be_used_is_counted);
    tcase_add_test(c, nothing_to_draw);
    tcase_add_test(c, pixels_of_all_frames_are_counted_before_they_are_decoded);
    return dt_test_run(s);
}
