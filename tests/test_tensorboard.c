/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * TensorBoard event files against bytes that TensorBoard's own writer made.
 *
 * "test_tensorboard --example DIR" writes a file for test_python.sh and prints its name. */
#include "base/hash.h"
#include "base/mem.h"
#include "exec/train/tensorboard.h"
#include "test_util.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* Event{wall_time 1700000000.25, file_version "brain.Event:2"} and Event{the same time, step
 * 1234567, loss/caption 2.385, lr 3e-4}, as written by tensorboard 2.x's RecordWriter. */
static const uint8_t version_record[] = {
    0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xa3, 0x7f, 0x4b, 0x22, 0x09, 0x00,
    0x00, 0x10, 0x40, 0xfc, 0x54, 0xd9, 0x41, 0x1a, 0x0d, 0x62, 0x72, 0x61, 0x69, 0x6e,
    0x2e, 0x45, 0x76, 0x65, 0x6e, 0x74, 0x3a, 0x32, 0x33, 0x8d, 0x2f, 0xe9};
static const uint8_t scalars_record[] = {
    0x2f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x6d, 0x5d, 0x1d, 0x50, 0x09, 0x00, 0x00, 0x10,
    0x40, 0xfc, 0x54, 0xd9, 0x41, 0x10, 0x87, 0xad, 0x4b, 0x2a, 0x20, 0x0a, 0x13, 0x0a, 0x0c, 0x6c,
    0x6f, 0x73, 0x73, 0x2f, 0x63, 0x61, 0x70, 0x74, 0x69, 0x6f, 0x6e, 0x15, 0xd7, 0xa3, 0x18, 0x40,
    0x0a, 0x09, 0x0a, 0x02, 0x6c, 0x72, 0x15, 0x52, 0x49, 0x9d, 0x39, 0x7e, 0x96, 0xc4, 0xcb};

static const char *const tags[] = {"loss/caption", "lr"};
static const float values[] = {2.385f, 3e-4f};
#define WALL_S 1700000000.25

static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/dt-tensorboard-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
    char cmd[128];

    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

START_TEST(crc32c_vectors)
{
    uint8_t b[32];

    ck_assert_uint_eq(dt_hash_crc32c(0, "123456789", 9), 0xE3069283); /* the usual check value */
    memset(b, 0, sizeof(b));
    ck_assert_uint_eq(dt_hash_crc32c(0, b, sizeof(b)), 0x8A9136AA); /* RFC 3720, B.4 */
    memset(b, 0xFF, sizeof(b));
    ck_assert_uint_eq(dt_hash_crc32c(0, b, sizeof(b)), 0x62A8AB43);
    for (int i = 0; i < 32; i++)
        b[i] = (uint8_t)i;
    ck_assert_uint_eq(dt_hash_crc32c(0, b, sizeof(b)), 0x46DD794E);
    ck_assert_uint_eq(dt_hash_crc32c(dt_hash_crc32c(0, b, 13), b + 13, 19), 0x46DD794E);
}
END_TEST

START_TEST(bytes_are_tensorboards)
{
    struct dt_tensorboard *t;
    struct dt_error err = {0};
    uint8_t file[512];
    char path[4096];
    size_t n;
    FILE *f;

    dt_assert_ok(dt_tensorboard_open(dir, WALL_S, &err, &t), err);
    dt_assert_ok(dt_tensorboard_scalars(t, WALL_S, 1234567, tags, values, 2, &err), err);
    dt_assert_ok(dt_tensorboard_flush(t, &err), err);
    snprintf(path, sizeof(path), "%s", dt_tensorboard_path(t));
    dt_assert_has(path, "/events.out.tfevents.1700000000.");
    f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    n = fread(file, 1, sizeof(file), f);
    fclose(f);
    ck_assert_uint_eq(n, sizeof(version_record) + sizeof(scalars_record));
    ck_assert_mem_eq(file, version_record, sizeof(version_record));
    ck_assert_mem_eq(file + sizeof(version_record), scalars_record, sizeof(scalars_record));
    dt_assert_ok(dt_tensorboard_close(t, &err), err);
}
END_TEST

START_TEST(two_files_have_two_names)
{
    struct dt_tensorboard *a, *b;
    struct dt_error err = {0};

    dt_assert_ok(dt_tensorboard_open(dir, WALL_S, &err, &a), err);
    dt_assert_ok(dt_tensorboard_open(dir, WALL_S, &err, &b), err);
    ck_assert_str_ne(dt_tensorboard_path(a), dt_tensorboard_path(b));
    dt_assert_ok(dt_tensorboard_close(a, &err), err);
    dt_assert_ok(dt_tensorboard_close(b, &err), err);
}
END_TEST

START_TEST(failures_are_reported)
{
    struct rlimit was, small;
    struct dt_tensorboard *t = NULL;
    struct dt_error err = {0};
    char longer[2000], path[128];
    const char *tag = longer;

    snprintf(path, sizeof(path), "%s/no/such", dir);
    ck_assert_int_eq(dt_tensorboard_open(path, WALL_S, &err, &t), DT_ERR_IO);
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    dt_assert_ok(dt_tensorboard_open(dir, WALL_S, &err, &t), err);
    ck_assert_int_eq(dt_tensorboard_scalars(t, WALL_S, 1, &tag, values, 1, &err), DT_ERR_INPUT);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 60;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    dt_tensorboard_scalars(t, WALL_S, 1, tags, values, 2, &err);
    ck_assert_int_eq(dt_tensorboard_flush(t, &err), DT_ERR_IO);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
    dt_assert_has(err.file, "tfevents");
    dt_tensorboard_close(t, &err);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    for (uint64_t k = 1;; k++) {
        struct dt_tensorboard *t = NULL;
        struct dt_error err = {0};
        enum dt_status st;

        dt_mem_fail_at(k);
        st = dt_tensorboard_open(dir, WALL_S, &err, &t);
        if (st == DT_OK)
            st = dt_tensorboard_scalars(t, WALL_S, 7, tags, values, 2, &err);
        dt_mem_fail_at(0);
        if (t) { /* one failure does not spoil the file */
            dt_assert_ok(dt_tensorboard_scalars(t, WALL_S, 8, tags, values, 2, &err), err);
            dt_assert_ok(dt_tensorboard_close(t, &err), err);
        }
        if (st == DT_OK) {
            ck_assert_uint_gt(k, 3);
            return;
        }
        ck_assert_int_eq(st, DT_ERR_NOMEM);
    }
}
END_TEST

static int example(const char *where)
{
    struct dt_tensorboard *t;

    if (dt_tensorboard_open(where, WALL_S, NULL, &t) != DT_OK)
        return 1;
    for (int64_t step = 0; step < 3; step++) {
        float v[2] = {2.385f / (float)(step + 1), 3e-4f};

        if (dt_tensorboard_scalars(t, WALL_S + (double)step, step * 100, tags, v, 2, NULL) != DT_OK)
            return 1;
    }
    puts(dt_tensorboard_path(t));
    return dt_tensorboard_close(t, NULL) == DT_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    Suite *s;
    TCase *c;

    if (argc == 3 && strcmp(argv[1], "--example") == 0)
        return example(argv[2]);
    s = suite_create("tensorboard");
    c = dt_test_case(s, "events", 0);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, crc32c_vectors);
    tcase_add_test(c, bytes_are_tensorboards);
    tcase_add_test(c, two_files_have_two_names);
    tcase_add_test(c, failures_are_reported);
    tcase_add_test(c, every_allocation_may_fail);
    return dt_test_run(s);
}
