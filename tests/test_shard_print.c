/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fingerprints of shards: a changed byte is noticed, by name, and what was not touched is not read.
 */
#include "base/mem.h"
#include "exec/data/shard_print.h"
#include "test_util.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 3, BYTES = 300000 };
static char dir[64], path[N][128];
static const char *paths[N];
static struct dt_error err;

static void setup(void)
{
    strcpy(dir, "/tmp/dt-print-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    for (int i = 0; i < N; i++) {
        struct timespec old[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
        FILE *f;

        snprintf(path[i], sizeof(path[i]), "%s/s-%06d.tar", dir, i);
        paths[i] = path[i];
        f = fopen(path[i], "wb");
        ck_assert_ptr_nonnull(f);
        for (int k = 0; k < BYTES; k++)
            fputc((k * 7 + i) & 255, f);
        fclose(f);
        ck_assert_int_eq(utimensat(AT_FDCWD, path[i], old, 0), 0);
    }
}

static void teardown(void)
{
    char cmd[128];

    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

/* The byte at `at` becomes another one; size and time of modification stay. */
static void change(int i, long at)
{
    struct timespec t[2];
    struct stat sb;
    FILE *f = fopen(path[i], "r+b");
    int c;

    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(stat(path[i], &sb), 0);
    fseek(f, at, SEEK_SET);
    c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
    t[0] = sb.st_atim;
    t[1] = sb.st_mtim;
    ck_assert_int_eq(utimensat(AT_FDCWD, path[i], t, 0), 0);
}

START_TEST(a_changed_byte_is_noticed)
{
    struct dt_shard_prints was, is;
    int64_t bytes;

    usleep(2500000); /* old enough for their times to tell */
    dt_assert_ok(dt_shard_prints_take(paths, N, NULL, 0, &err, &was, &bytes), err);
    ck_assert_int_eq(bytes, (int64_t)N * BYTES);
    dt_assert_ok(dt_shard_prints_take(paths, N, &was, 0, &err, &is, &bytes), err);
    ck_assert_int_eq(bytes, 0); /* nothing was touched */
    dt_assert_ok(dt_shard_prints_compare(&was, &is, paths, &err), err);
    dt_shard_prints_free(&is);
    change(1, BYTES / 2);
    dt_assert_ok(dt_shard_prints_take(paths, N, &was, 0, &err, &is, &bytes), err);
    ck_assert_int_eq(bytes, BYTES); /* of the one that was */
    ck_assert_int_eq(dt_shard_prints_compare(&was, &is, paths, &err), DT_ERR_INPUT);
    ck_assert_str_eq(err.file, path[1]);
    dt_assert_has(err.message, "CRC-32");
    dt_assert_has(err.message, "--changed-data");
    dt_shard_prints_free(&is);
    change(1, BYTES / 2); /* back: touched, and the same */
    dt_assert_ok(dt_shard_prints_take(paths, N, &was, 0, &err, &is, &bytes), err);
    ck_assert_int_eq(bytes, BYTES);
    dt_assert_ok(dt_shard_prints_compare(&was, &is, paths, &err), err);
    dt_shard_prints_free(&is);
    dt_shard_prints_free(&was);
}
END_TEST

/* A file that is changed twice within a tick of its clock: its times alone would not tell. */
START_TEST(young_files_are_read_again)
{
    struct dt_shard_prints was, is;
    int64_t bytes;

    dt_assert_ok(dt_shard_prints_take(paths, N, NULL, 0, &err, &was, NULL), err);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(was.p[i].changed_ns, 0);
    dt_assert_ok(dt_shard_prints_take(paths, N, &was, 0, &err, &is, &bytes), err);
    ck_assert_int_eq(bytes, (int64_t)N * BYTES);
    dt_shard_prints_free(&is);
    dt_shard_prints_free(&was);
}
END_TEST

START_TEST(large_sets_are_sampled)
{
    struct dt_shard_prints was, is;
    int64_t size = (int64_t)DT_PRINT_BLOCKS * DT_PRINT_BLOCK * 4, bytes;

    ck_assert_int_eq(truncate(path[2], size), 0);
    dt_assert_ok(dt_shard_prints_take(paths, N, NULL, size, &err, &was, &bytes), err);
    ck_assert(was.p[2].sampled && was.p[0].sampled);
    ck_assert_int_eq(bytes, 2 * BYTES + (int64_t)DT_PRINT_BLOCKS * DT_PRINT_BLOCK);
    for (int k = 0; k < 3; k++) { /* first byte, last byte, all of a small shard */
        int i = k == 2 ? 0 : 2;

        change(i, k == 0 ? 0 : k == 1 ? size - 1 : BYTES / 3);
        dt_assert_ok(dt_shard_prints_take(paths, N, &was, size, &err, &is, NULL), err);
        ck_assert_int_eq(dt_shard_prints_compare(&was, &is, paths, &err), DT_ERR_INPUT);
        ck_assert_str_eq(err.file, path[i]);
        dt_shard_prints_free(&is);
        change(i, k == 0 ? 0 : k == 1 ? size - 1 : BYTES / 3);
    }
    /* what was sampled is compared with samples, whatever the limit is now */
    dt_assert_ok(dt_shard_prints_take(paths, N, &was, 10 * size, &err, &is, NULL), err);
    dt_assert_ok(dt_shard_prints_compare(&was, &is, paths, &err), err);
    dt_shard_prints_free(&is);
    dt_shard_prints_free(&was);
}
END_TEST

START_TEST(other_shards_are_named)
{
    const char *other[] = {path[0], path[2]};
    struct dt_shard_prints was, is;

    dt_assert_ok(dt_shard_prints_take(paths, N, NULL, 0, &err, &was, NULL), err);
    dt_assert_ok(dt_shard_prints_take(other, 2, &was, 0, &err, &is, NULL), err);
    ck_assert_int_eq(dt_shard_prints_compare(&was, &is, other, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "shard 2 of this training was s-000001.tar");
    dt_shard_prints_free(&is);
    dt_assert_ok(dt_shard_prints_take(paths, 2, &was, 0, &err, &is, NULL), err);
    ck_assert_int_eq(dt_shard_prints_compare(&was, &is, paths, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "missing is s-000002.tar");
    ck_assert_int_eq(dt_shard_prints_compare(&is, &was, paths, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "too many is ");
    dt_shard_prints_free(&is);
    ck_assert_int_eq(truncate(path[0], 1000), 0);
    dt_assert_ok(dt_shard_prints_take(paths, N, &was, 0, &err, &is, NULL), err);
    ck_assert_int_eq(dt_shard_prints_compare(&was, &is, paths, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "1000 bytes and had 300000");
    dt_shard_prints_free(&is);
    dt_shard_prints_free(&was);
    unlink(path[1]);
    ck_assert_int_eq(dt_shard_prints_take(paths, N, NULL, 0, &err, &was, NULL), DT_ERR_INPUT);
    ck_assert_int_eq(mkfifo(path[1], 0600), 0); /* and does not wait for a writer */
    ck_assert_int_eq(dt_shard_prints_take(paths, N, NULL, 0, &err, &was, NULL), DT_ERR_INPUT);
}
END_TEST

START_TEST(text_and_back)
{
    struct dt_shard_prints was, is;
    struct dt_json j;
    struct dt_doc *doc;
    char *text;

    dt_assert_ok(dt_shard_prints_take(paths, N, NULL, 0, &err, &was, NULL), err);
    dt_json_init(&j, true);
    dt_shard_prints_write(&was, &j);
    dt_assert_ok(dt_json_finish(&j, &err, &text), err);
    dt_assert_ok(dt_doc_parse("data", text, strlen(text), &err, &doc), err);
    dt_assert_ok(dt_shard_prints_read(dt_doc_root(doc), &err, &is), err);
    ck_assert_int_eq(is.n, N);
    for (int i = 0; i < N; i++)
        ck_assert_mem_eq(&was.p[i], &is.p[i], sizeof(was.p[i]));
    dt_doc_free(doc);
    dt_shard_prints_free(&is);
    *strstr(text, "crc32\": \"") = 'C';
    dt_assert_ok(dt_doc_parse("data", text, strlen(text), &err, &doc), err);
    ck_assert_int_eq(dt_shard_prints_read(dt_doc_root(doc), &err, &is), DT_ERR_INPUT);
    dt_doc_free(doc);
    dt_free(text);
    dt_shard_prints_free(&was);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fingerprints of shards");
    TCase *c = dt_test_case(s, "prints", 60);

    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, a_changed_byte_is_noticed);
    tcase_add_test(c, young_files_are_read_again);
    tcase_add_test(c, large_sets_are_sampled);
    tcase_add_test(c, other_shards_are_named);
    tcase_add_test(c, text_and_back);
    return dt_test_run(s);
}
