/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Cards, built for a CPU (tests/cuda_cpu): the algorithms of products are searched for, noted, and found again; what comes
 * with a product (bias, gradient of a bias, what is added to) is right whichever algorithm runs. */
#include "core/profile/profile.h"
#include "exec/train/profiler_notes.h"
#include "kernels/device_open.h"
#include "kernels/kernels.h"
#include "base/bf16.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "test_util.h"

#include <dlfcn.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

#define MODULES "tests/modules/CPU"

static char path[64];
static int warnings;

static void count_warning(void *ctx, const char *line)
{
    (void)ctx;
    ck_assert_msg(line[0] != '\0', "a warning without words");
    warnings++;
}
static const struct dt_warn warn = {.say = count_warning};

struct work {
    struct dt_device *dev;
    struct dt_device_queue *q;
    void (*ran)(unsigned out[2]);
};

static void begin(struct work *k, bool at_once)
{
    static const struct dt_device_choice which = {.name = "cuda"};
    struct dt_device_options opt = {0};
    struct dt_error err;
    void *so, *p;

    dt_assert_ok(dt_profiler_notes_open(path, at_once, &warn, &err, &opt.notes), err);
    dt_assert_ok(dt_device_open(&which, &opt, &err, &k->dev), err);
    dt_assert_ok(k->dev->queue_new(k->dev, false, &err, &k->q), err);
    so = dlopen(MODULES "/disttrain-cuda.so", RTLD_NOW | RTLD_NOLOAD);
    ck_assert_ptr_nonnull(so);
    p = dlsym(so, "cucpu_lt_ran");
    ck_assert_ptr_nonnull(p);
    memcpy(&k->ran, &p, sizeof(p)); /* POSIX allows it, C has no cast */
}

static void end(struct work *k)
{
    k->dev->queue_free(k->q);
    k->dev->close(k->dev);
}

/* One gradient of a weight with its bias: dw[out, in] (+)= dyᵀ x, db (+)= sums of dy. */
struct sizes {
    int m, out, in;
    bool add;
};

static float *on_device(const struct work *k, const float *x, size_t n)
{
    struct dt_error err;
    void *p;

    dt_assert_ok(k->dev->alloc(k->dev, n * sizeof(float), &err, &p), err);
    k->dev->copy(k->q, p, x, n * sizeof(float), DT_COPY_TO_DEVICE);
    dt_assert_ok(k->dev->queue_sync(k->q, &err), err);
    return p;
}

static void compare(const struct work *k, const float *at, const double *want, size_t n,
                    const char *what)
{
    float *got = dt_malloc(n * sizeof(float));
    struct dt_error err;

    k->dev->copy(k->q, got, at, n * sizeof(float), DT_COPY_TO_HOST);
    dt_assert_ok(k->dev->queue_sync(k->q, &err), err);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)got[i] - want[i]) < 1e-5 * (fabs(want[i]) + 1),
                      "%s[%zu] is %g, not %g", what, i, (double)got[i], want[i]);
    dt_free(got);
}

/* *ran: what each algorithm has run meanwhile. */
static void multiply(struct work *k, struct sizes s, uint64_t seed, unsigned ran[2])
{
    size_t nx = (size_t)(s.m * s.in), ny = (size_t)(s.m * s.out), nw = (size_t)(s.out * s.in);
    float *host = dt_malloc((nx + ny + nw + (size_t)s.out) * sizeof(float));
    double *want = dt_calloc(nw + (size_t)s.out, sizeof(double));
    float *x = host, *dy = x + nx, *w = dy + ny, *b = w + nw, *p, *d_dy, *d_w, *d_b;
    unsigned before[2];

    for (size_t i = 0; i < nx + ny + nw + (size_t)s.out; i++)
        host[i] = (float)dt_rng_normal_at(seed, 1, i);
    for (int o = 0; o < s.out; o++) {
        want[nw + (size_t)o] = s.add ? (double)b[o] : 0;
        for (int r = 0; r < s.m; r++)
            want[nw + (size_t)o] += (double)dy[r * s.out + o];
        for (int i = 0; i < s.in; i++) {
            double *at = &want[o * s.in + i];

            *at = s.add ? (double)w[o * s.in + i] : 0;
            for (int r = 0; r < s.m; r++)
                *at += (double)dy[r * s.out + o] * (double)x[r * s.in + i];
        }
    }
    p = on_device(k, x, nx);
    d_dy = on_device(k, dy, ny);
    d_w = on_device(k, w, nw);
    d_b = on_device(k, b, (size_t)s.out);
    k->ran(before);
    k->dev->k->linear_bwd_weight(k->q, DT_F32, s.m, s.out, s.in, p, d_dy, d_w, d_b, s.add);
    compare(k, d_w, want, nw, "dw");
    compare(k, d_b, want + nw, (size_t)s.out, "dbias");
    k->ran(ran);
    for (int i = 0; i < 2; i++)
        ran[i] -= before[i];
    k->dev->free(k->dev, p);
    k->dev->free(k->dev, d_dy);
    k->dev->free(k->dev, d_w);
    k->dev->free(k->dev, d_b);
    dt_free(host);
    dt_free(want);
}

static const struct sizes usual = {24, 16, 32, true};

START_TEST(test_the_fastest_is_noted)
{
    unsigned ran[2];
    struct work k;

    setenv("CUCPU_LT_SLOW", _i == 0 ? "0" : "1", 1);
    begin(&k, true);
    multiply(&k, usual, 1, ran);
    ck_assert_uint_gt(ran[0], 1); /* both were tried */
    ck_assert_uint_gt(ran[1], 1);
    multiply(&k, usual, 2, ran);
    ck_assert_uint_eq(ran[_i], 0);
    ck_assert_uint_eq(ran[1 - _i], 1);
    end(&k);
    /* another run finds it, and asks nobody how fast it is now */
    setenv("CUCPU_LT_SLOW", _i == 0 ? "1" : "0", 1);
    begin(&k, true);
    multiply(&k, usual, 3, ran);
    ck_assert_uint_eq(ran[_i], 0);
    ck_assert_uint_eq(ran[1 - _i], 1);
    end(&k);
    ck_assert_int_eq(warnings, 0);
}
END_TEST

/* Ranks that compute the same choose alike, whatever they measure. */
START_TEST(test_the_next_run_uses_it)
{
    unsigned ran[2];
    struct work k;

    setenv("CUCPU_LT_SLOW", "0", 1);
    begin(&k, false);
    multiply(&k, usual, 1, ran);
    ck_assert_uint_gt(ran[1], 0);
    multiply(&k, usual, 2, ran);
    ck_assert_uint_eq(ran[0], 1);
    ck_assert_uint_eq(ran[1], 0);
    end(&k);
    begin(&k, false);
    multiply(&k, usual, 2, ran);
    ck_assert_uint_eq(ran[0], 0);
    ck_assert_uint_eq(ran[1], 1);
    end(&k);
}
END_TEST

START_TEST(test_random_products)
{
    uint64_t seed = dt_test_seed() + (uint64_t)_i;
    unsigned ran[2], both = 0;
    struct dt_rng rng;
    struct work k;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&rng, seed, 0);
    setenv("CUCPU_LT_GRADIENT", _i % 2 ? "no" : "yes", 1);
    begin(&k, true);
    for (int i = 0; i < 12; i++) {
        struct sizes s = {1 + (int)dt_rng_below(&rng, 40), 1 + (int)dt_rng_below(&rng, 40),
                          1 + (int)dt_rng_below(&rng, 40), dt_rng_below(&rng, 2) != 0};

        multiply(&k, s, seed + (uint64_t)i, ran);
        both += ran[0] > 0 && ran[1] > 0;
    }
    ck_assert_uint_gt(both, 0);
    end(&k);
}
END_TEST

/* ---- GELU behind a product ---- */

enum { GM = 24, GOUT = 16, GIN = 32 };

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

/* Numbers of a type on the device, and what they are there. */
static void *typed(const struct work *k, enum dt_dtype type, uint64_t seed, size_t n, double *is)
{
    uint16_t *h = dt_malloc(n * sizeof(float));
    float *f = (float *)(void *)h;
    struct dt_error err;
    void *p;

    for (size_t i = 0; i < n; i++) {
        float x = (float)dt_rng_normal_at(seed, 2, i) * 0.5f;

        if (type == DT_BF16) {
            h[i] = dt_bf16_from_f32(x);
            x = dt_bf16_to_f32(h[i]);
        } else {
            f[i] = x;
        }
        is[i] = (double)x;
    }
    dt_assert_ok(k->dev->alloc(k->dev, n * sizeof(float), &err, &p), err);
    k->dev->copy(k->q, p, h, n * dt_dtype_bytes(type), DT_COPY_TO_DEVICE);
    dt_assert_ok(k->dev->queue_sync(k->q, &err), err);
    dt_free(h);
    return p;
}

static void is_near(const struct work *k, enum dt_dtype type, void *at, const double *want,
                    size_t n, const char *what)
{
    float *got = dt_malloc(n * sizeof(float));
    double tol = type == DT_BF16 ? 0x1p-6 : 1e-5; /* h is rounded, then what comes of it */
    struct dt_error err;

    k->dev->copy(k->q, got, at, n * dt_dtype_bytes(type), DT_COPY_TO_HOST);
    dt_assert_ok(k->dev->queue_sync(k->q, &err), err);
    for (size_t i = 0; i < n; i++) {
        double is =
            type == DT_BF16 ? (double)dt_bf16_to_f32(((uint16_t *)(void *)got)[i]) : (double)got[i];

        ck_assert_msg(fabs(is - want[i]) < tol * (fabs(want[i]) + 1), "%s[%zu] is %g, not %g", what,
                      i, is, want[i]);
    }
    dt_free(got);
    k->dev->free(k->dev, at);
}

/* h = x wᵀ + b, y = gelu(h), and back: of g, the gradient of y wᵀ' for a second weight like the first, turned. */
static void there_and_back(struct work *k, enum dt_dtype type, bool biased, uint64_t seed)
{
    static double x[GM * GIN], w[GOUT * GIN], b[GOUT], g[GM * GIN], w2[GIN * GOUT];
    static double h[GM * GOUT], y[GM * GOUT], dh[GM * GOUT];
    const struct dt_device_weight_shape s = {type, GOUT, GIN, 0}, s2 = {type, GIN, GOUT, 0};
    void *d_x = typed(k, type, seed, GM * GIN, x), *d_b = typed(k, DT_F32, seed + 1, GOUT, b);
    void *d_g = typed(k, type, seed + 2, GM * GIN, g),
         *d_w = typed(k, type, seed + 3, GOUT * GIN, w);
    void *d_w2 = typed(k, type, seed + 4, GIN * GOUT, w2), *d_h, *d_y, *d_dh;
    struct dt_device_weight *one, *two;
    struct dt_error err;

    dt_assert_ok(k->dev->alloc(k->dev, sizeof(h), &err, &d_h), err);
    dt_assert_ok(k->dev->alloc(k->dev, sizeof(h), &err, &d_y), err);
    dt_assert_ok(k->dev->alloc(k->dev, sizeof(h), &err, &d_dh), err);
    dt_assert_ok(k->dev->weight_new(k->dev, &s, d_w, type == DT_BF16 ? d_w : NULL, &err, &one),
                 err);
    dt_assert_ok(k->dev->weight_new(k->dev, &s2, d_w2, type == DT_BF16 ? d_w2 : NULL, &err, &two),
                 err);
    k->dev->k->linear_act_fwd(k->q, GM, d_x, one, biased ? d_b : NULL, DT_ACT_GELU_TANH, d_h, d_y);
    k->dev->k->linear_act_bwd(k->q, GM, d_g, two, DT_ACT_GELU_TANH, d_h, d_dh);
    for (int i = 0; i < GM; i++)
        for (int o = 0; o < GOUT; o++) {
            double sum = biased ? b[o] : 0, back = 0, e = 1e-5;

            for (int j = 0; j < GIN; j++) {
                sum += x[i * GIN + j] * w[o * GIN + j];
                back += g[i * GIN + j] * w2[j * GOUT + o];
            }
            h[i * GOUT + o] = sum;
            y[i * GOUT + o] = gelu(sum);
            dh[i * GOUT + o] = back * (gelu(sum + e) - gelu(sum - e)) / (2 * e);
        }
    is_near(k, type, d_h, h, GM * GOUT, "h");
    is_near(k, type, d_y, y, GM * GOUT, "y");
    is_near(k, type, d_dh, dh, GM * GOUT, "dh");
    k->dev->weight_free(one);
    k->dev->weight_free(two);
    for (int i = 0; i < 5; i++)
        k->dev->free(k->dev, (void *[]){d_x, d_b, d_g, d_w, d_w2}[i]);
}

static unsigned fused(struct work *k, enum dt_dtype type, bool biased, uint64_t seed)
{
    unsigned (*ran)(void), before;
    void *p =
        dlsym(dlopen(MODULES "/disttrain-cuda.so", RTLD_NOW | RTLD_NOLOAD), "cucpu_lt_ran_gelu");

    ck_assert_ptr_nonnull(p);
    memcpy(&ran, &p, sizeof(p));
    before = ran();
    there_and_back(k, type, biased, seed);
    return ran() - before;
}

/* Where the epilogue is faster it is taken from then on, else two kernels are; both are right. */
START_TEST(test_gelu_where_it_is_faster)
{
    static const char *const how[] = {"fast", "slow", "no", "late"};
    enum dt_dtype type = _i % 2 ? DT_BF16 : DT_F32;
    struct work k;

    for (int biased = 0; biased < 2; biased++) {
        setenv("CUCPU_LT_GELU", how[_i / 2], 1);
        begin(&k, true);
        ck_assert((fused(&k, type, biased, 1) > 2) == (_i / 2 < 2)); /* timed */
        ck_assert_uint_eq(fused(&k, type, biased, 2), _i / 2 == 0 ? 2 : 0);
        end(&k);
        /* another run finds what was noted; a library that refuses it now is asked */
        setenv("CUCPU_LT_GELU", _i / 2 == 0 ? "slow" : "fast", 1);
        begin(&k, true);
        if (_i / 2 < 2)
            ck_assert_uint_eq(fused(&k, type, biased, 3), _i / 2 == 0 ? 2 : 0);
        end(&k);
        unlink(path);
    }
    ck_assert_int_eq(warnings, 0);
}
END_TEST

/* Without notes nobody has timed it; and what is found is used from the next run on, unless `at_once`. */
START_TEST(test_gelu_is_two_kernels_at_first)
{
    struct work k;

    setenv("CUCPU_LT_GELU", "fast", 1);
    begin(&k, false);
    ck_assert_uint_gt(fused(&k, DT_BF16, true, 1), 2);
    ck_assert_uint_eq(fused(&k, DT_BF16, true, 2), 0);
    end(&k);
    begin(&k, false);
    ck_assert_uint_eq(fused(&k, DT_BF16, true, 2), 2);
    end(&k);
}
END_TEST

/* ---- what the library does not do ---- */

/* y = x wᵀ + b (+ residual) of bf16, and the gradients of w and b, in fp32. */
static void biased(struct work *k, bool residual, uint64_t seed)
{
    static double x[GM * GIN], w[GOUT * GIN], b[GOUT], r[GM * GOUT], y[GM * GOUT];
    static double dw[GOUT * GIN], db[GOUT];
    const struct dt_device_weight_shape s = {DT_BF16, GOUT, GIN, 0};
    void *d_x = typed(k, DT_BF16, seed, GM * GIN, x), *d_b = typed(k, DT_F32, seed + 1, GOUT, b);
    void *d_w = typed(k, DT_BF16, seed + 2, GOUT * GIN, w);
    void *d_r = typed(k, DT_BF16, seed + 3, GM * GOUT, r), *d_y, *d_dw, *d_db;
    struct dt_device_weight *weight;
    struct dt_error err;

    dt_assert_ok(k->dev->alloc(k->dev, sizeof(y), &err, &d_y), err);
    dt_assert_ok(k->dev->alloc(k->dev, sizeof(dw), &err, &d_dw), err);
    dt_assert_ok(k->dev->alloc(k->dev, sizeof(db), &err, &d_db), err);
    dt_assert_ok(k->dev->weight_new(k->dev, &s, d_w, d_w, &err, &weight), err);
    for (int i = 0; i < GM; i++)
        for (int o = 0; o < GOUT; o++) {
            y[i * GOUT + o] = b[o] + (residual ? r[i * GOUT + o] : 0);
            for (int j = 0; j < GIN; j++)
                y[i * GOUT + o] += x[i * GIN + j] * w[o * GIN + j];
        }
    for (int o = 0; o < GOUT; o++) {
        db[o] = 0;
        for (int i = 0; i < GM; i++)
            db[o] += r[i * GOUT + o];
        for (int j = 0; j < GIN; j++) {
            dw[o * GIN + j] = 0;
            for (int i = 0; i < GM; i++)
                dw[o * GIN + j] += r[i * GOUT + o] * x[i * GIN + j];
        }
    }
    for (int again = 0; again < 2; again++) /* what was refused is remembered */
        k->dev->k->linear_fwd(k->q, GM, d_x, weight, d_b, residual ? d_r : NULL, d_y);
    for (int again = 0; again < 2; again++)
        k->dev->k->linear_bwd_weight(k->q, DT_BF16, GM, GOUT, GIN, d_x, d_r, d_dw, d_db, false);
    is_near(k, DT_BF16, d_y, y, GM * GOUT, "y");
    is_near(k, DT_F32, d_dw, dw, GOUT * GIN, "dw");
    is_near(k, DT_F32, d_db, db, GOUT, "db");
    k->dev->weight_free(weight);
    for (int i = 0; i < 4; i++)
        k->dev->free(k->dev, (void *[]){d_x, d_b, d_w, d_r}[i]);
}

/* Whichever of a product's additions the library refuses, with whichever status and by whichever call, is done in another
 * way. */
START_TEST(test_refusals)
{
    static const char *const how[] = {"no", "late", "any", "yes"};
    struct work k;

    setenv("CUCPU_LT_BIAS", how[_i % 4], 1);
    setenv("CUCPU_LT_GRADIENT", how[_i / 4], 1);
    for (int i = 0; i < 2; i++) {
        begin(&k, true);
        biased(&k, i, (uint64_t)_i);
        end(&k);
    }
}
END_TEST

static void run_sql(const char *sql)
{
    sqlite3 *db;

    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

/* Algorithms that were noted before sums of parts had to stay in fp32 may round them: the product is another one now. */
START_TEST(test_old_notes_of_results_in_bf16)
{
    struct work k;

    setenv("CUCPU_LT_GELU", "fast", 1);
    for (int type = DT_F32; type <= DT_BF16; type++) {
        begin(&k, true);
        ck_assert_uint_gt(fused(&k, (enum dt_dtype)type, true, 1), 2); /* timed */
        end(&k);
        begin(&k, true);
        ck_assert_uint_eq(fused(&k, (enum dt_dtype)type, true, 2), 2); /* found */
        end(&k);
        run_sql("UPDATE note SET what = replace(what, ' parts fp32', '')");
        begin(&k, true);
        ck_assert((fused(&k, (enum dt_dtype)type, true, 3) > 2) == (type == DT_BF16));
        end(&k);
        unlink(path);
    }
}
END_TEST

/* The library is asked about what was noted: another one may say of itself that it is the same. */
START_TEST(test_what_the_library_refuses)
{
    unsigned ran[2];
    struct work k;

    begin(&k, true);
    multiply(&k, usual, 1, ran);
    end(&k);
    run_sql("UPDATE note SET value = zeroblob(64)");
    begin(&k, true);
    multiply(&k, usual, 1, ran);
    ck_assert_uint_gt(ran[0], 1); /* searched again */
    end(&k);
    run_sql("UPDATE note SET value = zeroblob(3)");
    begin(&k, true);
    multiply(&k, usual, 1, ran);
    ck_assert_uint_gt(ran[0], 1);
    end(&k);
    run_sql("UPDATE note SET library = library + 1");
    begin(&k, true);
    multiply(&k, usual, 1, ran);
    ck_assert_uint_gt(ran[0], 1);
    end(&k);
    ck_assert_int_eq(warnings, 0);
}
END_TEST

static void refused(const char *text)
{
    const struct dt_device_notes *n;
    struct dt_error err;

    ck_assert_int_eq(dt_profiler_notes_open(path, true, NULL, &err, &n), DT_ERR_INPUT);
    ck_assert_msg(strstr(err.message, text), "%s", err.message);
}

START_TEST(test_other_files)
{
    struct work k;
    unsigned ran[2];
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < 300; i++)
        fputs("not a database ", f);
    fclose(f);
    refused("not a database");
    unlink(path);
    run_sql("CREATE TABLE invoice(n INTEGER)");
    refused("something else");
    unlink(path);
    begin(&k, true);
    multiply(&k, usual, 1, ran);
    end(&k);
    run_sql("INSERT INTO note VALUES('a', 1, 'b', zeroblob(1000), 1, 1)");
    refused("not one that disttrain writes");
    ck_assert_int_eq(warnings, 0);
    /* a folder that is not there: the run goes on, and one warning says so */
    unlink(path);
    snprintf(path, sizeof(path), "test_cuda_products.none/file");
    begin(&k, true);
    multiply(&k, usual, 1, ran);
    multiply(&k, (struct sizes){8, 8, 8, false}, 1, ran);
    multiply(&k, usual, 1, ran);
    ck_assert_uint_eq(ran[0] + ran[1], 1);
    ck_assert_int_eq(warnings, 1);
    end(&k);
}
END_TEST

/* Notes may stand in a profile, which is read as before. */
START_TEST(test_a_profile)
{
    char source[4096], *sql;
    struct dt_profile *p;
    struct dt_error err;
    unsigned ran[2];
    struct work k;
    int64_t rows;
    size_t len;

    snprintf(source, sizeof(source), "%s/traces/profiles/a100.sql",
             getenv("srcdir") ? getenv("srcdir") : "..");
    dt_assert_ok(dt_file_read(source, 1 << 26, &err, &sql, &len), err);
    run_sql(sql);
    dt_free(sql);
    snprintf(source, sizeof(source), "./%s", path);
    dt_assert_ok(dt_profile_load(source, "", "bf16", &err, &p), err);
    rows = p->n_rows;
    dt_profile_free(p);
    begin(&k, true);
    multiply(&k, usual, 1, ran);
    end(&k);
    dt_assert_ok(dt_profile_load(source, "", "bf16", &err, &p), err);
    ck_assert_int_eq(p->n_rows, rows);
    dt_profile_free(p);
    begin(&k, true);
    multiply(&k, usual, 2, ran);
    ck_assert_uint_eq(ran[0] + ran[1], 1);
    end(&k);
}
END_TEST

static void set_up(void)
{
    snprintf(path, sizeof(path), "test_cuda_products.%d.db", (int)getpid());
    unlink(path);
    warnings = 0;
    unsetenv("CUCPU_LT_SLOW");
    unsetenv("CUCPU_LT_GRADIENT");
    unsetenv("CUCPU_LT_BIAS");
    unsetenv("CUCPU_LT_GELU");
}

static void tear_down(void)
{
    unlink(path);
}

int main(void)
{
    Suite *s = suite_create("cards: algorithms of products");
    TCase *t = dt_test_case(s, "products", 120);

    if (access(MODULES "/disttrain-cuda.so", R_OK) != 0) {
        printf("SKIP: there is no C++20 compiler for %s\n", MODULES);
        return 77;
    }
    setenv("DISTTRAIN_MODULES", MODULES, 1);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_loop_test(t, test_the_fastest_is_noted, 0, 2);
    tcase_add_test(t, test_the_next_run_uses_it);
    tcase_add_loop_test(t, test_random_products, 0, 4);
    tcase_add_loop_test(t, test_gelu_where_it_is_faster, 0, 8);
    tcase_add_loop_test(t, test_refusals, 0, 12);
    tcase_add_test(t, test_gelu_is_two_kernels_at_first);
    tcase_add_test(t, test_what_the_library_refuses);
    tcase_add_test(t, test_old_notes_of_results_in_bf16);
    tcase_add_test(t, test_other_files);
    tcase_add_test(t, test_a_profile);
    return dt_test_run(s);
}
