/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Kept indexes of shards: the same places as a pass over the headers gives, with hardly a read; what
 * has changed, is damaged or belongs to something else is passed over again, and replaced.
 *
 * The oracle is the pass (an index opened without keeping), and the kernel's count of reads. */
#include "data_fixture.h"
#include "exec/data/shard_kept.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { SAMPLES = 600, PER = 200, SHARDS = 3 };
static struct fixture_data data;
static struct dt_error err;
static char folder[300]; /* of the indexes */

static void setup(void)
{
    fixture_data_open(&data, SAMPLES, PER);
    ck_assert_int_eq(data.n_shards, SHARDS);
    snprintf(folder, sizeof folder, "%s/%s", data.dir, DT_SHARD_KEPT_FOLDER);
    usleep(2500000); /* old enough for the shards' times to tell */
}

static void teardown(void)
{
    fixture_data_close(&data);
}

static struct dt_shard_index *open_index(struct dt_shard_keep *keep, int64_t *bad)
{
    struct dt_data_report r = {0};
    struct dt_shard_index *ix;

    dt_assert_ok(
        dt_shard_index_open((const char *const *)data.shards, data.n_shards, keep, &r, &err, &ix),
        err);
    if (bad)
        *bad = dt_data_bad_total(&r);
    return ix;
}

/* What opening found is what a pass over the headers finds. */
static struct dt_shard_keep opened(struct dt_shard_keep keep)
{
    int64_t bad[2];
    struct dt_shard_index *a = open_index(NULL, &bad[0]), *b = open_index(&keep, &bad[1]);

    ck_assert_uint_eq(a->n, b->n);
    ck_assert_uint_eq(a->fingerprint, b->fingerprint);
    ck_assert_int_eq(bad[0], bad[1]);
    for (size_t i = 0; i < a->n; i++) {
        ck_assert_uint_eq(a->samples[i].offset, b->samples[i].offset);
        ck_assert_uint_eq(a->samples[i].bytes, b->samples[i].bytes);
        ck_assert_uint_eq(a->samples[i].shard, b->samples[i].shard);
    }
    dt_shard_index_close(a);
    dt_shard_index_close(b);
    return keep;
}

static struct dt_shard_keep always(void)
{
    return opened((struct dt_shard_keep){.always = true});
}

static void index_of(int shard, char *path, size_t size)
{
    snprintf(path, size, "%s/%s.index", folder, strrchr(data.shards[shard], '/') + 1);
}

/* Reads of this process so far, and their bytes, as the kernel counts them. */
static bool reads(long *calls, long *bytes)
{
    FILE *f = fopen("/proc/self/io", "r");
    char line[128];
    int found = 0;

    while (f && fgets(line, sizeof line, f))
        found += sscanf(line, "rchar: %ld", bytes) == 1 || sscanf(line, "syscr: %ld", calls) == 1;
    if (f)
        fclose(f);
    return found == 2;
}

START_TEST(an_index_saves_the_pass)
{
    struct dt_shard_keep k = {.always = true};
    long calls[4] = {0}, bytes[4] = {0};
    bool counted;

    k = always();
    ck_assert_int_eq(k.found, 0);
    ck_assert_int_eq(k.passed, SHARDS);
    ck_assert_int_eq(k.written, SHARDS);
    ck_assert_str_eq(k.where, folder);
    k = always();
    ck_assert_int_eq(k.found, SHARDS);
    ck_assert_int_eq(k.passed + k.written + k.replaced, 0);

    counted = reads(&calls[0], &bytes[0]);
    dt_shard_index_close(open_index(NULL, NULL));
    reads(&calls[1], &bytes[1]);
    dt_shard_index_close(open_index(&k, NULL));
    reads(&calls[2], &bytes[2]);
    reads(&calls[3], &bytes[3]); /* what asking itself costs */
    if (!counted)
        return; /* no such count on this system */
    for (int i = 0; i < 2; i++) {
        calls[i] = calls[i + 1] - calls[i] - (calls[3] - calls[2]);
        bytes[i] = bytes[i + 1] - bytes[i] - (bytes[3] - bytes[2]);
    }
    /* a shard: its index in two reads, the second of which finds the end, in 16 bytes a sample */
    ck_assert_int_le(calls[1], 3 * SHARDS);
    ck_assert_int_le(bytes[1], SHARDS * 128 + 16 * SAMPLES);
    ck_assert_int_gt(calls[0], 5 * calls[1]);
    ck_assert_int_gt(bytes[0], 20 * bytes[1]);
}
END_TEST

/* One byte of the shard becomes another; its size stays, and the time that can be set, too. */
static void touch(const char *path, long at, int by)
{
    struct timespec t[2];
    struct stat sb;
    FILE *f = fopen(path, "r+b");
    int c;

    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(stat(path, &sb), 0);
    fseek(f, at, SEEK_SET);
    c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ by, f);
    fclose(f);
    t[0] = sb.st_atim;
    t[1] = sb.st_mtim;
    ck_assert_int_eq(utimensat(AT_FDCWD, path, t, 0), 0);
}

START_TEST(a_changed_shard_is_passed_over_again)
{
    struct dt_shard_keep k;

    always();
    touch(data.shards[1], 600, 1); /* a pixel: no place changes, but who could tell? */
    k = always();
    ck_assert_int_eq(k.found, SHARDS - 1);
    ck_assert_int_eq(k.passed, 1);
    ck_assert_int_eq(k.replaced, 1);
    ck_assert_int_eq(k.written, 1);
    ck_assert_int_eq(truncate(data.shards[2], 40960), 0); /* damaged from there on */
    k = always();
    ck_assert_int_eq(k.passed, 1);
    ck_assert_int_eq(k.found, SHARDS - 1);
    k = always(); /* what has damage is not kept, and not taken for what it was */
    ck_assert_int_eq(k.passed, 1);
    ck_assert_int_eq(k.found, SHARDS - 1);
}
END_TEST

/* A copy has other times and another inode, and the same contents. */
START_TEST(a_copy_is_believed_by_its_contents)
{
    struct dt_shard_keep k;
    char command[1200];

    always();
    snprintf(command, sizeof command, "cp '%s' '%s.new' && mv '%s.new' '%s'", data.shards[0],
             data.shards[0], data.shards[0], data.shards[0]);
    ck_assert_int_eq(system(command), 0);
    usleep(2500000);
    k = always();
    ck_assert_int_eq(k.found, SHARDS);
    ck_assert_int_eq(k.passed, 0);
    ck_assert_int_eq(k.written, 1); /* now with its times */
    k = always();
    ck_assert_int_eq(k.found, SHARDS);
    ck_assert_int_eq(k.written, 0);
}
END_TEST

START_TEST(no_damaged_byte_is_believed)
{
    struct dt_shard_keep k;
    char path[400];
    struct stat sb;

    always();
    index_of(0, path, sizeof path);
    ck_assert_int_eq(stat(path, &sb), 0);
    for (long at = 0; at < sb.st_size; at += at < 80 ? 1 : 97) {
        touch(path, at, 1 + (int)(at % 255));
        k = always();
        ck_assert_int_eq(k.passed, 1);
        ck_assert_int_eq(k.replaced, 1);
        ck_assert_int_eq(k.written, 1);
        ck_assert_int_eq(always().found, SHARDS);
    }
    for (int n = 0; n < 3; n++) {
        ck_assert_int_eq(truncate(path, (long[]){0, 63, sb.st_size - 16}[n]), 0);
        ck_assert_int_eq(always().replaced, 1);
    }
}
END_TEST

START_TEST(an_index_of_another_shard_is_not_believed)
{
    char path[2][400], command[900];
    struct dt_shard_keep k;

    always();
    index_of(0, path[0], sizeof path[0]);
    index_of(1, path[1], sizeof path[1]);
    snprintf(command, sizeof command, "cp '%s' '%s'", path[0], path[1]);
    ck_assert_int_eq(system(command), 0);
    k = always();
    ck_assert_int_eq(k.found, SHARDS - 1);
    ck_assert_int_eq(k.replaced, 1);
    /* nor one whose sums are right and whose places are not */
    for (int kind = 0; kind < 5; kind++) {
        struct dt_shard_place p[2] = {{.offset = 0, .bytes = 1024}, {.offset = 1024, .bytes = 512}};
        struct dt_shard_kept made = {
            .print = {.bytes = 4096, .name = "a.tar"}, .samples = p, .n = 2};
        struct dt_shard_kept back;
        uint8_t *bytes;
        size_t len;

        if (kind == 1)
            p[1].offset = 512; /* overlaps */
        if (kind == 2)
            p[1].bytes = 4096; /* ends behind the shard */
        if (kind == 3)
            p[1].offset = UINT64_MAX - 511;
        if (kind == 4)
            p[0].bytes = 100;
        dt_assert_ok(dt_shard_kept_encode(&made, &err, &bytes, &len), err);
        ck_assert_int_eq(dt_shard_kept_decode(bytes, len, &err, &back),
                         kind == 0 ? DT_OK : DT_ERR_INPUT);
        if (kind == 0) {
            ck_assert_uint_eq(back.n, 2);
            ck_assert_uint_eq(back.samples[1].offset, 1024);
            ck_assert_str_eq(back.print.name, "a.tar");
            dt_free(back.samples);
        }
        dt_free(bytes);
    }
}
END_TEST

START_TEST(where_they_are_kept)
{
    char cache[400], named[400], none[420];
    struct dt_shard_keep k;

    k = opened((struct dt_shard_keep){.always = false});
    ck_assert_int_eq(k.written, 0); /* so few samples leave nothing behind */
    ck_assert_int_ne(access(folder, F_OK), 0);
    snprintf(named, sizeof named, "%s/a/b", data.dir);
    k = opened((struct dt_shard_keep){.always = true, .folder = named});
    ck_assert_int_eq(k.written, SHARDS);
    ck_assert_str_eq(k.where, named);
    k = opened((struct dt_shard_keep){.always = true, .folder = named});
    ck_assert_int_eq(k.found, SHARDS);
    /* a file where the folder should be: it cannot be made, whoever we are */
    fixture_write(folder, "", 0);
    snprintf(cache, sizeof cache, "%s/cache", data.dir);
    setenv("XDG_CACHE_HOME", cache, 1);
    k = always();
    ck_assert_int_eq(k.written, SHARDS);
    ck_assert_int_eq(strncmp(k.where, cache, strlen(cache)), 0);
    k = always();
    ck_assert_int_eq(k.found, SHARDS);
    /* nowhere at all: no error, unless the folder was named */
    snprintf(none, sizeof none, "%s/x", folder);
    setenv("XDG_CACHE_HOME", none, 1);
    k = always();
    ck_assert_int_eq(k.written, 0);
    ck_assert_ptr_nonnull(strstr(k.why, none));
    k = (struct dt_shard_keep){.always = true, .folder = none};
    {
        struct dt_data_report r = {0};
        struct dt_shard_index *ix;

        ck_assert_int_eq(
            dt_shard_index_open((const char *const *)data.shards, data.n_shards, &k, &r, &err, &ix),
            DT_ERR_IO);
        ck_assert_ptr_nonnull(strstr(err.file, none));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kept indexes of shards");
    TCase *c = dt_test_case(s, "kept", 120);

    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, an_index_saves_the_pass);
    tcase_add_test(c, a_changed_shard_is_passed_over_again);
    tcase_add_test(c, a_copy_is_believed_by_its_contents);
    tcase_add_test(c, no_damaged_byte_is_believed);
    tcase_add_test(c, an_index_of_another_shard_is_not_believed);
    tcase_add_test(c, where_they_are_kept);
    return dt_test_run(s);
}
