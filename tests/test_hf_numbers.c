/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a module read from a Hugging Face config computes, against transformers and diffusers: small
 * configs, weights and inputs by formula, so that nothing but the results had to be written down.
 * tests/hf_numbers.py states the formulas anew, prints the table (--table) and, where the packages
 * are installed, compares many more configs (tests/test_hf.sh). */
#include "base/file.h"
#include "core/model/shape.h"
#include "exec/modules/module.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 24, SIDE = 16, STEPS_AT = 37 };

/* Between -1/2 and 1/2, by name and index: FNV-1a and the finalizer of MurmurHash3, 32 bits. */
static double formula(const char *name, int64_t i)
{
    uint32_t h = 2166136261u;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    h += (uint32_t)i * 2654435769u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return (double)(h ^ h >> 16) / 4294967296.0 - 0.5;
}

static double weight(const struct dt_param *p, int64_t i)
{
    double u = formula(p->name, i), fan = 1;

    if (p->n_dims == 1)
        return (p->init == DT_INIT_ONE ? 1 : 0) + 0.4 * u;
    for (int k = 1; k < p->n_dims; k++)
        fan *= (double)p->shape[k];
    return 4 * u / sqrt(fan);
}

struct run {
    struct dt_arena arena;
    struct dt_module m;
    struct dt_device *dev;
    struct dt_device_queue *q;
    struct dt_stage *stage;
    struct dt_batch *batch;
    int64_t n_out;
    float *out;
};

static void fill_weights(struct run *r)
{
    int n;
    const struct dt_param *p = dt_stage_params(r->stage, &n);

    for (int k = 0; k < n; k++) {
        int64_t out = p[k].transpose ? p[k].shape[1] : 1, in = p[k].transpose ? p[k].shape[0] : 1;

        for (int64_t i = 0; i < (int64_t)p[k].n; i++)
            dt_stage_master(r->stage)[p[k].at + (size_t)i] =
                (float)weight(&p[k], p[k].transpose ? i % in * out + i / in : i);
    }
    dt_stage_changed(r->q, r->stage, 0, r->m.n_blocks);
}

static void llm_batch(struct run *r)
{
    int32_t doc[ROWS] = {0};
    int vocab = r->m.blocks[0].vocab;
    struct dt_error err;

    dt_assert_ok(dt_batch_documents(r->batch, doc, ROWS, &err), err);
    for (int i = 0; i < ROWS; i++) {
        r->batch->host.ids[i] = (7 * i * i + 3 * i + 1) % vocab;
        r->batch->host.target[i] = (7 * (i + 1) * (i + 1) + 3 * (i + 1) + 1) % vocab;
    }
}

static void image_batch(struct run *r)
{
    uint8_t px[SIDE * SIDE * 3];
    struct dt_error err;

    for (int i = 0; i < SIDE * SIDE * 3; i++)
        px[i] = (uint8_t)(256 * (formula("pixels", i) + 0.5));
    dt_assert_ok(dt_batch_patches(r->batch, px, SIDE, SIDE, &err), err);
}

static float *latent_batch(struct run *r, int64_t states)
{
    int c = 0;
    float x[4096], *in = DT_ARENA_NEW(&r->arena, float, states);
    struct dt_error err;

    for (int i = 0; i < r->m.n_blocks && c == 0; i++)
        c = r->m.blocks[i].kind == DT_BLOCK_CONV ? r->m.blocks[i].c_in : 0;
    for (int i = 0; i < SIDE * SIDE * c; i++)
        x[i] = (float)(3 * formula("latents", i));
    for (int64_t i = 0; i < states; i++)
        in[i] = (float)(3 * formula("states", i));
    dt_assert_ok(dt_batch_latents(r->batch, x, SIDE, SIDE, 1, &err), err);
    r->batch->given_noise = true;
    r->batch->host.t[0] = STEPS_AT;
    r->batch->host.alpha[0] = 1;
    r->batch->host.sigma[0] = 0;
    return in;
}

/* Everything up to the results: an LLM's loss of each row, an encoder's features, predicted noise.
 */
static void compute(struct run *r, const char *name, const char *text, size_t len)
{
    struct dt_device_options opt = {.threads = 1};
    struct dt_batch_limits max = {.rows = SIDE * SIDE, .seqs = 2};
    struct dt_stage_spec spec = {.module = &r->m, .max = max};
    struct dt_nn_run run = {0};
    struct dt_shape shape;
    struct dt_error err = {0};
    char *saved = NULL;

    dt_assert_ok(dt_hf_parse(name, text, len, &shape, NULL, 0, &err), err);
    shape.projector = DT_PROJ_NONE;
    shape.unet.context_len = shape.unet.context_len > 0 ? 5 : 0;
    dt_assert_ok(dt_shape_build(&shape, 0, &r->arena, &err, &r->m), err);
    spec.last = r->m.n_blocks;
    dt_assert_ok(dt_device_open_cpu(&opt, &err, &r->dev), err);
    dt_assert_ok(r->dev->queue_new(r->dev, false, &err, &r->q), err);
    dt_assert_ok(dt_stage_new(r->dev, &spec, &err, &r->stage), err);
    dt_assert_ok(dt_batch_new(r->dev, &r->m, &max, &err, &r->batch), err);
    fill_weights(r);
    if (r->m.role == DT_ROLE_LLM)
        llm_batch(r);
    else if (r->m.role == DT_ROLE_ENCODER)
        image_batch(r);
    else
        run.in = latent_batch(r, (int64_t)5 * shape.unet.context_dim);
    dt_assert_ok(dt_batch_upload(r->q, r->batch, &err), err);
    r->n_out = r->m.role == DT_ROLE_LLM       ? ROWS
               : r->m.role == DT_ROLE_ENCODER ? r->batch->rows * shape.hidden
                                              : r->batch->rows * shape.unet.out_channels;
    r->out = DT_ARENA_NEW(&r->arena, float, r->n_out);
    saved = aligned_alloc(64, (dt_stage_saved_bytes(r->stage, r->batch) + 127) & ~(size_t)63);
    run.batch = r->batch;
    run.saved = saved;
    run.out = r->m.role == DT_ROLE_ENCODER ? r->out : NULL;
    dt_stage_forward(r->q, r->stage, &run, 0, r->m.n_blocks);
    dt_assert_ok(r->dev->queue_sync(r->q, &err), err);
    if (r->m.role == DT_ROLE_LLM)
        memcpy(r->out, r->batch->dev.nll, (size_t)r->n_out * sizeof(float));
    else if (r->m.role == DT_ROLE_GENERATOR)
        memcpy(r->out, r->batch->dev.pred, (size_t)r->n_out * sizeof(float));
    free(saved);
}

static void done(struct run *r)
{
    dt_batch_free(r->batch);
    dt_stage_free(r->stage);
    r->dev->queue_free(r->q);
    r->dev->close(r->dev);
    dt_arena_free(&r->arena);
}

/* What the tables hold: mean, root of the mean square, and a sum in which places differ. */
static void digest(const float *x, int64_t n, double out[3])
{
    out[0] = out[1] = out[2] = 0;
    for (int64_t i = 0; i < n; i++) {
        out[0] += (double)x[i] / (double)n;
        out[1] += (double)x[i] * (double)x[i] / (double)n;
        out[2] += (double)x[i] * formula("digest", i);
    }
    out[1] = sqrt(out[1]);
}

static const struct {
    const char *config;
    double want[3];
} table[] = {
#include "hf_numbers.h"
};

START_TEST(transformers_has_the_same)
{
    struct run r = {0};
    double got[3];

    compute(&r, "config.json", table[_i].config, strlen(table[_i].config));
    digest(r.out, r.n_out, got);
    for (int k = 0; k < 3; k++)
        ck_assert_msg(fabs(got[k] - table[_i].want[k]) < 2e-5 * (1 + fabs(table[_i].want[k])),
                      "%.120s: figure %d is %.9g, not %.9g", table[_i].config, k, got[k],
                      table[_i].want[k]);
    done(&r);
}
END_TEST

static const char *dump_path;

START_TEST(dump)
{
    struct run r = {0};
    struct dt_error err;
    char *text = NULL;
    size_t len;

    dt_assert_ok(dt_file_read(dump_path, 1 << 20, &err, &text, &len), err);
    compute(&r, dump_path, text, len);
    for (int64_t i = 0; i < r.n_out; i++)
        printf("%.9g\n", (double)r.out[i]);
    done(&r);
    dt_free(text);
}
END_TEST

/* --dump CONFIG: one result a line, for tests/hf_numbers.py */
int main(int argc, char **argv)
{
    Suite *s = suite_create("hf_numbers");
    TCase *t = dt_test_case(s, "numbers", 120);

    if (argc == 3 && strcmp(argv[1], "--dump") == 0) {
        dump_path = argv[2];
        tcase_add_test(t, dump);
        return dt_test_run_here(s, CK_SILENT);
    }
    tcase_add_loop_test(t, transformers_has_the_same, 0, sizeof(table) / sizeof(table[0]));
    return dt_test_run(s);
}
