/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Checkpoints: exact, whole or absent, refused by name when damaged. */
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "exec/checkpoint/checkpoint.h"
#include "base/clock.h"
#include "exec/checkpoint/safetensors.h"
#include "test_util.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];
static char its_model[] = "llm.heads 2\nllm.window 8 x 3, 0\n", its_training[] = "seed 1\n";
static struct dt_ckpt_job job = {its_model, its_training};

/* In memory where that is possible: a disk that syncs slowly would make this take minutes. */
static void setup(void)
{
    strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/dt-checkpoint-XXXXXX"
                                              : "/tmp/dt-checkpoint-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
    char cmd[128];

    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

/* ---- a model of two modules, one of them in two stages that share a table ---- */

#define PARAM(name_, at_, d0, d1, ...)                                                             \
    {                                                                                              \
        .name = name_, .n_dims = (d1) ? 2 : 1, .shape = {d0, d1}, .at = at_,                       \
        .n = (size_t)((d0) * ((d1) ? (d1) : 1)), __VA_ARGS__                                       \
    }
static const struct dt_param front[] = {
    PARAM("transformer.wte.weight", 0, 7, 5),
    PARAM("transformer.h.0.attn.c_attn.weight", 48, 5, 15, .transpose = true),
    PARAM("transformer.h.0.attn.c_attn.bias", 128, 15, 0)};
static const struct dt_param back[] = {PARAM("transformer.ln_f.weight", 0, 5, 0),
                                       PARAM("transformer.wte.weight", 16, 7, 5, .tied = true)};
static const struct dt_param patch[] = {PARAM("embeddings.patch_embeddings.weight", 0, 4, 3)};
enum { FLOATS = 144, PARTS = 3 };

struct world {
    float master[PARTS][FLOATS], m[PARTS][FLOATS], v[PARTS][FLOATS];
    struct dt_ckpt_part parts[PARTS];
    struct dt_ckpt_state state;
};
static const unsigned char front_trained[] = {1, 0, 1};

static void world_init(struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->parts[0] = (struct dt_ckpt_part){.module = "llm",
                                        .params = front,
                                        .n_params = 3,
                                        .master = w->master[0],
                                        .exp_avg = w->m[0],
                                        .exp_avg_sq = w->v[0],
                                        .trained = front_trained};
    w->parts[1] = (struct dt_ckpt_part){.module = "llm",
                                        .params = back,
                                        .n_params = 2,
                                        .master = w->master[1],
                                        .exp_avg = w->m[1],
                                        .exp_avg_sq = w->v[1]};
    w->parts[2] = (struct dt_ckpt_part){
        .module = "encoder", .params = patch, .n_params = 1, .master = w->master[2]};
}

/* Values of a step; the copy of the table is equal to the table. */
static void world_fill(struct world *w, int64_t step)
{
    struct dt_rng r;

    world_init(w);
    dt_rng_init(&r, dt_test_seed(), (uint64_t)step);
    for (int p = 0; p < PARTS; p++)
        for (int i = 0; i < w->parts[p].n_params; i++)
            for (size_t k = 0; k < w->parts[p].params[i].n; k++) {
                size_t at = w->parts[p].params[i].at + k;

                w->master[p][at] = (float)dt_rng_normal(&r);
                if (p == 2 || (p == 0 && i == 1))
                    continue;
                w->m[p][at] = (float)dt_rng_normal(&r);
                w->v[p][at] = (float)dt_rng_uniform(&r);
            }
    memcpy(w->master[1] + 16, w->master[0], 35 * sizeof(float));
    memcpy(w->m[1] + 16, w->m[0], 35 * sizeof(float));
    memcpy(w->v[1] + 16, w->v[0], 35 * sizeof(float));
    w->state = (struct dt_ckpt_state){.step = step,
                                      .seed = UINT64_C(0xFEDCBA9876543210),
                                      .draws = UINT64_MAX - (uint64_t)step,
                                      .samples = INT64_C(9007199254740993) + step,
                                      .tokens = 12345 * step,
                                      .train_s = 17.25,
                                      .cursor = {UINT64_MAX, 3, 1000 + step, 77, step % 3},
                                      .job_digest = "0badcafe-123",
                                      .job = &job};
}

static void world_equal(const struct world *a, const struct world *b)
{
    ck_assert_mem_eq(a->master, b->master, sizeof(a->master));
    ck_assert_mem_eq(a->m, b->m, sizeof(a->m));
    ck_assert_mem_eq(a->v, b->v, sizeof(a->v));
    ck_assert_int_eq(a->state.step, b->state.step);
    ck_assert_uint_eq(a->state.seed, b->state.seed);
    ck_assert_uint_eq(a->state.draws, b->state.draws);
    ck_assert_int_eq(a->state.samples, b->state.samples);
    ck_assert_int_eq(a->state.tokens, b->state.tokens);
    ck_assert_double_eq(a->state.train_s, b->state.train_s);
    dt_assert_cursor_eq(a->state.cursor, b->state.cursor);
    ck_assert_str_eq(a->state.job_digest, b->state.job_digest);
}

static const struct dt_ckpt_options keep_all = {.keep = 0};

static enum dt_status save(const struct world *w, const struct dt_ckpt_options *opt,
                           struct dt_error *err, char *path)
{
    return dt_ckpt_save(dir, w->parts, PARTS, &w->state, opt, err, path, 256);
}

static enum dt_status load(const char *path, struct world *w, struct dt_error *err)
{
    world_init(w);
    return dt_ckpt_load(path, w->parts, PARTS, true, err, &w->state);
}

static int count_entries(const char *where, const char *prefix)
{
    DIR *d = opendir(where);
    struct dirent *e;
    int n = 0;

    ck_assert_ptr_nonnull(d);
    while ((e = readdir(d)))
        n += strncmp(e->d_name, prefix, strlen(prefix)) == 0 && strcmp(e->d_name, ".") != 0 &&
             strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

/* ---- saving and loading ---- */

START_TEST(loads_what_was_saved)
{
    struct dt_error err = {0};
    struct world a, b;
    struct dt_ckpt_state state;
    char path[256], found_path[256];
    bool found;

    dt_assert_ok(dt_ckpt_find(dir, &err, &found, found_path, sizeof(found_path)), err);
    ck_assert(!found);
    world_fill(&a, 1200);
    dt_assert_ok(save(&a, &keep_all, &err, path), err);
    dt_assert_has(path, "/step-00001200");
    dt_assert_ok(load(path, &b, &err), err);
    world_equal(&a, &b);
    dt_assert_ok(dt_ckpt_read_state(path, &err, &state), err);
    ck_assert_uint_eq(state.draws, a.state.draws);
    dt_assert_ok(dt_ckpt_find(dir, &err, &found, found_path, sizeof(found_path)), err);
    ck_assert(found);
    ck_assert_str_eq(found_path, path);
    dt_assert_ok(dt_ckpt_find(path, &err, &found, found_path, sizeof(found_path)), err);
    ck_assert(found);
    ck_assert_str_eq(found_path, path);
    ck_assert_int_eq(count_entries(dir, "."), 0); /* nothing temporary is left */
}
END_TEST

START_TEST(files_hold_hugging_faces_order)
{
    struct dt_error err = {0};
    struct dt_tensors *t;
    const struct dt_tensor *x;
    struct world a;
    char path[256];
    float w[75];

    world_fill(&a, 3);
    dt_assert_ok(save(&a, &keep_all, &err, path), err);
    dt_assert_ok(dt_tensors_open(path, &err, &t), err);
    ck_assert_uint_eq(dt_tensors_count(t), 5); /* the table once */
    x = dt_tensors_find(t, "llm.transformer.h.0.attn.c_attn.weight");
    ck_assert_ptr_nonnull(x);
    ck_assert_int_eq(x->shape[0], 5);
    ck_assert_int_eq(x->shape[1], 15);
    dt_assert_ok(dt_tensors_read_f32(t, x, &err, w, NULL), err);
    for (int in = 0; in < 5; in++)
        for (int out = 0; out < 15; out++)
            ck_assert_float_eq(w[in * 15 + out], a.master[0][48 + out * 5 + in]);
    ck_assert_str_eq(dt_tensors_meta(t, "format"), "pt");
    dt_tensors_close(t);
    strcat(path, "/optimizer.safetensors");
    dt_assert_ok(dt_tensors_open(path, &err, &t), err);
    ck_assert_uint_eq(dt_tensors_count(t), 6); /* of three trained tensors, two each */
    ck_assert_ptr_nonnull(dt_tensors_find(t, "exp_avg_sq/llm.transformer.wte.weight"));
    ck_assert_ptr_null(dt_tensors_find(t, "exp_avg/llm.transformer.h.0.attn.c_attn.weight"));
    dt_tensors_close(t);
}
END_TEST

START_TEST(large_models_are_cut)
{
    struct dt_ckpt_options opt = {.shard_bytes_max = 200};
    struct dt_error err = {0};
    struct world a, b;
    char path[256], file[400];

    world_fill(&a, 5);
    dt_assert_ok(save(&a, &opt, &err, path), err);
    ck_assert_int_eq(count_entries(path, "model-"), 3);
    snprintf(file, sizeof(file), "%s/model.safetensors.index.json", path);
    ck_assert_int_eq(access(file, R_OK), 0);
    dt_assert_ok(load(path, &b, &err), err);
    world_equal(&a, &b);
    snprintf(file, sizeof(file), "%s/model-00002-of-00003.safetensors", path);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(load(path, &b, &err), DT_ERR_INPUT);
    dt_assert_has(err.file, "model-00002-of-00003");
}
END_TEST

START_TEST(keeps_the_last_k)
{
    struct dt_ckpt_options opt = {.keep = 2};
    struct dt_error err = {0};
    struct world a, b;
    char path[256];
    bool found;

    for (int64_t step = 10; step <= 50; step += 10) {
        world_fill(&a, step);
        dt_assert_ok(save(&a, &opt, &err, path), err);
        ck_assert_int_eq(count_entries(dir, "step-"), step == 10 ? 1 : 2);
    }
    world_fill(&a, 20); /* gone back: what was just saved stays */
    dt_assert_ok(save(&a, &opt, &err, path), err);
    dt_assert_ok(load(path, &b, &err), err);
    dt_assert_ok(dt_ckpt_find(dir, &err, &found, path, sizeof(path)), err);
    dt_assert_has(path, "step-00000020");
    world_fill(&a, 20); /* the same step again, with other values */
    a.master[2][0] = 99;
    dt_assert_ok(save(&a, &opt, &err, path), err);
    dt_assert_ok(load(path, &b, &err), err);
    world_equal(&a, &b);
    world_fill(&a, 30); /* what went further is not counted: 20 and 30 stay, then 30 and 31 */
    dt_assert_ok(save(&a, &opt, &err, path), err);
    ck_assert_int_eq(count_entries(dir, "step-00000020"), 1);
    world_fill(&a, 31);
    dt_assert_ok(save(&a, &opt, &err, path), err);
    ck_assert_int_eq(count_entries(dir, "step-00000020"), 0);
    ck_assert_int_eq(count_entries(dir, "step-0000003"), 2);
    ck_assert_int_eq(count_entries(dir, "step-"), 4); /* 40 and 50 */
    ck_assert_int_eq(count_entries(dir, "."), 0);
}
END_TEST

START_TEST(finds_without_a_pointer)
{
    struct dt_error err = {0};
    struct world a;
    char path[256], pointer[128];
    bool found;

    for (int64_t step = 8; step < 11; step++) {
        world_fill(&a, step);
        dt_assert_ok(save(&a, &keep_all, &err, path), err);
    }
    snprintf(pointer, sizeof(pointer), "%s/latest", dir);
    dt_assert_ok(dt_file_write(pointer, "step-00000999\n", 14, &err), err);
    dt_assert_ok(dt_ckpt_find(dir, &err, &found, path, sizeof(path)), err);
    ck_assert(found);
    dt_assert_has(path, "step-00000010");
    dt_assert_ok(dt_file_write(pointer, "../../etc\n", 10, &err), err);
    dt_assert_ok(dt_ckpt_find(dir, &err, &found, path, sizeof(path)), err);
    dt_assert_has(path, "step-00000010");
    unlink(pointer);
    dt_assert_ok(dt_ckpt_find(dir, &err, &found, path, sizeof(path)), err);
    dt_assert_has(path, "step-00000010");
}
END_TEST

/* ---- damage ---- */

/* Every byte of every file changed in turn: refused, always, and with the file's name. */
START_TEST(every_changed_byte_is_refused)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "manifest.json"};
    struct dt_error err = {0};
    struct world a, b;
    char path[256], file[400], *text;
    int64_t named = 0;
    struct dt_rng r;
    size_t len;

    world_fill(&a, 7);
    dt_assert_ok(save(&a, &keep_all, &err, path), err);
    snprintf(file, sizeof(file), "%s/%s", path, files[_i]);
    dt_assert_ok(dt_file_read(file, 1 << 20, &err, &text, &len), err);
    dt_rng_init(&r, dt_test_seed(), 100 + (uint64_t)_i);
    for (size_t at = dt_rng_below(&r, 3); at < len; at += 1 + dt_rng_below(&r, 5)) {
        FILE *f = fopen(file, "r+b");
        char changed = (char)(text[at] ^ (1 << dt_rng_below(&r, 8)));

        ck_assert_ptr_nonnull(f);
        fseek(f, (long)at, SEEK_SET);
        fputc(changed, f);
        fclose(f);
        memset(&err, 0, sizeof(err));
        if (load(path, &b, &err) == DT_OK) /* white space, or a letter that is read as the same */
            ck_assert_msg(_i == 3, "byte %zu of %s changed to %02x goes unnoticed", at, files[_i],
                          (unsigned char)changed);
        else
            ck_assert_msg(strstr(err.file, path) || strstr(err.message, path), "%s: %s", err.file,
                          err.message);
        if (_i == 3 && err.status == DT_OK)
            world_equal(&a, &b);
        named += strstr(err.message, "tensor \"") != NULL;
        f = fopen(file, "r+b");
        fseek(f, (long)at, SEEK_SET);
        fputc(text[at], f);
        fclose(f);
    }
    if (_i < 2)
        ck_assert_int_gt(named, 50); /* damage to values names the tensor */
    dt_free(text);
    dt_assert_ok(load(path, &b, &err), err);
}
END_TEST

START_TEST(cut_or_missing_files_are_refused)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "manifest.json"};
    struct dt_error err = {0};
    struct world a, b;
    char path[256], file[400];
    struct stat sb;

    world_fill(&a, 7);
    dt_assert_ok(save(&a, &keep_all, &err, path), err);
    snprintf(file, sizeof(file), "%s/%s", path, files[_i]);
    ck_assert_int_eq(stat(file, &sb), 0);
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(truncate(file, sb.st_size - 2 - k * sb.st_size / 2), 0);
        ck_assert_int_eq(load(path, &b, &err), DT_ERR_INPUT);
        dt_assert_has(err.file, files[_i]);
    }
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(load(path, &b, &err), DT_ERR_INPUT);
    dt_assert_has(err.file, files[_i]);
}
END_TEST

START_TEST(other_models_are_refused)
{
    static const struct dt_param wide[] = {PARAM("transformer.ln_f.weight", 0, 6, 0),
                                           PARAM("transformer.ln_f.bias", 8, 6, 0)};
    struct dt_error err = {0};
    struct world a, b;
    char path[256];

    world_fill(&a, 7);
    dt_assert_ok(save(&a, &keep_all, &err, path), err);
    world_init(&b);
    b.parts[1].params = wide;
    ck_assert_int_eq(dt_ckpt_load(path, b.parts, 2, true, &err, NULL), DT_ERR_INPUT);
    dt_assert_has(err.message, "llm.transformer.ln_f.weight is [5], should be [6]");
    dt_assert_has(err.message, "missing: llm.transformer.ln_f.bias");
    ck_assert_int_eq(dt_ckpt_load(path, a.parts, 1, true, &err, NULL), DT_ERR_INPUT);
    dt_assert_has(err.message, "unexpected: llm.transformer.ln_f.weight");
    dt_assert_ok(dt_ckpt_load(path, &a.parts[2], 1, false, &err, NULL), err); /* one module */
}
END_TEST

/* ---- weights of others ---- */

static void write_foreign(const char *path, const struct dt_tensor *x, size_t n)
{
    struct dt_tensor_writer *w;
    struct dt_error err = {0};
    float v[200];

    for (int i = 0; i < 200; i++)
        v[i] = (float)i + 0.5f;
    unlink(path);
    dt_assert_ok(dt_tensor_writer_new(path, x, n, NULL, 0, &err, &w), err);
    for (size_t i = 0; i < n; i++)
        dt_assert_ok(dt_tensor_writer_put_f32(w, v + i, &err, NULL), err);
    dt_assert_ok(dt_tensor_writer_finish(w, &err, NULL, NULL), err);
}

START_TEST(weights_of_others_are_taken_by_name)
{
    /* GPT-2's published file lacks "transformer." */
    struct dt_tensor x[] = {
        {.name = "wte.weight", .type = DT_TENSOR_F16, .n_dims = 2, .shape = {7, 5}},
        {.name = "h.0.attn.c_attn.weight", .type = DT_TENSOR_F32, .n_dims = 2, .shape = {5, 15}},
        {.name = "h.0.attn.c_attn.bias", .type = DT_TENSOR_BF16, .n_dims = 1, .shape = {15}},
        {.name = "transformer.ln_f.weight", .type = DT_TENSOR_F32, .n_dims = 1, .shape = {5}},
        {.name = "h.0.attn.mask", .type = DT_TENSOR_F32, .n_dims = 1, .shape = {4}}};
    struct dt_ckpt_init_report r;
    struct dt_error err = {0};
    struct world w;
    char path[128];

    snprintf(path, sizeof(path), "%s/gpt2.safetensors", dir);
    write_foreign(path, x, 5);
    world_init(&w);
    dt_assert_ok(dt_ckpt_init_from(path, w.parts, 2, false, &err, &r), err);
    ck_assert_int_eq(r.loaded, 5);
    ck_assert_int_eq(r.missing, 0);
    ck_assert_int_eq(r.unexpected, 1);
    ck_assert_str_eq(r.unexpected_names, "h.0.attn.mask");
    ck_assert_float_eq(w.master[0][34], 34.5f);
    ck_assert_float_eq(w.master[1][16 + 34], 34.5f);        /* the copy of the table */
    ck_assert_float_eq(w.master[0][48 + 2 * 5 + 3], 48.5f); /* [in 3][out 2] */
    ck_assert_float_eq(w.master[0][128 + 14], 16.5f);
    x[0].shape[0] = 6;
    write_foreign(path, x, 5);
    ck_assert_int_eq(dt_ckpt_init_from(path, w.parts, 2, true, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "wte.weight is [6, 5], should be [7, 5]");
    x[0].shape[0] = 7;
    write_foreign(path, x, 3);
    ck_assert_int_eq(dt_ckpt_init_from(path, w.parts, 2, false, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "missing: llm.transformer.ln_f.weight");
    dt_assert_ok(dt_ckpt_init_from(path, w.parts, 2, true, &err, &r), err);
    ck_assert_int_eq(r.missing, 1);
    write_foreign(path, x + 4, 1);
    ck_assert_int_eq(dt_ckpt_init_from(path, w.parts, 2, true, &err, &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "none of the tensors");
}
END_TEST

START_TEST(init_from_our_own)
{
    struct dt_ckpt_init_report r;
    struct dt_error err = {0};
    struct world a, b;
    char path[256], file[400];

    world_fill(&a, 7);
    dt_assert_ok(save(&a, &keep_all, &err, path), err);
    world_init(&b);
    dt_assert_ok(dt_ckpt_init_from(dir, b.parts, PARTS, false, &err, &r), err);
    ck_assert_mem_eq(a.master, b.master, sizeof(a.master));
    ck_assert_int_eq(r.unexpected, 0);
    snprintf(file, sizeof(file), "%s/model.safetensors", path);
    dt_assert_ok(dt_ckpt_init_from(file, b.parts, PARTS, false, &err, &r), err);
    snprintf(file, sizeof(file), "%s/state.json", path);
    ck_assert_int_eq(truncate(file, 5), 0);
    ck_assert_int_eq(dt_ckpt_init_from(dir, b.parts, PARTS, false, &err, &r), DT_ERR_INPUT);
}
END_TEST

/* ---- what goes wrong while saving ---- */

/* Saves rising steps until it is killed. */
static void save_for_ever(void)
{
    struct dt_ckpt_options opt = {.keep = 3};

    for (int64_t step = 1;; step++) {
        struct world w;
        struct dt_error err;
        char path[256];
        bool found;
        struct dt_ckpt_state s;

        if (step == 1 && dt_ckpt_find(dir, &err, &found, path, sizeof(path)) == DT_OK && found &&
            dt_ckpt_read_state(path, &err, &s) == DT_OK)
            step = s.step; /* saves that one again */
        world_fill(&w, step);
        if (save(&w, &opt, &err, path) != DT_OK)
            _exit(3);
    }
}

/* How long a save takes here: disks differ a thousandfold in how fast they sync. */
static uint64_t one_save_us(void)
{
    struct dt_error err = {0};
    struct world w;
    char path[256], cmd[128];
    uint64_t us = dt_clock_ns();

    world_fill(&w, 1);
    dt_assert_ok(save(&w, &keep_all, &err, path), err);
    us = (dt_clock_ns() - us) / 1000;
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'/*", dir);
    ck_assert_int_eq(system(cmd), 0);
    return us < 200 ? 200 : us > 50000 ? 50000 : us;
}

START_TEST(killed_while_saving)
{
    struct dt_rng r;
    int64_t last = 0, grown = 0;
    uint64_t save_us = one_save_us();

    dt_rng_init(&r, dt_test_seed(), 55);
    for (int round = 0; round < 25; round++) {
        pid_t pid = fork();
        struct dt_error err = {0};
        struct world want, got;
        char path[256];
        bool found;
        int status;

        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            save_for_ever();
        usleep((useconds_t)dt_rng_below(&r, 8 * save_us));
        kill(pid, SIGKILL);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        dt_assert_ok(dt_ckpt_find(dir, &err, &found, path, sizeof(path)), err);
        ck_assert(found || last == 0); /* what was there once never vanishes */
        if (!found)
            continue;
        dt_assert_ok(load(path, &got, &err), err);
        world_fill(&want, got.state.step);
        world_equal(&want, &got);
        ck_assert_int_ge(got.state.step, last);
        grown += got.state.step > last;
        last = got.state.step;
        ck_assert_int_le(count_entries(dir, "step-"), 4);
    }
    ck_assert_int_gt(grown, 3);
    ck_assert_int_le(count_entries(dir, "."), 3); /* rests of the last one only */
}
END_TEST

START_TEST(full_disk_changes_nothing)
{
    struct rlimit was, small;
    struct dt_error err = {0};
    struct world a, b;
    char path[256];
    bool found;
    int failed = 0;

    signal(SIGXFSZ, SIG_IGN);
    world_fill(&a, 7);
    dt_assert_ok(save(&a, &keep_all, &err, path), err);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    for (rlim_t room = 0; room < 2500; room += 83) {
        struct world c;
        enum dt_status st;

        world_fill(&c, 8);
        small.rlim_cur = room;
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
        st = save(&c, &keep_all, &err, path);
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
        if (st == DT_OK)
            break;
        ck_assert_int_eq(st, DT_ERR_IO);
        failed++;
        ck_assert_int_eq(count_entries(dir, "."), 0);
        dt_assert_ok(dt_ckpt_find(dir, &err, &found, path, sizeof(path)), err);
        ck_assert(found);
        dt_assert_ok(load(path, &b, &err), err);
        world_equal(&a, &b);
    }
    ck_assert_int_gt(failed, 8);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct dt_ckpt_options opt = {.keep = 1, .shard_bytes_max = 300};
    struct world a, b;
    char path[256];

    world_fill(&a, 7);
    for (uint64_t k = 1;; k++) {
        struct dt_ckpt_init_report r;
        struct dt_error err = {0};
        enum dt_status st;
        bool found;

        world_init(&b);
        dt_mem_fail_at(k);
        st = save(&a, &opt, &err, path);
        if (st == DT_OK)
            st = dt_ckpt_load(path, b.parts, PARTS, true, &err, &b.state);
        if (st == DT_OK)
            st = dt_ckpt_init_from(dir, b.parts, PARTS, false, &err, &r);
        dt_mem_fail_at(0);
        if (st == DT_OK) {
            ck_assert_uint_gt(k, 60);
            world_equal(&a, &b);
            break;
        }
        ck_assert_int_eq(st, DT_ERR_NOMEM);
        ck_assert_int_eq(count_entries(dir, "."), 0);
        dt_assert_ok(dt_ckpt_find(dir, &err, &found, path, sizeof(path)), err);
        if (found)
            dt_assert_ok(load(path, &b, &err), err);
    }
}
END_TEST

/* What differs of `ours` from what a checkpoint holds to is `text`. */
static void differs(const struct dt_ckpt_job *theirs, const char *model, const char *training,
                    bool all, const char *text)
{
    char *differ, m[128], t[128];
    struct dt_ckpt_job ours = {m, t};
    struct dt_error err;

    snprintf(m, sizeof(m), "%s", model);
    snprintf(t, sizeof(t), "%s", training);
    dt_assert_ok(dt_ckpt_job_compare(theirs, &ours, all, &err, &differ), err);
    ck_assert_str_eq(differ ? differ : "", text);
    dt_free(differ);
}

START_TEST(its_job)
{
    struct dt_ckpt_job was;
    char path[256], digest[40], other[40];
    struct dt_error err;
    struct world w;

    world_fill(&w, 3);
    dt_assert_ok(save(&w, &keep_all, &err, path), err);
    dt_assert_ok(dt_ckpt_read_job(path, &err, &was), err);
    ck_assert_str_eq(was.model, job.model);
    ck_assert_str_eq(was.training, job.training);
    differs(&was, job.model, job.training, true, "");
    differs(&was, job.model, "seed 2\n", false, "");
    differs(&was, job.model, "seed 2\n", true, "seed is 1 there and 2 in the job");
    differs(&was, "llm.heads 4\nllm.window 8 x 3, 0\n", "seed 2\n", true,
            "llm.heads is 2 there and 4 in the job");
    differs(&was, "llm.heads 2\nnoise cosine\n", "seed 1\n", false,
            "noise is not stated there and cosine in the job, llm.window is 8 x 3, 0 there and not "
            "stated in the job");
    differs(&was, "a 1\nb 1\nc 1\n", "", false,
            "a is not stated there and 1 in the job, b is not stated there and 1 in the job, c is "
            "not stated there and 1 in the job and 2 more");
    dt_ckpt_job_digest(&job, digest, sizeof(digest));
    dt_ckpt_job_digest(&was, other, sizeof(other));
    ck_assert_str_eq(digest, other);
    dt_ckpt_job_free(&was);
    w.state.job = NULL; /* as before there was such a file */
    dt_assert_ok(save(&w, &keep_all, &err, path), err);
    dt_assert_ok(dt_ckpt_read_job(path, &err, &was), err);
    ck_assert_ptr_null(was.model);
}
END_TEST

START_TEST(digests_differ)
{
    char a[40], b[40], small[4];

    dt_ckpt_digest("123456789", 9, a, sizeof(a));
    ck_assert_str_eq(a, "cbf43926-9");
    dt_ckpt_digest("123456798", 9, b, sizeof(b));
    ck_assert_str_ne(a, b);
    dt_ckpt_digest("", 0, small, sizeof(small));
    ck_assert_str_eq(small, "000");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("checkpoint");
    TCase *c = dt_test_case(s, "folders", 120);

    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, loads_what_was_saved);
    tcase_add_test(c, files_hold_hugging_faces_order);
    tcase_add_test(c, large_models_are_cut);
    tcase_add_test(c, keeps_the_last_k);
    tcase_add_test(c, finds_without_a_pointer);
    tcase_add_loop_test(c, every_changed_byte_is_refused, 0, 4);
    tcase_add_loop_test(c, cut_or_missing_files_are_refused, 0, 4);
    tcase_add_test(c, other_models_are_refused);
    tcase_add_test(c, weights_of_others_are_taken_by_name);
    tcase_add_test(c, init_from_our_own);
    tcase_add_test(c, killed_while_saving);
    tcase_add_test(c, full_disk_changes_nothing);
    tcase_add_test(c, every_allocation_may_fail);
    tcase_add_test(c, its_job);
    tcase_add_test(c, digests_differ);
    return dt_test_run(s);
}
