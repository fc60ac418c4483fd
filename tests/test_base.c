/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The ground floor: status and errors, memory, arenas, random numbers, files, UTF-8, numbers. */
#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/text.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "base/clock.h"
#include "test_util.h"

#include <gsl/gsl_cdf.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- status ---- */

START_TEST(status_codes)
{
    ck_assert_int_eq(dt_status_exit_code(DT_OK), 0);
    ck_assert_int_eq(dt_status_exit_code(DT_ERR_NOMEM), 1);
    ck_assert_int_eq(dt_status_exit_code(DT_ERR_INPUT), 2);
    ck_assert_int_eq(dt_status_exit_code(DT_ERR_MISSING_PROFILE), 2);
    ck_assert_int_eq(dt_status_exit_code(DT_ERR_INFEASIBLE), 3);
    ck_assert_int_eq(dt_status_exit_code(DT_ERR_TOLERANCE), 4);
    ck_assert_int_eq(dt_status_exit_code(DT_ERR_PEER), 5);
    ck_assert_int_eq(dt_status_exit_code(DT_ERR_DIVERGED), 6);
    ck_assert_int_eq(dt_status_exit_code((enum dt_status)9999), 1);
    ck_assert_str_eq(dt_status_text(DT_ERR_INFEASIBLE), "no plan fits");
    ck_assert_str_eq(dt_status_text((enum dt_status) - 1), "unknown status");
}
END_TEST

START_TEST(error_format)
{
    struct dt_error err, passed;
    char buf[64];

    ck_assert_int_eq(dt_error_set(&err, DT_ERR_IO, "disk %d of %s", 3, "sda"), DT_ERR_IO);
    dt_error_format(&err, buf, sizeof(buf));
    ck_assert_str_eq(buf, "disk 3 of sda");
    dt_error_at(&err, DT_ERR_INPUT, "job.yaml", 7, 12, "bad %s", "tp");
    dt_error_format(&err, buf, sizeof(buf));
    ck_assert_str_eq(buf, "job.yaml:7:12: bad tp");
    dt_error_at(&err, DT_ERR_INPUT, "job.yaml", 3, 0, "wrong");
    dt_error_format(&err, buf, sizeof(buf));
    ck_assert_str_eq(buf, "job.yaml:3: wrong");
    dt_error_format(&err, buf, 9);
    ck_assert_str_eq(buf, "job.yaml");
    dt_error_at(&err, DT_ERR_INPUT, "job.yaml", 0, 0, "gone");
    dt_error_format(&err, buf, sizeof(buf));
    ck_assert_str_eq(buf, "job.yaml: gone");
    dt_error_at(&err, DT_ERR_IO, "plan.json", 3, 4, "cut off");
    ck_assert_int_eq(dt_error_pass(NULL, &err), DT_ERR_IO);
    ck_assert_int_eq(dt_error_pass(&passed, &err), DT_ERR_IO);
    dt_error_format(&passed, buf, sizeof(buf));
    ck_assert_str_eq(buf, "plan.json:3:4: cut off");
    ck_assert_int_eq(dt_error_set(NULL, DT_ERR_DB, "nobody listens"), DT_ERR_DB);
    ck_assert_int_eq(dt_error_nomem(&err, "a plan"), DT_ERR_NOMEM);
    dt_assert_has(err.message, "a plan");
}
END_TEST

START_TEST(error_cuts_long_messages)
{
    struct dt_error err;
    char *longer = malloc(10000);

    ck_assert_ptr_nonnull(longer);
    memset(longer, 'x', 9999);
    longer[9999] = '\0';
    dt_error_at(&err, DT_ERR_INPUT, longer, 1, 1, "%s", longer);
    ck_assert_uint_eq(strlen(err.message), sizeof(err.message) - 1);
    ck_assert_uint_eq(strlen(err.file), sizeof(err.file) - 1);
    free(longer);
}
END_TEST

/* ---- memory ---- */

START_TEST(nth_allocation_fails)
{
    void *p[5];

    dt_mem_fail_at(3);
    for (int i = 0; i < 5; i++) {
        p[i] = dt_malloc(17);
        ck_assert_int_eq(p[i] == NULL, i == 2);
    }
    ck_assert_uint_eq(dt_mem_count(), 5);
    dt_mem_fail_at(1);
    ck_assert_ptr_null(dt_strdup("text"));
    dt_mem_fail_at(1);
    ck_assert_ptr_null(dt_calloc(3, 5));
    dt_mem_fail_at(1);
    ck_assert_ptr_null(dt_realloc(p[0], 99)); /* and p[0] is still ours */
    dt_mem_fail_at(0);
    for (int i = 0; i < 5; i++)
        dt_free(p[i]);
}
END_TEST

START_TEST(zero_and_overflow)
{
    void *a = dt_malloc(0), *b = dt_calloc(0, 8), *c = dt_realloc(NULL, 0);

    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_nonnull(b);
    ck_assert_ptr_nonnull(c);
    ck_assert_ptr_null(dt_calloc(SIZE_MAX / 2, 3));
    dt_free(a);
    dt_free(b);
    dt_free(c);
    dt_free(NULL);
}
END_TEST

START_TEST(grow_keeps_contents)
{
    void *p = NULL;
    size_t cap = 0, before;

    for (size_t n = 1; n <= 1000; n++) {
        before = cap;
        ck_assert_int_eq(dt_grow(&p, &cap, n, sizeof(size_t)), 0);
        ck_assert_uint_ge(cap, n);
        ck_assert(cap == before || cap >= 2 * before); /* geometric */
        ((size_t *)p)[n - 1] = n * 2654435761u;
    }
    for (size_t n = 1; n <= 1000; n++)
        ck_assert_uint_eq(((size_t *)p)[n - 1], n * 2654435761u);
    before = cap;
    dt_mem_fail_at(1);
    ck_assert_int_eq(dt_grow(&p, &cap, 100000, sizeof(size_t)), -1);
    dt_mem_fail_at(0);
    ck_assert_int_eq(dt_grow(&p, &cap, SIZE_MAX / 4, sizeof(size_t)), -1);
    ck_assert_uint_eq(cap, before);
    ck_assert_uint_eq(((size_t *)p)[999], 1000 * (size_t)2654435761u);
    dt_free(p);
}
END_TEST

static bool all_bytes(const unsigned char *p, size_t n, int byte)
{
    size_t k = 0;

    while (k < n && p[k] == byte)
        k++;
    return k == n;
}

START_TEST(arena_is_aligned_zeroed_and_disjoint)
{
    struct dt_arena a = {0};
    unsigned char *p[3000];
    size_t size[3000];
    uint64_t seed = dt_test_seed();
    struct dt_rng r;

    dt_rng_init(&r, seed, 1);
    for (int i = 0; i < 3000; i++) {
        size[i] = i % 500 == 7 ? 100000 + dt_rng_below(&r, 9) : 1 + dt_rng_below(&r, 700);
        p[i] = dt_arena_alloc(&a, size[i], 1);
        ck_assert_ptr_nonnull(p[i]);
        ck_assert_msg((uintptr_t)p[i] % 16 == 0, "seed %" PRIu64, seed);
        ck_assert_msg(all_bytes(p[i], size[i], 0), "seed %" PRIu64, seed);
        memset(p[i], i % 251 + 1, size[i]);
    }
    for (int i = 0; i < 3000; i++)
        ck_assert_msg(all_bytes(p[i], size[i], i % 251 + 1), "seed %" PRIu64, seed);
    ck_assert_uint_ge(a.total_bytes, 3000 * 300);
    dt_arena_free(&a);
    ck_assert_uint_eq(a.total_bytes, 0);
    ck_assert_ptr_nonnull(dt_arena_alloc(&a, 0, 8)); /* usable again, and 0 is no failure */
    dt_arena_free(&a);
}
END_TEST

START_TEST(arena_failures)
{
    struct dt_arena a = {0};
    char *s = dt_arena_strdup(&a, "stays");

    ck_assert_ptr_null(dt_arena_alloc(&a, SIZE_MAX / 2, 3));
    ck_assert_ptr_null(dt_arena_alloc(&a, SIZE_MAX - 3, 1));
    ck_assert_ptr_null(dt_arena_alloc(&a, SIZE_MAX - 40, 1));
    dt_mem_fail_at(1);
    ck_assert_ptr_null(dt_arena_alloc(&a, 1 << 20, 1));
    dt_mem_fail_at(0);
    ck_assert_str_eq(s, "stays");
    dt_arena_free(&a);
}
END_TEST

/* ---- random numbers ---- */

/* Known answers of philox 4x32-10 in kat_vectors of the Random123 distribution. */
START_TEST(philox_known_answers)
{
    static const struct {
        uint32_t ctr[4], key[2], out[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t out[4];

    dt_rng_philox4x32(kat[_i].ctr, kat[_i].key, out);
    ck_assert_mem_eq(out, kat[_i].out, sizeof(out));
}
END_TEST

START_TEST(streams_are_pinned_and_independent)
{
    struct dt_rng a, b, c;
    int same = 0;

    dt_rng_init(&a, 0, 0);
    ck_assert_uint_eq(dt_rng_u32(&a), 0x6627e8d5); /* the first known answer */
    ck_assert_uint_eq(dt_rng_u64(&a), UINT64_C(0xbc57ac4ce169c58d));
    dt_rng_init(&a, 2385, 1);
    dt_rng_init(&b, 2385, 1);
    dt_rng_init(&c, 2385, 2);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = dt_rng_u64(&a);

        ck_assert_uint_eq(x, dt_rng_u64(&b));
        same += x == dt_rng_u64(&c);
    }
    ck_assert_int_eq(same, 0);
}
END_TEST

START_TEST(uniform_and_normal_moments)
{
    enum { N = 200000 };
    uint64_t seed = dt_test_seed();
    bool inside = true;
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0, at1 = 0, at2 = 0;
    struct dt_rng r;

    dt_rng_init(&r, seed, 7);
    for (int i = 0; i < N; i++) {
        double u = dt_rng_uniform(&r), n = dt_rng_normal(&r);
        double at = dt_rng_normal_at(seed, 11, (uint64_t)i);

        inside = inside && u > 0 && u < 1;
        u1 += u;
        u2 += u * u;
        n1 += n;
        n2 += n * n;
        n4 += n * n * n * n;
        at1 += at;
        at2 += at * at;
    }
    ck_assert_msg(inside, "seed %" PRIu64, seed);
    /* five standard errors of each mean */
    ck_assert_msg(fabs(u1 / N - 0.5) < 5 * 0.2887 / sqrt(N), "seed %" PRIu64, seed);
    ck_assert_msg(fabs(u2 / N - 1.0 / 3) < 5 * 0.2982 / sqrt(N), "seed %" PRIu64, seed);
    ck_assert_msg(fabs(n1 / N) < 5 / sqrt(N), "seed %" PRIu64, seed);
    ck_assert_msg(fabs(n2 / N - 1) < 5 * 1.4143 / sqrt(N), "seed %" PRIu64, seed);
    ck_assert_msg(fabs(n4 / N - 3) < 5 * 9.7980 / sqrt(N), "seed %" PRIu64, seed);
    ck_assert_msg(fabs(at1 / N) < 5 / sqrt(N), "seed %" PRIu64, seed);
    ck_assert_msg(fabs(at2 / N - 1) < 5 * 1.4143 / sqrt(N), "seed %" PRIu64, seed);
    ck_assert(dt_rng_normal_at(seed, 11, 5) == dt_rng_normal_at(seed, 11, 5));
    ck_assert(dt_rng_normal_at(seed, 11, 5) != dt_rng_normal_at(seed, 12, 5));
}
END_TEST

/* Against GSL: in the middle, in the tails down to 1e-300, and on both sides of where the formula
 * changes. */
START_TEST(normal_quantile_is_gsls)
{
    enum { N = 100000 };
    uint64_t seed = dt_test_seed();
    double worst = 0;
    struct dt_rng r;

    dt_rng_init(&r, seed, 8);
    for (int i = 0; i < N; i++) {
        double u = dt_rng_uniform(&r), tail = pow(10.0, -300.0 * u), p[] = {u, tail, 1.0 - 0.1 * u};

        for (size_t k = 0; k < sizeof(p) / sizeof(p[0]); k++) {
            double want = gsl_cdf_ugaussian_Pinv(p[k]), got = dt_normal_quantile(p[k]);

            worst = fmax(worst, fabs(got - want) / fmax(fabs(want), 1e-3));
        }
    }
    ck_assert_msg(worst < 1e-14, "off by %g, seed %" PRIu64, worst, seed);
    ck_assert(dt_normal_quantile(0.5) == 0.0);
    for (double edge = 0.075; edge < 1.0; edge += 0.85)
        ck_assert_double_eq_tol(dt_normal_quantile(nextafter(edge, 0.0)),
                                dt_normal_quantile(nextafter(edge, 1.0)), 1e-14);
}
END_TEST

START_TEST(below_is_uniform)
{
    enum { N = 70000, K = 7 };
    uint64_t seed = dt_test_seed();
    double chi2 = 0;
    int count[K] = {0};
    struct dt_rng r;

    dt_rng_init(&r, seed, 3);
    for (int i = 0; i < N; i++)
        count[dt_rng_below(&r, K)]++;
    for (int k = 0; k < K; k++)
        chi2 += pow(count[k] - (double)N / K, 2) / ((double)N / K);
    ck_assert_msg(chi2 < 35.0, "chi2 %g, seed %" PRIu64, chi2, seed); /* 6 d.o.f., p = 4e-6 */
    ck_assert_uint_eq(dt_rng_below(&r, 1), 0);
    ck_assert_uint_eq(dt_rng_below(&r, 0), 0);
    for (int i = 0; i < 1000; i++)
        ck_assert_uint_lt(dt_rng_below(&r, UINT64_C(0x8000000000000001)),
                          UINT64_C(0x8000000000000001));
}
END_TEST

START_TEST(clock_moves_forward)
{
    uint64_t last = dt_clock_ns();

    for (int i = 0; i < 1000; i++) {
        uint64_t now = dt_clock_ns();

        ck_assert_uint_ge(now, last);
        last = now;
    }
    usleep(2000);
    ck_assert_uint_ge(dt_clock_ns() - last, 2000000);
}
END_TEST

/* ---- numbers and UTF-8 ---- */

START_TEST(numbers)
{
    double d = 2.385;
    int64_t i = 99;

    ck_assert_uint_eq(dt_number_scan("-12.5e-1 GB", &d), 8);
    ck_assert_double_eq(d, -1.25);
    ck_assert_uint_eq(dt_number_scan("80GB", &d), 2);
    ck_assert_uint_eq(dt_number_scan("1e", &d), 1); /* an exponent needs digits */
    ck_assert_uint_eq(dt_number_scan(".5", &d), 2);
    ck_assert_double_eq(d, 0.5);
    ck_assert_uint_eq(dt_number_scan(".", &d), 0);
    ck_assert_uint_eq(dt_number_scan("nan", &d), 0);
    ck_assert_uint_eq(dt_number_scan("0x10", &d), 1);
    d = 2.385;
    ck_assert(!dt_number_double("1e999", &d));
    ck_assert(!dt_number_double("12 ", &d));
    ck_assert(!dt_number_double("", &d));
    ck_assert_double_eq(d, 2.385);
    ck_assert(dt_number_int("-9223372036854775808", &i));
    ck_assert_int_eq(i, INT64_MIN);
    ck_assert(!dt_number_int("9223372036854775808", &i));
    ck_assert(!dt_number_int("1.0", &i));
    ck_assert(!dt_number_int("+", &i));
    ck_assert_int_eq(i, INT64_MIN);
}
END_TEST

START_TEST(utf8)
{
    ck_assert_uint_eq(dt_utf8_length("a", 1), 1);
    ck_assert_uint_eq(dt_utf8_length("\xc3\xa9", 2), 2);
    ck_assert_uint_eq(dt_utf8_length("\xe2\x82\xac", 3), 3);
    ck_assert_uint_eq(dt_utf8_length("\xf0\x9f\x98\x80", 4), 4);
    ck_assert_uint_eq(dt_utf8_length("\xc3\xa9", 1), 0);         /* cut off */
    ck_assert_uint_eq(dt_utf8_length("\xc0\xaf", 2), 0);         /* overlong */
    ck_assert_uint_eq(dt_utf8_length("\xe0\x80\xaf", 3), 0);     /* overlong */
    ck_assert_uint_eq(dt_utf8_length("\xf0\x80\x80\xaf", 4), 0); /* overlong */
    ck_assert_uint_eq(dt_utf8_length("\xed\xa0\x80", 3), 0);     /* surrogate */
    ck_assert_uint_eq(dt_utf8_length("\xf4\x90\x80\x80", 4), 0); /* above U+10FFFF */
    ck_assert_uint_eq(dt_utf8_length("\xe2\x28\xac", 3), 0);
    ck_assert_uint_eq(dt_utf8_length("\xe2\x82\x28", 3), 0);
    ck_assert_uint_eq(dt_utf8_length("\xff", 1), 0);
}
END_TEST

START_TEST(durations)
{
    static const struct {
        double s;
        const char *text;
    } cases[] = {
        {0, "0 s"},
        {0.4, "0 s"},
        {59.4, "59 s"},
        {59.5, "1 min 0 s"},
        {3261.606, "54 min 22 s"},
        {3600, "1 h 0 min"},
        {11279, "3 h 7 min"},
        {86399, "23 h 59 min"},
        {439200, "5 d 2 h"},
        {-1, "?"},
        {NAN, "?"},
        {INFINITY, "?"},
    };
    char buf[32];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_str_eq(dt_text_duration(cases[i].s, buf, sizeof(buf)), cases[i].text);
}
END_TEST

START_TEST(fields_go_in_whole)
{
    static const char line[] = "step 3/9  text 1.5  ETA 2 s";

    ck_assert_uint_eq(dt_text_fit(line, 80), strlen(line));
    ck_assert_uint_eq(dt_text_fit(line, (int)strlen(line)), strlen(line));
    ck_assert_uint_eq(dt_text_fit(line, (int)strlen(line) - 1), strlen("step 3/9  text 1.5"));
    ck_assert_uint_eq(dt_text_fit(line, 18), strlen("step 3/9  text 1.5"));
    ck_assert_uint_eq(dt_text_fit(line, 17), strlen("step 3/9"));
    ck_assert_uint_eq(dt_text_fit(line, 5), 5); /* not even the first: cut */
    ck_assert_uint_eq(dt_text_fit(line, 0), 0);
    ck_assert_uint_eq(dt_text_fit("\xc3\xa9\xc3\xa9", 1), 2); /* never inside a character */
    ck_assert_str_eq(dt_plural(1), "");
    ck_assert_str_eq(dt_plural(0), "s");
    ck_assert_str_eq(dt_plural(2), "s");
}
END_TEST

/* ---- files ---- */

static char dir[64];

static void enter_dir(void)
{
    snprintf(dir, sizeof(dir), "/tmp/dt-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
}

static void leave_dir(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s", dir);
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(system(command), 0);
}

static void assert_holds(const char *path, const char *text)
{
    struct dt_error err;
    char *got;
    size_t len;

    dt_assert_ok(dt_file_read(path, 1 << 20, &err, &got, &len), err);
    ck_assert_str_eq(got, text);
    ck_assert_uint_eq(len, strlen(text));
    dt_free(got);
}

START_TEST(write_replaces_whole_files)
{
    struct dt_error err;
    struct stat sb;

    dt_assert_ok(dt_file_write("plan.json", "first", 5, &err), err);
    assert_holds("plan.json", "first");
    ck_assert_int_eq(chmod("plan.json", 0640), 0);
    ck_assert_int_eq(symlink("plan.json", "link"), 0);
    dt_assert_ok(dt_file_write("link", "second one", 10, &err), err);
    assert_holds("plan.json", "second one");
    ck_assert_int_eq(lstat("link", &sb), 0);
    ck_assert(S_ISLNK(sb.st_mode)); /* what it points to was replaced, not the link */
    ck_assert_int_eq(stat("plan.json", &sb), 0);
    ck_assert_uint_eq(sb.st_mode & 07777, 0640);
    dt_assert_ok(dt_file_write("/dev/null", "gone", 4, &err), err);
    ck_assert_int_eq(system("test $(ls | wc -l) -eq 2"), 0); /* no temporary file stays */
}
END_TEST

/* What lies where a temporary file would go stays as it is, and nothing is written through it. */
START_TEST(write_goes_around_what_is_planted)
{
    struct dt_error err;
    char temp[64];

    dt_assert_ok(dt_file_write("victim", "precious", 8, &err), err);
    snprintf(temp, sizeof(temp), "plan.json.tmp.%ld", (long)getpid());
    ck_assert_int_eq(symlink("victim", temp), 0);
    snprintf(temp, sizeof(temp), "plan.json.tmp.%ld.1", (long)getpid());
    ck_assert_int_eq(mkfifo(temp, 0600), 0);
    snprintf(temp, sizeof(temp), "plan.json.tmp.%ld.2", (long)getpid());
    ck_assert_int_eq(link("victim", temp), 0);
    dt_assert_ok(dt_file_write("plan.json", "new", 3, &err), err);
    assert_holds("plan.json", "new");
    assert_holds("victim", "precious");
    ck_assert_int_eq(system("test $(ls | wc -l) -eq 5"), 0);
}
END_TEST

START_TEST(write_fails_without_harm)
{
    struct dt_error err;

    dt_assert_ok(dt_file_write("keep", "old", 3, &err), err);
    ck_assert_int_eq(mkdir("d", 0755), 0);
    ck_assert_int_eq(dt_file_write("d", "x", 1, &err), DT_ERR_IO);
    dt_assert_has(err.message, "directory");
    ck_assert_int_eq(dt_file_write("no/such/dir/f", "x", 1, &err), DT_ERR_IO);
    ck_assert_str_eq(err.file, "no/such/dir/f");
    ck_assert_int_eq(dt_file_write("/dev/full", "x", 1, &err), DT_ERR_IO);
    assert_holds("keep", "old");
}
END_TEST

START_TEST(read_limits_and_errors)
{
    struct dt_error err;
    char *out = NULL;

    ck_assert_int_eq(dt_file_read("absent", 10, &err, &out, NULL), DT_ERR_INPUT);
    dt_assert_has(err.message, "cannot open");
    ck_assert_str_eq(err.file, "absent");
    ck_assert_int_eq(dt_file_read(".", 10, &err, &out, NULL), DT_ERR_INPUT);
    dt_assert_ok(dt_file_write("f", "0123456789", 10, &err), err);
    ck_assert_int_eq(dt_file_read("f", 9, &err, &out, NULL), DT_ERR_INPUT);
    dt_assert_has(err.message, "limit");
    dt_mem_fail_at(1);
    ck_assert_int_eq(dt_file_read("f", 10, &err, &out, NULL), DT_ERR_NOMEM);
    dt_mem_fail_at(0);
    ck_assert_ptr_null(out);
    dt_assert_ok(dt_file_read("f", 10, &err, &out, NULL), err);
    dt_free(out);
}
END_TEST

START_TEST(find_presets)
{
    struct dt_error err;
    char path[256], small[8];

    ck_assert_int_eq(mkdir("models", 0755), 0);
    dt_assert_ok(dt_file_write("models/tiny-7b.yaml", "a: 1\n", 5, &err), err);
    dt_assert_ok(dt_file_write("models/tiny-70b.yaml", "a: 1\n", 5, &err), err);
    dt_assert_ok(dt_file_write("own.yaml", "a: 2\n", 5, &err), err);
    setenv("DISTTRAIN_TRACES", dir, 1);
    dt_assert_ok(dt_file_find("models", "tiny-7b", ".yaml", &err, path, sizeof(path)), err);
    assert_holds(path, "a: 1\n");
    dt_assert_ok(dt_file_find("models", "own.yaml", ".yaml", &err, path, sizeof(path)), err);
    ck_assert_str_eq(path, "own.yaml");
    ck_assert_int_eq(dt_file_find("models", "tiny-8b", ".yaml", &err, path, sizeof(path)),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "did you mean \"tiny-7b\"");
    dt_assert_has(err.message, "tiny-70b, tiny-7b"); /* all of them, sorted */
    ck_assert_int_eq(dt_file_find("models", "../own", ".yaml", &err, path, sizeof(path)),
                     DT_ERR_INPUT);
    ck_assert_int_eq(dt_file_find("nokind", "x", ".yaml", &err, path, sizeof(path)), DT_ERR_INPUT);
    dt_assert_has(err.message, "DISTTRAIN_TRACES");
    ck_assert_int_eq(dt_file_find("models", "tiny-7b", ".yaml", &err, small, sizeof(small)),
                     DT_ERR_INPUT);
}
END_TEST

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
static long faults(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_minflt;
}

/* Memory that was asked for ahead has its pages: an array twice as large as the last one brings few faults. */
START_TEST(memory_asked_for_ahead_is_there)
{
    enum { BYTES = 8 << 20, PAGE = 4096 };
    void *p;
    long before;

    dt_mem_keep();
    p = dt_malloc(BYTES);
    ck_assert_ptr_nonnull(p);
    memset(p, 1, BYTES);
    dt_free(p);
    if (mallinfo2().arena < BYTES) { /* under valgrind */
        puts("another allocator: not tested");
        return;
    }
    dt_mem_keep_more(BYTES);
    before = faults();
    p = dt_malloc(2 * BYTES - PAGE);
    ck_assert_ptr_nonnull(p);
    memset(p, 1, 2 * BYTES - PAGE);
    ck_assert_int_lt(faults() - before, BYTES / PAGE / 8);
    dt_free(p);
}
END_TEST
#endif

int main(void)
{
    Suite *s = suite_create("base");
    TCase *status = dt_test_case(s, "status", 0), *mem = dt_test_case(s, "mem", 0);
    TCase *rng = dt_test_case(s, "rng", 60), *text = dt_test_case(s, "text", 0),
          *file = dt_test_case(s, "file", 0);

    tcase_add_test(status, status_codes);
    tcase_add_test(status, error_format);
    tcase_add_test(status, error_cuts_long_messages);
    tcase_add_test(mem, nth_allocation_fails);
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
    tcase_add_test(mem, memory_asked_for_ahead_is_there);
#endif
    tcase_add_test(mem, zero_and_overflow);
    tcase_add_test(mem, grow_keeps_contents);
    tcase_add_test(mem, arena_is_aligned_zeroed_and_disjoint);
    tcase_add_test(mem, arena_failures);
    tcase_add_loop_test(rng, philox_known_answers, 0, 3);
    tcase_add_test(rng, streams_are_pinned_and_independent);
    tcase_add_test(rng, uniform_and_normal_moments);
    tcase_add_test(rng, normal_quantile_is_gsls);
    tcase_add_test(rng, below_is_uniform);
    tcase_add_test(rng, clock_moves_forward);
    tcase_add_test(text, numbers);
    tcase_add_test(text, utf8);
    tcase_add_test(text, durations);
    tcase_add_test(text, fields_go_in_whole);
    tcase_add_checked_fixture(file, enter_dir, leave_dir);
    tcase_add_test(file, write_replaces_whole_files);
    tcase_add_test(file, write_goes_around_what_is_planted);
    tcase_add_test(file, write_fails_without_harm);
    tcase_add_test(file, read_limits_and_errors);
    tcase_add_test(file, find_presets);
    return dt_test_run(s);
}
