/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Values that are not finite: counting them, and refusing them in files and checkpoints. */
#include "base/bf16.h"
#include "base/file.h"
#include "base/finite.h"
#include "base/mem.h"
#include "base/rng.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/safetensors.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dt_error err;

/* ---- counting ---- */

START_TEST(counts_what_isnan_and_isinf_say)
{
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 1);
    for (int round = 0; round < 200; round++) {
        size_t n = (size_t)dt_rng_below(&r, 5000), first = (size_t)dt_rng_below(&r, 3);
        int some = (int)dt_rng_below(&r, 4);
        float *all = dt_malloc((n + 3) * sizeof(*all)), *v = all + first;
        struct dt_nonfinite got = {.nan = 7, .inf = 9}, is = got;

        ck_assert_ptr_nonnull(all);
        for (size_t i = 0; i < n; i++) {
            uint32_t u = (uint32_t)dt_rng_u64(&r);

            if (some == 0) /* any bits at all: about 1 in 128 is no number */
                memcpy(&v[i], &u, sizeof(u));
            else
                v[i] = (float)dt_rng_normal(&r) * 1e38f;
        }
        for (int k = 0; n > 0 && k < some; k++)
            v[dt_rng_below(&r, n)] = k == 0 ? NAN : k == 1 ? -INFINITY : INFINITY;
        for (size_t i = 0; i < n; i++) {
            is.nan += (uint64_t)(isnan(v[i]) != 0);
            is.inf += (uint64_t)(isinf(v[i]) != 0);
        }
        dt_nonfinite_count(v, n, &got);
        ck_assert_uint_eq(got.nan, is.nan);
        ck_assert_uint_eq(got.inf, is.inf);
        dt_free(all);
    }
}
END_TEST

START_TEST(says_how_many)
{
    char text[128];
    struct dt_nonfinite x = {.nan = 2, .inf = 1}, one = {.nan = 1};

    ck_assert_str_eq(dt_nonfinite_text(&x, 512, text, sizeof(text)),
                     "3 of 512 values are not finite (2 NaN, 1 infinite)");
    ck_assert_str_eq(dt_nonfinite_text(&one, 1, text, sizeof(text)),
                     "1 of 1 value is not finite (1 NaN, 0 infinite)");
}
END_TEST

/* ---- files ---- */

enum { N = 1500 };
static char dir[64];
static const struct dt_param params[] = {
    {.name = "a.weight", .n_dims = 2, .shape = {30, 50}, .at = 0, .n = N},
    {.name = "b.bias", .n_dims = 1, .shape = {8}, .at = 1536, .n = 8}};
static float master[1544], m[1544], v[1544];
static struct dt_ckpt_part part = {.module = "llm",
                                   .params = params,
                                   .n_params = 2,
                                   .master = master,
                                   .exp_avg = m,
                                   .exp_avg_sq = v};

static void setup(void)
{
    snprintf(dir, sizeof(dir), "/tmp/dt-finite-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    for (int i = 0; i < 1544; i++) {
        master[i] = (float)i / 1544;
        m[i] = (float)-i;
        v[i] = (float)i * 1e-6f;
    }
}

static void teardown(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

/* A file of "a.weight" in the type, with these as two of its values. */
static void write_foreign(const char *path, enum dt_tensor_type type, double x, double y)
{
    struct dt_tensor t = {.name = "a.weight", .type = type, .n_dims = 2, .shape = {30, 50}};
    static unsigned char bytes[8 * N];
    size_t each = dt_tensor_type_bytes(type);
    struct dt_tensor_writer *w;

    for (int i = 0; i < N; i++) {
        double d = i == 7 ? x : i == N - 1 ? y : 0.5 * i;
        float f = (float)d;
        uint16_t h = type == DT_TENSOR_F16 ? dt_tensor_f16_from_f32(f) : dt_bf16_from_f32(f);

        memcpy(bytes + each * (size_t)i,
               type == DT_TENSOR_F64   ? (void *)&d
               : type == DT_TENSOR_F32 ? (void *)&f
                                       : (void *)&h,
               each);
    }
    unlink(path); /* a writer takes no name that is there */
    dt_assert_ok(dt_tensor_writer_new(path, &t, 1, NULL, 0, &err, &w), err);
    dt_assert_ok(dt_tensor_writer_put(w, bytes, &err, NULL), err);
    dt_assert_ok(dt_tensor_writer_finish(w, &err, NULL, NULL), err);
}

START_TEST(weights_of_others_must_be_finite)
{
    static const enum dt_tensor_type types[] = {DT_TENSOR_F32, DT_TENSOR_BF16, DT_TENSOR_F16,
                                                DT_TENSOR_F64};
    struct dt_ckpt_init_report report;
    char path[128];

    snprintf(path, sizeof(path), "%s/weights.safetensors", dir);
    for (int k = 0; k < 4; k++) {
        write_foreign(path, types[k], 1, 2);
        dt_assert_ok(dt_ckpt_init_from(path, &part, 1, true, &err, &report), err);
        ck_assert_int_eq(report.loaded, 1);
        write_foreign(path, types[k], NAN, -INFINITY);
        ck_assert_int_eq(dt_ckpt_init_from(path, &part, 1, true, &err, &report), DT_ERR_INPUT);
        dt_assert_has(err.file, "weights.safetensors");
        dt_assert_has(err.message, "\"a.weight\": 2 of 1500 values are not finite (1 NaN, 1 inf");
        dt_assert_has(err.message, "repair the file");
    }
    write_foreign(path, DT_TENSOR_F64, 1e300, 0); /* a number there, none in fp32 */
    ck_assert_int_eq(dt_ckpt_init_from(path, &part, 1, true, &err, &report), DT_ERR_INPUT);
    dt_assert_has(err.message, "1 of 1500 values is not finite (0 NaN, 1 infinite)");
}
END_TEST

/* ---- checkpoints ---- */

static const struct dt_ckpt_options keep_all = {.keep = 0};

START_TEST(checkpoints_are_not_written)
{
    struct dt_ckpt_state state = {.step = 3, .job_digest = "1-1"};
    float *const where[] = {master, m, v};
    static const char *const names[] = {"\"llm.b.bias\"", "\"exp_avg/llm.b.bias\"",
                                        "\"exp_avg_sq/llm.b.bias\""};
    char path[256];
    bool found;

    for (int k = 0; k < 3; k++) {
        where[k][1540] = k == 1 ? INFINITY : NAN;
        ck_assert_int_eq(dt_ckpt_save(dir, &part, 1, &state, &keep_all, &err, path, 256),
                         DT_ERR_DIVERGED);
        dt_assert_has(err.message, names[k]);
        dt_assert_has(err.message, "1 of 8 values is not finite");
        where[k][1540] = 1;
        dt_assert_ok(dt_ckpt_find(dir, &err, &found, path, sizeof(path)), err);
        ck_assert(!found);
    }
    dt_assert_ok(dt_ckpt_save(dir, &part, 1, &state, &keep_all, &err, path, 256), err);
}
END_TEST

/* Replaces the checksum of a tensor in the manifest, as if it had been written like that. */
static void change_sum(const char *path, const char *name, uint32_t to)
{
    char file[300], key[100], sum[16], *text, *at;
    size_t len;

    snprintf(file, sizeof(file), "%s/manifest.json", path);
    dt_assert_ok(dt_file_read(file, 1 << 20, &err, &text, &len), err);
    snprintf(key, sizeof(key), "\"%s\": \"", name);
    at = strstr(text, key);
    ck_assert_ptr_nonnull(at);
    snprintf(sum, sizeof(sum), "%08x", to);
    memcpy(at + strlen(key), sum, 8);
    dt_assert_ok(dt_file_write(file, text, len, &err), err);
    dt_free(text);
}

/* Puts a value that is none into a tensor of a checkpoint whose sums are right. */
static void spoil(const char *path, const char *file, const char *name)
{
    static const float none = NAN;
    const struct dt_tensor *x;
    struct dt_tensors *t;
    char full[300];
    uint32_t crc;
    float values[N];
    FILE *f;

    snprintf(full, sizeof(full), "%s/%s", path, file);
    dt_assert_ok(dt_tensors_open(full, &err, &t), err);
    x = dt_tensors_find(t, name);
    ck_assert_ptr_nonnull(x);
    f = fopen(full, "r+");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, (long)(x->at + 3 * sizeof(none)), SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(&none, sizeof(none), 1, f), 1);
    fclose(f);
    dt_assert_ok(dt_tensors_read_f32(t, x, &err, values, &crc), err);
    ck_assert(isnan(values[3]));
    dt_tensors_close(t);
    change_sum(path, name, crc);
}

START_TEST(checkpoints_are_not_read)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    static const char *const names[] = {"llm.a.weight", "exp_avg_sq/llm.b.bias"};

    for (int k = 0; k < 2; k++) {
        struct dt_ckpt_state state = {.step = 10 + k, .job_digest = "1-1"};
        struct dt_ckpt_init_report report;
        char path[256];

        dt_assert_ok(dt_ckpt_save(dir, &part, 1, &state, &keep_all, &err, path, 256), err);
        dt_assert_ok(dt_ckpt_load(path, &part, 1, true, &err, &state), err);
        spoil(path, files[k], names[k]);
        ck_assert_int_eq(dt_ckpt_load(path, &part, 1, true, &err, &state), DT_ERR_INPUT);
        dt_assert_has(err.file, files[k]);
        dt_assert_has(err.message, names[k]);
        dt_assert_has(err.message, "1 NaN");
        dt_assert_has(err.message, "older checkpoint");
        /* eval and sample read no moments, --init-from neither */
        ck_assert_int_eq(dt_ckpt_load(path, &part, 1, false, &err, &state),
                         k == 0 ? DT_ERR_INPUT : DT_OK);
        ck_assert_int_eq(dt_ckpt_init_from(path, &part, 1, true, &err, &report),
                         k == 0 ? DT_ERR_INPUT : DT_OK);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("finite");
    TCase *c = dt_test_case(s, "count", 0), *f = dt_test_case(s, "files", 0);

    tcase_add_test(c, counts_what_isnan_and_isinf_say);
    tcase_add_test(c, says_how_many);
    tcase_add_checked_fixture(f, setup, teardown);
    tcase_add_test(f, weights_of_others_must_be_finite);
    tcase_add_test(f, checkpoints_are_not_written);
    tcase_add_test(f, checkpoints_are_not_read);
    return dt_test_run(s);
}
