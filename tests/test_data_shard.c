/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Shards, IDX files, captions, packing: there and back, keys, damage at every length, byte-stable
 * output. */
#include "base/file.h"
#include "data_fixture.h"
#include "exec/data/caption.h"
#include "exec/data/idx.h"
#include "exec/data/pack.h"
#include "exec/data/report.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>
#include <zlib.h>

static struct dt_error err;
static char dir[256];

static void begin(void)
{
    fixture_folder(dir, sizeof dir);
}

static void end(void)
{
    fixture_folder_remove(dir);
}

static const char *in_dir(const char *name)
{
    static char path[4][512];
    static int k;

    k = (k + 1) % 4;
    snprintf(path[k], sizeof path[k], "%s/%s", dir, name);
    return path[k];
}

/* A tar file of the named members, each with its name as data; dir/ and link -> are what they look
 * like. */
static size_t make_tar(char *buf, size_t size, const char *const *names)
{
    struct archive *a = archive_write_new();
    size_t used = 0;

    archive_write_set_format_pax_restricted(a);
    archive_write_set_bytes_in_last_block(a, 1);
    ck_assert_int_eq(archive_write_open_memory(a, buf, size, &used), ARCHIVE_OK);
    for (int i = 0; names[i]; i++) {
        struct archive_entry *e = archive_entry_new();
        size_t n = strlen(names[i]);
        bool folder = names[i][n - 1] == '/', link = strstr(names[i], "->") != NULL;

        archive_entry_set_pathname(e, names[i]);
        archive_entry_set_filetype(e, folder ? AE_IFDIR : link ? AE_IFLNK : AE_IFREG);
        if (link)
            archive_entry_set_symlink(e, "elsewhere");
        archive_entry_set_perm(e, 0644);
        archive_entry_set_size(e, folder || link ? 0 : (la_int64_t)n);
        ck_assert_int_eq(archive_write_header(a, e), ARCHIVE_OK);
        if (!folder && !link)
            archive_write_data(a, names[i], n);
        archive_entry_free(e);
    }
    archive_write_close(a);
    archive_write_free(a);
    return used;
}

static void fix_checksum(char *head)
{
    unsigned sum = 0;

    memset(head + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);
}

static enum dt_status collect(void *arg, const struct dt_shard_sample *s, struct dt_error *e)
{
    char *out = arg;

    (void)e;
    snprintf(out + strlen(out), 4096 - strlen(out), "[%s", s->key);
    for (int i = 0; i < s->n_members; i++) {
        snprintf(out + strlen(out), 4096 - strlen(out), " %s", s->member[i].ext);
        ck_assert_uint_gt(s->member[i].len, 0);
        ck_assert_int_eq(memcmp(s->member[i].data, s->key, strlen(s->key)), 0);
    }
    strcat(out, "]");
    return DT_OK;
}

START_TEST(members)
{
    static const char *const names[] = {
        "a/0001.jpg", "a/0001.txt", "b/0001.txt",  "b/",          "b/0001.seg.PNG",
        "c",          ".hidden",    "d/.hidden.x", "e.v1/x.json", "l->.txt",
        "a/0001.cls", "f.",         NULL};
    static char tar[65536];
    char out[4096] = "", path[600];
    size_t n = make_tar(tar, sizeof tar, names);
    struct dt_data_report r = {0};
    struct dt_shard_index *ix;
    const char *paths[1];
    struct dt_shard_sample s = {0};

    dt_assert_ok(dt_shard_parse((uint8_t *)tar, n, collect, out, &err), err);
    ck_assert_str_eq(out, "[a/0001 jpg txt][b/0001 txt seg.png][c ][e.v1/x json][a/0001 cls][f ]");

    snprintf(path, sizeof path, "%s", in_dir("k.tar"));
    fixture_write(path, tar, n);
    paths[0] = path;
    dt_assert_ok(dt_shard_index_open(paths, 1, NULL, &r, &err, &ix), err);
    ck_assert_uint_eq(ix->n, 6);
    ck_assert_int_eq(dt_data_bad_total(&r), 0);
    out[0] = '\0';
    for (size_t i = ix->n; i-- > 0;) { /* in any order */
        dt_assert_ok(dt_shard_read(ix, i, 1 << 20, &err, &s), err);
        collect(out, &s, &err);
    }
    ck_assert_str_eq(out, "[f ][a/0001 cls][e.v1/x json][c ][b/0001 txt seg.png][a/0001 jpg txt]");
    ck_assert_int_eq(dt_shard_read(ix, 0, 100, &err, &s), DT_ERR_INPUT);
    dt_assert_has(err.message, "limit");
    dt_shard_sample_free(&s);
    dt_shard_index_close(ix);
}
END_TEST

/* Names that are too long for us, and too long for libarchive, cost no sample but their own. */
START_TEST(long_names)
{
    static char name[2][4096], tar[65536];
    const char *const names[] = {"a.jpg", "a.txt", name[0], name[1], "b.jpg", "b.txt", NULL};
    char out[4096] = "", path[600];
    const char *paths[1] = {path};
    size_t n;

    for (int i = 0; i < 2; i++) {
        memset(name[i], 'x', 3000);
        strcpy(name[i] + 3000, i ? ".txt" : ".jpg");
        for (int k = 100; k < 3000; k += 100)
            name[i][k] = '/';
    }
    n = make_tar(tar, sizeof tar, names);
    snprintf(path, sizeof path, "%s", in_dir("long.tar"));
    dt_assert_ok(dt_shard_parse((uint8_t *)tar, n, collect, out, &err), err);
    ck_assert_str_eq(out, "[a jpg txt][b jpg txt]");
    for (int huge = 0; huge < 2; huge++) {
        struct dt_data_report r = {0}, fatal = {.fatal = true};
        struct dt_shard_sample s = {0};
        struct dt_shard_index *ix;

        if (huge) { /* the header before the first long name says that it has 2 MiB */
            char *pax = tar;

            while (pax[156] != 'x' && pax[156] != 'L')
                pax += 512;
            memcpy(pax + 124, "00010000000", 12);
            fix_checksum(pax);
        }
        fixture_write(path, tar, n);
        dt_assert_ok(dt_shard_index_open(paths, 1, NULL, &r, &err, &ix), err);
        ck_assert_uint_eq(ix->n, huge ? 1 : 2);
        ck_assert_int_eq(r.bad[DT_BAD_SAMPLE], !huge);
        ck_assert_int_eq(r.bad[DT_BAD_SHARD], huge);
        if (!huge)
            dt_assert_has(r.example[DT_BAD_SAMPLE], "a name of 3000 bytes; the limit is 1023");
        out[0] = '\0';
        for (size_t i = 0; i < ix->n; i++) {
            dt_assert_ok(dt_shard_read(ix, i, 1 << 20, &err, &s), err);
            collect(out, &s, &err);
        }
        ck_assert_str_eq(out, huge ? "[a jpg txt]" : "[a jpg txt][b jpg txt]");
        dt_shard_sample_free(&s);
        dt_shard_index_close(ix);
        ck_assert_int_eq(dt_shard_index_open(paths, 1, NULL, &fatal, &err, &ix), DT_ERR_INPUT);
    }
}
END_TEST

/* Cut at any length: what is whole is there, the rest is counted, and fatal when that is asked. */
START_TEST(truncation)
{
    static const char *const names[] = {"a.jpg", "a.txt", "b.jpg", "b.txt", "c.jpg", "c.txt", NULL};
    static char tar[65536];
    size_t n = make_tar(tar, sizeof tar, names), last = 0;
    char path[600];
    const char *paths[1] = {path};

    snprintf(path, sizeof path, "%s", in_dir("cut.tar"));
    for (size_t len = 0; len <= n; len += 64) {
        struct dt_data_report r = {0}, fatal = {.fatal = true};
        struct dt_shard_index *ix;

        fixture_write(path, tar, len);
        dt_assert_ok(dt_shard_index_open(paths, 1, NULL, &r, &err, &ix), err);
        /* four blocks per sample; of a sample behind which the damage is it cannot be known whether
         * it is whole */
        ck_assert_uint_ge(ix->n + 1, len / 2048 < 3 ? len / 2048 : 3);
        ck_assert_uint_le(ix->n, 3);
        last = ix->n;
        /* 6 members of a block each with a header; the end mark is two blocks */
        ck_assert_msg(r.bad[DT_BAD_SHARD] == (len < 13 * 512), "%zu bytes", len);
        for (size_t i = 0; i < ix->n; i++) {
            struct dt_shard_sample s = {0};
            dt_assert_ok(dt_shard_read(ix, i, 1 << 20, &err, &s), err);
            dt_shard_sample_free(&s);
        }
        dt_shard_index_close(ix);
        ck_assert_int_eq(dt_shard_index_open(paths, 1, NULL, &fatal, &err, &ix),
                         len < 13 * 512 ? DT_ERR_INPUT : DT_OK);
        if (len >= 13 * 512)
            dt_shard_index_close(ix);
    }
    ck_assert_uint_eq(last, 3);
}
END_TEST

START_TEST(refused)
{
    const char *gz = in_dir("x.tar.gz"), *none = in_dir("none.tar"), *pipe = in_dir("p"),
               *folder = dir;
    struct dt_data_report r = {0};
    struct dt_shard_index *ix;

    fixture_write(gz, "\x1f\x8b\x08\0\0\0\0\0\0\0", 10);
    ck_assert_int_eq(dt_shard_index_open(&gz, 1, NULL, &r, &err, &ix), DT_ERR_INPUT);
    dt_assert_has(err.message, "gzip");
    ck_assert_int_eq(dt_shard_index_open(&none, 1, NULL, &r, &err, &ix), DT_ERR_INPUT);
    dt_assert_has(err.file, "none.tar");
    ck_assert_int_eq(dt_shard_index_open(&folder, 1, NULL, &r, &err, &ix), DT_ERR_INPUT);
    dt_assert_has(err.message, "a directory");
    ck_assert_int_eq(mkfifo(pipe, 0600), 0); /* nobody writes: it is not waited for */
    ck_assert_int_eq(dt_shard_index_open(&pipe, 1, NULL, &r, &err, &ix), DT_ERR_INPUT);
    dt_assert_has(err.message, "a pipe");
}
END_TEST

/* Written shards hold what was given, are of the stated size, and are the same bytes each time. */
START_TEST(writing)
{
    char *first[3], *again;
    size_t len[3], n;
    char **list;
    int shards;
    const char *name = dir;

    ck_assert_int_eq(fixture_shards(dir, 25, 10), 3);
    for (int k = 0; k < 3; k++) {
        char file[32];
        snprintf(file, sizeof file, "s-%06d.tar", k);
        dt_assert_ok(dt_file_read(in_dir(file), 1 << 24, &err, &first[k], &len[k]), err);
    }
    dt_assert_ok(dt_shard_list(&name, 1, &err, &list, &shards), err);
    ck_assert_int_eq(shards, 3);
    dt_free(list);
    name = in_dir("s-{000000..000002}.tar");
    dt_assert_ok(dt_shard_list(&name, 1, &err, &list, &shards), err);
    ck_assert_int_eq(shards, 3);
    ck_assert_str_eq(list[2], in_dir("s-000002.tar"));
    dt_free(list);
    name = in_dir("t-{2..1}.tar");
    ck_assert_int_eq(dt_shard_list(&name, 1, &err, &list, &shards), DT_ERR_INPUT);

    fixture_shards(dir, 25, 10);
    for (int k = 0; k < 3; k++) {
        char file[32];
        snprintf(file, sizeof file, "s-%06d.tar", k);
        dt_assert_ok(dt_file_read(in_dir(file), 1 << 24, &err, &again, &n), err);
        ck_assert_uint_eq(n, len[k]);
        ck_assert_mem_eq(again, first[k], n);
        dt_free(again);
        dt_free(first[k]);
    }
}
END_TEST

START_TEST(bad_keys)
{
    static const char *const keys[] = {"", "a.b", "a/", "a/.b"};
    struct dt_shard_member m = {"txt", (const uint8_t *)"x", 1};
    struct dt_shard_writer *w;
    int shards;

    dt_assert_ok(dt_shard_writer_open(in_dir("k"), 5, 100, false, &err, &w), err);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(dt_shard_write(w, keys[i], &m, 1, &err), DT_ERR_INPUT);
    dt_assert_ok(dt_shard_write(w, "a.b/c", &m, 1, &err), err);
    dt_assert_ok(dt_shard_writer_close(w, &err, &shards), err);
    ck_assert_int_eq(shards, 1);
    dt_assert_ok(dt_shard_writer_open(in_dir("no/such/folder"), 5, 100, false, &err, &w), err);
    ck_assert_int_eq(dt_shard_write(w, "a", &m, 1, &err), DT_ERR_IO);
    dt_shard_writer_abort(w);
}
END_TEST

/* ---- IDX ---- */

START_TEST(idx)
{
    uint8_t file[16 + 24] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
    struct dt_idx x;
    const char *path = in_dir("x.gz");
    gzFile gz;

    for (int i = 0; i < 24; i++)
        file[16 + i] = (uint8_t)(7 * i);
    dt_assert_ok(dt_idx_parse("x", file, sizeof file, 0, &err, &x), err);
    ck_assert(x.dims == 3 && x.size[0] == 2 && x.size[1] == 3 && x.size[2] == 4);
    ck_assert_mem_eq(x.data, file + 16, 24);
    dt_idx_free(&x);
    for (size_t n = 0; n < sizeof file; n++)
        ck_assert_int_eq(dt_idx_parse("x", file, n, 0, &err, &x), DT_ERR_INPUT);
    ck_assert_int_eq(dt_idx_parse("x", file, sizeof file, 23, &err, &x), DT_ERR_INPUT);

    gz = gzopen(path, "wb");
    ck_assert_int_eq(gzwrite(gz, file, sizeof file), (int)sizeof file);
    gzclose(gz);
    dt_assert_ok(dt_idx_read(path, 0, &err, &x), err);
    ck_assert_mem_eq(x.data, file + 16, 24);
    dt_idx_free(&x);
    ck_assert_int_eq(truncate(path, 30), 0);
    ck_assert_int_eq(dt_idx_read(path, 0, &err, &x), DT_ERR_INPUT);

    memset(file + 4, 0xff, 12); /* (2^32 - 1)^3 values */
    ck_assert_int_eq(dt_idx_parse("x", file, sizeof file, 0, &err, &x), DT_ERR_INPUT);
    file[2] = 0x0d;
    ck_assert_int_eq(dt_idx_parse("x", file, sizeof file, 0, &err, &x), DT_ERR_INPUT);
    dt_assert_has(err.message, "type 13");
}
END_TEST

/* ---- captions ---- */

static void box(uint8_t *grey, int w, int x0, int y0, int bw, int bh, int value)
{
    for (int y = y0; y < y0 + bh; y++)
        memset(grey + y * w + x0, value, (size_t)bw);
}

START_TEST(captions)
{
    uint8_t grey[28 * 28] = {0};
    char text[128];

    ck_assert_str_eq(dt_caption_tone(grey, 28, 28), "dark"); /* nothing there */
    ck_assert_str_eq(dt_caption_shape(grey, 28, 28), "compact");
    box(grey, 28, 2, 10, 24, 9, 111);
    ck_assert_str_eq(dt_caption_tone(grey, 28, 28), "dark");
    ck_assert_str_eq(dt_caption_shape(grey, 28, 28), "wide");
    dt_caption_write(grey, 28, 28, dt_caption_fashion_words[9], text, sizeof text);
    ck_assert_str_eq(text, "a photo of a dark ankle boot, wide");
    memset(grey, 31, sizeof grey); /* ground */
    box(grey, 28, 9, 1, 10, 26, 112);
    ck_assert_str_eq(dt_caption_tone(grey, 28, 28), "grey");
    ck_assert_str_eq(dt_caption_shape(grey, 28, 28), "tall");
    box(grey, 28, 4, 4, 20, 20, 168);
    ck_assert_str_eq(dt_caption_shape(grey, 28, 28), "compact");
    memset(grey, 168, sizeof grey);
    ck_assert_str_eq(dt_caption_tone(grey, 28, 28), "light");
}
END_TEST

/* The class word stands exactly once in every caption that the rule can make, and names no other
 * class. */
START_TEST(class_words)
{
    static const char *const tones[] = {"dark", "grey", "light"};
    static const char *const shapes[] = {"wide", "tall", "compact"};

    for (int c = 0; c < DT_FASHION_CLASSES; c++)
        for (int t = 0; t < 3; t++)
            for (int s = 0; s < 3; s++) {
                char text[128];
                int found = 0;

                snprintf(text, sizeof text, "a photo of a %s %s, %s", tones[t],
                         dt_caption_fashion_words[c], shapes[s]);
                ck_assert_int_eq(dt_caption_class(text, dt_caption_fashion_words), c);
                for (int k = 0; k < DT_FASHION_CLASSES; k++) /* as parts of words, too */
                    for (const char *p = text; (p = strstr(p, dt_caption_fashion_words[k])); p++)
                        found++;
                ck_assert_int_eq(found, 1);
            }
    ck_assert_int_eq(dt_caption_class("a shirt and a coat", dt_caption_fashion_words), -1);
    ck_assert_int_eq(dt_caption_class("shirt shirt", dt_caption_fashion_words), -1);
    ck_assert_int_eq(dt_caption_class("a t-shirt", dt_caption_fashion_words), -1);
    ck_assert_int_eq(dt_caption_class("shirts", dt_caption_fashion_words), -1);
    ck_assert_int_eq(dt_caption_class("", dt_caption_fashion_words), -1);
    ck_assert_int_eq(dt_caption_class("ankle boot", dt_caption_fashion_words), 9);
}
END_TEST

/* ---- packing folders ---- */

START_TEST(folders)
{
    struct dt_image img = fixture_picture(12, 9, 1);
    size_t len;
    uint8_t *png = fixture_png(&img, &len);
    char path[600], prefix[600];
    const char *from = path;
    struct dt_pack_options o = {.prefix = prefix};
    struct dt_pack_result res;
    struct dt_data_report r = {0};
    struct dt_shard_index *ix;
    struct dt_shard_sample s = {0};
    const char *shard;

    mkdir(in_dir("in"), 0777);
    mkdir(in_dir("in/sub"), 0777);
    fixture_write(in_dir("in/b.v2.png"), png, len);
    fixture_write(in_dir("in/b.v2.txt"), "two", 3);
    fixture_write(in_dir("in/sub/a.PNG"), png, len);
    fixture_write(in_dir("in/sub/a.json"), "{\"caption\": \"one\"}", 18);
    fixture_write(in_dir("in/lonely.png"), png, len);
    fixture_write(in_dir("in/cut.png"), png, len / 2);
    fixture_write(in_dir("in/cut.txt"), "cut", 3);
    fixture_write(in_dir("in/silent.png"), png, len);
    fixture_write(in_dir("in/silent.txt"), " \n", 2);
    fixture_write(in_dir("in/notes.md"), "x", 1);
    snprintf(path, sizeof path, "%s/", in_dir("in"));
    snprintf(prefix, sizeof prefix, "%s", in_dir("out"));
    dt_assert_ok(dt_pack_folders(&from, 1, &o, &r, &err, &res), err);
    ck_assert(res.samples == 2 && res.shards == 1);
    ck_assert_int_eq(r.bad[DT_BAD_NO_CAPTION], 1);
    ck_assert_int_eq(r.bad[DT_BAD_IMAGE], 1);
    ck_assert_int_eq(r.bad[DT_BAD_EMPTY_CAPTION], 1);
    ck_assert_int_eq(dt_data_bad_total(&r), 3);
    dt_assert_has(r.example[DT_BAD_NO_CAPTION], "lonely.png");

    shard = in_dir("out-000000.tar");
    dt_assert_ok(dt_shard_index_open(&shard, 1, NULL, &r, &err, &ix), err);
    dt_assert_ok(dt_shard_read(ix, 0, 1 << 20, &err, &s), err);
    ck_assert_str_eq(s.key, "b_v2");
    dt_assert_ok(dt_shard_read(ix, 1, 1 << 20, &err, &s), err);
    ck_assert_str_eq(s.key, "sub/a");
    ck_assert_str_eq(s.member[0].ext, "png");
    ck_assert_uint_eq(s.member[0].len, len);
    ck_assert_mem_eq(s.member[0].data, png, len);
    dt_shard_sample_free(&s);
    dt_shard_index_close(ix);

    r = (struct dt_data_report){.fatal = true};
    ck_assert_int_eq(dt_pack_folders(&from, 1, &o, &r, &err, &res), DT_ERR_INPUT);
    dt_assert_has(err.message, "there are shards of this prefix");
    o.replace = true;
    ck_assert_int_eq(dt_pack_folders(&from, 1, &o, &r, &err, &res), DT_ERR_INPUT);
    dt_assert_has(err.message, "PNG: cut short");
    dt_free(png);
    dt_image_free(&img);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("data_shard");
    TCase *c = dt_test_case(s, "all", 120);

    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, members);
    tcase_add_test(c, long_names);
    tcase_add_test(c, truncation);
    tcase_add_test(c, refused);
    tcase_add_test(c, writing);
    tcase_add_test(c, bad_keys);
    tcase_add_test(c, idx);
    tcase_add_test(c, captions);
    tcase_add_test(c, class_words);
    tcase_add_test(c, folders);
    return dt_test_run(s);
}
