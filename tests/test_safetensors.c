/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tensor files: what is written is read back to the bit; what is wrong is refused by name.
 *
 * "test_safetensors --example FILE" writes a file for test_python.sh. */
#include "base/bf16.h"
#include "base/mem.h"
#include "base/rng.h"
#include "exec/checkpoint/safetensors.h"
#include "test_util.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/dt-safetensors-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
    char cmd[128];

    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

static const char *in_dir(const char *name)
{
    static char path[4][256];
    static unsigned turn;
    char *p = path[turn++ % 4];

    snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static size_t slurp(const char *path, uint8_t *buf, size_t size)
{
    FILE *f = fopen(path, "rb");
    size_t n;

    ck_assert_ptr_nonnull(f);
    n = fread(buf, 1, size, f);
    fclose(f);
    return n;
}

static void spill(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

/* ---- 16-bit formats ---- */

static float from_bits(uint32_t u)
{
    float v;

    memcpy(&v, &u, 4);
    return v;
}

/* The nearest of three neighbours by exact arithmetic, ties to the even one. */
static uint16_t nearest(float v, float (*back)(uint16_t), uint16_t guess)
{
    uint16_t best = guess;

    for (int d = -1; d <= 1; d++) {
        uint16_t h = (uint16_t)(guess + d);
        double e, e_best = fabs((double)back(best) - (double)v);

        if ((h ^ guess) & 0x8000u || !isfinite(back(h)))
            continue;
        e = fabs((double)back(h) - (double)v);
        if (e < e_best || (e == e_best && !(h & 1)))
            best = h;
    }
    return best;
}

static float bf16_back(uint16_t h)
{
    return dt_bf16_to_f32(h);
}

START_TEST(halves_round_to_nearest_even)
{
    struct dt_rng r;

    for (uint32_t h = 0; h < 0x10000; h++) {
        float a = dt_tensor_f16_to_f32((uint16_t)h), b = dt_bf16_to_f32((uint16_t)h);

        if (isnan(a))
            ck_assert(isnan(dt_tensor_f16_to_f32(dt_tensor_f16_from_f32(a))));
        else
            ck_assert_uint_eq(dt_tensor_f16_from_f32(a), h);
        if (isnan(b))
            ck_assert(isnan(dt_bf16_to_f32(dt_bf16_from_f32(b))));
        else
            ck_assert_uint_eq(dt_bf16_from_f32(b), h);
    }
    ck_assert_float_eq(dt_tensor_f16_to_f32(0x3C00), 1.0f);
    ck_assert_float_eq(dt_tensor_f16_to_f32(0x0001), ldexpf(1, -24));
    ck_assert_float_eq(dt_tensor_f16_to_f32(0x7BFF), 65504.0f);
    ck_assert_uint_eq(dt_tensor_f16_from_f32(65519.99f), 0x7BFF);
    ck_assert_uint_eq(dt_tensor_f16_from_f32(65520.0f),
                      0x7C00); /* the tie with 65536 goes to the even one */
    ck_assert_uint_eq(dt_tensor_f16_from_f32(ldexpf(1, -25)), 0);
    ck_assert_uint_eq(dt_tensor_f16_from_f32(nextafterf(ldexpf(1, -25), 1)), 1);
    ck_assert(isnan(dt_bf16_to_f32(dt_bf16_from_f32(from_bits(0x7F800001)))));
    dt_rng_init(&r, dt_test_seed(), 1);
    for (int i = 0; i < 200000; i++) {
        float v = from_bits(dt_rng_u32(&r));
        uint16_t h = dt_tensor_f16_from_f32(v), b = dt_bf16_from_f32(v);

        if (isnan(v))
            continue;
        if (isfinite(bf16_back(b)))
            ck_assert_uint_eq(nearest(v, bf16_back, b), b);
        v = ldexpf((float)(dt_rng_uniform(&r) * 2 - 1), (int)dt_rng_below(&r, 44) - 28);
        h = dt_tensor_f16_from_f32(v);
        if (isfinite(dt_tensor_f16_to_f32(h)))
            ck_assert_uint_eq(nearest(v, dt_tensor_f16_to_f32, h), h);
    }
}
END_TEST

/* ---- writing and reading ---- */

/* Three tensors of values that no other byte order or rounding would give. */
static const struct dt_tensor example[] = {
    {.name = "wte.weight", .type = DT_TENSOR_F32, .n_dims = 2, .shape = {2, 3}},
    {.name = "h.0.attn.c_attn.weight", .type = DT_TENSOR_BF16, .n_dims = 1, .shape = {5}},
    {.name = "ids", .type = DT_TENSOR_I64, .n_dims = 1, .shape = {2}},
    {.name = "half", .type = DT_TENSOR_F16, .n_dims = 3, .shape = {1, 2, 1}},
    {.name = "empty", .type = DT_TENSOR_U8, .n_dims = 2, .shape = {0, 9}},
};
static const float example_f32[] = {2.385f, -0.0f, 1.1754944e-38f, 3.4e38f, -7.25f, 0.1f};
static const int64_t example_ids[] = {50256, -INT64_C(0x0102030405060708)};

static enum dt_status write_example(const char *path, struct dt_error *err, uint32_t *crc)
{
    static const struct dt_tensor_meta meta[] = {{"format", "pt"}, {"note", "a \"b\"\n"}};
    struct dt_tensor_writer *w;
    enum dt_status st;

    unlink(path);
    DT_TRY(dt_tensor_writer_new(path, example, 5, meta, 2, err, &w));
    st = dt_tensor_writer_put_f32(w, example_f32, err, &crc[0]);
    if (st == DT_OK)
        st = dt_tensor_writer_put_f32(w, example_f32, err, &crc[1]);
    if (st == DT_OK)
        st = dt_tensor_writer_put(w, example_ids, err, &crc[2]);
    if (st == DT_OK)
        st = dt_tensor_writer_put_f32(w, example_f32 + 4, err, &crc[3]);
    if (st == DT_OK)
        st = dt_tensor_writer_put(w, "", err, &crc[4]);
    if (st != DT_OK) {
        dt_tensor_writer_abort(w);
        return st;
    }
    return dt_tensor_writer_finish(w, err, NULL, NULL);
}

START_TEST(file_is_what_the_format_says)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"a \\\"b\\\"\\n\"},"
        "\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"h.0.attn.c_attn.weight\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[24,34]},"
        "\"ids\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[34,50]},"
        "\"half\":{\"dtype\":\"F16\",\"shape\":[1,2,1],\"data_offsets\":[50,54]},"
        "\"empty\":{\"dtype\":\"U8\",\"shape\":[0,9],\"data_offsets\":[54,54]}}";
    /* made with Python's struct and numpy; the sums with its zlib */
    static const uint8_t data[] = {0xd7, 0xa3, 0x18, 0x40, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x80,
                                   0x00, 0x9e, 0xc9, 0x7f, 0x7f, 0x00, 0x00, 0xe8, 0xc0, 0xcd, 0xcc,
                                   0xcc, 0x3d, 0x19, 0x40, 0x00, 0x80, 0x80, 0x00, 0x80, 0x7f, 0xe8,
                                   0xc0, 0x50, 0xc4, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf8, 0xf8,
                                   0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0x40, 0xc7, 0x66, 0x2e};
    static const uint32_t sums[] = {0x630ce2b4, 0xcf321d7b, 0x774a4d01, 0xc1c1c60a, 0};
    size_t len = strlen(header), padded = (len + 7) / 8 * 8, n;
    uint32_t crc[5];
    uint8_t file[2048];
    struct dt_error err = {0};

    dt_assert_ok(write_example(in_dir("a"), &err, crc), err);
    n = slurp(in_dir("a"), file, sizeof(file));
    ck_assert_uint_eq(n, 8 + padded + sizeof(data));
    ck_assert_uint_eq(file[0] | (size_t)file[1] << 8, padded);
    for (int i = 2; i < 8; i++)
        ck_assert_uint_eq(file[i], 0);
    ck_assert_mem_eq(file + 8, header, len);
    for (size_t i = len; i < padded; i++)
        ck_assert_uint_eq(file[8 + i], ' ');
    ck_assert_mem_eq(file + 8 + padded, data, sizeof(data));
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(crc[i], sums[i]);
}
END_TEST

START_TEST(example_reads_back)
{
    struct dt_error err = {0};
    struct dt_tensors *t;
    const struct dt_tensor *x;
    int64_t ids[2];
    uint32_t crc[5], again;
    float v[6];

    dt_assert_ok(write_example(in_dir("a"), &err, crc), err);
    dt_assert_ok(dt_tensors_open(in_dir("a"), &err, &t), err);
    ck_assert_uint_eq(dt_tensors_count(t), 5);
    ck_assert_str_eq(dt_tensors_at(t, 0)->name, "empty"); /* sorted */
    ck_assert_str_eq(dt_tensors_meta(t, "note"), "a \"b\"\n");
    ck_assert_ptr_null(dt_tensors_meta(t, "nothing"));
    ck_assert_ptr_null(dt_tensors_find(t, "wte"));
    x = dt_tensors_find(t, "wte.weight");
    ck_assert_ptr_nonnull(x);
    ck_assert_int_eq(x->n_dims, 2);
    ck_assert_int_eq(x->shape[1], 3);
    dt_assert_ok(dt_tensors_read_f32(t, x, &err, v, &again), err);
    ck_assert_mem_eq(v, example_f32, sizeof(v));
    ck_assert_uint_eq(again, crc[0]);
    x = dt_tensors_find(t, "h.0.attn.c_attn.weight");
    dt_assert_ok(dt_tensors_read_f32(t, x, &err, v, &again), err);
    ck_assert_float_eq(v[0], 2.390625f); /* 2.385 in bf16 */
    ck_assert_uint_eq(again, crc[1]);
    x = dt_tensors_find(t, "ids");
    dt_assert_ok(dt_tensors_read(t, x, 8, 8, &err, &ids[1]), err);
    ck_assert_int_eq(ids[1], example_ids[1]);
    ck_assert_int_eq(dt_tensors_read(t, x, 9, 8, &err, ids), DT_ERR_INTERNAL);
    ck_assert_int_eq(dt_tensors_read_f32(t, x, &err, v, NULL), DT_ERR_INPUT);
    dt_assert_has(err.message, "\"ids\" is I64");
    dt_tensors_close(t);
}
END_TEST

START_TEST(random_files_read_back)
{
    static const enum dt_tensor_type types[] = {DT_TENSOR_F32, DT_TENSOR_BF16, DT_TENSOR_F16};
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 2);
    for (int round = 0; round < 30; round++) {
        struct dt_tensor x[20] = {0};
        struct dt_tensor_writer *w;
        struct dt_tensors *t;
        struct dt_error err = {0};
        char names[20][32];
        float *v[20], *back;
        size_t n = 1 + dt_rng_below(&r, 20);
        uint64_t bytes = 0;
        struct stat sb;

        for (size_t i = 0; i < n; i++) {
            size_t count = 1;

            snprintf(names[i], sizeof(names[i]), "t.%u.%zu", dt_rng_u32(&r) % 7, i);
            x[i].name = names[i];
            x[i].type = types[dt_rng_below(&r, 3)];
            x[i].n_dims = (int)dt_rng_below(&r, 4);
            for (int k = 0; k < x[i].n_dims; k++) {
                x[i].shape[k] = (int64_t)dt_rng_below(&r, 40);
                count *= (size_t)x[i].shape[k];
            }
            x[i].n = count;
            v[i] = malloc(count * 4 + 4);
            ck_assert_ptr_nonnull(v[i]);
            for (size_t k = 0; k < count; k++) {
                float f = (float)dt_rng_normal(&r);

                v[i][k] = x[i].type == DT_TENSOR_BF16 ? dt_bf16_to_f32(dt_bf16_from_f32(f))
                          : x[i].type == DT_TENSOR_F16
                              ? dt_tensor_f16_to_f32(dt_tensor_f16_from_f32(f))
                              : f;
            }
        }
        unlink(in_dir("r"));
        dt_assert_ok(dt_tensor_writer_new(in_dir("r"), x, n, NULL, 0, &err, &w), err);
        for (size_t i = 0; i < n; i++)
            dt_assert_ok(dt_tensor_writer_put_f32(w, v[i], &err, NULL), err);
        dt_assert_ok(dt_tensor_writer_finish(w, &err, &bytes, NULL), err);
        ck_assert_int_eq(stat(in_dir("r"), &sb), 0);
        ck_assert_uint_eq(bytes, (uint64_t)sb.st_size);
        dt_assert_ok(dt_tensors_open(in_dir("r"), &err, &t), err);
        ck_assert_uint_eq(dt_tensors_count(t), n);
        for (size_t i = 0; i < n; i++) {
            const struct dt_tensor *y = dt_tensors_find(t, x[i].name);

            ck_assert_ptr_nonnull(y);
            ck_assert_uint_eq(y->n, x[i].n);
            back = malloc(y->n * 4 + 4);
            ck_assert_ptr_nonnull(back);
            dt_assert_ok(dt_tensors_read_f32(t, y, &err, back, NULL), err);
            if (y->n)
                ck_assert_mem_eq(back, v[i], y->n * 4);
            free(back);
            free(v[i]);
        }
        dt_tensors_close(t);
    }
}
END_TEST

/* ---- refusals ---- */

struct refusal {
    const char *header;
    size_t data; /* bytes behind it */
    const char *says[2];
};
static const struct refusal refusals[] = {
    {"[]", 0, {"not JSON"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 8, {"f:"}},
    {"{\"a\":7}", 0, {"\"a\"", "map"}},
    {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, {"F33"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, {"data_offsets"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, {"x"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, {"\"a\"", "-2"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, {"\"a\"", "shape"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}",
     8,
     {"\"a\"", "shape"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", 9, {"\"a\"", "[2]"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, {"\"a\"", "begin"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, {"\"a\""}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, {"\"a\"", "cut off"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, {"1 bytes lie behind"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, {"\"a\"", "hole"}},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
     7,
     {"\"b\"", "overlaps"}},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}",
     9,
     {"\"b\"", "hole"}},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
     8,
     {"twice"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,8]}}",
     8,
     {"\"a\"", "counted"}},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}",
     0,
     {"\"a\"", "2305843009213693952"}},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}",
     8,
     {"\"a\""}},
    {"{\"__metadata__\":{\"k\":[1]}}", 0, {"\"k\""}},
    {"{}", 3, {"3 bytes lie behind"}},
};

START_TEST(wrong_headers_are_refused)
{
    const struct refusal *x = &refusals[_i];
    size_t len = strlen(x->header);
    struct dt_tensors *t = NULL;
    struct dt_error err = {0};
    uint8_t file[512] = {0};
    char text[4500];

    file[0] = (uint8_t)len;
    memcpy(file + 8, x->header, len);
    ck_assert_int_eq(dt_tensors_open_memory("f", file, 8 + len + x->data, &err, &t), DT_ERR_INPUT);
    ck_assert_ptr_null(t);
    dt_error_format(&err, text, sizeof(text));
    for (int i = 0; i < 2 && x->says[i]; i++)
        dt_assert_has(text, x->says[i]);
}
END_TEST

START_TEST(cut_files_are_refused)
{
    struct dt_error err = {0};
    struct dt_tensors *t = NULL;
    uint32_t crc[5];
    uint8_t file[2048];
    size_t n;

    dt_assert_ok(write_example(in_dir("a"), &err, crc), err);
    n = slurp(in_dir("a"), file, sizeof(file));
    for (size_t cut = 0; cut < n; cut++) {
        memset(&err, 0, sizeof(err));
        ck_assert_int_eq(dt_tensors_open_memory("f", file, cut, &err, &t), DT_ERR_INPUT);
        ck_assert(err.message[0] != '\0');
        if (cut + 4 >= n)
            dt_assert_has(err.message, "half");
    }
    memset(file, 0xFF, 8); /* a header of 2^64 - 1 bytes */
    ck_assert_int_eq(dt_tensors_open_memory("f", file, n, &err, &t), DT_ERR_INPUT);
    dt_assert_has(err.message, "18446744073709551615");
    ck_assert_int_eq(dt_tensors_open(in_dir("nothing"), &err, &t), DT_ERR_INPUT);
    ck_assert_int_eq(dt_tensors_open(dir, &err, &t), DT_ERR_INPUT);
    dt_assert_has(err.message, "model.safetensors");
    ck_assert_int_eq(mkfifo(in_dir("pipe"), 0600), 0);
    ck_assert_int_eq(dt_tensors_open(in_dir("pipe"), &err, &t), DT_ERR_INPUT);
}
END_TEST

START_TEST(file_cut_while_read)
{
    struct dt_error err = {0};
    struct dt_tensors *t;
    uint32_t crc[5];
    float v[6];

    dt_assert_ok(write_example(in_dir("a"), &err, crc), err);
    dt_assert_ok(dt_tensors_open(in_dir("a"), &err, &t), err);
    ck_assert_int_eq(truncate(in_dir("a"), 20), 0);
    ck_assert_int_eq(dt_tensors_read_f32(t, dt_tensors_find(t, "wte.weight"), &err, v, NULL),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "shorter");
    dt_tensors_close(t);
}
END_TEST

/* ---- several files ---- */

static void write_shards(void)
{
    static const char *const files[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    static const struct dt_tensor x[] = {
        {.name = "b", .type = DT_TENSOR_F32, .n_dims = 1, .shape = {3}, .file = 0},
        {.name = "a", .type = DT_TENSOR_F32, .n_dims = 1, .shape = {2}, .file = 1}};
    struct dt_error err = {0};

    for (int i = 0; i < 2; i++) {
        struct dt_tensor_writer *w;

        unlink(in_dir(files[i]));
        dt_assert_ok(dt_tensor_writer_new(in_dir(files[i]), &x[i], 1, NULL, 0, &err, &w), err);
        dt_assert_ok(dt_tensor_writer_put_f32(w, example_f32 + 3 * i, &err, NULL), err);
        dt_assert_ok(dt_tensor_writer_finish(w, &err, NULL, NULL), err);
    }
    dt_assert_ok(
        dt_tensor_index_write(in_dir("model.safetensors.index.json"), x, 2, files, 2, &err), err);
}

START_TEST(shards_read_as_one)
{
    struct dt_error err = {0};
    struct dt_tensors *t;
    float v[2];

    write_shards();
    dt_assert_ok(dt_tensors_open(dir, &err, &t), err);
    ck_assert_uint_eq(dt_tensors_count(t), 2);
    ck_assert_int_eq(dt_tensors_files(t), 2);
    dt_assert_ok(dt_tensors_read_f32(t, dt_tensors_find(t, "a"), &err, v, NULL), err);
    ck_assert_mem_eq(v, example_f32 + 3, sizeof(v));
    dt_tensors_close(t);
}
END_TEST

START_TEST(wrong_indexes_are_refused)
{
    static const char *const cases[][2] = {
        {"{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
         "\"b\":\"model-00001-of-00002.safetensors\"}}",
         "\"a\" is not there"},
        {"{\"weight_map\":{\"b\":\"model-00001-of-00002.safetensors\","
         "\"a\":\"model-00002-of-00002.safetensors\",\"c\":\"model-00002-of-00002.safetensors\"}}",
         "\"c\" is not there"},
        {"{\"weight_map\":{\"b\":\"model-00001-of-00002.safetensors\","
         "\"a\":\"../model-00002-of-00002.safetensors\"}}",
         "folder of the index"},
        {"{\"weight_map\":{\"b\":\"gone.safetensors\"}}", "cannot open"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":{\"b\":{}}}", "\"b\""},
        {"{\"weight_map\":{\"b\":", ""},
        {"[]", "weight_map"},
    };
    struct dt_tensors *t = NULL;
    struct dt_error err = {0};

    write_shards();
    spill(in_dir("i.json"), cases[_i][0], strlen(cases[_i][0]));
    ck_assert_int_eq(dt_tensors_open(in_dir("i.json"), &err, &t), DT_ERR_INPUT);
    ck_assert_ptr_null(t);
    dt_assert_has(err.message, cases[_i][1]);
}
END_TEST

START_TEST(a_name_in_two_files_is_refused)
{
    static const char index[] =
        "{\"weight_map\":{\"b\":\"model-00001-of-00002.safetensors\",\"a\":\"twin.safetensors\"}}";
    struct dt_tensors *t = NULL;
    struct dt_error err = {0};
    uint8_t file[512];
    size_t n;

    write_shards();
    n = slurp(in_dir("model-00001-of-00002.safetensors"), file, sizeof(file));
    spill(in_dir("twin.safetensors"), file, n);
    spill(in_dir("i.json"), index, strlen(index));
    ck_assert_int_eq(dt_tensors_open(in_dir("i.json"), &err, &t), DT_ERR_INPUT);
    dt_assert_has(err.message, "\"b\" is also in");
}
END_TEST

/* ---- writing goes wrong ---- */

START_TEST(writer_refuses_misuse)
{
    struct dt_tensor twice[] = {{.name = "a", .n_dims = 0}, {.name = "a", .n_dims = 0}};
    struct dt_tensor large = {.name = "a", .n_dims = 2, .shape = {INT64_MAX, 3}};
    struct dt_tensor negative = {.name = "a", .n_dims = 1, .shape = {-1}};
    struct dt_tensor meta = {.name = "__metadata__", .n_dims = 0};
    struct dt_tensor byte = {.name = "u", .type = DT_TENSOR_U8, .n_dims = 0};
    struct dt_tensor_writer *w;
    struct dt_error err = {0};

    ck_assert_int_eq(dt_tensor_writer_new(in_dir("w"), twice, 2, NULL, 0, &err, &w), DT_ERR_INPUT);
    dt_assert_has(err.message, "\"a\"");
    ck_assert_int_eq(dt_tensor_writer_new(in_dir("w"), &large, 1, NULL, 0, &err, &w), DT_ERR_INPUT);
    ck_assert_int_eq(dt_tensor_writer_new(in_dir("w"), &negative, 1, NULL, 0, &err, &w),
                     DT_ERR_INPUT);
    ck_assert_int_eq(dt_tensor_writer_new(in_dir("w"), &meta, 1, NULL, 0, &err, &w), DT_ERR_INPUT);
    ck_assert_int_eq(access(in_dir("w"), F_OK), -1);
    dt_assert_ok(dt_tensor_writer_new(in_dir("w"), &byte, 1, NULL, 0, &err, &w), err);
    ck_assert_int_eq(dt_tensor_writer_finish(w, &err, NULL, NULL), DT_ERR_INTERNAL);
    dt_assert_has(err.message, "\"u\"");
    ck_assert_int_eq(access(in_dir("w"), F_OK), -1);
    dt_assert_ok(dt_tensor_writer_new(in_dir("w"), &byte, 1, NULL, 0, &err, &w), err);
    ck_assert_int_eq(dt_tensor_writer_put_f32(w, example_f32, &err, NULL), DT_ERR_INTERNAL);
    ck_assert_int_eq(dt_tensor_writer_put(w, example_f32, &err, NULL), DT_ERR_INTERNAL);
    dt_tensor_writer_abort(w);
    ck_assert_int_eq(dt_tensor_writer_new(in_dir("no/such"), &byte, 1, NULL, 0, &err, &w),
                     DT_ERR_IO);
}
END_TEST

START_TEST(full_disk_leaves_no_file)
{
    struct rlimit was, small = {300, 300};
    struct dt_error err = {0};
    uint32_t crc[5];
    int failed = 0;

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    for (rlim_t room = 1; room < 500; room += 13) { /* the file has 438 bytes */
        small.rlim_cur = room;
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
        failed += write_example(in_dir("full"), &err, crc) == DT_ERR_IO;
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
        if (failed && room < 300) {
            ck_assert_int_eq(access(in_dir("full"), F_OK), -1);
            dt_assert_has(err.message, "cannot write");
        }
    }
    ck_assert_int_gt(failed, 30);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    uint32_t crc[5];
    uint64_t tried = 0;

    write_shards();
    for (uint64_t k = 1;; k++) {
        struct dt_error err = {0};
        struct dt_tensors *t = NULL;
        enum dt_status st;

        dt_mem_fail_at(k);
        st = write_example(in_dir("a"), &err, crc);
        if (st == DT_OK)
            st = dt_tensors_open(in_dir("a"), &err, &t);
        if (st == DT_OK) {
            dt_tensors_close(t);
            t = NULL;
            st = dt_tensors_open(dir, &err, &t);
        }
        tried = dt_mem_count();
        dt_mem_fail_at(0);
        if (st == DT_OK) {
            dt_tensors_close(t);
            ck_assert_uint_lt(tried, k); /* the failure was never reached */
            ck_assert_uint_gt(k, 20);
            return;
        }
        ck_assert_int_eq(st, DT_ERR_NOMEM);
        ck_assert_ptr_null(t);
    }
}
END_TEST

int main(int argc, char **argv)
{
    uint32_t crc[5];
    Suite *s;
    TCase *c;

    if (argc == 3 && strcmp(argv[1], "--example") == 0)
        return write_example(argv[2], NULL, crc) == DT_OK ? 0 : 1;
    s = suite_create("safetensors");
    c = dt_test_case(s, "files", 60);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, halves_round_to_nearest_even);
    tcase_add_test(c, file_is_what_the_format_says);
    tcase_add_test(c, example_reads_back);
    tcase_add_test(c, random_files_read_back);
    tcase_add_loop_test(c, wrong_headers_are_refused, 0,
                        (int)(sizeof(refusals) / sizeof(refusals[0])));
    tcase_add_test(c, cut_files_are_refused);
    tcase_add_test(c, file_cut_while_read);
    tcase_add_test(c, shards_read_as_one);
    tcase_add_loop_test(c, wrong_indexes_are_refused, 0, 8);
    tcase_add_test(c, a_name_in_two_files_is_refused);
    tcase_add_test(c, writer_refuses_misuse);
    tcase_add_test(c, full_disk_leaves_no_file);
    tcase_add_test(c, every_allocation_may_fail);
    return dt_test_run(s);
}
